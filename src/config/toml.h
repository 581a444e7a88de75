/* toml.h - an own TOML 1.0 reader, and a small typed way to read specs (agents, backends, tasks,
 * settings).
 *
 * toml_read() makes a tree of typed nodes; each knows the line and column of its key and of its
 * value. The same tree can be filled from JSON, so that a spec read from either is checked by the
 * same code. All memory belongs to the document, which does not borrow the source. Errors read
 * "file.toml:12:5: ...".
 *
 * Reading a spec: ask for each key the spec may have (absent keys leave the target alone), then
 * call toml_check_unused(): the first key that nobody asked for is an error that suggests the
 * nearest one that was.
 *
 *     OWN(toml) struct toml toml = {0};
 *     if (toml_read_file(&toml, path, err) < 0)
 *         return -1;
 *     const char *name = NULL;
 *     if (toml_need_text(toml.root, "name", &name, err) < 0 ||
 *         toml_text(toml.root, "summary", &summary, err) < 0 || toml_check_unused(&toml, err) < 0)
 *         return -1; */
#ifndef CONFIG_TOML_H
#define CONFIG_TOML_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/str.h"

struct err;
struct json;
struct json_writer;

#define TOML_BYTES_MAX (1024 * 1024)
#define TOML_DEPTH_MAX 64

enum toml_type {
    TOML_STRING,
    TOML_INTEGER,
    TOML_FLOAT,
    TOML_BOOLEAN,
    TOML_DATETIME, /* kept as its text */
    TOML_ARRAY,
    TOML_TABLE,
};

struct toml;
struct toml_asked;

struct toml_node {
    enum toml_type type;
    uint32_t line, column;         /* of the value; from 1 */
    uint32_t key_line, key_column; /* of the key; 0 for elements of arrays and the root */
    const char *key;               /* NULL for elements of arrays and the root */
    const char *text; /* STRING, DATETIME: terminated; may hold NUL inside only as \u0000 */
    size_t text_size;
    long long integer;
    double real; /* FLOAT; also set for INTEGER */
    bool truth;
    bool used;
    uint8_t made;            /* private to the reader */
    size_t count;            /* members or elements */
    struct toml_node *first; /* in order of the file */
    struct toml_node *last;
    struct toml_node *next;
    struct toml_asked *asked; /* names somebody asked for in this table */
    struct toml *toml;
};

struct toml {
    struct arena arena;
    char *name; /* for errors */
    struct toml_node *root;
};

/* `toml` is zeroed. `name` is used in errors. Also an error: duplicate keys, invalid UTF-8, more
 * than TOML_BYTES_MAX bytes or TOML_DEPTH_MAX levels. */
int toml_read(struct toml *toml, const char *name, struct str source, struct err *err);
int toml_read_file(struct toml *toml, const char *path, struct err *err);
/* The same tree from a JSON object. null members count as absent. Line and column are those in the
 * JSON text. */
int toml_from_json(struct toml *toml, const char *name, struct json object, struct err *err);
void toml_deinit(struct toml *toml);
static inline void own_toml(struct toml *toml)
{
    toml_deinit(toml);
}

const char *toml_type_name(enum toml_type type); /* "a string", "an array", ... */
/* Sets `err` to "file:line:column: <text>", the place of the value. Returns -1. `node` is not NULL.
 */
int toml_error(const struct toml_node *node, struct err *err, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* --- typed access. Each marks the key as used.
 * Returns 1 and sets *out when the key is there, 0 and leaves *out alone when it is not, -1 and
 * sets `err` when it has another type. `table` may be NULL (everything is absent). Texts live as
 * long as the document and hold no NUL byte. */
int toml_text(struct toml_node *table, const char *key, const char **out, struct err *err);
int toml_int(struct toml_node *table, const char *key, long long min, long long max, long long *out,
             struct err *err);
int toml_double(struct toml_node *table, const char *key, double *out,
                struct err *err); /* integers too */
int toml_bool(struct toml_node *table, const char *key, bool *out, struct err *err);
/* A string like "30s" or an integer number of milliseconds. */
int toml_duration_ms(struct toml_node *table, const char *key, long long min, long long max,
                     long long *out, struct err *err);
/* A string like "2G" or an integer number of bytes. */
int toml_size(struct toml_node *table, const char *key, unsigned long long min,
              unsigned long long max, unsigned long long *out, struct err *err);
/* One of `names` (NULL-terminated); *out is its index. */
int toml_choice(struct toml_node *table, const char *key, const char *const *names, int *out,
                struct err *err);
/* An array of strings as a NULL-terminated list (count may be NULL); a single string counts as a
 * list of one. */
int toml_texts(struct toml_node *table, const char *key, const char *const **out, size_t *count,
               struct err *err);
/* A table of strings as "NAME=value" entries, NULL-terminated: environments. Integers and booleans
 * are written out. */
int toml_environment(struct toml_node *table, const char *key, const char *const **out,
                     size_t *count, struct err *err);
int toml_table(struct toml_node *table, const char *key, struct toml_node **out, struct err *err);
/* An array whose elements are all tables; walk with TOML_EACH. A single table counts as a list of
 * one (and is one from then on). */
int toml_tables(struct toml_node *table, const char *key, struct toml_node **out, struct err *err);
/* Any type. NULL when absent. Marks the key (not what is inside it) as used. */
struct toml_node *toml_get(struct toml_node *table, const char *key);

/* The same, but absence is an error too: 0 or -1. */
int toml_need_text(struct toml_node *table, const char *key, const char **out, struct err *err);
int toml_need_table(struct toml_node *table, const char *key, struct toml_node **out,
                    struct err *err);

#define TOML_EACH(item, container)                                                                 \
    for (struct toml_node *item = (container) ? (container)->first : NULL; item; item = item->next)

/* For tables with free keys: everything below is fine. `node` may be NULL. */
void toml_use_all(struct toml_node *node);
/* The first key nobody asked for, with its place and the nearest name that was asked for. */
int toml_check_unused(struct toml *toml, struct err *err);

/* The node as JSON. */
void toml_write_json(const struct toml_node *node, struct json_writer *out);

#endif
