/* tree_write.c - writes tree records into a directory, as they arrive.
 *
 * Each part of a path is opened as a directory without following links, starting from the
 * descriptor of the top, so neither a link that came with the tree nor one that stood there leads a
 * write elsewhere. Files and links replace what has their name, but never a directory. Directories
 * are writable for their owner until they are left, then get their own mode. The top keeps the mode
 * it has. */
#include "wire/wire.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/err.h"
#include "base/fd.h"
#include "base/mem.h"

struct wire_tree_writer {
    struct wire_tree_limits limits;
    struct wire_entry_decoder decoder;
    int top;
    int parent; /* directory of the last entry: the next one is mostly beside it */
    struct buf parent_path;
    int file;
    struct wire_entry file_entry; /* of `file`; its strings are not used */
    uint64_t file_left;
    uint64_t bytes, entries;
};

static int open_part(int dir, const char *name)
{
    return openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

/* The directory of `path` and its last part. Returns the descriptor (not the caller's), or -1. */
static int parent_of(struct wire_tree_writer *writer, struct str path, char name[256],
                     struct err *err)
{
    size_t slash = path.size;
    while (slash && path.data[slash - 1] != '/')
        slash--;
    struct str last = str_from(path, slash);
    memcpy(name, last.data, last.size);
    name[last.size] = '\0';
    if (!slash)
        return writer->top;
    struct str parents = str_upto(path, slash - 1);
    if (writer->parent >= 0 && str_equal(buf_str(&writer->parent_path), parents))
        return writer->parent;

    fd_close(&writer->parent);
    buf_clear(&writer->parent_path);
    buf_str_append(&writer->parent_path, parents);
    OWN(fd) int at = -1;
    struct str rest = parents;
    while (rest.data) {
        char part_name[256];
        struct str part = str_cut(&rest, '/');
        memcpy(part_name, part.data, part.size);
        part_name[part.size] = '\0';
        int next = open_part(at < 0 ? writer->top : at, part_name);
        if (next < 0)
            return err_errno(err, "directory '%.*s'", STR_ARGS(parents));
        fd_close(&at);
        at = next;
    }
    writer->parent = fd_take(&at);
    return writer->parent;
}

static uint32_t mode_of(const struct wire_tree_writer *writer, const struct wire_entry *entry)
{
    return entry->mode & (writer->limits.mode_mask ? writer->limits.mode_mask : 0777u);
}

static int set_times(int fd, const struct wire_entry *entry)
{
    struct timespec times[2] = {{.tv_nsec = UTIME_OMIT},
                                {.tv_sec = entry->mtime_s, .tv_nsec = entry->mtime_ns}};
    return futimens(fd, times);
}

static int make_dir(int parent, const char *name, const struct wire_entry *entry, struct err *err)
{
    struct stat stat;
    if (mkdirat(parent, name, 0700) == 0)
        return 0;
    if (errno == EEXIST && fstatat(parent, name, &stat, AT_SYMLINK_NOFOLLOW) == 0 &&
        S_ISDIR(stat.st_mode))
        return 0;
    return err_errno(err, "directory '%.*s'", STR_ARGS(entry->path));
}

static int leave_dir(struct wire_tree_writer *writer, int parent, const char *name,
                     const struct wire_entry *entry, struct err *err)
{
    OWN(fd) int dir = open_part(parent, name);
    if (dir < 0)
        return err_errno(err, "directory '%.*s'", STR_ARGS(entry->path));
    /* A directory that stood there and is somebody else's keeps what it has. */
    if ((fchmod(dir, mode_of(writer, entry)) < 0 || set_times(dir, entry) < 0) && errno != EPERM)
        return err_errno(err, "directory '%.*s'", STR_ARGS(entry->path));
    return 0;
}

static int make_link(int parent, const char *name, const struct wire_entry *entry, struct err *err)
{
    char target[WIRE_PATH_MAX + 1];
    memcpy(target, entry->link.data, entry->link.size);
    target[entry->link.size] = '\0';
    int result = symlinkat(target, parent, name);
    if (result < 0 && errno == EEXIST && unlinkat(parent, name, 0) == 0)
        result = symlinkat(target, parent, name);
    if (result < 0)
        return err_errno(err, "link '%.*s'", STR_ARGS(entry->path));
    return 0;
}

static int finish_file(struct wire_tree_writer *writer, struct err *err)
{
    int result = fchmod(writer->file, mode_of(writer, &writer->file_entry));
    if (result == 0)
        result = set_times(writer->file, &writer->file_entry);
    if (result < 0)
        err_errno(err, "finishing a file");
    fd_close(&writer->file);
    return result;
}

static int make_file(struct wire_tree_writer *writer, int parent, const char *name,
                     const struct wire_entry *entry, struct err *err)
{
    const int flags = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
    int fd = openat(parent, name, flags, 0600);
    if (fd < 0 && errno == EEXIST && unlinkat(parent, name, 0) == 0)
        fd = openat(parent, name, flags, 0600);
    if (fd < 0)
        return err_errno(err, "file '%.*s'", STR_ARGS(entry->path));
    writer->file = fd;
    writer->file_entry = *entry;
    writer->file_left = entry->size;
    return entry->size ? 0 : finish_file(writer, err);
}

static int take_entry(struct wire_tree_writer *writer, const struct wire_entry *entry,
                      struct err *err)
{
    const struct wire_tree_limits *limits = &writer->limits;
    if (entry->kind != WIRE_ENTRY_LEAVE && entry->kind != WIRE_ENTRY_END)
        writer->entries++;
    if (limits->entries_max && writer->entries > limits->entries_max)
        return err_set(err, ERR_LIMIT, "the tree has more than %llu entries",
                       (unsigned long long)limits->entries_max);
    if (limits->bytes_max && entry->size > limits->bytes_max - writer->bytes)
        return err_set(err, ERR_LIMIT, "the tree has more than %llu bytes",
                       (unsigned long long)limits->bytes_max);
    writer->bytes += entry->size;
    if (!entry->path.size || entry->kind == WIRE_ENTRY_SKIP)
        return 0;

    char name[256];
    int parent = parent_of(writer, entry->path, name, err);
    if (parent < 0)
        return -1;
    if (entry->kind == WIRE_ENTRY_ENTER)
        return make_dir(parent, name, entry, err);
    if (entry->kind == WIRE_ENTRY_LEAVE)
        return leave_dir(writer, parent, name, entry, err);
    if (entry->kind == WIRE_ENTRY_LINK)
        return make_link(parent, name, entry, err);
    return make_file(writer, parent, name, entry, err);
}

struct wire_tree_writer *wire_tree_writer_new(int dir, const struct wire_tree_limits *limits,
                                              struct err *err)
{
    int top = open_part(dir, ".");
    if (top < 0) {
        err_errno(err, "directory");
        return NULL;
    }
    struct wire_tree_writer *writer = mem_zero(sizeof *writer);
    writer->limits = *limits;
    writer->top = top;
    writer->parent = writer->file = -1;
    return writer;
}

void wire_tree_writer_free(struct wire_tree_writer *writer)
{
    if (!writer)
        return;
    fd_close(&writer->top);
    fd_close(&writer->parent);
    fd_close(&writer->file);
    buf_deinit(&writer->parent_path);
    free(writer);
}

int wire_tree_write(struct wire_tree_writer *writer, struct str bytes, struct err *err)
{
    struct wire_entry entry;
    struct str data;
    for (;;) {
        int event = wire_entry_next(&writer->decoder, &bytes, &entry, &data, err);
        if (event < 0)
            return -1;
        if (event == WIRE_EVENT_MORE)
            return 0;
        if (event == WIRE_EVENT_ENTRY) {
            if (take_entry(writer, &entry, err) < 0)
                return -1;
            continue;
        }
        if (fd_write_all(writer->file, data.data, data.size) < 0)
            return err_errno(err, "writing a file");
        writer->file_left -= data.size;
        if (!writer->file_left && finish_file(writer, err) < 0)
            return -1;
    }
}

int wire_tree_writer_end(struct wire_tree_writer *writer, struct err *err)
{
    if (!writer->decoder.ended)
        return err_set(err, ERR_PROTOCOL, "the tree ended in the middle");
    return 0;
}

uint64_t wire_tree_writer_entries(const struct wire_tree_writer *writer)
{
    return writer->entries;
}
