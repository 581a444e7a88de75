/* life_agent.c - a rollout from its first sandbox to its agent's end: provisioning, installing,
 * preparing, setup, running, settling. Functions start one thing each; callbacks note what they
 * learned and step. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "rollout/life.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "json/json.h"

enum {
    LIMIT_GRACE_MS = 15000, /* for an agent that was told there are no more calls */
};

/* ---------------------------------------------------------------- provisioning */
void life_on_lost(void *context, const struct err *err)
{
    struct life *life = context;
    if (life->stage == TRACE_COLLECTING)
        return; /* each artifact says for itself that it could not be had */
    struct err why = *err;
    err_wrap(&why, "the sandbox was lost");
    life_fail_infra(life, &why);
}

static void on_open(void *context, struct sandbox *sandbox, const struct err *err)
{
    struct life *life = context;
    life->provisioned = !is_bad(err);
    life->provision_failed = is_bad(err);
    if (is_bad(err))
        life->provision_err = *err;
    else
        sandbox_on_lost(sandbox, life_on_lost, life);
    life_step(life);
}

struct sandbox_spec life_shape(struct life *life)
{
    const struct plan *plan = life->plan;
    uint64_t life_ms =
        (uint64_t)plan->wall_ms_max + plan->setup_ms_max + plan->verify_ms_max + 3600000;
    struct sandbox_spec spec = {
        .backend = plan->backend,
        .root = life->root,
        .isolation = (enum sandbox_isolation)plan->isolation,
        .root_user = life->as_root,
        .label = plan->id,
        .life_ms_max = life_ms > UINT32_MAX ? UINT32_MAX : (uint32_t)life_ms,
    };
    if (plan->bundle && life->capabilities & SANDBOX_CAN_LAYERS)
        life->layers[spec.layer_count++] = plan->bundle;
    if (plan->shared) /* a fork of what was prepared */
        life->layers[spec.layer_count++] = plan->shared->layer;
    spec.layers = spec.layer_count ? life->layers : NULL;
    /* Who asks for "no-limits" by name gets none, whatever the task says. */
    if (plan->isolation == SANDBOX_ISOLATION_NO_LIMITS)
        return spec;
    spec.memory_bytes_max = plan->memory_bytes_max;
    spec.disk_bytes_max = plan->disk_bytes_max;
    spec.pids_max = plan->pids_max;
    spec.cpu_millis = plan->cpu_millis;
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

void life_open_sandbox(struct life *life)
{
    struct sandbox_spec spec = life_shape(life);
    struct err err = {0};
    if (life->plan->pool && !life->plan->shared && life->capabilities & SANDBOX_CAN_POOL &&
        sandboxes_pool(life->plan->lane.sandboxes, &spec, life->plan->pool, &err) < 0)
        LOG_WARN("rollout", life->plan->id, "no pool of ready sandboxes: %s", err.text);
    life->result.tries++;
    life->provisioned = life->provision_failed = false;
    life->sandbox = sandbox_open(life->plan->lane.sandboxes, &spec, on_open, life);
}

static void on_try_again(struct loop_timer *timer)
{
    life_open_sandbox(timer->context);
}

void life_retry_or_fail(struct life *life)
{
    struct err why = life->provision_err;
    sandbox_close(TAKE(life->sandbox), NULL, NULL);
    life->provision_failed = false;
    if (!err_meaning(why.kind)->retry || life->result.tries >= life->plan->provision_tries_max) {
        life_fail_infra(life, &why);
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
        life_fail_infra(life, &why);
        return;
    }
    life->installed = true;
    life_step(life);
}
static void on_needs(void *context, const struct err *err)
{
    struct life *life = context;
    if (is_bad(err)) {
        struct err why = *err;
        life_fail_infra(life, &why);
        return;
    }
    agent_check_close(TAKE(life->check));
    life->needs_met = true;
    life_step(life);
}

bool life_needs_met(struct life *life)
{
    if (life->needs_met || !agent_spec_has_needs(life->plan->agent))
        return true;
    if (!life->check)
        life->check = agent_check(life->loop, life->plan->agent, life->sandbox, on_needs, life);
    return false;
}

void life_install(struct life *life)
{
    bool mounted = life->capabilities & SANDBOX_CAN_LAYERS;
    life->install = agent_install(life->loop, life->plan->agent, life->sandbox,
                                  mounted ? NULL : life->plan->bundle, on_installed, life);
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
    OWN(buf) struct buf line = {0};
    event_line_call(&line, call, phase == GATEWAY_CALL_DONE);
    life_log_line(life, phase == GATEWAY_CALL_DONE ? "call_done" : "call_begun", &line);
    if (phase == GATEWAY_CALL_BEGUN && call->number)
        life_tell(life, "asks the model", STR_NONE);
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
    life_log(life, "limit", str_of(why->text));
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

int life_open_session(struct life *life, struct err *err)
{
    const struct plan *plan = life->plan;
    const char *calls_path = arena_format(&life->arena, "%s/calls.jsonl", plan->dir);
    struct gateway_session_options options = {
        .rollout_id = plan->id,
        .group_id = plan->group[0] ? plan->group : NULL,
        .task = plan->task->name,
        .index = plan->index,
        .mode = plan->mode,
        .model = plan->model,
        .limits = plan->limits,
        .sampling = plan->sampling,
        .exact_prefix = plan->exact_prefix,
        .keepalive_ms = plan->keepalive_ms,
        .retry_grace_ms = plan->retry_grace_ms,
        .held_ms_max = plan->held_ms_max,
        .calls_path = calls_path,
        .tools = plan->tools,
        .rules = agent_spec_rules(plan->agent),
        .on_tool = life_on_tool,
        .on_tool_closed = life_on_tool_closed,
        .on_tool_note = life_on_tool_note,
        .restore = plan->resumed && plan->store,
        .on_call = on_call,
        .on_exhausted = on_exhausted,
        .context = life,
    };
    life->session = gateway_open(plan->lane.gateway, &options, err);
    if (!life->session)
        return -1;
    life_attach_inlet(life);
    return 0;
}

void life_attach_inlet(struct life *life)
{
    if (life->sandbox) /* else the next step's has it */
        sandbox_on_inlet(life->sandbox, on_connection, life);
}

static void on_prepared(void *context, const struct err *err)
{
    struct life *life = context;
    if (is_bad(err)) {
        struct err why = *err;
        err_wrap(&why, "putting the task's files into the sandbox");
        life_fail_infra(life, &why);
        return;
    }
    life->prepared = true;
    life_step(life);
}

void life_copy_commands(struct life *life, const struct trace_command *from, size_t count,
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

bool life_take_setup(struct life *life, const struct trace_command *commands, size_t count,
                     const struct err *err)
{
    life_copy_commands(life, commands, count, &life->result.setup, &life->result.setup_count);
    if (!is_bad(err))
        return true;
    struct err why = *err;
    life_fail(life, why.kind == ERR_INPUT ? TRACE_FATE_SETUP_FAILED : TRACE_FATE_INFRA_FAILED,
              &why);
    return false;
}

static void on_setup(void *context, const struct trace_command *commands, size_t count,
                     const struct err *err)
{
    struct life *life = context;
    if (!life_take_setup(life, commands, count, err))
        return;
    life->setup_done = true;
    life_step(life);
}
void life_prepare(struct life *life)
{
    life->work = task_prepare(life->plan->task, life->sandbox, on_prepared, life);
}

void life_setup(struct life *life)
{
    life->work =
        task_setup(life->plan->task, life->sandbox, life->plan->setup_ms_max, on_setup, life);
}

/* ---------------------------------------------------------------- a preparation's end */
static void on_shared(void *context, const char *layer_id, const struct err *err)
{
    struct life *life = context;
    struct err why = {0};
    if (is_bad(err)) {
        why = *err;
    } else {
        struct shared *shared = mem_zero(sizeof *shared);
        atomic_init(&shared->references, 1);
        snprintf(shared->layer, sizeof shared->layer, "%s", layer_id);
        size_t count = life->result.setup_count;
        struct trace_command *setup = arena_alloc(&shared->arena, (count + 1) * sizeof *setup);
        for (size_t i = 0; i < count; i++) {
            setup[i] = life->result.setup[i];
            setup[i].command = arena_str(&shared->arena, setup[i].command);
            setup[i].output = arena_str(&shared->arena, setup[i].output);
        }
        shared->setup = setup;
        shared->setup_count = count;
        life->made = shared;
    }
    life->pending++;
    sandbox_close(TAKE(life->sandbox), life_on_closed, life);
    if (why.kind != ERR_NONE) {
        err_wrap(&why, "keeping the prepared files");
        life_fail_infra(life, &why);
        return;
    }
    life->collected = true;
    life_step(life);
}

void life_share(struct life *life)
{
    life->result.fate = TRACE_FATE_OK;
    life_note_sandbox(life);
    sandbox_on_lost(life->sandbox, NULL, NULL);
    sandbox_snapshot(life->sandbox, on_shared, life);
}

/* ---------------------------------------------------------------- running */
static void on_agent_event(void *context, const struct agent_event *event)
{
    struct life *life = context;
    const char *kind = agent_event_kind_name(event->kind);
    OWN(buf) struct buf line = {0};
    event_line_agent(&line, event);
    life_log_line(life, kind, &line);
    if (event->kind != AGENT_OTHER)
        life_tell(life, kind, event->text);
}

static void on_agent_output(void *context, int stream, struct str data)
{
    struct life *life = context;
    life_note_output(life, stream, data);
}

static void on_agent_end(void *context, const struct agent_end *end)
{
    struct life *life = context;
    life->agent_over = true;
    life->agent_ms = clock_mono_ms() - life->agent_since_ms;
    life->agent_fate = end->fate;
    life->result.agent_exited = end->exit.end == SANDBOX_EXITED;
    life->result.agent_code = sandbox_exit_code(&end->exit);
    life->result.agent_end = sandbox_end_name(end->exit.end);
    life->result.final_text = arena_str(&life->arena, end->final_text);
    if (end->fate != AGENT_OK)
        err_set(&life->err, ERR_NONE, "%s", end->text);
    life_step(life);
}

/* What a step says itself goes before what holds for all of them. */
uint32_t life_wall_ms(const struct life *life)
{
    const struct task *step = life->task;
    bool own = step->parent && step->agent_ms_max != step->parent->agent_ms_max;
    return own ? step->agent_ms_max : life->plan->wall_ms_max;
}

uint32_t life_verify_ms(const struct life *life)
{
    const struct task *step = life->task;
    bool own = step->parent && step->verify_ms_max != step->parent->verify_ms_max;
    return own ? step->verify_ms_max : life->plan->verify_ms_max;
}

static int agent_env(struct life *life, const char *const **out, struct err *err)
{
    bool oracle = agent_spec_wants_solution(life->plan->agent);
    const char *const *const lists[] = {life->task->env, life->task->agent_env,
                                        oracle ? life->task->solution_env : NULL};
    const char **all = NULL;
    size_t count = 0;
    for (size_t i = 0; i < COUNT(lists); i++) {
        const char *const *some = NULL;
        if (task_env_resolve(life->task, lists[i], &life->arena, &some, NULL, err) < 0)
            return -1;
        size_t more = 0;
        while (some[more])
            more++;
        const char **joined = arena_alloc(&life->arena, (count + more + 1) * sizeof *joined);
        if (count)
            memcpy(joined, all, count * sizeof *joined);
        if (more)
            memcpy(joined + count, some, more * sizeof *joined);
        all = joined;
        count += more;
    }
    *out = all;
    return 0;
}

static int how_to_start(struct life *life, struct agent_start *start)
{
    const struct plan *plan = life->plan;
    const struct task *task = life->task;
    const char *const *env = NULL;
    struct err why = {0};
    if (agent_env(life, &env, &why) < 0) {
        life_fail(life, TRACE_FATE_SETUP_FAILED, &why);
        return -1;
    }
    *start = (struct agent_start){
        .loop = life->loop,
        .instruction = task->instruction,
        .system = task->system,
        .model = model_name(plan->model),
        .workdir = task->workdir,
        .user = task->agent_user ? task->agent_user
                : task->root     ? "root"
                                 : NULL,
        .env = env,
        .timeout_ms = life_wall_ms(life),
        .turns_max = plan->turns_max,
        .skip_permissions = plan->skip_permissions,
        .tools = plan->tool_facts.functions,
    };
    return 0;
}

static const struct agent_handlers agent_handlers = {
    .on_event = on_agent_event, .on_output = on_agent_output, .on_end = on_agent_end};

void life_start_agent(struct life *life)
{
    struct agent_start start;
    if (how_to_start(life, &start) < 0)
        return;
    life->agent_since_ms = clock_mono_ms();
    struct agent_handlers handlers = agent_handlers;
    life_user_begin(life, &start, &handlers);
    life->run = agent_start(life->plan->agent, life->sandbox, &start, &handlers, life);
}

void life_resume_agent(struct life *life)
{
    struct agent_start start;
    struct agent_resume resume = {0};
    OWN(buf) struct buf log = {0}, parts = {0};
    struct sandbox_kept kept;
    if (!sandbox_kept(life->sandbox, life->kept_before, &kept)) {
        life_start_agent(life); /* the server died on the way to its start */
        return;
    }
    if (how_to_start(life, &start) < 0)
        return;
    life->agent_since_ms = life->stage_since_ms;
    if (!agent_spec_resumes(life->plan->agent)) {
        struct err why = {0};
        err_set(&why, ERR_LOST,
                "the server died, and what the agent %s had open there cannot be given back",
                agent_spec_name(life->plan->agent));
        life_fail_infra(life, &why);
        return;
    }
    life_read_output(life, &kept, &log, &parts, &resume);
    struct agent_handlers handlers = agent_handlers;
    life_user_begin(life, &start, &handlers);
    life->run = agent_resume(life->plan->agent, life->sandbox, &start, &resume, &handlers, life);
}

/* ---------------------------------------------------------------- settling */
static void on_quiet(void *context, const struct err *err)
{
    struct life *life = context;
    if (is_bad(err)) {
        struct err why = *err;
        err_wrap(&why, "ending what the agent left running");
        life_fail_infra(life, &why);
        return;
    }
    life->quiet = true;
    life_step(life);
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
    if (stats->cause == GATEWAY_REPLAY)
        life->extra.divergence = life->stats.why.text;
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
    life_step(life);
}

void life_close_session(struct life *life, uint32_t grace_ms)
{
    if (!life->session || life->session_closing)
        return;
    life->session_closing = true;
    gateway_session_close(life->session, grace_ms, on_session_over, life);
}

/* A server died while this agent waited for an answer, and the agent did not get over it: it ended
 * badly without asking again, or takes a broken answer for a whole one. */
static bool ended_with_its_server(const struct life *life)
{
    if (!life->stats.abandoned)
        return false;
    if (life->agent_fate == AGENT_OK)
        return !life->stats.answered || agent_spec_reset_ends(life->plan->agent);
    return life->agent_fate == AGENT_FAILED || life->agent_fate == AGENT_TIMED_OUT;
}

/* What the agent's end means, now that its calls are settled too. */
enum trace_fate life_judge_fate(const struct life *life, struct err *why)
{
    const struct gateway_stats *stats = &life->stats;
    bool bad_end = life->agent_fate != AGENT_OK;
    switch (stats->cause) {
    case GATEWAY_STORE:
        *why = stats->why;
        return TRACE_FATE_INFRA_FAILED;
    case GATEWAY_LIMIT:
        *why = stats->why;
        return TRACE_FATE_LIMIT;
    case GATEWAY_UPSTREAM:
    case GATEWAY_SCRIPT:
    case GATEWAY_REPLAY:
        /* Some agents take a broken answer for a whole one. */
        if (!bad_end && stats->answered && !agent_spec_reset_ends(life->plan->agent))
            break;
        *why = stats->why;
        return TRACE_FATE_UPSTREAM_FAILED;
    case GATEWAY_STOPPED:
        *why = stats->why;
        return TRACE_FATE_STOPPED;
    case GATEWAY_FINE:
        break;
    }
    if (ended_with_its_server(life)) {
        err_set(why, ERR_LOST,
                "the server that ran it died before an answer, and the agent did not ask again");
        return TRACE_FATE_INFRA_FAILED;
    }
    err_set(why, ERR_SYSTEM, "%s", life->err.text);
    switch (life->agent_fate) {
    case AGENT_OK:
        if (stats->calls && !stats->answered) {
            err_set(why, ERR_SYSTEM,
                    "the agent ended well, but none of its model calls was answered");
            return TRACE_FATE_AGENT_FAILED;
        }
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
void life_settle(struct life *life)
{
    sandbox_kill_all(life->sandbox, on_quiet, life);
}

void life_note_sandbox(struct life *life)
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
