/* test_loop.c - the loop room through its door. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/err.h"
#include "base/mem.h"
#include "loop/loop.h"
#include "test.h"

static int called, order[64];
static struct loop *the_loop;

static void note(void *argument)
{
    order[called++ % 64] = (int)(intptr_t)argument;
}

static void note_and_stop(void *argument)
{
    note(argument);
    loop_stop(the_loop);
}

static struct loop *start(void)
{
    struct err err = {0};
    called = 0;
    the_loop = loop_new(&err);
    return the_loop;
}

/* --- descriptors --- */

static void read_one(struct loop_watch *watch, uint32_t events)
{
    char byte;
    if (events & LOOP_READ && read(watch->fd, &byte, 1) >= 0)
        called++;
    if (called == 3)
        loop_stop(watch->loop);
}

TEST(a_readable_descriptor_is_reported_until_it_is_read)
{
    struct loop *loop = start();
    int pipe_fd[2];
    struct loop_watch watch = {0};
    EXPECT(pipe2(pipe_fd, O_CLOEXEC | O_NONBLOCK) == 0);
    EXPECT(write(pipe_fd[1], "abc", 3) == 3);
    EXPECT(loop_watch_start(loop, &watch, pipe_fd[0], LOOP_READ, read_one, NULL, NULL) == 0);
    loop_run(loop);
    EXPECT_INT(called, 3);
    loop_watch_stop(&watch);
    EXPECT(watch.loop == NULL);
    loop_free(loop);
}

struct pair {
    struct loop_watch a, b;
    int a_fd[2], b_fd[2];
    bool reuse;
};

static void never(struct loop_watch *watch, uint32_t events)
{
    (void)watch, (void)events;
    called += 100;
}

/* Stops and frees the other watch, and lets a new one take its descriptor and slot. */
static void stop_other(struct loop_watch *watch, uint32_t events)
{
    (void)events;
    struct pair *pair = watch->context;
    struct loop_watch *other = watch == &pair->a ? &pair->b : &pair->a;
    called++;
    loop_watch_stop(watch);
    loop_watch_stop(other); /* last, so that its slot is the next to be used */
    if (!pair->reuse)
        return;
    int fresh[2];
    if (pipe2(fresh, O_CLOEXEC) < 0 || dup2(fresh[0], other->fd) < 0)
        abort();
    if (loop_watch_start(the_loop, other, other->fd, LOOP_READ, never, NULL, NULL) < 0)
        abort();
}

static void two_ready(bool reuse)
{
    struct loop *loop = start();
    struct pair pair = {.reuse = reuse};
    EXPECT(pipe2(pair.a_fd, O_CLOEXEC) == 0 && pipe2(pair.b_fd, O_CLOEXEC) == 0);
    EXPECT(write(pair.a_fd[1], "x", 1) == 1 && write(pair.b_fd[1], "x", 1) == 1);
    EXPECT(loop_watch_start(loop, &pair.a, pair.a_fd[0], LOOP_READ, stop_other, &pair, NULL) == 0);
    EXPECT(loop_watch_start(loop, &pair.b, pair.b_fd[0], LOOP_READ, stop_other, &pair, NULL) == 0);
    loop_once(loop, 1000);
    EXPECT_INT(called, 1);
    loop_once(loop, 0);
    EXPECT_INT(called, 1);
    loop_free(loop);
}

TEST(a_watch_stopped_by_another_callback_of_the_tick_stays_silent)
{
    two_ready(false);
}

TEST(a_late_event_does_not_reach_the_next_user_of_descriptor_and_slot)
{
    two_ready(true);
}

TEST(a_silent_watch_does_not_even_report_a_hangup)
{
    struct loop *loop = start();
    int fds[2];
    struct loop_watch watch = {0};
    EXPECT(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);
    EXPECT(loop_watch_start(loop, &watch, fds[0], LOOP_READ, never, NULL, NULL) == 0);
    loop_watch_change(&watch, 0);
    close(fds[1]);
    loop_once(loop, 0);
    EXPECT_INT(called, 0);
    loop_watch_change(&watch, LOOP_READ);
    loop_once(loop, 0);
    EXPECT_INT(called, 100);
    loop_free(loop);
    EXPECT(watch.loop == NULL);
}

TEST(a_hangup_comes_with_what_was_asked_for)
{
    struct loop *loop = start();
    int fds[2];
    struct loop_watch watch = {0};
    EXPECT(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);
    EXPECT(loop_watch_start(loop, &watch, fds[0], LOOP_READ, read_one, NULL, NULL) == 0);
    close(fds[1]);
    loop_once(loop, 1000);
    EXPECT_INT(called, 1);
    loop_free(loop);
}

TEST(a_descriptor_that_cannot_be_watched_is_an_error)
{
    struct loop *loop = start();
    struct loop_watch watch = {0};
    struct err err = {0};
    EXPECT(loop_watch_start(loop, &watch, 4000, LOOP_READ, never, NULL, &err) < 0);
    EXPECT(err.kind != ERR_NONE && watch.loop == NULL);
    loop_watch_stop(&watch);
    loop_free(loop);
}

/* --- timers --- */

static void timer_note(struct loop_timer *timer)
{
    note(timer->context);
}

TEST(timers_run_in_order_of_time_then_of_start)
{
    struct err err = {0};
    struct loop *loop = the_loop = loop_new_virtual(&err);
    struct loop_timer timers[60] = {{0}};
    called = 0;
    for (int i = 0; i < 60; i++)
        loop_timer_start(loop, &timers[i], (uint64_t)((i * 37) % 60 / 2), timer_note,
                         (void *)(intptr_t)((i * 37) % 60));
    loop_timer_stop(&timers[7]);
    loop_timer_start(loop, &timers[9], 100, timer_note, (void *)1000);
    uint64_t before = loop_now_ms(loop);
    while (called < 59)
        loop_once(loop, -1);
    for (int i = 0; i < 57; i++)
        EXPECT(order[i] / 2 <= order[i + 1] / 2);
    EXPECT_INT(order[58], 1000);
    EXPECT_INT(loop_now_ms(loop) - before, 100);
    loop_free(loop);
}

static void timer_on_time(struct loop_timer *timer)
{
    called += timer->due_ms == loop_now_ms(the_loop) ? 1 : 100000;
}

TEST(each_of_many_random_timers_fires_exactly_when_due)
{
    struct loop *loop = the_loop = loop_new_virtual(NULL);
    static struct loop_timer timers[500];
    unsigned seed = 7;
    called = 0;
    for (int step = 0; step < 20000; step++) {
        seed = seed * 1103515245u + 12345u;
        struct loop_timer *timer = &timers[(seed >> 16) % 500];
        if (seed & 0x8000)
            loop_timer_stop(timer);
        else
            loop_timer_start(loop, timer, 1 + (seed >> 8) % 1000, timer_on_time, NULL);
    }
    int running = 0;
    for (int i = 0; i < 500; i++)
        running += timers[i].loop != NULL;
    while (called < running)
        loop_once(loop, -1);
    EXPECT_INT(called, running);
    for (int i = 0; i < 500; i++)
        EXPECT(!timers[i].loop);
    loop_free(loop);
}

static void timer_again(struct loop_timer *timer)
{
    called++;
    loop_timer_start(timer->loop ? timer->loop : the_loop, timer, 0, timer_again, NULL);
}

TEST(a_timer_that_starts_itself_again_waits_for_the_next_tick)
{
    struct loop *loop = start();
    struct loop_timer timer = {0};
    loop_timer_start(loop, &timer, 0, timer_again, NULL);
    loop_once(loop, 0);
    EXPECT_INT(called, 1);
    loop_once(loop, 0);
    EXPECT_INT(called, 2);
    loop_free(loop);
    EXPECT(timer.loop == NULL);
}

static void timer_stop_loop(struct loop_timer *timer)
{
    (void)timer;
    called++;
    loop_stop(the_loop);
}

TEST(a_real_timer_fires_no_earlier_than_asked)
{
    struct loop *loop = start();
    struct loop_timer timer = {0};
    loop_timer_start(loop, &timer, 20, timer_stop_loop, NULL);
    uint64_t before = loop_now_ms(loop);
    loop_run(loop);
    EXPECT(called == 1 && loop_now_ms(loop) - before >= 20);
    loop_free(loop);
}

TEST(virtual_time_flies_when_nothing_else_is_ready)
{
    struct loop *loop = the_loop = loop_new_virtual(NULL);
    struct loop_timer timer = {0};
    uint64_t before = loop_now_ms(loop);
    called = 0;
    loop_timer_start(loop, &timer, 365ull * 24 * 3600 * 1000, timer_stop_loop, NULL);
    loop_run(loop);
    EXPECT_INT(loop_now_ms(loop) - before, 365ull * 24 * 3600 * 1000);
    loop_free(loop);
}

/* --- later --- */

static void defer_more(void *argument)
{
    note(argument);
    loop_defer(the_loop, note, (void *)2);
}

TEST(deferred_calls_run_when_the_tick_is_over_and_new_ones_after_them)
{
    struct loop *loop = start();
    loop_defer(loop, defer_more, (void *)1);
    EXPECT_INT(called, 0);
    loop_once(loop, -1);
    EXPECT_INT(called, 2);
    loop_defer(loop, note, (void *)3);
    loop_free(loop);
    EXPECT_INT(called, 3);
}

static bool deferring;
static void defer_again(void *argument)
{
    called++;
    if (deferring)
        loop_defer(the_loop, defer_again, argument);
}

static void stop_deferring(struct loop_timer *timer)
{
    (void)timer;
    deferring = false;
}

TEST(a_deferred_call_that_defers_itself_starves_nobody)
{
    struct loop *loop = start();
    struct loop_timer timer = {0};
    deferring = true;
    loop_defer(loop, defer_again, NULL);
    loop_once(loop, -1);
    int in_one_tick = called;
    loop_timer_start(loop, &timer, 20, stop_deferring, NULL);
    EXPECT(in_one_tick >= 1 && in_one_tick < 100);
    while (deferring)
        loop_once(loop, -1);
    EXPECT(called > in_one_tick);
    loop_free(loop);
}

static void end_loop(void *argument)
{
    loop_stop(argument);
}

/* The poster may still be inside loop_post() when its job has ended the loop. */
static void *post_the_end(void *argument)
{
    loop_post(argument, end_loop, argument);
    return NULL;
}

TEST(a_loop_may_be_freed_as_soon_as_a_posted_job_ended_it)
{
    for (int i = 0; i < 300; i++) {
        struct loop *loop = loop_new(NULL);
        pthread_t thread;
        EXPECT_INT(pthread_create(&thread, NULL, post_the_end, loop), 0);
        loop_run(loop);
        loop_free(loop);
        pthread_join(thread, NULL);
    }
}

static atomic_int posted;
static void count_posted(void *argument)
{
    (void)argument;
    atomic_fetch_add(&posted, 1);
}

static void *post_many(void *argument)
{
    for (int i = 0; i < 10000; i++)
        loop_post(argument, count_posted, NULL);
    return NULL;
}

TEST(posts_from_many_threads_all_arrive)
{
    struct loop *loop = start();
    pthread_t threads[4];
    for (int i = 0; i < 4; i++)
        EXPECT(pthread_create(&threads[i], NULL, post_many, loop) == 0);
    while (atomic_load(&posted) < 40000)
        loop_once(loop, -1);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    loop_free(loop);
    EXPECT_INT(atomic_load(&posted), 40000);
}

static void post_again(void *argument)
{
    if (++called < 5000)
        loop_post(the_loop, post_again, argument);
    else
        loop_stop(the_loop);
}

TEST(a_post_that_posts_again_starves_nobody_and_is_not_lost)
{
    struct loop *loop = start();
    struct loop_timer timer = {0};
    loop_post(loop, post_again, NULL);
    loop_once(loop, -1);
    EXPECT(called < 5000);
    loop_run(loop);
    EXPECT_INT(called, 5000);
    loop_timer_stop(&timer);
    loop_free(loop);
}

TEST(more_posts_than_one_batch_are_run_without_another_wake)
{
    struct loop *loop = start();
    for (int i = 0; i < 3000; i++)
        loop_post(loop, note, NULL);
    loop_once(loop, -1);
    loop_post(loop, note_and_stop, NULL);
    loop_run(loop);
    EXPECT_INT(called, 3001);
    loop_free(loop);
}

struct work {
    int input, output;
};
static int works_done;

static void work_square(void *argument)
{
    struct work *work = argument;
    usleep(1000);
    work->output = work->input * work->input;
}

static void work_done(void *argument)
{
    struct work *work = argument;
    works_done += work->output;
    free(work);
    if (++called == 100)
        loop_stop(the_loop);
}

TEST(work_runs_elsewhere_and_is_done_here)
{
    struct loop *loop = start();
    int sum = 0;
    for (int i = 0; i < 100; i++) {
        struct work *work = mem_zero(sizeof *work);
        work->input = i;
        sum += i * i;
        loop_work(loop, work_square, work_done, work);
    }
    loop_run(loop);
    EXPECT_INT(works_done, sum);
    loop_free(loop);
}

TEST(a_loop_freed_while_workers_are_busy_waits_for_them)
{
    struct loop *loop = start();
    for (int i = 0; i < 20; i++)
        loop_work(loop, work_square, work_done, mem_zero(sizeof(struct work)));
    loop_free(loop);
    EXPECT_INT(called, 20);
}

enum { MANY = 64 }; /* more than there are threads */
static sem_t let_go;

static void work_blocked(void *argument)
{
    (void)argument;
    sem_wait(&let_go);
}

static void work_nothing(void *argument)
{
    (void)argument;
}

static void free_all(void *argument)
{
    (void)argument;
    for (int i = 0; i < MANY; i++)
        sem_post(&let_go);
}

TEST(what_works_and_what_waits_for_others_do_not_keep_each_other_waiting)
{
    struct loop *loop = start();
    sem_init(&let_go, 0, 0);
    for (int i = 0; i < MANY; i++)
        loop_work(loop, work_blocked, note, NULL);
    loop_work_waiting(loop, work_nothing, free_all, NULL);
    while (called < MANY)
        loop_once(loop, 100);
    for (int i = 0; i < MANY; i++)
        loop_work_waiting(loop, work_blocked, note, NULL);
    loop_work(loop, work_nothing, free_all, NULL);
    while (called < 2 * MANY)
        loop_once(loop, 100);
    loop_free(loop);
}

TEST(virtual_time_stands_still_while_a_worker_is_busy)
{
    struct loop *loop = the_loop = loop_new_virtual(NULL);
    struct loop_timer timer = {0};
    called = 0;
    loop_work(loop, work_square, work_done, mem_zero(sizeof(struct work)));
    loop_timer_start(loop, &timer, 5, timer_stop_loop, NULL);
    uint64_t before = loop_now_ms(loop);
    loop_once(loop, -1);
    EXPECT_INT(called, 1);
    EXPECT_INT(loop_now_ms(loop), before);
    loop_run(loop);
    EXPECT_INT(called, 2);
    loop_free(loop);
}

TEST(a_stop_that_comes_first_is_not_forgotten)
{
    struct loop *loop = start();
    loop_stop(loop);
    loop_run(loop);
    loop_free(loop);
}

/* --- children and signals --- */

static int exit_status;
static void child_gone(struct loop_child *child, int status)
{
    exit_status = status;
    called++;
    loop_stop(the_loop);
    EXPECT_INT(loop_child_signal(child, SIGTERM), -1);
}

TEST(a_childs_exit_code_is_reported_and_the_child_reaped)
{
    struct loop *loop = start();
    struct loop_child child = {0};
    pid_t pid = fork();
    if (pid == 0)
        _exit(42);
    EXPECT(loop_child_start(loop, &child, pid, child_gone, NULL, NULL) == 0);
    EXPECT_INT(called, 0);
    loop_run(loop);
    EXPECT(WIFEXITED(exit_status) && WEXITSTATUS(exit_status) == 42);
    EXPECT(waitpid(pid, NULL, WNOHANG) == -1 && errno == ECHILD);
    loop_child_stop(&child);
    loop_free(loop);
}

TEST(a_child_ended_by_a_signal_says_which)
{
    struct loop *loop = start();
    struct loop_child child = {0};
    pid_t pid = fork();
    if (pid == 0)
        for (;;)
            pause();
    EXPECT(loop_child_start(loop, &child, pid, child_gone, NULL, NULL) == 0);
    EXPECT_INT(loop_child_signal(&child, SIGKILL), 0);
    loop_run(loop);
    EXPECT(WIFSIGNALED(exit_status) && WTERMSIG(exit_status) == SIGKILL);
    loop_free(loop);
}

TEST(a_child_that_does_not_exist_is_an_error)
{
    struct loop *loop = start();
    struct loop_child child = {0};
    struct err err = {0};
    EXPECT(loop_child_start(loop, &child, 0x3fffffff, child_gone, NULL, &err) < 0);
    EXPECT(err.kind != ERR_NONE);
    loop_child_stop(&child);
    loop_free(loop);
}

static void got_signal(struct loop_signal *signal, int number)
{
    called = number;
    loop_signal_stop(signal);
    loop_stop(the_loop);
}

TEST(a_signal_arrives_as_an_event)
{
    struct loop *loop = start();
    struct loop_signal signal = {0};
    int numbers[] = {SIGUSR1, SIGTERM};
    EXPECT(loop_signal_start(loop, &signal, numbers, 2, got_signal, NULL, NULL) == 0);
    kill(getpid(), SIGTERM);
    loop_run(loop);
    EXPECT_INT(called, SIGTERM);
    loop_signal_stop(&signal);
    loop_free(loop);
}

/* --- lanes --- */

struct hop {
    struct lanes *lanes;
    int left;
    atomic_bool done;
};

static void hop(void *argument)
{
    struct hop *at = argument;
    if (--at->left == 0)
        atomic_store(&at->done, true);
    else
        loop_post(lanes_at(at->lanes, (size_t)at->left % lanes_count(at->lanes)), hop, at);
}

static void add_one(void *argument)
{
    ++*(int *)argument;
}

TEST(lanes_pass_messages_to_each_other)
{
    struct err err = {0};
    struct lanes *lanes = lanes_new(3, &err);
    EXPECT(lanes != NULL);
    static struct hop hops[8];
    for (int i = 0; i < 8; i++) {
        hops[i] = (struct hop){.lanes = lanes, .left = 500};
        loop_post(lanes_at(lanes, (size_t)i % 3), hop, &hops[i]);
    }
    for (int i = 0; i < 8; i++)
        while (!atomic_load(&hops[i].done))
            usleep(500);
    int value = 0;
    for (int i = 0; i < 30; i++)
        loop_call(lanes_at(lanes, (size_t)i % 3), add_one, &value);
    EXPECT_INT(value, 30);
    lanes_free(lanes);
}

TEST(freeing_lanes_runs_what_they_still_post_to_each_other)
{
    struct lanes *lanes = lanes_new(2, NULL);
    struct hop at = {.lanes = lanes, .left = 50};
    loop_post(lanes_at(lanes, 0), hop, &at);
    lanes_free(lanes);
    EXPECT(atomic_load(&at.done));
}

TEST(the_next_lane_is_the_one_with_the_fewest_tenants)
{
    struct lanes *lanes = lanes_new(3, NULL);
    lanes_tenant(lanes, lanes_at(lanes, 0), 2);
    lanes_tenant(lanes, lanes_at(lanes, 1), 1);
    EXPECT(lanes_next(lanes) == lanes_at(lanes, 2));
    lanes_tenant(lanes, lanes_at(lanes, 2), 5);
    EXPECT(lanes_next(lanes) == lanes_at(lanes, 1));
    lanes_tenant(lanes, lanes_at(lanes, 0), -2);
    EXPECT(lanes_next(lanes) == lanes_at(lanes, 0));
    lanes_free(lanes);
}

TEST(no_lanes_at_all_is_an_error)
{
    struct err err = {0};
    EXPECT(lanes_new(0, &err) == NULL && err.kind == ERR_INPUT);
}

/* --- the heap --- */

/* The sanitizers have heaps of their own. */
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
enum { PIECES = 40000, PIECE_BYTES = 5000 };

static void take_pieces(char **pieces)
{
    for (size_t i = 0; i < PIECES; i++)
        memset(pieces[i] = malloc(PIECE_BYTES), 1, PIECE_BYTES);
}

/* What stays lies between what goes. */
static void give_most_back(char **pieces)
{
    for (size_t i = 0; i < PIECES; i++)
        if (i % 50 != 49)
            free(pieces[i]);
}

static void give_rest_back(char **pieces)
{
    for (size_t i = 49; i < PIECES; i += 50)
        free(pieces[i]);
}

TEST(what_a_burst_leaves_behind_is_given_back_once)
{
    static char *pieces[PIECES];
    size_t settled = 0;
    EXPECT(!loop_heap_trim(&settled)); /* nothing to give */
    take_pieces(pieces);
    size_t during = loop_heap_resident();
    EXPECT(!loop_heap_trim(&settled)); /* it is in use */
    give_most_back(pieces);
    EXPECT(loop_heap_resident() > during / 2);
    EXPECT(loop_heap_trim(&settled));
    EXPECT(loop_heap_resident() < during / 2);
    EXPECT(!loop_heap_trim(&settled));
    give_rest_back(pieces);
}

TEST(a_look_in_the_middle_of_a_burst_does_not_hide_its_end)
{
    static char *early[PIECES], *late[PIECES];
    size_t settled = 0;
    take_pieces(early);
    take_pieces(late);
    size_t during = loop_heap_resident();
    give_most_back(early);
    EXPECT(loop_heap_trim(&settled)); /* `late` is still in use */
    give_most_back(late);
    EXPECT(loop_heap_resident() > during / 3);
    EXPECT(loop_heap_trim(&settled));
    EXPECT(loop_heap_resident() < during / 3);
    give_rest_back(early);
    give_rest_back(late);
}
#endif

TEST(the_heap_is_let_go_of_with_its_loop)
{
    struct loop *loop = start();
    struct loop_heap *heap = loop_heap_start(loop);
    loop_once(loop, 0);
    loop_heap_stop(heap);
    loop_heap_stop(NULL);
    loop_free(loop);
}
