/* cli.h - the door of the cli room, and what its commands share: one file per command, flags as
 * table rows, one way to complain.
 *
 * Exit codes are in docs/cli.md; those of errors come from the table in base/err.c. */
#ifndef CLI_H
#define CLI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/err.h"
#include "base/str.h"
#include "config/config.h"

/* What main() calls. Returns the exit code. */
int cli_main(int argc, char **argv);

struct cli;

struct command {
    const char *name;
    const char *arguments; /* shown after the name */
    const char *summary;   /* one line */
    const char *help;      /* paragraphs; NULL: none */
    int (*run)(struct cli *cli);
    const struct flag *flags; /* for help; NULL: none */
    bool raw;                 /* works without a readable configuration */
};
/* commands.c: NULL-terminated, in the order of `postern help`. */
extern const struct command *const commands[];
const struct command *command_find(const char *name);

struct cli {
    const struct command *command;
    struct config config;
    int argc; /* without program and command; flags are taken out by flags_take() */
    char **argv;
    struct err err; /* set before returning cli_fail() */
};

/* --- flags */
enum flag_type {
    FLAG_BOOLEAN,  /* bool */
    FLAG_TEXT,     /* const char * */
    FLAG_LIST,     /* struct flag_list */
    FLAG_COUNT,    /* uint32_t, at least 1 */
    FLAG_DURATION, /* uint32_t, milliseconds */
    FLAG_SIZE,     /* uint64_t, bytes */
    FLAG_SETTING,  /* config_set(setting, value) */
};
#define FLAG_LIST_MAX 256
struct flag_list {
    const char *items[FLAG_LIST_MAX + 1];
    size_t count;
};
struct flag {
    const char *name; /* "task"; NULL ends a table */
    char letter;      /* 0: none */
    enum flag_type type;
    size_t at;           /* offset in the command's own struct */
    const char *setting; /* FLAG_SETTING: its name */
    const char *value;   /* what the value is called in help */
    const char *help;
};
/* Takes the flags out of cli->argv into `target`; what is left are operands. With `stop_at_operand`
 * the first operand ends the flags ("--" always does). */
int flags_take(struct cli *cli, const struct flag *flags, void *target, bool stop_at_operand);
/* Complains unless between min and max operands are left. */
int operands_check(struct cli *cli, int min, int max);

/* --- telling */
/* "postern run: <text>" on standard error; returns the error's exit code. */
int cli_fail(const struct cli *cli);
int cli_fail_as(const struct cli *cli, int code);
/* Output that must arrive: flushes standard output; a full disk or closed pipe is an error. */
int cli_flush(struct cli *cli, int code);
bool cli_colour(void); /* standard output is a terminal that takes colours */
void cli_write_buf(struct str text);
/* A copy in which no byte drives a terminal; for texts that come from a sandbox. */
struct str cli_harmless(struct str text, struct arena *arena);

/* --- shared pieces */
struct runtime_show;
struct runtime_sum;
struct progress;
enum progress_form { PROGRESS_TABLE, PROGRESS_LINES, PROGRESS_JSON };
struct progress *progress_new(enum progress_form form, struct runtime_show *show);
void progress_finish(struct progress *progress, const struct runtime_sum *sum, const char *home);
void progress_free(struct progress *progress);
int progress_code(const struct runtime_sum *sum);

/* A rollout's folder below `home` for an id or an unambiguous prefix; NULL and err otherwise. The
 * caller frees. */
char *folder_find(const char *home, const char *id, struct err *err);

extern const struct command command_run, command_demo, command_ls, command_show, command_export,
    command_gc, command_exec, command_shell, command_serve, command_doctor, command_image,
    command_agents, command_tasks, command_version, command_help;

#endif
