/* porter.h - private to the porter: its parts and what they share.
 *
 *     main.c        the program
 *     loop.c        start, the event loop, frames, the end
 *     options.c     the command line
 *     stream.c      one number on the wire: data in, data out, credit
 *     kept.c        commands that outlive their connection, and the change to a new one
 *     job.c         commands and file work as streams; timeouts; supervisors in use and idle
 *     supervisor.c  a process per running command that adopts all its orphans
 *     launch.c      from fork to exec: becoming the user, dropping everything
 *     kill.c        finding and ending every descendant
 *     users.c       names to numbers, strictly
 *     files.c       put, get, trees, stat, remove: in a child that became the user
 *     inlet.c       the inlet and the resolver carried as frames
 *
 * Process 1 itself never opens a path after its start, and nothing it waits for is under the
 * control of a command: whatever touches the sandbox's files happens in supervisors and file
 * workers. */
#ifndef PORTER_H
#define PORTER_H

#include <linux/filter.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/types.h>

#include "base/buf.h"
#include "base/list.h"
#include "base/str.h"
#include "wire/wire.h"

struct err;

/* ---------------------------------------------------------------- options */
#define RLIMITS_MAX 16
struct porter_options {
    int fd_in, fd_out;
    int fd_control; /* new connections come here; -1: there are none */
    char **env;     /* NULL-terminated */
    size_t env_count;
    const char *cwd;
    uid_t uid;
    gid_t gid;
    uint64_t root_caps;
    struct sock_fprog filter, root_filter; /* len 0: none */
    struct {
        int resource;
        struct rlimit limit;
    } rlimits[RLIMITS_MAX];
    size_t rlimit_count;
    bool die_with_parent;
    uint16_t inlet_port; /* 0: as the host says */
};
/* Returns 0, or -1 with a sentence. 1: --version was asked for. */
int options_read(struct porter_options *options, int argc, char **argv, char **environment,
                 struct err *err);

void options_deinit(struct porter_options *options); /* also after a failed read */

/* What supervisors and workers need to know, gathered once. */
struct porter_world {
    struct porter_options options;
    int proc; /* O_PATH of /proc, or -1 */
    int null; /* /dev/null, or the read end of a closed pipe */
    bool setgroups_denied;
    bool is_init;         /* process 1 of a pid namespace */
    struct rlimit nofile; /* as it was: the porter raises its own, commands get this */
};

/* ---------------------------------------------------------------- users */
#define GROUPS_MAX 64
struct user {
    uid_t uid;
    gid_t gid;
    gid_t groups[GROUPS_MAX];
    size_t group_count;
    char name[256]; /* empty: no entry */
    char home[1024];
};
/* `spec`: "name" or "uid[:gid]"; empty: the defaults. Reads /etc/passwd and /etc/group below
 * `root`. */
int user_find(int root, struct str spec, uid_t uid, gid_t gid, struct user *user, struct err *err);
/* Decimal digits only, and at most 4294967294. */
bool user_number(struct str text, uint32_t *number);
/* True when the spec says uid 0 without looking anything up. */
bool user_is_root(struct str spec, uid_t default_uid);

/* ---------------------------------------------------------------- launch */
#define CAPS_FILES 0x1full /* CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID */

struct launch {
    const struct porter_world *world;
    const struct user *user;
    char **argv; /* argv[-1] is writable: room for a shell before it */
    char **env;
    const char *cwd;
    bool pty;
    int error;         /* out: errno, 0 when the program runs */
    const char *stage; /* out: what failed; NULL: the exec itself */
};
/* Drops all but `caps` from the bounding set: what this process holds stays, what it starts cannot
 * get more. NULL, or what failed. */
const char *launch_bound(uint64_t caps);
/* Becomes the user for good: groups, ids, capabilities (`caps` of those at hand), no_new_privs.
 * Returns NULL or the name of the step that failed, with errno. */
const char *launch_become(const struct porter_world *world, const struct user *user, uint64_t caps);
/* Starts the program in a new session; descriptors 0, 1, 2 are in place. Returns its pid, or -1
 * with error and stage. */
pid_t launch_run(struct launch *launch);

/* ---------------------------------------------------------------- kill */
struct pids {
    pid_t *pid; /* ascending */
    size_t count, capacity;
};
/* Living descendants of `root`, without those below (and including) any of `spared`. Returns false
 * without /proc. */
bool kill_find(int proc, pid_t root, const pid_t *spared, size_t spared_count, struct pids *found);
/* One round: stops all of them until no new one appears, then kills them. Returns how many there
 * were. */
size_t kill_round(int proc, pid_t root, const pid_t *spared, size_t spared_count);

/* ---------------------------------------------------------------- supervisors and workers */
/* What process 1 says to a supervisor: one packet each. */
enum order_kind { ORDER_RUN = 1, ORDER_TERM, ORDER_KILL, ORDER_SIGNAL };
struct order {
    uint8_t kind;
    uint8_t signal_number;
    uint8_t
        in_memory; /* ORDER_RUN: the exec message is in the fourth descriptor, not in the packet */
    uint32_t size; /* of the exec message */
};
#define ORDER_INLINE_MAX 65536u
/* What a supervisor or file worker says back. */
enum report_flag {
    REPORT_FAILED = 1, /* error, text: it never ran */
    REPORT_EXITED = 2, /* status and usage */
    REPORT_GONE = 4,   /* nothing that descends from it is left */
    REPORT_DONE = 8,   /* file work: error, count, text */
    REPORT_STAT = 16,  /* file work: stat */
};
struct report {
    uint8_t flags;
    int status; /* as wait gives it */
    int error;
    bool not_found;
    uint64_t user_us, system_us, rss_bytes_peak, count;
    struct wire_stat stat;
    char text[WIRE_TEXT_MAX + 1];
};
/* Runs in a fresh child; does not return. `ctl` is a SOCK_SEQPACKET socket. */
_Noreturn void supervisor_main(const struct porter_world *world, int ctl, bool root_kind);
/* The same for file work: reads the content from `in`, writes it to `out` (either may be -1). */
_Noreturn void files_main(const struct porter_world *world, int ctl, int in, int out, uint8_t type,
                          const struct wire_file *file);
/* In a fresh child: puts descriptors at 0, 1, 2, 3, ... and closes all others. */
void child_descriptors(const int *fds, size_t count);

/* ---------------------------------------------------------------- the loop */
struct porter;
struct watch {
    void (*ready)(struct watch *watch, uint32_t events);
    struct porter *porter;
    int fd; /* -1: none */
    uint32_t events;
    bool added;
};

#define OUT_BYTES_MAX 262144u /* queued frames above which nothing more is read from commands */

struct porter {
    struct porter_world world;
    int epoll;
    struct watch in, out, signals, control;
    struct wire_decoder decoder;
    struct buf out_queue;
    bool said_hello, congested, ending;
    int exit_status;
    uint32_t window_out; /* initial credit of our DATA */
    struct list streams; /* struct stream.node */
    struct stream *buckets[256];
    size_t stream_count;
    struct list children; /* struct child.node */
    uint32_t kept_total;  /* commands that were to be kept, so far */
    struct list freed;    /* streams and children to free when this tick is over */
    uint64_t now_ms;
    /* kill_all under way */
    uint32_t kill_all_stream;
    bool kill_all_silent; /* who asked for it is gone */
    uint64_t kill_all_force_ms, kill_all_deadline_ms;
    /* orphans of a supervisor that was killed are being hunted until then */
    bool sweeping, swept_all;
    unsigned clean_looks; /* in a row that found nothing */
    uint64_t sweep_deadline_ms;
    /* inlet.c */
    struct watch inlet, resolver;
    uint32_t inlet_stream_next;
    size_t inlet_count;
};

void watch_set(struct watch *watch, uint32_t events); /* EPOLLIN, EPOLLOUT; 0: silent */
void watch_close(struct watch *watch);
/* Runs until the frames end; returns the exit status. */
int porter_run(const struct porter_options *options);
_Noreturn void porter_die(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* ---------------------------------------------------------------- streams */
struct ring { /* bytes for a command's stdin; zeroed as they go */
    char *data;
    size_t start, size, capacity;
};
enum stream_kind { STREAM_JOB, STREAM_FILE, STREAM_INLET };
struct stream {
    struct list node;
    struct porter *porter;
    struct stream *hash_next;
    uint32_t id;
    enum stream_kind kind;
    struct wire_credit in_credit, out_credit;
    struct watch sink; /* host's DATA goes here */
    struct ring queue;
    bool sink_ended;         /* END came: close when the queue is empty */
    struct watch sources[2]; /* become DATA */
    bool over;               /* nothing more will be written to the sources: empty means end */
    bool freed;
    /* jobs and file work: job.c */
    struct child *child;
    struct report report;
    bool reported; /* EXITED, FAILED, DONE or STAT came */
    bool detached, pty;
    bool timed_out, killed, kill_sent;
    uint32_t grace_ms;
    uint64_t output_bytes, output_bytes_max, output_bytes_dropped;
    uint64_t started_us;
    uint64_t timeout_at_ms, kill_at_ms, give_up_at_ms; /* 0: none */
    /* kept.c */
    bool keep;       /* lives on without a connection */
    uint32_t number; /* of those that were to be kept, from 0 */
    bool attached;   /* and a host listens */
    bool exit_sent;
    struct buf unseen;     /* records: channel u8, size u32, bytes. Output no host has seen to */
    size_t unseen_bytes;   /* of output in it */
    size_t unseen_skip;    /* of the first record that are done with */
    uint64_t output_total; /* bytes that were read */
    uint64_t input_total;  /* bytes that came for its input */
    uint64_t ended_us;
    /* inlet */
    bool source_ended;
};
struct stream *stream_new(struct porter *porter, uint32_t id, enum stream_kind kind);
struct stream *stream_find(struct porter *porter, uint32_t id);
void stream_free(struct stream *stream);                          /* at the end of this tick */
void stream_set_sink(struct stream *stream, int fd);              /* takes it */
void stream_set_source(struct stream *stream, int index, int fd); /* takes it */
void stream_update(struct stream *stream);                        /* what it waits for now */
int stream_data(struct stream *stream, struct str data, struct err *err);
void stream_end(struct stream *stream);
void stream_pump(struct stream *stream); /* reads what is there from the sources */
bool stream_drained(const struct stream *stream);
void ring_free(struct ring *ring);

/* ---------------------------------------------------------------- kept */
/* A new stream whose command outlives the connection. False: there are too many already. */
bool kept_begin(struct stream *stream);
/* Output was read: remembers it, and sends it when somebody listens. */
void kept_output(struct stream *stream, uint8_t channel, struct str data);
/* The host has seen to that much more. False: it cannot have. */
bool kept_credit(struct stream *stream, uint32_t size);
int kept_attach(struct stream *stream, uint64_t position, struct err *err);
void kept_list(struct porter *porter); /* adds the KEPT frame */
/* The connection is over: what was not to be kept ends. */
void kept_detach(struct porter *porter);

/* ---------------------------------------------------------------- jobs */
enum child_state {
    CHILD_IDLE,
    CHILD_BUSY,
    CHILD_LINGERING /* its job was reported; descendants live on */
};
struct child {
    struct list node;
    struct porter *porter;
    pid_t pid;
    bool supervisor, root_kind;
    enum child_state state;
    struct watch ctl;
    struct stream *stream;
};
int job_exec(struct porter *porter, uint32_t id, struct str payload, struct err *err);
int job_file(struct porter *porter, uint32_t id, uint8_t type, struct str payload, struct err *err);
void job_kill_all(struct porter *porter, uint32_t id);
void job_signal(struct stream *stream, uint8_t number);
void job_kill(struct stream *stream);
void job_reset(struct stream *stream);
void job_abandon(struct stream *stream); /* nobody will hear of its end */
void job_resize(struct stream *stream, uint16_t rows, uint16_t columns);
void job_check(struct stream *stream);   /* sends the final frame when all is said */
void job_prepare(struct porter *porter); /* one supervisor ahead of need */
void job_reap(struct porter *porter);    /* SIGCHLD */
void job_timers(struct porter *porter);
int job_wait_ms(const struct porter *porter); /* until the next timer; -1: none */
void job_end_all(struct porter *porter);      /* everything gone, or 10 s */

/* ---------------------------------------------------------------- inlet */
void inlet_start(struct porter *porter, const struct wire_hello *asked, struct wire_hello *answer);
void inlet_check(struct stream *stream); /* frees it when both directions are over */
void inlet_reset(struct stream *stream, bool tell);
void inlet_update(struct porter *porter);

#endif
