/* The scripted model, as an agent behind the gateway sees it, and what is wrong in scripts. */
#include "test_gateway.h"

static const char tools_request[] =
    "{\"model\":\"m\",\"stream\":%s,\"tools\":[{\"type\":\"function\",\"function\":{\"name\":"
    "\"bash\",\"parameters\":{}}}],\"messages\":[{\"role\":\"system\",\"content\":\"be brief\"},"
    "{\"role\":\"user\",\"content\":\"repair the repository\"}%s]}";
#define BROKEN ",{\"role\":\"assistant\",\"content\":\"half of an ans\"}"
#define TURN_1                                                                                     \
    ",{\"role\":\"assistant\",\"content\":\"Let me look.\",\"tool_calls\":[{\"id\":"               \
    "\"call_0_1_0\",\"type\":\"function\",\"function\":{\"name\":\"bash\",\"arguments\":"          \
    "\"{\\\"command\\\":\\\"git status\\\",\\\"n\\\":3}\"}}]},{\"role\":\"tool\","                 \
    "\"tool_call_id\":\"call_0_1_0\",\"content\":\"fatal: bad object\"}"

/* One request; the caller frees the body. */
static void ask(struct world *world, struct reply *reply, bool stream, const char *more)
{
    OWN(mem) char *body = mem_format(tools_request, stream ? "true" : "false", more);
    agent_ask(world, reply, body);
    reply_wait(reply);
}

static int begin(struct world *world, const char *script, struct gateway_session_options options)
{
    struct err err = {0};
    world_start(world);
    if (world_model_script(world, script, &err) < 0) {
        test_fail(__FILE__, __LINE__, "%s", err.text);
        return -1;
    }
    world_open(world, options);
    return 0;
}

static const char two_turns[] =
    "name = 'demo'\n"
    "[[rule]]\n"
    "when.task = 'fix-*'\n"
    "[[rule.turns]]\n"
    "reasoning = 'hm'\n"
    "say = 'Let me look.'\n"
    "call = { name = 'bash', arguments = { command = 'git status', n = 3 } }\n"
    "[[rule.turns]]\n"
    "say = 'All good: größer.'\n"
    "usage = { prompt = 50, completion = 7 }\n"
    "chunk = 1\n";

TEST(a_script_answers_turn_by_turn_whole_or_streamed)
{
    for (int stream = 0; stream < 2; stream++) {
        struct world world = {0};
        if (begin(&world, two_turns, (struct gateway_session_options){.task = "fix-git"}) < 0)
            return;
        struct reply reply;
        ask(&world, &reply, stream, "");
        EXPECT_INT(reply.status, 200);
        EXPECT(reply_has(&reply, "Let me look."));
        EXPECT(reply_has(&reply, "\"tool_calls\""));
        EXPECT(reply_has(&reply, "\"name\":\"bash\""));
        EXPECT(reply_has(&reply, "\"finish_reason\":\"tool_calls\""));
        EXPECT(reply_has(&reply, "call_0_1_0"));
        if (!stream)
            EXPECT(reply_has(&reply, "{\\\"command\\\":\\\"git status\\\",\\\"n\\\":3}"));
        buf_deinit(&reply.body);
        ask(&world, &reply, stream, TURN_1);
        EXPECT_INT(reply.status, 200);
        EXPECT(reply_has(&reply, "\"finish_reason\":\"stop\""));
        EXPECT_INT(reply_has(&reply, "[DONE]"), stream);
        buf_deinit(&reply.body);
        const struct gateway_stats *stats = gateway_session_stats(world.session);
        EXPECT_INT(stats->turns, 2);
        EXPECT(stats->usage.completion_tokens > 7);
        OWN(buf) struct buf calls = {0};
        EXPECT_INT(file_read(world.calls_path, 1 << 20, &calls, NULL), 0);
        EXPECT(str_find(buf_str(&calls), STR("All good: größer.")) >= 0);
        EXPECT(str_find(buf_str(&calls), STR("\"prompt_tokens\":50")) >= 0);
        world_end(&world);
    }
}

static const char matching[] =
    "[[rule]]\nwhen.task = 'other'\nsay = 'other task'\n"
    "[[rule]]\nwhen.index = [1, 3]\nsay = 'odd one'\n"
    "[[rule]]\nwhen.index_modulo = [4, 2]\nsay = 'third of four'\n"
    "[[rule]]\nwhen = { turn = 1, result_has = ['fatal', 'object'] }\nsay = 'saw the result'\n"
    "[[rule]]\nwhen = { turn_min = 1, last_has = 'never said' }\nsay = 'never'\n"
    "[[rule]]\nwhen.tools = false\nsay = 'a title'\n"
    "[[rule]]\nwhen = { system_has = 'be brief', instruction_has = 'repair' }\nsay = 'brief'\n"
    "[[rule]]\nsay = 'anything else'\n";

TEST(rules_match_on_task_rollout_turn_and_words_and_the_first_that_fits_answers)
{
    static const struct {
        uint32_t index;
        const char *task, *more, *expected;
    } rows[] = {
        {0, "other", "", "other task"},
        {1, "t", "", "odd one"},
        {3, "t", "", "odd one"},
        {6, "t", "", "third of four"},
        {0, "t", TURN_1, "saw the result"},
        {0, "t", BROKEN TURN_1, "saw the result"},
        {0, "t", "", "brief"},
        {0, NULL, "", "brief"},
    };
    struct world world = {0};
    if (begin(&world, matching, (struct gateway_session_options){0}) < 0)
        return;
    for (size_t i = 0; i < COUNT(rows); i++) {
        world_close_session(&world, 0);
        world.closed = false;
        world_open(&world,
                   (struct gateway_session_options){.index = rows[i].index, .task = rows[i].task});
        struct reply reply;
        ask(&world, &reply, false, rows[i].more);
        if (!reply_has(&reply, rows[i].expected))
            test_fail(__FILE__, __LINE__, "row %zu gave %.*s", i, STR_ARGS(buf_str(&reply.body)));
        buf_deinit(&reply.body);
    }
    struct reply reply;
    agent_ask(&world, &reply, ASK);
    reply_wait(&reply);
    EXPECT(reply_has(&reply, "a title"));
    buf_deinit(&reply.body);
    const struct gateway_stats *stats = gateway_session_stats(world.session);
    EXPECT_INT(stats->calls, 2);
    EXPECT_INT(stats->turns, 1); /* the title is a call, not a turn */
    world_end(&world);
}

TEST(errors_are_absorbed_unless_the_script_wants_them_shown)
{
    struct world world = {0};
    if (begin(&world,
              "[[rule]]\ntimes = 2\nerror = { status = 503 }\n"
              "[[rule]]\ntimes = 1\nwhen.turn = 1\n"
              "error = { status = 429, retry_after = '3s', message = 'slow', show = true }\n"
              "[[rule]]\nsay = 'fine now'\n",
              (struct gateway_session_options){0}) < 0)
        return;
    struct reply reply;
    ask(&world, &reply, true, "");
    EXPECT_INT(reply.status, 200);
    EXPECT(reply_has(&reply, "fine now"));
    EXPECT_INT(gateway_session_stats(world.session)->retries, 2);
    buf_deinit(&reply.body);
    ask(&world, &reply, true, TURN_1);
    EXPECT_INT(reply.status, 429);
    EXPECT_TEXT(reply.retry_after, "3");
    EXPECT(reply_has(&reply, "slow"));
    EXPECT_INT(gateway_session_stats(world.session)->cause, GATEWAY_UPSTREAM);
    buf_deinit(&reply.body);
    ask(&world, &reply, true, TURN_1);
    EXPECT_INT(reply.status, 200);
    EXPECT_INT(gateway_session_stats(world.session)->cause, GATEWAY_FINE);
    buf_deinit(&reply.body);
    world_end(&world);
}

TEST(a_script_can_break_a_stream_off_and_the_agents_next_try_is_answered)
{
    struct world world = {0};
    if (begin(&world,
              "[[rule]]\ntimes = 1\nsay = 'word by word by word'\nchunk = 5\nreset_after = 2\n"
              "[[rule]]\nsay = 'whole'\n",
              (struct gateway_session_options){0}) < 0)
        return;
    struct reply reply;
    ask(&world, &reply, true, "");
    EXPECT_INT(reply.status, 200);
    EXPECT(reply.err.kind != ERR_NONE);
    EXPECT(reply_has(&reply, "word "));
    EXPECT(!reply_has(&reply, "finish_reason\":\""));
    buf_deinit(&reply.body);
    ask(&world, &reply, true, "");
    EXPECT_INT(reply.err.kind, ERR_NONE);
    EXPECT(reply_has(&reply, "whole"));
    EXPECT_INT(gateway_session_stats(world.session)->calls, 1); /* one call with the first try */
    EXPECT_INT(gateway_session_stats(world.session)->broken, 0);
    buf_deinit(&reply.body);
    world_end(&world);
}

TEST(a_script_can_hang_until_the_session_is_closed)
{
    struct world world = {0};
    if (begin(&world, "[[rule]]\nhang = true\n",
              (struct gateway_session_options){.headers_after_ms = 1, .keepalive_ms = 1}) < 0)
        return;
    struct reply reply;
    agent_ask(&world, &reply, ASK_STREAM);
    PUMP_UNTIL(&world, reply.body.size > 30);
    world_close_session(&world, 1);
    reply_wait(&reply);
    EXPECT(reply.err.kind != ERR_NONE);
    buf_deinit(&reply.body);
    world_end(&world);
}

TEST(a_request_no_rule_fits_is_a_script_error_that_says_what_was_seen)
{
    struct world world = {0};
    if (begin(&world, "name = 'short'\n[[rule]]\nwhen.turn = 0\nsay = 'first'\n",
              (struct gateway_session_options){.task = "fix-git", .index = 4}) < 0)
        return;
    struct reply reply;
    ask(&world, &reply, true, TURN_1);
    EXPECT_INT(reply.status, 500);
    EXPECT(reply_has(&reply, "no rule of the script 'short' fits"));
    EXPECT(reply_has(&reply, "task 'fix-git', rollout 4, turn 1"));
    EXPECT(reply_has(&reply, "fatal: bad object"));
    EXPECT_INT(gateway_session_stats(world.session)->cause, GATEWAY_SCRIPT);
    EXPECT_INT(gateway_session_stats(world.session)->retries, 0);
    PUMP_UNTIL(&world, world.exhausted == GATEWAY_SCRIPT);
    buf_deinit(&reply.body);
    ask(&world, &reply, true, "");
    EXPECT_INT(reply.status, 400); /* agents stop here */
    buf_deinit(&reply.body);
    world_end(&world);
}

TEST(delays_hold_back_the_first_byte_and_each_chunk)
{
    struct world world = {0};
    if (begin(&world,
              "[defaults]\nfirst_delay = '30ms'\nchunk_delay = '10ms'\nchunk = 2\n"
              "[[rule]]\nsay = 'abcdef'\n",
              (struct gateway_session_options){0}) < 0)
        return;
    uint64_t start = loop_now_ms(world.loop);
    struct reply reply;
    ask(&world, &reply, true, "");
    loop_once(world.loop, 0);
    EXPECT_INT(reply.err.kind, ERR_NONE);
    EXPECT(loop_now_ms(world.loop) - start >= 30 + 3 * 10);
    buf_deinit(&reply.body);
    world_end(&world);
}

/* --- tokens --- */

static bool keep_id(void *context, const struct store_call *call)
{
    char(*ids)[64] = context;
    snprintf(ids[call->number], sizeof ids[0], "%s", call->id);
    return true;
}

TEST(generated_tokens_of_a_turn_are_the_beginning_of_the_next_prompt)
{
    struct world world = {0};
    if (begin(&world,
              "[defaults]\ntokens = 'generate'\n"
              "[[rule]]\n[[rule.turns]]\nsay = 'Let me look.'\n"
              "call = { name = 'bash', arguments = { command = 'git status', n = 3 } }\n"
              "[[rule.turns]]\nsay = 'done'\n",
              (struct gateway_session_options){.mode = "proxy"}) < 0)
        return;
    struct reply reply;
    ask(&world, &reply, true, "");
    EXPECT_INT(reply.status, 200);
    EXPECT(!reply_has(&reply, "token_ids"));
    buf_deinit(&reply.body);
    ask(&world, &reply, true, TURN_1);
    EXPECT_INT(reply.status, 200);
    buf_deinit(&reply.body);
    char ids[3][64] = {0};
    EXPECT_INT(store_list_calls(world.store, "r-test", keep_id, ids, NULL), 0);
    OWN(buf) struct buf first = {0}, second = {0}, completion = {0}, logprobs = {0};
    EXPECT_INT(store_read_tokens(world.store, ids[1], &first, &completion, &logprobs, NULL), 0);
    EXPECT_INT(store_read_tokens(world.store, ids[2], &second, NULL, NULL, NULL), 0);
    EXPECT(logprobs.size > 0);
    buf_str_append(&first, buf_str(&completion));
    EXPECT(second.size > first.size);
    EXPECT(str_starts(buf_str(&second), buf_str(&first)));
    world_end(&world);
}

TEST(given_tokens_are_recorded_as_given_in_proxy_mode_only)
{
    for (int proxy = 0; proxy < 2; proxy++) {
        struct world world = {0};
        if (begin(&world,
                  "[[rule]]\nsay = 'x'\ntokens = { ids = [5, 6], logprobs = [-0.5, 0], "
                  "prompt_ids = [1, 2, 3] }\n",
                  (struct gateway_session_options){.mode = proxy ? "proxy" : "black_box"}) < 0)
            return;
        struct reply reply;
        ask(&world, &reply, false, "");
        EXPECT_INT(reply.status, 200);
        OWN(buf) struct buf calls = {0};
        EXPECT_INT(file_read(world.calls_path, 1 << 20, &calls, NULL), 0);
        EXPECT_INT(str_find(buf_str(&calls), STR("[5,6]")) >= 0, proxy);
        buf_deinit(&reply.body);
        world_end(&world);
    }
}

/* --- bad scripts --- */

TEST(what_is_wrong_in_a_script_is_named_with_its_place)
{
    static const struct {
        const char *script, *expected;
    } rows[] = {
        {"[[rule]]\nsay = 'x'\nchnk = 3\n", "script.toml:3:1: "},
        {"[[rule]]\nwhen.trun = 1\nsay = 'x'\n", "script.toml:2:6: "},
        {"[[rule]]\nwhen.turn = 'one'\nsay = 'x'\n", "script.toml:2:13: "},
        {"[[rule]]\nwhen.turn = 1\n", "script.toml:1:"},
        {"[[rule]]\nsay = 'x'\nerror = { status = 500 }\n", "an answer with 'error'"},
        {"[[rule]]\nerror = { status = 200 }\n", "script.toml:2:20: "},
        {"[[rule]]\ncall = { arguments = {} }\n", "name"},
        {"[[rule]]\ncall = { name = 'b', arguments = 3 }\n", "'arguments' is a table"},
        {"[[rule]]\nsay = 'x'\ntokens = { ids = [1, 2], logprobs = [-1] }\n",
         "1 log-probabilities for 2 token ids"},
        {"[[rule]]\nsay = 'x'\ntokens = { ids = [1.5] }\n", "script.toml:3:19: "},
        {"[[rule]]\nsay = 'x'\nfirst_delay = 'soon'\n", "script.toml:3:15: "},
        {"[[rule]]\nwhen.index_modulo = [2, 2]\nsay = 'x'\n", "'index_modulo' is [n, r]"},
        {"name = 'empty'\n", "at least one [[rule]]"},
        {"[[rule]\n", "script.toml:1:"},
    };
    struct world world = {0};
    world_start(&world);
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct err err = {0};
        EXPECT_INT(world_model_script(&world, rows[i].script, &err), -1);
        EXPECT_INT(err.kind, ERR_INPUT);
        if (!strstr(err.text, rows[i].expected))
            test_fail(__FILE__, __LINE__, "row %zu: '%s' lacks '%s'", i, err.text,
                      rows[i].expected);
    }
    struct err err = {0};
    EXPECT(!model_open("script:/no/such/file.toml", NULL, &err));
    EXPECT_INT(err.kind, ERR_NOT_FOUND);
    world_end(&world);
}

/* The examples people copy are examples that work. */
TEST(the_examples_of_the_documentation_are_valid_scripts)
{
    OWN(buf) struct buf page = {0};
    struct err err = {0};
    struct world world = {0};
    world_start(&world);
    EXPECT_INT(file_read(POSTERN_SOURCE_DIR "/docs/scripted-model.md", 1 << 20, &page, &err), 0);
    struct str rest = buf_str(&page);
    int found = 0;
    for (;;) {
        long start = str_find(rest, STR("```toml\n"));
        if (start < 0)
            break;
        rest = str_from(rest, (size_t)start + 8);
        long end = str_find(rest, STR("\n```"));
        EXPECT(end > 0);
        OWN(mem) char *script = str_dup(str_upto(rest, (size_t)end + 1));
        if (world_model_script(&world, script, &err) < 0)
            test_fail(__FILE__, __LINE__, "%s", err.text);
        model_unref(world.model);
        world.model = NULL;
        found++;
    }
    EXPECT_INT(found, 2);
    world_end(&world);
}
