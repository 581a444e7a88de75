/* backend_local.c - sandboxes on this machine, made by the keeper; this is the client half.
 *
 * Requests go out as packets and wait in `pending` for the answer with their number; many can be on
 * the way. When the keeper goes away its sandboxes die with it: everything pending ends with
 * ERR_LOST, but requests to destroy go to the next keeper, which sweeps. A connection that was
 * closed before its first answer met a keeper on its way out; then all is sent again. */
#include "sandbox/backend.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "backend_local_keeper.h"
#include "base/fd.h"
#include "base/id.h"
#include "base/list.h"
#include "base/log.h"
#include "base/mem.h"
#include "keeper_protocol.h"
#include "loop/loop.h"

#define PENDING_MAX 8192
#define FOUND_MAX 8192
#define ATTEMPTS_MAX 3
#define STOP_MS_MAX 15000
#define LIFE_LATER_MS 60000 /* the keeper ends a life that its server did not end by itself */

enum ask {
    ASK_HELLO,
    ASK_CREATE,
    ASK_DESTROY,
    ASK_SNAPSHOT,
    ASK_OOM,
    ASK_FIND,
    ASK_LAYER,
    ASK_QUIET
};

struct pending {
    struct list node;
    uint64_t seq;
    enum ask ask;
    char id[ID_MAX];
    struct buf packet;
    bool sent;
    bool ended; /* a destroy of what it creates was asked for since */
    union {
        void (*created)(void *context, struct backend_link *link, const struct err *err);
        sandbox_done done;
        void (*snapshot)(void *context, const char *layer_id, const struct err *err);
        void (*counted)(void *context, uint64_t count);
        void (*found)(void *context, const struct sandbox_found *found, size_t count,
                      const struct err *err);
    } on;
    void *context;
    struct sandbox_found *found; /* so far; strings owned */
    size_t found_count;
    struct err err; /* to be told at the end of this tick */
    struct local *local;
};

struct local {
    struct backend backend;
    struct local_places places;
    bool private;
    int fd;
    struct loop_watch watch;
    struct loop_timer stop_timer;
    struct list pending;
    size_t pending_count;
    uint64_t seq;
    bool answered; /* on this connection */
    unsigned attempts;
    bool no_limits; /* the keeper said so */
    void (*on_stopped)(void *context);
    void *stop_context;
    bool stopping, freed;
};

static void flush(struct local *local);
static void on_ready(struct loop_watch *watch, uint32_t events);

/* --- ends
 * ------------------------------------------------------------------------------------------- */

static void pending_free(struct pending *pending)
{
    list_remove(&pending->node);
    buf_deinit(&pending->packet);
    for (size_t i = 0; i < pending->found_count; i++) {
        free((char *)pending->found[i].id);
        free((char *)pending->found[i].label);
    }
    free(pending->found);
    free(pending);
}

/* Tells the asker; `pending` is gone afterwards. The callback may ask anew. */
static void complete(struct pending *pending, struct str packet, struct backend_link *link,
                     const struct err *err)
{
    struct local *local = pending->local;
    list_remove(&pending->node);
    local->pending_count--;
    const struct err *told = err && err->kind ? err : NULL;
    switch (pending->ask) {
    case ASK_HELLO:
        if (told && !local->stopping)
            LOG_WARN("sandbox", NULL, "the keeper: %s", told->text);
        else
            local->no_limits = keeper_field_number(packet, "limits", 0, 1) == 0;
        break;
    case ASK_CREATE:
        pending->on.created(pending->context, told ? NULL : link, told);
        break;
    case ASK_DESTROY: /* what is not there has been destroyed */
        if (pending->on.done)
            pending->on.done(pending->context, told && told->kind == ERR_NOT_FOUND ? NULL : told);
        break;
    case ASK_SNAPSHOT:
        pending->on.snapshot(pending->context, told ? NULL : keeper_field(packet, "layer"), told);
        break;
    case ASK_OOM:
        pending->on.counted(pending->context,
                            told ? 0 : keeper_field_number(packet, "count", 0, UINT64_MAX));
        break;
    case ASK_FIND:
        pending->on.found(pending->context, pending->found, pending->found_count, told);
        break;
    case ASK_LAYER:
        pending->on.done(pending->context, told);
        break;
    case ASK_QUIET:
        if (told && !local->stopping)
            LOG_WARN("sandbox", NULL, "the keeper: %s", told->text);
        break;
    }
    pending_free(pending);
}

static void disconnect(struct local *local)
{
    loop_watch_stop(&local->watch);
    fd_close(&local->fd);
}

enum keep { KEEP_NONE, KEEP_DESTROYS, KEEP_ALL };

/* Ends what waits with that error, except what is to be asked again. */
static void fail_some(struct local *local, enum keep keep, const struct err *err)
{
    struct list failed;
    list_init(&failed);
    LIST_EACH (at, &local->pending) {
        struct pending *pending = LIST_OF(at, struct pending, node);
        pending->sent = false;
        if (pending->ask == ASK_HELLO) {
            local->pending_count--;
            pending_free(pending);
        } else if (keep == KEEP_NONE || (keep == KEEP_DESTROYS && pending->ask != ASK_DESTROY)) {
            list_remove(at);
            list_append(&failed, at);
        }
    }
    while (!list_empty(&failed)) {
        struct pending *pending = LIST_OF(failed.next, struct pending, node);
        struct backend_link none = {.frames_in = -1};
        complete(pending, STR_NONE, &none, err);
    }
}

static void local_free(void *argument)
{
    struct local *local = argument;
    disconnect(local);
    loop_timer_stop(&local->stop_timer);
    void (*on_stopped)(void *) = local->on_stopped;
    void *context = local->stop_context;
    free(local);
    if (on_stopped)
        on_stopped(context);
}

static void finish_stop(struct local *local)
{
    if (local->freed)
        return;
    local->freed = true;
    loop_watch_stop(&local->watch);
    loop_timer_stop(&local->stop_timer);
    loop_defer(local->backend.loop, local_free, local);
}

/* --- the connection
 * --------------------------------------------------------------------------------- */

static struct pending *pending_new(struct local *local, enum ask ask, const char *op)
{
    struct pending *pending = mem_zero(sizeof *pending);
    pending->local = local;
    pending->ask = ask;
    pending->seq = ++local->seq;
    keeper_add(&pending->packet, "op", op);
    keeper_add_number(&pending->packet, "seq", pending->seq);
    return pending;
}

static int connect_now(struct local *local, struct err *err)
{
    if (local->fd >= 0)
        return 0;
    local->fd = local->private ? local_connect_private(&local->places, err)
                               : local_connect_shared(&local->places, err);
    if (local->fd < 0)
        return -1;
    local->answered = false;
    if (loop_watch_start(local->backend.loop, &local->watch, local->fd, LOOP_READ, on_ready, local,
                         err) < 0) {
        fd_close(&local->fd);
        return -1;
    }
    struct pending *hello = pending_new(local, ASK_HELLO, "hello");
    keeper_add_number(&hello->packet, "version", KEEPER_VERSION);
    list_prepend(&local->pending, &hello->node);
    local->pending_count++;
    return 0;
}

static void lost(struct local *local)
{
    disconnect(local);
    if (local->stopping) {
        finish_stop(local);
        return;
    }
    struct err err = {0};
    err_set(&err, ERR_LOST, "the keeper went away (see keeper.log in '%s')", local->places.home);
    /* Met a keeper on its way out: all is sent again. Else its sandboxes died with it, and only
     * what asks for their end goes to the next one, which sweeps up what is left of them. */
    bool all = !local->answered;
    bool again = ++local->attempts < ATTEMPTS_MAX;
    fail_some(local, again ? (all ? KEEP_ALL : KEEP_DESTROYS) : KEEP_NONE, &err);
    if (local->freed || list_empty(&local->pending))
        return;
    err = (struct err){0};
    if (connect_now(local, &err) < 0)
        fail_some(local, KEEP_NONE, &err);
    else
        flush(local);
}

static void lost_later(void *argument)
{
    struct local *local = argument;
    if (local->fd >= 0 && !local->freed)
        lost(local);
}

static void flush(struct local *local)
{
    bool waiting = false;
    LIST_EACH (at, &local->pending) {
        struct pending *pending = LIST_OF(at, struct pending, node);
        if (pending->sent)
            continue;
        ssize_t sent = fd_send(local->fd, pending->packet.data, pending->packet.size, NULL, 0);
        if (sent < 0 && (errno == EAGAIN || errno == ENOBUFS)) {
            waiting = true;
            break;
        }
        if (sent < 0) { /* never from inside the call that asked */
            loop_defer(local->backend.loop, lost_later, local);
            return;
        }
        pending->sent = true;
    }
    loop_watch_change(&local->watch, LOOP_READ | (waiting ? LOOP_WRITE : 0));
}

static void tell_error(void *argument)
{
    struct pending *pending = argument;
    struct err err = pending->err;
    struct backend_link none = {.frames_in = -1};
    complete(pending, STR_NONE, &none, &err);
}

/* Takes `pending`. Errors are told later, like everything. */
static void ask(struct local *local, struct pending *pending)
{
    list_append(&local->pending, &pending->node);
    local->pending_count++;
    if (pending->packet.size > KEEPER_PACKET_MAX)
        err_set(&pending->err, ERR_LIMIT, "the description of the sandbox is too long");
    else if (local->pending_count > PENDING_MAX)
        err_set(&pending->err, ERR_CAPACITY, "too many requests to the keeper at once");
    else if (!pending->err.kind && local->stopping)
        err_set(&pending->err, ERR_CANCELLED, "the local backend is being stopped");
    else if (!pending->err.kind)
        (void)connect_now(local, &pending->err);
    if (!pending->err.kind) {
        flush(local);
        return;
    }
    struct list *node = &pending->node; /* not among those that wait for an answer */
    list_remove(node);
    list_init(node);
    loop_defer(local->backend.loop, tell_error, pending);
}

/* --- answers
 * ---------------------------------------------------------------------------------------- */

static void note_found(struct pending *pending, struct str packet)
{
    size_t at = 0;
    struct str key;
    struct sandbox_found *last = NULL;
    for (const char *value; keeper_field_next(packet, &at, &key, &value);) {
        bool layer = str_is(key, "layer");
        if ((str_is(key, "found") || layer) && pending->found_count < FOUND_MAX) {
            pending->found =
                mem_grow(pending->found, (pending->found_count + 1) * sizeof *pending->found);
            last = &pending->found[pending->found_count++];
            *last =
                (struct sandbox_found){.id = mem_dup(value), .label = mem_dup(""), .layer = layer};
        } else if (last && str_is(key, "age_ms")) {
            long long age = 0;
            (void)str_to_long(str_of(value), &age);
            last->age_ms = (uint64_t)age;
        } else if (last && str_is(key, "label")) {
            free((char *)last->label);
            last->label = mem_dup(value);
        }
    }
}

static void read_error(struct str packet, struct err *err)
{
    uint64_t kind = keeper_field_number(packet, "kind", 0, ERR_KINDS - 1);
    const char *text = keeper_field(packet, "text");
    if (kind)
        err_set(err, (enum err_kind)kind, "%s", text ? text : "the keeper gave no reason");
}

static struct pending *find_pending(struct local *local, uint64_t seq)
{
    LIST_EACH (at, &local->pending) {
        struct pending *pending = LIST_OF(at, struct pending, node);
        if (pending->seq == seq)
            return pending;
    }
    return NULL;
}

/* Takes what it uses of `fds` (sets -1). */
static void handle_answer(struct local *local, struct str packet, int *fds, size_t fd_count)
{
    struct pending *pending = NULL;
    if (keeper_packet_is_sound(packet))
        pending = find_pending(local, keeper_field_number(packet, "seq", 0, INT64_MAX));
    if (!pending) {
        if (!local->stopping)
            LOG_WARN("sandbox", NULL, "the keeper answered something nobody asked");
        return;
    }
    local->answered = true;
    local->attempts = 0;
    struct err err = {0};
    read_error(packet, &err);
    struct backend_link link = {.frames_in = -1, .frames_out = -1, .inlet = -1, .resolver = -1};
    if (pending->ask == ASK_FIND && !err.kind) {
        note_found(pending, packet);
        if (keeper_field(packet, "more"))
            return;
    }
    if (pending->ask == ASK_CREATE && !err.kind) {
        if (pending->ended) { /* the keeper was quicker than the request to destroy it */
            err_set(&err, ERR_CANCELLED, "the sandbox was destroyed before it was ready");
        } else if (fd_count != KEEPER_FDS) {
            err_set(&err, ERR_PROTOCOL, "the keeper's answer lacks descriptors");
        } else {
            snprintf(link.id, sizeof link.id, "%s", pending->id);
            link.frames_in = link.frames_out = fd_take(&fds[KEEPER_FD_FRAMES]);
            link.inlet = fd_take(&fds[KEEPER_FD_INLET]);
            link.resolver = fd_take(&fds[KEEPER_FD_RESOLVER]);
            link.pool_hit = keeper_field_number(packet, "pool_hit", 0, 1) == 1;
            const char *facts = keeper_field(packet, "facts");
            snprintf(link.facts, sizeof link.facts, "%s",
                     facts && strlen(facts) < sizeof link.facts ? facts : "{}");
        }
    }
    complete(pending, packet, &link, &err);
}

static void on_ready(struct loop_watch *watch, uint32_t events)
{
    struct local *local = watch->context;
    if (events & LOOP_WRITE)
        flush(local);
    if (!(events & (LOOP_READ | LOOP_HANGUP)) || local->fd < 0)
        return;
    OWN(mem) char *bytes = mem_alloc(KEEPER_PACKET_MAX + 1);
    for (int i = 0; i < 64 && local->fd >= 0 && !local->freed; i++) { /* a few per tick */
        int fds[KEEPER_FDS];
        size_t fd_count = KEEPER_FDS;
        ssize_t got = fd_receive(local->fd, bytes, KEEPER_PACKET_MAX + 1, fds, &fd_count);
        if (got < 0 && errno == EAGAIN)
            return;
        if (got <= 0) {
            lost(local);
            return;
        }
        handle_answer(local, str_make(bytes, (size_t)got), fds, fd_count);
        for (size_t j = 0; j < fd_count; j++)
            fd_close(&fds[j]);
    }
}

/* --- what a backend does
 * ---------------------------------------------------------------------------- */

static struct backend *local_start(struct loop *loop, const struct sandbox_options *options,
                                   const char *name, struct err *err)
{
    (void)name;
    struct local *local = mem_zero(sizeof *local);
    local->backend.class = &backend_local;
    local->backend.loop = loop;
    local->fd = -1;
    local->private = options->keeper_private;
    list_init(&local->pending);
    if (local_find_places(options, &local->places, err) < 0 || connect_now(local, err) < 0) {
        free(local);
        return NULL;
    }
    flush(local);
    return &local->backend;
}

static void on_stop_late(struct loop_timer *timer)
{
    struct local *local = timer->context;
    LOG_WARN("sandbox", NULL, "the keeper takes long to end; not waiting any more");
    finish_stop(local);
}

/* A private keeper is waited for: when its end of the socket closes, nothing of it is left. */
static void local_stop(struct backend *backend, void (*on_stopped)(void *context), void *context)
{
    struct local *local = (struct local *)backend;
    local->stopping = true;
    local->on_stopped = on_stopped;
    local->stop_context = context;
    struct err err = {0};
    err_set(&err, ERR_CANCELLED, "the local backend is being stopped");
    fail_some(local, KEEP_NONE, &err);
    if (!local->private || local->fd < 0 || shutdown(local->fd, SHUT_WR) < 0) {
        finish_stop(local);
        return;
    }
    loop_timer_start(local->backend.loop, &local->stop_timer, STOP_MS_MAX, on_stop_late, local);
}

static unsigned local_capabilities(struct backend *backend)
{
    struct local *local = (struct local *)backend;
    unsigned all = SANDBOX_CAN_NETWORK_OFF | SANDBOX_CAN_SNAPSHOT | SANDBOX_CAN_FORK |
                   SANDBOX_CAN_LIMITS | SANDBOX_CAN_ROOT | SANDBOX_CAN_LAYERS | SANDBOX_CAN_POOL |
                   SANDBOX_CAN_ADOPT;
    return local->no_limits ? all & ~(unsigned)SANDBOX_CAN_LIMITS : all;
}

static void add_root(struct pending *pending, const char *root)
{
    if (!root || strncmp(root, "dir:", 4) != 0 || root[4] == '/') {
        keeper_add(&pending->packet, "root", root);
        return;
    }
    OWN(mem) char *path = realpath(root + 4, NULL);
    if (!path)
        err_set(&pending->err, ERR_INPUT, "the root '%s': %s", root + 4, strerror(errno));
    OWN(mem) char *absolute = mem_format("dir:%s", path ? path : "/");
    keeper_add(&pending->packet, "root", absolute);
}

static void add_spec(struct pending *pending, const struct sandbox_spec *spec)
{
    static const char *const isolations[] = {
        [SANDBOX_ISOLATION_FULL] = "full",
        [SANDBOX_ISOLATION_NO_LIMITS] = "no-limits",
        [SANDBOX_ISOLATION_NO_SECCOMP] = "no-seccomp",
    };
    struct buf *packet = &pending->packet;
    add_root(pending, spec->root);
    for (size_t i = 0; i < spec->layer_count; i++)
        keeper_add(packet, "layer", spec->layers[i]);
    for (const char *const *name = spec->pristine; name && *name; name++)
        keeper_add(packet, "pristine", *name);
    if (spec->pristine)
        keeper_add_number(packet, "pristine_layers", spec->pristine_layers);
    keeper_add_number(packet, "memory", spec->memory_bytes_max);
    keeper_add_number(packet, "disk", spec->disk_bytes_max);
    keeper_add_number(packet, "pids", spec->pids_max);
    keeper_add_number(packet, "cpu", spec->cpu_millis);
    keeper_add(packet, "isolation", isolations[spec->isolation]);
    keeper_add_number(packet, "root_user", spec->root_user);
    keeper_add_number(packet, "on_disk", spec->upper_on_disk);
    keeper_add(packet, "hostname", spec->hostname);
}

static void local_create(struct backend *backend, const char *id, const struct sandbox_spec *spec,
                         void (*on_created)(void *context, struct backend_link *link,
                                            const struct err *err),
                         void *context)
{
    struct local *local = (struct local *)backend;
    struct pending *pending = pending_new(local, ASK_CREATE, "create");
    pending->on.created = on_created;
    pending->context = context;
    snprintf(pending->id, sizeof pending->id, "%s", id);
    keeper_add(&pending->packet, "id", id);
    keeper_add(&pending->packet, "label", spec->label);
    uint64_t life = spec->life_ms_max ? (uint64_t)spec->life_ms_max + LIFE_LATER_MS : 0;
    keeper_add_number(&pending->packet, "life_ms", life < UINT32_MAX ? life : UINT32_MAX);
    add_spec(pending, spec);
    ask(local, pending);
}

static void local_adopt(struct backend *backend, const char *id,
                        void (*on_created)(void *context, struct backend_link *link,
                                           const struct err *err),
                        void *context)
{
    struct local *local = (struct local *)backend;
    struct pending *pending = pending_new(local, ASK_CREATE, "adopt");
    pending->on.created = on_created;
    pending->context = context;
    snprintf(pending->id, sizeof pending->id, "%s", id);
    keeper_add(&pending->packet, "id", id);
    ask(local, pending);
}

static void local_adopt_layer(struct backend *backend, const char *layer_id, sandbox_done on_done,
                              void *context)
{
    struct local *local = (struct local *)backend;
    struct pending *pending = pending_new(local, ASK_LAYER, "adopt_layer");
    pending->on.done = on_done;
    pending->context = context;
    keeper_add(&pending->packet, "layer", layer_id);
    ask(local, pending);
}

static void local_destroy(struct backend *backend, const char *id, sandbox_done on_done,
                          void *context)
{
    struct local *local = (struct local *)backend;
    LIST_EACH (at, &local->pending) {
        struct pending *created = LIST_OF(at, struct pending, node);
        if (created->ask == ASK_CREATE && strcmp(created->id, id) == 0)
            created->ended = true;
    }
    struct pending *pending = pending_new(local, ASK_DESTROY, "destroy");
    pending->on.done = on_done;
    pending->context = context;
    keeper_add(&pending->packet, "id", id);
    ask(local, pending);
}

static void local_snapshot(struct backend *backend, const char *id,
                           void (*on_done)(void *context, const char *layer_id,
                                           const struct err *err),
                           void *context)
{
    struct local *local = (struct local *)backend;
    struct pending *pending = pending_new(local, ASK_SNAPSHOT, "snapshot");
    pending->on.snapshot = on_done;
    pending->context = context;
    keeper_add(&pending->packet, "id", id);
    ask(local, pending);
}

static void local_drop_layer(struct backend *backend, const char *layer_id)
{
    struct local *local = (struct local *)backend;
    struct pending *pending = pending_new(local, ASK_QUIET, "drop_layer");
    keeper_add(&pending->packet, "layer", layer_id);
    ask(local, pending);
}

static int local_pool(struct backend *backend, const struct sandbox_spec *spec, uint32_t count,
                      struct err *err)
{
    struct local *local = (struct local *)backend;
    struct pending *pending = pending_new(local, ASK_QUIET, "pool");
    keeper_add_number(&pending->packet, "count", count);
    add_spec(pending, spec);
    if (pending->err.kind) {
        err_copy(err, &pending->err);
        list_init(&pending->node);
        pending_free(pending);
        return -1;
    }
    ask(local, pending);
    return 0;
}

static void local_oom_kills(struct backend *backend, const char *id,
                            void (*on_done)(void *context, uint64_t count), void *context)
{
    struct local *local = (struct local *)backend;
    struct pending *pending = pending_new(local, ASK_OOM, "oom");
    pending->on.counted = on_done;
    pending->context = context;
    keeper_add(&pending->packet, "id", id);
    ask(local, pending);
}

static void local_find(struct backend *backend,
                       void (*on_done)(void *context, const struct sandbox_found *found,
                                       size_t count, const struct err *err),
                       void *context)
{
    struct local *local = (struct local *)backend;
    struct pending *pending = pending_new(local, ASK_FIND, "find");
    pending->on.found = on_done;
    pending->context = context;
    ask(local, pending);
}

const struct backend_class backend_local = {
    .name = "local",
    .summary = "Linux namespaces on this machine",
    .start = local_start,
    .stop = local_stop,
    .capabilities = local_capabilities,
    .create = local_create,
    .destroy = local_destroy,
    .snapshot = local_snapshot,
    .drop_layer = local_drop_layer,
    .pool = local_pool,
    .oom_kills = local_oom_kills,
    .find = local_find,
    .adopt = local_adopt,
    .adopt_layer = local_adopt_layer,
};
