/* reader.c - an upstream's answer, whole or as a stream, into a trace_answer.
 *
 *     bytes -> [sse] -> event -> [dialect: read_event] -> builder -> on_delta
 *                          \---> [dialect: strip] -----------------> on_relay
 *
 * The reader owns limits and the question "was it all there"; the dialect owns the meaning of an
 * event. An answer counts as complete only when its finish reason was seen. */
#include <stdlib.h>

#include "base/err.h"
#include "base/mem.h"
#include "dialect/descriptor.h"
#include "dialect/sse.h"

#define ANSWER_BYTES_MAX (64u * 1024 * 1024)
#define EVENT_BYTES_MAX (16u * 1024 * 1024)
#define SCRATCH_BYTES_MAX (64u * 1024) /* of an event: what a larger one needed is given back */

struct dialect_reader {
    const struct dialect *dialect;
    struct dialect_scratch *scratch;
    size_t bytes;
    bool done; /* the end marker was seen */
    struct dialect_reader_options options;
    struct sse sse;
    struct answer_builder builder;
    struct buf body; /* unary */
    struct dialect_scratch own;
};

void dialect_scratch_deinit(struct dialect_scratch *scratch)
{
    json_doc_deinit(&scratch->doc);
    buf_deinit(&scratch->stripped);
    buf_deinit(&scratch->framed);
}

struct dialect_reader *dialect_reader_new(const struct dialect *dialect,
                                          const struct dialect_reader_options *options)
{
    struct dialect_reader *reader = mem_zero(sizeof *reader);
    reader->dialect = dialect;
    reader->options = *options;
    reader->scratch = options->scratch ? options->scratch : &reader->own;
    if (!reader->options.bytes_max)
        reader->options.bytes_max = ANSWER_BYTES_MAX;
    if (!reader->options.event_bytes_max)
        reader->options.event_bytes_max = EVENT_BYTES_MAX;
    reader->builder.on_delta = options->on_delta;
    reader->builder.context = options->context;
    return reader;
}

void dialect_reader_free(struct dialect_reader *reader)
{
    if (!reader)
        return;
    dialect_sse_deinit(&reader->sse);
    buf_deinit(&reader->body);
    dialect_scratch_deinit(&reader->own);
    answer_deinit(&reader->builder);
    free(reader);
}

size_t dialect_reader_touched(void)
{
    return offsetof(struct dialect_reader, builder.id);
}

bool dialect_reader_finished(const struct dialect_reader *reader)
{
    return reader->builder.finish != TRACE_FINISH_NONE;
}

static void relay(struct dialect_reader *reader, struct str bytes)
{
    if (reader->options.on_relay && bytes.size)
        reader->options.on_relay(reader->options.context, bytes,
                                 dialect_reader_finished(reader) || reader->done);
}

static int fail_with_error_object(struct json data, struct arena *scratch, struct err *err)
{
    struct str message, code;
    dialect_read_error(data, scratch, &message, &code);
    message = str_upto(message, 300);
    return err_set(err, ERR_LOST, "the model server reported an error: %.*s", STR_ARGS(message));
}

static bool is_error_object(struct json data)
{
    enum json_type type = json_type(json_get(data, "error"));
    return type == JSON_OBJECT || type == JSON_STRING || json_is(json_get(data, "object"), "error");
}

static void append_line(struct buf *out, struct str field, struct str value)
{
    buf_str_append(out, field);
    buf_str_append(out, value);
    buf_byte(out, '\n');
}

/* An event with other data. */
static void relay_instead(struct dialect_reader *reader, const struct sse_event *event,
                          struct str data)
{
    struct buf *whole = &reader->scratch->framed;
    buf_clear(whole);
    if (event->name.size)
        append_line(whole, STR("event: "), event->name);
    for (struct str rest = data; rest.data;) {
        struct str line = str_cut(&rest, '\n');
        append_line(whole, STR("data: "), line);
    }
    buf_byte(whole, '\n');
    relay(reader, buf_str(whole));
}

static void relay_event(struct dialect_reader *reader, const struct sse_event *event,
                        struct json data)
{
    buf_clear(&reader->scratch->stripped);
    struct buf *out = &reader->scratch->stripped;
    if (!reader->options.on_relay)
        return;
    if (!json_exists(data) || !reader->dialect->strip(data, &reader->options, out))
        relay(reader, event->raw);
    else if (out->size)
        relay_instead(reader, event, buf_str(out));
}

static bool take_quickly(struct dialect_reader *reader, const struct sse_event *event)
{
    struct buf *out = &reader->scratch->stripped;
    if (!reader->dialect->quick_event || reader->options.thorough ||
        event->data.size > SCRATCH_BYTES_MAX)
        return false;
    buf_clear(out);
    OWN(arena) struct arena scratch = {0};
    if (!reader->dialect->quick_event(&reader->builder, event->data, &reader->options, &scratch,
                                      out))
        return false;
    if (out->size)
        relay_instead(reader, event, buf_str(out));
    else
        relay(reader, event->raw);
    return true;
}

static int take_event(struct dialect_reader *reader, const struct sse_event *event, struct err *err)
{
    if (event->data.size == 0) {
        relay(reader, event->raw);
        return 0;
    }
    if (reader->dialect->end_marker && str_is(str_trim(event->data), reader->dialect->end_marker)) {
        reader->done = true;
        relay(reader, event->raw);
        return 0;
    }
    if (take_quickly(reader, event))
        return 0;
    if (json_read(&reader->scratch->doc, event->data, NULL, err) < 0) {
        if (err)
            err->kind = ERR_PROTOCOL;
        return err_wrap(err, "an event of the model server's stream is no JSON");
    }
    OWN(arena) struct arena scratch = {0};
    struct json data = json_root(&reader->scratch->doc);
    if (is_error_object(data))
        return fail_with_error_object(data, &scratch, err);
    if (reader->dialect->read_event(&reader->builder, event->name, data, &scratch, err) < 0)
        return -1;
    relay_event(reader, event, data);
    if (event->data.size > SCRATCH_BYTES_MAX)
        dialect_scratch_deinit(reader->scratch);
    return 0;
}

int dialect_reader_feed(struct dialect_reader *reader, struct str bytes, struct err *err)
{
    reader->bytes += bytes.size;
    if (reader->bytes > reader->options.bytes_max)
        return err_set(err, ERR_LIMIT, "the model server's answer is larger than %zu bytes",
                       reader->options.bytes_max);
    if (!reader->options.stream) {
        buf_str_append(&reader->body, bytes);
        return 0;
    }
    dialect_sse_feed(&reader->sse, bytes);
    struct sse_event event;
    while (dialect_sse_next(&reader->sse, false, &event))
        if (take_event(reader, &event, err) < 0)
            return -1;
    if (reader->sse.pending.size > reader->options.event_bytes_max)
        return err_set(err, ERR_LIMIT,
                       "an event of the model server's stream is larger than %zu bytes",
                       reader->options.event_bytes_max);
    return 0;
}

static int take_body(struct dialect_reader *reader, struct err *err)
{
    if (json_read(&reader->scratch->doc, buf_str(&reader->body), NULL, err) < 0) {
        /* A body that was cut short is no JSON either; which of the two it was, nobody can tell. */
        if (err)
            err->kind = reader->body.size ? ERR_PROTOCOL : ERR_LOST;
        return err_wrap(err, "the model server's answer is no JSON");
    }
    OWN(arena) struct arena scratch = {0};
    struct json body = json_root(&reader->scratch->doc);
    if (is_error_object(body))
        return fail_with_error_object(body, &scratch, err);
    if (reader->dialect->read_body(&reader->builder, body, &scratch, err) < 0)
        return -1;
    buf_clear(&reader->scratch->stripped);
    if (reader->options.on_relay &&
        reader->dialect->strip(body, &reader->options, &reader->scratch->stripped))
        relay(reader, buf_str(&reader->scratch->stripped));
    else
        relay(reader, buf_str(&reader->body));
    if (reader->body.size > SCRATCH_BYTES_MAX)
        dialect_scratch_deinit(reader->scratch);
    return 0;
}

/* What is left without a blank line behind it counts only if it is whole JSON: a prefix of it never
 * is. */
static int take_rest(struct dialect_reader *reader, struct err *err)
{
    struct sse_event event;
    while (dialect_sse_next(&reader->sse, true, &event)) {
        struct err ignored = {0};
        bool marker = reader->dialect->end_marker &&
                      str_is(str_trim(event.data), reader->dialect->end_marker);
        if (event.data.size && !marker &&
            json_read(&reader->scratch->doc, event.data, NULL, &ignored) < 0)
            return 0;
        if (take_event(reader, &event, err) < 0)
            return -1;
    }
    return 0;
}

int dialect_reader_end(struct dialect_reader *reader, struct arena *arena, struct trace_answer *out,
                       struct err *err)
{
    if ((reader->options.stream ? take_rest(reader, err) : take_body(reader, err)) < 0)
        return -1;
    if (!dialect_reader_finished(reader))
        return err_set(err, ERR_LOST, "the model server's answer ended before it was complete");
    answer_finish(&reader->builder, reader->builder.finish,
                  STR_NONE); /* what came after the reason */
    answer_build(&reader->builder, arena, out);
    return 0;
}

void dialect_reader_partial(struct dialect_reader *reader, struct arena *arena,
                            struct trace_answer *out)
{
    answer_build(&reader->builder, arena, out);
}
