/* The channel and the porter together: nothing a command started survives it. */
#include "test_sandbox_channel.h"

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

TEST(a_kill_ends_a_tree_that_hides_ignores_and_stops_itself)
{
    struct place place;
    struct watched watched = {0};
    pid_t pids[16];
    start(&place);
    run(&place, &watched,
        &(struct sandbox_command){.shell = hard_to_kill, .cwd = place.dir, .grace_ms = 50});
    UNTIL(&place, watched.out.size);
    int count = read_pids(place.dir, pids, 16);
    EXPECT_INT(count, 5);
    for (int i = 0; i < count; i++)
        EXPECT(alive(pids[i]));
    sandbox_job_kill(watched.job);
    UNTIL(&place, watched.exits);
    EXPECT_INT(watched.exit.end, SANDBOX_KILLED);
    for (int i = 0; i < count; i++)
        EXPECT(!alive(pids[i]));
    sandbox_job_close(watched.job);
    forget(&watched);
    EXPECT_INT(stop(&place), 0);
}

TEST(a_timeout_ends_the_whole_tree_and_says_so)
{
    struct place place;
    struct watched watched = {0};
    pid_t pids[16];
    start(&place);
    run_to_end(&place, &watched,
               &(struct sandbox_command){
                   .shell = hard_to_kill, .cwd = place.dir, .timeout_ms = 700, .grace_ms = 50});
    EXPECT_INT(watched.exit.end, SANDBOX_TIMED_OUT);
    EXPECT_INT(sandbox_exit_code(&watched.exit), 124);
    int count = read_pids(place.dir, pids, 16); /* however far it came */
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
    run(&place, &watched, &(struct sandbox_command){ARGV("python3", "-c", bomb, place.dir)});
    UNTIL(&place, watched.out.size || watched.exits);
    if (watched.exits)
        SKIP("no python3");
    usleep(200000);
    sandbox_job_kill(watched.job);
    UNTIL(&place, watched.exits);
    EXPECT_INT(watched.exit.end, SANDBOX_KILLED);
    sandbox_job_close(watched.job);
    struct watched after = {0};
    run_to_end(&place, &after, &(struct sandbox_command){ARGV("pgrep", "-f", place.dir)});
    EXPECT_STR(buf_str(&after.out), STR("")); /* pgrep does not count itself */
    EXPECT_INT(after.exit.code, 1);
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
                   .timeout_ms = 2000,
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
