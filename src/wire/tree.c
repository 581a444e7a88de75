/* tree.c - a tree as a byte stream of records; see docs/wire.md.
 *
 *     record = kind:u8 mode:u32 mtime_s:i64 mtime_ns:u32 size:u64 path_size:u16 link_size:u16 path
 * link
 *
 * followed, for a file, by `size` bytes. The decoder keeps at most one record's head; file content
 * is handed through in the pieces it arrives in. A path is checked here, once, so that what comes
 * out of the decoder cannot name anything outside the tree. */
#include "wire/wire.h"

#include <string.h>

#include "base/err.h"

static void put_number(char **at, uint64_t value, size_t size)
{
    for (size_t i = 0; i < size; i++)
        *(*at)++ = (char)(value >> (8 * i));
}

static uint64_t take_number(const char **at, size_t size)
{
    uint64_t value = 0;
    for (size_t i = 0; i < size; i++)
        value |= (uint64_t)(unsigned char)*(*at)++ << (8 * i);
    return value;
}

void wire_entry_add(struct buf *out, const struct wire_entry *entry)
{
    char *at = buf_reserve(out, WIRE_ENTRY_HEADER_SIZE + entry->path.size + entry->link.size);
    put_number(&at, entry->kind, 1);
    put_number(&at, entry->mode, 4);
    put_number(&at, (uint64_t)entry->mtime_s, 8);
    put_number(&at, entry->mtime_ns, 4);
    put_number(&at, entry->size, 8);
    put_number(&at, entry->path.size, 2);
    put_number(&at, entry->link.size, 2);
    buf_added(out, WIRE_ENTRY_HEADER_SIZE);
    buf_str_append(out, entry->path);
    buf_str_append(out, entry->link);
}

bool wire_path_is_inside(struct str path)
{
    if (!path.size || path.size > WIRE_PATH_MAX || memchr(path.data, 0, path.size))
        return false;
    while (path.data) {
        struct str part = str_cut(&path, '/');
        if (!part.size || part.size > 255 || str_is(part, ".") || str_is(part, ".."))
            return false;
    }
    return true;
}

static bool entry_is_valid(const struct wire_entry *entry)
{
    if (entry->mode & ~07777u || entry->mtime_ns >= 1000000000u)
        return false;
    if (entry->size && entry->kind != WIRE_ENTRY_FILE)
        return false;
    if (entry->size > INT64_MAX)
        return false;
    if ((entry->kind == WIRE_ENTRY_LINK) != (entry->link.size > 0))
        return false;
    if (entry->link.size && memchr(entry->link.data, 0, entry->link.size))
        return false;
    switch (entry->kind) {
    case WIRE_ENTRY_ENTER:
    case WIRE_ENTRY_LEAVE:
        return !entry->path.size || wire_path_is_inside(entry->path);
    case WIRE_ENTRY_FILE:
    case WIRE_ENTRY_LINK:
    case WIRE_ENTRY_SKIP:
        return wire_path_is_inside(entry->path);
    case WIRE_ENTRY_END:
        return !entry->path.size;
    }
    return false;
}

/* Moves bytes from the input until the head has `size`; true when it does. */
static bool fill(struct wire_entry_decoder *decoder, struct str *input, size_t size)
{
    if (decoder->head_size < size) {
        struct str piece = str_upto(*input, size - decoder->head_size);
        if (piece.size)
            memcpy(decoder->head + decoder->head_size, piece.data, piece.size);
        decoder->head_size += piece.size;
        *input = str_from(*input, piece.size);
    }
    return decoder->head_size >= size;
}

int wire_entry_next(struct wire_entry_decoder *decoder, struct str *input, struct wire_entry *entry,
                    struct str *data, struct err *err)
{
    if (!input->size)
        return WIRE_EVENT_MORE;
    if (decoder->ended)
        return err_set(err, ERR_PROTOCOL, "bytes after the end of a tree");
    if (decoder->data_left) {
        size_t size = decoder->data_left < input->size ? (size_t)decoder->data_left : input->size;
        *data = str_upto(*input, size);
        *input = str_from(*input, size);
        decoder->data_left -= size;
        return WIRE_EVENT_DATA;
    }
    if (!fill(decoder, input, WIRE_ENTRY_HEADER_SIZE))
        return WIRE_EVENT_MORE;
    const char *at = decoder->head;
    *entry = (struct wire_entry){0};
    entry->kind = (uint8_t)take_number(&at, 1);
    entry->mode = (uint32_t)take_number(&at, 4);
    entry->mtime_s = (int64_t)take_number(&at, 8);
    entry->mtime_ns = (uint32_t)take_number(&at, 4);
    entry->size = take_number(&at, 8);
    size_t path_size = take_number(&at, 2), link_size = take_number(&at, 2);
    if (path_size > WIRE_PATH_MAX || link_size > WIRE_PATH_MAX)
        return err_set(err, ERR_PROTOCOL, "a tree entry's name is too long");
    if (!fill(decoder, input, WIRE_ENTRY_HEADER_SIZE + path_size + link_size))
        return WIRE_EVENT_MORE;
    entry->path = str_make(decoder->head + WIRE_ENTRY_HEADER_SIZE, path_size);
    entry->link = str_make(entry->path.data + path_size, link_size);
    if (!entry_is_valid(entry))
        return err_set(err, ERR_PROTOCOL, "malformed tree entry (kind %u)", entry->kind);
    decoder->head_size = 0;
    decoder->data_left = entry->size;
    decoder->ended = entry->kind == WIRE_ENTRY_END;
    return WIRE_EVENT_ENTRY;
}
