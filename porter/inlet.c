/* inlet.c - the inlet and the resolver, where no descriptor can be handed out of the sandbox.
 *
 * Each connection to 127.0.0.1:<port> becomes a stream with an even number: bytes both ways, each
 * with its own credit, each ended on its own. A connection beyond the maximum waits in the listen
 * queue. The resolver answers every question on 127.0.0.1:53 with "no such name" at once, so that
 * programs that phone home lose milliseconds instead of minutes, and tells the host which name it
 * was. */
#include "porter.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/mem.h"

#define CONNECTIONS_MAX 256
#define LOOKUP_QUEUE_MAX 65536 /* when the host does not read, names go unreported */

static int bind_loopback(int type, uint16_t port)
{
    OWN(fd) int fd = socket(AF_INET, type | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    int on = 1;
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) < 0 ||
        bind(fd, (struct sockaddr *)&address, sizeof address) < 0)
        return -1;
    return fd_take(&fd);
}

/* ---------------------------------------------------------------- inlet */
void inlet_update(struct porter *porter)
{
    if (porter->inlet.fd >= 0)
        watch_set(&porter->inlet, porter->inlet_count < CONNECTIONS_MAX ? EPOLLIN : 0);
}

static void inlet_ready(struct watch *watch, uint32_t events)
{
    (void)events;
    struct porter *porter = watch->porter;
    OWN(fd) int fd = accept4(watch->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0 && (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED))
        return;
    OWN(fd) int twin = fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, 3);
    if (twin < 0) { /* out of descriptors: until something ends */
        watch_set(watch, 0);
        return;
    }
    int on = 1;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    do
        porter->inlet_stream_next += 2;
    while (!porter->inlet_stream_next || stream_find(porter, porter->inlet_stream_next));
    struct stream *stream = stream_new(porter, porter->inlet_stream_next, STREAM_INLET);
    porter->inlet_count++;
    stream_set_source(stream, 0, fd_take(&fd));
    stream_set_sink(stream, fd_take(&twin));
    wire_frame_add(&porter->out_queue, stream->id, WIRE_INLET, 0, STR_NONE);
    stream_update(stream);
    inlet_update(porter);
}

static void inlet_free(struct stream *stream)
{
    struct porter *porter = stream->porter;
    stream_free(stream);
    porter->inlet_count--;
    inlet_update(porter);
}

void inlet_check(struct stream *stream)
{
    if (!stream->freed && stream->source_ended && stream->sink_ended && stream->sink.fd < 0)
        inlet_free(stream);
}

void inlet_reset(struct stream *stream, bool tell)
{
    if (stream->freed)
        return;
    struct linger now = {.l_onoff = 1}; /* the program inside sees a reset, not a clean end */
    int fd = stream->sources[0].fd >= 0 ? stream->sources[0].fd : stream->sink.fd;
    if (fd >= 0)
        (void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    if (tell)
        wire_frame_add(&stream->porter->out_queue, stream->id, WIRE_RESET, 0, STR_NONE);
    inlet_free(stream);
}

/* ---------------------------------------------------------------- resolver */
/* The first question's name as text, or 0 when there is none we would repeat. */
static size_t question_name(const unsigned char *query, size_t size, char name[254], size_t *end)
{
    size_t at = 12, used = 0;
    while (at < size && query[at]) {
        size_t label = query[at++];
        if (label > 63 || at + label > size || used + label + 1 > 253)
            return 0;
        if (used)
            name[used++] = '.';
        memcpy(name + used, query + at, label);
        used += label;
        at += label;
    }
    *end = at + 5; /* the final zero, type, class */
    return *end <= size ? used : 0;
}

static void resolver_ready(struct watch *watch, uint32_t events)
{
    (void)events;
    unsigned char query[512];
    struct sockaddr_in from;
    socklen_t from_size = sizeof from;
    ssize_t size = recvfrom(watch->fd, query, sizeof query, MSG_DONTWAIT, (struct sockaddr *)&from,
                            &from_size);
    char name[254];
    size_t end = 0;
    if (size < 17 || query[2] & 0x80)
        return;
    size_t name_size = question_name(query, (size_t)size, name, &end);
    if (!end || end > (size_t)size)
        return;
    query[2] = (unsigned char)(0x80 | (query[2] & 0x79)); /* an answer; opcode and RD as asked */
    query[3] = 0x83;                                      /* recursion available; no such name */
    memset(query + 6, 0, 6);                              /* the question alone */
    query[4] = 0;
    query[5] = 1;
    (void)sendto(watch->fd, query, end, MSG_DONTWAIT, (struct sockaddr *)&from, from_size);
    struct str checked;
    struct buf *out = &watch->porter->out_queue;
    if (name_size && out->size < LOOKUP_QUEUE_MAX &&
        wire_lookup_read(str_make(name, name_size), &checked, NULL) == 0)
        wire_frame_add(out, 0, WIRE_LOOKUP, 0, checked);
}

void inlet_start(struct porter *porter, const struct wire_hello *asked, struct wire_hello *answer)
{
    uint16_t port =
        porter->world.options.inlet_port ? porter->world.options.inlet_port : asked->inlet_port;
    if (asked->features & WIRE_FEATURE_INLET && port) {
        int fd = bind_loopback(SOCK_STREAM, port);
        if (fd >= 0 && listen(fd, 512) < 0)
            fd_close(&fd);
        porter->inlet = (struct watch){.ready = inlet_ready, .porter = porter, .fd = fd};
        if (fd >= 0) {
            answer->features |= WIRE_FEATURE_INLET;
            answer->inlet_port = port;
        }
        inlet_update(porter);
    }
    if (asked->features & WIRE_FEATURE_RESOLVER) {
        int fd = bind_loopback(SOCK_DGRAM, 53);
        porter->resolver = (struct watch){.ready = resolver_ready, .porter = porter, .fd = fd};
        if (fd < 0)
            return;
        answer->features |= WIRE_FEATURE_RESOLVER;
        watch_set(&porter->resolver, EPOLLIN);
    }
}
