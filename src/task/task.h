/* task.h - the door of the task room: what an agent is asked to do, and how it is judged.
 *
 * A task is read from JSON (inline or a line of a JSONL file), a TOML file, or a directory in the
 * Harbor layout (task.toml, instruction.md, environment/, tests/test.sh). Once read it never
 * changes and may be shared between lanes by reference. docs/tasks.md describes the formats.
 *
 * The three activities (prepare, setup, verify) live on the sandbox's loop. Each ends with exactly
 * one on_done, never from inside the call that started it. What on_done hands out lives until the
 * handle is closed. A handle may be closed when its on_done came, or when its sandbox was closed
 * before (which silences what is still under way inside). */
#ifndef TASK_H
#define TASK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
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
#define TASK_TESTS "/tests"
#define TASK_TOOLS "/tools" /* only in the sandbox apart */

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

struct task {
    const char *name;            /* never NULL */
    const char *source;          /* where it came from, for people */
    const char *instruction;     /* never NULL, never empty */
    const char *system;          /* system prompt; NULL: none */
    const char *workdir;         /* absolute */
    const char *environment_dir; /* host directory whose content goes to workdir; NULL: none */
    const char *tests_dir; /* host directory that goes to /tests before verification; NULL: none */
    const char *test_script; /* name below tests_dir, "test.sh"; NULL: none */
    const struct task_file *files;
    size_t file_count;
    const struct task_command *setup;
    size_t setup_count;
    const struct task_command *verify; /* verify commands; used when there is no test script */
    size_t verify_count;
    const char *const *env;        /* "NAME=value" for setup, agent and verifier; NULL: none */
    const char *const *verify_env; /* in addition, for the verifier only */
    const char *const *artifacts;  /* paths to keep, NULL-terminated; NULL: none */
    const char *root_image;        /* as sandbox_spec.root; NULL: not said */
    bool root;                     /* asks for root inside */
    bool fresh_verify;             /* default true: verify in a sandbox made from the final files */
    const char *verify_user;       /* NULL: root where possible */
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

    struct arena arena; /* everything above lives here */
    atomic_int references;
};

/* "-" (stdin: one JSON object, or JSONL), a directory, a .toml file, a .json file, a .jsonl file,
 * or text that starts with '{'. On success *tasks is a heap array of *count references the caller
 * owns (task_list_free). Errors name file, line and column. */
int task_load(const char *what, struct task ***tasks, size_t *count, struct err *err);
void task_list_free(struct task **tasks, size_t count);
struct task *task_from_json(struct str json, const char *where, struct err *err);
struct task *task_ref(struct task *task);
void task_unref(struct task *task); /* NULL is fine; any thread */
static inline void own_task(struct task **task)
{
    task_unref(*task);
}
bool task_has_verifier(const struct task *task);
bool task_has_apart(const struct task *task); /* a tool that runs apart */
void task_write(const struct task *task,
                struct json_writer *out); /* one object, for people and the api */

/* --- preparing: environment and files into the working directory, which is made if missing */
struct task_work;
struct task_work *task_prepare(struct task *task, struct sandbox *sandbox,
                               void (*on_done)(void *context, const struct err *err),
                               void *context);

/* --- setup: only for tasks with setup commands; one at a time; the first failure ends it.
 * err->kind is ERR_NONE when all came back with 0, ERR_INPUT when one failed (the task's fault),
 * anything else when the sandbox did. */
struct task_work *task_setup(struct task *task, struct sandbox *sandbox, uint32_t ms_max,
                             void (*on_done)(void *context, const struct trace_command *commands,
                                             size_t count, const struct err *err),
                             void *context);

/* --- verification. All processes of the agent are gone before this is called. `sandbox` is the one
 * to judge in. The reward file is cleared first; tests are uploaded only then. `as_root`: commands
 * may run as root there. */
struct task_verdict {
    struct trace_reward reward; /* known only when the verifier made one */
    const struct trace_command *commands;
    size_t count;
    struct str log;   /* what the verifier wrote, bounded */
    const char *user; /* who it ran as */
    struct err err;   /* not ERR_NONE: the verifier broke; there is no reward */
};
struct task_work *task_verify(struct task *task, struct sandbox *sandbox, bool as_root,
                              uint32_t ms_max,
                              void (*on_done)(void *context, const struct task_verdict *verdict),
                              void *context);
void task_work_close(struct task_work *work); /* NULL is fine */

/* --- rewards as text: one finite number, blanks around it allowed */
bool task_reward_read(struct str text, double *reward, struct err *err);
/* {"reward": n} or a flat object of numbers with "reward" in it; *detail borrows `json`. */
bool task_reward_read_json(struct str json, double *reward, struct str *detail, struct err *err);

#endif
