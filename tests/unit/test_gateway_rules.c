/* An agent's rules about its calls: what is no turn, nonces, signs of life. */
#include "test_gateway.h"

#include "dialect/dialect.h"
#include "gateway/rules.h"
#include "trace/rules.h"

/* ---------------------------------------------------------------- pure */

static struct str header(void *context, const char *name)
{
    (void)context;
    return strcmp(name, "x-kind") == 0 ? STR("probe one") : STR_NONE;
}

TEST(conditions_about_a_request)
{
    static const struct {
        const char *what, *pattern;
        bool fits;
    } rows[] = {
        {"path", "/v1/chat/completions", true},
        {"path", "/v1/*", true},
        {"path", "*/completions", true},
        {"path", "/v1", false},
        {"model", "a-model", true},
        {"model", "*mod*", true},
        {"model", "", false},
        {"system", "You are a title generator*", true},
        {"system", "*generator", false},
        {"first", "one*", true},
        {"last", "two*", true},
        {"last", "one*", false},
        {"max_tokens", "5", true},
        {"max_tokens", "<=5", true},
        {"max_tokens", "<=4", false},
        {"max_tokens", ">=6", false},
        {"messages", "3", true},
        {"messages", ">=4", false},
        {"tools", "false", true},
        {"tools", "0", true},
        {"tools", "true", false},
        {"stream", "true", true},
        {"stream", "false", false},
        {"header.x-kind", "probe*", true},
        {"header.x-none", "*", false},
        {"body.a.0.b", "deep", true},
        {"body.a.1.b", "deep", false},
        {"body.nn", "7", true},
        {"body.f", "1.5", true},
        {"body.t", "true", true},
        {"body.null", "*", false},
        {"body.a", "*", true},
        {"body.a", "1", true},
    };
    static const char *const source =
        "{\"model\":\"a-model\",\"stream\":true,\"max_tokens\":5,\"nn\":7,\"f\":1.5,\"t\":true,"
        "\"null\":null,\"a\":[{\"b\":\"deep\"}],\"messages\":["
        "{\"role\":\"system\",\"content\":\"You are a title generator.\\nX\"},"
        "{\"role\":\"user\",\"content\":\"one\"},{\"role\":\"user\",\"content\":\"two \\\"\"}]}";
    OWN(json_doc) struct json_doc doc = {0};
    OWN(arena) struct arena arena = {0};
    struct err err = {0};
    struct trace_request request = {0};
    struct dialect_route route = dialect_find_route(STR("POST"), STR("/v1/chat/completions"));
    EXPECT_INT(json_read(&doc, str_of(source), NULL, &err), 0);
    EXPECT_INT(dialect_read_request(&route, json_root(&doc), &arena, &request, &err), 0);
    struct rules_scene scene = {.path = STR("/v1/chat/completions"),
                                .header = header,
                                .body = json_root(&doc),
                                .request = &request};
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct trace_condition when[] = {{"stream", "true"}, {rows[i].what, rows[i].pattern}};
        struct trace_side_rule side = {"x", true, when, 2};
        struct trace_rules rules = {.sides = &side, .side_count = 1};
        if ((rules_side(&rules, &scene) == &side) != rows[i].fits)
            test_fail(__FILE__, __LINE__, "%s = %s", rows[i].what, rows[i].pattern);
    }
    EXPECT(!rules_side(NULL, &scene));
}

static const struct trace_nonce nonces[] = {
    {"chunk", "Chunk ID: ", "", "000000", TRACE_CHARS_HEX, 6, 6},
    {"time", "Wall time: ", " seconds", "0.0", TRACE_CHARS_NUMBER, 3, 8},
    {"session", "\\\"id\\\": \\\"", "\\\"", "x", TRACE_CHARS_WORD, 1, 20},
};
static const struct trace_rules with_nonces = {.nonces = nonces, .nonce_count = COUNT(nonces)};

TEST(nonces_are_made_the_same_and_can_be_put_back)
{
    static const struct {
        const char *body, *expected;
    } rows[] = {
        {"{\"a\":\"Chunk ID: 3fA902\\nWall time: 0.0518 seconds\"}",
         "{\"a\":\"Chunk ID: 000000\\nWall time: 0.0 seconds\"}"},
        {"Chunk ID: 3fa902.Chunk ID: 111111", "Chunk ID: 000000.Chunk ID: 000000"},
        {"\\\"id\\\": \\\"ses_1-b\\\"", "\\\"id\\\": \\\"x\\\""},
        /* Not of this form: too short, too long, another character, another end. */
        {"Chunk ID: 3fa90", NULL},
        {"Chunk ID: 3fa9021", NULL},
        {"Chunk ID: 3fg902", NULL},
        {"Wall time: 0.05 minutes", NULL},
        {"Wall time: ", NULL},
        {"", NULL},
        {"Chunk ID: ", NULL},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        OWN(buf) struct buf out = {0};
        OWN(buf) struct buf notes = {0};
        OWN(buf) struct buf back = {0};
        OWN(json_doc) struct json_doc doc = {0};
        bool any = rules_canonical(&with_nonces, str_of(rows[i].body), &out, &notes);
        EXPECT(any == (rows[i].expected != NULL));
        if (!any)
            continue;
        EXPECT_STR(buf_str(&out), str_of(rows[i].expected));
        EXPECT_INT(json_read(&doc, buf_str(&notes), NULL, NULL), 0);
        EXPECT_INT(rules_restore(buf_str(&out), json_root(&doc), &back), 0);
        EXPECT_STR(buf_str(&back), str_of(rows[i].body));
        EXPECT_INT(rules_restore(STR("short"), json_root(&doc), &back), -1);
    }
    OWN(buf) struct buf out = {0};
    OWN(buf) struct buf notes = {0};
    EXPECT(!rules_canonical(NULL, STR("Chunk ID: 3fa902"), &out, &notes));
    /* No more than a bound of them. */
    OWN(buf) struct buf many = {0};
    for (int i = 0; i < 1200; i++)
        buf_str_append(&many, STR("Chunk ID: 3fa902 "));
    EXPECT(rules_canonical(&with_nonces, buf_str(&many), &out, &notes));
    EXPECT_INT(out.size, many.size);
    EXPECT(str_ends(buf_str(&out), STR("Chunk ID: 3fa902 ")));
}

TEST(signs_of_life_have_the_form_that_is_asked_for)
{
    static const struct {
        const struct dialect *dialect;
        enum trace_keepalive form;
        const char *expected;
    } rows[] = {
        {&dialect_chat, TRACE_KEEPALIVE_DIALECT, ": keepalive\n\n"},
        {&dialect_google, TRACE_KEEPALIVE_DIALECT, "data: {}\n\n"},
        {&dialect_responses, TRACE_KEEPALIVE_DIALECT, ": keepalive\n\n"},
        {&dialect_google, TRACE_KEEPALIVE_COMMENT, ": keepalive\n\n"},
        {&dialect_chat, TRACE_KEEPALIVE_DATA, "data: {}\n\n"},
        {&dialect_chat, TRACE_KEEPALIVE_NONE, ""},
        {&dialect_chat, TRACE_KEEPALIVE_EVENT,
         "data: {\"object\":\"chat.completion.chunk\",\"choices\":[]}\n\n"},
        {&dialect_messages, TRACE_KEEPALIVE_EVENT, "event: ping\ndata: {\"type\":\"ping\"}\n\n"},
        {&dialect_responses, TRACE_KEEPALIVE_EVENT, "data: {\"type\":\"keepalive\"}\n\n"},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        OWN(buf) struct buf out = {0};
        struct trace_rules rules = {.keepalive = rows[i].form};
        rules_keepalive(&rules, rows[i].dialect, &out);
        EXPECT_STR(buf_str(&out), str_of(rows[i].expected));
    }
}

/* ---------------------------------------------------------------- in a session */

static void answer(struct world *world, struct http_exchange *exchange)
{
    (void)world;
    http_respond_json(exchange, 200,
                      STR("{\"choices\":[{\"message\":{\"role\":\"assistant\",\"content\":\"hi\"},"
                          "\"finish_reason\":\"stop\"}]}"));
}

#define TOOL "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"t\"}}]"
#define MAIN(text)                                                                                 \
    "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"" text "\"}]," TOOL "}"
#define MEMORY                                                                                     \
    "{\"model\":\"m\",\"messages\":[{\"role\":\"system\",\"content\":\"Look back.\"},"             \
    "{\"role\":\"user\",\"content\":\"x\"}]," TOOL "}"
#define BARE "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"no tools\"}]}"

static void ask(struct world *world, const char *body)
{
    struct reply reply;
    agent_ask(world, &reply, body);
    reply_wait(&reply);
    EXPECT_INT(reply.status, 200);
    buf_deinit(&reply.body);
}

static void read_calls(struct world *world, struct buf *text)
{
    struct err err = {0};
    buf_clear(text);
    EXPECT_INT(file_read(world->calls_path, 1 << 20, text, &err), 0);
}

TEST(a_call_is_what_the_rule_says_whatever_it_looks_like)
{
    static struct trace_condition memory[] = {{"system", "Look back*"}};
    static struct trace_condition bare[] = {{"first", "no tools"}};
    static const struct trace_side_rule sides[] = {{"memory", true, memory, 1},
                                                   {"talk", false, bare, 1}};
    static const struct trace_rules rules = {.sides = sides, .side_count = 2};
    struct world world = {.upstream_answer = answer};
    OWN(buf) struct buf calls = {0};
    world_start(&world);
    world_model(&world);
    world_open(&world, (struct gateway_session_options){.rules = &rules});
    ask(&world, MAIN("1"));
    ask(&world, MEMORY); /* has tools, and is no turn */
    ask(&world, BARE);   /* has none, and is one */
    EXPECT_INT(gateway_session_stats(world.session)->turns, 2);
    read_calls(&world, &calls);
    EXPECT(str_find(buf_str(&calls), STR("\"side\":true,\"side_name\":\"memory\"")) > 0);
    EXPECT(str_find(buf_str(&calls), STR("\"side\":false,\"side_name\":\"talk\"")) > 0);
    world_end(&world);
}

TEST(nonces_go_where_the_mode_says)
{
    static const char *const modes[] = {"black_box", "proxy"};
    for (size_t i = 0; i < COUNT(modes); i++) {
        struct world world = {.upstream_answer = answer};
        OWN(buf) struct buf calls = {0};
        world_start(&world);
        world_model(&world);
        world_open(&world,
                   (struct gateway_session_options){.rules = &with_nonces, .mode = modes[i]});
        ask(&world, MAIN("Chunk ID: 3fa902"));
        bool proxy = i == 1;
        EXPECT((str_find(buf_str(&world.upstream_body), STR("Chunk ID: 000000")) > 0) == proxy);
        EXPECT((str_find(buf_str(&world.upstream_body), STR("3fa902")) > 0) == !proxy);
        read_calls(&world, &calls);
        EXPECT((str_find(buf_str(&calls), STR("\"nonces\":[{\"name\":\"chunk\",\"at\":")) > 0) ==
               proxy);
        EXPECT(str_find(buf_str(&calls), STR("3fa902")) > 0);
        world_end(&world);
    }
}

TEST(a_call_keeps_only_the_nonces_its_parent_has_not)
{
    struct world world = {.upstream_answer = answer};
    OWN(buf) struct buf calls = {0};
    world_start(&world);
    world_model(&world);
    world_open(&world, (struct gateway_session_options){.rules = &with_nonces, .mode = "proxy"});
    ask(&world, MAIN("Chunk ID: 111111"));
    ask(&world, MAIN("Chunk ID: 111111 Chunk ID: 222222"));
    ask(&world, MAIN("Chunk ID: 111111 Chunk ID: 222222 "));
    ask(&world, MAIN("Chunk ID: 333333 Chunk ID: 222222"));
    read_calls(&world, &calls);
    static const struct {
        const char *was;
        int count, shared;
    } rows[] = {{"111111", 1, 0}, {"222222", 1, 1}, {NULL, 0, 2}, {"333333", 2, 0}};
    char before[ID_MAX] = "";
    size_t at = 0;
    for (struct str rest = buf_str(&calls); rest.size && at < COUNT(rows); at++) {
        OWN(json_doc) struct json_doc doc = {0};
        OWN(arena) struct arena arena = {0};
        EXPECT_INT(json_read(&doc, str_cut(&rest, '\n'), NULL, NULL), 0);
        struct json line = json_root(&doc), kept = json_get(line, "nonces");
        EXPECT_INT(json_type(kept), JSON_ARRAY);
        EXPECT_INT(json_size(kept), rows[at].count);
        EXPECT_INT(json_int_or(json_get(line, "nonces_shared"), 0), rows[at].shared);
        if (rows[at].was)
            EXPECT(json_is(json_get(json_at(kept, 0), "was"), rows[at].was));
        if (rows[at].shared)
            EXPECT(json_is(json_get(line, "nonces_parent"), before));
        snprintf(before, sizeof before, "%.*s",
                 STR_ARGS(json_str(json_get(line, "call_id"), &arena)));
    }
    EXPECT_INT(at, COUNT(rows));
    world_end(&world);
}

static void hold(struct world *world, struct http_exchange *exchange)
{
    world->held = exchange;
}

TEST(a_waiting_stream_is_kept_as_the_rules_say)
{
    static const struct trace_rules rules[] = {
        {.keepalive = TRACE_KEEPALIVE_DATA, .keepalive_ms = 20, .headers_after_ms = 20},
        {.keepalive = TRACE_KEEPALIVE_NONE, .keepalive_ms = 20, .headers_after_ms = 20},
    };
    for (size_t i = 0; i < COUNT(rules); i++) {
        struct world world = {.upstream_answer = hold};
        struct reply reply;
        world_start(&world);
        world_model(&world);
        world_open(&world, (struct gateway_session_options){.rules = &rules[i]});
        agent_ask(&world, &reply,
                  "{\"model\":\"m\",\"stream\":true,\"messages\":[{\"role\":\"user\",\"content\":"
                  "\"x\"}]}");
        PUMP_UNTIL(&world,
                   i == 0 ? reply_has(&reply, "data: {}\n\ndata: {}\n\n") : reply.status == 200);
        if (i == 1)
            EXPECT_INT(reply.body.size, 0);
        http_call_close(reply.call);
        buf_deinit(&reply.body);
        world_end(&world);
    }
}

static void busy(struct world *world, struct http_exchange *exchange)
{
    static const struct http_header headers[] = {{{"retry-after", 11}, {"50", 2}}};
    (void)world;
    http_respond(exchange, 429, headers, 1, STR("{}"));
}

TEST(no_longer_wait_is_shown_than_the_agent_bears)
{
    static const struct trace_rules rules = {.retry_after_s_max = 7};
    struct world world = {.upstream_answer = busy};
    struct reply reply;
    world_start(&world);
    world_model(&world);
    world_open(&world, (struct gateway_session_options){.rules = &rules});
    agent_ask(&world, &reply, MAIN("x"));
    reply_wait(&reply);
    EXPECT_INT(reply.status, 429);
    EXPECT_STR(str_of(reply.retry_after), STR("7"));
    buf_deinit(&reply.body);
    world_end(&world);
}
