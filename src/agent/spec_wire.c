/* spec_wire.c - the parts of a spec about what passes between the agent and its inlet. */
#include "agent/agent.h"

#include "agent/internal.h"
#include "config/toml.h"

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
        return toml_error(table, err, "kind = \"acp\" needs run.instruction = \"acp\"");
    return 0;
}

int agent_wire_read(struct agent_spec *spec, struct toml_node *root, struct err *err)
{
    return read_mcp(spec, root, err);
}

int agent_spec_fit(const struct agent_spec *spec, const struct agent_wants *wants, struct err *err)
{
    if (wants->tools && spec->mcp == AGENT_MCP_NONE)
        return err_set(err, ERR_UNSUPPORTED,
                       "the agent %s has no MCP: it could not call the tools of this task",
                       spec->name);
    return 0;
}
