/* read.c - task formats into one struct task.
 *
 * Whatever the form (a directory with task.toml, a .toml file, JSON, JSONL), the keys are read by
 * read_keys() from one typed tree, so that every form has the same keys and the same errors with
 * line and column. A key nobody knows is an error; [metadata] and [solution] are free. Keys of the
 * Harbor format that say nothing here (author, allow_internet, ...) are known and passed over. */
#include "task/task.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "config/toml.h"
#include "json/json.h"
#include "task/internal.h"

#define MS_MAX (7ll * 24 * 3600 * 1000)

static const char *keep(struct task *task, const char *text)
{
    return text ? arena_text(&task->arena, str_of(text)) : NULL;
}

static const char *const *keep_list(struct task *task, const char *const *list, size_t count)
{
    const char **copy = arena_alloc(&task->arena, (count + 1) * sizeof *copy);
    for (size_t i = 0; i < count; i++)
        copy[i] = keep(task, list[i]);
    return copy;
}

static int read_text(struct task *task, struct toml_node *table, const char *key, const char **out,
                     struct err *err)
{
    const char *text = NULL;
    int found = toml_text(table, key, &text, err);
    if (found == 1)
        *out = keep(task, text);
    return found;
}

static int read_seconds(struct toml_node *table, const char *key, uint32_t *out_ms, struct err *err)
{
    double seconds = 0;
    int found = toml_double(table, key, &seconds, err);
    if (found != 1)
        return found;
    if (!(seconds > 0) || seconds * 1000 > (double)MS_MAX)
        return toml_error(toml_get(table, key), err, "%s must be between 0 and 604800 seconds",
                          key);
    *out_ms = (uint32_t)(seconds * 1000);
    return 1;
}

static int read_duration(struct toml_node *table, const char *key, uint32_t *out_ms,
                         struct err *err)
{
    long long ms = 0;
    int found = toml_duration_ms(table, key, 1, MS_MAX, &ms, err);
    if (found == 1)
        *out_ms = (uint32_t)ms;
    return found;
}

static int read_megabytes(struct toml_node *table, const char *key, uint64_t *out, struct err *err)
{
    long long megabytes = 0;
    int found = toml_int(table, key, 1, 1ll << 30, &megabytes, err);
    if (found == 1)
        *out = (uint64_t)megabytes << 20;
    return found;
}

static int read_bytes(struct toml_node *table, const char *key, uint64_t *out, struct err *err)
{
    unsigned long long bytes = 0;
    int found = toml_size(table, key, 1, 1ull << 50, &bytes, err);
    if (found == 1)
        *out = bytes;
    return found;
}

/* "make", ["make", {run = "make test", user = "root", timeout = "60s"}] */
static int read_commands(struct task *task, struct toml_node *table, const char *key,
                         const struct task_command **out, size_t *count, struct err *err)
{
    struct toml_node *node = toml_get(table, key);
    if (!node)
        return 0;
    size_t room = node->type == TOML_ARRAY ? node->count : 1;
    if (room > TASK_COMMANDS_MAX)
        return toml_error(node, err, "more than %d commands", TASK_COMMANDS_MAX);
    struct task_command *commands = arena_alloc(&task->arena, (room + 1) * sizeof *commands);
    size_t used = 0;
    for (struct toml_node *item = node->type == TOML_ARRAY ? node->first : node; item;
         item = node->type == TOML_ARRAY ? item->next : NULL) {
        struct task_command *command = &commands[used++];
        if (item->type == TOML_STRING) {
            command->shell = keep(task, item->text);
        } else if (item->type == TOML_TABLE) {
            const char *run = NULL;
            if (toml_need_text(item, "run", &run, err) < 0 ||
                read_text(task, item, "user", &command->user, err) < 0 ||
                read_duration(item, "timeout", &command->timeout_ms, err) < 0)
                return -1;
            command->shell = keep(task, run);
        } else {
            return toml_error(item, err, "a command is a string or a table with 'run', not %s",
                              toml_type_name(item->type));
        }
        if (!command->shell[0])
            return toml_error(item, err, "an empty command");
    }
    *out = commands;
    *count = used;
    return 1;
}

/* {"path": "text"} or [{path = , content = , mode = "0755"}] */
static int read_files(struct task *task, struct toml_node *table, const char *key, struct err *err)
{
    struct toml_node *node = toml_get(table, key);
    if (!node)
        return 0;
    if (node->type != TOML_TABLE && node->type != TOML_ARRAY)
        return toml_error(node, err, "%s is a table of path and text, not %s", key,
                          toml_type_name(node->type));
    struct task_file *files = arena_alloc(&task->arena, (node->count + 1) * sizeof *files);
    size_t used = 0;
    TOML_EACH(item, node)
    {
        struct task_file *file = &files[used++];
        file->mode = 0644;
        if (node->type == TOML_TABLE) {
            if (item->type != TOML_STRING)
                return toml_error(item, err, "the content of a file is a string, not %s",
                                  toml_type_name(item->type));
            item->used = true;
            file->path = keep(task, item->key);
            file->content = arena_str(&task->arena, str_make(item->text, item->text_size));
        } else {
            if (item->type != TOML_TABLE)
                return toml_error(item, err, "a file is a table with 'path' and 'content', not %s",
                                  toml_type_name(item->type));
            const char *path = NULL, *mode = NULL;
            struct toml_node *content = toml_get(item, "content");
            if (toml_need_text(item, "path", &path, err) < 0 ||
                toml_text(item, "mode", &mode, err) < 0)
                return -1;
            if (!content || content->type != TOML_STRING)
                return toml_error(content ? content : item, err,
                                  "file '%s' needs a string 'content'", path);
            if (mode) {
                char *end;
                unsigned long bits = strtoul(mode, &end, 8);
                if (*end || !*mode || bits > 0777)
                    return toml_error(toml_get(item, "mode"), err,
                                      "mode is octal like \"0755\", not \"%s\"", mode);
                file->mode = (uint32_t)bits;
            }
            file->path = keep(task, path);
            file->content = arena_str(&task->arena, str_make(content->text, content->text_size));
        }
        if (!file->path[0])
            return toml_error(item, err, "a file needs a path");
    }
    task->files = files;
    task->file_count = used;
    return 1;
}

static int read_env(struct task *task, struct toml_node *table, const char *key,
                    const char *const **out, struct err *err)
{
    const char *const *list = NULL;
    size_t count = 0;
    int found = toml_environment(table, key, &list, &count, err);
    if (found == 1)
        *out = keep_list(task, list, count);
    return found;
}

static int read_environment(struct task *task, struct toml_node *root, struct err *err)
{
    struct toml_node *table = NULL;
    if (toml_table(root, "environment", &table, err) < 0)
        return -1;
    double cpus = 0;
    const char *image = NULL;
    if (read_text(task, table, "workdir", &task->workdir, err) < 0 ||
        read_text(task, table, "image", &task->root_image, err) < 0 ||
        toml_text(table, "docker_image", &image, err) < 0 ||
        toml_bool(table, "root", &task->root, err) < 0 ||
        toml_double(table, "cpus", &cpus, err) < 0 ||
        read_megabytes(table, "memory_mb", &task->memory_bytes_max, err) < 0 ||
        read_bytes(table, "memory", &task->memory_bytes_max, err) < 0 ||
        read_megabytes(table, "storage_mb", &task->disk_bytes_max, err) < 0 ||
        read_bytes(table, "storage", &task->disk_bytes_max, err) < 0 ||
        read_env(task, table, "env", &task->env, err) < 0)
        return -1;
    long long pids = 0;
    if (toml_int(table, "pids", 1, 1 << 22, &pids, err) < 0)
        return -1;
    task->pids_max = (uint32_t)pids;
    if (cpus < 0 || cpus > 4096)
        return toml_error(toml_get(table, "cpus"), err, "cpus must be between 0 and 4096");
    task->cpu_millis = (uint32_t)(cpus * 1000);
    if (image && !task->root_image)
        task->root_image = arena_format(&task->arena, "image:%s", image);
    static const char *const passed_over[] = {"build_timeout_sec", "allow_internet", "gpus",
                                              "gpu_types",         "mcp_servers",    "skills_dir"};
    for (size_t i = 0; i < COUNT(passed_over); i++)
        toml_use_all(table ? toml_get(table, passed_over[i]) : NULL);
    return 0;
}

static int read_verifier(struct task *task, struct toml_node *root, struct err *err)
{
    struct toml_node *table = NULL;
    if (toml_table(root, "verifier", &table, err) < 0)
        return -1;
    if (read_seconds(table, "timeout_sec", &task->verify_ms_max, err) < 0 ||
        read_duration(table, "timeout", &task->verify_ms_max, err) < 0 ||
        read_text(task, table, "user", &task->verify_user, err) < 0 ||
        toml_bool(table, "fresh", &task->fresh_verify, err) < 0 ||
        read_env(task, table, "env", &task->verify_env, err) < 0 ||
        read_commands(task, table, "commands", &task->verify, &task->verify_count, err) < 0)
        return -1;
    return 0;
}

static int read_keys(struct task *task, struct toml *toml, struct err *err)
{
    struct toml_node *root = toml->root;
    struct toml_node *agent = NULL;
    long long turns = 0;
    const char *const *artifacts = NULL;
    size_t artifact_count = 0;

    if (read_text(task, root, "id", &task->name, err) < 0 ||
        read_text(task, root, "name", &task->name, err) < 0 ||
        read_text(task, root, "instruction", &task->instruction, err) < 0 ||
        read_text(task, root, "system", &task->system, err) < 0 ||
        read_text(task, root, "workdir", &task->workdir, err) < 0 ||
        read_text(task, root, "image", &task->root_image, err) < 0 ||
        toml_bool(root, "root", &task->root, err) < 0 ||
        read_duration(root, "timeout", &task->agent_ms_max, err) < 0 ||
        toml_int(root, "turns_max", 1, 1 << 20, &turns, err) < 0 ||
        read_files(task, root, "upload_files", err) < 0 ||
        read_files(task, root, "files", err) < 0 ||
        read_commands(task, root, "setup_shell", &task->setup, &task->setup_count, err) < 0 ||
        read_commands(task, root, "setup", &task->setup, &task->setup_count, err) < 0 ||
        read_duration(root, "setup_timeout", &task->setup_ms_max, err) < 0 ||
        read_commands(task, root, "verify", &task->verify, &task->verify_count, err) < 0 ||
        toml_texts(root, "artifacts", &artifacts, &artifact_count, err) < 0)
        return -1;
    if (artifacts)
        task->artifacts = keep_list(task, artifacts, artifact_count);
    task->turns_max = (uint32_t)turns;
    if (toml_table(root, "agent", &agent, err) < 0 ||
        read_seconds(agent, "timeout_sec", &task->agent_ms_max, err) < 0)
        return -1;
    if (read_environment(task, root, err) < 0 || read_env(task, root, "env", &task->env, err) < 0 ||
        read_verifier(task, root, err) < 0 || task_read_tools(task, root, err) < 0)
        return -1;

    struct toml_node *metadata = toml_get(root, "metadata");
    if (metadata) {
        OWN(buf) struct buf text = {0};
        struct json_writer writer = {.out = &text};
        toml_write_json(metadata, &writer);
        task->metadata = arena_str(&task->arena, buf_str(&text));
        toml_use_all(metadata);
    }
    static const char *const passed_over[] = {"version", "schema_version", "solution", "source"};
    for (size_t i = 0; i < COUNT(passed_over); i++)
        toml_use_all(toml_get(root, passed_over[i]));
    return toml_check_unused(toml, err);
}

/* What must hold whatever the form was. */
static int check(struct task *task, const char *where, struct err *err)
{
    if (!task->instruction || !str_trim(str_of(task->instruction)).size)
        return err_set(err, ERR_INPUT, "%s: the task has no instruction", where);
    if (task->workdir[0] != '/')
        return err_set(err, ERR_INPUT, "%s: the working directory '%s' is not absolute", where,
                       task->workdir);
    if (!task->name || !task->name[0])
        return err_set(err, ERR_INPUT, "%s: the task has no name", where);
    if (!str_is_utf8(str_of(task->instruction)))
        return err_set(err, ERR_INPUT, "%s: the instruction is not UTF-8", where);
    return 0;
}

static struct task *finish(struct task *task, int result)
{
    if (result == 0)
        return task;
    task_unref(task);
    return NULL;
}

/* ---------------------------------------------------------------- the forms */
struct task *task_from_json(struct str json, const char *where, struct err *err)
{
    OWN(json_doc) struct json_doc doc = {0};
    OWN(toml) struct toml toml = {0};
    struct json_limits limits = {.depth_max = 32, .nodes_max = 1u << 20};
    if (json_read(&doc, json, &limits, err) < 0) {
        err_wrap(err, "%s", where);
        return NULL;
    }
    struct task *task = task_new();
    if (json_type(json_root(&doc)) == JSON_STRING) {
        struct str words = json_str(json_root(&doc), &task->arena);
        task->instruction = arena_text(&task->arena, words);
    } else if (json_type(json_root(&doc)) != JSON_OBJECT) {
        err_set(err, ERR_INPUT, "%s: a task is a JSON object or a string", where);
        return finish(task, -1);
    } else if (toml_from_json(&toml, where, json_root(&doc), err) < 0 ||
               read_keys(task, &toml, err) < 0) {
        return finish(task, -1);
    }
    task->source = keep(task, where);
    if (!task->name)
        task->name = "inline";
    return finish(task, check(task, where, err));
}

static struct task *from_toml(const char *path, struct err *err)
{
    OWN(toml) struct toml toml = {0};
    if (toml_read_file(&toml, path, err) < 0)
        return NULL;
    struct task *task = task_new();
    task->source = keep(task, path);
    if (read_keys(task, &toml, err) < 0)
        return finish(task, -1);
    if (!task->name) {
        const char *slash = strrchr(path, '/');
        struct str base = str_of(slash ? slash + 1 : path);
        if (str_ends(base, STR(".toml")))
            base.size -= 5;
        task->name = arena_text(&task->arena, base);
    }
    return finish(task, check(task, path, err));
}

static bool has_entry(const char *dir, const char *name, mode_t kind)
{
    OWN(mem) char *path = mem_format("%s/%s", dir, name);
    struct stat info;
    return stat(path, &info) == 0 && (info.st_mode & S_IFMT) == kind;
}

static int fill_from_dir(struct task *task, const char *dir, struct err *err)
{
    OWN(mem) char *toml_path = mem_format("%s/task.toml", dir);
    OWN(mem) char *words_path = mem_format("%s/instruction.md", dir);
    OWN(toml) struct toml toml = {0};
    if (!file_exists(toml_path))
        return err_set(err, ERR_INPUT, "'%s' is not a task: it has no task.toml", dir);
    if (toml_read_file(&toml, toml_path, err) < 0 || read_keys(task, &toml, err) < 0)
        return -1;
    if (file_exists(words_path)) {
        OWN(buf) struct buf words = {0};
        if (file_read(words_path, TASK_INSTRUCTION_MAX, &words, err) < 0)
            return -1;
        if (memchr(words.data, 0, words.size))
            return err_set(err, ERR_INPUT, "%s: the instruction holds a NUL byte", words_path);
        task->instruction = arena_text(&task->arena, buf_str(&words));
    }
    if (!task->name) {
        const char *slash = strrchr(dir, '/');
        task->name = keep(task, slash ? slash + 1 : dir);
    }
    if (has_entry(dir, "environment", S_IFDIR)) {
        const char *place = arena_format(&task->arena, "%s/environment", dir);
        if (!has_entry(place, "Dockerfile", S_IFREG))
            task->environment_dir = place;
        else if (!task->root_image)
            return err_set(err, ERR_UNSUPPORTED,
                           "%s: this task wants an image built from environment/Dockerfile, which "
                           "is not possible yet; name an image in [environment]",
                           dir);
    }
    if (has_entry(dir, "tools", S_IFDIR))
        task->tools_dir = arena_format(&task->arena, "%s/tools", dir);
    if (has_entry(dir, "tests", S_IFDIR)) {
        const char *place = arena_format(&task->arena, "%s/tests", dir);
        task->tests_dir = place;
        if (has_entry(place, "test.sh", S_IFREG))
            task->test_script = "test.sh";
        else if (!task->verify_count)
            return err_set(err, ERR_INPUT,
                           "%s: tests/ has no test.sh and there are no verify commands", dir);
    }
    return check(task, toml_path, err);
}

static struct task *from_dir(const char *dir, struct err *err)
{
    OWN(mem) char *real = realpath(dir, NULL);
    if (!real) {
        err_errno(err, "task '%s'", dir);
        return NULL;
    }
    struct task *task = task_new();
    task->source = keep(task, real);
    return finish(task, fill_from_dir(task, real, err));
}

/* ---------------------------------------------------------------- lists */
struct list_of_tasks {
    struct task **tasks;
    size_t count, room;
};

static void list_add(struct list_of_tasks *list, struct task *task)
{
    if (list->count == list->room) {
        list->room = list->room ? list->room * 2 : 8;
        list->tasks = mem_grow(list->tasks, list->room * sizeof *list->tasks);
    }
    list->tasks[list->count++] = task;
}

static int read_lines(struct list_of_tasks *list, struct str text, const char *name,
                      struct err *err)
{
    size_t number = 0;
    for (struct str rest = text; rest.data;) {
        struct str line = str_trim(str_cut(&rest, '\n'));
        number++;
        if (!line.size)
            continue;
        OWN(mem) char *where = mem_format("%s:%zu", name, number);
        struct task *task = task_from_json(line, where, err);
        if (!task)
            return -1;
        if (strcmp(task->name, "inline") == 0)
            task->name = arena_format(&task->arena, "line-%zu", number);
        list_add(list, task);
    }
    return 0;
}

/* One JSON value over many lines, or one per line: the first line decides. */
static int read_json(struct list_of_tasks *list, struct str text, const char *name, bool lines,
                     struct err *err)
{
    struct str rest = str_trim(text);
    if (!lines) {
        OWN(json_doc) struct json_doc doc = {0};
        struct str probe = rest;
        struct str first = str_trim(str_cut(&probe, '\n'));
        lines = probe.data && first.size && json_read(&doc, first, NULL, NULL) == 0;
    }
    if (lines)
        return read_lines(list, text, name, err);
    struct task *task = task_from_json(rest, name, err);
    if (!task)
        return -1;
    list_add(list, task);
    return 0;
}

static int read_stdin(struct buf *out, struct err *err)
{
    for (;;) {
        ssize_t got = read(STDIN_FILENO, buf_reserve(out, 65536), 65536);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return err_errno(err, "reading the task from standard input");
        if (got == 0)
            return 0;
        buf_added(out, (size_t)got);
        if (out->size > TASK_BYTES_MAX)
            return err_set(err, ERR_LIMIT, "more than %u bytes of tasks on standard input",
                           TASK_BYTES_MAX);
    }
}

static int load(const char *what, struct list_of_tasks *list, struct err *err)
{
    OWN(buf) struct buf text = {0};
    if (strcmp(what, "-") == 0) {
        if (read_stdin(&text, err) < 0)
            return -1;
        return read_json(list, buf_str(&text), "standard input", false, err);
    }
    if (what[0] == '{')
        return read_json(list, str_of(what), "inline task", false, err);

    struct stat info;
    if (stat(what, &info) < 0)
        return err_errno(err, "task '%s'", what);
    struct task *task = NULL;
    if (S_ISDIR(info.st_mode)) {
        task = from_dir(what, err);
    } else if (str_ends(str_of(what), STR(".toml"))) {
        task = from_toml(what, err);
    } else {
        if (file_read(what, TASK_BYTES_MAX, &text, err) < 0)
            return -1;
        return read_json(list, buf_str(&text), what, str_ends(str_of(what), STR(".jsonl")), err);
    }
    if (!task)
        return -1;
    list_add(list, task);
    return 0;
}

int task_load(const char *what, struct task ***tasks, size_t *count, struct err *err)
{
    struct list_of_tasks list = {0};
    if (load(what, &list, err) < 0 ||
        (!list.count && err_set(err, ERR_INPUT, "'%s' holds no task", what) < 0)) {
        task_list_free(list.tasks, list.count);
        return -1;
    }
    *tasks = list.tasks;
    *count = list.count;
    return 0;
}
