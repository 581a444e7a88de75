/* fuzz_http_server.c - requests through the whole server, and the same bytes cut differently.
 *
 * The input is sent over a socketpair in one piece and in pieces whose sizes come from its first
 * byte. Both times the server must say the same: where a message ends must not depend on how it
 * travelled. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/check.h"
#include "base/err.h"
#include "base/fd.h"
#include "http/http.h"
#include "loop/loop.h"

static struct loop *loop;
static struct http_server *server;
static struct buf trace;  /* what the handlers saw */
static struct buf stream; /* a streamed body so far; counts only when it came to its end */

static void on_body(void *context, struct http_exchange *exchange, struct str body,
                    const struct err *err)
{
    (void)context;
    if (err)
        return;
    buf_format(&trace, "body %zu:", body.size);
    buf_str_append(&trace, body);
    http_respond(exchange, 200, NULL, 0, body);
}

static void on_data(void *context, struct http_exchange *exchange, struct str data, bool end,
                    const struct err *err)
{
    (void)context;
    if (err)
        return;
    buf_str_append(&stream, data);
    if (!end)
        return;
    buf_str_append(&trace, buf_str(&stream));
    http_respond_begin(exchange, 200, NULL, 0);
    http_respond_write(exchange, STR("streamed"));
    http_respond_end(exchange);
}

static void on_request(void *context, struct http_exchange *exchange)
{
    (void)context;
    const struct http_header *headers;
    size_t count = http_exchange_headers(exchange, &headers);
    buf_format(&trace, "%.*s %.*s\n", STR_ARGS(http_exchange_method(exchange)),
               STR_ARGS(http_exchange_target(exchange)));
    for (size_t i = 0; i < count; i++) {
        CHECK(headers[i].name.size > 0);
        CHECK(!memchr(headers[i].value.data, '\n', headers[i].value.size));
        buf_format(&trace, "%.*s: %.*s\n", STR_ARGS(headers[i].name), STR_ARGS(headers[i].value));
    }
    buf_clear(&stream);
    struct str path = http_exchange_path(exchange);
    if (str_starts(path, STR("/s")))
        http_exchange_stream(exchange, on_data, NULL);
    else if (str_starts(path, STR("/u")))
        http_respond(exchange, 200, NULL, 0, STR("unread"));
    else
        http_exchange_collect(exchange, 1000, on_body, NULL);
}

/* Sends in pieces, then ends; runs until the server has closed. */
static void converse(struct str bytes, size_t piece)
{
    int fds[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);
    fd_nonblocking(fds[0], true);
    buf_clear(&trace);
    http_server_adopt(server, fds[1]);
    char answer[4096];
    while (bytes.size) {
        struct str now = str_upto(bytes, piece);
        if (send(fds[0], now.data, now.size, MSG_NOSIGNAL) < 0)
            break;
        bytes = str_from(bytes, now.size);
        loop_once(loop, 0);
        while (recv(fds[0], answer, sizeof answer, MSG_DONTWAIT) > 0)
            ;
    }
    shutdown(fds[0], SHUT_WR);
    for (int i = 0; i < 1000 && http_server_connections(server); i++) {
        loop_once(loop, 0);
        while (recv(fds[0], answer, sizeof answer, MSG_DONTWAIT) > 0)
            ;
    }
    close(fds[0]);
    CHECK(http_server_connections(server) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!loop) {
        loop = loop_new(NULL);
        struct http_server_options options = {
            .head_bytes_max = 2000, .body_bytes_max = 5000, .on_request = on_request};
        server = http_server_new(loop, &options);
    }
    if (size < 1 || size > 16000)
        return 0;
    struct str bytes = str_make(data + 1, size - 1);
    converse(bytes, SIZE_MAX);
    struct buf whole = trace;
    trace = (struct buf){0};
    converse(bytes, 1 + data[0] % 64);
    /* What a large piece brings beyond a refused or ended request may differ; what was handed out
     * may not. */
    size_t common = whole.size < trace.size ? whole.size : trace.size;
    CHECK(common == 0 || memcmp(whole.data, trace.data, common) == 0);
    CHECK(whole.size == trace.size);
    buf_deinit(&whole);
    return 0;
}
