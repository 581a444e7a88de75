/* bench_sandbox.c - measures our sandboxes through their door and prints one JSON object.
 *
 *     bench_sandbox [FLAGS] create COUNT PARALLEL    cold: nothing is kept ready
 *     bench_sandbox [FLAGS] pooled COUNT PARALLEL    from a pool, full again for each sample
 *     bench_sandbox [FLAGS] exec COUNT PARALLEL      commands in one running sandbox
 *     bench_sandbox [FLAGS] idle COUNT               memory while COUNT sandboxes live
 *
 * A sample of create and pooled runs from sandbox_open() to the exit of the first command, which is
 * /bin/true; "us" is that time, "open_us" the part until the sandbox is open, "all_us" the time
 * until it is gone as well. The keeper is a real one; its start is not part of any sample. PARALLEL
 * workers share one loop. Flags: --programs DIR, --root ROOT, --isolation NAME. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "json/json.h"
#include "loop/loop.h"
#include "sandbox/sandbox.h"

#define WORKERS_MAX 64
#define REFILL_MS 30 /* pooled: pause before a sample, so that the pool is full again */

enum what { CREATE, POOLED, EXEC, IDLE };

struct bench {
    struct loop *loop;
    struct sandboxes *sandboxes;
    struct sandbox_spec spec;
    enum what what;
    size_t count, parallel, started, ended, failed, hits;
    uint64_t *us, *open_us, *all_us;
    uint64_t begin_ns, end_ns;
    struct sandbox *shared; /* EXEC */
    struct sandbox **idle;  /* IDLE */
    size_t open;
    long before_kib, during_kib, after_kib;
    char trouble[ERR_TEXT_MAX];
};

struct worker {
    struct bench *bench;
    struct sandbox *sandbox;
    struct sandbox_job *job;
    struct loop_timer timer;
    uint64_t since_ns;
    size_t sample;
};

static void worker_next(struct worker *worker);

static void note(struct bench *bench, const char *text)
{
    bench->failed++;
    if (!bench->trouble[0])
        snprintf(bench->trouble, sizeof bench->trouble, "%s", text);
}

static void finish_if_over(struct bench *bench)
{
    if (bench->ended < bench->count)
        return;
    bench->end_ns = clock_mono_ns();
    loop_stop(bench->loop);
}

/* ---------------------------------------------------------------- create, pooled, exec */
static void on_closed(void *context, const struct err *err)
{
    struct worker *worker = context;
    struct bench *bench = worker->bench;
    if (err && err->kind != ERR_NONE)
        note(bench, err->text);
    bench->all_us[worker->sample] = (clock_mono_ns() - worker->since_ns) / 1000;
    bench->ended++;
    finish_if_over(bench);
    worker_next(worker);
}

static void on_exit_(void *context, const struct sandbox_exit *exit)
{
    struct worker *worker = context;
    struct bench *bench = worker->bench;
    bench->us[worker->sample] = (clock_mono_ns() - worker->since_ns) / 1000;
    if (exit->end != SANDBOX_EXITED || exit->code != 0)
        note(bench, exit->text[0] ? exit->text : "the command failed");
    sandbox_job_close(worker->job);
    worker->job = NULL;
    if (bench->what == EXEC) {
        bench->ended++;
        finish_if_over(bench);
        worker_next(worker);
        return;
    }
    sandbox_close(worker->sandbox, on_closed, worker);
    worker->sandbox = NULL;
}

static void run_true(struct worker *worker, struct sandbox *sandbox)
{
    static const char *const argv[] = {"/bin/true", NULL};
    const struct sandbox_command command = {.argv = argv};
    static const struct sandbox_job_handlers handlers = {.on_exit = on_exit_};
    worker->job = sandbox_run(sandbox, &command, &handlers, worker);
}

static void on_open(void *context, struct sandbox *sandbox, const struct err *err)
{
    struct worker *worker = context;
    struct bench *bench = worker->bench;
    if (err && err->kind != ERR_NONE) {
        note(bench, err->text);
        bench->ended++;
        finish_if_over(bench);
        worker_next(worker);
        return;
    }
    worker->sandbox = sandbox;
    bench->open_us[worker->sample] = (clock_mono_ns() - worker->since_ns) / 1000;
    run_true(worker, sandbox);
}

static void begin_sample(struct worker *worker)
{
    struct bench *bench = worker->bench;
    worker->since_ns = clock_mono_ns();
    if (bench->what == EXEC)
        run_true(worker, bench->shared);
    else
        worker->sandbox = sandbox_open(bench->sandboxes, &bench->spec, on_open, worker);
}

static void on_refilled(struct loop_timer *timer)
{
    begin_sample(timer->context);
}

static void worker_next(struct worker *worker)
{
    struct bench *bench = worker->bench;
    if (bench->started == bench->count)
        return;
    worker->sample = bench->started++;
    /* In parallel the rate is what is asked for; alone, each sample finds a full pool. */
    if (bench->what == POOLED && bench->parallel == 1)
        loop_timer_start(bench->loop, &worker->timer, REFILL_MS, on_refilled, worker);
    else
        begin_sample(worker);
}

/* ---------------------------------------------------------------- idle */
static long available_kib(void)
{
    FILE *file = fopen("/proc/meminfo", "re");
    char line[128];
    long value = -1;
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "MemAvailable: %ld", &value) == 1)
            break;
    if (file)
        fclose(file);
    return value;
}

static void open_idle(struct bench *bench);

static void on_settled(struct loop_timer *timer)
{
    struct bench *bench = timer->context;
    bench->during_kib = available_kib();
    bench->ended = bench->count;
    finish_if_over(bench);
}

static void on_idle_open(void *context, struct sandbox *sandbox, const struct err *err)
{
    struct bench *bench = context;
    if (err && err->kind != ERR_NONE)
        note(bench, err->text);
    (void)sandbox;
    bench->open++;
    if (bench->open == bench->count) {
        static struct loop_timer timer;
        loop_timer_start(bench->loop, &timer, 1000, on_settled, bench);
        return;
    }
    open_idle(bench);
}

static void open_idle(struct bench *bench)
{
    while (bench->started < bench->count && bench->started - bench->open < 8) {
        bench->idle[bench->started] =
            sandbox_open(bench->sandboxes, &bench->spec, on_idle_open, bench);
        bench->started++;
    }
}

/* ---------------------------------------------------------------- before and after */
static void on_warm(struct loop_timer *timer)
{
    loop_stop(timer->context);
}

/* Lets the loop go on for a while: pools fill, the keeper settles. */
static void rest(struct bench *bench, uint64_t ms)
{
    struct loop_timer timer = {0};
    loop_timer_start(bench->loop, &timer, ms, on_warm, bench->loop);
    loop_run(bench->loop);
}

static void on_shared_open(void *context, struct sandbox *sandbox, const struct err *err)
{
    struct bench *bench = context;
    if (err && err->kind != ERR_NONE)
        note(bench, err->text);
    else
        bench->shared = sandbox;
    loop_stop(bench->loop);
}

static void on_stopped(void *context)
{
    loop_stop(context);
}

static void print_all(const uint64_t *values, size_t count)
{
    for (size_t i = 0; i < count; i++)
        printf("%s%llu", i ? ", " : "", (unsigned long long)values[i]);
}

static void print(const struct bench *bench, const char *name)
{
    if (bench->what == IDLE) {
        /* The mean of the way up and the way down: what others do meanwhile cancels out. */
        double each =
            ((double)(bench->before_kib + bench->after_kib) / 2 - (double)bench->during_kib) /
            (double)bench->count;
        printf("{\"what\": \"%s\", \"count\": %zu, \"failed\": %zu, \"kib_each\": %.1f, "
               "\"wall_us\": %llu, "
               "\"trouble\": \"%s\"}\n",
               name, bench->count, bench->failed, each,
               (unsigned long long)((bench->end_ns - bench->begin_ns) / 1000), bench->trouble);
        return;
    }
    printf("{\"what\": \"%s\", \"failed\": %zu, \"wall_us\": %llu, \"us\": [", name, bench->failed,
           (unsigned long long)((bench->end_ns - bench->begin_ns) / 1000));
    print_all(bench->us, bench->count);
    printf("], \"open_us\": [");
    print_all(bench->open_us, bench->what == EXEC ? 0 : bench->count);
    printf("], \"all_us\": [");
    print_all(bench->all_us, bench->what == EXEC ? 0 : bench->count);
    printf("], \"trouble\": \"%s\"}\n", bench->trouble);
}

static int usage(void)
{
    fprintf(stderr, "usage: bench_sandbox [--programs DIR] [--root ROOT] [--isolation "
                    "full|no-limits|no-seccomp] "
                    "create|pooled|exec|idle COUNT [PARALLEL]\n");
    return 2;
}

int main(int argc, char **argv)
{
    static const char *const names[] = {"create", "pooled", "exec", "idle"};
    static const char *const levels[] = {"full", "no-limits", "no-seccomp"};
    struct bench bench = {.parallel = 1, .what = -1};
    const char *programs = ".";
    int at = 1;

    for (; at + 1 < argc && argv[at][0] == '-'; at += 2) {
        if (strcmp(argv[at], "--root") == 0)
            bench.spec.root = argv[at + 1];
        else if (strcmp(argv[at], "--programs") == 0)
            programs = argv[at + 1];
        else if (strcmp(argv[at], "--isolation") == 0)
            for (int i = 0; i < 3; i++) {
                if (strcmp(argv[at + 1], levels[i]) == 0)
                    bench.spec.isolation = (enum sandbox_isolation)i;
            }
        else
            return usage();
    }
    for (int i = 0; at < argc && i < 4; i++)
        if (strcmp(argv[at], names[i]) == 0)
            bench.what = (enum what)i;
    bench.count = at + 1 < argc ? strtoul(argv[at + 1], NULL, 10) : 0;
    if (at + 2 < argc)
        bench.parallel = strtoul(argv[at + 2], NULL, 10);
    if ((int)bench.what < 0 || bench.count == 0 || bench.parallel == 0 ||
        bench.parallel > WORKERS_MAX)
        return usage();

    char home[] = "/tmp/pb-XXXXXX";
    if (!mkdtemp(home)) {
        perror("bench_sandbox: a home");
        return 1;
    }
    struct err err = {0};
    const struct sandbox_options options = {
        .home = home, .program_dir = programs, .keeper_private = true, .starting_max = WORKERS_MAX};
    struct worker workers[WORKERS_MAX] = {0};
    bench.us = calloc(bench.count, sizeof *bench.us);
    bench.open_us = calloc(bench.count, sizeof *bench.open_us);
    bench.all_us = calloc(bench.count, sizeof *bench.all_us);
    bench.idle = calloc(bench.count, sizeof *bench.idle);
    bench.loop = loop_new(&err);
    if (bench.loop)
        bench.sandboxes = sandboxes_new(bench.loop, &options, &err);
    if (!bench.sandboxes || !bench.us || !bench.open_us || !bench.all_us || !bench.idle) {
        fprintf(stderr, "bench_sandbox: %s\n", err.text);
        return 1;
    }

    /* The first sandbox starts the keeper and warms caches: it is never a sample. */
    (void)sandbox_open(bench.sandboxes, &bench.spec, on_shared_open, &bench);
    loop_run(bench.loop);
    if (!bench.shared) {
        fprintf(stderr, "bench_sandbox: %s\n", bench.trouble);
        return 1;
    }
    if (bench.what == POOLED) {
        uint32_t size = (uint32_t)(bench.parallel == 1 ? 4 : 4 * bench.parallel);
        if (sandboxes_pool(bench.sandboxes, &bench.spec, size, &err) < 0) {
            fprintf(stderr, "bench_sandbox: %s\n", err.text);
            return 1;
        }
        rest(&bench, 500);
    }
    rest(&bench, 100);

    bench.before_kib = available_kib();
    bench.begin_ns = clock_mono_ns();
    if (bench.what == IDLE)
        open_idle(&bench);
    else
        for (size_t i = 0; i < bench.parallel; i++) {
            workers[i].bench = &bench;
            worker_next(&workers[i]);
        }
    loop_run(bench.loop);

    sandboxes_close(bench.sandboxes, on_stopped, bench.loop);
    loop_run(bench.loop);
    if (bench.what == IDLE)
        rest(&bench, 1000);
    bench.after_kib = available_kib();
    print(&bench, names[bench.what]);
    loop_free(bench.loop);
    free(bench.us);
    free(bench.open_us);
    free(bench.all_us);
    free(bench.idle);
    char remove[64];
    snprintf(remove, sizeof remove, "rm -rf '%s'", home);
    return system(remove) == 0 && bench.failed == 0 ? 0 : 1;
}
