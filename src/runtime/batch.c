/* batch.c - `postern run`: a batch of rollouts in this process, from the first sandbox to the last
 * result.
 *
 * What can be known to be wrong (agent, tasks, model, mode) is found before anything is built.
 * Rollouts are submitted task by task, each `each` times; siblings share a group. A file of lines
 * is read twice: once to know that all of it is well, and once as its turn comes, so that a set of
 * any size takes the memory of those under way. SIGINT and
 * SIGTERM cancel what is left, a second one hurries; every rollout still gets its one final event,
 * so the summary always adds up. */
#include "runtime/runtime.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/map.h"
#include "base/mem.h"
#include "runtime/internal.h"

#define TICK_MS 100
#define AHEAD_MAX 256 /* queued beyond those that may run */

struct batch;

struct row {
    struct batch *batch;
    size_t index;
    char id[ID_MAX];
    uint64_t started_mono_ms, stage_mono_ms;
    enum trace_stage stage;
};

/* Where tasks come from: those that are here, or a file of lines that is read as it is needed. */
struct feed {
    struct task **tasks;
    size_t count, at;
    struct task_source *source;
};

struct batch {
    const struct config *config;
    const struct runtime_batch *asked;
    const struct runtime_show *show;
    struct runtime_sum *sum;
    struct machine *machine;
    struct agent_spec *agent;
    struct model *model;
    struct feed *feeds; /* in the order asked for */
    size_t feed_at;
    struct task *task; /* whose rollouts are being submitted */
    size_t task_count;
    struct row *rows;
    struct map by_id;
    size_t total, submitted;
    size_t unkept;      /* submitted, but the journal did not take it: there is no such rollout */
    char group[ID_MAX]; /* of the task whose rollouts are being submitted */
    struct err err;     /* a submission that failed */
    struct rollout_watch watch;
    struct loop_timer tick;
    unsigned signals;
};

/* ---------------------------------------------------------------- showing */
static void on_event(void *context, const struct rollout_event *event)
{
    struct batch *batch = context;
    const struct rollout_view *view = event->view;
    struct row *row = map_get(&batch->by_id, str_of(view->id));
    if (!row)
        return;
    uint64_t now = clock_mono_ms();
    if (!row->started_mono_ms && view->started_ms)
        row->started_mono_ms = row->stage_mono_ms = now;
    if (row->stage != view->stage) {
        row->stage = view->stage;
        row->stage_mono_ms = now;
    }
    struct runtime_row shown = {
        .index = row->index,
        .id = view->id,
        .task = view->task,
        .stage = trace_stage_name(view->stage),
        .fate = view->final ? trace_fate_name(view->fate) : NULL,
        .error = view->error,
        .activity = view->activity,
        .final = event->kind == ROLLOUT_EVENT_FINAL,
        .rewarded = view->rewarded,
        .reward = view->reward,
        .calls = view->calls,
        .turns = view->turns,
        .wall_ms = row->started_mono_ms ? now - row->started_mono_ms : 0,
        .stage_ms = row->stage_mono_ms ? now - row->stage_mono_ms : 0,
        .result = view->result,
    };
    if (batch->show->on_row)
        batch->show->on_row(batch->show->context, &shown);
}

static void on_tick(struct loop_timer *timer)
{
    struct batch *batch = timer->context;
    if (batch->show->on_tick)
        batch->show->on_tick(batch->show->context);
    loop_timer_start(batch->machine->loop, &batch->tick, TICK_MS, on_tick, batch);
}

static void on_note(void *context, const char *text)
{
    struct batch *batch = context;
    if (batch->show->on_note)
        batch->show->on_note(batch->show->context, text);
}

/* ---------------------------------------------------------------- running */
static int submit_some(struct batch *batch, struct err *err);

/* Over when everything that was submitted came back and nothing more will be. */
static void maybe_over(struct batch *batch)
{
    bool all_submitted =
        batch->submitted == batch->total || batch->sum->cancelled || batch->err.kind;
    if (all_submitted && batch->sum->final + batch->unkept == batch->submitted)
        machine_close(batch->machine);
}

static void on_final(void *context, const struct rollout_view *view)
{
    struct row *row = context;
    struct batch *batch = row->batch;
    struct runtime_sum *sum = batch->sum;
    sum->final++;
    (void)map_remove(&batch->by_id, str_of(view->id));
    sum->failed += !trace_fate_may_reward(view->fate) && view->fate != TRACE_FATE_CANCELLED;
    if (view->rewarded) {
        sum->rewarded++;
        sum->reward_sum += view->reward;
    }
    if (!sum->cancelled && !batch->err.kind)
        (void)submit_some(batch, &batch->err); /* said at the end, when the others are back */
    maybe_over(batch);
}

static void on_stored(void *context, const struct err *err)
{
    struct row *row = context;
    struct batch *batch = row->batch;
    if (err->kind == ERR_NONE)
        return;
    (void)map_remove(&batch->by_id, str_of(row->id));
    batch->unkept++;
    if (batch->err.kind == ERR_NONE)
        batch->err = *err; /* no more are submitted; said when the others are back */
    maybe_over(batch);
}

static void on_signal(void *context, int number)
{
    struct batch *batch = context;
    (void)number;
    batch->signals++;
    batch->sum->cancelled = true;
    if (!batch->machine || batch->machine->closing)
        return;
    on_note(batch, batch->signals == 1 ? "cancelling; once more to hurry" : "hurrying");
    rollouts_cancel_all(batch->machine->rollouts, "cancelled by the user", batch->signals > 1);
    maybe_over(batch);
}

static int next_task(struct batch *batch, struct err *err)
{
    struct err why = {0};
    task_unref(TAKE(batch->task));
    for (; !batch->task && batch->feed_at < batch->asked->task_count; batch->feed_at++) {
        struct feed *feed = &batch->feeds[batch->feed_at];
        if (feed->source)
            batch->task = task_source_next(feed->source, &why);
        else if (feed->at < feed->count)
            batch->task = task_ref(feed->tasks[feed->at++]);
        if (why.kind != ERR_NONE)
            return err_copy(err, &why);
        if (batch->task)
            break; /* there may be more in this one */
    }
    return batch->task ? 0 : err_set(err, ERR_CONFLICT, "a file of tasks became shorter meanwhile");
}

static int submit_one(struct batch *batch, struct row *row, struct err *err)
{
    const struct runtime_batch *asked = batch->asked;
    const struct config *config = batch->config;
    uint32_t number = (uint32_t)(row->index % asked->each);
    if (number == 0) {
        id_make(batch->group, "g");
        if (next_task(batch, err) < 0)
            return -1;
    }
    struct task *task = batch->task;
    struct rollout_request request = {
        .agent = batch->agent,
        .task = task,
        .model = batch->model,
        .mode = asked->mode,
        .backend = config->sandbox_backend,
        .root = asked->root           ? asked->root
                : task_has_root(task) ? NULL
                                      : config->sandbox_root,
        .isolation = (int)config->sandbox_isolation,
        .run = asked->label,
        .group = batch->group,
        .index = number,
        .wall_ms_max = asked->wall_ms_max,
        .turns_max = asked->turns_max,
        .skip_permissions = asked->skip_permissions,
        .offline = asked->offline || config->rollout_offline,
        .exact_prefix = asked->exact_prefix,
        .sampling = asked->sampling ? str_of(asked->sampling) : STR_NONE,
        .on_stored = on_stored,
        .stored_context = row,
        .on_final = on_final,
        .context = row,
    };
    if (rollouts_submit(batch->machine->rollouts, &request, row->id, err) < 0)
        return -1;
    map_put(&batch->by_id, str_of(row->id), row);
    return 0;
}

/* Keeps the queue filled a little way ahead, so that a large batch starts at once and ends at once.
 */
static int submit_some(struct batch *batch, struct err *err)
{
    size_t queued_max = (size_t)batch->config->rollout_queued_max;
    size_t ahead = (size_t)batch->config->rollout_parallel_max +
                   (queued_max < AHEAD_MAX ? queued_max : AHEAD_MAX);
    while (batch->submitted < batch->total && batch->submitted - batch->sum->final < ahead) {
        struct row *row = &batch->rows[batch->submitted];
        *row = (struct row){.batch = batch, .index = batch->submitted, .stage = TRACE_QUEUED};
        if (submit_one(batch, row, err) < 0)
            return -1;
        batch->submitted++;
    }
    return 0;
}

static void tell_warnings(struct batch *batch, const struct task *task)
{
    for (const char *const *text = task->warnings; text && *text; text++)
        on_note(batch, *text);
}

/* All of a file is looked at before anything starts. */
static int look_through(struct feed *feed, const char *what, struct err *err)
{
    OWN(task_source) struct task_source *source = task_source_open(what, err);
    struct err why = {0};
    if (!source)
        return -1;
    for (struct task *task; (task = task_source_next(source, &why)); task_unref(task))
        feed->count++;
    if (why.kind != ERR_NONE)
        return err_copy(err, &why);
    if (!feed->count)
        return err_set(err, ERR_INPUT, "'%s' holds no task", what);
    feed->source = task_source_open(what, err);
    return feed->source ? 0 : -1;
}

static int load_feed(struct batch *batch, struct feed *feed, const char *what, struct err *err)
{
    struct str path = str_of(what);
    long hash = str_find(path, STR(".jsonl#"));
    bool lines = what[0] != '{' && (str_ends(path, STR(".jsonl")) || hash > 0);
    if (lines ? look_through(feed, what, err) < 0
              : task_load(what, &feed->tasks, &feed->count, err) < 0)
        return -1;
    for (size_t i = 0; !lines && i < feed->count; i++)
        tell_warnings(batch, feed->tasks[i]);
    batch->task_count += feed->count;
    return 0;
}

static void feeds_free(struct batch *batch)
{
    for (size_t i = 0; batch->feeds && i < batch->asked->task_count; i++) {
        if (batch->feeds[i].tasks)
            task_list_free(batch->feeds[i].tasks, batch->feeds[i].count);
        task_source_close(batch->feeds[i].source);
    }
    free(batch->feeds);
    task_unref(batch->task);
}

static int load(struct batch *batch, const struct config *config, struct err *err)
{
    const struct runtime_batch *asked = batch->asked;
    enum gateway_mode mode;
    if (asked->mode && gateway_mode_read(asked->mode, &mode, err) < 0)
        return -1;
    if (asked->mode && mode == GATEWAY_GATE)
        return err_set(err, ERR_UNSUPPORTED,
                       "mode gate needs a trainer that answers; there is none in a batch");
    batch->agent = agent_spec_load(asked->agent, machine_agent_dirs(), err);
    if (!batch->agent)
        return -1;
    batch->feeds = mem_zero((asked->task_count + 1) * sizeof *batch->feeds);
    for (size_t i = 0; i < asked->task_count; i++)
        if (load_feed(batch, &batch->feeds[i], asked->tasks[i], err) < 0)
            return -1;
    batch->model = machine_model(config, asked->model, asked->key_env, err);
    if (!batch->model)
        return -1;
    batch->total = batch->task_count * asked->each;
    batch->rows = mem_zero((batch->total + 1) * sizeof *batch->rows);
    return 0;
}

static int run(struct batch *batch, const struct config *config, struct err *err)
{
    struct machine_options options = {.on_signal = on_signal, .on_note = on_note, .context = batch};
    batch->machine = machine_open(config, &options, err);
    if (!batch->machine)
        return -1;
    machine_begin(batch->machine);
    batch->watch = (struct rollout_watch){.on_event = on_event, .context = batch};
    rollouts_watch(batch->machine->rollouts, &batch->watch);
    loop_timer_start(batch->machine->loop, &batch->tick, TICK_MS, on_tick, batch);
    if (batch->show->on_start)
        batch->show->on_start(batch->show->context, batch->total,
                              (uint32_t)config->rollout_parallel_max);
    (void)submit_some(batch, &batch->err);
    if (batch->err.kind)
        maybe_over(batch);
    loop_run(batch->machine->loop);
    loop_timer_stop(&batch->tick);
    machine_free(batch->machine);
    return batch->err.kind ? err_copy(err, &batch->err) : 0;
}

int runtime_run(const struct config *config, const struct runtime_batch *asked,
                const struct runtime_show *show, struct runtime_sum *sum, struct err *err)
{
    struct batch batch = {.config = config, .asked = asked, .show = show, .sum = sum};
    uint64_t began = clock_mono_ms();
    int result = load(&batch, config, err);
    if (result == 0) {
        sum->total = batch.total;
        result = run(&batch, config, err);
    }
    sum->wall_ms = clock_mono_ms() - began;
    feeds_free(&batch);
    model_unref(batch.model);
    agent_spec_unref(batch.agent);
    map_deinit(&batch.by_id);
    free(batch.rows);
    return result;
}
