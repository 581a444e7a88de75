/* The trace room: names both ways, which fates may carry a reward, what unknown looks like. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "json/json.h"
#include "test.h"
#include "trace/trace.h"

TEST(names_are_found_again)
{
    for (int i = 0; i < TRACE_FATES; i++) {
        enum trace_fate fate;
        EXPECT(trace_fate_find(str_of(trace_fate_name((enum trace_fate)i)), &fate) &&
               (int)fate == i);
    }
    for (int i = 0; i < TRACE_STAGES; i++) {
        enum trace_stage stage;
        EXPECT(trace_stage_find(str_of(trace_stage_name((enum trace_stage)i)), &stage) &&
               (int)stage == i);
    }
    for (int i = 0; i < TRACE_ROLES; i++) {
        enum trace_role role;
        EXPECT(trace_role_find(str_of(trace_role_name((enum trace_role)i)), &role) &&
               (int)role == i);
    }
    enum trace_role role;
    EXPECT(trace_role_find(STR("function"), &role) && role == TRACE_TOOL);
    EXPECT(!trace_role_find(STR("robot"), &role));
    EXPECT(!trace_role_find(STR(""), &role));
}

TEST(only_fates_of_the_agent_may_carry_a_reward)
{
    EXPECT(trace_fate_may_reward(TRACE_FATE_OK));
    EXPECT(trace_fate_may_reward(TRACE_FATE_TIMED_OUT));
    EXPECT(trace_fate_may_reward(TRACE_FATE_OUT_OF_MEMORY));
    EXPECT(!trace_fate_may_reward(TRACE_FATE_INFRA_FAILED));
    EXPECT(!trace_fate_may_reward(TRACE_FATE_UPSTREAM_FAILED));
    EXPECT(!trace_fate_may_reward(TRACE_FATE_SETUP_FAILED));
    EXPECT(!trace_fate_may_reward(TRACE_FATE_CANCELLED));
}

TEST(a_result_that_may_not_be_rewarded_says_null_never_zero)
{
    OWN(buf) struct buf out = {0};
    struct trace_result result = {.rollout = "r-1",
                                  .fate = TRACE_FATE_INFRA_FAILED,
                                  .stage = TRACE_FAILED,
                                  .failed_stage = TRACE_PROVISIONING,
                                  .reward = {.known = true, .value = 0}};
    trace_result_write(&result, &(struct json_writer){.out = &out});
    OWN(json_doc) struct json_doc doc = {0};
    EXPECT(json_read(&doc, buf_str(&out), NULL, NULL) == 0);
    struct json root = json_root(&doc);
    EXPECT_INT(json_type(json_get(root, "reward")), JSON_NULL);
    EXPECT(json_is(json_get(root, "failed_stage"), "provisioning"));
    EXPECT_INT(json_type(json_get(root, "agent_exit")), JSON_NULL);

    result.fate = TRACE_FATE_AGENT_FAILED;
    buf_clear(&out);
    trace_result_write(&result, &(struct json_writer){.out = &out});
    OWN(json_doc) struct json_doc again = {0};
    EXPECT(json_read(&again, buf_str(&out), NULL, NULL) == 0);
    EXPECT_INT(json_type(json_get(json_root(&again), "reward")), JSON_NUMBER);
}

TEST(usage_adds_up_and_unknown_adds_nothing)
{
    struct trace_usage sum = {0};
    trace_usage_add(&sum, &(struct trace_usage){0});
    EXPECT(!sum.known);
    trace_usage_add(&sum, &(struct trace_usage){true, 10, 2, -1, 1});
    trace_usage_add(&sum, &(struct trace_usage){true, 5, 1, 3, -1});
    EXPECT(sum.known);
    EXPECT_INT(sum.prompt_tokens, 15);
    EXPECT_INT(sum.completion_tokens, 3);
    EXPECT_INT(sum.cached_tokens, 3);
    EXPECT_INT(sum.reasoning_tokens, 1);
    trace_usage_add(&sum, &(struct trace_usage){true, INT64_MAX, 0, -1, -1});
    EXPECT_INT(sum.prompt_tokens, INT64_MAX);
    OWN(buf) struct buf out = {0};
    trace_usage_write(&(struct trace_usage){0}, &(struct json_writer){.out = &out});
    EXPECT_STR(buf_str(&out), STR("null"));
}

TEST(usage_reads_back_what_was_written)
{
    OWN(buf) struct buf out = {0};
    struct trace_usage usage = {true, 10, 2, -1, 1}, again;
    trace_usage_write(&usage, &(struct json_writer){.out = &out});
    OWN(json_doc) struct json_doc doc = {0};
    EXPECT(json_read(&doc, buf_str(&out), NULL, NULL) == 0);
    EXPECT(trace_usage_read(json_root(&doc), &again));
    EXPECT_INT(again.cached_tokens, -1);
    EXPECT_INT(again.reasoning_tokens, 1);
    EXPECT_INT(again.prompt_tokens, 10);
}

TEST(logprobs_are_written_short_and_exact)
{
    OWN(buf) struct buf out = {0};
    int32_t ids[] = {1, 151645};
    float logprobs[] = {-0.1f, NAN};
    struct trace_tokens tokens = {ids, 2, logprobs, 2};
    trace_tokens_write(&tokens, &(struct json_writer){.out = &out});
    EXPECT_STR(buf_str(&out), STR("{\"token_ids\":[1,151645],\"logprobs\":[-0.1,null]}"));
}

TEST(the_text_of_a_message_is_its_text_parts_in_order)
{
    OWN(arena) struct arena arena = {0};
    struct trace_part parts[] = {{TRACE_PART_TEXT, STR("a"), STR_NONE},
                                 {TRACE_PART_IMAGE, STR_NONE, STR("{}")},
                                 {TRACE_PART_TEXT, STR(""), STR_NONE},
                                 {TRACE_PART_TEXT, STR("bc"), STR_NONE}};
    struct trace_message message = {.role = TRACE_USER, .parts = parts, .part_count = 4};
    EXPECT_STR(trace_message_text(&message, &arena), STR("abc"));
    message.part_count = 1;
    EXPECT(trace_message_text(&message, &arena).data == parts[0].text.data);
    message.part_count = 0;
    EXPECT(trace_message_text(&message, &arena).data == NULL);
}

/* 6 to 9 digits of "%g", the first that lead back. */
static void float_by_printf(float value, char *text, size_t size)
{
    for (int digits = 6; digits <= 9; digits++) {
        snprintf(text, size, "%.*g", digits, (double)value);
        if (strtof(text, NULL) == value)
            return;
    }
}

TEST(a_float_is_written_as_printf_would_in_the_fewest_digits)
{
    static const float edges[] = {
        0,         -0.0f,      1,          -1,    0.5f,     1e-9f,   9.9999994e-10f,
        999999.9f, 999999.94f, 1000000,    0.1f,  0.00001f, 0.0001f, 9.999999e-5f,
        100000,    99999.99f,  123456,     1e30f, 1e-40f,   3.4e38f, -0.69314718f,
        16777215,  8388607.5f, 0.99999994f};
    char wanted[40];
    uint32_t state = 1;
    for (size_t i = 0; i < 300000; i++) {
        float value = i < COUNT(edges) ? edges[i] : 0;
        state = state * 1664525u + 1013904223u;
        uint32_t bits = state ^ state >> 15;
        if (i >= COUNT(edges) && i % 2)
            memcpy(&value, &bits, sizeof value);
        else if (i >= COUNT(edges))
            value = -expf((float)(bits % 100000) / 3000 - 22);
        if (!isfinite(value))
            continue;
        OWN(buf) struct buf out = {0};
        trace_float_write(value, &(struct json_writer){.out = &out});
        float_by_printf(value, wanted, sizeof wanted);
        EXPECT_TEXT(buf_text(&out), wanted);
    }
}

/* Dialects cut thoughts into blocks and put them together again with line ends between. */
TEST(reasoning_is_the_same_however_it_was_cut)
{
    static const struct {
        const char *left, *right;
        bool same;
    } rows[] = {{"ab c", "a\nb c", true}, {"ab", "ab\n", true},  {"ab", "", true},
                {"ab", "abc", false},     {"ab", "a\nc", false}, {"a\n\nb", "a b", true}};
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct trace_message left = {.reasoning = str_of(rows[i].left)};
        struct trace_message right = {.reasoning = str_of(rows[i].right)};
        EXPECT_INT(trace_message_same(&left, &right), rows[i].same);
        EXPECT_INT(trace_message_same(&right, &left), rows[i].same);
    }
}
