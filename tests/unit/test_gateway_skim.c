/* What is skimmed is what reading all of it gives. Conversations of every dialect grow, change,
 * shrink and break at random through one session; whether a call was taken, the messages and tools
 * that calls.jsonl adds up to, and the request that the journal gives back are compared with the
 * body itself, read as a whole. */
#include "dialect/dialect.h"
#include "gateway/gate.h"
#include "gateway/inner.h"
#include "test_gateway.h"

#define STEPS 120
#define BURST_MAX 4
#define ELEMENTS_MAX 64

static uint64_t seed;

static uint32_t dice(uint32_t sides)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(seed >> 33) % sides;
}

/* ---------------------------------------------------------------- conversations */

struct talk {
    const struct dialect *dialect;
    char *elements[ELEMENTS_MAX];
    size_t count;
    uint32_t system, nonce, order;
    uint32_t tools, tools_last; /* which; whether they come behind the conversation */
    uint32_t strict;            /* not said, false, true */
};

/* With escapes, and with letters of more than one byte. */
static void put_text(struct buf *out, uint32_t size)
{
    static const char *const pieces[] = {"if (a > \\\"b\\\")\\n",
                                         "\\u00e9\\u20ac ",
                                         "\xc3\xa9t\xc3\xa9 ",
                                         "\\\\",
                                         "plain words ",
                                         "\\ud83d\\ude00",
                                         "]},{",
                                         "\\/"};
    while (size--)
        buf_str_append(out, str_of(pieces[dice(COUNT(pieces))]));
}

/* Calls and results without an id are numbered from the first content on. */
static void put_google(struct buf *out, uint32_t kind, uint32_t size, uint32_t serial)
{
    static const char *const heads[] = {
        "{\"role\":\"model\",\"parts\":[{\"functionCall\":{\"name\":\"f\",\"args\":{}}},{"
        "\"functionCall\":"
        "{\"name\":\"g\",\"id\":\"%u\"}},{\"text\":\"",
        "{\"role\":\"model\",\"parts\":[{\"thought\":true,\"text\":\"hm "
        "%u\"},{\"thoughtSignature\":\"s\",\"functionCall\":{\"name\":\"f\"}},{\"text\":\"",
        "{\"role\":\"user\",\"parts\":[{\"functionResponse\":{\"name\":\"f\",\"response\":{"
        "\"output\":\"%u\"}"
        "}},{\"function_response\":{\"name\":\"f\",\"response\":{\"error\":\"no\"}}},{\"text\":\"",
        "{\"parts\":[{\"inlineData\":{\"mimeType\":\"image/png\",\"data\":\"%u\"}},{\"text\":\""};
    const char *number = strstr(heads[kind], "%u");
    buf_str_append(out, str_make(heads[kind], (size_t)(number - heads[kind])));
    buf_format(out, "%u%s", serial, number + 2);
    put_text(out, size);
    buf_str_append(out, STR("\"}]}"));
}

static char *element(const struct dialect *dialect)
{
    static uint32_t serial;
    OWN(buf) struct buf out = {0};
    uint32_t kind = dice(4), size = dice(3) ? dice(5) : 40 + dice(60);
    serial++;
    if (dialect == &dialect_chat) {
        if (kind == 0) {
            buf_format(&out,
                       "{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"c%u\","
                       "\"type\":\"function\","
                       "\"function\":{\"name\":\"f\",\"arguments\":\"",
                       serial);
            put_text(&out, size);
            buf_str_append(&out, STR("\"}}]}"));
        } else {
            static const char *const roles[] = {
                "", "user", "assistant\",\"reasoning_content\":\"hm", "developer"};
            buf_format(&out, "{\"role\":\"%s\",\"content\":%s", roles[kind],
                       serial % 5 ? "\"" : "[{\"type\":\"text\",\"text\":\"");
            put_text(&out, size);
            buf_str_append(&out, str_of(serial % 5 ? "\"}" : "\"}]}"));
        }
    } else if (dialect == &dialect_messages) {
        if (kind == 0)
            buf_format(
                &out,
                "{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":\"t%u\","
                "\"content\":\"x\",\"is_error\":%s},"
                "{\"type\":\"tool_result\",\"tool_use_id\":\"u%u\"},{\"type\":\"text\",\"text\":\"",
                serial, serial % 2 ? "true" : "false", serial);
        else if (kind == 1)
            buf_str_append(&out, STR("{\"role\":\"assistant\",\"content\":[{\"type\":\"thinking\","
                                     "\"thinking\":\"a\","
                                     "\"signature\":\"s\"},{\"type\":\"text\",\"text\":\""));
        else
            buf_format(&out, "{\"role\":\"%s\",\"content\":[{\"type\":\"text\",\"text\":\"",
                       kind == 2 ? "user" : "assistant");
        put_text(&out, size);
        buf_str_append(&out, STR("\"}]}"));
    } else if (dialect == &dialect_google) {
        put_google(&out, kind, size, serial);
    } else {
        static const char *const heads[] = {
            "{\"type\":\"function_call\",\"call_id\":\"c\",\"name\":\"f\",\"arguments\":\"",
            "{\"type\":\"reasoning\",\"summary\":[],\"encrypted_content\":\"",
            "{\"type\":\"function_call_output\",\"call_id\":\"c\",\"output\":\"",
            "{\"role\":\"user\",\"content\":\""};
        buf_str_append(&out, str_of(heads[kind]));
        put_text(&out, size);
        buf_str_append(&out, STR("\"}"));
    }
    return buf_take(&out);
}

static void put_array(const struct talk *talk, struct buf *out)
{
    buf_byte(out, '[');
    for (size_t i = 0; i < talk->count; i++)
        buf_format(out, "%s%s", i ? "," : "", talk->elements[i]);
    buf_byte(out, ']');
}

/* None, some, the same otherwise described, one that takes free text, and what is no list of tools.
 */
static void put_tools(const struct talk *talk, struct buf *out)
{
    static const char *const shapes[][3] = {
        {"\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"description\":\"does "
         "\\\"%u\\\"\","
         "\"parameters\":{\"type\":\"object\"}}},{\"type\":\"function\",\"function\":{\"name\":"
         "\"g\"}}]",
         "\"tools\":[{\"type\":\"custom\",\"custom\":{\"name\":\"f%u\"}}]",
         "\"functions\":[{\"name\":\"f%u\",\"parameters\":{}}]"},
        {"\"tools\":[{\"name\":\"f\",\"description\":\"does "
         "\\\"%u\\\"\",\"input_schema\":{\"type\":\"object\"}},"
         "{\"name\":\"g\"}]",
         "\"tools\":[{\"type\":\"web\",\"name\":\"w%u\"}]", "\"tools\":[]"},
        {"\"tools\":[{\"type\":\"function\",\"name\":\"f\",\"description\":\"does "
         "\\\"%u\\\"\",\"parameters\":{}}]",
         "\"tools\":[{\"type\":\"custom\",\"name\":\"f%u\"}]",
         "\"tools\":[{\"type\":\"namespace\",\"name\":\"s%u\",\"tools\":[{\"type\":\"function\","
         "\"name\":\"f\"}]}]"},
        {"\"tools\":[{\"functionDeclarations\":[{\"name\":\"f\",\"description\":\"does "
         "\\\"%u\\\"\",\"parameters\":{\"type\":\"object\"}},{\"name\":\"g\"}]}]",
         "\"tools\":[{\"function_declarations\":[{\"name\":\"f%u\"}]},{\"googleSearch\":{}}]",
         "\"tools\":[]"}};
    size_t dialect = talk->dialect == &dialect_chat        ? 0
                     : talk->dialect == &dialect_messages  ? 1
                     : talk->dialect == &dialect_responses ? 2
                                                           : 3;
    if (!talk->tools)
        return;
    const char *at = shapes[dialect][talk->tools % 3];
    const char *name = strstr(at, "\"name\":"), *number = strstr(at, "%u");
    if (talk->strict && name) {
        buf_str_append(out, str_make(at, (size_t)(name - at)));
        buf_format(out, "\"strict\":%s,", talk->strict == 1 ? "false" : "true");
        at = name;
    }
    buf_str_append(out, number ? str_make(at, (size_t)(number - at)) : str_of(at));
    if (number)
        buf_format(out, "%u%s", talk->tools / 3, number + 2);
    buf_byte(out, ',');
    if (talk->tools == 7)
        buf_str_append(out, STR("\"tool_choice\":\"auto\","));
}

static void put_system(const struct talk *talk, struct buf *out)
{
    if (talk->dialect == &dialect_google)
        buf_format(out, "\"%s\":{\"parts\":[{\"text\":\"be %u\"},{\"functionCall\":{}}]}",
                   talk->nonce % 2 ? "system_instruction" : "systemInstruction", talk->system);
    else
        buf_format(out, "\"%s\":\"be %u\"",
                   talk->dialect == &dialect_responses  ? "instructions"
                   : talk->dialect == &dialect_messages ? "system"
                                                        : "user",
                   talk->system);
}

static void put_body(const struct talk *talk, struct buf *out)
{
    bool google = talk->dialect == &dialect_google;
    const char *key = talk->dialect == &dialect_responses ? "input"
                      : google                            ? "contents"
                                                          : "messages";
    buf_format(out, "{\"model\":\"m\",\"metadata\":{\"n\":\"%012u\"},", talk->nonce);
    if (talk->order == 0 && talk->system) {
        put_system(talk, out);
        buf_byte(out, ',');
    }
    if (!talk->tools_last)
        put_tools(talk, out);
    /* Twice: the last one counts. Its first element is the same, its others are not. */
    OWN(buf) struct buf other = {0};
    buf_format(&other, "[%s", talk->elements[0]);
    for (int i = 1; i < ELEMENTS_MAX; i++)
        buf_format(&other,
                   ",{\"role\":\"user\",\"%s\":[{\"type\":\"text\",\"text\":\"other %d\"}]}",
                   google ? "parts" : "content", i);
    buf_byte(&other, ']');
    buf_format(out, "\"%s\":", key);
    if (talk->order == 2)
        buf_format(out, "%.*s,\"%s\":", STR_ARGS(buf_str(&other)), key);
    put_array(talk, out);
    if (talk->order == 3)
        buf_format(out, ",\"%s\":%.*s", key, STR_ARGS(buf_str(&other)));
    buf_byte(out, ',');
    if (talk->order != 0 && talk->system) {
        put_system(talk, out);
        buf_byte(out, ',');
    }
    if (talk->tools_last)
        put_tools(talk, out);
    buf_str_append(out, STR("\"max_tokens\":50,\"temperature\":0.5}"));
}

static void drop(struct talk *talk, size_t from)
{
    while (talk->count > from)
        free(talk->elements[--talk->count]);
}

/* Messages that differ in what is empty and what is not there at all. */
static char *hollow(const struct dialect *dialect)
{
    static const char *const said[][3] = {
        {"{\"role\":\"assistant\",\"content\":\"same\"}",
         "{\"role\":\"assistant\",\"content\":\"same\",\"reasoning_content\":\"\"}",
         "{\"role\":\"assistant\",\"name\":\"\",\"content\":\"same\"}"},
        {"{\"role\":\"assistant\",\"content\":\"\"}", "{\"role\":\"assistant\",\"content\":[]}",
         "{\"role\":\"assistant\",\"content\":[{\"type\":\"text\",\"text\":\"\"}]}"},
        {"{\"role\":\"user\",\"content\":\"\"}", "{\"role\":\"user\",\"content\":[]}",
         "{\"type\":\"function_call_output\",\"call_id\":\"\",\"output\":\"\"}"},
        {"{\"role\":\"model\",\"parts\":[{\"text\":\"\"}]}", "{\"role\":\"model\",\"parts\":[]}",
         "{\"role\":\"model\",\"parts\":[{\"thought\":true,\"text\":\"\"}]}"}};
    size_t at = dialect == &dialect_chat        ? 0
                : dialect == &dialect_messages  ? 1
                : dialect == &dialect_responses ? 2
                                                : 3;
    return mem_dup(said[at][dice(3)]);
}

static void change(struct talk *talk)
{
    uint32_t kind = dice(17);
    if (!talk->count || kind < 6 || talk->count < 3) {
        for (uint32_t i = 1 + dice(3); i && talk->count < ELEMENTS_MAX; i--)
            talk->elements[talk->count++] = element(talk->dialect);
        if (talk->count == ELEMENTS_MAX)
            drop(talk, 4);
        return;
    }
    size_t at = dice((uint32_t)talk->count);
    switch (kind) {
    case 6: /* its last message is another one */
        free(talk->elements[talk->count - 1]);
        talk->elements[talk->count - 1] = element(talk->dialect);
        return;
    case 7:
        free(talk->elements[at]);
        talk->elements[at] = element(talk->dialect);
        return;
    case 8:
        drop(talk, at ? at : 1);
        return;
    case 9:
        talk->nonce = dice(1000000);
        return;
    case 10:
        talk->system = dice(3);
        return;
    case 11:
        talk->tools = dice(8);
        return;
    case 12:
        talk->tools_last = !talk->tools_last;
        return;
    case 13:
        talk->strict = dice(3);
        return;
    case 14:
    case 15:
        free(talk->elements[talk->count / 2]);
        talk->elements[talk->count / 2] = hollow(talk->dialect);
        return;
    default:
        talk->order = dice(4);
    }
}

/* Wrong somewhere, often near the end, where only the tail is read. */
static void spoil(struct buf *body)
{
    static const char *const odd[] = {"\"",   "}", "]", ",", "\\", "x", "{\"role\":7},",
                                      "\x01", "7,"};
    size_t at = dice(3) ? body->size - 1 - dice((uint32_t)(body->size < 90 ? body->size : 90))
                        : dice((uint32_t)body->size);
    OWN(buf) struct buf made = {0};
    buf_str_append(&made, str_upto(buf_str(body), at));
    buf_str_append(&made, str_of(odd[dice(COUNT(odd))]));
    buf_str_append(&made, str_from(buf_str(body), at));
    buf_clear(body);
    buf_str_append(body, buf_str(&made));
}

/* ---------------------------------------------------------------- what is right */

struct expected {
    char id[ID_MAX];
    struct buf body, messages, tools; /* the journal's, the line's */
};

/* Messages and tools of a body that was read as a whole, as calls.jsonl has them; false: it is
 * none.
 */
static bool read_whole(const struct dialect *dialect, struct expected *out)
{
    static const struct json_limits limits = {.depth_max = 64, .nodes_max = 4 << 20};
    OWN(json_doc) struct json_doc doc = {0};
    OWN(arena) struct arena arena = {0};
    struct trace_request request;
    struct dialect_route route = {DIALECT_ROUTE_CALL, dialect, STR_NONE, false};
    if (json_read(&doc, buf_str(&out->body), &limits, NULL) < 0 ||
        dialect_read_request(&route, json_root(&doc), &arena, &request, NULL) < 0)
        return false;
    struct json_writer writer = {.out = &out->messages}, tools = {.out = &out->tools};
    json_begin_array(&writer);
    for (size_t i = 0; i < request.message_count; i++)
        trace_message_write(&request.messages[i], &writer);
    json_end_array(&writer);
    json_begin_array(&tools);
    for (size_t i = 0; i < request.tool_count; i++)
        trace_tool_write(&request.tools[i], &tools);
    json_end_array(&tools);
    return true;
}

/* Puts a line's messages together with its parent's. */
static void add_up(struct json line, const struct expected *all, size_t count, struct buf *out)
{
    OWN(arena) struct arena arena = {0};
    OWN(json_doc) struct json_doc doc = {0};
    long long shared = json_int_or(json_get(line, "shared_messages"), 0);
    long long from = json_int_or(json_get(line, "shared_from"), 0);
    struct str parent = json_str(json_get(line, "parent"), &arena);
    struct json_writer writer = {.out = out};
    json_begin_array(&writer);
    struct json_item item = json_first(json_get(json_get(line, "request"), "messages"));
    for (long long at = 0; at < from; at++, item = json_following(item))
        json_put_raw(&writer, json_raw(item.value));
    for (size_t i = 0; i < count && shared; i++) {
        if (!str_is(parent, all[i].id))
            continue;
        (void)json_read(&doc, buf_str(&all[i].messages), NULL, NULL);
        for (long long at = from; at < from + shared; at++)
            json_put_raw(&writer, json_raw(json_at(json_root(&doc), (size_t)at)));
    }
    for (; json_exists(item.value); item = json_following(item))
        json_put_raw(&writer, json_raw(item.value));
    json_end_array(&writer);
}

/* The tools that a line says it has. */
static void tools_of(struct json line, const struct expected *all, size_t count, struct buf *out)
{
    OWN(arena) struct arena arena = {0};
    struct str parent = json_str(json_get(line, "parent"), &arena);
    struct json own = json_get(json_get(line, "request"), "tools");
    if (!json_true(json_get(line, "shared_tools"))) {
        buf_str_append(out, json_exists(own) ? json_raw(own) : STR("[]"));
        return;
    }
    for (size_t i = 0; i < count; i++)
        if (str_is(parent, all[i].id))
            buf_str_append(out, buf_str(&all[i].tools));
}

static void answer_any(struct world *world, struct http_exchange *exchange)
{
    struct str path = http_exchange_path(exchange);
    (void)world;
    if (str_find(path, STR("chat")) >= 0)
        http_respond_json(exchange, 200,
                          STR("{\"id\":\"x\",\"model\":\"m\",\"choices\":[{\"index\":0,\"message\":"
                              "{\"role\":\"assistant\",\"content\":"
                              "\"fine\"},\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":"
                              "1,\"completion_tokens\":1}}"));
    else if (str_find(path, STR("messages")) >= 0)
        http_respond_json(exchange, 200,
                          STR("{\"id\":\"x\",\"type\":\"message\",\"role\":\"assistant\",\"model\":"
                              "\"m\",\"content\":[{\"type\":\"text\","
                              "\"text\":\"fine\"}],\"stop_reason\":\"end_turn\",\"usage\":{\"input_"
                              "tokens\":1,\"output_tokens\":1}}"));
    else if (str_find(path, STR("generateContent")) >= 0)
        http_respond_json(
            exchange, 200,
            STR("{\"candidates\":[{\"content\":{\"role\":\"model\",\"parts\":[{\"text\":"
                "\"fine\"}]},\"finishReason\":\"STOP\"}]}"));
    else
        http_respond_json(exchange, 200,
                          STR("{\"id\":\"x\",\"object\":\"response\",\"model\":\"m\",\"status\":"
                              "\"completed\",\"output\":[{\"type\":"
                              "\"message\",\"role\":\"assistant\",\"content\":[{\"type\":\"output_"
                              "text\",\"text\":\"fine\"}]}]}"));
}

/* ---------------------------------------------------------------- at the gate */

struct trainer {
    struct world *world;
    struct gate *gate;
    struct gate_taker *taker;
    char ids[BURST_MAX][ID_MAX];
    size_t count, seen;
};

/* What the trainer is given is what it would be given of the body alone. */
static void check_object(struct str text)
{
    static const char *const names[] = {"messages", "tools", "sampling"};
    OWN(json_doc) struct json_doc doc = {0}, whole_doc = {0};
    OWN(arena) struct arena arena = {0};
    OWN(buf) struct buf whole = {0};
    EXPECT_INT(json_read(&doc, text, NULL, NULL), 0);
    struct json root = json_root(&doc);
    OWN(mem) char *dialect = str_dup(json_str(json_get(root, "dialect"), &arena));
    struct trace_request request = {.model = json_str(json_get(root, "model"), &arena)};
    struct body *body = body_new(json_raw(json_get(root, "raw")));
    void *object =
        hold_object_new(body, dialect_find(dialect), &request, &(struct hold_view){0}, NULL);
    body_unref(body);
    struct json_writer out = {.out = &whole};
    json_begin_object(&out);
    hold_object_write(object, false, &out);
    json_end_object(&out);
    hold_object_free(object);
    EXPECT_INT(json_read(&whole_doc, buf_str(&whole), NULL, NULL), 0);
    for (size_t i = 0; i < COUNT(names); i++)
        EXPECT_STR(json_raw(json_get(root, names[i])),
                   json_raw(json_get(json_root(&whole_doc), names[i])));
}

static void on_calls(void *context, struct gate_work *const *calls, size_t count);

static void take_calls(struct trainer *trainer)
{
    struct gate_take take = {.max = BURST_MAX, .wait_ms = 600000};
    trainer->taker = gate_take(trainer->gate, &take, on_calls, trainer, NULL);
}

static void answer_calls(void *argument)
{
    struct trainer *trainer = argument;
    for (size_t i = 0; i < trainer->count; i++)
        EXPECT_INT(gate_answer(trainer->gate, trainer->ids[i], NULL,
                               STR("{\"message\":{\"role\":\"assistant\",\"content\":\"fine\"}}"),
                               NULL),
                   0);
    take_calls(trainer);
}

static void on_calls(void *context, struct gate_work *const *calls, size_t count)
{
    struct trainer *trainer = context;
    trainer->taker = NULL;
    trainer->count = count;
    trainer->seen += count;
    for (size_t i = 0; i < count; i++) {
        OWN(buf) struct buf object = {0};
        gate_work_write(calls[i], true, &(struct json_writer){.out = &object});
        check_object(buf_str(&object));
        snprintf(trainer->ids[i], ID_MAX, "%s", gate_work_call_id(calls[i]));
    }
    loop_defer(trainer->world->loop, answer_calls, trainer);
}

static void trainer_start(struct trainer *trainer, struct world *world)
{
    struct err err = {0};
    gateway_free(world->gateway);
    *trainer = (struct trainer){.world = world, .gate = gate_new(world->loop, NULL)};
    struct gateway_options gateway = {.store = world->store, .gate = trainer->gate};
    world->gateway = gateway_new(world->loop, &gateway, &err);
    world->model = model_open("gate:", NULL, &err);
    take_calls(trainer);
}

static void trainer_end(struct trainer *trainer)
{
    world_close_session(trainer->world, 0);
    for (int i = 0; i < 3; i++)
        loop_once(trainer->world->loop, 0);
    if (trainer->taker)
        gate_taker_cancel(trainer->taker);
    gate_free(trainer->gate);
}

/* ---------------------------------------------------------------- comparing */

/* Lines come in the order in which calls ended: which call it was, the journal's request says. */
static struct expected *expected_of(struct world *world, struct str id, struct expected *all,
                                    size_t count)
{
    OWN(buf) struct buf request = {0};
    OWN(mem) char *text = str_dup(id);
    struct err err = {0};
    if (store_read_request(world->store, text, &request, &err) < 0)
        test_fail(__FILE__, __LINE__, "%s: %s", text, err.text);
    for (size_t i = 0; i < count; i++) {
        if (all[i].id[0] || !str_equal(buf_str(&request), buf_str(&all[i].body)))
            continue;
        snprintf(all[i].id, sizeof all[i].id, "%s", text);
        return &all[i];
    }
    test_fail(__FILE__, __LINE__, "nobody asked for %.*s", STR_ARGS(buf_str(&request)));
    return NULL;
}

static void check_lines(struct world *world, struct expected *all, size_t count)
{
    OWN(buf) struct buf text = {0};
    (void)file_read(world->calls_path, 64 << 20, &text, NULL);
    struct str rest = buf_str(&text);
    for (size_t i = 0; i < count; i++) {
        OWN(json_doc) struct json_doc doc = {0};
        OWN(arena) struct arena arena = {0};
        OWN(buf) struct buf messages = {0}, tools = {0};
        struct str line = str_cut(&rest, '\n');
        EXPECT_INT(json_read(&doc, line, NULL, NULL), 0);
        struct str id = json_str(json_get(json_root(&doc), "call_id"), &arena);
        const struct expected *expected = expected_of(world, id, all, count);
        if (!expected)
            return;
        add_up(json_root(&doc), all, count, &messages);
        EXPECT_STR(buf_str(&messages), buf_str(&expected->messages));
        tools_of(json_root(&doc), all, count, &tools);
        EXPECT_STR(buf_str(&tools), buf_str(&expected->tools));
    }
    EXPECT_INT(rest.size, 0);
}

struct asked {
    struct expected expected;
    struct reply reply;
    bool good;
};

/* Several at once: one goes on from what the others go on from, too. */
static void ask_at_once(struct world *world, struct talk *talk, const char *path,
                        struct asked *asked, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        struct expected *expected = &asked[i].expected;
        if (i && talk->count < ELEMENTS_MAX)
            talk->elements[talk->count++] = element(talk->dialect);
        put_body(talk, &expected->body);
        if (dice(8) == 0)
            spoil(&expected->body);
        asked[i].good = read_whole(talk->dialect, expected);
        agent_ask_at(world, &asked[i].reply, path, buf_str(&expected->body));
        if (talk->count > 2 && dice(2))
            drop(talk, talk->count - 1);
    }
    for (size_t i = 0; i < count; i++) {
        reply_wait(&asked[i].reply);
        if (asked[i].reply.status != (asked[i].good ? 200 : 400))
            test_fail(__FILE__, __LINE__, "status %d, %.*s, for %.*s", asked[i].reply.status,
                      STR_ARGS(buf_str(&asked[i].reply.body)),
                      STR_ARGS(buf_str(&asked[i].expected.body)));
        buf_deinit(&asked[i].reply.body);
    }
}

static void expected_deinit(struct expected *expected)
{
    buf_deinit(&expected->body);
    buf_deinit(&expected->messages);
    buf_deinit(&expected->tools);
}

static void converse(uint64_t start, const char *mode)
{
    static const struct {
        const struct dialect *dialect;
        const char *path;
    } spoken[] = {{&dialect_chat, "/v1/chat/completions"},
                  {&dialect_messages, "/v1/messages"},
                  {&dialect_responses, "/v1/responses"},
                  {&dialect_google, "/v1beta/models/m:generateContent"}};
    struct world world = {.upstream_answer = answer_any};
    struct trainer trainer = {0};
    world_start(&world);
    if (strcmp(mode, "gate") == 0)
        trainer_start(&trainer, &world);
    else
        world_model(&world);
    world_open(&world, (struct gateway_session_options){.mode = mode, .limits.calls_max = 100000});
    struct talk talks[COUNT(spoken)] = {0};
    struct expected *all = mem_zero(STEPS * BURST_MAX * sizeof *all);
    size_t taken = 0, refused = 0;
    seed = start;
    for (int i = 0; i < STEPS; i++) {
        size_t at = dice(10) ? (size_t)start % COUNT(spoken) : dice(COUNT(spoken));
        struct talk *talk = &talks[at];
        struct asked asked[BURST_MAX] = {0};
        size_t count = dice(6) ? 1 : 2 + dice(BURST_MAX - 1);
        talk->dialect = spoken[at].dialect;
        change(talk);
        ask_at_once(&world, talk, spoken[at].path, asked, count);
        for (size_t k = 0; k < count; k++) {
            if (asked[k].good)
                all[taken++] = asked[k].expected;
            else
                expected_deinit(&asked[k].expected);
            refused += !asked[k].good;
        }
    }
    check_lines(&world, all, taken);
    EXPECT(taken > STEPS / 2 && refused > 3);
    for (size_t i = 0; i < taken; i++)
        expected_deinit(&all[i]);
    for (size_t i = 0; i < COUNT(talks); i++)
        drop(&talks[i], 0);
    free(all);
    if (trainer.gate) {
        EXPECT_INT(trainer.seen, taken);
        trainer_end(&trainer);
    }
    world_end(&world);
}

TEST_WITHIN(what_is_skimmed_of_chat_is_what_the_body_says, 60)
{
    converse(4, "black_box");
    converse(8, "proxy");
}

TEST_WITHIN(what_is_skimmed_of_messages_is_what_the_body_says, 60)
{
    converse(5, "black_box");
    converse(9, "proxy");
}

TEST_WITHIN(what_is_skimmed_of_responses_is_what_the_body_says, 60)
{
    converse(6, "black_box");
    converse(10, "proxy");
}

TEST_WITHIN(what_is_skimmed_of_google_is_what_the_body_says, 60)
{
    converse(7, "black_box");
    converse(11, "proxy");
}

TEST_WITHIN(what_the_trainer_is_given_is_what_the_body_says, 60)
{
    for (uint64_t start = 12; start < 16; start++)
        converse(start, "gate");
}
