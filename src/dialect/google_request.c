/* google_request.c - the agent's side of Google generateContent: what it asks for, and what is
 * imposed on it.
 *
 * The model and whether to stream stand in the path, not in the body: whoever found the route puts
 * them into the request. Calls and their results are matched by name and order where there is no
 * id: the canonical form needs ids, so the n-th call without one is "call_n", and its result
 * likewise. */
#include <stdio.h>

#include "base/err.h"
#include "base/mem.h"
#include "dialect/google.h"
#include "dialect/read.h"

/* Both spellings of a name are in use: camelCase and snake_case. */
static struct json get_either(struct json object, const char *camel, const char *snake)
{
    struct json value = json_get(object, camel);
    return json_exists(value) ? value : json_get(object, snake);
}

static struct str id_or_number(struct read_context *context, struct json holder, uint32_t *number)
{
    struct str id = json_str(json_get(holder, "id"), context->arena);
    if (id.size)
        return id;
    return str_of(arena_format(context->arena, "call_%u", (*number)++));
}

static int read_blob(struct read_context *context, struct json part, struct trace_part *out)
{
    struct json blob = get_either(part, "inlineData", "inline_data");
    struct json file = get_either(part, "fileData", "file_data");
    out->raw = json_raw(part);
    out->kind = TRACE_PART_OTHER;
    struct str media = json_str(
        get_either(json_exists(blob) ? blob : file, "mimeType", "mime_type"), context->arena);
    if (str_starts(media, STR("image/")))
        out->kind = TRACE_PART_IMAGE;
    else if (str_starts(media, STR("audio/")))
        out->kind = TRACE_PART_AUDIO;
    else if (media.size)
        out->kind = TRACE_PART_FILE;
    if (json_exists(file)) {
        out->text = json_str(get_either(file, "fileUri", "file_uri"), context->arena);
        return 0;
    }
    if (out->kind != TRACE_PART_IMAGE)
        return 0;
    struct str data = json_str(json_get(blob, "data"), context->arena);
    char *url =
        arena_format(context->arena, "data:%.*s;base64,%.*s", STR_ARGS(media), STR_ARGS(data));
    if (!url)
        return read_out_of_room(context);
    out->text = str_of(url);
    return 0;
}

static int read_call(struct read_context *context, struct json call,
                     struct dialect_unnamed *numbers, struct trace_tool_call *out)
{
    out->id = id_or_number(context, call, &numbers->calls);
    struct json arguments = json_get(call, "args");
    out->arguments = read_is_there(arguments) ? json_raw(arguments) : STR("{}");
    return read_text(context, call, "name", true, &out->name);
}

static int read_result(struct read_context *context, struct json result,
                       struct dialect_unnamed *numbers, struct trace_message *out)
{
    struct trace_part *part = arena_alloc(context->arena, sizeof *part);
    if (!part)
        return read_out_of_room(context);
    struct json response = json_get(result, "response");
    struct json output = json_get(response, "output");
    out->role = TRACE_TOOL;
    out->tool_call_id = id_or_number(context, result, &numbers->results);
    *part = (struct trace_part){.text = json_type(output) == JSON_STRING
                                            ? json_str(output, context->arena)
                                            : json_raw(response)};
    out->parts = part;
    out->part_count = 1;
    return read_text(context, result, "name", false, &out->name);
}

/* Signatures of any part, calls included, are kept for replay. */
static void keep_signed(struct json part, struct buf *opaque)
{
    if (!json_exists(get_either(part, "thoughtSignature", "thought_signature")))
        return;
    buf_byte(opaque, opaque->size ? ',' : '[');
    buf_str_append(opaque, json_raw(part));
}

/* Thoughts are reasoning. */
static int read_plain(struct read_context *context, struct json part, struct trace_message *out,
                      struct trace_part *parts, struct buf *thoughts)
{
    struct json text = json_get(part, "text");
    if (json_true(json_get(part, "thought"))) {
        buf_str_append(thoughts, json_str(text, context->arena));
        return 0;
    }
    struct trace_part *to = &parts[out->part_count++];
    if (json_type(text) != JSON_STRING)
        return read_blob(context, part, to);
    to->text = json_str(text, context->arena);
    return to->text.data ? 0 : read_out_of_room(context);
}

/* One content: the results it brings, each a message, then one with the rest. Returns how many. A
 * system prompt calls nothing and is always one (`numbers` NULL). */
static int read_content(struct read_context *context, struct json content, enum trace_role role,
                        struct dialect_unnamed *numbers, struct trace_message *out)
{
    struct json list = json_get(content, "parts");
    if (json_type(list) != JSON_ARRAY)
        return read_fail_type(context, "parts", "an array of parts");
    struct trace_part *parts = read_room(context, list, sizeof *parts);
    struct trace_tool_call *calls = read_room(context, list, sizeof *calls);
    if (!parts || !calls)
        return -1;
    int count = 0;
    OWN(buf) struct buf thoughts = {0};
    OWN(buf) struct buf opaque = {0};
    struct trace_message rest = {.role = role, .parts = parts, .calls = calls};
    JSON_EACH (item, list) {
        struct json call = get_either(item.value, "functionCall", "function_call");
        struct json result = get_either(item.value, "functionResponse", "function_response");
        int done;
        keep_signed(item.value, &opaque);
        if (numbers && json_type(result) == JSON_OBJECT)
            done = read_result(context, result, numbers, &out[count++]);
        else if (numbers && json_type(call) == JSON_OBJECT)
            done = read_call(context, call, numbers, &calls[rest.call_count++]);
        else
            done = read_plain(context, item.value, &rest, parts, &thoughts);
        if (done < 0)
            return -1;
    }
    if (thoughts.size)
        rest.reasoning = arena_str(context->arena, buf_str(&thoughts));
    if (opaque.size) {
        buf_byte(&opaque, ']');
        rest.opaque = arena_str(context->arena, buf_str(&opaque));
        if (!rest.opaque.data)
            return read_out_of_room(context);
    }
    if (rest.part_count || rest.call_count || rest.reasoning.size || count == 0)
        out[count++] = rest;
    return count;
}

/* In these contents and those that follow. */
static size_t messages_at_most(struct json_item item)
{
    size_t count = 0;
    for (; json_exists(item.value); item = json_following(item))
        count += 1 + json_size(json_get(item.value, "parts"));
    return count;
}

/* What is known of the first contents includes how many calls and results they numbered. */
static int read_list(struct read_context *context, struct json_item item, size_t at,
                     struct trace_message *list, size_t *message_count)
{
    struct dialect_skim *skim = context->skim;
    struct dialect_unnamed numbers = {0};
    if (at)
        numbers = skim->ends[at - 1].unnamed;
    for (; json_exists(item.value); item = json_following(item), at++) {
        char where[40];
        snprintf(where, sizeof where, "contents[%zu]", at);
        context->where = where;
        struct json role = json_get(item.value, "role");
        int count =
            read_content(context, item.value, json_is(role, "model") ? TRACE_ASSISTANT : TRACE_USER,
                         &numbers, &list[*message_count]);
        context->where = NULL;
        if (count < 0)
            return -1;
        *message_count += (size_t)count;
        read_skim_end(context, at, *message_count, false);
        skim->ends[at].unnamed = numbers;
    }
    return 0;
}

static int read_contents(struct read_context *context, struct json body, struct trace_request *out)
{
    struct json contents = json_get(body, "contents");
    struct json system = get_either(body, "systemInstruction", "system_instruction");
    if (json_type(contents) != JSON_ARRAY || json_size(contents) == 0)
        return err_set(context->err, ERR_INPUT,
                       "contents must be an array with at least one content");
    size_t at, front = read_is_there(system);
    bool front_known = front && read_skim_front(context, system);
    if (read_skim_begin(context, contents, front) < 0)
        return -1;
    out->message_count = front;
    struct json_item item = read_skim_first(context, contents, &at, &out->message_count);
    struct trace_message *list =
        arena_alloc(context->arena, (out->message_count + messages_at_most(item)) * sizeof *list);
    if (!list)
        return read_out_of_room(context);
    out->messages = list;
    if (front && !front_known && read_content(context, system, TRACE_SYSTEM, NULL, list) < 0)
        return err_wrap(context->err, "systemInstruction");
    return read_list(context, item, at, list, &out->message_count);
}

static int read_tools(struct read_context *context, struct json body, struct trace_request *out)
{
    struct json tools = json_get(body, "tools");
    size_t count = 0;
    if (read_skim_tools(context, tools, &out->tool_count))
        return 0;
    JSON_EACH (group, tools)
        count +=
            1 + json_size(get_either(group.value, "functionDeclarations", "function_declarations"));
    if (count == 0)
        return 0;
    struct trace_tool *list = arena_alloc(context->arena, count * sizeof *list);
    if (!list)
        return read_out_of_room(context);
    out->tools = list;
    context->where = "tools";
    JSON_EACH (group, tools) {
        JSON_EACH (item, get_either(group.value, "functionDeclarations", "function_declarations")) {
            struct trace_tool *tool = &list[out->tool_count++];
            struct json schema = get_either(item.value, "parametersJsonSchema", "parameters");
            if (read_text(context, item.value, "name", true, &tool->name) < 0 ||
                read_text(context, item.value, "description", false, &tool->description) < 0)
                return -1;
            tool->parameters = json_type(schema) == JSON_OBJECT
                                   ? json_raw(schema)
                                   : STR("{\"type\":\"object\",\"properties\":{}}");
        }
    }
    context->where = NULL;
    return 0;
}

/* The choice in the words of chat completions: one function by name, any, none. */
static int read_choice(struct read_context *context, struct json body, struct trace_request *out)
{
    struct json config = get_either(get_either(body, "toolConfig", "tool_config"),
                                    "functionCallingConfig", "function_calling_config");
    struct json mode = json_get(config, "mode");
    struct json allowed = get_either(config, "allowedFunctionNames", "allowed_function_names");
    bool any = json_is(mode, "ANY");
    if (json_is(mode, "AUTO"))
        out->tool_choice = STR("\"auto\"");
    if (json_is(mode, "NONE"))
        out->tool_choice = STR("\"none\"");
    if (any)
        out->tool_choice = STR("\"required\"");
    if (!any || json_size(allowed) != 1 || json_type(json_at(allowed, 0)) != JSON_STRING)
        return 0;
    return read_chosen_tool(context, json_at(allowed, 0), out);
}

static int read_settings(struct read_context *context, struct json config,
                         struct trace_request *out)
{
    struct read_settings settings = {0};
    struct json schema = get_either(config, "responseJsonSchema", "response_json_schema");
    long long seed;
    out->sampling.has_seed = json_int(json_get(config, "seed"), &seed);
    out->sampling.seed = out->sampling.has_seed ? seed : 0;
    read_settings_put(&settings, "top_k", get_either(config, "topK", "top_k"));
    read_settings_put(&settings, "presence_penalty",
                      get_either(config, "presencePenalty", "presence_penalty"));
    read_settings_put(&settings, "frequency_penalty",
                      get_either(config, "frequencyPenalty", "frequency_penalty"));
    if (json_is(get_either(config, "responseMimeType", "response_mime_type"), "application/json"))
        read_settings_format(&settings, (struct json){0}, schema, (struct json){0});
    return read_settings_end(context, &settings, &out->settings);
}

/* Which spelling of a member the agent uses. */
static const char *spelling(struct json object, const char *camel, const char *snake)
{
    return !json_exists(json_get(object, camel)) && json_exists(json_get(object, snake)) ? snake
                                                                                         : camel;
}

int google_read_request(struct json body, struct dialect_skim *skim, struct arena *arena,
                        struct trace_request *out, struct err *err)
{
    struct read_context context = {.arena = arena, .err = err, .skim = skim};
    struct trace_sampling *sampling = &out->sampling;
    struct json settings = get_either(body, "generationConfig", "generation_config");
    if (json_type(body) != JSON_OBJECT)
        return err_set(err, ERR_INPUT, "the body must be a JSON object");
    struct json candidates = get_either(settings, "candidateCount", "candidate_count");
    if (read_is_there(candidates) && json_int_or(candidates, 0) != 1)
        return err_set(err, ERR_INPUT, "candidateCount must be 1: there is one answer per call");
    if (read_contents(&context, body, out) < 0 || read_tools(&context, body, out) < 0 ||
        read_choice(&context, body, out) < 0 || read_settings(&context, settings, out) < 0)
        return -1;
    context.where = "generationConfig";
    if (read_number(&context, settings, "temperature", &sampling->has_temperature,
                    &sampling->temperature) < 0 ||
        read_number(&context, settings, spelling(settings, "topP", "top_p"), &sampling->has_top_p,
                    &sampling->top_p) < 0 ||
        read_tokens_max(&context, settings,
                        spelling(settings, "maxOutputTokens", "max_output_tokens"),
                        &sampling->tokens_max) < 0 ||
        read_texts(&context, settings, spelling(settings, "stopSequences", "stop_sequences"),
                   &sampling->stop, &sampling->stop_count) < 0)
        return -1;
    out->stream_usage = true;
    return 0;
}

void google_rewrite_request(struct json body, const struct dialect_override *override,
                            struct buf *out)
{
    OWN(buf) struct buf temperature = {0};
    OWN(buf) struct buf top_p = {0};
    OWN(buf) struct buf max = {0};
    OWN(buf) struct buf settings = {0};
    struct json_edit edits[4];
    size_t count = 0;
    const char *key = spelling(body, "generationConfig", "generation_config");
    struct json old = json_get(body, key);
    if (override->has_temperature) {
        json_put_double(&(struct json_writer){.out = &temperature}, override->temperature);
        edits[count++] = (struct json_edit){"temperature", buf_str(&temperature)};
    }
    if (override->has_top_p) {
        json_put_double(&(struct json_writer){.out = &top_p}, override->top_p);
        edits[count++] = (struct json_edit){spelling(old, "topP", "top_p"), buf_str(&top_p)};
    }
    const char *limit = spelling(old, "maxOutputTokens", "max_output_tokens");
    if (read_cap(override->tokens_max, json_get(old, limit))) {
        buf_format(&max, "%lld", (long long) override->tokens_max);
        edits[count++] = (struct json_edit){limit, buf_str(&max)};
    }
    if (override->thinking_off)
        edits[count++] = (struct json_edit){spelling(old, "thinkingConfig", "thinking_config"),
                                            STR("{\"thinkingBudget\":0}")};
    struct json_doc none = {0};
    if (json_type(old) != JSON_OBJECT && json_read(&none, STR("{}"), NULL, NULL) == 0)
        old = json_root(&none);
    json_splice(old, edits, count, &settings);
    struct json_edit whole = {key, buf_str(&settings)};
    json_splice_around(body, &whole, count ? 1 : 0, out, override->gap);
    json_doc_deinit(&none);
}
