/* rollouts.c - the manager: a bounded queue, a cap on how many run at once, and what everybody may
 * see.
 *
 *     submit -> admission -> start (fewest on a lane) -> life on that lane -> report ... report ->
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
#include "base/mem.h"
#include "json/json.h"
#include "rollout/manager.h"

/* ---------------------------------------------------------------- telling */
static void publish_line(struct entry *entry, enum rollout_event_kind kind, const char *log_kind,
                         struct str line)
{
    struct rollout_event event = {
        .kind = kind, .view = &entry->view, .log_kind = log_kind, .line = line};
    struct rollouts *rollouts = entry->rollouts;
    if (entry->preparation)
        return;
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

static void publish(struct entry *entry, enum rollout_event_kind kind)
{
    publish_line(entry, kind, NULL, STR_NONE);
}

/* Who asked is told later, also when there is no index. */
struct stored {
    void (*on_stored)(void *context, const struct err *err);
    void *context;
};

static void tell_stored(void *argument)
{
    struct stored *stored = argument;
    struct err none = {0};
    stored->on_stored(stored->context, &none);
    free(stored);
}

int rollouts_put_row(struct entry *entry, void (*on_stored)(void *context, const struct err *err),
                     void *context, struct err *err)
{
    const struct rollout_view *view = &entry->view;
    struct rollouts *rollouts = entry->rollouts;
    if (!rollouts->options.store) {
        if (on_stored) {
            struct stored *stored = mem_alloc(sizeof *stored);
            *stored = (struct stored){on_stored, context};
            loop_post(rollouts->loop, tell_stored, stored);
        }
        return 0;
    }
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
        .reason = view->reason[0] ? view->reason : NULL,
        .key = entry->key,
        .key_hash = entry->key_hash,
        .callback = entry->callback,
        .callback_state = !entry->callback ? NULL
                          : view->final    ? "pending"
                                           : "waiting",
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
        .has_policy = view->has_policy,
        .policy_version = view->policy_version,
        .bytes = entry->bytes,
    };
    return store_put_rollout(rollouts->options.store, on_stored ? rollouts->loop : NULL, &row,
                             on_stored, context, err);
}

static void put_row(struct entry *entry)
{
    struct err err = {0};
    if (rollouts_put_row(entry, NULL, NULL, &err) < 0)
        LOG_WARN("rollout", entry->plan->id, "the index has no row for it: %s", err.text);
}

/* ---------------------------------------------------------------- entries */
void entry_free(struct entry *entry)
{
    struct rollouts *rollouts = entry->rollouts;
    if (!entry->preparation)
        map_remove(&rollouts->by_id, str_of(entry->plan->id));
    loop_timer_stop(&entry->queue_deadline);
    list_remove(&entry->link);
    list_remove(&entry->group_link);
    plan_unref(entry->plan);
    free(entry->result);
    free(entry);
}

static void forget_old(struct rollouts *rollouts)
{
    while (rollouts->kept > rollouts->options.kept_max) {
        rollouts->kept--;
        entry_free(LIST_OF(rollouts->finished.next, struct entry, link));
    }
}

static const char *keep(struct plan *plan, const char *text)
{
    return text ? arena_text(&plan->arena, str_of(text)) : NULL;
}

struct entry *entry_new(struct rollouts *rollouts, struct plan *plan,
                        const struct rollout_request *request, bool preparation)
{
    struct entry *entry = mem_zero(sizeof *entry);
    entry->rollouts = rollouts;
    entry->plan = plan;
    entry->preparation = preparation;
    entry->priority = request->priority;
    entry->queue_ms_max = request->queue_ms_max;
    entry->prompt_tokens = entry->completion_tokens = -1;
    if (!preparation) {
        entry->on_final = request->on_final;
        entry->context = request->context;
        entry->key = keep(plan, request->key);
        entry->key_hash = keep(plan, request->key_hash);
        entry->callback = keep(plan, request->callback);
    }
    plan->has_policy = request->has_policy;
    plan->policy_version = request->policy_version;
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
        .reason = entry->reason,
        .index = plan->index,
        .priority = entry->priority,
        .has_policy = plan->has_policy,
        .policy_version = plan->policy_version,
        .dir = plan->dir,
        .callback = entry->callback,
        .activity = entry->activity,
        .queued_ms = plan->queued_wall_ms,
    };
    plan->entry = entry;
    list_append(&rollouts->live, &entry->link);
    if (!preparation)
        map_put(&rollouts->by_id, str_of(plan->id), entry);
    rollouts->counts.queued++;
    return entry;
}

/* ---------------------------------------------------------------- starting */
static size_t emptiest_lane(const struct rollouts *rollouts)
{
    size_t best = 0;
    for (size_t i = 1; i < rollouts->options.lane_count; i++)
        if (rollouts->lane_load[i] < rollouts->lane_load[best])
            best = i;
    return best;
}

void rollouts_start(struct entry *entry)
{
    struct rollouts *rollouts = entry->rollouts;
    loop_timer_stop(&entry->queue_deadline);
    rollouts->counts.queued--;
    rollouts->counts.running++;
    entry->lane = emptiest_lane(rollouts);
    rollouts->lane_load[entry->lane]++;
    entry->dispatched = true;
    entry->view.started_ms = clock_wall_ms();
    entry->plan->lane = rollouts->lanes[entry->lane];
    loop_post(entry->plan->lane.loop, life_begin, plan_ref(entry->plan));
}

void entry_refuse(struct entry *entry, enum trace_fate fate, const char *reason, const char *why)
{
    struct plan *plan = entry->plan;
    if (entry->dispatched)
        return;
    err_set(&plan->refused,
            fate == TRACE_FATE_CANCELLED      ? ERR_CANCELLED
            : fate == TRACE_FATE_SETUP_FAILED ? ERR_INPUT
                                              : ERR_SYSTEM,
            "%s", why);
    plan->refused_fate = fate;
    snprintf(plan->refused_reason, sizeof plan->refused_reason, "%s", reason);
    if (entry->submission)
        return; /* when it is in the journal, or never */
    admission_remove(entry);
    rollouts_start(entry);
}

void entry_cancel(struct entry *entry, const char *reason, const char *why, bool hurry)
{
    if (!entry->dispatched) {
        entry_refuse(entry, TRACE_FATE_CANCELLED, reason, why);
        return;
    }
    struct life_order *order = mem_zero(sizeof *order);
    order->plan = plan_ref(entry->plan);
    order->hurry = hurry;
    snprintf(order->why, sizeof order->why, "%s", why);
    snprintf(order->reason, sizeof order->reason, "%s", reason);
    loop_post(entry->plan->lane.loop, life_cancel, order);
}

/* ---------------------------------------------------------------- reports */
static void close_now(void *argument)
{
    struct rollouts *rollouts = argument;
    void (*on_closed)(void *) = rollouts->on_closed;
    void *context = rollouts->close_context;
    LIST_EACH (at, &rollouts->live)
        entry_free(LIST_OF(at, struct entry, link));
    LIST_EACH (at, &rollouts->finished)
        entry_free(LIST_OF(at, struct entry, link));
    admission_deinit(rollouts);
    groups_deinit(rollouts);
    map_deinit(&rollouts->by_id);
    arena_deinit(&rollouts->arena);
    free(rollouts);
    if (on_closed)
        on_closed(context);
}

/* Once, when the last has had its final event; the memory stays until this tick is over. */
void rollouts_maybe_closed(struct rollouts *rollouts)
{
    const struct rollout_counts *counts = &rollouts->counts;
    if (!rollouts->closing || rollouts->gone || counts->running || counts->queued || counts->ending)
        return;
    rollouts->gone = true;
    loop_defer(rollouts->loop, close_now, rollouts);
}

static void preparation_over(struct entry *entry, struct report *report)
{
    struct rollouts *rollouts = entry->rollouts;
    group_prepared(entry, report);
    entry_free(entry);
    admission_run(rollouts);
    rollouts_maybe_closed(rollouts);
}

/* The row is kept (or cannot be, which is logged): now everybody may know. */
static void on_final_stored(void *context, const struct err *err)
{
    struct entry *entry = context;
    struct rollouts *rollouts = entry->rollouts;
    struct rollout_view *view = &entry->view;
    if (err->kind != ERR_NONE)
        LOG_WARN("rollout", view->id, "its end is not in the index: %s", err->text);
    view->final = true;
    rollouts->counts.ending--;
    rollouts->counts.finished++;
    rollouts->counts.by_fate[view->fate]++;
    rollouts->counts.stale += strcmp(entry->reason, "stale") == 0;
    list_remove(&entry->link);
    list_append(&rollouts->finished, &entry->link);
    rollouts->kept++;
    LOG_INFO("rollout", view->id, "%s%s%s", trace_fate_name(view->fate), view->error[0] ? ": " : "",
             view->error);
    group_leave(entry);
    publish(entry, ROLLOUT_EVENT_FINAL);
    if (entry->on_final)
        entry->on_final(entry->context, view);
    forget_old(rollouts);
    rollouts_maybe_closed(rollouts);
}

static void take_final(struct entry *entry, struct report *report)
{
    struct rollouts *rollouts = entry->rollouts;
    struct rollout_view *view = &entry->view;
    struct err err = {0};
    rollouts->counts.running--;
    rollouts->lane_load[entry->lane]--;
    if (entry->preparation) {
        preparation_over(entry, report);
        return;
    }
    view->fate = report->fate;
    view->failed_stage = report->failed_stage;
    memcpy(entry->error, report->error, sizeof entry->error);
    memcpy(entry->reason, report->reason, sizeof entry->reason);
    view->rewarded = report->rewarded;
    view->reward = report->reward;
    view->done_ms = clock_wall_ms();
    entry->prompt_tokens = report->prompt_tokens;
    entry->completion_tokens = report->completion_tokens;
    entry->bytes = report->bytes;
    entry->result = TAKE(report->result);
    view->result = entry->result;
    rollouts->counts.ending++;
    entry->ending = true;
    admission_over(entry);
    /* Who is told of an end finds it in every list, and after a crash. */
    view->final = true;
    int result = rollouts_put_row(entry, on_final_stored, entry, &err);
    view->final = false;
    admission_run(rollouts);
    if (result < 0)
        on_final_stored(entry, &err);
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
        if (started && !entry->preparation)
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
    shared_unref(report->shared);
    free(report->result);
    free(report);
}

void rollouts_report_line(void *argument)
{
    struct report_line *report = argument;
    struct entry *entry = report->plan->entry;
    publish_line(entry, ROLLOUT_EVENT_LOG, report->kind, buf_str(&report->line));
    plan_unref(report->plan);
    buf_deinit(&report->line);
    free(report);
}

/* ---------------------------------------------------------------- the door */
static uint32_t or_else(uint32_t value, uint32_t fallback)
{
    return value ? value : fallback;
}

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
    own->builder = options->builder ? arena_text(&rollouts->arena, str_of(options->builder)) : NULL;
    own->build_flags =
        options->build_flags ? arena_text(&rollouts->arena, str_of(options->build_flags)) : NULL;
    own->carry = options->carry ? arena_text(&rollouts->arena, str_of(options->carry)) : NULL;
    own->owner = options->owner ? arena_text(&rollouts->arena, str_of(options->owner)) : NULL;
    own->parallel_max = or_else(options->parallel_max, 64);
    own->queued_max = or_else(options->queued_max, 100000);
    own->provision_tries_max = or_else(options->provision_tries_max, 3);
    own->wall_ms_max = or_else(options->wall_ms_max, 30 * 60000);
    own->setup_ms_max = or_else(options->setup_ms_max, 10 * 60000);
    own->verify_ms_max = or_else(options->verify_ms_max, 10 * 60000);
    own->kept_max = or_else(options->kept_max, 1000);
    own->log_bytes_max = options->log_bytes_max ? options->log_bytes_max : 16u << 20;
    own->artifact_bytes_max = options->artifact_bytes_max ? options->artifact_bytes_max : 64u << 20;
    CHECK(options->lane_count > 0);
    rollouts->lanes = arena_alloc(&rollouts->arena, options->lane_count * sizeof *rollouts->lanes);
    memcpy(rollouts->lanes, options->lanes, options->lane_count * sizeof *rollouts->lanes);
    rollouts->lane_load =
        arena_alloc(&rollouts->arena, options->lane_count * sizeof *rollouts->lane_load);
    list_init(&rollouts->live);
    list_init(&rollouts->finished);
    list_init(&rollouts->watches);
    admission_init(rollouts);
    return rollouts;
}

void rollouts_close(struct rollouts *rollouts, void (*on_closed)(void *context), void *context)
{
    rollouts->closing = true;
    rollouts->on_closed = on_closed;
    rollouts->close_context = context;
    rollouts_cancel_all(rollouts, "the server is closing", false);
    rollouts_maybe_closed(rollouts);
}

/* The folder says who looks after the rollout, so that a later start can tell the dead from the
 * living. */
int rollouts_make_folder(struct rollouts *rollouts, struct plan *plan, struct err *err)
{
    if (file_make_dirs(plan->dir, 0755, err) < 0)
        return -1;
    if (!rollouts->options.owner)
        return 0;
    OWN(mem) char *path = mem_format("%s/owner", plan->dir);
    return file_write(path, str_of(rollouts->options.owner), 0644, false, err);
}

int rollouts_room(struct rollouts *rollouts, size_t count, struct err *err)
{
    if (rollouts->closing || rollouts->draining)
        return err_set(err, ERR_CAPACITY, "no more rollouts are taken: the server is stopping");
    if (rollouts->counts.queued + count > rollouts->options.queued_max)
        return err_set(err, ERR_CAPACITY, "%zu rollouts are queued already; %u may be",
                       rollouts->counts.queued, rollouts->options.queued_max);
    return 0;
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
    const struct task *task = request->task;
    struct agent_wants wants = {
        .tools = facts->functions,
        .turns = task->turns != NULL,
        .root = task->root || agent_spec_wants_root(request->agent),
        .memory_bytes =
            request->memory_bytes_max ? request->memory_bytes_max : task->memory_bytes_max,
    };
    return agent_spec_fit(request->agent, &wants, err);
}

/* What can be known of a request before anything is made. */
struct checked {
    enum gateway_mode mode;
    struct gateway_sampling sampling;
    struct gateway_tools_facts facts;
    char *bundle, *tools; /* heap; NULL: none */
};

static void own_checked(struct checked *checked)
{
    free(checked->bundle);
    free(checked->tools);
}

static int check(struct rollouts *rollouts, const struct rollout_request *request,
                 struct checked *out, struct err *err)
{
    if (request->mode && gateway_mode_read(request->mode, &out->mode, err) < 0)
        return err_at(err, "mode");
    if (gateway_mode_fits(out->mode, request->model, err) < 0)
        return err_at(err, "model");
    if (request->exact_prefix && out->mode == GATEWAY_BLACK_BOX) {
        err_set(err, ERR_INPUT, "exact prefixes need mode proxy or gate, where tokens are known");
        return err_at(err, "exact_prefix");
    }
    if (request->sampling.size &&
        gateway_sampling_read(request->sampling, out->mode, &out->sampling, err) < 0)
        return err_at(err, "sampling");
    if (agent_spec_has_bundle(request->agent) &&
        !(out->bundle = agent_bundle_layer(request->agent, rollouts->options.home, err)))
        return err_at(err, "agent");
    out->tools = join_tools(request);
    if (fit(rollouts, request, out->tools, &out->facts, err) < 0)
        return err_at(err, request->tools.size ? "tools" : "agent");
    return 0;
}

int rollouts_check(struct rollouts *rollouts, const struct rollout_request *request,
                   struct err *err)
{
    OWN(checked) struct checked checked = {.mode = GATEWAY_BLACK_BOX};
    return check(rollouts, request, &checked, err);
}

static struct entry *take_as(struct rollouts *rollouts, const struct rollout_request *request,
                             const char *id, const struct rollout_left *left, struct err *err)
{
    OWN(checked) struct checked checked = {.mode = GATEWAY_BLACK_BOX};
    if (check(rollouts, request, &checked, err) < 0)
        return NULL;
    struct plan *plan = plan_new(rollouts, request, gateway_mode_name(checked.mode), id);
    plan->sampling = checked.sampling;
    plan->tools = checked.tools ? arena_str(&plan->arena, str_of(checked.tools)) : STR_NONE;
    plan->tool_facts = checked.facts;
    plan->agent_artifacts =
        agent_spec_artifacts(plan->agent, plan->task->workdir,
                             plan->task->root || agent_spec_wants_root(plan->agent), &plan->arena);
    plan->bundle = checked.bundle ? arena_text(&plan->arena, str_of(checked.bundle)) : NULL;
    plan->resumed = left != NULL;
    bool begun = left && left->state.data;
    /* What waits has no folder yet: a submission costs one file, which says whose it is. */
    if (live_write(plan, request, rollouts->options.owner, begun, err) < 0 ||
        ((!plan->live || (left && file_exists(plan->dir))) &&
         rollouts_make_folder(rollouts, plan, err) < 0)) {
        if (!left)
            live_remove(plan);
        plan_unref(plan);
        return NULL;
    }
    return entry_new(rollouts, plan, request, false);
}

struct entry *rollouts_take(struct rollouts *rollouts, const struct rollout_request *request,
                            struct err *err)
{
    char id[ID_MAX];
    id_make_after(id, "r", rollouts->last_id);
    memcpy(rollouts->last_id, id, sizeof id);
    return take_as(rollouts, request, id, NULL, err);
}

void rollouts_queued(struct entry *entry)
{
    publish(entry, ROLLOUT_EVENT_QUEUED);
    admission_wait(entry);
}

/* Nothing of it is left. */
void rollouts_undo(struct entry *entry)
{
    live_remove(entry->plan);
    if (file_remove_tree(entry->plan->dir, NULL) < 0)
        LOG_WARN("rollout", entry->plan->id, "its empty folder could not be removed");
    entry->rollouts->counts.queued--;
    entry_free(entry);
}

int rollouts_resume(struct rollouts *rollouts, const struct rollout_left *left, struct err *err)
{
    struct entry *entry = take_as(rollouts, &left->request, left->id, left, err);
    if (!entry)
        return -1;
    struct plan *plan = entry->plan;
    struct err trouble = {0};
    plan->queued_wall_ms = entry->view.queued_ms = left->queued_ms;
    if (left->state.data)
        plan->state = arena_str(&plan->arena, left->state);
    if (left->cancelled) {
        snprintf(entry->reason, sizeof entry->reason, "%s", left->cancelled);
        snprintf(entry->error, sizeof entry->error, "%s", left->why);
    }
    if (rollouts_put_row(entry, NULL, NULL, &trouble) < 0)
        LOG_WARN("rollout", left->id, "the index has no row for it: %s", trouble.text);
    group_join(entry);
    rollouts_queued(entry);
    if (left->state.data) {
        entry->counted = true;
        rollouts->admission.counted++;
        rollouts_start(entry); /* it is under way, whatever the queue is like */
    }
    if (left->cancelled)
        entry_cancel(entry, left->cancelled, left->why, false);
    if (entry->dispatched)
        return 0;
    admission_add(entry);
    admission_run(rollouts);
    return 0;
}

static struct entry *find(struct rollouts *rollouts, const char *id)
{
    enum { WHOLE = 22 };
    struct entry *entry = map_get(&rollouts->by_id, str_of(id));
    if (entry || strlen(id) < 3 || strlen(id) >= WHOLE)
        return entry;
    struct list *lists[] = {&rollouts->live, &rollouts->finished};
    for (size_t i = 0; i < COUNT(lists); i++) {
        LIST_EACH (at, lists[i]) {
            struct entry *candidate = LIST_OF(at, struct entry, link);
            if (candidate->preparation || !str_starts(str_of(candidate->plan->id), str_of(id)))
                continue;
            if (entry)
                return NULL;
            entry = candidate;
        }
    }
    return entry;
}

/* The row says so at once: should this server die before the lane has heard of it, the next one
 * knows. */
void rollouts_cancel_entry(struct entry *entry, const char *why)
{
    if (entry->ending)
        return;
    snprintf(entry->reason, sizeof entry->reason, "user");
    snprintf(entry->error, sizeof entry->error, "%s", why);
    if (!entry->submission || submission_row(entry))
        put_row(entry);
    entry_cancel(entry, "user", why, false);
}

int rollouts_cancel(struct rollouts *rollouts, const char *id, const char *why, struct err *err)
{
    struct entry *entry = find(rollouts, id);
    if (!entry)
        return err_set(err, ERR_NOT_FOUND, "there is no rollout '%s'", id);
    if (entry->ending)
        return err_set(err, ERR_CONFLICT, "rollout '%s' is over: %s", entry->plan->id,
                       trace_fate_name(entry->view.fate));
    rollouts_cancel_entry(entry, why);
    return 0;
}

void rollouts_cancel_all(struct rollouts *rollouts, const char *why, bool hurry)
{
    LIST_EACH (at, &rollouts->live)
        entry_cancel(LIST_OF(at, struct entry, link), "server", why, hurry);
}

void rollouts_drain(struct rollouts *rollouts)
{
    rollouts->draining = true;
}

bool rollouts_draining(const struct rollouts *rollouts)
{
    return rollouts->draining || rollouts->closing;
}

void rollouts_forget(struct rollouts *rollouts, const char *id)
{
    struct entry *entry = map_get(&rollouts->by_id, str_of(id));
    if (!entry || !entry->view.final)
        return;
    rollouts->kept--;
    entry_free(entry);
}

bool rollouts_view(struct rollouts *rollouts, const char *id, struct rollout_view *view)
{
    struct entry *entry = find(rollouts, id);
    if (entry)
        *view = entry->view;
    return entry != NULL;
}

bool rollouts_view_exact(struct rollouts *rollouts, const char *id, struct rollout_view *view)
{
    struct entry *entry = map_get(&rollouts->by_id, str_of(id));
    if (entry)
        *view = entry->view;
    return entry != NULL;
}

void rollouts_each(struct rollouts *rollouts,
                   bool (*each)(void *context, const struct rollout_view *view), void *context)
{
    struct list *lists[] = {&rollouts->live, &rollouts->finished};
    for (size_t i = 0; i < COUNT(lists); i++) {
        LIST_EACH (at, lists[i]) {
            struct entry *entry = LIST_OF(at, struct entry, link);
            if (!entry->preparation && !each(context, &entry->view))
                return;
        }
    }
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
    json_set_text(out, "fate", view->final ? trace_fate_name(view->fate) : NULL);
    json_set_text(out, "cause", view->error[0] ? view->error : NULL);
    json_set_text(out, "reason", view->reason[0] ? view->reason : NULL);
    json_set_int(out, "index", view->index);
    if (view->priority)
        json_set_int(out, "priority", view->priority);
    if (view->has_policy)
        json_set_int(out, "policy_version", view->policy_version);
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
