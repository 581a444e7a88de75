/* mcp_words.c - what an MCP server says, as pure functions: who it is, its list of tools, results.
 * Each version has a few words more than the one before. */
#include "gateway/mcp.h"

#include "base/mem.h"
#include "gateway/tools.h"
#include "json/json.h"

#define SERVER "{\"name\":\"postern\",\"title\":\"Tools of this task\",\"version\":\"1\"}"

const char *const mcp_version_names[MCP_VERSIONS] = {"2024-11-05", "2025-03-26", "2025-06-18",
                                                     "2025-11-25", "2026-07-28"};

bool mcp_version_find(struct str text, enum mcp_version *out)
{
    for (int i = 0; i < MCP_VERSIONS; i++)
        if (str_is(text, mcp_version_names[i])) {
            *out = (enum mcp_version)i;
            return true;
        }
    return false;
}

/* ---------------------------------------------------------------- who it is */

void mcp_write_supported(const char *key, struct json_writer *out)
{
    json_key(out, key);
    json_begin_array(out);
    for (int i = 0; i < MCP_VERSIONS; i++)
        json_put_text(out, mcp_version_names[i]);
    json_end_array(out);
}

void mcp_write_hello(enum mcp_version version, struct json_writer *out)
{
    json_begin_object(out);
    json_set_text(out, "protocolVersion", mcp_version_names[version]);
    json_set_raw(out, "capabilities", STR("{\"tools\":{\"listChanged\":false}}"));
    json_set_raw(out, "serverInfo", STR(SERVER));
    json_end_object(out);
}

/* Since 2026-07-28 results say that they are whole, and how long a list stays true: here as long as
 * the rollout. */
static void write_whole(enum mcp_version version, bool kept, struct json_writer *out)
{
    if (version < MCP_2026_07_28)
        return;
    json_set_text(out, "resultType", "complete");
    if (!kept)
        return;
    json_set_int(out, "ttlMs", 3600000);
    json_set_text(out, "cacheScope", "private");
}

void mcp_write_discovered(struct json_writer *out)
{
    json_begin_object(out);
    write_whole(MCP_2026_07_28, true, out);
    mcp_write_supported("supportedVersions", out);
    json_set_raw(out, "capabilities", STR("{\"tools\":{}}"));
    json_set_raw(out, "_meta", STR("{\"io.modelcontextprotocol/serverInfo\":" SERVER "}"));
    json_end_object(out);
}

/* ---------------------------------------------------------------- the list */

struct listing {
    struct json_writer *out;
    enum mcp_version version;
};

static void write_schema(struct json_writer *out, struct json schema)
{
    OWN(buf) struct buf whole = {0};
    json_key(out, "inputSchema");
    if (!json_exists(schema)) {
        json_put_raw(out, STR("{\"type\":\"object\",\"properties\":{}}"));
        return;
    }
    /* Clients refuse a schema that does not say that it is one of an object. */
    struct json_edit edit = {"type", STR("\"object\"")};
    if (!json_is(json_get(schema, "type"), "object"))
        json_splice(schema, &edit, 1, &whole);
    json_put_raw(out, whole.size ? buf_str(&whole) : json_raw(schema));
}

static void write_member(struct json_writer *out, struct json tool, const char *key,
                         enum json_type type)
{
    struct json value = json_get(tool, key);
    if (json_type(value) == type)
        json_set_raw(out, key, json_raw(value));
}

static void write_tool(void *context, const struct tool *tool)
{
    struct listing *listing = context;
    struct json_writer *out = listing->out;
    json_begin_object(out);
    json_set_raw(out, "name", json_raw(tool->name));
    if (json_type(tool->description) == JSON_STRING)
        json_set_raw(out, "description", json_raw(tool->description));
    write_schema(out, tool->schema);
    if (listing->version >= MCP_2025_03_26)
        write_member(out, tool->whole, "annotations", JSON_OBJECT);
    if (listing->version >= MCP_2025_06_18) {
        write_member(out, tool->whole, "title", JSON_STRING);
        write_member(out, tool->whole, "outputSchema", JSON_OBJECT);
    }
    json_end_object(out);
}

void mcp_write_list(const struct tools *tools, enum mcp_version version, struct json_writer *out)
{
    struct listing listing = {out, version};
    json_begin_object(out);
    write_whole(version, true, out);
    json_key(out, "tools");
    json_begin_array(out);
    tools_each(tools, write_tool, &listing);
    json_end_array(out);
    json_end_object(out);
}

/* ---------------------------------------------------------------- results */

static void write_text_content(struct json_writer *out, struct str text)
{
    json_key(out, "content");
    json_begin_array(out);
    json_begin_object(out);
    json_set_text(out, "type", "text");
    json_set_str(out, "text", text);
    json_end_object(out);
    json_end_array(out);
}

/* Whoever answers may say it in MCP's own words: an object with "content". A text is a text; other
 * values are said as JSON, and objects as structured content too where the version has that. */
void mcp_write_result(struct json result, enum mcp_version version, struct json_writer *out)
{
    OWN(arena) struct arena arena = {0};
    bool object = json_type(result) == JSON_OBJECT;
    if (object && json_type(json_get(result, "content")) == JSON_ARRAY) {
        OWN(buf) struct buf whole = {0};
        struct json_edit edit = {"resultType", STR("\"complete\"")};
        if (version >= MCP_2026_07_28)
            json_splice(result, &edit, 1, &whole);
        json_put_raw(out, whole.size ? buf_str(&whole) : json_raw(result));
        return;
    }
    json_begin_object(out);
    write_whole(version, false, out);
    write_text_content(out, json_type(result) == JSON_STRING ? json_str(result, &arena)
                                                             : json_raw(result));
    if (object && version >= MCP_2025_06_18)
        json_set_raw(out, "structuredContent", json_raw(result));
    json_set_bool(out, "isError", false);
    json_end_object(out);
}

void mcp_write_failure(const char *text, enum mcp_version version, struct json_writer *out)
{
    json_begin_object(out);
    write_whole(version, false, out);
    write_text_content(out, str_of(text));
    json_set_bool(out, "isError", true);
    json_end_object(out);
}
