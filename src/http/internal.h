/* internal.h - what server and client share: deadlines and the text of heads. */
#ifndef HTTP_INTERNAL_H
#define HTTP_INTERNAL_H

#include "http/http.h"
#include "loop/loop.h"

/* A deadline that is moved far more often than it passes: moving it later costs no heap operation,
 * the timer notices when it rings. */
struct http_deadline {
    struct loop *loop;
    uint64_t due_ms; /* 0: none */
    struct loop_timer timer;
    void (*on_passed)(struct http_deadline *deadline);
};

void http_deadline_set(struct loop *loop, struct http_deadline *deadline, uint64_t due_ms);
void http_deadline_stop(struct http_deadline *deadline);

/* Writes "Name: value\r\n" to `out` and returns its size; 0 when the name is no name. Control
 * characters in the value become blanks: what is relayed from elsewhere must not start a line of
 * its own. */
size_t http_field_write(char *out, struct str name, struct str value);
static inline size_t http_field_size(struct str name, struct str value)
{
    return name.size + value.size + 4;
}
/* Fields that say how a message is framed or sent: never taken from a caller. */
bool http_field_is_ours(struct str name);
const char *http_status_text(int status);
/* "Sun, 06 Nov 1994 08:49:37 GMT", made once a second and thread. */
struct str http_date(void);

#endif
