/* Answers in one piece that take long, those that no trainer gives, and those that a program asks
 * for without knowing a model. */
#include "test_gateway.h"

#include "gateway/gate.h"
#include "gateway/inner.h"

#define ANSWER                                                                                     \
    "{\"id\":\"x\",\"model\":\"m\",\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\"," \
    "\"content\":\"fine\"},\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":1,"           \
    "\"completion_tokens\":1}}"

static void hold_it(struct world *world, struct http_exchange *exchange)
{
    world->held = exchange;
}

static void answer_it(struct world *world, struct http_exchange *exchange)
{
    (void)world;
    http_respond_json(exchange, 200, STR(ANSWER));
}

static void open_world(struct world *world, void (*answer)(struct world *, struct http_exchange *))
{
    world->upstream_answer = answer;
    world_start(world);
    world_model_upstream(world, &(struct model_options){.attempts_max = 1});
    world_open(world, (struct gateway_session_options){
                          .unary_after_ms = 30, .keepalive_ms = 20, .retry_grace_ms = 60000});
}

static bool is_blank(struct str text)
{
    return str_trim(text).size == 0;
}

TEST(an_answer_in_one_piece_that_takes_long_gives_signs_of_life)
{
    struct world world = {0};
    struct reply reply;
    open_world(&world, hold_it);
    agent_ask(&world, &reply, ASK);
    PUMP_UNTIL(&world, reply.body.size >= 3 && world.held);
    EXPECT_INT(reply.status, 200);
    EXPECT(!strncmp(reply.type, "application/json", 16));
    EXPECT(is_blank(buf_str(&reply.body)));
    EXPECT(!reply.done);
    http_respond_json(world.held, 200, STR(ANSWER));
    reply_wait(&reply);
    EXPECT_INT(reply.err.kind, ERR_NONE);
    EXPECT_STR(str_trim(buf_str(&reply.body)), STR(ANSWER));
    EXPECT_INT(world.done, 1);
    buf_deinit(&reply.body);
    world_end(&world);
}

/* Breaks the first attempt after a sign of life; the agent asks again. */
static void fail_and_ask_again(int status, struct reply *again, struct world *world)
{
    struct reply first;
    open_world(world, hold_it);
    agent_ask(world, &first, ASK);
    PUMP_UNTIL(world, first.body.size >= 1 && world->held);
    world->upstream_answer = answer_it;
    http_respond_json(world->held, status, STR("{\"error\":{\"message\":\"no\"}}"));
    reply_wait(&first);
    EXPECT_INT(first.err.kind, ERR_LOST);
    EXPECT(is_blank(buf_str(&first.body)));
    buf_deinit(&first.body);
    world->session->unary_after_ms = 60000; /* a slow disk is no reason for another sign of life */
    agent_ask(world, again, ASK);
    reply_wait(again);
    EXPECT_INT(world->begun, 1);
}

TEST(what_fails_after_a_sign_of_life_is_reset_and_the_retry_is_the_same_call)
{
    struct world world = {0};
    struct reply again;
    fail_and_ask_again(500, &again, &world);
    EXPECT_INT(again.status, 200);
    EXPECT_STR(str_trim(buf_str(&again.body)), STR(ANSWER));
    EXPECT_INT(world.done, 1);
    buf_deinit(&again.body);
    world_end(&world);
}

TEST(what_is_refused_after_a_sign_of_life_is_said_to_the_retry)
{
    struct world world = {0};
    struct reply again;
    fail_and_ask_again(400, &again, &world);
    EXPECT_INT(again.status, 400);
    EXPECT(reply_has(&again, "no"));
    EXPECT_INT(world.upstream_calls, 1);
    buf_deinit(&again.body);
    world_end(&world);
}

TEST(a_quick_answer_keeps_its_status)
{
    struct world world = {0};
    struct reply reply;
    open_world(&world, answer_it);
    agent_ask(&world, &reply, "{\"model\":\"m\"}");
    reply_wait(&reply);
    EXPECT_INT(reply.status, 400);
    buf_deinit(&reply.body);
    agent_ask(&world, &reply, ASK);
    reply_wait(&reply);
    EXPECT_STR(str_trim(buf_str(&reply.body)), STR(ANSWER));
    buf_deinit(&reply.body);
    world_end(&world);
}

/* ---------------------------------------------------------------- /vf/model */

static void ask_vf(struct world *world, struct reply *reply, const char *path, const char *body)
{
    agent_ask_at(world, reply, path, body ? str_of(body) : STR_NONE);
    reply_wait(reply);
}

TEST(a_program_gets_a_message_without_knowing_a_model)
{
    struct world world = {0};
    struct reply reply;
    open_world(&world, answer_it);
    static const char *const paths[] = {"/vf/model", "/rollout/r-test/vf/model"};
    for (size_t i = 0; i < COUNT(paths); i++) {
        ask_vf(&world, &reply, paths[i],
               "{\"messages\":[{\"role\":\"user\",\"content\":\"hello\"}],\"stream\":true,"
               "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"look\"}}]}");
        EXPECT_INT(reply.status, 200);
        EXPECT_STR(str_trim(buf_str(&reply.body)),
                   STR("{\"message\":{\"role\":\"assistant\",\"content\":\"fine\"}}"));
        EXPECT(str_find(buf_str(&world.upstream_body), STR("\"model\":\"real-name\"")) > 0);
        EXPECT(str_find(buf_str(&world.upstream_body), STR("\"name\":\"look\"")) > 0);
        EXPECT(str_find(buf_str(&world.upstream_body), STR("stream")) < 0);
        buf_deinit(&reply.body);
    }
    /* It is a call like any other. */
    EXPECT_INT(world.done, 2);
    OWN(buf) struct buf lines = {0};
    (void)file_read(world.calls_path, 1 << 20, &lines, NULL);
    EXPECT(str_find(buf_str(&lines), STR("\"content\":\"fine\"")) > 0 ||
           str_find(buf_str(&lines), STR("fine")) > 0);
    world_end(&world);
}

TEST(what_is_no_request_for_a_message_is_refused)
{
    struct world world = {0};
    struct reply reply;
    open_world(&world, answer_it);
    static const struct {
        const char *path, *body;
        int status;
    } wrong[] = {{"/vf/model", NULL, 405},  {"/vf/model", "[]", 400},
                 {"/vf/model", "{", 400},   {"/vf/model", "{\"messages\":7}", 400},
                 {"/vf/models", "{}", 404}, {"/rollout/r-other/vf/model", "{}", 404}};
    for (size_t i = 0; i < COUNT(wrong); i++) {
        ask_vf(&world, &reply, wrong[i].path, wrong[i].body);
        EXPECT_INT(reply.status, wrong[i].status);
        buf_deinit(&reply.body);
    }
    EXPECT_INT(world.upstream_calls, 0);
    world_end(&world);
}

/* A 503 of our own, as others are: it says when to come again, and that nobody answered. */
TEST(a_call_that_no_trainer_answers_in_time_is_told_to_come_again)
{
    struct world world = {0};
    struct err err = {0};
    world_start(&world);
    gateway_free(world.gateway);
    struct gate *gate = gate_new(world.loop, NULL);
    struct gateway_options options = {.store = world.store, .gate = gate};
    world.gateway = gateway_new(world.loop, &options, &err);
    world.model = model_open("gate:", NULL, &err);
    world_open(&world, (struct gateway_session_options){.mode = "gate", .held_ms_max = 30});
    struct reply reply;
    agent_ask(&world, &reply, ASK_STREAM);
    reply_wait(&reply);
    EXPECT_INT(reply.status, 503);
    EXPECT_TEXT(reply.retry_after, "5");
    EXPECT(reply_has(&reply, "gate_timeout"));
    EXPECT_TEXT(gateway_session_stats(world.session)->why.text,
                "the trainer did not answer this call in time");
    buf_deinit(&reply.body);
    world_close_session(&world, 0);
    for (int i = 0; i < 3; i++)
        loop_once(world.loop, 0);
    gate_free(gate);
    world_end(&world);
}
