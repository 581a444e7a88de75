/* ask.c - smaller questions the commands have: the machine, images, agents, tasks. */
#include "runtime/runtime.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "json/json.h"
#include "runtime/internal.h"

int runtime_doctor(const struct config *config, struct json_writer *out)
{
    struct sandbox_options options = machine_sandbox_options(config);
    return sandbox_doctor(&options, out);
}

int runtime_image_import(const struct config *config, const char *archive, const char *name,
                         struct err *err)
{
    if (file_make_dirs(config->home, 0755, err) < 0)
        return -1;
    return sandbox_image_import(config->home, archive, name, err);
}

int runtime_image_list(const struct config *config, struct json_writer *out, struct err *err)
{
    return sandbox_image_list(config->home, out, err);
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static int is_spec(const struct dirent *entry)
{
    return entry->d_name[0] != '.' && str_ends(str_of(entry->d_name), STR(".toml"));
}

/* A spec that does not read is listed with what is wrong: one bad file hides no other. */
static void write_spec(const struct config *config, const struct agent_spec *spec,
                       struct json_writer *out)
{
    json_begin_object(out);
    agent_spec_write_members(spec, out);
    if (agent_spec_has_bundle(spec))
        agent_bundle_write(spec, config->home, out);
    json_end_object(out);
}

static void write_agent(const struct config *config, const char *path, struct json_writer *out)
{
    struct err err = {0};
    struct agent_spec *spec = agent_spec_load(path, machine_agent_dirs(), &err);
    if (spec) {
        write_spec(config, spec, out);
        agent_spec_unref(spec);
        return;
    }
    const char *slash = strrchr(path, '/');
    struct str name = str_of(slash ? slash + 1 : path);
    name.size -= strlen(".toml");
    json_begin_object(out);
    json_set_str(out, "name", name);
    json_set_text(out, "source", path);
    json_set_text(out, "error", err.text);
    json_end_object(out);
}

int runtime_agents(const struct config *config, struct json_writer *out, struct err *err)
{
    const char *const *dirs = machine_agent_dirs()->spec_dirs;
    if (!dirs[0])
        return err_set(err, ERR_NOT_FOUND, "no directory of agents was found; set POSTERN_SHARE");
    json_begin_array(out);
    for (size_t i = 0; dirs[i]; i++) {
        struct dirent **entries = NULL;
        int count = scandir(dirs[i], &entries, is_spec, by_name);
        for (int n = 0; n < count; n++) {
            OWN(mem) char *path = mem_format("%s/%s", dirs[i], entries[n]->d_name);
            write_agent(config, path, out);
            free(entries[n]);
        }
        free(entries);
    }
    json_end_array(out);
    return 0;
}

int runtime_agent_install(const struct config *config, const char *what, struct json_writer *out,
                          struct err *err)
{
    struct agent_spec *spec = agent_spec_load(what, machine_agent_dirs(), err);
    if (!spec)
        return -1;
    int result = agent_bundle_build(spec, config->home, err);
    if (result == 0)
        write_spec(config, spec, out);
    agent_spec_unref(spec);
    return result;
}

int runtime_agents_remove(const struct config *config, const char *what, struct json_writer *out,
                          struct err *err)
{
    const char *at = what ? strrchr(what, '@') : NULL;
    OWN(mem)
    char *name = what ? str_dup(str_make(what, at ? (size_t)(at - what) : strlen(what))) : NULL;
    struct agent_bundles_which which = {
        .name = name, .version = at ? at + 1 : NULL, .dirs = machine_agent_dirs()};
    return agent_bundles_remove(config->home, &which, out, err);
}

int runtime_agent_check(const char *what, struct json_writer *out, struct err *err)
{
    struct agent_spec *spec = agent_spec_load(what, machine_agent_dirs(), err);
    if (!spec)
        return -1;
    agent_spec_write(spec, out);
    agent_spec_unref(spec);
    return 0;
}

int runtime_task_check(const char *what, struct json_writer *out, struct err *err)
{
    struct task **tasks = NULL;
    size_t count = 0;
    if (task_load(what, &tasks, &count, err) < 0)
        return -1;
    json_begin_array(out);
    for (size_t i = 0; i < count; i++)
        task_write(tasks[i], out);
    json_end_array(out);
    task_list_free(tasks, count);
    return 0;
}
