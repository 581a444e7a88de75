/* tape.h - private to the json room: one node per value, in the order of the source. */
#ifndef JSON_TAPE_H
#define JSON_TAPE_H

#include "json/json.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

/* An object's members follow it as key, value, key, value; an array's elements follow it one by
 * one. `next` is the index after the whole subtree; while a container is open it holds the parent.
 */
struct json_node {
    uint32_t start, size; /* bytes in the source; strings include their quotes */
    uint32_t next;
    uint32_t info; /* 3 bits type, 1 bit "has escapes", 28 bits members or elements */
};
_Static_assert(sizeof(struct json_node) == JSON_NODE_BYTES, "a node is 16 bytes");

#define JSON_ESCAPED 8u
#define JSON_COUNT_SHIFT 4

static inline enum json_type node_type(const struct json_node *node)
{
    return (enum json_type)(node->info & 7u);
}

static inline uint32_t node_count(const struct json_node *node)
{
    return node->info >> JSON_COUNT_SHIFT;
}

/* number.c: text that is a number by the grammar. What strtod() makes of it. */
double json_number(struct str raw);
/* Only when it is written as an integer of at most 18 digits. */
bool json_number_int(struct str raw, long long *out);

/* Where a run of plain string bytes ends: at a quote, a backslash or a control character, or at
 * `end`. Sets *high when a byte outside ASCII was passed. */
static inline const char *json_plain_end(const char *at, const char *end, bool *high)
{
#if defined(__SSE2__)
    const __m128i quote = _mm_set1_epi8('"');
    const __m128i backslash = _mm_set1_epi8('\\');
    const __m128i control = _mm_set1_epi8(0x1f);
    while (end - at >= 16) {
        __m128i block = _mm_loadu_si128((const __m128i *)(const void *)at);
        __m128i stop = _mm_or_si128(_mm_cmpeq_epi8(block, quote), _mm_cmpeq_epi8(block, backslash));
        stop = _mm_or_si128(stop, _mm_cmpeq_epi8(_mm_max_epu8(block, control), control));
        unsigned hits = (unsigned)_mm_movemask_epi8(stop);
        unsigned above = (unsigned)_mm_movemask_epi8(block);
        if (hits) {
            unsigned first = (unsigned)__builtin_ctz(hits);
            *high |= (above & ((1u << first) - 1)) != 0;
            return at + first;
        }
        *high |= above != 0;
        at += 16;
    }
#endif
    for (; at < end; at++) {
        unsigned char byte = (unsigned char)*at;
        if (byte == '"' || byte == '\\' || byte < 0x20)
            break;
        *high |= byte >= 0x80;
    }
    return at;
}

/* The length of the UTF-8 sequence at `at` (RFC 3629), or 0 when there is none. at < end. */
static inline unsigned json_utf8_size(const char *at, const char *end)
{
    unsigned char first = (unsigned char)at[0];
    if (first < 0x80)
        return 1;
    if (first < 0xc2 || first > 0xf4)
        return 0;
    unsigned size = first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
    if (end - at < (long)size)
        return 0;
    unsigned char second = (unsigned char)at[1];
    unsigned char low = 0x80, top = 0xbf;
    if (first == 0xe0)
        low = 0xa0;
    if (first == 0xed)
        top = 0x9f;
    if (first == 0xf0)
        low = 0x90;
    if (first == 0xf4)
        top = 0x8f;
    if (second < low || second > top)
        return 0;
    for (unsigned i = 2; i < size; i++)
        if (((unsigned char)at[i] & 0xc0) != 0x80)
            return 0;
    return size;
}

#endif
