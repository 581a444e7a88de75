/* chat_make.c - a chat completions request from the canonical form, for agents that speak another
 * dialect to an upstream or a trainer that speaks only this one.
 *
 * Nothing the model could see is lost: text, images by URL, tool calls and their results, reasoning
 * as reasoning_content. That a tool failed is no word of chat completions: its own text has to say
 * it, and servers refuse members they do not know; who reads the canonical form asks for it
 * (`errors`). Parts that have no form here (documents, unknown blocks) travel as text, as the JSON
 * they were. */
#include "base/mem.h"
#include "dialect/chat.h"

static bool is_picture(const struct trace_part *part)
{
    return part->kind == TRACE_PART_IMAGE && part->text.data;
}

static bool only_text(const struct trace_message *message)
{
    for (size_t i = 0; i < message->part_count; i++)
        if (is_picture(&message->parts[i]))
            return false;
    return true;
}

static struct str text_of(const struct trace_part *part)
{
    return part->text.data ? part->text : part->raw;
}

/* What an assistant said is one text, which its dialect cut where a thought or a call came between;
 * parts of others are apart. */
static bool is_one_text(const struct trace_message *message, size_t at)
{
    return message->role == TRACE_ASSISTANT && message->parts[at - 1].kind == TRACE_PART_TEXT &&
           message->parts[at].kind == TRACE_PART_TEXT;
}

static void put_part(const struct trace_part *part, struct json_writer *out)
{
    json_begin_object(out);
    if (is_picture(part)) {
        json_set_text(out, "type", "image_url");
        json_key(out, "image_url");
        json_begin_object(out);
        json_set_str(out, "url", part->text);
        json_end_object(out);
    } else {
        json_set_text(out, "type", "text");
        json_set_str(out, "text", text_of(part));
    }
    json_end_object(out);
}

/* Without its pictures, where those have to be apart. */
static void put_content(const struct trace_message *message, bool apart, struct json_writer *out)
{
    json_key(out, "content");
    apart &= message->role == TRACE_TOOL;
    if (!apart && !only_text(message)) {
        json_begin_array(out);
        for (size_t i = 0; i < message->part_count; i++)
            put_part(&message->parts[i], out);
        json_end_array(out);
        return;
    }
    if (message->part_count == 0 && message->call_count) {
        json_put_null(out);
        return;
    }
    OWN(buf) struct buf text = {0};
    for (size_t i = 0; i < message->part_count; i++) {
        if (apart && is_picture(&message->parts[i]))
            continue;
        if (i && !is_one_text(message, i))
            buf_byte(&text, '\n');
        buf_str_append(&text, text_of(&message->parts[i]));
    }
    /* A tool that failed without a word must not look like one that had nothing to say. */
    if (message->failed && !text.size)
        buf_str_append(&text, STR("error"));
    json_put_str(out, text.size ? buf_str(&text) : STR(""));
}

static void put_calls(const struct trace_message *message, struct json_writer *out)
{
    json_key(out, "tool_calls");
    json_begin_array(out);
    for (size_t i = 0; i < message->call_count; i++) {
        json_begin_object(out);
        json_set_str(out, "id", message->calls[i].id);
        json_set_text(out, "type", "function");
        json_key(out, "function");
        json_begin_object(out);
        json_set_str(out, "name", message->calls[i].name);
        json_set_str(out, "arguments", message->calls[i].arguments);
        json_end_object(out);
        json_end_object(out);
    }
    json_end_array(out);
}

/* `developer` is a word of one vendor; every chat template knows `system`. */
static const char *role_of(const struct trace_message *message)
{
    return message->role == TRACE_DEVELOPER ? "system" : trace_role_name(message->role);
}

static void put_message(const struct trace_message *message, bool errors, bool apart,
                        struct json_writer *out)
{
    json_begin_object(out);
    json_set_text(out, "role", role_of(message));
    if (message->role == TRACE_TOOL)
        json_set_str(out, "tool_call_id", message->tool_call_id);
    if (message->failed && errors)
        json_set_bool(out, "is_error", true);
    if (message->name.size)
        json_set_str(out, "name", message->name);
    put_content(message, apart, out);
    if (message->reasoning.size)
        json_set_str(out, "reasoning_content", message->reasoning);
    if (message->call_count)
        put_calls(message, out);
    json_end_object(out);
}

/* OpenAI takes pictures from users only, and results only right behind their calls: those of a run
 * of results that ends with message `at` come behind it. */
static void put_pictures(const struct trace_message *messages, size_t at, struct json_writer *out)
{
    size_t from = at;
    bool any = !only_text(&messages[at]);
    while (from > 0 && messages[from - 1].role == TRACE_TOOL)
        any |= !only_text(&messages[--from]);
    if (!any)
        return;
    json_begin_object(out);
    json_set_text(out, "role", "user");
    json_key(out, "content");
    json_begin_array(out);
    for (; from <= at; from++)
        for (size_t i = 0; i < messages[from].part_count; i++)
            if (is_picture(&messages[from].parts[i]))
                put_part(&messages[from].parts[i], out);
    json_end_array(out);
    json_end_object(out);
}

/* Whether what is chosen is among the tools that are written: a server refuses the name of another.
 */
static bool is_offered(const struct trace_request *request)
{
    OWN(json_doc) struct json_doc doc = {0};
    OWN(arena) struct arena arena = {0};
    if (json_read(&doc, request->tool_choice, NULL, NULL) < 0)
        return false;
    struct json function = json_get(json_root(&doc), "function");
    struct str name = json_str(json_get(function, "name"), &arena);
    for (size_t i = 0; name.size && i < request->tool_count; i++)
        if (request->tools[i].parameters.data && str_equal(request->tools[i].name, name))
            return true;
    return !name.size;
}

/* Tools of the model server's own have no schema and no meaning elsewhere: they are left out.
 * Whether there are others. */
static bool put_tools(const struct trace_request *request, struct json_writer *out)
{
    bool begun = false;
    for (size_t i = 0; i < request->tool_count; i++) {
        const struct trace_tool *tool = &request->tools[i];
        if (!tool->parameters.data)
            continue;
        if (!begun) {
            json_key(out, "tools");
            json_begin_array(out);
            begun = true;
        }
        json_begin_object(out);
        json_set_text(out, "type", "function");
        json_key(out, "function");
        json_begin_object(out);
        json_set_str(out, "name", tool->name);
        if (tool->description.data)
            json_set_str(out, "description", tool->description);
        json_set_raw(out, "parameters", tool->parameters);
        if (tool->strict.data)
            json_set_raw(out, "strict", tool->strict);
        json_end_object(out);
        json_end_object(out);
    }
    if (begun)
        json_end_array(out);
    if (begun && request->tool_choice.data && is_offered(request))
        json_set_raw(out, "tool_choice", request->tool_choice);
    return begun;
}

static struct str model_of(const struct trace_request *request,
                           const struct dialect_override *override)
{
    return override->model.data ? override->model : request->model;
}

static void put_sampling(const struct trace_request *request,
                         const struct dialect_override *override, struct json_writer *out)
{
    const struct trace_sampling *sampling = &request->sampling;
    bool newer = chat_newer_limit(model_of(request, override));
    if (override->has_temperature || sampling->has_temperature)
        json_set_double(out, "temperature",
                        override->has_temperature ? override->temperature : sampling->temperature);
    if (override->has_top_p || sampling->has_top_p)
        json_set_double(out, "top_p", override->has_top_p ? override->top_p : sampling->top_p);
    int64_t max = override->tokens_max &&
                          (!sampling->tokens_max || override->tokens_max < sampling->tokens_max)
                      ? override->tokens_max
                      : sampling->tokens_max;
    if (max)
        json_set_int(out, newer ? "max_completion_tokens" : "max_tokens", max);
    if (sampling->has_seed)
        json_set_int(out, "seed", sampling->seed);
    if (sampling->stop_count) {
        json_key(out, "stop");
        json_begin_array(out);
        for (size_t i = 0; i < sampling->stop_count; i++)
            json_put_str(out, sampling->stop[i]);
        json_end_array(out);
    }
}

/* What the agent's dialect names otherwise. Vendors' own servers refuse what they do not know, and
 * a word about calls where there are no tools. */
static void put_settings(struct str settings, bool tools, const struct dialect_override *override,
                         struct json_writer *out)
{
    OWN(json_doc) struct json_doc doc = {0};
    if (!settings.size || json_read(&doc, settings, NULL, NULL) < 0)
        return;
    JSON_EACH (item, json_root(&doc)) {
        if (json_is(item.key, "top_k") && override->engine == DIALECT_ENGINE_OPENAI)
            continue;
        if (json_is(item.key, "parallel_tool_calls") && !tools)
            continue;
        OWN(arena) struct arena arena = {0};
        json_key_str(out, json_str(item.key, &arena));
        json_put_raw(out, json_raw(item.value));
    }
}

void chat_write_request(const struct trace_request *request,
                        const struct dialect_override *override, struct buf *out)
{
    struct json_writer json = {.out = out};
    json_begin_object(&json);
    json_set_str(&json, "model", model_of(request, override));
    json_key(&json, "messages");
    json_begin_array(&json);
    bool apart = override->engine == DIALECT_ENGINE_OPENAI;
    for (size_t i = 0; i < request->message_count; i++) {
        put_message(&request->messages[i], override->errors, apart, &json);
        bool last = i + 1 == request->message_count || request->messages[i + 1].role != TRACE_TOOL;
        if (apart && last && request->messages[i].role == TRACE_TOOL)
            put_pictures(request->messages, i, &json);
    }
    json_end_array(&json);
    bool tools = put_tools(request, &json);
    put_sampling(request, override, &json);
    put_settings(request->settings, tools, override, &json);
    bool sglang = override->capture && override->engine == DIALECT_ENGINE_SGLANG;
    bool generate = override->capture && override->engine == DIALECT_ENGINE_VLLM_GENERATE;
    bool stream = request->stream && !sglang && !generate;
    if (override->capture && !generate)
        json_set_bool(&json, "logprobs", true);
    if (override->capture && !sglang && !generate && override->engine != DIALECT_ENGINE_OPENAI) {
        json_set_bool(&json, "return_token_ids", true);
        json_set_bool(&json, "return_tokens_as_token_ids", true);
    }
    if (sglang) { /* it gives the prompt's ids only with whole answers */
        json_set_bool(&json, "return_meta_info", true);
        json_set_bool(&json, "return_prompt_token_ids", true);
    }
    if (override->thinking_off)
        json_set_raw(&json, "chat_template_kwargs", STR("{\"enable_thinking\":false}"));
    json_set_bool(&json, "stream", stream);
    if (stream)
        json_set_raw(&json, "stream_options", STR("{\"include_usage\":true}"));
    json_end_object(&json);
}
