/* backend_command_layers.h - private to the command backend: layers, brought there once. */
#ifndef SANDBOX_BACKEND_COMMAND_LAYERS_H
#define SANDBOX_BACKEND_COMMAND_LAYERS_H

#include <stdbool.h>

#include "sandbox/backend_command_spec.h"

struct err;
struct loop;
struct process;
struct process_end;
struct command_layers;

/* What the backend does for it. */
struct command_layer_host {
    bool (*has)(void *owner, enum command_step step);
    struct process *(*start)(void *owner, enum command_step step, const char *dir, int input,
                             void (*on_end)(void *, const struct process_end *), void *context,
                             struct err *err);
    void (*describe)(void *owner, enum command_step step, const struct process_end *end,
                     struct err *err);
    const char *const *(*environment)(void *owner);
    const char *(*scratch_dir)(void *owner);
    void (*on_idle)(void *owner); /* something that was under way is over */
};
typedef void (*command_layer_done)(void *context, const struct err *err);

struct command_layers *command_layers_new(struct loop *loop, const struct command_layer_host *host,
                                          void *owner);
void command_layers_free(struct command_layers *layers); /* nothing is under way; NULL is fine */
/* on_done comes once, when the layer is there or cannot be brought there. */
void command_layers_need(struct command_layers *layers, const char *dir, command_layer_done on_done,
                         void *context);
void command_layers_forget(struct command_layers *layers, const void *context); /* no on_done */
/* It may have been removed there: look again before the next one. */
void command_layers_doubt(struct command_layers *layers, const char *dir);
bool command_layers_busy(const struct command_layers *layers);
void command_layers_stop(struct command_layers *layers); /* ends what is under way */
/* What names a layer's content: its folder, or the one above a folder called root. On the heap. */
char *command_layer_name(const char *dir);

#endif
