/* inside.c - what the conformance suite runs inside sandboxes: one static program with one verb per
 * behaviour, so that the suite asks nothing of an image. The suite compiles it when it starts.
 *
 * usage: inside VERB [ARGUMENTS]; a TAG is any word, there to be found in /proc later. */
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static void wait_for_ever(void)
{
    for (;;)
        pause();
}

static int connect_to(const char *host, int port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((unsigned short)port)};
    if (inet_pton(AF_INET, host, &address.sin_addr) != 1)
        return -1;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof address) == 0)
        return fd;
    int failure = errno;
    close(fd);
    errno = failure;
    return -1;
}

/* echo PORT TEXT: sends TEXT, says that it is all, prints what comes back. */
static int echo(int port, const char *text)
{
    int fd = connect_to("127.0.0.1", port);
    if (fd < 0) {
        printf("connect: %s\n", strerror(errno));
        return 1;
    }
    if (write(fd, text, strlen(text)) != (ssize_t)strlen(text))
        return 1;
    shutdown(fd, SHUT_WR);
    char chunk[4096];
    for (ssize_t count; (count = read(fd, chunk, sizeof chunk)) > 0;)
        fwrite(chunk, 1, (size_t)count, stdout);
    return 0;
}

/* pump PORT BYTES: sends that much of a pattern and reads it back, both at once; checks every byte.
 */
static unsigned char pattern(unsigned long long at)
{
    return (unsigned char)(at * 31 + (at >> 12));
}

static int pump(int port, unsigned long long bytes)
{
    int fd = connect_to("127.0.0.1", port);
    if (fd < 0)
        return 1;
    unsigned long long sent = 0, got = 0;
    unsigned char chunk[65536];
    fcntl(fd, F_SETFL, O_NONBLOCK);
    while (got < bytes) {
        struct pollfd ready = {fd, (short)(POLLIN | (sent < bytes ? POLLOUT : 0)), 0};
        poll(&ready, 1, -1);
        if ((ready.revents & POLLOUT) && sent < bytes) {
            size_t size = bytes - sent < sizeof chunk ? (size_t)(bytes - sent) : sizeof chunk;
            for (size_t i = 0; i < size; i++)
                chunk[i] = pattern(sent + i);
            ssize_t count = write(fd, chunk, size);
            sent += count > 0 ? (unsigned long long)count : 0;
            if (sent == bytes)
                shutdown(fd, SHUT_WR);
        }
        if (ready.revents & (POLLIN | POLLHUP)) {
            ssize_t count = read(fd, chunk, sizeof chunk);
            if (count == 0)
                break;
            for (ssize_t i = 0; i < count; i++)
                if (chunk[i] != pattern(got + (unsigned long long)i)) {
                    printf("byte %llu differs\n", got + (unsigned long long)i);
                    return 1;
                }
            got += count > 0 ? (unsigned long long)count : 0;
        }
    }
    printf("%llu\n", got);
    return got == bytes ? 0 : 1;
}

/* lookup NAME: asks 127.0.0.1:53 and prints the answer's code. */
static int lookup(const char *name)
{
    unsigned char packet[512] = {0x12, 0x34, 1, 0, 0, 1};
    size_t at = 12;
    while (*name) {
        size_t size = strcspn(name, ".");
        packet[at++] = (unsigned char)size;
        memcpy(packet + at, name, size);
        at += size;
        name += size + (name[size] == '.');
    }
    packet[at + 2] = packet[at + 4] = 1;
    at += 5;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(53)};
    inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (connect(fd, (struct sockaddr *)&address, sizeof address) < 0 ||
        write(fd, packet, at) != (ssize_t)at) {
        printf("send: %s\n", strerror(errno));
        return 1;
    }
    struct pollfd ready = {fd, POLLIN, 0};
    if (poll(&ready, 1, 5000) != 1) {
        printf("no answer\n");
        return 1;
    }
    ssize_t size = read(fd, packet, sizeof packet);
    if (size < 12) {
        printf("read: %s\n", strerror(errno));
        return 1;
    }
    printf("code %d\n", packet[3] & 15);
    return 0;
}

/* tagged TAG: how many other processes have TAG as their last argument. */
static int tagged(const char *tag)
{
    DIR *proc = opendir("/proc");
    int found = 0;
    for (struct dirent *entry; proc && (entry = readdir(proc)) != NULL;) {
        long pid = strtol(entry->d_name, NULL, 10);
        if (pid <= 0 || pid == getpid())
            continue;
        char path[64], line[4096];
        snprintf(path, sizeof path, "/proc/%ld/cmdline", pid);
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        ssize_t size = fd >= 0 ? read(fd, line, sizeof line - 1) : -1;
        close(fd);
        size_t tag_size = strlen(tag);
        if (size > (ssize_t)tag_size + 1 && strcmp(line, "tagged") != 0 &&
            memcmp(line + size - tag_size - 1, tag, tag_size) == 0)
            found++;
    }
    printf("%d\n", found);
    return 0;
}

static void become_daemon(void)
{
    if (fork() > 0)
        return;
    setsid();
    if (fork() > 0)
        _exit(0);
    signal(SIGTERM, SIG_IGN);
    signal(SIGHUP, SIG_IGN);
    close(0);
    close(1);
    close(2);
    wait_for_ever();
}

/* tree TAG: a daemon, a double fork, one that ignores TERM, one that stopped itself; then waits. */
static int tree(void)
{
    become_daemon();
    for (int i = 0; i < 3; i++)
        if (fork() == 0) {
            signal(SIGTERM, SIG_IGN);
            if (i == 1)
                setsid();
            if (i == 2)
                raise(SIGSTOP);
            wait_for_ever();
        }
    signal(SIGTERM, SIG_IGN);
    printf("up\n");
    fflush(stdout);
    wait_for_ever();
    return 0;
}

/* leave TAG: exits at once and leaves a daemon behind. */
static int leave(void)
{
    become_daemon();
    printf("left\n");
    return 0;
}

static int eat(size_t megabytes)
{
    for (size_t i = 0; i < megabytes; i++) {
        char *piece = malloc(1 << 20);
        if (!piece)
            return 3;
        memset(piece, (int)i + 1, 1 << 20);
    }
    printf("ate\n");
    return 0;
}

/* forks N: tries N children; prints how many there were at once. */
static int forks(int wanted)
{
    int made = 0;
    for (; made < wanted; made++) {
        pid_t pid = fork();
        if (pid < 0)
            break;
        if (pid == 0)
            wait_for_ever();
    }
    printf("%d\n", made);
    fflush(stdout);
    return 0;
}

static int spew(unsigned long long bytes)
{
    static char chunk[65536];
    while (bytes) {
        ssize_t count = write(1, chunk, bytes < sizeof chunk ? (size_t)bytes : sizeof chunk);
        if (count < 0)
            return 1;
        bytes -= (unsigned long long)count;
    }
    return 0;
}

static int count_input(void)
{
    static char chunk[65536];
    unsigned long long total = 0;
    for (ssize_t count; (count = read(0, chunk, sizeof chunk)) > 0;)
        total += (unsigned long long)count;
    printf("%llu\n", total);
    return 0;
}

static int describe_terminal(void)
{
    struct winsize size = {0};
    ioctl(0, TIOCGWINSZ, &size);
    printf("%d%d%d %u %u\n", isatty(0), isatty(1), isatty(2), size.ws_row, size.ws_col);
    return 0;
}

int main(int argc, char **argv)
{
    const char *verb = argc > 1 ? argv[1] : "", *first = argc > 2 ? argv[2] : "",
               *second = argc > 3 ? argv[3] : "";
    if (!strcmp(verb, "exit"))
        return atoi(first);
    if (!strcmp(verb, "raise"))
        return raise(atoi(first));
    if (!strcmp(verb, "echo"))
        return echo(atoi(first), second);
    if (!strcmp(verb, "pump"))
        return pump(atoi(first), strtoull(second, NULL, 10));
    if (!strcmp(verb, "reach")) {
        int fd = connect_to(first, atoi(second));
        printf("%s\n", fd >= 0 ? "connected" : strerror(errno));
        return fd < 0;
    }
    if (!strcmp(verb, "lookup"))
        return lookup(first);
    if (!strcmp(verb, "tagged"))
        return tagged(first);
    if (!strcmp(verb, "tree"))
        return tree();
    if (!strcmp(verb, "leave"))
        return leave();
    if (!strcmp(verb, "eat"))
        return eat((size_t)atoi(first));
    if (!strcmp(verb, "forks"))
        return forks(atoi(first));
    if (!strcmp(verb, "spew"))
        return spew(strtoull(first, NULL, 10));
    if (!strcmp(verb, "count"))
        return count_input();
    if (!strcmp(verb, "terminal"))
        return describe_terminal();
    if (!strcmp(verb, "say")) {
        fprintf(stderr, "%s", second);
        printf("%s", first);
        return 0;
    }
    if (!strcmp(verb, "ids")) {
        printf("%d:%d\n", (int)getuid(), (int)getgid());
        return 0;
    }
    if (!strcmp(verb, "args")) {
        for (int i = 2; i < argc; i++)
            printf("[%s]", argv[i]);
        return 0;
    }
    if (!strcmp(verb, "env")) {
        const char *value = getenv(first);
        printf("%s\n", value ? value : "(unset)");
        return 0;
    }
    if (!strcmp(verb, "cwd")) {
        char path[4096];
        puts(getcwd(path, sizeof path) ? path : "?");
        return 0;
    }
    if (!strcmp(verb, "sleep")) {
        printf("asleep\n");
        fflush(stdout);
        wait_for_ever();
    }
    fprintf(stderr, "inside: no verb '%s'\n", verb);
    return 2;
}
