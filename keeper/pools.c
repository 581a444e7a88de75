/* pools.c - ready sandboxes, kept per shape and refilled when the keeper has nothing else to do.
 *
 * Each connection says how many it wants of a shape; what is ready is for whoever asks first. */
#include <stdlib.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "keeper.h"

#define POOL_MAX 1024
#define RETRY_MS 5000

static struct pool *pool_find(struct keeper *keeper, const struct shape *shape, uint64_t owner)
{
    LIST_EACH (at, &keeper->pools) {
        struct pool *pool = LIST_OF(at, struct pool, node);
        if (pool->owner == owner && shape_equal(pool->shape, shape))
            return pool;
    }
    return NULL;
}

static uint32_t wanted(struct keeper *keeper, const struct shape *shape)
{
    uint64_t sum = 0;
    LIST_EACH (at, &keeper->pools) {
        struct pool *pool = LIST_OF(at, struct pool, node);
        if (shape_equal(pool->shape, shape))
            sum += pool->want;
    }
    return sum < POOL_MAX ? (uint32_t)sum : POOL_MAX;
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
    list_remove(&pool->node);
    (void)count_and_trim(keeper, pool->shape, wanted(keeper, pool->shape));
    shape_free(pool->shape);
    free(pool);
}

int pool_set(struct keeper *keeper, const struct shape *shape, uint32_t count, uint64_t owner,
             struct err *err)
{
    if (count > POOL_MAX)
        return err_set(err, ERR_LIMIT, "a pool holds at most %d sandboxes", POOL_MAX);
    struct pool *pool = pool_find(keeper, shape, owner);
    if (count == 0) {
        if (pool)
            pool_free(keeper, pool);
        return 0;
    }
    if (!pool) {
        pool = mem_zero(sizeof *pool);
        pool->shape = shape_copy(shape);
        pool->owner = owner;
        list_append(&keeper->pools, &pool->node);
    }
    pool->want = count;
    (void)count_and_trim(keeper, shape, wanted(keeper, shape));
    return 0;
}

struct sandbox *pool_take(struct keeper *keeper, const struct shape *shape)
{
    if (list_empty(&keeper->pools))
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
    LIST_EACH (at, &keeper->pools) {
        struct pool *pool = LIST_OF(at, struct pool, node);
        if (shape_equal(pool->shape, shape))
            pool->retry_at_ms = clock_mono_ms() + RETRY_MS;
    }
}

bool pools_refill(struct keeper *keeper)
{
    uint64_t now = clock_mono_ms();
    LIST_EACH (at, &keeper->pools) {
        struct pool *pool = LIST_OF(at, struct pool, node);
        uint32_t want = wanted(keeper, pool->shape);
        if (pool->retry_at_ms > now || count_and_trim(keeper, pool->shape, want) >= want)
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
