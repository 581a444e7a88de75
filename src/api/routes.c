/* routes.c - what the control listener answers. One row per route; docs/http-api.md says the same
 * for people.
 *
 * Names in paths come from outside: they are looked up, never made into a path of a file. */
#include <stdio.h>
#include <string.h>

#include "api/inner.h"
#include "base/err.h"
#include "base/file.h"
#include "base/id.h"
#include "base/mem.h"
#include "http/http.h"
#include "json/json.h"
#include "store/store.h"

#define RESULT_BYTES_MAX (64u << 20)
#define PAGE_MAX 1000
#define PAGE_DEFAULT 100
#define PARAMETER_MAX 128

static void answer_health(struct api *api, struct http_exchange *exchange, struct str name)
{
    (void)api;
    (void)name;
    http_respond_json(exchange, 200, STR("{\"status\":\"ok\"}"));
}

static void answer_version(struct api *api, struct http_exchange *exchange, struct str name)
{
    (void)api;
    (void)name;
    http_respond_json(exchange, 200,
                      STR("{\"name\":\"postern\",\"version\":\"" POSTERN_VERSION "\"}"));
}

static void answer_metrics(struct api *api, struct http_exchange *exchange, struct str name)
{
    (void)name;
    static const struct http_header headers[] = {
        {{"content-type", 12}, {"text/plain; version=0.0.4; charset=utf-8", 40}}};
    OWN(buf) struct buf body = {0};
    api_write_metrics(api, &body);
    http_respond(exchange, 200, headers, 1, buf_str(&body));
}

/* ---------------------------------------------------------------- the list */

struct page {
    struct json_writer out;
    size_t count;
    char last[ID_MAX * 2];
};

static bool write_row(void *context, const struct store_rollout *row)
{
    struct page *page = context;
    store_rollout_write(row, &page->out);
    page->count++;
    snprintf(page->last, sizeof page->last, "%s", row->id);
    return true;
}

/* A parameter of the query; NULL: not there. -1: too long. */
static int parameter(struct str query, const char *name, struct buf *out, const char **text,
                     struct err *err)
{
    if (!http_query_get(query, name, out))
        return 0;
    if (out->size > PARAMETER_MAX || memchr(out->data ? out->data : "", 0, out->size))
        return err_set(err, ERR_INPUT, "the parameter '%s' is not a name", name);
    *text = buf_text(out);
    return 0;
}

static int read_query(struct str text, struct store_query *query, struct buf values[6],
                      struct err *err)
{
    const char *limit = NULL;
    if (parameter(text, "run", &values[0], &query->run, err) < 0 ||
        parameter(text, "stage", &values[1], &query->stage, err) < 0 ||
        parameter(text, "fate", &values[2], &query->fate, err) < 0 ||
        parameter(text, "task", &values[3], &query->task, err) < 0 ||
        parameter(text, "before", &values[4], &query->before, err) < 0 ||
        parameter(text, "limit", &values[5], &limit, err) < 0)
        return -1;
    long long number = PAGE_DEFAULT;
    if (limit && (!str_to_long(str_of(limit), &number) || number < 1 || number > PAGE_MAX))
        return err_set(err, ERR_INPUT, "'limit' is a number from 1 to %d", PAGE_MAX);
    query->limit = (size_t)number;
    return 0;
}

static void answer_rollouts(struct api *api, struct http_exchange *exchange, struct str name)
{
    (void)name;
    struct buf values[6] = {0};
    struct store_query query = {0};
    struct err err = {0};
    OWN(buf) struct buf body = {0};
    struct page page = {.out = {.out = &body}};
    json_begin_object(&page.out);
    json_key(&page.out, "rollouts");
    json_begin_array(&page.out);
    int result = read_query(http_exchange_query(exchange), &query, values, &err);
    if (result == 0)
        result = store_list_rollouts(api->store, &query, write_row, &page, &err);
    json_end_array(&page.out);
    json_set_text(&page.out, "next", page.count && page.count == query.limit ? page.last : NULL);
    json_end_object(&page.out);
    for (size_t i = 0; i < COUNT(values); i++)
        buf_deinit(&values[i]);
    if (result < 0)
        api_answer_error(exchange, &err);
    else
        http_respond_json(exchange, 200, buf_str(&body));
}

/* ---------------------------------------------------------------- one rollout */

struct found {
    char id[ID_MAX * 2];
    char *dir;
    struct buf row;
};

static bool keep_row(void *context, const struct store_rollout *row)
{
    struct found *found = context;
    struct json_writer out = {.out = &found->row};
    snprintf(found->id, sizeof found->id, "%s", row->id);
    found->dir = mem_dup(row->dir && row->dir[0] ? row->dir : NULL);
    store_rollout_write(row, &out);
    return false;
}

/* result.json when it is over, else how it stands, else the row of the index. */
static void answer_rollout(struct api *api, struct http_exchange *exchange, struct str name)
{
    OWN(buf) struct buf decoded = {0};
    OWN(buf) struct buf body = {0};
    struct json_writer out = {.out = &body};
    struct err err = {0};
    if (!http_percent_decode(name, &decoded) || decoded.size > PARAMETER_MAX ||
        memchr(decoded.data, 0, decoded.size)) {
        err_set(&err, ERR_NOT_FOUND, "there is no such rollout");
        api_answer_error(exchange, &err);
        return;
    }
    const char *id = buf_text(&decoded);
    struct found found = {0};
    if (store_get_rollout(api->store, id, keep_row, &found, &err) < 0) {
        /* It may be too young for the index. */
        if (api->write_live && api->write_live(api->context, id, &out))
            http_respond_json(exchange, 200, buf_str(&body));
        else
            api_answer_error(exchange, &err);
        return;
    }
    OWN(mem)
    char *dir = found.dir ? TAKE(found.dir) : mem_format("%s/rollouts/%s", api->home, found.id);
    OWN(mem) char *path = mem_format("%s/result.json", dir);
    bool live =
        api->write_live && !file_exists(path) && api->write_live(api->context, found.id, &out);
    if (!live && file_read(path, RESULT_BYTES_MAX, &body, NULL) < 0) {
        buf_clear(&body);
        buf_str_append(&body, buf_str(&found.row));
    }
    buf_deinit(&found.row);
    http_respond_json(exchange, 200, buf_str(&body));
}

const struct api_route api_routes[] = {
    {"GET", "/health", true, answer_health},
    {"GET", "/metrics", false, answer_metrics},
    {"GET", "/v1/version", false, answer_version},
    {"GET", "/v1/rollouts", false, answer_rollouts},
    {"GET", "/v1/rollouts/*", false, answer_rollout},
    {"GET", "/v1/rollouts/*/samples", false, api_answer_samples},
};
const size_t api_route_count = COUNT(api_routes);
