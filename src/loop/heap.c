/* heap.c - the heap of a process that lives long and has bursts.
 *
 * glibc's defaults fit small programs: memory is taken from the kernel a few pages at a time and
 * given back as soon as the end of an arena is free, so that a body of 600 KB costs its pages anew
 * with every turn. Here steps are large and the end of an arena is kept up to TRIM_BYTES; a piece
 * of MMAP_BYTES or more still goes back when it is freed.
 *
 * What is free in the middle of an arena never goes back by itself. So now and then resident memory
 * is compared with what is in use, and when a burst has left much behind, all free pages are given
 * back: on a worker thread, since each arena is locked for some milliseconds. */
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/mem.h"
#include "loop/loop.h"

enum { PAD_BYTES = 2 << 20, MMAP_BYTES = 4 << 20, TRIM_BYTES = 8 << 20 };
#define LOOK_MS 20000
#define WASTE_BYTES_MAX ((size_t)64 << 20)
#define GROWN_BYTES_MIN ((size_t)32 << 20) /* since it was last given back */

struct loop_heap {
    struct loop *loop;
    struct loop_timer timer;
    size_t settled; /* waste after the last time; the worker's while it works */
};

size_t loop_heap_resident(void)
{
    FILE *file = fopen("/proc/self/statm", "re");
    unsigned long long all, resident = 0;
    if (file && fscanf(file, "%llu %llu", &all, &resident) != 2)
        resident = 0;
    if (file)
        fclose(file);
    return (size_t)resident * (size_t)sysconf(_SC_PAGESIZE);
}

/* Resident, but not in use. */
static size_t wasted(void)
{
    struct mallinfo2 info = mallinfo2();
    size_t used = info.uordblks + info.hblkhd, resident = loop_heap_resident();
    return resident > used ? resident - used : 0;
}

/* What was left the last time could not be given back. It is waste that is compared and not what is
 * resident: a look in the middle of a burst must not hide what its end leaves behind. */
bool loop_heap_trim(size_t *settled)
{
    size_t waste = wasted();
    if (waste < *settled)
        *settled = waste;
    if (waste < WASTE_BYTES_MAX || waste < *settled + GROWN_BYTES_MIN)
        return false;
    (void)malloc_trim(0);
    *settled = wasted();
    return true;
}

static void look(void *argument)
{
    struct loop_heap *heap = argument;
    (void)loop_heap_trim(&heap->settled);
}

static void on_due(struct loop_timer *timer);

static void looked(void *argument)
{
    struct loop_heap *heap = argument;
    if (!heap->loop)
        free(heap);
    else
        loop_timer_start(heap->loop, &heap->timer, LOOK_MS, on_due, heap);
}

static void on_due(struct loop_timer *timer)
{
    struct loop_heap *heap = timer->context;
    loop_work(heap->loop, look, looked, heap);
}

struct loop_heap *loop_heap_start(struct loop *loop)
{
    (void)mallopt(M_TOP_PAD, PAD_BYTES);
    (void)mallopt(M_MMAP_THRESHOLD, MMAP_BYTES);
    (void)mallopt(M_TRIM_THRESHOLD, TRIM_BYTES);
    struct loop_heap *heap = mem_zero(sizeof *heap);
    heap->loop = loop;
    loop_timer_start(loop, &heap->timer, LOOK_MS, on_due, heap);
    return heap;
}

void loop_heap_stop(struct loop_heap *heap)
{
    if (!heap)
        return;
    bool waiting = heap->timer.loop != NULL;
    loop_timer_stop(&heap->timer);
    heap->loop = NULL;
    if (waiting)
        free(heap); /* else the worker has it, and looked() is the last */
}
