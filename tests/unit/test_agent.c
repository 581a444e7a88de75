/* The agent room through its door: what specs may say. Running agents are in test_rollout.c. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/agent.h"
#include "base/mem.h"
#include "json/json.h"
#include "test.h"

static const char good[] =
    "name = \"a\"\n"
    "summary = \"s\"\n"
    "version = \"1.2\"\n"
    "[run]\n"
    "argv = [\"a\", \"--task\", \"{instruction_file}\", '{\"json\": true}']\n"
    "timeout = \"90s\"\n"
    "[run.env]\n"
    "URL = \"{base_url}\"\n"
    "KEY = \"{key}\"\n"
    "[output]\n"
    "format = \"jsonl\"\n"
    "text = \"message.content\"\n"
    "[output.events]\n"
    "assistant = [\"say\", \"message\"]\n"
    "done = \"end\"\n"
    "[exit]\n"
    "ok = [0, 7]\n"
    "limit = [3]\n";

TEST(a_spec_reads)
{
    struct err err = {0};
    struct agent_spec *spec = agent_spec_parse(str_of(good), "a.toml", &err);
    EXPECT_TEXT(err.text, "");
    EXPECT(spec != NULL);
    EXPECT_TEXT(agent_spec_name(spec), "a");
    EXPECT_TEXT(agent_spec_version(spec), "1.2");
    EXPECT_INT(agent_spec_timeout_ms(spec), 90000);
    EXPECT(!agent_spec_wants_root(spec));
    agent_spec_unref(spec);
}

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

#define RUN "[run]\nargv = [\"a\", \"{instruction_file}\"]\n"

TEST(what_is_wrong_with_a_spec_is_said_with_line_and_column)
{
    expect_error(RUN, "name");
    expect_error("name = \"a\"\n", "run");
    expect_error("name = \"a\"\nsumary = \"b\"\n" RUN,
                 "a.toml:2:1: unknown key 'sumary'; did you mean 'summary'?");
    expect_error("name = \"a\"\n[run]\nargv = \"a {instruction_file}\"\nshell = true\n",
                 "a.toml:4:1");
    expect_error("name = \"a\"\n[run]\nargv = [\"a\", \"{modell}\", \"{instruction_file}\"]\n",
                 "no variable {modell}");
    expect_error("name = \"a\"\n[run]\nargv = [\"a\"]\n", "{instruction_file} is not in argv");
    expect_error("name = \"a\"\n[run]\nargv = [\"a\"]\ninstruction = \"argument\"\n",
                 "{instruction} is not in argv");
    expect_error("name = \"a\"\n[run]\nargv = [\"a\"]\ninstruction = \"telepathy\"\n",
                 "a.toml:4:15");
    expect_error("name = \"a\"\n[run]\nargv = []\n", "empty");
    expect_error("name = \"a\"\n" RUN "[output]\nformat = \"jsonl\"\n", "[output.events]");
    expect_error("name = \"a\"\n" RUN "[exit]\nok = [256]\n", "0 to 255");
    expect_error("name = \"a\"\n" RUN "[[files]]\nfrom = \"x\"\nto = \"y\"\n",
                 "not an absolute path");
    expect_error("name = \"a\"\n" RUN "[[files]]\nfrom = \"x\"\nto = \"/y\"\nmode = \"rwx\"\n",
                 "octal");
    expect_error("name = \"a\"\n" RUN "[run.argv_if]\nmodle = [\"x\"]\n", "no variable {modle}");
    expect_error("name = \"a\"\nname = \"b\"\n", "a.toml:2:1");
}

TEST(braces_that_are_no_variables_are_just_braces)
{
    struct err err = {0};
    struct agent_spec *spec =
        agent_spec_parse(STR("name = \"a\"\n[run]\ninstruction = \"stdin\"\nargv = [\"{}\", "
                             "'{\"a\": {}}', \"${X}\", \"{ model }\"]\n"),
                         "a.toml", &err);
    EXPECT_TEXT(err.text, "");
    EXPECT(spec != NULL);
    agent_spec_unref(spec);
}

TEST(an_agent_that_does_not_exist_is_named)
{
    const char *const none[] = {NULL};
    struct agent_dirs dirs = {.spec_dirs = none, .file_dirs = none};
    struct err err = {0};
    EXPECT(agent_spec_load("nobody", &dirs, &err) == NULL);
    EXPECT_INT(err.kind, ERR_NOT_FOUND);
    EXPECT(strstr(err.text, "'nobody'") != NULL);
    EXPECT(agent_spec_load("/no/such.toml", &dirs, &err) == NULL);
    EXPECT_INT(err.kind, ERR_NOT_FOUND);
}

TEST(the_specs_that_come_with_postern_read)
{
    const char *const spec_dirs[] = {POSTERN_SOURCE_DIR "/agents", NULL};
    const char *const file_dirs[] = {"/nonexistent", NULL};
    struct agent_dirs dirs = {.spec_dirs = spec_dirs, .file_dirs = file_dirs};
    struct err err = {0};
    struct agent_spec *generic = agent_spec_load("generic", &dirs, &err);
    EXPECT_TEXT(err.text, "");
    EXPECT(generic != NULL);
    agent_spec_unref(generic);
    static const char *const bundled[] = {"codex", "claude-code", "pi", "opencode", "gemini-cli"};
    for (size_t i = 0; i < COUNT(bundled); i++) {
        struct agent_spec *spec = agent_spec_load(bundled[i], &dirs, &err);
        EXPECT_TEXT(err.text, "");
        EXPECT_TEXT(agent_spec_name(spec), bundled[i]);
        EXPECT(agent_spec_has_bundle(spec));
        agent_spec_unref(spec);
    }
    /* mini is fine too, but for its program, which is not in that directory. */
    EXPECT(agent_spec_load("mini", &dirs, &err) == NULL);
    EXPECT(strstr(err.text, "'postern-mini' is not beside the program") != NULL);
}
