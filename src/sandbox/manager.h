/* manager.h - private to the sandbox room: what the manager's files share.
 *
 *     sandbox.c       the registry, the manager, left-overs, pools, the report
 *     sandbox_check.c what is asked against what a backend can do
 *     sandbox_life.c  one sandbox from open to gone: states, retries, deadlines;
 *                     sandbox_snapshot.c is the end that leaves a layer
 *     sandbox_limits.c do the limits hold that were asked for
 *     sandbox_inlet.c what comes out of a sandbox: inlet connections and name look-ups
 *     sandbox_work.c  commands and files: thin calls onto the channel, out-of-memory attribution */
#ifndef SANDBOX_MANAGER_H
#define SANDBOX_MANAGER_H

#include "base/arena.h"
#include "base/list.h"
#include "base/map.h"
#include "loop/loop.h"
#include "sandbox/backend.h"
#include "sandbox/channel.h"
#include "sandbox/dns.h"

#define SLOTS_MAX 64 /* backends in use on one lane, one per host for ssh */
#define INLET_PENDING_MAX 64

/* A backend in use on this lane, with its counters: written here, read by anybody. */
struct slot {
    char *name; /* as asked for: "local", "ssh:build7" */
    struct backend *backend;
    struct sandboxes *sandboxes;
    _Atomic uint64_t created, destroyed, failed, retried, lost, pool_hits, pool_misses;
    _Atomic uint64_t create_ms_total, create_ms_max;
    _Atomic uint32_t live; /* ready and not closed */
};

struct sandboxes {
    struct loop *loop;
    struct arena arena; /* the options' strings */
    struct sandbox_options options;
    struct slot *slots[SLOTS_MAX]; /* never removed; there before they are counted */
    _Atomic size_t slot_count;
    struct list all; /* struct sandbox.link */
    struct list abandoned;
    struct list queue; /* struct sandbox.queue_link: waiting for a place among the starting */
    size_t all_count;
    _Atomic size_t queue_count, starting;
    struct map found; /* id -> struct slot, from the last find */
    bool closing;
    struct loop_timer close_timer;
    size_t stopping; /* backends that have not stopped yet */
    void (*on_closed)(void *context);
    void *close_context;
};

enum sandbox_state {
    SB_QUEUED,   /* waits for its turn; nothing exists */
    SB_CREATING, /* the backend is at it */
    SB_GREETING, /* frames are attached; the porter has not answered the first command yet */
    SB_BACKOFF,  /* an attempt failed and was cleared away; another follows */
    SB_READY,
    SB_LOST,   /* it went away by itself; the owner has yet to close it */
    SB_FAILED, /* it never came to be; the owner has yet to close it */
    SB_SNAPSHOT,
    SB_CLOSING, /* being destroyed, again and again until it is gone */
    SB_GONE,
};

struct sandbox {
    struct list link, queue_link;
    struct sandboxes *sandboxes;
    struct slot *slot;
    char id[40];
    enum sandbox_state state;
    struct arena arena;
    struct sandbox_spec spec;
    struct err err; /* of the last attempt, or of the loss */
    unsigned attempts;
    bool counted_starting;
    uint64_t opened_ms, begun_ms, ready_ms;
    struct loop_timer timer;      /* queue wait, create deadline, back-off, destroy retries */
    struct loop_timer life_timer; /* life_ms_max */

    /* With the backend: at most one of each is in flight. */
    bool adopting;     /* it exists already: it is taken over, or not */
    unsigned attached; /* bits: to which of what was kept in it */
    bool create_pending, destroy_pending, exists;
    unsigned destroy_failures;
    bool life_over;

    struct channel *channel;
    char facts[1024];
    bool pool_hit, inlet_carried;
    size_t limit_at; /* which limit is being looked at (sandbox_limits.c) */

    /* out-of-memory attribution (sandbox_work.c) */
    struct list verdicts;
    uint64_t oom_kills; /* of the backend's count, those that explained a command's end */

    /* what comes out */
    int inlet_fd, resolver_fd;
    struct loop_watch inlet_watch, resolver_watch;
    struct loop_timer inlet_timer;
    int pending[INLET_PENDING_MAX];
    size_t pending_count;
    void (*on_connection)(void *context, int fd);
    void *inlet_context;
    struct dns_tally lookups;

    bool silent; /* the owner has closed it */
    bool opened; /* on_open was delivered */
    bool lost_told;
    void (*on_open)(void *context, struct sandbox *sandbox, const struct err *err);
    void *open_context;
    void (*on_lost)(void *context, const struct err *err);
    void *lost_context;
    void (*on_closed)(void *context, const struct err *err);
    void *close_context;
    void (*on_snapshot)(void *context, const char *layer_id, const struct err *err);
    void *snapshot_context;
};

/* sandbox.c */
struct slot *sandboxes_slot(struct sandboxes *sandboxes, const char *name, struct err *err);
void sandboxes_gone(struct sandboxes *sandboxes); /* one sandbox less: maybe the last */

/* sandbox_check.c */
int sandbox_spec_check(const struct slot *slot, const struct sandbox_spec *spec, struct err *err);
/* ERR_UNSUPPORTED, naming backend and capability, unless it has it. */
int sandbox_need(const struct slot *slot, unsigned capability, const char *what, struct err *err);

/* sandbox_life.c */
void sandbox_next_in_queue(struct sandboxes *sandboxes);
/* The bounded wait of sandboxes_close() is over: stop trying. */
void sandbox_abandon(struct sandbox *sandbox);
void sandbox_detach(struct sandbox *sandbox);        /* from its channel and inlet */
void sandbox_begin_closing(struct sandbox *sandbox); /* destroys it, until it is gone */
void sandbox_free(void *sandbox);

/* sandbox_limits.c: looks whether the limits hold; ends with sandbox_limits_known(), maybe at once.
 */
void sandbox_limits_check(struct sandbox *sandbox);
void sandbox_limits_known(struct sandbox *sandbox, const struct err *err); /* sandbox_life.c */

/* sandbox_work.c */
void sandbox_judge(struct sandbox *sandbox, struct sandbox_job *job);
void sandbox_judge_all(struct sandbox *sandbox, enum channel_verdict verdict);

/* sandbox_inlet.c */
void sandbox_inlet_open(struct sandbox *sandbox, int inlet_fd, int resolver_fd);
void sandbox_inlet_close(struct sandbox *sandbox);
void sandbox_inlet_arrived(struct sandbox *sandbox, int fd); /* carried by the channel; takes fd */

#endif
