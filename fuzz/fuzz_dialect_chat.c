/* fuzz_dialect_chat.c - any bytes as an agent's request, as an upstream's stream and as its body. A
 * stream must mean the same however it is cut, and an accepted answer must survive being written
 * and read again. */
#include <stdint.h>
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "base/mem.h"
#include "dialect/dialect.h"

static void ignore_relay(void *context, struct str bytes, bool terminal)
{
    (void)terminal;
    *(size_t *)context += bytes.size;
}

static int read_answer(struct str bytes, bool stream, size_t piece, struct arena *arena,
                       struct trace_answer *out)
{
    size_t relayed = 0;
    struct dialect_reader_options options = {.stream = stream,
                                             .strip_token_ids = true,
                                             .strip_logprobs = true,
                                             .strip_usage = true,
                                             .on_relay = ignore_relay,
                                             .context = &relayed};
    OWN(dialect_reader) struct dialect_reader *reader = dialect_reader_new(&dialect_chat, &options);
    while (bytes.size) {
        struct str front = str_upto(bytes, piece);
        if (dialect_reader_feed(reader, front, NULL) < 0)
            return -1;
        bytes = str_from(bytes, front.size);
    }
    return dialect_reader_end(reader, arena, out, NULL);
}

static void keep_relay(void *context, struct str bytes, bool terminal)
{
    buf_byte(context, terminal ? 'T' : 'R');
    buf_str_append(context, bytes);
}

static void see(struct str bytes, bool thorough, struct buf *seen)
{
    struct dialect_reader_options options = {.stream = true,
                                             .strip_token_ids = true,
                                             .strip_logprobs = true,
                                             .thorough = thorough,
                                             .on_relay = keep_relay,
                                             .context = seen};
    OWN(arena) struct arena arena = {0};
    OWN(dialect_reader) struct dialect_reader *reader = dialect_reader_new(&dialect_chat, &options);
    struct err err = {0};
    struct trace_answer answer = {0};
    int result = dialect_reader_feed(reader, bytes, &err);
    dialect_reader_partial(reader, &arena, &answer);
    buf_format(seen, "%d %s", result, err.text);
    trace_answer_write(&answer, &(struct json_writer){.out = seen});
}

/* With and without the quick way, what can be seen is the same. */
static void check_quick(struct str bytes)
{
    OWN(buf) struct buf quick = {0}, general = {0};
    see(bytes, false, &quick);
    see(bytes, true, &general);
    CHECK(str_equal(buf_str(&quick), buf_str(&general)));
}

/* As it is written anew: calls without arguments have an empty object of them. */
static void argue(struct trace_message *message, struct arena *arena)
{
    struct trace_tool_call *calls = arena_alloc(arena, (message->call_count + 1) * sizeof *calls);
    for (size_t i = 0; i < message->call_count; i++) {
        calls[i] = message->calls[i];
        if (!calls[i].arguments.size)
            calls[i].arguments = STR("{}");
    }
    message->calls = calls;
}

static void check_stream(struct str bytes)
{
    check_quick(bytes);
    OWN(arena) struct arena arena = {0};
    struct trace_answer fast = {0}, slow = {0};
    int fast_result = read_answer(bytes, true, bytes.size, &arena, &fast);
    int slow_result = read_answer(bytes, true, 1, &arena, &slow);
    CHECK(fast_result == slow_result);
    if (fast_result < 0)
        return;
    OWN(buf) struct buf a = {0}, b = {0}, c = {0}, out = {0};
    trace_answer_write(&fast, &(struct json_writer){.out = &a});
    trace_answer_write(&slow, &(struct json_writer){.out = &b});
    CHECK(str_equal(buf_str(&a), buf_str(&b)));
    struct trace_request request = {.model = STR("m"), .stream_usage = true};
    struct trace_answer again = {0};
    OWN(dialect_writer) struct dialect_writer writer;
    dialect_writer_init(&writer, &dialect_chat, &request, STR("i"), STR("m"), 1);
    dialect_writer_answer(&writer, &fast, 3, &out);
    dialect_writer_finish(&writer, fast.finish, &fast.usage, &out);
    CHECK(read_answer(buf_str(&out), true, out.size, &arena, &again) == 0);
    buf_clear(&b);
    fast.message.opaque =
        STR_NONE; /* signed reasoning goes to the agent as it came, or not at all */
    argue(&fast.message, &arena);
    trace_message_write(&fast.message, &(struct json_writer){.out = &b});
    trace_message_write(&again.message, &(struct json_writer){.out = &c});
    CHECK(str_equal(buf_str(&b), buf_str(&c)));
}

static void check_request(struct str bytes)
{
    OWN(json_doc) struct json_doc doc = {0};
    OWN(arena) struct arena arena = {.bytes_max = 1 << 20};
    struct trace_request request;
    if (json_read(&doc, bytes, NULL, NULL) < 0)
        return;
    OWN(buf) struct buf out = {0};
    struct str message, type;
    dialect_read_error(json_root(&doc), &arena, &message, &type);
    if (dialect_read_request(&(struct dialect_route){.dialect = &dialect_chat}, json_root(&doc),
                             &arena, &request, NULL) < 0)
        return;
    trace_request_write(&request, &(struct json_writer){.out = &out});
    OWN(json_doc) struct json_doc written = {0};
    CHECK(json_read(&written, buf_str(&out), NULL, NULL) == 0);
    buf_clear(&out);
    struct dialect_override override = {.model = STR("x"),
                                        .capture = true,
                                        .usage = true,
                                        .has_temperature = true,
                                        .tokens_max = 7};
    dialect_rewrite_request(&dialect_chat, json_root(&doc), &override, &out);
    OWN(json_doc) struct json_doc rewritten = {0};
    CHECK(json_read(&rewritten, buf_str(&out), NULL, NULL) == 0);
    struct trace_request after;
    OWN(arena) struct arena room = {0};
    CHECK(dialect_read_request(&(struct dialect_route){.dialect = &dialect_chat},
                               json_root(&rewritten), &room, &after, NULL) == 0);
    CHECK(str_is(after.model, "x") && after.sampling.tokens_max == 7 && after.wants_logprobs);
    CHECK(after.message_count == request.message_count);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    OWN(mem) char *exact = mem_alloc(size ? size : 1);
    memcpy(exact, data, size);
    struct str bytes = str_make(exact, size);
    if (size && bytes.data[0] == '{') {
        OWN(arena) struct arena arena = {0};
        struct trace_answer answer;
        check_request(bytes);
        (void)read_answer(bytes, false, size, &arena, &answer);
    } else {
        check_stream(bytes);
    }
    return 0;
}
