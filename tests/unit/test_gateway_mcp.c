/* A rollout's tools as an MCP server on its inlet: JSON-RPC by the book, sessions, versions,
 * batches, streams with signs of life, cancellation; answered by the trainer or by the owner's
 * program. */
#include "test_gateway.h"

#include "gateway/gate.h"

#define TOOLS                                                                                      \
    "[{\"type\":\"function\",\"function\":{\"name\":\"look_up\",\"description\":\"finds\","        \
    "\"parameters\":{\"properties\":{\"q\":{}}}}},"                                                \
    "{\"name\":\"flat\",\"title\":\"Flat\",\"annotations\":{\"readOnlyHint\":true}},"              \
    "{\"name\":\"own\",\"answered_by\":\"task\"},{\"type\":\"user\"}]"

struct scene {
    struct world world;
    struct gate *gate;
    bool came;
    char call_id[64], session[80];
    struct buf object, arguments, note;
    struct gateway_tool *tool; /* the owner's; NULL: none waits */
    int tools_closed;
};

static void on_tool(void *context, struct gateway_tool *tool, const char *name,
                    struct str arguments)
{
    struct scene *scene = context;
    EXPECT_STR(str_of(name), STR("own"));
    scene->tool = tool;
    buf_clear(&scene->arguments);
    buf_str_append(&scene->arguments, arguments);
}

static void on_tool_closed(void *context, struct gateway_tool *tool)
{
    struct scene *scene = context;
    if (scene->tool == tool)
        scene->tool = NULL;
    scene->tools_closed++;
}

static void on_tool_note(void *context, const struct gateway_tool_note *note)
{
    struct scene *scene = context;
    buf_format(&scene->note, "%s by %s: %.*s -> %.*s%s;", note->name, note->by,
               STR_ARGS(note->arguments), STR_ARGS(note->result),
               note->failure ? note->failure : "");
}

static void scene_start(struct scene *scene, uint32_t in_flight_max)
{
    struct world *world = &scene->world;
    struct err err = {0};
    world_start(world);
    gateway_free(world->gateway);
    scene->gate = gate_new(world->loop, NULL);
    struct gateway_options gateway = {.store = world->store, .gate = scene->gate};
    world->gateway = gateway_new(world->loop, &gateway, &err);
    world->model = model_open("gate:", NULL, &err);
    struct gateway_session_options options = {
        .rollout_id = "r-test",
        .mode = "gate",
        .model = world->model,
        .tools = STR(TOOLS),
        .keepalive_ms = 10,
        .limits = {.in_flight_max = in_flight_max},
        .on_tool = on_tool,
        .on_tool_closed = on_tool_closed,
        .on_tool_note = on_tool_note,
        .context = scene,
    };
    world->session = gateway_open(world->gateway, &options, &err);
    EXPECT(world->session);
    EXPECT_INT(gateway_session_listen(world->session, world_listener(&world->port), &err), 0);
}

static void scene_end(struct scene *scene)
{
    world_close_session(&scene->world, 0);
    for (int i = 0; i < 3; i++)
        loop_once(scene->world.loop, 0);
    gate_free(scene->gate);
    world_end(&scene->world);
    buf_deinit(&scene->object);
    buf_deinit(&scene->arguments);
    buf_deinit(&scene->note);
}

/* --- the client --- */

static void on_head(void *context, const struct http_answer_head *head)
{
    struct reply *reply = context;
    reply_on_head(context, head);
    struct str id = http_answer_header(head, "mcp-session-id");
    struct scene *scene = (struct scene *)((char *)reply->world - offsetof(struct scene, world));
    if (id.data)
        snprintf(scene->session, sizeof scene->session, "%.*s", STR_ARGS(id));
}

struct extra {
    const char *method, *session, *version, *accept, *origin, *type, *rpc_method, *rpc_name;
};

static void post(struct scene *scene, struct reply *reply, const char *body, struct extra extra)
{
    static const struct http_call_handlers handlers = {on_head, reply_on_data, reply_on_done};
    const char *const names[] = {"accept", "content-type", "mcp-session-id", "mcp-protocol-version",
                                 "origin", "mcp-method",   "mcp-name"};
    const char *const values[] = {extra.accept ? extra.accept
                                               : "application/json, text/event-stream",
                                  extra.type ? extra.type : "application/json",
                                  extra.session,
                                  extra.version,
                                  extra.origin,
                                  extra.rpc_method,
                                  extra.rpc_name};
    struct http_header headers[COUNT(names)];
    size_t count = 0;
    for (size_t i = 0; i < COUNT(names); i++)
        if (values[i])
            headers[count++] = (struct http_header){str_of(names[i]), str_of(values[i])};
    OWN(mem) char *url = mem_format("http://127.0.0.1:%u/mcp", scene->world.port);
    struct http_request request = {.method = extra.method ? extra.method : "POST",
                                   .url = url,
                                   .headers = headers,
                                   .header_count = count,
                                   .body = str_of(body)};
    *reply = (struct reply){.world = &scene->world};
    reply->call = http_call_start(scene->world.agent, &request, &handlers, reply);
}

static void ask(struct scene *scene, const char *body, struct extra extra, int status,
                const char *expected)
{
    struct reply reply;
    post(scene, &reply, body, extra);
    reply_wait(&reply);
    EXPECT_INT(reply.status, status);
    if (expected && !reply_has(&reply, expected))
        test_fail(__FILE__, __LINE__, "'%.*s' has no '%s'", STR_ARGS(buf_str(&reply.body)),
                  expected);
    if (!expected)
        EXPECT_INT(reply.body.size, 0);
    buf_deinit(&reply.body);
}

#define CALL(name, id)                                                                             \
    "{\"jsonrpc\":\"2.0\",\"id\":" id ",\"method\":\"tools/call\",\"params\":{\"name\":\"" name    \
    "\",\"arguments\":{\"q\":1},\"_meta\":{\"progressToken\":\"tok\"}}}"
#define PLAIN_CALL(name, id)                                                                       \
    "{\"jsonrpc\":\"2.0\",\"id\":" id ",\"method\":\"tools/call\",\"params\":{\"name\":\"" name    \
    "\"}}"
#define METHOD(name, id) "{\"jsonrpc\":\"2.0\",\"id\":" id ",\"method\":\"" name "\",\"params\":{}}"
#define INITIALIZE(version)                                                                        \
    "{\"jsonrpc\":\"2.0\",\"id\":0,\"method\":\"initialize\",\"params\":{\"protocolVersion\":"     \
    "\"" version "\",\"capabilities\":{},\"clientInfo\":{\"name\":\"c\",\"version\":\"1\"}}}"

static void on_calls(void *context, struct gate_work *const *calls, size_t count)
{
    struct scene *scene = context;
    scene->came = true;
    if (!count)
        return;
    struct json_writer out = {.out = &scene->object};
    buf_clear(&scene->object);
    gate_work_write(calls[0], true, &out);
    snprintf(scene->call_id, sizeof scene->call_id, "%s", gate_work_call_id(calls[0]));
}

static void take(struct scene *scene)
{
    scene->came = false;
    struct gate_take take = {.wait_ms = 60000};
    EXPECT(gate_take(scene->gate, &take, on_calls, scene, NULL));
    PUMP_UNTIL(&scene->world, scene->came);
}

static void trainer_says(struct scene *scene, const char *answer)
{
    struct err err = {0};
    EXPECT_INT(gate_answer(scene->gate, scene->call_id, NULL, str_of(answer), &err), 0);
}

/* --- tests --- */

TEST(versions_are_agreed_on_and_sessions_begun_and_ended)
{
    static const struct {
        const char *body, *expected;
    } rows[] = {
        {INITIALIZE("2024-11-05"), "\"protocolVersion\":\"2024-11-05\""},
        {INITIALIZE("2025-03-26"), "\"protocolVersion\":\"2025-03-26\""},
        {INITIALIZE("2025-06-18"), "\"protocolVersion\":\"2025-06-18\""},
        {INITIALIZE("2025-11-25"), "\"protocolVersion\":\"2025-11-25\""},
        {INITIALIZE("1999-01-01"), "\"protocolVersion\":\"2025-11-25\""},
    };
    struct scene scene = {0};
    char first[80];
    scene_start(&scene, 0);
    for (size_t i = 0; i < COUNT(rows); i++) {
        ask(&scene, rows[i].body, (struct extra){0}, 200, rows[i].expected);
        ask(&scene, rows[i].body, (struct extra){0}, 200,
            "\"capabilities\":{\"tools\":{\"listChanged\":false}}");
    }
    snprintf(first, sizeof first, "%s", scene.session);
    ask(&scene, INITIALIZE("2025-11-25"), (struct extra){0}, 200, "\"id\":0");
    EXPECT(strcmp(first, scene.session) != 0);
    const char *said = "{\"jsonrpc\":\"2.0\",\"method\":\"notifications/initialized\"}";
    ask(&scene, said, (struct extra){.session = first}, 202, NULL);
    ask(&scene, METHOD("ping", "7"), (struct extra){.session = first}, 200,
        "{\"jsonrpc\":\"2.0\",\"id\":7,\"result\":{}}");
    ask(&scene, METHOD("ping", "\"a\""), (struct extra){.session = "nonsense"}, 404, "session");
    ask(&scene, METHOD("ping", "\"a\""), (struct extra){0}, 200, "\"id\":\"a\"");
    ask(&scene, METHOD("ping", "1"), (struct extra){.session = first, .version = "2025-06-18"}, 200,
        "\"result\":{}");
    ask(&scene, METHOD("ping", "1"), (struct extra){.session = first, .version = "1999-01-01"}, 400,
        "2025-11-25");
    ask(&scene, NULL, (struct extra){.method = "DELETE"}, 400, "Mcp-Session-Id");
    ask(&scene, NULL, (struct extra){.method = "DELETE", .session = first}, 204, NULL);
    ask(&scene, NULL, (struct extra){.method = "DELETE", .session = first}, 404, "session");
    ask(&scene, METHOD("ping", "1"), (struct extra){.session = first}, 404, "initialize again");
    ask(&scene, METHOD("ping", "1"), (struct extra){.session = scene.session}, 200, "{}");
    ask(&scene, NULL, (struct extra){.method = "GET", .session = scene.session}, 405, NULL);
    scene_end(&scene);
}

TEST(what_is_wrong_is_said_as_json_rpc_says_it)
{
    static const struct {
        const char *body;
        int status;
        const char *expected;
    } rows[] = {
        {"{", 400, "\"id\":null,\"error\":{\"code\":-32700"},
        {"3", 400, "\"code\":-32600"},
        {"{\"id\":1,\"method\":\"ping\"}", 400, "\"id\":1,\"error\":{\"code\":-32600"},
        {"{\"jsonrpc\":\"1.0\",\"id\":1,\"method\":\"ping\"}", 400, "-32600"},
        {"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":3}", 400, "-32600"},
        {"{\"jsonrpc\":\"2.0\",\"id\":null,\"method\":\"ping\"}", 400, "-32600"},
        {"{\"jsonrpc\":\"2.0\",\"id\":1.5,\"method\":\"ping\"}", 400, "-32600"},
        {METHOD("resources/list", "1"), 200, "\"code\":-32601"},
        {"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/list\",\"params\":[]}", 200, "-32602"},
        {"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/list\",\"params\":{\"cursor\":\"x\"}}",
         200, "-32602"},
        {METHOD("tools/call", "1"), 200, "-32602"},
        {PLAIN_CALL("reset", "1"), 200, "-32602,\"message\":\"Unknown tool: reset\""},
        {PLAIN_CALL("", "1"), 200, "Unknown tool: "}, /* {"type": "user"} is no function */
        {"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/call\",\"params\":{\"name\":\"flat\","
         "\"arguments\":[]}}",
         200, "-32602"},
        {"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"initialize\",\"params\":{}}", 200, "-32602"},
        {"{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}", 202, NULL},
        {"{\"jsonrpc\":\"2.0\",\"method\":\"notifications/cancelled\",\"params\":{"
         "\"requestId\":99}}",
         202, NULL},
        {"[]", 400, "-32600"},
    };
    struct scene scene = {0};
    scene_start(&scene, 0);
    for (size_t i = 0; i < COUNT(rows); i++)
        ask(&scene, rows[i].body, (struct extra){0}, rows[i].status, rows[i].expected);
    ask(&scene, METHOD("ping", "1"), (struct extra){.type = "text/plain"}, 415, "application/json");
    ask(&scene, METHOD("ping", "1"), (struct extra){.accept = "image/png"}, 406, "event-stream");
    ask(&scene, METHOD("ping", "1"), (struct extra){.accept = "text/event-stream"}, 200,
        "event: message\ndata: {\"jsonrpc\"");
    ask(&scene, METHOD("ping", "1"), (struct extra){.origin = "https://evil.example"}, 403, "-326");
    ask(&scene, METHOD("ping", "1"), (struct extra){.origin = "http://localhost:13131"}, 200, "{}");
    ask(&scene, METHOD("ping", "1"), (struct extra){.origin = "http://localhost.evil"}, 403, "");
    scene_end(&scene);
}

TEST(the_list_has_what_the_version_knows)
{
    struct scene scene = {0};
    scene_start(&scene, 0);
    const char *list = METHOD("tools/list", "1");
    ask(&scene, list, (struct extra){.version = "2025-11-25"}, 200,
        "{\"name\":\"look_up\",\"description\":\"finds\",\"inputSchema\":{\"properties\":{\"q\":{}}"
        ",\"type\":\"object\"}}");
    ask(&scene, list, (struct extra){.version = "2025-11-25"}, 200,
        "{\"name\":\"flat\",\"inputSchema\":{\"type\":\"object\",\"properties\":{}},"
        "\"annotations\":{\"readOnlyHint\":true},\"title\":\"Flat\"}");
    ask(&scene, list, (struct extra){.version = "2024-11-05"}, 200,
        "{\"name\":\"flat\",\"inputSchema\":{\"type\":\"object\",\"properties\":{}}}");
    ask(&scene, list, (struct extra){0}, 200, "{\"name\":\"own\"");
    scene_end(&scene);
}

TEST(the_trainer_answers_and_results_take_the_form_of_the_version)
{
    static const struct {
        const char *version, *answer, *expected;
    } rows[] = {
        {"2025-11-25", "{\"result\":\"wörds\"}",
         "\"result\":{\"content\":[{\"type\":\"text\",\"text\":\"wörds\"}],\"isError\":false}"},
        {"2025-11-25", "{\"result\":{\"a\":[1]}}",
         "\"text\":\"{\\\"a\\\":[1]}\"}],\"structuredContent\":{\"a\":[1]},\"isError\":false}"},
        {"2025-03-26", "{\"result\":{\"a\":[1]}}", "\"text\":\"{\\\"a\\\":[1]}\"}],\"isError\""},
        {"2025-11-25", "{\"result\":null}", "\"text\":\"null\""},
        {"2025-11-25", "{\"result\":{\"content\":[{\"type\":\"text\",\"text\":\"x\"}]}}",
         "\"result\":{\"content\":[{\"type\":\"text\",\"text\":\"x\"}]}}"},
    };
    struct scene scene = {0};
    struct reply reply;
    struct err err = {0};
    scene_start(&scene, 0);
    for (size_t i = 0; i < COUNT(rows); i++) {
        post(&scene, &reply, PLAIN_CALL("look_up", "5"),
             (struct extra){.version = rows[i].version});
        take(&scene);
        EXPECT(str_find(buf_str(&scene.object), STR("\"kind\":\"tool\",\"name\":\"look_up\"")) > 0);
        trainer_says(&scene, rows[i].answer);
        reply_wait(&reply);
        EXPECT_INT(reply.status, 200);
        EXPECT(reply_has(&reply, rows[i].expected));
        EXPECT(reply_has(&reply, "\"id\":5"));
        buf_deinit(&reply.body);
    }
    post(&scene, &reply, PLAIN_CALL("flat", "6"), (struct extra){0});
    take(&scene);
    EXPECT_INT(gate_fail(scene.gate, scene.call_id, NULL, 500, STR_NONE, STR("it broke"), &err), 0);
    reply_wait(&reply);
    EXPECT_INT(reply.status, 200);
    EXPECT(reply_has(&reply, "\"text\":\"it broke\"}],\"isError\":true"));
    buf_deinit(&reply.body);
    EXPECT(str_find(buf_str(&scene.note), STR("flat by trainer: {} -> it broke;")) >= 0);
    scene_end(&scene);
}

TEST(a_slow_tool_gets_signs_of_life_and_then_its_answer)
{
    struct scene scene = {0};
    struct reply reply;
    scene_start(&scene, 0);
    post(&scene, &reply, CALL("own", "1"), (struct extra){0});
    PUMP_UNTIL(&scene.world, reply_has(&reply, "\"progress\":2}"));
    EXPECT_STR(str_of(reply.type), STR("text/event-stream; charset=utf-8"));
    EXPECT(reply_has(&reply, "event: message\ndata: {\"jsonrpc\":\"2.0\",\"method\":"
                             "\"notifications/progress\",\"params\":{\"progressToken\":\"tok\","
                             "\"progress\":1}}\n\n"));
    EXPECT_STR(buf_str(&scene.arguments), STR("{\"q\":1}"));
    gateway_tool_answer(scene.tool, STR("[1]"));
    reply_wait(&reply);
    EXPECT_INT(reply.err.kind, ERR_NONE);
    EXPECT(str_ends(buf_str(&reply.body),
                    STR("data: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"content\":[{\"type\":"
                        "\"text\",\"text\":\"[1]\"}],\"isError\":false}}\n\n")));
    buf_deinit(&reply.body);
    EXPECT_STR(buf_str(&scene.note), STR("own by task: {\"q\":1} -> {\"result\":[1]};"));

    /* What was printed for people is one event all the same. */
    post(&scene, &reply, PLAIN_CALL("own", "1"), (struct extra){0});
    PUMP_UNTIL(&scene.world, reply_has(&reply, ": keepalive\n\n"));
    gateway_tool_answer(scene.tool, STR("{\r\n\"content\":\n[\n]}"));
    reply_wait(&reply);
    EXPECT(
        str_ends(buf_str(&reply.body),
                 STR("data: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{  \"content\": [ ]}}\n\n")));
    buf_deinit(&reply.body);

    /* Who asked for no progress gets comments; who takes no stream waits. */
    post(&scene, &reply, PLAIN_CALL("own", "1"), (struct extra){0});
    PUMP_UNTIL(&scene.world, reply_has(&reply, ": keepalive\n\n: keepalive\n\n"));
    gateway_tool_fail(scene.tool, "no");
    reply_wait(&reply);
    EXPECT(reply_has(&reply, "\"text\":\"no\"}],\"isError\":true"));
    buf_deinit(&reply.body);
    scene.tool = NULL;
    post(&scene, &reply, CALL("own", "1"), (struct extra){.accept = "application/json"});
    PUMP_UNTIL(&scene.world, scene.tool);
    for (int i = 0; i < 5; i++)
        loop_once(scene.world.loop, 20);
    gateway_tool_answer(scene.tool, STR("2"));
    reply_wait(&reply);
    EXPECT_STR(str_of(reply.type), STR("application/json"));
    buf_deinit(&reply.body);
    scene_end(&scene);
}

#define CANCEL(id)                                                                                 \
    "{\"jsonrpc\":\"2.0\",\"method\":\"notifications/cancelled\",\"params\":{\"requestId\":" id "}}"

TEST(a_cancelled_call_has_no_answer)
{
    struct scene scene = {0};
    struct reply mine, other;
    scene_start(&scene, 0);
    ask(&scene, INITIALIZE("2025-11-25"), (struct extra){0}, 200, "serverInfo");
    struct extra session = {.session = scene.session};
    post(&scene, &mine, CALL("own", "4"), session);
    PUMP_UNTIL(&scene.world, scene.tool);
    post(&scene, &other, CALL("own", "4"), (struct extra){0}); /* somebody else's number 4 */
    PUMP_UNTIL(&scene.world, reply_has(&mine, "progress") && reply_has(&other, "progress"));
    ask(&scene, CANCEL("\"4\""), session, 202, NULL); /* a text is no number */
    ask(&scene, CANCEL("5"), session, 202, NULL);
    EXPECT_INT(scene.tools_closed, 0);
    ask(&scene, CANCEL("4"), session, 202, NULL);
    EXPECT_INT(scene.tools_closed, 1);
    reply_wait(&mine);
    EXPECT_INT(mine.err.kind, ERR_NONE);
    EXPECT(!reply_has(&mine, "result") && !reply_has(&mine, "error"));
    gateway_tool_answer(scene.tool, STR("1"));
    reply_wait(&other);
    EXPECT(reply_has(&other, "\"text\":\"1\""));
    buf_deinit(&mine.body);
    buf_deinit(&other.body);
    /* Before anything was sent. */
    post(&scene, &mine, CALL("own", "\"x\""), (struct extra){.accept = "application/json"});
    PUMP_UNTIL(&scene.world, scene.tool);
    ask(&scene, CANCEL("\"x\""), (struct extra){0}, 202, NULL);
    reply_wait(&mine);
    EXPECT_INT(mine.status, 202);
    EXPECT_INT(mine.body.size, 0);
    EXPECT_STR(buf_str(&scene.note), STR("own by task: {\"q\":1} -> {\"result\":1};"));
    scene_end(&scene);
}

TEST(who_leaves_or_ends_the_session_withdraws_what_waits)
{
    struct scene scene = {0};
    struct reply reply;
    struct gate_counts counts = {0};
    scene_start(&scene, 0);
    post(&scene, &reply, CALL("look_up", "1"), (struct extra){0});
    take(&scene);
    http_call_close(reply.call);
    PUMP_UNTIL(&scene.world, (gate_counts(scene.gate, &counts), counts.withdrawn == 1));
    buf_deinit(&reply.body);
    ask(&scene, INITIALIZE("2025-06-18"), (struct extra){0}, 200, "serverInfo");
    post(&scene, &reply, CALL("own", "1"), (struct extra){.session = scene.session});
    PUMP_UNTIL(&scene.world, scene.tool);
    ask(&scene, NULL, (struct extra){.method = "DELETE", .session = scene.session}, 204, NULL);
    EXPECT_INT(scene.tools_closed, 1);
    reply_wait(&reply);
    EXPECT(!reply_has(&reply, "result"));
    buf_deinit(&reply.body);
    /* And the end of the rollout ends them all. */
    post(&scene, &reply, CALL("own", "1"), (struct extra){0});
    PUMP_UNTIL(&scene.world, scene.tool);
    scene_end(&scene);
    EXPECT_INT(scene.tools_closed, 2);
    buf_deinit(&reply.body);
}

TEST(batches_are_answered_where_the_version_has_them)
{
    const char *batch = "[" METHOD("ping", "1") "," CALL(
        "own", "2") ","
                    "{\"jsonrpc\":\"2.0\",\"method\":\"notifications/initialized\"},"
                    "7," CALL("own", "3") "," CANCEL("3") "]";
    struct scene scene = {0};
    struct reply reply;
    scene_start(&scene, 0);
    ask(&scene, batch, (struct extra){.version = "2025-06-18"}, 400, "no batches");
    ask(&scene, "[" INITIALIZE("2025-03-26") "]", (struct extra){0}, 200, "-32600");
    ask(&scene, "[" CANCEL("3") "]", (struct extra){0}, 202, NULL);
    ask(&scene, "[" CALL("own", "1") "," CANCEL("1") "]", (struct extra){0}, 202, NULL);
    EXPECT_INT(scene.tools_closed, 1);
    scene.tool = NULL;
    post(&scene, &reply, batch, (struct extra){.accept = "application/json"});
    PUMP_UNTIL(&scene.world, scene.tools_closed == 2);
    EXPECT(!reply.done);
    scene_end(&scene);
    buf_deinit(&reply.body);
}

TEST(a_batch_waits_for_its_slowest)
{
    struct scene scene = {0};
    struct reply reply;
    scene_start(&scene, 0);
    post(&scene, &reply, "[" METHOD("ping", "1") "," CALL("own", "2") ",7]",
         (struct extra){.accept = "application/json"});
    PUMP_UNTIL(&scene.world, scene.tool);
    gateway_tool_answer(scene.tool, STR("\"done\""));
    reply_wait(&reply);
    OWN(json_doc) struct json_doc doc = {0};
    EXPECT_INT(json_read(&doc, buf_str(&reply.body), NULL, NULL), 0);
    EXPECT_INT(json_size(json_root(&doc)), 3);
    EXPECT(reply_has(&reply, "\"code\":-32600") && reply_has(&reply, "\"text\":\"done\""));
    buf_deinit(&reply.body);
    scene_end(&scene);
}

TEST(calls_in_flight_are_bounded_and_refused_after_a_stop)
{
    struct scene scene = {0};
    struct reply reply;
    scene_start(&scene, 1);
    post(&scene, &reply, CALL("own", "1"), (struct extra){0});
    PUMP_UNTIL(&scene.world, scene.tool);
    ask(&scene, CALL("own", "2"), (struct extra){0}, 200, "\"code\":-32000");
    gateway_tool_answer(scene.tool, STR("1"));
    reply_wait(&reply);
    buf_deinit(&reply.body);
    gateway_session_stop(scene.world.session, "enough");
    ask(&scene, CALL("own", "3"), (struct extra){0}, 200, "this rollout is over");
    ask(&scene, METHOD("tools/list", "3"), (struct extra){0}, 200, "look_up");
    scene_end(&scene);
}

TEST(tools_of_the_trainer_need_a_trainer)
{
    struct world world = {0};
    struct err err = {0};
    struct reply reply;
    world_start(&world);
    world_model(&world);
    struct gateway_session_options options = {
        .rollout_id = "r-test", .model = world.model, .tools = STR(TOOLS)};
    EXPECT(!gateway_open(world.gateway, &options, &err));
    EXPECT_INT(err.kind, ERR_UNSUPPORTED);
    EXPECT_INT(gateway_tools_check(STR("[{\"name\":\"a\",\"answered_by\":\"me\"}]"), &err), -1);
    EXPECT(strstr(err.text, "answered_by"));
    /* And a rollout without tools has no server. */
    world_open(&world, (struct gateway_session_options){0});
    agent_ask_at(&world, &reply, "/mcp", STR(METHOD("ping", "1")));
    reply_wait(&reply);
    EXPECT_INT(reply.status, 404);
    buf_deinit(&reply.body);
    world_end(&world);
}

/* --- 2026-07-28: no sessions, each request says who asks --- */

#define ENVELOPE(version)                                                                          \
    "\"_meta\":{\"io.modelcontextprotocol/protocolVersion\":\"" version                            \
    "\",\"io.modelcontextprotocol/clientCapabilities\":{},"                                        \
    "\"io.modelcontextprotocol/clientInfo\":{\"name\":\"new\",\"version\":\"2\"}}"
#define MODERN(name, more)                                                                         \
    "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"" name                                             \
    "\",\"params\":{" more ENVELOPE("2026-07-28") "}}"

TEST(requests_that_say_their_version_need_no_session)
{
    struct scene scene = {0};
    struct reply reply;
    scene_start(&scene, 0);
    struct extra discover = {.version = "2026-07-28", .rpc_method = "server/discover"};
    struct extra list = {.version = "2026-07-28", .rpc_method = "tools/list"};
    struct extra call = {.version = "2026-07-28", .rpc_method = "tools/call", .rpc_name = "own"};
    ask(&scene, MODERN("server/discover", ""), discover, 200,
        "\"supportedVersions\":[\"2024-11-05\",\"2025-03-26\",\"2025-06-18\",\"2025-11-25\","
        "\"2026-07-28\"]");
    ask(&scene, MODERN("server/discover", ""), discover, 200, "\"resultType\":\"complete\"");
    ask(&scene, MODERN("tools/list", ""), list, 200, "\"cacheScope\":\"private\",\"tools\":[");
    post(&scene, &reply, MODERN("tools/call", "\"name\":\"own\","), call);
    PUMP_UNTIL(&scene.world, scene.tool);
    gateway_tool_answer(scene.tool, STR("{\"content\":[]}"));
    reply_wait(&reply);
    EXPECT(reply_has(&reply, "\"result\":{\"content\":[],\"resultType\":\"complete\"}"));
    buf_deinit(&reply.body);
    scene.tool = NULL;
    post(&scene, &reply, MODERN("tools/call", "\"name\":\"own\","), call);
    PUMP_UNTIL(&scene.world, scene.tool);
    gateway_tool_fail(scene.tool, "no");
    reply_wait(&reply);
    EXPECT(reply_has(&reply, "\"resultType\":\"complete\",\"content\":[{\"type\":\"text\",\"text\":"
                             "\"no\"}],\"isError\":true"));
    buf_deinit(&reply.body);

    /* What is wrong with an envelope. */
    ask(&scene, MODERN("tools/list", ""), (struct extra){.version = "2026-07-28"}, 400, "-32020");
    ask(&scene, MODERN("tools/list", ""), (struct extra){.rpc_method = "tools/list"}, 400,
        "-32020");
    call.rpc_name = "other";
    ask(&scene, MODERN("tools/call", "\"name\":\"own\","), call, 400, "-32020");
    ask(&scene, METHOD("tools/list", "1"), list, 400, "-32602");
    list.version = "2099-01-01";
    ask(&scene,
        "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/list\",\"params\":{" ENVELOPE(
            "2099-01-01") "}}",
        list, 400, "-32022,\"message\":\"Unsupported protocol version\",\"data\":{\"supported\":[");
    /* And of what is gone. */
    ask(&scene, MODERN("ping", ""), (struct extra){.version = "2026-07-28", .rpc_method = "ping"},
        404, "-32601");
    call.rpc_name = "nothing";
    ask(&scene, MODERN("tools/call", "\"name\":\"nothing\","), call, 400, "Unknown tool");
    ask(&scene, INITIALIZE("2026-07-28"), (struct extra){0}, 200,
        "\"protocolVersion\":\"2025-11-25\"");
    EXPECT_INT(scene.tools_closed, 0);
    scene_end(&scene);
}
