/* What other gateways were seen to get wrong (reference/verifiers.md, 9.1), each shown to be right
 * here. Retries are in test_gateway_retry.c, headers and rate limits in test_gateway_upstream.c. */
#include "test_gateway.h"

#define COMPLETION                                                                                 \
    "{\"id\":\"chatcmpl-1\",\"object\":\"chat.completion\",\"created\":1,\"model\":\"m\","         \
    "\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"hi there\"},"     \
    "\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":11,\"completion_tokens\":3,"        \
    "\"total_tokens\":14}}"
#define EVENT(text) "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"" text "\"}}]}\n\n"
#define FINISH "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n"

static const struct http_header sse_type[] = {{{"content-type", 12}, {"text/event-stream", 17}}};

static void answer_completion(struct world *world, struct http_exchange *exchange)
{
    (void)world;
    http_respond_json(exchange, 200, STR(COMPLETION));
}

static void answer_later(struct world *world, struct http_exchange *exchange)
{
    world->held = exchange;
}

static void start(struct world *world, struct gateway_session_options options)
{
    world_start(world);
    world_model(world);
    world_open(world, options);
}

TEST(malformed_json_arrays_and_nonsense_are_a_400_in_the_agents_dialect)
{
    static const struct {
        const char *path, *shape;
    } routes[] = {
        {"/v1/chat/completions", "{\"error\":{"},
        {"/v1/responses", "{\"error\":{"},
        {"/v1/messages", "{\"type\":\"error\",\"error\":{"},
        {"/v1beta/models/m:generateContent", "{\"error\":{"},
    };
    static const char *const bodies[] = {
        "{\"model\":", "[1,2]", "\"text\"", "{}", "nul", "\xff\xfe", "[]", "{\"messages\":3}",
    };
    struct world world = {.upstream_answer = answer_completion};
    start(&world, (struct gateway_session_options){0});
    for (size_t r = 0; r < COUNT(routes); r++) {
        for (size_t b = 0; b < COUNT(bodies); b++) {
            struct reply reply;
            agent_ask_at(&world, &reply, routes[r].path, str_of(bodies[b]));
            reply_wait(&reply);
            EXPECT_INT(reply.status, 400);
            EXPECT(str_starts(buf_str(&reply.body), str_of(routes[r].shape)));
            EXPECT(str_starts(str_of(reply.type), STR("application/json")));
            buf_deinit(&reply.body);
        }
    }
    EXPECT_INT(world.upstream_calls, 0);
    EXPECT_INT(gateway_session_stats(world.session)->calls, 0);
    world_end(&world);
}

TEST(a_custom_tool_call_in_the_history_and_the_developer_role_are_understood_and_kept)
{
    struct world world = {.upstream_answer = answer_completion};
    start(&world, (struct gateway_session_options){0});
    static const char body[] =
        "{\"model\":\"m\",\"messages\":[{\"role\":\"developer\",\"content\":\"be brief\"},"
        "{\"role\":\"user\",\"content\":\"go\"},{\"role\":\"assistant\",\"content\":null,"
        "\"tool_calls\":[{\"id\":\"call_7\",\"type\":\"custom\",\"custom\":{\"name\":"
        "\"apply_patch\",\"input\":\"*** Begin Patch\"}}]},{\"role\":\"tool\",\"tool_call_id\":"
        "\"call_7\",\"content\":\"done\"}]}";
    struct reply reply;
    agent_ask(&world, &reply, body);
    reply_wait(&reply);
    EXPECT_INT(reply.status, 200);
    EXPECT_STR(buf_str(&world.upstream_body), STR(body));
    OWN(buf) struct buf text = {0};
    (void)file_read(world.calls_path, 1 << 20, &text, NULL);
    EXPECT(str_find(buf_str(&text), STR("\"role\":\"developer\"")) >= 0);
    EXPECT(str_find(buf_str(&text), STR("apply_patch")) >= 0);
    EXPECT(str_find(buf_str(&text), STR("*** Begin Patch")) >= 0);
    buf_deinit(&reply.body);
    world_end(&world);
}

static void answer_with_usage_if_asked(struct world *world, struct http_exchange *exchange)
{
    bool asked = str_find(buf_str(&world->upstream_body),
                          STR("\"stream_options\":{\"include_usage\":true}")) >= 0;
    http_respond_begin(exchange, 200, sse_type, 1);
    (void)http_respond_write(exchange, STR(EVENT("hello") FINISH));
    if (asked)
        (void)http_respond_write(exchange,
                                 STR("data: {\"choices\":[],\"usage\":{\"prompt_tokens\":7,"
                                     "\"completion_tokens\":2,\"total_tokens\":9}}\n\n"));
    (void)http_respond_write(exchange, STR("data: [DONE]\n\n"));
    http_respond_end(exchange);
}

TEST(usage_of_a_stream_is_known_in_proxy_mode_and_hidden_from_who_did_not_ask)
{
    struct world world = {.upstream_answer = answer_with_usage_if_asked};
    start(&world, (struct gateway_session_options){.mode = "proxy"});
    struct reply reply;
    agent_ask(&world, &reply, ASK_STREAM);
    reply_wait(&reply);
    EXPECT_INT(reply.status, 200);
    EXPECT(!reply_has(&reply, "usage"));
    EXPECT(reply_has(&reply, "hello"));
    EXPECT(reply_has(&reply, "[DONE]"));
    EXPECT_INT(gateway_session_stats(world.session)->usage.prompt_tokens, 7);
    EXPECT_INT(gateway_session_stats(world.session)->usage.completion_tokens, 2);
    buf_deinit(&reply.body);
    world_end(&world);
}

TEST(two_turns_are_two_turns_also_with_eight_calls_at_once)
{
    struct world world = {.upstream_answer = answer_completion};
    start(&world, (struct gateway_session_options){.limits.turns_max = 2});
    struct reply replies[8];
    for (int i = 0; i < 8; i++) {
        OWN(mem)
        char *body = mem_format(
            "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"%d\"}]}", i);
        agent_ask(&world, &replies[i], body);
    }
    int answered = 0;
    for (int i = 0; i < 8; i++) {
        reply_wait(&replies[i]);
        answered += replies[i].status == 200;
        EXPECT(replies[i].status == 200 || replies[i].status == 429 || replies[i].status == 400);
        buf_deinit(&replies[i].body);
    }
    EXPECT_INT(answered, 2);
    EXPECT_INT(world.upstream_calls, 2);
    EXPECT_INT(gateway_session_stats(world.session)->turns, 2);
    world_end(&world);
}

static void refuse_the_first(struct world *world, struct http_exchange *exchange)
{
    if (world->upstream_calls == 1)
        http_respond_json(exchange, 401, STR("{\"error\":{\"message\":\"not this key\"}}"));
    else
        http_respond_json(exchange, 200, STR(COMPLETION));
}

/* What ended it is told, not what went wrong long before and was got over. */
TEST(a_rollout_ends_for_its_last_reason_and_remembers_its_first_error)
{
    struct world world = {.upstream_answer = refuse_the_first};
    start(&world, (struct gateway_session_options){.limits.turns_max = 1});
    static const int expected[] = {401, 200, 400};
    for (size_t i = 0; i < COUNT(expected); i++) {
        OWN(mem)
        char *body = mem_format(
            "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"%zu\"}]}", i);
        struct reply reply;
        agent_ask(&world, &reply, body);
        reply_wait(&reply);
        EXPECT_INT(reply.status, expected[i]);
        buf_deinit(&reply.body);
    }
    const struct gateway_stats *stats = gateway_session_stats(world.session);
    EXPECT_INT(stats->cause, GATEWAY_LIMIT);
    EXPECT_TEXT(stats->why.text, "this rollout's limit of 1 turns is reached");
    EXPECT(str_find(str_of(stats->error.text), STR("the model server answered")) >= 0);
    world_end(&world);
}

/* The model server has not even sent its head. */
TEST(bytes_reach_the_agent_before_the_model_server_says_anything)
{
    struct world world = {.upstream_answer = answer_later};
    start(&world, (struct gateway_session_options){.headers_after_ms = 1, .keepalive_ms = 1});
    struct reply reply;
    agent_ask(&world, &reply, ASK_STREAM);
    PUMP_UNTIL(&world, world.held && reply.body.size > 0);
    EXPECT_INT(reply.status, 200);
    EXPECT(str_starts(str_of(reply.type), STR("text/event-stream")));
    world.upstream_body.size = 0;
    answer_with_usage_if_asked(&world, world.held);
    reply_wait(&reply);
    EXPECT_INT(reply.err.kind, ERR_NONE);
    EXPECT(reply_has(&reply, "hello"));
    buf_deinit(&reply.body);
    world_end(&world);
}

/* It is reset, retried by the agent and answered: one call, no invented text. */
TEST(a_failure_after_a_sign_of_life_is_a_reset_and_its_retry_one_call_with_it)
{
    struct world world = {.upstream_answer = answer_later};
    world_start(&world);
    world_model_upstream(&world, &(struct model_options){.attempts_max = 1});
    world_open(&world, (struct gateway_session_options){.headers_after_ms = 1, .keepalive_ms = 1});
    struct reply reply;
    agent_ask(&world, &reply, ASK_STREAM);
    PUMP_UNTIL(&world, world.held && reply.body.size > 0);
    http_respond_json(world.held, 503, STR("{\"error\":{\"message\":\"down\"}}"));
    reply_wait(&reply);
    EXPECT(reply.err.kind != ERR_NONE);
    EXPECT(!reply_has(&reply, "[DONE]"));
    buf_deinit(&reply.body);
    world.upstream_answer = answer_with_usage_if_asked;
    agent_ask(&world, &reply, ASK_STREAM);
    reply_wait(&reply);
    EXPECT_INT(reply.err.kind, ERR_NONE);
    EXPECT(reply_has(&reply, "[DONE]"));
    EXPECT_INT(gateway_session_stats(world.session)->calls, 1);
    EXPECT_INT(gateway_session_stats(world.session)->turns, 1);
    buf_deinit(&reply.body);
    world_end(&world);
}
