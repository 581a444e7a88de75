/* exec.c - one command in a fresh sandbox with this process's standard streams.
 *
 *     open sandbox -> start the command -> streams both ways -> exit -> flush -> destroy -> exit
 * code
 *
 * No lanes, no store: one loop and a keeper of its own that is gone with it. Signals that ask this
 * process to end are handed on to the command first; a second one ends it. Whatever happens, the
 * sandbox is destroyed before we return. */
#include "runtime/runtime.h"

#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "runtime/internal.h"

#define GIVE_UP_MS 10000 /* for readers of our output that do not read */

struct exec {
    const struct runtime_exec *asked;
    struct loop *loop;
    struct sandboxes *sandboxes;
    struct sandbox *sandbox;
    struct sandbox_job *job;
    struct stdio *stdio;
    struct loop_signal signal;
    struct loop_timer give_up;
    unsigned signals;
    int code; /* what the process returns; -1: Postern failed, `err` says why */
    struct err err;
    char *note;
    size_t note_size;
    bool ending, exited;
};

static void on_sandboxes_closed(void *context)
{
    struct exec *exec = context;
    exec->sandboxes = NULL;
    loop_stop(exec->loop);
}

static void close_all(void *context)
{
    struct exec *exec = context;
    if (exec->ending)
        return;
    exec->ending = true;
    loop_timer_stop(&exec->give_up);
    if (exec->job)
        sandbox_job_close(TAKE(exec->job));
    if (exec->sandbox)
        sandbox_close(TAKE(exec->sandbox), NULL, NULL);
    sandboxes_close(exec->sandboxes, on_sandboxes_closed, exec);
}

static void on_give_up(struct loop_timer *timer)
{
    close_all(timer->context);
}

static void say(struct exec *exec, const char *text)
{
    snprintf(exec->note, exec->note_size, "%s", text);
}

static void on_job_exit(void *context, const struct sandbox_exit *exit)
{
    struct exec *exec = context;
    exec->exited = true;
    exec->code = sandbox_exit_code(exit);
    switch (exit->end) {
    case SANDBOX_LOST:
        exec->code = -1;
        err_set(&exec->err, ERR_LOST, "the sandbox was lost: %s", exit->text);
        break;
    case SANDBOX_NOT_FOUND:
    case SANDBOX_NOT_STARTED:
    case SANDBOX_TIMED_OUT:
    case SANDBOX_OUT_OF_MEMORY:
        say(exec, exit->text);
        break;
    case SANDBOX_EXITED:
    case SANDBOX_SIGNALED:
    case SANDBOX_KILLED:
        break;
    }
    loop_timer_start(exec->loop, &exec->give_up, GIVE_UP_MS, on_give_up, exec);
    stdio_finish(exec->stdio, close_all);
}

static void on_job_output(void *context, int stream, struct str data)
{
    struct exec *exec = context;
    stdio_output(exec->stdio, stream, data);
}

static void on_job_drain(void *context)
{
    struct exec *exec = context;
    stdio_drained(exec->stdio);
}

/* Nobody reads our output any more: the command ends as it would in a pipe. */
static void on_broken(void *context)
{
    struct exec *exec = context;
    if (exec->job && !exec->exited)
        sandbox_job_signal(exec->job, SIGPIPE);
}

static void on_lost(void *context, const struct err *err)
{
    struct exec *exec = context;
    if (exec->exited || exec->ending)
        return;
    exec->code = -1;
    exec->err = *err;
    err_wrap(&exec->err, "the sandbox was lost");
    close_all(exec);
}

static void on_open(void *context, struct sandbox *sandbox, const struct err *err)
{
    struct exec *exec = context;
    const struct runtime_exec *asked = exec->asked;
    if (err && err->kind != ERR_NONE) {
        exec->code = -1;
        exec->err = *err;
        close_all(exec);
        return;
    }
    sandbox_on_lost(sandbox, on_lost, exec);
    struct sandbox_command command = {
        .argv = asked->argv,
        .env = asked->env,
        .cwd = asked->cwd,
        .user = asked->user,
        .stdin_open = true,
        .pty = asked->pty,
        .timeout_ms = asked->timeout_ms,
    };
    if (asked->pty && !stdio_size(&command.rows, &command.columns)) {
        command.rows = 24;
        command.columns = 80;
    }
    struct sandbox_job_handlers handlers = {
        .on_output = on_job_output, .on_exit = on_job_exit, .on_drain = on_job_drain};
    exec->stdio = stdio_new(exec->loop, asked->pty && isatty(STDIN_FILENO), on_broken, exec);
    exec->job = sandbox_run(sandbox, &command, &handlers, exec);
    stdio_attach(exec->stdio, exec->job);
}

static void on_signal(struct loop_signal *signal_watch, int number)
{
    struct exec *exec = signal_watch->context;
    if (number == SIGWINCH) {
        uint16_t rows, columns;
        if (exec->job && exec->asked->pty && stdio_size(&rows, &columns))
            sandbox_job_resize(exec->job, rows, columns);
        return;
    }
    exec->signals++;
    if (!exec->job || exec->signals > 2) {
        exec->code = 128 + number;
        close_all(exec);
        return;
    }
    if (exec->signals == 1)
        sandbox_job_signal(exec->job, number);
    else
        sandbox_job_kill(exec->job);
}

static int start(struct exec *exec, const struct config *config, struct err *err)
{
    const struct runtime_exec *asked = exec->asked;
    const int numbers[] = {SIGINT, SIGTERM, SIGHUP, SIGWINCH};
    struct sandbox_options options = machine_sandbox_options(config);
    options.keeper_private = true;
    (void)signal(SIGPIPE, SIG_IGN);
    exec->loop = loop_new(err);
    if (!exec->loop ||
        loop_signal_start(exec->loop, &exec->signal, numbers, COUNT(numbers), on_signal, exec,
                          err) < 0 ||
        file_make_dirs(config->home, 0755, err) < 0)
        return -1;
    exec->sandboxes = sandboxes_new(exec->loop, &options, err);
    if (!exec->sandboxes)
        return -1;
    struct sandbox_spec spec = {
        .backend = asked->backend,
        .root = asked->root,
        .memory_bytes_max = asked->memory_bytes_max,
        .pids_max = asked->pids_max,
        .cpu_millis = asked->cpu_millis,
        .isolation = (enum sandbox_isolation)asked->isolation,
        .root_user = asked->root_user,
        .label = "exec",
    };
    exec->sandbox = sandbox_open(exec->sandboxes, &spec, on_open, exec);
    return 0;
}

int runtime_exec(const struct config *config, const struct runtime_exec *asked, char *note,
                 size_t note_size, struct err *err)
{
    struct exec exec = {.asked = asked, .note = note, .note_size = note_size, .code = -1};
    note[0] = '\0';
    int result = start(&exec, config, err);
    if (result == 0) {
        loop_run(exec.loop);
        err_copy(err, &exec.err);
    }
    stdio_free(exec.stdio);
    if (exec.loop) {
        loop_signal_stop(&exec.signal);
        loop_free(exec.loop);
    }
    return result < 0 ? -1 : exec.code;
}
