/* str.h - borrowed bytes, by value. Not terminated; may hold any byte. */
#ifndef BASE_STR_H
#define BASE_STR_H

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

struct str {
    const char *data;
    size_t size;
};

#define STR(literal) ((struct str){(literal), sizeof(literal) - 1})
#define STR_NONE ((struct str){NULL, 0})
/* For printf: "%.*s", STR_ARGS(s). */
#define STR_ARGS(s) (int)(s).size, (s).data

static inline struct str str_of(const char *text)
{
    return (struct str){text, text ? strlen(text) : 0};
}

static inline struct str str_make(const void *data, size_t size)
{
    return (struct str){data, size};
}

static inline bool str_equal(struct str a, struct str b)
{
    return a.size == b.size && (a.size == 0 || memcmp(a.data, b.data, a.size) == 0);
}

static inline bool str_is(struct str s, const char *text)
{
    return str_equal(s, str_of(text));
}

static inline struct str str_from(struct str s, size_t start)
{
    if (start > s.size)
        start = s.size;
    return (struct str){start ? s.data + start : s.data, s.size - start}; /* data may be NULL */
}

static inline struct str str_upto(struct str s, size_t size)
{
    return (struct str){s.data, size < s.size ? size : s.size};
}

static inline bool str_starts(struct str s, struct str prefix)
{
    return s.size >= prefix.size && str_equal(str_upto(s, prefix.size), prefix);
}

static inline bool str_ends(struct str s, struct str suffix)
{
    return s.size >= suffix.size && str_equal(str_from(s, s.size - suffix.size), suffix);
}

/* Compares ASCII letters without case. */
bool str_equal_nocase(struct str a, struct str b);
/* Index of the byte or part, or -1. */
long str_find_byte(struct str s, char byte);
long str_find(struct str s, struct str part);
/* Without blanks, tabs, CR and LF at both ends. */
struct str str_trim(struct str s);
/* Cuts up to the first `byte` off the front of *rest and returns it; the rest follows the byte.
 * When there is no such byte the whole of *rest is returned and *rest becomes STR_NONE (data NULL).
 */
struct str str_cut(struct str *rest, char byte);
/* A terminated copy on the heap. */
char *str_dup(struct str s);
/* Whole-string decimal integer; false when it is not one or does not fit. */
bool str_to_long(struct str s, long long *out);
bool str_to_double(struct str s, double *out);
/* "1.5s", "200ms", "5m", "2h", plain number = milliseconds. */
bool str_to_duration_ms(struct str s, long long *out);
/* "512", "64k", "2M", "1G" (powers of 1024; optional trailing B or iB). */
bool str_to_size(struct str s, unsigned long long *out);
bool str_is_utf8(struct str s);
/* Sixteen hexadecimal digits, not terminated. */
void str_hex(char out[16], unsigned long long number);

#endif
