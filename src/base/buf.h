/* buf.h - bytes that are owned and grow. A zeroed struct is an empty buffer. `data` is not
 * terminated unless buf_text() was just called. Consuming from the front is cheap. */
#ifndef BASE_BUF_H
#define BASE_BUF_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include "base/str.h"

struct buf {
    char *data;      /* first live byte */
    size_t size;     /* live bytes */
    size_t capacity; /* bytes from `start` */
    char *start;     /* the allocation */
};

void buf_deinit(struct buf *buf);
static inline void own_buf(struct buf *buf)
{
    buf_deinit(buf);
}

char *buf_grow(struct buf *buf, size_t more); /* for buf_reserve() */
/* Room for `more` bytes at the end; returns where they go. Then buf_added(). */
static inline char *buf_reserve(struct buf *buf, size_t more)
{
    size_t used = (size_t)(buf->data - buf->start) + buf->size;
    return buf->start && buf->capacity - used >= more ? buf->data + buf->size : buf_grow(buf, more);
}
static inline void buf_added(struct buf *buf, size_t count)
{
    buf->size += count;
}
static inline void buf_append(struct buf *buf, const void *data, size_t size)
{
    if (!size)
        return;
    memcpy(buf_reserve(buf, size), data, size);
    buf->size += size;
}
static inline void buf_byte(struct buf *buf, char byte)
{
    *buf_reserve(buf, 1) = byte;
    buf->size++;
}

void buf_format(struct buf *buf, const char *format, ...) __attribute__((format(printf, 2, 3)));
void buf_vformat(struct buf *buf, const char *format, va_list args);
void buf_consume(struct buf *buf, size_t count); /* from the front */
static inline void buf_clear(struct buf *buf)
{
    buf->data = buf->start;
    buf->size = 0;
}
static inline struct str buf_str(const struct buf *buf)
{
    return (struct str){buf->data, buf->size};
}
static inline void buf_str_append(struct buf *buf, struct str s)
{
    buf_append(buf, s.data, s.size);
}
/* Terminates in place; valid until the next change. */
const char *buf_text(struct buf *buf);
/* The content as a terminated heap string; the buffer is empty afterwards. */
char *buf_take(struct buf *buf);

#endif
