/* loop.h - the door of the loop room: one thread that waits for everything.
 *
 * A loop belongs to one thread. All calls happen on that thread, except loop_post(), loop_stop()
 * and loop_in_tick(), which may come from any. Callbacks run on the loop thread, never from inside
 * the call that asked for them. Structs embedded by the caller (loop_watch, loop_timer) must
 * outlive their activity; a stopped watch or timer calls nothing more, also when stopped from
 * another callback of the same tick.
 *
 * Lanes are N loops on N threads. Each object lives on one lane; lanes talk by loop_post(). */
#ifndef LOOP_H
#define LOOP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct err;
struct loop;

struct loop *loop_new(struct err *err);
/* A loop whose clock moves only by itself: loop_run() jumps to the next timer when nothing else is
 * ready. For simulations; file descriptors work as usual. */
struct loop *loop_new_virtual(struct err *err);
/* Runs what was deferred, posted or is still worked on to its end, then lets go of everything that
 * is registered; nothing is called afterwards. */
void loop_free(struct loop *loop);
void loop_run(struct loop *loop);                   /* until loop_stop() */
void loop_once(struct loop *loop, int wait_ms_max); /* one tick */
void loop_stop(struct loop *loop);                  /* any thread */
uint64_t loop_now_ms(const struct loop *loop);      /* monotonic, as of this tick's start */
uint64_t loop_tick(const struct loop *loop);        /* how many there were, with this one */

/* --- descriptors: level-triggered. A hangup or error is reported as LOOP_HANGUP together with what
 * was asked for, so that a reader learns of it by reading to the end. --- */
enum { LOOP_READ = 1, LOOP_WRITE = 2, LOOP_HANGUP = 4 /* only reported, never asked */ };
struct loop_watch {
    struct loop *loop; /* NULL: not watching */
    int fd;
    uint32_t events;
    void (*on_ready)(struct loop_watch *watch, uint32_t events);
    void *context;
    uint64_t reserved[2];
};
int loop_watch_start(struct loop *loop, struct loop_watch *watch, int fd, uint32_t events,
                     void (*on_ready)(struct loop_watch *, uint32_t), void *context,
                     struct err *err);
void loop_watch_change(struct loop_watch *watch, uint32_t events); /* 0: registered but silent */
void loop_watch_stop(struct loop_watch *watch); /* does not close the descriptor */

/* --- timers: O(log n), millisecond resolution --- */
struct loop_timer {
    struct loop *loop; /* NULL: not running */
    uint64_t due_ms;
    void (*on_due)(struct loop_timer *timer);
    void *context;
    size_t heap_index;
    uint64_t order;
};
/* Starting a running timer moves it. */
void loop_timer_start(struct loop *loop, struct loop_timer *timer, uint64_t after_ms,
                      void (*on_due)(struct loop_timer *), void *context);
void loop_timer_stop(struct loop_timer *timer);

/* --- later --- */
void loop_defer(struct loop *loop, void (*run)(void *),
                void *argument); /* when this tick is over */
/* Whether the caller is a callback of this loop, and may defer. From any thread. */
bool loop_in_tick(const struct loop *loop);
void loop_post(struct loop *loop, void (*run)(void *), void *argument); /* from any thread */
/* Runs `work` on a worker thread, then `done` on this loop. Bounded pool shared by all loops. */
void loop_work(struct loop *loop, void (*work)(void *), void (*done)(void *), void *argument);
/* The same for what waits for somebody else for long, such as names: it has threads of its own. */
void loop_work_waiting(struct loop *loop, void (*work)(void *), void (*done)(void *),
                       void *argument);

/* A large buffer to read into, shared by everything on this loop: its content is good until the
 * callback that filled it returns. */
#define LOOP_SCRATCH_BYTES 65536
char *loop_scratch(struct loop *loop);

/* --- the process's heap: for programs that live long, once, before lanes start --- */
struct loop_heap;
struct loop_heap *loop_heap_start(struct loop *loop); /* tunes it, and looks after it from now on */
void loop_heap_stop(struct loop_heap *heap);          /* NULL is fine; on the loop's thread */
/* Gives free pages back when there are many; *settled is 0 at first. For heap.c and its test. */
bool loop_heap_trim(size_t *settled);
size_t loop_heap_resident(void); /* bytes of this process in memory */

/* --- children and signals --- */
struct loop_child {
    struct loop_watch watch;
    int pidfd; /* owned */
    void (*on_exit)(struct loop_child *child, int wait_status);
    void *context;
};
/* Watches a process this process started; reaps it. `pid` must not be waited for elsewhere. */
int loop_child_start(struct loop *loop, struct loop_child *child, int pid,
                     void (*on_exit)(struct loop_child *, int wait_status), void *context,
                     struct err *err);
void loop_child_stop(struct loop_child *child);
int loop_child_signal(struct loop_child *child, int signal_number);
/* Blocks the signal for the process and reports it here. Call before threads start. */
struct loop_signal {
    struct loop_watch watch;
    void (*on_signal)(struct loop_signal *signal, int signal_number);
    void *context;
};
int loop_signal_start(struct loop *loop, struct loop_signal *signal, const int *numbers,
                      size_t count, void (*on_signal)(struct loop_signal *, int), void *context,
                      struct err *err);
void loop_signal_stop(struct loop_signal *signal);

/* --- lanes --- */
struct lanes;
struct lanes *lanes_new(size_t count, struct err *err); /* threads run at once */
void lanes_free(struct lanes *lanes);                   /* stops and joins them */
size_t lanes_count(const struct lanes *lanes);
struct loop *lanes_at(struct lanes *lanes, size_t index);
struct loop *
lanes_next(struct lanes *lanes); /* the one with the fewest tenants (see lanes_tenant) */
void lanes_tenant(struct lanes *lanes, struct loop *loop, int change); /* +1 / -1; any thread */
/* Runs `run(argument)` on that loop and waits for it. Not from the loop's own thread. */
void loop_call(struct loop *loop, void (*run)(void *), void *argument);

#endif
