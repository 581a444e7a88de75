/* Streams event by event: the order and the members that the vendors' own types ask for, whatever
 * comes between what; and what model servers say in the middle of a stream. */
#include <stdio.h>

#include "base/err.h"
#include "base/mem.h"
#include "dialect/dialect.h"
#include "test.h"

static const struct trace_tool tools[] = {
    {.name = {"look", 4}, .parameters = {"{}", 2}},
    {.name = {"s__look", 7}, .parameters = {"{}", 2}, .space = {"s", 1}},
    {.name = {"patch", 5}, .parameters = {"{}", 2}, .custom = true},
};
static const struct str stops[] = {{"x", 1}, {"END", 3}};
static const struct trace_request asked = {.model = {"m", 1},
                                           .sampling = {.stop = stops, .stop_count = 2},
                                           .tools = tools,
                                           .tool_count = COUNT(tools),
                                           .stream = true,
                                           .stream_usage = true};

/* Thinking, text, calls of every kind and text again. */
static const struct trace_delta told[] = {
    {.kind = TRACE_DELTA_REASONING, .text = {"hm", 2}},
    {.kind = TRACE_DELTA_TEXT, .text = {"one ", 4}},
    {.kind = TRACE_DELTA_REASONING, .text = {"oh", 2}},
    {.kind = TRACE_DELTA_TEXT, .text = {"two", 3}},
    {.kind = TRACE_DELTA_CALL, .index = 0, .id = {"c0", 2}, .name = {"look", 4}},
    {.kind = TRACE_DELTA_CALL, .index = 1, .id = {"c1", 2}, .name = {"s__look", 7}},
    {.kind = TRACE_DELTA_ARGUMENTS, .index = 1, .text = {"{\"b\":", 5}},
    {.kind = TRACE_DELTA_ARGUMENTS, .index = 0, .text = {"{\"a\":1}", 7}},
    {.kind = TRACE_DELTA_ARGUMENTS, .index = 1, .text = {"2}", 2}},
    {.kind = TRACE_DELTA_CALL, .index = 2, .id = {"c2", 2}, .name = {"patch", 5}},
    {.kind = TRACE_DELTA_ARGUMENTS, .index = 2, .text = {"{\"input\":\"***\"}", 15}},
    {.kind = TRACE_DELTA_CALL, .index = 3, .id = {"c3", 2}, .name = {"look", 4}},
    {.kind = TRACE_DELTA_REFUSAL, .text = {"no", 2}},
};

static void write_told(const struct dialect *dialect, enum trace_finish finish, struct buf *out)
{
    struct trace_usage usage = {.known = true,
                                .prompt_tokens = 100,
                                .completion_tokens = 20,
                                .cached_tokens = 40,
                                .reasoning_tokens = 5};
    OWN(dialect_writer) struct dialect_writer writer = {0};
    dialect_writer_init(&writer, dialect, &asked, STR("id"), STR("m"), 1);
    for (size_t i = 0; i < COUNT(told); i++)
        dialect_writer_delta(&writer, &told[i], out);
    dialect_writer_finish(&writer, finish, &usage, out);
}

/* The next event's data, read; false: there is none. */
static bool next_event(struct str *rest, struct json_doc *doc)
{
    long at = str_find(*rest, STR("data: "));
    if (at < 0)
        return false;
    *rest = str_from(*rest, (size_t)at + 6);
    struct str data = str_cut(rest, '\n');
    if (str_is(data, "[DONE]"))
        return false;
    return json_read(doc, data, NULL, NULL) == 0;
}

static void expect_members(struct json event, const char *names)
{
    OWN(arena) struct arena arena = {0};
    struct str type = json_str(json_get(event, "type"), &arena);
    for (struct str rest = str_of(names); rest.data;) {
        struct str name = str_cut(&rest, ' ');
        if (name.size && !json_exists(json_get_str(event, name)))
            test_fail(__FILE__, __LINE__, "%.*s has no %.*s: %.*s", STR_ARGS(type), STR_ARGS(name),
                      STR_ARGS(json_raw(event)));
    }
}

/* ---------------------------------------------------------------- responses */

/* As the OpenAPI document of the vendor requires. */
static const struct {
    const char *type, *members;
} required[] = {
    {"response.created", "response"},
    {"response.in_progress", "response"},
    {"response.output_item.added", "output_index item"},
    {"response.output_item.done", "output_index item"},
    {"response.content_part.added", "item_id output_index content_index part"},
    {"response.content_part.done", "item_id output_index content_index part"},
    {"response.output_text.delta", "item_id output_index content_index delta logprobs"},
    {"response.output_text.done", "item_id output_index content_index text logprobs"},
    {"response.refusal.delta", "item_id output_index content_index delta"},
    {"response.refusal.done", "item_id output_index content_index refusal"},
    {"response.reasoning_summary_part.added", "item_id output_index summary_index part"},
    {"response.reasoning_summary_part.done", "item_id output_index summary_index part"},
    {"response.reasoning_summary_text.delta", "item_id output_index summary_index delta"},
    {"response.reasoning_summary_text.done", "item_id output_index summary_index text"},
    {"response.function_call_arguments.delta", "item_id output_index delta"},
    {"response.function_call_arguments.done", "item_id output_index arguments"},
    {"response.custom_tool_call_input.delta", "item_id output_index delta"},
    {"response.custom_tool_call_input.done", "item_id output_index input"},
    {"response.completed", "response"},
    {"response.incomplete", "response"},
};

TEST(every_event_of_responses_has_what_its_type_needs)
{
    OWN(buf) struct buf stream = {0};
    OWN(buf) struct buf items = {0};
    OWN(json_doc) struct json_doc doc = {0};
    bool seen[COUNT(required)] = {false};
    write_told(&dialect_responses, TRACE_FINISH_TOOL_CALLS, &stream);
    struct str rest = buf_str(&stream);
    int64_t number = 0, open = -1, done = 0;
    while (next_event(&rest, &doc)) {
        struct json event = json_root(&doc), type = json_get(event, "type");
        size_t row = 0;
        while (row < COUNT(required) && !json_is(type, required[row].type))
            row++;
        if (row == COUNT(required)) {
            test_fail(__FILE__, __LINE__, "what is %.*s?", STR_ARGS(json_raw(type)));
            return;
        }
        seen[row] = true;
        expect_members(event, required[row].members);
        EXPECT_INT(json_int_or(json_get(event, "sequence_number"), -1), number++);
        int64_t index = json_int_or(json_get(event, "output_index"), -1);
        if (json_is(type, "response.output_item.added")) {
            EXPECT_INT(open, -1);
            EXPECT_INT(index, done);
            open = index;
        }
        EXPECT_INT(index, open);
        if (json_is(type, "response.output_item.done")) {
            EXPECT(json_is(json_get(json_get(event, "item"), "status"), "completed"));
            buf_format(&items, "%s%.*s", done ? "," : "",
                       STR_ARGS(json_raw(json_get(event, "item"))));
            open = -1;
            done++;
        }
        if (json_is(type, "response.completed")) {
            struct str output = json_raw(json_get(json_get(event, "response"), "output"));
            EXPECT_STR(str_upto(str_from(output, 1), output.size - 2), buf_str(&items));
        }
    }
    EXPECT_INT(done, 9);
    for (size_t i = 0; i + 1 < COUNT(required); i++)
        if (!seen[i])
            test_fail(__FILE__, __LINE__, "there is no %s", required[i].type);
}

/* A call without arguments is one with an empty object of them, as clients read them as JSON. */
TEST(calls_of_responses_have_arguments)
{
    OWN(buf) struct buf stream = {0};
    write_told(&dialect_responses, TRACE_FINISH_TOOL_CALLS, &stream);
    EXPECT(str_find(buf_str(&stream),
                    STR("\"call_id\":\"c3\",\"name\":\"look\",\"arguments\":\"{}\"")) > 0);
    EXPECT(str_find(buf_str(&stream), STR("\"delta\":\"***\"")) > 0);
    EXPECT(str_find(buf_str(&stream), STR("\"id\":\"ctc_id_")) > 0);
    struct trace_tool_call call = {STR("c"), STR("look"), STR("")};
    struct trace_answer answer = {
        .id = STR("r"), .message = {.calls = &call, .call_count = 1}, .finish = TRACE_FINISH_STOP};
    OWN(buf) struct buf whole = {0};
    dialect_write_answer(&dialect_responses, &asked, &answer, &whole);
    EXPECT(str_find(buf_str(&whole), STR("\"arguments\":\"{}\"")) > 0);
}

TEST(what_was_cut_short_is_incomplete)
{
    static const struct trace_part said = {.kind = TRACE_PART_TEXT, .text = {"x", 1}};
    struct trace_tool_call call = {STR("c"), STR("look"), STR("{\"a")};
    struct trace_answer answer = {.id = STR("r"),
                                  .message = {.reasoning = STR("hm"),
                                              .parts = &said,
                                              .part_count = 1,
                                              .calls = &call,
                                              .call_count = 1},
                                  .finish = TRACE_FINISH_LENGTH};
    OWN(buf) struct buf whole = {0};
    OWN(buf) struct buf stream = {0};
    OWN(json_doc) struct json_doc doc = {0};
    OWN(dialect_writer) struct dialect_writer writer = {0};
    dialect_write_answer(&dialect_responses, &asked, &answer, &whole);
    EXPECT(json_read(&doc, buf_str(&whole), NULL, NULL) == 0);
    struct json output = json_get(json_root(&doc), "output");
    EXPECT_INT(json_size(output), 3);
    for (size_t i = 0; i < 3; i++)
        EXPECT(json_is(json_get(json_at(output, i), "status"), i < 2 ? "completed" : "incomplete"));
    dialect_writer_init(&writer, &dialect_responses, &asked, STR("r"), STR("m"), 1);
    dialect_writer_answer(&writer, &answer, 0, &stream);
    dialect_writer_finish(&writer, answer.finish, NULL, &stream);
    struct str rest = buf_str(&stream);
    struct json last = {0};
    while (next_event(&rest, &doc))
        last = json_root(&doc);
    EXPECT(json_is(json_get(last, "type"), "response.incomplete"));
    output = json_get(json_get(last, "response"), "output");
    for (size_t i = 0; i < 3; i++)
        EXPECT(json_is(json_get(json_at(output, i), "status"), i < 2 ? "completed" : "incomplete"));
}

/* ---------------------------------------------------------------- messages */

TEST(blocks_of_messages_are_in_a_row)
{
    static const char *const types[] = {"thinking", "text",     "thinking", "text", "tool_use",
                                        "tool_use", "tool_use", "tool_use", "text"};
    OWN(buf) struct buf stream = {0};
    OWN(json_doc) struct json_doc doc = {0};
    write_told(&dialect_messages, TRACE_FINISH_TOOL_CALLS, &stream);
    struct str rest = buf_str(&stream);
    int64_t open = -1, done = 0;
    while (next_event(&rest, &doc)) {
        struct json event = json_root(&doc), type = json_get(event, "type");
        int64_t index = json_int_or(json_get(event, "index"), -1);
        if (json_is(type, "content_block_start")) {
            EXPECT_INT(open, -1);
            EXPECT_INT(index, done);
            open = index;
            EXPECT(json_is(json_get(json_get(event, "content_block"), "type"),
                           types[done < 9 ? done : 8]));
        }
        EXPECT_INT(index, open);
        if (json_is(type, "content_block_stop")) {
            open = -1;
            done++;
        }
        if (json_is(type, "message_delta")) {
            struct json usage = json_get(event, "usage");
            EXPECT_INT(json_int_or(json_get(usage, "input_tokens"), -1), 60);
            EXPECT_INT(json_int_or(json_get(usage, "cache_read_input_tokens"), -1), 40);
            EXPECT_INT(json_int_or(json_get(usage, "output_tokens"), -1), 20);
            EXPECT_INT(
                json_int_or(json_get(json_get(usage, "output_tokens_details"), "thinking_tokens"),
                            -1),
                5);
        }
    }
    EXPECT_INT(done, 9);
}

/* ---------------------------------------------------------------- usage */

/* What was cached and what was thought is said in every dialect that has a word for it. */
TEST(usage_is_the_same_in_every_dialect)
{
    static const struct dialect *const all[] = {&dialect_chat, &dialect_messages,
                                                &dialect_responses, &dialect_google};
    static const struct trace_usage rows[] = {
        {true, 100, 20, 40, 5},
        {true, 10, 20, 40, 50}, /* a server that counts otherwise: nothing is less than nothing */
    };
    for (size_t i = 0; i < COUNT(all) * COUNT(rows); i++) {
        const struct trace_usage *usage = &rows[i / COUNT(all)];
        const struct dialect *dialect = all[i % COUNT(all)];
        struct trace_part said = {.text = STR("x")};
        struct trace_answer got, answer = {.id = STR("r"),
                                           .message = {.parts = &said, .part_count = 1},
                                           .finish = TRACE_FINISH_STOP,
                                           .usage = *usage};
        OWN(arena) struct arena arena = {0};
        OWN(buf) struct buf whole = {0};
        struct err err = {0};
        dialect_write_answer(dialect, &asked, &answer, &whole);
        EXPECT(str_find(buf_str(&whole), STR(":-")) < 0);
        OWN(dialect_reader)
        struct dialect_reader *reader =
            dialect_reader_new(dialect, &(struct dialect_reader_options){0});
        EXPECT_INT(dialect_reader_feed(reader, buf_str(&whole), &err), 0);
        EXPECT_INT(dialect_reader_end(reader, &arena, &got, &err), 0);
        if (usage == &rows[0] && memcmp(&got.usage, usage, sizeof *usage) != 0)
            test_fail(__FILE__, __LINE__, "%s: %s", dialect_name(dialect), buf_text(&whole));
    }
}

/* ---------------------------------------------------------------- errors in a stream */

TEST(an_error_in_a_stream_is_one_in_every_spelling)
{
    static const struct {
        const struct dialect *dialect;
        bool stream;
        const char *bytes;
    } rows[] = {
        {&dialect_responses, true,
         "event: error\ndata: {\"type\":\"error\",\"code\":\"server_error\",\"message\":\"too much"
         "\",\"param\":null,\"sequence_number\":1}\n\n"},
        {&dialect_responses, true,
         "data: {\"type\":\"error\",\"error\":{\"type\":\"x\",\"message\":\"too much\"}}\n\n"},
        {&dialect_responses, true,
         "data: {\"type\":\"response.failed\",\"response\":{\"status\":\"failed\",\"error\":{"
         "\"code\":\"x\",\"message\":\"too much\"}}}\n\n"},
        {&dialect_responses, false,
         "{\"id\":\"r\",\"status\":\"cancelled\",\"output\":[],\"error\":null,"
         "\"incomplete_details\":{\"reason\":\"too much\"}}"},
        {&dialect_messages, true,
         "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\","
         "\"message\":\"too much\"}}\n\n"},
        {&dialect_google, true, "data: {\"error\":{\"code\":503,\"message\":\"too much\"}}\n\n"},
        {&dialect_chat, true, "data: {\"error\":{\"message\":\"too much\",\"code\":500}}\n\n"},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        OWN(arena) struct arena arena = {0};
        struct trace_answer got;
        struct err err = {0};
        OWN(dialect_reader)
        struct dialect_reader *reader = dialect_reader_new(
            rows[i].dialect, &(struct dialect_reader_options){.stream = rows[i].stream});
        int result = dialect_reader_feed(reader, str_of(rows[i].bytes), &err);
        if (result == 0)
            result = rows[i].stream ? 0 : dialect_reader_end(reader, &arena, &got, &err);
        if (result == 0 || err.kind != ERR_LOST)
            test_fail(__FILE__, __LINE__, "%s: %s", rows[i].bytes, err.text);
        else if (rows[i].stream)
            EXPECT(str_find(str_of(err.text), STR("too much")) > 0);
    }
}

/* ---------------------------------------------------------------- completions */

static void rewrite(const char *body, struct trace_request *request, struct arena *arena,
                    struct json_doc *doc, struct buf *out)
{
    static const struct dialect_route route = {.kind = DIALECT_ROUTE_CALL,
                                               .dialect = &dialect_completions};
    struct dialect_override override = {.capture = true};
    struct err err = {0};
    EXPECT_INT(json_read(doc, str_of(body), NULL, &err), 0);
    EXPECT_INT(dialect_read_request(&route, json_root(doc), arena, request, &err), 0);
    dialect_rewrite_request(&dialect_completions, json_root(doc), &override, out);
}

/* What the agent wants to see of tokens it gets as it asked for it. */
TEST(capturing_leaves_the_log_probabilities_of_completions_readable)
{
    static const struct {
        const char *asked, *has, *lacks;
        bool logprobs, token_ids;
    } rows[] = {
        {"", "\"logprobs\":1", "\"logprobs\":true", false, false},
        {",\"logprobs\":null", "\"logprobs\":1", "\"logprobs\":null", false, false},
        {",\"logprobs\":5", "\"logprobs\":5", "return_tokens_as_token_ids", true, false},
        {",\"logprobs\":0", "\"logprobs\":0", "return_tokens_as_token_ids", true, false},
        {",\"return_token_ids\":true", "\"return_token_ids\":true", NULL, false, true},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        OWN(arena) struct arena arena = {0};
        OWN(json_doc) struct json_doc doc = {0};
        OWN(buf) struct buf body = {0};
        OWN(buf) struct buf out = {0};
        struct trace_request request;
        buf_format(&body, "{\"model\":\"m\",\"prompt\":\"x\"%s}", rows[i].asked);
        rewrite(buf_text(&body), &request, &arena, &doc, &out);
        EXPECT_INT(request.wants_logprobs, rows[i].logprobs);
        EXPECT_INT(request.wants_token_ids, rows[i].token_ids);
        if (str_find(buf_str(&out), str_of(rows[i].has)) < 0 ||
            (rows[i].lacks && str_find(buf_str(&out), str_of(rows[i].lacks)) >= 0))
            test_fail(__FILE__, __LINE__, "%s: %s", rows[i].asked, buf_text(&out));
    }
}

TEST(a_stream_of_completions_is_read_in_full)
{
    static const char stream[] =
        "data: {\"id\":\"c\",\"choices\":[{\"index\":0,\"text\":\"a\",\"token_ids\":[1],"
        "\"prompt_token_ids\":[7,8],\"logprobs\":{\"token_logprobs\":[-0.5]}}]}\n\n"
        "data: {\"id\":\"c\",\"choices\":[{\"index\":1,\"text\":\"another\"}]}\n\n"
        "data: {\"id\":\"c\",\"choices\":[{\"index\":0,\"text\":\"b\",\"token_ids\":[2],"
        "\"prompt_token_ids\":[7,8],\"logprobs\":{\"token_logprobs\":[-0.25]},\"finish_reason\":"
        "\"content_filter\"}]}\n\n"
        "data: {\"id\":\"c\",\"choices\":[],\"usage\":{\"prompt_tokens\":2,\"completion_tokens\":2,"
        "\"prompt_tokens_details\":{\"cached_tokens\":1},\"completion_tokens_details\":{"
        "\"reasoning_tokens\":0}}}\n\ndata: [DONE]\n\n";
    OWN(arena) struct arena arena = {0};
    OWN(buf) struct buf whole = {0};
    struct trace_answer got;
    struct err err = {0};
    OWN(dialect_reader)
    struct dialect_reader *reader =
        dialect_reader_new(&dialect_completions, &(struct dialect_reader_options){.stream = true});
    EXPECT_INT(dialect_reader_feed(reader, STR(stream), &err), 0);
    EXPECT_INT(dialect_reader_end(reader, &arena, &got, &err), 0);
    EXPECT_STR(trace_message_text(&got.message, &arena), STR("ab"));
    EXPECT_INT(got.prompt_id_count, 2);
    EXPECT_INT(got.tokens.id_count, 2);
    EXPECT_INT(got.finish, TRACE_FINISH_CONTENT_FILTER);
    EXPECT_INT(got.usage.cached_tokens, 1);
    EXPECT_INT(got.usage.reasoning_tokens, 0);
    dialect_write_answer(&dialect_completions, &asked, &got, &whole);
    EXPECT(str_find(buf_str(&whole), STR("\"finish_reason\":\"content_filter\"")) > 0);
    EXPECT(str_find(buf_str(&whole), STR("\"cached_tokens\":1")) > 0);
}

/* The last chunk that brings usage has no choices, as the vendor's has it. */
TEST(usage_of_streamed_completions_has_a_chunk_of_its_own)
{
    OWN(buf) struct buf stream = {0};
    OWN(json_doc) struct json_doc doc = {0};
    write_told(&dialect_completions, TRACE_FINISH_STOP, &stream);
    struct str rest = buf_str(&stream);
    bool finished = false, counted = false;
    while (next_event(&rest, &doc)) {
        struct json root = json_root(&doc), choices = json_get(root, "choices");
        bool usage = json_type(json_get(root, "usage")) == JSON_OBJECT;
        EXPECT_INT(json_size(choices), usage ? 0 : 1);
        finished |= json_is(json_get(json_at(choices, 0), "finish_reason"), "stop");
        counted |= usage && finished;
    }
    EXPECT(counted);
}

/* ---------------------------------------------------------------- stop words */

/* Which stop word ended an answer is told by engines in members of their own, and to agents in the
 * one protocol that has a place for it. */
TEST(the_stop_word_that_ended_an_answer_is_told)
{
    static const struct {
        const struct dialect *dialect;
        const char *body, *word;
    } rows[] = {
        {&dialect_chat,
         "{\"id\":\"c\",\"choices\":[{\"message\":{\"content\":\"x\"},\"finish_reason\":\"stop\","
         "\"stop_reason\":\"END\"}]}",
         "\"stop_reason\":\"stop_sequence\",\"stop_sequence\":\"END\""},
        {&dialect_chat,
         "{\"id\":\"c\",\"choices\":[{\"message\":{\"content\":\"x\"},\"finish_reason\":\"stop\","
         "\"matched_stop\":\"END\"}]}",
         "\"stop_reason\":\"stop_sequence\",\"stop_sequence\":\"END\""},
        {&dialect_chat,
         "{\"id\":\"c\",\"choices\":[{\"message\":{\"content\":\"x\"},\"finish_reason\":\"stop\","
         "\"stop_reason\":\"<|im_end|>\"}]}",
         "\"stop_reason\":\"end_turn\",\"stop_sequence\":null"},
        {&dialect_chat,
         "{\"id\":\"c\",\"choices\":[{\"message\":{\"content\":\"x\"},\"finish_reason\":\"stop\","
         "\"stop_reason\":151645}]}",
         "\"stop_reason\":\"end_turn\",\"stop_sequence\":null"},
        {&dialect_chat,
         "{\"id\":\"c\",\"choices\":[{\"message\":{\"content\":\"x\"},\"finish_reason\":\"length\","
         "\"stop_reason\":\"END\"}]}",
         "\"stop_reason\":\"max_tokens\",\"stop_sequence\":null"},
        {&dialect_messages,
         "{\"id\":\"c\",\"content\":[{\"type\":\"text\",\"text\":\"x\"}],\"stop_reason\":"
         "\"stop_sequence\",\"stop_sequence\":\"END\"}",
         "\"stop_reason\":\"stop_sequence\",\"stop_sequence\":\"END\""},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        OWN(arena) struct arena arena = {0};
        OWN(buf) struct buf whole = {0};
        OWN(buf) struct buf stream = {0};
        OWN(dialect_writer) struct dialect_writer writer = {0};
        struct trace_answer got;
        struct err err = {0};
        OWN(dialect_reader)
        struct dialect_reader *reader =
            dialect_reader_new(rows[i].dialect, &(struct dialect_reader_options){0});
        EXPECT_INT(dialect_reader_feed(reader, str_of(rows[i].body), &err), 0);
        EXPECT_INT(dialect_reader_end(reader, &arena, &got, &err), 0);
        dialect_write_answer(&dialect_messages, &asked, &got, &whole);
        dialect_writer_init(&writer, &dialect_messages, &asked, got.id, got.model, 1);
        dialect_writer_answer(&writer, &got, 0, &stream);
        dialect_writer_finish(&writer, got.finish, &got.usage, &stream);
        if (str_find(buf_str(&whole), str_of(rows[i].word)) < 0 ||
            str_find(buf_str(&stream), str_of(rows[i].word)) < 0)
            test_fail(__FILE__, __LINE__, "%s is not in\n%s\n%s", rows[i].word, buf_text(&whole),
                      buf_text(&stream));
    }
}

/* ---------------------------------------------------------------- state to replay */

static int read_back(const struct dialect *dialect, bool stream, struct str bytes,
                     struct arena *arena, struct trace_answer *out)
{
    struct err err = {0};
    OWN(dialect_reader)
    struct dialect_reader *reader =
        dialect_reader_new(dialect, &(struct dialect_reader_options){.stream = stream});
    if (dialect_reader_feed(reader, bytes, &err) < 0 ||
        dialect_reader_end(reader, arena, out, &err) < 0) {
        test_fail(__FILE__, __LINE__, "%s: %s", dialect_name(dialect), err.text);
        return -1;
    }
    return 0;
}

/* An answer that is written anew in the dialect it came in (kept for a retry, read from the
 * journal, asked for in one piece) still has what its model server wants back. */
TEST(signed_and_encrypted_state_survives_being_written_anew)
{
    static const struct {
        const struct dialect *dialect;
        const char *body;
        const char *kept[3];
        const char *once; /* NULL: any number of times */
    } rows[] = {
        {&dialect_messages,
         "{\"id\":\"r\",\"content\":[{\"type\":\"thinking\",\"thinking\":\"hm\",\"signature\":"
         "\"sig1\"},{\"type\":\"redacted_thinking\",\"data\":\"sig2\"},{\"type\":"
         "\"server_tool_use\",\"id\":\"s1\",\"name\":\"web_search\",\"input\":{\"q\":\"sig3\"}},{"
         "\"type\":\"text\",\"text\":\"A\"},{\"type\":\"tool_use\",\"id\":\"c\",\"name\":\"look\","
         "\"input\":{\"a\":1}}],\"stop_reason\":\"pause_turn\"}",
         {"sig1", "sig2", "sig3"},
         "\"hm\""},
        {&dialect_responses,
         "{\"id\":\"r\",\"status\":\"completed\",\"output\":[{\"type\":\"reasoning\",\"id\":"
         "\"rs1\",\"summary\":[{\"type\":\"summary_text\",\"text\":\"hm\"}],\"encrypted_content\":"
         "\"sig1\"},{\"type\":\"web_search_call\",\"id\":\"sig2\",\"status\":\"completed\"},{"
         "\"type\":\"message\",\"id\":\"m\",\"role\":\"assistant\",\"content\":[{\"type\":"
         "\"output_text\",\"text\":\"A\",\"annotations\":[]}]},{\"type\":\"function_call\","
         "\"call_id\":\"c\",\"name\":\"look\",\"arguments\":\"{\\\"a\\\":1}\"}]}",
         {"sig1", "sig2", "rs1"},
         NULL},
        {&dialect_google,
         "{\"responseId\":\"r\",\"candidates\":[{\"content\":{\"role\":\"model\",\"parts\":[{"
         "\"text\":\"hm\",\"thought\":true},{\"text\":\"A\",\"thoughtSignature\":\"sig1\"},{"
         "\"functionCall\":{\"id\":\"c\",\"name\":\"look\",\"args\":{\"a\":1}},"
         "\"thoughtSignature\":\"sig2\"}]},\"finishReason\":\"MALFORMED_FUNCTION_CALL\"}]}",
         {"sig1", "sig2", "MALFORMED_FUNCTION_CALL"},
         "sig2"},
        {&dialect_chat,
         "{\"id\":\"r\",\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":"
         "\"A\",\"reasoning\":\"hm\",\"reasoning_details\":[{\"type\":\"reasoning.encrypted\","
         "\"data\":\"sig1\"},{\"type\":\"reasoning.text\",\"text\":\"hm\",\"signature\":\"sig2\"}],"
         "\"tool_calls\":[{\"id\":\"c\",\"type\":\"function\",\"function\":{\"name\":\"look\","
         "\"arguments\":\"{\\\"a\\\":1}\"}}]},\"finish_reason\":\"tool_calls\"}]}",
         {"sig1", "sig2", "reasoning.encrypted"},
         NULL},
    };
    for (size_t i = 0; i < COUNT(rows) * 2; i++) {
        const struct dialect *dialect = rows[i / 2].dialect;
        bool stream = i % 2;
        OWN(arena) struct arena arena = {0};
        OWN(buf) struct buf out = {0};
        OWN(dialect_writer) struct dialect_writer writer = {0};
        struct trace_answer answer, again;
        if (read_back(dialect, false, str_of(rows[i / 2].body), &arena, &answer) < 0)
            return;
        if (stream) {
            dialect_writer_init(&writer, dialect, &asked, answer.id, answer.model, 1);
            dialect_writer_answer(&writer, &answer, 0, &out);
            dialect_writer_finish(&writer, answer.finish, &answer.usage, &out);
        } else {
            dialect_write_answer(dialect, &asked, &answer, &out);
        }
        for (size_t k = 0; k < COUNT(rows[0].kept); k++)
            if (str_find(buf_str(&out), str_of(rows[i / 2].kept[k])) < 0)
                test_fail(__FILE__, __LINE__, "%s: %s is lost: %s", dialect_name(dialect),
                          rows[i / 2].kept[k], buf_text(&out));
        long at = rows[i / 2].once ? str_find(buf_str(&out), str_of(rows[i / 2].once)) : -1;
        if (at >= 0 &&
            str_find(str_from(buf_str(&out), (size_t)at + 1), str_of(rows[i / 2].once)) >= 0)
            test_fail(__FILE__, __LINE__, "%s is there twice: %s", rows[i / 2].once,
                      buf_text(&out));
        if (read_back(dialect, stream, buf_str(&out), &arena, &again) < 0)
            return;
        EXPECT_STR(again.message.reasoning, STR("hm"));
        EXPECT_STR(trace_message_text(&again.message, &arena), STR("A"));
        EXPECT_INT(again.message.call_count, 1);
        EXPECT_STR(again.message.calls[0].arguments, STR("{\"a\":1}"));
        EXPECT_STR(again.finish_text, answer.finish_text);
        if (dialect != &dialect_google) /* whose signature of a text has a part of its own then */
            EXPECT_STR(again.message.opaque, answer.message.opaque);
    }
}

/* What another dialect's server wants back means nothing to this agent. */
TEST(state_of_another_dialect_is_not_written)
{
    static const struct dialect *const all[] = {&dialect_messages, &dialect_responses,
                                                &dialect_google};
    struct trace_part said = {.text = STR("A")};
    struct trace_answer answer = {
        .id = STR("r"),
        .message = {.reasoning = STR("hm"),
                    .opaque = STR("[{\"type\":\"reasoning.encrypted\",\"data\":\"sig1\"},{\"data\":"
                                  "\"sig1\"},5]"),
                    .parts = &said,
                    .part_count = 1},
        .finish = TRACE_FINISH_STOP};
    for (size_t i = 0; i < COUNT(all); i++) {
        OWN(buf) struct buf out = {0};
        OWN(dialect_writer) struct dialect_writer writer = {0};
        dialect_writer_init(&writer, all[i], &asked, answer.id, answer.model, 1);
        dialect_writer_answer(&writer, &answer, 0, &out);
        dialect_writer_finish(&writer, answer.finish, NULL, &out);
        dialect_write_answer(all[i], &asked, &answer, &out);
        EXPECT(str_find(buf_str(&out), STR("sig1")) < 0);
        EXPECT(str_find(buf_str(&out), STR("\"hm\"")) > 0);
    }
}

/* ---------------------------------------------------------------- calls, old and without names */

TEST(a_call_in_the_older_form_is_a_call)
{
    static const char stream[] =
        "data: {\"id\":\"c\",\"choices\":[{\"index\":0,\"delta\":{\"function_call\":{\"name\":"
        "\"look\",\"arguments\":\"\"}}}]}\n\n"
        "data: {\"id\":\"c\",\"choices\":[{\"index\":0,\"delta\":{\"function_call\":{"
        "\"arguments\":\"{\\\"a\\\":1}\"}}}]}\n\n"
        "data: {\"id\":\"c\",\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":"
        "\"function_call\"}]}\n\ndata: [DONE]\n\n";
    static const char whole[] =
        "{\"id\":\"c\",\"choices\":[{\"index\":0,\"message\":{\"content\":null,\"function_call\":{"
        "\"name\":\"look\",\"arguments\":\"{\\\"a\\\":1}\"}},\"finish_reason\":"
        "\"function_call\"}]}";
    for (int i = 0; i < 2; i++) {
        OWN(arena) struct arena arena = {0};
        struct trace_answer got;
        if (read_back(&dialect_chat, i, i ? STR(stream) : STR(whole), &arena, &got) < 0)
            return;
        EXPECT_INT(got.finish, TRACE_FINISH_TOOL_CALLS);
        EXPECT_INT(got.message.call_count, 1);
        EXPECT_STR(got.message.calls[0].name, STR("look"));
        EXPECT_STR(got.message.calls[0].arguments, STR("{\"a\":1}"));
    }
}

/* Google's calls may have no id, and the agent's next request numbers them: an id that was made up
 * for the record would make another message of it. */
TEST(a_call_of_googles_without_an_id_is_the_same_call_in_the_next_request)
{
    static const char stream[] =
        "data: {\"responseId\":\"r\",\"candidates\":[{\"content\":{\"parts\":[{"
        "\"functionCall\":{\"name\":\"look\",\"args\":{\"a\":1}}}]},\"finishReason\":\"STOP\"}]}"
        "\n\n";
    static const char next[] =
        "{\"contents\":[{\"role\":\"model\",\"parts\":[{\"functionCall\":{\"name\":\"look\","
        "\"args\":{\"a\":1}}}]},{\"role\":\"user\",\"parts\":[{\"functionResponse\":{\"name\":"
        "\"look\",\"response\":{}}}]}]}";
    OWN(arena) struct arena arena = {0};
    OWN(json_doc) struct json_doc doc = {0};
    OWN(buf) struct buf out = {0};
    struct trace_answer got;
    struct trace_request request;
    struct err err = {0};
    struct dialect_route route = {.kind = DIALECT_ROUTE_CALL, .dialect = &dialect_google};
    if (read_back(&dialect_google, true, STR(stream), &arena, &got) < 0)
        return;
    EXPECT_INT(json_read(&doc, STR(next), NULL, NULL), 0);
    EXPECT_INT(dialect_read_request(&route, json_root(&doc), &arena, &request, &err), 0);
    EXPECT(trace_message_same(&got.message, &request.messages[0]));
    dialect_write_answer(&dialect_google, &asked, &got, &out);
    EXPECT(str_find(buf_str(&out), STR("\"functionCall\":{\"name\":\"look\"")) > 0);
}

/* ---------------------------------------------------------------- any order */

#define CALLS 4
#define DELTAS 24

static uint32_t next_random(uint64_t *state)
{
    *state = *state * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(*state >> 33);
}

/* What was said, all in one, whatever came between. */
struct said {
    struct buf text, thought;
    struct buf arguments[CALLS];
    size_t calls;
};

static void said_deinit(struct said *said)
{
    buf_deinit(&said->text);
    buf_deinit(&said->thought);
    for (size_t i = 0; i < CALLS; i++)
        buf_deinit(&said->arguments[i]);
}

/* The next piece of a call's arguments, or a call that begins, a text, a thought. */
static void say_one(uint64_t *state, struct said *said, struct dialect_writer *writer,
                    struct buf *out)
{
    static const char arguments[] = "{\"a\":{\"b\":\"}{\"},\"c\":[1,\"\\\"\"]}";
    static const char *const words[] = {"one ", "\xc3\xbc", "\"{", "}\n"};
    static const char *const names[] = {"look", "s__look", "patch", "unknown"};
    char id[8];
    struct trace_delta delta = {.index = next_random(state) % CALLS};
    struct buf *piece = &said->arguments[delta.index];
    uint32_t kind = next_random(state) % 4;
    if (kind < 2) {
        delta.kind = kind ? TRACE_DELTA_TEXT : TRACE_DELTA_REASONING;
        delta.text = str_of(words[next_random(state) % COUNT(words)]);
        buf_str_append(kind ? &said->text : &said->thought, delta.text);
    } else if (delta.index >= said->calls) {
        delta.kind = TRACE_DELTA_CALL;
        delta.index = (uint32_t)said->calls++;
        snprintf(id, sizeof id, "c%u", delta.index);
        delta.id = str_of(id);
        delta.name = str_of(names[next_random(state) % COUNT(names)]);
    } else {
        size_t left = sizeof arguments - 1 - piece->size;
        delta.kind = TRACE_DELTA_ARGUMENTS;
        delta.text = str_make(arguments + piece->size, left < 9 ? left : 9);
        buf_str_append(piece, delta.text);
        if (!left)
            return;
    }
    dialect_writer_delta(writer, &delta, out);
}

/* Custom tools hand on the text that is their input, or what the model wrote instead. */
static void expect_said(const char *name, struct said *said, const struct trace_answer *got)
{
    OWN(arena) struct arena arena = {0};
    struct str text = trace_message_text(&got->message, &arena);
    bool same = str_equal(text, buf_str(&said->text)) &&
                str_equal(got->message.reasoning, buf_str(&said->thought)) &&
                got->message.call_count == said->calls;
    for (size_t i = 0; same && i < said->calls; i++) {
        struct str arguments = got->message.calls[i].arguments;
        bool whole = str_ends(buf_str(&said->arguments[i]), STR("]}"));
        same = str_equal(arguments, buf_str(&said->arguments[i])) || !whole ||
               str_find(arguments, STR("input")) > 0;
    }
    if (!same)
        test_fail(__FILE__, __LINE__, "%s: %.*s | %.*s | %zu calls, not %s | %s | %zu", name,
                  STR_ARGS(text), STR_ARGS(got->message.reasoning), got->message.call_count,
                  buf_text(&said->text), buf_text(&said->thought), said->calls);
}

TEST(whatever_comes_between_what_is_read_back_as_it_was_said)
{
    static const struct dialect *const all[] = {&dialect_chat, &dialect_messages,
                                                &dialect_responses, &dialect_google};
    for (uint64_t seed = 0; seed < 1200; seed++) {
        const struct dialect *dialect = all[seed % COUNT(all)];
        uint64_t state = seed * 77 + 5;
        struct said said = {0};
        OWN(buf) struct buf out = {0};
        OWN(arena) struct arena arena = {0};
        OWN(dialect_writer) struct dialect_writer writer = {0};
        struct trace_answer got;
        dialect_writer_init(&writer, dialect, &asked, STR("id"), STR("m"), 1);
        for (size_t i = next_random(&state) % DELTAS; i > 0; i--)
            say_one(&state, &said, &writer, &out);
        dialect_writer_finish(&writer, TRACE_FINISH_STOP, NULL, &out);
        if (read_back(dialect, true, buf_str(&out), &arena, &got) == 0)
            expect_said(dialect_name(dialect), &said, &got);
        said_deinit(&said);
    }
}

/* ---------------------------------------------------------------- what was broken off */

/* Engines that change their weights, or are shut down, end what they were at with a word of their
 * own, as if that were an answer. */
TEST(an_answer_that_the_engine_broke_off_is_none)
{
    static const struct dialect *const all[] = {&dialect_chat, &dialect_completions};
    static const char *const words[] = {"abort", "error", "stop"};
    for (size_t i = 0; i < COUNT(all) * COUNT(words) * 2; i++) {
        const struct dialect *dialect = all[i % 2];
        const char *word = words[i / 4];
        bool stream = i / 2 % 2, chat = dialect == &dialect_chat;
        OWN(arena) struct arena arena = {0};
        OWN(buf) struct buf bytes = {0};
        struct trace_answer got;
        struct err err = {0};
        const char *said = !chat    ? "\"text\":\"half an\""
                           : stream ? "\"delta\":{\"content\":\"half an\"}"
                                    : "\"message\":{\"content\":\"half an\"}";
        buf_format(&bytes, "%s{\"choices\":[{\"index\":0,%s,\"finish_reason\":\"%s\"}]}%s",
                   stream ? "data: " : "", said, word, stream ? "\n\ndata: [DONE]\n\n" : "");
        OWN(dialect_reader)
        struct dialect_reader *reader =
            dialect_reader_new(dialect, &(struct dialect_reader_options){.stream = stream});
        int result = dialect_reader_feed(reader, buf_str(&bytes), &err);
        if (result == 0)
            result = dialect_reader_end(reader, &arena, &got, &err);
        EXPECT_INT(result, strcmp(word, "stop") ? -1 : 0);
        EXPECT_INT(err.kind, strcmp(word, "stop") ? ERR_LOST : ERR_NONE);
    }
}

/* Clients read arguments as JSON, also those of calls that have none. */
TEST(a_call_of_chat_completions_has_arguments)
{
    OWN(buf) struct buf stream = {0};
    OWN(buf) struct buf whole = {0};
    OWN(arena) struct arena arena = {0};
    struct trace_tool_call call = {STR("c"), STR("look"), STR("")};
    struct trace_answer got, answer = {.id = STR("r"),
                                       .message = {.calls = &call, .call_count = 1},
                                       .finish = TRACE_FINISH_TOOL_CALLS};
    dialect_write_answer(&dialect_chat, &asked, &answer, &whole);
    EXPECT(str_find(buf_str(&whole), STR("\"arguments\":\"{}\"")) > 0);
    write_told(&dialect_chat, TRACE_FINISH_TOOL_CALLS, &stream);
    if (read_back(&dialect_chat, true, buf_str(&stream), &arena, &got) < 0)
        return;
    EXPECT_INT(got.message.call_count, 4);
    EXPECT_STR(got.message.calls[0].arguments, STR("{\"a\":1}"));
    EXPECT_STR(got.message.calls[1].arguments, STR("{\"b\":2}"));
    EXPECT_STR(got.message.calls[3].arguments, STR("{}"));
}
