/* nets.h - network namespaces with nothing in them but a loopback, the inlet's listening socket and
 * the resolver's socket. The dearest part of a sandbox, so they are made ahead of time, and
 * used again by the next when the last did not use them.
 *
 * They belong to the keeper's user namespace: root inside a sandbox has no power over its network.
 */
#ifndef KEEPER_NETS_H
#define KEEPER_NETS_H

#include <stdbool.h>
#include <stddef.h>

#include "base/list.h"

struct err;

#define NETS_PAST_MAX 16384

struct net {
    struct list node;
    int space;    /* the namespace */
    int inlet;    /* TCP, listening on 127.0.0.1:13131 */
    int resolver; /* UDP, bound to 127.0.0.1:53 */
};

struct nets {
    struct list idle;
    unsigned idle_count;
    char new_past[NETS_PAST_MAX]; /* the counters of one that nobody used */
    size_t new_past_size;
};

void nets_init(struct nets *nets);
void nets_deinit(struct nets *nets);
/* Enters the namespace it returns: what is cloned next lives there. */
struct net *net_take(struct nets *nets, struct err *err);
/* Nobody is in it any more. It is kept for the next when it is as new, or dropped. */
void net_give(struct nets *nets, struct net *net);
void net_free(struct net *net);
/* Makes one ahead of time. Returns whether it did. */
bool nets_refill(struct nets *nets, unsigned want);

#endif
