/* pools.c - ready sandboxes, kept per shape and refilled when the keeper has nothing else to do. */
#include <stdlib.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "keeper.h"

#define POOL_MAX 1024
#define RETRY_MS 5000

static struct pool *pool_find(struct keeper *keeper, const struct shape *shape)
{
    LIST_EACH (at, &keeper->pools) {
        struct pool *pool = LIST_OF(at, struct pool, node);
        if (shape_equal(pool->shape, shape))
            return pool;
    }
    return NULL;
}

/* Pooled sandboxes of that shape; kills those past `keep`. */
static uint32_t count_and_trim(struct keeper *keeper, const struct shape *shape, uint32_t keep)
{
    uint32_t count = 0;
    LIST_EACH (at, &keeper->sandboxes) {
        struct sandbox *sandbox = LIST_OF(at, struct sandbox, node);
        if (!sandbox->pooled || !shape_equal(sandbox->shape, shape) ||
            (sandbox->life != LIFE_READY && sandbox->life != LIFE_STARTING))
            continue;
        if (++count > keep)
            sandbox_kill(keeper, sandbox);
    }
    return count > keep ? keep : count;
}

static void pool_free(struct keeper *keeper, struct pool *pool)
{
    (void)count_and_trim(keeper, pool->shape, 0);
    list_remove(&pool->node);
    shape_free(pool->shape);
    free(pool);
}

int pool_set(struct keeper *keeper, const struct shape *shape, uint32_t count, uint64_t owner,
             struct err *err)
{
    if (count > POOL_MAX)
        return err_set(err, ERR_LIMIT, "a pool holds at most %d sandboxes", POOL_MAX);
    struct pool *pool = pool_find(keeper, shape);
    if (count == 0) {
        if (pool)
            pool_free(keeper, pool);
        return 0;
    }
    if (!pool) {
        pool = mem_zero(sizeof *pool);
        pool->shape = shape_copy(shape);
        list_append(&keeper->pools, &pool->node);
    }
    pool->want = count;
    pool->owner = owner;
    (void)count_and_trim(keeper, shape, count);
    return 0;
}

struct sandbox *pool_take(struct keeper *keeper, const struct shape *shape)
{
    if (!pool_find(keeper, shape))
        return NULL;
    LIST_EACH (at, &keeper->sandboxes) {
        struct sandbox *sandbox = LIST_OF(at, struct sandbox, node);
        if (sandbox->pooled && sandbox->life == LIFE_READY && shape_equal(sandbox->shape, shape)) {
            sandbox->pooled = false;
            sandbox->pool_hit = true;
            return sandbox;
        }
    }
    return NULL;
}

void pool_failed(struct keeper *keeper, const struct shape *shape, const struct err *err)
{
    LOG_WARN("keeper", NULL, "a pool cannot be filled: %s", err->text);
    struct pool *pool = pool_find(keeper, shape);
    if (pool)
        pool->retry_at_ms = clock_mono_ms() + RETRY_MS;
}

bool pools_refill(struct keeper *keeper)
{
    uint64_t now = clock_mono_ms();
    LIST_EACH (at, &keeper->pools) {
        struct pool *pool = LIST_OF(at, struct pool, node);
        if (pool->retry_at_ms > now ||
            count_and_trim(keeper, pool->shape, pool->want) >= pool->want)
            continue;
        char id[ID_MAX];
        id_make(id, "sb");
        struct err err = {0};
        struct sandbox *sandbox = sandbox_start(keeper, pool->shape, id, &err);
        if (sandbox)
            sandbox->pooled = true;
        else
            pool_failed(keeper, pool->shape, &err);
        return true;
    }
    return false;
}

void pools_drop_owner(struct keeper *keeper, uint64_t owner)
{
    LIST_EACH (at, &keeper->pools) {
        struct pool *pool = LIST_OF(at, struct pool, node);
        if (pool->owner == owner)
            pool_free(keeper, pool);
    }
}
