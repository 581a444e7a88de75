/* frame.c - frames and credit.
 *
 * The decoder keeps unread bytes in one buffer and hands out payloads in place, without a copy;
 * only a message of several frames is put together in a second buffer. Its frames must follow each
 * other, so there is never more than one such message per connection, and its size is limited
 * before a byte of it is kept. With `wipe` set, what was handed out is zeroed when the next frame
 * is asked for, and no copy stays behind when a buffer grows: the porter sees environments with
 * keys in them. */
#include "wire/wire.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "base/mem.h"

#define HELLO_MARK_SIZE (WIRE_HEADER_SIZE + 8)
#define HELLO_PAYLOAD_SIZE 24

/* clang-format off */
static const struct {
    const char *name;
    bool message;          /* may span frames */
    uint32_t size_min, size_max;
} types[] = {
    [WIRE_HELLO]    = {"hello",    false, HELLO_PAYLOAD_SIZE, HELLO_PAYLOAD_SIZE},
    [WIRE_PING]     = {"ping",     false, 8, 8},
    [WIRE_PONG]     = {"pong",     false, 8, 8},
    [WIRE_LOOKUP]   = {"lookup",   false, 1, 253},
    [WIRE_KEPT]     = {"kept",     false, 0, WIRE_KEPT_MAX * 37},
    [WIRE_EXEC]     = {"exec",     true,  1, WIRE_MESSAGE_MAX},
    [WIRE_PUT]      = {"put",      false, 1, WIRE_PAYLOAD_MAX},
    [WIRE_GET]      = {"get",      false, 1, WIRE_PAYLOAD_MAX},
    [WIRE_PUT_TREE] = {"put_tree", false, 1, WIRE_PAYLOAD_MAX},
    [WIRE_GET_TREE] = {"get_tree", false, 1, WIRE_PAYLOAD_MAX},
    [WIRE_STAT]     = {"stat",     false, 1, WIRE_PAYLOAD_MAX},
    [WIRE_REMOVE]   = {"remove",   false, 1, WIRE_PAYLOAD_MAX},
    [WIRE_KILL_ALL] = {"kill_all", false, 0, 0},
    [WIRE_INLET]    = {"inlet",    false, 0, 0},
    [WIRE_DATA]     = {"data",     false, 1, WIRE_PAYLOAD_MAX},
    [WIRE_CREDIT]   = {"credit",   false, 4, 4},
    [WIRE_END]      = {"end",      false, 0, 0},
    [WIRE_RESET]    = {"reset",    false, 0, 0},
    [WIRE_SIGNAL]   = {"signal",   false, 1, 1},
    [WIRE_KILL]     = {"kill",     false, 0, 0},
    [WIRE_RESIZE]   = {"resize",   false, 4, 4},
    [WIRE_ATTACH]   = {"attach",   false, 8, 8},
    [WIRE_EXIT]     = {"exit",     false, 1, WIRE_PAYLOAD_MAX},
    [WIRE_DONE]     = {"done",     false, 1, WIRE_PAYLOAD_MAX},
    [WIRE_STATUS]   = {"status",   false, 1, WIRE_PAYLOAD_MAX},
};
/* clang-format on */

const char *wire_type_name(uint8_t type)
{
    return type < COUNT(types) ? types[type].name : NULL;
}

static uint32_t get32(const char *bytes)
{
    const unsigned char *b = (const unsigned char *)bytes;
    return (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
}

static void set32(char *bytes, uint32_t value)
{
    for (int i = 0; i < 4; i++)
        bytes[i] = (char)(value >> (8 * i));
}

/* ---------------------------------------------------------------- decoding */
static void wiped_free(struct buf *buf, bool wipe)
{
    if (wipe && buf->start)
        explicit_bzero(buf->start, buf->capacity);
    buf_deinit(buf);
}

/* Like buf_reserve, but a buffer that is left behind is zeroed first. */
static char *wiped_reserve(struct buf *buf, size_t more, bool wipe)
{
    size_t front = (size_t)(buf->data - buf->start);
    if (!wipe || !buf->start || buf->capacity - front - buf->size >= more)
        return buf_reserve(buf, more);
    if (buf->capacity - buf->size >= more) {
        memmove(buf->start, buf->data, buf->size);
        explicit_bzero(buf->start + buf->size, front);
        buf->data = buf->start;
        return buf->data + buf->size;
    }
    struct buf larger = {0};
    buf_reserve(&larger, 2 * buf->size + more);
    buf_append(&larger, buf->data, buf->size);
    wiped_free(buf, true);
    *buf = larger;
    return buf_reserve(buf, more);
}

void wire_decoder_deinit(struct wire_decoder *decoder)
{
    wiped_free(&decoder->in, decoder->wipe);
    wiped_free(&decoder->message, decoder->wipe);
}

/* Lets go of what the last call handed out. */
static void release(struct wire_decoder *decoder)
{
    if (decoder->handed_out) {
        if (decoder->wipe)
            explicit_bzero(decoder->in.data, decoder->handed_out);
        buf_consume(&decoder->in, decoder->handed_out);
        decoder->handed_out = 0;
    }
    if (decoder->whole) {
        wiped_free(&decoder->message, decoder->wipe);
        decoder->whole = false;
    }
}

char *wire_decoder_reserve(struct wire_decoder *decoder, size_t size)
{
    release(decoder);
    return wiped_reserve(&decoder->in, size, decoder->wipe);
}

void wire_decoder_added(struct wire_decoder *decoder, size_t size)
{
    buf_added(&decoder->in, size);
}

void wire_decoder_feed(struct wire_decoder *decoder, struct str bytes)
{
    if (!bytes.size)
        return;
    memcpy(wire_decoder_reserve(decoder, bytes.size), bytes.data, bytes.size);
    wire_decoder_added(decoder, bytes.size);
}

static int broken(struct wire_decoder *decoder, struct err *err, const char *what, unsigned value)
{
    decoder->broken = true;
    return err_set(err, ERR_PROTOCOL, "frame with %s (%u)", what, value);
}

static int check_header(struct wire_decoder *decoder, uint32_t length, uint32_t stream,
                        uint8_t type, uint8_t flags, unsigned zero, struct err *err)
{
    if (length > WIRE_PAYLOAD_MAX)
        return broken(decoder, err, "too long a payload", length);
    if (!wire_type_name(type))
        return broken(decoder, err, "an unknown type", type);
    if (zero)
        return broken(decoder, err, "reserved bytes set", zero);
    if (flags & WIRE_MORE ? !types[type].message : false)
        return broken(decoder, err, "a type that cannot be continued", type);
    if ((flags & ~WIRE_MORE) > (type == WIRE_DATA ? WIRE_CHANNEL_ERR : 0))
        return broken(decoder, err, "unknown flags", flags);
    if ((stream == 0) != (type < WIRE_EXEC))
        return broken(decoder, err, "a stream that does not fit its type", type);
    if (decoder->partial && (stream != decoder->stream || type != decoder->type))
        return broken(decoder, err, "another one in the middle of a message", type);
    if (decoder->message.size + length > types[type].size_max)
        return broken(decoder, err, "too long a payload for its type", type);
    if (decoder->message.size + length < types[type].size_min || (flags & WIRE_MORE && !length))
        return broken(decoder, err, "too short a payload", length);
    return 0;
}

int wire_decoder_next(struct wire_decoder *decoder, struct wire_frame *frame, struct err *err)
{
    if (decoder->broken)
        return err_set(err, ERR_PROTOCOL, "the frames were broken before");
    for (;;) {
        release(decoder);
        if (decoder->in.size < WIRE_HEADER_SIZE)
            return 0;
        const char *head = decoder->in.data;
        uint32_t length = get32(head), stream = get32(head + 4);
        uint8_t type = (uint8_t)head[8], flags = (uint8_t)head[9];
        unsigned zero = (unsigned char)head[10] | (unsigned)(unsigned char)head[11] << 8;
        if (check_header(decoder, length, stream, type, flags, zero, err) < 0)
            return -1;
        if (decoder->in.size - WIRE_HEADER_SIZE < length)
            return 0;
        struct str payload = {head + WIRE_HEADER_SIZE, length};
        decoder->handed_out = WIRE_HEADER_SIZE + length;
        if (flags & WIRE_MORE || decoder->partial) {
            memcpy(wiped_reserve(&decoder->message, length, decoder->wipe), payload.data, length);
            buf_added(&decoder->message, length);
            decoder->stream = stream;
            decoder->type = type;
            decoder->partial = flags & WIRE_MORE;
            if (decoder->partial)
                continue;
            decoder->whole = true;
            payload = buf_str(&decoder->message);
        }
        *frame = (struct wire_frame){
            .stream = stream, .type = type, .flags = flags & ~WIRE_MORE, .payload = payload};
        return 1;
    }
}

/* ---------------------------------------------------------------- encoding */
static void set_header(char *head, uint32_t length, uint32_t stream, uint8_t type, uint8_t flags)
{
    set32(head, length);
    set32(head + 4, stream);
    head[8] = (char)type;
    head[9] = (char)flags;
    head[10] = head[11] = 0;
}

void wire_frame_add(struct buf *out, uint32_t stream, uint8_t type, uint8_t flags,
                    struct str payload)
{
    do {
        struct str piece = str_upto(payload, WIRE_PAYLOAD_MAX);
        payload = str_from(payload, piece.size);
        uint8_t more = payload.size ? WIRE_MORE : 0;
        char *head = buf_reserve(out, WIRE_HEADER_SIZE + piece.size);
        set_header(head, (uint32_t)piece.size, stream, type, flags | more);
        if (piece.size)
            memcpy(head + WIRE_HEADER_SIZE, piece.data, piece.size);
        buf_added(out, WIRE_HEADER_SIZE + piece.size);
    } while (payload.size);
}

char *wire_frame_open(struct buf *out, size_t size)
{
    CHECK(size <= WIRE_PAYLOAD_MAX);
    return buf_reserve(out, WIRE_HEADER_SIZE + size) + WIRE_HEADER_SIZE;
}

void wire_frame_close(struct buf *out, uint32_t stream, uint8_t type, uint8_t flags, size_t size)
{
    if (!size)
        return;
    set_header(buf_reserve(out, WIRE_HEADER_SIZE + size), (uint32_t)size, stream, type, flags);
    buf_added(out, WIRE_HEADER_SIZE + size);
}

long wire_hello_find(struct str bytes)
{
    static const char mark[HELLO_MARK_SIZE] = {HELLO_PAYLOAD_SIZE,
                                               0,
                                               0,
                                               0,
                                               0,
                                               0,
                                               0,
                                               0,
                                               WIRE_HELLO,
                                               0,
                                               0,
                                               0,
                                               'P',
                                               'O',
                                               'S',
                                               'T',
                                               'E',
                                               'R',
                                               'N',
                                               0};
    return str_find(bytes, str_make(mark, sizeof mark));
}

/* ---------------------------------------------------------------- credit */
void wire_credit_init(struct wire_credit *credit, uint32_t window)
{
    *credit = (struct wire_credit){.window = window, .available = window};
}

void wire_credit_sent(struct wire_credit *credit, uint32_t size)
{
    CHECK(size <= credit->available);
    credit->available -= size;
}

bool wire_credit_granted(struct wire_credit *credit, uint32_t size)
{
    if (size == 0 || size > WIRE_WINDOW_MAX || credit->available > WIRE_WINDOW_MAX - size)
        return false;
    credit->available += size;
    return true;
}

bool wire_credit_received(struct wire_credit *credit, uint32_t size)
{
    if (size > credit->available)
        return false;
    credit->available -= size;
    return true;
}

uint32_t wire_credit_consumed(struct wire_credit *credit, uint32_t size)
{
    credit->consumed += size;
    if (credit->consumed < credit->window / 4)
        return 0;
    uint32_t grant = credit->consumed;
    credit->consumed = 0;
    credit->available += grant;
    return grant;
}
