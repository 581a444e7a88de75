/* test_http_world.h - a loop, a server with a few routes, and raw peers, for the tests of the http
 * room. */
#ifndef TEST_HTTP_WORLD_H
#define TEST_HTTP_WORLD_H

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/mem.h"
#include "http/http.h"
#include "loop/loop.h"
#include "test.h"

/* Each test file uses a part of this. */
#pragma GCC diagnostic ignored "-Wunused-function"
#pragma GCC diagnostic ignored "-Wunused-variable"

static struct loop *loop;
static struct http_server *server;
static uint16_t port;

/* What the handlers saw. */
static struct http_exchange *held; /* the last request to /hold, /stream..., not answered yet */
static int requests, bodies, gone, drained, errors, closed;
static enum err_kind last_error;
static char last_target[256], last_method[32];
static struct buf streamed; /* by /upload */
static bool streamed_end;

static void on_closed(void *context)
{
    (void)context;
    closed++;
}

static void on_gone(void *context)
{
    (void)context;
    gone++;
    held = NULL;
}

static void on_drain(void *context)
{
    (void)context;
    drained++;
}

static void echo_body(void *context, struct http_exchange *exchange, struct str body,
                      const struct err *err)
{
    (void)context;
    bodies++;
    if (err) {
        errors++;
        last_error = err->kind;
        return;
    }
    http_respond(exchange, 200, NULL, 0, body);
}

static void upload_data(void *context, struct http_exchange *exchange, struct str data, bool end,
                        const struct err *err)
{
    (void)context;
    if (err) {
        errors++;
        last_error = err->kind;
        held = NULL;
        return;
    }
    buf_append(&streamed, data.data, data.size);
    if (end) {
        streamed_end = true;
        held = NULL;
        http_respond(exchange, 200, NULL, 0, STR("stored"));
    }
}

static void handle(void *context, struct http_exchange *exchange)
{
    (void)context;
    requests++;
    snprintf(last_target, sizeof last_target, "%.*s", STR_ARGS(http_exchange_target(exchange)));
    snprintf(last_method, sizeof last_method, "%.*s", STR_ARGS(http_exchange_method(exchange)));
    struct str path = http_exchange_path(exchange);
    if (str_is(path, "/echo")) {
        http_exchange_collect(exchange, 0, echo_body, NULL);
    } else if (str_is(path, "/echo-small")) {
        http_exchange_collect(exchange, 10, echo_body, NULL);
    } else if (str_is(path, "/hold")) {
        held = exchange;
        http_exchange_notify(exchange, 1000, on_drain, on_gone, NULL);
    } else if (str_is(path, "/mute")) {
        held = exchange; /* and leaves no way to be told */
    } else if (str_is(path, "/upload")) {
        held = exchange;
        http_exchange_stream(exchange, upload_data, NULL);
    } else if (str_is(path, "/chunks")) {
        http_respond_begin(exchange, 200, NULL, 0);
        http_respond_write(exchange, STR("one "));
        http_respond_write(exchange, STR("two"));
        http_respond_end(exchange);
    } else if (str_is(path, "/empty")) {
        http_respond(exchange, 204, NULL, 0, STR_NONE);
    } else if (str_is(path, "/headers")) {
        struct http_header headers[] = {{STR("X-Good"), STR("yes")},
                                        {STR("X-Evil"), STR("a\r\nX-Injected: b")},
                                        {STR("Bad Name"), STR("c")},
                                        {STR("Content-Length"), STR("999")},
                                        {STR("Connection"), STR("upgrade")}};
        http_respond(exchange, 200, headers, COUNT(headers), STR("ok"));
    } else if (str_is(path, "/large")) {
        size_t size = (size_t)8 << 20;
        char *body = mem_alloc(size);
        for (size_t i = 0; i < size; i++)
            body[i] = (char)('a' + i % 26);
        http_respond(exchange, 200, NULL, 0, str_make(body, size));
        free(body);
    } else {
        http_respond(exchange, 200, NULL, 0, STR("hello"));
    }
}

static void open_world(struct http_server_options options)
{
    signal(SIGPIPE, SIG_DFL); /* the room must not need it ignored */
    loop = loop_new(NULL);
    options.on_request = handle;
    server = http_server_new(loop, &options);
    struct err err = {0};
    if (http_server_listen_tcp(server, "127.0.0.1", 0, &port, &err) < 0)
        test_fail(__FILE__, __LINE__, "%s", err.text);
}

static void close_world(void)
{
    http_server_close(server, 0, on_closed, NULL);
    while (!closed)
        loop_once(loop, 100);
    loop_free(loop);
    buf_deinit(&streamed);
}

/* --- raw peers --- */

static int tcp_peer(void)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in at = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (connect(fd, (struct sockaddr *)&at, sizeof at) < 0)
        abort();
    fd_nonblocking(fd, true);
    return fd;
}

static int adopted_peer(void)
{
    int fds[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) < 0)
        abort();
    fd_nonblocking(fds[0], true);
    http_server_adopt(server, fds[1]);
    return fds[0];
}

static void say(int fd, struct str bytes)
{
    while (bytes.size) {
        ssize_t sent = send(fd, bytes.data, bytes.size, MSG_NOSIGNAL);
        if (sent > 0)
            bytes = str_from(bytes, (size_t)sent);
        else if (errno == EAGAIN)
            loop_once(loop, 10);
        else
            return;
    }
}

/* Reads what is there into `in`. 1: bytes, 0: nothing now, -1: end, -2: reset. */
static int hear(int fd, struct buf *in)
{
    ssize_t got = recv(fd, buf_reserve(in, 65536), 65536, MSG_DONTWAIT);
    if (got > 0) {
        buf_added(in, (size_t)got);
        return 1;
    }
    if (got == 0)
        return -1;
    return errno == EAGAIN ? 0 : -2;
}

/* Runs the loop until `text` was heard or the peer ended. True: it was heard. */
static bool hear_until(int fd, struct buf *in, const char *text)
{
    for (;;) {
        if (str_find(buf_str(in), str_of(text)) >= 0)
            return true;
        int got = hear(fd, in);
        if (got < 0)
            return false;
        if (got == 0)
            loop_once(loop, 10);
    }
}

/* Runs the loop until the peer ends; how: -1 cleanly, -2 by reset. */
static int hear_all(int fd, struct buf *in)
{
    for (;;) {
        int got = hear(fd, in);
        if (got < 0)
            return got;
        if (got == 0)
            loop_once(loop, 10);
    }
}

#define WAIT(condition)                                                                            \
    while (!(condition))                                                                           \
    loop_once(loop, 10)

static int count_of(struct str s, const char *text)
{
    int count = 0;
    for (long at; (at = str_find(s, str_of(text))) >= 0; count++)
        s = str_from(s, (size_t)at + strlen(text));
    return count;
}

#endif
