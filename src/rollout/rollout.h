/* rollout.h - the door of the rollout room: one agent on one task, from sandbox to reward.
 *
 * `struct rollouts` is the manager. It lives on one loop, the control loop; every call here happens
 * on that thread and every callback comes there. The rollouts themselves live on lanes, each with
 * all its connections on one; the manager talks to them by messages.
 *
 * Every rollout that was accepted by rollouts_submit() ends with exactly one final event, after its
 * folder is written and its sandbox is gone. An infrastructure failure never has a reward. */
#ifndef ROLLOUT_H
#define ROLLOUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/id.h"
#include "base/list.h"
#include "base/str.h"
#include "trace/trace.h"

struct agent_spec;
struct arena;
struct buf;
struct err;
struct gateway;
struct json_writer;
struct loop;
struct model;
struct rollouts;
struct sandboxes;
struct store;
struct task;

/* What one lane offers. The pointers outlive the manager. */
struct rollout_lane {
    struct loop *loop;
    struct sandboxes *sandboxes;
    struct gateway *gateway;
};

struct rollouts_options {
    const char *home;                 /* rollouts/<id>/ is made below it */
    struct store *store;              /* NULL: no index */
    const struct rollout_lane *lanes; /* copied */
    size_t lane_count;
    const char *carry; /* paths whose changes by the agent the verifier sees, besides those a task
                          carries; separated by blanks. NULL: none */
    const char *builder, *build_flags; /* of images of tasks; NULL: the first that is there */
    uint32_t parallel_max;             /* 0: 64; rollouts past `queued` at once */
    uint32_t queued_max;               /* 0: 100000; more are refused with ERR_CAPACITY */
    uint32_t provision_tries_max;      /* 0: 3; only provisioning is tried again */
    uint32_t wall_ms_max;              /* 0: 30 min; the agent's time when nobody says otherwise */
    uint32_t setup_ms_max;             /* 0: 10 min */
    uint32_t verify_ms_max;            /* 0: 10 min */
    uint64_t log_bytes_max;            /* 0: 16 MiB; agent.log, events.jsonl, verifier.log each */
    uint64_t artifact_bytes_max;       /* 0: 64 MiB */
    /* Limits of sandboxes when neither request nor task says; only where the backend has limits. 0:
     * its own. */
    uint64_t memory_bytes_max, disk_bytes_max;
    uint32_t pids_max, cpu_millis;
    uint32_t pool; /* ready sandboxes kept per lane and shape, where the backend can; 0: none */
    /* Of each rollout's calls; 0: the gateway's own. */
    uint32_t calls_max, in_flight_max, keepalive_ms, retry_grace_ms;
    uint64_t held_ms_max;
    size_t body_bytes_max, answer_bytes_max;
    uint64_t record_bytes_max;
    const char *owner; /* who runs this manager; kept as `owner` in each folder until it is over.
                          NULL: none */
    uint32_t kept_max; /* 0: 1000; finished rollouts the manager still knows */
    bool events;       /* ROLLOUT_EVENT_LOG is wanted */
    /* Admission, besides parallel_max; 0: no limit. */
    uint32_t starts_per_second_max;
    uint32_t calls_in_flight_max; /* of all rollouts; nothing starts while there are as many */
    uint32_t queue_ms_max;        /* who waited longer is cancelled, reason "queue_timeout" */
};

struct rollouts *rollouts_new(struct loop *loop, const struct rollouts_options *options,
                              struct err *err);
/* Cancels what is left, waits until each has had its final event, then on_closed, then it is gone.
 */
void rollouts_close(struct rollouts *rollouts, void (*on_closed)(void *context), void *context);

/* A rollout as it stands: for tables, the api and the final event. Borrowed during the call that
 * shows it. */
struct rollout_view {
    const char *id;    /* "r-..." */
    const char *group; /* "": none */
    const char *run;   /* which `postern run` or submission; "": none */
    const char *task, *agent, *model, *mode, *backend; /* model without secrets */
    enum trace_stage stage;
    bool final;
    enum trace_fate fate; /* when final */
    enum trace_stage failed_stage;
    const char *error; /* "" when nothing went wrong */
    /* Of the end, as a word: "stale", "queue_timeout", "user"...; "". Before the end: it was asked
     * to end, and why is in `error`. */
    const char *reason;
    bool rewarded;
    double reward;
    uint32_t calls, turns, tries;
    uint64_t queued_ms;  /* wall clock */
    uint64_t started_ms; /* wall clock; 0: still queued */
    uint64_t done_ms;    /* wall clock; 0: not yet */
    uint64_t stage_ms[TRACE_STAGES];
    uint32_t index;
    int32_t priority;
    bool has_policy;
    int64_t policy_version; /* of the weights when it began */
    const char *dir;
    const char *callback; /* JSON; NULL: none */
    const char *activity; /* the agent's latest event in a few words; "" */
    const char *result;   /* result.json as one line, when final; else NULL */
};

enum rollout_event_kind {
    ROLLOUT_EVENT_QUEUED,
    ROLLOUT_EVENT_STAGE,
    ROLLOUT_EVENT_ACTIVITY,
    ROLLOUT_EVENT_LOG, /* a line of its events.jsonl */
    ROLLOUT_EVENT_FINAL,
};
struct rollout_event {
    enum rollout_event_kind kind;
    const struct rollout_view *view;
    const char *log_kind; /* of a line */
    struct str line;      /* a JSON object and a line feed */
};

/* Where agent, task and model came from, so that the next server finds them again when this one
 * dies: as they were asked for, without secrets. */
struct rollout_sources {
    const char *agent, *model; /* NULL: unknown, and then the rollout ends with its server */
    const char *task;          /* a path or a name; NULL: */
    struct str task_text;      /* the task itself, as JSON */
};

struct rollout_request {
    struct rollout_sources sources;
    struct agent_spec *agent; /* the manager takes references of its own */
    struct task *task;
    struct model *model;     /* what answers; likewise */
    const char *mode;        /* NULL: "black_box" */
    const char *backend;     /* NULL: "local" */
    const char *root;        /* NULL: the task's, else the host's files */
    int isolation;           /* enum sandbox_isolation */
    const char *run, *group; /* NULL: none */
    bool grouped;            /* by rollouts_submit_group(): its group has a row of its own */
    const char *with;        /* the first of those it was submitted with; NULL: alone */
    uint32_t index;          /* which of its siblings, from 0; the scripted model may look at it */
    uint32_t wall_ms_max;    /* of the agent; 0: the spec's, the task's or the configured one */
    uint32_t turns_max;      /* 0: the task's, else none */
    uint32_t skip_permissions; /* 1: the agent's own permission checks are switched off */
    uint32_t exact_prefix;     /* 1: prompts go on from sampled tokens, where that can be had */
    uint32_t realign_max;      /* tokens a row of samples may bridge; 0: none, every row is exact */
    struct str sampling; /* imposed in mode proxy, as gateway_sampling_read() takes it; STR_NONE */
    struct str tools;    /* that the trainer runs, as gateway_tools_check() takes them; STR_NONE */
    bool offline;        /* a task that asks for a network runs without */
    uint64_t memory_bytes_max, disk_bytes_max; /* 0: the task's, else the backend's default */
    uint32_t pids_max, cpu_millis;
    int32_t priority;      /* higher ones start first */
    uint32_t queue_ms_max; /* 0: the configured one */
    bool has_policy;       /* staleness counts from this version, not from the start's */
    int64_t policy_version;
    const char *key, *key_hash; /* kept in the index; NULL: none */
    const char *callback;       /* likewise: JSON */
    /* Its row is kept, or could not be, and then it never was: it does not start and has no final
     * event. Exactly once, later. May be NULL. */
    void (*on_stored)(void *context, const struct err *err);
    void *stored_context;
    /* Exactly once; may be NULL. */
    void (*on_final)(void *context, const struct rollout_view *view);
    void *context;
};
/* Writes the new id. Refused: an unknown mode (ERR_INPUT), a full queue (ERR_CAPACITY), a
 * manager that closes. It starts when its row is kept, not before. */
int rollouts_submit(struct rollouts *rollouts, const struct rollout_request *request,
                    char id[ID_MAX], struct err *err);
/* All of them or none. `on_stored` of the first comes once for all. `wrong` (may be NULL) says
 * which one was refused. */
int rollouts_submit_all(struct rollouts *rollouts, const struct rollout_request *requests,
                        size_t count, char (*ids)[ID_MAX], size_t *wrong, struct err *err);
/* Everything rollouts_submit() would say about the request itself; nothing is begun. */
int rollouts_check(struct rollouts *rollouts, const struct rollout_request *request,
                   struct err *err);
/* Would this many be taken now? ERR_CAPACITY, or ERR_CANCELLED when it closes or drains. */
int rollouts_room(struct rollouts *rollouts, size_t count, struct err *err);
/* ---------------------------------------------------------------- after a crash */
/* While a rollout with known sources lives, <home>/live holds what the next server needs to go on
 * with it: <id>.json, and from the agent's start on <id>.state. */
struct rollout_left {
    char id[ID_MAX];
    struct rollout_request request; /* agent, task and model are still to be found */
    const char *task;               /* its name */
    uint64_t queued_ms;             /* wall clock */
    struct str state;               /* STR_NONE: it was not started yet */
    const char *cancelled, *why;    /* somebody asked for its end: the reason, in words; NULL: no */
};
/* Texts live in the arena. ERR_NOT_FOUND: there is none, or it cannot be gone on with. */
int rollout_left_read(const char *home, const char *id, struct arena *arena,
                      struct rollout_left *left, struct err *err);
void rollout_left_remove(const char *home, const char *id);
/* Goes on with it under its id: from its queue, from provisioning, or from the agent that still
 * runs. `left->request` is complete now. The caller knows that nobody else does. */
int rollouts_resume(struct rollouts *rollouts, const struct rollout_left *left, struct err *err);

/* The rollout ends as `cancelled` (its final event still comes). ERR_NOT_FOUND, or ERR_CONFLICT
 * when it is over. */
int rollouts_cancel(struct rollouts *rollouts, const char *id, const char *why, struct err *err);
/* No more are taken; those that are go on. */
void rollouts_drain(struct rollouts *rollouts);
bool rollouts_draining(const struct rollouts *rollouts);
/* All of them. `hurry`: no grace for what runs inside. */
void rollouts_cancel_all(struct rollouts *rollouts, const char *why, bool hurry);

/* A finished one, at once instead of after `kept_max` others. Nothing when it is not known. */
void rollouts_forget(struct rollouts *rollouts, const char *id);

/* false: not known (any more). An unambiguous prefix of an id is enough. */
bool rollouts_view(struct rollouts *rollouts, const char *id, struct rollout_view *view);
/* By id as it is. */
bool rollouts_view_exact(struct rollouts *rollouts, const char *id, struct rollout_view *view);
/* Those that are not over, oldest first; then those that recently were. Stops when `each` returns
 * false. */
void rollouts_each(struct rollouts *rollouts,
                   bool (*each)(void *context, const struct rollout_view *view), void *context);
struct rollout_counts {
    size_t queued, running, finished;
    size_t ending;                 /* over, but not in the index yet */
    uint64_t stale;                /* cancelled because they were too old */
    uint64_t by_fate[TRACE_FATES]; /* since start */
};
struct rollout_counts rollouts_counts(const struct rollouts *rollouts);

/* ---------------------------------------------------------------- groups */
enum rollout_share {
    ROLLOUT_SHARE_AUTO, /* when there is something to share and the backend can */
    ROLLOUT_SHARE_YES,
    ROLLOUT_SHARE_NO,
};
/* `count` rollouts of one request that are compared with each other: its `group` (NULL: a new id),
 * `index` from 0. With shared preparation the agent is installed and the task set up once, in one
 * sandbox; the members are forks of it. When that fails all of them end as setup_failed, or
 * infra_failed when it was not the task's fault. Nothing is taken unless all can be. `on_stored` of
 * the request comes once for all. */
struct rollout_group_request {
    const struct rollout_request *each;
    uint32_t count;
    enum rollout_share share;
    const char *key, *key_hash;
};
int rollouts_submit_group(struct rollouts *rollouts, const struct rollout_group_request *request,
                          char group[ID_MAX], char (*ids)[ID_MAX], struct err *err);
/* How many rollouts of the group are not over. */
size_t rollouts_group_live(struct rollouts *rollouts, const char *group);
/* Cancels those; returns how many. */
size_t rollouts_group_cancel(struct rollouts *rollouts, const char *group, const char *why);
/* "preparing", "ready" or "failed" while a group with shared preparation has live members. NULL. */
const char *rollouts_group_preparation(struct rollouts *rollouts, const char *group);

/* ---------------------------------------------------------------- the policy's age */
struct rollout_policy {
    int64_t version;
    int64_t staleness_max; /* versions a rollout may be behind; -1: any */
    uint32_t batch;        /* rollouts one version is trained on; 0: not said */
};
/* Rollouts that began at a version too far behind are cancelled (reason "stale"), and those that
 * would be stale are not started. With `batch`, no more are started than can be used before they
 * are too old: (version - first + staleness_max + 1) * batch. */
void rollouts_set_policy(struct rollouts *rollouts, const struct rollout_policy *policy);
const struct rollout_policy *rollouts_policy(const struct rollouts *rollouts);

/* Live views: every event of every rollout. The watch is the caller's and may be stopped from
 * on_event. */
struct rollout_watch {
    struct list node;
    void (*on_event)(void *context, const struct rollout_event *event);
    void *context;
};
void rollouts_watch(struct rollouts *rollouts, struct rollout_watch *watch);
void rollouts_unwatch(struct rollout_watch *watch);

/* ---------------------------------------------------------------- samples */
struct samples;
/* The rows of a rollout made from its record (trace/sample.h), finished; blocks, any thread. `dir`
 * is its folder; `store` may be NULL. A rollout without calls has no rows. */
int rollout_read_samples(const char *dir, const char *rollout, struct store *store,
                         uint32_t realign_max, struct samples **out, struct err *err);

/* Of a rollout that is over (ERR_CONFLICT otherwise): its rows anew as lines, or one line in the
 * trace shape of Verifiers-style trainers. They block; any thread. */
int rollout_export_samples(const char *dir, struct store *store, uint32_t realign_max,
                           struct buf *out, struct err *err);
int rollout_export_trace(const char *dir, struct store *store, struct buf *out, struct err *err);

/* The view as JSON: one object. */
void rollout_view_write(const struct rollout_view *view, struct json_writer *out);

#endif
