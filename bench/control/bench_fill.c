/* bench_fill.c - a home with a long history: stored rollouts, put in through the store's own door.
 *
 *     bench_fill HOME COUNT
 *
 * Each rollout is put three times, as the manager does it: accepted, started, over. So the
 * journal and the index get what COUNT rollouts without model calls would have given them. There
 * are no folders. Prints one line of JSON. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/id.h"
#include "store/store.h"

static void die(const struct err *err)
{
    fprintf(stderr, "bench_fill: %s\n", err->text);
    exit(1);
}

/* The queue is bounded: when it is full, wait a little. */
static void put(struct store *store, const struct store_rollout *row)
{
    for (;;) {
        struct err err = {0};
        if (store_put_rollout(store, NULL, row, NULL, NULL, &err) == 0)
            return;
        if (err.kind != ERR_CAPACITY)
            die(&err);
        usleep(2000);
    }
}

static void put_rollout(struct store *store, const char *home, size_t number)
{
    static const char *const tasks[] = {"fix-failing-test", "parse-a-log", "repair-git",
                                        "edit-config"};
    char id[ID_MAX], run[32], group[32], dir[512];
    id_make(id, "r");
    snprintf(run, sizeof run, "run-%zu", number / 1024);
    snprintf(group, sizeof group, "g-%zu", number / 8);
    snprintf(dir, sizeof dir, "%s/rollouts/%s", home, id);
    struct store_rollout row = {
        .id = id,
        .run = run,
        .group = group,
        .task = tasks[number / 8 % 4],
        .agent = "mini",
        .model = "policy",
        .mode = "gate",
        .backend = "local",
        .stage = "queued",
        .dir = dir,
        .index = (uint32_t)(number % 1024),
        .prompt_tokens = -1,
        .completion_tokens = -1,
        .queued_ms = clock_wall_ms(),
    };
    put(store, &row);
    row.stage = "provisioning";
    row.started_ms = row.queued_ms;
    put(store, &row);
    row.stage = "done";
    row.fate = "ok";
    row.has_reward = true;
    row.reward = (double)(number % 2);
    row.calls = row.turns = 4;
    row.prompt_tokens = 12000;
    row.completion_tokens = 800;
    row.done_ms = clock_wall_ms();
    put(store, &row);
}

int main(int count, char **args)
{
    if (count != 3) {
        fprintf(stderr, "usage: bench_fill HOME COUNT\n");
        return 2;
    }
    size_t wanted = strtoul(args[2], NULL, 10);
    struct err err = {0};
    uint64_t began = clock_mono_ms();
    struct store *store = store_open(args[1], &err);
    if (!store)
        die(&err);
    uint64_t opened = clock_mono_ms();
    for (size_t i = 0; i < wanted; i++)
        put_rollout(store, args[1], i);
    store_close(store); /* everything queued is on disk and in the index */
    uint64_t over = clock_mono_ms();
    printf("{\"count\":%zu,\"open_ms\":%llu,\"fill_ms\":%llu}\n", wanted,
           (unsigned long long)(opened - began), (unsigned long long)(over - opened));
    return 0;
}
