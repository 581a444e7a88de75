/* link.c - one connection of a client: from an address to an answer.
 *
 *     resolving -> connecting -> [tunnel] -> [handshake] -> busy <-> idle
 *          \____________\____________\____________\____________\________\-> closed
 *
 * Like the server's connections, a link is pumped: events and the door's calls note what happened,
 * pump does what the state allows, settle says what to watch for. Trouble found inside a call of
 * the door waits for the deferred pump, so that on_done never comes from there. A reused link that
 * turns out to be closed before a byte of the answer came gives its call another try on a fresh
 * one, once. */
#include "client.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/fd.h"
#include "base/mem.h"
#include "tls.h"

enum {
    ATTEMPT_MS_MAX = 2000,    /* for one address while there are others */
    BUSY_RETRY_MS = 10,       /* when a unix socket's backlog is full */
    SEND_IDLE_MS_MAX = 60000, /* without progress towards a server that does not read */
    INTERIM_MAX = 32,         /* 1xx answers before one */
};

/* --- the end --- */

static void link_free(void *argument)
{
    struct link *link = argument;
    buf_deinit(&link->in);
    free(link->trouble);
    free(link);
}

static void drop_socket(struct link *link, bool reset)
{
    int fd = link->watch.fd;
    loop_watch_stop(&link->watch);
    link->watch.fd = -1;
    http_tls_close(TAKE(link->tls));
    if (fd >= 0 && reset) {
        struct linger none = {.l_onoff = 1, .l_linger = 0};
        (void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &none, sizeof none);
    }
    fd_close(&fd);
}

void http_link_close(struct link *link, bool reset)
{
    if (link->closed)
        return;
    link->closed = true;
    link->origin->link_count--;
    list_remove(&link->in_origin);
    if (link->call)
        link->call->link = NULL;
    link->call = NULL;
    http_deadline_stop(&link->deadline);
    drop_socket(link, reset);
    loop_defer(link->loop, link_free, link);
}

static void wake(struct link *link);

void http_link_break(struct link *link, const struct err *err)
{
    if (!link->trouble) {
        link->trouble = mem_alloc(sizeof *link->trouble);
        *link->trouble = *err;
    }
    if (!link->processing)
        wake(link);
}

static void __attribute__((format(printf, 3, 4)))
trouble(struct link *link, enum err_kind kind, const char *format, ...)
{
    struct err err = {.kind = kind};
    va_list args;
    va_start(args, format);
    struct buf text = {0};
    buf_vformat(&text, format, args);
    va_end(args);
    err_set(&err, kind, "%s: %.*s", link->origin->key, STR_ARGS(buf_str(&text)));
    buf_deinit(&text);
    http_link_break(link, &err);
}

static void fail(struct link *link)
{
    struct err err = *link->trouble;
    struct http_call *call = link->call;
    struct origin *origin = link->origin;
    bool again = call && link->reused && !call->any_bytes && !call->retried && err.kind == ERR_LOST;
    http_link_close(link, true);
    if (again)
        http_call_retry(call);
    http_origin_serve(origin);
    if (call && !again)
        http_call_finish(call, &err);
}

/* --- sending --- */

static bool unsent(const struct link *link)
{
    return link->call && !link->mute && link->sent < link->to_send;
}

#define PIECES_MAX 4

/* What is still to be sent: of the head, and of the body behind it where it lies elsewhere. */
static size_t unsent_pieces(const struct link *link, struct iovec *out)
{
    const struct http_call *call = link->call;
    const struct str all[PIECES_MAX] = {buf_str(&call->request), call->body[0], call->body[1],
                                        call->body[2]};
    size_t count = 0, sent = link->sent;
    for (size_t i = 0; i < PIECES_MAX; i++) {
        size_t gone = sent < all[i].size ? sent : all[i].size;
        sent -= gone;
        if (gone < all[i].size)
            out[count++] =
                (struct iovec){(char *)(uintptr_t)all[i].data + gone, all[i].size - gone};
    }
    return count;
}

static void send_some(struct link *link)
{
    struct err err = {0};
    while (unsent(link) && !link->trouble) {
        struct iovec pieces[PIECES_MAX];
        struct msghdr message = {.msg_iov = pieces, .msg_iovlen = unsent_pieces(link, pieces)};
        ssize_t sent;
        if (link->tls) {
            sent = http_tls_write(link->tls, pieces[0].iov_base, pieces[0].iov_len, &err);
            if (sent == TLS_WANT_READ || sent == TLS_WANT_WRITE)
                return;
            if (sent < 0 && err.kind != ERR_LOST)
                trouble(link, err.kind, "%s", err.text);
        } else {
            sent = sendmsg(link->watch.fd, &message, MSG_NOSIGNAL);
            if (sent < 0 && (errno == EAGAIN || errno == EINTR))
                return;
        }
        if (sent < 0) {
            link->mute = true; /* an early answer may be here to be read; reading will tell */
            return;
        }
        link->sent += (size_t)sent;
        link->due = loop_now_ms(link->loop) + SEND_IDLE_MS_MAX;
    }
    if (!unsent(link))
        link->due = 0;
}

static void begin_request(struct link *link)
{
    link->state = LINK_BUSY;
    link->sent = 0;
    link->to_send = link->call->request.size;
    for (size_t i = 0; i < COUNT(link->call->body); i++)
        link->to_send += link->call->body[i].size;
    link->ahead_count = 0;
    link->scanned = 0;
    link->interim = 0;
    link->mute = false;
    link->due = loop_now_ms(link->loop) + SEND_IDLE_MS_MAX;
    send_some(link);
}

/* --- connecting --- */

static void handshake(struct link *link)
{
    struct err err = {0};
    int result = http_tls_handshake(link->tls, &err);
    link->want_write = result == TLS_WANT_WRITE;
    if (result == TLS_FAILED)
        trouble(link, err.kind, "%s", err.text);
    if (result == 0)
        begin_request(link);
}

static void begin_tls(struct link *link)
{
    struct origin *origin = link->origin;
    struct http_client *client = origin->client;
    struct err err = {0};
    if (!client->tls)
        client->tls = http_tls_new(client->options.ca_file, client->options.tls_verify_off, &err);
    if (client->tls)
        link->tls = http_tls_open(client->tls, link->watch.fd, origin->host, &err);
    if (!link->tls) {
        trouble(link, err.kind, "%s", err.text);
        return;
    }
    link->state = LINK_HANDSHAKE;
    link->due = link->connect_due;
    handshake(link);
}

/* RFC 9110 9.3.6. The request is small and the connection new: the kernel takes it whole. */
static void begin_tunnel(struct link *link)
{
    const struct origin *origin = link->origin;
    bool v6 = strchr(origin->host, ':') != NULL;
    OWN(mem)
    char *name = mem_format("%s%s%s:%u", v6 ? "[" : "", origin->host, v6 ? "]" : "", origin->port);
    const char *authorization = origin->proxy_authorization;
    OWN(mem)
    char *request = mem_format("CONNECT %s HTTP/1.1\r\nHost: %s\r\n%s%s%s\r\n", name, name,
                               authorization ? "Proxy-Authorization: " : "",
                               authorization ? authorization : "", authorization ? "\r\n" : "");
    size_t size = strlen(request);
    if (send(link->watch.fd, request, size, MSG_NOSIGNAL) != (ssize_t)size)
        trouble(link, ERR_LOST, "the proxy does not take the request");
    explicit_bzero(request, size);
    link->state = LINK_TUNNEL;
    link->due = link->connect_due;
}

static void tunnel_ready(struct link *link)
{
    char *scratch = loop_scratch(link->loop);
    ssize_t got = recv(link->watch.fd, scratch, LOOP_SCRATCH_BYTES, 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (got <= 0) {
        trouble(link, ERR_LOST, "the proxy closed the connection");
        return;
    }
    buf_append(&link->in, scratch, (size_t)got);
    long found = http_head_find(buf_str(&link->in), &link->scanned);
    struct http_head head;
    const char *why = "the proxy's answer is too large";
    bool bad = found < 0 || link->in.size > link->origin->client->options.head_bytes_max;
    if (!bad && found > 0)
        bad = http_head_read_answer(str_upto(buf_str(&link->in), (size_t)found), &head, &why) < 0;
    if (bad) {
        trouble(link, ERR_PROTOCOL, "%s", why);
        return;
    }
    if (found == 0)
        return;
    int status = head.status;
    bool leftover = link->in.size > (size_t)found;
    link->scanned = 0;
    buf_deinit(&link->in);
    if (status / 100 != 2)
        trouble(link, status == 407 || status == 403 ? ERR_DENIED : ERR_LOST,
                "the proxy answered %d", status);
    else if (leftover)
        trouble(link, ERR_PROTOCOL, "the proxy sent more than its answer");
    else
        begin_tls(link);
}

static void connected(struct link *link)
{
    struct origin *origin = link->origin;
    int one = 1;
    if (!origin->unix_path)
        (void)setsockopt(link->watch.fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (!origin->tls)
        begin_request(link);
    else if (origin->proxy_host)
        begin_tunnel(link);
    else
        begin_tls(link);
}

static void ready(struct loop_watch *watch, uint32_t events);

/* Tries the next address until one does not fail at once. */
static void connect_next(struct link *link)
{
    const struct addresses *addresses = link->origin->addresses;
    int number = 0;
    link->state = LINK_CONNECTING;
    while (link->address_next < addresses->count) {
        const struct address *address = &addresses->at[link->address_next++];
        int fd = socket(address->any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd < 0) {
            number = errno;
            continue;
        }
        int result = connect(fd, &address->any, address->size);
        number = result < 0 ? errno : 0;
        struct err err = {0};
        if ((number == 0 || number == EINPROGRESS) &&
            loop_watch_start(link->loop, &link->watch, fd, LOOP_WRITE, ready, link, &err) < 0) {
            fd_close(&fd);
            link->watch.fd = -1;
            trouble(link, err.kind, "%s", err.text);
            return;
        }
        if (number == 0) {
            connected(link);
            return;
        }
        uint64_t now = loop_now_ms(link->loop);
        if (number == EINPROGRESS) {
            bool last = link->address_next == addresses->count;
            uint64_t attempt = now + ATTEMPT_MS_MAX;
            link->due = last || attempt > link->connect_due ? link->connect_due : attempt;
            return;
        }
        fd_close(&fd);
        if (number == EAGAIN) { /* a unix socket's backlog is full */
            link->address_next--;
            link->due = now + BUSY_RETRY_MS;
            return;
        }
    }
    enum err_kind kind = err_kind_of_errno(number);
    trouble(link, kind == ERR_SYSTEM || kind == ERR_NONE ? ERR_LOST : kind, "connecting: %s",
            number ? strerror(number) : "no address");
}

static void connect_ready(struct link *link)
{
    int number = 0;
    socklen_t size = sizeof number;
    if (getsockopt(link->watch.fd, SOL_SOCKET, SO_ERROR, &number, &size) < 0)
        number = errno;
    if (number == 0) {
        connected(link);
        return;
    }
    drop_socket(link, false);
    if (link->address_next < link->origin->addresses->count) {
        connect_next(link);
        return;
    }
    enum err_kind kind = err_kind_of_errno(number);
    trouble(link, kind == ERR_SYSTEM ? ERR_LOST : kind, "connecting: %s", strerror(number));
}

/* --- the answer: every taker returns the bytes it took, or -1 when nothing can be done now --- */

/* The answer is complete. The link goes on first, so that on_done can use it for its next call. */
static void complete(struct link *link, bool leftover)
{
    struct http_call *call = link->call;
    struct origin *origin = link->origin;
    bool keep = link->keep_alive && !leftover && !link->eof && !unsent(link) && !link->mute &&
                !origin->client->closing;
    link->call = NULL;
    call->link = NULL;
    if (keep) {
        link->state = LINK_IDLE;
        link->reused = true;
        link->due = loop_now_ms(link->loop) + origin->client->options.idle_ms_max;
        list_prepend(&origin->idle, &link->in_origin);
    } else {
        http_link_close(link, false);
    }
    http_origin_serve(origin);
    struct err none = {0};
    http_call_finish(call, &none);
}

static enum http_body_kind body_kind(const struct http_call *call, const struct http_head *head)
{
    if (call->is_head || head->status == 204 || head->status == 304)
        return HTTP_BODY_NONE;
    if (head->chunked)
        return HTTP_BODY_CHUNKED;
    return head->has_length ? HTTP_BODY_LENGTH : HTTP_BODY_UNTIL_CLOSE;
}

static void await_body(struct http_call *call)
{
    uint64_t due =
        call->idle_ms_max && !call->paused ? loop_now_ms(call->loop) + call->idle_ms_max : 0;
    http_deadline_set(call->loop, &call->deadline, due);
}

static long take_head(struct link *link, char *data, size_t size)
{
    struct http_call *call = link->call;
    if (!size)
        return -1;
    size_t max = link->origin->client->options.head_bytes_max;
    long found = http_head_find(str_make(data, size), &link->scanned);
    if (found < 0 || (found ? (size_t)found : size) > max) {
        trouble(link, ERR_PROTOCOL,
                found < 0 ? "a line of the answer's head ends without CR"
                          : "the answer's head is too large");
        return -1;
    }
    if (found == 0)
        return -1;
    link->scanned = 0;
    struct http_head head;
    const char *why = NULL;
    if (http_head_read_answer(str_make(data, (size_t)found), &head, &why) < 0) {
        trouble(link, ERR_PROTOCOL, "%s", why);
        return -1;
    }
    if (head.status < 200) {
        if (head.status == 101 || ++link->interim > INTERIM_MAX)
            trouble(link, ERR_PROTOCOL, "an unexpected answer with status %d", head.status);
        return found;
    }
    call->head_seen = true;
    enum http_body_kind kind = body_kind(call, &head);
    http_body_start(&link->body, kind, head.length);
    link->keep_alive = head.keep_alive && kind != HTTP_BODY_UNTIL_CLOSE;
    await_body(call);
    struct http_answer_head answer = {head.status, head.headers, head.header_count};
    if (call->handlers.on_head)
        call->handlers.on_head(call->context, &answer);
    return found;
}

static long take_body(struct link *link, char *data, size_t size)
{
    struct http_call *call = link->call;
    size_t taken = 0;
    if (!link->body.done && (!size || call->paused))
        return -1;
    if (!link->body.done) {
        long found = http_body_decode(&link->body, data, size, &taken);
        if (found < 0) {
            trouble(link, ERR_PROTOCOL, "the answer's chunks are malformed");
            return -1;
        }
        await_body(call);
        if (found && call->handlers.on_data)
            call->handlers.on_data(call->context, str_make(data, (size_t)found));
        if (link->call != call)
            return (long)taken;
    }
    if (link->body.done)
        complete(link, taken < size);
    return (long)taken;
}

static size_t take(struct link *link, char *data, size_t size)
{
    char nothing[1];
    if (!size)
        data = nothing;
    size_t at = 0;
    while (!link->closed && !link->trouble && link->call && link->state == LINK_BUSY) {
        long taken = link->call->head_seen ? take_body(link, data + at, size - at)
                                           : take_head(link, data + at, size - at);
        if (taken < 0)
            break;
        at += (size_t)taken;
    }
    return at;
}

static void feed(struct link *link, char *data, size_t size)
{
    if (size && !link->call->any_bytes) {
        link->call->any_bytes = true;
        if (!unsent(link)) {
            buf_deinit(&link->call->request);
            memset(link->call->body, 0, sizeof link->call->body);
            link->sent = link->to_send = 0;
        }
    }
    if (size && !link->in.size) {
        size_t taken = take(link, data, size);
        if (taken < size)
            buf_append(&link->in, data + taken, size - taken);
    } else {
        buf_append(&link->in, data, size);
    }
    size_t taken = take(link, link->in.data, link->in.size);
    if (taken)
        buf_consume(&link->in, taken);
    if (!link->in.size && link->in.start)
        buf_deinit(&link->in);
}

/* The peer sends nothing more; what that means depends on how the answer ends. */
static void at_eof(struct link *link)
{
    struct http_call *call = link->call;
    if (!call || link->closed || link->trouble || (call->paused && link->in.size))
        return;
    if (call->head_seen && link->body.kind == HTTP_BODY_UNTIL_CLOSE) {
        link->body.done = true;
        complete(link, false);
        return;
    }
    trouble(link, ERR_LOST,
            call->any_bytes ? "the connection was closed before the answer was complete"
                            : "the connection was closed without an answer");
}

static void read_some(struct link *link)
{
    char *scratch = loop_scratch(link->loop);
    ssize_t got;
    bool more = false;
    for (unsigned i = 0; i < link->ahead_count; i++)
        __builtin_prefetch(link->ahead[i]);
    if (link->tls) {
        struct err err = {0};
        got = http_tls_read(link->tls, scratch, LOOP_SCRATCH_BYTES, &more, &err);
        link->want_write = got == TLS_WANT_WRITE;
        if (got == TLS_WANT_READ || got == TLS_WANT_WRITE)
            return;
        if (got == TLS_FAILED) {
            trouble(link, err.kind, "%s", err.text);
            return;
        }
        if (got == TLS_CLOSED)
            got = 0;
    } else {
        got = recv(link->watch.fd, scratch, LOOP_SCRATCH_BYTES, 0);
        if (got < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (got < 0) {
            trouble(link, ERR_LOST, "reading: %s", strerror(errno));
            return;
        }
    }
    link->eof = got == 0;
    feed(link, scratch, (size_t)got);
    if (more && !link->closed && link->call)
        wake(link);
}

/* --- the pump --- */

static void settle(struct link *link)
{
    uint32_t events = 0;
    switch ((enum link_state)link->state) {
    case LINK_RESOLVING:
        break;
    case LINK_CONNECTING:
        events = LOOP_WRITE;
        break;
    case LINK_TUNNEL:
        events = LOOP_READ;
        break;
    case LINK_HANDSHAKE:
        events = link->want_write ? LOOP_WRITE : LOOP_READ;
        break;
    case LINK_BUSY:
        events = (link->eof || link->call->paused ? 0u : LOOP_READ) |
                 (unsent(link) || link->want_write ? LOOP_WRITE : 0u);
        break;
    case LINK_IDLE:
        events = LOOP_READ;
        break;
    }
    loop_watch_change(&link->watch, events);
    http_deadline_set(link->loop, &link->deadline, link->due);
}

static void idle_ready(struct link *link)
{
    char byte;
    /* With TLS it may be a session ticket; anything else means that the server is done with us. */
    if (!link->tls || http_tls_read(link->tls, &byte, 1, NULL, NULL) != TLS_WANT_READ)
        http_link_close(link, false);
}

static void pump(struct link *link, uint32_t events)
{
    if (link->closed)
        return;
    link->processing = true;
    switch ((enum link_state)link->state) {
    case LINK_RESOLVING:
        break;
    case LINK_CONNECTING:
        if (events)
            connect_ready(link);
        break;
    case LINK_TUNNEL:
        if (events)
            tunnel_ready(link);
        break;
    case LINK_HANDSHAKE:
        if (events)
            handshake(link);
        break;
    case LINK_BUSY:
        if (link->trouble)
            break;
        if (events & LOOP_WRITE || link->want_write)
            send_some(link);
        if (link->in.size && !link->call->paused)
            feed(link, NULL, 0);
        if (!link->closed && !link->trouble && link->call && !link->call->paused && !link->eof &&
            (events & LOOP_READ || link->mute || link->tls))
            read_some(link);
        if (link->eof)
            at_eof(link);
        break;
    case LINK_IDLE:
        if (events)
            idle_ready(link);
        break;
    }
    link->processing = false;
    if (link->closed)
        return;
    if (link->trouble)
        fail(link);
    else
        settle(link);
}

static void ready(struct loop_watch *watch, uint32_t events)
{
    pump(watch->context, events);
}

static void woken(void *argument)
{
    struct link *link = argument;
    link->scheduled = false;
    pump(link, 0);
}

static void wake(struct link *link)
{
    if (link->scheduled || link->closed)
        return;
    link->scheduled = true;
    loop_defer(link->loop, woken, link);
}

static void passed(struct http_deadline *deadline)
{
    struct link *link = LIST_OF(deadline, struct link, deadline);
    uint64_t now = loop_now_ms(link->loop);
    link->due = 0;
    switch ((enum link_state)link->state) {
    case LINK_RESOLVING:
    case LINK_TUNNEL:
    case LINK_HANDSHAKE:
        trouble(link, ERR_TIMEOUT, "connecting took too long");
        break;
    case LINK_CONNECTING:
        if (now >= link->connect_due) {
            trouble(link, ERR_TIMEOUT, "connecting took too long");
            break;
        }
        drop_socket(link, false);
        connect_next(link);
        break;
    case LINK_BUSY:
        trouble(link, ERR_TIMEOUT, "the server does not take the request");
        break;
    case LINK_IDLE:
        http_link_close(link, false);
        return;
    }
    pump(link, 0);
}

/* --- for client.c and resolve.c --- */

void http_link_addresses(struct link *link)
{
    connect_next(link);
    if (!link->trouble)
        settle(link);
}

void http_link_open(struct origin *origin, struct http_call *call)
{
    struct link *link = mem_zero(sizeof *link);
    link->loop = origin->client->loop;
    link->origin = origin;
    link->call = call;
    link->watch.fd = -1;
    link->deadline.on_passed = passed;
    link->connect_due = loop_now_ms(link->loop) + origin->client->options.connect_ms_max;
    link->due = link->connect_due;
    call->link = link;
    origin->link_count++;
    bool known = origin->addresses && loop_now_ms(link->loop) < origin->addresses_until_ms;
    if (known || http_resolve_numeric(origin)) {
        http_link_addresses(link);
        return;
    }
    list_append(&origin->resolving, &link->in_origin);
    http_resolve(origin);
    settle(link);
}

void http_link_assign(struct link *link, struct http_call *call)
{
    CHECK(link->state == LINK_IDLE && !link->call);
    list_remove(&link->in_origin);
    link->call = call;
    call->link = link;
    begin_request(link);
    if (!link->trouble && !link->processing)
        settle(link);
}

void http_link_resume(struct link *link)
{
    if (link->state != LINK_BUSY || link->closed)
        return;
    await_body(link->call);
    if (!link->call->head_seen)
        http_deadline_set(link->loop, &link->call->deadline, link->call->first_byte_due);
    if (!link->processing)
        wake(link);
}
