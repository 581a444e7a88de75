#include "base/map.h"

#include <stdlib.h>
#include <sys/random.h>

#include "base/check.h"
#include "base/mem.h"

static char tombstone;
static uint64_t seed;

__attribute__((constructor)) static void seed_hash(void)
{
    if (getrandom(&seed, sizeof seed, GRND_NONBLOCK) != (ssize_t)sizeof seed)
        seed = (uint64_t)(uintptr_t)&seed * 0x9e3779b97f4a7c15u;
}

static uint64_t mix(uint64_t a, uint64_t b)
{
    unsigned __int128 product = (unsigned __int128)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

uint64_t map_hash(struct str key)
{
    uint64_t state = seed ^ 0xa0761d6478bd642fu;
    const char *at = key.data;
    size_t left = key.size;
    while (left >= 8) {
        uint64_t word;
        memcpy(&word, at, 8);
        state = mix(state ^ word, 0xe7037ed1a0b428dbu ^ seed);
        at += 8;
        left -= 8;
    }
    uint64_t tail = 0;
    if (left)
        memcpy(&tail, at, left);
    return mix(state ^ tail, 0x8ebc6af09c88c6e3u ^ (uint64_t)key.size);
}

static bool live(const struct map_slot *slot)
{
    return slot->key && slot->key != &tombstone;
}

void map_deinit(struct map *map)
{
    for (size_t i = 0; i < map->capacity; i++)
        if (live(&map->slots[i]))
            free(map->slots[i].key);
    free(map->slots);
    *map = (struct map){0};
}

static struct map_slot *find(const struct map *map, struct str key, uint64_t hash)
{
    if (!map->capacity)
        return NULL;
    for (size_t i = hash & (map->capacity - 1);; i = (i + 1) & (map->capacity - 1)) {
        struct map_slot *slot = &map->slots[i];
        if (!slot->key)
            return NULL;
        if (live(slot) && slot->hash == hash && str_equal(str_make(slot->key, slot->key_size), key))
            return slot;
    }
}

static void grow(struct map *map)
{
    size_t capacity = map->count * 4 < 16 ? 16 : map->capacity;
    while (capacity < map->count * 4)
        capacity *= 2;
    struct map old = *map;
    *map = (struct map){.slots = mem_zero(capacity * sizeof *map->slots), .capacity = capacity};
    for (size_t i = 0; i < old.capacity; i++) {
        if (!live(&old.slots[i]))
            continue;
        size_t at = old.slots[i].hash & (capacity - 1);
        while (map->slots[at].key)
            at = (at + 1) & (capacity - 1);
        map->slots[at] = old.slots[i];
        map->count++;
        map->used++;
    }
    free(old.slots);
}

void *map_get(const struct map *map, struct str key)
{
    struct map_slot *slot = find(map, key, map_hash(key));
    return slot ? slot->value : NULL;
}

void *map_put(struct map *map, struct str key, void *value)
{
    CHECK(value);
    uint64_t hash = map_hash(key);
    struct map_slot *slot = find(map, key, hash);
    if (slot) {
        void *before = slot->value;
        slot->value = value;
        return before;
    }
    if ((map->used + 1) * 4 > map->capacity * 3)
        grow(map);
    size_t at = hash & (map->capacity - 1);
    while (live(&map->slots[at]))
        at = (at + 1) & (map->capacity - 1);
    if (!map->slots[at].key)
        map->used++;
    map->slots[at] = (struct map_slot){str_dup(key), key.size, value, hash};
    map->count++;
    return NULL;
}

void *map_remove(struct map *map, struct str key)
{
    struct map_slot *slot = find(map, key, map_hash(key));
    if (!slot)
        return NULL;
    void *value = slot->value;
    free(slot->key);
    slot->key = &tombstone;
    map->count--;
    return value;
}

void *map_next(const struct map *map, size_t *at, struct str *key)
{
    while (*at < map->capacity) {
        const struct map_slot *slot = &map->slots[(*at)++];
        if (!live(slot))
            continue;
        if (key)
            *key = str_make(slot->key, slot->key_size);
        return slot->value;
    }
    return NULL;
}
