/* store.h - the door of the store room: what happened, kept.
 *
 * The journal is the truth: append-only segments under <home>/journal, each record checksummed, one
 * intent before a call is forwarded and one entry after it. <home>/index.sqlite is a view of the
 * journal that can be thrown away: it is brought up to date when the store is opened.
 *
 * Several processes may have the same home open: each writes segments of its own and holds a lock
 * on them; what a dead one left is recovered by the next store_open(). Inside a process one thread
 * takes what is queued, writes it, syncs once for all of it and then tells each asker on its own
 * loop; an intent needs no sync, is written by its asker's thread when nobody else is writing, and
 * may overtake what is queued. The index follows within 200 ms; reading functions bring it up to
 * date first, and who puts a rollout's row is told when other processes can see it there.
 *
 * store_append() and store_put_rollout() may come from any thread; on_committed comes on `loop`,
 * exactly once, never from inside the call, also when the disk failed (err->kind ERR_DISK_FULL or
 * ERR_SYSTEM) and also when the store is closed meanwhile (it is flushed first). The loop and the
 * context must live until then. Reading functions block for the length of a query. */
#ifndef STORE_H
#define STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/id.h"
#include "base/str.h"

struct err;
struct json_writer;
struct loop;
struct store;

/* Creates what is missing, recovers what a dead process left, starts the writer. */
struct store *store_open(const char *home, struct err *err);
/* For looking only (`postern ls`): changes nothing, starts nothing; a home without an index is an
 * empty one. Appending to it is a bug of the caller. */
struct store *store_open_read(const char *home, struct err *err);
/* Writes and syncs what is queued, joins the writer. Completions may still be on their way to
 * loops. */
void store_close(struct store *store);
static inline void own_store(struct store **store)
{
    store_close(*store);
}
const char *store_home(const struct store *store);

/* When a commit reaches the disk. Group commit by default. */
enum store_sync {
    STORE_SYNC_ALWAYS, /* one sync per record */
    STORE_SYNC_BATCH,  /* one sync for all records that are queued; intents alone need none */
    STORE_SYNC_NEVER,  /* left to the kernel: a crash of the machine may lose the end */
};
void store_set_sync(struct store *store, enum store_sync sync); /* any thread */

/* ---------------------------------------------------------------- the journal */
enum store_type {
    STORE_INTENT = 1,  /* a call was admitted and is about to be forwarded */
    STORE_ENTRY = 2,   /* that call's fate */
    STORE_ROLLOUT = 3, /* a rollout's summary row */
    STORE_NOTE = 4,    /* anything else worth keeping: JSON */
};

/* What a record is made of; docs/store.md. Unknown tags are skipped by readers. */
enum store_tag {
    STORE_TAG_ROLLOUT_ID = 1, /* text */
    STORE_TAG_CALL_ID = 2,    /* text */
    STORE_TAG_BODY = 3,       /* JSON text */
    STORE_TAG_PROMPT_IDS = 4, /* int32, little-endian */
    STORE_TAG_TOKEN_IDS = 5,  /* int32, little-endian: the completion's */
    STORE_TAG_LOGPROBS = 6,   /* float32, little-endian: the completion's */
    STORE_TAG_STATE = 7,      /* text: "answered", "broken", ... */
    STORE_TAG_NUMBERS = 8,    /* number u32, status u32, prompt tokens i64, completion tokens i64 */
    STORE_TAG_DELIVERIES = 9, /* u32: connections that were given the answer */
    STORE_TAG_ORDER = 10,     /* u64: of a rollout's rows the highest counts */
    STORE_TAG_REQUEST = 16,   /* the agent's body, byte for byte */
    STORE_TAG_REQUEST_DELTA = 17, /* prefix u32, suffix u32, parent's id (u32 size, text), middle */
    STORE_TAG_PROMPT_DELTA = 18,  /* shared u32, parent's id (u32 size, text), int32... */
    STORE_TAG_REQUEST_PIECES = 19, /* count u32, parent's id (u32 size, text), (from u32, size u32,
                                      new u32)..., new bytes */
    STORE_TAG_PROMPT_PIECES = 20,  /* the same for the prompt's ids; bytes, not ids, are counted */
};

/* An earlier entry that a later one may be written as a difference to. It must be committed. */
struct store_base {
    const char *call_id; /* NULL: none */
    struct str bytes;    /* its request; or its prompt's ids followed by its completion's */
    uint32_t depth;      /* entries that have to be read to read it, besides itself */
    size_t front;        /* bytes that are known to be the same at the front; 0: not known */
};
#define STORE_DEPTH_MAX 64u /* a deeper base is not used, so that no entry needs many others */

struct store_record {
    enum store_type type;
    const char *rollout_id; /* NULL: none */
    const char *call_id;    /* NULL: none */
    struct str body;        /* JSON */
    /* Of entries; all may be missing. */
    const char *state;
    uint32_t number, http_status;
    int64_t prompt_tokens, completion_tokens; /* -1: unknown */
    const int32_t *prompt_ids;
    size_t prompt_id_count;
    const int32_t *token_ids;
    size_t token_id_count;
    const float *logprobs;
    size_t logprob_count;
    uint32_t deliveries; /* 0: not said */
    uint64_t order;      /* of rollouts: like the time, but never going back; 0: none */
    struct str request;  /* the agent's body; data NULL: not kept */
    struct store_base request_base, prompt_base;
    /* Set by store_append(): the depths of this entry, for when it becomes a base. May be NULL. */
    uint32_t *request_depth, *prompt_depth;
};

/* Copies the record. ERR_CAPACITY: the queue is full (intents only get three quarters of it, so
 * that an admitted call can always be entered); ERR_LIMIT: the record is larger than the format
 * allows. A disk that fails or is full is told to the askers of that commit; what they asked is
 * then not in the journal, and the next commit tries again. `on_committed` may be NULL, then `loop`
 * may be too. */
int store_append(struct store *store, struct loop *loop, const struct store_record *record,
                 void (*on_committed)(void *context, const struct err *err), void *context,
                 struct err *err);

/* A record while it is being read: everything points into the segment. */
struct store_view {
    enum store_type type;
    uint64_t sequence; /* within its segment, from 1 */
    uint64_t wall_ms;
    uint64_t offset, size; /* in the segment */
    struct str segment;    /* its file name */
    struct str rollout_id, call_id, body, state;
    uint32_t number, http_status;
    int64_t prompt_tokens, completion_tokens;
    struct str prompt_ids, token_ids, logprobs; /* little-endian arrays, unaligned */
    uint32_t deliveries;
    uint64_t order;
    /* What is written as a difference: the parent's first bytes (ids), what is here, and for
     * requests the parent's last bytes; or pieces of the parent's, each followed by some of the
     * bytes that are here (docs/store.md). The parent is empty: all of it is here. */
    struct str request, request_parent, request_pieces, prompt_parent, prompt_pieces;
    uint32_t request_prefix, request_suffix, prompt_shared;
};

/* Walks records from the front of `bytes` (a whole segment, its head included) until the end or the
 * first that is torn or damaged; returns how many bytes are good. The callback may be NULL and ends
 * the walk by returning false. Any bytes are safe. */
size_t store_walk(struct str bytes, bool (*on_record)(void *context, const struct store_view *view),
                  void *context);

struct store_recovery {
    uint64_t segments, records; /* looked at, found */
    uint64_t torn_bytes;        /* cut off at the ends of segments */
    uint64_t damaged_segments;  /* with a bad record that is not the tail: kept, named in the log */
    uint64_t open_calls;        /* intents without an entry, over the whole index */
};
/* What store_open() found. */
const struct store_recovery *store_recovered(const struct store *store);
/* Walks every record of every segment, oldest segment first. For rebuilding and for looking. */
int store_recover(struct store *store,
                  bool (*on_record)(void *context, const struct store_view *view), void *context,
                  struct store_recovery *out, struct err *err);

/* ---------------------------------------------------------------- the index */
struct store_reward {
    const char *name;
    double value;
};

/* One line of `postern ls`. Texts may be NULL. Written again whenever it changes. */
struct store_rollout {
    const char *id;
    const char *run; /* which `postern run` or submission it belongs to */
    const char *group;
    const char *task, *agent, *model, *mode, *backend;
    const char *stage;          /* trace_stage_name */
    const char *fate;           /* trace_fate_name; NULL: not over */
    const char *error;          /* one sentence */
    const char *dir;            /* its folder */
    const char *reason;         /* of a fate, as a word: "stale", "queue_timeout"; NULL: none.
                                   Without a fate: it was asked to end, and `error` says why */
    const char *key, *key_hash; /* of the submission */
    const char *callback;       /* JSON object: who is told of the end */
    const char *callback_state; /* "waiting", "pending", "delivered", "failed" */
    uint32_t index;             /* number inside the run */
    bool has_reward;
    double reward;
    const struct store_reward *rewards; /* parts, when the verifier gave some */
    size_t reward_count;
    uint32_t calls, turns;
    int64_t prompt_tokens, completion_tokens;
    uint64_t queued_ms, started_ms, done_ms; /* wall clock; 0: not yet */
    bool has_policy;
    int64_t policy_version; /* of the weights when it began */
    uint64_t bytes;         /* of its folder, when it is over; 0: not known */
};

/* Inserts or replaces the row with this id. Goes through the journal like everything else. */
int store_put_rollout(struct store *store, struct loop *loop, const struct store_rollout *row,
                      void (*on_committed)(void *context, const struct err *err), void *context,
                      struct err *err);

struct store_query {
    const char *run, *stage, *fate, *task, *group, *agent; /* NULL: any */
    const char *before; /* only ids older than this one; NULL: from the newest */
    const char *after;  /* only ids newer than this one, the oldest first */
    bool oldest_first;
    bool unfinished;         /* only those without a fate */
    bool callback_pending;   /* only those whose callback is to be delivered */
    uint64_t done_before_ms; /* only those that were over before; in that order */
    size_t limit;            /* 0: 100; at most 1000 */
};
/* Newest first, unless the query says otherwise. The row and its texts are valid during the
 * callback, which ends the walk by returning false. */
int store_list_rollouts(struct store *store, const struct store_query *query,
                        bool (*on_row)(void *context, const struct store_rollout *row),
                        void *context, struct err *err);
/* Calls on_row once, or fails with ERR_NOT_FOUND. `id` may be a prefix when it fits exactly one row
 * (ERR_CONFLICT otherwise). */
int store_get_rollout(struct store *store, const char *id,
                      bool (*on_row)(void *context, const struct store_rollout *row), void *context,
                      struct err *err);
void store_rollout_write(const struct store_rollout *row, struct json_writer *out); /* one object */

/* ---------------------------------------------------------------- groups, keys, facts */
struct store_group {
    const char *id, *run, *task, *agent, *model, *mode;
    const char *shared; /* "yes", "no"; NULL: not said */
    const char *key, *key_hash;
    uint32_t n;
    uint64_t queued_ms;
};
int store_put_group(struct store *store, struct loop *loop, const struct store_group *row,
                    void (*on_committed)(void *context, const struct err *err), void *context,
                    struct err *err);
/* By `group` (its id), `run`, `before`, `after`, `oldest_first`, `limit` of the query. */
int store_list_groups(struct store *store, const struct store_query *query,
                      bool (*on_row)(void *context, const struct store_group *row), void *context,
                      struct err *err);
/* How a group's rollouts ended: once per fate; NULL for those that are not over. */
struct store_group_sum {
    const char *fate;
    uint64_t count, rewarded;
    double reward_sum;
};
int store_sum_group(struct store *store, const char *id,
                    void (*on_fate)(void *context, const struct store_group_sum *sum),
                    void *context, struct err *err);

struct store_key {
    char id[ID_MAX], hash[72];
    bool group; /* the id is a group's */
};
/* What was submitted under this key: 1: found, 0: nothing. */
int store_find_key(struct store *store, const char *key, struct store_key *out, struct err *err);

/* A note for the index: "deleted" (member "rollout" or "group"), "callback" (with a state). Any
 * other kind means nothing; its commit tells that everything before it is committed. */
int store_put_note(struct store *store, struct loop *loop, const char *kind, const char *member,
                   const char *name, const char *state,
                   void (*on_committed)(void *context, const struct err *err), void *context,
                   struct err *err);
/* Single values that outlive the process, as JSON. 1: found, 0: never put. */
int store_put_fact(struct store *store, struct loop *loop, const char *name, struct str value,
                   void (*on_committed)(void *context, const struct err *err), void *context,
                   struct err *err);
int store_get_fact(struct store *store, const char *name, struct buf *out, struct err *err);

/* ---------------------------------------------------------------- what may go
 *
 * Blocking; any thread. Nothing that is not over, whose callback is pending or that is named by
 * nobody is touched. */
struct store_retention {
    uint64_t age_ms, count_max, bytes_max; /* 0: no limit */
};
/* The oldest finished rollouts that break a rule, oldest first, at most `limit`. */
int store_list_expired(struct store *store, const struct store_retention *rules, size_t limit,
                       bool (*on_row)(void *context, const char *id, const char *dir,
                                      uint64_t bytes),
                       void *context, struct err *err);
/* First its folder (`dir` may be NULL), then its rows and calls. It must be over. */
int store_remove_folder(struct store *store, const char *id, const char *dir, struct err *err);
int store_remove_rollout(struct store *store, struct loop *loop, const char *id,
                         void (*on_committed)(void *context, const struct err *err), void *context,
                         struct err *err);
void store_empty_trash(struct store *store); /* what a crash left of removals */
/* Groups without rollouts, and segments of the journal nothing needs any more. */
int store_drop_segments(struct store *store, uint64_t *count, uint64_t *bytes, struct err *err);

struct store_call {
    const char *id, *rollout_id, *state; /* "open" until its entry is there */
    uint32_t number, http_status;
    int64_t prompt_tokens, completion_tokens; /* -1: unknown */
    uint64_t intent_ms, entry_ms;             /* wall clock; 0: none */
    uint32_t deliveries; /* connections that were given its answer; retries included */
    uint64_t place;      /* of its last record, in its segment */
};
int store_list_calls(struct store *store, const char *rollout_id,
                     bool (*on_row)(void *context, const struct store_call *row), void *context,
                     struct err *err);
/* Appends the call as JSON: the entry's body with the agent's request (in the agent's dialect) and
 * the token arrays in their places. ERR_NOT_FOUND: no such call or no entry yet. */
int store_read_call(struct store *store, const char *call_id, struct buf *out, struct err *err);
/* Appends the JSON of the call's entry as it was written, without request and token arrays; of its
 * intent while the call is open. */
int store_read_record(struct store *store, const char *call_id, struct buf *out, struct err *err);
/* Appends the agent's request, byte for byte; nothing when it was not kept. */
int store_read_request(struct store *store, const char *call_id, struct buf *out, struct err *err);
/* The arrays as they are: int32, int32, float32, little-endian. Each may be NULL. */
int store_read_tokens(struct store *store, const char *call_id, struct buf *prompt_ids,
                      struct buf *token_ids, struct buf *logprobs, struct err *err);

struct store_counts {
    uint64_t appended, committed, commits; /* records queued, records on disk, syncs made */
    uint64_t bytes;                        /* of the records on disk */
    uint64_t queued_bytes;
    bool failed; /* the last commit failed; the reason was logged and given to its askers */
};
void store_counts(struct store *store, struct store_counts *out);

#endif
