/* chat.h - private to the dialect room: the parts of OpenAI chat completions. */
#ifndef DIALECT_CHAT_H
#define DIALECT_CHAT_H

#include "dialect/descriptor.h"

/* chat_request.c */
int chat_read_request(struct json body, struct dialect_skim *skim, struct arena *arena,
                      struct trace_request *out, struct err *err);
void chat_rewrite_request(struct json body, const struct dialect_override *override,
                          struct buf *out);

/* chat_make.c */
void chat_write_request(const struct trace_request *request,
                        const struct dialect_override *override, struct buf *out);

/* chat_quick.c: struct dialect's quick_event */
bool chat_quick_event(struct answer_builder *builder, struct str data,
                      const struct dialect_reader_options *options, struct arena *scratch,
                      struct buf *out);

/* dialect_chat.c */
/* Whether a finish reason is none: the engine broke the answer off. Then `err` is ERR_LOST. */
bool chat_broke_off(struct str finish, struct err *err);
/* What a body or a chunk says of usage, if it does. */
void chat_read_usage(struct json root, struct trace_usage *out);
bool chat_strip(struct json data, const struct dialect_reader_options *options, struct buf *out);

/* chat_write.c */
void chat_write_answer(const struct trace_request *request, const struct trace_answer *answer,
                       struct buf *out);
void chat_write_error(int status, const char *code, struct str message, struct buf *out);
void chat_write_models(struct str model, int64_t created_s, bool one, struct buf *out);
void chat_write_delta(struct dialect_writer *writer, const struct trace_delta *delta,
                      struct buf *out);
bool chat_write_opaque(struct dialect_writer *writer, const struct trace_message *message,
                       struct json items, struct buf *out);
void chat_write_finish(struct dialect_writer *writer, enum trace_finish finish,
                       const struct trace_usage *usage, struct buf *out);

void chat_write_usage(const struct trace_usage *usage, struct json_writer *out);

bool chat_newer_limit(struct str model);
/* chat_template_kwargs with thinking switched off. False: the agent has its own word on it. */
bool chat_thinking_off(struct json body, struct buf *out);

#endif
