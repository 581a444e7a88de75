/* messages_request.c - the agent's side of Anthropic messages: what it asks for, and what is
 * imposed on it.
 *
 * One turn of this protocol may be several messages of ours: each tool_result block of a user turn
 * becomes a tool message, in front of one user message with the rest. Thinking blocks are text for
 * people (`reasoning`) and opaque state for replay (`opaque`, byte for byte). cache_control and
 * unknown fields mean nothing here and stay in the body. */
#include <stdio.h>

#include "base/err.h"
#include "base/mem.h"
#include "dialect/messages.h"
#include "dialect/read.h"

#define BLOCKS "a string or an array of content blocks with a type"

/* An image's or document's source as a URL; the data itself stays where it is in `raw`. */
static int read_source(struct read_context *context, struct json block, struct trace_part *out)
{
    struct json source = json_get(block, "source");
    if (json_is(json_get(source, "type"), "url")) {
        out->text = json_str(json_get(source, "url"), context->arena);
        return 0;
    }
    if (!json_is(json_get(source, "type"), "base64"))
        return 0;
    struct str media = json_str(json_get(source, "media_type"), context->arena);
    struct str data = json_str(json_get(source, "data"), context->arena);
    char *url =
        arena_format(context->arena, "data:%.*s;base64,%.*s", STR_ARGS(media), STR_ARGS(data));
    if (!url)
        return read_out_of_room(context);
    out->text = str_of(url);
    return 0;
}

static int read_part(struct read_context *context, struct json block, struct trace_part *out)
{
    struct json type = json_get(block, "type");
    if (json_is(type, "text")) {
        out->kind = TRACE_PART_TEXT;
        return read_text(context, block, "text", true, &out->text);
    }
    out->kind = json_is(type, "image")      ? TRACE_PART_IMAGE
                : json_is(type, "document") ? TRACE_PART_FILE
                                            : TRACE_PART_OTHER;
    out->raw = json_raw(block);
    return out->kind == TRACE_PART_IMAGE ? read_source(context, block, out) : 0;
}

/* A string, or the blocks of an array for which `wanted` holds. */
static int read_parts(struct read_context *context, struct json content, const char *key,
                      bool (*wanted)(struct json type), struct trace_message *out)
{
    if (!read_is_there(content))
        return 0;
    bool single = json_type(content) == JSON_STRING;
    if (!single && json_type(content) != JSON_ARRAY)
        return read_fail_type(context, key, BLOCKS);
    struct trace_part *parts =
        arena_alloc(context->arena, (single ? 1 : json_size(content)) * sizeof *parts);
    if (!parts)
        return read_out_of_room(context);
    out->parts = parts;
    if (single) {
        parts[0].text = json_str(content, context->arena);
        out->part_count = 1;
        return parts[0].text.data ? 0 : read_out_of_room(context);
    }
    JSON_EACH (item, content) {
        struct json type = json_get(item.value, "type");
        if (json_type(type) != JSON_STRING)
            return read_fail_type(context, key, BLOCKS);
        if (!wanted(type))
            continue;
        if (read_part(context, item.value, &parts[out->part_count]) < 0)
            return -1;
        out->part_count++;
    }
    return 0;
}

static bool any_block(struct json type)
{
    return json_exists(type);
}

static bool is_thinking(struct json type)
{
    return json_is(type, "thinking") || json_is(type, "redacted_thinking");
}

static bool content_of_assistant(struct json type)
{
    return !is_thinking(type) && !json_is(type, "tool_use");
}

static bool content_of_user(struct json type)
{
    return !json_is(type, "tool_result");
}

/* ---------------------------------------------------------------- turns */

static int read_thinking(struct read_context *context, struct json content,
                         struct trace_message *out)
{
    OWN(buf) struct buf text = {0};
    OWN(buf) struct buf items = {0};
    JSON_EACH (item, content) {
        if (!is_thinking(json_get(item.value, "type")))
            continue;
        struct str thought = json_str(json_get(item.value, "thinking"), context->arena);
        if (text.size && thought.size)
            buf_byte(&text, '\n');
        buf_str_append(&text, thought);
        buf_byte(&items, items.size ? ',' : '[');
        buf_str_append(&items, json_raw(item.value));
    }
    if (text.size)
        out->reasoning = arena_str(context->arena, buf_str(&text));
    if (items.size) {
        buf_byte(&items, ']');
        out->opaque = arena_str(context->arena, buf_str(&items));
        if (!out->opaque.data)
            return read_out_of_room(context);
    }
    return 0;
}

static int read_calls(struct read_context *context, struct json content, struct trace_message *out)
{
    struct trace_tool_call *calls = NULL;
    JSON_EACH (item, content) {
        if (!json_is(json_get(item.value, "type"), "tool_use"))
            continue;
        if (!calls && !(calls = read_room(context, content, sizeof *calls)))
            return -1;
        struct trace_tool_call *call = &calls[out->call_count++];
        if (read_text(context, item.value, "id", true, &call->id) < 0 ||
            read_text(context, item.value, "name", true, &call->name) < 0)
            return -1;
        struct json input = json_get(item.value, "input");
        call->arguments = read_is_there(input) ? json_raw(input) : STR("{}");
    }
    out->calls = calls;
    return 0;
}

static int read_assistant(struct read_context *context, struct json content,
                          struct trace_message *out)
{
    out->role = TRACE_ASSISTANT;
    if (read_parts(context, content, "content", content_of_assistant, out) < 0)
        return -1;
    if (json_type(content) != JSON_ARRAY)
        return 0;
    return read_thinking(context, content, out) < 0 ? -1 : read_calls(context, content, out);
}

static int read_tool_result(struct read_context *context, struct json block,
                            struct trace_message *out)
{
    out->role = TRACE_TOOL;
    out->failed = json_true(json_get(block, "is_error"));
    if (read_text(context, block, "tool_use_id", true, &out->tool_call_id) < 0)
        return -1;
    return read_parts(context, json_get(block, "content"), "content", any_block, out);
}

/* Returns how many messages the turn became, or -1. */
static int read_user(struct read_context *context, struct json content, struct trace_message *out)
{
    int count = 0;
    if (json_type(content) == JSON_ARRAY) {
        JSON_EACH (item, content) {
            if (!json_is(json_get(item.value, "type"), "tool_result"))
                continue;
            if (read_tool_result(context, item.value, &out[count++]) < 0)
                return -1;
        }
    }
    out[count].role = TRACE_USER;
    if (read_parts(context, content, "content", content_of_user, &out[count]) < 0)
        return -1;
    return out[count].part_count || count == 0 ? count + 1 : count;
}

static int read_turn(struct read_context *context, struct json turn, struct trace_message *out)
{
    struct json role = json_get(turn, "role");
    struct json content = json_get(turn, "content");
    if (!read_is_there(content))
        return read_fail_type(context, "content", BLOCKS);
    if (json_is(role, "assistant"))
        return read_assistant(context, content, out) < 0 ? -1 : 1;
    if (json_is(role, "user"))
        return read_user(context, content, out);
    if (json_is(role, "system")) { /* reminders in the middle of a conversation */
        out->role = TRACE_SYSTEM;
        return read_parts(context, content, "content", any_block, out) < 0 ? -1 : 1;
    }
    return read_fail_type(context, "role", "user, assistant or system");
}

/* In these turns and those that follow. */
static size_t messages_at_most(struct json_item item)
{
    size_t count = 0;
    for (; json_exists(item.value); item = json_following(item))
        count += 1 + json_size(json_get(item.value, "content"));
    return count;
}

static int read_turns(struct read_context *context, struct json body, struct trace_request *out)
{
    struct json turns = json_get(body, "messages"), system = json_get(body, "system");
    if (json_type(turns) != JSON_ARRAY || json_size(turns) == 0)
        return err_set(context->err, ERR_INPUT,
                       "messages must be an array with at least one message");
    size_t front = read_is_there(system);
    bool front_known = front && read_skim_front(context, system);
    if (read_skim_begin(context, turns, front) < 0)
        return -1;
    size_t at;
    out->message_count = front;
    struct json_item item = read_skim_first(context, turns, &at, &out->message_count);
    struct trace_message *list =
        arena_alloc(context->arena, (out->message_count + messages_at_most(item)) * sizeof *list);
    if (!list)
        return read_out_of_room(context);
    out->messages = list;
    if (front && !front_known) {
        list[0].role = TRACE_SYSTEM;
        if (read_parts(context, system, "system", any_block, &list[0]) < 0)
            return -1;
    }
    for (; json_exists(item.value); item = json_following(item)) {
        char where[40];
        snprintf(where, sizeof where, "messages[%zu]", at++);
        context->where = where;
        int count = read_turn(context, item.value, &list[out->message_count]);
        context->where = NULL;
        if (count < 0)
            return -1;
        out->message_count += (size_t)count;
        read_skim_end(context, at - 1, out->message_count, false);
    }
    return 0;
}

/* ---------------------------------------------------------------- tools and sampling */

static int read_tool(struct read_context *context, struct json tool, struct trace_tool *out)
{
    if (json_type(tool) != JSON_OBJECT)
        return read_fail_type(context, "tools", "an array of objects");
    bool named = read_is_there(json_get(tool, "name")) || !read_is_there(json_get(tool, "type"));
    if (read_text(context, tool, named ? "name" : "type", true, &out->name) < 0 ||
        read_text(context, tool, "description", false, &out->description) < 0)
        return -1;
    out->strict = read_bool(json_get(tool, "strict"));
    struct json schema = json_get(tool, "input_schema");
    /* A typed tool without a schema is the model server's own; it is kept as it is. */
    out->parameters = json_type(schema) == JSON_OBJECT ? json_raw(schema) : STR_NONE;
    return 0;
}

static int read_tools(struct read_context *context, struct json body, struct trace_request *out)
{
    struct json tools = json_get(body, "tools");
    if (!read_is_there(tools))
        return 0;
    if (read_skim_tools(context, tools, &out->tool_count))
        return 0;
    if (json_type(tools) != JSON_ARRAY)
        return read_fail_type(context, "tools", "an array");
    struct trace_tool *list = read_room(context, tools, sizeof *list);
    if (!list)
        return -1;
    context->where = "tools";
    JSON_EACH (item, tools)
        if (read_tool(context, item.value, &list[out->tool_count++]) < 0)
            return -1;
    context->where = NULL;
    out->tools = list;
    return 0;
}

/* The choice in the words of chat completions, which is the canonical form. */
static int read_choice(struct read_context *context, struct json body, struct trace_request *out)
{
    struct json choice = json_get(body, "tool_choice");
    struct json type = json_get(choice, "type");
    if (json_is(type, "auto"))
        out->tool_choice = STR("\"auto\"");
    if (json_is(type, "any"))
        out->tool_choice = STR("\"required\"");
    if (json_is(type, "none"))
        out->tool_choice = STR("\"none\"");
    if (!json_is(type, "tool"))
        return 0;
    struct str name;
    context->where = "tool_choice";
    if (read_text(context, choice, "name", true, &name) < 0)
        return -1;
    context->where = NULL;
    return read_chosen_tool(context, name, out);
}

static int read_settings(struct read_context *context, struct json body, struct trace_request *out)
{
    struct read_settings settings = {0};
    struct json output = json_get(body, "output_config"), format = json_get(output, "format");
    if (json_true(json_get(json_get(body, "tool_choice"), "disable_parallel_tool_use"))) {
        OWN(json_doc) struct json_doc no = {0};
        if (json_read(&no, STR("false"), NULL, NULL) == 0)
            read_settings_put(&settings, "parallel_tool_calls", json_root(&no));
    }
    read_settings_put(&settings, "top_k", json_get(body, "top_k"));
    read_settings_effort(&settings, json_get(output, "effort"));
    if (json_is(json_get(format, "type"), "json_schema"))
        read_settings_format(&settings, json_get(format, "name"),
                             read_object(json_get(format, "schema")), json_get(format, "strict"));
    return read_settings_end(context, &settings, &out->settings);
}

int messages_read_request(struct json body, struct dialect_skim *skim, struct arena *arena,
                          struct trace_request *out, struct err *err)
{
    struct read_context context = {.arena = arena, .err = err, .skim = skim};
    struct trace_sampling *sampling = &out->sampling;
    if (json_type(body) != JSON_OBJECT)
        return err_set(err, ERR_INPUT, "the body must be a JSON object");
    if (read_text(&context, body, "model", true, &out->model) < 0)
        return -1;
    if (out->model.size == 0)
        return err_set(err, ERR_INPUT, "model must not be empty");
    if (read_turns(&context, body, out) < 0 || read_tools(&context, body, out) < 0 ||
        read_choice(&context, body, out) < 0 || read_settings(&context, body, out) < 0 ||
        read_number(&context, body, "temperature", &sampling->has_temperature,
                    &sampling->temperature) < 0 ||
        read_number(&context, body, "top_p", &sampling->has_top_p, &sampling->top_p) < 0 ||
        read_tokens_max_or_none(&context, body, "max_tokens", &sampling->tokens_max) < 0 ||
        read_texts(&context, body, "stop_sequences", &sampling->stop, &sampling->stop_count) < 0 ||
        read_flag(&context, body, "stream", &out->stream) < 0)
        return -1;
    out->stream_usage = true; /* this protocol always reports it */
    return 0;
}

/* ---------------------------------------------------------------- overrides */

void messages_rewrite_request(struct json body, const struct dialect_override *override,
                              struct buf *out)
{
    OWN(buf) struct buf model = {0};
    OWN(buf) struct buf temperature = {0};
    OWN(buf) struct buf top_p = {0};
    OWN(buf) struct buf max = {0};
    struct json_edit edits[6];
    size_t count = 0;
    if (override->model.data) {
        json_quote(&model, override->model);
        edits[count++] = (struct json_edit){"model", buf_str(&model)};
    }
    if (override->has_temperature) {
        json_put_double(&(struct json_writer){.out = &temperature}, override->temperature);
        edits[count++] = (struct json_edit){"temperature", buf_str(&temperature)};
    }
    if (override->has_top_p) {
        json_put_double(&(struct json_writer){.out = &top_p}, override->top_p);
        edits[count++] = (struct json_edit){"top_p", buf_str(&top_p)};
    }
    if (read_cap(override->tokens_max, json_get(body, "max_tokens"))) {
        buf_format(&max, "%lld", (long long) override->tokens_max);
        edits[count++] = (struct json_edit){"max_tokens", buf_str(&max)};
    }
    if (override->thinking_off)
        edits[count++] = (struct json_edit){"thinking", STR("{\"type\":\"disabled\"}")};
    json_splice_around(body, edits, count, out, override->gap);
}
