/* submit.c - new rollouts over HTTP, and the end of those under way. What is asked for is checked
 * by whoever runs rollouts; this file only reads the request. */
#include <stdlib.h>

#include "api/inner.h"
#include "base/err.h"
#include "base/mem.h"
#include "http/http.h"

#define NAME_BYTES_MAX 128
#define PATH_BYTES_MAX 4096
#define WALL_MS_MAX (7ll * 24 * 3600 * 1000)

static int read_submit(struct json root, struct arena *arena, struct api_submit *order,
                       struct err *err)
{
    long long index = 0, turns_max = 0, wall_ms_max = 0;
    struct json task = {0}, tools = {0};
    struct api_field fields[] = {
        {"agent", API_TEXT, &order->agent, 0, PATH_BYTES_MAX, true},
        {"task", API_VALUE, &task, 0, 0, true},
        {"model", API_TEXT, &order->model, 0, PATH_BYTES_MAX, false},
        {"mode", API_TEXT, &order->mode, 0, NAME_BYTES_MAX, false},
        {"group", API_TEXT, &order->group, 0, ID_MAX - 1, false},
        {"run", API_TEXT, &order->run, 0, NAME_BYTES_MAX, false},
        {"index", API_NUMBER, &index, 0, UINT32_MAX, false},
        {"turns_max", API_NUMBER, &turns_max, 1, UINT32_MAX, false},
        {"wall_ms_max", API_NUMBER, &wall_ms_max, 1, WALL_MS_MAX, false},
        {"tools", API_VALUE, &tools, 0, 0, false},
    };
    if (api_read_object(root, fields, COUNT(fields), arena, err) < 0)
        return -1;
    if (json_type(task) == JSON_OBJECT)
        order->inline_task = json_raw(task);
    else if (json_type(task) == JSON_STRING)
        order->task = arena_text(arena, json_str(task, arena));
    else
        return err_set(err, ERR_INPUT, "'task' is a path, a name or a task as an object");
    if (json_exists(tools))
        order->tools = json_raw(tools);
    order->index = (uint32_t)index;
    order->turns_max = (uint32_t)turns_max;
    order->wall_ms_max = (uint32_t)wall_ms_max;
    return 0;
}

static void on_body(void *context, struct http_exchange *exchange, struct str body,
                    const struct err *body_err)
{
    struct api *api = context;
    OWN(arena) struct arena arena = {0};
    OWN(json_doc) struct json_doc doc = {0};
    OWN(buf) struct buf answer = {0};
    struct api_submit order = {0};
    struct err err = {0};
    char id[ID_MAX];
    if (body_err && body_err->kind != ERR_NONE)
        return;
    if (json_read(&doc, body, NULL, &err) < 0) {
        err.kind = ERR_INPUT;
        api_answer_error(exchange, &err);
        return;
    }
    if (read_submit(json_root(&doc), &arena, &order, &err) < 0 ||
        api->submit(api->context, &order, id, &err) < 0) {
        api_answer_error(exchange, &err);
        return;
    }
    struct json_writer out = {.out = &answer};
    json_begin_object(&out);
    json_set_text(&out, "id", id);
    json_end_object(&out);
    http_respond_json(exchange, 201, buf_str(&answer));
}

static bool can(struct http_exchange *exchange, bool able)
{
    struct err err = {0};
    if (able)
        return true;
    err_set(&err, ERR_UNSUPPORTED, "this server takes no rollouts");
    api_answer_error(exchange, &err);
    return false;
}

static void answer_submit(struct api *api, struct http_exchange *exchange, struct str name)
{
    (void)name;
    if (can(exchange, api->submit))
        http_exchange_collect(exchange, api->body_bytes_max, on_body, api);
}

static void answer_cancel(struct api *api, struct http_exchange *exchange, struct str name)
{
    struct err err = {0};
    if (!can(exchange, api->cancel))
        return;
    OWN(mem) char *id = str_dup(name);
    if (api->cancel(api->context, id, "cancelled over the control listener", &err) < 0)
        api_answer_error(exchange, &err);
    else
        http_respond_json(exchange, 202, STR("{\"status\":\"cancelling\"}"));
}

const struct api_route api_submit_routes[] = {
    {"POST", "/v1/rollouts", false, answer_submit},
    {"DELETE", "/v1/rollouts/*", false, answer_cancel},
    {0},
};
