/* The cli room through its door: arguments, and what is wrong with them. Each test is a process of
 * its own, so standard output and error go to files. What commands do with sandboxes is in
 * tests/system. */
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/file.h"
#include "base/mem.h"
#include "cli/cli.h"
#include "test.h"

static char home[] = "/tmp/test-cli-XXXXXX";
static struct buf out, error;
static int saved[2];

static int divert(const char *name, int to)
{
    OWN(mem) char *path = mem_format("%s/%s", home, name);
    int kept = dup(to);
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0 || kept < 0 || dup2(fd, to) < 0)
        abort();
    close(fd);
    return kept;
}

static void give_back(const char *name, int to, int kept, struct buf *text)
{
    OWN(mem) char *path = mem_format("%s/%s", home, name);
    dup2(kept, to);
    close(kept);
    buf_clear(text);
    if (file_read(path, 1 << 20, text, NULL) < 0)
        abort();
    (void)buf_text(text);
}

/* Runs "postern <words...>" and returns its exit code. */
static int postern(const char *first, ...)
{
    static char name[] = "postern";
    char *argv[32] = {name, (char *)(uintptr_t)first};
    int argc = first ? 2 : 1;
    va_list args;
    va_start(args, first);
    for (char *word; first && argc < 31 && (word = va_arg(args, char *)); argc++)
        argv[argc] = word;
    va_end(args);
    if (!strcmp(home + sizeof home - 7, "XXXXXX") && !mkdtemp(home))
        abort();
    setenv("POSTERN_HOME", home, 1);
    saved[0] = divert("out", STDOUT_FILENO);
    saved[1] = divert("error", STDERR_FILENO);
    int code = cli_main(argc, argv);
    (void)fflush(stdout);
    (void)fflush(stderr);
    give_back("out", STDOUT_FILENO, saved[0], &out);
    give_back("error", STDERR_FILENO, saved[1], &error);
    return code;
}
#define POSTERN(...) postern(__VA_ARGS__, NULL)

static void done(void)
{
    (void)file_remove_tree(home, NULL);
}

static size_t lines(const struct buf *text)
{
    size_t count = 0;
    for (size_t i = 0; i < text->size; i++)
        count += text->data[i] == '\n';
    return count;
}

/* One sentence on standard error, nothing on standard output. */
static void expect_complaint(int line, int code, int expected, const char *words)
{
    if (code != expected)
        test_fail(__FILE__, line, "exit code %d, not %d: %s", code, expected, buf_text(&error));
    else if (!strstr(buf_text(&error), words))
        test_fail(__FILE__, line, "\"%s\" does not say \"%s\"", buf_text(&error), words);
    else if (lines(&error) != 1 || out.size)
        test_fail(__FILE__, line, "not one sentence: %s%s", buf_text(&out), buf_text(&error));
}
#define COMPLAINS(code, words, ...) expect_complaint(__LINE__, POSTERN(__VA_ARGS__), code, words)

TEST(a_mistyped_command_or_flag_gets_the_nearest_one_and_exit_code_2)
{
    COMPLAINS(2, "did you mean 'run'?", "rnu");
    COMPLAINS(2, "no command 'frobnicate'", "frobnicate");
    COMPLAINS(2, "unknown flag --taks; did you mean --task?", "run", "--taks", "x");
    COMPLAINS(2, "did you mean --memory?", "exec", "--memori", "1G", "--", "true");
    COMPLAINS(2, "did you mean 'sandbox.memory-max'?", "run", "--sandbox.memory-mx", "1G");
    COMPLAINS(2, "unknown flag", "run", "--zzzzzzzzzzzzzz");
    done();
}

TEST(values_are_checked_before_anything_starts)
{
    COMPLAINS(2, "--count needs a number", "run", "-n", "many", "--task", "x", "--model", "y");
    COMPLAINS(2, "--count needs a number", "run", "-n0", "--task", "x", "--model", "y");
    COMPLAINS(2, "--timeout needs a time", "exec", "--timeout", "soon", "--", "true");
    COMPLAINS(2, "--memory needs a size", "exec", "--memory=lots", "--", "true");
    COMPLAINS(2, "--isolation", "exec", "--isolation", "none", "--", "true");
    COMPLAINS(2, "--task needs a value", "run", "--task");
    COMPLAINS(2, "--json takes no value", "run", "--json=yes");
    COMPLAINS(2, "NAME=VALUE", "exec", "--env", "x", "--", "true");
    COMPLAINS(2, "rollout.parallel-max", "run", "--parallel", "0", "--task", "x", "--model", "y");
    done();
}

TEST(what_is_missing_is_named)
{
    COMPLAINS(2, "--model is needed", "run");
    COMPLAINS(2, "--task is needed", "run", "--model", "script:x");
    COMPLAINS(2, "no command", "exec");
    COMPLAINS(2, "no command", "exec", "--");
    COMPLAINS(2, "something is missing", "show");
    COMPLAINS(2, "'b' is too much", "show", "a", "b");
    COMPLAINS(2, "--name is needed", "image", "import", "x.tar");
    COMPLAINS(2, "neither import nor ls", "image", "eat");
    COMPLAINS(3, "no rollouts", "show", "r-abc");
    done();
}

TEST(agents_tasks_and_models_that_do_not_exist_are_named_with_exit_code_3)
{
    COMPLAINS(3, "no agent 'nobody'", "run", "--agent", "nobody", "--task",
              "{\"instruction\":\"x\"}", "--model", "script:/none");
    COMPLAINS(3, "'/no/task'", "run", "--agent", POSTERN_SOURCE_DIR "/agents/generic.toml",
              "--task", "/no/task", "--model", "script:/none");
    COMPLAINS(3, "/none.toml", "run", "--agent", POSTERN_SOURCE_DIR "/agents/generic.toml",
              "--task", "{\"instruction\":\"x\"}", "--model", "script:/none.toml");
    COMPLAINS(2, "black_box, proxy or gate", "run", "--agent", "x", "--mode", "magic", "--task",
              "y", "--model", "z");
    done();
}

TEST(a_malformed_file_is_named_with_line_and_column)
{
    (void)POSTERN("version");
    OWN(mem) char *path = mem_format("%s/bad.toml", home);
    EXPECT_INT(file_write(path, STR("name = \"x\"\ninstruction = \"y\"\nsetup = [1, ]\n"), 0644,
                          false, NULL),
               0);
    COMPLAINS(2, "bad.toml:3:10", "tasks", "check", path);
    EXPECT_INT(file_write(path, STR("name = \"x\"\n[run]\nargv = [\"a\"\n"), 0644, false, NULL), 0);
    COMPLAINS(2, "bad.toml:", "agents", "check", path);
    OWN(mem) char *config = mem_format("%s/postern.toml", home);
    EXPECT_INT(file_write(config, STR("lanes = \"many\"\n"), 0644, false, NULL), 0);
    COMPLAINS(2, "postern.toml:1:", "ls");
    done();
}

TEST(help_lists_commands_and_flags)
{
    EXPECT_INT(POSTERN("help"), 0);
    EXPECT(strstr(buf_text(&out), "  run ") && strstr(buf_text(&out), "  doctor "));
    EXPECT_INT(POSTERN("help", "exec"), 0);
    EXPECT(strstr(buf_text(&out), "--memory SIZE"));
    EXPECT_INT(POSTERN("run", "--help"), 0);
    EXPECT(strstr(buf_text(&out), "--model"));
    EXPECT_INT(postern(NULL), 2);
    EXPECT(strstr(buf_text(&out), "postern COMMAND"));
    EXPECT_INT(POSTERN("help", "--settings"), 0);
    EXPECT(strstr(buf_text(&out), "sandbox.memory-max"));
    EXPECT_INT(POSTERN("--version"), 0);
    EXPECT(strstr(buf_text(&out), "postern " POSTERN_VERSION));
    done();
}

static void make_rollout(const char *id, const char *result)
{
    OWN(mem) char *dir = mem_format("%s/rollouts/%s", home, id);
    OWN(mem) char *path = mem_format("%s/result.json", dir);
    if (file_make_dirs(dir, 0755, NULL) < 0 ||
        (result && file_write(path, str_of(result), 0644, false, NULL) < 0))
        abort();
}

TEST(rollouts_are_listed_newest_first_and_shown_by_the_beginning_of_their_id)
{
    EXPECT_INT(POSTERN("ls"), 0);
    EXPECT(strstr(buf_text(&out), "no rollouts"));
    make_rollout("r-aaa1", "{\"id\":\"r-aaa1\",\"class\":\"ok\",\"task\":\"t1\",\"agent\":\"mini\","
                           "\"reward\":0.5,\"turns\":3}\n");
    make_rollout("r-aab2", "{\"id\":\"r-aab2\",\"class\":\"infra_failed\",\"task\":\"t2\","
                           "\"agent\":\"mini\",\"reward\":null,"
                           "\"cause\":\"it broke\"}\n");
    make_rollout("r-aac3", NULL);
    EXPECT_INT(POSTERN("ls"), 0);
    const char *text = buf_text(&out);
    EXPECT(strstr(text, "r-aac3") < strstr(text, "r-aab2") &&
           strstr(text, "r-aab2") < strstr(text, "r-aaa1"));
    EXPECT(strstr(text, "0.50") && strstr(text, "it broke") && strstr(text, "under way"));
    EXPECT_INT(POSTERN("ls", "--class", "ok", "--json"), 0);
    EXPECT_INT(lines(&out), 1);
    EXPECT_INT(POSTERN("show", "r-aaa"), 0);
    EXPECT(strstr(buf_text(&out), "t1") && strstr(buf_text(&out), "0.5"));
    EXPECT_INT(POSTERN("show", "r-aab2", "--json"), 0);
    EXPECT(strstr(buf_text(&out), "\"reward\":null"));
    COMPLAINS(4, "fits 3 rollouts", "show", "r-aa");
    COMPLAINS(3, "no rollout 'r-zz'", "show", "r-zz");
    COMPLAINS(2, "not the id", "show", "../x");
    done();
}

TEST(what_a_sandbox_wrote_cannot_drive_the_terminal)
{
    (void)POSTERN("version");
    make_rollout("r-evil", "{\"id\":\"r-evil\",\"class\":\"ok\",\"task\":\"t\\u001b[2Jx\","
                           "\"agent\":\"a\",\"reward\":1,"
                           "\"cause\":\"\\u001b]0;title\\u0007\"}\n");
    EXPECT_INT(POSTERN("show", "r-evil"), 0);
    EXPECT(!memchr(out.data, 27, out.size) && !memchr(out.data, 7, out.size));
    EXPECT_INT(POSTERN("ls"), 0);
    EXPECT(!memchr(out.data, 27, out.size) && !memchr(out.data, 7, out.size));
    done();
}
