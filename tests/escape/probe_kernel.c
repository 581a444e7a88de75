/* probe_kernel.c - attempts that ask the kernel directly: system calls by every door, terminals,
 * keys, namespaces, sockets.
 *
 * Most calls come with arguments that are wrong on purpose. On a bare machine the kernel complains
 * about the arguments (EFAULT, EINVAL, EBADF: the call was *reached*); behind the filter it
 * complains about the caller (EPERM, ENOSYS, EACCES, or the process is gone). Constants are written
 * out because the probe is built without the kernel's headers. */
#include "probe.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---------------------------------------------------------------- the calls that must not be
 * reached */
/* Numbers of x86_64; the six arguments are harmless even where the call is allowed. */
static const struct call {
    const char *name;
    long number;
    long arguments[6];
} calls[] = {
    {"io_uring_setup", 425, {1, 1}},
    {"io_uring_enter", 426, {-1, 0, 0, 0, 0, 0}},
    {"io_uring_register", 427, {-1, 0, 1, 0}},
    {"keyctl", 250, {9999, 0, 0, 0, 0}},
    {"add_key", 248, {1, 1, 0, 0, -3}},
    {"request_key", 249, {1, 1, 0, -3}},
    {"bpf", 321, {0, 1, 8}},
    {"perf_event_open", 298, {1, 0, -1, -1, 0}},
    {"userfaultfd", 323, {0x7fff0000}},
    {"mount", 165, {1, 1, 1, 0, 0}},
    {"umount2", 166, {1, 0}},
    {"pivot_root", 155, {1, 1}},
    {"chroot", 161, {(long)"/"}},
    {"move_mount", 429, {-1, 1, -1, 1, 0}},
    {"open_tree", 428, {-1, 1, 1}},
    {"fsopen", 430, {1, 0}},
    {"fsconfig", 431, {-1, 99, 0, 0, 0}},
    {"fsmount", 432, {-1, 0, 0}},
    {"fspick", 433, {-1, 1, 0}},
    {"mount_setattr", 442, {-1, 1, 0, 1, 4096 * 2}},
    {"setns", 308, {-1, 0}},
    {"unshare_user", 272, {0x10000000 | 0x200 /* CLONE_FS, harmless */}},
    {"open_by_handle_at", 304, {-1, 1, 0}},
    {"kexec_load", 246, {0, 17, 0, 0}},
    {"init_module", 175, {1, 0, 1}},
    {"finit_module", 313, {-1, 1, 0}},
    {"delete_module", 176, {1, 0}},
    {"swapon", 167, {1, 0}},
    {"swapoff", 168, {1}},
    {"reboot", 169, {0x1234, 0, 0, 0}},
    {"sethostname", 170, {1, 3}},
    {"setdomainname", 171, {1, 3}},
    {"acct", 163, {1}},
    {"settimeofday", 164, {1, 0}},
    {"clock_settime", 227, {0, 1}},
    {"syslog", 103, {3, 1, 10}},
    {"quotactl", 179, {0x7fffffff, 1, 0, 1}},
    {"iopl", 172, {4}},
    {"ioperm", 173, {0, 0, 9}},
    {"fanotify_init", 300, {0x7fffffff, 0}},
    {0},
};

/* Runs the call in a child: a filter may kill instead of answering. Returns errno, 0, or -signal.
 */
static int call_once(const struct call *call)
{
    const long *a = call->arguments;
    pid_t child = fork();
    if (child < 0)
        return EAGAIN;
    if (child == 0) {
        alarm(5);
        long result = syscall(call->number, a[0], a[1], a[2], a[3], a[4], a[5]);
        _exit(result < 0 ? errno : 0);
    }
    int status = 0;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR)
        ;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

/* Prints one line per call that the kernel proper answered. */
static int run_calls(int argc, char **argv)
{
    int reached = 0, total = 0;

    for (const struct call *call = calls; call->name; call++) {
        if (argc > 1 && strcmp(argv[1], call->name) != 0)
            continue;
        int number = call_once(call);
        total++;
        if (number == EPERM || number == ENOSYS || number == EACCES || number == -SIGSYS)
            continue;
        printf("reached %s: %s\n", call->name, number < 0 ? "signal" : strerror(number));
        reached++;
    }
    if (total == 0)
        return unclear("no such call");
    return reached ? escaped("%d of %d calls were reached", reached, total)
                   : refused("all %d calls", total);
}

/* ---------------------------------------------------------------- other doors into the kernel */
/* getpid through another entry, in a child because a filter may kill. */
static int other_abi(const char *what, long (*enter)(void))
{
    int answer[2];
    if (pipe(answer) < 0)
        return unclear("pipe: %s", strerror(errno));
    pid_t child = fork();
    if (child == 0) {
        long result = enter();
        _exit(write(answer[1], &result, sizeof result) == sizeof result ? 0 : 1);
    }
    close(answer[1]);
    long result = 0;
    ssize_t size = read(answer[0], &result, sizeof result);
    int status = 0;
    waitpid(child, &status, 0);
    if (size != sizeof result)
        return refused("%s: killed by signal %d", what, WIFSIGNALED(status) ? WTERMSIG(status) : 0);
    if (result == child)
        return escaped("%s: getpid answered %ld", what, result);
    return refused("%s: answered %ld", what, result);
}

#if defined(__x86_64__)
static long enter_int80(void)
{
    long result = 20; /* getpid of the 32-bit table */
    __asm__ volatile("int $0x80" : "+a"(result) : : "memory", "r8", "r9", "r10", "r11");
    return (int)result;
}

static long enter_x32(void)
{
    return syscall(0x40000000L | 39);
}
#else
static long enter_int80(void)
{
    return -ENOSYS;
}
static long enter_x32(void)
{
    return -ENOSYS;
}
#endif

static int run_int80(int argc, char **argv)
{
    (void)argc, (void)argv;
    return other_abi("int 0x80", enter_int80);
}

static int run_x32(int argc, char **argv)
{
    (void)argc, (void)argv;
    return other_abi("x32", enter_x32);
}

static int run_io_uring(int argc, char **argv)
{
    (void)argc, (void)argv;
    char params[120] = {0};
    return judge("io_uring_setup", syscall(425, 4, params));
}

/* ---------------------------------------------------------------- terminals */
/* The kernel looks at 32 bits of the request; a filter that compares 64 is fooled by the upper
 * half. */
static int run_tiocsti(int argc, char **argv)
{
    long request = 0x5412 | (argc > 1 && strcmp(argv[1], "high") == 0 ? 1L << 32 : 0);
    char letter = 'x';
    if (syscall(SYS_ioctl, 0, request, &letter) == 0)
        return escaped("TIOCSTI put a letter into the terminal");
    return refused("TIOCSTI: %s", strerror(errno));
}

static int run_tioclinux(int argc, char **argv)
{
    long request = 0x541c | (argc > 1 && strcmp(argv[1], "high") == 0 ? 1L << 32 : 0);
    char subcode[8] = {99};
    if (syscall(SYS_ioctl, 0, request, subcode) == 0 || errno == ENOTTY || errno == EINVAL)
        return escaped("TIOCLINUX reached the terminal driver: %s", strerror(errno));
    return refused("TIOCLINUX: %s", strerror(errno));
}

static int run_tty(int argc, char **argv)
{
    (void)argc, (void)argv;
    int tty = open("/dev/tty", O_RDWR | O_CLOEXEC);
    if (tty < 0)
        return refused("/dev/tty: %s", strerror(errno));
    return escaped("there is a controlling terminal");
}

/* ---------------------------------------------------------------- keys */
static int run_add_key(int argc, char **argv)
{
    (void)argc, (void)argv;
    return judge("add_key", syscall(248, "user", "postern-probe", "x", 1L, -2L));
}

static int run_keyctl(int argc, char **argv)
{
    (void)argc, (void)argv;
    return judge("keyctl get session keyring", syscall(250, 0L, -3L, 0L, 0L, 0L));
}

/* ---------------------------------------------------------------- namespaces and mounts */
static int run_unshare(int argc, char **argv)
{
    (void)argc, (void)argv;
    return judge("unshare(user, net)", unshare(0x10000000 | 0x40000000));
}

static int run_clone_user(int argc, char **argv)
{
    (void)argc, (void)argv;
    long child = syscall(SYS_clone, 0x10000000L | SIGCHLD, 0L, 0L, 0L, 0L);
    if (child == 0)
        _exit(0);
    int number = errno;
    if (child > 0)
        waitpid((pid_t)child, NULL, 0);
    errno = number;
    return judge("clone(user)", child);
}

static int run_clone3_user(int argc, char **argv)
{
    (void)argc, (void)argv;
    uint64_t arguments[11] = {[0] = 0x10000000, [4] = SIGCHLD};
    long child = syscall(435, arguments, sizeof arguments);
    if (child == 0)
        _exit(0);
    int number = errno;
    if (child > 0)
        waitpid((pid_t)child, NULL, 0);
    errno = number;
    return judge("clone3(user)", child);
}

static int run_setns(int argc, char **argv)
{
    const char *path = argc > 1 ? argv[1] : "/proc/self/ns/ipc";
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return refused("%s: %s", path, strerror(errno));
    return judge("setns", setns(fd, 0));
}

/* NS_GET_PARENT (0xb702) on a pid namespace: a handle to the namespace around it. */
static int run_ns_parent(int argc, char **argv)
{
    const char *path = argc > 1 ? argv[1] : "/proc/self/ns/pid";
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return refused("%s: %s", path, strerror(errno));
    return judge("NS_GET_PARENT", ioctl(fd, 0xb702));
}

static int run_mount(int argc, char **argv)
{
    const char *path = argc > 1 ? argv[1] : "/tmp";
    return judge("mount tmpfs", mount("none", path, "tmpfs", 0, ""));
}

/* Everything in one go: a new user namespace in which we may mount. What a local root exploit does
 * first. */
static int run_user_mount(int argc, char **argv)
{
    (void)argc, (void)argv;
    if (unshare(0x10000000 | 0x00020000) < 0)
        return refused("unshare(user, mount): %s", strerror(errno));
    return judge("mount in a new user namespace", mount("none", "/tmp", "tmpfs", 0, ""));
}

/* ---------------------------------------------------------------- sockets */
static int run_socket(int argc, char **argv)
{
    if (argc != 4)
        return unclear("usage: socket FAMILY TYPE PROTOCOL");
    int fd = socket(atoi(argv[1]), atoi(argv[2]), atoi(argv[3]));
    int number = errno;
    char what[64];
    snprintf(what, sizeof what, "socket(%s, %s, %s)", argv[1], argv[2], argv[3]);
    errno = number;
    return judge(what, fd);
}

static socklen_t abstract_address(struct sockaddr_un *address, const char *name)
{
    size_t size = strlen(name);
    if (size > sizeof address->sun_path - 1)
        size = sizeof address->sun_path - 1;
    memset(address, 0, sizeof *address);
    address->sun_family = AF_UNIX;
    memcpy(address->sun_path + 1, name, size);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + size);
}

static int run_abstract(int argc, char **argv)
{
    struct sockaddr_un address;
    socklen_t size = abstract_address(&address, argc > 1 ? argv[1] : "postern-canary");
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    if (fd < 0)
        return unclear("socket: %s", strerror(errno));
    return judge("connecting to an abstract socket",
                 connect(fd, (struct sockaddr *)&address, size));
}

/* Listens until stdin ends; says "ready" first. */
static int run_abstract_listen(int argc, char **argv)
{
    struct sockaddr_un address;
    socklen_t size = abstract_address(&address, argc > 1 ? argv[1] : "postern-canary");
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, size) < 0 || listen(fd, 5) < 0)
        return unclear("listening: %s", strerror(errno));
    printf("ready\n");
    fflush(stdout);
    char byte;
    while (read(0, &byte, 1) > 0)
        ;
    return 0;
}

static int run_shm(int argc, char **argv)
{
    key_t key = (key_t)(argc > 1 ? strtol(argv[1], NULL, 0) : 0x706f7374);
    return judge("finding the shared memory segment", shmget(key, 0, 0));
}

/* Makes a segment that lasts until stdin ends. */
static int run_shm_make(int argc, char **argv)
{
    key_t key = (key_t)(argc > 1 ? strtol(argv[1], NULL, 0) : 0x706f7374);
    int id = shmget(key, 4096, IPC_CREAT | IPC_EXCL | 0666);
    if (id < 0)
        return unclear("shmget: %s", strerror(errno));
    printf("ready\n");
    fflush(stdout);
    char byte;
    while (read(0, &byte, 1) > 0)
        ;
    shmctl(id, IPC_RMID, NULL);
    return 0;
}

const struct probe probes_kernel[] = {
    {"calls", "[NAME] system calls that must not be reached", run_calls},
    {"int80", "getpid through the 32-bit entry", run_int80},
    {"x32", "getpid through the x32 table", run_x32},
    {"io-uring", "a ring", run_io_uring},
    {"tiocsti", "[high] types into the terminal on fd 0", run_tiocsti},
    {"tioclinux", "[high] the console's own ioctl on fd 0", run_tioclinux},
    {"tty", "opens the controlling terminal", run_tty},
    {"add-key", "puts a key into the process keyring", run_add_key},
    {"keyctl", "looks up the session keyring", run_keyctl},
    {"unshare", "new user and network namespaces", run_unshare},
    {"clone-user", "clone into a new user namespace", run_clone_user},
    {"clone3-user", "clone3 into a new user namespace", run_clone3_user},
    {"setns", "[PATH] joins a namespace", run_setns},
    {"ns-parent", "[PATH] asks a pid namespace for its parent", run_ns_parent},
    {"mount", "[PATH] mounts a tmpfs", run_mount},
    {"user-mount", "mounts in a new user namespace", run_user_mount},
    {"socket", "FAMILY TYPE PROTOCOL opens a socket", run_socket},
    {"abstract", "[NAME] connects to an abstract socket", run_abstract},
    {"abstract-listen", "[NAME] listens until stdin ends", run_abstract_listen},
    {"shm", "[KEY] finds a SysV segment", run_shm},
    {"shm-make", "[KEY] holds a SysV segment until stdin ends", run_shm_make},
    {0},
};
