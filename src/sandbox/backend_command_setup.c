/* backend_command_setup.c - what a command backend is made of before its first sandbox: its file,
 * the values of the file's variables, the environment of its programs, and the porter with a name
 * by its content. */
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/file.h"
#include "base/mem.h"
#include "sandbox/backend_command_spec.h"
#include "sandbox/sandbox.h"

enum { PORTER_BYTES_MAX = 64 << 20 };

static int hash_porter(struct command_setup *setup, struct err *err)
{
    OWN(buf) struct buf content = {0};
    if (file_read(setup->porter_path, PORTER_BYTES_MAX, &content, err) < 0)
        return err_wrap(err, "the porter");
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned size = 0;
    if (!EVP_Digest(content.data, content.size, digest, &size, EVP_sha256(), NULL))
        return err_set(err, ERR_SYSTEM, "the porter could not be hashed");
    int at = snprintf(setup->porter_name, sizeof setup->porter_name, "porter-");
    for (unsigned i = 0; i < 8; i++)
        at += snprintf(setup->porter_name + at, sizeof setup->porter_name - (size_t)at, "%02x",
                       digest[i]);
    return 0;
}

/* BACKEND_<FILE>_<NAME>, in capitals. */
static void variable_name(const char *file, const char *name, char *text, size_t size)
{
    snprintf(text, size, "BACKEND_%s_%s", file, name);
    for (char *at = text; *at; at++)
        if (*at >= 'a' && *at <= 'z')
            *at = (char)(*at - 'a' + 'A');
        else if (*at == '-')
            *at = '_';
}

/* A value may come with the backend's name, from the environment, or from the file. */
static int set_variables(struct command_setup *setup, const char *argument, struct err *err)
{
    const struct command_spec *spec = &setup->spec;
    if (argument && !spec->argument)
        return err_set(err, ERR_INPUT, "backend '%s' takes no ':%s'", spec->name, argument);
    for (size_t i = 0; i < spec->variable_count; i++) {
        const struct command_variable *variable = &spec->variables[i];
        bool main = spec->argument && strcmp(spec->argument, variable->name) == 0;
        char name[128];
        variable_name(spec->name, variable->name, name, sizeof name);
        const char *value = main && argument ? argument : getenv(name);
        if (!value)
            value = variable->fallback;
        if (!*value && variable->required && main)
            return err_set(err, ERR_INPUT,
                           "backend '%s' needs '%s' (%s): say --backend %s:VALUE or set %s",
                           spec->name, variable->name, variable->help, spec->name, name);
        if (!*value && variable->required)
            return err_set(err, ERR_INPUT, "backend '%s' needs '%s' (%s): set %s", spec->name,
                           variable->name, variable->help, name);
        setup->variables[i] = mem_dup(value);
    }
    return 0;
}

static void add_environment(struct command_setup *setup, size_t *count, const char *name)
{
    const char *value = getenv(name);
    if (value)
        setup->env[(*count)++] = mem_format("%s=%s", name, value);
}

static void build_environment(struct command_setup *setup)
{
    const struct command_spec *spec = &setup->spec;
    size_t room = 3, count = 0;
    for (size_t i = 0; spec->environment && spec->environment[i]; i++)
        room++;
    for (size_t i = 0; spec->environment_pass && spec->environment_pass[i]; i++)
        room++;
    setup->env = mem_zero(room * sizeof *setup->env);
    add_environment(setup, &count, "PATH");
    add_environment(setup, &count, "HOME");
    for (size_t i = 0; spec->environment_pass && spec->environment_pass[i]; i++)
        add_environment(setup, &count, spec->environment_pass[i]);
    for (size_t i = 0; spec->environment && spec->environment[i]; i++)
        setup->env[count++] = mem_dup(spec->environment[i]);
}

static int find_file(const struct sandbox_options *options, const char *name, char *path,
                     size_t size, struct err *err)
{
    for (const char *at = name; *at || at == name; at++)
        if (!((*at >= 'a' && *at <= 'z') || (*at >= '0' && *at <= '9') || *at == '-' || *at == '_'))
            return err_set(err, ERR_INPUT, "'%s' is no name of a backend", name);
    for (size_t i = 0; i < options->backend_dir_count; i++) {
        snprintf(path, size, "%s/%s.toml", options->backend_dirs[i], name);
        if (file_exists(path))
            return 0;
    }
    return err_set(err, ERR_NOT_FOUND, "there is no backend '%s'", name);
}

int command_setup(struct command_setup *setup, const struct sandbox_options *options,
                  const char *name, struct err *err)
{
    struct str argument = str_of(name), file = str_cut(&argument, ':');
    OWN(mem) char *file_name = str_dup(file);
    char path[4096];
    *setup = (struct command_setup){0};
    if (find_file(options, file_name, path, sizeof path, err) < 0 ||
        command_spec_read(&setup->spec, path, file_name, err) < 0 ||
        set_variables(setup, argument.data, err) < 0)
        return -1;
    setup->porter_path =
        mem_format("%s/postern-porter", options->program_dir ? options->program_dir : ".");
    if (hash_porter(setup, err) < 0)
        return -1;
    build_environment(setup);
    return 0;
}

void command_setup_deinit(struct command_setup *setup)
{
    for (size_t i = 0; setup->env && setup->env[i]; i++)
        free(setup->env[i]);
    free(setup->env);
    for (size_t i = 0; i < setup->spec.variable_count; i++)
        free(setup->variables[i]);
    free(setup->porter_path);
    command_spec_deinit(&setup->spec);
}
