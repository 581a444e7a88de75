/* loop.c - one tick after another: wait, dispatch, timers, deferred jobs.
 *
 *     epoll_wait -> events of live watches -> posted jobs -> due timers -> deferred jobs -> again
 *
 * Invariants:
 * - An event reaches a watch only when its slot still has the generation it was registered with.
 *   Stopping a watch ends the generation, so an event of the same tick that came too late finds
 *   nothing, no matter whether the descriptor or the memory is in use again.
 * - A silent watch (events 0) is not in epoll at all, since epoll reports hangups unasked.
 * - Jobs that jobs add run in the next round, of which a tick has few, posted jobs at most
 *   POSTS_PER_TICK at a time; nothing can starve descriptors and timers.
 * - The virtual clock moves only when no descriptor, job or worker has anything to say. */
#include "internal.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/mem.h"

enum {
    EVENTS_PER_TICK = 256,
    POSTS_PER_TICK = 1024,
    DEFERRED_ROUNDS_MAX = 4, /* in one tick: each is a look at epoll less */
    MAILBOX_MAX = 1 << 24,   /* more is a bug of ours */
    SETTLE_ROUNDS_MAX = 1000,
};
#define SLOT_NONE UINT32_MAX
#define WAKE_TAG UINT64_MAX

/* --- jobs --- */

void loop_jobs_add(struct loop_jobs *jobs, void (*run)(void *), void *argument)
{
    if (jobs->count == jobs->capacity) {
        jobs->capacity = jobs->capacity ? jobs->capacity * 2 : 16;
        jobs->items = mem_grow(jobs->items, jobs->capacity * sizeof *jobs->items);
    }
    jobs->items[jobs->count++] = (struct loop_job){run, argument};
}

static void jobs_swap(struct loop_jobs *a, struct loop_jobs *b)
{
    struct loop_jobs kept = *a;
    *a = *b;
    *b = kept;
}

void loop_defer(struct loop *loop, void (*run)(void *), void *argument)
{
    loop_jobs_add(&loop->deferred, run, argument);
}

static bool run_deferred(struct loop *loop)
{
    if (!loop->deferred.count)
        return false;
    jobs_swap(&loop->deferred, &loop->running);
    for (size_t i = 0; i < loop->running.count; i++)
        loop->running.items[i].run(loop->running.items[i].argument);
    loop->running.count = 0;
    return true;
}

static void wake(struct loop *loop)
{
    uint64_t one = 1;
    (void)!write(loop->wake_fd, &one, sizeof one);
}

void loop_post(struct loop *loop, void (*run)(void *), void *argument)
{
    /* The job may end the loop before the descriptor was used: loop_free() waits for us. */
    atomic_fetch_add(&loop->posting, 1);
    pthread_mutex_lock(&loop->mailbox_lock);
    CHECK(loop->mailbox.count < MAILBOX_MAX);
    loop_jobs_add(&loop->mailbox, run, argument);
    atomic_store(&loop->mail, true);
    pthread_mutex_unlock(&loop->mailbox_lock);
    /* Only a loop that sleeps costs a system call; the loop says so before it looks at `mail` for
     * the last time. Not under the lock, which is the first thing that the woken one wants. */
    if (atomic_load(&loop->asleep) && atomic_exchange(&loop->asleep, false))
        wake(loop);
    atomic_fetch_sub(&loop->posting, 1);
}

static bool inbox_refill(struct loop *loop)
{
    if (loop->inbox_done < loop->inbox.count)
        return true;
    loop->inbox_done = loop->inbox.count = 0;
    if (!atomic_load(&loop->mail))
        return false;
    pthread_mutex_lock(&loop->mailbox_lock);
    jobs_swap(&loop->inbox, &loop->mailbox);
    atomic_store(&loop->mail, false);
    pthread_mutex_unlock(&loop->mailbox_lock);
    return loop->inbox.count > 0;
}

/* The mailbox is left only when it was seen empty or the next tick is told to come back. */
static bool run_posted(struct loop *loop)
{
    int ran = 0;
    loop->posts_pending = false;
    while (inbox_refill(loop)) {
        if (ran++ == POSTS_PER_TICK) {
            loop->posts_pending = true;
            break;
        }
        struct loop_job job = loop->inbox.items[loop->inbox_done++];
        job.run(job.argument);
    }
    return ran > 0;
}

/* --- life --- */

static struct loop *make(bool is_virtual, struct err *err)
{
    struct loop *loop = mem_zero(sizeof *loop);
    loop->is_virtual = is_virtual;
    loop->slot_free = SLOT_NONE;
    loop->wake_fd = -1;
    pthread_mutex_init(&loop->mailbox_lock, NULL);
    loop->now_ms = is_virtual ? 1 : clock_mono_ms();
    loop->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (loop->epoll_fd < 0) {
        err_errno(err, "creating an event loop");
        loop_free(loop);
        return NULL;
    }
    loop->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    struct epoll_event event = {.events = EPOLLIN | EPOLLET, .data.u64 = WAKE_TAG};
    if (loop->wake_fd < 0 || epoll_ctl(loop->epoll_fd, EPOLL_CTL_ADD, loop->wake_fd, &event) < 0) {
        err_errno(err, "creating an event loop's mailbox");
        loop_free(loop);
        return NULL;
    }
    return loop;
}

struct loop *loop_new(struct err *err)
{
    return make(false, err);
}

struct loop *loop_new_virtual(struct err *err)
{
    return make(true, err);
}

bool loop_settle(struct loop *loop)
{
    bool any = false;
    for (int round = 0; round < SETTLE_ROUNDS_MAX; round++) {
        bool busy = run_posted(loop);
        busy = run_deferred(loop) || busy;
        if (!busy && loop->wake_fd >= 0 && atomic_load(&loop->working)) {
            struct epoll_event events[1];
            atomic_store(&loop->asleep, true);
            (void)epoll_wait(loop->epoll_fd, events, 1, atomic_load(&loop->mail) ? 0 : 10);
            round--; /* a worker's job always ends */
            continue;
        }
        if (!busy)
            break;
        any = true;
    }
    return any;
}

void loop_free(struct loop *loop)
{
    if (!loop)
        return;
    (void)loop_settle(loop);
    while (atomic_load(&loop->posting)) /* for as long as a system call takes */
        (void)sched_yield();
    loop_timers_forget(loop);
    for (uint32_t i = 0; i < loop->slot_count; i++)
        if (loop->slots[i].watch)
            loop->slots[i].watch->loop = NULL;
    fd_close(&loop->epoll_fd);
    fd_close(&loop->wake_fd);
    pthread_mutex_destroy(&loop->mailbox_lock);
    free(loop->slots);
    free(loop->heap);
    free(loop->deferred.items);
    free(loop->running.items);
    free(loop->mailbox.items);
    free(loop->inbox.items);
    free(loop->scratch);
    free(loop);
}

uint64_t loop_now_ms(const struct loop *loop)
{
    return loop->now_ms;
}

uint64_t loop_tick(const struct loop *loop)
{
    return loop->tick;
}

char *loop_scratch(struct loop *loop)
{
    if (!loop->scratch)
        loop->scratch = mem_alloc(LOOP_SCRATCH_BYTES);
    return loop->scratch;
}

void loop_stop(struct loop *loop)
{
    atomic_store(&loop->stopping, true);
    wake(loop);
}

/* --- the tick --- */

static _Thread_local const struct loop *ticking; /* the one whose callbacks this thread runs */

bool loop_in_tick(const struct loop *loop)
{
    return ticking == loop;
}

static void dispatch(struct loop *loop, const struct epoll_event *event)
{
    uint32_t index = (uint32_t)event->data.u64;
    if (index >= loop->slot_count)
        return;
    struct loop_slot *slot = &loop->slots[index];
    if (!slot->watch || slot->generation != (uint32_t)(event->data.u64 >> 32))
        return;
    struct loop_watch *watch = slot->watch;
    uint32_t events = 0;
    if (event->events & EPOLLIN)
        events |= LOOP_READ;
    if (event->events & EPOLLOUT)
        events |= LOOP_WRITE;
    if (event->events & (EPOLLHUP | EPOLLERR))
        events |= LOOP_HANGUP | watch->events;
    /* An earlier callback of this tick may have asked for less. */
    events &= watch->events | LOOP_HANGUP;
    if (events && watch->events)
        watch->on_ready(watch, events);
}

/* How long epoll may sleep, in milliseconds. */
static int wait_ms(struct loop *loop, int wait_ms_max)
{
    if (loop->deferred.count || loop->posts_pending || atomic_load(&loop->stopping))
        return 0;
    int timer_ms = loop_timers_wait_ms(loop);
    if (timer_ms >= 0 && (wait_ms_max < 0 || timer_ms < wait_ms_max))
        return timer_ms;
    return wait_ms_max;
}

/* Virtual time: look without waiting; when all is quiet, jump instead of sleeping. */
static int wait_virtual(struct loop *loop, struct epoll_event *events, int wait)
{
    bool working = atomic_load(&loop->working) > 0;
    int count = epoll_wait(loop->epoll_fd, events, EVENTS_PER_TICK, 0);
    if (count != 0 || wait == 0)
        return count;
    if (working || wait < 0)
        return epoll_wait(loop->epoll_fd, events, EVENTS_PER_TICK, -1);
    loop->now_ms += (uint64_t)wait;
    return 0;
}

void loop_once(struct loop *loop, int wait_ms_max)
{
    struct epoll_event events[EVENTS_PER_TICK];
    loop->tick++;
    if (!loop->is_virtual)
        loop->now_ms = clock_mono_ms();
    int wait = wait_ms(loop, wait_ms_max);
    if (wait != 0) {
        atomic_store(&loop->asleep, true);
        if (atomic_load(&loop->mail))
            wait = 0;
    }
    int count = loop->is_virtual ? wait_virtual(loop, events, wait)
                                 : epoll_wait(loop->epoll_fd, events, EVENTS_PER_TICK, wait);
    CHECK(count >= 0 || errno == EINTR);
    atomic_store(&loop->asleep, false);
    if (!loop->is_virtual && wait != 0)
        loop->now_ms = clock_mono_ms();
    const struct loop *outer = ticking;
    ticking = loop;
    loop->in_tick = true;
    for (int i = 0; i < count; i++)
        if (events[i].data.u64 != WAKE_TAG)
            dispatch(loop, &events[i]);
    (void)run_posted(loop);
    loop_timers_run(loop);
    for (int round = 0; round < DEFERRED_ROUNDS_MAX && run_deferred(loop);)
        round++;
    loop->in_tick = false;
    ticking = outer;
}

void loop_run(struct loop *loop)
{
    while (!atomic_exchange(&loop->stopping, false))
        loop_once(loop, -1);
}

/* --- watches --- */

static uint32_t slot_take(struct loop *loop)
{
    if (loop->slot_free != SLOT_NONE) {
        uint32_t index = loop->slot_free;
        loop->slot_free = loop->slots[index].next_free;
        return index;
    }
    if (loop->slot_count == loop->slot_capacity) {
        loop->slot_capacity = loop->slot_capacity ? loop->slot_capacity * 2 : 64;
        loop->slots = mem_grow(loop->slots, loop->slot_capacity * sizeof *loop->slots);
    }
    loop->slots[loop->slot_count] = (struct loop_slot){0};
    return loop->slot_count++;
}

static void slot_give(struct loop *loop, uint32_t index)
{
    struct loop_slot *slot = &loop->slots[index];
    slot->watch = NULL;
    slot->generation++;
    slot->next_free = loop->slot_free;
    loop->slot_free = index;
}

static int control(struct loop_watch *watch, int operation, uint32_t asked)
{
    struct loop *loop = watch->loop;
    uint32_t index = (uint32_t)watch->reserved[0];
    struct epoll_event event = {
        .events = (asked & LOOP_READ ? EPOLLIN : 0u) | (asked & LOOP_WRITE ? EPOLLOUT : 0u),
        .data.u64 = (uint64_t)loop->slots[index].generation << 32 | index,
    };
    return epoll_ctl(loop->epoll_fd, operation, watch->fd, &event);
}

int loop_watch_start(struct loop *loop, struct loop_watch *watch, int fd, uint32_t events,
                     void (*on_ready)(struct loop_watch *, uint32_t), void *context,
                     struct err *err)
{
    *watch = (struct loop_watch){
        .loop = loop, .fd = fd, .events = events, .on_ready = on_ready, .context = context};
    uint32_t index = slot_take(loop);
    watch->reserved[0] = index;
    if (events && control(watch, EPOLL_CTL_ADD, events) < 0) {
        err_errno(err, "watching descriptor %d", fd);
        slot_give(loop, index);
        watch->loop = NULL;
        return -1;
    }
    loop->slots[index].watch = watch;
    return 0;
}

void loop_watch_change(struct loop_watch *watch, uint32_t events)
{
    if (!watch->loop || watch->events == events)
        return;
    int operation = !events ? EPOLL_CTL_DEL : watch->events ? EPOLL_CTL_MOD : EPOLL_CTL_ADD;
    CHECK(control(watch, operation, events) == 0 || errno == ENOMEM || errno == ENOSPC);
    watch->events = events;
}

void loop_watch_stop(struct loop_watch *watch)
{
    if (!watch->loop)
        return;
    if (watch->events)
        (void)control(watch, EPOLL_CTL_DEL, 0); /* fails only when the descriptor is closed */
    slot_give(watch->loop, (uint32_t)watch->reserved[0]);
    watch->loop = NULL;
}
