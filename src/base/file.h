/* file.h - whole files and trees on the host. Paths here are ours, never a sandbox's. */
#ifndef BASE_FILE_H
#define BASE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "base/buf.h"

struct err;

/* Appends the file to `out`; fails with ERR_LIMIT past `bytes_max`. */
int file_read(const char *path, size_t bytes_max, struct buf *out, struct err *err);
/* Writes beside the target, syncs when asked, renames over it. */
int file_write(const char *path, struct str content, mode_t mode, bool sync, struct err *err);
int file_make_dirs(const char *path, mode_t mode, struct err *err); /* like mkdir -p */
/* Removes a tree without following links or crossing mounts. A missing path is success. */
int file_remove_tree(const char *path, struct err *err);
bool file_exists(const char *path);

#endif
