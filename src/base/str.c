#include "base/str.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <strings.h>

#include "base/mem.h"

bool str_equal_nocase(struct str a, struct str b)
{
    return a.size == b.size && (a.size == 0 || strncasecmp(a.data, b.data, a.size) == 0);
}

long str_find_byte(struct str s, char byte)
{
    const char *hit = s.size ? memchr(s.data, byte, s.size) : NULL;
    return hit ? hit - s.data : -1;
}

long str_find(struct str s, struct str part)
{
    if (part.size == 0)
        return 0;
    const char *hit = s.size ? memmem(s.data, s.size, part.data, part.size) : NULL;
    return hit ? hit - s.data : -1;
}

static bool is_blank(char byte)
{
    return byte == ' ' || byte == '\t' || byte == '\r' || byte == '\n';
}

struct str str_trim(struct str s)
{
    while (s.size && is_blank(s.data[0])) {
        s.data++;
        s.size--;
    }
    while (s.size && is_blank(s.data[s.size - 1]))
        s.size--;
    return s;
}

struct str str_cut(struct str *rest, char byte)
{
    struct str all = *rest;
    long at = str_find_byte(all, byte);
    if (at < 0) {
        *rest = STR_NONE;
        return all;
    }
    *rest = str_from(all, (size_t)at + 1);
    return str_upto(all, (size_t)at);
}

char *str_dup(struct str s)
{
    char *copy = mem_alloc(s.size + 1);
    if (s.size)
        memcpy(copy, s.data, s.size);
    copy[s.size] = '\0';
    return copy;
}

static bool to_small(struct str s, char *small, size_t size)
{
    if (s.size == 0 || s.size >= size || memchr(s.data, '\0', s.size) || is_blank(s.data[0]))
        return false;
    memcpy(small, s.data, s.size);
    small[s.size] = '\0';
    return true;
}

bool str_to_long(struct str s, long long *out)
{
    char small[32];
    if (!to_small(s, small, sizeof small) || small[0] == '+')
        return false;
    char *end;
    errno = 0;
    long long value = strtoll(small, &end, 10);
    if (errno || *end || end == small)
        return false;
    *out = value;
    return true;
}

bool str_to_double(struct str s, double *out)
{
    char small[64];
    if (!to_small(s, small, sizeof small))
        return false;
    char *end;
    errno = 0;
    double value = strtod(small, &end);
    if (*end || end == small)
        return false;
    *out = value;
    return true;
}

static size_t number_length(struct str s)
{
    size_t length = 0;
    while (length < s.size &&
           ((s.data[length] >= '0' && s.data[length] <= '9') || s.data[length] == '.'))
        length++;
    return length;
}

bool str_to_duration_ms(struct str s, long long *out)
{
    static const struct {
        const char *name;
        double ms;
    } units[] = {{"", 1}, {"ms", 1}, {"s", 1e3}, {"m", 6e4}, {"h", 3.6e6}, {"d", 8.64e7}};
    size_t length = number_length(s);
    double value;
    if (!str_to_double(str_upto(s, length), &value))
        return false;
    struct str unit = str_from(s, length);
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        if (!str_is(unit, units[i].name))
            continue;
        double ms = value * units[i].ms;
        if (ms > 9e15)
            return false;
        *out = (long long)llround(ms);
        return true;
    }
    return false;
}

bool str_to_size(struct str s, unsigned long long *out)
{
    size_t length = number_length(s);
    double value;
    if (!str_to_double(str_upto(s, length), &value))
        return false;
    struct str unit = str_from(s, length);
    double factor = 1;
    if (unit.size) {
        static const char letters[] = "kmgt";
        char lower = (char)(unit.data[0] | 0x20);
        const char *hit = strchr(letters, lower);
        if (hit && lower) {
            factor = pow(1024, (double)(hit - letters + 1));
            unit = str_from(unit, 1);
        }
        if (unit.size && !str_equal_nocase(unit, STR("b")) && !str_equal_nocase(unit, STR("ib")))
            return false;
    }
    if (value * factor > 9e18)
        return false;
    *out = (unsigned long long)(value * factor);
    return true;
}

bool str_is_utf8(struct str s)
{
    const unsigned char *at = (const unsigned char *)s.data;
    const unsigned char *end = at + s.size;
    while (at < end) {
        unsigned char lead = *at;
        if (lead < 0x80) {
            at++;
            continue;
        }
        int more = lead >= 0xc2 && lead <= 0xdf   ? 1
                   : lead >= 0xe0 && lead <= 0xef ? 2
                   : lead >= 0xf0 && lead <= 0xf4 ? 3
                                                  : 0;
        if (!more || end - at <= more)
            return false;
        for (int i = 1; i <= more; i++)
            if ((at[i] & 0xc0) != 0x80)
                return false;
        if ((lead == 0xe0 && at[1] < 0xa0) || (lead == 0xed && at[1] > 0x9f) ||
            (lead == 0xf0 && at[1] < 0x90) || (lead == 0xf4 && at[1] > 0x8f))
            return false;
        at += more + 1;
    }
    return true;
}

void str_hex(char out[16], unsigned long long number)
{
    for (int i = 16; i--; number >>= 4)
        out[i] = "0123456789abcdef"[number & 15];
}
