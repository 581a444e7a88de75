/* reader.h - private to the config room: the TOML reader's place in the source. */
#ifndef CONFIG_READER_H
#define CONFIG_READER_H

#include "base/err.h"
#include "base/map.h"
#include "config/toml.h"

struct toml_reader {
    struct toml *toml;
    const char *at, *end;
    uint32_t line;
    const char *counted; /* columns are counted from the last place that was asked for */
    uint32_t column;     /* of `counted` */
    unsigned depth;
    struct map members; /* table pointer and key -> node, while reading */
    struct err *err;
};

struct toml_place {
    uint32_t line, column;
};

struct toml_place toml_here(struct toml_reader *reader);
int toml_fail(struct toml_reader *reader, struct toml_place place, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* The same at the current place. */
#define TOML_FAIL(reader, ...) toml_fail(reader, toml_here(reader), __VA_ARGS__)

/* At most one line ending: LF or CR LF. Returns whether there was one. */
bool toml_take_newline(struct toml_reader *reader);
/* The byte `ahead` of the current one, or 0 at the end. */
static inline char toml_peek(const struct toml_reader *reader, size_t ahead)
{
    return (size_t)(reader->end - reader->at) > ahead ? reader->at[ahead] : 0;
}

/* toml_scalar.c: at the first quote; at the first byte of a bare scalar. */
int toml_read_string(struct toml_reader *reader, bool multiline_allowed, struct str *out);
int toml_read_scalar(struct toml_reader *reader, struct toml_node *node);

#endif
