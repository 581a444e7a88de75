/* answer.h - private to the dialect room: an answer while it is being read, in growing buffers.
 *
 * A dialect's reader puts what it finds; each piece becomes a delta for whoever listens. Tool calls
 * are announced as soon as their name is known; arguments that come earlier wait. */
#ifndef DIALECT_ANSWER_H
#define DIALECT_ANSWER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/buf.h"
#include "trace/trace.h"

struct err;

#define ANSWER_CALLS_MAX 256

struct answer_call {
    int64_t upstream_index;
    struct buf id, name, arguments;
    bool announced;
    bool custom;  /* its arguments are free text until the answer is finished */
    bool unnamed; /* has no id, and its dialect knows how to do without */
};

struct answer_builder {
    /* What every token touches, side by side. */
    void (*on_delta)(void *context, const struct trace_delta *delta);
    void *context;
    enum trace_finish finish;
    bool has_prompt_ids, has_ids, has_logprobs;
    bool named; /* id, model and created_s are known */
    struct buf text;
    struct buf ids;      /* int32_t each, as the engine listed them */
    struct buf logprobs; /* float each */

    struct buf id, model, reasoning, refusal, finish_text, stop_word;
    struct buf opaque;  /* items of an open JSON array: "[{...},{...}" */
    struct buf thought; /* of the thinking block being read */
    bool in_call;       /* protocols of blocks: the one being read is a call of the agent's tools */
    struct buf block, input; /* of another kind: as it began; its input so far */
    size_t item_bytes;       /* protocols of items: what deltas brought for the item being read */
    int64_t created_s;
    struct answer_call *calls;
    size_t call_count;
    struct trace_usage usage;
    struct buf prompt_ids;  /* int32_t each */
    struct buf logprob_ids; /* as found in log-probability entries, where `ids` are not listed */
    struct buf versions;    /* struct trace_version_span each */
};

void answer_deinit(struct answer_builder *builder);
/* The first one counts. */
void answer_set(struct buf *field, struct str value);
/* TEXT, REASONING, REFUSAL. */
void answer_add(struct answer_builder *builder, enum trace_delta_kind kind, struct str text);
/* The signature of the thinking block just read: both are kept for replay. */
void answer_signature(struct answer_builder *builder, struct str signature);
/* An opaque item, as raw JSON. */
void answer_keep(struct answer_builder *builder, struct str item);
/* The call with that index of the upstream's (made when it is new), or NULL when there are too
 * many. A different id together with a name begins a new call even under an old index: some engines
 * number every call 0. index < 0: by id. */
struct answer_call *answer_call(struct answer_builder *builder, int64_t index, struct str id,
                                struct str name);
void answer_call_add(struct answer_builder *builder, struct answer_call *call, struct str id,
                     struct str name, struct str arguments);
void answer_finish(struct answer_builder *builder, enum trace_finish finish, struct str text);
/* Everything so far as plain data in `arena`. */
void answer_build(const struct answer_builder *builder, struct arena *arena,
                  struct trace_answer *out);

#endif
