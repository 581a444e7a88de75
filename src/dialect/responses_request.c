/* responses_request.c - the agent's side of OpenAI responses: what it asks for, and what is imposed
 * on it.
 *
 * The input is a flat row of items. A run of items on the assistant's side (messages of the
 * assistant, reasoning, calls) is one assistant message of ours; outputs of calls are tool
 * messages. Reasoning items and calls of the server's own tools are kept whole in `opaque`: they
 * carry encrypted state that has to come back byte for byte.
 *
 * Tools in a namespace get the canonical name "space__name"; custom tools, which take free text,
 * get a schema with one member `input`. The writer turns both back. */
#include <stdio.h>

#include "base/err.h"
#include "base/mem.h"
#include "dialect/chat.h"
#include "dialect/read.h"
#include "dialect/responses.h"

/* ---------------------------------------------------------------- items */

static int read_part(struct read_context *context, struct json part, struct trace_part *out)
{
    struct json type = json_get(part, "type");
    if (json_is(type, "input_text") || json_is(type, "output_text") || json_is(type, "text")) {
        out->kind = TRACE_PART_TEXT;
        return read_text(context, part, "text", true, &out->text);
    }
    if (json_is(type, "refusal")) {
        out->kind = TRACE_PART_REFUSAL;
        return read_text(context, part, "refusal", true, &out->text);
    }
    out->raw = json_raw(part);
    out->kind = json_is(type, "input_file") ? TRACE_PART_FILE : TRACE_PART_OTHER;
    if (json_is(type, "input_image")) {
        out->kind = TRACE_PART_IMAGE;
        out->text = json_str(json_get(part, "image_url"), context->arena);
    }
    return 0;
}

/* What a run of items adds to a message, piece by piece, takes a few times its size, not its
 * square: room doubles. `before` bytes are there already, made here too. */
static size_t room_of(size_t size)
{
    size_t room = 64;
    while (room < size)
        room *= 2;
    return room;
}

static void *grown(struct read_context *context, const void *old, size_t before, size_t after)
{
    if (before && room_of(before) == room_of(after))
        return (void *)(uintptr_t)old;
    void *larger = arena_alloc(context->arena, room_of(after));
    if (larger && before)
        memcpy(larger, old, before);
    return larger;
}

/* Adds to what the message has: a run of items may bring several contents. */
static int add_content(struct read_context *context, struct json content, const char *key,
                       struct trace_message *out)
{
    if (!read_is_there(content))
        return 0;
    bool single = json_type(content) == JSON_STRING;
    if (!single && json_type(content) != JSON_ARRAY)
        return read_fail_type(context, key, "a string or an array of parts with a type");
    size_t count = single ? 1 : json_size(content);
    struct trace_part *parts = grown(context, out->parts, out->part_count * sizeof *parts,
                                     (out->part_count + count) * sizeof *parts);
    if (!parts)
        return read_out_of_room(context);
    size_t at = out->part_count;
    out->parts = parts;
    if (single) {
        parts[at].text = json_str(content, context->arena);
        out->part_count++;
        return parts[at].text.data ? 0 : read_out_of_room(context);
    }
    JSON_EACH (item, content) {
        if (json_type(json_get(item.value, "type")) != JSON_STRING)
            return read_fail_type(context, key, "a string or an array of parts with a type");
        if (read_part(context, item.value, &parts[at++]) < 0)
            return -1;
    }
    out->part_count = at;
    return 0;
}

static int add_call(struct read_context *context, struct json item, bool custom,
                    struct trace_message *out)
{
    struct trace_tool_call *calls = grown(context, out->calls, out->call_count * sizeof *calls,
                                          (out->call_count + 1) * sizeof *calls);
    if (!calls)
        return read_out_of_room(context);
    struct trace_tool_call *call = &calls[out->call_count];
    struct str space = STR_NONE;
    if (read_text(context, item, "call_id", true, &call->id) < 0 ||
        read_text(context, item, "name", true, &call->name) < 0 ||
        read_text(context, item, "namespace", false, &space) < 0 ||
        read_text(context, item, custom ? "input" : "arguments", false, &call->arguments) < 0)
        return -1;
    if (space.size)
        call->name = str_of(
            arena_format(context->arena, "%.*s__%.*s", STR_ARGS(space), STR_ARGS(call->name)));
    if (custom)
        call->arguments = read_custom_input(context, call->arguments);
    out->calls = calls;
    out->call_count++;
    return 0;
}

static int keep_opaque(struct read_context *context, struct json item, struct trace_message *out)
{
    struct str raw = json_raw(item);
    size_t at = out->opaque.size; /* the bracket is put behind it anew */
    char *kept = grown(context, out->opaque.data, at, at + raw.size + 2);
    if (!kept)
        return read_out_of_room(context);
    if (at)
        kept[at - 1] = ',';
    else
        kept[at++] = '[';
    memcpy(kept + at, raw.data, raw.size);
    kept[at + raw.size] = ']';
    out->opaque = str_make(kept, at + raw.size + 1);
    return 0;
}

static int add_reasoning(struct read_context *context, struct json item, struct trace_message *out)
{
    const char *const lists[] = {"summary", "content"};
    for (size_t i = 0; i < COUNT(lists); i++) {
        JSON_EACH (part, json_get(item, lists[i])) {
            struct str piece = json_str(json_get(part.value, "text"), context->arena);
            size_t at = out->reasoning.size;
            if (!piece.size)
                continue;
            char *text = grown(context, out->reasoning.data, at, at + piece.size + 1);
            if (!text)
                return read_out_of_room(context);
            if (at)
                text[at++] = '\n';
            memcpy(text + at, piece.data, piece.size);
            out->reasoning = str_make(text, at + piece.size);
        }
    }
    return keep_opaque(context, item, out);
}

static bool ends_with(struct str type, struct str suffix)
{
    return str_ends(type, suffix);
}

/* Is this item something the assistant made? */
static bool is_assistants(struct json item, struct str type)
{
    if (read_is_there(json_get(item, "role")))
        return json_is(json_get(item, "role"), "assistant");
    return !ends_with(type, STR("_output")) && !ends_with(type, STR("_response"));
}

static int add_assistant_item(struct read_context *context, struct json item, struct str type,
                              struct trace_message *out)
{
    out->role = TRACE_ASSISTANT;
    if (read_is_there(json_get(item, "role")))
        return add_content(context, json_get(item, "content"), "content", out);
    if (str_is(type, "function_call"))
        return add_call(context, item, false, out);
    if (str_is(type, "custom_tool_call"))
        return add_call(context, item, true, out);
    if (str_is(type, "reasoning"))
        return add_reasoning(context, item, out);
    return keep_opaque(context, item, out);
}

/* A text, or parts that say what they are. Shells, searches and programs have outputs of their own
 * shapes: those are handed on as the JSON they are. */
static bool is_content(struct json output)
{
    if (json_type(output) != JSON_ARRAY)
        return json_type(output) == JSON_STRING;
    JSON_EACH (item, output)
        if (json_type(json_get(item.value, "type")) != JSON_STRING)
            return false;
    return true;
}

static int read_other_item(struct read_context *context, struct json item, struct str type,
                           struct trace_message *out)
{
    if (read_is_there(json_get(item, "role"))) {
        struct str role = json_str(json_get(item, "role"), context->arena);
        if (!trace_role_find(role, &out->role))
            return read_fail_type(context, "role", "user, assistant, system or developer");
        return add_content(context, json_get(item, "content"), "content", out);
    }
    out->role = TRACE_TOOL;
    const char *key = str_is(type, "local_shell_call_output") ? "id" : "call_id";
    if (read_text(context, item, key, false, &out->tool_call_id) < 0)
        return -1;
    struct json output = json_get(item, "output");
    if (!is_content(output) || !ends_with(type, STR("_output"))) {
        struct trace_part *part = arena_alloc(context->arena, sizeof *part);
        if (!part)
            return read_out_of_room(context);
        *part = (struct trace_part){.text = json_raw(read_is_there(output) ? output : item)};
        out->parts = part;
        out->part_count = 1;
        return 0;
    }
    return add_content(context, output, "output", out);
}

static int read_items(struct read_context *context, struct json input, struct trace_message *list,
                      size_t *count)
{
    bool in_run = false;
    size_t at;
    if (read_skim_begin(context, input, *count) < 0)
        return -1;
    struct json_item item = read_skim_first(context, input, &at, count);
    for (; json_exists(item.value); item = json_following(item)) {
        char where[40];
        snprintf(where, sizeof where, "input[%zu]", at++);
        context->where = where;
        if (json_type(item.value) != JSON_OBJECT)
            return err_set(context->err, ERR_INPUT, "%s must be an object", where);
        struct str type = json_str(json_get(item.value, "type"), context->arena);
        if (str_is(type, "item_reference"))
            return err_set(context->err, ERR_INPUT,
                           "%s is a reference to an item that is not kept here: send the item",
                           where);
        bool assistants = is_assistants(item.value, type);
        if (!assistants || !in_run)
            (*count)++;
        struct trace_message *message = &list[*count - 1];
        in_run = assistants;
        if ((assistants ? add_assistant_item(context, item.value, type, message)
                        : read_other_item(context, item.value, type, message)) < 0)
            return -1;
        context->where = NULL;
        read_skim_end(context, at - 1, *count, in_run);
    }
    return 0;
}

static int read_input(struct read_context *context, struct json body, struct trace_request *out)
{
    struct json input = json_get(body, "input");
    struct json instructions = json_get(body, "instructions");
    bool single = json_type(input) == JSON_STRING;
    if (!single && (json_type(input) != JSON_ARRAY || json_size(input) == 0))
        return err_set(context->err, ERR_INPUT,
                       "input must be a string or an array with at least one item");
    struct trace_message *list = arena_alloc(context->arena, (json_size(input) + 2) * sizeof *list);
    if (!list)
        return read_out_of_room(context);
    out->messages = list;
    if (read_is_there(instructions)) {
        out->message_count = 1;
        list[0].role = TRACE_SYSTEM;
        if (!read_skim_front(context, instructions) &&
            add_content(context, instructions, "instructions", &list[0]) < 0)
            return -1;
    }
    if (!single)
        return read_items(context, input, list, &out->message_count);
    list[out->message_count].role = TRACE_USER;
    return add_content(context, input, "input", &list[out->message_count++]);
}

/* ---------------------------------------------------------------- tools and sampling */

static size_t count_tools(struct json tools)
{
    size_t count = 0;
    JSON_EACH (item, tools)
        count += 1 + json_size(json_get(item.value, "tools"));
    return count;
}

static int read_tool(struct read_context *context, struct json tool, struct str space,
                     struct trace_tool *out)
{
    if (json_type(tool) != JSON_OBJECT)
        return read_fail_type(context, "tools", "an array of objects");
    struct json schema = json_get(tool, "parameters");
    out->custom = json_is(json_get(tool, "type"), "custom");
    if (!out->custom && !json_is(json_get(tool, "type"), "function")) /* the server's own */
        return read_text(context, tool, "type", true, &out->name);
    if (read_text(context, tool, "name", true, &out->name) < 0 ||
        read_text(context, tool, "description", false, &out->description) < 0)
        return -1;
    out->strict = read_bool(json_get(tool, "strict"));
    out->parameters = json_type(schema) == JSON_OBJECT ? json_raw(schema)
                      : out->custom ? read_custom_schema(context, json_get(tool, "format"))
                                    : STR("{\"type\":\"object\",\"properties\":{}}");
    if (!out->parameters.data)
        return read_out_of_room(context);
    if (space.size) {
        out->space = space;
        out->name = str_of(
            arena_format(context->arena, "%.*s__%.*s", STR_ARGS(space), STR_ARGS(out->name)));
    }
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
    struct trace_tool *list = arena_alloc(context->arena, count_tools(tools) * sizeof *list);
    if (!list)
        return read_out_of_room(context);
    out->tools = list;
    context->where = "tools";
    JSON_EACH (item, tools) {
        if (!json_is(json_get(item.value, "type"), "namespace")) {
            if (read_tool(context, item.value, STR_NONE, &list[out->tool_count++]) < 0)
                return -1;
            continue;
        }
        struct str space = json_str(json_get(item.value, "name"), context->arena);
        JSON_EACH (inner, json_get(item.value, "tools"))
            if (read_tool(context, inner.value, space, &list[out->tool_count++]) < 0)
                return -1;
    }
    context->where = NULL;
    return 0;
}

/* The tool's canonical name; STR_NONE: it is one of the model server's own. */
static struct str name_of(struct read_context *context, struct json choice)
{
    struct json type = json_get(choice, "type");
    if (!json_is(type, "function") && !json_is(type, "custom"))
        return STR_NONE;
    struct str name = json_str(json_get(choice, "name"), context->arena);
    struct str space = json_str(json_get(choice, "namespace"), context->arena);
    if (!space.size || !name.size)
        return name;
    return str_of(arena_format(context->arena, "%.*s__%.*s", STR_ARGS(space), STR_ARGS(name)));
}

static int read_choice(struct read_context *context, struct json body, struct trace_request *out)
{
    struct json choice = json_get(body, "tool_choice");
    if (json_type(choice) == JSON_STRING) {
        out->tool_choice = json_raw(choice);
        return 0;
    }
    /* Several that are allowed cannot be said in every server's chat completions: all are. */
    if (json_is(json_get(choice, "type"), "allowed_tools")) {
        struct json mode = json_get(choice, "mode"), allowed = json_get(choice, "tools");
        bool one = json_is(mode, "required") && json_size(allowed) == 1;
        if (json_is(mode, "auto") || json_is(mode, "required"))
            out->tool_choice = json_raw(mode);
        choice = one ? json_at(allowed, 0) : (struct json){0};
    }
    struct str name = name_of(context, choice);
    return name.size ? read_chosen_tool(context, name, out) : 0;
}

static int read_settings(struct read_context *context, struct json body, struct trace_request *out)
{
    struct read_settings settings = {0};
    struct json format = json_get(json_get(body, "text"), "format");
    read_settings_put(&settings, "parallel_tool_calls", json_get(body, "parallel_tool_calls"));
    read_settings_effort(&settings, json_get(json_get(body, "reasoning"), "effort"));
    read_settings_put(&settings, "verbosity", json_get(json_get(body, "text"), "verbosity"));
    if (json_is(json_get(format, "type"), "json_schema") ||
        json_is(json_get(format, "type"), "json_object"))
        read_settings_format(&settings, json_get(format, "name"),
                             read_object(json_get(format, "schema")), json_get(format, "strict"));
    return read_settings_end(context, &settings, &out->settings);
}

int responses_read_request(struct json body, struct dialect_skim *skim, struct arena *arena,
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
    if (read_is_there(json_get(body, "previous_response_id")))
        return err_set(
            err, ERR_INPUT,
            "previous_response_id is not kept here: send the whole conversation as input");
    static const char *const kept[] = {"conversation", "prompt"};
    for (size_t i = 0; i < COUNT(kept); i++)
        if (read_is_there(json_get(body, kept[i])))
            return err_set(err, ERR_INPUT,
                           "%s names something that is not kept here: send all of it as input",
                           kept[i]);
    if (json_true(json_get(body, "background")))
        return err_set(err, ERR_INPUT, "background responses are not available here");
    if (read_input(&context, body, out) < 0 || read_tools(&context, body, out) < 0 ||
        read_choice(&context, body, out) < 0 || read_settings(&context, body, out) < 0 ||
        read_number(&context, body, "temperature", &sampling->has_temperature,
                    &sampling->temperature) < 0 ||
        read_number(&context, body, "top_p", &sampling->has_top_p, &sampling->top_p) < 0 ||
        read_tokens_max(&context, body, "max_output_tokens", &sampling->tokens_max) < 0 ||
        read_flag(&context, body, "stream", &out->stream) < 0)
        return -1;
    out->stream_usage = true;
    return 0;
}

/* ---------------------------------------------------------------- overrides */

void responses_rewrite_request(struct json body, const struct dialect_override *override,
                               struct buf *out)
{
    OWN(buf) struct buf model = {0};
    OWN(buf) struct buf temperature = {0};
    OWN(buf) struct buf top_p = {0};
    OWN(buf) struct buf max = {0};
    OWN(buf) struct buf thinking = {0};
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
    if (read_cap(override->tokens_max, json_get(body, "max_output_tokens"))) {
        buf_format(&max, "%lld", (long long) override->tokens_max);
        edits[count++] = (struct json_edit){"max_output_tokens", buf_str(&max)};
    }
    if (override->thinking_off && chat_thinking_off(body, &thinking))
        edits[count++] = (struct json_edit){"chat_template_kwargs", buf_str(&thinking)};
    json_splice_around(body, edits, count, out, override->gap);
}
