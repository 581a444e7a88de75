/* session.c - the gateway as one rollout's agent sees it: a few routes, limits, and nothing else.
 *
 * Limits are reserved when a call is admitted and settled when it is over, so that parallel calls
 * cannot overrun them. What a later call may still get is refused with 429 and a short wait; what
 * no later call will get is a 400, which no agent repeats, and the owner is told.
 *
 * Requests that try to leave (CONNECT, absolute URLs) are refused at once and counted by host: they
 * cost the agent milliseconds, and the result shows what it wanted. */
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/mem.h"
#include "gateway/inner.h"
#include "gateway/rules.h"
#include "gateway/tools.h"

#define CALLS_MAX 1000
#define IN_FLIGHT_MAX 16
#define CONNECTIONS_MAX 64
#define BODY_BYTES_MAX ((size_t)32 << 20)
#define ANSWER_BYTES_MAX ((size_t)64 << 20)
#define RECORD_BYTES_MAX ((uint64_t)16 << 30)
#define KEEPALIVE_MS 15000
#define HEADERS_AFTER_MS 20000
#define UNARY_AFTER_MS 45000 /* the most impatient agent gives up after 60 s without a head */
#define RETRY_GRACE_MS 30000
#define HELD_MS_MAX (3600u * 1000)
#define HOSTS_MAX 64
#define HOST_BYTES_MAX 255
#define SERVER_GRACE_MS 2000
#define TOKENS_EXPECTED 4096
#define BYTES_PER_TOKEN 4
#define BODIES_AT_ONCE 2u /* of the largest size: that much may be on its way, and again held */
#define TOO_MANY "too many calls of this rollout are in flight"
#define WASTED_PER_CALL 10u /* requests that are refused, for each call there may be */
#define WASTED_BODIES 32u   /* and their bytes, in bodies of the largest size */
#define INLET_PORT ":13131"

static const char *const refusal_names[REFUSALS] = {
    [REFUSED_CONNECT] = "connect",     [REFUSED_ABSOLUTE] = "absolute_url",
    [REFUSED_WEBSOCKET] = "websocket", [REFUSED_PATH] = "path",
    [REFUSED_METHOD] = "method",       [REFUSED_BODY] = "body",
    [REFUSED_INPUT] = "input",         [REFUSED_BUSY] = "busy",
    [REFUSED_LIMIT] = "limit",         [REFUSED_STOPPED] = "stopped",
};

/* ---------------------------------------------------------------- causes */

void session_refused(struct gateway_session *session, enum refusal why)
{
    session->refusals[why]++;
    session->stats.refused++;
    atomic_fetch_add(&session->gateway->refused, 1);
}

void session_cause(struct gateway_session *session, enum gateway_cause cause, const struct err *why)
{
    if (session->stats.cause == GATEWAY_FINE) {
        session->stats.cause = cause;
        session->stats.why = *why;
    }
    if (session->stats.error.kind == ERR_NONE)
        session->stats.error = *why;
}

static void tell_exhausted(void *argument)
{
    struct gateway_session *session = argument;
    if (!session->finished)
        session->on_exhausted(session->context, session->exhausted_cause, &session->exhausted_why);
}

void session_exhaust(struct gateway_session *session, enum gateway_cause cause,
                     const struct err *why)
{
    session_cause(session, cause, why);
    if (session->exhausted)
        return;
    session->exhausted = true;
    session->exhausted_cause = cause;
    session->exhausted_why = *why;
    if (session->on_exhausted)
        loop_defer(session->gateway->loop, tell_exhausted, session);
}

/* ---------------------------------------------------------------- admission */

static int refuse(struct gateway_session *session, enum refusal why, struct err *err,
                  enum err_kind kind, const char *text)
{
    session_refused(session, why);
    return err_set(err, kind, "%s", text);
}

static int run_out(struct gateway_session *session, struct err *err, const char *what,
                   long long limit)
{
    session_refused(session, REFUSED_LIMIT);
    err_set(err, ERR_LIMIT, "this rollout's limit of %lld %s is reached", limit, what);
    session_exhaust(session, GATEWAY_LIMIT, err);
    return -1;
}

int session_open_for_calls(struct gateway_session *session, int *status, uint32_t *retry_after_s,
                           struct err *err)
{
    *status = 400;
    *retry_after_s = 0;
    if (session->stop_reason)
        return refuse(session, REFUSED_STOPPED, err, ERR_CANCELLED, session->stop_reason);
    if (session->closing)
        return refuse(session, REFUSED_STOPPED, err, ERR_CANCELLED, "this rollout is over");
    if (session->exhausted)
        return refuse(session,
                      session->exhausted_cause == GATEWAY_LIMIT ? REFUSED_LIMIT : REFUSED_STOPPED,
                      err, session->exhausted_why.kind,
                      session->exhausted_cause == GATEWAY_STORE ? "this rollout was stopped"
                                                                : session->exhausted_why.text);
    if (session->stats.in_flight < session->limits.in_flight_max)
        return 0;
    *status = 429;
    *retry_after_s = 1;
    return refuse(session, REFUSED_BUSY, err, ERR_CAPACITY, TOO_MANY);
}

/* Calls are bounded by their number. What was read for nothing is bounded, too: neighbours share
 * the lane it was read on, and some agents ask for ever. */
void session_wasted(struct gateway_session *session, size_t bytes)
{
    uint64_t requests_max = (uint64_t)session->limits.calls_max * WASTED_PER_CALL;
    uint64_t bytes_max = (uint64_t)session->limits.body_bytes_max * WASTED_BODIES;
    struct err why = {0};
    session->wasted++;
    session->wasted_bytes += bytes;
    if (session->wasted <= requests_max && session->wasted_bytes <= bytes_max)
        return;
    err_set(&why, ERR_LIMIT,
            "this rollout sent too much that was no call: %llu requests, %llu bytes",
            (unsigned long long)session->wasted, (unsigned long long)session->wasted_bytes);
    session_exhaust(session, GATEWAY_LIMIT, &why);
}

int session_admit(struct gateway_session *session, struct call *call, int *status,
                  uint32_t *retry_after_s, struct err *err)
{
    const struct gateway_limits *limits = &session->limits;
    struct gateway_stats *stats = &session->stats;
    request_recall(call);
    const struct trace_request *request = &call->request;
    bool side =
        call->side_rule ? call->side_rule->side : request->tool_count == 0 && session->tools_seen;
    *status = 400;
    *retry_after_s = 0;
    if (stats->calls >= limits->calls_max && !call->record.number)
        return run_out(session, err, "calls", limits->calls_max);
    if (limits->turns_max && !side && stats->turns >= limits->turns_max)
        return run_out(session, err, "turns", limits->turns_max);
    int64_t used = stats->usage.prompt_tokens + stats->usage.completion_tokens;
    if (limits->tokens_max && used >= limits->tokens_max)
        return run_out(session, err, "tokens", limits->tokens_max);
    if (session->recorded_bytes >= limits->record_bytes_max)
        return run_out(session, err, "recorded bytes", (long long)limits->record_bytes_max);

    /* From here on a later call may be luckier. */
    int64_t expected =
        (int64_t)(call->body->bytes.size / BYTES_PER_TOKEN) +
        (request->sampling.tokens_max > 0 ? request->sampling.tokens_max : TOKENS_EXPECTED);
    *status = 429;
    *retry_after_s = 1;
    size_t size = call->body->bytes.size;
    if ((stats->in_flight &&
         session->bytes_reserved + size > limits->body_bytes_max * BODIES_AT_ONCE) ||
        (limits->turns_max && !side &&
         stats->turns + session->turns_reserved >= limits->turns_max) ||
        (limits->tokens_max && stats->in_flight &&
         used + session->tokens_reserved + expected > limits->tokens_max))
        return refuse(session, REFUSED_BUSY, err, ERR_CAPACITY, TOO_MANY);
    stats->calls += !call->record.number;
    stats->in_flight++;
    session->tools_seen |= request->tool_count > 0;
    call->record.side = side;
    call->record.side_name = call->side_rule ? call->side_rule->name : NULL;
    call->reserved = true;
    call->reserved_turn = !side;
    call->reserved_tokens = expected;
    call->reserved_bytes = size;
    session->bytes_reserved += size;
    session->turns_reserved += !side;
    session->tokens_reserved += expected;
    atomic_fetch_add(&session->gateway->calls, !call->record.number);
    atomic_fetch_add(&session->gateway->in_flight, 1);
    return 0;
}

void session_unreserve(struct gateway_session *session, struct call *call)
{
    if (!call->reserved)
        return;
    call->reserved = false;
    session->stats.in_flight--;
    session->turns_reserved -= call->reserved_turn;
    session->tokens_reserved -= call->reserved_tokens;
    session->bytes_reserved -= call->reserved_bytes;
    atomic_fetch_sub(&session->gateway->in_flight, 1);
}

uint64_t session_recorded(struct call *call)
{
    return lineage_new_bytes(call) + call->record.answer_bytes;
}

void session_settle(struct gateway_session *session, struct call *call)
{
    struct gateway *gateway = session->gateway;
    struct gateway_stats *stats = &session->stats;
    session_unreserve(session, call);
    session->recorded_bytes += session_recorded(call);
    if (call->record.state != TRACE_CALL_ANSWERED) {
        stats->broken++;
        atomic_fetch_add(&gateway->broken, 1);
        return;
    }
    stats->answered++;
    stats->turns += !call->record.side;
    trace_usage_add(&stats->usage, &call->answer.usage);
    if (stats->cause == GATEWAY_UPSTREAM) {
        stats->cause = GATEWAY_FINE;
        stats->why.kind = ERR_NONE;
    }
    atomic_fetch_add(&gateway->answered, 1);
    if (call->answer.usage.known) {
        atomic_fetch_add(&gateway->prompt_tokens, (uint64_t)call->answer.usage.prompt_tokens);
        atomic_fetch_add(&gateway->completion_tokens,
                         (uint64_t)call->answer.usage.completion_tokens);
    }
}

/* ---------------------------------------------------------------- routes */

/* The host of "host:port", "http://host:port/path". */
static struct str host_of(struct str target)
{
    long scheme = str_find(target, STR("://"));
    if (scheme >= 0)
        target = str_from(target, (size_t)scheme + 3);
    struct str host = str_cut(&target, '/');
    long at = str_find_byte(host, '@');
    return at < 0 ? host : str_from(host, (size_t)at + 1);
}

static void count_host(struct gateway_session *session, struct str host)
{
    char name[HOST_BYTES_MAX + 1];
    size_t size = 0;
    for (; size < host.size && size < HOST_BYTES_MAX; size++) {
        unsigned char byte = (unsigned char)host.data[size];
        name[size] = isgraph(byte) ? (char)tolower(byte) : '?';
    }
    struct str key = str_make(name, size);
    uintptr_t count = (uintptr_t)map_get(&session->hosts, key);
    if (!count && session->hosts.count >= HOSTS_MAX) {
        session->hosts_more++;
        return;
    }
    (void)map_put(&session->hosts, key, (void *)(count + 1));
}

static void refuse_now(struct gateway_session *session, struct http_exchange *exchange,
                       enum refusal why, int status, const char *text)
{
    session_refused(session, why);
    answer_error(exchange, &dialect_chat, status, NULL, str_of(text), 0);
}

/* The address the agent knows us by. */
static bool is_inlet(struct str host)
{
    return str_is(host, "127.0.0.1" INLET_PORT) || str_is(host, "localhost" INLET_PORT);
}

/* Three vendors share a path; two of them have a header of their own. */
static const struct dialect *models_dialect(const struct http_exchange *exchange,
                                            const struct dialect_route *route)
{
    if (http_exchange_header(exchange, "anthropic-version").size)
        return &dialect_messages;
    if (http_exchange_header(exchange, "x-goog-api-key").size)
        return &dialect_google;
    return route->dialect;
}

/* The one model there is, under its own name or the one that is asked for: calls take any. */
static void answer_models(struct gateway_session *session, struct http_exchange *exchange,
                          const struct dialect_route *route)
{
    OWN(buf) struct buf body = {0};
    OWN(arena) struct arena arena = {0};
    struct str asked = dialect_route_model(route, &arena);
    dialect_write_models(models_dialect(exchange, route),
                         asked.size ? asked : str_of(session->model->name),
                         (int64_t)(clock_wall_ms() / 1000), asked.size > 0, &body);
    http_respond_json(exchange, 200, buf_str(&body));
}

static void on_body(void *context, struct http_exchange *exchange, struct str body,
                    const struct err *err)
{
    struct gateway_session *session = context;
    if (err && err->kind != ERR_NONE) {
        session_refused(session, REFUSED_BODY);
        return;
    }
    call_begin(session, exchange, http_exchange_context(exchange), body_take(exchange, body),
               false);
}

/* An estimate, said at once: four bytes a token. Agents use it to decide when to compact; nobody
 * generates anything, so it is no call. */
static void on_count_body(void *context, struct http_exchange *exchange, struct str body,
                          const struct err *err)
{
    if (err && err->kind != ERR_NONE) {
        session_refused(context, REFUSED_BODY);
        return;
    }
    OWN(buf) struct buf answer = {0};
    dialect_write_count(http_exchange_context(exchange), body.size / 4 + 1, &answer);
    http_respond_json(exchange, 200, buf_str(&answer));
}

struct str session_path(const struct gateway_session *session, const struct http_exchange *exchange)
{
    struct str path = http_exchange_path(exchange);
    if (path.size && path.data[0] != '/' && str_find(path, STR("://")) > 0) {
        struct str host = host_of(path);
        path = str_from(path, (size_t)(host.data - path.data) + host.size);
    }
    struct str rest = path;
    if (!str_starts(path, STR("/rollout/")))
        return path;
    rest = str_from(rest, strlen("/rollout/"));
    struct str id = str_cut(&rest, '/');
    if (!str_is(id, session->rollout_id) || !rest.data)
        return path; /* nothing is there */
    return str_make(rest.data - 1, rest.size + 1);
}

static void on_request(void *context, struct http_exchange *exchange)
{
    struct gateway_session *session = context;
    struct str method = http_exchange_method(exchange);
    struct str target = http_exchange_target(exchange);
    struct str path = http_exchange_path(exchange);
    if (str_is(method, "CONNECT")) {
        count_host(session, host_of(target));
        refuse_now(session, exchange, REFUSED_CONNECT, 403, "there is no way out of this sandbox");
        return;
    }
    if (str_find(target, STR("://")) > 0 && target.data[0] != '/') {
        struct str host = host_of(target);
        if (!is_inlet(host)) {
            count_host(session, host);
            refuse_now(session, exchange, REFUSED_ABSOLUTE, 403,
                       "there is no way out of this sandbox");
            return;
        }
    }
    path = session_path(session, exchange);
    if (http_exchange_header(exchange, "upgrade").size) {
        refuse_now(session, exchange, REFUSED_WEBSOCKET, 404, "there are no WebSockets here");
        return;
    }
    if (str_is(path, "/") && (str_is(method, "HEAD") || str_is(method, "GET"))) {
        http_respond(exchange, 200, NULL, 0, STR_NONE);
        return;
    }
    if (vf_model_request(session, exchange, path) || tools_request(session, exchange, path) ||
        mcp_request(session, exchange, path))
        return;
    struct dialect_route route = dialect_find_route(method, path);
    switch (route.kind) {
    case DIALECT_ROUTE_NONE:
        refuse_now(session, exchange, REFUSED_PATH, 404, "there is nothing at this path");
        return;
    case DIALECT_ROUTE_METHOD:
        refuse_now(session, exchange, REFUSED_METHOD, 405,
                   strcmp(route.method, "GET") == 0 ? "this path takes GET"
                                                    : "this path takes POST");
        return;
    case DIALECT_ROUTE_MODELS:
        answer_models(session, exchange, &route);
        return;
    case DIALECT_ROUTE_COUNT:
        http_exchange_set_context(exchange, (void *)(uintptr_t)route.dialect);
        http_exchange_collect(exchange, session->limits.body_bytes_max, on_count_body, session);
        return;
    case DIALECT_ROUTE_CALL:
        http_exchange_set_context(exchange, (void *)(uintptr_t)route.dialect);
        http_exchange_collect(exchange, session->limits.body_bytes_max, on_body, session);
        return;
    }
}

/* ---------------------------------------------------------------- opening and closing */

static void session_free(struct gateway_session *session)
{
    lines_close(session);
    map_deinit(&session->hosts);
    tools_free(session->tools);
    mcp_deinit(session);
    buf_deinit(&session->nonces);
    retries_deinit(&session->retries);
    restore_free(session);
    lineage_deinit(&session->lineage);
    model_unref(session->model);
    free(session->rollout_id);
    free(session->group_id);
    free(session->task);
    free(session->stop_reason);
    free(session->script_uses);
    free(session);
}

static void put_limits(struct gateway_session *session, const struct gateway_limits *limits)
{
    struct gateway_limits *own = &session->limits;
    *own = *limits;
    own->calls_max = own->calls_max ? own->calls_max : CALLS_MAX;
    own->in_flight_max = own->in_flight_max ? own->in_flight_max : IN_FLIGHT_MAX;
    own->connections_max = own->connections_max ? own->connections_max : CONNECTIONS_MAX;
    own->body_bytes_max = own->body_bytes_max ? own->body_bytes_max : BODY_BYTES_MAX;
    own->answer_bytes_max = own->answer_bytes_max ? own->answer_bytes_max : ANSWER_BYTES_MAX;
    own->record_bytes_max = own->record_bytes_max ? own->record_bytes_max : RECORD_BYTES_MAX;
}

int gateway_mode_fits(enum gateway_mode mode, const struct model *model, struct err *err)
{
    if (mode == GATEWAY_GATE || model->script || model->replay || model->base_url)
        return 0;
    return err_set(err, ERR_INPUT, "model '%s' is the trainer, who answers in mode gate only",
                   model->spec);
}

struct gateway_session *gateway_open(struct gateway *gateway,
                                     const struct gateway_session_options *options, struct err *err)
{
    enum gateway_mode mode = GATEWAY_BLACK_BOX;
    if (options->mode && gateway_mode_read(options->mode, &mode, err) < 0)
        return NULL;
    CHECK(options->model && options->rollout_id);
    if (mode == GATEWAY_GATE && !gateway->gate) {
        err_set(err, ERR_UNSUPPORTED, "mode gate needs a gate: it is there in `postern serve`");
        return NULL;
    }
    if (gateway_mode_fits(mode, options->model, err) < 0)
        return NULL;
    struct gateway_session *session = mem_zero(sizeof *session);
    session->gateway = gateway;
    session->model = model_ref(options->model);
    session->rollout_id = mem_dup(options->rollout_id);
    session->group_id = mem_dup(options->group_id);
    session->task = mem_dup(options->task);
    session->index = options->index;
    session->mode = mode;
    session->sampling = options->sampling;
    session->exact_prefix = options->exact_prefix;
    session->keepalive_ms = options->keepalive_ms ? options->keepalive_ms : KEEPALIVE_MS;
    session->headers_after_ms =
        options->headers_after_ms ? options->headers_after_ms : HEADERS_AFTER_MS;
    session->unary_after_ms = options->unary_after_ms ? options->unary_after_ms : UNARY_AFTER_MS;
    session->held_ms_max = options->held_ms_max ? options->held_ms_max : HELD_MS_MAX;
    session->on_call = options->on_call;
    session->on_exhausted = options->on_exhausted;
    session->rules = options->rules;
    session->on_tool = options->on_tool;
    session->on_tool_closed = options->on_tool_closed;
    session->on_tool_note = options->on_tool_note;
    session->context = options->context;
    session->lines.fd = -1;
    list_init(&session->calls);
    list_init(&session->mcp.posts);
    retries_init(&session->retries, gateway);
    session->retry_grace_ms = options->retry_grace_ms ? options->retry_grace_ms : RETRY_GRACE_MS;
    if (session->rules && session->rules->retry_grace_ms)
        session->retry_grace_ms = session->rules->retry_grace_ms;
    if (session->rules && session->rules->keepalive_ms)
        session->keepalive_ms = session->rules->keepalive_ms;
    if (session->rules && session->rules->headers_after_ms)
        session->headers_after_ms = session->rules->headers_after_ms;
    put_limits(session, &options->limits);
    if (session->model->script)
        session->script_uses =
            mem_zero(script_rules(session->model->script) * sizeof *session->script_uses);
    if (session->model->replay)
        session->script_uses =
            mem_zero(replay_calls(session->model->replay) * sizeof *session->script_uses);
    if (options->tools.size)
        session->tools = tools_new(options->tools, err);
    if ((options->tools.size && !session->tools) ||
        (session->tools && tools_check_answered(session->tools, gateway, err) < 0) ||
        lines_open(session, options->calls_path, err) < 0 ||
        (options->restore && session_restore(session, err) < 0)) {
        session_free(session);
        return NULL;
    }
    struct http_server_options server = {
        .body_bytes_max = session->limits.body_bytes_max,
        .collect_bytes_max = session->limits.body_bytes_max * BODIES_AT_ONCE,
        .connections_max = session->limits.connections_max,
        .on_request = on_request,
        .context = session,
    };
    session->server = http_server_new(gateway->loop, &server);
    atomic_fetch_add(&gateway->sessions, 1);
    return session;
}

void gateway_session_connection(struct gateway_session *session, int connected_fd)
{
    atomic_fetch_add(&session->gateway->connections, 1);
    if (session->closing) {
        fd_close(&connected_fd);
        return;
    }
    http_server_adopt(session->server, connected_fd);
}

int gateway_session_listen(struct gateway_session *session, int listening_fd, struct err *err)
{
    return http_server_listen_fd(session->server, listening_fd, err);
}

void gateway_session_stop(struct gateway_session *session, const char *reason)
{
    if (session->stop_reason)
        return;
    struct err why = {0};
    err_set(&why, ERR_CANCELLED, "%s", reason && reason[0] ? reason : "this rollout was stopped");
    session->stop_reason = mem_dup(why.text);
    session_cause(session, GATEWAY_STOPPED, &why);
}

static void on_server_closed(void *context)
{
    struct gateway_session *session = context;
    session->finished = true;
    lines_write(session);
    if (session->on_closed)
        session->on_closed(session->closed_context);
    atomic_fetch_sub(&session->gateway->sessions, 1);
    session_free(session);
}

static void close_server(struct gateway_session *session)
{
    loop_timer_stop(&session->grace);
    http_server_close(TAKE(session->server), SERVER_GRACE_MS, on_server_closed, session);
}

void session_call_gone(struct gateway_session *session)
{
    if (session->closing && session->server && list_empty(&session->calls))
        close_server(session);
}

static void on_grace_over(struct loop_timer *timer)
{
    struct gateway_session *session = timer->context;
    if (list_empty(&session->calls)) {
        close_server(session);
        return;
    }
    retries_give_up(session);
    uint32_t grace_ms = session->grace_ms;
    session->grace_ms = 0;
    if (grace_ms) {
        loop_timer_start(session->gateway->loop, &session->grace, grace_ms, on_grace_over, session);
        return;
    }
    LIST_EACH (node, &session->calls) {
        call_break(LIST_OF(node, struct call, node), ERR_CANCELLED,
                   "the rollout ended before the answer was complete");
    }
}

void gateway_session_close(struct gateway_session *session, uint32_t grace_ms,
                           void (*on_closed)(void *context), void *context)
{
    if (session->closing)
        return;
    session->closing = true;
    restore_give_up(session);
    session->on_closed = on_closed;
    session->closed_context = context;
    /* Nobody is told anything from inside this call. */
    session->grace_ms = grace_ms;
    loop_timer_start(session->gateway->loop, &session->grace, 0, on_grace_over, session);
}

/* ---------------------------------------------------------------- the report */

const struct gateway_stats *gateway_session_stats(const struct gateway_session *session)
{
    return &session->stats;
}

void gateway_session_hosts(const struct gateway_session *session, struct json_writer *out)
{
    json_begin_object(out);
    size_t at = 0;
    struct str host;
    void *count;
    while ((count = map_next(&session->hosts, &at, &host))) {
        json_key_str(out, host);
        json_put_int(out, (long long)(uintptr_t)count);
    }
    json_end_object(out);
}

void gateway_session_report(const struct gateway_session *session, struct json_writer *out)
{
    const struct gateway_stats *stats = &session->stats;
    json_begin_object(out);
    json_set_text(out, "mode", gateway_mode_name(session->mode));
    json_set_int(out, "calls", stats->calls);
    json_set_int(out, "turns", stats->turns);
    json_set_int(out, "answered", stats->answered);
    json_set_int(out, "broken", stats->broken);
    json_set_int(out, "refused", stats->refused);
    json_set_int(out, "retries", stats->retries);
    json_set_int(out, "redelivered", stats->redelivered);
    if (session->tools) {
        json_set_int(out, "tool_calls", session->tool_calls);
        mcp_report(session, out);
    }
    prefix_report(session, out);
    json_key(out, "usage");
    trace_usage_write(&stats->usage, out);
    json_set_text(out, "cause", gateway_cause_name(stats->cause));
    json_key(out, "first_error");
    if (stats->error.kind == ERR_NONE) {
        json_put_null(out);
    } else {
        json_begin_object(out);
        json_set_text(out, "kind", err_meaning(stats->error.kind)->name);
        json_set_text(out, "text", stats->error.text);
        json_end_object(out);
    }
    json_key(out, "refusals");
    json_begin_object(out);
    for (size_t i = 0; i < REFUSALS; i++)
        if (session->refusals[i])
            json_set_int(out, refusal_names[i], session->refusals[i]);
    json_end_object(out);
    json_key(out, "hosts");
    gateway_session_hosts(session, out);
    if (session->hosts_more)
        json_set_int(out, "hosts_more", session->hosts_more);
    json_set_bool(out, "calls_file_complete", !session->lines.failed);
    json_end_object(out);
}
