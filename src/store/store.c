/* store.c - opening and recovering a home, and the readers' side. writer.c makes records last.
 *
 * Readers have a connection of their own behind a mutex; before they use it the index is brought up
 * to what was committed so far. */
#include "store/store.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "json/json.h"
#include "loop/loop.h"
#include "store/inner.h"

struct store {
    char *home;
    bool read_only;
    struct store_recovery recovery;

    /* Readers. */
    pthread_mutex_t read_lock;
    struct index *reader; /* NULL: there is no index (read-only, empty home) */

    struct journal journal; /* where segments are; they are written by the writer */
    struct index *index;    /* the writer's, from when it runs */
    struct writer *writer;  /* NULL: read-only */
};

/* ---------------------------------------------------------------- recovery */

struct catching_up {
    struct index *index;
    struct err *err;
    uint64_t records;
    bool failed;
};

static bool catch_up_record(void *context, const struct store_view *view)
{
    struct catching_up *state = context;
    state->records++;
    state->failed = index_add(state->index, view, state->err) < 0;
    return !state->failed;
}

int index_catch_up(struct index *index, const struct segment *segment, uint64_t from, size_t *good,
                   uint64_t *damaged, uint64_t *records, struct err *err)
{
    struct catching_up state = {.index = index, .err = err};
    if (index_begin(index, err) < 0)
        return -1;
    *good = segment_walk(segment, from, damaged, catch_up_record, &state);
    if (state.failed || index_note(index, segment->name, *good, err) < 0 ||
        index_commit(index, err) < 0) {
        index_rollback(index);
        return -1;
    }
    *records += state.records;
    return 0;
}

/* One segment that another process left, or still writes (then it is not ours to touch). */
static int recover_segment(struct store *store, const char *name, struct err *err)
{
    OWN(mem) char *path = mem_format("%s/%s", store->journal.dir, name);
    uint64_t indexed = index_segment(store->index, name);
    struct stat status;
    if (stat(path, &status) < 0)
        return errno == ENOENT ? 0 : err_errno(err, "journal segment '%s'", path);
    store->recovery.segments++;
    if ((uint64_t)status.st_size == indexed)
        return 0;
    OWN(fd) int lock = open(path, O_RDWR | O_CLOEXEC);
    if (lock < 0)
        return err_errno(err, "journal segment '%s'", path);
    if (flock(lock, LOCK_EX | LOCK_NB) < 0)
        return errno == EWOULDBLOCK ? 0 : err_errno(err, "locking '%s'", path);

    OWN(segment) struct segment segment = {.fd = -1};
    if (segment_open(&segment, &store->journal, name, err) < 0)
        return -1;
    if (segment.bytes.size && !segment_head_valid(segment.bytes)) {
        LOG_WARN("store", name, "not a journal segment; left alone");
        store->recovery.damaged_segments++;
        return 0;
    }
    size_t good = 0;
    uint64_t damaged = 0;
    if (indexed > segment.bytes.size)
        indexed = 0; /* somebody cut the segment; what the index has beyond it stays known */
    if (index_catch_up(store->index, &segment, indexed, &good, &damaged, &store->recovery.records,
                       err) < 0)
        return err_wrap(err, "recovering '%s'", name);
    store->recovery.damaged_segments += damaged > 0;
    if (good >= segment.bytes.size || good < SEGMENT_HEAD_SIZE)
        return 0;
    size_t torn = segment_used(&segment, good) - good;
    if (torn)
        LOG_WARN("store", name, "%zu bytes of an unfinished record are cut off", torn);
    store->recovery.torn_bytes += torn;
    if (ftruncate(lock, (off_t)good) < 0 || fdatasync(lock) < 0)
        return err_errno(err, "cutting '%s' back", path);
    return 0;
}

static int recover_all(struct store *store, struct err *err)
{
    char **names = journal_names(&store->journal, err);
    if (!names)
        return -1;
    int result = 0;
    for (char **name = names; *name && result == 0; name++)
        result = recover_segment(store, *name, err);
    journal_names_free(names);
    store->recovery.open_calls = index_open_calls(store->index);
    return result;
}

/* ---------------------------------------------------------------- the door */

static struct store *store_new(const char *home, bool read_only)
{
    struct store *store = mem_zero(sizeof *store);
    store->home = mem_dup(home);
    store->read_only = read_only;
    store->journal.fd = -1;
    pthread_mutex_init(&store->read_lock, NULL);
    return store;
}

struct store *store_open(const char *home, struct err *err)
{
    struct store *store = store_new(home, false);
    if (journal_open(&store->journal, home, true, err) < 0 ||
        !(store->index = index_open(home, true, err)) || recover_all(store, err) < 0 ||
        !(store->reader = index_open(home, false, err)) ||
        !(store->writer = writer_open(home, store->index, err))) {
        err_wrap(err, "opening the store in '%s'", home);
        store_close(store);
        return NULL;
    }
    return store;
}

struct store *store_open_read(const char *home, struct err *err)
{
    struct store *store = store_new(home, true);
    OWN(mem) char *path = mem_format("%s/index.sqlite", home);
    if (journal_open(&store->journal, home, false, err) < 0 ||
        (file_exists(path) && !(store->reader = index_open(home, false, err)))) {
        err_wrap(err, "opening the store in '%s'", home);
        store_close(store);
        return NULL;
    }
    return store;
}

void store_close(struct store *store)
{
    if (!store)
        return;
    writer_close(store->writer);
    index_close(store->reader);
    index_close(store->index);
    journal_close(&store->journal);
    pthread_mutex_destroy(&store->read_lock);
    free(store->home);
    free(store);
}

const char *store_home(const struct store *store)
{
    return store->home;
}

void store_set_sync(struct store *store, enum store_sync sync)
{
    CHECK(!store->read_only);
    writer_set_sync(store->writer, sync);
}

const struct store_recovery *store_recovered(const struct store *store)
{
    return &store->recovery;
}

int store_append(struct store *store, struct loop *loop, const struct store_record *record,
                 void (*on_committed)(void *context, const struct err *err), void *context,
                 struct err *err)
{
    CHECK(!store->read_only);
    CHECK(loop || !on_committed);
    return writer_append(store->writer, loop, record, on_committed, context, err);
}

void store_counts(struct store *store, struct store_counts *out)
{
    *out = (struct store_counts){0};
    if (store->writer)
        writer_counts(store->writer, out);
}

/* The index as of now, for as long as the caller holds it. Who looks for no calls does not wait for
 * them: while agents are busy they are what is written. */
static struct index *reader_lock(struct store *store, bool calls)
{
    if (store->writer)
        writer_flush_index(store->writer, calls);
    pthread_mutex_lock(&store->read_lock);
    return store->reader;
}

static void reader_unlock(struct store *store)
{
    pthread_mutex_unlock(&store->read_lock);
}

struct walking {
    bool (*on_record)(void *context, const struct store_view *view);
    void *context;
    uint64_t records;
    bool stopped;
};

static bool walk_record(void *context, const struct store_view *view)
{
    struct walking *walking = context;
    walking->records++;
    walking->stopped = walking->on_record && !walking->on_record(walking->context, view);
    return !walking->stopped;
}

int store_recover(struct store *store,
                  bool (*on_record)(void *context, const struct store_view *view), void *context,
                  struct store_recovery *out, struct err *err)
{
    struct store_recovery found = {0};
    struct walking walking = {.on_record = on_record, .context = context};
    char **names = journal_names(&store->journal, err);
    if (!names)
        return -1;
    int result = 0;
    for (char **name = names; *name && result == 0 && !walking.stopped; name++) {
        OWN(segment) struct segment segment = {.fd = -1};
        result = segment_open(&segment, &store->journal, *name, err);
        if (result < 0)
            break;
        uint64_t damaged = 0;
        size_t good = segment_walk(&segment, 0, &damaged, walk_record, &walking);
        found.segments++;
        found.damaged_segments += damaged > 0;
        found.torn_bytes += walking.stopped ? 0 : segment_used(&segment, good) - good;
    }
    journal_names_free(names);
    found.records = walking.records;
    if (store->reader) {
        found.open_calls = index_open_calls(reader_lock(store, true));
        reader_unlock(store);
    }
    if (out)
        *out = found;
    return result;
}

int store_list_rollouts(struct store *store, const struct store_query *query,
                        bool (*on_row)(void *context, const struct store_rollout *row),
                        void *context, struct err *err)
{
    if (!store->reader)
        return 0;
    struct index *index = reader_lock(store, false);
    int result = index_list_rollouts(index, query, on_row, context, err);
    reader_unlock(store);
    return result;
}

int store_get_rollout(struct store *store, const char *id,
                      bool (*on_row)(void *context, const struct store_rollout *row), void *context,
                      struct err *err)
{
    if (!store->reader)
        return err_set(err, ERR_NOT_FOUND, "there is no rollout '%s'", id);
    struct index *index = reader_lock(store, false);
    int result = index_get_rollout(index, id, on_row, context, err);
    reader_unlock(store);
    return result;
}

int store_list_calls(struct store *store, const char *rollout_id,
                     bool (*on_row)(void *context, const struct store_call *row), void *context,
                     struct err *err)
{
    if (!store->reader)
        return 0;
    struct index *index = reader_lock(store, true);
    int result = index_list_calls(index, rollout_id, on_row, context, err);
    reader_unlock(store);
    return result;
}

struct index *store_reader(struct store *store, bool calls)
{
    return store->reader ? reader_lock(store, calls) : NULL;
}

uint64_t store_order(struct store *store)
{
    CHECK(!store->read_only);
    return writer_order(store->writer);
}

void store_reader_done(struct store *store)
{
    reader_unlock(store);
}

int store_last_record(struct store *store, struct str call_id, struct buf *bytes,
                      struct store_view *view, struct err *err)
{
    OWN(mem) char *id = str_dup(call_id);
    if (!store->reader)
        return err_set(err, ERR_NOT_FOUND, "there is no entry for call '%s'", id);
    struct index_place place;
    struct index *index = reader_lock(store, true);
    int result = index_find_call(index, id, &place, err);
    reader_unlock(store);
    if (result < 0 || journal_read(&store->journal, place.segment, place.offset, bytes, err) < 0)
        return -1;
    if (!record_read(buf_str(bytes), 0, view) || !str_equal(view->call_id, call_id))
        return err_set(err, ERR_PROTOCOL, "the entry of call '%s' is damaged", id);
    return 0;
}

int store_entry(struct store *store, struct str call_id, struct buf *bytes, struct store_view *view,
                struct err *err)
{
    if (store_last_record(store, call_id, bytes, view, err) < 0)
        return -1;
    return view->type == STORE_ENTRY
               ? 0
               : err_set(err, ERR_NOT_FOUND, "there is no entry for call '%.*s'",
                         STR_ARGS(call_id));
}
