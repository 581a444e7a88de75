/* keeper.c - the program's own life: prepare, wait for one thing at a time, tidy up.
 *
 * Preparing may fail (no user namespaces, no porter): then the keeper still answers, and every
 * answer says why nothing can be created. When there is nothing to do it makes ready what the next
 * sandbox will need.
 *
 * A state file names everything of ours that would outlive us: control groups and directories. It
 * is locked while we live, so that a successor can tell, without guessing at pids, what was left
 * behind. */
#include "keeper.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/keyctl.h>
#include <malloc.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/file.h"
#include "base/log.h"
#include "base/map.h"
#include "base/mem.h"
#include "filter.h"
#include "mounts.h"

#define TICK_MS 500
#define LINGER_MS 2000
#define MAKING_MAX 100
#define PORTER_BYTES_MAX (16u << 20)
#define EMBRYOS_MIN 4 /* first processes made ahead of time: two per processor within these */
#define EMBRYOS_MAX 16
#define READY_PARTS 2 /* and beyond them network namespaces and control groups */
#define QUIET_MS 3
#define STARTING_MAX 8 /* pooled sandboxes started at once */

int keeper_watch(struct keeper *keeper, struct watch *watch, uint32_t events, struct err *err)
{
    struct epoll_event event = {.events = events, .data.ptr = watch};
    if (epoll_ctl(keeper->epoll, EPOLL_CTL_ADD, watch->fd, &event) < 0 &&
        (errno != EEXIST || epoll_ctl(keeper->epoll, EPOLL_CTL_MOD, watch->fd, &event) < 0))
        return err_errno(err, "epoll");
    return 0;
}

void keeper_unwatch(struct keeper *keeper, struct watch *watch)
{
    if (watch->fd >= 0)
        (void)epoll_ctl(keeper->epoll, EPOLL_CTL_DEL, watch->fd, NULL);
    watch->fd = -1;
}

/* --- what predecessors left
 * ------------------------------------------------------------------------- */

static void sweep_line(char *line)
{
    char *path = strchr(line, ' ');
    if (!path)
        return;
    *path++ = '\0';
    if (strcmp(line, "cgroup") == 0)
        cgroups_sweep(path);
    if (strcmp(line, "dir") == 0 && strstr(path, "/sandboxes/postern-")) {
        struct err err = {0};
        if (file_remove_tree(path, &err) < 0)
            LOG_WARN("keeper", NULL, "%s", err.text);
    }
}

/* As backend_local names them: sixteen hex digits. */
static bool is_state_name(const char *name)
{
    return strspn(name, "0123456789abcdef") == 16 && strlen(name) == 16;
}

/* State files in one directory. Returns how many are of keepers that live. */
static unsigned sweep_states(int dir)
{
    int copy = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *entries = copy >= 0 ? fdopendir(copy) : NULL;
    if (!entries) {
        fd_close(&copy);
        return 1;
    }
    unsigned alive = 0;
    for (struct dirent *entry; (entry = readdir(entries));) {
        if (!str_ends(str_of(entry->d_name), STR(".state")))
            continue;
        OWN(fd) int file = openat(dir, entry->d_name, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
        if (file < 0 || flock(file, LOCK_EX | LOCK_NB) < 0) {
            alive++;
            continue;
        }
        char text[8192];
        ssize_t size = fd_read_all(file, text, sizeof text - 1);
        text[size > 0 ? size : 0] = '\0';
        for (char *rest = NULL, *line = strtok_r(text, "\n", &rest); line;
             line = strtok_r(NULL, "\n", &rest))
            sweep_line(line);
        (void)unlinkat(dir, entry->d_name, 0);
    }
    closedir(entries);
    return alive;
}

/* A keeper that was started a moment ago has its socket already and no state file yet. Without that
 * name nobody would find it again, nor what it holds when its server has died. */
static bool is_listened_on(const char *parent, const char *name)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int size =
        snprintf(address.sun_path, sizeof address.sun_path, "%s/%s/keeper.sock", parent, name);
    if (size < 0 || (size_t)size >= sizeof address.sun_path)
        return false; /* no name that anybody could have listened on */
    OWN(fd) int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    return fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address) == 0 ||
           (errno != ECONNREFUSED && errno != ENOENT);
}

/* A directory nobody uses any more. Whoever waits for the lock sees that its file is gone, and
 * makes a new one. */
static void remove_state_dir(const char *parent, int parent_fd, const char *name, int dir)
{
    OWN(fd) int lock = openat(dir, "start.lock", O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (lock < 0 || flock(lock, LOCK_EX | LOCK_NB) < 0 || is_listened_on(parent, name))
        return;
    (void)unlinkat(dir, "keeper.sock", 0);
    (void)unlinkat(dir, "start.lock", 0);
    (void)unlinkat(parent_fd, name, AT_REMOVEDIR);
}

void keeper_sweep(const char *state_dir)
{
    OWN(mem) char *parent = mem_dup(state_dir);
    char *own = strrchr(parent, '/');
    if (!own || own == parent)
        return;
    *own++ = '\0';
    DIR *entries = opendir(parent);
    for (struct dirent *entry; entries && (entry = readdir(entries));) {
        if (entry->d_name[0] == '.')
            continue;
        OWN(fd)
        int dir =
            openat(dirfd(entries), entry->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (dir >= 0 && sweep_states(dir) == 0 && strcmp(entry->d_name, own) != 0 &&
            is_state_name(entry->d_name))
            remove_state_dir(parent, dirfd(entries), entry->d_name, dir);
    }
    if (entries)
        closedir(entries);
}

/* Written aside, locked, then given its name: nobody ever sees it unlocked while we live. */
static int open_state(struct keeper *keeper, struct err *err)
{
    OWN(mem) char *aside = mem_format("%s/%s.new", keeper->options.state_dir, keeper->name);
    /* Another keeper may sweep it away, empty, at any moment between these. */
    for (int i = 0; i < MAKING_MAX && keeper->state < 0; i++) {
        (void)file_make_dirs(keeper->options.state_dir, 0700, NULL);
        keeper->state = open(aside, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        if (keeper->state < 0 && errno != ENOENT)
            break;
    }
    if (keeper->state < 0)
        return err_errno(err, "'%s'", aside);
    if (flock(keeper->state, LOCK_EX | LOCK_NB) < 0)
        return err_errno(err, "locking '%s'", aside);
    char *path = mem_format("%s/%s.state", keeper->options.state_dir, keeper->name);
    if (rename(aside, path) < 0) {
        free(path);
        return err_errno(err, "'%s'", aside);
    }
    keeper->state_path = path;
    return 0;
}

static int write_state(struct keeper *keeper, struct err *err)
{
    OWN(buf) struct buf text = {0};
    for (unsigned i = 0; i < keeper->cgroups.tree_count; i++)
        buf_format(&text, "cgroup %s\n", keeper->cgroups.trees[i].path);
    buf_format(&text, "dir %s/sandboxes/%s\n", keeper->options.home, keeper->name);
    if (fd_write_all(keeper->state, text.data, text.size) < 0)
        return err_errno(err, "writing '%s'", keeper->state_path);
    return 0;
}

/* --- getting ready
 * ------------------------------------------------------------------------------------ */

/* A copy that nobody can change: what process 1 of a sandbox runs cannot be written from inside,
 * nor replaced under us by a new build. */
static int open_porter(const char *path, struct err *err)
{
    OWN(buf) struct buf program = {0};
    if (file_read(path, PORTER_BYTES_MAX, &program, err) < 0)
        return err_wrap(err, "the porter");
    OWN(fd) int memory = memfd_create("porter", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (memory < 0 || fd_write_all(memory, program.data, program.size) < 0 ||
        fchmod(memory, 0555) < 0 ||
        fcntl(memory, F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE) < 0)
        return err_errno(err, "keeping the porter");
    return fd_take(&memory);
}

/* When memory is out, commands in sandboxes go before the keeper, whose end is the end of all of
 * them. */
static void be_spared(void)
{
    OWN(fd) int file = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
    if (file >= 0)
        (void)!write(file, "-900", 4);
}

static void raise_descriptors(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
        return;
    limit.rlim_cur = limit.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &limit);
}

static bool is_own_cgroup(const char *path, void *context)
{
    const struct keeper *keeper = context;
    for (unsigned i = 0; i < keeper->cgroups.tree_count; i++)
        if (strncmp(keeper->cgroups.trees[i].path, path, strlen(path)) == 0)
            return true;
    return false;
}

static int prepare_machine(struct keeper *keeper, struct err *err)
{
    if (ids_enter(&keeper->ids, err) < 0)
        return -1;
    if (unshare(CLONE_NEWNS) < 0)
        return err_errno(err, "a mount namespace for the keeper");
    if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
        return err_errno(err, "making the keeper's mounts private");
    (void)syscall(SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, NULL, 0, 0, 0);
    if (open_state(keeper, err) < 0)
        return -1;
    cgroups_start(&keeper->cgroups, keeper->name);
    if (write_state(keeper, err) < 0)
        return -1;
    keeper->warm_up = cgroups_warm_up(&keeper->cgroups);
    keeper_sweep(keeper->options.state_dir);
    keeper->porter = open_porter(keeper->options.porter, err);
    keeper->filter = keeper->porter < 0 ? -1 : filter_open(err);
    if (keeper->filter < 0)
        return -1;
    mounts_prune(is_own_cgroup, keeper);
    if (stage_build(&keeper->stage, &keeper->ids, err) < 0)
        return -1;
    struct net *net = net_take(&keeper->nets, err); /* can it be done at all? */
    if (!net)
        return -1;
    net_give(&keeper->nets, net);
    return 0;
}

/* Each sandbox begins as a copy of this process: gives back memory that only preparing needed. */
static void shrink(void)
{
    (void)malloc_trim(0);
    char here;
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t top = ((uintptr_t)&here - 2 * page) & ~(page - 1), size = 64 * page;
    (void)madvise((void *)(top - size), size, MADV_DONTNEED); /* the stack below us */
}

int keeper_prepare(struct keeper *keeper, struct err *err)
{
    keeper->porter = keeper->filter = keeper->state = keeper->stage.null = keeper->stage.dir = -1;
    list_init(&keeper->sandboxes);
    list_init(&keeper->layers);
    list_init(&keeper->pools);
    list_init(&keeper->connections);
    list_init(&keeper->cgroups.idle);
    nets_init(&keeper->nets);
    char random[9];
    id_random_hex(random, 4);
    snprintf(keeper->name, sizeof keeper->name, "postern-%d-%s", (int)getpid(), random);
    keeper->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (keeper->epoll < 0)
        return err_errno(err, "epoll");
    raise_descriptors();
    be_spared();
    long processors = sysconf(_SC_NPROCESSORS_ONLN);
    keeper->embryos_wanted = processors * 2 < EMBRYOS_MIN   ? EMBRYOS_MIN
                             : processors * 2 > EMBRYOS_MAX ? EMBRYOS_MAX
                                                            : (unsigned)processors * 2;
    if (prepare_machine(keeper, &keeper->broken) < 0)
        LOG_ERROR("keeper", NULL, "cannot create sandboxes: %s", keeper->broken.text);
    shrink();
    return server_start(keeper, err);
}

/* --- waiting
 * ------------------------------------------------------------------------------------------- */

static void on_signal(struct keeper *keeper, void *context, uint32_t events)
{
    (void)events;
    struct watch *watch = context;
    struct signalfd_siginfo info;
    if (read(watch->fd, &info, sizeof info) == sizeof info)
        keeper->ending = true;
}

static int watch_signals(struct keeper *keeper, struct watch *watch, struct err *err)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    (void)sigprocmask(SIG_BLOCK, &set, NULL);
    (void)signal(SIGPIPE, SIG_IGN);
    (void)signal(SIGHUP, SIG_IGN);
    *watch = (struct watch){signalfd(-1, &set, SFD_CLOEXEC), on_signal, watch};
    if (watch->fd < 0)
        return err_errno(err, "signalfd");
    return keeper_watch(keeper, watch, EPOLLIN, err);
}

/* One step of making ready; false: all is ready. Parts at once, whole sandboxes after a moment of
 * quiet: they would take the processor from those who just got one. */
static bool idle_step(struct keeper *keeper, bool quiet)
{
    if (keeper->broken.kind || keeper->ending)
        return false;
    if (quiet && keeper->starting_count < STARTING_MAX && pools_refill(keeper))
        return true;
    if (keeper->options.private_fd >= 0 || list_empty(&keeper->connections))
        return false;
    return embryos_refill(keeper, keeper->embryos_wanted) ||
           nets_refill(&keeper->nets, READY_PARTS) || cgroups_refill(&keeper->cgroups, READY_PARTS);
}

/* Nobody is connected and nothing is left: linger a little, then go, unless somebody knocks
 * meanwhile. The lock keeps a new server from starting another keeper between our last look and our
 * end. */
static bool may_end(struct keeper *keeper, uint64_t now)
{
    if (!list_empty(&keeper->connections) || !list_empty(&keeper->layers) ||
        keeper->live_count > keeper->embryo_count) {
        keeper->empty_since_ms = 0;
        return false;
    }
    if (keeper->ending)
        return keeper->live_count == 0;
    if (!keeper->empty_since_ms)
        keeper->empty_since_ms = now;
    if (now - keeper->empty_since_ms < LINGER_MS)
        return false;
    OWN(mem) char *path = mem_format("%s/start.lock", keeper->options.state_dir);
    OWN(fd) int lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (lock < 0 || flock(lock, LOCK_EX | LOCK_NB) < 0)
        return false;
    int fd = accept4(keeper->listen_watch.fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd >= 0) {
        (void)server_adopt_socket(keeper, fd);
        return false;
    }
    embryos_drop(keeper);
    keeper->ending = true;
    OWN(mem) char *name = mem_format("%s/keeper.sock", keeper->options.state_dir);
    (void)unlink(name);
    (void)unlink(path);
    close(keeper->listen_watch.fd);
    keeper->listen_watch.fd = -1;
    return keeper->live_count == 0;
}

static void tick(struct keeper *keeper, uint64_t now)
{
    sandboxes_tick(keeper, now);
    server_tick(keeper, now);
    if (!keeper->ending)
        return;
    LIST_EACH (at, &keeper->sandboxes) {
        struct sandbox *sandbox = LIST_OF(at, struct sandbox, node);
        if (sandbox->life == LIFE_GONE)
            sandbox_free(keeper, sandbox);
        else
            sandbox_kill(keeper, sandbox);
    }
}

static void tidy_up(struct keeper *keeper)
{
    server_stop(keeper);
    nets_deinit(&keeper->nets);
    cgroups_stop(&keeper->cgroups);
    OWN(mem) char *dir = mem_format("%s/sandboxes/%s", keeper->options.home, keeper->name);
    (void)file_remove_tree(dir, NULL);
    if (keeper->state_path)
        (void)unlink(keeper->state_path);
    free(keeper->state_path);
    (void)rmdir(keeper->options.state_dir); /* when nobody else's file is there */
    fd_close(&keeper->state);
    fd_close(&keeper->porter);
    fd_close(&keeper->filter);
    fd_close(&keeper->stage.null);
    fd_close(&keeper->stage.dir);
    fd_close(&keeper->epoll);
    ids_deinit(&keeper->ids);
}

void keeper_run(struct keeper *keeper)
{
    struct watch signals = {.fd = -1};
    struct err err = {0};
    if (watch_signals(keeper, &signals, &err) < 0)
        LOG_ERROR("keeper", NULL, "%s", err.text);
    uint64_t next_tick = 0;
    enum {
        BUSY,
        QUIET,
        READY
    } mood = BUSY; /* what there may be to make ready: parts, all, nothing */
    for (;;) {
        uint64_t now = clock_mono_ms();
        if (keeper->warm_up > 0 && waitpid(keeper->warm_up, NULL, WNOHANG) != 0)
            keeper->warm_up = 0;
        if (now >= next_tick || keeper->ending) {
            tick(keeper, now);
            next_tick = now + TICK_MS;
        }
        if (keeper->ending && keeper->live_count == 0)
            server_stop(keeper);
        if (may_end(keeper, now))
            break;
        struct epoll_event event;
        int wait = keeper->ending ? 50 : mood == BUSY ? 0 : mood == QUIET ? QUIET_MS : TICK_MS;
        int got = epoll_wait(keeper->epoll, &event, 1, wait);
        if (got > 0) {
            struct watch *watch = event.data.ptr;
            watch->on_ready(keeper, watch->context, event.events);
            mood = BUSY;
        } else if (got == 0 && mood == BUSY) {
            mood = idle_step(keeper, false) ? BUSY : QUIET;
        } else if (got == 0 && mood == QUIET) {
            while (idle_step(keeper, true) && epoll_wait(keeper->epoll, &event, 1, 0) == 0)
                ;
            mood = READY;
        } else if (got == 0 && !list_empty(&keeper->pools)) {
            mood = QUIET; /* a pool that failed tries again by the clock */
        }
    }
    fd_close(&signals.fd);
    tidy_up(keeper);
}
