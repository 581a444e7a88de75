/* internal.h - private to the task room.
 *
 *     fields.c   single keys: times, sizes, commands, files, environments
 *     read.c     the keys every form has; JSON and TOML
 *     harbor.c   directories in the Harbor layout, and their steps
 *     source.c   sets of tasks: lines, selections, directories of directories
 *     image.c    images that are built or fetched
 *     env.c      host variables in environments
 *     reward.c   what a verifier left
 *     work.c     activities inside a sandbox: files and commands
 *     verify.c   the verification */
#ifndef TASK_INTERNAL_H
#define TASK_INTERNAL_H

#include "base/buf.h"
#include "task/task.h"

struct sandbox_exit;
struct sandbox_job;
struct toml;
struct toml_node;

#define TASK_BYTES_MAX (64u << 20)      /* a task as text */
#define TASK_INSTRUCTION_MAX (1u << 20) /* instruction.md */
#define TASK_COMMANDS_MAX 1000
#define TASK_STEPS_MAX 1000
#define TASK_WARNINGS_MAX 64
#define TASK_OUTPUT_KEPT (16u << 10) /* tail of each command's output */
#define TASK_LOG_MAX (1u << 20)      /* verifier.log */
#define TASK_REWARD_MAX (1u << 20)   /* reward.txt, reward.json */
#define TASK_MS_MAX (7ll * 24 * 3600 * 1000)

/* An empty task with one reference; fields are filled from its arena. */
struct task *task_new(void);
/* Steps live in their parent's. */
static inline struct arena *task_arena(struct task *task)
{
    return task->parent ? &task->parent->arena : &task->arena;
}

/* --- fields.c. As in config/toml.h: 1 found, 0 absent, -1 wrong. Texts go to the task's arena. */
const char *task_keep(struct task *task, const char *text);
const char *const *task_keep_list(struct task *task, const char *const *list, size_t count);
int task_read_text(struct task *task, struct toml_node *table, const char *key, const char **out,
                   struct err *err);
int task_read_seconds(struct toml_node *table, const char *key, uint32_t *out_ms, struct err *err);
int task_read_duration(struct toml_node *table, const char *key, uint32_t *out_ms, struct err *err);
int task_read_megabytes(struct toml_node *table, const char *key, uint64_t *out, struct err *err);
int task_read_bytes(struct toml_node *table, const char *key, uint64_t *out, struct err *err);
int task_read_cpus(struct toml_node *table, const char *key, uint32_t *out_millis, struct err *err);
/* Adds to what is in *out already. */
int task_read_commands(struct task *task, struct toml_node *table, const char *key,
                       const struct task_command **out, size_t *count, struct err *err);
int task_read_files(struct task *task, struct toml_node *table, const char *key, struct err *err);
int task_read_env(struct task *task, struct toml_node *table, const char *key,
                  const char *const **out, struct err *err);
int task_read_list(struct task *task, struct toml_node *table, const char *key,
                   const char *const **out, struct err *err);
int task_read_network(struct task *task, struct toml_node *table, enum task_network *out,
                      const char *const **hosts, struct err *err);
/* `image` as sandbox_spec.root, `docker_image` as something to fetch. */
int task_read_image(struct task *task, struct toml_node *table, const char **root,
                    struct task_image *image, struct err *err);

/* --- read.c */
int task_read_keys(struct task *task, struct toml *toml, struct err *err);
/* [agent] and [verifier], of a task and of its steps. */
int task_read_agent(struct task *task, struct toml_node *root, struct err *err);
int task_read_verifier(struct task *task, struct toml_node *root, struct err *err);
int task_read_artifacts(struct task *task, struct toml_node *root, struct err *err);
int task_read_healthcheck(struct task *task, struct toml_node *table, struct err *err);
int task_check(struct task *task, const char *where, struct err *err);
struct task *task_finish(struct task *task, int result); /* the task, or NULL and it is gone */
struct task *task_from_toml(const char *path, struct err *err);
/* Keys nobody asked for become warnings; the place is in the text. */
void task_warn_unused(struct task *task, struct toml *toml);
void task_warn(struct task *task, const char *text);

/* --- harbor.c */
struct task *task_from_dir(const char *dir, struct err *err);
bool task_is_dir(const char *dir); /* has a task.toml */

/* --- work.c and verify.c: one small machine */
enum work_step {
    WORK_PUT_ENVIRONMENT,
    WORK_MAKE_ARTIFACTS,
    WORK_PUT_FILES,
    WORK_COMMANDS,
    WORK_CLEAR_LOGS,
    WORK_CLEAR_TESTS,
    WORK_MAKE_LOGS,
    WORK_MAKE_HOME,
    WORK_PUT_TESTS,
    WORK_PUT_MORE_TESTS,
    WORK_LOOK,
    WORK_LOOK_PATH,
    WORK_QUIET,
    WORK_STAT_JSON,
    WORK_STAT_TEXT,
    WORK_DONE,
};
enum work_kind { WORK_PREPARE, WORK_SETUP, WORK_COLLECT, WORK_SOLUTION, WORK_VERIFY };

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
    bool no_bash;      /* tried: sh it is */
    struct trace_command *done;
    size_t done_count;
    struct buf output; /* of the running command: its tail */
    bool output_cut, log_cut;
    struct buf log;
    uint64_t deadline_ms; /* monotonic */
    const char *user, *cwd;
    const char **env;
    size_t env_count;
    const char *const *secrets;
    struct task_verify_options options;
    const char *pristine[TASK_SYSTEM_DIRS_MAX + 1];
    char empty_dir[64]; /* a host directory with nothing in it */
    struct arena arena;
    struct err err;
    struct task_verdict verdict;
    void (*on_done)(void *, const struct err *);
    task_commands_done on_commands;
    void (*on_verdict)(void *, const struct task_verdict *);
    void *context;
};
struct task_work *work_new(enum work_kind kind, struct task *task, struct sandbox *sandbox,
                           uint32_t ms_max, void *context);
void work_begin(struct task_work *work, enum work_step first); /* never ends inside */
void work_go(struct task_work *work, enum work_step next);
void work_finish(struct task_work *work);
void work_fail(struct task_work *work, const struct err *err);
void work_on_file_done(void *context, const struct err *err); /* goes on with `step` */
void work_put_empty(struct task_work *work, const char *path, const char *user);
void work_run_command(struct task_work *work);
void work_set_commands(struct task_work *work, const struct task_command *commands, size_t count,
                       const char *script);
/* Environments in order, NULL-terminated list of lists; sets work->err when one cannot be had. */
void work_set_env(struct task_work *work, const char *const *const *lists, size_t count);
void work_set_env_entry(struct task_work *work, const char *entry); /* replaces one of that name */
void verify_step(struct task_work *work);

/* [[tools]] and turns: tools.c */
struct toml_node;
int task_read_tools(struct task *task, struct toml_node *root, struct err *err);

#endif
