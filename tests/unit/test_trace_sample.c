/* Samples: conversations as calls.jsonl has them, the rows that come out, and what is trained. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "json/json.h"
#include "test.h"
#include "trace/sample.h"

/* ---------------------------------------------------------------- making lines */

/* A call as a line: `messages` and `answer` are JSON; ids are lists like "1,2,3", NULL: none. */
struct line {
    const char *id, *messages, *answer, *prompt, *ids, *logprobs, *more, *request_more;
    const char *state, *accepted, *done, *finish, *versions;
};

static int add(struct samples *samples, struct line line)
{
    OWN(buf) struct buf text = {0};
    struct err err = {0};
    buf_format(&text,
               "{\"call_id\":\"%s\",\"number\":%d,\"state\":\"%s\",\"accepted\":\"%s\","
               "\"done\":\"%s\"%s%s,\"request\":{\"model\":\"m\",\"messages\":[%s]%s},\"answer\":",
               line.id, atoi(line.id + 2), line.state ? line.state : "answered",
               line.accepted ? line.accepted : "", line.done ? line.done : "", line.more ? "," : "",
               line.more ? line.more : "", line.messages,
               line.request_more ? line.request_more : "");
    if (!line.answer) {
        buf_format(&text, "null}");
    } else {
        buf_format(&text, "{\"message\":%s,\"finish_reason\":\"%s\"", line.answer,
                   line.finish ? line.finish : "stop");
        if (line.prompt)
            buf_format(&text, ",\"prompt_token_ids\":[%s]", line.prompt);
        if (line.ids)
            buf_format(&text, ",\"token_ids\":[%s]", line.ids);
        if (line.logprobs)
            buf_format(&text, ",\"logprobs\":[%s]", line.logprobs);
        if (line.versions)
            buf_format(&text, ",\"policy_versions\":[%s]", line.versions);
        buf_format(&text, "}}");
    }
    int result = samples_add(samples, buf_str(&text), &err);
    if (result < 0)
        fprintf(stderr, "%s\n", err.text);
    return result;
}

static struct samples *fresh(uint32_t realign_max)
{
    return samples_new(&(struct samples_options){.realign_max = realign_max});
}

struct rows {
    struct buf text[16];
    struct json_doc doc[16];
    size_t count;
};

static void rows_read(struct rows *rows, struct samples *samples)
{
    static const struct sample_owner owner = {.rollout = "r-1",
                                              .group = "g-1",
                                              .task = "t",
                                              .agent = "a",
                                              .model = "m",
                                              .mode = "proxy",
                                              .fate = "ok",
                                              .rewarded = true,
                                              .reward = 0.5};
    samples_finish(samples);
    rows->count = samples_count(samples);
    for (size_t i = 0; i < rows->count && i < COUNT(rows->text); i++) {
        sample_write(samples, i, &owner, &(struct json_writer){.out = &rows->text[i]});
        if (json_read(&rows->doc[i], buf_str(&rows->text[i]), NULL, NULL) < 0)
            test_fail(__FILE__, __LINE__, "row %zu is not JSON", i);
    }
}

static void own_rows(struct rows *rows)
{
    for (size_t i = 0; i < COUNT(rows->text); i++) {
        buf_deinit(&rows->text[i]);
        json_doc_deinit(&rows->doc[i]);
    }
}

/* The member at a dotted path, as JSON text without blanks. */
static const char *at(struct rows *rows, size_t row, const char *path)
{
    static char out[8][4096];
    static int turn;
    char *text = out[turn++ % 8];
    struct json value = json_root(&rows->doc[row]);
    struct str rest = str_of(path);
    while (rest.data) {
        struct str key = str_cut(&rest, '.');
        long long index;
        if (json_type(value) == JSON_ARRAY && str_to_long(key, &index))
            value = json_at(value, (size_t)index);
        else
            value = json_get_str(value, key);
    }
    snprintf(text, 4096, "%.*s", STR_ARGS(json_raw(value)));
    return text;
}

#define SYSTEM "{\"role\":\"system\",\"content\":\"be good\"}"
#define USER(text) "{\"role\":\"user\",\"content\":\"" text "\"}"
#define SAID(text) "{\"role\":\"assistant\",\"content\":\"" text "\"}"
#define CALLED(id, arguments)                                                                      \
    "{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"" id                       \
    "\",\"name\":\"bash\",\"arguments\":\"" arguments "\"}]}"
#define RESULT(id, text) "{\"role\":\"tool\",\"tool_call_id\":\"" id "\",\"content\":\"" text "\"}"

/* ---------------------------------------------------------------- one conversation */

TEST(a_conversation_that_only_grows_is_one_clean_row)
{
    OWN(samples) struct samples *samples = fresh(0);
    OWN(rows) struct rows rows = {0};
    EXPECT(add(samples, (struct line){.id = "c-1",
                                      .messages = SYSTEM "," USER("go"),
                                      .answer = CALLED("x", "{\\\"command\\\": \\\"ls\\\"}"),
                                      .prompt = "1,2,3",
                                      .ids = "10,11",
                                      .logprobs = "-0.5,-0.25",
                                      .more = "\"policy_version\":7"}) == 0);
    /* The client serialised the arguments anew: it is the same message. */
    EXPECT(add(samples,
               (struct line){
                   .id = "c-2",
                   .messages = CALLED("x", "{\\\"command\\\":\\\"ls\\\"}") "," RESULT("x", "files"),
                   .answer = SAID("done"),
                   .prompt = "4,5",
                   .ids = "12",
                   .logprobs = "-1",
                   .more = "\"parent\":\"c-1\",\"shared_messages\":2,"
                           "\"shared_prompt_tokens\":5,\"policy_version\":8"}) == 0);
    rows_read(&rows, samples);
    EXPECT_INT(rows.count, 1);
    EXPECT_TEXT(at(&rows, 0, "token_ids"), "[1,2,3,10,11,4,5,12]");
    EXPECT_TEXT(at(&rows, 0, "mask"), "[0,0,0,1,1,0,0,1]");
    EXPECT_TEXT(at(&rows, 0, "logprobs"), "[0,0,0,-0.5,-0.25,0,0,-1]");
    EXPECT_TEXT(at(&rows, 0, "provenance"), "[0,0,0,1,1,2,2,1]");
    EXPECT_TEXT(at(&rows, 0, "policy_versions"), "[[3,5,7],[7,8,8]]");
    EXPECT_TEXT(at(&rows, 0, "continuity.status"), "\"clean\"");
    EXPECT_TEXT(at(&rows, 0, "branch.kind"), "\"main\"");
    EXPECT_TEXT(at(&rows, 0, "context_differs"), "[]");
    EXPECT_TEXT(at(&rows, 0, "reward"), "0.5");
    EXPECT_TEXT(at(&rows, 0, "group_id"), "\"g-1\"");
    EXPECT_TEXT(at(&rows, 0, "trained_count"), "3");
}

/* Lines that leave out what is behind a system prompt that changed, and the same lines whole. */
TEST(what_a_line_leaves_out_behind_its_system_prompt_makes_no_difference)
{
#define HOUR(hour) "{\"role\":\"system\",\"content\":\"it is " hour "\"}"
    OWN(samples) struct samples *shared = fresh(0), *whole = fresh(0);
    OWN(rows) struct rows got = {0}, want = {0};
    struct samples *const both[] = {shared, whole};
    for (size_t i = 0; i < COUNT(both); i++) {
        struct line first = {.id = "c-1",
                             .messages = HOUR("1") "," USER("go"),
                             .answer = CALLED("x", "{}"),
                             .prompt = "1,2,3",
                             .ids = "10,11",
                             .logprobs = "-0.5,-0.25"};
        struct line second = {
            .id = "c-2",
            .messages = HOUR("2") "," USER("go") "," CALLED("x", "{}") "," RESULT("x", "files"),
            .answer = SAID("done"),
            .prompt = "9,2,3,10,11,4",
            .ids = "12",
            .logprobs = "-1"};
        struct line third = {.id = "c-3",
                             .messages = HOUR("3") "," USER("go") "," CALLED("x", "{}") "," RESULT(
                                 "x", "files") "," SAID("done") "," USER("more"),
                             .answer = SAID("fine"),
                             .prompt = "8,2,3,10,11,4,12,5",
                             .ids = "13",
                             .logprobs = "-2"};
        struct line fourth = {
            .id = "c-4", /* and goes on from it, with the same hour */
            .messages = HOUR("3") "," USER("go") "," CALLED("x", "{}") "," RESULT(
                "x", "files") "," SAID("done") "," USER("more") "," SAID("fine") "," USER("again"),
            .answer = SAID("well"),
            .prompt = "8,2,3,10,11,4,12,5,13,6",
            .ids = "14",
            .logprobs = "-3"};
        if (both[i] == shared) {
            second.messages = HOUR("2") "," CALLED("x", "{}") "," RESULT("x", "files");
            second.more = "\"parent\":\"c-1\",\"shared_messages\":1,\"shared_from\":1";
            third.messages = HOUR("3") "," SAID("done") "," USER("more");
            third.more = "\"parent\":\"c-2\",\"shared_messages\":3,\"shared_from\":1";
            /* Nothing forbids to name what is the same. */
            fourth.messages = HOUR("3") "," SAID("fine") "," USER("again");
            fourth.more = "\"parent\":\"c-3\",\"shared_messages\":5,\"shared_from\":1";
        }
        EXPECT(add(both[i], first) == 0 && add(both[i], second) == 0 && add(both[i], third) == 0 &&
               add(both[i], fourth) == 0);
    }
    rows_read(&got, shared);
    rows_read(&want, whole);
    EXPECT_INT(got.count, want.count);
    EXPECT(want.count > 1 && want.count < COUNT(want.text));
    for (size_t i = 0; i < want.count; i++)
        EXPECT_STR(buf_str(&got.text[i]), buf_str(&want.text[i]));
}

TEST(weights_that_changed_within_an_answer_are_told_span_by_span)
{
    OWN(samples) struct samples *samples = fresh(0);
    OWN(rows) struct rows rows = {0};
    add(samples, (struct line){.id = "c-1",
                               .messages = USER("go"),
                               .answer = SAID("a"),
                               .prompt = "1,2",
                               .ids = "10,11,12",
                               .logprobs = "-1,-1,-1",
                               .more = "\"policy_version\":7",
                               .versions = "[0,1,7],[1,3,8],[2,9,4],[3,2,1]"});
    rows_read(&rows, samples);
    EXPECT_TEXT(at(&rows, 0, "policy_versions"), "[[2,3,7],[3,5,8]]");
    OWN(buf) struct buf summary = {0};
    samples_write_summary(samples, &(struct json_writer){.out = &summary});
    EXPECT(strstr(buf_text(&summary), "\"policy_versions\":[7,8]") != NULL);
}

TEST(reasoning_that_a_client_drops_is_still_the_same_message)
{
    OWN(samples) struct samples *samples = fresh(0);
    OWN(rows) struct rows rows = {0};
    add(samples, (struct line){.id = "c-1",
                               .messages = USER("go"),
                               .answer = "{\"role\":\"assistant\",\"reasoning\":\"hm\","
                                         "\"content\":\"yes \\n\"}",
                               .prompt = "1",
                               .ids = "2,3",
                               .logprobs = "-1,-1"});
    /* The engine's template keeps the reasoning away too, so the tokens differ. */
    add(samples, (struct line){.id = "c-2",
                               .messages = USER("go") "," SAID("yes") "," USER("more"),
                               .answer = SAID("ok"),
                               .prompt = "1,3,4",
                               .ids = "5",
                               .logprobs = "-1"});
    rows_read(&rows, samples);
    EXPECT_INT(rows.count, 2);
    EXPECT_TEXT(at(&rows, 1, "branch.kind"), "\"retokenised\"");
    EXPECT_TEXT(at(&rows, 1, "branch.from_call"), "\"c-1\"");
    EXPECT_TEXT(at(&rows, 1, "continuity.status"), "\"forked\"");
    EXPECT_TEXT(at(&rows, 1, "continuity.differences.0.position"), "1");
    EXPECT_TEXT(at(&rows, 1, "continuity.differences.0.expected_id"), "2");
    EXPECT_TEXT(at(&rows, 1, "continuity.differences.0.got_id"), "3");
    EXPECT_TEXT(at(&rows, 1, "continuity.differences.0.inside"), "\"completion\"");
    EXPECT_TEXT(at(&rows, 1, "continuity.differences.0.expected_span"), "[1,3]");
    EXPECT_TEXT(at(&rows, 1, "continuity.differences.0.got_span"), "[1,2]");
    EXPECT_TEXT(at(&rows, 0, "token_ids"), "[1,2,3]");
    EXPECT_TEXT(at(&rows, 0, "mask"), "[0,1,1]");
    EXPECT_TEXT(at(&rows, 1, "token_ids"), "[1,3,4,5]");
    EXPECT_TEXT(at(&rows, 1, "mask"), "[0,0,0,1]");
    EXPECT_TEXT(at(&rows, 1, "provenance"), "[0,3,2,1]");
    EXPECT_TEXT(at(&rows, 1, "context_differs"), "[]");
}

TEST(a_small_difference_may_be_bridged_and_is_marked)
{
    OWN(samples) struct samples *samples = fresh(4);
    OWN(rows) struct rows rows = {0};
    add(samples, (struct line){.id = "c-1",
                               .messages = USER("go"),
                               .answer = CALLED("x", "{\\\"a\\\": 1}"),
                               .prompt = "1,2",
                               .ids = "10,11,12,99",
                               .logprobs = "-1,-2,-3,-4"});
    add(samples,
        (struct line){.id = "c-2",
                      .messages = USER("go") "," CALLED("x", "{\\\"a\\\":1}") "," RESULT("x", "r"),
                      .answer = SAID("ok"),
                      .prompt = "1,2,10,13,99,5,6",
                      .ids = "20",
                      .logprobs = "-5"});
    add(samples, (struct line){.id = "c-3",
                               .messages = USER("go") "," CALLED("x", "{\\\"a\\\":1}") "," RESULT(
                                   "x", "r") "," SAID("ok") "," USER("on"),
                               .answer = SAID("bye"),
                               .prompt = "1,2,10,13,99,5,6,20,7",
                               .ids = "21",
                               .logprobs = "-6"});
    rows_read(&rows, samples);
    EXPECT_INT(rows.count, 1);
    EXPECT_TEXT(at(&rows, 0, "token_ids"), "[1,2,10,11,12,99,5,6,20,7,21]");
    EXPECT_TEXT(at(&rows, 0, "mask"), "[0,0,1,1,1,1,0,0,1,0,1]");
    EXPECT_TEXT(at(&rows, 0, "logprobs"), "[0,0,-1,-2,-3,-4,0,0,-5,0,-6]");
    EXPECT_TEXT(at(&rows, 0, "continuity.status"), "\"realigned\"");
    EXPECT_TEXT(at(&rows, 0, "context_differs"), "[[8,9],[10,11]]");
    EXPECT(strstr(at(&rows, 0, "continuity.differences.0.sampled_text"), ": 1}") != NULL);
    EXPECT(strstr(at(&rows, 0, "continuity.differences.0.sent_back_text"), ":1}") != NULL);
}

TEST(without_leave_the_same_difference_forks_and_every_context_is_exact)
{
    OWN(samples) struct samples *samples = fresh(0);
    OWN(rows) struct rows rows = {0};
    add(samples, (struct line){.id = "c-1",
                               .messages = USER("go"),
                               .answer = SAID("a"),
                               .prompt = "1,2",
                               .ids = "10,11,12,99",
                               .logprobs = "-1,-2,-3,-4"});
    add(samples, (struct line){.id = "c-2",
                               .messages = USER("go") "," SAID("a") "," USER("b"),
                               .answer = SAID("ok"),
                               .prompt = "1,2,10,13,99,5",
                               .ids = "20",
                               .logprobs = "-5"});
    rows_read(&rows, samples);
    EXPECT_INT(rows.count, 2);
    EXPECT_TEXT(at(&rows, 1, "token_ids"), "[1,2,10,13,99,5,20]");
    /* 10 was sampled and is trained in the other row; 13, 99 stand where sampled ones stood. */
    EXPECT_TEXT(at(&rows, 1, "provenance"), "[0,0,1,3,3,2,1]");
    EXPECT_TEXT(at(&rows, 1, "mask"), "[0,0,0,0,0,0,1]");
    EXPECT_TEXT(at(&rows, 1, "branch.from_sample"), "0");
}

TEST(a_fork_keeps_the_turns_before_it)
{
    OWN(samples) struct samples *samples = fresh(0);
    OWN(rows) struct rows rows = {0};
    add(samples, (struct line){.id = "c-1",
                               .messages = USER("1"),
                               .answer = SAID("a"),
                               .prompt = "1",
                               .ids = "10",
                               .logprobs = "-1"});
    add(samples, (struct line){.id = "c-2",
                               .messages = USER("1") "," SAID("a") "," USER("2"),
                               .answer = SAID("b"),
                               .prompt = "1,10,2",
                               .ids = "11,12",
                               .logprobs = "-1,-1"});
    add(samples,
        (struct line){.id = "c-3",
                      .messages = USER("1") "," SAID("a") "," USER("2") "," SAID("b") "," USER("3"),
                      .answer = SAID("c"),
                      .prompt = "1,10,2,11,77,3",
                      .ids = "13",
                      .logprobs = "-1"});
    rows_read(&rows, samples);
    EXPECT_INT(rows.count, 2);
    EXPECT_TEXT(at(&rows, 0, "mask"), "[0,1,0,1,1]");
    EXPECT_TEXT(at(&rows, 1, "token_ids"), "[1,10,2,11,77,3,13]");
    EXPECT_TEXT(at(&rows, 1, "mask"), "[0,0,0,0,0,0,1]");
    EXPECT_TEXT(at(&rows, 1, "turns.0.trained"), "false");
    EXPECT_TEXT(at(&rows, 1, "turns.1.call_id"), "\"c-3\"");
}

TEST(arguments_that_a_client_completes_are_the_same_call_by_its_id)
{
    OWN(samples) struct samples *samples = fresh(0);
    OWN(rows) struct rows rows = {0};
    add(samples, (struct line){.id = "c-1",
                               .messages = USER("1"),
                               .answer = CALLED("x", "{\\\"a\\\":1}"),
                               .prompt = "1",
                               .ids = "10",
                               .logprobs = "-1"});
    add(samples, (struct line){.id = "c-2",
                               .messages = USER("1") "," CALLED(
                                   "x", "{\\\"a\\\":1,\\\"all\\\":false}") "," RESULT("x", "r"),
                               .answer = SAID("b"),
                               .prompt = "1,11,2",
                               .ids = "12",
                               .logprobs = "-1"});
    /* Another id is another call. */
    add(samples,
        (struct line){.id = "c-3",
                      .messages = USER("1") "," CALLED("y", "{\\\"a\\\":2}") "," RESULT("y", "r"),
                      .answer = SAID("b"),
                      .prompt = "1,13,2",
                      .ids = "14",
                      .logprobs = "-1"});
    rows_read(&rows, samples);
    EXPECT_INT(rows.count, 3);
    EXPECT_TEXT(at(&rows, 1, "branch.kind"), "\"retokenised\"");
    EXPECT_TEXT(at(&rows, 1, "continuity.differences.0.expected_from"), "\"c-1\"");
    EXPECT(strstr(at(&rows, 1, "continuity.differences.0.sent_back_text"), "all") != NULL);
    EXPECT_TEXT(at(&rows, 2, "branch.kind"), "\"other\"");
}

/* ---------------------------------------------------------------- branches */

TEST(a_sub_agent_is_known_by_the_arguments_that_started_it)
{
    OWN(samples) struct samples *samples = fresh(0);
    OWN(rows) struct rows rows = {0};
    add(samples, (struct line){.id = "c-1",
                               .messages = SYSTEM "," USER("go"),
                               .answer = CALLED("t1", "{\\\"prompt\\\":\\\"count the files\\\"}"),
                               .prompt = "1",
                               .ids = "2",
                               .logprobs = "-1"});
    add(samples, (struct line){.id = "c-2",
                               .messages = "{\"role\":\"system\",\"content\":\"a helper\"}," USER(
                                   "count the files"),
                               .answer = SAID("three"),
                               .prompt = "50",
                               .ids = "51",
                               .logprobs = "-1"});
    add(samples,
        (struct line){
            .id = "c-3",
            .messages = SYSTEM "," USER("go") "," CALLED(
                "t1", "{\\\"prompt\\\":\\\"count the files\\\"}") "," RESULT("t1", "three"),
            .answer = SAID("done"),
            .prompt = "1,2,3",
            .ids = "4",
            .logprobs = "-1"});
    rows_read(&rows, samples);
    EXPECT_INT(rows.count, 2);
    EXPECT_TEXT(at(&rows, 0, "branch.kind"), "\"sub_agent\"");
    EXPECT_TEXT(at(&rows, 0, "branch.from_call"), "\"c-1\"");
    EXPECT_TEXT(at(&rows, 0, "branch.tool_call_id"), "\"t1\"");
    EXPECT_TEXT(at(&rows, 1, "branch.kind"), "\"main\"");
    EXPECT_TEXT(at(&rows, 1, "mask"), "[0,1,0,1]");
}

TEST(a_history_replaced_by_its_summary_is_a_compaction)
{
    OWN(samples) struct samples *samples = fresh(0);
    OWN(rows) struct rows rows = {0};
    add(samples, (struct line){.id = "c-1",
                               .messages = SYSTEM "," USER("go"),
                               .answer = SAID("working on it"),
                               .prompt = "1",
                               .ids = "2",
                               .logprobs = "-1",
                               .request_more = ",\"tools\":[{\"name\":\"bash\"}]"});
    add(samples, (struct line){.id = "c-2",
                               .messages = SYSTEM
                               "," USER("go") "," SAID("working on it") "," USER("summarise"),
                               .answer = SAID("so far the file was made"),
                               .prompt = "1,2,3",
                               .ids = "4",
                               .logprobs = "-1",
                               .more = "\"side\":true"});
    add(samples, (struct line){.id = "c-3",
                               .messages = SYSTEM "," USER("before: so far the file was made"),
                               .answer = SAID("done"),
                               .prompt = "1,5",
                               .ids = "6",
                               .logprobs = "-1"});
    rows_read(&rows, samples);
    EXPECT_INT(rows.count, 2);
    EXPECT_TEXT(at(&rows, 0, "mask"), "[0,1]");
    EXPECT_TEXT(at(&rows, 1, "branch.kind"), "\"compaction\"");
    EXPECT_TEXT(at(&rows, 1, "branch.summary_call"), "\"c-2\"");
    EXPECT_TEXT(at(&rows, 1, "branch.from_call"), "\"c-1\"");
    OWN(buf) struct buf summary = {0};
    samples_write_summary(samples, &(struct json_writer){.out = &summary});
    EXPECT(strstr(buf_text(&summary), "\"excluded\":{\"side\":1}") != NULL);
    EXPECT(strstr(buf_text(&summary), "\"branches\":{\"main\":1,\"compaction\":1}") != NULL);
}

TEST(a_history_that_was_edited_is_a_branch)
{
    OWN(samples) struct samples *samples = fresh(0);
    OWN(rows) struct rows rows = {0};
    add(samples, (struct line){.id = "c-1",
                               .messages = USER("it is noon"),
                               .answer = SAID("a"),
                               .prompt = "1",
                               .ids = "10",
                               .logprobs = "-1"});
    add(samples, (struct line){.id = "c-2",
                               .messages = USER("it is late") "," SAID("a") "," USER("2"),
                               .answer = SAID("b"),
                               .prompt = "9,10,2",
                               .ids = "11",
                               .logprobs = "-1"});
    rows_read(&rows, samples);
    EXPECT_INT(rows.count, 2);
    EXPECT_TEXT(at(&rows, 1, "branch.kind"), "\"edited\"");
    EXPECT_TEXT(at(&rows, 1, "branch.from_call"), "\"c-1\"");
    EXPECT_TEXT(at(&rows, 1, "continuity.status"), "\"forked\"");
    EXPECT_TEXT(at(&rows, 1, "continuity.differences.0.inside"), "\"prompt\"");
    EXPECT_TEXT(at(&rows, 1, "continuity.differences.0.position"), "0");
}

TEST(each_sampled_token_is_trained_in_exactly_one_row)
{
    OWN(samples) struct samples *samples = fresh(0);
    OWN(rows) struct rows rows = {0};
    add(samples, (struct line){.id = "c-1",
                               .messages = USER("1"),
                               .answer = SAID("a"),
                               .prompt = "1",
                               .ids = "10,11",
                               .logprobs = "-1,-1"});
    /* Two go on from the same turn. */
    add(samples, (struct line){.id = "c-2",
                               .messages = USER("1") "," SAID("a") "," USER("x"),
                               .answer = SAID("b"),
                               .prompt = "1,10,11,2",
                               .ids = "12",
                               .logprobs = "-1"});
    add(samples, (struct line){.id = "c-3",
                               .messages = USER("1") "," SAID("a") "," USER("y"),
                               .answer = SAID("c"),
                               .prompt = "1,10,11,3",
                               .ids = "13",
                               .logprobs = "-1"});
    rows_read(&rows, samples);
    EXPECT_INT(rows.count, 2);
    EXPECT_TEXT(at(&rows, 0, "mask"), "[0,1,1,0,1]");
    EXPECT_TEXT(at(&rows, 1, "mask"), "[0,0,0,0,1]");
    EXPECT_TEXT(at(&rows, 1, "provenance"), "[0,1,1,2,1]");
    EXPECT_TEXT(at(&rows, 1, "branch.kind"), "\"edited\"");
}

/* ---------------------------------------------------------------- what is left out */

TEST(broken_and_superseded_answers_are_not_trained)
{
    OWN(samples) struct samples *samples = fresh(0);
    OWN(rows) struct rows rows = {0};
    add(samples,
        (struct line){.id = "c-1", .messages = USER("1"), .answer = NULL, .state = "broken"});
    add(samples, (struct line){.id = "c-2",
                               .messages = USER("1"),
                               .answer = SAID("first"),
                               .prompt = "1",
                               .ids = "10",
                               .logprobs = "-1",
                               .accepted = "2026-01-01T00:00:00.000Z",
                               .done = "2026-01-01T00:00:01.000Z"});
    add(samples, (struct line){.id = "c-3",
                               .messages = USER("1"),
                               .answer = SAID("second"),
                               .prompt = "1",
                               .ids = "11",
                               .logprobs = "-1",
                               .accepted = "2026-01-01T00:00:02.000Z",
                               .done = "2026-01-01T00:00:03.000Z"});
    rows_read(&rows, samples);
    EXPECT_INT(rows.count, 1);
    EXPECT_TEXT(at(&rows, 0, "token_ids"), "[1,11]");
    EXPECT_TEXT(at(&rows, 0, "branch.kind"), "\"main\"");
    OWN(buf) struct buf summary = {0};
    samples_write_summary(samples, &(struct json_writer){.out = &summary});
    EXPECT(strstr(buf_text(&summary), "\"excluded\":{\"broken\":1,\"superseded\":1}") != NULL);
}

TEST(asked_twice_at_once_is_no_retry)
{
    OWN(samples) struct samples *samples = fresh(0);
    OWN(rows) struct rows rows = {0};
    add(samples, (struct line){.id = "c-1",
                               .messages = USER("1"),
                               .answer = SAID("first"),
                               .prompt = "1",
                               .ids = "10",
                               .logprobs = "-1",
                               .accepted = "2026-01-01T00:00:00.000Z",
                               .done = "2026-01-01T00:00:05.000Z"});
    add(samples, (struct line){.id = "c-2",
                               .messages = USER("1"),
                               .answer = SAID("second"),
                               .prompt = "1",
                               .ids = "11",
                               .logprobs = "-1",
                               .accepted = "2026-01-01T00:00:02.000Z",
                               .done = "2026-01-01T00:00:06.000Z"});
    rows_read(&rows, samples);
    EXPECT_INT(rows.count, 2);
    EXPECT_TEXT(at(&rows, 1, "branch.kind"), "\"resampled\"");
}

TEST(calls_without_tokens_are_rows_of_messages_that_say_why)
{
    OWN(samples) struct samples *samples = fresh(0);
    OWN(rows) struct rows rows = {0};
    add(samples, (struct line){.id = "c-1", .messages = USER("1"), .answer = SAID("a")});
    add(samples, (struct line){.id = "c-2",
                               .messages = USER("1") "," SAID("a") "," USER("2"),
                               .answer = SAID("b"),
                               .finish = "length"});
    rows_read(&rows, samples);
    EXPECT_INT(rows.count, 1);
    EXPECT_TEXT(at(&rows, 0, "kind"), "\"messages\"");
    EXPECT_TEXT(at(&rows, 0, "token_ids"), "null");
    EXPECT_TEXT(at(&rows, 0, "note"), "\"call c-1: it has no token ids\"");
    EXPECT_TEXT(at(&rows, 0, "truncated"), "true");
    EXPECT_TEXT(at(&rows, 0, "messages.1.sampled"), "true");
    EXPECT_TEXT(at(&rows, 0, "messages.1.trained"), "true");
    EXPECT_TEXT(at(&rows, 0, "messages.2.role"), "\"user\"");
}

TEST(arrays_that_do_not_fit_are_refused_by_name)
{
    const struct {
        const char *prompt, *ids, *logprobs, *note;
    } cases[] = {
        {"1", "2,3", "-1", "\"call c-1: it has 2 token ids but 1 log-probabilities\""},
        {"1", "2", NULL, "\"call c-1: it has 1 token ids but 0 log-probabilities\""},
        {NULL, "2", "-1",
         "\"call c-1: it has token ids of its completion but none of its prompt\""},
        {"1", "-2", "-1", "\"call c-1: its token ids are not all ids\""},
        {"1", "2", "null", "\"call c-1: its log-probabilities are not all finite numbers\""},
        {"1", "2", "1e999", "\"call c-1: its log-probabilities are not all finite numbers\""},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        OWN(samples) struct samples *samples = fresh(0);
        OWN(rows) struct rows rows = {0};
        add(samples, (struct line){.id = "c-1",
                                   .messages = USER("1"),
                                   .answer = SAID("a"),
                                   .prompt = cases[i].prompt,
                                   .ids = cases[i].ids,
                                   .logprobs = cases[i].logprobs});
        rows_read(&rows, samples);
        EXPECT_INT(rows.count, 1);
        EXPECT_TEXT(at(&rows, 0, "kind"), "\"messages\"");
        EXPECT_TEXT(at(&rows, 0, "note"), cases[i].note);
    }
}

/* Its ids cannot be known from a line that does not say them. */
TEST(a_prompt_that_goes_on_from_tokens_that_are_none_is_refused)
{
    OWN(samples) struct samples *samples = fresh(0);
    OWN(rows) struct rows rows = {0};
    add(samples, (struct line){.id = "c-1",
                               .messages = USER("1"),
                               .answer = SAID("a"),
                               .prompt = "1,\"x\",3",
                               .ids = "4",
                               .logprobs = "-1"});
    add(samples,
        (struct line){.id = "c-2",
                      .messages = SAID("a") "," USER("2"),
                      .answer = SAID("b"),
                      .prompt = "5",
                      .ids = "6",
                      .logprobs = "-1",
                      .more =
                          "\"parent\":\"c-1\",\"shared_messages\":1,\"shared_prompt_tokens\":4"});
    rows_read(&rows, samples);
    EXPECT_INT(rows.count, 1);
    EXPECT_TEXT(at(&rows, 0, "kind"), "\"messages\"");
    EXPECT_TEXT(at(&rows, 0, "note"), "\"call c-1: its token ids are not all ids\"");
}

/* Lines that leave out the tools their parent has, after a sub-agent's that has others. */
TEST(tools_are_those_of_the_last_request_also_when_its_line_leaves_them_out)
{
    OWN(samples) struct samples *samples = fresh(0);
    OWN(buf) struct buf text = {0};
    add(samples, (struct line){.id = "c-1",
                               .messages = USER("1"),
                               .answer = SAID("a"),
                               .request_more = ",\"tools\":[{\"name\":\"mine\"}]"});
    add(samples, (struct line){.id = "c-2",
                               .messages = USER("other"),
                               .answer = SAID("x"),
                               .request_more = ",\"tools\":[{\"name\":\"theirs\"}]"});
    for (int i = 3; i < 5; i++)
        add(samples, (struct line){.id = i == 3 ? "c-3" : "c-4",
                                   .messages = SAID("a") "," USER("2"),
                                   .answer = SAID("b"),
                                   .more = i == 3 ? "\"parent\":\"c-1\",\"shared_messages\":1,"
                                                    "\"shared_tools\":true"
                                                  : "\"parent\":\"c-3\",\"shared_messages\":3,"
                                                    "\"shared_tools\":true"});
    samples_finish(samples);
    struct json_writer out = {.out = &text};
    json_begin_object(&out);
    samples_write_nodes(samples, &out);
    json_end_object(&out);
    EXPECT(str_find(buf_str(&text), STR("\"name\":\"mine\"")) >= 0);
    EXPECT(str_find(buf_str(&text), STR("theirs")) < 0);
}

TEST(a_side_call_that_is_gone_on_from_is_a_turn)
{
    OWN(samples) struct samples *samples = fresh(0);
    OWN(rows) struct rows rows = {0};
    add(samples, (struct line){.id = "c-1",
                               .messages = USER("1"),
                               .answer = SAID("a"),
                               .prompt = "1",
                               .ids = "10",
                               .logprobs = "-1"});
    add(samples, (struct line){.id = "c-2",
                               .messages = USER("1") "," SAID("a") "," USER("2"),
                               .answer = SAID("b"),
                               .prompt = "1,10,2",
                               .ids = "11",
                               .logprobs = "-1",
                               .more = "\"side\":true"});
    add(samples,
        (struct line){.id = "c-3",
                      .messages = USER("1") "," SAID("a") "," USER("2") "," SAID("b") "," USER("3"),
                      .answer = SAID("c"),
                      .prompt = "1,10,2,11,3",
                      .ids = "12",
                      .logprobs = "-1"});
    rows_read(&rows, samples);
    EXPECT_INT(rows.count, 1);
    EXPECT_TEXT(at(&rows, 0, "mask"), "[0,1,0,1,0,1]");
}

TEST(bad_lines_are_refused_and_harm_nothing)
{
    static const char *const lines[] = {
        "",
        "{",
        "[]",
        "{}",
        "{\"call_id\":7}",
        "{\"call_id\":\"c-9\",\"parent\":\"nobody\"}",
        "{\"call_id\":\"c-9\",\"parent\":\"c-1\",\"shared_messages\":99,\"request\":{}}",
        "{\"call_id\":\"c-9\",\"parent\":\"c-1\",\"shared_from\":1,\"request\":{\"messages\":[]}}",
        "{\"call_id\":\"c-9\",\"parent\":\"c-1\",\"shared_from\":-1,\"request\":{}}",
        "{\"call_id\":\"c-9\",\"parent\":\"c-1\",\"shared_from\":1,\"shared_messages\":1,"
        "\"request\":"
        "{\"messages\":[{\"role\":\"user\",\"content\":\"2\"}]}}",
        "{\"call_id\":\"c-9\",\"state\":\"answered\",\"request\":{\"messages\":[7]}}",
        "{\"call_id\":\"c-9\",\"state\":\"answered\",\"request\":{\"messages\":[]},\"answer\":5}",
        "{\"call_id\":\"c-1\"}",
    };
    OWN(samples) struct samples *samples = fresh(0);
    OWN(rows) struct rows rows = {0};
    add(samples, (struct line){.id = "c-1",
                               .messages = USER("1"),
                               .answer = SAID("a"),
                               .prompt = "1",
                               .ids = "10",
                               .logprobs = "-1"});
    for (size_t i = 0; i < COUNT(lines); i++) {
        struct err err = {0};
        EXPECT(samples_add(samples, str_of(lines[i]), &err) < 0);
        EXPECT(err.text[0] != 0);
    }
    /* Tokens that refer to what is not there are refused, the call is kept. */
    add(samples, (struct line){.id = "c-2",
                               .messages = USER("x"),
                               .answer = SAID("a"),
                               .prompt = "1",
                               .ids = "10",
                               .logprobs = "-1",
                               .more = "\"parent\":\"c-1\",\"shared_prompt_tokens\":3"});
    rows_read(&rows, samples);
    EXPECT_INT(rows.count, 2);
    EXPECT_TEXT(at(&rows, 1, "kind"), "\"messages\"");
}

/* ---------------------------------------------------------------- size */

/* 400 turns whose prompts grow: the work must not grow with their square. */
TEST_WITHIN(a_long_conversation_is_linear_in_what_is_new, 60)
{
    OWN(samples) struct samples *samples = fresh(0);
    OWN(buf) struct buf text = {0}, row = {0};
    char id[32] = "", last[32] = "";
    size_t length = 0;
    for (int i = 0; i < 400; i++) {
        buf_clear(&text);
        snprintf(id, sizeof id, "c-%d", i);
        buf_format(&text, "{\"call_id\":\"%s\",\"state\":\"answered\"", id);
        if (i)
            buf_format(&text,
                       ",\"parent\":\"%s\",\"shared_messages\":%d,\"shared_prompt_tokens\":%zu",
                       last, i == 1 ? 1 : 2 * i - 1, length);
        buf_format(&text, ",\"request\":{\"messages\":[");
        if (i)
            buf_format(&text, "{\"role\":\"assistant\",\"content\":\"a%d\"},", i - 1);
        buf_format(&text,
                   "{\"role\":\"user\",\"content\":\"u%d\"}]},\"answer\":{\"message\":{\"role\":"
                   "\"assistant\",\"content\":\"a%d\"},\"prompt_token_ids\":[",
                   i, i);
        for (int k = 0; k < 100; k++)
            buf_format(&text, "%s%d", k ? "," : "", i * 100 + k);
        buf_format(&text, "],\"token_ids\":[1,2,3],\"logprobs\":[-1,-1,-1]}}");
        length += 103;
        memcpy(last, id, sizeof last);
        struct err err = {0};
        if (samples_add(samples, buf_str(&text), &err) < 0)
            test_fail(__FILE__, __LINE__, "%s", err.text);
    }
    samples_finish(samples);
    EXPECT_INT(samples_count(samples), 1);
    sample_write(samples, 0, &(struct sample_owner){0}, &(struct json_writer){.out = &row});
    OWN(json_doc) struct json_doc doc = {0};
    EXPECT(json_read(&doc, buf_str(&row), NULL, NULL) == 0);
    EXPECT_INT(json_int_or(json_get(json_root(&doc), "token_count"), 0), 400 * 103);
    EXPECT_INT(json_int_or(json_get(json_root(&doc), "trained_count"), 0), 1200);
}

/* ---------------------------------------------------------------- the binary form */

static uint64_t u64_at(struct str bytes, size_t place)
{
    uint64_t value;
    memcpy(&value, bytes.data + place, 8);
    return value;
}

TEST(the_binary_form_says_what_the_line_says)
{
    OWN(samples) struct samples *samples = fresh(0);
    OWN(rows) struct rows rows = {0};
    OWN(sample_binary) struct sample_binary binary = {0};
    OWN(buf) struct buf file = {0};
    add(samples, (struct line){.id = "c-1",
                               .messages = USER("1"),
                               .answer = SAID("a"),
                               .prompt = "1,2",
                               .ids = "10",
                               .logprobs = "-0.125",
                               .more = "\"policy_version\":-3"});
    add(samples, (struct line){.id = "c-2", .messages = USER("9"), .answer = SAID("b")});
    rows_read(&rows, samples);
    EXPECT_INT(rows.count, 2);
    struct err err = {0};
    for (size_t i = 0; i < 2; i++)
        EXPECT(sample_binary_add(&binary, buf_str(&rows.text[i]), &err) == 0);
    sample_binary_head(&binary, &file);
    buf_str_append(&file, buf_str(&binary.records));
    struct str bytes = buf_str(&file);
    EXPECT(str_starts(bytes, STR("POSTERNS")));
    EXPECT_INT(u64_at(bytes, 16), 2);
    EXPECT_INT(u64_at(bytes, 40), bytes.size);
    size_t record = u64_at(bytes, 64);
    EXPECT_INT(record % 8, 0);
    EXPECT_INT(u64_at(bytes, record + 16), 3);
    int32_t ids[3];
    float logprobs[3];
    memcpy(ids, bytes.data + record + u64_at(bytes, record + 48), 12);
    memcpy(logprobs, bytes.data + record + u64_at(bytes, record + 56), 12);
    EXPECT(ids[0] == 1 && ids[1] == 2 && ids[2] == 10);
    EXPECT(logprobs[0] == 0 && logprobs[2] == -0.125f);
    EXPECT_INT(bytes.data[record + u64_at(bytes, record + 64) + 2], 1);
    EXPECT_INT((int64_t)u64_at(bytes, record + u64_at(bytes, record + 80) + 16), -3);
    struct str meta =
        str_make(bytes.data + record + u64_at(bytes, record + 96), u64_at(bytes, record + 104));
    OWN(json_doc) struct json_doc doc = {0};
    EXPECT(json_read(&doc, meta, NULL, NULL) == 0);
    EXPECT(json_is(json_get(json_root(&doc), "rollout_id"), "r-1"));
    EXPECT(!json_exists(json_get(json_root(&doc), "token_ids")));
    size_t second = u64_at(bytes, 72);
    EXPECT_INT(second, record + u64_at(bytes, record));
    EXPECT_INT(u64_at(bytes, second + 16), 0);

    EXPECT(sample_binary_add(&binary, STR("{\"kind\":\"tokens\",\"token_ids\":[1],\"mask\":[]}"),
                             &err) < 0);
    EXPECT_INT(binary.count, 2);
}
