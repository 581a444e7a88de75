/* life.c - the life of one rollout on its lane, readable from top to bottom.
 *
 *     provisioning -> installing -> preparing -> setup -> running -> settling -> verifying ->
 * collecting -> done
 *          \______________\____________\__________\________\___________\___________\____________\____->
 * failed
 *                                                                                                     \->
 * cancelled
 *
 * Callbacks only note what they learned and call step(). All decisions are in step(); all legal
 * moves are in `rules`. An agent that fails, times out or runs into a limit goes on to be judged;
 * what is broken in the infrastructure ends in `failed` without a reward. Whatever happens,
 * everything is closed and the folder is written before the one final report, after which the life
 * is over.
 *
 * One timer watches each stage, so that no wait is without an end, whoever is to blame. */
#include "rollout/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "json/json.h"

enum {
    MARGIN_MS = 60000, /* what a stage may take beyond the limit that should have ended it */
    PREPARE_MS = 300000,
    PROVISION_MS = 3600000, /* the sandbox room has deadlines of its own; this is the backstop */
    SETTLE_MS = 60000,
    CALLS_GRACE_MS = 1000, /* calls in flight when the agent is gone */
    COLLECT_MS = 300000,
    CLOSE_MS = 60000,
    HURRY_MS = 3000,
    LIMIT_GRACE_MS = 15000, /* for an agent that was told there are no more calls */
    ACTIVITY_EVERY_MS = 100,
};

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

    struct sandbox *sandbox; /* the agent's */
    struct sandbox *judge;   /* the verifier's, when it has its own */
    char layer[80];          /* the final files, as a layer; "" */
    struct gateway_session *session;
    struct agent_install *install;
    struct agent_run *run;
    struct task_work *work;
    unsigned capabilities;
    bool as_root; /* the agent's sandbox has root inside */

    /* what callbacks have noted */
    bool provisioned, provision_failed, installed, prepared, setup_done;
    bool agent_over, quiet, session_closing, snapshot_over, judge_ready, verified, collected;
    bool hurry, closing, reported, over;
    enum agent_fate agent_fate;
    struct gateway_stats stats; /* when the session is over */
    struct err provision_err;
    size_t artifact_at;
    uint64_t artifact_bytes;
    struct buf artifacts; /* JSON array being written */
    struct json_writer artifact_writer;
    int pending; /* closings under way */

    struct result_extra extra;
    struct str lookups, connects; /* JSON objects */
    struct log_file agent_log, events_log;
    uint64_t activity_ms;
    char activity[96];
};

#define TO(name) (1u << TRACE_##name)
#define ENDS (TO(FAILED) | TO(CANCELLED))
/* What may follow. */
/* clang-format off */
static const unsigned rules[TRACE_STAGES] = {
    [TRACE_QUEUED]       = TO(PROVISIONING) | ENDS,
    [TRACE_PROVISIONING] = TO(INSTALLING) | ENDS,
    [TRACE_INSTALLING]   = TO(PREPARING) | ENDS,
    [TRACE_PREPARING]    = TO(SETUP) | ENDS,
    [TRACE_SETUP]        = TO(RUNNING) | ENDS,
    [TRACE_RUNNING]      = TO(SETTLING) | ENDS,
    [TRACE_SETTLING]     = TO(VERIFYING) | ENDS,
    [TRACE_VERIFYING]    = TO(COLLECTING) | ENDS,
    [TRACE_COLLECTING]   = TO(DONE) | ENDS,
    [TRACE_DONE]         = 0,
    [TRACE_FAILED]       = 0,
    [TRACE_CANCELLED]    = 0,
};
/* clang-format on */

static void step(struct life *life);
static void begin_close(struct life *life);
static void finish(struct life *life);

/* ---------------------------------------------------------------- telling */
static struct report *report_new(struct life *life, enum report_kind kind)
{
    struct report *report = mem_zero(sizeof *report);
    report->kind = kind;
    report->plan = plan_ref(life->plan);
    report->stage = life->stage;
    report->calls = life->result.calls;
    report->turns = life->result.turns;
    report->tries = life->result.tries;
    memcpy(report->stage_ms, life->result.stage_ms, sizeof report->stage_ms);
    memcpy(report->activity, life->activity, sizeof report->activity);
    return report;
}

static void report_send(struct life *life, struct report *report)
{
    loop_post(life->plan->control, rollouts_report, report);
}

static void report_activity(struct life *life, const char *what, struct str text)
{
    char line[sizeof life->activity];
    struct str rest = str_trim(text);
    struct str first = str_cut(&rest, '\n');
    snprintf(line, sizeof line, "%s%s%.*s", what, first.size ? ": " : "", (int)first.size,
             first.data);
    for (char *at = line; *at; at++)
        if ((unsigned char)*at < ' ' || *at == 127)
            *at = ' ';
    memcpy(life->activity, line, sizeof line);
    uint64_t now = loop_now_ms(life->loop);
    if (now < life->activity_ms + ACTIVITY_EVERY_MS)
        return;
    life->activity_ms = now;
    report_send(life, report_new(life, REPORT_ACTIVITY));
}

/* ---------------------------------------------------------------- moving */
static uint64_t stage_budget(const struct life *life, enum trace_stage stage)
{
    const struct plan *plan = life->plan;
    switch (stage) {
    case TRACE_QUEUED:
    case TRACE_PROVISIONING:
        return PROVISION_MS;
    case TRACE_INSTALLING:
        return 3600000;
    case TRACE_PREPARING:
        return PREPARE_MS;
    case TRACE_SETUP:
        return (uint64_t)plan->setup_ms_max + MARGIN_MS;
    case TRACE_RUNNING:
        return (uint64_t)plan->wall_ms_max + MARGIN_MS;
    case TRACE_SETTLING:
        return SETTLE_MS;
    case TRACE_VERIFYING:
        return (uint64_t)plan->verify_ms_max + PREPARE_MS;
    case TRACE_COLLECTING:
        return COLLECT_MS;
    case TRACE_DONE:
    case TRACE_FAILED:
    case TRACE_CANCELLED:
        return CLOSE_MS;
    case TRACE_STAGES:
        break;
    }
    return CLOSE_MS;
}

static void on_stage_deadline(struct loop_timer *timer);

static void leave_stage(struct life *life)
{
    uint64_t now = clock_mono_ms();
    life->result.stage_ms[life->stage] += now - life->stage_since_ms;
    life->stage_since_ms = now;
}

/* The one place where a stage begins: checked, timed, logged, published. */
static void move(struct life *life, enum trace_stage next)
{
    CHECK(rules[life->stage] & 1u << next);
    leave_stage(life);
    life->stage = next;
    LOG_DEBUG("rollout", life->plan->id, "%s", trace_stage_name(next));
    log_file_event(&life->events_log, "stage", STR_NONE, str_of(trace_stage_name(next)));
    loop_timer_start(life->loop, &life->deadline, stage_budget(life, next), on_stage_deadline,
                     life);
    report_send(life, report_new(life, REPORT_STAGE));
}

/* The rollout cannot go on. The first cause counts; a stage that ended well cannot fail any more.
 */
static void fail(struct life *life, enum trace_fate fate, const struct err *why)
{
    if (trace_stage_final(life->stage) || life->over)
        return;
    life->result.fate = fate;
    /* What settling finds out happened while the agent ran. */
    life->result.failed_stage = life->stage == TRACE_SETTLING && fate != TRACE_FATE_INFRA_FAILED
                                    ? TRACE_RUNNING
                                    : life->stage;
    life->result.reward = (struct trace_reward){0};
    life->err = *why;
    log_file_event(&life->events_log, trace_fate_name(fate), STR_NONE, str_of(why->text));
    move(life, fate == TRACE_FATE_CANCELLED ? TRACE_CANCELLED : TRACE_FAILED);
    begin_close(life);
    step(life);
}

static void fail_infra(struct life *life, const struct err *why)
{
    fail(life, TRACE_FATE_INFRA_FAILED, why);
}

static void on_stage_deadline(struct loop_timer *timer)
{
    struct life *life = timer->context;
    if (trace_stage_final(life->stage)) {
        /* Closing takes too long. The manager of the sandboxes goes on trying; people need not
         * wait. */
        LOG_WARN("rollout", life->plan->id,
                 "closing takes too long; reported before all of it is gone");
        finish(life);
        return;
    }
    if (life->stage == TRACE_COLLECTING) {
        /* The reward is made; what cannot be fetched or closed in time does not undo it. */
        begin_close(life);
        move(life, TRACE_DONE);
        step(life);
        return;
    }
    struct err err = {0};
    err_set(&err, ERR_TIMEOUT, "%s took longer than %llu s", trace_stage_name(life->stage),
            (unsigned long long)stage_budget(life, life->stage) / 1000);
    fail_infra(life, &err);
}

static bool is_bad(const struct err *err)
{
    return err && err->kind != ERR_NONE;
}

/* ---------------------------------------------------------------- provisioning */
static void on_lost(void *context, const struct err *err)
{
    struct life *life = context;
    if (life->stage == TRACE_COLLECTING)
        return; /* each artifact says for itself that it could not be had */
    struct err why = *err;
    err_wrap(&why, "the sandbox was lost");
    fail_infra(life, &why);
}

static void on_open(void *context, struct sandbox *sandbox, const struct err *err)
{
    struct life *life = context;
    life->provisioned = !is_bad(err);
    life->provision_failed = is_bad(err);
    if (is_bad(err))
        life->provision_err = *err;
    else
        sandbox_on_lost(sandbox, on_lost, life);
    step(life);
}

static struct sandbox_spec shape_of(const struct life *life)
{
    const struct plan *plan = life->plan;
    uint64_t life_ms =
        (uint64_t)plan->wall_ms_max + plan->setup_ms_max + plan->verify_ms_max + 3600000;
    struct sandbox_spec spec = {
        .backend = plan->backend,
        .root = plan->root,
        .memory_bytes_max = plan->memory_bytes_max,
        .disk_bytes_max = plan->disk_bytes_max,
        .pids_max = plan->pids_max,
        .cpu_millis = plan->cpu_millis,
        .isolation = (enum sandbox_isolation)plan->isolation,
        .root_user = life->as_root,
        .label = plan->id,
        .life_ms_max = life_ms > UINT32_MAX ? UINT32_MAX : (uint32_t)life_ms,
    };
    if (!(life->capabilities & SANDBOX_CAN_LIMITS))
        return spec;
    const struct sandbox_spec *fallback = &plan->fallback;
    if (!spec.memory_bytes_max)
        spec.memory_bytes_max = fallback->memory_bytes_max;
    if (!spec.disk_bytes_max)
        spec.disk_bytes_max = fallback->disk_bytes_max;
    if (!spec.pids_max)
        spec.pids_max = fallback->pids_max;
    if (!spec.cpu_millis)
        spec.cpu_millis = fallback->cpu_millis;
    return spec;
}

static void open_sandbox(struct life *life)
{
    struct sandbox_spec spec = shape_of(life);
    life->result.tries++;
    life->provisioned = life->provision_failed = false;
    life->sandbox = sandbox_open(life->plan->lane.sandboxes, &spec, on_open, life);
}

static void on_try_again(struct loop_timer *timer)
{
    open_sandbox(timer->context);
}

static void retry_or_fail(struct life *life)
{
    struct err why = life->provision_err;
    sandbox_close(TAKE(life->sandbox), NULL, NULL);
    life->provision_failed = false;
    if (!err_meaning(why.kind)->retry || life->result.tries >= life->plan->provision_tries_max) {
        fail_infra(life, &why);
        return;
    }
    uint16_t dice;
    id_random_bytes(&dice, sizeof dice);
    loop_timer_start(life->loop, &life->pause, (250u << life->result.tries) + dice % 250,
                     on_try_again, life);
}

static void on_installed(void *context, const struct err *err)
{
    struct life *life = context;
    if (is_bad(err)) {
        struct err why = *err;
        fail_infra(life, &why);
        return;
    }
    life->installed = true;
    step(life);
}

/* ---------------------------------------------------------------- preparing and setup */
static void on_call(void *context, const struct trace_call *call, enum gateway_phase phase)
{
    struct life *life = context;
    if (!life->session)
        return;
    const struct gateway_stats *stats = gateway_session_stats(life->session);
    life->result.calls = stats->calls;
    life->result.turns = stats->turns;
    if (phase == GATEWAY_CALL_BEGUN && call->number)
        report_activity(life, "asks the model", STR_NONE);
}

static void on_limit_grace_over(struct loop_timer *timer)
{
    struct life *life = timer->context;
    if (life->stage == TRACE_RUNNING && life->run)
        agent_stop(life->run);
}

static void on_exhausted(void *context, enum gateway_cause cause, const struct err *why)
{
    struct life *life = context;
    (void)cause;
    log_file_event(&life->events_log, "limit", STR_NONE, str_of(why->text));
    if (life->stage == TRACE_RUNNING)
        loop_timer_start(life->loop, &life->pause, LIMIT_GRACE_MS, on_limit_grace_over, life);
}

static void on_connection(void *context, int fd)
{
    struct life *life = context;
    if (!life->session) {
        close(fd);
        return;
    }
    gateway_session_connection(life->session, fd);
}

static int open_session(struct life *life, struct err *err)
{
    const struct plan *plan = life->plan;
    const char *calls_path = arena_format(&life->arena, "%s/calls.jsonl", plan->dir);
    struct gateway_session_options options = {
        .rollout_id = plan->id,
        .task = plan->task->name,
        .index = plan->index,
        .mode = plan->mode,
        .model = plan->model,
        .limits = plan->limits,
        .keepalive_ms = plan->keepalive_ms,
        .calls_path = calls_path,
        .on_call = on_call,
        .on_exhausted = on_exhausted,
        .context = life,
    };
    life->session = gateway_open(plan->lane.gateway, &options, err);
    if (!life->session)
        return -1;
    sandbox_on_inlet(life->sandbox, on_connection, life);
    return 0;
}

static void on_prepared(void *context, const struct err *err)
{
    struct life *life = context;
    if (is_bad(err)) {
        struct err why = *err;
        err_wrap(&why, "putting the task's files into the sandbox");
        fail_infra(life, &why);
        return;
    }
    life->prepared = true;
    step(life);
}

static void copy_commands(struct life *life, const struct trace_command *from, size_t count,
                          const struct trace_command **to, size_t *to_count)
{
    struct trace_command *copy = arena_alloc(&life->arena, (count + 1) * sizeof *copy);
    for (size_t i = 0; i < count; i++) {
        copy[i] = from[i];
        copy[i].command = arena_str(&life->arena, from[i].command);
        copy[i].output = arena_str(&life->arena, from[i].output);
    }
    *to = copy;
    *to_count = count;
}

static void on_setup(void *context, const struct trace_command *commands, size_t count,
                     const struct err *err)
{
    struct life *life = context;
    copy_commands(life, commands, count, &life->result.setup, &life->result.setup_count);
    if (is_bad(err)) {
        struct err why = *err;
        fail(life, why.kind == ERR_INPUT ? TRACE_FATE_SETUP_FAILED : TRACE_FATE_INFRA_FAILED, &why);
        return;
    }
    life->setup_done = true;
    step(life);
}

/* ---------------------------------------------------------------- running */
static void on_agent_event(void *context, const struct agent_event *event)
{
    struct life *life = context;
    const char *kind = agent_event_kind_name(event->kind);
    log_file_event(&life->events_log, kind, event->type,
                   event->text.data ? event->text : event->raw);
    if (event->kind != AGENT_OTHER)
        report_activity(life, kind, event->text);
}

static void on_agent_output(void *context, int stream, struct str data)
{
    struct life *life = context;
    (void)stream;
    log_file_write(&life->agent_log, data);
}

static void on_agent_end(void *context, const struct agent_end *end)
{
    struct life *life = context;
    life->agent_over = true;
    life->agent_fate = end->fate;
    life->result.agent_exited = end->exit.end == SANDBOX_EXITED;
    life->result.agent_code = sandbox_exit_code(&end->exit);
    life->result.agent_end = sandbox_end_name(end->exit.end);
    life->result.final_text = arena_str(&life->arena, end->final_text);
    if (end->fate != AGENT_OK)
        err_set(&life->err, ERR_NONE, "%s", end->text);
    step(life);
}

static void start_agent(struct life *life)
{
    const struct plan *plan = life->plan;
    struct agent_start start = {
        .instruction = plan->task->instruction,
        .system = plan->task->system,
        .model = model_name(plan->model),
        .workdir = plan->task->workdir,
        .user = plan->task->root ? "root" : NULL,
        .env = plan->task->env,
        .timeout_ms = plan->wall_ms_max,
        .turns_max = plan->turns_max,
    };
    struct agent_handlers handlers = {
        .on_event = on_agent_event, .on_output = on_agent_output, .on_end = on_agent_end};
    life->run = agent_start(plan->agent, life->sandbox, &start, &handlers, life);
}

/* ---------------------------------------------------------------- settling */
static void on_quiet(void *context, const struct err *err)
{
    struct life *life = context;
    if (is_bad(err)) {
        struct err why = *err;
        err_wrap(&why, "ending what the agent left running");
        fail_infra(life, &why);
        return;
    }
    life->quiet = true;
    step(life);
}

/* Takes what the session knows. It is gone after this. */
static void note_session(struct life *life)
{
    const struct gateway_stats *stats = gateway_session_stats(life->session);
    OWN(buf) struct buf text = {0};
    struct json_writer writer = {.out = &text};
    life->result.calls = stats->calls;
    life->result.turns = stats->turns;
    life->result.usage = stats->usage;
    life->stats = *stats;
    gateway_session_report(life->session, &writer);
    life->extra.gateway = arena_str(&life->arena, buf_str(&text));
    buf_clear(&text);
    writer = (struct json_writer){.out = &text};
    gateway_session_hosts(life->session, &writer);
    life->connects = arena_str(&life->arena, buf_str(&text));
}

static void on_session_over(void *context)
{
    struct life *life = context;
    note_session(life);
    life->session = NULL;
    step(life);
}

static void close_session(struct life *life, uint32_t grace_ms)
{
    if (!life->session || life->session_closing)
        return;
    life->session_closing = true;
    gateway_session_close(life->session, grace_ms, on_session_over, life);
}

/* What the agent's end means, now that its calls are settled too. */
static enum trace_fate judge_fate(const struct life *life, struct err *why)
{
    const struct gateway_stats *stats = &life->stats;
    bool bad_end = life->agent_fate != AGENT_OK;
    switch (stats->cause) {
    case GATEWAY_STORE:
        *why = stats->error;
        return TRACE_FATE_INFRA_FAILED;
    case GATEWAY_LIMIT:
        *why = stats->error;
        return TRACE_FATE_LIMIT;
    case GATEWAY_UPSTREAM:
    case GATEWAY_SCRIPT:
        if (!bad_end && stats->answered)
            break;
        *why = stats->error;
        return TRACE_FATE_UPSTREAM_FAILED;
    case GATEWAY_STOPPED:
        *why = stats->error;
        return TRACE_FATE_STOPPED;
    case GATEWAY_FINE:
        break;
    }
    err_set(why, ERR_SYSTEM, "%s", life->err.text);
    switch (life->agent_fate) {
    case AGENT_OK:
        why->kind = ERR_NONE;
        return TRACE_FATE_OK;
    case AGENT_FAILED:
        return TRACE_FATE_AGENT_FAILED;
    case AGENT_LIMIT:
        why->kind = ERR_LIMIT;
        return TRACE_FATE_LIMIT;
    case AGENT_TIMED_OUT:
        why->kind = ERR_TIMEOUT;
        return TRACE_FATE_TIMED_OUT;
    case AGENT_OUT_OF_MEMORY:
        why->kind = ERR_LIMIT;
        return TRACE_FATE_OUT_OF_MEMORY;
    case AGENT_KILLED:
        why->kind = ERR_CANCELLED;
        return TRACE_FATE_STOPPED;
    case AGENT_NOT_STARTED:
    case AGENT_LOST:
        break;
    }
    return TRACE_FATE_INFRA_FAILED;
}

/* ---------------------------------------------------------------- verifying */
static void note_sandbox(struct life *life)
{
    OWN(buf) struct buf text = {0};
    struct json_writer writer = {.out = &text};
    sandbox_facts(life->sandbox, &writer);
    life->result.sandbox = arena_str(&life->arena, buf_str(&text));
    buf_clear(&text);
    writer = (struct json_writer){.out = &text};
    sandbox_lookups(life->sandbox, &writer);
    life->lookups = arena_str(&life->arena, buf_str(&text));
}

static void on_closed(void *context, const struct err *err)
{
    struct life *life = context;
    if (is_bad(err))
        LOG_WARN("rollout", life->plan->id, "its sandbox is not gone yet: %s", err->text);
    life->pending--;
    step(life);
}

static void on_snapshot(void *context, const char *layer_id, const struct err *err)
{
    struct life *life = context;
    struct err why = {0};
    if (is_bad(err))
        why = *err;
    else
        snprintf(life->layer, sizeof life->layer, "%s", layer_id);
    life->pending++;
    sandbox_close(TAKE(life->sandbox), on_closed, life);
    if (why.kind != ERR_NONE) {
        err_wrap(&why, "keeping the final files for the verifier");
        fail_infra(life, &why);
        return;
    }
    life->snapshot_over = true;
    step(life);
}

static void on_judge_open(void *context, struct sandbox *sandbox, const struct err *err)
{
    struct life *life = context;
    if (is_bad(err)) {
        struct err why = *err;
        err_wrap(&why, "a fresh sandbox for the verifier");
        fail_infra(life, &why);
        return;
    }
    sandbox_on_lost(sandbox, on_lost, life);
    life->judge_ready = true;
    step(life);
}

static bool judge_as_root(const struct life *life)
{
    return life->as_root || (life->capabilities & SANDBOX_CAN_ROOT);
}

static void open_judge(struct life *life)
{
    const char *layers[] = {life->layer};
    struct sandbox_spec spec = shape_of(life);
    spec.layers = layers;
    spec.layer_count = 1;
    spec.root_user = judge_as_root(life);
    life->result.fresh_verify = true;
    life->judge = sandbox_open(life->plan->lane.sandboxes, &spec, on_judge_open, life);
}

static void on_verdict(void *context, const struct task_verdict *verdict)
{
    struct life *life = context;
    struct log_file log = {.fd = -1};
    life->extra.verify_user = arena_text(&life->arena, str_of(verdict->user));
    copy_commands(life, verdict->commands, verdict->count, &life->result.verify,
                  &life->result.verify_count);
    if (log_file_open(&log, life->plan->dir, "verifier.log", life->plan->log_bytes_max, NULL) ==
        0) {
        log_file_write(&log, verdict->log);
        log_file_close(&log);
    }
    if (is_bad(&verdict->err)) {
        struct err why = verdict->err;
        fail_infra(life, &why);
        return;
    }
    life->result.reward = verdict->reward;
    if (verdict->reward.detail.data)
        life->result.reward.detail = arena_str(&life->arena, verdict->reward.detail);
    life->verified = true;
    step(life);
}

static void verify_in(struct life *life, struct sandbox *sandbox, bool as_root)
{
    life->work = task_verify(life->plan->task, sandbox, as_root, life->plan->verify_ms_max,
                             on_verdict, life);
}

static bool wants_fresh(struct life *life)
{
    unsigned needed = SANDBOX_CAN_SNAPSHOT | SANDBOX_CAN_FORK;
    if (!life->plan->task->fresh_verify)
        life->extra.verify_note = "the task asked for verification in the agent's sandbox";
    else if ((life->capabilities & needed) != needed)
        life->extra.verify_note = "the backend has no snapshots: verified in the agent's sandbox";
    else
        return true;
    return false;
}

static void begin_verify(struct life *life)
{
    note_sandbox(life);
    if (!task_has_verifier(life->plan->task)) {
        life->verified = true;
        return;
    }
    if (wants_fresh(life)) {
        /* Lost or not, it is on its way out: only the snapshot speaks from now on. */
        sandbox_on_lost(life->sandbox, NULL, NULL);
        sandbox_snapshot(life->sandbox, on_snapshot, life);
        return;
    }
    verify_in(life, life->sandbox, life->as_root);
}

/* ---------------------------------------------------------------- collecting */
static void collect_next(struct life *life);

static void artifact_note(struct life *life, const char *state, const char *file, uint64_t bytes)
{
    struct json_writer *out = &life->artifact_writer;
    json_begin_object(out);
    json_set_text(out, "path", life->plan->task->artifacts[life->artifact_at]);
    json_set_text(out, "state", state);
    if (file)
        json_set_text(out, "file", file);
    if (bytes)
        json_set_int(out, "bytes", (long long)bytes);
    json_end_object(out);
    life->artifact_at++;
}

static void on_artifact(void *context, const struct err *err)
{
    struct life *life = context;
    artifact_note(life, is_bad(err) ? err->text : "kept", NULL, 0);
    collect_next(life);
}

/* "/app/out/report.json" is kept as "app.out.report.json": one flat directory, nothing to follow.
 */
static char *artifact_path(struct life *life)
{
    const char *path = life->plan->task->artifacts[life->artifact_at];
    char *flat = arena_text(&life->arena, str_of(path + strspn(path, "/.")));
    for (char *at = flat; *at; at++)
        if (*at == '/')
            *at = '.';
    return arena_format(&life->arena, "%s/artifacts/%zu-%.150s", life->plan->dir,
                        life->artifact_at + 1, flat);
}

static struct sandbox *last_sandbox(const struct life *life)
{
    return life->judge ? life->judge : life->sandbox;
}

static const char *artifact_inside(struct life *life)
{
    const char *path = life->plan->task->artifacts[life->artifact_at];
    return path[0] == '/' ? path
                          : arena_format(&life->arena, "%s/%s", life->plan->task->workdir, path);
}

static void on_artifact_stat(void *context, const struct sandbox_stat *stat, const struct err *err)
{
    struct life *life = context;
    uint64_t left = life->plan->artifact_bytes_max - life->artifact_bytes;
    if (is_bad(err) || stat->kind == SANDBOX_FILE_NONE) {
        artifact_note(life, is_bad(err) ? err->text : "missing", NULL, 0);
        collect_next(life);
        return;
    }
    const char *host = artifact_path(life);
    const char *inside = artifact_inside(life);
    if (stat->kind == SANDBOX_FILE_DIRECTORY) {
        struct sandbox_budget budget = {.bytes_max = left ? left : 1, .entries_max = 100000};
        sandbox_get_tree(last_sandbox(life), inside, host, &budget, on_artifact, life);
        return;
    }
    if (stat->kind != SANDBOX_FILE_REGULAR || stat->size > left) {
        artifact_note(life, stat->size > left ? "too large" : "not a file", NULL, stat->size);
        collect_next(life);
        return;
    }
    OWN(fd) int fd = open(host, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (fd < 0) {
        artifact_note(life, strerror(errno), NULL, 0);
        collect_next(life);
        return;
    }
    life->artifact_bytes += stat->size;
    sandbox_get_fd(last_sandbox(life), inside, fd, on_artifact, life);
}

static void collect_next(struct life *life)
{
    const char *const *list = life->plan->task->artifacts;
    if (list && list[life->artifact_at]) {
        sandbox_stat(last_sandbox(life), artifact_inside(life), on_artifact_stat, life);
        return;
    }
    if (life->artifact_writer.out)
        json_end_array(&life->artifact_writer);
    life->collected = true;
    step(life);
}

static void begin_collect(struct life *life)
{
    const char *const *list = life->plan->task->artifacts;
    if (!list || !list[0]) {
        life->collected = true;
        return;
    }
    OWN(mem) char *dir = mem_format("%s/artifacts", life->plan->dir);
    (void)file_make_dirs(dir, 0755, NULL); /* each artifact reports what follows from a failure */
    life->artifact_writer = (struct json_writer){.out = &life->artifacts};
    json_begin_array(&life->artifact_writer);
    collect_next(life);
}

/* ---------------------------------------------------------------- ending */
/* Handles first, then the sandboxes they work in: after this only closings come back. */
static void begin_close(struct life *life)
{
    if (life->closing)
        return;
    life->closing = true;
    loop_timer_stop(&life->pause);
    if (life->sandbox && !life->result.sandbox.data && life->provisioned)
        note_sandbox(life);
    agent_install_close(TAKE(life->install));
    agent_close(TAKE(life->run));
    task_work_close(TAKE(life->work));
    struct sandbox **sandboxes[] = {&life->sandbox, &life->judge};
    for (size_t i = 0; i < COUNT(sandboxes); i++) {
        if (!*sandboxes[i])
            continue;
        life->pending++;
        sandbox_close(TAKE(*sandboxes[i]), on_closed, life);
    }
    close_session(life, life->hurry ? 0 : CALLS_GRACE_MS);
}

static bool all_closed(const struct life *life)
{
    return !life->pending && !life->session;
}

static void life_free(void *argument)
{
    struct life *life = argument;
    buf_deinit(&life->artifacts);
    arena_deinit(&life->arena);
    plan_unref(life->plan);
    free(life);
}

static void write_result(struct life *life, struct buf *line)
{
    struct trace_result *result = &life->result;
    buf_clear(line);
    result->stage = life->stage;
    result->done_ms = clock_wall_ms();
    result->error = life->err.text[0] ? str_of(life->err.text) : STR_NONE;
    result->error_kind = life->err.kind ? err_meaning(life->err.kind)->name : NULL;
    result_write(result, &life->extra, line);
}

/* Everything is closed (or has had its time): the folder, the report, the end. */
static void finish(struct life *life)
{
    if (!life->reported) {
        life->reported = true;
        loop_timer_stop(&life->deadline);
        leave_stage(life);
        life->extra.logs_cut =
            life->agent_log.cut || life->events_log.cut || life->agent_log.failed;
        log_file_event(&life->events_log, "result", STR_NONE,
                       str_of(trace_fate_name(life->result.fate)));
        log_file_close(&life->agent_log);
        log_file_close(&life->events_log);
        if (life->layer[0])
            sandboxes_drop_layer(life->plan->lane.sandboxes, life->layer);
        OWN(buf) struct buf hosts = {0};
        result_merge_hosts(life->lookups, life->connects, &hosts);
        life->result.hosts = arena_str(&life->arena, buf_str(&hosts));
        life->extra.artifacts = buf_str(&life->artifacts);

        OWN(buf) struct buf line = {0};
        OWN(mem) char *path = mem_format("%s/result.json", life->plan->dir);
        struct err err = {0};
        write_result(life, &line);
        buf_byte(&line, '\n');
        if (file_write(path, buf_str(&line), 0644, false, &err) < 0) {
            /* A result that is not kept is no result. */
            err_wrap(&err, "writing the result");
            LOG_ERROR("rollout", life->plan->id, "%s", err.text);
            if (trace_fate_may_reward(life->result.fate)) {
                life->result.fate = TRACE_FATE_INFRA_FAILED;
                life->result.failed_stage = TRACE_COLLECTING;
                life->result.reward = (struct trace_reward){0};
                life->err = err;
            }
            write_result(life, &line);
            buf_byte(&line, '\n');
        }
        OWN(mem) char *owner = mem_format("%s/owner", life->plan->dir);
        (void)unlink(owner);
        line.size--;
        struct report *report = report_new(life, REPORT_FINAL);
        report->fate = life->result.fate;
        report->failed_stage = life->result.failed_stage;
        snprintf(report->error, sizeof report->error, "%s", life->err.text);
        report->rewarded = life->result.reward.known;
        report->reward = life->result.reward.value;
        report->prompt_tokens = life->result.usage.known ? life->result.usage.prompt_tokens : -1;
        report->completion_tokens =
            life->result.usage.known ? life->result.usage.completion_tokens : -1;
        report->result = buf_take(&line);
        report_send(life, report);
    }
    if (!all_closed(life) || life->over)
        return;
    life->over = true;
    life->plan->life = NULL;
    loop_defer(life->loop, life_free, life);
}

/* ---------------------------------------------------------------- the step */
static void step(struct life *life)
{
    const struct plan *plan = life->plan;
    struct err why = {0};
    switch (life->stage) {
    case TRACE_QUEUED:
        move(life, TRACE_PROVISIONING);
        open_sandbox(life);
        return;

    case TRACE_PROVISIONING:
        if (life->provision_failed)
            retry_or_fail(life);
        if (!life->provisioned)
            return;
        move(life, TRACE_INSTALLING);
        life->install = agent_install(life->loop, plan->agent, life->sandbox, on_installed, life);
        return;

    case TRACE_INSTALLING:
        if (!life->installed)
            return;
        agent_install_close(TAKE(life->install));
        move(life, TRACE_PREPARING);
        if (open_session(life, &why) < 0) {
            fail_infra(life, &why);
            return;
        }
        life->work = task_prepare(plan->task, life->sandbox, on_prepared, life);
        return;

    case TRACE_PREPARING:
        if (!life->prepared)
            return;
        task_work_close(TAKE(life->work));
        move(life, TRACE_SETUP);
        if (plan->task->setup_count) {
            life->work = task_setup(plan->task, life->sandbox, plan->setup_ms_max, on_setup, life);
            return;
        }
        life->setup_done = true;
        /* fall through */

    case TRACE_SETUP:
        if (!life->setup_done)
            return;
        task_work_close(TAKE(life->work));
        move(life, TRACE_RUNNING);
        start_agent(life);
        return;

    case TRACE_RUNNING:
        if (!life->agent_over)
            return;
        if (life->agent_fate == AGENT_LOST || life->agent_fate == AGENT_NOT_STARTED) {
            err_set(&why, life->agent_fate == AGENT_LOST ? ERR_LOST : ERR_SYSTEM, "%s",
                    life->err.text);
            fail_infra(life, &why);
            return;
        }
        loop_timer_stop(&life->pause);
        agent_close(TAKE(life->run));
        move(life, TRACE_SETTLING);
        sandbox_kill_all(life->sandbox, on_quiet, life);
        return;

    case TRACE_SETTLING:
        if (!life->quiet)
            return;
        close_session(life, CALLS_GRACE_MS);
        if (life->session)
            return;
        enum trace_fate fate = judge_fate(life, &why);
        if (!trace_fate_may_reward(fate)) {
            fail(life, fate, &why);
            return;
        }
        life->result.fate = fate;
        life->result.failed_stage = TRACE_RUNNING;
        life->err = why;
        move(life, TRACE_VERIFYING);
        begin_verify(life);
        if (!life->verified)
            return;
        /* fall through */

    case TRACE_VERIFYING:
        if (life->snapshot_over) {
            life->snapshot_over = false;
            open_judge(life);
            return;
        }
        if (life->judge_ready) {
            life->judge_ready = false;
            verify_in(life, life->judge, judge_as_root(life));
            return;
        }
        if (!life->verified)
            return;
        task_work_close(TAKE(life->work));
        move(life, TRACE_COLLECTING);
        begin_collect(life);
        /* fall through */

    case TRACE_COLLECTING:
        if (!life->collected)
            return;
        begin_close(life);
        if (!all_closed(life))
            return;
        move(life, TRACE_DONE);
        /* fall through */

    case TRACE_DONE:
    case TRACE_FAILED:
    case TRACE_CANCELLED:
        if (all_closed(life) || life->reported)
            finish(life);
        return;

    case TRACE_STAGES:
        return;
    }
}

/* ---------------------------------------------------------------- orders from the manager */
static void fill_result(struct life *life)
{
    const struct plan *plan = life->plan;
    struct trace_result *result = &life->result;
    memcpy(result->rollout, plan->id, sizeof result->rollout);
    snprintf(result->group, sizeof result->group, "%s", plan->group);
    result->task = plan->task->name;
    result->agent = agent_spec_name(plan->agent);
    result->model = model_name(plan->model);
    result->mode = plan->mode;
    result->backend = plan->backend;
    result->queued_ms = plan->queued_wall_ms;
}

static int open_folder(struct life *life, struct err *err)
{
    const struct plan *plan = life->plan;
    if (file_make_dirs(plan->dir, 0755, err) < 0 ||
        log_file_open(&life->agent_log, plan->dir, "agent.log", plan->log_bytes_max, err) < 0 ||
        log_file_open(&life->events_log, plan->dir, "events.jsonl", plan->log_bytes_max, err) < 0)
        return err_wrap(err, "the folder of the rollout");
    return 0;
}

void life_begin(void *argument)
{
    struct plan *plan = argument;
    struct life *life = mem_zero(sizeof *life);
    struct err err = {0};
    life->plan = plan;
    life->loop = plan->lane.loop;
    life->stage = TRACE_QUEUED;
    life->stage_since_ms = plan->queued_mono_ms;
    life->extra.plan = plan;
    life->agent_log.fd = life->events_log.fd = -1;
    life->as_root = plan->task->root || agent_spec_wants_root(plan->agent);
    plan->life = life;
    fill_result(life);
    if (plan->refused.kind != ERR_NONE) {
        (void)open_folder(life, NULL);
        fail(life, TRACE_FATE_CANCELLED, &plan->refused);
        return;
    }
    int capabilities = sandboxes_capabilities(plan->lane.sandboxes, plan->backend, &err);
    if (capabilities < 0 || open_folder(life, &err) < 0) {
        fail_infra(life, &err);
        return;
    }
    life->capabilities = (unsigned)capabilities;
    step(life);
}

void life_cancel(void *argument)
{
    struct life_order *order = argument;
    struct life *life = order->plan->life;
    if (life && !life->over) {
        struct err why = {0};
        err_set(&why, ERR_CANCELLED, "%s", order->why);
        life->hurry = life->hurry || order->hurry;
        fail(life, TRACE_FATE_CANCELLED, &why);
        if (order->hurry && !life->reported)
            loop_timer_start(life->loop, &life->deadline, HURRY_MS, on_stage_deadline, life);
    }
    plan_unref(order->plan);
    free(order);
}
