/* life_ready.c - what comes between a sandbox that is set up and an agent that starts in it, and
 * between the steps of a task that has several.
 *
 *     [reopen] -> [the step's files] -> [the step's setup] -> [freeze] -> [solution] -> ready
 *
 * freeze: what setup left becomes a layer, and the agent works in a fork of it. So a verifier can
 * have the system directories as they were before the agent came (life_judge.c); it is left out
 * where setup could not have changed any.
 * reopen: the files a step left are a layer after its verification; the next step's agent works in
 * a fork of that, and nothing the verifier did is in it.
 * solution: only for the oracle.
 *
 * Each phase starts one thing; `busy` holds until its callback. */
#include <stdio.h>
#include <string.h>

#include "rollout/life.h"

#include "base/clock.h"
#include "base/mem.h"

enum phase { PHASE_REOPEN, PHASE_FILES, PHASE_SETUP, PHASE_FREEZE, PHASE_SOLUTION, PHASE_READY };

static bool is_first(const struct life *life)
{
    return life->step_at == 0;
}

static void phase_over(struct life *life)
{
    task_work_close(TAKE(life->work));
    life->busy = false;
    life->phase++;
    life_step(life);
}

/* ---------------------------------------------------------------- a fork of a layer */
static void on_reopened(void *context, struct sandbox *sandbox, const struct err *err)
{
    struct life *life = context;
    if (is_bad(err)) {
        struct err why = *err;
        err_wrap(&why, "the agent's sandbox on what was prepared");
        life_fail_infra(life, &why);
        return;
    }
    sandbox_on_lost(sandbox, life_on_lost, life);
    life_attach_inlet(life);
    phase_over(life);
}

/* The sandbox stands on the layer, and whoever comes after a crash will look for the sandbox: only
 * now nobody has to hold it. */
void life_running(struct life *life, void (*move_on)(struct life *life))
{
    char layer[sizeof life->layer];
    memcpy(layer, life->layer, sizeof layer);
    life->layer[0] = '\0';
    move_on(life);
    if (layer[0])
        sandboxes_drop_layer(life->plan->lane.sandboxes, layer);
}

static void reopen(struct life *life)
{
    const char *layers[2];
    struct sandbox_spec spec = life_shape(life);
    size_t count = 0;
    if (life->plan->bundle && life->capabilities & SANDBOX_CAN_LAYERS)
        layers[count++] = life->plan->bundle;
    layers[count++] = life->layer;
    spec.layers = layers;
    spec.layer_count = count;
    life->kept_count = 0;
    life->sandbox = sandbox_open(life->plan->lane.sandboxes, &spec, on_reopened, life);
}

bool life_take_layer(struct life *life, const char *layer_id, const struct err *err,
                     const char *what)
{
    struct err why = {0};
    if (is_bad(err))
        why = *err;
    else
        snprintf(life->layer, sizeof life->layer, "%s", layer_id);
    life->pending++;
    sandbox_close(TAKE(life->sandbox), life_on_closed, life);
    if (why.kind == ERR_NONE)
        return true;
    err_wrap(&why, "%s", what);
    life_fail_infra(life, &why);
    return false;
}

static void on_frozen(void *context, const char *layer_id, const struct err *err)
{
    struct life *life = context;
    if (!life_take_layer(life, layer_id, err, "keeping what was prepared"))
        return;
    life->frozen = true;
    reopen(life);
}

static bool has_absolute_files(const struct task *task)
{
    for (size_t i = 0; i < task->file_count; i++)
        if (task->files[i].path[0] == '/')
            return true;
    return false;
}

static bool wants_freeze(const struct life *life)
{
    const struct task *task = life->plan->task;
    const char *names[TASK_SYSTEM_DIRS_MAX + 1];
    return is_first(life) && task_has_verifier(task) && life_judges_fresh(life) &&
           task_pristine_dirs(life->task, life->plan->carry, names) &&
           (life->as_root || task->setup_count || life->task->setup_count ||
            has_absolute_files(task));
}

/* ---------------------------------------------------------------- a step's own */
static void on_files(void *context, const struct err *err)
{
    struct life *life = context;
    if (is_bad(err)) {
        struct err why = *err;
        err_wrap(&why, "putting files into the sandbox");
        life_fail_infra(life, &why);
        return;
    }
    phase_over(life);
}

static void on_commands(void *context, const struct trace_command *commands, size_t count,
                        const struct err *err)
{
    struct life *life = context;
    if (life_take_setup(life, commands, count, err))
        phase_over(life);
}

/* ---------------------------------------------------------------- in order */
/* Starts what the phase asks for. False: nothing to do. */
static bool begin(struct life *life)
{
    struct task *task = life->task;
    bool is_step = task->parent != NULL;
    switch ((enum phase)life->phase) {
    case PHASE_REOPEN:
        if (life->sandbox)
            return false;
        reopen(life);
        return true;
    case PHASE_FILES:
        if (!is_step)
            return false;
        life->work = task_prepare(task, life->sandbox, on_files, life);
        return true;
    case PHASE_SETUP:
        if (!is_step || !task->setup_count)
            return false;
        life->work = task_setup(task, life->sandbox, life->plan->setup_ms_max, on_commands, life);
        return true;
    case PHASE_FREEZE:
        life->frozen = life->frozen || life->plan->shared; /* it stands on what was prepared */
        if (life->frozen || !wants_freeze(life))
            return false;
        sandbox_on_lost(life->sandbox, NULL, NULL);
        sandbox_snapshot(life->sandbox, on_frozen, life);
        return true;
    case PHASE_SOLUTION:
        if (!agent_spec_wants_solution(life->plan->agent))
            return false;
        life->work = task_put_solution(task, life->sandbox, on_files, life);
        return true;
    case PHASE_READY:
        break;
    }
    return false;
}

bool life_ready(struct life *life)
{
    while (!life->busy && life->phase != PHASE_READY) {
        life->busy = begin(life);
        if (!life->busy)
            life->phase++;
    }
    return !life->busy;
}

/* ---------------------------------------------------------------- step after step */
static void note_step(struct life *life)
{
    struct json_writer *out = &life->steps_writer;
    const struct trace_reward *reward = &life->rewards[life->step_at];
    if (!out->out) {
        *out = (struct json_writer){.out = &life->steps};
        json_begin_array(out);
    }
    json_begin_object(out);
    json_set_text(out, "name", life->task->name);
    json_set_text(out, "class", trace_fate_name(life->result.fate));
    json_set_double(out, "reward", reward->value);
    if (reward->detail.size)
        json_set_raw(out, "rewards", reward->detail);
    json_set_int(out, "agent_ms", (long long)life->agent_ms);
    json_end_object(out);
}

bool life_next_step(struct life *life)
{
    struct task *all = life->plan->task;
    if (!all->step_count || life->steps_over)
        return false;
    life->rewards[life->step_at] = life->result.reward;
    note_step(life);
    bool enough = task_reward_suffices(life->task, &life->result.reward);
    if (life->step_at + 1 == all->step_count || !enough || life->result.fate != TRACE_FATE_OK) {
        life->steps_over = true;
        life->result.reward = task_roll_up(all, life->rewards, all->step_count, &life->arena);
        json_end_array(&life->steps_writer);
        return false;
    }
    life->step_at++;
    life->task = all->steps[life->step_at];
    life->result.reward = (struct trace_reward){0};
    if (life->judge) {
        life->pending++;
        sandbox_close(TAKE(life->judge), life_on_closed, life);
    }
    life->carry = NULL;
    life->phase = PHASE_REOPEN;
    life->setup_done = true; /* the task's own was, perhaps by a server that is gone */
    life->agent_over = life->quiet = life->snapshot_over = false;
    life->judge_ready = life->verified = life->collect_done = false;
    return true;
}
