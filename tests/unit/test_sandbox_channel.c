/* The channel and the porter together: a real porter as an ordinary child, frames over a
 * socketpair. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/file.h"
#include "base/mem.h"
#include "loop/loop.h"
#include "sandbox/channel.h"
#include "test.h"

/* ---------------------------------------------------------------- fixture */
struct place {
    struct loop *loop;
    struct channel *channel;
    pid_t porter;
    bool ready, can_inlet, lost;
    struct err lost_err;
    int inlet_fd;
    char looked_up[256];
    char dir[64];
};

static void on_ready(void *context, bool can_inlet)
{
    struct place *place = context;
    place->ready = true;
    place->can_inlet = can_inlet;
}

static void on_lost(void *context, const struct err *err)
{
    struct place *place = context;
    place->lost = true;
    place->lost_err = *err;
}

static void on_inlet(void *context, int fd)
{
    ((struct place *)context)->inlet_fd = fd;
}

static void on_lookup(void *context, struct str name)
{
    struct place *place = context;
    snprintf(place->looked_up, sizeof place->looked_up, "%.*s", STR_ARGS(name));
}

static char *porter_path(void)
{
    char self[PATH_MAX];
    ssize_t size = readlink("/proc/self/exe", self, sizeof self - 1);
    self[size > 0 ? size : 0] = '\0';
    char *slash = strrchr(self, '/');
    if (slash)
        *slash = '\0';
    return mem_format("%s/../postern-porter", self);
}

static void start_with(struct place *place, const struct channel_options *options,
                       const char *const *extra)
{
    struct err err = {0};
    *place = (struct place){.inlet_fd = -1};
    /* In memory where possible: what is measured is the porter, not somebody's disk. */
    snprintf(place->dir, sizeof place->dir, "%s/postern-channel-XXXXXX",
             access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    int pair[2];
    OWN(mem) char *path = porter_path();
    if (!mkdtemp(place->dir) || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
        abort();
    place->porter = fork();
    if (place->porter == 0) {
        char number[16];
        const char *argv[32] = {path,
                                "--fd",
                                number,
                                "--default-env",
                                "PATH=/usr/local/bin:/usr/bin:/bin",
                                "--default-env",
                                "HOME=/tmp",
                                "--default-cwd",
                                "/tmp"};
        size_t count = 9;
        for (; extra && *extra; extra++)
            argv[count++] = *extra;
        fd_cloexec(pair[1], false);
        snprintf(number, sizeof number, "%d", pair[1]);
        execv(path, (char **)argv);
        _exit(99);
    }
    close(pair[1]);
    static const struct channel_handlers handlers = {
        .on_ready = on_ready, .on_lost = on_lost, .on_inlet = on_inlet, .on_lookup = on_lookup};
    place->loop = loop_new(&err);
    place->channel = channel_new(place->loop, pair[0], pair[0], options, &handlers, place, &err);
    if (!place->channel)
        abort();
}

static void start(struct place *place)
{
    start_with(place, &(struct channel_options){0}, NULL);
}

/* Returns the porter's exit status. */
static int stop(struct place *place)
{
    int status = 0;
    channel_close(place->channel);
    loop_once(place->loop, 0);
    loop_free(place->loop);
    waitpid(place->porter, &status, 0);
    file_remove_tree(place->dir, NULL);
    return status;
}

#define UNTIL(place, condition)                                                                    \
    while (!(condition))                                                                           \
    loop_once((place)->loop, 1000)

struct watched {
    struct sandbox_job *job;
    struct buf out, err_out;
    uint64_t bytes;
    int exits, drains;
    struct sandbox_exit exit;
    bool count_only;
    uint64_t pause_at; /* pauses by itself once this many bytes came; 0: never */
};

static void on_output(void *context, int stream, struct str data)
{
    struct watched *watched = context;
    watched->bytes += data.size;
    if (!watched->count_only)
        buf_str_append(stream == 1 ? &watched->out : &watched->err_out, data);
    if (watched->pause_at && watched->bytes >= watched->pause_at)
        sandbox_job_pause(watched->job);
}

static void on_exit_(void *context, const struct sandbox_exit *exit)
{
    struct watched *watched = context;
    watched->exits++;
    watched->exit = *exit;
}

static void on_drain(void *context)
{
    ((struct watched *)context)->drains++;
}

static const struct sandbox_job_handlers handlers = {
    .on_output = on_output, .on_exit = on_exit_, .on_drain = on_drain};

static void run(struct place *place, struct watched *watched, const struct sandbox_command *command)
{
    watched->job = channel_run(place->channel, command, &handlers, watched);
}

static void run_to_end(struct place *place, struct watched *watched,
                       const struct sandbox_command *command)
{
    run(place, watched, command);
    UNTIL(place, watched->exits);
    sandbox_job_close(watched->job);
}

static void forget(struct watched *watched)
{
    buf_deinit(&watched->out);
    buf_deinit(&watched->err_out);
}

struct ended {
    int times;
    struct err err;
    struct sandbox_stat stat;
    struct buf content;
};

static void on_done(void *context, const struct err *err)
{
    struct ended *ended = context;
    ended->times++;
    if (err)
        ended->err = *err;
}

static void on_content(void *context, struct str content, const struct err *err)
{
    struct ended *ended = context;
    buf_str_append(&ended->content, content);
    on_done(context, err);
}

static void on_stat(void *context, const struct sandbox_stat *stat, const struct err *err)
{
    struct ended *ended = context;
    if (stat)
        ended->stat = *stat;
    on_done(context, err);
}

static bool alive(pid_t pid)
{
    return kill(pid, 0) == 0;
}

/* Peak resident memory in KiB. */
static long peak_kib(pid_t pid)
{
    char path[64], line[256];
    snprintf(path, sizeof path, "/proc/%d/status", pid);
    FILE *file = fopen(path, "r");
    long peak = -1;
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "VmHWM: %ld", &peak) == 1)
            break;
    if (file)
        fclose(file);
    return peak;
}

#define ARGV(...)                                                                                  \
    .argv = (const char *const[])                                                                  \
    {                                                                                              \
        __VA_ARGS__, NULL                                                                          \
    }

/* ---------------------------------------------------------------- ends */
TEST(an_exit_code_arrives_with_the_output_before_it)
{
    struct place place;
    struct watched watched = {0};
    start(&place);
    run_to_end(&place, &watched,
               &(struct sandbox_command){.shell = "echo out; echo err >&2; exit 42"});
    EXPECT_INT(watched.exit.end, SANDBOX_EXITED);
    EXPECT_INT(watched.exit.code, 42);
    EXPECT_STR(buf_str(&watched.out), STR("out\n"));
    EXPECT_STR(buf_str(&watched.err_out), STR("err\n"));
    EXPECT_INT(watched.exits, 1);
    EXPECT_INT(sandbox_exit_code(&watched.exit), 42);
    EXPECT(watched.exit.rss_bytes_peak > 0);
    forget(&watched);
    EXPECT_INT(stop(&place), 0);
}

TEST(a_signal_a_missing_program_and_a_missing_directory_are_told_apart)
{
    struct place place;
    struct watched a = {0}, b = {0}, c = {0}, d = {0}, e = {0};
    start(&place);
    run_to_end(&place, &a, &(struct sandbox_command){.shell = "kill -SEGV $$"});
    EXPECT_INT(a.exit.end, SANDBOX_SIGNALED);
    EXPECT_INT(a.exit.signal_number, SIGSEGV);
    EXPECT_INT(sandbox_exit_code(&a.exit), 128 + SIGSEGV);
    run_to_end(&place, &b, &(struct sandbox_command){ARGV("no-such-program")});
    EXPECT_INT(b.exit.end, SANDBOX_NOT_FOUND);
    EXPECT_INT(b.exit.code, ENOENT);
    EXPECT_TEXT(b.exit.text, "program 'no-such-program': not found");
    run_to_end(&place, &c, &(struct sandbox_command){ARGV("true"), .cwd = "/no/such"});
    EXPECT_INT(c.exit.end, SANDBOX_NOT_STARTED);
    EXPECT_TEXT(c.exit.text, "working directory '/no/such': No such file or directory");
    run_to_end(&place, &d, &(struct sandbox_command){ARGV("/etc/passwd")});
    EXPECT_INT(d.exit.end, SANDBOX_NOT_STARTED);
    EXPECT_INT(d.exit.code, EACCES);
    run_to_end(&place, &e, &(struct sandbox_command){ARGV("true"), .user = "no-such-user"});
    EXPECT_INT(e.exit.end, SANDBOX_NOT_STARTED);
    EXPECT_TEXT(e.exit.text, "there is no user 'no-such-user'");
    EXPECT_INT(stop(&place), 0);
}

TEST(a_command_sees_its_environment_directory_and_arguments_and_nothing_else)
{
    struct place place;
    struct watched a = {0}, b = {0}, c = {0};
    start(&place);
    const char *env[] = {"SECRET=a b", "HOME=/x", NULL};
    run_to_end(&place, &a, &(struct sandbox_command){ARGV("env"), .env = env, .cwd = "/usr"});
    EXPECT_STR(buf_str(&a.out), STR("PATH=/usr/local/bin:/usr/bin:/bin\nHOME=/x\nSECRET=a b\n"));
    run_to_end(&place, &b,
               &(struct sandbox_command){ARGV("/usr/bin/env"), .env = env, .env_only = true});
    EXPECT_STR(buf_str(&b.out), STR("SECRET=a b\nHOME=/x\n"));
    run_to_end(
        &place, &c,
        &(struct sandbox_command){
            ARGV("sh", "-c", "pwd; umask; printf '<%s>' \"$@\"; ls /proc/self/fd | tr '\\n' ' '",
                 "sh", "", "a b", "\xff\n"),
            .cwd = "/usr"});
    EXPECT_STR(buf_str(&c.out), STR("/usr\n0022\n<><a b><\xff\n>0 1 2 3 "));
    forget(&a);
    forget(&b);
    forget(&c);
    EXPECT_INT(stop(&place), 0);
}

TEST(a_command_holds_no_capability_and_cannot_gain_any)
{
    struct place place;
    struct watched watched = {0};
    start(&place);
    run_to_end(
        &place, &watched,
        &(struct sandbox_command){
            .shell = "grep -E '^(Cap|NoNew|SigBlk|SigIgn)' /proc/self/status | tr -d '\\t'"});
    EXPECT_STR(buf_str(&watched.out),
               STR("SigBlk:0000000000000000\nSigIgn:0000000000000000\nCapInh:0000000000000000\n"
                   "CapPrm:0000000000000000\nCapEff:0000000000000000\nCapBnd:0000000000000000\n"
                   "CapAmb:0000000000000000\nNoNewPrivs:1\n"));
    forget(&watched);
    EXPECT_INT(stop(&place), 0);
}

TEST(a_command_becomes_the_user_it_was_asked_for)
{
    struct place place;
    struct watched a = {0}, b = {0}, c = {0};
    if (geteuid() != 0)
        SKIP("not root: cannot become another user");
    const char *extra[] = {"--root-caps", "21", "--rlimit", "nofile=77:99", NULL};
    start_with(&place, &(struct channel_options){0}, extra);
    run_to_end(&place, &a,
               &(struct sandbox_command){.shell = "id -u; id -g; id -G; ulimit -n; grep CapEff "
                                                  "/proc/self/status",
                                         .user = "1234:77"});
    EXPECT_STR(buf_str(&a.out), STR("1234\n77\n77\n77\nCapEff:\t0000000000000000\n"));
    run_to_end(&place, &b,
               &(struct sandbox_command){.shell = "id -un; echo $HOME; id -u", .user = "nobody"});
    EXPECT_STR(buf_str(&b.out), STR("nobody\n/nonexistent\n65534\n"));
    run_to_end(&place, &c,
               &(struct sandbox_command){.shell = "grep -E 'Cap(Eff|Bnd|Prm)' /proc/self/status",
                                         .user = "root"});
    EXPECT_STR(buf_str(&c.out), STR("CapPrm:\t0000000000000021\nCapEff:\t0000000000000021\n"
                                    "CapBnd:\t0000000000000021\n"));
    forget(&a);
    forget(&b);
    forget(&c);
    EXPECT_INT(stop(&place), 0);
}

/* ---------------------------------------------------------------- killing */
/* Writes the pids of its whole family to a file, and closes every way to be noticed. */
static const char hard_to_kill[] =
    "trap '' TERM HUP INT\n"
    "echo $$ >> pids\n"
    "(setsid sh -c 'trap \"\" TERM; echo $$ >> pids; sleep 1000' &)\n"
    "(setsid sh -c 'echo $$ >> pids; kill -STOP $$; sleep 1000' &)\n"
    "(sh -c 'echo $$ >> pids; exec >&- 2>&- <&-; (setsid sleep 1000 & echo $! >> pids) & sleep "
    "1000' &)\n"
    "while [ $(wc -l < pids) -lt 5 ]; do sleep 0.01; done\n"
    "echo all here; kill -STOP $$; sleep 1000\n";

static int read_pids(const char *dir, pid_t *pids, int count_max)
{
    OWN(mem) char *path = mem_format("%s/pids", dir);
    FILE *file = fopen(path, "r");
    int count = 0;
    while (file && count < count_max && fscanf(file, "%d", &pids[count]) == 1)
        count++;
    if (file)
        fclose(file);
    return count;
}

TEST(a_timeout_ends_a_tree_that_hides_ignores_and_stops_itself)
{
    struct place place;
    struct watched watched = {0};
    start(&place);
    run_to_end(&place, &watched,
               &(struct sandbox_command){
                   .shell = hard_to_kill, .cwd = place.dir, .timeout_ms = 1500, .grace_ms = 50});
    EXPECT_STR(buf_str(&watched.out), STR("all here\n"));
    EXPECT_INT(watched.exit.end, SANDBOX_TIMED_OUT);
    pid_t pids[16];
    int count = read_pids(place.dir, pids, 16);
    EXPECT_INT(count, 5);
    for (int i = 0; i < count; i++)
        EXPECT(!alive(pids[i]));
    forget(&watched);
    EXPECT_INT(stop(&place), 0);
}

TEST(what_a_command_leaves_behind_is_gone_unless_it_was_detached)
{
    struct place place;
    struct watched a = {0}, b = {0};
    pid_t pids[4];
    start(&place);
    const char *leaver = "rm -f pids; (setsid sleep 1000 & echo $! > pids)";
    run_to_end(&place, &a, &(struct sandbox_command){.shell = leaver, .cwd = place.dir});
    EXPECT_INT(a.exit.end, SANDBOX_EXITED);
    EXPECT_INT(read_pids(place.dir, pids, 4), 1);
    EXPECT(!alive(pids[0]));
    run_to_end(&place, &b,
               &(struct sandbox_command){.shell = leaver, .cwd = place.dir, .detached = true});
    EXPECT_INT(b.exit.end, SANDBOX_EXITED);
    EXPECT_INT(read_pids(place.dir, pids, 4), 1);
    EXPECT(alive(pids[0]));
    struct ended ended = {0};
    channel_kill_all(place.channel, on_done, &ended);
    UNTIL(&place, ended.times);
    EXPECT_INT(ended.err.kind, ERR_NONE);
    EXPECT(!alive(pids[0]));
    EXPECT_INT(stop(&place), 0);
}

TEST(a_neighbour_keeps_its_orphans_when_another_command_is_killed)
{
    struct place place;
    struct watched a = {0}, b = {0};
    pid_t pids[4];
    start(&place);
    run(&place, &a,
        &(struct sandbox_command){.shell =
                                      "(setsid sleep 1000 & echo $! > pids); echo up; sleep 1000",
                                  .cwd = place.dir});
    UNTIL(&place, a.out.size);
    run(&place, &b,
        &(struct sandbox_command){.shell = "(setsid sleep 1000 &) ; echo up; sleep 1000"});
    UNTIL(&place, b.out.size);
    sandbox_job_kill(b.job);
    UNTIL(&place, b.exits);
    EXPECT_INT(b.exit.end, SANDBOX_KILLED);
    EXPECT_INT(read_pids(place.dir, pids, 4), 1);
    EXPECT(alive(pids[0]));
    sandbox_job_kill(a.job);
    UNTIL(&place, a.exits);
    EXPECT(!alive(pids[0]));
    sandbox_job_close(a.job);
    sandbox_job_close(b.job);
    forget(&a);
    forget(&b);
    EXPECT_INT(stop(&place), 0);
}

TEST(a_fork_bomb_that_changes_its_session_is_ended)
{
    struct place place;
    struct watched watched = {0};
    /* Bounded here by itself, as a sandbox bounds it by its pids limit. */
    const char *bomb = "import os,sys,time,signal\n"
                       "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
                       "r = os.open('.', os.O_RDONLY)\n"
                       "end = time.time() + 60\n"
                       "def bomb(depth):\n"
                       "    os.setsid()\n"
                       "    while time.time() < end:\n"
                       "        if depth < 6:\n"
                       "            for i in range(2):\n"
                       "                if os.fork() == 0: bomb(depth + 1)\n"
                       "            depth = 6\n"
                       "        pid = os.fork()\n"
                       "        if pid == 0:\n"
                       "            os.setsid(); time.sleep(0.002); os._exit(0)\n"
                       "        os.waitpid(pid, 0)\n"
                       "    os._exit(0)\n"
                       "if os.fork() == 0: bomb(0)\n"
                       "print('lit', flush=True)\n"
                       "time.sleep(60)\n";
    start(&place);
    run(&place, &watched, &(struct sandbox_command){ARGV("python3", "-c", bomb)});
    UNTIL(&place, watched.out.size || watched.exits);
    if (watched.exits)
        SKIP("no python3");
    usleep(200000);
    sandbox_job_kill(watched.job);
    UNTIL(&place, watched.exits);
    EXPECT_INT(watched.exit.end, SANDBOX_KILLED);
    sandbox_job_close(watched.job);
    struct watched after = {0};
    run_to_end(&place, &after, &(struct sandbox_command){.shell = "pgrep -f 'def bomb' | wc -l"});
    EXPECT_STR(buf_str(&after.out), STR("1\n")); /* the pgrep's own shell */
    forget(&watched);
    forget(&after);
    EXPECT_INT(stop(&place), 0);
}

TEST(a_killed_supervisor_takes_its_command_with_it)
{
    struct place place;
    struct watched watched = {0};
    pid_t pids[4];
    start(&place);
    /* As root of the sandbox a command can kill its own supervisor. */
    run_to_end(&place, &watched,
               &(struct sandbox_command){.shell = "(setsid sleep 1000 & echo $! > pids); kill -9 "
                                                  "$PPID; sleep 1000",
                                         .cwd = place.dir});
    EXPECT_INT(watched.exit.end, SANDBOX_KILLED);
    EXPECT_INT(read_pids(place.dir, pids, 4), 1);
    EXPECT(!alive(pids[0]));
    struct watched after = {0};
    run_to_end(&place, &after, &(struct sandbox_command){ARGV("true")});
    EXPECT_INT(after.exit.end, SANDBOX_EXITED);
    EXPECT_INT(stop(&place), 0);
}

TEST_WITHIN(a_stopped_supervisor_does_not_save_its_command, 60)
{
    struct place place;
    struct watched watched = {0};
    pid_t pids[4];
    start(&place);
    run_to_end(&place, &watched,
               &(struct sandbox_command){
                   .shell = "(setsid sleep 1000 & echo $! > pids); kill -STOP $PPID; sleep 1000",
                   .cwd = place.dir,
                   .timeout_ms = 200,
                   .grace_ms = 10});
    EXPECT_INT(watched.exit.end, SANDBOX_TIMED_OUT);
    EXPECT_INT(read_pids(place.dir, pids, 4), 1);
    EXPECT(!alive(pids[0]));
    EXPECT_INT(stop(&place), 0);
}

TEST(when_the_frames_end_everything_inside_ends)
{
    struct place place;
    struct watched watched = {0};
    pid_t pids[16];
    start(&place);
    run(&place, &watched, &(struct sandbox_command){.shell = hard_to_kill, .cwd = place.dir});
    UNTIL(&place, watched.out.size);
    EXPECT_INT(read_pids(place.dir, pids, 16), 5);
    channel_close(place.channel);
    place.channel = NULL;
    loop_once(place.loop, 0);
    int status;
    waitpid(place.porter, &status, 0);
    EXPECT_INT(status, 0);
    for (int i = 0; i < 5; i++)
        EXPECT(!alive(pids[i]));
    EXPECT_INT(watched.exits, 0); /* closed means silent */
    EXPECT(sandbox_job_is_done(watched.job));
    sandbox_job_close(watched.job);
    loop_free(place.loop);
    file_remove_tree(place.dir, NULL);
    forget(&watched);
}

TEST(when_the_porter_dies_every_activity_ends_once_as_lost)
{
    struct place place;
    struct watched jobs[3] = {0};
    struct ended ended = {0};
    start(&place);
    for (int i = 0; i < 3; i++)
        run(&place, &jobs[i], &(struct sandbox_command){.shell = "echo up; sleep 1000"});
    UNTIL(&place, jobs[0].out.size && jobs[1].out.size && jobs[2].out.size);
    sandbox_job_pause(jobs[1].job);
    channel_get(place.channel, "/dev/zero", 1 << 20, on_content, &ended);
    kill(place.porter, SIGKILL);
    UNTIL(&place, place.lost);
    for (int i = 0; i < 3; i++) {
        EXPECT_INT(jobs[i].exits, 1);
        EXPECT_INT(jobs[i].exit.end, SANDBOX_LOST);
        sandbox_job_close(jobs[i].job);
        forget(&jobs[i]);
    }
    EXPECT_INT(ended.times, 1);
    struct watched after = {0};
    run(&place, &after, &(struct sandbox_command){ARGV("true")});
    EXPECT_INT(after.exits, 0); /* never from inside the call */
    UNTIL(&place, after.exits);
    EXPECT_INT(after.exit.end, SANDBOX_LOST);
    sandbox_job_close(after.job);
    (void)stop(&place);
}

/* ---------------------------------------------------------------- streams */
TEST_WITHIN(two_gigabytes_of_output_with_a_pausing_reader_stay_out_of_memory, 120)
{
    struct place place;
    struct watched big = {.count_only = true}, small = {0};
    start(&place);
    long before = peak_kib(getpid());
    const uint64_t total = 2ull << 30;
    big.pause_at = 1 << 20;
    run(&place, &big, &(struct sandbox_command){ARGV("head", "-c", "2G", "/dev/zero")});
    UNTIL(&place, big.bytes >= big.pause_at);
    /* While it is paused a neighbour runs as if it were alone, and nothing more arrives. */
    uint64_t paused_at = big.bytes;
    run_to_end(&place, &small, &(struct sandbox_command){.shell = "sleep 0.3; echo neighbour"});
    EXPECT_STR(buf_str(&small.out), STR("neighbour\n"));
    EXPECT_INT(big.bytes, paused_at);
    while (!big.exits) {
        if (big.pause_at && big.bytes >= big.pause_at) {
            big.pause_at = big.bytes + (256u << 20);
            sandbox_job_resume(big.job);
        }
        loop_once(place.loop, 1000);
    }
    EXPECT(big.bytes == total);
    EXPECT_INT(big.exit.end, SANDBOX_EXITED);
    sandbox_job_close(big.job);
    long grown = peak_kib(getpid()) - before, porter = peak_kib(place.porter);
    printf("    2 GiB: host grew by %ld KiB, the porter's peak is %ld KiB\n", grown, porter);
    EXPECT(grown < 16 * 1024);
    EXPECT(porter < 8 * 1024);
    forget(&small);
    EXPECT_INT(stop(&place), 0);
}

TEST(output_past_its_maximum_is_dropped_and_counted)
{
    struct place place;
    struct watched watched = {0};
    start(&place);
    run_to_end(&place, &watched,
               &(struct sandbox_command){ARGV("head", "-c", "10000000", "/dev/zero"),
                                         .output_bytes_max = 100000});
    EXPECT_INT(watched.bytes, 100000);
    EXPECT_INT(watched.exit.output_bytes_dropped, 9900000);
    EXPECT_INT(watched.exit.code, 0);
    forget(&watched);
    EXPECT_INT(stop(&place), 0);
}

TEST(stdin_flows_both_ways_at_once_and_ends)
{
    struct place place;
    struct watched watched = {0};
    start(&place);
    run(&place, &watched, &(struct sandbox_command){ARGV("cat"), .stdin_open = true});
    OWN(buf) struct buf sent = {0};
    for (int i = 0; i < 400000; i++)
        buf_format(&sent, "line %d\n", i);
    size_t queued = sandbox_job_write(watched.job, buf_str(&sent));
    EXPECT(queued > 0);
    sandbox_job_end_input(watched.job);
    UNTIL(&place, watched.exits);
    EXPECT_INT(watched.drains, 1);
    EXPECT_STR(buf_str(&watched.out), buf_str(&sent));
    EXPECT_INT(watched.exit.code, 0);
    sandbox_job_close(watched.job);
    forget(&watched);
    EXPECT_INT(stop(&place), 0);
}

TEST(a_command_that_does_not_read_its_stdin_ends_all_the_same)
{
    struct place place;
    struct watched watched = {0};
    start(&place);
    run(&place, &watched, &(struct sandbox_command){.shell = "exit 3", .stdin_open = true});
    OWN(buf) struct buf sent = {0};
    memset(buf_reserve(&sent, 4 << 20), 'x', 4 << 20);
    buf_added(&sent, 4 << 20);
    (void)sandbox_job_write(watched.job, buf_str(&sent));
    UNTIL(&place, watched.exits);
    EXPECT_INT(watched.exit.code, 3);
    sandbox_job_close(watched.job);
    EXPECT_INT(stop(&place), 0);
}

TEST(a_terminal_is_a_terminal)
{
    struct place place;
    struct watched watched = {0};
    start(&place);
    run(&place, &watched,
        &(struct sandbox_command){.shell = "tty >/dev/null && stty size; echo ready; read line; "
                                           "stty size; echo \"got $line\"; "
                                           "ps -o tpgid= -p $$ >/dev/null; cat; echo over",
                                  .pty = true,
                                  .rows = 33,
                                  .columns = 99});
    UNTIL(&place, watched.exits || str_find(buf_str(&watched.out), STR("ready")) >= 0);
    EXPECT(str_starts(buf_str(&watched.out), STR("33 99\r\n")));
    sandbox_job_resize(watched.job, 44, 111);
    sandbox_job_write(watched.job, STR("hello\n"));
    UNTIL(&place, watched.exits || str_find(buf_str(&watched.out), STR("got hello")) >= 0);
    EXPECT(str_find(buf_str(&watched.out), STR("44 111")) >= 0);
    sandbox_job_end_input(watched.job);
    UNTIL(&place, watched.exits);
    EXPECT(str_ends(buf_str(&watched.out), STR("over\r\n")));
    EXPECT_INT(watched.exit.code, 0);
    sandbox_job_close(watched.job);
    forget(&watched);
    EXPECT_INT(stop(&place), 0);
}

TEST(a_signal_reaches_the_group_and_a_closed_job_is_killed_silently)
{
    struct place place;
    struct watched a = {0}, b = {0}, c = {0};
    pid_t pids[4];
    start(&place);
    run(&place, &a,
        &(struct sandbox_command){.shell =
                                      "trap 'echo usr1; exit 5' USR1; echo up; while :; do sleep "
                                      "0.01; done"});
    UNTIL(&place, a.out.size);
    sandbox_job_signal(a.job, SIGUSR1);
    UNTIL(&place, a.exits);
    EXPECT_INT(a.exit.code, 5);
    sandbox_job_close(a.job);
    run(&place, &b,
        &(struct sandbox_command){.shell = "echo $$ > pids; echo up; yes", .cwd = place.dir});
    UNTIL(&place, b.out.size);
    sandbox_job_pause(b.job);
    EXPECT_INT(read_pids(place.dir, pids, 4), 1);
    sandbox_job_close(b.job);
    uint64_t bytes = b.bytes;
    run_to_end(&place, &c, &(struct sandbox_command){.shell = "sleep 0.7"});
    EXPECT(!alive(pids[0]));
    EXPECT_INT(b.exits, 0);
    EXPECT_INT(b.bytes, bytes);
    forget(&a);
    forget(&b);
    EXPECT_INT(stop(&place), 0);
}

TEST(a_large_environment_and_long_arguments_arrive_whole)
{
    struct place place;
    struct watched watched = {0}, over = {0};
    start(&place);
    OWN(mem) char *long_one = mem_alloc(131072);
    memset(long_one, 'x', 131071);
    long_one[131071 - 1] = '\0';
    const char *argv[12] = {"sh", "-c", "printf %s \"$@\" | wc -c", "sh"};
    for (int i = 4; i < 11; i++)
        argv[i] = long_one;
    run_to_end(&place, &watched, &(struct sandbox_command){.argv = argv});
    EXPECT_STR(buf_str(&watched.out), STR("917490\n"));
    const char **many = mem_zero(40000 * sizeof *many);
    for (int i = 0; i < 39999; i++)
        many[i] = "x";
    run_to_end(&place, &over, &(struct sandbox_command){.argv = many});
    EXPECT_INT(over.exit.end, SANDBOX_NOT_STARTED);
    EXPECT_INT(over.exit.code, E2BIG);
    free(many);
    forget(&watched);
    EXPECT_INT(stop(&place), 0);
}

static void on_whole(void *context, const struct sandbox_outcome *outcome)
{
    struct watched *watched = context;
    watched->exits++;
    watched->exit = outcome->exit;
    watched->count_only = outcome->truncated;
    buf_str_append(&watched->out, outcome->out);
    buf_str_append(&watched->err_out, outcome->err_out);
}

TEST(a_whole_run_keeps_the_first_bytes_of_each_stream)
{
    struct place place;
    struct watched a = {0}, b = {0};
    start(&place);
    channel_run_whole(place.channel,
                      &(struct sandbox_command){.shell = "cat; echo err >&2; exit 1"}, STR("input"),
                      1000, on_whole, &a);
    UNTIL(&place, a.exits);
    EXPECT_STR(buf_str(&a.out), STR("input"));
    EXPECT_STR(buf_str(&a.err_out), STR("err\n"));
    EXPECT_INT(a.exit.code, 1);
    EXPECT(!a.count_only);
    channel_run_whole(place.channel,
                      &(struct sandbox_command){ARGV("head", "-c", "1M", "/dev/zero")}, STR_NONE,
                      1000, on_whole, &b);
    UNTIL(&place, b.exits);
    EXPECT_INT(b.out.size, 1000);
    EXPECT(b.count_only);
    struct watched never = {0};
    channel_run_whole(place.channel, &(struct sandbox_command){.shell = "sleep 100"}, STR_NONE,
                      1000, on_whole, &never);
    EXPECT_INT(stop(&place), 0); /* closing abandons it, without a leak and without a word */
    EXPECT_INT(never.exits, 0);
    forget(&a);
    forget(&b);
}

TEST(many_commands_run_at_once_and_each_gets_its_own_answer)
{
    enum { JOBS = 200 };
    struct place place;
    static struct watched jobs[JOBS];
    start(&place);
    for (int i = 0; i < JOBS; i++) {
        char text[64];
        snprintf(text, sizeof text, "sleep 0.0%d; echo %d; exit %d", i % 10, i, i % 100);
        run(&place, &jobs[i], &(struct sandbox_command){.shell = text});
    }
    for (int i = 0; i < JOBS; i++) {
        UNTIL(&place, jobs[i].exits);
        char text[16];
        snprintf(text, sizeof text, "%d\n", i);
        EXPECT_STR(buf_str(&jobs[i].out), str_of(text));
        EXPECT_INT(jobs[i].exit.code, i % 100);
        sandbox_job_close(jobs[i].job);
        forget(&jobs[i]);
    }
    EXPECT_INT(stop(&place), 0);
}

static int by_number(const void *a, const void *b)
{
    const uint64_t *left = a, *right = b;
    return (*left > *right) - (*left < *right);
}

TEST(starting_a_command_costs_little_more_than_fork_and_exec)
{
    enum { ROUNDS = 200 };
    struct place place;
    uint64_t through[ROUNDS], bare[ROUNDS];
    start(&place);
    for (int i = 0; i < ROUNDS; i++) {
        struct watched watched = {0};
        uint64_t from = clock_mono_ns();
        run_to_end(&place, &watched, &(struct sandbox_command){ARGV("/bin/true")});
        through[i] = clock_mono_ns() - from;
        from = clock_mono_ns();
        pid_t pid = vfork();
        if (pid == 0) {
            execl("/bin/true", "true", NULL);
            _exit(1);
        }
        waitpid(pid, NULL, 0);
        bare[i] = clock_mono_ns() - from;
    }
    qsort(through, ROUNDS, sizeof *through, by_number);
    qsort(bare, ROUNDS, sizeof *bare, by_number);
    printf("    exec p50 %.3f ms p99 %.3f ms; bare vfork+exec p50 %.3f ms: %.2fx\n",
           (double)through[ROUNDS / 2] / 1e6, (double)through[ROUNDS * 99 / 100] / 1e6,
           (double)bare[ROUNDS / 2] / 1e6, (double)through[ROUNDS / 2] / (double)bare[ROUNDS / 2]);
    EXPECT_INT(stop(&place), 0);
}

/* ---------------------------------------------------------------- files */
static uint64_t hash_file(int fd)
{
    uint64_t hash = 1469598103934665603ull, word;
    char bytes[65536];
    ssize_t size;
    lseek(fd, 0, SEEK_SET);
    while ((size = read(fd, bytes, sizeof bytes)) > 0)
        for (ssize_t i = 0; i + 8 <= size; i += 8) {
            memcpy(&word, bytes + i, 8);
            hash = (hash ^ word) * 1099511628211ull;
            hash ^= hash >> 29;
        }
    return hash;
}

TEST_WITHIN(a_file_of_200_megabytes_makes_the_round_trip, 120)
{
    struct place place;
    struct ended put = {0}, get = {0}, stat = {0};
    start(&place);
    OWN(mem) char *path = mem_format("%s/a/b/ big\nfile", place.dir);
    OWN(mem) char *name = mem_format("%s/from", place.dir);
    OWN(mem) char *back = mem_format("%s/back", place.dir);
    OWN(fd) int fd = open(name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    OWN(fd) int out = open(back, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    uint64_t word = 88172645463325252ull, words[8192];
    for (int i = 0; i < 3200; i++) {
        for (int j = 0; j < 8192; j++) {
            word ^= word << 13;
            word ^= word >> 7;
            word ^= word << 17;
            words[j] = word;
        }
        EXPECT(fd_write_all(fd, words, sizeof words) == 0);
    }
    uint64_t hash = hash_file(fd);
    lseek(fd, 0, SEEK_SET);
    channel_put_fd(place.channel, path, fd, 0640, NULL, on_done, &put);
    UNTIL(&place, put.times);
    EXPECT_TEXT(put.err.text, "");
    channel_stat(place.channel, path, on_stat, &stat);
    UNTIL(&place, stat.times);
    EXPECT_INT(stat.stat.kind, SANDBOX_FILE_REGULAR);
    EXPECT_INT(stat.stat.size, 3200ll * 65536);
    EXPECT_INT(stat.stat.mode, 0640);
    channel_get_fd(place.channel, path, out, on_done, &get);
    UNTIL(&place, get.times);
    EXPECT_TEXT(get.err.text, "");
    EXPECT(hash_file(out) == hash);
    EXPECT_INT(stop(&place), 0);
}

TEST(file_work_says_what_went_wrong)
{
    struct place place;
    struct ended a = {0}, b = {0}, c = {0}, d = {0}, e = {0}, f = {0}, g = {0};
    start(&place);
    OWN(mem) char *path = mem_format("%s/file", place.dir);
    channel_put(place.channel, path, STR("0123456789"), 0600, NULL, on_done, &a);
    UNTIL(&place, a.times);
    EXPECT_INT(a.err.kind, ERR_NONE);
    channel_get(place.channel, path, 9, on_content, &b);
    UNTIL(&place, b.times);
    EXPECT_INT(b.err.kind, ERR_LIMIT);
    channel_get(place.channel, path, 10, on_content, &c);
    UNTIL(&place, c.times);
    EXPECT_STR(buf_str(&c.content), STR("0123456789"));
    channel_get(place.channel, "/no/such", 10, on_content, &d);
    UNTIL(&place, d.times);
    EXPECT_INT(d.err.kind, ERR_NOT_FOUND);
    channel_get(place.channel, "/dev/zero", 10, on_content, &e);
    UNTIL(&place, e.times);
    EXPECT_INT(e.err.kind, ERR_INPUT);
    OWN(mem) char *below = mem_format("%s/file/below", place.dir);
    channel_put(place.channel, below, STR("x"), 0600, NULL, on_done, &f);
    UNTIL(&place, f.times);
    EXPECT_INT(f.err.kind, ERR_NOT_FOUND);
    channel_stat(place.channel, "/no/such", on_stat, &g);
    UNTIL(&place, g.times);
    EXPECT_INT(g.stat.kind, SANDBOX_FILE_NONE);
    struct ended h = {0}, i = {0};
    channel_remove(place.channel, place.dir, on_done, &h);
    UNTIL(&place, h.times);
    EXPECT_INT(h.err.kind, ERR_NONE);
    EXPECT(!file_exists(place.dir));
    channel_remove(place.channel, "/", on_done, &i);
    UNTIL(&place, i.times);
    EXPECT_INT(i.err.kind, ERR_INPUT);
    buf_deinit(&c.content);
    EXPECT_INT(stop(&place), 0);
}

TEST(file_work_is_done_with_the_rights_of_its_user)
{
    struct place place;
    struct ended a = {0}, b = {0}, c = {0};
    if (geteuid() != 0)
        SKIP("not root: cannot become another user");
    start(&place);
    OWN(mem) char *denied = mem_format("%s/x", place.dir);
    channel_put(place.channel, denied, STR("x"), 0600, "1234:77", on_done, &a);
    UNTIL(&place, a.times);
    EXPECT_INT(a.err.kind, ERR_DENIED);
    chmod(place.dir, 0777);
    channel_put(place.channel, denied, STR("x"), 0600, "1234:77", on_done, &b);
    UNTIL(&place, b.times);
    EXPECT_INT(b.err.kind, ERR_NONE);
    channel_stat(place.channel, denied, on_stat, &c);
    UNTIL(&place, c.times);
    EXPECT_INT(c.stat.uid, 1234);
    EXPECT_INT(c.stat.gid, 77);
    EXPECT_INT(stop(&place), 0);
}

/* Returns the number of entries, or -1 at the first difference. */
static int same_tree(int a, int b)
{
    DIR *dir = fdopendir(a);
    struct dirent *found;
    int count = 0;
    while (dir && count >= 0 && (found = readdir(dir))) {
        const char *name = found->d_name;
        struct stat left, right;
        if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
            continue;
        if (fstatat(a, name, &left, AT_SYMLINK_NOFOLLOW) < 0 ||
            fstatat(b, name, &right, AT_SYMLINK_NOFOLLOW) < 0 || left.st_mode != right.st_mode ||
            (!S_ISLNK(left.st_mode) && left.st_mtim.tv_sec != right.st_mtim.tv_sec)) {
            count = -1;
            break;
        }
        count++;
        if (S_ISDIR(left.st_mode)) {
            int inside = same_tree(openat(a, name, O_RDONLY | O_DIRECTORY),
                                   openat(b, name, O_RDONLY | O_DIRECTORY));
            count = inside < 0 ? -1 : count + inside;
        } else if (S_ISLNK(left.st_mode)) {
            char x[256] = "", y[256] = "";
            if (readlinkat(a, name, x, 255) < 0 || readlinkat(b, name, y, 255) < 0 ||
                strcmp(x, y) != 0)
                count = -1;
        } else {
            OWN(fd) int x = openat(a, name, O_RDONLY);
            OWN(fd) int y = openat(b, name, O_RDONLY);
            if (left.st_size != right.st_size || hash_file(x) != hash_file(y))
                count = -1;
        }
    }
    if (dir)
        closedir(dir);
    close(b);
    return count;
}

TEST_WITHIN(a_tree_of_ten_thousand_files_with_odd_names_makes_the_round_trip, 120)
{
    static const char *const odd[] = {" ",     "a b",    "-rf", "new\nline", "\xff\xfe\x80", "...",
                                      "tab\t", "quo'te", "*",   "\\",        "$(x)",         "..x"};
    struct place place;
    struct ended put = {0}, get = {0};
    start(&place);
    OWN(mem) char *source = mem_format("%s/source", place.dir);
    OWN(mem) char *inside = mem_format("%s/in/side", place.dir);
    OWN(mem) char *back = mem_format("%s/back", place.dir);
    mkdir(source, 0755);
    int top = open(source, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int made = 0;
    for (int i = 0; i < 100; i++) {
        char name[64];
        snprintf(name, sizeof name, "%s%d", odd[i % 12], i);
        EXPECT(mkdirat(top, name, 0755) == 0);
        OWN(fd) int dir = openat(top, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        for (int j = 0; j < 100; j++) {
            snprintf(name, sizeof name, "%d%s", j, odd[j % 12]);
            OWN(fd) int file = openat(dir, name, O_WRONLY | O_CREAT | O_EXCL, 0600);
            for (int k = 0; k < i % 7; k++)
                EXPECT(write(file, name, sizeof name) == sizeof name);
            EXPECT(fchmod(file, j % 3 ? 0644 : 0755) == 0);
        }
        EXPECT(symlinkat("/etc/passwd", dir, "absolute") == 0);
        EXPECT(symlinkat("../../../..", dir, "up") == 0);
        made += 103;
        EXPECT(fchmod(dir, i % 2 ? 0755 : 0700) == 0);
    }
    mkfifoat(top, "fifo", 0600); /* not carried */
    uint64_t from = clock_mono_ms();
    channel_put_tree(place.channel, source, inside, NULL, on_done, &put);
    UNTIL(&place, put.times);
    EXPECT_TEXT(put.err.text, "");
    channel_get_tree(place.channel, inside, back, NULL, on_done, &get);
    UNTIL(&place, get.times);
    EXPECT_TEXT(get.err.text, "");
    printf("    10,000 files in and out: %llu ms\n", (unsigned long long)(clock_mono_ms() - from));
    unlinkat(top, "fifo", 0);
    EXPECT_INT(same_tree(top, open(back, O_RDONLY | O_DIRECTORY | O_CLOEXEC)), made);
    EXPECT_INT(stop(&place), 0);
}

TEST(a_tree_out_keeps_to_its_budget_drops_setuid_and_never_writes_through_links)
{
    struct place place;
    struct ended a = {0}, b = {0}, c = {0};
    start(&place);
    OWN(mem) char *source = mem_format("%s/source", place.dir);
    OWN(mem) char *back = mem_format("%s/back", place.dir);
    OWN(mem) char *victim = mem_format("%s/victim", place.dir);
    OWN(mem) char *link = mem_format("%s/back/dir", place.dir);
    OWN(mem) char *suid = mem_format("%s/source/suid", place.dir);
    OWN(mem) char *deep = mem_format("%s/source/dir", place.dir);
    OWN(mem) char *file = mem_format("%s/source/dir/file", place.dir);
    OWN(mem) char *out = mem_format("%s/back/suid", place.dir);
    mkdir(source, 0755);
    mkdir(deep, 0755);
    EXPECT(file_write(suid, STR("0123456789"), 0644, false, NULL) == 0);
    EXPECT(file_write(file, STR("0123456789"), 0644, false, NULL) == 0);
    EXPECT(chmod(suid, 04755) == 0);
    channel_get_tree(place.channel, source, back, &(struct sandbox_budget){.bytes_max = 19},
                     on_done, &a);
    UNTIL(&place, a.times);
    EXPECT_INT(a.err.kind, ERR_LIMIT);
    file_remove_tree(back, NULL);
    channel_get_tree(place.channel, source, back, &(struct sandbox_budget){.entries_max = 2},
                     on_done, &b);
    UNTIL(&place, b.times);
    EXPECT_INT(b.err.kind, ERR_LIMIT);
    file_remove_tree(back, NULL);
    mkdir(back, 0755);
    mkdir(victim, 0755);
    EXPECT(symlink(victim, link) == 0); /* where the tree has a directory */
    channel_get_tree(place.channel, source, back, NULL, on_done, &c);
    UNTIL(&place, c.times);
    EXPECT(c.err.kind != ERR_NONE);
    OWN(mem) char *written = mem_format("%s/file", victim);
    EXPECT(!file_exists(written));
    unlink(link);
    struct ended d = {0};
    channel_get_tree(place.channel, source, back, NULL, on_done, &d);
    UNTIL(&place, d.times);
    EXPECT_INT(d.err.kind, ERR_NONE);
    struct stat stat_of;
    EXPECT(stat(out, &stat_of) == 0);
    EXPECT_INT(stat_of.st_mode & 07777, 0755);
    EXPECT_INT(stop(&place), 0);
}

/* ---------------------------------------------------------------- inlet */
static uint16_t free_port(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    OWN(fd) int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(fd, (struct sockaddr *)&address, size) < 0 ||
        getsockname(fd, (struct sockaddr *)&address, &size) < 0)
        abort();
    return ntohs(address.sin_port);
}

static int dial(uint16_t port)
{
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(fd, (struct sockaddr *)&address, sizeof address) < 0)
        abort();
    return fd;
}

TEST(a_carried_inlet_passes_bytes_both_ways_and_each_end_alone)
{
    struct place place;
    struct channel_options options = {.inlet = true, .inlet_port = free_port()};
    start_with(&place, &options, NULL);
    UNTIL(&place, place.ready);
    EXPECT(place.can_inlet);
    OWN(fd) int agent = dial(options.inlet_port);
    EXPECT(write(agent, "question", 8) == 8);
    shutdown(agent, SHUT_WR);
    UNTIL(&place, place.inlet_fd >= 0);
    char text[64];
    ssize_t size;
    while ((size = read(place.inlet_fd, text, sizeof text)) < 0)
        loop_once(place.loop, 100);
    EXPECT_STR(str_make(text, (size_t)size), STR("question"));
    while ((size = read(place.inlet_fd, text, sizeof text)) < 0)
        loop_once(place.loop, 100);
    EXPECT_INT(size, 0); /* the agent's end arrived by itself */
    /* Three megabytes back, more than any window, while the agent reads slowly. */
    enum { TOTAL = 3 << 20 };
    OWN(mem) char *answer = mem_zero(TOTAL);
    size_t sent = 0, got = 0;
    fcntl(agent, F_SETFL, O_NONBLOCK);
    while (got < TOTAL) {
        if (sent < TOTAL) {
            size = write(place.inlet_fd, answer + sent, TOTAL - sent);
            sent += size > 0 ? (size_t)size : 0;
        }
        loop_once(place.loop, 1);
        char piece[50000];
        size = read(agent, piece, sizeof piece);
        got += size > 0 ? (size_t)size : 0;
    }
    fd_close(&place.inlet_fd);
    while ((size = read(agent, text, sizeof text)) < 0)
        loop_once(place.loop, 1);
    EXPECT_INT(size, 0);
    EXPECT_INT(stop(&place), 0);
}

TEST(text_before_the_hello_is_skipped_when_a_banner_is_expected)
{
    struct err err = {0};
    struct place place = {.inlet_fd = -1};
    int pair[2];
    static const struct channel_handlers quiet = {.on_ready = on_ready, .on_lost = on_lost};
    OWN(mem) char *path = porter_path();
    EXPECT(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
    place.porter = fork();
    if (place.porter == 0) {
        dup2(pair[1], 0);
        dup2(pair[1], 1);
        OWN(mem) char *command = mem_format("echo 'Welcome to host'; exec %s --stdio", path);
        execl("/bin/sh", "sh", "-c", command, NULL);
        _exit(99);
    }
    close(pair[1]);
    place.loop = loop_new(&err);
    place.channel = channel_new(place.loop, pair[0], pair[0],
                                &(struct channel_options){.banner = true}, &quiet, &place, &err);
    struct watched watched = {0};
    run_to_end(&place, &watched, &(struct sandbox_command){.shell = "echo hi"});
    EXPECT_STR(buf_str(&watched.out), STR("hi\n"));
    forget(&watched);
    EXPECT_INT(stop(&place), 0);
}

TEST(a_peer_that_does_not_speak_frames_is_lost_with_a_reason)
{
    struct err err = {0};
    struct place place = {.inlet_fd = -1};
    int pair[2];
    static const struct channel_handlers quiet = {.on_lost = on_lost};
    EXPECT(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
    place.loop = loop_new(&err);
    place.channel = channel_new(place.loop, pair[0], pair[0], &(struct channel_options){0}, &quiet,
                                &place, &err);
    struct watched watched = {0};
    run(&place, &watched, &(struct sandbox_command){.shell = "echo hi"});
    EXPECT(write(pair[1], "HTTP/1.1 400 Bad Request\r\n\r\n", 28) == 28);
    UNTIL(&place, place.lost);
    EXPECT_INT(place.lost_err.kind, ERR_PROTOCOL);
    EXPECT_INT(watched.exits, 1);
    EXPECT_INT(watched.exit.end, SANDBOX_LOST);
    sandbox_job_close(watched.job);
    channel_close(place.channel);
    loop_once(place.loop, 0);
    loop_free(place.loop);
    close(pair[1]);
}

TEST(a_silent_peer_is_lost_after_its_deadline)
{
    struct err err = {0};
    struct place place = {.inlet_fd = -1};
    int pair[2];
    static const struct channel_handlers quiet = {.on_lost = on_lost};
    EXPECT(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
    place.loop = loop_new(&err);
    place.channel =
        channel_new(place.loop, pair[0], pair[0], &(struct channel_options){.hello_ms_max = 20},
                    &quiet, &place, &err);
    UNTIL(&place, place.lost);
    EXPECT_INT(place.lost_err.kind, ERR_TIMEOUT);
    channel_close(place.channel);
    loop_once(place.loop, 0);
    loop_free(place.loop);
    close(pair[1]);
}
