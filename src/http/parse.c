/* parse.c - reading heads and body framing, strictly (RFC 9112).
 *
 * Two parties who disagree about where a message ends can be played against each other, so whatever
 * RFC 9112 lets a server repair is refused here instead: a line that ends without CR, a folded
 * line, blanks before the colon, Content-Length together with Transfer-Encoding, lengths that
 * differ, any coding but "chunked", chunk sizes that are not plain hexadecimal. Nothing is
 * allocated; everything borrows. */
#include "parse.h"

#include <string.h>

#include "base/mem.h"

/* --- characters --- */

enum { TOKEN = 1, VALUE = 2, TARGET = 4, HEX = 8 };

/* One table: what each byte may be part of. */
#define T3 (TOKEN | VALUE | TARGET)
#define V2 (VALUE | TARGET)
#define H4 (TOKEN | VALUE | TARGET | HEX)
/* clang-format off */
static const unsigned char classes[256] = {
    ['\t'] = VALUE, [' '] = VALUE,
    ['!'] = T3, ['"'] = V2, ['#'] = T3, ['$'] = T3, ['%'] = T3, ['&'] = T3, ['\''] = T3,
    ['('] = V2, [')'] = V2, ['*'] = T3, ['+'] = T3, [','] = V2, ['-'] = T3, ['.'] = T3, ['/'] = V2,
    ['0' ... '9'] = H4, [':'] = V2, [';'] = V2, ['<'] = V2, ['='] = V2, ['>'] = V2, ['?'] = V2, ['@'] = V2,
    ['A' ... 'F'] = H4, ['G' ... 'Z'] = T3, ['['] = V2, ['\\'] = V2, [']'] = V2, ['^'] = T3, ['_'] = T3,
    ['`'] = T3, ['a' ... 'f'] = H4, ['g' ... 'z'] = T3, ['{'] = V2, ['|'] = T3, ['}'] = V2, ['~'] = T3,
    [0x80 ... 0xff] = VALUE,
};
/* clang-format on */

static inline bool is(char byte, unsigned what)
{
    return classes[(unsigned char)byte] & what;
}

static size_t span(struct str s, unsigned what)
{
    size_t count = 0;
    while (count < s.size && is(s.data[count], what))
        count++;
    return count;
}

bool http_token_is(struct str text)
{
    return text.size && span(text, TOKEN) == text.size;
}

bool http_field_value_is(struct str text)
{
    return span(text, VALUE) == text.size;
}

/* --- heads --- */

long http_head_find(struct str bytes, size_t *scanned)
{
    const char *data = bytes.data;
    for (size_t at = *scanned; at < bytes.size;) {
        const char *newline = memchr(data + at, '\n', bytes.size - at);
        if (!newline) {
            *scanned = bytes.size;
            return 0;
        }
        at = (size_t)(newline - data) + 1;
        if (at < 2 || data[at - 2] != '\r')
            return -1;
        if (at >= 4 && data[at - 3] == '\n')
            return (long)at;
        *scanned = at;
    }
    return 0;
}

struct str http_header_find(const struct http_header *headers, size_t count, struct str name)
{
    for (size_t i = 0; i < count; i++)
        if (str_equal_nocase(headers[i].name, name))
            return headers[i].value;
    return STR_NONE;
}

/* The next line without its CRLF. The whole head was measured, so there is one. */
static struct str next_line(struct str *rest)
{
    const char *newline = memchr(rest->data, '\n', rest->size);
    size_t size = newline ? (size_t)(newline - rest->data) : rest->size;
    struct str line = str_upto(*rest, size ? size - 1 : 0);
    *rest = str_from(*rest, size + 1);
    return line;
}

static struct str trim_blanks(struct str s)
{
    while (s.size && (s.data[0] == ' ' || s.data[0] == '\t'))
        s = str_from(s, 1);
    while (s.size && (s.data[s.size - 1] == ' ' || s.data[s.size - 1] == '\t'))
        s.size--;
    return s;
}

static bool read_length(struct str value, uint64_t *length)
{
    if (!value.size || value.size > 18)
        return false;
    uint64_t sum = 0;
    for (size_t i = 0; i < value.size; i++) {
        if (value.data[i] < '0' || value.data[i] > '9')
            return false;
        sum = sum * 10 + (uint64_t)(value.data[i] - '0');
    }
    *length = sum;
    return true;
}

/* What the fields mean together. Kept apart from the head: only needed while reading. */
struct meaning {
    unsigned hosts, encodings;
    bool close, keep_alive;
};

static int refuse(const char **why, int status, const char *text)
{
    *why = text;
    return status;
}

static void read_connection(struct str value, struct meaning *meaning)
{
    while (value.data) {
        struct str word = trim_blanks(str_cut(&value, ','));
        if (str_equal_nocase(word, STR("close")))
            meaning->close = true;
        else if (str_equal_nocase(word, STR("keep-alive")))
            meaning->keep_alive = true;
    }
}

static int note_field(struct http_head *head, const struct http_header *field,
                      struct meaning *meaning, const char **why)
{
    switch (field->name.size) {
    case 4:
        if (str_equal_nocase(field->name, STR("host")))
            meaning->hosts++;
        break;
    case 6:
        if (!str_equal_nocase(field->name, STR("expect")))
            break;
        if (!str_equal_nocase(field->value, STR("100-continue")))
            return refuse(why, 417, "unknown expectation");
        head->expect_continue = true;
        break;
    case 10:
        if (str_equal_nocase(field->name, STR("connection")))
            read_connection(field->value, meaning);
        break;
    case 14: {
        if (!str_equal_nocase(field->name, STR("content-length")))
            break;
        uint64_t length;
        if (!read_length(field->value, &length))
            return refuse(why, 400, "Content-Length is not a number");
        if (head->has_length && length != head->length)
            return refuse(why, 400, "two different Content-Length fields");
        head->has_length = true;
        head->length = length;
        break;
    }
    case 17:
        if (!str_equal_nocase(field->name, STR("transfer-encoding")))
            break;
        if (!str_equal_nocase(field->value, STR("chunked")))
            return refuse(why, 501, "unknown Transfer-Encoding");
        if (++meaning->encodings > 1)
            return refuse(why, 400, "two Transfer-Encoding fields");
        head->chunked = true;
        break;
    }
    return 0;
}

static int read_fields(struct str rest, struct http_head *head, struct meaning *meaning,
                       const char **why)
{
    for (;;) {
        struct str line = next_line(&rest);
        if (!line.size)
            break;
        if (head->header_count == HTTP_HEADERS_MAX)
            return refuse(why, 431, "too many header fields");
        size_t name = span(line, TOKEN);
        if (!name)
            return refuse(why, 400, "a header line starts with a blank or has no name");
        if (name == line.size || line.data[name] != ':')
            return refuse(why, 400, "a header name is not followed by a colon");
        struct http_header *field = &head->headers[head->header_count++];
        field->name = str_upto(line, name);
        field->value = trim_blanks(str_from(line, name + 1));
        if (!http_field_value_is(field->value))
            return refuse(why, 400, "a header value has control characters");
        int status = note_field(head, field, meaning, why);
        if (status)
            return status;
    }
    if (head->chunked && head->has_length)
        return refuse(why, 400, "both Content-Length and Transfer-Encoding");
    if (head->chunked && head->minor == 0)
        return refuse(why, 400, "Transfer-Encoding in HTTP/1.0");
    head->keep_alive = head->minor ? !meaning->close : meaning->keep_alive && !meaning->close;
    return 0;
}

static bool target_is(struct str method, struct str target)
{
    if (!target.size || span(target, TARGET) != target.size)
        return false;
    if (str_is(method, "CONNECT"))
        return target.data[0] != '/';
    if (target.data[0] == '/')
        return true;
    if (str_is(method, "OPTIONS") && str_is(target, "*"))
        return true;
    return str_find(target, STR("://")) > 0;
}

int http_head_read_request(struct str bytes, struct http_head *head, const char **why)
{
    head->header_count = 0;
    head->status = 0;
    head->chunked = head->has_length = head->expect_continue = head->keep_alive = false;
    head->length = 0;
    struct str rest = bytes;
    struct str line = next_line(&rest);
    size_t method = span(line, TOKEN);
    if (!method || method == line.size || line.data[method] != ' ')
        return refuse(why, 400, "the request line is malformed");
    head->method = str_upto(line, method);
    struct str after = str_from(line, method + 1);
    long space = str_find_byte(after, ' ');
    if (space < 1)
        return refuse(why, 400, "the request line is malformed");
    head->target = str_upto(after, (size_t)space);
    struct str version = str_from(after, (size_t)space + 1);
    if (version.size != 8 || !str_starts(version, STR("HTTP/")) || version.data[6] != '.' ||
        version.data[5] < '0' || version.data[5] > '9' || version.data[7] < '0' ||
        version.data[7] > '9')
        return refuse(why, 400, "the request line is malformed");
    if (version.data[5] != '1' || version.data[7] > '1')
        return refuse(why, 505, "only HTTP/1.0 and HTTP/1.1 are spoken here");
    head->minor = version.data[7] - '0';
    if (!target_is(head->method, head->target))
        return refuse(why, 400, "the request target is malformed");
    struct meaning meaning = {0};
    int status = read_fields(rest, head, &meaning, why);
    if (status)
        return status;
    if (meaning.hosts > 1 || (meaning.hosts == 0 && head->minor == 1))
        return refuse(why, 400, "exactly one Host field is needed");
    if (head->minor == 0)
        head->expect_continue = false;
    return 0;
}

int http_head_read_answer(struct str bytes, struct http_head *head, const char **why)
{
    head->header_count = 0;
    head->method = head->target = STR_NONE;
    head->chunked = head->has_length = head->expect_continue = head->keep_alive = false;
    head->length = 0;
    struct str rest = bytes;
    struct str line = next_line(&rest);
    if (line.size < 12 || !str_starts(line, STR("HTTP/1.")) || line.data[8] != ' ' ||
        line.data[7] < '0' || line.data[7] > '1' || (line.size > 12 && line.data[12] != ' ') ||
        !http_field_value_is(line)) {
        *why = "the status line is malformed";
        return -1;
    }
    head->minor = line.data[7] - '0';
    head->status = 0;
    for (int i = 9; i < 12; i++) {
        if (line.data[i] < '0' || line.data[i] > '9') {
            *why = "the status line is malformed";
            return -1;
        }
        head->status = head->status * 10 + (line.data[i] - '0');
    }
    if (head->status < 100) {
        *why = "the status is no status";
        return -1;
    }
    struct meaning meaning = {0};
    return read_fields(rest, head, &meaning, why) ? -1 : 0;
}

/* --- bodies --- */

enum {
    CHUNK_SIZE,      /* hexadecimal digits */
    CHUNK_EXTENSION, /* after ';', ignored */
    CHUNK_SIZE_LF,   /* CR seen */
    CHUNK_DATA,
    CHUNK_DATA_CR,
    CHUNK_DATA_LF,
    TRAILER_START, /* a trailer line or the final blank one */
    TRAILER_NAME,
    TRAILER_VALUE,
    TRAILER_LF,
    FINAL_LF,
};
enum { CHUNK_DIGITS_MAX = 15, EXTENSION_BYTES_MAX = 4096, TRAILER_BYTES_MAX = 16384 };

void http_body_start(struct http_body *body, enum http_body_kind kind, uint64_t length)
{
    *body = (struct http_body){.kind = (uint8_t)kind, .left = length, .state = CHUNK_SIZE};
    if (kind == HTTP_BODY_CHUNKED)
        body->left = 0;
    body->done = kind == HTTP_BODY_NONE || (kind == HTTP_BODY_LENGTH && length == 0);
}

static unsigned hex_value(char byte)
{
    return byte <= '9' ? (unsigned)(byte - '0') : (unsigned)((byte | 0x20) - 'a' + 10);
}

/* One byte that is framing, not body. False: broken. */
static bool chunk_step(struct http_body *body, char byte)
{
    switch (body->state) {
    case CHUNK_SIZE:
        if (is(byte, HEX)) {
            body->left = body->left * 16 + hex_value(byte);
            return ++body->digits <= CHUNK_DIGITS_MAX;
        }
        if (!body->digits)
            return false;
        body->overhead = 0;
        body->state = byte == ';' ? CHUNK_EXTENSION : CHUNK_SIZE_LF;
        return byte == ';' || byte == '\r';
    case CHUNK_EXTENSION:
        if (byte == '\r')
            body->state = CHUNK_SIZE_LF;
        else if (!is(byte, VALUE))
            return false;
        return ++body->overhead <= EXTENSION_BYTES_MAX;
    case CHUNK_SIZE_LF:
        body->state = body->left ? CHUNK_DATA : TRAILER_START;
        body->overhead = 0;
        return byte == '\n';
    case CHUNK_DATA_CR:
        body->state = CHUNK_DATA_LF;
        return byte == '\r';
    case CHUNK_DATA_LF:
        body->state = CHUNK_SIZE;
        body->digits = 0;
        body->left = 0;
        return byte == '\n';
    case TRAILER_START:
        body->state = byte == '\r' ? FINAL_LF : TRAILER_NAME;
        return byte == '\r' || is(byte, TOKEN);
    case TRAILER_NAME:
        if (byte == ':')
            body->state = TRAILER_VALUE;
        else if (!is(byte, TOKEN))
            return false;
        return ++body->overhead <= TRAILER_BYTES_MAX;
    case TRAILER_VALUE:
        if (byte == '\r')
            body->state = TRAILER_LF;
        else if (!is(byte, VALUE))
            return false;
        return ++body->overhead <= TRAILER_BYTES_MAX;
    case TRAILER_LF:
        body->state = TRAILER_START;
        return byte == '\n';
    case FINAL_LF:
        body->done = true;
        return byte == '\n';
    }
    return false;
}

static long decode_chunks(struct http_body *body, char *bytes, size_t size, size_t *taken)
{
    size_t at = 0, kept = 0;
    while (at < size && !body->done) {
        if (body->state != CHUNK_DATA) {
            if (!chunk_step(body, bytes[at++]))
                return -1;
            continue;
        }
        size_t piece = size - at;
        if (piece > body->left)
            piece = (size_t)body->left;
        if (kept != at)
            memmove(bytes + kept, bytes + at, piece);
        kept += piece;
        at += piece;
        body->left -= piece;
        if (!body->left)
            body->state = CHUNK_DATA_CR;
    }
    *taken = at;
    return (long)kept;
}

long http_body_decode(struct http_body *body, char *bytes, size_t size, size_t *taken)
{
    *taken = 0;
    if (body->done)
        return 0;
    switch ((enum http_body_kind)body->kind) {
    case HTTP_BODY_NONE:
        return 0;
    case HTTP_BODY_LENGTH:
        if (size > body->left)
            size = (size_t)body->left;
        body->left -= size;
        body->done = body->left == 0;
        *taken = size;
        return (long)size;
    case HTTP_BODY_UNTIL_CLOSE:
        *taken = size;
        return (long)size;
    case HTTP_BODY_CHUNKED:
        return decode_chunks(body, bytes, size, taken);
    }
    return -1;
}
