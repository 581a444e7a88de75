/* What a spec says about calls, retries, needs and ends: read as meant, wrong ones named. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/internal.h"
#include "base/mem.h"
#include "test.h"

#define RUN "[run]\nargv = [\"a\", \"{instruction_file}\"]\n"
#define HEAD "name = \"x\"\n" RUN

static void expect_error(const char *text, const char *words)
{
    struct err err = {0};
    struct agent_spec *spec = agent_spec_parse(str_of(text), "a.toml", &err);
    if (spec)
        test_fail(__FILE__, __LINE__, "taken: %s", text);
    else if (!strstr(err.text, words))
        test_fail(__FILE__, __LINE__, "\"%s\" does not say \"%s\"", err.text, words);
    agent_spec_unref(spec);
}

static struct agent_spec *expect_spec(const char *text)
{
    struct err err = {0};
    struct agent_spec *spec = agent_spec_parse(str_of(text), "a.toml", &err);
    if (!spec)
        test_fail(__FILE__, __LINE__, "%s", err.text);
    return spec;
}

TEST(rules_about_calls_are_read)
{
    struct agent_spec *spec = expect_spec(
        HEAD "[[side_calls]]\nname = \"title\"\n"
             "when = { tools = false, max_tokens = \"<=32\", header = { x-kind = \"a*\" }, "
             "body = { output.type = \"json\" } }\n"
             "[[side_calls]]\nname = \"talk\"\nside = false\nwhen = { path = \"/v1/x\" }\n"
             "[[nonces]]\nname = \"n\"\nafter = \"\\\"id\\\": \"\nsize = [2, 4]\nput = \"a\\n\"\n"
             "[wire]\nkeepalive = \"data\"\nkeepalive_every = \"3s\"\nheaders_after = \"4s\"\n"
             "[retry]\nattempts = 6\nafter_max = \"60s\"\ngrace = \"9s\"\nreset = \"ends\"\n");
    if (!spec)
        return;
    const struct trace_rules *rules = agent_spec_rules(spec);
    EXPECT_INT(rules->side_count, 2);
    EXPECT_INT(rules->sides[0].when_count, 4);
    EXPECT_STR(str_of(rules->sides[0].when[0].pattern), STR("false"));
    EXPECT_STR(str_of(rules->sides[0].when[2].what), STR("header.x-kind"));
    EXPECT_STR(str_of(rules->sides[0].when[3].what), STR("body.output.type"));
    EXPECT(rules->sides[0].side && !rules->sides[1].side);
    EXPECT_STR(str_of(rules->nonces[0].after), STR("\\\"id\\\": "));
    EXPECT_STR(str_of(rules->nonces[0].put), STR("a\\n"));
    EXPECT_INT(rules->nonces[0].chars, TRACE_CHARS_HEX);
    EXPECT_INT(rules->nonces[0].size_max, 4);
    EXPECT_INT(rules->keepalive, TRACE_KEEPALIVE_DATA);
    EXPECT_INT(rules->keepalive_ms, 3000);
    EXPECT_INT(rules->headers_after_ms, 4000);
    EXPECT_INT(rules->retry_after_s_max, 60);
    EXPECT_INT(rules->retry_grace_ms, 9000);
    EXPECT(agent_spec_reset_ends(spec));
    agent_spec_unref(spec);
}

TEST(wrong_rules_are_named_with_their_place)
{
    static const struct {
        const char *text, *words;
    } rows[] = {
        {HEAD "[[side_calls]]\nwhen = { tools = false }\n", "name"},
        {HEAD "[[side_calls]]\nname = \"a\"\n", "when"},
        {HEAD "[[side_calls]]\nname = \"a\"\nwhen = {}\n", "every call"},
        {HEAD "[[side_calls]]\nname = \"a\"\nwhen = { tool = 1 }\n", "no 'tool' to ask about"},
        {HEAD "[[side_calls]]\nname = \"a\"\nwhen = { tools = 1.5 }\n", "a:6:"},
        {HEAD "[[side_calls]]\nname = \"a\"\nwhen = { tools = 1 }\nkind = 1\n", "kind"},
        {HEAD "[[nonces]]\nname = \"a\"\nafter = \"abc\"\n", "size"},
        {HEAD "[[nonces]]\nname = \"a\"\nafter = \"a\"\nsize = 3\n", "everywhere"},
        {HEAD "[[nonces]]\nname = \"a\"\nafter = \"abc\"\nsize = [3]\n", "size"},
        {HEAD "[[nonces]]\nname = \"a\"\nafter = \"abc\"\nsize = [3, 2]\n", "size"},
        {HEAD "[[nonces]]\nname = \"a\"\nafter = \"abc\"\nsize = 1\nchars = \"any\"\n", "chars"},
        {HEAD "[wire]\nkeepalive = \"ping\"\n", "keepalive"},
        {HEAD "[retry]\nafter_max = \"10ms\"\n", "1s"},
        {HEAD "[retry]\nreset = \"x\"\n", "reset"},
        {HEAD "[mcp]\nkind = \"config\"\n", "{mcp_url} is not used"},
        {HEAD "[mcp]\nkind = \"acp\"\n", "acp"},
        {HEAD "[run.argv_if]\nmcp_url = [\"{mcp_url}\"]\n[mcp]\nkind = \"none\"\n", "is used"},
        {HEAD "[needs]\nversions = { node = 20 }\n", "20.6"},
        {HEAD "[needs]\nprograms = [\"/bin/x\"]\n", "bare name"},
        {HEAD "[needs]\nuser = \"me\"\n", "user"},
        {"root = true\n" HEAD "[needs]\nuser = \"ordinary\"\n", "contradict"},
        {"artifacts = [\"x/y\"]\n" HEAD, "not absolute"},
        {"disabled_tools = [\"a\"]\n" HEAD, "hands it over"},
        {HEAD "[exit.says]\nx = \"a\"\n", "no exit code"},
        {HEAD "[exit.says]\n300 = \"a\"\n", "no exit code"},
        {HEAD "[exit.says]\n3 = 4\n", "text"},
    };
    for (size_t i = 0; i < COUNT(rows); i++)
        expect_error(rows[i].text,
                     strcmp(rows[i].words, "a:6:") == 0 ? "a.toml:6:" : rows[i].words);
}

TEST(agents_are_refused_what_they_cannot_do)
{
    static const struct {
        const char *more;
        struct agent_wants wants;
        const char *words; /* NULL: fine */
    } rows[] = {
        {"", {.tools = true, .root = true}, NULL},
        {"[mcp]\nkind = \"none\"\n", {.tools = true}, "x has no MCP"},
        {"[mcp]\nkind = \"none\"\n", {0}, NULL},
        {"", {.turns = true}, "several turns"},
        {"[needs]\nuser = \"ordinary\"\n", {.root = true}, "does not run as root"},
        {"[needs]\nuser = \"root\"\n", {0}, "runs as root only"},
        {"[needs]\nuser = \"root\"\n", {.root = true}, NULL},
        {"[needs]\nmemory = \"1G\"\n", {.memory_bytes = 512u << 20}, "needs 1024 MB"},
        {"[needs]\nmemory = \"1G\"\n", {.memory_bytes = 1u << 30}, NULL},
        {"[needs]\nmemory = \"1G\"\n", {0}, NULL},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        OWN(mem) char *text = mem_format("%s%s", HEAD, rows[i].more);
        struct agent_spec *spec = expect_spec(text);
        struct err err = {0};
        int result = agent_spec_fit(spec, &rows[i].wants, &err);
        EXPECT_INT(result, rows[i].words ? -1 : 0);
        if (rows[i].words && (err.kind != ERR_UNSUPPORTED || !strstr(err.text, rows[i].words)))
            test_fail(__FILE__, __LINE__, "\"%s\" does not say \"%s\"", err.text, rows[i].words);
        agent_spec_unref(spec);
    }
}

TEST(versions_are_found_and_compared)
{
    EXPECT_INT(agent_version_compare("20.6", "20.6"), 0);
    EXPECT_INT(agent_version_compare("20.6.1", "20.6"), 1);
    EXPECT_INT(agent_version_compare("20.10", "20.6"), 1);
    EXPECT_INT(agent_version_compare("18.20.4", "20.6"), -1);
    EXPECT_INT(agent_version_compare("20", "20.0.0"), 0);
    EXPECT_STR(agent_version_find(STR("v22.1.0\n")), STR("22.1.0"));
    EXPECT_STR(agent_version_find(STR("git version 2.39.5 (Apple Git-1)")), STR("2.39.5"));
    EXPECT_STR(agent_version_find(STR("build 7, Python 3.11.2")), STR("3.11.2"));
    EXPECT(!agent_version_find(STR("no number 7 here.")).size);
    EXPECT(!agent_version_find(STR("")).size);
}

TEST(disabled_tools_are_handed_over_one_by_one)
{
    struct agent_spec *spec = expect_spec(
        "name = \"x\"\ndisabled_tools = [\"a\", \"b\\\"c\"]\nartifacts = [\"{home}/log\", "
        "\"/var/x\"]\n"
        "[[files]]\nto = \"/x.json\"\nformat = \"json\"\n"
        "content = '{\"tools\": {{*disabled_tools}\"{item}\": false{/disabled_tools}}}'\n"
        "[run]\nargv = [\"a\", \"{instruction_file}\"]\nargv_each = [\"--not\", \"{item}\"]\n");
    if (!spec)
        return;
    OWN(arena) struct arena arena = {0};
    struct agent_values values = {0};
    agent_values_fixed(&arena, spec, &values);
    EXPECT_STR(str_of(agent_expand_as(&arena, spec->files[0].text, &values, AGENT_TEXT_JSON)),
               STR("{\"tools\": {\"a\": false, \"b\\\"c\": false}}"));
    EXPECT_STR(str_of(agent_expand(&arena, "{disabled_tools}", &values)), STR("a,b\"c"));
    const char *const *kept = agent_spec_artifacts(spec, "/app", false, &arena);
    EXPECT_STR(str_of(kept[0]), STR("/home/agent/log"));
    EXPECT_STR(str_of(kept[1]), STR("/var/x"));
    EXPECT(!kept[2]);
    agent_spec_unref(spec);
    expect_error("name = \"x\"\n[[files]]\nto = \"/x\"\ncontent = '{*model}{/model}'\n" RUN,
                 "only disabled_tools is a list");
    expect_error("name = \"x\"\n[[files]]\nto = \"/x\"\ncontent = '{*disabled_tools}'\n" RUN,
                 "never ended");
    expect_error("name = \"x\"\n[[files]]\nto = \"/x\"\nformat = \"json\"\n"
                 "content = '{\"a\": {*disabled_tools}\"{item}\"{/disabled_tools}}'\n" RUN,
                 "not json");
}
