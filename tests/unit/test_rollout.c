/* The rollout room through its door, on real local sandboxes: lives, classes, rewards,
 * cancellation. */
#include "test_rollout.h"

/* ---------------------------------------------------------------- fates and rewards */
TEST_WITHIN(a_rollout_comes_back_with_the_verifiers_number, 90)
{
    struct world world;
    run(&world, "echo done > out.txt",
        "{\"instruction\":\"x\",\"verify\":[\"test -f out.txt\",\"false\",\"true\",\"false\"]}", 0);
    EXPECT_INT(world.fate, TRACE_FATE_OK);
    EXPECT(world.rewarded && world.reward == 0.5);
    EXPECT(result_has(&world, "\"class\":\"ok\""));
    EXPECT(result_has(&world, "\"fresh_verify\":true"));
    EXPECT(result_has(&world, "\"passed\":2,\"total\":4"));
    OWN(mem) char *path = mem_format("%s/rollouts/%s/result.json", world.home, world.id);
    OWN(mem) char *owner = mem_format("%s/rollouts/%s/owner", world.home, world.id);
    EXPECT(file_exists(path) && !file_exists(owner));
    world_close(&world);
}

TEST_WITHIN(no_verifier_no_reward, 90)
{
    struct world world;
    run(&world, "true", "{\"instruction\":\"x\"}", 0);
    EXPECT_INT(world.fate, TRACE_FATE_OK);
    EXPECT(!world.rewarded);
    EXPECT(result_has(&world, "\"reward\":null"));
    world_close(&world);
}

TEST_WITHIN(an_agent_that_fails_is_judged_all_the_same, 90)
{
    struct world world;
    run(&world, "touch half; exit 9", "{\"instruction\":\"x\",\"verify\":[\"test -f half\"]}", 0);
    EXPECT_INT(world.fate, TRACE_FATE_AGENT_FAILED);
    EXPECT(world.rewarded && world.reward == 1);
    EXPECT(result_has(&world, "\"code\":9"));
    world_close(&world);
}

TEST_WITHIN(an_agent_that_takes_too_long_is_judged_and_its_tree_is_gone, 90)
{
    struct world world;
    run(&world, "(trap '' TERM; setsid sleep 1000 &) ; touch begun; sleep 1000",
        "{\"instruction\":\"x\",\"verify\":[\"test -f begun\",\"! grep -ls sleep "
        "/proc/[0-9]*/comm\"]}",
        3000);
    EXPECT_INT(world.fate, TRACE_FATE_TIMED_OUT);
    EXPECT(world.rewarded && world.reward == 1);
    world_close(&world);
}

TEST_WITHIN(a_failed_setup_command_ends_it_before_the_agent_starts, 90)
{
    struct world world;
    run(&world, "touch /tmp/agent-was-here",
        "{\"instruction\":\"x\",\"setup\":[\"echo one\",\"echo two; exit 3\",\"echo "
        "three\"],\"verify\":[\"true\"]}",
        0);
    EXPECT_INT(world.fate, TRACE_FATE_SETUP_FAILED);
    EXPECT_INT(world.failed_stage, TRACE_SETUP);
    EXPECT(!world.rewarded);
    EXPECT(strstr(world.error, "echo two") && strstr(world.error, "3"));
    EXPECT(result_has(&world, "\"output\":\"two\\n\""));
    EXPECT(!strstr(world.result, "echo three"));
    EXPECT(result_has(&world, "\"agent_exit\":null"));
    world_close(&world);
}

TEST_WITHIN(a_verifier_that_breaks_is_an_infrastructure_failure_and_never_a_zero, 90)
{
    static const char *const tasks[] = {
        "{\"instruction\":\"x\",\"verify\":[\"echo nan > /logs/verifier/reward.txt\"]}",
        "{\"instruction\":\"x\",\"verify\":[\"echo 1e999 > /logs/verifier/reward.txt\"]}",
        "{\"instruction\":\"x\",\"verify\":[\": > /logs/verifier/reward.txt\"]}",
        "{\"instruction\":\"x\",\"verify\":[\"echo '{}' > /logs/verifier/reward.json\"]}",
    };
    for (size_t i = 0; i < COUNT(tasks); i++) {
        struct world world;
        run(&world, "true", tasks[i], 0);
        EXPECT_INT(world.fate, TRACE_FATE_INFRA_FAILED);
        EXPECT_INT(world.failed_stage, TRACE_VERIFYING);
        EXPECT(!world.rewarded && world.error[0]);
        EXPECT(result_has(&world, "\"reward\":null"));
        world_close(&world);
    }
}

TEST_WITHIN(a_program_that_is_not_there_is_not_the_agents_fault, 90)
{
    struct world world;
    struct err err = {0};
    world_open(&world, 0);
    struct agent_spec *spec = agent_spec_parse(
        STR("name = \"gone\"\n[run]\nargv = [\"/no/such/agent\"]\ninstruction = \"stdin\"\n"), "t",
        &err);
    OWN(task)
    struct task *task =
        task_from_json(STR("{\"instruction\":\"x\",\"verify\":[\"true\"]}"), "t", &err);
    struct rollout_request request = {.agent = spec,
                                      .task = task,
                                      .model = world.model,
                                      .isolation = SANDBOX_ISOLATION_NO_LIMITS,
                                      .on_final = on_final,
                                      .context = &world};
    must(rollouts_submit(world.rollouts, &request, world.id, &err), &err);
    EXPECT(wait_until(&world, one_final));
    EXPECT_INT(world.fate, TRACE_FATE_INFRA_FAILED);
    EXPECT_INT(world.failed_stage, TRACE_RUNNING);
    EXPECT(strstr(world.error, "/no/such/agent"));
    agent_spec_unref(spec);
    world_close(&world);
}

TEST_WITHIN(a_backend_that_is_not_there_is_an_infrastructure_failure, 90)
{
    struct world world;
    struct err err = {0};
    world_open(&world, 0);
    struct agent_spec *spec = shell_agent("true");
    OWN(task) struct task *task = task_from_json(STR("{\"instruction\":\"x\"}"), "t", &err);
    struct rollout_request request = {.agent = spec,
                                      .task = task,
                                      .model = world.model,
                                      .backend = "nowhere",
                                      .on_final = on_final,
                                      .context = &world};
    must(rollouts_submit(world.rollouts, &request, world.id, &err), &err);
    EXPECT(wait_until(&world, one_final));
    EXPECT_INT(world.fate, TRACE_FATE_INFRA_FAILED);
    EXPECT(strstr(world.error, "nowhere"));
    agent_spec_unref(spec);
    world_close(&world);
}

/* ---------------------------------------------------------------- hostile to its reward */
/* Root inside needs owners that can be shifted: not there for ordinary users, nor where the host's
 * root is an overlay. Then the rollout must say exactly that and have no reward. */
static bool root_is_refused(const struct world *world)
{
    if (world->fate != TRACE_FATE_INFRA_FAILED ||
        (!strstr(world->error, "shift owners") && getuid() == 0))
        return false;
    if (world->rewarded)
        test_fail(__FILE__, __LINE__, "a refused rollout has a reward");
    return true;
}

TEST_WITHIN(a_reward_the_agent_wrote_is_cleared_and_tests_come_only_afterwards, 90)
{
    struct world world;
    /* Root inside: it may write anywhere, plant links, and leave a verifier of its own. */
    run(&world,
        "ls /tests 2>/dev/null && touch saw-tests; mkdir -p /logs/verifier /tests; echo 1 > "
        "/logs/verifier/reward.txt; "
        "echo 'echo 1 > /logs/verifier/reward.txt' > /tests/test.sh; true",
        "{\"instruction\":\"x\",\"root\":true,\"verify\":[\"test -e /logs/verifier/reward.txt\","
        "\"test -e /tests/test.sh\",\"test -e saw-tests\"]}",
        0);
    if (!root_is_refused(&world)) {
        EXPECT_INT(world.fate, TRACE_FATE_OK);
        EXPECT(world.rewarded && world.reward == 0);
    }
    world_close(&world);
}

TEST_WITHIN(links_in_place_of_logs_and_tests_lead_nowhere, 90)
{
    struct world world;
    run(&world,
        "rm -rf /logs /tests; mkdir /elsewhere; ln -s /elsewhere /logs; ln -s /elsewhere /tests",
        "{\"instruction\":\"x\",\"root\":true,\"verify\":[\"test -d /logs/verifier\",\"test ! -L "
        "/logs\","
        "\"test -z \\\"$(ls -A /elsewhere)\\\"\"]}",
        0);
    EXPECT(root_is_refused(&world) || (world.rewarded && world.reward == 1));
    world_close(&world);
}

TEST_WITHIN(an_agent_that_removes_its_working_directory_is_still_judged, 90)
{
    struct world world;
    run(&world, "cd /; rm -rf /app",
        "{\"instruction\":\"x\",\"root\":true,\"verify\":[\"test -f /app/out\"]}", 0);
    if (!root_is_refused(&world)) {
        EXPECT_INT(world.fate, TRACE_FATE_OK);
        EXPECT(world.rewarded && world.reward == 0);
    }
    world_close(&world);
}

/* ---------------------------------------------------------------- what the agent gets */
TEST_WITHIN(the_agent_gets_instruction_files_environment_and_a_dummy_key, 90)
{
    struct world world;
    run(&world,
        "cat > stdin.txt; cat \"$FILE\" > file.txt; echo \"$URL $KEY $COLOUR\" > env.txt; pwd > "
        "pwd.txt; id -u > id.txt",
        "{\"instruction\":\"wörk\",\"files\":{\"in/"
        "put\":\"text\"},\"env\":{\"COLOUR\":\"green\"},\"verify\":["
        "\"test \\\"$(cat stdin.txt)\\\" = wörk\",\"test \\\"$(cat file.txt)\\\" = wörk\","
        "\"grep -q '^http://127.0.0.1:13131/v1 postern-no-key-needed green$' env.txt\","
        "\"test \\\"$(cat pwd.txt)\\\" = /app\",\"test \\\"$(cat id.txt)\\\" != 0\",\"test "
        "\\\"$(cat in/put)\\\" = text\","
        "\"test \\\"$(stat -c %u /app)\\\" = \\\"$(cat id.txt)\\\"\"]}",
        0);
    EXPECT_INT(world.fate, TRACE_FATE_OK);
    if (!(world.rewarded && world.reward == 1))
        fprintf(stderr, "  %s\n", world.result);
    EXPECT(world.rewarded && world.reward == 1);
    world_close(&world);
}

/* ---------------------------------------------------------------- the manager */
struct seen {
    size_t stages, finals, running, running_most;
};

static void on_event(void *context, const struct rollout_event *event)
{
    struct seen *seen = context;
    seen->stages += event->kind == ROLLOUT_EVENT_STAGE;
    seen->finals += event->kind == ROLLOUT_EVENT_FINAL;
}

static bool six_finals(struct world *world)
{
    return world->finals == 6;
}

TEST_WITHIN(only_so_many_run_at_once_and_each_ends_exactly_once, 120)
{
    struct world world;
    struct seen seen = {0};
    world_open(&world, 2);
    struct rollout_watch watch = {.on_event = on_event, .context = &seen};
    rollouts_watch(world.rollouts, &watch);
    for (int i = 0; i < 6; i++)
        submit(&world, "true", "{\"instruction\":\"x\",\"verify\":[\"true\"]}", 0);
    uint64_t end = clock_mono_ms() + SECONDS_MAX * 1000;
    size_t most = 0;
    while (world.finals < 6 && clock_mono_ms() < end) {
        struct rollout_counts counts = rollouts_counts(world.rollouts);
        most = counts.running > most ? counts.running : most;
        loop_once(world.loop, 50);
    }
    EXPECT(six_finals(&world));
    EXPECT_INT(most, 2);
    EXPECT_INT(seen.finals, 6);
    EXPECT_INT(rollouts_counts(world.rollouts).by_fate[TRACE_FATE_OK], 6);
    rollouts_unwatch(&watch);
    world_close(&world);
    EXPECT_INT(world.finals, 6);
}

static bool one_runs(struct world *world)
{
    struct rollout_view view;
    return rollouts_view(world->rollouts, world->id, &view) && view.stage == TRACE_RUNNING;
}

static bool two_finals(struct world *world)
{
    return world->finals == 2;
}

TEST_WITHIN(cancelled_ones_end_once_whether_queued_or_running, 90)
{
    struct world world;
    struct err err = {0};
    world_open(&world, 1);
    submit(&world, "sleep 1000", "{\"instruction\":\"x\",\"verify\":[\"true\"]}", 0);
    char running[ID_MAX];
    memcpy(running, world.id, sizeof running);
    EXPECT(wait_until(&world, one_runs));
    submit(&world, "true", "{\"instruction\":\"x\",\"verify\":[\"true\"]}", 0);
    EXPECT_INT(rollouts_cancel(world.rollouts, world.id, "not needed", &err), 0);
    EXPECT(wait_until(&world, one_final));
    EXPECT_INT(world.fate, TRACE_FATE_CANCELLED);
    EXPECT_INT(world.failed_stage, TRACE_QUEUED);
    EXPECT_INT(rollouts_cancel(world.rollouts, running, "enough", &err), 0);
    EXPECT(wait_until(&world, two_finals));
    EXPECT_INT(world.fate, TRACE_FATE_CANCELLED);
    EXPECT_INT(world.failed_stage, TRACE_RUNNING);
    EXPECT(!world.rewarded);
    EXPECT(strstr(world.error, "enough"));
    EXPECT_INT(rollouts_cancel(world.rollouts, running, "again", &err), -1);
    EXPECT_INT(err.kind, ERR_CONFLICT);
    EXPECT_INT(rollouts_cancel(world.rollouts, "r-nobody", "x", &err), -1);
    EXPECT_INT(err.kind, ERR_NOT_FOUND);
    world_close(&world);
    EXPECT_INT(world.finals, 2);
}

TEST_WITHIN(closing_ends_what_is_left, 90)
{
    struct world world;
    world_open(&world, 2);
    for (int i = 0; i < 5; i++)
        submit(&world, "sleep 1000", "{\"instruction\":\"x\",\"verify\":[\"true\"]}", 0);
    loop_once(world.loop, 50);
    world_close(&world);
    EXPECT_INT(world.finals, 5);
    EXPECT_INT(world.fate, TRACE_FATE_CANCELLED);
}

TEST_WITHIN(a_script_without_an_answer_is_the_upstreams_fault, 90)
{
    struct world world;
    world_open(&world, 0);
    model_unref(world.model);
    world.model = script(&world, "name = 'm'\n[[rule]]\nwhen.task = 'another'\nsay = 'x'\n");
    submit(&world,
           "python3 -c 'import os,urllib.request as u; "
           "u.urlopen(u.Request(os.environ[\"URL\"]+\"/chat/completions\", "
           "b\"{\\\"model\\\":\\\"m\\\",\\\"messages\\\":[{\\\"role\\\":\\\"user\\\","
           "\\\"content\\\":\\\"x\\\"}]}\", "
           "{\"content-type\":\"application/json\"}))'",
           "{\"instruction\":\"x\",\"verify\":[\"true\"]}", 0);
    EXPECT(wait_until(&world, one_final));
    EXPECT_INT(world.fate, TRACE_FATE_UPSTREAM_FAILED);
    EXPECT(!world.rewarded);
    world_close(&world);
}

TEST_WITHIN(a_task_may_be_judged_where_the_agent_ran_and_keep_files, 90)
{
    struct world world;
    run(&world,
        "mkdir -p kept/deep; echo yes > kept/deep/file; ln -s /etc/passwd kept/link; (setsid sleep "
        "1000 &)",
        "{\"instruction\":\"x\",\"verifier\":{\"fresh\":false},\"artifacts\":[\"kept\",\"missing\"]"
        ",\"verify\":["
        "\"test -f kept/deep/file\",\"! grep -ls sleep /proc/[0-9]*/comm\"]}",
        0);
    EXPECT_INT(world.fate, TRACE_FATE_OK);
    EXPECT(world.rewarded && world.reward == 1);
    EXPECT(result_has(&world, "\"fresh_verify\":false"));
    EXPECT(result_has(&world, "\"state\":\"missing\""));
    OWN(mem)
    char *kept = mem_format("%s/rollouts/%s/artifacts/1-kept/deep/file", world.home, world.id);
    EXPECT(file_exists(kept));
    world_close(&world);
}

/* ---------------------------------------------------------------- the sample tasks */
static const char *const samples[] = {"fix-failing-test", "write-a-program", "parse-a-log",
                                      "repair-git", "edit-config"};

static double reward_of_sample(struct world *world, const char *name, bool solve)
{
    struct err err = {0};
    OWN(mem) char *dir = mem_format("%s/tasks/%s", POSTERN_SOURCE_DIR, name);
    OWN(mem) char *path = mem_format("%s/agent.toml", world->home);
    OWN(mem)
    char *text = mem_format(
        "name = \"solver\"\n[[files]]\nfrom = \"%s/solution/solve.sh\"\nto = \"/opt/solve.sh\"\n"
        "[run]\nargv = [\"bash\", \"%s\"]\ninstruction = \"stdin\"\n",
        dir, solve ? "/opt/solve.sh" : "/dev/null");
    must(file_write(path, str_of(text), 0644, false, &err), &err);
    const char *const none[] = {NULL};
    struct agent_dirs dirs = {.spec_dirs = none, .file_dirs = none};
    struct agent_spec *spec = agent_spec_load(path, &dirs, &err);
    must(spec ? 0 : -1, &err);
    struct task **tasks = NULL;
    size_t count = 0;
    must(task_load(dir, &tasks, &count, &err), &err);
    struct rollout_request request = {.agent = spec,
                                      .task = tasks[0],
                                      .model = world->model,
                                      .isolation = SANDBOX_ISOLATION_NO_LIMITS,
                                      .on_final = on_final,
                                      .context = world};
    world->finals = 0;
    must(rollouts_submit(world->rollouts, &request, world->id, &err), &err);
    bool ended = wait_until(world, one_final);
    task_list_free(tasks, count);
    agent_spec_unref(spec);
    if (!ended || !world->rewarded)
        fprintf(stderr, "  %s: %s\n", name, ended ? world->result : "no end");
    return ended && world->rewarded ? world->reward : -1;
}

TEST_WITHIN(the_sample_tasks_are_solved_by_their_solutions_and_not_by_doing_nothing, 240)
{
    struct world world;
    world_open(&world, 0);
    for (size_t i = 0; i < COUNT(samples); i++) {
        double solved = reward_of_sample(&world, samples[i], true);
        double idle = reward_of_sample(&world, samples[i], false);
        if (solved != 1 || idle != 0)
            test_fail(__FILE__, __LINE__, "%s: %g solved, %g when nothing was done", samples[i],
                      solved, idle);
    }
    world_close(&world);
}
