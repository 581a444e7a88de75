/* work.c - the three things done with a task inside a sandbox, as one small machine.
 *
 *     prepare:  put environment/ -> put each file
 *     setup:    command -> command -> ...            the first failure ends it
 *     verify:   clear /logs and /tests -> make /logs/verifier -> put tests -> look at the working
 *               directory -> test script and verify commands, all of them -> reward.txt ->
 * reward.json
 *
 * Each step starts one asynchronous thing; its callback notes what it learned and calls step()
 * again. The verifier trusts nothing the agent could have left: it gets an environment of its own,
 * files that arrive only now, and a reward file that did not exist before. */
#include "task/task.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/mem.h"
#include "sandbox/sandbox.h"
#include "task/internal.h"

enum work_step {
    WORK_PUT_ENVIRONMENT,
    WORK_PUT_FILES,
    WORK_CLEAR_LOGS,
    WORK_CLEAR_TESTS,
    WORK_MAKE_LOGS,
    WORK_PUT_TESTS,
    WORK_LOOK,
    WORK_COMMANDS,
    WORK_REWARD_TEXT,
    WORK_REWARD_JSON,
    WORK_DONE,
};
enum work_kind { WORK_PREPARE, WORK_SETUP, WORK_VERIFY };

struct task_work {
    enum work_kind kind;
    enum work_step step;
    struct task *task;
    struct sandbox *sandbox;
    struct sandbox_job *job;
    size_t at; /* file or command */
    struct task_command *list;
    size_t list_count;
    bool script_first; /* list[0] is the test script */
    struct trace_command *done;
    size_t done_count;
    struct buf output; /* of the running command: its tail */
    bool output_cut;
    struct buf log;
    uint64_t deadline_ms; /* monotonic */
    const char *user, *cwd;
    const char **env;
    char empty_dir[64]; /* a host directory with nothing in it */
    struct arena arena;
    struct err err;
    struct task_verdict verdict;
    void (*on_prepared)(void *, const struct err *);
    void (*on_setup)(void *, const struct trace_command *, size_t, const struct err *);
    void (*on_verdict)(void *, const struct task_verdict *);
    void *context;
};

static void step(struct task_work *work);

static const char *const verifier_env[] = {
    "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LANG=C.UTF-8",
    "TERM=dumb",
    "PYTHONDONTWRITEBYTECODE=1",
    "PYTHONNOUSERSITE=1",
};

static struct task_work *work_new(enum work_kind kind, struct task *task, struct sandbox *sandbox,
                                  uint32_t ms_max, void *context)
{
    struct task_work *work = mem_zero(sizeof *work);
    work->kind = kind;
    work->task = task_ref(task);
    work->sandbox = sandbox;
    work->context = context;
    work->cwd = task->workdir;
    work->user = task->root ? "root" : NULL;
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

static void finish(struct task_work *work)
{
    work->step = WORK_DONE;
    if (work->empty_dir[0]) {
        (void)rmdir(work->empty_dir);
        work->empty_dir[0] = '\0';
    }
    switch (work->kind) {
    case WORK_PREPARE:
        work->on_prepared(work->context, &work->err);
        return;
    case WORK_SETUP:
        work->on_setup(work->context, work->done, work->done_count, &work->err);
        return;
    case WORK_VERIFY:
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

static void go(struct task_work *work, enum work_step next)
{
    work->step = next;
    step(work);
}

/* Most steps: one file operation whose failure ends the work. `step` holds the step that follows.
 */
static void on_file_done(void *context, const struct err *err)
{
    struct task_work *work = context;
    if (err && err->kind != ERR_NONE) {
        err_copy(&work->err, err);
        finish(work);
        return;
    }
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

static void put_empty(struct task_work *work, const char *path, const char *user)
{
    const char *dir = work->empty_dir[0] ? work->empty_dir : empty_dir(work);
    if (!dir)
        dir = "/nonexistent"; /* the operation reports it */
    sandbox_put_tree(work->sandbox, dir, path, user, on_file_done, work);
}

static void put_file(struct task_work *work, const struct task_file *file)
{
    const char *path = file->path;
    if (path[0] != '/')
        path = arena_format(&work->arena, "%s/%s", work->task->workdir, path);
    sandbox_put(work->sandbox, path, file->content, file->mode, work->user, on_file_done, work);
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
    if (work->log.size < TASK_LOG_MAX)
        buf_str_append(&work->log, str_upto(data, TASK_LOG_MAX - work->log.size));
}

static void note_command(struct task_work *work, const struct sandbox_exit *exit)
{
    struct trace_command *row = &work->done[work->done_count++];
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

    note_command(work, exit);
    sandbox_job_close(work->job);
    work->job = NULL;

    if (exit->end == SANDBOX_LOST) {
        err_set(&work->err, ERR_LOST, "the sandbox was lost while '%.100s' ran: %s", shell,
                exit->text);
        finish(work);
        return;
    }
    if (work->kind == WORK_SETUP && !passed) {
        err_set(&work->err, ERR_INPUT, "setup command '%.100s': %s", shell, exit->text);
        finish(work);
        return;
    }
    if (work->kind == WORK_VERIFY && exit->end != SANDBOX_EXITED && exit->end != SANDBOX_SIGNALED &&
        (is_script || exit->end == SANDBOX_NOT_FOUND || exit->end == SANDBOX_NOT_STARTED)) {
        err_set(&work->err, exit->end == SANDBOX_TIMED_OUT ? ERR_TIMEOUT : ERR_PROTOCOL,
                "the verifier's '%.100s': %s", shell, exit->text);
        finish(work);
        return;
    }
    work->at++;
    step(work);
}

static void run_command(struct task_work *work)
{
    struct task_command *command = &work->list[work->at];
    uint64_t now = clock_mono_ms();
    uint64_t left = work->deadline_ms > now ? work->deadline_ms - now : 1;
    if (command->timeout_ms && command->timeout_ms < left)
        left = command->timeout_ms;
    const char *const script[] = {"bash", TASK_TESTS "/test.sh", NULL};
    bool is_script = work->script_first && work->at == 0;
    struct sandbox_command run = {
        .argv = is_script ? script : NULL,
        .shell = is_script ? NULL : command->shell,
        .env = work->env,
        .env_only = work->kind == WORK_VERIFY,
        .cwd = work->cwd,
        .user = command->user ? command->user : work->user,
        .timeout_ms = left > UINT32_MAX ? UINT32_MAX : (uint32_t)left,
    };
    struct sandbox_job_handlers handlers = {.on_output = on_output, .on_exit = on_command_exit};
    if (work->log.size < TASK_LOG_MAX)
        buf_format(&work->log, "$ %.500s\n", command->shell);
    work->job = sandbox_run(work->sandbox, &run, &handlers, work);
}

/* ---------------------------------------------------------------- looking around */
static void on_workdir(void *context, const struct sandbox_stat *stat, const struct err *err)
{
    struct task_work *work = context;
    if (err && err->kind != ERR_NONE) {
        err_copy(&work->err, err);
        finish(work);
        return;
    }
    /* An agent that removed its working directory must not break the verifier by that. */
    if (stat->kind != SANDBOX_FILE_DIRECTORY)
        work->cwd = "/";
    go(work, WORK_COMMANDS);
}

static void on_reward_text(void *context, struct str content, const struct err *err)
{
    struct task_work *work = context;
    if (err && err->kind == ERR_NOT_FOUND) {
        go(work, WORK_REWARD_JSON);
        return;
    }
    double value = 0;
    if (err && err->kind != ERR_NONE)
        err_copy(&work->err, err);
    else if (task_reward_read(content, &value, &work->err))
        work->verdict.reward =
            (struct trace_reward){.known = true, .value = value, .source = "file"};
    finish(work);
}

static void reward_from_commands(struct task_work *work)
{
    size_t first = work->script_first ? 1 : 0;
    if (work->list_count == first) {
        err_set(&work->err, ERR_PROTOCOL, "the verifier wrote no reward to " TASK_REWARD_TEXT);
        return;
    }
    uint32_t passed = 0, total = (uint32_t)(work->list_count - first);
    for (size_t i = first; i < work->done_count; i++)
        if (work->done[i].code == 0 && strcmp(work->done[i].end, "exited") == 0)
            passed++;
    work->verdict.reward = (struct trace_reward){.known = true,
                                                 .value = (double)passed / total,
                                                 .passed = passed,
                                                 .total = total,
                                                 .source = "commands"};
}

static void on_reward_json(void *context, struct str content, const struct err *err)
{
    struct task_work *work = context;
    double value = 0;
    struct str detail = STR_NONE;
    if (err && err->kind == ERR_NOT_FOUND) {
        reward_from_commands(work);
    } else if (err && err->kind != ERR_NONE) {
        err_copy(&work->err, err);
    } else if (task_reward_read_json(content, &value, &detail, &work->err)) {
        work->verdict.reward =
            (struct trace_reward){.known = true, .value = value, .source = "file"};
        if (detail.size)
            work->verdict.reward.detail = arena_str(&work->arena, detail);
    }
    finish(work);
}

static void step(struct task_work *work)
{
    struct task *task = work->task;
    switch (work->step) {
    case WORK_PUT_ENVIRONMENT:
        work->step = WORK_PUT_FILES;
        if (task->environment_dir)
            sandbox_put_tree(work->sandbox, task->environment_dir, task->workdir, work->user,
                             on_file_done, work);
        else
            put_empty(work, task->workdir, work->user);
        return;
    case WORK_PUT_FILES:
        if (work->at == task->file_count) {
            finish(work);
            return;
        }
        put_file(work, &task->files[work->at++]);
        return;
    case WORK_CLEAR_LOGS:
        work->step = WORK_CLEAR_TESTS;
        sandbox_remove(work->sandbox, TASK_LOGS, on_file_done, work);
        return;
    case WORK_CLEAR_TESTS:
        work->step = WORK_MAKE_LOGS;
        sandbox_remove(work->sandbox, TASK_TESTS, on_file_done, work);
        return;
    case WORK_MAKE_LOGS:
        work->step = task->tests_dir ? WORK_PUT_TESTS : WORK_LOOK;
        put_empty(work, TASK_LOGS "/verifier", work->user);
        return;
    case WORK_PUT_TESTS:
        work->step = WORK_LOOK;
        sandbox_put_tree(work->sandbox, task->tests_dir, TASK_TESTS, work->user, on_file_done,
                         work);
        return;
    case WORK_LOOK:
        sandbox_stat(work->sandbox, task->workdir, on_workdir, work);
        return;
    case WORK_COMMANDS:
        if (work->at < work->list_count) {
            run_command(work);
            return;
        }
        if (work->kind == WORK_SETUP) {
            finish(work);
            return;
        }
        work->step = WORK_REWARD_TEXT;
        /* fall through */
    case WORK_REWARD_TEXT:
        sandbox_get(work->sandbox, TASK_REWARD_TEXT, TASK_REWARD_MAX, on_reward_text, work);
        return;
    case WORK_REWARD_JSON:
        sandbox_get(work->sandbox, TASK_REWARD_JSON, TASK_REWARD_MAX, on_reward_json, work);
        return;
    case WORK_DONE:
        return;
    }
}

/* ---------------------------------------------------------------- starting */
static size_t list_size(const char *const *list)
{
    size_t count = 0;
    while (list && list[count])
        count++;
    return count;
}

static void set_env(struct task_work *work, const char *const *first, size_t first_count,
                    const char *home)
{
    const char *const *task_env = work->task->env;
    const char *const *more = work->kind == WORK_VERIFY ? work->task->verify_env : NULL;
    size_t room = first_count + list_size(task_env) + list_size(more) + 2;
    work->env = arena_alloc(&work->arena, room * sizeof *work->env);
    size_t used = 0;
    for (size_t i = 0; i < first_count; i++)
        work->env[used++] = first[i];
    if (home)
        work->env[used++] = home;
    for (size_t i = 0; i < list_size(task_env); i++)
        work->env[used++] = task_env[i];
    for (size_t i = 0; i < list_size(more); i++)
        work->env[used++] = more[i];
}

static void set_commands(struct task_work *work, const struct task_command *commands, size_t count,
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
    work->on_prepared = on_done;
    go(work, WORK_PUT_ENVIRONMENT);
    return work;
}

struct task_work *task_setup(struct task *task, struct sandbox *sandbox, uint32_t ms_max,
                             void (*on_done)(void *context, const struct trace_command *commands,
                                             size_t count, const struct err *err),
                             void *context)
{
    CHECK(task->setup_count > 0);
    struct task_work *work = work_new(WORK_SETUP, task, sandbox, ms_max, context);
    work->on_setup = on_done;
    set_env(work, NULL, 0, NULL);
    set_commands(work, task->setup, task->setup_count, NULL);
    go(work, WORK_COMMANDS);
    return work;
}

struct task_work *task_verify(struct task *task, struct sandbox *sandbox, bool as_root,
                              uint32_t ms_max,
                              void (*on_done)(void *context, const struct task_verdict *verdict),
                              void *context)
{
    struct task_work *work = work_new(WORK_VERIFY, task, sandbox, ms_max, context);
    work->on_verdict = on_done;
    work->user = task->verify_user ? task->verify_user : as_root ? "root" : NULL;
    bool root = work->user && strcmp(work->user, "root") == 0;
    set_env(work, verifier_env, COUNT(verifier_env), root ? "HOME=/root" : "HOME=/tmp");
    set_commands(work, task->verify, task->verify_count, task->test_script);
    go(work, WORK_CLEAR_LOGS);
    return work;
}
