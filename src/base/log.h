/* log.h - one line per event on standard error, as text or as JSON. Safe from any thread.
 * Secrets never come here: log names of things, not their values. */
#ifndef BASE_LOG_H
#define BASE_LOG_H

#include <stdbool.h>

enum log_level { LOG_DEBUG, LOG_INFO, LOG_WARN, LOG_ERROR, LOG_OFF };

void log_setup(enum log_level level, bool json);
enum log_level log_level(void);
/* `subject` is an id ("r-...", "sb-...") or NULL. The text is one sentence without a final stop. */
void log_write(enum log_level level, const char *room, const char *subject, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* The same about a part of a rollout: a call, by its id. Either may be NULL. */
void log_write_of(enum log_level level, const char *room, const char *rollout, const char *subject,
                  const char *format, ...) __attribute__((format(printf, 5, 6)));

#define LOG_DEBUG(room, subject, ...) log_write(LOG_DEBUG, room, subject, __VA_ARGS__)
#define LOG_INFO(room, subject, ...) log_write(LOG_INFO, room, subject, __VA_ARGS__)
#define LOG_WARN(room, subject, ...) log_write(LOG_WARN, room, subject, __VA_ARGS__)
#define LOG_ERROR(room, subject, ...) log_write(LOG_ERROR, room, subject, __VA_ARGS__)

#endif
