#include "base/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/err.h"
#include "base/fd.h"
#include "base/id.h"
#include "base/mem.h"

int file_read(const char *path, size_t bytes_max, struct buf *out, struct err *err)
{
    OWN(fd) int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return err_errno(err, "'%s'", path);
    size_t before = out->size;
    for (;;) {
        char *room = buf_reserve(out, 65536);
        ssize_t got = read(file, room, 65536);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return err_errno(err, "reading '%s'", path);
        if (got == 0)
            return 0;
        buf_added(out, (size_t)got);
        if (out->size - before > bytes_max)
            return err_set(err, ERR_LIMIT, "'%s' is larger than %zu bytes", path, bytes_max);
    }
}

int file_write(const char *path, struct str content, mode_t mode, bool sync, struct err *err)
{
    char random[9];
    id_random_hex(random, 4);
    OWN(mem) char *beside = mem_format("%s.%s.new", path, random);
    OWN(fd) int file = open(beside, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    if (file < 0)
        return err_errno(err, "creating '%s'", beside);
    if (fd_write_all(file, content.data, content.size) < 0 || (sync && fsync(file) < 0) ||
        rename(beside, path) < 0) {
        err_errno(err, "writing '%s'", path);
        (void)unlink(beside);
        return -1;
    }
    return 0;
}

int file_make_dirs(const char *path, mode_t mode, struct err *err)
{
    OWN(mem) char *copy = mem_dup(path);
    for (char *at = copy + 1;; at++) {
        if (*at && *at != '/')
            continue;
        char kept = *at;
        *at = '\0';
        if (mkdir(copy, mode) < 0 && errno != EEXIST)
            return err_errno(err, "making the directory '%s'", copy);
        *at = kept;
        if (!kept)
            break;
    }
    struct stat facts;
    if (stat(path, &facts) < 0 || !S_ISDIR(facts.st_mode))
        return err_set(err, ERR_INPUT, "'%s' is not a directory", path);
    return 0;
}

static int remove_inside(int parent, const char *name, dev_t device)
{
    if (unlinkat(parent, name, 0) == 0 || errno == ENOENT)
        return 0;
    if (errno != EISDIR && errno != EPERM && errno != EBUSY)
        return -1;
    int directory = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (directory < 0 && errno == EACCES) { /* overlay's work/work has mode 000 */
        (void)fchmodat(parent, name, 0700, 0);
        directory = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    }
    if (directory < 0)
        return -1;
    struct stat facts;
    if (fstat(directory, &facts) < 0 || facts.st_dev != device) {
        close(directory);
        errno = EBUSY;
        return -1;
    }
    (void)fchmod(directory, 0700);
    DIR *entries = fdopendir(directory);
    if (!entries) {
        close(directory);
        return -1;
    }
    int result = 0;
    for (struct dirent *entry; result == 0 && (entry = readdir(entries));) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        result = remove_inside(dirfd(entries), entry->d_name, device);
    }
    int number = errno;
    closedir(entries);
    errno = number;
    if (result == 0 && unlinkat(parent, name, AT_REMOVEDIR) < 0 && errno != ENOENT)
        result = -1;
    return result;
}

int file_remove_tree(const char *path, struct err *err)
{
    struct stat facts;
    if (lstat(path, &facts) < 0)
        return errno == ENOENT ? 0 : err_errno(err, "'%s'", path);
    if (remove_inside(AT_FDCWD, path, facts.st_dev) < 0)
        return err_errno(err, "removing '%s'", path);
    return 0;
}

bool file_exists(const char *path)
{
    struct stat facts;
    return stat(path, &facts) == 0;
}
