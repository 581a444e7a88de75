/* read.c - the keys of a task into one struct task; JSON and TOML files.
 *
 * Whatever the form (a directory with task.toml, a .toml file, JSON, JSONL), the keys are read by
 * task_read_keys() from one typed tree, so that every form has the same keys and the same errors
 * with line and column. In JSON and in TOML files of our own a key nobody knows is an error; the
 * Harbor format is open, so there it is a warning by name. [metadata] is free. What a task asks for
 * and cannot be had here (a GPU, Windows, side services) is refused by name, never passed over. */
#include "task/task.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "config/toml.h"
#include "json/json.h"
#include "task/internal.h"

/* Attempts and pauses in one shell command: it ends with 0 when the check does. */
int task_read_healthcheck(struct task *task, struct toml_node *table, struct err *err)
{
    struct toml_node *check = NULL;
    const char *command = NULL;
    double interval = 30, timeout = 30, start_period = 0, start_interval = 5;
    long long retries = 3;
    if (toml_table(table, "healthcheck", &check, err) < 0)
        return -1;
    if (!check)
        return 0;
    if (toml_need_text(check, "command", &command, err) < 0 ||
        toml_double(check, "interval_sec", &interval, err) < 0 ||
        toml_double(check, "timeout_sec", &timeout, err) < 0 ||
        toml_double(check, "start_period_sec", &start_period, err) < 0 ||
        toml_double(check, "start_interval_sec", &start_interval, err) < 0 ||
        toml_int(check, "retries", 1, 1000, &retries, err) < 0)
        return -1;
    if (!(interval >= 0) || !(timeout > 0) || !(start_period >= 0) || !(start_interval >= 0) ||
        interval > 3600 || timeout > 3600 || start_period > 86400 || start_interval > 3600)
        return toml_error(check, err, "a time of the health check is out of range");
    long long early = start_interval > 0 ? (long long)(start_period / start_interval) : 0;
    struct task_command *commands =
        arena_alloc(task_arena(task), (task->setup_count + 2) * sizeof *commands);
    if (task->setup_count)
        memcpy(commands, task->setup, task->setup_count * sizeof *commands);
    commands[task->setup_count].shell = arena_format(
        task_arena(task),
        "# the task's health check\n"
        "check() {\n%s\n}\n"
        "tries=0\n"
        "until (check); do\n"
        "  tries=$((tries + 1))\n"
        "  if [ $tries -ge %lld ]; then echo 'the health check failed' >&2; exit 1; fi\n"
        "  if [ $tries -le %lld ]; then sleep %g; else sleep %g; fi\n"
        "done",
        command, early + retries, early, start_interval, interval);
    commands[task->setup_count].timeout_ms =
        (uint32_t)((timeout + interval) * 1000 * (double)retries +
                   (timeout + start_interval) * 1000 * (double)early);
    task->setup = commands;
    task->setup_count++;
    return 0;
}

static int refuse_devices(struct toml_node *table, struct err *err)
{
    long long gpus = 0;
    const char *os = NULL;
    if (toml_int(table, "gpus", 0, 1000, &gpus, err) < 0 || toml_text(table, "os", &os, err) < 0)
        return -1;
    struct toml_node *tpu = table ? toml_get(table, "tpu") : NULL;
    toml_use_all(table ? toml_get(table, "gpu_types") : NULL);
    int wrong = 0;
    if (gpus)
        wrong = toml_error(toml_get(table, "gpus"), err,
                           "the task wants %lld GPUs; sandboxes here have none", gpus);
    else if (os && strcmp(os, "linux") != 0)
        wrong =
            toml_error(toml_get(table, "os"), err,
                       "the task wants the operating system '%s'; sandboxes here are Linux", os);
    else if (tpu && !(tpu->type == TOML_BOOLEAN && !tpu->truth))
        wrong = toml_error(tpu, err, "the task wants a TPU; sandboxes here have none");
    if (wrong && err)
        err->kind = ERR_UNSUPPORTED;
    return wrong;
}

static int read_environment(struct task *task, struct toml_node *root, struct err *err)
{
    struct toml_node *table = NULL;
    long long pids = 0;
    if (toml_table(root, "environment", &table, err) < 0)
        return -1;
    if (task_read_text(task, table, "workdir", &task->workdir, err) < 0 ||
        task_read_image(task, table, &task->root_image, &task->image, err) < 0 ||
        toml_bool(table, "root", &task->root, err) < 0 ||
        task_read_cpus(table, "cpus", &task->cpu_millis, err) < 0 ||
        task_read_megabytes(table, "memory_mb", &task->memory_bytes_max, err) < 0 ||
        task_read_bytes(table, "memory", &task->memory_bytes_max, err) < 0 ||
        task_read_megabytes(table, "storage_mb", &task->disk_bytes_max, err) < 0 ||
        task_read_bytes(table, "storage", &task->disk_bytes_max, err) < 0 ||
        toml_int(table, "pids", 1, 1 << 22, &pids, err) < 0 ||
        task_read_env(task, table, "env", &task->env, err) < 0 ||
        task_read_network(task, table, &task->network, &task->hosts, err) < 0 ||
        task_read_healthcheck(task, table, err) < 0 || refuse_devices(table, err) < 0)
        return -1;
    if (pids)
        task->pids_max = (uint32_t)pids;
    /* Known, and not given to the agent: said once. */
    static const char *const left_out[] = {"mcp_servers", "skills_dir"};
    for (size_t i = 0; table && i < COUNT(left_out); i++) {
        struct toml_node *node = toml_get(table, left_out[i]);
        if (!node)
            continue;
        toml_use_all(node);
        if (node->type == TOML_ARRAY && !node->count)
            continue;
        char text[120];
        snprintf(text, sizeof text, "%s:%u: '%s' is not handed to the agent", table->toml->name,
                 node->key_line, left_out[i]);
        task_warn(task, text);
    }
    return 0;
}

int task_read_agent(struct task *task, struct toml_node *root, struct err *err)
{
    struct toml_node *agent = NULL;
    enum task_network network = TASK_NETWORK_UNSAID;
    if (toml_table(root, "agent", &agent, err) < 0 ||
        task_read_seconds(agent, "timeout_sec", &task->agent_ms_max, err) < 0 ||
        task_read_text(task, agent, "user", &task->agent_user, err) < 0 ||
        task_read_env(task, agent, "env", &task->agent_env, err) < 0 ||
        task_read_network(task, agent, &network, &task->hosts, err) < 0)
        return -1;
    if (network != TASK_NETWORK_UNSAID)
        task->network = network;
    if (task->agent_user && strcmp(task->agent_user, "root") == 0)
        task->root = true;
    return 0;
}

static int read_collect(struct task *task, struct toml_node *table, struct err *err)
{
    struct toml_node *list = table ? toml_get(table, "collect") : NULL;
    TOML_EACH(item, list && list->type == TOML_ARRAY ? list : NULL)
    {
        const char *service = NULL;
        if (item->type == TOML_TABLE && toml_text(item, "service", &service, err) < 0)
            return -1;
        if (service && strcmp(service, "main") != 0) {
            toml_error(item, err, "there is no service '%s': side services are not supported",
                       service);
            if (err)
                err->kind = ERR_UNSUPPORTED;
            return -1;
        }
    }
    return task_read_commands(task, table, "collect", &task->collect, &task->collect_count, err);
}

int task_read_verifier(struct task *task, struct toml_node *root, struct err *err)
{
    static const char *const modes[] = {"shared", "separate", NULL};
    struct toml_node *table = NULL, *place = NULL;
    int mode = 0;
    const char *const *hosts = NULL;
    if (toml_table(root, "verifier", &table, err) < 0)
        return -1;
    if (task_read_seconds(table, "timeout_sec", &task->verify_ms_max, err) < 0 ||
        task_read_duration(table, "timeout", &task->verify_ms_max, err) < 0 ||
        task_read_text(task, table, "user", &task->verify_user, err) < 0 ||
        toml_bool(table, "fresh", &task->fresh_verify, err) < 0 ||
        task_read_list(task, table, "carry", &task->carry, err) < 0 ||
        task_read_env(task, table, "env", &task->verify_env, err) < 0 ||
        task_read_network(task, table, &task->verify_network, &hosts, err) < 0 ||
        task_read_commands(task, table, "commands", &task->verify, &task->verify_count, err) < 0 ||
        read_collect(task, table, err) < 0 || toml_table(table, "environment", &place, err) < 0)
        return -1;
    int said = toml_choice(table, "environment_mode", modes, &mode, err);
    if (said < 0 ||
        task_read_image(task, place, &task->verify_root_image, &task->verify_image, err) < 0 ||
        task_read_env(task, place, "env", &task->verify_env, err) < 0 ||
        task_read_network(task, place, &task->verify_network, &hosts, err) < 0)
        return -1;
    if (said == 1)
        task->separate_verify = mode == 1;
    else if (place)
        task->separate_verify = true;
    for (const char *const *path = task->carry; path && *path; path++)
        if ((*path)[0] != '/')
            return toml_error(toml_get(table, "carry"), err, "'%s' in carry is not absolute",
                              *path);
    /* What the box is made of is the task's; of its size the verifier's own wish is not asked. */
    static const char *const sizes[] = {"cpus",    "memory_mb", "memory",  "storage_mb",
                                        "storage", "os",        "workdir", "gpus"};
    for (size_t i = 0; place && i < COUNT(sizes); i++)
        toml_use_all(toml_get(place, sizes[i]));
    return 0;
}

/* Paths, or tables with `source` and more that only side services need. */
int task_read_artifacts(struct task *task, struct toml_node *root, struct err *err)
{
    struct toml_node *node = toml_get(root, "artifacts");
    if (!node || node->type == TOML_STRING)
        return task_read_list(task, root, "artifacts", &task->artifacts, err);
    if (node->type != TOML_ARRAY)
        return toml_error(node, err, "artifacts is a list of paths, not %s",
                          toml_type_name(node->type));
    const char **paths = arena_alloc(task_arena(task), (node->count + 1) * sizeof *paths);
    size_t used = 0;
    TOML_EACH(item, node)
    {
        const char *path = item->type == TOML_STRING ? item->text : NULL;
        const char *service = NULL;
        if (item->type == TOML_TABLE && (toml_need_text(item, "source", &path, err) < 0 ||
                                         toml_text(item, "service", &service, err) < 0))
            return -1;
        if (!path || !path[0])
            return toml_error(item, err, "an artifact is a path or a table with 'source'");
        if (service && strcmp(service, "main") != 0) {
            toml_error(item, err, "there is no service '%s': side services are not supported",
                       service);
            if (err)
                err->kind = ERR_UNSUPPORTED;
            return -1;
        }
        item->used = true;
        if (item->type == TOML_TABLE) {
            (void)toml_get(item, "destination"); /* kept by its source's name */
            toml_use_all(toml_get(item, "exclude"));
        }
        paths[used++] = task_keep(task, path);
    }
    task->artifacts = paths;
    return 1;
}

static int read_limits(struct task *task, struct toml_node *root, struct err *err)
{
    struct toml_node *table = NULL;
    long long turns = 0, pids = 0;
    if (toml_table(root, "limits", &table, err) < 0 ||
        toml_int(root, "turns_max", 1, 1 << 20, &turns, err) < 0 ||
        toml_int(table, "turns", 1, 1 << 20, &turns, err) < 0 ||
        toml_int(table, "pids", 1, 1 << 22, &pids, err) < 0 ||
        task_read_bytes(table, "memory", &task->memory_bytes_max, err) < 0 ||
        task_read_bytes(table, "disk", &task->disk_bytes_max, err) < 0 ||
        task_read_cpus(table, "cpus", &task->cpu_millis, err) < 0 ||
        task_read_duration(table, "timeout", &task->agent_ms_max, err) < 0 ||
        task_read_duration(table, "setup_timeout", &task->setup_ms_max, err) < 0 ||
        task_read_duration(table, "verify_timeout", &task->verify_ms_max, err) < 0)
        return -1;
    task->turns_max = (uint32_t)turns;
    task->pids_max = (uint32_t)pids;
    return 0;
}

static int read_about(struct task *task, struct toml_node *root, struct err *err)
{
    struct toml_node *about = NULL;
    const char *name = NULL;
    /* A name of our own first; [task] is Harbor's. */
    struct toml_node *node = toml_get(root, "task");
    if (node && node->type == TOML_TABLE) {
        if (toml_table(root, "task", &about, err) < 0 || toml_text(about, "name", &name, err) < 0 ||
            task_read_text(task, about, "description", &task->description, err) < 0)
            return -1;
        static const char *const free_keys[] = {"authors", "keywords", "version", "license"};
        for (size_t i = 0; i < COUNT(free_keys); i++)
            toml_use_all(toml_get(about, free_keys[i]));
    }
    if (task_read_text(task, root, "id", &task->name, err) < 0 ||
        task_read_text(task, root, "name", &task->name, err) < 0 ||
        task_read_text(task, root, "description", &task->description, err) < 0)
        return -1;
    if (!task->name && name)
        task->name = task_keep(task, name);
    return 0;
}

int task_read_keys(struct task *task, struct toml *toml, struct err *err)
{
    struct toml_node *root = toml->root, *solution = NULL;
    if (read_about(task, root, err) < 0 ||
        task_read_text(task, root, "instruction", &task->instruction, err) < 0 ||
        task_read_text(task, root, "system", &task->system, err) < 0 ||
        task_read_text(task, root, "workdir", &task->workdir, err) < 0 ||
        task_read_image(task, root, &task->root_image, &task->image, err) < 0 ||
        toml_bool(root, "root", &task->root, err) < 0 ||
        task_read_duration(root, "timeout", &task->agent_ms_max, err) < 0 ||
        task_read_files(task, root, "upload_files", err) < 0 ||
        task_read_files(task, root, "files", err) < 0 ||
        task_read_commands(task, root, "setup_shell", &task->setup, &task->setup_count, err) < 0 ||
        task_read_commands(task, root, "setup", &task->setup, &task->setup_count, err) < 0 ||
        task_read_commands(task, root, "post_setup", &task->setup, &task->setup_count, err) < 0 ||
        task_read_duration(root, "setup_timeout", &task->setup_ms_max, err) < 0 ||
        task_read_commands(task, root, "verify", &task->verify, &task->verify_count, err) < 0 ||
        task_read_artifacts(task, root, err) < 0 || read_limits(task, root, err) < 0 ||
        read_environment(task, root, err) < 0)
        return -1;
    task->verify_network = task->network; /* unless it says otherwise itself */
    if (task_read_agent(task, root, err) < 0 ||
        task_read_env(task, root, "env", &task->env, err) < 0 ||
        task_read_verifier(task, root, err) < 0 || task_read_tools(task, root, err) < 0 ||
        toml_table(root, "solution", &solution, err) < 0)
        return -1;
    if (task_read_env(task, solution, "env", &task->solution_env, err) < 0)
        return -1;
    toml_use_all(solution);

    struct toml_node *metadata = toml_get(root, "metadata");
    if (metadata) {
        OWN(buf) struct buf text = {0};
        struct json_writer writer = {.out = &text};
        toml_write_json(metadata, &writer);
        task->metadata = arena_str(task_arena(task), buf_str(&text));
        toml_use_all(metadata);
    }
    static const char *const passed_over[] = {"version", "schema_version", "source"};
    for (size_t i = 0; i < COUNT(passed_over); i++)
        toml_use_all(toml_get(root, passed_over[i]));
    return 0;
}

void task_warn(struct task *task, const char *text)
{
    size_t count = 0;
    task = task->parent ? task->parent : task;
    while (task->warnings && task->warnings[count])
        count++;
    if (count == TASK_WARNINGS_MAX)
        return;
    const char **list = arena_alloc(task_arena(task), (count + 2) * sizeof *list);
    for (size_t i = 0; i < count; i++)
        list[i] = task->warnings[i];
    list[count] = task_keep(task, text);
    task->warnings = list;
}

static void warn_below(struct task *task, struct toml_node *table)
{
    TOML_EACH(item, table)
    {
        if (table->type == TOML_TABLE && !item->used) {
            char text[300];
            snprintf(text, sizeof text, "%s:%u:%u: the key '%.80s' is not known and has no effect",
                     item->toml->name, item->key_line, item->key_column, item->key);
            task_warn(task, text);
            toml_use_all(item);
        } else if (item->type == TOML_TABLE || item->type == TOML_ARRAY) {
            warn_below(task, item);
        }
    }
}

void task_warn_unused(struct task *task, struct toml *toml)
{
    warn_below(task, toml->root);
}

/* What must hold whatever the form was. */
int task_check(struct task *task, const char *where, struct err *err)
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

struct task *task_finish(struct task *task, int result)
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
        struct str words = json_str(json_root(&doc), task_arena(task));
        task->instruction = arena_text(task_arena(task), words);
    } else if (json_type(json_root(&doc)) != JSON_OBJECT) {
        err_set(err, ERR_INPUT, "%s: a task is a JSON object or a string", where);
        return task_finish(task, -1);
    } else if (toml_from_json(&toml, where, json_root(&doc), err) < 0 ||
               task_read_keys(task, &toml, err) < 0 || toml_check_unused(&toml, err) < 0) {
        return task_finish(task, -1);
    }
    task->source = task_keep(task, where);
    if (!task->name)
        task->name = "inline";
    return task_finish(task, task_check(task, where, err));
}

struct task *task_from_toml(const char *path, struct err *err)
{
    OWN(toml) struct toml toml = {0};
    if (toml_read_file(&toml, path, err) < 0)
        return NULL;
    struct task *task = task_new();
    task->source = task_keep(task, path);
    task->host_env = true;
    if (task_read_keys(task, &toml, err) < 0 || toml_check_unused(&toml, err) < 0)
        return task_finish(task, -1);
    if (!task->name) {
        const char *slash = strrchr(path, '/');
        struct str base = str_of(slash ? slash + 1 : path);
        if (str_ends(base, STR(".toml")))
            base.size -= 5;
        task->name = arena_text(task_arena(task), base);
    }
    return task_finish(task, task_check(task, path, err));
}
