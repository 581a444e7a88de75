/* fields.c - bodies of requests, read by a table: every member is known, of the right type and
 * within its bounds, or the error names it. */
#include <string.h>

#include "api/inner.h"
#include "base/err.h"

#define DEPTH_MAX 64
#define NODES_MAX (1u << 20)

static const struct api_field *find(const struct api_field *fields, size_t count, struct str name)
{
    for (size_t i = 0; i < count; i++)
        if (str_is(name, fields[i].name))
            return &fields[i];
    return NULL;
}

static int wrong(const struct api_field *field, struct err *err)
{
    return err_at(err, "%s", field->name);
}

static int read_field(const struct api_field *field, struct json value, void *base,
                      struct arena *arena, struct err *err)
{
    long long number;
    void *out = (char *)base + field->offset;
    if (json_type(value) == JSON_NULL)
        return 0;
    switch (field->type) {
    case API_NUMBER:
        if (!json_int(value, &number) || number < field->min || number > field->max) {
            err_set(err, ERR_INPUT, "'%s' is a number from %lld to %lld", field->name, field->min,
                    field->max);
            return wrong(field, err);
        }
        *(long long *)out = number;
        return 0;
    case API_TEXT: {
        struct str text = json_str(value, arena);
        if (json_type(value) != JSON_STRING || memchr(text.data ? text.data : "", 0, text.size)) {
            err_set(err, ERR_INPUT, "'%s' is a string", field->name);
            return wrong(field, err);
        }
        if (text.size > (size_t)field->max) {
            err_set(err, ERR_INPUT, "'%s' is longer than %lld bytes", field->name, field->max);
            return wrong(field, err);
        }
        *(const char **)out = arena_text(arena, text);
        return 0;
    }
    case API_BOOL:
        if (json_type(value) != JSON_TRUE && json_type(value) != JSON_FALSE) {
            err_set(err, ERR_INPUT, "'%s' is true or false", field->name);
            return wrong(field, err);
        }
        *(bool *)out = json_true(value);
        return 0;
    case API_VALUE:
    case API_OBJECT:
    case API_ARRAY:
    case API_TASK:
        *(struct json *)out = value;
        return 0;
    }
    return 0;
}

int api_read_object(struct json object, const struct api_field *fields, size_t count, void *base,
                    struct arena *arena, struct err *err)
{
    if (json_type(object) != JSON_OBJECT)
        return err_set(err, ERR_INPUT, "the body is not a JSON object");
    JSON_EACH (item, object) {
        struct str name = json_str(item.key, arena);
        const struct api_field *field = find(fields, count, name);
        if (!field) {
            err_set(err, ERR_INPUT, "there is no field '%.*s'", STR_ARGS(str_upto(name, 60)));
            return err_at(err, "%.*s", STR_ARGS(str_upto(name, 60)));
        }
        if (read_field(field, item.value, base, arena, err) < 0)
            return -1;
    }
    for (size_t i = 0; i < count; i++) {
        if (!fields[i].needed)
            continue;
        enum json_type type = json_type(json_get(object, fields[i].name));
        if (type == JSON_NONE || type == JSON_NULL) {
            err_set(err, ERR_INPUT, "the field '%s' is missing", fields[i].name);
            return wrong(&fields[i], err);
        }
    }
    return 0;
}

int api_read_json(struct str body, struct json_doc *doc, struct err *err)
{
    struct json_limits limits = {.depth_max = DEPTH_MAX, .nodes_max = NODES_MAX};
    if (json_read(doc, str_trim(body).size ? body : STR("{}"), &limits, err) == 0)
        return 0;
    err->kind = ERR_INPUT;
    return -1;
}

int api_read_body(struct str body, struct json_doc *doc, const struct api_field *fields,
                  size_t count, void *base, struct arena *arena, struct err *err)
{
    if (api_read_json(body, doc, err) < 0)
        return -1;
    return api_read_object(json_root(doc), fields, count, base, arena, err);
}
