/* dialect_google.c - Google generateContent as spoken by model servers: reading their answers,
 * whole or streamed.
 *
 * Every event is a whole response; its parts are pieces of the answer. A call comes in one piece.
 * The event with a finishReason is the last one that matters. */
#include "base/err.h"
#include "base/mem.h"
#include "dialect/google.h"

static enum trace_finish finish_of(struct str word, bool calls)
{
    if (str_is(word, "STOP"))
        return calls ? TRACE_FINISH_TOOL_CALLS : TRACE_FINISH_STOP;
    if (str_is(word, "MAX_TOKENS"))
        return TRACE_FINISH_LENGTH;
    static const char *const filtered[] = {"SAFETY", "RECITATION", "BLOCKLIST",
                                           "PROHIBITED_CONTENT", "SPII"};
    for (size_t i = 0; i < COUNT(filtered); i++)
        if (str_is(word, filtered[i]))
            return TRACE_FINISH_CONTENT_FILTER;
    return TRACE_FINISH_OTHER;
}

static void take_head(struct answer_builder *builder, struct json root, struct arena *scratch)
{
    answer_set(&builder->id, json_str(json_get(root, "responseId"), scratch));
    answer_set(&builder->model, json_str(json_get(root, "modelVersion"), scratch));
    struct json usage = json_get(root, "usageMetadata");
    if (json_type(json_get(usage, "promptTokenCount")) != JSON_NUMBER)
        return;
    long long thoughts = json_int_or(json_get(usage, "thoughtsTokenCount"), -1);
    builder->usage = (struct trace_usage){
        .known = true,
        .prompt_tokens = json_int_or(json_get(usage, "promptTokenCount"), 0),
        .completion_tokens =
            json_int_or(json_get(usage, "candidatesTokenCount"), 0) + (thoughts > 0 ? thoughts : 0),
        .cached_tokens = json_int_or(json_get(usage, "cachedContentTokenCount"), -1),
        .reasoning_tokens = thoughts};
}

static int take_part(struct answer_builder *builder, struct json part, struct arena *scratch,
                     struct err *err)
{
    struct json call = json_get(part, "functionCall");
    struct json text = json_get(part, "text");
    if (json_exists(json_get(part, "thoughtSignature")))
        answer_keep(builder, json_raw(part));
    if (json_type(text) == JSON_STRING)
        answer_add(builder,
                   json_true(json_get(part, "thought")) ? TRACE_DELTA_REASONING : TRACE_DELTA_TEXT,
                   json_str(text, scratch));
    if (json_type(call) != JSON_OBJECT)
        return 0;
    struct str id = json_str(json_get(call, "id"), scratch);
    struct str name = json_str(json_get(call, "name"), scratch);
    struct answer_call *target = answer_call(builder, (int64_t)builder->call_count, id, name);
    if (!target)
        return err_set(err, ERR_PROTOCOL, "the model server's answer has more than %d tool calls",
                       ANSWER_CALLS_MAX);
    struct json arguments = json_get(call, "args");
    target->unnamed = !id.size;
    answer_call_add(builder, target, id, name,
                    json_exists(arguments) ? json_raw(arguments) : STR("{}"));
    return 0;
}

static int google_read_event(struct answer_builder *builder, struct str name, struct json data,
                             struct arena *scratch, struct err *err)
{
    (void)name;
    if (json_type(data) != JSON_OBJECT)
        return err_set(err, ERR_PROTOCOL, "an event of the model server's stream is no object");
    take_head(builder, data, scratch);
    struct json candidate = json_at(json_get(data, "candidates"), 0);
    JSON_EACH (item, json_get(json_get(candidate, "content"), "parts"))
        if (take_part(builder, item.value, scratch, err) < 0)
            return -1;
    struct str finish = json_str(json_get(candidate, "finishReason"), scratch);
    struct str blocked =
        json_str(json_get(json_get(data, "promptFeedback"), "blockReason"), scratch);
    if (blocked.size && !json_exists(candidate)) /* the prompt was refused: that is all there is */
        answer_finish(builder, TRACE_FINISH_CONTENT_FILTER, blocked);
    if (finish.size)
        answer_finish(builder, finish_of(finish, builder->call_count > 0), finish);
    return 0;
}

static int google_read_body(struct answer_builder *builder, struct json body, struct arena *scratch,
                            struct err *err)
{
    if (json_size(json_get(body, "candidates")) == 0 &&
        !json_exists(json_get(json_get(body, "promptFeedback"), "blockReason")))
        return err_set(err, ERR_PROTOCOL, "the model server's answer has no candidates");
    return google_read_event(builder, STR_NONE, body, scratch, err);
}

static bool google_strip(struct json data, const struct dialect_reader_options *options,
                         struct buf *out)
{
    (void)data;
    (void)options;
    (void)out;
    return false;
}

static const struct dialect_path paths[] = {
    {"POST", "/v1beta/models/:generateContent", false, DIALECT_ROUTE_CALL},
    {"POST", "/v1beta/models/:streamGenerateContent", false, DIALECT_ROUTE_CALL},
    {"POST", "/v1beta/models/:countTokens", false, DIALECT_ROUTE_COUNT},
    /* The newer clients say /v1. */
    {"POST", "/models/:generateContent", false, DIALECT_ROUTE_CALL},
    {"POST", "/models/:streamGenerateContent", false, DIALECT_ROUTE_CALL},
    {"POST", "/models/:countTokens", false, DIALECT_ROUTE_COUNT},
    {"GET", "/v1beta/models", true, DIALECT_ROUTE_MODELS},
    {0},
};

const struct dialect dialect_google = {
    .name = "google",
    .summary = "Google generateContent",
    .paths = paths,
    .model_in_path = true,
    .count_key = "totalTokens",
    .keepalive = "data: {}\n\n",
    .keepalive_event = "data: {\"candidates\":[]}\n\n",
    .in_order = true,
    .read_request = google_read_request,
    .rewrite_request = google_rewrite_request,
    .write_answer = google_write_answer,
    .write_error = google_write_error,
    .write_models = google_write_models,
    .write_delta = google_write_delta,
    .write_finish = google_write_finish,
    .read_event = google_read_event,
    .read_body = google_read_body,
    .strip = google_strip,
};
