/* json.c - source to tape: strict RFC 8259 in one pass, without recursion.
 *
 * The parser is a loop over values. An open container keeps its parent's index in `next`, so the
 * tape itself is the stack and depth costs nothing. Strings are only checked, never copied: runs of
 * plain bytes are skipped sixteen at a time, escapes are checked one by one, and UTF-8 is verified
 * only for strings in which a byte outside ASCII was seen. Line and column are counted only when
 * there is an error to report. */
#include "json/json.h"

#include <stdlib.h>

#include "base/err.h"
#include "base/mem.h"
#include "json/tape.h"

#define DEPTH_MAX 128
#define NODES_MAX (16u * 1024 * 1024)
#define NO_PARENT UINT32_MAX

struct parser {
    struct json_doc *doc;
    const char *start, *at, *end;
    uint32_t nodes_max, depth_max, depth;
    uint32_t open; /* the innermost open container, or NO_PARENT */
    uint32_t last; /* the value, or key, that was read last */
    uint32_t widest_count;
    uint32_t mark_open, mark, mark_count; /* the last value that was known, and its container */
    struct err *err;
};

static int fail_at(struct parser *parser, const char *where, enum err_kind kind, const char *what)
{
    size_t line = 1, column = 1;
    for (const char *at = parser->start; at < where; at++) {
        if (*at == '\n') {
            line++;
            column = 1;
        } else if (((unsigned char)*at & 0xc0) != 0x80) {
            column++;
        }
    }
    return err_set(parser->err, kind, "line %zu, column %zu: %s", line, column, what);
}

static int fail(struct parser *parser, const char *what)
{
    return fail_at(parser, parser->at, ERR_INPUT,
                   parser->at >= parser->end ? "the text ends too early" : what);
}

static inline void skip_blanks(struct parser *parser)
{
    const char *at = parser->at, *end = parser->end;
    while (at < end && (*at == ' ' || *at == '\n' || *at == '\r' || *at == '\t'))
        at++;
    parser->at = at;
}

static int add_node(struct parser *parser, enum json_type type, const char *start, uint32_t extra)
{
    struct json_doc *doc = parser->doc;
    if (doc->count >= doc->capacity) {
        if (doc->count >= parser->nodes_max)
            return fail_at(parser, start, ERR_LIMIT, "too many values");
        size_t capacity = doc->capacity ? doc->capacity * 2 : 64;
        if (capacity > parser->nodes_max)
            capacity = parser->nodes_max;
        doc->nodes = mem_grow(doc->nodes, capacity * sizeof *doc->nodes);
        doc->capacity = capacity;
    }
    if (doc->count >= parser->nodes_max)
        return fail_at(parser, start, ERR_LIMIT, "too many values");
    doc->nodes[doc->count] = (struct json_node){
        .start = (uint32_t)(start - parser->start),
        .size = (uint32_t)(parser->at - start),
        .next = (uint32_t)doc->count + 1,
        .info = (uint32_t)type | extra,
    };
    parser->last = (uint32_t)doc->count++;
    return 0;
}

static bool is_hex(char byte)
{
    return (byte >= '0' && byte <= '9') || ((byte | 0x20) >= 'a' && (byte | 0x20) <= 'f');
}

/* At the backslash. */
static int skip_escape(struct parser *parser)
{
    const char *at = parser->at;
    if (parser->end - at < 2) {
        parser->at = parser->end;
        return fail(parser, "");
    }
    switch (at[1]) {
    case '"':
    case '\\':
    case '/':
    case 'b':
    case 'f':
    case 'n':
    case 'r':
    case 't':
        parser->at += 2;
        return 0;
    case 'u':
        for (int i = 2; i < 6; i++) {
            if (parser->end - at <= i) {
                parser->at = parser->end;
                return fail(parser, "");
            }
            if (!is_hex(at[i]))
                return fail(parser, "\\u needs four hexadecimal digits");
        }
        parser->at += 6;
        return 0;
    default:
        return fail(parser, "no such escape");
    }
}

static int check_utf8(struct parser *parser, const char *at, const char *end)
{
    while (at < end) {
#if defined(__SSE2__)
        while (end - at >= 16 &&
               _mm_movemask_epi8(_mm_loadu_si128((const __m128i *)(const void *)at)) == 0)
            at += 16;
        if (at >= end)
            break;
#endif
        unsigned size = json_utf8_size(at, end);
        if (size == 0)
            return fail_at(parser, at, ERR_INPUT, "invalid UTF-8");
        at += size;
    }
    return 0;
}

static int read_string(struct parser *parser)
{
    const char *start = parser->at++;
    bool high = false;
    uint32_t escaped = 0;
    for (;;) {
        parser->at = json_plain_end(parser->at, parser->end, &high);
        if (parser->at >= parser->end)
            return fail_at(parser, start, ERR_INPUT, "this string has no end");
        if (*parser->at == '"')
            break;
        if (*parser->at != '\\')
            return fail(parser, "a control character inside a string; write it as an escape");
        escaped = JSON_ESCAPED;
        if (skip_escape(parser) < 0)
            return -1;
    }
    if (high && check_utf8(parser, start + 1, parser->at) < 0)
        return -1;
    parser->at++;
    return add_node(parser, JSON_STRING, start, escaped);
}

static inline bool digit_at(const struct parser *parser)
{
    return parser->at < parser->end && *parser->at >= '0' && *parser->at <= '9';
}

static int skip_digits(struct parser *parser)
{
    if (!digit_at(parser))
        return fail(parser, "a digit is missing here");
    while (digit_at(parser))
        parser->at++;
    return 0;
}

static int read_number(struct parser *parser)
{
    const char *start = parser->at;
    if (*parser->at == '-')
        parser->at++;
    if (parser->at < parser->end && *parser->at == '0') {
        parser->at++;
        if (digit_at(parser))
            return fail(parser, "a number must not start with a zero");
    } else if (skip_digits(parser) < 0) {
        return -1;
    }
    if (parser->at < parser->end && *parser->at == '.') {
        parser->at++;
        if (skip_digits(parser) < 0)
            return -1;
    }
    if (parser->at < parser->end && (*parser->at | 0x20) == 'e') {
        parser->at++;
        if (parser->at < parser->end && (*parser->at == '+' || *parser->at == '-'))
            parser->at++;
        if (skip_digits(parser) < 0)
            return -1;
    }
    if (parser->at - start > JSON_NUMBER_BYTES_MAX)
        return fail_at(parser, start, ERR_LIMIT, "a number is too long");
    return add_node(parser, JSON_NUMBER, start, 0);
}

static int read_word(struct parser *parser, const char *word, size_t size, enum json_type type)
{
    const char *start = parser->at;
    if ((size_t)(parser->end - start) < size || memcmp(start, word, size) != 0)
        return fail_at(parser, start, ERR_INPUT, "a value is expected here");
    parser->at += size;
    return add_node(parser, type, start, 0);
}

static int open_container(struct parser *parser, enum json_type type)
{
    if (parser->depth >= parser->depth_max)
        return fail_at(parser, parser->at, ERR_LIMIT, "nested too deeply");
    const char *start = parser->at++;
    uint32_t index = (uint32_t)parser->doc->count;
    if (add_node(parser, type, start, 0) < 0)
        return -1;
    parser->doc->nodes[index].next = parser->open;
    parser->open = index;
    parser->depth++;
    return 0;
}

/* At the closing bracket. */
static void close_container(struct parser *parser)
{
    parser->at++;
    struct json_node *node = &parser->doc->nodes[parser->open];
    if (node_count(node) > parser->widest_count) {
        parser->widest_count = node_count(node);
        parser->doc->widest = parser->open;
        parser->doc->widest_last = parser->last;
        bool marked = parser->mark && parser->mark_open == parser->open;
        parser->doc->widest_mark = marked ? parser->mark : 0;
        parser->doc->widest_mark_count = marked ? parser->mark_count : 0;
    }
    parser->last = parser->open;
    parser->open = node->next;
    node->size = (uint32_t)(parser->at - parser->start) - node->start;
    node->next = (uint32_t)parser->doc->count;
    parser->depth--;
}

/* A key and its colon; stops before the value. */
static int read_key(struct parser *parser)
{
    skip_blanks(parser);
    if (parser->at >= parser->end || *parser->at != '"')
        return fail(parser, "a key in double quotes is expected here");
    if (read_string(parser) < 0)
        return -1;
    skip_blanks(parser);
    if (parser->at >= parser->end || *parser->at != ':')
        return fail(parser, "a colon is expected here");
    parser->at++;
    return 0;
}

/* One scalar, or the opening of a container. *opened says that the container has content to read.
 */
static int read_value(struct parser *parser, bool *opened)
{
    *opened = false;
    skip_blanks(parser);
    if (parser->at >= parser->end)
        return fail(parser, "");
    switch (*parser->at) {
    case '"':
        return read_string(parser);
    case '{':
    case '[': {
        bool object = *parser->at == '{';
        if (open_container(parser, object ? JSON_OBJECT : JSON_ARRAY) < 0)
            return -1;
        skip_blanks(parser);
        if (parser->at < parser->end && *parser->at == (object ? '}' : ']')) {
            close_container(parser);
            return 0;
        }
        *opened = true;
        return 0;
    }
    case 't':
        return read_word(parser, "true", 4, JSON_TRUE);
    case 'f':
        return read_word(parser, "false", 5, JSON_FALSE);
    case 'n':
        return read_word(parser, "null", 4, JSON_NULL);
    case '-':
    case '0' ... '9':
        return read_number(parser);
    default:
        return fail(parser, "a value is expected here");
    }
}

/* After a value: closes what ends here and stops where the next value begins, or at the very end.
 */
static int read_separator(struct parser *parser, bool *done)
{
    for (;;) {
        if (parser->open == NO_PARENT) {
            *done = true;
            return 0;
        }
        struct json_node *node = &parser->doc->nodes[parser->open];
        node->info += 1u << JSON_COUNT_SHIFT;
        bool object = node_type(node) == JSON_OBJECT;
        skip_blanks(parser);
        if (parser->at >= parser->end)
            return fail(parser, "");
        if (*parser->at == ',') {
            parser->at++;
            return object ? read_key(parser) : 0;
        }
        if (*parser->at != (object ? '}' : ']'))
            return fail(parser,
                        object ? "a comma or } is expected here" : "a comma or ] is expected here");
        close_container(parser);
    }
}

/* `after_value`: the parser stands behind a value of the innermost open container. */
static int read_document(struct parser *parser, bool after_value)
{
    bool done = false;
    if (after_value && read_separator(parser, &done) < 0)
        return -1;
    while (!done) {
        bool opened;
        if (read_value(parser, &opened) < 0)
            return -1;
        if (!opened) {
            if (read_separator(parser, &done) < 0)
                return -1;
        } else if (node_type(&parser->doc->nodes[parser->open]) == JSON_OBJECT) {
            if (read_key(parser) < 0)
                return -1;
        }
    }
    skip_blanks(parser);
    if (parser->at < parser->end)
        return fail(parser, "the document is over, but text follows");
    return 0;
}

/* ---------------------------------------------------------------- a text that grew */

/* Where reading can go on: behind the last value of an open container that ends inside what is
 * shared. A number whose last byte is the last shared one may go on in the new text (12 and 123),
 * so one byte more must be shared. */
struct cut {
    uint32_t open; /* the container */
    uint32_t value;
    uint32_t nodes; /* of the tape that stay */
    size_t at;
};

static bool ends_inside(const struct json_node *node, size_t shared)
{
    bool closed = node_type(node) >= JSON_STRING; /* it says itself where it ends */
    return (size_t)node->start + node->size < shared + closed;
}

/* Looks at the members of one container: how many are whole, and *inner, the one in which the
 * shared bytes end, if it is a container. False: not even one value is whole. */
static bool find_cut_in(const struct json_doc *before, uint32_t container, size_t shared,
                        struct cut *cut, uint32_t *inner, uint32_t *whole)
{
    const struct json_node *nodes = before->nodes;
    bool object = node_type(&nodes[container]) == JSON_OBJECT;
    uint32_t at = container + 1, left = node_count(&nodes[container]), values = 0;
    *inner = NO_PARENT;
    if (before->widest_last && container == before->widest &&
        ends_inside(&nodes[before->widest_last], shared)) {
        const struct json_node *last = &nodes[before->widest_last];
        *cut = (struct cut){container, before->widest_last, last->next,
                            (size_t)last->start + last->size};
        *whole = left;
        return true;
    }
    /* What was new last time is looked at, not what was old already then. */
    if (container == before->widest && before->widest_mark &&
        ends_inside(&nodes[before->widest_mark], shared)) {
        const struct json_node *mark = &nodes[before->widest_mark];
        at = mark->next;
        values = before->widest_mark_count;
        left -= values;
        *cut = (struct cut){container, before->widest_mark, at, (size_t)mark->start + mark->size};
    }
    while (left--) {
        uint32_t value = at + object;
        if (!ends_inside(&nodes[value], shared)) {
            bool opened = nodes[value].start < shared && node_type(&nodes[value]) >= JSON_ARRAY;
            *inner = opened ? value : NO_PARENT;
            break;
        }
        values++;
        at = nodes[value].next;
        *cut = (struct cut){container, value, at, (size_t)nodes[value].start + nodes[value].size};
    }
    *whole = values;
    return values > 0;
}

/* Puts the parser where the tape of `before` can be taken as it is; false: nowhere. */
static bool go_on(struct parser *parser, const struct json_doc *before, size_t shared)
{
    struct json_doc *doc = parser->doc;
    struct cut cut = {.open = NO_PARENT};
    uint32_t path[DEPTH_MAX], whole[DEPTH_MAX], depth = 0;
    uint32_t container =
        before->count && node_type(before->nodes) >= JSON_ARRAY && before->nodes[0].start < shared
            ? 0
            : NO_PARENT;
    uint32_t cut_depth = 0;
    while (container != NO_PARENT && depth < DEPTH_MAX && depth < parser->depth_max) {
        uint32_t inner;
        path[depth] = container;
        bool any = find_cut_in(before, container, shared, &cut, &inner, &whole[depth]);
        if (any && whole[depth] > parser->mark_count) {
            parser->mark_open = container;
            parser->mark = cut.value;
            parser->mark_count = whole[depth];
        }
        depth++;
        if (any)
            cut_depth = depth;
        container = inner;
    }
    if (cut.open == NO_PARENT || cut.nodes >= parser->nodes_max)
        return false;
    if (doc->capacity < cut.nodes + 64) {
        doc->capacity = cut.nodes + 64 + cut.nodes / 8;
        if (doc->capacity > parser->nodes_max)
            doc->capacity = parser->nodes_max;
        if (before != doc)
            free(TAKE(doc->nodes));
        doc->nodes = mem_grow(doc->nodes, doc->capacity * sizeof *doc->nodes);
    }
    if (before != doc)
        memcpy(doc->nodes, before->nodes, cut.nodes * sizeof *doc->nodes);
    doc->count = cut.nodes;
    bool stays = before->widest < cut.nodes;
    for (uint32_t i = 0; i < cut_depth; i++)
        stays &= path[i] != before->widest;
    if (stays) {
        doc->widest = before->widest;
        doc->widest_last = before->widest_last;
        doc->widest_mark = before->widest_mark;
        doc->widest_mark_count = before->widest_mark_count;
        parser->widest_count = doc->widest_last ? node_count(&doc->nodes[doc->widest]) : 0;
    } else {
        doc->widest_last = doc->widest_mark = 0;
    }
    for (uint32_t i = 0; i < cut_depth; i++) {
        struct json_node *open = &doc->nodes[path[i]];
        /* Values that are whole; the last one of the innermost is counted by read_separator(). */
        uint32_t count = whole[i] - (i + 1 == cut_depth);
        open->info = (open->info & 7u) | count << JSON_COUNT_SHIFT;
        open->next = i ? path[i - 1] : NO_PARENT;
    }
    parser->open = cut.open;
    parser->last = cut.value;
    parser->depth = cut_depth;
    parser->at = parser->start + cut.at;
    return true;
}

int json_read_on(struct json_doc *doc, struct str source, const struct json_doc *before,
                 size_t shared, const struct json_limits *limits, struct err *err)
{
    doc->source = source;
    if (before != doc)
        doc->count = 0;
    if (source.size >= UINT32_MAX || source.size == 0) {
        doc->count = 0;
        return source.size ? err_set(err, ERR_LIMIT, "more than 4 GB of JSON")
                           : err_set(err, ERR_INPUT, "line 1, column 1: the text ends too early");
    }
    uint32_t nodes_max = limits && limits->nodes_max ? limits->nodes_max : NODES_MAX;
    struct parser parser = {
        .doc = doc,
        .start = source.data,
        .at = source.data,
        .end = source.data + source.size,
        .nodes_max = nodes_max < (1u << 28) - 1 ? nodes_max : (1u << 28) - 1,
        .depth_max = limits && limits->depth_max ? limits->depth_max : DEPTH_MAX,
        .open = NO_PARENT,
        .err = err,
    };
    bool known = before && shared <= source.size && go_on(&parser, before, shared);
    if (!known) {
        parser.mark = 0;
        doc->count = 0;
        doc->widest_last = doc->widest_mark = 0;
    }
    if (read_document(&parser, known) < 0) {
        doc->count = 0;
        return -1;
    }
    return 0;
}

int json_read(struct json_doc *doc, struct str source, const struct json_limits *limits,
              struct err *err)
{
    return json_read_on(doc, source, NULL, 0, limits, err);
}

void json_doc_trim(struct json_doc *doc)
{
    if (doc->count && doc->capacity > doc->count + doc->count / 4 + 64) {
        doc->nodes = mem_grow(doc->nodes, doc->count * sizeof *doc->nodes);
        doc->capacity = doc->count;
    }
}

void json_doc_deinit(struct json_doc *doc)
{
    free(doc->nodes);
    *doc = (struct json_doc){0};
}
