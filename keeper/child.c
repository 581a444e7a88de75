/* child.c - from a fresh set of namespaces to the porter, readable from top to bottom.
 *
 *     tie to the keeper -> session, keyring -> control groups -> ids -> /proc, /dev      (embryo)
 *     -> layers, overlay -> new root, old one gone -> fewer capabilities -> porter
 *
 * The first line needs no plan and is done ahead of time, unless the ids depend on the plan.
 *
 * Runs in a copy of the keeper's small single-threaded process, so ordinary code is fine here.
 * Every step that fails ends it, with one sentence to the keeper that names the step: there is no
 * sandbox with a protection missing. Nothing of the image runs or is looked up by path before the
 * root has changed; mount targets are real directories because the topmost layer has them. */
#include "child.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <linux/keyctl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/mem.h"
#include "mounts.h"

#define CAP(name) (1ull << CAP_##name)

/* What package managers, tar, su and servers on low ports need; nothing that reaches the kernel's
 * configuration, devices, mounts, tracing of others or the network's. */
#define ROOT_CAPABILITIES                                                                          \
    (CAP(CHOWN) | CAP(DAC_OVERRIDE) | CAP(FOWNER) | CAP(FSETID) | CAP(KILL) | CAP(SETGID) |        \
     CAP(SETUID) | CAP(SETPCAP) | CAP(SETFCAP) | CAP(NET_BIND_SERVICE) | CAP(SYS_CHROOT))
/* The porter itself: the same, since it hands them on. */
#define PORTER_CAPABILITIES ROOT_CAPABILITIES

uint64_t child_root_capabilities(void)
{
    return ROOT_CAPABILITIES;
}

static void report(int setup, const struct err *err, const int *fd)
{
    struct child_report message = {.err = *err};
    (void)fd_send(setup, &message, sizeof message, fd, fd ? 1 : 0);
}

/* --- before the plan ------------------------------------------------------------------------ */

/* Keeps only what the start names. */
static void close_others(const struct child_start *start)
{
    int keep[6 + CGROUP_TREES_MAX];
    unsigned count = 0;
    keep[count++] = start->setup;
    keep[count++] = start->frames;
    keep[count++] = start->control;
    keep[count++] = start->porter;
    keep[count++] = start->filter;
    keep[count++] = start->null;
    for (unsigned i = 0; i < start->join_count; i++)
        keep[count++] = start->join[i];
    for (unsigned i = 0; i < count; i++) /* sort: a handful */
        for (unsigned j = i + 1; j < count; j++)
            if (keep[j] < keep[i]) {
                int swap = keep[i];
                keep[i] = keep[j];
                keep[j] = swap;
            }
    unsigned from = 3;
    for (unsigned i = 0; i < count; i++) {
        if (keep[i] > (int)from)
            (void)syscall(SYS_close_range, from, (unsigned)keep[i] - 1, 0);
        if (keep[i] >= (int)from)
            from = (unsigned)keep[i] + 1;
    }
    (void)syscall(SYS_close_range, from, ~0u, 0);
}

static int tie_to_keeper(const struct child_start *start, struct err *err)
{
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0)
        return err_errno(err, "tying the sandbox to the keeper");
    struct pollfd alive = {.fd = start->setup, .events = POLLIN};
    if (poll(&alive, 1, 0) < 0 || alive.revents & POLLHUP)
        _exit(1); /* the keeper died before we were tied */
    return 0;
}

static int own_session(const struct child_start *start, struct err *err)
{
    int score = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC); /* the keeper's is lower */
    if (score >= 0)
        (void)!write(score, "0", 1);
    fd_close(&score);
    (void)signal(SIGPIPE, SIG_DFL); /* all that the keeper changes */
    (void)signal(SIGHUP, SIG_DFL);
    sigset_t none;
    sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    if (setsid() < 0 && errno != EPERM)
        return err_errno(err, "starting a session");
    umask(022);
    for (int i = 0; i < 3; i++)
        if (dup2(start->null, i) < 0)
            return err_errno(err, "closing standard streams");
    /* Keyrings are not namespaced. A kernel without them has none to protect; a user who may not
     * have more shares the keeper's own, which is empty. */
    if (syscall(SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, NULL, 0, 0, 0) < 0 && errno != ENOSYS &&
        errno != EDQUOT)
        return err_errno(err, "a keyring of its own");
    return 0;
}

static int become_inner_root(struct err *err)
{
    if (setgroups(0, NULL) < 0)
        return err_errno(err, "dropping the keeper's groups");
    if (setresgid(0, 0, 0) < 0 || setresuid(0, 0, 0) < 0)
        return err_errno(err, "becoming root of the sandbox's user namespace");
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0) /* a change of ids clears it */
        return err_errno(err, "tying the sandbox to the keeper");
    return 0;
}

static int join_groups(const struct child_start *start, struct err *err)
{
    for (unsigned i = 0; i < start->join_count; i++)
        if (write(start->join[i], "0", 1) != 1)
            return err_errno(err, "joining the sandbox's control group");
    if (unshare(CLONE_NEWCGROUP) < 0) /* so that the group's path is "/" inside */
        return err_errno(err, "a cgroup namespace");
    return 0;
}

/* --- the filesystem ------------------------------------------------------------------------- */

static int make_upper(const struct child_plan *plan, int stage, int disk, struct err *err)
{
    OWN(fd) int upper = -1;
    if (plan->upper_on_disk) {
        upper = dup(disk);
        if (upper < 0)
            return err_errno(err, "the upper layer");
    } else {
        char size[32], inodes[32];
        snprintf(size, sizeof size, "%llu", (unsigned long long)plan->disk_bytes_max);
        snprintf(inodes, sizeof inodes, "%llu", (unsigned long long)plan->inodes_max);
        const struct mount_option options[] = {
            {"size", size}, {"nr_inodes", inodes}, {"mode", "0755"}, {NULL, NULL}};
        upper = mount_make("tmpfs", options, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV, err);
        if (upper < 0)
            return -1;
    }
    if (mount_attach(upper, stage, "u", err) < 0)
        return -1;
    for (uint32_t i = 0; i < plan->tree_count; i++) {
        char name[16];
        if (!plan->trees[i].upper)
            continue;
        snprintf(name, sizeof name, "r%u", i);
        if (mkdirat(upper, name, 0755) < 0 && errno != EEXIST)
            return err_errno(err, "the upper layer");
        snprintf(name, sizeof name, "w%u", i);
        if (mkdirat(upper, name, 0755) < 0 && errno != EEXIST)
            return err_errno(err, "the upper layer");
    }
    return fd_take(&upper);
}

/* Layers are attached to the stage first: an overlay takes only mounts of its own namespace. */
static int make_tree(const struct child_plan *plan, uint32_t index, const int *lowers,
                     unsigned *place, int stage, struct err *err)
{
    const struct child_tree *tree = &plan->trees[index];
    char dirs[256] = "", upper[16], work[16];
    size_t used = 0;
    for (unsigned i = 0; i < tree->lower_count; i++, (*place)++) {
        char path[16];
        snprintf(path, sizeof path, "l/%u", *place);
        if (mount_attach(lowers[*place], stage, path, err) < 0)
            return err_wrap(err, "layer %u of '/%s'", i, tree->name);
        int more = snprintf(dirs + used, sizeof dirs - used, "%s%s", used ? ":" : "", path);
        if (more < 0 || used + (size_t)more >= sizeof dirs)
            return err_set(err, ERR_LIMIT, "too many layers");
        used += (size_t)more;
    }
    snprintf(upper, sizeof upper, "u/r%u", index);
    snprintf(work, sizeof work, "u/w%u", index);
    const struct mount_option writable[] = {{"userxattr", NULL},
                                            {"lowerdir", dirs},
                                            {"upperdir", upper},
                                            {"workdir", work},
                                            {plan->upper_on_disk ? "volatile" : NULL, NULL},
                                            {NULL, NULL}}; /* never synced: it is thrown away */
    const struct mount_option readonly[] = {{"userxattr", NULL}, {"lowerdir", dirs}, {NULL, NULL}};
    return mount_make("overlay", tree->upper ? writable : readonly,
                      MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV, err);
}

/* What needs no plan: /proc and /dev, put together on the stage. */
struct prepared {
    int stage, proc, dev;
};

static int make_dev(const struct prepared *prepared, struct err *err)
{
    OWN(fd) int dev = mount_clone(prepared->stage, "dev", true, err);
    if (dev < 0 || mount_attach(dev, prepared->stage, "d", err) < 0)
        return -1;
    static const struct mount_option options[] = {
        {"ptmxmode", "0666"}, {"mode", "0620"}, {"max", "256"}, {NULL, NULL}};
    OWN(fd) int pts = mount_make("devpts", options, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC, err);
    if (pts < 0 || mount_attach(pts, prepared->stage, "d/pts", err) < 0)
        return -1;
    return fd_take(&dev);
}

static int make_shm(int root, int upper, bool on_disk, struct err *err)
{
    OWN(fd) int shm = -1;
    if (on_disk) {
        static const struct mount_option small[] = {
            {"size", "64m"}, {"nr_inodes", "10000"}, {"mode", "1777"}, {NULL, NULL}};
        shm = mount_make("tmpfs", small, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV, err);
    } else { /* in the upper layer's filesystem, and so under its limit */
        if (mkdirat(upper, "shm", 0777) < 0 || fchmodat(upper, "shm", 01777, 0) < 0)
            return err_errno(err, "/dev/shm");
        shm = mount_clone(upper, "shm", false, err);
    }
    return shm < 0 ? -1 : mount_attach(shm, root, "dev/shm", err);
}

static int hide(int root, const char *path, int stage, struct err *err)
{
    OWN(fd) int target = mount_open_inside(root, path, 0);
    if (target < 0)
        return errno == ENOENT ? 0 : err_errno(err, "'%s'", path);
    struct stat facts;
    if (fstat(target, &facts) < 0)
        return err_errno(err, "'%s'", path);
    OWN(fd)
    int cover = mount_clone(stage, S_ISDIR(facts.st_mode) ? "empty" : "dev/null", false, err);
    if (cover < 0)
        return -1;
    if (move_mount(cover, "", target, "", MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH) < 0)
        return err_errno(err, "hiding '%s'", path);
    return 0;
}

static int freeze(int root, const char *path, struct err *err)
{
    OWN(fd) int target = mount_open_inside(root, path, 0);
    if (target < 0)
        return errno == ENOENT ? 0 : err_errno(err, "'%s'", path);
    OWN(fd) int cover = mount_clone(target, "", false, err);
    if (cover < 0 || mount_shape(cover, false, MOUNT_ATTR_RDONLY, -1, err) < 0)
        return -1;
    if (move_mount(cover, "", target, "", MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH) < 0)
        return err_errno(err, "making '%s' read-only", path);
    return 0;
}

static int make_proc(const struct prepared *prepared, struct err *err)
{
    static const char *const hidden[] = {"p/acpi",        "p/asound",     "p/kcore",
                                         "p/keys",        "p/key-users",  "p/latency_stats",
                                         "p/sched_debug", "p/scsi",       "p/sysrq-trigger",
                                         "p/timer_list",  "p/timer_stats"};
    static const char *const frozen[] = {"p/bus", "p/fs", "p/irq", "p/sys"};
    OWN(fd)
    int proc =
        mount_make("proc", NULL, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC, err);
    if (proc < 0) {
        if (errno == EPERM)
            return err_set(err, ERR_DENIED,
                           "a fresh /proc is refused in a user namespace (an outer container "
                           "masks parts of its own /proc)");
        return -1;
    }
    if (mount_attach(proc, prepared->stage, "p", err) < 0)
        return -1;
    for (size_t i = 0; i < COUNT(hidden); i++)
        if (hide(prepared->stage, hidden[i], prepared->stage, err) < 0)
            return -1;
    for (size_t i = 0; i < COUNT(frozen); i++)
        if (freeze(prepared->stage, frozen[i], err) < 0)
            return -1;
    return fd_take(&proc);
}

static int prepare(struct prepared *prepared, struct err *err)
{
    if (chdir(STAGE) < 0)
        return err_errno(err, "the keeper's stage");
    prepared->stage = open(".", O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (prepared->stage < 0)
        return err_errno(err, "the keeper's stage");
    prepared->dev = make_dev(prepared, err);
    prepared->proc = prepared->dev < 0 ? -1 : make_proc(prepared, err);
    return prepared->proc < 0 ? -1 : 0;
}

/* Returns a copy of the upper layer's mount, for snapshots. */
static int make_root(const struct child_plan *plan, const struct prepared *prepared, const int *fds,
                     size_t fd_count, struct err *err)
{
    int stage = prepared->stage;
    OWN(fd) int upper = make_upper(plan, stage, fds[fd_count - 1], err);
    if (upper < 0)
        return -1;
    unsigned place = 0;
    OWN(fd) int root = make_tree(plan, 0, fds, &place, stage, err);
    if (root < 0 || mount_attach(root, stage, "n", err) < 0)
        return -1;
    for (uint32_t i = 1; i < plan->tree_count; i++) {
        const struct child_tree *tree = &plan->trees[i];
        OWN(fd)
        int made = tree->bind ? dup(fds[place++]) : make_tree(plan, i, fds, &place, stage, err);
        if (made < 0 || mount_attach(made, root, tree->name, err) < 0)
            return -1;
    }
    if (mount_attach(prepared->dev, root, "dev", err) < 0 ||
        mount_attach(prepared->proc, root, "proc", err) < 0 ||
        make_shm(root, upper, plan->upper_on_disk, err) < 0)
        return -1;
    OWN(fd) int kept = mount_clone(upper, "", false, err);
    if (kept < 0)
        return -1;
    if (fchdir(root) < 0 || syscall(SYS_pivot_root, ".", ".") < 0)
        return err_errno(err, "changing the root");
    if (umount2(".", MNT_DETACH) < 0 || chdir("/") < 0)
        return err_errno(err, "leaving the old root");
    return fd_take(&kept);
}

/* --- becoming the porter -------------------------------------------------------------------- */

/* What nobody in the sandbox will ever have. Those we still need ourselves go last. */
static int fewer_capabilities_ever(struct err *err)
{
    for (int i = 0; i < 64; i++) {
        if (PORTER_CAPABILITIES & 1ull << i)
            continue;
        if (prctl(PR_CAPBSET_DROP, i, 0, 0, 0) < 0) {
            if (errno == EINVAL)
                break; /* past the last one */
            return err_errno(err, "dropping capability %d", i);
        }
    }
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
        return err_errno(err, "no_new_privs");
    return 0;
}

static int fewer_capabilities(const struct child_plan *plan, struct err *err)
{
    bool ambient = plan->single && !plan->root_user;
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[2];
    for (int i = 0; i < 2; i++) {
        uint32_t part = (uint32_t)(PORTER_CAPABILITIES >> 32 * i);
        data[i] = (struct __user_cap_data_struct){
            .effective = part, .permitted = part, .inheritable = ambient ? part : 0};
    }
    if (syscall(SYS_capset, &header, data) < 0)
        return err_errno(err, "dropping capabilities");
    if (!ambient)
        return 0;
    /* Not uid 0: what the porter is to keep over exec must be ambient. It hands none of it on. */
    for (int i = 0; i < 64; i++)
        if (PORTER_CAPABILITIES & 1ull << i &&
            prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, i, 0, 0) < 0)
            return err_errno(err, "keeping capability %d for the porter", i);
    return 0;
}

static int name_host(const struct child_plan *plan, struct err *err)
{
    if (sethostname(plan->hostname, strlen(plan->hostname)) < 0 || setdomainname("(none)", 6) < 0)
        return err_errno(err, "naming the sandbox");
    return 0;
}

static void become_porter(const struct child_start *start, struct child_plan *plan, struct err *err)
{
    char frames[16], control[16], filter_text[16];
    const char *args[512];
    size_t count = 0;
    args[count++] = "porter";
    args[count++] = "--fd";
    snprintf(frames, sizeof frames, "%d", start->frames);
    args[count++] = frames;
    args[count++] = "--control-fd";
    snprintf(control, sizeof control, "%d", start->control);
    args[count++] = control;
    if (plan->seccomp) {
        args[count++] = "--seccomp-fd";
        snprintf(filter_text, sizeof filter_text, "%d", start->filter);
        args[count++] = filter_text;
        (void)fd_cloexec(start->filter, false);
    }
    const char *at = plan->args;
    for (uint32_t i = 0; i < plan->arg_count && count < COUNT(args) - 1; i++) {
        args[count++] = at;
        at += strlen(at) + 1;
    }
    args[count] = NULL;
    (void)fd_cloexec(start->frames, false);
    (void)fd_cloexec(start->control, false);
    const char *environment[] = {NULL};
    (void)execveat(start->porter, "", (char *const *)args, (char *const *)environment,
                   AT_EMPTY_PATH);
    err_errno(err, "starting the porter");
}

static int receive_plan(int setup, struct child_plan *plan, int *fds, size_t *fd_count)
{
    ssize_t got;
    do
        got = fd_receive(setup, plan, sizeof *plan, fds, fd_count);
    while (got < 0 && errno == EINTR);
    size_t head = offsetof(struct child_plan, args);
    return got >= (ssize_t)head && (size_t)got == head + plan->args_size ? 0 : -1;
}

/* Until the keeper has mapped our ids. */
static void wait_for_ids(int setup)
{
    char byte;
    ssize_t got;
    do
        got = recv(setup, &byte, 1, 0);
    while (got < 0 && errno == EINTR);
    if (got != 1)
        _exit(1); /* the keeper gave up, and knows why */
}

_Noreturn void child_run(const struct child_start *start)
{
    static struct child_plan plan;
    struct prepared prepared = {-1, -1, -1};
    struct err err = {0};
    int fds[CHILD_FDS_MAX];
    size_t fd_count = CHILD_FDS_MAX;
    close_others(start);
    if (tie_to_keeper(start, &err) < 0 || own_session(start, &err) < 0 ||
        join_groups(start, &err) < 0 || fewer_capabilities_ever(&err) < 0)
        goto failed;
    if (start->ids_early) {
        wait_for_ids(start->setup);
        if (become_inner_root(&err) < 0 || prepare(&prepared, &err) < 0)
            goto failed;
    }
    if (receive_plan(start->setup, &plan, fds, &fd_count) < 0)
        _exit(1);
    if (!start->ids_early && prepare(&prepared, &err) < 0)
        goto failed;
    int kept = make_root(&plan, &prepared, fds, fd_count, &err);
    if (kept < 0 || name_host(&plan, &err) < 0 || fewer_capabilities(&plan, &err) < 0)
        goto failed;
    report(start->setup, &err, &kept);
    become_porter(start, &plan, &err);
failed:
    report(start->setup, &err, NULL);
    _exit(1);
}
