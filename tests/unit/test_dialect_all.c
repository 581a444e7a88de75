/* What every dialect must hold: an answer written in it is read back the same, whole and as a
 * stream cut anywhere; a stream that was cut short is never an answer; a conversation means the
 * same whatever dialect it came in. */
#include <stdio.h>

#include "base/err.h"
#include "base/mem.h"
#include "dialect/dialect.h"
#include "test.h"

static const struct dialect *const all[] = {&dialect_chat, &dialect_messages, &dialect_responses,
                                            &dialect_google};

static const struct trace_part parts[] = {
    {.kind = TRACE_PART_TEXT, .text = {"I look \"around\" \xc3\xbc.", 18}}};
static const struct trace_tool_call calls[] = {
    {{"call_a", 6}, {"bash", 4}, {"{\"command\":\"ls -la\"}", 20}},
    {{"call_b", 6}, {"bash", 4}, {"{\"command\":\"echo \\\"x\\\"\"}", 24}},
};
static const struct trace_tool tools[] = {
    {{"bash", 4}, {"runs", 4}, {"{\"type\":\"object\"}", 17}, {NULL, 0}, false}};

static struct trace_answer make_answer(void)
{
    return (struct trace_answer){
        .id = STR("answer-1"),
        .model = STR("m"),
        .created_s = 1700000000,
        .message = {.role = TRACE_ASSISTANT,
                    .reasoning = STR("hm, think"),
                    .parts = parts,
                    .part_count = 1,
                    .calls = calls,
                    .call_count = 2},
        .finish = TRACE_FINISH_TOOL_CALLS,
        .usage = {.known = true,
                  .prompt_tokens = 100,
                  .completion_tokens = 20,
                  .cached_tokens = 40,
                  .reasoning_tokens = -1},
    };
}

static struct trace_request make_request(void)
{
    return (struct trace_request){
        .model = STR("m"), .tools = tools, .tool_count = 1, .stream = true, .stream_usage = true};
}

static void expect_same(const char *name, const struct trace_answer *got)
{
    struct trace_answer want = make_answer();
    OWN(arena) struct arena arena = {0};
    if (!str_equal(trace_message_text(&got->message, &arena), want.message.parts[0].text))
        test_fail(__FILE__, __LINE__, "%s: the text is '%.*s'", name,
                  STR_ARGS(trace_message_text(&got->message, &arena)));
    if (!str_equal(got->message.reasoning, want.message.reasoning))
        test_fail(__FILE__, __LINE__, "%s: the reasoning is '%.*s'", name,
                  STR_ARGS(got->message.reasoning));
    if (got->message.call_count != 2)
        test_fail(__FILE__, __LINE__, "%s: %zu calls", name, got->message.call_count);
    for (size_t i = 0; i < got->message.call_count && i < 2; i++) {
        const struct trace_tool_call *call = &got->message.calls[i];
        if (!str_equal(call->id, calls[i].id) || !str_equal(call->name, calls[i].name) ||
            !str_equal(call->arguments, calls[i].arguments))
            test_fail(__FILE__, __LINE__, "%s: call %zu is %.*s %.*s %.*s", name, i,
                      STR_ARGS(call->id), STR_ARGS(call->name), STR_ARGS(call->arguments));
    }
    if (got->finish != TRACE_FINISH_TOOL_CALLS)
        test_fail(__FILE__, __LINE__, "%s: finished with %d", name, got->finish);
    if (!got->usage.known || got->usage.prompt_tokens != 100 || got->usage.completion_tokens != 20)
        test_fail(__FILE__, __LINE__, "%s: usage %lld + %lld", name,
                  (long long)got->usage.prompt_tokens, (long long)got->usage.completion_tokens);
}

static void write_stream(const struct dialect *dialect, size_t piece, struct buf *out)
{
    struct trace_request request = make_request();
    struct trace_answer answer = make_answer();
    OWN(dialect_writer) struct dialect_writer writer = {0};
    dialect_writer_init(&writer, dialect, &request, answer.id, answer.model, answer.created_s);
    dialect_writer_answer(&writer, &answer, piece, out);
    dialect_writer_finish(&writer, answer.finish, &answer.usage, out);
}

TEST(a_streamed_answer_is_read_back_whatever_the_cuts)
{
    for (size_t d = 0; d < COUNT(all); d++) {
        for (size_t step = 1; step < 400; step = step * 3 + 1) {
            OWN(buf) struct buf stream = {0};
            OWN(arena) struct arena arena = {0};
            struct err err = {0};
            struct trace_answer got;
            write_stream(all[d], step % 7, &stream);
            OWN(dialect_reader)
            struct dialect_reader *reader =
                dialect_reader_new(all[d], &(struct dialect_reader_options){.stream = true});
            for (size_t at = 0; at < stream.size; at += step)
                EXPECT(dialect_reader_feed(reader, str_upto(str_from(buf_str(&stream), at), step),
                                           &err) == 0);
            if (dialect_reader_end(reader, &arena, &got, &err) < 0)
                test_fail(__FILE__, __LINE__, "%s: %s", dialect_name(all[d]), err.text);
            else
                expect_same(dialect_name(all[d]), &got);
        }
    }
}

/* Chat completions number the pieces of calls; protocols that cannot must not mix them up. */
TEST(calls_whose_arguments_come_in_turns_stay_apart)
{
    static const struct trace_delta deltas[] = {
        {.kind = TRACE_DELTA_TEXT, .text = {"I look", 6}},
        {.kind = TRACE_DELTA_CALL, .index = 0, .id = {"call_a", 6}, .name = {"bash", 4}},
        {.kind = TRACE_DELTA_CALL, .index = 1, .id = {"call_b", 6}, .name = {"bash", 4}},
        {.kind = TRACE_DELTA_ARGUMENTS, .index = 1, .text = {"{\"y\":", 5}},
        {.kind = TRACE_DELTA_ARGUMENTS, .index = 0, .text = {"{\"x\":", 5}},
        {.kind = TRACE_DELTA_TEXT, .text = {"!", 1}},
        {.kind = TRACE_DELTA_ARGUMENTS, .index = 1, .text = {"2}", 2}},
        {.kind = TRACE_DELTA_ARGUMENTS, .index = 0, .text = {"1}", 2}},
        {.kind = TRACE_DELTA_CALL, .index = 2, .id = {"call_c", 6}, .name = {"bash", 4}},
        {.kind = TRACE_DELTA_ARGUMENTS, .index = 2, .text = {"{\"cut", 5}},
    };
    static const char *const want[] = {"{\"x\":1}", "{\"y\":2}", "{\"cut"};
    for (size_t d = 0; d < COUNT(all); d++) {
        struct trace_request request = make_request();
        OWN(dialect_writer) struct dialect_writer writer = {0};
        OWN(buf) struct buf stream = {0};
        OWN(arena) struct arena arena = {0};
        struct err err = {0};
        struct trace_answer got;
        dialect_writer_init(&writer, all[d], &request, STR("i"), STR("m"), 1);
        for (size_t i = 0; i < COUNT(deltas); i++)
            dialect_writer_delta(&writer, &deltas[i], &stream);
        dialect_writer_finish(&writer, TRACE_FINISH_TOOL_CALLS, NULL, &stream);
        OWN(dialect_reader)
        struct dialect_reader *reader =
            dialect_reader_new(all[d], &(struct dialect_reader_options){.stream = true});
        EXPECT_INT(dialect_reader_feed(reader, buf_str(&stream), &err), 0);
        EXPECT_INT(dialect_reader_end(reader, &arena, &got, &err), 0);
        EXPECT_INT(got.message.call_count, 3);
        EXPECT_STR(trace_message_text(&got.message, &arena), STR("I look!"));
        for (size_t i = 0; i < got.message.call_count && i < 3; i++) {
            const struct trace_tool_call *call = &got.message.calls[i];
            /* A call that is no object is told as text where there are only objects. */
            bool same = i == 2 && all[d] == &dialect_google
                            ? str_find(call->arguments, STR("{\\\"cut")) > 0
                            : str_is(call->arguments, want[i]);
            if (!same)
                test_fail(__FILE__, __LINE__, "%s: call %zu is %.*s", dialect_name(all[d]), i,
                          STR_ARGS(call->arguments));
        }
    }
}

/* Models do write a second object behind the first. Where the call is over by then, that must not
 * become part of the one that is open. */
TEST(more_of_a_call_that_was_whole_is_no_part_of_another)
{
    static const struct trace_delta deltas[] = {
        {.kind = TRACE_DELTA_CALL, .index = 0, .id = {"call_a", 6}, .name = {"bash", 4}},
        {.kind = TRACE_DELTA_ARGUMENTS, .index = 0, .text = {"{\"x\":1}", 7}},
        {.kind = TRACE_DELTA_CALL, .index = 1, .id = {"call_b", 6}, .name = {"bash", 4}},
        {.kind = TRACE_DELTA_ARGUMENTS, .index = 1, .text = {"{\"y\":", 5}},
        {.kind = TRACE_DELTA_ARGUMENTS, .index = 0, .text = {"{\"x\":1}", 7}},
        {.kind = TRACE_DELTA_ARGUMENTS, .index = 1, .text = {"2}", 2}},
    };
    for (size_t d = 0; d < COUNT(all); d++) {
        struct trace_request request = make_request();
        OWN(dialect_writer) struct dialect_writer writer = {0};
        OWN(buf) struct buf stream = {0};
        OWN(arena) struct arena arena = {0};
        struct err err = {0};
        struct trace_answer got;
        dialect_writer_init(&writer, all[d], &request, STR("i"), STR("m"), 1);
        for (size_t i = 0; i < COUNT(deltas); i++)
            dialect_writer_delta(&writer, &deltas[i], &stream);
        dialect_writer_finish(&writer, TRACE_FINISH_TOOL_CALLS, NULL, &stream);
        OWN(dialect_reader)
        struct dialect_reader *reader =
            dialect_reader_new(all[d], &(struct dialect_reader_options){.stream = true});
        EXPECT_INT(dialect_reader_feed(reader, buf_str(&stream), &err), 0);
        EXPECT_INT(dialect_reader_end(reader, &arena, &got, &err), 0);
        EXPECT_INT(got.message.call_count, 2);
        if (got.message.call_count == 2)
            EXPECT_STR(got.message.calls[1].arguments, STR("{\"y\":2}"));
    }
}

TEST(a_whole_answer_is_read_back)
{
    struct trace_request request = make_request();
    struct trace_answer answer = make_answer();
    for (size_t d = 0; d < COUNT(all); d++) {
        OWN(buf) struct buf body = {0};
        OWN(arena) struct arena arena = {0};
        struct err err = {0};
        struct trace_answer got;
        dialect_write_answer(all[d], &request, &answer, &body);
        OWN(dialect_reader)
        struct dialect_reader *reader =
            dialect_reader_new(all[d], &(struct dialect_reader_options){0});
        EXPECT(dialect_reader_feed(reader, buf_str(&body), &err) == 0);
        if (dialect_reader_end(reader, &arena, &got, &err) < 0)
            test_fail(__FILE__, __LINE__, "%s: %s", dialect_name(all[d]), err.text);
        else
            expect_same(dialect_name(all[d]), &got);
    }
}

/* Cut after every event but the last few that only repeat the end: none of these may pass for an
 * answer. */
TEST(a_stream_without_its_end_is_lost_wherever_it_was_cut)
{
    for (size_t d = 0; d < COUNT(all); d++) {
        OWN(buf) struct buf stream = {0};
        write_stream(all[d], 5, &stream);
        struct str whole = buf_str(&stream);
        size_t accepted = 0, cuts = 0;
        for (size_t at = 0; at + 2 < whole.size; at++) {
            if (memcmp(whole.data + at, "\n\n", 2) != 0)
                continue;
            OWN(arena) struct arena arena = {0};
            struct err err = {0};
            struct trace_answer got;
            OWN(dialect_reader)
            struct dialect_reader *reader =
                dialect_reader_new(all[d], &(struct dialect_reader_options){.stream = true});
            EXPECT(dialect_reader_feed(reader, str_upto(whole, at + 2), &err) == 0);
            cuts++;
            if (dialect_reader_end(reader, &arena, &got, &err) == 0)
                accepted++;
            else
                EXPECT_INT(err.kind, ERR_LOST);
        }
        EXPECT(cuts > 5);
        /* chat: after the finish reason only usage and the end marker are missing. */
        EXPECT(accepted <= (all[d] == &dialect_chat ? 2u : 0u));
    }
}

/* ---------------------------------------------------------------- requests */
static const struct {
    const char *method, *path, *body;
} conversations[] = {
    {"POST", "/v1/chat/completions",
     "{\"model\":\"m\",\"messages\":[{\"role\":\"system\",\"content\":\"S\"},{\"role\":\"user\","
     "\"content\":\"U\"},"
     "{\"role\":\"assistant\",\"content\":\"A\",\"tool_calls\":[{\"id\":\"c1\",\"type\":"
     "\"function\",\"function\":"
     "{\"name\":\"bash\",\"arguments\":\"{\\\"x\\\":1}\"}}]},{\"role\":\"tool\",\"tool_call_id\":"
     "\"c1\",\"content\":\"R\"}],"
     "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"bash\",\"parameters\":{\"type\":"
     "\"object\"}}}],"
     "\"max_tokens\":7,\"stream\":true}"},
    {"POST", "/v1/messages",
     "{\"model\":\"m\",\"system\":\"S\",\"messages\":[{\"role\":\"user\",\"content\":\"U\"},{"
     "\"role\":\"assistant\",\"content\":"
     "[{\"type\":\"text\",\"text\":\"A\"},{\"type\":\"tool_use\",\"id\":\"c1\",\"name\":\"bash\","
     "\"input\":{\"x\":1}}]},"
     "{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":\"c1\",\"content\":"
     "[{\"type\":\"text\","
     "\"text\":\"R\"}]}]}],\"tools\":[{\"name\":\"bash\",\"input_schema\":{\"type\":\"object\"}}],"
     "\"max_tokens\":7,"
     "\"stream\":true}"},
    {"POST", "/v1/responses",
     "{\"model\":\"m\",\"instructions\":\"S\",\"input\":[{\"role\":\"user\",\"content\":[{\"type\":"
     "\"input_text\",\"text\":"
     "\"U\"}]},{\"type\":\"message\",\"role\":\"assistant\",\"content\":[{\"type\":\"output_text\","
     "\"text\":\"A\"}]},"
     "{\"type\":\"function_call\",\"call_id\":\"c1\",\"name\":\"bash\",\"arguments\":\"{\\\"x\\\":"
     "1}\"},"
     "{\"type\":\"function_call_output\",\"call_id\":\"c1\",\"output\":\"R\"}],\"tools\":[{"
     "\"type\":\"function\",\"name\":"
     "\"bash\",\"parameters\":{\"type\":\"object\"}}],\"max_output_tokens\":7,\"stream\":true}"},
    {"POST", "/v1beta/models/m:streamGenerateContent",
     "{\"systemInstruction\":{\"parts\":[{\"text\":\"S\"}]},\"contents\":[{\"role\":\"user\","
     "\"parts\":[{\"text\":\"U\"}]},"
     "{\"role\":\"model\",\"parts\":[{\"text\":\"A\"},{\"functionCall\":{\"id\":\"c1\",\"name\":"
     "\"bash\",\"args\":{\"x\":1}}}]},"
     "{\"role\":\"user\",\"parts\":[{\"functionResponse\":{\"id\":\"c1\",\"name\":\"bash\","
     "\"response\":{\"output\":\"R\"}}}]}],"
     "\"tools\":[{\"functionDeclarations\":[{\"name\":\"bash\",\"parameters\":{\"type\":\"object\"}"
     "}]}],"
     "\"generationConfig\":{\"maxOutputTokens\":7}}"},
};

static void describe(const struct trace_request *request, struct buf *out)
{
    OWN(arena) struct arena arena = {0};
    buf_format(out, "%.*s stream=%d max=%lld\n", STR_ARGS(request->model), request->stream,
               (long long)request->sampling.tokens_max);
    for (size_t i = 0; i < request->message_count; i++) {
        const struct trace_message *message = &request->messages[i];
        struct str text = trace_message_text(message, &arena);
        buf_format(out, "%s|%.*s|%.*s", trace_role_name(message->role),
                   STR_ARGS(message->tool_call_id), STR_ARGS(text));
        for (size_t c = 0; c < message->call_count; c++)
            buf_format(out, "|%.*s(%.*s)", STR_ARGS(message->calls[c].name),
                       STR_ARGS(message->calls[c].arguments));
        buf_byte(out, '\n');
    }
    for (size_t i = 0; i < request->tool_count; i++)
        buf_format(out, "tool %.*s %.*s\n", STR_ARGS(request->tools[i].name),
                   STR_ARGS(request->tools[i].parameters));
}

static int read_one(const char *method, const char *path, struct str body, struct json_doc *doc,
                    struct arena *arena, struct trace_request *request, struct err *err)
{
    struct dialect_route route = dialect_find_route(str_of(method), str_of(path));
    if (route.kind != DIALECT_ROUTE_CALL)
        return err_set(err, ERR_NOT_FOUND, "no route");
    if (json_read(doc, body, NULL, err) < 0)
        return -1;
    return dialect_read_request(&route, json_root(doc), arena, request, err);
}

TEST(a_conversation_means_the_same_in_every_dialect)
{
    static const char *const want =
        "m stream=1 max=7\nsystem||S\nuser||U\nassistant||A|bash({\"x\":1})\ntool|c1|R\n"
        "tool bash {\"type\":\"object\"}\n";
    for (size_t i = 0; i < COUNT(conversations); i++) {
        OWN(arena) struct arena arena = {0};
        OWN(json_doc) struct json_doc doc = {0};
        OWN(buf) struct buf got = {0};
        struct trace_request request = {0};
        struct err err = {0};
        if (read_one(conversations[i].method, conversations[i].path, str_of(conversations[i].body),
                     &doc, &arena, &request, &err) < 0)
            test_fail(__FILE__, __LINE__, "%s: %s", conversations[i].path, err.text);
        describe(&request, &got);
        EXPECT_TEXT(buf_text(&got), want);
    }
}

/* Calls and results have no business there; whatever it holds, it is one message. */
TEST(results_in_a_system_instruction_are_parts_of_it)
{
    OWN(arena) struct arena arena = {0};
    OWN(json_doc) struct json_doc doc = {0};
    OWN(buf) struct buf body = {0};
    struct trace_request request = {0};
    struct err err = {0};
    buf_str_append(&body, STR("{\"systemInstruction\":{\"parts\":["));
    for (int i = 0; i < 500; i++)
        buf_format(&body, "%s{\"functionResponse\":{\"name\":\"f\"}}", i ? "," : "");
    buf_str_append(&body, STR("]},\"contents\":[{\"parts\":[{\"text\":\"U\"}]}]}"));
    EXPECT_INT(read_one("POST", "/v1beta/models/m:generateContent", buf_str(&body), &doc, &arena,
                        &request, &err),
               0);
    EXPECT_INT(request.message_count, 2);
    EXPECT_INT(request.messages[0].role, TRACE_SYSTEM);
    EXPECT_INT(request.messages[0].part_count, 500);
    EXPECT_STR(request.messages[0].parts[499].raw, STR("{\"functionResponse\":{\"name\":\"f\"}}"));
    EXPECT_INT(request.messages[1].role, TRACE_USER);
    EXPECT_STR(trace_message_text(&request.messages[1], &arena), STR("U"));
}

TEST(a_long_run_of_items_takes_room_in_proportion)
{
    static const char *const items[] = {
        "{\"type\":\"function_call\",\"call_id\":\"c\",\"name\":\"f\"}",
        "{\"type\":\"reasoning\",\"summary\":[{\"text\":\"why\"}]}",
        "{\"role\":\"assistant\",\"content\":\"text\"}",
    };
    for (size_t i = 0; i < COUNT(items); i++) {
        OWN(arena) struct arena arena = {.bytes_max = 4 << 20};
        OWN(json_doc) struct json_doc doc = {0};
        OWN(buf) struct buf body = {0};
        struct trace_request request = {0};
        struct err err = {0};
        buf_str_append(&body, STR("{\"model\":\"m\",\"input\":["));
        for (int k = 0; k < 3000; k++)
            buf_format(&body, "%s%s", k ? "," : "", items[i]);
        buf_str_append(&body, STR("]}"));
        if (read_one("POST", "/v1/responses", buf_str(&body), &doc, &arena, &request, &err) < 0)
            test_fail(__FILE__, __LINE__, "%s: %s", items[i], err.text);
        EXPECT_INT(request.message_count, 1);
        const struct trace_message *message = &request.messages[0];
        EXPECT_INT(message->call_count, i == 0 ? 3000 : 0);
        EXPECT_INT(message->reasoning.size, i == 1 ? 3000 * 4 - 1 : 0);
        EXPECT_INT(message->part_count, i == 2 ? 3000 : 0);
        if (i == 0)
            EXPECT_STR(message->calls[2999].name, STR("f"));
        if (i == 2)
            EXPECT_STR(message->parts[2999].text, STR("text"));
        OWN(json_doc) struct json_doc opaque = {0};
        if (i == 1) {
            EXPECT_INT(json_read(&opaque, message->opaque, NULL, &err), 0);
            EXPECT_INT(json_size(json_root(&opaque)), 3000);
        }
    }
}

TEST(tokens_that_are_said_twice_count_once)
{
    OWN(arena) struct arena arena = {0};
    struct trace_answer answer = {0};
    struct dialect_reader_options options = {0};
    struct dialect_reader *reader = dialect_reader_new(&dialect_chat, &options);
    struct err err = {0};
    EXPECT_INT(
        dialect_reader_feed(reader,
                            STR("{\"choices\":[{\"index\":0,\"message\":{\"content\":\"a\"},"
                                "\"finish_reason\":\"stop\",\"token_ids\":[7,8],\"meta_info\":{"
                                "\"output_token_logprobs\":[[-1,7,\"a\"],[-2,8,\"b\"]]}}]}"),
                            &err),
        0);
    EXPECT_INT(dialect_reader_end(reader, &arena, &answer, &err), 0);
    EXPECT_INT(answer.tokens.id_count, 2);
    EXPECT_INT(answer.tokens.logprob_count, 2);
    EXPECT_INT(answer.tokens.ids[1], 8);
    dialect_reader_free(reader);
}

/* However their ids are said. */
TEST(each_piece_of_a_stream_may_be_of_other_weights)
{
    static const char *const pieces[] = {
        "\"token_ids\":[%d,%d],\"logprobs\":{\"content\":[{\"logprob\":-1},{\"logprob\":-1}]}",
        "\"logprobs\":{\"content\":[{\"logprob\":-1,\"token_id\":%d},"
        "{\"logprob\":-1,\"token\":\"token_id:%d\"}]}",
    };
    for (size_t i = 0; i < COUNT(pieces); i++) {
        OWN(arena) struct arena arena = {0};
        OWN(buf) struct buf stream = {0};
        struct trace_answer answer = {0};
        struct dialect_reader_options options = {.stream = true};
        struct dialect_reader *reader = dialect_reader_new(&dialect_chat, &options);
        struct err err = {0};
        for (int k = 0; k < 2; k++) {
            buf_format(&stream,
                       "data: {\"choices\":[{\"index\":0,\"delta\":{},"
                       "\"policy_version\":%d,",
                       k + 4);
            buf_format(&stream, i ? pieces[1] : pieces[0], 2 * k, 2 * k + 1);
            buf_format(&stream, "%s}]}\n\n", k ? ",\"finish_reason\":\"stop\"" : "");
        }
        EXPECT_INT(dialect_reader_feed(reader, buf_str(&stream), &err), 0);
        EXPECT_INT(dialect_reader_end(reader, &arena, &answer, &err), 0);
        EXPECT_INT(answer.tokens.id_count, 4);
        EXPECT_INT(answer.tokens.ids[3], 3);
        EXPECT_INT(answer.version_count, 2);
        for (size_t k = 0; k < answer.version_count; k++) {
            EXPECT_INT(answer.versions[k].from, 2 * k);
            EXPECT_INT(answer.versions[k].to, 2 * k + 2);
            EXPECT_INT(answer.versions[k].version, k + 4);
        }
        dialect_reader_free(reader);
    }
}

TEST(any_conversation_can_be_written_as_chat_completions)
{
    for (size_t i = 0; i < COUNT(conversations); i++) {
        OWN(arena) struct arena arena = {0};
        OWN(json_doc) struct json_doc doc = {0};
        OWN(json_doc) struct json_doc again = {0};
        OWN(buf) struct buf first = {0};
        OWN(buf) struct buf second = {0};
        OWN(buf) struct buf body = {0};
        struct trace_request request = {0}, back = {0};
        struct err err = {0};
        EXPECT(read_one(conversations[i].method, conversations[i].path,
                        str_of(conversations[i].body), &doc, &arena, &request, &err) == 0);
        EXPECT(
            dialect_write_request(&dialect_chat, &request, &(struct dialect_override){0}, &body));
        EXPECT(read_one("POST", "/v1/chat/completions", buf_str(&body), &again, &arena, &back,
                        &err) == 0);
        describe(&request, &first);
        describe(&back, &second);
        EXPECT_STR(buf_str(&second), buf_str(&first));
    }
}

TEST(signed_thinking_is_kept_byte_for_byte)
{
    static const char body[] =
        "{\"model\":\"m\",\"max_tokens\":9,\"messages\":[{\"role\":\"user\",\"content\":\"U\"},"
        "{\"role\":\"assistant\",\"content\":[{\"type\":\"thinking\", "
        "\"thinking\":\"T\",\"signature\":"
        "\"c2ln\"},{\"type\":\"redacted_thinking\",\"data\":\"xx\"},{\"type\":\"text\",\"text\":"
        "\"A\"}]}]}";
    OWN(arena) struct arena arena = {0};
    OWN(json_doc) struct json_doc doc = {0};
    struct trace_request request = {0};
    struct err err = {0};
    EXPECT(read_one("POST", "/v1/messages", STR(body), &doc, &arena, &request, &err) == 0);
    EXPECT_STR(request.messages[1].reasoning, STR("T"));
    EXPECT_STR(request.messages[1].opaque,
               STR("[{\"type\":\"thinking\", \"thinking\":\"T\",\"signature\":\"c2ln\"},"
                   "{\"type\":\"redacted_thinking\",\"data\":\"xx\"}]"));
}

TEST(namespaced_and_custom_tools_come_back_as_the_agent_declared_them)
{
    static const char body[] = "{\"model\":\"m\",\"input\":\"go\",\"tools\":[{\"type\":"
                               "\"namespace\",\"name\":\"mcp__s\",\"tools\":[{\"type\":"
                               "\"function\",\"name\":\"t\",\"parameters\":{}}]},{\"type\":"
                               "\"custom\",\"name\":\"apply_patch\"},{\"type\":\"web_search\"}]}";
    OWN(arena) struct arena arena = {0};
    OWN(json_doc) struct json_doc doc = {0};
    OWN(buf) struct buf out = {0};
    struct trace_request request = {0};
    struct err err = {0};
    EXPECT(read_one("POST", "/v1/responses", STR(body), &doc, &arena, &request, &err) == 0);
    EXPECT_INT(request.tool_count, 3);
    struct trace_tool_call made[] = {
        {STR("c1"), STR("mcp__s__t"), STR("{}")},
        {STR("c2"), STR("apply_patch"), STR("{\"input\":\"*** Begin\"}")}};
    struct trace_answer answer = {
        .id = STR("r"),
        .message = {.role = TRACE_ASSISTANT, .calls = made, .call_count = 2},
        .finish = TRACE_FINISH_TOOL_CALLS};
    dialect_write_answer(&dialect_responses, &request, &answer, &out);
    EXPECT(str_find(buf_str(&out), STR("\"namespace\":\"mcp__s\",\"name\":\"t\"")) > 0);
    EXPECT(str_find(buf_str(&out), STR("\"type\":\"custom_tool_call\"")) > 0);
    EXPECT(str_find(buf_str(&out), STR("\"input\":\"*** Begin\"")) > 0);
}

/* How an answer ended, in each protocol's own words. */
TEST(ends_and_refusals_have_the_words_of_each_dialect)
{
    static const struct trace_part said = {.kind = TRACE_PART_TEXT, .text = {"x", 1}};
    static const struct trace_part refused = {.kind = TRACE_PART_REFUSAL, .text = {"no", 2}};
    static const struct {
        const struct dialect *dialect;
        enum trace_finish finish;
        bool refusal;
        const char *words;
    } rows[] = {
        {&dialect_chat, TRACE_FINISH_LENGTH, false, "\"finish_reason\":\"length\""},
        {&dialect_chat, TRACE_FINISH_CONTENT_FILTER, false, "\"finish_reason\":\"content_filter\""},
        {&dialect_chat, TRACE_FINISH_STOP, true, "\"refusal\":\"no\""},
        {&dialect_completions, TRACE_FINISH_LENGTH, false, "\"finish_reason\":\"length\""},
        {&dialect_messages, TRACE_FINISH_LENGTH, false, "\"stop_reason\":\"max_tokens\""},
        {&dialect_messages, TRACE_FINISH_CONTENT_FILTER, false, "\"stop_reason\":\"refusal\""},
        {&dialect_messages, TRACE_FINISH_STOP, true, "\"stop_reason\":\"refusal\""},
        {&dialect_messages, TRACE_FINISH_STOP, false, "\"stop_reason\":\"end_turn\""},
        {&dialect_responses, TRACE_FINISH_LENGTH, false, "\"reason\":\"max_output_tokens\""},
        {&dialect_responses, TRACE_FINISH_CONTENT_FILTER, false, "\"reason\":\"content_filter\""},
        {&dialect_responses, TRACE_FINISH_STOP, true, "\"type\":\"refusal\",\"refusal\":\"no\""},
        {&dialect_google, TRACE_FINISH_LENGTH, false, "\"finishReason\":\"MAX_TOKENS\""},
        {&dialect_google, TRACE_FINISH_CONTENT_FILTER, false, "\"finishReason\":\"SAFETY\""},
        {&dialect_google, TRACE_FINISH_STOP, true, "\"text\":\"no\""},
    };
    struct trace_request request = make_request();
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct trace_answer answer = {.id = STR("r"),
                                      .model = STR("m"),
                                      .message = {.role = TRACE_ASSISTANT,
                                                  .parts = rows[i].refusal ? &refused : &said,
                                                  .part_count = 1},
                                      .finish = rows[i].finish};
        OWN(buf) struct buf whole = {0};
        OWN(buf) struct buf stream = {0};
        OWN(dialect_writer) struct dialect_writer writer = {0};
        dialect_write_answer(rows[i].dialect, &request, &answer, &whole);
        dialect_writer_init(&writer, rows[i].dialect, &request, answer.id, answer.model, 1);
        dialect_writer_answer(&writer, &answer, 0, &stream);
        dialect_writer_finish(&writer, answer.finish, NULL, &stream);
        if (str_find(buf_str(&whole), str_of(rows[i].words)) < 0 ||
            str_find(buf_str(&stream), str_of(rows[i].words)) < 0)
            test_fail(__FILE__, __LINE__, "%s: %s is not in\n%s\n%s", dialect_name(rows[i].dialect),
                      rows[i].words, buf_text(&whole), buf_text(&stream));
    }
}

TEST(custom_tools_of_chat_completions_come_back_as_declared)
{
    static const char body[] =
        "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"U\"}],\"stream\":true,"
        "\"tools\":[{\"type\":\"custom\",\"custom\":{\"name\":\"patch\"}}]}";
    OWN(arena) struct arena arena = {0};
    OWN(json_doc) struct json_doc doc = {0};
    OWN(buf) struct buf whole = {0};
    OWN(buf) struct buf stream = {0};
    struct trace_request request = {0};
    struct err err = {0};
    EXPECT(read_one("POST", "/v1/chat/completions", STR(body), &doc, &arena, &request, &err) == 0);
    struct trace_tool_call made = {STR("c1"), STR("patch"), STR("{\"input\":\"*** \\\"a\\\"\"}")};
    struct trace_answer answer = {
        .id = STR("r"),
        .message = {.role = TRACE_ASSISTANT, .calls = &made, .call_count = 1},
        .finish = TRACE_FINISH_TOOL_CALLS};
    dialect_write_answer(&dialect_chat, &request, &answer, &whole);
    EXPECT(str_find(buf_str(&whole),
                    STR("\"type\":\"custom\",\"custom\":{\"name\":\"patch\",\"input\":"
                        "\"*** \\\"a\\\"\"}")) > 0);
    OWN(dialect_writer) struct dialect_writer writer = {0};
    dialect_writer_init(&writer, &dialect_chat, &request, STR("r"), STR("m"), 1);
    dialect_writer_answer(&writer, &answer, 3, &stream);
    dialect_writer_finish(&writer, answer.finish, NULL, &stream);
    EXPECT(str_find(buf_str(&stream), STR("\"custom\":{\"name\":\"patch\",\"input\":\"\"}")) > 0);
    EXPECT(str_find(buf_str(&stream), STR("\"custom\":{\"input\":\"*** \\\"a\\\"\"}")) > 0);
    EXPECT(str_find(buf_str(&stream), STR("\"arguments\"")) < 0);
}

TEST(a_request_that_is_none_is_refused_with_its_place)
{
    static const struct {
        const char *path, *body, *part;
    } rows[] = {
        {"/v1/messages", "[]", "object"},
        {"/v1/messages", "{\"model\":\"m\",\"messages\":[{\"role\":\"robot\",\"content\":\"x\"}]}",
         "messages[0].role"},
        {"/v1/messages",
         "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":[{\"text\":1}]}]}",
         "messages[0].content"},
        {"/v1/responses", "{\"model\":\"m\"}", "input"},
        {"/v1/responses",
         "{\"model\":\"m\",\"input\":[{\"type\":\"function_call\",\"name\":\"x\"}]}",
         "input[0].call_id"},
        {"/v1/responses", "{\"model\":\"m\",\"input\":\"x\",\"previous_response_id\":\"r\"}",
         "previous_response_id"},
        {"/v1beta/models/m:generateContent", "{\"contents\":[{\"parts\":5}]}", "contents[0].parts"},
        {"/v1beta/models/m:generateContent",
         "{\"contents\":[{\"parts\":[]}],\"generation_config\":{\"candidate_count\":2}}",
         "candidateCount"},
        {"/v1/responses", "{\"model\":\"m\",\"input\":\"x\",\"conversation\":\"c\"}",
         "conversation"},
        {"/v1/completions", "{\"model\":\"m\",\"prompt\":[\"a\",\"b\"]}", "prompt"},
        {"/v1/completions", "{\"model\":\"m\",\"prompt\":\"a\",\"n\":2}", "n and best_of"},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        OWN(arena) struct arena arena = {0};
        OWN(json_doc) struct json_doc doc = {0};
        struct trace_request request = {0};
        struct err err = {0};
        EXPECT_INT(
            read_one("POST", rows[i].path, str_of(rows[i].body), &doc, &arena, &request, &err), -1);
        EXPECT_INT(err.kind, ERR_INPUT);
        if (str_find(str_of(err.text), str_of(rows[i].part)) < 0)
            test_fail(__FILE__, __LINE__, "%s: '%s' does not name %s", rows[i].path, err.text,
                      rows[i].part);
    }
}

/* Quadratic, it would take minutes, and a neighbour's time. */
TEST(a_long_list_of_stops_takes_time_in_proportion)
{
    OWN(arena) struct arena arena = {0};
    OWN(json_doc) struct json_doc doc = {0};
    OWN(buf) struct buf body = {0};
    struct trace_request request = {0};
    struct err err = {0};
    buf_str_append(&body, STR("{\"model\":\"m\",\"prompt\":\"x\",\"stop\":[\"a\""));
    for (int i = 0; i < 400000; i++)
        buf_str_append(&body, STR(",\"b\""));
    buf_str_append(&body, STR("]}"));
    EXPECT_INT(read_one("POST", "/v1/completions", buf_str(&body), &doc, &arena, &request, &err),
               0);
    EXPECT_INT(request.sampling.stop_count, 400001);
    EXPECT_STR(request.sampling.stop[400000], STR("b"));
}

TEST(models_are_listed_or_shown_one_by_one)
{
    static const struct {
        const struct dialect *dialect;
        const char *path, *list, *one;
    } rows[] = {
        {&dialect_chat, "/v1/models", "{\"object\":\"list\",\"data\":[{\"id\":\"org/m\"",
         "{\"id\":\"org/m\",\"object\":\"model\""},
        {&dialect_messages, "/v1/models", "{\"data\":[{\"type\":\"model\",\"id\":\"org/m\"",
         "{\"type\":\"model\",\"id\":\"org/m\""},
        {&dialect_google, "/v1beta/models", "{\"models\":[{\"name\":\"models/org/m\"",
         "{\"name\":\"models/org/m\""},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        OWN(arena) struct arena arena = {0};
        OWN(buf) struct buf list = {0};
        OWN(buf) struct buf one = {0};
        OWN(buf) struct buf path = {0};
        struct dialect_route route = dialect_find_route(STR("HEAD"), str_of(rows[i].path));
        EXPECT_INT(route.kind, DIALECT_ROUTE_MODELS);
        EXPECT(!dialect_route_model(&route, &arena).size);
        buf_format(&path, "%s/org%%2Fm", rows[i].path);
        route = dialect_find_route(STR("GET"), buf_str(&path));
        struct str name = dialect_route_model(&route, &arena);
        EXPECT_STR(name, STR("org/m"));
        dialect_write_models(rows[i].dialect, name, 1, false, &list);
        dialect_write_models(rows[i].dialect, name, 1, true, &one);
        EXPECT(str_starts(buf_str(&list), str_of(rows[i].list)));
        EXPECT(str_starts(buf_str(&one), str_of(rows[i].one)));
        OWN(json_doc) struct json_doc doc = {0};
        EXPECT_INT(json_read(&doc, buf_str(&list), NULL, NULL), 0);
        EXPECT_INT(json_read(&doc, buf_str(&one), NULL, NULL), 0);
    }
}

TEST(routes_are_found_with_and_without_their_version)
{
    struct dialect_route route =
        dialect_find_route(STR("POST"), STR("/v1beta/models/gem-1.5:streamGenerateContent"));
    EXPECT(route.dialect == &dialect_google && route.stream);
    EXPECT_STR(route.model, STR("gem-1.5"));
    route = dialect_find_route(STR("POST"), STR("/v1beta/models/a/b%20%c3%a9%:generateContent"));
    EXPECT_INT(route.kind, DIALECT_ROUTE_CALL);
    OWN(json_doc) struct json_doc odd = {0};
    OWN(arena) struct arena odd_arena = {0};
    struct trace_request odd_request;
    EXPECT_INT(json_read(&odd, STR("{\"contents\":[{\"parts\":[{\"text\":\"x\"}]}]}"), NULL, NULL),
               0);
    EXPECT_INT(dialect_read_request(&route, json_root(&odd), &odd_arena, &odd_request, NULL), 0);
    EXPECT_STR(odd_request.model, STR("a/b \xc3\xa9%"));
    /* What would lead elsewhere, with the key of whoever runs this, stays a name. */
    route = dialect_find_route(STR("POST"), STR("/v1beta/models/%2e%2E%2ffiles/x:generateContent"));
    EXPECT_INT(dialect_read_request(&route, json_root(&odd), &odd_arena, &odd_request, NULL), 0);
    EXPECT_STR(odd_request.model, STR("%2e%2E%2ffiles/x"));
    /* A name that is known already is not decoded once more. */
    route = (struct dialect_route){
        .kind = DIALECT_ROUTE_CALL, .dialect = &dialect_google, .model = STR("a%2Fb")};
    EXPECT_INT(dialect_read_request(&route, json_root(&odd), &odd_arena, &odd_request, NULL), 0);
    EXPECT_STR(odd_request.model, STR("a%2Fb"));
    OWN(buf) struct buf upstream = {0};
    dialect_upstream_path(&dialect_google, STR("a/b \xc3\xa9%\r\n?#:"), false, &upstream);
    EXPECT_TEXT(buf_text(&upstream), "/models/a/b%20%C3%A9%25%0D%0A%3F%23%3A:generateContent");
    EXPECT_INT(dialect_find_route(STR("POST"), STR("/v1beta/models/a/../b:generateContent")).kind,
               DIALECT_ROUTE_METHOD);
    EXPECT_INT(dialect_find_route(STR("POST"), STR("/messages")).kind, DIALECT_ROUTE_CALL);
    EXPECT_INT(dialect_find_route(STR("POST"), STR("/v1/messages/count_tokens")).kind,
               DIALECT_ROUTE_COUNT);
    route = dialect_find_route(STR("POST"), STR("/v1/responses/input_tokens"));
    EXPECT_INT(route.kind, DIALECT_ROUTE_COUNT);
    OWN(buf) struct buf counted = {0};
    dialect_write_count(route.dialect, 7, &counted);
    EXPECT_TEXT(buf_text(&counted), "{\"object\":\"response.input_tokens\",\"input_tokens\":7}");
    EXPECT_INT(dialect_find_route(STR("GET"), STR("/v1/responses")).kind, DIALECT_ROUTE_METHOD);
    EXPECT_INT(dialect_find_route(STR("POST"), STR("/v1/rollouts")).kind, DIALECT_ROUTE_NONE);
}

/* Codex says it with every request, also with those that summarize and have no tools. Vendors'
 * servers refuse it there. */
TEST(nothing_is_said_of_parallel_calls_where_there_are_no_tools)
{
    static const char *const bodies[] = {
        "{\"model\":\"m\",\"input\":\"hi\",\"parallel_tool_calls\":false,\"tools\":[{\"type\":"
        "\"function\",\"name\":\"f\",\"parameters\":{\"type\":\"object\"}}]}",
        "{\"model\":\"m\",\"input\":\"hi\",\"parallel_tool_calls\":false,\"tools\":[]}",
        "{\"model\":\"m\",\"input\":\"hi\",\"parallel_tool_calls\":false,\"tools\":[{\"type\":"
        "\"web_search\"}]}",
    };
    for (size_t i = 0; i < COUNT(bodies); i++) {
        OWN(json_doc) struct json_doc doc = {0};
        OWN(arena) struct arena arena = {0};
        OWN(buf) struct buf chat = {0};
        struct dialect_route route = {.kind = DIALECT_ROUTE_CALL, .dialect = &dialect_responses};
        struct trace_request request;
        struct err err = {0};
        EXPECT_INT(json_read(&doc, str_of(bodies[i]), NULL, &err), 0);
        EXPECT_INT(dialect_read_request(&route, json_root(&doc), &arena, &request, &err), 0);
        EXPECT(
            dialect_write_request(&dialect_chat, &request, &(struct dialect_override){0}, &chat));
        EXPECT((str_find(buf_str(&chat), STR("\"parallel_tool_calls\":false")) > 0) == (i == 0));
    }
}
