/* terminus.h - the parts of postern-terminus, an agent whose only tool is a terminal.
 *
 *     instruction -> conversation -> model -> reply (keystrokes) -> terminal -> screen -> text ->
 *     conversation ...
 *
 * One thread; every wait has an end. Nothing is taken from the image but a shell. */
#ifndef TERMINUS_H
#define TERMINUS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/str.h"
#include "chat.h"

/* How the program ends; documented in docs/terminus.md. */
/* ---------------------------------------------------------------- screen.c: bytes -> what is seen
 */
struct screen;
struct screen *screen_new(unsigned columns, unsigned rows, size_t history_bytes_max);
void screen_free(struct screen *screen);
void screen_write(struct screen *screen, struct str bytes);
/* What a terminal must answer to the program (cursor reports); the caller sends and clears it. */
struct buf *screen_answers(struct screen *screen);
/* The whole screen, or what changed since the last look: from the first line that was touched to
 * the last one that is not empty. Lines that were wrapped come in one piece. A program that took
 * the alternate screen (an editor, a pager) is always shown whole. */
enum screen_look { SCREEN_WHOLE, SCREEN_NEW };
void screen_look(struct screen *screen, enum screen_look look, struct buf *out);
unsigned screen_cursor_column(const struct screen *screen);
bool screen_is_alternate(const struct screen *screen);
bool screen_keys_are_application(const struct screen *screen);

/* ---------------------------------------------------------------- keys.c: keystrokes -> bytes */
void keys_encode(struct str keystrokes, bool application, struct buf *out);

/* ---------------------------------------------------------------- terminal.c: a shell on a pty */
struct terminal;
struct terminal_options {
    unsigned columns, rows;
    size_t history_bytes_max;
};
struct terminal *terminal_open(const struct terminal_options *options, struct err *err);
void terminal_close(struct terminal *terminal);
struct screen *terminal_screen(struct terminal *terminal);
/* Types, then waits: until `wait_ms` are over, or earlier when the shell is at its prompt again
 * with nothing left to read and nothing more to say (`or_idle`). */
void terminal_type(struct terminal *terminal, struct str keystrokes, uint64_t wait_ms,
                   uint64_t deadline_ms, bool or_idle);
/* True once after the shell ended; a new one was started if that is possible. */
bool terminal_was_restarted(struct terminal *terminal, int *exit_code);
/* From a signal handler: everything that runs in the terminal is killed. */
void terminal_kill(void);

/* ---------------------------------------------------------------- reply.c: what the model wants */
struct reply_command {
    struct str keystrokes;
    double seconds;
};
struct reply {
    struct str analysis, plan;
    struct reply_command *commands;
    size_t command_count;
    bool complete;
    struct buf warnings; /* lines; the model is told */
};
/* Reads an answer: one JSON object, perhaps with text around it. -1: it cannot be used, `err` says
 * why in words for the model. Strings live in `arena`. */
struct arena;
int reply_read(struct str text, struct arena *arena, struct reply *out, struct err *err);

/* ---------------------------------------------------------------- events.c */
void event_assistant(const struct chat_events *events, const struct chat_answer *answer,
                     const struct reply *reply); /* reply: NULL when it could not be read */
void event_keys(const struct chat_events *events, uint32_t number,
                const struct reply_command *command);
void event_output(const struct chat_events *events, uint32_t number, struct str output,
                  uint64_t wall_ms);
void event_note(const struct chat_events *events, const char *what, struct str text);

/* ---------------------------------------------------------------- agent.c: the loop */
struct terminus_options {
    struct chat_model model;
    struct terminal_options terminal;
    struct str system; /* of the task; before our own words */
    struct str instruction;
    uint32_t turns_max;
    uint32_t wait_ms_max; /* of one command */
    size_t output_bytes_max;
    int64_t context_tokens; /* 0: not known */
    bool confirm, json;
};
/* Runs to the end; returns an enum chat_exit. */
int terminus_run(const struct terminus_options *options);

/* talk.c: the conversation, and how it is handed over when it grows too long. */
struct talk {
    const struct terminus_options *options;
    struct buf *messages; /* each a JSON object */
    size_t count, capacity;
    size_t bytes;
    int64_t tokens; /* of the last request and its answer, as the server counted; 0: not known */
};
void talk_init(struct talk *talk, const struct terminus_options *options);
void talk_deinit(struct talk *talk);
void talk_add(struct talk *talk, const char *role, struct str content);
void talk_add_answer(struct talk *talk, const struct chat_answer *answer);
/* The first messages: our words, the instruction, perhaps a predecessor's notes, the screen. */
void talk_begin(struct talk *talk, struct str notes, struct str screen);
int talk_ask(struct talk *talk, const struct chat_model *model, struct chat_answer *out,
             struct err *err);
/* Whether the next question would not leave room for an answer. */
bool talk_is_full(const struct talk *talk);
/* Whether this failure says that the conversation is too long. */
bool talk_too_long(const struct err *err);
/* Replaces the conversation by a fresh one with notes of the old: asks for a note, lets a fresh
 * reader ask back, has that answered. */
int talk_hand_over(struct talk *talk, const struct chat_model *model, struct str screen,
                   struct buf *notes, struct err *err);

/* options.c: 0, or -1 with the exit code to leave with (--help and mistakes), having said why. */
int terminus_options_read(int argc, char **argv, struct terminus_options *out, int *exit_code);

#endif
