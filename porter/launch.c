/* launch.c - the way from a supervisor to a running program.
 *
 * The child is made with vfork: it borrows the supervisor's memory until exec, so starting costs
 * the same whatever the supervisor holds, and a failure is simply written where the supervisor
 * reads it. Order matters: what needs privilege first (limits, bounding set, groups, ids), then the
 * capabilities themselves, then what must be seen with the user's eyes (working directory, PATH,
 * the program). The seccomp filter and no_new_privs are the supervisor's own and inherited.
 *
 * Ids are changed with bare system calls: the C library's versions reach out to other threads, and
 * in a vfork child there is a whole other process in their place. */
#include "porter.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/openat2.h>
#include <signal.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/mem.h"

#define PATH_DEFAULT "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
#define OOM_SCORE "300" /* commands go before the porter and its supervisors */

static int set_groups(const struct porter_world *world, const struct user *user)
{
    if (syscall(SYS_setgroups, user->group_count, user->groups) == 0)
        return 0;
    /* A group that does not exist in this namespace: then none of them. */
    if (errno == EINVAL && syscall(SYS_setgroups, 0, NULL) == 0)
        return 0;
    if (errno != EPERM)
        return -1;
    /* Denied by the namespace, or we are nobody special and stay who we are. */
    return world->setgroups_denied || user->uid == geteuid() ? 0 : -1;
}

static const char *drop_capabilities(uint64_t keep)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[2] = {{0}, {0}};
    if (syscall(SYS_capget, &header, data) < 0)
        return "capabilities";
    for (int i = 0; i < 2; i++) {
        uint32_t part = (uint32_t)(keep >> (32 * i));
        data[i].permitted &= part;
        data[i].effective = data[i].permitted;
        data[i].inheritable = 0;
    }
    return syscall(SYS_capset, &header, data) < 0 ? "capabilities" : NULL;
}

const char *launch_bound(uint64_t caps)
{
    for (unsigned cap = 0; cap < 64; cap++) {
        /* Looking is cheap, dropping makes new credentials each time. */
        if (caps >> cap & 1 || prctl(PR_CAPBSET_READ, cap, 0, 0, 0) == 0 ||
            prctl(PR_CAPBSET_DROP, cap, 0, 0, 0) == 0)
            continue;
        if (errno == EINVAL)
            break; /* the kernel knows no more */
        if (errno == EPERM)
            break; /* we hold nothing to drop it with; no_new_privs keeps it from mattering */
        return "cannot drop the bounding set";
    }
    return NULL;
}

const char *launch_become(const struct porter_world *world, const struct user *user, uint64_t caps)
{
    (void)prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
        return "cannot set no_new_privs";
    if (set_groups(world, user) < 0)
        return "cannot take the user's groups";
    if (syscall(SYS_setresgid, user->gid, user->gid, user->gid) < 0)
        return "cannot take the group id";
    if (syscall(SYS_setresuid, user->uid, user->uid, user->uid) < 0)
        return "cannot take the user id";
    return drop_capabilities(user->uid == 0 ? caps : 0);
}

static const char *env_get(char **env, const char *name)
{
    size_t size = strlen(name);
    for (; *env; env++)
        if (strncmp(*env, name, size) == 0 && (*env)[size] == '=')
            return *env + size + 1;
    return NULL;
}

static void try_exec(struct launch *launch, const char *path)
{
    execve(path, launch->argv, launch->env);
    if (errno != ENOEXEC)
        return;
    /* A script without a first line: the shell reads it, as everywhere. */
    char **argv = launch->argv - 1;
    char *first = argv[1];
    argv[0] = (char *)"sh";
    argv[1] = (char *)path;
    execve("/bin/sh", argv, launch->env);
    argv[1] = first;
    errno = ENOEXEC;
}

static void search_and_exec(struct launch *launch)
{
    const char *name = launch->argv[0];
    if (strchr(name, '/')) {
        try_exec(launch, name);
        return;
    }
    const char *list = env_get(launch->env, "PATH");
    struct str rest = str_of(list ? list : PATH_DEFAULT);
    size_t name_size = strlen(name);
    bool denied = false;
    if (name_size > 255) {
        errno = ENAMETOOLONG;
        return;
    }
    while (rest.data) {
        char path[4096 + 256];
        struct str dir = str_cut(&rest, ':');
        if (dir.size > 4090)
            continue;
        if (!dir.size)
            dir = STR(".");
        memcpy(path, dir.data, dir.size);
        path[dir.size] = '/';
        memcpy(path + dir.size + 1, name, name_size + 1);
        try_exec(launch, path);
        if (errno == EACCES)
            denied = true;
        else if (errno != ENOENT && errno != ENOTDIR && errno != ESTALE && errno != ENODEV)
            return;
    }
    errno = denied ? EACCES : ENOENT;
}

static void reset_signals(void)
{
    struct sigaction fallback = {.sa_handler = SIG_DFL};
    (void)sigaction(SIGCHLD, &fallback, NULL);
    (void)sigaction(SIGPIPE, &fallback, NULL);
    sigset_t none;
    sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
}

static void raise_oom_score(int proc)
{
    int fd = proc < 0 ? -1 : openat(proc, "self/oom_score_adj", O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    (void)fd_write_all(fd, OOM_SCORE, sizeof OOM_SCORE - 1);
    (void)close(fd);
}

/* Magic links (/proc/self/fd/N) would lead out of the sandbox through a descriptor of our own: they
 * are never followed. */
static int enter(const char *path)
{
    struct open_how how = {.flags = O_PATH | O_DIRECTORY | O_CLOEXEC,
                           .resolve = RESOLVE_NO_MAGICLINKS};
    int directory = (int)syscall(SYS_openat2, AT_FDCWD, path, &how, sizeof how);
    if (directory < 0)
        return -1;
    int entered = fchdir(directory);
    close(directory);
    return entered;
}

/* Runs in the child until exec; returns only when something failed. */
static const char *prepare(struct launch *launch)
{
    const struct porter_options *options = &launch->world->options;
    if (setsid() < 0)
        return "session";
    if (launch->pty && ioctl(0, TIOCSCTTY, 0) < 0)
        return "controlling terminal";
    umask(022);
    raise_oom_score(launch->world->proc);
    (void)syscall(SYS_prlimit64, 0, RLIMIT_NOFILE, &launch->world->nofile, NULL);
    for (size_t i = 0; i < options->rlimit_count; i++)
        if (syscall(SYS_prlimit64, 0, options->rlimits[i].resource, &options->rlimits[i].limit,
                    NULL) < 0)
            return "resource limit";
    const char *failed = launch_become(launch->world, launch->user, options->root_caps);
    if (failed)
        return failed;
    if (enter(launch->cwd) < 0)
        return "working directory";
    reset_signals();
    search_and_exec(launch);
    return NULL;
}

pid_t launch_run(struct launch *launch)
{
    launch->error = 0;
    launch->stage = NULL;
    pid_t pid = vfork();
    if (pid == 0) {
        launch->stage = prepare(launch);
        launch->error = errno ? errno : EINVAL;
        _exit(127);
    }
    if (pid < 0) {
        launch->error = errno;
        launch->stage = "new process";
    }
    return pid;
}
