/* The gateway between an agent and a model server that the test plays. */
#include "test_gateway.h"

#include <signal.h>
#include <sys/resource.h>

#define COMPLETION                                                                                 \
    "{\"id\":\"chatcmpl-1\", \"object\":\"chat.completion\",\"created\":1,\"model\":\"m\","        \
    "\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"hi there\"},"     \
    "\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":11,\"completion_tokens\":3,"        \
    "\"total_tokens\":14}}"
#define EVENT(text) "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"" text "\"}}]}\n\n"
#define FINISH                                                                                     \
    "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n"              \
    "data: [DONE]\n\n"

static const struct http_header sse_type[] = {{{"content-type", 12}, {"text/event-stream", 17}}};

static void answer_completion(struct world *world, struct http_exchange *exchange)
{
    (void)world;
    http_respond_json(exchange, 200, STR(COMPLETION));
}

static void answer_stream(struct world *world, struct http_exchange *exchange)
{
    (void)world;
    http_respond_begin(exchange, 200, sse_type, 1);
    (void)http_respond_write(exchange, STR(EVENT("one ") EVENT("two") FINISH));
    http_respond_end(exchange);
}

static void answer_later(struct world *world, struct http_exchange *exchange)
{
    world->held = exchange;
}

static void read_calls(struct world *world, struct buf *out)
{
    (void)file_read(world->calls_path, 64 << 20, out, NULL);
}

static bool note_state(void *context, const struct store_call *call)
{
    buf_format(context, "%u:%s:%u ", call->number, call->state, call->http_status);
    return true;
}

static void states(struct world *world, struct buf *out)
{
    buf_clear(out);
    (void)store_list_calls(world->store, "r-test", note_state, out, NULL);
}

TEST(a_call_is_relayed_untouched_and_recorded)
{
    struct world world = {.upstream_answer = answer_completion};
    world_start(&world);
    world_model(&world);
    world_open(&world, (struct gateway_session_options){0});
    struct reply reply;
    agent_ask(&world, &reply, ASK);
    reply_wait(&reply);
    EXPECT_INT(reply.status, 200);
    EXPECT_STR(buf_str(&reply.body), STR(COMPLETION));
    EXPECT_STR(buf_str(&world.upstream_body), STR(ASK));
    EXPECT(str_starts(buf_str(&world.upstream_head), STR("/v1/chat/completions\n")));
    const struct gateway_stats *stats = gateway_session_stats(world.session);
    EXPECT_INT(stats->calls, 1);
    EXPECT_INT(stats->turns, 1);
    EXPECT_INT(stats->usage.prompt_tokens, 11);
    EXPECT_INT(stats->usage.completion_tokens, 3);
    OWN(buf) struct buf text = {0};
    states(&world, &text);
    EXPECT_TEXT(buf_text(&text), "1:answered:200 ");
    buf_clear(&text);
    read_calls(&world, &text);
    EXPECT(str_find(buf_str(&text), STR("hi there")) >= 0);
    EXPECT_INT(str_find_byte(buf_str(&text), '\n'), text.size - 1);
    buf_deinit(&reply.body);
    world_end(&world);
}

/* The second event is sent only after the agent has the first, and so on: nothing is buffered. The
 * end comes after the call's record, which comes after the commit. */
TEST(a_stream_is_relayed_event_by_event_and_its_end_after_the_commit)
{
    struct world world = {.upstream_answer = answer_later};
    world_start(&world);
    world_model(&world);
    world_open(&world, (struct gateway_session_options){0});
    struct reply reply;
    agent_ask(&world, &reply, ASK_STREAM);
    PUMP_UNTIL(&world, world.held);
    http_respond_begin(world.held, 200, sse_type, 1);
    (void)http_respond_write(world.held, STR(EVENT("one")));
    PUMP_UNTIL(&world, reply_has(&reply, "one"));
    (void)http_respond_write(world.held, STR("data: {\"choices\":[{\"index\":0,\"delta\":{\"con"));
    (void)http_respond_write(world.held, STR("tent\":\"two\"}}]}\n\n"));
    PUMP_UNTIL(&world, reply_has(&reply, "two"));
    EXPECT_INT(world.done, 0);
    (void)http_respond_write(world.held, STR(FINISH));
    http_respond_end(world.held);
    reply_wait(&reply);
    EXPECT_INT(reply.err.kind, ERR_NONE);
    EXPECT_INT(reply.done_when_finished, 1);
    EXPECT_STR(buf_str(&reply.body), STR(EVENT("one") EVENT("two") FINISH));
    OWN(buf) struct buf text = {0};
    states(&world, &text);
    EXPECT_TEXT(buf_text(&text), "1:answered:200 ");
    buf_deinit(&reply.body);
    world_end(&world);
}

static void answer_503_twice(struct world *world, struct http_exchange *exchange)
{
    if (world->upstream_calls > 2)
        http_respond_json(exchange, 200, STR(COMPLETION));
    else
        http_respond_json(exchange, 503, STR("{\"error\":{\"message\":\"overloaded\"}}"));
}

TEST(server_errors_are_absorbed_by_trying_again)
{
    struct world world = {.upstream_answer = answer_503_twice};
    world_start(&world);
    world_model(&world);
    world_open(&world, (struct gateway_session_options){0});
    struct reply reply;
    agent_ask(&world, &reply, ASK);
    reply_wait(&reply);
    EXPECT_INT(reply.status, 200);
    EXPECT_INT(world.upstream_calls, 3);
    EXPECT_INT(gateway_session_stats(world.session)->retries, 2);
    EXPECT_INT(gateway_session_stats(world.session)->cause, GATEWAY_FINE);
    buf_deinit(&reply.body);
    world_end(&world);
}

static void answer_429(struct world *world, struct http_exchange *exchange)
{
    (void)world;
    static const struct http_header headers[] = {{{"retry-after-ms", 14}, {"1", 1}}};
    http_respond(exchange, 429, headers, 1, STR("{\"error\":{\"message\":\"slow down\"}}"));
}

TEST(a_rate_limit_that_stays_is_shown_with_a_wait_the_agents_accept)
{
    struct world world = {.upstream_answer = answer_429};
    world_start(&world);
    world_model(&world);
    world_open(&world, (struct gateway_session_options){0});
    struct reply reply;
    agent_ask(&world, &reply, ASK_STREAM);
    reply_wait(&reply);
    EXPECT_INT(reply.status, 429);
    EXPECT_TEXT(reply.retry_after, "1");
    EXPECT(reply_has(&reply, "slow down"));
    EXPECT_INT(world.upstream_calls, 3);
    EXPECT_INT(gateway_session_stats(world.session)->cause, GATEWAY_UPSTREAM);
    EXPECT_INT(gateway_session_stats(world.session)->error.kind, ERR_CAPACITY);
    buf_deinit(&reply.body);
    world_end(&world);
}

static void answer_wait_long(struct world *world, struct http_exchange *exchange)
{
    (void)world;
    static const struct http_header headers[] = {{{"retry-after", 11}, {"3600", 4}}};
    http_respond(exchange, 429, headers, 1, STR("{}"));
}

TEST(a_wait_that_is_too_long_is_not_waited_and_shown_as_a_minute)
{
    struct world world = {.upstream_answer = answer_wait_long};
    world_start(&world);
    world_model(&world);
    world_open(&world, (struct gateway_session_options){0});
    struct reply reply;
    agent_ask(&world, &reply, ASK);
    reply_wait(&reply);
    EXPECT_INT(reply.status, 429);
    EXPECT_TEXT(reply.retry_after, "60");
    EXPECT_INT(world.upstream_calls, 1);
    buf_deinit(&reply.body);
    world_end(&world);
}

TEST(a_model_server_that_is_not_there_is_a_503_and_its_address_stays_inside)
{
    struct world world = {.upstream_answer = answer_completion};
    world_start(&world);
    uint16_t port;
    int nobody = world_nobody(&port);
    OWN(mem) char *spec = mem_format("http://127.0.0.1:%u/v1#m", port);
    world.model =
        model_open(spec, &(struct model_options){.attempts_max = 2, .retry_ms_max = 1}, NULL);
    world_open(&world, (struct gateway_session_options){0});
    struct reply reply;
    agent_ask(&world, &reply, ASK_STREAM);
    reply_wait(&reply);
    EXPECT_INT(reply.status, 503);
    EXPECT_TEXT(reply.retry_after, "5");
    EXPECT(!reply_has(&reply, "127.0.0.1"));
    EXPECT_INT(gateway_session_stats(world.session)->retries, 1);
    EXPECT_INT(gateway_session_stats(world.session)->cause, GATEWAY_UPSTREAM);
    close(nobody);
    buf_deinit(&reply.body);
    world_end(&world);
}

static void answer_400(struct world *world, struct http_exchange *exchange)
{
    (void)world;
    http_respond_json(exchange, 400,
                      STR("{\"error\":{\"message\":\"context is too long\",\"type\":"
                          "\"invalid_request_error\",\"code\":\"context_length_exceeded\"}}"));
}

TEST(a_request_the_model_server_refuses_keeps_its_status_and_words)
{
    struct world world = {.upstream_answer = answer_400};
    world_start(&world);
    world_model(&world);
    world_open(&world, (struct gateway_session_options){0});
    struct reply reply;
    agent_ask(&world, &reply, ASK_STREAM);
    reply_wait(&reply);
    EXPECT_INT(reply.status, 400);
    EXPECT(reply_has(&reply, "context is too long"));
    EXPECT_INT(world.upstream_calls, 1);
    EXPECT_INT(gateway_session_stats(world.session)->cause, GATEWAY_FINE);
    OWN(buf) struct buf text = {0};
    states(&world, &text);
    EXPECT_TEXT(buf_text(&text), "1:refused:400 ");
    buf_deinit(&reply.body);
    world_end(&world);
}

TEST(an_agent_that_leaves_ends_the_upstream_call_and_is_recorded)
{
    struct world world = {.upstream_answer = answer_later};
    world_start(&world);
    world_model(&world);
    world_open(&world, (struct gateway_session_options){.retry_grace_ms = 1});
    struct reply reply;
    agent_ask(&world, &reply, ASK_STREAM);
    PUMP_UNTIL(&world, world.held);
    http_respond_begin(world.held, 200, sse_type, 1);
    (void)http_respond_write(world.held, STR(EVENT("partial words")));
    PUMP_UNTIL(&world, reply_has(&reply, "partial words"));
    http_call_close(reply.call);
    PUMP_UNTIL(&world, world.upstream_gone && world.done);
    OWN(buf) struct buf text = {0};
    states(&world, &text);
    EXPECT_TEXT(buf_text(&text), "1:broken:0 ");
    buf_clear(&text);
    read_calls(&world, &text);
    EXPECT(str_find(buf_str(&text), STR("the agent went away")) >= 0);
    EXPECT(str_find(buf_str(&text), STR("partial words")) >= 0);
    EXPECT_INT(gateway_session_stats(world.session)->in_flight, 0);
    buf_deinit(&reply.body);
    world_end(&world);
}

static void answer_cut_stream(struct world *world, struct http_exchange *exchange)
{
    (void)world;
    http_respond_begin(exchange, 200, sse_type, 1);
    (void)http_respond_write(exchange, STR(EVENT("half an answer")));
    http_respond_end(exchange); /* a clean end, but no finish */
}

TEST(a_truncated_stream_is_reset_towards_the_agent_never_closed_cleanly)
{
    struct world world = {.upstream_answer = answer_cut_stream};
    world_start(&world);
    world_model(&world);
    world_open(&world, (struct gateway_session_options){.retry_grace_ms = 1});
    OWN(buf) struct buf answer = {0};
    OWN(mem)
    char *request =
        mem_format("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %zu\r\n\r\n%s",
                   strlen(ASK_STREAM), ASK_STREAM);
    EXPECT_INT(raw_ask(&world, request, &answer), ECONNRESET);
    EXPECT(str_find(buf_str(&answer), STR("[DONE]")) < 0);
    EXPECT_INT(world.upstream_calls, 1);
    PUMP_UNTIL(&world, world.done);
    OWN(buf) struct buf text = {0};
    states(&world, &text);
    EXPECT_TEXT(buf_text(&text), "1:broken:200 ");
    EXPECT_INT(gateway_session_stats(world.session)->cause, GATEWAY_UPSTREAM);
    world_end(&world);
}

static void answer_empty_then_good(struct world *world, struct http_exchange *exchange)
{
    if (world->upstream_calls > 1) {
        answer_stream(world, exchange);
        return;
    }
    http_respond_begin(exchange, 200, sse_type, 1);
    (void)http_respond_write(exchange, STR(": thinking\n\n"));
    http_exchange_reset(exchange);
}

TEST(a_stream_that_dies_before_its_first_word_is_tried_again)
{
    struct world world = {.upstream_answer = answer_empty_then_good};
    world_start(&world);
    world_model(&world);
    world_open(&world, (struct gateway_session_options){0});
    struct reply reply;
    agent_ask(&world, &reply, ASK_STREAM);
    reply_wait(&reply);
    EXPECT_INT(reply.status, 200);
    EXPECT_INT(reply.err.kind, ERR_NONE);
    EXPECT_STR(buf_str(&reply.body), STR(EVENT("one ") EVENT("two") FINISH));
    EXPECT_INT(world.upstream_calls, 2);
    buf_deinit(&reply.body);
    world_end(&world);
}

/* ---------------------------------------------------------------- limits */

TEST(parallel_calls_cannot_overrun_the_limit_of_turns)
{
    struct world world = {.upstream_answer = answer_completion};
    world_start(&world);
    world_model(&world);
    world_open(&world, (struct gateway_session_options){.limits.turns_max = 3});
    struct reply replies[10];
    for (int i = 0; i < 10; i++)
        agent_ask(&world, &replies[i], ASK);
    int answered = 0, refused = 0;
    for (int i = 0; i < 10; i++) {
        reply_wait(&replies[i]);
        answered += replies[i].status == 200;
        refused += replies[i].status == 429 || replies[i].status == 400;
        buf_deinit(&replies[i].body);
    }
    EXPECT_INT(answered, 3);
    EXPECT_INT(refused, 7);
    EXPECT_INT(world.upstream_calls, 3);
    struct reply reply;
    agent_ask(&world, &reply, ASK);
    reply_wait(&reply);
    EXPECT_INT(reply.status, 400);
    EXPECT(reply_has(&reply, "limit of 3 turns"));
    EXPECT_INT(world.exhausted, GATEWAY_LIMIT);
    EXPECT_INT(gateway_session_stats(world.session)->cause, GATEWAY_LIMIT);
    buf_deinit(&reply.body);
    world_end(&world);
}

TEST(calls_tokens_and_what_is_recorded_run_out)
{
    struct world world = {.upstream_answer = answer_completion};
    world_start(&world);
    world_model(&world);
    /* The second request is the same as the first: only its answer is new. */
    uint64_t one = strlen(ASK) + strlen(COMPLETION), two = one + strlen(COMPLETION);
    const struct gateway_limits all[] = {{.calls_max = 2},
                                         {.tokens_max = 28},
                                         {.record_bytes_max = one + 1},
                                         {.record_bytes_max = two}};
    for (size_t round = 0; round < COUNT(all); round++) {
        world.exhausted = GATEWAY_FINE;
        world.closed = false;
        world_open(&world, (struct gateway_session_options){.limits = all[round]});
        int statuses[3];
        for (int i = 0; i < 3; i++) {
            struct reply reply;
            agent_ask(&world, &reply, ASK);
            reply_wait(&reply);
            statuses[i] = reply.status;
            buf_deinit(&reply.body);
        }
        EXPECT_INT(statuses[0], 200);
        EXPECT_INT(statuses[1], 200);
        EXPECT_INT(statuses[2], 400);
        PUMP_UNTIL(&world, world.exhausted == GATEWAY_LIMIT);
        world_close_session(&world, 0);
    }
    world_end(&world);
}

TEST(too_many_calls_at_once_are_told_to_come_again)
{
    struct world world = {.upstream_answer = answer_later};
    world_start(&world);
    world_model(&world);
    world_open(&world, (struct gateway_session_options){.limits.in_flight_max = 1});
    struct reply first, second;
    agent_ask(&world, &first, ASK);
    PUMP_UNTIL(&world, world.held);
    agent_ask(&world, &second, ASK);
    reply_wait(&second);
    EXPECT_INT(second.status, 429);
    EXPECT_TEXT(second.retry_after, "1");
    http_respond_json(world.held, 200, STR(COMPLETION));
    reply_wait(&first);
    EXPECT_INT(first.status, 200);
    buf_deinit(&first.body);
    buf_deinit(&second.body);
    world_end(&world);
}

TEST(a_stopped_session_answers_what_no_agent_repeats)
{
    struct world world = {.upstream_answer = answer_completion};
    world_start(&world);
    world_model(&world);
    world_open(&world, (struct gateway_session_options){0});
    gateway_session_stop(world.session, "the trainer has seen enough");
    struct reply reply;
    agent_ask(&world, &reply, ASK_STREAM);
    reply_wait(&reply);
    EXPECT_INT(reply.status, 400);
    EXPECT(reply_has(&reply, "invalid_request_error"));
    EXPECT(reply_has(&reply, "the trainer has seen enough"));
    EXPECT_INT(world.upstream_calls, 0);
    buf_deinit(&reply.body);
    world_end(&world);
}

TEST(bodies_that_are_too_large_or_no_model_calls_are_refused)
{
    struct world world = {.upstream_answer = answer_completion};
    world_start(&world);
    world_model(&world);
    world_open(&world, (struct gateway_session_options){.limits.body_bytes_max = 1000});
    static const char *const bodies[] = {
        "", "{", "[]", "{\"model\":\"m\"}", "null", "{\"model\":\"m\",\"messages\":7}"};
    struct reply reply;
    for (size_t i = 0; i < COUNT(bodies); i++) {
        agent_ask_at(&world, &reply, "/v1/chat/completions", str_of(bodies[i]));
        reply_wait(&reply);
        EXPECT_INT(reply.status, 400);
        buf_deinit(&reply.body);
    }
    OWN(buf) struct buf deep = {0};
    buf_str_append(&deep, STR("{\"model\":\"m\",\"messages\":"));
    for (int i = 0; i < 200; i++)
        buf_byte(&deep, '[');
    agent_ask_at(&world, &reply, "/v1/chat/completions", buf_str(&deep));
    reply_wait(&reply);
    EXPECT_INT(reply.status, 400);
    buf_deinit(&reply.body);
    OWN(mem) char *large = mem_zero(5000);
    memset(large, ' ', 4999);
    agent_ask(&world, &reply, large);
    reply_wait(&reply);
    EXPECT_INT(reply.status, 413);
    buf_deinit(&reply.body);
    EXPECT_INT(world.upstream_calls, 0);
    EXPECT_INT(gateway_session_stats(world.session)->calls, 0);
    world_end(&world);
}

/* Reading costs time that neighbours share: who asks nonsense for ever is stopped. */
TEST(requests_that_are_no_calls_run_out_too)
{
    struct world world = {.upstream_answer = answer_completion};
    world_start(&world);
    world_model(&world);
    for (int round = 0; round < 2; round++) {
        struct gateway_limits limits = {.calls_max = round ? 0 : 1,
                                        .body_bytes_max = round ? 100 : 0};
        OWN(buf) struct buf nonsense = {0};
        struct reply reply;
        for (int i = 0; i < 90; i++)
            buf_byte(&nonsense, '[');
        world.exhausted = GATEWAY_FINE;
        world.closed = false;
        world_open(&world, (struct gateway_session_options){.limits = limits});
        int most = round ? 36 : 11; /* 32 bodies of 100 bytes; ten times the calls there may be */
        for (int i = 0; i < most; i++) {
            EXPECT_INT(world.exhausted, GATEWAY_FINE);
            agent_ask_at(&world, &reply, "/v1/chat/completions", buf_str(&nonsense));
            reply_wait(&reply);
            EXPECT_INT(reply.status, 400);
            buf_deinit(&reply.body);
        }
        PUMP_UNTIL(&world, world.exhausted == GATEWAY_LIMIT);
        agent_ask(&world, &reply, ASK);
        reply_wait(&reply);
        EXPECT_INT(reply.status, 400);
        EXPECT(strstr(buf_text(&reply.body), "no call"));
        buf_deinit(&reply.body);
        EXPECT_INT(world.upstream_calls, 0);
        world_close_session(&world, 0);
    }
    world_end(&world);
}

/* Connections and calls are bounded by number; what they hold is bounded in all. */
TEST(large_bodies_at_once_are_told_to_come_again)
{
    struct world world = {.upstream_answer = answer_later};
    world_start(&world);
    world_model(&world);
    world_open(&world, (struct gateway_session_options){.limits.body_bytes_max = 100000});
    struct reply replies[3];
    for (int i = 0; i < 3; i++) {
        OWN(buf) struct buf large = {0};
        buf_format(&large, "{\"model\":\"m%d\",\"messages\":[{\"role\":\"user\",\"content\":\"", i);
        while (large.size < 90000)
            buf_byte(&large, 'x');
        buf_str_append(&large, STR("\"}]}"));
        agent_ask_at(&world, &replies[i], "/v1/chat/completions", buf_str(&large));
        PUMP_UNTIL(&world, world.upstream_calls == i + 1 || replies[i].done);
    }
    EXPECT_INT(world.upstream_calls, 2);
    EXPECT_INT(replies[2].status, 429);
    world_close_session(&world, 0);
    for (int i = 0; i < 3; i++) {
        reply_wait(&replies[i]);
        buf_deinit(&replies[i].body);
    }
    world_end(&world);
}

/* ---------------------------------------------------------------- what the inlet is not */

TEST(ways_out_are_refused_at_once_and_counted_by_host)
{
    struct world world = {.upstream_answer = answer_completion};
    world_start(&world);
    world_model(&world);
    world_open(&world, (struct gateway_session_options){0});
    static const struct {
        const char *request, *status;
    } rows[] = {
        {"CONNECT Telemetry.example.com:443 HTTP/1.1\r\nHost: telemetry.example.com:443\r\n\r\n",
         "403"},
        {"CONNECT telemetry.example.com:443 HTTP/1.1\r\nHost: telemetry.example.com:443\r\n\r\n",
         "403"},
        {"GET http://updates.example.com/v1/models HTTP/1.1\r\nHost: updates.example.com\r\n"
         "Connection: close\r\n\r\n",
         "403"},
        {"GET http://127.0.0.1:13131/v1/models?x=1 HTTP/1.1\r\nHost: 127.0.0.1:13131\r\n"
         "Connection: close\r\n\r\n",
         "200"},
        {"GET /v1/responses HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, close\r\nUpgrade: "
         "websocket\r\n"
         "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n",
         "404"},
        {"GET /v1/rollouts HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", "404"},
        {"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", "404"},
        {"GET /v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", "405"},
        {"HEAD / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", "200"},
        {"GET /v1/models HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", "200"},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        OWN(buf) struct buf answer = {0};
        OWN(mem)
        char *request = strstr(rows[i].request, "Connection: ")
                            ? mem_dup(rows[i].request)
                            : mem_format("%.*sConnection: close\r\n\r\n",
                                         (int)strlen(rows[i].request) - 2, rows[i].request);
        (void)raw_ask(&world, request, &answer);
        if (answer.size < 12 || memcmp(answer.data + 9, rows[i].status, 3) != 0)
            test_fail(__FILE__, __LINE__, "%s gave %.*s", rows[i].request,
                      STR_ARGS(buf_str(&answer)));
    }
    OWN(buf) struct buf hosts = {0};
    struct json_writer out = {.out = &hosts};
    gateway_session_hosts(world.session, &out);
    EXPECT(str_find(buf_str(&hosts), STR("\"telemetry.example.com:443\":2")) >= 0);
    EXPECT(str_find(buf_str(&hosts), STR("\"updates.example.com\":1")) >= 0);
    world_close_session(&world, 0);
    EXPECT(str_find(buf_str(&world.report), STR("\"connect\":2")) >= 0);
    EXPECT(str_find(buf_str(&world.report), STR("\"websocket\":1")) >= 0);
    world_end(&world);
}

/* ---------------------------------------------------------------- keys */

#define KEY "sk-marked-key-0123456789"

static void answer_with_key_in_error(struct world *world, struct http_exchange *exchange)
{
    (void)world;
    http_respond_json(exchange, 401,
                      STR("{\"error\":{\"message\":\"Incorrect API key: " KEY "\"}}"));
}

static void answer_with_key_in_text(struct world *world, struct http_exchange *exchange)
{
    (void)world;
    http_respond_begin(exchange, 200, sse_type, 1);
    (void)http_respond_write(exchange, STR(EVENT("your key is " KEY) FINISH));
    http_respond_end(exchange);
}

static bool grep(const char *path, const char *what)
{
    OWN(mem) char *command = mem_format("grep -rqa '%s' '%s'", what, path);
    return system(command) == 0;
}

TEST(the_key_goes_to_the_model_server_and_nowhere_else)
{
    static void (*const answers[])(struct world *, struct http_exchange *) = {
        answer_completion, answer_with_key_in_error, answer_with_key_in_text};
    struct world world = {0};
    world_start(&world);
    setenv("TEST_MODEL_KEY", KEY, 1);
    world_model_upstream(
        &world,
        &(struct model_options){.key_env = "TEST_MODEL_KEY", .attempts_max = 2, .retry_ms_max = 1});
    world_open(&world, (struct gateway_session_options){0});
    for (size_t i = 0; i < COUNT(answers); i++) {
        world.upstream_answer = answers[i];
        struct reply reply;
        agent_ask(&world, &reply, i == 2 ? ASK_STREAM : ASK);
        reply_wait(&reply);
        EXPECT(str_find(buf_str(&world.upstream_head), STR("Bearer " KEY)) >= 0);
        EXPECT(str_find(buf_str(&world.upstream_head), STR("agents")) < 0);
        EXPECT(str_find(buf_str(&world.upstream_head), STR("ses_1")) < 0);
        EXPECT(!reply_has(&reply, "marked-key"));
        buf_deinit(&reply.body);
    }
    world_close_session(&world, 0);
    EXPECT(str_find(buf_str(&world.report), STR("marked-key")) < 0);
    EXPECT(grep(world.calls_path, "the model server answered 401"));
    EXPECT(!grep(world.home, "marked-key"));
    world_end(&world);
}

TEST(keys_that_are_missing_blank_or_in_the_url_are_refused_without_being_repeated)
{
    struct err err = {0};
    unsetenv("NO_SUCH_KEY");
    EXPECT(!model_open("http://h/v1#m", &(struct model_options){.key_env = "NO_SUCH_KEY"}, &err));
    EXPECT(strstr(err.text, "NO_SUCH_KEY"));
    setenv("BLANK_KEY", "  \n", 1);
    EXPECT(!model_open("http://h/v1#m", &(struct model_options){.key_env = "BLANK_KEY"}, &err));
    setenv("SPLIT_KEY", "secret\r\nX-Evil: 1", 1);
    EXPECT(!model_open("http://h/v1#m", &(struct model_options){.key_env = "SPLIT_KEY"}, &err));
    EXPECT(!strstr(err.text, "secret"));
    EXPECT(!model_open("http://user:secret@h/v1#m", NULL, &err));
    EXPECT(!strstr(err.text, "secret"));
    EXPECT(!model_open("http://h/v1", NULL, &err));
    EXPECT(strstr(err.text, "URL#name"));
    EXPECT(!model_open("gpt", NULL, &err));
    EXPECT(strstr(err.text, "script:FILE"));
}

/* ---------------------------------------------------------------- modes */

#define CAPTURED                                                                                   \
    "{\"id\":\"x\",\"object\":\"chat.completion\",\"created\":1,\"model\":\"real-name\","          \
    "\"prompt_token_ids\":[1,2,3],"                                                                \
    "\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"hi\"},"           \
    "\"finish_reason\":\"stop\",\"token_ids\":[77,78],\"logprobs\":{\"content\":["                 \
    "{\"token\":\"h\",\"logprob\":-0.5},{\"token\":\"i\",\"logprob\":-0.25}]}}],"                  \
    "\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":2,\"total_tokens\":5}}"

static void answer_captured(struct world *world, struct http_exchange *exchange)
{
    (void)world;
    http_respond_json(exchange, 200, STR(CAPTURED));
}

TEST(proxy_imposes_the_model_and_captures_tokens_the_agent_never_sees)
{
    struct world world = {.upstream_answer = answer_captured};
    world_start(&world);
    world_model(&world);
    world_open(&world, (struct gateway_session_options){
                           .mode = "transparent_proxy",
                           .sampling = {.has_temperature = true, .temperature = 0.5}});
    struct reply reply;
    agent_ask(&world, &reply, ASK);
    reply_wait(&reply);
    EXPECT_INT(reply.status, 200);
    EXPECT(str_find(buf_str(&world.upstream_body), STR("real-name")) >= 0);
    EXPECT(str_find(buf_str(&world.upstream_body), STR("\"temperature\":0.5")) >= 0);
    EXPECT(str_find(buf_str(&world.upstream_body), STR("logprobs")) >= 0);
    EXPECT(reply_has(&reply, "hi"));
    EXPECT(!reply_has(&reply, "token_ids"));
    EXPECT(!reply_has(&reply, "-0.25"));
    OWN(buf) struct buf text = {0};
    read_calls(&world, &text);
    EXPECT(str_find(buf_str(&text), STR("[77,78]")) >= 0);
    EXPECT(str_find(buf_str(&text), STR("[-0.5,-0.25]")) >= 0);
    buf_deinit(&reply.body);
    world_end(&world);
}

TEST(proxy_sends_a_long_conversation_on_byte_for_byte)
{
    struct world world = {.upstream_answer = answer_captured};
    world_start(&world);
    world_model(&world);
    world_open(&world, (struct gateway_session_options){.mode = "proxy"});
    OWN(buf) struct buf ask = {0}, wanted = {0};
    buf_str_append(&wanted, STR("\"messages\" : [ {\"role\":\"user\",\"content\":\""));
    for (size_t i = 0; i < 300000; i++)
        buf_byte(&wanted, (char)('a' + i % 23));
    buf_str_append(&wanted, STR("\"} ]"));
    buf_str_append(&ask, STR("{\"model\":\"agents-name\","));
    buf_str_append(&ask, buf_str(&wanted));
    buf_str_append(&ask, STR(",\"seed\":7}"));
    buf_byte(&ask, 0);
    for (int turn = 0; turn < 2; turn++) {
        struct reply reply;
        ask.data[ask.size - 3] = (char)('7' + turn);
        agent_ask(&world, &reply, ask.data);
        reply_wait(&reply);
        EXPECT_INT(reply.status, 200);
        struct str got = buf_str(&world.upstream_body);
        OWN(json_doc) struct json_doc doc = {0};
        EXPECT_INT(json_read(&doc, got, NULL, NULL), 0);
        EXPECT(json_is(json_get(json_root(&doc), "model"), "real-name"));
        EXPECT(str_find(got, buf_str(&wanted)) >= 0);
        EXPECT_INT(json_int_or(json_get(json_root(&doc), "seed"), 0), 7 + turn);
        buf_deinit(&reply.body);
    }
    world_end(&world);
}

TEST(gate_is_refused_for_now_and_unknown_modes_name_the_three)
{
    struct world world = {.upstream_answer = answer_completion};
    world_start(&world);
    world_model(&world);
    struct err err = {0};
    struct gateway_session_options options = {.rollout_id = "r", .model = world.model};
    options.mode = "interception_gate";
    EXPECT(!gateway_open(world.gateway, &options, &err));
    EXPECT_INT(err.kind, ERR_UNSUPPORTED);
    options.mode = "man_in_the_middle";
    EXPECT(!gateway_open(world.gateway, &options, &err));
    EXPECT_INT(err.kind, ERR_INPUT);
    EXPECT_TEXT(err.text, "unknown mode 'man_in_the_middle': it is black_box, proxy or gate");
    world_end(&world);
}

TEST(a_json_answer_to_a_stream_request_becomes_a_stream_and_the_other_way_round)
{
    struct world world = {.upstream_answer = answer_completion};
    world_start(&world);
    world_model(&world);
    world_open(&world, (struct gateway_session_options){0});
    struct reply reply;
    agent_ask(&world, &reply, ASK_STREAM);
    reply_wait(&reply);
    EXPECT_INT(reply.status, 200);
    EXPECT(str_starts(str_of(reply.type), STR("text/event-stream")));
    EXPECT(reply_has(&reply, "hi there"));
    EXPECT(reply_has(&reply, "data: [DONE]"));
    buf_deinit(&reply.body);
    world.upstream_answer = answer_stream;
    agent_ask(&world, &reply, ASK);
    reply_wait(&reply);
    EXPECT_INT(reply.status, 200);
    EXPECT(reply_has(&reply, "one two"));
    buf_deinit(&reply.body);
    world_end(&world);
}

/* ---------------------------------------------------------------- time and space */

TEST(a_waiting_stream_gets_signs_of_life_and_later_its_answer)
{
    struct world world = {.upstream_answer = answer_later};
    world_start(&world);
    world_model(&world);
    world_open(&world, (struct gateway_session_options){.keepalive_ms = 1, .headers_after_ms = 1});
    struct reply reply;
    agent_ask(&world, &reply, ASK_STREAM);
    PUMP_UNTIL(&world, world.held && reply.body.size > 20);
    EXPECT_INT(reply.status, 200);
    EXPECT_INT(reply.body.data[0], ':');
    answer_stream(&world, world.held);
    reply_wait(&reply);
    EXPECT_INT(reply.err.kind, ERR_NONE);
    EXPECT(reply_has(&reply, EVENT("one ")));
    EXPECT(str_ends(buf_str(&reply.body), STR(FINISH)));
    buf_deinit(&reply.body);
    world_end(&world);
}

TEST(an_agent_that_does_not_read_stops_the_model_server)
{
    struct world world = {.upstream_answer = answer_later};
    world_start(&world);
    world_model(&world);
    world_open(&world, (struct gateway_session_options){0});
    struct reply reply;
    agent_ask(&world, &reply, ASK_STREAM);
    PUMP_UNTIL(&world, world.held);
    http_respond_begin(world.held, 200, sse_type, 1);
    (void)http_respond_write(world.held, STR(EVENT("start")));
    PUMP_UNTIL(&world, reply_has(&reply, "start"));
    http_call_pause(reply.call);
    OWN(buf) struct buf large = {0};
    buf_str_append(&large, STR("data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\""));
    for (int i = 0; i < 64 << 10; i++)
        buf_byte(&large, 'x');
    buf_str_append(&large, STR("\"}}]}\n\n"));
    /* All kernel buffers on the way hold far less than this. */
    size_t sent = 0;
    for (; sent < (48u << 20); sent += large.size)
        (void)http_respond_write(world.held, buf_str(&large));
    size_t before;
    do {
        before = http_respond_queued(world.held);
        for (int i = 0; i < 50; i++)
            loop_once(world.loop, 1);
    } while (http_respond_queued(world.held) < before);
    EXPECT(http_respond_queued(world.held) > sent / 2);
    http_call_resume(reply.call);
    (void)http_respond_write(world.held, STR(FINISH));
    http_respond_end(world.held);
    reply_wait(&reply);
    EXPECT_INT(reply.err.kind, ERR_NONE);
    EXPECT(reply.body.size > sent);
    buf_deinit(&reply.body);
    world_end(&world);
}

TEST(closing_waits_for_calls_in_flight_and_then_breaks_them)
{
    struct world world = {.upstream_answer = answer_later};
    world_start(&world);
    world_model(&world);
    world_open(&world, (struct gateway_session_options){0});
    struct reply reply;
    agent_ask(&world, &reply, ASK);
    PUMP_UNTIL(&world, world.held);
    gateway_session_close(world.session, 1, world_on_closed, &world);
    EXPECT(!world.closed);
    reply_wait(&reply);
    EXPECT_INT(reply.status, 400);
    PUMP_UNTIL(&world, world.closed);
    world.session = NULL;
    OWN(buf) struct buf text = {0};
    states(&world, &text);
    EXPECT_TEXT(buf_text(&text), "1:broken:400 ");
    EXPECT(str_find(buf_str(&world.report), STR("\"broken\":1")) >= 0);
    buf_deinit(&reply.body);
    world_end(&world);
}

TEST(a_call_that_finishes_within_the_grace_is_answered)
{
    struct world world = {.upstream_answer = answer_later};
    world_start(&world);
    world_model(&world);
    world_open(&world, (struct gateway_session_options){0});
    struct reply reply;
    agent_ask(&world, &reply, ASK);
    PUMP_UNTIL(&world, world.held);
    gateway_session_close(world.session, 60000, world_on_closed, &world);
    http_respond_json(world.held, 200, STR(COMPLETION));
    reply_wait(&reply);
    EXPECT_INT(reply.status, 200);
    PUMP_UNTIL(&world, world.closed);
    world.session = NULL;
    buf_deinit(&reply.body);
    world_end(&world);
}

/* Whatever stands between the lines of a request, it is one line of the record: an agent cannot
 * write one of its own, with tokens it would like to be trained on. */
TEST(a_request_of_many_lines_is_one_line_of_the_record)
{
#define FORGED "\n{\"call_id\":\"c-forged\",\"state\":\"answered\"}\r\n"
    static const char *const asks[] = {
        "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"tools\":[{"
        "\"type\":"
        "\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"x\":" FORGED "}}}]}",
        "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"file\","
        "\"x\":" FORGED "}]}]}",
        "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"b\"}],\"tools\":[],"
        "\"tool_choice\":{\"x\":" FORGED "}}",
    };
    struct world world = {.upstream_answer = answer_completion};
    world_start(&world);
    world_model(&world);
    world_open(&world, (struct gateway_session_options){0});
    for (size_t i = 0; i < COUNT(asks); i++) {
        struct reply reply;
        agent_ask(&world, &reply, asks[i]);
        reply_wait(&reply);
        EXPECT_INT(reply.status, 200);
        EXPECT_STR(buf_str(&world.upstream_body), str_of(asks[i]));
        buf_deinit(&reply.body);
    }
    OWN(buf) struct buf text = {0};
    read_calls(&world, &text);
    size_t lines = 0;
    for (struct str rest = buf_str(&text); rest.size; lines++) {
        OWN(json_doc) struct json_doc doc = {0};
        EXPECT_INT(json_read(&doc, str_cut(&rest, '\n'), NULL, NULL), 0);
        EXPECT(!json_is(json_get(json_root(&doc), "call_id"), "c-forged"));
    }
    EXPECT_INT(lines, COUNT(asks));
    EXPECT(str_find(buf_str(&text), STR("c-forged")) > 0);
    world_end(&world);
}

TEST(a_journal_that_fails_stops_the_session_before_anything_is_forwarded)
{
    struct world world = {.upstream_answer = answer_completion};
    world_start(&world);
    world_model(&world);
    world_open(&world, (struct gateway_session_options){0});
    struct rlimit limit = {.rlim_cur = 16, .rlim_max = RLIM_INFINITY};
    signal(SIGXFSZ, SIG_IGN);
    EXPECT_INT(setrlimit(RLIMIT_FSIZE, &limit), 0);
    struct reply reply;
    agent_ask(&world, &reply, ASK);
    reply_wait(&reply);
    EXPECT_INT(reply.status, 503);
    EXPECT_INT(world.upstream_calls, 0);
    PUMP_UNTIL(&world, world.exhausted == GATEWAY_STORE);
    buf_deinit(&reply.body);
    agent_ask(&world, &reply, ASK);
    reply_wait(&reply);
    EXPECT_INT(reply.status, 400);
    buf_deinit(&reply.body);
    limit.rlim_cur = RLIM_INFINITY;
    EXPECT_INT(setrlimit(RLIMIT_FSIZE, &limit), 0);
    world_end(&world);
}
