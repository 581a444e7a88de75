/* sample.h - the second door of the trace room: from the calls of a rollout to the rows a trainer
 * trains on.
 *
 *     lines of calls.jsonl -> messages as a tree -> turns and their tokens -> rows
 *
 * Pure: no files, no clock, one thread at a time. Nothing is tokenised here; every id in a row is
 * one an engine or a trainer gave. docs/samples.md says what the members mean; its short form:
 *
 *   - A turn whose prompt begins with its parent's prompt and completion continues the parent's
 *     row. Otherwise it begins a row of its own (`forked`), or, when the caller allows a small
 *     difference inside the parent's completion, goes on in that row with its tokens marked as
 *     sampled in another context (`realigned`).
 *   - Each completion is trained in exactly one row: the first that continues it.
 *   - Side calls, broken calls and answers the agent threw away are in no row.
 *   - A turn without complete token arrays is in a row of messages, which says why. */
#ifndef TRACE_SAMPLE_H
#define TRACE_SAMPLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/str.h"
#include "trace/trace.h"

struct err;
struct json_writer;
struct samples;

enum sample_provenance {
    SAMPLE_PROMPT,      /* before the first completion of the row */
    SAMPLE_SAMPLED,     /* the model's own */
    SAMPLE_GLUE,        /* between completions: template, tool results, users */
    SAMPLE_RE_RENDERED, /* where sampled tokens stood, as the engine wrote them again */
    SAMPLE_PROVENANCES
};
const char *sample_provenance_name(enum sample_provenance provenance);

enum sample_continuity { SAMPLE_CLEAN, SAMPLE_REALIGNED, SAMPLE_FORKED };
const char *sample_continuity_name(enum sample_continuity continuity);

struct samples_options {
    uint32_t realign_max; /* differing tokens a row may bridge; 0: none, every row is exact */
    size_t bytes_max;     /* 0: 1 GiB of memory, then ERR_LIMIT */
};

struct samples *samples_new(const struct samples_options *options);
void samples_free(struct samples *samples); /* NULL is fine */
static inline void own_samples(struct samples **samples)
{
    samples_free(*samples);
}

/* One line of calls.jsonl, in the order of the file; the line is not kept. ERR_INPUT: it is not
 * one, or refers to a call that was not added; it is left out then and the rest still works. */
int samples_add(struct samples *samples, struct str line, struct err *err);
/* Does the builder know this call? And how many does it know? */
bool samples_has(const struct samples *samples, const char *call_id);
size_t samples_calls(const struct samples *samples);
/* No more lines; lays out the rows. */
void samples_finish(struct samples *samples);

size_t samples_count(const struct samples *samples);

/* What stands on every row. Texts may be NULL. */
struct sample_owner {
    const char *rollout, *group, *task, *agent, *model, *mode, *fate;
    uint32_t index;
    bool rewarded;
    double reward;
    struct str rewards; /* raw JSON object; STR_NONE: none */
};
/* One row as one JSON object. */
void sample_write(struct samples *samples, size_t at, const struct sample_owner *owner,
                  struct json_writer *out);
/* {"rows", "turns", "trained_tokens", "continuity": {...}, "excluded": {...}, ...} */
void samples_write_summary(struct samples *samples, struct json_writer *out);
/* An array of the turns as OpenEnv's RolloutTurn has them. Token arrays are complete as long as all
 * of them together have at most `tokens_max` ids; later ones are empty and say so. */
void samples_write_turns(struct samples *samples, size_t tokens_max, struct json_writer *out);
/* The members "tools", "nodes", "calls" of the trace shape that verifiers-style trainers read. */
void samples_write_nodes(struct samples *samples, struct json_writer *out);

/* ---------------------------------------------------------------- the binary form */
/* Rows as sample_write() wrote them, one by one; then the whole, once. Zeroed: empty. */
struct sample_binary {
    struct buf records;
    struct buf offsets; /* uint64 each */
    uint64_t count;
};
int sample_binary_add(struct sample_binary *binary, struct str line, struct err *err);
/* Head and table; `records` follow as they are. */
void sample_binary_head(const struct sample_binary *binary, struct buf *out);
void sample_binary_deinit(struct sample_binary *binary);
static inline void own_sample_binary(struct sample_binary *binary)
{
    sample_binary_deinit(binary);
}

#endif
