/* Tools that the trainer runs, called through the inlet. */
#include "test_gateway.h"

#include "gateway/gate.h"

#define TOOLS                                                                                      \
    "[{\"type\":\"function\",\"function\":{\"name\":\"look_up\",\"description\":\"finds\","        \
    "\"parameters\":{\"type\":\"object\"}}},{\"name\":\"flat\"}]"

struct trainer {
    struct world *world;
    struct gate *gate;
    bool came;
    char call_id[64];
    struct buf object;
};

static void tools_world(struct trainer *trainer, struct world *world)
{
    struct err err = {0};
    world_start(world);
    gateway_free(world->gateway);
    trainer->world = world;
    trainer->gate = gate_new(world->loop, NULL);
    struct gateway_options gateway = {.store = world->store, .gate = trainer->gate};
    world->gateway = gateway_new(world->loop, &gateway, &err);
    world->model = model_open("gate:", NULL, &err);
    world_open(world, (struct gateway_session_options){.mode = "gate", .tools = STR(TOOLS)});
}

static void tools_world_end(struct trainer *trainer)
{
    world_close_session(trainer->world, 0);
    for (int i = 0; i < 3; i++)
        loop_once(trainer->world->loop, 0);
    gate_free(trainer->gate);
    world_end(trainer->world);
    buf_deinit(&trainer->object);
}

static void on_calls(void *context, struct gate_work *const *calls, size_t count)
{
    struct trainer *trainer = context;
    trainer->came = true;
    if (!count)
        return;
    struct json_writer out = {.out = &trainer->object};
    buf_clear(&trainer->object);
    gate_work_write(calls[0], true, &out);
    snprintf(trainer->call_id, sizeof trainer->call_id, "%s", gate_work_call_id(calls[0]));
}

static void take(struct trainer *trainer)
{
    trainer->came = false;
    struct gate_take take = {.wait_ms = 60000};
    EXPECT(gate_take(trainer->gate, &take, on_calls, trainer, NULL));
    PUMP_UNTIL(trainer->world, trainer->came);
}

TEST(a_tool_call_waits_for_the_trainer_and_gets_its_result)
{
    static const struct {
        const char *path, *body, *answer, *expected;
    } rows[] = {
        {"/v1/tools/look_up", "{\"q\":1}", "{\"result\":{\"found\":2}}", "{\"found\":2}"},
        {"/v1/tools/flat", "{\"q\":1}", "{\"result\":7}", "{\"result\":7}"},
        {"/vf/tools/look_up", "{\"arguments\":{\"q\":1}}", "{\"result\":{\"found\":2}}",
         "{\"result\":{\"found\":2}}"},
        {"/rollout/r-test/vf/tools/look_up", "{\"arguments\":{\"q\":1}}", "{\"result\":null}",
         "{\"result\":null}"},
        {"/rollout/r-test/v1/tools/look_up", "{\"q\":1}", "{\"result\":\"x\"}",
         "{\"result\":\"x\"}"},
    };
    struct world world = {0};
    struct trainer trainer = {0};
    tools_world(&trainer, &world);
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct reply reply;
        struct err err = {0};
        agent_ask_at(&world, &reply, rows[i].path, str_of(rows[i].body));
        take(&trainer);
        EXPECT(str_find(buf_str(&trainer.object), STR("\"kind\":\"tool\"")) > 0);
        EXPECT(str_find(buf_str(&trainer.object), STR("\"arguments\":{\"q\":1}")) > 0);
        EXPECT(!gate_stream_open(trainer.gate, trainer.call_id, NULL, NULL, NULL, NULL, &err));
        EXPECT_INT(err.kind, ERR_CONFLICT);
        EXPECT_INT(gate_answer(trainer.gate, trainer.call_id, NULL, STR("{}"), &err), -1);
        EXPECT_INT(err.kind, ERR_INPUT);
        EXPECT_INT(gate_answer(trainer.gate, trainer.call_id, NULL, str_of(rows[i].answer), &err),
                   0);
        reply_wait(&reply);
        EXPECT_INT(reply.status, 200);
        EXPECT_STR(buf_str(&reply.body), str_of(rows[i].expected));
        buf_deinit(&reply.body);
    }
    tools_world_end(&trainer);
}

TEST(only_the_tools_of_the_rollout_can_be_called)
{
    static const struct {
        const char *path, *body;
        int status;
    } rows[] = {
        {"/v1/tools/reset", "{}", 404},
        {"/v1/tools/other", "{}", 404},
        {"/v1/tools/look_up/more", "{}", 404},
        {"/rollout/r-other/v1/tools/look_up", "{}", 404},
        {"/rollout/r-other/v1/chat/completions", ASK, 404},
        {"/rollout/r-test", "{}", 404},
        {"/v1/tools/look_up", "[]", 400},
        {"/v1/tools/look_up", "{", 400},
        {"/vf/tools/look_up", "{\"arguments\":3}", 400},
        {"/v1/tools/look_up", NULL, 405},
        {"/v1/gate/take", "{}", 404},
        {"/v1/gate", NULL, 404},
        {"/v1/policy", "{}", 404},
        {"/v1/rollouts", NULL, 404},
        {"/metrics", NULL, 404},
        {"/health", NULL, 404},
        {"/reset", "{}", 404},
        {"/step", "{}", 404},
        {"/state", NULL, 404},
    };
    struct world world = {0};
    struct trainer trainer = {0};
    tools_world(&trainer, &world);
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct reply reply;
        agent_ask_at(&world, &reply, rows[i].path, str_of(rows[i].body));
        reply_wait(&reply);
        EXPECT_INT(reply.status, rows[i].status);
        buf_deinit(&reply.body);
    }
    struct gate_counts counts;
    gate_counts(trainer.gate, &counts);
    EXPECT_INT(counts.held, 0);
    tools_world_end(&trainer);
}

TEST(definitions_are_listed_in_the_shape_that_is_asked_for)
{
    static const struct {
        const char *path, *word;
        int status;
    } rows[] = {
        {"/v1/tools", "{\"type\":\"function\",\"function\":{\"name\":\"look_up\"", 200},
        {"/vf/tools?protocol=openai_responses", "{\"type\":\"function\",\"name\":\"look_up\"", 200},
        {"/vf/tools?protocol=anthropic_messages", "\"input_schema\":{\"type\":\"object\"}", 200},
        {"/vf/tools?protocol=vf", "{\"name\":\"look_up\",\"description\":\"finds\"", 200},
        {"/vf/tools?protocol=telex", "openai_responses, anthropic_messages or vf", 400},
    };
    struct world world = {0};
    struct trainer trainer = {0};
    struct reply reply;
    tools_world(&trainer, &world);
    for (size_t i = 0; i < COUNT(rows); i++) {
        agent_ask_at(&world, &reply, rows[i].path, STR_NONE);
        reply_wait(&reply);
        EXPECT_INT(reply.status, rows[i].status);
        EXPECT(reply_has(&reply, rows[i].word));
        buf_deinit(&reply.body);
    }
    agent_ask_at(&world, &reply, "/vf/stop", STR("{}"));
    reply_wait(&reply);
    EXPECT(reply_has(&reply, "\"done\":false"));
    buf_deinit(&reply.body);
    agent_ask_at(&world, &reply, "/vf/user", STR("{\"transcript\":[]}"));
    reply_wait(&reply);
    EXPECT(reply_has(&reply, "\"messages\":[]"));
    buf_deinit(&reply.body);
    tools_world_end(&trainer);
}

static void ask_handler(struct trainer *trainer, const char *path, const char *body,
                        const char *kind, const char *wrong, const char *answer)
{
    struct reply reply;
    struct err err = {0};
    agent_ask_at(trainer->world, &reply, path, str_of(body));
    take(trainer);
    EXPECT(str_find(buf_str(&trainer->object), str_of(kind)) > 0);
    EXPECT(str_find(buf_str(&trainer->object), str_of(body)) > 0);
    EXPECT_INT(gate_answer(trainer->gate, trainer->call_id, NULL, str_of(wrong), &err), -1);
    EXPECT_INT(err.kind, ERR_INPUT);
    EXPECT_INT(gate_answer(trainer->gate, trainer->call_id, NULL, str_of(answer), &err), 0);
    reply_wait(&reply);
    EXPECT_STR(buf_str(&reply.body), str_of(answer));
    buf_deinit(&reply.body);
}

TEST(a_user_and_a_stop_check_may_be_the_trainers)
{
    struct world world = {0};
    struct trainer trainer = {0};
    struct reply reply;
    struct err err = {0};
    tools_world(&trainer, &world);
    world_close_session(&world, 0);
    world.closed = false;
    world_open(&world,
               (struct gateway_session_options){
                   .mode = "gate", .tools = STR("[{\"type\":\"user\"},{\"type\":\"stop\"}]")});
    EXPECT_INT(gateway_tools_check(STR("[{\"type\":\"user\"}]"), &err), 0);
    ask_handler(&trainer, "/vf/user", "{\"transcript\":[]}", "\"kind\":\"user\"",
                "{\"messages\":1}", "{\"messages\":[{\"role\":\"user\"}]}");
    ask_handler(&trainer, "/rollout/r-test/vf/stop", "{}", "\"kind\":\"stop\"", "{}",
                "{\"done\":true,\"stop_condition\":\"enough\"}");
    agent_ask_at(&world, &reply, "/vf/tools", STR_NONE);
    reply_wait(&reply);
    EXPECT_STR(buf_str(&reply.body), STR("{\"tools\":[]}"));
    buf_deinit(&reply.body);
    tools_world_end(&trainer);
}

TEST(a_failed_tool_and_an_agent_that_leaves)
{
    struct world world = {0};
    struct trainer trainer = {0};
    struct reply reply;
    struct err err = {0};
    tools_world(&trainer, &world);
    agent_ask_at(&world, &reply, "/v1/tools/flat", STR("{}"));
    take(&trainer);
    OWN(buf) struct buf text = {0};
    buf_format(&text, "it broke %01000d", 7);
    EXPECT_INT(gate_fail(trainer.gate, trainer.call_id, NULL, 500, STR_NONE, buf_str(&text), &err),
               0);
    reply_wait(&reply);
    EXPECT_INT(reply.status, 500);
    EXPECT(reply_has(&reply, buf_text(&text)));
    buf_deinit(&reply.body);
    agent_ask_at(&world, &reply, "/v1/tools/flat", STR("{}"));
    take(&trainer);
    http_call_close(reply.call);
    struct gate_counts counts = {0};
    PUMP_UNTIL(&world, (gate_counts(trainer.gate, &counts), counts.withdrawn == 1));
    tools_world_end(&trainer);
}

TEST(names_that_steer_an_environment_are_refused)
{
    static const struct {
        const char *tools, *word;
    } wrong[] = {
        {"[{\"name\":\"reset\"}]", "reserved"},
        {"[{\"name\":\"Step\"}]", "reserved"},
        {"[{\"name\":\"state\"}]", "reserved"},
        {"[{\"name\":\"close\"}]", "reserved"},
        {"[{\"name\":\"a b\"}]", "letters"},
        {"[{\"name\":\"\"}]", "characters"},
        {"[{\"name\":\"a\"},{\"name\":\"a\"}]", "twice"},
        {"[{}]", "name"},
        {"{}", "array"},
        {"[", ""},
        {"[{\"name\":\"a\",\"parameters\":3}]", "parameters"},
    };
    struct world world = {0};
    world_start(&world);
    world_model(&world);
    for (size_t i = 0; i < COUNT(wrong); i++) {
        struct err err = {0};
        struct gateway_session_options options = {
            .rollout_id = "r-test", .model = world.model, .tools = str_of(wrong[i].tools)};
        EXPECT(!gateway_open(world.gateway, &options, &err));
        EXPECT_INT(err.kind, ERR_INPUT);
        EXPECT(strstr(err.text, wrong[i].word));
    }
    world_end(&world);
}
