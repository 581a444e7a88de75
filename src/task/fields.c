/* fields.c - single keys of a task, whatever table they are in: texts, times, sizes, commands,
 * files, environments, images, the network. Harbor's spellings and ours lie side by side; which
 * keys there are is said in read.c and harbor.c. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "config/toml.h"
#include "task/internal.h"

const char *task_keep(struct task *task, const char *text)
{
    return text ? arena_text(task_arena(task), str_of(text)) : NULL;
}

const char *const *task_keep_list(struct task *task, const char *const *list, size_t count)
{
    const char **copy = arena_alloc(task_arena(task), (count + 1) * sizeof *copy);
    for (size_t i = 0; i < count; i++)
        copy[i] = task_keep(task, list[i]);
    return copy;
}

int task_read_text(struct task *task, struct toml_node *table, const char *key, const char **out,
                   struct err *err)
{
    const char *text = NULL;
    int found = toml_text(table, key, &text, err);
    if (found == 1)
        *out = task_keep(task, text);
    return found;
}

int task_read_seconds(struct toml_node *table, const char *key, uint32_t *out_ms, struct err *err)
{
    double seconds = 0;
    int found = toml_double(table, key, &seconds, err);
    if (found != 1)
        return found;
    if (!(seconds > 0) || seconds * 1000 > (double)TASK_MS_MAX)
        return toml_error(toml_get(table, key), err, "%s must be between 0 and 604800 seconds",
                          key);
    *out_ms = seconds < 0.001 ? 1 : (uint32_t)(seconds * 1000);
    return 1;
}

int task_read_duration(struct toml_node *table, const char *key, uint32_t *out_ms, struct err *err)
{
    long long ms = 0;
    int found = toml_duration_ms(table, key, 1, TASK_MS_MAX, &ms, err);
    if (found == 1)
        *out_ms = (uint32_t)ms;
    return found;
}

int task_read_megabytes(struct toml_node *table, const char *key, uint64_t *out, struct err *err)
{
    long long megabytes = 0;
    int found = toml_int(table, key, 1, 1ll << 30, &megabytes, err);
    if (found == 1)
        *out = (uint64_t)megabytes << 20;
    return found;
}

int task_read_bytes(struct toml_node *table, const char *key, uint64_t *out, struct err *err)
{
    unsigned long long bytes = 0;
    int found = toml_size(table, key, 1, 1ull << 50, &bytes, err);
    if (found == 1)
        *out = bytes;
    return found;
}

int task_read_cpus(struct toml_node *table, const char *key, uint32_t *out_millis, struct err *err)
{
    double cpus = 0;
    int found = toml_double(table, key, &cpus, err);
    if (found != 1)
        return found;
    if (!(cpus > 0) || cpus > 4096)
        return toml_error(toml_get(table, key), err, "%s must be between 0 and 4096", key);
    *out_millis = cpus < 0.001 ? 1 : (uint32_t)(cpus * 1000);
    return 1;
}

static int read_command(struct task *task, struct toml_node *item, struct task_command *command,
                        struct err *err)
{
    const char *run = NULL;
    if (item->type == TOML_STRING) {
        if (item->text_size != strlen(item->text))
            return toml_error(item, err, "the command holds a NUL character");
        run = item->text;
    } else if (item->type == TOML_TABLE) {
        if (toml_text(item, "run", &run, err) < 0 ||
            (!run && toml_need_text(item, "command", &run, err) < 0) ||
            task_read_text(task, item, "user", &command->user, err) < 0 ||
            task_read_duration(item, "timeout", &command->timeout_ms, err) < 0 ||
            task_read_seconds(item, "timeout_sec", &command->timeout_ms, err) < 0)
            return -1;
    } else {
        return toml_error(item, err, "a command is a string or a table with 'run', not %s",
                          toml_type_name(item->type));
    }
    if (!run[0])
        return toml_error(item, err, "an empty command");
    command->shell = task_keep(task, run);
    return 0;
}

/* "make", ["make", {run = "make test", user = "root", timeout = "60s"}] */
int task_read_commands(struct task *task, struct toml_node *table, const char *key,
                       const struct task_command **out, size_t *count, struct err *err)
{
    struct toml_node *node = table ? toml_get(table, key) : NULL;
    if (!node)
        return 0;
    bool list = node->type == TOML_ARRAY;
    size_t room = *count + (list ? node->count : 1);
    if (room > TASK_COMMANDS_MAX)
        return toml_error(node, err, "more than %d commands", TASK_COMMANDS_MAX);
    struct task_command *commands = arena_alloc(task_arena(task), (room + 1) * sizeof *commands);
    size_t used = *count;
    if (used)
        memcpy(commands, *out, used * sizeof *commands);
    for (struct toml_node *item = list ? node->first : node; item; item = list ? item->next : NULL)
        if (read_command(task, item, &commands[used++], err) < 0)
            return -1;
    *out = commands;
    *count = used;
    return 1;
}

static int read_mode(struct toml_node *item, uint32_t *out, struct err *err)
{
    const char *mode = NULL;
    int found = toml_text(item, "mode", &mode, err);
    if (found != 1)
        return found;
    char *end;
    unsigned long bits = strtoul(mode, &end, 8);
    if (*end || !*mode || bits > 0777)
        return toml_error(toml_get(item, "mode"), err, "mode is octal like \"0755\", not \"%s\"",
                          mode);
    *out = (uint32_t)bits;
    return 1;
}

static int read_file(struct task *task, struct toml_node *item, bool by_path,
                     struct task_file *file, struct err *err)
{
    struct toml_node *content = item;
    const char *path = item->key;
    file->mode = 0644;
    if (!by_path) {
        if (item->type != TOML_TABLE)
            return toml_error(item, err, "a file is a table with 'path' and 'content', not %s",
                              toml_type_name(item->type));
        if (toml_need_text(item, "path", &path, err) < 0 || read_mode(item, &file->mode, err) < 0)
            return -1;
        content = toml_get(item, "content");
        if (!content)
            return toml_error(item, err, "file '%s' needs a string 'content'", path);
    }
    if (content->type != TOML_STRING)
        return toml_error(content, err, "the content of a file is a string, not %s",
                          toml_type_name(content->type));
    item->used = true;
    if (!path[0])
        return toml_error(item, err, "a file needs a path");
    file->path = task_keep(task, path);
    file->content = arena_str(task_arena(task), str_make(content->text, content->text_size));
    return 0;
}

/* {"path": "text"} or [{path = , content = , mode = "0755"}] */
int task_read_files(struct task *task, struct toml_node *table, const char *key, struct err *err)
{
    struct toml_node *node = toml_get(table, key);
    if (!node)
        return 0;
    if (node->type != TOML_TABLE && node->type != TOML_ARRAY)
        return toml_error(node, err, "%s is a table of path and text, not %s", key,
                          toml_type_name(node->type));
    struct task_file *files =
        arena_alloc(task_arena(task), (task->file_count + node->count + 1) * sizeof *files);
    size_t used = task->file_count;
    if (used)
        memcpy(files, task->files, used * sizeof *files);
    TOML_EACH(item, node)
    if (read_file(task, item, node->type == TOML_TABLE, &files[used++], err) < 0)
        return -1;
    task->files = files;
    task->file_count = used;
    return 1;
}

int task_read_env(struct task *task, struct toml_node *table, const char *key,
                  const char *const **out, struct err *err)
{
    const char *const *list = NULL;
    size_t count = 0;
    int found = toml_environment(table, key, &list, &count, err);
    if (found == 1)
        *out = task_keep_list(task, list, count);
    return found;
}

int task_read_list(struct task *task, struct toml_node *table, const char *key,
                   const char *const **out, struct err *err)
{
    const char *const *list = NULL;
    size_t count = 0;
    int found = toml_texts(table, key, &list, &count, err);
    if (found == 1)
        *out = task_keep_list(task, list, count);
    return found;
}

int task_read_network(struct task *task, struct toml_node *table, enum task_network *out,
                      const char *const **hosts, struct err *err)
{
    static const char *const names[] = {"", "no-network", "public", "allowlist", NULL};
    int mode = 0;
    bool internet = false;
    int legacy = toml_bool(table, "allow_internet", &internet, err);
    int found = toml_choice(table, "network_mode", names, &mode, err);
    if (legacy < 0 || found < 0 || task_read_list(task, table, "allowed_hosts", hosts, err) < 0)
        return -1;
    if (legacy == 1)
        *out = internet ? TASK_NETWORK_PUBLIC : TASK_NETWORK_NONE;
    if (found == 1 && mode == 0)
        return toml_error(toml_get(table, "network_mode"), err,
                          "network_mode is one of no-network, public, allowlist");
    if (found == 1)
        *out = (enum task_network)mode;
    return 0;
}

int task_read_image(struct task *task, struct toml_node *table, const char **root,
                    struct task_image *image, struct err *err)
{
    const char *name = NULL;
    if (task_read_text(task, table, "image", root, err) < 0 ||
        task_read_text(task, table, "docker_image", &name, err) < 0 ||
        task_read_seconds(table, "build_timeout_sec", &image->build_ms_max, err) < 0)
        return -1;
    if (!name)
        return 0;
    size_t good = strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                               "._:/@-");
    if (!isalnum((unsigned char)name[0]) || name[good] || strlen(name) > 400)
        return toml_error(toml_get(table, "docker_image"), err,
                          "'%.100s' is not the name of an image", name);
    if (!*root)
        image->name = name;
    return 1;
}
