/* nets.h - network namespaces with nothing in them but a loopback, the inlet's listening socket and
 * the resolver's socket. The dearest part of a sandbox, so they are made ahead of time and used
 * again.
 *
 * They belong to the keeper's user namespace: root inside a sandbox has no power over its network.
 */
#ifndef KEEPER_NETS_H
#define KEEPER_NETS_H

#include <stdbool.h>

#include "base/list.h"

struct err;

struct net {
    struct list node;
    int space;    /* the namespace */
    int inlet;    /* TCP, listening on 127.0.0.1:13131 */
    int resolver; /* UDP, bound to 127.0.0.1:53 */
};

struct nets {
    struct list idle;
    unsigned idle_count;
};

void nets_init(struct nets *nets);
void nets_deinit(struct nets *nets);
/* Enters the namespace it returns: what is cloned next lives there. */
struct net *net_take(struct nets *nets, struct err *err);
/* Nobody entered it. It is kept for the next, or dropped. */
void net_give(struct nets *nets, struct net *net);
void net_free(struct net *net);
/* Makes one ahead of time. Returns whether it did. */
bool nets_refill(struct nets *nets, unsigned want);

#endif
