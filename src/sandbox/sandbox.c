/* sandbox.c - the manager of one lane's sandboxes, and the registry of backends.
 *
 * A backend is started when it is first asked for by name and stays until the manager closes. Names
 * that are in the registry are built in; any other name is a file of the command backend, "ssh" or,
 * with a value for that file's main variable, "ssh:build7".
 *
 * Closing: every sandbox is closed; when all are gone, or the wait is over, the backends are
 * stopped; when those have answered, or that wait is over, on_closed. */
#include "sandbox/sandbox.h"

#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "json/json.h"
#include "sandbox/manager.h"

enum {
    CLOSE_MS_MAX = 20000,
    STOP_MS_MAX = 10000,
};

/* To add a backend: write backend_<name>.c and name it here. */
static const struct backend_class *const backends[] = {
    &backend_local, &backend_command, /* last: every other name is one of its files */
};

static const struct backend_class *registered; /* by a test */

void backend_register(const struct backend_class *class)
{
    registered = class;
}

static const struct backend_class *find_class(const char *name)
{
    if (registered && strcmp(registered->name, name) == 0)
        return registered;
    for (size_t i = 0; i < COUNT(backends); i++)
        if (strcmp(backends[i]->name, name) == 0)
            return backends[i];
    return &backend_command;
}

struct slot *sandboxes_slot(struct sandboxes *sandboxes, const char *name, struct err *err)
{
    if (!name)
        name = "local";
    for (size_t i = 0; i < sandboxes->slot_count; i++)
        if (strcmp(sandboxes->slots[i]->name, name) == 0)
            return sandboxes->slots[i];
    if (sandboxes->slot_count == SLOTS_MAX) {
        err_set(err, ERR_LIMIT, "more than %d backends in use", SLOTS_MAX);
        return NULL;
    }
    struct backend *backend =
        find_class(name)->start(sandboxes->loop, &sandboxes->options, name, err);
    if (!backend) {
        err_wrap(err, "backend '%s'", name);
        return NULL;
    }
    struct slot *slot = mem_zero(sizeof *slot);
    *slot = (struct slot){.name = mem_dup(name), .backend = backend, .sandboxes = sandboxes};
    sandboxes->slots[sandboxes->slot_count] = slot;
    sandboxes->slot_count++;
    return slot;
}

/* ---------------------------------------------------------------- opening and closing */

static const char *keep(struct sandboxes *sandboxes, const char *text)
{
    return text ? arena_text(&sandboxes->arena, str_of(text)) : NULL;
}

struct sandboxes *sandboxes_new(struct loop *loop, const struct sandbox_options *options,
                                struct err *err)
{
    (void)err;
    struct sandboxes *sandboxes = mem_zero(sizeof *sandboxes);
    sandboxes->loop = loop;
    list_init(&sandboxes->all);
    list_init(&sandboxes->queue);
    list_init(&sandboxes->abandoned);
    sandboxes->options = *options;
    sandboxes->options.home = keep(sandboxes, options->home);
    sandboxes->options.program_dir = keep(sandboxes, options->program_dir);
    const char **dirs =
        arena_alloc(&sandboxes->arena, (options->backend_dir_count + 1) * sizeof *dirs);
    for (size_t i = 0; i < options->backend_dir_count; i++)
        dirs[i] = keep(sandboxes, options->backend_dirs[i]);
    sandboxes->options.backend_dirs = dirs;
    return sandboxes;
}

static void sandboxes_free(void *argument)
{
    struct sandboxes *sandboxes = argument;
    for (size_t i = 0; i < sandboxes->slot_count; i++) {
        free(sandboxes->slots[i]->name);
        free(sandboxes->slots[i]);
    }
    LIST_EACH (at, &sandboxes->abandoned) {
        sandbox_free(LIST_OF(at, struct sandbox, link));
    }
    map_deinit(&sandboxes->found);
    arena_deinit(&sandboxes->arena);
    free(sandboxes);
}

static void finish(struct sandboxes *sandboxes)
{
    void (*on_closed)(void *) = sandboxes->on_closed;
    loop_timer_stop(&sandboxes->close_timer);
    sandboxes->on_closed = NULL;
    loop_defer(sandboxes->loop, sandboxes_free, sandboxes);
    if (on_closed)
        on_closed(sandboxes->close_context);
}

static void on_stop_late(struct loop_timer *timer)
{
    struct sandboxes *sandboxes = timer->context;
    LOG_ERROR("sandbox", NULL, "%zu backends have not stopped in time", sandboxes->stopping);
    /* They may yet call back, so the manager's memory stays; the program is about to end anyway. */
    void (*on_closed)(void *) = sandboxes->on_closed;
    sandboxes->on_closed = NULL;
    if (on_closed)
        on_closed(sandboxes->close_context);
}

static void on_stopped(void *context)
{
    struct sandboxes *sandboxes = context;
    if (--sandboxes->stopping == 0 && sandboxes->on_closed)
        finish(sandboxes);
}

static void stop_backends(struct sandboxes *sandboxes)
{
    loop_timer_start(sandboxes->loop, &sandboxes->close_timer, STOP_MS_MAX, on_stop_late,
                     sandboxes);
    sandboxes->stopping = sandboxes->slot_count + 1;
    for (size_t i = 0; i < sandboxes->slot_count; i++) {
        struct backend *backend = sandboxes->slots[i]->backend;
        backend->class->stop(backend, on_stopped, sandboxes);
    }
    on_stopped(sandboxes);
}

static void on_close_late(struct loop_timer *timer)
{
    struct sandboxes *sandboxes = timer->context;
    LIST_EACH (at, &sandboxes->all) {
        sandbox_abandon(LIST_OF(at, struct sandbox, link));
    }
    stop_backends(sandboxes);
}

static void stop_when_empty(void *argument)
{
    struct sandboxes *sandboxes = argument;
    if (sandboxes->all_count == 0 && sandboxes->stopping == 0 && sandboxes->on_closed)
        stop_backends(sandboxes);
}

void sandboxes_gone(struct sandboxes *sandboxes)
{
    if (sandboxes->closing && sandboxes->all_count == 0)
        loop_defer(sandboxes->loop, stop_when_empty, sandboxes);
}

static void no_one(void *context)
{
    (void)context;
}

void sandboxes_close(struct sandboxes *sandboxes, void (*on_closed)(void *), void *context)
{
    if (!sandboxes || sandboxes->closing)
        return;
    sandboxes->closing = true;
    sandboxes->on_closed = on_closed ? on_closed : no_one;
    sandboxes->close_context = context;
    loop_timer_start(sandboxes->loop, &sandboxes->close_timer, CLOSE_MS_MAX, on_close_late,
                     sandboxes);
    LIST_EACH (at, &sandboxes->all) {
        sandbox_close(LIST_OF(at, struct sandbox, link), NULL, NULL);
    }
    sandboxes_gone(sandboxes);
}

/* ---------------------------------------------------------------- asking about backends */

int sandboxes_capabilities(struct sandboxes *sandboxes, const char *backend, struct err *err)
{
    struct slot *slot = sandboxes_slot(sandboxes, backend, err);
    return slot ? (int)slot->backend->class->capabilities(slot->backend) : -1;
}

int sandboxes_pool(struct sandboxes *sandboxes, const struct sandbox_spec *spec, uint32_t count,
                   struct err *err)
{
    struct slot *slot = sandboxes_slot(sandboxes, spec->backend, err);
    if (!slot || sandbox_spec_check(slot, spec, err) < 0)
        return -1;
    struct backend *backend = slot->backend;
    if (!(backend->class->capabilities(backend) & SANDBOX_CAN_POOL) || !backend->class->pool)
        return count == 0 ? 0
                          : err_set(err, ERR_UNSUPPORTED,
                                    "backend '%s' cannot do 'pool': it keeps no ready sandboxes",
                                    slot->name);
    return backend->class->pool(backend, spec, count, err);
}

void sandboxes_report(struct sandboxes *sandboxes, struct json_writer *out)
{
    json_begin_object(out);
    json_set_int(out, "starting", (long long)sandboxes->starting);
    json_set_int(out, "queued", (long long)sandboxes->queue_count);
    json_key(out, "backends");
    json_begin_object(out);
    for (size_t i = 0; i < sandboxes->slot_count; i++) {
        const struct slot *slot = sandboxes->slots[i];
        json_key(out, slot->name);
        json_begin_object(out);
        json_set_int(out, "live", slot->live);
        json_set_int(out, "created", (long long)slot->created);
        json_set_int(out, "destroyed", (long long)slot->destroyed);
        json_set_int(out, "failed", (long long)slot->failed);
        json_set_int(out, "retried", (long long)slot->retried);
        json_set_int(out, "lost", (long long)slot->lost);
        json_set_int(out, "pool_hits", (long long)slot->pool_hits);
        json_set_int(out, "pool_misses", (long long)slot->pool_misses);
        json_set_int(out, "create_ms_total", (long long)slot->create_ms_total);
        json_set_int(out, "create_ms_max", (long long)slot->create_ms_max);
        json_end_object(out);
    }
    json_end_object(out);
    json_end_object(out);
}

void sandboxes_drop_layer(struct sandboxes *sandboxes, const char *layer_id)
{
    for (size_t i = 0; i < sandboxes->slot_count; i++) {
        struct backend *backend = sandboxes->slots[i]->backend;
        if (backend->class->drop_layer)
            backend->class->drop_layer(backend, layer_id);
    }
}

/* ---------------------------------------------------------------- left-overs */

struct layer_refusal {
    sandbox_done on_done;
    void *context;
};

static void refuse_layer(void *argument)
{
    struct layer_refusal *refusal = argument;
    struct err err = {0};
    err_set(&err, ERR_UNSUPPORTED, "layers of the local backend only can be taken over");
    refusal->on_done(refusal->context, &err);
    free(refusal);
}

void sandboxes_adopt_layer(struct sandboxes *sandboxes, const char *layer_id, sandbox_done on_done,
                           void *context)
{
    struct slot *slot = sandboxes_slot(sandboxes, "local", NULL);
    if (slot && slot->backend->class->adopt_layer) {
        slot->backend->class->adopt_layer(slot->backend, layer_id, on_done, context);
        return;
    }
    struct layer_refusal *refusal = mem_zero(sizeof *refusal);
    *refusal = (struct layer_refusal){on_done, context};
    loop_defer(sandboxes->loop, refuse_layer, refusal);
}

/* One find over all backends in use: their lists are put together. */
struct search {
    struct sandboxes *sandboxes;
    size_t waiting;
    struct sandbox_found *found;
    size_t count, capacity;
    struct arena arena;
    struct err err;
    void (*on_done)(void *context, const struct sandbox_found *found, size_t count,
                    const struct err *err);
    void *context;
};

struct search_part {
    struct search *search;
    struct slot *slot;
};

static void search_step(struct search *search)
{
    if (--search->waiting)
        return;
    search->on_done(search->context, search->found, search->count,
                    search->err.kind && search->count == 0 ? &search->err : NULL);
    arena_deinit(&search->arena);
    free(search->found);
    free(search);
}

static bool is_ours(const struct sandboxes *sandboxes, const char *id)
{
    LIST_EACH (at, &sandboxes->all) {
        if (strcmp(LIST_OF(at, struct sandbox, link)->id, id) == 0)
            return true;
    }
    return false;
}

static void on_found(void *context, const struct sandbox_found *found, size_t count,
                     const struct err *err)
{
    struct search_part *part = context;
    struct search *search = part->search;
    if (err && err->kind) {
        if (err->kind != ERR_CANCELLED) /* we are going: nobody asks any more */
            LOG_WARN("sandbox", NULL, "backend '%s' cannot say what is left: %s", part->slot->name,
                     err->text);
        search->err = *err;
    }
    for (size_t i = 0; i < count; i++) {
        if (is_ours(search->sandboxes, found[i].id))
            continue;
        if (search->count == search->capacity) {
            search->capacity = search->capacity ? search->capacity * 2 : 16;
            search->found = mem_grow(search->found, search->capacity * sizeof *search->found);
        }
        search->found[search->count++] = (struct sandbox_found){
            .id = arena_text(&search->arena, str_of(found[i].id)),
            .label = arena_text(&search->arena, str_of(found[i].label)),
            .age_ms = found[i].age_ms,
            .layer = found[i].layer,
        };
        (void)map_put(&search->sandboxes->found, str_of(found[i].id), part->slot);
    }
    free(part);
    search_step(search);
}

static void search_begin(void *argument)
{
    struct search *search = argument;
    struct sandboxes *sandboxes = search->sandboxes;
    (void)sandboxes_slot(sandboxes, "local", &search->err);
    for (size_t i = 0; i < sandboxes->slot_count; i++) {
        struct backend *backend = sandboxes->slots[i]->backend;
        if (!backend->class->find)
            continue;
        struct search_part *part = mem_zero(sizeof *part);
        *part = (struct search_part){search, sandboxes->slots[i]};
        search->waiting++;
        backend->class->find(backend, on_found, part);
    }
    search_step(search);
}

void sandboxes_find(struct sandboxes *sandboxes,
                    void (*on_done)(void *, const struct sandbox_found *, size_t,
                                    const struct err *),
                    void *context)
{
    struct search *search = mem_zero(sizeof *search);
    *search = (struct search){
        .sandboxes = sandboxes, .waiting = 1, .on_done = on_done, .context = context};
    loop_defer(sandboxes->loop, search_begin, search);
}

struct stranger {
    sandbox_done on_done;
    void *context;
};

static void tell_stranger(void *argument)
{
    struct stranger *stranger = argument;
    struct err err = {0};
    err_set(&err, ERR_NOT_FOUND, "no backend has a sandbox of that id left over");
    stranger->on_done(stranger->context, &err);
    free(stranger);
}

void sandboxes_destroy_found(struct sandboxes *sandboxes, const char *id, sandbox_done on_done,
                             void *context)
{
    struct slot *slot = map_remove(&sandboxes->found, str_of(id));
    if (slot) {
        slot->backend->class->destroy(slot->backend, id, on_done, context);
        return;
    }
    struct stranger *stranger = mem_zero(sizeof *stranger);
    *stranger = (struct stranger){on_done, context};
    loop_defer(sandboxes->loop, tell_stranger, stranger);
}
