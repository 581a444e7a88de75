/* work.c - what is done with a task inside a sandbox, as one small machine.
 *
 *     prepare:   put environment/ -> put each file
 *     setup:     command -> command -> ...            the first failure ends it
 *     collect:   command -> command -> ...            all of them
 *     solution:  put solution/
 *     verify:    see verify.c
 *
 * Each step starts one asynchronous thing; its callback notes what it learned and goes on. */
#include "task/task.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/mem.h"
#include "sandbox/sandbox.h"
#include "task/internal.h"

static void step(struct task_work *work);

struct task_work *work_new(enum work_kind kind, struct task *task, struct sandbox *sandbox,
                           uint32_t ms_max, void *context)
{
    struct task_work *work = mem_zero(sizeof *work);
    work->kind = kind;
    work->task = task_ref(task);
    work->sandbox = sandbox;
    work->context = context;
    work->cwd = task->workdir;
    work->user = task->agent_user ? task->agent_user : task->root ? "root" : NULL;
    work->deadline_ms = clock_mono_ms() + (ms_max ? ms_max : 600000);
    return work;
}

void task_work_close(struct task_work *work)
{
    if (!work)
        return;
    if (work->job)
        sandbox_job_close(work->job);
    if (work->empty_dir[0])
        (void)rmdir(work->empty_dir);
    task_unref(work->task);
    buf_deinit(&work->output);
    buf_deinit(&work->log);
    arena_deinit(&work->arena);
    free(work);
}

void work_finish(struct task_work *work)
{
    work->step = WORK_DONE;
    if (work->empty_dir[0]) {
        (void)rmdir(work->empty_dir);
        work->empty_dir[0] = '\0';
    }
    switch (work->kind) {
    case WORK_PREPARE:
    case WORK_SOLUTION:
        work->on_done(work->context, &work->err);
        return;
    case WORK_SETUP:
    case WORK_COLLECT:
        work->on_commands(work->context, work->done, work->done_count, &work->err);
        return;
    case WORK_VERIFY:
        task_secrets_hide(work->secrets, &work->log);
        if (work->log_cut)
            task_secrets_trim(work->secrets, &work->log, false);
        work->verdict.err = work->err;
        work->verdict.commands = work->done;
        work->verdict.count = work->done_count;
        work->verdict.log = buf_str(&work->log);
        work->verdict.user = work->user ? work->user : "";
        if (work->err.kind != ERR_NONE)
            work->verdict.reward = (struct trace_reward){0};
        work->on_verdict(work->context, &work->verdict);
        return;
    }
}

void work_fail(struct task_work *work, const struct err *err)
{
    err_copy(&work->err, err);
    work_finish(work);
}

void work_go(struct task_work *work, enum work_step next)
{
    work->step = next;
    step(work);
}

void work_on_file_done(void *context, const struct err *err)
{
    struct task_work *work = context;
    if (err && err->kind != ERR_NONE)
        work_fail(work, err);
    else
        step(work);
}

static const char *empty_dir(struct task_work *work)
{
    const char *base = getenv("TMPDIR");
    if (!base || base[0] != '/' || strlen(base) > 30)
        base = "/tmp";
    snprintf(work->empty_dir, sizeof work->empty_dir, "%s/postern-empty-XXXXXX", base);
    if (mkdtemp(work->empty_dir))
        return work->empty_dir;
    work->empty_dir[0] = '\0';
    return NULL;
}

void work_put_empty(struct task_work *work, const char *path, const char *user)
{
    const char *dir = work->empty_dir[0] ? work->empty_dir : empty_dir(work);
    if (!dir)
        dir = "/nonexistent"; /* the operation reports it */
    sandbox_put_tree(work->sandbox, dir, path, user, work_on_file_done, work);
}

static void put_file(struct task_work *work, const struct task_file *file)
{
    const char *path = file->path;
    if (path[0] != '/')
        path = arena_format(&work->arena, "%s/%s", work->task->workdir, path);
    sandbox_put(work->sandbox, path, file->content, file->mode, work->user, work_on_file_done,
                work);
}

/* ---------------------------------------------------------------- commands */
static void on_output(void *context, int stream, struct str data)
{
    struct task_work *work = context;
    (void)stream;
    buf_str_append(&work->output, data);
    if (work->output.size > 2 * TASK_OUTPUT_KEPT) {
        buf_consume(&work->output, work->output.size - TASK_OUTPUT_KEPT);
        work->output_cut = true;
    }
    size_t room = work->log.size < TASK_LOG_MAX ? TASK_LOG_MAX - work->log.size : 0;
    work->log_cut = work->log_cut || data.size > room;
    buf_str_append(&work->log, str_upto(data, room));
}

static void note_command(struct task_work *work, const struct sandbox_exit *exit)
{
    struct trace_command *row = &work->done[work->done_count++];
    task_secrets_hide(work->secrets, &work->output);
    if (work->output_cut)
        task_secrets_trim(work->secrets, &work->output, true);
    struct str output = buf_str(&work->output);
    if (output.size > TASK_OUTPUT_KEPT) {
        output = str_from(output, output.size - TASK_OUTPUT_KEPT);
        work->output_cut = true;
    }
    row->command = str_of(work->list[work->at].shell);
    row->end = sandbox_end_name(exit->end);
    row->code = sandbox_exit_code(exit);
    row->wall_ms = exit->wall_ms;
    row->output = arena_str(&work->arena, output);
    row->output_cut = work->output_cut;
    buf_clear(&work->output);
    work->output_cut = false;
}

static void on_command_exit(void *context, const struct sandbox_exit *exit)
{
    struct task_work *work = context;
    bool passed = exit->end == SANDBOX_EXITED && exit->code == 0;
    bool is_script = work->script_first && work->at == 0;
    const char *shell = work->list[work->at].shell;

    sandbox_job_close(work->job);
    work->job = NULL;
    if (is_script && !work->no_bash && exit->end == SANDBOX_NOT_FOUND) {
        /* An image without bash: what every image has must do. */
        work->no_bash = true;
        work->list[0].shell = "sh " TASK_TESTS "/test.sh";
        work_run_command(work);
        return;
    }
    note_command(work, exit);

    if (exit->end == SANDBOX_LOST) {
        err_set(&work->err, ERR_LOST, "the sandbox was lost while '%.100s' ran: %s", shell,
                exit->text);
        work_finish(work);
        return;
    }
    if (work->kind == WORK_SETUP && !passed) {
        err_set(&work->err, ERR_INPUT, "setup command '%.100s': %s", shell, exit->text);
        work_finish(work);
        return;
    }
    if (work->kind == WORK_VERIFY && exit->end != SANDBOX_EXITED && exit->end != SANDBOX_SIGNALED &&
        (is_script || exit->end == SANDBOX_NOT_FOUND || exit->end == SANDBOX_NOT_STARTED)) {
        err_set(&work->err, exit->end == SANDBOX_TIMED_OUT ? ERR_TIMEOUT : ERR_PROTOCOL,
                "the verifier's '%.100s': %s", shell, exit->text);
        work_finish(work);
        return;
    }
    work->at++;
    step(work);
}

void work_run_command(struct task_work *work)
{
    struct task_command *command = &work->list[work->at];
    uint64_t now = clock_mono_ms();
    uint64_t left = work->deadline_ms > now ? work->deadline_ms - now : 1;
    if (command->timeout_ms && command->timeout_ms < left)
        left = command->timeout_ms;
    const char *const script[] = {work->no_bash ? "/bin/sh" : "bash", TASK_TESTS "/test.sh", NULL};
    bool is_script = work->script_first && work->at == 0;
    struct sandbox_command run = {
        .argv = is_script ? script : NULL,
        .shell = is_script ? NULL : command->shell,
        .env = work->env,
        .cwd = work->cwd,
        .user = command->user ? command->user : work->user,
        .timeout_ms = left > UINT32_MAX ? UINT32_MAX : (uint32_t)left,
    };
    struct sandbox_job_handlers handlers = {.on_output = on_output, .on_exit = on_command_exit};
    if (work->log.size < TASK_LOG_MAX)
        buf_format(&work->log, "$ %.500s\n", command->shell);
    work->job = sandbox_run(work->sandbox, &run, &handlers, work);
}

/* ---------------------------------------------------------------- the steps */
static void step(struct task_work *work)
{
    struct task *task = work->task;
    if (work->err.kind != ERR_NONE) {
        work_finish(work);
        return;
    }
    switch (work->step) {
    case WORK_PUT_ENVIRONMENT:
        work->step = task->logs_dir ? WORK_MAKE_ARTIFACTS : WORK_PUT_FILES;
        if (task->environment_dir)
            sandbox_put_tree(work->sandbox, task->environment_dir, task->workdir, work->user,
                             work_on_file_done, work);
        else
            work_put_empty(work, task->workdir, work->user);
        return;
    case WORK_MAKE_ARTIFACTS:
        work->step = WORK_PUT_FILES;
        work_put_empty(work, TASK_ARTIFACTS, work->user);
        return;
    case WORK_PUT_FILES:
        if (work->at == task->file_count || work->kind == WORK_SOLUTION) {
            work_finish(work);
            return;
        }
        put_file(work, &task->files[work->at++]);
        return;
    case WORK_COMMANDS:
        if (work->at < work->list_count) {
            work_run_command(work);
            return;
        }
        if (work->kind != WORK_VERIFY) {
            work_finish(work);
            return;
        }
        work->step = WORK_QUIET;
        verify_step(work);
        return;
    case WORK_CLEAR_LOGS:
    case WORK_CLEAR_TESTS:
    case WORK_MAKE_LOGS:
    case WORK_MAKE_HOME:
    case WORK_PUT_TESTS:
    case WORK_PUT_MORE_TESTS:
    case WORK_LOOK:
    case WORK_LOOK_PATH:
    case WORK_QUIET:
    case WORK_STAT_JSON:
    case WORK_STAT_TEXT:
        verify_step(work);
        return;
    case WORK_DONE:
        return;
    }
}

/* ---------------------------------------------------------------- starting */
void work_set_env_entry(struct task_work *work, const char *entry)
{
    size_t name = strcspn(entry, "=") + 1;
    for (size_t i = 0; i < work->env_count; i++)
        if (strncmp(work->env[i], entry, name) == 0) {
            work->env[i] = entry;
            return;
        }
    const char **more = arena_alloc(&work->arena, (work->env_count + 2) * sizeof *more);
    if (work->env_count)
        memcpy(more, work->env, work->env_count * sizeof *more);
    more[work->env_count++] = entry;
    work->env = more;
}

void work_set_env(struct task_work *work, const char *const *const *lists, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const char *const *entries = NULL;
        if (task_env_resolve(work->task, lists[i], &work->arena, &entries, &work->secrets,
                             &work->err) < 0)
            return;
        for (; *entries; entries++)
            work_set_env_entry(work, *entries);
    }
}

void work_set_commands(struct task_work *work, const struct task_command *commands, size_t count,
                       const char *script)
{
    work->script_first = script != NULL;
    work->list_count = count + work->script_first;
    work->list = arena_alloc(&work->arena, (work->list_count + 1) * sizeof *work->list);
    work->done = arena_alloc(&work->arena, (work->list_count + 1) * sizeof *work->done);
    if (script)
        work->list[0].shell = "bash " TASK_TESTS "/test.sh";
    if (count)
        memcpy(work->list + work->script_first, commands, count * sizeof *commands);
}

struct task_work *task_prepare(struct task *task, struct sandbox *sandbox,
                               void (*on_done)(void *context, const struct err *err), void *context)
{
    struct task_work *work = work_new(WORK_PREPARE, task, sandbox, 0, context);
    work->on_done = on_done;
    work_go(work, WORK_PUT_ENVIRONMENT);
    return work;
}

struct task_work *task_put_solution(struct task *task, struct sandbox *sandbox,
                                    void (*on_done)(void *context, const struct err *err),
                                    void *context)
{
    struct task_work *work = work_new(WORK_SOLUTION, task, sandbox, 0, context);
    work->on_done = on_done;
    work->step = WORK_PUT_FILES;
    if (task->solution_dir)
        sandbox_put_tree(sandbox, task->solution_dir, TASK_SOLUTION, work->user, work_on_file_done,
                         work);
    else
        work_put_empty(work, TASK_SOLUTION, work->user);
    return work;
}

static void commands_failed(void *argument, const struct sandbox_stat *stat, const struct err *err)
{
    (void)stat;
    (void)err;
    work_finish(argument);
}

static struct task_work *run_commands(enum work_kind kind, struct task *task,
                                      struct sandbox *sandbox, bool as_root, uint32_t ms_max,
                                      task_commands_done on_done, void *context)
{
    struct task_work *work = work_new(kind, task, sandbox, ms_max, context);
    if (as_root && !task->agent_user)
        work->user = "root";
    const struct task_command *commands = kind == WORK_SETUP ? task->setup : task->collect;
    size_t count = kind == WORK_SETUP ? task->setup_count : task->collect_count;
    CHECK(count > 0);
    work->on_commands = on_done;
    work_set_env(work, &task->env, 1);
    work_set_commands(work, commands, count, NULL);
    work->step = WORK_COMMANDS;
    if (work->err.kind != ERR_NONE)
        sandbox_stat(sandbox, "/", commands_failed, work); /* later, as promised */
    else
        step(work);
    return work;
}

struct task_work *task_setup(struct task *task, struct sandbox *sandbox, uint32_t ms_max,
                             task_commands_done on_done, void *context)
{
    return run_commands(WORK_SETUP, task, sandbox, false, ms_max, on_done, context);
}

struct task_work *task_collect(struct task *task, struct sandbox *sandbox, bool as_root,
                               uint32_t ms_max, task_commands_done on_done, void *context)
{
    return run_commands(WORK_COLLECT, task, sandbox, as_root, ms_max, on_done, context);
}
