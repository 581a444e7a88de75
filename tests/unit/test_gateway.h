/* test_gateway.h - a small world for gateway tests: one loop with a store, a gateway, a session
 * that listens on loopback, an agent (an HTTP client) and a model server that the test plays. */
#ifndef TEST_GATEWAY_H
#define TEST_GATEWAY_H

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/err.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "gateway/gateway.h"
#include "http/http.h"
#include "json/json.h"
#include "loop/loop.h"
#include "store/store.h"
#include "test.h"

struct world {
    struct loop *loop;
    char home[64], calls_path[128];
    struct store *store;
    struct gateway *gateway;
    struct model *model;
    struct gateway_session *session;
    struct http_client *agent;
    uint16_t port; /* of the session */
    bool closed;
    int begun, done;   /* on_call */
    uint32_t lines_ms; /* of the gateway */
    enum gateway_cause exhausted;
    struct buf report;

    struct http_server *upstream;
    uint16_t upstream_port;
    int upstream_calls;
    struct buf upstream_body, upstream_head; /* of the last request */
    void (*upstream_answer)(struct world *world, struct http_exchange *exchange);
    struct http_exchange *held; /* for answers that are given later */
    bool upstream_gone;
};

/* What the agent got. */
struct reply {
    struct world *world;
    struct http_call *call;
    int status;
    char retry_after[16], type[64];
    struct buf body;
    bool done;
    struct err err;
    int done_when_finished; /* world->done when the finish reason arrived */
};

#define PUMP_UNTIL(world, condition)                                                               \
    do {                                                                                           \
        for (int tick_ = 0; !(condition); tick_++) {                                               \
            loop_once((world)->loop, 100);                                                         \
            if (tick_ > 100000) {                                                                  \
                test_fail(__FILE__, __LINE__, "waited in vain for %s", #condition);                \
                return;                                                                            \
            }                                                                                      \
        }                                                                                          \
    } while (0)

static inline void world_on_call(void *context, const struct trace_call *call,
                                 enum gateway_phase phase)
{
    struct world *world = context;
    (void)call;
    world->begun += phase == GATEWAY_CALL_BEGUN;
    world->done += phase == GATEWAY_CALL_DONE;
}

static inline void world_on_exhausted(void *context, enum gateway_cause cause,
                                      const struct err *why)
{
    (void)why;
    ((struct world *)context)->exhausted = cause;
}

static inline void upstream_on_gone(void *context)
{
    struct world *world = context;
    world->upstream_gone = true;
    world->held = NULL;
}

static inline void upstream_on_body(void *context, struct http_exchange *exchange, struct str body,
                                    const struct err *err)
{
    struct world *world = context;
    if (err && err->kind != ERR_NONE)
        return;
    buf_clear(&world->upstream_body);
    buf_str_append(&world->upstream_body, body);
    buf_clear(&world->upstream_head);
    const struct http_header *headers;
    size_t count = http_exchange_headers(exchange, &headers);
    buf_format(&world->upstream_head, "%.*s\n", STR_ARGS(http_exchange_target(exchange)));
    for (size_t i = 0; i < count; i++)
        buf_format(&world->upstream_head, "%.*s: %.*s\n", STR_ARGS(headers[i].name),
                   STR_ARGS(headers[i].value));
    world->upstream_calls++;
    http_exchange_notify(exchange, 1024, NULL, upstream_on_gone, world);
    world->upstream_answer(world, exchange);
}

static inline void upstream_on_request(void *context, struct http_exchange *exchange)
{
    http_exchange_collect(exchange, 64 << 20, upstream_on_body, context);
}

static inline void world_start(struct world *world)
{
    log_setup(LOG_OFF, false);
    struct err err = {0};
    world->loop = loop_new(&err);
    bool made = world->home[0]; /* by a test that starts over in it */
    if (!made)
        snprintf(world->home, sizeof world->home, "/tmp/test-gateway-XXXXXX");
    if (!world->loop || (!made && !mkdtemp(world->home)))
        abort();
    snprintf(world->calls_path, sizeof world->calls_path, "%s/calls.jsonl", world->home);
    world->store = store_open(world->home, &err);
    struct gateway_options gateway = {.store = world->store, .lines_ms = world->lines_ms};
    world->gateway = gateway_new(world->loop, &gateway, &err);
    world->agent = http_client_new(world->loop, &(struct http_client_options){0});
    struct http_server_options options = {
        .on_request = upstream_on_request, .body_bytes_max = 64 << 20, .context = world};
    world->upstream = http_server_new(world->loop, &options);
    if (!world->store || !world->gateway ||
        http_server_listen_tcp(world->upstream, "127.0.0.1", 0, &world->upstream_port, &err) < 0) {
        fprintf(stderr, "%s\n", err.text);
        abort();
    }
}

static inline void world_model_upstream(struct world *world, const struct model_options *options)
{
    struct err err = {0};
    OWN(mem) char *spec = mem_format("http://127.0.0.1:%u/v1#real-name", world->upstream_port);
    world->model = model_open(spec, options, &err);
    if (!world->model) {
        fprintf(stderr, "%s\n", err.text);
        abort();
    }
}

/* Quick retries. */
static inline void world_model(struct world *world)
{
    world_model_upstream(world, &(struct model_options){.attempts_max = 3, .retry_ms_max = 2});
}

static inline int world_model_script(struct world *world, const char *script, struct err *err)
{
    char path[128], spec[160];
    snprintf(path, sizeof path, "%s/script.toml", world->home);
    snprintf(spec, sizeof spec, "script:%s", path);
    if (file_write(path, str_of(script), 0600, false, err) < 0)
        return -1;
    world->model = model_open(spec, NULL, err);
    return world->model ? 0 : -1;
}

/* A port of loopback where nobody listens, nor will as long as it is open. */
static inline int world_nobody(uint16_t *port)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, size) < 0 ||
        getsockname(fd, (struct sockaddr *)&address, &size) < 0)
        abort();
    *port = ntohs(address.sin_port);
    return fd;
}

/* A listening socket on loopback, as the keeper makes one. */
static inline int world_listener(uint16_t *port)
{
    int fd = world_nobody(port);
    if (listen(fd, 128) < 0)
        abort();
    return fd;
}

static inline void world_open(struct world *world, struct gateway_session_options options)
{
    struct err err = {0};
    if (!options.rollout_id)
        options.rollout_id = "r-test";
    options.model = world->model;
    options.calls_path = world->calls_path;
    options.on_call = world_on_call;
    options.on_exhausted = world_on_exhausted;
    options.context = world;
    world->session = gateway_open(world->gateway, &options, &err);
    if (!world->session ||
        gateway_session_listen(world->session, world_listener(&world->port), &err) < 0) {
        fprintf(stderr, "%s\n", err.text);
        abort();
    }
}

static inline void world_on_closed(void *context)
{
    struct world *world = context;
    world->closed = true;
    struct json_writer out = {.out = &world->report};
    gateway_session_report(world->session, &out);
}

static inline void world_close_session(struct world *world, uint32_t grace_ms)
{
    gateway_session_close(world->session, grace_ms, world_on_closed, world);
    while (!world->closed)
        loop_once(world->loop, 100);
    world->session = NULL;
}

static inline void world_upstream_closed(void *context)
{
    *(bool *)context = true;
}

static inline void world_end(struct world *world)
{
    if (world->session)
        world_close_session(world, 1000);
    bool closed = false;
    http_client_free(world->agent);
    http_server_close(world->upstream, 0, world_upstream_closed, &closed);
    while (!closed)
        loop_once(world->loop, 100);
    gateway_free(world->gateway);
    model_unref(world->model);
    store_close(world->store);
    loop_once(world->loop, 0);
    loop_free(world->loop);
    buf_deinit(&world->upstream_body);
    buf_deinit(&world->upstream_head);
    buf_deinit(&world->report);
    (void)file_remove_tree(world->home, NULL);
}

/* --- the agent --- */

static inline void reply_on_head(void *context, const struct http_answer_head *head)
{
    struct reply *reply = context;
    reply->status = head->status;
    snprintf(reply->retry_after, sizeof reply->retry_after, "%.*s",
             STR_ARGS(http_answer_header(head, "retry-after")));
    snprintf(reply->type, sizeof reply->type, "%.*s",
             STR_ARGS(http_answer_header(head, "content-type")));
}

static inline void reply_on_data(void *context, struct str data)
{
    struct reply *reply = context;
    struct str mark = STR("\"finish_reason\":\"");
    size_t from = reply->body.size < mark.size ? 0 : reply->body.size - mark.size;
    buf_str_append(&reply->body, data);
    if (str_find(str_from(buf_str(&reply->body), from), mark) >= 0 && !reply->done_when_finished)
        reply->done_when_finished = reply->world->done;
}

static inline void reply_on_done(void *context, const struct err *err, bool sent_nothing)
{
    struct reply *reply = context;
    (void)sent_nothing;
    reply->done = true;
    reply->err = *err;
}

static inline void agent_ask_at(struct world *world, struct reply *reply, const char *path,
                                struct str body)
{
    static const struct http_call_handlers handlers = {reply_on_head, reply_on_data, reply_on_done};
    struct http_header headers[] = {
        {STR("content-type"), STR("application/json")},
        {STR("authorization"), STR("Bearer agents-own-dummy-key")},
        {STR("cookie"), STR("agents=cookie")},
        {STR("x-session-id"), STR("ses_1")},
    };
    OWN(mem) char *url = mem_format("http://127.0.0.1:%u%s", world->port, path);
    struct http_request request = {.method = body.data ? "POST" : "GET",
                                   .url = url,
                                   .headers = headers,
                                   .header_count = COUNT(headers),
                                   .body = body};
    *reply = (struct reply){.world = world};
    reply->call = http_call_start(world->agent, &request, &handlers, reply);
}

static inline void agent_ask(struct world *world, struct reply *reply, const char *body)
{
    agent_ask_at(world, reply, "/v1/chat/completions", str_of(body));
}

static inline void reply_wait(struct reply *reply)
{
    while (!reply->done)
        loop_once(reply->world->loop, 100);
}

static inline bool reply_has(struct reply *reply, const char *text)
{
    return str_find(buf_str(&reply->body), str_of(text)) >= 0;
}

/* A connection of our own, for what no well-behaved client sends. */
static inline int raw_connect(struct world *world)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                                  .sin_port = htons(world->port)};
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address) < 0)
        abort();
    return fd;
}

/* Reads until the peer closes; returns errno (0: a clean end). */
static inline int raw_read(struct world *world, int fd, struct buf *answer)
{
    for (;;) {
        loop_once(world->loop, 10);
        char bytes[4096];
        ssize_t got = recv(fd, bytes, sizeof bytes, MSG_DONTWAIT);
        if (got < 0 && errno == EAGAIN)
            continue;
        if (got <= 0)
            return got < 0 ? errno : 0;
        buf_append(answer, bytes, (size_t)got);
    }
}

static inline int raw_ask(struct world *world, const char *request, struct buf *answer)
{
    int fd = raw_connect(world);
    if (write(fd, request, strlen(request)) < 0)
        abort();
    int code = raw_read(world, fd, answer);
    close(fd);
    return code;
}

#define ASK "{\"model\":\"any\",\"messages\":[{\"role\":\"user\",\"content\":\"hello\"}]}"
#define ASK_STREAM                                                                                 \
    "{\"model\":\"any\",\"stream\":true,\"messages\":[{\"role\":\"user\",\"content\":\"hello\"}]}"

#endif
