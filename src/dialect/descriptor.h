/* descriptor.h - private to the dialect room: what a dialect has to provide. */
#ifndef DIALECT_DESCRIPTOR_H
#define DIALECT_DESCRIPTOR_H

#include "dialect/answer.h"
#include "dialect/dialect.h"

struct dialect_path {
    /* Without a leading /v1. "/x/:verb" stands for "/x/{model}:verb". */
    const char *method, *path;
    bool prefix; /* anything below the path as well */
    enum dialect_route_kind kind;
};

struct dialect {
    const char *name, *summary;
    const struct dialect_path *paths; /* ends with a zeroed row */
    const char *upstream_path; /* below the base URL; a request goes there in its own dialect */
    const char *keepalive;
    const char *keepalive_event; /* a real event that says nothing */
    const char *count_key;       /* of the answer to a count; NULL: "input_tokens" */
    const char *count_object;    /* what it says it is; NULL: nothing */
    bool model_in_path;          /* and whether to stream, too */
    bool in_order;               /* streams have one thing open at a time: writer.c sees to it */

    int (*read_request)(struct json body, struct dialect_skim *skim, struct arena *arena,
                        struct trace_request *out, struct err *err);
    /* A body of this dialect from the canonical form; NULL: no upstream is spoken to in it unless
     * the agent speaks it, too. */
    void (*write_request)(const struct trace_request *request,
                          const struct dialect_override *override, struct buf *out);
    void (*rewrite_request)(struct json body, const struct dialect_override *override,
                            struct buf *out);
    void (*write_answer)(const struct trace_request *request, const struct trace_answer *answer,
                         struct buf *out);
    void (*write_error)(int status, const char *code, struct str message, struct buf *out);
    void (*write_models)(struct str model, int64_t created_s, bool one, struct buf *out);
    void (*write_delta)(struct dialect_writer *writer, const struct trace_delta *delta,
                        struct buf *out);
    /* Of a whole answer that becomes a stream: what its model server wants back, `items` of
     * message->opaque, where they are of this dialect. Whether its thoughts are among them. NULL:
     * the other functions see to it. */
    bool (*write_opaque)(struct dialect_writer *writer, const struct trace_message *message,
                         struct json items, struct buf *out);
    void (*write_finish)(struct dialect_writer *writer, enum trace_finish finish,
                         const struct trace_usage *usage, struct buf *out);

    /* One event of an upstream's stream: `name` is its event: line (often empty). Fills the
     * builder. */
    int (*read_event)(struct answer_builder *builder, struct str name, struct json data,
                      struct arena *scratch, struct err *err);
    /* The same and strip() in one, for the events most streams are made of; false and nothing done:
     * it is none of those. NULL: there are none. An empty `out`: nothing has to be stripped. */
    bool (*quick_event)(struct answer_builder *builder, struct str data,
                        const struct dialect_reader_options *options, struct arena *scratch,
                        struct buf *out);
    int (*read_body)(struct answer_builder *builder, struct json body, struct arena *scratch,
                     struct err *err);
    /* Data that ends a stream and is not JSON; NULL: none. */
    const char *end_marker;
    /* The event or body without what the options strip. Returns false when nothing has to change;
     * an empty `out` and true means: drop it. */
    bool (*strip)(struct json data, const struct dialect_reader_options *options, struct buf *out);
};

/* --- writer.c */
const struct trace_tool *writer_tool(const struct trace_request *request, struct str name);
/* The items of trace_message.opaque. False: there are none. */
bool writer_opaque(struct str opaque, struct json_doc *doc);
/* One of them as it came, but on one line. */
void writer_put_item(struct json item, struct json_writer *out);
/* Whether it is of a protocol of typed blocks or items, and not one of chat completions' details of
 * reasoning. */
bool writer_is_typed(struct json item);
/* The free text of a custom tool's call. */
struct str writer_input(struct str arguments, struct arena *arena);
/* A member `input`, the free text of a custom tool's call: {"input": "..."} or whatever the model
 * wrote. */
void writer_put_input(struct str arguments, struct json_writer *out);

#endif
