/* Reading on from where an earlier text was the same gives what reading all of it gives: the same
 * tape, the same verdict, the same words. Random texts, mutated in every way, cut at every byte. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "json/json.h"
#include "test.h"

#define NODE_BYTES 16

static uint64_t seed;

static uint32_t dice(uint32_t sides)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(seed >> 33) % sides;
}

static void random_text(struct buf *out)
{
    static const char *const pieces[] = {"a",
                                         "role",
                                         "\\n",
                                         "\\\"",
                                         "\\\\",
                                         "\\u00e9",
                                         "\xc3\xa9",
                                         "\\ud83d\\ude00",
                                         "\xe2\x82\xac",
                                         "0123456789abcdef",
                                         " ",
                                         "]",
                                         "}",
                                         ",",
                                         ":"};
    buf_byte(out, '"');
    for (uint32_t i = dice(6); i; i--)
        buf_str_append(out, str_of(pieces[dice(COUNT(pieces))]));
    buf_byte(out, '"');
}

static void blank(struct buf *out)
{
    if (dice(8) == 0)
        buf_str_append(out, str_of(dice(2) ? " " : "\n\t"));
}

static void random_value(struct buf *out, int depth)
{
    static const char *const words[] = {"0",        "-1",   "12",    "1.5", "1e3",
                                        "-0.25E-2", "true", "false", "null"};
    uint32_t kind = dice(depth > 5 ? 2 : 6);
    blank(out);
    if (kind == 0) {
        buf_str_append(out, str_of(words[dice(COUNT(words))]));
    } else if (kind == 1) {
        random_text(out);
    } else {
        bool object = kind % 2;
        buf_byte(out, object ? '{' : '[');
        for (uint32_t i = 0, count = dice(5); i < count; i++) {
            if (i)
                buf_byte(out, ',');
            blank(out);
            if (object) {
                random_text(out);
                blank(out);
                buf_byte(out, ':');
            }
            random_value(out, depth + 1);
            blank(out);
        }
        buf_byte(out, object ? '}' : ']');
    }
    blank(out);
}

static size_t shared_bytes(struct str a, struct str b)
{
    size_t at = 0;
    while (at < a.size && at < b.size && a.data[at] == b.data[at])
        at++;
    return at;
}

static bool same(const struct json_doc *a, const struct json_doc *b)
{
    return a->count == b->count &&
           (!a->count || memcmp(a->nodes, b->nodes, a->count * NODE_BYTES) == 0);
}

/* False, with the texts on standard output, when the two ways differ. */
static bool compare(const struct json_doc *before, struct str text, size_t shared)
{
    static const struct json_limits limits = {.depth_max = 12, .nodes_max = 500};
    OWN(json_doc) struct json_doc whole = {0}, on = {0}, moved = {0};
    struct err whole_err = {0}, on_err = {0}, moved_err = {0};
    int expected = json_read(&whole, text, &limits, &whole_err);
    int got = json_read_on(&on, text, before, shared, &limits, &on_err);
    (void)json_read(&moved, before->source, &limits, NULL); /* as `before` was */
    int then = json_read_on(&moved, text, &moved, shared, &limits, &moved_err);
    if (expected == got && same(&whole, &on) && strcmp(whole_err.text, on_err.text) == 0 &&
        expected == then && same(&whole, &moved) && strcmp(whole_err.text, moved_err.text) == 0)
        return true;
    printf("  after %.*s\n  (%zu bytes of it)\n  text %.*s\n  %d '%s', not %d '%s'\n",
           STR_ARGS(before->source), shared, STR_ARGS(text), got, on_err.text, expected,
           whole_err.text);
    return false;
}

/* The text with something else somewhere: cut off, put in, taken out, replaced, or with a new end.
 */
static void mutate(struct str text, struct buf *out)
{
    static const char *const odd[] = {"\"", "\\", "]", "}",    "[", "{",    ",", ":",
                                      "1",  "e",  ".", "\xc3", "u", "\x01", "",  "null"};
    size_t at = text.size ? dice((uint32_t)text.size + 1) : 0;
    size_t gone = dice(4) ? 0 : dice(10);
    buf_str_append(out, str_upto(text, at));
    uint32_t kind = dice(4);
    if (kind == 0)
        buf_str_append(out, str_of(odd[dice(COUNT(odd))]));
    else if (kind == 1)
        random_value(out, 3);
    else if (kind == 2)
        return;
    buf_str_append(out, at + gone < text.size ? str_from(text, at + gone) : STR_NONE);
}

TEST(reading_on_is_reading_all_of_it)
{
    static const struct json_limits limits = {.depth_max = 12, .nodes_max = 500};
    int good = 0;
    for (seed = 1; seed < 3000; seed++) {
        uint64_t kept = seed;
        OWN(buf) struct buf text = {0};
        OWN(json_doc) struct json_doc before = {0};
        random_value(&text, 0);
        if (json_read(&before, buf_str(&text), &limits, NULL) == 0) {
            good++;
            for (int i = 0; i < 6; i++) {
                OWN(buf) struct buf changed = {0};
                mutate(buf_str(&text), &changed);
                size_t shared = shared_bytes(buf_str(&text), buf_str(&changed));
                EXPECT(compare(&before, buf_str(&changed), shared));
                EXPECT(compare(&before, buf_str(&changed), shared ? dice((uint32_t)shared) : 0));
            }
        }
        seed = kept;
    }
    EXPECT(good > 2000);
}

/* A conversation as agents send it, cut at every byte and continued in several ways. */
TEST(a_conversation_is_read_on_from_any_byte)
{
    static const char first[] =
        "{\"model\":\"m\\u00e9\",\"messages\":[{\"role\":\"user\",\"content\":\"a \\\"b\\\" "
        "c\\n\"},{\"role\":\"assistant\","
        "\"content\":null,\"tool_calls\":[{\"id\":\"1\",\"function\":{\"name\":\"f\",\"arguments\":"
        "\"{\\\"x\\\":1}\"}}]}],"
        "\"temperature\":0.7,\"tools\":[{\"type\":\"function\"}],\"messages\":[1,2,12]}";
    static const char *const tails[] = {"",      "}",       "]}",
                                        "\"}",   "\\",      "\\u12",
                                        "3]}",   "4}",      ",{\"role\":\"user\"}]}",
                                        "\"}]}", "e5}",     ",\"messages\":[]}",
                                        " ",     "\"x\":1}"};
    OWN(json_doc) struct json_doc before = {0};
    EXPECT_INT(json_read(&before, STR(first), NULL, NULL), 0);
    for (size_t cut = 0; cut < sizeof first; cut++) {
        for (size_t i = 0; i < COUNT(tails); i++) {
            OWN(buf) struct buf text = {0};
            buf_append(&text, first, cut);
            buf_str_append(&text, str_of(tails[i]));
            EXPECT(compare(&before, buf_str(&text), shared_bytes(STR(first), buf_str(&text))));
            EXPECT(compare(&before, buf_str(&text), cut / 2));
        }
    }
}

/* The last few elements of a list change again and again, and it grows: each text is read on in
 * place from the one before, and what is marked as known is known. */
TEST(a_list_that_grows_for_long_is_read_on_in_place)
{
    size_t marked = 0;
    for (seed = 1; seed < 200; seed++) {
        uint64_t kept = seed;
        OWN(buf) struct buf list = {0};
        OWN(json_doc) struct json_doc on = {0};
        struct buf texts[2] = {{0}, {0}};
        size_t begins[200], count = 0;
        for (int turn = 0; turn < 40; turn++) {
            size_t back = dice(4);
            count = count > back ? count - back : 0;
            list.size = count ? begins[count] : 0;
            for (uint32_t i = 1 + dice(4); i && count < COUNT(begins) - 1; i--) {
                if (count)
                    buf_byte(&list, ',');
                random_value(&list, 3);
                begins[++count] = list.size;
            }
            struct buf *text = &texts[turn % 2];
            buf_clear(text);
            buf_format(text, "{\"a\":[1],\"m\":[%.*s],\"z\":%u}", STR_ARGS(buf_str(&list)),
                       dice(100));
            OWN(json_doc) struct json_doc whole = {0};
            EXPECT_INT(json_read(&whole, buf_str(text), NULL, NULL), 0);
            size_t shared = turn ? shared_bytes(buf_str(&texts[(turn + 1) % 2]), buf_str(text)) : 0;
            EXPECT_INT(json_read_on(&on, buf_str(text), turn ? &on : NULL, shared, NULL, NULL), 0);
            EXPECT(same(&whole, &on));
            size_t known;
            struct json array = json_get(json_root(&on), "m");
            struct json_item item = json_marked(array, &known);
            if (!known)
                continue;
            marked++;
            struct str raw = json_raw(item.value);
            EXPECT(raw.data + raw.size <= text->data + shared);
            EXPECT(json_raw(json_at(array, known - 1)).data == raw.data);
            EXPECT_INT(item.left, json_size(array) + 1 - known);
        }
        buf_deinit(&texts[0]);
        buf_deinit(&texts[1]);
        seed = kept;
    }
    EXPECT(marked > 1000);
}
