/* model.c - asking the model: a request body, an answer whole or streamed, and when to try again.
 *
 * An answer counts only when its finish reason was seen; anything less is a lost answer and is
 * asked for again. The conversation is kept as JSON text and only ever grows at its end, so that
 * the server's prefix cache holds. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/arena.h"
#include "base/clock.h"
#include "base/id.h"
#include "base/mem.h"
#include "json/json.h"
#include "chat.h"

#define CALLS_MAX 64
#define BACKOFF_MS_MIN 500
#define BACKOFF_MS_MAX 30000
#define RETRY_AFTER_MS_MAX 120000
#define ERROR_BODY_BYTES_MAX 65536

/* ---------------------------------------------------------------- the answer */

struct chat_parser {
    struct chat_answer *answer;
    bool stream;
    struct buf line, data;
    bool has_data;
    struct buf body;
    struct json_doc doc;
};

void chat_answer_deinit(struct chat_answer *answer)
{
    buf_deinit(&answer->text);
    buf_deinit(&answer->reasoning);
    buf_deinit(&answer->finish);
    buf_deinit(&answer->usage);
    for (size_t i = 0; i < answer->call_count; i++) {
        buf_deinit(&answer->calls[i].id);
        buf_deinit(&answer->calls[i].name);
        buf_deinit(&answer->calls[i].arguments);
    }
    free(answer->calls);
    *answer = (struct chat_answer){0};
}

struct chat_parser *chat_parser_new(bool stream, struct chat_answer *out)
{
    struct chat_parser *parser = mem_zero(sizeof *parser);
    parser->stream = stream;
    parser->answer = out;
    return parser;
}

void chat_parser_free(struct chat_parser *parser)
{
    if (!parser)
        return;
    buf_deinit(&parser->line);
    buf_deinit(&parser->data);
    buf_deinit(&parser->body);
    json_doc_deinit(&parser->doc);
    free(parser);
}

static struct chat_call *find_call(struct chat_answer *answer, int64_t index)
{
    for (size_t i = 0; i < answer->call_count; i++)
        if (answer->calls[i].index == index)
            return &answer->calls[i];
    if (answer->call_count >= CALLS_MAX)
        return NULL;
    answer->calls = mem_grow(answer->calls, (answer->call_count + 1) * sizeof *answer->calls);
    struct chat_call *call = &answer->calls[answer->call_count++];
    *call = (struct chat_call){.index = index};
    return call;
}

static void set_once(struct buf *field, struct str value)
{
    if (field->size == 0)
        buf_str_append(field, value);
}

static int take_call(struct chat_answer *answer, struct json value, int64_t index,
                     struct arena *scratch, struct err *err)
{
    struct chat_call *call = find_call(answer, index);
    if (!call)
        return err_set(err, ERR_PROTOCOL, "the answer has more than %d tool calls", CALLS_MAX);
    struct json function = json_get(value, "function");
    struct json arguments = json_get(function, "arguments");
    set_once(&call->id, json_str(json_get(value, "id"), scratch));
    set_once(&call->name, json_str(json_get(function, "name"), scratch));
    buf_str_append(&call->arguments, json_type(arguments) == JSON_OBJECT
                                         ? json_raw(arguments)
                                         : json_str(arguments, scratch));
    return 0;
}

static void take_reasoning(struct chat_answer *answer, struct json message, struct arena *scratch)
{
    static const char *const keys[] = {"reasoning_content", "reasoning"};
    for (size_t i = 0; i < COUNT(keys); i++) {
        struct json value = json_get(message, keys[i]);
        if (json_type(value) != JSON_STRING)
            continue;
        answer->reasoning_key = keys[i];
        buf_str_append(&answer->reasoning, json_str(value, scratch));
        return;
    }
}

/* A message or a delta: the same fields. */
static int take_message(struct chat_answer *answer, struct json message, struct arena *scratch,
                        struct err *err)
{
    buf_str_append(&answer->text, json_str(json_get(message, "content"), scratch));
    if (json_type(json_get(message, "refusal")) == JSON_STRING)
        buf_str_append(&answer->text, json_str(json_get(message, "refusal"), scratch));
    take_reasoning(answer, message, scratch);
    int64_t position = 0;
    JSON_EACH (item, json_get(message, "tool_calls")) {
        int64_t index = json_int_or(json_get(item.value, "index"), position++);
        if (take_call(answer, item.value, index, scratch, err) < 0)
            return -1;
    }
    return 0;
}

static int take_object(struct chat_parser *parser, struct str text, struct err *err)
{
    if (json_read(&parser->doc, text, NULL, err) < 0) {
        if (err)
            err->kind = ERR_LOST;
        return err_wrap(err, "the model server's answer is no JSON");
    }
    OWN(arena) struct arena scratch = {0};
    struct json root = json_root(&parser->doc);
    struct json error = json_get(root, "error");
    if (json_type(error) == JSON_OBJECT || json_type(error) == JSON_STRING) {
        struct str message = json_str(json_get(error, "message"), &scratch);
        if (!message.data)
            message = json_str(error, &scratch);
        message = str_upto(message, 300);
        return err_set(err, ERR_LOST, "the model server reported: %.*s", STR_ARGS(message));
    }
    struct json usage = json_get(root, "usage");
    if (json_type(usage) == JSON_OBJECT) {
        buf_clear(&parser->answer->usage);
        buf_str_append(&parser->answer->usage, json_raw(usage));
    }
    struct json choice = json_at(json_get(root, "choices"), 0);
    struct json message = json_get(choice, parser->stream ? "delta" : "message");
    if (take_message(parser->answer, message, &scratch, err) < 0)
        return -1;
    set_once(&parser->answer->finish, json_str(json_get(choice, "finish_reason"), &scratch));
    return 0;
}

/* ---------------------------------------------------------------- server-sent events */

static int take_event(struct chat_parser *parser, struct err *err)
{
    if (!parser->has_data)
        return 0;
    parser->has_data = false;
    if (str_is(str_trim(buf_str(&parser->data)), "[DONE]") || parser->data.size == 0)
        return 0;
    return take_object(parser, buf_str(&parser->data), err);
}

static int take_line(struct chat_parser *parser, struct str line, struct err *err)
{
    if (line.size && line.data[line.size - 1] == '\r')
        line.size--;
    if (line.size == 0)
        return take_event(parser, err);
    if (!str_starts(line, STR("data:")))
        return 0;
    struct str value = str_from(line, strlen("data:"));
    if (value.size && value.data[0] == ' ')
        value = str_from(value, 1);
    if (!parser->has_data)
        buf_clear(&parser->data);
    else
        buf_byte(&parser->data, '\n');
    parser->has_data = true;
    buf_str_append(&parser->data, value);
    return 0;
}

int chat_parser_feed(struct chat_parser *parser, struct str bytes, struct err *err)
{
    if (!parser->stream) {
        buf_str_append(&parser->body, bytes);
        return 0;
    }
    while (bytes.size) {
        long end = str_find_byte(bytes, '\n');
        if (end < 0) {
            buf_str_append(&parser->line, bytes);
            return 0;
        }
        buf_append(&parser->line, bytes.data, (size_t)end);
        bytes = str_from(bytes, (size_t)end + 1);
        if (take_line(parser, buf_str(&parser->line), err) < 0)
            return -1;
        buf_clear(&parser->line);
    }
    return 0;
}

/* A result can only be given to a call that has an id. */
static void name_calls(struct chat_answer *answer)
{
    for (size_t i = 0; i < answer->call_count; i++) {
        if (answer->calls[i].id.size)
            continue;
        char random[17];
        id_random_hex(random, 8);
        buf_format(&answer->calls[i].id, "call_%s", random);
    }
}

int chat_parser_end(struct chat_parser *parser, struct err *err)
{
    if (!parser->stream && take_object(parser, buf_str(&parser->body), err) < 0)
        return -1;
    if (parser->answer->finish.size == 0)
        return err_set(err, ERR_LOST, "the model's answer was cut off");
    name_calls(parser->answer);
    return 0;
}

/* ---------------------------------------------------------------- one attempt */

struct attempt {
    struct chat_parser *parser;
    struct chat_answer *answer;
    struct buf error_body;
    int status;
};

static int on_head(void *context, int status, struct str content_type)
{
    struct attempt *attempt = context;
    attempt->status = status;
    if (status == 200)
        attempt->parser =
            chat_parser_new(str_find(content_type, STR("text/event-stream")) >= 0, attempt->answer);
    return 0;
}

static int on_body(void *context, struct str bytes, struct err *err)
{
    struct attempt *attempt = context;
    if (attempt->parser)
        return chat_parser_feed(attempt->parser, bytes, err);
    if (attempt->error_body.size + bytes.size <= ERROR_BODY_BYTES_MAX)
        buf_str_append(&attempt->error_body, bytes);
    return 0;
}

/* "429: slow down", from whatever the server said. */
static int fail_status(const struct attempt *attempt, struct err *err)
{
    OWN(json_doc) struct json_doc doc = {0};
    OWN(arena) struct arena scratch = {0};
    struct str message = STR_NONE;
    if (json_read(&doc, buf_str(&attempt->error_body), NULL, NULL) == 0) {
        struct json error = json_get(json_root(&doc), "error");
        message = json_str(json_get(error, "message"), &scratch);
        if (!message.data)
            message = json_str(error, &scratch);
        if (!message.data)
            message = json_str(json_get(json_root(&doc), "message"), &scratch);
    }
    if (!message.data)
        message = str_trim(buf_str(&attempt->error_body));
    message = str_upto(message, 300);
    return err_set(err, ERR_PROTOCOL, "the model server answered %d%s%.*s", attempt->status,
                   message.size ? ": " : "", STR_ARGS(message));
}

static int attempt_once(const struct chat_model *model, struct str body, struct chat_answer *out,
                        struct chat_reply *reply, struct err *err)
{
    struct attempt attempt = {.answer = out};
    struct chat_post post = {.url = &model->url,
                             .agent = model->agent,
                             .route = "/chat/completions",
                             .key = model->key,
                             .body = body,
                             .deadline_ms = model->deadline_ms,
                             .idle_ms_max = model->idle_ms_max,
                             .on_head = on_head,
                             .on_body = on_body,
                             .context = &attempt};
    int result = chat_http_post(&post, reply, err);
    if (attempt.status && attempt.status != 200 && (result == 0 || err->kind == ERR_LOST))
        result = fail_status(&attempt, err);
    else if (result == 0)
        result = chat_parser_end(attempt.parser, err);
    chat_parser_free(attempt.parser);
    buf_deinit(&attempt.error_body);
    return result;
}

/* ---------------------------------------------------------------- trying again */

static bool may_retry(int status, enum err_kind kind)
{
    if (kind == ERR_TIMEOUT || kind == ERR_LIMIT)
        return false;
    if (status == 0 || status == 200)
        return kind == ERR_LOST;
    return status == 408 || status == 409 || status == 429 || status >= 500;
}

static uint64_t wait_before(uint32_t tries, int64_t retry_after_ms)
{
    uint64_t wait = BACKOFF_MS_MIN << (tries < 6 ? tries : 6);
    if (wait > BACKOFF_MS_MAX)
        wait = BACKOFF_MS_MAX;
    unsigned char byte;
    id_random_bytes(&byte, 1);
    wait = wait * 3 / 4 + wait * byte / 1024; /* 75 to 100 % */
    if (retry_after_ms >= 0)
        wait =
            (uint64_t)(retry_after_ms < RETRY_AFTER_MS_MAX ? retry_after_ms : RETRY_AFTER_MS_MAX);
    return wait;
}

static int pause_for(uint64_t wait_ms, uint64_t deadline_ms, struct err *err)
{
    uint64_t until = clock_mono_ms() + wait_ms;
    for (;;) {
        uint64_t now = clock_mono_ms();
        if (now >= deadline_ms)
            return err_set(err, ERR_TIMEOUT, "the time is over");
        uint64_t end = until < deadline_ms ? until : deadline_ms;
        if (now >= until)
            return 0;
        uint64_t left = end - now;
        struct timespec nap = {.tv_sec = (time_t)(left / 1000),
                               .tv_nsec = (long)(left % 1000) * 1000000};
        (void)nanosleep(&nap, NULL);
    }
}

static void write_body(const struct chat_model *model, struct str messages, struct buf *out)
{
    struct json_writer writer = {.out = out};
    json_begin_object(&writer);
    json_set_text(&writer, "model", model->name);
    json_key(&writer, "messages");
    json_begin_array(&writer);
    json_put_raw(&writer, messages);
    json_end_array(&writer);
    if (model->tools.size)
        json_set_raw(&writer, "tools", model->tools);
    if (model->has_temperature)
        json_set_double(&writer, "temperature", model->temperature);
    if (model->tokens_max)
        json_set_int(&writer, "max_tokens", model->tokens_max);
    json_set_bool(&writer, "stream", model->stream);
    if (model->stream)
        json_set_raw(&writer, "stream_options", STR("{\"include_usage\":true}"));
    json_end_object(&writer);
}

int chat_model_ask(const struct chat_model *model, struct str messages, struct chat_answer *out,
                   struct err *err)
{
    OWN(buf) struct buf body = {0};
    write_body(model, messages, &body);
    for (uint32_t tries = 0;; tries++) {
        struct chat_reply reply;
        struct err failed = {0};
        *out = (struct chat_answer){0};
        if (attempt_once(model, buf_str(&body), out, &reply, &failed) == 0)
            return 0;
        chat_answer_deinit(out);
        if (tries >= model->retries_max || !may_retry(reply.status, failed.kind))
            return err_copy(err, &failed);
        uint64_t wait_ms = wait_before(tries, reply.retry_after_ms);
        if (model->on_retry)
            model->on_retry(model->context, &failed, reply.status, wait_ms);
        if (pause_for(wait_ms, model->deadline_ms, err) < 0)
            return -1;
    }
}
