/* Several lanes share a model and a store; each has a gateway of its own. For the thread sanitizer
 * above all. */
#include "test_gateway.h"

#include <stdatomic.h>

enum { LANES = 3, SESSIONS = 4, CALLS = 10 };

struct lane {
    struct loop *loop;
    struct world *world;
    struct gateway *gateway;
    struct gateway_session *sessions[SESSIONS];
    uint16_t ports[SESSIONS];
    atomic_int closed;
    uint32_t turns;
};

static void lane_open(void *argument)
{
    struct lane *lane = argument;
    lane->gateway = gateway_new(lane->loop, &(struct gateway_options){lane->world->store}, NULL);
    for (int i = 0; i < SESSIONS; i++) {
        struct gateway_session_options options = {
            .rollout_id = "r-test", .model = lane->world->model, .mode = "proxy"};
        lane->sessions[i] = gateway_open(lane->gateway, &options, NULL);
        (void)gateway_session_listen(lane->sessions[i], world_listener(&lane->ports[i]), NULL);
    }
}

static void lane_on_closed(void *context)
{
    atomic_fetch_add(&((struct lane *)context)->closed, 1);
}

static void lane_close(void *argument)
{
    struct lane *lane = argument;
    for (int i = 0; i < SESSIONS; i++) {
        lane->turns += gateway_session_stats(lane->sessions[i])->turns;
        gateway_session_close(lane->sessions[i], 1000, lane_on_closed, lane);
    }
}

static void lane_free(void *argument)
{
    gateway_free(((struct lane *)argument)->gateway);
}

static bool count_record(void *context, const struct store_view *view)
{
    ((int *)context)[view->type]++;
    return true;
}

TEST_WITHIN(lanes_share_a_model_and_a_store, 60)
{
    struct world world = {0};
    struct err err = {0};
    world_start(&world);
    EXPECT_INT(world_model_script(&world,
                                  "[defaults]\ntokens = 'generate'\n"
                                  "[[rule]]\ntimes = 1\nerror.status = 503\n"
                                  "[[rule]]\nsay = 'from any lane'\nchunk = 3\n",
                                  &err),
               0);
    struct lanes *lanes = lanes_new(LANES, &err);
    EXPECT(lanes);
    struct lane all[LANES] = {0};
    for (int i = 0; i < LANES; i++) {
        all[i].loop = lanes_at(lanes, (size_t)i);
        all[i].world = &world;
        loop_call(all[i].loop, lane_open, &all[i]);
    }
    for (int round = 0; round < CALLS; round++) {
        struct reply replies[LANES][SESSIONS];
        for (int i = 0; i < LANES; i++)
            for (int j = 0; j < SESSIONS; j++) {
                world.port = all[i].ports[j];
                agent_ask(&world, &replies[i][j], round % 2 ? ASK_STREAM : ASK);
            }
        for (int i = 0; i < LANES; i++)
            for (int j = 0; j < SESSIONS; j++) {
                reply_wait(&replies[i][j]);
                EXPECT_INT(replies[i][j].status, 200);
                EXPECT_INT(replies[i][j].err.kind, ERR_NONE);
                buf_deinit(&replies[i][j].body);
            }
    }
    uint32_t turns = 0;
    uint64_t retries = 0;
    for (int i = 0; i < LANES; i++) {
        struct gateway_counts counts;
        gateway_counts(all[i].gateway, &counts);
        retries += counts.retries;
        loop_call(all[i].loop, lane_close, &all[i]);
        while (atomic_load(&all[i].closed) < SESSIONS)
            loop_once(world.loop, 1);
        loop_call(all[i].loop, lane_free, &all[i]);
        turns += all[i].turns;
    }
    EXPECT_INT(turns, LANES * SESSIONS * CALLS);
    EXPECT_INT(retries, LANES * SESSIONS);
    int records[8] = {0};
    EXPECT_INT(store_recover(world.store, count_record, records, NULL, &err), 0);
    EXPECT_INT(records[STORE_INTENT], LANES * SESSIONS * CALLS);
    EXPECT_INT(records[STORE_ENTRY], LANES * SESSIONS * CALLS);
    lanes_free(lanes);
    world_end(&world);
}
