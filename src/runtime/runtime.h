/* runtime.h - the door of the runtime room: builds the rooms from the settings and connects them.
 *
 * One runtime per process: lanes, one sandbox manager and one gateway per lane, the store, the
 * rollouts and (for a server) the api. Its control loop is the loop of the thread that made it. The
 * commands of the CLI see nothing of the machine below but what is here. */
#ifndef RUNTIME_H
#define RUNTIME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"

struct config;
struct json_writer;
struct runtime;

/* Where things are. Found once, from the place of this program; see docs/cli.md. */
const char *runtime_program_dir(void); /* postern-keeper, postern-porter, postern-mini */
const char *runtime_share_dir(void);   /* agents/, backends/, tasks/ below it; NULL: not found */

/* ---------------------------------------------------------------- rollouts in this process */
struct runtime_batch {
    const char *agent;        /* name or path of a spec */
    const char *const *tasks; /* each as task_load() takes it */
    size_t task_count;
    const char *model;    /* "script:FILE" or "URL#name" */
    const char *key_env;  /* name of the variable with the model\'s key; NULL: POSTERN_MODEL_KEY */
    const char *mode;     /* NULL: black_box */
    const char *sampling; /* JSON, as gateway_sampling_read() takes it; NULL: nothing is imposed */
    const char *label;    /* NULL: none */
    const char *root;     /* NULL: the task\'s, else the configured one */
    uint32_t each;        /* rollouts per task */
    uint32_t wall_ms_max; /* 0: as the task says */
    uint32_t turns_max;
    bool exact_prefix;     /* struct rollout_request */
    bool skip_permissions; /* the agent's own permission checks are switched off */
    bool offline;          /* tasks that ask for a network run without */
};
/* What happens to a batch, for whoever shows it. All calls come on the calling thread, from inside
 * runtime_run(). */
struct runtime_row {
    size_t index; /* from 0, in the order of submission */
    const char *id, *task, *stage, *fate, *error, *activity;
    bool final, rewarded;
    double reward;
    uint32_t calls, turns;
    uint64_t wall_ms;   /* since it left the queue */
    uint64_t stage_ms;  /* in this stage */
    const char *result; /* result.json in one line, when final */
};
struct runtime_show {
    void (*on_start)(void *context, size_t total, uint32_t parallel);
    void (*on_row)(void *context, const struct runtime_row *row); /* it changed */
    void (*on_tick)(void *context);                               /* a few times a second */
    void (*on_note)(void *context, const char *text);             /* a sentence for people */
    void *context;
};
struct runtime_sum {
    size_t total, final, rewarded;
    size_t failed; /* infrastructure, upstream or setup: nothing can be learned from them */
    double reward_sum;
    uint64_t wall_ms;
    bool cancelled;
};
/* Runs the batch to its end. SIGINT and SIGTERM cancel it; a second one hurries. Returns -1 only
 * when nothing could be started. */
int runtime_run(const struct config *config, const struct runtime_batch *batch,
                const struct runtime_show *show, struct runtime_sum *sum, struct err *err);

/* ---------------------------------------------------------------- a server */
/* Until SIGINT or SIGTERM. `on_ready` gets one line for people per listener. */
int runtime_serve(const struct config *config, void (*on_ready)(void *context, const char *line),
                  void *context, struct err *err);

/* ---------------------------------------------------------------- one command in a fresh sandbox
 */
struct runtime_exec {
    const char *const *argv; /* NULL-terminated */
    const char *const *env;  /* NULL-terminated; NULL: none */
    const char *cwd, *user;
    const char *backend, *root;
    int isolation;
    uint64_t memory_bytes_max;
    uint32_t pids_max, cpu_millis, timeout_ms;
    bool root_user;
    bool pty;
};
/* With this process's standard streams. Returns the exit code as a shell would say, or -1 with
 * `err` when Postern itself failed. `note` (at least 200 bytes) gets a sentence when there is
 * something to say (timeout, out of memory), else "". */
int runtime_exec(const struct config *config, const struct runtime_exec *exec, char *note,
                 size_t note_size, struct err *err);

/* ---------------------------------------------------------------- samples */
enum runtime_export { RUNTIME_EXPORT_LINES, RUNTIME_EXPORT_BINARY, RUNTIME_EXPORT_TRACE };
/* What is to be trained on, of rollouts that are over, made from their folders: to `fd`, all of it
 * or an error. */
int runtime_export(const struct config *config, const char *const *dirs, size_t count,
                   enum runtime_export format, uint32_t realign_max, int fd, struct err *err);

/* ---------------------------------------------------------------- what may go */
struct runtime_gc {
    uint64_t age_ms, count_max, bytes_max; /* 0: as configured */
    bool dry;                              /* only look */
};
struct runtime_gc_report {
    uint64_t rollouts, bytes, segments, segment_bytes;
};
/* Finished rollouts that are too old or too many, and what of the journal nothing needs any more.
 * Also beside a server on the same home. */
int runtime_gc(const struct config *config, const struct runtime_gc *asked,
               struct runtime_gc_report *report, struct err *err);

/* ---------------------------------------------------------------- smaller questions */
int runtime_doctor(const struct config *config, struct json_writer *out);
int runtime_image_import(const struct config *config, const char *archive, const char *name,
                         struct err *err);
int runtime_image_list(const struct config *config, struct json_writer *out, struct err *err);
/* An array of agent specs that are found. */
int runtime_agents(const struct config *config, struct json_writer *out, struct err *err);
/* Builds the agent on this machine, once; needs the network. Writes what agents ls shows of it. */
int runtime_agent_install(const struct config *config, const char *what, struct json_writer *out,
                          struct err *err);
/* Removes the bundles of NAME or NAME@VERSION; NULL: those no spec wants any more. An array. */
int runtime_agents_remove(const struct config *config, const char *what, struct json_writer *out,
                          struct err *err);
int runtime_agent_check(const char *what, struct json_writer *out, struct err *err);
int runtime_task_check(const char *what, struct json_writer *out, struct err *err);

#endif
