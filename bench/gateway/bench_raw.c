/* bench_raw.c - the raw limit: the same bytes moved by the least code that can move them.
 *
 *     bench_raw gate           holds POST /v1/chat/completions, hands it out to POST
 *                              /v1/gate/take, passes what POST /v1/gate/calls/ID/answer brings back
 *     bench_raw relay PORT     copies bytes between each connection and 127.0.0.1:PORT
 *
 * One thread, epoll, no JSON, no journal, no deadline, no limit, no error answer: what is left when
 * every feature is taken away. Prints its port, then serves until it is killed. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/check.h"
#include "base/mem.h"

#define READ_BYTES 65536
#define TAKE_MAX 64

struct conn {
    int fd;
    uint64_t id;
    struct buf in, out;
    bool writing;
    struct conn *next;  /* of the queue it waits in */
    struct str body;    /* of a held call; in `in` */
    size_t size;        /* of the request in `in` */
    struct conn *other; /* relay: the far side */
};

struct queue {
    struct conn *first, **last;
};

static int epoll_fd;
static struct queue held = {NULL, &held.first}, takers = {NULL, &takers.first};
static struct conn **by_id;
static uint64_t conn_count;
static uint16_t relay_port;

static void push(struct queue *queue, struct conn *conn)
{
    conn->next = NULL;
    *queue->last = conn;
    queue->last = &conn->next;
}

static struct conn *pop(struct queue *queue)
{
    struct conn *conn = queue->first;
    if (!conn)
        return NULL;
    queue->first = conn->next;
    if (!queue->first)
        queue->last = &queue->first;
    return conn;
}

static void watch(struct conn *conn, int operation, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.ptr = conn};
    CHECK(epoll_ctl(epoll_fd, operation, conn->fd, &event) == 0);
}

static struct conn *conn_new(int fd)
{
    struct conn *conn = mem_zero(sizeof *conn);
    conn->fd = fd;
    conn->id = conn_count++;
    by_id = mem_grow(by_id, conn_count * sizeof(struct conn *));
    by_id[conn->id] = conn;
    watch(conn, EPOLL_CTL_ADD, EPOLLIN);
    return conn;
}

static void conn_flush(struct conn *conn)
{
    while (conn->out.size) {
        ssize_t sent = send(conn->fd, conn->out.data, conn->out.size, MSG_NOSIGNAL);
        if (sent < 0)
            break;
        buf_consume(&conn->out, (size_t)sent);
    }
    bool writing = conn->out.size > 0 && errno == EAGAIN;
    if (writing != conn->writing)
        watch(conn, EPOLL_CTL_MOD, EPOLLIN | (writing ? EPOLLOUT : 0));
    conn->writing = writing;
}

static void respond(struct conn *conn, struct str body)
{
    buf_format(&conn->out,
               "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n",
               body.size);
    buf_str_append(&conn->out, body);
    conn_flush(conn);
}

/* ---------------------------------------------------------------- the gate */
static void hand_out(void)
{
    while (held.first && takers.first) {
        struct conn *taker = pop(&takers);
        if (taker->fd < 0)
            continue;
        OWN(buf) struct buf body = {0};
        buf_str_append(&body, STR("{\"calls\":["));
        for (int i = 0; i < TAKE_MAX && held.first; i++) {
            struct conn *call = pop(&held);
            if (call->fd < 0) {
                i--;
                continue;
            }
            buf_format(&body, "%s{\"call_id\":\"%llu\",\"lease\":\"-\",\"request\":", i ? "," : "",
                       (unsigned long long)call->id);
            buf_str_append(&body, call->body);
            buf_byte(&body, '}');
            buf_consume(&call->in, call->size);
            call->body = STR_NONE;
        }
        buf_str_append(&body, STR("]}"));
        respond(taker, buf_str(&body));
    }
}

static void handle(struct conn *conn, struct str head, struct str body)
{
    if (str_find(head, STR("/v1/chat/completions")) > 0) {
        conn->body = body;
        push(&held, conn);
        return; /* the body stays where it is until it is handed out */
    }
    if (str_find(head, STR("/v1/gate/take")) > 0) {
        buf_consume(&conn->in, conn->size);
        push(&takers, conn);
        return;
    }
    long id_at = str_find(head, STR("/calls/")) + 7;
    uint64_t id = strtoull(head.data + id_at, NULL, 10);
    CHECK(id < conn_count);
    if (by_id[id]->fd >= 0)
        respond(by_id[id], body);
    buf_consume(&conn->in, conn->size);
    respond(conn, STR("{}"));
}

static void gate_read(struct conn *conn)
{
    if (conn->body.size)
        return;
    long end = str_find(buf_str(&conn->in), STR("\r\n\r\n"));
    if (end < 0)
        return;
    struct str head = str_upto(buf_str(&conn->in), (size_t)end);
    char *length = memmem(head.data, head.size, "ontent-", 7);
    while (length && strncasecmp(length, "ontent-length:", 14) != 0)
        length = memmem(length + 7, head.size - (size_t)(length + 7 - head.data), "ontent-", 7);
    size_t size = length ? strtoull(length + 14, NULL, 10) : 0;
    if (conn->in.size < (size_t)end + 4 + size)
        return;
    conn->size = (size_t)end + 4 + size;
    handle(conn, head, str_make(conn->in.data + end + 4, size));
}

/* ---------------------------------------------------------------- the relay */
static struct conn *connect_far(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons(relay_port),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof address) == 0);
    int flags = fcntl(fd, F_GETFL);
    CHECK(fcntl(fd, F_SETFL, flags | O_NONBLOCK) == 0);
    return conn_new(fd);
}

static void conn_close(struct conn *conn)
{
    close(conn->fd);
    conn->fd = -1;
    buf_deinit(&conn->in);
    buf_deinit(&conn->out);
    if (conn->other && conn->other->fd >= 0)
        conn_close(conn->other);
}

static void conn_ready(struct conn *conn, uint32_t events)
{
    static char bytes[READ_BYTES];
    if (conn->fd < 0)
        return; /* closed in this round by its other side */
    if (events & EPOLLOUT)
        conn_flush(conn);
    if (!(events & ~(uint32_t)EPOLLOUT))
        return;
    char *into = conn->other ? bytes : buf_reserve(&conn->in, READ_BYTES);
    ssize_t got = recv(conn->fd, into, READ_BYTES, 0);
    if (got < 0 && errno == EAGAIN)
        return;
    if (got <= 0) {
        conn_close(conn);
        return;
    }
    if (!conn->other) {
        buf_added(&conn->in, (size_t)got);
        gate_read(conn);
        return;
    }
    buf_append(&conn->other->out, bytes, (size_t)got);
    conn_flush(conn->other);
}

static int listen_any(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    CHECK(fd >= 0 && bind(fd, (struct sockaddr *)&address, size) == 0 && listen(fd, 4096) == 0);
    CHECK(getsockname(fd, (struct sockaddr *)&address, &size) == 0);
    printf("%u\n", ntohs(address.sin_port));
    fflush(stdout);
    return fd;
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: bench_raw gate | bench_raw relay PORT\n");
        return 2;
    }
    /* The least code also keeps its memory: giving pages back after each answer and taking them
     * again for the next costs more than everything else here. */
    (void)mallopt(M_TRIM_THRESHOLD, 1 << 30);
    (void)mallopt(M_MMAP_THRESHOLD, 32 << 20);
    relay_port = argc > 2 ? (uint16_t)atoi(argv[2]) : 0;
    epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    CHECK(epoll_fd >= 0);
    struct conn listener = {.fd = listen_any()};
    watch(&listener, EPOLL_CTL_ADD, EPOLLIN);
    struct epoll_event events[256];
    for (;;) {
        int count = epoll_wait(epoll_fd, events, COUNT(events), -1);
        for (int i = 0; i < count; i++) {
            struct conn *conn = events[i].data.ptr;
            if (conn != &listener) {
                conn_ready(conn, events[i].events);
                continue;
            }
            int fd;
            while ((fd = accept4(listener.fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0) {
                struct conn *near = conn_new(fd);
                if (!relay_port)
                    continue;
                near->other = connect_far();
                near->other->other = near;
            }
        }
        hand_out();
    }
}
