/* verify.c - the verification of a task, in a sandbox in which no process of the agent is left.
 *
 *     clear /logs and /tests -> make /logs/verifier -> put tests -> look at the working directory
 *     and the PATH -> test script and verify commands, all of them -> kill what they left
 *     -> reward.json, else reward.txt, else passed/total
 *
 * The verifier trusts nothing the agent could have left: files that arrive only now, a home of its
 * own, an environment that comes from the image and the task and not from the agent, programs found
 * in system directories before any the agent could write to, no git hooks, no site packages of a
 * user. A reward counts only if it is an ordinary file of a bounded size with finite numbers in it;
 * whatever else lies at its place is a broken verifier with a reason, never a 0. */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "sandbox/sandbox.h"
#include "task/internal.h"

#define VERIFIER_HOME TASK_LOGS "/home"
#define PATH_BYTES_MAX 16384
#define PATH_DEFAULT "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

static const char *const verifier_env[] = {
    "LANG=C.UTF-8",
    "TERM=dumb",
    "PYTHONDONTWRITEBYTECODE=1",
    "PYTHONNOUSERSITE=1",
    /* A repository of the agent's must not run its programs as us. */
    "GIT_CONFIG_COUNT=2",
    "GIT_CONFIG_KEY_0=core.hooksPath",
    "GIT_CONFIG_VALUE_0=/dev/null",
    "GIT_CONFIG_KEY_1=core.fsmonitor",
    "GIT_CONFIG_VALUE_1=false",
    NULL,
};

/* ---------------------------------------------------------------- looking around */
static void on_workdir(void *context, const struct sandbox_stat *stat, const struct err *err)
{
    struct task_work *work = context;
    if (err && err->kind != ERR_NONE) {
        work_fail(work, err);
        return;
    }
    /* An agent that removed its working directory must not break the verifier by that. */
    if (stat->kind != SANDBOX_FILE_DIRECTORY)
        work->cwd = "/";
    work_go(work, WORK_LOOK_PATH);
}

static bool is_pristine(const struct task_work *work, struct str dir)
{
    for (size_t i = 0; work->pristine[i]; i++) {
        size_t size = strlen(work->pristine[i]);
        if (dir.size > size && dir.data[0] == '/' &&
            memcmp(dir.data + 1, work->pristine[i], size) == 0 &&
            (dir.size == size + 1 || dir.data[size + 1] == '/') && str_find(dir, STR("..")) < 0)
            return true;
    }
    return false;
}

/* Places the agent could not write to first, in their order; then the others. */
static void set_path(struct task_work *work, struct str path)
{
    OWN(buf) struct buf first = {0};
    OWN(buf) struct buf last = {0};
    for (struct str rest = path; rest.data;) {
        struct str dir = str_cut(&rest, ':');
        if (!dir.size || dir.data[0] != '/')
            continue;
        struct buf *to = is_pristine(work, dir) ? &first : &last;
        buf_format(to, "%s%.*s", to->size ? ":" : "", STR_ARGS(dir));
    }
    if (!first.size)
        buf_str_append(&first, STR(PATH_DEFAULT));
    work_set_env_entry(work,
                       arena_format(&work->arena, "PATH=%.*s%s%.*s", STR_ARGS(buf_str(&first)),
                                    last.size ? ":" : "", STR_ARGS(buf_str(&last))));
}

static void on_path(void *context, const struct sandbox_outcome *outcome)
{
    struct task_work *work = context;
    bool known = outcome->exit.end == SANDBOX_EXITED && outcome->exit.code == 0 &&
                 !outcome->truncated &&
                 !memchr(outcome->out.data ? outcome->out.data : "", 0, outcome->out.size);
    if (outcome->exit.end == SANDBOX_LOST) {
        err_set(&work->err, ERR_LOST, "the sandbox was lost: %s", outcome->exit.text);
        work_finish(work);
        return;
    }
    set_path(work, known ? outcome->out : STR(PATH_DEFAULT));
    work_go(work, WORK_COMMANDS);
}

static bool has_path(const struct task_work *work)
{
    for (size_t i = 0; i < work->env_count; i++)
        if (strncmp(work->env[i], "PATH=", 5) == 0)
            return true;
    return false;
}

static void look_at_path(struct task_work *work)
{
    if (has_path(work)) { /* the task's own word */
        work_go(work, WORK_COMMANDS);
        return;
    }
    if (!work->options.own_path) {
        work_set_env_entry(work, "PATH=" PATH_DEFAULT);
        work_go(work, WORK_COMMANDS);
        return;
    }
    struct sandbox_command ask = {
        .shell = "printf %s \"$PATH\"", .cwd = "/", .user = work->user, .timeout_ms = 20000};
    sandbox_run_whole(work->sandbox, &ask, STR_NONE, PATH_BYTES_MAX, on_path, work);
}

/* ---------------------------------------------------------------- the reward */
static void reward_from_commands(struct task_work *work)
{
    size_t first = work->script_first ? 1 : 0;
    if (work->list_count == first) {
        err_set(&work->err, ERR_PROTOCOL,
                "the verifier wrote no reward to " TASK_REWARD_TEXT " or " TASK_REWARD_JSON);
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

static void on_reward_text(void *context, struct str content, const struct err *err)
{
    struct task_work *work = context;
    double value = 0;
    if (err && err->kind != ERR_NONE)
        err_copy(&work->err, err);
    else if (task_reward_read(content, &value, &work->err))
        work->verdict.reward =
            (struct trace_reward){.known = true, .value = value, .source = "file"};
    work_finish(work);
}

static void on_reward_json(void *context, struct str content, const struct err *err)
{
    struct task_work *work = context;
    double value = 0;
    struct str detail = STR_NONE;
    if (err && err->kind != ERR_NONE) {
        err_copy(&work->err, err);
    } else if (task_reward_read_json(content, &value, &detail, &work->err)) {
        work->verdict.reward =
            (struct trace_reward){.known = true, .value = value, .source = "file"};
        if (detail.size)
            work->verdict.reward.detail = arena_str(&work->arena, detail);
    }
    work_finish(work);
}

/* What lies there may be anything: looked at before it is opened. True: it can be read. */
static bool is_reward_file(struct task_work *work, const char *path,
                           const struct sandbox_stat *stat)
{
    static const char *const names[] = {[SANDBOX_FILE_DIRECTORY] = "a directory",
                                        [SANDBOX_FILE_LINK] = "a link",
                                        [SANDBOX_FILE_OTHER] = "a device, pipe or socket"};
    if (stat->kind != SANDBOX_FILE_REGULAR)
        err_set(&work->err, ERR_PROTOCOL, "the reward file %s is %s, not a file", path,
                names[stat->kind]);
    else if (stat->size > TASK_REWARD_MAX)
        err_set(&work->err, ERR_PROTOCOL, "the reward file %s is too large: %llu bytes", path,
                (unsigned long long)stat->size);
    return work->err.kind == ERR_NONE;
}

static void on_stat_text(void *context, const struct sandbox_stat *stat, const struct err *err)
{
    struct task_work *work = context;
    if (err && err->kind != ERR_NONE) {
        work_fail(work, err);
        return;
    }
    if (stat->kind == SANDBOX_FILE_NONE)
        reward_from_commands(work);
    else if (is_reward_file(work, TASK_REWARD_TEXT, stat)) {
        sandbox_get(work->sandbox, TASK_REWARD_TEXT, TASK_REWARD_MAX, on_reward_text, work);
        return;
    }
    work_finish(work);
}

static void on_stat_json(void *context, const struct sandbox_stat *stat, const struct err *err)
{
    struct task_work *work = context;
    if (err && err->kind != ERR_NONE) {
        work_fail(work, err);
        return;
    }
    if (stat->kind == SANDBOX_FILE_NONE) {
        work_go(work, WORK_STAT_TEXT);
        return;
    }
    if (is_reward_file(work, TASK_REWARD_JSON, stat))
        sandbox_get(work->sandbox, TASK_REWARD_JSON, TASK_REWARD_MAX, on_reward_json, work);
    else
        work_finish(work);
}

/* ---------------------------------------------------------------- the steps */
void verify_step(struct task_work *work)
{
    struct task *task = work->task;
    switch (work->step) {
    case WORK_CLEAR_LOGS:
        work->step = WORK_CLEAR_TESTS;
        sandbox_remove(work->sandbox, work->options.keep_logs ? TASK_LOGS "/verifier" : TASK_LOGS,
                       work_on_file_done, work);
        return;
    case WORK_CLEAR_TESTS:
        work->step = WORK_MAKE_LOGS;
        sandbox_remove(work->sandbox, TASK_TESTS, work_on_file_done, work);
        return;
    case WORK_MAKE_LOGS:
        work->step = WORK_MAKE_HOME;
        work_put_empty(work, TASK_LOGS "/verifier", work->user);
        return;
    case WORK_MAKE_HOME:
        work->step = task->tests_dir ? WORK_PUT_TESTS : WORK_LOOK;
        work_put_empty(work, VERIFIER_HOME, work->user);
        return;
    case WORK_PUT_TESTS:
        work->step = task->tests_more ? WORK_PUT_MORE_TESTS : WORK_LOOK;
        sandbox_put_tree(work->sandbox, task->tests_dir, TASK_TESTS, work->user, work_on_file_done,
                         work);
        return;
    case WORK_PUT_MORE_TESTS:
        work->step = WORK_LOOK;
        sandbox_put_tree(work->sandbox, task->tests_more, TASK_TESTS, work->user, work_on_file_done,
                         work);
        return;
    case WORK_LOOK:
        sandbox_stat(work->sandbox, task->workdir, on_workdir, work);
        return;
    case WORK_LOOK_PATH:
        look_at_path(work);
        return;
    case WORK_QUIET:
        /* A process the verifier started for the agent's code must not write over its word. */
        work->step = WORK_STAT_JSON;
        sandbox_kill_all(work->sandbox, work_on_file_done, work);
        return;
    case WORK_STAT_JSON:
        sandbox_stat(work->sandbox, TASK_REWARD_JSON, on_stat_json, work);
        return;
    case WORK_STAT_TEXT:
        sandbox_stat(work->sandbox, TASK_REWARD_TEXT, on_stat_text, work);
        return;
    case WORK_PUT_ENVIRONMENT:
    case WORK_MAKE_ARTIFACTS:
    case WORK_PUT_FILES:
    case WORK_COMMANDS:
    case WORK_DONE:
        return;
    }
}

struct task_work *task_verify(struct task *task, struct sandbox *sandbox,
                              const struct task_verify_options *options,
                              void (*on_done)(void *context, const struct task_verdict *verdict),
                              void *context)
{
    struct task_work *work = work_new(WORK_VERIFY, task, sandbox, options->ms_max, context);
    work->on_verdict = on_done;
    work->options = *options;
    work->user = task->verify_user ? task->verify_user : options->as_root ? "root" : NULL;
    bool root = work->user && strcmp(work->user, "root") == 0;
    size_t count = 0;
    for (; options->pristine && options->pristine[count] && count < TASK_SYSTEM_DIRS_MAX; count++)
        work->pristine[count] = options->pristine[count];
    bool root_home = false;
    for (size_t i = 0; work->pristine[i]; i++)
        root_home |= strcmp(work->pristine[i], "root") == 0;
    work_set_env(work, (const char *const *const[]){verifier_env}, 1);
    /* Root's own, with whatever the image has in it, unless the agent worked there. */
    work_set_env_entry(work, root && (root_home || !options->pristine) ? "HOME=/root"
                                                                       : "HOME=" VERIFIER_HOME);
    work_set_env(work, (const char *const *const[]){task->env, task->verify_env}, 2);
    work_set_commands(work, task->verify, task->verify_count, task->test_script);
    work->step = WORK_CLEAR_LOGS;
    verify_step(work);
    return work;
}
