/* responses_write.c - answers in the form of OpenAI responses: whole and as a stream.
 *
 * A stream is a row of items, each added, filled and done; the last event repeats all of them. Some
 * clients act on the item's end, some on the deltas, some on the last event, and some want usage,
 * ids and statuses everywhere (reference: agents-wire.md 2.3): everything is sent. What an item
 * holds is kept in the writer until the item is done, and the done items until the response is. */
#include <stdio.h>

#include "base/mem.h"
#include "dialect/responses.h"

static void write_usage(const struct trace_usage *usage, struct json_writer *out)
{
    bool known = usage && usage->known;
    int64_t input = known ? usage->prompt_tokens : 0, output = known ? usage->completion_tokens : 0;
    json_begin_object(out);
    json_set_int(out, "input_tokens", input);
    json_key(out, "input_tokens_details");
    json_begin_object(out);
    json_set_int(out, "cached_tokens",
                 known && usage->cached_tokens > 0 ? usage->cached_tokens : 0);
    json_end_object(out);
    json_set_int(out, "output_tokens", output);
    json_key(out, "output_tokens_details");
    json_begin_object(out);
    json_set_int(out, "reasoning_tokens",
                 known && usage->reasoning_tokens > 0 ? usage->reasoning_tokens : 0);
    json_end_object(out);
    json_set_int(out, "total_tokens", input + output);
    json_end_object(out);
}

/* ---------------------------------------------------------------- items */

enum item_kind { ITEM_MESSAGE, ITEM_REFUSAL, ITEM_REASONING, ITEM_CALL };

struct item {
    enum item_kind kind;
    const char *id;     /* "msg_...", "rs_...", "fc_...", "ctc_..." */
    const char *status; /* "in_progress", "completed", "incomplete" */
    struct str text;    /* what it holds so far */
    struct str call_id, name;
    const struct trace_tool *tool; /* NULL: not declared by the agent */
};

static void put_call(const struct item *item, struct json_writer *out)
{
    bool custom = item->tool && item->tool->custom;
    struct str name = item->name;
    json_set_text(out, "type", custom ? "custom_tool_call" : "function_call");
    json_set_str(out, "call_id", item->call_id);
    if (item->tool && item->tool->space.size) {
        json_set_str(out, "namespace", item->tool->space);
        name = str_from(name, item->tool->space.size + 2);
    }
    json_set_str(out, "name", name);
    if (custom)
        writer_put_input(item->text, out);
    else
        json_set_str(out, "arguments", item->text);
}

static void put_text_part(const struct item *item, struct json_writer *out)
{
    bool refusal = item->kind == ITEM_REFUSAL;
    json_begin_object(out);
    json_set_text(out, "type", refusal ? "refusal" : "output_text");
    json_set_str(out, refusal ? "refusal" : "text", item->text);
    if (!refusal)
        json_set_raw(out, "annotations", STR("[]"));
    json_end_object(out);
}

static void put_item(const struct item *item, bool empty, struct json_writer *out)
{
    json_begin_object(out);
    json_set_text(out, "id", item->id);
    switch (item->kind) {
    case ITEM_CALL:
        put_call(item, out);
        break;
    case ITEM_REASONING:
        json_set_text(out, "type", "reasoning");
        json_key(out, "summary");
        json_begin_array(out);
        if (!empty) {
            json_begin_object(out);
            json_set_text(out, "type", "summary_text");
            json_set_str(out, "text", item->text);
            json_end_object(out);
        }
        json_end_array(out);
        break;
    case ITEM_MESSAGE:
    case ITEM_REFUSAL:
        json_set_text(out, "type", "message");
        json_set_text(out, "role", "assistant");
        json_key(out, "content");
        json_begin_array(out);
        if (!empty)
            put_text_part(item, out);
        json_end_array(out);
        break;
    }
    json_set_text(out, "status", item->status);
    json_end_object(out);
}

/* ---------------------------------------------------------------- the response object */

struct shell {
    struct str id, model;
    int64_t created_s;
    const char *status;
    const char *incomplete; /* the reason; NULL: complete */
    struct str output;      /* raw items, comma-separated */
    const struct trace_usage *usage;
    bool with_usage;
};

static void put_response(const struct shell *shell, struct json_writer *out)
{
    json_begin_object(out);
    json_set_str(out, "id", shell->id);
    json_set_text(out, "object", "response");
    json_set_int(out, "created_at", shell->created_s);
    json_set_text(out, "status", shell->status);
    json_set_null(out, "error");
    json_key(out, "incomplete_details");
    if (shell->incomplete) {
        json_begin_object(out);
        json_set_text(out, "reason", shell->incomplete);
        json_end_object(out);
    } else {
        json_put_null(out);
    }
    json_set_str(out, "model", shell->model);
    json_key(out, "output");
    json_begin_array(out);
    if (shell->output.size)
        json_put_raw(out, shell->output);
    json_end_array(out);
    json_set_bool(out, "parallel_tool_calls", true);
    json_set_text(out, "tool_choice", "auto");
    json_set_raw(out, "tools", STR("[]"));
    json_key(out, "usage");
    if (shell->with_usage)
        write_usage(shell->usage, out);
    else
        json_put_null(out);
    json_end_object(out);
}

static const char *incomplete_reason(enum trace_finish finish)
{
    return finish == TRACE_FINISH_LENGTH           ? "max_output_tokens"
           : finish == TRACE_FINISH_CONTENT_FILTER ? "content_filter"
                                                   : NULL;
}

/* ---------------------------------------------------------------- stream */

static struct json_writer begin_event(struct dialect_writer *writer, const char *type,
                                      struct buf *out)
{
    struct json_writer json = {.out = out};
    buf_format(out, "event: %s\ndata: ", type);
    json_begin_object(&json);
    json_set_text(&json, "type", type);
    json_set_int(&json, "sequence_number", writer->sequence++);
    return json;
}

static void end_event(struct json_writer *json)
{
    json_end_object(json);
    buf_append(json->out, "\n\n", 2);
}

static struct shell shell_of(const struct dialect_writer *writer, const char *status)
{
    return (struct shell){.id = writer->id,
                          .model = writer->model.data ? writer->model : writer->request->model,
                          .created_s = writer->created_s,
                          .status = status,
                          .output = buf_str(&writer->items)};
}

static void begin_response(struct dialect_writer *writer, struct buf *out)
{
    if (writer->begun)
        return;
    writer->begun = true;
    const char *const types[] = {"response.created", "response.in_progress"};
    struct shell shell = shell_of(writer, "in_progress");
    for (size_t i = 0; i < COUNT(types); i++) {
        struct json_writer json = begin_event(writer, types[i], out);
        json_key(&json, "response");
        put_response(&shell, &json);
        end_event(&json);
    }
}

static enum item_kind kind_of(enum trace_delta_kind kind)
{
    switch (kind) {
    case TRACE_DELTA_TEXT:
        return ITEM_MESSAGE;
    case TRACE_DELTA_REFUSAL:
        return ITEM_REFUSAL;
    case TRACE_DELTA_REASONING:
        return ITEM_REASONING;
    case TRACE_DELTA_CALL:
    case TRACE_DELTA_ARGUMENTS:
        return ITEM_CALL;
    }
    return ITEM_MESSAGE;
}

static bool is_custom(const struct item *item)
{
    return item->kind == ITEM_CALL && item->tool && item->tool->custom;
}

static const char *prefix_of(const struct item *item)
{
    static const char *const prefixes[] = {"msg", "msg", "rs", "fc"};
    return is_custom(item) ? "ctc" : prefixes[item->kind];
}

static struct item item_of(const struct dialect_writer *writer, const char *status, char *id,
                           size_t size)
{
    struct str tail = str_upto(writer->id, size - 24);
    struct item item = {.kind = kind_of(writer->open_kind),
                        .id = id,
                        .status = status,
                        .text = buf_str(&writer->piece),
                        .call_id = buf_str(&writer->call_id),
                        .name = buf_str(&writer->call_name),
                        .tool = writer_tool(writer->request, buf_str(&writer->call_name))};
    snprintf(id, size, "%s_%.*s_%u", prefix_of(&item), STR_ARGS(tail), writer->block);
    return item;
}

static void item_event(struct dialect_writer *writer, const char *type, const struct item *item,
                       bool empty, struct buf *out)
{
    struct json_writer json = begin_event(writer, type, out);
    json_set_int(&json, "output_index", writer->block);
    json_key(&json, "item");
    put_item(item, empty, &json);
    end_event(&json);
}

/* Events about the inside of an item share these members. */
static struct json_writer begin_inner(struct dialect_writer *writer, const char *type,
                                      const struct item *item, struct buf *out)
{
    struct json_writer json = begin_event(writer, type, out);
    json_set_text(&json, "item_id", item->id);
    json_set_int(&json, "output_index", writer->block);
    if (item->kind != ITEM_CALL)
        json_set_int(&json, item->kind == ITEM_REASONING ? "summary_index" : "content_index", 0);
    return json;
}

struct words {
    const char *delta, *done, *done_key, *part_added, *part_done;
};

static struct words words_of(const struct item *item)
{
    static const struct words words[] = {
        {"response.output_text.delta", "response.output_text.done", "text",
         "response.content_part.added", "response.content_part.done"},
        {"response.refusal.delta", "response.refusal.done", "refusal",
         "response.content_part.added", "response.content_part.done"},
        {"response.reasoning_summary_text.delta", "response.reasoning_summary_text.done", "text",
         "response.reasoning_summary_part.added", "response.reasoning_summary_part.done"},
        {"response.function_call_arguments.delta", "response.function_call_arguments.done",
         "arguments", NULL, NULL},
    };
    static const struct words custom = {"response.custom_tool_call_input.delta",
                                        "response.custom_tool_call_input.done", "input", NULL,
                                        NULL};
    return is_custom(item) ? custom : words[item->kind];
}

static void part_event(struct dialect_writer *writer, const char *type, const struct item *item,
                       struct buf *out)
{
    if (!type)
        return;
    struct json_writer json = begin_inner(writer, type, item, out);
    json_key(&json, "part");
    if (item->kind == ITEM_REASONING) {
        json_begin_object(&json);
        json_set_text(&json, "type", "summary_text");
        json_set_str(&json, "text", item->text);
        json_end_object(&json);
    } else {
        put_text_part(item, &json);
    }
    end_event(&json);
}

/* Our texts have no log-probabilities to show; the vendor's types want the list. */
static void end_text_event(const struct item *item, struct json_writer *json)
{
    if (item->kind == ITEM_MESSAGE)
        json_set_raw(json, "logprobs", STR("[]"));
    end_event(json);
}

static void delta_event(struct dialect_writer *writer, const struct item *item, struct str text,
                        struct buf *out)
{
    struct json_writer json = begin_inner(writer, words_of(item).delta, item, out);
    json_set_str(&json, "delta", text);
    end_text_event(item, &json);
}

/* What a call has to say at its end that no delta said: a custom tool's text, which is inside JSON
 * that was not whole before, and that there are no arguments. */
static void end_call(struct dialect_writer *writer, struct item *item, struct buf *out)
{
    if (is_custom(item)) {
        OWN(arena) struct arena arena = {0};
        delta_event(writer, item, writer_input(item->text, &arena), out);
    } else if (!str_trim(item->text).size) {
        item->text = STR("{}");
        delta_event(writer, item, item->text, out);
    }
}

static void end_item(struct dialect_writer *writer, const char *status, struct buf *out)
{
    if (!writer->open)
        return;
    char id[120];
    struct item item = item_of(writer, status, id, sizeof id);
    struct words words = words_of(&item);
    if (item.kind == ITEM_CALL)
        end_call(writer, &item, out);
    struct json_writer json = begin_inner(writer, words.done, &item, out);
    if (is_custom(&item))
        writer_put_input(item.text, &json);
    else
        json_set_str(&json, words.done_key, item.text);
    end_text_event(&item, &json);
    part_event(writer, words.part_done, &item, out);
    item_event(writer, "response.output_item.done", &item, false, out);
    if (writer->items.size)
        buf_byte(&writer->items, ',');
    struct json_writer kept = {.out = &writer->items};
    put_item(&item, false, &kept);
    writer->open = false;
    writer->block++;
}

static void begin_item(struct dialect_writer *writer, const struct trace_delta *delta,
                       struct buf *out)
{
    end_item(writer, "completed", out);
    writer->open = true;
    writer->open_kind = delta->kind;
    buf_clear(&writer->piece);
    buf_clear(&writer->call_id);
    buf_clear(&writer->call_name);
    buf_str_append(&writer->call_id, delta->id);
    buf_str_append(&writer->call_name, delta->name);
    char id[120];
    struct item item = item_of(writer, "in_progress", id, sizeof id);
    item_event(writer, "response.output_item.added", &item, true, out);
    part_event(writer, words_of(&item).part_added, &item, out);
}

void responses_write_delta(struct dialect_writer *writer, const struct trace_delta *delta,
                           struct buf *out)
{
    begin_response(writer, out);
    bool same = writer->open && kind_of(writer->open_kind) == kind_of(delta->kind);
    if (delta->kind == TRACE_DELTA_CALL || !same)
        begin_item(writer, delta, out);
    if (delta->kind == TRACE_DELTA_CALL) {
        writer->calls++;
        return;
    }
    buf_str_append(&writer->piece, delta->text);
    char id[120];
    struct item item = item_of(writer, "in_progress", id, sizeof id);
    /* A custom tool's text is inside JSON that is not whole yet: it comes with the item's end. */
    if (!is_custom(&item))
        delta_event(writer, &item, delta->text, out);
}

/* The thoughts of an item that is there as a whole, for clients that show them. */
static void write_summary(struct dialect_writer *writer, struct json item, struct buf *out)
{
    OWN(arena) struct arena arena = {0};
    struct str id = json_str(json_get(item, "id"), &arena);
    int64_t index = 0;
    JSON_EACH (part, json_get(item, "summary")) {
        struct json text = json_get(part.value, "text");
        if (json_type(text) != JSON_STRING)
            continue;
        struct json_writer json = begin_event(writer, "response.reasoning_summary_text.delta", out);
        json_set_str(&json, "item_id", id);
        json_set_int(&json, "output_index", writer->block);
        json_set_int(&json, "summary_index", index++);
        json_set_raw(&json, "delta", json_raw(text));
        end_event(&json);
    }
}

bool responses_write_opaque(struct dialect_writer *writer, const struct trace_message *message,
                            struct json items, struct buf *out)
{
    (void)message;
    static const char *const types[] = {"response.output_item.added", "response.output_item.done"};
    bool thoughts = false;
    begin_response(writer, out);
    JSON_EACH (item, items) {
        bool thinking = json_is(json_get(item.value, "type"), "reasoning");
        if (!writer_is_typed(item.value))
            continue;
        for (size_t i = 0; i < COUNT(types); i++) {
            struct json_writer json = begin_event(writer, types[i], out);
            json_set_int(&json, "output_index", writer->block);
            json_key(&json, "item");
            writer_put_item(item.value, &json);
            end_event(&json);
            if (thinking && i == 0)
                write_summary(writer, item.value, out);
        }
        if (writer->items.size)
            buf_byte(&writer->items, ',');
        writer_put_item(item.value, &(struct json_writer){.out = &writer->items});
        writer->block++;
        thoughts |= thinking;
    }
    return thoughts;
}

void responses_write_finish(struct dialect_writer *writer, enum trace_finish finish,
                            const struct trace_usage *usage, struct buf *out)
{
    begin_response(writer, out);
    const char *incomplete = incomplete_reason(finish);
    end_item(writer, incomplete ? "incomplete" : "completed", out);
    struct shell shell = shell_of(writer, incomplete ? "incomplete" : "completed");
    shell.incomplete = incomplete;
    shell.usage = usage;
    shell.with_usage = true;
    struct json_writer json =
        begin_event(writer, incomplete ? "response.incomplete" : "response.completed", out);
    json_key(&json, "response");
    put_response(&shell, &json);
    end_event(&json);
}

/* ---------------------------------------------------------------- whole */

struct row {
    struct buf items;
    const char *base; /* of ids */
    size_t count, total;
    bool cut; /* the last one is incomplete */
};

static void add_item(struct row *row, struct item *item)
{
    char id[120];
    snprintf(id, sizeof id, "%s_%.80s_%zu", prefix_of(item), row->base, row->count++);
    item->id = id;
    item->status = row->cut && row->count == row->total ? "incomplete" : "completed";
    if (item->kind == ITEM_CALL && !str_trim(item->text).size)
        item->text = STR("{}");
    if (row->items.size)
        buf_byte(&row->items, ',');
    struct json_writer json = {.out = &row->items};
    put_item(item, false, &json);
}

/* What the model server wants back, as it came. Whether its thoughts are among it. */
static bool add_opaque(struct row *row, struct str opaque)
{
    OWN(json_doc) struct json_doc doc = {0};
    bool thoughts = false;
    if (!writer_opaque(opaque, &doc))
        return false;
    JSON_EACH (item, json_root(&doc)) {
        if (!writer_is_typed(item.value))
            continue;
        if (row->items.size)
            buf_byte(&row->items, ',');
        buf_str_append(&row->items, json_raw(item.value));
        thoughts |= json_is(json_get(item.value, "type"), "reasoning");
    }
    return thoughts;
}

void responses_write_answer(const struct trace_request *request, const struct trace_answer *answer,
                            struct buf *out)
{
    OWN(mem) char *base = str_dup(answer->id);
    const struct trace_message *message = &answer->message;
    const char *incomplete = incomplete_reason(answer->finish);
    struct row row = {
        .base = base, .total = message->part_count + message->call_count, .cut = incomplete};
    bool thought = add_opaque(&row, message->opaque) || !message->reasoning.size;
    row.total += !thought;
    if (!thought)
        add_item(&row, &(struct item){.kind = ITEM_REASONING, .text = message->reasoning});
    for (size_t i = 0; i < message->part_count; i++) {
        bool refusal = message->parts[i].kind == TRACE_PART_REFUSAL;
        add_item(&row, &(struct item){.kind = refusal ? ITEM_REFUSAL : ITEM_MESSAGE,
                                      .text = message->parts[i].text});
    }
    for (size_t i = 0; i < message->call_count; i++) {
        const struct trace_tool_call *call = &message->calls[i];
        add_item(&row, &(struct item){.kind = ITEM_CALL,
                                      .text = call->arguments,
                                      .call_id = call->id,
                                      .name = call->name,
                                      .tool = writer_tool(request, call->name)});
    }
    struct shell shell = {.id = answer->id,
                          .model = answer->model.data ? answer->model : request->model,
                          .created_s = answer->created_s,
                          .status = incomplete ? "incomplete" : "completed",
                          .incomplete = incomplete,
                          .output = buf_str(&row.items),
                          .usage = &answer->usage,
                          .with_usage = true};
    struct json_writer json = {.out = out};
    put_response(&shell, &json);
    buf_deinit(&row.items);
}
