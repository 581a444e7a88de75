/* children.c - processes by pidfd and signals by signalfd, as watches like any other. */
#include "loop/loop.h"

#include <errno.h>
#include <signal.h>
#include <sys/pidfd.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/err.h"
#include "base/fd.h"

/* waitid() speaks in pieces; put them together the way waitpid() reports them. */
static int wait_status(const siginfo_t *info)
{
    switch (info->si_code) {
    case CLD_EXITED:
        return W_EXITCODE(info->si_status & 0xff, 0);
    case CLD_DUMPED:
        return W_EXITCODE(0, info->si_status) | WCOREFLAG;
    default:
        return W_EXITCODE(0, info->si_status);
    }
}

static void child_ready(struct loop_watch *watch, uint32_t events)
{
    (void)events;
    struct loop_child *child = watch->context;
    siginfo_t info = {0};
    int status = 0;
    if (waitid(P_PIDFD, (id_t)child->pidfd, &info, WEXITED | WNOHANG) == 0) {
        if (info.si_pid == 0)
            return; /* not yet */
        status = wait_status(&info);
    } else if (errno == EINTR) {
        return;
    } else {
        /* Somebody else waited for it: the end is certain, how it came is not. */
        status = W_EXITCODE(255, 0);
    }
    loop_child_stop(child);
    child->on_exit(child, status);
}

int loop_child_start(struct loop *loop, struct loop_child *child, int pid,
                     void (*on_exit)(struct loop_child *, int), void *context, struct err *err)
{
    *child = (struct loop_child){.on_exit = on_exit, .context = context};
    child->pidfd = pidfd_open(pid, 0);
    if (child->pidfd < 0)
        return err_errno(err, "watching process %d", pid);
    if (loop_watch_start(loop, &child->watch, child->pidfd, LOOP_READ, child_ready, child, err) <
        0) {
        fd_close(&child->pidfd);
        return -1;
    }
    return 0;
}

void loop_child_stop(struct loop_child *child)
{
    if (!child->on_exit)
        return; /* never started */
    loop_watch_stop(&child->watch);
    fd_close(&child->pidfd);
}

int loop_child_signal(struct loop_child *child, int signal_number)
{
    if (!child->on_exit || child->pidfd < 0) {
        errno = ESRCH;
        return -1;
    }
    return pidfd_send_signal(child->pidfd, signal_number, NULL, 0);
}

static void signal_ready(struct loop_watch *watch, uint32_t events)
{
    (void)events;
    struct loop_signal *signal = watch->context;
    struct signalfd_siginfo info;
    /* One at a time: the callback may stop the watch, and level-triggering brings us back. */
    if (read(watch->fd, &info, sizeof info) == sizeof info)
        signal->on_signal(signal, (int)info.ssi_signo);
}

int loop_signal_start(struct loop *loop, struct loop_signal *signal, const int *numbers,
                      size_t count, void (*on_signal)(struct loop_signal *, int), void *context,
                      struct err *err)
{
    *signal = (struct loop_signal){.on_signal = on_signal, .context = context};
    sigset_t set;
    sigemptyset(&set);
    for (size_t i = 0; i < count; i++)
        sigaddset(&set, numbers[i]);
    errno = pthread_sigmask(SIG_BLOCK, &set, NULL);
    if (errno)
        return err_errno(err, "blocking signals");
    int fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (fd < 0)
        return err_errno(err, "watching signals");
    if (loop_watch_start(loop, &signal->watch, fd, LOOP_READ, signal_ready, signal, err) < 0) {
        fd_close(&fd);
        signal->on_signal = NULL;
        return -1;
    }
    return 0;
}

void loop_signal_stop(struct loop_signal *signal)
{
    if (!signal->on_signal)
        return;
    loop_watch_stop(&signal->watch);
    fd_close(&signal->watch.fd);
    signal->on_signal = NULL;
}
