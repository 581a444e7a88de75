/* work.c - a few threads for what would block a loop: big files, fsync; and a few for what waits
 * for others, as name look-ups do.
 *
 * Two pools for the whole process, so that neither kind keeps the other waiting: names that nobody
 * answers for block no reading of files, and a night of sweeping no call to a model server. Threads
 * start when there is work and none is free, up to WORKERS_MAX, and stay. A job's result goes home
 * by the loop's mailbox; `working` counts jobs whose `done` has not run, so that a loop is never
 * freed under a worker. */
#include "internal.h"

#include <signal.h>
#include <stdlib.h>

#include "base/check.h"
#include "base/mem.h"

enum { WORKERS_MAX = 4 };

struct work {
    struct loop *loop;
    void (*work)(void *);
    void (*done)(void *);
    void *argument;
    struct work *next;
};

struct pool {
    pthread_mutex_t lock;
    pthread_cond_t added;
    struct work *first, **last;
    unsigned threads, idle, queued;
};
static struct pool workers = {.lock = PTHREAD_MUTEX_INITIALIZER, .added = PTHREAD_COND_INITIALIZER};
static struct pool waiters = {.lock = PTHREAD_MUTEX_INITIALIZER, .added = PTHREAD_COND_INITIALIZER};

static void finish(void *argument)
{
    struct work *work = argument;
    struct loop *loop = work->loop;
    void (*done)(void *) = work->done;
    void *of_caller = work->argument;
    free(work);
    if (done)
        done(of_caller);
    atomic_fetch_sub(&loop->working, 1);
}

static void *worker(void *argument)
{
    struct pool *pool = argument;
    pthread_mutex_lock(&pool->lock);
    for (;;) {
        while (!pool->first) {
            pool->idle++;
            pthread_cond_wait(&pool->added, &pool->lock);
            pool->idle--;
        }
        struct work *work = pool->first;
        pool->first = work->next;
        if (!pool->first)
            pool->last = NULL;
        pool->queued--;
        pthread_mutex_unlock(&pool->lock);
        work->work(work->argument);
        loop_post(work->loop, finish, work);
        pthread_mutex_lock(&pool->lock);
    }
    return NULL;
}

/* Workers take no signals: those are the business of the threads that asked for them. */
static bool start_worker(struct pool *pool)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_t thread;
    int failed = pthread_create(&thread, &attributes, worker, pool);
    pthread_attr_destroy(&attributes);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return failed == 0;
}

static void add(struct pool *pool, struct loop *loop, void (*work)(void *), void (*done)(void *),
                void *argument)
{
    struct work *item = mem_zero(sizeof *item);
    *item = (struct work){.loop = loop, .work = work, .done = done, .argument = argument};
    atomic_fetch_add(&loop->working, 1);
    pthread_mutex_lock(&pool->lock);
    *(pool->first ? pool->last : &pool->first) = item;
    pool->last = &item->next;
    pool->queued++;
    if (pool->queued > pool->idle && pool->threads < WORKERS_MAX) {
        if (start_worker(pool))
            pool->threads++;
        CHECK(pool->threads > 0);
    }
    pthread_cond_signal(&pool->added);
    pthread_mutex_unlock(&pool->lock);
}

void loop_work(struct loop *loop, void (*work)(void *), void (*done)(void *), void *argument)
{
    add(&workers, loop, work, done, argument);
}

void loop_work_waiting(struct loop *loop, void (*work)(void *), void (*done)(void *),
                       void *argument)
{
    add(&waiters, loop, work, done, argument);
}
