/* google_request.c - the agent's side of Google generateContent: what it asks for, and what is
 * imposed on it.
 *
 * The model and whether to stream stand in the path, not in the body: whoever found the route puts
 * them into the request. The canonical form needs ids: the n-th call without one is "call_n". A
 * result without one, which is what the vendor's clients send even where the call has one, answers
 * the first call of its name that waits for a result.
 *
 * Where this API has a list of contents or parts, a single one need not be in a list. */
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

#define WAITING_MAX 256 /* as many calls as an answer may have */

/* Calls of the model's last turn that wait for a result. */
struct matching {
    struct dialect_unnamed numbers;
    const struct trace_tool_call *calls[WAITING_MAX]; /* NULL: it has its result */
    size_t count;
    size_t waiting; /* of them */
    bool answering; /* others had their turn: the model's next one is another */
};

static struct str numbered(struct read_context *context, uint32_t number)
{
    return str_of(arena_format(context->arena, "call_%u", number));
}

static void wait_for(struct matching *matching, const struct trace_tool_call *call)
{
    if (matching->count == WAITING_MAX)
        return;
    matching->calls[matching->count++] = call;
    matching->waiting++;
}

/* Which call a result answers, by its id, or by its name where there is no id; it waits no more. */
static struct str match(struct read_context *context, struct json result, struct str name,
                        struct matching *matching)
{
    struct str id = json_str(json_get(result, "id"), context->arena);
    uint32_t number = id.size ? 0 : matching->numbers.results++;
    for (size_t i = 0; i < matching->count; i++) {
        const struct trace_tool_call *call = matching->calls[i];
        if (!call || !(id.size ? str_equal(call->id, id) : str_equal(call->name, name)))
            continue;
        matching->calls[i] = NULL;
        if (--matching->waiting == 0)
            matching->count = 0;
        return call->id;
    }
    return id.size ? id : numbered(context, number);
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

static int read_call(struct read_context *context, struct json call, struct matching *matching,
                     struct trace_tool_call *out)
{
    struct json arguments = json_get(call, "args");
    out->id = json_str(json_get(call, "id"), context->arena);
    if (!out->id.size)
        out->id = numbered(context, matching->numbers.calls++);
    out->arguments = read_is_there(arguments) ? json_raw(arguments) : STR("{}");
    wait_for(matching, out);
    return read_text(context, call, "name", true, &out->name);
}

/* Its text, and pictures and files beside it. */
static int read_result(struct read_context *context, struct json result, struct matching *matching,
                       struct trace_message *out)
{
    struct json more = json_get(result, "parts"), response = json_get(result, "response");
    bool has_more = json_type(more) == JSON_ARRAY;
    size_t count = 1 + (has_more ? json_size(more) : 0);
    struct trace_part *parts = arena_alloc(context->arena, count * sizeof *parts);
    if (!parts)
        return read_out_of_room(context);
    struct json output = json_get(response, "output");
    bool plain = json_type(output) == JSON_STRING && json_size(response) == 1;
    out->role = TRACE_TOOL;
    out->failed = read_is_there(json_get(response, "error"));
    if (read_text(context, result, "name", false, &out->name) < 0)
        return -1;
    out->tool_call_id = match(context, result, out->name, matching);
    parts[0] = (struct trace_part){.text = plain ? json_str(output, context->arena)
                                           : json_exists(response) ? json_raw(response)
                                                                   : STR("")};
    out->parts = parts;
    out->part_count = 1;
    if (!has_more)
        return 0;
    JSON_EACH (item, more)
        if (read_blob(context, item.value, &parts[out->part_count++]) < 0)
            return -1;
    return 0;
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

/* A list, or the one thing that would be in it. */
static size_t size_of(struct json list)
{
    return json_type(list) == JSON_OBJECT ? 1 : json_size(list);
}

static struct json_item first_of(struct json list)
{
    return json_type(list) == JSON_OBJECT ? (struct json_item){.value = list} : json_first(list);
}

static struct json_item next_of(struct json list, struct json_item item)
{
    return json_type(list) == JSON_OBJECT ? (struct json_item){0} : json_following(item);
}

/* One content: the results it brings, each a message, then one with the rest. Returns how many. A
 * system prompt calls nothing and is always one (`matching` NULL). */
static int read_content(struct read_context *context, struct json content, enum trace_role role,
                        struct matching *matching, struct trace_message *out)
{
    struct json list = json_get(content, "parts");
    if (json_type(list) != JSON_ARRAY && json_type(list) != JSON_OBJECT)
        return read_fail_type(context, "parts", "an array of parts");
    struct trace_part *parts = arena_alloc(context->arena, size_of(list) * sizeof *parts);
    struct trace_tool_call *calls = arena_alloc(context->arena, size_of(list) * sizeof *calls);
    if (!parts || !calls)
        return read_out_of_room(context);
    int count = 0;
    OWN(buf) struct buf thoughts = {0};
    OWN(buf) struct buf opaque = {0};
    struct trace_message rest = {.role = role, .parts = parts, .calls = calls};
    for (struct json_item item = first_of(list); json_exists(item.value);
         item = next_of(list, item)) {
        struct json call = get_either(item.value, "functionCall", "function_call");
        struct json result = get_either(item.value, "functionResponse", "function_response");
        int done;
        keep_signed(item.value, &opaque);
        if (matching && json_type(result) == JSON_OBJECT)
            done = read_result(context, result, matching, &out[count++]);
        else if (matching && json_type(call) == JSON_OBJECT)
            done = read_call(context, call, matching, &calls[rest.call_count++]);
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

static int read_turn(struct read_context *context, struct json content, size_t at,
                     struct matching *matching, struct trace_message *out)
{
    char where[40];
    bool model = json_is(json_get(content, "role"), "model");
    snprintf(where, sizeof where, "contents[%zu]", at);
    context->where = where;
    if (model && matching->answering)
        matching->count = matching->waiting = 0; /* what has no result by now never will */
    matching->answering = !model;
    int count = read_content(context, content, model ? TRACE_ASSISTANT : TRACE_USER, matching, out);
    context->where = NULL;
    return count;
}

/* In these contents and those that follow. */
static size_t messages_at_most(struct json_item item)
{
    size_t count = 0;
    for (; json_exists(item.value); item = json_following(item))
        count += 1 + size_of(json_get(item.value, "parts"));
    return count;
}

/* What is known of the first contents includes how many calls and results they numbered, and that
 * none of their calls waits. */
static int read_list(struct read_context *context, struct json_item item, size_t at,
                     struct trace_message *list, size_t *message_count)
{
    struct dialect_skim *skim = context->skim;
    struct matching matching = {0};
    if (at)
        matching.numbers = skim->ends[at - 1].unnamed;
    for (; json_exists(item.value); item = json_following(item), at++) {
        int count = read_turn(context, item.value, at, &matching, &list[*message_count]);
        if (count < 0)
            return -1;
        *message_count += (size_t)count;
        read_skim_end(context, at, *message_count, matching.waiting > 0);
        skim->ends[at].unnamed = matching.numbers;
    }
    return 0;
}

/* A conversation of one content. */
static int read_single(struct read_context *context, struct json content, struct json system,
                       struct trace_request *out)
{
    struct matching matching = {0};
    struct trace_message *list =
        arena_alloc(context->arena, (2 + size_of(json_get(content, "parts"))) * sizeof *list);
    if (!list)
        return read_out_of_room(context);
    out->messages = list;
    out->message_count = read_is_there(system);
    if (out->message_count && read_content(context, system, TRACE_SYSTEM, NULL, list) < 0)
        return err_wrap(context->err, "systemInstruction");
    int count = read_turn(context, content, 0, &matching, &list[out->message_count]);
    out->message_count += count < 0 ? 0 : (size_t)count;
    return count < 0 ? -1 : 0;
}

static int read_contents(struct read_context *context, struct json body, struct trace_request *out)
{
    struct json contents = json_get(body, "contents");
    struct json system = get_either(body, "systemInstruction", "system_instruction");
    if (json_type(contents) == JSON_OBJECT)
        return read_single(context, contents, system, out);
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

static int read_parameters(struct read_context *context, struct json declaration,
                           struct trace_tool *out)
{
    struct json schema = get_either(declaration, "parametersJsonSchema", "parameters_json_schema");
    struct json theirs = json_get(declaration, "parameters");
    out->parameters = json_type(schema) == JSON_OBJECT ? json_raw(schema)
                      : json_type(theirs) == JSON_OBJECT
                          ? google_schema(theirs, context->arena)
                          : STR("{\"type\":\"object\",\"properties\":{}}");
    return out->parameters.data ? 0 : read_out_of_room(context);
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
            if (read_text(context, item.value, "name", true, &tool->name) < 0 ||
                read_text(context, item.value, "description", false, &tool->description) < 0 ||
                read_parameters(context, item.value, tool) < 0)
                return -1;
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
    if (json_is(mode, "AUTO") || json_is(mode, "VALIDATED"))
        out->tool_choice = STR("\"auto\"");
    if (json_is(mode, "NONE"))
        out->tool_choice = STR("\"none\"");
    if (any)
        out->tool_choice = STR("\"required\"");
    if (!any || json_size(allowed) != 1 || json_type(json_at(allowed, 0)) != JSON_STRING)
        return 0;
    return read_chosen_tool(context, json_str(json_at(allowed, 0), context->arena), out);
}

static int read_settings(struct read_context *context, struct json config,
                         struct trace_request *out)
{
    struct read_settings settings = {0};
    struct json schema = get_either(config, "responseJsonSchema", "response_json_schema");
    struct json theirs = get_either(config, "responseSchema", "response_schema");
    struct str text = json_type(schema) == JSON_OBJECT   ? json_raw(schema)
                      : json_type(theirs) == JSON_OBJECT ? google_schema(theirs, context->arena)
                                                         : STR_NONE;
    if (json_type(theirs) == JSON_OBJECT && !text.data)
        return read_out_of_room(context);
    long long seed;
    out->sampling.has_seed = json_int(json_get(config, "seed"), &seed);
    out->sampling.seed = out->sampling.has_seed ? seed : 0;
    read_settings_put(&settings, "top_k", get_either(config, "topK", "top_k"));
    read_settings_put(&settings, "presence_penalty",
                      get_either(config, "presencePenalty", "presence_penalty"));
    read_settings_put(&settings, "frequency_penalty",
                      get_either(config, "frequencyPenalty", "frequency_penalty"));
    if (json_is(get_either(config, "responseMimeType", "response_mime_type"), "application/json"))
        read_settings_format(&settings, (struct json){0}, text, (struct json){0});
    read_settings_effort(&settings,
                         get_either(get_either(config, "thinkingConfig", "thinking_config"),
                                    "thinkingLevel", "thinking_level"));
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

struct edits {
    struct json_edit rows[8];
    size_t count;
};

/* In the agent's spelling; what it says in the other one as well goes, whichever the server would
 * heed. No `value`: only that. */
static void impose(struct edits *edits, struct json object, const char *camel, const char *snake,
                   struct str value)
{
    const char *key = spelling(object, camel, snake), *other = key == camel ? snake : camel;
    if (value.data)
        edits->rows[edits->count++] = (struct json_edit){key, value};
    if (json_exists(json_get(object, other)))
        edits->rows[edits->count++] = (struct json_edit){other, STR_NONE};
}

void google_rewrite_request(struct json body, const struct dialect_override *override,
                            struct buf *out)
{
    OWN(buf) struct buf temperature = {0};
    OWN(buf) struct buf top_p = {0};
    OWN(buf) struct buf max = {0};
    OWN(buf) struct buf settings = {0};
    struct edits edits = {0}, whole = {0};
    struct json old = get_either(body, "generationConfig", "generation_config");
    if (override->has_temperature) {
        json_put_double(&(struct json_writer){.out = &temperature}, override->temperature);
        edits.rows[edits.count++] = (struct json_edit){"temperature", buf_str(&temperature)};
    }
    if (override->has_top_p) {
        json_put_double(&(struct json_writer){.out = &top_p}, override->top_p);
        impose(&edits, old, "topP", "top_p", buf_str(&top_p));
    }
    if (read_cap(override->tokens_max, get_either(old, "maxOutputTokens", "max_output_tokens")))
        buf_format(&max, "%lld", (long long) override->tokens_max);
    if (override->tokens_max)
        impose(&edits, old, "maxOutputTokens", "max_output_tokens", buf_str(&max));
    if (override->thinking_off)
        impose(&edits, old, "thinkingConfig", "thinking_config", STR("{\"thinkingBudget\":0}"));
    struct json_doc none = {0};
    if (json_type(old) != JSON_OBJECT && json_read(&none, STR("{}"), NULL, NULL) == 0)
        old = json_root(&none);
    json_splice(old, edits.rows, edits.count, &settings);
    bool imposes = override->has_temperature || override->has_top_p || override->tokens_max ||
                   override->thinking_off;
    if (imposes)
        impose(&whole, body, "generationConfig", "generation_config",
               edits.count ? buf_str(&settings) : STR_NONE);
    json_splice_around(body, whole.rows, whole.count, out, override->gap);
    json_doc_deinit(&none);
}
