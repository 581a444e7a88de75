/* inner.h - what the files of the store room share. record.c knows bytes, delta.c what two requests
 * have in common, journal.c knows segments, index.c knows SQLite, writer.c has the queue and the
 * threads, store.c opens and recovers, read.c puts entries together again. */
#ifndef STORE_INNER_H
#define STORE_INNER_H

#include "base/err.h"
#include "store/store.h"

#define SEGMENT_HEAD_SIZE 32u
#define RECORD_HEAD_SIZE 32u
#define RECORD_BYTES_MAX (512u << 20)

/* --- store.c --- */
/* The entry of a call; `bytes` keeps what `view` points into. */
int store_last_record(struct store *store, struct str call_id, struct buf *bytes,
                      struct store_view *view, struct err *err); /* or its intent */
int store_entry(struct store *store, struct str call_id, struct buf *bytes, struct store_view *view,
                struct err *err);
struct index;
struct segment;
/* Adds to the index what it lacks of this segment. *good: where its last whole record ends. */
int index_catch_up(struct index *index, const struct segment *segment, uint64_t from, size_t *good,
                   uint64_t *damaged, uint64_t *records, struct err *err);

/* --- writer.c --- */
struct writer;
/* Writes the index from then on; it has to live until writer_close(). */
struct writer *writer_open(const char *home, struct index *index, struct err *err);
void writer_close(struct writer *writer); /* NULL is fine */
int writer_append(struct writer *writer, struct loop *loop, const struct store_record *record,
                  void (*on_committed)(void *context, const struct err *err), void *context,
                  struct err *err);
/* Waits until the index has everything that was told to be committed; or, which is nearly always
 * so, all but calls. */
void writer_flush_index(struct writer *writer, bool calls);
/* The place of a rollout's next row among all of them: the time, or more than the last one's. */
uint64_t writer_order(struct writer *writer);
void writer_counts(struct writer *writer, struct store_counts *out);
void writer_set_sync(struct writer *writer, enum store_sync sync);

/* The connection for looking, locked until store_reader_done(); NULL: there is no index. It has
 * what was committed, calls only if they are wanted. */
struct index *store_reader(struct store *store, bool calls);
/* See writer_order(). */
uint64_t store_order(struct store *store);
void store_reader_done(struct store *store);

/* --- keep.c --- */
/* Puts a fact once more, as it was when it was read; a newer one stays. */
int store_keep_fact(struct store *store, const char *name, struct str value, struct err *err);

/* --- record.c --- */
void segment_head_write(char head[SEGMENT_HEAD_SIZE], uint64_t created_ms);
bool segment_head_valid(struct str bytes);
/* Appends a record whose head still lacks sequence, time and checksum: record_seal() puts them in.
 */
int record_write(struct buf *out, const struct store_record *record, struct err *err);
void record_seal(char *record, size_t size, uint64_t sequence, uint64_t wall_ms);
/* Reads the record at `offset`; false: torn, damaged or the end. */
bool record_read(struct str segment, size_t offset, struct store_view *view);
/* The same for a record this process just sealed: nobody had it in between. */
bool record_read_own(struct str segment, size_t offset, struct store_view *view);
/* Where the next whole record after a bad place begins, before `end`; `end` when there is none. */
size_t record_resync(struct str segment, size_t offset, size_t end, uint64_t sequence);

/* --- delta.c --- */
/* A piece of a request: bytes copied from the parent's, then new ones. So it is in the journal. */
struct delta_piece {
    uint32_t from, size; /* in the parent's */
    uint32_t fresh;      /* bytes that follow */
};
struct delta {
    size_t front, back; /* bytes that are the parent's at both ends */
    size_t fresh;       /* bytes that are new: of all pieces, or everything in between */
    struct buf pieces;  /* struct delta_piece, ends included; empty: it is all in between */
};
size_t delta_front(struct str a, struct str b); /* bytes they share at the front */
/* The first `front` bytes are known to be shared, and no more. The pieces are the caller's. */
void delta_find(struct str parent, struct str body, size_t front, struct delta *delta);
/* Both ends as pieces, when there are no others. */
void delta_ends(struct delta *delta, size_t parent_size);
/* They use exactly so many new bytes. `pieces` is a whole number of them. */
bool delta_valid(struct str pieces, size_t fresh);
/* Appends the body; false: it is not one of this parent's. */
bool delta_apply(struct str parent, struct str pieces, struct str fresh, struct buf *out);

/* --- journal.c --- */
struct journal {
    char *dir;
    int fd; /* the segment this process writes, locked; -1: none yet */
    char name[64];
    uint64_t size, sequence;
    uint64_t allocated; /* bytes of the file: beyond `size` it holds zeros */
    uint64_t segment_bytes_max;
};
int journal_open(struct journal *journal, const char *home, bool create, struct err *err);
void journal_close(struct journal *journal);
/* Makes sure that there is a segment to write; starts a new one when the old is large or spoilt. */
int journal_prepare(struct journal *journal, struct err *err);
/* The segment takes that many bytes without growing. */
bool journal_ready(const struct journal *journal, size_t size);
/* Writes sealed records. After a failure the segment is as long as before. */
int journal_write(struct journal *journal, struct str bytes, struct err *err);
int journal_sync(struct journal *journal, struct err *err);
/* Its sync failed: it ends at `size` and is not used again. */
void journal_spoil(struct journal *journal, uint64_t size);
/* Names of all segments, oldest first; a NULL-terminated list to be freed with
 * journal_names_free(). */
char **journal_names(const struct journal *journal, struct err *err);
void journal_names_free(char **names);

/* Appends the bytes of one record, unchecked. */
int journal_read(const struct journal *journal, const char *name, uint64_t offset, struct buf *out,
                 struct err *err);

/* A segment in memory, for reading. */
struct segment {
    int fd;
    const char *name;
    struct str bytes;
};
int segment_open(struct segment *segment, const struct journal *journal, const char *name,
                 struct err *err);
void segment_close(struct segment *segment);
static inline void own_segment(struct segment *segment)
{
    segment_close(segment);
}
/* Where the bytes after `offset` end that are not zeros of the allocation. */
size_t segment_used(const struct segment *segment, size_t offset);
/* Walks from `offset`, over damaged places too; returns where the last whole record ends. */
size_t segment_walk(const struct segment *segment, size_t offset, uint64_t *damaged,
                    bool (*on_record)(void *context, const struct store_view *view), void *context);

/* --- index.c --- */
struct index *index_open(const char *home, bool write, struct err *err);
void index_close(struct index *index);
int index_begin(struct index *index, struct err *err);
int index_add(struct index *index, const struct store_view *view, struct err *err);
/* Up to where the segment is in the index; 0: not at all. */
uint64_t index_segment(struct index *index, const char *segment);
int index_note(struct index *index, const char *segment, uint64_t indexed, struct err *err);
int index_commit(struct index *index, struct err *err);
void index_rollback(struct index *index);
int index_list_rollouts(struct index *index, const struct store_query *query,
                        bool (*on_row)(void *, const struct store_rollout *), void *context,
                        struct err *err);
int index_get_rollout(struct index *index, const char *id,
                      bool (*on_row)(void *, const struct store_rollout *), void *context,
                      struct err *err);
int index_list_calls(struct index *index, const char *rollout_id,
                     bool (*on_row)(void *, const struct store_call *), void *context,
                     struct err *err);
struct index_place {
    char segment[64];
    uint64_t offset;
};
int index_find_call(struct index *index, const char *call_id, struct index_place *out,
                    struct err *err);
uint64_t index_open_calls(struct index *index);
/* One number or text; 1: there, 0: no row. `name` is ?1; NULL: there is none. */
int index_number(struct index *index, const char *text, const char *name, long long *out,
                 struct err *err);
int index_text(struct index *index, const char *text, const char *name, struct buf *out,
               struct err *err);
int index_find_key(struct index *index, const char *key, struct store_key *out, struct err *err);
int index_list_groups(struct index *index, const struct store_query *query,
                      bool (*on_row)(void *, const struct store_group *), void *context,
                      struct err *err);
int index_sum_group(struct index *index, const char *id,
                    void (*on_fate)(void *, const struct store_group_sum *), void *context,
                    struct err *err);

#endif
