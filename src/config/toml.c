/* toml.c - source to tree: TOML 1.0, expression by expression.
 *
 * Each line is a comment, a header ([a.b] or [[a.b]]) or a key and its value. What may be defined
 * twice, and how, is TOML's hard part; each table remembers how it was made, and one rule decides
 * per use:
 *
 *     made by     [header] may name it   [header] may pass through   dotted key may extend it
 *     implied     yes, once              yes                         yes (then it counts as dotted)
 *     header      no                     yes                         no
 *     dotted      no                     yes                         yes
 *     inline      no                     no                          no
 *     [[array]]   [[...]] appends        yes, into its last table    no
 *
 * While reading, members are found through one map keyed by table and name, so that a hostile file
 * costs no more than its size. */
#include "config/toml.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/buf.h"
#include "base/file.h"
#include "base/mem.h"
#include "config/reader.h"
#include "json/json.h"

enum made { MADE_VALUE, MADE_IMPLIED, MADE_HEADER, MADE_DOTTED, MADE_INLINE, MADE_TABLES };

struct key_part {
    struct str name;
    struct toml_place place;
};

struct key {
    struct key_part parts[TOML_DEPTH_MAX];
    size_t count;
};

/* ---------------------------------------------------------------- places and errors */

struct toml_place toml_here(struct toml_reader *reader)
{
    const char *to = reader->at < reader->end ? reader->at : reader->end;
    for (; reader->counted < to; reader->counted++)
        if (((unsigned char)*reader->counted & 0xc0) != 0x80)
            reader->column++;
    return (struct toml_place){reader->line, reader->column};
}

int toml_fail(struct toml_reader *reader, struct toml_place place, const char *format, ...)
{
    char text[ERR_TEXT_MAX];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return err_set(reader->err, ERR_INPUT, "%s:%u:%u: %s", reader->toml->name, place.line,
                   place.column, text);
}

bool toml_take_newline(struct toml_reader *reader)
{
    if (toml_peek(reader, 0) == '\n')
        reader->at++;
    else if (toml_peek(reader, 0) == '\r' && toml_peek(reader, 1) == '\n')
        reader->at += 2;
    else
        return false;
    reader->line++;
    reader->column = 1;
    reader->counted = reader->at;
    return true;
}

static void skip_blanks(struct toml_reader *reader)
{
    while (toml_peek(reader, 0) == ' ' || toml_peek(reader, 0) == '\t')
        reader->at++;
}

static int skip_comment(struct toml_reader *reader)
{
    if (toml_peek(reader, 0) != '#')
        return 0;
    for (; reader->at < reader->end; reader->at++) {
        unsigned char byte = (unsigned char)*reader->at;
        if (byte == '\n' || (byte == '\r' && toml_peek(reader, 1) == '\n'))
            return 0;
        if ((byte < 0x20 && byte != '\t') || byte == 0x7f)
            return TOML_FAIL(reader, "a control character inside a comment");
    }
    return 0;
}

/* Blanks, comments and line ends, as between elements of an array. */
static int skip_space(struct toml_reader *reader)
{
    do {
        skip_blanks(reader);
        if (skip_comment(reader) < 0)
            return -1;
    } while (toml_take_newline(reader));
    return 0;
}

/* ---------------------------------------------------------------- the tree */

static struct toml_node *new_node(struct toml *toml, enum toml_type type, struct toml_place place)
{
    struct toml_node *node = arena_alloc(&toml->arena, sizeof *node);
    *node =
        (struct toml_node){.type = type, .line = place.line, .column = place.column, .toml = toml};
    return node;
}

static void append(struct toml_node *parent, struct toml_node *child)
{
    if (parent->last)
        parent->last->next = child;
    else
        parent->first = child;
    parent->last = child;
    parent->count++;
}

static struct str member_id(const struct toml_node *table, struct str name, struct buf *id)
{
    buf_clear(id);
    buf_append(id, &table, sizeof table);
    buf_str_append(id, name);
    return buf_str(id);
}

static struct toml_node *find_member(struct toml_reader *reader, const struct toml_node *table,
                                     struct str name)
{
    OWN(buf) struct buf id = {0};
    return map_get(&reader->members, member_id(table, name, &id));
}

static void add_member(struct toml_reader *reader, struct toml_node *table, struct toml_node *child,
                       const struct key_part *part)
{
    OWN(buf) struct buf id = {0};
    child->key = arena_text(&reader->toml->arena, part->name);
    child->key_line = part->place.line;
    child->key_column = part->place.column;
    append(table, child);
    map_put(&reader->members, member_id(table, part->name, &id), child);
}

static struct toml_node *add_table(struct toml_reader *reader, struct toml_node *parent,
                                   const struct key_part *part, enum made made)
{
    struct toml_node *table = new_node(reader->toml, TOML_TABLE, part->place);
    table->made = made;
    add_member(reader, parent, table, part);
    return table;
}

static int fail_twice(struct toml_reader *reader, const struct key_part *part,
                      const struct toml_node *before)
{
    return toml_fail(reader, part->place, "'%.*s' was defined before, at line %u",
                     STR_ARGS(part->name), before->key_line ? before->key_line : before->line);
}

/* ---------------------------------------------------------------- keys */

static bool is_bare(char byte)
{
    return (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z') ||
           (byte >= '0' && byte <= '9') || byte == '_' || byte == '-';
}

static int read_key_part(struct toml_reader *reader, struct key_part *part)
{
    part->place = toml_here(reader);
    char byte = toml_peek(reader, 0);
    if (byte == '"' || byte == '\'') {
        if (toml_read_string(reader, false, &part->name) < 0)
            return -1;
        if (memchr(part->name.data, 0, part->name.size))
            return toml_fail(reader, part->place, "a key with a NUL character");
        return 0;
    }
    const char *start = reader->at;
    while (reader->at < reader->end && is_bare(*reader->at))
        reader->at++;
    if (reader->at == start)
        return TOML_FAIL(reader, "a key is expected here");
    part->name = str_make(start, (size_t)(reader->at - start));
    return 0;
}

static int read_key(struct toml_reader *reader, struct key *key)
{
    key->count = 0;
    for (;;) {
        skip_blanks(reader);
        if (key->count == TOML_DEPTH_MAX)
            return TOML_FAIL(reader, "more than %d levels", TOML_DEPTH_MAX);
        if (read_key_part(reader, &key->parts[key->count++]) < 0)
            return -1;
        skip_blanks(reader);
        if (toml_peek(reader, 0) != '.')
            return 0;
        reader->at++;
    }
}

/* ---------------------------------------------------------------- values */

static int read_value(struct toml_reader *reader, struct toml_node **out);

static int read_array(struct toml_reader *reader, struct toml_node *array)
{
    reader->at++;
    for (;;) {
        if (skip_space(reader) < 0)
            return -1;
        if (toml_peek(reader, 0) == ']')
            break;
        struct toml_node *element;
        if (read_value(reader, &element) < 0)
            return -1;
        append(array, element);
        if (skip_space(reader) < 0)
            return -1;
        if (toml_peek(reader, 0) == ']')
            break;
        if (toml_peek(reader, 0) != ',')
            return TOML_FAIL(reader, "a comma or ] is expected here");
        reader->at++;
    }
    reader->at++;
    return 0;
}

static int read_pair(struct toml_reader *reader, struct toml_node *table);

static void freeze(struct toml_node *table)
{
    table->made = MADE_INLINE;
    TOML_EACH(child, table)
    if (child->type == TOML_TABLE && child->made == MADE_DOTTED)
        freeze(child);
}

static int read_inline_table(struct toml_reader *reader, struct toml_node *table)
{
    table->made = MADE_DOTTED; /* open until its brace closes */
    reader->at++;
    skip_blanks(reader);
    while (toml_peek(reader, 0) != '}' || table->count) {
        if (read_pair(reader, table) < 0)
            return -1;
        skip_blanks(reader);
        if (toml_peek(reader, 0) == '}')
            break;
        if (toml_peek(reader, 0) != ',')
            return TOML_FAIL(reader,
                             "a comma or } is expected here; inline tables stay on one line");
        reader->at++;
        skip_blanks(reader);
    }
    reader->at++;
    freeze(table);
    return 0;
}

static int read_text(struct toml_reader *reader, struct toml_node *node)
{
    struct str text;
    if (toml_read_string(reader, true, &text) < 0)
        return -1;
    node->type = TOML_STRING;
    node->text = text.data;
    node->text_size = text.size;
    return 0;
}

static int read_value(struct toml_reader *reader, struct toml_node **out)
{
    if (reader->depth >= TOML_DEPTH_MAX)
        return TOML_FAIL(reader, "more than %d levels", TOML_DEPTH_MAX);
    struct toml_node *node = new_node(reader->toml, TOML_STRING, toml_here(reader));
    int result;
    reader->depth++;
    switch (toml_peek(reader, 0)) {
    case '"':
    case '\'':
        result = read_text(reader, node);
        break;
    case '[':
        node->type = TOML_ARRAY;
        result = read_array(reader, node);
        break;
    case '{':
        node->type = TOML_TABLE;
        result = read_inline_table(reader, node);
        break;
    default:
        result = toml_read_scalar(reader, node);
    }
    reader->depth--;
    *out = node;
    return result;
}

/* One key, "=" and value into `table`. */
static int read_pair(struct toml_reader *reader, struct toml_node *table)
{
    OWN(mem) struct key *key = mem_alloc(sizeof *key);
    if (read_key(reader, key) < 0)
        return -1;
    if (toml_peek(reader, 0) != '=')
        return TOML_FAIL(reader, "an = is expected after the key");
    reader->at++;
    skip_blanks(reader);
    if (reader->depth + key->count > TOML_DEPTH_MAX)
        return toml_fail(reader, key->parts[0].place, "more than %d levels", TOML_DEPTH_MAX);
    for (size_t i = 0; i + 1 < key->count; i++) {
        struct toml_node *next = find_member(reader, table, key->parts[i].name);
        if (!next) {
            next = add_table(reader, table, &key->parts[i], MADE_DOTTED);
        } else if (next->type == TOML_TABLE &&
                   (next->made == MADE_DOTTED || next->made == MADE_IMPLIED)) {
            next->made = MADE_DOTTED;
        } else {
            return fail_twice(reader, &key->parts[i], next);
        }
        table = next;
    }
    const struct key_part *last = &key->parts[key->count - 1];
    struct toml_node *before = find_member(reader, table, last->name);
    if (before)
        return fail_twice(reader, last, before);
    struct toml_node *value;
    reader->depth += (unsigned)key->count - 1;
    if (read_value(reader, &value) < 0)
        return -1;
    reader->depth -= (unsigned)key->count - 1;
    add_member(reader, table, value, last);
    return 0;
}

/* ---------------------------------------------------------------- headers */

/* The table that the part before the last names, made when it is not there. */
static struct toml_node *walk_header(struct toml_reader *reader, const struct key *key)
{
    struct toml_node *table = reader->toml->root;
    for (size_t i = 0; i + 1 < key->count; i++) {
        struct toml_node *next = find_member(reader, table, key->parts[i].name);
        if (!next)
            next = add_table(reader, table, &key->parts[i], MADE_IMPLIED);
        if (next->type == TOML_ARRAY && next->made == MADE_TABLES)
            next = next->last;
        if (next->type != TOML_TABLE || next->made == MADE_INLINE) {
            (void)fail_twice(reader, &key->parts[i], next);
            return NULL;
        }
        table = next;
    }
    return table;
}

static int open_table(struct toml_reader *reader, const struct key *key, struct toml_node **out)
{
    struct toml_node *parent = walk_header(reader, key);
    if (!parent)
        return -1;
    const struct key_part *last = &key->parts[key->count - 1];
    struct toml_node *table = find_member(reader, parent, last->name);
    if (!table) {
        table = add_table(reader, parent, last, MADE_HEADER);
    } else if (table->type == TOML_TABLE && table->made == MADE_IMPLIED) {
        table->made = MADE_HEADER;
        table->line = table->key_line = last->place.line;
        table->column = table->key_column = last->place.column;
    } else {
        return fail_twice(reader, last, table);
    }
    *out = table;
    return 0;
}

static int open_tables(struct toml_reader *reader, const struct key *key, struct toml_node **out)
{
    struct toml_node *parent = walk_header(reader, key);
    if (!parent)
        return -1;
    const struct key_part *last = &key->parts[key->count - 1];
    struct toml_node *array = find_member(reader, parent, last->name);
    if (!array) {
        array = new_node(reader->toml, TOML_ARRAY, last->place);
        array->made = MADE_TABLES;
        add_member(reader, parent, array, last);
    } else if (array->type != TOML_ARRAY || array->made != MADE_TABLES) {
        return fail_twice(reader, last, array);
    }
    struct toml_node *table = new_node(reader->toml, TOML_TABLE, last->place);
    table->made = MADE_HEADER;
    append(array, table);
    *out = table;
    return 0;
}

/* At the opening bracket. */
static int read_header(struct toml_reader *reader, struct toml_node **current)
{
    bool many = toml_peek(reader, 1) == '[';
    reader->at += many ? 2 : 1;
    OWN(mem) struct key *key = mem_alloc(sizeof *key);
    if (read_key(reader, key) < 0)
        return -1;
    if (toml_peek(reader, 0) != ']' || (many && toml_peek(reader, 1) != ']'))
        return TOML_FAIL(reader, "%s is expected here", many ? "]]" : "]");
    reader->at += many ? 2 : 1;
    reader->depth = (unsigned)key->count;
    return many ? open_tables(reader, key, current) : open_table(reader, key, current);
}

/* ---------------------------------------------------------------- documents */

static int read_document(struct toml_reader *reader)
{
    struct toml_node *current = reader->toml->root;
    for (;;) {
        if (skip_space(reader) < 0)
            return -1;
        if (reader->at >= reader->end)
            return 0;
        if (*reader->at == '[' ? read_header(reader, &current) < 0 : read_pair(reader, current) < 0)
            return -1;
        skip_blanks(reader);
        if (skip_comment(reader) < 0)
            return -1;
        if (reader->at < reader->end && !toml_take_newline(reader))
            return TOML_FAIL(reader, "the line should end here");
    }
}

int toml_read(struct toml *toml, const char *name, struct str source, struct err *err)
{
    toml->name = mem_dup(name);
    if (source.size > TOML_BYTES_MAX)
        return err_set(err, ERR_LIMIT, "%s: larger than 1 MB", name);
    toml->root = new_node(toml, TOML_TABLE, (struct toml_place){1, 1});
    toml->root->made = MADE_HEADER;
    if (source.size == 0)
        return 0;
    struct toml_reader reader = {.toml = toml,
                                 .at = source.data,
                                 .end = source.data + source.size,
                                 .line = 1,
                                 .counted = source.data,
                                 .column = 1,
                                 .err = err};
    if (str_starts(source, STR("\xef\xbb\xbf")))
        reader.at = reader.counted = source.data + 3;
    if (!str_is_utf8(source))
        return err_set(err, ERR_INPUT, "%s: this is not UTF-8 text", name);
    int result = read_document(&reader);
    map_deinit(&reader.members);
    return result;
}

int toml_read_file(struct toml *toml, const char *path, struct err *err)
{
    OWN(buf) struct buf source = {0};
    if (file_read(path, TOML_BYTES_MAX, &source, err) < 0)
        return -1;
    return toml_read(toml, path, buf_str(&source), err);
}

void toml_deinit(struct toml *toml)
{
    arena_deinit(&toml->arena);
    free(toml->name);
    *toml = (struct toml){0};
}

/* ---------------------------------------------------------------- from JSON */

/* Places are counted forward through the text, value by value. */
static struct toml_place json_place(struct toml_reader *reader, struct json value)
{
    const char *to = json_raw(value).data;
    while (reader->at < to) {
        const char *line_end = memchr(reader->at, '\n', (size_t)(to - reader->at));
        if (!line_end)
            break;
        reader->at = line_end;
        (void)toml_take_newline(reader);
    }
    reader->at = to;
    return toml_here(reader);
}

static int from_json(struct toml_reader *reader, struct json value, struct toml_node *node);

static int members_from_json(struct toml_reader *reader, struct json object,
                             struct toml_node *table)
{
    JSON_EACH (item, object) {
        struct key_part part = {.place = json_place(reader, item.key),
                                .name = json_str(item.key, &reader->toml->arena)};
        if (memchr(part.name.data, 0, part.name.size))
            return toml_fail(reader, part.place, "a key with a NUL character");
        if (json_type(item.value) == JSON_NULL)
            continue;
        struct toml_node *before = find_member(reader, table, part.name);
        if (before)
            return fail_twice(reader, &part, before);
        struct toml_node *child =
            new_node(reader->toml, TOML_TABLE, json_place(reader, item.value));
        if (from_json(reader, item.value, child) < 0)
            return -1;
        add_member(reader, table, child, &part);
    }
    return 0;
}

static int number_from_json(struct toml_reader *reader, struct json value, struct toml_node *node)
{
    struct str raw = json_raw(value);
    bool integral = !memchr(raw.data, '.', raw.size) && !memchr(raw.data, 'e', raw.size) &&
                    !memchr(raw.data, 'E', raw.size);
    if (integral && json_int(value, &node->integer)) {
        node->type = TOML_INTEGER;
        node->real = (double)node->integer;
        return 0;
    }
    node->type = TOML_FLOAT;
    if (!integral && json_double(value, &node->real))
        return 0;
    return TOML_FAIL(reader, "this number is too large");
}

static int from_json(struct toml_reader *reader, struct json value, struct toml_node *node)
{
    if (reader->depth >= TOML_DEPTH_MAX)
        return TOML_FAIL(reader, "more than %d levels", TOML_DEPTH_MAX);
    switch (json_type(value)) {
    case JSON_NONE:
    case JSON_NULL:
        return TOML_FAIL(reader, "null has no meaning inside an array");
    case JSON_FALSE:
    case JSON_TRUE:
        node->type = TOML_BOOLEAN;
        node->truth = json_true(value);
        return 0;
    case JSON_NUMBER:
        return number_from_json(reader, value, node);
    case JSON_STRING: {
        struct str text = arena_str(&reader->toml->arena, json_str(value, &reader->toml->arena));
        node->type = TOML_STRING;
        node->text = text.data;
        node->text_size = text.size;
        return 0;
    }
    case JSON_ARRAY:
        node->type = TOML_ARRAY;
        reader->depth++;
        JSON_EACH (item, value) {
            struct toml_node *child =
                new_node(reader->toml, TOML_TABLE, json_place(reader, item.value));
            if (from_json(reader, item.value, child) < 0)
                return -1;
            append(node, child);
        }
        reader->depth--;
        return 0;
    case JSON_OBJECT:
        node->type = TOML_TABLE;
        reader->depth++;
        if (members_from_json(reader, value, node) < 0)
            return -1;
        reader->depth--;
        return 0;
    }
    return 0;
}

int toml_from_json(struct toml *toml, const char *name, struct json object, struct err *err)
{
    toml->name = mem_dup(name);
    if (json_type(object) != JSON_OBJECT)
        return err_set(err, ERR_INPUT, "%s: an object is expected", name);
    struct str source = object.doc->source;
    struct toml_reader reader = {.toml = toml,
                                 .at = source.data,
                                 .end = source.data + source.size,
                                 .line = 1,
                                 .counted = source.data,
                                 .column = 1,
                                 .err = err};
    toml->root = new_node(toml, TOML_TABLE, json_place(&reader, object));
    int result = from_json(&reader, object, toml->root);
    map_deinit(&reader.members);
    return result;
}
