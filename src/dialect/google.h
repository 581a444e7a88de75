/* google.h - private to the dialect room: the parts of Google generateContent. */
#ifndef DIALECT_GOOGLE_H
#define DIALECT_GOOGLE_H

#include "dialect/descriptor.h"

/* google_request.c */
int google_read_request(struct json body, struct dialect_skim *skim, struct arena *arena,
                        struct trace_request *out, struct err *err);
void google_rewrite_request(struct json body, const struct dialect_override *override,
                            struct buf *out);

/* google_schema.c: the same as a JSON schema; STR_NONE: no room */
struct str google_schema(struct json schema, struct arena *arena);

/* google_write.c */
void google_write_answer(const struct trace_request *request, const struct trace_answer *answer,
                         struct buf *out);
void google_write_error(int status, const char *code, struct str message, struct buf *out);
void google_write_models(struct str model, int64_t created_s, bool one, struct buf *out);
void google_write_delta(struct dialect_writer *writer, const struct trace_delta *delta,
                        struct buf *out);
void google_write_finish(struct dialect_writer *writer, enum trace_finish finish,
                         const struct trace_usage *usage, struct buf *out);

#endif
