/* Lanes share a model's seats: the limit of a server holds over all of them, and a seat that one
 * lane gives up is taken by another. For the thread sanitizer above all. */
#include "test_gateway.h"

#include <stdatomic.h>

enum { LANES = 3, SESSIONS = 3, CALLS = 6, PARALLEL = 2 };

struct lane {
    struct loop *loop;
    struct world *world;
    struct gateway *gateway;
    struct gateway_session *sessions[SESSIONS];
    uint16_t ports[SESSIONS];
    atomic_int closed;
};

struct later {
    struct http_exchange *exchange;
    struct loop *loop;
    struct loop_timer timer;
    struct later *next;
};

static int now_there, most_there;
static struct later *laters;

static void answer_now(struct loop_timer *timer)
{
    struct later *later = timer->context;
    if (most_there < PARALLEL) { /* nobody is answered before all seats were taken at once */
        loop_timer_start(later->loop, &later->timer, 1, answer_now, later);
        return;
    }
    now_there--;
    http_respond_json(later->exchange, 200,
                      STR("{\"id\":\"x\",\"object\":\"chat.completion\",\"created\":1,"
                          "\"model\":\"m\",\"choices\":[{\"index\":0,\"message\":{\"role\":"
                          "\"assistant\",\"content\":\"hi\"},\"finish_reason\":\"stop\"}]}"));
}

static void answer_in_a_moment(struct world *world, struct http_exchange *exchange)
{
    struct later *later = mem_zero(sizeof *later);
    later->exchange = exchange;
    later->loop = world->loop;
    later->next = laters;
    laters = later;
    now_there++;
    most_there = now_there > most_there ? now_there : most_there;
    loop_timer_start(world->loop, &later->timer, 1, answer_now, later);
}

static void lane_open(void *argument)
{
    struct lane *lane = argument;
    lane->gateway = gateway_new(lane->loop, &(struct gateway_options){lane->world->store}, NULL);
    for (int i = 0; i < SESSIONS; i++) {
        struct gateway_session_options options = {.rollout_id = "r-test",
                                                  .model = lane->world->model};
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
    for (int i = 0; i < SESSIONS; i++)
        gateway_session_close(lane->sessions[i], 1000, lane_on_closed, lane);
}

static void lane_free(void *argument)
{
    gateway_free(((struct lane *)argument)->gateway);
}

TEST_WITHIN(a_servers_limit_holds_over_all_lanes_and_nobody_waits_for_ever, 60)
{
    struct world world = {.upstream_answer = answer_in_a_moment};
    struct err err = {0};
    world_start(&world);
    world_model_upstream(&world, &(struct model_options){.parallel_max = PARALLEL});
    struct lanes *lanes = lanes_new(LANES, &err);
    EXPECT(lanes);
    struct lane all[LANES] = {0};
    for (int i = 0; i < LANES; i++) {
        all[i].loop = lanes_at(lanes, (size_t)i);
        all[i].world = &world;
        loop_call(all[i].loop, lane_open, &all[i]);
    }
    for (int round = 0; round < CALLS; round++) {
        struct reply replies[LANES * SESSIONS];
        for (int i = 0; i < LANES * SESSIONS; i++) {
            world.port = all[i % LANES].ports[i / LANES];
            agent_ask(&world, &replies[i], ASK);
        }
        /* One agent gives up while its call may still be in line. */
        http_call_close(replies[0].call);
        for (int i = 1; i < LANES * SESSIONS; i++) {
            reply_wait(&replies[i]);
            EXPECT_INT(replies[i].status, 200);
            buf_deinit(&replies[i].body);
        }
        buf_deinit(&replies[0].body);
    }
    EXPECT(most_there <= PARALLEL);
    EXPECT_INT(most_there, PARALLEL);
    for (int i = 0; i < LANES; i++) {
        loop_call(all[i].loop, lane_close, &all[i]);
        while (atomic_load(&all[i].closed) < SESSIONS)
            loop_once(world.loop, 1);
        loop_call(all[i].loop, lane_free, &all[i]);
    }
    while (laters) {
        struct later *next = laters->next;
        loop_timer_stop(&laters->timer);
        free(laters);
        laters = next;
    }
    lanes_free(lanes);
    world_end(&world);
}
