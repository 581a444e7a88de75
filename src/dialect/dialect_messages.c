/* dialect_messages.c - Anthropic messages as spoken by model servers: reading their answers, whole
 * or streamed.
 *
 * Blocks are numbered by the server; tool_use blocks keep that number as their call's index. The
 * stop reason comes with message_delta, the end of the stream with message_stop: both must be
 * there, because a stream cut between them would pass for a whole one. */
#include "base/err.h"
#include "base/mem.h"
#include "dialect/messages.h"

static enum trace_finish finish_of(struct str word)
{
    static const struct {
        const char *word;
        enum trace_finish finish;
    } words[] = {{"end_turn", TRACE_FINISH_STOP},
                 {"stop_sequence", TRACE_FINISH_STOP},
                 {"pause_turn", TRACE_FINISH_STOP},
                 {"max_tokens", TRACE_FINISH_LENGTH},
                 {"tool_use", TRACE_FINISH_TOOL_CALLS},
                 {"refusal", TRACE_FINISH_CONTENT_FILTER},
                 {"model_context_window_exceeded", TRACE_FINISH_LENGTH}};
    for (size_t i = 0; i < COUNT(words); i++)
        if (str_is(word, words[i].word))
            return words[i].finish;
    return TRACE_FINISH_OTHER;
}

/* message_start has the prompt's part, message_delta the rest; whatever is said last counts. */
static void take_usage(struct answer_builder *builder, struct json usage)
{
    if (json_type(usage) != JSON_OBJECT)
        return;
    struct trace_usage *total = &builder->usage;
    struct json input = json_get(usage, "input_tokens");
    if (!total->known)
        *total = (struct trace_usage){.known = true, .cached_tokens = -1, .reasoning_tokens = -1};
    if (json_type(input) == JSON_NUMBER) {
        long long cached = json_int_or(json_get(usage, "cache_read_input_tokens"), 0);
        long long prompt = json_int_or(input, 0) + cached +
                           json_int_or(json_get(usage, "cache_creation_input_tokens"), 0);
        if (prompt > 0 || total->prompt_tokens == 0) {
            total->prompt_tokens = prompt;
            total->cached_tokens = cached;
        }
    }
    total->completion_tokens =
        json_int_or(json_get(usage, "output_tokens"), total->completion_tokens);
    total->reasoning_tokens =
        json_int_or(json_get(json_get(usage, "output_tokens_details"), "thinking_tokens"),
                    total->reasoning_tokens);
}

static void take_head(struct answer_builder *builder, struct json message, struct arena *scratch)
{
    answer_set(&builder->id, json_str(json_get(message, "id"), scratch));
    answer_set(&builder->model, json_str(json_get(message, "model"), scratch));
    take_usage(builder, json_get(message, "usage"));
}

static int take_call(struct answer_builder *builder, int64_t index, struct json block,
                     struct str arguments, struct arena *scratch, struct err *err)
{
    struct str id = json_str(json_get(block, "id"), scratch);
    struct str name = json_str(json_get(block, "name"), scratch);
    struct answer_call *call = answer_call(builder, index, id, name);
    if (!call)
        return err_set(err, ERR_PROTOCOL, "the model server's answer has more than %d tool calls",
                       ANSWER_CALLS_MAX);
    answer_call_add(builder, call, id, name, arguments);
    return 0;
}

/* Signed and redacted thinking, the server's own tools and their results, and whatever is not known
 * are kept as they came: the server wants them back unchanged. */
static bool is_opaque(struct json type)
{
    return !json_is(type, "text") && !json_is(type, "tool_use");
}

/* A block of a stream that is no text, thinking or call ends: what its pieces brought is put into
 * it. */
static void end_block(struct answer_builder *builder)
{
    OWN(json_doc) struct json_doc doc = {0};
    OWN(buf) struct buf whole = {0};
    struct json_edit input = {"input", buf_str(&builder->input)};
    bool has_input = json_read(&doc, buf_str(&builder->input), NULL, NULL) == 0;
    if (builder->block.size && json_read(&doc, buf_str(&builder->block), NULL, NULL) == 0) {
        json_splice(json_root(&doc), &input, has_input ? 1 : 0, &whole);
        answer_keep(builder, buf_str(&whole));
    }
    buf_clear(&builder->block);
    buf_clear(&builder->input);
}

static void add_thought(struct answer_builder *builder, struct str text)
{
    buf_str_append(&builder->thought, text);
    answer_add(builder, TRACE_DELTA_REASONING, text);
}

/* A block at its start, or a whole one. `input` counts only when it is whole. */
static int take_block(struct answer_builder *builder, int64_t index, struct json block, bool whole,
                      struct arena *scratch, struct err *err)
{
    struct json type = json_get(block, "type");
    end_block(builder);
    builder->in_call = json_is(type, "tool_use");
    if (json_is(type, "text")) {
        answer_add(builder, TRACE_DELTA_TEXT, json_str(json_get(block, "text"), scratch));
    } else if (json_is(type, "thinking")) {
        buf_clear(&builder->thought);
        add_thought(builder, json_str(json_get(block, "thinking"), scratch));
    } else if (json_is(type, "tool_use")) {
        struct str input = whole ? json_raw(json_get(block, "input")) : STR_NONE;
        return take_call(builder, index, block, input, scratch, err);
    }
    if (whole && is_opaque(type))
        answer_keep(builder, json_raw(block));
    else if (is_opaque(type) && !json_is(type, "thinking")) /* which is kept with its signature */
        buf_str_append(&builder->block, json_raw(block));
    return 0;
}

static int take_delta(struct answer_builder *builder, int64_t index, struct json delta,
                      struct arena *scratch, struct err *err)
{
    struct json type = json_get(delta, "type");
    if (json_is(type, "text_delta"))
        answer_add(builder, TRACE_DELTA_TEXT, json_str(json_get(delta, "text"), scratch));
    else if (json_is(type, "thinking_delta"))
        add_thought(builder, json_str(json_get(delta, "thinking"), scratch));
    else if (json_is(type, "signature_delta"))
        answer_signature(builder, json_str(json_get(delta, "signature"), scratch));
    else if (json_is(type, "input_json_delta") && !builder->in_call)
        buf_str_append(&builder->input, json_str(json_get(delta, "partial_json"), scratch));
    else if (json_is(type, "input_json_delta"))
        return take_call(builder, index, delta, json_str(json_get(delta, "partial_json"), scratch),
                         scratch, err);
    return 0;
}

static void take_stop(struct answer_builder *builder, struct json holder, struct arena *scratch)
{
    struct str reason = json_str(json_get(holder, "stop_reason"), scratch);
    if (reason.size)
        answer_set(&builder->finish_text, reason);
    answer_set(&builder->stop_word, json_str(json_get(holder, "stop_sequence"), scratch));
}

static void finish(struct answer_builder *builder)
{
    OWN(mem) char *word = str_dup(buf_str(&builder->finish_text));
    end_block(builder);
    for (size_t i = 0; i < builder->call_count;
         i++) /* a call without input brings no piece of it */
        if (builder->calls[i].arguments.size == 0)
            answer_call_add(builder, &builder->calls[i], STR_NONE, STR_NONE, STR("{}"));
    answer_finish(builder, finish_of(str_of(word)), str_of(word));
}

static int messages_read_event(struct answer_builder *builder, struct str name, struct json data,
                               struct arena *scratch, struct err *err)
{
    (void)name; /* the type is inside, too */
    struct json type = json_get(data, "type");
    int64_t index = json_int_or(json_get(data, "index"), -1);
    if (json_is(type, "message_start"))
        take_head(builder, json_get(data, "message"), scratch);
    else if (json_is(type, "content_block_start"))
        return take_block(builder, index, json_get(data, "content_block"), false, scratch, err);
    else if (json_is(type, "content_block_delta"))
        return take_delta(builder, index, json_get(data, "delta"), scratch, err);
    else if (json_is(type, "content_block_stop"))
        end_block(builder);
    else if (json_is(type, "message_delta")) {
        take_stop(builder, json_get(data, "delta"), scratch);
        take_usage(builder, json_get(data, "usage"));
    } else if (json_is(type, "message_stop"))
        finish(builder);
    else if (json_type(type) != JSON_STRING)
        return err_set(err, ERR_PROTOCOL, "an event of the model server's stream has no type");
    return 0;
}

static int messages_read_body(struct answer_builder *builder, struct json body,
                              struct arena *scratch, struct err *err)
{
    struct json content = json_get(body, "content");
    if (json_type(content) != JSON_ARRAY)
        return err_set(err, ERR_PROTOCOL, "the model server's answer has no content");
    take_head(builder, body, scratch);
    int64_t at = 0;
    JSON_EACH (item, content)
        if (take_block(builder, at++, item.value, true, scratch, err) < 0)
            return -1;
    take_stop(builder, body, scratch);
    finish(builder);
    return 0;
}

/* Nothing of ours is ever added to this protocol, so nothing has to go. */
static bool messages_strip(struct json data, const struct dialect_reader_options *options,
                           struct buf *out)
{
    (void)data;
    (void)options;
    (void)out;
    return false;
}

static const struct dialect_path paths[] = {
    {"POST", "/messages", false, DIALECT_ROUTE_CALL},
    {"POST", "/messages/count_tokens", false, DIALECT_ROUTE_COUNT},
    {0},
};

const struct dialect dialect_messages = {
    .name = "messages",
    .summary = "Anthropic messages",
    .paths = paths,
    .upstream_path = "/messages",
    .keepalive = ": keepalive\n\n",
    .keepalive_event = "event: ping\ndata: {\"type\":\"ping\"}\n\n",
    .in_order = true,
    .read_request = messages_read_request,
    .rewrite_request = messages_rewrite_request,
    .write_answer = messages_write_answer,
    .write_error = messages_write_error,
    .write_models = messages_write_models,
    .write_delta = messages_write_delta,
    .write_opaque = messages_write_opaque,
    .write_finish = messages_write_finish,
    .read_event = messages_read_event,
    .read_body = messages_read_body,
    .strip = messages_strip,
};
