/* server.c - listening sockets and the life of a server.
 *
 * A server that closes stops listening, lets busy connections finish, and is freed when the last
 * one is. When the grace is over, connections are reset; exchanges whose handlers cannot be told
 * are cut loose and live until they are answered. */
#include "server.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/log.h"
#include "base/mem.h"

enum { BACKLOG = 4096, ACCEPTS_PER_TICK = 64, ACCEPT_PAUSE_MS = 100 };

struct listener {
    struct http_server *server;
    struct list link;
    struct loop_watch watch;
    struct loop_timer pause; /* when descriptors have run out */
    char *unlink_path;       /* of a unix socket we made, or NULL */
};

#define DEFAULT(field, value)                                                                      \
    do {                                                                                           \
        if (!server->options.field)                                                                \
            server->options.field = (value);                                                       \
    } while (0)

struct http_server *http_server_new(struct loop *loop, const struct http_server_options *options)
{
    struct http_server *server = mem_zero(sizeof *server);
    server->loop = loop;
    server->options = *options;
    DEFAULT(head_bytes_max, (size_t)64 << 10);
    DEFAULT(body_bytes_max, (size_t)64 << 20);
    DEFAULT(connections_max, 10000);
    DEFAULT(head_ms_max, 30000);
    DEFAULT(body_idle_ms_max, 60000);
    DEFAULT(keepalive_ms_max, 75000);
    DEFAULT(write_idle_ms_max, 300000);
    DEFAULT(queue_bytes_max, (size_t)256 << 20);
    list_init(&server->listeners);
    list_init(&server->connections);
    return server;
}

size_t http_server_connections(const struct http_server *server)
{
    return server->connection_count;
}

/* --- accepting --- */

/* Fails harmlessly where the socket is not TCP. */
static void no_delay(int fd)
{
    int one = 1;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

void http_server_adopt(struct http_server *server, int connected_fd)
{
    if (server->closing || server->connection_count >= server->options.connections_max) {
        char text[512];
        size_t size = http_error_text(text, sizeof text, 503, "too many connections");
        (void)send(connected_fd, text, size, MSG_NOSIGNAL | MSG_DONTWAIT);
        fd_close(&connected_fd);
        return;
    }
    (void)fd_nonblocking(connected_fd, true);
    (void)fd_cloexec(connected_fd, true);
    no_delay(connected_fd);
    http_conn_start(server, connected_fd);
}

static void accept_again(struct loop_timer *timer)
{
    struct listener *listener = timer->context;
    loop_watch_change(&listener->watch, LOOP_READ);
}

static void accept_ready(struct loop_watch *watch, uint32_t events)
{
    (void)events;
    struct listener *listener = watch->context;
    struct http_server *server = listener->server;
    for (int i = 0; i < ACCEPTS_PER_TICK; i++) {
        int fd = accept4(watch->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd >= 0 && server->connection_count < server->options.connections_max) {
            http_conn_start(server, fd);
            continue;
        }
        if (fd >= 0) {
            http_server_adopt(server, fd);
            continue;
        }
        if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
            /* Nothing can be accepted until something is closed; do not spin meanwhile. */
            LOG_WARN("http", NULL, "accepting pauses: %s", strerror(errno));
            loop_watch_change(watch, 0);
            loop_timer_start(server->loop, &listener->pause, ACCEPT_PAUSE_MS, accept_again,
                             listener);
        }
        if (errno != EINTR && errno != ECONNABORTED)
            return;
    }
}

static int listen_on(struct http_server *server, int fd, const char *unlink_path, struct err *err)
{
    if (fd_nonblocking(fd, true) < 0) {
        err_errno(err, "listening on descriptor %d", fd);
        fd_close(&fd);
        return -1;
    }
    struct listener *listener = mem_zero(sizeof *listener);
    if (loop_watch_start(server->loop, &listener->watch, fd, LOOP_READ, accept_ready, listener,
                         err) < 0) {
        fd_close(&fd);
        free(listener);
        return -1;
    }
    no_delay(fd); /* accepted sockets inherit it */
    listener->server = server;
    listener->unlink_path = mem_dup(unlink_path);
    list_append(&server->listeners, &listener->link);
    return 0;
}

int http_server_listen_fd(struct http_server *server, int listening_fd, struct err *err)
{
    (void)fd_cloexec(listening_fd, true);
    return listen_on(server, listening_fd, NULL, err);
}

static int tcp_address(const char *text, uint16_t port, struct sockaddr_storage *address,
                       socklen_t *size)
{
    struct sockaddr_in *v4 = (struct sockaddr_in *)address;
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)address;
    *address = (struct sockaddr_storage){0};
    if (strcmp(text, "localhost") == 0)
        text = "127.0.0.1";
    if (inet_pton(AF_INET, text, &v4->sin_addr) == 1) {
        v4->sin_family = AF_INET;
        v4->sin_port = htons(port);
        *size = sizeof *v4;
        return 0;
    }
    if (inet_pton(AF_INET6, text, &v6->sin6_addr) == 1) {
        v6->sin6_family = AF_INET6;
        v6->sin6_port = htons(port);
        *size = sizeof *v6;
        return 0;
    }
    return -1;
}

int http_server_listen_tcp(struct http_server *server, const char *address, uint16_t port,
                           uint16_t *port_bound, struct err *err)
{
    struct sockaddr_storage at;
    socklen_t size;
    if (tcp_address(address, port, &at, &size) < 0)
        return err_set(err, ERR_INPUT, "'%s' is not an IP address to listen on", address);
    OWN(fd) int fd = socket(at.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return err_errno(err, "a socket to listen on");
    int one = 1;
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(fd, (struct sockaddr *)&at, size) < 0 || listen(fd, BACKLOG) < 0)
        return err_errno(err, "listening on %s port %u", address, port);
    if (getsockname(fd, (struct sockaddr *)&at, &size) < 0)
        return err_errno(err, "listening on %s port %u", address, port);
    if (port_bound)
        *port_bound = ntohs(at.ss_family == AF_INET ? ((struct sockaddr_in *)&at)->sin_port
                                                    : ((struct sockaddr_in6 *)&at)->sin6_port);
    return listen_on(server, fd_take(&fd), NULL, err);
}

/* A socket file that nobody answers on is left over from a killed process. */
static void remove_stale(const struct sockaddr_un *address)
{
    struct stat info;
    if (lstat(address->sun_path, &info) < 0 || !S_ISSOCK(info.st_mode))
        return;
    OWN(fd) int probe = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (probe >= 0 && connect(probe, (const struct sockaddr *)address, sizeof *address) < 0 &&
        errno == ECONNREFUSED)
        (void)unlink(address->sun_path);
}

int http_server_listen_unix(struct http_server *server, const char *path, uint32_t mode,
                            struct err *err)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof at.sun_path)
        return err_set(err, ERR_INPUT, "the socket path '%s' is longer than %zu bytes", path,
                       sizeof at.sun_path - 1);
    memcpy(at.sun_path, path, strlen(path) + 1);
    OWN(fd) int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return err_errno(err, "a socket to listen on");
    remove_stale(&at);
    /* The file takes the socket's mode, so it is never open wider than asked, not even for a
     * moment. */
    if (fchmod(fd, mode) < 0 || bind(fd, (struct sockaddr *)&at, sizeof at) < 0)
        return err_errno(err, "listening on '%s'", path);
    if (chmod(path, mode) < 0 || listen(fd, BACKLOG) < 0) {
        err_errno(err, "listening on '%s'", path);
        (void)unlink(path);
        return -1;
    }
    return listen_on(server, fd_take(&fd), path, err);
}

/* --- closing --- */

static void finish(void *argument)
{
    struct http_server *server = argument;
    void (*on_closed)(void *) = server->on_closed;
    void *context = server->closed_context;
    free(server);
    if (on_closed)
        on_closed(context);
}

void http_server_check_done(struct http_server *server)
{
    if (!server->closing || server->connection_count || server->finishing)
        return;
    server->finishing = true;
    loop_timer_stop(&server->grace);
    loop_defer(server->loop, finish, server);
}

static void end_all(void *argument)
{
    struct http_server *server = argument;
    LIST_EACH (at, &server->connections) {
        struct http_conn *conn = LIST_OF(at, struct http_conn, link);
        http_conn_gone(conn, ERR_CANCELLED, "the server closes");
        if (conn->freeing)
            continue;
        conn->server = NULL;
        list_remove(&conn->link);
        server->connection_count--;
    }
    http_server_check_done(server);
}

static void grace_over(struct loop_timer *timer)
{
    end_all(timer->context);
}

void http_server_close(struct http_server *server, uint32_t grace_ms, void (*on_closed)(void *),
                       void *context)
{
    if (server->closing)
        return;
    server->closing = true;
    server->on_closed = on_closed;
    server->closed_context = context;
    LIST_EACH (at, &server->listeners) {
        struct listener *listener = LIST_OF(at, struct listener, link);
        int fd = listener->watch.fd;
        loop_watch_stop(&listener->watch);
        loop_timer_stop(&listener->pause);
        fd_close(&fd);
        if (listener->unlink_path)
            (void)unlink(listener->unlink_path);
        free(listener->unlink_path);
        free(listener);
    }
    list_init(&server->listeners);
    LIST_EACH (at, &server->connections) {
        struct http_conn *conn = LIST_OF(at, struct http_conn, link);
        if (!conn->closed && http_conn_is_idle(conn))
            http_conn_close(conn, false);
    }
    if (grace_ms)
        loop_timer_start(server->loop, &server->grace, grace_ms, grace_over, server);
    else
        loop_defer(server->loop, end_all, server);
    if (grace_ms)
        http_server_check_done(server);
}
