/* mounts.h - the kernel's mount calls by descriptor, as short verbs. A mount is a descriptor until
 * it is attached; nothing here takes a path that a sandbox controls: targets are resolved below a
 * given directory without following links. */
#ifndef KEEPER_MOUNTS_H
#define KEEPER_MOUNTS_H

#include <stdbool.h>
#include <stdint.h>

struct err;

struct mount_option {
    const char *key, *value; /* value NULL: a flag */
};
/* A new filesystem as a detached mount; `attributes` are MOUNT_ATTR_*. */
int mount_make(const char *type, const struct mount_option *options, unsigned attributes,
               struct err *err);
/* A detached copy of what is mounted at `path` below `dir`. */
int mount_clone(int dir, const char *path, bool recursive, struct err *err);
/* Sets MOUNT_ATTR_* on a detached mount; userns >= 0 also shifts owners by that namespace's map.
 * Fails with ERR_UNSUPPORTED when the filesystem cannot shift. */
int mount_shape(int mount, bool recursive, uint64_t attributes, int userns, struct err *err);
/* Attaches below `dir`. The target must exist there and be reached without any link. */
int mount_attach(int mount, int dir, const char *path, struct err *err);
/* Leaves the keeper's own mount namespace (private already) without kernel filesystems that neither
 * it nor a sandbox needs: every sandbox is born with a copy of it. `keep` says which paths stay. */
void mounts_prune(bool (*keep)(const char *path, void *context), void *context);
/* Opens O_PATH below `dir`, following no link and never leaving it. -1 with errno. */
int mount_open_inside(int dir, const char *path, uint64_t flags);

#endif
