/* store.c - the queue and the writer: records from all lanes, one thread that makes them last.
 *
 *     any thread: store_append -> queue        (bounded in bytes; intents leave room for entries)
 *     writer:     take all -> seal -> write, fdatasync -> index -> post each completion to its loop
 *
 * While one commit is being synced the next gathers in the queue, so that the number of syncs does
 * not grow with the number of askers. The journal decides whether a record is kept; an index that
 * falls behind (busy, disk full) is caught up from the segment at the next commit or at the next
 * start. Readers have a connection of their own behind a mutex. */
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

#define QUEUE_BYTES_MAX ((uint64_t)256 << 20)
#define BATCH_BYTES_MAX ((uint64_t)16 << 20)

struct item {
    struct item *next;
    bool intent; /* must survive our own death only: the next entry's sync covers it */
    struct buf bytes;
    struct loop *loop;
    void (*on_committed)(void *context, const struct err *err);
    void *context;
    struct err err;
};

struct store {
    char *home;
    bool read_only;
    struct store_recovery recovery;

    /* Readers. */
    pthread_mutex_t read_lock;
    struct index *reader; /* NULL: there is no index (read-only, empty home) */

    /* Between askers and the writer. */
    pthread_mutex_t lock;
    pthread_cond_t wake;
    struct item *first, **last;
    uint64_t queued_bytes;
    bool closing;
    enum store_sync sync;
    struct store_counts counts;

    /* The writer's own. */
    pthread_t thread;
    bool running;
    struct journal journal;
    struct index *index;
    bool index_behind;
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

/* Adds to the index what it lacks of this segment. *good: where its last whole record ends. */
static int index_catch_up(struct store *store, const struct segment *segment, uint64_t from,
                          size_t *good, uint64_t *damaged, uint64_t *records, struct err *err)
{
    struct catching_up state = {.index = store->index, .err = err};
    if (index_begin(store->index, err) < 0)
        return -1;
    *good = segment_walk(segment, from, damaged, catch_up_record, &state);
    if (state.failed || index_commit(store->index, segment->name, *good, err) < 0) {
        index_rollback(store->index);
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
    if (index_catch_up(store, &segment, indexed, &good, &damaged, &store->recovery.records, err) <
        0)
        return err_wrap(err, "recovering '%s'", name);
    store->recovery.damaged_segments += damaged > 0;
    if (good >= segment.bytes.size || good < SEGMENT_HEAD_SIZE)
        return 0;
    LOG_WARN("store", name, "%zu bytes of an unfinished record are cut off",
             segment.bytes.size - good);
    store->recovery.torn_bytes += segment.bytes.size - good;
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

/* ---------------------------------------------------------------- the writer */

static void deliver(void *argument)
{
    struct item *item = argument;
    item->on_committed(item->context, &item->err);
    free(item);
}

static void finish(struct item *item, const struct err *err)
{
    buf_deinit(&item->bytes);
    if (!item->on_committed) {
        free(item);
        return;
    }
    item->err = *err;
    loop_post(item->loop, deliver, item);
}

/* Brings the index up to the journal's end: with the records of this commit when it was up to date,
 * else by reading the segment again from where it stopped. */
static void update_index(struct store *store, struct str batch, uint64_t batch_offset)
{
    struct err err = {0};
    if (store->index_behind) {
        OWN(segment) struct segment segment = {.fd = -1};
        size_t good;
        uint64_t damaged = 0, records = 0;
        uint64_t indexed = index_segment(store->index, store->journal.name);
        if (segment_open(&segment, &store->journal, store->journal.name, &err) == 0 &&
            index_catch_up(store, &segment, indexed, &good, &damaged, &records, &err) == 0)
            store->index_behind = false;
    } else {
        struct catching_up state = {.index = store->index, .err = &err};
        store->index_behind = true;
        if (index_begin(store->index, &err) == 0) {
            struct store_view view;
            for (size_t at = 0; !state.failed && record_read(batch, at, &view);) {
                at += view.size;
                view.offset += batch_offset;
                view.segment = str_of(store->journal.name);
                (void)catch_up_record(&state, &view);
            }
            if (!state.failed &&
                index_commit(store->index, store->journal.name, store->journal.size, &err) == 0)
                store->index_behind = false;
            else
                index_rollback(store->index);
        }
    }
    if (store->index_behind)
        LOG_WARN("store", NULL, "the index is behind the journal for now: %s", err.text);
}

/* An intent answers "was this call begun?" after a crash of ours, for which the kernel's memory is
 * enough. A crash of the machine takes the agents along, too. */
static bool only_intents(const struct item *batch)
{
    while (batch && batch->intent)
        batch = batch->next;
    return !batch;
}

static void commit(struct store *store, struct item *batch, bool sync)
{
    struct err err = {0};
    OWN(buf) struct buf bytes = {0};
    uint64_t count = 0;
    char before[sizeof store->journal.name];
    memcpy(before, store->journal.name, sizeof before);
    bool good = journal_prepare(&store->journal, &err) == 0;
    if (good && before[0] && strcmp(before, store->journal.name) != 0 && store->index_behind) {
        /* What is missing is in the old segment. Leave it to the next start; the new one is whole.
         */
        LOG_WARN("store", before, "the rest of this segment is indexed at the next start");
        store->index_behind = false;
    }
    if (good) {
        uint64_t now = clock_wall_ms(), offset = store->journal.size;
        uint64_t sequence = store->journal.sequence;
        for (struct item *item = batch; item; item = item->next, count++) {
            record_seal(item->bytes.data, item->bytes.size, ++sequence, now);
            buf_str_append(&bytes, buf_str(&item->bytes));
        }
        good = journal_commit(&store->journal, buf_str(&bytes), sync, &err) == 0;
        if (good) {
            store->journal.sequence = sequence;
            update_index(store, buf_str(&bytes), offset);
        }
    }
    if (!good)
        LOG_ERROR("store", NULL, "nothing of this commit was kept: %s", err.text);

    pthread_mutex_lock(&store->lock);
    store->counts.commits++;
    store->counts.committed += good ? count : 0;
    store->counts.failed = !good;
    pthread_mutex_unlock(&store->lock);
    while (batch) {
        struct item *item = batch;
        batch = item->next;
        finish(item, &err);
    }
}

static struct item *take_batch(struct store *store, bool *sync)
{
    pthread_mutex_lock(&store->lock);
    while (!store->first && !store->closing)
        pthread_cond_wait(&store->wake, &store->lock);
    struct item *batch = store->first;
    struct item **end = &store->first;
    uint64_t bytes = 0;
    uint64_t room = store->sync == STORE_SYNC_ALWAYS ? 0 : BATCH_BYTES_MAX;
    while (*end && (bytes == 0 || bytes + (*end)->bytes.size <= room)) {
        bytes += (*end)->bytes.size;
        end = &(*end)->next;
    }
    if (batch) {
        store->first = *end;
        *end = NULL;
        if (!store->first)
            store->last = &store->first;
        store->queued_bytes -= bytes;
    }
    *sync = store->sync == STORE_SYNC_ALWAYS ||
            (store->sync == STORE_SYNC_BATCH && !only_intents(batch));
    pthread_mutex_unlock(&store->lock);
    return batch;
}

static void *writer(void *argument)
{
    struct store *store = argument;
    struct item *batch;
    bool sync;
    while ((batch = take_batch(store, &sync)))
        commit(store, batch, sync);
    return NULL;
}

static int start_writer(struct store *store, struct err *err)
{
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int code = pthread_create(&store->thread, NULL, writer, store);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (code != 0) {
        errno = code;
        return err_errno(err, "starting the journal's writer");
    }
    store->running = true;
    return 0;
}

/* ---------------------------------------------------------------- the door */

static struct store *store_new(const char *home, bool read_only)
{
    struct store *store = mem_zero(sizeof *store);
    store->home = mem_dup(home);
    store->read_only = read_only;
    store->sync = STORE_SYNC_BATCH;
    store->last = &store->first;
    store->journal.fd = -1;
    pthread_mutex_init(&store->read_lock, NULL);
    pthread_mutex_init(&store->lock, NULL);
    pthread_cond_init(&store->wake, NULL);
    return store;
}

struct store *store_open(const char *home, struct err *err)
{
    struct store *store = store_new(home, false);
    if (journal_open(&store->journal, home, true, err) < 0 ||
        !(store->index = index_open(home, true, err)) || recover_all(store, err) < 0 ||
        !(store->reader = index_open(home, false, err)) || start_writer(store, err) < 0) {
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
    if (store->running) {
        pthread_mutex_lock(&store->lock);
        store->closing = true;
        pthread_cond_signal(&store->wake);
        pthread_mutex_unlock(&store->lock);
        pthread_join(store->thread, NULL);
    }
    index_close(store->reader);
    index_close(store->index);
    journal_close(&store->journal);
    pthread_mutex_destroy(&store->read_lock);
    pthread_mutex_destroy(&store->lock);
    pthread_cond_destroy(&store->wake);
    free(store->home);
    free(store);
}

const char *store_home(const struct store *store)
{
    return store->home;
}

void store_set_sync(struct store *store, enum store_sync sync)
{
    pthread_mutex_lock(&store->lock);
    store->sync = sync;
    pthread_mutex_unlock(&store->lock);
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
    struct item *item = mem_zero(sizeof *item);
    item->loop = loop;
    item->intent = record->type == STORE_INTENT;
    item->on_committed = on_committed;
    item->context = context;
    if (record_write(&item->bytes, record, err) < 0) {
        buf_deinit(&item->bytes);
        free(item);
        return -1;
    }
    uint64_t room = record->type == STORE_INTENT ? QUEUE_BYTES_MAX / 4 * 3 : QUEUE_BYTES_MAX;
    pthread_mutex_lock(&store->lock);
    /* A single large record always fits into an empty queue. */
    bool full = store->queued_bytes > 0 && store->queued_bytes + item->bytes.size > room;
    if (!full) {
        *store->last = item;
        store->last = &item->next;
        store->queued_bytes += item->bytes.size;
        store->counts.appended++;
        pthread_cond_signal(&store->wake);
    }
    pthread_mutex_unlock(&store->lock);
    if (!full)
        return 0;
    buf_deinit(&item->bytes);
    free(item);
    return err_set(err, ERR_CAPACITY, "the journal's queue is full");
}

void store_counts(struct store *store, struct store_counts *out)
{
    pthread_mutex_lock(&store->lock);
    *out = store->counts;
    out->queued_bytes = store->queued_bytes;
    pthread_mutex_unlock(&store->lock);
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
        found.torn_bytes += walking.stopped ? 0 : segment.bytes.size - good;
    }
    journal_names_free(names);
    found.records = walking.records;
    if (store->reader) {
        pthread_mutex_lock(&store->read_lock);
        found.open_calls = index_open_calls(store->reader);
        pthread_mutex_unlock(&store->read_lock);
    }
    if (out)
        *out = found;
    return result;
}

int store_put_rollout(struct store *store, struct loop *loop, const struct store_rollout *row,
                      void (*on_committed)(void *context, const struct err *err), void *context,
                      struct err *err)
{
    OWN(buf) struct buf body = {0};
    struct json_writer out = {.out = &body};
    store_rollout_write(row, &out);
    struct store_record record = {
        .type = STORE_ROLLOUT,
        .rollout_id = row->id,
        .body = buf_str(&body),
    };
    return store_append(store, loop, &record, on_committed, context, err);
}

int store_list_rollouts(struct store *store, const struct store_query *query,
                        bool (*on_row)(void *context, const struct store_rollout *row),
                        void *context, struct err *err)
{
    if (!store->reader)
        return 0;
    pthread_mutex_lock(&store->read_lock);
    int result = index_list_rollouts(store->reader, query, on_row, context, err);
    pthread_mutex_unlock(&store->read_lock);
    return result;
}

int store_get_rollout(struct store *store, const char *id,
                      bool (*on_row)(void *context, const struct store_rollout *row), void *context,
                      struct err *err)
{
    if (!store->reader)
        return err_set(err, ERR_NOT_FOUND, "there is no rollout '%s'", id);
    pthread_mutex_lock(&store->read_lock);
    int result = index_get_rollout(store->reader, id, on_row, context, err);
    pthread_mutex_unlock(&store->read_lock);
    return result;
}

int store_list_calls(struct store *store, const char *rollout_id,
                     bool (*on_row)(void *context, const struct store_call *row), void *context,
                     struct err *err)
{
    if (!store->reader)
        return 0;
    pthread_mutex_lock(&store->read_lock);
    int result = index_list_calls(store->reader, rollout_id, on_row, context, err);
    pthread_mutex_unlock(&store->read_lock);
    return result;
}

int store_entry(struct store *store, struct str call_id, struct buf *bytes, struct store_view *view,
                struct err *err)
{
    OWN(mem) char *id = str_dup(call_id);
    if (!store->reader)
        return err_set(err, ERR_NOT_FOUND, "there is no entry for call '%s'", id);
    struct index_place place;
    pthread_mutex_lock(&store->read_lock);
    int result = index_find_call(store->reader, id, &place, err);
    pthread_mutex_unlock(&store->read_lock);
    if (result < 0 || journal_read(&store->journal, place.segment, place.offset, bytes, err) < 0)
        return -1;
    if (!record_read(buf_str(bytes), 0, view) || !str_equal(view->call_id, call_id))
        return err_set(err, ERR_PROTOCOL, "the entry of call '%s' is damaged", id);
    return 0;
}

static void set_known(struct json_writer *out, const char *key, const char *value)
{
    if (value && value[0])
        json_set_text(out, key, value);
}

void store_rollout_write(const struct store_rollout *row, struct json_writer *out)
{
    json_begin_object(out);
    json_set_text(out, "id", row->id);
    set_known(out, "run", row->run);
    set_known(out, "group", row->group);
    json_set_int(out, "index", row->index);
    set_known(out, "task", row->task);
    set_known(out, "agent", row->agent);
    set_known(out, "model", row->model);
    set_known(out, "mode", row->mode);
    set_known(out, "backend", row->backend);
    set_known(out, "stage", row->stage);
    json_set_text(out, "fate", row->fate && row->fate[0] ? row->fate : NULL);
    set_known(out, "error", row->error);
    if (row->has_reward)
        json_set_double(out, "reward", row->reward);
    else
        json_set_null(out, "reward");
    if (row->reward_count) {
        json_key(out, "rewards");
        json_begin_object(out);
        for (size_t i = 0; i < row->reward_count; i++)
            json_set_double(out, row->rewards[i].name, row->rewards[i].value);
        json_end_object(out);
    }
    json_set_int(out, "calls", row->calls);
    json_set_int(out, "turns", row->turns);
    json_set_int(out, "prompt_tokens", row->prompt_tokens);
    json_set_int(out, "completion_tokens", row->completion_tokens);
    json_set_int(out, "queued_ms", (long long)row->queued_ms);
    json_set_int(out, "started_ms", (long long)row->started_ms);
    json_set_int(out, "done_ms", (long long)row->done_ms);
    set_known(out, "dir", row->dir);
    json_end_object(out);
}
