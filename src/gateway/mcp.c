/* mcp.c - a rollout's tools as an MCP server at /mcp of its inlet, over streamable HTTP.
 *
 *     POST    one JSON-RPC message (or a batch, where the version has batches)
 *             only notifications and answers in it: 202; else application/json, or, when a tool
 *             takes longer, text/event-stream with signs of life and the answer as its last event
 *     DELETE  ends a session     GET  405: the server has nothing to say unasked
 *
 * The socket is the identity, so that an Mcp-Session-Id protects nothing: it names the agreed
 * version and lets a client end what it began. It can be checked without a table (it carries a
 * hash over the rollout's id), so that clients go on when the server was restarted under them.
 * Clients that never initialize are served too.
 *
 * A call whose client went away is withdrawn: without resumption nobody could be given the answer.
 * Versions: 2024-11-05 (its messages; the transport is newer), 2025-03-26, 2025-06-18, 2025-11-25.
 */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/id.h"
#include "base/mem.h"
#include "gateway/inner.h"
#include "gateway/mcp.h"
#include "gateway/tools.h"

#define BODY_BYTES_MAX ((size_t)1 << 20)
#define BATCH_MAX 32
#define STREAM_AFTER_MS 5000
#define SESSION_MAX 64

enum { RPC_PARSE = -32700, RPC_REQUEST = -32600, RPC_METHOD = -32601, RPC_PARAMS = -32602 };
enum { RPC_BUSY = -32000, RPC_HEADER = -32020, RPC_VERSION = -32022 }; /* of the servers' range */

#define META "io.modelcontextprotocol/"

/* One POST and the calls in it that are not answered yet. */
struct post {
    struct list node; /* in session->mcp.posts */
    struct gateway_session *session;
    struct http_exchange *exchange; /* NULL: gone */
    uint64_t client;                /* the MCP session; 0: none */
    enum mcp_version version;
    bool batch, takes_json, takes_stream, begun;
    bool taking; /* its messages are being read: it is not finished yet, whatever ends */
    struct list calls;
    struct buf answers; /* those that wait for the others: JSON, separated by commas */
    int status;         /* of the answer when it is the only one; 0: 200 */
    struct loop_timer pulse;
};
struct post_call {
    struct list node; /* in post->calls */
    struct post *post;
    struct tool_run *run;
    struct buf id, token; /* JSON; token: of progress, empty: not asked for */
    unsigned progress;
};

/* ---------------------------------------------------------------- sessions */

static uint64_t sign(const struct gateway_session *session, uint64_t random,
                     enum mcp_version version)
{
    OWN(buf) struct buf text = {0};
    buf_format(&text, "%s %016llx %d", session->rollout_id, (unsigned long long)random,
               (int)version);
    return XXH3_64bits(text.data, text.size);
}

static uint64_t session_make(struct gateway_session *session, enum mcp_version version,
                             char text[SESSION_MAX])
{
    uint64_t random = 0;
    while (!random)
        id_random_bytes(&random, sizeof random);
    snprintf(text, SESSION_MAX, "%016llx-%d-%016llx", (unsigned long long)random, (int)version,
             (unsigned long long)sign(session, random, version));
    return random;
}

/* False: it is none of ours, or was ended. */
static bool session_find(const struct gateway_session *session, struct str text, uint64_t *client,
                         enum mcp_version *version)
{
    char copy[SESSION_MAX], again[SESSION_MAX];
    unsigned long long random = 0;
    int number = 0;
    snprintf(copy, sizeof copy, "%.*s", STR_ARGS(str_upto(text, SESSION_MAX - 1)));
    if (sscanf(copy, "%16llx-%1d-", &random, &number) != 2 || number < 0 ||
        number >= MCP_2026_07_28)
        return false;
    snprintf(again, sizeof again, "%016llx-%d-%016llx", random, number,
             (unsigned long long)sign(session, random, (enum mcp_version)number));
    if (!str_is(text, again))
        return false;
    for (size_t i = 0; i < MCP_GONE_MAX; i++)
        if (session->mcp.gone[i] == random)
            return false;
    *client = random;
    *version = (enum mcp_version)number;
    return true;
}

/* ---------------------------------------------------------------- answers */

static void write_head(struct json_writer *out, struct str id)
{
    json_begin_object(out);
    json_set_text(out, "jsonrpc", "2.0");
    json_set_raw(out, "id", id.size ? id : STR("null"));
}

static void write_error(struct buf *body, struct str id, int code, const char *message)
{
    struct json_writer out = {.out = body};
    write_head(&out, id);
    json_key(&out, "error");
    json_begin_object(&out);
    json_set_int(&out, "code", code);
    json_set_text(&out, "message", message);
    json_end_object(&out);
    json_end_object(&out);
}

/* In 2026-07-28 the status tells what is wrong with a request too. */
static int status_of(enum mcp_version version, int code)
{
    if (version < MCP_2026_07_28)
        return code == RPC_REQUEST ? 400 : 200;
    return code == RPC_METHOD ? 404 : code == RPC_BUSY ? 200 : 400;
}

static void answer_http(struct http_exchange *exchange, int status, int code, const char *message)
{
    OWN(buf) struct buf body = {0};
    write_error(&body, STR_NONE, code, message);
    http_respond_json(exchange, status, buf_str(&body));
}

static void write_event(struct post *post, struct str message)
{
    OWN(buf) struct buf event = {0};
    buf_str_append(&event, STR("event: message\ndata: "));
    size_t from = event.size;
    buf_str_append(&event, message);
    for (size_t i = from; i < event.size; i++) /* as whoever answered has printed it */
        if (event.data[i] == '\n' || event.data[i] == '\r')
            event.data[i] = ' ';
    buf_str_append(&event, STR("\n\n"));
    http_respond_write(post->exchange, buf_str(&event));
}

static void post_free(struct post *post)
{
    LIST_EACH (node, &post->calls) {
        struct post_call *call = LIST_OF(node, struct post_call, node);
        list_remove(&call->node);
        if (call->run)
            tool_run_close(call->run);
        buf_deinit(&call->id);
        buf_deinit(&call->token);
        free(call);
    }
    loop_timer_stop(&post->pulse);
    list_remove(&post->node);
    buf_deinit(&post->answers);
    free(post);
}

/* Everything in it is answered or cancelled. */
static void post_finish(struct post *post)
{
    struct http_exchange *exchange = post->exchange;
    if (post->begun) {
        http_respond_end(exchange);
    } else if (post->answers.size) {
        OWN(buf) struct buf body = {0};
        buf_format(&body, post->batch ? "[%.*s]" : "%.*s", STR_ARGS(buf_str(&post->answers)));
        if (post->takes_json) {
            http_respond_json(exchange, 200, buf_str(&body));
        } else {
            exchange_begin_stream(exchange);
            write_event(post, buf_str(&body));
            http_respond_end(exchange);
        }
    } else {
        http_respond(exchange, 202, NULL, 0, STR_NONE); /* what was cancelled has no answer */
    }
    post_free(post);
}

/* Adds a message; the post is finished by whoever adds the last. */
static void post_add(struct post *post, struct str message)
{
    if (post->begun) {
        write_event(post, message);
        return;
    }
    buf_format(&post->answers, "%s%.*s", post->answers.size ? "," : "", STR_ARGS(message));
}

static void call_end(struct post_call *call, struct str message)
{
    struct post *post = call->post;
    if (message.size)
        post_add(post, message);
    list_remove(&call->node);
    if (call->run)
        tool_run_close(call->run);
    buf_deinit(&call->id);
    buf_deinit(&call->token);
    free(call);
    if (list_empty(&post->calls) && !post->taking)
        post_finish(post);
}

/* ---------------------------------------------------------------- tools/call */

static void on_result(void *context, struct str body)
{
    struct post_call *call = context;
    OWN(json_doc) struct json_doc doc = {0};
    OWN(buf) struct buf message = {0};
    struct json_writer out = {.out = &message};
    (void)json_read(&doc, body, NULL, NULL); /* it was read before it was taken */
    write_head(&out, buf_str(&call->id));
    json_key(&out, "result");
    mcp_write_result(json_get(json_root(&doc), "result"), call->post->version, &out);
    json_end_object(&out);
    call_end(call, buf_str(&message));
}

/* A tool that failed has an answer: the model should see it. */
static void on_fail(void *context, const struct err *err, const char *text, int http_status)
{
    struct post_call *call = context;
    OWN(buf) struct buf message = {0};
    struct json_writer out = {.out = &message};
    (void)err;
    (void)http_status;
    write_head(&out, buf_str(&call->id));
    json_key(&out, "result");
    mcp_write_failure(text, call->post->version, &out);
    json_end_object(&out);
    call_end(call, buf_str(&message));
}

static void add_error(struct post *post, struct json id, int code, const char *text)
{
    OWN(buf) struct buf message = {0};
    post->status = status_of(post->version, code);
    write_error(&message, json_raw(id), code, text);
    post_add(post, buf_str(&message));
}

static void call_tool(struct post *post, struct json id, struct json params)
{
    static const struct tool_run_handlers handlers = {on_result, on_fail};
    struct gateway_session *session = post->session;
    OWN(arena) struct arena arena = {0};
    struct json name = json_get(params, "name"), arguments = json_get(params, "arguments");
    struct json token = json_get(json_get(params, "_meta"), "progressToken");
    struct err err = {0};
    char text[160];
    struct str word = json_str(name, &arena);
    if (json_type(name) != JSON_STRING) {
        add_error(post, id, RPC_PARAMS, "tools/call needs the 'name' of a tool, a string");
        return;
    }
    if (!tools_have(session->tools, word)) {
        snprintf(text, sizeof text, "Unknown tool: %.*s", STR_ARGS(str_upto(word, 100)));
        add_error(post, id, RPC_PARAMS, text);
        return;
    }
    if (json_exists(arguments) && json_type(arguments) != JSON_OBJECT) {
        add_error(post, id, RPC_PARAMS, "'arguments' must be an object");
        return;
    }
    struct post_call *call = mem_zero(sizeof *call);
    call->post = post;
    buf_str_append(&call->id, json_raw(id));
    long long number;
    if (json_type(token) == JSON_STRING || json_int(token, &number))
        buf_str_append(&call->token, json_raw(token));
    list_append(&post->calls, &call->node);
    call->run = tool_run_start(session, TOOL_FUNCTION, word,
                               json_exists(arguments) ? json_raw(arguments) : STR("{}"), &handlers,
                               call, &err);
    if (call->run) {
        session->mcp.calls++;
        return;
    }
    add_error(post, id, RPC_BUSY, err.text);
    list_remove(&call->node);
    buf_deinit(&call->id);
    buf_deinit(&call->token);
    free(call);
}

/* ---------------------------------------------------------------- the other methods */

static void add_result(struct post *post, struct json id, struct str result)
{
    OWN(buf) struct buf message = {0};
    struct json_writer out = {.out = &message};
    write_head(&out, json_raw(id));
    json_set_raw(&out, "result", result);
    json_end_object(&out);
    post_add(post, buf_str(&message));
}

static void list_tools(struct post *post, struct json id, struct json params)
{
    OWN(buf) struct buf result = {0};
    struct json_writer out = {.out = &result};
    if (json_exists(json_get(params, "cursor"))) {
        add_error(post, id, RPC_PARAMS, "there is no such cursor: the list has one page");
        return;
    }
    post->session->mcp.lists++;
    mcp_write_list(post->session->tools, post->version, &out);
    add_result(post, id, buf_str(&result));
}

static void answer_request(struct post *post, struct json id, struct json method,
                           struct json params)
{
    OWN(arena) struct arena arena = {0};
    char text[120];
    if (json_exists(params) && json_type(params) != JSON_OBJECT) {
        add_error(post, id, RPC_PARAMS, "'params' must be an object");
    } else if (json_is(method, "ping") && post->version < MCP_2026_07_28) {
        add_result(post, id, STR("{}"));
    } else if (json_is(method, "server/discover") && post->version >= MCP_2026_07_28) {
        OWN(buf) struct buf result = {0};
        struct json_writer out = {.out = &result};
        mcp_write_discovered(&out);
        add_result(post, id, buf_str(&result));
    } else if (json_is(method, "tools/list")) {
        list_tools(post, id, params);
    } else if (json_is(method, "tools/call")) {
        call_tool(post, id, params);
    } else if (json_is(method, "initialize") && post->version < MCP_2026_07_28) {
        add_error(post, id, RPC_REQUEST, "initialize stands alone and begins a session");
    } else {
        struct str word = json_str(method, &arena);
        snprintf(text, sizeof text, "Method not found: %.*s", STR_ARGS(str_upto(word, 80)));
        add_error(post, id, RPC_METHOD, text);
    }
}

static void note_client(struct mcp *mcp, struct json info)
{
    OWN(arena) struct arena arena = {0};
    struct str name = json_str(json_get(info, "name"), &arena);
    struct str version = json_str(json_get(info, "version"), &arena);
    snprintf(mcp->client, sizeof mcp->client, "%.*s %.*s", STR_ARGS(str_upto(name, 60)),
             STR_ARGS(str_upto(version, 30)));
    for (char *at = mcp->client; *at; at++)
        if (!isprint((unsigned char)*at))
            *at = '?';
}

/* The version that was asked for when we have it, else our newest: the client decides whether it
 * can live with that. */
static void initialize(struct gateway_session *session, struct http_exchange *exchange,
                       struct json id, struct json params)
{
    OWN(arena) struct arena arena = {0};
    OWN(buf) struct buf body = {0};
    struct json asked = json_get(params, "protocolVersion");
    enum mcp_version version = MCP_2025_11_25;
    char text[SESSION_MAX];
    if (json_type(asked) != JSON_STRING) {
        write_error(&body, json_raw(id), RPC_PARAMS,
                    "initialize needs 'protocolVersion', a string like \"2025-11-25\"");
        http_respond_json(exchange, 200, buf_str(&body));
        return;
    }
    (void)mcp_version_find(json_str(asked, &arena), &version);
    if (version > MCP_2025_11_25)
        version = MCP_2025_11_25; /* newer ones do not begin so */
    (void)session_make(session, version, text);
    session->mcp.sessions++;
    session->mcp.version = mcp_version_names[version];
    note_client(&session->mcp, json_get(params, "clientInfo"));
    struct json_writer out = {.out = &body};
    write_head(&out, json_raw(id));
    json_key(&out, "result");
    mcp_write_hello(version, &out);
    json_end_object(&out);
    struct http_header headers[] = {{STR("content-type"), STR("application/json")},
                                    {STR("mcp-session-id"), str_of(text)}};
    http_respond(exchange, 200, headers, COUNT(headers), buf_str(&body));
}

static struct post_call *find_call(struct post *post, struct str id)
{
    LIST_EACH (node, &post->calls) {
        struct post_call *call = LIST_OF(node, struct post_call, node);
        if (str_equal(buf_str(&call->id), id))
            return call;
    }
    return NULL;
}

static void cancel(struct gateway_session *session, uint64_t client, struct json id)
{
    LIST_EACH (at, &session->mcp.posts) {
        struct post *post = LIST_OF(at, struct post, node);
        struct post_call *call = post->client == client ? find_call(post, json_raw(id)) : NULL;
        if (!call)
            continue;
        session->mcp.cancelled++;
        call_end(call, STR_NONE);
        return;
    }
}

/* ---------------------------------------------------------------- messages */

static bool is_id(struct json id)
{
    long long number;
    return json_type(id) == JSON_STRING || json_int(id, &number);
}

static void take_message(struct post *post, struct json message)
{
    struct json id = json_get(message, "id"), method = json_get(message, "method");
    struct json params = json_get(message, "params");
    struct json none = {0};
    if (json_type(message) != JSON_OBJECT || !json_is(json_get(message, "jsonrpc"), "2.0")) {
        add_error(post, is_id(id) ? id : none, RPC_REQUEST,
                  "not a message of JSON-RPC 2.0: an object with \"jsonrpc\": \"2.0\"");
    } else if (json_type(method) != JSON_STRING) {
        /* An answer: we never asked anything. */
        if (!json_exists(json_get(message, "result")) && !json_exists(json_get(message, "error")))
            add_error(post, is_id(id) ? id : none, RPC_REQUEST, "'method' must be a string");
    } else if (!json_exists(id)) {
        if (json_is(method, "notifications/cancelled"))
            cancel(post->session, post->client, json_get(params, "requestId"));
    } else if (!is_id(id)) {
        add_error(post, none, RPC_REQUEST, "'id' must be a string or a whole number");
    } else {
        answer_request(post, id, method, params);
    }
}

static void on_pulse(struct loop_timer *timer)
{
    struct post *post = timer->context;
    struct gateway_session *session = post->session;
    if (!post->begun) {
        exchange_begin_stream(post->exchange);
        post->begun = true;
        if (post->answers.size) {
            OWN(buf) struct buf body = {0};
            buf_format(&body, post->batch ? "[%.*s]" : "%.*s", STR_ARGS(buf_str(&post->answers)));
            write_event(post, buf_str(&body));
        }
    }
    bool said = false;
    LIST_EACH (node, &post->calls) {
        struct post_call *call = LIST_OF(node, struct post_call, node);
        OWN(buf) struct buf note = {0};
        if (!call->token.size)
            continue;
        buf_format(&note,
                   "{\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\",\"params\":{"
                   "\"progressToken\":%.*s,\"progress\":%u}}",
                   STR_ARGS(buf_str(&call->token)), ++call->progress);
        write_event(post, buf_str(&note));
        said = true;
    }
    if (!said)
        http_respond_write(post->exchange, STR(": keepalive\n\n"));
    loop_timer_start(session->gateway->loop, &post->pulse, session->keepalive_ms, on_pulse, post);
}

static void on_gone(void *context)
{
    post_free(context);
}

/* Waits for what is not answered yet. */
static void post_wait(struct post *post)
{
    struct gateway_session *session = post->session;
    uint32_t first =
        session->keepalive_ms < STREAM_AFTER_MS ? session->keepalive_ms : STREAM_AFTER_MS;
    http_exchange_notify(post->exchange, 0, NULL, on_gone, post);
    if (post->takes_stream)
        loop_timer_start(session->gateway->loop, &post->pulse, first, on_pulse, post);
}

static bool accepts(struct http_exchange *exchange, const char *type)
{
    struct str accept = http_exchange_header(exchange, "accept");
    return !accept.data || str_find(accept, str_of(type)) >= 0 ||
           str_find(accept, STR("*/*")) >= 0 ||
           (str_starts(str_of(type), STR("text/")) ? str_find(accept, STR("text/*")) >= 0
                                                   : str_find(accept, STR("application/*")) >= 0);
}

/* Which session, which version. False: answered. */
static bool find_client(struct gateway_session *session, struct http_exchange *exchange,
                        uint64_t *client, enum mcp_version *version)
{
    struct str id = http_exchange_header(exchange, "mcp-session-id");
    struct str said = http_exchange_header(exchange, "mcp-protocol-version");
    *client = 0;
    *version = MCP_2025_03_26; /* what a request without the header means */
    if (id.data && !session_find(session, id, client, version)) {
        answer_http(exchange, 404, RPC_REQUEST, "there is no such session: initialize again");
        return false;
    }
    if (said.data && !mcp_version_find(said, version)) {
        answer_http(exchange, 400, RPC_REQUEST,
                    "this MCP-Protocol-Version is not served; 2024-11-05, 2025-03-26, 2025-06-18, "
                    "2025-11-25 and 2026-07-28 are");
        return false;
    }
    return true;
}

static void answer_version(struct http_exchange *exchange, struct json id, struct str asked)
{
    OWN(buf) struct buf body = {0};
    struct json_writer out = {.out = &body};
    write_head(&out, json_raw(id));
    json_key(&out, "error");
    json_begin_object(&out);
    json_set_int(&out, "code", RPC_VERSION);
    json_set_text(&out, "message", "Unsupported protocol version");
    json_key(&out, "data");
    json_begin_object(&out);
    mcp_write_supported("supported", &out);
    json_set_str(&out, "requested", asked);
    json_end_object(&out);
    json_end_object(&out);
    json_end_object(&out);
    http_respond_json(exchange, 400, buf_str(&body));
}

/* A request that says itself in which version it is (since 2026-07-28); its headers must say the
 * same. False: answered. */
static bool read_envelope(struct gateway_session *session, struct http_exchange *exchange,
                          struct json root, enum mcp_version *version)
{
    OWN(arena) struct arena arena = {0};
    OWN(buf) struct buf body = {0};
    struct json id = json_get(root, "id"), params = json_get(root, "params");
    struct json meta = json_get(params, "_meta"), name = json_get(params, "name");
    struct json asked = json_get(meta, META "protocolVersion");
    struct str word = json_str(asked, &arena);
    struct str method = json_str(json_get(root, "method"), &arena);
    const char *wrong = NULL;
    int code = RPC_PARAMS;
    if (json_type(asked) != JSON_STRING ||
        json_type(json_get(meta, META "clientCapabilities")) != JSON_OBJECT) {
        wrong = "params._meta needs " META "protocolVersion, a string, and " META
                "clientCapabilities, an object";
    } else {
        code = RPC_HEADER;
        if (!str_equal(http_exchange_header(exchange, "mcp-protocol-version"), word))
            wrong = "the header MCP-Protocol-Version is not the version in params._meta";
        else if (!str_equal(http_exchange_header(exchange, "mcp-method"), method))
            wrong = "the header Mcp-Method is not the method of the body";
        else if (str_is(method, "tools/call") && json_type(name) == JSON_STRING &&
                 !str_equal(http_exchange_header(exchange, "mcp-name"), json_str(name, &arena)))
            wrong = "the header Mcp-Name is not the tool's name in the body";
    }
    if (wrong) {
        write_error(&body, is_id(id) ? json_raw(id) : STR_NONE, code, wrong);
        http_respond_json(exchange, 400, buf_str(&body));
        return false;
    }
    if (!mcp_version_find(word, version) || *version < MCP_2026_07_28) {
        answer_version(exchange, id, word);
        return false;
    }
    session->mcp.version = mcp_version_names[*version];
    note_client(&session->mcp, json_get(meta, META "clientInfo"));
    return true;
}

static bool has_envelope(struct http_exchange *exchange, struct json root)
{
    enum mcp_version version;
    struct json meta = json_get(json_get(root, "params"), "_meta");
    struct str said = http_exchange_header(exchange, "mcp-protocol-version");
    return is_id(json_get(root, "id")) && json_exists(json_get(root, "method")) &&
           (json_exists(json_get(meta, META "protocolVersion")) ||
            (mcp_version_find(said, &version) && version >= MCP_2026_07_28));
}

static void take_batch(struct post *post, struct http_exchange *exchange, struct json root)
{
    if (post->version > MCP_2025_03_26)
        answer_http(exchange, 400, RPC_REQUEST, "this version of MCP has no batches");
    else if (!json_size(root) || json_size(root) > BATCH_MAX)
        answer_http(exchange, 400, RPC_REQUEST, "a batch has 1 to 32 messages");
    else {
        post->batch = true;
        JSON_EACH (item, root)
            take_message(post, item.value);
        return;
    }
    post->exchange = NULL;
}

static void on_body(void *context, struct http_exchange *exchange, struct str body,
                    const struct err *err)
{
    struct gateway_session *session = context;
    OWN(json_doc) struct json_doc doc = {0};
    struct json_limits limits = {.depth_max = 64, .nodes_max = 1u << 20};
    uint64_t client = 0;
    enum mcp_version version = MCP_2025_03_26;
    if (err && err->kind != ERR_NONE)
        return;
    if (json_read(&doc, body, &limits, NULL) < 0) {
        answer_http(exchange, 400, RPC_PARSE, "Parse error: the body is no JSON");
        return;
    }
    struct json root = json_root(&doc);
    if (json_is(json_get(root, "method"), "initialize") && is_id(json_get(root, "id")) &&
        json_is(json_get(root, "jsonrpc"), "2.0")) {
        initialize(session, exchange, json_get(root, "id"), json_get(root, "params"));
        return;
    }
    bool modern = has_envelope(exchange, root);
    if (modern ? !read_envelope(session, exchange, root, &version)
               : !find_client(session, exchange, &client, &version))
        return;
    struct post *post = mem_zero(sizeof *post);
    *post = (struct post){.session = session,
                          .exchange = exchange,
                          .client = client,
                          .version = version,
                          .takes_json = accepts(exchange, "application/json"),
                          .takes_stream = accepts(exchange, "text/event-stream")};
    list_init(&post->calls);
    list_append(&session->mcp.posts, &post->node);
    post->taking = true;
    if (json_type(root) == JSON_ARRAY)
        take_batch(post, exchange, root);
    else
        take_message(post, root);
    post->taking = false;
    bool wrong = !post->batch && list_empty(&post->calls) && post->status > 200;
    if (!post->exchange) {
        post_free(post);
    } else if (wrong) {
        http_respond_json(exchange, post->status, buf_str(&post->answers));
        post_free(post);
    } else if (list_empty(&post->calls)) {
        post_finish(post);
    } else {
        post_wait(post);
    }
}

/* ---------------------------------------------------------------- routes */

/* Pages of other origins have no business here (the transport's rule against DNS rebinding). */
static bool is_foreign(struct http_exchange *exchange)
{
    struct str origin = http_exchange_header(exchange, "origin");
    if (!origin.data)
        return false;
    for (size_t i = 0; i < 2; i++) {
        struct str own = i ? STR("http://localhost") : STR("http://127.0.0.1");
        if (str_starts(origin, own) && (origin.size == own.size || origin.data[own.size] == ':'))
            return false;
    }
    return true;
}

static void answer_delete(struct gateway_session *session, struct http_exchange *exchange)
{
    struct mcp *mcp = &session->mcp;
    uint64_t client;
    enum mcp_version version;
    if (!http_exchange_header(exchange, "mcp-session-id").data) {
        answer_http(exchange, 400, RPC_REQUEST, "which session? Mcp-Session-Id is missing");
        return;
    }
    if (!find_client(session, exchange, &client, &version))
        return;
    mcp->gone[mcp->gone_count++ % MCP_GONE_MAX] = client;
    http_respond(exchange, 204, NULL, 0, STR_NONE);
    for (bool more = true; more;) {
        more = false;
        LIST_EACH (at, &mcp->posts) {
            struct post *post = LIST_OF(at, struct post, node);
            if (post->client != client || list_empty(&post->calls))
                continue;
            call_end(LIST_OF(post->calls.next, struct post_call, node), STR_NONE);
            more = true;
            break;
        }
    }
}

bool mcp_request(struct gateway_session *session, struct http_exchange *exchange, struct str path)
{
    static const struct http_header allow[] = {{{"allow", 5}, {"POST, DELETE", 12}}};
    struct str method = http_exchange_method(exchange);
    struct str type = http_exchange_header(exchange, "content-type");
    if (!str_is(path, "/mcp") && !str_is(path, "/mcp/"))
        return false;
    if (!session->tools) {
        session_refused(session, REFUSED_PATH);
        answer_http(exchange, 404, RPC_REQUEST, "this rollout has no tools");
    } else if (is_foreign(exchange)) {
        session_refused(session, REFUSED_INPUT);
        answer_http(exchange, 403, RPC_REQUEST, "this origin is not welcome");
    } else if (str_is(method, "DELETE")) {
        answer_delete(session, exchange);
    } else if (!str_is(method, "POST")) {
        http_respond(exchange, 405, allow, COUNT(allow), STR_NONE);
    } else if (type.data && str_find(type, STR("json")) < 0) {
        answer_http(exchange, 415, RPC_REQUEST, "the content type is application/json");
    } else if (!accepts(exchange, "application/json") && !accepts(exchange, "text/event-stream")) {
        answer_http(exchange, 406, RPC_REQUEST,
                    "the answer is application/json or text/event-stream");
    } else {
        http_exchange_collect(exchange, BODY_BYTES_MAX, on_body, session);
    }
    return true;
}

void mcp_deinit(struct gateway_session *session)
{
    LIST_EACH (at, &session->mcp.posts)
        post_free(LIST_OF(at, struct post, node));
}

void mcp_report(const struct gateway_session *session, struct json_writer *out)
{
    const struct mcp *mcp = &session->mcp;
    if (!mcp->sessions && !mcp->lists && !mcp->calls)
        return;
    json_key(out, "mcp");
    json_begin_object(out);
    json_set_int(out, "sessions", mcp->sessions);
    json_set_int(out, "lists", mcp->lists);
    json_set_int(out, "calls", mcp->calls);
    json_set_int(out, "cancelled", mcp->cancelled);
    if (mcp->version) {
        json_set_text(out, "version", mcp->version);
        json_set_text(out, "client", mcp->client);
    }
    json_end_object(out);
}
