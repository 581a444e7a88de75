/* The record of a rollout is one, wherever it is read. Conversations grow, branch, change and are
 * broken off at random, with tokens, as streams or whole, several at once; then every line of
 * calls.jsonl is compared with what the journal says of that call, and the samples made of the
 * lines with those made of the journal, with those of a file that a dead server left, and with
 * those of a file that lacks lines. */
#include "rollout/rollout.h"
#include "test_gateway.h"
#include "trace/sample.h"

#define STEPS 60
#define BURST_MAX 4
#define MESSAGES_MAX 24

static uint64_t seed;

static uint32_t dice(uint32_t sides)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(seed >> 33) % sides;
}

/* ---------------------------------------------------------------- the model server */

/* What a message is in tokens: the same words are the same ids, and an answer's are those it was
 * sampled with. */
static void put_ids(struct buf *out, struct str words)
{
    uint32_t sum = 17;
    for (size_t i = 0; i < words.size; i++)
        sum = sum * 31 + (unsigned char)words.data[i];
    for (size_t i = 0; i < 3 + words.size / 4; i++)
        buf_format(out, "%s%u", out->size ? "," : "", (sum + (uint32_t)i * 7919) % 150000);
}

static void put_prompt(struct json messages, struct buf *out)
{
    JSON_EACH (item, messages) {
        OWN(arena) struct arena arena = {0};
        put_ids(out, json_str(json_get(item.value, "content"), &arena));
    }
    if (out->size % 9 == 0) /* a template of its own mind */
        buf_format(out, ",777");
}

static double logprob_of(long id)
{
    return -(double)(id % 31) - (double)(id * 7919 % 1000003) / 1000003;
}

/* The choice's members behind its message: its ids, and as many log-probabilities. */
static void put_tokens(struct str words, struct buf *out)
{
    OWN(buf) struct buf ids = {0};
    put_ids(&ids, words);
    buf_format(out, "\"token_ids\":[%s],\"logprobs\":{\"content\":[", buf_text(&ids));
    struct str rest = buf_str(&ids);
    for (bool first = true; rest.size; first = false) {
        struct str id = str_cut(&rest, ',');
        buf_format(out, "%s{\"token\":\"token_id:%.*s\",\"logprob\":%.17g}", first ? "" : ",",
                   STR_ARGS(id), logprob_of(strtol(id.data, NULL, 10)));
    }
    buf_format(out, "]}");
}

static void answer(struct world *world, struct http_exchange *exchange)
{
    static const struct http_header type = {{"content-type", 12}, {"text/event-stream", 17}};
    OWN(buf) struct buf prompt = {0}, tokens = {0}, text = {0};
    struct str asked = buf_str(&world->upstream_body);
    char words[32];
    uint32_t kind = dice(16);
    if (kind < 2) {
        http_respond_json(exchange, kind ? 500 : 400, STR("{\"error\":{\"message\":\"no\"}}"));
        return;
    }
    snprintf(words, sizeof words, "answer %u", dice(3) ? (unsigned)world->upstream_calls : dice(3));
    OWN(mem)
    char *tools = kind < 10 ? mem_dup("")
                            : mem_format(",\"tool_calls\":[{\"index\":0,\"id\":\"call-%d\","
                                         "\"type\":\"function\",\"function\":{\"name\":\"f\","
                                         "\"arguments\":\"{\\\"a\\\": 1}\"}}]",
                                         world->upstream_calls);
    OWN(json_doc) struct json_doc doc = {0};
    (void)json_read(&doc, asked, NULL, NULL);
    put_prompt(json_get(json_root(&doc), "messages"), &prompt);
    put_tokens(str_of(words), &tokens);
    if (kind == 2) /* an engine that was not asked well */
        buf_clear(&tokens);
    const char *comma = tokens.size ? "," : "";
    if (str_find(asked, STR("\"stream\":true")) < 0) {
        buf_format(&text,
                   "{\"id\":\"x\",\"model\":\"m\",\"prompt_token_ids\":[%s],\"choices\":[{\"index\""
                   ":0,\"message\":{\"role\":\"assistant\",\"content\":\"%s\"%s},\"finish_reason\":"
                   "\"stop\"%s%s}],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":3}}",
                   buf_text(&prompt), words, tools, comma, buf_text(&tokens));
        http_respond_json(exchange, 200, buf_str(&text));
        return;
    }
    buf_format(&text,
               "data: {\"id\":\"x\",\"model\":\"m\",\"prompt_token_ids\":[%s],\"choices\":[{"
               "\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"%s\"%s}%s%s}]}\n\n",
               buf_text(&prompt), words, tools, comma, buf_text(&tokens));
    if (kind != 3) /* else it is broken off */
        buf_format(&text, "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":"
                          "\"stop\"}]}\n\ndata: [DONE]\n\n");
    http_respond_begin(exchange, 200, &type, 1);
    (void)http_respond_write(exchange, buf_str(&text));
    http_respond_end(exchange);
}

/* ---------------------------------------------------------------- the agent */

struct talk {
    char *messages[MESSAGES_MAX];
    size_t count;
    uint32_t tools, hour;
    struct buf said;   /* the last answer's words */
    struct buf called; /* and the id of its tool call; empty: none */
};

static void add_message(struct talk *talk, const char *role, const char *words)
{
    talk->messages[talk->count++] = mem_format("{\"role\":\"%s\",\"content\":\"%s\"}", role, words);
}

/* Its arguments are the same, but written otherwise. */
static void add_called(struct talk *talk)
{
    talk->messages[talk->count++] =
        mem_format("{\"role\":\"assistant\",\"content\":\"%s\",\"tool_calls\":[{\"id\":\"%s\","
                   "\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":"
                   "\"{\\\"a\\\":1}\"}}]}",
                   buf_text(&talk->said), buf_text(&talk->called));
    talk->messages[talk->count++] =
        mem_format("{\"role\":\"tool\",\"tool_call_id\":\"%s\",\"content\":\"done\"}",
                   buf_text(&talk->called));
}

static void cut_talk(struct talk *talk, size_t from)
{
    while (talk->count > from)
        free(talk->messages[--talk->count]);
}

static void say(struct talk *talk)
{
    char words[160];
    snprintf(words, sizeof words, "words %u %.*s", dice(1000), (int)dice(100),
             "that are some more and go on for a while, so that a message is worth its reference, "
             "as messages usually are");
    add_message(talk, "user", words);
}

static void change(struct talk *talk)
{
    uint32_t kind = dice(12);
    if (talk->count + 2 * BURST_MAX >= MESSAGES_MAX)
        cut_talk(talk, 1 + dice(3)); /* compacted */
    if (talk->said.size && kind && !talk->called.size)
        add_message(talk, "assistant", buf_text(&talk->said));
    if (talk->said.size && kind && talk->called.size)
        add_called(talk);
    if (kind == 1)
        cut_talk(talk, dice((uint32_t)talk->count + 1));
    if (kind == 2)
        talk->tools = dice(3);
    if (kind == 3)
        talk->hour = dice(24);
    if (kind == 4 && talk->count > 2) { /* edited somewhere */
        free(talk->messages[1]);
        talk->messages[1] = mem_format("{\"role\":\"user\",\"content\":\"edited %u\"}", dice(99));
    }
    say(talk);
}

static void put_body(const struct talk *talk, bool stream, bool title, struct buf *out)
{
    buf_format(out, "{\"model\":\"m\",\"stream\":%s,", stream ? "true" : "false");
    if (talk->tools && !title)
        buf_format(out,
                   "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"tool-%u\","
                   "\"parameters\":{}}}],",
                   talk->tools);
    buf_format(out, "\"messages\":[{\"role\":\"system\",\"content\":\"it is %u o'clock\"}",
               talk->hour);
    for (size_t i = 0; i < talk->count; i++)
        buf_format(out, ",%s", talk->messages[i]);
    buf_format(out, "]}");
}

/* Several go on from the same place; some agents do not wait. */
static void ask_some(struct world *world, struct talk *talk)
{
    struct reply replies[BURST_MAX] = {0};
    struct buf bodies[BURST_MAX] = {0};
    size_t count = dice(4) ? 1 : 2 + dice(BURST_MAX - 1);
    for (size_t i = 0; i < count; i++) {
        put_body(talk, dice(2), dice(8) == 0, &bodies[i]);
        agent_ask(world, &replies[i], buf_text(&bodies[i]));
        if (i + 1 < count && dice(2))
            say(talk);
    }
    int begun = world->begun;
    if (dice(8) == 0) {
        for (int tick = 0; tick < 20 && world->begun == begun; tick++)
            loop_once(world->loop, 1);
        if (!replies[0].done)
            http_call_close(TAKE(replies[0].call));
        replies[0].done = true;
    }
    for (size_t i = 0; i < count; i++) {
        reply_wait(&replies[i]);
        struct str text = buf_str(&replies[i].body);
        long at = str_find(text, STR("\"answer ")), tool = str_find(text, STR("\"call-"));
        buf_clear(&talk->said);
        buf_clear(&talk->called);
        if (tool >= 0) {
            struct str id = str_from(text, (size_t)tool + 1);
            buf_str_append(&talk->called, str_cut(&id, '"'));
        }
        if (at >= 0) {
            struct str words = str_from(text, (size_t)at + 1);
            buf_str_append(&talk->said, str_cut(&words, '"'));
        }
        buf_deinit(&replies[i].body);
        buf_deinit(&bodies[i]);
    }
}

/* ---------------------------------------------------------------- what is compared */

static bool is_one_of(struct str key, const char *const *names)
{
    for (; *names; names++)
        if (str_is(key, *names))
            return true;
    return false;
}

/* Every member of one is the other's. */
static void compare(struct json line, struct json journal, const char *const *but)
{
    JSON_EACH (item, line) {
        OWN(arena) struct arena arena = {0};
        struct str key = json_str(item.key, &arena);
        OWN(mem) char *name = str_dup(key);
        if (is_one_of(key, but))
            continue;
        struct str mine = json_raw(item.value), other = json_raw(json_get(journal, name));
        if (!str_equal(mine, other))
            test_fail(__FILE__, __LINE__, "%s is %.*s in the line and %.*s in the journal", name,
                      STR_ARGS(str_upto(mine, 300)), STR_ARGS(str_upto(other, 300)));
    }
}

static size_t tokens_checked;

/* The tokens of a call are those that the engine gave for its messages and its answer. */
static void check_tokens(struct json call)
{
    OWN(buf) struct buf prompt = {0}, ids = {0};
    OWN(arena) struct arena arena = {0};
    struct json given = json_get(call, "answer"), list = json_get(given, "token_ids");
    if (!json_size(list))
        return;
    buf_byte(&prompt, '[');
    OWN(buf) struct buf inside = {0};
    put_prompt(json_get(json_get(call, "request"), "messages"), &inside);
    buf_format(&prompt, "%s]", buf_text(&inside));
    EXPECT_STR(json_raw(json_get(given, "prompt_token_ids")), buf_str(&prompt));
    put_ids(&ids, json_str(json_get(json_get(given, "message"), "content"), &arena));
    struct str raw = json_raw(list);
    EXPECT_STR(str_make(raw.data + 1, raw.size - 2), buf_str(&ids));
    struct json_item logprob = json_first(json_get(given, "logprobs"));
    JSON_EACH (item, list) {
        long long id = json_int_or(item.value, -1);
        EXPECT((float)json_double_or(logprob.value, 1) == (float)logprob_of((long)id));
        logprob = json_following(logprob);
    }
    EXPECT(!json_exists(logprob.value));
    tokens_checked++;
}

/* Everything that is made of a record. */
static void write_samples(struct samples *samples, struct buf *out)
{
    static const struct sample_owner owner = {.rollout = "r-test", .mode = "proxy", .fate = "ok"};
    struct json_writer json = {.out = out};
    for (size_t i = 0; i < samples_count(samples); i++) {
        sample_write(samples, i, &owner, &(struct json_writer){.out = out});
        buf_byte(out, '\n');
    }
    samples_write_summary(samples, &(struct json_writer){.out = out});
    samples_write_turns(samples, 1 << 20, &(struct json_writer){.out = out});
    json_begin_object(&json);
    samples_write_nodes(samples, &json);
    json_end_object(&json);
}

static void samples_of_file(struct world *world, struct buf *out)
{
    OWN(samples) struct samples *samples = samples_new(&(struct samples_options){0});
    OWN(buf) struct buf text = {0};
    (void)file_read(world->calls_path, 64 << 20, &text, NULL);
    for (struct str rest = buf_str(&text); rest.size;) {
        struct err err = {0};
        if (samples_add(samples, str_cut(&rest, '\n'), &err) < 0)
            test_fail(__FILE__, __LINE__, "%s", err.text);
    }
    samples_finish(samples);
    write_samples(samples, out);
}

static void samples_of_rollout(struct world *world, struct buf *out)
{
    struct samples *samples = NULL;
    struct err err = {0};
    if (rollout_read_samples(world->home, "r-test", world->store, 0, &samples, &err) < 0)
        test_fail(__FILE__, __LINE__, "%s", err.text);
    else
        write_samples(samples, out);
    samples_free(samples);
}

/* Compares line by line; the samples are the journal's. */
static void check_lines(struct world *world, struct buf *out)
{
    static const char *const in_lines[] = {"request",
                                           "answer",
                                           "parent",
                                           "shared_messages",
                                           "shared_from",
                                           "shared_tools",
                                           "shared_prompt_tokens",
                                           NULL};
    static const char *const in_answers[] = {"prompt_token_ids", NULL};
    OWN(samples) struct samples *samples = samples_new(&(struct samples_options){0});
    OWN(buf) struct buf text = {0};
    (void)file_read(world->calls_path, 64 << 20, &text, NULL);
    for (struct str rest = buf_str(&text); rest.size;) {
        OWN(json_doc) struct json_doc doc = {0}, whole_doc = {0};
        OWN(arena) struct arena arena = {0};
        OWN(buf) struct buf whole = {0};
        struct err err = {0};
        EXPECT_INT(json_read(&doc, str_cut(&rest, '\n'), NULL, NULL), 0);
        struct json line = json_root(&doc);
        OWN(mem) char *id = str_dup(json_str(json_get(line, "call_id"), &arena));
        if (gateway_read_call(world->store, id, &whole, &err) < 0 ||
            json_read(&whole_doc, buf_str(&whole), NULL, &err) < 0 ||
            samples_add(samples, buf_str(&whole), &err) < 0) {
            test_fail(__FILE__, __LINE__, "%s: %s", id, err.text);
            return;
        }
        struct json journal = json_root(&whole_doc);
        compare(line, journal, in_lines);
        compare(json_get(line, "answer"), json_get(journal, "answer"), in_answers);
        check_tokens(journal);
    }
    samples_finish(samples);
    write_samples(samples, out);
}

static void expect_same(struct buf *a, struct buf *b, const char *who)
{
    if (str_equal(buf_str(a), buf_str(b)))
        return;
    size_t at = 0;
    while (at < a->size && at < b->size && a->data[at] == b->data[at])
        at++;
    size_t from = at > 200 ? at - 200 : 0;
    test_fail(__FILE__, __LINE__, "%s: samples differ at %zu: '%.300s' is not '%.300s'", who, at,
              buf_text(a) + from, buf_text(b) + from);
}

static void live(uint64_t start)
{
    struct world world = {.upstream_answer = answer, .lines_ms = start % 2 ? 20 : 0};
    struct gateway_session_options options = {
        .mode = "proxy", .limits.calls_max = 100000, .retry_grace_ms = 30};
    world_start(&world);
    world_model(&world);
    world_open(&world, options);
    struct talk talks[2] = {{.tools = 1}, {.tools = 2}};
    seed = start;
    for (int i = 0; i < STEPS; i++) {
        struct talk *talk = &talks[dice(5) == 0];
        change(talk);
        ask_some(&world, talk);
    }
    world_close_session(&world, 1000);
    OWN(buf) struct buf of_file = {0}, of_journal = {0}, of_rest = {0};
    samples_of_file(&world, &of_file);
    check_lines(&world, &of_journal);
    expect_same(&of_file, &of_journal, "the journal");

    /* What was there when a server died. */
    OWN(buf) struct buf text = {0};
    (void)file_read(world.calls_path, 64 << 20, &text, NULL);
    if (truncate(world.calls_path, (off_t)dice((uint32_t)text.size)) < 0)
        abort();
    world.closed = false;
    buf_clear(&world.report);
    options.restore = true;
    world_open(&world, options);
    world_close_session(&world, 0);
    samples_of_file(&world, &of_rest);
    expect_same(&of_file, &of_rest, "a file that was cut");

    /* Lines that a full disk did not take, that were damaged since, and no file at all. */
    for (int lost = 0; lost < 3; lost++) {
        OWN(buf) struct buf some = {0}, made = {0};
        for (struct str rest = buf_str(&text); rest.size;) {
            struct str line = str_cut(&rest, '\n');
            bool good = dice(6);
            if (good || lost == 1)
                buf_str_append(&some, good ? line : str_upto(line, dice((uint32_t)line.size)));
            if (good || lost == 1)
                buf_byte(&some, '\n');
        }
        if (lost == 2 ? unlink(world.calls_path) < 0
                      : file_write(world.calls_path, buf_str(&some), 0600, false, NULL) < 0)
            abort();
        samples_of_rollout(&world, &made);
        expect_same(&of_file, &made, lost == 2 ? "no file" : "a file with holes");
    }
    for (size_t i = 0; i < COUNT(talks); i++) {
        cut_talk(&talks[i], 0);
        buf_deinit(&talks[i].said);
        buf_deinit(&talks[i].called);
    }
    world_end(&world);
}

/* ---------------------------------------------------------------- a title */

static void answer_plain(struct http_exchange *exchange)
{
    http_respond_json(
        exchange, 200,
        STR("{\"id\":\"x\",\"model\":\"m\",\"choices\":[{\"index\":0,\"message\":{"
            "\"role\":\"assistant\",\"content\":\"fine\"},\"finish_reason\":\"stop\"}]}"));
}

static void answer_titles_later(struct world *world, struct http_exchange *exchange)
{
    if (str_find(buf_str(&world->upstream_body), STR("\"tools\"")) >= 0)
        answer_plain(exchange);
    else
        world->held = exchange;
}

TEST(a_call_that_turns_out_to_be_a_title_is_one_in_the_journal_too)
{
    struct world world = {.upstream_answer = answer_titles_later};
    struct talk talk = {.tools = 1};
    struct reply title, real;
    OWN(buf) struct buf first = {0}, second = {0}, samples = {0};
    world_start(&world);
    world_model(&world);
    world_open(&world, (struct gateway_session_options){0});
    say(&talk);
    put_body(&talk, false, true, &first);
    put_body(&talk, false, false, &second);
    agent_ask(&world, &title, buf_text(&first));
    PUMP_UNTIL(&world, world.held);
    agent_ask(&world, &real, buf_text(&second));
    reply_wait(&real);
    answer_plain(TAKE(world.held));
    reply_wait(&title);
    OWN(buf) struct buf text = {0};
    (void)file_read(world.calls_path, 1 << 20, &text, NULL);
    EXPECT(str_find(buf_str(&text), STR("\"side\":true")) >= 0);
    check_lines(&world, &samples);
    buf_deinit(&title.body);
    buf_deinit(&real.body);
    cut_talk(&talk, 0);
    world_end(&world);
}

/* ---------------------------------------------------------------- all of it */

TEST_WITHIN(a_rollouts_record_is_the_same_wherever_it_is_read, 120)
{
    for (uint64_t i = 1; i <= 4; i++)
        live(i);
    EXPECT(tokens_checked > (size_t)4 * STEPS / 2);
}
