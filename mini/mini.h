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

/* How the program ends; documented in docs/mini.md. */
enum mini_exit {
    MINI_FINISHED = 0,
    MINI_MODEL_FAILED = 1,
    MINI_USAGE = 2,
    MINI_LIMIT = 3,
};

#define NEVER UINT64_MAX

/* ---------------------------------------------------------------- http.c: one POST, plain HTTP */
struct mini_url {
    char host[256];
    char port[8];
    char path[1024]; /* of the base, without a slash at its end */
};
int mini_url_parse(const char *text, struct mini_url *out, struct err *err);

struct mini_post {
    const struct mini_url *url;
    const char *route; /* "/chat/completions" */
    const char *key;   /* NULL: none */
    struct str body;
    uint64_t deadline_ms; /* monotonic; NEVER */
    uint32_t idle_ms_max; /* without a byte from the server */
    /* The decoded body as it comes; -1 ends the call with `err` set. */
    int (*on_head)(void *context, int status, struct str content_type);
    int (*on_body)(void *context, struct str bytes, struct err *err);
    void *context;
};
struct mini_reply {
    int status;             /* 0: no answer came */
    int64_t retry_after_ms; /* -1: not said */
};
/* Fails with ERR_LOST when the connection broke (also in the middle of the body), ERR_TIMEOUT at
 * the deadline. */
int mini_http_post(const struct mini_post *post, struct mini_reply *reply, struct err *err);

/* ---------------------------------------------------------------- model.c: one answer of the model
 */
struct mini_call {
    int64_t index;
    struct buf id, name, arguments;
};
struct mini_answer {
    struct buf text, reasoning, finish, usage; /* usage: raw JSON */
    const char *reasoning_key;                 /* the field it came in, NULL: none */
    struct mini_call *calls;
    size_t call_count;
};
void mini_answer_deinit(struct mini_answer *answer);

struct mini_model {
    struct mini_url url;
    const char *key, *name;
    bool stream;
    bool has_temperature;
    double temperature;
    int64_t tokens_max; /* 0: the server's choice */
    uint32_t retries_max;
    uint32_t idle_ms_max;
    uint64_t deadline_ms;
    /* A failed attempt that is going to be repeated. */
    void (*on_retry)(void *context, const struct err *err, int status, uint64_t wait_ms);
    void *context;
};
/* `messages` is the inside of the messages array. Repeats what may pass: 408, 409, 429, 5xx, lost
 * connections, cut-off answers; each at most retries_max times in a row. ERR_TIMEOUT: the deadline;
 * anything else: the model failed. */
int mini_model_ask(const struct mini_model *model, struct str messages, struct mini_answer *out,
                   struct err *err);
/* The parser alone: feed() any pieces, end() says whether the answer is whole. */
struct mini_parser;
struct mini_parser *mini_parser_new(bool stream, struct mini_answer *out);
int mini_parser_feed(struct mini_parser *parser, struct str bytes, struct err *err);
int mini_parser_end(struct mini_parser *parser, struct err *err);
void mini_parser_free(struct mini_parser *parser);

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

/* Head and tail of a stream of bytes, cut between UTF-8 characters. */
struct mini_clip {
    struct buf head, tail;
    size_t half_max;
    uint64_t total;
};
void mini_clip_add(struct mini_clip *clip, struct str bytes);
void mini_clip_finish(struct mini_clip *clip, struct buf *out); /* and frees */

/* ---------------------------------------------------------------- events.c: what people and
 * programs see */
struct mini_events {
    bool json;
    uint32_t turn;
};
void mini_event_assistant(struct mini_events *events, const struct mini_answer *answer);
void mini_event_tool_call(struct mini_events *events, struct str id, struct str name,
                          struct str command);
void mini_event_tool_result(struct mini_events *events, struct str id,
                            const struct mini_outcome *outcome, struct str error);
void mini_event_error(struct mini_events *events, const char *message, int status,
                      int64_t retry_ms);
void mini_event_done(struct mini_events *events, const char *reason, struct str text,
                     int exit_code);

/* ---------------------------------------------------------------- agent.c: the loop */
struct mini_options {
    struct mini_model model;
    const char *system; /* the prompt; NULL: our own */
    struct str instruction;
    uint32_t turns_max;
    uint32_t command_ms, command_ms_max;
    size_t output_bytes_max;
    bool json;
};
/* Runs to the end; returns an enum mini_exit. */
int mini_agent_run(const struct mini_options *options);

/* options.c: 0, or the exit code to leave with (--help and mistakes), having said why. */
int mini_options_read(int argc, char **argv, struct mini_options *out, int *exit_code);

#endif
