/* fuzz_dialect_all.c - any bytes as a request, a stream and a body of every dialect. The first byte
 * says which: 'm'essages, 'r'esponses, 'g'oogle, 'c'ompletions, anything else chat completions.
 *
 * A request of which some is known reads as one that is read whole. What is accepted can be
 * recorded, rewritten and said as chat completions, as valid JSON that is accepted there. A stream
 * means the same however it is cut. An answer can be written in every dialect, whole and as a
 * stream, and has the same calls when it is read back. */
#include <stdint.h>
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "base/mem.h"
#include "dialect/dialect.h"

static const struct dialect *const all[] = {&dialect_chat, &dialect_messages, &dialect_responses,
                                            &dialect_google, &dialect_completions};

static const struct dialect *dialect_of(char letter)
{
    switch (letter) {
    case 'm':
        return &dialect_messages;
    case 'r':
        return &dialect_responses;
    case 'g':
        return &dialect_google;
    case 'c':
        return &dialect_completions;
    default:
        return &dialect_chat;
    }
}

static bool is_json(struct str text)
{
    OWN(json_doc) struct json_doc doc = {0};
    return json_read(&doc, text, NULL, NULL) == 0;
}

static int read_answer(const struct dialect *dialect, struct str bytes, bool stream, size_t piece,
                       struct arena *arena, struct trace_answer *out)
{
    struct dialect_reader_options options = {.stream = stream};
    OWN(dialect_reader) struct dialect_reader *reader = dialect_reader_new(dialect, &options);
    while (bytes.size) {
        struct str front = str_upto(bytes, piece);
        if (dialect_reader_feed(reader, front, NULL) < 0)
            return -1;
        bytes = str_from(bytes, front.size);
    }
    return dialect_reader_end(reader, arena, out, NULL);
}

static void check_calls(const struct dialect *dialect, const struct trace_answer *answer,
                        const struct trace_answer *again)
{
    if (dialect == &dialect_completions) /* which has none */
        return;
    CHECK(again->message.call_count == answer->message.call_count);
    for (size_t i = 0; i < answer->message.call_count; i++)
        CHECK(str_equal(again->message.calls[i].name, answer->message.calls[i].name));
}

static void check_written(const struct trace_answer *answer)
{
    struct trace_request request = {.model = STR("m"), .stream = true, .stream_usage = true};
    for (size_t i = 0; i < COUNT(all); i++) {
        OWN(arena) struct arena arena = {0};
        OWN(buf) struct buf out = {0};
        OWN(dialect_writer) struct dialect_writer writer;
        struct trace_answer again = {0};
        dialect_writer_init(&writer, all[i], &request, STR("i"), STR("m"), 1);
        dialect_writer_answer(&writer, answer, 3, &out);
        dialect_writer_finish(&writer, answer->finish, &answer->usage, &out);
        CHECK(read_answer(all[i], buf_str(&out), true, out.size, &arena, &again) == 0);
        check_calls(all[i], answer, &again);
        buf_clear(&out);
        dialect_write_answer(all[i], &request, answer, &out);
        CHECK(read_answer(all[i], buf_str(&out), false, out.size, &arena, &again) == 0);
        check_calls(all[i], answer, &again);
    }
}

static void check_answer(const struct dialect *dialect, struct str bytes, bool stream)
{
    OWN(arena) struct arena arena = {0};
    OWN(buf) struct buf a = {0}, b = {0};
    struct trace_answer fast = {0}, slow = {0};
    int result = read_answer(dialect, bytes, stream, bytes.size, &arena, &fast);
    CHECK(read_answer(dialect, bytes, stream, 1, &arena, &slow) == result);
    if (result < 0)
        return;
    trace_answer_write(&fast, &(struct json_writer){.out = &a});
    trace_answer_write(&slow, &(struct json_writer){.out = &b});
    CHECK(str_equal(buf_str(&a), buf_str(&b)) && is_json(buf_str(&a)));
    if (!fast.id.size)
        fast.id = STR("i");
    check_written(&fast);
}

static bool same_message(const struct trace_message *a, const struct trace_message *b)
{
    OWN(buf) struct buf one = {0}, two = {0};
    trace_message_write(a, &(struct json_writer){.out = &one});
    trace_message_write(b, &(struct json_writer){.out = &two});
    return str_equal(buf_str(&one), buf_str(&two));
}

/* Of the elements of the conversation, the first `known` are known. */
static void check_known(const struct dialect_route *route, struct json body,
                        const struct trace_request *whole, const struct dialect_skim *learned,
                        size_t known)
{
    OWN(arena) struct arena arena = {0};
    struct trace_request request;
    struct dialect_skim skim = {.known = dialect_skim_known(learned->ends, known),
                                .known_ends = learned->ends,
                                .known_array = learned->array.data};
    if (known % 2)
        skim.known_front = learned->front_value;
    if (known % 2 && dialect_tools_plain(whole)) {
        skim.known_tools = learned->tools;
        skim.known_tool_count = whole->tool_count;
    }
    CHECK(dialect_skim_request(route, body, &skim, &arena, &request, NULL) == 0);
    CHECK(request.message_count == whole->message_count && request.tool_count == whole->tool_count);
    CHECK(skim.blank_end <= request.message_count);
    for (size_t i = 0; i < request.message_count; i++)
        if (i < skim.blank || i >= skim.blank_end)
            CHECK(same_message(&request.messages[i], &whole->messages[i]));
    CHECK(skim.count == learned->count);
    for (size_t i = 0; i < skim.count; i++)
        CHECK(skim.ends[i].messages == learned->ends[i].messages &&
              skim.ends[i].unnamed.calls == learned->ends[i].unnamed.calls &&
              skim.ends[i].unnamed.results == learned->ends[i].unnamed.results);
}

static void check_skim(const struct dialect_route *route, struct json body)
{
    OWN(arena) struct arena arena = {0};
    struct trace_request whole;
    struct dialect_skim learned = {0};
    CHECK(dialect_skim_request(route, body, &learned, &arena, &whole, NULL) == 0);
    for (size_t known = 1; learned.array.data && known <= learned.count && known <= 8; known++)
        check_known(route, body, &whole, &learned, known);
}

static void check_request(const struct dialect *dialect, struct str bytes)
{
    OWN(json_doc) struct json_doc doc = {0}, chat = {0};
    OWN(arena) struct arena arena = {.bytes_max = 1 << 20}, room = {0};
    OWN(buf) struct buf out = {0};
    struct trace_request request, again;
    struct dialect_route route = {
        .kind = DIALECT_ROUTE_CALL, .dialect = dialect, .model = STR("g%2fm"), .encoded = true};
    if (json_read(&doc, bytes, NULL, NULL) < 0 ||
        dialect_read_request(&route, json_root(&doc), &arena, &request, NULL) < 0)
        return;
    check_skim(&route, json_root(&doc));
    trace_request_write(&request, &(struct json_writer){.out = &out});
    CHECK(is_json(buf_str(&out)));
    struct dialect_override override = {.model = STR("x"),
                                        .capture = true,
                                        .usage = true,
                                        .has_temperature = true,
                                        .has_top_p = true,
                                        .tokens_max = 7,
                                        .thinking_off = true};
    buf_clear(&out);
    dialect_rewrite_request(dialect, json_root(&doc), &override, &out);
    CHECK(is_json(buf_str(&out)));
    buf_clear(&out);
    CHECK(dialect_write_request(&dialect_chat, &request, &override, &out));
    CHECK(json_read(&chat, buf_str(&out), NULL, NULL) == 0);
    route = (struct dialect_route){.kind = DIALECT_ROUTE_CALL, .dialect = &dialect_chat};
    CHECK(dialect_read_request(&route, json_root(&chat), &room, &again, NULL) == 0);
    CHECK(again.message_count == request.message_count && str_is(again.model, "x"));
    CHECK(again.sampling.tokens_max > 0 && again.sampling.tokens_max <= 7);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2)
        return 0;
    OWN(mem) char *exact = mem_alloc(size);
    memcpy(exact, data, size);
    const struct dialect *dialect = dialect_of(exact[0]);
    struct str bytes = str_make(exact + 1, size - 1);
    if (bytes.data[0] == '{') {
        check_request(dialect, bytes);
        check_answer(dialect, bytes, false);
    } else {
        check_answer(dialect, bytes, true);
    }
    return 0;
}
