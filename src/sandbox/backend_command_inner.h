/* backend_command_inner.h - what the files of the command backend share.
 *
 *     backend_command.c         places from their making to their end; the descriptor
 *     backend_command_step.c    one program of a place, started and understood
 *     backend_command_spec.c    the data file; backend_command_setup.c what it comes to here
 *     backend_command_layers.c  layers that are brought to the other machine once */
#ifndef SANDBOX_BACKEND_COMMAND_INNER_H
#define SANDBOX_BACKEND_COMMAND_INNER_H

#include "base/list.h"
#include "loop/loop.h"
#include "sandbox/backend.h"
#include "sandbox/backend_command_spec.h"

struct process;
struct process_end;

enum place_state {
    PLACE_PORTER,
    PLACE_LAYER,
    PLACE_CREATE,
    PLACE_LIVE,
    PLACE_ENDING,
    PLACE_DESTROY,
    PLACE_GONE, /* its memory stays until this tick is over */
};

struct command {
    struct backend base;
    struct command_setup setup;
    struct list places;
    size_t place_count;
    bool porter_there, porter_busy;
    struct process *porter_step; /* check or upload in flight */
    struct command_layers *layers;
    char *home;     /* of Postern: for what is packed */
    size_t errands; /* listings in flight */
    bool stopping;
    void (*on_stopped)(void *context);
    void *stop_context;
};

struct place {
    struct list link;
    struct command *command;
    char id[40];
    enum place_state state;
    /* What the sandbox asked for, as the words need it. */
    char *label, *image, *hostname, *layer, *layer_name;
    char memory[24], pids[16], cpus[24], disk[24];
    bool root_user;
    struct process *attach; /* the program that carries the frames */
    struct err attach_err;  /* how it ended */
    struct loop_timer timer;
    struct loop_timer explain_timer;
    void (*on_explained)(void *context, const struct err *why);
    void *explain_context;
    unsigned destroy_tries;
    struct err err; /* why create failed */
    void (*on_created)(void *context, struct backend_link *link, const struct err *err);
    void *create_context;
    sandbox_done on_destroyed;
    void *destroy_context;
    struct process *step; /* create or destroy in flight */
    bool begun;           /* something may exist there */
    bool trusted;         /* that the porter is there was remembered, not checked */
};

/* Starts the program of a step; `place` may be NULL (check, upload, list). `pipe` becomes its
 * standard input and, for [attach], its output, unless -1. */
struct process *command_step_start(struct command *command, const struct place *place,
                                   enum command_step step, int pipe, uint32_t timeout_ms,
                                   void (*on_end)(void *, const struct process_end *),
                                   void *context, struct err *err);
bool command_step_succeeded(const struct process_end *end);
/* What a failed step means: the file says which exit codes are worth another try. */
void command_step_error(const struct command *command, enum command_step step,
                        const struct process_end *end, struct err *err);

#endif
