/* sandbox.c - the life of one sandbox in the keeper's hands.
 *
 *     embryo -> starting -> ready -> dying -> [cleaning] -> gone
 *         \_________\_________________/
 *
 * embryo: a first process with its namespaces, ids, control groups and network, which waits to be
 * told what root to make. A few are kept ready, because joining control groups and making networks
 * can take long. starting: the first process exists and makes its root; it reports once, then
 * becomes the porter (the report socket closes by that). dying: process 1 was killed, which kills
 * all in its pid namespace; its exit, seen on the pidfd, means that every process and mount is
 * gone. cleaning: a directory on disk is removed by a process of its own. gone: nothing is left but
 * this struct, which waits for the question how it went.
 *
 * Answers are given when they are true: created when the porter runs, destroyed when nothing is
 * left. */
#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mount.h>
#include <sys/pidfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "keeper.h"
#include "mounts.h"

#define LIVE_MAX 4000
#define START_MS_MAX 30000
#define DIE_MS_MAX 10000
#define INODE_BYTES 4096
#define INODES_LEAST 16384

struct sandbox *sandbox_find(struct keeper *keeper, const char *id)
{
    LIST_EACH (at, &keeper->sandboxes) {
        struct sandbox *sandbox = LIST_OF(at, struct sandbox, node);
        if (!sandbox->pooled && strcmp(sandbox->id, id) == 0)
            return sandbox;
    }
    return NULL;
}

/* --- the end
 * --------------------------------------------------------------------------------------- */

void sandbox_free(struct keeper *keeper, struct sandbox *sandbox)
{
    list_remove(&sandbox->node);
    keeper_unwatch(keeper, &sandbox->pid_watch);
    keeper_unwatch(keeper, &sandbox->setup_watch);
    fd_close(&sandbox->pidfd);
    fd_close(&sandbox->setup);
    fd_close(&sandbox->control);
    fd_close(&sandbox->frames);
    fd_close(&sandbox->upper);
    shape_free(sandbox->shape);
    free(sandbox->label);
    free(sandbox->disk_dir);
    free(sandbox);
}

static void finish(struct keeper *keeper, struct sandbox *sandbox)
{
    sandbox->life = LIFE_GONE;
    keeper->live_count--;
    if (!sandbox->shape && sandbox->err.kind)
        LOG_WARN("keeper", NULL, "a sandbox made ahead of time failed: %s", sandbox->err.text);
    if (!sandbox->err.kind && (sandbox->create.wanted || sandbox->snapshot.wanted))
        err_set(&sandbox->err, ERR_LOST, "the sandbox went away");
    server_answer(keeper, &sandbox->create, NULL, NULL, 0, &sandbox->err);
    server_answer(keeper, &sandbox->snapshot, NULL, NULL, 0, &sandbox->err);
    if (sandbox->pooled && sandbox->err.kind)
        pool_failed(keeper, sandbox->shape, &sandbox->err);
    bool asked = sandbox->destroy.wanted;
    if (asked)
        server_answer(keeper, &sandbox->destroy, NULL, NULL, 0, NULL);
    /* One that died by itself stays known until somebody asks for its end. */
    if (asked || sandbox->pooled || sandbox->err.kind || !sandbox->owner ||
        !server_knows(keeper, sandbox->owner))
        sandbox_free(keeper, sandbox);
}

static void on_cleaned(struct keeper *keeper, void *context, uint32_t events)
{
    (void)events;
    struct sandbox *sandbox = context;
    siginfo_t status = {0};
    if (waitid(P_PIDFD, (id_t)sandbox->pidfd, &status, WEXITED | WNOHANG) == 0 && !status.si_pid)
        return;
    keeper_unwatch(keeper, &sandbox->pid_watch);
    fd_close(&sandbox->pidfd);
    if (status.si_status != 0)
        LOG_WARN("keeper", sandbox->id,
                 "its directory %s could not be removed; the next keeper will", sandbox->disk_dir);
    finish(keeper, sandbox);
}

/* Removing a large tree takes a while: a process of its own does it. */
static bool start_cleaning(struct keeper *keeper, struct sandbox *sandbox)
{
    int pidfd = -1;
    struct clone_args args = {
        .flags = CLONE_PIDFD, .pidfd = (uint64_t)(uintptr_t)&pidfd, .exit_signal = SIGCHLD};
    pid_t pid = (pid_t)syscall(SYS_clone3, &args, sizeof args);
    if (pid < 0)
        return false;
    if (pid == 0)
        _exit(file_remove_tree(sandbox->disk_dir, NULL) < 0 ? 1 : 0);
    sandbox->pidfd = pidfd;
    sandbox->life = LIFE_CLEANING;
    sandbox->pid_watch = (struct watch){.fd = pidfd, .on_ready = on_cleaned, .context = sandbox};
    return keeper_watch(keeper, &sandbox->pid_watch, EPOLLIN, NULL) == 0;
}

static void leave(struct keeper *keeper, const struct sandbox *sandbox)
{
    if (sandbox->life == LIFE_STARTING)
        keeper->starting_count--;
    if (sandbox->life == LIFE_EMBRYO)
        keeper->embryo_count--;
}

/* Its processes are gone: gives back what it had. */
static void release(struct keeper *keeper, struct sandbox *sandbox)
{
    leave(keeper, sandbox);
    keeper_unwatch(keeper, &sandbox->pid_watch);
    keeper_unwatch(keeper, &sandbox->setup_watch);
    fd_close(&sandbox->pidfd);
    fd_close(&sandbox->setup);
    fd_close(&sandbox->control);
    fd_close(&sandbox->frames);
    if (sandbox->leaf) {
        sandbox->oom_kills = cgroup_leaf_oom_kills(&keeper->cgroups, sandbox->leaf);
        cgroup_leaf_give(&keeper->cgroups, sandbox->leaf);
        sandbox->leaf = NULL;
    }
    if (sandbox->net)
        net_give(&keeper->nets, sandbox->net);
    sandbox->net = NULL;
    ids_give(&keeper->ids, sandbox->slot);
    sandbox->slot = -1;
    if (sandbox->snapshot.wanted && !sandbox->err.kind) {
        struct layer *layer = layer_make(keeper, sandbox, &sandbox->err);
        OWN(buf) struct buf fields = {0};
        if (layer)
            keeper_add(&fields, "layer", layer->id);
        server_answer(keeper, &sandbox->snapshot, &fields, NULL, 0, &sandbox->err);
        if (!sandbox->destroy
                 .wanted) /* it ends here, whether or not somebody asked for that, too */
            sandbox->destroy = (struct request){.wanted = true};
    }
    for (size_t i = 0; i < sandbox->used_count; i++)
        layer_let_go(keeper, sandbox->used[i]);
    sandbox->used_count = 0;
    fd_close(&sandbox->upper);
    if (sandbox->disk_dir && start_cleaning(keeper, sandbox))
        return;
    if (sandbox->disk_dir)
        (void)file_remove_tree(sandbox->disk_dir, NULL);
    finish(keeper, sandbox);
}

static void on_exit_of_first(struct keeper *keeper, void *context, uint32_t events)
{
    (void)events;
    struct sandbox *sandbox = context;
    siginfo_t status = {0};
    if (waitid(P_PIDFD, (id_t)sandbox->pidfd, &status, WEXITED | WNOHANG) < 0 || !status.si_pid)
        return;
    if ((sandbox->life == LIFE_STARTING || sandbox->life == LIFE_EMBRYO) && !sandbox->err.kind) {
        struct child_report report; /* its last words may still be on the way */
        int fd = -1;
        size_t count = 1;
        if (fd_receive(sandbox->setup, &report, sizeof report, &fd, &count) == sizeof report &&
            report.err.kind)
            sandbox->err = report.err;
        else
            err_set(&sandbox->err, ERR_SYSTEM,
                    "the first process of the sandbox ended while it was set up (%s %d)",
                    status.si_code == CLD_EXITED ? "status" : "signal", status.si_status);
        fd_close(&fd);
    }
    if (sandbox->life == LIFE_READY)
        LOG_INFO("keeper", sandbox->id, "its first process ended by itself (%s %d)",
                 status.si_code == CLD_EXITED ? "status" : "signal", status.si_status);
    release(keeper, sandbox);
}

void sandbox_kill(struct keeper *keeper, struct sandbox *sandbox)
{
    if (sandbox->life == LIFE_DYING || sandbox->life == LIFE_CLEANING || sandbox->life == LIFE_GONE)
        return;
    leave(keeper, sandbox);
    sandbox->life = LIFE_DYING;
    sandbox->deadline_ms = clock_mono_ms() + DIE_MS_MAX;
    keeper_unwatch(keeper, &sandbox->setup_watch);
    if (pidfd_send_signal(sandbox->pidfd, SIGKILL, NULL, 0) < 0 && errno != ESRCH)
        LOG_ERROR("keeper", sandbox->id, "cannot be killed: %s", strerror(errno));
}

/* --- the start
 * ------------------------------------------------------------------------------------- */

static void on_setup(struct keeper *keeper, void *context, uint32_t events)
{
    (void)events;
    struct sandbox *sandbox = context;
    struct child_report report;
    int fd = -1;
    size_t count = 1;
    ssize_t got = fd_receive(sandbox->setup, &report, sizeof report, &fd, &count);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (got == sizeof report && !report.err.kind) {
        sandbox->reported = true;
        fd_close(&sandbox->upper);
        sandbox->upper = fd_take(&fd);
        return;
    }
    fd_close(&fd);
    if (got == sizeof report) {
        report.err.text[ERR_TEXT_MAX - 1] = '\0';
        sandbox->err = report.err;
        sandbox_kill(keeper, sandbox);
        return;
    }
    keeper_unwatch(keeper, &sandbox->setup_watch);
    fd_close(&sandbox->setup);
    if (!sandbox->reported)
        return; /* it died: its exit says so */
    sandbox->life = LIFE_READY;
    keeper->starting_count--;
    sandbox->start_us = clock_mono_ns() / 1000 - sandbox->start_us;
    if (!sandbox->pooled)
        server_answer_created(keeper, sandbox);
}

static int check_limits(const struct keeper *keeper, const struct shape *shape, struct err *err)
{
    if (shape->isolation == ISOLATION_NO_LIMITS)
        return 0;
    unsigned need = 1u << CGROUP_MEMORY | 1u << CGROUP_PIDS;
    if (shape->cpu_millis)
        need |= 1u << CGROUP_CPU;
    if ((keeper->cgroups.controllers & need) == need)
        return 0;
    return err_set(err, ERR_UNSUPPORTED,
                   "limits cannot be enforced: %s; to run without them use --isolation no-limits",
                   keeper->cgroups.reason[0] ? keeper->cgroups.reason
                                             : "the cpu controller is not available");
}

/* A mount of the directory the upper layer lives in, with owners shifted like those of the lowers.
 */
static int open_disk_upper(struct keeper *keeper, struct sandbox *sandbox, int userns,
                           struct err *err)
{
    if (file_make_dirs(sandbox->disk_dir, 0700, err) < 0)
        return -1;
    OWN(fd) int mount = mount_clone(AT_FDCWD, sandbox->disk_dir, false, err);
    if (mount < 0)
        return err_wrap(err, "the upper layer on disk");
    if (mount_shape(mount, false, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV,
                    keeper->ids.base ? userns : -1, err) < 0)
        return err_wrap(err, "the upper layer on disk");
    return fd_take(&mount);
}

static int send_plan(struct keeper *keeper, struct sandbox *sandbox, struct err *err)
{
    static struct child_plan plan;
    memset(&plan, 0, offsetof(struct child_plan, args));
    const struct shape *shape = sandbox->shape;
    plan.disk_bytes_max = shape->disk_bytes_max;
    plan.inodes_max = shape->disk_bytes_max / INODE_BYTES + INODES_LEAST;
    plan.upper_on_disk = shape->upper_on_disk;
    plan.single = keeper->ids.mode == IDS_SINGLE;
    plan.root_user = shape->root_user;
    plan.seccomp = shape->isolation != ISOLATION_NO_SECCOMP;
    snprintf(plan.hostname, sizeof plan.hostname, "%s", shape->hostname);

    char path[64];
    snprintf(path, sizeof path, "/proc/%d/ns/user", (int)sandbox->pid);
    OWN(fd) int userns = open(path, O_RDONLY | O_CLOEXEC);
    if (userns < 0)
        return err_errno(err, "the sandbox's user namespace");
    struct lowers lowers = {0};
    int result = -1;
    if (roots_plan(keeper, shape, userns, &plan, &lowers, sandbox->used, &sandbox->used_count,
                   err) == 0 &&
        roots_arguments(keeper, shape, &plan, err) == 0)
        result = 0;
    if (result == 0 && shape->upper_on_disk) {
        int mount = open_disk_upper(keeper, sandbox, userns, err);
        if (mount < 0)
            result = -1;
        else
            lowers.fds[lowers.count++] = mount;
    }
    for (uint32_t i = 0; i < plan.tree_count; i++)
        sandbox->trees |= plan.trees[i].upper ? 1u << i : 0;
    size_t size = offsetof(struct child_plan, args) + plan.args_size;
    if (result == 0 &&
        fd_send(sandbox->setup, &plan, size, lowers.fds, lowers.count) != (ssize_t)size)
        result = err_errno(err, "sending the plan to the sandbox's first process");
    for (size_t i = 0; i < lowers.count; i++)
        fd_close(&lowers.fds[i]);
    return result;
}

/* Owners can be mapped at once, unless it depends on whether root is asked for. */
static bool maps_early(const struct keeper *keeper)
{
    return keeper->ids.mode != IDS_SINGLE;
}

static int spawn(struct keeper *keeper, struct sandbox *sandbox, struct err *err)
{
    int setup[2] = {-1, -1}, frames[2] = {-1, -1}, control[2] = {-1, -1};
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, setup) < 0)
        return err_errno(err, "socketpair");
    sandbox->setup = setup[0];
    OWN(fd) int child_setup = setup[1];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, frames) < 0)
        return err_errno(err, "socketpair");
    sandbox->frames = frames[0];
    OWN(fd) int child_frames = frames[1];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, control) < 0)
        return err_errno(err, "socketpair");
    sandbox->control = control[0];
    OWN(fd) int child_control = control[1];

    struct child_start start = {.setup = child_setup,
                                .frames = child_frames,
                                .control = child_control,
                                .porter = keeper->porter,
                                .filter = keeper->filter,
                                .null = keeper->stage.null,
                                .ids_early = maps_early(keeper)};
    int pidfd = -1;
    struct clone_args args = {.flags = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC |
                                       CLONE_NEWUTS | CLONE_PIDFD,
                              .pidfd = (uint64_t)(uintptr_t)&pidfd,
                              .exit_signal = SIGCHLD};
    if (sandbox->leaf) {
        for (unsigned i = 0; i < CGROUP_TREES_MAX; i++)
            if (sandbox->leaf->join[i] >= 0)
                start.join[start.join_count++] = sandbox->leaf->join[i];
        if (sandbox->leaf->into >= 0) {
            args.flags |= CLONE_INTO_CGROUP;
            args.cgroup = (uint64_t)sandbox->leaf->into;
        }
    }
    pid_t pid = (pid_t)syscall(SYS_clone3, &args, sizeof args);
    if (pid == 0)
        child_run(&start);
    if (pid < 0)
        return ids_explain_refusal(errno, err);
    sandbox->pid = pid;
    sandbox->pidfd = pidfd;
    return 0;
}

int sandbox_reconnect(struct sandbox *sandbox, struct err *err)
{
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
        return err_errno(err, "socketpair");
    OWN(fd) int ours = pair[0], theirs = pair[1];
    if (fd_send(sandbox->control, "x", 1, &theirs, 1) != 1)
        return err_errno(err, "a new connection for the porter");
    fd_close(&sandbox->frames);
    sandbox->frames = fd_take(&ours);
    return 0;
}

/* --- embryos
 * ---------------------------------------------------------------------------------------- */

/* What it needs before there is a process. On failure everything is given back by the caller. */
static int acquire(struct keeper *keeper, struct sandbox *sandbox,
                   const struct cgroup_limits *limits, struct err *err)
{
    sandbox->slot = ids_take(&keeper->ids, err);
    if (sandbox->slot < 0)
        return -1;
    if (keeper->cgroups.tree_count) {
        sandbox->leaf = cgroup_leaf_take(&keeper->cgroups, limits, err);
        if (!sandbox->leaf)
            return -1;
    }
    sandbox->net = net_take(&keeper->nets, err);
    return sandbox->net ? 0 : -1;
}

static struct sandbox *hatch(struct keeper *keeper, const struct cgroup_limits *limits,
                             struct err *err)
{
    struct sandbox *sandbox = mem_zero(sizeof *sandbox);
    sandbox->pidfd = sandbox->setup = sandbox->control = sandbox->frames = -1;
    sandbox->upper = sandbox->slot = -1;
    sandbox->pid_watch.fd = sandbox->setup_watch.fd = -1;
    sandbox->life = LIFE_EMBRYO;
    list_append(&keeper->sandboxes, &sandbox->node);
    if (acquire(keeper, sandbox, limits, err) < 0 || spawn(keeper, sandbox, err) < 0) {
        if (sandbox->leaf)
            cgroup_leaf_give(&keeper->cgroups, sandbox->leaf);
        if (sandbox->net)
            net_give(&keeper->nets, sandbox->net);
        ids_give(&keeper->ids, sandbox->slot);
        sandbox_free(keeper, sandbox);
        return NULL;
    }
    keeper->live_count++;
    keeper->embryo_count++;
    sandbox->pid_watch = (struct watch){sandbox->pidfd, on_exit_of_first, sandbox};
    if (keeper_watch(keeper, &sandbox->pid_watch, EPOLLIN, err) == 0 &&
        (!maps_early(keeper) ||
         (ids_write_maps(&keeper->ids, sandbox->slot, false, sandbox->pid, err) == 0 &&
          fd_send(sandbox->setup, "x", 1, NULL, 0) == 1)))
        return sandbox;
    sandbox_kill(keeper, sandbox);
    return NULL;
}

bool embryos_refill(struct keeper *keeper, unsigned want)
{
    if (keeper->embryo_count >= want)
        return false;
    return hatch(keeper, NULL, NULL) != NULL;
}

void embryos_drop(struct keeper *keeper)
{
    LIST_EACH (at, &keeper->sandboxes) {
        struct sandbox *sandbox = LIST_OF(at, struct sandbox, node);
        if (sandbox->life == LIFE_EMBRYO)
            sandbox_kill(keeper, sandbox);
    }
}

static struct sandbox *take_embryo(struct keeper *keeper)
{
    if (!keeper->embryo_count)
        return NULL;
    LIST_EACH (at, &keeper->sandboxes) {
        struct sandbox *sandbox = LIST_OF(at, struct sandbox, node);
        if (sandbox->life == LIFE_EMBRYO)
            return sandbox;
    }
    return NULL;
}

/* An embryo with these limits in force. */
static struct sandbox *embryo_for(struct keeper *keeper, const struct shape *shape, struct err *err)
{
    struct cgroup_limits limits = {0};
    if (shape->isolation != ISOLATION_NO_LIMITS)
        limits =
            (struct cgroup_limits){shape->memory_bytes_max, shape->pids_max, shape->cpu_millis};
    /* A v1 cpu group is joined only by those who need it, so it must be known before birth. */
    struct sandbox *sandbox = limits.cpu_millis ? NULL : take_embryo(keeper);
    if (!sandbox)
        return hatch(keeper, &limits, err);
    if (sandbox->leaf && cgroup_leaf_limit(&keeper->cgroups, sandbox->leaf, &limits, err) < 0) {
        sandbox_kill(keeper, sandbox);
        return NULL;
    }
    return sandbox;
}

struct sandbox *sandbox_start(struct keeper *keeper, const struct shape *shape, const char *id,
                              struct err *err)
{
    if (keeper->broken.kind) {
        err_copy(err, &keeper->broken);
        return NULL;
    }
    if (keeper->live_count - keeper->embryo_count >= LIVE_MAX) {
        err_set(err, ERR_CAPACITY, "the keeper already has %d sandboxes", LIVE_MAX);
        return NULL;
    }
    if (check_limits(keeper, shape, err) < 0 || roots_check(keeper, shape, err) < 0)
        return NULL;
    uint64_t began_us = clock_mono_ns() / 1000;
    struct sandbox *sandbox = embryo_for(keeper, shape, err);
    if (!sandbox)
        return NULL;
    keeper->embryo_count--;
    keeper->starting_count++;
    keeper->created_count++;
    sandbox->life = LIFE_STARTING;
    snprintf(sandbox->id, sizeof sandbox->id, "%s", id);
    sandbox->shape = shape_copy(shape);
    sandbox->born_ms = clock_mono_ms();
    sandbox->start_us = began_us;
    sandbox->deadline_ms = sandbox->born_ms + START_MS_MAX;
    if (shape->upper_on_disk)
        sandbox->disk_dir =
            mem_format("%s/sandboxes/%s/%s", keeper->options.home, keeper->name, sandbox->id);
    sandbox->setup_watch = (struct watch){sandbox->setup, on_setup, sandbox};
    if (keeper_watch(keeper, &sandbox->setup_watch, EPOLLIN, &sandbox->err) < 0 ||
        (!maps_early(keeper) && ids_write_maps(&keeper->ids, sandbox->slot, shape->root_user,
                                               sandbox->pid, &sandbox->err) < 0) ||
        send_plan(keeper, sandbox, &sandbox->err) < 0)
        sandbox_kill(keeper, sandbox); /* the answer comes when it is gone */
    return sandbox;
}

/* --- time
 * ------------------------------------------------------------------------------------------- */

void sandboxes_tick(struct keeper *keeper, uint64_t now_ms)
{
    LIST_EACH (at, &keeper->sandboxes) {
        struct sandbox *sandbox = LIST_OF(at, struct sandbox, node);
        switch (sandbox->life) {
        case LIFE_EMBRYO:
            break;
        case LIFE_STARTING:
            if (now_ms < sandbox->deadline_ms)
                break;
            err_set(&sandbox->err, ERR_TIMEOUT, "the sandbox was not ready within %d s",
                    START_MS_MAX / 1000);
            sandbox_kill(keeper, sandbox);
            break;
        case LIFE_READY:
            if ((sandbox->die_at_ms && now_ms >= sandbox->die_at_ms) ||
                (sandbox->orphan_at_ms && now_ms >= sandbox->orphan_at_ms)) {
                LOG_INFO("keeper", sandbox->id, "is destroyed: %s",
                         sandbox->orphan_at_ms ? "nobody came back for it" : "its time is over");
                sandbox_kill(keeper, sandbox);
            }
            break;
        case LIFE_DYING:
            if (now_ms < sandbox->deadline_ms)
                break;
            sandbox->deadline_ms = now_ms + DIE_MS_MAX;
            LOG_WARN("keeper", sandbox->id, "is not gone yet; killing again");
            (void)pidfd_send_signal(sandbox->pidfd, SIGKILL, NULL, 0);
            if (sandbox->leaf)
                cgroup_leaf_kill(&keeper->cgroups, sandbox->leaf);
            break;
        case LIFE_CLEANING:
            break;
        case LIFE_GONE:
            if (sandbox->orphan_at_ms && now_ms >= sandbox->orphan_at_ms)
                sandbox_free(keeper, sandbox);
            break;
        }
    }
}

/* --- facts
 * ------------------------------------------------------------------------------------------ */

static void add_text(struct buf *out, const char *text)
{
    buf_byte(out, '"');
    for (; *text; text++) {
        if (*text == '"' || *text == '\\')
            buf_byte(out, '\\');
        if ((unsigned char)*text < 0x20)
            buf_format(out, "\\u%04x", (unsigned char)*text);
        else
            buf_byte(out, *text);
    }
    buf_byte(out, '"');
}

void sandbox_facts(struct keeper *keeper, const struct sandbox *sandbox, struct buf *out)
{
    static const char *const modes[] = {"range", "shared", "single"};
    const struct shape *shape = sandbox->shape;
    char map[64];
    ids_describe(&keeper->ids, sandbox->slot, shape->root_user, map, sizeof map);
    for (char *at = map; (at = strchr(at, '\n'));)
        *at = ',';
    buf_format(out, "{\"backend\":\"local\",\"isolation\":\"%s\",\"root\":",
               isolation_name(shape->isolation));
    char root[200];
    snprintf(root, sizeof root, "%s", shape->root);
    add_text(out, root);
    buf_format(out, ",\"ids\":\"%s\",\"uid_map\":\"%s\",\"root_user\":%s,\"cgroup\":\"%s\"",
               modes[keeper->ids.mode], map, shape->root_user ? "true" : "false",
               keeper->cgroups.mode);
    if (sandbox->leaf && shape->isolation != ISOLATION_NO_LIMITS)
        buf_format(out, ",\"memory_bytes_max\":%llu,\"pids_max\":%u,\"cpu_millis\":%u",
                   (unsigned long long)shape->memory_bytes_max, shape->pids_max, shape->cpu_millis);
    buf_format(out, ",\"upper\":\"%s\",\"disk_bytes_max\":%llu,\"layers\":%zu,\"pool_hit\":%s",
               shape->upper_on_disk ? "disk" : "tmpfs",
               shape->upper_on_disk ? 0ull : (unsigned long long)shape->disk_bytes_max,
               sandbox->used_count, sandbox->pool_hit ? "true" : "false");
    buf_format(out, ",\"create_us\":%llu}", (unsigned long long)sandbox->start_us);
}
