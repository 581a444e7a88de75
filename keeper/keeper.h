/* keeper.h - private to the keeper: the one object of the program and the lives it keeps.
 *
 * One thread, one epoll, one event at a time; nothing here blocks for longer than a mount takes. */
#ifndef KEEPER_H
#define KEEPER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/id.h"
#include "base/list.h"
#include "cgroups.h"
#include "child.h"
#include "ids.h"
#include "nets.h"
#include "sandbox/keeper_protocol.h"
#include "stage.h"

struct keeper;
struct sandbox;

/* --- what a sandbox looks like -----------------------------------------------------------------
 */
enum isolation { ISOLATION_FULL, ISOLATION_NO_LIMITS, ISOLATION_NO_SECCOMP, ISOLATIONS };

struct shape {
    char *root;                      /* "host", "dir:/...", "image:NAME" */
    char *layers[KEEPER_LAYERS_MAX]; /* lowest first: "ly-..." or a directory */
    size_t layer_count;
    char *pristine[KEEPER_PRISTINE_MAX]; /* names below "/" that show only the lowest layers */
    size_t pristine_count;
    uint32_t pristine_layers; /* so many of them, with all they stand on */
    char *hostname;
    uint64_t memory_bytes_max, disk_bytes_max;
    uint32_t pids_max, cpu_millis;
    enum isolation isolation;
    bool root_user, upper_on_disk;
};
struct shape *shape_read(struct str packet, struct err *err);
void shape_free(struct shape *shape);
struct shape *shape_copy(const struct shape *shape);
bool shape_equal(const struct shape *a, const struct shape *b);
const char *isolation_name(enum isolation isolation);

/* --- layers: what snapshots left ----------------------------------------------------------------
 */
struct layer {
    struct list node;
    char id[ID_MAX];
    char *dir; /* where it can be reached: on the stage (tmpfs), or on disk */
    bool on_stage;
    unsigned trees;                           /* bits: which r<i> it has */
    struct layer *parents[KEEPER_LAYERS_MAX]; /* lowest first */
    size_t parent_count;
    unsigned users; /* sandboxes and layers that stand on it */
    bool dropped;
    char *label;    /* of the sandbox it was */
    uint64_t owner; /* connection number */
    uint64_t orphan_at_ms;
};
/* The upper layer becomes a layer others can stand on. Takes its mount or directory. */
struct layer *layer_make(struct keeper *keeper, struct sandbox *sandbox, struct err *err);
struct layer *layer_find(struct keeper *keeper, const char *id);
void layer_hold(struct layer *layer);
void layer_let_go(struct keeper *keeper, struct layer *layer);
void layer_drop(struct keeper *keeper, struct layer *layer);

/* --- roots: layers as mounts --------------------------------------------------------------------
 */
struct lowers {
    int fds[CHILD_FDS_MAX];
    size_t count;
};
/* Fills in the plan's trees and opens their lowers, owners shifted into `userns` where needed.
 * `used` gets the layers it stands on, held. */
int roots_plan(struct keeper *keeper, const struct shape *shape, int userns,
               struct child_plan *plan, struct lowers *lowers,
               struct layer *used[KEEPER_LAYERS_MAX], size_t *used_count, struct err *err);
/* Checks what can be checked without a sandbox. */
int roots_check(struct keeper *keeper, const struct shape *shape, struct err *err);
/* Environment, directory, user and limits as arguments for the porter. */
int roots_arguments(struct keeper *keeper, const struct shape *shape, struct child_plan *plan,
                    struct err *err);

/* --- one sandbox ---------------------------------------------------------------------------------
 */
enum life { LIFE_EMBRYO, LIFE_STARTING, LIFE_READY, LIFE_DYING, LIFE_CLEANING, LIFE_GONE };

struct request { /* an answer somebody waits for */
    uint64_t connection;
    uint64_t seq;
    bool wanted;
};

struct watch {
    int fd;
    void (*on_ready)(struct keeper *keeper, void *context, uint32_t events);
    void *context;
};

struct sandbox {
    struct list node;
    char id[ID_MAX];
    char *label;
    struct shape *shape; /* NULL: embryo */
    enum life life;
    pid_t pid;
    int pidfd, setup, control, upper, slot;
    int frames; /* until somebody has been given it */
    struct watch pid_watch, setup_watch;
    struct net *net;
    struct cgroup_leaf *leaf;
    char *disk_dir;
    struct layer *used[KEEPER_LAYERS_MAX];
    size_t used_count;
    unsigned trees; /* bits: writable ones */
    bool reported;  /* the child said it is ready */
    bool pooled;    /* nobody's yet */
    bool pool_hit;
    uint64_t born_ms, deadline_ms, die_at_ms, orphan_at_ms;
    uint64_t start_us;
    uint64_t oom_kills; /* when gone */
    uint64_t owner;     /* connection number; 0: none */
    struct request create, destroy, snapshot;
    struct err err;
};
/* Returns the sandbox in LIFE_STARTING; its create request is answered later. */
struct sandbox *sandbox_start(struct keeper *keeper, const struct shape *shape, const char *id,
                              struct err *err);
void sandbox_kill(struct keeper *keeper, struct sandbox *sandbox);
void sandbox_free(struct keeper *keeper, struct sandbox *sandbox); /* only when LIFE_GONE */
/* A new connection to its porter, who drops the one it had. Its end for a server goes to
 * `frames`. */
int sandbox_reconnect(struct sandbox *sandbox, struct err *err);
struct sandbox *sandbox_find(struct keeper *keeper, const char *id);
/* First processes made ahead of time: one step; false: there are enough, or it failed. */
bool embryos_refill(struct keeper *keeper, unsigned want);
void embryos_drop(struct keeper *keeper);
/* Deadlines: starting, dying, life, orphans. */
void sandboxes_tick(struct keeper *keeper, uint64_t now_ms);
void sandbox_facts(struct keeper *keeper, const struct sandbox *sandbox, struct buf *out);

/* --- pools
 * ---------------------------------------------------------------------------------------- */
struct pool {
    struct list node;
    struct shape *shape;
    uint32_t want;
    uint64_t owner;
    uint64_t retry_at_ms; /* after a failure */
};
int pool_set(struct keeper *keeper, const struct shape *shape, uint32_t count, uint64_t owner,
             struct err *err);
struct sandbox *pool_take(struct keeper *keeper, const struct shape *shape);
void pool_failed(struct keeper *keeper, const struct shape *shape, const struct err *err);
bool pools_refill(struct keeper *keeper); /* one step; false: nothing to do */
void pools_drop_owner(struct keeper *keeper, uint64_t owner);

/* --- connections
 * ---------------------------------------------------------------------------------- */
int server_start(struct keeper *keeper, struct err *err);
void server_stop(struct keeper *keeper);
bool server_adopt_socket(struct keeper *keeper, int fd); /* a connected one; taken */
/* Answers, when the connection is still there. `err` NULL or kind 0: success with `fields`. */
/* Does nothing when nobody waits. */
void server_answer(struct keeper *keeper, struct request *request, const struct buf *fields,
                   const int *fds, size_t fd_count, const struct err *err);
void server_answer_created(struct keeper *keeper, struct sandbox *sandbox);
bool server_knows(struct keeper *keeper, uint64_t connection);
void server_tick(struct keeper *keeper, uint64_t now_ms);

/* --- the program
 * ----------------------------------------------------------------------------------- */
struct keeper_options {
    const char *home, *state_dir, *porter;
    int listen_fd;    /* shared keeper: listens here */
    int private_fd;   /* private keeper: the one connection; -1: shared */
    uint32_t idle_ms; /* how long orphans are kept */
};

#define KEEPER_COVERS_MAX 256

struct keeper {
    struct keeper_options options;
    struct ids ids;
    struct stage stage;
    struct cgroups cgroups;
    struct nets nets;
    int porter, filter, epoll;
    char name[64]; /* "postern-<home hash>-<pid>-<random>" */
    char *state_path;
    int state;         /* locked while we live */
    struct err broken; /* why nothing can be created */
    struct list sandboxes, layers, pools, connections;
    size_t live_count, embryo_count, starting_count; /* live: all with a process */
    unsigned embryos_wanted;
    uint64_t next_connection;
    uint64_t empty_since_ms;
    uint64_t created_count, layer_count;
    char *covers[KEEPER_COVERS_MAX]; /* c0, c1, ... on the stage: what each holds (pristine.c) */
    size_t cover_count;
    struct watch listen_watch;
    pid_t warm_up; /* see cgroups.h */
    bool ending;
};

int keeper_prepare(struct keeper *keeper, struct err *err);
void keeper_run(struct keeper *keeper);
int keeper_watch(struct keeper *keeper, struct watch *watch, uint32_t events, struct err *err);
void keeper_unwatch(struct keeper *keeper, struct watch *watch);
/* Removes what keepers of this user left that are gone, also those of other homes: control groups,
 * directories on disk, state files. */
void keeper_sweep(const char *state_dir);
int doctor_run(const struct keeper_options *options);

#endif
