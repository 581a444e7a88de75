/* The task room through its door: formats and rewards. What happens inside a sandbox is in
 * test_rollout.c. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "json/json.h"
#include "task/task.h"
#include "test.h"

static char dir[64];

static void make_dir(void)
{
    strcpy(dir, "/tmp/test-task-XXXXXX");
    if (!mkdtemp(dir))
        abort();
}

static void write_at(const char *name, const char *text)
{
    OWN(mem) char *path = mem_format("%s/%s", dir, name);
    char *slash = strrchr(path, '/');
    *slash = '\0';
    if (file_make_dirs(path, 0755, NULL) < 0)
        abort();
    *slash = '/';
    if (file_write(path, str_of(text), 0755, false, NULL) < 0)
        abort();
}

static struct task *load_one(const char *what, struct err *err)
{
    struct task **tasks = NULL;
    size_t count = 0;
    if (task_load(what, &tasks, &count, err) < 0)
        return NULL;
    struct task *first = task_ref(tasks[0]);
    task_list_free(tasks, count);
    return first;
}

/* ---------------------------------------------------------------- rewards */
static bool reads(const char *text, double *value)
{
    struct err err = {0};
    return task_reward_read(str_of(text), value, &err);
}

TEST(a_reward_is_one_finite_number_with_blanks_around_it_at_most)
{
    static const struct {
        const char *text;
        double value;
    } good[] = {{"0.5", 0.5},   {"1\n", 1}, {" 0.25 ", 0.25}, {"-1", -1}, {"+1.5", 1.5},
                {"1e-3", 1e-3}, {"0", 0},   {".5", .5},       {"5.", 5},  {"\t1e2\r\n", 100}};
    for (size_t i = 0; i < COUNT(good); i++) {
        double value = -99;
        if (!reads(good[i].text, &value) || value != good[i].value)
            test_fail(__FILE__, __LINE__, "\"%s\" gives %g", good[i].text, value);
    }
}

TEST(a_reward_that_is_no_finite_number_is_refused_with_a_reason)
{
    static const char *const bad[] = {"nan", "NaN", "inf",  "-inf", "infinity", "1e999", "-1e999",
                                      "",    " \n", "abc",  "1 2",  "1,5",      "0x10",  "1e",
                                      ".",   "-",   "1\n1", "true", "1e+",      "--1",   "1.2.3"};
    for (size_t i = 0; i < COUNT(bad); i++) {
        double value = 42;
        struct err err = {0};
        if (task_reward_read(str_of(bad[i]), &value, &err) || err.kind != ERR_PROTOCOL ||
            value != 42)
            test_fail(__FILE__, __LINE__, "\"%s\" was taken, or without a reason", bad[i]);
    }
    double value;
    struct err err = {0};
    EXPECT(!task_reward_read(str_make("1\0"
                                      "2",
                                      3),
                             &value, &err));
}

TEST(a_reward_as_json_is_a_number_or_named_numbers_and_nothing_else)
{
    double value = 0;
    struct str detail = STR_NONE;
    struct err err = {0};
    EXPECT(task_reward_read_json(STR("{\"reward\": 0.5, \"style\": 2}"), &value, &detail, &err));
    EXPECT(value == 0.5);
    EXPECT_STR(detail, STR("{\"reward\": 0.5, \"style\": 2}"));
    EXPECT(task_reward_read_json(STR(" 1 "), &value, &detail, &err));
    EXPECT(task_reward_read_json(STR("{\"a\": 0.5, \"b\": 1}"), &value, &detail, &err));
    EXPECT(value == 0.75);
    EXPECT_STR(detail, STR("{\"a\": 0.5, \"b\": 1}"));
    static const char *const bad[] = {"{}",
                                      "{\"reward\": 1, \"other\": \"x\"}",
                                      "{\"reward\": 1, \"other\": 1e999}",
                                      "{\"reward\": 1, \"other\": {\"a\": 1}}",
                                      "{\"reward\": true}",
                                      "{\"reward\": NaN}",
                                      "\"1\"",
                                      "{\"reward\": \"1\"}",
                                      "{\"reward\": null}",
                                      "[1]",
                                      "{\"reward\": 1e999}",
                                      "{\"reward\"",
                                      "nan",
                                      ""};
    for (size_t i = 0; i < COUNT(bad); i++)
        if (task_reward_read_json(str_of(bad[i]), &value, &detail, &err))
            test_fail(__FILE__, __LINE__, "%s was taken", bad[i]);
}

/* ---------------------------------------------------------------- formats */
TEST(inline_json_is_a_task)
{
    struct err err = {0};
    OWN(task)
    struct task *task = load_one(
        "{\"instruction\": \"do it\", \"name\": \"n\", \"setup\": [\"a\", {\"run\": \"b\", "
        "\"user\": \"root\", \"timeout\": \"2s\"}], \"verify\": \"c\", \"files\": {\"x/y\": "
        "\"text\"}, \"env\": {\"A\": \"1\"}, \"root\": true, \"timeout\": \"90s\"}",
        &err);
    EXPECT(task != NULL);
    EXPECT_TEXT(task->name, "n");
    EXPECT_TEXT(task->instruction, "do it");
    EXPECT_TEXT(task->workdir, "/app");
    EXPECT_INT(task->setup_count, 2);
    EXPECT_TEXT(task->setup[1].user, "root");
    EXPECT_INT(task->setup[1].timeout_ms, 2000);
    EXPECT_INT(task->verify_count, 1);
    EXPECT_INT(task->file_count, 1);
    EXPECT_STR(task->files[0].content, STR("text"));
    EXPECT_TEXT(task->env[0], "A=1");
    EXPECT(task->root && task->fresh_verify && task_has_verifier(task));
    EXPECT_INT(task->agent_ms_max, 90000);
}

TEST(names_other_frameworks_use_are_understood)
{
    struct err err = {0};
    OWN(task)
    struct task *task = task_from_json(
        STR("{\"instruction\":\"x\",\"setup_shell\":\"pip list\",\"upload_files\":{\"a\":\"b\"},"
            "\"metadata\":{\"k\":[1,2]}}"),
        "line", &err);
    EXPECT(task != NULL);
    EXPECT_INT(task->setup_count, 1);
    EXPECT_INT(task->file_count, 1);
    EXPECT_STR(task->metadata, STR("{\"k\":[1,2]}"));
}

TEST(each_line_of_jsonl_is_a_task)
{
    make_dir();
    write_at("two.jsonl", "{\"instruction\":\"a\"}\n\n{\"instruction\":\"b\",\"id\":\"bee\"}\n");
    OWN(mem) char *path = mem_format("%s/two.jsonl", dir);
    struct task **tasks = NULL;
    size_t count = 0;
    struct err err = {0};
    EXPECT_INT(task_load(path, &tasks, &count, &err), 0);
    EXPECT_INT(count, 2);
    EXPECT_TEXT(tasks[0]->name, "line-1");
    EXPECT_TEXT(tasks[1]->name, "bee");
    task_list_free(tasks, count);
    write_at("bad.jsonl", "{\"instruction\":\"a\"}\n{\"instruction\":}\n");
    OWN(mem) char *bad = mem_format("%s/bad.jsonl", dir);
    EXPECT_INT(task_load(bad, &tasks, &count, &err), -1);
    EXPECT(strstr(err.text, "bad.jsonl:2") != NULL);
    (void)file_remove_tree(dir, NULL);
}

TEST(a_directory_in_the_harbor_layout_is_a_task)
{
    make_dir();
    write_at(
        "task.toml",
        "version = \"1.0\"\n[metadata]\nauthor_name = \"somebody\"\ntags = [\"x\"]\n"
        "[verifier]\ntimeout_sec = 120.0\n[agent]\ntimeout_sec = 60\n"
        "[environment]\nbuild_timeout_sec = 600.0\ncpus = 2\nmemory_mb = 512\nstorage_mb = 1024\n"
        "allow_internet = true\n");
    write_at("instruction.md", "Fix it.\n");
    write_at("environment/a.txt", "a");
    write_at("tests/test.sh", "#!/bin/bash\n");
    struct err err = {0};
    OWN(task) struct task *task = load_one(dir, &err);
    EXPECT_TEXT(err.text, "");
    EXPECT(task != NULL);
    EXPECT_TEXT(task->name, strrchr(dir, '/') + 1);
    EXPECT_TEXT(task->instruction, "Fix it.\n");
    EXPECT(task->environment_dir && task->tests_dir);
    EXPECT_TEXT(task->test_script, "test.sh");
    EXPECT_INT(task->verify_ms_max, 120000);
    EXPECT_INT(task->agent_ms_max, 60000);
    EXPECT_INT(task->memory_bytes_max, 512ll << 20);
    EXPECT_INT(task->cpu_millis, 2000);
    (void)file_remove_tree(dir, NULL);
}

TEST(an_image_is_named_or_built_and_its_task_is_roots)
{
    make_dir();
    write_at("task.toml", "version = \"1.0\"\n[environment]\nbuild_timeout_sec = 30\n");
    write_at("instruction.md", "Fix it.\n");
    write_at("environment/Dockerfile", "FROM scratch\nCOPY . /\n");
    struct err err = {0};
    OWN(task) struct task *built = load_one(dir, &err);
    EXPECT_TEXT(err.text, "");
    EXPECT(built && built->image.build_dir && !built->image.name && !built->environment_dir);
    EXPECT(built && str_ends(str_of(built->image.build_dir), STR("/environment")));
    EXPECT(built && built->root);
    EXPECT_INT(built->image.build_ms_max, 30000);

    write_at(
        "environment/Dockerfile",
        "FROM a AS x\nUSER root\nWORKDIR /old\nFROM b\nuser someone\nWORKDIR /srv\nworkdir  sub\n");
    OWN(task) struct task *user = load_one(dir, &err);
    EXPECT(user && !user->root);
    EXPECT_TEXT(user->workdir, "/srv/sub");
    write_at("environment/Dockerfile", "FROM a\nUSER someone\nFROM b\n");
    OWN(task) struct task *stages = load_one(dir, &err);
    EXPECT(stages && stages->root);

    write_at("task.toml", "[environment]\ndocker_image = \"host.example/thing:1\"\n");
    OWN(task) struct task *named = load_one(dir, &err);
    EXPECT(named != NULL);
    EXPECT_TEXT(named->image.name, "host.example/thing:1");
    EXPECT(!named->image.build_dir && !named->environment_dir && named->root);
    (void)file_remove_tree(dir, NULL);
}

static void expect_error(const char *what, const char *words)
{
    struct err err = {0};
    OWN(task) struct task *task = load_one(what, &err);
    if (task)
        test_fail(__FILE__, __LINE__, "%.60s was taken", what);
    else if (!strstr(err.text, words))
        test_fail(__FILE__, __LINE__, "\"%s\" does not say \"%s\"", err.text, words);
}

TEST(what_is_wrong_with_a_task_is_said_with_its_place)
{
    expect_error("/no/such/task", "No such file");
    expect_error("{\"instruktion\": \"x\"}", "did you mean 'instruction'");
    expect_error("{\"instruction\": \"\"}", "no instruction");
    expect_error("{\"name\": \"x\"}", "no instruction");
    expect_error("{\"instruction\": 5}", "1:");
    expect_error("{\"instruction\": \"x\", \"setup\": [1]}", "a command is a string");
    expect_error("{\"instruction\": \"x\", \"setup\": [\"\"]}", "empty command");
    expect_error("{\"instruction\": \"x\", \"workdir\": \"here\"}", "not absolute");
    expect_error("{\"instruction\": \"x\", \"files\": {\"a\": 1}}", "string");
    expect_error("{\"instruction\": \"x\", \"timeout\": \"soon\"}", "timeout");
    expect_error("{\"instruction\": \"x\"", "inline task");
    make_dir();
    write_at("bad.toml", "instruction = \"x\"\nverify = [\"a\",\n  5]\n");
    OWN(mem) char *path = mem_format("%s/bad.toml", dir);
    expect_error(path, "bad.toml:3:3");
    expect_error(dir, "no task.toml");
    write_at("task.toml", "name = \"x\"\n");
    write_at("instruction.md", "y");
    write_at("tests/helper.py", "");
    expect_error(dir, "no test.sh");
    (void)file_remove_tree(dir, NULL);
}

TEST(tools_are_the_trainers_or_programs_of_the_task)
{
    struct err err = {0};
    OWN(task)
    struct task *task = task_from_json(
        STR("{\"instruction\":\"x\",\"turns\":[\"and\",\"then\"],\"tools\":["
            "{\"name\":\"ask\",\"description\":\"d\",\"parameters\":{\"type\":\"object\"}},"
            "{\"name\":\"own\",\"command\":[\"a\",\"b "
            "c\"],\"where\":\"apart\",\"timeout\":\"5s\"}]}"),
        "t", &err);
    if (!task) {
        test_fail(__FILE__, __LINE__, "%s", err.text);
        return;
    }
    EXPECT_INT(task->tool_count, 2);
    EXPECT(!task->tools[0].command && !task->tools[0].apart);
    EXPECT_TEXT(task->tools[1].command[1], "b c");
    EXPECT(task->tools[1].apart && task_has_apart(task));
    EXPECT_INT(task->tools[1].timeout_ms, 5000);
    EXPECT_STR(task->tool_definitions,
               STR("[{\"name\":\"ask\",\"description\":\"d\",\"parameters\":{\"type\":"
                   "\"object\"}},{\"name\":\"own\",\"answered_by\":\"task\"}]"));
    EXPECT_TEXT(task->turns[1], "then");
    EXPECT(!task->turns[2]);
    expect_error("{\"instruction\":\"x\",\"tools\":[{}]}", "name");
    expect_error("{\"instruction\":\"x\",\"tools\":[{\"name\":\"a\",\"command\":[]}]}", "empty");
    expect_error("{\"instruction\":\"x\",\"tools\":[{\"name\":\"a\",\"where\":\"apart\"}]}",
                 "no command");
    expect_error("{\"instruction\":\"x\",\"tools\":[{\"name\":\"a\"},{\"name\":\"a\"}]}", "twice");
    expect_error("{\"instruction\":\"x\",\"tools\":[{\"name\":\"a\",\"parameters\":1}]}",
                 "a table");
    expect_error("{\"instruction\":\"x\",\"tools\":[{\"name\":\"a\",\"shell\":\"x\"}]}", "shell");
}

TEST(the_sample_tasks_read)
{
    static const char *const names[] = {"fix-failing-test", "write-a-program", "parse-a-log",
                                        "repair-git", "edit-config"};
    for (size_t i = 0; i < COUNT(names); i++) {
        OWN(mem) char *path = mem_format("%s/tasks/%s", POSTERN_SOURCE_DIR, names[i]);
        struct err err = {0};
        OWN(task) struct task *task = load_one(path, &err);
        if (!task || !task_has_verifier(task))
            test_fail(__FILE__, __LINE__, "%s: %s", names[i], err.text);
    }
}

TEST(the_current_fields_of_the_harbor_format_are_read)
{
    make_dir();
    write_at(
        "task.toml",
        "schema_version = \"1.3\"\n"
        "artifacts = [\"out\", {source = \"/var/x\", destination = \"y\", exclude = [\"z\"]}]\n"
        "[task]\nname = \"org/thing\"\ndescription = \"words\"\nkeywords = [\"a\"]\n"
        "authors = [{name = \"n\", email = \"e\"}]\n"
        "[agent]\ntimeout_sec = 5.5\nuser = \"worker\"\nenv = {A = \"1\"}\n"
        "[verifier]\nuser = \"judge\"\nenv = {KEY = \"${HOST_KEY:-none}\"}\n"
        "environment_mode = \"separate\"\n"
        "[[verifier.collect]]\ncommand = \"make dump\"\ntimeout_sec = 9\n"
        "[verifier.environment]\ndocker_image = \"judge:1\"\ncpus = 2\n"
        "[environment]\nnetwork_mode = \"no-network\"\nmemory = \"1G\"\nstorage = \"2G\"\n"
        "cpus = 0.5\nos = \"linux\"\ngpus = 0\n"
        "[environment.healthcheck]\ncommand = \"true\"\nretries = 2\n"
        "[solution]\nenv = {S = \"2\"}\n");
    write_at("instruction.md", "Do.\n");
    write_at("tests/test.sh", "");
    write_at("solution/solve.sh", "");
    struct err err = {0};
    OWN(task) struct task *task = load_one(dir, &err);
    EXPECT_TEXT(err.text, "");
    EXPECT(task != NULL);
    EXPECT_TEXT(task->name, "org/thing");
    EXPECT_TEXT(task->artifacts[1], "/var/x");
    EXPECT_TEXT(task->agent_user, "worker");
    EXPECT(!task->root);
    EXPECT_INT(task->agent_ms_max, 5500);
    EXPECT_TEXT(task->agent_env[0], "A=1");
    EXPECT_TEXT(task->verify_user, "judge");
    EXPECT(task->separate_verify);
    EXPECT_TEXT(task->verify_image.name, "judge:1");
    EXPECT_INT(task->collect_count, 1);
    EXPECT_INT(task->collect[0].timeout_ms, 9000);
    EXPECT_INT(task->network, TASK_NETWORK_NONE);
    EXPECT_INT(task->cpu_millis, 500);
    EXPECT_INT(task->memory_bytes_max, 1ll << 30);
    EXPECT_INT(task->setup_count, 1);
    EXPECT(strstr(task->setup[0].shell, "health check") != NULL);
    EXPECT(task_has_solution(task));
    EXPECT_TEXT(task->solution_env[0], "S=2");
    EXPECT(!task->warnings);
    (void)file_remove_tree(dir, NULL);
}

TEST(unknown_keys_of_a_directory_are_warnings_with_their_place)
{
    make_dir();
    write_at("task.toml", "version = \"1.0\"\nnew_key = 1\n[agent]\nfuture = {a = 1}\n");
    write_at("instruction.md", "Do.\n");
    struct err err = {0};
    OWN(task) struct task *task = load_one(dir, &err);
    EXPECT(task && task->warnings && task->warnings[0] && task->warnings[1]);
    EXPECT(strstr(task->warnings[0], "task.toml:2:1") && strstr(task->warnings[0], "new_key"));
    EXPECT(strstr(task->warnings[1], "future") && !task->warnings[2]);
    (void)file_remove_tree(dir, NULL);
}

static void expect_refused(const char *toml, const char *words)
{
    write_at("task.toml", toml);
    expect_error(dir, words);
}

TEST(what_cannot_be_had_here_is_refused_by_name)
{
    make_dir();
    write_at("instruction.md", "Do.\n");
    expect_refused("[environment]\ngpus = 2\n", "GPU");
    expect_refused("[environment]\nos = \"windows\"\n", "windows");
    expect_refused("[environment]\ntpu = {type = \"x\"}\n", "TPU");
    expect_refused("[environment]\nnetwork_mode = \"sometimes\"\n", "network_mode");
    expect_refused("[environment]\ndocker_image = \"-x\"\n", "name of an image");
    expect_refused("[environment]\ndocker_image = \"..\"\n", "name of an image");
    expect_refused("[environment]\ndocker_image = \"\"\n", "name of an image");
    expect_refused("[verifier]\ncarry = [\"etc\"]\n", "carry");
    expect_refused("[[verifier.collect]]\ncommand = \"x\"\nservice = \"db\"\n", "service");
    expect_refused("artifacts = [{source = \"x\", service = \"db\"}]\n", "service");
    write_at("environment/docker-compose.yaml", "");
    expect_refused("version = \"1.0\"\n", "side services");
    (void)file_remove_tree(dir, NULL);
}

TEST(a_network_a_task_asks_for_is_refused_where_there_is_none)
{
    static const struct {
        const char *mode;
        bool off, fine;
    } cases[] = {{"no-network", true, true}, {"no-network", false, false},
                 {"public", true, false},    {"public", false, true},
                 {"allowlist", true, false}, {"allowlist", false, false}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct err err = {0};
        OWN(mem)
        char *json = mem_format("{\"instruction\":\"x\",\"environment\":{\"network_mode\":\"%s\"}}",
                                cases[i].mode);
        OWN(task) struct task *task = task_from_json(str_of(json), "t", &err);
        EXPECT(task != NULL);
        EXPECT_INT(task_network_check(task, cases[i].off, &err), cases[i].fine ? 0 : -1);
        EXPECT(cases[i].fine || (err.kind == ERR_UNSUPPORTED && strstr(err.text, cases[i].mode)));
    }
}

/* ---------------------------------------------------------------- steps */
static void write_steps(const char *more)
{
    OWN(mem)
    char *toml = mem_format("multi_step_reward_strategy = \"mean\"\n[agent]\ntimeout_sec = 50\n"
                            "[[steps]]\nname = \"one\"\nmin_reward = 0.5\n"
                            "[steps.agent]\ntimeout_sec = 7\n"
                            "[[steps]]\nname = \"two\"\n%s",
                            more);
    write_at("task.toml", toml);
    write_at("steps/one/instruction.md", "First.\n");
    write_at("steps/one/tests/test.sh", "");
    write_at("steps/one/workdir/setup.sh", "");
    write_at("steps/two/instruction.md", "Second.\n");
    write_at("steps/two/solution/solve.sh", "");
    write_at("tests/test.sh", "");
}

TEST(steps_are_tasks_of_their_own_with_what_the_task_says_for_all)
{
    make_dir();
    write_steps("[steps.verifier]\ntimeout_sec = 3\nenv = {B = \"2\"}\n");
    struct err err = {0};
    OWN(task) struct task *task = load_one(dir, &err);
    EXPECT_TEXT(err.text, "");
    EXPECT(task && task->step_count == 2);
    struct task *one = task->steps[0], *two = task->steps[1];
    EXPECT_TEXT(task->instruction, "First.\n");
    EXPECT_TEXT(one->name, "one");
    EXPECT(one->reward_min_count == 1 && one->reward_min[0].value == 0.5);
    EXPECT(!one->reward_min[0].name && !two->reward_min_count);
    EXPECT_INT(one->agent_ms_max, 7000);
    EXPECT_INT(two->agent_ms_max, 50000);
    EXPECT_INT(two->verify_ms_max, 3000);
    EXPECT_TEXT(two->verify_env[0], "B=2");
    EXPECT(one->tests_more && !two->tests_more && two->tests_dir);
    EXPECT_INT(one->setup_count, 1);
    EXPECT(two->solution_dir && !one->solution_dir && !task_has_solution(task));
    EXPECT(!task->warnings);
    (void)file_remove_tree(dir, NULL);
}

TEST(steps_that_cannot_be_are_refused)
{
    make_dir();
    write_steps("[[steps]]\nname = \"three\"\n");
    expect_error(dir, "no directory steps/three");
    write_steps("[[steps]]\nname = \"../x\"\n");
    expect_error(dir, "cannot be the name");
    write_steps("[[steps]]\nname = \"one\"\n");
    expect_error(dir, "two steps");
    write_steps("min_reward = \"much\"\n");
    expect_error(dir, "min_reward");
    write_steps("min_reward = { safe = true }\n");
    expect_error(dir, "min_reward");
    write_steps("");
    OWN(mem) char *path = mem_format("%s/steps/two/instruction.md", dir);
    unlink(path);
    expect_error(dir, "no instruction");
    (void)file_remove_tree(dir, NULL);
}

TEST(a_step_may_ask_for_named_rewards)
{
    make_dir();
    write_steps(
        "min_reward = { safe = 1, reward = 0.5 }\n[steps.healthcheck]\ncommand = \"true\"\n");
    struct err err = {0};
    OWN(task) struct task *task = load_one(dir, &err);
    EXPECT_TEXT(err.text, "");
    struct task *two = task->steps[1];
    EXPECT_INT(two->reward_min_count, 2);
    EXPECT_INT(two->setup_count, 1);
    struct trace_reward reward = {.known = true, .value = 0.5, .detail = STR("{\"safe\":1}")};
    EXPECT(task_reward_suffices(two, &reward));
    reward.value = 0.4;
    EXPECT(!task_reward_suffices(two, &reward));
    reward = (struct trace_reward){.known = true, .value = 1, .detail = STR("{\"safe\":0.9}")};
    EXPECT(!task_reward_suffices(two, &reward));
    reward.detail = STR_NONE;
    EXPECT(!task_reward_suffices(two, &reward));
    EXPECT(task_reward_suffices(task->steps[0], &reward));
    (void)file_remove_tree(dir, NULL);
}

TEST(rewards_of_steps_are_rolled_up)
{
    struct task task = {.roll_up = TASK_ROLL_UP_MEAN};
    OWN(arena) struct arena arena = {0};
    struct trace_reward each[3] = {{.known = true, .value = 1, .detail = STR("{\"a\": 1}")},
                                   {.known = true, .value = 0.5, .detail = STR("{\"b\": 0.75}")},
                                   {.known = false}};
    struct trace_reward mean = task_roll_up(&task, each, 3, &arena);
    EXPECT(mean.known && mean.value == 0.5);
    EXPECT(str_find(mean.detail, STR("\"a\":0.3333")) > 0);
    EXPECT(str_find(mean.detail, STR("\"b\":0.25")) > 0);
    task.roll_up = TASK_ROLL_UP_FINAL;
    struct trace_reward final = task_roll_up(&task, each, 3, &arena);
    EXPECT(final.value == 0.5);
}

/* ---------------------------------------------------------------- host variables */
TEST(host_variables_are_read_late_and_hidden_afterwards)
{
    struct err err = {0};
    OWN(arena) struct arena arena = {0};
    const char *const *out = NULL, *const *secrets = NULL;
    OWN(task) struct task *task = load_one("{\"instruction\": \"x\"}", &err);
    const char *const list[] = {"A=${TASK_TEST_KEY}", "B=x-${TASK_TEST_NONE:-y}-z", "C=$plain${",
                                NULL};
    setenv("TASK_TEST_KEY", "very secret", 1);
    EXPECT_INT(task_env_resolve(task, list, &arena, &out, &secrets, &err), 0);
    EXPECT_TEXT(out[0], "A=very secret");
    EXPECT_TEXT(out[1], "B=x-y-z");
    EXPECT_TEXT(out[2], "C=$plain${");
    OWN(buf) struct buf text = {0};
    buf_str_append(&text, STR("it is very secret, very secret!"));
    task_secrets_hide(secrets, &text);
    EXPECT_STR(buf_str(&text), STR("it is [TASK_TEST_KEY], [TASK_TEST_KEY]!"));

    /* One that is a part of another, and what a cut leaves of them. */
    const char *const more[] = {"D=${TASK_TEST_LONG}", NULL};
    setenv("TASK_TEST_LONG", "a very secret key", 1);
    EXPECT_INT(task_env_resolve(task, more, &arena, &out, &secrets, &err), 0);
    buf_clear(&text);
    buf_str_append(&text, STR("a very secret key and very secret things"));
    task_secrets_hide(secrets, &text);
    EXPECT_STR(buf_str(&text), STR("[TASK_TEST_LONG] and [TASK_TEST_KEY] things"));
    buf_clear(&text);
    buf_str_append(&text, STR("ry secret key of a very secr"));
    task_secrets_trim(secrets, &text, true);
    EXPECT_STR(buf_str(&text), STR(" of a very secr"));
    task_secrets_trim(secrets, &text, false);
    EXPECT_STR(buf_str(&text), STR(" of "));
    task_secrets_trim(secrets, &text, false);
    EXPECT_STR(buf_str(&text), STR(" of "));
    task_secrets_trim(NULL, &text, true);
    EXPECT_STR(buf_str(&text), STR(" of "));
    /* What was cut holds another that is whole, and was hidden. */
    buf_clear(&text);
    buf_str_append(&text, STR(" very secret key of a very secret ke"));
    task_secrets_hide(secrets, &text);
    task_secrets_trim(secrets, &text, true);
    EXPECT_STR(buf_str(&text), STR(" of a [TASK_TEST_KEY] ke"));
    task_secrets_trim(secrets, &text, false);
    EXPECT_STR(buf_str(&text), STR(" of "));

    const char *const missing[] = {"A=${TASK_TEST_NONE}", NULL};
    EXPECT_INT(task_env_resolve(task, missing, &arena, &out, NULL, &err), -1);
    EXPECT(strstr(err.text, "TASK_TEST_NONE") != NULL);
    setenv("POSTERN_MODEL_KEY", "sk", 1);
    const char *const own[] = {"A=${POSTERN_MODEL_KEY}", NULL};
    EXPECT_INT(task_env_resolve(task, own, &arena, &out, NULL, &err), -1);
    EXPECT_INT(err.kind, ERR_DENIED);
    OWN(task) struct task *sent = task_from_json(STR("{\"instruction\":\"x\"}"), "'task'", &err);
    EXPECT_INT(task_env_resolve(sent, list, &arena, &out, NULL, &err), -1);
    EXPECT_INT(err.kind, ERR_DENIED);
}

/* ---------------------------------------------------------------- sets */
static size_t load_count(const char *what, char *names, size_t size)
{
    struct task **tasks = NULL;
    size_t count = 0;
    struct err err = {0};
    names[0] = '\0';
    if (task_load(what, &tasks, &count, &err) < 0) {
        snprintf(names, size, "%s", err.text);
        return 0;
    }
    for (size_t i = 0; i < count; i++) {
        strncat(names, tasks[i]->name, size - strlen(names) - 2);
        strcat(names, " ");
    }
    task_list_free(tasks, count);
    return count;
}

TEST(a_selection_of_a_file_of_lines_is_loaded)
{
    make_dir();
    OWN(buf) struct buf text = {0};
    for (int i = 0; i < 20; i++)
        buf_format(&text, "{\"instruction\":\"do %d\",\"id\":\"t%d\"}\n%s", i, i,
                   i % 3 ? "" : "\n");
    write_at("many.jsonl", buf_text(&text));
    static const struct {
        const char *selection, *names;
    } cases[] = {{"#3", "t3 "},     {"#18-19", "t18 t19 "}, {"#t7", "t7 "}, {"#18-40", "t18 t19 "},
                 {"#nobody", NULL}, {"#20", NULL},          {"#", NULL}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        OWN(mem) char *what = mem_format("%s/many.jsonl%s", dir, cases[i].selection);
        char names[400];
        size_t count = load_count(what, names, sizeof names);
        EXPECT(!cases[i].names == !count);
        if (cases[i].names)
            EXPECT_TEXT(names, cases[i].names);
    }
    (void)file_remove_tree(dir, NULL);
}

TEST(a_directory_of_tasks_stands_for_each_of_them)
{
    make_dir();
    write_at("b/task.toml", "");
    write_at("b/instruction.md", "B");
    write_at("a/task.toml", "");
    write_at("a/instruction.md", "A");
    write_at("notes/readme", "");
    char names[200];
    EXPECT_INT(load_count(dir, names, sizeof names), 2);
    EXPECT_TEXT(names, "a b ");
    (void)file_remove_tree(dir, NULL);
}

TEST(what_the_verifier_sees_of_system_directories_is_the_tasks_choice)
{
    struct err err = {0};
    const char *names[TASK_SYSTEM_DIRS_MAX + 1];
    OWN(task) struct task *plain = load_one("{\"instruction\": \"x\"}", &err);
    size_t all = task_pristine_dirs(plain, NULL, names);
    EXPECT(all >= 8);
    EXPECT_INT(task_pristine_dirs(plain, (const char *const[]){"/etc/x", "/usr", NULL}, names),
               all - 2);
    OWN(task)
    struct task *root = load_one("{\"instruction\": \"x\", \"workdir\": \"/root/x\", "
                                 "\"verifier\": {\"carry\": [\"/etc/nginx\"]}}",
                                 &err);
    EXPECT_INT(task_pristine_dirs(root, NULL, names), all - 2);
    for (size_t i = 0; names[i]; i++)
        EXPECT(strcmp(names[i], "etc") != 0 && strcmp(names[i], "root") != 0);
    OWN(task)
    struct task *everything =
        load_one("{\"instruction\": \"x\", \"verifier\": {\"carry\": [\"/\"]}}", &err);
    EXPECT_INT(task_pristine_dirs(everything, NULL, names), 0);
}
