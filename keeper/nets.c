/* nets.c - making, cleaning and keeping network namespaces.
 *
 * The keeper needs no network itself (unix sockets with paths do not care), so it simply stays in
 * whichever namespace it entered last; a sandbox's first process is born there.
 *
 * A namespace that a sandbox used is never used again: sockets in TIME_WAIT would keep ports from
 * the next one for a minute, and its counters would tell what the last one did. Many sandboxes use
 * none at all, though, and namespaces are dear. So what is left of one is compared with a new one,
 * counter by counter: every packet, every address without a route, every name of a socket shows. As
 * new, it goes back to the shelf; otherwise it is dropped, and others are made ahead in idle
 * moments. */
#include "nets.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/err.h"
#include "base/fd.h"
#include "base/mem.h"
#include "sandbox/keeper_protocol.h"

#define IDLE_MAX 64
#define BACKLOG 1024

void nets_init(struct nets *nets)
{
    list_init(&nets->idle);
    nets->idle_count = 0;
    nets->new_past_size = 0;
}

void net_free(struct net *net)
{
    if (!net)
        return;
    fd_close(&net->inlet);
    fd_close(&net->resolver);
    fd_close(&net->space);
    free(net);
}

void nets_deinit(struct nets *nets)
{
    LIST_EACH (at, &nets->idle) {
        struct net *net = LIST_OF(at, struct net, node);
        list_remove(&net->node);
        net_free(net);
    }
    nets->idle_count = 0;
}

static int loopback_up(struct err *err)
{
    OWN(fd) int any = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    struct ifreq request = {.ifr_name = "lo"};
    if (any < 0 || ioctl(any, SIOCGIFFLAGS, &request) < 0)
        return err_errno(err, "the loopback interface");
    request.ifr_flags |= IFF_UP | IFF_RUNNING;
    if (ioctl(any, SIOCSIFFLAGS, &request) < 0)
        return err_errno(err, "switching the loopback interface on");
    return 0;
}

/* Root inside has no capability over this namespace, so low ports are opened to everybody in it. */
static void open_low_ports(void)
{
    OWN(fd) int file = open("/proc/sys/net/ipv4/ip_unprivileged_port_start", O_WRONLY | O_CLOEXEC);
    if (file >= 0)
        (void)!write(file, "0", 1);
}

static int open_sockets(struct net *net, struct err *err)
{
    struct sockaddr_in address = {
        .sin_family = AF_INET,
        .sin_port = htons(KEEPER_INLET_PORT),
        .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
    };
    int one = 1; /* only past connections that linger; never a second listener */
    net->inlet = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (net->inlet < 0 || setsockopt(net->inlet, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) < 0 ||
        bind(net->inlet, (struct sockaddr *)&address, sizeof address) < 0 ||
        listen(net->inlet, BACKLOG) < 0)
        return err_errno(err, "opening the inlet in the sandbox's network");
    address.sin_port = htons(53);
    net->resolver = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (net->resolver < 0 || bind(net->resolver, (struct sockaddr *)&address, sizeof address) < 0)
        return err_errno(err, "opening the resolver in the sandbox's network");
    return 0;
}

/* What the namespace we are in tells about its past: interfaces and all protocols' counters. */
static size_t read_past(char text[NETS_PAST_MAX])
{
    static const char *const names[] = {"dev", "snmp", "snmp6"};
    size_t used = 0;
    for (size_t i = 0; i < COUNT(names); i++) {
        char path[32];
        snprintf(path, sizeof path, "/proc/self/net/%s", names[i]);
        OWN(fd) int file = open(path, O_RDONLY | O_CLOEXEC);
        if (file < 0)
            continue; /* no IPv6 in this kernel */
        ssize_t got = fd_read_all(file, text + used, NETS_PAST_MAX - used);
        if (got < 0 || used + (size_t)got == NETS_PAST_MAX)
            return 0;
        used += (size_t)got;
    }
    return used;
}

/* Abstract names: their sockets could wait in one another's queues for the kernel's garbage
 * collection. Ours have none. */
static bool has_names(void)
{
    char text[4096];
    OWN(fd) int file = open("/proc/self/net/unix", O_RDONLY | O_CLOEXEC);
    ssize_t got = file < 0 ? -1 : fd_read_all(file, text, sizeof text);
    return got < 0 || got == sizeof text || memchr(text, '@', (size_t)got);
}

static bool is_as_new(const struct nets *nets)
{
    static char past[NETS_PAST_MAX];
    return nets->new_past_size && read_past(past) == nets->new_past_size &&
           memcmp(past, nets->new_past, nets->new_past_size) == 0 && !has_names();
}

static struct net *net_make(struct nets *nets, struct err *err)
{
    if (unshare(CLONE_NEWNET) < 0) {
        if (errno == ENOSPC)
            err_set(err, ERR_CAPACITY,
                    "no more network namespaces for this user (user.max_net_namespaces)");
        else
            err_errno(err, "creating a network namespace");
        return NULL;
    }
    struct net *net = mem_zero(sizeof *net);
    net->inlet = net->resolver = -1;
    net->space = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
    if (net->space < 0) {
        err_errno(err, "/proc/self/ns/net");
        net_free(net);
        return NULL;
    }
    open_low_ports();
    if (loopback_up(err) < 0 || open_sockets(net, err) < 0) {
        net_free(net);
        return NULL;
    }
    if (!nets->new_past_size)
        nets->new_past_size = read_past(nets->new_past);
    return net;
}

struct net *net_take(struct nets *nets, struct err *err)
{
    while (!list_empty(&nets->idle)) {
        struct net *net = LIST_OF(nets->idle.next, struct net, node);
        list_remove(&net->node);
        nets->idle_count--;
        if (setns(net->space, CLONE_NEWNET) == 0)
            return net;
        net_free(net);
    }
    return net_make(nets, err);
}

void net_give(struct nets *nets, struct net *net)
{
    fd_close(&net->inlet); /* others may hold copies: the next one has sockets of its own */
    fd_close(&net->resolver);
    if (nets->idle_count >= IDLE_MAX || setns(net->space, CLONE_NEWNET) < 0 || !is_as_new(nets) ||
        open_sockets(net, NULL) < 0) {
        net_free(net);
        return;
    }
    list_append(&nets->idle, &net->node);
    nets->idle_count++;
}

bool nets_refill(struct nets *nets, unsigned want)
{
    if (nets->idle_count >= want)
        return false;
    struct net *net = net_make(nets, NULL);
    if (!net)
        return false;
    list_append(&nets->idle, &net->node);
    nets->idle_count++;
    return true;
}
