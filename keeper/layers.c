/* layers.c - snapshots: upper layers that became read-only, and who stands on them.
 *
 * Nothing is copied: a tmpfs is mounted on the keeper's stage, a directory on disk stays where it
 * is. A layer lives until it was dropped and nothing stands on it any more. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "keeper.h"
#include "mounts.h"

struct layer *layer_find(struct keeper *keeper, const char *id)
{
    LIST_EACH (at, &keeper->layers) {
        struct layer *layer = LIST_OF(at, struct layer, node);
        if (!layer->dropped && strcmp(layer->id, id) == 0)
            return layer;
    }
    return NULL;
}

void layer_hold(struct layer *layer)
{
    layer->users++;
}

static void layer_free(struct keeper *keeper, struct layer *layer)
{
    list_remove(&layer->node);
    if (layer->on_stage)
        (void)umount2(layer->dir, MNT_DETACH);
    if (layer->on_stage ? rmdir(layer->dir) < 0 : file_remove_tree(layer->dir, NULL) < 0)
        LOG_WARN("keeper", layer->id, "its directory %s could not be removed", layer->dir);
    for (size_t i = 0; i < layer->parent_count; i++)
        layer_let_go(keeper, layer->parents[i]);
    free(layer->dir);
    free(layer->label);
    free(layer);
}

/* A mount made in the sandbox's namespace can be copied only once it is in ours. */
static char *mount_on_stage(struct keeper *keeper, int upper, struct err *err)
{
    char name[32];
    snprintf(name, sizeof name, "y%llu", (unsigned long long)++keeper->layer_count);
    if (mkdirat(keeper->stage.dir, name, 0755) < 0) {
        err_errno(err, "a place for the snapshot");
        return NULL;
    }
    if (mount_attach(upper, keeper->stage.dir, name, err) < 0) {
        (void)unlinkat(keeper->stage.dir, name, AT_REMOVEDIR);
        return NULL;
    }
    return mem_format("%s/%s", STAGE, name);
}

struct layer *layer_make(struct keeper *keeper, struct sandbox *sandbox, struct err *err)
{
    char *dir =
        sandbox->disk_dir ? TAKE(sandbox->disk_dir) : mount_on_stage(keeper, sandbox->upper, err);
    if (!dir)
        return NULL;
    struct layer *layer = mem_zero(sizeof *layer);
    id_make(layer->id, "ly");
    layer->dir = dir;
    layer->on_stage = !sandbox->shape->upper_on_disk;
    layer->trees = sandbox->trees;
    layer->owner = sandbox->owner;
    layer->label = mem_dup(sandbox->label);
    layer->orphan_at_ms = sandbox->orphan_at_ms;
    for (size_t i = 0; i < sandbox->used_count; i++) /* the hold moves */
        layer->parents[layer->parent_count++] = sandbox->used[i];
    sandbox->used_count = 0;
    list_append(&keeper->layers, &layer->node);
    return layer;
}

void layer_let_go(struct keeper *keeper, struct layer *layer)
{
    layer->users--;
    if (layer->users == 0 && layer->dropped)
        layer_free(keeper, layer);
}

void layer_drop(struct keeper *keeper, struct layer *layer)
{
    layer->dropped = true;
    if (layer->users == 0)
        layer_free(keeper, layer);
}
