/* json.h - the door of the json room: read without loss, look around, splice, write.
 *
 * json_read() makes a tape: one node per value with the place of its bytes in the source, so that
 * numbers, escapes, key order and white space are never lost. The document borrows the source,
 * which must outlive it. Values are small handles passed by value; looking up something that is not
 * there gives a value of type JSON_NONE on which every other question answers "nothing". */
#ifndef JSON_H
#define JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/buf.h"
#include "base/str.h"

struct err;
struct rope;

enum json_type {
    JSON_NONE,
    JSON_NULL,
    JSON_FALSE,
    JSON_TRUE,
    JSON_NUMBER,
    JSON_STRING,
    JSON_ARRAY,
    JSON_OBJECT,
};

struct json_node;
#define JSON_NODE_BYTES 16u /* of the tape, for each value and each key */

/* Nobody needs longer ones, and what is read here is handed on: readers elsewhere stumble over them
 * (Python refuses integers of more than 4300 digits, and with one the whole text around it). */
#define JSON_NUMBER_BYTES_MAX 1024

struct json_doc {
    struct str source;
    struct json_node *nodes;
    size_t count, capacity;
    /* The container with the most members, and the last value in it; 0: there is none. What grows
     * usually grows there. */
    uint32_t widest, widest_last;
    /* The last value in it that a text before this one had, and how many there are up to it; 0:
     * not known. Who compares the next text begins there. */
    uint32_t widest_mark, widest_mark_count;
};

struct json {
    const struct json_doc *doc;
    uint32_t at;
};

struct json_limits {
    uint32_t depth_max; /* 0: 128 */
    uint32_t nodes_max; /* 0: 16 million */
};

/* Strict RFC 8259; duplicate keys are kept (the last one wins on look-up); invalid UTF-8 is an
 * error. The error text names line and column. `doc` may be zeroed or used before (its memory is
 * reused). `limits` may be NULL. */
int json_read(struct json_doc *doc, struct str source, const struct json_limits *limits,
              struct err *err);
/* The same, faster, for a text whose first `shared` bytes are those of the text that `before` is
 * the tape of: only what follows them is read. The result is the same, byte for byte and error for
 * error; both must be read with the same limits. `before` may be NULL, or `doc` itself, whose tape
 * then becomes the new one without being copied; after an error it is gone. */
int json_read_on(struct json_doc *doc, struct str source, const struct json_doc *before,
                 size_t shared, const struct json_limits *limits, struct err *err);
/* Gives back what the tape does not need, for one that is kept; some room to grow stays. */
void json_doc_trim(struct json_doc *doc);
void json_doc_deinit(struct json_doc *doc);
static inline void own_json_doc(struct json_doc *doc)
{
    json_doc_deinit(doc);
}

struct json json_root(const struct json_doc *doc);
/* The value that begins at that byte of the source; JSON_NONE: none does. */
struct json json_at_byte(const struct json_doc *doc, size_t offset);
enum json_type json_type(struct json value);
bool json_exists(struct json value); /* type is not JSON_NONE */
struct json json_get(struct json object, const char *key);
struct json json_get_str(struct json object, struct str key);
struct json json_at(struct json array, size_t index);
size_t json_size(struct json container); /* members or elements; 0 for others */
struct str json_raw(struct json value);  /* its exact bytes in the source */

/* Walks members and elements in order:  JSON_EACH(item, array) { item.key; item.value } */
struct json_item {
    struct json value;
    struct json key; /* JSON_NONE for elements of arrays */
    uint32_t left;
};
struct json_item json_first(struct json container);
struct json_item json_following(struct json_item item);
/* The last element, at once where none has more. */
struct json json_last(struct json array);
/* The last element that the text before this one had, too, as an item to go on from; its number is
 * *count - 1. No value: not known. */
struct json_item json_marked(struct json array, size_t *count);
/* Element `index`, to walk on from: the first value that begins at or behind `byte` of the source.
 */
struct json_item json_from(struct json array, size_t index, size_t byte);
#define JSON_EACH(item, container)                                                                 \
    for (struct json_item item = json_first(container); json_exists(item.value);                   \
         item = json_following(item))

/* Strings: decoded into the arena when they hold escapes, else borrowed from the source. Lone
 * surrogates become U+FFFD. Non-strings give STR_NONE. */
struct str json_str(struct json value, struct arena *arena);
bool json_is(struct json value, const char *text); /* a string equal to text, escapes considered */
bool json_true(struct json value);
bool json_int(struct json value, long long *out); /* false: not an integer or too large */
bool json_double(struct json value, double *out);
long long json_int_or(struct json value, long long fallback);
double json_double_or(struct json value, double fallback);

/* --- scanning: a text of a known shape is walked once, without a tape. False: it is not so, or not
 * well formed; then json_read() has the last word. What a scan accepts, json_read() accepts. --- */
struct json_scan {
    const char *at, *end;
};
struct json_text {
    struct str content; /* between the quotes */
    bool escaped;
};
char json_scan_blanks(struct json_scan *scan);
static inline char json_scan_peek(struct json_scan *scan) /* what comes; 0: nothing */
{
    return scan->at<scan->end && * scan->at> ' ' ? *scan->at : json_scan_blanks(scan);
}
static inline bool json_scan_byte(struct json_scan *scan, char byte) /* taken if it comes */
{
    bool there = json_scan_peek(scan) == byte && byte;
    scan->at += there;
    return there;
}
bool json_scan_string(struct json_scan *scan, struct json_text *out);
bool json_scan_int(struct json_scan *scan, long long *out); /* written as one, 18 digits */
bool json_scan_double(struct json_scan *scan, double *out); /* finite */
bool json_scan_null(struct json_scan *scan);
bool json_scan_skip(struct json_scan *scan); /* any value that is not nested deeply */
bool json_scan_end(struct json_scan *scan);
struct str json_text_str(struct json_text text, struct arena *arena); /* as json_str() */

/* --- writing: commas and colons are automatic --- */
struct json_writer {
    struct buf *out;
    bool comma;
    int indent; /* 0: compact; else spaces per level */
    int level;
    struct rope *rope; /* `out` is its text, and what is large may hang in it; NULL: it is not */
};
void json_begin_object(struct json_writer *writer);
void json_end_object(struct json_writer *writer);
void json_begin_array(struct json_writer *writer);
void json_end_array(struct json_writer *writer);
void json_key(struct json_writer *writer, const char *key);
void json_key_str(struct json_writer *writer, struct str key);
void json_put_str(struct json_writer *writer, struct str value); /* invalid UTF-8 becomes U+FFFD */
void json_put_text(struct json_writer *writer, const char *value); /* NULL writes null */
void json_put_int(struct json_writer *writer, long long value);
void json_put_double(struct json_writer *writer,
                     double value); /* not finite: null; shortest that reads back */
void json_put_bool(struct json_writer *writer, bool value);
void json_put_null(struct json_writer *writer);
void json_put_raw(struct json_writer *writer, struct str json); /* trusted JSON bytes */
/* The same; hung in the writer's rope where there is one and it is worth it. keep() is called for
 * what hangs, release() when it is gone. */
void json_put_kept(struct json_writer *writer, struct str json, void *owner,
                   void (*keep)(void *owner), void (*release)(void *owner));
/* key and value in one */
void json_set_str(struct json_writer *writer, const char *key, struct str value);
void json_set_text(struct json_writer *writer, const char *key, const char *value);
void json_set_int(struct json_writer *writer, const char *key, long long value);
void json_set_double(struct json_writer *writer, const char *key, double value);
void json_set_bool(struct json_writer *writer, const char *key, bool value);
void json_set_null(struct json_writer *writer, const char *key);
void json_set_raw(struct json_writer *writer, const char *key, struct str json);
void json_quote(struct buf *out, struct str text); /* just the string literal */

/* --- splicing: change members of one object, leave every other byte alone --- */
struct json_edit {
    const char *key;  /* a member of the object */
    struct str value; /* raw JSON; STR_NONE removes the member */
};
/* Writes the object's bytes to `out` with the edits applied; new members go last. */
void json_splice(struct json object, const struct json_edit *edits, size_t count, struct buf *out);

/* A long value that was not copied: it belongs before byte `at` of what was written. */
struct json_gap {
    size_t at;
    struct str bytes; /* of the object's source; data NULL: all was copied */
};
/* The same, but the first unedited value of some size is left where it is. `gap` may be NULL. */
void json_splice_around(struct json object, const struct json_edit *edits, size_t count,
                        struct buf *out, struct json_gap *gap);

#endif
