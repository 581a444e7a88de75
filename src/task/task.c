/* task.c - a task as an object: references, and how it looks as JSON. Reading is in read.c, the
 * activities are in work.c. */
#include "task/task.h"

#include <stdlib.h>

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

struct task *task_ref(struct task *task)
{
    atomic_fetch_add(&task->references, 1);
    return task;
}

void task_unref(struct task *task)
{
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
    return task->test_script || task->verify_count;
}

static void write_commands(struct json_writer *out, const char *key,
                           const struct task_command *commands, size_t count)
{
    json_key(out, key);
    json_begin_array(out);
    for (size_t i = 0; i < count; i++)
        json_put_text(out, commands[i].shell);
    json_end_array(out);
}

void task_write(const struct task *task, struct json_writer *out)
{
    json_begin_object(out);
    json_set_text(out, "name", task->name);
    json_set_text(out, "source", task->source);
    json_set_text(out, "instruction", task->instruction);
    json_set_text(out, "workdir", task->workdir);
    json_set_text(out, "environment", task->environment_dir);
    json_set_int(out, "files", (long long)task->file_count);
    write_commands(out, "setup", task->setup, task->setup_count);
    json_set_text(out, "test_script", task->test_script);
    write_commands(out, "verify", task->verify, task->verify_count);
    json_set_text(out, "image", task->root_image);
    json_set_bool(out, "root", task->root);
    json_set_bool(out, "fresh_verify", task->fresh_verify);
    json_set_int(out, "agent_ms_max", task->agent_ms_max);
    json_set_int(out, "verify_ms_max", task->verify_ms_max);
    json_set_int(out, "memory_bytes_max", (long long)task->memory_bytes_max);
    if (task->metadata.size)
        json_set_raw(out, "metadata", task->metadata);
    json_end_object(out);
}
