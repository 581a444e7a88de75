/* gate_answer.c - what a trainer sends as an answer, in any accepted spelling, as one chat
 * completion; and the same for a piece of a stream. Pure functions.
 *
 *     {"choices": [{"message": {...}}]}      what engines answer
 *     {"message": {...}}                     just the message
 *     {"content": "...", "tool_calls": [..]} the message itself
 *     {"text": "...", "meta_info": {...}}    SGLang's own
 *
 * Token ids and log-probabilities stand in whichever place the engine puts them: the tables below
 * name them all. What is already in the plain form goes through byte for byte. What is wrong is
 * named by its field, so that the trainer can be told at once and the call is not spent. */
#include <math.h>
#include <stdio.h>

#include "base/mem.h"
#include "gateway/gate.h"
#include "json/json.h"

#define DEPTH_MAX 64
#define NODES_MAX (8u << 20)
#define CALLS_MAX 256

struct parts {
    bool whole; /* an answer; else a piece of a stream */
    struct json root, choice, message, meta;
    struct json content, calls, finish;
    bool plain; /* nothing has to be rewritten */
};

/* How a list holds its numbers. */
enum list_kind {
    LIST_NONE,
    LIST_PLAIN,   /* [1, 2] */
    LIST_ENTRIES, /* [{"logprob": -1, ...}] */
    LIST_PAIRS,   /* [[logprob, id, text]] */
};
struct token_list {
    enum list_kind kind;
    struct json list;
    const char *name;
};

static const char *const id_names[] = {"token_ids", "completion_token_ids", "output_ids",
                                       "output_token_ids"};
static const char *const prompt_names[] = {"prompt_token_ids", "prompt_ids", "input_ids"};
static const char *const logprob_names[] = {"completion_logprobs", "output_logprobs"};

static bool is_array(struct json value)
{
    return json_type(value) == JSON_ARRAY;
}

static bool is_nothing(struct json value)
{
    enum json_type type = json_type(value);
    return type == JSON_NONE || type == JSON_NULL;
}

/* ---------------------------------------------------------------- the message */

static int check_text(struct json object, const char *name, struct err *err)
{
    struct json value = json_get(object, name);
    if (is_nothing(value) || json_type(value) == JSON_STRING)
        return 0;
    return err_set(err, ERR_INPUT, "'%s' is not a string", name);
}

/* A call without arguments is one with an empty object of them: clients read them as JSON. */
static bool is_without(struct json arguments)
{
    return is_nothing(arguments) || json_is(arguments, "");
}

static int check_call(struct parts *parts, struct json call, size_t at, struct err *err)
{
    struct json function = json_get(call, "function"), custom = json_get(call, "custom");
    if (json_type(call) != JSON_OBJECT)
        return err_set(err, ERR_INPUT, "'tool_calls[%zu]' is not an object", at);
    if (json_type(custom) == JSON_OBJECT) { /* of a tool that takes free text */
        if (parts->whole && json_type(json_get(custom, "name")) != JSON_STRING)
            return err_set(err, ERR_INPUT, "'tool_calls[%zu].custom.name' is not a string", at);
        return check_text(custom, "name", err) < 0 ? -1 : check_text(custom, "input", err);
    }
    if (json_type(function) != JSON_OBJECT) {
        parts->plain = false; /* {"name", "arguments"} without a wrapping */
        function = call;
    }
    struct json name = json_get(function, "name"), arguments = json_get(function, "arguments");
    if (json_type(name) != JSON_STRING && (parts->whole || !is_nothing(name)))
        return err_set(err, ERR_INPUT, "'tool_calls[%zu].function.name' is not a string", at);
    if (json_type(arguments) == JSON_OBJECT || (parts->whole && is_without(arguments)))
        parts->plain = false;
    else if (!is_nothing(arguments) && json_type(arguments) != JSON_STRING)
        return err_set(err, ERR_INPUT,
                       "'tool_calls[%zu].function.arguments' is neither a string nor an object",
                       at);
    return 0;
}

/* Parts of an answer are texts; what else another dialect would put there would be lost. */
static int check_content(struct json content, struct err *err)
{
    size_t at = 0;
    if (json_type(content) != JSON_STRING && !is_array(content) && !is_nothing(content))
        return err_set(err, ERR_INPUT, "'content' is neither a string nor an array of parts");
    JSON_EACH (item, content) {
        if (json_type(json_get(item.value, "text")) != JSON_STRING)
            return err_set(err, ERR_INPUT,
                           "'content[%zu]' is not a part with a 'text'; calls of tools are in "
                           "'tool_calls'",
                           at);
        at++;
    }
    return 0;
}

static int check_message(struct parts *parts, struct err *err)
{
    if (check_content(parts->content, err) < 0)
        return -1;
    if (check_text(parts->message, "reasoning_content", err) < 0 ||
        check_text(parts->message, "reasoning", err) < 0 ||
        check_text(parts->message, "refusal", err) < 0)
        return -1;
    if (!is_nothing(parts->calls) && !is_array(parts->calls))
        return err_set(err, ERR_INPUT, "'tool_calls' is not an array");
    if (json_size(parts->calls) > CALLS_MAX)
        return err_set(err, ERR_INPUT, "'tool_calls' has more than %d entries", CALLS_MAX);
    size_t at = 0;
    JSON_EACH (item, parts->calls)
        if (check_call(parts, item.value, at++, err) < 0)
            return -1;
    return 0;
}

static int find_choice(struct parts *parts, struct err *err)
{
    struct json choices = json_get(parts->root, "choices");
    size_t count = json_size(choices);
    if (!is_array(choices))
        return err_set(err, ERR_INPUT, "'choices' is not an array");
    if (count > 1)
        return err_set(err, ERR_INPUT, "'choices' has %zu entries: a call has one answer", count);
    if (count == 0)
        return parts->whole ? err_set(err, ERR_INPUT, "'choices' is empty") : 0;
    parts->choice = json_at(choices, 0);
    if (json_type(parts->choice) != JSON_OBJECT)
        return err_set(err, ERR_INPUT, "'choices[0]' is not an object");
    struct json index = json_get(parts->choice, "index");
    parts->plain &= !json_exists(index) || json_int_or(index, -1) == 0; /* else made anew as 0 */
    const char *name = parts->whole ? "message" : "delta";
    parts->message = json_get(parts->choice, name);
    bool text = json_type(json_get(parts->choice, "text")) == JSON_STRING;
    if (json_type(parts->message) == JSON_OBJECT || text ||
        (!parts->whole && is_nothing(parts->message)))
        return 0;
    return err_set(err, ERR_INPUT, "'choices[0].%s' is not an object", name);
}

static bool says_nothing(struct json message)
{
    static const char *const names[] = {"content",   "tool_calls", "reasoning_content",
                                        "reasoning", "refusal",    "function_call"};
    for (size_t i = 0; i < COUNT(names); i++)
        if (json_exists(json_get(message, names[i])))
            return false;
    return true;
}

static int find_message(struct parts *parts, struct err *err)
{
    struct json root = parts->root;
    parts->meta = json_get(root, "meta_info");
    if (!is_nothing(json_get(root, "error")))
        return err_set(err, ERR_INPUT, "'error' is no answer: use .../fail for errors");
    if (!is_nothing(json_get(root, "choices"))) {
        parts->plain = true;
        if (find_choice(parts, err) < 0)
            return -1;
    } else {
        const char *name = parts->whole ? "message" : "delta";
        parts->message = json_get(root, name);
        if (is_nothing(parts->message))
            parts->message = root;
        else if (json_type(parts->message) != JSON_OBJECT)
            return err_set(err, ERR_INPUT, "'%s' is not an object", name);
        if (parts->whole && says_nothing(parts->message) && !json_exists(json_get(root, "text")))
            return err_set(err, ERR_INPUT,
                           "the answer has none of 'choices', 'message', 'content', 'tool_calls'");
    }
    parts->content = json_get(parts->message, "content");
    parts->calls = json_get(parts->message, "tool_calls");
    if (is_nothing(parts->content)) {
        struct json text = json_get(parts->choice, "text");
        parts->content = json_exists(text) ? text : json_get(root, "text");
        parts->plain &= !json_exists(parts->content);
    }
    struct json choice = json_exists(parts->choice) ? parts->choice : root;
    parts->finish = json_get(choice, "finish_reason");
    if (!json_exists(parts->finish))
        parts->finish = json_get(parts->meta, "finish_reason");
    if (json_type(parts->finish) == JSON_OBJECT)
        parts->finish = json_get(parts->finish, "type");
    if (!is_nothing(parts->finish) && json_type(parts->finish) != JSON_STRING)
        return err_set(err, ERR_INPUT, "'finish_reason' is not a string");
    if (json_is(parts->finish, "abort") || json_is(parts->finish, "error"))
        return err_set(err, ERR_INPUT,
                       "'finish_reason' says that the answer was broken off: that is none; use "
                       ".../release to have it made anew");
    if (json_is(parts->finish, ""))
        parts->finish = (struct json){0};
    if (parts->whole && is_nothing(parts->finish))
        parts->plain = false;
    return check_message(parts, err);
}

/* ---------------------------------------------------------------- tokens */

static struct token_list find_named(const struct parts *parts, const char *const *names,
                                    size_t count)
{
    for (size_t i = 0; i < count; i++) {
        struct json list = json_get(parts->choice, names[i]);
        if (!is_array(list))
            list = json_get(parts->root, names[i]);
        if (is_array(list))
            return (struct token_list){LIST_PLAIN, list, names[i]};
    }
    return (struct token_list){0};
}

static struct token_list find_pairs(const struct parts *parts, const char *name)
{
    struct json list = json_get(parts->meta, name);
    return is_array(list) ? (struct token_list){LIST_PAIRS, list, name} : (struct token_list){0};
}

static struct token_list find_logprobs(const struct parts *parts)
{
    struct json places[] = {json_get(parts->choice, "logprobs"), json_get(parts->root, "logprobs")};
    for (size_t i = 0; i < COUNT(places); i++) {
        struct json content = json_get(places[i], "content");
        struct json plain = json_get(places[i], "token_logprobs");
        if (is_array(content))
            return (struct token_list){LIST_ENTRIES, content, "logprobs.content"};
        if (is_array(plain))
            return (struct token_list){LIST_PLAIN, plain, "logprobs.token_logprobs"};
        if (is_array(places[i]))
            return (struct token_list){LIST_PLAIN, places[i], "logprobs"};
    }
    struct token_list list = find_named(parts, logprob_names, COUNT(logprob_names));
    return list.kind ? list : find_pairs(parts, "output_token_logprobs");
}

static struct json number_of(const struct token_list *list, struct json entry, bool id)
{
    switch (list->kind) {
    case LIST_PAIRS:
        return json_at(entry, id ? 1 : 0);
    case LIST_ENTRIES:
        return json_get(entry, id ? "token_id" : "logprob");
    case LIST_NONE:
    case LIST_PLAIN:
        return entry;
    }
    return entry;
}

/* What has the name of a list and is none would be lost. */
static int check_named(const struct parts *parts, const char *const *names, size_t count,
                       struct err *err)
{
    for (size_t i = 0; i < count; i++) {
        struct json places[] = {json_get(parts->choice, names[i]), json_get(parts->root, names[i])};
        for (size_t k = 0; k < COUNT(places); k++)
            if (!is_nothing(places[k]) && !is_array(places[k]))
                return err_set(err, ERR_INPUT, "'%s' is not an array", names[i]);
    }
    return 0;
}

static int check_list(const struct token_list *list, bool id, struct err *err)
{
    size_t at = 0;
    JSON_EACH (item, list->list) {
        struct json value = number_of(list, item.value, id);
        long long number;
        double logprob;
        if (id && (!json_int(value, &number) || number < 0 || number > INT32_MAX))
            return err_set(err, ERR_INPUT, "'%s[%zu]' is not a token id", list->name, at);
        if (!id && json_type(value) != JSON_NULL &&
            (!json_double(value, &logprob) || !isfinite((float)logprob)))
            return err_set(err, ERR_INPUT, "'%s[%zu]' is not a log-probability", list->name, at);
        at++;
    }
    return 0;
}

/* ---------------------------------------------------------------- writing */

static void write_call(const struct parts *parts, struct json call, size_t at,
                       struct json_writer *out)
{
    struct json function = json_get(call, "function");
    if (json_type(function) != JSON_OBJECT)
        function = call;
    struct json id = json_get(call, "id"), index = json_get(call, "index");
    struct json name = json_get(function, "name"), arguments = json_get(function, "arguments");
    json_begin_object(out);
    if (!parts->whole && json_exists(index))
        json_set_raw(out, "index", json_raw(index));
    else
        json_set_int(out, "index", (long long)at);
    if (json_type(id) == JSON_STRING)
        json_set_raw(out, "id", json_raw(id));
    if (json_type(json_get(call, "custom")) == JSON_OBJECT) {
        json_set_raw(out, "custom", json_raw(json_get(call, "custom")));
        json_end_object(out);
        return;
    }
    json_set_text(out, "type", "function");
    json_key(out, "function");
    json_begin_object(out);
    if (json_type(name) == JSON_STRING)
        json_set_raw(out, "name", json_raw(name));
    if (json_type(arguments) == JSON_OBJECT)
        json_set_str(out, "arguments", json_raw(arguments));
    else if (parts->whole && is_without(arguments))
        json_set_text(out, "arguments", "{}");
    else if (json_type(arguments) == JSON_STRING)
        json_set_raw(out, "arguments", json_raw(arguments));
    json_end_object(out);
    json_end_object(out);
}

static void write_message(const struct parts *parts, struct json_writer *out)
{
    static const char *const kept[] = {"reasoning_content", "reasoning", "reasoning_details",
                                       "refusal", "function_call"};
    json_begin_object(out);
    if (parts->whole)
        json_set_text(out, "role", "assistant");
    if (!is_nothing(parts->content))
        json_set_raw(out, "content", json_raw(parts->content));
    else if (parts->whole)
        json_set_null(out, "content");
    for (size_t i = 0; i < COUNT(kept); i++) {
        struct json value = json_get(parts->message, kept[i]);
        if (!is_nothing(value))
            json_set_raw(out, kept[i], json_raw(value));
    }
    if (json_size(parts->calls)) {
        json_key(out, "tool_calls");
        json_begin_array(out);
        size_t at = 0;
        JSON_EACH (item, parts->calls)
            write_call(parts, item.value, at++, out);
        json_end_array(out);
    }
    json_end_object(out);
}

static void write_ids(const char *key, const struct token_list *list, struct json_writer *out)
{
    if (!list->kind)
        return;
    if (list->kind == LIST_PLAIN) {
        json_set_raw(out, key, json_raw(list->list));
        return;
    }
    json_key(out, key);
    json_begin_array(out);
    JSON_EACH (item, list->list)
        json_put_raw(out, json_raw(number_of(list, item.value, true)));
    json_end_array(out);
}

static void write_logprobs(const struct token_list *list, struct json_writer *out)
{
    if (!list->kind)
        return;
    json_key(out, "logprobs");
    json_begin_object(out);
    if (list->kind == LIST_ENTRIES) {
        json_set_raw(out, "content", json_raw(list->list));
        json_end_object(out);
        return;
    }
    json_key(out, "content");
    json_begin_array(out);
    JSON_EACH (item, list->list) {
        json_begin_object(out);
        json_set_raw(out, "logprob", json_raw(number_of(list, item.value, false)));
        json_end_object(out);
    }
    json_end_array(out);
    json_end_object(out);
}

static void write_usage(const struct parts *parts, struct json_writer *out)
{
    struct json usage = json_get(parts->root, "usage");
    struct json prompt = json_get(parts->meta, "prompt_tokens");
    struct json completion = json_get(parts->meta, "completion_tokens");
    if (json_type(usage) == JSON_OBJECT) {
        json_set_raw(out, "usage", json_raw(usage));
    } else if (json_type(prompt) == JSON_NUMBER && json_type(completion) == JSON_NUMBER) {
        json_key(out, "usage");
        json_begin_object(out);
        json_set_raw(out, "prompt_tokens", json_raw(prompt));
        json_set_raw(out, "completion_tokens", json_raw(completion));
        json_end_object(out);
    }
}

/* Which version of the weights made which tokens, on the choice or beside it. */
static struct json find_versions(const struct parts *parts, const char *name)
{
    struct json value = json_get(parts->choice, name);
    return json_exists(value) ? value : json_get(parts->root, name);
}

static int check_versions(const struct parts *parts, struct err *err)
{
    struct json spans = find_versions(parts, "policy_versions");
    struct json one = find_versions(parts, "policy_version");
    long long from, to, version;
    if (!is_nothing(one) && !json_int(one, &version))
        return err_set(err, ERR_INPUT, "'policy_version' is a whole number");
    if (!is_nothing(spans) && json_type(spans) != JSON_ARRAY)
        return err_set(err, ERR_INPUT, "'policy_versions' is an array of [from, to, version]");
    JSON_EACH (item, spans)
        if (json_size(item.value) != 3 || !json_int(json_at(item.value, 0), &from) ||
            !json_int(json_at(item.value, 1), &to) || !json_int(json_at(item.value, 2), &version) ||
            from < 0 || to <= from)
            return err_set(err, ERR_INPUT,
                           "'policy_versions' is an array of [from, to, version], from before to");
    return 0;
}

static void write_versions(const struct parts *parts, struct json_writer *out)
{
    static const char *const names[] = {"policy_version", "policy_versions"};
    for (size_t i = 0; i < COUNT(names); i++) {
        struct json value = find_versions(parts, names[i]);
        if (!is_nothing(value))
            json_set_raw(out, names[i], json_raw(value));
    }
}

static void write_head(const struct parts *parts, struct json_writer *out)
{
    static const char *const kept[] = {"id", "model"};
    for (size_t i = 0; i < COUNT(kept); i++) {
        struct json value = json_get(parts->root, kept[i]);
        if (json_type(value) == JSON_STRING && (parts->message.at != parts->root.at))
            json_set_raw(out, kept[i], json_raw(value));
    }
}

static bool calls_something(const struct parts *parts)
{
    return json_size(parts->calls) ||
           json_type(json_get(parts->message, "function_call")) == JSON_OBJECT;
}

static int write_parts(const struct parts *parts, struct buf *to, struct err *err)
{
    if (check_named(parts, id_names, COUNT(id_names), err) < 0 ||
        check_named(parts, prompt_names, COUNT(prompt_names), err) < 0 ||
        check_named(parts, logprob_names, COUNT(logprob_names), err) < 0)
        return -1;
    struct token_list ids = find_named(parts, id_names, COUNT(id_names));
    if (!ids.kind)
        ids = find_pairs(parts, "output_token_logprobs");
    struct token_list prompt = find_named(parts, prompt_names, COUNT(prompt_names));
    if (!prompt.kind)
        prompt = find_pairs(parts, "input_token_logprobs");
    struct token_list logprobs = find_logprobs(parts);
    if (check_list(&ids, true, err) < 0 || check_list(&prompt, true, err) < 0 ||
        check_list(&logprobs, false, err) < 0 || check_versions(parts, err) < 0)
        return -1;
    bool usual =
        (!ids.kind || (ids.kind == LIST_PLAIN && ids.name == id_names[0] &&
                       is_array(json_get(parts->choice, id_names[0])))) &&
        (!prompt.kind || (prompt.kind == LIST_PLAIN && prompt.name == prompt_names[0])) &&
        (!logprobs.kind || (logprobs.kind == LIST_ENTRIES &&
                            is_array(json_get(json_get(parts->choice, "logprobs"), "content"))));
    usual = usual && !json_exists(json_get(parts->root, "policy_version")) &&
            !json_exists(json_get(parts->root, "policy_versions"));
    if (parts->plain && usual && !json_exists(parts->meta)) {
        buf_str_append(to, json_raw(parts->root));
        return 0;
    }
    struct json_writer out = {.out = to};
    json_begin_object(&out);
    write_head(parts, &out);
    json_key(&out, "choices");
    json_begin_array(&out);
    json_begin_object(&out);
    json_set_int(&out, "index", 0);
    json_key(&out, parts->whole ? "message" : "delta");
    write_message(parts, &out);
    write_logprobs(&logprobs, &out);
    write_ids("token_ids", &ids, &out);
    write_versions(parts, &out);
    if (!is_nothing(parts->finish))
        json_set_raw(&out, "finish_reason", json_raw(parts->finish));
    else if (parts->whole)
        json_set_text(&out, "finish_reason", calls_something(parts) ? "tool_calls" : "stop");
    json_end_object(&out);
    json_end_array(&out);
    write_ids("prompt_token_ids", &prompt, &out);
    write_usage(parts, &out);
    json_end_object(&out);
    return 0;
}

/* ---------------------------------------------------------------- the door */

static int read_root(struct json_doc *doc, struct str body, struct err *err)
{
    struct json_limits limits = {.depth_max = DEPTH_MAX, .nodes_max = NODES_MAX};
    if (json_read(doc, body, &limits, err) < 0) {
        if (err)
            err->kind = ERR_INPUT;
        return -1;
    }
    if (json_type(json_root(doc)) != JSON_OBJECT)
        return err_set(err, ERR_INPUT, "the answer is not a JSON object");
    return 0;
}

int gate_read_answer(struct str body, struct buf *out, struct err *err)
{
    OWN(json_doc) struct json_doc doc = {0};
    if (read_root(&doc, body, err) < 0)
        return -1;
    struct parts parts = {.whole = true, .root = json_root(&doc)};
    if (find_message(&parts, err) < 0)
        return -1;
    return write_parts(&parts, out, err);
}

int gate_read_chunk(struct str chunk, struct buf *out, bool *finished, struct err *err)
{
    OWN(json_doc) struct json_doc doc = {0};
    if (read_root(&doc, chunk, err) < 0)
        return -1;
    struct parts parts = {.root = json_root(&doc)};
    if (find_message(&parts, err) < 0)
        return -1;
    size_t before = out->size;
    buf_str_append(out, STR("data: "));
    if (write_parts(&parts, out, err) < 0) {
        out->size = before;
        return -1;
    }
    /* A pretty-printed chunk would be several lines of an event. */
    for (size_t i = before; i < out->size; i++)
        if (out->data[i] == '\n' || out->data[i] == '\r')
            out->data[i] = ' ';
    buf_str_append(out, STR("\n\n"));
    *finished |= !is_nothing(parts.finish);
    return 0;
}

/* ---------------------------------------------------------------- a stream of them */

void gate_lines_deinit(struct gate_lines *lines)
{
    buf_deinit(&lines->line);
    buf_deinit(&lines->data);
}

static int take_data(struct gate_lines *lines, struct str data, struct buf *out, struct err *err)
{
    data = str_trim(data);
    if (!data.size || str_is(data, "[DONE]"))
        return 0;
    return gate_read_chunk(data, out, &lines->finished, err);
}

static int take_line(struct gate_lines *lines, struct str line, struct buf *out, struct err *err)
{
    if (line.size && line.data[line.size - 1] == '\r')
        line.size--;
    if (line.size == 0) { /* the end of an event, if there was one */
        int result = take_data(lines, buf_str(&lines->data), out, err);
        buf_clear(&lines->data);
        return result;
    }
    if (str_starts(line, STR("data:"))) {
        if (lines->data.size)
            buf_byte(&lines->data, '\n');
        buf_str_append(&lines->data, str_from(line, 5));
        return 0;
    }
    if (line.data[0] == '{')
        return take_data(lines, line, out, err);
    if (line.data[0] == ':' || str_starts(line, STR("event:")) || str_starts(line, STR("id:")) ||
        str_starts(line, STR("retry:")) || str_trim(line).size == 0)
        return 0;
    return err_set(err, ERR_INPUT, "a line of the stream is neither JSON nor part of an event");
}

int gate_lines_feed(struct gate_lines *lines, struct str bytes, bool end, struct buf *out,
                    struct err *err)
{
    while (bytes.size) {
        long at = str_find_byte(bytes, '\n');
        struct str piece = at < 0 ? bytes : str_upto(bytes, (size_t)at);
        if (lines->line.size + lines->data.size + piece.size > GATE_LINE_BYTES_MAX)
            return err_set(err, ERR_LIMIT, "a line of the stream is longer than %u bytes",
                           GATE_LINE_BYTES_MAX);
        if (at < 0) {
            buf_str_append(&lines->line, piece);
            break;
        }
        bytes = str_from(bytes, (size_t)at + 1);
        int result;
        if (lines->line.size) {
            buf_str_append(&lines->line, piece);
            result = take_line(lines, buf_str(&lines->line), out, err);
            buf_clear(&lines->line);
        } else {
            result = take_line(lines, piece, out, err);
        }
        if (result < 0)
            return -1;
    }
    if (!end)
        return 0;
    if (take_line(lines, buf_str(&lines->line), out, err) < 0 ||
        take_line(lines, STR_NONE, out, err) < 0)
        return -1;
    if (!lines->finished)
        return err_set(err, ERR_INPUT, "the stream ended without a 'finish_reason'");
    return 0;
}
