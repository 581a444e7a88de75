/* arena.h - memory of one request: allocated piece by piece, gone at once, with a maximum.
 * A zeroed struct with `bytes_max` set is ready. arena_alloc returns NULL only past the maximum. */
#ifndef BASE_ARENA_H
#define BASE_ARENA_H

#include <stddef.h>

#include "base/str.h"

struct arena_block;

struct arena {
    struct arena_block *blocks, *spare;
    size_t bytes_used;
    size_t bytes_max; /* 0: no maximum */
};

void arena_deinit(struct arena *arena);
/* Everything in it is gone, its memory is kept for what comes; more than `bytes_max` is given back.
 */
void arena_recycle(struct arena *arena, size_t bytes_max);
size_t arena_room(const struct arena *arena); /* bytes it holds, used or not */
static inline void own_arena(struct arena *arena)
{
    arena_deinit(arena);
}
void *arena_alloc(struct arena *arena, size_t size);     /* zeroed, aligned to 16 */
struct str arena_str(struct arena *arena, struct str s); /* a terminated copy */
char *arena_text(struct arena *arena, struct str s);
char *arena_format(struct arena *arena, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#endif
