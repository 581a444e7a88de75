/* backend_local_keeper.c - one keeper per home, started by whoever needs it first.
 *
 * The server makes the listening socket itself and gives it to the keeper it starts, so that
 * connecting never waits for the keeper to get ready. A lock file keeps two servers from starting
 * two keepers; the keeper takes the same lock before it ends.
 *
 * The keeper is started with a double fork and leads its own session: it is nobody's child and
 * survives us. Between fork and exec only calls are made that are safe when other threads were
 * running. */
#include "backend_local_keeper.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/file.h"
#include "base/mem.h"
#include "sandbox/sandbox.h"

#define LOCK_MS_MAX 10000
#define BACKLOG 256
#define MAKING_MAX 100 /* a keeper that sweeps takes away what is empty */
#define MAKING_PAUSE_US 300

/* --- places
 * ----------------------------------------------------------------------------------------- */

static int make_private_dir(const char *path, struct err *err)
{
    struct stat facts;
    int found = -1;
    for (int i = 0; i < MAKING_MAX && found < 0; i++) {
        if (mkdir(path, 0700) < 0 && errno != EEXIST)
            return err_errno(err, "making '%s'", path);
        found = lstat(path, &facts);
        if (found < 0 && errno != ENOENT)
            break;
        if (found < 0)
            usleep(MAKING_PAUSE_US); /* so that the two do not go in step */
    }
    if (found < 0)
        return err_errno(err, "'%s'", path);
    if (!S_ISDIR(facts.st_mode) || facts.st_uid != geteuid() || facts.st_mode & 077)
        return err_set(err, ERR_DENIED, "'%s' is not a directory of this user alone", path);
    return 0;
}

static int find_state(struct local_places *places, struct err *err)
{
    uint64_t hash = 14695981039346656037u; /* FNV-1a: the same name in every process */
    for (const char *at = places->home; *at; at++)
        hash = (hash ^ (unsigned char)*at) * 1099511628211u;
    char candidates[2][200] = {"", ""};
    const char *runtime = getenv("XDG_RUNTIME_DIR");
    if (geteuid() == 0)
        snprintf(candidates[0], sizeof candidates[0], "/run/postern");
    else if (runtime && runtime[0] == '/' && strlen(runtime) < 40)
        snprintf(candidates[0], sizeof candidates[0], "%s/postern", runtime);
    snprintf(candidates[1], sizeof candidates[1], "/tmp/postern-%u", geteuid());
    for (int i = 0; i < 2; i++) {
        if (!candidates[i][0] || make_private_dir(candidates[i], err) < 0)
            continue;
        snprintf(places->state, sizeof places->state, "%s/%016llx", candidates[i],
                 (unsigned long long)hash);
        return make_private_dir(places->state, err);
    }
    return err_wrap(err, "a place for the keeper's socket");
}

static int find_program(const struct sandbox_options *options, const char *name, char *path,
                        struct err *err)
{
    snprintf(path, LOCAL_PATH_MAX, "%s/%s", options->program_dir ? options->program_dir : ".",
             name);
    if (access(path, R_OK | X_OK) < 0)
        return err_errno(err, "the program '%s'", path);
    return 0;
}

int local_find_places(const struct sandbox_options *options, struct local_places *places,
                      struct err *err)
{
    if (!options->home)
        return err_set(err, ERR_INPUT, "no home directory is set");
    if (file_make_dirs(options->home, 0700, err) < 0)
        return -1;
    OWN(mem) char *home = realpath(options->home, NULL);
    if (!home || strlen(home) >= LOCAL_PATH_MAX)
        return err_errno(err, "'%s'", options->home);
    snprintf(places->home, sizeof places->home, "%s", home);
    if (find_program(options, "postern-keeper", places->keeper, err) < 0 ||
        find_program(options, "postern-porter", places->porter, err) < 0)
        return -1;
    return find_state(places, err);
}

/* --- starting
 * --------------------------------------------------------------------------------------- */

struct start {
    const char *const *args;
    int socket, null, log;
};

/* In the grandchild: only calls that are safe after fork. */
static void become_keeper(const struct start *start)
{
    sigset_t none;
    sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    static const char *const environment[] = {
        "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", NULL};
    int socket = fcntl(start->socket, F_DUPFD, 10), log = fcntl(start->log, F_DUPFD, 10);
    if (socket < 0 || log < 0 || dup2(start->null, 0) < 0 || dup2(log, 1) < 0 || dup2(log, 2) < 0 ||
        dup2(socket, 3) < 0 || close_range(4, ~0u, 0) < 0 || chdir("/") < 0)
        _exit(126);
    (void)execve(start->args[0], (char *const *)start->args, (char *const *)environment);
    _exit(127);
}

static int spawn_keeper(const struct local_places *places, const char *option, int socket,
                        struct err *err)
{
    OWN(mem) char *log_path = mem_format("%s/keeper.log", places->home);
    OWN(fd) int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    OWN(fd) int log = open(log_path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (null < 0 || log < 0)
        return err_errno(err, "'%s'", log < 0 ? log_path : "/dev/null");
    const char *idle = getenv("POSTERN_KEEPER_IDLE_MS");
    const char *args[] = {
        places->keeper, "--home", places->home, "--state",   places->state,          "--porter",
        places->porter, option,   "3",          "--idle-ms", idle ? idle : "600000", NULL};
    struct start start = {args, socket, null, log};
    pid_t middle = fork();
    if (middle < 0)
        return err_errno(err, "starting the keeper");
    if (middle == 0) {
        (void)setsid();
        pid_t keeper = _Fork();
        if (keeper == 0)
            become_keeper(&start);
        _exit(keeper < 0 ? 1 : 0);
    }
    int status;
    while (waitpid(middle, &status, 0) < 0 && errno == EINTR)
        ;
    if (status != 0)
        return err_set(err, ERR_CAPACITY, "starting the keeper: no process could be made");
    return 0;
}

static void socket_address(const struct local_places *places, struct sockaddr_un *address)
{
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    snprintf(address->sun_path, sizeof address->sun_path, "%s/keeper.sock", places->state);
}

/* A descriptor, or -1 with errno. */
static int try_connect(const struct local_places *places)
{
    struct sockaddr_un address;
    socket_address(places, &address);
    OWN(fd) int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address) < 0)
        return -1;
    return fd_take(&fd);
}

static int listen_at(const struct local_places *places, struct err *err)
{
    struct sockaddr_un address;
    socket_address(places, &address);
    OWN(fd) int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    (void)unlink(address.sun_path);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof address) < 0 ||
        chmod(address.sun_path, 0600) < 0 || listen(fd, BACKLOG) < 0)
        return err_errno(err, "the keeper's socket '%s'", address.sun_path);
    return fd_take(&fd);
}

/* A keeper that ends removes the file while it holds it: then there is a new one to take. */
static bool is_still_there(int lock, const char *path)
{
    struct stat held, named;
    return fstat(lock, &held) == 0 && stat(path, &named) == 0 && held.st_ino == named.st_ino &&
           held.st_dev == named.st_dev;
}

/* Held for moments only; still, no wait without an end. */
static int take_lock(const struct local_places *places, struct err *err)
{
    OWN(mem) char *path = mem_format("%s/start.lock", places->state);
    for (uint64_t until = clock_mono_ms() + LOCK_MS_MAX; clock_mono_ms() < until;) {
        if (make_private_dir(places->state, err) < 0)
            return -1;
        OWN(fd) int lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        if (lock < 0 && errno != ENOENT)
            return err_errno(err, "'%s'", path);
        if (lock >= 0 && flock(lock, LOCK_EX | LOCK_NB) == 0) {
            if (is_still_there(lock, path))
                return fd_take(&lock);
            continue;
        }
        if (lock >= 0 && errno != EWOULDBLOCK && errno != EINTR)
            return err_errno(err, "locking '%s'", path);
        (void)poll(NULL, 0, 5);
    }
    return err_set(err, ERR_TIMEOUT, "another process holds '%s'", path);
}

int local_connect_shared(const struct local_places *places, struct err *err)
{
    int fd = try_connect(places);
    if (fd >= 0)
        return fd;
    OWN(fd) int lock = take_lock(places, err);
    if (lock < 0)
        return -1;
    fd = try_connect(places); /* somebody was faster */
    if (fd >= 0)
        return fd;
    OWN(fd) int listener = listen_at(places, err);
    if (listener < 0 || spawn_keeper(places, "--listen-fd", listener, err) < 0)
        return -1;
    fd = try_connect(places);
    return fd >= 0 ? fd : err_errno(err, "connecting to the keeper");
}

int local_connect_private(const struct local_places *places, struct err *err)
{
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return err_errno(err, "socketpair");
    OWN(fd) int ours = pair[0], theirs = pair[1];
    if (fd_nonblocking(ours, true) < 0 || spawn_keeper(places, "--private-fd", theirs, err) < 0)
        return -1;
    return fd_take(&ours);
}
