/* stage.h - the keeper's private place: a small filesystem over /dev of its own mount namespace,
 * with the parts every sandbox is put together from. Sandboxes are born with a copy of that mount
 * namespace and leave it before anything of theirs runs.
 *
 *     skel    lower layer of root "host": etc, home, tmp, var, ... and nothing of the host's own
 *     graft   lower layer above a directory or image: resolv.conf, hosts, home, work; and proc,
 * dev, sys, tmp, etc as real directories, whatever an image has there dev     null zero full random
 * urandom tty, ready to be mounted l/0.. u n   places to mount layers, the upper layer and the new
 * root */
#ifndef KEEPER_STAGE_H
#define KEEPER_STAGE_H

#include <stdbool.h>
#include <stddef.h>

struct err;
struct ids;

#define STAGE "/dev"
#define STAGE_LOWERS_MAX 96
#define STAGE_TREES_MAX 8

/* A directory of the host's root that sandboxes see: usr, and bin, lib, ... where they are not
 * links. */
struct stage_tree {
    char name[16];
};

struct stage {
    struct stage_tree trees[STAGE_TREES_MAX];
    size_t tree_count;
    bool dev_bound; /* device nodes are bind mounts: copy the tree with its mounts */
    int null;
    int dir; /* the stage itself */
};

/* In a private mount namespace of the keeper's own. */
int stage_build(struct stage *stage, const struct ids *ids, struct err *err);

#endif
