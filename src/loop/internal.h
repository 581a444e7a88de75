/* internal.h - what the files of the loop room share. */
#ifndef LOOP_INTERNAL_H
#define LOOP_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "loop/loop.h"

struct loop_job { /* something to run later */
    void (*run)(void *);
    void *argument;
};

struct loop_jobs {
    struct loop_job *items;
    size_t count, capacity;
};

/* A watch's entry. epoll carries slot number and generation; an event whose generation is over
 * belongs to a watch that was stopped meanwhile, even when descriptor or memory were used again. */
struct loop_slot {
    struct loop_watch *watch; /* NULL: free */
    uint32_t generation;
    uint32_t next_free;
};

struct loop {
    int epoll_fd;
    int wake_fd;        /* eventfd, edge-triggered: never read */
    atomic_bool asleep; /* in epoll_wait, or about to be: whoever posts has to wake it */
    bool is_virtual;
    bool in_tick;
    uint64_t now_ms, tick;

    struct loop_slot *slots;
    uint32_t slot_count, slot_capacity, slot_free;

    struct loop_timer **heap;
    size_t heap_count, heap_capacity;
    uint64_t timer_order;

    struct loop_jobs deferred;
    struct loop_jobs running; /* the deferred jobs or posts being run; keeps its memory */

    pthread_mutex_t mailbox_lock;
    struct loop_jobs mailbox; /* under the lock */
    atomic_bool mail;         /* there is something in it; set under the lock */
    struct loop_jobs inbox;   /* taken from the mailbox, run in batches */
    size_t inbox_done;        /* of `inbox`, how many ran */
    bool posts_pending;       /* a batch was full */
    atomic_uint posting;      /* threads inside loop_post() */

    atomic_bool stopping;
    atomic_uint working; /* jobs at the workers whose `done` has not run yet */
    char *scratch;
};

/* Runs deferred and posted jobs until there are none (bounded), waiting for workers. Returns
 * whether anything ran. The loop's thread must be gone. */
bool loop_settle(struct loop *loop);
void loop_jobs_add(struct loop_jobs *jobs, void (*run)(void *), void *argument);

/* timers.c */
int loop_timers_wait_ms(const struct loop *loop); /* -1: no timer */
void loop_timers_run(struct loop *loop);
void loop_timers_forget(struct loop *loop);

#endif
