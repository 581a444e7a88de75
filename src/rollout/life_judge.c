/* life_judge.c - a rollout is judged: in a fresh sandbox made from the final files where the
 * backend can, else in the agent's own; then what the task wants to keep is fetched. A reward is
 * only ever made here. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "rollout/life.h"

#include "base/file.h"
#include "base/mem.h"
#include "json/json.h"

/* ---------------------------------------------------------------- verifying */

static void on_snapshot(void *context, const char *layer_id, const struct err *err)
{
    struct life *life = context;
    if (!life_take_layer(life, layer_id, err, "keeping the final files for the verifier"))
        return;
    life->snapshot_over = true;
    life_save(life); /* the sandbox is gone; this is where its files are */
    life_step(life);
}

static bool judge_as_root(const struct life *life)
{
    return life->as_root || (!life->judge_no_root && life->capabilities & SANDBOX_CAN_ROOT);
}

const char *life_judge_user(const struct life *life)
{
    if (life->task->verify_user)
        return life->task->verify_user;
    return judge_as_root(life) ? "root" : NULL;
}

static void on_judge_open(void *context, struct sandbox *sandbox, const struct err *err)
{
    struct life *life = context;
    bool cannot = is_bad(err) && (err->kind == ERR_UNSUPPORTED || err->kind == ERR_DENIED);
    if (cannot && judge_as_root(life) && !life->as_root) {
        life->judge_no_root = true;
        life->extra.verify_note = "no root inside is possible here: verified as the agent's user";
        sandbox_close(TAKE(life->judge), NULL, NULL);
        life_open_judge(life);
        return;
    }
    if (is_bad(err)) {
        struct err why = *err;
        err_wrap(&why, "a fresh sandbox for the verifier");
        life_fail_infra(life, &why);
        return;
    }
    sandbox_on_lost(sandbox, life_on_lost, life);
    if (life->carry) {
        life_carry_opened(life);
        return;
    }
    life->judge_ready = true;
    life_step(life);
}

/* The final files, but for system directories: those show what setup left and nothing later. */
void life_open_judge(struct life *life)
{
    const char *layers[] = {life->layer};
    const char *pristine[TASK_SYSTEM_DIRS_MAX + 1];
    struct sandbox_spec spec = life_shape(life);
    spec.layers = layers;
    spec.layer_count = life->carry ? 0 : 1;
    spec.root_user = judge_as_root(life);
    if (life->carry) {
        spec.root = life->verify_root;
    } else if (task_pristine_dirs(life->task, life->plan->carry, pristine)) {
        spec.pristine = pristine;
        spec.pristine_layers = life->frozen;
    }
    life->result.fresh_verify = true;
    life->judge = sandbox_open(life->plan->lane.sandboxes, &spec, on_judge_open, life);
}

/* For result.json: where, by whom and with what in sight. */
static void note_verification(struct life *life)
{
    OWN(buf) struct buf text = {0};
    struct json_writer out = {.out = &text};
    const char *pristine[TASK_SYSTEM_DIRS_MAX + 1];
    json_begin_object(&out);
    json_set_text(&out, "sandbox",
                  life->carry   ? "separate"
                  : life->judge ? "fresh"
                                : "the agent's");
    json_set_text(&out, "user", life->extra.verify_user[0] ? life->extra.verify_user : "agent's");
    json_set_text(&out, "files", life->carry ? "artifacts" : "final");
    json_key(&out, "pristine");
    json_begin_array(&out);
    size_t count = life->judge && !life->carry
                       ? task_pristine_dirs(life->task, life->plan->carry, pristine)
                       : 0;
    if (life->carry)
        json_put_text(&out, "/");
    for (size_t i = 0; i < count; i++)
        json_put_text(&out, arena_format(&life->arena, "/%s", pristine[i]));
    json_end_array(&out);
    json_set_bool(&out, "processes_killed", true);
    json_set_text(&out, "note", life->extra.verify_note);
    json_end_object(&out);
    life->extra.verification = arena_str(&life->arena, buf_str(&text));
}

/* Those of earlier steps stay. */
static void add_commands(struct life *life, const struct task_verdict *verdict)
{
    struct trace_result *result = &life->result;
    const struct trace_command *fresh = NULL;
    size_t count = 0;
    life_copy_commands(life, verdict->commands, verdict->count, &fresh, &count);
    struct trace_command *all =
        arena_alloc(&life->arena, (result->verify_count + count + 1) * sizeof *all);
    if (result->verify_count)
        memcpy(all, result->verify, result->verify_count * sizeof *all);
    if (count)
        memcpy(all + result->verify_count, fresh, count * sizeof *all);
    result->verify = all;
    result->verify_count += count;
}

static void keep_log(struct life *life, struct str text)
{
    struct log_file log = {.fd = -1};
    const char *name = "verifier.log";
    if (life->task->parent)
        name = arena_format(&life->arena, "verifier-%zu.log", life->step_at + 1);
    if (log_file_open(&log, life->plan->dir, name, life->plan->log_bytes_max, NULL) < 0)
        return;
    log_file_write(&log, text);
    log_file_close(&log);
}

static void on_verdict(void *context, const struct task_verdict *verdict)
{
    struct life *life = context;
    life->extra.verify_user = arena_text(&life->arena, str_of(verdict->user));
    add_commands(life, verdict);
    keep_log(life, verdict->log);
    note_verification(life);
    if (is_bad(&verdict->err)) {
        struct err why = verdict->err;
        if (life->task->parent)
            err_wrap(&why, "step %s", life->task->name);
        life_fail_infra(life, &why);
        return;
    }
    life->result.reward = verdict->reward;
    if (verdict->reward.detail.data)
        life->result.reward.detail = arena_str(&life->arena, verdict->reward.detail);
    life->verified = true;
    life_step(life);
}

static void verify_in(struct life *life, struct sandbox *sandbox, bool as_root)
{
    const char *root = life->carry ? life->verify_root : life->root;
    const char *pristine[TASK_SYSTEM_DIRS_MAX + 1], *everything[TASK_SYSTEM_DIRS_MAX + 1];
    static const struct task nothing = {.workdir = TASK_WORKDIR};
    (void)task_pristine_dirs(life->task, life->plan->carry, pristine);
    (void)task_pristine_dirs(&nothing, NULL, everything); /* the agent was never there */
    struct task_verify_options options = {
        .as_root = as_root,
        .pristine = !life->judge  ? NULL
                    : life->carry ? everything
                                  : pristine,
        .keep_logs = life->carry != NULL,
        .own_path = root && strncmp(root, "image:", 6) == 0,
        .ms_max = life_verify_ms(life),
    };
    life->work = task_verify(life->task, sandbox, &options, on_verdict, life);
}

bool life_judges_fresh(const struct life *life)
{
    unsigned needed = SANDBOX_CAN_SNAPSHOT | SANDBOX_CAN_FORK;
    return life->task->fresh_verify && !life->task->separate_verify &&
           (life->capabilities & needed) == needed;
}

void life_verify(struct life *life)
{
    life_note_sandbox(life);
    if (!task_has_verifier(life->task)) {
        life->verified = true;
        return;
    }
    if (life->task->separate_verify) {
        life_carry(life);
        return;
    }
    if (life_judges_fresh(life)) {
        /* Lost or not, it is on its way out: only the snapshot speaks from now on. */
        sandbox_on_lost(life->sandbox, NULL, NULL);
        sandbox_snapshot(life->sandbox, on_snapshot, life);
        return;
    }
    life->extra.verify_note = life->task->fresh_verify
                                  ? "the backend has no snapshots: verified in the agent's sandbox"
                                  : "the task asked for verification in the agent's sandbox";
    verify_in(life, life->sandbox, life->as_root);
}
void life_verify_in_judge(struct life *life)
{
    verify_in(life, life->judge, judge_as_root(life));
}

/* ---------------------------------------------------------------- before it: collect hooks */
static void on_hooks(void *context, const struct trace_command *commands, size_t count,
                     const struct err *err)
{
    struct life *life = context;
    for (size_t i = 0; i < count; i++)
        if (commands[i].code)
            life_log(life, "collect_failed", commands[i].command);
    if (is_bad(err)) {
        struct err why = *err;
        life_fail_infra(life, &why);
        return;
    }
    life->busy = false;
    life->collect_done = true;
    life_step(life);
}

/* In the agent's sandbox, in which nothing of its runs any more. */
void life_collect_hooks(struct life *life)
{
    life->busy = true;
    life->work = task_collect(life->task, life->sandbox, life->as_root, life_verify_ms(life),
                              on_hooks, life);
}

/* ---------------------------------------------------------------- collecting */
static void collect_next(struct life *life);

/* The task's, then the agent's; NULL: that was all. */
static const char *artifact_name(const struct life *life, size_t at)
{
    const char *const *own = life->task->artifacts, *const *more = life->plan->agent_artifacts;
    for (; own && *own; own++)
        if (at-- == 0)
            return *own;
    for (; more && *more; more++)
        if (at-- == 0)
            return *more;
    return NULL;
}

static void artifact_note(struct life *life, const char *state, const char *file, uint64_t bytes)
{
    struct json_writer *out = &life->artifact_writer;
    json_begin_object(out);
    json_set_text(out, "path", artifact_name(life, life->artifact_at));
    json_set_text(out, "state", state);
    if (file)
        json_set_text(out, "file", file);
    if (bytes)
        json_set_int(out, "bytes", (long long)bytes);
    json_end_object(out);
    life->artifact_at++;
}

static char *artifact_path(struct life *life);

static void on_artifact(void *context, const struct err *err)
{
    struct life *life = context;
    const char *file = artifact_path(life) + strlen(life->plan->dir) + 1;
    artifact_note(life, is_bad(err) ? err->text : "kept", is_bad(err) ? NULL : file, 0);
    collect_next(life);
}

/* What came counts, not what was said to be there before. */
static void on_artifact_file(void *context, const struct err *err)
{
    struct life *life = context;
    const char *host = artifact_path(life);
    struct stat stat;
    if (is_bad(err))
        (void)unlink(host);
    else if (lstat(host, &stat) == 0)
        life->artifact_bytes += (uint64_t)stat.st_size;
    on_artifact(life, err);
}

/* "/app/out/report.json" is kept as "app.out.report.json": one flat directory, nothing to follow.
 */
static char *artifact_path(struct life *life)
{
    const char *path = artifact_name(life, life->artifact_at);
    char *flat = arena_text(&life->arena, str_of(path + strspn(path, "/.")));
    for (char *at = flat; *at; at++)
        if (*at == '/')
            *at = '.';
    return arena_format(&life->arena, "%s/artifacts/%zu-%.150s", life->plan->dir,
                        life->artifact_at + 1, flat);
}

static struct sandbox *last_sandbox(const struct life *life)
{
    return life->judge ? life->judge : life->sandbox;
}

static const char *artifact_inside(struct life *life)
{
    const char *path = artifact_name(life, life->artifact_at);
    return path[0] == '/' ? path : arena_format(&life->arena, "%s/%s", life->task->workdir, path);
}

static size_t artifact_count(const struct life *life)
{
    size_t count = 0;
    while (artifact_name(life, count))
        count++;
    return count;
}

static void on_artifact_stat(void *context, const struct sandbox_stat *stat, const struct err *err)
{
    struct life *life = context;
    uint64_t left = life->plan->artifact_bytes_max - life->artifact_bytes;
    if (is_bad(err) || stat->kind == SANDBOX_FILE_NONE) {
        artifact_note(life, is_bad(err) ? err->text : "missing", NULL, 0);
        collect_next(life);
        return;
    }
    const char *host = artifact_path(life);
    const char *inside = artifact_inside(life);
    if (stat->kind == SANDBOX_FILE_DIRECTORY) {
        /* What a tree holds is known afterwards at best: each gets its share, used or not. */
        uint64_t share = life->plan->artifact_bytes_max / artifact_count(life);
        if (share > left)
            share = left;
        life->artifact_bytes += share;
        struct sandbox_budget budget = {.bytes_max = share ? share : 1, .entries_max = 100000};
        sandbox_get_tree(last_sandbox(life), inside, host, &budget, on_artifact, life);
        return;
    }
    if (stat->kind != SANDBOX_FILE_REGULAR || stat->size > left) {
        artifact_note(life, stat->size > left ? "too large" : "not a file", NULL, stat->size);
        collect_next(life);
        return;
    }
    OWN(fd) int fd = open(host, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (fd < 0) {
        artifact_note(life, strerror(errno), NULL, 0);
        collect_next(life);
        return;
    }
    sandbox_get_fd(last_sandbox(life), inside, fd, left, on_artifact_file, life);
}

static void collect_next(struct life *life)
{
    if (artifact_name(life, life->artifact_at)) {
        sandbox_stat(last_sandbox(life), artifact_inside(life), on_artifact_stat, life);
        return;
    }
    if (life->artifact_writer.out)
        json_end_array(&life->artifact_writer);
    life->collected = true;
    life_step(life);
}

void life_collect(struct life *life)
{
    if (!artifact_name(life, 0)) {
        life->collected = true;
        return;
    }
    OWN(mem) char *dir = mem_format("%s/artifacts", life->plan->dir);
    (void)file_make_dirs(dir, 0755, NULL); /* each artifact reports what follows from a failure */
    life->artifact_writer = (struct json_writer){.out = &life->artifacts};
    json_begin_array(&life->artifact_writer);
    collect_next(life);
}