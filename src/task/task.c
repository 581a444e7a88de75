/* task.c - a task as an object: references, what can be said of it, and how it looks as JSON.
 * Reading is in read.c and harbor.c, the activities are in work.c. */
#include "task/task.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "json/json.h"
#include "task/internal.h"

struct task *task_new(void)
{
    struct task *task = mem_zero(sizeof *task);
    task->arena.bytes_max = TASK_BYTES_MAX * 2;
    task->workdir = TASK_WORKDIR;
    task->fresh_verify = true;
    atomic_init(&task->references, 1);
    return task;
}

/* A step lives and dies with its parent. */
struct task *task_ref(struct task *task)
{
    atomic_fetch_add(&(task->parent ? task->parent : task)->references, 1);
    return task;
}

void task_unref(struct task *task)
{
    if (task && task->parent)
        task = task->parent;
    if (!task || atomic_fetch_sub(&task->references, 1) != 1)
        return;
    arena_deinit(&task->arena);
    free(task);
}

void task_list_free(struct task **tasks, size_t count)
{
    for (size_t i = 0; i < count; i++)
        task_unref(tasks[i]);
    free(tasks);
}

bool task_has_verifier(const struct task *task)
{
    return task->test_script || task->verify_count || task->step_count;
}

bool task_has_solution(const struct task *task)
{
    for (size_t i = 0; i < task->step_count; i++)
        if (!task->steps[i]->solution_dir)
            return false;
    return task->step_count || task->solution_dir;
}

static const char *const network_names[] = {NULL, "no-network", "public", "allowlist"};

static int check_network(enum task_network network, const char *who, bool network_off,
                         struct err *err)
{
    if (network == TASK_NETWORK_NONE && !network_off)
        return err_set(
            err, ERR_UNSUPPORTED,
            "the task wants network_mode \"no-network\" for %s, which this backend cannot "
            "enforce",
            who);
    if (network == TASK_NETWORK_ALLOWLIST || (network == TASK_NETWORK_PUBLIC && network_off))
        return err_set(err, ERR_UNSUPPORTED,
                       "the task wants network_mode \"%s\" for %s; sandboxes here have no network "
                       "but the inlet (--offline runs it without)",
                       network_names[network], who);
    return 0;
}

int task_network_check(const struct task *task, bool network_off, struct err *err)
{
    if (check_network(task->network, "the agent", network_off, err) < 0 ||
        check_network(task->verify_network, "the verifier", network_off, err) < 0)
        return -1;
    for (size_t i = 0; i < task->step_count; i++)
        if (check_network(task->steps[i]->network, "the agent", network_off, err) < 0 ||
            check_network(task->steps[i]->verify_network, "the verifier", network_off, err) < 0)
            return -1;
    return 0;
}

/* ---------------------------------------------------------------- what a fresh sandbox has */
static bool lies_in(const char *path, const char *name)
{
    size_t size = strlen(name);
    path += strspn(path, "/");
    return !*path || (strncmp(path, name, size) == 0 && (path[size] == '/' || !path[size]));
}

static bool any_lies_in(const char *const *paths, const char *name)
{
    for (; paths && *paths; paths++)
        if ((*paths)[0] == '/' && lies_in(*paths, name))
            return true;
    return false;
}

size_t task_pristine_dirs(const struct task *task, const char *const *carry,
                          const char *out[TASK_SYSTEM_DIRS_MAX + 1])
{
    static const char *const names[] = {"usr",   "bin",    "sbin", "lib", "lib32",
                                        "lib64", "libx32", "etc",  "opt", "root"};
    size_t count = 0;
    for (size_t i = 0; i < COUNT(names); i++)
        if (!lies_in(task->workdir, names[i]) && !any_lies_in(task->carry, names[i]) &&
            !any_lies_in(carry, names[i]) && !any_lies_in(task->artifacts, names[i]))
            out[count++] = names[i];
    out[count] = NULL;
    return count;
}

/* ---------------------------------------------------------------- as JSON */
static void write_commands(struct json_writer *out, const char *key,
                           const struct task_command *commands, size_t count)
{
    json_key(out, key);
    json_begin_array(out);
    for (size_t i = 0; i < count; i++)
        json_put_text(out, commands[i].shell);
    json_end_array(out);
}

static void write_texts(struct json_writer *out, const char *key, const char *const *list)
{
    if (!list)
        return;
    json_key(out, key);
    json_begin_array(out);
    for (; *list; list++)
        json_put_text(out, *list);
    json_end_array(out);
}

/* Names only: values may be secrets. */
static void write_env_names(struct json_writer *out, const char *key, const char *const *list)
{
    if (!list)
        return;
    json_key(out, key);
    json_begin_array(out);
    for (; *list; list++)
        json_put_str(out, str_upto(str_of(*list), strcspn(*list, "=")));
    json_end_array(out);
}

static void write_steps(const struct task *task, struct json_writer *out)
{
    json_key(out, "steps");
    json_begin_array(out);
    for (size_t i = 0; i < task->step_count; i++) {
        const struct task *step = task->steps[i];
        json_begin_object(out);
        json_set_text(out, "name", step->name);
        json_set_text(out, "instruction", step->instruction);
        for (size_t j = 0; j < step->reward_min_count; j++)
            if (!step->reward_min[j].name)
                json_set_double(out, "min_reward", step->reward_min[j].value);
        json_set_bool(out, "solution", step->solution_dir != NULL);
        json_set_int(out, "agent_ms_max", step->agent_ms_max);
        json_set_int(out, "verify_ms_max", step->verify_ms_max);
        json_end_object(out);
    }
    json_end_array(out);
    json_set_text(out, "roll_up", task->roll_up == TASK_ROLL_UP_FINAL ? "final" : "mean");
}

void task_write(const struct task *task, struct json_writer *out)
{
    json_begin_object(out);
    json_set_text(out, "name", task->name);
    json_set_text(out, "source", task->source);
    if (task->description)
        json_set_text(out, "description", task->description);
    json_set_text(out, "instruction", task->instruction);
    json_set_text(out, "workdir", task->workdir);
    json_set_text(out, "environment", task->environment_dir);
    json_set_int(out, "files", (long long)task->file_count);
    write_commands(out, "setup", task->setup, task->setup_count);
    json_set_text(out, "test_script", task->test_script);
    write_commands(out, "verify", task->verify, task->verify_count);
    json_set_bool(out, "solution", task_has_solution(task));
    json_set_text(out, "image", task->root_image ? task->root_image : task->image.name);
    if (task->image.build_dir)
        json_set_text(out, "build", task->image.build_dir);
    json_set_bool(out, "root", task->root);
    if (network_names[task->network])
        json_set_text(out, "network", network_names[task->network]);
    json_set_bool(out, "fresh_verify", task->fresh_verify);
    if (task->separate_verify)
        json_set_bool(out, "separate_verify", true);
    write_texts(out, "carry", task->carry);
    write_texts(out, "artifacts", task->artifacts);
    if (task->tool_definitions.size)
        json_set_raw(out, "tools", task->tool_definitions);
    write_texts(out, "turns", task->turns);
    write_env_names(out, "env", task->env);
    write_env_names(out, "verify_env", task->verify_env);
    json_set_int(out, "agent_ms_max", task->agent_ms_max);
    json_set_int(out, "verify_ms_max", task->verify_ms_max);
    json_set_int(out, "memory_bytes_max", (long long)task->memory_bytes_max);
    if (task->step_count)
        write_steps(task, out);
    if (task->metadata.size)
        json_set_raw(out, "metadata", task->metadata);
    write_texts(out, "warnings", task->warnings);
    json_end_object(out);
}
