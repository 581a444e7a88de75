/* The store through its door: what was acknowledged is there again, whatever was cut off or damaged
 * behind it, in order, from several loops and several processes. */
#include "store/store.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/err.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "json/json.h"
#include "loop/loop.h"
#include "test.h"

static char home[64];

static void home_make(void)
{
    log_setup(LOG_OFF, false);
    snprintf(home, sizeof home, "/tmp/test-store-XXXXXX");
    if (!mkdtemp(home))
        abort();
}

static void home_remove(void)
{
    (void)file_remove_tree(home, NULL);
}

/* The only segment under the home. */
static char *segment_path(void)
{
    OWN(mem) char *dir = mem_format("%s/journal", home);
    char *found = NULL;
    DIR *listing = opendir(dir);
    struct dirent *entry;
    while (listing && (entry = readdir(listing)))
        if (entry->d_name[0] != '.' && !found)
            found = mem_format("%s/%s", dir, entry->d_name);
    if (listing)
        closedir(listing);
    return found;
}

struct waiter {
    struct loop *loop;
    int pending, failed;
    enum err_kind kind;
    char text[ERR_TEXT_MAX];
};

static void committed(void *context, const struct err *err)
{
    struct waiter *waiter = context;
    waiter->pending--;
    if (err->kind != ERR_NONE) {
        waiter->failed++;
        waiter->kind = err->kind;
        snprintf(waiter->text, sizeof waiter->text, "%s", err->text);
    }
}

static void wait_for_all(struct waiter *waiter)
{
    while (waiter->pending)
        loop_once(waiter->loop, 1000);
}

static int append(struct store *store, struct waiter *waiter, enum store_type type,
                  const char *call, uint32_t number, struct str body)
{
    struct store_record record = {
        .type = type,
        .rollout_id = "r-1",
        .call_id = call,
        .number = number,
        .body = body,
        .state = type == STORE_ENTRY ? "answered" : NULL,
        .http_status = type == STORE_ENTRY ? 200 : 0,
        .prompt_tokens = type == STORE_ENTRY ? 10 : -1,
        .completion_tokens = type == STORE_ENTRY ? 3 : -1,
    };
    waiter->pending++;
    return store_append(store, waiter->loop, &record, committed, waiter, NULL);
}

struct seen {
    int count, entries, wrong;
    uint64_t last_end;
    char last_call[ID_MAX];
};

static bool see(void *context, const struct store_view *view)
{
    struct seen *seen = context;
    seen->count++;
    seen->entries += view->type == STORE_ENTRY;
    seen->wrong += view->sequence != (uint64_t)seen->count;
    seen->last_end = view->offset + view->size;
    snprintf(seen->last_call, sizeof seen->last_call, "%.*s", STR_ARGS(view->call_id));
    return true;
}

TEST(what_was_committed_is_read_back_in_order)
{
    home_make();
    struct err err = {0};
    struct waiter waiter = {.loop = loop_new(&err)};
    struct store *store = store_open(home, &err);
    EXPECT_TEXT(err.text, "");
    EXPECT(store);
    int32_t ids[] = {1, -2, 300000};
    float logprobs[] = {-0.5f, 0, -3};
    struct store_record entry = {
        .type = STORE_ENTRY,
        .rollout_id = "r-1",
        .call_id = "c-1",
        .body = STR("{\"a\":1}"),
        .state = "answered",
        .number = 7,
        .http_status = 200,
        .prompt_tokens = 11,
        .completion_tokens = 3,
        .token_ids = ids,
        .token_id_count = 3,
        .logprobs = logprobs,
        .logprob_count = 3,
    };
    EXPECT_INT(append(store, &waiter, STORE_INTENT, "c-1", 7, STR("{}")), 0);
    waiter.pending++;
    EXPECT_INT(store_append(store, waiter.loop, &entry, committed, &waiter, &err), 0);
    wait_for_all(&waiter);
    EXPECT_INT(waiter.failed, 0);

    OWN(buf) struct buf body = {0};
    EXPECT_INT(store_read_call(store, "c-1", &body, &err), 0);
    EXPECT_STR(buf_str(&body), STR("{\"a\":1}"));
    EXPECT_INT(store_read_call(store, "c-2", &body, &err), -1);
    EXPECT_INT(err.kind, ERR_NOT_FOUND);
    store_close(store);

    store = store_open(home, &err);
    EXPECT(store);
    struct seen seen = {0};
    struct store_recovery found;
    EXPECT_INT(store_recover(store, see, &seen, &found, &err), 0);
    EXPECT_INT(seen.count, 2);
    EXPECT_INT(seen.wrong, 0);
    EXPECT_INT(found.torn_bytes, 0);
    EXPECT_INT(found.open_calls, 0);
    store_close(store);
    loop_free(waiter.loop);
    home_remove();
}

struct tokens_seen {
    bool good;
};

static bool see_tokens(void *context, const struct store_view *view)
{
    struct tokens_seen *seen = context;
    int32_t ids[3] = {0};
    float logprobs[2] = {0};
    if (view->token_ids.size == sizeof ids && view->logprobs.size == sizeof logprobs) {
        memcpy(ids, view->token_ids.data, sizeof ids);
        memcpy(logprobs, view->logprobs.data, sizeof logprobs);
        seen->good = ids[0] == 5 && ids[1] == -1 && ids[2] == 151643 && logprobs[0] == -0.25f &&
                     logprobs[1] == 0;
    }
    return true;
}

TEST(token_arrays_are_kept_as_four_byte_numbers)
{
    home_make();
    struct waiter waiter = {.loop = loop_new(NULL)};
    struct store *store = store_open(home, NULL);
    int32_t ids[] = {5, -1, 151643};
    float logprobs[] = {-0.25f, 0};
    struct store_record entry = {.type = STORE_ENTRY,
                                 .call_id = "c-9",
                                 .token_ids = ids,
                                 .token_id_count = 3,
                                 .logprobs = logprobs,
                                 .logprob_count = 2};
    waiter.pending++;
    EXPECT_INT(store_append(store, waiter.loop, &entry, committed, &waiter, NULL), 0);
    wait_for_all(&waiter);
    struct tokens_seen seen = {0};
    EXPECT_INT(store_recover(store, see_tokens, &seen, NULL, NULL), 0);
    EXPECT(seen.good);
    store_close(store);
    loop_free(waiter.loop);
    home_remove();
}

/* Every place a crash may cut the last three records: all whole records before the cut are there,
 * nothing after it, the rest is cut off, and the journal goes on. */
TEST_WITHIN(a_journal_cut_at_any_byte_recovers_every_whole_record, 300)
{
    home_make();
    struct waiter waiter = {.loop = loop_new(NULL)};
    struct store *store = store_open(home, NULL);
    for (uint32_t i = 0; i < 4; i++) {
        char call[16];
        snprintf(call, sizeof call, "c-%u", i);
        EXPECT_INT(append(store, &waiter, STORE_INTENT, call, i, STR("{\"x\":1}")), 0);
        wait_for_all(&waiter);
    }
    store_close(store);
    OWN(mem) char *path = segment_path();
    OWN(buf) struct buf whole = {0};
    EXPECT_INT(file_read(path, 1 << 20, &whole, NULL), 0);
    struct seen all = {0};
    EXPECT_INT(store_walk(buf_str(&whole), see, &all), whole.size);
    EXPECT_INT(all.count, 4);
    size_t record = (whole.size - 32) / 4;
    OWN(mem) char *index = mem_format("%s/index.sqlite", home);
    OWN(mem) char *wal = mem_format("%s/index.sqlite-wal", home);
    OWN(mem) char *shm = mem_format("%s/index.sqlite-shm", home);

    for (size_t cut = 32 + record; cut <= whole.size; cut++) {
        /* A fresh index every third time, else the one that knows more than the journal now holds.
         */
        if (cut % 3 == 0) {
            (void)unlink(index);
            (void)unlink(wal);
            (void)unlink(shm);
        }
        EXPECT_INT(file_write(path, str_upto(buf_str(&whole), cut), 0600, false, NULL), 0);
        size_t expected = (cut - 32) / record;
        struct err err = {0};
        store = store_open(home, &err);
        EXPECT_TEXT(err.text, "");
        EXPECT(store);
        struct seen seen = {0};
        struct store_recovery found;
        EXPECT_INT(store_recover(store, see, &seen, &found, NULL), 0);
        EXPECT_INT(seen.count, expected);
        EXPECT_INT(found.torn_bytes, 0); /* it was cut off */
        store_close(store);
        struct stat status;
        EXPECT_INT(stat(path, &status), 0);
        EXPECT_INT(status.st_size, 32 + expected * record);
    }
    loop_free(waiter.loop);
    home_remove();
}

TEST(damage_in_the_middle_costs_only_the_damaged_record)
{
    home_make();
    struct waiter waiter = {.loop = loop_new(NULL)};
    struct store *store = store_open(home, NULL);
    for (uint32_t i = 0; i < 3; i++) {
        char call[16];
        snprintf(call, sizeof call, "c-%u", i);
        EXPECT_INT(append(store, &waiter, STORE_INTENT, call, i, STR("{\"x\":1}")), 0);
        wait_for_all(&waiter);
    }
    store_close(store);
    OWN(mem) char *path = segment_path();
    OWN(buf) struct buf whole = {0};
    EXPECT_INT(file_read(path, 1 << 20, &whole, NULL), 0);
    size_t record = (whole.size - 32) / 3;
    whole.data[32 + record + 40] ^= 1;
    EXPECT_INT(file_write(path, buf_str(&whole), 0600, false, NULL), 0);
    OWN(mem) char *index = mem_format("%s/index.sqlite", home);
    (void)unlink(index);

    store = store_open(home, NULL);
    EXPECT(store);
    EXPECT_INT(store_recovered(store)->damaged_segments, 1);
    EXPECT_INT(store_recovered(store)->torn_bytes, 0);
    struct seen seen = {0};
    EXPECT_INT(store_recover(store, see, &seen, NULL, NULL), 0);
    EXPECT_INT(seen.count, 2);
    EXPECT_TEXT(seen.last_call, "c-2");
    store_close(store);
    struct stat status;
    EXPECT_INT(stat(path, &status), 0);
    EXPECT_INT(status.st_size, whole.size);
    loop_free(waiter.loop);
    home_remove();
}

/* --- several loops --- */

struct lane_test {
    struct store *store;
    struct waiter waiter;
    int lane, last_done, wrong;
    pthread_t thread;
};
struct lane_item {
    struct lane_test *test;
    int number;
};
enum { LANES = 4, RECORDS = 500 };

static void lane_committed(void *context, const struct err *err)
{
    struct lane_item *item = context;
    /* Intents may overtake; entries keep their order. */
    bool entry = item->number % 2 == 0;
    item->test->wrong += err->kind != ERR_NONE;
    item->test->wrong += entry && item->number != item->test->last_done + 2;
    if (entry)
        item->test->last_done = item->number;
    item->test->waiter.pending--;
    free(item);
}

static void *lane_run(void *argument)
{
    struct lane_test *test = argument;
    for (int i = 1; i <= RECORDS; i++) {
        char call[32];
        snprintf(call, sizeof call, "c-%d-%d", test->lane, i);
        struct lane_item *item = mem_zero(sizeof *item);
        *item = (struct lane_item){test, i};
        struct store_record record = {.type = i % 2 ? STORE_INTENT : STORE_ENTRY,
                                      .rollout_id = "r-1",
                                      .call_id = call,
                                      .number = (uint32_t)i};
        test->waiter.pending++;
        if (store_append(test->store, test->waiter.loop, &record, lane_committed, item, NULL) < 0)
            abort();
        if (i % 50 == 0)
            loop_once(test->waiter.loop, 0);
    }
    wait_for_all(&test->waiter);
    return NULL;
}

TEST_WITHIN(appends_from_several_loops_are_all_kept_each_loop_in_its_order, 60)
{
    home_make();
    struct store *store = store_open(home, NULL);
    struct lane_test tests[LANES] = {0};
    for (int i = 0; i < LANES; i++) {
        tests[i] = (struct lane_test){.store = store, .lane = i, .waiter.loop = loop_new(NULL)};
        EXPECT_INT(pthread_create(&tests[i].thread, NULL, lane_run, &tests[i]), 0);
    }
    for (int i = 0; i < LANES; i++) {
        pthread_join(tests[i].thread, NULL);
        EXPECT_INT(tests[i].wrong, 0);
        EXPECT_INT(tests[i].last_done, RECORDS);
        loop_free(tests[i].waiter.loop);
    }
    struct store_counts counts;
    store_counts(store, &counts);
    EXPECT_INT(counts.committed, LANES * RECORDS);
    EXPECT(counts.commits < LANES * RECORDS); /* commits were shared */
    EXPECT_INT(counts.queued_bytes, 0);
    struct seen seen = {0};
    EXPECT_INT(store_recover(store, see, &seen, NULL, NULL), 0);
    EXPECT_INT(seen.count, LANES * RECORDS);
    EXPECT_INT(seen.wrong, 0);
    store_close(store);
    home_remove();
}

TEST(what_is_queued_when_the_store_is_closed_is_kept)
{
    home_make();
    struct store *store = store_open(home, NULL);
    for (int i = 0; i < 100; i++) {
        struct store_record record = {.type = STORE_NOTE, .body = STR("{}")};
        EXPECT_INT(store_append(store, NULL, &record, NULL, NULL, NULL), 0);
    }
    store_close(store);
    store = store_open_read(home, NULL);
    struct seen seen = {0};
    EXPECT_INT(store_recover(store, see, &seen, NULL, NULL), 0);
    EXPECT_INT(seen.count, 100);
    store_close(store);
    home_remove();
}

TEST(every_way_of_syncing_keeps_every_record)
{
    home_make();
    struct waiter waiter = {.loop = loop_new(NULL)};
    struct store *store = store_open(home, NULL);
    static const enum store_sync ways[] = {STORE_SYNC_ALWAYS, STORE_SYNC_NEVER, STORE_SYNC_BATCH};
    for (uint32_t i = 0; i < 60; i++) {
        store_set_sync(store, ways[i / 20]);
        EXPECT_INT(append(store, &waiter, STORE_INTENT, "c-1", i, STR("{}")), 0);
    }
    wait_for_all(&waiter);
    EXPECT_INT(waiter.failed, 0);
    struct seen seen = {0};
    EXPECT_INT(store_recover(store, see, &seen, NULL, NULL), 0);
    EXPECT_INT(seen.count, 60);
    store_close(store);
    loop_free(waiter.loop);
    home_remove();
}

TEST(segments_are_rotated_and_all_of_them_are_walked)
{
    home_make();
    struct waiter waiter = {.loop = loop_new(NULL)};
    struct store *store = store_open(home, NULL);
    OWN(mem) char *large = mem_zero(9 << 20);
    memset(large, ' ', 9 << 20);
    for (uint32_t i = 0; i < 9; i++) {
        char call[16];
        snprintf(call, sizeof call, "c-%u", i);
        EXPECT_INT(append(store, &waiter, STORE_ENTRY, call, i, str_make(large, 9 << 20)), 0);
        wait_for_all(&waiter);
    }
    struct seen seen = {0};
    struct store_recovery found;
    EXPECT_INT(store_recover(store, see, &seen, &found, NULL), 0);
    EXPECT_INT(seen.count, 9);
    EXPECT_INT(found.segments, 2);
    OWN(buf) struct buf body = {0};
    EXPECT_INT(store_read_call(store, "c-0", &body, NULL), 0);
    EXPECT_INT(store_read_call(store, "c-8", &body, NULL), 0);
    EXPECT_INT(body.size, 2 * (9 << 20));
    store_close(store);
    loop_free(waiter.loop);
    home_remove();
}

/* --- the index --- */

static bool copy_row(void *context, const struct store_rollout *row)
{
    struct json_writer out = {.out = context};
    store_rollout_write(row, &out);
    return true;
}

static bool collect_ids(void *context, const struct store_rollout *row)
{
    buf_format(context, "%s ", row->id);
    return true;
}

static void put(struct store *store, struct waiter *waiter, const struct store_rollout *row)
{
    waiter->pending++;
    if (store_put_rollout(store, waiter->loop, row, committed, waiter, NULL) < 0)
        abort();
    wait_for_all(waiter);
}

TEST(a_rollout_row_is_replaced_and_found_by_id_and_prefix)
{
    home_make();
    struct waiter waiter = {.loop = loop_new(NULL)};
    struct store *store = store_open(home, NULL);
    struct store_reward parts[] = {{"format", 1}, {"tests", 0.25}};
    struct store_rollout row = {.id = "r-abc1",
                                .run = "run-1",
                                .task = "fix-git",
                                .stage = "running",
                                .queued_ms = 1700000000123};
    put(store, &waiter, &row);
    row.stage = "done";
    row.fate = "ok";
    row.has_reward = true;
    row.reward = 0.5;
    row.rewards = parts;
    row.reward_count = 2;
    row.calls = 3;
    put(store, &waiter, &row);
    put(store, &waiter, &(struct store_rollout){.id = "r-abd2", .run = "run-2", .stage = "done"});
    EXPECT_INT(waiter.failed, 0);

    OWN(buf) struct buf text = {0};
    struct err err = {0};
    EXPECT_INT(store_get_rollout(store, "r-abc", copy_row, &text, &err), 0);
    EXPECT_TEXT(buf_text(&text),
                "{\"id\":\"r-abc1\",\"run\":\"run-1\",\"index\":0,\"task\":\"fix-git\",\"stage\":"
                "\"done\",\"fate\":\"ok\",\"reward\":0.5,\"rewards\":{\"format\":1,\"tests\":0.25},"
                "\"calls\":3,\"turns\":0,\"prompt_tokens\":0,\"completion_tokens\":0,"
                "\"queued_ms\":1700000000123,\"started_ms\":0,\"done_ms\":0}");
    EXPECT_INT(store_get_rollout(store, "r-ab", copy_row, &text, &err), -1);
    EXPECT_INT(err.kind, ERR_CONFLICT);
    EXPECT_INT(store_get_rollout(store, "r-x", copy_row, &text, &err), -1);
    EXPECT_INT(err.kind, ERR_NOT_FOUND);
    EXPECT_INT(store_get_rollout(store, "", copy_row, &text, &err), -1);
    buf_clear(&text);
    EXPECT_INT(store_list_rollouts(store, &(struct store_query){0}, collect_ids, &text, &err), 0);
    EXPECT_TEXT(buf_text(&text), "r-abd2 r-abc1 ");
    buf_clear(&text);
    EXPECT_INT(
        store_list_rollouts(store, &(struct store_query){.run = "run-1"}, collect_ids, &text, &err),
        0);
    EXPECT_TEXT(buf_text(&text), "r-abc1 ");
    buf_clear(&text);
    EXPECT_INT(store_list_rollouts(store, &(struct store_query){.before = "r-abd2", .limit = 1},
                                   collect_ids, &text, &err),
               0);
    EXPECT_TEXT(buf_text(&text), "r-abc1 ");
    store_close(store);
    loop_free(waiter.loop);
    home_remove();
}

TEST(an_index_that_is_lost_damaged_or_foreign_is_made_anew)
{
    home_make();
    struct waiter waiter = {.loop = loop_new(NULL)};
    OWN(mem) char *index = mem_format("%s/index.sqlite", home);
    OWN(mem) char *wal = mem_format("%s/index.sqlite-wal", home);
    struct store *store = store_open(home, NULL);
    put(store, &waiter, &(struct store_rollout){.id = "r-1", .stage = "done", .fate = "ok"});
    EXPECT_INT(append(store, &waiter, STORE_INTENT, "c-1", 1, STR("{}")), 0);
    wait_for_all(&waiter);
    store_close(store);
    for (int round = 0; round < 2; round++) {
        (void)unlink(wal);
        (void)unlink(index);
        if (round == 1)
            EXPECT_INT(file_write(index, STR("this is no database, not even a little bit of one"),
                                  0600, false, NULL),
                       0);
        struct err err = {0};
        store = store_open(home, &err);
        EXPECT_TEXT(err.text, "");
        EXPECT(store);
        OWN(buf) struct buf text = {0};
        EXPECT_INT(store_get_rollout(store, "r-1", collect_ids, &text, &err), 0);
        EXPECT_INT(store_recovered(store)->open_calls, 1);
        store_close(store);
    }
    loop_free(waiter.loop);
    home_remove();
}

static bool count_call(void *context, const struct store_call *call)
{
    buf_format(context, "%u:%s:%u:%lld ", call->number, call->state, call->http_status,
               (long long)call->prompt_tokens);
    return true;
}

TEST(calls_are_open_until_their_entry_is_there)
{
    home_make();
    struct waiter waiter = {.loop = loop_new(NULL)};
    struct store *store = store_open(home, NULL);
    EXPECT_INT(append(store, &waiter, STORE_INTENT, "c-1", 1, STR("{}")), 0);
    EXPECT_INT(append(store, &waiter, STORE_INTENT, "c-2", 2, STR("{}")), 0);
    EXPECT_INT(append(store, &waiter, STORE_ENTRY, "c-1", 1, STR("{}")), 0);
    wait_for_all(&waiter);
    OWN(buf) struct buf text = {0};
    EXPECT_INT(store_list_calls(store, "r-1", count_call, &text, NULL), 0);
    EXPECT_TEXT(buf_text(&text), "1:answered:200:10 2:open:0:-1 ");
    store_close(store);
    loop_free(waiter.loop);
    home_remove();
}

TEST(a_home_that_does_not_exist_is_empty_to_a_reader)
{
    log_setup(LOG_OFF, false);
    struct err err = {0};
    struct store *store = store_open_read("/tmp/test-store-that-is-not-there", &err);
    EXPECT(store);
    OWN(buf) struct buf text = {0};
    EXPECT_INT(store_list_rollouts(store, &(struct store_query){0}, collect_ids, &text, &err), 0);
    EXPECT_INT(text.size, 0);
    EXPECT_INT(store_get_rollout(store, "r-1", collect_ids, &text, &err), -1);
    EXPECT_INT(err.kind, ERR_NOT_FOUND);
    store_close(store);
    EXPECT(!file_exists("/tmp/test-store-that-is-not-there"));
}

TEST(a_home_that_cannot_be_written_is_named)
{
    log_setup(LOG_OFF, false);
    struct err err = {0};
    EXPECT(!store_open("/dev/null/home", &err));
    EXPECT(strstr(err.text, "/dev/null/home"));
}

/* --- other processes --- */

TEST(two_processes_share_a_home_and_the_killed_one_is_recovered_later)
{
    home_make();
    int ready[2];
    EXPECT_INT(pipe2(ready, O_CLOEXEC), 0);
    pid_t child = fork();
    EXPECT(child >= 0);
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        struct waiter waiter = {.loop = loop_new(NULL)};
        struct store *store = store_open(home, NULL);
        put(store, &waiter, &(struct store_rollout){.id = "r-child", .stage = "running"});
        (void)!write(ready[1], "x", 1);
        pause();
        _exit(0);
    }
    char byte;
    close(ready[1]);
    EXPECT_INT(read(ready[0], &byte, 1), 1);
    struct waiter waiter = {.loop = loop_new(NULL)};
    struct err err = {0};
    struct store *store = store_open(home, &err);
    EXPECT_TEXT(err.text, "");
    EXPECT(store);
    put(store, &waiter, &(struct store_rollout){.id = "r-parent", .stage = "done"});
    OWN(buf) struct buf text = {0};
    EXPECT_INT(store_list_rollouts(store, &(struct store_query){0}, collect_ids, &text, NULL), 0);
    EXPECT_TEXT(buf_text(&text), "r-parent r-child ");
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    store_close(store);
    store = store_open(home, &err);
    EXPECT(store);
    struct seen seen = {0};
    EXPECT_INT(store_recover(store, see, &seen, NULL, NULL), 0);
    EXPECT_INT(seen.count, 2);
    store_close(store);
    loop_free(waiter.loop);
    home_remove();
}

/* --- a full disk --- */

TEST(a_full_disk_is_named_and_the_journal_goes_on_when_there_is_room_again)
{
    home_make();
    int flags = getuid() == 0 ? CLONE_NEWNS : CLONE_NEWNS | CLONE_NEWUSER;
    if (unshare(flags) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
        mount("tmpfs", home, "tmpfs", 0, "size=3m") < 0)
        SKIP("no mount namespace here");
    struct waiter waiter = {.loop = loop_new(NULL)};
    struct err err = {0};
    struct store *store = store_open(home, &err);
    EXPECT(store);
    EXPECT_INT(append(store, &waiter, STORE_ENTRY, "c-1", 1, STR("{}")), 0);
    wait_for_all(&waiter);
    EXPECT_INT(waiter.failed, 0);
    OWN(mem) char *filler = mem_format("%s/filler", home);
    int file = open(filler, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    char page[4096] = {0};
    while (write(file, page, sizeof page) > 0)
        ;
    close(file);
    OWN(mem) char *large = mem_zero(1 << 20);
    memset(large, ' ', 1 << 20);
    EXPECT_INT(append(store, &waiter, STORE_ENTRY, "c-2", 2, str_make(large, 1 << 20)), 0);
    wait_for_all(&waiter);
    EXPECT_INT(waiter.failed, 1);
    EXPECT_INT(waiter.kind, ERR_DISK_FULL);
    EXPECT(strstr(waiter.text, "/journal/"));
    EXPECT_INT(unlink(filler), 0);
    EXPECT_INT(append(store, &waiter, STORE_ENTRY, "c-3", 3, STR("{}")), 0);
    wait_for_all(&waiter);
    EXPECT_INT(waiter.failed, 1);
    struct seen seen = {0};
    struct store_recovery found;
    EXPECT_INT(store_recover(store, see, &seen, &found, NULL), 0);
    EXPECT_INT(seen.count, 2);
    EXPECT_INT(found.torn_bytes, 0);
    store_close(store);
    loop_free(waiter.loop);
}

/* --- kill -9 --- */

static int acknowledged_fd;

static void acknowledge(void *context, const struct err *err)
{
    uint32_t number = (uint32_t)(uintptr_t)context;
    if (err->kind == ERR_NONE && write(acknowledged_fd, &number, sizeof number) < 0)
        _exit(1);
}

static void append_many(void)
{
    struct loop *loop = loop_new(NULL);
    struct store *store = store_open(home, NULL);
    for (uint32_t number = 1; number < 100000; number++) {
        char call[16];
        snprintf(call, sizeof call, "c-%u", number);
        struct store_record record = {
            .type = STORE_ENTRY, .rollout_id = "r-1", .call_id = call, .number = number};
        if (store_append(store, loop, &record, acknowledge, (void *)(uintptr_t)number, NULL) < 0)
            _exit(1);
        loop_once(loop, number % 7 == 0 ? 1 : 0);
    }
    _exit(0);
}

static bool see_number(void *context, const struct store_view *view)
{
    uint32_t *last = context;
    if (view->number == *last + 1) /* in order, none is missing */
        (*last)++;
    return true;
}

TEST_WITHIN(a_killed_process_loses_nothing_it_acknowledged, 60)
{
    for (uint32_t round = 0; round < 5; round++) {
        home_make();
        int pipes[2];
        EXPECT_INT(pipe2(pipes, O_CLOEXEC), 0);
        pid_t child = fork();
        EXPECT(child >= 0);
        if (child == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            acknowledged_fd = pipes[1];
            append_many();
        }
        close(pipes[1]);
        uint32_t number = 0, last = 0;
        while (last < 100 + round * 37 && read(pipes[0], &number, sizeof number) == sizeof number)
            last = number;
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
        while (read(pipes[0], &number, sizeof number) == sizeof number)
            last = number;
        close(pipes[0]);
        EXPECT(last >= 100);
        struct err err = {0};
        struct store *store = store_open(home, &err);
        EXPECT_TEXT(err.text, "");
        EXPECT(store);
        uint32_t found = 0;
        EXPECT_INT(store_recover(store, see_number, &found, NULL, NULL), 0);
        EXPECT(found >= last);
        OWN(buf) struct buf rows = {0};
        EXPECT_INT(store_list_calls(store, "r-1", count_call, &rows, NULL), 0);
        uint32_t lines = 0;
        for (size_t i = 0; i < rows.size; i++)
            lines += rows.data[i] == ' ';
        EXPECT_INT(lines, found);
        store_close(store);
        home_remove();
    }
}
