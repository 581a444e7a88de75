/* google_write.c - answers in the form of Google generateContent: whole, as a stream, and as
 * errors.
 *
 * Each event of a stream is a whole response with one candidate, exactly "data: {json}" and a blank
 * line: clients of this protocol choke on comments (reference: agents-wire.md, gemini). A call is
 * sent in one piece when it is complete. */
#include "base/mem.h"
#include "dialect/google.h"

/* Is this one of this API's words, all of which are in capitals? */
static bool is_word(struct str text)
{
    for (size_t i = 0; i < text.size; i++)
        if ((text.data[i] < 'A' || text.data[i] > 'Z') && text.data[i] != '_')
            return false;
    return text.size > 0;
}

/* A word of this API's own stays (`own`): there are more of them than others have. */
static struct str finish_word(enum trace_finish finish, struct str own)
{
    if (is_word(own))
        return own;
    switch (finish) {
    case TRACE_FINISH_LENGTH:
        return STR("MAX_TOKENS");
    case TRACE_FINISH_CONTENT_FILTER:
        return STR("SAFETY");
    case TRACE_FINISH_NONE:
    case TRACE_FINISH_STOP:
    case TRACE_FINISH_TOOL_CALLS:
    case TRACE_FINISH_OTHER:
    case TRACE_FINISHES:
        return STR("STOP");
    }
    return STR("STOP");
}

static void write_usage(const struct trace_usage *usage, struct json_writer *out)
{
    json_key(out, "usageMetadata");
    json_begin_object(out);
    json_set_int(out, "promptTokenCount", usage->prompt_tokens);
    /* Thoughts are counted apart here. */
    int64_t thoughts = usage->reasoning_tokens > 0 ? usage->reasoning_tokens : 0;
    int64_t rest = usage->completion_tokens - thoughts;
    json_set_int(out, "candidatesTokenCount", rest > 0 ? rest : 0);
    json_set_int(out, "totalTokenCount", usage->prompt_tokens + usage->completion_tokens);
    if (usage->cached_tokens > 0)
        json_set_int(out, "cachedContentTokenCount", usage->cached_tokens);
    if (thoughts)
        json_set_int(out, "thoughtsTokenCount", thoughts);
    json_end_object(out);
}

static void put_text(struct str text, bool thought, struct json_writer *out)
{
    json_begin_object(out);
    json_set_str(out, "text", text);
    if (thought)
        json_set_bool(out, "thought", true);
    json_end_object(out);
}

static bool is_signed_call(struct json part, struct str id, struct str name, struct str arguments)
{
    OWN(arena) struct arena arena = {0};
    struct json call = json_get(part, "functionCall");
    struct str own = json_str(json_get(call, "id"), &arena);
    if (json_type(call) != JSON_OBJECT || !json_exists(json_get(part, "thoughtSignature")))
        return false;
    if (own.size)
        return str_equal(own, id);
    struct json its = json_get(call, "args");
    return str_equal(json_str(json_get(call, "name"), &arena), name) &&
           str_equal(json_exists(its) ? json_raw(its) : STR("{}"), arguments);
}

/* The model server signed the call and wants the signature back with it. */
static void set_signature(struct str opaque, struct str id, struct str name, struct str arguments,
                          struct json_writer *out)
{
    OWN(json_doc) struct json_doc doc = {0};
    if (!writer_opaque(opaque, &doc))
        return;
    JSON_EACH (item, json_root(&doc)) {
        if (!is_signed_call(item.value, id, name, arguments))
            continue;
        json_set_raw(out, "thoughtSignature", json_raw(json_get(item.value, "thoughtSignature")));
        return;
    }
}

/* Signatures of texts, in parts of their own. */
static void put_signatures(struct str opaque, struct json_writer *out)
{
    OWN(json_doc) struct json_doc doc = {0};
    if (!writer_opaque(opaque, &doc))
        return;
    JSON_EACH (item, json_root(&doc)) {
        struct json signature = json_get(item.value, "thoughtSignature");
        if (json_type(signature) != JSON_STRING ||
            json_exists(json_get(item.value, "functionCall")))
            continue;
        json_begin_object(out);
        json_set_text(out, "text", "");
        if (json_true(json_get(item.value, "thought")))
            json_set_bool(out, "thought", true);
        json_set_raw(out, "thoughtSignature", json_raw(signature));
        json_end_object(out);
    }
}

static void put_call(struct str id, struct str name, struct str arguments, struct str opaque,
                     struct json_writer *out)
{
    struct json_doc doc = {0};
    bool object =
        json_read(&doc, arguments, NULL, NULL) == 0 && json_type(json_root(&doc)) == JSON_OBJECT;
    json_begin_object(out);
    json_key(out, "functionCall");
    json_begin_object(out);
    if (id.size)
        json_set_str(out, "id", id);
    json_set_str(out, "name", name);
    json_key(out, "args");
    if (object) {
        json_put_raw(out, arguments);
    } else {
        json_begin_object(out);
        if (str_trim(arguments).size)
            json_set_str(out, "input", arguments);
        json_end_object(out);
    }
    json_end_object(out);
    set_signature(opaque, id, name, arguments, out);
    json_end_object(out);
    json_doc_deinit(&doc);
}

static void begin_candidate(struct json_writer *out)
{
    json_begin_object(out);
    json_key(out, "candidates");
    json_begin_array(out);
    json_begin_object(out);
    json_key(out, "content");
    json_begin_object(out);
    json_set_text(out, "role", "model");
    json_key(out, "parts");
    json_begin_array(out);
}

static void end_candidate(struct str finish, struct str id, struct str model,
                          const struct trace_usage *usage, struct json_writer *out)
{
    json_end_array(out);
    json_end_object(out);
    json_set_int(out, "index", 0);
    if (finish.size)
        json_set_str(out, "finishReason", finish);
    json_end_object(out);
    json_end_array(out);
    if (usage && usage->known)
        write_usage(usage, out);
    json_set_str(out, "modelVersion", model);
    json_set_str(out, "responseId", id);
    json_end_object(out);
}

void google_write_answer(const struct trace_request *request, const struct trace_answer *answer,
                         struct buf *out)
{
    const struct trace_message *message = &answer->message;
    struct json_writer json = {.out = out};
    begin_candidate(&json);
    if (message->reasoning.size)
        put_text(message->reasoning, true, &json);
    for (size_t i = 0; i < message->part_count; i++)
        put_text(message->parts[i].text, false, &json);
    put_signatures(message->opaque, &json);
    for (size_t i = 0; i < message->call_count; i++)
        put_call(message->calls[i].id, message->calls[i].name, message->calls[i].arguments,
                 message->opaque, &json);
    end_candidate(finish_word(answer->finish, answer->finish_text), answer->id,
                  answer->model.data ? answer->model : request->model, &answer->usage, &json);
}

static struct str model_of(const struct dialect_writer *writer)
{
    return writer->model.data ? writer->model : writer->request->model;
}

/* A call whose arguments came in pieces goes out when the next thing begins. */
static void flush_call(struct dialect_writer *writer, struct buf *out)
{
    if (!writer->open)
        return;
    writer->open = false;
    buf_str_append(out, STR("data: "));
    struct json_writer json = {.out = out};
    begin_candidate(&json);
    put_call(buf_str(&writer->call_id), buf_str(&writer->call_name), buf_str(&writer->piece),
             writer->opaque, &json);
    end_candidate(STR_NONE, writer->id, model_of(writer), NULL, &json);
    buf_str_append(out, STR("\n\n"));
}

void google_write_delta(struct dialect_writer *writer, const struct trace_delta *delta,
                        struct buf *out)
{
    writer->begun = true;
    if (delta->kind == TRACE_DELTA_ARGUMENTS) {
        buf_str_append(&writer->piece, delta->text);
        return;
    }
    flush_call(writer, out);
    if (delta->kind == TRACE_DELTA_CALL) {
        writer->open = true;
        writer->calls++;
        buf_clear(&writer->piece);
        buf_clear(&writer->call_id);
        buf_clear(&writer->call_name);
        buf_str_append(&writer->call_id, delta->id);
        buf_str_append(&writer->call_name, delta->name);
        return;
    }
    buf_str_append(out, STR("data: "));
    struct json_writer json = {.out = out};
    begin_candidate(&json);
    put_text(delta->text, delta->kind == TRACE_DELTA_REASONING, &json);
    end_candidate(STR_NONE, writer->id, model_of(writer), NULL, &json);
    buf_str_append(out, STR("\n\n"));
}

void google_write_finish(struct dialect_writer *writer, enum trace_finish finish,
                         const struct trace_usage *usage, struct buf *out)
{
    flush_call(writer, out);
    buf_str_append(out, STR("data: "));
    struct json_writer json = {.out = out};
    begin_candidate(&json);
    put_text(STR(""), false, &json);
    put_signatures(writer->opaque, &json);
    end_candidate(finish_word(finish, writer->finish_text), writer->id, model_of(writer), usage,
                  &json);
    buf_str_append(out, STR("\n\n"));
}

static const char *status_word(int status)
{
    switch (status) {
    case 400:
        return "INVALID_ARGUMENT";
    case 401:
        return "UNAUTHENTICATED";
    case 403:
        return "PERMISSION_DENIED";
    case 404:
        return "NOT_FOUND";
    case 429:
        return "RESOURCE_EXHAUSTED";
    case 503:
        return "UNAVAILABLE";
    case 504:
        return "DEADLINE_EXCEEDED";
    default:
        return status >= 500 ? "INTERNAL" : "FAILED_PRECONDITION";
    }
}

void google_write_error(int status, const char *code, struct str message, struct buf *out)
{
    struct json_writer json = {.out = out};
    json_begin_object(&json);
    json_key(&json, "error");
    json_begin_object(&json);
    json_set_int(&json, "code", status);
    json_set_str(&json, "message", message);
    json_set_text(&json, "status", code && is_word(str_of(code)) ? code : status_word(status));
    json_end_object(&json);
    json_end_object(&json);
}

void google_write_models(struct str model, int64_t created_s, bool one, struct buf *out)
{
    (void)created_s;
    OWN(buf) struct buf name = {0};
    buf_format(&name, "models/%.*s", STR_ARGS(model));
    struct json_writer json = {.out = out};
    if (!one) {
        json_begin_object(&json);
        json_key(&json, "models");
        json_begin_array(&json);
    }
    json_begin_object(&json);
    json_set_str(&json, "name", buf_str(&name));
    json_set_str(&json, "displayName", model);
    json_set_raw(&json, "supportedGenerationMethods",
                 STR("[\"generateContent\",\"streamGenerateContent\",\"countTokens\"]"));
    json_end_object(&json);
    if (one)
        return;
    json_end_array(&json);
    json_end_object(&json);
}
