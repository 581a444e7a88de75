/* dialect.h - the door of the dialect room: model protocols as pure functions.
 *
 * A dialect reads an agent's request into a trace_request, writes a trace_answer back whole or as a
 * stream, and reads an upstream's answer, whole or as a stream. No sockets, no clock, no loop:
 * bytes in, bytes out, same every time. To add one: write dialect_<name>.c with a const descriptor
 * and name it in dialect.c.
 *
 *     agent's body --read_request--> trace_request
 *     upstream's bytes --dialect_reader--> trace_delta... and a trace_answer
 *     trace_answer --dialect_write_answer--> body        trace_delta... --dialect_writer--> SSE
 *
 * A stream that ends without its terminal event is ERR_LOST, never an answer. */
#ifndef DIALECT_H
#define DIALECT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/buf.h"
#include "base/str.h"
#include "json/json.h"
#include "trace/trace.h"

struct err;
struct dialect;

/* ---------------------------------------------------------------- routes */
enum dialect_route_kind {
    DIALECT_ROUTE_NONE,   /* not ours: 404 */
    DIALECT_ROUTE_METHOD, /* the path is ours, the method is not: 405 */
    DIALECT_ROUTE_CALL,   /* a model call */
    DIALECT_ROUTE_MODELS, /* GET .../models[/name] */
    DIALECT_ROUTE_COUNT,  /* counts tokens of a request, generates nothing */
};
struct dialect_route {
    enum dialect_route_kind kind;
    const struct dialect *dialect; /* for errors too; NULL only with ROUTE_NONE */
    struct str model;              /* where the path names it, of MODELS too; else STR_NONE */
    bool stream;                   /* the path asks for a stream */
    bool encoded;                  /* `model` is as it stands in the path, percent and all */
    const char *method;            /* with ROUTE_METHOD: the one the path takes */
};
/* `path` without its query; with and without the leading /v1. */
struct dialect_route dialect_find_route(struct str method, struct str path);
/* The route's model as text: percent signs decoded. */
struct str dialect_route_model(const struct dialect_route *route, struct arena *arena);
const struct dialect *dialect_find(const char *name); /* "chat"; NULL: no such dialect */
const char *dialect_name(const struct dialect *dialect);
/* Where a request goes below an upstream's base URL: "/chat/completions". */
void dialect_upstream_path(const struct dialect *dialect, struct str model, bool stream,
                           struct buf *out);
/* The answer to a count. */
void dialect_write_count(const struct dialect *dialect, size_t tokens, struct buf *out);
extern const struct dialect dialect_chat;
extern const struct dialect dialect_messages;
extern const struct dialect dialect_responses;
extern const struct dialect dialect_google;
extern const struct dialect dialect_completions;

/* ---------------------------------------------------------------- requests */
/* `body` must outlive `out`, whose arrays and decoded strings are in the arena. A body that is no
 * plausible model call is ERR_INPUT (400) with a message the agent may see; past the arena's
 * maximum it is ERR_LIMIT. What the path says (model, stream) counts where the dialect says it
 * there.
 */
int dialect_read_request(const struct dialect_route *route, struct json body, struct arena *arena,
                         struct trace_request *out, struct err *err);

/* Agents send their whole conversation and all their tools with every call. The conversation is an
 * array in the body (messages, input, contents); what is known of its first elements from an
 * earlier request need not be read again, nor a system prompt beside it (the front) and tools that
 * are the same bytes, wherever they are. A zeroed struct knows nothing and learns. */
#define DIALECT_SKIM_OPEN UINT32_MAX
struct dialect_unnamed {
    uint32_t calls, results; /* without an id, so far: Google numbers them */
};
struct dialect_end {
    uint32_t messages; /* up to here; DIALECT_SKIM_OPEN: the next may add to the last one */
    struct dialect_unnamed unnamed;
};
struct dialect_skim {
    /* In: the first `known` elements are those of an earlier request, byte for byte and at the same
     * place, and these are its ends. Their messages are counted and left blank.
     * dialect_skim_known() says how many of them can be used. */
    size_t known;
    const struct dialect_end *known_ends;
    const char *known_array; /* where in the body they are; another array is read as a whole */
    size_t known_end;        /* byte of the body where they end; 0: not known */
    struct str known_front, known_tools; /* as JSON; data NULL: not known */
    size_t known_tool_count;
    /* Out: where the conversation is in the body (data NULL: it cannot be skimmed), how many
     * messages come before it (a system prompt of its own), and for each element its end. */
    struct str array;
    struct json array_value;
    struct str front_value, tools; /* in the body; data NULL: there are none */
    size_t front;
    struct dialect_end *ends; /* in the arena */
    size_t count;
    struct json_item rest;   /* the first element that was read */
    size_t blank, blank_end; /* messages from..to that were not read; from == to: all were */
    bool tools_blank;        /* they were counted, but not read: there is no list of them */
};
/* Whether an answer is written without a look at these tools: none takes free text, none is in a
 * namespace. Only such may be left blank. */
bool dialect_tools_plain(const struct trace_request *request);
size_t dialect_skim_known(const struct dialect_end *ends, size_t count);
int dialect_skim_request(const struct dialect_route *route, struct json body,
                         struct dialect_skim *skim, struct arena *arena, struct trace_request *out,
                         struct err *err);

/* How an engine is asked for token ids and log-probabilities. */
enum dialect_engine {
    DIALECT_ENGINE_AUTO, /* vLLM's fields; servers that do not know them ignore them */
    DIALECT_ENGINE_VLLM,
    DIALECT_ENGINE_VLLM_GENERATE, /* by other routes: a whole answer, and nothing else is asked here
                                   */
    DIALECT_ENGINE_SGLANG,
    DIALECT_ENGINE_OPENAI, /* log-probabilities only: unknown fields would be refused */
};

/* What is imposed on a request on its way to the upstream. Everything else stays byte for byte. */
struct dialect_override {
    struct str model; /* STR_NONE: as it is */
    bool capture;     /* ask the engine for token ids and log-probabilities */
    bool usage;       /* ask for usage at the end of a stream */
    bool has_temperature, has_top_p;
    double temperature, top_p;
    int64_t tokens_max; /* 0: as it is; else replaces either spelling, unless it is smaller */
    enum dialect_engine engine;
    bool thinking_off; /* tell the engine's template not to think */
    bool errors;       /* of a request that is written anew: `is_error` where a tool failed */
    /* Not NULL: where the conversation belongs that was not copied. Dialects that read what they
     * wrote leave no gap. */
    struct json_gap *gap;
};
void dialect_rewrite_request(const struct dialect *dialect, struct json body,
                             const struct dialect_override *override, struct buf *out);

/* The same request as a body of another dialect, for an upstream that speaks only that one. False:
 * that dialect cannot be written. */
bool dialect_write_request(const struct dialect *dialect, const struct trace_request *request,
                           const struct dialect_override *override, struct buf *out);
bool dialect_can_write_request(const struct dialect *dialect);

/* ---------------------------------------------------------------- answers to the agent */
void dialect_write_answer(const struct dialect *dialect, const struct trace_request *request,
                          const struct trace_answer *answer, struct buf *out);
/* An error body for an HTTP status; `code` may be NULL, and counts where the dialect has a word for
 * it. The content type is application/json. */
void dialect_write_error(const struct dialect *dialect, int status, const char *code,
                         struct str message, struct buf *out);
/* For GET .../models: the list, or with `one` just the model. */
void dialect_write_models(const struct dialect *dialect, struct str model, int64_t created_s,
                          bool one, struct buf *out);

/* A stream, piece by piece: begin, deltas, then finish. All text goes to `out`. */
struct dialect_writer {
    const struct dialect *dialect;
    const struct trace_request *request; /* borrowed */
    struct str id, model;                /* borrowed */
    /* Borrowed: which stop word ended the answer, and its engine's own word for the end. To be set
     * before the finish. */
    struct str stop_word, finish_text;
    struct str opaque; /* borrowed: of a whole answer */
    int64_t created_s;
    bool usage; /* the client asked for it */
    bool begun;
    bool refused; /* a piece was a refusal */
    uint32_t calls;
    bool open; /* protocols of blocks: one is open, of that kind and number */
    enum trace_delta_kind open_kind;
    uint32_t block;
    uint32_t sequence;             /* protocols that number their events */
    struct buf items, piece;       /* done items; what the open one holds */
    struct buf call_id, call_name; /* of the open call */
    /* Calls whose arguments come in turns are told apart by their index, which not every protocol
     * has: there the later ones wait until the one before them is whole. */
    bool in_call;
    uint32_t call_index;
    struct buf arguments; /* of that call, so far */
    struct buf argued; /* protocols that number their calls: for each, whether it has arguments */
    struct dialect_late *late;
    size_t late_count;
};
/* `id` ("chatcmpl-..."), `model` and `request` are borrowed until the stream is over. */
void dialect_writer_init(struct dialect_writer *writer, const struct dialect *dialect,
                         const struct trace_request *request, struct str id, struct str model,
                         int64_t created_s);
void dialect_writer_deinit(struct dialect_writer *writer);
static inline void own_dialect_writer(struct dialect_writer *writer)
{
    dialect_writer_deinit(writer);
}
void dialect_writer_delta(struct dialect_writer *writer, const struct trace_delta *delta,
                          struct buf *out);
/* The terminal events, to be sent only when the call is committed: finish reason, usage if asked,
 * end marker. */
void dialect_writer_finish(struct dialect_writer *writer, enum trace_finish finish,
                           const struct trace_usage *usage, struct buf *out);
/* A whole answer as a stream: deltas of about `piece` bytes (0: one each), cut between UTF-8
 * characters. */
void dialect_writer_answer(struct dialect_writer *writer, const struct trace_answer *answer,
                           size_t piece, struct buf *out);
/* Something that keeps the connection warm and that this dialect's clients ignore. */
void dialect_write_keepalive(const struct dialect *dialect, struct buf *out);
/* The same as a real event, for clients whose clocks comments do not stop. */
void dialect_write_keepalive_event(const struct dialect *dialect, struct buf *out);

/* ---------------------------------------------------------------- answers from an upstream */
struct dialect_reader;
/* What a reader needs while it looks at one event; shared by all readers of a thread it stays warm.
 */
struct dialect_scratch {
    struct json_doc doc;
    struct buf stripped, framed;
};
void dialect_scratch_deinit(struct dialect_scratch *scratch);
struct dialect_reader_options {
    bool stream;          /* SSE; else one JSON body */
    bool strip_token_ids; /* relayed bytes lose what was captured but not asked for by the agent */
    bool strip_logprobs;
    bool strip_usage;
    bool thorough;          /* no event is read the quick way: for comparison */
    size_t bytes_max;       /* 0: 64 MiB of answer */
    size_t event_bytes_max; /* 0: 16 MiB for one event */
    /* Each piece as it comes. May be NULL. */
    void (*on_delta)(void *context, const struct trace_delta *delta);
    /* The upstream's own bytes, event by event, for relaying. From the event with the finish reason
     * on, `terminal` is true: hold these back until the call is committed. Comments come through as
     * they are. Unary bodies come once, from dialect_reader_end(). May be NULL. */
    void (*on_relay)(void *context, struct str bytes, bool terminal);
    void *context;
    struct dialect_scratch *scratch; /* NULL: its own */
};
struct dialect_reader *dialect_reader_new(const struct dialect *dialect,
                                          const struct dialect_reader_options *options);
void dialect_reader_free(struct dialect_reader *reader);
size_t dialect_reader_touched(void); /* bytes of a reader, from its front, that an event touches */
static inline void own_dialect_reader(struct dialect_reader **reader)
{
    dialect_reader_free(*reader);
}
/* Any cutting of the bytes gives the same result. After an error only _free() is allowed.
 * ERR_PROTOCOL: nonsense; ERR_LIMIT: too large; an error object in place of an answer is ERR_LOST
 * with the upstream's message in the text. */
int dialect_reader_feed(struct dialect_reader *reader, struct str bytes, struct err *err);
/* The finish reason was seen. */
bool dialect_reader_finished(const struct dialect_reader *reader);
/* The bytes are over. ERR_LOST: the answer is truncated. The answer's memory is in `arena`. Once.
 */
int dialect_reader_end(struct dialect_reader *reader, struct arena *arena, struct trace_answer *out,
                       struct err *err);
/* What there is so far, finished or not: for the record of a broken attempt. */
void dialect_reader_partial(struct dialect_reader *reader, struct arena *arena,
                            struct trace_answer *out);
/* The upstream's own error message and what it calls it (its code, or else its type) from a body
 * with a status >= 400 or an error event. STR_NONE: none. */
void dialect_read_error(struct json body, struct arena *arena, struct str *message,
                        struct str *code);

#endif
