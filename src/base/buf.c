#include "base/buf.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/check.h"
#include "base/mem.h"

void buf_deinit(struct buf *buf)
{
    free(buf->start);
    *buf = (struct buf){0};
}

char *buf_grow(struct buf *buf, size_t more)
{
    size_t front = (size_t)(buf->data - buf->start);
    if (buf->start && buf->capacity - buf->size >= more && front >= buf->size) {
        memmove(buf->start, buf->data, buf->size);
        buf->data = buf->start;
        return buf->data + buf->size;
    }
    CHECK(more < SIZE_MAX / 4 && buf->size < SIZE_MAX / 4);
    size_t capacity = buf->capacity < 64 ? 64 : buf->capacity;
    while (capacity < buf->size + more)
        capacity += capacity / 2 + 64;
    char *start = mem_alloc(capacity);
    if (buf->size)
        memcpy(start, buf->data, buf->size);
    free(buf->start);
    buf->start = buf->data = start;
    buf->capacity = capacity;
    return buf->data + buf->size;
}

void buf_vformat(struct buf *buf, const char *format, va_list args)
{
    va_list again;
    va_copy(again, args);
    int size = vsnprintf(NULL, 0, format, args);
    CHECK(size >= 0);
    vsnprintf(buf_reserve(buf, (size_t)size + 1), (size_t)size + 1, format, again);
    va_end(again);
    buf->size += (size_t)size;
}

void buf_format(struct buf *buf, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    buf_vformat(buf, format, args);
    va_end(args);
}

void buf_consume(struct buf *buf, size_t count)
{
    CHECK(count <= buf->size);
    buf->data += count;
    buf->size -= count;
    if (!buf->size)
        buf->data = buf->start;
}

const char *buf_text(struct buf *buf)
{
    *buf_reserve(buf, 1) = '\0';
    return buf->data;
}

char *buf_take(struct buf *buf)
{
    char *text = str_dup(buf_str(buf));
    buf_deinit(buf);
    return text;
}
