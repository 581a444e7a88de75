/* test_sandbox_race.c - escape class 5: a process inside flips a directory and a link to a place of
 * the host while the host puts and gets files through it. Whatever the moment, the host's file
 * stays as it is and its content does not come out. The counter-proof does the same the careless
 * way, through /proc/PID/root, and is seen to hit the host's file. */
#include "sandbox_stage.h"

#include <dirent.h>

#define ROUNDS 1000

static const struct target target_local = {
    .name = "local", .backend = "local", .prepare = prepare_local};

static struct stage the_stage, *stage = &the_stage;
static char canary_dir[64], canary[80];

static void begin(void)
{
    stage_begin(stage, &target_local);
    const char *reason = stage_skip_reason(stage);
    if (!reason)
        reason = prepare_local(stage);
    if (reason) {
        stage_end(stage);
        SKIP("%s", reason);
    }
    if (getuid() != 0)
        stage->spec.isolation = SANDBOX_ISOLATION_NO_LIMITS;
    snprintf(canary_dir, sizeof canary_dir, "/tmp/postern-canary-%d", (int)getpid());
    snprintf(canary, sizeof canary, "%s/f", canary_dir);
    (void)mkdir(canary_dir, 0777);
    (void)chmod(canary_dir, 0777);
    host_write(canary, 0666, "the host's own\n");
    stage_open_manager(stage, 0, 0);
}

static void end(void)
{
    stage_end(stage);
    (void)file_remove_tree(canary_dir, NULL);
}

static bool canary_is_whole(void)
{
    OWN(buf) struct buf content = {0};
    DIR *dir = opendir(canary_dir);
    unsigned entries = 0;
    while (dir && readdir(dir))
        entries++;
    if (dir)
        closedir(dir);
    return entries == 3 && file_read(canary, 100, &content, NULL) == 0 &&
           strcmp(buf_text(&content), "the host's own\n") == 0;
}

static struct sandbox_job *start_flipping(void)
{
    static char program[400];
    snprintf(
        program, sizeof program,
        "chdir '/tmp'; while (1) { mkdir 'd'; if (open(F, '>', 'd/f')) { print F 'inside'; close "
        "F; } unlink 'd/f'; rmdir 'd'; symlink '%s', 'd'; unlink 'd'; }",
        canary_dir);
    static const struct sandbox_job_handlers handlers = {0};
    const struct sandbox_command command = {ARGV("perl", "-e", program), .timeout_ms = 120000};
    return sandbox_run(stage->box, &command, &handlers, NULL);
}

TEST_WITHIN(a_link_that_flips_never_leads_put_and_get_to_the_host, 120)
{
    begin();
    struct err err = {0};
    if (stage_open(stage, &stage->spec, &stage->box, &err) < 0)
        EXPECT_TEXT(err.text, "");
    struct sandbox_job *job = start_flipping();
    unsigned put = 0, got = 0, leaked = 0;
    for (int i = 0; i < ROUNDS; i++) {
        struct str content = STR_NONE;
        put += stage_put(stage, stage->box, "/tmp/d/f", STR("from outside"), 0644, NULL) == 0;
        if (stage_get(stage, stage->box, "/tmp/d/f", &content, NULL) == 0) {
            got++;
            leaked += strstr(content.data, "host's own") != NULL;
        }
        (void)stage_stat(stage, stage->box, "/tmp/d/f", &err);
        struct waiting removed = {0};
        sandbox_remove(stage->box, "/tmp/d", stage_on_done, &removed);
        stage_until(stage, &removed.done);
    }
    printf("    %u of %d puts and %u gets went through\n", put, ROUNDS, got);
    EXPECT_INT(leaked, 0);
    EXPECT(canary_is_whole());
    sandbox_job_close(job);
    end();
}

TEST_WITHIN(a_link_that_flips_never_leads_trees_to_the_host, 120)
{
    begin();
    struct err err = {0};
    if (stage_open(stage, &stage->spec, &stage->box, &err) < 0)
        EXPECT_TEXT(err.text, "");
    struct sandbox_job *job = start_flipping();
    char source[128], target[160], script[400];
    snprintf(source, sizeof source, "%s/source", stage->dir);
    (void)mkdir(source, 0755);
    snprintf(target, sizeof target, "%s/f", source);
    host_write(target, 0644, "from outside\n");
    for (int i = 0; i < ROUNDS / 8; i++) {
        struct waiting in = {0}, out = {0};
        sandbox_put_tree(stage->box, source, "/tmp/d", NULL, stage_on_done, &in);
        stage_until(stage, &in.done);
        snprintf(target, sizeof target, "%s/out-%d", stage->dir, i);
        sandbox_get_tree(stage->box, "/tmp", target, NULL, stage_on_done, &out);
        stage_until(stage, &out.done);
    }
    EXPECT(canary_is_whole());
    snprintf(script, sizeof script, "! grep -rqs \"host's own\" %s/out-*", stage->dir);
    EXPECT_INT(HOST("sh", "-c", script), 0);
    sandbox_job_close(job);
    end();
}

/* The process inside that flips, as the host sees it. */
static pid_t find_flipper(void)
{
    DIR *processes = opendir("/proc");
    pid_t found = 0;
    for (struct dirent *entry; processes && !found && (entry = readdir(processes));) {
        char path[300], text[1024] = "", exe[256] = "";
        snprintf(path, sizeof path, "/proc/%s/cmdline", entry->d_name);
        OWN(fd) int file = open(path, O_RDONLY | O_CLOEXEC);
        ssize_t size = file < 0 ? -1 : read(file, text, sizeof text - 1);
        for (ssize_t i = 0; i + 1 < size; i++)
            text[i] = text[i] ? text[i] : ' ';
        snprintf(path, sizeof path, "/proc/%s/exe", entry->d_name);
        if (size > 0 && strstr(text, canary_dir) && readlink(path, exe, sizeof exe - 1) > 0 &&
            strstr(exe, "perl"))
            found = atoi(entry->d_name);
    }
    if (processes)
        closedir(processes);
    return found;
}

TEST_WITHIN(a_careless_host_would_be_led_astray, 120)
{
    if (getuid() != 0)
        SKIP("/proc/PID/root of a sandbox can be entered by root only");
    begin();
    struct err err = {0};
    if (stage_open(stage, &stage->spec, &stage->box, &err) < 0)
        EXPECT_TEXT(err.text, "");
    struct sandbox_job *job = start_flipping();
    pid_t flipper = 0;
    while (!(flipper = find_flipper()))
        loop_once(stage->loop, 10);
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/root/tmp/d/f", (int)flipper);
    for (int i = 0; i < 1000000 && canary_is_whole(); i++)
        for (int j = 0; j < 1000; j++) {
            OWN(fd) int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
            if (fd >= 0)
                (void)!write(fd, "from outside", 12);
        }
    EXPECT(!canary_is_whole());
    sandbox_job_close(job);
    end();
}

/* Uses a port so that its remains linger (the server's side closes first), and says what was
 * counted before it came. */
static const char network_use[] = "import socket\n"
                                  "print(open('/proc/net/dev').read().split('lo:')[1].split()[0])\n"
                                  "s = socket.socket()\n"
                                  "try:\n"
                                  "    s.bind(('127.0.0.1', 8080))\n"
                                  "except OSError as error:\n"
                                  "    print('the port is taken:', error)\n"
                                  "    raise SystemExit(1)\n"
                                  "s.listen()\n"
                                  "c = socket.create_connection(('127.0.0.1', 8080))\n"
                                  "a, _ = s.accept()\n"
                                  "a.close(); c.recv(1); c.close(); s.close()\n";

TEST_WITHIN(the_network_of_a_sandbox_is_as_new_for_the_next_one, 60)
{
    begin();
    struct err err = {0};
    for (int i = 0; i < 8; i++) {
        if (stage_open(stage, &stage->spec, &stage->box, &err) < 0)
            EXPECT_TEXT(err.text, "");
        struct result used = RUN(ARGV("python3", "-c", network_use));
        EXPECT_TEXT(used.err_out, "");
        EXPECT_INT(used.exit.code, 0);
        EXPECT_TEXT(used.out, "0\n");
        if (stage_close(stage, stage->box, &err) < 0)
            EXPECT_TEXT(err.text, "");
    }
    end();
}
