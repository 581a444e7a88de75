/* own_loopback.h - a loopback of this test's own: nobody else takes its ports, or is in the way on
 * one of them. Where there can be none it shares the machine's. */
#ifndef OWN_LOOPBACK_H
#define OWN_LOOPBACK_H

#include <arpa/inet.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "base/fd.h"

static inline void own_loopback(void)
{
    if (unshare(CLONE_NEWNET) < 0)
        return;
    OWN(fd) int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    struct ifreq request = {.ifr_name = "lo", .ifr_flags = IFF_UP};
    (void)ioctl(fd, SIOCSIFFLAGS, &request);
}

/* A port that is still free when somebody comes to listen there. */
static inline uint16_t own_port(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    own_loopback();
    OWN(fd) int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(fd, (struct sockaddr *)&address, size) < 0 ||
        getsockname(fd, (struct sockaddr *)&address, &size) < 0)
        abort();
    return ntohs(address.sin_port);
}

#endif
