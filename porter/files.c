/* files.c - file work, in a child of process 1 that first became the user it is done for.
 *
 * So permissions are that user's, and a link somebody planted leads no further than that user could
 * go himself. Results are read and cleaned up as the porter's own user, with the file capabilities
 * and nothing else. Magic links (/proc/N/fd, /proc/N/root) are never followed.
 *
 * A file is written beside its place under a random name and renamed over it when all of its bytes
 * are there; when the work is called off (SIGTERM) the random name is removed. Content comes in on
 * 0 and goes out on 1; the result is one report on 3. */
#include "porter.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/err.h"
#include "base/fd.h"
#include "base/file.h"
#include "base/mem.h"

enum { IN = 0, OUT = 1, CTL = 3 };

static char chunk[WIRE_PAYLOAD_MAX];

/* What to remove when the work is called off. */
static volatile int temp_dir = -1;
static char temp_name[40];

static void on_term(int number)
{
    (void)number;
    if (temp_dir >= 0)
        (void)unlinkat(temp_dir, temp_name, 0);
    _exit(1);
}

static int open_at(int dir, const char *path, int flags)
{
    struct open_how how = {.flags = (uint64_t)(flags | O_CLOEXEC),
                           .resolve = RESOLVE_NO_MAGICLINKS};
    int fd = (int)syscall(SYS_openat2, dir, path, &how, sizeof how);
    if (fd < 0 && (errno == ENOSYS || errno == EPERM))
        fd = openat(dir, path, flags | O_CLOEXEC);
    return fd;
}

/* Opens a directory, making it and its parents where they are missing. */
static int open_dir(struct str path, struct err *err)
{
    OWN(fd) int at = open_at(AT_FDCWD, "/", O_PATH | O_DIRECTORY);
    struct str rest = path;
    while (rest.data) {
        char name[256];
        struct str part = str_cut(&rest, '/');
        if (!part.size)
            continue;
        if (part.size >= sizeof name) {
            err_set(err, ERR_INPUT, "a part of the path is longer than 255 bytes");
            return -1;
        }
        memcpy(name, part.data, part.size);
        name[part.size] = '\0';
        int next = open_at(at, name, O_PATH | O_DIRECTORY);
        if (next < 0 && errno == ENOENT && (mkdirat(at, name, 0755) == 0 || errno == EEXIST))
            next = open_at(at, name, O_PATH | O_DIRECTORY);
        if (next < 0) {
            err_errno(err, "directory '%.*s'", (int)(part.data + part.size - path.data), path.data);
            return -1;
        }
        fd_close(&at);
        at = next;
    }
    return fd_take(&at);
}

static int copy(int from, int to, uint64_t *count, struct err *err)
{
    for (;;) {
        ssize_t size = read(from, chunk, sizeof chunk);
        if (size < 0 && errno == EINTR)
            continue;
        if (size < 0)
            return err_errno(err, "reading");
        if (size == 0)
            return 0;
        if (fd_write_all(to, chunk, (size_t)size) < 0)
            return err_errno(err, "writing");
        *count += (uint64_t)size;
    }
}

static int put(struct str path, uint32_t mode, uint64_t *count, struct err *err)
{
    if (path.size > 1 && path.data[path.size - 1] == '/')
        return err_set(err, ERR_INPUT, "'%.*s' names a directory", STR_ARGS(path));
    size_t slash = path.size;
    while (slash && path.data[slash - 1] != '/')
        slash--;
    struct str last = str_from(path, slash);
    char name[256];
    if (!last.size || last.size > 255 || str_is(last, ".") || str_is(last, ".."))
        return err_set(err, ERR_INPUT, "'%.*s' does not name a file", STR_ARGS(path));
    memcpy(name, last.data, last.size);
    name[last.size] = '\0';
    OWN(fd) int dir = open_dir(str_upto(path, slash), err);
    if (dir < 0)
        return -1;

    uint64_t random = 0;
    if (getrandom(&random, sizeof random, 0) != sizeof random)
        return err_errno(err, "random numbers");
    snprintf(temp_name, sizeof temp_name, ".postern-%016llx", (unsigned long long)random);
    OWN(fd)
    int file = openat(dir, temp_name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (file < 0)
        return err_errno(err, "file in '%.*s'", (int)slash, path.data);
    temp_dir = dir;
    int result = copy(IN, file, count, err);
    if (result == 0 &&
        (fchmod(file, mode ? mode : 0644) < 0 || renameat(dir, temp_name, dir, name) < 0))
        result = err_errno(err, "file '%.*s'", STR_ARGS(path));
    temp_dir = -1;
    if (result < 0)
        (void)unlinkat(dir, temp_name, 0);
    return result;
}

static int get(const char *path, uint64_t *count, struct err *err)
{
    struct stat stat;
    OWN(fd) int file = open_at(AT_FDCWD, path, O_RDONLY | O_NONBLOCK | O_NOCTTY);
    if (file < 0 || fstat(file, &stat) < 0)
        return err_errno(err, "'%s'", path);
    if (!S_ISREG(stat.st_mode))
        return err_set(err, ERR_INPUT, "'%s' is not a regular file", path);
    return copy(file, OUT, count, err);
}

static int put_tree(struct str path, uint64_t *count, struct err *err)
{
    OWN(fd) int top = open_dir(path, err);
    if (top < 0)
        return -1;
    struct wire_tree_limits limits = {.mode_mask = 07777};
    struct wire_tree_writer *writer = wire_tree_writer_new(top, &limits, err);
    if (!writer)
        return -1;
    int result = 0;
    while (result == 0) {
        ssize_t size = read(IN, chunk, sizeof chunk);
        if (size < 0 && errno == EINTR)
            continue;
        if (size < 0)
            result = err_errno(err, "reading");
        if (size <= 0)
            break;
        result = wire_tree_write(writer, str_make(chunk, (size_t)size), err);
    }
    if (result == 0)
        result = wire_tree_writer_end(writer, err);
    *count = wire_tree_writer_entries(writer);
    wire_tree_writer_free(writer);
    return result;
}

static int get_tree(const char *path, uint64_t *count, struct err *err)
{
    OWN(fd) int top = open_at(AT_FDCWD, path, O_RDONLY | O_DIRECTORY);
    if (top < 0)
        return err_errno(err, "directory '%s'", path);
    struct wire_tree_reader *reader = wire_tree_reader_new(top, err);
    if (!reader)
        return -1;
    struct buf out = {0};
    int more = 1;
    while (more > 0) {
        more = wire_tree_read(reader, &out, WIRE_PAYLOAD_MAX, err);
        if (more >= 0 && fd_write_all(OUT, out.data, out.size) < 0)
            more = err_errno(err, "writing");
        buf_clear(&out);
    }
    *count = wire_tree_reader_entries(reader);
    buf_deinit(&out);
    wire_tree_reader_free(reader);
    return more;
}

static int stat_path(const char *path, struct wire_stat *out, struct err *err)
{
    struct stat stat;
    if (fstatat(AT_FDCWD, path, &stat, AT_SYMLINK_NOFOLLOW) < 0) {
        *out = (struct wire_stat){.kind = WIRE_KIND_NONE};
        return errno == ENOENT || errno == ENOTDIR ? 0 : err_errno(err, "'%s'", path);
    }
    *out = (struct wire_stat){.kind = S_ISREG(stat.st_mode)   ? WIRE_KIND_REGULAR
                                      : S_ISDIR(stat.st_mode) ? WIRE_KIND_DIRECTORY
                                      : S_ISLNK(stat.st_mode) ? WIRE_KIND_LINK
                                                              : WIRE_KIND_OTHER,
                              .mode = stat.st_mode & 07777,
                              .uid = stat.st_uid,
                              .gid = stat.st_gid,
                              .size = (uint64_t)stat.st_size,
                              .mtime_s = stat.st_mtim.tv_sec};
    return 0;
}

static int remove_path(const char *path, struct err *err)
{
    size_t size = strlen(path);
    while (size && (path[size - 1] == '/' || path[size - 1] == '.'))
        size--;
    if (!size)
        return err_set(err, ERR_INPUT, "'%s' cannot be removed", path);
    return file_remove_tree(path, err);
}

/* The host turns it into an error kind again; the text keeps what the system said. */
static int number_of(enum err_kind kind)
{
    switch (kind) {
    case ERR_NONE:
        return 0;
    case ERR_INPUT:
        return EINVAL;
    case ERR_NOT_FOUND:
        return ENOENT;
    case ERR_CONFLICT:
        return EEXIST;
    case ERR_DENIED:
        return EACCES;
    case ERR_UNSUPPORTED:
        return EOPNOTSUPP;
    case ERR_LIMIT:
        return EFBIG;
    case ERR_TIMEOUT:
        return ETIMEDOUT;
    case ERR_CAPACITY:
        return EMFILE;
    case ERR_LOST:
        return EPIPE;
    case ERR_PROTOCOL:
        return EPROTO;
    case ERR_CANCELLED:
        return ECANCELED;
    case ERR_DISK_FULL:
        return ENOSPC;
    case ERR_SYSTEM:
    case ERR_KINDS:
        break;
    }
    return EIO;
}

/* Directories of `path` that are missing are made now, while we still may, and given to the user: a
 * working directory below / is his although / is not. Links are not followed here; where something
 * is in the way the user's own attempt says what. */
static void make_missing(struct str path, const struct user *user)
{
    OWN(fd) int at = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
    for (struct str rest = path; rest.data;) {
        char name[256];
        struct str part = str_cut(&rest, '/');
        if (!part.size)
            continue;
        if (part.size >= sizeof name || str_is(part, ".") || str_is(part, ".."))
            return;
        memcpy(name, part.data, part.size);
        name[part.size] = '\0';
        bool made = mkdirat(at, name, 0755) == 0;
        int next = openat(at, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        struct stat stat;
        if (next < 0)
            return;
        fd_close(&at);
        at = next;
        if (made && fstat(at, &stat) == 0 && stat.st_uid == geteuid())
            (void)fchownat(at, "", user->uid, user->gid, AT_EMPTY_PATH);
    }
}

static int become(const struct porter_world *world, uint8_t type, const struct wire_file *file,
                  struct str path, struct err *err)
{
    struct user user = {.uid = geteuid(), .gid = getegid()};
    if (!(file->flags & WIRE_FILE_OWNER) &&
        user_find(AT_FDCWD, file->user, world->options.uid, world->options.gid, &user, err) < 0)
        return -1;
    if (type == WIRE_PUT || type == WIRE_PUT_TREE) {
        size_t size = path.size;
        while (type == WIRE_PUT && size && path.data[size - 1] != '/')
            size--;
        make_missing(str_upto(path, size), &user);
    }
    pid_t parent = getppid();
    const char *failed = launch_bound(CAPS_FILES);
    if (!failed)
        failed = launch_become(world, &user, CAPS_FILES);
    if (failed)
        return err_errno(err, "%s", failed);
    /* The end of the content must not be mistaken for its completion. Changing ids clears this, so
     * it comes after. */
    (void)prctl(PR_SET_PDEATHSIG, SIGTERM, 0, 0, 0);
    if (getppid() != parent)
        _exit(1);
    return 0;
}

static int work(const struct porter_world *world, uint8_t type, const struct wire_file *file,
                struct report *report, struct err *err)
{
    struct buf path = {0};
    if (file->path.data[0] != '/')
        buf_format(&path, "%s/", world->options.cwd);
    buf_str_append(&path, file->path);
    if (become(world, type, file, buf_str(&path), err) < 0)
        return -1;
    struct str whole = buf_str(&path);
    const char *text = buf_text(&path);
    whole.data = text;
    switch (type) {
    case WIRE_PUT:
        return put(whole, file->mode, &report->count, err);
    case WIRE_GET:
        return get(text, &report->count, err);
    case WIRE_PUT_TREE:
        return put_tree(whole, &report->count, err);
    case WIRE_GET_TREE:
        return get_tree(text, &report->count, err);
    case WIRE_STAT:
        return stat_path(text, &report->stat, err);
    case WIRE_REMOVE:
        return remove_path(text, err);
    }
    return err_set(err, ERR_UNSUPPORTED, "no such file work");
}

_Noreturn void files_main(const struct porter_world *world, int ctl, int in, int out, uint8_t type,
                          const struct wire_file *file)
{
    int null = world->null;
    int fds[] = {in < 0 ? null : in, out < 0 ? null : out, null, ctl};
    child_descriptors(fds, COUNT(fds));
    (void)prctl(PR_SET_NAME, "porter: files", 0, 0, 0);
    umask(022);
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &limit);
    }
    struct sigaction action = {.sa_handler = on_term};
    (void)sigaction(SIGTERM, &action, NULL);
    sigset_t mask;
    sigemptyset(&mask);
    (void)sigprocmask(SIG_SETMASK, &mask, NULL);

    struct err err = {0};
    struct report report = {0};
    report.flags = type == WIRE_STAT ? REPORT_STAT : REPORT_DONE;
    if (work(world, type, file, &report, &err) < 0) {
        report.flags = REPORT_DONE;
        report.error = number_of(err.kind);
        memcpy(report.text, err.text, sizeof report.text - 1);
    }
    report.flags |= REPORT_GONE;
    (void)send(CTL, &report, sizeof report, MSG_NOSIGNAL);
    _exit(0);
}
