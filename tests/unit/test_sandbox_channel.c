/* The channel and the porter together: how commands end, what they see, how their streams flow. */
#include "test_sandbox_channel.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/syscall.h>

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

TEST(a_filter_is_in_force_for_the_users_it_was_given_for)
{
    struct place place;
    struct watched a = {0}, b = {0};
    if (geteuid() != 0)
        SKIP("not root: cannot become another user");
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_symlinkat, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    char user_fd[16], root_fd[16];
    OWN(fd) int user = memfd_create("user", 0);
    OWN(fd) int root = memfd_create("root", 0);
    EXPECT(fd_write_all(user, filter, sizeof filter) == 0);
    filter[1].k = SYS_renameat2; /* root may link, but not do this */
    EXPECT(fd_write_all(root, filter, sizeof filter) == 0);
    snprintf(user_fd, sizeof user_fd, "%d", user);
    snprintf(root_fd, sizeof root_fd, "%d", root);
    const char *extra[] = {"--seccomp-fd", user_fd, "--seccomp-root-fd", root_fd, NULL};
    start_with(&place, &(struct channel_options){0}, extra);
    EXPECT(chmod(place.dir, 0777) == 0);
    const char *try =
        "grep Seccomp: /proc/self/status; ln -s x link 2>/dev/null && echo linked; rm -f link";
    run_to_end(&place, &a,
               &(struct sandbox_command){.shell = try, .cwd = place.dir, .user = "1234:77"});
    EXPECT_STR(buf_str(&a.out), STR("Seccomp:\t2\n"));
    run_to_end(&place, &b, &(struct sandbox_command){.shell = try, .cwd = place.dir});
    EXPECT_STR(buf_str(&b.out), STR("Seccomp:\t2\nlinked\n"));
    forget(&a);
    forget(&b);
    EXPECT_INT(stop(&place), 0);
}

/* ---------------------------------------------------------------- streams */
TEST_WITHIN(two_gigabytes_of_output_with_a_pausing_reader_stay_out_of_memory, 300)
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

TEST(many_loud_commands_at_once_all_come_to_their_end)
{
    enum { JOBS = 24 };
    struct place place;
    static struct watched jobs[JOBS];
    start(&place);
    for (int i = 0; i < JOBS; i++) {
        jobs[i].count_only = true;
        run(&place, &jobs[i],
            &(struct sandbox_command){.shell = "head -c 20000000 /dev/zero & head -c 20000000 "
                                               "/dev/zero >&2; wait"});
    }
    for (int i = 0; i < JOBS; i++) {
        UNTIL(&place, jobs[i].exits);
        EXPECT_INT(jobs[i].bytes, 40000000);
        sandbox_job_close(jobs[i].job);
    }
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
    while (alive(pids[0])) { /* the test's own deadline bounds it */
        c = (struct watched){0};
        run_to_end(&place, &c, &(struct sandbox_command){ARGV("true")});
    }
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
