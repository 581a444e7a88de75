#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"

#define LINE_MAX_BYTES 2048

static enum log_level least = LOG_WARN;
static bool as_json;

void log_setup(enum log_level level, bool json)
{
    least = level;
    as_json = json;
}

enum log_level log_level(void)
{
    return least;
}

/* Control bytes, quotes and backslashes are escaped in both forms: a log line is always one line.
 */
static size_t quote(char *out, size_t room, const char *text)
{
    size_t used = 0;
    for (; *text && used + 7 < room; text++) {
        unsigned char byte = (unsigned char)*text;
        if (byte == '"' || byte == '\\')
            used += (size_t)snprintf(out + used, room - used, "\\%c", byte);
        else if (byte == '\n')
            used += (size_t)snprintf(out + used, room - used, "\\n");
        else if (byte < 0x20 || byte == 0x7f)
            used += (size_t)snprintf(out + used, room - used, "\\u%04x", byte);
        else
            out[used++] = (char)byte;
    }
    out[used] = '\0';
    return used;
}

static void put(enum log_level level, const char *room, const char *rollout, const char *subject,
                const char *text)
{
    static const char *const names[] = {"debug", "info", "warn", "error", "off"};
    char quoted[1400], time[32], line[LINE_MAX_BYTES];
    quote(quoted, sizeof quoted, text);
    clock_format(clock_wall_ms(), time, sizeof time);
    const char *both = rollout && subject ? " " : "";
    rollout = rollout ? rollout : "";
    subject = subject ? subject : "";
    int used =
        as_json ? snprintf(line, sizeof line,
                           "{\"time\":\"%s\",\"level\":\"%s\",\"room\":\"%s\",\"id\":\"%s\","
                           "%s%s%s\"text\":\"%s\"}\n",
                           time, names[level], room, subject, *rollout ? "\"rollout\":\"" : "",
                           rollout, *rollout ? "\"," : "", quoted)
                : snprintf(line, sizeof line, "%s %-5s %s%s%s%s%s: %s\n", time, names[level], room,
                           *rollout || *subject ? " " : "", rollout, both, subject, quoted);
    if (used >= (int)sizeof line)
        used = (int)sizeof line - 1;
    (void)!write(STDERR_FILENO, line, (size_t)used);
}

static void write_args(enum log_level level, const char *room, const char *rollout,
                       const char *subject, const char *format, va_list args)
{
    if (level < least || level >= LOG_OFF)
        return;
    char text[1024];
    vsnprintf(text, sizeof text, format, args);
    put(level, room, rollout, subject, text);
}

void log_write(enum log_level level, const char *room, const char *subject, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    write_args(level, room, NULL, subject, format, args);
    va_end(args);
}

void log_write_of(enum log_level level, const char *room, const char *rollout, const char *subject,
                  const char *format, ...)
{
    va_list args;
    va_start(args, format);
    write_args(level, room, rollout, subject, format, args);
    va_end(args);
}
