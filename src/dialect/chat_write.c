/* chat_write.c - answers in the form of chat completions: whole, as a stream, and as errors.
 *
 * Everything any client was seen to need is there (reference: agents-wire.md 2.3): the role chunk,
 * index and id on every tool call, a chunk with the finish reason, usage only when asked for, and
 * the end marker. */
#include "base/mem.h"
#include "dialect/chat.h"

static const char *finish_word(enum trace_finish finish)
{
    switch (finish) {
    case TRACE_FINISH_LENGTH:
    case TRACE_FINISH_TOOL_CALLS:
    case TRACE_FINISH_CONTENT_FILTER:
        return trace_finish_name(finish);
    case TRACE_FINISH_NONE:
    case TRACE_FINISH_STOP:
    case TRACE_FINISH_OTHER:
    case TRACE_FINISHES:
        return "stop";
    }
    return "stop";
}

void chat_write_usage(const struct trace_usage *usage, struct json_writer *out)
{
    json_begin_object(out);
    json_set_int(out, "prompt_tokens", usage->prompt_tokens);
    json_set_int(out, "completion_tokens", usage->completion_tokens);
    json_set_int(out, "total_tokens", usage->prompt_tokens + usage->completion_tokens);
    if (usage->cached_tokens >= 0) {
        json_key(out, "prompt_tokens_details");
        json_begin_object(out);
        json_set_int(out, "cached_tokens", usage->cached_tokens);
        json_end_object(out);
    }
    if (usage->reasoning_tokens >= 0) {
        json_key(out, "completion_tokens_details");
        json_begin_object(out);
        json_set_int(out, "reasoning_tokens", usage->reasoning_tokens);
        json_end_object(out);
    }
    json_end_object(out);
}

/* ---------------------------------------------------------------- whole */

static void write_call(const struct trace_request *request, const struct trace_tool_call *call,
                       struct json_writer *out)
{
    const struct trace_tool *tool = writer_tool(request, call->name);
    bool custom = tool && tool->custom;
    json_begin_object(out);
    json_set_str(out, "id", call->id);
    json_set_text(out, "type", custom ? "custom" : "function");
    json_key(out, custom ? "custom" : "function");
    json_begin_object(out);
    json_set_str(out, "name", call->name);
    if (custom)
        writer_put_input(call->arguments, out);
    else
        json_set_str(out, "arguments",
                     str_trim(call->arguments).size ? call->arguments : STR("{}"));
    json_end_object(out);
    json_end_object(out);
}

static void write_message(const struct trace_request *request, const struct trace_message *message,
                          struct json_writer *out)
{
    OWN(arena) struct arena scratch = {0};
    struct str text = trace_message_text(message, &scratch), refusal = STR_NONE;
    for (size_t i = 0; i < message->part_count; i++)
        if (message->parts[i].kind == TRACE_PART_REFUSAL)
            refusal = message->parts[i].text;
    json_begin_object(out);
    json_set_text(out, "role", "assistant");
    json_key(out, "content");
    if (text.data)
        json_put_str(out, text);
    else
        json_put_null(out);
    json_key(out, "refusal");
    if (refusal.data)
        json_put_str(out, refusal);
    else
        json_put_null(out);
    if (message->reasoning.data)
        json_set_str(out, "reasoning_content", message->reasoning);
    OWN(json_doc) struct json_doc details = {0};
    if (writer_opaque(message->opaque, &details))
        json_set_raw(out, "reasoning_details", json_raw(json_root(&details)));
    if (message->call_count) {
        json_key(out, "tool_calls");
        json_begin_array(out);
        for (size_t i = 0; i < message->call_count; i++)
            write_call(request, &message->calls[i], out);
        json_end_array(out);
    }
    json_end_object(out);
}

void chat_write_answer(const struct trace_request *request, const struct trace_answer *answer,
                       struct buf *out)
{
    struct json_writer writer = {.out = out};
    json_begin_object(&writer);
    json_set_str(&writer, "id", answer->id);
    json_set_text(&writer, "object", "chat.completion");
    json_set_int(&writer, "created", answer->created_s);
    json_set_str(&writer, "model", answer->model.data ? answer->model : request->model);
    json_key(&writer, "choices");
    json_begin_array(&writer);
    json_begin_object(&writer);
    json_set_int(&writer, "index", 0);
    json_key(&writer, "message");
    write_message(request, &answer->message, &writer);
    json_set_null(&writer, "logprobs");
    json_set_text(&writer, "finish_reason", finish_word(answer->finish));
    json_end_object(&writer);
    json_end_array(&writer);
    if (answer->usage.known) {
        json_key(&writer, "usage");
        chat_write_usage(&answer->usage, &writer);
    }
    json_end_object(&writer);
}

/* ---------------------------------------------------------------- stream */

static void begin_chunk(const struct dialect_writer *writer, struct json_writer *out)
{
    buf_append(out->out, "data: ", 6);
    json_begin_object(out);
    json_set_str(out, "id", writer->id);
    json_set_text(out, "object", "chat.completion.chunk");
    json_set_int(out, "created", writer->created_s);
    json_set_str(out, "model", writer->model.data ? writer->model : writer->request->model);
    json_key(out, "choices");
    json_begin_array(out);
}

static void begin_choice(struct json_writer *out)
{
    json_begin_object(out);
    json_set_int(out, "index", 0);
    json_key(out, "delta");
    json_begin_object(out);
}

static void end_choice(struct json_writer *out, const char *finish)
{
    json_end_object(out);
    json_set_text(out, "finish_reason", finish);
    json_end_object(out);
}

static void end_chunk(struct json_writer *out)
{
    json_end_array(out);
    json_end_object(out);
    buf_append(out->out, "\n\n", 2);
}

static void write_role(struct dialect_writer *writer, struct buf *out)
{
    if (writer->begun)
        return;
    writer->begun = true;
    struct json_writer json = {.out = out};
    begin_chunk(writer, &json);
    begin_choice(&json);
    json_set_text(&json, "role", "assistant");
    json_set_text(&json, "content", "");
    end_choice(&json, NULL);
    end_chunk(&json);
}

static void write_call_delta(const struct dialect_writer *writer, const struct trace_delta *delta,
                             struct json_writer *out)
{
    bool first = delta->kind == TRACE_DELTA_CALL;
    /* Arguments of custom tools come right behind their call: writer.c. */
    const struct trace_tool *tool = first ? writer_tool(writer->request, delta->name) : NULL;
    bool custom =
        first ? tool && tool->custom : writer->in_call && writer->call_index == delta->index;
    json_key(out, "tool_calls");
    json_begin_array(out);
    json_begin_object(out);
    json_set_int(out, "index", delta->index);
    if (first) {
        json_set_str(out, "id", delta->id);
        json_set_text(out, "type", custom ? "custom" : "function");
    }
    json_key(out, custom ? "custom" : "function");
    json_begin_object(out);
    if (first)
        json_set_str(out, "name", delta->name);
    if (custom && !first)
        writer_put_input(delta->text, out);
    else
        json_set_str(out, custom ? "input" : "arguments", first ? STR("") : delta->text);
    json_end_object(out);
    json_end_object(out);
    json_end_array(out);
}

void chat_write_delta(struct dialect_writer *writer, const struct trace_delta *delta,
                      struct buf *out)
{
    write_role(writer, out);
    struct json_writer json = {.out = out};
    begin_chunk(writer, &json);
    begin_choice(&json);
    switch (delta->kind) {
    case TRACE_DELTA_TEXT:
        json_set_str(&json, "content", delta->text);
        break;
    case TRACE_DELTA_REASONING:
        json_set_str(&json, "reasoning_content", delta->text);
        break;
    case TRACE_DELTA_REFUSAL:
        json_set_str(&json, "refusal", delta->text);
        break;
    case TRACE_DELTA_CALL:
        writer->calls++;
        write_call_delta(writer, delta, &json);
        break;
    case TRACE_DELTA_ARGUMENTS:
        write_call_delta(writer, delta, &json);
        break;
    }
    end_choice(&json, NULL);
    end_chunk(&json);
}

bool chat_write_opaque(struct dialect_writer *writer, const struct trace_message *message,
                       struct json items, struct buf *out)
{
    write_role(writer, out);
    struct json_writer json = {.out = out};
    begin_chunk(writer, &json);
    begin_choice(&json);
    /* Both in one chunk: clients read the one or the other. */
    if (message->reasoning.size)
        json_set_str(&json, "reasoning_content", message->reasoning);
    json_key(&json, "reasoning_details");
    writer_put_item(items, &json);
    end_choice(&json, NULL);
    end_chunk(&json);
    return true;
}

void chat_write_finish(struct dialect_writer *writer, enum trace_finish finish,
                       const struct trace_usage *usage, struct buf *out)
{
    write_role(writer, out);
    struct json_writer json = {.out = out};
    begin_chunk(writer, &json);
    begin_choice(&json);
    end_choice(&json, finish_word(finish));
    end_chunk(&json);
    if (writer->usage && usage && usage->known) {
        json = (struct json_writer){.out = out};
        begin_chunk(writer, &json);
        json_end_array(&json);
        json_key(&json, "usage");
        chat_write_usage(usage, &json);
        json_end_object(&json);
        buf_append(out, "\n\n", 2);
    }
    buf_str_append(out, STR("data: [DONE]\n\n"));
}

/* ---------------------------------------------------------------- errors and models */

static const char *error_type(int status)
{
    switch (status) {
    case 401:
        return "authentication_error";
    case 403:
        return "permission_error";
    case 404:
        return "not_found_error";
    case 408:
    case 504:
        return "timeout_error";
    case 429:
        return "rate_limit_error";
    default:
        return status >= 500 ? "server_error" : "invalid_request_error";
    }
}

void chat_write_error(int status, const char *code, struct str message, struct buf *out)
{
    struct json_writer writer = {.out = out};
    json_begin_object(&writer);
    json_key(&writer, "error");
    json_begin_object(&writer);
    json_set_str(&writer, "message", message);
    json_set_text(&writer, "type", error_type(status));
    json_set_null(&writer, "param");
    json_set_text(&writer, "code", code);
    json_end_object(&writer);
    json_end_object(&writer);
}

void chat_write_models(struct str model, int64_t created_s, bool one, struct buf *out)
{
    struct json_writer writer = {.out = out};
    if (!one) {
        json_begin_object(&writer);
        json_set_text(&writer, "object", "list");
        json_key(&writer, "data");
        json_begin_array(&writer);
    }
    json_begin_object(&writer);
    json_set_str(&writer, "id", model);
    json_set_text(&writer, "object", "model");
    json_set_int(&writer, "created", created_s);
    json_set_text(&writer, "owned_by", "postern");
    json_end_object(&writer);
    if (one)
        return;
    json_end_array(&writer);
    json_end_object(&writer);
}
