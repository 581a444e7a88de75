/* chat.h - what our own agents share: a chat completions client, clipped text, flags.
 *
 * Blocking calls, one thread, a deadline on each. Built into postern-mini and postern-terminus with
 * nothing but the rooms base and json, so that they run in any image. */
#ifndef CHAT_H
#define CHAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/str.h"
#include "json/json.h"

#define NEVER UINT64_MAX

/* How a program of ours ends. */
enum chat_exit {
    CHAT_FINISHED = 0,
    CHAT_MODEL_FAILED = 1,
    CHAT_USAGE = 2,
    CHAT_LIMIT = 3,
};

/* ---------------------------------------------------------------- http.c: one POST, plain HTTP */
struct chat_url {
    char host[256];
    char port[8];
    char path[1024]; /* of the base, without a slash at its end */
};
int chat_url_parse(const char *text, struct chat_url *out, struct err *err);

struct chat_post {
    const struct chat_url *url;
    const char *agent; /* the program's name, for the server's log */
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
struct chat_reply {
    int status;             /* 0: no answer came */
    int64_t retry_after_ms; /* -1: not said */
};
/* Fails with ERR_LOST when the connection broke (also in the middle of the body), ERR_TIMEOUT at
 * the deadline. */
int chat_http_post(const struct chat_post *post, struct chat_reply *reply, struct err *err);

/* ---------------------------------------------------------------- model.c: one answer of the model
 */
struct chat_call {
    int64_t index;
    struct buf id, name, arguments;
};
struct chat_answer {
    struct buf text, reasoning, finish, usage; /* usage: raw JSON */
    const char *reasoning_key;                 /* the field it came in, NULL: none */
    struct chat_call *calls;
    size_t call_count;
};
void chat_answer_deinit(struct chat_answer *answer);

struct chat_model {
    struct chat_url url;
    const char *key, *name;
    const char *agent; /* the program's name */
    struct str tools;  /* the tools array as JSON; empty: none */
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
int chat_model_ask(const struct chat_model *model, struct str messages, struct chat_answer *out,
                   struct err *err);
/* The parser alone: feed() any pieces, end() says whether the answer is whole. */
struct chat_parser;
struct chat_parser *chat_parser_new(bool stream, struct chat_answer *out);
int chat_parser_feed(struct chat_parser *parser, struct str bytes, struct err *err);
int chat_parser_end(struct chat_parser *parser, struct err *err);
void chat_parser_free(struct chat_parser *parser);

/* ---------------------------------------------------------------- clip.c */
/* Head and tail of a stream of bytes, cut between UTF-8 characters. */
struct chat_clip {
    struct buf head, tail;
    size_t half_max;
    uint64_t total;
};
void chat_clip_add(struct chat_clip *clip, struct str bytes);
void chat_clip_finish(struct chat_clip *clip, struct buf *out); /* and frees */

/* ---------------------------------------------------------------- events.c: what people and
 * programs see */
struct chat_events {
    const char *program;
    bool json;
    uint32_t turn;
};
/* A line of JSON: begin, set members, end. A line of anything: put; it is gone afterwards. */
struct json_writer chat_event_begin(const struct chat_events *events, struct buf *line,
                                    const char *type);
void chat_event_end(struct json_writer *writer);
void chat_event_put(struct buf *line);
/* `status` 0: none; `retry_ms` -1: it is not tried again. */
void chat_event_error(const struct chat_events *events, const char *message, int status,
                      int64_t retry_ms);
void chat_event_done(const struct chat_events *events, const char *reason, struct str text,
                     enum chat_exit code);

/* ---------------------------------------------------------------- flags.c */
enum chat_flag_kind {
    CHAT_FLAG_TEXT,
    CHAT_FLAG_NUMBER,
    CHAT_FLAG_REAL,
    CHAT_FLAG_ON,
    CHAT_FLAG_OFF
};
struct chat_flag {
    const char *name;
    enum chat_flag_kind kind;
    void *target;       /* const char *, long long, double, bool */
    long long min, max; /* of a number */
    bool *given;        /* may be NULL */
};
/* Fills the targets; `word` gets the one argument that is no flag. -1: said why, on standard error.
 */
int chat_flags_read(const char *program, const struct chat_flag *flags, size_t count, int argc,
                    char **argv, const char **word);
/* What every program of ours can be told. Numbers are set to what they are by default. */
struct chat_common {
    struct chat_model *model;
    long long turns, seconds, output, idle, retries;
    bool json;
    struct str instruction, system; /* the system prompt's file, read; data NULL: none */
};
/* Reads these flags and the program's `own`, then what they name. -1: the program ends with
 * `code`, having said why (or its usage). */
int chat_common_read(const char *program, const char *usage, struct chat_common *common,
                     const struct chat_flag *own, size_t own_count, int argc, char **argv,
                     int *code);
/* "program: ..." on standard error; -1. */
int chat_fail(const char *program, const char *format, const char *detail);
/* A file, or standard input for "-". The text lives as long as the program. */
int chat_read_text(const char *program, const char *path, struct str *out);
/* The instruction is a word, or in a file; never empty. */
int chat_read_instruction(const char *program, const char *word, const char *file, struct str *out);
/* Name, server and key from flags or $OPENAI_MODEL, $OPENAI_BASE_URL, $OPENAI_API_KEY; the key is
 * taken out of the environment. */
int chat_model_setup(const char *program, struct chat_model *model, const char *base_url);

#endif
