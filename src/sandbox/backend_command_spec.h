/* backend_command_spec.h - private to the command backend: what a file in backends/ says, checked.
 * docs/backends.md describes every field. */
#ifndef SANDBOX_BACKEND_COMMAND_SPEC_H
#define SANDBOX_BACKEND_COMMAND_SPEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "config/toml.h"

struct err;
struct sandbox_options;

/* The steps a file may describe. Only `attach` is required. */
enum command_step {
    STEP_CHECK,        /* exits 0 when the porter is there already */
    STEP_UPLOAD,       /* reads the porter on standard input and puts it there */
    STEP_LAYER_CHECK,  /* exits 0 when the layer is there already */
    STEP_LAYER_UPLOAD, /* reads the layer as tar on standard input and puts it there */
    STEP_CREATE,       /* makes the sandbox */
    STEP_ATTACH,       /* its standard input and output are the porter's */
    STEP_DESTROY,      /* leaves nothing; succeeds when there is nothing */
    STEP_LIST,         /* prints "id TAB label TAB age in seconds" per sandbox */
    STEP_COUNT,
};
extern const char *const command_step_names[STEP_COUNT];

#define COMMAND_VARIABLES_MAX 32

/* What becomes of sandbox_spec.root. */
enum command_image { COMMAND_IMAGE_NONE, COMMAND_IMAGE_OPTIONAL, COMMAND_IMAGE_REQUIRED };

struct command_line {
    struct toml_node *argv; /* NULL: the step does not exist */
    uint32_t timeout_ms;
};

struct command_variable {
    const char *name;
    const char *help;
    const char *fallback; /* "": nothing */
    bool required;
};

struct command_spec {
    struct toml toml; /* owns every string here */
    char *name;
    const char *summary;
    const char *argument; /* the variable that "--backend NAME:VALUE" sets; NULL: none */
    unsigned capabilities;
    enum command_image image;
    uint32_t parallel_max;    /* 0: no limit */
    struct toml_node *common; /* words before those of every step; NULL: none */
    struct command_line steps[STEP_COUNT];
    struct command_variable variables[COMMAND_VARIABLES_MAX];
    size_t variable_count;
    const char *const *environment;      /* "NAME=value" */
    const char *const *environment_pass; /* names passed on from ours */
    long long retry_codes[16];           /* exit codes after which trying again may help */
    size_t retry_code_count;
};

/* Values by name: those of the sandbox (id, label, ...) and those of the file's variables. */
struct command_value {
    const char *name;
    const char *value;
};

/* `name` is the file's name without ".toml". Errors name line and column. */
int command_spec_read(struct command_spec *spec, const char *path, const char *name,
                      struct err *err);
void command_spec_deinit(struct command_spec *spec);

/* The words of a step with their variables replaced, in `arena`, NULL-terminated. A nested array is
 * left out when one of its variables is empty. */
const char *const *command_expand(const struct command_spec *spec, enum command_step step,
                                  const struct command_value *values, size_t value_count,
                                  struct arena *arena, struct err *err);

/* A file with everything its programs need to run. */
struct command_setup {
    struct command_spec spec;
    char *variables[COMMAND_VARIABLES_MAX]; /* values, in the order of spec.variables */
    char **env;
    char *porter_path;
    char porter_name[32]; /* "porter-" and the start of its hash: another version is another file */
};
/* `name` is a file's name, or "file:value". On failure too, deinit it. */
int command_setup(struct command_setup *setup, const struct sandbox_options *options,
                  const char *name, struct err *err);
void command_setup_deinit(struct command_setup *setup);

/* The names a sandbox fills in; a file's variables must not use them. */
extern const char *const command_builtin_names[];

#endif
