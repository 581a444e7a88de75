/* config.c - the four sources settings come from, and how people see them. The table itself is in
 * settings.c.
 *
 * A value is text in every source; one function, assign(), checks it against its row and stores
 * it. Which source set a value last is kept for people who wonder. */
#include "config/config.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/err.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/text.h"
#include "config/settings.h"
#include "config/toml.h"
#include "json/json.h"

struct config_state {
    struct arena arena;
    const char *sources[SETTINGS_MAX];
};

/* ---------------------------------------------------------------- rows */

static const struct setting *find_setting(const char *name)
{
    for (size_t i = 0; i < setting_count; i++)
        if (strcmp(settings[i].name, name) == 0)
            return &settings[i];
    return NULL;
}

static const char *nearest_name(const char *name)
{
    const char *names[SETTINGS_MAX];
    for (size_t i = 0; i < setting_count; i++)
        names[i] = settings[i].name;
    return text_nearest(name, names, setting_count);
}

/* "POSTERN_SANDBOX_MEMORY_MAX" */
static void variable_name(const struct setting *setting, char *out, size_t size)
{
    size_t at = (size_t)snprintf(out, size, "POSTERN_%s", setting->name);
    for (size_t i = 0; i < at && i + 1 < size; i++) {
        if (out[i] >= 'a' && out[i] <= 'z')
            out[i] = (char)(out[i] - 'a' + 'A');
        else if (out[i] == '.' || out[i] == '-')
            out[i] = '_';
    }
}

/* A duration or size the way people write it: the largest unit that divides it. */
static void format_unit(enum setting_type type, int64_t value, char *out, size_t size)
{
    static const struct {
        int64_t unit;
        const char *suffix;
    } durations[] = {{HOUR, "h"}, {MINUTE, "m"}, {SECOND, "s"}, {1, "ms"}},
      sizes[] = {{GB, "G"}, {MB, "M"}, {KB, "K"}, {1, ""}};
    bool duration = type == SETTING_DURATION;
    for (size_t i = 0; i < 4; i++) {
        int64_t unit = duration ? durations[i].unit : sizes[i].unit;
        if (i < 3 && (value < unit || value % unit))
            continue;
        snprintf(out, size, "%lld%s", (long long)(value / unit),
                 duration ? durations[i].suffix : sizes[i].suffix);
        return;
    }
}

/* "an integer between 0 and 256" */
static void describe_type(const struct setting *setting, struct buf *out)
{
    char low[32], high[32];
    switch (setting->type) {
    case SETTING_TEXT:
        buf_format(out, "a text%s", setting->filled ? " that is not empty" : "");
        return;
    case SETTING_INTEGER:
        buf_format(out, "an integer between %lld and %lld", (long long)setting->min,
                   (long long)setting->max);
        return;
    case SETTING_BOOLEAN:
        buf_format(out, "true or false");
        return;
    case SETTING_DURATION:
    case SETTING_SIZE:
        format_unit(setting->type, setting->min, low, sizeof low);
        format_unit(setting->type, setting->max, high, sizeof high);
        buf_format(out, "a %s between %s and %s",
                   setting->type == SETTING_SIZE ? "size" : "duration", low, high);
        return;
    case SETTING_CHOICE:
        for (size_t i = 0; setting->choices[i]; i++)
            buf_format(out, "%s%s", i == 0 ? "one of " : ", ", setting->choices[i]);
        return;
    }
}

/* ---------------------------------------------------------------- values */

static bool parse_boolean(const char *value, bool *out)
{
    static const char *const words[] = {"false", "no", "off", "0", "true", "yes", "on", "1"};
    for (size_t i = 0; i < COUNT(words); i++) {
        if (str_equal_nocase(str_of(value), str_of(words[i]))) {
            *out = i >= 4;
            return true;
        }
    }
    return false;
}

static bool parse_number(const struct setting *setting, const char *value, int64_t *out)
{
    long long number = 0;
    unsigned long long size = 0;
    if (setting->type == SETTING_INTEGER && !str_to_long(str_of(value), &number))
        return false;
    if (setting->type == SETTING_DURATION && !str_to_duration_ms(str_of(value), &number))
        return false;
    if (setting->type == SETTING_SIZE) {
        if (!str_to_size(str_of(value), &size) || size > INT64_MAX)
            return false;
        number = (long long)size;
    }
    *out = number;
    return number >= setting->min && number <= setting->max;
}

static bool parse_choice(const struct setting *setting, const char *value, int64_t *out)
{
    for (size_t i = 0; setting->choices[i]; i++) {
        if (strcmp(setting->choices[i], value) == 0) {
            *out = (int64_t)i;
            return true;
        }
    }
    return false;
}

static bool store_value(struct config *config, const struct setting *setting, const char *value)
{
    void *field = (char *)config + setting->offset;
    switch (setting->type) {
    case SETTING_TEXT:
        if (setting->filled && str_trim(str_of(value)).size == 0)
            return false;
        *(const char **)field = arena_text(&config->state->arena, str_of(value));
        return true;
    case SETTING_BOOLEAN:
        return parse_boolean(value, field);
    case SETTING_CHOICE:
        return parse_choice(setting, value, field);
    case SETTING_INTEGER:
    case SETTING_DURATION:
    case SETTING_SIZE: {
        int64_t number;
        if (!parse_number(setting, value, &number))
            return false;
        *(int64_t *)field = number;
        return true;
    }
    }
    return false;
}

static int assign(struct config *config, const struct setting *setting, const char *value,
                  const char *source, struct err *err)
{
    if (!store_value(config, setting, value)) {
        OWN(buf) struct buf wanted = {0};
        describe_type(setting, &wanted);
        return err_set(err, ERR_INPUT, "%s: %s must be %s, not '%.80s'", source, setting->name,
                       buf_text(&wanted), value);
    }
    config->state->sources[setting - settings] = arena_text(&config->state->arena, str_of(source));
    return 0;
}

static int fail_unknown(const char *source, const char *name, struct err *err)
{
    const char *nearest = nearest_name(name);
    return err_set(err, ERR_INPUT, "%s: there is no setting '%s'%s%s%s", source, name,
                   nearest ? "; did you mean '" : "", nearest ? nearest : "", nearest ? "'?" : "");
}

int config_set(struct config *config, const char *name, const char *value, const char *source,
               struct err *err)
{
    const struct setting *setting = find_setting(name);
    return setting ? assign(config, setting, value, source, err) : fail_unknown(source, name, err);
}

void config_init(struct config *config)
{
    *config = (struct config){.state = mem_zero(sizeof *config->state)};
    for (size_t i = 0; i < setting_count; i++)
        (void)assign(config, &settings[i], settings[i].fallback, "fallback", NULL);
}

void config_deinit(struct config *config)
{
    if (config->state)
        arena_deinit(&config->state->arena);
    free(config->state);
    *config = (struct config){0};
}

/* ---------------------------------------------------------------- the file */

/* The node's value as text, if its type is one the setting takes. */
static const char *node_text(const struct setting *setting, const struct toml_node *node,
                             char *small, size_t size)
{
    bool unit = setting->type == SETTING_DURATION || setting->type == SETTING_SIZE;
    if (node->type == TOML_BOOLEAN && setting->type == SETTING_BOOLEAN)
        return node->truth ? "true" : "false";
    if (node->type == TOML_INTEGER && (setting->type == SETTING_INTEGER || unit)) {
        snprintf(small, size, "%lld", node->integer);
        return small;
    }
    bool text = setting->type == SETTING_TEXT || setting->type == SETTING_CHOICE || unit;
    return node->type == TOML_STRING && text && !memchr(node->text, 0, node->text_size) ? node->text
                                                                                        : NULL;
}

static int load_node(struct config *config, const struct setting *setting,
                     const struct toml_node *node, struct err *err)
{
    char small[32];
    const char *value = node_text(setting, node, small, sizeof small);
    if (!value) {
        OWN(buf) struct buf wanted = {0};
        describe_type(setting, &wanted);
        return toml_error(node, err, "%s must be %s, not %s", setting->name, buf_text(&wanted),
                          toml_type_name(node->type));
    }
    OWN(mem) char *source = mem_format("%s:%u:%u", node->toml->name, node->line, node->column);
    return assign(config, setting, value, source, err);
}

int config_load_file(struct config *config, const char *path, struct err *err)
{
    OWN(toml) struct toml toml = {0};
    if (toml_read_file(&toml, path, err) < 0)
        return -1;
    for (size_t i = 0; i < setting_count; i++) {
        struct toml_node *table = toml.root;
        struct str name = str_of(settings[i].name);
        long dot = str_find_byte(name, '.');
        if (dot >= 0) {
            char section[32];
            snprintf(section, sizeof section, "%.*s", (int)dot, name.data);
            table = NULL;
            if (toml_table(toml.root, section, &table, err) < 0)
                return -1;
        }
        struct toml_node *node = toml_get(table, settings[i].name + dot + 1);
        if (node && load_node(config, &settings[i], node, err) < 0)
            return -1;
    }
    return toml_check_unused(&toml, err);
}

/* ---------------------------------------------------------------- the environment */

/* Other parts of the program that read the environment; not settings. */
static bool is_reserved(const char *variable)
{
    static const char *const names[] = {"POSTERN_CONFIG", "POSTERN_MODEL_KEY", "POSTERN_LIBEXEC",
                                        "POSTERN_SHARE", "POSTERN_KEEPER_IDLE_MS"};
    for (size_t i = 0; i < COUNT(names); i++)
        if (strcmp(names[i], variable) == 0)
            return true;
    return false;
}

static const struct setting *find_by_variable(const char *variable)
{
    char name[64];
    for (size_t i = 0; i < setting_count; i++) {
        variable_name(&settings[i], name, sizeof name);
        if (strcmp(name, variable) == 0)
            return &settings[i];
    }
    return NULL;
}

static int load_variable(struct config *config, const char *variable, const char *value,
                         struct err *err)
{
    const struct setting *found = find_by_variable(variable);
    if (found)
        return assign(config, found, value, variable, err);
    if (is_reserved(variable))
        return 0;
    char names[SETTINGS_MAX][64];
    const char *pointers[SETTINGS_MAX];
    for (size_t i = 0; i < setting_count; i++) {
        variable_name(&settings[i], names[i], sizeof names[i]);
        pointers[i] = names[i] + strlen("POSTERN_");
    }
    const char *nearest = text_nearest(variable + strlen("POSTERN_"), pointers, setting_count);
    if (nearest)
        return err_set(err, ERR_INPUT, "%s: there is no such setting; did you mean POSTERN_%s?",
                       variable, nearest);
    return 0; /* config_warn_environment() says so, when it is known how to log */
}

/* The next of our variables, from *at on, and what it is set to; the caller frees it. NULL: none is
 * left. */
static char *next_variable(char *const **at, const char **value)
{
    for (; *at && **at; ++*at) {
        struct str rest = str_of(**at);
        struct str name = str_cut(&rest, '=');
        if (!rest.data || !str_starts(name, STR("POSTERN_")))
            continue;
        *value = rest.data;
        ++*at;
        return str_dup(name);
    }
    return NULL;
}

void config_warn_environment(char *const *environment)
{
    const char *value;
    for (char *variable; (variable = next_variable(&environment, &value)); free(variable))
        if (!find_by_variable(variable) && !is_reserved(variable))
            LOG_WARN("config", NULL, "%s in the environment is no setting", variable);
}

int config_load_environment(struct config *config, char *const *environment, struct err *err)
{
    const char *value;
    int result = 0;
    for (char *variable; result == 0 && (variable = next_variable(&environment, &value));
         free(variable))
        result = load_variable(config, variable, value, err);
    return result;
}

/* ---------------------------------------------------------------- the command line */

struct flag {
    const struct setting *setting; /* NULL: not one of ours */
    const char *value;             /* NULL: the next argument */
    bool config_file;
};

static struct flag read_flag(const char *argument)
{
    struct str rest = str_from(str_of(argument), 2);
    struct str name = str_cut(&rest, '=');
    OWN(mem) char *text = str_dup(name);
    struct flag flag = {.setting = find_setting(text), .value = rest.data};
    flag.config_file = strcmp(text, "config") == 0;
    if (flag.setting && flag.setting->type == SETTING_BOOLEAN && !flag.value)
        flag.value = "true";
    if (!flag.setting && strncmp(text, "no-", 3) == 0) {
        const struct setting *positive = find_setting(text + 3);
        if (positive && positive->type == SETTING_BOOLEAN && !flag.value)
            flag = (struct flag){.setting = positive, .value = "false"};
    }
    return flag;
}

/* Walks argv once. With `apply` false only "home" and --config are looked at and nothing is taken
 * out. */
static int walk_args(struct config *config, int *argc, char **argv, bool apply, const char **home,
                     const char **file, struct err *err)
{
    int kept = 0;
    for (int i = 0; i < *argc; i++) {
        if (strcmp(argv[i], "--") == 0) {
            for (; i < *argc; i++)
                argv[kept++] = argv[i];
            break;
        }
        bool is_flag = i > 0 && strncmp(argv[i], "--", 2) == 0;
        struct flag flag = is_flag ? read_flag(argv[i]) : (struct flag){0};
        if (!flag.setting && !flag.config_file) {
            if (is_flag && strchr(argv[i], '.') && !strchr(argv[i], '='))
                return fail_unknown(argv[i], argv[i] + 2, err);
            argv[kept++] = argv[i];
            continue;
        }
        const char *name = argv[i];
        int first = i;
        if (!flag.value) {
            if (i + 1 >= *argc)
                return err_set(err, ERR_INPUT, "%s needs a value", name);
            flag.value = argv[++i];
        }
        if (flag.config_file)
            *file = flag.value;
        else if (!apply && strcmp(flag.setting->name, "home") == 0)
            *home = flag.value;
        if (!apply) {
            while (first <= i)
                argv[kept++] = argv[first++];
        } else if (flag.setting) {
            OWN(mem) char *source = mem_format("--%s", flag.setting->name);
            if (assign(config, flag.setting, flag.value, source, err) < 0)
                return -1;
        }
    }
    *argc = kept;
    argv[kept] = NULL;
    return 0;
}

int config_take_args(struct config *config, int *argc, char **argv, struct err *err)
{
    const char *home = NULL, *file = NULL;
    return walk_args(config, argc, argv, true, &home, &file, err);
}

static const char *find_variable(char *const *environment, struct str name)
{
    for (; environment && *environment; environment++) {
        struct str rest = str_of(*environment);
        if (str_equal(str_cut(&rest, '='), name) && rest.data)
            return rest.data;
    }
    return NULL;
}

int config_load(struct config *config, int *argc, char **argv, char *const *environment,
                struct err *err)
{
    const char *home = NULL, *file = NULL;
    if (walk_args(config, argc, argv, false, &home, &file, err) < 0)
        return -1;
    if (!file)
        file = find_variable(environment, STR("POSTERN_CONFIG"));
    if (!home)
        home = find_variable(environment, STR("POSTERN_HOME"));
    OWN(mem) char *usual = mem_format("%s/postern.toml", home ? home : config->home);
    if ((file || file_exists(usual)) && config_load_file(config, file ? file : usual, err) < 0)
        return -1;
    if (config_load_environment(config, environment, err) < 0)
        return -1;
    return config_take_args(config, argc, argv, err);
}

/* ---------------------------------------------------------------- for people */

const char *config_nearest_flag(const char *flag)
{
    static _Thread_local char text[64];
    while (*flag == '-')
        flag++;
    const char *nearest = nearest_name(flag);
    if (!nearest)
        return NULL;
    snprintf(text, sizeof text, "--%s", nearest);
    return text;
}

void config_help(struct buf *out)
{
    for (size_t i = 0; i < setting_count; i++) {
        const struct setting *setting = &settings[i];
        buf_format(out, "  --%-28s %s", setting->name, setting->help);
        if (setting->fallback[0])
            buf_format(out, " [%s]", setting->fallback);
        buf_byte(out, '\n');
    }
}

void config_write_docs(struct buf *out)
{
    buf_format(
        out,
        "# Settings\n\n"
        "Made from the table in `src/config/settings.c` by `postern help --settings-markdown`; do "
        "not edit.\n\n"
        "Later sources win: the fallback, the file `$POSTERN_HOME/postern.toml` (or `--config "
        "FILE`, or "
        "`POSTERN_CONFIG`),\nthe environment, the command line. `sandbox.memory-max` is "
        "`memory-max` "
        "under `[sandbox]` in the file,\n`POSTERN_SANDBOX_MEMORY_MAX` in the environment and "
        "`--sandbox.memory-max 2G` on the command line.\nDurations are written `200ms`, "
        "`30s`, `5m`, "
        "`2h`; sizes `64K`, `512M`, `2G`.\n\n"
        "| setting | fallback | allowed | meaning |\n| --- | --- | --- | --- |\n");
    for (size_t i = 0; i < setting_count; i++) {
        const struct setting *setting = &settings[i];
        buf_format(out, "| `%s` | ", setting->name);
        if (setting->fallback[0])
            buf_format(out, "`%s`", setting->fallback);
        buf_format(out, " | ");
        describe_type(setting, out);
        buf_format(out, " | %s |\n", setting->help);
    }
}

static void write_value(const struct config *config, const struct setting *setting,
                        struct json_writer *out)
{
    const void *field = (const char *)config + setting->offset;
    switch (setting->type) {
    case SETTING_TEXT:
        json_put_text(out, *(const char *const *)field);
        return;
    case SETTING_BOOLEAN:
        json_put_bool(out, *(const bool *)field);
        return;
    case SETTING_CHOICE:
        json_put_text(out, setting->choices[*(const int64_t *)field]);
        return;
    case SETTING_INTEGER:
    case SETTING_DURATION:
    case SETTING_SIZE:
        json_put_int(out, *(const int64_t *)field);
        return;
    }
}

void config_write_json(const struct config *config, struct json_writer *out)
{
    json_begin_object(out);
    for (size_t i = 0; i < setting_count; i++) {
        json_key(out, settings[i].name);
        json_begin_object(out);
        json_key(out, "value");
        write_value(config, &settings[i], out);
        json_set_text(out, "source", config->state->sources[i]);
        json_end_object(out);
    }
    json_end_object(out);
}
