/* toml_scalar.c - TOML's strings, numbers, booleans and dates.
 *
 * A bare scalar is taken as one token (everything up to a blank, comma, bracket, comment or line
 * end) and then matched against each form; what matches none is an error that quotes the token.
 * Dates are checked and kept as text. */
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/buf.h"
#include "base/mem.h"
#include "config/reader.h"

/* ---------------------------------------------------------------- strings */

static int hex_value(char byte)
{
    if (byte >= '0' && byte <= '9')
        return byte - '0';
    char lower = (char)(byte | 0x20);
    return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

static void put_utf8(struct buf *out, unsigned point)
{
    if (point < 0x80) {
        buf_byte(out, (char)point);
        return;
    }
    if (point < 0x800) {
        buf_byte(out, (char)(0xc0 | point >> 6));
    } else {
        if (point < 0x10000) {
            buf_byte(out, (char)(0xe0 | point >> 12));
        } else {
            buf_byte(out, (char)(0xf0 | point >> 18));
            buf_byte(out, (char)(0x80 | (point >> 12 & 63)));
        }
        buf_byte(out, (char)(0x80 | (point >> 6 & 63)));
    }
    buf_byte(out, (char)(0x80 | (point & 63)));
}

static int take_unicode(struct toml_reader *reader, int digits, struct buf *out)
{
    unsigned point = 0;
    for (int i = 0; i < digits; i++) {
        int value = hex_value(toml_peek(reader, 2 + (size_t)i));
        if (value < 0)
            return TOML_FAIL(reader, "\\%c needs %d hexadecimal digits", reader->at[1], digits);
        point = point << 4 | (unsigned)value;
    }
    if (point > 0x10ffff || (point >= 0xd800 && point < 0xe000))
        return TOML_FAIL(reader, "U+%X is no Unicode character", point);
    put_utf8(out, point);
    reader->at += 2 + digits;
    return 0;
}

/* A backslash at the end of a line swallows all blanks and line ends up to the next text. */
static bool take_line_continuation(struct toml_reader *reader)
{
    const char *at = reader->at + 1;
    while (at < reader->end && (*at == ' ' || *at == '\t'))
        at++;
    if (at >= reader->end || (*at != '\n' && *at != '\r'))
        return false;
    reader->at = at;
    for (;;) {
        char byte = toml_peek(reader, 0);
        if (byte == ' ' || byte == '\t')
            reader->at++;
        else if (!toml_take_newline(reader))
            return true;
    }
}

static int take_escape(struct toml_reader *reader, bool multiline, struct buf *out)
{
    static const char letters[] = "btnfr\"\\";
    static const char meanings[] = "\b\t\n\f\r\"\\";
    char letter = toml_peek(reader, 1);
    const char *hit = letter ? strchr(letters, letter) : NULL;
    if (hit) {
        buf_byte(out, meanings[hit - letters]);
        reader->at += 2;
        return 0;
    }
    if (letter == 'u' || letter == 'U')
        return take_unicode(reader, letter == 'u' ? 4 : 8, out);
    if (multiline && take_line_continuation(reader))
        return 0;
    return TOML_FAIL(reader, "no such escape; for a plain backslash write \\\\ or use '...'");
}

static int finish_string(struct toml_reader *reader, const struct buf *text, struct str *out)
{
    *out = arena_str(&reader->toml->arena, buf_str(text));
    return 0;
}

static int read_single_line(struct toml_reader *reader, char quote, struct str *out)
{
    struct toml_place start = toml_here(reader);
    OWN(buf) struct buf text = {0};
    reader->at++;
    for (;;) {
        if (reader->at >= reader->end || *reader->at == '\n' || *reader->at == '\r')
            return toml_fail(reader, start, "this string has no end on its line");
        char byte = *reader->at;
        if (byte == quote) {
            reader->at++;
            return finish_string(reader, &text, out);
        }
        if (byte == '\\' && quote == '"') {
            if (take_escape(reader, false, &text) < 0)
                return -1;
            continue;
        }
        if (((unsigned char)byte < 0x20 && byte != '\t') || byte == 0x7f)
            return TOML_FAIL(reader, "a control character inside a string");
        buf_byte(&text, byte);
        reader->at++;
    }
}

static int read_multiline(struct toml_reader *reader, char quote, struct str *out)
{
    struct toml_place start = toml_here(reader);
    OWN(buf) struct buf text = {0};
    reader->at += 3;
    (void)toml_take_newline(reader); /* right after the opening quotes it does not count */
    for (;;) {
        if (reader->at >= reader->end)
            return toml_fail(reader, start, "this string has no end");
        char byte = *reader->at;
        if (byte == quote) {
            size_t quotes = 1;
            while (quotes < 6 && toml_peek(reader, quotes) == quote)
                quotes++;
            if (quotes == 6)
                return TOML_FAIL(reader, "too many quotes at the end of a string");
            reader->at += quotes;
            for (size_t i = quotes < 3 ? 0 : 3; i < quotes; i++)
                buf_byte(&text, quote);
            if (quotes >= 3)
                return finish_string(reader, &text, out);
        } else if (byte == '\\' && quote == '"') {
            if (take_escape(reader, true, &text) < 0)
                return -1;
        } else if (toml_take_newline(reader)) {
            buf_byte(&text, '\n');
        } else if (((unsigned char)byte < 0x20 && byte != '\t') || byte == 0x7f) {
            return TOML_FAIL(reader, "a control character inside a string");
        } else {
            buf_byte(&text, byte);
            reader->at++;
        }
    }
}

int toml_read_string(struct toml_reader *reader, bool multiline_allowed, struct str *out)
{
    char quote = *reader->at;
    if (toml_peek(reader, 1) != quote || toml_peek(reader, 2) != quote)
        return read_single_line(reader, quote, out);
    if (!multiline_allowed)
        return TOML_FAIL(reader, "a key cannot be a multi-line string");
    return read_multiline(reader, quote, out);
}

/* ---------------------------------------------------------------- numbers */

static bool digit_ok(char byte, int base)
{
    int value = hex_value(byte);
    return value >= 0 && value < base;
}

/* Copies digits of `base` without their underscores, each of which must stand between two digits.
 */
static const char *take_digits(const char *at, const char *end, int base, struct buf *out)
{
    const char *start = at;
    while (at < end) {
        if (digit_ok(*at, base)) {
            buf_byte(out, *at++);
        } else if (*at == '_' && at > start && at[-1] != '_' && at + 1 < end &&
                   digit_ok(at[1], base)) {
            at++;
        } else {
            break;
        }
    }
    return at > start ? at : NULL;
}

static bool match_prefixed(struct str token, long long *out)
{
    static const struct {
        char letter;
        int base;
    } forms[] = {{'x', 16}, {'o', 8}, {'b', 2}};
    if (token.size < 3 || token.data[0] != '0')
        return false;
    for (size_t i = 0; i < COUNT(forms); i++) {
        if (token.data[1] != forms[i].letter)
            continue;
        OWN(buf) struct buf digits = {0};
        const char *end = token.data + token.size;
        if (take_digits(token.data + 2, end, forms[i].base, &digits) != end)
            return false;
        errno = 0;
        *out = strtoll(buf_text(&digits), NULL, forms[i].base);
        return errno == 0;
    }
    return false;
}

/* Decimal integers and floats. *integral says which. */
static bool match_number(struct str token, bool *integral, long long *integer, double *real)
{
    OWN(buf) struct buf text = {0};
    const char *at = token.data, *end = at + token.size;
    *integral = true;
    if (at < end && (*at == '+' || *at == '-'))
        buf_byte(&text, *at++);
    const char *first = at;
    at = take_digits(at, end, 10, &text);
    if (!at || (*first == '0' && at - first > 1))
        return false;
    if (at < end && *at == '.') {
        *integral = false;
        buf_byte(&text, *at++);
        at = take_digits(at, end, 10, &text);
        if (!at)
            return false;
    }
    if (at < end && (*at | 0x20) == 'e') {
        *integral = false;
        buf_byte(&text, *at++);
        if (at < end && (*at == '+' || *at == '-'))
            buf_byte(&text, *at++);
        at = take_digits(at, end, 10, &text);
        if (!at)
            return false;
    }
    if (at != end)
        return false;
    errno = 0;
    if (*integral) {
        *integer = strtoll(buf_text(&text), NULL, 10);
        return errno == 0;
    }
    *real = strtod(buf_text(&text), NULL);
    return true;
}

static bool match_special(struct str token, double *real)
{
    struct str word = token;
    bool negative = str_starts(word, STR("-"));
    if (negative || str_starts(word, STR("+")))
        word = str_from(word, 1);
    if (str_is(word, "inf"))
        *real = negative ? -INFINITY : INFINITY;
    else if (str_is(word, "nan"))
        *real = NAN;
    else
        return false;
    return true;
}

/* ---------------------------------------------------------------- dates */

/* `count` digits as a number, or -1. */
static int number_at(struct str text, size_t at, size_t count)
{
    if (text.size < at + count)
        return -1;
    int value = 0;
    for (size_t i = at; i < at + count; i++) {
        if (text.data[i] < '0' || text.data[i] > '9')
            return -1;
        value = value * 10 + text.data[i] - '0';
    }
    return value;
}

static bool match_date(struct str text)
{
    static const int days[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    int year = number_at(text, 0, 4), month = number_at(text, 5, 2), day = number_at(text, 8, 2);
    if (text.size < 10 || year < 0 || month < 1 || month > 12 || day < 1 || text.data[4] != '-' ||
        text.data[7] != '-')
        return false;
    bool leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    return day <= days[month - 1] + (month == 2 && leap);
}

/* Returns how long the time at the front is, or 0. */
static size_t match_time(struct str text)
{
    int hour = number_at(text, 0, 2), minute = number_at(text, 3, 2),
        second = number_at(text, 6, 2);
    if (hour < 0 || hour > 23 || minute < 0 || minute > 59 || second < 0 || second > 60 ||
        text.data[2] != ':' || text.data[5] != ':')
        return 0;
    size_t size = 8;
    if (size < text.size && text.data[size] == '.') {
        size_t start = ++size;
        while (size < text.size && text.data[size] >= '0' && text.data[size] <= '9')
            size++;
        if (size == start)
            return 0;
    }
    return size;
}

static bool match_offset(struct str text)
{
    if (text.size == 0 || str_is(text, "Z") || str_is(text, "z"))
        return true;
    int hour = number_at(text, 1, 2), minute = number_at(text, 4, 2);
    return text.size == 6 && (text.data[0] == '+' || text.data[0] == '-') && text.data[3] == ':' &&
           hour >= 0 && hour <= 23 && minute >= 0 && minute <= 59;
}

static bool match_datetime(struct str token)
{
    if (token.size >= 3 && token.data[2] == ':')
        return match_time(token) == token.size;
    if (!match_date(token))
        return false;
    if (token.size == 10)
        return true;
    if (token.data[10] != 'T' && token.data[10] != 't' && token.data[10] != ' ')
        return false;
    struct str rest = str_from(token, 11);
    size_t time = match_time(rest);
    return time && match_offset(str_from(rest, time));
}

/* ---------------------------------------------------------------- bare scalars */

static bool ends_token(char byte)
{
    return byte == ',' || byte == ']' || byte == '}' || byte == '#' || byte == ' ' ||
           byte == '\t' || byte == '\n' || byte == '\r' || byte == '=';
}

static struct str take_token(struct toml_reader *reader)
{
    const char *start = reader->at, *at = start;
    while (at < reader->end && !ends_token(*at))
        at++;
    /* A date and a time may be separated by one blank. */
    struct str date = str_make(start, (size_t)(at - start));
    if (date.size == 10 && match_date(date) && reader->end - at >= 3 && *at == ' ' &&
        at[1] >= '0' && at[1] <= '9') {
        at++;
        while (at < reader->end && !ends_token(*at))
            at++;
    }
    reader->at = at;
    return str_make(start, (size_t)(at - start));
}

int toml_read_scalar(struct toml_reader *reader, struct toml_node *node)
{
    struct toml_place place = toml_here(reader);
    struct str token = take_token(reader);
    bool integral = false;
    if (token.size == 0)
        return toml_fail(reader, place, "a value is missing here");
    if (str_is(token, "true") || str_is(token, "false")) {
        node->type = TOML_BOOLEAN;
        node->truth = token.data[0] == 't';
        return 0;
    }
    if (match_prefixed(token, &node->integer)) {
        node->type = TOML_INTEGER;
        node->real = (double)node->integer;
        return 0;
    }
    if (match_number(token, &integral, &node->integer, &node->real)) {
        node->type = integral ? TOML_INTEGER : TOML_FLOAT;
        if (integral)
            node->real = (double)node->integer;
        return 0;
    }
    if (match_special(token, &node->real)) {
        node->type = TOML_FLOAT;
        return 0;
    }
    if (match_datetime(token)) {
        struct str text = arena_str(&reader->toml->arena, token);
        node->type = TOML_DATETIME;
        node->text = text.data;
        node->text_size = text.size;
        return 0;
    }
    struct str shown = str_upto(token, 40);
    return toml_fail(reader, place, "'%.*s%s' is no value (a text needs quotes)", STR_ARGS(shown),
                     shown.size < token.size ? "..." : "");
}
