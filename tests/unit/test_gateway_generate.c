/* Tokens in, tokens out: vLLM's render, generate and derender routes, played by a stand-in with a
 * template and a sampler of its own. */
#include "gateway/gate.h"
#include "test_gateway.h"
#include "test_gateway_spoken.h"

enum { RENDER, SAMPLE, DERENDER, ROUTES };
static const char *const paths[ROUTES] = {
    "/v1/chat/completions/render",
    "/inference/v1/generate",
    "/v1/chat/completions/derender",
};

/* One token a letter: 100 + the letter as it is sampled, 500 + the letter in an answer that is read
 * again, which is how a tokenizer betrays itself. 1 begins a message, 2 ends it, 3 is a new line.
 */
static struct engine {
    int asked[ROUTES], status[ROUTES], failures[ROUTES]; /* -1: a reset; 0: for ever */
    int before_status;                                   /* of renderings without a turn to take */
    bool changes_history, image, calls_tool, no_logprobs, hold, pauses, other_model;
    const char *nonsense[ROUTES], *aborted, *versions;
    size_t padding;
    struct buf last[ROUTES], head[ROUTES];
    char ids[2][64]; /* request_id of the last two samplings */
    struct gate *gate;
    int64_t policy[ROUTES]; /* set when the route was answered */
} engine;

static void engine_deinit(void)
{
    for (int i = 0; i < ROUTES; i++) {
        buf_deinit(&engine.last[i]);
        buf_deinit(&engine.head[i]);
    }
    engine = (struct engine){0};
}

static void put_letters(struct str text, int base, struct buf *out)
{
    for (size_t i = 0; i < text.size; i++)
        buf_format(out, ",%d", base + (unsigned char)text.data[i]);
}

static void render(struct json request, struct buf *out)
{
    OWN(arena) struct arena arena = {0};
    struct json add = json_get(request, "add_generation_prompt");
    bool turn = json_type(add) != JSON_FALSE;
    buf_format(out, "{\"request_id\":\"chatcmpl-x\",\"token_ids\":[0");
    JSON_EACH (item, json_get(request, "messages")) {
        struct str role = json_str(json_get(item.value, "role"), &arena);
        bool answer = str_is(role, "assistant");
        if (answer && engine.changes_history && turn)
            continue; /* a template that drops earlier answers */
        buf_format(out, ",1");
        put_letters(str_upto(role, 1), 100, out);
        put_letters(json_str(json_get(item.value, "content"), &arena), answer ? 500 : 100, out);
        buf_format(out, ",2,3");
    }
    if (turn)
        buf_format(out, ",1,%d", 100 + 'a');
    buf_format(out, "],\"features\":%s,\"sampling_params\":{\"temperature\":",
               engine.image ? "{\"mm_hashes\":{\"image\":[\"x\"]}}" : "null");
    struct json temperature = json_get(request, "temperature");
    buf_str_append(out, json_exists(temperature) ? json_raw(temperature) : STR("1.0"));
    struct json wanted = json_get(request, "top_logprobs");
    buf_format(out, ",\"logprobs\":%s,\"max_tokens\":77},\"model\":\"real-name\",\"stream\":%s,",
               json_exists(wanted) ? "5" : "null",
               json_true(json_get(request, "stream")) ? "true" : "false");
    buf_format(out, "\"token_offsets\":null,\"cache_salt\":\"salt\"}");
}

static void sample(struct json request, struct buf *out)
{
    OWN(arena) struct arena arena = {0};
    memcpy(engine.ids[0], engine.ids[1], sizeof engine.ids[0]);
    snprintf(engine.ids[1], sizeof engine.ids[1], "%.*s",
             STR_ARGS(json_str(json_get(request, "request_id"), &arena)));
    bool abort = engine.aborted && engine.asked[SAMPLE] == 1;
    buf_format(out,
               "{\"request_id\":\"generate-tokens-%s\",\"choices\":[{\"index\":0,"
               "\"finish_reason\":\"%s\",\"weight_versions\":[%s],\"token_ids\":[204,205,2],"
               "\"logprobs\":",
               engine.ids[1], abort ? engine.aborted : "stop",
               engine.versions ? engine.versions : "");
    if (engine.no_logprobs)
        buf_format(out, "null");
    else
        buf_format(out, "{\"content\":[{\"token_id\":204,\"logprob\":-0.5},{\"token_id\":205,"
                        "\"logprob\":-0.25},{\"token_id\":2,\"logprob\":-0.125}]}");
    buf_format(out, "}],\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":3,"
                    "\"total_tokens\":4,\"prompt_tokens_details\":{\"cached_tokens\":4}}");
    if (engine.padding) {
        buf_format(out, ",\"metrics\":\"");
        for (size_t i = 0; i < engine.padding; i++)
            buf_byte(out, 'x');
        buf_byte(out, '"');
    }
    buf_byte(out, '}');
}

static void derender(struct json request, struct buf *out)
{
    struct json sampled = json_get(request, "generate_response");
    buf_format(out, "{\"id\":");
    buf_str_append(out, json_raw(json_get(sampled, "request_id")));
    buf_format(out,
               ",\"object\":\"chat.completion\",\"created\":1,\"model\":\"real-name\",\"choices\":"
               "[{\"index\":0,\"message\":{\"role\":\"assistant\",\"reasoning\":\"hm\","
               "\"content\":\"hi\",\"tool_calls\":[%s]},\"logprobs\":{\"content\":[{\"token\":"
               "\"h\",\"logprob\":-0.5,\"bytes\":[104],\"top_logprobs\":[]}]},\"finish_reason\":",
               engine.calls_tool ? "{\"id\":\"t-1\",\"type\":\"function\",\"function\":{\"name\":"
                                   "\"look\",\"arguments\":\"{}\"}}"
                                 : "");
    buf_str_append(out,
                   json_raw(json_get(json_at(json_get(sampled, "choices"), 0), "finish_reason")));
    buf_format(out,
               "}],\"usage\":{\"prompt_tokens\":%lld,\"completion_tokens\":3,"
               "\"total_tokens\":9}}",
               json_int_or(json_get(request, "prompt_tokens"), -1));
}

static bool engine_fails(struct http_exchange *exchange, int route, bool before)
{
    int status = before && engine.before_status ? engine.before_status : engine.status[route];
    if (!status || (engine.failures[route] && engine.asked[route] > engine.failures[route]))
        return false;
    if (status < 0)
        http_exchange_reset(exchange);
    else if (engine.other_model)
        http_respond_json(exchange, 404,
                          STR("{\"error\":{\"message\":\"The model `x` does not exist.\"}}"));
    else if (status == 404)
        http_respond_json(exchange, 404, STR("{\"detail\":\"Not Found\"}"));
    else
        http_respond_json(exchange, status,
                          STR("{\"error\":{\"message\":\"no such luck\",\"type\":\"x\"}}"));
    return true;
}

static void answer_engine(struct world *world, struct http_exchange *exchange)
{
    int route = 0;
    while (route < ROUTES && !str_is(http_exchange_target(exchange), paths[route]))
        route++;
    if (route == ROUTES) {
        http_respond_json(exchange, 404, STR("{\"detail\":\"another route\"}"));
        return;
    }
    engine.asked[route]++;
    buf_clear(&engine.last[route]);
    buf_str_append(&engine.last[route], buf_str(&world->upstream_body));
    buf_clear(&engine.head[route]);
    buf_str_append(&engine.head[route], buf_str(&world->upstream_head));
    OWN(json_doc) struct json_doc doc = {0};
    OWN(buf) struct buf out = {0};
    EXPECT(json_read(&doc, buf_str(&world->upstream_body), NULL, NULL) == 0);
    struct json root = json_root(&doc);
    bool before = json_type(json_get(root, "add_generation_prompt")) == JSON_FALSE;
    if (engine_fails(exchange, route, before))
        return;
    if (route == SAMPLE && engine.hold) {
        world->held = exchange;
        return;
    }
    if (engine.nonsense[route])
        buf_str_append(&out, str_of(engine.nonsense[route]));
    else if (route == RENDER)
        render(root, &out);
    else if (route == SAMPLE)
        sample(root, &out);
    else
        derender(root, &out);
    if (engine.gate && engine.policy[route])
        gate_set_policy(engine.gate, engine.policy[route]);
    if (engine.pauses && route == RENDER)
        gate_pause(engine.gate, true);
    http_respond_json(exchange, 200, buf_str(&out));
}

static const struct model_options tokens_quick = {
    .engine = "vllm-generate", .attempts_max = 3, .retry_ms_max = 2};

static void engine_world(struct world *world, struct gateway_session_options options)
{
    world->upstream_answer = answer_engine;
    world_start(world);
    setenv("TEST_KEY", "the-real-key", 1);
    struct model_options model = tokens_quick;
    model.key_env = "TEST_KEY";
    world_model_upstream(world, &model);
    options.mode = "proxy";
    world_open(world, options);
}

static void engine_world_end(struct world *world)
{
    world_end(world);
    engine_deinit();
}

static bool engine_got(int route, const char *text)
{
    return str_find(buf_str(&engine.last[route]), str_of(text)) >= 0;
}

static bool recorded(struct world *world, const char *text)
{
    OWN(buf) struct buf calls = {0};
    (void)file_read(world->calls_path, 1 << 20, &calls, NULL);
    return str_find(buf_str(&calls), str_of(text)) >= 0;
}

#define PROMPT "[0,1,217,204,201,208,208,211,2,3,1,197]" /* of ASK */

TEST(a_call_goes_in_and_comes_back_in_tokens)
{
    struct world world = {0};
    engine_world(&world,
                 (struct gateway_session_options){
                     .sampling = {.has_temperature = true, .temperature = 0.5, .tokens_max = 77}});
    struct reply reply;
    agent_ask(&world, &reply, ASK);
    reply_wait(&reply);
    EXPECT_INT(reply.status, 200);
    EXPECT(reply_has(&reply, "\"content\":\"hi\""));
    EXPECT(reply_has(&reply, "\"finish_reason\":\"stop\""));
    EXPECT(!reply_has(&reply, "logprob\""));
    EXPECT(!reply_has(&reply, "204"));
    EXPECT_INT(engine.asked[RENDER] * 100 + engine.asked[SAMPLE] * 10 + engine.asked[DERENDER],
               111);
    EXPECT_INT(world.upstream_calls, 3);
    /* What is imposed is imposed before it is rendered. */
    EXPECT(engine_got(RENDER, "\"temperature\":0.5"));
    EXPECT(engine_got(RENDER, "\"max_tokens\":77"));
    EXPECT(engine_got(RENDER, "\"model\":\"real-name\""));
    EXPECT(!engine_got(RENDER, "logprobs"));
    /* What was rendered is sampled from, and nothing of it is lost. */
    EXPECT(engine_got(SAMPLE, "\"token_ids\":" PROMPT));
    EXPECT(engine_got(SAMPLE, "\"logprobs\":1,"));
    EXPECT(engine_got(SAMPLE, "\"temperature\":0.5"));
    EXPECT(engine_got(SAMPLE, "\"cache_salt\":\"salt\""));
    EXPECT(engine_got(SAMPLE, "\"stream\":false"));
    EXPECT(!engine_got(SAMPLE, "chatcmpl-x"));
    EXPECT(engine_got(DERENDER, "\"prompt_tokens\":12,"));
    EXPECT(engine_got(DERENDER, "\"prompt_token_ids\":" PROMPT));
    EXPECT(engine_got(DERENDER, "\"token_ids\":[204,205,2]"));
    EXPECT(engine_got(DERENDER, "\"chat_request\":{"));
    EXPECT(engine_got(DERENDER, "\"content\":\"hello\""));
    for (int i = 0; i < ROUTES; i++) {
        struct str head = buf_str(&engine.head[i]);
        EXPECT(str_find(head, STR("Bearer the-real-key")) >= 0);
        EXPECT(str_find(head, STR("x-session-id: r-test")) >= 0);
        EXPECT(str_find(head, STR("dummy")) < 0);
        EXPECT(str_find(head, STR("cookie")) < 0);
    }
    EXPECT(recorded(&world, "[204,205,2]"));
    EXPECT(recorded(&world, "[-0.5,-0.25,-0.125]"));
    EXPECT(recorded(&world, PROMPT));
    EXPECT(!recorded(&world, "tokens_note"));
    const struct gateway_stats *stats = gateway_session_stats(world.session);
    EXPECT_INT(stats->usage.prompt_tokens, 12);
    EXPECT_INT(stats->usage.completion_tokens, 3);
    EXPECT_INT(stats->usage.cached_tokens, 4);
    EXPECT_INT(stats->retries, 0);
    buf_deinit(&reply.body);
    engine_world_end(&world);
}

TEST(every_dialect_is_answered_whole_and_as_a_stream)
{
    for (size_t i = 0; i < COUNT(spoken) * 2; i++) {
        const struct spoken *agent = &spoken[i / 2];
        bool stream = i % 2;
        struct world world = {0};
        engine.calls_tool = strcmp(agent->dialect, "completions") != 0;
        engine_world(&world, (struct gateway_session_options){0});
        struct reply reply;
        agent_ask_at(&world, &reply, stream ? agent->stream_path : agent->path,
                     str_of(stream ? agent->stream_body : agent->body));
        reply_wait(&reply);
        EXPECT_INT(reply.status, 200);
        EXPECT(reply_has(&reply, "hi"));
        EXPECT(!reply_has(&reply, "logprob\""));
        EXPECT(!engine_got(RENDER, "\"stream\":true"));
        if (stream) {
            EXPECT(str_starts(str_of(reply.type), STR("text/event-stream")));
            EXPECT(reply_has(&reply, agent->finish));
        }
        if (engine.calls_tool)
            EXPECT(reply_has(&reply, "look"));
        EXPECT(recorded(&world, "[204,205,2]"));
        EXPECT_INT(gateway_session_stats(world.session)->answered, 1);
        buf_deinit(&reply.body);
        engine_world_end(&world);
    }
}

TEST(a_stop_after_tool_calls_tells_the_agent_to_run_them)
{
    struct world world = {0};
    engine.calls_tool = true;
    engine_world(&world, (struct gateway_session_options){0});
    struct reply reply;
    agent_ask(&world, &reply, ASK);
    reply_wait(&reply);
    EXPECT(reply_has(&reply, "\"finish_reason\":\"tool_calls\""));
    EXPECT(reply_has(&reply, "\"look\""));
    buf_deinit(&reply.body);
    engine_world_end(&world);
}

TEST(an_agent_that_wants_log_probabilities_gets_them)
{
    struct world world = {0};
    engine_world(&world, (struct gateway_session_options){0});
    struct reply reply;
    agent_ask(&world, &reply,
              "{\"model\":\"any\",\"logprobs\":true,\"top_logprobs\":5,\"messages\":[{\"role\":"
              "\"user\",\"content\":\"hello\"}]}");
    reply_wait(&reply);
    EXPECT(reply_has(&reply, "\"logprob\":-0.5"));
    EXPECT(engine_got(SAMPLE, "\"logprobs\":5"));
    EXPECT(recorded(&world, "[-0.5,-0.25,-0.125]"));
    buf_deinit(&reply.body);
    engine_world_end(&world);
}

#define SECOND                                                                                     \
    "{\"model\":\"any\",\"messages\":[{\"role\":\"user\",\"content\":\"hello\"},{\"role\":"        \
    "\"assistant\",\"content\":\"hi\",\"reasoning\":\"hm\"},{\"role\":\"user\",\"content\":"       \
    "\"more\"}]}"

static void two_turns(struct world *world)
{
    struct reply reply;
    agent_ask(world, &reply, ASK);
    reply_wait(&reply);
    EXPECT_INT(reply.status, 200);
    buf_deinit(&reply.body);
    agent_ask(world, &reply, SECOND);
    reply_wait(&reply);
    EXPECT_INT(reply.status, 200);
    buf_deinit(&reply.body);
}

TEST(a_prompt_goes_on_from_what_was_sampled)
{
    struct world world = {0};
    engine_world(&world, (struct gateway_session_options){.exact_prefix = true});
    two_turns(&world);
    /* The first prompt, its answer as it was sampled, the template's line, the new message. */
    EXPECT(engine_got(SAMPLE, "\"token_ids\":[0,1,217,204,201,208,208,211,2,3,1,197,204,205,2,3,1,"
                              "217,209,211,214,201,2,3,1,197]"));
    EXPECT(!engine_got(SAMPLE, "token_offsets"));
    EXPECT(recorded(&world, ",204,205,2,3,1,217,209"));
    EXPECT_INT(engine.asked[RENDER], 3);
    EXPECT_INT(engine.asked[SAMPLE], 2);
    world_close_session(&world, 0);
    EXPECT(str_find(buf_str(&world.report), STR("\"calls\":2,\"used\":1,\"trouble\":null")) >= 0);
    engine_world_end(&world);
}

TEST(where_there_is_no_exact_prefix_the_prompt_is_as_rendered)
{
    static const struct {
        bool changes, image;
        int status;
        const char *trouble, *prompt;
    } cases[] = {
        {true, false, 0, "changes earlier messages", ",1,217,209"},
        {false, true, 0, "more than text", ",604,605,2,3,1,217,209"},
        {false, false, 400, "does not render the messages", ",604,605,2,3,1,217,209"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct world world = {0};
        engine.changes_history = cases[i].changes;
        engine.image = cases[i].image;
        engine.before_status = cases[i].status;
        engine_world(&world, (struct gateway_session_options){.exact_prefix = true});
        two_turns(&world);
        EXPECT(engine_got(SAMPLE, cases[i].prompt));
        EXPECT_INT(engine.asked[SAMPLE], 2);
        world_close_session(&world, 0);
        EXPECT(str_find(buf_str(&world.report), str_of(cases[i].trouble)) >= 0);
        EXPECT(str_find(buf_str(&world.report), STR("\"used\":0")) >= 0);
        engine_world_end(&world);
    }
}

TEST(a_missing_route_is_named_and_no_other_is_taken)
{
    for (int route = 0; route < ROUTES; route++) {
        struct world world = {0};
        engine.status[route] = 404;
        engine_world(&world, (struct gateway_session_options){0});
        struct reply reply;
        agent_ask(&world, &reply, ASK);
        reply_wait(&reply);
        EXPECT_INT(reply.status, 404);
        EXPECT(!reply_has(&reply, "scale-out"));
        EXPECT_INT(world.upstream_calls, route + 1);
        const struct gateway_stats *stats = gateway_session_stats(world.session);
        EXPECT_INT(stats->cause, GATEWAY_UPSTREAM);
        struct str text = str_of(stats->error.text);
        /* Below /v1 they are written as every path of a model server is. */
        EXPECT(str_find(text, str_of(route == SAMPLE ? paths[route] : paths[route] + 3)) >= 0);
        EXPECT(str_find(text, STR("--enable-scale-out")) >= 0);
        EXPECT(str_find(text, STR("Not Found")) >= 0);
        buf_deinit(&reply.body);
        engine_world_end(&world);
    }
}

TEST(a_model_the_engine_does_not_know_is_no_missing_route)
{
    struct world world = {0};
    engine.status[RENDER] = 404;
    engine.other_model = true;
    engine_world(&world, (struct gateway_session_options){0});
    struct reply reply;
    agent_ask(&world, &reply, ASK);
    reply_wait(&reply);
    EXPECT_INT(reply.status, 404);
    struct str text = str_of(gateway_session_stats(world.session)->error.text);
    EXPECT(str_find(text, STR("does not exist")) >= 0);
    EXPECT(str_find(text, STR("scale-out")) < 0);
    buf_deinit(&reply.body);
    engine_world_end(&world);
}

TEST(a_request_that_the_engine_refuses_is_the_agents_to_mend)
{
    for (int route = 0; route < ROUTES; route++) {
        struct world world = {0};
        engine.status[route] = 400;
        engine_world(&world, (struct gateway_session_options){0});
        struct reply reply;
        agent_ask(&world, &reply, ASK);
        reply_wait(&reply);
        EXPECT_INT(reply.status, 400);
        EXPECT(reply_has(&reply, "no such luck"));
        /* But not what becomes of tokens that were sampled. */
        EXPECT_INT(gateway_session_stats(world.session)->cause,
                   route == DERENDER ? GATEWAY_UPSTREAM : GATEWAY_FINE);
        buf_deinit(&reply.body);
        engine_world_end(&world);
    }
}

TEST(a_step_that_fails_is_repeated_and_those_before_it_are_not)
{
    for (int i = 0; i < 2 * ROUTES; i++) {
        int route = i / 2;
        struct world world = {0};
        engine.status[route] = i % 2 ? 503 : -1;
        engine.failures[route] = 1;
        engine_world(&world, (struct gateway_session_options){0});
        struct reply reply;
        agent_ask(&world, &reply, ASK_STREAM);
        reply_wait(&reply);
        EXPECT_INT(reply.status, 200);
        EXPECT(reply_has(&reply, "data: [DONE]"));
        for (int other = 0; other < ROUTES; other++)
            EXPECT_INT(engine.asked[other], other == route ? 2 : 1);
        EXPECT_INT(gateway_session_stats(world.session)->answered, 1);
        /* A reset of a connection that was kept is the HTTP client's to mend. */
        EXPECT(i % 2 == 0 || recorded(&world, "\"attempts\":2"));
        EXPECT(i % 2 == 0 || gateway_session_stats(world.session)->retries == 1);
        EXPECT(recorded(&world, "[204,205,2]"));
        buf_deinit(&reply.body);
        engine_world_end(&world);
    }
}

TEST(a_step_that_fails_for_good_is_shown_as_such)
{
    for (int route = 0; route < ROUTES; route++) {
        struct world world = {0};
        engine.status[route] = 503;
        engine_world(&world, (struct gateway_session_options){0});
        struct reply reply;
        agent_ask(&world, &reply, ASK);
        reply_wait(&reply);
        EXPECT_INT(reply.status, 503);
        EXPECT(!reply_has(&reply, "no such luck"));
        EXPECT_INT(engine.asked[route], 3);
        EXPECT_INT(gateway_session_stats(world.session)->cause, GATEWAY_UPSTREAM);
        buf_deinit(&reply.body);
        engine_world_end(&world);
    }
}

TEST(an_answer_that_the_engine_broke_off_is_sampled_again_under_another_name)
{
    struct world world = {0};
    engine.aborted = "abort";
    engine_world(&world, (struct gateway_session_options){0});
    struct reply reply;
    agent_ask(&world, &reply, ASK);
    reply_wait(&reply);
    EXPECT_INT(reply.status, 200);
    EXPECT_INT(engine.asked[RENDER], 1);
    EXPECT_INT(engine.asked[SAMPLE], 2);
    EXPECT(engine.ids[0][0] && engine.ids[1][0] && strcmp(engine.ids[0], engine.ids[1]) != 0);
    buf_deinit(&reply.body);
    engine_world_end(&world);
}

TEST(an_answer_without_tokens_is_no_answer)
{
    static const struct {
        int route;
        const char *answer, *why;
    } cases[] = {
        {RENDER, "[[],[]]", "gave no token ids of the prompt"},
        {RENDER, "{\"token_ids\":[1,-2],\"sampling_params\":{}}", "no token ids of the prompt"},
        {RENDER, "{\"token_ids\":[1]}", "gave no sampling_params"},
        {RENDER, "nothing", "no JSON"},
        {SAMPLE, "{\"choices\":[]}", "gave no token ids of an answer"},
        {SAMPLE, "{\"choices\":[{\"token_ids\":[],\"finish_reason\":\"stop\"}]}", "no token ids"},
        {SAMPLE, "{\"choices\":[{\"token_ids\":[1]},{\"token_ids\":[2]}]}", "no token ids"},
        {DERENDER, "{}", ""},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct world world = {0};
        engine.nonsense[cases[i].route] = cases[i].answer;
        engine_world(&world, (struct gateway_session_options){0});
        struct reply reply;
        agent_ask(&world, &reply, ASK);
        reply_wait(&reply);
        EXPECT_INT(reply.status, 503);
        const struct gateway_stats *stats = gateway_session_stats(world.session);
        EXPECT_INT(stats->cause, GATEWAY_UPSTREAM);
        EXPECT(str_find(str_of(stats->error.text), str_of(cases[i].why)) >= 0);
        EXPECT_INT(stats->answered, 0);
        buf_deinit(&reply.body);
        engine_world_end(&world);
    }
}

TEST(log_probabilities_that_are_missing_are_said_to_be)
{
    struct world world = {0};
    engine.no_logprobs = true;
    engine_world(&world, (struct gateway_session_options){0});
    struct reply reply;
    agent_ask(&world, &reply, ASK);
    reply_wait(&reply);
    EXPECT_INT(reply.status, 200);
    EXPECT(recorded(&world, "no log-probabilities came with the answer"));
    buf_deinit(&reply.body);
    engine_world_end(&world);
}

TEST(an_answer_of_the_engine_has_a_largest_size)
{
    struct world world = {0};
    engine.padding = 8192;
    engine_world(&world, (struct gateway_session_options){.limits.answer_bytes_max = 4096});
    struct reply reply;
    agent_ask(&world, &reply, ASK);
    reply_wait(&reply);
    EXPECT_INT(reply.status, 503);
    EXPECT(str_find(str_of(gateway_session_stats(world.session)->error.text),
                    STR("/inference/v1/generate is larger than 4096 bytes")) >= 0);
    EXPECT_INT(engine.asked[SAMPLE], 1);
    buf_deinit(&reply.body);
    engine_world_end(&world);
}

TEST(an_agent_that_leaves_ends_the_sampling)
{
    struct world world = {0};
    engine.hold = true;
    engine_world(&world, (struct gateway_session_options){.retry_grace_ms = 1});
    struct reply reply;
    agent_ask(&world, &reply, ASK_STREAM);
    PUMP_UNTIL(&world, world.held);
    world.upstream_gone = false;
    http_call_close(reply.call);
    PUMP_UNTIL(&world, world.upstream_gone && world.done);
    EXPECT(recorded(&world, "the agent went away"));
    EXPECT_INT(engine.asked[DERENDER], 0);
    EXPECT_INT(gateway_session_stats(world.session)->in_flight, 0);
    buf_deinit(&reply.body);
    engine_world_end(&world);
}

TEST(a_stream_shows_signs_of_life_while_tokens_are_sampled)
{
    struct world world = {0};
    engine.hold = true;
    engine_world(&world,
                 (struct gateway_session_options){.headers_after_ms = 1, .keepalive_ms = 1});
    struct reply reply;
    agent_ask(&world, &reply, ASK_STREAM);
    PUMP_UNTIL(&world, world.held && reply.status == 200 && reply.body.size > 20);
    EXPECT(!reply_has(&reply, "choices"));
    OWN(json_doc) struct json_doc doc = {0};
    OWN(buf) struct buf out = {0};
    EXPECT(json_read(&doc, buf_str(&engine.last[SAMPLE]), NULL, NULL) == 0);
    sample(json_root(&doc), &out);
    http_respond_json(world.held, 200, buf_str(&out));
    reply_wait(&reply);
    EXPECT(reply_has(&reply, "\"hi\""));
    EXPECT(reply_has(&reply, "data: [DONE]"));
    buf_deinit(&reply.body);
    engine_world_end(&world);
}

/* A trainer is there that changes the weights. */
static void policy_world(struct world *world)
{
    struct err err = {0};
    world->upstream_answer = answer_engine;
    world_start(world);
    gateway_free(world->gateway);
    engine.gate = gate_new(world->loop, NULL);
    gate_set_policy(engine.gate, 7);
    struct gateway_options options = {.store = world->store, .gate = engine.gate};
    world->gateway = gateway_new(world->loop, &options, &err);
    world_model_upstream(world, &tokens_quick);
    world_open(world, (struct gateway_session_options){.mode = "proxy"});
}

static void policy_world_end(struct world *world)
{
    world_close_session(world, 0);
    gate_free(engine.gate);
    engine_world_end(world);
}

TEST(a_call_is_stamped_with_the_weights_that_sampled_it)
{
    struct world world = {0};
    engine.policy[RENDER] = 8;
    engine.policy[SAMPLE] = 9;
    policy_world(&world);
    struct reply reply;
    agent_ask(&world, &reply, ASK);
    reply_wait(&reply);
    EXPECT_INT(reply.status, 200);
    EXPECT(recorded(&world, "\"policy_version\":8"));
    buf_deinit(&reply.body);
    policy_world_end(&world);
}

TEST(weights_that_changed_while_a_call_was_sampled_are_recorded_token_by_token)
{
    static const struct {
        const char *said, *spans;
    } cases[] = {
        {"{\"version\":\"7\",\"start\":0,\"end\":2},{\"version\":\"8\",\"start\":2,\"end\":3}",
         "[[0,2,7],[2,3,8]]"},
        {"{\"version\":\"7\",\"start\":0,\"end\":2}", NULL},
        {"{\"version\":\"7\",\"start\":0,\"end\":9}", NULL},
        {"{\"version\":\"default\",\"start\":0,\"end\":3}", NULL},
        {"7", NULL},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct world world = {0};
        engine.versions = cases[i].said;
        engine_world(&world, (struct gateway_session_options){0});
        struct reply reply;
        agent_ask(&world, &reply, ASK);
        reply_wait(&reply);
        EXPECT_INT(reply.status, 200);
        EXPECT(recorded(&world, cases[i].spans ? cases[i].spans : "[204,205,2]"));
        EXPECT(cases[i].spans || !recorded(&world, "policy_versions"));
        buf_deinit(&reply.body);
        engine_world_end(&world);
    }
}

TEST(nothing_is_sampled_while_the_weights_change)
{
    struct world world = {0};
    engine.pauses = true;
    policy_world(&world);
    struct reply reply;
    agent_ask(&world, &reply, ASK);
    PUMP_UNTIL(&world, gate_paused(engine.gate));
    for (int i = 0; i < 3; i++)
        loop_once(world.loop, 50);
    EXPECT_INT(engine.asked[SAMPLE], 0);
    gate_set_policy(engine.gate, 8);
    gate_pause(engine.gate, false);
    reply_wait(&reply);
    EXPECT_INT(reply.status, 200);
    EXPECT_INT(engine.asked[RENDER], 1);
    EXPECT(recorded(&world, "\"policy_version\":8"));
    buf_deinit(&reply.body);
    policy_world_end(&world);
}

TEST(only_mode_proxy_asks_in_tokens_and_only_a_chat_server_can_be_asked)
{
    struct world world = {.upstream_answer = answer_engine};
    world_start(&world);
    world_model_upstream(&world, &tokens_quick);
    world_open(&world, (struct gateway_session_options){.mode = "black_box"});
    struct reply reply;
    agent_ask(&world, &reply, ASK);
    reply_wait(&reply);
    EXPECT(str_starts(buf_str(&world.upstream_head), STR("/v1/chat/completions\n")));
    EXPECT_INT(engine.asked[RENDER], 0);
    buf_deinit(&reply.body);
    engine_world_end(&world);
    struct err err = {0};
    struct model_options options = {.engine = "vllm-generate", .api = "messages"};
    EXPECT(!model_open("http://x/v1#m", &options, &err));
    EXPECT_INT(err.kind, ERR_INPUT);
    EXPECT(str_find(str_of(err.text), STR("chat or same, not messages")) >= 0);
    options.api = "chat";
    struct model *model = model_open("http://x/v1#m", &options, &err);
    EXPECT(model);
    model_unref(model);
}
