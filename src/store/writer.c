/* writer.c - records from all lanes, made to last: a queue, a thread that syncs, one that indexes.
 *
 *     any thread: writer_append -> queue         (bounded in bytes; intents leave room for entries)
 *     committer:  take all -> seal, write -> fdatasync -> tell each asker on its loop
 *     indexer:    every INDEX_MS, or when somebody wants to read: what is committed -> SQLite
 *
 * While one commit is being synced the next gathers in the queue, so that the number of syncs does
 * not grow with the number of askers. An asker that is in a tick of its loop cannot be told before
 * the tick is over: the committer is woken then, for all that came in it, or when a few are queued.
 * An intent has to survive our own death only, for which the
 * kernel's memory is enough: its asker's thread writes it itself when nobody else is writing at
 * that moment, and the next entry's sync covers it. So an intent costs one system call and no
 * change of threads, and it may overtake records that are still queued.
 *
 * The journal decides whether a record is kept; the index follows it. What is written and not yet
 * indexed is a list of chunks in the order of the segment, each `good` when it is as durable as it
 * has to be; the indexer takes good ones from the front, so that "indexed up to here" is always
 * true. An index that fails (busy, disk full) is caught up from the segment itself. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/list.h"
#include "base/log.h"
#include "base/mem.h"
#include "loop/loop.h"
#include "store/inner.h"

#define QUEUE_BYTES_MAX ((uint64_t)256 << 20)
#define BATCH_BYTES_MAX ((uint64_t)16 << 20)
#define CHUNK_BYTES_MAX ((uint64_t)64 << 20) /* waiting for the index: more is read again later */
#define QUEUED_MAX 8                         /* do not wait for the end of a tick */
#define INDEX_MS 200
#define INDEX_BYTES_MAX ((uint64_t)4 << 20) /* more does not wait */
#define AGAIN_MS 1000                       /* after which an index that failed is tried again */
#define FLUSH_MS_MAX 10000
#define FLUSH_ROWS_MS_MAX 1000 /* asked for by loops */

struct item {
    struct item *next;
    bool intent; /* must survive our own death only: the next entry's sync covers it */
    bool row;    /* of a rollout: told when it is in the index, too */
    bool call;   /* about a call */
    struct buf bytes;
    struct loop *loop;
    void (*on_committed)(void *context, const struct err *err);
    void *context;
    struct err err;
};

/* Records that follow each other in a segment and are not in the index yet. */
struct chunk {
    struct chunk *next;
    char segment[64];
    uint64_t offset;
    bool good, intents;
    struct buf bytes;
};

struct writer {
    /* The segment that is written, and what of it is not indexed. Held for the length of a write,
     * never of a sync. Taken before `lock` where both are. */
    pthread_mutex_t journal_lock;
    struct journal journal;
    struct chunk *chunks, **chunks_end;
    uint64_t chunk_bytes;
    char behind[64]; /* chunks were dropped: the index has to be caught up from this segment on */

    /* Between askers and the threads. */
    pthread_mutex_t lock;
    pthread_cond_t wake, index_wake, indexed;
    struct item *first, **last;
    uint64_t queued_bytes;
    uint32_t queued; /* items that wait for the end of a tick */
    bool due;        /* what is queued is to be committed now */
    bool committer_waiting;
    bool closing, committer_done;
    enum store_sync sync;
    struct store_counts counts;
    uint64_t written, flushed; /* chunks made, and how many of them the index has seen */
    uint64_t written_other;    /* up to the last chunk that is not about calls only */
    uint64_t order;            /* of the last row of a rollout */
    bool flush_wanted, index_waiting;
    struct item *rows; /* committed, and told when they are indexed */

    atomic_int users; /* its owner, and ticks that wake it at their end */
    pthread_t committer, indexer;
    bool committer_runs, indexer_runs;
    struct index *index; /* the indexer's own */
};

/* ---------------------------------------------------------------- what the index lacks */

static struct chunk *chunk_add(struct writer *writer, struct str bytes, uint64_t offset,
                               bool intents, bool good)
{
    struct chunk *chunk = mem_zero(sizeof *chunk);
    memcpy(chunk->segment, writer->journal.name, sizeof chunk->segment);
    chunk->offset = offset;
    chunk->intents = intents;
    chunk->good = good;
    buf_str_append(&chunk->bytes, bytes);
    *writer->chunks_end = chunk;
    writer->chunks_end = &chunk->next;
    writer->chunk_bytes += bytes.size;
    return chunk;
}

static void chunk_free(struct chunk *chunk)
{
    buf_deinit(&chunk->bytes);
    free(chunk);
}

static void chunks_free(struct chunk *chunk)
{
    while (chunk) {
        struct chunk *next = chunk->next;
        chunk_free(chunk);
        chunk = next;
    }
}

/* The good ones at the front. From where on the index is behind is told, too, and forgotten. */
static struct chunk *chunks_take(struct writer *writer, char behind[64])
{
    pthread_mutex_lock(&writer->journal_lock);
    struct chunk *taken = writer->chunks, **end = &writer->chunks;
    while (*end && (*end)->good) {
        writer->chunk_bytes -= (*end)->bytes.size;
        end = &(*end)->next;
    }
    if (end == &writer->chunks) {
        taken = NULL; /* the first one is not good yet: they all stay */
    } else {
        if (writer->chunks_end == end)
            writer->chunks_end = &writer->chunks;
        writer->chunks = *end;
        *end = NULL;
    }
    memcpy(behind, writer->behind, sizeof writer->behind);
    writer->behind[0] = 0;
    pthread_mutex_unlock(&writer->journal_lock);
    return taken;
}

/* There is something to index; the indexer is woken only when it would sleep for ever, or when
 * there is very much. */
static void index_later(struct writer *writer, uint64_t chunk_bytes, uint64_t alone, bool calls)
{
    pthread_mutex_lock(&writer->lock);
    writer->written++;
    if (!calls)
        writer->written_other = writer->written;
    writer->counts.appended += alone > 0;
    writer->counts.committed += alone > 0;
    writer->counts.bytes += alone;
    if (writer->index_waiting || chunk_bytes > INDEX_BYTES_MAX) {
        writer->index_waiting = false;
        pthread_cond_signal(&writer->index_wake);
    }
    pthread_mutex_unlock(&writer->lock);
}

/* The indexer cannot keep up (the index is locked, the disk is full): what waits is in the segment
 * anyway. */
static void chunks_bound(struct writer *writer)
{
    if (writer->chunk_bytes <= CHUNK_BYTES_MAX)
        return;
    struct chunk **at = &writer->chunks;
    if (*at && !writer->behind[0])
        memcpy(writer->behind, (*at)->segment, sizeof writer->behind);
    while (*at && (*at)->good) {
        struct chunk *chunk = *at;
        *at = chunk->next;
        writer->chunk_bytes -= chunk->bytes.size;
        chunk_free(chunk);
    }
    if (!writer->chunks)
        writer->chunks_end = &writer->chunks;
}

/* ---------------------------------------------------------------- committing */

static void deliver(void *argument)
{
    struct item *next, *item = argument;
    for (; item; item = next) {
        next = item->next;
        item->on_committed(item->context, &item->err);
        free(item);
    }
}

/* Everybody is told, with one message to each loop. */
static void finish(struct item *batch, const struct err *err)
{
    while (batch) {
        struct loop *loop = batch->loop;
        struct item *mine = NULL, **mine_end = &mine, *others = NULL, **others_end = &others;
        for (struct item *item = batch, *next; item; item = next) {
            next = item->next;
            item->next = NULL;
            buf_deinit(&item->bytes);
            item->err = *err;
            if (!item->on_committed) {
                free(item);
            } else if (item->loop == loop) {
                *mine_end = item;
                mine_end = &item->next;
            } else {
                *others_end = item;
                others_end = &item->next;
            }
        }
        if (mine)
            loop_post(loop, deliver, mine);
        batch = others;
    }
}

/* Rows of rollouts are rare, and other processes look for them in the index: their askers are told
 * by the indexer. Takes them out of the batch. */
static void leave_rows(struct writer *writer, struct item **batch)
{
    struct item *rows = NULL, **end = &rows;
    for (struct item **at = batch; *at;) {
        struct item *item = *at;
        if (!item->row) {
            at = &item->next;
            continue;
        }
        *at = item->next;
        item->next = NULL;
        *end = item;
        end = &item->next;
    }
    if (!rows)
        return;
    pthread_mutex_lock(&writer->lock);
    struct item **last = &writer->rows; /* they are few */
    while (*last)
        last = &(*last)->next;
    *last = rows;
    writer->flush_wanted = true;
    pthread_cond_signal(&writer->index_wake);
    pthread_mutex_unlock(&writer->lock);
}

/* An intent answers "was this call begun?" after a crash of ours, for which the kernel's memory is
 * enough. A crash of the machine takes the agents along, too. */
static bool only_intents(const struct item *batch)
{
    while (batch && batch->intent)
        batch = batch->next;
    return !batch;
}

static bool only_calls(const struct item *batch)
{
    while (batch && batch->call)
        batch = batch->next;
    return !batch;
}

/* Written into the segment, at its end; as durable as a write is. */
static struct chunk *write_batch(struct writer *writer, struct item *batch, uint64_t *count,
                                 struct err *err)
{
    struct journal *journal = &writer->journal;
    struct chunk *chunk = NULL;
    OWN(buf) struct buf bytes = {0};
    size_t size = 0;
    for (struct item *item = batch; item; item = item->next)
        size += item->bytes.size;
    (void)buf_reserve(&bytes, size);
    pthread_mutex_lock(&writer->journal_lock);
    if (journal_prepare(journal, err) == 0) {
        uint64_t now = clock_wall_ms(), offset = journal->size, sequence = journal->sequence;
        for (struct item *item = batch; item; item = item->next, ++*count) {
            record_seal(item->bytes.data, item->bytes.size, ++sequence, now);
            buf_str_append(&bytes, buf_str(&item->bytes));
        }
        if (journal_write(journal, buf_str(&bytes), err) == 0) {
            journal->sequence = sequence;
            chunk = chunk_add(writer, STR_NONE, offset, only_intents(batch), false);
            chunk->bytes = bytes;
            bytes = (struct buf){0};
            writer->chunk_bytes += chunk->bytes.size;
        }
    }
    pthread_mutex_unlock(&writer->journal_lock);
    return chunk;
}

/* Intents that were written behind a batch that is cut off: they are queued once more. */
static void requeue(struct writer *writer, const struct chunk *chunk)
{
    struct store_view view;
    struct str bytes = buf_str(&chunk->bytes);
    for (size_t at = 0; record_read(bytes, at, &view); at += view.size) {
        struct item *item = mem_zero(sizeof *item);
        item->intent = item->call = true;
        buf_append(&item->bytes, bytes.data + at, view.size);
        pthread_mutex_lock(&writer->lock);
        item->next = writer->first;
        if (!writer->first)
            writer->last = &item->next;
        writer->first = item;
        writer->due = true;
        writer->queued_bytes += item->bytes.size;
        pthread_mutex_unlock(&writer->lock);
    }
}

/* The sync failed. The segment is not used again; it ends where the batch began. */
static void take_back(struct writer *writer, struct chunk *chunk)
{
    pthread_mutex_lock(&writer->journal_lock);
    journal_spoil(&writer->journal, chunk->offset);
    struct chunk **at = &writer->chunks;
    while (*at != chunk)
        at = &(*at)->next;
    *at = NULL;
    writer->chunks_end = at;
    for (struct chunk *after = chunk->next; after; after = after->next)
        requeue(writer, after);
    for (struct chunk *gone = chunk; gone; gone = gone->next)
        writer->chunk_bytes -= gone->bytes.size;
    pthread_mutex_unlock(&writer->journal_lock);
    chunks_free(chunk);
}

static void commit(struct writer *writer, struct item *batch, bool sync)
{
    struct err err = {0};
    uint64_t count = 0, waiting = 0, size = 0;
    struct chunk *chunk = write_batch(writer, batch, &count, &err);
    if (chunk && sync && journal_sync(&writer->journal, &err) < 0) {
        take_back(writer, chunk);
        chunk = NULL;
    }
    if (chunk)
        size = chunk->bytes.size;
    bool good = chunk != NULL; /* once it is good, the indexer may take and free it */
    if (good) {
        pthread_mutex_lock(&writer->journal_lock);
        chunk->good = true;
        chunks_bound(writer);
        waiting = writer->chunk_bytes;
        pthread_mutex_unlock(&writer->journal_lock);
        index_later(writer, waiting, 0, only_calls(batch));
    } else {
        LOG_ERROR("store", NULL, "nothing of this commit was kept: %s", err.text);
    }
    pthread_mutex_lock(&writer->lock);
    writer->counts.commits++;
    writer->counts.committed += good ? count : 0;
    writer->counts.bytes += good ? size : 0;
    writer->counts.failed = !good;
    pthread_mutex_unlock(&writer->lock);
    if (good)
        leave_rows(writer, &batch);
    finish(batch, &err);
}

static struct item *take_batch(struct writer *writer, bool *sync)
{
    pthread_mutex_lock(&writer->lock);
    writer->committer_waiting = true;
    while (!(writer->first && writer->due) && !writer->closing)
        pthread_cond_wait(&writer->wake, &writer->lock);
    writer->committer_waiting = false;
    struct item *batch = writer->first;
    struct item **end = &writer->first;
    uint64_t bytes = 0;
    uint64_t room = writer->sync == STORE_SYNC_ALWAYS ? 0 : BATCH_BYTES_MAX;
    while (*end && (bytes == 0 || bytes + (*end)->bytes.size <= room)) {
        bytes += (*end)->bytes.size;
        end = &(*end)->next;
    }
    if (batch) {
        if (writer->last == end)
            writer->last = &writer->first;
        writer->first = *end;
        *end = NULL;
        writer->queued_bytes -= bytes;
    }
    writer->due = writer->first != NULL; /* the rest of what was due */
    writer->queued = 0;
    *sync = writer->sync == STORE_SYNC_ALWAYS ||
            (writer->sync == STORE_SYNC_BATCH && !only_intents(batch));
    pthread_mutex_unlock(&writer->lock);
    return batch;
}

static void *committing(void *argument)
{
    struct writer *writer = argument;
    struct item *batch;
    bool sync;
    while ((batch = take_batch(writer, &sync)))
        commit(writer, batch, sync);
    return NULL;
}

/* ---------------------------------------------------------------- indexing */

static int add_chunk(struct writer *writer, const struct chunk *chunk, struct err *err)
{
    struct store_view view;
    struct str bytes = buf_str(&chunk->bytes);
    for (size_t at = 0; at < bytes.size;) {
        if (!record_read_own(bytes, at, &view))
            return err_set(err, ERR_PROTOCOL, "a record of ours cannot be read");
        at += view.size;
        view.offset += chunk->offset;
        view.segment = str_of(chunk->segment);
        if (index_add(writer->index, &view, err) < 0)
            return -1;
    }
    /* Once for each segment, at its last chunk. */
    if (chunk->next && strcmp(chunk->next->segment, chunk->segment) == 0)
        return 0;
    return index_note(writer->index, chunk->segment, chunk->offset + bytes.size, err);
}

static int add_chunks(struct writer *writer, const struct chunk *chunks, struct err *err)
{
    if (index_begin(writer->index, err) < 0)
        return -1;
    int result = 0;
    for (const struct chunk *chunk = chunks; chunk && result == 0; chunk = chunk->next)
        result = add_chunk(writer, chunk, err);
    if (result == 0 && index_commit(writer->index, err) == 0)
        return 0;
    index_rollback(writer->index);
    return -1;
}

/* From where the index stopped to the end of what is written, over all segments since then. */
static int catch_up(struct writer *writer, const char *since, struct err *err)
{
    char **names = journal_names(&writer->journal, err);
    int result = names ? 0 : -1;
    for (char **name = names; names && *name && result == 0; name++) {
        OWN(segment) struct segment segment = {.fd = -1};
        uint64_t records = 0, damaged = 0;
        size_t good;
        if (strcmp(*name, since) < 0)
            continue;
        result = segment_open(&segment, &writer->journal, *name, err);
        if (result == 0)
            result = index_catch_up(writer->index, &segment, index_segment(writer->index, *name),
                                    &good, &damaged, &records, err);
    }
    journal_names_free(names);
    return result;
}

/* Everything that is good now. What cannot be indexed is tried again, from the segments; false:
 * there is something. */
static bool bring_up(struct writer *writer)
{
    struct err err = {0};
    char behind[64];
    struct chunk *chunks = chunks_take(writer, behind);
    bool good = !behind[0] || catch_up(writer, behind, &err) == 0;
    if (good && chunks) {
        memcpy(behind, chunks->segment, sizeof behind);
        good = add_chunks(writer, chunks, &err) == 0;
    }
    chunks_free(chunks);
    if (good)
        return true;
    LOG_WARN("store", NULL, "the index is behind the journal for now: %s", err.text);
    pthread_mutex_lock(&writer->journal_lock);
    memcpy(writer->behind, behind, sizeof behind);
    pthread_mutex_unlock(&writer->journal_lock);
    return false;
}

static void later(struct timespec *out, uint64_t ms)
{
    clock_gettime(CLOCK_MONOTONIC, out);
    out->tv_sec += (time_t)(ms / 1000);
    out->tv_nsec += (long)(ms % 1000) * 1000000;
    if (out->tv_nsec >= 1000000000) {
        out->tv_sec++;
        out->tv_nsec -= 1000000000;
    }
}

static void *indexing(void *argument)
{
    struct writer *writer = argument;
    struct timespec due;
    bool behind = false;
    pthread_mutex_lock(&writer->lock);
    for (;;) {
        int code = 0;
        later(&due, AGAIN_MS);
        while (writer->written == writer->flushed && !writer->flush_wanted &&
               !writer->committer_done && code == 0) {
            writer->index_waiting = true;
            code = behind ? pthread_cond_timedwait(&writer->index_wake, &writer->lock, &due)
                          : pthread_cond_wait(&writer->index_wake, &writer->lock);
        }
        later(&due, INDEX_MS);
        writer->index_waiting = false;
        if (!writer->flush_wanted && !writer->committer_done)
            (void)pthread_cond_timedwait(&writer->index_wake, &writer->lock, &due);
        bool last = writer->committer_done;
        uint64_t seen = writer->written;
        writer->flush_wanted = false;
        struct item *rows = TAKE(writer->rows);
        pthread_mutex_unlock(&writer->lock);
        behind = !bring_up(writer);
        finish(rows, &(struct err){0});
        pthread_mutex_lock(&writer->lock);
        writer->flushed = seen;
        pthread_cond_broadcast(&writer->indexed);
        if (last)
            break;
    }
    pthread_mutex_unlock(&writer->lock);
    return NULL;
}

void writer_flush_index(struct writer *writer, bool calls)
{
    struct timespec due;
    later(&due, calls ? FLUSH_MS_MAX : FLUSH_ROWS_MS_MAX);
    pthread_mutex_lock(&writer->lock);
    uint64_t wanted = calls ? writer->written : writer->written_other;
    int code = 0;
    while (writer->flushed < wanted && code == 0) {
        writer->flush_wanted = true;
        pthread_cond_signal(&writer->index_wake);
        code = pthread_cond_timedwait(&writer->indexed, &writer->lock, &due);
    }
    pthread_mutex_unlock(&writer->lock);
    if (code != 0)
        LOG_WARN("store", NULL, "the index is not up to date for a reader");
}

/* ---------------------------------------------------------------- appending */

/* A single large record always fits into an empty queue. */
static bool is_full(const struct writer *writer, const struct item *item)
{
    uint64_t room = item->intent ? QUEUE_BYTES_MAX / 4 * 3 : QUEUE_BYTES_MAX;
    return writer->queued_bytes > 0 && writer->queued_bytes + item->bytes.size > room;
}

/* On the asker's own thread; false: it has to go through the queue. */
static bool write_intent(struct writer *writer, struct item *item)
{
    struct journal *journal = &writer->journal;
    pthread_mutex_lock(&writer->lock);
    bool queued = writer->sync == STORE_SYNC_ALWAYS || is_full(writer, item);
    pthread_mutex_unlock(&writer->lock);
    if (queued || pthread_mutex_trylock(&writer->journal_lock) != 0)
        return false;
    uint64_t offset = journal->size, waiting = 0;
    bool done = false;
    if (journal_ready(journal, item->bytes.size)) {
        record_seal(item->bytes.data, item->bytes.size, journal->sequence + 1, clock_wall_ms());
        done = journal_write(journal, buf_str(&item->bytes), NULL) == 0;
    }
    if (done) {
        journal->sequence++;
        struct chunk *last = writer->chunks_end == &writer->chunks
                                 ? NULL
                                 : LIST_OF(writer->chunks_end, struct chunk, next);
        if (last && last->intents && last->good) {
            buf_str_append(&last->bytes, buf_str(&item->bytes));
            writer->chunk_bytes += item->bytes.size;
        } else {
            (void)chunk_add(writer, buf_str(&item->bytes), offset, true, true);
        }
        chunks_bound(writer);
        waiting = writer->chunk_bytes;
    }
    pthread_mutex_unlock(&writer->journal_lock);
    if (done)
        index_later(writer, waiting, item->bytes.size, true);
    return done;
}

static void writer_unref(struct writer *writer)
{
    if (atomic_fetch_sub(&writer->users, 1) > 1)
        return;
    pthread_mutex_destroy(&writer->journal_lock);
    pthread_mutex_destroy(&writer->lock);
    pthread_cond_destroy(&writer->wake);
    pthread_cond_destroy(&writer->index_wake);
    pthread_cond_destroy(&writer->indexed);
    free(writer);
}

/* Under the lock. */
static void commit_now(struct writer *writer)
{
    writer->due = writer->first != NULL;
    if (writer->due && writer->committer_waiting)
        pthread_cond_signal(&writer->wake);
}

static void on_tick_over(void *argument)
{
    struct writer *writer = argument;
    pthread_mutex_lock(&writer->lock);
    commit_now(writer);
    pthread_mutex_unlock(&writer->lock);
    writer_unref(writer);
}

static bool enqueue(struct writer *writer, struct item *item)
{
    struct loop *loop = item->loop; /* once it is queued, the item may be gone */
    bool later = loop && loop_in_tick(loop);
    pthread_mutex_lock(&writer->lock);
    bool full = is_full(writer, item);
    if (!full) {
        *writer->last = item;
        writer->last = &item->next;
        writer->queued_bytes += item->bytes.size;
        writer->counts.appended++;
        later = later && ++writer->queued < QUEUED_MAX;
        if (later)
            atomic_fetch_add(&writer->users, 1);
        else
            commit_now(writer);
    }
    pthread_mutex_unlock(&writer->lock);
    if (!full && later)
        loop_defer(loop, on_tick_over, writer);
    return !full;
}

int writer_append(struct writer *writer, struct loop *loop, const struct store_record *record,
                  void (*on_committed)(void *context, const struct err *err), void *context,
                  struct err *err)
{
    struct item *item = mem_zero(sizeof *item);
    item->loop = loop;
    item->intent = record->type == STORE_INTENT;
    item->row = record->type == STORE_ROLLOUT;
    item->call = record->call_id != NULL;
    item->on_committed = on_committed;
    item->context = context;
    if (record_write(&item->bytes, record, err) < 0) {
        buf_deinit(&item->bytes);
        free(item);
        return -1;
    }
    if (item->intent && write_intent(writer, item)) {
        finish(item, &(struct err){0});
        return 0;
    }
    if (enqueue(writer, item))
        return 0;
    buf_deinit(&item->bytes);
    free(item);
    return err_set(err, ERR_CAPACITY, "the journal's queue is full");
}

uint64_t writer_order(struct writer *writer)
{
    uint64_t now = clock_wall_ms();
    pthread_mutex_lock(&writer->lock);
    uint64_t order = writer->order = now > writer->order ? now : writer->order + 1;
    pthread_mutex_unlock(&writer->lock);
    return order;
}

void writer_counts(struct writer *writer, struct store_counts *out)
{
    pthread_mutex_lock(&writer->lock);
    *out = writer->counts;
    out->queued_bytes = writer->queued_bytes;
    pthread_mutex_unlock(&writer->lock);
}

void writer_set_sync(struct writer *writer, enum store_sync sync)
{
    pthread_mutex_lock(&writer->lock);
    writer->sync = sync;
    pthread_mutex_unlock(&writer->lock);
}

/* ---------------------------------------------------------------- life */

static int start_thread(pthread_t *thread, void *(*run)(void *), struct writer *writer,
                        struct err *err)
{
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int code = pthread_create(thread, NULL, run, writer);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (code == 0)
        return 0;
    errno = code;
    return err_errno(err, "starting the journal's writer");
}

struct writer *writer_open(const char *home, struct index *index, struct err *err)
{
    struct writer *writer = mem_zero(sizeof *writer);
    writer->sync = STORE_SYNC_BATCH;
    writer->last = &writer->first;
    writer->chunks_end = &writer->chunks;
    writer->journal.fd = -1;
    writer->index = index;
    writer->users = 1;
    long long last = 0;
    if (index_number(index, "SELECT max(updated_ms) FROM rollouts", NULL, &last, err) < 0) {
        free(writer);
        return NULL;
    }
    writer->order = (uint64_t)last;
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&writer->journal_lock, NULL);
    pthread_mutex_init(&writer->lock, NULL);
    pthread_cond_init(&writer->wake, NULL);
    pthread_cond_init(&writer->index_wake, &monotonic);
    pthread_cond_init(&writer->indexed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    if (journal_open(&writer->journal, home, true, err) == 0 &&
        start_thread(&writer->indexer, indexing, writer, err) == 0) {
        writer->indexer_runs = true;
        writer->committer_runs = start_thread(&writer->committer, committing, writer, err) == 0;
    }
    if (writer->committer_runs)
        return writer;
    writer_close(writer);
    return NULL;
}

void writer_close(struct writer *writer)
{
    if (!writer)
        return;
    pthread_mutex_lock(&writer->lock);
    writer->closing = true;
    pthread_cond_signal(&writer->wake);
    pthread_mutex_unlock(&writer->lock);
    if (writer->committer_runs)
        pthread_join(writer->committer, NULL);
    pthread_mutex_lock(&writer->lock);
    writer->committer_done = true;
    pthread_cond_signal(&writer->index_wake);
    pthread_mutex_unlock(&writer->lock);
    if (writer->indexer_runs)
        pthread_join(writer->indexer, NULL);
    chunks_free(writer->chunks);
    journal_close(&writer->journal);
    writer_unref(writer);
}
