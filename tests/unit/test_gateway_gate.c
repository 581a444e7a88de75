#include <stdio.h>
#include <stdlib.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/mem.h"
#include "gateway/gate.h"
#include "json/json.h"
#include "loop/loop.h"
#include "test.h"

/* The gate and its lane share one virtual loop here: time moves by itself, so lease and deadline
 * tests take no real time. test_two_lanes below uses real threads. */
struct caller {
    struct gate_call *call;
    struct buf said;
    bool done;
};

/* Before its first word. */
static void note_taken(struct caller *caller)
{
    int64_t policy;
    if (!caller->said.size && gate_call_policy(caller->call, &policy))
        buf_format(&caller->said, "taken:%lld ", (long long)policy);
}
static void finish(struct caller *caller)
{
    caller->done = true;
    gate_call_close(caller->call);
}
static void on_answer(void *context, struct str body)
{
    struct caller *caller = context;
    note_taken(caller);
    buf_format(&caller->said, "answer:%.*s ", STR_ARGS(body));
    finish(caller);
}
static void on_chunk(void *context, struct str bytes)
{
    struct caller *caller = context;
    note_taken(caller);
    buf_format(&caller->said, "chunk:%.*s ", STR_ARGS(bytes));
    gate_call_consumed(caller->call, bytes.size);
}
static void on_end(void *context)
{
    struct caller *caller = context;
    note_taken(caller);
    buf_format(&caller->said, "end ");
    finish(caller);
}
static void on_fail(void *context, const struct err *err, int status, struct str type,
                    const char *text)
{
    (void)text;
    struct caller *caller = context;
    note_taken(caller);
    (void)err;
    buf_format(&caller->said, "fail:%d:%.*s ", status, STR_ARGS(type));
    finish(caller);
}
static void on_broken(void *context, const struct err *err)
{
    struct caller *caller = context;
    note_taken(caller);
    (void)err;
    buf_format(&caller->said, "broken ");
    finish(caller);
}
static void write_payload(void *payload, bool raw, struct json_writer *out)
{
    if (!raw)
        return;
    json_set_text(out, "raw", payload);
}

static void spin(struct loop *loop)
{
    for (int i = 0; i < 20; i++)
        loop_once(loop, 0);
}

static void hold(struct gate *gate, struct caller *caller, const char *call, const char *rollout,
                 const char *group, uint64_t deadline_ms)
{
    struct err err = {0};
    *caller = (struct caller){0};
    struct gate_hold order = {.call_id = call,
                              .rollout_id = rollout,
                              .group_id = group,
                              .turn = 3,
                              .deadline_ms = deadline_ms,
                              .payload = mem_dup("{}"),
                              .write = write_payload,
                              .free_payload = free,
                              .on_answer = on_answer,
                              .on_chunk = on_chunk,
                              .on_end = on_end,
                              .on_fail = on_fail,
                              .on_broken = on_broken,
                              .context = caller};
    caller->call = gate_hold(gate, gate_loop(gate), &order, &err);
    spin(gate_loop(gate));
}

struct taken {
    struct buf ids;
    struct buf last; /* the last call's object */
    char lease[32];
    bool came;
};

static void on_calls(void *context, struct gate_work *const *calls, size_t count)
{
    struct taken *taken = context;
    taken->came = true;
    for (size_t i = 0; i < count; i++) {
        buf_format(&taken->ids, "%s ", gate_work_call_id(calls[i]));
        buf_clear(&taken->last);
        struct json_writer out = {.out = &taken->last};
        gate_work_write(calls[i], true, &out);
        struct json_doc doc = {0};
        struct err err = {0};
        if (json_read(&doc, buf_str(&taken->last), NULL, &err) == 0) {
            struct arena arena = {0};
            struct str lease = json_str(json_get(json_root(&doc), "lease"), &arena);
            snprintf(taken->lease, sizeof taken->lease, "%.*s", STR_ARGS(lease));
            arena_deinit(&arena);
        }
        json_doc_deinit(&doc);
    }
}

static void taken_deinit(struct taken *taken)
{
    buf_deinit(&taken->ids);
    buf_deinit(&taken->last);
}

static void nothing(struct loop_timer *timer)
{
    *(bool *)timer->context = true;
}

static void pass_ms(struct loop *loop, uint64_t ms)
{
    bool over = false;
    struct loop_timer timer = {0};
    loop_timer_start(loop, &timer, ms, nothing, &over);
    while (!over)
        loop_once(loop, 1000);
    spin(loop);
}

static struct taken take(struct gate *gate, struct gate_take what)
{
    struct taken taken = {0};
    struct err err = {0};
    (void)gate_take(gate, &what, on_calls, &taken, &err);
    while (!taken.came)
        loop_once(gate_loop(gate), 1000);
    spin(gate_loop(gate));
    return taken;
}

#define GATE                                                                                       \
    struct err err = {0};                                                                          \
    struct loop *loop = loop_new_virtual(&err);                                                    \
    EXPECT(loop);                                                                                  \
    struct gate *gate = gate_new(loop, NULL)
#define GATE_END                                                                                   \
    gate_free(gate);                                                                               \
    spin(loop);                                                                                    \
    loop_free(loop)

TEST(a_held_call_is_taken_and_answered_once)
{
    GATE;
    struct caller caller;
    gate_set_policy(gate, 7);
    hold(gate, &caller, "c-1", "r-1", "g-1", 0);
    struct taken taken = take(gate, (struct gate_take){.max = 8});
    EXPECT_TEXT(buf_text(&taken.ids), "c-1 ");
    EXPECT(str_find(buf_str(&taken.last), STR("\"policy_version\":7")) > 0);
    EXPECT(str_find(buf_str(&taken.last), STR("\"group_id\":\"g-1\"")) > 0);
    EXPECT_INT(gate_answer(gate, "c-1", taken.lease, STR("hello"), &err), 0);
    spin(loop);
    EXPECT_TEXT(buf_text(&caller.said), "taken:7 answer:hello ");
    EXPECT_INT(gate_answer(gate, "c-1", taken.lease, STR("again"), &err), -1);
    EXPECT_INT(err.kind, ERR_NOT_FOUND);
    taken_deinit(&taken);
    buf_deinit(&caller.said);
    GATE_END;
}

TEST(a_take_waits_for_a_call_and_gives_up_in_time)
{
    GATE;
    struct taken none = take(gate, (struct gate_take){.wait_ms = 500});
    EXPECT(none.came && none.ids.size == 0);
    taken_deinit(&none);
    GATE_END;
}

TEST(a_lease_that_ran_out_is_delivered_again_and_its_old_holder_is_refused)
{
    GATE;
    struct caller caller;
    hold(gate, &caller, "c-1", "r-1", NULL, 0);
    struct taken first = take(gate, (struct gate_take){.lease_ms = 100});
    pass_ms(loop, 150);
    EXPECT_INT(gate_answer(gate, "c-1", first.lease, STR("late"), &err), -1);
    EXPECT_INT(err.kind, ERR_CONFLICT);
    struct taken second = take(gate, (struct gate_take){.lease_ms = 1000});
    EXPECT_TEXT(buf_text(&second.ids), "c-1 ");
    EXPECT_INT(gate_answer(gate, "c-1", first.lease, STR("late"), &err), -1);
    EXPECT_INT(err.kind, ERR_CONFLICT);
    EXPECT_INT(gate_answer(gate, "c-1", second.lease, STR("mine"), &err), 0);
    spin(loop);
    EXPECT_TEXT(buf_text(&caller.said), "taken:0 answer:mine ");
    taken_deinit(&first);
    taken_deinit(&second);
    buf_deinit(&caller.said);
    GATE_END;
}

TEST(an_extended_lease_lasts_and_a_released_one_returns_at_once)
{
    GATE;
    struct caller caller;
    hold(gate, &caller, "c-1", "r-1", NULL, 0);
    struct taken taken = take(gate, (struct gate_take){.lease_ms = 100});
    EXPECT_INT(gate_extend(gate, "c-1", taken.lease, 1000, &err), 0);
    pass_ms(loop, 500);
    EXPECT_INT(gate_release(gate, "c-1", taken.lease, &err), 0);
    struct taken again = take(gate, (struct gate_take){.wait_ms = 10});
    EXPECT_TEXT(buf_text(&again.ids), "c-1 ");
    EXPECT_INT(gate_fail(gate, "c-1", NULL, 429, STR("rate_limit"), STR("slow down"), &err), 0);
    spin(loop);
    EXPECT_TEXT(buf_text(&caller.said), "taken:0 fail:429:rate_limit ");
    taken_deinit(&taken);
    taken_deinit(&again);
    buf_deinit(&caller.said);
    GATE_END;
}

TEST(rollouts_take_turns_whatever_each_has_waiting)
{
    GATE;
    struct caller callers[6];
    const char *const ids[] = {"a1", "a2", "a3", "a4", "b1", "c1"};
    const char *const rollouts[] = {"a", "a", "a", "a", "b", "c"};
    for (int i = 0; i < 6; i++)
        hold(gate, &callers[i], ids[i], rollouts[i], NULL, 0);
    struct taken taken = take(gate, (struct gate_take){.max = 4});
    EXPECT_TEXT(buf_text(&taken.ids), "a1 b1 c1 a2 ");
    for (int i = 0; i < 6; i++)
        gate_call_close(callers[i].call);
    spin(loop);
    struct gate_counts counts;
    gate_counts(gate, &counts);
    EXPECT_INT(counts.held + counts.leased, 0);
    EXPECT_INT(counts.withdrawn, 6);
    for (int i = 0; i < 6; i++)
        buf_deinit(&callers[i].said);
    taken_deinit(&taken);
    GATE_END;
}

/* Takes that want one group only take no turns from the others. */
TEST(rollouts_of_other_groups_lose_no_turn_to_a_take_with_a_filter)
{
    GATE;
    struct caller callers[7];
    const char *const ids[] = {"a1", "b1", "b2", "b3", "c1", "c2", "c3"};
    const char *const rollouts[] = {"a", "b", "b", "b", "c", "c", "c"};
    for (int i = 0; i < 7; i++)
        hold(gate, &callers[i], ids[i], rollouts[i], i ? "g-2" : "g-1", 0);
    OWN(buf) struct buf order = {0};
    for (int i = 0; i < 3; i++) {
        struct taken group = take(gate, (struct gate_take){.group_id = "g-2"});
        struct taken any = take(gate, (struct gate_take){0});
        buf_format(&order, "%s%s", buf_text(&group.ids), buf_text(&any.ids));
        taken_deinit(&group);
        taken_deinit(&any);
    }
    EXPECT_TEXT(buf_text(&order), "b1 a1 c1 b2 c2 b3 ");
    for (int i = 0; i < 7; i++) {
        gate_call_close(callers[i].call);
        buf_deinit(&callers[i].said);
    }
    spin(loop);
    GATE_END;
}

/* However they come back, the one that has waited longest is first. */
TEST(calls_that_come_back_keep_the_order_in_which_they_came)
{
    GATE;
    struct caller callers[5];
    static const char *const ids[] = {"c1", "c2", "c3", "c4", "c5"};
    static const int released[] = {1, 0, 3, 2};
    for (int i = 0; i < 4; i++)
        hold(gate, &callers[i], ids[i], "r-1", NULL, 0);
    struct taken first = take(gate, (struct gate_take){.max = 4});
    hold(gate, &callers[4], ids[4], "r-1", NULL, 0);
    for (int i = 0; i < 4; i++)
        EXPECT_INT(gate_release(gate, ids[released[i]], NULL, &err), 0);
    struct taken again = take(gate, (struct gate_take){.max = 5, .lease_ms = 1000});
    EXPECT_TEXT(buf_text(&again.ids), "c1 c2 c3 c4 c5 ");
    pass_ms(loop, 1100); /* all leases run out in one moment */
    struct taken last = take(gate, (struct gate_take){.max = 5});
    EXPECT_TEXT(buf_text(&last.ids), "c1 c2 c3 c4 c5 ");
    for (int i = 0; i < 5; i++) {
        gate_call_close(callers[i].call);
        buf_deinit(&callers[i].said);
    }
    spin(loop);
    taken_deinit(&first);
    taken_deinit(&again);
    taken_deinit(&last);
    GATE_END;
}

TEST(filters_by_group_and_rollout_see_only_theirs)
{
    GATE;
    struct caller callers[3];
    hold(gate, &callers[0], "c-1", "r-1", "g-1", 0);
    hold(gate, &callers[1], "c-2", "r-2", "g-2", 0);
    hold(gate, &callers[2], "c-3", "r-3", "g-2", 0);
    struct taken none = take(gate, (struct gate_take){.max = 9, .group_id = "g-9"});
    EXPECT_INT(none.ids.size, 0);
    struct taken wrong =
        take(gate, (struct gate_take){.max = 9, .group_id = "g-1", .rollout_id = "r-3"});
    EXPECT_INT(wrong.ids.size, 0);
    struct taken one = take(gate, (struct gate_take){.max = 9, .rollout_id = "r-3"});
    EXPECT_TEXT(buf_text(&one.ids), "c-3 ");
    struct taken group = take(gate, (struct gate_take){.max = 9, .group_id = "g-2"});
    EXPECT_TEXT(buf_text(&group.ids), "c-2 ");
    for (int i = 0; i < 3; i++) {
        gate_call_close(callers[i].call);
        buf_deinit(&callers[i].said);
    }
    spin(loop);
    taken_deinit(&none);
    taken_deinit(&wrong);
    taken_deinit(&one);
    taken_deinit(&group);
    GATE_END;
}

TEST(a_stream_passes_its_pieces_and_blocks_other_answers)
{
    GATE;
    struct caller caller;
    hold(gate, &caller, "c-1", "r-1", NULL, 0);
    struct taken taken = take(gate, (struct gate_take){.max = 1});
    struct gate_stream *stream = gate_stream_open(gate, "c-1", taken.lease, NULL, NULL, NULL, &err);
    EXPECT(stream);
    EXPECT_INT(gate_stream_write(stream, STR("ab")), 2);
    EXPECT_INT(gate_answer(gate, "c-1", taken.lease, STR("x"), &err), -1);
    EXPECT_INT(err.kind, ERR_CONFLICT);
    spin(loop);
    EXPECT_INT(gate_stream_write(stream, STR("c")), 1);
    gate_stream_end(stream);
    spin(loop);
    EXPECT_TEXT(buf_text(&caller.said), "taken:0 chunk:ab chunk:c end ");
    taken_deinit(&taken);
    buf_deinit(&caller.said);
    GATE_END;
}

TEST(a_stream_lost_before_its_first_byte_is_redelivered_and_after_it_is_broken)
{
    GATE;
    struct caller caller;
    hold(gate, &caller, "c-1", "r-1", NULL, 0);
    struct taken taken = take(gate, (struct gate_take){.max = 1});
    gate_stream_lost(gate_stream_open(gate, "c-1", NULL, NULL, NULL, NULL, &err));
    struct taken again = take(gate, (struct gate_take){.wait_ms = 10});
    EXPECT_TEXT(buf_text(&again.ids), "c-1 ");
    struct gate_stream *stream = gate_stream_open(gate, "c-1", NULL, NULL, NULL, NULL, &err);
    (void)gate_stream_write(stream, STR("a"));
    gate_stream_lost(stream);
    spin(loop);
    EXPECT_TEXT(buf_text(&caller.said), "taken:0 chunk:a broken ");
    taken_deinit(&taken);
    taken_deinit(&again);
    buf_deinit(&caller.said);
    GATE_END;
}

static void note_gone(void *context)
{
    *(bool *)context = true;
}

TEST(an_agent_that_leaves_ends_the_trainers_stream)
{
    GATE;
    struct caller caller;
    bool gone = false;
    hold(gate, &caller, "c-1", "r-1", NULL, 0);
    struct taken taken = take(gate, (struct gate_take){.max = 1});
    struct gate_stream *stream = gate_stream_open(gate, "c-1", NULL, NULL, note_gone, &gone, &err);
    gate_call_close(caller.call);
    spin(loop);
    EXPECT(gone);
    EXPECT_INT(gate_stream_write(stream, STR("late")), 0);
    gate_stream_end(stream);
    taken_deinit(&taken);
    buf_deinit(&caller.said);
    GATE_END;
}

TEST(a_deadline_fails_the_call_queued_or_leased)
{
    GATE;
    struct caller queued, leased;
    hold(gate, &leased, "c-1", "r-1", NULL, 1000);
    struct taken taken = take(gate, (struct gate_take){.lease_ms = 60000});
    hold(gate, &queued, "c-2", "r-1", NULL, 1000);
    pass_ms(loop, 1500);
    EXPECT_TEXT(buf_text(&queued.said), "fail:503:gate_timeout ");
    EXPECT_TEXT(buf_text(&leased.said), "taken:0 fail:503:gate_timeout ");
    taken_deinit(&taken);
    buf_deinit(&queued.said);
    buf_deinit(&leased.said);
    GATE_END;
}

TEST(a_pause_holds_calls_and_resuming_hands_them_out)
{
    GATE;
    struct caller caller;
    gate_pause(gate, true);
    hold(gate, &caller, "c-1", "r-1", NULL, 0);
    struct taken none = take(gate, (struct gate_take){.wait_ms = 100});
    EXPECT_INT(none.ids.size, 0);
    gate_pause(gate, false);
    struct taken taken = take(gate, (struct gate_take){.wait_ms = 100});
    EXPECT_TEXT(buf_text(&taken.ids), "c-1 ");
    gate_call_close(caller.call);
    spin(loop);
    taken_deinit(&none);
    taken_deinit(&taken);
    buf_deinit(&caller.said);
    GATE_END;
}

TEST(holding_past_the_bound_is_refused)
{
    struct err err = {0};
    struct loop *loop = loop_new_virtual(&err);
    struct gate *gate = gate_new(loop, &(struct gate_options){.held_max = 2});
    struct caller callers[3];
    hold(gate, &callers[0], "c-1", "r-1", NULL, 0);
    hold(gate, &callers[1], "c-2", "r-1", NULL, 0);
    struct gate_hold order = {.call_id = "c-3", .rollout_id = "r-1", .write = write_payload};
    EXPECT(!gate_hold(gate, loop, &order, &err));
    EXPECT_INT(err.kind, ERR_CAPACITY);
    for (int i = 0; i < 2; i++) {
        gate_call_close(callers[i].call);
        buf_deinit(&callers[i].said);
    }
    spin(loop);
    GATE_END;
}
