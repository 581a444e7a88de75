/* The runtime room through its door: one command in a sandbox, a batch, and what a dead server
 * left. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "config/config.h"
#include "json/json.h"
#include "runtime/runtime.h"
#include "store/store.h"
#include "test.h"

static char home[] = "/tmp/test-runtime-XXXXXX";
static struct config config;

static void begin(void)
{
    struct err err = {0};
    OWN(mem) char *porter = mem_format("%s/postern-porter", runtime_program_dir());
    if (!file_exists(porter))
        SKIP("postern-porter is not built");
    if (!mkdtemp(home))
        abort();
    config_init(&config);
    if (config_set(&config, "home", home, "test", &err) < 0 ||
        config_set(&config, "lanes", "2", "test", &err) < 0 ||
        config_set(&config, "sandbox.isolation", "no-limits", "test", &err) < 0)
        abort();
}

static void end(void)
{
    config_deinit(&config);
    (void)file_remove_tree(home, NULL);
}

static char *at_home(const char *name)
{
    return mem_format("%s/%s", home, name);
}

static void write_at(const char *name, const char *text)
{
    OWN(mem) char *path = at_home(name);
    char *slash = strrchr(path, '/');
    *slash = '\0';
    if (file_make_dirs(path, 0755, NULL) < 0)
        abort();
    *slash = '/';
    if (file_write(path, str_of(text), 0644, false, NULL) < 0)
        abort();
}

/* ---------------------------------------------------------------- exec */
static struct buf said;

/* Runs a shell command with `input` on standard input; what it prints comes to `said`. */
static int exec_sh(const char *script, const char *input, uint32_t timeout_ms, char note[200])
{
    struct err err = {0};
    const char *argv[] = {"/bin/sh", "-c", script, NULL};
    struct runtime_exec exec = {
        .argv = argv, .backend = "local", .root = "host", .isolation = 1, .timeout_ms = timeout_ms};
    OWN(mem) char *in = at_home("in"), *out = at_home("out");
    write_at("in", input);
    int kept[2] = {dup(0), dup(1)};
    OWN(fd) int from = open(in, O_RDONLY | O_CLOEXEC);
    OWN(fd) int to = open(out, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    dup2(from, 0);
    dup2(to, 1);
    int code = runtime_exec(&config, &exec, note, 200, &err);
    dup2(kept[0], 0);
    dup2(kept[1], 1);
    close(kept[0]);
    close(kept[1]);
    buf_clear(&said);
    if (file_read(out, 1 << 24, &said, NULL) < 0)
        abort();
    if (code < 0)
        fprintf(stderr, "  %s\n", err.text);
    return code;
}

TEST(a_command_gets_our_streams_and_we_get_its_code)
{
    char note[200];
    begin();
    EXPECT_INT(exec_sh("cat; exit 42", "hello", 0, note), 42);
    EXPECT_STR(buf_str(&said), STR("hello"));
    EXPECT_TEXT(note, "");
    EXPECT_INT(exec_sh("kill -TERM $$", "", 0, note), 143);
    EXPECT_INT(exec_sh("exec /no/such", "", 0, note), 127);
    EXPECT_INT(exec_sh("sleep 100", "", 300, note), 124);
    EXPECT(strstr(note, "timed out") != NULL);
    EXPECT_INT(exec_sh("head -c 3000000 /dev/zero", "", 0, note), 0);
    EXPECT_INT(said.size, 3000000);
    end();
}

/* ---------------------------------------------------------------- batches and left-overs */
struct shown {
    size_t rows, finals;
    char fate[32], notes[512];
    char *result;
};

static void on_row(void *context, const struct runtime_row *row)
{
    struct shown *shown = context;
    shown->rows++;
    if (!row->final)
        return;
    shown->finals++;
    snprintf(shown->fate, sizeof shown->fate, "%s", row->fate);
    free(shown->result);
    shown->result = mem_dup(row->result);
}

static void on_note(void *context, const char *text)
{
    struct shown *shown = context;
    size_t used = strlen(shown->notes);
    snprintf(shown->notes + used, sizeof shown->notes - used, "%s\n", text);
}

static int run_batch(struct shown *shown, struct runtime_sum *sum, const char *const *tasks,
                     size_t count, uint32_t each)
{
    struct err err = {0};
    OWN(mem) char *agent = at_home("sh.toml"), *path = at_home("script.toml");
    OWN(mem) char *model = mem_format("script:%s", path);
    write_at("sh.toml",
             "name = \"sh\"\n[run]\nargv = [\"/bin/sh\", \"-s\"]\ninstruction = \"stdin\"\n");
    write_at("script.toml", "name = \"m\"\n[[rule]]\nsay = \"x\"\n");
    struct runtime_batch batch = {.agent = agent,
                                  .tasks = tasks,
                                  .task_count = count,
                                  .model = model,
                                  .each = each,
                                  .label = "label"};
    struct runtime_show show = {.on_row = on_row, .on_note = on_note, .context = shown};
    *sum = (struct runtime_sum){0};
    int result = runtime_run(&config, &batch, &show, sum, &err);
    if (result < 0)
        fprintf(stderr, "  %s\n", err.text);
    return result;
}

TEST_WITHIN(a_batch_runs_each_task_so_many_times_and_adds_up, 60)
{
    struct shown shown = {0};
    struct runtime_sum sum;
    begin();
    const char *const tasks[] = {
        "{\"instruction\":\"echo a > f\",\"verify\":[\"grep -q a f\"]}",
        "{\"instruction\":\"true\",\"verify\":[\"test -e f\"]}",
        "{\"instruction\":\"true\",\"setup\":[\"false\"]}",
    };
    EXPECT_INT(run_batch(&shown, &sum, tasks, 3, 2), 0);
    EXPECT_INT(sum.total, 6);
    EXPECT_INT(sum.final, 6);
    EXPECT_INT(shown.finals, 6);
    EXPECT_INT(sum.rewarded, 4);
    EXPECT(sum.reward_sum == 2);
    EXPECT_INT(sum.failed, 2);
    EXPECT(!sum.cancelled);
    EXPECT(strstr(shown.result, "\"run\":\"label\"") != NULL);
    free(shown.result);
    end();
}

static bool row_fate(void *context, const struct store_rollout *row)
{
    snprintf(context, 32, "%s", row->fate ? row->fate : "none");
    return true;
}

static void put_row(struct store *store, const char *id, const char *dir)
{
    struct err err = {0};
    struct store_rollout row = {.id = id,
                                .task = "t",
                                .agent = "a",
                                .stage = "provisioning",
                                .dir = dir,
                                .queued_ms = 1,
                                .prompt_tokens = -1,
                                .completion_tokens = -1};
    if (store_put_rollout(store, NULL, &row, NULL, NULL, &err) < 0)
        abort();
}

TEST_WITHIN(rollouts_of_a_dead_server_come_back_once_and_those_of_a_living_one_are_left_alone, 60)
{
    struct shown shown = {0};
    struct runtime_sum sum;
    struct err err = {0};
    begin();
    OWN(mem) char *dead = at_home("rollouts/r-dead"), *alive = at_home("rollouts/r-alive");
    OWN(mem)
    char *lock = at_home("owners/p-alive"),
         *result = at_home("rollouts/r-dead/result.json");
    write_at("rollouts/r-dead/owner", "p-dead");
    write_at("rollouts/r-alive/owner", "p-alive");
    write_at("owners/p-dead", "");
    write_at("owners/p-alive", "");
    OWN(fd) int held = open(lock, O_RDWR | O_CLOEXEC);
    EXPECT_INT(flock(held, LOCK_EX | LOCK_NB), 0);
    struct store *store = store_open(home, &err);
    EXPECT(store != NULL);
    put_row(store, "r-dead", dead);
    put_row(store, "r-alive", alive);
    store_close(store);

    const char *const tasks[] = {"{\"instruction\":\"true\"}"};
    EXPECT_INT(run_batch(&shown, &sum, tasks, 1, 1), 0);
    EXPECT(strstr(shown.notes, "1 unfinished rollout of a server that died") != NULL);
    EXPECT(file_exists(result));
    OWN(buf) struct buf text = {0};
    EXPECT_INT(file_read(result, 1 << 16, &text, &err), 0);
    EXPECT(strstr(buf_text(&text), "\"class\":\"infra_failed\"") &&
           strstr(buf_text(&text), "\"reward\":null"));

    char fate[32] = "";
    store = store_open_read(home, &err);
    EXPECT(store != NULL);
    EXPECT_INT(store_get_rollout(store, "r-dead", row_fate, fate, &err), 0);
    EXPECT_TEXT(fate, "infra_failed");
    EXPECT_INT(store_get_rollout(store, "r-alive", row_fate, fate, &err), 0);
    EXPECT_TEXT(fate, "none");
    store_close(store);

    shown.notes[0] = '\0';
    EXPECT_INT(run_batch(&shown, &sum, tasks, 1, 1), 0);
    EXPECT_TEXT(shown.notes, "");
    free(shown.result);
    end();
}

TEST(what_is_wrong_is_found_before_anything_is_built)
{
    struct err err = {0};
    OWN(buf) struct buf text = {0};
    struct json_writer out = {.out = &text};
    EXPECT_INT(runtime_agent_check("/no/such.toml", &out, &err), -1);
    EXPECT_INT(err.kind, ERR_NOT_FOUND);
    EXPECT_INT(runtime_task_check("{\"instruction\":\"x\"}", &out, &err), 0);
    buf_clear(&text);
    out = (struct json_writer){.out = &text};
    begin();
    EXPECT_INT(runtime_agents(&config, &out, &err), 0);
    EXPECT(strstr(buf_text(&text), "\"generic\"") != NULL);
    EXPECT(strstr(buf_text(&text), "\"installed\":false") != NULL);
    struct shown shown = {0};
    struct runtime_sum sum = {0};
    const char *const tasks[] = {"/no/such/task"};
    EXPECT_INT(run_batch(&shown, &sum, tasks, 1, 1), -1);
    OWN(mem) char *index = at_home("index.sqlite");
    EXPECT(!file_exists(index));
    end();
}
