/* The json room through its door: what is accepted, what is refused and where, nothing lost,
 * splicing, writing. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/err.h"
#include "base/mem.h"
#include "json/json.h"
#include "test.h"

static bool reads(struct str source)
{
    struct json_doc doc = {0};
    bool good = json_read(&doc, source, NULL, NULL) == 0;
    json_doc_deinit(&doc);
    return good;
}

TEST(every_form_of_the_grammar_is_accepted)
{
    static const char *const good[] = {
        "null",
        " true ",
        "false",
        "0",
        "-0",
        "-0.0",
        "1e5",
        "1E+5",
        "1.25e-10",
        "\"\"",
        "[]",
        "{}",
        "[ ]",
        "{ }",
        "\t\r\n [1 , 2]\n",
        "[[[[]]]]",
        "{\"a\":{\"b\":[{}]}}",
        "\"\\u0000\"",
        "\"\\ud83d\\ude00\"",
        "\"\\ud800\"",
        "\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"",
        "\"\x7f\"",
        "123456789012345678901234567890",
        "1e999",
        "[1,[2,[3,[4]]],5]",
        "\"\xf4\x8f\xbf\xbf\"",
        "{\"a\":1,\"a\":2}",
        "{\"\":0}",
        "\"0123456789abcdef0123456789abcdef\\n0123456789abcdef\xc3\xa9\"",
    };
    for (size_t i = 0; i < COUNT(good); i++)
        if (!reads(str_of(good[i])))
            test_fail(__FILE__, __LINE__, "refused: %s", good[i]);
}

TEST(everything_outside_the_grammar_is_refused)
{
    static const char *const bad[] = {
        "",
        " ",
        "nul",
        "nullx",
        "True",
        "NaN",
        "Infinity",
        "-",
        "+1",
        "01",
        "-01",
        "1.",
        ".5",
        "1e",
        "1e+",
        "0x10",
        "1_000",
        "[1,]",
        "[,1]",
        "[1 2]",
        "[",
        "]",
        "[1",
        "{",
        "}",
        "{\"a\"}",
        "{\"a\":}",
        "{\"a\":1,}",
        "{a:1}",
        "{'a':1}",
        "{\"a\" 1}",
        "{1:2}",
        "[1}",
        "{\"a\":1]",
        "\"",
        "\"\\\"",
        "\"\\x41\"",
        "\"\\u12\"",
        "\"\\u12g4\"",
        "\"\n\"",
        "\"\t\"",
        "1 2",
        "[] []",
        "// c",
        "[1] x",
        "\xef\xbb\xbf{}",
        "\"\\",
        "\"\\u",
        "tru",
        "\"0123456789abcde\x01"
        "f0123456789\"",
        /* UTF-8: stray continuation, overlong, surrogate, too large, cut short, wrong second byte
         */
        "\"\x80\"",
        "\"\xc0\xaf\"",
        "\"\xe0\x80\xaf\"",
        "\"\xed\xa0\x80\"",
        "\"\xf4\x90\x80\x80\"",
        "\"\xf5\x80\x80\x80\"",
        "\"\xe2\x82\"",
        "\"\xc3(\"",
        "\"\xff\"",
        "\"0123456789abcdef\xff\"",
    };
    for (size_t i = 0; i < COUNT(bad); i++)
        if (reads(str_of(bad[i])))
            test_fail(__FILE__, __LINE__, "accepted: %s", bad[i]);
    EXPECT(!reads(str_make("\"a\0b\"", 5)));
    EXPECT(!reads(str_make("1\0", 2)));
}

TEST(an_error_names_line_and_column)
{
    struct json_doc doc = {0};
    struct err err = {0};
    EXPECT(json_read(&doc, STR("{\n  \"gr\xc3\xbc\xc3\x9f\": tru\n}"), NULL, &err) < 0);
    EXPECT_TEXT(err.text, "line 2, column 11: a value is expected here");
    EXPECT_INT(err.kind, ERR_INPUT);
    EXPECT(json_read(&doc, STR("[1,\n2"), NULL, &err) < 0);
    EXPECT_TEXT(err.text, "line 2, column 2: the text ends too early");
    EXPECT(!json_exists(json_root(&doc)));
    json_doc_deinit(&doc);
}

TEST(depth_and_count_have_a_limit)
{
    OWN(buf) struct buf text = {0};
    for (int i = 0; i < 129; i++)
        buf_byte(&text, '[');
    for (int i = 0; i < 129; i++)
        buf_byte(&text, ']');
    struct json_doc doc = {0};
    struct err err = {0};
    EXPECT(json_read(&doc, buf_str(&text), NULL, &err) < 0);
    EXPECT_INT(err.kind, ERR_LIMIT);
    struct json_limits deep = {.depth_max = 129};
    EXPECT(json_read(&doc, buf_str(&text), &deep, &err) == 0);
    struct json_limits few = {.nodes_max = 3};
    EXPECT(json_read(&doc, STR("[1,2]"), &few, &err) == 0);
    EXPECT(json_read(&doc, STR("[1,2,3]"), &few, &err) < 0);
    EXPECT_INT(err.kind, ERR_LIMIT);
    json_doc_deinit(&doc);
}

TEST(members_and_elements_are_found_and_walked_in_order)
{
    OWN(json_doc) struct json_doc doc = {0};
    EXPECT(json_read(&doc,
                     STR("{\"a\":[1,{\"x\":[2,3]},\"s\"],\"b\":{},\"a\":7,\"k\\u0065y\":true}"),
                     NULL, NULL) == 0);
    struct json root = json_root(&doc);
    EXPECT_INT(json_size(root), 4);
    EXPECT_INT(json_int_or(json_get(root, "a"), 0), 7); /* the last duplicate wins */
    EXPECT(json_true(json_get(root, "key")));
    EXPECT(!json_exists(json_get(root, "missing")));
    EXPECT_INT(json_type(json_get(json_get(root, "missing"), "deeper")), JSON_NONE);
    struct json list = json_first(root).value;
    EXPECT_INT(json_size(list), 3);
    EXPECT_INT(json_int_or(json_at(json_get(json_at(list, 1), "x"), 1), 0), 3);
    EXPECT(json_is(json_at(list, 2), "s"));
    EXPECT(!json_exists(json_at(list, 3)));
    EXPECT_STR(json_raw(json_at(list, 1)), STR("{\"x\":[2,3]}"));
    OWN(buf) struct buf seen = {0};
    JSON_EACH (item, root) {
        buf_str_append(&seen, json_raw(item.key));
        buf_str_append(&seen, json_raw(item.value));
    }
    EXPECT_STR(buf_str(&seen), STR("\"a\"[1,{\"x\":[2,3]},\"s\"]\"b\"{}\"a\"7\"k\\u0065y\"true"));
    size_t count = 0;
    JSON_EACH (item, json_get(root, "b"))
        count++;
    JSON_EACH (item, json_get(root, "missing"))
        count++;
    EXPECT_INT(count, 0);
}

TEST(strings_are_decoded_only_when_they_hold_escapes)
{
    OWN(json_doc) struct json_doc doc = {0};
    OWN(arena) struct arena arena = {0};
    struct str source =
        STR("[\"plain\",\"a\\n\\u00e9\\ud83d\\ude00\\ud800x\\udc00\\u0000\\/\",\"\","
            "\"\\ud83d\\u0041\"]");
    EXPECT(json_read(&doc, source, NULL, NULL) == 0);
    struct json root = json_root(&doc);
    struct str plain = json_str(json_at(root, 0), &arena);
    EXPECT(plain.data == source.data + 2 && plain.size == 5);
    EXPECT_STR(json_str(json_at(root, 1), &arena),
               str_make("a\n\xc3\xa9\xf0\x9f\x98\x80\xef\xbf\xbdx\xef\xbf\xbd\0/", 17));
    EXPECT(json_str(json_at(root, 2), &arena).data != NULL);
    EXPECT_INT(json_str(json_at(root, 2), &arena).size, 0);
    EXPECT_STR(json_str(json_at(root, 3), &arena), STR("\xef\xbf\xbd"
                                                       "A"));
    EXPECT(json_str(root, &arena).data == NULL);
    EXPECT(!json_is(json_at(root, 1), "a"));
}

TEST(numbers_keep_their_text_and_are_read_when_they_fit)
{
    OWN(json_doc) struct json_doc doc = {0};
    EXPECT(json_read(
               &doc,
               STR("[9223372036854775807,9223372036854775808,-9223372036854775808,1e3,2.0,2.5,"
                   "1e999,1234567890123456789012345678901234567890123456789012345678901234567890]"),
               NULL, NULL) == 0);
    struct json root = json_root(&doc);
    long long number;
    double real;
    EXPECT(json_int(json_at(root, 0), &number) && number == 9223372036854775807ll);
    EXPECT(!json_int(json_at(root, 1), &number));
    EXPECT(json_int(json_at(root, 2), &number) && number == -9223372036854775807ll - 1);
    EXPECT(json_int(json_at(root, 3), &number) && number == 1000);
    EXPECT(json_int(json_at(root, 4), &number) && number == 2);
    EXPECT(!json_int(json_at(root, 5), &number));
    EXPECT(json_double(json_at(root, 5), &real) && real == 2.5);
    EXPECT(!json_double(json_at(root, 6), &real));
    EXPECT(json_double(json_at(root, 7), &real) && real > 1.2e69);
    EXPECT_STR(json_raw(json_at(root, 3)), STR("1e3"));
}

TEST(a_number_has_a_longest_spelling)
{
    OWN(json_doc) struct json_doc doc = {0};
    OWN(buf) struct buf text = {0};
    struct err err = {0};
    for (int i = 0; i < JSON_NUMBER_BYTES_MAX; i++)
        buf_byte(&text, '7');
    EXPECT_INT(json_read(&doc, buf_str(&text), NULL, &err), 0);
    buf_byte(&text, '7');
    EXPECT_INT(json_read(&doc, buf_str(&text), NULL, &err), -1);
    EXPECT_INT(err.kind, ERR_LIMIT);
}

TEST(the_memory_of_a_document_is_reused)
{
    OWN(json_doc) struct json_doc doc = {0};
    EXPECT(json_read(&doc, STR("[1,2,3,4,5,6,7,8,9,10]"), NULL, NULL) == 0);
    struct json_node *nodes = doc.nodes;
    EXPECT(json_read(&doc, STR("{\"a\":1}"), NULL, NULL) == 0);
    EXPECT(doc.nodes == nodes);
    EXPECT_INT(json_size(json_root(&doc)), 1);
}

static struct str spliced(const char *source, const struct json_edit *edits, size_t count,
                          struct buf *out)
{
    struct json_doc doc = {0};
    buf_clear(out);
    if (json_read(&doc, str_of(source), NULL, NULL) == 0)
        json_splice(json_root(&doc), edits, count, out);
    json_doc_deinit(&doc);
    return buf_str(out);
}

TEST(splicing_leaves_every_other_byte_alone)
{
    OWN(buf) struct buf out = {0};
    struct json_edit set[] = {{"model", STR("\"m\"")}, {"new", STR("1")}};
    EXPECT_STR(
        spliced("{ \"model\" : \"x\" ,\n \"seed\":12345678901234567890 , \"t\":1.50 }", set, 2,
                &out),
        STR("{ \"model\" : \"m\" ,\n \"seed\":12345678901234567890 , \"t\":1.50,\"new\":1 }"));
    EXPECT_STR(spliced("{}", set, 2, &out), STR("{\"model\":\"m\",\"new\":1}"));
    EXPECT_STR(spliced("{ }", set, 0, &out), STR("{ }"));
    EXPECT_STR(spliced("{\"mod\\u0065l\":1}", set, 1, &out), STR("{\"mod\\u0065l\":\"m\"}"));
    EXPECT_STR(spliced("[1, 2]", set, 2, &out), STR("[1, 2]"));
}

TEST(splicing_removes_members_with_their_commas)
{
    OWN(buf) struct buf out = {0};
    struct json_edit drop[] = {{"a", STR_NONE}};
    EXPECT_STR(spliced("{\"a\":1}", drop, 1, &out), STR("{}"));
    EXPECT_STR(spliced("{\"a\":1,\"b\":2}", drop, 1, &out), STR("{\"b\":2}"));
    EXPECT_STR(spliced("{\"b\":2,\"a\":1}", drop, 1, &out), STR("{\"b\":2}"));
    EXPECT_STR(spliced("{\"b\":2, \"a\":1, \"c\":3}", drop, 1, &out), STR("{\"b\":2, \"c\":3}"));
    EXPECT_STR(spliced("{\"a\":1,\"a\":2,\"b\":[],\"a\":3}", drop, 1, &out), STR("{\"b\":[]}"));
    EXPECT_STR(spliced("{\"b\":2}", drop, 1, &out), STR("{\"b\":2}"));
    struct json_edit swap[] = {{"a", STR_NONE}, {"n", STR("0")}};
    EXPECT_STR(spliced("{\"a\":1}", swap, 2, &out), STR("{\"n\":0}"));
}

TEST(splicing_around_a_long_value_leaves_it_where_it_is)
{
    OWN(buf) struct buf source = {0}, copied = {0}, around = {0};
    OWN(json_doc) struct json_doc doc = {0};
    struct json_edit set[] = {{"a", STR("0")}, {"new", STR("1")}};
    struct json_gap gap;
    buf_str_append(&source, STR("{ \"a\":1, \"long\" : \""));
    for (size_t i = 0; i < 20000; i++)
        buf_byte(&source, 'x');
    buf_str_append(&source, STR("\" ,\"z\":2}"));
    EXPECT_INT(json_read(&doc, buf_str(&source), NULL, NULL), 0);
    json_splice(json_root(&doc), set, 2, &copied);
    json_splice_around(json_root(&doc), set, 2, &around, &gap);
    EXPECT_INT(gap.bytes.size, 20002);
    EXPECT(gap.bytes.data > source.data && gap.bytes.data < source.data + source.size);
    EXPECT(around.size < 100);
    OWN(buf) struct buf whole = {0};
    buf_str_append(&whole, str_upto(buf_str(&around), gap.at));
    buf_str_append(&whole, gap.bytes);
    buf_str_append(&whole, str_from(buf_str(&around), gap.at));
    EXPECT_STR(buf_str(&whole), buf_str(&copied));
    /* One that is edited is not the source's, and what is short is copied. */
    struct json_edit other[] = {{"long", STR("3")}};
    buf_clear(&around);
    json_splice_around(json_root(&doc), other, 1, &around, &gap);
    EXPECT(!gap.bytes.data);
    EXPECT_STR(buf_str(&around), STR("{ \"a\":1, \"long\" : 3 ,\"z\":2}"));
}

TEST(integers_are_written_to_their_last_digit)
{
    static const long long numbers[] = {0, 9, 10, -1, -10, INT64_MAX, INT64_MIN};
    OWN(buf) struct buf out = {0};
    struct json_writer writer = {.out = &out};
    json_begin_array(&writer);
    for (size_t i = 0; i < COUNT(numbers); i++)
        json_put_int(&writer, numbers[i]);
    json_end_array(&writer);
    EXPECT_STR(buf_str(&out), STR("[0,9,10,-1,-10,9223372036854775807,-9223372036854775808]"));
}

TEST(the_writer_sets_commas_and_escapes)
{
    OWN(buf) struct buf out = {0};
    struct json_writer writer = {.out = &out};
    json_begin_object(&writer);
    json_set_text(&writer, "a", "x\"\\\n\x01\x7f");
    json_set_text(&writer, "none", NULL);
    json_key(&writer, "list");
    json_begin_array(&writer);
    json_put_int(&writer, -5);
    json_put_double(&writer, 0.1);
    json_put_double(&writer, NAN);
    json_put_bool(&writer, true);
    json_begin_object(&writer);
    json_end_object(&writer);
    json_put_str(&writer, STR("bad \xff utf8 \xe2\x82\xac \xe2\x82"));
    json_end_array(&writer);
    json_set_raw(&writer, "raw", STR("{\"x\":1}"));
    json_end_object(&writer);
    EXPECT_STR(buf_str(&out),
               STR("{\"a\":\"x\\\"\\\\\\n\\u0001\x7f\",\"none\":null,\"list\":[-5,0.1,null,true,{},"
                   "\"bad \xef\xbf\xbd utf8 \xe2\x82\xac \xef\xbf\xbd\xef\xbf\xbd\"],"
                   "\"raw\":{\"x\":1}}"));
    EXPECT(reads(buf_str(&out)));
}

TEST(the_writer_indents_for_people)
{
    OWN(buf) struct buf out = {0};
    struct json_writer writer = {.out = &out, .indent = 2};
    json_begin_object(&writer);
    json_set_int(&writer, "a", 1);
    json_key(&writer, "b");
    json_begin_array(&writer);
    json_put_int(&writer, 1);
    json_begin_array(&writer);
    json_end_array(&writer);
    json_end_array(&writer);
    json_end_object(&writer);
    EXPECT_STR(buf_str(&out), STR("{\n  \"a\": 1,\n  \"b\": [\n    1,\n    []\n  ]\n}"));
}

TEST(doubles_are_written_so_that_they_read_back)
{
    static const double numbers[] = {0.1,         1.0 / 3, 1e300,           5e-324,
                                     -123456.789, 1e22,    3.14159265358979};
    for (size_t i = 0; i < COUNT(numbers); i++) {
        OWN(buf) struct buf out = {0};
        struct json_writer writer = {.out = &out};
        json_put_double(&writer, numbers[i]);
        EXPECT(strtod(buf_text(&out), NULL) == numbers[i]);
        EXPECT(reads(buf_str(&out)));
    }
}

TEST(what_is_quoted_reads_back_the_same)
{
    OWN(buf) struct buf text = {0};
    for (int i = 0; i < 2000; i++) {
        unsigned char byte = (unsigned char)(i * 7 % 128);
        buf_byte(&text, (char)byte);
        if (i % 37 == 0)
            buf_append(&text, "\xf0\x9f\x9a\xaa", 4);
    }
    OWN(buf) struct buf quoted = {0};
    json_quote(&quoted, buf_str(&text));
    OWN(json_doc) struct json_doc doc = {0};
    OWN(arena) struct arena arena = {0};
    EXPECT(json_read(&doc, buf_str(&quoted), NULL, NULL) == 0);
    EXPECT_STR(json_str(json_root(&doc), &arena), buf_str(&text));
}

/* Quoting looks at blocks: a byte that needs care is found wherever it stands. */
TEST(a_byte_that_needs_care_is_found_in_every_place_of_every_length)
{
    static const struct {
        const char *byte, *quoted;
    } cases[] = {{"\"", "\\\""}, {"\\", "\\\\"},           {"\x1f", "\\u001f"},
                 {"\n", "\\n"},  {"\xff", "\xef\xbf\xbd"}, {"\x7f", "\x7f"}};
    for (size_t size = 1; size <= 50; size++)
        for (size_t at = 0; at < size; at++)
            for (size_t i = 0; i < COUNT(cases); i++) {
                char text[64], value[80], key[160];
                memset(text, 'x', size);
                text[at] = cases[i].byte[0];
                snprintf(value, sizeof value, "\"%.*s%s%.*s\"", (int)at, text, cases[i].quoted,
                         (int)(size - at - 1), text + at + 1);
                OWN(buf) struct buf out = {0};
                json_quote(&out, str_make(text, size));
                EXPECT_STR(buf_str(&out), str_of(value));
                struct json_writer writer = {.out = &out};
                buf_clear(&out);
                for (int twice = 0; twice < 2; twice++) {
                    json_key_str(&writer, str_make(text, size));
                    json_put_int(&writer, 7);
                }
                snprintf(key, sizeof key, "%s:7,%s:7", value, value);
                EXPECT_STR(buf_str(&out), str_of(key));
            }
}
