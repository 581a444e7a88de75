/* The dialect room beyond the golden folders: routes, overrides, relaying, limits, errors. */
#include <stdio.h>
#include <stdlib.h>

#include "base/err.h"
#include "base/mem.h"
#include "dialect/dialect.h"
#include "test.h"

TEST(routes_are_found_with_and_without_the_version)
{
    EXPECT_INT(dialect_find_route(STR("POST"), STR("/v1/chat/completions")).kind,
               DIALECT_ROUTE_CALL);
    EXPECT_INT(dialect_find_route(STR("POST"), STR("/chat/completions")).kind, DIALECT_ROUTE_CALL);
    EXPECT_INT(dialect_find_route(STR("GET"), STR("/v1/chat/completions")).kind,
               DIALECT_ROUTE_METHOD);
    EXPECT_INT(dialect_find_route(STR("GET"), STR("/v1/models")).kind, DIALECT_ROUTE_MODELS);
    EXPECT_INT(dialect_find_route(STR("GET"), STR("/v1/models/a/b")).kind, DIALECT_ROUTE_MODELS);
    EXPECT_INT(dialect_find_route(STR("GET"), STR("/v1/modelsx")).kind, DIALECT_ROUTE_NONE);
    EXPECT_INT(dialect_find_route(STR("POST"), STR("/v1/chat/completions/")).kind,
               DIALECT_ROUTE_NONE);
    EXPECT_INT(dialect_find_route(STR("POST"), STR("/")).kind, DIALECT_ROUTE_NONE);
    EXPECT_INT(dialect_find_route(STR("POST"), STR("")).kind, DIALECT_ROUTE_NONE);
    EXPECT(dialect_find("chat") == &dialect_chat);
    EXPECT(!dialect_find("telegraph"));
}

static char *rewritten(const char *body, const struct dialect_override *override)
{
    struct json_doc doc = {0};
    struct buf out = {0};
    if (json_read(&doc, str_of(body), NULL, NULL) == 0)
        dialect_rewrite_request(&dialect_chat, json_root(&doc), override, &out);
    json_doc_deinit(&doc);
    return buf_take(&out);
}

TEST(overrides_touch_only_what_they_name)
{
    struct dialect_override model = {.model = STR("real \"m\"")};
    OWN(mem)
    char *one =
        rewritten("{ \"model\":\"x\", \"seed\":18446744073709551615 , \"y\":1.0e0}", &model);
    EXPECT_TEXT(one,
                "{ \"model\":\"real \\\"m\\\"\", \"seed\":18446744073709551615 , \"y\":1.0e0}");

    struct dialect_override sampling = {.has_temperature = true,
                                        .temperature = 0.7,
                                        .has_top_p = true,
                                        .top_p = 1,
                                        .tokens_max = 64};
    OWN(mem)
    char *two =
        rewritten("{\"max_tokens\":5,\"max_completion_tokens\":6,\"top_p\":0.1}", &sampling);
    EXPECT_TEXT(two, "{\"max_completion_tokens\":6,\"top_p\":1,\"temperature\":0.7}");
    OWN(mem) char *capped = rewritten("{\"max_tokens\":500}", &sampling);
    EXPECT_TEXT(capped, "{\"max_tokens\":64,\"temperature\":0.7,\"top_p\":1}");
    struct dialect_override newer = {.model = STR("openai/gpt-5-mini")};
    OWN(mem) char *renamed = rewritten("{\"max_tokens\":500}", &newer);
    EXPECT_TEXT(renamed, "{\"model\":\"openai/gpt-5-mini\",\"max_completion_tokens\":500}");
    struct dialect_override quiet = {.thinking_off = true};
    OWN(mem) char *calm = rewritten("{\"chat_template_kwargs\":{\"a\":1}}", &quiet);
    EXPECT_TEXT(calm, "{\"chat_template_kwargs\":{\"a\":1,\"enable_thinking\":false}}");
    OWN(mem)
    char *kept = rewritten("{\"chat_template_kwargs\":{\"enable_thinking\":true}}", &quiet);
    EXPECT_TEXT(kept, "{\"chat_template_kwargs\":{\"enable_thinking\":true}}");

    struct dialect_override capture = {.capture = true, .usage = true};
    OWN(mem) char *three = rewritten("{\"stream\":true,\"stream_options\":{\"x\":1}}", &capture);
    EXPECT_TEXT(three, "{\"stream\":true,\"stream_options\":{\"x\":1,\"include_usage\":true},"
                       "\"logprobs\":true,\"return_tokens_as_token_ids\":true,"
                       "\"return_token_ids\":true}");
    OWN(mem) char *four = rewritten("{\"logprobs\":true}", &capture);
    EXPECT_TEXT(four, "{\"logprobs\":true,\"return_token_ids\":true}");
    capture.engine = DIALECT_ENGINE_SGLANG;
    OWN(mem) char *five = rewritten("{\"stream\":true,\"stream_options\":{}}", &capture);
    EXPECT_TEXT(five, "{\"stream\":false,\"logprobs\":true,\"return_meta_info\":true,"
                      "\"return_prompt_token_ids\":true}");
    capture.engine = DIALECT_ENGINE_OPENAI;
    OWN(mem) char *six = rewritten("{}", &capture);
    EXPECT_TEXT(six, "{\"logprobs\":true}");
}

/* A setting that is accepted does what it says, or is refused: in every dialect. */
TEST(thinking_is_switched_off_and_limits_are_kept_in_every_dialect)
{
    static const struct {
        const struct dialect *dialect;
        const char *body, *want;
    } rows[] = {
        {&dialect_messages, "{\"max_tokens\":500,\"thinking\":{\"type\":\"enabled\"},\"x\":1}",
         "{\"max_tokens\":64,\"thinking\":{\"type\":\"disabled\"},\"x\":1}"},
        {&dialect_responses, "{\"max_output_tokens\":5,\"x\":1}",
         "{\"max_output_tokens\":5,\"x\":1,\"chat_template_kwargs\":{\"enable_thinking\":false}}"},
        {&dialect_google, "{\"generation_config\":{\"max_output_tokens\":99,\"y\":1},\"x\":1}",
         "{\"generation_config\":{\"max_output_tokens\":64,\"y\":1,\"thinkingConfig\":"
         "{\"thinkingBudget\":0}},\"x\":1}"},
        {&dialect_google, "{\"x\":1}",
         "{\"x\":1,\"generationConfig\":{\"maxOutputTokens\":64,\"thinkingConfig\":"
         "{\"thinkingBudget\":0}}}"},
        /* In both spellings at once, whichever the server would heed. */
        {&dialect_google,
         "{\"generationConfig\":{\"maxOutputTokens\":9,\"max_output_tokens\":99},"
         "\"generation_config\":{\"maxOutputTokens\":999}}",
         "{\"generationConfig\":{\"maxOutputTokens\":9,\"thinkingConfig\":{\"thinkingBudget\":0}}"
         "}"},
        {&dialect_completions, "{\"max_tokens\":99}",
         "{\"max_tokens\":64,\"chat_template_kwargs\":{\"enable_thinking\":false}}"},
        /* Said twice, it is imposed twice. */
        {&dialect_messages, "{\"max_tokens\":70,\"max_tok\\u0065ns\":99}",
         "{\"max_tokens\":64,\"max_tok\\u0065ns\":64,\"thinking\":{\"type\":\"disabled\"}}"},
    };
    struct dialect_override override = {.thinking_off = true, .tokens_max = 64};
    for (size_t i = 0; i < COUNT(rows); i++) {
        OWN(json_doc) struct json_doc doc = {0};
        OWN(buf) struct buf out = {0};
        EXPECT_INT(json_read(&doc, str_of(rows[i].body), NULL, NULL), 0);
        dialect_rewrite_request(rows[i].dialect, json_root(&doc), &override, &out);
        EXPECT_TEXT(buf_text(&out), rows[i].want);
    }
}

struct relayed {
    struct buf live, terminal;
};

static void on_relay(void *context, struct str bytes, bool terminal)
{
    struct relayed *relayed = context;
    buf_str_append(terminal ? &relayed->terminal : &relayed->live, bytes);
}

#define CHUNK_A                                                                                    \
    "data: {\"prompt_token_ids\":[1,2],\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"},"   \
    "\"logprobs\":{\"content\":[]},\"token_ids\":[7]}]}\n\n"
#define CHUNK_END "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n"
#define CHUNK_USAGE "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":1}}\n\n"

TEST(relayed_bytes_are_the_upstreams_own_and_the_terminal_ones_are_marked)
{
    struct relayed relayed = {0};
    struct dialect_reader_options options = {
        .stream = true, .on_relay = on_relay, .context = &relayed};
    OWN(dialect_reader) struct dialect_reader *reader = dialect_reader_new(&dialect_chat, &options);
    EXPECT(dialect_reader_feed(reader, STR(": hi\n\n" CHUNK_A), NULL) == 0);
    EXPECT(!dialect_reader_finished(reader));
    EXPECT(dialect_reader_feed(reader, STR(CHUNK_END CHUNK_USAGE "data: [DONE]\n\n"), NULL) == 0);
    EXPECT(dialect_reader_finished(reader));
    EXPECT_STR(buf_str(&relayed.live), STR(": hi\n\n" CHUNK_A));
    EXPECT_STR(buf_str(&relayed.terminal), STR(CHUNK_END CHUNK_USAGE "data: [DONE]\n\n"));
    buf_deinit(&relayed.live);
    buf_deinit(&relayed.terminal);
}

TEST(what_was_captured_is_stripped_from_what_the_agent_sees)
{
    struct relayed relayed = {0};
    struct dialect_reader_options options = {.stream = true,
                                             .strip_token_ids = true,
                                             .strip_logprobs = true,
                                             .strip_usage = true,
                                             .on_relay = on_relay,
                                             .context = &relayed};
    OWN(dialect_reader) struct dialect_reader *reader = dialect_reader_new(&dialect_chat, &options);
    EXPECT(dialect_reader_feed(reader, STR(CHUNK_A CHUNK_END CHUNK_USAGE "data: [DONE]\n\n"),
                               NULL) == 0);
    EXPECT_STR(buf_str(&relayed.live),
               STR("data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"},"
                   "\"logprobs\":null}]}\n\n"));
    EXPECT_STR(buf_str(&relayed.terminal), STR(CHUNK_END "data: [DONE]\n\n"));
    OWN(arena) struct arena arena = {0};
    struct trace_answer answer;
    EXPECT(dialect_reader_end(reader, &arena, &answer, NULL) == 0);
    EXPECT_INT(answer.tokens.id_count, 1);
    EXPECT_INT(answer.tokens.ids[0], 7);
    EXPECT_INT(answer.prompt_id_count, 2);
    EXPECT_INT(answer.usage.prompt_tokens, 1);
    buf_deinit(&relayed.live);
    buf_deinit(&relayed.terminal);
}

static int read_body(struct str body, struct relayed *relayed, struct arena *arena,
                     struct trace_answer *answer, struct err *err)
{
    struct dialect_reader_options options = {
        .strip_token_ids = true, .on_relay = relayed ? on_relay : NULL, .context = relayed};
    OWN(dialect_reader) struct dialect_reader *reader = dialect_reader_new(&dialect_chat, &options);
    if (dialect_reader_feed(reader, body, err) < 0)
        return -1;
    return dialect_reader_end(reader, arena, answer, err);
}

TEST(a_whole_answer_is_read_and_relayed)
{
    OWN(arena) struct arena arena = {0};
    struct relayed relayed = {0};
    struct trace_answer answer;
    struct err err = {0};
    EXPECT(
        read_body(STR("{\"id\":\"i\",\"choices\":[{\"index\":0,\"message\":{\"content\":null,"
                      "\"tool_calls\":[{\"id\":\"a\",\"function\":{\"name\":\"f\",\"arguments\":"
                      "\"{}\"}},{\"id\":\"a\",\"function\":{\"name\":\"g\",\"arguments\":{\"x\":1}"
                      "}}]},\"finish_reason\":\"tool_calls\",\"token_ids\":[5]}],\"x\":1}"),
                  &relayed, &arena, &answer, &err) == 0);
    EXPECT_INT(answer.message.call_count, 2);
    EXPECT_STR(answer.message.calls[1].arguments, STR("{\"x\":1}"));
    EXPECT_INT(answer.tokens.ids[0], 5);
    EXPECT(str_find(buf_str(&relayed.terminal), STR("token_ids")) < 0);
    EXPECT(str_ends(buf_str(&relayed.terminal), STR(",\"x\":1}")));
    EXPECT_INT(relayed.live.size, 0);
    buf_deinit(&relayed.terminal);
}

TEST(a_body_that_is_no_answer_is_told_apart)
{
    OWN(arena) struct arena arena = {0};
    struct trace_answer answer;
    struct err err = {0};
    EXPECT(read_body(STR(""), NULL, &arena, &answer, &err) < 0);
    EXPECT_INT(err.kind, ERR_LOST);
    EXPECT(read_body(STR("<html>"), NULL, &arena, &answer, &err) < 0);
    EXPECT_INT(err.kind, ERR_PROTOCOL);
    EXPECT(read_body(STR("{\"choices\":[]}"), NULL, &arena, &answer, &err) < 0);
    EXPECT_INT(err.kind, ERR_PROTOCOL);
    EXPECT(read_body(STR("{\"choices\":[{\"message\":{\"content\":\"x\"}}]}"), NULL, &arena,
                     &answer, &err) < 0);
    EXPECT_INT(err.kind, ERR_LOST);
    EXPECT(read_body(STR("{\"error\":\"too busy\"}"), NULL, &arena, &answer, &err) < 0);
    EXPECT_TEXT(err.text, "the model server reported an error: too busy");
    EXPECT(read_body(STR("{\"choices\":[{\"message\":{},\"token_ids\":[-1]}]}"), NULL, &arena,
                     &answer, &err) < 0);
    EXPECT_INT(err.kind, ERR_PROTOCOL);
}

TEST(an_answer_has_a_largest_size)
{
    struct err err = {0};
    struct dialect_reader_options small = {.stream = true, .bytes_max = 100};
    OWN(dialect_reader) struct dialect_reader *reader = dialect_reader_new(&dialect_chat, &small);
    for (int i = 0; i < 10 && err.kind == ERR_NONE; i++)
        (void)dialect_reader_feed(reader, STR(": 0123456789\n\n"), &err);
    EXPECT_INT(err.kind, ERR_LIMIT);
    err = (struct err){0};
    struct dialect_reader_options event = {.stream = true, .event_bytes_max = 100};
    OWN(dialect_reader) struct dialect_reader *other = dialect_reader_new(&dialect_chat, &event);
    for (int i = 0; i < 100 && err.kind == ERR_NONE; i++)
        (void)dialect_reader_feed(other, STR("data: 0123456789"), &err);
    EXPECT_INT(err.kind, ERR_LIMIT);
    OWN(buf) struct buf calls = {0};
    for (int i = 0; i < 300; i++)
        buf_format(&calls,
                   "data: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":%d,\"function\":"
                   "{\"name\":\"f\"}}]}}]}\n\n",
                   i);
    struct dialect_reader_options usual = {.stream = true};
    OWN(dialect_reader) struct dialect_reader *third = dialect_reader_new(&dialect_chat, &usual);
    EXPECT(dialect_reader_feed(third, buf_str(&calls), &err) < 0);
    EXPECT_INT(err.kind, ERR_PROTOCOL);
}

TEST(a_request_that_does_not_fit_its_arena_is_a_limit)
{
    OWN(json_doc) struct json_doc doc = {0};
    OWN(buf) struct buf body = {0};
    buf_format(&body, "{\"model\":\"m\",\"messages\":[");
    for (int i = 0; i < 500; i++)
        buf_format(&body, "%s{\"role\":\"user\",\"content\":\"a\\n%d\"}", i ? "," : "", i);
    buf_format(&body, "]}");
    EXPECT(json_read(&doc, buf_str(&body), NULL, NULL) == 0);
    struct trace_request request;
    struct err err = {0};
    OWN(arena) struct arena small = {.bytes_max = 60000};
    EXPECT(dialect_read_request(&(struct dialect_route){.dialect = &dialect_chat}, json_root(&doc),
                                &small, &request, &err) < 0);
    EXPECT_INT(err.kind, ERR_LIMIT);
    OWN(arena) struct arena large = {.bytes_max = 600000};
    EXPECT(dialect_read_request(&(struct dialect_route){.dialect = &dialect_chat}, json_root(&doc),
                                &large, &request, &err) == 0);
    EXPECT_INT(request.message_count, 500);
}

TEST(errors_have_the_form_clients_know)
{
    OWN(buf) struct buf out = {0};
    dialect_write_error(&dialect_chat, 429, "slow_down", STR("Later \"please\""), &out);
    EXPECT_STR(buf_str(&out), STR("{\"error\":{\"message\":\"Later \\\"please\\\"\",\"type\":"
                                  "\"rate_limit_error\",\"param\":null,\"code\":\"slow_down\"}}"));
    buf_clear(&out);
    dialect_write_error(&dialect_chat, 400, NULL, STR("no"), &out);
    EXPECT(str_find(buf_str(&out), STR("invalid_request_error")) > 0);
    buf_clear(&out);
    dialect_write_error(&dialect_chat, 503, NULL, STR("no"), &out);
    EXPECT(str_find(buf_str(&out), STR("server_error")) > 0);
}

TEST(errors_of_upstreams_are_read_in_their_spellings)
{
    static const char *const bodies[] = {"{\"error\":{\"message\":\"m\",\"type\":\"t\"}}",
                                         "{\"object\":\"error\",\"message\":\"m\"}",
                                         "{\"error\":\"m\"}", "{\"detail\":\"m\"}",
                                         "{\"message\":\"m\"}"};
    for (size_t i = 0; i < COUNT(bodies); i++) {
        OWN(json_doc) struct json_doc doc = {0};
        OWN(arena) struct arena arena = {0};
        struct str message, type;
        EXPECT(json_read(&doc, str_of(bodies[i]), NULL, NULL) == 0);
        dialect_read_error(json_root(&doc), &arena, &message, &type);
        EXPECT_STR(message, STR("m"));
    }
}

/* Agents act on the code: one that says the context is too long makes them compact it. */
TEST(the_code_of_an_upstreams_error_is_kept)
{
    static const struct {
        const struct dialect *dialect;
        const char *body;
        int status;
        const char *has;
    } rows[] = {
        {&dialect_chat,
         "{\"error\":{\"message\":\"m\",\"type\":\"invalid_request_error\",\"param\":null,"
         "\"code\":\"context_length_exceeded\"}}",
         400, "\"code\":\"context_length_exceeded\""},
        {&dialect_responses,
         "{\"error\":{\"message\":\"m\",\"type\":\"insufficient_quota\",\"code\":"
         "\"insufficient_quota\"}}",
         429, "\"code\":\"insufficient_quota\""},
        {&dialect_chat, "{\"error\":{\"message\":\"m\",\"type\":\"BadRequestError\",\"code\":400}}",
         400, "\"code\":\"BadRequestError\""},
        {&dialect_messages,
         "{\"type\":\"error\",\"error\":{\"type\":\"billing_error\",\"message\":\"m\"}}", 402,
         "\"type\":\"billing_error\""},
        {&dialect_messages, "{\"error\":{\"message\":\"m\",\"code\":\"context_length_exceeded\"}}",
         400, "\"type\":\"invalid_request_error\""},
        {&dialect_google,
         "{\"error\":{\"code\":400,\"message\":\"m\",\"status\":\"FAILED_PRECONDITION\"}}", 400,
         "\"status\":\"FAILED_PRECONDITION\""},
        {&dialect_google, "{\"error\":{\"message\":\"m\",\"type\":\"x\"}}", 400,
         "\"status\":\"INVALID_ARGUMENT\""},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        OWN(json_doc) struct json_doc doc = {0};
        OWN(arena) struct arena arena = {0};
        OWN(buf) struct buf out = {0};
        struct str message, code;
        EXPECT(json_read(&doc, str_of(rows[i].body), NULL, NULL) == 0);
        dialect_read_error(json_root(&doc), &arena, &message, &code);
        OWN(mem) char *text = code.data ? str_dup(code) : NULL;
        dialect_write_error(rows[i].dialect, rows[i].status, text, message, &out);
        if (str_find(buf_str(&out), str_of(rows[i].has)) < 0)
            test_fail(__FILE__, __LINE__, "%s is not in %s", rows[i].has, buf_text(&out));
    }
}

TEST(usage_is_streamed_only_when_asked_for)
{
    for (int asked = 0; asked < 2; asked++) {
        OWN(buf) struct buf out = {0};
        struct trace_request request = {.model = STR("m"), .stream = true, .stream_usage = asked};
        struct trace_usage usage = {
            .known = true, .prompt_tokens = 3, .cached_tokens = -1, .reasoning_tokens = -1};
        struct dialect_writer writer;
        dialect_writer_init(&writer, &dialect_chat, &request, STR("id"), STR_NONE, 1);
        dialect_writer_finish(&writer, TRACE_FINISH_STOP, &usage, &out);
        EXPECT((str_find(buf_str(&out), STR("\"usage\":{\"prompt_tokens\":3")) > 0) == asked);
        EXPECT(str_ends(buf_str(&out), STR("data: [DONE]\n\n")));
        EXPECT(str_find(buf_str(&out), STR("\"role\":\"assistant\"")) > 0);
    }
}

static void count_delta(void *context, const struct trace_delta *delta)
{
    buf_format(context, "%d:%u:%.*s:%.*s:%.*s|", delta->kind, delta->index, STR_ARGS(delta->id),
               STR_ARGS(delta->name), STR_ARGS(delta->text));
}

TEST(deltas_come_as_the_pieces_do)
{
    OWN(buf) struct buf seen = {0};
    struct dialect_reader_options options = {
        .stream = true, .on_delta = count_delta, .context = &seen};
    OWN(dialect_reader) struct dialect_reader *reader = dialect_reader_new(&dialect_chat, &options);
    EXPECT(dialect_reader_feed(
               reader,
               STR("data: {\"choices\":[{\"delta\":{\"reasoning_content\":\"r\"}}]}\n\n"
                   "data: {\"choices\":[{\"delta\":{\"content\":\"t\"}}]}\n\n"
                   "data: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":4,\"id\":\"c\","
                   "\"function\":{\"name\":\"f\",\"arguments\":\"{\"}}]}}]}\n\n"
                   "data: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":4,\"function\":"
                   "{\"arguments\":\"}\"}}]}}]}\n\n"),
               NULL) == 0);
    EXPECT_STR(buf_str(&seen), STR("1:0:::r|0:0:::t|3:0:c:f:|4:0:::{|4:0:::}|"));
    OWN(arena) struct arena arena = {0};
    struct trace_answer partial;
    dialect_reader_partial(reader, &arena, &partial);
    EXPECT_STR(partial.message.calls[0].arguments, STR("{}"));
    EXPECT_INT(partial.finish, TRACE_FINISH_NONE);
}
