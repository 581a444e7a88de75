/* responses.h - private to the dialect room: the parts of OpenAI responses. */
#ifndef DIALECT_RESPONSES_H
#define DIALECT_RESPONSES_H

#include "dialect/descriptor.h"

/* responses_request.c */
int responses_read_request(struct json body, struct dialect_skim *skim, struct arena *arena,
                           struct trace_request *out, struct err *err);
void responses_rewrite_request(struct json body, const struct dialect_override *override,
                               struct buf *out);

/* responses_write.c */
void responses_write_answer(const struct trace_request *request, const struct trace_answer *answer,
                            struct buf *out);
void responses_write_delta(struct dialect_writer *writer, const struct trace_delta *delta,
                           struct buf *out);
bool responses_write_opaque(struct dialect_writer *writer, const struct trace_message *message,
                            struct json items, struct buf *out);
void responses_write_finish(struct dialect_writer *writer, enum trace_finish finish,
                            const struct trace_usage *usage, struct buf *out);

#endif
