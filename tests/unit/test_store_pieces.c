/* Requests that changed anywhere: what is written is what is new, what is read is what was sent. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/err.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "loop/loop.h"
#include "store/inner.h"
#include "test.h"

static char home[64];
static struct loop *loop;
static struct store *store;
static uint64_t seed;

static void begin(void)
{
    log_setup(LOG_OFF, false);
    snprintf(home, sizeof home, "/tmp/test-store-pieces-XXXXXX");
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

static size_t chance(size_t below)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return below ? (size_t)(seed % below) : 0;
}

/* Words as they are in conversations: some of them again and again. */
static void words(struct buf *out, size_t size)
{
    static const char *const common[] = {"\"},{\"role\":\"tool\",\"content\":\"",
                                         "return value;\\n", "    if (error != 0) {\\n",
                                         "aaaaaaaaaaaaaaaa"};
    size_t start = out->size;
    while (out->size - start < size) {
        if (chance(4) == 0)
            buf_str_append(out, str_of(common[chance(COUNT(common))]));
        else
            buf_format(out, "%zx ", chance(1u << 20));
    }
    out->size = start + size;
}

/* Without [at, at + size), with `new` bytes of its own there, or with another part of itself. */
static void edit(struct buf *body, size_t at, size_t size, size_t new_bytes, struct str moved)
{
    OWN(buf) struct buf out = {0};
    OWN(buf) struct buf piece = {0};
    buf_str_append(&piece, moved);
    buf_append(&out, body->data, at);
    words(&out, new_bytes);
    buf_str_append(&out, buf_str(&piece));
    buf_str_append(&out, str_from(buf_str(body), at + size));
    struct buf old = *body;
    *body = out;
    out = old;
}

static void change(struct buf *body)
{
    size_t at = chance(body->size + 1), rest = body->size - at;
    size_t size = chance(rest < 3000 ? rest + 1 : 3000);
    switch (chance(6)) {
    case 0: /* inserted */
        edit(body, at, 0, chance(2000), STR_NONE);
        break;
    case 1: /* deleted */
        edit(body, at, size, 0, STR_NONE);
        break;
    case 2: /* replaced, by as much or by something else */
        edit(body, at, size, chance(2) ? size : chance(2000), STR_NONE);
        break;
    case 3: { /* moved */
        OWN(buf) struct buf piece = {0};
        buf_append(&piece, body->data + at, size);
        edit(body, at, size, 0, STR_NONE);
        edit(body, chance(body->size + 1), 0, 0, buf_str(&piece));
        break;
    }
    case 4: /* said twice */
        edit(body, chance(body->size + 1), 0, 0, str_make(body->data + at, size));
        break;
    case 5: /* a counter */
        edit(body, at, rest < 20 ? rest : 20, 20, STR_NONE);
        break;
    }
}

static void expect_found(struct str parent, struct str body)
{
    struct delta delta;
    OWN(buf) struct buf fresh = {0}, back = {0};
    delta_find(parent, body, delta_front(parent, body), &delta);
    if (!delta.pieces.size) {
        EXPECT_INT(delta.front + delta.back + delta.fresh, body.size);
        return;
    }
    const struct delta_piece *pieces = (const void *)delta.pieces.data;
    size_t at = 0;
    for (size_t i = 0; i < delta.pieces.size / sizeof *pieces; i++) {
        at += pieces[i].size;
        buf_append(&fresh, body.data + at, pieces[i].fresh);
        at += pieces[i].fresh;
    }
    EXPECT_INT(at, body.size);
    EXPECT_INT(fresh.size, delta.fresh);
    EXPECT(delta_valid(buf_str(&delta.pieces), fresh.size));
    EXPECT(!delta_valid(buf_str(&delta.pieces), fresh.size + 1));
    EXPECT(delta_apply(parent, buf_str(&delta.pieces), buf_str(&fresh), &back));
    EXPECT(str_equal(buf_str(&back), body));
    /* A parent that is too short is noticed, not read beyond. */
    size_t longest = 0;
    for (size_t i = 0; i < delta.pieces.size / sizeof *pieces; i++)
        if (longest < (size_t)pieces[i].from + pieces[i].size)
            longest = (size_t)pieces[i].from + pieces[i].size;
    OWN(mem) char *cut = str_dup(str_upto(parent, longest - 1));
    EXPECT(
        !delta_apply(str_make(cut, longest - 1), buf_str(&delta.pieces), buf_str(&fresh), &back));
    buf_deinit(&delta.pieces);
}

TEST(any_change_of_any_body_is_found_and_undone)
{
    seed = 0x2545f4914f6cdd1d;
    for (int round = 0; round < 400; round++) {
        OWN(buf) struct buf parent = {0}, body = {0};
        words(&parent, chance(round % 10 ? 6000 : 80000));
        buf_str_append(&body, buf_str(&parent));
        for (size_t i = chance(6); i > 0; i--)
            change(&body);
        expect_found(buf_str(&parent), buf_str(&body));
        expect_found(buf_str(&body), buf_str(&parent));
    }
}

TEST(bodies_that_repeat_themselves_end_soon)
{
    OWN(buf) struct buf a = {0}, b = {0};
    for (int i = 0; i < 600000; i++)
        buf_byte(&a, i % 97 ? 'a' : 'b');
    for (int i = 0; i < 600000; i++)
        buf_byte(&b, i % 89 ? 'a' : 'c');
    expect_found(buf_str(&a), buf_str(&b));
    memset(a.data, 0, a.size);
    memset(b.data + 1, 0, b.size - 2);
    expect_found(buf_str(&a), buf_str(&b));
}

/* --- through the door --- */

static void on_committed(void *context, const struct err *err)
{
    *(int *)context = err->kind == ERR_NONE ? 1 : -1;
}

static void append(const char *id, struct str body, struct store_base base, uint32_t *depth)
{
    int done = 0;
    struct store_record record = {.type = STORE_ENTRY,
                                  .rollout_id = "r-1",
                                  .call_id = id,
                                  .state = "answered",
                                  .body = STR("{\"request\":null}"),
                                  .request = body,
                                  .request_base = base,
                                  .request_depth = depth,
                                  .prompt_tokens = -1,
                                  .completion_tokens = -1};
    if (store_append(store, loop, &record, on_committed, &done, NULL) < 0)
        abort();
    while (!done)
        loop_once(loop, 1000);
    EXPECT_INT(done, 1);
}

struct kinds {
    int whole, ends, pieces;
};

static bool count_kinds(void *context, const struct store_view *view)
{
    struct kinds *kinds = context;
    if (!view->request_parent.size)
        kinds->whole++;
    else if (view->request_pieces.size)
        kinds->pieces++;
    else
        kinds->ends++;
    return true;
}

static uint64_t bytes_written(void)
{
    struct store_counts counts;
    store_counts(store, &counts);
    return counts.bytes;
}

/* Whatever was done to a conversation, all of it is read back, also from an index made anew. */
TEST(a_conversation_that_is_edited_everywhere_is_read_back_whole)
{
    enum { TURNS = 150 };
    begin();
    seed = 0x9e3779b97f4a7c15;
    struct buf bodies[TURNS] = {0};
    uint32_t depth = 0, deepest = 0;
    char id[16], parent[16] = "";
    uint64_t sent = 0;
    for (int i = 0; i < TURNS; i++) {
        if (i)
            buf_str_append(&bodies[i], buf_str(&bodies[i - 1]));
        else
            words(&bodies[i], 30000);
        for (size_t changes = i ? chance(4) : 0; changes > 0; changes--)
            change(&bodies[i]);
        words(&bodies[i], 300);
        snprintf(id, sizeof id, "c-%d", i);
        struct store_base base = {.call_id = i ? parent : NULL,
                                  .bytes = i ? buf_str(&bodies[i - 1]) : STR_NONE,
                                  .depth = depth};
        append(id, buf_str(&bodies[i]), base, &depth);
        memcpy(parent, id, sizeof parent);
        deepest = depth > deepest ? depth : deepest;
        sent += bodies[i].size;
    }
    EXPECT_INT(deepest, STORE_DEPTH_MAX);
    EXPECT(bytes_written() < sent / 8);
    store_close(store);
    OWN(mem) char *index = mem_format("%s/index.sqlite", home);
    EXPECT_INT(unlink(index), 0);
    store = store_open(home, NULL);
    struct kinds kinds = {0};
    EXPECT_INT(store_recover(store, count_kinds, &kinds, NULL, NULL), 0);
    EXPECT(kinds.pieces > TURNS / 3 && kinds.ends > 10 && kinds.whole >= 3);
    for (int i = 0; i < TURNS; i++) {
        OWN(buf) struct buf request = {0}, call = {0};
        struct err err = {0};
        snprintf(id, sizeof id, "c-%d", i);
        EXPECT_INT(store_read_request(store, id, &request, &err), 0);
        EXPECT(str_equal(buf_str(&request), buf_str(&bodies[i])));
        EXPECT_INT(store_read_call(store, id, &call, &err), 0);
        EXPECT(call.size > request.size);
    }
    for (int i = 0; i < TURNS; i++)
        buf_deinit(&bodies[i]);
    end();
}

/* 600 KB; a number in the system prompt changes with every call, and 2 KB are new at the end. */
TEST(a_number_near_the_front_that_changes_costs_its_own_bytes)
{
    enum { TURNS = 10, FRESH = 2000 };
    begin();
    seed = 0x165667b19e3779f9;
    OWN(buf) struct buf talk = {0}, body = {0}, before = {0};
    char id[16], parent[16] = "";
    uint32_t depth = 0;
    uint64_t first = 0;
    words(&talk, 600000);
    for (int i = 0; i < TURNS; i++) {
        words(&talk, i ? FRESH : 0);
        buf_clear(&body);
        buf_format(&body, "{\"messages\":[{\"role\":\"system\",\"content\":\"Call %020d\"},%.*s]}",
                   i, STR_ARGS(buf_str(&talk)));
        snprintf(id, sizeof id, "c-%d", i);
        struct store_base base = {
            .call_id = i ? parent : NULL, .bytes = buf_str(&before), .depth = depth};
        append(id, buf_str(&body), base, &depth);
        memcpy(parent, id, sizeof parent);
        buf_clear(&before);
        buf_str_append(&before, buf_str(&body));
        first = i ? first : bytes_written();
    }
    uint64_t each = (bytes_written() - first) / (TURNS - 1);
    printf("  %llu bytes for a turn of %zu, %d of them new\n", (unsigned long long)each, body.size,
           FRESH);
    EXPECT(each < FRESH + 400);
    end();
}

/* The same prompt as the engine sees it: 50,000 tokens, of which some near the front change. */
TEST(tokens_near_the_front_that_change_cost_their_own_bytes)
{
    enum { TURNS = 80, FRONT = 100, ALL = 50000, FRESH = 200 };
    begin();
    static int32_t ids[TURNS][ALL + TURNS * FRESH * 2];
    size_t counts[TURNS];
    char id[16], parent[16] = "";
    uint32_t depth = 0, deepest = 0;
    uint64_t first = 0;
    seed = 0x27d4eb2f165667c5;
    for (int i = 0; i < TURNS; i++) {
        size_t known = i ? counts[i - 1] : 0;
        counts[i] = i ? known + FRESH : ALL;
        if (i)
            memcpy(ids[i], ids[i - 1], known * 4);
        for (size_t k = known; k < counts[i]; k++)
            ids[i][k] = (int32_t)chance(150000);
        for (size_t k = FRONT; i && k < FRONT + 5; k++)
            ids[i][k] = (int32_t)chance(10);
        if (i % 7 == 3) { /* re-rendered: one token less, all others a place ahead */
            memmove(&ids[i][FRONT], &ids[i][FRONT + 1], (counts[i] - FRONT - 1) * 4);
            counts[i]--;
        }
        snprintf(id, sizeof id, "c-%d", i);
        int done = 0;
        struct store_record record = {
            .type = STORE_ENTRY,
            .rollout_id = "r-1",
            .call_id = id,
            .body = STR("{}"),
            .prompt_ids = ids[i],
            .prompt_id_count = counts[i],
            .prompt_depth = &depth,
            .prompt_base = {.call_id = i ? parent : NULL,
                            .bytes = str_make(i ? ids[i - 1] : NULL, known * 4),
                            .depth = depth},
            .prompt_tokens = -1,
            .completion_tokens = -1};
        if (store_append(store, loop, &record, on_committed, &done, NULL) < 0)
            abort();
        while (!done)
            loop_once(loop, 1000);
        memcpy(parent, id, sizeof parent);
        deepest = depth > deepest ? depth : deepest;
        first = i ? first : bytes_written();
    }
    EXPECT_INT(deepest, STORE_DEPTH_MAX);
    uint64_t whole = counts[TURNS - 1] * 4; /* written once more when the chain is long enough */
    uint64_t each = (bytes_written() - first - whole) / (TURNS - 1);
    printf("  %llu bytes for a prompt of %zu tokens, %d of them new\n", (unsigned long long)each,
           counts[TURNS - 1], FRESH);
    EXPECT(each < FRESH * 4 + 400);
    for (int i = 0; i < TURNS; i++) {
        OWN(buf) struct buf prompt = {0};
        snprintf(id, sizeof id, "c-%d", i);
        EXPECT_INT(store_read_tokens(store, id, &prompt, NULL, NULL, NULL), 0);
        EXPECT(str_equal(buf_str(&prompt), str_make(ids[i], counts[i] * 4)));
    }
    end();
}
