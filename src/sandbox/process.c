/* process.c - programs on the host that stand for a sandbox: ssh, podman, kubectl, ...
 *
 *     spawn -> running -> (exit seen) -> drain what is there -> on_end -> freed
 *                  \-> timeout or process_end_soon(): TERM to the group, KILL after the grace
 *
 * posix_spawn is used because the server has threads: between its vfork and exec no code of ours
 * runs. Everything of ours is close-on-exec, so the child has exactly the three descriptors given
 * to it. The end is the exit of the program itself, not the end of its pipes: a monitor process it
 * leaves behind (conmon) may hold those open for as long as it likes. */
#include "sandbox/process.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/mem.h"
#include "loop/loop.h"

enum { KILL_GRACE_MS = 2000, READ_SIZE = 16384, DRAIN_ROUNDS = 128 };

struct process {
    struct loop *loop;
    pid_t pid;
    struct loop_child child;
    struct loop_watch out_watch, words_watch;
    int out_fd, words_fd;
    struct buf out, words;
    struct loop_timer timer;
    bool timed_out, terminated, ended;
    int wait_status;
    void (*on_end)(void *context, const struct process_end *end);
    void *context;
};

static void process_free(void *argument)
{
    struct process *process = argument;
    fd_close(&process->out_fd);
    fd_close(&process->words_fd);
    buf_deinit(&process->out);
    buf_deinit(&process->words);
    free(process);
}

static void quieten(struct process *process)
{
    loop_timer_stop(&process->timer);
    loop_watch_stop(&process->out_watch);
    loop_watch_stop(&process->words_watch);
}

/* One read from a pipe. Returns false at its end. The first bytes of output and the last of the
 * words are what is worth keeping. */
static bool read_some(struct process *process, int fd)
{
    char chunk[READ_SIZE];
    ssize_t count = read(fd, chunk, sizeof chunk);
    if (count < 0)
        return errno == EINTR;
    if (count == 0) {
        errno = 0;
        return false;
    }
    if (fd == process->out_fd) {
        size_t room = PROCESS_OUT_MAX - process->out.size;
        buf_append(&process->out, chunk, (size_t)count < room ? (size_t)count : room);
        return true;
    }
    buf_append(&process->words, chunk, (size_t)count);
    if (process->words.size > PROCESS_WORDS_MAX)
        buf_consume(&process->words, process->words.size - PROCESS_WORDS_MAX);
    return true;
}

static void on_pipe(struct loop_watch *watch, uint32_t events)
{
    (void)events;
    struct process *process = watch->context;
    if (!read_some(process, watch->fd) && errno != EAGAIN)
        loop_watch_stop(watch);
}

static void drain(struct process *process, int fd)
{
    for (int round = 0; fd >= 0 && round < DRAIN_ROUNDS && read_some(process, fd); round++)
        ;
}

static void on_child_exit(struct loop_child *child, int wait_status)
{
    struct process *process = child->context;
    quieten(process);
    process->ended = true;
    drain(process, process->out_fd);
    drain(process, process->words_fd);
    /* What it started and left in its group goes with it; a daemon has a session of its own. */
    (void)kill(-process->pid, SIGKILL);
    struct process_end end = {
        .wait_status = wait_status,
        .timed_out = process->timed_out,
        .out = buf_str(&process->out),
        .words = str_trim(buf_str(&process->words)),
    };
    loop_defer(process->loop, process_free, process);
    process->on_end(process->context, &end);
}

static void on_timer(struct loop_timer *timer)
{
    struct process *process = timer->context;
    if (process->terminated) {
        (void)kill(-process->pid, SIGKILL);
        return;
    }
    process->timed_out = true;
    process_end_soon(process, KILL_GRACE_MS);
}

void process_end_soon(struct process *process, uint32_t grace_ms)
{
    if (process->ended || process->terminated)
        return;
    process->terminated = true;
    (void)kill(-process->pid, SIGTERM);
    loop_timer_start(process->loop, &process->timer, grace_ms, on_timer, process);
}

void process_drop(struct process *process)
{
    if (!process || process->ended)
        return;
    quieten(process);
    process->ended = true;
    (void)kill(-process->pid, SIGKILL);
    loop_child_stop(&process->child);
    /* The kill is certain, so the wait is short; nobody else may wait for this pid. */
    while (waitpid(process->pid, NULL, 0) < 0 && errno == EINTR)
        ;
    loop_defer(process->loop, process_free, process);
}

/* The program's path by the PATH it will have itself. */
static int find_program(const char *name, const char *const *env, char *path, size_t size,
                        struct err *err)
{
    if (strchr(name, '/')) {
        snprintf(path, size, "%s", name);
        return access(path, X_OK) == 0 ? 0 : err_errno(err, "program '%s'", name);
    }
    struct str rest = STR("/usr/local/bin:/usr/bin:/bin");
    for (size_t i = 0; env && env[i]; i++)
        if (strncmp(env[i], "PATH=", 5) == 0)
            rest = str_of(env[i] + 5);
    while (rest.data) {
        struct str dir = str_cut(&rest, ':');
        if (dir.size == 0 || dir.data[0] != '/')
            continue;
        snprintf(path, size, "%.*s/%s", STR_ARGS(dir), name);
        if (access(path, X_OK) == 0)
            return 0;
    }
    return err_set(err, ERR_NOT_FOUND, "program '%s' is not installed", name);
}

static int make_pipe(int *ours, int *theirs, struct err *err)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) < 0)
        return err_errno(err, "pipe");
    *ours = ends[0];
    *theirs = ends[1];
    if (fd_nonblocking(ends[0], true) < 0)
        return err_errno(err, "pipe");
    return 0;
}

static int spawn(pid_t *pid, const char *path, const struct process_options *options, int input,
                 int output, int words)
{
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    sigset_t none, all;
    sigemptyset(&none);
    sigfillset(&all);
    posix_spawn_file_actions_init(&actions);
    posix_spawnattr_init(&attributes);
    posix_spawn_file_actions_adddup2(&actions, input, 0);
    posix_spawn_file_actions_adddup2(&actions, output, 1);
    posix_spawn_file_actions_adddup2(&actions, words, 2);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setsigdefault(&attributes, &all);
    posix_spawnattr_setflags(&attributes,
                             POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    int failure = posix_spawn(pid, path, &actions, &attributes, (char *const *)options->argv,
                              (char *const *)options->env);
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
    return failure;
}

struct process *process_start(struct loop *loop, const struct process_options *options,
                              struct err *err)
{
    char path[4096];
    if (find_program(options->argv[0], options->env, path, sizeof path, err) < 0)
        return NULL;
    struct process *process = mem_zero(sizeof *process);
    *process = (struct process){.loop = loop,
                                .out_fd = -1,
                                .words_fd = -1,
                                .on_end = options->on_end,
                                .context = options->context};
    OWN(fd) int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    OWN(fd) int output = -1;
    OWN(fd) int words = -1;
    if (null < 0 || (options->output < 0 && make_pipe(&process->out_fd, &output, err) < 0) ||
        make_pipe(&process->words_fd, &words, err) < 0)
        goto failed;
    int failure = spawn(&process->pid, path, options, options->input >= 0 ? options->input : null,
                        options->output >= 0 ? options->output : output, words);
    if (failure) {
        errno = failure;
        err_errno(err, "starting '%s'", path);
        goto failed;
    }
    if (loop_child_start(loop, &process->child, process->pid, on_child_exit, process, err) < 0) {
        (void)kill(-process->pid, SIGKILL);
        (void)waitpid(process->pid, NULL, 0);
        goto failed;
    }
    if ((process->out_fd >= 0 && loop_watch_start(loop, &process->out_watch, process->out_fd,
                                                  LOOP_READ, on_pipe, process, err) < 0) ||
        loop_watch_start(loop, &process->words_watch, process->words_fd, LOOP_READ, on_pipe,
                         process, err) < 0) {
        process_drop(process);
        return NULL;
    }
    if (options->timeout_ms)
        loop_timer_start(loop, &process->timer, options->timeout_ms, on_timer, process);
    return process;
failed:
    process_free(process);
    return NULL;
}

void process_describe(const struct process_end *end, char *text, size_t size)
{
    /* The last line says most; what precedes it is often a banner. */
    struct str line = end->words;
    for (size_t i = line.size; i > 0; i--)
        if (line.data[i - 1] == '\n') {
            line = str_from(line, i);
            break;
        }
    line = str_upto(line, 300);
    const char *colon = line.size ? ": " : "";
    if (end->timed_out)
        snprintf(text, size, "no end in time%s%.*s", colon, STR_ARGS(line));
    else if (WIFSIGNALED(end->wait_status))
        snprintf(text, size, "signal %d%s%.*s", WTERMSIG(end->wait_status), colon, STR_ARGS(line));
    else
        snprintf(text, size, "exit code %d%s%.*s", WEXITSTATUS(end->wait_status), colon,
                 STR_ARGS(line));
    for (char *at = text; *at; at++)
        if ((unsigned char)*at < ' ')
            *at = ' ';
}
