/* internal.h - private to the rollout room: what the manager (rollouts.c, control loop) and the
 * lives (life.c, on lanes) share.
 *
 *     rollouts.c, admission.c, groups.c, plan.c  the manager (manager.h)
 *     life*.c     one rollout on its lane, as a table and a step (life.h)
 *     folder.c    rollouts/<id>/: bounded logs
 *     result.c    result.json
 *     samples.c   samples.jsonl
 *
 * A plan is what both sides hold: constant once made, counted references. `life` in it belongs to
 * the lane's thread. Lanes send reports to the manager; nothing else is shared. */
#ifndef ROLLOUT_INTERNAL_H
#define ROLLOUT_INTERNAL_H

#include <stdatomic.h>

#include "agent/agent.h"
#include "base/arena.h"
#include "base/err.h"
#include "gateway/gateway.h"
#include "loop/loop.h"
#include "rollout/rollout.h"
#include "sandbox/sandbox.h"
#include "store/store.h"
#include "task/task.h"

struct entry;
struct life;

/* What a group's preparation made once for all its members. Constant once made. */
struct shared {
    atomic_int references;
    struct arena arena;
    char layer[80]; /* the prepared files */
    const struct trace_command *setup;
    size_t setup_count;
};
struct shared *shared_ref(struct shared *shared);
void shared_unref(struct shared *shared); /* NULL is fine */

struct plan {
    atomic_int references;
    struct arena arena;
    char id[ID_MAX];
    const char *run, *group, *mode, *backend, *root, *dir;
    const char *bundle; /* the agent's layer; NULL: it has none */
    struct agent_spec *agent;
    struct task *task;
    struct model *model;
    int isolation;
    uint32_t index;
    uint32_t wall_ms_max, setup_ms_max, verify_ms_max, turns_max;
    bool skip_permissions;
    struct str tools; /* STR_NONE: none */
    struct gateway_tools_facts tool_facts;
    const char *home, *builder, *build_flags; /* for images of tasks */
    const char *const *carry;                 /* see rollouts_options; NULL: none */
    bool offline;                             /* the task's wish for a network is passed over */
    const char *const *agent_artifacts;       /* that the agent's spec wants kept; NULL: none */
    uint64_t memory_bytes_max, disk_bytes_max;
    uint32_t pids_max, cpu_millis, provision_tries_max;
    uint64_t log_bytes_max, artifact_bytes_max;
    struct sandbox_spec fallback; /* limits where the backend has some and nobody said */
    struct gateway_limits limits;
    struct gateway_sampling sampling;
    uint32_t keepalive_ms, retry_grace_ms, pool;
    uint64_t held_ms_max;
    uint64_t queued_wall_ms, queued_mono_ms;
    struct rollout_lane lane;
    struct loop *control;
    struct store *store;  /* NULL: none */
    uint32_t realign_max; /* struct samples_options */
    bool exact_prefix;
    bool events;           /* what happens is told to the manager, too */
    bool preparation;      /* of a group: ends when the sandbox is set up, as a layer */
    struct shared *shared; /* what the preparation made; NULL: this one does it itself */
    bool has_policy;
    int64_t policy_version; /* of the weights when it began */
    const char *live;       /* <home>/live/<id>, without its endings; NULL: not kept there */
    bool resumed;           /* a dead server had begun it */
    struct str state;       /* as that server left it; STR_NONE: its agent was not started yet */
    struct err refused;     /* set before it begins: it is over before it began, and why */
    enum trace_fate refused_fate;
    char refused_reason[24];
    struct entry *entry; /* the manager's; only touched on the control loop */
    struct life *life;   /* the lane's; only touched there */
};
struct plan *plan_ref(struct plan *plan);
void plan_unref(struct plan *plan);

/* --- from the lane to the manager; freed by the receiver */
enum report_kind { REPORT_STAGE, REPORT_ACTIVITY, REPORT_FINAL };
/* What happened, as in events.jsonl; freed by the receiver. */
struct report_line {
    struct plan *plan; /* a reference */
    const char *kind;  /* static */
    struct buf line;   /* one JSON object and a line feed */
};
void rollouts_report_line(void *line); /* runs on the control loop */
struct report {
    enum report_kind kind;
    struct plan *plan; /* a reference */
    enum trace_stage stage;
    uint32_t calls, turns, tries;
    uint64_t stage_ms[TRACE_STAGES];
    char activity[96];
    /* when final */
    enum trace_fate fate;
    enum trace_stage failed_stage;
    char error[ERR_TEXT_MAX];
    bool rewarded;
    double reward;
    int64_t prompt_tokens, completion_tokens;
    char *result; /* heap; one line */
    char reason[24];
    uint64_t bytes;        /* of the folder */
    struct shared *shared; /* of a preparation that succeeded; a reference */
};
void rollouts_report(void *report); /* runs on the control loop */

/* --- on the lane */
void life_begin(void *plan); /* takes over the reference */
struct life_order {
    struct plan *plan; /* a reference */
    char why[160], reason[24];
    bool hurry;
};
void life_cancel(void *order); /* frees it */

/* --- rollouts/<id>/ */
struct log_file {
    int fd; /* -1: not open */
    uint64_t bytes, bytes_max;
    bool cut, failed;
};
/* In what pieces the agent's log came, for agent_resume(): agent.parts. Four bytes a piece while
 * the log has room; then eight that say how much came in all, written over. */
struct log_parts {
    int fd; /* -1: not open */
    uint64_t records, total;
    bool full, failed;
};
int log_file_open(struct log_file *log, const char *dir, const char *name, uint64_t bytes_max,
                  struct err *err);
void log_file_write(struct log_file *log,
                    struct str data); /* past the maximum: one note, then nothing */
void log_file_close(struct log_file *log);
/* The last bytes of a log, from the first whole character on. */
void log_file_tail(const char *dir, const char *name, size_t bytes_max, struct buf *out);
/* Of the files in it; directories are left out. */
uint64_t folder_bytes(const char *dir);
/* One line {"at_ms":..., "kind":..., ...} of events.jsonl. */
void event_line(struct buf *out, const char *kind, struct str text);
void event_line_typed(struct buf *out, const char *kind, struct str type, struct str text);
/* The same for an event of the agent, with a tool's name and a call's id when it has them. */
void event_line_agent(struct buf *out, const struct agent_event *event);
/* "call_begun" and "call_done": id, number, status, tokens, times. */
void event_line_call(struct buf *out, const struct trace_call *call, bool done);

/* --- samples.jsonl: from the calls of a rollout, on a worker; knows nothing of the life */
struct samples_job {
    struct plan *plan; /* a reference */
    enum trace_fate fate;
    struct trace_reward reward; /* `detail` is the job's own */
    char *detail;
    struct buf summary; /* when it is done: an object; empty: there is nothing to say */
    struct buf turns;   /* proxy_turns of the result: an array */
    struct err err;
    void (*on_done)(void *context, struct samples_job *job); /* on the lane; frees the job after */
    void *context;
};
struct samples_job *samples_job_new(struct plan *plan, enum trace_fate fate,
                                    const struct trace_reward *reward);
void samples_job_start(struct samples_job *job, struct loop *loop,
                       void (*on_done)(void *context, struct samples_job *job), void *context);
/* Its work, when the caller has a thread to spare. */
void samples_job_run(struct samples_job *job);
void samples_job_free(struct samples_job *job);

/* --- live.c: <home>/live */
/* Does nothing when the request's sources are not known; else sets plan->live. */
int live_write(struct plan *plan, const struct rollout_request *request, const char *owner,
               bool begun, struct err *err);
void live_remove(const struct plan *plan);

/* --- result.json */
struct result_extra {
    const struct plan *plan;
    struct str gateway;      /* raw JSON; STR_NONE: none */
    const char *reason;      /* of the end, as a word; NULL or "": none */
    const char *verify_user; /* NULL: not verified */
    const char *verify_note; /* why not fresh; NULL: nothing to say */
    struct str verification; /* raw JSON object: how it was judged; STR_NONE: not */
    struct str steps;        /* raw JSON array, of a task with several; STR_NONE: none */
    const char *divergence;  /* of a replay from its record; NULL: none */
    struct str artifacts;    /* raw JSON array; STR_NONE: none */
    struct str samples;      /* raw JSON object; STR_NONE: none */
    struct str turns;        /* raw JSON array; STR_NONE: none */
    struct str log_tail;     /* of the agent */
    bool logs_cut;
};
/* The whole object in one line. */
void result_write(const struct trace_result *result, const struct result_extra *extra,
                  struct buf *out);
/* {"reward": n, ...}: the number and those beside it. */
void result_write_rewards(const struct trace_reward *reward, struct json_writer *out);
/* The sum of two {"host": n} objects. */
void result_merge_hosts(struct str a, struct str b, struct buf *out);

#endif
