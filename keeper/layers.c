/* layers.c - snapshots: upper layers that became read-only, and who stands on them.
 *
 * A layer lives until it was dropped and nothing stands on it any more. On tmpfs that is closing a
 * descriptor; on disk a directory is removed. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "keeper.h"

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
    fd_close(&layer->upper);
    if (layer->dir && file_remove_tree(layer->dir, NULL) < 0)
        LOG_WARN("keeper", layer->id, "its directory %s could not be removed", layer->dir);
    for (size_t i = 0; i < layer->parent_count; i++)
        layer_let_go(keeper, layer->parents[i]);
    free(layer->dir);
    free(layer);
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
