/* messages_write.c - answers in the form of Anthropic messages: whole, as a stream, and as errors.
 *
 * A stream is a row of blocks: a delta of another kind (or the next tool call) ends the open block
 * and begins its own. Every event carries both an event: line and its type inside, because some
 * clients read one and some the other (reference: agents-wire.md 2.3). */
#include "base/mem.h"
#include "dialect/messages.h"

/* A refusal is text with a stop reason of its own here, and so is an end by a stop word. */
static const char *stop_reason(enum trace_finish finish, bool refused, struct str stop_word,
                               struct str own)
{
    /* Those of this protocol that others have no word for. */
    if (str_is(own, "pause_turn"))
        return "pause_turn";
    if (str_is(own, "model_context_window_exceeded"))
        return "model_context_window_exceeded";
    if (refused && finish != TRACE_FINISH_LENGTH && finish != TRACE_FINISH_TOOL_CALLS)
        return "refusal";
    if (stop_word.size && finish == TRACE_FINISH_STOP)
        return "stop_sequence";
    switch (finish) {
    case TRACE_FINISH_LENGTH:
        return "max_tokens";
    case TRACE_FINISH_TOOL_CALLS:
        return "tool_use";
    case TRACE_FINISH_CONTENT_FILTER:
        return "refusal";
    case TRACE_FINISH_NONE:
    case TRACE_FINISH_STOP:
    case TRACE_FINISH_OTHER:
    case TRACE_FINISHES:
        return "end_turn";
    }
    return "end_turn";
}

/* Here the prompt is counted in three parts that exclude each other. */
static void write_usage(const struct trace_usage *usage, struct json_writer *out)
{
    int64_t cached = usage && usage->known && usage->cached_tokens > 0 ? usage->cached_tokens : 0;
    int64_t prompt = usage && usage->known ? usage->prompt_tokens : 0;
    json_begin_object(out);
    json_set_int(out, "input_tokens", prompt > cached ? prompt - cached : 0);
    json_set_int(out, "cache_creation_input_tokens", 0);
    json_set_int(out, "cache_read_input_tokens", cached);
    json_set_int(out, "output_tokens", usage && usage->known ? usage->completion_tokens : 0);
    if (usage && usage->known && usage->reasoning_tokens >= 0) {
        json_key(out, "output_tokens_details");
        json_begin_object(out);
        json_set_int(out, "thinking_tokens", usage->reasoning_tokens);
        json_end_object(out);
    }
    json_end_object(out);
}

/* A call's arguments as an object; what is none is handed on as text, nothing is lost. */
static void put_input(struct str arguments, struct json_writer *out)
{
    struct json_doc doc = {0};
    if (str_trim(arguments).size == 0) {
        json_put_raw(out, STR("{}"));
    } else if (json_read(&doc, arguments, NULL, NULL) == 0 &&
               json_type(json_root(&doc)) == JSON_OBJECT) {
        json_put_raw(out, arguments);
    } else {
        json_begin_object(out);
        json_set_str(out, "input", arguments);
        json_end_object(out);
    }
    json_doc_deinit(&doc);
}

/* ---------------------------------------------------------------- whole */

/* What the model server wants back, as it came. Whether its thoughts are among it. */
static bool put_opaque(const struct trace_message *message, struct json_writer *out)
{
    OWN(json_doc) struct json_doc doc = {0};
    bool thoughts = false;
    if (!writer_opaque(message->opaque, &doc))
        return false;
    JSON_EACH (item, json_root(&doc)) {
        if (!writer_is_typed(item.value))
            continue;
        json_put_raw(out, json_raw(item.value));
        thoughts |= json_is(json_get(item.value, "type"), "thinking");
    }
    return thoughts;
}

static void write_content(const struct trace_message *message, struct json_writer *out)
{
    json_begin_array(out);
    if (!put_opaque(message, out) && message->reasoning.size) {
        json_begin_object(out);
        json_set_text(out, "type", "thinking");
        json_set_str(out, "thinking", message->reasoning);
        json_set_text(out, "signature", "");
        json_end_object(out);
    }
    for (size_t i = 0; i < message->part_count; i++) {
        json_begin_object(out);
        json_set_text(out, "type", "text");
        json_set_str(out, "text", message->parts[i].text);
        json_end_object(out);
    }
    for (size_t i = 0; i < message->call_count; i++) {
        json_begin_object(out);
        json_set_text(out, "type", "tool_use");
        json_set_str(out, "id", message->calls[i].id);
        json_set_str(out, "name", message->calls[i].name);
        json_key(out, "input");
        put_input(message->calls[i].arguments, out);
        json_end_object(out);
    }
    json_end_array(out);
}

/* Engines end answers with words of their own, too: those are no news to the agent. */
static struct str asked_for(const struct trace_request *request, struct str stop_word)
{
    for (size_t i = 0; i < request->sampling.stop_count; i++)
        if (str_equal(request->sampling.stop[i], stop_word))
            return stop_word;
    return STR_NONE;
}

static void write_stop(const struct trace_request *request, enum trace_finish finish, bool refused,
                       struct str stop_word, struct str own, struct json_writer *out)
{
    stop_word = asked_for(request, stop_word);
    const char *reason = stop_reason(finish, refused, stop_word, own);
    json_set_text(out, "stop_reason", reason);
    if (strcmp(reason, "stop_sequence") == 0)
        json_set_str(out, "stop_sequence", stop_word);
    else
        json_set_null(out, "stop_sequence");
}

void messages_write_answer(const struct trace_request *request, const struct trace_answer *answer,
                           struct buf *out)
{
    struct json_writer json = {.out = out};
    json_begin_object(&json);
    json_set_str(&json, "id", answer->id);
    json_set_text(&json, "type", "message");
    json_set_text(&json, "role", "assistant");
    json_set_str(&json, "model", answer->model.data ? answer->model : request->model);
    json_key(&json, "content");
    write_content(&answer->message, &json);
    bool refused = false;
    for (size_t i = 0; i < answer->message.part_count; i++)
        refused |= answer->message.parts[i].kind == TRACE_PART_REFUSAL;
    write_stop(request, answer->finish, refused, answer->stop_word, answer->finish_text, &json);
    json_key(&json, "usage");
    write_usage(&answer->usage, &json);
    json_end_object(&json);
}

/* ---------------------------------------------------------------- stream */

static struct json_writer begin_event(const char *type, struct buf *out)
{
    struct json_writer json = {.out = out};
    buf_format(out, "event: %s\ndata: ", type);
    json_begin_object(&json);
    json_set_text(&json, "type", type);
    return json;
}

static void end_event(struct json_writer *json)
{
    json_end_object(json);
    buf_append(json->out, "\n\n", 2);
}

static void begin_message(struct dialect_writer *writer, struct buf *out)
{
    if (writer->begun)
        return;
    writer->begun = true;
    struct json_writer json = begin_event("message_start", out);
    json_key(&json, "message");
    json_begin_object(&json);
    json_set_str(&json, "id", writer->id);
    json_set_text(&json, "type", "message");
    json_set_text(&json, "role", "assistant");
    json_set_str(&json, "model", writer->model.data ? writer->model : writer->request->model);
    json_key(&json, "content");
    json_put_raw(&json, STR("[]"));
    json_set_null(&json, "stop_reason");
    json_set_null(&json, "stop_sequence");
    json_key(&json, "usage");
    write_usage(NULL, &json);
    json_end_object(&json);
    end_event(&json);
}

static void end_block(struct dialect_writer *writer, struct buf *out)
{
    if (!writer->open)
        return;
    writer->open = false;
    struct json_writer json = begin_event("content_block_stop", out);
    json_set_int(&json, "index", writer->block++);
    end_event(&json);
}

static void begin_block(struct dialect_writer *writer, const struct trace_delta *delta,
                        struct buf *out)
{
    end_block(writer, out);
    writer->open = true;
    writer->open_kind = delta->kind;
    struct json_writer json = begin_event("content_block_start", out);
    json_set_int(&json, "index", writer->block);
    json_key(&json, "content_block");
    json_begin_object(&json);
    if (delta->kind == TRACE_DELTA_CALL) {
        json_set_text(&json, "type", "tool_use");
        json_set_str(&json, "id", delta->id);
        json_set_str(&json, "name", delta->name);
        json_set_raw(&json, "input", STR("{}"));
    } else if (delta->kind == TRACE_DELTA_REASONING) {
        json_set_text(&json, "type", "thinking");
        json_set_text(&json, "thinking", "");
        json_set_text(&json, "signature", "");
    } else {
        json_set_text(&json, "type", "text");
        json_set_text(&json, "text", "");
    }
    json_end_object(&json);
    end_event(&json);
}

static void write_piece(struct dialect_writer *writer, const char *type, const char *key,
                        struct str text, struct buf *out)
{
    struct json_writer json = begin_event("content_block_delta", out);
    json_set_int(&json, "index", writer->block);
    json_key(&json, "delta");
    json_begin_object(&json);
    json_set_text(&json, "type", type);
    json_set_str(&json, key, text);
    json_end_object(&json);
    end_event(&json);
}

void messages_write_delta(struct dialect_writer *writer, const struct trace_delta *delta,
                          struct buf *out)
{
    begin_message(writer, out);
    switch (delta->kind) {
    case TRACE_DELTA_CALL:
        writer->calls++;
        begin_block(writer, delta, out);
        return;
    case TRACE_DELTA_ARGUMENTS:
        write_piece(writer, "input_json_delta", "partial_json", delta->text, out);
        return;
    case TRACE_DELTA_REASONING:
        if (!writer->open || writer->open_kind != TRACE_DELTA_REASONING)
            begin_block(writer, delta, out);
        write_piece(writer, "thinking_delta", "thinking", delta->text, out);
        return;
    case TRACE_DELTA_TEXT:
    case TRACE_DELTA_REFUSAL:
        writer->refused |= delta->kind == TRACE_DELTA_REFUSAL;
        if (!writer->open ||
            (writer->open_kind != TRACE_DELTA_TEXT && writer->open_kind != TRACE_DELTA_REFUSAL))
            begin_block(writer, delta, out);
        write_piece(writer, "text_delta", "text", delta->text, out);
        return;
    }
}

static void write_thinking(struct dialect_writer *writer, struct json block, struct buf *out)
{
    OWN(arena) struct arena arena = {0};
    begin_block(writer, &(struct trace_delta){.kind = TRACE_DELTA_REASONING}, out);
    write_piece(writer, "thinking_delta", "thinking", json_str(json_get(block, "thinking"), &arena),
                out);
    write_piece(writer, "signature_delta", "signature",
                json_str(json_get(block, "signature"), &arena), out);
    end_block(writer, out);
}

static void write_block(struct dialect_writer *writer, struct json block, struct buf *out)
{
    struct json_writer json = begin_event("content_block_start", out);
    json_set_int(&json, "index", writer->block);
    json_key(&json, "content_block");
    writer_put_item(block, &json);
    end_event(&json);
    writer->open = true;
    end_block(writer, out);
}

bool messages_write_opaque(struct dialect_writer *writer, const struct trace_message *message,
                           struct json items, struct buf *out)
{
    (void)message;
    bool thoughts = false;
    begin_message(writer, out);
    JSON_EACH (item, items) {
        if (!writer_is_typed(item.value))
            continue;
        bool thinking = json_is(json_get(item.value, "type"), "thinking");
        (thinking ? write_thinking : write_block)(writer, item.value, out);
        thoughts |= thinking;
    }
    return thoughts;
}

void messages_write_finish(struct dialect_writer *writer, enum trace_finish finish,
                           const struct trace_usage *usage, struct buf *out)
{
    begin_message(writer, out);
    end_block(writer, out);
    struct json_writer json = begin_event("message_delta", out);
    json_key(&json, "delta");
    json_begin_object(&json);
    write_stop(writer->request, finish, writer->refused, writer->stop_word, writer->finish_text,
               &json);
    json_end_object(&json);
    json_key(&json, "usage");
    write_usage(usage, &json);
    end_event(&json);
    json = begin_event("message_stop", out);
    end_event(&json);
}

/* ---------------------------------------------------------------- errors and models */

static const char *error_type(int status, const char *code)
{
    /* Those that a status alone does not tell. */
    static const char *const known[] = {"billing_error", "overloaded_error", "timeout_error",
                                        "request_too_large"};
    for (size_t i = 0; code && i < COUNT(known); i++)
        if (strcmp(code, known[i]) == 0)
            return known[i];
    switch (status) {
    case 401:
        return "authentication_error";
    case 403:
        return "permission_error";
    case 404:
        return "not_found_error";
    case 413:
        return "request_too_large";
    case 429:
        return "rate_limit_error";
    case 529:
        return "overloaded_error";
    case 504:
        return "timeout_error";
    default:
        return status >= 500 ? "api_error" : "invalid_request_error";
    }
}

void messages_write_error(int status, const char *code, struct str message, struct buf *out)
{
    struct json_writer json = {.out = out};
    json_begin_object(&json);
    json_set_text(&json, "type", "error");
    json_key(&json, "error");
    json_begin_object(&json);
    json_set_text(&json, "type", error_type(status, code));
    json_set_str(&json, "message", message);
    json_end_object(&json);
    json_end_object(&json);
}

void messages_write_models(struct str model, int64_t created_s, bool one, struct buf *out)
{
    (void)created_s;
    struct json_writer json = {.out = out};
    if (!one) {
        json_begin_object(&json);
        json_key(&json, "data");
        json_begin_array(&json);
    }
    json_begin_object(&json);
    json_set_text(&json, "type", "model");
    json_set_str(&json, "id", model);
    json_set_str(&json, "display_name", model);
    json_set_text(&json, "created_at", "2026-01-01T00:00:00Z");
    json_end_object(&json);
    if (one)
        return;
    json_end_array(&json);
    json_set_bool(&json, "has_more", false);
    json_set_str(&json, "first_id", model);
    json_set_str(&json, "last_id", model);
    json_end_object(&json);
}
