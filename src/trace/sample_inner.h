/* sample_inner.h - what the files behind sample.h share.
 *
 *     sample.c         a line of calls.jsonl becomes a turn; its tokens against its parent's
 *     sample_graph.c   messages as a tree
 *     sample_branch.c  why a conversation branches
 *     sample_row.c     rows laid out
 *     sample_write.c   rows and summary as JSON; sample_trace.c the trace shape
 *     sample_binary.c  the binary form
 *
 * Turns and nodes are named by their place in their arrays; NONE is nobody. */
#ifndef TRACE_SAMPLE_INNER_H
#define TRACE_SAMPLE_INNER_H

#include "base/arena.h"
#include "base/id.h"
#include "base/map.h"
#include "trace/sample.h"
#include "trace/trace.h"

struct json;

#define NONE UINT32_MAX

/* A message at one place of the tree. Node 0 is the empty beginning. */
struct node {
    uint32_t parent, depth;
    uint32_t turn;   /* whose answer it is; NONE: nobody sampled it */
    uint32_t last;   /* the nearest turn at or above */
    uint32_t before; /* an older node with the same parent and key; NONE */
    struct trace_key key;
    struct trace_message message;
    struct str raw;  /* as JSON */
    struct str copy; /* as it was last sent, where that is not the same; STR_NONE: it is */
};

enum branch_kind {
    BRANCH_MAIN,
    BRANCH_SUB_AGENT,
    BRANCH_COMPACTION,
    BRANCH_SUMMARY, /* asked for what a compaction then begins with */
    BRANCH_EDITED,
    BRANCH_RESAMPLED,
    BRANCH_OTHER,
    BRANCH_RETOKENISED, /* of rows: the same conversation, other tokens */
};

/* A conversation: turns that go on where the one before ended. */
struct thread {
    enum branch_kind kind;
    uint32_t from;    /* the turn it grew out of; NONE */
    uint32_t summary; /* BRANCH_COMPACTION: the call that wrote the summary; NONE: not known */
    struct str tool_call_id; /* BRANCH_SUB_AGENT: the call that started it */
};

enum exclusion {
    EXCLUDED_NOT,
    EXCLUDED_SIDE,       /* a title, a summary, a probe */
    EXCLUDED_BROKEN,     /* no complete answer */
    EXCLUDED_SUPERSEDED, /* the agent threw it away and asked again */
    EXCLUSIONS
};

struct turn {
    char id[ID_MAX];
    uint32_t number;
    bool answered, side, truncated;
    int http_status;
    enum exclusion excluded;
    bool has_policy;
    int64_t policy_version;
    struct str accepted, done, finish, model, dialect; /* texts of the line */
    struct str sampling, usage;                        /* raw JSON */
    struct str error_kind, error;
    struct str tools; /* raw, also where the line leaves them out; none: STR_NONE */
    /* messages */
    uint32_t request_node, answer_node; /* NONE: not understood; no answer */
    uint32_t parent;                    /* whose answer the request goes on from; NONE */
    uint32_t origin; /* whose answer is its last, also after changed messages; NONE */
    uint32_t thread;
    bool continued;            /* a later turn goes on from it */
    bool opens;                /* the first turn of its thread */
    struct str sent_back, was; /* excerpts where the client's copy of the answer parts from it */
    /* tokens, kept as a difference to another turn's prompt and completion */
    bool tokens;
    struct str note; /* why they are not there */
    uint32_t stored_on;
    size_t stored_shared, prompt_count;
    const int32_t *rest;
    const int32_t *ids;
    const float *logprobs;
    size_t id_count;
    const struct trace_version_span *versions; /* within the completion; none: policy_version */
    size_t version_count;
    /* where the row goes on */
    enum sample_continuity continuity;
    uint32_t base; /* the turn whose row it continues; NONE: it begins one */
    size_t cut;    /* the prompt's tokens from here on are new to that row */
    bool expected; /* there was something to compare with: origin's tokens */
    size_t same;   /* how many tokens agree with what was expected */
    size_t again;  /* where the prompt agrees with the end of what was expected; 0: nowhere */
    int64_t expected_id, got_id; /* at `same`; -1: the sequence ends there */
    uint32_t trained_in;         /* row; NONE */
    uint32_t first_child;        /* by base, among turns that are in rows; NONE */
};

struct row {
    uint32_t leaf;
    uint32_t own; /* the first turn that is trained here */
    bool tokens;
};

struct samples {
    struct samples_options options;
    struct arena arena;
    struct node *nodes;
    size_t node_count, node_capacity;
    struct map by_key; /* parent and key -> node + 1 */
    struct map known;  /* key of an answer -> turn + 1 */
    struct turn *turns;
    size_t turn_count, turn_capacity;
    struct map by_id; /* call id -> turn + 1 */
    struct thread *threads;
    size_t thread_count, thread_capacity;
    struct row *rows;
    size_t row_count, row_capacity;
    struct str tools; /* of the last request that had some, raw */
    uint32_t bad_lines;
    bool finished;
};

/* --- sample_graph.c */
void graph_init(struct samples *samples);
/* The child of `parent` that is this message; NONE. */
uint32_t graph_find(const struct samples *samples, uint32_t parent, struct trace_key key,
                    const struct trace_message *message);
/* NONE: out of room. */
uint32_t graph_add(struct samples *samples, uint32_t parent, struct trace_key key, struct json raw,
                   uint32_t turn);
/* The same message below another one; it was not sampled there. */
uint32_t graph_copy(struct samples *samples, uint32_t parent, uint32_t of);
uint32_t graph_above(const struct samples *samples, uint32_t node, uint32_t depth);
/* The turn that last gave this answer, wherever; NONE. */
uint32_t graph_known(const struct samples *samples, struct trace_key key);

/* --- sample_branch.c */
/* `from_depth`: how many of the request's messages were in the tree before it came. */
void branch_find(struct samples *samples, uint32_t turn, uint32_t from_depth);
const char *branch_kind_name(enum branch_kind kind);

/* --- sample.c */
/* The prompt and completion of a turn as it was seen, appended; `upto` tokens of it. */
void turn_tokens(const struct samples *samples, uint32_t turn, size_t upto, struct buf *out);
static inline size_t turn_end(const struct turn *turn)
{
    return turn->prompt_count + turn->id_count;
}

/* --- sample_row.c */
struct placed {
    uint32_t turn;
    size_t prompt, completion, end; /* where they begin in the row */
    bool trained;
};
struct layout {
    struct buf ids, mask, logprobs, provenance;
    struct placed *turns;
    size_t turn_count, token_count, trained_count;
};
void layout_make(struct samples *samples, size_t row, struct layout *out);
void layout_deinit(struct layout *layout);
static inline void own_layout(struct layout *layout)
{
    layout_deinit(layout);
}
/* The turns of a row of messages, first to last; returns how many. `out` may be NULL. */
size_t row_path(const struct samples *samples, size_t row, uint32_t *out);
const char *exclusion_name(enum exclusion exclusion);

#endif
