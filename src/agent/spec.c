/* spec.c - agent specs: TOML into one struct, checked completely before anything runs.
 *
 * Unknown keys, unknown {variables}, an instruction that is never handed over and files that do not
 * exist are errors with a place. docs/agents.md is the manual of the format. */
#include "agent/agent.h"

#include <stdlib.h>

#include "agent/internal.h"
#include "base/file.h"
#include "base/mem.h"
#include "config/toml.h"
#include "json/json.h"

#define MS_MAX (7ll * 24 * 3600 * 1000)
#define CONDITIONS_MAX 8

static const char *const dialect_names[] = {"chat", "completions", "responses", "messages",
                                            "google"};

const char *spec_keep(struct agent_spec *spec, const char *text)
{
    return arena_text(&spec->arena, str_of(text));
}

static int check_variables(struct toml_node *node, const char *text, struct err *err)
{
    struct str word = agent_variable_unknown(text);
    if (!word.data)
        return 0;
    return toml_error(node, err, "there is no variable {%.*s}", STR_ARGS(word));
}

int spec_text(struct agent_spec *spec, struct toml_node *table, const char *key, const char **out,
              struct err *err)
{
    const char *text = NULL;
    int found = toml_text(table, key, &text, err);
    if (found != 1)
        return found;
    if (check_variables(toml_get(table, key), text, err) < 0)
        return -1;
    *out = spec_keep(spec, text);
    return 1;
}

static int keep_list(struct agent_spec *spec, struct toml_node *node, const char *const *list,
                     size_t count, const char *const **out, struct err *err)
{
    const char **copy = arena_alloc(&spec->arena, (count + 1) * sizeof *copy);
    for (size_t i = 0; i < count; i++) {
        if (check_variables(node, list[i], err) < 0)
            return -1;
        copy[i] = spec_keep(spec, list[i]);
    }
    *out = copy;
    return 1;
}

int spec_texts(struct agent_spec *spec, struct toml_node *table, const char *key,
               const char *const **out, struct err *err)
{
    const char *const *list = NULL;
    size_t count = 0;
    int found = toml_texts(table, key, &list, &count, err);
    if (found != 1)
        return found;
    if (!count)
        return toml_error(toml_get(table, key), err, "%s is empty", key);
    return keep_list(spec, toml_get(table, key), list, count, out, err);
}

int spec_duration(struct toml_node *table, const char *key, uint32_t *out, struct err *err)
{
    long long ms = 0;
    int found = toml_duration_ms(table, key, 1, MS_MAX, &ms, err);
    if (found == 1)
        *out = (uint32_t)ms;
    return found;
}

static int read_mode(struct toml_node *item, uint32_t *out, struct err *err)
{
    const char *mode = "0644";
    char *end;
    if (toml_text(item, "mode", &mode, err) < 0)
        return -1;
    unsigned long bits = strtoul(mode, &end, 8);
    if (*end || !*mode || bits > 0777)
        return toml_error(toml_get(item, "mode"), err, "mode is octal like \"0755\", not \"%s\"",
                          mode);
    *out = (uint32_t)bits;
    return 0;
}

/* A text with variables, written when the agent starts. */
static int read_content(struct agent_spec *spec, struct toml_node *item, struct agent_file *file,
                        struct err *err)
{
    static const char *const formats[] = {"text", "json", "toml", NULL};
    int format = AGENT_TEXT_PLAIN;
    struct err why = {0};
    if (spec_text(spec, item, "content", &file->text, err) < 0 ||
        toml_choice(item, "format", formats, &format, err) < 0 ||
        spec_text(spec, item, "if", &file->only_if, err) < 0)
        return -1;
    file->format = (enum agent_text)format;
    if (file->only_if && agent_variable_find(file->only_if) < 0)
        return toml_error(toml_get(item, "if"), err, "there is no variable {%s}", file->only_if);
    if (file->text && agent_text_prove(file->text, file->format, &why) < 0)
        return toml_error(toml_get(item, "content"), err, "not %s for all values: %s",
                          format ? formats[format] : "a text", why.text);
    return 0;
}

static int read_files(struct agent_spec *spec, struct toml_node *root, struct err *err)
{
    struct toml_node *list = NULL;
    if (toml_tables(root, "files", &list, err) < 0)
        return -1;
    if (!list)
        return 0;
    spec->files = arena_alloc(&spec->arena, (list->count + 1) * sizeof *spec->files);
    TOML_EACH(item, list)
    {
        struct agent_file *file = &spec->files[spec->file_count];
        const char *from = NULL, *to = NULL;
        if (toml_text(item, "from", &from, err) < 0 || toml_need_text(item, "to", &to, err) < 0 ||
            check_variables(toml_get(item, "to"), to, err) < 0 ||
            read_mode(item, &file->mode, err) < 0 || read_content(spec, item, file, err) < 0)
            return -1;
        if (!from == !file->text)
            return toml_error(item, err, "a file has either 'from' or 'content'");
        if (to[0] != '/' && (!file->text || (!str_starts(str_of(to), STR("{home}/")) &&
                                             !str_starts(str_of(to), STR("{workdir}/")))))
            return toml_error(toml_get(item, "to"), err,
                              "'%s' is not an absolute path, nor one of a text below {home} or "
                              "{workdir}",
                              to);
        file->from = from ? spec_keep(spec, from) : NULL;
        file->to = spec_keep(spec, to);
        spec->file_count++;
    }
    return 0;
}

static int read_install(struct agent_spec *spec, struct toml_node *root, struct err *err)
{
    struct toml_node *table = NULL;
    long long tries = 3;
    spec->install_ms_max = 600000;
    if (toml_table(root, "install", &table, err) < 0 ||
        spec_texts(spec, table, "check", &spec->check, err) < 0 ||
        spec_texts(spec, table, "commands", &spec->install, err) < 0 ||
        spec_duration(table, "timeout", &spec->install_ms_max, err) < 0 ||
        toml_int(table, "tries", 1, 10, &tries, err) < 0)
        return -1;
    spec->install_tries_max = (uint32_t)tries;
    return 0;
}

static int read_options(struct agent_spec *spec, struct toml_node *run, struct err *err)
{
    struct toml_node *table = NULL;
    if (toml_table(run, "argv_if", &table, err) < 0)
        return -1;
    if (!table)
        return 0;
    spec->options = arena_alloc(&spec->arena, (table->count + 1) * sizeof *spec->options);
    TOML_EACH(item, table)
    {
        struct agent_option *option = &spec->options[spec->option_count++];
        bool known = false;
        for (int i = 0; i < AGENT_VARS; i++)
            known = known || strcmp(item->key, agent_variable_names[i]) == 0;
        if (!known)
            return toml_error(item, err, "there is no variable {%s}", item->key);
        option->variable = spec_keep(spec, item->key);
        if (spec_texts(spec, table, item->key, &option->argv, err) < 0)
            return -1;
    }
    return 0;
}

bool spec_uses(const struct agent_spec *spec, enum agent_variable variable)
{
    for (size_t i = 0; spec->argv[i]; i++)
        if (agent_variable_used(spec->argv[i], variable))
            return true;
    for (size_t i = 0; i < spec->option_count; i++)
        for (size_t j = 0; spec->options[i].argv[j]; j++)
            if (agent_variable_used(spec->options[i].argv[j], variable))
                return true;
    for (size_t i = 0; spec->argv_last && spec->argv_last[i]; i++)
        if (agent_variable_used(spec->argv_last[i], variable))
            return true;
    for (size_t i = 0; spec->argv_each && spec->argv_each[i]; i++)
        if (agent_variable_used(spec->argv_each[i], variable))
            return true;
    for (size_t i = 0; spec->env && spec->env[i]; i++)
        if (agent_variable_used(spec->env[i], variable))
            return true;
    for (size_t i = 0; i < spec->file_count; i++)
        if (spec->files[i].text && agent_variable_used(spec->files[i].text, variable))
            return true;
    return false;
}

/* An agent that has no place for a system prompt gets it before its instruction. */
static int read_system(struct agent_spec *spec, struct toml_node *run, struct err *err)
{
    static const char *const ways[] = {"native", "prepend", NULL};
    bool native = spec_uses(spec, AGENT_VAR_SYSTEM) || spec_uses(spec, AGENT_VAR_SYSTEM_FILE);
    int way = native ? 0 : 1;
    if (toml_choice(run, "system", ways, &way, err) < 0)
        return -1;
    if (way == 0 && !native)
        return toml_error(toml_get(run, "system"), err,
                          "system = \"native\", but neither {system} nor {system_file} is used");
    spec->system_prepended = way == 1;
    return 0;
}

static int read_run(struct agent_spec *spec, struct toml_node *root, struct err *err)
{
    static const char *const inputs[] = {"file", "stdin", "argument", "acp", NULL};
    static const char *const stops[] = {"terminate", "interrupt", NULL};
    struct toml_node *run = NULL;
    int stop = 0;
    const char *const *env = NULL;
    size_t env_count = 0;
    int input = AGENT_INPUT_FILE;

    /* Not below /opt: where owners cannot be shifted, a bundle's /opt belongs to nobody. */
    spec->instruction_file = "/var/postern/task/instruction.md";
    spec->system_file = "/var/postern/task/system.md";
    spec->cwd = "{workdir}";
    if (toml_need_table(root, "run", &run, err) < 0 ||
        spec_texts(spec, run, "argv", &spec->argv, err) < 0 || read_options(spec, run, err) < 0 ||
        spec_texts(spec, run, "argv_last", &spec->argv_last, err) < 0 ||
        spec_texts(spec, run, "argv_each", &spec->argv_each, err) < 0 ||
        spec_text(spec, run, "cwd", &spec->cwd, err) < 0 ||
        spec_text(spec, run, "user", &spec->user, err) < 0 ||
        toml_environment(run, "env", &env, &env_count, err) < 0 ||
        toml_choice(run, "instruction", inputs, &input, err) < 0 ||
        spec_text(spec, run, "instruction_file", &spec->instruction_file, err) < 0 ||
        spec_text(spec, run, "system_file", &spec->system_file, err) < 0 ||
        spec_duration(run, "timeout", &spec->timeout_ms, err) < 0 ||
        spec_duration(run, "grace", &spec->grace_ms, err) < 0 ||
        toml_choice(run, "stop", stops, &stop, err) < 0)
        return -1;
    spec->interrupted = stop == 1;
    if (!spec->argv)
        return toml_error(run, err, "[run] needs 'argv', a list of arguments");
    if (env && keep_list(spec, toml_get(run, "env"), env, env_count, &spec->env, err) < 0)
        return -1;
    spec->input = (enum agent_input)input;
    if (spec->disabled && !spec->argv_each && !spec_uses(spec, AGENT_VAR_DISABLED_TOOLS))
        return toml_error(run, err,
                          "disabled_tools is said, but neither {disabled_tools} nor argv_each "
                          "hands it over");
    if (read_system(spec, run, err) < 0)
        return -1;
    if (spec->instruction_file[0] != '/' || spec->system_file[0] != '/')
        return toml_error(run, err, "instruction_file and system_file are absolute paths");
    if (spec->input == AGENT_INPUT_FILE && !spec_uses(spec, AGENT_VAR_INSTRUCTION_FILE))
        return toml_error(run, err,
                          "instruction = \"file\", but {instruction_file} is not in argv or env");
    if (spec->input == AGENT_INPUT_ARGUMENT && !spec_uses(spec, AGENT_VAR_INSTRUCTION))
        return toml_error(run, err,
                          "instruction = \"argument\", but {instruction} is not in argv or env");
    return 0;
}

int spec_conditions(struct agent_spec *spec, struct toml_node *table, const char *prefix,
                    int (*add)(void *context, struct toml_node *item, const char *path,
                               const char *value, struct err *err),
                    void *context, struct err *err)
{
    TOML_EACH(item, table)
    {
        const char *path = prefix[0] ? arena_format(&spec->arena, "%s.%s", prefix, item->key)
                                     : spec_keep(spec, item->key);
        if (item->type == TOML_TABLE) {
            if (spec_conditions(spec, item, path, add, context, err) < 0)
                return -1;
            continue;
        }
        const char *value = item->type == TOML_STRING    ? spec_keep(spec, item->text)
                            : item->type == TOML_BOOLEAN ? (item->truth ? "true" : "false")
                            : item->type == TOML_INTEGER
                                ? arena_format(&spec->arena, "%lld", item->integer)
                                : NULL;
        if (!value)
            return toml_error(item, err, "a condition is a text, a whole number or a truth");
        if (add(context, item, path, value, err) < 0)
            return -1;
    }
    return 0;
}

static int add_condition(void *context, struct toml_node *item, const char *path, const char *value,
                         struct err *err)
{
    struct agent_rule *rule = context;
    if (rule->when_count == CONDITIONS_MAX)
        return toml_error(item, err, "a rule has at most %d conditions", CONDITIONS_MAX);
    rule->when[rule->when_count++] = (struct agent_condition){path, value};
    return 0;
}

static int read_rule(struct agent_spec *spec, struct toml_node *item, struct err *err)
{
    struct agent_rule *rule = &spec->rules[spec->rule_count++];
    struct toml_node *when = NULL;
    const char *kinds[AGENT_OTHER + 3] = {0};
    int kind = 0;
    for (int i = 0; i <= AGENT_OTHER; i++)
        kinds[i] = agent_event_kind_name((enum agent_event_kind)i);
    kinds[AGENT_OTHER + 1] = "ignore";
    rule->when = arena_alloc(&spec->arena, CONDITIONS_MAX * sizeof *rule->when);
    if (toml_need_table(item, "when", &when, err) < 0)
        return -1;
    toml_use_all(when);
    if (!toml_get(item, "kind"))
        return toml_error(item, err, "a rule needs its 'kind'");
    if (spec_conditions(spec, when, "", add_condition, rule, err) < 0 ||
        toml_choice(item, "kind", kinds, &kind, err) < 0 ||
        spec_text(spec, item, "each", &rule->each, err) < 0 ||
        spec_texts(spec, item, "text", &rule->text, err) < 0 ||
        spec_text(spec, item, "name", &rule->name, err) < 0 ||
        spec_text(spec, item, "id", &rule->id, err) < 0 ||
        toml_bool(item, "also", &rule->also, err) < 0 ||
        toml_bool(item, "piece", &rule->piece, err) < 0 ||
        toml_bool(item, "limit", &rule->limit, err) < 0)
        return -1;
    rule->kind = kind > AGENT_OTHER ? AGENT_IGNORED : kind;
    return 0;
}

static int read_output(struct agent_spec *spec, struct toml_node *root, struct err *err)
{
    static const char *const formats[] = {"text", "jsonl", "acp", NULL};
    struct toml_node *output = NULL, *events = NULL, *rules = NULL;
    int format = AGENT_FORMAT_TEXT;
    unsigned long long line_max = 1 << 20;

    spec->type_key = "type";
    if (toml_table(root, "output", &output, err) < 0 ||
        toml_choice(output, "format", formats, &format, err) < 0 ||
        spec_text(spec, output, "type", &spec->type_key, err) < 0 ||
        spec_texts(spec, output, "text", &spec->text_keys, err) < 0 ||
        toml_size(output, "line_max", 256, 64 << 20, &line_max, err) < 0 ||
        toml_table(output, "events", &events, err) < 0 ||
        toml_tables(output, "rules", &rules, err) < 0)
        return -1;
    spec->format = (enum agent_format)format;
    if ((spec->format == AGENT_FORMAT_ACP) != (spec->input == AGENT_INPUT_ACP))
        return toml_error(output ? output : root, err,
                          "instruction = \"acp\" and output.format = \"acp\" go together");
    spec->line_bytes_max = line_max;
    for (int kind = 0; kind < AGENT_OTHER; kind++)
        if (spec_texts(spec, events, agent_event_kind_name((enum agent_event_kind)kind),
                       &spec->events[kind], err) < 0)
            return -1;
    if (rules)
        spec->rules = arena_alloc(&spec->arena, (rules->count + 1) * sizeof *spec->rules);
    TOML_EACH(item, rules)
    {
        if (read_rule(spec, item, err) < 0)
            return -1;
    }
    if (spec->format == AGENT_FORMAT_JSONL && !events && !rules)
        return toml_error(output, err, "format = \"jsonl\" needs [output.events] or rules");
    return 0;
}

static int read_dialects(struct agent_spec *spec, struct toml_node *root, struct err *err)
{
    const char *const *list = NULL;
    if (spec_texts(spec, root, "dialect", &list, err) < 0)
        return -1;
    for (size_t i = 0; list && list[i]; i++) {
        size_t at = 0;
        while (at < COUNT(dialect_names) && strcmp(list[i], dialect_names[at]) != 0)
            at++;
        if (at == COUNT(dialect_names))
            return toml_error(toml_get(root, "dialect"), err,
                              "'%s' is none of chat, completions, responses, messages, google",
                              list[i]);
        spec->dialects |= 1u << at;
    }
    return 0;
}

static int read_disabled(struct agent_spec *spec, struct toml_node *root, struct err *err)
{
    const char *const *list = NULL;
    OWN(buf) struct buf joined = {0};
    if (spec_texts(spec, root, "disabled_tools", &list, err) < 0)
        return -1;
    spec->disabled = list;
    for (size_t i = 0; list && list[i]; i++)
        buf_format(&joined, "%s%s", i ? "," : "", list[i]);
    if (joined.size)
        spec->disabled_tools = arena_text(&spec->arena, buf_str(&joined));
    return 0;
}

/* It is part of file names: bundles, folders inside. */
static bool is_name(const char *name)
{
    size_t size = strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-");
    return size > 0 && size <= 64 && !name[size] && name[0] != '.' && name[0] != '-';
}

static int read_keys(struct agent_spec *spec, struct toml *toml, struct err *err)
{
    struct toml_node *root = toml->root;
    const char *name = NULL;
    if (toml_need_text(root, "name", &name, err) < 0)
        return -1;
    if (!is_name(name))
        return toml_error(toml_get(root, "name"), err,
                          "a name has letters, digits, '.', '_' and '-', not '%s'", name);
    spec->name = spec_keep(spec, name);
    if (spec_text(spec, root, "summary", &spec->summary, err) < 0 ||
        spec_text(spec, root, "version", &spec->version, err) < 0 ||
        read_dialects(spec, root, err) < 0 || read_disabled(spec, root, err) < 0 ||
        toml_bool(root, "root", &spec->root, err) < 0 ||
        toml_bool(root, "solution", &spec->solution, err) < 0 ||
        agent_bundle_read(spec, root, err) < 0 || read_files(spec, root, err) < 0 ||
        read_install(spec, root, err) < 0 || read_run(spec, root, err) < 0 ||
        read_output(spec, root, err) < 0 || agent_exit_read(spec, root, err) < 0 ||
        agent_acp_read(spec, root, err) < 0 || agent_wire_read(spec, root, err) < 0 ||
        agent_needs_read(spec, root, err) < 0 || agent_artifacts_read(spec, root, err) < 0)
        return -1;
    return toml_check_unused(toml, err);
}

static struct agent_spec *spec_new(const char *where)
{
    struct agent_spec *spec = mem_zero(sizeof *spec);
    atomic_init(&spec->references, 1);
    spec->arena.bytes_max = 16 << 20;
    spec->where = spec_keep(spec, where);
    spec->summary = spec->version = "";
    return spec;
}

struct agent_spec *agent_spec_parse(struct str text, const char *where, struct err *err)
{
    OWN(toml) struct toml toml = {0};
    if (toml_read(&toml, where, text, err) < 0)
        return NULL;
    struct agent_spec *spec = spec_new(where);
    if (read_keys(spec, &toml, err) < 0) {
        agent_spec_unref(spec);
        return NULL;
    }
    return spec;
}

/* ---------------------------------------------------------------- finding */
static char *find_spec(const char *what, const struct agent_dirs *dirs, struct err *err)
{
    if (strchr(what, '/') || str_ends(str_of(what), STR(".toml"))) {
        if (file_exists(what))
            return mem_dup(what);
        err_set(err, ERR_NOT_FOUND, "there is no agent spec '%s'", what);
        return NULL;
    }
    for (size_t i = 0; dirs->spec_dirs && dirs->spec_dirs[i]; i++) {
        char *path = mem_format("%s/%s.toml", dirs->spec_dirs[i], what);
        if (file_exists(path))
            return path;
        free(path);
    }
    err_set(err, ERR_NOT_FOUND, "there is no agent '%s' (see: postern agents ls)", what);
    return NULL;
}

/* Names with a '/' are beside the spec unless absolute; bare names are looked for where programs
 * are. */
static int load_file(struct agent_spec *spec, struct agent_file *file, const char *spec_path,
                     const struct agent_dirs *dirs, struct err *err)
{
    OWN(mem) char *path = NULL;
    if (file->from[0] == '/') {
        path = mem_dup(file->from);
    } else if (strchr(file->from, '/')) {
        const char *slash = strrchr(spec_path, '/');
        path = slash ? mem_format("%.*s/%s", (int)(slash - spec_path), spec_path, file->from)
                     : mem_dup(file->from);
    } else {
        for (size_t i = 0; !path && dirs->file_dirs && dirs->file_dirs[i]; i++) {
            char *candidate = mem_format("%s/%s", dirs->file_dirs[i], file->from);
            if (file_exists(candidate))
                path = candidate;
            else
                free(candidate);
        }
    }
    if (!path)
        return err_set(err, ERR_NOT_FOUND, "agent %s: the file '%s' is not beside the program",
                       spec->name, file->from);
    if (file_read(path, AGENT_FILE_BYTES_MAX, &file->content, err) < 0)
        return err_wrap(err, "agent %s", spec->name);
    return 0;
}

struct agent_spec *agent_spec_load(const char *what, const struct agent_dirs *dirs, struct err *err)
{
    OWN(mem) char *path = find_spec(what, dirs, err);
    if (!path)
        return NULL;
    OWN(toml) struct toml toml = {0};
    if (toml_read_file(&toml, path, err) < 0)
        return NULL;
    struct agent_spec *spec = spec_new(path);
    int result = read_keys(spec, &toml, err);
    for (size_t i = 0; result == 0 && i < spec->file_count; i++)
        result = spec->files[i].from ? load_file(spec, &spec->files[i], path, dirs, err) : 0;
    if (result < 0) {
        agent_spec_unref(spec);
        return NULL;
    }
    return spec;
}

/* ---------------------------------------------------------------- the object */
struct agent_spec *agent_spec_ref(struct agent_spec *spec)
{
    atomic_fetch_add(&spec->references, 1);
    return spec;
}

void agent_spec_unref(struct agent_spec *spec)
{
    if (!spec || atomic_fetch_sub(&spec->references, 1) != 1)
        return;
    for (size_t i = 0; i < spec->file_count; i++)
        buf_deinit(&spec->files[i].content);
    arena_deinit(&spec->arena);
    free(spec);
}

const char *agent_spec_name(const struct agent_spec *spec)
{
    return spec->name;
}

const char *agent_spec_version(const struct agent_spec *spec)
{
    return spec->version;
}

const char *agent_spec_summary(const struct agent_spec *spec)
{
    return spec->summary;
}

uint32_t agent_spec_timeout_ms(const struct agent_spec *spec)
{
    return spec->timeout_ms;
}

bool agent_spec_wants_root(const struct agent_spec *spec)
{
    return spec->root;
}

bool agent_spec_wants_solution(const struct agent_spec *spec)
{
    return spec->solution;
}

const char *const *agent_spec_artifacts(const struct agent_spec *spec, const char *workdir,
                                        bool as_root, struct arena *arena)
{
    struct agent_values values = {0};
    size_t count = 0;
    while (spec->artifacts && spec->artifacts[count])
        count++;
    if (!count)
        return NULL;
    const char **list = arena_alloc(arena, (count + 1) * sizeof *list);
    agent_values_fixed(arena, spec, &values);
    values.value[AGENT_VAR_HOME] = as_root ? "/root" : "/home/agent";
    values.value[AGENT_VAR_WORKDIR] = workdir;
    for (size_t i = 0; i < count; i++)
        list[i] = agent_expand(arena, spec->artifacts[i], &values);
    return list;
}

static void write_list(struct json_writer *out, const char *key, const char *const *list)
{
    json_key(out, key);
    json_begin_array(out);
    for (size_t i = 0; list && list[i]; i++)
        json_put_text(out, list[i]);
    json_end_array(out);
}

void agent_spec_write(const struct agent_spec *spec, struct json_writer *out)
{
    json_begin_object(out);
    agent_spec_write_members(spec, out);
    json_end_object(out);
}

void agent_spec_write_members(const struct agent_spec *spec, struct json_writer *out)
{
    static const char *const inputs[] = {"file", "stdin", "argument", "acp"};
    static const char *const outputs[] = {"text", "jsonl", "acp"};
    json_set_text(out, "name", spec->name);
    json_set_text(out, "summary", spec->summary);
    json_set_text(out, "version", spec->version);
    json_set_text(out, "source", spec->where);
    write_list(out, "argv", spec->argv);
    json_set_text(out, "instruction", inputs[spec->input]);
    json_set_text(out, "output", outputs[spec->format]);
    json_set_bool(out, "root", spec->root);
    json_key(out, "files");
    json_begin_array(out);
    for (size_t i = 0; i < spec->file_count; i++)
        json_put_text(out, spec->files[i].to);
    json_end_array(out);
    json_key(out, "dialects");
    json_begin_array(out);
    for (size_t i = 0; i < COUNT(dialect_names); i++)
        if (spec->dialects & 1u << i)
            json_put_text(out, dialect_names[i]);
    json_end_array(out);
    agent_wire_write(spec, out);
}
