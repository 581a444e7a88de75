/* dialect_chat.c - OpenAI chat completions as spoken by model servers: reading their answers, whole
 * or streamed.
 *
 * Token ids and log-probabilities are taken in the spellings of vLLM and SGLang: `prompt_token_ids`
 * on the body, its first chunk or the choice; `token_ids` on the choice; `logprobs.content[]` with
 * `logprob`, and `token_id` or a token "token_id:N". Only the choice with index 0 counts: there is
 * one answer per call. */
#include <math.h>

#include "base/err.h"
#include "base/mem.h"
#include "dialect/chat.h"

static enum trace_finish finish_of(struct str word)
{
    static const struct {
        const char *word;
        enum trace_finish finish;
    } words[] = {{"stop", TRACE_FINISH_STOP},
                 {"length", TRACE_FINISH_LENGTH},
                 {"tool_calls", TRACE_FINISH_TOOL_CALLS},
                 {"function_call", TRACE_FINISH_TOOL_CALLS},
                 {"content_filter", TRACE_FINISH_CONTENT_FILTER}};
    for (size_t i = 0; i < COUNT(words); i++)
        if (str_is(word, words[i].word))
            return words[i].finish;
    return TRACE_FINISH_OTHER;
}

/* ---------------------------------------------------------------- tokens */

static int add_id(struct buf *ids, struct json value, struct err *err)
{
    long long number;
    if (!json_int(value, &number) || number < 0 || number > INT32_MAX)
        return err_set(err, ERR_PROTOCOL, "the model server sent a token id that is none");
    int32_t id = (int32_t)number;
    buf_append(ids, &id, sizeof id);
    return 0;
}

static int take_ids(struct json list, struct buf *ids, bool *has, struct err *err)
{
    if (json_type(list) != JSON_ARRAY)
        return 0;
    *has = true;
    JSON_EACH (item, list)
        if (add_id(ids, item.value, err) < 0)
            return -1;
    return 0;
}

/* The id in {"token": "token_id:17"} or {"token_id": 17}; nothing when there is none. */
static void take_entry_id(struct answer_builder *builder, struct json entry, struct arena *scratch)
{
    long long number;
    if (!json_int(json_get(entry, "token_id"), &number)) {
        struct str token = json_str(json_get(entry, "token"), scratch);
        if (!str_starts(token, STR("token_id:")) ||
            !str_to_long(str_from(token, strlen("token_id:")), &number))
            return;
    }
    if (number < 0 || number > INT32_MAX)
        return;
    int32_t id = (int32_t)number;
    buf_append(&builder->logprob_ids, &id, sizeof id);
}

static void take_logprobs(struct answer_builder *builder, struct json logprobs,
                          struct arena *scratch)
{
    struct json content = json_get(logprobs, "content");
    if (json_type(content) != JSON_ARRAY)
        return;
    builder->has_logprobs = true;
    JSON_EACH (item, content) {
        float logprob = (float)json_double_or(json_get(item.value, "logprob"), NAN);
        buf_append(&builder->logprobs, &logprob, sizeof logprob);
        if (!builder->has_ids)
            take_entry_id(builder, item.value, scratch);
    }
}

/* SGLang: meta_info.output_token_logprobs is a list of [logprob, id, text]. */
static int take_meta_info(struct answer_builder *builder, struct json meta, struct err *err)
{
    struct json list = json_get(meta, "output_token_logprobs");
    if (json_type(list) != JSON_ARRAY)
        return 0;
    buf_clear(&builder->logprobs);
    buf_clear(&builder->ids); /* the same again, where `token_ids` are there too */
    builder->has_ids = builder->has_logprobs = true;
    JSON_EACH (item, list) {
        float logprob = (float)json_double_or(json_at(item.value, 0), NAN);
        buf_append(&builder->logprobs, &logprob, sizeof logprob);
        if (add_id(&builder->ids, json_at(item.value, 1), err) < 0)
            return -1;
    }
    return 0;
}

/* Ours: who samples with changing weights says which version made which tokens, all at once or with
 * each piece. */
static void take_versions(struct answer_builder *builder, struct json from, size_t before,
                          size_t after)
{
    struct trace_version_span span = {(int64_t)before, (int64_t)after, 0};
    long long version, start, end;
    if (json_int(json_get(from, "policy_version"), &version) && after > before) {
        span.version = version;
        buf_append(&builder->versions, &span, sizeof span);
    }
    JSON_EACH (item, json_get(from, "policy_versions")) {
        if (!json_int(json_at(item.value, 0), &start) || !json_int(json_at(item.value, 1), &end) ||
            !json_int(json_at(item.value, 2), &version) || start < 0 || end <= start)
            continue;
        span = (struct trace_version_span){start, end, version};
        buf_append(&builder->versions, &span, sizeof span);
    }
}

/* As many as answer_build() will give. */
static size_t token_count(const struct answer_builder *builder)
{
    const struct buf *ids = builder->has_ids ? &builder->ids : &builder->logprob_ids;
    return ids->size / sizeof(int32_t);
}

static int take_tokens(struct answer_builder *builder, struct json root, struct json choice,
                       struct arena *scratch, struct err *err)
{
    struct json prompt = json_get(root, "prompt_token_ids");
    if (json_type(prompt) != JSON_ARRAY)
        prompt = json_get(choice, "prompt_token_ids");
    if (!builder->has_prompt_ids &&
        take_ids(prompt, &builder->prompt_ids, &builder->has_prompt_ids, err) < 0)
        return -1;
    size_t before = token_count(builder);
    if (take_ids(json_get(choice, "token_ids"), &builder->ids, &builder->has_ids, err) < 0)
        return -1;
    take_logprobs(builder, json_get(choice, "logprobs"), scratch);
    if (take_meta_info(builder, json_get(choice, "meta_info"), err) < 0)
        return -1;
    take_versions(builder, choice, before, token_count(builder));
    return 0;
}

/* ---------------------------------------------------------------- messages and deltas */

/* Engines whose weights change, or that are shut down, end what they were at with a word of their
 * own, as if that were an answer. It is none: an agent would act on half a thought. */
bool chat_broke_off(struct str finish, struct err *err)
{
    if (!str_is(finish, "abort") && !str_is(finish, "error"))
        return false;
    err_set(err, ERR_LOST, "the model server broke the answer off: its finish reason is %.*s",
            STR_ARGS(finish));
    return true;
}

void chat_read_usage(struct json root, struct trace_usage *out)
{
    struct json usage = json_get(root, "usage");
    if (!trace_usage_read(usage, out))
        return;
    out->cached_tokens =
        json_int_or(json_get(json_get(usage, "prompt_tokens_details"), "cached_tokens"), -1);
    out->reasoning_tokens =
        json_int_or(json_get(json_get(usage, "completion_tokens_details"), "reasoning_tokens"), -1);
}

static void take_head(struct answer_builder *builder, struct json root, struct arena *scratch)
{
    answer_set(&builder->id, json_str(json_get(root, "id"), scratch));
    answer_set(&builder->model, json_str(json_get(root, "model"), scratch));
    if (!builder->created_s)
        builder->created_s = json_int_or(json_get(root, "created"), 0);
    chat_read_usage(root, &builder->usage);
}

static void take_piece(struct answer_builder *builder, enum trace_delta_kind kind,
                       struct json value, struct arena *scratch)
{
    if (json_type(value) == JSON_STRING)
        answer_add(builder, kind, json_str(value, scratch));
}

/* An array of parts is rare in answers, but exists. */
static void take_content(struct answer_builder *builder, struct json content, struct arena *scratch)
{
    take_piece(builder, TRACE_DELTA_TEXT, content, scratch);
    if (json_type(content) != JSON_ARRAY)
        return;
    JSON_EACH (item, content)
        take_piece(builder, TRACE_DELTA_TEXT, json_get(item.value, "text"), scratch);
}

static int take_call(struct answer_builder *builder, struct json call, int64_t index,
                     struct arena *scratch, struct err *err)
{
    struct json custom = json_get(call, "custom");
    bool free_text = json_type(custom) == JSON_OBJECT;
    struct json function = free_text ? custom : json_get(call, "function");
    struct str id = json_str(json_get(call, "id"), scratch);
    struct str name = json_str(json_get(function, "name"), scratch);
    struct json arguments = json_get(function, free_text ? "input" : "arguments");
    struct str text =
        json_type(arguments) == JSON_OBJECT ? json_raw(arguments) : json_str(arguments, scratch);
    struct answer_call *target = answer_call(builder, index, id, name);
    if (!target)
        return err_set(err, ERR_PROTOCOL, "the model server's answer has more than %d tool calls",
                       ANSWER_CALLS_MAX);
    target->custom |= free_text && !target->announced;
    answer_call_add(builder, target, id, name, text);
    return 0;
}

static int take_function(struct answer_builder *builder, struct json function,
                         struct arena *scratch, struct err *err)
{
    struct str name = json_str(json_get(function, "name"), scratch);
    struct answer_call *target = answer_call(builder, 0, STR_NONE, name);
    if (!target)
        return err_set(err, ERR_PROTOCOL, "the model server's answer has more than %d tool calls",
                       ANSWER_CALLS_MAX);
    answer_call_add(builder, target, STR_NONE, name,
                    json_str(json_get(function, "arguments"), scratch));
    return 0;
}

/* Of a stream only what cannot be told from its text is kept: signed, encrypted, unknown. */
static void take_details(struct answer_builder *builder, struct json details, bool whole,
                         bool readable, struct arena *scratch)
{
    JSON_EACH (item, details) {
        struct json text = json_get(item.value, "text");
        if (json_type(text) != JSON_STRING)
            text = json_get(item.value, "summary");
        bool plain = json_type(text) == JSON_STRING &&
                     json_type(json_get(item.value, "signature")) != JSON_STRING;
        if (readable)
            take_piece(builder, TRACE_DELTA_REASONING, text, scratch);
        if (whole || !plain)
            answer_keep(builder, json_raw(item.value));
    }
}

/* A message of a whole answer, or a delta of a streamed one: the same fields. */
static int take_message(struct answer_builder *builder, struct json message, bool whole,
                        struct arena *scratch, struct err *err)
{
    const char *reasoning = json_type(json_get(message, "reasoning_content")) == JSON_STRING
                                ? "reasoning_content"
                                : "reasoning";
    struct json thought = json_get(message, reasoning);
    take_piece(builder, TRACE_DELTA_REASONING, thought, scratch);
    take_details(builder, json_get(message, "reasoning_details"), whole,
                 json_type(thought) != JSON_STRING, scratch);
    take_content(builder, json_get(message, "content"), scratch);
    take_piece(builder, TRACE_DELTA_REFUSAL, json_get(message, "refusal"), scratch);
    /* Before there were several: one, without an id. */
    struct json old = json_get(message, "function_call");
    if (json_type(old) == JSON_OBJECT && take_function(builder, old, scratch, err) < 0)
        return -1;
    int64_t at = 0;
    JSON_EACH (item, json_get(message, "tool_calls")) {
        int64_t index = whole ? at++ : json_int_or(json_get(item.value, "index"), -1);
        if (take_call(builder, item.value, index, scratch, err) < 0)
            return -1;
    }
    return 0;
}

/* vLLM's name for it, and SGLang's; a number is a token that ends every answer. */
static void take_stop_word(struct answer_builder *builder, struct json choice,
                           struct arena *scratch)
{
    static const char *const names[] = {"stop_reason", "matched_stop"};
    for (size_t i = 0; i < COUNT(names); i++)
        answer_set(&builder->stop_word, json_str(json_get(choice, names[i]), scratch));
}

static int take_choices(struct answer_builder *builder, struct json root, bool whole,
                        struct arena *scratch, struct err *err)
{
    take_head(builder, root, scratch);
    JSON_EACH (item, json_get(root, "choices")) {
        struct json choice = item.value;
        if (json_int_or(json_get(choice, "index"), 0) != 0)
            continue;
        if (take_tokens(builder, root, choice, scratch, err) < 0 ||
            take_message(builder, json_get(choice, whole ? "message" : "delta"), whole, scratch,
                         err) < 0)
            return -1;
        struct str finish = json_str(json_get(choice, "finish_reason"), scratch);
        if (!finish.size)
            continue;
        if (chat_broke_off(finish, err))
            return -1;
        take_stop_word(builder, choice, scratch);
        answer_finish(builder, finish_of(finish), finish);
    }
    return 0;
}

static int chat_read_event(struct answer_builder *builder, struct str name, struct json data,
                           struct arena *scratch, struct err *err)
{
    (void)name;
    if (json_type(data) != JSON_OBJECT)
        return err_set(err, ERR_PROTOCOL, "an event of the model server's stream is no object");
    return take_choices(builder, data, false, scratch, err);
}

static int chat_read_body(struct answer_builder *builder, struct json body, struct arena *scratch,
                          struct err *err)
{
    if (json_type(json_get(json_at(json_get(body, "choices"), 0), "message")) != JSON_OBJECT)
        return err_set(err, ERR_PROTOCOL, "the model server's answer has no choices[0].message");
    return take_choices(builder, body, true, scratch, err);
}

/* ---------------------------------------------------------------- stripping */

static size_t choice_edits(struct json choice, const struct dialect_reader_options *options,
                           struct json_edit edits[4])
{
    size_t count = 0;
    if (options->strip_token_ids && json_exists(json_get(choice, "token_ids")))
        edits[count++] = (struct json_edit){"token_ids", STR_NONE};
    if (options->strip_token_ids && json_exists(json_get(choice, "prompt_token_ids")))
        edits[count++] = (struct json_edit){"prompt_token_ids", STR_NONE};
    if (options->strip_token_ids && json_exists(json_get(choice, "meta_info")))
        edits[count++] = (struct json_edit){"meta_info", STR_NONE};
    enum json_type logprobs = json_type(json_get(choice, "logprobs"));
    if (options->strip_logprobs && logprobs != JSON_NONE && logprobs != JSON_NULL)
        edits[count++] = (struct json_edit){"logprobs", STR("null")};
    return count;
}

/* The choices array with each choice stripped. False: nothing to do. */
static bool strip_choices(struct json choices, const struct dialect_reader_options *options,
                          struct buf *out)
{
    bool any = false;
    buf_byte(out, '[');
    JSON_EACH (item, choices) {
        struct json_edit edits[4];
        size_t count = choice_edits(item.value, options, edits);
        any |= count > 0;
        if (out->size > 1)
            buf_byte(out, ',');
        json_splice(item.value, edits, count, out);
    }
    buf_byte(out, ']');
    return any;
}

bool chat_strip(struct json data, const struct dialect_reader_options *options, struct buf *out)
{
    struct json choices = json_get(data, "choices");
    struct json usage = json_get(data, "usage");
    bool has_usage = options->strip_usage && json_type(usage) == JSON_OBJECT;
    if (has_usage && options->stream && json_size(choices) == 0)
        return true; /* the extra chunk that only carries usage */
    struct json_edit edits[4];
    size_t count = 0;
    OWN(buf) struct buf stripped = {0};
    if (options->strip_token_ids && json_exists(json_get(data, "prompt_token_ids")))
        edits[count++] = (struct json_edit){"prompt_token_ids", STR_NONE};
    if (options->strip_logprobs && json_exists(json_get(data, "prompt_logprobs")))
        edits[count++] = (struct json_edit){"prompt_logprobs", STR_NONE};
    if (has_usage && options->stream)
        edits[count++] = (struct json_edit){"usage", STR("null")};
    if (json_type(choices) == JSON_ARRAY && strip_choices(choices, options, &stripped))
        edits[count++] = (struct json_edit){"choices", buf_str(&stripped)};
    if (count == 0)
        return false;
    json_splice(data, edits, count, out);
    return true;
}

/* ---------------------------------------------------------------- the descriptor */

static const struct dialect_path paths[] = {
    {"POST", "/chat/completions", false, DIALECT_ROUTE_CALL},
    {"GET", "/models", true, DIALECT_ROUTE_MODELS},
    {0},
};

const struct dialect dialect_chat = {
    .name = "chat",
    .summary = "OpenAI chat completions",
    .paths = paths,
    .upstream_path = "/chat/completions",
    .keepalive = ": keepalive\n\n",
    .keepalive_event = "data: {\"object\":\"chat.completion.chunk\",\"choices\":[]}\n\n",
    .read_request = chat_read_request,
    .write_request = chat_write_request,
    .rewrite_request = chat_rewrite_request,
    .write_answer = chat_write_answer,
    .write_error = chat_write_error,
    .write_models = chat_write_models,
    .write_delta = chat_write_delta,
    .write_opaque = chat_write_opaque,
    .write_finish = chat_write_finish,
    .read_event = chat_read_event,
    .quick_event = chat_quick_event,
    .read_body = chat_read_body,
    .end_marker = "[DONE]",
    .strip = chat_strip,
};
