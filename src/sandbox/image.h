/* image.h - private to the sandbox room: importing container images. image.c is the way from an
 * archive to $home/images/NAME, image_layout.c reads what an image says about itself,
 * image_unpack.c turns layers into files without ever leaving the directory it was given. */
#ifndef SANDBOX_IMAGE_H
#define SANDBOX_IMAGE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/buf.h"

struct err;

#define IMAGE_LAYERS_MAX 512

/* --- image_layout.c: an OCI layout or a `docker save` folder --- */
struct image_layout {
    struct arena arena;
    char *layers[IMAGE_LAYERS_MAX];  /* paths below the folder, lowest first */
    char *digests[IMAGE_LAYERS_MAX]; /* "sha256:..." or NULL: not told */
    size_t layer_count;
    struct buf config; /* the image's config as JSON */
};
void image_layout_deinit(struct image_layout *layout);
int image_layout_read(struct image_layout *layout, int folder, struct err *err);

/* --- image_unpack.c --- */
struct image_budget {
    uint64_t bytes_left, entries_left;
    uint64_t bytes, entries, skipped; /* what it became */
};
/* Opens a file below `folder`: a link on the way is followed only inside. */
int image_open_inside(int folder, const char *path, int flags);
/* Files of a plain archive, for the outer one: no whiteouts, no owners. */
int image_unpack_plain(int archive, int folder, struct image_budget *budget, struct err *err);
/* One layer on top of what is in `root`: removes what it hides, then adds what it has. `digest` is
 * checked when it is not NULL. */
int image_unpack_layer(int archive, const char *digest, int root, struct image_budget *budget,
                       struct err *err);

#endif
