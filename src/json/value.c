/* value.c - looking around on the tape: types, members, strings, numbers.
 *
 * A value that is not there has no document; every question about it answers "nothing", so chains
 * of look-ups need no checks in between. Strings are decoded only when they hold escapes. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include "base/mem.h"
#include "json/tape.h"

static const struct json nothing = {0};

static inline const struct json_node *node_of(struct json value)
{
    return value.doc ? &value.doc->nodes[value.at] : NULL;
}

struct json json_root(const struct json_doc *doc)
{
    return doc->count ? (struct json){doc, 0} : nothing;
}

/* The first node that begins at or behind that byte: they are in the order of the source. */
static size_t node_at(const struct json_doc *doc, size_t offset)
{
    size_t low = 0, high = doc->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (doc->nodes[middle].start < offset)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

struct json json_at_byte(const struct json_doc *doc, size_t offset)
{
    size_t low = node_at(doc, offset);
    return low < doc->count && doc->nodes[low].start == offset ? (struct json){doc, (uint32_t)low}
                                                               : nothing;
}

enum json_type json_type(struct json value)
{
    const struct json_node *node = node_of(value);
    return node ? node_type(node) : JSON_NONE;
}

bool json_exists(struct json value)
{
    return value.doc != NULL;
}

size_t json_size(struct json container)
{
    const struct json_node *node = node_of(container);
    return node ? node_count(node) : 0;
}

struct str json_raw(struct json value)
{
    const struct json_node *node = node_of(value);
    return node ? str_make(value.doc->source.data + node->start, node->size) : STR_NONE;
}

struct json_item json_first(struct json container)
{
    const struct json_node *node = node_of(container);
    if (!node || node_count(node) == 0)
        return (struct json_item){0};
    struct json inside = {container.doc, container.at + 1};
    struct json_item item = {.left = node_count(node)};
    if (node_type(node) == JSON_OBJECT) {
        item.key = inside;
        inside.at++;
    }
    item.value = inside;
    return item;
}

struct json_item json_following(struct json_item item)
{
    if (item.left <= 1)
        return (struct json_item){0};
    struct json after = {item.value.doc, node_of(item.value)->next};
    struct json_item next = {.left = item.left - 1};
    if (json_exists(item.key)) {
        next.key = after;
        after.at++;
    }
    next.value = after;
    return next;
}

struct json json_last(struct json array)
{
    const struct json_doc *doc = array.doc;
    if (doc && doc->widest_last && doc->widest == array.at)
        return (struct json){doc, doc->widest_last};
    return json_size(array) ? json_at(array, json_size(array) - 1) : nothing;
}

struct json_item json_marked(struct json array, size_t *count)
{
    const struct json_doc *doc = array.doc;
    *count = 0;
    if (!doc || !doc->widest_mark || doc->widest != array.at || json_type(array) != JSON_ARRAY)
        return (struct json_item){0};
    *count = doc->widest_mark_count;
    return (struct json_item){.value = {doc, doc->widest_mark},
                              .left = (uint32_t)(json_size(array) + 1 - *count)};
}

struct json_item json_from(struct json array, size_t index, size_t byte)
{
    if (index >= json_size(array))
        return (struct json_item){0};
    struct json value = {array.doc, (uint32_t)node_at(array.doc, byte)};
    return (struct json_item){.value = value, .left = (uint32_t)(json_size(array) - index)};
}

static unsigned hex_of(const char *digits)
{
    unsigned value = 0;
    for (int i = 0; i < 4; i++) {
        unsigned char byte = (unsigned char)digits[i];
        value = value << 4 | (byte <= '9' ? byte - (unsigned)'0' : (byte | 0x20u) - 'a' + 10);
    }
    return value;
}

static char *put_utf8(char *to, unsigned point)
{
    if (point < 0x80) {
        *to++ = (char)point;
    } else if (point < 0x800) {
        *to++ = (char)(0xc0 | point >> 6);
        *to++ = (char)(0x80 | (point & 63));
    } else if (point < 0x10000) {
        *to++ = (char)(0xe0 | point >> 12);
        *to++ = (char)(0x80 | (point >> 6 & 63));
        *to++ = (char)(0x80 | (point & 63));
    } else {
        *to++ = (char)(0xf0 | point >> 18);
        *to++ = (char)(0x80 | (point >> 12 & 63));
        *to++ = (char)(0x80 | (point >> 6 & 63));
        *to++ = (char)(0x80 | (point & 63));
    }
    return to;
}

/* One \uXXXX or a surrogate pair at `at`, which follows the "\u". A lone surrogate becomes U+FFFD.
 */
static const char *take_unicode(const char *at, const char *end, char **to)
{
    unsigned point = hex_of(at);
    at += 4;
    if (point >= 0xd800 && point < 0xdc00 && end - at >= 6 && at[0] == '\\' && at[1] == 'u') {
        unsigned low = hex_of(at + 2);
        if (low >= 0xdc00 && low < 0xe000) {
            point = 0x10000 + ((point - 0xd800) << 10) + (low - 0xdc00);
            at += 6;
        }
    }
    if (point >= 0xd800 && point < 0xe000)
        point = 0xfffd;
    *to = put_utf8(*to, point);
    return at;
}

/* Copies plain bytes up to the next escape, or to the end; returns where that is in the source. */
static const char *copy_plain(const char *at, const char *end, char **to)
{
    char *out = *to;
#if defined(__SSE2__)
    const __m128i backslash = _mm_set1_epi8('\\');
    while (end - at >= 16) {
        /* A whole block is written; what is beyond the escape is overwritten by what follows, and
         * the output has room for it because it is never longer than the source. */
        __m128i block = _mm_loadu_si128((const __m128i *)(const void *)at);
        _mm_storeu_si128((__m128i *)(void *)out, block);
        unsigned hits = (unsigned)_mm_movemask_epi8(_mm_cmpeq_epi8(block, backslash));
        unsigned plain = hits ? (unsigned)__builtin_ctz(hits) : 16;
        at += plain;
        out += plain;
        if (hits) {
            *to = out;
            return at;
        }
    }
#endif
    while (at < end && *at != '\\')
        *out++ = *at++;
    *to = out;
    return at;
}

/* Decodes checked string content; the result is never longer than the source. */
static size_t decode(struct str content, char *out)
{
    static const char meaning[256] = {['b'] = '\b', ['f'] = '\f', ['n'] = '\n',  ['r'] = '\r',
                                      ['t'] = '\t', ['"'] = '"',  ['\\'] = '\\', ['/'] = '/'};
    const char *at = content.data, *end = at + content.size;
    char *to = out;
    while ((at = copy_plain(at, end, &to)) < end) {
        unsigned char letter = (unsigned char)at[1];
        at += 2;
        if (letter == 'u')
            at = take_unicode(at, end, &to);
        else
            *to++ = meaning[letter];
    }
    return (size_t)(to - out);
}

static struct str content_of(const struct json_doc *doc, const struct json_node *node)
{
    return str_make(doc->source.data + node->start + 1, node->size - 2);
}

struct str json_text_str(struct json_text text, struct arena *arena)
{
    if (!text.escaped)
        return text.content;
    char *decoded = arena_alloc(arena, text.content.size + 1);
    if (!decoded)
        return STR_NONE;
    return str_make(decoded, decode(text.content, decoded));
}

struct str json_str(struct json value, struct arena *arena)
{
    const struct json_node *node = node_of(value);
    if (!node || node_type(node) != JSON_STRING)
        return STR_NONE;
    return json_text_str(
        (struct json_text){content_of(value.doc, node), (node->info & JSON_ESCAPED) != 0}, arena);
}

static bool string_is(const struct json_doc *doc, const struct json_node *node, struct str text)
{
    struct str content = content_of(doc, node);
    if (!(node->info & JSON_ESCAPED))
        return str_equal(content, text);
    /* An escape is at most six bytes per byte it stands for. */
    if (content.size <= text.size || content.size / 6 > text.size)
        return false;
    char small[256];
    OWN(mem) char *large = content.size > sizeof small ? mem_alloc(content.size) : NULL;
    char *decoded = large ? large : small;
    return str_equal(str_make(decoded, decode(content, decoded)), text);
}

bool json_is(struct json value, const char *text)
{
    const struct json_node *node = node_of(value);
    return node && node_type(node) == JSON_STRING && string_is(value.doc, node, str_of(text));
}

struct json json_get_str(struct json object, struct str key)
{
    const struct json_node *node = node_of(object);
    if (!node || node_type(node) != JSON_OBJECT)
        return nothing;
    struct json found = nothing;
    const struct json_node *nodes = object.doc->nodes;
    uint32_t at = object.at + 1;
    for (uint32_t left = node_count(node); left; left--) {
        /* Most keys are ruled out by their length alone. */
        bool may_be = nodes[at].size == key.size + 2 || nodes[at].info & JSON_ESCAPED;
        if (may_be && string_is(object.doc, &nodes[at], key))
            found = (struct json){object.doc, at + 1};
        at = nodes[at + 1].next;
    }
    return found;
}

struct json json_get(struct json object, const char *key)
{
    return json_get_str(object, str_of(key));
}

struct json json_at(struct json array, size_t index)
{
    const struct json_node *node = node_of(array);
    if (!node || node_type(node) != JSON_ARRAY || index >= node_count(node))
        return nothing;
    uint32_t at = array.at + 1;
    while (index--)
        at = array.doc->nodes[at].next;
    return (struct json){array.doc, at};
}

bool json_true(struct json value)
{
    return json_type(value) == JSON_TRUE;
}

bool json_double(struct json value, double *out)
{
    if (json_type(value) != JSON_NUMBER)
        return false;
    double number = json_number(json_raw(value));
    if (!isfinite(number))
        return false;
    *out = number;
    return true;
}

bool json_int(struct json value, long long *out)
{
    if (json_type(value) != JSON_NUMBER)
        return false;
    struct str raw = json_raw(value);
    if (json_number_int(raw, out) || str_to_long(raw, out))
        return true;
    /* 1e3 and 2.0 are integers too, as far as a double can tell. */
    double number;
    if (!json_double(value, &number) || number != floor(number) ||
        fabs(number) > 9007199254740992.0)
        return false;
    *out = (long long)number;
    return true;
}

long long json_int_or(struct json value, long long fallback)
{
    long long number;
    return json_int(value, &number) ? number : fallback;
}

double json_double_or(struct json value, double fallback)
{
    double number;
    return json_double(value, &number) ? number : fallback;
}
