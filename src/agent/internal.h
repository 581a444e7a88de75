/* internal.h - private to the agent room: a spec as it was read, variables, and the event reader.
 */
#ifndef AGENT_INTERNAL_H
#define AGENT_INTERNAL_H

#include <stdatomic.h>

#include "agent/agent.h"
#include "base/arena.h"
#include "trace/rules.h"

#define AGENT_FILE_BYTES_MAX (256u << 20)
#define AGENT_FINAL_TEXT_MAX (64u << 10)

enum agent_input { AGENT_INPUT_FILE, AGENT_INPUT_STDIN, AGENT_INPUT_ARGUMENT, AGENT_INPUT_ACP };
enum agent_format { AGENT_FORMAT_TEXT, AGENT_FORMAT_JSONL, AGENT_FORMAT_ACP };

/* How an agent is told of MCP servers. */
enum agent_mcp {
    AGENT_MCP_UNKNOWN, /* the spec says nothing */
    AGENT_MCP_NONE,    /* it has no MCP */
    AGENT_MCP_CONFIG,  /* {mcp_url} in its own files or arguments */
    AGENT_MCP_ACP,     /* when its session begins */
};

enum agent_text { AGENT_TEXT_PLAIN, AGENT_TEXT_JSON, AGENT_TEXT_TOML };

/* Either a file of the host (`from`), put in when the agent is installed and root's; or a text with
 * variables (`text`), written when the agent starts and its user's. */
struct agent_file {
    const char *from, *to;
    const char *text;
    enum agent_text format;
    const char *only_if; /* a variable that must have a value; NULL: always */
    uint32_t mode;
    struct buf content; /* of `from`; read by agent_spec_load() */
};
/* One rule about a line of output: when all of these paths have these values, it is an event. */
struct agent_condition {
    const char *path, *value;
};
#define AGENT_IGNORED (-1)
struct agent_rule {
    int kind;         /* enum agent_event_kind, or AGENT_IGNORED */
    const char *each; /* an array: its elements are asked one by one; paths beginning with '.' are
                         below the element; NULL: the line itself */
    struct agent_condition *when;
    size_t when_count;
    const char *const *text;
    const char *name, *id; /* paths; NULL: none */
    bool also;             /* later rules are asked too */
    bool piece;            /* of a message that is over when something else comes */
    bool limit;            /* the agent stopped at a limit of its own, whatever its exit code */
};
/* What is built on the host, once, and mounted into sandboxes (bundle.c). */
enum agent_bundle_kind {
    AGENT_BUNDLE_NONE,
    AGENT_BUNDLE_NPM,
    AGENT_BUNDLE_PYPI,
    AGENT_BUNDLE_TARBALL,
    AGENT_BUNDLE_BINARY,
    AGENT_BUNDLE_SCRIPT
};
struct agent_pair {
    const char *key, *value;
};
struct agent_bundle {
    enum agent_bundle_kind kind;
    const char *const *packages; /* npm, pypi */
    const char *source;          /* tarball, binary: a URL or a path; script: a path */
    const char *sha256;          /* of it; hex */
    bool runtime;                /* pypi: with a Python of its own */
    bool scripts;                /* npm may run the packages' own install scripts */
    struct agent_pair *integrity;
    size_t integrity_count;
    struct agent_pair *place; /* key: where in the bundle, value: where in what was built */
    size_t place_count;
    const char *const *drop;
    uint32_t build_ms_max;
    char key[13];
};
enum agent_user { AGENT_USER_ANY, AGENT_USER_ROOT, AGENT_USER_ORDINARY };
struct agent_needs {
    enum agent_user user;
    uint64_t memory_bytes; /* 0: not said */
    const char *const *programs, *const *paths;
    struct agent_pair *versions; /* program -> the least */
    size_t version_count;
};
/* Arguments that are added when a variable has a value. */
struct agent_option {
    const char *variable;
    const char *const *argv;
};
/* How an agent is driven through ACP. */
struct agent_acp_way {
    const char *const *argv; /* started then; NULL: run.argv, or never */
    bool deny_all;           /* of what it asks permission for */
    const char *const *deny; /* kinds of tools it does not get permission for; NULL: none */
    bool files, terminals;   /* are served, inside its sandbox */
    const char *auth, *mode; /* NULL: none */
    const char *meta;        /* JSON with variables, for session/new; NULL: none */
    bool system_native;      /* the system prompt has a place of its own then, too */
};
/* What an exit code means, for people. */
struct agent_code {
    int code;
    const char *words;
};
struct agent_spec {
    const char *name, *summary, *version, *where;
    bool root;
    bool solution;              /* the oracle: gets solution/ and asks no model */
    unsigned dialects;          /* bits in the order of spec.c's list; 0: not said */
    const char *disabled_tools; /* joined by commas; NULL: none */
    struct agent_bundle bundle;
    struct agent_file *files;
    size_t file_count;

    const char *const *check; /* argv; NULL: none */
    const char *const *install;
    uint32_t install_ms_max, install_tries_max;

    const char *const *argv;
    struct agent_option *options;
    size_t option_count;
    const char *const *argv_each; /* for each of the disabled tools, with {item}; NULL: none */
    const char *const *argv_last; /* after the options; NULL: none */
    const char *const *env;
    const char *cwd, *user;
    enum agent_input input;
    bool system_prepended; /* the agent has no place for a system prompt */
    const char *instruction_file, *system_file;
    uint32_t timeout_ms, grace_ms;
    bool interrupted; /* stopping begins with an interrupt, one grace before TERM */

    enum agent_format format;
    const char *type_key;
    const char *const *text_keys;
    const char *const *events[AGENT_OTHER]; /* the agent's words for each kind; NULL: none */
    struct agent_rule *rules;
    size_t rule_count;
    size_t line_bytes_max;
    bool error_fails;      /* the last thing said is an error: failed, whatever the exit code */
    unsigned needed_kinds; /* bits: events without which exit code 0 is a failure */

    struct agent_code *code_words;
    size_t code_word_count;
    int *ok_codes, *limit_codes;
    size_t ok_count, limit_count;

    enum agent_mcp mcp;
    struct agent_acp_way acp;
    struct trace_rules rules_wire;
    uint32_t retry_attempts; /* requests it makes before it gives up; 0: not said. For people */
    bool reset_ends;         /* it may take a broken stream for the end of an answer */
    struct agent_needs needs;
    const char *const *artifacts; /* with variables; NULL: none */
    const char *const *disabled;  /* NULL: none */

    struct arena arena;
    atomic_int references;
};

/* --- variables: "{model}" in argv, env, cwd, file names and texts; "{?system}...{/system}" is
 * there only when the variable has a value */
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
    AGENT_VAR_SKIP_PERMISSIONS,
    AGENT_VAR_HOME,
    AGENT_VAR_BUNDLE,
    AGENT_VAR_VERSION,
    AGENT_VAR_ARCH,
    AGENT_VAR_NPM_ARCH,
    AGENT_VAR_DISABLED_TOOLS,
    AGENT_VAR_MCP_URL,
    AGENT_VAR_MCP_NAME,
    AGENT_VAR_LOADER,
    AGENT_VAR_ITEM, /* of a list, inside its part */
    AGENT_VARS
};
extern const char *const agent_variable_names[AGENT_VARS + 1];
struct agent_values {
    const char *value[AGENT_VARS]; /* NULL: none, an empty text */
    const char *const *items;      /* of {*disabled_tools}; NULL: none */
};
/* The first "{word}" that is no variable, or STR_NONE. */
struct str agent_variable_unknown(const char *text);
bool agent_variable_used(const char *text, enum agent_variable variable);
int agent_variable_find(const char *name); /* -1: there is none */
char *agent_expand(struct arena *arena, const char *text, const struct agent_values *values);
/* With values escaped for the inside of a JSON or TOML string. */
char *agent_expand_as(struct arena *arena, const char *text, const struct agent_values *values,
                      enum agent_text format);
/* Whatever the values will be, the text is valid JSON or TOML. */
int agent_text_prove(const char *text, enum agent_text format, struct err *err);
/* What is known before any rollout: version, architecture, place of the bundle. */
void agent_values_fixed(struct arena *arena, const struct agent_spec *spec,
                        struct agent_values *values);

/* --- reading a spec: as toml_text() and friends; variables are checked, texts kept */
struct toml_node;
/* Values of conditions: texts, numbers and truths, as they stand in JSON. Tables go deeper, so that
 * item.type = "x" needs no quotes. `add` gets each with its path. */
int spec_conditions(struct agent_spec *spec, struct toml_node *table, const char *prefix,
                    int (*add)(void *context, struct toml_node *item, const char *path,
                               const char *value, struct err *err),
                    void *context, struct err *err);
const char *spec_keep(struct agent_spec *spec, const char *text);
int spec_text(struct agent_spec *spec, struct toml_node *table, const char *key, const char **out,
              struct err *err);
int spec_texts(struct agent_spec *spec, struct toml_node *table, const char *key,
               const char *const **out, struct err *err);
int spec_duration(struct toml_node *table, const char *key, uint32_t *out, struct err *err);
bool spec_uses(const struct agent_spec *spec, enum agent_variable variable);

/* --- spec_wire.c: what passes between the agent and its inlet */
int agent_wire_read(struct agent_spec *spec, struct toml_node *root, struct err *err);
void agent_wire_write(const struct agent_spec *spec, struct json_writer *out); /* members */

/* --- spec_exit.c: how it ends and what is kept of it */
int agent_exit_read(struct agent_spec *spec, struct toml_node *root, struct err *err);
int agent_artifacts_read(struct agent_spec *spec, struct toml_node *root, struct err *err);

/* --- spec_acp.c */
int agent_acp_read(struct agent_spec *spec, struct toml_node *root, struct err *err);

/* --- needs.c */
int agent_needs_read(struct agent_spec *spec, struct toml_node *root, struct err *err);
int agent_version_compare(const char *a, const char *b);
struct str agent_version_find(struct str text); /* STR_NONE: there is none */

/* --- bundles */
#define AGENT_BUNDLES_INSIDE "/opt/postern/agents"
int agent_bundle_read(struct agent_spec *spec, struct toml_node *root, struct err *err);

/* --- output as events */
struct agent_reader {
    const struct agent_spec *spec;
    struct buf line;
    bool skipping; /* the rest of a line that was too long */
    uint64_t events, lines_too_long;
    struct buf final_text;
    bool final_said; /* by a done event: assistant texts no longer replace it */
    bool last_is_error, limit_said;
    struct buf pieces; /* of the message that is being said */
    int pieces_kind;
    char error[160]; /* its words */
    unsigned kinds_seen;
    void (*on_event)(void *context, const struct agent_event *event);
    void *context;
    struct agent_acp *acp; /* lines go there; NULL: to the spec's rules */
};
void agent_reader_feed(struct agent_reader *reader, struct str data);
void agent_reader_end(struct agent_reader *reader); /* a last line without its newline */
void agent_reader_emit(struct agent_reader *reader, const struct agent_event *event);
void agent_reader_deinit(struct agent_reader *reader);

#endif
