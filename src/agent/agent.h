/* agent.h - the door of the agent room: a spec file becomes a running agent, and its output events.
 *
 * A spec is data (agents/NAME.toml, docs/agents.md): what to put into the sandbox, how to start it,
 * how to read what it prints, what its exit codes mean. There is one start path for every agent and
 * no code that knows a particular one. Specs never change once read and may be shared between
 * lanes.
 *
 * Activities live on the sandbox's loop; each ends with exactly one final callback, never from
 * inside the call that started it; closing a handle silences it. */
#ifndef AGENT_H
#define AGENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/str.h"
#include "sandbox/sandbox.h"

struct agent_spec;
struct agent_run;
struct agent_install;
struct json_writer;
struct loop;
struct trace_rules;

/* What the sandbox gets instead of a key: model routes on the inlet need none. */
#define AGENT_DUMMY_KEY "postern-no-key-needed"

struct agent_dirs {
    const char *const *spec_dirs; /* NULL-terminated: where NAME.toml is looked for */
    const char *const
        *file_dirs; /* NULL-terminated: where programs named in specs are (postern-mini) */
};
/* `what` is a path (it has a '/' or ends in .toml) or a name. Reads the files the spec puts into
 * sandboxes. */
struct agent_spec *agent_spec_load(const char *what, const struct agent_dirs *dirs,
                                   struct err *err);
/* Only the text; files are not read. `where` is used in errors. */
struct agent_spec *agent_spec_parse(struct str text, const char *where, struct err *err);
struct agent_spec *agent_spec_ref(struct agent_spec *spec);
void agent_spec_unref(struct agent_spec *spec); /* NULL is fine; any thread */
const char *agent_spec_name(const struct agent_spec *spec);
const char *agent_spec_version(const struct agent_spec *spec); /* "" when not said */
const char *agent_spec_summary(const struct agent_spec *spec);
uint32_t agent_spec_timeout_ms(const struct agent_spec *spec); /* 0: not said */
bool agent_spec_wants_root(const struct agent_spec *spec);
/* The oracle: it is given the task's solution, and asks no model. */
bool agent_spec_wants_solution(const struct agent_spec *spec);
void agent_spec_write(const struct agent_spec *spec, struct json_writer *out);
/* The same without the braces, to be added to. */
void agent_spec_write_members(const struct agent_spec *spec, struct json_writer *out);

/* What a rollout wants of its agent. ERR_UNSUPPORTED says what this one cannot do. */
struct agent_wants {
    bool tools;            /* the task has tools to call */
    bool turns;            /* the user says more than the instruction */
    bool root;             /* it would be root inside */
    uint64_t memory_bytes; /* it would have; 0: not known */
};
int agent_spec_fit(const struct agent_spec *spec, const struct agent_wants *wants, struct err *err);

/* A new server can go on driving it: nothing it was given can only be told by the old one. */
bool agent_spec_resumes(const struct agent_spec *spec);
/* It can be driven through several turns of a user. */
bool agent_spec_takes_turns(const struct agent_spec *spec);
/* What is known of its calls beforehand; lives as long as the spec. */
const struct trace_rules *agent_spec_rules(const struct agent_spec *spec);
/* It may take a broken stream for the end of an answer, and end well. */
bool agent_spec_reset_ends(const struct agent_spec *spec);
/* Paths inside that it wants kept, NULL-terminated, in the arena; NULL: none. */
struct arena;
const char *const *agent_spec_artifacts(const struct agent_spec *spec, const char *workdir,
                                        bool as_root, struct arena *arena);

/* --- what an agent needs of the place it runs in: programs, versions, paths. ERR_UNSUPPORTED names
 * what is missing. When it is installed. */
struct agent_check;
bool agent_spec_has_needs(const struct agent_spec *spec);
struct agent_check *agent_check(struct loop *loop, struct agent_spec *spec, struct sandbox *sandbox,
                                void (*on_done)(void *context, const struct err *err),
                                void *context);
void agent_check_close(struct agent_check *check); /* NULL is fine */

/* --- bundles: agents built once on the host (postern agents install), mounted into every sandbox.
 * `home` is Postern's. */
bool agent_spec_has_bundle(const struct agent_spec *spec);
/* The layer that has the agent in it, an absolute path on the heap; NULL with ERR_NOT_FOUND when it
 * is not installed. Only for specs that have a bundle. From then on this process holds it: nobody
 * can remove it while the process lives. */
char *agent_bundle_layer(const struct agent_spec *spec, const char *home, struct err *err);
/* Builds it if it is not there; needs the network and, by kind, npm, pip, curl or tar. Blocking. */
int agent_bundle_build(const struct agent_spec *spec, const char *home, struct err *err);
/* Removes bundles: those of `name` (and `version`, when said), or, without a name, those that no
 * spec wants any more: neither one of `dirs` nor the file they were made from. What is in use stays
 * (ERR_CONFLICT when it was named), and so does everything else. `out` gets an array of what was
 * meant: bundle, name, version, bytes, removed. */
struct agent_bundles_which {
    const char *name, *version;
    const struct agent_dirs *dirs;
};
int agent_bundles_remove(const char *home, const struct agent_bundles_which *which,
                         struct json_writer *out, struct err *err);
/* Adds "installed", "bytes" and "bundle" to the object that is open. */
void agent_bundle_write(const struct agent_spec *spec, const char *home, struct json_writer *out);

/* --- installing: the spec's check, then its bundle, files and install commands. `layer`: the
 * bundle when the backend could not mount it, to be copied; NULL: none, or mounted. */
struct agent_install *agent_install(struct loop *loop, struct agent_spec *spec,
                                    struct sandbox *sandbox, const char *layer,
                                    void (*on_done)(void *context, const struct err *err),
                                    void *context);
void agent_install_close(struct agent_install *install);

/* --- running */
enum agent_event_kind {
    AGENT_ASSISTANT,
    AGENT_TOOL_CALL,
    AGENT_TOOL_RESULT,
    AGENT_REASONING,
    AGENT_ERROR,
    AGENT_DONE,
    AGENT_OTHER
};
const char *agent_event_kind_name(enum agent_event_kind kind);
struct agent_event {
    enum agent_event_kind kind;
    struct str type; /* the agent's own word; STR_NONE for text output */
    struct str text; /* the words in it; may be empty */
    struct str name; /* of a tool; may be empty */
    struct str id;   /* of a tool call; may be empty */
    struct str raw;  /* the whole line */
};
enum agent_fate {
    AGENT_OK,
    AGENT_FAILED,
    AGENT_NOT_STARTED, /* the program is missing or cannot run: not the agent's doing */
    AGENT_LIMIT,
    AGENT_TIMED_OUT,
    AGENT_OUT_OF_MEMORY,
    AGENT_KILLED,
    AGENT_LOST
};
struct agent_end {
    enum agent_fate fate;
    struct sandbox_exit exit;
    struct str final_text; /* its last words; borrowed during the call */
    uint64_t events, lines_too_long;
    char text[200]; /* one sentence: why it is this fate */
};
struct agent_start {
    struct loop *loop; /* the sandbox's */
    const char *instruction;
    const char *system; /* NULL: none */
    const char *model;  /* the name the agent should ask for */
    const char *workdir;
    const char *user;       /* NULL: as the spec says, else the ordinary user */
    const char *const *env; /* added last; NULL: none */
    uint32_t timeout_ms;
    uint32_t turns_max;    /* 0: not said */
    bool skip_permissions; /* the agent shall not ask itself whether it may; {skip_permissions} */
    bool tools;            /* there is an MCP server on the inlet */
    /* What the user says after each answer, NULL-terminated; NULL: nothing. Only for agents that
     * take turns. */
    const char *const *turns;
};
struct agent_handlers {
    void (*on_event)(void *context, const struct agent_event *event); /* may be NULL */
    void (*on_output)(void *context, int stream, struct str data);    /* raw; may be NULL */
    /* The agent has answered the instruction and all of `turns`: agent_say() follows, now or later.
     * NULL: that is the end. Only for agents that take turns. `reply`: its last message. */
    void (*on_turn)(void *context, struct str reply);
    void (*on_end)(void *context, const struct agent_end *end); /* last */
};
struct agent_run *agent_start(struct agent_spec *spec, struct sandbox *sandbox,
                              const struct agent_start *start,
                              const struct agent_handlers *handlers, void *context);
/* An agent that a former server started in this sandbox, which has been taken over and keeps it
 * (sandbox_kept). What it printed so far is read once more, so that everything known from it is
 * known again; nothing of that is told twice. */
#define AGENT_PART_ERR 0x80000000u
struct agent_resume {
    struct str log;        /* what it printed, both streams */
    const uint32_t *parts; /* the pieces it came in: their sizes, and AGENT_PART_ERR for stderr */
    size_t part_count;
    bool gap;              /* more was printed afterwards and is not in the log */
    size_t index;          /* agents that were started before it in the same sandbox */
    uint64_t position;     /* bytes it printed in all that were seen to */
    uint64_t events_known; /* events that were told */
};
struct agent_run *agent_resume(struct agent_spec *spec, struct sandbox *sandbox,
                               const struct agent_start *start, const struct agent_resume *resume,
                               const struct agent_handlers *handlers, void *context);
/* The user's next words; NULL: there are none, and the agent is done. Once after each on_turn. */
void agent_say(struct agent_run *run, const char *text);
void agent_stop(struct agent_run *run);  /* the ladder; on_end still comes (AGENT_KILLED) */
void agent_close(struct agent_run *run); /* silences and kills; NULL is fine */

/* The inlet as the agent sees it. */
const char *agent_inlet_url(void); /* "http://127.0.0.1:13131" */

#endif
