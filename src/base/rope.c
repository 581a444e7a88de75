#include "base/rope.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/mem.h"

static struct rope_piece *piece_new(struct rope *rope)
{
    if (rope->count == rope->capacity && rope->first > rope->count / 2) {
        /* A rope that is never empty needs no more room than what is in it. */
        rope->count -= rope->first;
        memmove(rope->piece, rope->piece + rope->first, rope->count * sizeof *rope->piece);
        rope->first = 0;
    }
    if (rope->count == rope->capacity) {
        rope->capacity = rope->capacity ? rope->capacity * 2 : 8;
        rope->piece = mem_grow(rope->piece, rope->capacity * sizeof *rope->piece);
    }
    return &rope->piece[rope->count++];
}

void rope_hang(struct rope *rope, struct str bytes, void *owner, void (*release)(void *owner))
{
    size_t at = rope->gone + rope->text.size;
    *piece_new(rope) = (struct rope_piece){at, bytes, owner, release};
    rope->outside += bytes.size;
}

void rope_move(struct rope *rope, struct rope *from)
{
    if (!rope_size(rope) && rope->first == rope->count) {
        rope_deinit(rope);
        *rope = *from;
        *from = (struct rope){0};
        return;
    }
    size_t start = rope->gone + rope->text.size;
    for (size_t i = from->first; i < from->count; i++) {
        struct rope_piece *piece = piece_new(rope);
        *piece = from->piece[i];
        piece->at = start + (piece->at - from->gone);
    }
    rope->outside += from->outside;
    buf_str_append(&rope->text, buf_str(&from->text));
    from->count = from->first; /* their pieces are ours now */
    rope_deinit(from);
}

size_t rope_front(const struct rope *rope, struct iovec *out, size_t max)
{
    size_t used = 0, of_text = 0;
    for (size_t i = rope->first; used < max; i++) {
        size_t until = i < rope->count ? rope->piece[i].at - rope->gone : rope->text.size;
        if (until > of_text)
            out[used++] = (struct iovec){rope->text.data + of_text, until - of_text};
        of_text = until;
        if (i == rope->count)
            break;
        struct str bytes = rope->piece[i].bytes;
        if (bytes.size && used < max)
            out[used++] = (struct iovec){(char *)(uintptr_t)bytes.data, bytes.size};
    }
    return used;
}

void rope_consume(struct rope *rope, size_t count)
{
    CHECK(count <= rope_size(rope));
    while (rope->first < rope->count) {
        struct rope_piece *piece = &rope->piece[rope->first];
        size_t before = piece->at - rope->gone;
        size_t of_text = before < count ? before : count;
        if (of_text)
            buf_consume(&rope->text, of_text);
        rope->gone += of_text;
        count -= of_text;
        if (of_text < before)
            return;
        size_t of_piece = piece->bytes.size < count ? piece->bytes.size : count;
        piece->bytes = str_from(piece->bytes, of_piece);
        rope->outside -= of_piece;
        count -= of_piece;
        if (piece->bytes.size)
            return;
        rope->first++;
        piece->release(piece->owner);
    }
    if (count)
        buf_consume(&rope->text, count);
    rope->gone += count;
}

void rope_deinit(struct rope *rope)
{
    for (size_t i = rope->first; i < rope->count; i++)
        rope->piece[i].release(rope->piece[i].owner);
    free(rope->piece);
    buf_deinit(&rope->text);
    *rope = (struct rope){0};
}
