/* scan.c - walking a text once, without a tape, for whoever knows its shape.
 *
 * Each step takes one token or one value and says whether it was there and well formed; what a scan
 * passes over, json_read() accepts. The opposite need not hold: a scan may give up (it does on
 * deep nesting), and then the text is read with a tape. */
#include <math.h>

#include "json/tape.h"

#define SKIP_DEPTH_MAX 32

static inline const char *skip_blanks(struct json_scan *scan)
{
    while (scan->at < scan->end &&
           (*scan->at == ' ' || *scan->at == '\n' || *scan->at == '\r' || *scan->at == '\t'))
        scan->at++;
    return scan->at;
}

char json_scan_blanks(struct json_scan *scan)
{
    const char *at = skip_blanks(scan);
    return at < scan->end ? *at : 0;
}

bool json_scan_end(struct json_scan *scan)
{
    return skip_blanks(scan) == scan->end;
}

static bool is_hex(char byte)
{
    return (byte >= '0' && byte <= '9') || ((byte | 0x20) >= 'a' && (byte | 0x20) <= 'f');
}

/* The length of the escape at `at`, or 0 when it is none. */
static size_t escape_size(const char *at, const char *end)
{
    if (end - at < 2)
        return 0;
    if (at[1] != 'u')
        return at[1] && strchr("\"\\/bfnrt", at[1]) ? 2 : 0;
    if (end - at < 6)
        return 0;
    return is_hex(at[2]) && is_hex(at[3]) && is_hex(at[4]) && is_hex(at[5]) ? 6 : 0;
}

static bool is_utf8(const char *at, const char *end)
{
    for (unsigned size; at < end; at += size)
        if (!(size = json_utf8_size(at, end)))
            return false;
    return true;
}

bool json_scan_string(struct json_scan *scan, struct json_text *out)
{
    if (!json_scan_byte(scan, '"'))
        return false;
    const char *start = scan->at, *at = start, *end = scan->end;
    bool high = false;
    out->escaped = false;
    while ((at = json_plain_end(at, end, &high)) < end && *at == '\\') {
        size_t size = escape_size(at, end);
        if (!size)
            return false;
        out->escaped = true;
        at += size;
    }
    if (at >= end || *at != '"' || (high && !is_utf8(start, at)))
        return false;
    out->content = str_make(start, (size_t)(at - start));
    scan->at = at + 1;
    return true;
}

static bool skip_digits(struct json_scan *scan)
{
    const char *start = scan->at;
    while (scan->at < scan->end && *scan->at >= '0' && *scan->at <= '9')
        scan->at++;
    return scan->at > start;
}

static inline bool is_at(const struct json_scan *scan, char byte)
{
    return scan->at < scan->end && *scan->at == byte;
}

static bool scan_number(struct json_scan *scan, struct str *out)
{
    const char *start = skip_blanks(scan);
    scan->at += is_at(scan, '-');
    if (is_at(scan, '0'))
        scan->at++;
    else if (!skip_digits(scan))
        return false;
    if (is_at(scan, '.')) {
        scan->at++;
        if (!skip_digits(scan))
            return false;
    }
    if (is_at(scan, 'e') || is_at(scan, 'E')) {
        scan->at++;
        scan->at += is_at(scan, '+') || is_at(scan, '-');
        if (!skip_digits(scan))
            return false;
    }
    *out = str_make(start, (size_t)(scan->at - start));
    return out->size <= JSON_NUMBER_BYTES_MAX;
}

bool json_scan_int(struct json_scan *scan, long long *out)
{
    const char *at = skip_blanks(scan);
    bool negative = is_at(scan, '-');
    const char *first = at += negative;
    unsigned long long number = 0; /* one digit more than is taken fits */
    while (at < scan->end && *at >= '0' && *at <= '9' && at - first < 19)
        number = number * 10 + (unsigned)(*at++ - '0');
    if (at == first || at - first > 18 || (*first == '0' && at - first > 1) ||
        (at < scan->end && (*at == '.' || (*at | 0x20) == 'e')))
        return false;
    scan->at = at;
    *out = negative ? -(long long)number : (long long)number;
    return true;
}

bool json_scan_double(struct json_scan *scan, double *out)
{
    struct str raw;
    if (!scan_number(scan, &raw))
        return false;
    *out = json_number(raw);
    return isfinite(*out);
}

static bool scan_word(struct json_scan *scan, struct str word)
{
    if ((size_t)(scan->end - scan->at) < word.size || memcmp(scan->at, word.data, word.size) != 0)
        return false;
    scan->at += word.size;
    return true;
}

bool json_scan_null(struct json_scan *scan)
{
    skip_blanks(scan);
    return scan_word(scan, STR("null"));
}

static bool skip_value(struct json_scan *scan, unsigned depth);

static bool skip_container(struct json_scan *scan, bool object, unsigned depth)
{
    char close = object ? '}' : ']';
    struct json_text key;
    scan->at++;
    if (depth == 0)
        return false;
    if (json_scan_byte(scan, close))
        return true;
    do {
        if (object && !(json_scan_string(scan, &key) && json_scan_byte(scan, ':')))
            return false;
        if (!skip_value(scan, depth - 1))
            return false;
    } while (json_scan_byte(scan, ','));
    return json_scan_byte(scan, close);
}

static bool skip_value(struct json_scan *scan, unsigned depth)
{
    struct json_text text;
    struct str raw;
    switch (json_scan_peek(scan)) {
    case '"':
        return json_scan_string(scan, &text);
    case '{':
        return skip_container(scan, true, depth);
    case '[':
        return skip_container(scan, false, depth);
    case 'n':
        return scan_word(scan, STR("null"));
    case 't':
        return scan_word(scan, STR("true"));
    case 'f':
        return scan_word(scan, STR("false"));
    default:
        return scan_number(scan, &raw);
    }
}

bool json_scan_skip(struct json_scan *scan)
{
    return skip_value(scan, SKIP_DEPTH_MAX);
}
