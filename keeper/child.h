/* child.h - what the first process of a sandbox does between birth and becoming the porter. */
#ifndef KEEPER_CHILD_H
#define KEEPER_CHILD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "cgroups.h"
#include "stage.h"

#define CHILD_ARGS_MAX 24576
#define CHILD_FDS_MAX 96
#define CHILD_TREES_MAX (1 + STAGE_TREES_MAX + 16)

/* One overlay, or one read-only bind mount (`bind`, one lower). Tree 0 is the root. */
struct child_tree {
    char name[16];
    uint8_t lower_count;
    bool upper; /* writable */
    bool bind;
};

/* Sent to the child when its user ids are mapped, up to the end of `args` that is used; the lowers
 * of all trees come along as descriptors of detached mounts, topmost first, then the mount of the
 * upper layer when that is on disk. */
struct child_plan {
    struct child_tree trees[CHILD_TREES_MAX];
    uint32_t tree_count;
    uint64_t disk_bytes_max;
    uint64_t inodes_max;
    bool upper_on_disk;
    bool single; /* one id only: it is mapped already */
    bool root_user;
    bool seccomp;
    char hostname[65];
    uint32_t arg_count;
    uint32_t args_size;
    char args[CHILD_ARGS_MAX]; /* for the porter: strings ended by NUL */
};

/* The child's only message: err.kind 0 with the upper layer's mount as descriptor, or what failed.
 */
struct child_report {
    struct err err;
};

/* What a child inherits; everything else is closed. */
struct child_start {
    int setup;   /* SEQPACKET: plan in, report out; closed by becoming the porter */
    int frames;  /* the porter's end */
    int control; /* likewise: new connections for frames come here */
    int porter;  /* its program */
    int filter;  /* the seccomp program */
    int null;
    int join[CGROUP_TREES_MAX];
    unsigned join_count;
    bool ids_early; /* one byte on `setup` says that ids are mapped, before there is a plan */
};

_Noreturn void child_run(const struct child_start *start);

/* Capabilities that commands of uid 0 keep where root was asked for: a mask (docs/isolation.md). */
uint64_t child_root_capabilities(void);

#endif
