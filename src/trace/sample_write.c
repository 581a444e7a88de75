/* sample_write.c - rows and their summary as JSON, for people, for jq, and for readers that have
 * nothing better; docs/samples.md describes every member. */
#include <string.h>

#include "base/mem.h"
#include "json/json.h"
#include "trace/sample_inner.h"

#define DIFFERENCES_MAX 16

/* ---------------------------------------------------------------- pieces */

static void put_span(struct json_writer *out, size_t from, size_t to)
{
    json_begin_array(out);
    json_put_int(out, (long long)from);
    json_put_int(out, (long long)to);
    json_end_array(out);
}

static void set_id(struct json_writer *out, const char *key, const struct samples *samples,
                   uint32_t turn)
{
    json_set_text(out, key, turn == NONE ? NULL : samples->turns[turn].id);
}

static void set_excerpt(struct json_writer *out, const char *key, struct str text)
{
    if (text.size)
        json_set_str(out, key, text);
}

static void put_difference(const struct samples *samples, uint32_t at, struct json_writer *out)
{
    const struct turn *turn = &samples->turns[at];
    const struct turn *origin = &samples->turns[turn->origin];
    json_begin_object(out);
    json_set_text(out, "status", sample_continuity_name(turn->continuity));
    json_set_text(out, "call_id", turn->id);
    json_set_int(out, "turn", turn->number);
    json_set_text(out, "expected_from", origin->id);
    json_set_int(out, "position", (long long)turn->same);
    json_set_text(out, "inside", turn->same >= origin->prompt_count ? "completion" : "prompt");
    if (turn->expected_id >= 0)
        json_set_int(out, "expected_id", turn->expected_id);
    else
        json_set_null(out, "expected_id");
    if (turn->got_id >= 0)
        json_set_int(out, "got_id", turn->got_id);
    else
        json_set_null(out, "got_id");
    if (turn->again) {
        json_key(out, "expected_span");
        put_span(out, turn->same, turn_end(origin));
        json_key(out, "got_span");
        put_span(out, turn->same, turn->again);
    }
    set_excerpt(out, "sampled_text", turn->was);
    set_excerpt(out, "sent_back_text", turn->sent_back);
    json_end_object(out);
}

/* The row is what its own turns are: a shared beginning is told in the row that trains it. */
static void set_continuity(const struct samples *samples, const uint32_t *path, size_t count,
                           uint32_t own, struct json_writer *out)
{
    enum sample_continuity status = SAMPLE_CLEAN;
    size_t from = 0, differences = 0;
    while (from < count && path[from] != own)
        from++;
    for (size_t i = from; i < count; i++) {
        enum sample_continuity turn = samples->turns[path[i]].continuity;
        status = turn > status ? turn : status;
        differences += turn != SAMPLE_CLEAN;
    }
    json_key(out, "continuity");
    json_begin_object(out);
    json_set_text(out, "status", sample_continuity_name(status));
    json_set_int(out, "differences_count", (long long)differences);
    json_key(out, "differences");
    json_begin_array(out);
    size_t shown = 0;
    for (size_t i = from; i < count && shown < DIFFERENCES_MAX; i++) {
        if (samples->turns[path[i]].continuity == SAMPLE_CLEAN)
            continue;
        put_difference(samples, path[i], out);
        shown++;
    }
    json_end_array(out);
    json_end_object(out);
}

static void set_branch(const struct samples *samples, const struct row *row,
                       struct json_writer *out)
{
    const struct turn *own = &samples->turns[row->own];
    static const struct thread lost = {.kind = BRANCH_OTHER, .from = NONE, .summary = NONE};
    const struct thread *thread = own->thread == NONE ? &lost : &samples->threads[own->thread];
    bool goes_on = !own->opens && (own->parent != NONE || own->origin != NONE);
    json_key(out, "branch");
    json_begin_object(out);
    json_set_text(out, "kind", branch_kind_name(goes_on ? BRANCH_RETOKENISED : thread->kind));
    json_set_int(out, "thread", own->thread == NONE ? -1 : (long long)own->thread);
    uint32_t from = goes_on ? own->origin : thread->from;
    set_id(out, "from_call", samples, from);
    if (from != NONE && samples->turns[from].trained_in != NONE)
        json_set_int(out, "from_sample", samples->turns[from].trained_in);
    else
        json_set_null(out, "from_sample");
    if (!goes_on && thread->summary != NONE)
        set_id(out, "summary_call", samples, thread->summary);
    if (!goes_on && thread->tool_call_id.size)
        json_set_str(out, "tool_call_id", thread->tool_call_id);
    json_end_object(out);
}

static void put_turn_facts(const struct turn *turn, bool trained, struct json_writer *out)
{
    json_set_text(out, "call_id", turn->id);
    json_set_int(out, "number", turn->number);
    json_set_bool(out, "trained", trained);
    if (turn->finish.size)
        json_set_str(out, "finish_reason", turn->finish);
    else
        json_set_null(out, "finish_reason");
    if (turn->has_policy)
        json_set_int(out, "policy_version", turn->policy_version);
    json_set_text(out, "continuity", sample_continuity_name(turn->continuity));
}

static void set_owner(const struct samples *samples, size_t at, const struct sample_owner *owner,
                      struct json_writer *out)
{
    json_set_text(out, "rollout_id", owner->rollout);
    json_set_text(out, "group_id", owner->group && owner->group[0] ? owner->group : NULL);
    json_set_int(out, "index", owner->index);
    json_set_text(out, "task", owner->task);
    json_set_text(out, "agent", owner->agent);
    json_set_text(out, "model", owner->model);
    json_set_text(out, "mode", owner->mode);
    json_set_text(out, "fate", owner->fate);
    if (owner->rewarded)
        json_set_double(out, "reward", owner->reward);
    else
        json_set_null(out, "reward");
    if (owner->rewards.size)
        json_set_raw(out, "rewards", owner->rewards);
    json_set_int(out, "sample", (long long)at);
    json_set_int(out, "samples", (long long)samples->row_count);
}

/* ---------------------------------------------------------------- a row of tokens */

static void set_turns(const struct samples *samples, const struct layout *layout,
                      struct json_writer *out)
{
    json_key(out, "turns");
    json_begin_array(out);
    for (size_t i = 0; i < layout->turn_count; i++) {
        const struct placed *place = &layout->turns[i];
        json_begin_object(out);
        put_turn_facts(&samples->turns[place->turn], place->trained, out);
        json_key(out, "prompt");
        put_span(out, place->prompt, place->completion);
        json_key(out, "completion");
        put_span(out, place->completion, place->end);
        json_end_object(out);
    }
    json_end_array(out);
}

static void put_version(struct json_writer *out, size_t from, size_t to, int64_t version)
{
    json_begin_array(out);
    json_put_int(out, (long long)from);
    json_put_int(out, (long long)to);
    json_put_int(out, version);
    json_end_array(out);
}

static void set_versions(const struct samples *samples, const struct layout *layout,
                         struct json_writer *out)
{
    json_key(out, "policy_versions");
    json_begin_array(out);
    for (size_t i = 0; i < layout->turn_count; i++) {
        const struct placed *place = &layout->turns[i];
        const struct turn *turn = &samples->turns[place->turn];
        for (size_t k = 0; k < turn->version_count; k++) {
            const struct trace_version_span *span = &turn->versions[k];
            put_version(out, place->completion + (size_t)span->from,
                        place->completion + (size_t)span->to, span->version);
        }
        if (!turn->version_count && turn->has_policy)
            put_version(out, place->completion, place->end, turn->policy_version);
    }
    json_end_array(out);
}

static void set_differing(const struct samples *samples, const struct layout *layout,
                          struct json_writer *out)
{
    bool differs = false;
    json_key(out, "context_differs");
    json_begin_array(out);
    for (size_t i = 0; i < layout->turn_count; i++) {
        const struct placed *place = &layout->turns[i];
        differs |= samples->turns[place->turn].continuity == SAMPLE_REALIGNED;
        if (differs)
            put_span(out, place->completion, place->end);
    }
    json_end_array(out);
}

static void set_arrays(const struct layout *layout, struct json_writer *out)
{
    const int32_t *ids = (const int32_t *)(const void *)layout->ids.data;
    const float *logprobs = (const float *)(const void *)layout->logprobs.data;
    json_key(out, "token_ids");
    json_begin_array(out);
    for (size_t i = 0; i < layout->token_count; i++)
        json_put_int(out, ids[i]);
    json_end_array(out);
    json_key(out, "mask");
    json_begin_array(out);
    for (size_t i = 0; i < layout->token_count; i++)
        json_put_raw(out, layout->mask.data[i] ? STR("1") : STR("0"));
    json_end_array(out);
    json_key(out, "logprobs");
    json_begin_array(out);
    for (size_t i = 0; i < layout->token_count; i++) {
        if (layout->mask.data[i])
            trace_float_write(logprobs[i], out);
        else
            json_put_raw(out, STR("0"));
    }
    json_end_array(out);
    json_key(out, "provenance");
    json_begin_array(out);
    for (size_t i = 0; i < layout->token_count; i++)
        json_put_int(out, layout->provenance.data[i]);
    json_end_array(out);
}

static void write_tokens(struct samples *samples, size_t at, struct json_writer *out)
{
    const struct row *row = &samples->rows[at];
    OWN(layout) struct layout layout;
    layout_make(samples, at, &layout);
    OWN(mem) uint32_t *path = mem_alloc(layout.turn_count * sizeof *path + 1);
    bool truncated = false;
    for (size_t i = 0; i < layout.turn_count; i++) {
        path[i] = layout.turns[i].turn;
        truncated |= layout.turns[i].trained && samples->turns[path[i]].truncated;
    }
    set_continuity(samples, path, layout.turn_count, row->own, out);
    json_set_bool(out, "truncated", truncated);
    json_set_null(out, "note");
    set_turns(samples, &layout, out);
    set_versions(samples, &layout, out);
    set_differing(samples, &layout, out);
    json_set_int(out, "token_count", (long long)layout.token_count);
    json_set_int(out, "trained_count", (long long)layout.trained_count);
    set_arrays(&layout, out);
}

/* ---------------------------------------------------------------- a row of messages */

static void put_message(const struct samples *samples, size_t row, uint32_t node,
                        struct json_writer *out)
{
    const struct node *message = &samples->nodes[node];
    OWN(json_doc) struct json_doc doc = {0};
    OWN(buf) struct buf edited = {0};
    if (message->turn == NONE || json_read(&doc, message->raw, NULL, NULL) < 0) {
        json_put_raw(out, message->raw);
        return;
    }
    const struct turn *turn = &samples->turns[message->turn];
    OWN(buf) struct buf id = {0};
    json_quote(&id, str_of(turn->id));
    struct json_edit edits[] = {
        {"sampled", STR("true")},
        {"trained", turn->trained_in == row ? STR("true") : STR("false")},
        {"call_id", buf_str(&id)},
    };
    json_splice(json_root(&doc), edits, COUNT(edits), &edited);
    json_put_raw(out, buf_str(&edited));
}

static void write_messages(struct samples *samples, size_t at, struct json_writer *out)
{
    const struct row *row = &samples->rows[at];
    const struct turn *leaf = &samples->turns[row->leaf];
    size_t count = row_path(samples, at, NULL), depth = samples->nodes[leaf->answer_node].depth;
    OWN(mem) uint32_t *path = mem_alloc(count * sizeof *path + 1);
    (void)row_path(samples, at, path);
    bool truncated = false;
    for (size_t i = 0; i < count; i++)
        truncated |= samples->turns[path[i]].truncated;
    set_continuity(samples, path, count, row->own, out);
    json_set_bool(out, "truncated", truncated);
    json_set_str(out, "note", samples->turns[row->own].note);
    json_key(out, "turns");
    json_begin_array(out);
    for (size_t i = 0; i < count; i++) {
        json_begin_object(out);
        put_turn_facts(&samples->turns[path[i]], samples->turns[path[i]].trained_in == at, out);
        json_end_object(out);
    }
    json_end_array(out);
    OWN(mem) uint32_t *nodes = mem_alloc(depth * sizeof *nodes + 1);
    uint32_t node = leaf->answer_node;
    for (size_t i = depth; i-- > 0; node = samples->nodes[node].parent)
        nodes[i] = node;
    json_key(out, "messages");
    json_begin_array(out);
    for (size_t i = 0; i < depth; i++)
        put_message(samples, at, nodes[i], out);
    json_end_array(out);
    json_set_int(out, "token_count", 0);
    json_set_int(out, "trained_count", 0);
    json_set_null(out, "token_ids");
    json_set_null(out, "mask");
    json_set_null(out, "logprobs");
    json_set_null(out, "provenance");
}

void sample_write(struct samples *samples, size_t at, const struct sample_owner *owner,
                  struct json_writer *out)
{
    const struct row *row = &samples->rows[at];
    json_begin_object(out);
    json_set_text(out, "kind", row->tokens ? "tokens" : "messages");
    set_owner(samples, at, owner, out);
    set_branch(samples, row, out);
    if (row->tokens)
        write_tokens(samples, at, out);
    else
        write_messages(samples, at, out);
    json_end_object(out);
}

/* ---------------------------------------------------------------- the summary */

struct sums {
    size_t token_rows, trained, truncated, turns;
    size_t continuity[SAMPLE_FORKED + 1], excluded[EXCLUSIONS];
    const struct turn *first; /* that is not clean */
    struct str note;          /* of the first turn without tokens */
    bool has_policy;
    int64_t policy_min, policy_max;
};

static void add_version(struct sums *sums, int64_t version)
{
    if (!sums->has_policy || version < sums->policy_min)
        sums->policy_min = version;
    if (!sums->has_policy || version > sums->policy_max)
        sums->policy_max = version;
    sums->has_policy = true;
}

static void add_turn(struct sums *sums, const struct turn *turn)
{
    sums->excluded[turn->excluded]++;
    if (turn->excluded)
        return;
    sums->turns++;
    sums->truncated += turn->truncated;
    if (!turn->tokens) {
        sums->note = sums->note.data ? sums->note : turn->note;
        return;
    }
    sums->trained += turn->id_count;
    sums->continuity[turn->continuity]++;
    if (turn->continuity != SAMPLE_CLEAN && !sums->first)
        sums->first = turn;
    for (size_t i = 0; i < turn->version_count; i++)
        add_version(sums, turn->versions[i].version);
    if (!turn->version_count && turn->has_policy)
        add_version(sums, turn->policy_version);
}

static void set_branches(const struct samples *samples, struct json_writer *out)
{
    json_key(out, "branches");
    json_begin_object(out);
    for (int kind = 0; kind < BRANCH_RETOKENISED; kind++) {
        size_t count = 0;
        for (size_t i = 0; i < samples->thread_count; i++)
            count += (int)samples->threads[i].kind == kind;
        if (count)
            json_set_int(out, branch_kind_name((enum branch_kind)kind), (long long)count);
    }
    json_end_object(out);
}

void samples_write_summary(struct samples *samples, struct json_writer *out)
{
    struct sums sums = {0};
    for (size_t i = 0; i < samples->turn_count; i++)
        add_turn(&sums, &samples->turns[i]);
    for (size_t i = 0; i < samples->row_count; i++)
        sums.token_rows += samples->rows[i].tokens;
    json_begin_object(out);
    json_set_int(out, "rows", (long long)samples->row_count);
    json_set_int(out, "token_rows", (long long)sums.token_rows);
    json_set_int(out, "turns", (long long)sums.turns);
    json_set_int(out, "trained_tokens", (long long)sums.trained);
    json_set_int(out, "truncated_turns", (long long)sums.truncated);
    set_branches(samples, out);
    json_key(out, "continuity");
    json_begin_object(out);
    for (int i = SAMPLE_CLEAN; i <= SAMPLE_FORKED; i++)
        json_set_int(out, sample_continuity_name((enum sample_continuity)i),
                     (long long)sums.continuity[i]);
    json_key(out, "first_difference");
    if (sums.first)
        put_difference(samples, (uint32_t)(sums.first - samples->turns), out);
    else
        json_put_null(out);
    json_end_object(out);
    json_key(out, "excluded");
    json_begin_object(out);
    for (int i = EXCLUDED_NOT + 1; i < EXCLUSIONS; i++)
        if (sums.excluded[i])
            json_set_int(out, exclusion_name((enum exclusion)i), (long long)sums.excluded[i]);
    json_end_object(out);
    if (sums.has_policy) {
        json_key(out, "policy_versions");
        json_begin_array(out);
        json_put_int(out, sums.policy_min);
        json_put_int(out, sums.policy_max);
        json_end_array(out);
    }
    if (sums.note.data)
        json_set_str(out, "note", sums.note);
    if (samples->bad_lines)
        json_set_int(out, "lines_unreadable", samples->bad_lines);
    json_end_object(out);
}
