/* websocket_server.c - the server's end of a WebSocket: RFC 6455, sections 4.2, 5.5 and 7.
 *
 *     open ──close sent──► closing ──close seen, or too late──► over (on_closed, once)
 *       └──close seen, peer gone, nonsense──────────────────────►
 *
 * Pings go out when nothing was heard for a while; a peer that is silent even then is gone, unless
 * it is us who do not listen. */
#include <stdio.h>
#include <stdlib.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/rope.h"
#include "http/websocket.h"
#include "loop/loop.h"

#define MESSAGE_BYTES_MAX ((size_t)64 << 20)
#define PING_MS 20000
#define SILENCE_MS_MAX 60000
#define CLOSING_MS_MAX 5000
#define PONGS_BYTES_MAX ((size_t)64 << 10) /* of all that waits: then only the last ping counts */
#define GONE 1006

struct http_websocket {
    struct http_exchange *exchange; /* NULL: the connection is over */
    struct loop *loop;
    struct http_websocket_options options;
    struct websocket_reader reader;
    struct loop_timer timer;
    uint64_t heard_ms;
    bool closing; /* our close frame is out */
    bool closed;  /* on_closed was called, or its owner let go */
    bool paused;
    bool pong_due;   /* for the last ping, when there is room again */
    struct buf ping; /* what it said */
};

static void websocket_free(void *argument)
{
    struct http_websocket *socket = argument;
    websocket_reader_deinit(&socket->reader);
    buf_deinit(&socket->ping);
    free(socket);
}

/* The one end. `code` is what the owner is told. */
static void finish(struct http_websocket *socket, int code, bool reset)
{
    struct http_exchange *exchange = TAKE(socket->exchange);
    loop_timer_stop(&socket->timer);
    if (exchange && reset)
        http_exchange_reset(exchange);
    else if (exchange)
        http_respond_end(exchange);
    if (!socket->closed) {
        socket->closed = true;
        socket->options.on_closed(socket->options.context, code);
    }
    loop_defer(socket->loop, websocket_free, socket);
}

static void send_frame(struct http_websocket *socket, enum websocket_opcode opcode, struct str data)
{
    OWN(buf) struct buf frame = {0};
    websocket_write(&frame, opcode, data);
    (void)http_respond_write(socket->exchange, buf_str(&frame));
}

static void send_close(struct http_websocket *socket, int code, struct str reason)
{
    OWN(buf) struct buf frame = {0};
    if (socket->closing)
        return;
    socket->closing = true;
    websocket_write_close(&frame, code, reason);
    (void)http_respond_write(socket->exchange, buf_str(&frame));
}

/* A peer that asks and does not read is not answered each time: RFC 6455, 5.5.3. What waits is
 * above the mark below which on_drain comes. */
static void answer_ping(struct http_websocket *socket, struct str data)
{
    size_t low = socket->options.drain_bytes;
    size_t max = low > PONGS_BYTES_MAX ? low : PONGS_BYTES_MAX;
    socket->pong_due = http_respond_queued(socket->exchange) > max;
    buf_clear(&socket->ping);
    if (socket->pong_due)
        buf_str_append(&socket->ping, data);
    else
        send_frame(socket, WEBSOCKET_PONG, data);
}

static bool on_message(void *context, enum websocket_opcode opcode, struct str data)
{
    struct http_websocket *socket = context;
    switch (opcode) {
    case WEBSOCKET_PING:
        if (!socket->closing)
            answer_ping(socket, data);
        return true;
    case WEBSOCKET_CLOSE: {
        int code = websocket_close_code(data);
        send_close(socket, code == 1005 ? 1000 : code, STR_NONE);
        finish(socket, code, false);
        return false;
    }
    case WEBSOCKET_TEXT:
    case WEBSOCKET_BINARY:
        if (!socket->closing)
            socket->options.on_message(socket->options.context, opcode == WEBSOCKET_TEXT, data);
        return socket->exchange != NULL;
    case WEBSOCKET_PONG:
    case WEBSOCKET_CONTINUATION:
        return true;
    }
    return true;
}

static void on_data(void *context, struct http_exchange *exchange, struct str data, bool end,
                    const struct err *err)
{
    struct http_websocket *socket = context;
    (void)exchange;
    if (!socket->exchange)
        return;
    if (end || (err && err->kind != ERR_NONE)) {
        socket->exchange = NULL;
        finish(socket, GONE, false);
        return;
    }
    socket->heard_ms = loop_now_ms(socket->loop);
    int code = websocket_feed(&socket->reader, data);
    if (code && socket->exchange) {
        send_close(socket, code, STR_NONE);
        finish(socket, code, false);
    }
}

static void on_drain(void *context)
{
    struct http_websocket *socket = context;
    if (socket->pong_due && socket->exchange && !socket->closing)
        send_frame(socket, WEBSOCKET_PONG, buf_str(&socket->ping));
    socket->pong_due = false;
    if (!socket->closed && socket->options.on_drain)
        socket->options.on_drain(socket->options.context);
}

static void on_timer(struct loop_timer *timer)
{
    struct http_websocket *socket = timer->context;
    uint64_t quiet = loop_now_ms(socket->loop) - socket->heard_ms;
    if (socket->closing || (quiet >= SILENCE_MS_MAX && !socket->paused)) {
        finish(socket, GONE, true);
        return;
    }
    if (quiet >= PING_MS)
        send_frame(socket, WEBSOCKET_PING, STR_NONE);
    loop_timer_start(socket->loop, &socket->timer, PING_MS, on_timer, socket);
}

/* Is `word` one of the comma-separated words of a header? */
static bool has_word(struct str list, const char *word)
{
    while (list.data)
        if (str_equal_nocase(str_trim(str_cut(&list, ',')), str_of(word)))
            return true;
    return false;
}

struct http_websocket *http_websocket_accept(struct http_exchange *exchange,
                                             const struct http_websocket_options *options,
                                             struct err *err)
{
    char accept[29];
    if (!str_is(http_exchange_method(exchange), "GET") ||
        !has_word(http_exchange_header(exchange, "upgrade"), "websocket") ||
        !has_word(http_exchange_header(exchange, "connection"), "upgrade")) {
        err_set(err, ERR_INPUT, "this path wants a WebSocket");
        return NULL;
    }
    if (!str_is(str_trim(http_exchange_header(exchange, "sec-websocket-version")), "13")) {
        err_set(err, ERR_INPUT, "WebSockets have version 13 here");
        return NULL;
    }
    if (!websocket_accept(str_trim(http_exchange_header(exchange, "sec-websocket-key")), accept)) {
        err_set(err, ERR_INPUT, "the Sec-WebSocket-Key is none");
        return NULL;
    }
    struct http_websocket *socket = mem_zero(sizeof *socket);
    socket->exchange = exchange;
    socket->loop = http_exchange_loop(exchange);
    socket->options = *options;
    socket->reader = (struct websocket_reader){
        .message_bytes_max =
            options->message_bytes_max ? options->message_bytes_max : MESSAGE_BYTES_MAX,
        .on_message = on_message,
        .context = socket,
    };
    socket->heard_ms = loop_now_ms(socket->loop);
    struct http_header headers[] = {
        {STR("Upgrade"), STR("websocket")},
        {STR("Sec-WebSocket-Accept"), str_of(accept)},
    };
    http_exchange_notify(exchange, options->drain_bytes, on_drain, NULL, socket);
    http_exchange_upgrade(exchange, headers, COUNT(headers), on_data, socket);
    loop_timer_start(socket->loop, &socket->timer, PING_MS, on_timer, socket);
    return socket;
}

size_t http_websocket_send(struct http_websocket *socket, struct str text)
{
    if (!socket->exchange || socket->closing)
        return 0;
    send_frame(socket, WEBSOCKET_TEXT, text);
    return http_respond_queued(socket->exchange);
}

size_t http_websocket_send_rope(struct http_websocket *socket, struct rope *text)
{
    if (!socket->exchange || socket->closing) {
        rope_deinit(text);
        return 0;
    }
    struct rope frame = {0};
    websocket_write_head(&frame.text, WEBSOCKET_TEXT, rope_size(text));
    rope_move(&frame, text);
    return http_respond_write_rope(socket->exchange, &frame);
}

void http_websocket_pause(struct http_websocket *socket)
{
    socket->paused = true;
    if (socket->exchange)
        http_exchange_pause(socket->exchange);
}

void http_websocket_resume(struct http_websocket *socket)
{
    socket->paused = false;
    socket->heard_ms = loop_now_ms(socket->loop);
    if (socket->exchange)
        http_exchange_resume(socket->exchange);
}

void http_websocket_close(struct http_websocket *socket, int code, const char *reason)
{
    socket->closed = true; /* silent from now on */
    if (!socket->exchange || socket->closing)
        return;
    send_close(socket, code, str_of(reason));
    http_exchange_resume(socket->exchange);
    loop_timer_start(socket->loop, &socket->timer, CLOSING_MS_MAX, on_timer, socket);
}
