/* task.h - the door of the task room: what an agent is asked to do, and how it is judged.
 *
 * A task is read from JSON (inline or a line of a JSONL file), a TOML file, or a directory in the
 * Harbor layout (task.toml, instruction.md, environment/, tests/test.sh, solution/, steps/). Once
 * read it never changes and may be shared between lanes by reference. docs/tasks.md describes the
 * formats.
 *
 * The activities (prepare, setup, collect, solve, verify) live on the sandbox's loop. Each ends
 * with exactly one on_done, never from inside the call that started it. What on_done hands out
 * lives until the handle is closed. A handle may be closed when its on_done came, or when its
 * sandbox was closed before (which silences what is still under way inside). */
#ifndef TASK_H
#define TASK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/str.h"
#include "trace/trace.h"

struct json_writer;
struct sandbox;
struct sandboxes;

#define TASK_WORKDIR "/app" /* where nothing else is said */
#define TASK_LOGS "/logs"   /* cleared before verification */
#define TASK_REWARD_TEXT "/logs/verifier/reward.txt"
#define TASK_REWARD_JSON "/logs/verifier/reward.json"
#define TASK_ARTIFACTS "/logs/artifacts" /* by convention carried to a separate verifier */
#define TASK_TESTS "/tests"
#define TASK_TOOLS "/tools"       /* only in the sandbox apart */
#define TASK_SOLUTION "/solution" /* where the oracle finds solution/ */

struct task_command {
    const char *shell; /* for /bin/sh -c */
    const char *user;  /* NULL: the ordinary user */
    uint32_t timeout_ms;
};
struct task_file {
    const char *path; /* inside; relative ones are below the working directory */
    struct str content;
    uint32_t mode;
};
/* A tool the agent may call on its inlet. */
struct task_tool {
    const char *name;
    const char *const *command; /* argv of the program that answers; NULL: the trainer answers */
    const char *user;           /* NULL: the agent's; apart: the ordinary user */
    uint32_t timeout_ms;
    bool apart; /* runs in a sandbox of its own, which the agent cannot reach */
};

/* What a task says about the network. Postern's sandboxes have none but the inlet. */
enum task_network {
    TASK_NETWORK_UNSAID,
    TASK_NETWORK_NONE,
    TASK_NETWORK_PUBLIC,
    TASK_NETWORK_ALLOWLIST
};

/* An image that has to be made before the first sandbox: from a Dockerfile, or fetched by name. */
struct task_image {
    const char *build_dir; /* host directory with a Dockerfile, the build context; or */
    const char *name;      /* as a container engine calls it, "python:3.12" */
    uint32_t build_ms_max; /* 0: ten minutes */
};
struct task_reward_min {
    const char *name; /* NULL: the reward itself */
    double value;
};
enum task_roll_up { TASK_ROLL_UP_MEAN, TASK_ROLL_UP_FINAL };

struct task {
    const char *name;            /* never NULL */
    const char *source;          /* where it came from, for people */
    const char *description;     /* NULL: none */
    const char *instruction;     /* never NULL, never empty; of several steps the first one's */
    const char *system;          /* system prompt; NULL: none */
    const char *workdir;         /* absolute */
    const char *environment_dir; /* host directory whose content goes to workdir; NULL: none */
    const char *tests_dir;  /* host directory that goes to /tests before verification; NULL: none */
    const char *tests_more; /* put over the former: a step's own; NULL: none */
    const char *test_script;  /* name in /tests, "test.sh"; NULL: none */
    const char *solution_dir; /* host directory for the oracle, never for others; NULL: none */
    const struct task_file *files;
    size_t file_count;
    const struct task_command *setup;
    size_t setup_count;
    const struct task_command *collect; /* between the agent's end and verification */
    size_t collect_count;
    const struct task_command *verify; /* verify commands; used when there is no test script */
    size_t verify_count;
    /* Environments are "NAME=value" with ${VAR} and ${VAR:-text} still in them: the host's values
     * are read when a command starts (task_env_resolve) and are never written down. */
    const char *const *env;          /* for setup, agent and verifier; NULL: none */
    const char *const *agent_env;    /* in addition, for the agent only */
    const char *const *verify_env;   /* in addition, for the verifier only */
    const char *const *solution_env; /* in addition, for the oracle only */
    bool logs_dir;                   /* /logs/artifacts is there for the agent, as in Harbor */
    bool host_env;                   /* ${VAR} is read from the host; else refused */
    const char *const *artifacts;    /* paths to keep, NULL-terminated; NULL: none */
    const char *root_image;          /* as sandbox_spec.root; NULL: not said */
    struct task_image image;         /* neither of its fields set: nothing has to be made */
    bool root;                       /* asks for root inside */
    const char *agent_user;          /* NULL: root when `root`, else the ordinary user */
    enum task_network network;       /* of agent and setup */
    const char *const *hosts;        /* allowlist; NULL: none */
    bool fresh_verify;             /* default true: verify in a sandbox made from the final files */
    bool separate_verify;          /* in surroundings of its own: only artifacts are carried over */
    const char *verify_root_image; /* of a separate verifier; NULL: the task's */
    struct task_image verify_image;
    enum task_network verify_network;
    const char *const *carry; /* paths whose final state the verifier sees although they lie in a
                                 system directory; "/": everything. NULL: none */
    const char *verify_user;  /* NULL: root where possible */
    uint32_t agent_ms_max, setup_ms_max, verify_ms_max; /* 0: the configured default */
    uint64_t memory_bytes_max, disk_bytes_max;          /* 0: default */
    uint32_t pids_max, cpu_millis;
    uint32_t turns_max;  /* model calls of the conversation; 0: the configured default */
    struct str metadata; /* raw JSON object; STR_NONE: none */
    const struct task_tool *tools;
    size_t tool_count;
    struct str tool_definitions; /* a JSON array, as the gateway takes them; STR_NONE: none */
    const char *tools_dir;       /* host directory that goes to /tools of the sandbox apart; NULL */
    const char *const *turns;    /* what the user says after each answer, NULL-terminated; NULL */

    /* Several steps in one sandbox, each with an instruction and a verifier: each is a task of its
     * own, complete, which lives and dies with this one. 0: an ordinary task. */
    struct task **steps;
    size_t step_count;
    enum task_roll_up roll_up;
    struct task *parent; /* of a step; NULL: an ordinary task */
    /* Of a step: less than one of these ends the rollout here. A name that the verifier did not
     * give counts 0. */
    const struct task_reward_min *reward_min;
    size_t reward_min_count;

    const char *const *warnings; /* what was not understood, NULL-terminated; NULL: nothing */

    struct arena arena; /* everything above lives here */
    atomic_int references;
};

/* "-" (stdin: one JSON object, or JSONL), a directory, a .toml file, a .json file, a .jsonl file,
 * or text that starts with '{'. FILE.jsonl#ID, #N and #N-M (lines counted from 0) name some of a
 * file. A directory without task.toml stands for the tasks in the directories below it. On success
 * *tasks is a heap array of *count references the caller owns (task_list_free). Errors name file,
 * line and column. */
int task_load(const char *what, struct task ***tasks, size_t *count, struct err *err);
void task_list_free(struct task **tasks, size_t count);
struct task *task_from_json(struct str json, const char *where, struct err *err);

/* The same one by one, for sets of any size: what is not asked for is not in memory. Returns NULL
 * with err->kind ERR_NONE at the end. */
struct task_source;
struct task_source *task_source_open(const char *what, struct err *err);
struct task *task_source_next(struct task_source *source, struct err *err);
void task_source_close(struct task_source *source); /* NULL is fine */

struct task *task_ref(struct task *task);
void task_unref(struct task *task); /* NULL is fine; any thread */
static inline void own_task(struct task **task)
{
    task_unref(*task);
}
static inline void own_task_source(struct task_source **source)
{
    task_source_close(*source);
}
bool task_has_verifier(const struct task *task);
/* It says what its root is: an image, a directory, a Dockerfile. */
static inline bool task_has_root(const struct task *task)
{
    return task->root_image || task->image.name || task->image.build_dir;
}
bool task_has_apart(const struct task *task);    /* a tool that runs apart */
bool task_has_solution(const struct task *task); /* all of its steps have one */
/* ERR_UNSUPPORTED by name when the task cannot have the network it asks for (`network_off`: the
 * backend's sandboxes have none), or cannot be kept from one it forbids. */
int task_network_check(const struct task *task, bool network_off, struct err *err);
void task_write(const struct task *task,
                struct json_writer *out); /* one object, for people and the api */

/* `list` with the host's variables put in, NULL-terminated, in `arena`. A variable that is not
 * there and has no fallback, and one of Postern's own, is an error that names it. *secrets
 * (NULL-terminated pairs name, value) gets the host's values, to be kept out of logs. */
int task_env_resolve(const struct task *task, const char *const *list, struct arena *arena,
                     const char *const **out, const char *const **secrets, struct err *err);
/* Can all of them be had? Before anything is made. */
int task_env_check(const struct task *task, bool oracle, struct err *err);
/* Replaces each secret in `text` by [NAME]. */
void task_secrets_hide(const char *const *secrets, struct buf *text);
/* `text` was cut at its front (or its end), and its secrets are hidden: takes off what may be a
 * part of one there. */
void task_secrets_trim(const char *const *secrets, struct buf *text, bool front);

/* --- images: made once on this machine, then a root like any other. on_done comes on `loop`,
 * exactly once, never from inside the call; `root` is for sandbox_spec.root. Closing silences. */
struct loop;
struct task_image_job;
struct task_image_options {
    const char *home;    /* images/ is below it */
    const char *builder; /* NULL or "auto": buildah, podman or docker; else a command line of one */
    const char *flags;   /* for its build command; NULL: none */
    bool own_store;      /* the backend is that engine: nothing has to be imported */
};
struct task_image_job *task_image_make(
    struct loop *loop, const struct task_image *image, const struct task_image_options *options,
    void (*on_done)(void *context, const char *root, const struct err *err), void *context);
void task_image_job_close(struct task_image_job *job); /* NULL is fine */

/* --- preparing: environment and files into the working directory, which is made if missing */
struct task_work;
struct task_work *task_prepare(struct task *task, struct sandbox *sandbox,
                               void (*on_done)(void *context, const struct err *err),
                               void *context);

/* --- commands, one at a time. Setup: the first failure ends it; err->kind is ERR_NONE when all
 * came back with 0, ERR_INPUT when one failed (the task's fault), anything else when the sandbox
 * did. Collect: all of them; only the sandbox's own failures count. Only for tasks that have such
 * commands. `as_root`: there is root inside. */
typedef void (*task_commands_done)(void *context, const struct trace_command *commands,
                                   size_t count, const struct err *err);
struct task_work *task_setup(struct task *task, struct sandbox *sandbox, uint32_t ms_max,
                             task_commands_done on_done, void *context);
struct task_work *task_collect(struct task *task, struct sandbox *sandbox, bool as_root,
                               uint32_t ms_max, task_commands_done on_done, void *context);

/* --- the oracle: solution/ to /solution. Nobody else gets to see it. */
struct task_work *task_put_solution(struct task *task, struct sandbox *sandbox,
                                    void (*on_done)(void *context, const struct err *err),
                                    void *context);

/* --- verification. All processes of the agent are gone before this is called. `sandbox` is the one
 * to judge in. The reward file is cleared first; tests are uploaded only then; what the verifier
 * left running is killed before the reward is read. */
struct task_verify_options {
    bool as_root;                /* commands may run as root there */
    const char *const *pristine; /* the system directories without the agent's changes; NULL: none,
                                    it is the agent's own sandbox */
    bool keep_logs; /* of /logs only the verifier's part is cleared: nobody else was here */
    bool own_path;  /* the root may have a PATH of its own: an image */
    uint32_t ms_max;
};
struct task_verdict {
    struct trace_reward reward; /* known only when the verifier made one */
    const struct trace_command *commands;
    size_t count;
    struct str log;   /* what the verifier wrote, bounded */
    const char *user; /* who it ran as */
    struct err err;   /* not ERR_NONE: the verifier broke; there is no reward */
};
struct task_work *task_verify(struct task *task, struct sandbox *sandbox,
                              const struct task_verify_options *options,
                              void (*on_done)(void *context, const struct task_verdict *verdict),
                              void *context);
void task_work_close(struct task_work *work); /* NULL is fine */

/* The directories programs come from, by their names below /; NULL-terminated. In a fresh sandbox
 * they are as they were before the agent began, but for those the task carries (its working
 * directory, artifacts, `carry`) and those the operator does (`carry` here; NULL: none). `out` has
 * room for TASK_SYSTEM_DIRS_MAX + 1. */
#define TASK_SYSTEM_DIRS_MAX 16
size_t task_pristine_dirs(const struct task *task, const char *const *carry,
                          const char *out[TASK_SYSTEM_DIRS_MAX + 1]);

/* --- rewards as text: one finite number, blanks around it allowed */
bool task_reward_read(struct str text, double *reward, struct err *err);
/* A number, {"reward": n, ...}, or a flat object of numbers whose mean is the reward; *detail
 * borrows `json`. Every member must be a finite number. */
bool task_reward_read_json(struct str json, double *reward, struct str *detail, struct err *err);
/* Is it enough for the next step? */
bool task_reward_suffices(const struct task *step, const struct trace_reward *reward);
/* The reward of several steps: `each` has `count` (not known: not reached). Named numbers are
 * rolled up alike; `arena` gets the detail. */
struct trace_reward task_roll_up(const struct task *task, const struct trace_reward *each,
                                 size_t count, struct arena *arena);

#endif
