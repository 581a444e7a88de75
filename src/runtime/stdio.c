/* stdio.c - this process's standard streams, joined to a job with back-pressure both ways.
 *
 *     fd 0 -> [read while the job's queue is short] -> job      job -> [queue; job paused while it
 * is long] -> fd 1, 2
 *
 * Our descriptors are shared with other processes, so they stay blocking: we write only when the
 * kernel says there is room, and never more than a pipe takes at once then. Regular files are
 * always ready (and cannot be watched), so they are pumped directly. */
#include "runtime/internal.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <termios.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/mem.h"

enum {
    READ_CHUNK = 65536,
    WRITE_CHUNK = 4096, /* what POLLOUT promises for pipes */
    INPUT_HIGH = 1 << 20,
    OUTPUT_HIGH = 1 << 18,
};

struct output {
    int fd;
    bool regular, broken, watching;
    struct buf queue;
    struct loop_watch watch;
    struct stdio *stdio;
};

struct stdio {
    struct loop *loop;
    struct sandbox_job *job;
    struct output out[2];
    struct loop_watch input;
    bool input_pumped; /* a regular file or /dev/null: not watchable */
    bool input_over, input_waits, paused, finishing;
    bool terminal_saved;
    struct termios saved;
    void (*on_broken)(void *context);
    void (*on_flushed)(void *context);
    void *context;
};

static void flush(struct output *out);

static void on_writable(struct loop_watch *watch, uint32_t events)
{
    (void)events;
    flush(watch->context);
}

static bool all_flushed(const struct stdio *stdio)
{
    return !stdio->out[0].queue.size && !stdio->out[1].queue.size;
}

static void after_flush(struct stdio *stdio)
{
    if (stdio->paused && stdio->out[0].queue.size < OUTPUT_HIGH &&
        stdio->out[1].queue.size < OUTPUT_HIGH) {
        stdio->paused = false;
        if (stdio->job && !stdio->finishing)
            sandbox_job_resume(stdio->job);
    }
    if (stdio->finishing && all_flushed(stdio) && stdio->on_flushed) {
        void (*on_flushed)(void *) = stdio->on_flushed;
        stdio->on_flushed = NULL;
        on_flushed(stdio->context);
    }
}

static bool is_ready(const struct output *out)
{
    struct pollfd ask = {.fd = out->fd, .events = POLLOUT};
    return out->regular || poll(&ask, 1, 0) == 1;
}

static void wait_writable(struct output *out, bool on)
{
    if (on == out->watching)
        return;
    out->watching = on;
    if (!on) {
        loop_watch_stop(&out->watch);
        return;
    }
    struct err err = {0};
    if (loop_watch_start(out->stdio->loop, &out->watch, out->fd, LOOP_WRITE, on_writable, out,
                         &err) < 0) {
        out->watching = false;
        out->regular = true; /* not watchable: always ready */
    }
}

static void flush(struct output *out)
{
    while (out->queue.size && is_ready(out)) {
        size_t size = out->queue.size;
        if (!out->regular && size > WRITE_CHUNK)
            size = WRITE_CHUNK;
        ssize_t wrote = write(out->fd, out->queue.data, size);
        if (wrote < 0 && (errno == EINTR || errno == EAGAIN))
            break;
        if (wrote < 0) {
            /* Nobody reads any more. What comes is dropped; the owner decides about the job. */
            out->broken = true;
            buf_clear(&out->queue);
            if (out->stdio->on_broken && !out->stdio->finishing)
                out->stdio->on_broken(out->stdio->context);
            break;
        }
        buf_consume(&out->queue, (size_t)wrote);
    }
    wait_writable(out, out->queue.size > 0);
    after_flush(out->stdio);
}

void stdio_output(struct stdio *stdio, int stream, struct str data)
{
    struct output *out = &stdio->out[stream == 2];
    if (out->broken)
        return;
    buf_str_append(&out->queue, data);
    if (!out->watching)
        flush(out);
    if (out->queue.size > OUTPUT_HIGH && !stdio->paused && stdio->job) {
        stdio->paused = true;
        sandbox_job_pause(stdio->job);
    }
}

/* ---------------------------------------------------------------- input */
static void end_input(struct stdio *stdio)
{
    if (stdio->input_over)
        return;
    stdio->input_over = true;
    loop_watch_stop(&stdio->input);
    sandbox_job_end_input(stdio->job);
}

/* Reads once; false when nothing more should be read now. */
static bool read_some(struct stdio *stdio)
{
    char chunk[READ_CHUNK];
    if (stdio->input_over || stdio->input_waits)
        return false;
    ssize_t got = read(STDIN_FILENO, chunk, sizeof chunk);
    if (got < 0 && (errno == EINTR || errno == EAGAIN))
        return false;
    if (got <= 0) {
        end_input(stdio);
        return false;
    }
    if (sandbox_job_write(stdio->job, str_make(chunk, (size_t)got)) > INPUT_HIGH) {
        stdio->input_waits = true;
        if (!stdio->input_pumped)
            loop_watch_change(&stdio->input, 0);
        return false;
    }
    return true;
}

static void on_readable(struct loop_watch *watch, uint32_t events)
{
    (void)events;
    (void)read_some(watch->context);
}

void stdio_drained(struct stdio *stdio)
{
    if (!stdio->input_waits || stdio->finishing)
        return;
    stdio->input_waits = false;
    if (stdio->input_pumped)
        while (read_some(stdio))
            continue;
    else
        loop_watch_change(&stdio->input, LOOP_READ);
}

void stdio_attach(struct stdio *stdio, struct sandbox_job *job)
{
    struct err err = {0};
    stdio->job = job;
    if (loop_watch_start(stdio->loop, &stdio->input, STDIN_FILENO, LOOP_READ, on_readable, stdio,
                         &err) == 0)
        return;
    stdio->input_pumped = true;
    while (read_some(stdio))
        continue;
}

/* ---------------------------------------------------------------- the terminal */
bool stdio_size(uint16_t *rows, uint16_t *columns)
{
    struct winsize size;
    if (ioctl(STDIN_FILENO, TIOCGWINSZ, &size) < 0 || !size.ws_row || !size.ws_col)
        return false;
    *rows = size.ws_row;
    *columns = size.ws_col;
    return true;
}

static void make_raw(struct stdio *stdio)
{
    if (tcgetattr(STDIN_FILENO, &stdio->saved) < 0)
        return;
    struct termios raw = stdio->saved;
    cfmakeraw(&raw);
    if (tcsetattr(STDIN_FILENO, TCSADRAIN, &raw) == 0)
        stdio->terminal_saved = true;
}

struct stdio *stdio_new(struct loop *loop, bool terminal, void (*on_broken)(void *context),
                        void *context)
{
    struct stdio *stdio = mem_zero(sizeof *stdio);
    stdio->loop = loop;
    stdio->on_broken = on_broken;
    stdio->context = context;
    for (int i = 0; i < 2; i++) {
        struct stat info;
        stdio->out[i].fd = i + 1;
        stdio->out[i].stdio = stdio;
        stdio->out[i].regular = fstat(i + 1, &info) == 0 && S_ISREG(info.st_mode);
    }
    if (terminal)
        make_raw(stdio);
    return stdio;
}

void stdio_finish(struct stdio *stdio, void (*on_flushed)(void *context))
{
    stdio->finishing = true;
    stdio->job = NULL;
    stdio->on_flushed = on_flushed;
    loop_watch_stop(&stdio->input);
    after_flush(stdio);
}

void stdio_free(struct stdio *stdio)
{
    if (!stdio)
        return;
    loop_watch_stop(&stdio->input);
    for (int i = 0; i < 2; i++) {
        if (stdio->out[i].watching)
            loop_watch_stop(&stdio->out[i].watch);
        buf_deinit(&stdio->out[i].queue);
    }
    if (stdio->terminal_saved)
        (void)tcsetattr(STDIN_FILENO, TCSADRAIN, &stdio->saved);
    free(stdio);
}
