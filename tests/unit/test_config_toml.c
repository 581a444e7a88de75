/* TOML: values and tables, what may not be defined twice, places in errors, and reading specs. */
#include <stdio.h>
#include <stdlib.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/mem.h"
#include "config/toml.h"
#include "json/json.h"
#include "test.h"

/* The document as JSON, or its error. */
static char *shown(const char *source)
{
    struct toml toml = {0};
    struct err err = {0};
    struct buf out = {0};
    if (toml_read(&toml, "f.toml", str_of(source), &err) < 0)
        buf_format(&out, "%s", err.text);
    else
        toml_write_json(toml.root, &(struct json_writer){.out = &out});
    toml_deinit(&toml);
    return buf_take(&out);
}

static void expect_all(const char *const (*rows)[2], size_t count, int line)
{
    for (size_t i = 0; i < count; i++) {
        OWN(mem) char *got = shown(rows[i][0]);
        if (strcmp(got, rows[i][1]) != 0)
            test_fail(__FILE__, line, "%s\ngives %s\nnot %s", rows[i][0], got, rows[i][1]);
    }
}

TEST(values_of_every_type_are_read)
{
    static const char *const rows[][2] = {
        {"a = 1\nb=-0\nc=+1_000 # x", "{\"a\":1,\"b\":0,\"c\":1000}"},
        {"a=0xDEAD_beef\nb=0o755\nc=0b101", "{\"a\":3735928559,\"b\":493,\"c\":5}"},
        {"a=1.5\nb=1e3\nc=-2.5E-1\nd=inf\ne=nan", "{\"a\":1.5,\"b\":1000,\"c\":-0.25,\"d\":null,"
                                                  "\"e\":null}"},
        {"a=true\nb=false", "{\"a\":true,\"b\":false}"},
        {"a=1979-05-27T07:32:00.5-07:00\nb=1979-05-27 07:32:00\nc=1979-05-27\nd=07:32:00",
         "{\"a\":\"1979-05-27T07:32:00.5-07:00\",\"b\":\"1979-05-27 "
         "07:32:00\",\"c\":\"1979-05-27\","
         "\"d\":\"07:32:00\"}"},
        {"a=\"x\\u00e9\\U0001F600\\t\\\"\"\nb='c:\\d'",
         "{\"a\":\"x\xc3\xa9\xf0\x9f\x98\x80\\t\\\"\","
         "\"b\":\"c:\\\\d\"}"},
        {"a=\"\"\"\nx \\\n   y\n\"\"z\"\"\"\"", "{\"a\":\"x y\\n\\\"\\\"z\\\"\"}"},
        {"a='''\n'x\\y''''", "{\"a\":\"'x\\\\y'\"}"},
        {"a=[1, [\"b\"], {c=2}, # d\n]", "{\"a\":[1,[\"b\"],{\"c\":2}]}"},
        {"a={b.c=1, 'd e'=2}", "{\"a\":{\"b\":{\"c\":1},\"d e\":2}}"},
        {"\"a.b\".c=1\r\n[x.y]\r\nz=1\r\n", "{\"a.b\":{\"c\":1},\"x\":{\"y\":{\"z\":1}}}"},
        {"[[t]]\na=1\n[t.u]\nb=2\n[[t]]\na=3", "{\"t\":[{\"a\":1,\"u\":{\"b\":2}},{\"a\":3}]}"},
        {"", "{}"},
        {"[fruit]\napple.color=1\n[fruit.apple.texture]\nsmooth=true",
         "{\"fruit\":{\"apple\":{\"color\":1,\"texture\":{\"smooth\":true}}}}"},
    };
    expect_all(rows, COUNT(rows), __LINE__);
}

TEST(errors_name_file_line_and_column)
{
    static const char *const rows[][2] = {
        {"a = 1\nb = x", "f.toml:2:5: 'x' is no value (a text needs quotes)"},
        {"gr\xc3\xbc", "f.toml:1:3: an = is expected after the key"},
        {"\"\xc3\xbc\" = 1 2", "f.toml:1:9: the line should end here"},
        {"a=1\n\n  a=2", "f.toml:3:3: 'a' was defined before, at line 1"},
        {"[a]\nb=1\n[a]", "f.toml:3:2: 'a' was defined before, at line 1"},
        {"a.b=1\n[a]", "f.toml:2:2: 'a' was defined before, at line 1"},
        {"a={b=1}\na.c=2", "f.toml:2:1: 'a' was defined before, at line 1"},
        {"[[a]]\n[a]", "f.toml:2:2: 'a' was defined before, at line 1"},
        {"a=[]\n[[a]]", "f.toml:2:3: 'a' was defined before, at line 1"},
        {"a=[1\n,2 3]", "f.toml:2:4: a comma or ] is expected here"},
        {"a={b=1,\nc=2}", "f.toml:1:8: a key is expected here"},
        {"a=\"x", "f.toml:1:3: this string has no end on its line"},
        {"a=1\nb=\"\"\"x\n\n", "f.toml:2:3: this string has no end"},
        {"a=\"\\x\"", "f.toml:1:4: no such escape; for a plain backslash write \\\\ or use '...'"},
        {"a=1979-02-30", "f.toml:1:3: '1979-02-30' is no value (a text needs quotes)"},
        {"a=9223372036854775808",
         "f.toml:1:3: '9223372036854775808' is no value (a text needs quotes)"},
        {"a=", "f.toml:1:3: a value is missing here"},
        {"[a", "f.toml:1:3: ] is expected here"},
        {"a=\"\x01\"", "f.toml:1:4: a control character inside a string"},
        {"a=\"\xff\"", "f.toml: this is not UTF-8 text"},
    };
    expect_all(rows, COUNT(rows), __LINE__);
}

TEST(size_and_depth_have_a_limit)
{
    struct err err = {0};
    OWN(buf) struct buf large = {0};
    while (large.size <= TOML_BYTES_MAX)
        buf_append(&large, "# a comment\n", 12);
    OWN(toml) struct toml first = {0};
    EXPECT(toml_read(&first, "f", buf_str(&large), &err) < 0);
    EXPECT_INT(err.kind, ERR_LIMIT);
    for (int form = 0; form < 4; form++) {
        static const char *const pieces[] = {"[", "{a=", "a.", "a."};
        OWN(buf) struct buf deep = {0};
        buf_format(&deep, "%s", form == 3 ? "[" : form == 2 ? "" : "a=");
        for (int i = 0; i < 100000; i++)
            buf_format(&deep, "%s", pieces[form]);
        OWN(toml) struct toml toml = {0};
        EXPECT(toml_read(&toml, "f", buf_str(&deep), &err) < 0);
        EXPECT(strstr(err.text, "more than 64 levels"));
    }
}

TEST(a_file_with_very_many_keys_is_read_in_reasonable_time)
{
    OWN(buf) struct buf source = {0};
    for (int i = 0; source.size < TOML_BYTES_MAX - 16; i++)
        buf_format(&source, "k%x=1\n", i);
    OWN(toml) struct toml toml = {0};
    struct err err = {0};
    EXPECT(toml_read(&toml, "f", buf_str(&source), &err) == 0);
    EXPECT(toml.root->count > 90000);
}

TEST(a_spec_is_read_by_type_and_absent_keys_leave_the_target_alone)
{
    OWN(toml) struct toml toml = {0};
    struct err err = {0};
    EXPECT(toml_read(&toml, "s.toml",
                     STR("name='n'\ncount=5\nratio=2\non=true\nwait='1.5s'\nroom='2G'\nkind='b'\n"
                         "args=['x','y']\none='z'\n[env]\nA='1'\nB=2\nC=true\n[[step]]\nrun='r'\n"
                         "[single]\nq=1\n"),
                     &err) == 0);
    const char *name = NULL, *other = "kept";
    long long count = 0, wait = 0;
    double ratio = 0;
    bool on = false;
    unsigned long long room = 0;
    int kind = -1;
    const char *const *args = NULL, *const *one = NULL, *const *env = NULL;
    size_t arg_count = 0, env_count = 0;
    struct toml_node *steps = NULL, *single = NULL;
    static const char *const kinds[] = {"a", "b", NULL};
    EXPECT_INT(toml_need_text(toml.root, "name", &name, &err), 0);
    EXPECT_INT(toml_text(toml.root, "other", &other, &err), 0);
    EXPECT_TEXT(other, "kept");
    EXPECT_INT(toml_int(toml.root, "count", 1, 10, &count, &err), 1);
    EXPECT_INT(toml_double(toml.root, "ratio", &ratio, &err), 1);
    EXPECT_INT(toml_bool(toml.root, "on", &on, &err), 1);
    EXPECT_INT(toml_duration_ms(toml.root, "wait", 0, 5000, &wait, &err), 1);
    EXPECT_INT(toml_size(toml.root, "room", 0, 1ull << 40, &room, &err), 1);
    EXPECT_INT(toml_choice(toml.root, "kind", kinds, &kind, &err), 1);
    EXPECT_INT(toml_texts(toml.root, "args", &args, &arg_count, &err), 1);
    EXPECT_INT(toml_texts(toml.root, "one", &one, NULL, &err), 1);
    EXPECT_INT(toml_environment(toml.root, "env", &env, &env_count, &err), 1);
    EXPECT_INT(toml_tables(toml.root, "step", &steps, &err), 1);
    EXPECT_INT(toml_tables(toml.root, "single", &single, &err), 1);
    EXPECT(count == 5 && ratio == 2 && on && wait == 1500 && room == 2ull << 30 && kind == 1);
    EXPECT(arg_count == 2 && !args[2]);
    EXPECT_TEXT(args[1], "y");
    EXPECT_TEXT(one[0], "z");
    EXPECT(env_count == 3);
    EXPECT_TEXT(env[1], "B=2");
    EXPECT_TEXT(env[2], "C=true");
    EXPECT_INT(steps->count, 1);
    TOML_EACH(step, steps)
    EXPECT_INT(toml_need_text(step, "run", &name, &err), 0);
    TOML_EACH(item, single)
    EXPECT_INT(toml_int(item, "q", 0, 9, &count, &err), 1);
    EXPECT_INT(toml_check_unused(&toml, &err), 0);
    EXPECT_INT(toml_text(NULL, "any", &name, &err), 0);
}

static struct err spec_error(const char *source)
{
    static const char *const kinds[] = {"alpha", "beta", NULL};
    struct toml toml = {0};
    struct err err = {0};
    const char *text = NULL;
    const char *const *texts = NULL;
    long long number = 0;
    int kind = 0;
    struct toml_node *run = NULL;
    if (toml_read(&toml, "s.toml", str_of(source), &err) == 0 &&
        toml_need_text(toml.root, "name", &text, &err) == 0 &&
        toml_int(toml.root, "count", 1, 10, &number, &err) >= 0 &&
        toml_duration_ms(toml.root, "wait", 0, 1000, &number, &err) >= 0 &&
        toml_choice(toml.root, "kind", kinds, &kind, &err) >= 0 &&
        toml_texts(toml.root, "args", &texts, NULL, &err) >= 0 &&
        toml_table(toml.root, "run", &run, &err) >= 0 &&
        toml_text(run, "command", &text, &err) >= 0)
        (void)toml_check_unused(&toml, &err);
    toml_deinit(&toml);
    return err;
}

TEST(mistakes_in_specs_get_one_clear_sentence)
{
    static const char *const rows[][2] = {
        {"count=1", "s.toml:1:1: 'name' is missing"},
        {"name=5", "s.toml:1:6: 'name' must be a string, not an integer"},
        {"name='a\\u0000'\nx=1", "s.toml:2:1: unknown key 'x'"},
        {"name=\"a\\u0000\"", "s.toml:1:6: 'name' must not hold a NUL character"},
        {"name='n'\ncount=11", "s.toml:2:7: 'count' must be between 1 and 10, not 11"},
        {"name='n'\nwait='soon'",
         "s.toml:2:6: 'wait' must be a duration like \"30s\" or \"5m\", not \"soon\""},
        {"name='n'\nkind='beto'",
         "s.toml:2:6: 'kind' must be one of \"alpha\", \"beta\", not \"beto\"; "
         "did you mean \"beta\"?"},
        {"name='n'\nargs=['a',\n 5]",
         "s.toml:3:2: 'args' must be an array of strings, not an integer"},
        {"name='n'\ncuont=1", "s.toml:2:1: unknown key 'cuont'; did you mean 'count'?"},
        {"name='n'\n[run]\ncomand='x'",
         "s.toml:3:1: unknown key 'comand' in [run]; did you mean 'command'?"},
        {"name='n'\nrun=1", "s.toml:2:5: 'run' must be a table, not an integer"},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct err err = spec_error(rows[i][0]);
        EXPECT_TEXT(err.text, rows[i][1]);
    }
}

TEST(json_fills_the_same_tree_with_places)
{
    struct str source =
        STR("{\"spec\":\n {\"name\":\"n\",\"none\":null,\n  \"list\":[1,2.5,\"x\\n\"],"
            "\"cuont\":1}}");
    OWN(json_doc) struct json_doc doc = {0};
    OWN(toml) struct toml toml = {0};
    struct err err = {0};
    EXPECT(json_read(&doc, source, NULL, &err) == 0);
    EXPECT(toml_from_json(&toml, "body", json_get(json_root(&doc), "spec"), &err) == 0);
    const char *text = NULL;
    long long count = 0;
    EXPECT_INT(toml_text(toml.root, "name", &text, &err), 1);
    EXPECT_INT(toml_text(toml.root, "none", &text, &err), 0);
    EXPECT_INT(toml_int(toml.root, "count", 0, 9, &count, &err), 0);
    EXPECT_INT(toml_get(toml.root, "list")->count, 3);
    EXPECT(toml_check_unused(&toml, &err) < 0);
    EXPECT_TEXT(err.text, "body:3:24: unknown key 'cuont'; did you mean 'count'?");
    OWN(toml) struct toml twice = {0};
    EXPECT(json_read(&doc, STR("{\"a\":1,\"a\":2}"), NULL, &err) == 0);
    EXPECT(toml_from_json(&twice, "body", json_root(&doc), &err) < 0);
    EXPECT_TEXT(err.text, "body:1:8: 'a' was defined before, at line 1");
}
