#include "base/clock.h"

#include <string.h>
#include <time.h>

static uint64_t now_ns(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

uint64_t clock_mono_ns(void)
{
    return now_ns(CLOCK_MONOTONIC);
}

uint64_t clock_mono_ms(void)
{
    return now_ns(CLOCK_MONOTONIC) / 1000000u;
}

uint64_t clock_wall_ms(void)
{
    return now_ns(CLOCK_REALTIME) / 1000000u;
}

/* `digits` decimal digits at `at`; returns what follows them. */
static char *put(char *at, unsigned number, unsigned digits, char after)
{
    for (unsigned i = digits; i--; number /= 10)
        at[i] = (char)('0' + number % 10);
    at[digits] = after;
    return at + digits + 1;
}

/* A record has many times in it, and gmtime_r() takes a lock: so the date is counted here. Years
 * begin in March, which puts the leap day last; 400 of them have 146097 days. */
void clock_format(uint64_t wall_ms, char *text, size_t size)
{
    char all[32], *at = all;
    uint64_t seconds = wall_ms / 1000;
    if (seconds > 253402300799u) /* the end of the year 9999 */
        seconds = 253402300799u;
    unsigned second = (unsigned)(seconds % 86400);
    unsigned day =
        (unsigned)(seconds / 86400) + 719468; /* since the first of March of the year 0 */
    unsigned era = day / 146097;
    day %= 146097;
    unsigned year = (day - day / 1460 + day / 36524 - day / 146096) / 365;
    day -= 365 * year + year / 4 - year / 100;
    unsigned month = (5 * day + 2) / 153;
    day -= (153 * month + 2) / 5;
    month = month < 10 ? month + 3 : month - 9;
    at = put(at, year + era * 400 + (month <= 2), 4, '-');
    at = put(at, month, 2, '-');
    at = put(at, day + 1, 2, 'T');
    at = put(at, second / 3600, 2, ':');
    at = put(at, second / 60 % 60, 2, ':');
    at = put(at, second % 60, 2, '.');
    at = put(at, (unsigned)(wall_ms % 1000), 3, 'Z');
    size_t length = (size_t)(at - all) < size ? (size_t)(at - all) : size - 1;
    memcpy(text, all, length);
    text[length] = '\0';
}
