/* exchange.c - one request and its answer, as the handler sees them.
 *
 * An exchange is one allocation: the struct, its header table, the head's text. The door's calls
 * change it and leave the rest to the connection's pump; they never call back. When the peer goes
 * away and the handler left no way to be told, the exchange stays until it is answered, into the
 * void. */
#include "server.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/check.h"
#include "base/mem.h"

/* Of a request's body that nobody asked for: read over up to here, so that the connection can stay.
 */
enum { DISCARD_BYTES_MAX = 65536 };
/* Of a large body, read over the scratch; what comes before goes straight to its place. */
enum { LAST_BYTES_MIN = 16384 };

/* --- making --- */

static struct str moved(struct str s, const char *from, const char *to)
{
    return (struct str){to + (s.data - from), s.size};
}

struct http_exchange *http_exchange_make(struct http_conn *conn, const struct http_head *head,
                                         struct str bytes)
{
    size_t table = head->header_count * sizeof(struct http_header);
    struct http_exchange *exchange = mem_alloc(sizeof *exchange + table + bytes.size);
    struct http_header *headers = (struct http_header *)(exchange + 1);
    char *text = (char *)headers + table;
    memcpy(text, bytes.data, bytes.size);
    for (size_t i = 0; i < head->header_count; i++) {
        headers[i].name = moved(head->headers[i].name, bytes.data, text);
        headers[i].value = moved(head->headers[i].value, bytes.data, text);
    }
    *exchange = (struct http_exchange){
        .conn = conn,
        .method = moved(head->method, bytes.data, text),
        .target = moved(head->target, bytes.data, text),
        .headers = headers,
        .header_count = head->header_count,
        .minor = (uint8_t)head->minor,
        .keep_alive = head->keep_alive,
        .expect_continue = head->expect_continue,
        .is_head = str_is(head->method, "HEAD"),
    };
    bool is_connect = str_is(head->method, "CONNECT");
    if (is_connect)
        exchange->keep_alive = false; /* what follows is not ours to read */
    enum http_body_kind kind = is_connect         ? HTTP_BODY_NONE
                               : head->chunked    ? HTTP_BODY_CHUNKED
                               : head->has_length ? HTTP_BODY_LENGTH
                                                  : HTTP_BODY_NONE;
    http_body_start(&exchange->body, kind, head->length);
    return exchange;
}

void http_exchange_free(struct http_exchange *exchange)
{
    if (!exchange)
        return;
    http_exchange_uncount(exchange);
    buf_deinit(&exchange->collected);
    free(exchange);
}

bool http_exchange_wants_body(const struct http_exchange *exchange)
{
    return !exchange->body.done && !exchange->paused && exchange->mode != BODY_UNREAD;
}

bool http_exchange_body_too_large(const struct http_exchange *exchange)
{
    uint64_t max = exchange->conn->server->options.body_bytes_max;
    if (exchange->upgraded)
        return false;
    if (exchange->mode == BODY_COLLECT && exchange->collect_max < max)
        max = exchange->collect_max;
    uint64_t promised = exchange->body.kind == HTTP_BODY_LENGTH ? exchange->body.left : 0;
    return exchange->mode != BODY_DISCARD && exchange->body_bytes + promised > max;
}

bool http_exchange_body_crowded(struct http_exchange *exchange)
{
    struct http_server *server = exchange->conn->server;
    size_t max = server ? server->options.collect_bytes_max : 0;
    uint64_t promised = exchange->body.kind == HTTP_BODY_LENGTH ? exchange->body.left : 0;
    uint64_t size = exchange->body_bytes + promised;
    if (!max || exchange->mode != BODY_COLLECT || size <= exchange->counted)
        return false;
    size_t more = (size_t)size - exchange->counted;
    bool alone = server->collecting == exchange->counted;
    if (!alone && server->collecting + more > max)
        return true;
    server->collecting += more;
    exchange->counted += more;
    return false;
}

void http_exchange_uncount(struct http_exchange *exchange)
{
    if (exchange->counted && exchange->conn->server)
        exchange->conn->server->collecting -= exchange->counted;
    exchange->counted = 0;
}

bool http_exchange_tell(struct http_exchange *exchange, const struct err *err)
{
    bool body_pending = !exchange->reported;
    if (body_pending && exchange->mode == BODY_COLLECT && exchange->on_body) {
        exchange->ended = exchange->reported = true;
        exchange->on_body(exchange->body_context, exchange, STR_NONE, err);
    } else if (body_pending && exchange->mode == BODY_STREAM && exchange->on_data) {
        exchange->ended = exchange->reported = true;
        exchange->on_data(exchange->body_context, exchange, STR_NONE, true, err);
    } else if (exchange->on_gone) {
        exchange->ended = true;
        exchange->on_gone(exchange->notify_context);
    } else {
        return false;
    }
    return true;
}

/* --- the request --- */

struct str http_exchange_method(const struct http_exchange *exchange)
{
    return exchange->method;
}

struct str http_exchange_target(const struct http_exchange *exchange)
{
    return exchange->target;
}

struct str http_exchange_path(const struct http_exchange *exchange)
{
    long mark = str_find_byte(exchange->target, '?');
    return mark < 0 ? exchange->target : str_upto(exchange->target, (size_t)mark);
}

struct str http_exchange_query(const struct http_exchange *exchange)
{
    long mark = str_find_byte(exchange->target, '?');
    return mark < 0 ? STR_NONE : str_from(exchange->target, (size_t)mark + 1);
}

bool http_exchange_here(const struct http_exchange *exchange)
{
    const struct http_conn *conn = exchange->conn;
    char byte;
    if (!conn || conn->closed || conn->eof || conn->broken)
        return false;
    ssize_t got = recv(conn->watch.fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    return got > 0 || (got < 0 && (errno == EAGAIN || errno == EINTR));
}

struct str http_exchange_header(const struct http_exchange *exchange, const char *name)
{
    return http_header_find(exchange->headers, exchange->header_count, str_of(name));
}

size_t http_exchange_headers(const struct http_exchange *exchange,
                             const struct http_header **headers)
{
    *headers = exchange->headers;
    return exchange->header_count;
}

void http_exchange_set_context(struct http_exchange *exchange, void *context)
{
    exchange->context = context;
}

void *http_exchange_context(const struct http_exchange *exchange)
{
    return exchange->context;
}

struct loop *http_exchange_loop(const struct http_exchange *exchange)
{
    return exchange->conn->loop;
}

/* --- the body --- */

char *http_exchange_room(struct http_exchange *exchange, size_t *max)
{
    if (!exchange || exchange->mode != BODY_COLLECT || !http_exchange_wants_body(exchange) ||
        exchange->body.kind != HTTP_BODY_LENGTH || exchange->body.left < LAST_BYTES_MIN * 2)
        return NULL;
    struct buf *all = &exchange->collected;
    size_t room = all->start ? all->capacity - (size_t)(all->data - all->start) - all->size : 0;
    size_t wanted = (size_t)(exchange->body.left - LAST_BYTES_MIN);
    if (room < LAST_BYTES_MIN)
        return NULL;
    *max = room < wanted ? room : wanted;
    return all->data + all->size;
}

void http_exchange_received(struct http_exchange *exchange, size_t size)
{
    buf_added(&exchange->collected, size);
    exchange->body.left -= size;
    exchange->body_bytes += size;
    exchange->conn->read_due = http_exchange_body_due(exchange);
    http_conn_settle(exchange->conn);
}

bool http_exchange_take_body(struct http_exchange *exchange, struct buf *out)
{
    if (!exchange->collected.size)
        return false;
    *out = exchange->collected;
    exchange->collected = (struct buf){0};
    return true;
}

uint64_t http_exchange_body_due(const struct http_exchange *exchange)
{
    const struct http_conn *conn = exchange->conn;
    if (exchange->upgraded)
        return 0;
    return loop_now_ms(conn->loop) + conn->server->options.body_idle_ms_max;
}

/* The peer was gone before the handler left an address: tell it now. */
static void tell_late(void *argument)
{
    struct http_exchange *exchange = argument;
    struct err err;
    err_set(&err, ERR_LOST, "the peer went away");
    if (exchange->ended || http_exchange_tell(exchange, &err))
        http_conn_release(exchange->conn);
}

static void want_body(struct http_exchange *exchange)
{
    struct http_conn *conn = exchange->conn;
    if (conn->closed) {
        loop_defer(conn->loop, tell_late, exchange);
        return;
    }
    conn->read_due = http_exchange_body_due(exchange);
    if (exchange->expect_continue && !exchange->body.done && !exchange->begun &&
        !http_exchange_body_too_large(exchange)) {
        exchange->expect_continue = false;
        static const char text[] = "HTTP/1.1 100 Continue\r\n\r\n";
        struct iovec pieces[2] = {{0}, {(void *)text, sizeof text - 1}};
        if (!conn->in.size)
            http_conn_send(conn, pieces, 2);
    }
    http_conn_wake(conn);
}

void http_exchange_collect(struct http_exchange *exchange, size_t bytes_max,
                           void (*on_body)(void *context, struct http_exchange *, struct str body,
                                           const struct err *err),
                           void *context)
{
    CHECK(exchange->mode == BODY_UNREAD && !exchange->ended);
    exchange->mode = BODY_COLLECT;
    exchange->collect_max = bytes_max ? bytes_max : SIZE_MAX;
    exchange->on_body = on_body;
    exchange->body_context = context;
    want_body(exchange);
}

void http_exchange_stream(struct http_exchange *exchange,
                          void (*on_data)(void *context, struct http_exchange *, struct str data,
                                          bool end, const struct err *err),
                          void *context)
{
    CHECK(exchange->mode == BODY_UNREAD && !exchange->ended);
    exchange->mode = BODY_STREAM;
    exchange->on_data = on_data;
    exchange->body_context = context;
    want_body(exchange);
}

void http_exchange_pause(struct http_exchange *exchange)
{
    exchange->paused = true;
    if (!exchange->conn->processing)
        http_conn_settle(exchange->conn);
}

void http_exchange_resume(struct http_exchange *exchange)
{
    struct http_conn *conn = exchange->conn;
    if (!exchange->paused || conn->closed)
        return;
    exchange->paused = false;
    conn->read_due = http_exchange_body_due(exchange);
    http_conn_wake(conn);
}

/* --- the answer --- */

/* Whether the rest of the request can be read over to get at the next one. */
static bool can_stay(const struct http_exchange *exchange)
{
    if (!exchange->keep_alive || exchange->conn->server->closing)
        return false;
    if (exchange->body.done)
        return true;
    return exchange->body.kind == HTTP_BODY_LENGTH && exchange->body.left <= DISCARD_BYTES_MAX &&
           !exchange->expect_continue;
}

static char *put(char *at, struct str text)
{
    memcpy(at, text.data, text.size);
    return at + text.size;
}

static size_t head_size_max(const struct http_header *headers, size_t count)
{
    size_t size = 256; /* status line and what is ours */
    for (size_t i = 0; i < count; i++)
        size += http_field_size(headers[i].name, headers[i].value);
    return size;
}

/* `length` is the body's, or -1 when it comes in chunks. */
static size_t write_head(struct http_exchange *exchange, char *out, int status,
                         const struct http_header *headers, size_t count, long long length)
{
    CHECK(!exchange->begun && status >= 200 && status <= 999);
    exchange->begun = true;
    exchange->keep_alive = can_stay(exchange);
    exchange->bodiless = exchange->is_head || status == 204 || status == 304;
    exchange->chunked = length < 0 && exchange->minor == 1 && status != 204 && status != 304;
    if (length < 0 && exchange->minor == 0)
        exchange->keep_alive = false; /* the end of the body is the end of the connection */
    char *at = out + sprintf(out, "HTTP/1.1 %d %s\r\nDate: ", status, http_status_text(status));
    at = put(at, http_date());
    at = put(at, STR("\r\n"));
    for (size_t i = 0; i < count; i++)
        if (!http_field_is_ours(headers[i].name))
            at += http_field_write(at, headers[i].name, headers[i].value);
    if (exchange->chunked)
        at = put(at, STR("Transfer-Encoding: chunked\r\n"));
    else if (length >= 0 && status != 204 && status != 304)
        at += sprintf(at, "Content-Length: %lld\r\n", length);
    /* Not beside chunks, although RFC 9112 9.6 would like it: undici then takes any end of the
     * connection for the end of the body, even a reset. The last chunk says the same and better. */
    if (!exchange->keep_alive && !exchange->chunked)
        at = put(at, STR("Connection: close\r\n"));
    else if (exchange->minor == 0)
        at = put(at, STR("Connection: keep-alive\r\n"));
    at = put(at, STR("\r\n"));
    return (size_t)(at - out);
}

/* An answer to nobody ends the exchange all the same. */
static bool is_void(struct http_exchange *exchange, bool last)
{
    struct http_conn *conn = exchange->conn;
    if (!conn->closed)
        return false;
    if (last && !exchange->ended) {
        exchange->ended = true;
        http_conn_release(conn);
    }
    return true;
}

void http_respond(struct http_exchange *exchange, int status, const struct http_header *headers,
                  size_t header_count, struct str body)
{
    if (is_void(exchange, true))
        return;
    char small[2048];
    size_t max = head_size_max(headers, header_count);
    OWN(mem) char *large = max > sizeof small ? mem_alloc(max) : NULL;
    char *head = large ? large : small;
    size_t size = write_head(exchange, head, status, headers, header_count, (long long)body.size);
    struct iovec pieces[3] = {{0}, {head, size}, {(void *)body.data, body.size}};
    exchange->ended = true;
    http_conn_send(exchange->conn, pieces, exchange->bodiless || !body.size ? 2 : 3);
    http_conn_wake(exchange->conn);
}

static const struct http_header json_type = {{"Content-Type", 12}, {"application/json", 16}};

void http_respond_json(struct http_exchange *exchange, int status, struct str body)
{
    http_respond(exchange, status, &json_type, 1, body);
}

void http_respond_json_rope(struct http_exchange *exchange, int status, struct rope *body)
{
    if (is_void(exchange, true)) {
        rope_deinit(body);
        return;
    }
    char head[2048];
    CHECK(head_size_max(&json_type, 1) <= sizeof head);
    size_t size = write_head(exchange, head, status, &json_type, 1, (long long)rope_size(body));
    exchange->ended = true;
    if (exchange->bodiless)
        rope_deinit(body);
    http_conn_send_rope(exchange->conn, str_make(head, size), body);
    http_conn_wake(exchange->conn);
}

/* The head waits in the queue until the first piece of body or the end of the tick, whichever comes
 * first: one system call instead of two. */
void http_respond_begin(struct http_exchange *exchange, int status,
                        const struct http_header *headers, size_t header_count)
{
    if (is_void(exchange, false))
        return;
    struct buf *out = &exchange->conn->out.text;
    char *head = buf_reserve(out, head_size_max(headers, header_count));
    buf_added(out, write_head(exchange, head, status, headers, header_count, -1));
    http_conn_wake(exchange->conn);
}

/* Bytes towards the peer, and whether their going is to be told. */
static size_t queued(struct http_exchange *exchange)
{
    size_t size = rope_size(&exchange->conn->out);
    if (exchange->on_drain && size >= exchange->drain_low)
        exchange->drain_due = true;
    return size;
}

/* A chunk's size and its line end, written so that they end at `end`; where they begin. */
static char *chunk_size(char *end, size_t size)
{
    *--end = '\n';
    *--end = '\r';
    do
        *--end = "0123456789abcdef"[size & 15];
    while (size >>= 4);
    return end;
}

static size_t write_piece(struct http_exchange *exchange, struct str data,
                          void (*out)(struct http_conn *, struct iovec *, int))
{
    struct http_conn *conn = exchange->conn;
    CHECK(conn->closed || (exchange->begun && !exchange->ended));
    if (conn->closed || !data.size || exchange->bodiless)
        return rope_size(&conn->out);
    char size[24];
    char *digits = chunk_size(size + sizeof size, data.size);
    struct iovec pieces[4] = {{0},
                              {digits, (size_t)(size + sizeof size - digits)},
                              {(void *)data.data, data.size},
                              {(void *)"\r\n", 2}};
    if (exchange->chunked) {
        out(conn, pieces, 4);
    } else {
        pieces[1] = pieces[2];
        out(conn, pieces, 2);
    }
    return queued(exchange);
}

size_t http_respond_write_rope(struct http_exchange *exchange, struct rope *data)
{
    struct http_conn *conn = exchange->conn;
    CHECK(conn->closed || (exchange->begun && !exchange->ended));
    if (conn->closed || !rope_size(data) || exchange->bodiless) {
        rope_deinit(data);
        return rope_size(&conn->out);
    }
    char size[24];
    char *end = size + sizeof size;
    char *digits = exchange->chunked ? chunk_size(end, rope_size(data)) : end;
    if (exchange->chunked)
        buf_str_append(&data->text, STR("\r\n"));
    http_conn_send_rope(conn, str_make(digits, (size_t)(end - digits)), data);
    return queued(exchange);
}

size_t http_respond_write(struct http_exchange *exchange, struct str data)
{
    return write_piece(exchange, data, http_conn_put);
}

size_t http_respond_push(struct http_exchange *exchange, struct str data)
{
    return write_piece(exchange, data, http_conn_send);
}

void http_exchange_places(const struct http_exchange *exchange, struct http_place *out)
{
    out[0] = (struct http_place){exchange, offsetof(struct http_exchange, method)};
    out[1] = (struct http_place){exchange->conn, offsetof(struct http_conn, server)};
}

size_t http_respond_queued(const struct http_exchange *exchange)
{
    return rope_size(&exchange->conn->out);
}

void http_respond_end(struct http_exchange *exchange)
{
    if (is_void(exchange, true))
        return;
    CHECK(exchange->begun && !exchange->ended);
    exchange->ended = true;
    if (exchange->chunked && !exchange->bodiless) {
        struct iovec pieces[2] = {{0}, {(void *)"0\r\n\r\n", 5}};
        http_conn_send(exchange->conn, pieces, 2);
    }
    http_conn_wake(exchange->conn);
}

void http_exchange_reset(struct http_exchange *exchange)
{
    if (is_void(exchange, true))
        return;
    struct http_conn *conn = exchange->conn;
    exchange->ended = true;
    if (!exchange->begun) {
        http_conn_close(conn, true);
        return;
    }
    /* A chunk is promised that never comes. Bun's client takes a connection that dies between two
     * chunks for the end of the body, whatever it died of; inside a chunk it does not. */
    struct iovec pieces[2] = {{0}, {(void *)"1\r\n", 3}};
    http_conn_send(conn, pieces, exchange->chunked && !exchange->bodiless ? 2 : 1);
    if (!conn->closed)
        http_conn_break(conn);
}

void http_exchange_notify(struct http_exchange *exchange, size_t low,
                          void (*on_drain)(void *context), void (*on_gone)(void *context),
                          void *context)
{
    exchange->drain_low = low ? low : 1;
    exchange->on_drain = on_drain;
    exchange->on_gone = on_gone;
    exchange->notify_context = context;
    exchange->drain_due = on_drain && rope_size(&exchange->conn->out) >= exchange->drain_low;
    if (exchange->conn->closed && !exchange->ended && on_gone)
        loop_defer(exchange->conn->loop, tell_late, exchange);
}

void http_exchange_fate(struct http_exchange *exchange, void (*on_fate)(void *context, bool taken),
                        void *context)
{
    exchange->conn->on_fate = on_fate;
    exchange->conn->fate_context = context;
}

/* --- errors of ours --- */

size_t http_error_text(char *out, size_t size, int status, const char *why)
{
    char body[256];
    /* Readable for the clients of all model protocols: this room knows none of them. */
    int body_size = snprintf(body, sizeof body,
                             "{\"type\":\"error\",\"error\":{\"type\":\"%s\",\"message\":\"%s\","
                             "\"code\":%d}}\n",
                             status < 500 ? "invalid_request_error" : "server_error", why, status);
    int all = snprintf(out, size,
                       "HTTP/1.1 %d %s\r\nDate: %.*s\r\nContent-Type: application/json\r\n%s"
                       "Content-Length: %d\r\nConnection: close\r\n\r\n%s",
                       status, http_status_text(status), STR_ARGS(http_date()),
                       status == 503 ? "Retry-After: 1\r\n" : "", body_size, body);
    CHECK(all > 0 && (size_t)all < size);
    return (size_t)all;
}

void http_exchange_refuse(struct http_exchange *exchange, int status, const char *why)
{
    char text[512];
    size_t size = http_error_text(text, sizeof text, status, why);
    struct iovec pieces[2] = {{0}, {text, size}};
    exchange->begun = true;
    exchange->keep_alive = false;
    http_conn_send(exchange->conn, pieces, 2);
}
