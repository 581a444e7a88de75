/* test_sandbox_local.c - what only the local backend promises: nothing stays behind, a keeper that
 * outlives its server and is swept up after, ordinary users, roots nobody trusts. Everything goes
 * through the door or the backend's descriptor; the keeper is the real one. */
#include "sandbox_stage.h"

#include <dirent.h>
#include <sched.h>
#include <sys/prctl.h>

#include "base/clock.h"
#include "sandbox/backend.h"
#include "sandbox/backend_local_keeper.h"
#include "sandbox/channel.h"

static const struct target target_local = {
    .name = "local", .backend = "local", .prepare = prepare_local};

static struct stage the_stage, *stage = &the_stage;

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
    stage->spec.backend = "local";
    if (getuid() != 0)
        stage->spec.isolation = SANDBOX_ISOLATION_NO_LIMITS;
}

/* A manager of the keeper that everybody with this home shares. */
static void open_shared(struct stage *of, const char *home)
{
    struct err err = {0};
    struct sandbox_options options = {.home = home, .program_dir = of->programs};
    of->loop = loop_new(&err);
    of->boxes = of->loop ? sandboxes_new(of->loop, &options, &err) : NULL;
    if (!of->boxes) {
        fprintf(stderr, "%s\n", err.text);
        abort();
    }
}

static const char *home_of(struct stage *of)
{
    static char home[128];
    snprintf(home, sizeof home, "%s/home", of->dir);
    (void)mkdir(home, 0755);
    return home;
}

/* The keeper of this home: its pid, or 0. */
static pid_t keeper_pid(const char *home)
{
    DIR *processes = opendir("/proc");
    pid_t found = 0;
    for (struct dirent *entry; !found && (entry = readdir(processes));) {
        char path[300], text[2048] = "";
        snprintf(path, sizeof path, "/proc/%s/cmdline", entry->d_name);
        OWN(fd) int file = open(path, O_RDONLY | O_CLOEXEC);
        ssize_t size = file < 0 ? -1 : read(file, text, sizeof text - 1);
        for (ssize_t i = 0; i < size; i++)
            text[i] = text[i] ? text[i] : ' ';
        if (size > 0 && strstr(text, "postern-keeper ") && strstr(text, home) &&
            !strstr(text, "test_sandbox"))
            found = atoi(entry->d_name);
    }
    closedir(processes);
    return found;
}

static bool gone(pid_t pid)
{
    for (int i = 0; i < 6000; i++) { /* a signal needs a moment; the test has a deadline */
        if (kill(pid, 0) < 0 && errno == ESRCH)
            return true;
        usleep(10000);
    }
    return false;
}

static unsigned count_entries(const char *path)
{
    DIR *entries = opendir(path);
    unsigned count = 0;
    while (entries && readdir(entries))
        count++;
    if (entries)
        closedir(entries);
    return count;
}

/* How many control groups have this keeper's name in theirs? */
static unsigned cgroups_of(pid_t keeper)
{
    char script[200], line[32] = "0";
    snprintf(script, sizeof script,
             "find /sys/fs/cgroup -type d -name 'postern-%d-*' 2>/dev/null | wc -l", (int)keeper);
    FILE *pipe = popen(script, "r");
    if (!pipe || !fgets(line, sizeof line, pipe))
        line[0] = '0';
    if (pipe)
        pclose(pipe);
    return (unsigned)atoi(line);
}

TEST_WITHIN(fifty_sandboxes_come_and_go_and_leave_nothing, 60)
{
    begin();
    stage_open_manager(stage, 0, 0);
    const char *home = home_of(stage);
    pid_t keeper = 0;
    unsigned descriptors = 0, mounts_before = 0, mounts = 0;
    struct err err = {0};
    for (int i = 0; i < 55; i++) {
        if (stage_open(stage, &stage->spec, &stage->box, &err) < 0)
            EXPECT_TEXT(err.text, "");
        EXPECT_INT(RUN(ARGV("/bin/true")).exit.code, 0);
        EXPECT_INT(stage_close(stage, stage->box, &err), 0);
        if (i == 4 || i == 54) {
            char path[64];
            keeper = keeper_pid(home);
            EXPECT(keeper > 0);
            snprintf(path, sizeof path, "/proc/%d/fd", (int)keeper);
            unsigned now = count_entries(path);
            descriptors = i == 4 ? now : descriptors;
            EXPECT_INT(now, descriptors);
            snprintf(path, sizeof path, "/proc/%d/mountinfo", (int)keeper);
            OWN(buf) struct buf text = {0};
            EXPECT_INT(file_read(path, 1 << 20, &text, &err), 0);
            mounts = 0;
            for (size_t at = 0; at < text.size; at++)
                mounts += text.data[at] == '\n';
            mounts_before = i == 4 ? mounts : mounts_before;
            snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)keeper, (int)keeper);
            OWN(buf) struct buf children = {0};
            EXPECT_INT(file_read(path, 4096, &children, &err), 0);
            EXPECT_INT(children.size, 0);
        }
    }
    /* One that it was born with goes when somebody else on this machine removes its place. */
    EXPECT(mounts <= mounts_before);
    stage_close_manager(stage);
    EXPECT(gone(keeper));
    EXPECT_INT(cgroups_of(keeper), 0);
    stage_end(stage);
}

/* --- a server that is killed ------------------------------------------------------------------ */

struct finding {
    bool done;
    size_t count;
    char id[64], label[64];
};

static void on_found(void *context, const struct sandbox_found *found, size_t count,
                     const struct err *err)
{
    struct finding *finding = context;
    finding->done = true;
    finding->count = err ? 99 : count;
    for (size_t i = 0; !err && i < count; i++) {
        snprintf(finding->id, sizeof finding->id, "%s", found[i].id);
        snprintf(finding->label, sizeof finding->label, "%s", found[i].label);
    }
}

static struct finding find(struct stage *of)
{
    struct finding finding = {0};
    sandboxes_find(of->boxes, on_found, &finding);
    stage_until(of, &finding.done);
    return finding;
}

/* A server in a process of its own, killed while its sandbox runs. */
static void killed_server(struct stage *of, const char *home, const char *label)
{
    int ready[2];
    if (pipe(ready) < 0)
        abort();
    pid_t server = fork();
    if (server == 0) {
        struct err err = {0};
        close(ready[0]);
        open_shared(of, home);
        struct sandbox_spec spec = of->spec;
        spec.label = label;
        if (stage_open(of, &spec, &of->box, &err) < 0) {
            fprintf(stderr, "%s\n", err.text);
            _exit(1);
        }
        (void)!write(ready[1], "x", 1);
        (void)pause();
        _exit(0);
    }
    char byte;
    close(ready[1]);
    if (read(ready[0], &byte, 1) != 1)
        abort();
    kill(server, SIGKILL);
    waitpid(server, NULL, 0);
}

TEST(a_killed_server_s_sandbox_is_found_by_the_next_and_destroyed)
{
    begin();
    const char *home = home_of(stage);
    killed_server(stage, home, "rollout r-1");
    open_shared(stage, home);
    pid_t keeper = keeper_pid(home);
    struct finding finding = {0};
    for (int i = 0; i < 100 && finding.count != 1; i++) /* until the keeper saw the death */
        finding = find(stage);
    EXPECT_INT(finding.count, 1);
    EXPECT_TEXT(finding.label, "rollout r-1");
    struct waiting waiting = {0};
    sandboxes_destroy_found(stage->boxes, finding.id, stage_on_done, &waiting);
    stage_until(stage, &waiting.done);
    EXPECT_INT(waiting.err.kind, 0);
    EXPECT_INT(find(stage).count, 0);
    stage_close_manager(stage);
    EXPECT(gone(keeper)); /* nobody is left and nothing is kept: it ends by itself */
    EXPECT_INT(cgroups_of(keeper), 0);
    stage_end(stage);
}

struct linking {
    bool done;
    struct backend_link link;
    struct err err;
};

static void on_link(void *context, struct backend_link *link, const struct err *err)
{
    struct linking *linking = context;
    linking->done = true;
    if (err)
        linking->err = *err;
    else
        linking->link = *link;
}

static void on_frames_lost(void *context, const struct err *err)
{
    (void)context;
    (void)err;
}

static struct backend *start_backend(struct stage *of, const char *home, struct err *err)
{
    struct sandbox_options options = {.home = home, .program_dir = of->programs};
    of->loop = loop_new(err);
    struct backend *backend = backend_local.start(of->loop, &options, "local", err);
    if (!backend)
        fprintf(stderr, "  %s\n", err->text);
    return backend;
}

TEST(a_killed_server_s_sandbox_is_handed_to_the_next)
{
    begin();
    const char *home = home_of(stage);
    struct err err = {0};
    killed_server(stage, home, "kept");
    struct backend *backend = start_backend(stage, home, &err);
    EXPECT(backend);
    struct finding finding = {0};
    for (int i = 0; i < 100 && finding.count != 1; i++) {
        finding = (struct finding){0};
        backend_local.find(backend, on_found, &finding);
        stage_until(stage, &finding.done);
    }
    EXPECT_INT(finding.count, 1);
    struct linking linking = {0};
    backend_local.adopt(backend, finding.id, on_link, &linking);
    stage_until(stage, &linking.done);
    EXPECT_TEXT(linking.err.text, "");
    int accepting = 0;
    socklen_t size = sizeof accepting;
    EXPECT_INT(getsockopt(linking.link.inlet, SOL_SOCKET, SO_ACCEPTCONN, &accepting, &size), 0);
    EXPECT_INT(accepting, 1);
    EXPECT(fcntl(linking.link.frames_in, F_GETFD) >= 0);
    EXPECT(fcntl(linking.link.resolver, F_GETFD) >= 0);
    struct waiting waiting = {0};
    backend_local.destroy(backend, finding.id, stage_on_done, &waiting);
    stage_until(stage, &waiting.done);
    EXPECT_INT(waiting.err.kind, 0);
    bool stopped = false;
    backend_local.stop(backend, stage_set, &stopped);
    stage_until(stage, &stopped);
    stage_end(stage);
}

/* Keepers of other homes sweep what is empty, at any moment. */
TEST(a_place_that_is_swept_away_while_it_is_made_is_made_again)
{
    begin();
    struct err err = {0};
    struct local_places places;
    struct sandbox_options options = {.home = home_of(stage), .program_dir = stage->programs};
    EXPECT_INT(local_find_places(&options, &places, &err), 0);
    pid_t sweeper = fork();
    if (sweeper == 0)
        for (prctl(PR_SET_PDEATHSIG, SIGKILL);;) {
            (void)rmdir(places.state);
            usleep(20); /* else the two may take turns for ever */
        }
    for (int i = 0; i < 5000; i++) {
        (void)local_find_places(&options, &places, &err);
        EXPECT_TEXT(err.text, "");
    }
    kill(sweeper, SIGKILL);
    waitpid(sweeper, NULL, 0);
    (void)rmdir(places.state);
    stage_end(stage);
}

/* The keeper was too busy to read what the dead server asked for last. */
TEST(a_killed_server_with_unread_requests_is_dead_all_the_same)
{
    begin();
    const char *home = home_of(stage);
    struct err err = {0};
    char id[64] = "";
    int ready[2], go[2];
    EXPECT(pipe(ready) == 0 && pipe(go) == 0);
    pid_t server = fork();
    if (server == 0) {
        static struct opening openings[8];
        char byte;
        open_shared(stage, home);
        if (stage_open(stage, &stage->spec, &stage->box, &err) < 0)
            _exit(1);
        snprintf(id, sizeof id, "%s", sandbox_id(stage->box));
        (void)!write(ready[1], id, sizeof id);
        (void)!read(go[0], &byte, 1);
        for (size_t i = 0; i < COUNT(openings); i++)
            (void)sandbox_open(stage->boxes, &stage->spec, stage_on_open, &openings[i]);
        loop_once(stage->loop, 0);
        (void)!write(ready[1], "x", 1);
        (void)pause();
        _exit(0);
    }
    EXPECT_INT(read(ready[0], id, sizeof id), sizeof id);
    pid_t keeper = keeper_pid(home);
    EXPECT(keeper > 0);
    EXPECT_INT(kill(keeper, SIGSTOP), 0);
    char byte;
    EXPECT_INT(write(go[1], "x", 1), 1);
    EXPECT_INT(read(ready[0], &byte, 1), 1);
    kill(server, SIGKILL);
    waitpid(server, NULL, 0);
    struct backend *backend = start_backend(stage, home, &err);
    EXPECT(backend);
    struct linking linking = {0};
    backend_local.adopt(backend, id, on_link, &linking);
    EXPECT_INT(kill(keeper, SIGCONT), 0);
    stage_until(stage, &linking.done);
    EXPECT_TEXT(linking.err.text, "");
    struct waiting waiting = {0};
    backend_local.destroy(backend, id, stage_on_done, &waiting);
    stage_until(stage, &waiting.done);
    EXPECT_INT(waiting.err.kind, 0);
    bool stopped = false;
    backend_local.stop(backend, stage_set, &stopped);
    stage_until(stage, &stopped);
    stage_end(stage);
}

TEST(a_killed_keeper_takes_its_sandboxes_along_and_the_next_one_sweeps)
{
    begin();
    const char *home = home_of(stage);
    struct err err = {0};
    open_shared(stage, home);
    struct sandbox_spec spec = stage->spec;
    spec.upper_on_disk = true;
    if (stage_open(stage, &spec, &stage->box, &err) < 0)
        EXPECT_TEXT(err.text, "");
    struct result written = RUN(.shell = "echo x > /work/file");
    EXPECT_INT(written.exit.code, 0);
    pid_t keeper = keeper_pid(home);
    EXPECT(keeper > 0);
    char path[200];
    snprintf(path, sizeof path, "%s/sandboxes", home);
    unsigned full = count_entries(path);
    EXPECT(full == 3); /* ".", "..", and the keeper's own */
    kill(keeper, SIGKILL);
    EXPECT(gone(keeper));
    struct waiting closing = {0};
    sandbox_close(stage->box, stage_on_done, &closing);
    stage_until(stage, &closing.done);
    EXPECT_INT(closing.err.kind, 0);
    if (stage_open(stage, &stage->spec, &stage->box, &err) < 0)
        EXPECT_TEXT(err.text, "");
    EXPECT_INT(RUN(ARGV("/bin/true")).exit.code, 0);
    EXPECT_INT(cgroups_of(keeper), 0);
    EXPECT_INT(count_entries(path), 2);
    stage_end(stage);
}

/* --- limits and pools ------------------------------------------------------------------------- */

static void on_count(void *context, uint64_t count)
{
    *(uint64_t *)context = count;
}

TEST(out_of_memory_kills_are_counted)
{
    begin();
    if (getuid() != 0)
        SKIP("limits need control groups");
    struct err err = {0};
    char inside[600];
    EXPECT(compile_inside(inside, sizeof inside));
    struct backend *backend = start_backend(stage, home_of(stage), &err);
    EXPECT(backend);
    struct sandbox_spec spec = {.memory_bytes_max = 64 << 20};
    struct linking linking = {0};
    backend_local.create(backend, "sb-oom", &spec, on_link, &linking);
    stage_until(stage, &linking.done);
    EXPECT_TEXT(linking.err.text, "");
    close(linking.link.inlet);
    close(linking.link.resolver);
    struct channel_options options = {0};
    struct channel_handlers handlers = {.on_lost = on_frames_lost};
    struct channel *channel = channel_new(stage->loop, linking.link.frames_in,
                                          linking.link.frames_out, &options, &handlers, NULL, &err);
    EXPECT(channel);
    struct waiting put = {0};
    OWN(fd) int program = open(inside, O_RDONLY | O_CLOEXEC);
    channel_put_fd(channel, INSIDE_PATH, program, 0755, NULL, stage_on_done, &put);
    stage_until(stage, &put.done);
    EXPECT_INT(put.err.kind, 0);
    uint64_t count = 77;
    backend_local.oom_kills(backend, "sb-oom", on_count, &count);
    while (count == 77)
        loop_once(stage->loop, 1000);
    EXPECT_INT(count, 0);
    struct result eaten = {0};
    struct sandbox_command command = {ARGV(INSIDE_PATH, "eat", "400")};
    channel_run_whole(channel, &command, STR_NONE, 1000, stage_on_whole, &eaten);
    stage_until(stage, &eaten.done);
    count = 77;
    backend_local.oom_kills(backend, "sb-oom", on_count, &count);
    while (count == 77)
        loop_once(stage->loop, 1000);
    EXPECT(count >= 1);
    channel_close(channel);
    struct waiting waiting = {0};
    backend_local.destroy(backend, "sb-oom", stage_on_done, &waiting);
    stage_until(stage, &waiting.done);
    bool stopped = false;
    backend_local.stop(backend, stage_set, &stopped);
    stage_until(stage, &stopped);
    stage_end(stage);
}

static void on_snapshot(void *context, const char *layer_id, const struct err *err)
{
    struct waiting *waiting = context;
    waiting->done = true;
    waiting->err = err ? *err : (struct err){0};
    waiting->content = mem_dup(layer_id ? layer_id : "");
}

TEST(everybody_who_asks_for_an_end_is_told)
{
    begin();
    struct err err = {0};
    struct backend *backend = start_backend(stage, home_of(stage), &err);
    EXPECT(backend);
    struct linking linking = {0}, cancelled = {0};
    struct waiting snapshot = {0}, first = {0}, second = {0}, third = {0};
    backend_local.create(backend, "sb-a", &stage->spec, on_link, &linking);
    stage_until(stage, &linking.done);
    EXPECT_TEXT(linking.err.text, "");
    backend_local.snapshot(backend, "sb-a", on_snapshot, &snapshot);
    backend_local.destroy(backend, "sb-a", stage_on_done, &first);
    stage_until(stage, &snapshot.done);
    stage_until(stage, &first.done);
    EXPECT_INT(snapshot.err.kind, 0);
    EXPECT_INT(first.err.kind, 0);
    backend_local.drop_layer(backend, snapshot.content);
    free(snapshot.content);
    backend_local.destroy(backend, "sb-a", stage_on_done, &second); /* gone is gone */
    stage_until(stage, &second.done);
    EXPECT_INT(second.err.kind, 0);
    backend_local.create(backend, "sb-b", &stage->spec, on_link, &cancelled);
    backend_local.destroy(backend, "sb-b", stage_on_done, &third);
    stage_until(stage, &cancelled.done);
    stage_until(stage, &third.done);
    EXPECT_INT(cancelled.err.kind, ERR_CANCELLED);
    EXPECT_INT(third.err.kind, 0);
    bool stopped = false;
    backend_local.stop(backend, stage_set, &stopped);
    stage_until(stage, &stopped);
    stage_end(stage);
}

static bool is_pool_hit(struct sandbox *box)
{
    OWN(buf) struct buf text = {0};
    struct json_writer writer = {.out = &text};
    sandbox_facts(box, &writer);
    return str_find(buf_str(&text), STR("\"pool_hit\":true")) >= 0;
}

TEST(a_pool_gives_ready_sandboxes_and_is_filled_again)
{
    begin();
    stage_open_manager(stage, 0, 0);
    struct err err = {0};
    EXPECT_INT(sandboxes_pool(stage->boxes, &stage->spec, 2, &err), 0);
    unsigned hits = 0;
    for (int i = 0; i < 200 && hits < 6; i++) { /* more than it holds */
        if (stage_open(stage, &stage->spec, &stage->box, &err) < 0)
            EXPECT_TEXT(err.text, "");
        hits += is_pool_hit(stage->box);
        EXPECT_INT(RUN(ARGV("/bin/true")).exit.code, 0);
        EXPECT_INT(stage_close(stage, stage->box, &err), 0);
        usleep(2000);
    }
    EXPECT_INT(hits, 6);
    struct sandbox_spec other = stage->spec; /* another shape is never served from it */
    other.pids_max = 77;
    if (stage_open(stage, &other, &stage->box, &err) < 0)
        EXPECT_TEXT(err.text, "");
    EXPECT(!is_pool_hit(stage->box));
    EXPECT_INT(sandboxes_pool(stage->boxes, &stage->spec, 0, &err), 0);
    stage_end(stage);
}

TEST(the_upper_layer_has_a_size)
{
    begin();
    stage_open_manager(stage, 0, 0);
    struct err err = {0};
    stage->spec.disk_bytes_max = 1 << 20;
    if (stage_open(stage, &stage->spec, &stage->box, &err) < 0)
        EXPECT_TEXT(err.text, "");
    struct result full = RUN(.shell = "head -c 3000000 /dev/zero > /work/big || echo full; "
                                      "head -c 3000000 /dev/zero > /dev/shm/big || echo full");
    EXPECT_TEXT(full.out, "full\nfull\n");
    EXPECT_INT(RUN(ARGV("/bin/true")).exit.code, 0);
    stage_end(stage);
}

/* --- what commands may do --------------------------------------------------------------------- */

TEST(commands_have_no_capability_and_root_has_the_documented_ones)
{
    begin();
    stage_open_manager(stage, 0, 0);
    struct err err = {0};
    static const char show[] = "grep -E '^(CapEff|CapPrm|CapBnd|CapAmb|NoNewPrivs|Seccomp):' "
                               "/proc/self/status | tr -d '\\t'";
    if (stage_open(stage, &stage->spec, &stage->box, &err) < 0)
        EXPECT_TEXT(err.text, "");
    EXPECT_TEXT(RUN(.shell = show).out,
                "CapPrm:0000000000000000\nCapEff:0000000000000000\nCapBnd:0000000000000000\n"
                "CapAmb:0000000000000000\nNoNewPrivs:1\nSeccomp:2\n");
    EXPECT_INT(stage_close(stage, stage->box, &err), 0);
    struct sandbox_spec spec = stage->spec;
    spec.root_user = true;
    if (stage_open(stage, &spec, &stage->box, &err) < 0) {
        EXPECT_INT(err.kind, ERR_UNSUPPORTED); /* said by name: ordinary user, or overlayfs */
        EXPECT(strstr(err.text, "root inside"));
        stage_end(stage);
        return;
    }
    EXPECT_TEXT(RUN(.shell = show, .user = "root").out,
                "CapPrm:00000000800405fb\nCapEff:00000000800405fb\nCapBnd:00000000800405fb\n"
                "CapAmb:0000000000000000\nNoNewPrivs:1\nSeccomp:2\n");
    EXPECT_INT(
        RUN(.shell = "echo x > /usr/local/made && chown 33:33 /usr/local/made", .user = "root")
            .exit.code,
        0);
    stage_end(stage);
}

TEST(nothing_personal_of_the_host_is_seen)
{
    begin();
    stage_open_manager(stage, 0, 0);
    struct err err = {0};
    char canary[128];
    snprintf(canary, sizeof canary, "%s/canary", stage->dir);
    host_write(canary, 0644, "seen\n");
    if (stage_open(stage, &stage->spec, &stage->box, &err) < 0)
        EXPECT_TEXT(err.text, "");
    EXPECT(RUN(ARGV("/bin/cat", canary)).exit.code != 0);
    EXPECT_TEXT(RUN(.shell = "ls /root /home /etc/shadow /etc/machine-id /etc/ssh 2>/dev/null").out,
                getuid() == 0 ? "/home:\nagent\n" : "/home:\nagent\n\n/root:\n");
    EXPECT_TEXT(RUN(.shell = "hostname; ls /etc | grep -c gitconfig").out, "sandbox\n0\n");
    EXPECT_TEXT(RUN(.shell = "ls /var/lib /mnt /srv /opt /sys | grep -v :").out, "\n\n\n\n");
    stage_end(stage);
}

/* --- roots nobody trusts ---------------------------------------------------------------------- */

TEST(a_root_without_bin_and_other_mistakes_get_one_sentence)
{
    begin();
    stage_open_manager(stage, 0, 0);
    struct err err = {0};
    struct sandbox_spec spec = stage->spec;
    char root[160];
    snprintf(root, sizeof root, "dir:%s", stage->dir);
    spec.root = root;
    EXPECT_INT(stage_open(stage, &spec, &stage->box, &err), -1);
    EXPECT_INT(err.kind, ERR_INPUT);
    EXPECT(strstr(err.text, "neither bin nor usr/bin"));
    spec.root = "dir:/does/not/exist";
    EXPECT_INT(stage_open(stage, &spec, &stage->box, &err), -1);
    EXPECT_INT(err.kind, ERR_INPUT);
    spec.root = "image:none";
    EXPECT_INT(stage_open(stage, &spec, &stage->box, &err), -1);
    EXPECT_INT(err.kind, ERR_NOT_FOUND);
    spec.root = "image:../../etc";
    EXPECT_INT(stage_open(stage, &spec, &stage->box, &err), -1);
    EXPECT_INT(err.kind, ERR_INPUT);
    spec.root = "cloud";
    EXPECT_INT(stage_open(stage, &spec, &stage->box, &err), -1);
    EXPECT_INT(err.kind, ERR_INPUT);
    spec = stage->spec;
    const char *layers[] = {"ly-none"};
    spec.layers = layers;
    spec.layer_count = 1;
    EXPECT_INT(stage_open(stage, &spec, &stage->box, &err), -1);
    EXPECT_INT(err.kind, ERR_NOT_FOUND);
    if (stage_open(stage, &stage->spec, &stage->box, &err) < 0) /* none of it did harm */
        EXPECT_TEXT(err.text, "");
    stage_end(stage);
}

TEST(links_in_a_root_do_not_lead_the_mounts_outside)
{
    begin();
    stage_open_manager(stage, 0, 0);
    struct err err = {0};
    char inside[600], path[200], target[160], root[200];
    EXPECT(compile_inside(inside, sizeof inside));
    snprintf(target, sizeof target, "%s/host-canary", stage->dir);
    EXPECT_INT(mkdir(target, 0777), 0);
    snprintf(path, sizeof path, "%s/root", stage->dir);
    EXPECT_INT(mkdir(path, 0755), 0);
    snprintf(path, sizeof path, "%s/root/bin", stage->dir);
    EXPECT_INT(mkdir(path, 0755), 0);
    snprintf(path, sizeof path, "%s/root/bin/inside", stage->dir);
    EXPECT_INT(HOST("cp", inside, path), 0);
    static const char *const names[] = {"dev", "proc", "tmp", "etc", "work", "home", "run", "var"};
    for (size_t i = 0; i < COUNT(names); i++) {
        snprintf(path, sizeof path, "%s/root/%s", stage->dir, names[i]);
        EXPECT_INT(symlink(target, path), 0);
    }
    snprintf(root, sizeof root, "dir:%s/root", stage->dir);
    struct sandbox_spec spec = stage->spec;
    spec.root = root;
    if (stage_open(stage, &spec, &stage->box, &err) < 0)
        EXPECT_TEXT(err.text, "");
    EXPECT_INT(stage_put(stage, stage->box, "/tmp/x", STR("x"), 0644, &err), 0);
    EXPECT_INT(RUN(ARGV("/bin/inside", "exit", "3")).exit.code, 3);
    EXPECT_INT(stage_close(stage, stage->box, &err), 0);
    EXPECT_INT(count_entries(target), 2); /* "." and ".." */
    stage_end(stage);
}

TEST(a_directory_given_as_layer_is_there_and_read_only)
{
    begin();
    stage_open_manager(stage, 0, 0);
    struct err err = {0};
    char bundle[128], path[1000];
    snprintf(bundle, sizeof bundle, "%s/bundle", stage->dir);
    snprintf(path, sizeof path,
             "mkdir -p %s/opt/agent %s/usr/local/bin; echo hi > %s/opt/agent/f; "
             "echo x > %s/usr/local/bin/marker; chmod -R a+rX %s",
             bundle, bundle, bundle, bundle, bundle);
    EXPECT_INT(HOST("sh", "-c", path), 0);
    const char *layers[] = {bundle};
    struct sandbox_spec spec = stage->spec;
    spec.layers = layers;
    spec.layer_count = 1;
    if (stage_open(stage, &spec, &stage->box, &err) < 0)
        EXPECT_TEXT(err.text, "");
    EXPECT_TEXT(RUN(.shell = "cat /opt/agent/f /usr/local/bin/marker; ls /usr/bin/env").out,
                "hi\nx\n/usr/bin/env\n");
    EXPECT_INT(stage_close(stage, stage->box, &err), 0);
    snprintf(path, sizeof path, "%s/opt/agent/f", bundle);
    OWN(buf) struct buf text = {0};
    EXPECT_INT(file_read(path, 100, &text, &err), 0);
    EXPECT_STR(buf_str(&text), STR("hi\n"));
    stage_end(stage);
}

/* --- who runs it ------------------------------------------------------------------------------ */

/* Runs `act` in a process of an ordinary user; false when it failed. */
static bool as_ordinary_user(void (*act)(void))
{
    pid_t pid = fork();
    if (pid == 0) {
        if (getuid() == 0 &&
            (chown(stage->dir, 65534, 65534) < 0 || setgid(65534) < 0 || setuid(65534) < 0))
            _exit(9);
        act();
        _exit(0);
    }
    int status = 0;
    waitpid(pid, &status, 0);
    return status == 0;
}

#define NEED(condition)                                                                            \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "line %d: %s: %s\n", __LINE__, #condition, err.text);                  \
            _exit(1);                                                                              \
        }                                                                                          \
    } while (0)

static void act_ordinary(void)
{
    struct err err = {0};
    stage_open_manager(stage, 0, 0);
    struct sandbox_spec spec = {.backend = "local"};
    if (stage_open(stage, &spec, &stage->box, &err) < 0) {
        NEED(err.kind == ERR_UNSUPPORTED);
        NEED(strstr(err.text, "use --isolation no-limits"));
        spec.isolation = SANDBOX_ISOLATION_NO_LIMITS;
        NEED(stage_open(stage, &spec, &stage->box, &err) == 0);
    }
    NEED(RUN(.shell = "test $(id -u) = 1000 && touch /work/x /tmp/y ~/z").exit.code == 0);
    struct result places = RUN(.shell = "for i in /usr/x /dev/x /proc/acpi/x /proc/sys/x; do touch "
                                        "$i && echo $i; done 2>&-");
    NEED(strcmp(places.out, "") == 0);
    struct result status = RUN(.shell = "grep CapEff /proc/self/status");
    NEED(strcmp(status.out, "CapEff:\t0000000000000000\n") == 0);
    NEED(stage_close(stage, stage->box, &err) == 0);
    stage_close_manager(stage);
}

TEST(an_ordinary_user_has_sandboxes_too)
{
    begin();
    char path[700];
    snprintf(path, sizeof path, "su -s /bin/sh nobody -c 'test -x %s/postern-porter'",
             stage->programs);
    if (getuid() == 0 && HOST("sh", "-c", path) != 0) {
        stage_end(stage);
        SKIP("nobody cannot reach the programs in this build directory");
    }
    EXPECT(as_ordinary_user(act_ordinary));
    stage_end(stage);
}

/* In a user namespace of its own, with room for two namespaces below: the keeper's and one more. */
static void act_quota(void)
{
    struct err err = {0};
    uid_t uid = getuid();
    gid_t gid = getgid();
    char map[64];
    (void)prctl(PR_SET_DUMPABLE, 1); /* or /proc/self is root's after the change of user */
    NEED(unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0);
    host_write("/proc/self/setgroups", 0644, "deny");
    snprintf(map, sizeof map, "0 %u 1", uid);
    host_write("/proc/self/uid_map", 0644, "%s", map);
    snprintf(map, sizeof map, "0 %u 1", gid);
    host_write("/proc/self/gid_map", 0644, "%s", map);
    OWN(fd) int limit = open("/proc/sys/user/max_user_namespaces", O_WRONLY | O_CLOEXEC);
    NEED(limit >= 0 && write(limit, "1", 1) == 1);
    stage_open_manager(stage, 0, 0);
    struct sandbox_spec spec = {.backend = "local", .isolation = SANDBOX_ISOLATION_NO_LIMITS};
    struct sandbox *first, *second;
    NEED(stage_open(stage, &spec, &first, &err) == 0);
    uint64_t until = clock_mono_ms() + 20000;
    struct opening opening = {0};
    struct sandbox *handle = sandbox_open(stage->boxes, &spec, stage_on_open, &opening);
    while (!opening.done && clock_mono_ms() < until && !opening.box)
        loop_once(stage->loop, 100);
    NEED(!opening.box);
    NEED(opening.err.kind == ERR_CAPACITY || !opening.done); /* told, or still tried again */
    struct waiting closing = {0};
    sandbox_close(handle, stage_on_done, &closing);
    stage_until(stage, &closing.done);
    NEED(stage_close(stage, first, &err) == 0);
    NEED(stage_open(stage, &spec, &second, &err) == 0); /* nothing leaked */
    stage_close_manager(stage);
}

TEST_WITHIN(too_many_namespaces_are_a_clean_error, 90)
{
    begin();
    char path[700];
    snprintf(path, sizeof path, "su -s /bin/sh nobody -c 'test -x %s/postern-porter'",
             stage->programs);
    if (getuid() == 0 && HOST("sh", "-c", path) != 0) {
        stage_end(stage);
        SKIP("nobody cannot reach the programs in this build directory");
    }
    EXPECT(as_ordinary_user(act_quota));
    stage_end(stage);
}

TEST(the_doctor_has_a_row_for_each_primitive)
{
    begin();
    struct sandbox_options options = {.home = home_of(stage), .program_dir = stage->programs};
    OWN(buf) struct buf text = {0};
    struct json_writer writer = {.out = &text};
    int missing = sandbox_doctor(&options, &writer);
    OWN(json_doc) struct json_doc doc = {0};
    struct err err = {0};
    EXPECT_INT(json_read(&doc, buf_str(&text), NULL, &err), 0);
    struct json checks = json_get(json_root(&doc), "checks");
    EXPECT(json_size(checks) >= 15);
    EXPECT_INT(json_int_or(json_get(json_root(&doc), "missing"), -1), missing);
    struct json last = json_at(checks, json_size(checks) - 1);
    EXPECT(json_is(json_get(last, "name"), "a whole sandbox"));
    EXPECT(missing > 0 || json_is(json_get(last, "state"), "ok"));
    options.program_dir = "/nowhere";
    buf_clear(&text);
    writer = (struct json_writer){.out = &text};
    EXPECT_INT(sandbox_doctor(&options, &writer), 1);
    stage_end(stage);
}
