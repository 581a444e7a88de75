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

static int read_field(const struct api_field *field, struct json value, struct arena *arena,
                      struct err *err)
{
    long long number;
    if (json_type(value) == JSON_NULL)
        return 0;
    switch (field->type) {
    case API_NUMBER:
        if (!json_int(value, &number) || number < field->min || number > field->max)
            return err_set(err, ERR_INPUT, "'%s' is a number from %lld to %lld", field->name,
                           field->min, field->max);
        *(long long *)field->out = number;
        return 0;
    case API_TEXT: {
        struct str text = json_str(value, arena);
        if (json_type(value) != JSON_STRING || memchr(text.data ? text.data : "", 0, text.size))
            return err_set(err, ERR_INPUT, "'%s' is a string", field->name);
        if (text.size > (size_t)field->max)
            return err_set(err, ERR_INPUT, "'%s' is longer than %lld bytes", field->name,
                           field->max);
        *(const char **)field->out = arena_text(arena, text);
        return 0;
    }
    case API_BOOL:
        if (json_type(value) != JSON_TRUE && json_type(value) != JSON_FALSE)
            return err_set(err, ERR_INPUT, "'%s' is true or false", field->name);
        *(bool *)field->out = json_true(value);
        return 0;
    case API_VALUE:
        *(struct json *)field->out = value;
        return 0;
    }
    return 0;
}

int api_read_object(struct json object, const struct api_field *fields, size_t count,
                    struct arena *arena, struct err *err)
{
    if (json_type(object) != JSON_OBJECT)
        return err_set(err, ERR_INPUT, "the body is not a JSON object");
    JSON_EACH (item, object) {
        struct str name = json_str(item.key, arena);
        const struct api_field *field = find(fields, count, name);
        if (!field)
            return err_set(err, ERR_INPUT, "there is no field '%.*s'",
                           STR_ARGS(str_upto(name, 60)));
        if (read_field(field, item.value, arena, err) < 0)
            return -1;
    }
    for (size_t i = 0; i < count; i++)
        if (fields[i].needed && !json_exists(json_get(object, fields[i].name)))
            return err_set(err, ERR_INPUT, "the field '%s' is missing", fields[i].name);
    return 0;
}

int api_read_body(struct str body, struct json_doc *doc, const struct api_field *fields,
                  size_t count, struct arena *arena, struct err *err)
{
    struct json_limits limits = {.depth_max = DEPTH_MAX, .nodes_max = NODES_MAX};
    if (json_read(doc, str_trim(body).size ? body : STR("{}"), &limits, err) < 0) {
        err->kind = ERR_INPUT;
        return -1;
    }
    return api_read_object(json_root(doc), fields, count, arena, err);
}
