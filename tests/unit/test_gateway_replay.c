/* What a rollout's record holds of a conversation that grows, and rollouts answered from it. */
#include "gateway/inner.h"
#include "test_gateway.h"

#define MESSAGE(role, text) "{\"role\":\"" role "\",\"content\":\"" text "\"}"
#define LONG_WORDS                                                                                 \
    "a system prompt that is long enough to be worth sharing between two calls of one rollout"
#define BODY(messages)                                                                             \
    "{\"model\":\"m\",\"messages\":[" MESSAGE(                                                     \
        "system", LONG_WORDS) "," messages "],\"tools\":[{\"type\":\"function\",\"function\":{"    \
                              "\"name\":\"only-tool\",\"parameters\":{}}}]}"
#define FIRST BODY(MESSAGE("user", "question one"))
#define SECOND                                                                                     \
    BODY(MESSAGE("user", "question one") "," MESSAGE("assistant", "answer 1") "," MESSAGE(         \
        "user", "question two"))
#define SUB_AGENT                                                                                  \
    "{\"model\":\"m\",\"messages\":[" MESSAGE("user", "somebody else entirely, "                   \
                                                      "with another beginning") "]}"
#define THIRD                                                                                      \
    BODY(MESSAGE("user", "question one") "," MESSAGE("assistant", "answer 1") "," MESSAGE(         \
        "user", "question two") "," MESSAGE("assistant", "answer 2") "," MESSAGE("user", "three"))

static void answer_numbered(struct world *world, struct http_exchange *exchange)
{
    OWN(mem)
    char *text = mem_format(
        "{\"id\":\"x\",\"object\":\"chat.completion\",\"created\":1,\"model\":\"m\",\"choices\":[{"
        "\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"answer %d\"},"
        "\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":11,\"completion_tokens\":3,"
        "\"total_tokens\":14}}",
        world->upstream_calls);
    http_respond_json(exchange, 200, str_of(text));
}

static void ask_all(struct world *world, const char *const *bodies, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        struct reply reply;
        agent_ask(world, &reply, bodies[i]);
        reply_wait(&reply);
        EXPECT_INT(reply.status, 200);
        buf_deinit(&reply.body);
    }
}

/* Line `number` (from 1) of calls.jsonl. */
static struct json line(struct world *world, int number, struct json_doc *doc, struct buf *text)
{
    buf_clear(text);
    (void)file_read(world->calls_path, 64 << 20, text, NULL);
    struct str rest = buf_str(text), found = STR_NONE;
    for (int i = 0; i < number; i++)
        found = str_cut(&rest, '\n');
    if (json_read(doc, found, NULL, NULL) < 0)
        abort();
    return json_root(doc);
}

static bool note_id(void *context, const struct store_call *call)
{
    char(*ids)[64] = context;
    snprintf(ids[call->number], sizeof ids[0], "%s", call->id);
    return true;
}

TEST(a_line_of_calls_has_only_what_its_parent_has_not)
{
    struct world world = {.upstream_answer = answer_numbered};
    world_start(&world);
    world_model(&world);
    world_open(&world, (struct gateway_session_options){0});
    const char *const bodies[] = {FIRST, SECOND, SUB_AGENT, THIRD};
    ask_all(&world, bodies, 4);
    char ids[5][64] = {0};
    EXPECT_INT(store_list_calls(world.store, "r-test", note_id, ids, NULL), 0);
    OWN(buf) struct buf text = {0};
    static const struct {
        int parent;
        int shared, own;
        bool tools;
    } wanted[] = {{0, 0, 2, true}, {1, 2, 2, false}, {0, 0, 1, false}, {2, 4, 2, false}};
    for (int i = 0; i < 4; i++) {
        OWN(json_doc) struct json_doc doc = {0};
        struct json root = line(&world, i + 1, &doc, &text);
        struct arena arena = {0};
        struct json request = json_get(root, "request");
        EXPECT_INT(json_size(json_get(request, "messages")), wanted[i].own);
        EXPECT_INT(json_int_or(json_get(root, "shared_messages"), 0), wanted[i].shared);
        EXPECT_STR(json_str(json_get(root, "parent"), &arena),
                   str_of(wanted[i].parent ? ids[wanted[i].parent] : ""));
        EXPECT(json_exists(json_get(request, "tools")) == wanted[i].tools);
        arena_deinit(&arena);
    }
    /* The journal gives every request back byte for byte. */
    for (int i = 0; i < 4; i++) {
        OWN(buf) struct buf request = {0};
        EXPECT_INT(store_read_request(world.store, ids[i + 1], &request, NULL), 0);
        EXPECT_STR(buf_str(&request), str_of(bodies[i]));
    }
    world_end(&world);
}

TEST(a_long_rollout_grows_the_record_by_its_tails_only)
{
    struct world world = {.upstream_answer = answer_numbered};
    world_start(&world);
    world_model(&world);
    world_open(&world, (struct gateway_session_options){0});
    OWN(buf) struct buf messages = {0};
    buf_str_append(&messages, STR(MESSAGE("system", LONG_WORDS)));
    size_t sent = 0;
    for (int i = 0; i < 60; i++) {
        buf_format(&messages, ",{\"role\":\"user\",\"content\":\"%d", i);
        for (int j = 0; j < 1000; j++)
            buf_byte(&messages, (char)('a' + (i + j) % 26));
        buf_str_append(&messages, STR("\"}"));
        OWN(mem)
        char *body =
            mem_format("{\"model\":\"m\",\"messages\":[%.*s]}", STR_ARGS(buf_str(&messages)));
        sent += strlen(body);
        struct reply reply;
        agent_ask(&world, &reply, body);
        reply_wait(&reply);
        buf_deinit(&reply.body);
    }
    OWN(buf) struct buf text = {0};
    (void)file_read(world.calls_path, 64 << 20, &text, NULL);
    EXPECT(text.size < 60 * 2500);
    struct store_counts counts;
    store_counts(world.store, &counts);
    EXPECT(counts.bytes > 60 * 1000 && counts.bytes < 60 * 3500);
    EXPECT(sent > 60 * 25000);
    world_end(&world);
}

/* An agent and its sub-agent take turns; the hour stands in front of both. */
TEST(a_prompt_with_the_hour_in_it_costs_the_record_its_tails_only)
{
    enum { ROUNDS = 16 };
    struct world world = {.upstream_answer = answer_numbered};
    world_start(&world);
    world_model(&world);
    world_open(&world, (struct gateway_session_options){0});
    struct buf talks[2] = {0};
    char *bodies[ROUNDS];
    size_t sent = 0;
    for (int i = 0; i < ROUNDS; i++) {
        struct buf *talk = &talks[i % 2];
        for (int j = 0; j < (i < 2 ? 3000 : 40); j++)
            buf_format(talk, "%s%d-%d ", j ? "" : ",{\"role\":\"user\",\"content\":\"", i,
                       j * 7919 % 10007);
        buf_str_append(talk, STR("\"}"));
        bodies[i] = mem_format("{\"model\":\"m\",\"messages\":[{\"role\":\"system\",\"content\":"
                               "\"It is %d o'clock. " LONG_WORDS "\"}%.*s]}",
                               i * 1234567, STR_ARGS(buf_str(talk)));
        sent += strlen(bodies[i]);
    }
    ask_all(&world, (const char *const *)bodies, ROUNDS);
    struct store_counts counts;
    store_counts(world.store, &counts);
    EXPECT(sent > ROUNDS * 20000);
    EXPECT(counts.bytes < strlen(bodies[0]) + strlen(bodies[1]) + ROUNDS * 3000);
    OWN(buf) struct buf text = {0};
    (void)file_read(world.calls_path, 64 << 20, &text, NULL);
    EXPECT(text.size < strlen(bodies[0]) + strlen(bodies[1]) + ROUNDS * 3000);
    OWN(json_doc) struct json_doc doc = {0};
    struct json last = line(&world, ROUNDS, &doc, &text);
    EXPECT_INT(json_int_or(json_get(last, "shared_from"), 0), 1);
    EXPECT_INT(json_int_or(json_get(last, "shared_messages"), 0), ROUNDS / 2 - 1);
    EXPECT_INT(json_size(json_get(json_get(last, "request"), "messages")), 2);
    char ids[ROUNDS + 1][64] = {0};
    EXPECT_INT(store_list_calls(world.store, "r-test", note_id, ids, NULL), 0);
    for (int i = 0; i < ROUNDS; i++) {
        OWN(buf) struct buf request = {0};
        EXPECT_INT(store_read_request(world.store, ids[i + 1], &request, NULL), 0);
        EXPECT(str_equal(buf_str(&request), str_of(bodies[i])));
        free(bodies[i]);
    }
    buf_deinit(&talks[0]);
    buf_deinit(&talks[1]);
    world_end(&world);
}

/* A conversation that says which it is from the first byte on. */
static char *talk_body(int which, int turns, int size)
{
    OWN(buf) struct buf body = {0};
    buf_format(&body, "{\"model\":\"%d\",\"messages\":[", which);
    for (int i = 0; i < turns; i++) {
        buf_format(&body, "%s{\"role\":\"user\",\"content\":\"", i ? "," : "");
        for (int j = 0; j < (i ? 40 : size); j++)
            buf_format(&body, "%d ", (which * 7919 + i * 104729 + j * 1009) % 1000003);
        buf_str_append(&body, STR("\"}"));
    }
    buf_str_append(&body, STR("]}"));
    return buf_take(&body);
}

TEST(sub_agents_that_take_turns_cost_the_record_their_tails_only)
{
    enum { AGENTS = 10, TURNS = 5 };
    struct world world = {.upstream_answer = answer_numbered};
    world_start(&world);
    world_model(&world);
    world_open(&world, (struct gateway_session_options){0});
    size_t first = 0, sent = 0;
    for (int turn = 1; turn <= TURNS; turn++) {
        for (int which = 0; which < AGENTS; which++) {
            OWN(mem) char *body = talk_body(which, turn, 3000);
            const char *const bodies[] = {body};
            ask_all(&world, bodies, 1);
            sent += strlen(body);
            first += turn == 1 ? strlen(body) : 0;
        }
    }
    OWN(buf) struct buf text = {0};
    struct store_counts counts;
    (void)file_read(world.calls_path, 64 << 20, &text, NULL);
    store_counts(world.store, &counts);
    EXPECT(sent > 4 * first);
    EXPECT(text.size < first + AGENTS * TURNS * 2000);
    EXPECT(counts.bytes < first + AGENTS * TURNS * 2000);
    world_end(&world);
}

static size_t remembered(struct world *world, size_t *bytes)
{
    const struct lineage *lineage = &world->session->lineage;
    size_t count = 0;
    *bytes = 0;
    for (size_t i = 0; i < lineage->count; i++) {
        count += lineage->ancestors[i].body != NULL;
        *bytes += lineage->ancestors[i].body ? lineage->ancestors[i].body->bytes.size : 0;
    }
    return count;
}

TEST_WITHIN(what_is_remembered_of_sub_agents_is_bounded, 60)
{
    struct world world = {.upstream_answer = answer_numbered};
    world_start(&world);
    world_model(&world);
    world_open(&world, (struct gateway_session_options){0});
    size_t bytes;
    for (int which = 0; which < 20; which++) {
        OWN(mem) char *body = talk_body(which, 1, 100);
        const char *const bodies[] = {body};
        ask_all(&world, bodies, 1);
    }
    EXPECT_INT(remembered(&world, &bytes), 16);
    for (int which = 20; which < 32; which++) { /* a megabyte each */
        OWN(mem) char *body = talk_body(which, 1, 150000);
        const char *const bodies[] = {body};
        ask_all(&world, bodies, 1);
    }
    size_t count = remembered(&world, &bytes);
    EXPECT(count > 4 && count < 12 && bytes <= (8 << 20));
    for (int turn = 1; turn < 70; turn++) { /* one goes on alone */
        OWN(mem) char *body = talk_body(40, turn, 100);
        const char *const bodies[] = {body};
        ask_all(&world, bodies, 1);
    }
    EXPECT_INT(remembered(&world, &bytes), 4);
    world_end(&world);
}

/* ---------------------------------------------------------------- replay */

static void answer_tools(struct world *world, struct http_exchange *exchange)
{
    OWN(mem)
    char *text = mem_format(
        "{\"id\":\"x%d\",\"object\":\"chat.completion\",\"created\":1,\"model\":\"m\",\"choices\":"
        "[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"answer %d\","
        "\"tool_calls\":[{\"id\":\"call_%d\",\"type\":\"function\",\"function\":{\"name\":\"ls\","
        "\"arguments\":\"{\\\"path\\\": \\\"/\\\"}\"}}]},\"finish_reason\":\"tool_calls\","
        "\"token_ids\":[7,8],\"logprobs\":{\"content\":[{\"token\":\"token_id:7\",\"logprob\":-0.5}"
        ",{\"token\":\"token_id:8\",\"logprob\":-0.25}]}}],\"prompt_token_ids\":[1,2,3,4,5,6,7,8,9,"
        "10,11,12,13,14,15,16,17,18,19,20,%d],\"usage\":{\"prompt_tokens\":21,"
        "\"completion_tokens\":2,\"total_tokens\":23}}",
        world->upstream_calls, world->upstream_calls, world->upstream_calls,
        100 + world->upstream_calls);
    http_respond_json(exchange, 200, str_of(text));
}

/* Records a rollout and opens a session whose model is that record. */
static void record_and_replay(struct world *world, const char *const *bodies, size_t count,
                              const char *mode)
{
    world->upstream_answer = answer_tools;
    world_start(world);
    world_model(world);
    world_open(world, (struct gateway_session_options){.mode = mode});
    ask_all(world, bodies, count);
    world_close_session(world, 0);
    world->closed = false;
    buf_clear(&world->report);
    OWN(mem) char *old = mem_format("%s/rollouts/r-old", world->home);
    OWN(mem) char *file = mem_format("%s/calls.jsonl", old);
    struct err err = {0};
    if (file_make_dirs(old, 0700, &err) < 0 || rename(world->calls_path, file) < 0)
        abort();
    model_unref(world->model);
    world->model = model_open("replay:r-old", &(struct model_options){.home = world->home}, &err);
    if (!world->model) {
        fprintf(stderr, "%s\n", err.text);
        abort();
    }
    world->upstream_calls = 0;
    world_open(world, (struct gateway_session_options){.rollout_id = "r-new", .mode = mode});
}

#define AT(hour, messages)                                                                         \
    "{\"model\":\"m\",\"messages\":[" MESSAGE("system", "It is " hour) "," messages "]}"

TEST(a_record_whose_system_prompt_changed_is_put_together_again)
{
    struct world world = {0};
    const char *const bodies[] = {
        AT("1", MESSAGE("user", "one")),
        AT("2",
           MESSAGE("user", "one") "," MESSAGE("assistant", "answer 1") "," MESSAGE("user", "two")),
        AT("3",
           MESSAGE("user", "one") "," MESSAGE("assistant", "answer 1") "," MESSAGE(
               "user", "two") "," MESSAGE("assistant", "answer 2") "," MESSAGE("user", "three"))};
    record_and_replay(&world, bodies, 3, "proxy");
    for (int i = 2; i >= 0; i--) {
        struct reply reply;
        char words[32];
        agent_ask(&world, &reply, bodies[i]);
        reply_wait(&reply);
        snprintf(words, sizeof words, "answer %d", i + 1);
        EXPECT(reply_has(&reply, words));
        buf_deinit(&reply.body);
    }
    world_close_session(&world, 0);
    EXPECT(!strstr(buf_text(&world.report), "\"cause\":\"replay\""));
    world_end(&world);
}

TEST(a_replayed_rollout_gets_the_recorded_answers_and_tokens_by_content)
{
    struct world world = {0};
    const char *const bodies[] = {FIRST, SECOND, SUB_AGENT, THIRD};
    record_and_replay(&world, bodies, 4, "proxy");
    static const int order[] = {0, 2, 1, 3}; /* the sub-agent is quicker this time */
    for (int i = 0; i < 4; i++) {
        struct reply reply;
        agent_ask(&world, &reply, bodies[order[i]]);
        reply_wait(&reply);
        EXPECT_INT(reply.status, 200);
        char words[32];
        snprintf(words, sizeof words, "answer %d", order[i] + 1);
        EXPECT(reply_has(&reply, words));
        snprintf(words, sizeof words, "call_%d", order[i] + 1);
        EXPECT(reply_has(&reply, words));
        EXPECT(reply_has(&reply, "{\\\"path\\\": \\\"/\\\"}"));
        EXPECT(reply_has(&reply, "\"finish_reason\":\"tool_calls\""));
        EXPECT(!reply_has(&reply, "token_ids"));
        buf_deinit(&reply.body);
    }
    EXPECT_INT(world.upstream_calls, 0);
    EXPECT_INT(gateway_session_stats(world.session)->cause, GATEWAY_FINE);
    char ids[5][64] = {0};
    EXPECT_INT(store_list_calls(world.store, "r-new", note_id, ids, NULL), 0);
    OWN(buf) struct buf prompt = {0}, tokens = {0}, logprobs = {0};
    EXPECT_INT(store_read_tokens(world.store, ids[3], &prompt, &tokens, &logprobs, NULL), 0);
    EXPECT_INT(prompt.size, 21 * 4);
    int32_t last;
    memcpy(&last, prompt.data + 80, 4);
    EXPECT_INT(last, 102); /* SECOND's */
    EXPECT_INT(tokens.size, 8);
    EXPECT_INT(logprobs.size, 8);
    world_end(&world);
}

TEST(a_replay_reports_the_first_divergence_and_goes_on_in_order)
{
    struct world world = {0};
    const char *const bodies[] = {FIRST, SECOND, THIRD};
    record_and_replay(&world, bodies, 3, NULL);
    const char *const now[] = {
        FIRST,
        BODY(MESSAGE("user", "question one") "," MESSAGE("assistant", "answer 1") "," MESSAGE(
            "user", "question 2, otherwise")),
        THIRD,
    };
    struct reply reply;
    for (int i = 0; i < 3; i++) {
        agent_ask(&world, &reply, now[i]);
        reply_wait(&reply);
        EXPECT_INT(reply.status, 200);
        char words[32];
        snprintf(words, sizeof words, "answer %d", i + 1);
        EXPECT(reply_has(&reply, words));
        buf_deinit(&reply.body);
    }
    const struct gateway_stats *stats = gateway_session_stats(world.session);
    EXPECT_INT(stats->cause, GATEWAY_REPLAY);
    struct str text = str_of(stats->error.text);
    EXPECT(str_find(text, STR("call 2 differs from the record's call 2 in message 4")) >= 0);
    EXPECT(str_find(text, STR("2, otherwise")) >= 0);
    EXPECT(str_find(text, STR("two")) >= 0);
    agent_ask(&world, &reply, FIRST);
    reply_wait(&reply);
    EXPECT(reply.status >= 400);
    EXPECT(reply_has(&reply, "all used up"));
    EXPECT_INT(world.exhausted, GATEWAY_REPLAY);
    buf_deinit(&reply.body);
    world_close_session(&world, 0);
    EXPECT(str_find(buf_str(&world.report), STR("\"cause\":\"replay\"")) >= 0);
    EXPECT(str_find(buf_str(&world.report), STR("in message 4")) >= 0);
    world_end(&world);
}

/* A title is asked for with the first words of the conversation, beside its first call. */
TEST(of_calls_with_the_same_messages_the_one_with_the_same_tools_is_replayed)
{
#define SAME_WORDS(rest)                                                                           \
    "{\"model\":\"m\",\"messages\":[" MESSAGE("user", "the same words") "]" rest "}"
#define TOOLS(name) ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"" name "\"}}]"
    const char *const bodies[] = {SAME_WORDS(""), SAME_WORDS(TOOLS("a")), SAME_WORDS(TOOLS("b")),
                                  SAME_WORDS(TOOLS("b"))};
    static const int order[] = {2, 1, 3, 0};
    struct world world = {0};
    record_and_replay(&world, bodies, 4, NULL);
    for (size_t i = 0; i < COUNT(order); i++) {
        struct reply reply;
        char words[32];
        agent_ask(&world, &reply, bodies[order[i]]);
        reply_wait(&reply);
        snprintf(words, sizeof words, "answer %d", order[i] + 1);
        EXPECT(reply_has(&reply, words));
        buf_deinit(&reply.body);
    }
    world_end(&world);
}

TEST(a_record_is_replayed_in_every_dialect)
{
    static const struct {
        const char *path, *body, *end;
    } cases[] = {
        {"/v1/chat/completions",
         "{\"model\":\"m\",\"stream\":true,\"messages\":[{\"role\":\"user\",\"content\":\"q\"}]}",
         "[DONE]"},
        {"/v1/messages",
         "{\"model\":\"m\",\"stream\":true,\"max_tokens\":9,\"messages\":[{\"role\":\"user\","
         "\"content\":\"q\"}]}",
         "message_stop"},
        {"/v1/responses", "{\"model\":\"m\",\"stream\":true,\"input\":\"q\"}",
         "response.completed"},
        {"/v1beta/models/m:streamGenerateContent",
         "{\"contents\":[{\"role\":\"user\",\"parts\":[{\"text\":\"q\"}]}]}", "finishReason"},
    };
    const char *const bodies[] = {
        "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"q\"}]}"};
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct world world = {0};
        record_and_replay(&world, bodies, 1, NULL);
        struct reply reply;
        agent_ask_at(&world, &reply, cases[i].path, str_of(cases[i].body));
        reply_wait(&reply);
        EXPECT_INT(reply.status, 200);
        EXPECT(reply_has(&reply, "answer 1"));
        EXPECT(reply_has(&reply, cases[i].end));
        EXPECT_INT(gateway_session_stats(world.session)->cause, GATEWAY_FINE);
        buf_deinit(&reply.body);
        world_end(&world);
    }
}

TEST(a_record_that_is_missing_or_damaged_is_named)
{
    struct err err = {0};
    EXPECT(!model_open("replay:/nowhere/at/all", NULL, &err));
    EXPECT(str_find(str_of(err.text), STR("/nowhere/at/all/calls.jsonl")) >= 0);
    char path[] = "/tmp/test-replay-XXXXXX.jsonl";
    int fd = mkstemps(path, 6);
    EXPECT(write(fd, "{\"number\":1}\n{oops\n", 19) == 19);
    close(fd);
    OWN(mem) char *spec = mem_format("replay:%s", path);
    EXPECT(!model_open(spec, NULL, &err));
    EXPECT(str_find(str_of(err.text), STR("line 2")) >= 0);
    static const struct {
        const char *line, *why;
    } wrong[] = {
#define LINE(more, answer)                                                                         \
    "{\"call_id\":\"c\",\"number\":1,\"state\":\"answered\"," more                                 \
    "\"request\":{\"model\":\"m\",\"messages\":[]},"                                               \
    "\"answer\":{\"message\":{\"role\":\"assistant\",\"content\":\"x\"}," answer "}}\n"
        {LINE("", "\"token_ids\":[1,\"2\"]"), "token ids are not all ids"},
        {LINE("", "\"token_ids\":[1,4294967296]"), "token ids are not all ids"},
        {LINE("", "\"logprobs\":[-1,\"2\"]"), "log-probabilities are not all numbers"},
        {LINE("\"parent\":\"d\",\"shared_prompt_tokens\":4,", "\"prompt_token_ids\":[1]"),
         "tokens that are not in the record"},
        {LINE("\"shared_prompt_tokens\":4611686018427387904,", "\"prompt_token_ids\":[1]"),
         "tokens that are not in the record"},
    };
    for (size_t i = 0; i < COUNT(wrong); i++) {
        EXPECT_INT(file_write(path, str_of(wrong[i].line), 0600, false, NULL), 0);
        struct model *model = model_open(spec, NULL, &err);
        EXPECT(!model);
        EXPECT(str_find(str_of(err.text), str_of(wrong[i].why)) >= 0);
        model_unref(model);
    }
    unlink(path);
}
