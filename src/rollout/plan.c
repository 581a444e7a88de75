/* plan.c - what the manager and a life on its lane both hold: constant once made, counted. */
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/mem.h"
#include "rollout/manager.h"

struct plan *plan_ref(struct plan *plan)
{
    atomic_fetch_add(&plan->references, 1);
    return plan;
}

void plan_unref(struct plan *plan)
{
    if (!plan || atomic_fetch_sub(&plan->references, 1) != 1)
        return;
    shared_unref(plan->shared);
    agent_spec_unref(plan->agent);
    task_unref(plan->task);
    model_unref(plan->model);
    arena_deinit(&plan->arena);
    free(plan);
}

struct shared *shared_ref(struct shared *shared)
{
    atomic_fetch_add(&shared->references, 1);
    return shared;
}

void shared_unref(struct shared *shared)
{
    if (!shared || atomic_fetch_sub(&shared->references, 1) != 1)
        return;
    arena_deinit(&shared->arena);
    free(shared);
}

static uint32_t first_of(uint32_t a, uint32_t b, uint32_t c)
{
    return a ? a : b ? b : c;
}

/* Words separated by blanks; NULL: none. */
static const char *const *split(struct arena *arena, const char *text)
{
    struct str rest = str_trim(str_of(text ? text : ""));
    size_t count = 0;
    if (!rest.size)
        return NULL;
    const char **words = arena_alloc(arena, (rest.size / 2 + 2) * sizeof *words);
    while (rest.data) {
        struct str word = str_cut(&rest, ' ');
        if (word.size)
            words[count++] = arena_text(arena, word);
    }
    return words;
}

struct plan *plan_new(struct rollouts *rollouts, const struct rollout_request *request,
                      const char *mode, const char *id)
{
    struct rollouts_options *options = &rollouts->options;
    struct task *task = request->task;
    struct plan *plan = mem_zero(sizeof *plan);
    atomic_init(&plan->references, 1);
    snprintf(plan->id, sizeof plan->id, "%s", id);
    plan->agent = agent_spec_ref(request->agent);
    plan->task = task_ref(task);
    plan->model = model_ref(request->model);
    plan->run = arena_text(&plan->arena, str_of(request->run ? request->run : ""));
    plan->group = arena_text(&plan->arena, str_of(request->group ? request->group : ""));
    plan->mode = arena_text(&plan->arena, str_of(mode));
    plan->backend = arena_text(&plan->arena, str_of(request->backend ? request->backend : "local"));
    const char *root = request->root ? request->root : task->root_image;
    plan->root = root ? arena_text(&plan->arena, str_of(root)) : NULL;
    plan->dir = arena_format(&plan->arena, "%s/rollouts/%s", options->home, plan->id);
    plan->isolation = request->isolation;
    plan->index = request->index;
    plan->wall_ms_max =
        first_of(request->wall_ms_max, task->agent_ms_max,
                 first_of(agent_spec_timeout_ms(request->agent), options->wall_ms_max, 1));
    plan->setup_ms_max = first_of(task->setup_ms_max, options->setup_ms_max, 1);
    plan->verify_ms_max = first_of(task->verify_ms_max, options->verify_ms_max, 1);
    plan->skip_permissions = request->skip_permissions != 0;
    plan->turns_max = first_of(request->turns_max, task->turns_max, 0);
    plan->offline = request->offline;
    plan->carry = split(&plan->arena, options->carry);
    plan->home = arena_text(&plan->arena, str_of(options->home));
    plan->builder = options->builder ? arena_text(&plan->arena, str_of(options->builder)) : NULL;
    plan->build_flags =
        options->build_flags ? arena_text(&plan->arena, str_of(options->build_flags)) : NULL;
    plan->memory_bytes_max =
        request->memory_bytes_max ? request->memory_bytes_max : task->memory_bytes_max;
    plan->disk_bytes_max = request->disk_bytes_max ? request->disk_bytes_max : task->disk_bytes_max;
    plan->pids_max = first_of(request->pids_max, task->pids_max, 0);
    plan->cpu_millis = first_of(request->cpu_millis, task->cpu_millis, 0);
    plan->provision_tries_max = options->provision_tries_max;
    plan->log_bytes_max = options->log_bytes_max;
    plan->artifact_bytes_max = options->artifact_bytes_max;
    plan->fallback.memory_bytes_max = options->memory_bytes_max;
    plan->fallback.disk_bytes_max = options->disk_bytes_max;
    plan->fallback.pids_max = options->pids_max;
    plan->fallback.cpu_millis = options->cpu_millis;
    plan->limits.calls_max = options->calls_max;
    plan->limits.turns_max = plan->turns_max;
    plan->limits.in_flight_max = options->in_flight_max;
    plan->limits.body_bytes_max = options->body_bytes_max;
    plan->limits.answer_bytes_max = options->answer_bytes_max;
    plan->limits.record_bytes_max = options->record_bytes_max;
    plan->keepalive_ms = options->keepalive_ms;
    plan->retry_grace_ms = options->retry_grace_ms;
    plan->held_ms_max = options->held_ms_max;
    plan->pool = options->pool;
    plan->store = options->store;
    plan->realign_max = request->realign_max;
    plan->exact_prefix = request->exact_prefix != 0;
    plan->queued_wall_ms = clock_wall_ms();
    plan->queued_mono_ms = clock_mono_ms();
    plan->control = rollouts->loop;
    plan->events = options->events;
    return plan;
}
