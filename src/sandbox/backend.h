/* backend.h - private to the sandbox room: what a backend must do. Start a sandbox with the
 * porter's frames attached, and destroy it; everything inside is the channel's work.
 *
 * To add a backend: write backend_<name>.c with a const descriptor and name it in sandbox.c.
 * Backends reached by a command line need no C at all: see backend_command.c and backends/ *.toml.
 */
#ifndef SANDBOX_BACKEND_H
#define SANDBOX_BACKEND_H

#include "sandbox/sandbox.h"

/* What creation yields. The receiver owns the descriptors. */
struct backend_link {
    char id[40];      /* "sb-..." chosen by the caller of create */
    int frames_in;    /* read porter frames here */
    int frames_out;   /* write porter frames here; may equal frames_in */
    int inlet;        /* listening socket of the inlet, or -1: carried as streams of frames */
    int resolver;     /* UDP socket bound to the sandbox's 127.0.0.1:53, or -1 */
    char facts[1024]; /* a JSON object for sandbox_facts() */
    bool pool_hit;
};

struct backend; /* one per lane and backend, starts every backend's own struct */

struct backend_class {
    const char *name;
    const char *summary;
    uint32_t layer_ms_max; /* creating takes this much longer when a layer must be brought there */
    /* `name` is the name asked for: one class may serve several (command: ssh, podman, ...). */
    struct backend *(*start)(struct loop *loop, const struct sandbox_options *options,
                             const char *name, struct err *err);
    void (*stop)(struct backend *backend, void (*on_stopped)(void *context), void *context);
    unsigned (*capabilities)(struct backend *backend);
    /* Exactly one on_created, later. `err` set: nothing was left behind. */
    void (*create)(struct backend *backend, const char *id, const struct sandbox_spec *spec,
                   void (*on_created)(void *context, struct backend_link *link,
                                      const struct err *err),
                   void *context);
    /* Also for an id whose create is pending (its on_created then comes with ERR_CANCELLED). */
    void (*destroy)(struct backend *backend, const char *id, sandbox_done on_done, void *context);
    /* The rest may be NULL when the capability is not declared. */
    void (*snapshot)(struct backend *backend, const char *id,
                     void (*on_done)(void *context, const char *layer_id, const struct err *err),
                     void *context);
    void (*drop_layer)(struct backend *backend, const char *layer_id);
    int (*pool)(struct backend *backend, const struct sandbox_spec *spec, uint32_t count,
                struct err *err);
    /* Was memory the reason the last processes were killed? Counts out-of-memory kills so far. */
    void (*oom_kills)(struct backend *backend, const char *id,
                      void (*on_done)(void *context, uint64_t count), void *context);
    void (*find)(struct backend *backend,
                 void (*on_done)(void *context, const struct sandbox_found *found, size_t count,
                                 const struct err *err),
                 void *context);
    /* Why did its frames end? Exactly one on_done, later and soon, before any on_done of a destroy;
     * `why` is NULL when nothing is known. May be NULL. */
    void (*explain)(struct backend *backend, const char *id,
                    void (*on_done)(void *context, const struct err *why), void *context);
    /* Takes over a sandbox that a former server left (see find): the same link as create. May be
     * NULL. */
    void (*adopt)(struct backend *backend, const char *id,
                  void (*on_created)(void *context, struct backend_link *link,
                                     const struct err *err),
                  void *context);
    /* The same for a layer. May be NULL. */
    void (*adopt_layer)(struct backend *backend, const char *layer_id, sandbox_done on_done,
                        void *context);
};

struct backend {
    const struct backend_class *class;
    struct loop *loop;
};

extern const struct backend_class backend_local;
extern const struct backend_class backend_command;

/* For tests: a further class in the registry, found before the others. */
void backend_register(const struct backend_class *class);

#endif
