/* lanes.c - N loops on N threads, and a count of who lives where.
 *
 * Lanes are stopped together and freed together: while they settle, one may still post to another.
 */
#include "internal.h"

#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/check.h"
#include "base/err.h"
#include "base/mem.h"

struct lane {
    struct loop *loop;
    pthread_t thread;
    bool started;
    atomic_int tenants;
};

struct lanes {
    size_t count;
    atomic_size_t turn; /* where the search for the emptiest begins, so that ties go round */
    struct lane lane[];
};

enum { LANES_MAX = 1024, SETTLE_ROUNDS_MAX = 100 };

static void *lane_main(void *argument)
{
    loop_run(argument);
    return NULL;
}

struct lanes *lanes_new(size_t count, struct err *err)
{
    if (count < 1 || count > LANES_MAX) {
        err_set(err, ERR_INPUT, "%zu lanes: must be 1 to %d", count, LANES_MAX);
        return NULL;
    }
    struct lanes *lanes = mem_zero(sizeof *lanes + count * sizeof lanes->lane[0]);
    lanes->count = count;
    for (size_t i = 0; i < count; i++) {
        lanes->lane[i].loop = loop_new(err);
        if (!lanes->lane[i].loop) {
            lanes_free(lanes);
            return NULL;
        }
    }
    for (size_t i = 0; i < count; i++) {
        struct lane *lane = &lanes->lane[i];
        int number = pthread_create(&lane->thread, NULL, lane_main, lane->loop);
        if (number) {
            err_set(err, err_kind_of_errno(number), "starting the thread of lane %zu", i);
            lanes_free(lanes);
            return NULL;
        }
        lane->started = true;
        char name[16];
        snprintf(name, sizeof name, "lane-%zu", i);
        (void)pthread_setname_np(lane->thread, name);
    }
    return lanes;
}

void lanes_free(struct lanes *lanes)
{
    if (!lanes)
        return;
    for (size_t i = 0; i < lanes->count; i++)
        if (lanes->lane[i].started)
            loop_stop(lanes->lane[i].loop);
    for (size_t i = 0; i < lanes->count; i++)
        if (lanes->lane[i].started)
            pthread_join(lanes->lane[i].thread, NULL);
    bool busy = true;
    for (int round = 0; busy && round < SETTLE_ROUNDS_MAX; round++) {
        busy = false;
        for (size_t i = 0; i < lanes->count; i++)
            if (lanes->lane[i].loop)
                busy = loop_settle(lanes->lane[i].loop) || busy;
    }
    for (size_t i = 0; i < lanes->count; i++)
        loop_free(lanes->lane[i].loop);
    free(lanes);
}

size_t lanes_count(const struct lanes *lanes)
{
    return lanes->count;
}

struct loop *lanes_at(struct lanes *lanes, size_t index)
{
    CHECK(index < lanes->count);
    return lanes->lane[index].loop;
}

struct loop *lanes_next(struct lanes *lanes)
{
    size_t start = atomic_fetch_add(&lanes->turn, 1);
    struct lane *best = NULL;
    int best_tenants = 0;
    for (size_t i = 0; i < lanes->count; i++) {
        struct lane *lane = &lanes->lane[(start + i) % lanes->count];
        int tenants = atomic_load(&lane->tenants);
        if (!best || tenants < best_tenants) {
            best = lane;
            best_tenants = tenants;
        }
    }
    return best->loop;
}

void lanes_tenant(struct lanes *lanes, struct loop *loop, int change)
{
    for (size_t i = 0; i < lanes->count; i++)
        if (lanes->lane[i].loop == loop)
            atomic_fetch_add(&lanes->lane[i].tenants, change);
}

struct waited {
    void (*run)(void *);
    void *argument;
    sem_t done;
};

static void run_waited(void *argument)
{
    struct waited *waited = argument;
    waited->run(waited->argument);
    sem_post(&waited->done);
}

void loop_call(struct loop *loop, void (*run)(void *), void *argument)
{
    struct waited waited = {.run = run, .argument = argument};
    sem_init(&waited.done, 0, 0);
    loop_post(loop, run_waited, &waited);
    while (sem_wait(&waited.done) != 0)
        ; /* interrupted by a signal */
    sem_destroy(&waited.done);
}
