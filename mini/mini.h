/* mini.h - the parts of postern-mini, a bash-only agent.
 *
 *     instruction -> [conversation] -> model -> answer -> tool calls -> shell -> results ->
 * [conversation] ...
 *
 * One thread, blocking calls, a deadline on each. Nothing is taken from the image but a shell. */
#ifndef MINI_H
#define MINI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/str.h"
#include "chat.h"

/* How the program ends; documented in docs/mini.md. */
/* ---------------------------------------------------------------- shell.c: one command */
struct mini_command {
    const char *text;
    uint32_t timeout_ms;
    uint64_t deadline_ms;
    size_t output_bytes_max; /* head and tail are kept */
};
struct mini_outcome {
    struct buf output;     /* stdout and stderr as they came, the middle dropped and said so */
    uint64_t output_bytes; /* before dropping */
    bool truncated, timed_out;
    int code; /* as a shell would say */
    uint64_t wall_ms;
};
int mini_shell_run(const struct mini_command *command, struct mini_outcome *out, struct err *err);
/* From a signal handler: the running command and its group are killed. */
void mini_shell_kill(void);

/* ---------------------------------------------------------------- events.c: what people and
 * programs see */
void mini_event_assistant(const struct chat_events *events, const struct chat_answer *answer);
void mini_event_tool_call(const struct chat_events *events, struct str id, struct str name,
                          struct str command);
void mini_event_tool_result(const struct chat_events *events, struct str id,
                            const struct mini_outcome *outcome, struct str error);

/* ---------------------------------------------------------------- agent.c: the loop */
struct mini_options {
    struct chat_model model;
    const char *system; /* the prompt; NULL: our own */
    struct str instruction;
    uint32_t turns_max;
    uint32_t command_ms, command_ms_max;
    size_t output_bytes_max;
    bool json;
};
/* Runs to the end; returns an enum chat_exit. */
int mini_agent_run(const struct mini_options *options);

/* options.c: 0, or the exit code to leave with (--help and mistakes), having said why. */
int mini_options_read(int argc, char **argv, struct mini_options *out, int *exit_code);

#endif
