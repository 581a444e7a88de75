/* acp.c - agents that are driven through the Agent Client Protocol: JSON-RPC 2.0, one object per
 * line, over the agent's stdin and stdout.
 *
 *     -> initialize  [-> authenticate]  -> session/new  [-> session/set_mode]
 *     -> session/prompt   <- session/update ...   <- its answer      once for each turn
 *     [-> session/cancel]                                            when it is stopped
 *
 * The answer to a prompt ends a turn; after the last one the work is done, whatever the process
 * does afterwards. What it asks permission for it gets unless the spec says otherwise: the sandbox
 * is what limits it. Files and terminals of the client are served inside the sandbox where the spec
 * says so (acp_serve.c). Updates become the same events that rules find in other agents' output. */
#include "agent/acp.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "json/json.h"

enum { ACP_INITIALIZE = 1, ACP_AUTHENTICATE, ACP_NEW, ACP_MODE, ACP_PROMPT };

#define ACP_VERSION 1
#define ACP_MESSAGE_MAX (4u << 20)

/* ---------------------------------------------------------------- what we say */
void acp_begin(struct json_writer *writer, struct buf *out)
{
    *writer = (struct json_writer){.out = out};
    json_begin_object(writer);
    json_set_text(writer, "jsonrpc", "2.0");
}

void acp_send(struct agent_acp *acp, struct json_writer *writer)
{
    json_end_object(writer);
    buf_byte(writer->out, '\n');
    acp->on_send(acp->context, buf_str(writer->out));
}

/* With an id its answer is awaited, and no other is. */
static void begin_request(struct agent_acp *acp, struct json_writer *writer, struct buf *out,
                          int id, const char *method)
{
    acp_begin(writer, out);
    if (id) {
        acp->awaited = id;
        json_set_int(writer, "id", id);
    }
    json_set_text(writer, "method", method);
    json_key(writer, "params");
    json_begin_object(writer);
}

static void end_request(struct agent_acp *acp, struct json_writer *writer)
{
    json_end_object(writer);
    acp_send(acp, writer);
}

void acp_answer(struct agent_acp *acp, struct str id, struct str result)
{
    OWN(buf) struct buf out = {0};
    struct json_writer writer;
    acp_begin(&writer, &out);
    json_set_raw(&writer, "id", id);
    json_set_raw(&writer, "result", result);
    acp_send(acp, &writer);
}

void acp_refuse(struct agent_acp *acp, struct str id, int code, const char *text)
{
    OWN(buf) struct buf out = {0};
    struct json_writer writer;
    acp_begin(&writer, &out);
    json_set_raw(&writer, "id", id);
    json_key(&writer, "error");
    json_begin_object(&writer);
    json_set_int(&writer, "code", code);
    json_set_text(&writer, "message", text);
    json_end_object(&writer);
    acp_send(acp, &writer);
}

void agent_acp_begin(struct agent_acp *acp)
{
    OWN(buf) struct buf out = {0};
    struct json_writer writer;
    begin_request(acp, &writer, &out, ACP_INITIALIZE, "initialize");
    json_set_int(&writer, "protocolVersion", ACP_VERSION);
    json_key(&writer, "clientCapabilities");
    json_begin_object(&writer);
    json_key(&writer, "fs");
    json_begin_object(&writer);
    json_set_bool(&writer, "readTextFile", acp->way->files);
    json_set_bool(&writer, "writeTextFile", acp->way->files);
    json_end_object(&writer);
    json_set_bool(&writer, "terminal", acp->way->terminals);
    json_end_object(&writer);
    json_set_raw(&writer, "clientInfo", STR("{\"name\":\"postern\",\"version\":\"1\"}"));
    end_request(acp, &writer);
}

static void authenticate(struct agent_acp *acp)
{
    OWN(buf) struct buf out = {0};
    struct json_writer writer;
    begin_request(acp, &writer, &out, ACP_AUTHENTICATE, "authenticate");
    json_set_text(&writer, "methodId", acp->way->auth);
    end_request(acp, &writer);
}

static void ask_for_session(struct agent_acp *acp)
{
    OWN(buf) struct buf out = {0};
    struct json_writer writer;
    begin_request(acp, &writer, &out, ACP_NEW, "session/new");
    json_set_text(&writer, "cwd", acp->cwd);
    json_key(&writer, "mcpServers");
    json_begin_array(&writer);
    if (acp->mcp_url) {
        json_begin_object(&writer);
        json_set_text(&writer, "type", "http");
        json_set_text(&writer, "name", acp->mcp_name);
        json_set_text(&writer, "url", acp->mcp_url);
        json_set_raw(&writer, "headers", STR("[]"));
        json_end_object(&writer);
    }
    json_end_array(&writer);
    if (acp->meta)
        json_set_raw(&writer, "_meta", str_of(acp->meta));
    end_request(acp, &writer);
}

static void set_mode(struct agent_acp *acp)
{
    OWN(buf) struct buf out = {0};
    struct json_writer writer;
    begin_request(acp, &writer, &out, ACP_MODE, "session/set_mode");
    json_set_text(&writer, "sessionId", acp->session);
    json_set_text(&writer, "modeId", acp->way->mode);
    end_request(acp, &writer);
}

static void prompt(struct agent_acp *acp, const char *text)
{
    OWN(buf) struct buf out = {0};
    struct json_writer writer;
    acp->prompted = true;
    begin_request(acp, &writer, &out, ACP_PROMPT + (int)acp->turn++, "session/prompt");
    json_set_text(&writer, "sessionId", acp->session);
    json_key(&writer, "prompt");
    json_begin_array(&writer);
    json_begin_object(&writer);
    json_set_text(&writer, "type", "text");
    json_set_text(&writer, "text", text);
    json_end_object(&writer);
    json_end_array(&writer);
    end_request(acp, &writer);
}

/* Whether the spec would have this kind of tool refused. */
static bool is_denied(const struct agent_acp *acp, struct json params)
{
    struct json kind = json_get(json_get(params, "toolCall"), "kind");
    if (acp->way->deny_all)
        return true;
    for (size_t i = 0; acp->way->deny && acp->way->deny[i]; i++)
        if (json_is(kind, acp->way->deny[i]))
            return true;
    return false;
}

/* The first option that allows, or that rejects; none: it is cancelled. */
static void permit(struct agent_acp *acp, struct json id, struct json params, struct str line)
{
    OWN(buf) struct buf out = {0};
    struct json_writer writer = {.out = &out};
    bool denied = is_denied(acp, params);
    struct str option = STR_NONE;
    JSON_EACH (item, json_get(params, "options")) {
        struct json kind = json_get(item.value, "kind");
        bool fits = denied ? json_is(kind, "reject_once") || json_is(kind, "reject_always")
                           : json_is(kind, "allow_once") || json_is(kind, "allow_always");
        if (!option.data && fits)
            option = json_raw(json_get(item.value, "optionId"));
    }
    json_begin_object(&writer);
    json_key(&writer, "outcome");
    json_begin_object(&writer);
    json_set_text(&writer, "outcome", option.data && !acp->cancelling ? "selected" : "cancelled");
    if (option.data && !acp->cancelling)
        json_set_raw(&writer, "optionId", option);
    json_end_object(&writer);
    json_end_object(&writer);
    acp_answer(acp, json_raw(id), buf_str(&out));
    struct agent_event event = {.kind = AGENT_OTHER,
                                .type = STR("session/request_permission"),
                                .text = denied ? STR("denied") : STR("allowed"),
                                .raw = line};
    agent_reader_emit(acp->reader, &event);
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
    if (!acp->thinking) {
        buf_clear(&acp->reply);
        buf_str_append(&acp->reply, buf_str(&acp->said));
    }
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

/* The agent has answered; the user may have more to say. */
static void end_turn(struct agent_acp *acp, struct str line)
{
    flush(acp);
    acp->prompted = false;
    acp->answered++;
    if (acp->cancelling) {
        finish(acp, AGENT_KILLED, AGENT_DONE, STR("cancelled"), line);
        return;
    }
    const char *next = acp->turns && acp->turns[acp->turn_at] ? acp->turns[acp->turn_at] : NULL;
    if (next) {
        acp->turn_at++;
        agent_acp_say(acp, next);
    } else if (acp->on_turn) {
        acp->asking = true;
        acp->on_turn(acp->context, buf_str(&acp->reply));
    } else {
        finish(acp, AGENT_OK, AGENT_DONE, STR_NONE, line);
    }
}

void agent_acp_say(struct agent_acp *acp, const char *text)
{
    acp->asking = false;
    if (acp->over)
        return;
    if (!text || acp->cancelling) {
        finish(acp, acp->cancelling ? AGENT_KILLED : AGENT_OK, AGENT_DONE, STR_NONE, STR_NONE);
        return;
    }
    struct agent_event event = {
        .kind = AGENT_OTHER, .type = STR("user"), .text = str_of(text), .raw = str_of(text)};
    agent_reader_emit(acp->reader, &event);
    buf_clear(&acp->reply);
    prompt(acp, text);
}

void agent_acp_cancel(struct agent_acp *acp)
{
    OWN(buf) struct buf out = {0};
    struct json_writer writer;
    if (acp->over || acp->cancelling)
        return;
    acp->cancelling = true;
    if (!acp->prompted)
        return;
    begin_request(acp, &writer, &out, 0, "session/cancel");
    json_set_text(&writer, "sessionId", acp->session);
    end_request(acp, &writer);
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
    } else if (json_is(kind, "tool_call_update")) {
        if (ended)
            take_tool(acp, update, true, line, arena);
    } else if (!json_is(kind, "user_message_chunk")) {
        /* Plans, modes, commands, usage: for people. */
        struct agent_event event = {
            .kind = AGENT_OTHER, .type = json_str(kind, arena), .raw = line};
        agent_reader_emit(acp->reader, &event);
    }
}

static void fail(struct agent_acp *acp, struct str text, struct str line)
{
    finish(acp, AGENT_FAILED, AGENT_ERROR, text, line);
}

static void take_error(struct agent_acp *acp, long long id, struct json error, struct str line,
                       struct arena *arena)
{
    struct json detail = json_get(json_get(error, "data"), "details");
    struct str words = words_of(json_exists(detail) ? detail : json_get(error, "message"), arena);
    if (id == ACP_NEW && json_int_or(json_get(error, "code"), 0) == -32000 && !acp->way->auth)
        words = str_of(arena_format(arena, "%.*s (the spec's acp.auth names no way to log in)",
                                    STR_ARGS(str_upto(words, 200))));
    if (id == ACP_MODE) /* it goes on in the mode it has */
        prompt(acp, acp->instruction);
    else if (acp->cancelling)
        finish(acp, AGENT_KILLED, AGENT_DONE, STR("cancelled"), line);
    else
        fail(acp, words, line);
}

static void take_reason(struct agent_acp *acp, struct json reason, struct str line,
                        struct arena *arena)
{
    bool limit = json_is(reason, "max_tokens") || json_is(reason, "max_turn_requests");
    if (json_is(reason, "end_turn"))
        end_turn(acp, line);
    else if (json_is(reason, "cancelled") && acp->cancelling)
        finish(acp, AGENT_KILLED, AGENT_DONE, STR("cancelled"), line);
    else
        finish(acp, limit ? AGENT_LIMIT : AGENT_FAILED, limit ? AGENT_DONE : AGENT_ERROR,
               json_str(reason, arena), line);
}

static void take_answer(struct agent_acp *acp, long long id, struct json root, struct str line,
                        struct arena *arena)
{
    struct json error = json_get(root, "error"), result = json_get(root, "result");
    struct json version = json_get(result, "protocolVersion");
    struct str session = json_str(json_get(result, "sessionId"), arena);
    if (id != acp->awaited) /* nobody asked: it must not get a step done twice */
        return;
    acp->awaited = 0;
    if (json_exists(error)) {
        take_error(acp, id, error, line, arena);
        return;
    }
    switch (id) {
    case ACP_INITIALIZE:
        if (json_exists(version) && json_int_or(version, 0) != ACP_VERSION) {
            fail(acp, STR("it speaks another version of the Agent Client Protocol than 1"), line);
            return;
        }
        if (acp->mcp_url &&
            !json_true(json_get(json_get(json_get(result, "agentCapabilities"), "mcpCapabilities"),
                                "http"))) {
            fail(acp, STR("it takes no MCP servers over HTTP, and the task has tools"), line);
            return;
        }
        if (acp->way->auth)
            authenticate(acp);
        else
            ask_for_session(acp);
        return;
    case ACP_AUTHENTICATE:
        ask_for_session(acp);
        return;
    case ACP_NEW:
        if (!session.size || session.size >= sizeof acp->session) {
            fail(acp, STR("it began a session without a usable id"), line);
            return;
        }
        snprintf(acp->session, sizeof acp->session, "%.*s", STR_ARGS(session));
        if (acp->way->mode)
            set_mode(acp);
        else
            prompt(acp, acp->instruction);
        return;
    case ACP_MODE:
        prompt(acp, acp->instruction);
        return;
    default: /* of a prompt */
        if (acp->prompted && id == ACP_PROMPT + (long long)acp->turn - 1)
            take_reason(acp, json_get(result, "stopReason"), line, arena);
        return;
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
        permit(acp, id, params, line);
    else if (json_exists(method) && json_exists(id))
        acp_serve(acp, json_raw(id), method, params);
    else if (!json_exists(method) && json_int(id, &number))
        take_answer(acp, number, root, line, &arena);
}

void agent_acp_deinit(struct agent_acp *acp)
{
    acp_serve_deinit(acp);
    buf_deinit(&acp->said);
    buf_deinit(&acp->reply);
}
