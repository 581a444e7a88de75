/* sandbox.h - the door of the sandbox room: a place where an agent may run.
 *
 * The caller never learns which backend is behind the handle. A `struct sandboxes` is the room's
 * manager for one lane; it and all its sandboxes live on that lane's loop. Each activity ends with
 * exactly one final callback (on_open, on_exit, on_done), never from inside the call that started
 * it. Closing a handle silences it: no callback follows sandbox_job_close() or sandbox_close().
 *
 * Files and commands go through the porter inside: no host code follows a path the sandbox
 * controls. */
#ifndef SANDBOX_H
#define SANDBOX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/str.h"

struct json_writer;
struct loop;
struct sandboxes;
struct sandbox;
struct sandbox_job;

#define SANDBOX_INLET_PORT 13131

/* What a backend can do. Asking for what it lacks is refused before any work (ERR_UNSUPPORTED). */
enum sandbox_capability {
    SANDBOX_CAN_NETWORK_OFF = 1 << 0, /* no way out but the inlet */
    SANDBOX_CAN_SNAPSHOT = 1 << 1,
    SANDBOX_CAN_FORK = 1 << 2,
    SANDBOX_CAN_LIMITS = 1 << 3, /* memory, pids, cpu */
    SANDBOX_CAN_ROOT = 1 << 4,   /* root inside */
    SANDBOX_CAN_LAYERS = 1 << 5, /* read-only layers mounted */
    SANDBOX_CAN_POOL = 1 << 6,
    SANDBOX_CAN_ADOPT = 1 << 7, /* survives the server and is handed back */
};

/* Named isolation levels of the local backend. Weaker ones must be asked for by name. */
enum sandbox_isolation {
    SANDBOX_ISOLATION_FULL, /* everything, limits by cgroup included; refused if one part is missing
                             */
    SANDBOX_ISOLATION_NO_LIMITS,  /* "no-limits": all but cgroup limits (rlimits stay) */
    SANDBOX_ISOLATION_NO_SECCOMP, /* "no-seccomp": namespaces and limits without the syscall filter;
                                     for debugging */
};

/* The shape of a sandbox. Pools are kept per shape. Strings are borrowed during the call. */
struct sandbox_spec {
    const char *backend; /* NULL: "local" */
    const char *root;    /* NULL or "host": the host's system files; "dir:/path"; "image:NAME";
                            backend-specific otherwise */
    const char *const *layers; /* ids of snapshots, or absolute host directories, lowest first;
                                  mounted read-only below the upper layer */
    size_t layer_count;
    /* Names below "/", NULL-terminated, that show only the `pristine_layers` lowest of the layers
     * (those a snapshot stands on count): for a verifier that wants its programs untouched. NULL:
     * none. Only where layers are. */
    const char *const *pristine;
    uint32_t pristine_layers;
    const char *layer_mounts_at; /* reserved for agent bundles; NULL */
    uint64_t memory_bytes_max;   /* 0: backend default */
    uint64_t disk_bytes_max;     /* upper layer; 0: backend default */
    uint32_t pids_max;           /* 0: default */
    uint32_t cpu_millis;         /* 1000 = one core; 0: no limit */
    enum sandbox_isolation isolation;
    bool root_user;       /* commands may run as root inside, with the documented capabilities */
    bool upper_on_disk;   /* default: tmpfs */
    const char *hostname; /* NULL: "sandbox" */
    const char *label;    /* free text for people: rollout id */
    uint32_t life_ms_max; /* destroyed by the backend after this, whatever happens; 0: none */
};

/* ---------------------------------------------------------------- the manager */
struct sandbox_options {
    const char *home;                /* POSTERN_HOME: images, layers, keeper socket */
    const char *program_dir;         /* where postern-keeper and postern-porter are */
    const char *const *backend_dirs; /* directories of backend specs, searched in order */
    size_t backend_dir_count;
    uint32_t starting_max;  /* creates in flight; 0: 16 */
    uint32_t create_ms_max; /* 0: 60 s */
    bool keeper_private;    /* a keeper of this process's own, gone with it (postern exec) */
};
struct sandboxes *sandboxes_new(struct loop *loop, const struct sandbox_options *options,
                                struct err *err);
/* Destroys every sandbox that is left, waits (bounded) until they are gone, then on_closed. */
void sandboxes_close(struct sandboxes *sandboxes, void (*on_closed)(void *context), void *context);
/* Keeps `count` ready sandboxes of that shape. 0 drops the pool. */
int sandboxes_pool(struct sandboxes *sandboxes, const struct sandbox_spec *spec, uint32_t count,
                   struct err *err);
/* Capabilities of a backend, or -1. */
int sandboxes_capabilities(struct sandboxes *sandboxes, const char *backend, struct err *err);
/* Counters for people and metrics: created, destroyed, pool hits and misses, live, by backend. Any
 * thread: nobody waits for this one. */
void sandboxes_report(struct sandboxes *sandboxes, struct json_writer *out);

/* ---------------------------------------------------------------- one sandbox */
/* Ready means: the porter answered and a first command could run. */
struct sandbox *sandbox_open(struct sandboxes *sandboxes, const struct sandbox_spec *spec,
                             void (*on_open)(void *context, struct sandbox *sandbox,
                                             const struct err *err),
                             void *context);
/* Takes over a sandbox that a former server left (SANDBOX_CAN_ADOPT): with everything in it that
 * was to be kept. `spec` as it was opened with. What cannot be taken over is destroyed. */
struct sandbox *
sandbox_adopt(struct sandboxes *sandboxes, const char *id, const struct sandbox_spec *spec,
              void (*on_open)(void *context, struct sandbox *sandbox, const struct err *err),
              void *context);
const char *sandbox_id(const struct sandbox *sandbox); /* "sb-..." */
const char *sandbox_backend_name(const struct sandbox *sandbox);
/* Destroys it: no process, mount, cgroup, namespace or file stays. on_closed (may be NULL) comes
 * when it is so, with err set if something could not be removed (it is retried by the manager).
 * Also ends a pending open. */
void sandbox_close(struct sandbox *sandbox, void (*on_closed)(void *context, const struct err *err),
                   void *context);
/* The sandbox was lost: its porter or backend went away. At most once; jobs have ended with
 * ERR_LOST before. */
void sandbox_on_lost(struct sandbox *sandbox, void (*on_lost)(void *context, const struct err *err),
                     void *context);
/* Connections the agent makes to the inlet: each is a connected socket the receiver owns. Before a
 * handler is set connections wait in the listen queue. */
void sandbox_on_inlet(struct sandbox *sandbox, void (*on_connection)(void *context, int fd),
                      void *context);
/* Hosts looked up by name inside, with counts (CONNECT attempts are counted by the gateway):
 * {"host": n, ...} */
void sandbox_lookups(const struct sandbox *sandbox, struct json_writer *out);
/* Facts for the result: backend, isolation, uid map, limits in force, pool hit, create time. Writes
 * one object. */
void sandbox_facts(const struct sandbox *sandbox, struct json_writer *out);

/* ---------------------------------------------------------------- commands */
struct sandbox_command {
    const char *const *argv; /* NULL-terminated; or */
    const char *shell;       /* a string for /bin/sh -c */
    const char *const
        *env;         /* "NAME=value", NULL-terminated; NULL: the sandbox's default environment */
    bool env_only;    /* nothing but `env`; else `env` is added to the default */
    const char *cwd;  /* NULL: the default working directory */
    const char *user; /* NULL: the ordinary user; "root"; "name" or "uid[:gid]" */
    bool stdin_open;  /* the caller will write; else stdin is /dev/null */
    bool pty;         /* stdin, stdout, stderr are one terminal; output arrives as stdout */
    uint16_t rows, columns;
    uint32_t timeout_ms;       /* 0: none. The whole tree is gone when it is over */
    uint32_t grace_ms;         /* between TERM and KILL on timeout or kill; 0: 500 ms */
    uint64_t output_bytes_max; /* past this, output is read and dropped, and said so; 0: no limit */
    bool detached; /* children it leaves behind may live on after it exits (default: killed) */
    bool keep;     /* goes on when this server dies, where the backend can adopt; see
                      sandbox_reattach() */
};
enum sandbox_end {
    SANDBOX_EXITED,      /* code */
    SANDBOX_SIGNALED,    /* signal_number */
    SANDBOX_NOT_FOUND,   /* no such program; errno in code */
    SANDBOX_NOT_STARTED, /* could not start for another reason; text says which */
    SANDBOX_TIMED_OUT,
    SANDBOX_OUT_OF_MEMORY,
    SANDBOX_KILLED, /* by sandbox_job_kill */
    SANDBOX_LOST,   /* the sandbox went away: no exit status exists */
};
struct sandbox_exit {
    enum sandbox_end end;
    int code;
    int signal_number;
    uint64_t wall_ms;
    uint64_t user_us, system_us, rss_bytes_peak; /* 0 when unknown */
    uint64_t output_bytes_dropped;
    char text[160]; /* one sentence about what happened, for people */
};
const char *sandbox_end_name(enum sandbox_end end); /* "exited", "signaled", ... */
int sandbox_exit_code(const struct sandbox_exit
                          *exit); /* as a shell would say: code, 128+signal, 127, 126, 124, 137 */
struct sandbox_job_handlers {
    void (*on_output)(void *context, int stream,
                      struct str data); /* 1 stdout, 2 stderr; may be NULL: discarded */
    void (*on_exit)(void *context, const struct sandbox_exit *exit); /* after the last output */
    void (*on_drain)(void *context); /* stdin queue ran empty; may be NULL */
};
struct sandbox_job *sandbox_run(struct sandbox *sandbox, const struct sandbox_command *command,
                                const struct sandbox_job_handlers *handlers, void *context);
size_t sandbox_job_write(struct sandbox_job *job,
                         struct str data); /* returns bytes queued on our side */
void sandbox_job_end_input(struct sandbox_job *job);
void sandbox_job_resize(struct sandbox_job *job, uint16_t rows, uint16_t columns);
void sandbox_job_pause(
    struct sandbox_job *job); /* no more output until resume: the command blocks */
void sandbox_job_resume(struct sandbox_job *job);
void sandbox_job_signal(struct sandbox_job *job, int signal_number); /* to the process group */
void sandbox_job_kill(struct sandbox_job *job); /* the ladder: TERM, grace, KILL, tree gone */
bool sandbox_job_is_done(const struct sandbox_job *job);
void sandbox_job_close(struct sandbox_job *job); /* detaches; kills if it still runs */

/* What a former server started with `keep` in a sandbox that was adopted. */
struct sandbox_kept {
    uint64_t from, to; /* bytes of output: those from `from` on can still be had */
    uint64_t input;    /* bytes of input it was given */
    bool over;         /* it has ended */
    bool input_ended;
};
/* The one that was started after `index` others. False: there is none, so it was never started (or
 * many were since: of 16 the oldest that is over, and was known to be, goes when one more starts).
 */
bool sandbox_kept(const struct sandbox *sandbox, size_t index, struct sandbox_kept *kept);
/* The command as a job of ours: its output from `position` on (not before `from`), then its end,
 * also when that was long ago. At most once. */
struct sandbox_job *sandbox_reattach(struct sandbox *sandbox, size_t index, uint64_t position,
                                     const struct sandbox_job_handlers *handlers, void *context);

/* Runs to the end and keeps the first `bytes_max` of each stream. The common case. */
struct sandbox_outcome {
    struct sandbox_exit exit;
    struct str out, err_out;
    bool truncated;
};
void sandbox_run_whole(struct sandbox *sandbox, const struct sandbox_command *command,
                       struct str input, size_t bytes_max,
                       void (*on_done)(void *context, const struct sandbox_outcome *outcome),
                       void *context);
/* Kills every process in the sandbox but the porter, and waits until they are gone. */
void sandbox_kill_all(struct sandbox *sandbox,
                      void (*on_done)(void *context, const struct err *err), void *context);

/* ---------------------------------------------------------------- files */
enum sandbox_file_kind {
    SANDBOX_FILE_NONE,
    SANDBOX_FILE_REGULAR,
    SANDBOX_FILE_DIRECTORY,
    SANDBOX_FILE_LINK,
    SANDBOX_FILE_OTHER
};
struct sandbox_stat {
    enum sandbox_file_kind kind;
    uint64_t size;
    uint32_t mode, uid, gid;
    int64_t mtime_s;
};
typedef void (*sandbox_done)(void *context, const struct err *err);
/* Parents are made. `user` as in sandbox_command: whose files they are. Paths are inside the
 * sandbox. */
void sandbox_put(struct sandbox *sandbox, const char *path, struct str content, uint32_t mode,
                 const char *user, sandbox_done on_done, void *context);
/* From a host file descriptor (dup'ed), of any size. */
void sandbox_put_fd(struct sandbox *sandbox, const char *path, int fd, uint32_t mode,
                    const char *user, sandbox_done on_done, void *context);
/* A host directory's content into a directory inside; links are copied as links, never followed. */
void sandbox_put_tree(struct sandbox *sandbox, const char *host_dir, const char *path,
                      const char *user, sandbox_done on_done, void *context);
void sandbox_get(struct sandbox *sandbox, const char *path, size_t bytes_max,
                 void (*on_done)(void *context, struct str content, const struct err *err),
                 void *context);
/* Into a host file descriptor (dup'ed). ERR_LIMIT: there were more than `bytes_max`, whatever the
 * file's size was said to be before; none of them is written past that. */
void sandbox_get_fd(struct sandbox *sandbox, const char *path, int fd, uint64_t bytes_max,
                    sandbox_done on_done, void *context);
/* A tree out to a fresh host directory: no device nodes, no setuid, links kept as links and never
 * written through, byte and entry budgets enforced. */
struct sandbox_budget {
    uint64_t bytes_max;   /* 0: 64 GiB */
    uint64_t entries_max; /* 0: 10 million */
};
void sandbox_get_tree(struct sandbox *sandbox, const char *path, const char *host_dir,
                      const struct sandbox_budget *budget, sandbox_done on_done, void *context);
/* Missing is not an error: kind is SANDBOX_FILE_NONE. */
void sandbox_stat(struct sandbox *sandbox, const char *path,
                  void (*on_done)(void *context, const struct sandbox_stat *stat,
                                  const struct err *err),
                  void *context);
void sandbox_remove(struct sandbox *sandbox, const char *path, sandbox_done on_done,
                    void *context); /* a tree; missing is fine */

/* ---------------------------------------------------------------- snapshots */
/* Kills everything inside, turns the upper layer into a read-only layer and closes the sandbox. The
 * layer id goes into sandbox_spec.layers of as many forks as wanted. */
void sandbox_snapshot(struct sandbox *sandbox,
                      void (*on_done)(void *context, const char *layer_id, const struct err *err),
                      void *context);
void sandboxes_drop_layer(struct sandboxes *sandboxes, const char *layer_id);
/* A layer that a former server left becomes ours, so that it is not dropped. */
void sandboxes_adopt_layer(struct sandboxes *sandboxes, const char *layer_id, sandbox_done on_done,
                           void *context);

/* ---------------------------------------------------------------- left-overs, images, the machine
 */
struct sandbox_found {
    const char *id, *label; /* of a layer: that of the sandbox it was */
    uint64_t age_ms;
    bool layer; /* a snapshot */
};
/* What a former server left at the keeper. on_done gets the list; sandboxes_destroy_found() removes
 * one (a layer: sandboxes_drop_layer). */
void sandboxes_find(struct sandboxes *sandboxes,
                    void (*on_done)(void *context, const struct sandbox_found *found, size_t count,
                                    const struct err *err),
                    void *context);
void sandboxes_destroy_found(struct sandboxes *sandboxes, const char *id, sandbox_done on_done,
                             void *context);
/* Imports an OCI layout directory or tar, or a `docker save` archive, as image NAME. Blocking; for
 * the CLI. */
int sandbox_image_import(const char *home, const char *archive, const char *name, struct err *err);
int sandbox_image_list(const char *home, struct json_writer *out, struct err *err);
/* What this machine offers, primitive by primitive, and what follows. Blocking. Returns the number
 * of missing primitives without which the full level is refused. */
int sandbox_doctor(const struct sandbox_options *options, struct json_writer *out);

#endif
