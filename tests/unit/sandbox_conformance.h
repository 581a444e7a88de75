/* sandbox_conformance.h - what every backend must do, asked of every backend.
 *
 * A test_sandbox_conformance_<backend>.c defines its `target` and includes this; every CASE is then
 * a test of its own there. To add a backend, write such a file. A target that cannot be had on this
 * machine is skipped with its reason (a failure with MUST_WORK=1). The program that runs inside is
 * inside.c. */
#ifndef SANDBOX_CONFORMANCE_H
#define SANDBOX_CONFORMANCE_H

#include "sandbox_stage.h"

#include <limits.h>

static const struct target target;

static void play(void (*act)(struct stage *stage))
{
    struct stage stage;
    struct err err = {0};
    stage_begin(&stage, &target);
    const char *reason = stage_skip_reason(&stage);
    if (!reason)
        reason = target.prepare(&stage);
    if (reason) {
        stage_end(&stage);
        SKIP("%s: %s", target.name, reason);
    }
    if (!compile_inside(stage.inside, sizeof stage.inside)) {
        test_fail(__FILE__, __LINE__, "inside.c does not compile");
        return;
    }
    stage.spec = (struct sandbox_spec){
        .backend = target.backend, .root = target.root, .label = "a label's \"text\""};
    stage_open_manager(&stage, 0, 0);
    int opened = stage_open(&stage, &stage.spec, &stage.box, &err);
    if (opened < 0 && target.local && getuid() != 0) {
        /* An ordinary user without delegated control groups has all but the limits. */
        stage.spec.isolation = SANDBOX_ISOLATION_NO_LIMITS;
        opened = stage_open(&stage, &stage.spec, &stage.box, &err);
    }
    if (opened < 0)
        test_fail(__FILE__, __LINE__, "%s: %s", target.name, err.text);
    else if (stage_put_file(&stage, stage.box, INSIDE_PATH, stage.inside, 0755, &err) < 0)
        test_fail(__FILE__, __LINE__, "%s: %s", target.name, err.text);
    else
        act(&stage);
    stage_end(&stage);
}

#define CASE(name, seconds)                                                                        \
    static void act_##name(struct stage *stage);                                                   \
    TEST_WITHIN(name, seconds)                                                                     \
    {                                                                                              \
        play(act_##name);                                                                          \
    }                                                                                              \
    static void act_##name(struct stage *stage)

/* ---------------------------------------------------------------- commands */

CASE(exit_codes_and_signals_are_told_as_they_are, 60)
{
    struct result zero = INSIDE("exit", "0"), answer = INSIDE("exit", "42");
    EXPECT_INT(zero.exit.end, SANDBOX_EXITED);
    EXPECT_INT(zero.exit.code, 0);
    EXPECT_INT(answer.exit.end, SANDBOX_EXITED);
    EXPECT_INT(answer.exit.code, 42);
    EXPECT_INT(sandbox_exit_code(&answer.exit), 42);
    struct result killed = INSIDE("raise", "9"), aborted = INSIDE("raise", "6");
    EXPECT_INT(killed.exit.end, SANDBOX_SIGNALED);
    EXPECT_INT(killed.exit.signal_number, SIGKILL);
    EXPECT_INT(aborted.exit.end, SANDBOX_SIGNALED);
    EXPECT_INT(aborted.exit.signal_number, SIGABRT);
    EXPECT_INT(sandbox_exit_code(&aborted.exit), 128 + SIGABRT);
}

CASE(a_missing_program_and_one_that_cannot_start_are_told_apart, 60)
{
    struct result missing = RUN(ARGV("/no/such/program"));
    EXPECT_INT(missing.exit.end, SANDBOX_NOT_FOUND);
    EXPECT_INT(sandbox_exit_code(&missing.exit), 127);
    EXPECT_INT(RUN(ARGV("no-such-program-in-path")).exit.end, SANDBOX_NOT_FOUND);
    struct err err = {0};
    EXPECT_INT(stage_put(stage, stage->box, "/tmp/not-executable", STR("data"), 0644, &err), 0);
    struct result denied = RUN(ARGV("/tmp/not-executable"));
    EXPECT_INT(denied.exit.end, SANDBOX_NOT_STARTED);
    EXPECT(denied.exit.text[0]);
    EXPECT_INT(sandbox_exit_code(&denied.exit), 126);
}

CASE(arguments_arrive_byte_for_byte, 60)
{
    struct result result =
        INSIDE("args", "", "two words", "$HOME `x` \"'\\", "line\nbreak", "-n", "\xff\xfe", "*");
    EXPECT_TEXT(result.out, "[][two words][$HOME `x` \"'\\][line\nbreak][-n][\xff\xfe][*]");
}

CASE(a_shell_string_runs_in_a_shell, 60)
{
    struct result result = RUN(.shell = "echo one; echo two >&2; exit 7");
    EXPECT_INT(result.exit.code, 7);
    EXPECT_TEXT(result.out, "one\n");
    EXPECT_TEXT(result.err_out, "two\n");
}

CASE(environment_is_added_or_replaced, 60)
{
    const char *const env[] = {"COLOUR=deep blue", "EMPTY=", NULL};
    EXPECT_TEXT(RUN(ARGV(INSIDE_PATH, "env", "COLOUR"), .env = env).out, "deep blue\n");
    EXPECT_TEXT(RUN(ARGV(INSIDE_PATH, "env", "EMPTY"), .env = env).out, "\n");
    EXPECT(strcmp(RUN(ARGV(INSIDE_PATH, "env", "PATH"), .env = env).out, "(unset)\n") != 0);
    EXPECT_TEXT(RUN(ARGV(INSIDE_PATH, "env", "PATH"), .env = env, .env_only = true).out,
                "(unset)\n");
    setenv("POSTERN_TEST_SECRET", "of the host", 1);
    EXPECT_TEXT(INSIDE("env", "POSTERN_TEST_SECRET").out, "(unset)\n");
}

CASE(the_working_directory_is_the_one_asked_for, 60)
{
    EXPECT_TEXT(RUN(ARGV(INSIDE_PATH, "cwd"), .cwd = "/tmp").out, "/tmp\n");
    struct result none = RUN(ARGV(INSIDE_PATH, "cwd"), .cwd = "/no/such/dir");
    EXPECT_INT(none.exit.end, SANDBOX_NOT_STARTED);
    EXPECT(strstr(none.exit.text, "/no/such/dir") || none.exit.text[0]);
    /* The default one can be written to. */
    EXPECT_INT(RUN(.shell = "echo x > here && cat here").exit.code, 0);
}

CASE(commands_run_as_an_ordinary_user, 60)
{
    struct result result = INSIDE("ids");
    EXPECT_INT(result.exit.code, 0);
    EXPECT(strncmp(result.out, "0:", 2) != 0);
}

CASE(input_is_carried_to_its_end, 60)
{
    size_t size = 3 << 20;
    char *data = arena_alloc(&stage_memory, size);
    memset(data, 'x', size);
    struct result result =
        stage_run(stage, stage->box, (struct sandbox_command){ARGV(INSIDE_PATH, "count")},
                  str_make(data, size));
    EXPECT_TEXT(result.out, "3145728\n");
    EXPECT_TEXT(INSIDE("count").out, "0\n"); /* without input it is empty, not a wait */
}

CASE(both_streams_arrive_apart_and_whole, 60)
{
    struct result result = INSIDE("say", "to out", "to err");
    EXPECT_TEXT(result.out, "to out");
    EXPECT_TEXT(result.err_out, "to err");
    struct result much = INSIDE("spew", "1000000");
    EXPECT_INT(much.exit.code, 0);
    EXPECT_INT(much.out_size, 1000000);
}

static int processes_tagged(struct stage *stage, const char *tag)
{
    struct result result = INSIDE("tagged", tag);
    return result.exit.end == SANDBOX_EXITED ? atoi(result.out) : -1;
}

CASE(a_timeout_kills_the_whole_tree_and_says_so, 60)
{
    struct result result =
        RUN(ARGV(INSIDE_PATH, "tree", "tag-timeout"), .timeout_ms = 2000, .grace_ms = 100);
    EXPECT_INT(result.exit.end, SANDBOX_TIMED_OUT);
    EXPECT_INT(sandbox_exit_code(&result.exit), 124);
    EXPECT_TEXT(result.out, "up\n");
    EXPECT_INT(processes_tagged(stage, "tag-timeout"), 0);
}

CASE(what_a_command_leaves_behind_goes_with_it_unless_detached, 60)
{
    EXPECT_TEXT(INSIDE("leave", "tag-left").out, "left\n");
    EXPECT_INT(processes_tagged(stage, "tag-left"), 0);
    EXPECT_TEXT(RUN(ARGV(INSIDE_PATH, "leave", "tag-kept"), .detached = true).out, "left\n");
    EXPECT_INT(processes_tagged(stage, "tag-kept"), 1);
}

struct watcher {
    char out[4096]; /* the first of it, terminated */
    size_t out_size;
    bool exited, started;
    struct sandbox_exit exit;
    uint64_t bytes;
    struct sandbox_job *job;
};

static void watch_output(void *context, int stream, struct str data)
{
    struct watcher *watcher = context;
    (void)stream;
    watcher->started = true;
    watcher->bytes += data.size;
    struct str kept = str_upto(data, sizeof watcher->out - 1 - watcher->out_size);
    memcpy(watcher->out + watcher->out_size, kept.data, kept.size);
    watcher->out_size += kept.size;
}

static void watch_exit(void *context, const struct sandbox_exit *exit)
{
    struct watcher *watcher = context;
    watcher->exited = true;
    watcher->exit = *exit;
}

static const struct sandbox_job_handlers watching = {.on_output = watch_output,
                                                     .on_exit = watch_exit};

static void start(struct stage *stage, struct watcher *watcher, struct sandbox_command command)
{
    watcher->job = sandbox_run(stage->box, &command, &watching, watcher);
}
#define START(watcher, ...) start(stage, watcher, (struct sandbox_command){__VA_ARGS__})

CASE(a_job_can_be_signalled_and_killed, 60)
{
    struct watcher sleeper = {0}, tree = {0};
    START(&sleeper, ARGV(INSIDE_PATH, "sleep", "tag-sleep"));
    START(&tree, ARGV(INSIDE_PATH, "tree", "tag-tree"), .grace_ms = 100);
    stage_until(stage, &sleeper.started);
    stage_until(stage, &tree.started);
    EXPECT(!sandbox_job_is_done(sleeper.job));
    sandbox_job_signal(sleeper.job, SIGUSR1);
    stage_until(stage, &sleeper.exited);
    EXPECT_INT(sleeper.exit.end, SANDBOX_SIGNALED);
    EXPECT_INT(sleeper.exit.signal_number, SIGUSR1);
    EXPECT(sandbox_job_is_done(sleeper.job));
    sandbox_job_kill(tree.job);
    stage_until(stage, &tree.exited);
    EXPECT_INT(tree.exit.end, SANDBOX_KILLED);
    EXPECT_INT(processes_tagged(stage, "tag-tree"), 0);
    sandbox_job_close(sleeper.job);
    sandbox_job_close(tree.job);
}

CASE(closing_a_running_job_ends_it_silently, 60)
{
    struct watcher tree = {0};
    START(&tree, ARGV(INSIDE_PATH, "tree", "tag-closed"), .grace_ms = 50);
    stage_until(stage, &tree.started);
    sandbox_job_close(tree.job);
    while (processes_tagged(stage, "tag-closed") != 0)
        loop_once(stage->loop, 20);
    EXPECT(!tree.exited);
}

CASE(a_terminal_is_a_terminal, 60)
{
    struct watcher watcher = {0};
    START(&watcher, ARGV(INSIDE_PATH, "terminal"), .pty = true, .rows = 33, .columns = 111);
    stage_until(stage, &watcher.exited);
    EXPECT_INT(watcher.exit.code, 0);
    EXPECT(strstr(watcher.out, "111 33 111") != NULL);
    sandbox_job_close(watcher.job);
    struct result plain = INSIDE("terminal");
    EXPECT(strncmp(plain.out, "000", 3) == 0);
}

CASE(output_past_its_maximum_is_dropped_and_counted, 60)
{
    struct result result = RUN(ARGV(INSIDE_PATH, "spew", "5000000"), .output_bytes_max = 100000);
    EXPECT_INT(result.exit.end, SANDBOX_EXITED);
    EXPECT_INT(result.exit.code, 0);
    EXPECT_INT(result.out_size, 100000);
    EXPECT_INT(result.exit.output_bytes_dropped, 4900000);
}

CASE(a_paused_job_blocks_itself_and_nobody_else, 60)
{
    struct watcher loud = {0};
    START(&loud, ARGV(INSIDE_PATH, "spew", "20000000"));
    stage_until(stage, &loud.started);
    sandbox_job_pause(loud.job);
    uint64_t before = loud.bytes;
    for (int i = 0; i < 5; i++)
        EXPECT_INT(INSIDE("exit", "3").exit.code, 3);
    EXPECT(!loud.exited);
    EXPECT(loud.bytes - before < 4u << 20); /* what was under way, no more */
    sandbox_job_resume(loud.job);
    stage_until(stage, &loud.exited);
    EXPECT_INT(loud.bytes, 20000000);
    EXPECT_INT(loud.exit.code, 0);
    sandbox_job_close(loud.job);
}

CASE(kill_all_leaves_only_the_porter, 60)
{
    struct watcher tree = {0};
    START(&tree, ARGV(INSIDE_PATH, "tree", "tag-all"));
    stage_until(stage, &tree.started);
    EXPECT_TEXT(RUN(ARGV(INSIDE_PATH, "leave", "tag-all"), .detached = true).out, "left\n");
    struct waiting waiting = {0};
    sandbox_kill_all(stage->box, stage_on_done, &waiting);
    stage_until(stage, &waiting.done);
    EXPECT_INT(waiting.err.kind, ERR_NONE);
    stage_until(stage, &tree.exited);
    EXPECT_INT(processes_tagged(stage, "tag-all"), 0);
    sandbox_job_close(tree.job);
}

/* ---------------------------------------------------------------- files */

CASE(a_file_makes_the_round_trip, 60)
{
    struct err err = {0};
    char bytes[256];
    for (int i = 0; i < 256; i++)
        bytes[i] = (char)i;
    const char *path = "/tmp/made/by the way/-file\n\xff";
    EXPECT_INT(stage_put(stage, stage->box, path, str_make(bytes, 256), 0640, &err), 0);
    struct str got;
    EXPECT_INT(stage_get(stage, stage->box, path, &got, &err), 0);
    EXPECT_STR(got, str_make(bytes, 256));
    struct sandbox_stat stat = stage_stat(stage, stage->box, path, &err);
    EXPECT_INT(stat.kind, SANDBOX_FILE_REGULAR);
    EXPECT_INT(stat.size, 256);
    EXPECT_INT(stat.mode & 0777, 0640);
    EXPECT_INT(stage_stat(stage, stage->box, "/tmp/made", &err).kind, SANDBOX_FILE_DIRECTORY);
    EXPECT_INT(stage_stat(stage, stage->box, "/tmp/missing", &err).kind, SANDBOX_FILE_NONE);
    EXPECT_INT(err.kind, ERR_NONE);
    EXPECT(stage_get(stage, stage->box, "/tmp/missing", &got, &err) < 0);
    EXPECT_INT(err.kind, ERR_NOT_FOUND);
    /* The command sees the same file. */
    struct result seen = RUN(ARGV("cat", path));
    EXPECT_INT(seen.out_size, 256);
}

CASE(remove_takes_a_tree_and_forgives_a_missing_one, 60)
{
    struct err err = {0};
    EXPECT_INT(stage_put(stage, stage->box, "/tmp/tree/a/b/c", STR("x"), 0644, &err), 0);
    for (int i = 0; i < 2; i++) {
        struct waiting waiting = {0};
        sandbox_remove(stage->box, "/tmp/tree", stage_on_done, &waiting);
        stage_until(stage, &waiting.done);
        EXPECT_INT(waiting.err.kind, ERR_NONE);
        EXPECT_INT(stage_stat(stage, stage->box, "/tmp/tree", &err).kind, SANDBOX_FILE_NONE);
    }
}

CASE(files_go_where_tasks_and_agents_want_them, 60)
{
    static const char *const paths[] = {"/opt/postern/bin/x", "/app/x",  "/tests/x",
                                        "/logs/verifier/x",   "/work/x", "x"};
    struct err err = {0};
    for (size_t i = 0; i < COUNT(paths); i++) {
        if (stage_put(stage, stage->box, paths[i], STR("content"), 0644, &err) < 0)
            EXPECT_TEXT(err.text, "");
        EXPECT_TEXT(RUN(ARGV("cat", paths[i])).out, "content");
    }
}

static unsigned char sample(size_t at)
{
    return (unsigned char)(at * 131 + (at >> 9) * 7);
}

static STAGE_UNUSED void big_file(struct stage *stage, size_t size)
{
    char from[128], to[128];
    snprintf(from, sizeof from, "%s/from", stage->dir);
    snprintf(to, sizeof to, "%s/to", stage->dir);
    int file = open(from, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    static unsigned char chunk[1 << 20], back[1 << 20];
    for (size_t at = 0; at < size; at += sizeof chunk) {
        for (size_t i = 0; i < sizeof chunk; i++)
            chunk[i] = sample(at + i);
        EXPECT_INT(write(file, chunk, sizeof chunk), sizeof chunk);
    }
    struct err err = {0};
    close(file);
    EXPECT_INT(stage_put_file(stage, stage->box, "/tmp/big", from, 0644, &err), 0);
    EXPECT_INT(stage_stat(stage, stage->box, "/tmp/big", &err).size, size);
    unlink(from);
    file = open(to, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    struct waiting waiting = {0};
    sandbox_get_fd(stage->box, "/tmp/big", file, size, stage_on_done, &waiting);
    stage_until(stage, &waiting.done);
    EXPECT_INT(waiting.err.kind, ERR_NONE);
    EXPECT_INT(lseek(file, 0, SEEK_END), size);
    for (size_t at = 0; at < size; at += sizeof back) {
        EXPECT_INT(pread(file, back, sizeof back, (off_t)at), sizeof back);
        for (size_t i = 0; i < sizeof back; i++)
            if (back[i] != sample(at + i))
                EXPECT_INT(at + i, SIZE_MAX); /* the first byte that differs */
    }
    close(file);
}

CASE(a_large_file_makes_the_round_trip, 120)
{
    big_file(stage, 64 << 20);
}

static const char *const hostile_names[] = {
    "plain",    "with space", "line\nbreak", "-rf",   "--",
    "\xff\xfe", "*",          "$(id)",       "'\"\\", "..hidden",
};

static void host_tree(const char *dir, int files)
{
    char path[PATH_MAX];
    (void)mkdir(dir, 0755);
    for (size_t i = 0; i < COUNT(hostile_names); i++) {
        snprintf(path, sizeof path, "%s/%s.d", dir, hostile_names[i]);
        (void)mkdir(path, 0750);
        snprintf(path, sizeof path, "%s/%s.d/%s", dir, hostile_names[i], hostile_names[i]);
        host_write(path, i % 2 ? 0755 : 0600, "content of %zu\n", i);
        snprintf(path, sizeof path, "%s/%s.link", dir, hostile_names[i]);
        (void)symlink(i % 2 ? "/etc/passwd" : "plain.d/plain", path);
    }
    for (int i = 0; i < files; i++) {
        snprintf(path, sizeof path, "%s/n%02d", dir, i % 100);
        (void)mkdir(path, 0755);
        snprintf(path, sizeof path, "%s/n%02d/file %d", dir, i % 100, i);
        host_write(path, 0644, "%d", i);
    }
}

static STAGE_UNUSED void round_trip_of_tree(struct stage *stage, int files)
{
    char from[128], to[128], script[600];
    snprintf(from, sizeof from, "%s/from", stage->dir);
    snprintf(to, sizeof to, "%s/to", stage->dir);
    host_tree(from, files);
    struct waiting put = {0}, get = {0}, small = {0};
    sandbox_put_tree(stage->box, from, "/tmp/tree", NULL, stage_on_done, &put);
    stage_until(stage, &put.done);
    EXPECT_TEXT(put.err.text, "");
    sandbox_get_tree(stage->box, "/tmp/tree", to, NULL, stage_on_done, &get);
    stage_until(stage, &get.done);
    EXPECT_TEXT(get.err.text, "");
    snprintf(
        script, sizeof script,
        "diff -r --no-dereference %s %s && [ \"$(cd %s && find . -printf '%%m %%l %%P\\0' | "
        "sort -z | cksum)\" = \"$(cd %s && find . -printf '%%m %%l %%P\\0' | sort -z | cksum)\" ]",
        from, to, from, to);
    EXPECT_INT(HOST("sh", "-c", script), 0);
    struct sandbox_budget budget = {.entries_max = 5};
    snprintf(to, sizeof to, "%s/small", stage->dir);
    sandbox_get_tree(stage->box, "/tmp/tree", to, &budget, stage_on_done, &small);
    stage_until(stage, &small.done);
    EXPECT_INT(small.err.kind, ERR_LIMIT);
    EXPECT_INT(INSIDE("exit", "5").exit.code, 5); /* and all is well afterwards */
}

CASE(a_tree_with_hostile_names_makes_the_round_trip, 60)
{
    round_trip_of_tree(stage, 200);
}

/* ---------------------------------------------------------------- what comes out */

/* An echo server on the inlet: a process of its own per connection keeps the test simple. */
struct inlet {
    int connections;
};

static void echo_back(void *context, int fd)
{
    struct inlet *inlet = context;
    inlet->connections++;
    pid_t pid = fork();
    if (pid == 0) {
        if (fork() > 0)
            _exit(0); /* the echo is nobody's child */
        static char chunk[65536];
        fcntl(fd, F_SETFL, 0);
        for (ssize_t count; (count = read(fd, chunk, sizeof chunk)) > 0;)
            for (ssize_t sent = 0, more; sent < count; sent += more)
                if ((more = write(fd, chunk + sent, (size_t)(count - sent))) < 0)
                    _exit(1);
        _exit(0);
    }
    waitpid(pid, NULL, 0);
    close(fd);
}

CASE(the_inlet_is_reached_from_inside_at_its_port, 60)
{
    struct inlet inlet = {0};
    sandbox_on_inlet(stage->box, echo_back, &inlet);
    struct result hello = INSIDE("echo", "13131", "hello, gateway");
    EXPECT_TEXT(hello.out, "hello, gateway");
    EXPECT_INT(inlet.connections, 1);
    struct result pumped = INSIDE("pump", "13131", "8000000");
    EXPECT_TEXT(pumped.out, "8000000\n");
    EXPECT_INT(inlet.connections, 2);
}

CASE(connections_wait_until_somebody_takes_them, 60)
{
    struct inlet inlet = {0};
    struct watcher early = {0};
    START(&early, .shell = "echo go; exec " INSIDE_PATH " echo 13131 early");
    stage_until(stage, &early.started);
    EXPECT_INT(INSIDE("exit", "0").exit.code,
               0); /* time for it to connect; either way it must work */
    sandbox_on_inlet(stage->box, echo_back, &inlet);
    stage_until(stage, &early.exited);
    EXPECT_TEXT(early.out, "go\nearly");
    sandbox_job_close(early.job);
}

CASE(nothing_but_the_inlet_answers, 60)
{
    struct err err = {0};
    int can = sandboxes_capabilities(stage->boxes, stage->spec.backend, &err);
    if (!(can & SANDBOX_CAN_NETWORK_OFF))
        return;
    EXPECT_INT(INSIDE("reach", "127.0.0.1", "22").exit.code, 1);
    EXPECT_INT(INSIDE("reach", "192.0.2.1", "80").exit.code, 1);
    EXPECT(!strstr(INSIDE("reach", "192.0.2.1", "80").out, "timed out"));
}

CASE(names_are_answered_at_once_and_counted, 60)
{
    struct result result = INSIDE("lookup", "Telemetry.Example.com");
    EXPECT_TEXT(result.out, "code 3\n");
    EXPECT_TEXT(INSIDE("lookup", "telemetry.example.com").out, "code 3\n");
    OWN(buf) struct buf text = {0};
    struct json_writer writer = {.out = &text};
    sandbox_lookups(stage->box, &writer);
    EXPECT_TEXT(buf_text(&text), "{\"telemetry.example.com\":2}");
}

/* ---------------------------------------------------------------- life */

CASE(facts_say_what_it_is, 60)
{
    OWN(buf) struct buf text = {0};
    struct json_writer writer = {.out = &text};
    sandbox_facts(stage->box, &writer);
    OWN(json_doc) struct json_doc doc = {0};
    EXPECT_INT(json_read(&doc, buf_str(&text), NULL, NULL), 0);
    EXPECT(json_is(json_get(json_root(&doc), "backend"), stage->spec.backend));
    EXPECT_INT(json_type(json_get(json_root(&doc), "details")), JSON_OBJECT);
    EXPECT(strncmp(sandbox_id(stage->box), "sb-", 3) == 0);
}

CASE(two_sandboxes_do_not_see_each_other, 60)
{
    struct sandbox *other = NULL;
    struct err err = {0};
    if (stage_open(stage, &stage->spec, &other, &err) < 0)
        EXPECT_TEXT(err.text, "");
    EXPECT_INT(stage_put(stage, stage->box, "/tmp/mine", STR("x"), 0644, &err), 0);
    EXPECT_INT(stage_stat(stage, other, "/tmp/mine", &err).kind, SANDBOX_FILE_NONE);
    struct inlet mine = {0}, others = {0};
    sandbox_on_inlet(stage->box, echo_back, &mine);
    sandbox_on_inlet(other, echo_back, &others);
    EXPECT_TEXT(INSIDE("echo", "13131", "which?").out, "which?");
    EXPECT_INT(mine.connections, 1);
    EXPECT_INT(others.connections, 0);
    EXPECT_INT(stage_close(stage, other, &err), 0);
    EXPECT_INT(INSIDE("exit", "9").exit.code, 9);
}

CASE(closing_while_everything_runs_is_silent_and_complete, 60)
{
    struct watcher tree = {0}, loud = {0};
    START(&tree, ARGV(INSIDE_PATH, "tree", "tag-close"));
    START(&loud, ARGV(INSIDE_PATH, "spew", "1000000000"));
    stage_until(stage, &tree.started);
    stage_until(stage, &loud.started);
    struct waiting waiting = {0};
    sandbox_close(stage->box, stage_on_done, &waiting);
    uint64_t bytes = loud.bytes;
    sandbox_close(stage->box, stage_on_done, &waiting); /* again: the same end */
    stage_until(stage, &waiting.done);
    EXPECT_TEXT(waiting.err.text, "");
    EXPECT(!tree.exited && !loud.exited);
    EXPECT_INT(loud.bytes, bytes);
    sandbox_job_close(tree.job);
    sandbox_job_close(loud.job);
}

CASE(closing_a_sandbox_that_is_still_being_made_leaves_nothing, 60)
{
    for (int i = 0; i < 3; i++) {
        struct opening opening = {0};
        struct waiting waiting = {0};
        struct sandbox *box = sandbox_open(stage->boxes, &stage->spec, stage_on_open, &opening);
        for (int tick = 0; tick < i; tick++)
            loop_once(stage->loop, 20);
        bool opened = opening.done;
        sandbox_close(box, stage_on_done, &waiting);
        stage_until(stage, &waiting.done);
        EXPECT_TEXT(waiting.err.text, "");
        EXPECT(opening.done == opened);
    }
}

CASE(many_are_made_used_and_closed_in_any_order, 120)
{
    enum { MANY = 12, ROUNDS = 2 };
    unsigned seed = 3;
    for (int round = 0; round < ROUNDS; round++) {
        struct opening openings[MANY] = {0};
        struct sandbox *boxes[MANY];
        struct result results[MANY] = {0};
        struct waiting closings[MANY] = {0};
        bool left[MANY];
        const struct sandbox_command command = {.shell = "exit 3", .timeout_ms = 60000};
        for (int i = 0; i < MANY; i++) {
            boxes[i] = sandbox_open(stage->boxes, &stage->spec, stage_on_open, &openings[i]);
            left[i] = rand_r(&seed) % 3 == 0; /* some are closed before they are ready */
        }
        for (int i = MANY - 1; i >= 0; i--) {
            if (left[i])
                sandbox_close(boxes[i], stage_on_done, &closings[i]);
            else
                stage_until(stage, &openings[i].done);
        }
        for (int i = 0; i < MANY; i++) {
            if (left[i])
                continue;
            EXPECT_TEXT(openings[i].err.text, "");
            sandbox_run_whole(boxes[i], &command, STR_NONE, 100, stage_on_whole, &results[i]);
        }
        for (int i = 0; i < MANY; i++) {
            if (!left[i]) {
                stage_until(stage, &results[i].done);
                EXPECT_INT(results[i].exit.code, 3);
                sandbox_close(boxes[i], stage_on_done, &closings[i]);
            }
        }
        for (int i = 0; i < MANY; i++) {
            stage_until(stage, &closings[i].done);
            EXPECT_TEXT(closings[i].err.text, "");
        }
    }
}

CASE(the_end_of_its_life_is_a_loss_with_a_reason, 60)
{
    struct sandbox *box = NULL;
    struct err err = {0};
    struct sandbox_spec spec = stage->spec;
    spec.life_ms_max = 2000;
    EXPECT_INT(stage_open(stage, &spec, &box, &err), 0);
    struct waiting lost = {0};
    struct watcher sleeper = {0};
    struct sandbox_command command = {.shell = "sleep 1000"};
    sandbox_on_lost(box, stage_on_done, &lost);
    sleeper.job = sandbox_run(box, &command, &watching, &sleeper);
    stage_until(stage, &lost.done);
    EXPECT(sleeper.exited);
    EXPECT_INT(sleeper.exit.end, SANDBOX_LOST);
    EXPECT_INT(lost.err.kind, ERR_LIMIT);
    sandbox_job_close(sleeper.job);
    EXPECT_INT(stage_close(stage, box, &err), 0);
    EXPECT_INT(INSIDE("exit", "0").exit.code, 0); /* its neighbour lives on */
}

CASE(what_a_backend_lacks_is_refused_before_any_work, 60)
{
    struct err err = {0};
    int can = sandboxes_capabilities(stage->boxes, stage->spec.backend, &err);
    EXPECT(can >= 0);
    const struct {
        int capability;
        const char *name;
        struct sandbox_spec ask;
    } rows[] = {
        {SANDBOX_CAN_LIMITS, "limits", {.memory_bytes_max = 64 << 20}},
        {SANDBOX_CAN_LIMITS, "limits", {.pids_max = 50}},
        {SANDBOX_CAN_ROOT, "root", {.root_user = true}},
        {SANDBOX_CAN_LAYERS, "layers", {.layers = (const char *const[]){"/usr"}, .layer_count = 1}},
        {SANDBOX_CAN_FORK, "fork", {.layers = (const char *const[]){"ly-x"}, .layer_count = 1}},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        if (can & rows[i].capability)
            continue;
        struct sandbox_spec spec = rows[i].ask;
        spec.backend = stage->spec.backend;
        spec.root = stage->spec.root;
        struct sandbox *box = NULL;
        EXPECT(stage_open(stage, &spec, &box, &err) < 0);
        EXPECT_INT(err.kind, ERR_UNSUPPORTED);
        EXPECT(strstr(err.text, rows[i].name) && strstr(err.text, stage->spec.backend));
    }
    if (!(can & SANDBOX_CAN_POOL)) {
        EXPECT(sandboxes_pool(stage->boxes, &stage->spec, 2, &err) < 0);
        EXPECT_INT(err.kind, ERR_UNSUPPORTED);
    }
}

CASE(limits_hold_where_they_are_declared, 60)
{
    struct err err = {0};
    int can = sandboxes_capabilities(stage->boxes, stage->spec.backend, &err);
    if (!(can & SANDBOX_CAN_LIMITS) || stage->spec.isolation == SANDBOX_ISOLATION_NO_LIMITS)
        return;
    struct sandbox_spec spec = stage->spec;
    spec.memory_bytes_max = 64 << 20;
    spec.pids_max = 40;
    EXPECT_INT(stage_close(stage, stage->box, &err), 0);
    if (stage_open(stage, &spec, &stage->box, &err) < 0) {
        /* Where it cannot be had it must be refused, never ignored: rootless podman on cgroups 1.
         */
        EXPECT(getuid() != 0 && strstr(err.text, "did not set the limit"));
        return;
    }
    EXPECT_INT(stage_put_file(stage, stage->box, INSIDE_PATH, stage->inside, 0755, &err), 0);
    struct result forks = INSIDE("forks", "200");
    EXPECT(atoi(forks.out) > 0 && atoi(forks.out) < 40);
    EXPECT_TEXT(INSIDE("eat", "10").out, "ate\n");
    struct result eaten = INSIDE("eat", "400");
    EXPECT_TEXT(sandbox_end_name(eaten.exit.end), "out_of_memory");
    EXPECT_INT(sandbox_exit_code(&eaten.exit), 137);
    EXPECT_INT(INSIDE("exit", "1").exit.code, 1); /* the sandbox itself lives */
    struct result killed = INSIDE("raise", "9");
    EXPECT_INT(killed.exit.end, SANDBOX_SIGNALED); /* and not every KILL is for lack of memory */
}

CASE(root_is_root_where_it_is_declared, 60)
{
    struct err err = {0};
    int can = sandboxes_capabilities(stage->boxes, stage->spec.backend, &err);
    if (!(can & SANDBOX_CAN_ROOT))
        return;
    struct sandbox_spec spec = stage->spec;
    spec.root_user = true;
    EXPECT_INT(stage_close(stage, stage->box, &err), 0);
    if (stage_open(stage, &spec, &stage->box, &err) < 0) {
        /* An ordinary user's keeper cannot give root on the host's own files, nor can one whose
         * root is an overlay; it says so. */
        EXPECT_INT(err.kind, ERR_UNSUPPORTED);
        EXPECT(getuid() != 0 || strstr(err.text, "shift owners"));
        return;
    }
    EXPECT_INT(stage_put_file(stage, stage->box, INSIDE_PATH, stage->inside, 0755, &err), 0);
    EXPECT_TEXT(RUN(ARGV(INSIDE_PATH, "ids"), .user = "root").out, "0:0\n");
    EXPECT_TEXT(RUN(ARGV(INSIDE_PATH, "ids"), .user = "0:0").out, "0:0\n");
    struct result written = RUN(.shell = "echo x > /etc/made-by-root", .user = "root");
    EXPECT_INT(written.exit.code, 0);
}

struct layer {
    bool done;
    char id[128];
    struct err err;
};

static void on_layer(void *context, const char *layer_id, const struct err *err)
{
    struct layer *layer = context;
    layer->done = true;
    if (err)
        layer->err = *err;
    else
        snprintf(layer->id, sizeof layer->id, "%s", layer_id);
}

CASE(a_snapshot_can_be_forked_where_it_is_declared, 60)
{
    struct err err = {0};
    struct layer layer = {0};
    int can = sandboxes_capabilities(stage->boxes, stage->spec.backend, &err);
    EXPECT_INT(stage_put(stage, stage->box, "/tmp/kept", STR("from before"), 0644, &err), 0);
    sandbox_snapshot(stage->box, on_layer, &layer);
    stage_until(stage, &layer.done);
    if (!(can & SANDBOX_CAN_SNAPSHOT)) {
        EXPECT_INT(layer.err.kind, ERR_UNSUPPORTED);
        EXPECT(strstr(layer.err.text, "snapshot") != NULL);
        EXPECT_INT(INSIDE("exit", "4").exit.code, 4); /* a refusal harms nothing */
        return;
    }
    EXPECT_TEXT(layer.err.text, "");
    struct sandbox *forks[3];
    struct sandbox_spec spec = stage->spec;
    spec.layers = (const char *const[]){layer.id};
    spec.layer_count = 1;
    for (int i = 0; i < 3; i++) {
        if (stage_open(stage, &spec, &forks[i], &err) < 0)
            EXPECT_TEXT(err.text, "");
        struct str got;
        EXPECT_INT(stage_get(stage, forks[i], "/tmp/kept", &got, &err), 0);
        EXPECT_STR(got, STR("from before"));
        EXPECT_INT(stage_put(stage, forks[i], "/tmp/kept", STR("changed"), 0644, &err), 0);
    }
    for (int i = 0; i < 3; i++)
        EXPECT_INT(stage_close(stage, forks[i], &err), 0);
    sandboxes_drop_layer(stage->boxes, layer.id);
}

struct search {
    bool done, complete;
    size_t count;
    struct err err;
};

static void on_found(void *context, const struct sandbox_found *found, size_t count,
                     const struct err *err)
{
    struct search *search = context;
    search->done = true;
    search->count = count;
    if (err)
        search->err = *err;
    search->complete =
        count == 1 && strcmp(found[0].id, "sb-old") == 0 && strcmp(found[0].label, "old") == 0;
}

CASE(what_a_killed_server_left_is_found_and_what_lives_is_not, 60)
{
    if (!stage->target->forge)
        return; /* the keeper's own tests */
    struct err err = {0};
    struct stage other = *stage; /* another server with a sandbox of its own there */
    stage_open_manager(&other, 0, 0);
    EXPECT_INT(stage_open(&other, &other.spec, &other.box, &err), 0);
    EXPECT(stage->target->forge(stage, "sb-old"));
    struct search search = {0}, again = {0};
    sandboxes_find(stage->boxes, on_found, &search);
    stage_until(stage, &search.done);
    EXPECT_TEXT(search.err.text, "");
    EXPECT_INT(search.count, 1);
    EXPECT(search.complete);
    struct waiting waiting = {0};
    sandboxes_destroy_found(stage->boxes, "sb-old", stage_on_done, &waiting);
    stage_until(stage, &waiting.done);
    EXPECT_TEXT(waiting.err.text, "");
    sandboxes_find(stage->boxes, on_found, &again);
    stage_until(stage, &again.done);
    EXPECT_INT(again.count, 0);
    stage_close_manager(&other);
}

CASE(losing_the_porter_ends_jobs_and_is_told_once, 60)
{
    /* From inside nobody can kill the porter; from outside its carrier can be lost. */
    if (target.local)
        return; /* see the tests of the local backend */
    struct waiting lost = {0};
    struct watcher sleeper = {0};
    START(&sleeper, ARGV(INSIDE_PATH, "sleep", "tag-lost"));
    stage_until(stage, &sleeper.started);
    sandbox_on_lost(stage->box, stage_on_done, &lost);
    char script[256];
    snprintf(script, sizeof script,
             "for p in $(grep -lsz '%s' /proc/[0-9]*/cmdline); do p=${p%%/cmdline}; "
             "case $(cat $p/comm) in ssh|podman) kill -KILL ${p#/proc/};; esac; done",
             sandbox_id(stage->box));
    EXPECT_INT(HOST("sh", "-c", script), 0);
    stage_until(stage, &lost.done);
    EXPECT(sleeper.exited);
    EXPECT_INT(sleeper.exit.end, SANDBOX_LOST);
    EXPECT(lost.err.text[0]);
    sandbox_job_close(sleeper.job);
    struct err err = {0};
    EXPECT_INT(stage_close(stage, stage->box, &err), 0);
}

#endif
