/* postern-mini's parts: addresses, answers in pieces, clipping, commands and their end. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "mini.h"
#include "test.h"

TEST(a_base_url_is_taken_apart)
{
    struct chat_url url;
    struct err err = {0};
    EXPECT(chat_url_parse("http://127.0.0.1:13131/v1/", &url, &err) == 0);
    EXPECT_TEXT(url.host, "127.0.0.1");
    EXPECT_TEXT(url.port, "13131");
    EXPECT_TEXT(url.path, "/v1");
    EXPECT(chat_url_parse("http://host", &url, &err) == 0);
    EXPECT_TEXT(url.port, "80");
    EXPECT_TEXT(url.path, "");
    EXPECT(chat_url_parse("http://[::1]:8000/a/b", &url, &err) == 0);
    EXPECT_TEXT(url.host, "::1");
    EXPECT_TEXT(url.port, "8000");
    EXPECT_TEXT(url.path, "/a/b");
    EXPECT(chat_url_parse("https://host/v1", &url, &err) < 0);
    EXPECT_TEXT(err.text, "the base URL must start with http://");
    EXPECT(chat_url_parse("http://", &url, &err) < 0);
    EXPECT(chat_url_parse("http://h:0/", &url, &err) < 0);
    EXPECT(chat_url_parse("http://h:x/", &url, &err) < 0);
}

#define STREAM                                                                                     \
    ": hi\r\n\r\ndata: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n"  \
    "data: {\"choices\":[{\"delta\":{\"reasoning_content\":\"hm\"}}]}\n\n"                         \
    "data: {\"choices\":[{\"delta\":{\"content\":\"I l\\u00f6ok\"}}]}\n\n"                         \
    "data: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":0,\"id\":\"a\",\"function\":"      \
    "{\"name\":\"bash\",\"arguments\":\"\"}}]}}]}\n\n"                                             \
    "data: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":0,\"function\":{\"arguments\":"    \
    "\"{\\\"command\\\"\"}},{\"index\":1,\"function\":{\"name\":\"bash\",\"arguments\":\"{}\"}}]}" \
    "}]}\n\n"                                                                                      \
    "data: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":0,\"function\":{\"arguments\":"    \
    "\":1}\"}}]}}]}\n\n"
#define STREAM_END                                                                                 \
    "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"tool_calls\"}]}\n\n"                    \
    "data: {\"choices\":[],\"usage\":{\"total_tokens\":5}}\n\ndata: [DONE]\n\n"

TEST(a_streamed_answer_is_the_same_however_it_is_cut)
{
    struct str whole = STR(STREAM STREAM_END);
    for (size_t piece = 1; piece <= whole.size; piece = piece * 3 + 1) {
        struct chat_answer answer = {0};
        struct chat_parser *parser = chat_parser_new(true, &answer);
        struct err err = {0};
        for (struct str rest = whole; rest.size; rest = str_from(rest, piece))
            EXPECT(chat_parser_feed(parser, str_upto(rest, piece), &err) == 0);
        EXPECT(chat_parser_end(parser, &err) == 0);
        EXPECT_STR(buf_str(&answer.text), STR("I l\xc3\xb6ok"));
        EXPECT_STR(buf_str(&answer.reasoning), STR("hm"));
        EXPECT_TEXT(answer.reasoning_key, "reasoning_content");
        EXPECT_STR(buf_str(&answer.finish), STR("tool_calls"));
        EXPECT_STR(buf_str(&answer.usage), STR("{\"total_tokens\":5}"));
        EXPECT_INT(answer.call_count, 2);
        EXPECT_STR(buf_str(&answer.calls[0].arguments), STR("{\"command\":1}"));
        EXPECT_STR(buf_str(&answer.calls[0].id), STR("a"));
        EXPECT(str_starts(buf_str(&answer.calls[1].id), STR("call_")));
        chat_parser_free(parser);
        chat_answer_deinit(&answer);
    }
}

TEST(an_answer_that_was_cut_off_is_never_complete)
{
    static const char *const cut[] = {"", STREAM, STREAM "data: [DONE]\n\n",
                                      STREAM
                                      "data: {\"choices\":[{\"delta\":{},\"finish_reason\":"
                                      "\"stop\"}]}" /* no end of line: who knows what followed */};
    for (size_t i = 0; i < COUNT(cut); i++) {
        struct chat_answer answer = {0};
        struct chat_parser *parser = chat_parser_new(true, &answer);
        struct err err = {0};
        EXPECT(chat_parser_feed(parser, str_of(cut[i]), &err) == 0);
        EXPECT(chat_parser_end(parser, &err) < 0);
        EXPECT_INT(err.kind, ERR_LOST);
        chat_parser_free(parser);
        chat_answer_deinit(&answer);
    }
    struct chat_answer answer = {0};
    struct chat_parser *parser = chat_parser_new(true, &answer);
    struct err err = {0};
    EXPECT(chat_parser_feed(parser, STR("data: {\"error\":{\"message\":\"died\"}}\n\n"), &err) < 0);
    EXPECT_TEXT(err.text, "the model server reported: died");
    chat_parser_free(parser);
    chat_answer_deinit(&answer);
}

static char *clipped(const char *text, size_t half_max, size_t piece)
{
    struct chat_clip clip = {.half_max = half_max};
    struct buf out = {0};
    for (struct str rest = str_of(text); rest.size; rest = str_from(rest, piece))
        chat_clip_add(&clip, str_upto(rest, piece));
    chat_clip_finish(&clip, &out);
    return buf_take(&out);
}

TEST(long_output_keeps_its_head_and_its_tail)
{
    for (size_t piece = 1; piece < 12; piece++) {
        OWN(mem) char *all = clipped("0123456789", 5, piece);
        EXPECT_TEXT(all, "0123456789");
        OWN(mem) char *some = clipped("0123456789ab", 3, piece);
        EXPECT_TEXT(some, "012\n[... 6 bytes left out ...]\n9ab");
        /* never half a character: each of these has three bytes */
        OWN(mem)
        char *whole = clipped("\xe2\x82\xac\xe2\x82\xac\xe2\x82\xac\xe2\x82\xac", 4, piece);
        EXPECT_TEXT(whole, "\xe2\x82\xac\n[... 6 bytes left out ...]\n\xe2\x82\xac");
    }
}

static struct mini_outcome ran(const char *text, uint32_t timeout_ms, size_t bytes_max)
{
    struct mini_command command = {.text = text,
                                   .timeout_ms = timeout_ms,
                                   .deadline_ms = NEVER,
                                   .output_bytes_max = bytes_max};
    struct mini_outcome outcome = {.code = -1};
    struct err err = {0};
    if (mini_shell_run(&command, &outcome, &err) < 0)
        test_fail(__FILE__, __LINE__, "%s", err.text);
    return outcome;
}

TEST(a_command_gives_its_output_and_code)
{
    struct mini_outcome one = ran("echo out; echo err >&2; exit 7", 10000, 1000);
    EXPECT_STR(buf_str(&one.output), STR("out\nerr\n"));
    EXPECT_INT(one.code, 7);
    EXPECT(!one.timed_out && !one.truncated);
    struct mini_outcome two = ran("kill -9 $$", 10000, 1000);
    EXPECT_INT(two.code, 137);
    struct mini_outcome three = ran("read x; echo got:$x:$?", 10000, 1000);
    EXPECT_STR(buf_str(&three.output), STR("got::1\n"));
    buf_deinit(&one.output);
    buf_deinit(&two.output);
    buf_deinit(&three.output);
}

TEST(a_huge_output_is_read_to_its_end_and_clipped)
{
    struct mini_outcome outcome =
        ran("head -c 20000000 /dev/zero | tr '\\0' x; echo end", 20000, 1000);
    EXPECT_INT(outcome.output_bytes, 20000004);
    EXPECT(outcome.truncated);
    EXPECT(outcome.output.size < 1100);
    EXPECT(str_ends(buf_str(&outcome.output), STR("xend\n")));
    buf_deinit(&outcome.output);
}

/* Killed at once; whoever has to notice may take a moment. */
static bool is_gone(long pid)
{
    OWN(mem) char *path = mem_format("/proc/%ld/stat", pid);
    for (int i = 0; i < 500; i++) {
        FILE *stat = fopen(path, "r");
        char state = 'Z';
        if (stat && fscanf(stat, "%*d (%*[^)]) %c", &state) != 1)
            state = 'Z';
        if (stat)
            fclose(stat);
        if (state == 'Z')
            return true;
        usleep(10000);
    }
    return false;
}

TEST(a_command_that_ignores_term_is_gone_after_its_timeout_with_all_its_group)
{
    /* The shell ignores it, too; or it obeys and leaves a child that does not. */
    static const char *const shells[] = {"trap '' TERM;", ""};
    for (size_t i = 0; i < COUNT(shells); i++) {
        char path[] = "/tmp/postern-mini-XXXXXX";
        OWN(fd) int file = mkstemp(path);
        EXPECT(file >= 0);
        OWN(mem)
        char *script = mem_format(
            "%s (trap '' TERM; echo began; while :; do sleep 0.05; done) & echo $! > %s; "
            "while :; do sleep 0.05; done",
            shells[i], path);
        struct mini_outcome outcome = ran(script, 3000, 1000);
        EXPECT(outcome.timed_out);
        EXPECT_STR(buf_str(&outcome.output), STR("began\n"));
        char text[32] = "";
        EXPECT(read(file, text, sizeof text - 1) > 0);
        EXPECT(is_gone(atol(text)));
        unlink(path);
        buf_deinit(&outcome.output);
    }
}

TEST(what_a_command_leaves_in_the_background_is_not_waited_for)
{
    struct mini_outcome outcome = ran("sleep 600 & echo $!", 20000, 1000);
    EXPECT_INT(outcome.code, 0);
    EXPECT(!outcome.timed_out);
    long left = atol(buf_text(&outcome.output));
    EXPECT(left > 0);
    OWN(mem) char *end_it = mem_format("kill %ld", left);
    struct mini_outcome ended = ran(end_it, 20000, 1000);
    EXPECT_INT(ended.code, 0); /* it was alive */
    buf_deinit(&outcome.output);
    buf_deinit(&ended.output);
}

TEST(the_deadline_of_the_run_ends_a_command_too)
{
    struct mini_command command = {.text = "sleep 600",
                                   .timeout_ms = 600000,
                                   .deadline_ms = clock_mono_ms() + 200,
                                   .output_bytes_max = 1000};
    struct mini_outcome outcome;
    EXPECT(mini_shell_run(&command, &outcome, NULL) == 0);
    EXPECT(outcome.timed_out);
    buf_deinit(&outcome.output);
}
