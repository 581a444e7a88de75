/* bench_spawn.c - starts a command line many times and prints how long each took until it was
 * reaped.
 *
 *     bench_spawn COUNT PARALLEL -- COMMAND...    {"us": [...], "wall_us": N, "failed": N}
 *     bench_spawn hold COUNT -- COMMAND...        {"kib_each": N}: memory while COUNT of them live
 *
 * It is small and uses vfork, so that what it adds to what it measures is as little as the system
 * allows; Postern's own side of the comparison is bench_sandbox. "{}" in an argument becomes a
 * number of its own (container names). In `hold` each command writes one byte when it is up and
 * ends when its stdin does. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define ARGUMENTS_MAX 64
#define PARALLEL_MAX 64

static uint64_t now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

/* Copies the command line with every "{}" replaced by `number`. The copies live as long as the
 * program. */
static void fill(char *const *from, char **to, unsigned long number)
{
    size_t i = 0;
    for (; from[i] && i < ARGUMENTS_MAX - 1; i++) {
        const char *hole = strstr(from[i], "{}");
        to[i] = from[i];
        if (hole && asprintf(&to[i], "%.*s%d-%lu%s", (int)(hole - from[i]), from[i], (int)getpid(),
                             number, hole + 2) < 0)
            abort();
    }
    to[i] = NULL;
}

static pid_t start(char *const *argv, int in, int out)
{
    pid_t child = vfork();
    if (child == 0) {
        dup2(in, 0);
        dup2(out, 1);
        execvp(argv[0], argv);
        _exit(127);
    }
    return child;
}

static int run(unsigned long count, unsigned long parallel, char *const *command)
{
    struct {
        pid_t pid;
        uint64_t since;
    } slots[PARALLEL_MAX] = {0};
    uint64_t *samples = calloc(count, sizeof *samples);
    unsigned long started = 0, ended = 0, failed = 0;
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (!samples || null < 0)
        return 1;

    uint64_t begin = now_us();
    while (ended < count) {
        for (unsigned long i = 0; i < parallel && started < count; i++) {
            if (slots[i].pid)
                continue;
            char *argv[ARGUMENTS_MAX];
            fill(command, argv, started++);
            slots[i].since = now_us();
            slots[i].pid = start(argv, null, null);
            if (slots[i].pid < 0)
                return 1;
        }
        int status = 0;
        pid_t pid = wait(&status);
        if (pid < 0)
            return 1;
        uint64_t now = now_us();
        for (unsigned long i = 0; i < parallel; i++)
            if (slots[i].pid == pid) {
                samples[ended++] = now - slots[i].since;
                failed += !(WIFEXITED(status) && WEXITSTATUS(status) == 0);
                slots[i].pid = 0;
            }
    }
    uint64_t wall = now_us() - begin;
    struct rusage used;
    getrusage(RUSAGE_CHILDREN, &used);
    printf("{\"wall_us\": %llu, \"failed\": %lu, \"cpu_us\": %llu, \"us\": [",
           (unsigned long long)wall, failed,
           (unsigned long long)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) * 1000000 +
               (unsigned long long)(used.ru_utime.tv_usec + used.ru_stime.tv_usec));
    for (unsigned long i = 0; i < count; i++)
        printf("%s%llu", i ? ", " : "", (unsigned long long)samples[i]);
    printf("]}\n");
    return 0;
}

/* What the machine could still give away, in KiB: kernel memory counts as used, caches do not. */
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

static int hold(unsigned long count, char *const *command)
{
    int in[2], out[2];
    if (pipe2(in, O_CLOEXEC) < 0 || pipe2(out, O_CLOEXEC) < 0)
        return 1;
    pid_t *pids = calloc(count, sizeof *pids);
    long before = available_kib();
    unsigned long ready = 0;
    for (unsigned long i = 0; pids && i < count; i++) {
        char *argv[ARGUMENTS_MAX];
        fill(command, argv, i);
        pids[i] = start(argv, in[0], out[1]);
        if (pids[i] < 0)
            return 1;
        /* Never more than a few on their way: the machine is to hold them, not to be stormed. */
        char letters[64];
        while (i + 1 - ready >= 8) {
            ssize_t size = read(out[0], letters, sizeof letters);
            if (size <= 0)
                return 1;
            ready += (unsigned long)size;
        }
    }
    while (ready < count) {
        char letters[64];
        ssize_t size = read(out[0], letters, sizeof letters);
        if (size <= 0)
            return 1;
        ready += (unsigned long)size;
    }
    (void)usleep(1000000);
    long during = available_kib();
    close(in[1]);
    close(in[0]);
    for (unsigned long i = 0; i < count; i++)
        waitpid(pids[i], NULL, 0);
    (void)usleep(1000000);
    /* The mean of the way up and the way down: what others do meanwhile cancels out. */
    printf("{\"count\": %lu, \"kib_each\": %.1f}\n", count,
           ((double)(before + available_kib()) / 2 - (double)during) / (double)count);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc > 4 && strcmp(argv[1], "hold") == 0 && strcmp(argv[3], "--") == 0)
        return hold(strtoul(argv[2], NULL, 10), argv + 4);
    unsigned long count = argc > 4 ? strtoul(argv[1], NULL, 10) : 0;
    unsigned long parallel = argc > 4 ? strtoul(argv[2], NULL, 10) : 0;
    if (count == 0 || parallel == 0 || parallel > PARALLEL_MAX || strcmp(argv[3], "--") != 0) {
        fprintf(stderr, "usage: bench_spawn COUNT PARALLEL -- COMMAND... | bench_spawn hold COUNT "
                        "-- COMMAND...\n");
        return 2;
    }
    return run(count, parallel, argv + 4);
}
