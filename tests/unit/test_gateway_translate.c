/* Agents of every dialect against a model server that speaks only chat completions, and against a
 * script. */
#include "test_gateway.h"
#include "test_gateway_spoken.h"

static const struct http_header sse_type[] = {{{"content-type", 12}, {"text/event-stream", 17}}};

#define TOOLS_ANSWER                                                                               \
    "{\"id\":\"chatcmpl-1\",\"object\":\"chat.completion\",\"created\":1,\"model\":\"m\","         \
    "\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"reasoning_content\":\"hm\","  \
    "\"content\":\"let me "                                                                        \
    "see\",\"tool_calls\":[{\"id\":\"t1\",\"type\":\"function\",\"function\":"                     \
    "{\"name\":\"look\",\"arguments\":\"{\\\"at\\\":1}\"}}]},\"finish_reason\":\"stop\"}],"        \
    "\"usage\":{\"prompt_tokens\":11,\"completion_tokens\":3,\"total_tokens\":14}}"
#define EVENT(delta) "data: {\"choices\":[{\"index\":0,\"delta\":{" delta "}}]}\n\n"

static void answer_tools(struct world *world, struct http_exchange *exchange)
{
    (void)world;
    http_respond_json(exchange, 200, STR(TOOLS_ANSWER));
}

static void answer_later(struct world *world, struct http_exchange *exchange)
{
    world->held = exchange;
}

static void answer_400(struct world *world, struct http_exchange *exchange)
{
    (void)world;
    http_respond_json(exchange, 400,
                      STR("{\"error\":{\"message\":\"prompt is too "
                          "long\",\"code\":\"context_length_exceeded\"}}"));
}

static void world_chat_only(struct world *world)
{
    world_start(world);
    world_model_upstream(
        world, &(struct model_options){.attempts_max = 3, .retry_ms_max = 2, .api = "chat"});
}

TEST(every_dialect_reaches_a_chat_only_model_server)
{
    struct world world = {.upstream_answer = answer_tools};
    world_chat_only(&world);
    world_open(&world, (struct gateway_session_options){.mode = "proxy"});
    for (size_t i = 0; i < COUNT(spoken); i++) {
        struct reply reply;
        agent_ask_at(&world, &reply, spoken[i].path, str_of(spoken[i].body));
        reply_wait(&reply);
        EXPECT_INT(reply.status, 200);
        EXPECT(reply_has(&reply, "let me see"));
        EXPECT(strcmp(spoken[i].dialect, "completions") == 0 || reply_has(&reply, "\"look\""));
        EXPECT(strcmp(spoken[i].dialect, "messages") != 0 ||
               reply_has(&reply, "\"stop_reason\":\"tool_use\"")); /* the engine said "stop" */
        EXPECT(str_starts(buf_str(&world.upstream_head), STR("/v1/chat/completions\n")));
        OWN(json_doc) struct json_doc doc = {0};
        EXPECT_INT(json_read(&doc, buf_str(&world.upstream_body), NULL, NULL), 0);
        struct json root = json_root(&doc);
        EXPECT(json_is(json_get(root, "model"), "real-name"));
        size_t last = json_size(json_get(root, "messages")) - 1;
        EXPECT(json_is(json_get(json_at(json_get(root, "messages"), last), "content"), "hello"));
        buf_deinit(&reply.body);
    }
    EXPECT_INT(gateway_session_stats(world.session)->turns, COUNT(spoken) - 1);
    world_end(&world);
}

/* Servers refuse members they do not know: what failed says so in its own words. */
TEST(that_a_tool_failed_is_no_member_of_chat_completions)
{
    struct world world = {.upstream_answer = answer_tools};
    world_chat_only(&world);
    world_open(&world, (struct gateway_session_options){.mode = "proxy"});
    struct reply reply;
    agent_ask_at(
        &world, &reply, "/v1/messages",
        STR("{\"model\":\"m\",\"max_tokens\":5,\"messages\":[{\"role\":\"assistant\",\"content\":[{"
            "\"type\":\"tool_use\",\"id\":\"t\",\"name\":\"f\",\"input\":{}}]},{\"role\":\"user\","
            "\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":\"t\",\"is_error\":true,"
            "\"content\":\"exit code 1\"}]}]}"));
    reply_wait(&reply);
    EXPECT_INT(reply.status, 200);
    EXPECT(str_find(buf_str(&world.upstream_body),
                    STR("{\"role\":\"tool\",\"tool_call_id\":\"t\",\"content\":\"exit code 1\"}")) >
           0);
    OWN(buf) struct buf text = {0};
    (void)file_read(world.calls_path, 1 << 20, &text, NULL);
    EXPECT(str_find(buf_str(&text), STR("\"tool_call_id\":\"t\",\"is_error\":true")) > 0);
    buf_deinit(&reply.body);
    world_end(&world);
}

/* Each piece reaches the agent before the next one is sent, and the end only after the commit. */
TEST(every_dialect_streams_live_from_a_chat_only_model_server)
{
    for (size_t i = 0; i < COUNT(spoken); i++) {
        struct world world = {.upstream_answer = answer_later};
        world_chat_only(&world);
        world_open(&world, (struct gateway_session_options){0});
        struct reply reply;
        agent_ask_at(&world, &reply, spoken[i].stream_path, str_of(spoken[i].stream_body));
        PUMP_UNTIL(&world, world.held);
        EXPECT(str_find(buf_str(&world.upstream_body), STR("\"stream\":true")) > 0);
        http_respond_begin(world.held, 200, sse_type, 1);
        (void)http_respond_write(world.held, STR(EVENT("\"content\":\"first\"")));
        PUMP_UNTIL(&world, reply_has(&reply, "first"));
        (void)http_respond_write(world.held, STR(EVENT("\"content\":\"second\"")));
        PUMP_UNTIL(&world, reply_has(&reply, "second"));
        (void)http_respond_write(
            world.held,
            STR(EVENT("\"tool_calls\":[{\"index\":0,\"id\":\"t1\",\"function\":{\"name\":"
                      "\"look\",\"arguments\":\"\"}}]")
                    EVENT("\"tool_calls\":[{\"index\":0,\"function\":{\"arguments\":\"{}\"}}]")));
        EXPECT_INT(world.done, 0);
        EXPECT(!reply_has(&reply, spoken[i].finish));
        (void)http_respond_write(
            world.held, STR("data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":"
                            "\"tool_calls\"}]}\n\ndata: [DONE]\n\n"));
        http_respond_end(world.held);
        reply_wait(&reply);
        EXPECT_INT(reply.err.kind, ERR_NONE);
        EXPECT(reply_has(&reply, spoken[i].finish));
        EXPECT_INT(world.done, 1);
        buf_deinit(&reply.body);
        world_end(&world);
    }
}

TEST(a_truncated_stream_is_a_reset_in_every_dialect)
{
    for (size_t i = 0; i < COUNT(spoken); i++) {
        struct world world = {.upstream_answer = answer_later};
        world_chat_only(&world);
        world_open(&world, (struct gateway_session_options){.retry_grace_ms = 1});
        struct reply reply;
        agent_ask_at(&world, &reply, spoken[i].stream_path, str_of(spoken[i].stream_body));
        PUMP_UNTIL(&world, world.held);
        http_respond_begin(world.held, 200, sse_type, 1);
        (void)http_respond_write(world.held, STR(EVENT("\"content\":\"first\"")));
        PUMP_UNTIL(&world, reply_has(&reply, "first"));
        http_respond_end(world.held);
        reply_wait(&reply);
        EXPECT(reply.err.kind != ERR_NONE);
        EXPECT(!reply_has(&reply, spoken[i].finish));
        PUMP_UNTIL(&world, gateway_session_stats(world.session)->broken == 1);
        buf_deinit(&reply.body);
        world_end(&world);
    }
}

TEST(errors_of_a_chat_only_model_server_reach_every_dialect)
{
    struct world world = {.upstream_answer = answer_400};
    world_chat_only(&world);
    world_open(&world, (struct gateway_session_options){0});
    for (size_t i = 0; i < COUNT(spoken); i++) {
        struct reply reply;
        agent_ask_at(&world, &reply, spoken[i].stream_path, str_of(spoken[i].stream_body));
        reply_wait(&reply);
        EXPECT_INT(reply.status, 400);
        EXPECT(reply_has(&reply, "prompt is too long"));
        EXPECT(reply_has(&reply, "context_length_exceeded") ==
               (strcmp(spoken[i].dialect, "messages") && strcmp(spoken[i].dialect, "google")));
        EXPECT(reply_has(&reply, spoken[i].no_text));
        buf_deinit(&reply.body);
    }
    world_end(&world);
}

TEST(what_cannot_be_translated_is_refused_with_the_reason)
{
    struct world world = {.upstream_answer = answer_tools};
    world_start(&world);
    world_model_upstream(&world, &(struct model_options){.api = "google"});
    world_open(&world, (struct gateway_session_options){0});
    struct reply reply;
    agent_ask(&world, &reply, ASK);
    reply_wait(&reply);
    EXPECT_INT(reply.status, 400);
    EXPECT(reply_has(&reply, "speaks google"));
    EXPECT_INT(world.upstream_calls, 0);
    buf_deinit(&reply.body);
    world_end(&world);
    struct err err = {0};
    EXPECT(!model_open("http://127.0.0.1:1/v1#m", &(struct model_options){.api = "telex"}, &err));
    EXPECT_INT(err.kind, ERR_INPUT);
}

TEST(a_script_answers_every_dialect_streamed_and_whole)
{
    struct world world = {0};
    struct err err = {0};
    world_start(&world);
    EXPECT_INT(world_model_script(&world,
                                  "[defaults]\ntokens = 'generate'\n"
                                  "[[rule]]\nsay = 'from the script'\nchunk = 4\n",
                                  &err),
               0);
    world_open(&world, (struct gateway_session_options){.mode = "proxy"});
    for (size_t i = 0; i < COUNT(spoken); i++) {
        struct reply reply;
        agent_ask_at(&world, &reply, spoken[i].path, str_of(spoken[i].body));
        reply_wait(&reply);
        EXPECT_INT(reply.status, 200);
        EXPECT(reply_has(&reply, "from the script"));
        buf_deinit(&reply.body);
        agent_ask_at(&world, &reply, spoken[i].stream_path, str_of(spoken[i].stream_body));
        reply_wait(&reply);
        EXPECT_INT(reply.status, 200);
        EXPECT_INT(reply.err.kind, ERR_NONE);
        EXPECT(reply_has(&reply, "from"));
        EXPECT(strcmp(reply.type, "text/event-stream; charset=utf-8") == 0);
        buf_deinit(&reply.body);
    }
    EXPECT_INT(gateway_session_stats(world.session)->answered, 2 * COUNT(spoken));
    world_end(&world);
}
