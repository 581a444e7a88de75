/* cgroups.h - memory, pids and cpu limits, by whichever kind of control groups the machine has.
 *
 *   v2      one tree with controllers: memory.max, memory.swap.max, pids.max, cpu.max
 *   v1      one tree per controller: memory.limit_in_bytes, pids.max, cpu.cfs_quota_us
 *   hybrid  v1 controllers and a v2 tree without any: used like v1
 *
 * A leaf is one group per tree with the same name. Leaves are kept for re-use: making and removing
 * one is slow. A sandbox's first process is born into it (v2) or joins by writing to descriptors
 * the keeper opened (v1). */
#ifndef KEEPER_CGROUPS_H
#define KEEPER_CGROUPS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/list.h"

struct err;

enum cgroup_controller { CGROUP_MEMORY, CGROUP_PIDS, CGROUP_CPU, CGROUP_CONTROLLERS };

struct cgroup_tree {
    char path[256]; /* our own group in it, under which leaves are made; "": none */
    bool v2;
    unsigned controllers; /* bits of enum cgroup_controller */
};
#define CGROUP_TREES_MAX 4

struct cgroups {
    struct cgroup_tree trees[CGROUP_TREES_MAX];
    unsigned tree_count;
    unsigned controllers; /* all that can be had */
    char mode[16];        /* "v2", "v1", "hybrid", "none" */
    char reason[256];     /* why something is missing, for people */
    char name[64];        /* of our own group: "postern-<home>-<pid>-<start>" */
    uint32_t next;
    struct list idle; /* leaves for re-use */
    unsigned idle_count;
};

struct cgroup_leaf {
    struct list node;
    uint32_t number;
    int into;                   /* v2: the group's directory, to be born into */
    int join[CGROUP_TREES_MAX]; /* v1: cgroup.procs, opened for writing; -1: not joined */
    uint64_t memory_max, oom_before, oom_last; /* kills before this tenant, and when last asked */
    uint32_t pids_max, cpu_millis;
};

struct cgroup_limits {
    uint64_t memory_bytes_max;
    uint32_t pids_max, cpu_millis; /* 0: none */
};

/* Finds out what there is and makes our own group. Never fails: what is missing is in `reason`. */
void cgroups_start(struct cgroups *cgroups, const char *name);
/* The first process that is moved between v1 groups after a while waits for all processors to take
 * notice (10 to 20 ms). Starts that wait now, in a process of its own, which the caller reaps; 0:
 * none. */
pid_t cgroups_warm_up(const struct cgroups *cgroups);
void cgroups_stop(struct cgroups *cgroups); /* removes everything of ours */
/* Removes a group that a keeper left which is gone, as its state file names it. */
void cgroups_sweep(const char *path);
struct cgroup_leaf *cgroup_leaf_take(struct cgroups *cgroups, const struct cgroup_limits *limits,
                                     struct err *err);
/* Other limits for one that is in use. */
int cgroup_leaf_limit(struct cgroups *cgroups, struct cgroup_leaf *leaf,
                      const struct cgroup_limits *limits, struct err *err);
/* Its processes are gone. Keeps or removes it. */
void cgroup_leaf_give(struct cgroups *cgroups, struct cgroup_leaf *leaf);
uint64_t cgroup_leaf_oom_kills(struct cgroups *cgroups, struct cgroup_leaf *leaf);
/* Kills whatever is left in it, where the kernel can. */
void cgroup_leaf_kill(struct cgroups *cgroups, struct cgroup_leaf *leaf);
/* Makes a leaf ahead of time. Returns whether it did. */
bool cgroups_refill(struct cgroups *cgroups, unsigned want);

#endif
