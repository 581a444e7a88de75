/* read.c - members of a request, with errors that name the place. See read.h. */
#include "dialect/read.h"

#include "base/buf.h"
#include "base/err.h"
#include "base/mem.h"
#include "dialect/dialect.h"

bool read_is_there(struct json value)
{
    return json_exists(value) && json_type(value) != JSON_NULL;
}

struct str read_object(struct json value)
{
    return json_type(value) == JSON_OBJECT ? json_raw(value) : STR_NONE;
}

int read_out_of_room(struct read_context *context)
{
    return err_set(context->err, ERR_LIMIT, "the request is too large to be read");
}

int read_fail_type(struct read_context *context, const char *key, const char *wanted)
{
    return err_set(context->err, ERR_INPUT, "%s%s%s must be %s",
                   context->where ? context->where : "", context->where ? "." : "", key, wanted);
}

int read_text(struct read_context *context, struct json object, const char *key, bool needed,
              struct str *out)
{
    struct json value = json_get(object, key);
    if (!read_is_there(value) && !needed)
        return 0;
    if (json_type(value) != JSON_STRING)
        return read_fail_type(context, key, "a string");
    *out = json_str(value, context->arena);
    return out->data ? 0 : read_out_of_room(context);
}

bool read_skim_front(struct read_context *context, struct json front)
{
    struct dialect_skim *skim = context->skim;
    skim->front_value = json_raw(front);
    skim->front = 1;
    if (!skim->known_front.data || !str_equal(skim->front_value, skim->known_front))
        return false;
    skim->blank_end = 1;
    return true;
}

bool read_skim_tools(struct read_context *context, struct json tools, size_t *count)
{
    struct dialect_skim *skim = context->skim;
    skim->tools = json_raw(tools);
    if (!skim->known_tools.data || !str_equal(skim->tools, skim->known_tools))
        return false;
    *count = skim->known_tool_count;
    skim->tools_blank = true;
    return true;
}

int read_skim_begin(struct read_context *context, struct json array, size_t front)
{
    struct dialect_skim *skim = context->skim;
    skim->array = json_raw(array);
    skim->array_value = array;
    skim->front = front;
    skim->count = json_size(array);
    skim->ends = read_room(context, array, sizeof *skim->ends);
    if (!skim->ends)
        return -1;
    if (skim->known > skim->count || skim->known_array != skim->array.data)
        skim->known = 0;
    if (!skim->known)
        return 0;
    memcpy(skim->ends, skim->known_ends, skim->known * sizeof *skim->ends);
    if (!skim->blank_end)
        skim->blank = front; /* which was read */
    skim->blank_end = front + skim->ends[skim->known - 1].messages;
    return 0;
}

struct json_item read_skim_first(struct read_context *context, struct json array, size_t *at,
                                 size_t *count)
{
    struct dialect_skim *skim = context->skim;
    *at = skim->known;
    if (skim->known)
        *count = skim->blank_end;
    if (skim->known && skim->known_end) {
        skim->rest = json_from(array, skim->known, skim->known_end);
        return skim->rest;
    }
    skim->rest = json_first(array);
    for (size_t i = 0; i < skim->known; i++)
        skim->rest = json_following(skim->rest);
    return skim->rest;
}

void read_skim_end(struct read_context *context, size_t at, size_t count, bool open)
{
    struct dialect_skim *skim = context->skim;
    skim->ends[at].messages = open ? DIALECT_SKIM_OPEN : (uint32_t)(count - skim->front);
}

void *read_room(struct read_context *context, struct json array, size_t size)
{
    void *room = arena_alloc(context->arena, json_size(array) * size);
    if (!room)
        (void)read_out_of_room(context);
    return room;
}

int read_number(struct read_context *context, struct json body, const char *key, bool *has,
                double *out)
{
    struct json value = json_get(body, key);
    if (!read_is_there(value))
        return 0;
    if (!json_double(value, out))
        return read_fail_type(context, key, "a number");
    *has = true;
    return 0;
}

int read_tokens_max(struct read_context *context, struct json body, const char *key, int64_t *out)
{
    struct json value = json_get(body, key);
    long long number;
    if (!read_is_there(value))
        return 0;
    if (!json_int(value, &number) || number < 1)
        return read_fail_type(context, key, "a positive integer");
    *out = number;
    return 0;
}

int read_tokens_max_or_none(struct read_context *context, struct json body, const char *key,
                            int64_t *out)
{
    long long number;
    if (!json_int(json_get(body, key), &number) || number != 0)
        return read_tokens_max(context, body, key, out);
    *out = 1;
    return 0;
}

int64_t read_cap(int64_t max, struct json asked)
{
    long long number;
    return json_int(asked, &number) && number >= 0 && number <= max ? 0 : max;
}

struct str read_bool(struct json value)
{
    bool is_one = json_type(value) == JSON_TRUE || json_type(value) == JSON_FALSE;
    return is_one ? json_raw(value) : STR_NONE;
}

int read_flag(struct read_context *context, struct json body, const char *key, bool *out)
{
    struct json value = json_get(body, key);
    if (!read_is_there(value))
        return 0;
    if (json_type(value) != JSON_TRUE && json_type(value) != JSON_FALSE)
        return read_fail_type(context, key, "true or false");
    *out = json_true(value);
    return 0;
}

/* The grammar is there for the model to read: no other server enforces it. */
static void put_grammar(struct json format, struct json_writer *out)
{
    OWN(arena) struct arena arena = {0};
    OWN(buf) struct buf text = {0};
    struct json inner = json_get(format, "grammar"); /* where chat completions have it */
    struct json grammar = json_type(inner) == JSON_OBJECT ? inner : format;
    struct str definition = json_str(json_get(grammar, "definition"), &arena);
    if (!definition.size)
        return;
    buf_str_append(&text, json_str(json_get(grammar, "syntax"), &arena));
    buf_str_append(&text, STR(" grammar:\n"));
    buf_str_append(&text, definition);
    json_set_str(out, "description", str_trim(buf_str(&text)));
}

struct str read_custom_schema(struct read_context *context, struct json format)
{
    OWN(buf) struct buf schema = {0};
    struct json_writer out = {.out = &schema};
    json_begin_object(&out);
    json_set_text(&out, "type", "object");
    json_key(&out, "properties");
    json_begin_object(&out);
    json_key(&out, "input");
    json_begin_object(&out);
    json_set_text(&out, "type", "string");
    put_grammar(format, &out);
    json_end_object(&out);
    json_end_object(&out);
    json_set_raw(&out, "required", STR("[\"input\"]"));
    json_end_object(&out);
    return arena_str(context->arena, buf_str(&schema));
}

struct str read_custom_input(struct read_context *context, struct str text)
{
    OWN(buf) struct buf out = {0};
    buf_format(&out, "{\"input\":");
    json_quote(&out, text);
    buf_byte(&out, '}');
    return arena_str(context->arena, buf_str(&out));
}

static void begin_settings(struct read_settings *settings)
{
    if (settings->text.size)
        return;
    settings->out = (struct json_writer){.out = &settings->text};
    json_begin_object(&settings->out);
}

void read_settings_put(struct read_settings *settings, const char *key, struct json value)
{
    if (!read_is_there(value))
        return;
    begin_settings(settings);
    json_set_raw(&settings->out, key, json_raw(value));
}

void read_settings_effort(struct read_settings *settings, struct json effort)
{
    static const char *const words[][2] = {{"low", "LOW"}, {"medium", "MEDIUM"}, {"high", "HIGH"}};
    for (size_t i = 0; i < COUNT(words); i++) {
        if (!json_is(effort, words[i][0]) && !json_is(effort, words[i][1]))
            continue;
        begin_settings(settings);
        json_set_text(&settings->out, "reasoning_effort", words[i][0]);
    }
}

void read_settings_format(struct read_settings *settings, struct json name, struct str schema,
                          struct json strict)
{
    bool has_schema = schema.size > 0;
    struct json_writer *out = &settings->out;
    begin_settings(settings);
    json_key(out, "response_format");
    json_begin_object(out);
    json_set_text(out, "type", has_schema ? "json_schema" : "json_object");
    if (has_schema) {
        json_key(out, "json_schema");
        json_begin_object(out);
        json_set_raw(out, "name",
                     json_type(name) == JSON_STRING ? json_raw(name) : STR("\"answer\""));
        json_set_raw(out, "schema", schema);
        if (read_is_there(strict))
            json_set_raw(out, "strict", json_raw(strict));
        json_end_object(out);
    }
    json_end_object(out);
}

int read_settings_end(struct read_context *context, struct read_settings *settings, struct str *out)
{
    if (settings->text.size) {
        json_end_object(&settings->out);
        *out = arena_str(context->arena, buf_str(&settings->text));
    }
    bool lost = settings->text.size && !out->data;
    buf_deinit(&settings->text);
    return lost ? read_out_of_room(context) : 0;
}

int read_texts(struct read_context *context, struct json body, const char *key,
               const struct str **out, size_t *count)
{
    struct json value = json_get(body, key);
    if (!read_is_there(value))
        return 0;
    bool single = json_type(value) == JSON_STRING;
    if (!single && json_type(value) != JSON_ARRAY)
        return read_fail_type(context, key, "a string or an array of strings");
    size_t size = single ? 1 : json_size(value);
    struct str *list = arena_alloc(context->arena, size * sizeof *list);
    if (!list)
        return read_out_of_room(context);
    if (single && !(list[0] = json_str(value, context->arena)).data)
        return read_out_of_room(context);
    size_t at = 0;
    JSON_EACH (item, single ? (struct json){0} : value) {
        if (json_type(item.value) != JSON_STRING)
            return read_fail_type(context, key, "a string or an array of strings");
        list[at] = json_str(item.value, context->arena);
        if (!list[at++].data)
            return read_out_of_room(context);
    }
    *out = list;
    *count = size;
    return 0;
}

int read_chosen_tool(struct read_context *context, struct str name, struct trace_request *out)
{
    OWN(buf) struct buf text = {0};
    buf_format(&text, "{\"type\":\"function\",\"function\":{\"name\":");
    json_quote(&text, name);
    buf_format(&text, "}}");
    out->tool_choice = arena_str(context->arena, buf_str(&text));
    return out->tool_choice.data ? 0 : read_out_of_room(context);
}
