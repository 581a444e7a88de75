/* read.h - private to the dialect room: reading members of a request with errors that name the
 * place.
 *
 * null means absent, as everywhere in these protocols. */
#ifndef DIALECT_READ_H
#define DIALECT_READ_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "json/json.h"

struct dialect_skim;
struct err;
struct trace_request;

struct read_context {
    struct arena *arena;
    struct err *err;
    const char *where; /* "messages[3]"; NULL: the body itself */
    struct dialect_skim *skim;
};

bool read_is_there(struct json value);     /* present and not null */
struct str read_object(struct json value); /* as raw JSON; STR_NONE: it is none */
int read_out_of_room(struct read_context *context);
int read_fail_type(struct read_context *context, const char *key, const char *wanted);
/* A system prompt beside the conversation, a message of its own. Whether it is known. Comes before
 * read_skim_begin(). */
bool read_skim_front(struct read_context *context, struct json front);
/* Whether the tools are known; *count becomes their number. */
bool read_skim_tools(struct read_context *context, struct json tools, size_t *count);
/* The conversation: an array whose elements are read one after another. `front`: the messages that
 * come before it. */
int read_skim_begin(struct read_context *context, struct json array, size_t front);
/* The first element that is not known, to walk on from, and which it is. *count becomes the number
 * of messages up to there when some are known. */
struct json_item read_skim_first(struct read_context *context, struct json array, size_t *at,
                                 size_t *count);
/* Element `at` was read; now there are `count` messages. `open`: the next may add to the last. */
void read_skim_end(struct read_context *context, size_t at, size_t count, bool open);
int read_text(struct read_context *context, struct json object, const char *key, bool needed,
              struct str *out);
/* Room for one element of `size` bytes per element of an array. */
void *read_room(struct read_context *context, struct json array, size_t size);
int read_number(struct read_context *context, struct json body, const char *key, bool *has,
                double *out);
int read_tokens_max(struct read_context *context, struct json body, const char *key, int64_t *out);
/* The same where 0 is a limit, too: no answer is wanted. The least there is elsewhere is 1. */
int read_tokens_max_or_none(struct read_context *context, struct json body, const char *key,
                            int64_t *out);
/* The limit to impose where the agent asks for `asked`; 0: what it asks for is small enough. */
int64_t read_cap(int64_t max, struct json asked);
struct str read_bool(struct json value); /* as raw JSON; STR_NONE: it is none */
int read_flag(struct read_context *context, struct json body, const char *key, bool *out);
/* Custom tools take free text: in the canonical form that is one member `input`, with the grammar
 * of it where the tool's `format` has one. STR_NONE: no room. */
struct str read_custom_schema(struct read_context *context, struct json format);
/* A custom tool's text as arguments; STR_NONE: no room. */
struct str read_custom_input(struct read_context *context, struct str text);
/* Further settings in the words of chat completions: begin, put, end. What is not there is not put.
 */
struct read_settings {
    struct buf text;
    struct json_writer out;
};
void read_settings_put(struct read_settings *settings, const char *key, struct json value);
/* low, medium and high mean the same everywhere, in capitals too; other words do not. */
void read_settings_effort(struct read_settings *settings, struct json effort);
/* An answer that is JSON, of that schema (raw; STR_NONE: of any); `name` and `strict` may be
 * absent.
 */
void read_settings_format(struct read_settings *settings, struct json name, struct str schema,
                          struct json strict);
int read_settings_end(struct read_context *context, struct read_settings *settings,
                      struct str *out);
/* `name` is the only tool that may be called, as chat completions say it. */
int read_chosen_tool(struct read_context *context, struct str name, struct trace_request *out);
/* A string or an array of strings. */
int read_texts(struct read_context *context, struct json body, const char *key,
               const struct str **out, size_t *count);

#endif
