/* delta.c - what a request has in common with the one before it. Pure.
 *
 * Nearly always a conversation grew at its end: the bytes shared at the front, those shared at the
 * back and what is new between them say all. When something changed further ahead as well (a date
 * in the system prompt, a tool result that was cut, messages in another order), what lies between
 * front and back is compared once more, by blocks:
 *
 *     parent   |= front =|x| block | block | block | ... |y|= back =|
 *     body     |= front =|new| copied ............ |new| copied |= back =|
 *
 * A table holds where the parent's blocks begin, by a hash of their first SEED bytes; the body is
 * read byte by byte until such a hash is met, and what is the same there is followed in both
 * directions. So everything of BLOCK + SEED bytes that stayed together is found, wherever it went.
 *
 * The cost has a bound whatever is compared: at most BLOCKS_MAX blocks are in the table (768 KiB;
 * 100 KiB for a body of 600 KB), the longer nothing is found the fewer places are looked at, and
 * the number of comparisons is limited by the body's size. */
#include <string.h>

#include "base/mem.h"
#include "store/inner.h"

#define BLOCK 64u
#define BLOCKS_MAX ((size_t)1 << 16)
#define SEED 32u             /* bytes that have to be the same before a look is worth it */
#define COPY_BYTES_MIN 48u   /* a shorter copy is not worth its piece */
#define MIDDLE_BYTES_MIN 256 /* less is written as it is */
#define CANDIDATES_MAX 8     /* blocks with the same hash that are tried */
#define MISSES_PER_STEP 8192 /* bytes without a find before every second place is left out */
#define TRIES_MIN 4096       /* comparisons that are always allowed */
#define STEP_MAX 63          /* odd steps only: they meet every position within a block */

struct table {
    uint32_t *heads; /* by hash: the first block, counted from 1 */
    uint32_t *next;  /* by block: the next one with the same hash, from 1 */
    uint32_t shift;
    size_t start, stride; /* where they are in the parent */
};

size_t delta_front(struct str a, struct str b)
{
    size_t max = a.size < b.size ? a.size : b.size, at = 0;
    while (max - at >= 256 && memcmp(a.data + at, b.data + at, 256) == 0)
        at += 256;
    while (max - at >= 8 && memcmp(a.data + at, b.data + at, 8) == 0)
        at += 8;
    while (at < max && a.data[at] == b.data[at])
        at++;
    return at;
}

static size_t shared_back(struct str a, struct str b)
{
    size_t max = a.size < b.size ? a.size : b.size, at = 0;
    while (max - at >= 8 && memcmp(a.data + a.size - at - 8, b.data + b.size - at - 8, 8) == 0)
        at += 8;
    while (at < max && a.data[a.size - at - 1] == b.data[b.size - at - 1])
        at++;
    return at;
}

static uint64_t word(const char *at)
{
    uint64_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

/* Four products that do not wait for each other. */
static size_t hash(const struct table *table, const char *at)
{
    uint64_t sum = word(at) * 0x9e3779b97f4a7c15u + word(at + 8) * 0xc2b2ae3d27d4eb4fu +
                   word(at + 16) * 0x165667b19e3779f9u + word(at + 24) * 0x27d4eb2f165667c5u;
    return ((sum ^ sum >> 29) * 0x9fb21c651e98df25u) >> table->shift;
}

static void own_table(struct table *table)
{
    own_mem(&table->heads);
    own_mem(&table->next);
}

/* The parent's blocks from `start` on, the last one first, so that lists begin with the first. */
static void table_fill(struct table *table, struct str parent, size_t start, size_t end)
{
    table->start = start;
    table->stride = BLOCK;
    while ((end - start) / table->stride >= BLOCKS_MAX)
        table->stride += BLOCK;
    size_t blocks = (end - start - SEED) / table->stride + 1;
    uint32_t bits = 8;
    while (((size_t)1 << bits) < blocks)
        bits++;
    table->shift = 64 - bits;
    table->heads = mem_zero(sizeof *table->heads << bits);
    table->next = mem_alloc(sizeof *table->next * blocks);
    for (size_t block = blocks; block > 0; block--) {
        size_t slot = hash(table, parent.data + start + (block - 1) * table->stride);
        table->next[block - 1] = table->heads[slot];
        table->heads[slot] = (uint32_t)block;
    }
}

/* From where on in the parent the most is the same as at `at` of the body, up to its `end`. Returns
 * how much it is; 0: there is nothing. `expected` is where it is when nothing was moved. */
static size_t longest(const struct table *table, struct str parent, struct str rest,
                      size_t expected, size_t *tries, size_t *from)
{
    uint32_t block = table->heads[hash(table, rest.data)];
    size_t best = 0, place = expected;
    for (int i = 0; block && i <= CANDIDATES_MAX && *tries && best < rest.size; i++, --*tries) {
        if (i > 0) {
            place = table->start + (block - 1) * table->stride;
            block = table->next[block - 1];
        }
        if (place >= parent.size || best >= parent.size - place ||
            parent.data[place + best] != rest.data[best])
            continue;
        size_t same = delta_front(str_from(parent, place), rest);
        if (same > best) {
            best = same;
            *from = place;
        }
    }
    return best;
}

static void add_piece(struct delta *delta, const struct delta_piece *piece)
{
    buf_append(&delta->pieces, piece, sizeof *piece);
    delta->fresh += piece->fresh;
}

/* Between front and back. The piece that is being made has its copy already; what is new behind it
 * begins at `fresh`. */
static void find_pieces(struct str parent, struct str body, struct delta *delta)
{
    OWN(table) struct table table = {0};
    table_fill(&table, parent, delta->front, parent.size - delta->back);
    struct delta_piece piece = {.size = (uint32_t)delta->front};
    size_t fresh = delta->front, at = fresh, end = body.size - delta->back;
    size_t tries = TRIES_MIN + body.size / 8;
    while (end - at >= SEED && tries) {
        size_t from = 0, before = 0, expected = (size_t)piece.from + piece.size + (at - fresh);
        size_t same =
            longest(&table, parent, str_make(body.data + at, end - at), expected, &tries, &from);
        while (same && before < at - fresh && before < from &&
               body.data[at - before - 1] == parent.data[from - before - 1])
            before++;
        if (same + before < COPY_BYTES_MIN) {
            size_t step = 1 + (at - fresh) / MISSES_PER_STEP * 2;
            at += step < STEP_MAX ? step : STEP_MAX;
            at = at < end ? at : end;
            continue;
        }
        piece.fresh = (uint32_t)(at - before - fresh);
        add_piece(delta, &piece);
        piece = (struct delta_piece){.from = (uint32_t)(from - before),
                                     .size = (uint32_t)(same + before)};
        fresh = at += same;
    }
    piece.fresh = (uint32_t)(end - fresh);
    add_piece(delta, &piece);
    if (!delta->back)
        return;
    piece = (struct delta_piece){.from = (uint32_t)(parent.size - delta->back),
                                 .size = (uint32_t)delta->back};
    add_piece(delta, &piece);
}

void delta_find(struct str parent, struct str body, size_t front, struct delta *delta)
{
    size_t back = shared_back(str_from(parent, front), str_from(body, front));
    size_t middle = body.size - front - back;
    *delta = (struct delta){.front = front, .back = back};
    if (middle >= MIDDLE_BYTES_MIN && parent.size - front - back >= MIDDLE_BYTES_MIN) {
        find_pieces(parent, body, delta);
        if (delta->pieces.size + delta->fresh + BLOCK < middle)
            return;
        buf_deinit(&delta->pieces);
    }
    delta->fresh = middle;
}

void delta_ends(struct delta *delta, size_t parent_size)
{
    struct delta_piece front = {.size = (uint32_t)delta->front, .fresh = (uint32_t)delta->fresh};
    struct delta_piece back = {.from = (uint32_t)(parent_size - delta->back),
                               .size = (uint32_t)delta->back};
    if (delta->pieces.size)
        return;
    buf_append(&delta->pieces, &front, sizeof front);
    if (delta->back)
        buf_append(&delta->pieces, &back, sizeof back);
}

bool delta_valid(struct str pieces, size_t fresh)
{
    uint64_t sum = 0;
    struct delta_piece piece;
    for (size_t at = 0; at < pieces.size; at += sizeof piece) {
        memcpy(&piece, pieces.data + at, sizeof piece);
        sum += piece.fresh;
    }
    return sum == fresh;
}

bool delta_apply(struct str parent, struct str pieces, struct str fresh, struct buf *out)
{
    struct delta_piece piece;
    uint64_t total = 0;
    for (size_t at = 0; at < pieces.size; at += sizeof piece) {
        memcpy(&piece, pieces.data + at, sizeof piece);
        total += (uint64_t)piece.size + piece.fresh;
        if (piece.from > parent.size || piece.size > parent.size - piece.from ||
            piece.fresh > fresh.size || total > RECORD_BYTES_MAX)
            return false;
        buf_append(out, parent.data + piece.from, piece.size);
        buf_append(out, fresh.data, piece.fresh);
        fresh = str_from(fresh, piece.fresh);
    }
    return fresh.size == 0;
}
