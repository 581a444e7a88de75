/* rollouts.c - the manager: a bounded queue, a cap on how many run at once, and what everybody may
 * see.
 *
 *     submit -> [queue] -> dispatch (fewest on a lane) -> life on that lane -> report ... report ->
 * final
 *
 * All of it is on the control loop. A life is reached by posting to its lane and answers by posting
 * reports here; a plan is what both sides hold. An entry exists from submit until `kept_max` others
 * finished after it. The index gets a row when a rollout is accepted, when it starts and when it is
 * over. */
#include "rollout/rollout.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/map.h"
#include "base/mem.h"
#include "json/json.h"
#include "rollout/internal.h"

struct entry {
    struct rollouts *rollouts;
    struct list link;       /* in `all`, oldest first */
    struct list queue_link; /* while queued */
    struct plan *plan;
    struct rollout_view view;
    size_t lane;
    bool dispatched;
    char activity[96];
    char error[ERR_TEXT_MAX];
    char *result;
    int64_t prompt_tokens, completion_tokens;
    void (*on_final)(void *context, const struct rollout_view *view);
    void *context;
};

struct rollouts {
    struct loop *loop;
    struct arena arena;
    struct rollouts_options options;
    struct rollout_lane *lanes;
    size_t *lane_load;
    struct map by_id;
    struct list all, queue, watches;
    struct rollout_counts counts;
    size_t kept; /* finished entries in `all` */
    bool closing, gone;
    void (*on_closed)(void *context);
    void *close_context;
};

/* ---------------------------------------------------------------- plans */
struct plan *plan_ref(struct plan *plan)
{
    atomic_fetch_add(&plan->references, 1);
    return plan;
}

void plan_unref(struct plan *plan)
{
    if (!plan || atomic_fetch_sub(&plan->references, 1) != 1)
        return;
    agent_spec_unref(plan->agent);
    task_unref(plan->task);
    model_unref(plan->model);
    arena_deinit(&plan->arena);
    free(plan);
}

static uint32_t first_of(uint32_t a, uint32_t b, uint32_t c)
{
    return a ? a : b ? b : c;
}

/* The request's tools and the task's, as one list. */
static char *join_tools(const struct rollout_request *request)
{
    struct str own = request->task->tool_definitions, more = str_trim(request->tools);
    if (!own.size || more.size < 2)
        return own.size ? str_dup(own) : more.size ? str_dup(more) : NULL;
    struct str inside = str_trim(str_make(more.data + 1, more.size - 2));
    return mem_format("%.*s%s%.*s]", (int)own.size - 1, own.data, inside.size ? "," : "",
                      STR_ARGS(inside));
}

/* Agent, task and tools go together, or it is said before any work. */
static int fit(struct rollouts *rollouts, const struct rollout_request *request, const char *tools,
               struct gateway_tools_facts *facts, struct err *err)
{
    struct gateway *gateway = rollouts->lanes[0].gateway;
    if (tools && gateway_tools_fit(gateway, str_of(tools), facts, err) < 0)
        return err_wrap(err, "task '%s'", request->task->name);
    struct agent_wants wants = {.tools = facts->functions};
    return agent_spec_fit(request->agent, &wants, err);
}

static struct plan *plan_new(struct rollouts *rollouts, const struct rollout_request *request,
                             const char *mode)
{
    struct rollouts_options *options = &rollouts->options;
    struct task *task = request->task;
    struct plan *plan = mem_zero(sizeof *plan);
    atomic_init(&plan->references, 1);
    id_make(plan->id, "r");
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
    plan->turns_max = first_of(request->turns_max, task->turns_max, 0);
    plan->offline = request->offline;
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
    plan->keepalive_ms = options->keepalive_ms;
    plan->retry_grace_ms = options->retry_grace_ms;
    plan->held_ms_max = options->held_ms_max;
    plan->pool = options->pool;
    plan->store = options->store;
    plan->realign_max = request->realign_max;
    plan->queued_wall_ms = clock_wall_ms();
    plan->queued_mono_ms = clock_mono_ms();
    plan->control = rollouts->loop;
    return plan;
}

/* ---------------------------------------------------------------- telling */
static void publish(struct entry *entry, enum rollout_event_kind kind)
{
    struct rollout_event event = {.kind = kind, .view = &entry->view};
    struct rollouts *rollouts = entry->rollouts;
    /* A watch may stop itself and others from inside, so the walk starts over from a marker. */
    struct rollout_watch marker = {0};
    list_prepend(&rollouts->watches, &marker.node);
    while (marker.node.next != &rollouts->watches) {
        struct rollout_watch *watch = LIST_OF(marker.node.next, struct rollout_watch, node);
        list_remove(&marker.node);
        list_append(watch->node.next, &marker.node); /* just behind it */
        if (watch->on_event)
            watch->on_event(watch->context, &event);
    }
    list_remove(&marker.node);
}

static void put_row(struct entry *entry)
{
    const struct rollout_view *view = &entry->view;
    if (!entry->rollouts->options.store)
        return;
    struct store_rollout row = {
        .id = view->id,
        .run = view->run[0] ? view->run : NULL,
        .group = view->group[0] ? view->group : NULL,
        .task = view->task,
        .agent = view->agent,
        .model = view->model,
        .mode = view->mode,
        .backend = view->backend,
        .stage = trace_stage_name(view->stage),
        .fate = view->final ? trace_fate_name(view->fate) : NULL,
        .error = view->error[0] ? view->error : NULL,
        .dir = entry->plan->dir,
        .index = entry->plan->index,
        .has_reward = view->rewarded,
        .reward = view->reward,
        .calls = view->calls,
        .turns = view->turns,
        .prompt_tokens = entry->prompt_tokens,
        .completion_tokens = entry->completion_tokens,
        .queued_ms = view->queued_ms,
        .started_ms = view->started_ms,
        .done_ms = view->done_ms,
    };
    struct err err = {0};
    if (store_put_rollout(entry->rollouts->options.store, NULL, &row, NULL, NULL, &err) < 0)
        LOG_WARN("rollout", view->id, "the index has no row for it: %s", err.text);
}

/* ---------------------------------------------------------------- entries */
static void entry_free(struct entry *entry)
{
    struct rollouts *rollouts = entry->rollouts;
    map_remove(&rollouts->by_id, str_of(entry->plan->id));
    list_remove(&entry->link);
    plan_unref(entry->plan);
    free(entry->result);
    free(entry);
}

static void forget_old(struct rollouts *rollouts)
{
    LIST_EACH (at, &rollouts->all) {
        if (rollouts->kept <= rollouts->options.kept_max)
            return;
        struct entry *entry = LIST_OF(at, struct entry, link);
        if (!entry->view.final)
            continue;
        rollouts->kept--;
        entry_free(entry);
    }
}

static struct entry *entry_new(struct rollouts *rollouts, struct plan *plan,
                               const struct rollout_request *request)
{
    struct entry *entry = mem_zero(sizeof *entry);
    entry->rollouts = rollouts;
    entry->plan = plan;
    entry->on_final = request->on_final;
    entry->context = request->context;
    entry->prompt_tokens = entry->completion_tokens = -1;
    entry->view = (struct rollout_view){
        .id = plan->id,
        .group = plan->group,
        .run = plan->run,
        .task = plan->task->name,
        .agent = agent_spec_name(plan->agent),
        .model = model_name(plan->model),
        .mode = plan->mode,
        .backend = plan->backend,
        .stage = TRACE_QUEUED,
        .error = entry->error,
        .activity = entry->activity,
        .queued_ms = plan->queued_wall_ms,
    };
    plan->entry = entry;
    list_append(&rollouts->all, &entry->link);
    map_put(&rollouts->by_id, str_of(plan->id), entry);
    return entry;
}

/* ---------------------------------------------------------------- dispatch */
static size_t emptiest_lane(const struct rollouts *rollouts)
{
    size_t best = 0;
    for (size_t i = 1; i < rollouts->options.lane_count; i++)
        if (rollouts->lane_load[i] < rollouts->lane_load[best])
            best = i;
    return best;
}

static void dispatch_one(struct rollouts *rollouts, struct entry *entry)
{
    list_remove(&entry->queue_link);
    rollouts->counts.queued--;
    rollouts->counts.running++;
    entry->lane = emptiest_lane(rollouts);
    rollouts->lane_load[entry->lane]++;
    entry->dispatched = true;
    entry->view.started_ms = clock_wall_ms();
    entry->plan->lane = rollouts->lanes[entry->lane];
    loop_post(entry->plan->lane.loop, life_begin, plan_ref(entry->plan));
}

static void dispatch(struct rollouts *rollouts)
{
    while (!list_empty(&rollouts->queue) &&
           rollouts->counts.running < rollouts->options.parallel_max)
        dispatch_one(rollouts, LIST_OF(rollouts->queue.next, struct entry, queue_link));
}

/* ---------------------------------------------------------------- reports */
static void close_now(void *argument)
{
    struct rollouts *rollouts = argument;
    void (*on_closed)(void *) = rollouts->on_closed;
    void *context = rollouts->close_context;
    LIST_EACH (at, &rollouts->all)
        entry_free(LIST_OF(at, struct entry, link));
    map_deinit(&rollouts->by_id);
    arena_deinit(&rollouts->arena);
    free(rollouts);
    if (on_closed)
        on_closed(context);
}

/* Once, when the last has had its final event; the memory stays until this tick is over. */
static void maybe_closed(struct rollouts *rollouts)
{
    if (!rollouts->closing || rollouts->gone || rollouts->counts.running || rollouts->counts.queued)
        return;
    rollouts->gone = true;
    loop_defer(rollouts->loop, close_now, rollouts);
}

static void take_final(struct entry *entry, struct report *report)
{
    struct rollouts *rollouts = entry->rollouts;
    struct rollout_view *view = &entry->view;
    view->final = true;
    view->fate = report->fate;
    view->failed_stage = report->failed_stage;
    memcpy(entry->error, report->error, sizeof entry->error);
    view->rewarded = report->rewarded;
    view->reward = report->reward;
    view->done_ms = clock_wall_ms();
    entry->prompt_tokens = report->prompt_tokens;
    entry->completion_tokens = report->completion_tokens;
    entry->result = TAKE(report->result);
    view->result = entry->result;
    rollouts->counts.running--;
    rollouts->counts.finished++;
    rollouts->counts.by_fate[report->fate]++;
    rollouts->lane_load[entry->lane]--;
    rollouts->kept++;
    LOG_INFO("rollout", view->id, "%s%s%s", trace_fate_name(view->fate), view->error[0] ? ": " : "",
             view->error);
    put_row(entry);
    dispatch(rollouts); /* first, so that who hears of the end finds room in the queue */
    publish(entry, ROLLOUT_EVENT_FINAL);
    if (entry->on_final)
        entry->on_final(entry->context, view);
    forget_old(rollouts);
    maybe_closed(rollouts);
}

void rollouts_report(void *argument)
{
    struct report *report = argument;
    struct entry *entry = report->plan->entry;
    struct rollout_view *view = &entry->view;
    CHECK(!view->final);
    bool started = view->stage == TRACE_QUEUED && report->stage != TRACE_QUEUED;
    view->stage = report->stage;
    view->calls = report->calls;
    view->turns = report->turns;
    view->tries = report->tries;
    memcpy(view->stage_ms, report->stage_ms, sizeof view->stage_ms);
    memcpy(entry->activity, report->activity, sizeof entry->activity);
    switch (report->kind) {
    case REPORT_STAGE:
        if (started)
            put_row(entry);
        publish(entry, ROLLOUT_EVENT_STAGE);
        break;
    case REPORT_ACTIVITY:
        publish(entry, ROLLOUT_EVENT_ACTIVITY);
        break;
    case REPORT_FINAL:
        take_final(entry, report);
        break;
    }
    plan_unref(report->plan);
    free(report->result);
    free(report);
}

/* ---------------------------------------------------------------- the door */
struct rollouts *rollouts_new(struct loop *loop, const struct rollouts_options *options,
                              struct err *err)
{
    OWN(mem) char *dir = mem_format("%s/rollouts", options->home);
    if (file_make_dirs(dir, 0755, err) < 0)
        return NULL;
    struct rollouts *rollouts = mem_zero(sizeof *rollouts);
    struct rollouts_options *own = &rollouts->options;
    rollouts->loop = loop;
    *own = *options;
    OWN(mem) char *home = realpath(options->home, NULL);
    own->home = arena_text(&rollouts->arena, str_of(home ? home : options->home));
    own->owner = options->owner ? arena_text(&rollouts->arena, str_of(options->owner)) : NULL;
    own->parallel_max = first_of(options->parallel_max, 64, 0);
    own->queued_max = first_of(options->queued_max, 100000, 0);
    own->provision_tries_max = first_of(options->provision_tries_max, 3, 0);
    own->wall_ms_max = first_of(options->wall_ms_max, 30 * 60000, 0);
    own->setup_ms_max = first_of(options->setup_ms_max, 10 * 60000, 0);
    own->verify_ms_max = first_of(options->verify_ms_max, 10 * 60000, 0);
    own->kept_max = first_of(options->kept_max, 1000, 0);
    own->log_bytes_max = options->log_bytes_max ? options->log_bytes_max : 16u << 20;
    own->artifact_bytes_max = options->artifact_bytes_max ? options->artifact_bytes_max : 64u << 20;
    CHECK(options->lane_count > 0);
    rollouts->lanes = arena_alloc(&rollouts->arena, options->lane_count * sizeof *rollouts->lanes);
    memcpy(rollouts->lanes, options->lanes, options->lane_count * sizeof *rollouts->lanes);
    rollouts->lane_load =
        arena_alloc(&rollouts->arena, options->lane_count * sizeof *rollouts->lane_load);
    list_init(&rollouts->all);
    list_init(&rollouts->queue);
    list_init(&rollouts->watches);
    return rollouts;
}

void rollouts_close(struct rollouts *rollouts, void (*on_closed)(void *context), void *context)
{
    rollouts->closing = true;
    rollouts->on_closed = on_closed;
    rollouts->close_context = context;
    rollouts_cancel_all(rollouts, "the server is closing", false);
    maybe_closed(rollouts);
}

/* The folder says who looks after the rollout, so that a later start can tell the dead from the
 * living. */
static int make_folder(struct rollouts *rollouts, struct plan *plan, struct err *err)
{
    if (file_make_dirs(plan->dir, 0755, err) < 0)
        return -1;
    if (!rollouts->options.owner)
        return 0;
    OWN(mem) char *path = mem_format("%s/owner", plan->dir);
    return file_write(path, str_of(rollouts->options.owner), 0644, false, err);
}

int rollouts_submit(struct rollouts *rollouts, const struct rollout_request *request,
                    char id[ID_MAX], struct err *err)
{
    enum gateway_mode mode = GATEWAY_BLACK_BOX;
    if (rollouts->closing)
        return err_set(err, ERR_CANCELLED, "no more rollouts are taken: the server is closing");
    if (rollouts->counts.queued >= rollouts->options.queued_max)
        return err_set(err, ERR_CAPACITY, "%u rollouts are queued already",
                       rollouts->options.queued_max);
    if (request->mode && gateway_mode_read(request->mode, &mode, err) < 0)
        return -1;
    if (gateway_mode_fits(mode, request->model, err) < 0)
        return -1;
    struct gateway_sampling sampling = {0};
    if (request->sampling.size &&
        gateway_sampling_read(request->sampling, mode, &sampling, err) < 0)
        return -1;
    OWN(mem) char *bundle = NULL;
    if (agent_spec_has_bundle(request->agent) &&
        !(bundle = agent_bundle_layer(request->agent, rollouts->options.home, err)))
        return -1;
    OWN(mem) char *tools = join_tools(request);
    struct gateway_tools_facts facts = {0};
    if (fit(rollouts, request, tools, &facts, err) < 0)
        return -1;
    struct plan *plan = plan_new(rollouts, request, gateway_mode_name(mode));
    plan->sampling = sampling;
    plan->tools = tools ? arena_str(&plan->arena, str_of(tools)) : STR_NONE;
    plan->tool_facts = facts;
    plan->bundle = bundle ? arena_text(&plan->arena, str_of(bundle)) : NULL;
    if (make_folder(rollouts, plan, err) < 0) {
        plan_unref(plan);
        return -1;
    }
    struct entry *entry = entry_new(rollouts, plan, request);
    list_append(&rollouts->queue, &entry->queue_link);
    rollouts->counts.queued++;
    memcpy(id, plan->id, ID_MAX);
    put_row(entry);
    dispatch(rollouts);
    return 0;
}

static void cancel_entry(struct entry *entry, const char *why, bool hurry)
{
    if (!entry->dispatched) {
        err_set(&entry->plan->refused, ERR_CANCELLED, "%s", why);
        dispatch_one(entry->rollouts, entry);
        return;
    }
    struct life_order *order = mem_zero(sizeof *order);
    order->plan = plan_ref(entry->plan);
    order->hurry = hurry;
    snprintf(order->why, sizeof order->why, "%s", why);
    loop_post(entry->plan->lane.loop, life_cancel, order);
}

static struct entry *find(struct rollouts *rollouts, const char *id)
{
    struct entry *entry = map_get(&rollouts->by_id, str_of(id));
    if (entry || strlen(id) < 3)
        return entry;
    LIST_EACH (at, &rollouts->all) {
        struct entry *candidate = LIST_OF(at, struct entry, link);
        if (!str_starts(str_of(candidate->plan->id), str_of(id)))
            continue;
        if (entry)
            return NULL;
        entry = candidate;
    }
    return entry;
}

int rollouts_cancel(struct rollouts *rollouts, const char *id, const char *why, struct err *err)
{
    struct entry *entry = find(rollouts, id);
    if (!entry)
        return err_set(err, ERR_NOT_FOUND, "there is no rollout '%s'", id);
    if (entry->view.final)
        return err_set(err, ERR_CONFLICT, "rollout '%s' is over: %s", entry->plan->id,
                       trace_fate_name(entry->view.fate));
    cancel_entry(entry, why, false);
    return 0;
}

void rollouts_cancel_all(struct rollouts *rollouts, const char *why, bool hurry)
{
    LIST_EACH (at, &rollouts->all) {
        struct entry *entry = LIST_OF(at, struct entry, link);
        if (!entry->view.final)
            cancel_entry(entry, why, hurry);
    }
}

bool rollouts_view(struct rollouts *rollouts, const char *id, struct rollout_view *view)
{
    struct entry *entry = find(rollouts, id);
    if (entry)
        *view = entry->view;
    return entry != NULL;
}

void rollouts_each(struct rollouts *rollouts,
                   bool (*each)(void *context, const struct rollout_view *view), void *context)
{
    LIST_EACH (at, &rollouts->all)
        if (!each(context, &LIST_OF(at, struct entry, link)->view))
            return;
}

struct rollout_counts rollouts_counts(const struct rollouts *rollouts)
{
    return rollouts->counts;
}

void rollouts_watch(struct rollouts *rollouts, struct rollout_watch *watch)
{
    list_append(&rollouts->watches, &watch->node);
}

void rollouts_unwatch(struct rollout_watch *watch)
{
    list_remove(&watch->node);
}

void rollout_view_write(const struct rollout_view *view, struct json_writer *out)
{
    json_begin_object(out);
    json_set_text(out, "id", view->id);
    json_set_text(out, "run", view->run[0] ? view->run : NULL);
    json_set_text(out, "group", view->group[0] ? view->group : NULL);
    json_set_text(out, "task", view->task);
    json_set_text(out, "agent", view->agent);
    json_set_text(out, "model", view->model);
    json_set_text(out, "mode", view->mode);
    json_set_text(out, "backend", view->backend);
    json_set_text(out, "stage", trace_stage_name(view->stage));
    json_set_text(out, "class", view->final ? trace_fate_name(view->fate) : NULL);
    json_set_text(out, "cause", view->error[0] ? view->error : NULL);
    json_key(out, "reward");
    if (view->rewarded)
        json_put_double(out, view->reward);
    else
        json_put_null(out);
    json_set_int(out, "calls", view->calls);
    json_set_int(out, "turns", view->turns);
    json_set_int(out, "tries", view->tries);
    json_set_text(out, "activity", view->activity[0] ? view->activity : NULL);
    json_set_int(out, "queued_ms", (long long)view->queued_ms);
    json_set_int(out, "started_ms", (long long)view->started_ms);
    json_set_int(out, "done_ms", (long long)view->done_ms);
    json_end_object(out);
}
