/* doctor.c - `postern-keeper --doctor`: what this machine offers, by trying it.
 *
 * One row per primitive. Each is tried in a process of its own, the way a sandbox would use it, and
 * answers in shared memory; one that dies or hangs is a row, too. Rows go to standard output,
 * fields separated by tabs: name, state (ok, missing, weak), whether the full level needs it (1 or
 * 0), what was seen, what follows. The last row makes a whole sandbox. src/sandbox/doctor.c turns
 * them into JSON. */
#include <errno.h>
#include <fcntl.h>
#include <linux/landlock.h>
#include <linux/sched.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/pidfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/text.h"
#include "filter.h"
#include "keeper.h"
#include "mounts.h"

#define TRY_MS_MAX 15000

struct answer {
    bool given, good;
    char seen[400];
};

struct trial {
    struct answer *answer; /* shared with the process that tries */
    const struct keeper_options *options;
};

static void tell(struct trial *trial, bool good, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static void tell(struct trial *trial, bool good, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(trial->answer->seen, sizeof trial->answer->seen, format, args);
    va_end(args);
    trial->answer->good = good;
    trial->answer->given = true;
}

static void tell_err(struct trial *trial, const struct err *err)
{
    tell(trial, false, "%s", err->text);
}

/* --- inside new namespaces
 * -------------------------------------------------------------------------- */

/* Runs `act` as the first process of new namespaces, user ids mapped, as a sandbox's would. */
static void inside(struct trial *trial, uint64_t flags, void (*act)(struct trial *trial))
{
    struct ids ids = {0};
    struct err err = {0};
    int ready[2];
    if (ids_enter(&ids, &err) < 0 || pipe2(ready, O_CLOEXEC) < 0) {
        tell_err(trial, &err);
        return;
    }
    if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0) {
        tell(trial, false, "a mount namespace: %s", strerror(errno));
        return;
    }
    int slot = ids_take(&ids, &err);
    struct clone_args args = {.flags = CLONE_NEWUSER | flags, .exit_signal = SIGCHLD};
    pid_t pid = slot < 0 ? -1 : (pid_t)syscall(SYS_clone3, &args, sizeof args);
    if (pid < 0) {
        ids_explain_refusal(errno, &err);
        tell_err(trial, &err);
        return;
    }
    if (pid == 0) {
        char byte;
        close(ready[1]);
        if (read(ready[0], &byte, 1) != 1)
            _exit(1);
        if (ids.mode != IDS_SINGLE && (setresgid(0, 0, 0) < 0 || setresuid(0, 0, 0) < 0))
            tell(trial, false, "becoming root inside: %s", strerror(errno));
        else
            act(trial);
        _exit(0);
    }
    close(ready[0]);
    if (ids_write_maps(&ids, slot, false, pid, &err) < 0)
        tell_err(trial, &err);
    else
        (void)!write(ready[1], "x", 1);
    close(ready[1]);
    int status;
    (void)waitpid(pid, &status, 0);
    ids_deinit(&ids);
}

static void act_nothing(struct trial *trial)
{
    tell(trial, true, "works");
}

static void mount_and_tell(struct trial *trial, const char *type,
                           const struct mount_option *options)
{
    struct err err = {0};
    OWN(fd) int made = mount_make(type, options, 0, &err);
    if (made < 0)
        tell_err(trial, &err);
    else
        tell(trial, true, "works");
}

static void act_proc(struct trial *trial)
{
    mount_and_tell(trial, "proc", NULL);
}

static void act_tmpfs(struct trial *trial)
{
    static const struct mount_option options[] = {{"size", "1m"}, {NULL, NULL}};
    mount_and_tell(trial, "tmpfs", options);
}

static void act_devpts(struct trial *trial)
{
    static const struct mount_option options[] = {{"ptmxmode", "0666"}, {NULL, NULL}};
    mount_and_tell(trial, "devpts", options);
}

/* Lower and upper layer on a tmpfs; a file is removed and a directory replaced through it. */
static void act_overlay(struct trial *trial)
{
    struct err err = {0};
    static const struct mount_option plain[] = {{NULL, NULL}};
    static const struct mount_option options[] = {
        {"userxattr", NULL}, {"lowerdir", "l"}, {"upperdir", "u"}, {"workdir", "w"}, {NULL, NULL}};
    OWN(fd) int base = mount_make("tmpfs", plain, 0, &err);
    if (base < 0 || move_mount(base, "", AT_FDCWD, "/proc", MOVE_MOUNT_F_EMPTY_PATH) < 0 ||
        fchdir(base) < 0) {
        tell(trial, false, "a tmpfs for it: %s", err.kind ? err.text : strerror(errno));
        return;
    }
    (void)!mkdir("l", 0755), (void)!mkdir("u", 0755), (void)!mkdir("w", 0755);
    (void)!mkdir("l/d", 0755);
    close(open("l/d/f", O_CREAT | O_WRONLY | O_CLOEXEC, 0644));
    OWN(fd) int made = mount_make("overlay", options, 0, &err);
    if (made < 0)
        tell_err(trial, &err);
    else if (unlinkat(made, "d/f", 0) < 0 || unlinkat(made, "d", AT_REMOVEDIR) < 0 ||
             mkdirat(made, "d", 0755) < 0)
        tell(trial, false, "replacing a directory through it: %s (tmpfs keeps no user xattrs?)",
             strerror(errno));
    else
        tell(trial, true, "works, with whiteouts and opaque directories on tmpfs");
}

/* --- what is tried
 * ---------------------------------------------------------------------------------- */

static void try_clone3(struct trial *trial)
{
    int pidfd = -1;
    struct clone_args args = {
        .flags = CLONE_PIDFD, .pidfd = (uint64_t)(uintptr_t)&pidfd, .exit_signal = SIGCHLD};
    pid_t pid = (pid_t)syscall(SYS_clone3, &args, sizeof args);
    if (pid == 0) {
        (void)pause();
        _exit(0);
    }
    siginfo_t status = {0};
    if (pid < 0)
        tell(trial, false, "clone3: %s", strerror(errno));
    else if (pidfd_send_signal(pidfd, SIGKILL, NULL, 0) < 0 ||
             waitid(P_PIDFD, (id_t)pidfd, &status, WEXITED) < 0)
        tell(trial, false, "pidfd: %s", strerror(errno));
    else
        tell(trial, true, "works");
}

static void try_user(struct trial *trial)
{
    inside(trial, 0, act_nothing);
}

static void try_pid(struct trial *trial)
{
    inside(trial, CLONE_NEWPID | CLONE_NEWNS, act_proc);
}

static void try_net(struct trial *trial)
{
    struct ids ids = {0};
    struct nets nets;
    struct err err = {0};
    nets_init(&nets);
    struct net *net = ids_enter(&ids, &err) < 0 ? NULL : net_take(&nets, &err);
    if (net)
        tell(trial, true, "works, with loopback, inlet and resolver");
    else
        tell_err(trial, &err);
    net_free(net);
}

static void try_others(struct trial *trial)
{
    inside(trial, CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWCGROUP, act_nothing);
}

static void try_tmpfs(struct trial *trial)
{
    inside(trial, CLONE_NEWNS, act_tmpfs);
}

static void try_devpts(struct trial *trial)
{
    inside(trial, CLONE_NEWNS, act_devpts);
}

static void try_overlay(struct trial *trial)
{
    inside(trial, CLONE_NEWNS, act_overlay);
}

static void try_ids(struct trial *trial)
{
    struct ids ids = {0};
    struct err err = {0};
    if (ids_enter(&ids, &err) < 0) {
        tell_err(trial, &err);
        return;
    }
    switch (ids.mode) {
    case IDS_RANGES:
        tell(trial, true, "%u ranges of %u ids from %u on, one per sandbox", ids.slots,
             IDS_RANGE_SIZE, ids.base);
        return;
    case IDS_SHARED:
        tell(trial, true, "one range of %u ids, shared by all sandboxes", ids.count);
        return;
    case IDS_SINGLE:
        tell(trial, false, "only the user's own id (no range in /etc/subuid, or no newuidmap)");
        return;
    }
}

static void try_shift(struct trial *trial)
{
    struct ids ids = {0};
    struct err err = {0};
    if (ids_enter(&ids, &err) < 0) {
        tell_err(trial, &err);
        return;
    }
    if (ids.base == 0) {
        tell(trial, false, "not available to ordinary users");
        return;
    }
    int ready[2];
    struct clone_args args = {.flags = CLONE_NEWUSER, .exit_signal = SIGCHLD};
    if (unshare(CLONE_NEWNS) < 0 || pipe2(ready, O_CLOEXEC) < 0)
        return;
    pid_t pid = (pid_t)syscall(SYS_clone3, &args, sizeof args);
    if (pid == 0) {
        char byte;
        close(ready[1]);
        (void)!read(ready[0], &byte, 1);
        _exit(0);
    }
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/ns/user", (int)pid);
    OWN(fd) int userns = -1;
    if (pid > 0 && ids_write_maps(&ids, 0, false, pid, &err) == 0)
        userns = open(path, O_RDONLY | O_CLOEXEC);
    OWN(fd) int mount = mount_clone(AT_FDCWD, "/usr", false, &err);
    if (userns >= 0 && mount >= 0 && mount_shape(mount, false, 0, userns, &err) == 0)
        tell(trial, true, "works for /usr");
    else
        tell(trial, false, "/usr: %s", err.text);
    close(ready[1]);
    if (pid > 0)
        (void)waitpid(pid, NULL, 0);
}

static void tell_cgroups(struct trial *trial, unsigned need)
{
    struct ids ids = {0};
    struct cgroups cgroups = {0};
    struct err err = {0};
    if (ids_enter(&ids, &err) < 0) {
        tell_err(trial, &err);
        return;
    }
    char name[64];
    snprintf(name, sizeof name, "postern-doctor-%d", (int)getpid());
    cgroups_start(&cgroups, name);
    static const struct cgroup_limits limits = {64 << 20, 100, 500};
    struct cgroup_leaf *leaf = NULL;
    if ((cgroups.controllers & need) == need)
        leaf = cgroup_leaf_take(&cgroups, &limits, &err);
    if (leaf) {
        tell(trial, true, "%s%s", cgroups.mode, cgroups.controllers & 4 ? "; cpu, too" : "");
        cgroup_leaf_give(&cgroups, leaf);
    } else {
        tell(trial, false, "%s: %s", cgroups.mode, err.kind ? err.text : cgroups.reason);
    }
    cgroups_stop(&cgroups);
}

static void try_memory(struct trial *trial)
{
    tell_cgroups(trial, 1u << CGROUP_MEMORY | 1u << CGROUP_PIDS);
}

static void try_cpu(struct trial *trial)
{
    tell_cgroups(trial, 1u << CGROUP_CPU);
}

static void try_seccomp(struct trial *trial)
{
    OWN(buf) struct buf code = {0};
    struct err err = {0};
    if (filter_compile(&code, &err) < 0) {
        tell_err(trial, &err);
        return;
    }
    struct sock_fprog program = {.len = (unsigned short)(code.size / sizeof(struct sock_filter)),
                                 .filter = (struct sock_filter *)(void *)code.data};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 ||
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) < 0)
        tell(trial, false, "%s", strerror(errno));
    else if (syscall(SYS_unshare, CLONE_NEWUSER) == 0 || errno != EPERM)
        tell(trial, false, "the filter does not hold");
    else
        tell(trial, true, "a filter of %u instructions holds", program.len);
}

static void try_landlock(struct trial *trial)
{
    long version = syscall(SYS_landlock_create_ruleset, NULL, 0, LANDLOCK_CREATE_RULESET_VERSION);
    if (version < 0)
        tell(trial, false, "%s", strerror(errno));
    else
        tell(trial, true, "version %ld", version);
}

static void try_setting(struct trial *trial, const char *path, const char *safe)
{
    OWN(buf) struct buf text = {0};
    if (file_read(path, 64, &text, NULL) < 0)
        tell(trial, true, "this kernel has no such setting");
    else
        tell(trial, str_is(str_trim(buf_str(&text)), safe), "%s is %.*s", path,
             STR_ARGS(str_trim(buf_str(&text))));
}

static void try_tiocsti(struct trial *trial)
{
    try_setting(trial, "/proc/sys/dev/tty/legacy_tiocsti", "0");
}

static void try_io_uring(struct trial *trial)
{
    try_setting(trial, "/proc/sys/kernel/io_uring_disabled", "2");
}

/* Counted for all sandboxes of one user together, whatever ids they have inside. */
static void try_inotify(struct trial *trial)
{
    OWN(buf) struct buf text = {0};
    if (file_read("/proc/sys/fs/inotify/max_user_instances", 64, &text, NULL) < 0) {
        tell(trial, false, "this kernel has no inotify");
        return;
    }
    long many = strtol(buf_text(&text), NULL, 10);
    tell(trial, many >= 1024, "fs.inotify.max_user_instances is %ld", many);
}

static void try_disk(struct trial *trial)
{
    struct statvfs facts;
    char left[32];
    if (statvfs(trial->options->home, &facts) < 0) {
        tell(trial, false, "'%s': %s", trial->options->home, strerror(errno));
        return;
    }
    uint64_t bytes = (uint64_t)facts.f_bavail * facts.f_frsize;
    text_size(left, sizeof left, bytes);
    tell(trial, bytes > 1ull << 30, "%s free in '%s'", left, trial->options->home);
}

/* A keeper of its own makes a sandbox, as `postern exec` would. */
static void try_whole(struct trial *trial)
{
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return;
    pid_t pid = fork();
    if (pid == 0) {
        static struct keeper keeper;
        struct err err = {0};
        close(pair[0]);
        log_setup(LOG_OFF, false);
        keeper.options = *trial->options;
        keeper.options.private_fd = pair[1];
        keeper.options.listen_fd = -1;
        if (keeper_prepare(&keeper, &err) == 0)
            keeper_run(&keeper);
        _exit(0);
    }
    close(pair[1]);
    static const char *const levels[] = {"full", "no-limits"};
    static char packet[KEEPER_PACKET_MAX];
    char reason[300] = "";
    for (size_t i = 0; i < COUNT(levels); i++) {
        OWN(buf) struct buf ask = {0};
        keeper_add(&ask, "op", "create");
        keeper_add_number(&ask, "seq", i + 1);
        keeper_add(&ask, "id", i ? "sb-doctor2" : "sb-doctor");
        keeper_add(&ask, "isolation", levels[i]);
        int fds[KEEPER_FDS];
        size_t count = KEEPER_FDS;
        ssize_t got = -1;
        if (fd_send(pair[0], ask.data, ask.size, NULL, 0) > 0)
            got = fd_receive(pair[0], packet, sizeof packet, fds, &count);
        for (size_t j = 0; got > 0 && j < count; j++)
            close(fds[j]);
        if (got <= 0 || !keeper_packet_is_sound(str_make(packet, (size_t)got))) {
            tell(trial, false, "the keeper went away");
            break;
        }
        const char *text = keeper_field(str_make(packet, (size_t)got), "text");
        if (!text) {
            tell(trial, i == 0, "%s%s%s", i ? "only with --isolation no-limits: " : "works", reason,
                 "");
            break;
        }
        snprintf(reason, sizeof reason, "%s", text);
        tell(trial, false, "%s", reason);
    }
    (void)shutdown(pair[0], SHUT_WR);
    (void)!read(pair[0], packet, sizeof packet); /* until it is gone */
    (void)waitpid(pid, NULL, 0);
}

static const struct {
    const char *name;
    void (*run)(struct trial *trial);
    bool needed; /* without it the full level is refused */
    const char *without;
} trials[] = {
    {"clone3 and pidfd", try_clone3, true, "no local sandboxes: Linux 5.4 or newer is needed"},
    {"user namespaces", try_user, true, "no local sandboxes"},
    {"pid namespace with /proc", try_pid, true,
     "no local sandboxes; inside a container, run it with an unmasked /proc"},
    {"network namespace", try_net, true, "no local sandboxes"},
    {"mount, ipc, uts and cgroup namespaces", try_others, true, "no local sandboxes"},
    {"tmpfs", try_tmpfs, true, "no local sandboxes"},
    {"devpts", try_devpts, true, "no local sandboxes"},
    {"overlay in a user namespace", try_overlay, true,
     "no local sandboxes; Linux 5.11 has it, 6.6 has it on tmpfs"},
    {"seccomp", try_seccomp, true, "only --isolation no-seccomp, for debugging"},
    {"memory and pids limits", try_memory, true,
     "only --isolation no-limits; delegate a control group to this user for the full level"},
    {"cpu limits", try_cpu, false, "sandboxes with a cpu limit are refused"},
    {"user ids", try_ids, false,
     "root inside only with a directory or an image as root, and only that one user there"},
    {"idmapped mounts", try_shift, false,
     "files of the host show as nobody's; root inside is refused with the host's files as root"},
    {"Landlock", try_landlock, false, "not used yet"},
    {"TIOCSTI switched off", try_tiocsti, false,
     "sandboxes are safe: the seccomp filter refuses it"},
    {"io_uring switched off", try_io_uring, false,
     "sandboxes are safe: the seccomp filter refuses it"},
    {"file watches", try_inotify, false,
     "that many for all sandboxes together; programs that watch files need more for many "
     "sandboxes"},
    {"disk space", try_disk, false, "images and sandboxes on disk may not fit"},
    {"a whole sandbox", try_whole, true, "see above for what is missing"},
};

static void run_trial(void (*run)(struct trial *trial), struct trial *trial)
{
    *trial->answer = (struct answer){0};
    int pidfd = -1;
    struct clone_args args = {
        .flags = CLONE_PIDFD, .pidfd = (uint64_t)(uintptr_t)&pidfd, .exit_signal = SIGCHLD};
    pid_t pid = (pid_t)syscall(SYS_clone3, &args, sizeof args);
    if (pid < 0) { /* no clone3: fork, and trust the trial to end */
        pid = fork();
        pidfd = -1;
    }
    if (pid == 0) {
        run(trial);
        _exit(0);
    }
    struct pollfd end = {.fd = pidfd, .events = POLLIN};
    if (pidfd >= 0 && poll(&end, 1, TRY_MS_MAX) == 0) {
        (void)kill(pid, SIGKILL);
        tell(trial, false, "it hung");
    }
    fd_close(&pidfd);
    (void)waitpid(pid, NULL, 0);
    if (!trial->answer->given)
        tell(trial, false, "it died while it was tried");
}

int doctor_run(const struct keeper_options *options)
{
    struct answer *shared =
        mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        return 1;
    struct trial trial = {.answer = shared, .options = options};
    for (size_t i = 0; i < COUNT(trials); i++) {
        run_trial(trials[i].run, &trial);
        for (char *at = shared->seen; *at; at++)
            if (*at == '\t' || *at == '\n')
                *at = ' ';
        const char *state = shared->good ? "ok" : trials[i].needed ? "missing" : "weak";
        printf("%s\t%s\t%d\t%s\t%s\n", trials[i].name, state, trials[i].needed, shared->seen,
               shared->good ? "" : trials[i].without);
        fflush(stdout);
    }
    return 0;
}
