/* dialect_responses.c - OpenAI responses as spoken by model servers: reading their answers, whole
 * or streamed.
 *
 * Servers differ in which events they send. Deltas are taken as they come; an item's end brings
 * what no delta brought. Only response.completed or response.incomplete is an end. */
#include "base/err.h"
#include "base/mem.h"
#include "dialect/chat.h"
#include "dialect/responses.h"

static void take_usage(struct answer_builder *builder, struct json usage)
{
    if (json_type(usage) != JSON_OBJECT)
        return;
    builder->usage = (struct trace_usage){
        .known = true,
        .prompt_tokens = json_int_or(json_get(usage, "input_tokens"), 0),
        .completion_tokens = json_int_or(json_get(usage, "output_tokens"), 0),
        .cached_tokens =
            json_int_or(json_get(json_get(usage, "input_tokens_details"), "cached_tokens"), -1),
        .reasoning_tokens = json_int_or(
            json_get(json_get(usage, "output_tokens_details"), "reasoning_tokens"), -1)};
}

static void take_head(struct answer_builder *builder, struct json response, struct arena *scratch)
{
    answer_set(&builder->id, json_str(json_get(response, "id"), scratch));
    answer_set(&builder->model, json_str(json_get(response, "model"), scratch));
    if (!builder->created_s)
        builder->created_s = json_int_or(json_get(response, "created_at"), 0);
}

/* Texts of the parts of a list, all in one. */
static void take_texts(struct answer_builder *builder, enum trace_delta_kind kind, struct json list,
                       const char *key, struct arena *scratch)
{
    JSON_EACH (item, list) {
        struct json text = json_get(item.value, key);
        if (json_type(text) == JSON_STRING)
            answer_add(builder, kind, json_str(text, scratch));
    }
}

static int take_call(struct answer_builder *builder, int64_t index, struct json item,
                     struct arena *scratch, struct err *err)
{
    bool custom = json_is(json_get(item, "type"), "custom_tool_call");
    struct str id = json_str(json_get(item, "call_id"), scratch);
    struct str name = json_str(json_get(item, "name"), scratch);
    struct str space = json_str(json_get(item, "namespace"), scratch);
    if (space.size && name.size)
        name = str_of(arena_format(scratch, "%.*s__%.*s", STR_ARGS(space), STR_ARGS(name)));
    struct answer_call *call = answer_call(builder, index, id, name);
    if (!call)
        return err_set(err, ERR_PROTOCOL, "the model server's answer has more than %d tool calls",
                       ANSWER_CALLS_MAX);
    struct str arguments = json_str(json_get(item, custom ? "input" : "arguments"), scratch);
    if (call->arguments.size)
        arguments = STR_NONE; /* the deltas brought it */
    OWN(buf) struct buf wrapped = {0};
    if (custom && arguments.size) {
        buf_format(&wrapped, "{\"input\":");
        json_quote(&wrapped, arguments);
        buf_byte(&wrapped, '}');
        arguments = buf_str(&wrapped);
    }
    answer_call_add(builder, call, id, name, arguments);
    return 0;
}

static bool is_call(struct json item)
{
    return json_is(json_get(item, "type"), "function_call") ||
           json_is(json_get(item, "type"), "custom_tool_call");
}

/* A whole item: what its deltas did not bring. */
static int take_item(struct answer_builder *builder, int64_t index, struct json item,
                     struct arena *scratch, struct err *err)
{
    struct json type = json_get(item, "type");
    bool fresh = builder->item_bytes == 0;
    builder->item_bytes = 0;
    if (is_call(item))
        return take_call(builder, index, item, scratch, err);
    if (json_is(type, "message")) {
        struct json content = json_get(item, "content");
        if (fresh) {
            take_texts(builder, TRACE_DELTA_TEXT, content, "text", scratch);
            take_texts(builder, TRACE_DELTA_REFUSAL, content, "refusal", scratch);
        }
        builder->item_bytes = 0;
        return 0;
    }
    if (json_is(type, "reasoning") && fresh) {
        take_texts(builder, TRACE_DELTA_REASONING, json_get(item, "summary"), "text", scratch);
        take_texts(builder, TRACE_DELTA_REASONING, json_get(item, "content"), "text", scratch);
    }
    builder->item_bytes = 0;
    answer_keep(builder, json_raw(item)); /* reasoning and the server's own tools, for replay */
    return 0;
}

static void finish(struct answer_builder *builder, struct json response, struct arena *scratch)
{
    struct str status = json_str(json_get(response, "status"), scratch);
    struct json reason = json_get(json_get(response, "incomplete_details"), "reason");
    enum trace_finish how = builder->call_count ? TRACE_FINISH_TOOL_CALLS : TRACE_FINISH_STOP;
    if (str_is(status, "incomplete"))
        how = json_is(reason, "content_filter") ? TRACE_FINISH_CONTENT_FILTER : TRACE_FINISH_LENGTH;
    answer_finish(builder, how, status.size ? status : STR("completed"));
}

/* A response with an error in it, or an event that is one itself. */
static int fail(struct json where, struct arena *scratch, struct err *err)
{
    struct str message, code;
    dialect_read_error(where, scratch, &message, &code);
    message = str_upto(message, 300);
    return err_set(err, ERR_LOST, "the model server reported an error: %.*s", STR_ARGS(message));
}

/* Only these two are ends that a whole answer may have. */
static bool is_over(struct json status)
{
    return json_type(status) != JSON_STRING || json_is(status, "completed") ||
           json_is(status, "incomplete");
}

static void take_delta(struct answer_builder *builder, enum trace_delta_kind kind, struct json data,
                       struct arena *scratch)
{
    struct str text = json_str(json_get(data, "delta"), scratch);
    builder->item_bytes += text.size;
    answer_add(builder, kind, text);
}

static int take_arguments(struct answer_builder *builder, int64_t index, struct json data,
                          struct arena *scratch, struct err *err)
{
    struct answer_call *call = answer_call(builder, index, STR_NONE, STR_NONE);
    if (!call)
        return err_set(err, ERR_PROTOCOL, "the model server's answer has more than %d tool calls",
                       ANSWER_CALLS_MAX);
    answer_call_add(builder, call, STR_NONE, STR_NONE, json_str(json_get(data, "delta"), scratch));
    return 0;
}

static int responses_read_event(struct answer_builder *builder, struct str name, struct json data,
                                struct arena *scratch, struct err *err)
{
    (void)name;
    struct json type = json_get(data, "type");
    struct json response = json_get(data, "response");
    int64_t index = json_int_or(json_get(data, "output_index"), 0);
    if (json_type(type) != JSON_STRING)
        return err_set(err, ERR_PROTOCOL, "an event of the model server's stream has no type");
    if (json_is(type, "response.output_text.delta"))
        take_delta(builder, TRACE_DELTA_TEXT, data, scratch);
    else if (json_is(type, "response.refusal.delta"))
        take_delta(builder, TRACE_DELTA_REFUSAL, data, scratch);
    else if (json_is(type, "response.reasoning_summary_text.delta") ||
             json_is(type, "response.reasoning_text.delta"))
        take_delta(builder, TRACE_DELTA_REASONING, data, scratch);
    else if (json_is(type, "response.function_call_arguments.delta"))
        return take_arguments(builder, index, data, scratch, err);
    else if (json_is(type, "response.output_item.added")) {
        builder->item_bytes = 0;
        struct json item = json_get(data, "item");
        return is_call(item) ? take_call(builder, index, item, scratch, err) : 0;
    } else if (json_is(type, "response.output_item.done"))
        return take_item(builder, index, json_get(data, "item"), scratch, err);
    else if (json_is(type, "response.created"))
        take_head(builder, response, scratch);
    else if (json_is(type, "response.failed"))
        return fail(response, scratch, err);
    else if (json_is(type, "error"))
        return fail(data, scratch, err);
    else if (json_is(type, "response.completed") || json_is(type, "response.incomplete")) {
        take_head(builder, response, scratch);
        take_usage(builder, json_get(response, "usage"));
        finish(builder, response, scratch);
    }
    return 0;
}

static int responses_read_body(struct answer_builder *builder, struct json body,
                               struct arena *scratch, struct err *err)
{
    struct json output = json_get(body, "output"), status = json_get(body, "status");
    if (json_is(status, "failed"))
        return fail(body, scratch, err);
    if (!is_over(status))
        return err_set(err, ERR_LOST, "the model server's answer is no answer: its status is %.*s",
                       STR_ARGS(str_upto(json_raw(status), 40)));
    if (json_type(output) != JSON_ARRAY)
        return err_set(err, ERR_PROTOCOL, "the model server's answer has no output");
    take_head(builder, body, scratch);
    take_usage(builder, json_get(body, "usage"));
    int64_t at = 0;
    JSON_EACH (item, output)
        if (take_item(builder, at++, item.value, scratch, err) < 0)
            return -1;
    finish(builder, body, scratch);
    return 0;
}

static bool responses_strip(struct json data, const struct dialect_reader_options *options,
                            struct buf *out)
{
    (void)data;
    (void)options;
    (void)out;
    return false;
}

static const struct dialect_path paths[] = {
    {"POST", "/responses", false, DIALECT_ROUTE_CALL},
    {"POST", "/responses/input_tokens", false, DIALECT_ROUTE_COUNT},
    {0},
};

const struct dialect dialect_responses = {
    .name = "responses",
    .summary = "OpenAI responses",
    .paths = paths,
    .upstream_path = "/responses",
    .count_object = "response.input_tokens",
    .keepalive = ": keepalive\n\n", /* before response.created the vendor's clients take no event */
    .keepalive_event = "data: {\"type\":\"keepalive\"}\n\n",
    .in_order = true,
    .read_request = responses_read_request,
    .rewrite_request = responses_rewrite_request,
    .write_answer = responses_write_answer,
    .write_error = chat_write_error,
    .write_models = chat_write_models,
    .write_delta = responses_write_delta,
    .write_opaque = responses_write_opaque,
    .write_finish = responses_write_finish,
    .read_event = responses_read_event,
    .read_body = responses_read_body,
    .end_marker = "[DONE]",
    .strip = responses_strip,
};
