/* runner.c - runs every TEST of one executable, each in a process of its own.
 *
 * usage: test_x [--list] [NAME-PART...]. Prints one line per test and closes with
 * "N passed, N failed, N skipped". Exits 1 when one failed. */
#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "test.h"

enum { EXIT_FAILED = 1, EXIT_SKIPPED = 77 };

static struct test *first, **last = &first;
static bool failed;

void test_register(struct test *test)
{
    *last = test;
    last = &test->next;
}

void test_fail(const char *file, int line, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fprintf(stderr, "  %s:%d: ", file, line);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    failed = true;
}

void test_skip(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fputs("  skipped: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    const char *must = getenv("MUST_WORK");
    exit(must && strcmp(must, "1") == 0 ? EXIT_FAILED : EXIT_SKIPPED);
}

static bool wanted(const struct test *test, int argc, char **argv)
{
    if (argc < 2)
        return true;
    for (int i = 1; i < argc; i++)
        if (strstr(test->name, argv[i]))
            return true;
    return false;
}

/* The test leads a process group, so that what it leaves behind goes with it. */
static int run(const struct test *test, char *how, size_t size)
{
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        setpgid(0, 0);
        test->run();
        exit(failed ? EXIT_FAILED : 0);
    }
    if (pid < 0) {
        snprintf(how, size, "no process for it: %s", strerror(errno));
        return EXIT_FAILED;
    }
    setpgid(pid, pid);
    uint64_t deadline = clock_mono_ms() + test->seconds_max * 1000u;
    const char *slow = getenv("TEST_SLOWER"); /* sanitizers stretch the deadline */
    if (slow && atoi(slow) > 1)
        deadline += test->seconds_max * 1000u * (unsigned)(atoi(slow) - 1);
    int status = 0;
    bool hung = false;
    for (useconds_t nap = 200; waitpid(pid, &status, WNOHANG) == 0;
         nap = nap < 20000 ? nap * 2 : nap) {
        if (clock_mono_ms() > deadline && !hung) {
            hung = true;
            kill(-pid, SIGKILL);
        }
        usleep(nap);
    }
    kill(-pid, SIGKILL);
    if (hung)
        snprintf(how, size, "no end within %u s", test->seconds_max);
    else if (WIFSIGNALED(status))
        snprintf(how, size, "ended by signal %d (%s)", WTERMSIG(status),
                 strsignal(WTERMSIG(status)));
    else
        how[0] = '\0';
    if (hung || WIFSIGNALED(status))
        return EXIT_FAILED;
    return WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == EXIT_SKIPPED ? WEXITSTATUS(status)
                                                                           : EXIT_FAILED;
}

int main(int argc, char **argv)
{
    unsigned passed = 0, broken = 0, skipped = 0;
    signal(SIGPIPE, SIG_IGN);
    if (argc == 2 && strcmp(argv[1], "--list") == 0) {
        for (const struct test *test = first; test; test = test->next)
            puts(test->name);
        return 0;
    }
    for (const struct test *test = first; test; test = test->next) {
        if (!wanted(test, argc, argv))
            continue;
        char how[128];
        uint64_t start = clock_mono_ms();
        int code = run(test, how, sizeof how);
        unsigned ms = (unsigned)(clock_mono_ms() - start);
        passed += code == 0;
        skipped += code == EXIT_SKIPPED;
        broken += code == EXIT_FAILED;
        printf("%s %s (%u ms)%s%s\n",
               code == 0              ? "ok  "
               : code == EXIT_SKIPPED ? "skip"
                                      : "FAIL",
               test->name, ms, how[0] ? ": " : "", how);
        if (code == EXIT_FAILED)
            printf("  at %s:%d\n", test->file, test->line);
    }
    printf("%u passed, %u failed, %u skipped\n", passed, broken, skipped);
    return broken != 0;
}
