/* internal.h - private to the agent room: a spec as it was read, variables, and the event reader.
 */
#ifndef AGENT_INTERNAL_H
#define AGENT_INTERNAL_H

#include <stdatomic.h>

#include "agent/agent.h"
#include "base/arena.h"

#define AGENT_FILE_BYTES_MAX (256u << 20)
#define AGENT_FINAL_TEXT_MAX (64u << 10)

enum agent_input { AGENT_INPUT_FILE, AGENT_INPUT_STDIN, AGENT_INPUT_ARGUMENT };
enum agent_format { AGENT_FORMAT_TEXT, AGENT_FORMAT_JSONL };

struct agent_file {
    const char *from, *to;
    uint32_t mode;
    struct buf content; /* read by agent_spec_load() */
};
/* Arguments that are added when a variable has a value. */
struct agent_option {
    const char *variable;
    const char *const *argv;
};
struct agent_spec {
    const char *name, *summary, *version, *where;
    bool root;
    struct agent_file *files;
    size_t file_count;

    const char *const *check; /* argv; NULL: none */
    const char *const *install;
    uint32_t install_ms_max, install_tries_max;

    const char *const *argv;
    struct agent_option *options;
    size_t option_count;
    const char *const *env;
    const char *cwd, *user;
    enum agent_input input;
    const char *instruction_file, *system_file;
    uint32_t timeout_ms, grace_ms;

    enum agent_format format;
    const char *type_key;
    const char *const *text_keys;
    const char *const *events[AGENT_OTHER]; /* the agent's words for each kind; NULL: none */
    size_t line_bytes_max;

    int *ok_codes, *limit_codes;
    size_t ok_count, limit_count;

    struct arena arena;
    atomic_int references;
};

/* --- variables: "{model}" in argv, env, cwd and file names */
enum agent_variable {
    AGENT_VAR_INSTRUCTION,
    AGENT_VAR_INSTRUCTION_FILE,
    AGENT_VAR_SYSTEM,
    AGENT_VAR_SYSTEM_FILE,
    AGENT_VAR_MODEL,
    AGENT_VAR_BASE_URL,
    AGENT_VAR_INLET,
    AGENT_VAR_KEY,
    AGENT_VAR_WORKDIR,
    AGENT_VAR_TURNS_MAX,
    AGENT_VARS
};
extern const char *const agent_variable_names[AGENT_VARS + 1];
struct agent_values {
    const char *value[AGENT_VARS]; /* NULL: none, an empty text */
};
/* The first "{word}" that is no variable, or STR_NONE. */
struct str agent_variable_unknown(const char *text);
bool agent_variable_used(const char *text, enum agent_variable variable);
char *agent_expand(struct arena *arena, const char *text, const struct agent_values *values);

/* --- output as events */
struct agent_reader {
    const struct agent_spec *spec;
    struct buf line;
    bool skipping; /* the rest of a line that was too long */
    uint64_t events, lines_too_long;
    struct buf final_text;
    bool final_said; /* by a done event: assistant texts no longer replace it */
    void (*on_event)(void *context, const struct agent_event *event);
    void *context;
};
void agent_reader_feed(struct agent_reader *reader, struct str data);
void agent_reader_end(struct agent_reader *reader); /* a last line without its newline */
void agent_reader_deinit(struct agent_reader *reader);

#endif
