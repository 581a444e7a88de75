/* groups.c - groups over HTTP: the list, one of them with how its rollouts stand, its end.
 *
 * A group is whatever rollouts carry its name; one that was submitted as a group also has a row of
 * its own. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/inner.h"
#include "base/err.h"
#include "base/mem.h"
#include "http/http.h"
#include "loop/loop.h"
#include "store/store.h"

#define PAGE_DEFAULT 100

/* ---------------------------------------------------------------- one group */
struct summary {
    struct api *api;
    struct json_writer rollouts;
    size_t total, queued, running, over;
    size_t by_fate[TRACE_FATES];
    size_t rewarded;
    double sum, least, most;
    char last[ID_MAX * 2];
    size_t seen;
};

static void count_rollout(struct summary *summary, const char *id, uint32_t index,
                          enum trace_stage stage, const char *fate, bool rewarded, double reward,
                          const char *reason)
{
    struct json_writer *out = &summary->rollouts;
    summary->total++;
    if (!fate)
        *(stage == TRACE_QUEUED ? &summary->queued : &summary->running) += 1;
    for (size_t i = 0; fate && i < TRACE_FATES; i++)
        summary->by_fate[i] += strcmp(fate, trace_fate_name((enum trace_fate)i)) == 0;
    summary->over += fate != NULL;
    if (fate && rewarded) {
        summary->sum += reward;
        if (!summary->rewarded || reward < summary->least)
            summary->least = reward;
        if (!summary->rewarded || reward > summary->most)
            summary->most = reward;
        summary->rewarded++;
    }
    json_begin_object(out);
    json_set_text(out, "id", id);
    json_set_int(out, "index", index);
    json_set_text(out, "stage", trace_stage_name(stage));
    json_set_text(out, "fate", fate);
    if (reason && reason[0])
        json_set_text(out, "reason", reason);
    json_key(out, "reward");
    if (fate && rewarded)
        json_put_double(out, reward);
    else
        json_put_null(out);
    json_end_object(out);
}

static bool on_member(void *context, const struct store_rollout *row)
{
    struct summary *summary = context;
    struct rollout_view view;
    enum trace_stage stage = TRACE_QUEUED;
    summary->seen++;
    snprintf(summary->last, sizeof summary->last, "%s", row->id);
    if (!row->fate && summary->api->rollouts &&
        rollouts_view_exact(summary->api->rollouts, row->id, &view)) {
        count_rollout(summary, view.id, view.index, view.stage,
                      view.final ? trace_fate_name(view.fate) : NULL, view.rewarded, view.reward,
                      view.reason);
        return true;
    }
    (void)trace_stage_find(str_of(row->stage), &stage);
    count_rollout(summary, row->id, row->index, stage, row->fate, row->has_reward, row->reward,
                  row->reason);
    return true;
}

static bool write_group_row(void *context, const struct store_group *row)
{
    struct json_writer *out = context;
    json_set_text(out, "run", row->run);
    json_set_text(out, "task", row->task);
    json_set_text(out, "agent", row->agent);
    json_set_text(out, "model", row->model);
    json_set_text(out, "mode", row->mode);
    json_set_bool(out, "shared_preparation", row->shared && strcmp(row->shared, "yes") == 0);
    if (row->key)
        json_set_text(out, "key", row->key);
    json_set_int(out, "n", row->n);
    json_set_int(out, "queued_ms", (long long)row->queued_ms);
    return false;
}

static void write_numbers(const struct summary *summary, struct json_writer *out)
{
    json_set_text(out, "state",
                  summary->over == summary->total ? "over"
                  : summary->running              ? "running"
                                                  : "queued");
    json_key(out, "counts");
    json_begin_object(out);
    json_set_int(out, "total", (long long)summary->total);
    json_set_int(out, "queued", (long long)summary->queued);
    json_set_int(out, "running", (long long)summary->running);
    json_set_int(out, "over", (long long)summary->over);
    json_end_object(out);
    json_key(out, "fates");
    json_begin_object(out);
    for (size_t i = 0; i < TRACE_FATES; i++)
        if (summary->by_fate[i])
            json_set_int(out, trace_fate_name((enum trace_fate)i), (long long)summary->by_fate[i]);
    json_end_object(out);
    json_key(out, "reward");
    if (!summary->rewarded) {
        json_put_null(out);
        return;
    }
    json_begin_object(out);
    json_set_int(out, "count", (long long)summary->rewarded);
    json_set_double(out, "mean", summary->sum / (double)summary->rewarded);
    json_set_double(out, "min", summary->least);
    json_set_double(out, "max", summary->most);
    json_end_object(out);
}

int api_write_group(struct api *api, const char *id, struct buf *out, struct err *err)
{
    OWN(buf) struct buf rollouts = {0};
    struct summary summary = {.api = api, .rollouts = {.out = &rollouts}};
    struct json_writer writer = {.out = out};
    struct store_query query = {.group = id, .oldest_first = true, .limit = API_PAGE_MAX};
    json_begin_array(&summary.rollouts);
    do {
        summary.seen = 0;
        if (store_list_rollouts(api->store, &query, on_member, &summary, err) < 0)
            return -1;
        query.after = summary.last;
    } while (summary.seen == API_PAGE_MAX);
    json_end_array(&summary.rollouts);
    if (!summary.total)
        return err_set(err, ERR_NOT_FOUND, "there is no group '%s'", id);
    json_begin_object(&writer);
    json_set_text(&writer, "id", id);
    struct store_query own = {.group = id, .limit = 1};
    if (store_list_groups(api->store, &own, write_group_row, &writer, err) < 0)
        return -1;
    const char *preparation = api->rollouts ? rollouts_group_preparation(api->rollouts, id) : NULL;
    if (preparation)
        json_set_text(&writer, "preparation", preparation);
    write_numbers(&summary, &writer);
    json_set_raw(&writer, "rollouts", buf_str(&rollouts));
    json_end_object(&writer);
    return 0;
}

void api_answer_group(struct api *api, struct http_exchange *exchange, struct str name)
{
    OWN(arena) struct arena arena = {0};
    OWN(buf) struct buf body = {0};
    struct err err = {0};
    long long wait_ms = 0;
    const char *id = api_name(exchange, name, &arena);
    if (!id)
        return;
    if (api_read_number(exchange, "wait_ms", 0, API_WAIT_MS_MAX, &wait_ms, &err) < 0) {
        api_answer_error(exchange, &err);
        return;
    }
    if (wait_ms && api->rollouts && rollouts_group_live(api->rollouts, id)) {
        api_wait(api, exchange, id, true, (uint32_t)wait_ms);
        return;
    }
    if (api_write_group(api, id, &body, &err) < 0)
        api_answer_error(exchange, &err);
    else
        http_respond_json(exchange, 200, buf_str(&body));
}

/* ---------------------------------------------------------------- its end */
/* A group that is over, with all its rollouts; a worker removes their folders. */
struct removal {
    struct api *api;
    struct http_exchange *exchange; /* NULL: whoever asked has left */
    struct store *store;
    char *group;
    char **ids, **dirs;
    size_t count, removed;
    bool unfinished;
    struct err err;
};

static void remove_them(void *argument)
{
    struct removal *removal = argument;
    for (size_t i = 0; i < removal->count && removal->err.kind == ERR_NONE; i++) {
        if (store_remove_folder(removal->store, removal->ids[i], removal->dirs[i], &removal->err) ==
                0 &&
            store_remove_rollout(removal->store, NULL, removal->ids[i], NULL, NULL,
                                 &removal->err) == 0)
            removal->removed++;
    }
}

static void removal_free(struct removal *removal)
{
    for (size_t i = 0; i < removal->count; i++) {
        free(removal->ids[i]);
        free(removal->dirs[i]);
    }
    free(removal->ids);
    free(removal->dirs);
    free(removal->group);
    free(removal);
}

static void on_noted(void *context, const struct err *err)
{
    struct removal *removal = context;
    struct api *api = removal->api;
    if (err->kind != ERR_NONE)
        removal->err = *err;
    OWN(buf) struct buf body = {0};
    buf_format(&body, "{\"status\":\"deleted\",\"rollouts\":%zu}", removal->removed);
    if (removal->exchange && removal->err.kind != ERR_NONE)
        api_answer_error(removal->exchange, &removal->err);
    else if (removal->exchange)
        http_respond_json(removal->exchange, 200, buf_str(&body));
    for (size_t i = 0; api->rollouts && i < removal->removed; i++)
        rollouts_forget(api->rollouts, removal->ids[i]);
    removal_free(removal);
    api_reply_done(api);
}

/* The group's note comes last: when it is kept, so are the others. */
static void on_folders_gone(void *argument)
{
    struct removal *removal = argument;
    struct err err = removal->err;
    if (err.kind == ERR_NONE &&
        store_put_note(removal->store, removal->api->loop, "deleted", "group", removal->group, NULL,
                       on_noted, removal, &err) == 0)
        return;
    on_noted(removal, &err);
}

static void on_remover_gone(void *context)
{
    ((struct removal *)context)->exchange = NULL;
}

static bool keep_member(void *context, const struct store_rollout *row)
{
    struct removal *removal = context;
    removal->unfinished = removal->unfinished || !row->fate ||
                          (row->callback_state && strcmp(row->callback_state, "pending") == 0);
    removal->ids = mem_grow(removal->ids, (removal->count + 1) * sizeof *removal->ids);
    removal->dirs = mem_grow(removal->dirs, (removal->count + 1) * sizeof *removal->dirs);
    removal->ids[removal->count] = mem_dup(row->id);
    removal->dirs[removal->count++] = mem_dup(row->dir);
    return true;
}

static void remove_group(struct api *api, struct http_exchange *exchange, const char *id)
{
    struct removal *removal = mem_zero(sizeof *removal);
    struct store_query query = {.group = id, .oldest_first = true, .limit = API_PAGE_MAX};
    struct err err = {0};
    size_t before;
    removal->api = api;
    removal->exchange = exchange;
    removal->store = api->store;
    removal->group = mem_dup(id);
    do {
        before = removal->count;
        if (store_list_rollouts(api->store, &query, keep_member, removal, &err) < 0)
            break;
        query.after = removal->count ? removal->ids[removal->count - 1] : NULL;
    } while (removal->count - before == API_PAGE_MAX);
    if (err.kind == ERR_NONE && !removal->count)
        err_set(&err, ERR_NOT_FOUND, "there is no group '%s'", id);
    else if (err.kind == ERR_NONE && removal->unfinished)
        err_set(&err, ERR_CONFLICT, "group '%s' has rollouts that wait for something", id);
    if (err.kind != ERR_NONE) {
        api_answer_error(exchange, &err);
        removal_free(removal);
        return;
    }
    api->replies++;
    http_exchange_notify(exchange, 0, NULL, on_remover_gone, removal);
    loop_work(api->loop, remove_them, on_folders_gone, removal);
}

/* false: every rollout of it is over, or there is none. */
static bool cancel_group(struct api *api, struct http_exchange *exchange, const char *id)
{
    OWN(buf) struct buf body = {0};
    struct json_writer out = {.out = &body};
    size_t count = api->rollouts ? rollouts_group_cancel(api->rollouts, id,
                                                         "its group was cancelled over the control "
                                                         "listener")
                                 : 0;
    if (!count)
        return false;
    json_begin_object(&out);
    json_set_text(&out, "status", "cancelling");
    json_set_int(&out, "rollouts", (long long)count);
    json_end_object(&out);
    api_answer_kept(api, exchange, 202, buf_str(&body));
    return true;
}

void api_answer_group_cancel(struct api *api, struct http_exchange *exchange, struct str name)
{
    OWN(arena) struct arena arena = {0};
    OWN(buf) struct buf group = {0};
    struct err err = {0};
    const char *id = api_name(exchange, name, &arena);
    if (!id || cancel_group(api, exchange, id))
        return;
    if (api_write_group(api, id, &group, &err) == 0)
        err_set(&err, ERR_CONFLICT, "every rollout of group '%s' is over", id);
    api_answer_error(exchange, &err);
}

void api_answer_group_delete(struct api *api, struct http_exchange *exchange, struct str name)
{
    OWN(arena) struct arena arena = {0};
    const char *id = api_name(exchange, name, &arena);
    if (id && !cancel_group(api, exchange, id))
        remove_group(api, exchange, id);
}

/* ---------------------------------------------------------------- the list */
struct page {
    struct json_writer out;
    size_t count;
    char last[ID_MAX * 2];
};

static bool write_row(void *context, const struct store_group *row)
{
    struct page *page = context;
    json_begin_object(&page->out);
    json_set_text(&page->out, "id", row->id);
    (void)write_group_row(&page->out, row);
    json_end_object(&page->out);
    page->count++;
    snprintf(page->last, sizeof page->last, "%s", row->id);
    return true;
}

void api_answer_groups(struct api *api, struct http_exchange *exchange, struct str name)
{
    (void)name;
    OWN(arena) struct arena arena = {0};
    OWN(buf) struct buf body = {0};
    struct store_query query = {0};
    struct err err = {0};
    struct page page = {.out = {.out = &body}};
    long long limit = PAGE_DEFAULT;
    json_begin_object(&page.out);
    json_key(&page.out, "groups");
    json_begin_array(&page.out);
    if (api_read_text(exchange, "run", &arena, &query.run, &err) < 0 ||
        api_read_text(exchange, "before", &arena, &query.before, &err) < 0 ||
        api_read_text(exchange, "after", &arena, &query.after, &err) < 0 ||
        api_read_number(exchange, "limit", 1, API_PAGE_MAX, &limit, &err) < 0 ||
        (query.limit = (size_t)limit,
         store_list_groups(api->store, &query, write_row, &page, &err)) < 0) {
        api_answer_error(exchange, &err);
        return;
    }
    json_end_array(&page.out);
    json_set_text(&page.out, "next", page.count && page.count == query.limit ? page.last : NULL);
    json_end_object(&page.out);
    http_respond_json(exchange, 200, buf_str(&body));
}
