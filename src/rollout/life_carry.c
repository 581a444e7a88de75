/* life_carry.c - a verifier with surroundings of its own.
 *
 *     fetch each artifact -> a sandbox on the verifier's root
 *     -> [the task's files and setup, when the root is the task's] -> put each artifact back
 *
 * Only what the task names as artifacts goes over, and /logs/artifacts by convention: no program,
 * no configuration, nothing else of the agent's. Artifacts travel over a folder of the rollout
 * that is gone afterwards; a link or a device among them stays behind. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "rollout/life.h"

#include "base/fd.h"
#include "base/file.h"
#include "base/mem.h"

enum carry_step { CARRY_FETCH, CARRY_OPEN, CARRY_FILES, CARRY_SETUP, CARRY_PUT, CARRY_DONE };

struct carry {
    enum carry_step step;
    const char **paths; /* inside, absolute */
    enum sandbox_file_kind *kinds;
    uint32_t *modes;
    size_t count, at;
    uint64_t bytes_left;
    const char *dir; /* on the host */
    bool removed;    /* what was at the place of the artifact at hand */
};

static void go_on(struct life *life);

static const char *host_path(struct life *life)
{
    return arena_format(&life->arena, "%s/%zu", life->carry->dir, life->carry->at);
}

static void fail(struct life *life, const struct err *err, const char *doing)
{
    struct err why = *err;
    err_wrap(&why, "%s", doing);
    life_fail_infra(life, &why);
}

/* ---------------------------------------------------------------- out of the agent's sandbox */
static void next_artifact(struct life *life)
{
    life->carry->at++;
    life->carry->removed = false;
    go_on(life);
}

static void on_fetched(void *context, const struct err *err)
{
    struct life *life = context;
    if (is_bad(err)) {
        fail(life, err, "fetching the artifacts for the verifier");
        return;
    }
    next_artifact(life);
}

static void on_stat(void *context, const struct sandbox_stat *stat, const struct err *err)
{
    struct life *life = context;
    struct carry *carry = life->carry;
    const char *path = carry->paths[carry->at];
    if (is_bad(err)) {
        fail(life, err, "looking for the artifacts for the verifier");
        return;
    }
    carry->kinds[carry->at] = stat->kind;
    carry->modes[carry->at] = stat->mode & 0777;
    if (stat->kind == SANDBOX_FILE_DIRECTORY) {
        struct sandbox_budget budget = {.bytes_max = carry->bytes_left, .entries_max = 100000};
        sandbox_get_tree(life->sandbox, path, host_path(life), &budget, on_fetched, life);
        return;
    }
    if (stat->kind != SANDBOX_FILE_REGULAR) {
        carry->kinds[carry->at] = SANDBOX_FILE_NONE;
        next_artifact(life);
        return;
    }
    struct err why = {0};
    if (stat->size >= carry->bytes_left) {
        err_set(&why, ERR_LIMIT, "'%s' is larger than artifacts may be", path);
        fail(life, &why, "fetching the artifacts for the verifier");
        return;
    }
    carry->bytes_left -= stat->size;
    OWN(fd)
    int file = open(host_path(life), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (file < 0) {
        err_errno(&why, "'%s'", host_path(life));
        fail(life, &why, "fetching the artifacts for the verifier");
        return;
    }
    sandbox_get_fd(life->sandbox, path, file, stat->size, on_fetched, life);
}

/* ---------------------------------------------------------------- into the verifier's */
static void on_put(void *context, const struct err *err)
{
    struct life *life = context;
    if (is_bad(err)) {
        fail(life, err, "handing the artifacts to the verifier");
        return;
    }
    next_artifact(life);
}

static void on_removed(void *context, const struct err *err)
{
    struct life *life = context;
    if (is_bad(err)) {
        fail(life, err, "handing the artifacts to the verifier");
        return;
    }
    life->carry->removed = true;
    go_on(life);
}

static void put_artifact(struct life *life)
{
    struct carry *carry = life->carry;
    const char *path = carry->paths[carry->at], *user = life_judge_user(life);
    if (!carry->removed) {
        sandbox_remove(life->judge, path, on_removed, life);
        return;
    }
    if (carry->kinds[carry->at] == SANDBOX_FILE_DIRECTORY) {
        sandbox_put_tree(life->judge, host_path(life), path, user, on_put, life);
        return;
    }
    struct err why = {0};
    OWN(fd) int file = open(host_path(life), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (file < 0) {
        err_errno(&why, "'%s'", host_path(life));
        fail(life, &why, "handing the artifacts to the verifier");
        return;
    }
    sandbox_put_fd(life->judge, path, file, carry->modes[carry->at], user, on_put, life);
}

static void on_files(void *context, const struct err *err)
{
    struct life *life = context;
    if (is_bad(err)) {
        fail(life, err, "preparing the verifier's sandbox");
        return;
    }
    task_work_close(TAKE(life->work));
    life->carry->step = CARRY_SETUP;
    go_on(life);
}

static void on_setup(void *context, const struct trace_command *commands, size_t count,
                     const struct err *err)
{
    struct life *life = context;
    (void)commands;
    (void)count;
    if (is_bad(err)) {
        fail(life, err, "preparing the verifier's sandbox");
        return;
    }
    task_work_close(TAKE(life->work));
    life->carry->step = CARRY_PUT;
    go_on(life);
}

static bool same_root(const struct life *life)
{
    return life->verify_root == life->root ||
           (life->root && life->verify_root && strcmp(life->root, life->verify_root) == 0);
}

/* ---------------------------------------------------------------- in order */
static void go_on(struct life *life)
{
    struct carry *carry = life->carry;
    struct task *task = life->plan->task;
    switch (carry->step) {
    case CARRY_FETCH:
        if (carry->at < carry->count) {
            sandbox_stat(life->sandbox, carry->paths[carry->at], on_stat, life);
            return;
        }
        carry->at = 0;
        carry->step = CARRY_OPEN;
        /* The agent's stays until the end: after a crash all of this is done once more. */
        life_open_judge(life);
        return;
    case CARRY_OPEN:
        carry->step = CARRY_FILES;
        /* fall through */
    case CARRY_FILES:
        if (same_root(life)) {
            life->work = task_prepare(task, life->judge, on_files, life);
            return;
        }
        carry->step = CARRY_PUT;
        go_on(life);
        return;
    case CARRY_SETUP:
        if (task->setup_count) {
            life->work = task_setup(task, life->judge, life->plan->setup_ms_max, on_setup, life);
            return;
        }
        carry->step = CARRY_PUT;
        /* fall through */
    case CARRY_PUT:
        while (carry->at < carry->count && carry->kinds[carry->at] == SANDBOX_FILE_NONE)
            carry->at++;
        if (carry->at < carry->count) {
            put_artifact(life);
            return;
        }
        carry->step = CARRY_DONE;
        (void)file_remove_tree(carry->dir, NULL);
        life->judge_ready = true;
        life_step(life);
        return;
    case CARRY_DONE:
        return;
    }
}

void life_carry(struct life *life)
{
    const char *const *artifacts = life->task->artifacts;
    struct carry *carry = arena_alloc(&life->arena, sizeof *carry);
    size_t count = 1;
    while (artifacts && artifacts[count - 1])
        count++;
    life->carry = carry;
    carry->paths = arena_alloc(&life->arena, count * sizeof *carry->paths);
    carry->kinds = arena_alloc(&life->arena, count * sizeof *carry->kinds);
    carry->modes = arena_alloc(&life->arena, count * sizeof *carry->modes);
    carry->paths[carry->count++] = TASK_ARTIFACTS;
    for (size_t i = 0; i + 1 < count; i++)
        carry->paths[carry->count++] =
            artifacts[i][0] == '/'
                ? artifacts[i]
                : arena_format(&life->arena, "%s/%s", life->task->workdir, artifacts[i]);
    carry->bytes_left = life->plan->artifact_bytes_max;
    carry->dir = arena_format(&life->arena, "%s/carried-%zu", life->plan->dir, life->step_at + 1);
    struct err why = {0};
    if (file_remove_tree(carry->dir, &why) < 0 || file_make_dirs(carry->dir, 0700, &why) < 0) {
        life_fail_infra(life, &why);
        return;
    }
    go_on(life);
}

void life_carry_opened(struct life *life)
{
    go_on(life);
}
