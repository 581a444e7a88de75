/* tree_read.c - walks a directory into tree records, a slice at a time.
 *
 * The walk holds one open directory per level and opens everything relative to it without following
 * links, so that a tree that changes meanwhile can make the copy odd but never lead it elsewhere.
 * What vanishes between listing and opening is left out; what cannot be read fails the walk with
 * its name. */
#include "wire/wire.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/err.h"
#include "base/fd.h"
#include "base/mem.h"

#define DEPTH_MAX 512

struct level {
    struct level *up;
    DIR *dir;
    size_t path_size; /* of this directory in reader->path */
    struct stat stat;
};

struct wire_tree_reader {
    struct level *level;
    unsigned depth;
    struct buf path;
    int file;
    uint64_t file_left;
    uint64_t entries;
    bool done;
};

static struct wire_entry entry_of(const struct wire_tree_reader *reader, uint8_t kind,
                                  const struct stat *stat)
{
    return (struct wire_entry){.kind = kind,
                               .mode = stat->st_mode & 07777,
                               .mtime_s = stat->st_mtim.tv_sec,
                               .mtime_ns = (uint32_t)stat->st_mtim.tv_nsec,
                               .path = buf_str(&reader->path)};
}

/* Takes the descriptor. */
static int enter(struct wire_tree_reader *reader, int fd, struct buf *out, struct err *err)
{
    struct level *level = mem_zero(sizeof *level);
    if (reader->depth == DEPTH_MAX || fstat(fd, &level->stat) < 0 ||
        !(level->dir = fdopendir(fd))) {
        int result = reader->depth == DEPTH_MAX
                         ? err_set(err, ERR_LIMIT, "directories nested deeper than %d", DEPTH_MAX)
                         : err_errno(err, "directory '%s'", buf_text(&reader->path));
        fd_close(&fd);
        free(level);
        return result;
    }
    level->path_size = reader->path.size;
    level->up = reader->level;
    reader->level = level;
    reader->depth++;
    reader->entries++;
    if (out) {
        struct wire_entry entry = entry_of(reader, WIRE_ENTRY_ENTER, &level->stat);
        wire_entry_add(out, &entry);
    }
    return 0;
}

static void pop(struct wire_tree_reader *reader)
{
    struct level *level = reader->level;
    reader->level = level->up;
    reader->depth--;
    (void)closedir(level->dir);
    free(level);
}

static void leave(struct wire_tree_reader *reader, struct buf *out)
{
    reader->path.size = reader->level->path_size;
    struct wire_entry entry = entry_of(reader, WIRE_ENTRY_LEAVE, &reader->level->stat);
    wire_entry_add(out, &entry);
    pop(reader);
    if (reader->level)
        return;
    wire_entry_add(out, &(struct wire_entry){.kind = WIRE_ENTRY_END});
    reader->done = true;
}

static int add_link(struct wire_tree_reader *reader, int dir, const char *name,
                    const struct stat *stat, struct buf *out, struct err *err)
{
    char target[WIRE_PATH_MAX + 1];
    ssize_t size = readlinkat(dir, name, target, sizeof target);
    if (size < 0 && errno == ENOENT)
        return 0;
    if (size <= 0 || size > (ssize_t)WIRE_PATH_MAX)
        return err_errno(err, "link '%s'", buf_text(&reader->path));
    struct wire_entry entry = entry_of(reader, WIRE_ENTRY_LINK, stat);
    entry.link = str_make(target, (size_t)size);
    wire_entry_add(out, &entry);
    reader->entries++;
    return 0;
}

static int add_other(struct wire_tree_reader *reader, const struct stat *stat, struct buf *out)
{
    struct wire_entry entry = entry_of(reader, WIRE_ENTRY_SKIP, stat);
    wire_entry_add(out, &entry);
    reader->entries++;
    return 0;
}

static int add_file(struct wire_tree_reader *reader, int dir, const char *name, struct stat *stat,
                    struct buf *out, struct err *err)
{
    int fd = openat(dir, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd < 0)
        return errno == ENOENT ? 0 : err_errno(err, "file '%s'", buf_text(&reader->path));
    if (fstat(fd, stat) < 0 || !S_ISREG(stat->st_mode)) {
        fd_close(&fd);
        return add_other(reader, stat, out);
    }
    struct wire_entry entry = entry_of(reader, WIRE_ENTRY_FILE, stat);
    entry.size = (uint64_t)stat->st_size;
    wire_entry_add(out, &entry);
    reader->entries++;
    reader->file = fd;
    reader->file_left = entry.size;
    return 0;
}

static int add_next(struct wire_tree_reader *reader, struct buf *out, struct err *err)
{
    struct level *level = reader->level;
    reader->path.size = level->path_size;
    errno = 0;
    struct dirent *found = readdir(level->dir);
    if (!found && errno)
        return err_errno(err, "directory '%s'", buf_text(&reader->path));
    if (!found) {
        leave(reader, out);
        return 0;
    }
    const char *name = found->d_name;
    if (str_is(str_of(name), ".") || str_is(str_of(name), ".."))
        return 0;
    if (level->path_size)
        buf_byte(&reader->path, '/');
    buf_str_append(&reader->path, str_of(name));
    if (reader->path.size > WIRE_PATH_MAX)
        return err_set(err, ERR_LIMIT, "a path is longer than %u bytes", WIRE_PATH_MAX);

    int dir = dirfd(level->dir);
    struct stat stat;
    if (fstatat(dir, name, &stat, AT_SYMLINK_NOFOLLOW) < 0)
        return errno == ENOENT ? 0 : err_errno(err, "'%s'", buf_text(&reader->path));
    if (S_ISREG(stat.st_mode))
        return add_file(reader, dir, name, &stat, out, err);
    if (S_ISLNK(stat.st_mode))
        return add_link(reader, dir, name, &stat, out, err);
    if (!S_ISDIR(stat.st_mode))
        return add_other(reader, &stat, out);
    int fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return errno == ENOENT ? 0 : err_errno(err, "directory '%s'", buf_text(&reader->path));
    return enter(reader, fd, out, err);
}

static int add_content(struct wire_tree_reader *reader, struct buf *out, size_t size,
                       struct err *err)
{
    if (size > reader->file_left)
        size = (size_t)reader->file_left;
    if (size > WIRE_PAYLOAD_MAX)
        size = WIRE_PAYLOAD_MAX;
    char *at = buf_reserve(out, size);
    ssize_t got = size ? fd_read_all(reader->file, at, size) : 0;
    if (got < 0)
        return err_errno(err, "reading '%s'", buf_text(&reader->path));
    memset(at + got, 0, size - (size_t)got); /* it shrank: the record already said its size */
    buf_added(out, size);
    reader->file_left -= size;
    if (!reader->file_left)
        fd_close(&reader->file);
    return 0;
}

struct wire_tree_reader *wire_tree_reader_new(int dir, struct err *err)
{
    struct wire_tree_reader *reader = mem_zero(sizeof *reader);
    reader->file = -1;
    int own = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (own < 0 || enter(reader, own, NULL, err) < 0) {
        if (own < 0)
            err_errno(err, "directory");
        wire_tree_reader_free(reader);
        return NULL;
    }
    return reader;
}

void wire_tree_reader_free(struct wire_tree_reader *reader)
{
    if (!reader)
        return;
    while (reader->level)
        pop(reader);
    fd_close(&reader->file);
    buf_deinit(&reader->path);
    free(reader);
}

int wire_tree_read(struct wire_tree_reader *reader, struct buf *out, size_t size, struct err *err)
{
    size_t end = out->size + size;
    while (out->size < end && !reader->done) {
        int result = reader->file >= 0 ? add_content(reader, out, end - out->size, err)
                                       : add_next(reader, out, err);
        if (result < 0)
            return -1;
    }
    return reader->done ? 0 : 1;
}

uint64_t wire_tree_reader_entries(const struct wire_tree_reader *reader)
{
    return reader->entries;
}
