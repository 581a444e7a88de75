/* filter.h - the system calls a command in a sandbox may make, as a compiled seccomp program.
 *
 * An allowlist: what is not named is answered with "no such call" (ENOSYS), what is known to be
 * dangerous with "not permitted" (EPERM), another architecture's calls kill the process.
 * docs/isolation.md lists it. Compiled once when the keeper starts. */
#ifndef KEEPER_FILTER_H
#define KEEPER_FILTER_H

#include "base/buf.h"

struct err;

/* Appends the program: an array of struct sock_filter. */
int filter_compile(struct buf *out, struct err *err);
/* The program in a sealed memfd. */
int filter_open(struct err *err);

#endif
