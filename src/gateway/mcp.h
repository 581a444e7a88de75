/* mcp.h - private to the gateway room: the words of an MCP server. */
#ifndef GATEWAY_MCP_H
#define GATEWAY_MCP_H

#include <stdbool.h>

#include "base/str.h"
#include "json/json.h"

struct tools;

enum mcp_version {
    MCP_2024_11_05,
    MCP_2025_03_26,
    MCP_2025_06_18,
    MCP_2025_11_25, /* the last that begins with initialize */
    MCP_2026_07_28,
    MCP_VERSIONS
};
extern const char *const mcp_version_names[MCP_VERSIONS];
bool mcp_version_find(struct str text, enum mcp_version *out);

/* Each writes one object, but the first a member. */
void mcp_write_supported(const char *key, struct json_writer *out);
void mcp_write_hello(enum mcp_version version, struct json_writer *out); /* of initialize */
void mcp_write_discovered(struct json_writer *out);
void mcp_write_list(const struct tools *tools, enum mcp_version version, struct json_writer *out);
void mcp_write_result(struct json result, enum mcp_version version, struct json_writer *out);
void mcp_write_failure(const char *text, enum mcp_version version, struct json_writer *out);

#endif
