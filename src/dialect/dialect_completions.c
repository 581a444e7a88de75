/* dialect_completions.c - OpenAI completions, the older protocol of one prompt and one text.
 *
 * The prompt is one user message of ours: a text, or token ids that stay what they are (kept raw,
 * for nothing here tokenises). Several prompts in one request are several calls, and there is one
 * answer per call: refused. */
#include <math.h>

#include "base/err.h"
#include "base/mem.h"
#include "dialect/chat.h"
#include "dialect/read.h"

static bool is_ids(struct json prompt)
{
    return json_type(prompt) == JSON_ARRAY && json_size(prompt) > 0 &&
           json_type(json_at(prompt, 0)) == JSON_NUMBER;
}

static int read_prompt(struct read_context *context, struct json body, struct trace_request *out)
{
    struct json prompt = json_get(body, "prompt");
    if (json_type(prompt) == JSON_ARRAY && json_size(prompt) == 1 && !is_ids(prompt))
        prompt = json_at(prompt, 0);
    if (json_type(prompt) != JSON_STRING && !is_ids(prompt))
        return err_set(context->err, ERR_INPUT,
                       "prompt must be one string or one array of token ids");
    struct trace_message *message = arena_alloc(context->arena, sizeof *message);
    struct trace_part *part = arena_alloc(context->arena, sizeof *part);
    if (!message || !part)
        return read_out_of_room(context);
    if (is_ids(prompt))
        *part = (struct trace_part){.kind = TRACE_PART_OTHER, .raw = json_raw(prompt)};
    else
        part->text = json_str(prompt, context->arena);
    *message = (struct trace_message){.role = TRACE_USER, .parts = part, .part_count = 1};
    out->messages = message;
    out->message_count = 1;
    return 0;
}

/* They have the same names in both protocols. */
static int read_settings(struct read_context *context, struct json body, struct trace_request *out)
{
    static const char *const names[] = {
        "top_k",     "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty",
        "logit_bias"};
    struct read_settings settings = {0};
    long long seed;
    out->sampling.has_seed = json_int(json_get(body, "seed"), &seed);
    out->sampling.seed = out->sampling.has_seed ? seed : 0;
    for (size_t i = 0; i < COUNT(names); i++)
        read_settings_put(&settings, names[i], json_get(body, names[i]));
    return read_settings_end(context, &settings, &out->settings);
}

static int completions_read_request(struct json body, struct dialect_skim *skim,
                                    struct arena *arena, struct trace_request *out, struct err *err)
{
    struct read_context context = {.arena = arena, .err = err, .skim = skim};
    struct trace_sampling *sampling = &out->sampling;
    if (json_type(body) != JSON_OBJECT)
        return err_set(err, ERR_INPUT, "the body must be a JSON object");
    if (read_text(&context, body, "model", true, &out->model) < 0)
        return -1;
    if (out->model.size == 0)
        return err_set(err, ERR_INPUT, "model must not be empty");
    struct json n = json_get(body, "n"), best_of = json_get(body, "best_of");
    if ((read_is_there(n) && json_int_or(n, 0) != 1) ||
        (read_is_there(best_of) && json_int_or(best_of, 0) != 1))
        return err_set(err, ERR_INPUT, "n and best_of must be 1: there is one answer per call");
    if (read_prompt(&context, body, out) < 0 || read_settings(&context, body, out) < 0 ||
        read_number(&context, body, "temperature", &sampling->has_temperature,
                    &sampling->temperature) < 0 ||
        read_number(&context, body, "top_p", &sampling->has_top_p, &sampling->top_p) < 0 ||
        read_tokens_max_or_none(&context, body, "max_tokens", &sampling->tokens_max) < 0 ||
        read_texts(&context, body, "stop", &sampling->stop, &sampling->stop_count) < 0 ||
        read_flag(&context, body, "stream", &out->stream) < 0)
        return -1;
    out->stream_usage = json_true(json_get(json_get(body, "stream_options"), "include_usage"));
    out->wants_logprobs = read_is_there(json_get(body, "logprobs"));
    out->wants_token_ids = json_true(json_get(body, "return_token_ids"));
    return 0;
}

/* Of what is imposed on chat completions only the shape of log-probabilities differs here: how many
 * there are to be for each token. An agent that wants to read them gets as many as it asked for,
 * and its tokens as texts. */
static void completions_rewrite_request(struct json body, const struct dialect_override *override,
                                        struct buf *out)
{
    OWN(buf) struct buf first = {0};
    struct json_doc doc = {0};
    struct json asked = json_get(body, "logprobs");
    struct json as_ids = json_get(body, "return_tokens_as_token_ids");
    bool reads = json_type(asked) == JSON_NUMBER;
    struct json_edit edits[] = {
        {"logprobs", reads ? json_raw(asked) : STR("1")},
        {"return_tokens_as_token_ids", json_exists(as_ids) ? json_raw(as_ids) : STR_NONE},
    };
    struct dialect_override whole = *override;
    whole.gap = NULL;
    chat_rewrite_request(body, &whole, &first);
    if (override->capture && json_read(&doc, buf_str(&first), NULL, NULL) == 0)
        json_splice(json_root(&doc), edits, reads ? 2 : 1, out);
    else
        buf_str_append(out, buf_str(&first));
    json_doc_deinit(&doc);
}

/* ---------------------------------------------------------------- writing */

static const char *finish_word(enum trace_finish finish)
{
    return finish == TRACE_FINISH_LENGTH           ? "length"
           : finish == TRACE_FINISH_CONTENT_FILTER ? "content_filter"
                                                   : "stop";
}

/* Without a text there is no choice: only usage. */
static void put_body(struct str id, struct str model, int64_t created_s, struct str text,
                     const char *finish, const struct trace_usage *usage, struct buf *out)
{
    struct json_writer json = {.out = out};
    json_begin_object(&json);
    json_set_str(&json, "id", id);
    json_set_text(&json, "object", "text_completion");
    json_set_int(&json, "created", created_s);
    json_set_str(&json, "model", model);
    json_key(&json, "choices");
    json_begin_array(&json);
    if (text.data) {
        json_begin_object(&json);
        json_set_int(&json, "index", 0);
        json_set_str(&json, "text", text);
        json_set_null(&json, "logprobs");
        json_set_text(&json, "finish_reason", finish);
        json_end_object(&json);
    }
    json_end_array(&json);
    if (usage && usage->known) {
        json_key(&json, "usage");
        chat_write_usage(usage, &json);
    }
    json_end_object(&json);
}

static void completions_write_answer(const struct trace_request *request,
                                     const struct trace_answer *answer, struct buf *out)
{
    OWN(arena) struct arena arena = {0};
    struct str text = trace_message_text(&answer->message, &arena);
    put_body(answer->id, answer->model.data ? answer->model : request->model, answer->created_s,
             text.data ? text : STR(""), finish_word(answer->finish), &answer->usage, out);
}

static void put_chunk(struct dialect_writer *writer, struct str text, const char *finish,
                      const struct trace_usage *usage, struct buf *out)
{
    buf_str_append(out, STR("data: "));
    put_body(writer->id, writer->model.data ? writer->model : writer->request->model,
             writer->created_s, text, finish, usage, out);
    buf_str_append(out, STR("\n\n"));
}

/* There is only text here: reasoning and calls have no form in this protocol. */
static void completions_write_delta(struct dialect_writer *writer, const struct trace_delta *delta,
                                    struct buf *out)
{
    if (delta->kind == TRACE_DELTA_TEXT)
        put_chunk(writer, delta->text, NULL, NULL, out);
}

static void completions_write_finish(struct dialect_writer *writer, enum trace_finish finish,
                                     const struct trace_usage *usage, struct buf *out)
{
    put_chunk(writer, STR(""), finish_word(finish), NULL, out);
    if (writer->usage && usage && usage->known)
        put_chunk(writer, STR_NONE, NULL, usage, out);
    buf_str_append(out, STR("data: [DONE]\n\n"));
}

/* ---------------------------------------------------------------- reading */

static int take_ids(struct json list, struct buf *ids, bool *has, struct err *err)
{
    if (json_type(list) != JSON_ARRAY)
        return 0;
    *has = true;
    JSON_EACH (item, list) {
        long long number;
        if (!json_int(item.value, &number) || number < 0 || number > INT32_MAX)
            return err_set(err, ERR_PROTOCOL, "the model server sent a token id that is none");
        int32_t id = (int32_t)number;
        buf_append(ids, &id, sizeof id);
    }
    return 0;
}

static void take_logprobs(struct answer_builder *builder, struct json logprobs)
{
    struct json values = json_get(logprobs, "token_logprobs");
    if (json_type(values) != JSON_ARRAY)
        return;
    builder->has_logprobs = true;
    JSON_EACH (item, values) {
        float value = (float)json_double_or(item.value, NAN);
        buf_append(&builder->logprobs, &value, sizeof value);
    }
}

static int completions_read_event(struct answer_builder *builder, struct str name, struct json data,
                                  struct arena *scratch, struct err *err)
{
    (void)name;
    struct json choice = json_at(json_get(data, "choices"), 0);
    if (json_int_or(json_get(choice, "index"), 0) != 0)
        return 0; /* there is one answer per call */
    answer_set(&builder->id, json_str(json_get(data, "id"), scratch));
    answer_set(&builder->model, json_str(json_get(data, "model"), scratch));
    if (!builder->created_s)
        builder->created_s = json_int_or(json_get(data, "created"), 0);
    chat_read_usage(data, &builder->usage);
    if (json_type(json_get(choice, "text")) == JSON_STRING)
        answer_add(builder, TRACE_DELTA_TEXT, json_str(json_get(choice, "text"), scratch));
    if (take_ids(json_get(choice, "token_ids"), &builder->ids, &builder->has_ids, err) < 0 ||
        (!builder->has_prompt_ids &&
         take_ids(json_get(choice, "prompt_token_ids"), &builder->prompt_ids,
                  &builder->has_prompt_ids, err) < 0))
        return -1;
    take_logprobs(builder, json_get(choice, "logprobs"));
    struct str finish = json_str(json_get(choice, "finish_reason"), scratch);
    if (chat_broke_off(finish, err))
        return -1;
    if (finish.size)
        answer_finish(builder,
                      str_is(finish, "stop")             ? TRACE_FINISH_STOP
                      : str_is(finish, "length")         ? TRACE_FINISH_LENGTH
                      : str_is(finish, "content_filter") ? TRACE_FINISH_CONTENT_FILTER
                                                         : TRACE_FINISH_OTHER,
                      finish);
    return 0;
}

static int completions_read_body(struct answer_builder *builder, struct json body,
                                 struct arena *scratch, struct err *err)
{
    if (json_type(json_get(json_at(json_get(body, "choices"), 0), "text")) != JSON_STRING)
        return err_set(err, ERR_PROTOCOL, "the model server's answer has no choices[0].text");
    return completions_read_event(builder, STR_NONE, body, scratch, err);
}

static const struct dialect_path paths[] = {
    {"POST", "/completions", false, DIALECT_ROUTE_CALL},
    {0},
};

const struct dialect dialect_completions = {
    .name = "completions",
    .summary = "OpenAI completions",
    .paths = paths,
    .upstream_path = "/completions",
    .keepalive = ": keepalive\n\n",
    .keepalive_event = "data: {\"object\":\"text_completion\",\"choices\":[]}\n\n",
    .read_request = completions_read_request,
    .rewrite_request = completions_rewrite_request,
    .write_answer = completions_write_answer,
    .write_error = chat_write_error,
    .write_models = chat_write_models,
    .write_delta = completions_write_delta,
    .write_finish = completions_write_finish,
    .read_event = completions_read_event,
    .read_body = completions_read_body,
    .end_marker = "[DONE]",
    .strip = chat_strip,
};
