/* timers.c - a binary heap of timers, ordered by due time, then by when they were started.
 *
 * Timers started while due ones are run wait for the next tick: each gets an order number, and a
 * run stops at the first one that is younger than itself. */
#include "internal.h"

#include <limits.h>

#include "base/clock.h"
#include "base/mem.h"

static bool before(const struct loop_timer *a, const struct loop_timer *b)
{
    return a->due_ms != b->due_ms ? a->due_ms < b->due_ms : a->order < b->order;
}

static void put(struct loop *loop, struct loop_timer *timer, size_t index)
{
    loop->heap[index] = timer;
    timer->heap_index = index;
}

static void sift_up(struct loop *loop, struct loop_timer *timer, size_t index)
{
    while (index > 0) {
        size_t parent = (index - 1) / 2;
        if (!before(timer, loop->heap[parent]))
            break;
        put(loop, loop->heap[parent], index);
        index = parent;
    }
    put(loop, timer, index);
}

static void sift_down(struct loop *loop, struct loop_timer *timer, size_t index)
{
    for (;;) {
        size_t child = 2 * index + 1;
        if (child >= loop->heap_count)
            break;
        if (child + 1 < loop->heap_count && before(loop->heap[child + 1], loop->heap[child]))
            child++;
        if (!before(loop->heap[child], timer))
            break;
        put(loop, loop->heap[child], index);
        index = child;
    }
    put(loop, timer, index);
}

static void settle(struct loop *loop, struct loop_timer *timer, size_t index)
{
    if (index > 0 && before(timer, loop->heap[(index - 1) / 2]))
        sift_up(loop, timer, index);
    else
        sift_down(loop, timer, index);
}

void loop_timer_start(struct loop *loop, struct loop_timer *timer, uint64_t after_ms,
                      void (*on_due)(struct loop_timer *), void *context)
{
    if (timer->loop && timer->loop != loop)
        loop_timer_stop(timer);
    if (!loop->in_tick && !loop->is_virtual)
        loop->now_ms = clock_mono_ms();
    timer->due_ms = after_ms > UINT64_MAX - loop->now_ms ? UINT64_MAX : loop->now_ms + after_ms;
    timer->order = ++loop->timer_order;
    timer->on_due = on_due;
    timer->context = context;
    if (timer->loop) {
        settle(loop, timer, timer->heap_index);
        return;
    }
    timer->loop = loop;
    if (loop->heap_count == loop->heap_capacity) {
        loop->heap_capacity = loop->heap_capacity ? loop->heap_capacity * 2 : 64;
        loop->heap = mem_grow(loop->heap, loop->heap_capacity * sizeof *loop->heap);
    }
    sift_up(loop, timer, loop->heap_count++);
}

void loop_timer_stop(struct loop_timer *timer)
{
    struct loop *loop = timer->loop;
    if (!loop)
        return;
    timer->loop = NULL;
    struct loop_timer *last = loop->heap[--loop->heap_count];
    if (last != timer)
        settle(loop, last, timer->heap_index);
}

int loop_timers_wait_ms(const struct loop *loop)
{
    if (!loop->heap_count)
        return -1;
    uint64_t due = loop->heap[0]->due_ms;
    if (due <= loop->now_ms)
        return 0;
    return due - loop->now_ms > INT_MAX ? INT_MAX : (int)(due - loop->now_ms);
}

void loop_timers_run(struct loop *loop)
{
    uint64_t youngest = loop->timer_order;
    while (loop->heap_count && loop->heap[0]->due_ms <= loop->now_ms &&
           loop->heap[0]->order <= youngest) {
        struct loop_timer *timer = loop->heap[0];
        loop_timer_stop(timer);
        timer->on_due(timer);
    }
}

void loop_timers_forget(struct loop *loop)
{
    for (size_t i = 0; i < loop->heap_count; i++)
        loop->heap[i]->loop = NULL;
    loop->heap_count = 0;
}
