/* Which model server is asked, when, how, and what it gets to see. */
#include "test_gateway.h"

#include <time.h>

#include "base/clock.h"

#define COMPLETION                                                                                 \
    "{\"id\":\"chatcmpl-1\",\"object\":\"chat.completion\",\"created\":1,\"model\":\"m\","         \
    "\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"hi there\"},"     \
    "\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":11,\"completion_tokens\":3,"        \
    "\"total_tokens\":14}}"

/* Several model servers, each with a will of its own. */
struct crowd {
    struct world *world;
    struct http_server *server;
    uint16_t port;
    int calls, status; /* 0: 200; -1: reset; -2: hold */
    struct http_exchange *held[64];
    int held_count;
    const char *retry_after;
};

static void crowd_body(void *context, struct http_exchange *exchange, struct str body,
                       const struct err *err)
{
    struct crowd *crowd = context;
    (void)body;
    if (err && err->kind != ERR_NONE)
        return;
    crowd->calls++;
    struct http_header wait = {STR("retry-after"), str_of(crowd->retry_after)};
    if (crowd->status == -1)
        http_exchange_reset(exchange);
    else if (crowd->status == -2)
        crowd->held[crowd->held_count++] = exchange;
    else if (crowd->status)
        http_respond(exchange, crowd->status, &wait, crowd->retry_after ? 1 : 0,
                     STR("{\"error\":{\"message\":\"no\",\"type\":\"rate_limit_exceeded\"}}"));
    else
        http_respond_json(exchange, 200, STR(COMPLETION));
}

static void crowd_request(void *context, struct http_exchange *exchange)
{
    http_exchange_collect(exchange, 0, crowd_body, context);
}

static void crowd_open(struct crowd *crowd, struct world *world)
{
    crowd->world = world;
    crowd->server = http_server_new(
        world->loop, &(struct http_server_options){.on_request = crowd_request, .context = crowd});
    if (http_server_listen_tcp(crowd->server, "127.0.0.1", 0, &crowd->port, NULL) < 0)
        abort();
}

static void crowd_close(struct crowd *crowd)
{
    bool closed = false;
    http_server_close(crowd->server, 0, world_upstream_closed, &closed);
    while (!closed)
        loop_once(crowd->world->loop, 100);
}

static void model_of(struct world *world, const struct crowd *crowds, size_t count,
                     struct model_options options)
{
    OWN(buf) struct buf spec = {0};
    struct err err = {0};
    for (size_t i = 0; i < count; i++)
        buf_format(&spec, "%shttp://127.0.0.1:%u/v1", i ? "," : "", crowds[i].port);
    buf_str_append(&spec, STR("#m"));
    if (!options.attempts_max)
        options.attempts_max = 4;
    if (!options.retry_ms_max)
        options.retry_ms_max = 2;
    world->model = model_open(buf_text(&spec), &options, &err);
    if (!world->model) {
        fprintf(stderr, "%s\n", err.text);
        abort();
    }
}

static void nth(char *body, size_t size, int number)
{
    snprintf(body, size,
             "{\"model\":\"any\",\"messages\":[{\"role\":\"user\",\"content\":\"q%d\"}]}", number);
}

static int ask_number(struct world *world, int number)
{
    char body[128];
    struct reply reply;
    nth(body, sizeof body, number);
    agent_ask(world, &reply, body);
    reply_wait(&reply);
    buf_deinit(&reply.body);
    return reply.status;
}

/* ---------------------------------------------------------------- several servers */

TEST(a_rollout_stays_with_its_server_and_moves_when_that_fails)
{
    struct world world = {0};
    struct crowd crowds[2] = {0};
    world_start(&world);
    crowd_open(&crowds[0], &world);
    crowd_open(&crowds[1], &world);
    model_of(&world, crowds, 2, (struct model_options){0});
    world_open(&world, (struct gateway_session_options){0});
    for (int i = 0; i < 6; i++)
        EXPECT_INT(ask_number(&world, i), 200);
    EXPECT_INT(crowds[0].calls + crowds[1].calls, 6);
    int home = crowds[1].calls > 0;
    EXPECT_INT(crowds[!home].calls, 0);
    crowds[home].status = 500;
    for (int i = 6; i < 9; i++)
        EXPECT_INT(ask_number(&world, i), 200);
    EXPECT_INT(crowds[home].calls, 7); /* one failure, then the other one is home */
    EXPECT_INT(crowds[!home].calls, 3);
    world_close_session(&world, 0);
    crowd_close(&crowds[0]);
    crowd_close(&crowds[1]);
    world_end(&world);
}

TEST(calls_go_to_the_server_with_the_fewest_and_never_past_its_limit)
{
    struct world world = {0};
    struct crowd crowds[2] = {{.status = -2}, {.status = -2}};
    world_start(&world);
    crowd_open(&crowds[0], &world);
    crowd_open(&crowds[1], &world);
    model_of(&world, crowds, 2, (struct model_options){.parallel_max = 3});
    world_open(&world, (struct gateway_session_options){0});
    struct reply replies[10];
    char body[128];
    for (int i = 0; i < 10; i++) {
        nth(body, sizeof body, i);
        agent_ask(&world, &replies[i], body);
    }
    PUMP_UNTIL(&world, crowds[0].calls + crowds[1].calls == 6);
    for (int i = 0; i < 20; i++)
        loop_once(world.loop, 1);
    EXPECT_INT(crowds[0].calls, 3);
    EXPECT_INT(crowds[1].calls, 3);
    for (int i = 0; i < 5; i++) {
        struct crowd *crowd = &crowds[i % 2];
        http_respond_json(crowd->held[i / 2], 200, STR(COMPLETION));
        if (i < 4)
            PUMP_UNTIL(&world, crowds[0].calls + crowds[1].calls == 7 + i);
    }
    for (int c = 0; c < 2; c++)
        for (int i = c ? 2 : 3; i < crowds[c].held_count; i++)
            http_respond_json(crowds[c].held[i], 200, STR(COMPLETION));
    for (int i = 0; i < 10; i++) {
        reply_wait(&replies[i]);
        EXPECT_INT(replies[i].status, 200);
        buf_deinit(&replies[i].body);
    }
    world_close_session(&world, 0);
    crowd_close(&crowds[0]);
    crowd_close(&crowds[1]);
    world_end(&world);
}

static void note_upstream(void *context, const struct model_upstream *upstream)
{
    struct model_upstream *out = context;
    while (out->url)
        out++;
    *out = *upstream;
}

static uint32_t waiting(void)
{
    struct model_upstream seen[4] = {0};
    model_each_upstream(note_upstream, seen);
    return seen[0].waiting;
}

TEST(the_line_for_a_server_has_an_end_and_agents_are_told_to_come_again)
{
    struct world world = {0};
    struct crowd crowd = {.status = -2};
    world_start(&world);
    crowd_open(&crowd, &world);
    model_of(&world, &crowd, 1,
             (struct model_options){.parallel_max = 1, .queue_max = 1, .attempts_max = 1});
    world_open(&world, (struct gateway_session_options){0});
    struct reply replies[3];
    char body[128];
    for (int i = 0; i < 3; i++) {
        nth(body, sizeof body, i);
        agent_ask(&world, &replies[i], body);
        PUMP_UNTIL(&world, i == 0 ? crowd.calls == 1 : i == 1 ? waiting() == 1 : replies[2].done);
    }
    EXPECT_INT(replies[2].status, 503);
    EXPECT_TEXT(replies[2].retry_after, "5");
    http_respond_json(crowd.held[0], 200, STR(COMPLETION));
    PUMP_UNTIL(&world, crowd.calls == 2);
    http_respond_json(crowd.held[1], 200, STR(COMPLETION));
    for (int i = 0; i < 3; i++) {
        reply_wait(&replies[i]);
        buf_deinit(&replies[i].body);
    }
    world_close_session(&world, 0);
    crowd_close(&crowd);
    world_end(&world);
}

TEST(a_rate_is_kept_by_waiting)
{
    struct world world = {0};
    struct crowd crowd = {0};
    world_start(&world);
    crowd_open(&crowd, &world);
    model_of(&world, &crowd, 1, (struct model_options){.rate_max = 20});
    world_open(&world, (struct gateway_session_options){.limits.in_flight_max = 64});
    struct reply replies[24];
    char body[128];
    uint64_t before = loop_now_ms(world.loop);
    for (int i = 0; i < 24; i++) {
        nth(body, sizeof body, i);
        agent_ask(&world, &replies[i], body);
    }
    for (int i = 0; i < 24; i++) {
        reply_wait(&replies[i]);
        EXPECT_INT(replies[i].status, 200);
        buf_deinit(&replies[i].body);
    }
    /* 20 at once, the other 4 one every 50 ms: the rate cannot be exceeded by being slow. */
    EXPECT(loop_now_ms(world.loop) - before >= 150);
    world_close_session(&world, 0);
    crowd_close(&crowd);
    world_end(&world);
}

#define LEFT_ALONE_MS 1000

/* The first of two servers fails. Each rollout begins with it until it is ejected, at its third
 * failure. False: all this took longer than a server is left alone. */
static bool fail_six_times(struct world *world, struct crowd *crowds, struct model_upstream *seen)
{
    uint64_t began = 0;
    *world = (struct world){0};
    crowds[0] = (struct crowd){.status = -1};
    crowds[1] = (struct crowd){0};
    world_start(world);
    crowd_open(&crowds[0], world);
    crowd_open(&crowds[1], world);
    model_of(world, crowds, 2, (struct model_options){0});
    for (int i = 0; i < 6; i++) {
        began = i == 2 ? clock_mono_ms() : began;
        world_open(world, (struct gateway_session_options){0});
        if (ask_number(world, i) != 200)
            test_fail(__FILE__, __LINE__, "rollout %d was not answered", i);
        world->closed = false;
        world_close_session(world, 0);
        buf_clear(&world->report);
    }
    model_each_upstream(note_upstream, seen);
    return clock_mono_ms() - began < LEFT_ALONE_MS;
}

TEST(a_server_that_keeps_failing_is_left_alone_and_tried_again_later)
{
    struct world world;
    struct crowd crowds[2];
    struct model_upstream seen[4] = {0};
    while (!fail_six_times(&world, crowds, seen)) { /* a machine that is too slow tries again */
        crowd_close(&crowds[0]);
        crowd_close(&crowds[1]);
        world_end(&world);
        memset(seen, 0, sizeof seen);
    }
    EXPECT(seen[0].ejected && !seen[1].ejected);
    EXPECT_INT(seen[0].failures, 3);
    EXPECT_INT(seen[0].ejections, 1);
    EXPECT_INT(seen[1].requests, 6);
    EXPECT_INT(seen[1].retries, 3);
    EXPECT_INT(seen[1].in_flight, 0);
    EXPECT_INT(crowds[0].calls, 3);
    /* It comes back after its time, with one call that finds out. */
    crowds[0].status = 0;
    while (crowds[0].calls == 3) {
        world_open(&world, (struct gateway_session_options){0});
        crowds[1].status = -2;
        int before = crowds[1].held_count;
        struct reply reply;
        agent_ask(&world, &reply, ASK);
        PUMP_UNTIL(&world, reply.done || crowds[1].held_count > before);
        if (crowds[1].held_count > before)
            http_respond_json(crowds[1].held[before], 200, STR(COMPLETION));
        if (crowds[1].held_count == 60)
            crowds[1].held_count = 0;
        reply_wait(&reply);
        buf_deinit(&reply.body);
        world.closed = false;
        world_close_session(&world, 0);
        buf_clear(&world.report);
        loop_once(world.loop, 20);
        usleep(20000);
    }
    struct model_upstream later[4] = {0};
    model_each_upstream(note_upstream, later);
    EXPECT(!later[0].ejected);
    crowd_close(&crowds[0]);
    crowd_close(&crowds[1]);
    world_end(&world);
}

TEST(when_all_servers_fail_the_agent_is_told_and_nothing_hangs)
{
    struct world world = {0};
    struct crowd crowds[2] = {{.status = 503}, {.status = -1}};
    world_start(&world);
    crowd_open(&crowds[0], &world);
    crowd_open(&crowds[1], &world);
    model_of(&world, crowds, 2, (struct model_options){.attempts_max = 8});
    world_open(&world, (struct gateway_session_options){0});
    EXPECT_INT(ask_number(&world, 1), 503);
    EXPECT_INT(ask_number(&world, 2), 503);
    EXPECT_INT(crowds[0].calls + crowds[1].calls, 16);
    world_close_session(&world, 0);
    crowd_close(&crowds[0]);
    crowd_close(&crowds[1]);
    world_end(&world);
}

TEST(a_server_that_asks_for_an_hour_is_not_waited_for_when_there_is_another)
{
    struct world world = {0};
    struct crowd crowds[2] = {{.status = 429, .retry_after = "3600"}, {0}};
    world_start(&world);
    crowd_open(&crowds[0], &world);
    crowd_open(&crowds[1], &world);
    model_of(&world, crowds, 2, (struct model_options){.attempts_max = 2});
    world_open(&world, (struct gateway_session_options){0});
    EXPECT_INT(ask_number(&world, 1), 200);
    EXPECT_INT(ask_number(&world, 2), 200);
    EXPECT_INT(crowds[0].calls, 1); /* and it is left alone for a while */
    EXPECT_INT(crowds[1].calls, 2);
    world_close_session(&world, 0);
    crowd_close(&crowds[0]);
    crowd_close(&crowds[1]);
    world_end(&world);
}

/* ---------------------------------------------------------------- waits that are asked for */

TEST(a_rate_limit_keeps_its_type_and_its_wait_as_seconds_or_as_a_date)
{
    struct world world = {0};
    struct crowd crowd = {.status = 429};
    world_start(&world);
    crowd_open(&crowd, &world);
    model_of(&world, &crowd, 1, (struct model_options){.attempts_max = 1});
    world_open(&world, (struct gateway_session_options){0});
    struct reply reply;
    crowd.retry_after = "7";
    agent_ask(&world, &reply, ASK);
    reply_wait(&reply);
    EXPECT_INT(reply.status, 429);
    EXPECT_TEXT(reply.retry_after, "7");
    EXPECT(reply_has(&reply, "rate_limit"));
    EXPECT(!reply_has(&reply, "invalid_request_error"));
    buf_deinit(&reply.body);
    char date[64];
    time_t when = time(NULL) + 30;
    struct tm parts;
    strftime(date, sizeof date, "%a, %d %b %Y %H:%M:%S GMT", gmtime_r(&when, &parts));
    crowd.retry_after = date;
    agent_ask(&world, &reply, ASK);
    reply_wait(&reply);
    int seconds = atoi(reply.retry_after);
    EXPECT(seconds > 1 && seconds <= 30);
    buf_deinit(&reply.body);
    crowd.retry_after = "soon";
    agent_ask(&world, &reply, ASK);
    reply_wait(&reply);
    EXPECT_TEXT(reply.retry_after, "5");
    buf_deinit(&reply.body);
    world_close_session(&world, 0);
    crowd_close(&crowd);
    world_end(&world);
}

/* ---------------------------------------------------------------- what goes out */

static void answer_completion(struct world *world, struct http_exchange *exchange)
{
    (void)world;
    http_respond_json(exchange, 200, STR(COMPLETION));
}

static void answer_message(struct world *world, struct http_exchange *exchange)
{
    (void)world;
    http_respond_json(exchange, 200,
                      STR("{\"id\":\"msg_1\",\"type\":\"message\",\"role\":\"assistant\","
                          "\"model\":\"m\",\"content\":[{\"type\":\"text\",\"text\":\"hi\"}],"
                          "\"stop_reason\":\"end_turn\",\"stop_sequence\":null,"
                          "\"usage\":{\"input_tokens\":3,\"output_tokens\":1}}"));
}

static void ask_with_secrets(struct world *world, struct reply *reply, const char *path,
                             const char *body)
{
    static const struct http_call_handlers handlers = {reply_on_head, reply_on_data, reply_on_done};
    struct http_header headers[] = {
        {STR("content-type"), STR("application/json")},
        {STR("authorization"), STR("Bearer secret-one")},
        {STR("x-api-key"), STR("secret-two")},
        {STR("x-goog-api-key"), STR("secret-three")},
        {STR("cookie"), STR("secret-four")},
        {STR("proxy-authorization"), STR("secret-five")},
        {STR("x-session-id"), STR("secret-six")},
        {STR("openai-beta"), STR("assistants=v2")},
        {STR("anthropic-beta"), STR("tools-2024")},
        {STR("te"), STR("trailers")},
        {STR("x-stainless-retry-count"), STR("0")},
    };
    OWN(mem) char *url = mem_format("http://127.0.0.1:%u%s", world->port, path);
    struct http_request request = {.method = "POST",
                                   .url = url,
                                   .headers = headers,
                                   .header_count = COUNT(headers),
                                   .body = str_of(body)};
    *reply = (struct reply){.world = world};
    reply->call = http_call_start(world->agent, &request, &handlers, reply);
    reply_wait(reply);
}

static bool head_has(struct world *world, const char *text)
{
    return str_find(buf_str(&world->upstream_head), str_of(text)) >= 0;
}

TEST(no_secret_of_the_agent_goes_upstream_and_each_protocol_has_its_own_carrier)
{
    setenv("TEST_KEY", "sk-real", 1);
    struct world world = {.upstream_answer = answer_completion};
    world_start(&world);
    world_model_upstream(&world, &(struct model_options){.key_env = "TEST_KEY"});
    world_open(&world, (struct gateway_session_options){0});
    struct reply reply;
    ask_with_secrets(&world, &reply, "/v1/chat/completions", ASK);
    EXPECT_INT(reply.status, 200);
    EXPECT(!head_has(&world, "secret"));
    EXPECT(!head_has(&world, "trailers"));
    EXPECT(!head_has(&world, "stainless"));
    EXPECT(head_has(&world, "authorization: Bearer sk-real\n"));
    EXPECT(head_has(&world, "x-session-id: r-test\n"));
    EXPECT(head_has(&world, "openai-beta: assistants=v2\n"));
    EXPECT(head_has(&world, "/v1/chat/completions\n"));
    buf_deinit(&reply.body);
    world.upstream_answer = answer_message;
    ask_with_secrets(&world, &reply, "/v1/messages",
                     "{\"model\":\"m\",\"max_tokens\":9,\"messages\":[{\"role\":\"user\","
                     "\"content\":\"x\"}]}");
    EXPECT_INT(reply.status, 200);
    EXPECT(!head_has(&world, "secret"));
    EXPECT(!head_has(&world, "authorization"));
    EXPECT(head_has(&world, "x-api-key: sk-real\n"));
    EXPECT(head_has(&world, "anthropic-version: 2023-06-01\n"));
    EXPECT(head_has(&world, "anthropic-beta: tools-2024\n"));
    EXPECT(head_has(&world, "/v1/messages\n"));
    buf_deinit(&reply.body);
    world_end(&world);
}

TEST(a_base_address_without_a_path_gets_the_version_and_others_do_not_get_it_twice)
{
    static const struct {
        const char *base, *target;
    } cases[] = {
        {"", "/v1/chat/completions\n"},
        {"/", "/v1/chat/completions\n"},
        {"/v1", "/v1/chat/completions\n"},
        {"/api/v1/", "/api/v1/chat/completions\n"},
        {"/v1beta/openai", "/v1beta/openai/chat/completions\n"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct world world = {.upstream_answer = answer_completion};
        world_start(&world);
        OWN(mem)
        char *spec = mem_format("http://127.0.0.1:%u%s#m", world.upstream_port, cases[i].base);
        world.model = model_open(spec, NULL, NULL);
        world_open(&world, (struct gateway_session_options){0});
        struct reply reply;
        agent_ask(&world, &reply, ASK);
        reply_wait(&reply);
        EXPECT_INT(reply.status, 200);
        EXPECT(str_starts(buf_str(&world.upstream_head), str_of(cases[i].target)));
        buf_deinit(&reply.body);
        world_end(&world);
    }
}

TEST(each_engine_is_asked_for_tokens_in_its_own_words)
{
    static const struct {
        const char *engine, *with, *without;
    } cases[] = {
        {"vllm", "\"return_token_ids\":true", "return_meta_info"},
        {"auto", "\"return_token_ids\":true", "return_meta_info"},
        {"sglang", "\"return_meta_info\":true", "return_token_ids"},
        {"openai", "\"logprobs\":true", "return_"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct world world = {.upstream_answer = answer_completion};
        world_start(&world);
        world_model_upstream(
            &world, &(struct model_options){.engine = cases[i].engine, .thinking_off = true});
        world_open(&world,
                   (struct gateway_session_options){.mode = "proxy", .sampling.tokens_max = 100});
        struct reply reply;
        agent_ask(&world, &reply,
                  "{\"model\":\"a\",\"max_tokens\":5000,\"messages\":[{\"role\":\"user\","
                  "\"content\":\"x\"}]}");
        reply_wait(&reply);
        struct str body = buf_str(&world.upstream_body);
        EXPECT(str_find(body, str_of(cases[i].with)) >= 0);
        EXPECT(str_find(body, str_of(cases[i].without)) < 0);
        EXPECT(str_find(body, STR("\"enable_thinking\":false")) >= 0);
        EXPECT(str_find(body, STR("\"max_tokens\":100")) >= 0);
        buf_deinit(&reply.body);
        world_end(&world);
    }
    struct err err = {0};
    EXPECT(!model_open("http://x/v1#m", &(struct model_options){.engine = "steam"}, &err));
    EXPECT_INT(err.kind, ERR_INPUT);
}

static void answer_sglang(struct world *world, struct http_exchange *exchange)
{
    (void)world;
    http_respond_json(exchange, 200,
                      STR("{\"id\":\"1\",\"object\":\"chat.completion\",\"created\":1,"
                          "\"model\":\"m\",\"choices\":[{\"index\":0,\"message\":{\"role\":"
                          "\"assistant\",\"content\":\"ab\"},\"finish_reason\":\"stop\","
                          "\"prompt_token_ids\":[1,2,3],\"logprobs\":{\"content\":[{\"token\":"
                          "\"a\",\"logprob\":-0.5},{\"token\":\"b\",\"logprob\":-0.25}]},"
                          "\"meta_info\":{\"output_token_logprobs\":[[-0.5,7,\"a\"],"
                          "[-0.25,8,null]]}}],\"usage\":{\"prompt_tokens\":3,"
                          "\"completion_tokens\":2,\"total_tokens\":5}}"));
}

TEST(what_sglang_says_about_tokens_is_recorded_and_hidden_and_the_stream_is_made)
{
    struct world world = {.upstream_answer = answer_sglang};
    world_start(&world);
    world_model_upstream(&world, &(struct model_options){.engine = "sglang"});
    world_open(&world, (struct gateway_session_options){.mode = "proxy"});
    struct reply reply;
    agent_ask(&world, &reply, ASK_STREAM);
    reply_wait(&reply);
    EXPECT(str_find(buf_str(&world.upstream_body), STR("\"stream\":false")) >= 0);
    EXPECT(reply_has(&reply, "data: [DONE]"));
    EXPECT(reply_has(&reply, "ab"));
    EXPECT(!reply_has(&reply, "meta_info"));
    EXPECT(!reply_has(&reply, "prompt_token_ids"));
    OWN(buf) struct buf text = {0};
    (void)file_read(world.calls_path, 1 << 20, &text, NULL);
    EXPECT(str_find(buf_str(&text), STR("[7,8]")) >= 0);
    EXPECT(str_find(buf_str(&text), STR("[1,2,3]")) >= 0);
    EXPECT(str_find(buf_str(&text), STR("-0.25")) >= 0);
    buf_deinit(&reply.body);
    world_end(&world);
}

TEST(proxies_of_the_environment_are_used_but_not_for_this_machine)
{
    struct world world = {.upstream_answer = answer_completion};
    world_start(&world);
    OWN(mem) char *proxy = mem_format("http://user:p%%40ss@127.0.0.1:%u/", world.upstream_port);
    setenv("http_proxy", proxy, 1);
    setenv("no_proxy", "other.invalid, .corp.invalid", 1);
    struct err err = {0};
    world.model = model_open("http://model.invalid/v1#m", NULL, &err);
    world_open(&world, (struct gateway_session_options){0});
    struct reply reply;
    agent_ask(&world, &reply, ASK);
    reply_wait(&reply);
    EXPECT_INT(reply.status, 200);
    EXPECT(str_starts(buf_str(&world.upstream_head),
                      STR("http://model.invalid:80/v1/chat/completions\n")));
    EXPECT(head_has(&world, "Proxy-Authorization: Basic dXNlcjpwQHNz\n"));
    buf_deinit(&reply.body);
    world_close_session(&world, 0);
    model_unref(world.model);
    world_model(&world); /* 127.0.0.1 */
    world.closed = false;
    world_open(&world, (struct gateway_session_options){0});
    agent_ask(&world, &reply, ASK);
    reply_wait(&reply);
    EXPECT(str_starts(buf_str(&world.upstream_head), STR("/v1/chat/completions\n")));
    buf_deinit(&reply.body);
    world_end(&world);
    setenv("http_proxy", "socks5://x:1", 1);
    EXPECT(!model_open("http://model.invalid/v1#m", NULL, &err));
    EXPECT_INT(err.kind, ERR_UNSUPPORTED);
    EXPECT(model_open("http://x.corp.invalid/v1#m", NULL, &err));
}

/* A proxy that cannot be used shows who would be asked through one. */
TEST(no_proxy_knows_hosts_domains_ports_addresses_and_networks)
{
    static const struct {
        const char *list, *url;
        bool excluded;
    } cases[] = {
        {"corp.invalid", "http://a.corp.invalid/v1#m", true},
        {"*.corp.invalid", "http://a.corp.invalid/v1#m", true},
        {"corp.invalid", "http://acorp.invalid/v1#m", false},
        {"a.invalid:8000", "http://a.invalid:8000/v1#m", true},
        {"a.invalid:8000", "http://a.invalid:8001/v1#m", false},
        {"10.0.0.0/8", "http://10.200.3.4/v1#m", true},
        {"10.0.0.0/8", "http://11.0.0.1/v1#m", false},
        {"192.168.4.0/22", "http://192.168.7.255:1/v1#m", true},
        {"192.168.4.0/22", "http://192.168.8.0/v1#m", false},
        {"10.0.0.0/33, 10.0.0.0/x, 10.0.0.0/", "http://10.0.0.0/v1#m", false},
        {"10.0.0.0/8", "http://10.corp.invalid/v1#m", false},
        {"fd00::/8", "http://[fd12::1]:8000/v1#m", true},
        {"fd00::/8", "http://[fe80::1]:8000/v1#m", false},
        {"[fd00::1]:8000", "http://[fd00::1]:8000/v1#m", true},
        {"[fd00::1]:8000", "http://[fd00::1]:8001/v1#m", false},
        {"fd00::1", "http://[fd00::1]/v1#m", true},
        {"0.0.0.0/0", "http://8.8.8.8/v1#m", true},
    };
    setenv("http_proxy", "socks5://x:1", 1);
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct err err = {0};
        setenv("no_proxy", cases[i].list, 1);
        OWN(model) struct model *model = model_open(cases[i].url, NULL, &err);
        if ((model != NULL) != cases[i].excluded)
            test_fail(__FILE__, __LINE__, "'%s' and %s", cases[i].list, cases[i].url);
    }
}
