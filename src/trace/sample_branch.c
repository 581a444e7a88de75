/* sample_branch.c - which conversation a turn belongs to, and why there is a new one.
 *
 *     goes on from the last turn of a conversation       that conversation
 *     asks the same again                                resampled
 *     goes on from an earlier turn                       edited (or a sub-agent that got the
 * history) goes on from no turn, and its messages hold ...
 *         ... an earlier answer's text                   compaction: that answer is the summary,
 * and its turn, when it is a branch, a summary
 *         ... earlier answers as they were               edited: what came before them was changed
 *         ... what a tool call had as argument           sub_agent: that call started it
 *         ... nothing of the kind                        other
 *
 * These are names for people and filters, found by evidence in the record; which tokens are trained
 * does not depend on them. */
#include <string.h>

#include "base/mem.h"
#include "json/json.h"
#include "trace/sample_inner.h"

#define RECENT_SUMMARIES 8
#define RECENT_CALLS 64
#define SUMMARY_BYTES_MIN 12
#define PROMPT_BYTES_MIN 8
#define PROBE_BYTES 64

const char *branch_kind_name(enum branch_kind kind)
{
    switch (kind) {
    case BRANCH_MAIN:
        return "main";
    case BRANCH_SUB_AGENT:
        return "sub_agent";
    case BRANCH_COMPACTION:
        return "compaction";
    case BRANCH_SUMMARY:
        return "summary";
    case BRANCH_EDITED:
        return "edited";
    case BRANCH_RESAMPLED:
        return "resampled";
    case BRANCH_OTHER:
        return "other";
    case BRANCH_RETOKENISED:
        return "retokenised";
    }
    return "other";
}

/* ---------------------------------------------------------------- evidence */

/* The turn's new messages that are not an agent's tools': those of the assistant only when asked.
 */
static void new_texts(const struct samples *samples, const struct turn *turn, uint32_t from_depth,
                      bool assistants, struct buf *out)
{
    for (uint32_t at = turn->request_node; samples->nodes[at].depth > from_depth;
         at = samples->nodes[at].parent) {
        const struct trace_message *message = &samples->nodes[at].message;
        if (message->role == TRACE_TOOL || (message->role == TRACE_ASSISTANT && !assistants))
            continue;
        for (size_t i = 0; i < message->part_count; i++)
            buf_str_append(out, message->parts[i].text);
        buf_byte(out, '\n');
    }
}

/* The part between <summary> and </summary>, where there is one: agents keep just that. */
static struct str inner_summary(struct str text)
{
    long from = str_find(text, STR("<summary>"));
    if (from < 0)
        return STR_NONE;
    struct str rest = str_from(text, (size_t)from + strlen("<summary>"));
    long to = str_find(rest, STR("</summary>"));
    return str_trim(to < 0 ? rest : str_upto(rest, (size_t)to));
}

static bool holds_piece(struct str texts, struct str piece)
{
    return piece.size >= SUMMARY_BYTES_MIN && str_find(texts, piece) >= 0;
}

/* Is the answer's text in the new messages, whole or, when it is long, in two of three samples? */
static bool holds_answer(const struct samples *samples, struct str texts, uint32_t at)
{
    const struct turn *turn = &samples->turns[at];
    if (turn->answer_node == NONE)
        return false;
    OWN(arena) struct arena scratch = {0};
    struct str text =
        str_trim(trace_message_text(&samples->nodes[turn->answer_node].message, &scratch));
    if (holds_piece(texts, text) || holds_piece(texts, inner_summary(text)))
        return true;
    if (text.size < 8 * PROBE_BYTES)
        return false;
    int found = 0;
    for (size_t i = 1; i <= 3; i++)
        found += holds_piece(texts, str_upto(str_from(text, text.size * i / 4), PROBE_BYTES));
    return found >= 2;
}

/* The latest of the recent answers that the new messages hold; NONE. A side call's may come back as
 * the assistant's own words. */
static uint32_t find_summary(const struct samples *samples, uint32_t at, uint32_t from_depth)
{
    OWN(buf) struct buf texts = {0}, all = {0};
    bool side_only = samples->turns[at].parent != NONE;
    uint32_t looked = 0;
    new_texts(samples, &samples->turns[at], from_depth, false, &texts);
    new_texts(samples, &samples->turns[at], from_depth, true, &all);
    for (uint32_t i = at; i-- > 0 && looked < RECENT_SUMMARIES;) {
        const struct turn *turn = &samples->turns[i];
        if (!turn->answered || (side_only && !turn->side))
            continue;
        looked++;
        if (holds_answer(samples, buf_str(turn->side ? &all : &texts), i))
            return i;
    }
    return NONE;
}

/* Is one of the arguments what a user said, or most of it? */
static bool arguments_are(struct json arguments, struct str said)
{
    OWN(arena) struct arena scratch = {0};
    JSON_EACH (item, arguments) {
        struct str text = str_trim(json_str(item.value, &scratch));
        if (text.size >= PROMPT_BYTES_MIN && 2 * text.size >= said.size &&
            str_find(said, text) >= 0)
            return true;
    }
    return false;
}

static bool arguments_said(const struct samples *samples, const struct turn *turn,
                           uint32_t from_depth, struct str arguments)
{
    OWN(json_doc) struct json_doc doc = {0};
    if (json_read(&doc, arguments, NULL, NULL) < 0)
        return false;
    for (uint32_t at = turn->request_node; samples->nodes[at].depth > from_depth;
         at = samples->nodes[at].parent) {
        const struct trace_message *message = &samples->nodes[at].message;
        for (size_t i = 0; message->role == TRACE_USER && i < message->part_count; i++)
            if (arguments_are(json_root(&doc), str_trim(message->parts[i].text)))
                return true;
    }
    return false;
}

/* A sub-agent is told what to do by the arguments of a call. */
static bool find_spawn(struct samples *samples, uint32_t at, uint32_t from_depth,
                       struct thread *thread)
{
    uint32_t looked = 0;
    for (uint32_t i = at; i-- > 0 && looked < RECENT_CALLS;) {
        const struct turn *turn = &samples->turns[i];
        if (!turn->answered || turn->side || turn->answer_node == NONE)
            continue;
        const struct trace_message *answer = &samples->nodes[turn->answer_node].message;
        for (size_t k = 0; k < answer->call_count && looked < RECENT_CALLS; k++, looked++) {
            if (!arguments_said(samples, &samples->turns[at], from_depth,
                                answer->calls[k].arguments))
                continue;
            thread->kind = BRANCH_SUB_AGENT;
            thread->from = i;
            thread->tool_call_id = answer->calls[k].id;
            return true;
        }
    }
    return false;
}

/* ---------------------------------------------------------------- threads */

static uint32_t add_thread(struct samples *samples, struct thread thread)
{
    if (samples->thread_count == samples->thread_capacity) {
        samples->thread_capacity = samples->thread_capacity ? samples->thread_capacity * 2 : 4;
        samples->threads =
            mem_grow(samples->threads, samples->thread_capacity * sizeof *samples->threads);
    }
    samples->threads[samples->thread_count] = thread;
    return (uint32_t)samples->thread_count++;
}

/* An earlier turn that asked exactly the same; NONE. */
static uint32_t asked_before(const struct samples *samples, uint32_t at)
{
    const struct turn *turn = &samples->turns[at];
    for (uint32_t i = at; i-- > 0 && at - i <= RECENT_CALLS;)
        if (samples->turns[i].request_node == turn->request_node && samples->turns[i].answered &&
            !samples->turns[i].side)
            return i;
    return NONE;
}

/* What a summary is of: what its call went on from, or, when it was told the conversation in a
 * prompt of its own, the turn before it. */
static uint32_t summarised(const struct samples *samples, uint32_t summary)
{
    const struct turn *turn = &samples->turns[summary];
    bool apart = turn->side ||
                 (turn->thread != NONE && samples->threads[turn->thread].kind == BRANCH_SUMMARY);
    if (!apart)
        return summary;
    if (turn->parent != NONE)
        return turn->parent;
    for (uint32_t i = summary; i-- > 0;)
        if (samples->turns[i].answered && !samples->turns[i].side)
            return i;
    return NONE;
}

static struct thread new_thread(struct samples *samples, uint32_t at, uint32_t from_depth)
{
    const struct turn *turn = &samples->turns[at];
    struct thread thread = {.kind = BRANCH_OTHER, .from = NONE, .summary = NONE};
    if (samples->thread_count == 0) {
        thread.kind = BRANCH_MAIN;
        return thread;
    }
    bool started = turn->origin == NONE; /* nothing an assistant said is in it */
    if (started && find_spawn(samples, at, from_depth, &thread))
        return thread;
    thread.summary = find_summary(samples, at, from_depth);
    if (thread.summary != NONE) {
        const struct turn *summary = &samples->turns[thread.summary];
        thread.kind = BRANCH_COMPACTION;
        if (summary->opens && samples->threads[summary->thread].kind == BRANCH_EDITED)
            samples->threads[summary->thread].kind = BRANCH_SUMMARY;
        thread.from = summarised(samples, thread.summary);
        return thread;
    }
    if (!started && find_spawn(samples, at, from_depth, &thread))
        return thread;
    thread.from = turn->origin;
    thread.kind = turn->origin != NONE ? BRANCH_EDITED : BRANCH_OTHER;
    return thread;
}

static void open_thread(struct samples *samples, struct turn *turn, struct thread thread)
{
    turn->thread = add_thread(samples, thread);
    turn->opens = true;
}

/* Times of the record, which sort as text. */
static bool not_before(struct str later, struct str earlier)
{
    size_t size = later.size < earlier.size ? later.size : earlier.size;
    return size && memcmp(later.data, earlier.data, size) >= 0;
}

/* The same was asked before: thrown away and asked again, or asked twice on purpose. */
static bool ask_again(struct samples *samples, struct turn *turn, uint32_t twin)
{
    if (twin == NONE || samples->turns[twin].thread == NONE)
        return false;
    struct turn *earlier = &samples->turns[twin];
    if (earlier->continued || !not_before(turn->accepted, earlier->done)) {
        struct thread thread = {.kind = BRANCH_RESAMPLED, .from = twin, .summary = NONE};
        open_thread(samples, turn, thread);
        return true;
    }
    earlier->excluded = EXCLUDED_SUPERSEDED;
    turn->thread = earlier->thread;
    turn->opens = earlier->opens;
    return true;
}

void branch_find(struct samples *samples, uint32_t at, uint32_t from_depth)
{
    struct turn *turn = &samples->turns[at];
    if (turn->side || turn->thread != NONE || ask_again(samples, turn, asked_before(samples, at)))
        return;
    if (turn->parent != NONE) {
        struct turn *parent = &samples->turns[turn->parent];
        /* Taken for a side call, or for thrown away, until now. */
        branch_find(samples, turn->parent, 0);
        parent->excluded = EXCLUDED_NOT;
        bool tip = !parent->continued;
        parent->continued = true;
        if (tip && parent->thread != NONE) {
            turn->thread = parent->thread;
            return;
        }
    }
    open_thread(samples, turn, new_thread(samples, at, from_depth));
}
