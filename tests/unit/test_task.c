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

TEST(a_reward_as_json_needs_a_number_named_reward)
{
    double value = 0;
    struct str detail = STR_NONE;
    struct err err = {0};
    EXPECT(task_reward_read_json(STR("{\"reward\": 0.5, \"style\": 2}"), &value, &detail, &err));
    EXPECT(value == 0.5);
    EXPECT_STR(detail, STR("{\"reward\": 0.5, \"style\": 2}"));
    EXPECT(task_reward_read_json(STR(" 1 "), &value, &detail, &err));
    static const char *const bad[] = {"{}",
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

TEST(a_task_whose_image_has_to_be_built_is_refused_by_name)
{
    make_dir();
    write_at("task.toml", "version = \"1.0\"\n");
    write_at("instruction.md", "Fix it.\n");
    write_at("environment/Dockerfile", "FROM scratch\n");
    struct err err = {0};
    EXPECT(load_one(dir, &err) == NULL);
    EXPECT_INT(err.kind, ERR_UNSUPPORTED);
    EXPECT(strstr(err.text, "Dockerfile") != NULL);
    write_at("task.toml", "[environment]\ndocker_image = \"thing:1\"\n");
    OWN(task) struct task *task = load_one(dir, &err);
    EXPECT(task != NULL);
    EXPECT_TEXT(task->root_image, "image:thing:1");
    EXPECT(task->environment_dir == NULL);
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
