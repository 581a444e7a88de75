/* internal.h - private to the runtime room: the machine everything but `exec` runs on.
 *
 *     places.c     where programs and data are
 *     machine.c    the rooms, built and taken down in order
 *     leftovers.c  what a killed predecessor left; resume.c is what of it goes on
 *     batch.c      postern run: a batch of rollouts to its end
 *     serve.c      postern serve; submit.c takes rollouts for it
 *     retention.c  what is kept for how long
 *     exec.c       postern exec and shell: no lanes, no store, one sandbox
 *     stdio.c      this process's standard streams joined to a job
 *     ask.c        smaller questions */
#ifndef RUNTIME_INTERNAL_H
#define RUNTIME_INTERNAL_H

#include "agent/agent.h"
#include "base/map.h"
#include "config/config.h"
#include "gateway/gateway.h"
#include "loop/loop.h"
#include "rollout/rollout.h"
#include "runtime/runtime.h"
#include "sandbox/sandbox.h"
#include "store/store.h"
#include "task/task.h"

#include <pthread.h>

struct machine_lane {
    struct machine *machine;
    struct loop *loop;
    struct sandboxes *sandboxes;
    struct gateway *gateway;
    struct err err;
    size_t destroying;
};

struct machine {
    const struct config *config;
    struct loop *loop; /* control: the thread that opened the machine */
    struct loop_heap *heap;
    struct lanes *lanes;
    struct store *store;
    struct machine_lane *rooms;
    size_t room_count;
    struct rollouts *rollouts;
    struct gate *gate; /* on the control loop; NULL: none */
    struct loop_signal signal;
    void (*on_signal)(void *context, int number);
    void (*on_note)(void *context, const char *text);
    void *context;
    char owner[ID_MAX];
    int owner_fd; /* locked while this process lives */
    char *owner_path;
    /* Goes on with a rollout of a dead server; NULL: this process does not. */
    int (*resume)(void *context, struct rollout_left *left, struct err *err);
    struct map claimed; /* sandboxes, layers and rollouts that are gone on with: not swept */
    pthread_mutex_t claimed_lock;
    bool callbacks_booked; /* somebody wants to be told of rollouts that were booked as over */
    size_t closing_lanes;
    bool closing;
};

/* Builds everything. The caller then runs machine->loop. `parallel_max` 0: as configured. */
struct machine_options {
    uint32_t parallel_max;
    bool gate;                                        /* calls may be held for a trainer */
    void (*on_signal)(void *context, int number);     /* SIGINT, SIGTERM */
    void (*on_note)(void *context, const char *text); /* may be NULL */
    int (*resume)(void *context, struct rollout_left *left, struct err *err); /* may be NULL */
    void *context;
};
struct machine *machine_open(const struct config *config, const struct machine_options *options,
                             struct err *err);
/* When nothing can go wrong any more: clears what a dead predecessor left. Before the first
 * rollout. */
void machine_begin(struct machine *machine);
/* Ends the rollouts, then the sandboxes, then stops the control loop. After loop_run():
 * machine_free(). */
void machine_close(struct machine *machine);
void machine_free(struct machine *machine); /* NULL and half-built ones are fine */

struct sandbox_options machine_sandbox_options(const struct config *config);
const struct agent_dirs *machine_agent_dirs(void);
/* `key_env` NULL: POSTERN_MODEL_KEY, when it is set. */
struct model *machine_model(const struct config *config, const char *spec, const char *key_env,
                            struct err *err);

/* --- leftovers.c */
int leftovers_own(struct machine *machine, struct err *err); /* takes the lock others look at */
/* Rollouts of dead processes: gone on with where this process does, else infra_failed. */
void leftovers_mark(struct machine *machine);
void leftovers_sweep(struct machine *machine); /* sandboxes of dead processes: destroyed */

/* --- resume.c */
bool leftovers_is_dead(const char *home, const char *id); /* the owner of that rollout */
/* Goes on with what is in <home>/live and nobody's. Returns how many; `forgotten` gets the ids
 * of those that never were, whose rows may still be there. */
size_t leftovers_resume(struct machine *machine, struct map *forgotten);
bool leftovers_is_live(const struct machine *machine, const char *id); /* it is in <home>/live */
/* It is over: as its result says, else as infra_failed for this cause. */
void leftovers_book(struct machine *machine, const struct rollout_left *left, const char *cause);
void leftovers_claim(struct machine *machine, const char *what);

/* --- submit.c: rollouts asked for over the control listener */
struct submitter {
    struct machine *machine;
    struct map models;       /* by spec */
    struct map capabilities; /* unsigned, by backend */
    struct map recent;       /* specs and tasks that were just read */
};
struct api_receipt;
struct api_submit;
int submitter_submit(void *context, const struct api_submit *orders, size_t count,
                     struct api_receipt *receipt, struct err *err);
int submitter_resume(void *context, struct rollout_left *left, struct err *err);
int submitter_cancel(void *context, const char *id, const char *why, struct err *err);
void submitter_deinit(struct submitter *submitter);

/* --- retention.c: in a server, now and then */
struct retention;
struct retention *retention_start(struct machine *machine);
/* on_stopped comes when nothing of it is under way any more, perhaps from inside. */
void retention_stop(struct retention *retention, void (*on_stopped)(void *context), void *context);

/* --- places.c */
const char *const *places_backend_dirs(size_t *count);

/* --- stdio.c: standard input to a job, its output to ours, with back-pressure both ways */
struct stdio;
struct stdio *stdio_new(struct loop *loop, bool terminal, void (*on_broken)(void *context),
                        void *context);
void stdio_attach(struct stdio *stdio, struct sandbox_job *job); /* starts reading input */
void stdio_output(struct stdio *stdio, int stream, struct str data);
void stdio_drained(struct stdio *stdio); /* the job's input queue ran empty */
/* on_flushed when all output is written (or cannot be). The job is over. */
void stdio_finish(struct stdio *stdio, void (*on_flushed)(void *context));
void stdio_free(struct stdio *stdio); /* restores the terminal */
bool stdio_size(uint16_t *rows, uint16_t *columns);

#endif
