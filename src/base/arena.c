#include "base/arena.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/check.h"
#include "base/mem.h"

struct arena_block {
    struct arena_block *next;
    size_t size;
    size_t used;
    _Alignas(16) char bytes[];
};

#define BLOCK_BYTES 4032
#define FIRST_BLOCK_BYTES 976 /* many arenas hold next to nothing */

static void free_blocks(struct arena_block **blocks)
{
    while (*blocks) {
        struct arena_block *block = *blocks;
        *blocks = block->next;
        free(block);
    }
}

void arena_deinit(struct arena *arena)
{
    free_blocks(&arena->blocks);
    free_blocks(&arena->spare);
    arena->bytes_used = 0;
}

void arena_recycle(struct arena *arena, size_t bytes_max)
{
    size_t kept = 0;
    for (struct arena_block *block = arena->spare; block; block = block->next)
        kept += block->size;
    while (arena->blocks) {
        struct arena_block *block = arena->blocks;
        arena->blocks = block->next;
        kept += block->size;
        if (kept > bytes_max) {
            kept -= block->size;
            free(block);
            continue;
        }
        block->used = 0;
        block->next = arena->spare;
        arena->spare = block;
    }
    arena->bytes_used = 0;
}

size_t arena_room(const struct arena *arena)
{
    size_t room = 0;
    for (struct arena_block *block = arena->blocks; block; block = block->next)
        room += sizeof *block + block->size;
    for (struct arena_block *block = arena->spare; block; block = block->next)
        room += sizeof *block + block->size;
    return room;
}

/* The first spare block that is large enough; NULL: none. */
static struct arena_block *take_spare(struct arena *arena, size_t size)
{
    for (struct arena_block **at = &arena->spare; *at; at = &(*at)->next) {
        struct arena_block *block = *at;
        if (block->size < size)
            continue;
        *at = block->next;
        return block;
    }
    return NULL;
}

void *arena_alloc(struct arena *arena, size_t size)
{
    CHECK(size < SIZE_MAX / 4);
    size = (size + 15) & ~(size_t)15;
    if (arena->bytes_max && arena->bytes_used + size > arena->bytes_max)
        return NULL;
    struct arena_block *block = arena->blocks;
    if (!block || block->size - block->used < size) {
        size_t least = block || size > FIRST_BLOCK_BYTES ? BLOCK_BYTES : FIRST_BLOCK_BYTES;
        size_t room = size > least ? size : least;
        struct arena_block *fresh = take_spare(arena, size);
        if (!fresh) {
            fresh = mem_alloc(sizeof *fresh + room);
            *fresh = (struct arena_block){.size = room};
        }
        if (block && size > BLOCK_BYTES) { /* keep filling the current block */
            fresh->next = block->next;
            block->next = fresh;
        } else {
            fresh->next = block;
            arena->blocks = fresh;
        }
        block = fresh;
    }
    void *memory = block->bytes + block->used;
    block->used += size;
    arena->bytes_used += size;
    return memset(memory, 0, size);
}

char *arena_text(struct arena *arena, struct str s)
{
    char *copy = arena_alloc(arena, s.size + 1);
    if (copy && s.size)
        memcpy(copy, s.data, s.size);
    return copy;
}

struct str arena_str(struct arena *arena, struct str s)
{
    char *copy = arena_text(arena, s);
    return copy ? (struct str){copy, s.size} : STR_NONE;
}

char *arena_format(struct arena *arena, const char *format, ...)
{
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int size = vsnprintf(NULL, 0, format, args);
    va_end(args);
    CHECK(size >= 0);
    char *text = arena_alloc(arena, (size_t)size + 1);
    if (text)
        vsnprintf(text, (size_t)size + 1, format, again);
    va_end(again);
    return text;
}
