/* sample_trace.c - the same record in the trace shape that Verifiers-style trainers read: nodes,
 * each one message with the tokens it adds, and calls that point at the node they sampled.
 *
 * Where in a prompt each message begins is not known here, so that a prompt's new tokens stand on
 * the answer's node, before the sampled ones, unmasked; along every path the tokens of the nodes
 * are the prompt and the completion the model saw. Messages that carry no tokens of their own are
 * shared between paths; a turn whose tokens fork has nodes of its own from there on. */
#include <stdlib.h>

#include "base/mem.h"
#include "json/json.h"
#include "trace/sample_inner.h"

struct export
{
    struct samples *samples;
    struct map made;   /* place: exported parent and node of the tree -> exported node + 1 */
    uint32_t *answers; /* of each turn: the exported node; NONE */
    uint32_t count;
    struct json_writer *out;
};

/* ---------------------------------------------------------------- pieces */

static const char *role_name(enum trace_role role)
{
    return role == TRACE_DEVELOPER ? "system" : trace_role_name(role);
}

static bool is_plain(const struct trace_message *message)
{
    for (size_t i = 0; i < message->part_count; i++)
        if (message->parts[i].kind == TRACE_PART_IMAGE && message->parts[i].text.size)
            return false;
    return true;
}

static void set_content(struct export *export, const struct trace_message *message)
{
    struct json_writer *out = export->out;
    if (message->role == TRACE_ASSISTANT || is_plain(message)) {
        OWN(buf) struct buf text = {0};
        for (size_t i = 0; i < message->part_count; i++)
            if (message->parts[i].kind == TRACE_PART_TEXT ||
                message->parts[i].kind == TRACE_PART_REFUSAL)
                buf_str_append(&text, message->parts[i].text);
        if (text.size || message->role != TRACE_ASSISTANT)
            json_set_str(out, "content", text.size ? buf_str(&text) : STR(""));
        return;
    }
    json_key(out, "content");
    json_begin_array(out);
    for (size_t i = 0; i < message->part_count; i++) {
        const struct trace_part *part = &message->parts[i];
        bool image = part->kind == TRACE_PART_IMAGE && part->text.size;
        if (!image && part->kind != TRACE_PART_TEXT)
            continue;
        json_begin_object(out);
        json_set_text(out, "type", image ? "image_url" : "text");
        if (image) {
            json_key(out, "image_url");
            json_begin_object(out);
            json_set_str(out, "url", part->text);
            json_end_object(out);
        } else {
            json_set_str(out, "text", part->text);
        }
        json_end_object(out);
    }
    json_end_array(out);
}

static void set_message(struct export *export, const struct trace_message *message)
{
    struct json_writer *out = export->out;
    json_key(out, "message");
    json_begin_object(out);
    json_set_text(out, "role", role_name(message->role));
    if (message->role == TRACE_TOOL)
        json_set_str(out, "tool_call_id",
                     message->tool_call_id.data ? message->tool_call_id : STR(""));
    if (message->reasoning.size)
        json_set_str(out, "reasoning_content", message->reasoning);
    set_content(export, message);
    if (message->call_count) {
        json_key(out, "tool_calls");
        json_begin_array(out);
        for (size_t i = 0; i < message->call_count; i++) {
            json_begin_object(out);
            json_set_str(out, "id", message->calls[i].id);
            json_set_str(out, "name", message->calls[i].name);
            json_set_str(out, "arguments", message->calls[i].arguments);
            json_end_object(out);
        }
        json_end_array(out);
    }
    json_end_object(out);
}

/* ---------------------------------------------------------------- nodes */

static void set_tokens(struct export *export, const struct turn *turn, uint32_t at)
{
    struct json_writer *out = export->out;
    OWN(buf) struct buf seen = {0};
    size_t added = turn->prompt_count - turn->cut;
    turn_tokens(export->samples, at, turn_end(turn), &seen);
    const int32_t *ids = (const int32_t *)(const void *)seen.data;
    json_key(out, "token_ids");
    json_begin_array(out);
    for (size_t i = turn->cut; i < turn_end(turn); i++)
        json_put_int(out, ids[i]);
    json_end_array(out);
    json_key(out, "mask");
    json_begin_array(out);
    for (size_t i = 0; i < added + turn->id_count; i++)
        json_put_bool(out, i >= added);
    json_end_array(out);
    json_set_raw(out, "is_content", STR("[]"));
    json_key(out, "logprobs");
    json_begin_array(out);
    for (size_t i = 0; i < turn->id_count; i++)
        trace_float_write(turn->logprobs[i], out);
    json_end_array(out);
}

static uint32_t write_node(struct export *export, uint32_t parent, uint32_t node, uint32_t turn,
                           struct str when)
{
    const struct samples *samples = export->samples;
    const struct turn *sampled = turn == NONE ? NULL : &samples->turns[turn];
    struct json_writer *out = export->out;
    json_begin_object(out);
    if (parent != NONE)
        json_set_int(out, "parent", parent);
    set_message(export, &samples->nodes[node].message);
    json_set_bool(out, "sampled", sampled != NULL);
    json_set_double(out, "timestamp", trace_seconds(when));
    if (sampled && sampled->tokens) {
        set_tokens(export, sampled, turn);
    } else {
        json_set_raw(out, "token_ids", STR("[]"));
        json_set_raw(out, "mask", STR("[]"));
        json_set_raw(out, "is_content", STR("[]"));
        json_set_raw(out, "logprobs", STR("[]"));
    }
    json_end_object(out);
    return export->count++;
}

/* The node for a message of a prompt: one for each place, whoever asks. */
static uint32_t prompt_node(struct export *export, uint32_t parent, uint32_t node, struct str when)
{
    uint32_t place[2] = {parent, node};
    struct str key = str_make(place, sizeof place);
    uintptr_t found = (uintptr_t)map_get(&export->made, key);
    if (found)
        return (uint32_t)(found - 1);
    uint32_t made = write_node(export, parent, node, NONE, when);
    (void)map_put(&export->made, key, (void *)((uintptr_t)made + 1));
    return made;
}

static void write_turn(struct export *export, uint32_t at)
{
    const struct samples *samples = export->samples;
    const struct turn *turn = &samples->turns[at];
    uint32_t base = turn->tokens ? turn->base : turn->parent;
    if (base != NONE &&
        (export->answers[base] == NONE || (!turn->tokens && samples->turns[base].tokens)))
        base = NONE;
    uint32_t parent = base == NONE ? NONE : export->answers[base];
    uint32_t from = base == NONE ? 0 : samples->nodes[samples->turns[base].answer_node].depth;
    uint32_t depth = samples->nodes[turn->request_node].depth;
    from = from < depth ? from : depth;
    OWN(mem) uint32_t *path = mem_alloc((depth - from) * sizeof *path + 1);
    uint32_t node = turn->request_node;
    for (uint32_t i = depth - from; i-- > 0; node = samples->nodes[node].parent)
        path[i] = node;
    for (uint32_t i = 0; i < depth - from; i++)
        parent = prompt_node(export, parent, path[i], turn->accepted);
    export->answers[at] = write_node(export, parent, turn->answer_node, at, turn->done);
}

/* ---------------------------------------------------------------- calls */

static const char *endpoint(struct str dialect)
{
    if (str_is(dialect, "responses"))
        return "/responses";
    if (str_is(dialect, "messages"))
        return "/messages";
    if (str_is(dialect, "completions"))
        return "/completions";
    if (str_is(dialect, "google"))
        return ":generateContent";
    return "/chat/completions";
}

/* Cached tokens are counted apart in that shape. */
static void set_usage(struct json_writer *out, struct str raw)
{
    OWN(json_doc) struct json_doc doc = {0};
    struct trace_usage usage;
    if (!raw.size || json_read(&doc, raw, NULL, NULL) < 0 ||
        !trace_usage_read(json_root(&doc), &usage) || !usage.known)
        return;
    int64_t cached = usage.cached_tokens > 0 ? usage.cached_tokens : 0;
    json_key(out, "usage");
    json_begin_object(out);
    json_set_int(out, "prompt_tokens", usage.prompt_tokens - cached);
    json_set_int(out, "completion_tokens", usage.completion_tokens);
    if (cached)
        json_set_int(out, "cached_input_tokens", cached);
    if (usage.reasoning_tokens >= 0)
        json_set_int(out, "reasoning_tokens", usage.reasoning_tokens);
    json_end_object(out);
}

static void write_call(const struct export *export, uint32_t at)
{
    const struct turn *turn = &export->samples->turns[at];
    struct json_writer *out = export->out;
    json_begin_object(out);
    if (export->answers[at] != NONE)
        json_set_int(out, "node", export->answers[at]);
    if (turn->model.size)
        json_set_str(out, "model", turn->model);
    if (turn->sampling.size)
        json_set_raw(out, "sampling", turn->sampling);
    json_set_text(out, "endpoint", endpoint(turn->dialect));
    if (str_is(turn->finish, "stop") || str_is(turn->finish, "length") ||
        str_is(turn->finish, "tool_calls"))
        json_set_str(out, "finish_reason", turn->finish);
    set_usage(out, turn->usage);
    json_key(out, "time");
    json_begin_object(out);
    json_set_double(out, "start", trace_seconds(turn->accepted));
    json_set_double(out, "end", trace_seconds(turn->done));
    json_end_object(out);
    if (turn->error_kind.size) {
        json_key(out, "error");
        json_begin_object(out);
        json_set_str(out, "type", turn->error_kind);
        json_set_str(out, "message", turn->error.data ? turn->error : STR(""));
        json_end_object(out);
    }
    json_end_object(out);
}

static void write_tools(struct export *export)
{
    OWN(json_doc) struct json_doc doc = {0};
    struct json_writer *out = export->out;
    json_begin_array(out);
    if (export->samples->tools.size && json_read(&doc, export->samples->tools, NULL, NULL) == 0) {
        JSON_EACH (item, json_root(&doc)) {
            struct json parameters = json_get(item.value, "parameters");
            OWN(buf) struct buf tool = {0};
            struct json_edit edits[] = {{"parameters", json_type(parameters) == JSON_OBJECT
                                                           ? json_raw(parameters)
                                                           : STR("{}")}};
            json_splice(item.value, edits, 1, &tool);
            json_put_raw(out, buf_str(&tool));
        }
    }
    json_end_array(out);
}

/* ---------------------------------------------------------------- OpenEnv's turns */

static void set_turn_tokens(const struct turn *turn, bool whole, struct json_writer *out)
{
    json_key(out, "completion_token_ids");
    json_begin_array(out);
    for (size_t i = 0; whole && i < turn->id_count; i++)
        json_put_int(out, turn->ids[i]);
    json_end_array(out);
    json_key(out, "per_token_logps");
    json_begin_array(out);
    for (size_t i = 0; whole && i < turn->id_count; i++)
        trace_float_write(turn->logprobs[i], out);
    json_end_array(out);
    if (turn->tokens && !whole)
        json_set_bool(out, "tokens_left_out", true);
}

void samples_write_turns(struct samples *samples, size_t tokens_max, struct json_writer *out)
{
    size_t used = 0;
    uint32_t number = 0;
    json_begin_array(out);
    for (size_t i = 0; i < samples->turn_count; i++) {
        const struct turn *turn = &samples->turns[i];
        if (turn->excluded == EXCLUDED_SIDE)
            continue;
        double start = trace_seconds(turn->accepted), end = trace_seconds(turn->done);
        json_begin_object(out);
        json_set_int(out, "turn", number++);
        json_set_text(out, "call_id", turn->id);
        if (turn->finish.size)
            json_set_str(out, "finish_reason", turn->finish);
        else
            json_set_null(out, "finish_reason");
        json_set_raw(out, "completion_tokens", STR("[]"));
        used += turn->tokens ? turn->id_count : 0;
        set_turn_tokens(turn, turn->tokens && used <= tokens_max, out);
        json_set_double(out, "latency_s", end > start && start > 0 ? end - start : 0);
        json_set_double(out, "timestamp", start);
        if (turn->http_status)
            json_set_int(out, "upstream_status", turn->http_status);
        else
            json_set_null(out, "upstream_status");
        json_key(out, "upstream_error");
        if (turn->error_kind.size) {
            json_begin_object(out);
            json_set_str(out, "type", turn->error_kind);
            json_set_str(out, "message", turn->error.data ? turn->error : STR(""));
            json_end_object(out);
        } else {
            json_put_null(out);
        }
        json_end_object(out);
    }
    json_end_array(out);
}

void samples_write_nodes(struct samples *samples, struct json_writer *out)
{
    struct export export = {.samples = samples, .out = out};
    export.answers = mem_alloc(samples->turn_count * sizeof *export.answers + 1);
    for (size_t i = 0; i < samples->turn_count; i++)
        export.answers[i] = NONE;
    json_key(out, "tools");
    write_tools(&export);
    json_key(out, "nodes");
    json_begin_array(out);
    for (uint32_t i = 0; i < samples->turn_count; i++)
        if (!samples->turns[i].excluded)
            write_turn(&export, i);
    json_end_array(out);
    json_key(out, "calls");
    json_begin_array(out);
    for (uint32_t i = 0; i < samples->turn_count; i++)
        write_call(&export, i);
    json_end_array(out);
    map_deinit(&export.made);
    free(export.answers);
}
