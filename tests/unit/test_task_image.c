/* Images of tasks, with a builder that is a shell script: asked once whoever waits, remembered when
 * it fails, silent when nobody wants to know any more. Real builders are in
 * tests/system/test_tasks.py. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "loop/loop.h"
#include "task/task.h"
#include "test.h"

static char dir[64];
static struct loop *loop;

struct answer {
    int count;
    char root[160];
    struct err err;
};

static void write_at(const char *name, const char *text, mode_t mode)
{
    OWN(mem) char *path = mem_format("%s/%s", dir, name);
    char *slash = strrchr(path, '/');
    *slash = '\0';
    if (file_make_dirs(path, 0755, NULL) < 0)
        abort();
    *slash = '/';
    if (file_write(path, str_of(text), mode, false, NULL) < 0 || chmod(path, mode) < 0)
        abort();
}

/* `says`: the end of a script that notes each call first. */
static void begin(const char *says)
{
    strcpy(dir, "/tmp/test-image-XXXXXX");
    if (!mkdtemp(dir))
        abort();
    struct err err = {0};
    loop = loop_new(&err);
    OWN(mem) char *script = mem_format("#!/bin/sh\necho \"$@\" >> %s/calls\n%s\n", dir, says);
    write_at("bin/podman", script, 0755);
    write_at("context/Dockerfile", "FROM scratch\n", 0644);
    write_at("calls", "", 0644);
}

static void end(void)
{
    loop_free(loop);
    (void)file_remove_tree(dir, NULL);
}

static size_t calls(void)
{
    OWN(buf) struct buf text = {0};
    OWN(mem) char *path = mem_format("%s/calls", dir);
    size_t count = 0;
    if (file_read(path, 1 << 20, &text, NULL) < 0)
        abort();
    for (size_t i = 0; i < text.size; i++)
        count += text.data[i] == '\n';
    return count;
}

static int waited_for;
static void on_done(void *context, const char *root, const struct err *err)
{
    struct answer *answer = context;
    answer->count++;
    snprintf(answer->root, sizeof answer->root, "%s", root ? root : "");
    if (err)
        answer->err = *err;
    if (--waited_for == 0)
        loop_stop(loop);
}

static struct task_image_job *ask(struct answer *answer, uint32_t ms_max)
{
    OWN(mem) char *builder = mem_format("%s/bin/podman --root %s/store", dir, dir);
    OWN(mem) char *context = mem_format("%s/context", dir);
    struct task_image image = {.build_dir = context, .build_ms_max = ms_max};
    struct task_image_options options = {
        .home = dir, .builder = builder, .flags = "--flag one", .own_store = true};
    return task_image_make(loop, &image, &options, on_done, answer);
}

static void on_late(struct loop_timer *timer)
{
    (void)timer;
    test_fail(__FILE__, __LINE__, "nothing came for a minute");
    loop_stop(loop);
}

static void wait_for(int count)
{
    struct loop_timer late = {0};
    waited_for = count;
    loop_timer_start(loop, &late, 60000, on_late, NULL);
    loop_run(loop);
    loop_timer_stop(&late);
}

TEST(an_image_is_built_once_for_all_who_wait)
{
    begin("sleep 0.2");
    struct answer answers[8] = {0};
    struct task_image_job *jobs[8];
    for (size_t i = 0; i < COUNT(jobs); i++)
        jobs[i] = ask(&answers[i], 0);
    wait_for(COUNT(jobs));
    for (size_t i = 0; i < COUNT(jobs); i++) {
        EXPECT_INT(answers[i].count, 1);
        EXPECT_TEXT(answers[i].root, answers[0].root);
        EXPECT_INT(answers[i].err.kind, ERR_NONE);
        task_image_job_close(jobs[i]);
    }
    EXPECT(str_starts(str_of(answers[0].root), STR("image:localhost/postern/task-")));
    EXPECT_INT(calls(), 1);

    /* Another content is another image. */
    write_at("context/more", "x", 0644);
    struct answer other = {0};
    struct task_image_job *job = ask(&other, 0);
    wait_for(1);
    EXPECT(strcmp(other.root, answers[0].root) != 0);
    task_image_job_close(job);
    end();
}

TEST(a_build_that_fails_is_told_to_all_and_not_tried_again_at_once)
{
    begin("echo 'no such base' >&2; exit 3");
    for (int i = 0; i < 3; i++) {
        struct answer answer = {0};
        struct task_image_job *job = ask(&answer, 0);
        wait_for(1);
        EXPECT_TEXT(answer.root, "");
        EXPECT(strstr(answer.err.text, "no such base") && strstr(answer.err.text, "3"));
        EXPECT(strstr(answer.err.text, "context") != NULL);
        task_image_job_close(job);
    }
    EXPECT_INT(calls(), 1);
    end();
}

TEST(a_build_that_takes_too_long_is_ended)
{
    begin("sleep 600");
    struct answer answer = {0};
    struct task_image_job *job = ask(&answer, 300);
    wait_for(1);
    EXPECT_INT(answer.err.kind, ERR_TIMEOUT);
    task_image_job_close(job);
    end();
}

TEST(who_closes_hears_nothing_and_the_others_do)
{
    begin("sleep 0.2");
    struct answer gone = {0}, there = {0};
    struct task_image_job *first = ask(&gone, 0), *second = ask(&there, 0);
    task_image_job_close(first);
    wait_for(1);
    EXPECT_INT(gone.count, 0);
    EXPECT_INT(there.count, 1);
    task_image_job_close(second);
    end();
}

TEST(a_build_nobody_waits_for_is_ended)
{
    begin("echo $$ > $(dirname $0)/pid; sleep 600");
    struct answer gone = {0}, there = {0};
    struct task_image_job *job = ask(&gone, 0);
    OWN(mem) char *path = mem_format("%s/bin/pid", dir);
    for (int i = 0; i < 2000 && !file_exists(path); i++)
        usleep(10000);
    EXPECT(file_exists(path));
    task_image_job_close(job);
    /* It is not waited for: a new wish is a new build. */
    OWN(mem) char *script = mem_format("#!/bin/sh\necho \"$@\" >> %s/calls\n", dir);
    write_at("bin/podman", script, 0755);
    struct task_image_job *again = ask(&there, 0);
    wait_for(1);
    EXPECT_INT(gone.count, 0);
    EXPECT(there.count == 1 && there.root[0]);
    EXPECT_INT(calls(), 2);
    task_image_job_close(again);
    end();
}

TEST(a_builder_that_is_none_is_refused)
{
    begin("true");
    struct answer answer = {0};
    struct task_image image = {.name = "thing:1"};
    struct task_image_options options = {.home = dir, .builder = "/bin/true", .own_store = true};
    struct task_image_job *job = task_image_make(loop, &image, &options, on_done, &answer);
    wait_for(1);
    EXPECT_INT(answer.err.kind, ERR_INPUT);
    EXPECT(strstr(answer.err.text, "buildah") != NULL);
    task_image_job_close(job);
    end();
}
