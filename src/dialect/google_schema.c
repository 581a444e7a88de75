/* google_schema.c - a schema as Google's API has it, as a JSON schema.
 *
 * Theirs is OpenAPI's of old: types in capitals, `nullable` beside the type, counts written as
 * strings, an order of properties that means nothing elsewhere. Model servers that check or enforce
 * a schema refuse "OBJECT". Everything else is the same in both and stays as it is. */
#include <ctype.h>

#include "base/mem.h"
#include "dialect/google.h"

static void put_schema(struct json schema, struct json_writer *out);

static void put_type(struct json type, bool nullable, struct json_writer *out)
{
    OWN(arena) struct arena arena = {0};
    struct str name = json_str(type, &arena);
    OWN(buf) struct buf lower = {0};
    buf_str_append(&lower, name);
    for (size_t i = 0; i < lower.size; i++)
        lower.data[i] = (char)tolower((unsigned char)lower.data[i]);
    json_key(out, "type");
    if (!nullable) {
        json_put_str(out, buf_str(&lower));
        return;
    }
    json_begin_array(out);
    json_put_str(out, buf_str(&lower));
    json_put_text(out, "null");
    json_end_array(out);
}

/* An object of schemas by name, or an array of them. */
static void put_schemas(struct json schemas, struct json_writer *out)
{
    bool named = json_type(schemas) == JSON_OBJECT;
    if (named)
        json_begin_object(out);
    else
        json_begin_array(out);
    JSON_EACH (item, schemas) {
        OWN(arena) struct arena arena = {0};
        if (named)
            json_key_str(out, json_str(item.key, &arena));
        put_schema(item.value, out);
    }
    if (named)
        json_end_object(out);
    else
        json_end_array(out);
}

static bool is_one_of(struct json key, const char *const *names, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (json_is(key, names[i]))
            return true;
    return false;
}

/* 64-bit numbers are strings in the JSON of this vendor's protocols. */
static bool put_count(struct json value, struct json_writer *out)
{
    static const size_t digits_max = 18;
    OWN(arena) struct arena arena = {0};
    struct str text = json_str(value, &arena);
    long long number;
    if (!text.size || text.size > digits_max || !str_to_long(text, &number))
        return false;
    json_put_int(out, number);
    return true;
}

static void put_member(struct json_item item, bool nullable, struct json_writer *out)
{
    static const char *const left_out[] = {"nullable", "propertyOrdering", "property_ordering"};
    static const char *const single[] = {"items", "additionalProperties"};
    static const char *const several[] = {"properties", "anyOf", "prefixItems", "$defs", "defs"};
    static const char *const counts[] = {"minItems",  "maxItems",      "minLength",
                                         "maxLength", "minProperties", "maxProperties"};
    OWN(arena) struct arena arena = {0};
    enum json_type type = json_type(item.value);
    if (is_one_of(item.key, left_out, COUNT(left_out)))
        return;
    if (json_is(item.key, "type") && type == JSON_STRING) {
        if (!json_is(item.value, "TYPE_UNSPECIFIED"))
            put_type(item.value, nullable, out);
        return;
    }
    json_key_str(out, json_str(item.key, &arena));
    if (is_one_of(item.key, single, COUNT(single)))
        put_schema(item.value, out);
    else if (is_one_of(item.key, several, COUNT(several)) &&
             (type == JSON_OBJECT || type == JSON_ARRAY))
        put_schemas(item.value, out);
    else if (!is_one_of(item.key, counts, COUNT(counts)) || !put_count(item.value, out))
        json_put_raw(out, json_raw(item.value));
}

static void put_schema(struct json schema, struct json_writer *out)
{
    if (json_type(schema) != JSON_OBJECT) { /* additionalProperties: false */
        json_put_raw(out, json_raw(schema));
        return;
    }
    bool nullable = json_true(json_get(schema, "nullable"));
    json_begin_object(out);
    JSON_EACH (item, schema)
        put_member(item, nullable, out);
    json_end_object(out);
}

struct str google_schema(struct json schema, struct arena *arena)
{
    OWN(buf) struct buf text = {0};
    put_schema(schema, &(struct json_writer){.out = &text});
    return arena_str(arena, buf_str(&text));
}
