/* rollouts.c - rollouts over HTTP: the list, one of them, its calls, its end.
 *
 * The index says what was; the manager knows better what is under way. Names in paths come from
 * outside: they are looked up, never made into a path of a file. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/inner.h"
#include "base/err.h"
#include "base/file.h"
#include "base/mem.h"
#include "http/http.h"
#include "loop/loop.h"
#include "store/store.h"

#define RESULT_BYTES_MAX (64u << 20)
#define PAGE_DEFAULT 100

/* ---------------------------------------------------------------- the list */
void api_write_row(struct api *api, const struct store_rollout *row, struct json_writer *out)
{
    struct store_rollout now = *row;
    struct rollout_view view;
    now.key_hash = NULL;
    if (!row->fate && api->rollouts && rollouts_view_exact(api->rollouts, row->id, &view)) {
        now.stage = trace_stage_name(view.stage);
        now.calls = view.calls;
        now.turns = view.turns;
        now.started_ms = view.started_ms;
        if (view.final) {
            now.fate = trace_fate_name(view.fate);
            now.error = view.error[0] ? view.error : NULL;
            now.reason = view.reason[0] ? view.reason : NULL;
            now.has_reward = view.rewarded;
            now.reward = view.reward;
            now.done_ms = view.done_ms;
        }
    }
    store_rollout_write(&now, out);
}

struct page {
    struct api *api;
    struct json_writer out;
    size_t count;
    char last[ID_MAX * 2];
};

static bool write_row(void *context, const struct store_rollout *row)
{
    struct page *page = context;
    api_write_row(page->api, row, &page->out);
    page->count++;
    snprintf(page->last, sizeof page->last, "%s", row->id);
    return true;
}

/* A name nobody knows would fit no rollout, and look as if there were none. */
static int check_names(const struct store_query *query, struct err *err)
{
    enum trace_fate fate;
    enum trace_stage stage;
    OWN(buf) struct buf names = {0};
    if (query->fate && !trace_fate_find(str_of(query->fate), &fate)) {
        for (size_t i = 0; i < TRACE_FATES; i++)
            buf_format(&names, "%s%s", i ? ", " : "", trace_fate_name((enum trace_fate)i));
        err_set(err, ERR_INPUT, "'fate' is one of %.*s", STR_ARGS(buf_str(&names)));
        return err_at(err, "fate");
    }
    if (query->stage && !trace_stage_find(str_of(query->stage), &stage)) {
        err_set(err, ERR_INPUT, "'stage' is one of queued, provisioning, done, failed, cancelled");
        return err_at(err, "stage");
    }
    return 0;
}

static int read_query(struct http_exchange *exchange, struct store_query *query,
                      struct arena *arena, struct err *err)
{
    const struct {
        const char *name;
        const char **to;
    } texts[] = {{"run", &query->run},       {"stage", &query->stage}, {"fate", &query->fate},
                 {"task", &query->task},     {"group", &query->group}, {"agent", &query->agent},
                 {"before", &query->before}, {"after", &query->after}};
    long long limit = PAGE_DEFAULT;
    const char *order = NULL;
    for (size_t i = 0; i < COUNT(texts); i++)
        if (api_read_text(exchange, texts[i].name, arena, texts[i].to, err) < 0)
            return -1;
    if (api_read_number(exchange, "limit", 1, API_PAGE_MAX, &limit, err) < 0 ||
        api_read_text(exchange, "order", arena, &order, err) < 0)
        return -1;
    if (order && strcmp(order, "oldest") != 0 && strcmp(order, "newest") != 0) {
        err_set(err, ERR_INPUT, "'order' is newest or oldest");
        return err_at(err, "order");
    }
    if (order && query->after && strcmp(order, "newest") == 0) {
        err_set(err, ERR_INPUT, "'after' goes from the oldest to the newest");
        return err_at(err, "order");
    }
    query->oldest_first = order && strcmp(order, "oldest") == 0;
    query->limit = (size_t)limit;
    return check_names(query, err);
}

void api_answer_rollouts(struct api *api, struct http_exchange *exchange, struct str name)
{
    (void)name;
    OWN(arena) struct arena arena = {0};
    OWN(buf) struct buf body = {0};
    struct store_query query = {0};
    struct err err = {0};
    struct page page = {.api = api, .out = {.out = &body}};
    json_begin_object(&page.out);
    json_key(&page.out, "rollouts");
    json_begin_array(&page.out);
    if (read_query(exchange, &query, &arena, &err) < 0 ||
        store_list_rollouts(api->store, &query, write_row, &page, &err) < 0) {
        api_answer_error(exchange, &err);
        return;
    }
    json_end_array(&page.out);
    json_set_text(&page.out, "next", page.count && page.count == query.limit ? page.last : NULL);
    if (query.after || query.oldest_first)
        json_set_text(&page.out, "last", page.count ? page.last : query.after);
    json_end_object(&page.out);
    http_respond_json(exchange, 200, buf_str(&body));
}

/* ---------------------------------------------------------------- one rollout */
struct found {
    struct api *api;
    char id[ID_MAX * 2];
    char *dir;
    bool over, pending; /* pending: its callback */
    struct buf row;
};

static bool keep_row(void *context, const struct store_rollout *row)
{
    struct found *found = context;
    struct json_writer out = {.out = &found->row};
    snprintf(found->id, sizeof found->id, "%s", row->id);
    found->dir = mem_dup(row->dir && row->dir[0] ? row->dir : NULL);
    found->over = row->fate && row->fate[0];
    found->pending = row->callback_state && strcmp(row->callback_state, "pending") == 0;
    api_write_row(found->api, row, &out);
    return false;
}

static void found_deinit(struct found *found)
{
    buf_deinit(&found->row);
    free(found->dir);
}

/* result.json when it is over, else how it stands, else the row of the index. */
int api_write_rollout(struct api *api, const char *id, struct buf *out, struct err *err)
{
    struct rollout_view view;
    struct json_writer writer = {.out = out};
    if (api->rollouts && rollouts_view_exact(api->rollouts, id, &view)) {
        if (view.final && view.result)
            buf_str_append(out, str_of(view.result));
        else
            rollout_view_write(&view, &writer);
        return 0;
    }
    struct found found = {.api = api};
    if (store_get_rollout(api->store, id, keep_row, &found, err) < 0) {
        /* It may be too young for the index. */
        return api->write_live && api->write_live(api->context, id, &writer) ? 0 : -1;
    }
    OWN(mem)
    char *dir = found.dir ? TAKE(found.dir) : mem_format("%s/rollouts/%s", api->home, found.id);
    OWN(mem) char *path = mem_format("%s/result.json", dir);
    bool live =
        api->write_live && !file_exists(path) && api->write_live(api->context, found.id, &writer);
    if (!live && file_read(path, RESULT_BYTES_MAX, out, NULL) < 0) {
        buf_clear(out);
        buf_str_append(out, buf_str(&found.row));
    }
    found_deinit(&found);
    return 0;
}

/* The whole id of a rollout, from a prefix too. -1: there is none. */
static int find_id(struct api *api, const char *name, char id[ID_MAX * 2], bool *live,
                   struct err *err)
{
    struct rollout_view view;
    *live = false;
    if (api->rollouts && rollouts_view(api->rollouts, name, &view)) {
        snprintf(id, ID_MAX * 2, "%s", view.id);
        *live = !view.final;
        return 0;
    }
    struct found found = {.api = api};
    if (store_get_rollout(api->store, name, keep_row, &found, err) < 0)
        return -1;
    memcpy(id, found.id, sizeof found.id);
    *live = !found.over;
    found_deinit(&found);
    return 0;
}

void api_answer_rollout(struct api *api, struct http_exchange *exchange, struct str name)
{
    OWN(arena) struct arena arena = {0};
    OWN(buf) struct buf body = {0};
    struct err err = {0};
    long long wait_ms = 0;
    char id[ID_MAX * 2];
    bool live;
    const char *asked = api_name(exchange, name, &arena);
    if (!asked)
        return;
    if (api_read_number(exchange, "wait_ms", 0, API_WAIT_MS_MAX, &wait_ms, &err) < 0) {
        api_answer_error(exchange, &err);
        return;
    }
    if (wait_ms && api->rollouts && find_id(api, asked, id, &live, &err) == 0 && live) {
        api_wait(api, exchange, id, false, (uint32_t)wait_ms);
        return;
    }
    err = (struct err){0};
    if (api_write_rollout(api, asked, &body, &err) < 0)
        api_answer_error(exchange, &err);
    else
        http_respond_json(exchange, 200, buf_str(&body));
}

/* ---------------------------------------------------------------- its end */
/* Removing a folder takes as long as it is large: a worker does it. */
struct removal {
    struct api *api;
    struct http_exchange *exchange; /* NULL: whoever asked has left */
    struct store *store;
    char id[ID_MAX * 2];
    char *dir;
    struct err err;
};

static void remove_it(void *argument)
{
    struct removal *removal = argument;
    (void)store_remove_folder(removal->store, removal->id, removal->dir, &removal->err);
}

static void on_noted(void *context, const struct err *err)
{
    struct removal *removal = context;
    struct api *api = removal->api;
    if (err->kind != ERR_NONE)
        removal->err = *err;
    if (removal->exchange && removal->err.kind != ERR_NONE)
        api_answer_error(removal->exchange, &removal->err);
    else if (removal->exchange)
        http_respond_json(removal->exchange, 200, STR("{\"status\":\"deleted\"}"));
    if (api->rollouts && removal->err.kind == ERR_NONE)
        rollouts_forget(api->rollouts, removal->id);
    free(removal->dir);
    free(removal);
    api_reply_done(api);
}

static void on_folder_gone(void *argument)
{
    struct removal *removal = argument;
    struct err err = removal->err;
    if (err.kind == ERR_NONE && store_remove_rollout(removal->store, removal->api->loop,
                                                     removal->id, on_noted, removal, &err) == 0)
        return;
    on_noted(removal, &err);
}

static void on_remover_gone(void *context)
{
    ((struct removal *)context)->exchange = NULL;
}

static void remove_rollout(struct api *api, struct http_exchange *exchange, const char *id)
{
    struct found found = {.api = api};
    struct err err = {0};
    if (store_get_rollout(api->store, id, keep_row, &found, &err) < 0) {
        api_answer_error(exchange, &err);
        return;
    }
    if (!found.over || found.pending) {
        err_set(&err, ERR_CONFLICT, "rollout '%s' is %s", found.id,
                found.over ? "waiting for its callback" : "another server's, and not over");
        api_answer_error(exchange, &err);
        found_deinit(&found);
        return;
    }
    struct removal *removal = mem_zero(sizeof *removal);
    removal->api = api;
    removal->exchange = exchange;
    removal->store = api->store;
    memcpy(removal->id, found.id, sizeof removal->id);
    removal->dir = TAKE(found.dir);
    found_deinit(&found);
    api->replies++;
    http_exchange_notify(exchange, 0, NULL, on_remover_gone, removal);
    loop_work(api->loop, remove_it, on_folder_gone, removal);
}

/* Cancels and never deletes: what ended a moment ago stays. */
void api_answer_cancel(struct api *api, struct http_exchange *exchange, struct str name)
{
    OWN(arena) struct arena arena = {0};
    struct found found = {.api = api};
    struct err err = {0};
    const char *id = api_name(exchange, name, &arena);
    if (!id)
        return;
    if (!api->cancel)
        err_set(&err, ERR_UNSUPPORTED, "this server takes no rollouts");
    if (api->cancel &&
        api->cancel(api->context, id, "cancelled over the control listener", &err) == 0) {
        api_answer_kept(api, exchange, 202, STR("{\"status\":\"cancelling\"}"));
        return;
    }
    /* One the manager does not know any more is over. */
    if (err.kind == ERR_NOT_FOUND && store_get_rollout(api->store, id, keep_row, &found, NULL) == 0)
        err_set(&err, ERR_CONFLICT, "rollout '%s' is over", found.id);
    found_deinit(&found);
    api_answer_error(exchange, &err);
}

void api_answer_delete(struct api *api, struct http_exchange *exchange, struct str name)
{
    OWN(arena) struct arena arena = {0};
    struct rollout_view view;
    const char *id = api_name(exchange, name, &arena);
    if (!id)
        return;
    if (api->rollouts && rollouts_view(api->rollouts, id, &view) && !view.final)
        api_answer_cancel(api, exchange, name);
    else
        remove_rollout(api, exchange, id);
}

/* ---------------------------------------------------------------- its calls */
static bool write_call(void *context, const struct store_call *row)
{
    struct json_writer *out = context;
    json_begin_object(out);
    json_set_text(out, "id", row->id);
    json_set_int(out, "number", row->number);
    json_set_text(out, "state", row->state);
    json_set_int(out, "status", row->http_status);
    if (row->prompt_tokens >= 0)
        json_set_int(out, "prompt_tokens", row->prompt_tokens);
    if (row->completion_tokens >= 0)
        json_set_int(out, "completion_tokens", row->completion_tokens);
    json_set_int(out, "intent_ms", (long long)row->intent_ms);
    json_set_int(out, "entry_ms", (long long)row->entry_ms);
    json_set_int(out, "deliveries", row->deliveries);
    json_end_object(out);
    return true;
}

/* What is asked about calls waits for the index and reads files: a worker does it. */
struct look {
    struct api *api;
    struct http_exchange *exchange; /* NULL: whoever asked has left */
    struct store *store;
    bool whole; /* one call with everything; otherwise the list of a rollout's */
    char *id;
    struct buf body;
    struct err err;
};

static void look(void *argument)
{
    struct look *looking = argument;
    if (looking->whole) {
        (void)store_read_call(looking->store, looking->id, &looking->body, &looking->err);
        return;
    }
    struct json_writer out = {.out = &looking->body};
    json_begin_object(&out);
    json_key(&out, "calls");
    json_begin_array(&out);
    (void)store_list_calls(looking->store, looking->id, write_call, &out, &looking->err);
    json_end_array(&out);
    json_end_object(&out);
}

static void on_looked(void *argument)
{
    struct look *looking = argument;
    struct api *api = looking->api;
    if (looking->exchange && looking->err.kind != ERR_NONE)
        api_answer_error(looking->exchange, &looking->err);
    else if (looking->exchange)
        http_respond_json(looking->exchange, 200, buf_str(&looking->body));
    buf_deinit(&looking->body);
    free(looking->id);
    free(looking);
    api_reply_done(api);
}

static void on_looker_gone(void *context)
{
    ((struct look *)context)->exchange = NULL;
}

static void start_look(struct api *api, struct http_exchange *exchange, const char *id, bool whole)
{
    struct look *looking = mem_zero(sizeof *looking);
    looking->api = api;
    looking->exchange = exchange;
    looking->store = api->store;
    looking->whole = whole;
    looking->id = mem_dup(id);
    api->replies++;
    http_exchange_notify(exchange, 0, NULL, on_looker_gone, looking);
    loop_work(api->loop, look, on_looked, looking);
}

void api_answer_calls(struct api *api, struct http_exchange *exchange, struct str name)
{
    OWN(arena) struct arena arena = {0};
    struct err err = {0};
    char id[ID_MAX * 2];
    bool live;
    const char *asked = api_name(exchange, name, &arena);
    if (!asked)
        return;
    if (find_id(api, asked, id, &live, &err) < 0)
        api_answer_error(exchange, &err);
    else
        start_look(api, exchange, id, false);
}

void api_answer_call(struct api *api, struct http_exchange *exchange, struct str name)
{
    OWN(arena) struct arena arena = {0};
    const char *id = api_name(exchange, name, &arena);
    if (id)
        start_look(api, exchange, id, true);
}
