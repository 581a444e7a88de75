/* shell.c - one command: a fresh shell in a session of its own, its output clipped, its time
 * limited.
 *
 * The command ends when its shell does; what it left in the background may live on, but is not
 * waited for. At the timeout the whole process group gets TERM and, shortly after, KILL. Output is
 * read to its end whatever its size; only head and tail are kept. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "mini.h"

#define GRACE_MS 500
#define DRAIN_MS 100 /* after the shell is gone, for what is still in the pipe */
#define POLL_MS 20

static volatile sig_atomic_t running_group;

void mini_shell_kill(void)
{
    pid_t group = (pid_t)running_group;
    if (group && kill(-group, SIGKILL) < 0)
        (void)kill(group, SIGKILL); /* it does not lead a group yet */
}

/* ---------------------------------------------------------------- starting */

_Noreturn static void become_shell(const struct mini_command *command, int output,
                                   const sigset_t *mask)
{
    (void)setsid();
    (void)signal(SIGPIPE, SIG_DFL);
    (void)signal(SIGTERM, SIG_DFL);
    (void)signal(SIGINT, SIG_DFL);
    (void)sigprocmask(SIG_SETMASK, mask, NULL);
    int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (nothing >= 0)
        (void)dup2(nothing, 0);
    else
        close(0);
    if (dup2(output, 1) < 0 || dup2(output, 2) < 0)
        _exit(126);
    (void)syscall(SYS_close_range, 3, ~0u, 0); /* what we inherited is not theirs either */
    execl("/bin/bash", "bash", "-c", command->text, NULL);
    execl("/usr/bin/bash", "bash", "-c", command->text, NULL);
    execl("/bin/sh", "sh", "-c", command->text, NULL);
    dprintf(2, "no shell: %s\n", strerror(errno));
    _exit(127);
}

static pid_t start(const struct mini_command *command, int *output, struct err *err)
{
    int pipe_fds[2];
    if (pipe2(pipe_fds, O_CLOEXEC) < 0)
        return err_errno(err, "pipe");
    (void)fcntl(pipe_fds[0], F_SETFL, O_NONBLOCK);
    sigset_t all, mask;
    sigfillset(&all);
    (void)sigprocmask(SIG_SETMASK, &all, &mask); /* a signal that ends us finds who is started */
    pid_t child = fork();
    if (child == 0)
        become_shell(command, pipe_fds[1], &mask);
    running_group = child > 0 ? (sig_atomic_t)child : 0;
    (void)sigprocmask(SIG_SETMASK, &mask, NULL);
    close(pipe_fds[1]);
    if (child < 0) {
        (void)err_errno(err, "fork");
        close(pipe_fds[0]);
        return -1;
    }
    *output = pipe_fds[0];
    return child;
}

/* ---------------------------------------------------------------- running */

/* Reads what is there. False: the pipe is closed. */
static bool take_output(int fd, struct chat_clip *clip)
{
    char bytes[16384];
    for (;;) {
        ssize_t got = read(fd, bytes, sizeof bytes);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return true;
        if (got == 0)
            return false;
        chat_clip_add(clip, str_make(bytes, (size_t)got));
    }
}

static int exit_code(int status)
{
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

struct life {
    uint64_t end_ms;  /* when TERM is due */
    uint64_t kill_ms; /* when KILL is due; NEVER: not yet */
    bool timed_out;
};

static void enforce(struct life *life, pid_t group)
{
    uint64_t now = clock_mono_ms();
    if (!life->timed_out && now >= life->end_ms) {
        life->timed_out = true;
        life->kill_ms = now + GRACE_MS;
        (void)kill(-group, SIGTERM);
        (void)kill(-group, SIGCONT); /* a stopped process takes no TERM */
    } else if (life->timed_out && now >= life->kill_ms) {
        life->kill_ms = NEVER;
        (void)kill(-group, SIGKILL);
    }
}

/* How long to sleep: until the next duty, or a moment where the kernel cannot tell us of the
 * child's end. */
static int nap_ms(const struct life *life, bool has_pidfd)
{
    if (!has_pidfd)
        return POLL_MS;
    uint64_t now = clock_mono_ms();
    uint64_t due = life->timed_out ? life->kill_ms : life->end_ms;
    if (due == NEVER || due > now + 1000)
        return 1000;
    return due > now ? (int)(due - now) : 0;
}

/* Waits for the shell, reading meanwhile. Returns its status. */
static int attend(pid_t child, int output, struct life *life, struct chat_clip *clip)
{
    bool open = true;
    int status = 0;
    OWN(fd) int pidfd = (int)syscall(SYS_pidfd_open, child, 0);
    for (;;) {
        struct pollfd entries[] = {{.fd = open ? output : -1, .events = POLLIN},
                                   {.fd = pidfd, .events = POLLIN}};
        (void)poll(entries, 2, nap_ms(life, pidfd >= 0));
        if (open)
            open = take_output(output, clip);
        pid_t ended = waitpid(child, &status, WNOHANG);
        if (ended == child || (ended < 0 && errno != EINTR))
            break;
        enforce(life, child);
    }
    if (life->timed_out)
        (void)kill(-child, SIGKILL); /* whoever ignored TERM while the shell obeyed */
    uint64_t until = clock_mono_ms() + DRAIN_MS;
    while (open && clock_mono_ms() < until) {
        struct pollfd entry = {.fd = output, .events = POLLIN};
        if (poll(&entry, 1, 0) <= 0)
            break; /* held open by something in the background, and silent */
        open = take_output(output, clip);
    }
    return status;
}

int mini_shell_run(const struct mini_command *command, struct mini_outcome *out, struct err *err)
{
    OWN(fd) int output = -1;
    uint64_t begin = clock_mono_ms();
    *out = (struct mini_outcome){0};
    pid_t child = start(command, &output, err);
    if (child < 0)
        return -1;
    struct life life = {.end_ms = begin + command->timeout_ms, .kill_ms = NEVER};
    if (command->deadline_ms < life.end_ms)
        life.end_ms = command->deadline_ms;
    struct chat_clip clip = {.half_max = command->output_bytes_max / 2};
    int status = attend(child, output, &life, &clip);
    running_group = 0;
    out->timed_out = life.timed_out;
    out->code = exit_code(status);
    out->wall_ms = clock_mono_ms() - begin;
    out->output_bytes = clip.total;
    out->truncated = clip.total > clip.head.size + clip.tail.size;
    chat_clip_finish(&clip, &out->output);
    return 0;
}
