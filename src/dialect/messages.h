/* messages.h - private to the dialect room: the parts of Anthropic messages. */
#ifndef DIALECT_MESSAGES_H
#define DIALECT_MESSAGES_H

#include "dialect/descriptor.h"

/* messages_request.c */
int messages_read_request(struct json body, struct dialect_skim *skim, struct arena *arena,
                          struct trace_request *out, struct err *err);
void messages_rewrite_request(struct json body, const struct dialect_override *override,
                              struct buf *out);

/* messages_write.c */
void messages_write_answer(const struct trace_request *request, const struct trace_answer *answer,
                           struct buf *out);
void messages_write_error(int status, const char *code, struct str message, struct buf *out);
void messages_write_models(struct str model, int64_t created_s, bool one, struct buf *out);
void messages_write_delta(struct dialect_writer *writer, const struct trace_delta *delta,
                          struct buf *out);
bool messages_write_opaque(struct dialect_writer *writer, const struct trace_message *message,
                           struct json items, struct buf *out);
void messages_write_finish(struct dialect_writer *writer, enum trace_finish finish,
                           const struct trace_usage *usage, struct buf *out);

#endif
