/* Any bytes as the task.toml of a directory with steps, an environment and tests; and as an
 * environment with host variables in it: no crash, and what is read holds together. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "task/task.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char dir[64];

static void remove_dir(void)
{
    (void)file_remove_tree(dir, NULL);
}

static void write_at(const char *name, struct str text)
{
    OWN(mem) char *path = mem_format("%s/%s", dir, name);
    char *slash = strrchr(path, '/');
    *slash = '\0';
    (void)file_make_dirs(path, 0755, NULL);
    *slash = '/';
    if (file_write(path, text, 0644, false, NULL) < 0)
        abort();
}

static void make_dir(void)
{
    strcpy(dir, "/dev/shm/fuzz-task-XXXXXX");
    if (!mkdtemp(dir)) {
        strcpy(dir, "/tmp/fuzz-task-XXXXXX");
        if (!mkdtemp(dir))
            abort();
    }
    atexit(remove_dir);
    write_at("instruction.md", STR("Do it.\n"));
    write_at("environment/file", STR("x"));
    write_at("tests/test.sh", STR("true\n"));
    static const char *const steps[] = {"a", "b", "open", "book", "close", "one"};
    for (size_t i = 0; i < COUNT(steps); i++) {
        OWN(mem) char *path = mem_format("steps/%s/instruction.md", steps[i]);
        write_at(path, STR("Go on.\n"));
    }
    setenv("FUZZ_HOST", "a secret of the host", 1);
}

static void look_at(struct task *task)
{
    const char *names[TASK_SYSTEM_DIRS_MAX + 1];
    if (!task->instruction || !task->name || task->workdir[0] != '/' ||
        task_pristine_dirs(task, NULL, names) > TASK_SYSTEM_DIRS_MAX)
        abort();
    (void)task_network_check(task, true, NULL);
    for (size_t i = 0; i < task->step_count; i++)
        look_at(task->steps[i]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct task **tasks = NULL;
    size_t count = 0;
    struct err err = {0};
    if (!dir[0])
        make_dir();
    write_at("task.toml", str_make(data, size));
    if (task_load(dir, &tasks, &count, &err) == 0) {
        look_at(tasks[0]);
        task_list_free(tasks, count);
    } else if (err.kind == ERR_NONE) {
        abort();
    }

    OWN(arena) struct arena arena = {0};
    struct task task = {.host_env = true};
    const char *entry = arena_format(&arena, "A=%.*s", (int)size, (const char *)data);
    const char *const list[] = {entry, NULL};
    const char *const *out = NULL, *const *secrets = NULL;
    if (task_env_resolve(&task, list, &arena, &out, &secrets, &err) == 0) {
        OWN(buf) struct buf text = {0};
        buf_str_append(&text, str_of(out[0]));
        task_secrets_hide(secrets, &text);
        if (secrets && str_find(buf_str(&text), STR("a secret of the host")) >= 0)
            abort();
    }
    return 0;
}
