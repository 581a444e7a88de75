/* server.c - the keeper's side of its socket: connections, requests, answers.
 *
 * Requests are checked field by field; a packet that is not sound ends the connection. An answer
 * that does not fit into the socket now waits in a short queue; a peer that does not read loses its
 * connection, and its sandboxes wait for whoever comes next.
 *
 * What a connection made belongs to it. When it goes, its pools go with it and its sandboxes and
 * layers are orphans: kept for a while, listed by find, taken over by adopt, then destroyed. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/mem.h"
#include "keeper.h"

#define QUEUE_MAX 4096
#define CONNECTIONS_MAX 256

struct packet {
    struct list node;
    struct buf bytes;
    int fds[KEEPER_FDS];
    size_t fd_count;
};

struct connection {
    struct list node;
    uint64_t number;
    struct watch watch;
    struct list queue;
    unsigned queued;
    bool broken; /* closed at the end of this event */
};

static struct connection *connection_find(struct keeper *keeper, uint64_t number)
{
    LIST_EACH (at, &keeper->connections) {
        struct connection *connection = LIST_OF(at, struct connection, node);
        if (connection->number == number && !connection->broken)
            return connection;
    }
    return NULL;
}

bool server_knows(struct keeper *keeper, uint64_t connection)
{
    return connection && connection_find(keeper, connection);
}

static void packet_free(struct packet *packet)
{
    list_remove(&packet->node);
    buf_deinit(&packet->bytes);
    for (size_t i = 0; i < packet->fd_count; i++)
        fd_close(&packet->fds[i]);
    free(packet);
}

static void connection_close(struct keeper *keeper, struct connection *connection)
{
    uint64_t number = connection->number, until = clock_mono_ms() + keeper->options.idle_ms;
    list_remove(&connection->node);
    LIST_EACH (at, &connection->queue)
        packet_free(LIST_OF(at, struct packet, node));
    bool private = keeper->options.private_fd >= 0;
    int fd = connection->watch.fd;
    keeper_unwatch(keeper, &connection->watch);
    if (!private) /* else it closes with us: whoever waits for that knows that nothing is left */
        close(fd);
    free(connection);
    pools_drop_owner(keeper, number);
    LIST_EACH (at, &keeper->sandboxes) {
        struct sandbox *sandbox = LIST_OF(at, struct sandbox, node);
        if (sandbox->owner != number)
            continue;
        sandbox->orphan_at_ms = until;
        if (sandbox->life == LIFE_GONE)
            sandbox_free(keeper, sandbox);
        else if (private || sandbox->life == LIFE_STARTING) /* nobody has heard of it yet */
            sandbox_kill(keeper, sandbox);
    }
    LIST_EACH (at, &keeper->layers) {
        struct layer *layer = LIST_OF(at, struct layer, node);
        if (layer->owner == number)
            layer->orphan_at_ms = until;
    }
    if (private)
        keeper->ending = true;
}

void server_tick(struct keeper *keeper, uint64_t now_ms)
{
    for (bool again = true; again;) { /* a dropped layer may take its parents along */
        again = false;
        LIST_EACH (at, &keeper->layers) {
            struct layer *layer = LIST_OF(at, struct layer, node);
            if (!layer->dropped &&
                (keeper->ending || (layer->orphan_at_ms && now_ms >= layer->orphan_at_ms))) {
                layer_drop(keeper, layer);
                again = true;
                break;
            }
        }
    }
}

/* --- answers
 * ---------------------------------------------------------------------------------------- */

/* False: the peer does not read, or is gone. */
static bool send_packet(struct connection *connection, struct str bytes, const int *fds,
                        size_t fd_count)
{
    if (list_empty(&connection->queue)) {
        ssize_t sent = fd_send(connection->watch.fd, bytes.data, bytes.size, fds, fd_count);
        if (sent == (ssize_t)bytes.size)
            return true;
        if (sent >= 0 || (errno != EAGAIN && errno != ENOBUFS))
            return false;
    }
    if (connection->queued == QUEUE_MAX)
        return false;
    struct packet *packet = mem_zero(sizeof *packet);
    buf_str_append(&packet->bytes, bytes);
    for (size_t i = 0; i < fd_count; i++)
        packet->fds[packet->fd_count++] = dup(fds[i]);
    list_append(&connection->queue, &packet->node);
    connection->queued++;
    return true;
}

static void flush(struct keeper *keeper, struct connection *connection)
{
    LIST_EACH (at, &connection->queue) {
        struct packet *packet = LIST_OF(at, struct packet, node);
        ssize_t sent = fd_send(connection->watch.fd, packet->bytes.data, packet->bytes.size,
                               packet->fds, packet->fd_count);
        if (sent < 0 && (errno == EAGAIN || errno == ENOBUFS))
            return;
        if (sent < 0) {
            connection->broken = true;
            return;
        }
        packet_free(packet);
        connection->queued--;
    }
    (void)keeper_watch(keeper, &connection->watch, EPOLLIN, NULL);
}

void server_answer(struct keeper *keeper, struct request *request, const struct buf *fields,
                   const int *fds, size_t fd_count, const struct err *err)
{
    if (!request->wanted)
        return;
    request->wanted = false;
    struct connection *connection = connection_find(keeper, request->connection);
    if (!connection)
        return;
    OWN(buf) struct buf out = {0};
    keeper_add_number(&out, "seq", request->seq);
    if (err && err->kind) {
        keeper_add_number(&out, "kind", (uint64_t)err->kind);
        keeper_add(&out, "text", err->text);
    } else if (fields) {
        buf_append(&out, fields->data, fields->size);
    }
    bool was_idle = list_empty(&connection->queue);
    if (!send_packet(connection, buf_str(&out), fds, fd_count)) {
        connection->broken = true;
        (void)shutdown(connection->watch.fd, SHUT_RDWR); /* its event closes it */
    } else if (was_idle && !list_empty(&connection->queue)) {
        (void)keeper_watch(keeper, &connection->watch, EPOLLIN | EPOLLOUT, NULL);
    }
}

static void answer_with_fds(struct keeper *keeper, struct sandbox *sandbox, struct request *request)
{
    OWN(buf) struct buf fields = {0}, facts = {0};
    sandbox_facts(keeper, sandbox, &facts);
    keeper_add(&fields, "facts", buf_text(&facts));
    keeper_add_number(&fields, "pool_hit", sandbox->pool_hit);
    int fds[KEEPER_FDS];
    fds[KEEPER_FD_FRAMES] = sandbox->frames;
    fds[KEEPER_FD_INLET] = sandbox->net->inlet;
    fds[KEEPER_FD_RESOLVER] = sandbox->net->resolver;
    server_answer(keeper, request, &fields, fds, KEEPER_FDS, NULL);
    /* Ours would keep the porter from noticing that the server is gone. */
    fd_close(&sandbox->frames);
}

void server_answer_created(struct keeper *keeper, struct sandbox *sandbox)
{
    answer_with_fds(keeper, sandbox, &sandbox->create);
}

/* --- requests
 * --------------------------------------------------------------------------------------- */

static void refuse(struct keeper *keeper, struct request *request, const struct err *err)
{
    server_answer(keeper, request, NULL, NULL, 0, err);
}

static const char *wanted_id(struct str packet, struct err *err)
{
    const char *id = keeper_field(packet, "id");
    size_t size = id ? strspn(id, "abcdefghijklmnopqrstuvwxyz0123456789-") : 0;
    if (size == 0 || id[size] || size >= ID_MAX) {
        err_set(err, ERR_PROTOCOL, "not an id");
        return NULL;
    }
    return id;
}

static void do_hello(struct keeper *keeper, struct connection *connection, struct str packet,
                     struct request *request)
{
    (void)connection;
    struct err err = {0};
    if (keeper_field_number(packet, "version", 0, 1000000) != KEEPER_VERSION) {
        err_set(&err, ERR_CONFLICT, "the keeper that runs is of another version (%d)",
                KEEPER_VERSION);
        refuse(keeper, request, &err);
        return;
    }
    OWN(buf) struct buf fields = {0};
    keeper_add_number(&fields, "version", KEEPER_VERSION);
    keeper_add_number(&fields, "pid", (uint64_t)getpid());
    keeper_add(&fields, "broken", keeper->broken.kind ? keeper->broken.text : NULL);
    keeper_add_number(&fields, "limits",
                      (keeper->cgroups.controllers & 3) == 3); /* memory and pids */
    server_answer(keeper, request, &fields, NULL, 0, NULL);
}

static void do_create(struct keeper *keeper, struct connection *connection, struct str packet,
                      struct request *request)
{
    struct err err = {0};
    const char *id = wanted_id(packet, &err);
    struct shape *shape = id ? shape_read(packet, &err) : NULL;
    if (shape && sandbox_find(keeper, id)) {
        err_set(&err, ERR_CONFLICT, "there is a sandbox '%s' already", id);
        shape_free(shape);
        shape = NULL;
    }
    struct sandbox *sandbox = NULL;
    if (shape) {
        sandbox = pool_take(keeper, shape);
        if (!sandbox)
            sandbox = sandbox_start(keeper, shape, id, &err);
        shape_free(shape);
    }
    if (!sandbox) {
        refuse(keeper, request, &err);
        return;
    }
    snprintf(sandbox->id, sizeof sandbox->id, "%s", id);
    const char *label = keeper_field(packet, "label");
    char shown[256];
    snprintf(shown, sizeof shown, "%s", label ? label : "");
    free(sandbox->label);
    sandbox->label = mem_dup(shown);
    sandbox->owner = connection->number;
    sandbox->create = *request;
    uint64_t life = keeper_field_number(packet, "life_ms", 0, UINT32_MAX);
    sandbox->die_at_ms = life ? clock_mono_ms() + life : 0;
    sandbox->born_ms = clock_mono_ms();
    if (sandbox->life == LIFE_READY)
        server_answer_created(keeper, sandbox);
}

static void do_destroy(struct keeper *keeper, struct connection *connection, struct str packet,
                       struct request *request)
{
    (void)connection;
    struct err err = {0};
    const char *id = wanted_id(packet, &err);
    struct sandbox *sandbox = id ? sandbox_find(keeper, id) : NULL;
    if (!sandbox) {
        if (id)
            err_set(&err, ERR_NOT_FOUND, "there is no sandbox '%s'", id);
        refuse(keeper, request, &err);
        return;
    }
    if (sandbox->life == LIFE_GONE) {
        server_answer(keeper, request, NULL, NULL, 0, NULL);
        sandbox_free(keeper, sandbox);
        return;
    }
    if (sandbox->destroy.wanted) {
        err_set(&err, ERR_CONFLICT, "the sandbox '%s' is being destroyed already", id);
        refuse(keeper, request, &err);
        return;
    }
    sandbox->destroy = *request;
    if (sandbox->create.wanted)
        err_set(&sandbox->err, ERR_CANCELLED, "the sandbox was destroyed before it was ready");
    server_answer(keeper, &sandbox->create, NULL, NULL, 0, &sandbox->err);
    sandbox_kill(keeper, sandbox);
}

static void do_snapshot(struct keeper *keeper, struct connection *connection, struct str packet,
                        struct request *request)
{
    (void)connection;
    struct err err = {0};
    const char *id = wanted_id(packet, &err);
    struct sandbox *sandbox = id ? sandbox_find(keeper, id) : NULL;
    if (id && !sandbox)
        err_set(&err, ERR_NOT_FOUND, "there is no sandbox '%s'", id);
    else if (sandbox && sandbox->life != LIFE_READY)
        err_set(&err, ERR_CONFLICT, "the sandbox '%s' is not running", id);
    if (err.kind) {
        refuse(keeper, request, &err);
        return;
    }
    sandbox->snapshot = *request;
    sandbox_kill(keeper, sandbox);
}

static void do_drop_layer(struct keeper *keeper, struct connection *connection, struct str packet,
                          struct request *request)
{
    (void)connection;
    const char *id = keeper_field(packet, "layer");
    struct layer *layer = id ? layer_find(keeper, id) : NULL;
    struct err err = {0};
    if (!layer)
        err_set(&err, ERR_NOT_FOUND, "there is no layer '%.60s'", id ? id : "");
    else
        layer_drop(keeper, layer);
    server_answer(keeper, request, NULL, NULL, 0, &err);
}

static void do_pool(struct keeper *keeper, struct connection *connection, struct str packet,
                    struct request *request)
{
    struct err err = {0};
    struct shape *shape = shape_read(packet, &err);
    uint32_t count = (uint32_t)keeper_field_number(packet, "count", 0, 100000);
    if (shape)
        (void)pool_set(keeper, shape, count, connection->number, &err);
    shape_free(shape);
    server_answer(keeper, request, NULL, NULL, 0, &err);
}

static void do_oom(struct keeper *keeper, struct connection *connection, struct str packet,
                   struct request *request)
{
    (void)connection;
    struct err err = {0};
    const char *id = wanted_id(packet, &err);
    struct sandbox *sandbox = id ? sandbox_find(keeper, id) : NULL;
    if (id && !sandbox)
        err_set(&err, ERR_NOT_FOUND, "there is no sandbox '%s'", id);
    OWN(buf) struct buf fields = {0};
    if (sandbox)
        keeper_add_number(&fields, "count",
                          sandbox->leaf ? cgroup_leaf_oom_kills(&keeper->cgroups, sandbox->leaf)
                                        : sandbox->oom_kills);
    server_answer(keeper, request, &fields, NULL, 0, &err);
}

/* A server that died may not have been noticed yet when its successor asks for what it had. What it
 * asked for last, and nobody has read, nobody waits for any more. */
static void close_dead(struct keeper *keeper, const struct connection *asking)
{
    LIST_EACH (at, &keeper->connections) {
        struct connection *connection = LIST_OF(at, struct connection, node);
        struct pollfd peer = {.fd = connection->watch.fd};
        if (connection != asking && poll(&peer, 1, 0) > 0 && peer.revents & POLLHUP)
            connection_close(keeper, connection);
    }
}

static void do_find(struct keeper *keeper, struct connection *connection, struct str packet,
                    struct request *request)
{
    (void)packet;
    close_dead(keeper, connection);
    uint64_t now = clock_mono_ms();
    OWN(buf) struct buf fields = {0};
    LIST_EACH (at, &keeper->sandboxes) {
        struct sandbox *sandbox = LIST_OF(at, struct sandbox, node);
        if (sandbox->pooled || sandbox->life != LIFE_READY || !sandbox->orphan_at_ms)
            continue;
        if (fields.size > KEEPER_PACKET_MAX / 2) { /* more in the next packet */
            struct request part = *request;
            keeper_add_number(&fields, "more", 1);
            server_answer(keeper, &part, &fields, NULL, 0, NULL);
            buf_clear(&fields);
        }
        keeper_add(&fields, "found", sandbox->id);
        keeper_add_number(&fields, "age_ms", now - sandbox->born_ms);
        keeper_add(&fields, "label", sandbox->label ? sandbox->label : "");
    }
    LIST_EACH (at, &keeper->layers) {
        struct layer *layer = LIST_OF(at, struct layer, node);
        if (layer->dropped || !layer->orphan_at_ms)
            continue;
        if (fields.size > KEEPER_PACKET_MAX / 2) {
            struct request part = *request;
            keeper_add_number(&fields, "more", 1);
            server_answer(keeper, &part, &fields, NULL, 0, NULL);
            buf_clear(&fields);
        }
        keeper_add(&fields, "layer", layer->id);
        keeper_add(&fields, "label", layer->label ? layer->label : "");
    }
    server_answer(keeper, request, &fields, NULL, 0, NULL);
}

static void do_adopt(struct keeper *keeper, struct connection *connection, struct str packet,
                     struct request *request)
{
    struct err err = {0};
    close_dead(keeper, connection);
    const char *id = wanted_id(packet, &err);
    struct sandbox *sandbox = id ? sandbox_find(keeper, id) : NULL;
    if (id && (!sandbox || sandbox->life != LIFE_READY))
        err_set(&err, ERR_NOT_FOUND, "there is no sandbox '%s'", id);
    else if (sandbox && sandbox->owner != connection->number && !sandbox->orphan_at_ms)
        err_set(&err, ERR_CONFLICT, "the sandbox '%s' belongs to another server", id);
    else if (sandbox)
        (void)sandbox_reconnect(sandbox, &err);
    if (err.kind) {
        refuse(keeper, request, &err);
        return;
    }
    sandbox->owner = connection->number;
    sandbox->orphan_at_ms = 0;
    for (size_t i = 0; i < sandbox->used_count; i++) {
        sandbox->used[i]->owner = connection->number;
        sandbox->used[i]->orphan_at_ms = 0;
    }
    answer_with_fds(keeper, sandbox, request);
}

static void do_adopt_layer(struct keeper *keeper, struct connection *connection, struct str packet,
                           struct request *request)
{
    struct err err = {0};
    close_dead(keeper, connection);
    const char *id = keeper_field(packet, "layer");
    struct layer *layer = id ? layer_find(keeper, id) : NULL;
    if (!layer)
        err_set(&err, ERR_NOT_FOUND, "there is no layer '%.60s'", id ? id : "");
    else if (layer->owner != connection->number && !layer->orphan_at_ms)
        err_set(&err, ERR_CONFLICT, "the layer '%s' belongs to another server", id);
    if (!err.kind) {
        layer->owner = connection->number;
        layer->orphan_at_ms = 0;
    }
    server_answer(keeper, request, NULL, NULL, 0, &err);
}

static const struct {
    const char *op;
    void (*handle)(struct keeper *keeper, struct connection *connection, struct str packet,
                   struct request *request);
} operations[] = {
    {"hello", do_hello},
    {"create", do_create},
    {"destroy", do_destroy},
    {"snapshot", do_snapshot},
    {"drop_layer", do_drop_layer},
    {"pool", do_pool},
    {"oom", do_oom},
    {"find", do_find},
    {"adopt", do_adopt},
    {"adopt_layer", do_adopt_layer},
};

static void handle_packet(struct keeper *keeper, struct connection *connection, struct str packet)
{
    if (!keeper_packet_is_sound(packet)) {
        LOG_WARN("keeper", NULL, "a connection sent nonsense and was closed");
        connection->broken = true;
        return;
    }
    struct request request = {.connection = connection->number,
                              .seq = keeper_field_number(packet, "seq", 0, INT64_MAX),
                              .wanted = true};
    const char *op = keeper_field(packet, "op");
    for (size_t i = 0; op && i < COUNT(operations); i++)
        if (strcmp(op, operations[i].op) == 0) {
            operations[i].handle(keeper, connection, packet, &request);
            return;
        }
    struct err err = {0};
    err_set(&err, ERR_PROTOCOL, "the keeper knows no such request");
    refuse(keeper, &request, &err);
}

/* --- sockets
 * ---------------------------------------------------------------------------------------- */

static void on_connection(struct keeper *keeper, void *context, uint32_t events)
{
    static char bytes[KEEPER_PACKET_MAX + 1];
    struct connection *connection = context;
    if (events & EPOLLOUT)
        flush(keeper, connection);
    if (events & (EPOLLIN | EPOLLHUP | EPOLLERR) && !connection->broken) {
        int fds[FD_PASS_MAX];
        size_t fd_count = FD_PASS_MAX;
        ssize_t got = fd_receive(connection->watch.fd, bytes, sizeof bytes, fds, &fd_count);
        for (size_t i = 0; got >= 0 && i < fd_count; i++)
            close(fds[i]); /* nobody has descriptors for us */
        if (got > 0)
            handle_packet(keeper, connection, str_make(bytes, (size_t)got));
        else if (got == 0 || (errno != EAGAIN && errno != EINTR))
            connection->broken = true;
    }
    if (connection->broken)
        connection_close(keeper, connection);
}

bool server_adopt_socket(struct keeper *keeper, int fd)
{
    struct ucred peer;
    socklen_t size = sizeof peer;
    size_t count = 0;
    LIST_EACH (at, &keeper->connections)
        count++;
    /* The user who started us is 0 here: root, or mapped to it. A private socket was inherited. */
    bool inherited = fd == keeper->options.private_fd;
    if ((!inherited &&
         (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) < 0 || peer.uid != 0)) ||
        count >= CONNECTIONS_MAX || fd_nonblocking(fd, true) < 0) {
        LOG_WARN("keeper", NULL, "a connection was refused");
        close(fd);
        return false;
    }
    struct connection *connection = mem_zero(sizeof *connection);
    connection->number = ++keeper->next_connection;
    list_init(&connection->queue);
    connection->watch = (struct watch){fd, on_connection, connection};
    list_append(&keeper->connections, &connection->node);
    if (keeper_watch(keeper, &connection->watch, EPOLLIN, NULL) < 0) {
        connection_close(keeper, connection);
        return false;
    }
    return true;
}

static void on_listen(struct keeper *keeper, void *context, uint32_t events)
{
    (void)context;
    (void)events;
    int fd = accept4(keeper->listen_watch.fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd >= 0)
        (void)server_adopt_socket(keeper, fd);
}

int server_start(struct keeper *keeper, struct err *err)
{
    keeper->listen_watch.fd = -1;
    if (keeper->options.private_fd >= 0) {
        if (!server_adopt_socket(keeper, keeper->options.private_fd))
            return err_set(err, ERR_INPUT, "the private socket cannot be used");
        return 0;
    }
    if (fd_nonblocking(keeper->options.listen_fd, true) < 0)
        return err_errno(err, "the listening socket");
    keeper->listen_watch = (struct watch){keeper->options.listen_fd, on_listen, NULL};
    return keeper_watch(keeper, &keeper->listen_watch, EPOLLIN, err);
}

void server_stop(struct keeper *keeper)
{
    LIST_EACH (at, &keeper->connections)
        connection_close(keeper, LIST_OF(at, struct connection, node));
    keeper_unwatch(keeper, &keeper->listen_watch);
}
