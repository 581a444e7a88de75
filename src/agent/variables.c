/* variables.c - "{model}" and friends in specs. A brace that does not enclose a lower-case word is
 * just a brace, so that JSON in an argument needs no escaping. "{?system}" begins a part that is
 * there only when the variable has a value, "{/system}" ends it; "{*disabled_tools}" begins one
 * that is there once for each of them, as {item}, with ", " in between. Such parts do not nest.
 *
 * In texts that become JSON or TOML, values are escaped for the inside of a string. That whatever
 * they are the text stays valid is proven when a spec is read, by trying it with nasty values. */
#include "agent/internal.h"

#include "base/buf.h"
#include "base/mem.h"
#include "config/toml.h"
#include "json/json.h"

const char *const agent_variable_names[AGENT_VARS + 1] = {
    [AGENT_VAR_INSTRUCTION] = "instruction",
    [AGENT_VAR_INSTRUCTION_FILE] = "instruction_file",
    [AGENT_VAR_SYSTEM] = "system",
    [AGENT_VAR_SYSTEM_FILE] = "system_file",
    [AGENT_VAR_MODEL] = "model",
    [AGENT_VAR_BASE_URL] = "base_url",
    [AGENT_VAR_INLET] = "inlet",
    [AGENT_VAR_KEY] = "key",
    [AGENT_VAR_WORKDIR] = "workdir",
    [AGENT_VAR_TURNS_MAX] = "turns_max",
    [AGENT_VAR_SKIP_PERMISSIONS] = "skip_permissions",
    [AGENT_VAR_HOME] = "home",
    [AGENT_VAR_BUNDLE] = "bundle",
    [AGENT_VAR_VERSION] = "version",
    [AGENT_VAR_ARCH] = "arch",
    [AGENT_VAR_NPM_ARCH] = "npm_arch",
    [AGENT_VAR_DISABLED_TOOLS] = "disabled_tools",
    [AGENT_VAR_MCP_URL] = "mcp_url",
    [AGENT_VAR_MCP_NAME] = "mcp_name",
    [AGENT_VAR_LOADER] = "loader",
    [AGENT_VAR_ITEM] = "item",
};

#if defined __x86_64__
#define ARCH "x86_64"
#define NPM_ARCH "x64"
#define LOADER "/lib64/ld-linux-x86-64.so.2"
#elif defined __aarch64__
#define ARCH "aarch64"
#define NPM_ARCH "arm64"
#define LOADER "/lib/ld-linux-aarch64.so.1"
#else
#define ARCH "unknown"
#define NPM_ARCH "unknown"
#define LOADER "/lib"
#endif

/* "{word}", "{?word}", "{*word}" or "{/word}". */
struct mark {
    char kind; /* 0, '?', '*' or '/' */
    struct str word;
    size_t start, end; /* of all of it, braces included */
};

static bool next_mark(struct str text, size_t from, struct mark *mark)
{
    for (size_t i = from; i < text.size; i++) {
        if (text.data[i] != '{')
            continue;
        size_t start = i + 1;
        char kind = start < text.size ? text.data[start] : '\0';
        kind = kind == '?' || kind == '*' || kind == '/' ? kind : '\0';
        start += kind != '\0';
        size_t end = start;
        while (end < text.size &&
               ((text.data[end] >= 'a' && text.data[end] <= 'z') || text.data[end] == '_'))
            end++;
        if (end == start || end == text.size || text.data[end] != '}')
            continue;
        *mark = (struct mark){kind, str_make(text.data + start, end - start), i, end + 1};
        return true;
    }
    return false;
}

static int find_variable(struct str word)
{
    for (int i = 0; i < AGENT_VARS; i++)
        if (str_is(word, agent_variable_names[i]))
            return i;
    return -1;
}

int agent_variable_find(const char *name)
{
    return find_variable(str_of(name));
}

struct str agent_variable_unknown(const char *text)
{
    struct str whole = str_of(text);
    struct mark mark;
    for (size_t at = 0; next_mark(whole, at, &mark); at = mark.end)
        if (find_variable(mark.word) < 0)
            return mark.word;
    return STR_NONE;
}

bool agent_variable_used(const char *text, enum agent_variable variable)
{
    struct str whole = str_of(text);
    struct mark mark;
    for (size_t at = 0; next_mark(whole, at, &mark); at = mark.end)
        if ((mark.kind == '\0' || mark.kind == '*') && find_variable(mark.word) == (int)variable)
            return true;
    return false;
}

/* The literal without its quotes; DEL is escaped too, which TOML wants. */
static void append_escaped(struct buf *out, struct str value)
{
    OWN(buf) struct buf quoted = {0};
    json_quote(&quoted, value);
    for (size_t i = 1; i + 1 < quoted.size; i++) {
        if (quoted.data[i] == 0x7f)
            buf_str_append(out, STR("\\u007F"));
        else
            buf_byte(out, quoted.data[i]);
    }
}

/* The part that begins with `mark`, once for each item. Returns where the rest begins. */
static size_t expand_each(struct buf *out, struct str whole, const struct mark *begin,
                          const struct agent_values *values, enum agent_text format)
{
    OWN(arena) struct arena arena = {0};
    struct mark end = *begin;
    do {
        if (!next_mark(whole, end.end, &end))
            return whole.size; /* was proven not to happen */
    } while (end.kind != '/' || !str_equal(end.word, begin->word));
    const char *part =
        arena_text(&arena, str_make(whole.data + begin->end, end.start - begin->end));
    for (size_t i = 0; values->items && values->items[i]; i++) {
        struct agent_values each = *values;
        each.value[AGENT_VAR_ITEM] = values->items[i];
        buf_format(out, "%s%s", i ? ", " : "", agent_expand_as(&arena, part, &each, format));
    }
    return end.end;
}

char *agent_expand_as(struct arena *arena, const char *text, const struct agent_values *values,
                      enum agent_text format)
{
    OWN(buf) struct buf out = {0};
    struct str whole = str_of(text);
    struct str absent = STR_NONE; /* the part we are in is left out */
    struct mark mark;
    size_t at = 0;
    for (; next_mark(whole, at, &mark); at = mark.end) {
        if (!absent.data)
            buf_append(&out, whole.data + at, mark.start - at);
        int variable = find_variable(mark.word);
        const char *value = variable >= 0 ? values->value[variable] : NULL;
        if (mark.kind == '*' && !absent.data)
            mark.end = expand_each(&out, whole, &mark, values, format);
        else if (mark.kind == '?' && !absent.data && (!value || !value[0]))
            absent = mark.word;
        else if (mark.kind == '/' && absent.data && str_equal(absent, mark.word))
            absent = STR_NONE;
        else if (mark.kind == '\0' && !absent.data && value && format == AGENT_TEXT_PLAIN)
            buf_str_append(&out, str_of(value));
        else if (mark.kind == '\0' && !absent.data && value)
            append_escaped(&out, str_of(value));
    }
    if (!absent.data)
        buf_append(&out, whole.data + at, whole.size - at);
    return arena_text(arena, buf_str(&out));
}

char *agent_expand(struct arena *arena, const char *text, const struct agent_values *values)
{
    return agent_expand_as(arena, text, values, AGENT_TEXT_PLAIN);
}

static int check_text(const char *text, enum agent_text format, const struct agent_values *values,
                      struct err *err)
{
    OWN(arena) struct arena arena = {0};
    OWN(toml) struct toml toml = {0};
    OWN(json_doc) struct json_doc doc = {0};
    struct str out = str_of(agent_expand_as(&arena, text, values, format));
    return format == AGENT_TEXT_JSON ? json_read(&doc, out, NULL, err)
                                     : toml_read(&toml, "content", out, err);
}

int agent_text_prove(const char *text, enum agent_text format, struct err *err)
{
    struct agent_values nasty = {0}, none = {0};
    struct str whole = str_of(text), open = STR_NONE;
    struct mark mark;
    for (size_t at = 0; next_mark(whole, at, &mark); at = mark.end) {
        bool begins = mark.kind == '?' || mark.kind == '*';
        bool wrong = begins             ? open.data != NULL
                     : mark.kind == '/' ? !open.data || !str_equal(open, mark.word)
                                        : false;
        if (wrong)
            return err_set(err, ERR_INPUT, "{%c%.*s} does not fit: parts do not nest", mark.kind,
                           STR_ARGS(mark.word));
        if (mark.kind == '*' && find_variable(mark.word) != AGENT_VAR_DISABLED_TOOLS)
            return err_set(err, ERR_INPUT, "{*%.*s}: only disabled_tools is a list",
                           STR_ARGS(mark.word));
        open = begins ? mark.word : mark.kind == '/' ? STR_NONE : open;
    }
    if (open.data)
        return err_set(err, ERR_INPUT, "{%c%.*s} is never ended", open.data[-1], STR_ARGS(open));
    if (format == AGENT_TEXT_PLAIN)
        return 0;
    for (int i = 0; i < AGENT_VARS; i++)
        nasty.value[i] = i == AGENT_VAR_TURNS_MAX ? "7" : "a\"'\\\n\t\x7f{}[]#$()=,\xc3\xa4 b";
    static const char *const items[] = {"a\"\\\n", "{item}", NULL};
    nasty.items = items;
    none.value[AGENT_VAR_TURNS_MAX] = "7";
    if (check_text(text, format, &nasty, err) < 0)
        return -1;
    none.value[AGENT_VAR_TURNS_MAX] = agent_variable_used(text, AGENT_VAR_TURNS_MAX) ? "7" : NULL;
    return check_text(text, format, &none, err);
}

void agent_values_fixed(struct arena *arena, const struct agent_spec *spec,
                        struct agent_values *values)
{
    values->value[AGENT_VAR_VERSION] = spec->version;
    values->value[AGENT_VAR_ARCH] = ARCH;
    values->value[AGENT_VAR_NPM_ARCH] = NPM_ARCH;
    values->value[AGENT_VAR_LOADER] = LOADER;
    values->value[AGENT_VAR_DISABLED_TOOLS] = spec->disabled_tools;
    values->items = spec->disabled;
    if (spec->bundle.kind != AGENT_BUNDLE_NONE)
        values->value[AGENT_VAR_BUNDLE] =
            arena_format(arena, AGENT_BUNDLES_INSIDE "/%s", spec->name);
}
