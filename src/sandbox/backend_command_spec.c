/* backend_command_spec.c - reads backends/NAME.toml and turns its words into argument lists.
 *
 * A word is text with variables in braces: "{id}" is replaced as it is, "{id:sh}" is quoted for a
 * POSIX shell (for programs such as ssh that hand their arguments to a shell at the other end),
 * "{{" is a brace. No shell ever runs on this host: every word stays exactly one argument. A nested
 * array is a group that is left out when a variable in it has no value:
 *
 *     argv = ["podman", ["--memory", "{memory}"], "run"]
 *
 * Every variable named anywhere is checked when the file is read, so that a misspelt one is an
 * error with line and column and not a surprise in the middle of the night. */
#include "sandbox/backend_command_spec.h"

#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/mem.h"
#include "sandbox/sandbox.h"

enum { WORDS_MAX = 256, WORD_BYTES_MAX = 64 * 1024 };

const char *const command_step_names[STEP_COUNT] = {
    [STEP_CHECK] = "check",
    [STEP_UPLOAD] = "upload",
    [STEP_CREATE] = "create",
    [STEP_LAYER_CHECK] = "layer_check",
    [STEP_LAYER_UPLOAD] = "layer_upload",
    [STEP_ATTACH] = "attach",
    [STEP_DESTROY] = "destroy",
    [STEP_LIST] = "list",
};

static const uint32_t step_timeouts_ms[STEP_COUNT] = {
    [STEP_CHECK] = 30000,       [STEP_UPLOAD] = 60000,        [STEP_CREATE] = 60000,
    [STEP_DESTROY] = 30000,     [STEP_LIST] = 30000,          [STEP_ATTACH] = 0,
    [STEP_LAYER_CHECK] = 30000, [STEP_LAYER_UPLOAD] = 600000,
};

const char *const command_builtin_names[] = {
    "id",   "label", "porter",   "porter_name", "image", "memory",     "pids",
    "cpus", "disk",  "hostname", "root_user",   "layer", "layer_name", NULL,
};

/* clang-format off */
static const struct {
    const char *name;
    unsigned capability;
} capability_names[] = {
    {"network-off", SANDBOX_CAN_NETWORK_OFF},
    {"limits",      SANDBOX_CAN_LIMITS},
    {"root",        SANDBOX_CAN_ROOT},
    {"layers",      SANDBOX_CAN_LAYERS},
};
/* clang-format on */

static bool is_name(const char *text)
{
    if (!*text)
        return false;
    for (; *text; text++)
        if (!((*text >= 'a' && *text <= 'z') || (*text >= '0' && *text <= '9') || *text == '_'))
            return false;
    return true;
}

static bool is_known(const struct command_spec *spec, struct str name)
{
    for (size_t i = 0; command_builtin_names[i]; i++)
        if (str_is(name, command_builtin_names[i]))
            return true;
    for (size_t i = 0; i < spec->variable_count; i++)
        if (str_is(name, spec->variables[i].name))
            return true;
    return false;
}

/* The next piece of a word: literal text, or a variable with its form. False at the end. */
struct piece {
    struct str text;
    bool variable, quoted, asks;
};

static int next_piece(const struct toml_node *word, struct str *rest, struct piece *piece,
                      struct err *err)
{
    *piece = (struct piece){0};
    if (rest->size == 0)
        return 0;
    char first = rest->data[0];
    if ((first == '{' || first == '}') && rest->size > 1 && rest->data[1] == first) {
        piece->text = str_upto(*rest, 1);
        *rest = str_from(*rest, 2);
        return 1;
    }
    if (first == '}')
        return toml_error(word, err, "a lone '}'; write '}}' for a brace");
    if (first != '{') {
        size_t size = 0;
        while (size < rest->size && rest->data[size] != '{' && rest->data[size] != '}')
            size++;
        piece->text = str_upto(*rest, size);
        *rest = str_from(*rest, size);
        return 1;
    }
    long end = str_find_byte(*rest, '}');
    if (end < 0)
        return toml_error(word, err, "'{' without '}'; write '{{' for a brace");
    piece->variable = true;
    piece->text = str_from(str_upto(*rest, (size_t)end), 1);
    *rest = str_from(*rest, (size_t)end + 1);
    if (str_ends(piece->text, STR(":sh"))) {
        piece->quoted = true;
        piece->text.size -= 3;
    } else if (str_ends(piece->text, STR("?"))) {
        piece->asks = true;
        piece->text.size--;
    }
    return 1;
}

static int check_word(const struct command_spec *spec, const struct toml_node *word, bool grouped,
                      struct err *err)
{
    if (word->type != TOML_STRING)
        return toml_error(word, err, "a word of a command is a string, not %s",
                          toml_type_name(word->type));
    if (memchr(word->text, '\0', word->text_size))
        return toml_error(word, err, "a word of a command holds no NUL byte");
    struct str rest = str_make(word->text, word->text_size);
    struct piece piece;
    int more;
    while ((more = next_piece(word, &rest, &piece, err)) > 0) {
        if (piece.variable && !is_known(spec, piece.text))
            return toml_error(word, err, "unknown variable '{%.*s}'", STR_ARGS(piece.text));
        if (piece.asks && !grouped)
            return toml_error(word, err, "'{%.*s?}' belongs into a nested array",
                              STR_ARGS(piece.text));
    }
    return more;
}

static int check_argv(const struct command_spec *spec, const struct toml_node *argv,
                      struct err *err)
{
    if (argv->type != TOML_ARRAY || argv->count == 0)
        return toml_error(argv, err, "argv is an array of words, and not empty");
    if (argv->count > WORDS_MAX)
        return toml_error(argv, err, "more than %d words", WORDS_MAX);
    if (argv->first->type == TOML_ARRAY && (!spec->common || argv == spec->common))
        return toml_error(argv->first, err, "the program itself cannot be optional");
    TOML_EACH(word, argv)
    {
        if (word->type != TOML_ARRAY) {
            if (check_word(spec, word, false, err) < 0)
                return -1;
            continue;
        }
        TOML_EACH(inner, word)
        {
            if (check_word(spec, inner, true, err) < 0)
                return -1;
        }
    }
    return 0;
}

static int read_common(struct command_spec *spec, struct err *err)
{
    spec->common = toml_get(spec->toml.root, "common");
    return spec->common ? check_argv(spec, spec->common, err) : 0;
}

static int read_step(struct command_spec *spec, enum command_step step, struct err *err)
{
    struct command_line *line = &spec->steps[step];
    struct toml_node *table = NULL;
    int there = toml_table(spec->toml.root, command_step_names[step], &table, err);
    if (there <= 0)
        return there;
    long long timeout_ms = step_timeouts_ms[step];
    line->argv = toml_get(table, "argv");
    if (!line->argv)
        return toml_error(table, err, "[%s] has no argv", command_step_names[step]);
    if (check_argv(spec, line->argv, err) < 0)
        return -1;
    if (step != STEP_ATTACH &&
        toml_duration_ms(table, "timeout", 100, 3600 * 1000, &timeout_ms, err) < 0)
        return -1;
    line->timeout_ms = (uint32_t)timeout_ms;
    return 0;
}

static int read_variables(struct command_spec *spec, struct err *err)
{
    struct toml_node *table = NULL;
    if (toml_table(spec->toml.root, "variables", &table, err) < 0)
        return -1;
    TOML_EACH(item, table)
    {
        if (!is_name(item->key))
            return toml_error(item, err, "variable '%s': use a-z, 0-9 and _", item->key);
        if (is_known(spec, str_of(item->key)))
            return toml_error(item, err, "'%s' is a variable Postern fills in itself", item->key);
        if (spec->variable_count == COMMAND_VARIABLES_MAX)
            return toml_error(item, err, "more than %d variables", COMMAND_VARIABLES_MAX);
        struct toml_node *row = NULL;
        struct command_variable variable = {.name = item->key, .help = "", .fallback = ""};
        if (toml_table(table, item->key, &row, err) < 0 ||
            toml_text(row, "help", &variable.help, err) < 0 ||
            toml_text(row, "default", &variable.fallback, err) < 0 ||
            toml_bool(row, "required", &variable.required, err) < 0)
            return -1;
        spec->variables[spec->variable_count++] = variable;
    }
    return 0;
}

static int read_capabilities(struct command_spec *spec, struct err *err)
{
    struct toml_node *array = toml_get(spec->toml.root, "capabilities");
    if (!array)
        return 0;
    if (array->type != TOML_ARRAY)
        return toml_error(array, err, "capabilities is an array of names");
    TOML_EACH(item, array)
    {
        unsigned found = 0;
        for (size_t i = 0; i < COUNT(capability_names) && item->type == TOML_STRING; i++)
            if (strcmp(item->text, capability_names[i].name) == 0)
                found = capability_names[i].capability;
        if (!found)
            return toml_error(item, err,
                              "a capability of a command backend is \"network-off\", \"limits\", "
                              "\"root\" or \"layers\"");
        spec->capabilities |= found;
    }
    return 0;
}

static int read_retry_codes(struct command_spec *spec, struct err *err)
{
    struct toml_node *array = toml_get(spec->toml.root, "retry_exit_codes");
    if (!array)
        return 0;
    if (array->type != TOML_ARRAY || array->count > COUNT(spec->retry_codes))
        return toml_error(array, err, "retry_exit_codes is an array of at most %zu exit codes",
                          COUNT(spec->retry_codes));
    TOML_EACH(item, array)
    {
        if (item->type != TOML_INTEGER || item->integer < 1 || item->integer > 255)
            return toml_error(item, err, "an exit code is a number from 1 to 255");
        spec->retry_codes[spec->retry_code_count++] = item->integer;
    }
    return 0;
}

static int check_argument(struct command_spec *spec, struct err *err)
{
    if (!spec->argument)
        return 0;
    for (size_t i = 0; i < spec->variable_count; i++)
        if (strcmp(spec->variables[i].name, spec->argument) == 0)
            return 0;
    return toml_error(toml_get(spec->toml.root, "argument"), err,
                      "argument names '%s', which is not in [variables]", spec->argument);
}

int command_spec_read(struct command_spec *spec, const char *path, const char *name,
                      struct err *err)
{
    *spec = (struct command_spec){.summary = ""};
    long long parallel_max = 0;
    if (toml_read_file(&spec->toml, path, err) < 0)
        return -1;
    struct toml_node *root = spec->toml.root;
    int image = COMMAND_IMAGE_NONE;
    static const char *const images[] = {"none", "optional", "required", NULL};
    if (toml_text(root, "summary", &spec->summary, err) < 0 ||
        toml_choice(root, "image", images, &image, err) < 0 ||
        toml_text(root, "argument", &spec->argument, err) < 0 ||
        toml_int(root, "parallel_max", 0, 1000000, &parallel_max, err) < 0 ||
        toml_environment(root, "environment", &spec->environment, NULL, err) < 0 ||
        toml_texts(root, "environment_pass", &spec->environment_pass, NULL, err) < 0 ||
        read_capabilities(spec, err) < 0 || read_retry_codes(spec, err) < 0 ||
        read_variables(spec, err) < 0 || check_argument(spec, err) < 0 ||
        read_common(spec, err) < 0)
        return -1;
    spec->parallel_max = (uint32_t)parallel_max;
    spec->image = (enum command_image)image;
    for (int step = 0; step < STEP_COUNT; step++)
        if (read_step(spec, (enum command_step)step, err) < 0)
            return -1;
    if (toml_check_unused(&spec->toml, err) < 0)
        return -1;
    if (!spec->steps[STEP_ATTACH].argv)
        return toml_error(root, err,
                          "there is no [attach]: it is what carries the porter's frames");
    if (spec->steps[STEP_CHECK].argv && !spec->steps[STEP_UPLOAD].argv)
        return toml_error(spec->steps[STEP_CHECK].argv, err, "[check] without [upload]");
    if (spec->steps[STEP_LAYER_CHECK].argv && !spec->steps[STEP_LAYER_UPLOAD].argv)
        return toml_error(spec->steps[STEP_LAYER_CHECK].argv, err,
                          "[layer_check] without [layer_upload]");
    if (spec->steps[STEP_LAYER_UPLOAD].argv && !(spec->capabilities & SANDBOX_CAN_LAYERS))
        return toml_error(spec->steps[STEP_LAYER_UPLOAD].argv, err,
                          "[layer_upload] without the capability \"layers\"");
    spec->name = mem_dup(name);
    return 0;
}

void command_spec_deinit(struct command_spec *spec)
{
    free(spec->name);
    toml_deinit(&spec->toml);
    *spec = (struct command_spec){0};
}

static const char *value_of(const struct command_value *values, size_t count, struct str name)
{
    for (size_t i = 0; i < count; i++)
        if (str_is(name, values[i].name))
            return values[i].value ? values[i].value : "";
    return "";
}

/* 'it'\''s': the one form every POSIX shell reads back as the same bytes. */
static void append_quoted(struct buf *out, const char *text)
{
    buf_byte(out, '\'');
    for (; *text; text++)
        if (*text == '\'')
            buf_append(out, "'\\''", 4);
        else
            buf_byte(out, *text);
    buf_byte(out, '\'');
}

/* Returns 1 with the word, 0 when a variable in it is empty and it belongs to a group, -1 on error.
 */
static int expand_word(const struct toml_node *word, bool grouped,
                       const struct command_value *values, size_t value_count, struct arena *arena,
                       const char **out, struct err *err)
{
    OWN(buf) struct buf text = {0};
    struct str rest = str_make(word->text, word->text_size);
    struct piece piece;
    bool asked = false;
    int more;
    while ((more = next_piece(word, &rest, &piece, err)) > 0) {
        if (!piece.variable) {
            buf_str_append(&text, piece.text);
            continue;
        }
        const char *value = value_of(values, value_count, piece.text);
        if (!*value && grouped)
            return 0;
        if (piece.asks)
            asked = true;
        else if (piece.quoted)
            append_quoted(&text, value);
        else
            buf_append(&text, value, strlen(value));
        if (text.size > WORD_BYTES_MAX)
            return toml_error(word, err, "the word grows past %d bytes", WORD_BYTES_MAX);
    }
    if (more < 0)
        return -1;
    *out = asked && text.size == 0 ? NULL : arena_text(arena, buf_str(&text));
    return 1;
}

static size_t count_words(const struct toml_node *argv)
{
    size_t count = 0;
    TOML_EACH(word, argv)
    {
        count += word->type == TOML_ARRAY ? word->count : 1;
    }
    return count;
}

/* Appends to words[*count]; there is room. */
static int expand_words(const struct toml_node *argv, const struct command_value *values,
                        size_t value_count, struct arena *arena, const char **words, size_t *count,
                        struct err *err)
{
    TOML_EACH(word, argv)
    {
        bool grouped = word->type == TOML_ARRAY;
        size_t start = *count;
        for (const struct toml_node *inner = grouped ? word->first : word; inner;
             inner = grouped ? inner->next : NULL) {
            int kept = expand_word(inner, grouped, values, value_count, arena, &words[*count], err);
            if (kept < 0)
                return -1;
            if (kept == 0) {
                *count = start;
                break;
            }
            *count += words[*count] != NULL;
        }
    }
    return 0;
}

const char *const *command_expand(const struct command_spec *spec, enum command_step step,
                                  const struct command_value *values, size_t value_count,
                                  struct arena *arena, struct err *err)
{
    const struct toml_node *argv = spec->steps[step].argv;
    size_t count = 0;
    const char **words =
        arena_alloc(arena, (count_words(spec->common) + count_words(argv) + 1) * sizeof *words);
    if (expand_words(spec->common, values, value_count, arena, words, &count, err) < 0 ||
        expand_words(argv, values, value_count, arena, words, &count, err) < 0)
        return NULL;
    words[count] = NULL;
    return words;
}
