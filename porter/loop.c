/* loop.c - process 1 itself: frames in, frames out, children, time.
 *
 * One tick: wait, let each ready descriptor do a bounded piece of work, run timers, write queued
 * frames, free what ended. Objects are freed only at the end of a tick, so an event that was
 * already fetched finds its object, dead or not.
 *
 * All signals are blocked and read from a descriptor. It holds no secret longer than it takes to
 * hand it on: the decoder zeroes what it handed out. When the frames end, so does everything
 * inside; unless there is a control descriptor: then commands that were to be kept go on, and the
 * next host gets them back (kept.c). */
#include "porter.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/mem.h"

#define READ_SIZE (WIRE_PAYLOAD_MAX + WIRE_HEADER_SIZE)
#define OUT_STALLED (4u << 20) /* the host does not read: then neither do we */
#define EVENTS 64
#define NOFILE_WANTED 16384 /* a thousand commands and their pipes */

void porter_die(const char *format, ...)
{
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    dprintf(2, "postern-porter: %s\n", text);
    _exit(2);
}

/* ---------------------------------------------------------------- watches */
void watch_set(struct watch *watch, uint32_t events)
{
    if (watch->fd < 0 || (watch->added && watch->events == events) || (!watch->added && !events))
        return;
    struct epoll_event event = {.events = events, .data.ptr = watch};
    /* Removed rather than silenced: epoll reports errors and hang-ups whatever was asked. */
    int operation = !events ? EPOLL_CTL_DEL : watch->added ? EPOLL_CTL_MOD : EPOLL_CTL_ADD;
    if (epoll_ctl(watch->porter->epoll, operation, watch->fd, &event) < 0)
        porter_die("watching a descriptor: %s", strerror(errno));
    watch->added = events != 0;
    watch->events = events;
}

void watch_close(struct watch *watch)
{
    if (watch->fd < 0)
        return;
    watch_set(watch, 0);
    fd_close(&watch->fd);
}

/* ---------------------------------------------------------------- frames */
static void end(struct porter *porter, int status, const char *text)
{
    if (porter->ending)
        return;
    porter->ending = true;
    porter->exit_status = status;
    if (text)
        dprintf(2, "postern-porter: %s\n", text);
}

static int take_hello(struct porter *porter, const struct wire_frame *frame, struct err *err)
{
    struct wire_hello hello;
    if (porter->said_hello)
        return err_set(err, ERR_PROTOCOL, "a second hello");
    if (wire_hello_read(frame->payload, &hello, err) < 0)
        return -1;
    struct wire_hello answer = {
        .version = WIRE_VERSION, .window = WIRE_WINDOW, .pid = (uint32_t)getpid()};
    porter->said_hello = true;
    porter->window_out = hello.window;
    bool resume = hello.features & WIRE_FEATURE_RESUME && porter->control.fd >= 0;
    if (resume && hello.window != WIRE_WINDOW)
        return err_set(err, ERR_PROTOCOL, "a window of %u cannot be resumed", hello.window);
    if (porter->inlet.fd < 0)
        inlet_start(porter, &hello, &answer);
    answer.features |= resume ? WIRE_FEATURE_RESUME : 0;
    wire_hello_add(&porter->out_queue, &answer);
    if (resume)
        kept_list(porter);
    return 0;
}

/* Frames for a stream that lives. */
static int take_for_stream(struct stream *stream, const struct wire_frame *frame, struct err *err)
{
    uint32_t size;
    uint64_t position;
    uint16_t rows, columns;
    uint8_t number;
    if (frame->type == WIRE_ATTACH)
        return wire_attach_read(frame->payload, &position, err) < 0
                   ? -1
                   : kept_attach(stream, position, err);
    if (stream->exit_sent)
        return 0; /* they crossed it */
    switch (frame->type) {
    case WIRE_DATA:
        return stream_data(stream, frame->payload, err);
    case WIRE_CREDIT:
        if (wire_credit_read(frame->payload, &size, err) < 0)
            return -1;
        if (!wire_credit_granted(&stream->out_credit, size))
            return err_set(err, ERR_PROTOCOL, "too much credit for stream %u", stream->id);
        if (stream->keep && !kept_credit(stream, size))
            return err_set(err, ERR_PROTOCOL, "credit for what stream %u never sent", stream->id);
        if (stream->over)
            stream_pump(stream);
        stream_update(stream);
        job_check(stream);
        return 0;
    case WIRE_END:
        stream_end(stream);
        return 0;
    case WIRE_RESET:
        if (stream->kind == STREAM_INLET)
            inlet_reset(stream, false);
        else
            job_reset(stream);
        return 0;
    case WIRE_SIGNAL:
        if (wire_signal_read(frame->payload, &number, err) < 0)
            return -1;
        job_signal(stream, number);
        return 0;
    case WIRE_KILL:
        job_kill(stream);
        return 0;
    case WIRE_RESIZE:
        if (wire_resize_read(frame->payload, &rows, &columns, err) < 0)
            return -1;
        job_resize(stream, rows, columns);
        return 0;
    }
    return err_set(err, ERR_PROTOCOL, "unexpected %s frame", wire_type_name(frame->type));
}

static int take_frame(struct porter *porter, const struct wire_frame *frame, struct err *err)
{
    if (frame->type != WIRE_HELLO && !porter->said_hello)
        return err_set(err, ERR_PROTOCOL, "no hello first");
    switch (frame->type) {
    case WIRE_HELLO:
        return take_hello(porter, frame, err);
    case WIRE_PING:
        wire_frame_add(&porter->out_queue, 0, WIRE_PONG, 0, frame->payload);
        return 0;
    case WIRE_EXEC:
        return job_exec(porter, frame->stream, frame->payload, err);
    case WIRE_PUT:
    case WIRE_GET:
    case WIRE_PUT_TREE:
    case WIRE_GET_TREE:
    case WIRE_STAT:
    case WIRE_REMOVE:
        return job_file(porter, frame->stream, frame->type, frame->payload, err);
    case WIRE_KILL_ALL:
        if (!(frame->stream & 1) || stream_find(porter, frame->stream))
            return err_set(err, ERR_PROTOCOL, "stream %u cannot be opened", frame->stream);
        job_kill_all(porter, frame->stream);
        return 0;
    }
    struct stream *stream = stream_find(porter, frame->stream);
    if (stream)
        return take_for_stream(stream, frame, err);
    /* For a stream that just ended: our last frame and this one passed each other. */
    return frame->type >= WIRE_DATA && frame->type <= WIRE_RESIZE
               ? 0
               : err_set(err, ERR_PROTOCOL, "unexpected %s frame", wire_type_name(frame->type));
}

static void take_frames(struct porter *porter)
{
    struct wire_frame frame;
    struct err err = {0};
    /* While everything is being killed nothing new may start. */
    while (!porter->ending && !porter->kill_all_stream) {
        int result = wire_decoder_next(&porter->decoder, &frame, &err);
        if (result == 0)
            return;
        if (result < 0 || take_frame(porter, &frame, &err) < 0)
            end(porter, 1, err.text);
    }
}

/* The host went away. Without a way to get another one that is the end. */
static void lose(struct porter *porter)
{
    if (porter->control.fd < 0) {
        end(porter, 0, NULL);
        return;
    }
    watch_close(&porter->in);
    watch_close(&porter->out);
    kept_detach(porter);
}

static int own_copy(int fd)
{
    int copy = fcntl(fd, F_DUPFD_CLOEXEC, 64);
    if (copy < 0)
        porter_die("descriptor %d: %s", fd, strerror(errno));
    (void)fd_nonblocking(copy, true);
    return copy;
}

static void in_ready(struct watch *watch, uint32_t events)
{
    (void)events;
    struct porter *porter = watch->porter;
    char *at = wire_decoder_reserve(&porter->decoder, READ_SIZE);
    ssize_t size = read(watch->fd, at, READ_SIZE);
    if (size < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (size <= 0) {
        lose(porter);
        return;
    }
    wire_decoder_added(&porter->decoder, (size_t)size);
    take_frames(porter);
}

static void out_ready(struct watch *watch, uint32_t events)
{
    (void)watch; /* the end of the tick writes */
    (void)events;
}

/* The keeper hands over a new connection. Whatever the old host still had to say is dropped: the
 * new one learns how far it got, and goes on from there. */
static void control_ready(struct watch *watch, uint32_t events)
{
    (void)events;
    struct porter *porter = watch->porter;
    char byte;
    int fd = -1;
    size_t count = 1;
    ssize_t size = fd_receive(watch->fd, &byte, 1, &fd, &count);
    if (size < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (size <= 0) {
        end(porter, 0, NULL); /* the keeper is gone, and so are we */
        return;
    }
    if (fd < 0)
        return;
    if (porter->in.fd >= 0)
        lose(porter);
    int out = own_copy(fd);
    (void)fd_nonblocking(fd, true);
    porter->in = (struct watch){.ready = in_ready, .porter = porter, .fd = fd};
    porter->out = (struct watch){.ready = out_ready, .porter = porter, .fd = out};
    watch_set(&porter->in, EPOLLIN);
}

static void write_queue(struct porter *porter)
{
    struct buf *queue = &porter->out_queue;
    while (queue->size && porter->out.fd >= 0) {
        ssize_t size = write(porter->out.fd, queue->data, queue->size);
        if (size < 0 && errno == EINTR)
            continue;
        if (size < 0 && errno != EAGAIN)
            lose(porter);
        if (size < 0)
            return;
        buf_consume(queue, (size_t)size);
    }
}

/* Streams that found the queue full look again. */
static void resume_streams(struct porter *porter)
{
    porter->congested = false;
    LIST_EACH (at, &porter->streams) {
        struct stream *stream = LIST_OF(at, struct stream, node);
        if (stream->over)
            stream_pump(stream);
        stream_update(stream);
        if (stream->kind != STREAM_INLET)
            job_check(stream);
    }
}

static void flush(struct porter *porter)
{
    struct buf *queue = &porter->out_queue;
    write_queue(porter);
    while (porter->congested && queue->size < OUT_BYTES_MAX && !porter->ending) {
        resume_streams(porter);
        write_queue(porter);
    }
    watch_set(&porter->out, queue->size ? EPOLLOUT : 0);
    bool stalled = queue->size > OUT_STALLED || porter->kill_all_stream;
    watch_set(&porter->in, stalled ? 0 : EPOLLIN);
}

static void signals_ready(struct watch *watch, uint32_t events)
{
    (void)events;
    struct signalfd_siginfo info;
    while (read(watch->fd, &info, sizeof info) == sizeof info)
        if (info.ssi_signo != SIGCHLD)
            end(watch->porter, 0, NULL);
    job_reap(watch->porter);
}

/* ---------------------------------------------------------------- life */
static void free_freed(struct porter *porter)
{
    LIST_EACH (at, &porter->freed) {
        list_remove(at);
        free(at); /* streams and children start with their node */
    }
}

static void start_signals(struct porter *porter)
{
    /* By the kernel's own call: the C library keeps three numbers for itself and would leave them
     * ignored for every command, if whoever started us ignored them. Zeroes mean the default. */
    const char fallback[64] = {0};
    for (int number = 1; number <= 64; number++)
        (void)syscall(SYS_rt_sigaction, number, fallback, NULL, 8);
    struct sigaction ignore = {.sa_handler = SIG_IGN};
    (void)sigaction(SIGPIPE, &ignore, NULL);
    sigset_t all, ours;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, NULL);
    sigemptyset(&ours);
    sigaddset(&ours, SIGCHLD);
    if (!porter->world.is_init) { /* from inside nobody ends process 1 */
        sigaddset(&ours, SIGTERM);
        sigaddset(&ours, SIGHUP);
        sigaddset(&ours, SIGINT);
    }
    int fd = signalfd(-1, &ours, SFD_NONBLOCK | SFD_CLOEXEC);
    if (fd < 0)
        porter_die("signals: %s", strerror(errno));
    porter->signals = (struct watch){.ready = signals_ready, .porter = porter, .fd = fd};
    watch_set(&porter->signals, EPOLLIN);
}

/* Frames to numbers of their own, 0 and 1 to something harmless, everything else closed. */
static void start_descriptors(struct porter *porter)
{
    struct porter_world *world = &porter->world;
    int in = own_copy(world->options.fd_in), out = own_copy(world->options.fd_out);
    int control = world->options.fd_control < 0 ? -1 : own_copy(world->options.fd_control);
    for (unsigned from = 3; from != ~0u;) { /* all between and beside the three */
        unsigned next = ~0u;
        int kept[] = {in, out, control};
        for (size_t i = 0; i < COUNT(kept); i++)
            if (kept[i] >= (int)from && (unsigned)kept[i] < next)
                next = (unsigned)kept[i];
        if (next > from)
            (void)syscall(SYS_close_range, from, next == ~0u ? ~0u : next - 1, 0);
        from = next == ~0u ? ~0u : next + 1;
    }
    world->null = open("/dev/null", O_RDWR | O_CLOEXEC | O_NOCTTY);
    if (world->null < 0) {
        int ends[2];
        if (pipe2(ends, O_CLOEXEC) < 0)
            porter_die("pipe: %s", strerror(errno));
        fd_close(&ends[1]);
        world->null = ends[0];
    }
    for (int fd = 0; fd < 2; fd++)
        (void)dup3(world->null, fd, O_CLOEXEC);
    if (fcntl(2, F_GETFD) < 0)
        (void)dup3(world->null, 2, O_CLOEXEC);
    (void)fd_cloexec(2, true);
    porter->in = (struct watch){.ready = in_ready, .porter = porter, .fd = in};
    porter->out = (struct watch){.ready = out_ready, .porter = porter, .fd = out};
    porter->control = (struct watch){.ready = control_ready, .porter = porter, .fd = control};
}

/* /proc, if it is there and speaks of this pid namespace: another one's numbers would name the
 * wrong processes. */
static int open_proc(void)
{
    char self[16] = "", own[16];
    OWN(fd) int proc = open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC);
    snprintf(own, sizeof own, "%d", (int)getpid());
    if (proc < 0 || readlinkat(proc, "self", self, sizeof self - 1) < 0 || strcmp(self, own) != 0)
        return -1;
    return fd_take(&proc);
}

static void look_around(struct porter_world *world)
{
    char text[8] = "";
    world->is_init = getpid() == 1;
    if (chdir("/") < 0)
        porter_die("working directory: %s", strerror(errno));
    world->proc = open_proc();
    if (getrlimit(RLIMIT_NOFILE, &world->nofile) < 0)
        porter_die("descriptor limit: %s", strerror(errno));
    struct rlimit raised = world->nofile;
    raised.rlim_cur = raised.rlim_max < NOFILE_WANTED ? raised.rlim_max : NOFILE_WANTED;
    if (raised.rlim_cur > world->nofile.rlim_cur)
        (void)setrlimit(RLIMIT_NOFILE, &raised);
    OWN(fd)
    int fd = world->proc < 0 ? -1 : openat(world->proc, "self/setgroups", O_RDONLY | O_CLOEXEC);
    if (fd >= 0 && read(fd, text, sizeof text - 1) >= 4)
        world->setgroups_denied = strncmp(text, "deny", 4) == 0;
}

int porter_run(const struct porter_options *options)
{
    struct porter porter = {.world = {.options = *options}, .inlet.fd = -1, .resolver.fd = -1};
    list_init(&porter.streams);
    list_init(&porter.children);
    list_init(&porter.freed);
    porter.decoder.wipe = true;
    start_descriptors(&porter);
    look_around(&porter.world);
    porter.epoll = epoll_create1(EPOLL_CLOEXEC);
    if (porter.epoll < 0)
        porter_die("epoll: %s", strerror(errno));
    start_signals(&porter);
    (void)prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
    if (!porter.world.is_init && prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) < 0)
        porter_die("subreaper: %s", strerror(errno));
    if (options->die_with_parent)
        (void)prctl(PR_SET_PDEATHSIG, porter.world.is_init ? SIGKILL : SIGTERM, 0, 0, 0);
    watch_set(&porter.in, EPOLLIN);
    watch_set(&porter.control, EPOLLIN);
    job_prepare(&porter);

    while (!porter.ending) {
        struct epoll_event events[EVENTS];
        porter.now_ms = clock_mono_ms();
        int count = epoll_wait(porter.epoll, events, EVENTS, job_wait_ms(&porter));
        porter.now_ms = clock_mono_ms();
        for (int i = 0; i < count; i++) {
            struct watch *watch = events[i].data.ptr;
            if (watch->fd >= 0)
                watch->ready(watch, events[i].events);
        }
        bool killing = porter.kill_all_stream;
        job_timers(&porter);
        if (killing && !porter.kill_all_stream)
            take_frames(&porter);
        flush(&porter);
        free_freed(&porter);
    }
    job_end_all(&porter);
    wire_decoder_deinit(&porter.decoder);
    return porter.exit_status;
}
