/* test_rollout.h - a world for rollouts: two lanes, a store and a home of its own, agents that are
 * one-line shell scripts, a model that is a script. Waits are for events, with a deadline that only
 * a broken program reaches. */
#ifndef TEST_ROLLOUT_H
#define TEST_ROLLOUT_H

#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <unistd.h>

#include "agent/agent.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "gateway/gateway.h"
#include "json/json.h"
#include "loop/loop.h"
#include "rollout/rollout.h"
#include "sandbox/sandbox.h"
#include "store/store.h"
#include "task/task.h"
#include "test.h"

#define LANES 2
#define SECONDS_MAX 60

struct lane {
    struct world *world;
    struct loop *loop;
    struct sandboxes *sandboxes;
    struct gateway *gateway;
    struct err err;
};

struct world {
    char home[64];
    char programs[512];
    char *store_home; /* NULL: the same */
    struct loop *loop;
    struct lanes *lanes;
    struct lane lane[LANES];
    struct store *store;
    struct rollouts *rollouts;
    struct model *model;
    size_t finals;
    int closed;
    /* of the latest final event */
    enum trace_fate fate;
    enum trace_stage failed_stage;
    bool rewarded;
    double reward;
    char error[512];
    char *result;
    char id[ID_MAX];
};

/* ---------------------------------------------------------------- the world */
static inline void build_lane(void *argument)
{
    struct lane *lane = argument;
    struct sandbox_options options = {
        .home = lane->world->home, .program_dir = lane->world->programs, .keeper_private = true};
    struct gateway_options gateway = {.store = lane->world->store};
    lane->sandboxes = sandboxes_new(lane->loop, &options, &lane->err);
    if (lane->sandboxes)
        lane->gateway = gateway_new(lane->loop, &gateway, &lane->err);
}

static inline void must(int result, const struct err *err)
{
    if (result == 0)
        return;
    fprintf(stderr, "  %s\n", err->text);
    abort();
}

static inline struct model *script(struct world *world, const char *text)
{
    struct err err = {0};
    OWN(mem) char *path = mem_format("%s/script.toml", world->home);
    OWN(mem) char *spec = mem_format("script:%s", path);
    must(file_write(path, str_of(text), 0644, false, &err), &err);
    struct model *model = model_open(spec, NULL, &err);
    must(model ? 0 : -1, &err);
    return model;
}

/* Its home is there. */
static inline void world_begin(struct world *world, uint32_t parallel_max)
{
    struct err err = {0};
    ssize_t size = readlink("/proc/self/exe", world->programs, sizeof world->programs - 1);
    if (size <= 0)
        abort();
    for (int up = 0; up < 2; up++) /* <build>/unit/test_rollout */
        *strrchr(world->programs, '/') = '\0';
    OWN(mem) char *porter = mem_format("%s/postern-porter", world->programs);
    if (!file_exists(porter))
        SKIP("postern-porter is not built");
    world->loop = loop_new(&err);
    world->store = store_open(world->store_home ? world->store_home : world->home, &err);
    world->lanes = lanes_new(LANES, &err);
    must(world->loop && world->store && world->lanes ? 0 : -1, &err);
    struct rollout_lane lanes[LANES];
    for (int i = 0; i < LANES; i++) {
        struct lane *lane = &world->lane[i];
        *lane = (struct lane){.world = world, .loop = lanes_at(world->lanes, (size_t)i)};
        loop_call(lane->loop, build_lane, lane);
        must(lane->gateway ? 0 : -1, &lane->err);
        lanes[i] = (struct rollout_lane){lane->loop, lane->sandboxes, lane->gateway};
    }
    struct rollouts_options options = {.home = world->home,
                                       .store = world->store,
                                       .lanes = lanes,
                                       .lane_count = LANES,
                                       .parallel_max = parallel_max,
                                       .owner = "p-test"};
    world->rollouts = rollouts_new(world->loop, &options, &err);
    must(world->rollouts ? 0 : -1, &err);
    world->model = script(world, "name = 'm'\n[[rule]]\nsay = 'hello'\n");
}

static inline void world_open(struct world *world, uint32_t parallel_max)
{
    *world = (struct world){0};
    strcpy(world->home, "/tmp/test-rollout-XXXXXX");
    if (!mkdtemp(world->home))
        abort();
    world_begin(world, parallel_max);
}

static inline void lane_closed(void *argument)
{
    struct world *world = argument;
    world->closed++;
}

static inline void on_lane_closed(void *context)
{
    struct lane *lane = context;
    gateway_free(lane->gateway);
    loop_post(lane->world->loop, lane_closed, lane->world);
}

static inline void close_lane(void *argument)
{
    struct lane *lane = argument;
    sandboxes_close(lane->sandboxes, on_lane_closed, lane);
}

static inline void on_rollouts_closed(void *context)
{
    struct world *world = context;
    world->rollouts = NULL;
    for (int i = 0; i < LANES; i++)
        loop_post(world->lane[i].loop, close_lane, &world->lane[i]);
}

static inline bool wait_until(struct world *world, bool (*is_so)(struct world *world))
{
    uint64_t end = clock_mono_ms() + SECONDS_MAX * 1000;
    while (!is_so(world)) {
        if (clock_mono_ms() > end)
            return false;
        loop_once(world->loop, 100);
    }
    return true;
}

static inline bool all_closed(struct world *world)
{
    return world->closed == LANES;
}

static inline void world_close(struct world *world)
{
    rollouts_close(world->rollouts, on_rollouts_closed, world);
    EXPECT(wait_until(world, all_closed));
    model_unref(world->model);
    lanes_free(world->lanes);
    store_close(world->store);
    loop_free(world->loop);
    free(world->result);
    if (world->store_home)
        (void)umount2(world->store_home, MNT_DETACH);
    free(world->store_home);
    (void)file_remove_tree(world->home, NULL);
}

/* ---------------------------------------------------------------- asking */
static inline void on_final(void *context, const struct rollout_view *view)
{
    struct world *world = context;
    world->finals++;
    world->fate = view->fate;
    world->failed_stage = view->failed_stage;
    world->rewarded = view->rewarded;
    world->reward = view->reward;
    snprintf(world->error, sizeof world->error, "%s", view->error);
    snprintf(world->id, sizeof world->id, "%s", view->id);
    free(world->result);
    world->result = mem_dup(view->result);
}

/* An agent that is a shell script. */
static inline struct agent_spec *shell_agent(const char *text)
{
    struct err err = {0};
    OWN(mem)
    char *spec = mem_format(
        "name = \"sh\"\n[run]\nargv = [\"/bin/sh\", \"-c\", '''%s''']\ninstruction = \"stdin\"\n"
        "[run.env]\nURL = \"{base_url}\"\nKEY = \"{key}\"\nFILE = \"{instruction_file}\"\n",
        text);
    struct agent_spec *agent = agent_spec_parse(str_of(spec), "sh.toml", &err);
    must(agent ? 0 : -1, &err);
    return agent;
}

static inline void submit(struct world *world, const char *agent, const char *task_json,
                          uint32_t wall_ms)
{
    struct err err = {0};
    struct agent_spec *spec = shell_agent(agent);
    OWN(task) struct task *task = task_from_json(str_of(task_json), "test", &err);
    must(task ? 0 : -1, &err);
    struct rollout_request request = {.agent = spec,
                                      .task = task,
                                      .model = world->model,
                                      .isolation = SANDBOX_ISOLATION_NO_LIMITS,
                                      .wall_ms_max = wall_ms,
                                      .on_final = on_final,
                                      .context = world};
    must(rollouts_submit(world->rollouts, &request, world->id, &err), &err);
    agent_spec_unref(spec);
}

static inline bool one_final(struct world *world)
{
    return world->finals == 1;
}

/* One rollout in a world of its own, to its end. */
static inline void run(struct world *world, const char *agent, const char *task_json,
                       uint32_t wall_ms)
{
    world_open(world, 0);
    submit(world, agent, task_json, wall_ms);
    if (!wait_until(world, one_final)) {
        fprintf(stderr, "  no final event\n");
        abort();
    }
}

static inline bool result_has(struct world *world, const char *text)
{
    if (world->result && strstr(world->result, text))
        return true;
    fprintf(stderr, "  no %s in %s\n", text, world->result ? world->result : "nothing");
    return false;
}

#endif
