/* write.c - making JSON: a writer that sets commas and colons by itself, and splicing.
 *
 * The writer keeps one bit ("a comma is due") and the level for indentation; nesting is the
 * caller's to balance. Splicing copies an object's bytes and changes only the members named, so
 * that numbers, escapes and white space of everything else stay as they were. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/rope.h"
#include "json/tape.h"

#define GAP_BYTES_MIN ((size_t)16 << 10)

static void new_line(struct json_writer *writer)
{
    if (!writer->indent)
        return;
    buf_byte(writer->out, '\n');
    for (int i = 0; i < writer->level * writer->indent; i++)
        buf_byte(writer->out, ' ');
}

/* What must stand before a value or key at this place. */
static void before(struct json_writer *writer)
{
    if (writer->comma) {
        buf_byte(writer->out, ',');
        new_line(writer);
    }
    writer->comma = true;
}

static void begin(struct json_writer *writer, char bracket)
{
    before(writer);
    buf_byte(writer->out, bracket);
    writer->level++;
    writer->comma = false;
}

static void end(struct json_writer *writer, char bracket)
{
    writer->level--;
    if (writer->comma)
        new_line(writer);
    buf_byte(writer->out, bracket);
    writer->comma = true;
}

/* The first thing inside an indented container goes to a line of its own. */
static void lead(struct json_writer *writer)
{
    if (writer->indent && !writer->comma && writer->level > 0 && writer->out->size) {
        char last = writer->out->data[writer->out->size - 1];
        if (last == '{' || last == '[')
            new_line(writer);
    }
}

void json_begin_object(struct json_writer *writer)
{
    lead(writer);
    begin(writer, '{');
}

void json_end_object(struct json_writer *writer)
{
    end(writer, '}');
}

void json_begin_array(struct json_writer *writer)
{
    lead(writer);
    begin(writer, '[');
}

void json_end_array(struct json_writer *writer)
{
    end(writer, ']');
}

static void put_escape(struct buf *out, unsigned char byte)
{
    switch (byte) {
    case '"':
        buf_append(out, "\\\"", 2);
        return;
    case '\\':
        buf_append(out, "\\\\", 2);
        return;
    case '\b':
        buf_append(out, "\\b", 2);
        return;
    case '\f':
        buf_append(out, "\\f", 2);
        return;
    case '\n':
        buf_append(out, "\\n", 2);
        return;
    case '\r':
        buf_append(out, "\\r", 2);
        return;
    case '\t':
        buf_append(out, "\\t", 2);
        return;
    default: {
        static const char digits[] = "0123456789abcdef";
        char text[6] = {'\\', 'u', '0', '0', digits[byte >> 4], digits[byte & 15]};
        buf_append(out, text, sizeof text);
    }
    }
}

/* A run without quotes, backslashes and control characters. */
static void put_run(struct buf *out, const char *at, const char *end_of_run, bool high)
{
    if (!high) {
        buf_append(out, at, (size_t)(end_of_run - at));
        return;
    }
    const char *good = at;
    while (at < end_of_run) {
        unsigned size = json_utf8_size(at, end_of_run);
        if (size) {
            at += size;
            continue;
        }
        buf_append(out, good, (size_t)(at - good));
        buf_append(out, "\xef\xbf\xbd", 3);
        good = ++at;
    }
    buf_append(out, good, (size_t)(at - good));
}

#if defined(__SSE2__)
static bool is_plain_block(__m128i block)
{
    const __m128i control = _mm_set1_epi8(0x1f);
    __m128i stop = _mm_or_si128(_mm_cmpeq_epi8(block, _mm_set1_epi8('"')),
                                _mm_cmpeq_epi8(block, _mm_set1_epi8('\\')));
    stop = _mm_or_si128(stop, _mm_cmpeq_epi8(_mm_max_epu8(block, control), control));
    return _mm_movemask_epi8(_mm_or_si128(stop, block)) == 0; /* its high bits: not ASCII */
}

/* 4 to 15 bytes, as a block in which some of them are there twice. */
static __m128i short_block(const char *at, size_t size)
{
    uint64_t words[2];
    uint32_t halves[2];
    if (size >= sizeof words[0]) {
        memcpy(&words[0], at, sizeof words[0]);
        memcpy(&words[1], at + size - sizeof words[1], sizeof words[1]);
        return _mm_set_epi64x((long long)words[0], (long long)words[1]);
    }
    memcpy(&halves[0], at, sizeof halves[0]);
    memcpy(&halves[1], at + size - sizeof halves[1], sizeof halves[1]);
    return _mm_set_epi32((int)halves[0], (int)halves[1], (int)halves[0], (int)halves[1]);
}
#endif

/* ASCII without quotes, backslashes and control characters, which most of what is written is. The
 * last block overlaps the one before it. */
static bool is_plain(const char *at, size_t size)
{
#if defined(__SSE2__)
    const char *last = at + size - 16;
    if (size >= 16) {
        for (; at < last; at += 16)
            if (!is_plain_block(_mm_loadu_si128((const __m128i *)(const void *)at)))
                return false;
        return is_plain_block(_mm_loadu_si128((const __m128i *)(const void *)last));
    }
    if (size >= 4)
        return is_plain_block(short_block(at, size));
#endif
    bool high = false;
    return json_plain_end(at, at + size, &high) == at + size && !high;
}

void json_quote(struct buf *out, struct str text)
{
    const char *at = text.size ? text.data : "", *end_of_text = at + text.size;
    if (is_plain(at, text.size)) {
        char *put = buf_reserve(out, text.size + 2);
        put[0] = put[text.size + 1] = '"';
        memcpy(put + 1, at, text.size);
        buf_added(out, text.size + 2);
        return;
    }
    buf_byte(out, '"');
    while (at < end_of_text) {
        bool high = false;
        const char *stop = json_plain_end(at, end_of_text, &high);
        put_run(out, at, stop, high);
        if (stop < end_of_text)
            put_escape(out, (unsigned char)*stop++);
        at = stop;
    }
    buf_byte(out, '"');
}

void json_key_str(struct json_writer *writer, struct str key)
{
    if (!writer->indent && is_plain(key.data, key.size)) { /* in one piece */
        char *start = buf_reserve(writer->out, key.size + 4), *put = start;
        if (writer->comma)
            *put++ = ',';
        *put++ = '"';
        memcpy(put, key.data, key.size);
        put += key.size;
        *put++ = '"';
        *put++ = ':';
        buf_added(writer->out, (size_t)(put - start));
        writer->comma = false;
        return;
    }
    lead(writer);
    before(writer);
    json_quote(writer->out, key);
    buf_byte(writer->out, ':');
    if (writer->indent)
        buf_byte(writer->out, ' ');
    writer->comma = false;
}

void json_key(struct json_writer *writer, const char *key)
{
    json_key_str(writer, str_of(key));
}

void json_put_str(struct json_writer *writer, struct str value)
{
    lead(writer);
    before(writer);
    json_quote(writer->out, value);
}

void json_put_raw(struct json_writer *writer, struct str json)
{
    lead(writer);
    before(writer);
    buf_str_append(writer->out, json);
}

void json_put_kept(struct json_writer *writer, struct str json, void *owner,
                   void (*keep)(void *owner), void (*release)(void *owner))
{
    if (!writer->rope || json.size < ROPE_PIECE_BYTES_MIN) {
        json_put_raw(writer, json);
        return;
    }
    lead(writer);
    before(writer);
    keep(owner);
    rope_hang(writer->rope, json, owner, release);
}

void json_put_text(struct json_writer *writer, const char *value)
{
    if (value)
        json_put_str(writer, str_of(value));
    else
        json_put_raw(writer, STR("null"));
}

void json_put_int(struct json_writer *writer, long long value)
{
    char text[24];
    size_t at = sizeof text;
    unsigned long long left = value < 0 ? 0 - (unsigned long long)value : (unsigned long long)value;
    do {
        text[--at] = (char)('0' + left % 10);
        left /= 10;
    } while (left);
    if (value < 0)
        text[--at] = '-';
    json_put_raw(writer, str_make(text + at, sizeof text - at));
}

void json_put_double(struct json_writer *writer, double value)
{
    if (!isfinite(value)) {
        json_put_null(writer);
        return;
    }
    char text[40];
    int size = 0;
    for (int digits = 15; digits <= 17; digits++) {
        size = snprintf(text, sizeof text, "%.*g", digits, value);
        if (strtod(text, NULL) == value)
            break;
    }
    json_put_raw(writer, str_make(text, (size_t)size));
}

void json_put_bool(struct json_writer *writer, bool value)
{
    json_put_raw(writer, value ? STR("true") : STR("false"));
}

void json_put_null(struct json_writer *writer)
{
    json_put_raw(writer, STR("null"));
}

void json_set_str(struct json_writer *writer, const char *key, struct str value)
{
    json_key(writer, key);
    json_put_str(writer, value);
}

void json_set_text(struct json_writer *writer, const char *key, const char *value)
{
    json_key(writer, key);
    json_put_text(writer, value);
}

void json_set_int(struct json_writer *writer, const char *key, long long value)
{
    json_key(writer, key);
    json_put_int(writer, value);
}

void json_set_double(struct json_writer *writer, const char *key, double value)
{
    json_key(writer, key);
    json_put_double(writer, value);
}

void json_set_bool(struct json_writer *writer, const char *key, bool value)
{
    json_key(writer, key);
    json_put_bool(writer, value);
}

void json_set_null(struct json_writer *writer, const char *key)
{
    json_key(writer, key);
    json_put_null(writer);
}

void json_set_raw(struct json_writer *writer, const char *key, struct str json)
{
    json_key(writer, key);
    json_put_raw(writer, json);
}

static const struct json_edit *find_edit(struct json key, const struct json_edit *edits,
                                         size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (json_is(key, edits[i].key))
            return &edits[i];
    return NULL;
}

static void put_member(struct buf *out, const struct json_edit *edit, bool comma)
{
    if (comma)
        buf_byte(out, ',');
    json_quote(out, str_of(edit->key));
    buf_byte(out, ':');
    buf_str_append(out, edit->value);
}

void json_splice_around(struct json object, const struct json_edit *edits, size_t count,
                        struct buf *out, struct json_gap *gap)
{
    struct str raw = json_raw(object);
    if (gap)
        *gap = (struct json_gap){0};
    if (json_type(object) != JSON_OBJECT) {
        buf_str_append(out, raw);
        return;
    }
    size_t room = raw.size;
    for (size_t i = 0; i < count; i++)
        room += edits[i].value.data ? edits[i].value.size + strlen(edits[i].key) + 4 : 0;
    if (!gap)
        (void)buf_reserve(out, room);
    const char *at = raw.data + 1; /* end of what was looked at so far */
    buf_byte(out, '{');
    bool any = false;
    JSON_EACH (item, object) {
        struct str key = json_raw(item.key), value = json_raw(item.value);
        const struct json_edit *edit = find_edit(item.key, edits, count);
        if (!edit || edit->value.data) {
            /* What stands between the previous member and this key holds a comma, unless this is
             * the first. */
            if (any || at == raw.data + 1)
                buf_append(out, at, (size_t)(key.data - at));
            buf_append(out, key.data, (size_t)(value.data - key.data));
            if (gap && !gap->bytes.data && !edit && value.size >= GAP_BYTES_MIN)
                *gap = (struct json_gap){out->size, value};
            else
                buf_str_append(out, edit ? edit->value : value);
            any = true;
        }
        at = value.data + value.size;
    }
    for (size_t i = 0; i < count; i++) {
        if (!edits[i].value.data || json_exists(json_get(object, edits[i].key)))
            continue;
        put_member(out, &edits[i], any);
        any = true;
    }
    buf_append(out, at, (size_t)(raw.data + raw.size - at));
}

void json_splice(struct json object, const struct json_edit *edits, size_t count, struct buf *out)
{
    json_splice_around(object, edits, count, out, NULL);
}
