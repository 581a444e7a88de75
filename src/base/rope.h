/* rope.h - bytes in a row of which long stretches lie elsewhere: written once, sent from where they
 * are. What is short is copied to `text`; at some places of it pieces come in that somebody else
 * owns and that are let go when they were consumed. A zeroed struct is an empty rope. */
#ifndef BASE_ROPE_H
#define BASE_ROPE_H

#include <sys/uio.h>

#include "base/buf.h"
#include "base/str.h"

struct rope_piece {
    size_t at; /* before which byte of the text, counted from the first there ever was */
    struct str bytes;
    void *owner;
    void (*release)(void *owner);
};

struct rope {
    struct buf text;          /* append to it as to any buffer */
    size_t gone;              /* bytes of the text that were consumed */
    size_t outside;           /* bytes in pieces */
    struct rope_piece *piece; /* those of first..count are still there */
    size_t first, count, capacity;
};

/* Shorter than this, a copy is cheaper than a piece. */
#define ROPE_PIECE_BYTES_MIN 2048

static inline size_t rope_size(const struct rope *rope)
{
    return rope->text.size + rope->outside;
}

/* `bytes` follow what is in the rope; release(owner) comes once, when they are gone. */
void rope_hang(struct rope *rope, struct str bytes, void *owner, void (*release)(void *owner));
/* All of `from` follows what is in `rope`; `from` is empty afterwards. */
void rope_move(struct rope *rope, struct rope *from);
/* The first bytes, in at most `max` stretches; how many there are. */
size_t rope_front(const struct rope *rope, struct iovec *out, size_t max);
void rope_consume(struct rope *rope, size_t count);
void rope_deinit(struct rope *rope);

static inline void own_rope(struct rope *rope)
{
    rope_deinit(rope);
}

#endif
