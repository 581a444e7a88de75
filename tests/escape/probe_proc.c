/* probe_proc.c - attempts on other processes and on what /proc tells: memory, programs,
 * descriptors, environment, signals, capabilities, the network as seen from inside. */
#include "probe.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---------------------------------------------------------------- one other process */
static int target(int argc, char **argv)
{
    return argc > 1 ? atoi(argv[1]) : 1;
}

static int run_ptrace(int argc, char **argv)
{
    return judge("ptrace", ptrace(PTRACE_SEIZE, target(argc, argv), 0, 0));
}

/* Opens a file of /proc/PID for reading, and reads a byte where reading means something. */
static int run_peek(int argc, char **argv)
{
    if (argc < 3)
        return unclear("usage: peek PID FILE");
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/%s", target(argc, argv), argv[2]);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return refused("%s: %s", path, strerror(errno));
    char byte;
    if (strcmp(argv[2], "environ") == 0 && read(fd, &byte, 1) < 0)
        return refused("reading %s: %s", path, strerror(errno));
    return escaped("%s could be opened", path);
}

static int run_link(int argc, char **argv)
{
    if (argc < 3)
        return unclear("usage: link PID NAME");
    char path[64], content[512];
    snprintf(path, sizeof path, "/proc/%d/%s", target(argc, argv), argv[2]);
    ssize_t size = readlink(path, content, sizeof content - 1);
    if (size < 0)
        return refused("%s: %s", path, strerror(errno));
    content[size] = 0;
    return escaped("%s is %s", path, content);
}

static int run_vm_read(int argc, char **argv)
{
    char byte;
    int *own = malloc(sizeof *own);
    struct iovec local = {&byte, 1},
                 remote = {argc > 2 ? (void *)strtoull(argv[2], NULL, 0) : own, 1};
    ssize_t size = process_vm_readv(target(argc, argv), &local, 1, &remote, 1, 0);
    /* EFAULT: we were let in, only the address was wrong. */
    if (size >= 0 || errno == EFAULT)
        return escaped("process_vm_readv was let in");
    return refused("process_vm_readv: %s", strerror(errno));
}

static int run_kill(int argc, char **argv)
{
    int signal_number = argc > 2 ? atoi(argv[2]) : 0;
    return judge("kill", kill(target(argc, argv), signal_number));
}

/* Signals everything that can be signalled; survives itself. Run it where only a victim can be hit.
 */
static int run_kill_all(int argc, char **argv)
{
    (void)argc, (void)argv;
    signal(SIGTERM, SIG_IGN);
    return judge("kill(-1, SIGTERM)", kill(-1, SIGTERM));
}

/* Tries to open the program of every other process for writing, for a while. ETXTBSY counts as a
 * way in: the permission was there. */
static int run_exe_write(int argc, char **argv)
{
    int rounds = argc > 1 ? atoi(argv[1]) : 1, found = 0;
    struct stat own, other;
    if (stat("/proc/self/exe", &own) < 0)
        return unclear("/proc/self/exe: %s", strerror(errno));
    for (int round = 0; round < rounds; round++) {
        DIR *proc = opendir("/proc");
        if (!proc)
            return unclear("/proc: %s", strerror(errno));
        for (struct dirent *entry; (entry = readdir(proc));) {
            char path[300];
            if (entry->d_name[0] < '0' || entry->d_name[0] > '9')
                continue;
            snprintf(path, sizeof path, "/proc/%s/exe", entry->d_name);
            if (stat(path, &other) == 0 && other.st_ino == own.st_ino && other.st_dev == own.st_dev)
                continue;
            found++;
            int fd = open(path, O_WRONLY | O_CLOEXEC);
            if (fd >= 0 || errno == ETXTBSY) {
                closedir(proc);
                return escaped("%s may be written", path);
            }
            fd = open(path, O_PATH | O_CLOEXEC);
            if (fd < 0)
                continue;
            char again[40];
            snprintf(again, sizeof again, "/proc/self/fd/%d", fd);
            int writable = open(again, O_WRONLY | O_CLOEXEC);
            bool busy = writable < 0 && errno == ETXTBSY;
            close(fd);
            if (writable >= 0 || busy) {
                closedir(proc);
                return escaped("%s may be written through a descriptor", path);
            }
        }
        closedir(proc);
    }
    return refused("%d programs of other processes", found);
}

/* ---------------------------------------------------------------- ourselves */
static int run_fds(int argc, char **argv)
{
    (void)argc, (void)argv;
    DIR *dir = opendir("/proc/self/fd");
    if (!dir)
        return unclear("/proc/self/fd: %s", strerror(errno));
    int extra = 0;
    char names[256] = "";
    for (struct dirent *entry; (entry = readdir(dir));) {
        int fd = atoi(entry->d_name);
        if (entry->d_name[0] == '.' || fd == dirfd(dir) || fd <= 2)
            continue;
        extra++;
        snprintf(names + strlen(names), sizeof names - strlen(names), " %d", fd);
    }
    closedir(dir);
    return extra ? escaped("open descriptors:%s", names) : refused("only 0, 1 and 2 are open");
}

static int run_caps(int argc, char **argv)
{
    (void)argc, (void)argv;
    FILE *status = fopen("/proc/self/status", "re");
    if (!status)
        return unclear("/proc/self/status: %s", strerror(errno));
    char line[256], found[512] = "";
    while (fgets(line, sizeof line, status)) {
        unsigned long long value;
        bool bad = false;
        line[strcspn(line, "\n")] = 0;
        if (strncmp(line, "Cap", 3) == 0 && sscanf(line, "%*s %llx", &value) == 1)
            bad = value != 0;
        else if (sscanf(line, "NoNewPrivs: %llu", &value) == 1)
            bad = value != 1;
        else if (sscanf(line, "Seccomp: %llu", &value) == 1)
            bad = value != 2;
        if (bad)
            snprintf(found + strlen(found), sizeof found - strlen(found), " [%s]", line);
    }
    fclose(status);
    return found[0] ? escaped("status shows%s", found)
                    : refused("no capability, no new privileges, filtered");
}

/* To be installed setuid root: did it help? */
static int run_setuid(int argc, char **argv)
{
    (void)argc, (void)argv;
    if (geteuid() != getuid() || getegid() != getgid())
        return escaped("effective uid %d gid %d", (int)geteuid(), (int)getegid());
    return refused("still uid %d", (int)getuid());
}

/* To be installed with file capabilities: did they help? */
static int run_file_caps(int argc, char **argv)
{
    (void)argc, (void)argv;
    FILE *status = fopen("/proc/self/status", "re");
    char line[256];
    unsigned long long value = 0;
    while (status && fgets(line, sizeof line, status))
        if (sscanf(line, "CapEff: %llx", &value) == 1)
            break;
    if (status)
        fclose(status);
    return value ? escaped("CapEff %llx", value) : refused("no capability");
}

/* ---------------------------------------------------------------- the network */
/* A connect that is answered by a host counts as a way out, a refusal by a host too: it got there.
 */
static int run_connect(int argc, char **argv)
{
    if (argc < 3)
        return unclear("usage: connect IPV4 PORT");
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons((unsigned short)atoi(argv[2]))};
    if (inet_pton(AF_INET, argv[1], &address.sin_addr) != 1)
        return unclear("not an address");
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return refused("socket: %s", strerror(errno));
    if (connect(fd, (struct sockaddr *)&address, sizeof address) == 0)
        return escaped("connected");
    if (errno != EINPROGRESS)
        return refused("connect: %s", strerror(errno));
    struct pollfd wait = {.fd = fd, .events = POLLOUT};
    if (poll(&wait, 1, 5000) <= 0)
        return unclear("no answer within 5 s: packets leave, or hang");
    int number = 0;
    socklen_t size = sizeof number;
    getsockopt(fd, SOL_SOCKET, SO_ERROR, &number, &size);
    if (number == 0)
        return escaped("connected");
    return refused("connect: %s", strerror(number));
}

static int run_interfaces(int argc, char **argv)
{
    (void)argc, (void)argv;
    FILE *list = fopen("/proc/net/dev", "re");
    if (!list)
        return refused("/proc/net/dev: %s", strerror(errno));
    char line[512], names[256] = "";
    for (int row = 0; fgets(line, sizeof line, list); row++) {
        char name[64];
        if (row < 2 || sscanf(line, " %63[^:]:", name) != 1 || strcmp(name, "lo") == 0)
            continue;
        snprintf(names + strlen(names), sizeof names - strlen(names), " %s", name);
    }
    fclose(list);
    return names[0] ? escaped("interfaces:%s", names) : refused("only lo");
}

/* ---------------------------------------------------------------- files */
static int run_read(int argc, char **argv)
{
    if (argc < 2)
        return unclear("usage: read PATH");
    int fd = open(argv[1], O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return refused("%s: %s", argv[1], strerror(errno));
    char data[64];
    ssize_t size = read(fd, data, sizeof data);
    if (size < 0 && errno != EISDIR)
        return refused("reading %s: %s", argv[1], strerror(errno));
    if (size == 0)
        return refused("%s is empty", argv[1]);
    return escaped("%s can be read", argv[1]);
}

static int run_show(int argc, char **argv)
{
    if (argc < 2)
        return unclear("usage: show PATH");
    int fd = open(argv[1], O_RDONLY | O_CLOEXEC);
    char data[4096];
    ssize_t size = -1;
    while (fd >= 0 && (size = read(fd, data, sizeof data)) > 0)
        if (write(1, data, (size_t)size) != size)
            return 1;
    return size < 0 ? unclear("%s: %s", argv[1], strerror(errno)) : 0;
}

static int run_write(int argc, char **argv)
{
    if (argc < 2)
        return unclear("usage: write PATH");
    return judge(argv[1], open(argv[1], O_WRONLY | O_CLOEXEC));
}

static int run_cwd(int argc, char **argv)
{
    if (argc < 2)
        return unclear("usage: cwd PATH");
    if (chdir(argv[1]) < 0)
        return refused("%s: %s", argv[1], strerror(errno));
    char where[512];
    return escaped("%s leads to %s", argv[1], getcwd(where, sizeof where) ? where : "?");
}

const struct probe probes_proc[] = {
    {"ptrace", "[PID] attaches", run_ptrace},
    {"peek", "PID FILE opens /proc/PID/FILE", run_peek},
    {"link", "PID NAME reads the link /proc/PID/NAME", run_link},
    {"vm-read", "PID [ADDRESS] reads another's memory", run_vm_read},
    {"kill", "PID [SIGNAL]", run_kill},
    {"kill-all", "kill(-1, SIGTERM)", run_kill_all},
    {"exe-write", "[ROUNDS] opens /proc/*/exe for writing", run_exe_write},
    {"fds", "descriptors besides 0, 1, 2", run_fds},
    {"caps", "capabilities, no_new_privs, seccomp", run_caps},
    {"setuid", "am I somebody else?", run_setuid},
    {"file-caps", "did my file's capabilities help?", run_file_caps},
    {"connect", "IPV4 PORT", run_connect},
    {"interfaces", "network interfaces besides lo", run_interfaces},
    {"read", "PATH is there something to read?", run_read},
    {"show", "PATH copies a file to stdout", run_show},
    {"write", "PATH can it be opened for writing?", run_write},
    {"cwd", "PATH can it be entered?", run_cwd},
    {0},
};
