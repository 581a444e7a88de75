/* groups.c - rollouts that are compared with each other, and what they can share.
 *
 * A group exists here while one of its rollouts is not over: that is enough to wait for it, to
 * cancel it and to prepare it. What became of it is in the index.
 *
 *     submit -> preparation (a life of its own that ends after setup, as a layer) -> members, forks
 *                    └─ failed -> every member is over before it began, and says why
 *
 * Members wait outside the line until the preparation is over. The layer goes when the last member
 * is over. */
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "rollout/manager.h"

struct group {
    struct rollouts *rollouts;
    char *name;
    struct list members; /* entries that are not over */
    size_t live;
    struct entry *preparation; /* under way; NULL: none */
    bool prepared, failed;
    char layer[80];
    struct rollout_lane lane; /* where the layer was made */
};

/* ---------------------------------------------------------------- coming and going */
struct layer_drop {
    struct sandboxes *sandboxes;
    char layer[80];
};

static void drop_layer(void *argument)
{
    struct layer_drop *drop = argument;
    sandboxes_drop_layer(drop->sandboxes, drop->layer);
    free(drop);
}

static void group_free(struct group *group)
{
    map_remove(&group->rollouts->groups, str_of(group->name));
    if (group->layer[0]) {
        struct layer_drop *drop = mem_zero(sizeof *drop);
        drop->sandboxes = group->lane.sandboxes;
        memcpy(drop->layer, group->layer, sizeof drop->layer);
        loop_post(group->lane.loop, drop_layer, drop);
    }
    free(group->name);
    free(group);
}

void groups_deinit(struct rollouts *rollouts)
{
    size_t at = 0;
    for (struct group *group; (group = map_next(&rollouts->groups, &at, NULL)); at = 0)
        group_free(group);
    map_deinit(&rollouts->groups);
}

void group_join(struct entry *entry)
{
    struct rollouts *rollouts = entry->rollouts;
    const char *name = entry->plan->group;
    if (!name[0])
        return;
    struct group *group = map_get(&rollouts->groups, str_of(name));
    if (!group) {
        group = mem_zero(sizeof *group);
        group->rollouts = rollouts;
        group->name = mem_dup(name);
        list_init(&group->members);
        map_put(&rollouts->groups, str_of(name), group);
    }
    entry->group = group;
    list_append(&group->members, &entry->group_link);
    group->live++;
}

static void maybe_free(struct group *group)
{
    if (!group->live && !group->preparation)
        group_free(group);
}

void group_leave(struct entry *entry)
{
    struct group *group = TAKE(entry->group);
    if (!group)
        return;
    list_remove(&entry->group_link);
    group->live--;
    if (!group->live && group->preparation)
        entry_cancel(group->preparation, "group", "nobody needs the preparation any more", false);
    maybe_free(group);
}

/* ---------------------------------------------------------------- preparation */
/* Lets every member that still waits go, or ends it. */
static void release(struct group *group, struct shared *shared, enum trace_fate fate,
                    const char *why)
{
    LIST_EACH (at, &group->members) {
        struct entry *entry = LIST_OF(at, struct entry, group_link);
        if (entry->dispatched || entry->line)
            continue;
        if (shared) {
            entry->plan->shared = shared_ref(shared);
            admission_add(entry);
        } else {
            entry_refuse(entry, fate, "preparation", why);
        }
    }
}

void group_prepared(struct entry *preparation, struct report *report)
{
    struct group *group = TAKE(preparation->group);
    group->preparation = NULL;
    group->lane = preparation->plan->lane;
    if (report->shared) {
        group->prepared = true;
        memcpy(group->layer, report->shared->layer, sizeof group->layer);
        release(group, report->shared, TRACE_FATE_OK, "");
    } else {
        char why[ERR_TEXT_MAX];
        bool setup = report->fate == TRACE_FATE_SETUP_FAILED;
        group->failed = true;
        snprintf(why, sizeof why, "the group's shared preparation failed: %.400s", report->error);
        LOG_INFO("rollout", group->name, "%s", why);
        release(group, NULL,
                report->fate == TRACE_FATE_CANCELLED ? TRACE_FATE_CANCELLED
                : setup                              ? TRACE_FATE_SETUP_FAILED
                                                     : TRACE_FATE_INFRA_FAILED,
                why);
    }
    maybe_free(group);
}

static struct entry *new_preparation(struct group *group, const struct rollout_request *request,
                                     const struct plan *member)
{
    struct rollouts *rollouts = group->rollouts;
    struct plan *plan = plan_new(rollouts, request, member->mode, group->name);
    plan->bundle = member->bundle ? arena_text(&plan->arena, str_of(member->bundle)) : NULL;
    plan->group = arena_text(&plan->arena, str_of(group->name));
    plan->dir = arena_format(&plan->arena, "%s/groups/%s", rollouts->options.home, group->name);
    plan->preparation = true;
    plan->events = false;
    group->preparation = entry_new(rollouts, plan, request, true);
    group->preparation->group = group;
    return group->preparation;
}

void group_unprepare(struct entry *preparation)
{
    struct group *group = TAKE(preparation->group);
    group->preparation = NULL;
    maybe_free(group);
}

void group_prepare(struct entry *preparation)
{
    struct group *group = preparation->group;
    struct rollouts *rollouts = group->rollouts;
    struct err trouble = {0};
    if (rollouts_make_folder(rollouts, preparation->plan, &trouble) < 0) {
        /* The members are taken: they come back, with what went wrong. */
        group->failed = true;
        release(group, NULL, TRACE_FATE_INFRA_FAILED, trouble.text);
        group_unprepare(preparation);
        rollouts->counts.queued--;
        entry_free(preparation);
    } else if (preparation->plan->refused.kind != ERR_NONE) {
        rollouts_start(preparation);
    } else {
        admission_add(preparation);
    }
}

/* ---------------------------------------------------------------- submitting */
static bool something_to_share(const struct task *task)
{
    return task->setup_count || task->environment_dir || task->file_count;
}

static int send(struct submission *submission, const struct rollout_group_request *request,
                const struct entry *first, struct entry *preparation, struct err *err)
{
    const struct rollout_view *view = &first->view;
    struct store_group row = {
        .id = view->group,
        .run = view->run[0] ? view->run : NULL,
        .task = view->task,
        .agent = view->agent,
        .model = view->model,
        .mode = view->mode,
        .shared = preparation ? "yes" : "no",
        .key = request->key,
        .key_hash = request->key_hash,
        .n = request->count,
        .queued_ms = view->queued_ms,
    };
    return submission_send(submission, preparation, &row, err);
}

int rollouts_submit_group(struct rollouts *rollouts, const struct rollout_group_request *request,
                          char group_id[ID_MAX], char (*ids)[ID_MAX], struct err *err)
{
    struct rollout_request each = *request->each;
    bool share = request->share == ROLLOUT_SHARE_YES ||
                 (request->share == ROLLOUT_SHARE_AUTO && something_to_share(each.task));
    if (rollouts_room(rollouts, request->count + 1, err) < 0)
        return -1;
    if (each.group)
        snprintf(group_id, ID_MAX, "%s", each.group);
    else
        id_make_after(group_id, "g", rollouts->last_group);
    if (map_get(&rollouts->groups, str_of(group_id)))
        return err_set(err, ERR_CONFLICT, "there is a group '%s' already", group_id);
    if (!each.group)
        memcpy(rollouts->last_group, group_id, ID_MAX);
    each.group = group_id;
    each.grouped = true;
    struct submission *submission = submission_new(rollouts, request->count, &each);
    struct entry *first = NULL;
    for (uint32_t i = 0; i < request->count; i++) {
        each.index = i;
        struct entry *entry = submission_take(submission, &each, err);
        if (!entry) {
            submission_free(submission);
            return -1;
        }
        memcpy(ids[i], entry->plan->id, ID_MAX);
        if (!first)
            first = entry;
    }
    struct entry *preparation = share ? new_preparation(first->group, &each, first->plan) : NULL;
    return send(submission, request, first, preparation, err);
}

/* ---------------------------------------------------------------- looking */
size_t rollouts_group_live(struct rollouts *rollouts, const char *name)
{
    const struct group *group = map_get(&rollouts->groups, str_of(name));
    return group ? group->live : 0;
}

size_t rollouts_group_cancel(struct rollouts *rollouts, const char *name, const char *why)
{
    struct group *group = map_get(&rollouts->groups, str_of(name));
    size_t count = 0;
    if (!group)
        return 0;
    LIST_EACH (at, &group->members) {
        rollouts_cancel_entry(LIST_OF(at, struct entry, group_link), why);
        count++;
    }
    if (group->preparation)
        entry_cancel(group->preparation, "group", why, false);
    return count;
}

const char *rollouts_group_preparation(struct rollouts *rollouts, const char *name)
{
    const struct group *group = map_get(&rollouts->groups, str_of(name));
    if (!group)
        return NULL;
    return group->preparation ? "preparing"
           : group->prepared  ? "ready"
           : group->failed    ? "failed"
                              : NULL;
}
