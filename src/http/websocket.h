/* websocket.h - RFC 6455 frames as pure functions. Private to the http room and its fuzzers. */
#ifndef HTTP_WEBSOCKET_H
#define HTTP_WEBSOCKET_H

#include "http/http.h"

enum websocket_opcode {
    WEBSOCKET_CONTINUATION = 0,
    WEBSOCKET_TEXT = 1,
    WEBSOCKET_BINARY = 2,
    WEBSOCKET_CLOSE = 8,
    WEBSOCKET_PING = 9,
    WEBSOCKET_PONG = 10,
};

/* Frames of a client. A zeroed struct with the callbacks and the maximum is ready. */
struct websocket_reader {
    size_t message_bytes_max;
    /* A whole message (TEXT, BINARY) or control frame (CLOSE, PING, PONG); texts are UTF-8. Returns
     * false to stop reading. */
    bool (*on_message)(void *context, enum websocket_opcode opcode, struct str data);
    void *context;

    struct buf head, message, control;
    enum websocket_opcode opcode; /* of the frame being read */
    enum websocket_opcode kind;   /* of the message being read */
    uint64_t left;                /* of the frame's payload */
    unsigned char mask[4];
    uint32_t mask_at;
    bool in_payload, final, in_message;
};

/* 0, or the close code that says what is wrong: 1002 (protocol), 1007 (not UTF-8), 1009 (too
 * large). After that only websocket_reader_deinit() is allowed. */
int websocket_feed(struct websocket_reader *reader, struct str bytes);
void websocket_reader_deinit(struct websocket_reader *reader);

/* One whole frame, unmasked, as servers send them. */
void websocket_write(struct buf *out, enum websocket_opcode opcode, struct str data);
/* What comes before its payload. */
void websocket_write_head(struct buf *out, enum websocket_opcode opcode, size_t payload);
void websocket_write_close(struct buf *out, int code, struct str reason);
/* The code of a close frame's payload: 1005 when there is none, 1002 when it is not allowed. */
int websocket_close_code(struct str data);
/* Sec-WebSocket-Accept for a Sec-WebSocket-Key; `out` is terminated. False: that is no key. */
bool websocket_accept(struct str key, char out[29]);

#endif
