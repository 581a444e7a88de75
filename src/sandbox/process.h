/* process.h - private to the sandbox room: one program on the host, started with posix_spawn and
 * watched by the loop. Used by the command backend for its steps and for the program that carries
 * the frames.
 *
 * The program leads a session of its own (no controlling terminal, so nothing can ask for a
 * password) and is ended as a group. on_end comes exactly once, never from inside process_start(),
 * and is the last thing heard of it; the process object is freed after it returns. */
#ifndef SANDBOX_PROCESS_H
#define SANDBOX_PROCESS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/str.h"

struct err;
struct loop;
struct process;

struct process_end {
    int wait_status;
    bool timed_out;
    struct str out;   /* at most PROCESS_OUT_MAX bytes; the rest was dropped */
    struct str words; /* the last bytes of standard error, trimmed */
};

struct process_options {
    const char *const *argv; /* argv[0] is looked up in PATH of `env` */
    const char *const *env;  /* the whole environment */
    int input;               /* becomes standard input; -1: /dev/null. Borrowed */
    int output;              /* becomes standard output; -1: collected. Borrowed */
    uint32_t timeout_ms;     /* 0: none. Then TERM, later KILL, to the group */
    void (*on_end)(void *context, const struct process_end *end);
    void *context;
};

#define PROCESS_OUT_MAX (1u << 20)
#define PROCESS_WORDS_MAX 2048u

/* ERR_NOT_FOUND names the missing program. */
struct process *process_start(struct loop *loop, const struct process_options *options,
                              struct err *err);
/* TERM now, KILL after `grace_ms` when it still runs; on_end comes as usual. Again: no earlier than
 * asked. */
void process_end_soon(struct process *process, uint32_t grace_ms);
/* Kills, forgets: no on_end. */
void process_drop(struct process *process);

/* "exit code 255: Connection refused", one line, into `text`. */
void process_describe(const struct process_end *end, char *text, size_t size);

#endif
