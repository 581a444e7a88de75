/* sse.h - private to the dialect room: cuts a byte stream into server-sent events, whatever the
 * pieces. */
#ifndef DIALECT_SSE_H
#define DIALECT_SSE_H

#include "base/buf.h"

struct sse_event {
    struct str raw;  /* all its bytes, the blank line included */
    struct str name; /* the event: line; empty: none */
    struct str data; /* data: lines joined by LF; STR_NONE: there were none */
};

/* Bytes are cut where they are (`fresh`); only what is not a whole event at the end of a piece is
 * kept (`pending`), and what follows is then put behind it. */
struct sse {
    struct str fresh;
    struct str name, data; /* of this event, in the bytes or in kept_name and joined */
    size_t scanned;        /* bytes that were cut into lines */
    bool has_data, begun;
    bool kept;      /* kept_name or joined hold something */
    size_t checked; /* bytes after `scanned` that are known to hold no line end */
    struct buf pending;
    struct buf kept_name, joined;
};

void dialect_sse_deinit(struct sse *sse);
void dialect_sse_feed(struct sse *sse, struct str bytes);
/* `bytes` must stay until dialect_sse_next() said that there is nothing more.
 * The next whole event, valid until the next call. With `last` set, what is left counts as a whole
 * event. */
bool dialect_sse_next(struct sse *sse, bool last, struct sse_event *out);

#endif
