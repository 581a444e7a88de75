/* probe_load.c - programs that behave badly: they eat memory, processes, disk, output, or refuse to
 * go.
 *
 * These have no verdict of their own, except where said: the test looks at what is left of the
 * machine and of the neighbours. Each has a bound, so that running one on a bare machine by mistake
 * is survivable. */
#include "probe.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define LIFE_S 120 /* whatever hides or lingers ends by itself after this */

static unsigned long number_of(int argc, char **argv, int index, unsigned long fallback)
{
    return argc > index ? strtoul(argv[index], NULL, 0) : fallback;
}

/* Touches MiB after MiB and says each on stderr. */
static int run_eat(int argc, char **argv)
{
    unsigned long count = number_of(argc, argv, 1, 64);
    for (unsigned long i = 0; i < count; i++) {
        char *piece =
            mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (piece == MAP_FAILED)
            return refused("mmap after %lu MiB: %s", i, strerror(errno));
        memset(piece, 0x55, 1 << 20);
    }
    return escaped("%lu MiB were to be had", count);
}

/* Forks children that wait, until fork fails or COUNT are there. */
static int run_fork_many(int argc, char **argv)
{
    unsigned long count = number_of(argc, argv, 1, 4096), made = 0;
    int number = 0;
    pid_t *children = calloc(count, sizeof *children);
    for (; children && made < count; made++) {
        children[made] = fork();
        if (children[made] == 0) {
            alarm(LIFE_S);
            for (;;)
                pause();
        }
        if (children[made] < 0) {
            number = errno;
            break;
        }
    }
    for (unsigned long i = 0; i < made; i++)
        kill(children[i], SIGKILL);
    while (wait(NULL) > 0)
        ;
    if (number)
        return refused("fork after %lu: %s", made, strerror(number));
    return escaped("%lu processes were to be had", made);
}

/* The real thing: every child forks again, for ever. Only behind a limit. */
static int run_fork_bomb(int argc, char **argv)
{
    (void)argc, (void)argv;
    signal(SIGTERM, SIG_IGN);
    alarm(LIFE_S);
    while (fork() >= 0 || usleep(1000) <= 0)
        ;
    return 0;
}

/* Writes zeroes to PATH until it is refused or MiB are written. */
static int run_fill(int argc, char **argv)
{
    if (argc < 3)
        return unclear("usage: fill PATH MIB");
    static char block[1 << 20];
    unsigned long count = number_of(argc, argv, 2, 0);
    int fd = open(argv[1], O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0)
        return refused("%s: %s", argv[1], strerror(errno));
    for (unsigned long i = 0; i < count; i++)
        if (write(fd, block, sizeof block) < 0)
            return refused("%s after %lu MiB: %s", argv[1], i, strerror(errno));
    return escaped("%lu MiB were to be had", count);
}

/* Makes empty files in DIR until it is refused or COUNT are there. */
static int run_inodes(int argc, char **argv)
{
    if (argc < 3)
        return unclear("usage: inodes DIR COUNT");
    unsigned long count = number_of(argc, argv, 2, 0);
    for (unsigned long i = 0; i < count; i++) {
        char path[512];
        snprintf(path, sizeof path, "%s/i%lu", argv[1], i);
        int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        if (fd < 0)
            return refused("file %lu: %s", i, strerror(errno));
        close(fd);
    }
    return escaped("%lu files were to be had", count);
}

static int run_open_many(int argc, char **argv)
{
    unsigned long count = number_of(argc, argv, 1, 1 << 20);
    for (unsigned long i = 0; i < count; i++)
        if (open("/dev/null", O_RDONLY) < 0)
            return refused("open after %lu: %s", i, strerror(errno));
    return escaped("%lu descriptors were to be had", count);
}

/* MIB of output as fast as it is taken. */
static int run_flood(int argc, char **argv)
{
    static char block[1 << 20];
    unsigned long count = number_of(argc, argv, 1, 1);
    memset(block, 'x', sizeof block);
    for (unsigned long i = 0; i < count; i++)
        for (size_t done = 0; done < sizeof block;) {
            ssize_t size = write(1, block + done, sizeof block - done);
            if (size < 0)
                return 1;
            done += (size_t)size;
        }
    return 0;
}

/* Leaves one process behind in every way known, each with MARK in its command line, then waits for
 * SECONDS: double fork and new session; stopped; ignoring SIGTERM; grandchild of a subreaper. */
static void linger(const char *self, const char *mark, const char *how)
{
    execl(self, self, "linger", mark, how, (char *)NULL);
    _exit(127);
}

static int run_linger(int argc, char **argv)
{
    alarm(LIFE_S);
    signal(SIGHUP, SIG_IGN);
    signal(SIGTERM, SIG_IGN);
    signal(SIGINT, SIG_IGN);
    if (argc > 2 && strcmp(argv[2], "stop") == 0)
        raise(SIGSTOP);
    while (pause() < 0)
        ;
    return 0;
}

static int run_daemonise(int argc, char **argv)
{
    if (argc < 3)
        return unclear("usage: daemonise MARK SECONDS");
    static const char *const ways[] = {"session", "stop", "ignore", "reaper"};
    char self[512];
    ssize_t size = readlink("/proc/self/exe", self, sizeof self - 1);
    if (size < 0)
        return unclear("/proc/self/exe: %s", strerror(errno));
    self[size] = 0;
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        if (fork() != 0)
            continue;
        if (strcmp(ways[i], "reaper") == 0)
            prctl(PR_SET_CHILD_SUBREAPER, 1);
        else
            setsid();
        if (fork() == 0)
            linger(self, argv[1], ways[i]);
        if (strcmp(ways[i], "reaper") == 0)
            linger(self, argv[1], "parent");
        _exit(0);
    }
    signal(SIGTERM, SIG_IGN);
    printf("ready\n");
    fflush(stdout);
    unsigned left = (unsigned)number_of(argc, argv, 2, 0);
    while (left)
        left = sleep(left);
    return 0;
}

/* Flips NAME between a directory and a link to TARGET, for ever. */
static int run_flip(int argc, char **argv)
{
    if (argc < 3)
        return unclear("usage: flip NAME TARGET");
    char spare[512];
    snprintf(spare, sizeof spare, "%s.spare", argv[1]);
    alarm(LIFE_S);
    for (;;) {
        (void)mkdir(spare, 0755);
        (void)rename(spare, argv[1]);
        (void)symlink(argv[2], spare);
        (void)rmdir(argv[1]);
        (void)rename(spare, argv[1]);
        (void)unlink(argv[1]);
    }
}

const struct probe probes_load[] = {
    {"eat", "MIB of memory", run_eat},
    {"fork-many", "COUNT processes", run_fork_many},
    {"fork-bomb", "processes that make processes, until limited", run_fork_bomb},
    {"fill", "PATH MIB of disk", run_fill},
    {"inodes", "DIR COUNT files", run_inodes},
    {"open-many", "COUNT descriptors", run_open_many},
    {"flood", "MIB of output", run_flood},
    {"linger", "MARK HOW (used by daemonise)", run_linger},
    {"daemonise", "MARK SECONDS leaves processes behind", run_daemonise},
    {"flip", "NAME TARGET directory and link in turn", run_flip},
    {0},
};
