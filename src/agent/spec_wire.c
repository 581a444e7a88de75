/* spec_wire.c - the parts of a spec about what passes between the agent and its inlet: MCP, calls
 * that are no turns, nonces, signs of life, retries. They become the plain data of trace/rules.h,
 * which the gateway applies without knowing whose they are. */
#include "agent/agent.h"

#include <stdlib.h>

#include "agent/internal.h"
#include "base/mem.h"
#include "config/toml.h"
#include "json/json.h"

#define CONDITIONS_MAX 8
#define RULES_MAX 64

/* [mcp]: how the agent is told of the server on its inlet. Without it, by whether {mcp_url} is
 * used. */
static int read_mcp(struct agent_spec *spec, struct toml_node *root, struct err *err)
{
    static const char *const kinds[] = {"none", "config", "acp", NULL};
    struct toml_node *table = NULL;
    bool used = spec_uses(spec, AGENT_VAR_MCP_URL);
    int kind = used ? 1 : -1;
    if (toml_table(root, "mcp", &table, err) < 0 ||
        toml_choice(table, "kind", kinds, &kind, err) < 0)
        return -1;
    spec->mcp = (enum agent_mcp)(kind + 1);
    if (spec->mcp == AGENT_MCP_CONFIG && !used)
        return toml_error(table, err, "kind = \"config\", but {mcp_url} is not used anywhere");
    if (spec->mcp == AGENT_MCP_NONE && used)
        return toml_error(table, err, "kind = \"none\", but {mcp_url} is used");
    if (spec->mcp == AGENT_MCP_ACP && spec->input != AGENT_INPUT_ACP)
        return toml_error(table, err,
                          "kind = \"acp\" needs run.instruction = \"acp\": run.argv knows no "
                          "servers");
    return 0;
}

/* ---------------------------------------------------------------- side calls */

static bool is_known(const char *what)
{
    static const char *const known[] = {"path",       "model",    "system", "first", "last",
                                        "max_tokens", "messages", "tools",  "stream"};
    for (size_t i = 0; i < COUNT(known); i++)
        if (strcmp(what, known[i]) == 0)
            return true;
    return (strncmp(what, "header.", 7) == 0 && what[7]) ||
           (strncmp(what, "body.", 5) == 0 && what[5]);
}

static int add_when(void *context, struct toml_node *item, const char *path, const char *value,
                    struct err *err)
{
    struct trace_side_rule *rule = context;
    if (!is_known(path))
        return toml_error(item, err,
                          "there is no '%s' to ask about; there are path, model, system, first, "
                          "last, max_tokens, messages, tools, stream, header.NAME and body.MEMBER",
                          path);
    if (rule->when_count == CONDITIONS_MAX)
        return toml_error(item, err, "a rule has at most %d conditions", CONDITIONS_MAX);
    rule->when[rule->when_count++] = (struct trace_condition){path, value};
    return 0;
}

static int read_sides(struct agent_spec *spec, struct toml_node *root, struct err *err)
{
    struct toml_node *list = NULL;
    if (toml_tables(root, "side_calls", &list, err) < 0)
        return -1;
    if (!list)
        return 0;
    if (list->count > RULES_MAX)
        return toml_error(list, err, "more than %d rules", RULES_MAX);
    struct trace_side_rule *rules = arena_alloc(&spec->arena, (list->count + 1) * sizeof *rules);
    spec->rules_wire.sides = rules;
    TOML_EACH(item, list)
    {
        struct trace_side_rule *rule = &rules[spec->rules_wire.side_count++];
        struct toml_node *when = NULL;
        const char *name = NULL;
        rule->side = true;
        rule->when = arena_alloc(&spec->arena, CONDITIONS_MAX * sizeof *rule->when);
        if (toml_need_text(item, "name", &name, err) < 0 ||
            toml_bool(item, "side", &rule->side, err) < 0 ||
            toml_need_table(item, "when", &when, err) < 0)
            return -1;
        rule->name = spec_keep(spec, name);
        toml_use_all(when);
        if (spec_conditions(spec, when, "", add_when, rule, err) < 0)
            return -1;
        if (!rule->when_count)
            return toml_error(when, err, "a rule without conditions would fit every call");
    }
    return 0;
}

/* ---------------------------------------------------------------- nonces */

/* As it stands inside a JSON string. */
static const char *escaped(struct agent_spec *spec, const char *text)
{
    OWN(buf) struct buf quoted = {0};
    json_quote(&quoted, str_of(text));
    return arena_text(&spec->arena, str_make(quoted.data + 1, quoted.size - 2));
}

static int read_sizes(struct toml_node *item, struct trace_nonce *nonce, struct err *err)
{
    struct toml_node *node = toml_get(item, "size");
    if (!node)
        return toml_error(item, err, "a nonce needs its 'size': a number, or [least, most]");
    struct toml_node *least = node->type == TOML_ARRAY ? node->first : node;
    struct toml_node *most = least && node->type == TOML_ARRAY ? least->next : least;
    if (!least || !most || least->type != TOML_INTEGER || most->type != TOML_INTEGER ||
        (node->type == TOML_ARRAY && node->count != 2) || least->integer < 1 ||
        most->integer < least->integer || most->integer > 256)
        return toml_error(node, err, "size is a number from 1 to 256, or [least, most] of them");
    nonce->size_min = (uint32_t)least->integer;
    nonce->size_max = (uint32_t)most->integer;
    return 0;
}

static int read_nonces(struct agent_spec *spec, struct toml_node *root, struct err *err)
{
    static const char *const classes[] = {"digits", "hex", "number", "word", NULL};
    struct toml_node *list = NULL;
    if (toml_tables(root, "nonces", &list, err) < 0)
        return -1;
    if (!list)
        return 0;
    if (list->count > RULES_MAX)
        return toml_error(list, err, "more than %d rules", RULES_MAX);
    struct trace_nonce *nonces = arena_alloc(&spec->arena, (list->count + 1) * sizeof *nonces);
    spec->rules_wire.nonces = nonces;
    TOML_EACH(item, list)
    {
        struct trace_nonce *nonce = &nonces[spec->rules_wire.nonce_count++];
        const char *name = NULL, *after = NULL, *before = "", *put = "0";
        int chars = TRACE_CHARS_HEX;
        if (toml_need_text(item, "name", &name, err) < 0 ||
            toml_need_text(item, "after", &after, err) < 0 ||
            toml_text(item, "before", &before, err) < 0 || toml_text(item, "put", &put, err) < 0 ||
            toml_choice(item, "chars", classes, &chars, err) < 0 ||
            read_sizes(item, nonce, err) < 0)
            return -1;
        if (!name[0] || strpbrk(name, "{}\"\\"))
            return toml_error(toml_get(item, "name"), err,
                              "a nonce's name has no braces or quotes");
        if (strlen(after) < 3)
            return toml_error(toml_get(item, "after"), err,
                              "'after' has at least 3 characters, or it is found everywhere");
        nonce->name = spec_keep(spec, name);
        nonce->after = escaped(spec, after);
        nonce->before = escaped(spec, before);
        nonce->put = escaped(spec, put);
        nonce->chars = (enum trace_chars)chars;
    }
    return 0;
}

/* ---------------------------------------------------------------- waiting and retries */

static int read_wire(struct agent_spec *spec, struct toml_node *root, struct err *err)
{
    static const char *const forms[] = {"dialect", "comment", "event", "data", "none", NULL};
    struct toml_node *table = NULL;
    int form = TRACE_KEEPALIVE_DIALECT;
    if (toml_table(root, "wire", &table, err) < 0 ||
        toml_choice(table, "keepalive", forms, &form, err) < 0 ||
        spec_duration(table, "keepalive_every", &spec->rules_wire.keepalive_ms, err) < 0 ||
        spec_duration(table, "headers_after", &spec->rules_wire.headers_after_ms, err) < 0)
        return -1;
    spec->rules_wire.keepalive = (enum trace_keepalive)form;
    return 0;
}

static int read_retry(struct agent_spec *spec, struct toml_node *root, struct err *err)
{
    static const char *const ways[] = {"retries", "ends", "fails", NULL};
    struct toml_node *table = NULL;
    uint32_t after_ms = 0;
    long long attempts = 0;
    int reset = 0;
    if (toml_table(root, "retry", &table, err) < 0 ||
        toml_int(table, "attempts", 1, 1000, &attempts, err) < 0 ||
        spec_duration(table, "after_max", &after_ms, err) < 0 ||
        spec_duration(table, "grace", &spec->rules_wire.retry_grace_ms, err) < 0 ||
        toml_choice(table, "reset", ways, &reset, err) < 0)
        return -1;
    if (after_ms && after_ms < 1000)
        return toml_error(toml_get(table, "after_max"), err, "after_max is at least 1s");
    spec->rules_wire.retry_after_s_max = after_ms / 1000;
    spec->retry_attempts = (uint32_t)attempts;
    spec->reset_ends = reset == 1;
    return 0;
}

int agent_wire_read(struct agent_spec *spec, struct toml_node *root, struct err *err)
{
    if (read_mcp(spec, root, err) < 0 || read_sides(spec, root, err) < 0 ||
        read_nonces(spec, root, err) < 0 || read_wire(spec, root, err) < 0)
        return -1;
    return read_retry(spec, root, err);
}

const struct trace_rules *agent_spec_rules(const struct agent_spec *spec)
{
    return &spec->rules_wire;
}

bool agent_spec_reset_ends(const struct agent_spec *spec)
{
    return spec->reset_ends;
}

void agent_wire_write(const struct agent_spec *spec, struct json_writer *out)
{
    static const char *const mcp[] = {NULL, "none", "config", "acp"};
    const struct trace_rules *rules = &spec->rules_wire;
    json_set_text(out, "mcp", mcp[spec->mcp]);
    json_set_bool(out, "takes_turns", agent_spec_takes_turns(spec));
    json_key(out, "side_calls");
    json_begin_array(out);
    for (size_t i = 0; i < rules->side_count; i++)
        json_put_text(out, rules->sides[i].name);
    json_end_array(out);
    json_key(out, "nonces");
    json_begin_array(out);
    for (size_t i = 0; i < rules->nonce_count; i++)
        json_put_text(out, rules->nonces[i].name);
    json_end_array(out);
    if (spec->retry_attempts)
        json_set_int(out, "retry_attempts", spec->retry_attempts);
}
