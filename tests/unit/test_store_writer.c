/* The writer behind the store's door: what is allocated ahead, what overtakes, what a sync that
 * fails takes back, an index that follows, a clock that goes back. fdatasync() and clock_gettime()
 * are ours here. */
#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/err.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "loop/loop.h"
#include "store/index.h"
#include "test.h"

static char home[64];
static struct store *store;
static struct loop *loop;
static atomic_int pending, failed;

/* What the next sync does instead of syncing. */
static _Atomic(void (*)(void)) during_sync;
static atomic_bool sync_fails;

int fdatasync(int fd)
{
    void (*run)(void) = atomic_exchange(&during_sync, NULL);
    if (run)
        run();
    if (atomic_exchange(&sync_fails, false)) {
        errno = EIO;
        return -1;
    }
    return (int)syscall(SYS_fdatasync, fd);
}

static atomic_long wall_offset_s;

int clock_gettime(clockid_t clock, struct timespec *out)
{
    int code = (int)syscall(SYS_clock_gettime, clock, out);
    if (clock == CLOCK_REALTIME)
        out->tv_sec += wall_offset_s;
    return code;
}

static void begin(void)
{
    log_setup(LOG_OFF, false);
    snprintf(home, sizeof home, "/tmp/test-store-XXXXXX");
    if (!mkdtemp(home))
        abort();
    loop = loop_new(NULL);
    store = store_open(home, NULL);
    EXPECT(store);
}

static void end(void)
{
    store_close(store);
    loop_free(loop);
    (void)file_remove_tree(home, NULL);
}

static void committed(void *context, const struct err *err)
{
    (void)context;
    failed += err->kind != ERR_NONE;
    pending--;
}

static void append(enum store_type type, const char *call, struct str body)
{
    struct store_record record = {
        .type = type,
        .rollout_id = "r-1",
        .call_id = call,
        .number = 1,
        .body = body,
        .state = type == STORE_ENTRY ? "answered" : NULL,
        .prompt_tokens = -1,
        .completion_tokens = -1,
    };
    pending++;
    if (store_append(store, loop, &record, committed, NULL, NULL) < 0)
        abort();
}

static void wait_all(void)
{
    while (pending)
        loop_once(loop, 1000);
}

static bool list_call(void *context, const struct store_call *row)
{
    buf_format(context, "%s:%s ", row->id, row->state);
    return true;
}

static void expect_calls(const char *wanted)
{
    OWN(buf) struct buf text = {0};
    EXPECT_INT(store_list_calls(store, "r-1", list_call, &text, NULL), 0);
    EXPECT_TEXT(buf_text(&text), wanted);
}

static uint64_t segment_bytes(void)
{
    OWN(mem) char *dir = mem_format("%s/journal", home);
    uint64_t size = 0;
    DIR *listing = opendir(dir);
    struct dirent *entry;
    while (listing && (entry = readdir(listing))) {
        OWN(mem) char *path = mem_format("%s/%s", dir, entry->d_name);
        struct stat status;
        if (entry->d_name[0] != '.' && stat(path, &status) == 0)
            size += (uint64_t)status.st_size;
    }
    if (listing)
        closedir(listing);
    return size;
}

TEST(what_was_told_is_in_the_index_for_whoever_reads_next)
{
    begin();
    for (int i = 0; i < 200; i++) {
        char id[16];
        snprintf(id, sizeof id, "c-%03d", i);
        append(STORE_INTENT, id, STR("{}"));
        wait_all();
        append(STORE_ENTRY, id, STR("{}"));
        wait_all();
        OWN(buf) struct buf call = {0};
        struct err err = {0};
        EXPECT_INT(store_read_call(store, id, &call, &err), 0);
        EXPECT_TEXT(err.text, "");
    }
    end();
}

static bool note_row(void *context, const struct store_rollout *row)
{
    (void)row;
    *(bool *)context = true;
    return true;
}

/* The index failed for a moment, and nothing is written afterwards. */
TEST_WITHIN(an_index_that_failed_is_brought_up_without_another_record, 60)
{
    struct err err = {0};
    bool there = false;
    begin();
    struct index *other = index_open(home, true, &err);
    EXPECT(other != NULL);
    EXPECT_INT(sqlite3_exec(other->db, "ALTER TABLE rollouts RENAME TO away", NULL, NULL, NULL), 0);
    struct store_rollout row = {.id = "r-1", .stage = "queued"};
    pending++;
    EXPECT_INT(store_put_rollout(store, loop, &row, committed, NULL, &err), 0);
    wait_all(); /* told, since the journal has it */
    EXPECT_INT(sqlite3_exec(other->db, "ALTER TABLE away RENAME TO rollouts", NULL, NULL, NULL), 0);
    index_close(other);
    for (int i = 0; i < 300 && !there; i++) {
        struct store_query query = {.limit = 10};
        EXPECT_INT(store_list_rollouts(store, &query, note_row, &there, &err), 0);
        (void)usleep(100000);
    }
    EXPECT(there);
    end();
}

static int row_count, rows_told[3];

static void note_row_told(void *context, const struct err *err)
{
    failed += err->kind != ERR_NONE;
    *(int *)context = ++row_count;
}

/* Three commits, while nobody can write to the index. */
TEST_WITHIN(rows_that_waited_for_the_index_are_told_in_their_order, 60)
{
    struct err err = {0};
    struct store_counts counts = {0};
    begin();
    struct index *other = index_open(home, true, &err);
    EXPECT(other != NULL);
    EXPECT_INT(sqlite3_exec(other->db, "BEGIN IMMEDIATE", NULL, NULL, NULL), 0);
    for (int i = 0; i < 3; i++) {
        struct store_rollout row = {.id = "r-1", .index = (uint32_t)i, .stage = "queued"};
        uint64_t before = counts.committed;
        EXPECT_INT(store_put_rollout(store, loop, &row, note_row_told, &rows_told[i], &err), 0);
        while (counts.committed == before) {
            (void)usleep(1000);
            store_counts(store, &counts);
        }
    }
    EXPECT_INT(sqlite3_exec(other->db, "COMMIT", NULL, NULL, NULL), 0);
    index_close(other);
    while (row_count < 3)
        loop_once(loop, 1000);
    EXPECT(rows_told[0] == 1 && rows_told[1] == 2 && rows_told[2] == 3);
    end();
}

static void append_intent(void)
{
    append(STORE_INTENT, "c-2", STR("{}"));
}

TEST(an_intent_does_not_wait_for_a_sync)
{
    begin();
    append(STORE_ENTRY, "c-1", STR("{}"));
    wait_all(); /* a segment is there */
    during_sync = append_intent;
    append(STORE_ENTRY, "c-3", STR("{}"));
    wait_all();
    expect_calls("c-1:answered c-2:open c-3:answered ");
    end();
}

TEST(a_sync_that_fails_takes_back_its_batch_and_keeps_the_intents_behind_it)
{
    begin();
    append(STORE_ENTRY, "c-1", STR("{}"));
    wait_all();
    during_sync = append_intent;
    sync_fails = true;
    append(STORE_ENTRY, "c-3", STR("{}"));
    wait_all();
    EXPECT_INT(failed, 1);
    append(STORE_ENTRY, "c-4", STR("{}"));
    wait_all();
    EXPECT_INT(failed, 1);
    expect_calls("c-1:answered c-2:open c-4:answered ");
    store_close(store);
    OWN(mem) char *command = mem_format("rm %s/index.sqlite*", home);
    EXPECT_INT(system(command), 0);
    store = store_open(home, NULL);
    EXPECT_INT(store_recovered(store)->segments, 2);
    EXPECT_INT(store_recovered(store)->torn_bytes, 0);
    expect_calls("c-1:answered c-2:open c-4:answered ");
    end();
}

TEST(what_is_allocated_ahead_is_cut_off_at_the_end)
{
    begin();
    struct store_counts counts;
    append(STORE_ENTRY, "c-1", STR("{}"));
    wait_all();
    store_counts(store, &counts);
    EXPECT(segment_bytes() >= counts.bytes + 32 + 60000);
    store_close(store);
    EXPECT_INT(segment_bytes(), counts.bytes + 32);
    store = store_open(home, NULL);
    EXPECT_INT(store_recovered(store)->torn_bytes, 0);
    end();
}

/* A record may end in zeros, and be followed by those of the allocation. */
TEST(a_killed_owners_zeros_are_no_torn_record)
{
    begin();
    store_close(store);
    int ready[2];
    EXPECT_INT(pipe(ready), 0);
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        store = store_open(home, NULL);
        float zeros[100] = {0};
        struct store_record record = {.type = STORE_ENTRY,
                                      .rollout_id = "r-1",
                                      .call_id = "c-1",
                                      .state = "answered",
                                      .logprobs = zeros,
                                      .logprob_count = 100};
        pending++;
        (void)store_append(store, loop, &record, committed, NULL, NULL);
        wait_all();
        append(STORE_INTENT, "c-2", STR("{}"));
        wait_all();
        struct store_counts counts;
        store_counts(store, &counts);
        (void)!write(ready[1], &counts.bytes, sizeof counts.bytes);
        pause();
        _exit(0);
    }
    uint64_t bytes = 0;
    EXPECT_INT(read(ready[0], &bytes, sizeof bytes), sizeof bytes);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    close(ready[0]);
    close(ready[1]);
    EXPECT(segment_bytes() > bytes + 32);
    store = store_open(home, NULL);
    EXPECT_INT(store_recovered(store)->torn_bytes, 0);
    EXPECT_INT(store_recovered(store)->damaged_segments, 0);
    EXPECT_INT(segment_bytes(), bytes + 32);
    expect_calls("c-1:answered c-2:open ");
    end();
}

/* --- in a tick --- */

static void append_five(void *argument)
{
    static char ids[5][8];
    (void)argument;
    for (int i = 0; i < 5; i++) {
        snprintf(ids[i], sizeof ids[i], "c-%d", i);
        append(STORE_ENTRY, ids[i], STR("{}"));
    }
}

TEST(what_comes_in_one_tick_is_one_commit)
{
    begin();
    append(STORE_ENTRY, "c-0", STR("{}"));
    wait_all();
    struct store_counts before, after;
    store_counts(store, &before);
    loop_defer(loop, append_five, NULL);
    loop_once(loop, 0);
    wait_all();
    store_counts(store, &after);
    EXPECT_INT(after.commits - before.commits, 1);
    EXPECT_INT(after.committed - before.committed, 5);
    EXPECT_INT(failed, 0);
    end();
}

static void append_and_close(void *argument)
{
    append_five(argument);
    store_close(store);
    store = NULL;
}

TEST(a_store_may_be_closed_in_the_tick_that_appended)
{
    begin();
    loop_defer(loop, append_and_close, NULL);
    loop_once(loop, 0);
    EXPECT(!store);
    wait_all();
    EXPECT_INT(failed, 0);
    store = store_open(home, NULL);
    expect_calls("c-0:answered c-1:answered c-2:answered c-3:answered c-4:answered ");
    end();
}

/* More than a tick may keep to itself: all of it is committed, whenever. */
static void append_many(void *argument)
{
    for (int i = 0; i < 20; i++)
        append_five(argument);
}

TEST(a_tick_with_much_to_say_loses_nothing)
{
    begin();
    for (int i = 0; i < 5; i++) {
        loop_defer(loop, append_many, NULL);
        sync_fails = i == 2;
        loop_once(loop, 0);
        wait_all();
        EXPECT(failed == 0 || i >= 2);
    }
    struct store_counts counts;
    store_counts(store, &counts);
    EXPECT_INT(counts.appended, 500);
    EXPECT_INT(counts.committed + (uint64_t)failed, 500);
    end();
}

/* --- a clock that goes back --- */

static void put_stage(const char *stage)
{
    struct store_rollout row = {.id = "r-1", .stage = stage, .task = "t"};
    pending++;
    if (store_put_rollout(store, loop, &row, committed, NULL, NULL) < 0)
        abort();
    wait_all();
}

static bool note_stage(void *context, const struct store_rollout *row)
{
    snprintf(context, 16, "%s", row->stage);
    return true;
}

static void expect_stage(const char *wanted)
{
    char stage[16] = "";
    EXPECT_INT(store_get_rollout(store, "r-1", note_stage, stage, NULL), 0);
    EXPECT_TEXT(stage, wanted);
}

static void index_anew(void)
{
    store_close(store);
    OWN(mem) char *command = mem_format("rm %s/index.sqlite*", home);
    EXPECT_INT(system(command), 0);
    store = store_open(home, NULL);
    EXPECT(store);
}

TEST(the_last_row_counts_also_when_the_clock_was_set_back)
{
    begin();
    put_stage("queued");
    wall_offset_s = -3600;
    put_stage("running");
    expect_stage("running");
    store_close(store); /* the next server starts at an earlier hour, too */
    wall_offset_s = -7200;
    store = store_open(home, NULL);
    put_stage("verifying");
    expect_stage("verifying");
    index_anew();
    expect_stage("verifying");
    put_stage("done");
    expect_stage("done");
    wall_offset_s = 0;
    index_anew();
    expect_stage("done");
    EXPECT_INT(store_recovered(store)->segments, 3);
    end();
}

static void put_fact(const char *value)
{
    pending++;
    if (store_put_fact(store, loop, "policy", str_of(value), committed, NULL, NULL) < 0)
        abort();
    wait_all();
}

static void expect_fact(const char *wanted)
{
    OWN(buf) struct buf value = {0};
    EXPECT_INT(store_get_fact(store, "policy", &value, NULL), 1);
    EXPECT_TEXT(buf_text(&value), wanted);
}

/* The retention had read "1" when somebody put "2". */
TEST(a_fact_that_is_written_again_does_not_undo_a_newer_one)
{
    begin();
    put_fact("1");
    expect_fact("1");
    EXPECT_INT(store_keep_fact(store, "policy", STR("1"), NULL), 0);
    put_fact("2");
    EXPECT_INT(store_keep_fact(store, "policy", STR("1"), NULL), 0);
    EXPECT_INT(store_keep_fact(store, "other", STR("3"), NULL), 0);
    append(STORE_ENTRY, "c-1", STR("{}"));
    wait_all();
    expect_fact("2");
    index_anew();
    expect_fact("2");
    OWN(buf) struct buf other = {0};
    EXPECT_INT(store_get_fact(store, "other", &other, NULL), 1);
    EXPECT_TEXT(buf_text(&other), "3");
    end();
}

/* A segment that holds nothing but a fact goes, the fact stays; it is written again only for that.
 */
TEST(a_fact_moves_out_of_a_segment_that_nothing_else_needs)
{
    begin();
    put_fact("1");
    uint64_t count = 0, bytes = 0;
    struct store_counts before, after;
    store_counts(store, &before);
    EXPECT_INT(store_drop_segments(store, &count, &bytes, NULL), 0);
    put_stage("queued");
    store_counts(store, &after);
    EXPECT_INT(after.committed - before.committed, 1);
    store_close(store);
    store = store_open(home, NULL);
    put_stage("running");
    EXPECT_INT(store_drop_segments(store, &count, &bytes, NULL), 0);
    EXPECT_INT(count, 0);
    put_stage("done"); /* behind the fact */
    EXPECT_INT(store_drop_segments(store, &count, &bytes, NULL), 0);
    EXPECT_INT(count, 1);
    EXPECT(bytes > 0);
    expect_fact("1");
    index_anew();
    expect_fact("1");
    expect_stage("done");
    end();
}

static bool note_call(void *context, const struct store_call *row)
{
    *(struct store_call *)context = *row;
    return true;
}

/* An intent and its entry, in one step of the index or in two, and a deletion in between. */
TEST(a_call_is_the_same_row_however_it_came_into_the_index)
{
    begin();
    for (int i = 0; i < 2; i++) {
        struct store_call row = {0};
        append(STORE_INTENT, "c-1", STR("{}"));
        wait_all();
        if (i == 1)
            EXPECT_INT(store_list_calls(store, "r-1", note_call, &row, NULL), 0);
        EXPECT(row.intent_ms > 0 || i == 0);
        append(STORE_ENTRY, "c-1", STR("{}"));
        wait_all();
        EXPECT_INT(store_list_calls(store, "r-1", note_call, &row, NULL), 0);
        EXPECT(row.intent_ms > 0 && row.entry_ms >= row.intent_ms);
        EXPECT_INT(row.number, 1);
        append(STORE_INTENT, "c-2", STR("{}"));
        pending++;
        EXPECT_INT(store_remove_rollout(store, loop, "r-1", committed, NULL, NULL), 0);
        wait_all();
        expect_calls("");
        index_anew();
        expect_calls("");
    }
    end();
}

/* --- many threads --- */

static void *intents(void *argument)
{
    const char *name = argument;
    for (int i = 0; i < 500; i++) {
        char id[24];
        snprintf(id, sizeof id, "c-%s-%03d", name, i);
        struct store_record record = {.type = i % 3 ? STORE_INTENT : STORE_ENTRY,
                                      .rollout_id = "r-1",
                                      .call_id = id,
                                      .body = STR("{}")};
        pending++;
        (void)store_append(store, loop, &record, committed, NULL, NULL);
    }
    return NULL;
}

static bool in_order(void *context, const struct store_view *view)
{
    uint64_t *last = context;
    return view->sequence == ++*last;
}

TEST(intents_and_entries_of_many_threads_follow_each_other_without_a_gap)
{
    begin();
    pthread_t threads[4];
    static char names[4][2] = {"a", "b", "c", "d"};
    for (int i = 0; i < 4; i++)
        EXPECT_INT(pthread_create(&threads[i], NULL, intents, names[i]), 0);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    wait_all();
    EXPECT_INT(failed, 0);
    uint64_t last = 0;
    struct store_recovery found;
    EXPECT_INT(store_recover(store, in_order, &last, &found, NULL), 0);
    EXPECT_INT(last, 2000);
    EXPECT_INT(found.records, 2000);
    EXPECT_INT(found.torn_bytes, 0);
    EXPECT_INT(found.damaged_segments, 0);
    end();
}
