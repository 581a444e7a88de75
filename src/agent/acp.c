/* acp.c - agents that are driven through the Agent Client Protocol: JSON-RPC 2.0, one object per
 * line, over the agent's stdin and stdout.
 *
 *     -> initialize  -> session/new  -> session/prompt     <- session/update ...  <- its answer
 *
 * We are a client without abilities of our own: no files, no terminals; the agent uses its own
 * tools. What it asks permission for it gets: the sandbox is what limits it. The answer to the
 * prompt is the end of the work, whatever the process does afterwards. Updates become the same
 * events that rules find in other agents' output. */
#include "agent/internal.h"

#include <stdio.h>

#include "base/mem.h"
#include "json/json.h"

enum { ACP_INITIALIZE = 1, ACP_NEW, ACP_PROMPT };

#define ACP_VERSION 1
#define ACP_MESSAGE_MAX (4u << 20)

/* ---------------------------------------------------------------- what we say */
static void begin(struct json_writer *writer, struct buf *out)
{
    *writer = (struct json_writer){.out = out};
    json_begin_object(writer);
    json_set_text(writer, "jsonrpc", "2.0");
}

static void send(struct agent_acp *acp, struct json_writer *writer)
{
    json_end_object(writer);
    buf_byte(writer->out, '\n');
    acp->on_send(acp->context, buf_str(writer->out));
}

static void begin_request(struct json_writer *writer, struct buf *out, int id, const char *method)
{
    begin(writer, out);
    json_set_int(writer, "id", id);
    json_set_text(writer, "method", method);
    json_key(writer, "params");
    json_begin_object(writer);
}

void agent_acp_begin(struct agent_acp *acp)
{
    OWN(buf) struct buf out = {0};
    struct json_writer writer;
    begin_request(&writer, &out, ACP_INITIALIZE, "initialize");
    json_set_int(&writer, "protocolVersion", ACP_VERSION);
    json_key(&writer, "clientCapabilities");
    json_begin_object(&writer);
    json_end_object(&writer);
    json_end_object(&writer);
    send(acp, &writer);
}

static void ask_for_session(struct agent_acp *acp)
{
    OWN(buf) struct buf out = {0};
    struct json_writer writer;
    begin_request(&writer, &out, ACP_NEW, "session/new");
    json_set_text(&writer, "cwd", acp->cwd);
    json_key(&writer, "mcpServers");
    json_begin_array(&writer);
    json_end_array(&writer);
    json_end_object(&writer);
    send(acp, &writer);
}

static void prompt(struct agent_acp *acp)
{
    OWN(buf) struct buf out = {0};
    struct json_writer writer;
    begin_request(&writer, &out, ACP_PROMPT, "session/prompt");
    json_set_text(&writer, "sessionId", acp->session);
    json_key(&writer, "prompt");
    json_begin_array(&writer);
    json_begin_object(&writer);
    json_set_text(&writer, "type", "text");
    json_set_text(&writer, "text", acp->instruction);
    json_end_object(&writer);
    json_end_array(&writer);
    json_end_object(&writer);
    send(acp, &writer);
}

/* The first option that allows; none: it is cancelled. */
static void permit(struct agent_acp *acp, struct json id, struct json params)
{
    OWN(buf) struct buf out = {0};
    struct json_writer writer;
    struct str option = STR_NONE;
    JSON_EACH (item, json_get(params, "options")) {
        struct json kind = json_get(item.value, "kind");
        if (!option.data && (json_is(kind, "allow_once") || json_is(kind, "allow_always")))
            option = json_raw(json_get(item.value, "optionId"));
    }
    begin(&writer, &out);
    json_set_raw(&writer, "id", json_raw(id));
    json_key(&writer, "result");
    json_begin_object(&writer);
    json_key(&writer, "outcome");
    json_begin_object(&writer);
    json_set_text(&writer, "outcome", option.data ? "selected" : "cancelled");
    if (option.data)
        json_set_raw(&writer, "optionId", option);
    json_end_object(&writer);
    json_end_object(&writer);
    send(acp, &writer);
}

static void refuse(struct agent_acp *acp, struct json id)
{
    OWN(buf) struct buf out = {0};
    struct json_writer writer;
    begin(&writer, &out);
    json_set_raw(&writer, "id", json_raw(id));
    json_key(&writer, "error");
    json_begin_object(&writer);
    json_set_int(&writer, "code", -32601);
    json_set_text(&writer, "message", "this client has no such method");
    json_end_object(&writer);
    send(acp, &writer);
}

/* ---------------------------------------------------------------- what it says */
/* Messages come in pieces; one is over when something else comes. */
static void flush(struct agent_acp *acp)
{
    if (!acp->said.size)
        return;
    struct agent_event event = {
        .kind = acp->thinking ? AGENT_REASONING : AGENT_ASSISTANT,
        .type = STR("session/update"),
        .text = buf_str(&acp->said),
        .raw = buf_str(&acp->said),
    };
    agent_reader_emit(acp->reader, &event);
    buf_clear(&acp->said);
}

static void finish(struct agent_acp *acp, enum agent_fate fate, enum agent_event_kind kind,
                   struct str text, struct str line)
{
    if (acp->over)
        return;
    flush(acp);
    struct agent_event event = {
        .kind = kind, .type = STR("session/prompt"), .text = text, .raw = line};
    agent_reader_emit(acp->reader, &event);
    acp->over = true;
    acp->fate = fate;
    acp->on_over(acp->context);
}

static void take_piece(struct agent_acp *acp, struct json update, bool thinking,
                       struct arena *arena)
{
    struct str message = json_str(json_get(update, "messageId"), arena);
    message = str_upto(message, sizeof acp->message - 1);
    if (acp->thinking != thinking || (message.size && !str_is(message, acp->message)))
        flush(acp);
    acp->thinking = thinking;
    snprintf(acp->message, sizeof acp->message, "%.*s", STR_ARGS(message));
    struct str text = json_str(json_get(json_get(update, "content"), "text"), arena);
    if (acp->said.size + text.size <= ACP_MESSAGE_MAX)
        buf_str_append(&acp->said, text);
}

static struct str words_of(struct json value, struct arena *arena)
{
    return json_type(value) == JSON_STRING ? json_str(value, arena) : json_raw(value);
}

static void take_tool(struct agent_acp *acp, struct json update, bool result, struct str line,
                      struct arena *arena)
{
    struct json words = json_get(update, result ? "rawOutput" : "rawInput");
    if (result && !json_exists(words))
        words = json_get(update, "content");
    flush(acp);
    struct agent_event event = {
        .kind = result ? AGENT_TOOL_RESULT : AGENT_TOOL_CALL,
        .type = STR("session/update"),
        .text = words_of(words, arena),
        .name = json_str(json_get(update, "title"), arena),
        .id = json_str(json_get(update, "toolCallId"), arena),
        .raw = line,
    };
    agent_reader_emit(acp->reader, &event);
}

static void take_update(struct agent_acp *acp, struct json update, struct str line,
                        struct arena *arena)
{
    struct json kind = json_get(update, "sessionUpdate"), status = json_get(update, "status");
    bool ended = json_is(status, "completed") || json_is(status, "failed");
    if (json_is(kind, "agent_message_chunk")) {
        take_piece(acp, update, false, arena);
    } else if (json_is(kind, "agent_thought_chunk")) {
        take_piece(acp, update, true, arena);
    } else if (json_is(kind, "tool_call")) {
        take_tool(acp, update, false, line, arena);
        if (ended)
            take_tool(acp, update, true, line, arena);
    } else if (json_is(kind, "tool_call_update") && ended) {
        take_tool(acp, update, true, line, arena);
    }
}

static void take_answer(struct agent_acp *acp, long long id, struct json root, struct str line,
                        struct arena *arena)
{
    struct json error = json_get(root, "error"), result = json_get(root, "result");
    if (json_exists(error)) {
        struct json detail = json_get(json_get(error, "data"), "details");
        finish(acp, AGENT_FAILED, AGENT_ERROR,
               words_of(json_exists(detail) ? detail : json_get(error, "message"), arena), line);
        return;
    }
    if (id == ACP_INITIALIZE) {
        ask_for_session(acp);
    } else if (id == ACP_NEW) {
        struct str session = json_str(json_get(result, "sessionId"), arena);
        snprintf(acp->session, sizeof acp->session, "%.*s", STR_ARGS(session));
        prompt(acp);
    } else if (id == ACP_PROMPT) {
        struct json reason = json_get(result, "stopReason");
        bool limit = json_is(reason, "max_tokens") || json_is(reason, "max_turn_requests");
        bool good = json_is(reason, "end_turn");
        finish(acp,
               good    ? AGENT_OK
               : limit ? AGENT_LIMIT
                       : AGENT_FAILED,
               good || limit ? AGENT_DONE : AGENT_ERROR, good ? STR_NONE : json_str(reason, arena),
               line);
    }
}

void agent_acp_line(struct agent_acp *acp, struct str line)
{
    OWN(json_doc) struct json_doc doc = {0};
    OWN(arena) struct arena arena = {.bytes_max = line.size * 8 + 4096};
    struct json_limits limits = {.depth_max = 64, .nodes_max = 1u << 20};
    if (!line.size || acp->over)
        return;
    if (json_read(&doc, line, &limits, NULL) < 0 || json_type(json_root(&doc)) != JSON_OBJECT) {
        struct agent_event event = {.kind = AGENT_OTHER, .raw = line};
        agent_reader_emit(acp->reader, &event);
        return;
    }
    struct json root = json_root(&doc), method = json_get(root, "method");
    struct json id = json_get(root, "id"), params = json_get(root, "params");
    long long number;
    if (json_is(method, "session/update"))
        take_update(acp, json_get(params, "update"), line, &arena);
    else if (json_is(method, "session/request_permission") && json_exists(id))
        permit(acp, id, params);
    else if (json_exists(method) && json_exists(id))
        refuse(acp, id);
    else if (!json_exists(method) && json_int(id, &number))
        take_answer(acp, number, root, line, &arena);
}

void agent_acp_deinit(struct agent_acp *acp)
{
    buf_deinit(&acp->said);
}
