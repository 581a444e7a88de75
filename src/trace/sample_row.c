/* sample_row.c - rows laid out: which turns are in which row, which tokens are trained, where each
 * token comes from.
 *
 * Turns form a tree by `base`: the turn whose prompt and completion they begin with. Each leaf of
 * it is a row. As long as nothing was realigned, the last turn's prompt is the row, token for
 * token; so one prompt is put together for each row, and one more for each realignment in it. */
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/mem.h"
#include "trace/sample_inner.h"

const char *sample_provenance_name(enum sample_provenance provenance)
{
    static const char *const names[SAMPLE_PROVENANCES] = {
        [SAMPLE_PROMPT] = "prompt",
        [SAMPLE_SAMPLED] = "sampled",
        [SAMPLE_GLUE] = "glue",
        [SAMPLE_RE_RENDERED] = "re_rendered",
    };
    return names[provenance];
}

const char *sample_continuity_name(enum sample_continuity continuity)
{
    switch (continuity) {
    case SAMPLE_CLEAN:
        return "clean";
    case SAMPLE_REALIGNED:
        return "realigned";
    case SAMPLE_FORKED:
        return "forked";
    }
    return "clean";
}

const char *exclusion_name(enum exclusion exclusion)
{
    static const char *const names[EXCLUSIONS] = {
        [EXCLUDED_NOT] = "none",
        [EXCLUDED_SIDE] = "side",
        [EXCLUDED_BROKEN] = "broken",
        [EXCLUDED_SUPERSEDED] = "superseded",
    };
    return names[exclusion];
}

/* ---------------------------------------------------------------- which rows there are */

static void add_row(struct samples *samples, struct row row)
{
    if (samples->row_count == samples->row_capacity) {
        samples->row_capacity = samples->row_capacity ? samples->row_capacity * 2 : 8;
        samples->rows = mem_grow(samples->rows, samples->row_capacity * sizeof *samples->rows);
    }
    samples->rows[samples->row_count++] = row;
}

/* The turn before in the same row: by tokens, or among turns that have none, by messages. */
static uint32_t row_before(const struct samples *samples, uint32_t at)
{
    const struct turn *turn = &samples->turns[at];
    if (turn->tokens)
        return turn->base;
    if (turn->parent == NONE || samples->turns[turn->parent].tokens)
        return NONE;
    return turn->parent;
}

static void exclude(struct turn *turn)
{
    if (!turn->answered || turn->answer_node == NONE)
        turn->excluded = EXCLUDED_BROKEN;
    else if (turn->side)
        turn->excluded = EXCLUDED_SIDE;
}

void samples_finish(struct samples *samples)
{
    CHECK(!samples->finished);
    samples->finished = true;
    for (uint32_t i = 0; i < samples->turn_count; i++)
        exclude(&samples->turns[i]);
    for (uint32_t i = 0; i < samples->turn_count; i++) {
        uint32_t before = row_before(samples, i);
        if (samples->turns[i].excluded || before == NONE)
            continue;
        if (samples->turns[before].first_child == NONE)
            samples->turns[before].first_child = i;
    }
    /* A turn is trained in the row that its first child's first child ... ends. */
    for (uint32_t i = (uint32_t)samples->turn_count; i-- > 0;) {
        struct turn *turn = &samples->turns[i];
        if (turn->excluded || turn->first_child != NONE)
            continue;
        add_row(samples, (struct row){.leaf = i, .own = i, .tokens = turn->tokens});
    }
    for (size_t i = 0; i < samples->row_count / 2; i++) {
        struct row other = samples->rows[samples->row_count - 1 - i];
        samples->rows[samples->row_count - 1 - i] = samples->rows[i];
        samples->rows[i] = other;
    }
    for (uint32_t i = 0; i < samples->row_count; i++) {
        struct row *row = &samples->rows[i];
        uint32_t at = row->leaf, child = NONE;
        while (at != NONE && (child == NONE || samples->turns[at].first_child == child)) {
            samples->turns[at].trained_in = i;
            row->own = child = at;
            at = row_before(samples, at);
        }
    }
}

size_t samples_count(const struct samples *samples)
{
    return samples->row_count;
}

size_t row_path(const struct samples *samples, size_t row, uint32_t *out)
{
    size_t count = 0;
    for (uint32_t at = samples->rows[row].leaf; at != NONE; at = row_before(samples, at))
        count++;
    size_t left = count;
    for (uint32_t at = samples->rows[row].leaf; out && at != NONE; at = row_before(samples, at))
        out[--left] = at;
    return count;
}

/* ---------------------------------------------------------------- one row */

static void mark(struct layout *layout, size_t from, size_t to, enum sample_provenance provenance)
{
    if (from < to)
        memset(layout->provenance.data + from, provenance, to - from);
}

/* Of a turn that begins a row of its own: its prompt holds tokens that were sampled before, up to
 * where it differs, and then what the engine made of the rest. `offset`: the row's position of the
 * prompt's first token. */
static void mark_forked(const struct samples *samples, const struct turn *turn, size_t offset,
                        struct layout *layout)
{
    size_t same = turn->same < turn->prompt_count ? turn->same : turn->prompt_count;
    size_t again = turn->again > same ? turn->again : turn->prompt_count;
    uint32_t at = turn->origin;
    if (turn->base == NONE) {
        while (samples->turns[at].base != NONE && samples->turns[at].continuity != SAMPLE_REALIGNED)
            at = samples->turns[at].base;
        size_t first = samples->turns[at].prompt_count;
        mark(layout, offset + (first < same ? first : same), offset + turn->prompt_count,
             SAMPLE_GLUE);
    }
    for (at = turn->origin; at != NONE && at != turn->base; at = samples->turns[at].base) {
        const struct turn *earlier = &samples->turns[at];
        size_t end = turn_end(earlier) < same ? turn_end(earlier) : same;
        mark(layout, offset + earlier->prompt_count, offset + end, SAMPLE_SAMPLED);
        if (earlier->continuity == SAMPLE_REALIGNED)
            break;
    }
    mark(layout, offset + same, offset + again, SAMPLE_RE_RENDERED);
}

static void place_turn(struct samples *samples, size_t row, uint32_t at, struct placed *place,
                       struct layout *layout)
{
    const struct turn *turn = &samples->turns[at];
    size_t start = place->completion;
    place->trained = turn->trained_in == row;
    mark(layout, place->prompt, start, turn->base == NONE ? SAMPLE_PROMPT : SAMPLE_GLUE);
    if (turn->continuity == SAMPLE_FORKED)
        mark_forked(samples, turn, start - turn->prompt_count, layout);
    mark(layout, start, place->end, SAMPLE_SAMPLED);
    if (!place->trained)
        return;
    memset(layout->mask.data + start, 1, turn->id_count);
    memcpy(layout->logprobs.data + start * 4, turn->logprobs, turn->id_count * 4);
    layout->trained_count += turn->id_count;
}

static void zeros(struct buf *buf, size_t size)
{
    memset(buf_reserve(buf, size + 4), 0, size);
    buf_added(buf, size);
}

void layout_make(struct samples *samples, size_t row, struct layout *out)
{
    *out = (struct layout){0};
    out->turn_count = row_path(samples, row, NULL);
    OWN(mem) uint32_t *path = mem_alloc(out->turn_count * sizeof *path + 1);
    (void)row_path(samples, row, path);
    out->turns = mem_zero(out->turn_count * sizeof *out->turns + 1);
    /* Each turn adds what its prompt has after `cut`, and its completion. */
    size_t total = 0;
    for (size_t i = 0; i < out->turn_count; i++) {
        const struct turn *turn = &samples->turns[path[i]];
        struct placed *place = &out->turns[i];
        place->turn = path[i];
        place->prompt = total;
        place->completion = total + turn->prompt_count - turn->cut;
        place->end = total = place->completion + turn->id_count;
    }
    out->token_count = total;
    char *ids = buf_reserve(&out->ids, total * 4 + 4);
    size_t first = 0;
    for (size_t i = 0; i < out->turn_count; i++) {
        bool last =
            i + 1 == out->turn_count || samples->turns[path[i + 1]].continuity == SAMPLE_REALIGNED;
        if (!last)
            continue;
        OWN(buf) struct buf seen = {0};
        const struct turn *turn = &samples->turns[path[i]];
        size_t cut = samples->turns[path[first]].cut;
        turn_tokens(samples, path[i], turn_end(turn), &seen);
        memcpy(ids + out->turns[first].prompt * 4, seen.data + cut * 4, (turn_end(turn) - cut) * 4);
        first = i + 1;
    }
    buf_added(&out->ids, total * 4);
    zeros(&out->mask, total);
    zeros(&out->logprobs, total * 4);
    zeros(&out->provenance, total);
    for (size_t i = 0; i < out->turn_count; i++)
        place_turn(samples, row, path[i], &out->turns[i], out);
}

void layout_deinit(struct layout *layout)
{
    buf_deinit(&layout->ids);
    buf_deinit(&layout->mask);
    buf_deinit(&layout->logprobs);
    buf_deinit(&layout->provenance);
    free(layout->turns);
}
