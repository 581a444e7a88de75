/* roots.h - private to the files that put roots together: roots.c and pristine.c. */
#ifndef KEEPER_ROOTS_H
#define KEEPER_ROOTS_H

#include "keeper.h"

struct planner {
    struct keeper *keeper;
    const struct shape *shape;
    int userns;
    struct child_plan *plan;
    struct lowers *lowers;
    const char *dir; /* where a dir: or image: root lies; NULL: the host's */
};

/* Layers with all they stand on, lowest first, each once. Host directories are NULL with a path. */
struct stack {
    struct layer *layers[KEEPER_LAYERS_MAX];
    const char *dirs[KEEPER_LAYERS_MAX];
    size_t count;
};

/* A copy of the mount at `path` below `dir` becomes the next lower. */
int roots_add_lower(struct planner *planner, int dir, const char *path, bool recursive,
                    const char *what, struct err *err);

/* So many layers a pristine directory shows; never the topmost. */
size_t pristine_layers(const struct shape *shape, const struct stack *stack);
/* pristine.c: first of all lowers of tree 0, and last of all trees. Nothing when the shape asks for
 * none. */
int pristine_cover(struct planner *planner, const struct stack *stack, struct err *err);
int pristine_trees(struct planner *planner, const struct stack *stack, struct err *err);

#endif
