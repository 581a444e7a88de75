/* The quick way through a chat stream comes to what the general way comes to: the same bytes for
 * the agent, the same answer, the same refusals. Chunks are made at random from what engines send
 * and from what no engine should send. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "dialect/dialect.h"
#include "test.h"

static uint64_t state;

static uint32_t dice(uint32_t sides)
{
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(state >> 33) % sides;
}

static const char *any_of(const char *const *list, size_t count)
{
    return list[dice((uint32_t)count)];
}
#define ANY(...)                                                                                   \
    any_of((const char *const[]){__VA_ARGS__}, COUNT(((const char *const[]){__VA_ARGS__})))

static void put(struct buf *out, const char *text)
{
    buf_str_append(out, str_of(text));
}

static void put_blank(struct buf *out)
{
    if (dice(40) == 0)
        put(out, ANY(" ", "  ", "\t", " \t "));
}

static void put_string(struct buf *out)
{
    put(out,
        ANY("\"\"", "\"a\"", "\" word\"", "\"\\n\"", "\"\\u00e9\\ud83d\\ude00\"", "\"\\ud800\"",
            "\"h\xc3\xa9llo\"", "\"a rather long piece of text that fills a block or two\"",
            "\"quote \\\" and \\\\ back\"", "\"token_id:5\"", "null"));
}

static void put_number(struct buf *out)
{
    if (dice(3)) {
        buf_format(out, "-%.*g", (int)dice(17) + 1, pow(10, (double)dice(40) - 30) * dice(100000));
        return;
    }
    put(out, ANY("0", "-0", "-0.0", "1e-7", "-1.1920928244535389e-07", "-0.6931471824645996",
                 "-inf", "1e999", "null", "-9999.0", "1E2", "0.1", "-100",
                 "12345678901234567890123", "01", "\"x\"", "18446744073709551616"));
}

static void put_ids(struct buf *out)
{
    if (dice(12) == 0) {
        put(out, ANY("null", "[]", "[1,2.0]", "[-1]", "[4294967296]", "{}", "[\"1\"]", "[1e2]"));
        return;
    }
    put(out, "[");
    for (uint32_t i = 0, count = dice(20) ? dice(3) + 1 : 70; i < count; i++)
        buf_format(out, "%s%u", i ? "," : "", dice(100000));
    put(out, "]");
}

static void put_entry(struct buf *out)
{
    put(out, "{\"token\":");
    if (dice(3))
        buf_format(out, "\"token_id:%s%u\"", dice(30) ? "" : ANY("-", "0", " ", "+"), dice(90000));
    else
        put(out, ANY("\"a\"", "\"\\n\"", "\"\\u0074oken_id:7\"", "\"token_id:\\u0037\"", "\"t\\n\"",
                     "null", "\"token_id:\"", "\"token_id:99999999999\""));
    if (dice(10) == 0)
        put(out,
            ANY(",\"token_id\":7", ",\"token_id\":null", ",\"token_id\":-3", ",\"token_id\":7.0"));
    put_blank(out);
    if (dice(30)) {
        put(out, ",\"logprob\":");
        put_number(out);
    }
    put(out, ANY("", ",\"bytes\":null", ",\"bytes\":[1,2]", ",\"top_logprobs\":[]",
                 ",\"top_logprobs\":[{\"token\":\"b\",\"logprob\":-2.5,\"bytes\":[98]}]",
                 ",\"logprob\":-7"));
    put(out, "}");
}

static void put_logprobs(struct buf *out)
{
    if (dice(8) == 0) {
        put(out,
            ANY("null", "{}", "{\"content\":null}", "{\"content\":[]}", "[]", "{\"tokens\":[]}",
                "{\"content\":[{}]}", "{\"content\":[null]}", "{\"refusal\":null,\"content\":7}"));
        return;
    }
    put(out, "{\"content\":[");
    for (uint32_t i = 0, count = dice(30) ? dice(2) + 1 : 66; i < count; i++) {
        put(out, i ? "," : "");
        put_entry(out);
    }
    put(out, ANY("]}", "] }", "],\"refusal\":null}"));
}

static void put_calls(struct buf *out)
{
    put(out, "[");
    for (uint32_t i = 0, count = dice(10) ? 1 : dice(4); i < count; i++) {
        put(out, i ? "," : "");
        put(out, ANY("{", "{\"index\":0,", "{\"index\":0,", "{\"index\":1,", "{\"index\":null,"));
        put(out, ANY("", "", "\"id\":\"i\",", "\"id\":\"j\\n\",", "\"id\":null,",
                     "\"type\":\"function\","));
        put(out, ANY("\"function\":{\"arguments\":", "\"function\":{\"name\":\"f\",\"arguments\":",
                     "\"function\":{\"name\":null,\"arguments\":",
                     "\"custom\":{\"name\":\"f\",\"input\":",
                     "\"function\":{\"name\":7,\"arguments\":"));
        if (dice(12))
            put_string(out);
        else
            put(out, ANY("{\"a\":1}", "7", "[]"));
        put(out, ANY("}}", "}}", "}}", "},\"custom\":null}", "},\"index\":2}"));
    }
    put(out, "]");
}

static void put_delta(struct buf *out)
{
    put(out, "{");
    const char *comma = "";
    if (dice(4) == 0) {
        put(out, "\"role\":\"assistant\"");
        comma = ",";
    }
    for (uint32_t i = dice(3); i < 3; i++) {
        buf_format(out, "%s\"%s\":", comma,
                   ANY("content", "content", "content", "reasoning_content", "reasoning", "refusal",
                       "function_call"));
        put_string(out);
        comma = ",";
    }
    if (dice(3) == 0) {
        buf_format(out, "%s\"tool_calls\":", comma);
        comma = ",";
        if (dice(10) == 0)
            put(out, ANY("null", "[]", "[ ]", "{}", "[null]", "[{}]"));
        else
            put_calls(out);
    }
    if (dice(15) == 0)
        buf_format(out, "%s\"reasoning_details\":%s", comma,
                   ANY("null", "[]", "[{\"type\":\"reasoning.text\",\"text\":\"t\"}]"));
    put(out, "}");
}

static void put_choice_member(struct buf *out, uint32_t which)
{
    switch (which) {
    case 0:
        buf_format(out, "\"index\":%s", dice(30) ? "0" : ANY("1", "0.0", "null", "-0"));
        break;
    case 1:
        put(out, dice(60) ? "\"delta\":" : "\"d\\u0065lta\":");
        put_delta(out);
        break;
    case 2:
        put(out, "\"logprobs\":");
        put_blank(out);
        put_logprobs(out);
        break;
    case 3:
        buf_format(out, "\"finish_reason\":%s", dice(30) ? "null" : ANY("\"\"", "\"stop\"", "1"));
        break;
    case 4:
        put(out, "\"token_ids\":");
        put_ids(out);
        break;
    default:
        put(out,
            ANY("\"stop_reason\":null", "\"matched_stop\":7", "\"message\":{\"content\":\"no\"}",
                "\"prompt_token_ids\":null", "\"prompt_token_ids\":[1,2]", "\"meta_info\":{}",
                "\"policy_version\":3", "\"x\":[[[{\"y\":[1,{}]}]]]", "\"x\":tru", "\"\":{}"));
    }
}

static void put_choice(struct buf *out)
{
    put(out, "{");
    bool any = false;
    uint32_t turn = dice(6);
    for (uint32_t i = 0; i < 6; i++) {
        uint32_t which = (i + turn) % 6;
        if (which == 5 ? dice(6) != 0 : dice(8) == 0)
            continue;
        if (any)
            put(out, ",");
        put_blank(out);
        put_choice_member(out, which);
        put_blank(out);
        any = true;
    }
    put(out, "}");
}

static void put_chunk(struct buf *out)
{
    put(out, ANY("{", "{", "{", "{ "));
    put(out,
        ANY("\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":1700000000,"
            "\"model\":\"m\",",
            "\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",", "\"id\":\"\\u0041\",",
            "\"id\":7,", "\"prompt_token_ids\":null,", "\"prompt_token_ids\":[1],",
            "\"prompt_logprobs\":null,", "\"object\":\"error\",", "\"error\":null,",
            "\"error\":{\"message\":\"no\"},", "\"created\":1.5,", "\"usage\":null,",
            "\"usage\":{\"prompt_tokens\":3},", ""));
    put(out, "\"choices\":[");
    put_blank(out);
    if (dice(25))
        put_choice(out);
    if (dice(40) == 0) {
        put(out, ",");
        put_choice(out);
    }
    put_blank(out);
    put(out, "]");
    put(out, ANY("", "", "", ",\"usage\":null", ",\"system_fingerprint\":\"f\"", ",\"choices\":[]",
                 ",\"prompt_token_ids\":null", ",\"id\":\"twice\"", "   "));
    put(out, dice(60) ? "}" : ANY("", "}}", "} x", "} "));
}

static void put_stream(struct buf *out)
{
    for (uint32_t i = 0, count = dice(4) + 1; i < count; i++) {
        size_t start = out->size;
        put(out, dice(50) ? "data: " : ANY("event: e\ndata: ", "data:", ": hello\n\ndata: "));
        put_chunk(out);
        if (dice(12) == 0)
            out->data[start + dice((uint32_t)(out->size - start))] = (char)dice(256);
        put(out, "\n\n");
    }
    put(out, "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n");
    put(out, "data: [DONE]\n\n");
}

static void on_relay(void *context, struct str bytes, bool terminal)
{
    buf_byte(context, terminal ? 'T' : 'R');
    buf_str_append(context, bytes);
}

static void on_delta(void *context, const struct trace_delta *delta)
{
    buf_format(context, "D%d", (int)delta->kind);
    buf_str_append(context, delta->text);
}

/* Everything that can be seen from outside, as one text. */
static void read_all(struct str bytes, struct dialect_reader_options options, struct buf *seen)
{
    struct err err = {0};
    struct arena arena = {0};
    options.stream = true;
    options.on_relay = on_relay;
    options.context = seen;
    struct dialect_reader *reader = dialect_reader_new(&dialect_chat, &options);
    struct trace_answer answer = {0};
    int result = dialect_reader_feed(reader, bytes, &err);
    if (result == 0)
        result = dialect_reader_end(reader, &arena, &answer, &err);
    else
        dialect_reader_partial(reader, &arena, &answer);
    buf_format(seen, "\nresult %d kind %d %s\n", result, (int)err.kind, err.text);
    trace_answer_write(&answer, &(struct json_writer){.out = seen});
    dialect_reader_free(reader);
    arena_deinit(&arena);
}

TEST(the_quick_way_comes_to_what_the_general_way_comes_to)
{
    for (uint32_t round = 0; round < 20000; round++) {
        state = round;
        OWN(buf) struct buf stream = {0}, quick = {0}, general = {0};
        put_stream(&stream);
        struct dialect_reader_options options = {.strip_token_ids = dice(4) != 0,
                                                 .strip_logprobs = dice(4) != 0,
                                                 .strip_usage = dice(2) != 0,
                                                 .on_delta = dice(2) ? on_delta : NULL};
        read_all(buf_str(&stream), options, &quick);
        options.thorough = true;
        read_all(buf_str(&stream), options, &general);
        if (str_equal(buf_str(&quick), buf_str(&general)))
            continue;
        test_fail(__FILE__, __LINE__, "round %u\n%s\n--- quick\n%s\n--- general\n%s", round,
                  buf_text(&stream), buf_text(&quick), buf_text(&general));
        return;
    }
}

TEST(too_many_tool_calls_are_too_many_either_way)
{
    OWN(buf) struct buf stream = {0}, quick = {0}, general = {0};
    for (int i = 0; i < 300; i++)
        buf_format(
            &stream,
            "data: {\"choices\":[{\"index\":0,\"delta\":{\"tool_calls\":[{\"index\":%d,\"id\":"
            "\"i%d\",\"function\":{\"name\":\"f\",\"arguments\":\"\"}}]}}]}\n\n",
            i, i);
    read_all(buf_str(&stream), (struct dialect_reader_options){0}, &quick);
    read_all(buf_str(&stream), (struct dialect_reader_options){.thorough = true}, &general);
    EXPECT_TEXT(buf_text(&quick), buf_text(&general));
    EXPECT(str_find(buf_str(&quick), STR("tool calls")) >= 0);
}
