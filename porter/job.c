/* job.c - commands and file work, as process 1 sees them.
 *
 *     EXEC ─► pipes or pty ─► order to a supervisor ─► report: exited and gone ─► sources drained
 * ─► EXIT PUT… ─► pipes ───────► file worker ───────────► report: done ─────────────► sources
 * drained ─► DONE
 *
 * Process 1 keeps the time: at a timeout or kill it orders TERM, after the grace KILL, and if the
 * supervisor itself does not answer for five seconds (somebody stopped it) kills that and does its
 * work: all children of process 1 that are not supervisors or file workers are orphans of a dead
 * supervisor, and a sweep ends them with everything below them before the job's end is told.
 *
 * "Drained" means: everything that was written before the end has been sent. A pipe that a process
 * elsewhere still holds does not keep a job open: once the tree is gone, an empty pipe is an ended
 * one. */
#include "porter.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/mem.h"

#define GRACE_MS 500
#define GIVE_UP_MS 5000
#define KILL_ALL_POLITE_MS 2000
#define KILL_ALL_MS 10000
#define SWEEP_MS 5000
#define SWEEP_STEP_MS 2
#define WAIT_MS_MAX 3600000 /* long timeouts are waited for in pieces */
#define IDLE_MAX 2          /* supervisors of each kind kept for the next command */

static void start_sweep(struct porter *porter);

/* ---------------------------------------------------------------- children */
void child_descriptors(const int *fds, size_t count)
{
    int high[8];
    for (size_t i = 0; i < count; i++) {
        high[i] = fcntl(fds[i], F_DUPFD_CLOEXEC, 64);
        if (high[i] < 0)
            _exit(110);
    }
    for (size_t i = 0; i < count; i++)
        if (dup3(high[i], (int)i, O_CLOEXEC) < 0)
            _exit(111);
    if (syscall(SYS_close_range, (unsigned)count, ~0u, 0) == 0)
        return;
    long last = sysconf(_SC_OPEN_MAX);
    for (int fd = (int)count; fd < last; fd++)
        (void)close(fd);
}

static void child_free(struct child *child)
{
    watch_close(&child->ctl);
    list_remove(&child->node);
    list_append(&child->porter->freed, &child->node);
}

static void handle_report(struct child *child, const struct report *report)
{
    struct stream *stream = child->stream;
    bool gone = report->flags & REPORT_GONE;
    if (child->supervisor)
        child->state = gone ? CHILD_IDLE : CHILD_LINGERING;
    child->stream = NULL;
    if (stream) {
        stream->child = NULL;
        stream->report = *report;
        stream->reported = stream->over = true;
        stream->timeout_at_ms = stream->kill_at_ms = stream->give_up_at_ms = 0;
        stream_pump(stream);
        if (!stream->freed)
            job_check(stream);
    }
    if (!child->supervisor || !gone)
        return;
    size_t idle = 0;
    LIST_EACH (at, &child->porter->children) {
        struct child *other = LIST_OF(at, struct child, node);
        idle += other->supervisor && other->root_kind == child->root_kind &&
                other->state == CHILD_IDLE && other->ctl.fd >= 0;
    }
    if (idle > IDLE_MAX)
        watch_close(&child->ctl); /* it ends by itself and is reaped */
}

/* Returns false when there is nothing more to read. */
static bool read_report(struct child *child)
{
    struct report report;
    if (child->ctl.fd < 0)
        return false;
    ssize_t size = recv(child->ctl.fd, &report, sizeof report, MSG_DONTWAIT);
    if (size < 0 && (errno == EAGAIN || errno == EINTR))
        return false;
    if (size != sizeof report) {
        watch_close(&child->ctl); /* it died; the reaper says the rest */
        return false;
    }
    report.text[sizeof report.text - 1] = '\0';
    handle_report(child, &report);
    return true;
}

static void ctl_ready(struct watch *watch, uint32_t events)
{
    (void)events;
    read_report(LIST_OF(watch, struct child, ctl));
}

static void child_died(struct child *child)
{
    while (read_report(child))
        ;
    struct porter *porter = child->porter;
    struct stream *stream = child->stream;
    bool had_work = stream || child->state == CHILD_LINGERING;
    child->stream = NULL;
    if (stream)
        stream->child = NULL;
    if (child->supervisor && (had_work || child->state == CHILD_BUSY)) {
        start_sweep(porter);
    } else if (stream) {
        stream->report = (struct report){.flags = REPORT_DONE, .error = EINTR};
        strcpy(stream->report.text, "the file work was interrupted");
        stream->reported = stream->over = true;
        stream_pump(stream);
        if (!stream->freed)
            job_check(stream);
    }
    child_free(child);
}

/* Returns NULL with errno. The child runs `supervisor_main` or, with `file`, `files_main`. */
static struct child *child_new(struct porter *porter, bool root_kind, uint8_t type, int in, int out,
                               const struct wire_file *file)
{
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return NULL;
    pid_t pid = fork();
    if (pid == 0) {
        if (file)
            files_main(&porter->world, pair[1], in, out, type, file);
        wire_decoder_deinit(&porter->decoder); /* somebody's environment may be in it */
        supervisor_main(&porter->world, pair[1], root_kind);
    }
    int error = errno;
    fd_close(&pair[1]);
    if (pid < 0) {
        fd_close(&pair[0]);
        errno = error;
        return NULL;
    }
    (void)fd_nonblocking(pair[0], true);
    struct child *child = mem_zero(sizeof *child);
    child->porter = porter;
    child->pid = pid;
    child->supervisor = !file;
    child->root_kind = root_kind;
    child->ctl = (struct watch){.ready = ctl_ready, .porter = porter, .fd = pair[0]};
    list_append(&porter->children, &child->node);
    watch_set(&child->ctl, EPOLLIN);
    return child;
}

void job_prepare(struct porter *porter)
{
    (void)child_new(porter, porter->world.options.uid == 0, 0, -1, -1, NULL);
}

static struct child *supervisor_get(struct porter *porter, bool root_kind)
{
    LIST_EACH (at, &porter->children) {
        struct child *child = LIST_OF(at, struct child, node);
        if (child->supervisor && child->state == CHILD_IDLE && child->root_kind == root_kind &&
            child->ctl.fd >= 0)
            return child;
    }
    return child_new(porter, root_kind, 0, -1, -1, NULL);
}

static int memory_file(struct str message)
{
    int fd = memfd_create("exec", MFD_CLOEXEC);
    if (fd >= 0 && fd_write_all(fd, message.data, message.size) < 0)
        fd_close(&fd);
    return fd;
}

/* Gives the message and the three descriptors to a supervisor. */
static struct child *supervisor_run(struct porter *porter, bool root_kind, struct str message,
                                    const int fds[3])
{
    static char packet[sizeof(struct order) + ORDER_INLINE_MAX];
    struct order order = {.kind = ORDER_RUN, .size = (uint32_t)message.size};
    order.in_memory = message.size > ORDER_INLINE_MAX;
    int all[4] = {fds[0], fds[1], fds[2], -1};
    if (order.in_memory && (all[3] = memory_file(message)) < 0)
        return NULL;
    memcpy(packet, &order, sizeof order);
    size_t size = sizeof order;
    if (!order.in_memory) {
        memcpy(packet + size, message.data, message.size);
        size += message.size;
    }
    struct child *child = NULL;
    for (int attempt = 0; attempt < 3; attempt++) {
        child = supervisor_get(porter, root_kind);
        if (!child)
            break;
        if (fd_send(child->ctl.fd, packet, size, all, order.in_memory ? 4 : 3) == (ssize_t)size)
            break;
        watch_close(&child->ctl); /* dead or stuck: not this one again */
        (void)kill(child->pid, SIGKILL);
        child = NULL;
        errno = EAGAIN;
    }
    int error = errno;
    explicit_bzero(packet, size);
    fd_close(&all[3]);
    if (child)
        child->state = CHILD_BUSY;
    errno = error;
    return child;
}

static void order_send(struct stream *stream, uint8_t kind, uint8_t number)
{
    struct order order = {.kind = kind, .signal_number = number};
    if (stream->child && stream->child->supervisor && stream->child->ctl.fd >= 0)
        (void)send(stream->child->ctl.fd, &order, sizeof order, MSG_DONTWAIT | MSG_NOSIGNAL);
}

/* ---------------------------------------------------------------- the end of a job */
static uint64_t now_us(void)
{
    return clock_mono_ns() / 1000;
}

static void send_exit(struct stream *stream)
{
    const struct report *report = &stream->report;
    char text[WIRE_TEXT_MAX] = "";
    if (!stream->ended_us)
        stream->ended_us = now_us();
    struct wire_exit exit = {.wall_us = stream->ended_us - stream->started_us,
                             .user_us = report->user_us,
                             .system_us = report->system_us,
                             .rss_bytes_peak = report->rss_bytes_peak,
                             .output_bytes_dropped = stream->output_bytes_dropped};
    bool exited = report->flags & REPORT_EXITED;
    if (exited && WIFSIGNALED(report->status))
        exit.signal_number = (uint8_t)WTERMSIG(report->status);
    if (exited && WIFEXITED(report->status))
        exit.code = WEXITSTATUS(report->status);
    if (report->flags & REPORT_FAILED) {
        exit.end = report->not_found ? WIRE_END_NOT_FOUND : WIRE_END_NOT_STARTED;
        exit.code = report->error;
        exit.user_us = exit.system_us = exit.rss_bytes_peak = 0;
        snprintf(text, sizeof text, "%s", report->text);
    } else if (stream->timed_out) {
        exit.end = WIRE_END_TIMED_OUT;
        snprintf(text, sizeof text, "timed out after %llu ms",
                 (unsigned long long)exit.wall_us / 1000);
    } else if (stream->killed || !exited) {
        exit.end = WIRE_END_KILLED;
        snprintf(text, sizeof text, "%s",
                 stream->killed ? "killed" : "its supervisor was killed from inside");
    } else if (exit.signal_number) {
        exit.end = WIRE_END_SIGNALED;
        snprintf(text, sizeof text, "ended by signal %u", exit.signal_number);
    } else {
        exit.end = WIRE_END_EXITED;
        snprintf(text, sizeof text, "exited with %d", exit.code);
    }
    exit.text = str_of(text);
    wire_exit_add(&stream->porter->out_queue, stream->id, &exit);
}

void job_check(struct stream *stream)
{
    if (stream->freed || !stream->reported || !stream->over || !stream_drained(stream))
        return;
    if (stream->keep) { /* stays, for a host that has not heard of it */
        if (!stream->ended_us)
            stream->ended_us = now_us();
        if (stream->attached && !stream->exit_sent)
            send_exit(stream);
        stream->exit_sent = stream->attached;
        return;
    }
    struct buf *out = &stream->porter->out_queue;
    if (stream->kind == STREAM_JOB)
        send_exit(stream);
    else if (stream->report.flags & REPORT_STAT)
        wire_stat_add(out, stream->id, &stream->report.stat);
    else
        wire_done_add(out, stream->id,
                      &(struct wire_done){.error = stream->report.error,
                                          .count = stream->report.count,
                                          .text = str_of(stream->report.text)});
    stream_free(stream);
}

/* A stream whose work could not begin still ends in the ordinary way. */
static void not_started(struct stream *stream, int error, const char *what)
{
    stream->report = (struct report){.error = error};
    stream->report.flags = stream->kind == STREAM_JOB ? REPORT_FAILED : REPORT_DONE;
    snprintf(stream->report.text, sizeof stream->report.text, "%s: %s", what, strerror(error));
    stream->reported = stream->over = true;
    watch_close(&stream->sources[0]);
    watch_close(&stream->sources[1]);
    job_check(stream);
}

/* ---------------------------------------------------------------- starting */
static int open_terminal(void)
{
    static const char *const paths[] = {"/dev/pts/ptmx", "/dev/ptmx"};
    for (size_t i = 0; i < COUNT(paths); i++) {
        struct stat stat;
        int fd = open(paths[i], O_RDWR | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
        int unlocked = 0;
        if (fd >= 0 && fstat(fd, &stat) == 0 && S_ISCHR(stat.st_mode) &&
            ioctl(fd, TIOCSPTLCK, &unlocked) == 0)
            return fd;
        fd_close(&fd);
    }
    return -1;
}

/* Our ends go to the stream, the command's into fds. */
static int make_terminal(struct stream *stream, const struct wire_exec *exec, int fds[3])
{
    OWN(fd) int master = open_terminal();
    if (master < 0)
        return -1;
    struct winsize size = {.ws_row = exec->rows ? exec->rows : 24,
                           .ws_col = exec->columns ? exec->columns : 80};
    (void)ioctl(master, TIOCSWINSZ, &size);
    fds[0] = ioctl(master, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (fds[0] < 0 || (fds[1] = fcntl(fds[0], F_DUPFD_CLOEXEC, 3)) < 0 ||
        (fds[2] = fcntl(fds[0], F_DUPFD_CLOEXEC, 3)) < 0)
        return -1;
    int sink = fcntl(master, F_DUPFD_CLOEXEC, 3);
    if (sink < 0)
        return -1;
    stream_set_sink(stream, sink);
    stream_set_source(stream, 0, fd_take(&master));
    stream->pty = true;
    return 0;
}

/* `inward`: we write, the child reads. */
static int make_pipe(struct stream *stream, bool inward, int index, int *theirs)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) < 0)
        return -1;
    int ours = ends[inward];
    *theirs = ends[!inward];
    (void)fd_nonblocking(ours, true);
    if (inward)
        stream_set_sink(stream, ours);
    else
        stream_set_source(stream, index, ours);
    return 0;
}

static int make_pipes(struct stream *stream, const struct wire_exec *exec, int fds[3])
{
    if (exec->flags & WIRE_EXEC_STDIN) {
        if (make_pipe(stream, true, 0, &fds[0]) < 0)
            return -1;
    } else {
        fds[0] = fcntl(stream->porter->world.null, F_DUPFD_CLOEXEC, 3);
        if (fds[0] < 0)
            return -1;
    }
    if (make_pipe(stream, false, 0, &fds[1]) < 0)
        return -1;
    return make_pipe(stream, false, 1, &fds[2]);
}

static struct stream *open_stream(struct porter *porter, uint32_t id, enum stream_kind kind,
                                  struct err *err)
{
    if (!(id & 1) || stream_find(porter, id)) {
        err_set(err, ERR_PROTOCOL, "stream %u cannot be opened", id);
        return NULL;
    }
    return stream_new(porter, id, kind);
}

int job_exec(struct porter *porter, uint32_t id, struct str payload, struct err *err)
{
    struct wire_exec exec;
    if (wire_exec_read(payload, &exec, err) < 0)
        return -1;
    struct stream *stream = open_stream(porter, id, STREAM_JOB, err);
    if (!stream)
        return -1;
    stream->started_us = now_us();
    if (porter->stream_count > WIRE_STREAMS_MAX ||
        (exec.flags & WIRE_EXEC_KEEP && !kept_begin(stream))) {
        not_started(stream, EAGAIN, "too many commands at once");
        return 0;
    }
    int fds[3] = {-1, -1, -1};
    int made = exec.flags & WIRE_EXEC_PTY ? make_terminal(stream, &exec, fds)
                                          : make_pipes(stream, &exec, fds);
    bool root_kind = user_is_root(exec.user, porter->world.options.uid);
    struct child *child = made < 0 ? NULL : supervisor_run(porter, root_kind, payload, fds);
    int error = errno;
    for (int i = 0; i < 3; i++)
        fd_close(&fds[i]);
    if (!child) {
        not_started(stream, error, made < 0 ? "pipes or terminal" : "new process");
        return 0;
    }
    child->stream = stream;
    stream->child = child;
    stream->detached = exec.flags & WIRE_EXEC_DETACHED;
    stream->grace_ms = exec.grace_ms ? exec.grace_ms : GRACE_MS;
    stream->output_bytes_max = exec.output_bytes_max;
    stream->timeout_at_ms = exec.timeout_ms ? porter->now_ms + exec.timeout_ms : 0;
    stream_update(stream);
    return 0;
}

int job_file(struct porter *porter, uint32_t id, uint8_t type, struct str payload, struct err *err)
{
    struct wire_file file;
    if (wire_file_read(payload, &file, err) < 0)
        return -1;
    struct stream *stream = open_stream(porter, id, STREAM_FILE, err);
    if (!stream)
        return -1;
    if (porter->stream_count > WIRE_STREAMS_MAX) {
        not_started(stream, EAGAIN, "too much at once");
        return 0;
    }
    int theirs = -1, made = 0;
    bool inward = type == WIRE_PUT || type == WIRE_PUT_TREE;
    if (type != WIRE_STAT && type != WIRE_REMOVE)
        made = make_pipe(stream, inward, 0, &theirs);
    struct child *child = made < 0 ? NULL
                                   : child_new(porter, false, type, inward ? theirs : -1,
                                               inward ? -1 : theirs, &file);
    int error = errno;
    fd_close(&theirs);
    if (!child) {
        not_started(stream, error, "new process");
        return 0;
    }
    child->stream = stream;
    stream->child = child;
    child->state = CHILD_BUSY;
    stream_update(stream);
    return 0;
}

/* ---------------------------------------------------------------- asking a job for something */
static void begin_kill(struct stream *stream)
{
    if (stream->kill_sent || stream->reported)
        return;
    stream->kill_sent = true;
    stream->timeout_at_ms = 0;
    order_send(stream, ORDER_TERM, 0);
    stream->kill_at_ms = stream->porter->now_ms + stream->grace_ms;
}

void job_kill(struct stream *stream)
{
    if (stream->kind != STREAM_JOB || stream->reported)
        return;
    if (!stream->kill_sent)
        stream->killed = true;
    begin_kill(stream);
}

void job_signal(struct stream *stream, uint8_t number)
{
    if (stream->kind == STREAM_JOB)
        order_send(stream, ORDER_SIGNAL, number);
}

void job_reset(struct stream *stream)
{
    if (stream->kind == STREAM_FILE && stream->child)
        (void)kill(stream->child->pid, SIGTERM);
}

void job_abandon(struct stream *stream)
{
    struct child *child = stream->child;
    order_send(stream, ORDER_KILL, 0);
    if (child && !child->supervisor)
        (void)kill(child->pid, SIGTERM);
    stream_free(stream);
}

void job_resize(struct stream *stream, uint16_t rows, uint16_t columns)
{
    struct winsize size = {.ws_row = rows, .ws_col = columns};
    if (stream->pty && stream->sources[0].fd >= 0)
        (void)ioctl(stream->sources[0].fd, TIOCSWINSZ, &size);
}

/* ---------------------------------------------------------------- everything at once */
static void finish_kill_all(struct porter *porter, int error)
{
    uint32_t id = porter->kill_all_stream;
    porter->kill_all_stream = 0;
    if (!porter->kill_all_silent)
        wire_done_add(
            &porter->out_queue, id,
            &(struct wire_done){.error = error,
                                .text = error ? STR("some processes would not die") : STR("")});
    porter->kill_all_silent = false;
    if (list_empty(&porter->children))
        job_prepare(porter);
}

void job_kill_all(struct porter *porter, uint32_t id)
{
    porter->kill_all_stream = id;
    porter->kill_all_deadline_ms = porter->now_ms + KILL_ALL_MS;
    porter->kill_all_force_ms = porter->now_ms + KILL_ALL_POLITE_MS;
    LIST_EACH (at, &porter->streams) {
        struct stream *stream = LIST_OF(at, struct stream, node);
        if (stream->kind == STREAM_JOB && !stream->reported && !stream->timed_out)
            stream->killed = true;
    }
    LIST_EACH (at, &porter->children) {
        struct child *child = LIST_OF(at, struct child, node);
        struct order order = {.kind = ORDER_KILL};
        if (!child->supervisor)
            (void)kill(child->pid, SIGTERM);
        else if (child->state != CHILD_IDLE && child->ctl.fd >= 0)
            (void)send(child->ctl.fd, &order, sizeof order, MSG_DONTWAIT | MSG_NOSIGNAL);
    }
    start_sweep(porter);
}

/* A supervisor does not answer: then without it. Its orphans are ours, and swept. */
static void force_kill_all(struct porter *porter)
{
    porter->kill_all_force_ms = 0;
    if (porter->world.is_init) {
        (void)kill(-1, SIGKILL);
        return;
    }
    LIST_EACH (at, &porter->children) {
        struct child *child = LIST_OF(at, struct child, node);
        if (child->state != CHILD_IDLE)
            (void)kill(child->pid, SIGKILL);
    }
}

static bool nobody_works(const struct porter *porter)
{
    LIST_EACH (at, &porter->children) {
        if (LIST_OF(at, struct child, node)->state != CHILD_IDLE)
            return false;
    }
    return true;
}

/* ---------------------------------------------------------------- orphans of a dead supervisor */
static void start_sweep(struct porter *porter)
{
    if (porter->sweeping)
        return;
    porter->sweeping = true;
    porter->swept_all = false;
    porter->clean_looks = 0;
    porter->sweep_deadline_ms = porter->now_ms + SWEEP_MS;
}

static void end_sweep(struct porter *porter)
{
    porter->sweeping = false;
    LIST_EACH (at, &porter->streams) {
        struct stream *stream = LIST_OF(at, struct stream, node);
        if (stream->kind == STREAM_INLET || stream->child || stream->over)
            continue;
        stream->reported = stream->over = true;
        stream_pump(stream);
        if (!stream->freed)
            job_check(stream);
    }
}

static void sweep(struct porter *porter)
{
    struct pids left = {0};
    pid_t spared[WIRE_STREAMS_MAX + 64];
    size_t count = 0;
    LIST_EACH (at, &porter->children) {
        if (count < COUNT(spared))
            spared[count++] = LIST_OF(at, struct child, node)->pid;
    }
    bool known = kill_find(porter->world.proc, getpid(), spared, count, &left);
    if (known && left.count)
        (void)kill_round(porter->world.proc, getpid(), spared, count);
    else if (!known && porter->world.is_init && nobody_works(porter))
        (void)kill(-1, SIGKILL); /* no /proc to look into: then all that is not us */
    free(left.pid);
    bool late = porter->now_ms >= porter->sweep_deadline_ms;
    if (left.count && late && porter->world.is_init && !porter->swept_all) {
        /* They multiply faster than we can look. One call ends all of the namespace at once, the
         * neighbours too. */
        (void)kill(-1, SIGKILL);
        porter->swept_all = true;
        porter->sweep_deadline_ms = porter->now_ms + SWEEP_MS;
        return;
    }
    /* One look can miss a process whose number lies behind it when its parent ends; two in a row do
     * not. */
    porter->clean_looks = left.count ? 0 : porter->clean_looks + 1;
    if (porter->clean_looks < 2 && !late)
        return;
    job_reap(porter); /* the last of them are dead but may not have been waited for */
    end_sweep(porter);
}

void job_reap(struct porter *porter)
{
    for (;;) {
        int status;
        pid_t pid = waitpid(-1, &status, WNOHANG | __WALL);
        if (pid <= 0)
            return;
        LIST_EACH (at, &porter->children) {
            struct child *child = LIST_OF(at, struct child, node);
            if (child->pid != pid)
                continue;
            child_died(child);
            break;
        }
    }
}

/* ---------------------------------------------------------------- time */
static void stream_timers(struct stream *stream, uint64_t now)
{
    if (stream->timeout_at_ms && now >= stream->timeout_at_ms) {
        stream->timed_out = true;
        begin_kill(stream);
    }
    if (stream->kill_at_ms && now >= stream->kill_at_ms) {
        stream->kill_at_ms = 0;
        stream->give_up_at_ms = now + GIVE_UP_MS;
        order_send(stream, ORDER_KILL, 0);
    }
    if (stream->give_up_at_ms && now >= stream->give_up_at_ms) {
        stream->give_up_at_ms = 0;
        if (stream->child)
            (void)kill(stream->child->pid, SIGKILL);
    }
}

void job_timers(struct porter *porter)
{
    LIST_EACH (at, &porter->streams) {
        stream_timers(LIST_OF(at, struct stream, node), porter->now_ms);
    }
    if (porter->sweeping)
        sweep(porter);
    if (!porter->kill_all_stream)
        return;
    if (nobody_works(porter) && !porter->sweeping)
        finish_kill_all(porter, 0);
    else if (porter->kill_all_force_ms && porter->now_ms >= porter->kill_all_force_ms)
        force_kill_all(porter);
    else if (porter->now_ms >= porter->kill_all_deadline_ms)
        finish_kill_all(porter, ETIMEDOUT);
}

int job_wait_ms(const struct porter *porter)
{
    if (porter->sweeping)
        return SWEEP_STEP_MS;
    uint64_t next = 0;
    if (porter->kill_all_stream)
        next = porter->kill_all_force_ms ? porter->kill_all_force_ms : porter->kill_all_deadline_ms;
    LIST_EACH (at, (struct list *)&porter->streams) {
        const struct stream *stream = LIST_OF(at, struct stream, node);
        uint64_t times[] = {stream->timeout_at_ms, stream->kill_at_ms, stream->give_up_at_ms};
        for (size_t i = 0; i < COUNT(times); i++)
            if (times[i] && (!next || times[i] < next))
                next = times[i];
    }
    if (!next)
        return -1;
    uint64_t wait = next <= porter->now_ms ? 0 : next - porter->now_ms;
    return wait > WAIT_MS_MAX ? WAIT_MS_MAX : (int)wait;
}

void job_end_all(struct porter *porter)
{
    uint64_t deadline = clock_mono_ms() + KILL_ALL_MS;
    LIST_EACH (at, &porter->children) {
        struct child *child = LIST_OF(at, struct child, node);
        if (!child->supervisor)
            (void)kill(child->pid, SIGTERM);
        fd_close(&child->ctl.fd); /* a supervisor ends its tree, then itself */
    }
    while (clock_mono_ms() < deadline) {
        if (porter->world.is_init)
            (void)kill(-1, SIGKILL);
        pid_t pid;
        while ((pid = waitpid(-1, NULL, WNOHANG | __WALL)) > 0)
            ;
        if (pid < 0 && errno == ECHILD)
            return;
        usleep(2000);
    }
    (void)kill_round(porter->world.proc, getpid(), NULL, 0);
}
