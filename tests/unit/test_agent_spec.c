/* What specs may say about texts, bundles and output: proven when they are read, and read as they
 * were meant. Private parts of the agent room are used on purpose: they are pure functions. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/internal.h"
#include "base/file.h"
#include "base/mem.h"
#include "config/toml.h"
#include "json/json.h"
#include "test.h"

#define RUN "[run]\nargv = [\"a\", \"{instruction_file}\"]\n"

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
    struct agent_spec *spec = agent_spec_parse(str_of(text), "/specs/a.toml", &err);
    if (!spec)
        test_fail(__FILE__, __LINE__, "%s", err.text);
    return spec;
}

/* ---------------------------------------------------------------- texts with variables */
TEST(values_in_json_and_toml_cannot_break_out)
{
    static const char *const values[] = {
        "plain",
        "",
        "\"",
        "\\",
        "a\"}\n,\"b\":\"",
        "\x01\x7f\t\r\n",
        "$(id) `id` 'x' #",
        "zw\xc3\xb6lf",
        "{model}",
        "]\n[x]\ny = 1\n",
    };
    for (size_t i = 0; i < COUNT(values); i++) {
        OWN(arena) struct arena arena = {0};
        OWN(json_doc) struct json_doc doc = {0};
        OWN(toml) struct toml toml = {0};
        struct err err = {0};
        struct agent_values all = {.value[AGENT_VAR_MODEL] = values[i]};
        const char *json =
            agent_expand_as(&arena, "{\"a\": \"<{model}>\", \"b\": {}}", &all, AGENT_TEXT_JSON);
        EXPECT_INT(json_read(&doc, str_of(json), NULL, &err), 0);
        EXPECT_INT(json_size(json_root(&doc)), 2);
        const char *wanted = arena_format(&arena, "<%s>", values[i]);
        EXPECT(json_is(json_get(json_root(&doc), "a"), wanted));
        const char *text =
            agent_expand_as(&arena, "a = \"<{model}>\"\n[b]\n", &all, AGENT_TEXT_TOML);
        const char *got = NULL;
        EXPECT_INT(toml_read(&toml, "t", str_of(text), &err), 0);
        EXPECT_TEXT(err.text, "");
        EXPECT_INT(toml.root->count, 2);
        EXPECT_INT(toml_text(toml.root, "a", &got, &err), 1);
        EXPECT_TEXT(got, wanted);
    }
}

TEST(a_part_is_there_only_when_its_variable_has_a_value)
{
    OWN(arena) struct arena arena = {0};
    struct agent_values none = {0}, some = {.value[AGENT_VAR_SYSTEM] = "s"},
                        empty = {.value[AGENT_VAR_SYSTEM] = ""};
    const char *text = "a{?system}[{system}{model}]{/system}b{system}";
    EXPECT_TEXT(agent_expand(&arena, text, &none), "ab");
    EXPECT_TEXT(agent_expand(&arena, text, &empty), "ab");
    EXPECT_TEXT(agent_expand(&arena, text, &some), "a[s]bs");
}

#define TEXT(format, content)                                                                      \
    "name = \"a\"\n" RUN "[[files]]\nto = \"/x\"\nformat = \"" format "\"\ncontent = '''" content  \
    "'''\n"

TEST(texts_are_proven_when_a_spec_is_read)
{
    agent_spec_unref(expect_spec(TEXT("json", "{\"a\": \"{model}\"{?system}, \"b\": 1{/system}}")));
    agent_spec_unref(
        expect_spec(TEXT("toml", "a = \"{model}\"\n{?system}b = \"{system}\"{/system}")));
    expect_error(TEXT("json", "{\"a\": {model}}"), "a.toml:7:11: not json for all values");
    expect_error(TEXT("json", "{\"a\": 1{?system}, \"b\": 2}{/system}"), "not json for all values");
    expect_error(TEXT("json", "{\"a\": {?system}1{/system}}"), "not json for all values");
    expect_error(TEXT("toml", "a = {model}"), "not toml for all values");
    expect_error(TEXT("toml", "a = '{model}'"), "not toml for all values");
    expect_error(TEXT("text", "{?system}x"), "{?system} is never ended");
    expect_error(TEXT("text", "{?system}{?model}x{/model}{/system}"), "do not nest");
    expect_error(TEXT("text", "x{/system}"), "does not fit");
    expect_error(TEXT("text", "{nothing}"), "no variable {nothing}");
    expect_error("name = \"a\"\n" RUN "[[files]]\nto = \"/x\"\n", "either 'from' or 'content'");
    expect_error("name = \"a\"\n" RUN "[[files]]\nto = \"x\"\ncontent = \"\"\n",
                 "not an absolute path");
    expect_error("name = \"a\"\n" RUN "[[files]]\nto = \"/x\"\ncontent = \"\"\nif = \"modle\"\n",
                 "no variable {modle}");
    expect_error("name = \"a/b\"\n" RUN, "a.toml:1:8: a name has letters");
    expect_error("name = \"..\"\n" RUN, "a name has letters");
    expect_error("name = \"a\"\ndialect = \"morse\"\n" RUN, "none of chat");
    expect_error("name = \"a\"\n" RUN "system = \"native\"\n",
                 "neither {system} nor {system_file}");
}

/* ---------------------------------------------------------------- output */
static struct buf seen;

static void note(void *context, const struct agent_event *event)
{
    (void)context;
    buf_format(&seen, "%s(%.*s|%.*s|%.*s) ", agent_event_kind_name(event->kind),
               STR_ARGS(event->text), STR_ARGS(event->name), STR_ARGS(event->id));
}

#define RULE(when, rest) "[[output.rules]]\nwhen = { " when " }\n" rest "\n"

TEST(rules_find_events_in_lines)
{
    struct agent_spec *spec = expect_spec(
        "name = \"a\"\n" RUN "[output]\nformat = \"jsonl\"\n"
        "[output.events]\nreasoning = \"hm\"\n" RULE("type = \"noise\"", "kind = \"ignore\"") RULE(
            "type = \"m\", \".type\" = \"text\"",
            "each = \"c.blocks\"\nkind = \"assistant\"\ntext = \".text\"")
            RULE("type = \"m\", \".type\" = \"tool\"",
                 "each = \"c.blocks\"\nkind = \"tool_call\"\ntext = \".in\"\nname = "
                 "\".name\"\nid = \".id\"") RULE("type = \"both\"",
                                                 "kind = \"tool_call\"\ntext = \"in\"\nalso = true")
                RULE("type = \"both\"", "kind = \"tool_result\"\ntext = [\"x\", \"out\"]")
                    RULE("type = \"end\", ok = false, code = 3",
                         "kind = \"error\"\ntext = \"list.1.why\"")
                        RULE("type = \"end\", why = \"oh*\"", "kind = \"error\"\ntext = \"why\"")
                            RULE("type = \"end\", why = \"*\"", "kind = \"done\"\ntext = \"why\""));
    struct agent_reader reader = {.spec = spec, .on_event = note};
    agent_reader_feed(&reader,
                      STR("{\"type\":\"noise\"}\n{\"type\":\"m\",\"c\":{\"blocks\":[{\"type\":"
                          "\"tool\",\"name\":\"n\",\"id\":7,\"in\":{\"a\":1}},"
                          "{\"type\":\"text\",\"text\":\"hi\"},{\"type\":\"z\"}]}}\n"));
    EXPECT_TEXT(buf_text(&seen), "tool_call({\"a\":1}|n|7) assistant(hi||) ");
    buf_clear(&seen);
    agent_reader_feed(&reader, STR("{\"type\":\"both\",\"in\":1,\"out\":\"2\"}\n{\"type\":\"hm\"}\n"
                                   "{\"type\":\"end\",\"why\":null}\nno json\n"));
    EXPECT_TEXT(buf_text(&seen),
                "tool_call(1||) tool_result(2||) reasoning(||) other(||) other(||) ");
    buf_clear(&seen);
    EXPECT(!reader.last_is_error);
    agent_reader_feed(&reader,
                      STR("{\"type\":\"end\",\"ok\":false,\"code\":3,\"list\":[0,{\"why\":\"w"));
    agent_reader_feed(&reader, STR("\"}]}\n{\"type\":\"end\",\"why\":\"bye\"}"));
    agent_reader_end(&reader);
    EXPECT_TEXT(buf_text(&seen), "error(w||) done(bye||) ");
    EXPECT(reader.last_is_error); /* nothing came after it but the end */
    EXPECT_TEXT(reader.error, "w");
    EXPECT_TEXT(buf_text(&reader.final_text), "bye");
    buf_clear(&seen);
    agent_reader_feed(
        &reader, STR("{\"type\":\"end\",\"why\":\"oh no\"}\n{\"type\":\"end\",\"why\":\"no\"}\n"));
    EXPECT_TEXT(buf_text(&seen), "error(oh no||) done(no||) ");
    agent_reader_deinit(&reader);
    agent_spec_unref(spec);
    buf_deinit(&seen);
}

TEST(pieces_of_a_message_become_one_event)
{
    struct agent_spec *spec =
        expect_spec("name = \"a\"\n" RUN "[output]\nformat = \"jsonl\"\n" RULE(
            "type = \"p\"", "kind = \"assistant\"\ntext = \"t\"\npiece = true")
                        RULE("type = \"d\"", "kind = \"done\""));
    struct agent_reader reader = {.spec = spec, .on_event = note};
    agent_reader_feed(&reader,
                      STR("{\"type\":\"p\",\"t\":\"one \"}\n{\"type\":\"p\",\"t\":\"two\"}\n"));
    EXPECT_INT(seen.size, 0);
    agent_reader_feed(&reader, STR("{\"type\":\"d\"}\n{\"type\":\"p\",\"t\":\"three\"}"));
    agent_reader_end(&reader);
    EXPECT_TEXT(buf_text(&seen), "assistant(one two||) done(||) assistant(three||) ");
    EXPECT_TEXT(buf_text(&reader.final_text), "three");
    agent_reader_deinit(&reader);
    agent_spec_unref(spec);
    buf_deinit(&seen);
}

TEST(an_error_the_agent_got_over_is_not_its_last_word)
{
    struct agent_spec *spec =
        expect_spec("name = \"a\"\n" RUN "[output]\nformat = \"jsonl\"\ntext = \"t\"\n"
                    "[output.events]\nerror = \"e\"\nassistant = \"a\"\ndone = "
                    "\"d\"\n[exit]\nneeds = [\"done\"]\nerror_fails = true\n");
    struct agent_reader reader = {.spec = spec};
    agent_reader_feed(&reader, STR("{\"type\":\"e\",\"t\":\"retrying\"}\n"));
    EXPECT(reader.last_is_error);
    agent_reader_feed(&reader, STR("{\"type\":\"a\",\"t\":\"here\"}\n{\"type\":\"d\"}\n"));
    EXPECT(!reader.last_is_error);
    EXPECT_INT(spec->needed_kinds & ~reader.kinds_seen, 0);
    agent_reader_deinit(&reader);
    agent_spec_unref(spec);
    expect_error("name = \"a\"\n" RUN "[exit]\nneeds = [\"done\"]\n", "only jsonl");
    expect_error("name = \"a\"\n" RUN "[output]\nformat = \"jsonl\"\n" RULE("type = \"x\"", ""),
                 "needs its 'kind'");
    expect_error("name = \"a\"\n" RUN
                 "[output]\nformat = \"jsonl\"\n" RULE("type = 1.5", "kind = \"done\""),
                 "a condition is");
}

/* ---------------------------------------------------------------- bundles */
#define HEAD "name = \"a\"\nversion = \"1.0\"\n" RUN "[bundle]\n"

TEST(a_changed_spec_is_another_bundle)
{
    struct agent_spec *one = expect_spec(HEAD "kind = \"npm\"\npackages = [\"x@{version}\"]\n");
    struct agent_spec *same = expect_spec(HEAD "kind = \"npm\"\npackages = [\"x@1.0\"]\n");
    struct agent_spec *two = expect_spec(HEAD "kind = \"npm\"\npackages = [\"x@1.0\"]\n"
                                              "[bundle.integrity]\nx = \"sha512-y\"\n");
    EXPECT_INT(strlen(one->bundle.key), 12);
    EXPECT_TEXT(one->bundle.key, same->bundle.key);
    EXPECT(strcmp(one->bundle.key, two->bundle.key) != 0);
    agent_spec_unref(one);
    agent_spec_unref(same);
    agent_spec_unref(two);
}

TEST(what_is_wrong_with_a_bundle_is_said)
{
    expect_error(HEAD "packages = [\"x\"]\n", "[bundle] needs 'kind'");
    expect_error(HEAD "kind = \"npm\"\n", "needs 'packages'");
    expect_error(HEAD "kind = \"binary\"\n", "needs 'source'");
    expect_error(HEAD "kind = \"binary\"\nsource = \"x\"\n", "needs its 'sha256'");
    expect_error(HEAD "kind = \"npm\"\npackages = [\"--global\"]\n", "is no package");
    expect_error(HEAD "kind = \"npm\"\npackages = [\"x\"]\n[bundle.place]\n\"../x\" = \"y\"\n",
                 "without '..'");
    expect_error(HEAD "kind = \"npm\"\npackages = [\"x\"]\n[bundle.place]\nx = \"/etc\"\n",
                 "without '..'");
    expect_error(HEAD "kind = \"npm\"\npackages = [\"x\"]\ndrop = [\"a/../..\"]\n", "without '..'");
    expect_error("name = \"a\"\n" RUN "[bundle]\nkind = \"npm\"\npackages = [\"x\"]\n",
                 "needs the spec's 'version'");
    expect_error("name = \"a\"\nversion = \"../x\"\n" RUN "[bundle]\nkind = \"npm\"\npackages = "
                 "[\"x\"]\n",
                 "cannot be part of a file name");
}

static char home[64];

static struct agent_spec *spec_in_home(const char *bundle)
{
    struct err err = {0};
    OWN(mem) char *path = mem_format("%s/a.toml", home);
    OWN(mem) char *text = mem_format("name = \"a\"\nversion = \"1\"\n" RUN "[bundle]\n%s", bundle);
    const char *const none[] = {NULL};
    struct agent_dirs dirs = {.spec_dirs = none, .file_dirs = none};
    struct agent_spec *spec = file_write(path, str_of(text), 0644, false, &err) < 0
                                  ? NULL
                                  : agent_spec_load(path, &dirs, &err);
    if (!spec)
        test_fail(__FILE__, __LINE__, "%s", err.text);
    return spec;
}

TEST(a_bundle_is_built_once_and_found_again)
{
    struct err err = {0};
    snprintf(home, sizeof home, "/tmp/bundle-XXXXXX");
    EXPECT(mkdtemp(home) != NULL);
    OWN(mem) char *script = mem_format("%s/build.sh", home);
    OWN(mem) char *counter = mem_format("%s/count", home);
    OWN(mem)
    char *text = mem_format("echo x >> %s\nmkdir -p deep/er junk\necho hello > deep/er/file\n"
                            "touch junk/y deep/er/z.map\n",
                            counter);
    EXPECT_INT(file_write(script, str_of(text), 0644, false, &err), 0);
    struct agent_spec *spec =
        spec_in_home("kind = \"script\"\nsource = \"build.sh\"\ndrop = [\"*.map\"]\n"
                     "[bundle.place]\n\"bin/it\" = \"deep/er/file\"\nrest = \"deep\"\n");
    EXPECT(agent_bundle_layer(spec, home, &err) == NULL);
    EXPECT_INT(err.kind, ERR_NOT_FOUND);
    EXPECT(strstr(err.text, "postern agents install a") != NULL);
    err = (struct err){0};
    EXPECT_INT(agent_bundle_build(spec, home, &err), 0);
    EXPECT_TEXT(err.text, "");
    EXPECT_INT(agent_bundle_build(spec, home, &err), 0);
    OWN(mem) char *layer = agent_bundle_layer(spec, home, &err);
    EXPECT(layer != NULL && layer[0] == '/');
    OWN(mem) char *file = mem_format("%s/opt/postern/agents/a/bin/it", layer);
    OWN(mem) char *junk = mem_format("%s/opt/postern/agents/a/junk", layer);
    OWN(buf) struct buf content = {0}, count = {0};
    EXPECT_INT(file_read(file, 100, &content, &err), 0);
    EXPECT_TEXT(buf_text(&content), "hello\n");
    EXPECT(!file_exists(junk));
    OWN(mem) char *rest = mem_format("%s/opt/postern/agents/a/rest/er", layer);
    OWN(mem) char *dropped = mem_format("%s/z.map", rest);
    EXPECT(file_exists(rest));
    EXPECT(!file_exists(dropped));
    EXPECT_INT(file_read(counter, 100, &count, &err), 0);
    EXPECT_TEXT(buf_text(&count), "x\n");
    agent_spec_unref(spec);
    EXPECT_INT(file_remove_tree(home, &err), 0);
}

TEST(a_build_that_takes_too_long_is_ended)
{
    struct err err = {0};
    snprintf(home, sizeof home, "/tmp/bundle-XXXXXX");
    EXPECT(mkdtemp(home) != NULL);
    OWN(mem) char *script = mem_format("%s/build.sh", home);
    EXPECT_INT(file_write(script, STR("echo waiting\nsleep 1000\n"), 0644, false, &err), 0);
    struct agent_spec *spec =
        spec_in_home("kind = \"script\"\nsource = \"build.sh\"\ntimeout = \"1s\"\n");
    EXPECT_INT(agent_bundle_build(spec, home, &err), -1);
    EXPECT_INT(err.kind, ERR_TIMEOUT);
    EXPECT(strstr(err.text, "waiting") != NULL);
    agent_spec_unref(spec);
    EXPECT_INT(file_remove_tree(home, &err), 0);
}
