#include "base/pile.h"

#include <stdlib.h>

#include "base/mem.h"

#define BLOCK_MIN ((size_t)1 << 10)
#define BLOCK_MAX ((size_t)32 << 10)

struct pile_block {
    struct pile_block *next;
    size_t size; /* used; of the last block the pile knows it */
    char bytes[];
};

void pile_deinit(struct pile *pile)
{
    for (struct pile_block *block = pile->first; block;) {
        struct pile_block *next = block->next;
        free(block);
        block = next;
    }
    *pile = (struct pile){0};
}

/* Fills the last block and goes on in a new one; blocks grow with the pile. */
void pile_append_far(struct pile *pile, struct str bytes)
{
    struct str front = str_upto(bytes, pile->left);
    struct str rest = str_from(bytes, front.size);
    if (front.size)
        pile_append(pile, front);
    size_t room = pile->size < BLOCK_MIN ? BLOCK_MIN : pile->size;
    if (room > BLOCK_MAX)
        room = BLOCK_MAX;
    if (room < rest.size)
        room = rest.size;
    struct pile_block *block = mem_alloc(sizeof *block + room);
    block->next = NULL;
    if (pile->last) {
        pile->last->size = (size_t)(pile->at - pile->last->bytes);
        pile->last->next = block;
    } else {
        pile->first = block;
    }
    pile->last = block;
    pile->at = block->bytes;
    pile->left = room;
    pile_append(pile, rest);
}

struct str pile_next(const struct pile *pile, const struct pile_block **block)
{
    const struct pile_block *next = *block ? (*block)->next : pile->first;
    if (!next)
        return STR_NONE;
    *block = next;
    return str_make(next->bytes,
                    next == pile->last ? (size_t)(pile->at - next->bytes) : next->size);
}

void pile_copy(const struct pile *pile, struct buf *out)
{
    const struct pile_block *block = NULL;
    (void)buf_reserve(out, pile->size);
    for (struct str piece; (piece = pile_next(pile, &block)).data;)
        buf_str_append(out, piece);
}
