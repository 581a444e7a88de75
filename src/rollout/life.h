/* life.h - private to the rollout room: one rollout on its lane, and what the files of its life
 * share.
 *
 *     life.c        stages and moves: the table, the step, orders from the manager
 *     life_agent.c  from the first sandbox to the agent's end: provisioning to settling
 *     life_image.c  the root: found, built or fetched
 *     life_user.c   what the user says after the instruction
 *     life_tools.c  programs of the task that answer tool calls
 *     life_ready.c  between setup and the agent; from one step of a task to the next
 *     life_judge.c  verifying and collecting
 *     life_carry.c  what goes over to a verifier with surroundings of its own
 *     life_end.c    closing, the folder, reports
 *     life_resume.c what is kept for the next server, and going on where a dead one stopped */
#ifndef ROLLOUT_LIFE_H
#define ROLLOUT_LIFE_H

#include "rollout/internal.h"
#include "json/json.h"

struct carry;

struct life {
    struct plan *plan;
    struct loop *loop;
    enum trace_stage stage;
    uint64_t stage_since_ms;
    struct loop_timer deadline; /* of the stage */
    struct loop_timer pause;    /* before another try at provisioning; after a limit was reached */
    struct arena arena;         /* everything the result points to */
    struct trace_result result;
    struct err err; /* the first thing that went wrong */

    struct sandbox *sandbox;     /* the agent's */
    struct sandbox *judge;       /* the verifier's, when it has its own */
    const char *const *tool_env; /* of the tools; NULL: not known yet */
    struct sandbox *apart;       /* of the task's tools that run apart; NULL: none */
    bool apart_ready;
    struct list tool_jobs;
    char layer[80];        /* the final files, as a layer; "" */
    char reason[24];       /* of the end, as a word; "" */
    bool cancelled;        /* somebody said so and was told yes: a successor must know */
    struct shared *made;   /* by a preparation */
    const char *layers[2]; /* below the agent's sandbox */
    struct gateway_session *session;
    struct agent_install *install;
    struct agent_check *check;
    struct gateway_user *user; /* is asked for its next words; NULL: it is not */
    struct buf transcript;     /* of user and agent: life_user.c */
    bool needs_met;
    struct agent_run *run;
    struct task_work *work;
    struct task_image_job *image_job;
    bool image_for_judge;
    const char *root, *verify_root; /* what the sandboxes stand on; known when provisioned */
    struct task *task;              /* what is worked at: the plan's, or the step of it */
    size_t step_at;
    struct trace_reward *rewards; /* of the steps */
    struct buf steps;             /* JSON array being written */
    struct json_writer steps_writer;
    struct carry *carry; /* life_carry.c; NULL: not that kind */
    unsigned phase;      /* life_ready.c */
    uint64_t agent_since_ms, agent_ms;
    unsigned capabilities;
    bool as_root;       /* the agent's sandbox has root inside */
    bool judge_no_root; /* tried: there can be no root in the verifier\'s */

    /* what callbacks have noted */
    bool provisioned, provision_failed, installed, prepared, setup_done;
    bool agent_over, quiet, session_closing, snapshot_over, judge_ready, verified, collected;
    bool hurry, closing, reported, over, sampling;
    bool busy, frozen, steps_over, collect_done; /* a phase is under way; see life_ready.c */
    enum agent_fate agent_fate;
    enum trace_fate sampled_fate; /* what samples.jsonl says */
    struct gateway_stats stats;   /* when the session is over */
    struct err provision_err;
    size_t artifact_at;
    uint64_t artifact_bytes;
    struct buf artifacts; /* JSON array being written */
    struct json_writer artifact_writer;
    int pending; /* closings under way */

    struct result_extra extra;
    struct str lookups, connects; /* JSON objects */
    struct log_file agent_log, events_log;
    struct log_parts agent_parts;
    bool layer_ready;      /* it was a former server's, and is ours */
    uint32_t lives;        /* servers that died with it */
    uint32_t kept_before;  /* agents that were started in this sandbox before this one */
    uint32_t kept_count;   /* and with it */
    uint64_t log_base;     /* bytes of agent.log when it was started */
    uint64_t events_known; /* of the agent, in events.jsonl, told by a former server */
    uint64_t activity_ms;
    char activity[96];
};

static inline bool is_bad(const struct err *err)
{
    return err && err->kind != ERR_NONE;
}

/* --- life.c */
void life_step(struct life *life); /* after every note */
/* The rollout cannot go on. The first cause counts. */
void life_fail(struct life *life, enum trace_fate fate, const struct err *why);
void life_fail_infra(struct life *life, const struct err *why);
void life_leave_stage(struct life *life); /* adds up its time */

/* --- life_image.c */
void life_provision(struct life *life);

/* --- life_agent.c: each starts one thing; its callback notes and steps */
void life_open_sandbox(struct life *life);
void life_retry_or_fail(struct life *life);
void life_install(struct life *life);
bool life_needs_met(struct life *life); /* false: it steps when they are */
int life_open_session(struct life *life, struct err *err);
void life_prepare(struct life *life);
void life_setup(struct life *life);
void life_start_agent(struct life *life);
void life_resume_agent(struct life *life); /* or starts it, when it never was */
void life_share(struct life *life);        /* a preparation is done: its files become a layer */
void life_settle(struct life *life);
void life_close_session(struct life *life, uint32_t grace_ms);
/* What the agent's end means, now that its calls are settled too. */
enum trace_fate life_judge_fate(const struct life *life, struct err *why);
struct sandbox_spec life_shape(struct life *life);
void life_copy_commands(struct life *life, const struct trace_command *from, size_t count,
                        const struct trace_command **to, size_t *to_count);
/* What setup came to, into the result; false: it failed, and so has the rollout. */
bool life_take_setup(struct life *life, const struct trace_command *commands, size_t count,
                     const struct err *err);
void life_note_sandbox(struct life *life); /* facts and look-ups, while it is there */
void life_on_lost(void *context, const struct err *err);

/* --- life_user.c */
void life_user_begin(struct life *life, struct agent_start *start, struct agent_handlers *handlers);
void life_user_close(struct life *life); /* before the agent */

/* --- life_tools.c */
bool life_tools_ready(struct life *life); /* false: it steps when they are */
void life_on_tool(void *context, struct gateway_tool *asked, const char *name,
                  struct str arguments);
void life_on_tool_closed(void *context, struct gateway_tool *asked);
void life_on_tool_note(void *context, const struct gateway_tool_note *note);
void life_tools_close(struct life *life);
void life_attach_inlet(struct life *life);
uint32_t life_wall_ms(const struct life *life);   /* the agent's time in this step */
uint32_t life_verify_ms(const struct life *life); /* the verifier's */

/* --- life_ready.c */
/* A snapshot is over, and the sandbox with it: `layer` has its files. False: it failed, at `what`.
 */
bool life_take_layer(struct life *life, const char *layer_id, const struct err *err,
                     const char *what);
bool life_ready(struct life *life); /* true: the agent may start; else a note follows */
void life_running(struct life *life, void (*move_on)(struct life *life));
bool life_next_step(struct life *life); /* after a verification: there is another one */

/* --- life_resume.c */
void life_save(struct life *life);         /* after each step that a successor must know of */
void life_resume(struct life *life);       /* in place of the first step */
void life_begin_output(struct life *life); /* an agent is about to be started */
void life_note_output(struct life *life, int stream, struct str data);
/* What the agent printed for former servers, and from where on it goes on. */
struct agent_resume;
void life_read_output(struct life *life, const struct sandbox_kept *kept, struct buf *log,
                      struct buf *parts, struct agent_resume *out);
/* A former server's events: cut back to whole lines. Before they are opened. */
void life_mend_events(struct life *life);
void life_start_deadline(struct life *life, uint64_t spent_ms); /* life.c: of this stage */

/* --- life_judge.c */
const char *life_judge_user(const struct life *life); /* NULL: the ordinary one */
bool life_judges_fresh(const struct life *life);      /* in a sandbox made from the final files */
void life_collect_hooks(struct life *life);
void life_verify(struct life *life);
void life_open_judge(struct life *life);
void life_verify_in_judge(struct life *life);
void life_collect(struct life *life);

/* --- life_carry.c */
void life_carry(struct life *life);        /* ends with judge_ready */
void life_carry_opened(struct life *life); /* the verifier's sandbox is there */

/* --- life_end.c */
void life_close(struct life *life); /* everything; once */
bool life_all_closed(const struct life *life);
void life_on_closed(void *context, const struct err *err);
/* Makes samples.jsonl, once for each fate it may end with, when no call can come any more; counts
 * as a closing. */
void life_samples(struct life *life);
void life_finish(struct life *life); /* the folder, the final report, the end */
void life_tell(struct life *life, const char *what, struct str text);
/* A line of events.jsonl, which the manager hears of, too. */
void life_log(struct life *life, const char *kind, struct str text);
void life_log_line(struct life *life, const char *kind, struct buf *line);
struct report *life_report(struct life *life, enum report_kind kind);
void life_report_send(struct life *life, struct report *report);

#endif
