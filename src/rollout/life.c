/* life.c - the life of one rollout on its lane, readable from top to bottom.
 *
 *     provisioning -> installing -> preparing -> setup -> running -> settling
 *          -> verifying -> collecting -> done
 *     any of them -> failed | cancelled
 *
 * Callbacks only note what they learned and call life_step(). All decisions are there; all legal
 * moves are in `rules`. An agent that fails, times out or runs into a limit goes on to be judged;
 * what is broken in the infrastructure ends in `failed` without a reward. Whatever happens,
 * everything is closed and the folder is written before the one final report, after which the life
 * is over.
 *
 * One timer watches each stage, so that no wait is without an end, whoever is to blame. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rollout/life.h"

#include "base/check.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"

enum {
    MARGIN_MS = 60000, /* what a stage may take beyond the limit that should have ended it */
    PREPARE_MS = 300000,
    PROVISION_MS = 3600000, /* the sandbox room has deadlines of its own; this is the backstop */
    SETTLE_MS = 60000,
    CALLS_GRACE_MS = 1000, /* calls in flight when the agent is gone */
    COLLECT_MS = 300000,
    CLOSE_MS = 60000,
    HURRY_MS = 3000,
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
    [TRACE_SETUP]        = TO(RUNNING) | TO(COLLECTING) | ENDS, /* a preparation is collected */
    [TRACE_RUNNING]      = TO(SETTLING) | ENDS,
    [TRACE_SETTLING]     = TO(VERIFYING) | ENDS,
    [TRACE_VERIFYING]    = TO(COLLECTING) | TO(SETUP) | ENDS, /* there is another step */
    [TRACE_COLLECTING]   = TO(DONE) | ENDS,
    [TRACE_DONE]         = 0,
    [TRACE_FAILED]       = 0,
    [TRACE_CANCELLED]    = 0,
};
/* clang-format on */

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
        return (uint64_t)life_wall_ms(life) + MARGIN_MS;
    case TRACE_SETTLING:
        return SETTLE_MS;
    case TRACE_VERIFYING:
        return (uint64_t)life_verify_ms(life) + PREPARE_MS;
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

void life_leave_stage(struct life *life)
{
    uint64_t now = clock_mono_ms();
    life->result.stage_ms[life->stage] += now - life->stage_since_ms;
    life->stage_since_ms = now;
}

void life_start_deadline(struct life *life, uint64_t spent_ms)
{
    uint64_t budget = stage_budget(life, life->stage);
    loop_timer_start(life->loop, &life->deadline, budget > spent_ms ? budget - spent_ms : 0,
                     on_stage_deadline, life);
}

/* The one place where a stage begins: checked, timed, logged, published. */
static void move(struct life *life, enum trace_stage next)
{
    CHECK(rules[life->stage] & 1u << next);
    life_leave_stage(life);
    life->stage = next;
    LOG_DEBUG("rollout", life->plan->id, "%s", trace_stage_name(next));
    life_log(life, "stage", str_of(trace_stage_name(next)));
    life_start_deadline(life, 0);
    life_save(life);
    life_report_send(life, life_report(life, REPORT_STAGE));
}

static void move_to_running(struct life *life)
{
    move(life, TRACE_RUNNING);
}

/* The rollout cannot go on. The first cause counts; a stage that ended well cannot fail any more.
 */
void life_fail(struct life *life, enum trace_fate fate, const struct err *why)
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
    life_log(life, trace_fate_name(fate), str_of(why->text));
    if (fate == TRACE_FATE_CANCELLED) {
        life->cancelled = true;
        life_save(life);
    }
    move(life, fate == TRACE_FATE_CANCELLED ? TRACE_CANCELLED : TRACE_FAILED);
    life_close(life);
    life_step(life);
}

void life_fail_infra(struct life *life, const struct err *why)
{
    life_fail(life, TRACE_FATE_INFRA_FAILED, why);
}

static void on_stage_deadline(struct loop_timer *timer)
{
    struct life *life = timer->context;
    if (trace_stage_final(life->stage)) {
        /* Closing takes too long. The manager of the sandboxes goes on trying; people need not
         * wait. */
        LOG_WARN("rollout", life->plan->id,
                 "closing takes too long; reported before all of it is gone");
        life_finish(life);
        return;
    }
    if (life->stage == TRACE_COLLECTING) {
        /* The reward is made; what cannot be fetched or closed in time does not undo it. */
        life_close(life);
        move(life, TRACE_DONE);
        life_step(life);
        return;
    }
    struct err err = {0};
    err_set(&err, ERR_TIMEOUT, "%s took longer than %llu s", trace_stage_name(life->stage),
            (unsigned long long)stage_budget(life, life->stage) / 1000);
    life_fail_infra(life, &err);
}

/* ---------------------------------------------------------------- the step */
void life_step(struct life *life)
{
    const struct plan *plan = life->plan;
    struct err why = {0};
    switch (life->stage) {
    case TRACE_QUEUED:
        move(life, TRACE_PROVISIONING);
        life_provision(life);
        return;

    case TRACE_PROVISIONING:
        if (life->provision_failed)
            life_retry_or_fail(life);
        if (!life->provisioned)
            return;
        move(life, TRACE_INSTALLING);
        if (!plan->shared) {
            life_install(life);
            return;
        }
        life->installed = life->prepared = life->setup_done = true;
        life->result.setup = plan->shared->setup;
        life->result.setup_count = plan->shared->setup_count;
        /* fall through */

    case TRACE_INSTALLING:
        if (!life->installed || !life_needs_met(life))
            return;
        agent_install_close(TAKE(life->install));
        move(life, TRACE_PREPARING);
        if (!plan->preparation && life_open_session(life, &why) < 0) {
            life_fail_infra(life, &why);
            return;
        }
        if (!plan->shared) {
            life_prepare(life);
            return;
        }
        /* fall through */

    case TRACE_PREPARING:
        if (!life->prepared || !life_tools_ready(life))
            return;
        task_work_close(TAKE(life->work));
        move(life, TRACE_SETUP);
        if (plan->task->setup_count && !plan->shared) {
            life_setup(life);
            return;
        }
        life->setup_done = true;
        /* fall through */

    case TRACE_SETUP:
        if (!life->setup_done || life->busy)
            return;
        task_work_close(TAKE(life->work));
        if (plan->preparation) {
            move(life, TRACE_COLLECTING);
            life_share(life);
            return;
        }
        if (!life_ready(life))
            return;
        life_begin_output(life);
        life_running(life, move_to_running);
        life_start_agent(life);
        return;

    case TRACE_RUNNING:
        if (!life->agent_over)
            return;
        if (life->agent_fate == AGENT_LOST || life->agent_fate == AGENT_NOT_STARTED) {
            err_set(&why, life->agent_fate == AGENT_LOST ? ERR_LOST : ERR_SYSTEM, "%s",
                    life->err.text);
            life_fail_infra(life, &why);
            return;
        }
        loop_timer_stop(&life->pause);
        life_user_close(life);
        agent_close(TAKE(life->run));
        move(life, TRACE_SETTLING);
        life_settle(life);
        return;

    case TRACE_SETTLING:
        if (!life->quiet || life->busy)
            return;
        if (!plan->task->step_count)
            life_tools_close(life);
        if (!life->collect_done && life->task->collect_count) {
            life_collect_hooks(life);
            return;
        }
        task_work_close(TAKE(life->work));
        if (plan->task->step_count) { /* more may follow: it stays open */
            life->stats = *gateway_session_stats(life->session);
        } else {
            life_close_session(life, CALLS_GRACE_MS);
            if (life->session)
                return;
        }
        enum trace_fate fate = life_judge_fate(life, &why);
        if (!trace_fate_may_reward(fate)) {
            life_fail(life, fate, &why);
            return;
        }
        life->result.fate = fate;
        life->result.failed_stage = TRACE_RUNNING;
        life->err = why;
        move(life, TRACE_VERIFYING);
        life_verify(life);
        if (!life->verified)
            return;
        /* fall through */

    case TRACE_VERIFYING:
        if (life->snapshot_over) {
            life->snapshot_over = false;
            life_open_judge(life);
            return;
        }
        if (life->judge_ready) {
            life->judge_ready = false;
            life_verify_in_judge(life);
            return;
        }
        if (!life->verified)
            return;
        task_work_close(TAKE(life->work));
        if (life_next_step(life)) {
            move(life, TRACE_SETUP);
            life_step(life);
            return;
        }
        life_tools_close(life);
        life_close_session(life, CALLS_GRACE_MS);
        if (life->session)
            return;
        move(life, TRACE_COLLECTING);
        life_samples(life);
        life_collect(life);
        /* fall through */

    case TRACE_COLLECTING:
        if (!life->collected)
            return;
        life_close(life);
        if (!life_all_closed(life))
            return;
        move(life, TRACE_DONE);
        /* fall through */

    case TRACE_DONE:
    case TRACE_FAILED:
    case TRACE_CANCELLED:
        if (life_all_closed(life))
            life_samples(life);
        if (life_all_closed(life) || life->reported)
            life_finish(life);
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
    if (plan->resumed)
        life_mend_events(life);
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
    life->agent_log.fd = life->events_log.fd = life->agent_parts.fd = -1;
    list_init(&life->tool_jobs);
    life->as_root = plan->task->root || agent_spec_wants_root(plan->agent);
    life->task = plan->task->step_count ? plan->task->steps[0] : plan->task;
    life->rewards = arena_alloc(&life->arena, (plan->task->step_count + 1) * sizeof *life->rewards);
    plan->life = life;
    fill_result(life);
    if (plan->refused.kind != ERR_NONE) {
        (void)open_folder(life, NULL);
        snprintf(life->reason, sizeof life->reason, "%s", plan->refused_reason);
        life_fail(life, plan->refused_fate, &plan->refused);
        return;
    }
    int capabilities = sandboxes_capabilities(plan->lane.sandboxes, plan->backend, &err);
    if (capabilities < 0 || open_folder(life, &err) < 0) {
        life_fail_infra(life, &err);
        return;
    }
    life->capabilities = (unsigned)capabilities;
    bool network_off = life->capabilities & SANDBOX_CAN_NETWORK_OFF;
    if ((!plan->offline && task_network_check(plan->task, network_off, &err) < 0) ||
        task_env_check(plan->task, agent_spec_wants_solution(plan->agent), &err) < 0 ||
        (agent_spec_wants_solution(plan->agent) && !task_has_solution(plan->task) &&
         err_set(&err, ERR_INPUT, "the task has no solution for the oracle") < 0)) {
        life_fail(life, TRACE_FATE_SETUP_FAILED, &err);
        return;
    }
    if (plan->state.data)
        life_resume(life);
    else
        life_step(life);
}

void life_cancel(void *argument)
{
    struct life_order *order = argument;
    struct life *life = order->plan->life;
    if (life && !life->over) {
        struct err why = {0};
        err_set(&why, ERR_CANCELLED, "%s", order->why);
        life->hurry = life->hurry || order->hurry;
        if (!trace_stage_final(life->stage))
            snprintf(life->reason, sizeof life->reason, "%s", order->reason);
        life_fail(life, TRACE_FATE_CANCELLED, &why);
        if (order->hurry && !life->reported)
            loop_timer_start(life->loop, &life->deadline, HURRY_MS, on_stage_deadline, life);
    }
    plan_unref(order->plan);
    free(order);
}
