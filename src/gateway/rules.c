/* rules.c - what an agent's spec says about its calls, applied to one: is it a turn of the
 * conversation, which parts of it differ from rollout to rollout for no reason, how is it kept
 * waiting. Pure functions; no rule knows which agent it is of. */
#include "gateway/rules.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "dialect/dialect.h"

#define NONCES_MAX 1000 /* in one body; the rest stays as it is */

/* ---------------------------------------------------------------- conditions */

/* '*' is anything, also nothing. */
static bool matches(struct str text, struct str pattern)
{
    size_t at = 0, from = 0, star = SIZE_MAX, resume = 0;
    while (at < text.size) {
        if (from < pattern.size && pattern.data[from] == '*') {
            star = from++;
            resume = at;
        } else if (from < pattern.size && pattern.data[from] == text.data[at]) {
            from++;
            at++;
        } else if (star != SIZE_MAX) {
            from = star + 1;
            at = ++resume;
        } else {
            return false;
        }
    }
    while (from < pattern.size && pattern.data[from] == '*')
        from++;
    return from == pattern.size;
}

static bool number_fits(long long value, struct str pattern)
{
    long long bound;
    bool least = str_starts(pattern, STR(">=")), most = str_starts(pattern, STR("<="));
    if (str_is(pattern, "*"))
        return true;
    if (str_is(pattern, "true") || str_is(pattern, "false"))
        return (value != 0) == str_is(pattern, "true");
    if (!str_to_long(str_from(pattern, least || most ? 2 : 0), &bound))
        return false;
    return least ? value >= bound : most ? value <= bound : value == bound;
}

/* Members by name, elements by number. */
static struct json follow(struct json value, struct str path)
{
    while (path.data && json_exists(value)) {
        struct str step = str_cut(&path, '.');
        long long index;
        if (json_type(value) == JSON_ARRAY && str_to_long(step, &index) && index >= 0)
            value = json_at(value, (size_t)index);
        else
            value = json_get_str(value, step);
    }
    return value;
}

static bool json_fits(struct json value, struct str pattern, struct arena *arena)
{
    long long number;
    switch (json_type(value)) {
    case JSON_NONE:
    case JSON_NULL:
        return false;
    case JSON_STRING:
        return matches(json_str(value, arena), pattern);
    case JSON_TRUE:
    case JSON_FALSE:
        return str_is(pattern, "*") || str_is(pattern, json_true(value) ? "true" : "false");
    case JSON_NUMBER:
        return json_int(value, &number) ? number_fits(number, pattern)
                                        : matches(json_raw(value), pattern);
    case JSON_ARRAY:
    case JSON_OBJECT:
        return str_is(pattern, "*") || number_fits((long long)json_size(value), pattern);
    }
    return false;
}

static const struct trace_message *find_message(const struct trace_request *request,
                                                enum trace_role role, bool last)
{
    const struct trace_message *found = NULL;
    for (size_t i = 0; i < request->message_count && (last || !found); i++)
        if (request->messages[i].role == role)
            found = &request->messages[i];
    return found;
}

static bool text_fits(const struct trace_message *message, struct str pattern, struct arena *arena)
{
    return message && matches(trace_message_text(message, arena), pattern);
}

static bool fits(const struct rules_scene *scene, const struct trace_condition *condition,
                 struct arena *arena)
{
    const struct trace_request *request = scene->request;
    struct str what = str_of(condition->what), pattern = str_of(condition->pattern);
    if (str_is(what, "path"))
        return matches(scene->path, pattern);
    if (str_is(what, "model"))
        return matches(request->model, pattern);
    if (scene->make_whole &&
        (str_is(what, "system") || str_is(what, "first") || str_is(what, "last")))
        scene->make_whole(scene->call);
    if (str_is(what, "system")) {
        const struct trace_message *message = find_message(request, TRACE_SYSTEM, false);
        if (!message)
            message = find_message(request, TRACE_DEVELOPER, false);
        return text_fits(message, pattern, arena);
    }
    if (str_is(what, "first") || str_is(what, "last"))
        return text_fits(find_message(request, TRACE_USER, str_is(what, "last")), pattern, arena);
    if (str_is(what, "max_tokens"))
        return request->sampling.tokens_max && number_fits(request->sampling.tokens_max, pattern);
    if (str_is(what, "messages"))
        return number_fits((long long)request->message_count, pattern);
    if (str_is(what, "tools"))
        return number_fits((long long)request->tool_count, pattern);
    if (str_is(what, "stream"))
        return number_fits(request->stream, pattern);
    if (str_starts(what, STR("header."))) {
        struct str value = scene->header(scene->exchange, condition->what + strlen("header."));
        return value.data && matches(value, pattern);
    }
    if (str_starts(what, STR("body.")))
        return json_fits(follow(scene->body, str_from(what, strlen("body."))), pattern, arena);
    return false;
}

const struct trace_side_rule *rules_side(const struct trace_rules *rules,
                                         const struct rules_scene *scene)
{
    OWN(arena) struct arena arena = {0};
    for (size_t i = 0; rules && i < rules->side_count; i++) {
        const struct trace_side_rule *rule = &rules->sides[i];
        size_t held = 0;
        while (held < rule->when_count && fits(scene, &rule->when[held], &arena))
            held++;
        if (held == rule->when_count)
            return rule;
    }
    return NULL;
}

/* ---------------------------------------------------------------- nonces */

static bool is_of(enum trace_chars chars, char byte)
{
    bool digit = byte >= '0' && byte <= '9';
    bool letter = (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z');
    switch (chars) {
    case TRACE_CHARS_DIGITS:
        return digit;
    case TRACE_CHARS_HEX:
        return digit || (byte >= 'a' && byte <= 'f') || (byte >= 'A' && byte <= 'F');
    case TRACE_CHARS_NUMBER:
        return digit || byte == '.';
    case TRACE_CHARS_WORD:
        return digit || letter || byte == '_' || byte == '-';
    }
    return false;
}

/* Where the next of its kind is, at or behind `from`; size 0: nowhere. */
static struct str next_nonce(const struct trace_nonce *nonce, struct str body, size_t from)
{
    struct str after = str_of(nonce->after), before = str_of(nonce->before);
    for (;;) {
        long at = str_find(str_from(body, from), after);
        if (at < 0)
            return STR_NONE;
        size_t start = from + (size_t)at + after.size, end = start;
        while (end < body.size && end - start <= nonce->size_max &&
               is_of(nonce->chars, body.data[end]))
            end++;
        if (end - start >= nonce->size_min && end - start <= nonce->size_max &&
            str_starts(str_from(body, end), before))
            return str_make(body.data + start, end - start);
        from = start;
    }
}

bool rules_canonical(const struct trace_rules *rules, struct str body, struct buf *out,
                     struct buf *notes)
{
    struct str *next;
    size_t at = 0, count = 0;
    if (!rules || !rules->nonce_count)
        return false;
    next = mem_zero(rules->nonce_count * sizeof *next);
    for (size_t i = 0; i < rules->nonce_count; i++)
        next[i] = next_nonce(&rules->nonces[i], body, 0);
    struct json_writer writer = {.out = notes};
    for (; count < NONCES_MAX; count++) {
        size_t first = rules->nonce_count;
        for (size_t i = 0; i < rules->nonce_count; i++) {
            const struct trace_nonce *nonce = &rules->nonces[i];
            if (next[i].size && next[i].data < body.data + at) /* inside another one */
                next[i] = next_nonce(nonce, body, at);
            if (next[i].size && (first == rules->nonce_count || next[i].data < next[first].data))
                first = i;
        }
        if (first == rules->nonce_count)
            break;
        struct str was = next[first];
        size_t start = (size_t)(was.data - body.data);
        if (!count)
            json_begin_array(&writer);
        buf_append(out, body.data + at, start - at);
        json_begin_object(&writer);
        json_set_text(&writer, "name", rules->nonces[first].name);
        json_set_int(&writer, "at", (long long)out->size);
        json_set_int(&writer, "size", (long long)strlen(rules->nonces[first].put));
        json_set_str(&writer, "was", was);
        json_end_object(&writer);
        buf_str_append(out, str_of(rules->nonces[first].put));
        at = start + was.size;
    }
    free(next);
    if (!count)
        return false;
    json_end_array(&writer);
    buf_append(out, body.data + at, body.size - at);
    return true;
}

int rules_restore(struct str body, struct json notes, struct buf *out)
{
    OWN(arena) struct arena arena = {0};
    size_t from = 0;
    JSON_EACH (item, notes) {
        long long at = json_int_or(json_get(item.value, "at"), -1);
        long long size = json_int_or(json_get(item.value, "size"), -1);
        if (at < (long long)from || size < 0 || (size_t)(at + size) > body.size)
            return -1;
        buf_append(out, body.data + from, (size_t)at - from);
        buf_str_append(out, json_str(json_get(item.value, "was"), &arena));
        from = (size_t)(at + size);
    }
    buf_append(out, body.data + from, body.size - from);
    return 0;
}

/* ---------------------------------------------------------------- signs of life */

void rules_keepalive(const struct trace_rules *rules, const struct dialect *dialect,
                     struct buf *out)
{
    switch (rules ? rules->keepalive : TRACE_KEEPALIVE_DIALECT) {
    case TRACE_KEEPALIVE_DIALECT:
        dialect_write_keepalive(dialect, out);
        return;
    case TRACE_KEEPALIVE_COMMENT:
        buf_str_append(out, STR(": keepalive\n\n"));
        return;
    case TRACE_KEEPALIVE_EVENT:
        dialect_write_keepalive_event(dialect, out);
        return;
    case TRACE_KEEPALIVE_DATA:
        buf_str_append(out, STR("data: {}\n\n"));
        return;
    case TRACE_KEEPALIVE_NONE:
        return;
    }
}
