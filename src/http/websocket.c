/* websocket.c - RFC 6455 frames, read and written. See websocket.h.
 *
 * A frame is a head of 2 to 14 bytes and its masked payload. Data frames are collected into
 * messages; control frames may stand between the pieces of one. Whatever the RFC forbids a client
 * to send ends the reading with the close code it names. Compression is never agreed to, so the
 * reserved bits are always zero. */
#include "http/websocket.h"

#include <openssl/evp.h>
#include <openssl/sha.h>
#include <string.h>

#define CONTROL_BYTES_MAX 125
#define KEY_SIZE 24 /* base64 of 16 bytes */
#define PROTOCOL_ERROR 1002
#define NOT_UTF8 1007
#define TOO_LARGE 1009

static bool is_control(enum websocket_opcode opcode)
{
    return opcode & 8;
}

/* Bytes a head has, as far as its first two tell. */
static size_t head_size(const struct buf *head)
{
    unsigned size = (unsigned char)head->data[1] & 0x7f;
    return 2 + 4 + (size == 126 ? 2 : size == 127 ? 8 : 0);
}

static int begin_frame(struct websocket_reader *reader)
{
    const unsigned char *head = (const unsigned char *)reader->head.data;
    reader->final = head[0] & 0x80;
    reader->opcode = (enum websocket_opcode)(head[0] & 0x0f);
    bool known = reader->opcode <= WEBSOCKET_BINARY ||
                 (reader->opcode >= WEBSOCKET_CLOSE && reader->opcode <= WEBSOCKET_PONG);
    if (head[0] & 0x70 || !known || !(head[1] & 0x80))
        return PROTOCOL_ERROR;
    uint64_t size = head[1] & 0x7f;
    size_t extra = size == 126 ? 2 : size == 127 ? 8 : 0;
    if (extra) {
        size = 0;
        for (size_t i = 0; i < extra; i++)
            size = size << 8 | head[2 + i];
        if (size < (extra == 2 ? 126u : 65536u) || size >> 63)
            return PROTOCOL_ERROR; /* a shorter form would have done */
    }
    memcpy(reader->mask, head + 2 + extra, 4);
    reader->mask_at = 0;
    reader->left = size;
    reader->in_payload = true;
    buf_clear(&reader->head);
    if (is_control(reader->opcode))
        return reader->final && size <= CONTROL_BYTES_MAX ? 0 : PROTOCOL_ERROR;
    if ((reader->opcode == WEBSOCKET_CONTINUATION) != reader->in_message)
        return PROTOCOL_ERROR;
    if (!reader->in_message)
        reader->kind = reader->opcode;
    reader->in_message = true;
    if (size > reader->message_bytes_max || reader->message.size > reader->message_bytes_max - size)
        return TOO_LARGE;
    return 0;
}

static void take_payload(struct websocket_reader *reader, const char *data, size_t size)
{
    struct buf *to = is_control(reader->opcode) ? &reader->control : &reader->message;
    char *out = buf_reserve(to, size ? size : 1);
    for (size_t i = 0; i < size; i++)
        out[i] = (char)((unsigned char)data[i] ^ reader->mask[(reader->mask_at + i) & 3]);
    buf_added(to, size);
    reader->mask_at = (reader->mask_at + (uint32_t)size) & 3;
    reader->left -= size;
}

/* -1: the callback has had enough. */
static int end_frame(struct websocket_reader *reader)
{
    reader->in_payload = false;
    bool go_on = true;
    if (is_control(reader->opcode)) {
        go_on = reader->on_message(reader->context, reader->opcode, buf_str(&reader->control));
        buf_clear(&reader->control);
        return go_on ? 0 : -1;
    }
    if (!reader->final)
        return 0;
    reader->in_message = false;
    if (reader->kind == WEBSOCKET_TEXT && !str_is_utf8(buf_str(&reader->message)))
        return NOT_UTF8;
    go_on = reader->on_message(reader->context, reader->kind, buf_str(&reader->message));
    buf_deinit(&reader->message);
    return go_on ? 0 : -1;
}

/* Collects up to the bytes the head needs; true when they are there. */
static bool take_head(struct websocket_reader *reader, struct str *bytes)
{
    while (bytes->size) {
        size_t wanted = reader->head.size < 2 ? 2 : head_size(&reader->head);
        size_t missing = wanted - reader->head.size;
        size_t size = missing < bytes->size ? missing : bytes->size;
        buf_append(&reader->head, bytes->data, size);
        *bytes = str_from(*bytes, size);
        if (reader->head.size >= 2 && reader->head.size == head_size(&reader->head))
            return true;
    }
    return false;
}

int websocket_feed(struct websocket_reader *reader, struct str bytes)
{
    for (;;) {
        if (!reader->in_payload) {
            if (!take_head(reader, &bytes))
                return 0;
            int code = begin_frame(reader);
            if (code)
                return code;
        }
        size_t size = reader->left < bytes.size ? (size_t)reader->left : bytes.size;
        take_payload(reader, bytes.data, size);
        bytes = str_from(bytes, size);
        if (reader->left)
            return 0;
        int code = end_frame(reader);
        if (code)
            return code < 0 ? 0 : code;
    }
}

void websocket_reader_deinit(struct websocket_reader *reader)
{
    buf_deinit(&reader->head);
    buf_deinit(&reader->message);
    buf_deinit(&reader->control);
}

void websocket_write_head(struct buf *out, enum websocket_opcode opcode, size_t payload)
{
    unsigned char head[10] = {(unsigned char)(0x80 | opcode)};
    size_t size = 2;
    if (payload < 126) {
        head[1] = (unsigned char)payload;
    } else if (payload < 65536) {
        head[1] = 126;
        head[2] = (unsigned char)(payload >> 8);
        head[3] = (unsigned char)payload;
        size = 4;
    } else {
        head[1] = 127;
        for (int i = 0; i < 8; i++)
            head[2 + i] = (unsigned char)((uint64_t)payload >> (56 - 8 * i));
        size = 10;
    }
    buf_append(out, head, size);
}

void websocket_write(struct buf *out, enum websocket_opcode opcode, struct str data)
{
    websocket_write_head(out, opcode, data.size);
    buf_str_append(out, data);
}

void websocket_write_close(struct buf *out, int code, struct str reason)
{
    char payload[CONTROL_BYTES_MAX];
    reason = str_upto(reason, sizeof payload - 2);
    payload[0] = (char)(code >> 8);
    payload[1] = (char)code;
    if (reason.size)
        memcpy(payload + 2, reason.data, reason.size);
    websocket_write(out, WEBSOCKET_CLOSE, str_make(payload, reason.size + 2));
}

int websocket_close_code(struct str data)
{
    if (data.size == 0)
        return 1005;
    if (data.size == 1 || !str_is_utf8(str_from(data, 2)))
        return PROTOCOL_ERROR;
    int code = (unsigned char)data.data[0] << 8 | (unsigned char)data.data[1];
    bool allowed = (code >= 1000 && code <= 1014 && code != 1004 && code != 1005 && code != 1006) ||
                   (code >= 3000 && code <= 4999);
    return allowed ? code : PROTOCOL_ERROR;
}

bool websocket_accept(struct str key, char out[29])
{
    static const char guid[] = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
    unsigned char all[KEY_SIZE + sizeof guid - 1], digest[SHA_DIGEST_LENGTH];
    if (key.size != KEY_SIZE || key.data[22] != '=' || key.data[23] != '=')
        return false;
    for (size_t i = 0; i < 22; i++) {
        char c = key.data[i];
        if (!((c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') ||
              c == '+' || c == '/'))
            return false;
    }
    memcpy(all, key.data, KEY_SIZE);
    memcpy(all + KEY_SIZE, guid, sizeof guid - 1);
    SHA1(all, sizeof all, digest);
    EVP_EncodeBlock((unsigned char *)out, digest, sizeof digest);
    return true;
}
