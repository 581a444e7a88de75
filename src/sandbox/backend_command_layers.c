/* backend_command_layers.c - layers for sandboxes behind programs: brought there once, mounted
 * after.
 *
 *     unknown -> check -> there
 *                   \-> pack -> upload -> there
 *
 * A layer is known by its name, which names its content. The first sandbox that wants it runs
 * [layer_check]; where it is not there yet it is packed (tar, into a file without a name) and given
 * to [layer_upload] on its standard input. Packing and uploading are two programs one after the
 * other, not a pipe: a pack that failed is never taken for a whole one. The others wait. A file
 * without [layer_upload] mounts the directory itself, {layer}, and needs none of this. */
#include "sandbox/backend_command_layers.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/err.h"
#include "base/fd.h"
#include "base/list.h"
#include "base/mem.h"
#include "loop/loop.h"
#include "sandbox/process.h"

enum { PACK_MS_MAX = 600000, TERM_GRACE_MS = 2000 };

enum layer_state { LAYER_UNKNOWN, LAYER_BUSY, LAYER_THERE };

struct layer {
    struct list link;
    struct command_layers *layers;
    char *dir, *name;
    enum layer_state state;
    int archive; /* -1: none */
    struct process *process;
    struct list waiters;
};

struct waiter {
    struct list link;
    command_layer_done on_done;
    void *context; /* NULL: it went away */
};

struct command_layers {
    struct loop *loop;
    const struct command_layer_host *host;
    void *owner;
    struct list layers;
    size_t busy;
};

static bool succeeded(const struct process_end *end)
{
    return !end->timed_out && WIFEXITED(end->wait_status) && WEXITSTATUS(end->wait_status) == 0;
}

static void tell(struct layer *layer, const struct err *err)
{
    while (!list_empty(&layer->waiters)) {
        struct waiter *waiter = LIST_OF(layer->waiters.next, struct waiter, link);
        list_remove(&waiter->link);
        if (waiter->context)
            waiter->on_done(waiter->context, err);
        free(waiter);
    }
}

static void tell_there(void *argument)
{
    tell(argument, NULL);
}

static void layer_done(struct layer *layer, const struct err *err)
{
    struct command_layers *layers = layer->layers;
    layer->state = err ? LAYER_UNKNOWN : LAYER_THERE;
    fd_close(&layer->archive);
    layer->archive = -1;
    layers->busy--;
    tell(layer, err);
    layers->host->on_idle(layers->owner);
}

static void layer_failed(struct layer *layer, const struct err *err)
{
    struct err copy = *err;
    err_wrap(&copy, "bringing the layer '%s' there", layer->name);
    layer_done(layer, &copy);
}

static void on_uploaded(void *context, const struct process_end *end)
{
    struct layer *layer = context;
    layer->process = NULL;
    if (succeeded(end)) {
        layer_done(layer, NULL);
        return;
    }
    struct err err = {0};
    layer->layers->host->describe(layer->layers->owner, STEP_LAYER_UPLOAD, end, &err);
    layer_failed(layer, &err);
}

static void on_packed(void *context, const struct process_end *end)
{
    struct layer *layer = context;
    struct command_layers *layers = layer->layers;
    struct err err = {0};
    layer->process = NULL;
    if (!succeeded(end)) {
        char text[400];
        process_describe(end, text, sizeof text);
        err_set(&err, ERR_SYSTEM, "packing it with tar: %s", text);
    } else if (lseek(layer->archive, 0, SEEK_SET) < 0) {
        err_errno(&err, "its archive");
    } else {
        layer->process = layers->host->start(layers->owner, STEP_LAYER_UPLOAD, layer->dir,
                                             layer->archive, on_uploaded, layer, &err);
    }
    if (!layer->process)
        layer_failed(layer, &err);
}

static void pack(struct layer *layer)
{
    struct command_layers *layers = layer->layers;
    struct err err = {0};
    const char *const argv[] = {"tar", "-C", layer->dir, "--owner=0", "--group=0",
                                "-cf", "-",  "--",       ".",         NULL};
    layer->archive =
        open(layers->host->scratch_dir(layers->owner), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (layer->archive < 0) {
        err_errno(&err, "a file to pack into");
        layer_failed(layer, &err);
        return;
    }
    struct process_options options = {
        .argv = argv,
        .env = layers->host->environment(layers->owner),
        .input = -1,
        .output = layer->archive,
        .timeout_ms = PACK_MS_MAX,
        .on_end = on_packed,
        .context = layer,
    };
    layer->process = process_start(layers->loop, &options, &err);
    if (!layer->process)
        layer_failed(layer, &err);
}

static void on_checked(void *context, const struct process_end *end)
{
    struct layer *layer = context;
    layer->process = NULL;
    if (succeeded(end))
        layer_done(layer, NULL);
    else
        pack(layer); /* not there, or no way there: the upload will tell, with words */
}

static void look(struct layer *layer)
{
    struct command_layers *layers = layer->layers;
    struct err err = {0};
    layer->state = LAYER_BUSY;
    layers->busy++;
    if (!layers->host->has(layers->owner, STEP_LAYER_CHECK)) {
        pack(layer);
        return;
    }
    layer->process = layers->host->start(layers->owner, STEP_LAYER_CHECK, layer->dir, -1,
                                         on_checked, layer, &err);
    if (!layer->process)
        layer_failed(layer, &err);
}

static struct layer *layer_find(struct command_layers *layers, const char *dir)
{
    LIST_EACH (at, &layers->layers) {
        struct layer *layer = LIST_OF(at, struct layer, link);
        if (strcmp(layer->dir, dir) == 0)
            return layer;
    }
    struct layer *layer = mem_zero(sizeof *layer);
    layer->layers = layers;
    layer->dir = mem_dup(dir);
    layer->name = command_layer_name(dir);
    layer->archive = -1;
    list_init(&layer->waiters);
    list_append(&layers->layers, &layer->link);
    return layer;
}

/* ---------------------------------------------------------------- for the backend */

char *command_layer_name(const char *dir)
{
    struct str rest = str_of(dir);
    while (rest.size && rest.data[rest.size - 1] == '/')
        rest.size--;
    if (str_ends(rest, STR("/root"))) /* a bundle: the folder above has the name */
        rest.size -= strlen("/root");
    const char *slash = memrchr(rest.data, '/', rest.size);
    return str_dup(slash ? str_from(rest, (size_t)(slash + 1 - rest.data)) : rest);
}

struct command_layers *command_layers_new(struct loop *loop, const struct command_layer_host *host,
                                          void *owner)
{
    struct command_layers *layers = mem_zero(sizeof *layers);
    layers->loop = loop;
    layers->host = host;
    layers->owner = owner;
    list_init(&layers->layers);
    return layers;
}

void command_layers_free(struct command_layers *layers)
{
    while (layers && !list_empty(&layers->layers)) {
        struct layer *layer = LIST_OF(layers->layers.next, struct layer, link);
        list_remove(&layer->link);
        fd_close(&layer->archive);
        free(layer->dir);
        free(layer->name);
        free(layer);
    }
    free(layers);
}

void command_layers_need(struct command_layers *layers, const char *dir, command_layer_done on_done,
                         void *context)
{
    struct layer *layer = layer_find(layers, dir);
    struct waiter *waiter = mem_zero(sizeof *waiter);
    *waiter = (struct waiter){.on_done = on_done, .context = context};
    list_append(&layer->waiters, &waiter->link);
    if (layer->state == LAYER_THERE)
        loop_defer(layers->loop, tell_there, layer);
    else if (layer->state == LAYER_UNKNOWN)
        look(layer);
}

static void forget_in(struct layer *layer, const void *context)
{
    LIST_EACH (at, &layer->waiters) {
        struct waiter *waiter = LIST_OF(at, struct waiter, link);
        if (waiter->context == context)
            waiter->context = NULL;
    }
}

void command_layers_forget(struct command_layers *layers, const void *context)
{
    LIST_EACH (at, &layers->layers)
        forget_in(LIST_OF(at, struct layer, link), context);
}

void command_layers_doubt(struct command_layers *layers, const char *dir)
{
    struct layer *layer = layer_find(layers, dir);
    if (layer->state == LAYER_THERE)
        layer->state = LAYER_UNKNOWN;
}

bool command_layers_busy(const struct command_layers *layers)
{
    return layers->busy > 0;
}

void command_layers_stop(struct command_layers *layers)
{
    LIST_EACH (at, &layers->layers) {
        struct layer *layer = LIST_OF(at, struct layer, link);
        if (layer->process)
            process_end_soon(layer->process, TERM_GRACE_MS);
    }
}
