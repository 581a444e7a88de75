/* fd.h - descriptors: whole reads and writes, flags, and passing them over unix sockets. */
#ifndef BASE_FD_H
#define BASE_FD_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "base/str.h"

struct err;

void fd_close(int *fd); /* and sets -1 */
int fd_write_all(int fd, const void *data, size_t size);
/* Reads exactly `size` bytes; returns bytes read (less only at end of file) or -1. */
ssize_t fd_read_all(int fd, void *data, size_t size);
int fd_nonblocking(int fd, bool on);
int fd_cloexec(int fd, bool on);
/* One datagram or stream chunk with up to FD_PASS_MAX descriptors. */
#define FD_PASS_MAX 96
ssize_t fd_send(int socket, const void *data, size_t size, const int *fds, size_t fd_count);
/* *fd_count: room in, received out. Received descriptors are close-on-exec. */
ssize_t fd_receive(int socket, void *data, size_t size, int *fds, size_t *fd_count);
/* As many open at once as this process may ask for: shells leave 1024, which is some hundred
 * rollouts. What it is now; 0: not known. */
size_t fd_raise_limit(void);

#endif
