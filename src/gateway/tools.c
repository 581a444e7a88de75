/* tools.c - a rollout's own tools, called by the agent through its inlet.
 *
 *     GET  /v1/tools, /vf/tools?protocol=P     the definitions, in the shape of P
 *     POST /v1/tools/{name}                    body: the arguments; answer: the result
 *     POST /vf/tools/{name}                    body: {"arguments": {...}}; answer: {"result": ...}
 *     POST /vf/user, /vf/stop                  the trainer's, when {"type": "user"} or "stop" is
 *                                              among the tools; else nobody speaks and nothing
 * stops
 *
 * Who answers is in tools_run.c; mcp.c offers the same tools to MCP clients. What a rollout may
 * call was fixed when it was submitted: the definitions are the allowlist, and names that steer an
 * environment are never on it. A rollout reaches its own tools only, because its socket is its
 * identity. */
#include "gateway/tools.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "gateway/gateway.h"
#include "gateway/inner.h"

#define TOOLS_MAX 128
#define NAME_BYTES_MAX 64
#define BYTES_MAX ((size_t)1 << 20)

static const char *const reserved[] = {"reset", "step", "state", "close"};

struct tools {
    struct buf source;
    struct json_doc doc;
};

/* A call on its way, over plain HTTP. */
struct tool_call {
    struct http_exchange *exchange;
    struct tool_run *run;
    bool function, wrapped; /* wrapped: the answer is {"result": ...} */
};

/* ---------------------------------------------------------------- definitions */

static struct json function_of(struct json tool)
{
    struct json function = json_get(tool, "function");
    return json_type(function) == JSON_OBJECT ? function : tool;
}

static struct json schema_of(struct json tool)
{
    struct json schema = json_get(function_of(tool), "parameters");
    return json_exists(schema) ? schema : json_get(tool, "input_schema");
}

static int check_name(struct str name, struct err *err)
{
    if (!name.size || name.size > NAME_BYTES_MAX)
        return err_set(err, ERR_INPUT, "a tool's name has 1 to %d characters", NAME_BYTES_MAX);
    for (size_t i = 0; i < name.size; i++)
        if (!isalnum((unsigned char)name.data[i]) && name.data[i] != '_' && name.data[i] != '-')
            return err_set(err, ERR_INPUT, "tool '%.*s': a name has letters, digits, _ and - only",
                           STR_ARGS(name));
    for (size_t i = 0; i < COUNT(reserved); i++)
        if (str_equal_nocase(name, str_of(reserved[i])))
            return err_set(err, ERR_INPUT, "tool '%.*s': this name is reserved", STR_ARGS(name));
    return 0;
}

/* {"type": "user"}: not a function but a handler. */
static bool is_handler(struct json tool)
{
    struct json type = json_get(tool, "type");
    return json_is(type, "user") || json_is(type, "stop");
}

bool tools_have_handler(const struct tools *tools, enum tool_kind kind)
{
    if (!tools)
        return false;
    JSON_EACH (item, json_root(&tools->doc))
        if (json_is(json_get(item.value, "type"), kind == TOOL_USER ? "user" : "stop"))
            return true;
    return false;
}

static struct json find_tool(const struct tools *tools, struct str name)
{
    OWN(arena) struct arena arena = {0};
    JSON_EACH (item, json_root(&tools->doc))
        if (!is_handler(item.value) &&
            str_equal(json_str(json_get(function_of(item.value), "name"), &arena), name))
            return item.value;
    return (struct json){0};
}

static int check(const struct tools *tools, struct err *err)
{
    OWN(arena) struct arena arena = {0};
    struct json root = json_root(&tools->doc);
    if (json_type(root) != JSON_ARRAY)
        return err_set(err, ERR_INPUT, "'tools' is not an array");
    if (json_size(root) > TOOLS_MAX)
        return err_set(err, ERR_INPUT, "'tools' has more than %d entries", TOOLS_MAX);
    JSON_EACH (item, root) {
        if (is_handler(item.value))
            continue;
        struct json name = json_get(function_of(item.value), "name");
        struct json schema = schema_of(item.value);
        struct str text = json_str(name, &arena);
        if (json_type(name) != JSON_STRING)
            return err_set(err, ERR_INPUT, "'tools': an entry has no name");
        if (check_name(text, err) < 0)
            return -1;
        if (json_exists(schema) && json_type(schema) != JSON_OBJECT)
            return err_set(err, ERR_INPUT, "tool '%.*s': its parameters are no object",
                           STR_ARGS(text));
        struct json by = json_get(item.value, "answered_by");
        if (json_exists(by) && !json_is(by, "trainer") && !json_is(by, "task"))
            return err_set(err, ERR_INPUT, "tool '%.*s': 'answered_by' is trainer or task",
                           STR_ARGS(text));
        struct json first = find_tool(tools, text);
        if (first.at != item.value.at)
            return err_set(err, ERR_INPUT, "tool '%.*s' is there twice", STR_ARGS(text));
    }
    return 0;
}

struct tools *tools_new(struct str definitions, struct err *err)
{
    struct tools *tools = mem_zero(sizeof *tools);
    buf_str_append(&tools->source, definitions);
    int result = json_read(&tools->doc, buf_str(&tools->source), NULL, err);
    if (result < 0)
        err->kind = ERR_INPUT;
    if (result == 0 && check(tools, err) == 0)
        return tools;
    tools_free(tools);
    return NULL;
}

void tools_free(struct tools *tools)
{
    if (!tools)
        return;
    json_doc_deinit(&tools->doc);
    buf_deinit(&tools->source);
    free(tools);
}

bool tools_have(const struct tools *tools, struct str name)
{
    return tools && json_exists(find_tool(tools, name));
}

bool tools_by_task(const struct tools *tools, struct str name)
{
    return json_is(json_get(find_tool(tools, name), "answered_by"), "task");
}

bool tools_need_trainer(const struct tools *tools)
{
    JSON_EACH (item, json_root(&tools->doc))
        if (!is_handler(item.value) && !json_is(json_get(item.value, "answered_by"), "task"))
            return true;
    return false;
}

void tools_each(const struct tools *tools, void (*each)(void *context, const struct tool *tool),
                void *context)
{
    if (!tools)
        return;
    JSON_EACH (item, json_root(&tools->doc)) {
        struct json function = function_of(item.value);
        if (is_handler(item.value))
            continue;
        each(context, &(struct tool){.name = json_get(function, "name"),
                                     .description = json_get(function, "description"),
                                     .schema = schema_of(item.value),
                                     .whole = item.value});
    }
}

int gateway_tools_check(struct str definitions, struct err *err)
{
    struct tools *tools = tools_new(definitions, err);
    tools_free(tools);
    return tools ? 0 : -1;
}

static void note_function(void *context, const struct tool *tool)
{
    (void)tool;
    *(bool *)context = true;
}

int tools_check_answered(const struct tools *tools, const struct gateway *gateway, struct err *err)
{
    if (gateway->gate || !tools_need_trainer(tools))
        return 0;
    return err_set(err, ERR_UNSUPPORTED,
                   "the trainer answers these tools: that needs `postern serve`");
}

int gateway_tools_fit(const struct gateway *gateway, struct str definitions,
                      struct gateway_tools_facts *facts, struct err *err)
{
    struct tools *tools = tools_new(definitions, err);
    if (!tools)
        return -1;
    tools_each(tools, note_function, &facts->functions);
    facts->user = tools_have_handler(tools, TOOL_USER);
    int result = tools_check_answered(tools, gateway, err);
    tools_free(tools);
    return result;
}

/* ---------------------------------------------------------------- listing */

static const char *const protocols[] = {"openai_chat_completions", "openai_responses",
                                        "anthropic_messages", "vf"};

static void write_members(struct json tool, const char *schema_key, struct json_writer *out)
{
    struct json function = function_of(tool), schema = schema_of(tool);
    struct json description = json_get(function, "description");
    json_set_raw(out, "name", json_raw(json_get(function, "name")));
    if (json_type(description) == JSON_STRING)
        json_set_raw(out, "description", json_raw(description));
    json_set_raw(out, schema_key,
                 json_exists(schema) ? json_raw(schema)
                                     : STR("{\"type\":\"object\",\"properties\":{}}"));
}

static void write_tool(struct json tool, size_t protocol, struct json_writer *out)
{
    json_begin_object(out);
    if (protocol == 0) {
        json_set_text(out, "type", "function");
        json_key(out, "function");
        json_begin_object(out);
        write_members(tool, "parameters", out);
        json_end_object(out);
    } else {
        if (protocol == 1)
            json_set_text(out, "type", "function");
        write_members(tool, protocol == 2 ? "input_schema" : "parameters", out);
    }
    json_end_object(out);
}

static void answer_text(struct http_exchange *exchange, int status, const char *text)
{
    OWN(buf) struct buf body = {0};
    struct json_writer out = {.out = &body};
    json_begin_object(&out);
    json_set_text(&out, "error", text);
    json_end_object(&out);
    http_respond_json(exchange, status, buf_str(&body));
}

static void answer_list(struct gateway_session *session, struct http_exchange *exchange)
{
    OWN(buf) struct buf name = {0};
    OWN(buf) struct buf body = {0};
    size_t protocol = 0;
    if (http_query_get(http_exchange_query(exchange), "protocol", &name)) {
        while (protocol < COUNT(protocols) && !str_is(buf_str(&name), protocols[protocol]))
            protocol++;
        if (protocol == COUNT(protocols)) {
            session_refused(session, REFUSED_INPUT);
            answer_text(exchange, 400,
                        "protocol is openai_chat_completions, openai_responses, "
                        "anthropic_messages or vf");
            return;
        }
    }
    struct json_writer out = {.out = &body};
    json_begin_object(&out);
    json_key(&out, "tools");
    json_begin_array(&out);
    if (session->tools) {
        JSON_EACH (item, json_root(&session->tools->doc))
            if (!is_handler(item.value))
                write_tool(item.value, protocol, &out);
    }
    json_end_array(&out);
    json_end_object(&out);
    http_respond_json(exchange, 200, buf_str(&body));
}

/* ---------------------------------------------------------------- one call */

/* The one end: whoever answers has let go of the exchange. */
static void tool_call_free(struct tool_call *tool)
{
    tool_run_close(tool->run);
    free(tool);
}

static void on_result(void *context, struct str body)
{
    struct tool_call *tool = context;
    OWN(json_doc) struct json_doc doc = {0};
    OWN(buf) struct buf wrapped = {0};
    if (!tool->function) {
        http_respond_json(tool->exchange, 200, body);
        tool_call_free(tool);
        return;
    }
    (void)json_read(&doc, body, NULL, NULL); /* it was read before it was taken */
    struct json result = json_get(json_root(&doc), "result");
    if (tool->wrapped || json_type(result) != JSON_OBJECT)
        buf_format(&wrapped, "{\"result\":%.*s}", STR_ARGS(json_raw(result)));
    http_respond_json(tool->exchange, 200, wrapped.size ? buf_str(&wrapped) : json_raw(result));
    tool_call_free(tool);
}

static void on_fail(void *context, const struct err *err, const char *text, int http_status)
{
    struct tool_call *tool = context;
    (void)err;
    answer_text(tool->exchange, http_status, text);
    tool_call_free(tool);
}

static void on_gone(void *context)
{
    tool_call_free(context);
}

static void start(struct gateway_session *session, struct http_exchange *exchange,
                  enum tool_kind kind, struct str name, struct json arguments, bool wrapped)
{
    static const struct tool_run_handlers handlers = {on_result, on_fail};
    struct tool_call *tool = mem_zero(sizeof *tool);
    struct err err = {0};
    *tool = (struct tool_call){exchange, NULL, kind == TOOL_FUNCTION, wrapped};
    tool->run = tool_run_start(session, kind, name, json_raw(arguments), &handlers, tool, &err);
    if (!tool->run) {
        free(tool);
        answer_text(exchange, tool_refusal_status(&err), err.text);
        return;
    }
    http_exchange_notify(exchange, 0, NULL, on_gone, tool);
}

/* ---------------------------------------------------------------- routes */

static void take_body(struct gateway_session *session, struct http_exchange *exchange,
                      struct str body, enum tool_kind kind, bool wrapped)
{
    OWN(json_doc) struct json_doc doc = {0};
    struct json_limits limits = {.depth_max = 64, .nodes_max = 1u << 20};
    struct str name = session_path(session, exchange); /* its last part */
    for (struct str rest = name; rest.data;)
        name = str_cut(&rest, '/');
    if (json_read(&doc, str_trim(body).size ? body : STR("{}"), &limits, NULL) < 0) {
        answer_text(exchange, 400, "the body is no JSON");
        return;
    }
    struct json arguments = json_root(&doc);
    if (wrapped && kind == TOOL_FUNCTION)
        arguments = json_get(arguments, "arguments");
    if (json_type(arguments) != JSON_OBJECT)
        answer_text(exchange, 400, "tool arguments must be a JSON object");
    else
        start(session, exchange, kind, name, arguments, wrapped);
}

static void on_plain_body(void *context, struct http_exchange *exchange, struct str body,
                          const struct err *err)
{
    if (!err || err->kind == ERR_NONE)
        take_body(context, exchange, body, TOOL_FUNCTION, false);
}

static void on_wrapped_body(void *context, struct http_exchange *exchange, struct str body,
                            const struct err *err)
{
    if (!err || err->kind == ERR_NONE)
        take_body(context, exchange, body, TOOL_FUNCTION, true);
}

static void on_user_body(void *context, struct http_exchange *exchange, struct str body,
                         const struct err *err)
{
    if (!err || err->kind == ERR_NONE)
        take_body(context, exchange, body, TOOL_USER, true);
}

static void on_stop_body(void *context, struct http_exchange *exchange, struct str body,
                         const struct err *err)
{
    if (!err || err->kind == ERR_NONE)
        take_body(context, exchange, body, TOOL_STOP, true);
}

/* /vf/user and /vf/stop. */
static void answer_handler(struct gateway_session *session, struct http_exchange *exchange,
                           enum tool_kind kind)
{
    bool handled = tools_have_handler(session->tools, kind) && session->gateway->gate;
    if (kind == TOOL_STOP && session->stop_reason)
        http_respond_json(exchange, 200, STR("{\"done\":true,\"stop_condition\":\"stopped\"}"));
    else if (handled)
        http_exchange_collect(exchange, BYTES_MAX, kind == TOOL_USER ? on_user_body : on_stop_body,
                              session);
    else if (kind == TOOL_USER)
        http_respond_json(exchange, 200, STR("{\"messages\":[]}"));
    else
        http_respond_json(exchange, 200, STR("{\"done\":false,\"stop_condition\":null}"));
}

bool tools_request(struct gateway_session *session, struct http_exchange *exchange, struct str path)
{
    bool get = str_is(http_exchange_method(exchange), "GET");
    bool post = str_is(http_exchange_method(exchange), "POST");
    bool vf = str_starts(path, STR("/vf/"));
    struct str name = vf ? str_from(path, 3) : path;
    if (vf && post && (str_is(name, "/user") || str_is(name, "/stop"))) {
        answer_handler(session, exchange, str_is(name, "/user") ? TOOL_USER : TOOL_STOP);
        return true;
    }
    if (!vf && str_starts(name, STR("/v1/")))
        name = str_from(name, 3);
    if (!str_starts(name, STR("/tools")) || (name.size > 6 && name.data[6] != '/'))
        return false;
    name = str_from(name, 7);
    if (!name.size && get) {
        answer_list(session, exchange);
    } else if (!post || !name.size) {
        session_refused(session, REFUSED_METHOD);
        answer_text(exchange, 405, name.size ? "this path takes POST" : "this path takes GET");
    } else if (!tools_have(session->tools, name)) {
        session_refused(session, REFUSED_PATH);
        answer_text(exchange, 404, "tool not found");
    } else {
        http_exchange_collect(exchange, BYTES_MAX, vf ? on_wrapped_body : on_plain_body, session);
    }
    return true;
}
