/* connection.c - one connection of a server: bytes in, exchanges one after another, bytes out.
 *
 *     idle -> head -> exchange (body, answer) -> idle ...
 *                 \__________________________\-> linger -> closed
 *                                             \-> breaking -> reset
 *
 * Everything that happens only notes it and pumps: pump takes from the input what the state allows,
 * flushes the output, and says in settle what to watch for and until when. Invariants:
 * - One exchange at a time. The next head is read only when the answer before it is with the
 * kernel.
 * - A callback is never called from inside a call of the door: those defer the pump.
 * - Reading ahead of a pending answer stops at READ_AHEAD_MAX; reading at all is how a peer that
 * went away is noticed.
 * - Of many requests that came together a few are taken; the others wait until everybody else on
 * the loop had a turn, and nothing more is read before. So do large bodies: a server hands over one
 * in a tick.
 * - A closed connection keeps its memory until the tick is over, and as long as a handler who could
 *   not be told still holds the exchange. */
#include "server.h"

#include <errno.h>
#include <linux/sockios.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "base/check.h"
#include "base/fd.h"
#include "base/mem.h"

enum {
    READ_AHEAD_MAX = 16384,
    LINGER_MS_MAX = 5000,
    GATHER_BYTES_MAX = 16384,
    BREAK_MS = 200,
    STRETCHES_MAX = 256, /* of a rope, in one system call */
    HEADS_MAX = 4,       /* taken at a time */
    LARGE_BYTES_MIN = 256 << 10,
};

/* --- the end --- */

void http_conn_tell_fate(struct http_conn *conn, bool taken)
{
    void (*on_fate)(void *, bool) = conn->on_fate;
    conn->on_fate = NULL;
    if (on_fate)
        on_fate(conn->fate_context, taken);
}

static void conn_free(void *argument)
{
    struct http_conn *conn = argument;
    struct http_server *server = conn->server;
    http_conn_tell_fate(conn, !conn->lost && !conn->broken && !rope_size(&conn->out));
    http_exchange_free(conn->exchange);
    buf_deinit(&conn->in);
    rope_deinit(&conn->out);
    list_remove(&conn->link);
    free(conn);
    if (server) {
        server->connection_count--;
        http_server_check_done(server);
    }
}

void http_conn_release(struct http_conn *conn)
{
    if (conn->freeing || !conn->closed || (conn->exchange && !conn->exchange->ended))
        return;
    conn->freeing = true;
    loop_defer(conn->loop, conn_free, conn);
}

/* A unix socket knows no reset: its peer would see a clean end. One byte out of band, which readers
 * who do not ask for it never see, says that this was none (channel_inlet.c asks). */
static void mark_reset(int fd)
{
    struct sockaddr_storage own;
    socklen_t size = sizeof own;
    if (getsockname(fd, (struct sockaddr *)&own, &size) == 0 && own.ss_family == AF_UNIX)
        (void)send(fd, "", 1, MSG_OOB | MSG_NOSIGNAL | MSG_DONTWAIT);
}

void http_conn_close(struct http_conn *conn, bool reset)
{
    if (conn->closed)
        return;
    conn->closed = true;
    int fd = conn->watch.fd;
    loop_watch_stop(&conn->watch);
    http_deadline_stop(&conn->deadline);
    if (reset || conn->breaking) {
        struct linger none = {.l_onoff = 1, .l_linger = 0};
        (void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &none, sizeof none);
        mark_reset(fd);
    }
    fd_close(&fd);
    http_conn_release(conn);
}

void http_conn_gone(struct http_conn *conn, enum err_kind kind, const char *text)
{
    struct http_exchange *exchange = conn->exchange;
    bool pending = exchange && !exchange->ended;
    conn->lost |= pending;
    http_conn_close(conn, pending || rope_size(&conn->out));
    if (!pending)
        return;
    struct err err;
    err_set(&err, kind, "%s", text);
    if (http_exchange_tell(exchange, &err))
        http_conn_release(conn);
}

static void linger(struct http_conn *conn)
{
    conn->lingering = true;
    conn->read_due = loop_now_ms(conn->loop) + LINGER_MS_MAX;
}

/* A reset that arrives together with the last bytes is no reset for everybody: libuv, which Node.js
 * stands on, reads the bytes, sees the hang-up beside them and tells an orderly end without ever
 * asking for the error. So the reset waits until the peer's kernel has all there is and the peer
 * had a while to read it. Whoever is slower than that still finds an unfinished chunk. */
void http_conn_break(struct http_conn *conn)
{
    uint64_t now = loop_now_ms(conn->loop);
    conn->breaking = conn->lingering = true;
    conn->read_due = now + BREAK_MS;
    conn->break_due = now + LINGER_MS_MAX;
    if (!conn->processing)
        http_conn_settle(conn);
}

static void break_now_or_later(struct http_conn *conn)
{
    uint64_t now = loop_now_ms(conn->loop);
    int on_their_way = 0;
    (void)ioctl(conn->watch.fd, SIOCOUTQ, &on_their_way);
    if ((rope_size(&conn->out) || on_their_way) && now < conn->break_due)
        conn->read_due = now + BREAK_MS;
    else
        http_conn_close(conn, true);
}

static void refuse(struct http_conn *conn, int status, const char *why)
{
    char text[512];
    size_t size = http_error_text(text, sizeof text, status, why);
    struct iovec pieces[2] = {{0}, {text, size}};
    linger(conn);
    http_conn_send(conn, pieces, 2);
}

/* --- output --- */

/* The kernel has no room for the rest. */
static void block(struct http_conn *conn)
{
    conn->blocked = true;
    conn->write_due = loop_now_ms(conn->loop) + conn->server->options.write_idle_ms_max;
}

/* Sends `head` and the front of `rope`; as sendmsg(). *whole: the kernel took all it was shown. */
static ssize_t send_front(struct http_conn *conn, struct str head, const struct rope *rope,
                          bool *whole)
{
    struct iovec stretches[STRETCHES_MAX];
    struct msghdr message = {.msg_iov = stretches};
    if (head.size)
        stretches[message.msg_iovlen++] = (struct iovec){(char *)(uintptr_t)head.data, head.size};
    message.msg_iovlen +=
        rope_front(rope, stretches + message.msg_iovlen, STRETCHES_MAX - message.msg_iovlen);
    ssize_t sent = sendmsg(conn->watch.fd, &message, MSG_NOSIGNAL);
    size_t shown = 0;
    for (size_t i = 0; i < message.msg_iovlen; i++)
        shown += stretches[i].iov_len;
    *whole = sent >= 0 && (size_t)sent == shown;
    return sent;
}

static void flush(struct http_conn *conn)
{
    bool whole = true;
    while (rope_size(&conn->out) && whole) {
        ssize_t sent = send_front(conn, STR_NONE, &conn->out, &whole);
        if (sent < 0 && errno != EAGAIN && errno != EINTR) {
            conn->broken = true;
            return;
        }
        if (sent > 0)
            rope_consume(&conn->out, (size_t)sent);
        if (!whole && (sent > 0 || !conn->write_due))
            block(conn);
        conn->blocked = !whole;
    }
    if (rope_size(&conn->out))
        return;
    rope_deinit(&conn->out);
    conn->blocked = false;
    conn->write_due = 0;
}

static void report_drain(struct http_conn *conn)
{
    struct http_exchange *exchange = conn->exchange;
    if (!exchange || exchange->ended || !exchange->drain_due || conn->broken ||
        rope_size(&conn->out) >= exchange->drain_low)
        return;
    exchange->drain_due = false;
    exchange->on_drain(exchange->notify_context);
}

static void queue(struct http_conn *conn, const struct iovec *pieces, int count, size_t skip)
{
    for (int i = 0; i < count; i++) {
        size_t size = pieces[i].iov_len;
        if (skip >= size) {
            skip -= size;
            continue;
        }
        buf_append(&conn->out.text, (char *)pieces[i].iov_base + skip, size - skip);
        skip = 0;
    }
}

/* Something is queued and the kernel wants no more now. */
static void wait_for_room(struct http_conn *conn)
{
    if (!conn->blocked)
        block(conn);
    if (rope_size(&conn->out) > conn->server->options.queue_bytes_max) {
        conn->broken = true;
        http_conn_wake(conn);
    } else if (!conn->processing) {
        http_conn_settle(conn);
    }
}

void http_conn_send(struct http_conn *conn, struct iovec *pieces, int count)
{
    if (conn->closed || conn->broken)
        return;
    size_t sent = 0;
    if (!conn->blocked) {
        CHECK(!conn->out.outside); /* those wait for room only */
        struct buf *queued = &conn->out.text;
        bool any = queued->size > 0;
        pieces[0] = (struct iovec){queued->data, queued->size};
        struct msghdr message = {.msg_iov = pieces + !any, .msg_iovlen = (size_t)(count - !any)};
        ssize_t result = sendmsg(conn->watch.fd, &message, MSG_NOSIGNAL);
        if (result < 0 && errno != EAGAIN && errno != EINTR) {
            conn->broken = true;
            http_conn_wake(conn);
            return;
        }
        sent = result < 0 ? 0 : (size_t)result;
        size_t of_queue = sent < queued->size ? sent : queued->size;
        sent -= of_queue;
        if (of_queue)
            rope_consume(&conn->out, of_queue);
    }
    queue(conn, pieces + 1, count - 1, sent);
    if (rope_size(&conn->out))
        wait_for_room(conn);
    else if (conn->out.text.start)
        rope_deinit(&conn->out);
}

void http_conn_send_rope(struct http_conn *conn, struct str head, struct rope *rope)
{
    if (conn->closed || conn->broken) {
        rope_deinit(rope);
        return;
    }
    size_t of_head = 0;
    bool whole = true;
    if (!rope_size(&conn->out)) {
        ssize_t sent = send_front(conn, head, rope, &whole);
        if (sent < 0 && errno != EAGAIN && errno != EINTR) {
            conn->broken = true;
            http_conn_wake(conn);
            rope_deinit(rope);
            return;
        }
        of_head = sent < 0 ? 0 : (size_t)sent < head.size ? (size_t)sent : head.size;
        if (sent > (ssize_t)head.size)
            rope_consume(rope, (size_t)sent - head.size);
    }
    buf_str_append(&conn->out.text, str_from(head, of_head));
    rope_move(&conn->out, rope);
    if (whole && !conn->blocked)
        flush(conn); /* something was before it, or it has more stretches than one call takes */
    if (conn->broken)
        http_conn_wake(conn);
    else if (rope_size(&conn->out))
        wait_for_room(conn);
}

void http_conn_put(struct http_conn *conn, struct iovec *pieces, int count)
{
    size_t size = 0;
    for (int i = 1; i < count; i++)
        size += pieces[i].iov_len;
    if (conn->blocked || rope_size(&conn->out) + size > GATHER_BYTES_MAX) {
        http_conn_send(conn, pieces, count);
        return;
    }
    if (conn->closed || conn->broken)
        return;
    queue(conn, pieces + 1, count - 1, 0);
    http_conn_wake(conn);
}

/* --- input: every taker returns the bytes it took, or -1 when nothing can be done now --- */

static void start_exchange(struct http_conn *conn, const struct http_head *head, struct str bytes)
{
    const struct http_server_options *options = &conn->server->options;
    if (head->has_length && head->length > options->body_bytes_max &&
        !str_is(head->method, "CONNECT")) {
        refuse(conn, 413, "the request body is too large");
        return;
    }
    conn->exchange = http_exchange_make(conn, head, bytes);
    conn->head_started = false;
    conn->read_due = 0;
    http_conn_tell_fate(conn, true);
    options->on_request(options->context, conn->exchange);
}

static long take_head(struct http_conn *conn, char *data, size_t size)
{
    if (rope_size(&conn->out))
        return -1;
    if (conn->server->closing) {
        http_conn_close(conn, false);
        return 0;
    }
    /* RFC 9112 2.2: an empty line or two before a request is forgiven. */
    if (size >= 2 && data[0] == '\r' && data[1] == '\n') {
        conn->scanned = 0;
        return 2;
    }
    if (size && data[0] != '\r' && data[0] != '\n' && !http_token_is(str_make(data, 1))) {
        /* TLS, most likely: its client would wait for our half of the handshake. */
        refuse(conn, 400, "this is no HTTP request; there is no TLS here");
        return 0;
    }
    const struct http_server_options *options = &conn->server->options;
    struct str bytes = str_make(data, size);
    long found = size ? http_head_find(bytes, &conn->scanned) : 0;
    if (found < 0) {
        refuse(conn, 400, "a line of the head ends without CR");
        return 0;
    }
    if (found > 0 ? (size_t)found > options->head_bytes_max : size > options->head_bytes_max) {
        const char *line_end = memchr(data, '\n', size);
        if (line_end && (size_t)(line_end - data) < options->head_bytes_max)
            refuse(conn, 431, "the request head is too large");
        else
            refuse(conn, 414, "the request target is too long");
        return 0;
    }
    if (found == 0) {
        if (conn->eof) {
            http_conn_close(conn, false);
            return 0;
        }
        if (size && !conn->head_started) {
            conn->head_started = true;
            conn->read_due = loop_now_ms(conn->loop) + options->head_ms_max;
        }
        return -1;
    }
    if (conn->heads == HEADS_MAX) {
        conn->scanned = 0; /* it is looked for again, then */
        conn->more = true;
        return -1;
    }
    conn->heads++;
    conn->scanned = 0;
    struct http_head head;
    const char *why = NULL;
    bytes = str_upto(bytes, (size_t)found);
    int status = http_head_read_request(bytes, &head, &why);
    if (status)
        refuse(conn, status, why);
    else
        start_exchange(conn, &head, bytes);
    return found;
}

static void report_body(struct http_exchange *exchange, struct str body)
{
    exchange->reported = true;
    http_exchange_uncount(exchange); /* whoever takes it has limits of its own */
    if (exchange->mode == BODY_COLLECT) {
        exchange->on_body(exchange->body_context, exchange, body, NULL);
        buf_deinit(&exchange->collected);
    } else if (exchange->mode == BODY_STREAM) {
        exchange->on_data(exchange->body_context, exchange, body, true, NULL);
    }
}

/* The request's body cannot be had. Answers where that is still possible, and tells the handler. */
static void body_failed(struct http_conn *conn, int status, enum err_kind kind, const char *why)
{
    struct http_exchange *exchange = conn->exchange;
    if (exchange->ended) {
        http_conn_close(conn, false);
        return;
    }
    if (exchange->begun) {
        http_conn_gone(conn, kind, why);
        return;
    }
    http_exchange_refuse(exchange, status, why);
    struct err err;
    err_set(&err, kind, "%s", why);
    (void)http_exchange_tell(exchange, &err);
}

static void collect(struct http_exchange *exchange, struct str data)
{
    struct buf *all = &exchange->collected;
    if (exchange->body.done && !all->size) {
        report_body(exchange, data); /* came in one piece: no copy */
        return;
    }
    if (!all->start && exchange->body.kind == HTTP_BODY_LENGTH) {
        /* Exactly: the body may be kept for long. */
        uint64_t total = exchange->body.left + data.size;
        all->capacity = total < (1u << 20) ? (size_t)total : (size_t)1 << 20;
        all->start = all->data = mem_alloc(all->capacity ? all->capacity : 1);
    }
    buf_append(all, data.data, data.size);
    if (exchange->body.done && all->size < LARGE_BYTES_MIN)
        report_body(exchange, buf_str(all)); /* else: when it is its turn */
}

static long take_body(struct http_conn *conn, char *data, size_t size)
{
    struct http_exchange *exchange = conn->exchange;
    if (http_exchange_body_too_large(exchange)) { /* by what its length promises */
        body_failed(conn, 413, ERR_LIMIT, "the request body is too large");
        return 0;
    }
    if (http_exchange_body_crowded(exchange)) {
        body_failed(conn, 503, ERR_CAPACITY, "too much is being sent at once");
        return 0;
    }
    if (!size)
        return -1;
    size_t taken;
    long found = http_body_decode(&exchange->body, data, size, &taken);
    if (found < 0) {
        body_failed(conn, 400, ERR_PROTOCOL, "the request body's chunks are malformed");
        return (long)size;
    }
    conn->read_due = http_exchange_body_due(exchange);
    exchange->body_bytes += (uint64_t)found;
    if (http_exchange_body_too_large(exchange)) {
        body_failed(conn, 413, ERR_LIMIT, "the request body is too large");
        return (long)taken;
    }
    if (http_exchange_body_crowded(exchange)) { /* of chunks: as they come */
        body_failed(conn, 503, ERR_CAPACITY, "too much is being sent at once");
        return (long)taken;
    }
    struct str piece = str_make(data, (size_t)found);
    if (exchange->mode == BODY_COLLECT) {
        collect(exchange, piece);
    } else if (exchange->mode == BODY_STREAM) {
        if (exchange->body.done)
            report_body(exchange, piece);
        else if (piece.size)
            exchange->on_data(exchange->body_context, exchange, piece, false, NULL);
    }
    return (long)taken;
}

/* The answer is made. What comes next: another request, or the end of the connection. */
static long take_end(struct http_conn *conn, size_t size)
{
    struct http_exchange *exchange = conn->exchange;
    bool stay = exchange->keep_alive && !conn->server->closing && !conn->eof;
    if (stay && !exchange->body.done) {
        if (exchange->mode == BODY_DISCARD)
            return -1;
        exchange->mode = BODY_DISCARD;
        exchange->paused = false;
        conn->read_due = loop_now_ms(conn->loop) + conn->server->options.body_idle_ms_max;
        return 0;
    }
    if (!stay && rope_size(&conn->out))
        return -1;
    bool clean = exchange->body.done && !size;
    conn->exchange = NULL;
    http_exchange_free(exchange);
    if (stay)
        conn->read_due = loop_now_ms(conn->loop) + conn->server->options.keepalive_ms_max;
    else if (clean)
        http_conn_close(conn, false);
    else
        linger(conn);
    return 0;
}

/* What is made of a large body takes time: one in a tick. */
static bool has_turn(const struct http_conn *conn)
{
    uint64_t tick = loop_tick(conn->loop);
    if (conn->exchange->collected.size < LARGE_BYTES_MIN)
        return true;
    if (conn->server->large_tick == tick)
        return false;
    conn->server->large_tick = tick;
    return true;
}

static long take_exchange(struct http_conn *conn, char *data, size_t size)
{
    struct http_exchange *exchange = conn->exchange;
    if (exchange->ended && (exchange->mode != BODY_DISCARD || (conn->eof && !size)))
        return take_end(conn, size);
    if (http_exchange_wants_body(exchange))
        return take_body(conn, data, size);
    if (exchange->ended)
        return take_end(conn, size);
    if (exchange->body.done && !exchange->reported && !exchange->paused &&
        exchange->mode != BODY_UNREAD) {
        conn->more = !has_turn(conn);
        if (conn->more)
            return -1;
        report_body(exchange, buf_str(&exchange->collected));
        return 0;
    }
    return -1;
}

static size_t take(struct http_conn *conn, char *data, size_t size)
{
    char nothing[1];
    if (!size)
        data = nothing;
    size_t at = 0;
    while (!conn->closed && !conn->broken) {
        if (conn->lingering)
            return size;
        long taken = conn->exchange ? take_exchange(conn, data + at, size - at)
                                    : take_head(conn, data + at, size - at);
        if (taken < 0)
            break;
        at += (size_t)taken;
    }
    return at;
}

/* --- the pump --- */

bool http_conn_is_idle(const struct http_conn *conn)
{
    return !conn->exchange && !rope_size(&conn->out) && !conn->lingering;
}

/* How many bytes may be read now. */
static size_t read_max(const struct http_conn *conn)
{
    const struct http_exchange *exchange = conn->exchange;
    if (conn->eof || conn->more)
        return 0;
    if (conn->lingering || http_conn_is_idle(conn) ||
        (exchange && http_exchange_wants_body(exchange)))
        return LOOP_SCRATCH_BYTES;
    if (exchange && !exchange->body.done)
        return 0;
    return conn->in.size < READ_AHEAD_MAX ? READ_AHEAD_MAX - conn->in.size : 0;
}

void http_conn_settle(struct http_conn *conn)
{
    if (conn->closed)
        return;
    uint32_t events = (read_max(conn) ? LOOP_READ : 0u) | (conn->blocked ? LOOP_WRITE : 0u);
    loop_watch_change(&conn->watch, events);
    bool waiting = conn->lingering || http_conn_is_idle(conn) ||
                   (conn->exchange && http_exchange_wants_body(conn->exchange));
    uint64_t due = conn->write_due;
    if (waiting && conn->read_due && (!due || conn->read_due < due))
        due = conn->read_due;
    http_deadline_set(conn->loop, &conn->deadline, due);
}

static void pump(struct http_conn *conn, char *data, size_t size)
{
    if (conn->closed)
        return;
    conn->processing = true;
    conn->heads = 0;
    conn->more = false;
    if (size && !conn->in.size) {
        size_t taken = take(conn, data, size);
        if (taken < size)
            buf_append(&conn->in, data + taken, size - taken);
    } else if (size) {
        buf_append(&conn->in, data, size);
    }
    do {
        size_t taken = take(conn, conn->in.data, conn->in.size);
        if (taken)
            buf_consume(&conn->in, taken);
        if (conn->closed || conn->broken || !rope_size(&conn->out) || conn->blocked)
            break;
        flush(conn);
        report_drain(conn);
    } while (!rope_size(&conn->out) && !conn->broken && !conn->closed);
    if (conn->broken)
        http_conn_gone(conn, ERR_LOST, "the peer went away");
    if (!conn->closed && conn->lingering && !conn->breaking && !conn->shut &&
        !rope_size(&conn->out)) {
        (void)shutdown(conn->watch.fd, SHUT_WR);
        conn->shut = true;
        if (conn->eof)
            http_conn_close(conn, false);
    }
    conn->processing = false;
    if (conn->closed)
        return;
    if (!conn->in.size && conn->in.start)
        buf_deinit(&conn->in);
    http_conn_settle(conn);
    if (conn->more)
        http_conn_wake(conn);
}

static void woken(void *argument)
{
    struct http_conn *conn = argument;
    conn->scheduled = false;
    pump(conn, NULL, 0);
}

void http_conn_wake(struct http_conn *conn)
{
    if (conn->scheduled || conn->processing || conn->closed)
        return;
    conn->scheduled = true;
    loop_defer(conn->loop, woken, conn);
}

static void at_eof(struct http_conn *conn)
{
    conn->eof = true;
    /* After the peer's end, what it did with bytes that came later shows only here. */
    int code = 0;
    socklen_t size = sizeof code;
    if (conn->on_fate && getsockopt(conn->watch.fd, SOL_SOCKET, SO_ERROR, &code, &size) == 0)
        conn->lost |= code != 0;
    if (conn->exchange && !conn->exchange->ended)
        http_conn_gone(conn, ERR_LOST, "the peer went away");
    else if (conn->lingering && (conn->shut || conn->breaking))
        http_conn_close(conn, false);
}

static void read_ready(struct http_conn *conn)
{
    size_t max = read_max(conn);
    if (!max) {
        pump(conn, NULL, 0);
        return;
    }
    /* The middle of a large body goes where it will be: once, and not over the scratch. */
    char *body = conn->in.size ? NULL : http_exchange_room(conn->exchange, &max);
    char *scratch = body ? body : loop_scratch(conn->loop);
    ssize_t got = recv(conn->watch.fd, scratch, max, 0);
    if (got < 0 && errno != EAGAIN && errno != EINTR) {
        conn->lost = true;
        http_conn_gone(conn, ERR_LOST, "the peer went away");
    } else if (got == 0)
        at_eof(conn);
    if (body && got > 0)
        http_exchange_received(conn->exchange, (size_t)got);
    else
        pump(conn, scratch, got > 0 ? (size_t)got : 0);
}

static void ready(struct loop_watch *watch, uint32_t events)
{
    struct http_conn *conn = watch->context;
    char mark;
    if (events & LOOP_HANGUP && conn->on_fate && recv(watch->fd, &mark, 1, MSG_OOB) == 1)
        conn->lost = true; /* the same mark from the other side */
    if (events & LOOP_WRITE && rope_size(&conn->out)) {
        conn->processing = true;
        flush(conn);
        report_drain(conn);
        conn->processing = false;
        if (!(events & LOOP_READ) || conn->broken)
            pump(conn, NULL, 0);
    }
    if (!conn->closed && events & LOOP_READ)
        read_ready(conn);
}

static void passed(struct http_deadline *deadline)
{
    struct http_conn *conn = LIST_OF(deadline, struct http_conn, deadline);
    uint64_t now = loop_now_ms(conn->loop);
    if (conn->write_due && now >= conn->write_due) {
        http_conn_gone(conn, ERR_TIMEOUT, "the peer does not read its answer");
        return;
    }
    if (conn->read_due && now >= conn->read_due) {
        if (conn->breaking) {
            break_now_or_later(conn);
        } else if (conn->lingering || (!conn->exchange && !conn->head_started)) {
            http_conn_close(conn, false);
        } else if (!conn->exchange) {
            refuse(conn, 408, "the request head did not come in time");
        } else if (http_exchange_wants_body(conn->exchange)) {
            conn->processing = true;
            body_failed(conn, 408, ERR_TIMEOUT, "the request body did not come in time");
            conn->processing = false;
        }
    }
    pump(conn, NULL, 0);
}

void http_conn_start(struct http_server *server, int fd)
{
    struct http_conn *conn = mem_zero(sizeof *conn);
    conn->loop = server->loop;
    conn->server = server;
    conn->deadline.on_passed = passed;
    conn->read_due = loop_now_ms(conn->loop) + server->options.keepalive_ms_max;
    list_append(&server->connections, &conn->link);
    server->connection_count++;
    if (loop_watch_start(conn->loop, &conn->watch, fd, LOOP_READ, ready, conn, NULL) < 0) {
        fd_close(&fd);
        conn->closed = true;
        http_conn_release(conn);
        return;
    }
    http_conn_settle(conn);
}
