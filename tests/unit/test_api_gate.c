/* The gate over HTTP and over a WebSocket: a trainer's side, with agents' calls held directly. */
#include "api/api.h"

#include <arpa/inet.h>
#include <errno.h>
#include <malloc.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "gateway/gate.h"
#include "http/http.h"
#include "json/json.h"
#include "loop/loop.h"
#include "store/store.h"
#include "test.h"

struct world {
    struct loop *loop;
    char home[64];
    struct store *store;
    struct gate *gate;
    struct api *api;
    struct http_client *client;
    char token[128];
    bool closed;
    struct buf submitted;
};

/* An answer over HTTP. */
struct reply {
    struct world *world;
    struct http_call *call;
    bool done;
    int status;
    struct buf body;
};

/* A held call. */
struct held {
    struct gate_call *call;
    struct buf said;
    bool over;
    bool slow; /* its agent does not read */
};

static void on_answer(void *context, struct str body)
{
    struct held *held = context;
    buf_format(&held->said, "answer:%.*s ", STR_ARGS(body));
    held->over = true;
}
static void on_chunk(void *context, struct str bytes)
{
    struct held *held = context;
    if (held->slow)
        return;
    buf_format(&held->said, "chunk:%.*s ", STR_ARGS(bytes));
    gate_call_consumed(held->call, bytes.size);
}
static void on_end(void *context)
{
    struct held *held = context;
    buf_format(&held->said, "end ");
    held->over = true;
}
static void on_fail(void *context, const struct err *err, int status, struct str type,
                    const char *text)
{
    (void)text;
    struct held *held = context;
    buf_format(&held->said, "fail:%d:%.*s:%s ", status, STR_ARGS(type), err->text);
    held->over = true;
}
static void on_broken(void *context, const struct err *err)
{
    struct held *held = context;
    (void)err;
    buf_format(&held->said, "broken ");
    held->over = true;
}
static void keep_payload(void *payload)
{
    (void)payload;
}

/* The payload, where there is one, is what the call's messages are. */
static void write_payload(void *payload, bool raw, struct json_writer *out)
{
    struct buf *messages = payload;
    json_key(out, "messages");
    if (messages)
        json_put_kept(out, buf_str(messages), messages, keep_payload, keep_payload);
    else
        json_put_raw(out, STR("[]"));
    if (raw)
        json_set_raw(out, "raw", STR("{}"));
}

static void hold_large(struct world *world, struct held *held, const char *call,
                       const char *rollout, struct buf *messages)
{
    *held = (struct held){0};
    struct gate_hold order = {.call_id = call,
                              .rollout_id = rollout,
                              .group_id = "g-1",
                              .turn = 1,
                              .payload = messages,
                              .write = write_payload,
                              .read = gate_read_answer,
                              .on_answer = on_answer,
                              .on_chunk = on_chunk,
                              .on_end = on_end,
                              .on_fail = on_fail,
                              .on_broken = on_broken,
                              .context = held};
    held->call = gate_hold(world->gate, world->loop, &order, NULL);
}

static void hold(struct world *world, struct held *held, const char *call, const char *rollout)
{
    hold_large(world, held, call, rollout, NULL);
}

static void held_end(struct held *held)
{
    gate_call_close(held->call);
    buf_deinit(&held->said);
}

struct stored {
    void (*on_stored)(void *context, const struct err *err);
    void *context;
};

static void tell_stored(void *argument)
{
    struct stored *stored = argument;
    struct err none = {0};
    stored->on_stored(stored->context, &none);
    free(stored);
}

static int submit(void *context, const struct api_submit *order, size_t count,
                  struct api_receipt *receipt, struct err *err)
{
    struct world *world = context;
    for (size_t i = 0; i < count; i++) {
        receipt->wrong = i;
        if (order[i].mode && strcmp(order[i].mode, "wrong") == 0) {
            err_set(err, ERR_INPUT, "unknown mode");
            return err_at(err, "mode");
        }
    }
    for (size_t i = 0; i < count; i++) {
        buf_format(&world->submitted, "%s %s %.*s %s", order[i].agent,
                   order[i].task ? order[i].task : "-", STR_ARGS(order[i].inline_task),
                   order[i].group ? order[i].group : "-");
        snprintf(receipt->ids[i], ID_MAX, count == 1 ? "r-new" : "r-new%zu", i);
    }
    struct stored *stored = mem_alloc(sizeof *stored);
    *stored = (struct stored){receipt->on_stored, receipt->context};
    loop_post(world->loop, tell_stored, stored);
    return 0;
}

static void world_start(struct world *world)
{
    struct err err = {0};
    log_setup(LOG_OFF, false);
    snprintf(world->home, sizeof world->home, "/tmp/test-api-XXXXXX");
    if (!mkdtemp(world->home))
        abort();
    if (!world->loop)
        world->loop = loop_new(NULL);
    world->store = store_open(world->home, NULL);
    world->gate = gate_new(world->loop, NULL);
    world->client = http_client_new(world->loop, &(struct http_client_options){0});
    struct api_options options = {.home = world->home,
                                  .store = world->store,
                                  .gate = world->gate,
                                  .submit = submit,
                                  .context = world};
    world->api = api_open(world->loop, &options, &err);
    OWN(buf) struct buf token = {0};
    if (!world->api || file_read(api_token_file(world->api), 1000, &token, &err) < 0)
        abort();
    snprintf(world->token, sizeof world->token, "%.*s", STR_ARGS(str_trim(buf_str(&token))));
}

static void on_closed(void *context)
{
    ((struct world *)context)->closed = true;
}

static void world_end(struct world *world)
{
    http_client_free(world->client);
    api_close(world->api, 0, on_closed, world);
    while (!world->closed)
        loop_once(world->loop, 100);
    for (int i = 0; i < 3; i++)
        loop_once(world->loop, 0);
    gate_free(world->gate);
    store_close(world->store);
    loop_once(world->loop, 0);
    loop_free(world->loop);
    buf_deinit(&world->submitted);
    (void)file_remove_tree(world->home, NULL);
}

#define PUMP_UNTIL(world, condition)                                                               \
    while (!(condition))                                                                           \
    loop_once((world)->loop, 20)

static void on_head(void *context, const struct http_answer_head *head)
{
    ((struct reply *)context)->status = head->status;
}
static void on_data(void *context, struct str data)
{
    buf_str_append(&((struct reply *)context)->body, data);
}
static void on_done(void *context, const struct err *err, bool sent_nothing)
{
    (void)err;
    (void)sent_nothing;
    ((struct reply *)context)->done = true;
}

static void begin(struct world *world, struct reply *reply, const char *path, const char *body)
{
    static const struct http_call_handlers handlers = {on_head, on_data, on_done};
    OWN(mem) char *authorization = mem_format("Bearer %s", world->token);
    OWN(mem) char *url = mem_format("http://127.0.0.1:%u%s", api_port(world->api), path);
    struct http_header header = {STR("authorization"), str_of(authorization)};
    struct http_request request = {.method = body ? "POST" : "GET",
                                   .url = url,
                                   .headers = &header,
                                   .header_count = 1,
                                   .body = str_of(body)};
    *reply = (struct reply){.world = world};
    reply->call = http_call_start(world->client, &request, &handlers, reply);
}

static int ask(struct world *world, struct reply *reply, const char *path, const char *body)
{
    buf_deinit(&reply->body);
    begin(world, reply, path, body);
    PUMP_UNTIL(world, reply->done);
    return reply->status;
}

static bool has(struct reply *reply, const char *text)
{
    return str_find(buf_str(&reply->body), str_of(text)) >= 0;
}

TEST(a_call_is_taken_and_answered_over_http)
{
    struct world world = {0};
    struct held held;
    struct reply reply = {0};
    world_start(&world);
    /* Nothing is there: the take waits, and gets the call when it comes. */
    begin(&world, &reply, "/v1/gate/take", "{\"max\":4,\"wait_ms\":60000,\"group\":\"g-1\"}");
    for (int i = 0; i < 10; i++)
        loop_once(world.loop, 1);
    EXPECT(!reply.done);
    hold(&world, &held, "c-1", "r-1");
    PUMP_UNTIL(&world, reply.done);
    EXPECT_INT(reply.status, 200);
    EXPECT(has(&reply, "\"call_id\":\"c-1\""));
    EXPECT(has(&reply, "\"rollout_id\":\"r-1\""));
    EXPECT(has(&reply, "\"raw\":{}"));
    /* What is wrong with an answer is said, and costs nothing. */
    EXPECT_INT(ask(&world, &reply, "/v1/gate/calls/c-1/answer", "{\"content\":1}"), 400);
    EXPECT(has(&reply, "'content'"));
    EXPECT_INT(ask(&world, &reply, "/v1/gate/calls/c-1/answer?lease=wrong", "{\"content\":\"x\"}"),
               409);
    EXPECT_INT(ask(&world, &reply, "/v1/gate/calls/c-1/extend", "{\"lease_ms\":5000}"), 200);
    EXPECT_INT(ask(&world, &reply, "/v1/gate/calls/c-1/answer", "{\"content\":\"hi\"}"), 200);
    EXPECT(has(&reply, "\"status\":\"answered\""));
    PUMP_UNTIL(&world, held.over);
    EXPECT(str_find(buf_str(&held.said), STR("\"content\":\"hi\"")) > 0);
    EXPECT_INT(ask(&world, &reply, "/v1/gate/calls/c-1/answer", "{\"content\":\"hi\"}"), 404);
    EXPECT_INT(ask(&world, &reply, "/v1/gate", NULL), 200);
    EXPECT(has(&reply, "\"answered\":1"));
    EXPECT_INT(ask(&world, &reply, "/metrics", NULL), 200);
    EXPECT(has(&reply, "postern_gate_calls_total{what=\"answered\"} 1\n"));
    buf_deinit(&reply.body);
    held_end(&held);
    world_end(&world);
}

/* As much as one answer to a take may hold. */
static void fill(struct buf *messages)
{
    size_t size = (size_t)64 << 20;
    memset(buf_reserve(messages, size), ' ', size);
    messages->size = size;
    messages->data[0] = '[';
    messages->data[size - 1] = ']';
}

TEST_WITHIN(calls_that_do_not_fit_into_a_take_were_not_delivered, 60)
{
    struct world world = {0};
    struct held held[4];
    struct reply reply = {0};
    struct gate_counts counts;
    OWN(buf) struct buf large = {0};
    world_start(&world);
    fill(&large);
    hold_large(&world, &held[0], "c-1", "r-1", &large);
    hold(&world, &held[1], "c-2", "r-1");
    hold(&world, &held[2], "c-3", "r-1");
    EXPECT_INT(ask(&world, &reply, "/v1/gate/take", "{\"max\":3,\"wait_ms\":60000}"), 200);
    EXPECT(reply.body.size > large.size && reply.body.size < large.size + 1000);
    int64_t version;
    EXPECT(gate_call_policy(held[0].call, &version));
    EXPECT(!gate_call_policy(held[1].call, &version));
    hold(&world, &held[3], "c-4", "r-1");
    EXPECT_INT(ask(&world, &reply, "/v1/gate/take", "{\"max\":3,\"wait_ms\":60000}"), 200);
    struct str rest = buf_str(&reply.body);
    for (int i = 2; i <= 4; i++) { /* in the order in which they came */
        char words[32];
        snprintf(words, sizeof words, "\"call_id\":\"c-%d\"", i);
        long at = str_find(rest, str_of(words));
        EXPECT(at > 0);
        rest = str_from(rest, (size_t)at);
    }
    EXPECT(has(&reply, "\"delivery\":1") && !has(&reply, "\"delivery\":2"));
    gate_counts(world.gate, &counts);
    EXPECT_INT(counts.taken, 4);
    EXPECT_INT(counts.redelivered, 0);
    EXPECT_INT(counts.leased, 4);
    buf_deinit(&reply.body);
    for (size_t i = 0; i < COUNT(held); i++)
        held_end(&held[i]);
    world_end(&world);
}

TEST(fields_that_are_wrong_are_named)
{
    static const struct {
        const char *path, *body, *word;
    } wrong[] = {
        {"/v1/gate/take", "{\"max\":0}", "'max'"},
        {"/v1/gate/take", "{\"wait_ms\":\"1\"}", "'wait_ms'"},
        {"/v1/gate/take", "{\"lease_ms\":-1}", "'lease_ms'"},
        {"/v1/gate/take", "{\"group\":7}", "'group'"},
        {"/v1/gate/take", "{\"grupo\":\"x\"}", "'grupo'"},
        {"/v1/gate/take", "[]", "object"},
        {"/v1/gate/take", "{", "line 1"},
        {"/v1/gate/calls/c-9/fail", "{\"status\":200}", "'status'"},
        {"/v1/gate/calls/c-9/extend", "{\"lease_ms\":0}", "'lease_ms'"},
        {"/v1/policy", "{\"version\":\"new\"}", "'version'"},
        {"/v1/policy", "{\"pause\":true,\"resume\":true}", "exclude"},
        {"/v1/rollouts", "{\"task\":\"x\"}", "'agent'"},
        {"/v1/rollouts", "{\"agent\":\"mini\",\"task\":3}", "'task'"},
        {"/v1/rollouts", "{\"agent\":\"mini\",\"task\":\"t\",\"mode\":\"wrong\"}", "mode"},
    };
    struct world world = {0};
    struct reply reply = {0};
    world_start(&world);
    for (size_t i = 0; i < COUNT(wrong); i++) {
        EXPECT_INT(ask(&world, &reply, wrong[i].path, wrong[i].body), 400);
        EXPECT(has(&reply, wrong[i].word));
    }
    EXPECT_INT(ask(&world, &reply, "/v1/gate/take", NULL), 405);
    EXPECT_INT(ask(&world, &reply, "/v1/gate/calls/c-9/release", "{}"), 404);
    EXPECT_INT(ask(&world, &reply, "/v1/gate/calls/c-9/stream", "{}"), 404);
    EXPECT_INT(ask(&world, &reply, "/v1/gate/ws", NULL), 400);
    buf_deinit(&reply.body);
    world_end(&world);
}

TEST(pausing_holds_calls_and_the_version_is_stamped)
{
    struct world world = {0};
    struct held held;
    struct reply reply = {0};
    world_start(&world);
    EXPECT_INT(ask(&world, &reply, "/v1/policy", "{\"version\":12,\"pause\":true}"), 200);
    EXPECT(has(&reply, "\"version\":12,\"paused\":true"));
    hold(&world, &held, "c-1", "r-1");
    EXPECT_INT(ask(&world, &reply, "/v1/gate/take", "{}"), 200);
    EXPECT(has(&reply, "\"calls\":[]"));
    EXPECT_INT(ask(&world, &reply, "/v1/policy", "{\"resume\":true}"), 200);
    EXPECT_INT(ask(&world, &reply, "/v1/gate/take", "{\"wait_ms\":60000,\"raw\":false}"), 200);
    EXPECT(has(&reply, "\"policy_version\":12"));
    EXPECT(!has(&reply, "\"raw\""));
    EXPECT_INT(ask(&world, &reply, "/v1/gate/calls/c-1/fail",
                   "{\"status\":429,\"type\":\"busy\",\"message\":\"not now\"}"),
               200);
    PUMP_UNTIL(&world, held.over);
    EXPECT_TEXT(buf_text(&held.said), "fail:429:busy:not now ");
    buf_deinit(&reply.body);
    held_end(&held);
    world_end(&world);
}

TEST(a_client_that_leaves_cancels_its_take)
{
    struct world world = {0};
    struct held held;
    struct reply reply = {0};
    world_start(&world);
    begin(&world, &reply, "/v1/gate/take", "{\"wait_ms\":60000}");
    for (int i = 0; i < 10; i++)
        loop_once(world.loop, 1);
    http_call_close(reply.call);
    for (int i = 0; i < 10; i++)
        loop_once(world.loop, 1);
    hold(&world, &held, "c-1", "r-1");
    EXPECT_INT(ask(&world, &reply, "/v1/gate/take", "{\"wait_ms\":60000}"), 200);
    EXPECT(has(&reply, "\"delivery\":1"));
    EXPECT_INT(ask(&world, &reply, "/v1/gate/calls/c-1/release", "{}"), 200);
    EXPECT_INT(ask(&world, &reply, "/v1/gate/take", "{\"wait_ms\":60000}"), 200);
    EXPECT(has(&reply, "\"delivery\":2"));
    buf_deinit(&reply.body);
    held_end(&held);
    world_end(&world);
}

TEST(rollouts_are_submitted_with_their_task_inline_or_by_name)
{
    struct world world = {0};
    struct reply reply = {0};
    world_start(&world);
    EXPECT_INT(
        ask(&world, &reply, "/v1/rollouts",
            "{\"agent\":\"mini\",\"task\":{\"name\":\"t\"},\"mode\":\"gate\",\"group\":\"g\"}"),
        201);
    EXPECT_STR(buf_str(&reply.body), STR("{\"id\":\"r-new\"}"));
    EXPECT_TEXT(buf_text(&world.submitted), "mini - {\"name\":\"t\"} g");
    EXPECT_INT(ask(&world, &reply, "/v1/rollouts",
                   "[{\"agent\":\"mini\",\"task\":\"a\"},{\"agent\":\"mini\",\"task\":\"b\"}]"),
               201);
    EXPECT_STR(buf_str(&reply.body),
               STR("{\"rollouts\":[{\"id\":\"r-new0\"},{\"id\":\"r-new1\"}]}"));
    buf_deinit(&reply.body);
    world_end(&world);
}

TEST(a_bad_submission_names_its_field)
{
    struct world world = {0};
    struct reply reply = {0};
    world_start(&world);
    static const struct {
        const char *body, *field;
    } cases[] = {
        {"{\"task\":\"t\"}", "\"field\":\"agent\""},
        {"{\"agent\":\"mini\"}", "\"field\":\"task\""},
        {"{\"agent\":\"mini\",\"task\":null}", "\"field\":\"task\""},
        {"{\"agent\":\"mini\",\"task\":7}", "\"field\":\"task\""},
        {"{\"agent\":7,\"task\":\"t\"}", "\"field\":\"agent\""},
        {"{\"agent\":\"mini\",\"task\":\"t\",\"colour\":1}", "\"field\":\"colour\""},
        {"{\"agent\":\"mini\",\"task\":\"t\",\"turns_max\":0}", "\"field\":\"turns_max\""},
        {"{\"agent\":\"mini\",\"task\":\"t\",\"wall_ms_max\":1e30}", "\"field\":\"wall_ms_max\""},
        {"{\"agent\":\"mini\",\"task\":\"t\",\"priority\":101}", "\"field\":\"priority\""},
        {"{\"agent\":\"mini\",\"task\":\"t\",\"mode\":\"wrong\"}", "\"field\":\"mode\""},
        {"[{\"agent\":\"mini\",\"task\":\"t\"},{\"agent\":\"mini\",\"task\":\"t\",\"mode\":"
         "\"wrong\"}]",
         "\"field\":\"1.mode\""},
        {"[{\"agent\":\"mini\"}]", "\"field\":\"0.task\""},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        EXPECT_INT(ask(&world, &reply, "/v1/rollouts", cases[i].body), 400);
        EXPECT(has(&reply, cases[i].field));
        EXPECT(has(&reply, "\"type\":\"bad_input\""));
    }
    EXPECT_INT(ask(&world, &reply, "/v1/rollouts", "[]"), 400);
    EXPECT_INT(ask(&world, &reply, "/v1/rollouts", "{"), 400);
    EXPECT_INT(world.submitted.size, 0);
    buf_deinit(&reply.body);
    world_end(&world);
}

/* ---------------------------------------------------------------- raw peers */

static int peer(struct world *world)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in at = {.sin_family = AF_INET,
                             .sin_port = htons(api_port(world->api)),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (fd < 0 || connect(fd, (struct sockaddr *)&at, sizeof at) < 0)
        abort();
    return fd;
}

static void say(int fd, struct str bytes)
{
    if (send(fd, bytes.data, bytes.size, MSG_NOSIGNAL) != (ssize_t)bytes.size)
        abort();
}

static bool hear_until(struct world *world, int fd, struct buf *in, const char *text)
{
    for (;;) {
        if (str_find(buf_str(in), str_of(text)) >= 0)
            return true;
        char bytes[4096];
        ssize_t got = recv(fd, bytes, sizeof bytes, MSG_DONTWAIT);
        if (got > 0)
            buf_append(in, bytes, (size_t)got);
        else if (got == 0 || errno != EAGAIN)
            return false;
        else
            loop_once(world->loop, 10);
    }
}

static void take_one(struct world *world, struct reply *reply)
{
    EXPECT_INT(ask(world, reply, "/v1/gate/take", "{\"wait_ms\":60000}"), 200);
    EXPECT(has(reply, "\"call_id\""));
}

/* Each chunk of the request's body reaches the call before the next one is sent. */
TEST(a_stream_is_read_as_it_comes)
{
    struct world world = {0};
    struct held held;
    struct reply reply = {0};
    world_start(&world);
    hold(&world, &held, "c-1", "r-1");
    take_one(&world, &reply);
    OWN(buf) struct buf head = {0};
    OWN(buf) struct buf in = {0};
    int fd = peer(&world);
    buf_format(&head,
               "POST /v1/gate/calls/c-1/stream HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\n"
               "Transfer-Encoding: chunked\r\n\r\n",
               world.token);
    say(fd, buf_str(&head));
    say(fd, STR("14\r\n{\"content\":\"first\"}\n\r\n"));
    PUMP_UNTIL(&world, str_find(buf_str(&held.said), STR("first")) >= 0);
    say(fd, STR("15\r\n{\"content\":\"second\"}\n\r\n"));
    PUMP_UNTIL(&world, str_find(buf_str(&held.said), STR("second")) >= 0);
    EXPECT(!held.over);
    say(fd, STR("19\r\n{\"finish_reason\":\"stop\"}\n\r\n0\r\n\r\n"));
    EXPECT(hear_until(&world, fd, &in, "\"status\":\"answered\""));
    PUMP_UNTIL(&world, held.over);
    EXPECT(str_ends(buf_str(&held.said), STR("end ")));
    close(fd);
    buf_deinit(&reply.body);
    held_end(&held);
    world_end(&world);
}

TEST(a_stream_whose_trainer_dies_is_broken_and_one_that_never_began_goes_back)
{
    struct world world = {0};
    struct held held;
    struct reply reply = {0};
    world_start(&world);
    hold(&world, &held, "c-1", "r-1");
    for (int round = 0; round < 2; round++) {
        take_one(&world, &reply);
        OWN(buf) struct buf head = {0};
        int fd = peer(&world);
        buf_format(&head,
                   "POST /v1/gate/calls/c-1/stream HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer "
                   "%s\r\nTransfer-Encoding: chunked\r\n\r\n",
                   world.token);
        say(fd, buf_str(&head));
        struct gate_counts counts = {0};
        PUMP_UNTIL(&world, (gate_counts(world.gate, &counts), counts.streaming == 1));
        if (round == 1) {
            say(fd, STR("14\r\n{\"content\":\"first\"}\n\r\n"));
            PUMP_UNTIL(&world, str_find(buf_str(&held.said), STR("first")) >= 0);
        }
        close(fd);
    }
    PUMP_UNTIL(&world, held.over);
    EXPECT(str_ends(buf_str(&held.said), STR("broken ")));
    buf_deinit(&reply.body);
    held_end(&held);
    world_end(&world);
}

/* ---------------------------------------------------------------- the WebSocket */

static int socket_open(struct world *world, struct buf *in)
{
    OWN(buf) struct buf head = {0};
    int fd = peer(world);
    buf_format(&head,
               "GET /v1/gate/ws HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nConnection: "
               "Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
               "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
               world->token);
    say(fd, buf_str(&head));
    if (!hear_until(world, fd, in, "\r\n\r\n") || !str_starts(buf_str(in), STR("HTTP/1.1 101")))
        abort();
    buf_clear(in);
    return fd;
}

static void tell(int fd, const char *text)
{
    OWN(buf) struct buf frame = {0};
    size_t size = strlen(text);
    buf_byte(&frame, (char)0x81);
    if (size < 126) {
        buf_byte(&frame, (char)(0x80 | size));
    } else {
        buf_byte(&frame, (char)(0x80 | 126));
        buf_byte(&frame, (char)(size >> 8));
        buf_byte(&frame, (char)size);
    }
    buf_append(&frame, "\0\0\0\0", 4); /* a mask of zeros */
    buf_append(&frame, text, size);
    say(fd, buf_str(&frame));
}

TEST(one_socket_carries_many_calls)
{
    struct world world = {0};
    struct held first, second, third;
    OWN(buf) struct buf in = {0};
    world_start(&world);
    int fd = socket_open(&world, &in);
    tell(fd, "{\"id\":1,\"op\":\"take\",\"max\":8,\"wait_ms\":60000}");
    hold(&world, &first, "c-1", "r-1");
    hold(&world, &second, "c-2", "r-2");
    hold(&world, &third, "c-3", "r-3");
    EXPECT(hear_until(&world, fd, &in, "\"id\":1,\"calls\":[{\"call_id\":\"c-1\""));
    EXPECT(hear_until(&world, fd, &in, "c-3"));
    /* A stream, with an answer and a mistake in between. */
    tell(fd, "{\"op\":\"chunk\",\"call_id\":\"c-1\",\"chunk\":{\"content\":\"one\"}}");
    PUMP_UNTIL(&world, str_find(buf_str(&first.said), STR("one")) >= 0);
    tell(fd, "{\"id\":2,\"op\":\"answer\",\"call_id\":\"c-2\",\"answer\":{\"content\":7}}");
    EXPECT(hear_until(&world, fd, &in, "\"id\":2,\"call_id\":\"c-2\",\"error\""));
    tell(fd, "{\"id\":3,\"op\":\"answer\",\"call_id\":\"c-2\",\"answer\":{\"content\":\"two\"}}");
    EXPECT(hear_until(&world, fd, &in, "{\"id\":3,\"call_id\":\"c-2\",\"status\":\"answered\"}"));
    tell(fd, "{\"id\":4,\"op\":\"fail\",\"call_id\":\"c-3\",\"status\":503,\"message\":\"no\"}");
    EXPECT(hear_until(&world, fd, &in, "{\"id\":4,\"call_id\":\"c-3\",\"status\":\"failed\"}"));
    tell(fd, "{\"op\":\"chunk\",\"call_id\":\"c-1\",\"chunk\":{\"finish_reason\":\"stop\"}}");
    tell(fd, "{\"id\":5,\"op\":\"end\",\"call_id\":\"c-1\"}");
    EXPECT(hear_until(&world, fd, &in, "{\"id\":5,\"call_id\":\"c-1\",\"status\":\"answered\"}"));
    PUMP_UNTIL(&world, first.over && second.over && third.over);
    EXPECT(str_ends(buf_str(&first.said), STR("end ")));
    EXPECT(str_find(buf_str(&second.said), STR("two")) > 0);
    EXPECT_TEXT(buf_text(&third.said), "fail:503::no ");
    tell(fd, "{\"id\":6,\"op\":\"dance\"}");
    EXPECT(hear_until(&world, fd, &in, "'op' is none of"));
    tell(fd, "nonsense");
    EXPECT(hear_until(&world, fd, &in, "\"id\":null,\"error\""));
    close(fd);
    held_end(&first);
    held_end(&second);
    held_end(&third);
    world_end(&world);
}

TEST(a_socket_that_closes_gives_back_what_it_had)
{
    struct world world = {0};
    struct held leased, streamed;
    struct reply reply = {0};
    OWN(buf) struct buf in = {0};
    world_start(&world);
    int fd = socket_open(&world, &in);
    hold(&world, &leased, "c-1", "r-1");
    hold(&world, &streamed, "c-2", "r-2");
    tell(fd, "{\"id\":1,\"op\":\"take\",\"max\":8,\"wait_ms\":60000,\"lease_ms\":3600000}");
    EXPECT(hear_until(&world, fd, &in, "c-2"));
    tell(fd, "{\"op\":\"chunk\",\"call_id\":\"c-2\",\"chunk\":{\"content\":\"half\"}}");
    tell(fd, "{\"id\":2,\"op\":\"take\",\"wait_ms\":60000}");
    PUMP_UNTIL(&world, str_find(buf_str(&streamed.said), STR("half")) >= 0);
    close(fd);
    EXPECT_INT(ask(&world, &reply, "/v1/gate/take", "{\"wait_ms\":60000}"), 200);
    EXPECT(has(&reply, "\"call_id\":\"c-1\""));
    EXPECT(has(&reply, "\"delivery\":2"));
    PUMP_UNTIL(&world, streamed.over);
    EXPECT(str_ends(buf_str(&streamed.said), STR("broken ")));
    buf_deinit(&reply.body);
    held_end(&leased);
    held_end(&streamed);
    world_end(&world);
}

TEST(a_socket_gives_nothing_back_that_it_never_got)
{
    struct world world = {0};
    struct held first, second;
    struct gate_counts counts = {0};
    OWN(buf) struct buf in = {0}, large = {0};
    world_start(&world);
    fill(&large);
    int fd = socket_open(&world, &in);
    hold_large(&world, &first, "c-1", "r-1", &large);
    hold(&world, &second, "c-2", "r-1");
    tell(fd, "{\"id\":1,\"op\":\"take\",\"max\":8,\"wait_ms\":60000,\"lease_ms\":3600000}");
    PUMP_UNTIL(&world, (gate_counts(world.gate, &counts), counts.leased == 1));
    EXPECT_INT(counts.held, 1);
    close(fd);
    PUMP_UNTIL(&world, (gate_counts(world.gate, &counts), counts.held == 2));
    EXPECT_INT(counts.redelivered, 1);
    EXPECT_INT(counts.late, 0);
    held_end(&first);
    held_end(&second);
    world_end(&world);
}

/* What a trainer has not read yet is enough: what comes then is for somebody who listens. */
TEST_WITHIN(a_socket_that_is_not_read_gets_no_more_calls, 60)
{
    struct world world = {0};
    struct held held[3];
    struct reply reply = {0};
    struct gate_counts counts = {0};
    OWN(buf) struct buf in = {0}, large = {0};
    world_start(&world);
    fill(&large);
    int fd = socket_open(&world, &in);
    tell(fd, "{\"id\":1,\"op\":\"take\",\"wait_ms\":60000}");
    tell(fd, "{\"id\":2,\"op\":\"take\",\"wait_ms\":60000,\"rollout\":\"r-2\"}");
    tell(fd, "{\"id\":3,\"op\":\"take\",\"wait_ms\":60000,\"group\":\"g-1\"}");
    PUMP_UNTIL(&world, (gate_counts(world.gate, &counts), counts.takers == 3));
    hold_large(&world, &held[0], "c-1", "r-1", &large);
    PUMP_UNTIL(&world, (gate_counts(world.gate, &counts), counts.leased == 1));
    hold(&world, &held[1], "c-2", "r-2");
    EXPECT_INT(ask(&world, &reply, "/v1/gate/take", "{\"wait_ms\":2000}"), 200);
    EXPECT(has(&reply, "\"call_id\":\"c-2\""));
    EXPECT(has(&reply, "\"delivery\":1"));
    hold(&world, &held[2], "c-3", "r-2");
    size_t left = large.size;
    while (left) {
        static char bytes[1 << 20];
        ssize_t got = recv(fd, bytes, left < sizeof bytes ? left : sizeof bytes, MSG_DONTWAIT);
        if (got > 0)
            left -= (size_t)got;
        else if (got == 0 || errno != EAGAIN)
            break;
        else
            loop_once(world.loop, 10);
    }
    EXPECT(hear_until(&world, fd, &in, "\"id\":2,\"calls\":[{\"call_id\":\"c-3\""));
    close(fd);
    buf_deinit(&reply.body);
    for (size_t i = 0; i < COUNT(held); i++)
        held_end(&held[i]);
    world_end(&world);
}

/* An agent that does not read its stream delays the trainer's other calls, but not for long. */
TEST_WITHIN(an_agent_that_does_not_read_stops_no_socket, 60)
{
    struct world world = {.loop = loop_new_virtual(NULL)};
    struct held slow, other;
    OWN(buf) struct buf in = {0}, text = {0}, large = {0};
    world_start(&world);
    int fd = socket_open(&world, &in);
    hold(&world, &slow, "c-1", "r-1");
    hold(&world, &other, "c-2", "r-2");
    slow.slow = true;
    tell(fd, "{\"id\":1,\"op\":\"take\",\"max\":2,\"wait_ms\":1000,\"lease_ms\":3600000}");
    EXPECT(hear_until(&world, fd, &in, "c-2"));
    memset(buf_reserve(&large, 50000), 'x', 50000);
    buf_added(&large, 50000);
    buf_format(&text, "{\"op\":\"chunk\",\"call_id\":\"c-1\",\"chunk\":{\"content\":\"%.*s\"}}",
               STR_ARGS(buf_str(&large)));
    for (int i = 0; i < 90; i++) { /* more than 4 MiB */
        tell(fd, buf_text(&text));
        loop_once(world.loop, 0);
    }
    tell(fd, "{\"id\":2,\"op\":\"answer\",\"call_id\":\"c-2\",\"answer\":{\"content\":\"two\"}}");
    EXPECT(hear_until(&world, fd, &in, "{\"event\":\"gone\",\"call_id\":\"c-1\"}"));
    EXPECT(hear_until(&world, fd, &in, "{\"id\":2,\"call_id\":\"c-2\",\"status\":\"answered\"}"));
    PUMP_UNTIL(&world, slow.over && other.over);
    EXPECT(str_ends(buf_str(&slow.said), STR("broken ")));
    close(fd);
    held_end(&slow);
    held_end(&other);
    world_end(&world);
}

TEST(an_id_on_a_socket_is_short)
{
    struct world world = {0};
    OWN(buf) struct buf in = {0}, text = {0};
    world_start(&world);
    int fd = socket_open(&world, &in);
    static const char *const ops[] = {"take", "release"};
    for (size_t i = 0; i < COUNT(ops); i++) {
        buf_clear(&in);
        buf_clear(&text);
        buf_format(&text, "{\"op\":\"%s\",\"call_id\":\"c\",\"id\":\"%02000d\"}", ops[i], 7);
        tell(fd, buf_text(&text));
        EXPECT(hear_until(&world, fd, &in, "{\"id\":null,\"error\""));
        EXPECT(hear_until(&world, fd, &in, "'id'"));
    }
    close(fd);
    world_end(&world);
}

/* Of agents that leave before the trainer says a word. */
TEST_WITHIN(a_socket_forgets_calls_that_are_gone, 60)
{
    enum { CALLS = 6000 };
    struct world world = {0};
    OWN(buf) struct buf in = {0};
    world_start(&world);
    int fd = socket_open(&world, &in);
    size_t before = 0;
    for (int i = 0; i < CALLS; i++) {
        char id[16];
        struct held held;
        struct gate_counts counts = {0};
        snprintf(id, sizeof id, "c-%d", i);
        hold(&world, &held, id, "r-1");
        tell(fd, "{\"op\":\"take\",\"wait_ms\":60000,\"raw\":false}");
        EXPECT(hear_until(&world, fd, &in, id));
        held_end(&held);
        PUMP_UNTIL(&world, (gate_counts(world.gate, &counts), counts.leased == 0));
        buf_clear(&in);
        if (i == CALLS / 3)
            before = mallinfo2().uordblks;
    }
    EXPECT(mallinfo2().uordblks < before + (100 << 10));
    close(fd);
    world_end(&world);
}

TEST(a_socket_learns_that_an_agent_left)
{
    struct world world = {0};
    struct held held;
    OWN(buf) struct buf in = {0};
    world_start(&world);
    int fd = socket_open(&world, &in);
    hold(&world, &held, "c-1", "r-1");
    tell(fd, "{\"id\":1,\"op\":\"take\",\"wait_ms\":60000}");
    EXPECT(hear_until(&world, fd, &in, "c-1"));
    tell(fd, "{\"op\":\"chunk\",\"call_id\":\"c-1\",\"chunk\":{\"content\":\"half\"}}");
    PUMP_UNTIL(&world, str_find(buf_str(&held.said), STR("half")) >= 0);
    held_end(&held);
    EXPECT(hear_until(&world, fd, &in, "{\"event\":\"gone\",\"call_id\":\"c-1\"}"));
    tell(fd, "{\"id\":2,\"op\":\"end\",\"call_id\":\"c-1\"}");
    EXPECT(hear_until(&world, fd, &in, "\"id\":2,\"call_id\":\"c-1\",\"error\""));
    close(fd);
    world_end(&world);
}

TEST(closing_the_listener_ends_takes_and_sockets)
{
    struct world world = {0};
    struct reply reply = {0};
    OWN(buf) struct buf in = {0};
    world_start(&world);
    int fd = socket_open(&world, &in);
    tell(fd, "{\"id\":1,\"op\":\"take\",\"wait_ms\":60000}");
    begin(&world, &reply, "/v1/gate/take", "{\"wait_ms\":60000}");
    for (int i = 0; i < 10; i++)
        loop_once(world.loop, 1);
    api_close(world.api, 5000, on_closed, &world);
    PUMP_UNTIL(&world, reply.done);
    EXPECT_INT(reply.status, 200);
    EXPECT(hear_until(&world, fd, &in, "the server is stopping"));
    close(fd);
    PUMP_UNTIL(&world, world.closed);
    http_client_free(world.client);
    gate_free(world.gate);
    store_close(world.store);
    loop_once(world.loop, 0);
    loop_free(world.loop);
    buf_deinit(&reply.body);
    (void)file_remove_tree(world.home, NULL);
}
