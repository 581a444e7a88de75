/* map.h - bytes to pointer, open addressing, keys copied. A zeroed struct is an empty map. The hash
 * is seeded per process, so that a peer who picks keys cannot pick collisions. */
#ifndef BASE_MAP_H
#define BASE_MAP_H

#include <stddef.h>
#include <stdint.h>

#include "base/str.h"

struct map_slot {
    char *key; /* NULL: free; the tombstone is a marker inside map.c */
    size_t key_size;
    void *value;
    uint64_t hash;
};

struct map {
    struct map_slot *slots;
    size_t capacity, count, used;
};

void map_deinit(struct map *map); /* values are the caller's */
void *map_get(const struct map *map, struct str key);
/* Returns the value that was there before, or NULL. `value` is not NULL. */
void *map_put(struct map *map, struct str key, void *value);
void *map_remove(struct map *map, struct str key);
/* Walks: start with *at = 0; returns NULL at the end. The map must not change meanwhile. */
void *map_next(const struct map *map, size_t *at, struct str *key);
uint64_t map_hash(struct str key);

#endif
