/* http.c - one POST over plain HTTP/1.1, and its answer as it comes.
 *
 * A connection per call: the server is the sandbox's own loopback. Every wait ends at the deadline
 * or when the server has been silent for too long. A body that ends before its announced end is
 * ERR_LOST, never a short body. */
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/mem.h"
#include "chat.h"

#define CONNECT_MS_MAX 10000
#define HEAD_BYTES_MAX 65536
#define BODY_BYTES_MAX (64u * 1024 * 1024)

struct stream {
    int fd;
    uint64_t deadline_ms;
    uint32_t idle_ms_max;
    char bytes[16384];
    size_t at, have;
};

struct head {
    int status;
    bool chunked;
    long long length; /* -1: until the connection closes */
    struct str content_type;
    int64_t retry_after_ms;
};

int chat_url_parse(const char *text, struct chat_url *out, struct err *err)
{
    struct str rest = str_trim(str_of(text));
    if (!str_starts(rest, STR("http://")))
        return err_set(err, ERR_INPUT, "the base URL must start with http://");
    rest = str_from(rest, strlen("http://"));
    long slash = str_find_byte(rest, '/');
    struct str path = slash < 0 ? STR("") : str_from(rest, (size_t)slash);
    struct str host = slash < 0 ? rest : str_upto(rest, (size_t)slash);
    struct str port = STR("80");
    while (path.size && path.data[path.size - 1] == '/')
        path.size--;
    long bracket = str_find_byte(host, ']'); /* [::1]:8000 */
    long colon = str_find_byte(str_from(host, bracket < 0 ? 0 : (size_t)bracket), ':');
    if (colon >= 0) {
        size_t at = (size_t)colon + (bracket < 0 ? 0 : (size_t)bracket);
        port = str_from(host, at + 1);
        host = str_upto(host, at);
    }
    if (bracket > 0 && host.data[0] == '[')
        host = str_make(host.data + 1, host.size - 2);
    long long number;
    if (host.size == 0 || host.size >= sizeof out->host || !str_to_long(port, &number) ||
        number < 1 || number > 65535 || path.size >= sizeof out->path)
        return err_set(err, ERR_INPUT, "this is no base URL: %.200s", text);
    snprintf(out->host, sizeof out->host, "%.*s", STR_ARGS(host));
    snprintf(out->port, sizeof out->port, "%lld", number);
    snprintf(out->path, sizeof out->path, "%.*s", STR_ARGS(path));
    return 0;
}

/* ---------------------------------------------------------------- waiting */

/* 0 when the descriptor is ready. */
static int wait_for(int fd, short events, uint64_t deadline_ms, uint32_t idle_ms_max,
                    struct err *err)
{
    uint64_t start = clock_mono_ms();
    for (;;) {
        uint64_t now = clock_mono_ms();
        if (now >= deadline_ms)
            return err_set(err, ERR_TIMEOUT, "the time is over");
        if (now - start >= idle_ms_max)
            return err_set(err, ERR_LOST, "the model server was silent for %u s",
                           idle_ms_max / 1000);
        uint64_t left = idle_ms_max - (now - start);
        if (deadline_ms != NEVER && deadline_ms - now < left)
            left = deadline_ms - now;
        struct pollfd entry = {.fd = fd, .events = events};
        int ready = poll(&entry, 1, left > 60000 ? 60000 : (int)left);
        if (ready > 0)
            return 0;
        if (ready < 0 && errno != EINTR)
            return err_errno(err, "poll");
    }
}

/* More bytes into the buffer; 0 at the end of the connection. */
static ssize_t fill(struct stream *stream, struct err *err)
{
    for (;;) {
        if (wait_for(stream->fd, POLLIN, stream->deadline_ms, stream->idle_ms_max, err) < 0)
            return -1;
        ssize_t got = read(stream->fd, stream->bytes, sizeof stream->bytes);
        if (got < 0 && (errno == EINTR || errno == EAGAIN))
            continue;
        if (got < 0) {
            err_errno(err, "the connection to the model server broke");
            if (err)
                err->kind = ERR_LOST;
            return -1;
        }
        stream->at = 0;
        stream->have = (size_t)got;
        return got;
    }
}

static int lost(struct err *err)
{
    return err_set(err, ERR_LOST,
                   "the model server closed the connection in the middle of its answer");
}

static int send_all(int fd, struct str bytes, uint64_t deadline_ms, uint32_t idle_ms_max,
                    struct err *err)
{
    while (bytes.size) {
        ssize_t sent = send(fd, bytes.data, bytes.size, MSG_NOSIGNAL);
        if (sent > 0) {
            bytes = str_from(bytes, (size_t)sent);
            continue;
        }
        if (errno == EINTR)
            continue;
        if (errno != EAGAIN) {
            err_errno(err, "sending to the model server");
            if (err)
                err->kind = ERR_LOST;
            return -1;
        }
        if (wait_for(fd, POLLOUT, deadline_ms, idle_ms_max, err) < 0)
            return -1;
    }
    return 0;
}

/* ---------------------------------------------------------------- connecting */

static int connect_to(const struct addrinfo *address, uint64_t deadline_ms, struct err *err)
{
    OWN(fd)
    int fd = socket(address->ai_family, address->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return err_errno(err, "socket");
    if (connect(fd, address->ai_addr, address->ai_addrlen) < 0 && errno != EINPROGRESS)
        return err_errno(err, "connecting to the model server");
    if (wait_for(fd, POLLOUT, deadline_ms, CONNECT_MS_MAX, err) < 0)
        return -1;
    int number = 0;
    socklen_t size = sizeof number;
    (void)getsockopt(fd, SOL_SOCKET, SO_ERROR, &number, &size);
    if (number) {
        errno = number;
        return err_errno(err, "connecting to the model server");
    }
    return fd_take(&fd);
}

static int connect_url(const struct chat_url *url, uint64_t deadline_ms, struct err *err)
{
    /* Images without /etc/hosts have a localhost, too. */
    const char *host = strcmp(url->host, "localhost") == 0 ? "127.0.0.1" : url->host;
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found = NULL;
    int failed = getaddrinfo(host, url->port, &hints, &found);
    if (failed)
        return err_set(err, ERR_LOST, "%s: %s", url->host, gai_strerror(failed));
    int fd = -1;
    for (struct addrinfo *at = found; at && fd < 0; at = at->ai_next)
        fd = connect_to(at, deadline_ms, err);
    freeaddrinfo(found);
    if (fd < 0 && err && err->kind != ERR_TIMEOUT)
        err->kind = ERR_LOST;
    return fd;
}

/* ---------------------------------------------------------------- the head */

/* One line without its end, into `line`. */
static int read_line(struct stream *stream, struct buf *line, size_t bytes_max, struct err *err)
{
    buf_clear(line);
    for (;;) {
        if (stream->at == stream->have) {
            ssize_t got = fill(stream, err);
            if (got <= 0)
                return got < 0 ? -1 : lost(err);
        }
        const char *start = stream->bytes + stream->at;
        const char *end = memchr(start, '\n', stream->have - stream->at);
        size_t size = end ? (size_t)(end - start) : stream->have - stream->at;
        if (line->size + size > bytes_max)
            return err_set(err, ERR_PROTOCOL, "the model server sent a line that is too long");
        buf_append(line, start, size);
        stream->at += size + (end != NULL);
        if (end) {
            if (line->size && line->data[line->size - 1] == '\r')
                line->size--;
            return 0;
        }
    }
}

static void read_header(struct head *head, struct str name, struct str value, struct buf *type)
{
    long long number;
    if (str_equal_nocase(name, STR("content-length"))) {
        if (str_to_long(value, &number) && number >= 0)
            head->length = number;
    } else if (str_equal_nocase(name, STR("transfer-encoding"))) {
        head->chunked = str_equal_nocase(value, STR("chunked"));
    } else if (str_equal_nocase(name, STR("content-type"))) {
        buf_clear(type);
        buf_str_append(type, value);
        head->content_type = buf_str(type);
    } else if (str_equal_nocase(name, STR("retry-after"))) {
        double seconds;
        if (str_to_double(value, &seconds) && seconds >= 0 && seconds < 1e6)
            head->retry_after_ms = (int64_t)(seconds * 1000);
    }
}

static int read_head(struct stream *stream, struct head *head, struct buf *type, struct err *err)
{
    OWN(buf) struct buf line = {0};
    size_t total = 0;
    do { /* 1xx answers come before the real one */
        *head = (struct head){.length = -1, .retry_after_ms = -1};
        if (read_line(stream, &line, HEAD_BYTES_MAX, err) < 0)
            return -1;
        long long status;
        struct str text = buf_str(&line);
        if (!str_starts(text, STR("HTTP/1.")) || text.size < 12 ||
            !str_to_long(str_make(text.data + 9, 3), &status) || status < 100)
            return err_set(err, ERR_PROTOCOL, "this is no HTTP server");
        head->status = (int)status;
        for (;;) {
            if (read_line(stream, &line, HEAD_BYTES_MAX, err) < 0)
                return -1;
            total += line.size;
            if (total > HEAD_BYTES_MAX)
                return err_set(err, ERR_PROTOCOL, "the model server's header is too large");
            if (line.size == 0)
                break;
            struct str value = buf_str(&line);
            struct str name = str_cut(&value, ':');
            if (value.data)
                read_header(head, str_trim(name), str_trim(value), type);
        }
    } while (head->status < 200);
    return 0;
}

/* ---------------------------------------------------------------- the body */

struct sink {
    const struct chat_post *post;
    size_t total;
};

static int deliver(struct sink *sink, struct str bytes, struct err *err)
{
    sink->total += bytes.size;
    if (sink->total > BODY_BYTES_MAX)
        return err_set(err, ERR_LIMIT, "the model server's answer is too large");
    return sink->post->on_body(sink->post->context, bytes, err);
}

static int read_exactly(struct stream *stream, unsigned long long size, struct sink *sink,
                        struct err *err)
{
    while (size) {
        if (stream->at == stream->have) {
            ssize_t got = fill(stream, err);
            if (got <= 0)
                return got < 0 ? -1 : lost(err);
        }
        size_t here = stream->have - stream->at;
        if (here > size)
            here = (size_t)size;
        if (deliver(sink, str_make(stream->bytes + stream->at, here), err) < 0)
            return -1;
        stream->at += here;
        size -= here;
    }
    return 0;
}

static int read_chunks(struct stream *stream, struct sink *sink, struct err *err)
{
    OWN(buf) struct buf line = {0};
    for (;;) {
        if (read_line(stream, &line, 1024, err) < 0)
            return -1;
        char *end = NULL;
        const char *text = buf_text(&line);
        unsigned long long size = strtoull(text, &end, 16);
        if (end == text || size > BODY_BYTES_MAX)
            return err_set(err, ERR_PROTOCOL, "the model server sent a bad chunk");
        if (size == 0)
            break;
        if (read_exactly(stream, size, sink, err) < 0 || read_line(stream, &line, 16, err) < 0)
            return -1;
    }
    do { /* trailers */
        if (read_line(stream, &line, HEAD_BYTES_MAX, err) < 0)
            return -1;
    } while (line.size);
    return 0;
}

static int read_to_close(struct stream *stream, struct sink *sink, struct err *err)
{
    for (;;) {
        if (stream->at < stream->have) {
            struct str bytes = str_make(stream->bytes + stream->at, stream->have - stream->at);
            stream->at = stream->have;
            if (deliver(sink, bytes, err) < 0)
                return -1;
        }
        ssize_t got = fill(stream, err);
        if (got <= 0)
            return (int)got;
    }
}

/* ---------------------------------------------------------------- the call */

static void write_head(const struct chat_post *post, struct buf *out)
{
    const struct chat_url *url = post->url;
    bool six = strchr(url->host, ':') != NULL;
    buf_format(
        out,
        "POST %s%s HTTP/1.1\r\nHost: %s%s%s:%s\r\nUser-Agent: %s/" POSTERN_VERSION
        "\r\nContent-Type: application/json\r\nAccept: text/event-stream, application/json\r\n"
        "Connection: close\r\nContent-Length: %zu\r\n",
        url->path, post->route, six ? "[" : "", url->host, six ? "]" : "", url->port, post->agent,
        post->body.size);
    if (post->key)
        buf_format(out, "Authorization: Bearer %s\r\n", post->key);
    buf_append(out, "\r\n", 2);
}

int chat_http_post(const struct chat_post *post, struct chat_reply *reply, struct err *err)
{
    *reply = (struct chat_reply){.retry_after_ms = -1};
    OWN(fd) int fd = connect_url(post->url, post->deadline_ms, err);
    if (fd < 0)
        return -1;
    OWN(buf) struct buf request = {0}, type = {0};
    write_head(post, &request);
    buf_str_append(&request, post->body);
    if (send_all(fd, buf_str(&request), post->deadline_ms, post->idle_ms_max, err) < 0)
        return -1;
    OWN(mem) struct stream *stream = mem_zero(sizeof *stream);
    stream->fd = fd;
    stream->deadline_ms = post->deadline_ms;
    stream->idle_ms_max = post->idle_ms_max;
    struct head head;
    if (read_head(stream, &head, &type, err) < 0)
        return -1;
    reply->status = head.status;
    reply->retry_after_ms = head.retry_after_ms;
    if (post->on_head(post->context, head.status, head.content_type) < 0)
        return -1;
    struct sink sink = {.post = post};
    if (head.status == 204 || head.status == 304)
        return 0;
    if (head.chunked)
        return read_chunks(stream, &sink, err);
    if (head.length >= 0)
        return read_exactly(stream, (unsigned long long)head.length, &sink, err);
    return read_to_close(stream, &sink, err);
}
