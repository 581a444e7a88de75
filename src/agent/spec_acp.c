/* spec_acp.c - [acp]: how an agent is driven through the Agent Client Protocol.
 *
 * An agent that knows nothing else has run.instruction = "acp". One that is usually told its task
 * once may have an ACP server besides: with acp.argv it is started so when the user has more to say
 * than the instruction. */
#include "agent/agent.h"

#include "agent/internal.h"
#include "config/toml.h"

static bool list_uses(const char *const *list, enum agent_variable variable)
{
    for (size_t i = 0; list && list[i]; i++)
        if (agent_variable_used(list[i], variable))
            return true;
    return false;
}

/* Outside of run.argv, which is not used then. */
static bool used_besides(const struct agent_spec *spec, enum agent_variable variable)
{
    for (size_t i = 0; i < spec->file_count; i++)
        if (spec->files[i].text && agent_variable_used(spec->files[i].text, variable))
            return true;
    return list_uses(spec->env, variable) || list_uses(spec->acp.argv, variable) ||
           (spec->acp.meta && agent_variable_used(spec->acp.meta, variable));
}

int agent_acp_read(struct agent_spec *spec, struct toml_node *root, struct err *err)
{
    static const char *const permissions[] = {"allow", "deny", NULL};
    struct agent_acp_way *way = &spec->acp;
    struct toml_node *table = NULL;
    struct err why = {0};
    int permission = 0;
    if (toml_table(root, "acp", &table, err) < 0 ||
        spec_texts(spec, table, "argv", &way->argv, err) < 0 ||
        toml_choice(table, "permission", permissions, &permission, err) < 0 ||
        spec_texts(spec, table, "deny", &way->deny, err) < 0 ||
        toml_bool(table, "files", &way->files, err) < 0 ||
        toml_bool(table, "terminals", &way->terminals, err) < 0 ||
        spec_text(spec, table, "auth", &way->auth, err) < 0 ||
        spec_text(spec, table, "mode", &way->mode, err) < 0 ||
        spec_text(spec, table, "meta", &way->meta, err) < 0)
        return -1;
    way->deny_all = permission == 1;
    if (way->deny && permission == 1)
        return toml_error(toml_get(table, "deny"), err,
                          "permission = \"deny\" refuses every kind already");
    if (table && !way->argv && spec->input != AGENT_INPUT_ACP)
        return toml_error(table, err,
                          "[acp] needs 'argv', or run.instruction = \"acp\": else nobody speaks "
                          "it");
    if (way->argv && spec->input == AGENT_INPUT_ACP)
        return toml_error(toml_get(table, "argv"), err,
                          "run.instruction = \"acp\": run.argv is what is started");
    if (way->meta && agent_text_prove(way->meta, AGENT_TEXT_JSON, &why) < 0)
        return toml_error(toml_get(table, "meta"), err, "not json for all values: %s", why.text);
    way->system_native =
        used_besides(spec, AGENT_VAR_SYSTEM) || used_besides(spec, AGENT_VAR_SYSTEM_FILE);
    return 0;
}
