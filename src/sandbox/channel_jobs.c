/* channel_jobs.c - commands, as the server sees them.
 *
 *     running ──EXIT──► finished ──(output delivered)──► done ──sandbox_job_close──► freed
 *        └──────sandbox_job_close: KILL, then silent until EXIT──────────────────────┘
 *
 * A paused job keeps what still arrives, which is at most one window because nothing is granted for
 * bytes that were not delivered; then the porter stops reading and the command blocks. Its exit
 * waits behind its output. A handle is freed when its owner closed it and nothing can reach it any
 * more: it has left the channel and no deferred call is under way. */
#include "sandbox/channel.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/mem.h"
#include "sandbox/channel_inner.h"

struct sandbox_job {
    struct flow flow;
    struct loop *loop;
    struct sandbox_job_handlers handlers;
    void *context;
    struct buf input; /* for stdin, not yet sent */
    bool input_ending, input_ended, drain_wanted;
    struct buf held; /* records of: which, size, data. Output that came while paused */
    bool paused;
    bool finished; /* `exit` is known */
    bool done;     /* on_exit was called, or never will be */
    bool closed;   /* by its owner */
    bool deferred;
    bool busy;    /* inside a callback of ours */
    bool judging; /* `exit` waits for channel_judge() */
    struct sandbox_exit exit;
    void (*on_abandoned)(void *context); /* for sandbox_run_whole, which owns its job */
};

/* ---------------------------------------------------------------- words for ends */
const char *sandbox_end_name(enum sandbox_end end)
{
    static const char *const names[] = {
        [SANDBOX_EXITED] = "exited",       [SANDBOX_SIGNALED] = "signaled",
        [SANDBOX_NOT_FOUND] = "not_found", [SANDBOX_NOT_STARTED] = "not_started",
        [SANDBOX_TIMED_OUT] = "timed_out", [SANDBOX_OUT_OF_MEMORY] = "out_of_memory",
        [SANDBOX_KILLED] = "killed",       [SANDBOX_LOST] = "lost",
    };
    return (size_t)end < COUNT(names) ? names[end] : "unknown";
}

int sandbox_exit_code(const struct sandbox_exit *exit)
{
    switch (exit->end) {
    case SANDBOX_EXITED:
        return exit->code;
    case SANDBOX_SIGNALED:
        return 128 + exit->signal_number;
    case SANDBOX_NOT_FOUND:
        return 127;
    case SANDBOX_NOT_STARTED:
        return 126;
    case SANDBOX_TIMED_OUT:
        return 124;
    case SANDBOX_OUT_OF_MEMORY:
    case SANDBOX_KILLED:
        return 137;
    case SANDBOX_LOST:
        break;
    }
    return 125;
}

/* ---------------------------------------------------------------- life */
static void run_deferred(void *argument);

static void job_free_if_over(struct sandbox_job *job)
{
    if (!job->closed || job->flow.channel || job->deferred || job->busy || job->judging)
        return;
    if (job->input.start)
        explicit_bzero(job->input.start, job->input.capacity);
    buf_deinit(&job->input);
    buf_deinit(&job->held);
    free(job);
}

static void defer(struct sandbox_job *job)
{
    if (job->deferred)
        return;
    job->deferred = true;
    loop_defer(job->loop, run_deferred, job);
}

static void deliver(struct sandbox_job *job, uint8_t which, struct str data)
{
    if (job->handlers.on_output && !job->closed)
        job->handlers.on_output(job->context, which, data);
}

/* Output that was held, then the exit, until the owner pauses or closes. */
static void advance(struct sandbox_job *job)
{
    job->busy = true;
    while (job->held.size && (!job->paused || job->closed)) {
        uint8_t which = (uint8_t)job->held.data[0];
        uint32_t size;
        memcpy(&size, job->held.data + 1, sizeof size);
        deliver(job, which, str_make(job->held.data + 5, size));
        buf_consume(&job->held, 5 + size);
        flow_consumed(&job->flow, size);
    }
    if (job->drain_wanted && !job->input.size && !job->closed && !job->finished) {
        job->drain_wanted = false;
        if (job->handlers.on_drain)
            job->handlers.on_drain(job->context);
    }
    if (job->finished && !job->done && !job->held.size && !job->paused) {
        job->done = true;
        if (job->handlers.on_exit && !job->closed)
            job->handlers.on_exit(job->context, &job->exit);
    }
    job->busy = false;
}

static void run_deferred(void *argument)
{
    struct sandbox_job *job = argument;
    if (!job->flow.channel)
        flow_told(&job->flow);
    if (job->flow.silenced && !job->done) {
        job->done = true;
        if (job->on_abandoned && !job->closed)
            job->on_abandoned(job->context);
    }
    if (!job->done)
        advance(job);
    job->deferred = false;
    job_free_if_over(job);
}

/* ---------------------------------------------------------------- frames */
static void on_data(struct flow *flow, uint8_t which, struct str data)
{
    struct sandbox_job *job = LIST_OF(flow, struct sandbox_job, flow);
    if ((job->paused || job->held.size) && !job->closed) {
        uint32_t size = (uint32_t)data.size;
        buf_byte(&job->held, (char)which);
        buf_append(&job->held, &size, sizeof size);
        buf_str_append(&job->held, data);
        return;
    }
    job->busy = true;
    deliver(job, which, data);
    job->busy = false;
    flow_consumed(flow, data.size);
    job_free_if_over(job);
}

static int on_final(struct flow *flow, const struct wire_frame *frame, struct err *err)
{
    static const enum sandbox_end ends[WIRE_ENDS] = {
        [WIRE_END_EXITED] = SANDBOX_EXITED,       [WIRE_END_SIGNALED] = SANDBOX_SIGNALED,
        [WIRE_END_NOT_FOUND] = SANDBOX_NOT_FOUND, [WIRE_END_NOT_STARTED] = SANDBOX_NOT_STARTED,
        [WIRE_END_TIMED_OUT] = SANDBOX_TIMED_OUT, [WIRE_END_KILLED] = SANDBOX_KILLED,
    };
    struct sandbox_job *job = LIST_OF(flow, struct sandbox_job, flow);
    struct wire_exit exit;
    if (frame->type != WIRE_EXIT)
        return err_set(err, ERR_PROTOCOL, "unexpected %s frame", wire_type_name(frame->type));
    if (wire_exit_read(frame->payload, &exit, err) < 0)
        return -1;
    job->exit = (struct sandbox_exit){.end = ends[exit.end],
                                      .code = exit.code,
                                      .signal_number = exit.signal_number,
                                      .wall_ms = exit.wall_us / 1000,
                                      .user_us = exit.user_us,
                                      .system_us = exit.system_us,
                                      .rss_bytes_peak = exit.rss_bytes_peak,
                                      .output_bytes_dropped = exit.output_bytes_dropped};
    snprintf(job->exit.text, sizeof job->exit.text, "%.*s", STR_ARGS(exit.text));
    struct channel *channel = flow->channel;
    flow_leave(flow);
    if (job->exit.end == SANDBOX_SIGNALED && job->exit.signal_number == SIGKILL && !job->closed &&
        channel->handlers.on_killed) {
        job->judging = true;
        channel->handlers.on_killed(channel->context, job);
        return 0;
    }
    job->finished = true;
    advance(job);
    job_free_if_over(job);
    return 0;
}

static void on_lost(struct flow *flow, const struct err *err)
{
    struct sandbox_job *job = LIST_OF(flow, struct sandbox_job, flow);
    job->exit = (struct sandbox_exit){.end = SANDBOX_LOST};
    snprintf(job->exit.text, sizeof job->exit.text, "%s", err->text);
    job->finished = true;
    job->paused = false; /* what is held is all there will ever be */
    advance(job);
    job_free_if_over(job);
}

static void on_abandoned(struct flow *flow)
{
    struct sandbox_job *job = LIST_OF(flow, struct sandbox_job, flow);
    job->finished = job->done = true;
    job->exit.end = SANDBOX_LOST;
    buf_clear(&job->held);
    if (job->on_abandoned && !job->closed)
        job->on_abandoned(job->context); /* closes the job */
    else
        job_free_if_over(job);
}

void channel_judge(struct sandbox_job *job, enum channel_verdict verdict)
{
    CHECK(job->judging);
    job->judging = false;
    if (verdict == CHANNEL_SILENCE) {
        on_abandoned(&job->flow);
        return;
    }
    if (verdict == CHANNEL_OUT_OF_MEMORY) {
        job->exit.end = SANDBOX_OUT_OF_MEMORY;
        snprintf(job->exit.text, sizeof job->exit.text,
                 "killed because the sandbox's memory was used up");
    }
    job->finished = true;
    advance(job);
    job_free_if_over(job);
}

static void on_room(struct flow *flow)
{
    struct sandbox_job *job = LIST_OF(flow, struct sandbox_job, flow);
    bool sent = false;
    size_t room;
    while (job->input.size && (room = flow_room(flow))) {
        struct str piece = str_upto(buf_str(&job->input), room);
        flow_send(flow, piece);
        if (!flow->channel || !channel_usable(flow->channel))
            return;
        explicit_bzero(job->input.data, piece.size);
        buf_consume(&job->input, piece.size);
        sent = true;
    }
    if (job->input.size)
        return;
    if (job->input_ending && !job->input_ended) {
        job->input_ended = true;
        flow_control(flow, WIRE_END);
    }
    if (sent && job->drain_wanted)
        defer(job);
}

static const struct flow_class job_class = {
    .on_data = on_data,
    .on_final = on_final,
    .on_lost = on_lost,
    .on_abandoned = on_abandoned,
    .on_room = on_room,
};

/* ---------------------------------------------------------------- the door */
/* It ends without ever having begun; told later, as always. */
static void end_early(struct sandbox_job *job, struct channel *channel, enum sandbox_end end,
                      int code, const char *text)
{
    job->exit = (struct sandbox_exit){.end = end, .code = code};
    snprintf(job->exit.text, sizeof job->exit.text, "%s", text);
    job->finished = job->deferred = true;
    flow_end_early(&job->flow, channel, run_deferred, job);
}

struct sandbox_job *channel_run(struct channel *channel, const struct sandbox_command *command,
                                const struct sandbox_job_handlers *handlers, void *context)
{
    struct sandbox_job *job = mem_zero(sizeof *job);
    job->loop = channel->loop;
    job->handlers = *handlers;
    job->context = context;
    if (!channel_usable(channel)) {
        end_early(job, channel, SANDBOX_LOST, 0,
                  channel->lost ? channel->lost_err.text : "the sandbox is closed");
        return job;
    }
    const char *shell[] = {command->shell, NULL};
    struct wire_exec exec = {
        .flags = (command->argv ? 0 : WIRE_EXEC_SHELL) |
                 (command->stdin_open || command->pty ? WIRE_EXEC_STDIN : 0) |
                 (command->pty ? WIRE_EXEC_PTY : 0) | (command->detached ? WIRE_EXEC_DETACHED : 0) |
                 (command->env_only ? WIRE_EXEC_ENV_ONLY : 0) |
                 (command->keep && channel->can_resume ? WIRE_EXEC_KEEP : 0),
        .rows = command->rows,
        .columns = command->columns,
        .timeout_ms = command->timeout_ms,
        .grace_ms = command->grace_ms,
        .output_bytes_max = command->output_bytes_max,
        .cwd = str_of(command->cwd),
        .user = str_of(command->user),
    };
    struct err err = {0};
    flow_open(&job->flow, channel, &job_class);
    if (wire_exec_add(&channel->queue, job->flow.id, &exec, command->argv ? command->argv : shell,
                      command->env, &err) < 0) {
        flow_leave(&job->flow);
        end_early(job, channel, SANDBOX_NOT_STARTED, err.kind == ERR_LIMIT ? E2BIG : EINVAL,
                  err.text);
        return job;
    }
    channel_flush(channel);
    return job;
}

struct sandbox_job *channel_attach(struct channel *channel, const struct wire_kept *kept,
                                   uint64_t position, const struct sandbox_job_handlers *handlers,
                                   void *context)
{
    struct sandbox_job *job = mem_zero(sizeof *job);
    job->loop = channel->loop;
    job->handlers = *handlers;
    job->context = context;
    if (!channel_usable(channel)) {
        end_early(job, channel, SANDBOX_LOST, 0,
                  channel->lost ? channel->lost_err.text : "the sandbox is closed");
        return job;
    }
    flow_adopt(&job->flow, channel, &job_class, kept->stream);
    job->flow.out.available = kept->input_room;
    job->input_ending = job->input_ended = kept->flags & WIRE_KEPT_INPUT_ENDED;
    wire_attach_add(&channel->queue, kept->stream, position);
    channel_flush(channel);
    return job;
}

size_t sandbox_job_write(struct sandbox_job *job, struct str data)
{
    if (job->finished || job->input_ending || !job->flow.channel)
        return 0;
    buf_str_append(&job->input, data);
    on_room(&job->flow);
    job->drain_wanted = job->input.size > 0;
    return job->input.size;
}

void sandbox_job_end_input(struct sandbox_job *job)
{
    job->input_ending = true;
    if (job->flow.channel && !job->finished)
        on_room(&job->flow);
}

void sandbox_job_resize(struct sandbox_job *job, uint16_t rows, uint16_t columns)
{
    struct channel *channel = job->flow.channel;
    if (!channel || !channel_usable(channel))
        return;
    wire_resize_add(&channel->queue, job->flow.id, rows, columns);
    channel_flush(channel);
}

void sandbox_job_pause(struct sandbox_job *job)
{
    job->paused = true;
}

void sandbox_job_resume(struct sandbox_job *job)
{
    if (!job->paused)
        return;
    job->paused = false;
    if (!job->done && (job->held.size || job->finished))
        defer(job);
}

void sandbox_job_signal(struct sandbox_job *job, int signal_number)
{
    struct channel *channel = job->flow.channel;
    if (!channel || !channel_usable(channel) || signal_number < 1 || signal_number > 64)
        return;
    wire_signal_add(&channel->queue, job->flow.id, (uint8_t)signal_number);
    channel_flush(channel);
}

void sandbox_job_kill(struct sandbox_job *job)
{
    flow_control(&job->flow, WIRE_KILL);
}

bool sandbox_job_is_done(const struct sandbox_job *job)
{
    return job->finished;
}

void sandbox_job_close(struct sandbox_job *job)
{
    if (!job || job->closed)
        return;
    job->closed = true;
    job->done = true;
    /* Nobody will look at what is held: let the command run into its end. */
    size_t held = 0;
    while (!job->busy && job->held.size) {
        uint32_t size;
        memcpy(&size, job->held.data + 1, sizeof size);
        buf_consume(&job->held, 5 + size);
        held += size;
    }
    if (held)
        flow_consumed(&job->flow, held);
    if (!job->finished)
        flow_control(&job->flow, WIRE_KILL);
    job_free_if_over(job);
}

/* ---------------------------------------------------------------- to the end in one call */
struct whole {
    struct sandbox_job *job;
    struct buf streams[2];
    size_t bytes_max;
    bool truncated;
    void (*on_done)(void *context, const struct sandbox_outcome *outcome);
    void *context;
};

static void whole_free(void *context)
{
    struct whole *whole = context;
    sandbox_job_close(whole->job);
    buf_deinit(&whole->streams[0]);
    buf_deinit(&whole->streams[1]);
    free(whole);
}

static void whole_output(void *context, int stream, struct str data)
{
    struct whole *whole = context;
    struct buf *buf = &whole->streams[stream == 2];
    struct str kept = str_upto(data, whole->bytes_max - buf->size);
    whole->truncated |= kept.size < data.size;
    buf_str_append(buf, kept);
}

static void whole_exit(void *context, const struct sandbox_exit *exit)
{
    struct whole *whole = context;
    struct sandbox_outcome outcome = {
        .exit = *exit,
        .out = buf_str(&whole->streams[0]),
        .err_out = buf_str(&whole->streams[1]),
        .truncated = whole->truncated || exit->output_bytes_dropped > 0,
    };
    whole->on_done(whole->context, &outcome);
    whole_free(whole);
}

void channel_run_whole(struct channel *channel, const struct sandbox_command *command,
                       struct str input, size_t bytes_max,
                       void (*on_done)(void *context, const struct sandbox_outcome *outcome),
                       void *context)
{
    static const struct sandbox_job_handlers handlers = {.on_output = whole_output,
                                                         .on_exit = whole_exit};
    struct whole *whole = mem_zero(sizeof *whole);
    whole->bytes_max = bytes_max;
    whole->on_done = on_done;
    whole->context = context;
    struct sandbox_command own = *command;
    own.stdin_open = own.stdin_open || input.size > 0;
    whole->job = channel_run(channel, &own, &handlers, whole);
    whole->job->on_abandoned = whole_free;
    if (own.stdin_open) {
        sandbox_job_write(whole->job, input);
        sandbox_job_end_input(whole->job);
    }
}
