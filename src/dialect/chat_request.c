/* chat_request.c - the agent's side of chat completions: what it asks for, and what is imposed on
 * it.
 *
 * Reading is strict about what a model call must have (model, messages, roles) and about the types
 * of what it understands; anything else passes. null means absent, as everywhere in this API.
 * Errors name the place in the body, because the agent's author will read them. */
#include <stdio.h>

#include "base/err.h"
#include "base/mem.h"
#include "dialect/chat.h"
#include "dialect/read.h"

/* ---------------------------------------------------------------- messages */

static enum trace_part_kind part_kind(struct json type)
{
    static const struct {
        const char *type;
        enum trace_part_kind kind;
    } kinds[] = {{"text", TRACE_PART_TEXT},         {"input_text", TRACE_PART_TEXT},
                 {"output_text", TRACE_PART_TEXT},  {"refusal", TRACE_PART_REFUSAL},
                 {"image_url", TRACE_PART_IMAGE},   {"input_image", TRACE_PART_IMAGE},
                 {"input_audio", TRACE_PART_AUDIO}, {"file", TRACE_PART_FILE}};
    for (size_t i = 0; i < COUNT(kinds); i++)
        if (json_is(type, kinds[i].type))
            return kinds[i].kind;
    return TRACE_PART_OTHER;
}

static int read_part(struct read_context *context, struct json part, struct trace_part *out)
{
    if (json_type(part) == JSON_STRING) {
        *out = (struct trace_part){TRACE_PART_TEXT, json_str(part, context->arena), STR_NONE};
        return out->text.data ? 0 : read_out_of_room(context);
    }
    if (json_type(part) != JSON_OBJECT || json_type(json_get(part, "type")) != JSON_STRING)
        return read_fail_type(context, "content", "a string or an array of parts with a type");
    *out = (struct trace_part){.kind = part_kind(json_get(part, "type"))};
    if (out->kind == TRACE_PART_TEXT)
        return read_text(context, part, "text", true, &out->text);
    if (out->kind == TRACE_PART_REFUSAL)
        return read_text(context, part, "refusal", true, &out->text);
    out->raw = json_raw(part);
    return 0;
}

static int read_content(struct read_context *context, struct json message,
                        struct trace_message *out)
{
    struct json content = json_get(message, "content");
    struct json refusal = json_get(message, "refusal");
    size_t count = json_type(content) == JSON_ARRAY ? json_size(content) : read_is_there(content);
    count += json_type(refusal) == JSON_STRING;
    if (count == 0)
        return 0;
    struct trace_part *parts = arena_alloc(context->arena, count * sizeof *parts);
    if (!parts)
        return read_out_of_room(context);
    size_t at = 0;
    if (json_type(content) == JSON_ARRAY) {
        JSON_EACH (item, content)
            if (read_part(context, item.value, &parts[at++]) < 0)
                return -1;
    } else if (read_is_there(content)) {
        if (json_type(content) != JSON_STRING)
            return read_fail_type(context, "content", "a string or an array of parts with a type");
        if (read_part(context, content, &parts[at++]) < 0)
            return -1;
    }
    if (at < count) {
        parts[at].kind = TRACE_PART_REFUSAL;
        if (read_text(context, message, "refusal", true, &parts[at].text) < 0)
            return -1;
    }
    out->parts = parts;
    out->part_count = count;
    return 0;
}

/* `arguments` is a string that should hold JSON; some clients send the object itself. */
static int read_function(struct read_context *context, struct json function, const char *input,
                         struct trace_tool_call *out)
{
    if (read_text(context, function, "name", true, &out->name) < 0)
        return -1;
    struct json arguments = json_get(function, input);
    if (json_type(arguments) == JSON_OBJECT) {
        out->arguments = json_raw(arguments);
        return 0;
    }
    out->arguments = STR("");
    return read_text(context, function, input, false, &out->arguments);
}

static int read_tool_call(struct read_context *context, struct json call,
                          struct trace_tool_call *out)
{
    if (json_type(call) != JSON_OBJECT)
        return read_fail_type(context, "tool_calls", "an array of objects");
    out->id = STR("");
    if (read_text(context, call, "id", false, &out->id) < 0)
        return -1;
    if (json_type(json_get(call, "custom")) == JSON_OBJECT) {
        if (read_function(context, json_get(call, "custom"), "input", out) < 0)
            return -1;
        out->arguments = read_custom_input(context, out->arguments);
        return out->arguments.data ? 0 : read_out_of_room(context);
    }
    if (json_type(json_get(call, "function")) != JSON_OBJECT)
        return read_fail_type(context, "tool_calls[].function", "an object");
    return read_function(context, json_get(call, "function"), "arguments", out);
}

static int read_tool_calls(struct read_context *context, struct json message,
                           struct trace_message *out)
{
    struct json calls = json_get(message, "tool_calls");
    struct json old = json_get(message, "function_call"); /* before there were several */
    bool one = !read_is_there(calls) && json_type(old) == JSON_OBJECT;
    if (!read_is_there(calls) && !one)
        return 0;
    if (!one && json_type(calls) != JSON_ARRAY)
        return read_fail_type(context, "tool_calls", "an array");
    size_t count = one ? 1 : json_size(calls);
    struct trace_tool_call *list = arena_alloc(context->arena, count * sizeof *list);
    if (!list)
        return read_out_of_room(context);
    if (one && read_function(context, old, "arguments", &list[0]) < 0)
        return -1;
    size_t at = 0;
    JSON_EACH (item, calls)
        if (read_tool_call(context, item.value, &list[at++]) < 0)
            return -1;
    out->calls = list;
    out->call_count = count;
    return 0;
}

/* reasoning_details: readable pieces, signed and encrypted ones; the server wants them back as they
 * are. */
static int read_details(struct read_context *context, struct json details,
                        struct trace_message *out)
{
    OWN(buf) struct buf text = {0};
    if (json_type(details) != JSON_ARRAY || json_size(details) == 0)
        return 0;
    out->opaque = json_raw(details);
    JSON_EACH (item, details) {
        struct json piece = json_get(item.value, "text");
        if (json_type(piece) != JSON_STRING)
            piece = json_get(item.value, "summary");
        struct str words = json_str(piece, context->arena);
        if (text.size && words.size)
            buf_byte(&text, '\n');
        buf_str_append(&text, words);
    }
    if (!text.size || out->reasoning.size)
        return 0;
    out->reasoning = arena_str(context->arena, buf_str(&text));
    return out->reasoning.data ? 0 : read_out_of_room(context);
}

static int read_reasoning(struct read_context *context, struct json message,
                          struct trace_message *out)
{
    struct json details = json_get(message, "reasoning_details");
    const char *key = json_type(json_get(message, "reasoning_content")) == JSON_STRING
                          ? "reasoning_content"
                          : "reasoning";
    if (json_type(details) == JSON_STRING)
        key = "reasoning_details";
    if (json_type(json_get(message, key)) == JSON_STRING &&
        read_text(context, message, key, true, &out->reasoning) < 0)
        return -1;
    return read_details(context, details, out);
}

static int read_message(struct read_context *context, struct json message,
                        struct trace_message *out)
{
    struct str role = STR_NONE;
    if (json_type(message) != JSON_OBJECT)
        return err_set(context->err, ERR_INPUT, "%s must be an object", context->where);
    if (read_text(context, message, "role", true, &role) < 0)
        return -1;
    if (!trace_role_find(role, &out->role)) {
        role = str_upto(role, 40);
        return err_set(context->err, ERR_INPUT, "%s.role: there is no role '%.*s'", context->where,
                       STR_ARGS(role));
    }
    if (read_text(context, message, "name", false, &out->name) < 0 ||
        read_text(context, message, "tool_call_id", false, &out->tool_call_id) < 0 ||
        read_reasoning(context, message, out) < 0 || read_content(context, message, out) < 0)
        return -1;
    return read_tool_calls(context, message, out);
}

static int read_messages(struct read_context *context, struct json body, struct trace_request *out)
{
    struct json messages = json_get(body, "messages");
    if (json_type(messages) != JSON_ARRAY || json_size(messages) == 0)
        return err_set(context->err, ERR_INPUT,
                       "messages must be an array with at least one message");
    struct trace_message *list = read_room(context, messages, sizeof *list);
    if (!list || read_skim_begin(context, messages, 0) < 0)
        return -1;
    size_t at, unread;
    struct json_item item = read_skim_first(context, messages, &at, &unread);
    for (; json_exists(item.value); item = json_following(item)) {
        char where[40];
        snprintf(where, sizeof where, "messages[%zu]", at);
        context->where = where;
        int result = read_message(context, item.value, &list[at++]);
        context->where = NULL;
        if (result < 0)
            return -1;
        read_skim_end(context, at - 1, at, false);
    }
    out->messages = list;
    out->message_count = at;
    return 0;
}

/* ---------------------------------------------------------------- tools and sampling */

static int read_tool(struct read_context *context, struct json tool, struct trace_tool *out)
{
    if (json_type(tool) != JSON_OBJECT)
        return read_fail_type(context, "tools", "an array of objects");
    struct json inner = json_get(tool, "function");
    if (json_type(inner) != JSON_OBJECT) {
        inner = json_get(tool, "custom");
        out->custom = json_type(inner) == JSON_OBJECT;
    }
    if (json_type(inner) != JSON_OBJECT && json_type(json_get(tool, "name")) == JSON_STRING)
        inner = tool; /* an element of the older `functions` */
    if (json_type(inner) != JSON_OBJECT) {
        /* A tool of the model server's own, known by its type alone. */
        out->parameters = json_raw(tool);
        return read_text(context, tool, "type", true, &out->name);
    }
    if (read_text(context, inner, "name", true, &out->name) < 0 ||
        read_text(context, inner, "description", false, &out->description) < 0)
        return -1;
    out->strict = read_bool(json_get(inner, "strict"));
    if (json_type(json_get(inner, "parameters")) == JSON_OBJECT)
        out->parameters = json_raw(json_get(inner, "parameters"));
    else if (out->custom)
        out->parameters = read_custom_schema(context, json_get(inner, "format"));
    return out->custom && !out->parameters.data ? read_out_of_room(context) : 0;
}

static int read_tool_list(struct read_context *context, struct json tools, const char *key,
                          struct trace_request *out)
{
    if (json_type(tools) != JSON_ARRAY)
        return read_fail_type(context, key, "an array");
    struct trace_tool *list = read_room(context, tools, sizeof *list);
    if (!list)
        return -1;
    size_t at = 0;
    context->where = key;
    JSON_EACH (item, tools)
        if (read_tool(context, item.value, &list[at++]) < 0)
            return -1;
    context->where = NULL;
    out->tools = list;
    out->tool_count = at;
    return 0;
}

static int read_tools(struct read_context *context, struct json body, struct trace_request *out)
{
    const char *key = read_is_there(json_get(body, "tools")) ? "tools" : "functions";
    struct json tools = json_get(body, key);
    if (!read_is_there(tools))
        return 0;
    if (!read_skim_tools(context, tools, &out->tool_count) &&
        read_tool_list(context, tools, key, out) < 0)
        return -1;
    if (read_is_there(json_get(body, "tool_choice")))
        out->tool_choice = json_raw(json_get(body, "tool_choice"));
    return 0;
}

static int read_sampling(struct read_context *context, struct json body, struct trace_sampling *out)
{
    if (read_number(context, body, "temperature", &out->has_temperature, &out->temperature) < 0 ||
        read_number(context, body, "top_p", &out->has_top_p, &out->top_p) < 0 ||
        read_tokens_max(context, body, "max_tokens", &out->tokens_max) < 0 ||
        read_tokens_max(context, body, "max_completion_tokens", &out->tokens_max) < 0)
        return -1;
    long long seed;
    out->has_seed = json_int(json_get(body, "seed"), &seed);
    out->seed = out->has_seed ? seed : 0;
    return read_texts(context, body, "stop", &out->stop, &out->stop_count);
}

int chat_read_request(struct json body, struct dialect_skim *skim, struct arena *arena,
                      struct trace_request *out, struct err *err)
{
    struct read_context context = {.arena = arena, .err = err, .skim = skim};
    if (json_type(body) != JSON_OBJECT)
        return err_set(err, ERR_INPUT, "the body must be a JSON object");
    if (read_text(&context, body, "model", true, &out->model) < 0)
        return -1;
    if (out->model.size == 0)
        return err_set(err, ERR_INPUT, "model must not be empty");
    if (read_messages(&context, body, out) < 0 || read_tools(&context, body, out) < 0 ||
        read_sampling(&context, body, &out->sampling) < 0 ||
        read_flag(&context, body, "stream", &out->stream) < 0 ||
        read_flag(&context, body, "logprobs", &out->wants_logprobs) < 0)
        return -1;
    out->stream_usage = json_true(json_get(json_get(body, "stream_options"), "include_usage"));
    out->wants_token_ids = json_true(json_get(body, "return_token_ids"));
    static const char *const counts[] = {"n", "best_of"};
    for (size_t i = 0; i < COUNT(counts); i++) {
        struct json count = json_get(body, counts[i]);
        if (read_is_there(count) && json_int_or(count, 0) != 1)
            return err_set(err, ERR_INPUT, "%s must be 1: there is one answer per call", counts[i]);
    }
    return 0;
}

/* ---------------------------------------------------------------- overrides */

struct edits {
    struct json_edit rows[16];
    size_t count;
};

static void edit(struct edits *edits, const char *key, struct str value)
{
    edits->rows[edits->count++] = (struct json_edit){key, value};
}

static void edit_number(struct edits *edits, const char *key, double value, struct buf *text)
{
    struct json_writer writer = {.out = text};
    json_put_double(&writer, value);
    edit(edits, key, buf_str(text));
}

/* Models that know only the newer spelling of the limit. */
bool chat_newer_limit(struct str model)
{
    static const char *const newer[] = {"gpt-5", "o1", "o3", "o4"};
    long slash;
    while ((slash = str_find_byte(model, '/')) >= 0)
        model = str_from(model, (size_t)slash + 1);
    for (size_t i = 0; i < COUNT(newer); i++)
        if (str_starts(model, str_of(newer[i])))
            return true;
    return false;
}

/* The agent's own choice of spelling is kept unless the model has only the newer one; the other is
 * removed if both are there. A limit of the agent's that is smaller stays. */
static void edit_tokens_max(struct edits *edits, struct json body,
                            const struct dialect_override *override, struct buf *text)
{
    struct json old_value = json_get(body, "max_tokens");
    struct json new_value = json_get(body, "max_completion_tokens");
    bool newer = read_is_there(new_value);
    struct json asked = newer ? new_value : old_value;
    int64_t max = override->tokens_max ? read_cap(override->tokens_max, asked) : 0;
    bool rename = !newer && read_is_there(old_value) && chat_newer_limit(override->model);
    if (!max && !rename && !(override->tokens_max && newer && read_is_there(old_value)))
        return;
    newer |= chat_newer_limit(override->model);
    buf_format(text, "%lld", max ? (long long)max : json_int_or(asked, 0));
    edit(edits, newer ? "max_completion_tokens" : "max_tokens", buf_str(text));
    edit(edits, newer ? "max_tokens" : "max_completion_tokens", STR_NONE);
}

/* What the agent itself says about thinking stays. */
bool chat_thinking_off(struct json body, struct buf *out)
{
    struct json options = json_get(body, "chat_template_kwargs");
    struct json_edit off = {"enable_thinking", STR("false")};
    if (json_exists(json_get(options, "enable_thinking")))
        return false;
    if (json_type(options) == JSON_OBJECT)
        json_splice(options, &off, 1, out);
    else
        buf_format(out, "{\"enable_thinking\":false}");
    return true;
}

/* SGLang gives the prompt's ids only with whole answers, and what vLLM is to render and derender is
 * no stream either. */
static bool gives_whole(const struct dialect_override *override)
{
    return override->capture && (override->engine == DIALECT_ENGINE_SGLANG ||
                                 override->engine == DIALECT_ENGINE_VLLM_GENERATE);
}

static void edit_capture(struct edits *edits, struct json body, enum dialect_engine engine)
{
    bool asked = json_true(json_get(body, "logprobs"));
    if (engine != DIALECT_ENGINE_VLLM_GENERATE)
        edit(edits, "logprobs", STR("true"));
    switch (engine) {
    case DIALECT_ENGINE_AUTO:
    case DIALECT_ENGINE_VLLM:
        /* Token texts in log-probability entries stay texts when the agent itself wants to read
         * them. */
        if (!asked)
            edit(edits, "return_tokens_as_token_ids", STR("true"));
        edit(edits, "return_token_ids", STR("true"));
        break;
    case DIALECT_ENGINE_SGLANG:
        edit(edits, "return_meta_info", STR("true"));
        edit(edits, "return_prompt_token_ids", STR("true"));
        break;
    case DIALECT_ENGINE_VLLM_GENERATE:
    case DIALECT_ENGINE_OPENAI:
        break;
    }
}

static void edit_stream_options(struct edits *edits, struct json body, struct buf *text)
{
    struct json options = json_get(body, "stream_options");
    struct json_edit usage = {"include_usage", STR("true")};
    if (json_type(options) == JSON_OBJECT)
        json_splice(options, &usage, 1, text);
    else
        buf_format(text, "{\"include_usage\":true}");
    edit(edits, "stream_options", buf_str(text));
}

void chat_rewrite_request(struct json body, const struct dialect_override *override,
                          struct buf *out)
{
    OWN(buf) struct buf model = {0}, temperature = {0}, top_p = {0}, max = {0}, options = {0};
    OWN(buf) struct buf thinking = {0};
    struct edits edits = {0};
    if (override->model.data) {
        json_quote(&model, override->model);
        edit(&edits, "model", buf_str(&model));
    }
    if (override->has_temperature)
        edit_number(&edits, "temperature", override->temperature, &temperature);
    if (override->has_top_p)
        edit_number(&edits, "top_p", override->top_p, &top_p);
    edit_tokens_max(&edits, body, override, &max);
    if (override->thinking_off && chat_thinking_off(body, &thinking))
        edit(&edits, "chat_template_kwargs", buf_str(&thinking));
    if (override->capture)
        edit_capture(&edits, body, override->engine);
    if (gives_whole(override)) {
        edit(&edits, "stream", STR("false"));
        edit(&edits, "stream_options", STR_NONE);
    } else if (override->usage && json_true(json_get(body, "stream"))) {
        edit_stream_options(&edits, body, &options);
    }
    json_splice_around(body, edits.rows, edits.count, out, override->gap);
}
