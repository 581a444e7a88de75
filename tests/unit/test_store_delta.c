/* Conversations that grow: each entry costs its tail, and every entry is read back whole. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "json/json.h"
#include "loop/loop.h"
#include "store/store.h"
#include "test.h"

static char home[64];
static struct loop *loop;
static struct store *store;

static void begin(void)
{
    log_setup(LOG_OFF, false);
    snprintf(home, sizeof home, "/tmp/test-store-delta-XXXXXX");
    if (!mkdtemp(home))
        abort();
    loop = loop_new(NULL);
    store = store_open(home, NULL);
}

static void end(void)
{
    store_close(store);
    loop_once(loop, 0);
    loop_free(loop);
    (void)file_remove_tree(home, NULL);
}

static void on_committed(void *context, const struct err *err)
{
    *(int *)context = err->kind == ERR_NONE ? 1 : -1;
}

static void append(struct store_record *record)
{
    int done = 0;
    struct err err = {0};
    if (store_append(store, loop, record, on_committed, &done, &err) < 0)
        abort();
    while (!done)
        loop_once(loop, 100);
    EXPECT_INT(done, 1);
}

static size_t journal_bytes(void)
{
    OWN(mem) char *command = mem_format("du -sb %s/journal | cut -f1", home);
    FILE *pipe = popen(command, "r");
    size_t size = 0;
    if (!pipe || fscanf(pipe, "%zu", &size) != 1)
        abort();
    pclose(pipe);
    return size;
}

/* A conversation with `tools` after its messages, as agents write it. */
struct talk {
    struct buf messages, request, ids; /* ids: of the whole prompt */
    struct store_base request_base, prompt_base;
    struct buf before, before_ids;
    char call_id[32], before_id[32];
    uint32_t request_depth, prompt_depth;
    int turn;
    bool dated; /* something near the front changes with each turn, of the tokens too */
};

static void talk_turn(struct talk *talk, size_t new_bytes, size_t new_tokens, int32_t seed)
{
    talk->turn++;
    buf_format(&talk->messages, "%s{\"role\":\"user\",\"content\":\"%d ", talk->turn > 1 ? "," : "",
               seed);
    for (size_t i = 0; i < new_bytes; i++)
        buf_byte(&talk->messages, (char)('a' + (i * 7 + (size_t)talk->turn) % 26));
    buf_str_append(&talk->messages, STR("\"}"));
    buf_clear(&talk->request);
    buf_format(&talk->request, "{\"model\":\"m%d\",\"messages\":[%.*s],\"tools\":[",
               talk->dated ? talk->turn * 1001 : 0, STR_ARGS(buf_str(&talk->messages)));
    for (int i = 0; i < 200; i++)
        buf_format(&talk->request, "%s{\"type\":\"function\",\"function\":{\"name\":\"tool%d\"}}",
                   i ? "," : "", i);
    buf_str_append(&talk->request, STR("]}"));
    for (size_t i = 0; i < new_tokens; i++) {
        int32_t id = seed * 1000 + talk->turn * 100000 + (int32_t)i;
        buf_append(&talk->ids, &id, sizeof id);
    }
    if (talk->dated)
        memcpy(talk->ids.data, &talk->turn, sizeof talk->turn);
}

static void talk_answer(struct talk *talk, size_t tokens)
{
    OWN(mem) int32_t *ids = mem_alloc(tokens * 4 + 1);
    OWN(mem) float *logprobs = mem_alloc(tokens * 4 + 1);
    for (size_t i = 0; i < tokens; i++) {
        ids[i] = (int32_t)i + talk->turn;
        logprobs[i] = -0.5f * (float)i;
    }
    OWN(mem)
    char *body =
        mem_format("{\"call_id\":\"%s\",\"request\":null,\"answer\":{\"x\":1}}", talk->call_id);
    struct store_record record = {
        .type = STORE_ENTRY,
        .rollout_id = "r-1",
        .call_id = talk->call_id,
        .state = "answered",
        .number = (uint32_t)talk->turn,
        .body = str_of(body),
        .request = buf_str(&talk->request),
        .request_base = talk->request_base,
        .prompt_base = talk->prompt_base,
        .prompt_ids = (const int32_t *)(const void *)talk->ids.data,
        .prompt_id_count = talk->ids.size / 4,
        .token_ids = ids,
        .token_id_count = tokens,
        .logprobs = logprobs,
        .logprob_count = tokens,
        .deliveries = 1,
        .request_depth = &talk->request_depth,
        .prompt_depth = &talk->prompt_depth,
        .prompt_tokens = -1,
        .completion_tokens = -1,
    };
    append(&record);
    buf_append(&talk->ids, ids, tokens * 4);
    buf_clear(&talk->before);
    buf_str_append(&talk->before, buf_str(&talk->request));
    buf_clear(&talk->before_ids);
    buf_str_append(&talk->before_ids, buf_str(&talk->ids));
    memcpy(talk->before_id, talk->call_id, sizeof talk->before_id);
    talk->request_base =
        (struct store_base){talk->before_id, buf_str(&talk->before), talk->request_depth};
    talk->prompt_base =
        (struct store_base){talk->before_id, buf_str(&talk->before_ids), talk->prompt_depth};
}

static void talk_deinit(struct talk *talk)
{
    buf_deinit(&talk->messages);
    buf_deinit(&talk->request);
    buf_deinit(&talk->ids);
    buf_deinit(&talk->before);
    buf_deinit(&talk->before_ids);
}

TEST(a_growing_conversation_costs_its_tails_and_is_read_back_whole)
{
    begin();
    struct talk talk = {0};
    enum { TURNS = 150 };
    struct buf requests[TURNS] = {0}, prompts[TURNS] = {0};
    size_t captured = 0, fresh = 0, deepest = 0;
    for (int i = 0; i < TURNS; i++) {
        snprintf(talk.call_id, sizeof talk.call_id, "c-%d", i);
        talk_turn(&talk, 400, 100, 1);
        buf_str_append(&requests[i], buf_str(&talk.request));
        buf_str_append(&prompts[i], buf_str(&talk.ids));
        captured += talk.ids.size / 4 + 50;
        fresh += 150;
        talk_answer(&talk, 50);
        if (talk.request_depth > deepest)
            deepest = talk.request_depth;
    }
    EXPECT_INT(deepest, STORE_DEPTH_MAX);
    store_close(store); /* what was allocated and not used goes */
    size_t size = journal_bytes();
    printf("  %zu bytes for %zu captured tokens (%zu of them new): %.2f each\n", size, captured,
           fresh, (double)size / (double)captured);
    EXPECT(size < captured * 8);
    /* What is new, the whole every now and then, and little else. */
    EXPECT(size < TURNS * (400 + 100 * 4 + 50 * 8 + 800) +
                      3 * (requests[TURNS - 1].size + prompts[TURNS - 1].size));
    store = store_open(home, NULL);
    for (int i = 0; i < TURNS; i += 7) {
        char id[32];
        snprintf(id, sizeof id, "c-%d", i);
        OWN(buf) struct buf request = {0}, prompt = {0}, ids = {0}, logprobs = {0};
        struct err err = {0};
        EXPECT_INT(store_read_request(store, id, &request, &err), 0);
        EXPECT(str_equal(buf_str(&request), buf_str(&requests[i])));
        EXPECT_INT(store_read_tokens(store, id, &prompt, &ids, &logprobs, &err), 0);
        EXPECT(str_equal(buf_str(&prompt), buf_str(&prompts[i])));
        EXPECT_INT(ids.size, 200);
        EXPECT_INT(logprobs.size, 200);
    }
    for (int i = 0; i < TURNS; i++) {
        buf_deinit(&requests[i]);
        buf_deinit(&prompts[i]);
    }
    talk_deinit(&talk);
    end();
}

TEST(a_call_as_json_has_its_request_and_its_arrays)
{
    begin();
    struct talk talk = {.call_id = "c-a"};
    talk_turn(&talk, 300, 40, 1);
    talk_answer(&talk, 2);
    snprintf(talk.call_id, sizeof talk.call_id, "c-b");
    talk_turn(&talk, 10, 3, 1);
    OWN(buf) struct buf request = {0}, text = {0};
    buf_str_append(&request, buf_str(&talk.request));
    size_t prompt = talk.ids.size / 4;
    talk_answer(&talk, 3);
    EXPECT_INT(store_read_call(store, "c-b", &text, NULL), 0);
    OWN(json_doc) struct json_doc doc = {0};
    EXPECT_INT(json_read(&doc, buf_str(&text), NULL, NULL), 0);
    struct json root = json_root(&doc), answer = json_get(root, "answer");
    EXPECT_STR(json_raw(json_get(root, "request")), buf_str(&request));
    EXPECT_INT(json_size(json_get(answer, "prompt_token_ids")), prompt);
    EXPECT_INT(json_size(json_get(answer, "token_ids")), 3);
    EXPECT_STR(json_raw(json_get(answer, "logprobs")), STR("[-0,-0.5,-1]"));
    EXPECT_INT(json_int_or(json_get(answer, "x"), 0), 1);
    talk_deinit(&talk);
    end();
}

TEST(what_shares_nothing_is_kept_whole_and_a_parent_that_is_gone_is_said)
{
    begin();
    struct talk talk = {.call_id = "c-a"};
    talk_turn(&talk, 300, 40, 1);
    talk_answer(&talk, 1);
    struct store_record other = {
        .type = STORE_ENTRY,
        .call_id = "c-b",
        .body = STR("{}"),
        .request = STR("something else altogether"),
        .request_base = talk.request_base,
        .prompt_tokens = -1,
        .completion_tokens = -1,
    };
    append(&other);
    OWN(buf) struct buf text = {0};
    EXPECT_INT(store_read_request(store, "c-b", &text, NULL), 0);
    EXPECT_STR(buf_str(&text), STR("something else altogether"));
    other.call_id = "c-c";
    other.request = buf_str(&talk.request);
    other.request_base.call_id = "c-never";
    append(&other);
    struct err err = {0};
    EXPECT_INT(store_read_request(store, "c-c", &text, &err), -1);
    EXPECT_INT(err.kind, ERR_NOT_FOUND);
    talk_deinit(&talk);
    end();
}

static bool note_deliveries(void *context, const struct store_call *call)
{
    *(uint32_t *)context = call->deliveries;
    return true;
}

TEST(deliveries_are_counted_up_by_later_notes_also_in_a_new_index)
{
    begin();
    struct store_record entry = {.type = STORE_ENTRY,
                                 .rollout_id = "r-1",
                                 .call_id = "c-a",
                                 .state = "answered",
                                 .deliveries = 2,
                                 .prompt_tokens = -1,
                                 .completion_tokens = -1};
    append(&entry);
    struct store_record note = {
        .type = STORE_NOTE, .rollout_id = "r-1", .call_id = "c-a", .deliveries = 3};
    append(&note);
    uint32_t count = 0;
    EXPECT_INT(store_list_calls(store, "r-1", note_deliveries, &count, NULL), 0);
    EXPECT_INT(count, 3);
    store_close(store);
    OWN(mem) char *index = mem_format("%s/index.sqlite", home);
    EXPECT_INT(unlink(index), 0);
    store = store_open(home, NULL);
    count = 0;
    EXPECT_INT(store_list_calls(store, "r-1", note_deliveries, &count, NULL), 0);
    EXPECT_INT(count, 3);
    end();
}

static void copy_tree(const char *to)
{
    OWN(mem) char *command = mem_format("rm -rf %s && cp -r %s %s", to, home, to);
    if (system(command) != 0)
        abort();
}

static char *only_segment(const char *dir)
{
    OWN(mem) char *command = mem_format("ls %s/journal/*.journal", dir);
    FILE *pipe = popen(command, "r");
    char name[256] = "";
    if (!pipe || !fgets(name, sizeof name, pipe))
        abort();
    pclose(pipe);
    name[strcspn(name, "\n")] = '\0';
    return mem_dup(name);
}

static bool count_pieces(void *context, const struct store_view *view)
{
    *(int *)context += (view->request_pieces.size > 0) + (view->prompt_pieces.size > 0);
    return true;
}

/* A crash may cut the journal anywhere: what is whole is read back whole, parents and all. */
static void expect_whole_when_cut(bool dated)
{
    begin();
    enum { TURNS = 6 };
    struct talk talk = {.dated = dated};
    int pieces = 0;
    struct buf requests[TURNS] = {0}, prompts[TURNS] = {0};
    uint64_t sizes[TURNS];
    for (int i = 0; i < TURNS; i++) {
        snprintf(talk.call_id, sizeof talk.call_id, "c-%d", i);
        talk_turn(&talk, dated ? 400 : 40, dated ? 100 : 30, 1);
        buf_str_append(&requests[i], buf_str(&talk.request));
        buf_str_append(&prompts[i], buf_str(&talk.ids));
        talk_answer(&talk, 5);
        struct store_counts counts;
        store_counts(store, &counts);
        sizes[i] = counts.bytes + 32; /* the file itself is longer, by zeros */
    }
    EXPECT_INT(store_recover(store, count_pieces, &pieces, NULL, NULL), 0);
    EXPECT_INT(pieces, dated ? 2 * (TURNS - 1) : 0);
    store_close(store);
    char copy[80];
    snprintf(copy, sizeof copy, "%s-cut", home);
    /* All along the last two, in steps. */
    EXPECT(sizes[TURNS - 3] < sizes[TURNS - 1]);
    for (uint64_t cut = sizes[TURNS - 3]; cut <= sizes[TURNS - 1]; cut += 67) {
        copy_tree(copy);
        OWN(mem) char *cut_segment = only_segment(copy);
        EXPECT_INT(truncate(cut_segment, (off_t)cut), 0);
        OWN(mem) char *index = mem_format("%s/index.sqlite", copy);
        (void)unlink(index);
        struct err err = {0};
        store = store_open(copy, &err);
        EXPECT(store);
        for (int i = 0; i < TURNS; i++) {
            char id[32];
            snprintf(id, sizeof id, "c-%d", i);
            OWN(buf) struct buf request = {0}, prompt = {0};
            bool there = store_read_request(store, id, &request, &err) == 0;
            EXPECT(there == (sizes[i] <= cut));
            if (!there)
                continue;
            EXPECT(str_equal(buf_str(&request), buf_str(&requests[i])));
            EXPECT_INT(store_read_tokens(store, id, &prompt, NULL, NULL, &err), 0);
            EXPECT(str_equal(buf_str(&prompt), buf_str(&prompts[i])));
        }
        store_close(store);
    }
    (void)file_remove_tree(copy, NULL);
    for (int i = 0; i < TURNS; i++) {
        buf_deinit(&requests[i]);
        buf_deinit(&prompts[i]);
    }
    talk_deinit(&talk);
    store = store_open(home, NULL);
    end();
}

TEST_WITHIN(a_chain_of_differences_cut_at_any_byte_is_whole_up_to_there, 120)
{
    expect_whole_when_cut(false);
}

TEST_WITHIN(a_chain_of_pieces_cut_at_any_byte_is_whole_up_to_there, 120)
{
    expect_whole_when_cut(true);
}

/* A disk that does not keep what it was given: a call is read as it was, or not at all; those that
 * do not build on what is damaged are all there. */
static void expect_right_or_nothing(bool dated, bool with_index)
{
    enum { TURNS = 6, TRIES = 60 };
    begin();
    struct talk talk = {.dated = dated};
    struct buf requests[TURNS] = {0}, prompts[TURNS] = {0};
    uint64_t sizes[TURNS];
    uint64_t seed = 17;
    for (int i = 0; i < TURNS; i++) {
        snprintf(talk.call_id, sizeof talk.call_id, "c-%d", i);
        talk_turn(&talk, dated ? 400 : 40, dated ? 100 : 30, 1);
        buf_str_append(&requests[i], buf_str(&talk.request));
        buf_str_append(&prompts[i], buf_str(&talk.ids));
        talk_answer(&talk, 5);
        struct store_counts counts;
        store_counts(store, &counts);
        sizes[i] = counts.bytes + 32;
    }
    store_close(store);
    char copy[80];
    snprintf(copy, sizeof copy, "%s-hurt", home);
    for (int try = 0; try < TRIES; try++) {
        copy_tree(copy);
        OWN(mem) char *segment = only_segment(copy);
        OWN(buf) struct buf bytes = {0};
        EXPECT_INT(file_read(segment, 64 << 20, &bytes, NULL), 0);
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        uint64_t at = 32 + (seed >> 20) % (sizes[TURNS - 1] - 32); /* behind the segment's head */
        bytes.data[at] ^= (char)(1 << (seed >> 60 & 7));
        EXPECT_INT(file_write(segment, buf_str(&bytes), 0600, false, NULL), 0);
        OWN(mem) char *index = mem_format("%s/index.sqlite", copy);
        if (!with_index)
            (void)unlink(index);
        struct err err = {0};
        store = store_open(copy, &err);
        EXPECT(store);
        for (int i = 0; i < TURNS; i++) {
            char id[32];
            snprintf(id, sizeof id, "c-%d", i);
            OWN(buf) struct buf request = {0}, prompt = {0}, ids = {0}, logprobs = {0};
            bool there = store_read_request(store, id, &request, &err) == 0;
            bool tokens = store_read_tokens(store, id, &prompt, &ids, &logprobs, &err) == 0;
            EXPECT(there || at < sizes[i]);
            EXPECT(there == tokens);
            EXPECT(!there || str_equal(buf_str(&request), buf_str(&requests[i])));
            EXPECT(!tokens || str_equal(buf_str(&prompt), buf_str(&prompts[i])));
            EXPECT(!tokens || (ids.size == 20 && logprobs.size == 20));
        }
        store_close(store);
    }
    (void)file_remove_tree(copy, NULL);
    for (int i = 0; i < TURNS; i++) {
        buf_deinit(&requests[i]);
        buf_deinit(&prompts[i]);
    }
    talk_deinit(&talk);
    store = store_open(home, NULL);
    end();
}

TEST_WITHIN(what_was_damaged_is_never_read_as_something_else, 120)
{
    expect_right_or_nothing(false, true);
    expect_right_or_nothing(true, false);
}
