/* supervisor.c - the process between process 1 and a command.
 *
 *     porter (1) ── supervisor (subreaper) ── command ── ...
 *                        └── every orphan of that command
 *
 * Why it exists: several commands run at once, and each may fork twice, change its session and
 * detach. If such orphans went to process 1 nobody could say whose they are. A supervisor is a
 * subreaper, so the kernel itself files every orphan under the right command, and "the command is
 * over" has an exact meaning: the supervisor has nothing left to wait for.
 *
 * What it costs: nothing per command, because supervisors are used again. One is started ahead; it
 * loads the seccomp filter once (compiling it is the dearest part of a start), waits for an order,
 * starts the program with vfork, waits until the whole tree is gone, reports, and waits for the
 * next order. An order brings the three descriptors and the exec message.
 *
 * It can be killed or stopped only by a command that runs as root in the sandbox. Then its orphans
 * fall to process 1, which has no other children but supervisors and file workers, and so knows
 * them for what they are and ends them. When process 1 goes away the socket ends, and the
 * supervisor ends its tree and itself. Signals stay blocked but while it waits; only SIGCHLD gets
 * through. */
#include "porter.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/err.h"
#include "base/fd.h"
#include "base/mem.h"

struct supervisor {
    const struct porter_world *world;
    int ctl, null;
    bool root_kind;
    pid_t command; /* 0: none or reaped */
    bool killing;  /* everything must go */
    bool detached;
    bool abandoned; /* process 1 is gone */
    struct report report;
};

static void on_child(int number)
{
    (void)number;
}

static void send_report(struct supervisor *supervisor)
{
    if (send(supervisor->ctl, &supervisor->report, sizeof supervisor->report, MSG_NOSIGNAL) < 0)
        supervisor->abandoned = true;
}

/* ---------------------------------------------------------------- the tree */
static void add_usage(struct report *report, const struct rusage *usage)
{
    report->user_us +=
        (uint64_t)usage->ru_utime.tv_sec * 1000000u + (uint64_t)usage->ru_utime.tv_usec;
    report->system_us +=
        (uint64_t)usage->ru_stime.tv_sec * 1000000u + (uint64_t)usage->ru_stime.tv_usec;
    uint64_t peak = (uint64_t)usage->ru_maxrss * 1024u;
    if (peak > report->rss_bytes_peak)
        report->rss_bytes_peak = peak;
}

/* Returns false when there is nothing left to wait for. */
static bool reap(struct supervisor *supervisor)
{
    for (;;) {
        int status;
        struct rusage usage;
        pid_t pid = wait4(-1, &status, WNOHANG | __WALL, &usage);
        if (pid == 0)
            return true;
        if (pid < 0)
            return errno != ECHILD;
        add_usage(&supervisor->report, &usage);
        if (pid != supervisor->command)
            continue;
        supervisor->command = 0;
        supervisor->report.status = status;
        supervisor->report.flags |= REPORT_EXITED;
        if (!supervisor->detached)
            supervisor->killing = true;
    }
}

static void kill_tree(struct supervisor *supervisor)
{
    /* The group at once and atomically: most commands never leave it. */
    if (supervisor->command)
        (void)kill(-supervisor->command, SIGKILL);
    if (supervisor->command)
        (void)kill(supervisor->command, SIGKILL);
    (void)kill_round(supervisor->world->proc, getpid(), NULL, 0);
}

static void take_order(struct supervisor *supervisor)
{
    struct order order;
    ssize_t size = recv(supervisor->ctl, &order, sizeof order, MSG_DONTWAIT);
    if (size < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (size != sizeof order) {
        supervisor->killing = supervisor->abandoned = true;
        return;
    }
    if (order.kind == ORDER_KILL)
        supervisor->killing = true;
    if (order.kind == ORDER_SIGNAL && supervisor->command)
        (void)kill(-supervisor->command, order.signal_number);
    if (order.kind == ORDER_TERM && supervisor->command) {
        (void)kill(-supervisor->command, SIGTERM);
        (void)kill(-supervisor->command, SIGCONT); /* a stopped process hears nothing */
    }
}

/* Waits for SIGCHLD or an order. */
static void wait_for_news(struct supervisor *supervisor, int wait_ms)
{
    sigset_t mask;
    sigfillset(&mask);
    sigdelset(&mask, SIGCHLD);
    struct pollfd poll = {.fd = supervisor->abandoned ? -1 : supervisor->ctl, .events = POLLIN};
    struct timespec wait = {.tv_sec = wait_ms / 1000, .tv_nsec = wait_ms % 1000 * 1000000l};
    if (ppoll(&poll, 1, wait_ms < 0 ? NULL : &wait, &mask) > 0)
        take_order(supervisor);
}

static void watch_tree(struct supervisor *supervisor)
{
    int wait_ms = 1;
    bool told = false;
    while (reap(supervisor)) {
        if (supervisor->killing) {
            kill_tree(supervisor);
            if (!reap(supervisor))
                break;
            wait_for_news(supervisor, wait_ms);
            wait_ms = wait_ms < 64 ? wait_ms * 2 : 100;
            continue;
        }
        if (supervisor->report.flags & REPORT_EXITED && !told) {
            told = true; /* detached: the command's own end, its children live on */
            send_report(supervisor);
        }
        wait_for_news(supervisor, -1);
    }
    supervisor->report.flags |= REPORT_GONE;
    send_report(supervisor);
}

/* ---------------------------------------------------------------- starting */
static void failed(struct supervisor *supervisor, int error, bool not_found, const char *format,
                   ...) __attribute__((format(printf, 4, 5)));
static void failed(struct supervisor *supervisor, int error, bool not_found, const char *format,
                   ...)
{
    va_list args;
    va_start(args, format);
    supervisor->report.flags |= REPORT_FAILED;
    supervisor->report.error = error;
    supervisor->report.not_found = not_found;
    vsnprintf(supervisor->report.text, sizeof supervisor->report.text, format, args);
    va_end(args);
}

/* Everything the program's start needs, in one piece of memory that is zeroed afterwards. */
struct start {
    char *text;
    size_t text_size, text_used;
    char **argv; /* argv[-1] is room for a shell */
    char **env;
    size_t env_count;
};

static char *keep(struct start *start, struct str a, struct str b, struct str c)
{
    char *at = start->text + start->text_used;
    memcpy(at, a.data, a.size);
    memcpy(at + a.size, b.data, b.size);
    if (c.size)
        memcpy(at + a.size + b.size, c.data, c.size);
    size_t size = a.size + b.size + c.size;
    at[size] = '\0';
    start->text_used += size + 1;
    return at;
}

static void set_env(struct start *start, char *entry)
{
    size_t name_size = (size_t)(strchr(entry, '=') - entry) + 1;
    for (size_t i = 0; i < start->env_count; i++) {
        if (strncmp(start->env[i], entry, name_size) != 0)
            continue;
        start->env[i] = entry;
        return;
    }
    start->env[start->env_count++] = entry;
}

static void build(struct start *start, const struct porter_options *options,
                  const struct wire_exec *exec, const struct user *user, struct str user_spec)
{
    size_t args = exec->args.count + 4;
    size_t envs = options->env_count + exec->env.count + 4;
    start->text_size = exec->args.bytes.size + exec->env.bytes.size + 4096 + args + envs;
    start->text = mem_alloc(start->text_size);
    char **argv = mem_zero((args + 1) * sizeof *argv);
    start->argv = argv + 1;
    start->env = mem_zero((envs + 1) * sizeof *start->env);

    struct wire_list list = exec->args;
    struct str item;
    size_t count = 0;
    if (exec->flags & WIRE_EXEC_SHELL) {
        start->argv[count++] = keep(start, STR("/bin/sh"), STR(""), STR_NONE);
        start->argv[count++] = keep(start, STR("-c"), STR(""), STR_NONE);
    }
    while (wire_list_next(&list, &item))
        start->argv[count++] = keep(start, item, STR(""), STR_NONE);

    bool only = exec->flags & WIRE_EXEC_ENV_ONLY;
    for (size_t i = 0; !only && i < options->env_count; i++)
        start->env[start->env_count++] = options->env[i];
    if (!only && user_spec.size && user->name[0]) {
        if (user->home[0])
            set_env(start, keep(start, STR("HOME="), str_of(user->home), STR_NONE));
        set_env(start, keep(start, STR("USER="), str_of(user->name), STR_NONE));
        set_env(start, keep(start, STR("LOGNAME="), str_of(user->name), STR_NONE));
    }
    list = exec->env;
    while (wire_list_next(&list, &item))
        if (str_find_byte(item, '=') > 0)
            set_env(start, keep(start, item, STR(""), STR_NONE));
}

static void unbuild(struct start *start)
{
    explicit_bzero(start->text, start->text_size);
    free(start->text);
    free(start->argv - 1);
    free(start->env);
}

static void run(struct supervisor *supervisor, struct str message)
{
    const struct porter_options *options = &supervisor->world->options;
    struct err err = {0};
    struct wire_exec exec;
    struct user user;
    if (wire_exec_read(message, &exec, &err) < 0 ||
        user_find(AT_FDCWD, exec.user, options->uid, options->gid, &user, &err) < 0) {
        failed(supervisor, EINVAL, false, "%s", err.text);
        return;
    }
    if (user.uid == 0 && !supervisor->root_kind) {
        failed(supervisor, EPERM, false, "user '%.*s' is root by another name; ask for root",
               STR_ARGS(exec.user));
        return;
    }
    supervisor->detached = exec.flags & WIRE_EXEC_DETACHED;
    struct start start = {0};
    build(&start, options, &exec, &user, exec.user);
    OWN(mem) char *cwd = exec.cwd.size ? str_dup(exec.cwd) : mem_dup(options->cwd);
    struct launch launch = {.world = supervisor->world,
                            .user = &user,
                            .argv = start.argv,
                            .env = start.env,
                            .cwd = cwd,
                            .pty = exec.flags & WIRE_EXEC_PTY};
    if (launch.pty)
        (void)fchown(0, user.uid, user.gid); /* so that the user may open his terminal by name */
    pid_t pid = launch_run(&launch);
    if (!launch.error) {
        supervisor->command = pid;
    } else if (launch.stage) {
        bool is_cwd = strcmp(launch.stage, "working directory") == 0;
        failed(supervisor, launch.error, false, "%s%s%s%s: %s", launch.stage, is_cwd ? " '" : "",
               is_cwd ? cwd : "", is_cwd ? "'" : "", strerror(launch.error));
    } else {
        bool missing = launch.error == ENOENT || launch.error == ENOTDIR;
        failed(supervisor, launch.error, missing, "program '%.200s': %s", start.argv[0],
               missing ? "not found" : strerror(launch.error));
    }
    unbuild(&start);
}

/* ---------------------------------------------------------------- life */
static void load_filter(const struct sock_fprog *filter)
{
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
        _exit(112);
    if (!filter->len)
        return;
    if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, filter) < 0)
        _exit(113);
}

/* The message, in `packet` or mapped from the fourth descriptor. */
static void obey(struct supervisor *supervisor, const char *packet, size_t size, int *fds,
                 size_t fd_count)
{
    struct order order;
    if (size < sizeof order || fd_count < 3)
        _exit(114);
    memcpy(&order, packet, sizeof order);
    supervisor->report = (struct report){0};
    supervisor->killing = supervisor->detached = false;
    for (int i = 0; i < 3; i++)
        if (dup2(fds[i], i) < 0) /* clears close-on-exec: the numbers differ */
            _exit(115);
    for (int i = 0; i < 3; i++)
        fd_close(&fds[i]);

    if (order.in_memory) {
        void *memory = fd_count == 4
                           ? mmap(NULL, order.size, PROT_READ | PROT_WRITE, MAP_SHARED, fds[3], 0)
                           : MAP_FAILED;
        if (memory == MAP_FAILED)
            _exit(116);
        run(supervisor, str_make(memory, order.size));
        explicit_bzero(memory, order.size);
        (void)munmap(memory, order.size);
        fd_close(&fds[3]);
    } else {
        run(supervisor, str_make(packet + sizeof order, size - sizeof order));
    }
    for (int i = 0; i < 3; i++)
        (void)dup3(supervisor->null, i, O_CLOEXEC);
    watch_tree(supervisor);
}

_Noreturn void supervisor_main(const struct porter_world *world, int ctl, bool root_kind)
{
    int fds[] = {world->null, world->null, world->null, ctl, world->null, world->proc};
    child_descriptors(fds, world->proc < 0 ? 5 : 6);
    struct porter_world own = *world;
    own.null = 4;
    own.proc = world->proc < 0 ? -1 : 5;
    struct supervisor supervisor = {.world = &own, .ctl = 3, .null = 4, .root_kind = root_kind};

    (void)prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
    (void)prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
    (void)prctl(PR_SET_NAME, "porter: job", 0, 0, 0);
    struct sigaction action = {.sa_handler = on_child};
    (void)sigaction(SIGCHLD, &action, NULL);
    if (launch_bound(root_kind ? world->options.root_caps : 0))
        _exit(117);
    bool own_filter = root_kind && world->options.root_filter.len;
    load_filter(own_filter ? &world->options.root_filter : &world->options.filter);

    static char packet[sizeof(struct order) + ORDER_INLINE_MAX];
    while (!supervisor.abandoned) {
        int received[FD_PASS_MAX];
        size_t count = 4;
        ssize_t size = fd_receive(supervisor.ctl, packet, sizeof packet, received, &count);
        if (size < 0 && errno == EINTR)
            continue;
        if (size <= 0)
            break;
        if (packet[0] != ORDER_RUN)
            continue; /* meant for the command that is over */
        obey(&supervisor, packet, (size_t)size, received, count);
        explicit_bzero(packet, (size_t)size);
    }
    _exit(0);
}
