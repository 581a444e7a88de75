/* pile.h - bytes that are only ever added: blocks that are never moved nor copied, so that a long
 * life of small additions costs one copy of each byte. A zeroed struct is an empty pile. */
#ifndef BASE_PILE_H
#define BASE_PILE_H

#include <stddef.h>
#include <string.h>

#include "base/buf.h"

struct pile_block;

struct pile {
    char *at;    /* where the next byte goes */
    size_t left; /* how many may */
    size_t size; /* of everything */
    struct pile_block *first, *last;
};

void pile_deinit(struct pile *pile);
void pile_append_far(struct pile *pile, struct str bytes);
static inline void pile_append(struct pile *pile, struct str bytes)
{
    if (bytes.size > pile->left) {
        pile_append_far(pile, bytes);
        return;
    }
    if (bytes.size)
        memcpy(pile->at, bytes.data, bytes.size);
    pile->at += bytes.size;
    pile->left -= bytes.size;
    pile->size += bytes.size;
}
/* The pieces in order, from *block == NULL on; STR_NONE: that was all. */
struct str pile_next(const struct pile *pile, const struct pile_block **block);
void pile_copy(const struct pile *pile, struct buf *out);

#endif
