/* nets.c - making, cleaning and keeping network namespaces.
 *
 * The keeper needs no network itself (unix sockets with paths do not care), so it simply stays in
 * whichever namespace it entered last; a sandbox's first process is born there.
 *
 * A namespace in which a sandbox lived is never used again: sockets in TIME_WAIT would keep ports
 * from the next one for a minute, and its counters would tell what the last one did. They are made
 * ahead, in idle moments, instead. Only one that nobody entered goes back to the shelf. */
#include "nets.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
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

static struct net *net_make(struct err *err)
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
    return net_make(err);
}

void net_give(struct nets *nets, struct net *net)
{
    fd_close(&net->inlet);
    fd_close(&net->resolver);
    if (nets->idle_count >= IDLE_MAX || setns(net->space, CLONE_NEWNET) < 0 ||
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
    struct net *net = net_make(NULL);
    if (!net)
        return false;
    list_append(&nets->idle, &net->node);
    nets->idle_count++;
    return true;
}
