/* Submissions are whole: what the journal does not take never was, and nothing starts before it is
 * kept. */
#include "test_rollout.h"

#include <sched.h>

struct told {
    int count;
    enum err_kind kind;
};

static void on_stored(void *context, const struct err *err)
{
    struct told *told = context;
    told->count++;
    told->kind = err->kind;
}

static bool count_row(void *context, const struct store_rollout *row)
{
    (void)row;
    ++*(size_t *)context;
    return true;
}

static size_t rows_of(struct world *world)
{
    size_t count = 0;
    struct store_query query = {.limit = 100};
    struct err err = {0};
    must(store_list_rollouts(world->store, &query, count_row, &count, &err), &err);
    return count;
}

/* The index follows the journal, on a busy machine after a while. A row that came back would stay,
 * and this would not end. */
static void until_no_row_is_left(struct world *world)
{
    while (rows_of(world))
        usleep(10000);
}

/* What was sent to the journal before this is in it, or never will be. */
static void wait_for_journal(struct world *world)
{
    struct told told = {0};
    struct err err = {0};
    must(store_put_note(world->store, world->loop, "deleted", "group", "g-none", NULL, on_stored,
                        &told, &err),
         &err);
    while (!told.count)
        loop_once(world->loop, 1000);
}

/* A world whose journal is on a small disk of its own, with room for some large rows and what the
 * index makes of them. False: there are no mounts of our own here. */
static bool small_disk_open(struct world *world, char *filler, size_t room)
{
    *world = (struct world){.home = "/tmp/test-rollout-XXXXXX"};
    if (!mkdtemp(world->home))
        abort();
    OWN(mem) char *journal = mem_format("%s/journal-home", world->home);
    int flags = getuid() == 0 ? CLONE_NEWNS : CLONE_NEWNS | CLONE_NEWUSER;
    struct err err = {0};
    (void)file_make_dirs(journal, 0755, &err);
    if (unshare(flags) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
        mount("tmpfs", journal, "tmpfs", 0, "size=32m") < 0)
        return false;
    world->store_home = mem_dup(journal);
    snprintf(filler, room, "%s/filler", journal);
    world_begin(world, 0);
    return true;
}

static void fill_disk(const char *filler)
{
    int file = open(filler, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    char page[4096] = {0};
    while (write(file, page, sizeof page) > 0)
        ;
    close(file);
}

/* Its row finds no room on a disk that is full. */
static char *large_callback(void)
{
    char *large = mem_zero((1 << 20) + 3);
    memset(large, ' ', (1 << 20) + 2);
    large[0] = '{';
    large[1 << 20] = '}';
    return large;
}

TEST_WITHIN(a_submission_the_journal_does_not_take_never_was, 90)
{
    struct world world;
    char filler[256];
    struct err err = {0};
    if (!small_disk_open(&world, filler, sizeof filler))
        SKIP("no mount namespace here");
    fill_disk(filler);
    OWN(mem) char *large = large_callback();
    struct agent_spec *spec = shell_agent("true");
    OWN(task) struct task *task = task_from_json(STR("{\"instruction\":\"x\"}"), "t", &err);
    struct told told = {0};
    struct rollout_request request = {
        .agent = spec,
        .task = task,
        .model = world.model,
        .sources = {.agent = "sh", .model = "m", .task = "t"},
        .isolation = SANDBOX_ISOLATION_NO_LIMITS,
        .callback = large,
        .on_stored = on_stored,
        .stored_context = &told,
        .on_final = on_final,
        .context = &world,
    };
    struct rollout_request all[2] = {request, request};
    all[0].callback = NULL; /* this one alone would have found room */
    struct rollout_group_request group = {.each = &request, .count = 3};
    char ids[3][ID_MAX], name[ID_MAX];
    must(rollouts_submit(world.rollouts, &request, ids[0], &err), &err);
    must(rollouts_submit_all(world.rollouts, all, 2, ids, NULL, &err), &err);
    must(rollouts_submit_group(world.rollouts, &group, name, ids, &err), &err);
    EXPECT_INT(told.count, 0);
    (void)rollouts_cancel(world.rollouts, ids[1], "nobody wants it", NULL);
    while (told.count < 3)
        loop_once(world.loop, 1000);
    EXPECT_INT(told.kind, ERR_DISK_FULL);
    struct rollout_counts counts = rollouts_counts(world.rollouts);
    EXPECT_INT(counts.queued + counts.running + counts.ending + counts.finished, 0);
    EXPECT_INT(rollouts_group_live(world.rollouts, name), 0);
    OWN(mem) char *live = mem_format("%s/live/%s.json", world.home, ids[0]);
    OWN(mem) char *dir = mem_format("%s/rollouts/%s", world.home, ids[0]);
    EXPECT(!file_exists(live) && !file_exists(dir));
    EXPECT_INT(unlink(filler), 0);
    until_no_row_is_left(&world);
    /* There is room again: the next one is a rollout like any other. */
    request.callback = NULL;
    must(rollouts_submit(world.rollouts, &request, ids[0], &err), &err);
    EXPECT(wait_until(&world, one_final));
    EXPECT_INT(told.kind, ERR_NONE);
    EXPECT_INT(world.fate, TRACE_FATE_OK);
    EXPECT_INT(rows_of(&world), 1);
    agent_spec_unref(spec);
    world_close(&world);
}

TEST_WITHIN(nothing_starts_before_it_is_kept, 90)
{
    struct world world;
    struct err err = {0};
    struct told told = {0};
    world_open(&world, 0);
    struct agent_spec *spec = shell_agent("true");
    OWN(task)
    struct task *task =
        task_from_json(STR("{\"instruction\":\"x\",\"setup\":[\"true\"]}"), "t", &err);
    struct rollout_request request = {.agent = spec,
                                      .task = task,
                                      .model = world.model,
                                      .isolation = SANDBOX_ISOLATION_NO_LIMITS,
                                      .on_stored = on_stored,
                                      .stored_context = &told,
                                      .on_final = on_final,
                                      .context = &world};
    struct rollout_group_request group = {.each = &request, .count = 2, .share = ROLLOUT_SHARE_NO};
    char ids[2][ID_MAX], name[ID_MAX];
    must(rollouts_submit_group(world.rollouts, &group, name, ids, &err), &err);
    EXPECT_INT(rollouts_counts(world.rollouts).running, 0);
    EXPECT_INT(rollouts_group_live(world.rollouts, name), 2);
    /* Who is cancelled meanwhile is so afterwards; the other one goes its way. */
    must(rollouts_cancel(world.rollouts, ids[0], "nobody wants it", &err), &err);
    EXPECT_INT(rollouts_counts(world.rollouts).running, 0);
    while (world.finals < 2)
        loop_once(world.loop, 1000);
    EXPECT_INT(told.count, 1);
    struct rollout_view view;
    EXPECT(rollouts_view(world.rollouts, ids[0], &view) && view.fate == TRACE_FATE_CANCELLED);
    EXPECT(rollouts_view(world.rollouts, ids[1], &view) && view.fate == TRACE_FATE_OK);
    agent_spec_unref(spec);
    world_close(&world);
}

/* Whenever it is cancelled: before its rows have failed, after that, and while they are removed. */
TEST_WITHIN(who_cancels_a_submission_that_fails_brings_nothing_back, 90)
{
    struct world world;
    char filler[256];
    struct err err = {0};
    if (!small_disk_open(&world, filler, sizeof filler))
        SKIP("no mount namespace here");
    store_set_sync(world.store, STORE_SYNC_ALWAYS); /* a commit for each row */
    fill_disk(filler);
    OWN(mem) char *large = large_callback();
    struct agent_spec *spec = shell_agent("true");
    OWN(task) struct task *task = task_from_json(STR("{\"instruction\":\"x\"}"), "t", &err);
    struct told told = {0};
    struct rollout_request request = {
        .agent = spec,
        .task = task,
        .model = world.model,
        .sources = {.agent = "sh", .model = "m", .task = "t"},
        .isolation = SANDBOX_ISOLATION_NO_LIMITS,
        .on_stored = on_stored,
        .stored_context = &told,
        .on_final = on_final,
        .context = &world,
    };
    struct rollout_request all[2] = {request, request};
    char ids[2][ID_MAX];
    all[1].callback = large;
    must(rollouts_submit_all(world.rollouts, all, 2, ids, NULL, &err), &err);
    while (told.count < 1) {
        (void)rollouts_cancel(world.rollouts, ids[0], "nobody wants it", NULL);
        loop_once(world.loop, 1000);
    }
    EXPECT_INT(told.kind, ERR_DISK_FULL);
    until_no_row_is_left(&world);
    /* Its own row found no room; the one that says it is cancelled would. */
    wait_for_journal(&world); /* or a commit that is still on its way would pass for its row's */
    struct store_counts before, now;
    store_counts(world.store, &before);
    must(rollouts_submit_all(world.rollouts, &all[1], 1, ids, NULL, &err), &err);
    do {
        (void)sched_yield();
        store_counts(world.store, &now);
    } while (now.commits == before.commits);
    EXPECT_INT(unlink(filler), 0);
    must(rollouts_cancel(world.rollouts, ids[0], "nobody wants it", &err), &err);
    while (told.count < 2)
        loop_once(world.loop, 1000);
    EXPECT_INT(told.kind, ERR_DISK_FULL);
    wait_for_journal(&world);
    until_no_row_is_left(&world);
    EXPECT_INT(world.finals, 0);
    agent_spec_unref(spec);
    world_close(&world);
}
