/* read.c - members of a request, with errors that name the place. See read.h. */
#include "dialect/read.h"

#include "base/err.h"
#include "dialect/dialect.h"

bool read_is_there(struct json value)
{
    return json_exists(value) && json_type(value) != JSON_NULL;
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

int read_skim_begin(struct read_context *context, struct json array, size_t front)
{
    struct dialect_skim *skim = context->skim;
    skim->array = json_raw(array);
    skim->front = front;
    skim->count = json_size(array);
    skim->ends = read_room(context, array, sizeof *skim->ends);
    if (!skim->ends)
        return -1;
    if (skim->known > skim->count || skim->known < 2 || skim->known_array != skim->array.data)
        skim->known = 0;
    if (!skim->known)
        return 0;
    memcpy(skim->ends, skim->known_ends, skim->known * sizeof *skim->ends);
    skim->blank = front + skim->ends[0];
    skim->blank_end = front + skim->ends[skim->known - 1];
    return 0;
}

bool read_skim_known(struct read_context *context, size_t at, size_t *count)
{
    const struct dialect_skim *skim = context->skim;
    if (at == 0 || at >= skim->known)
        return false;
    *count = skim->blank_end;
    return true;
}

void read_skim_end(struct read_context *context, size_t at, size_t count, bool open)
{
    struct dialect_skim *skim = context->skim;
    skim->ends[at] = open ? DIALECT_SKIM_OPEN : (uint32_t)(count - skim->front);
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

int64_t read_cap(int64_t max, struct json asked)
{
    long long number;
    return json_int(asked, &number) && number > 0 && number <= max ? 0 : max;
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
    for (size_t i = 0; i < size; i++) {
        struct json item = single ? value : json_at(value, i);
        if (json_type(item) != JSON_STRING)
            return read_fail_type(context, key, "a string or an array of strings");
        list[i] = json_str(item, context->arena);
        if (!list[i].data)
            return read_out_of_room(context);
    }
    *out = list;
    *count = size;
    return 0;
}
