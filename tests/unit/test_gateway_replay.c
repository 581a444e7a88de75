/* What a rollout's record holds of a conversation that grows, and rollouts answered from it. */
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
    OWN(mem)
    char *command = mem_format("test $(du -sb %s/journal | cut -f1) -lt %d", world.home, 60 * 3500);
    EXPECT_INT(system(command), 0);
    EXPECT(sent > 60 * 25000);
    world_end(&world);
}
