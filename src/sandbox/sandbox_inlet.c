/* sandbox_inlet.c - what comes out of a sandbox: connections to the inlet, and names it looks up.
 *
 * A local sandbox's inlet is a listening socket inside its network namespace that we hold:
 * accepting on it is all there is. It is watched only while somebody takes connections, so early
 * ones wait in the kernel's queue. A remote sandbox's connections arrive as sockets from the
 * channel; early ones wait here, a few.
 *
 * The resolver socket answers each datagram at once (dns.c) and keeps count. Both work in batches
 * with a maximum, so that a sandbox that hammers one of them cannot hold the loop. */
#include <errno.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/log.h"
#include "sandbox/manager.h"

enum {
    ACCEPT_BATCH = 32,
    ACCEPT_PAUSE_MS = 100, /* when descriptors are out */
    QUERY_BATCH = 64,
};

static void on_inlet_ready(struct loop_watch *watch, uint32_t events);

static void watch_inlet(struct sandbox *sandbox)
{
    bool wanted = sandbox->on_connection && sandbox->inlet_fd >= 0 && !sandbox->inlet_timer.loop;
    if (!wanted) {
        loop_watch_stop(&sandbox->inlet_watch);
        return;
    }
    if (sandbox->inlet_watch.loop)
        return;
    struct err err = {0};
    if (loop_watch_start(sandbox->sandboxes->loop, &sandbox->inlet_watch, sandbox->inlet_fd,
                         LOOP_READ, on_inlet_ready, sandbox, &err) < 0)
        LOG_ERROR("sandbox", sandbox->id, "the inlet cannot be watched: %s", err.text);
}

static void on_inlet_pause_over(struct loop_timer *timer)
{
    watch_inlet(timer->context);
}

static void on_inlet_ready(struct loop_watch *watch, uint32_t events)
{
    (void)events;
    struct sandbox *sandbox = watch->context;
    for (int i = 0; i < ACCEPT_BATCH && sandbox->on_connection && sandbox->inlet_fd >= 0; i++) {
        int fd = accept4(sandbox->inlet_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd >= 0) {
            sandbox->on_connection(sandbox->inlet_context, fd);
            continue;
        }
        if (errno == ECONNABORTED || errno == EINTR)
            continue;
        if (errno == EAGAIN)
            return;
        /* Out of descriptors or memory: the socket stays readable, so look away for a moment. */
        LOG_WARN("sandbox", sandbox->id, "the inlet takes no connection for now: %m");
        loop_watch_stop(watch);
        loop_timer_start(sandbox->sandboxes->loop, &sandbox->inlet_timer, ACCEPT_PAUSE_MS,
                         on_inlet_pause_over, sandbox);
        return;
    }
}

static void on_resolver_ready(struct loop_watch *watch, uint32_t events)
{
    (void)events;
    struct sandbox *sandbox = watch->context;
    for (int i = 0; i < QUERY_BATCH; i++) {
        uint8_t query[DNS_PACKET_MAX], answer[DNS_ANSWER_MAX];
        char name[DNS_NAME_MAX];
        struct sockaddr_storage from;
        socklen_t from_size = sizeof from;
        ssize_t size = recvfrom(sandbox->resolver_fd, query, sizeof query, MSG_DONTWAIT,
                                (struct sockaddr *)&from, &from_size);
        if (size < 0) {
            if (errno == EINTR || errno == ECONNREFUSED)
                continue; /* an earlier asker has left */
            if (errno != EAGAIN) {
                LOG_WARN("sandbox", sandbox->id, "its resolver stopped: %m");
                loop_watch_stop(watch);
            }
            return;
        }
        size_t answer_size = dns_refuse(query, (size_t)size, answer, name);
        dns_tally_add(&sandbox->lookups, name, 1);
        if (answer_size) /* an asker that does not listen gets nothing, as with any resolver */
            (void)sendto(sandbox->resolver_fd, answer, answer_size, MSG_DONTWAIT | MSG_NOSIGNAL,
                         (struct sockaddr *)&from, from_size);
    }
}

void sandbox_inlet_open(struct sandbox *sandbox, int inlet_fd, int resolver_fd)
{
    sandbox->inlet_fd = inlet_fd;
    sandbox->resolver_fd = resolver_fd;
    if (inlet_fd >= 0)
        (void)fd_nonblocking(inlet_fd, true);
    watch_inlet(sandbox);
    struct err err = {0};
    if (resolver_fd >= 0 &&
        loop_watch_start(sandbox->sandboxes->loop, &sandbox->resolver_watch, resolver_fd, LOOP_READ,
                         on_resolver_ready, sandbox, &err) < 0)
        LOG_ERROR("sandbox", sandbox->id, "its resolver cannot be watched: %s", err.text);
}

void sandbox_inlet_close(struct sandbox *sandbox)
{
    loop_timer_stop(&sandbox->inlet_timer);
    loop_watch_stop(&sandbox->inlet_watch);
    loop_watch_stop(&sandbox->resolver_watch);
    fd_close(&sandbox->inlet_fd);
    fd_close(&sandbox->resolver_fd);
    for (size_t i = 0; i < sandbox->pending_count; i++)
        fd_close(&sandbox->pending[i]);
    sandbox->pending_count = 0;
}

void sandbox_inlet_arrived(struct sandbox *sandbox, int fd)
{
    if (sandbox->on_connection) {
        sandbox->on_connection(sandbox->inlet_context, fd);
        return;
    }
    if (sandbox->pending_count == INLET_PENDING_MAX) {
        LOG_WARN("sandbox", sandbox->id, "more than %d connections wait at the inlet",
                 INLET_PENDING_MAX);
        fd_close(&fd);
        return;
    }
    sandbox->pending[sandbox->pending_count++] = fd;
}

/* Deferred: connections that came before their handler. */
static void hand_over(struct loop_timer *timer)
{
    struct sandbox *sandbox = timer->context;
    while (sandbox->on_connection && sandbox->pending_count) {
        int fd = sandbox->pending[0];
        sandbox->pending_count--;
        for (size_t i = 0; i < sandbox->pending_count; i++)
            sandbox->pending[i] = sandbox->pending[i + 1];
        sandbox->on_connection(sandbox->inlet_context, fd);
    }
    watch_inlet(sandbox);
}

void sandbox_on_inlet(struct sandbox *sandbox, void (*on_connection)(void *context, int fd),
                      void *context)
{
    if (sandbox->silent)
        return;
    sandbox->on_connection = on_connection;
    sandbox->inlet_context = context;
    if (on_connection && sandbox->pending_count)
        loop_timer_start(sandbox->sandboxes->loop, &sandbox->inlet_timer, 0, hand_over, sandbox);
    else
        watch_inlet(sandbox);
}

void sandbox_lookups(const struct sandbox *sandbox, struct json_writer *out)
{
    dns_tally_write(&sandbox->lookups, out);
}
