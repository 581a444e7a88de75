/* spec.c - typed access to a TOML tree, and the search for keys nobody asked for.
 *
 * Every question marks the key as used and notes its name in the table. What is unused in the end
 * is a mistake of whoever wrote the file, and the names noted are the candidates for "did you
 * mean". */
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/mem.h"
#include "base/text.h"
#include "config/toml.h"
#include "json/json.h"

struct toml_asked {
    const char *name;
    struct toml_asked *next;
};

const char *toml_type_name(enum toml_type type)
{
    static const char *const names[] = {
        [TOML_STRING] = "a string",   [TOML_INTEGER] = "an integer", [TOML_FLOAT] = "a float",
        [TOML_BOOLEAN] = "a boolean", [TOML_DATETIME] = "a date",    [TOML_ARRAY] = "an array",
        [TOML_TABLE] = "a table",
    };
    return names[type];
}

/* Where the node is, as a dotted path: "limits.memory", "setup.1.run". */
static bool name_field(const struct toml_node *above, const struct toml_node *node, struct err *err)
{
    size_t number = 0;
    TOML_EACH(item, above)
    {
        if (item == node || name_field(item, node, err)) {
            if (item->key)
                err_below(err, "%s", item->key);
            else
                err_below(err, "%zu", number);
            return true;
        }
        number++;
    }
    return false;
}

int toml_error(const struct toml_node *node, struct err *err, const char *format, ...)
{
    char text[ERR_TEXT_MAX];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    err_set(err, ERR_INPUT, "%s:%u:%u: %s", node->toml->name, node->line, node->column, text);
    (void)name_field(node->toml->root, node, err);
    return -1;
}

static void note_asked(struct toml_node *table, const char *key)
{
    for (struct toml_asked *asked = table->asked; asked; asked = asked->next)
        if (strcmp(asked->name, key) == 0)
            return;
    struct toml_asked *asked = arena_alloc(&table->toml->arena, sizeof *asked);
    *asked = (struct toml_asked){arena_text(&table->toml->arena, str_of(key)), table->asked};
    table->asked = asked;
}

struct toml_node *toml_get(struct toml_node *table, const char *key)
{
    if (!table || table->type != TOML_TABLE)
        return NULL;
    note_asked(table, key);
    TOML_EACH(item, table)
    {
        if (strcmp(item->key, key) == 0) {
            item->used = true;
            return item;
        }
    }
    return NULL;
}

static int wrong_type(const struct toml_node *node, const char *key, const char *wanted,
                      struct err *err)
{
    return toml_error(node, err, "'%s' must be %s, not %s", key, wanted,
                      toml_type_name(node->type));
}

static int check_text(const struct toml_node *node, const char *key, const char *wanted,
                      struct err *err)
{
    if (node->type != TOML_STRING)
        return wrong_type(node, key, wanted, err);
    if (memchr(node->text, 0, node->text_size))
        return toml_error(node, err, "'%s' must not hold a NUL character", key);
    return 0;
}

int toml_text(struct toml_node *table, const char *key, const char **out, struct err *err)
{
    struct toml_node *node = toml_get(table, key);
    if (!node)
        return 0;
    if (check_text(node, key, "a string", err) < 0)
        return -1;
    *out = node->text;
    return 1;
}

static int check_range(const struct toml_node *node, const char *key, long long value,
                       long long min, long long max, long long *out, struct err *err)
{
    if (value < min || value > max)
        return toml_error(node, err, "'%s' must be between %lld and %lld, not %lld", key, min, max,
                          value);
    *out = value;
    return 1;
}

int toml_int(struct toml_node *table, const char *key, long long min, long long max, long long *out,
             struct err *err)
{
    struct toml_node *node = toml_get(table, key);
    if (!node)
        return 0;
    if (node->type != TOML_INTEGER)
        return wrong_type(node, key, "an integer", err);
    return check_range(node, key, node->integer, min, max, out, err);
}

int toml_double(struct toml_node *table, const char *key, double *out, struct err *err)
{
    struct toml_node *node = toml_get(table, key);
    if (!node)
        return 0;
    if (node->type != TOML_INTEGER && node->type != TOML_FLOAT)
        return wrong_type(node, key, "a number", err);
    if (!isfinite(node->real))
        return toml_error(node, err, "'%s' must be a finite number", key);
    *out = node->real;
    return 1;
}

int toml_bool(struct toml_node *table, const char *key, bool *out, struct err *err)
{
    struct toml_node *node = toml_get(table, key);
    if (!node)
        return 0;
    if (node->type != TOML_BOOLEAN)
        return wrong_type(node, key, "true or false", err);
    *out = node->truth;
    return 1;
}

int toml_duration_ms(struct toml_node *table, const char *key, long long min, long long max,
                     long long *out, struct err *err)
{
    struct toml_node *node = toml_get(table, key);
    if (!node)
        return 0;
    long long value = node->integer;
    if (node->type != TOML_INTEGER) {
        if (check_text(node, key, "a duration like \"30s\"", err) < 0)
            return -1;
        if (!str_to_duration_ms(str_of(node->text), &value))
            return toml_error(node, err,
                              "'%s' must be a duration like \"30s\" or \"5m\", not \"%s\"", key,
                              node->text);
    }
    return check_range(node, key, value, min, max, out, err);
}

int toml_size(struct toml_node *table, const char *key, unsigned long long min,
              unsigned long long max, unsigned long long *out, struct err *err)
{
    struct toml_node *node = toml_get(table, key);
    if (!node)
        return 0;
    unsigned long long value = (unsigned long long)node->integer;
    if (node->type == TOML_INTEGER) {
        if (node->integer < 0)
            return toml_error(node, err, "'%s' must not be negative", key);
    } else {
        if (check_text(node, key, "a size like \"2G\"", err) < 0)
            return -1;
        if (!str_to_size(str_of(node->text), &value))
            return toml_error(node, err, "'%s' must be a size like \"512M\" or \"2G\", not \"%s\"",
                              key, node->text);
    }
    if (value < min || value > max)
        return toml_error(node, err, "'%s' must be between %llu and %llu bytes, not %llu", key, min,
                          max, value);
    *out = value;
    return 1;
}

int toml_choice(struct toml_node *table, const char *key, const char *const *names, int *out,
                struct err *err)
{
    struct toml_node *node = toml_get(table, key);
    if (!node)
        return 0;
    if (check_text(node, key, "a string", err) < 0)
        return -1;
    OWN(buf) struct buf all = {0};
    size_t count = 0;
    for (; names[count]; count++) {
        if (strcmp(names[count], node->text) == 0) {
            *out = (int)count;
            return 1;
        }
        buf_format(&all, "%s\"%s\"", count ? ", " : "", names[count]);
    }
    const char *nearest = text_nearest(node->text, names, count);
    return toml_error(node, err, "'%s' must be one of %s, not \"%s\"%s%s%s", key, buf_text(&all),
                      node->text, nearest ? "; did you mean \"" : "", nearest ? nearest : "",
                      nearest ? "\"?" : "");
}

int toml_texts(struct toml_node *table, const char *key, const char *const **out, size_t *count,
               struct err *err)
{
    struct toml_node *node = toml_get(table, key);
    if (!node)
        return 0;
    bool single = node->type == TOML_STRING;
    if (!single && node->type != TOML_ARRAY)
        return wrong_type(node, key, "an array of strings", err);
    size_t size = single ? 1 : node->count;
    const char **list = arena_alloc(&table->toml->arena, (size + 1) * sizeof *list);
    size_t at = 0;
    for (struct toml_node *item = single ? node : node->first; at < size; item = item->next) {
        if (check_text(item, key, "an array of strings", err) < 0)
            return -1;
        list[at++] = item->text;
    }
    *out = list;
    if (count)
        *count = size;
    return 1;
}

static const char *environment_entry(struct toml_node *item, const char *key, struct err *err)
{
    struct arena *arena = &item->toml->arena;
    if (!item->key[0] || strchr(item->key, '=')) {
        (void)toml_error(item, err, "'%s' is no name for an environment variable", item->key);
        return NULL;
    }
    if (item->type == TOML_INTEGER)
        return arena_format(arena, "%s=%lld", item->key, item->integer);
    if (item->type == TOML_BOOLEAN)
        return arena_format(arena, "%s=%s", item->key, item->truth ? "true" : "false");
    OWN(mem) char *name = mem_format("%s.%s", key, item->key);
    if (check_text(item, name, "a string", err) < 0)
        return NULL;
    return arena_format(arena, "%s=%s", item->key, item->text);
}

int toml_environment(struct toml_node *table, const char *key, const char *const **out,
                     size_t *count, struct err *err)
{
    struct toml_node *node = NULL;
    int found = toml_table(table, key, &node, err);
    if (found <= 0)
        return found;
    const char **list = arena_alloc(&node->toml->arena, (node->count + 1) * sizeof *list);
    size_t at = 0;
    TOML_EACH(item, node)
    {
        item->used = true;
        list[at] = environment_entry(item, key, err);
        if (!list[at++])
            return -1;
    }
    *out = list;
    if (count)
        *count = node->count;
    return 1;
}

int toml_table(struct toml_node *table, const char *key, struct toml_node **out, struct err *err)
{
    struct toml_node *node = toml_get(table, key);
    if (!node)
        return 0;
    if (node->type != TOML_TABLE)
        return wrong_type(node, key, "a table", err);
    *out = node;
    return 1;
}

int toml_tables(struct toml_node *table, const char *key, struct toml_node **out, struct err *err)
{
    struct toml_node *node = toml_get(table, key);
    if (!node)
        return 0;
    if (node->type == TOML_TABLE) {
        /* The node becomes the array, in its place among its neighbours; the table moves inside. */
        struct toml_node *only = arena_alloc(&node->toml->arena, sizeof *only);
        *only = *node;
        only->next = NULL;
        node->type = TOML_ARRAY;
        node->count = 1;
        node->first = node->last = only;
        node->asked = NULL;
    }
    if (node->type != TOML_ARRAY)
        return wrong_type(node, key, "an array of tables", err);
    TOML_EACH(item, node)
    if (item->type != TOML_TABLE)
        return wrong_type(item, key, "an array of tables", err);
    *out = node;
    return 1;
}

static int missing(const struct toml_node *table, const char *key, struct err *err)
{
    char field[ERR_FIELD_MAX];
    if (table->key)
        toml_error(table, err, "'%s' is missing in [%s]", key, table->key);
    else
        toml_error(table, err, "'%s' is missing", key);
    if (!err)
        return -1;
    memcpy(field, err->field, sizeof field);
    return err_at(err, "%.60s%s%.30s", field, field[0] ? "." : "", key);
}

int toml_need_text(struct toml_node *table, const char *key, const char **out, struct err *err)
{
    int found = toml_text(table, key, out, err);
    return found == 0 ? missing(table, key, err) : found < 0 ? -1 : 0;
}

int toml_need_table(struct toml_node *table, const char *key, struct toml_node **out,
                    struct err *err)
{
    int found = toml_table(table, key, out, err);
    return found == 0 ? missing(table, key, err) : found < 0 ? -1 : 0;
}

void toml_use_all(struct toml_node *node)
{
    if (!node)
        return;
    node->used = true;
    TOML_EACH(item, node)
    toml_use_all(item);
}

static int unknown_key(const struct toml_node *table, const struct toml_node *item, struct err *err)
{
    const char *names[64];
    size_t count = 0;
    for (struct toml_asked *asked = table->asked; asked && count < COUNT(names);
         asked = asked->next)
        names[count++] = asked->name;
    const char *nearest = text_nearest(item->key, names, count);
    err_set(err, ERR_INPUT, "%s:%u:%u: unknown key '%s'%s%s%s%s%s%s", item->toml->name,
            item->key_line, item->key_column, item->key, table->key ? " in [" : "",
            table->key ? table->key : "", table->key ? "]" : "", nearest ? "; did you mean '" : "",
            nearest ? nearest : "", nearest ? "'?" : "");
    (void)name_field(item->toml->root, item, err);
    return -1;
}

static int check_unused(const struct toml_node *node, struct err *err)
{
    TOML_EACH(item, node)
    {
        if (node->type == TOML_TABLE && !item->used)
            return unknown_key(node, item, err);
        if ((item->type == TOML_TABLE || item->type == TOML_ARRAY) && check_unused(item, err) < 0)
            return -1;
    }
    return 0;
}

int toml_check_unused(struct toml *toml, struct err *err)
{
    return check_unused(toml->root, err);
}

void toml_write_json(const struct toml_node *node, struct json_writer *out)
{
    switch (node->type) {
    case TOML_STRING:
    case TOML_DATETIME:
        json_put_str(out, str_make(node->text, node->text_size));
        return;
    case TOML_INTEGER:
        json_put_int(out, node->integer);
        return;
    case TOML_FLOAT:
        json_put_double(out, node->real);
        return;
    case TOML_BOOLEAN:
        json_put_bool(out, node->truth);
        return;
    case TOML_ARRAY:
        json_begin_array(out);
        TOML_EACH(item, node)
        toml_write_json(item, out);
        json_end_array(out);
        return;
    case TOML_TABLE:
        json_begin_object(out);
        TOML_EACH(item, node)
        {
            json_key(out, item->key);
            toml_write_json(item, out);
        }
        json_end_object(out);
        return;
    }
}
