/* writer.c - an answer as a stream of the agent's dialect.
 *
 *     delta -> [order] -> [dialect: write_delta] -> bytes
 *
 * Pieces of several calls may come in turns: chat completions number them. Protocols with one thing
 * open at a time cannot say that. There a later call (and whatever else comes) waits until the
 * arguments of the open one are whole JSON, or until the end; the usual stream, one call after
 * another, never waits. */
#include <stdlib.h>

#include "base/mem.h"
#include "dialect/descriptor.h"
#include "dialect/dialect.h"

struct dialect_late {
    enum trace_delta_kind kind;
    uint32_t index;
    struct buf id, name, text; /* of a call: its arguments so far */
};

static void late_deinit(struct dialect_late *late)
{
    buf_deinit(&late->id);
    buf_deinit(&late->name);
    buf_deinit(&late->text);
}

void dialect_writer_init(struct dialect_writer *writer, const struct dialect *dialect,
                         const struct trace_request *request, struct str id, struct str model,
                         int64_t created_s)
{
    *writer = (struct dialect_writer){.dialect = dialect,
                                      .request = request,
                                      .id = id,
                                      .model = model,
                                      .created_s = created_s,
                                      .usage = request->stream_usage};
}

void dialect_writer_deinit(struct dialect_writer *writer)
{
    buf_deinit(&writer->items);
    buf_deinit(&writer->piece);
    buf_deinit(&writer->call_id);
    buf_deinit(&writer->call_name);
    buf_deinit(&writer->arguments);
    buf_deinit(&writer->argued);
    for (size_t i = 0; i < writer->late_count; i++)
        late_deinit(&writer->late[i]);
    free(writer->late);
}

/* ---------------------------------------------------------------- tools */

const struct trace_tool *writer_tool(const struct trace_request *request, struct str name)
{
    for (size_t i = 0; request->tools && i < request->tool_count; i++)
        if (str_equal(request->tools[i].name, name))
            return &request->tools[i];
    return NULL;
}

struct str writer_input(struct str arguments, struct arena *arena)
{
    OWN(json_doc) struct json_doc doc = {0};
    struct str input = STR_NONE;
    if (json_read(&doc, arguments, NULL, NULL) == 0)
        input = json_str(json_get(json_root(&doc), "input"), arena);
    return input.data ? input : arguments;
}

void writer_put_input(struct str arguments, struct json_writer *out)
{
    OWN(arena) struct arena arena = {0};
    json_set_str(out, "input", writer_input(arguments, &arena));
}

/* ---------------------------------------------------------------- state to replay */

bool writer_opaque(struct str opaque, struct json_doc *doc)
{
    return opaque.size && json_read(doc, opaque, NULL, NULL) == 0 &&
           json_type(json_root(doc)) == JSON_ARRAY;
}

void writer_put_item(struct json item, struct json_writer *out)
{
    json_put_raw(out, json_raw(item));
    size_t from = out->out->size - json_raw(item).size;
    for (size_t i = from; i < out->out->size; i++) /* in strings they are escaped */
        if (out->out->data[i] == '\n' || out->out->data[i] == '\r')
            out->out->data[i] = ' ';
}

bool writer_is_typed(struct json item)
{
    OWN(arena) struct arena arena = {0};
    struct str type = json_str(json_get(item, "type"), &arena);
    return type.size && !str_starts(type, STR("reasoning."));
}

/* ---------------------------------------------------------------- order */

/* Asked with every piece: an object that does not even look whole is not read each time. */
static bool is_whole(struct str arguments)
{
    OWN(json_doc) struct json_doc doc = {0};
    struct str text = str_trim(arguments);
    if (str_starts(text, STR("{")) && text.data[text.size - 1] != '}')
        return false;
    return json_read(&doc, arguments, NULL, NULL) == 0;
}

static void write_now(struct dialect_writer *writer, const struct trace_delta *delta,
                      struct buf *out)
{
    writer->in_call = delta->kind == TRACE_DELTA_CALL;
    writer->call_index = delta->index;
    buf_clear(&writer->arguments);
    writer->dialect->write_delta(writer, delta, out);
}

static void write_arguments(struct dialect_writer *writer, const struct trace_delta *delta,
                            struct buf *out)
{
    buf_str_append(&writer->arguments, delta->text);
    writer->dialect->write_delta(writer, delta, out);
}

static struct dialect_late *find_late(struct dialect_writer *writer, uint32_t index)
{
    for (size_t i = writer->late_count; i-- > 0;)
        if (writer->late[i].kind == TRACE_DELTA_CALL && writer->late[i].index == index)
            return &writer->late[i];
    return NULL;
}

/* Of a tool that takes free text, in a protocol that has no other way to say it. */
static bool is_custom(struct dialect_writer *writer, const struct trace_delta *delta)
{
    if (delta->kind == TRACE_DELTA_ARGUMENTS)
        return find_late(writer, delta->index) != NULL;
    const struct trace_tool *tool =
        delta->kind == TRACE_DELTA_CALL ? writer_tool(writer->request, delta->name) : NULL;
    return tool && tool->custom;
}

static void put_late(struct dialect_writer *writer, const struct trace_delta *delta)
{
    struct dialect_late *last = writer->late_count ? &writer->late[writer->late_count - 1] : NULL;
    if (delta->kind == TRACE_DELTA_ARGUMENTS)
        last = find_late(writer, delta->index);
    bool more = last && (delta->kind == TRACE_DELTA_ARGUMENTS ||
                         (delta->kind == last->kind && delta->kind != TRACE_DELTA_CALL));
    if (!more) {
        writer->late = mem_grow(writer->late, (writer->late_count + 1) * sizeof *writer->late);
        last = &writer->late[writer->late_count++];
        *last = (struct dialect_late){.kind = delta->kind, .index = delta->index};
        buf_str_append(&last->id, delta->id);
        buf_str_append(&last->name, delta->name);
    }
    buf_str_append(&last->text, delta->text);
}

static void write_late(struct dialect_writer *writer, struct buf *out)
{
    struct dialect_late late = writer->late[0];
    memmove(writer->late, writer->late + 1, --writer->late_count * sizeof late);
    bool call = late.kind == TRACE_DELTA_CALL;
    struct trace_delta delta = {.kind = late.kind,
                                .index = late.index,
                                .id = buf_str(&late.id),
                                .name = buf_str(&late.name),
                                .text = call ? STR_NONE : buf_str(&late.text)};
    if (writer->dialect->in_order)
        write_now(writer, &delta, out);
    writer->in_call = call; /* where calls are numbered it has begun already */
    writer->call_index = late.index;
    delta = (struct trace_delta){
        .kind = TRACE_DELTA_ARGUMENTS, .index = late.index, .text = buf_str(&late.text)};
    if (call && late.text.size)
        write_arguments(writer, &delta, out);
    late_deinit(&late);
}

/* Does the open call still want arguments, as far as one can see? */
static bool is_waited_for(const struct dialect_writer *writer)
{
    return writer->in_call && !is_whole(buf_str(&writer->arguments));
}

static void delta_in_order(struct dialect_writer *writer, const struct trace_delta *delta,
                           struct buf *out)
{
    if (delta->kind == TRACE_DELTA_ARGUMENTS && writer->in_call &&
        delta->index == writer->call_index) {
        write_arguments(writer, delta, out);
        while (writer->late_count && !is_waited_for(writer))
            write_late(writer, out);
    } else if (delta->kind == TRACE_DELTA_ARGUMENTS && !find_late(writer, delta->index)) {
        return; /* more of a call that was whole and is over: there is no place for it any more */
    } else if (writer->late_count || is_waited_for(writer)) {
        put_late(writer, delta);
    } else {
        write_now(writer, delta, out);
    }
}

static void note_arguments(struct dialect_writer *writer, const struct trace_delta *delta,
                           bool custom)
{
    if (delta->kind != TRACE_DELTA_CALL && delta->kind != TRACE_DELTA_ARGUMENTS)
        return;
    while (delta->kind == TRACE_DELTA_CALL && writer->argued.size <= delta->index)
        buf_byte(&writer->argued, true); /* of calls that never began nothing is missing */
    if (delta->index < writer->argued.size)
        writer->argued.data[delta->index] = custom || delta->kind == TRACE_DELTA_ARGUMENTS;
}

/* A call without arguments is one with an empty object of them: clients read them as JSON. */
static void write_missing(struct dialect_writer *writer, struct buf *out)
{
    for (size_t i = 0; i < writer->argued.size; i++)
        if (!writer->argued.data[i])
            writer->dialect->write_delta(writer,
                                         &(struct trace_delta){.kind = TRACE_DELTA_ARGUMENTS,
                                                               .index = (uint32_t)i,
                                                               .text = STR("{}")},
                                         out);
}

void dialect_writer_delta(struct dialect_writer *writer, const struct trace_delta *delta,
                          struct buf *out)
{
    if (writer->dialect->in_order) {
        delta_in_order(writer, delta, out);
        return;
    }
    /* A custom tool's text is inside JSON: it goes out when that is whole. */
    bool custom = is_custom(writer, delta);
    note_arguments(writer, delta, custom);
    if (!custom || delta->kind == TRACE_DELTA_CALL)
        writer->dialect->write_delta(writer, delta, out);
    if (custom)
        put_late(writer, delta);
}

void dialect_writer_finish(struct dialect_writer *writer, enum trace_finish finish,
                           const struct trace_usage *usage, struct buf *out)
{
    write_missing(writer, out);
    while (writer->late_count)
        write_late(writer, out);
    writer->dialect->write_finish(writer, finish, usage, out);
}

/* ---------------------------------------------------------------- a whole answer */

/* The front of `text`, at most `piece` bytes but whole UTF-8 characters and at least one. */
static struct str cut_piece(struct str *text, size_t piece)
{
    size_t size = piece && piece < text->size ? piece : text->size;
    while (size < text->size && size > 0 && ((unsigned char)text->data[size] & 0xc0) == 0x80)
        size--;
    if (size == 0)
        for (size = 1; size < text->size && ((unsigned char)text->data[size] & 0xc0) == 0x80;)
            size++;
    struct str front = str_upto(*text, size);
    *text = str_from(*text, size);
    return front;
}

static void write_pieces(struct dialect_writer *writer, enum trace_delta_kind kind, uint32_t index,
                         struct str text, size_t piece, struct buf *out)
{
    while (text.size) {
        struct trace_delta delta = {.kind = kind, .index = index, .text = cut_piece(&text, piece)};
        dialect_writer_delta(writer, &delta, out);
    }
}

void dialect_writer_answer(struct dialect_writer *writer, const struct trace_answer *answer,
                           size_t piece, struct buf *out)
{
    const struct trace_message *message = &answer->message;
    OWN(json_doc) struct json_doc doc = {0};
    bool thoughts = false;
    writer->stop_word = answer->stop_word;
    writer->finish_text = answer->finish_text;
    writer->opaque = message->opaque;
    if (writer->dialect->write_opaque && writer_opaque(message->opaque, &doc))
        thoughts = writer->dialect->write_opaque(writer, message, json_root(&doc), out);
    if (!thoughts)
        write_pieces(writer, TRACE_DELTA_REASONING, 0, message->reasoning, piece, out);
    for (size_t i = 0; i < message->part_count; i++)
        write_pieces(writer,
                     message->parts[i].kind == TRACE_PART_REFUSAL ? TRACE_DELTA_REFUSAL
                                                                  : TRACE_DELTA_TEXT,
                     0, message->parts[i].text, piece, out);
    for (size_t i = 0; i < message->call_count; i++) {
        const struct trace_tool_call *call = &message->calls[i];
        struct trace_delta begin = {
            .kind = TRACE_DELTA_CALL, .index = (uint32_t)i, .id = call->id, .name = call->name};
        dialect_writer_delta(writer, &begin, out);
        write_pieces(writer, TRACE_DELTA_ARGUMENTS, (uint32_t)i, call->arguments, piece, out);
    }
}
