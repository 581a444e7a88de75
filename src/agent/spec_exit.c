/* spec_exit.c - the parts of a spec about an agent's end: what its exit codes mean, which events it
 * must have had, what of its files is kept. */
#include "agent/agent.h"

#include "agent/internal.h"
#include "config/toml.h"

static int read_codes(struct agent_spec *spec, struct toml_node *table, const char *key, int **out,
                      size_t *count, struct err *err)
{
    struct toml_node *node = table ? toml_get(table, key) : NULL;
    if (!node)
        return 0;
    if (node->type != TOML_ARRAY)
        return toml_error(node, err, "%s is a list of exit codes", key);
    *out = arena_alloc(&spec->arena, (node->count + 1) * sizeof **out);
    *count = 0;
    TOML_EACH(item, node)
    {
        if (item->type != TOML_INTEGER || item->integer < 0 || item->integer > 255)
            return toml_error(item, err, "an exit code is a number from 0 to 255");
        (*out)[(*count)++] = (int)item->integer;
    }
    return 1;
}

static int read_needed(struct agent_spec *spec, struct toml_node *table, struct err *err)
{
    const char *const *list = NULL;
    if (spec_texts(spec, table, "needs", &list, err) < 0)
        return -1;
    for (size_t i = 0; list && list[i]; i++) {
        int kind = 0;
        while (kind < AGENT_OTHER &&
               strcmp(list[i], agent_event_kind_name((enum agent_event_kind)kind)) != 0)
            kind++;
        if (kind == AGENT_OTHER)
            return toml_error(toml_get(table, "needs"), err, "'%s' is no kind of event", list[i]);
        spec->needed_kinds |= 1u << kind;
    }
    if (spec->needed_kinds && spec->format == AGENT_FORMAT_TEXT)
        return toml_error(toml_get(table, "needs"), err, "only jsonl output has events");
    return 0;
}

/* What exit codes mean, for people: [exit.says] 41 = "no way to log in". */
static int read_code_words(struct agent_spec *spec, struct toml_node *table, struct err *err)
{
    struct toml_node *says = NULL;
    if (toml_table(table, "says", &says, err) < 0)
        return -1;
    if (!says)
        return 0;
    spec->code_words = arena_alloc(&spec->arena, (says->count + 1) * sizeof *spec->code_words);
    TOML_EACH(item, says)
    {
        long long code;
        item->used = true;
        if (!str_to_long(str_of(item->key), &code) || code < 0 || code > 255)
            return toml_error(item, err, "'%s' is no exit code: a number from 0 to 255", item->key);
        if (item->type != TOML_STRING)
            return toml_error(item, err, "what an exit code means is a text");
        spec->code_words[spec->code_word_count++] =
            (struct agent_code){(int)code, spec_keep(spec, item->text)};
    }
    return 0;
}

int agent_exit_read(struct agent_spec *spec, struct toml_node *root, struct err *err)
{
    struct toml_node *table = NULL;
    static int zero = 0;
    spec->ok_codes = &zero;
    spec->ok_count = 1;
    if (toml_table(root, "exit", &table, err) < 0 ||
        read_codes(spec, table, "ok", &spec->ok_codes, &spec->ok_count, err) < 0 ||
        read_codes(spec, table, "limit", &spec->limit_codes, &spec->limit_count, err) < 0 ||
        toml_bool(table, "error_fails", &spec->error_fails, err) < 0 ||
        read_code_words(spec, table, err) < 0)
        return -1;
    return read_needed(spec, table, err);
}

int agent_artifacts_read(struct agent_spec *spec, struct toml_node *root, struct err *err)
{
    if (spec_texts(spec, root, "artifacts", &spec->artifacts, err) < 0)
        return -1;
    for (size_t i = 0; spec->artifacts && spec->artifacts[i]; i++) {
        struct str path = str_of(spec->artifacts[i]);
        if (path.data[0] != '/' && !str_starts(path, STR("{home}/")) &&
            !str_starts(path, STR("{workdir}/")))
            return toml_error(toml_get(root, "artifacts"), err,
                              "'%s' is not absolute, nor below {home} or {workdir}", path.data);
    }
    return 0;
}
