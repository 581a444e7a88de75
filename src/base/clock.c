#include "base/clock.h"

#include <stdio.h>
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

void clock_format(uint64_t wall_ms, char *text, size_t size)
{
    time_t seconds = (time_t)(wall_ms / 1000);
    struct tm parts;
    gmtime_r(&seconds, &parts);
    snprintf(text, size, "%04d-%02d-%02dT%02d:%02d:%02d.%03uZ", parts.tm_year + 1900,
             parts.tm_mon + 1, parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec,
             (unsigned)(wall_ms % 1000));
}
