/* image_unpack.c - archives into a directory, for archives nobody trusts.
 *
 * Every path is taken apart here and opened below the root by openat2 with RESOLVE_IN_ROOT: "..",
 * absolute names and links lead nowhere but inside. The last part of a name is never followed. Hard
 * links are made only to files inside. Devices are left out, setuid and setgid bits dropped, sizes
 * and counts limited.
 *
 * A layer is read twice: first for its whiteouts, which hide what lower layers left, then for its
 * files. Otherwise a whiteout that comes late in the archive would hide what its own layer brought.
 */
#include <archive.h>
#include <archive_entry.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/err.h"
#include "base/fd.h"
#include "base/mem.h"
#include "base/text.h"
#include "image.h"

#define PATH_BYTES_MAX 4095
#define DEPTH_MAX 200
#define ID_LIMIT 65536

int image_open_inside(int folder, const char *path, int flags)
{
    struct open_how how = {.flags = (uint64_t)(unsigned)(flags | O_CLOEXEC),
                           .resolve = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS};
    return (int)syscall(SYS_openat2, folder, path, &how, sizeof how);
}

/* --- removing -------------------------------------------------------------------------------- */

static int remove_at(int parent, const char *name, unsigned depth);

/* Takes the descriptor. */
static int remove_in(int dir, unsigned depth)
{
    DIR *entries = dir >= 0 ? fdopendir(dir) : NULL;
    if (!entries) {
        fd_close(&dir);
        return -1;
    }
    int result = 0;
    for (struct dirent *entry; result == 0 && (entry = readdir(entries));)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            result = remove_at(dirfd(entries), entry->d_name, depth + 1);
    closedir(entries);
    return result;
}

static int remove_at(int parent, const char *name, unsigned depth)
{
    if (unlinkat(parent, name, 0) == 0 || errno == ENOENT)
        return 0;
    if (depth > DEPTH_MAX ||
        remove_in(openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC), depth) < 0)
        return -1;
    return unlinkat(parent, name, AT_REMOVEDIR);
}

/* --- names ----------------------------------------------------------------------------------- */

/* An entry's name without "./" and leading or doubled slashes; false when it tries to climb. */
static bool clean_path(const char *raw, char clean[PATH_BYTES_MAX + 1])
{
    size_t used = 0;
    unsigned depth = 0;
    struct str rest = str_of(raw);
    while (rest.data) {
        struct str part = str_cut(&rest, '/');
        if (part.size == 0 || str_is(part, "."))
            continue;
        if (str_is(part, "..") || part.size > 255 || used + part.size + 1 > PATH_BYTES_MAX ||
            ++depth > DEPTH_MAX)
            return false;
        if (used)
            clean[used++] = '/';
        memcpy(clean + used, part.data, part.size);
        used += part.size;
    }
    clean[used] = '\0';
    return true;
}

/* Opens the directory an entry lies in, making what is missing. *name is the last part. */
static int open_parent(int root, char *path, const char **name)
{
    char *slash = strrchr(path, '/');
    *name = slash ? slash + 1 : path;
    if (!slash)
        return openat(root, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    *slash = '\0';
    int parent = image_open_inside(root, path, O_RDONLY | O_DIRECTORY);
    if (parent < 0 && errno == ENOENT) {
        const char *last;
        OWN(mem) char *upper = mem_dup(path);
        OWN(fd) int above = open_parent(root, upper, &last);
        if (above >= 0 && (mkdirat(above, last, 0755) == 0 || errno == EEXIST))
            parent = openat(above, last, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    }
    *slash = '/';
    return parent;
}

/* --- one entry ------------------------------------------------------------------------------- */

struct unpacking {
    struct archive *archive;
    int root;
    struct image_budget *budget;
    bool owners; /* keep them */
};

static int copy_data(struct unpacking *unpacking, int file, struct err *err)
{
    const void *block;
    size_t size;
    la_int64_t offset;
    uint64_t end = 0;
    int status;
    while ((status = archive_read_data_block(unpacking->archive, &block, &size, &offset)) ==
           ARCHIVE_OK) {
        if (offset < 0 || (uint64_t)offset + size > unpacking->budget->bytes_left)
            return err_set(err, ERR_LIMIT, "the archive holds too many bytes");
        if ((uint64_t)offset + size > end)
            end = (uint64_t)offset + size;
        for (size_t done = 0; done < size;) {
            ssize_t put =
                pwrite(file, (const char *)block + done, size - done, (off_t)offset + (off_t)done);
            if (put < 0 && errno == EINTR)
                continue;
            if (put < 0)
                return err_errno(err, "writing");
            done += (size_t)put;
        }
    }
    if (status != ARCHIVE_EOF)
        return err_set(err, ERR_INPUT, "the archive is damaged: %s",
                       archive_error_string(unpacking->archive));
    unpacking->budget->bytes_left -= end;
    unpacking->budget->bytes += end;
    return 0;
}

static int put_file(struct unpacking *unpacking, int parent, const char *name,
                    struct archive_entry *entry, struct err *err)
{
    if (remove_at(parent, name, 0) < 0)
        return err_errno(err, "replacing '%s'", name);
    OWN(fd)
    int file = openat(parent, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (file < 0)
        return err_errno(err, "'%s'", name);
    if (copy_data(unpacking, file, err) < 0)
        return -1;
    la_int64_t size = archive_entry_size_is_set(entry) ? archive_entry_size(entry) : 0;
    struct stat facts;
    if (size > 0 && fstat(file, &facts) == 0 && facts.st_size < size) { /* a hole at the end */
        if ((uint64_t)size > unpacking->budget->bytes_left)
            return err_set(err, ERR_LIMIT, "the archive holds too many bytes");
        if (ftruncate(file, (off_t)size) < 0)
            return err_errno(err, "'%s'", name);
    }
    return 0;
}

static int put_dir(int parent, const char *name, struct err *err)
{
    struct stat facts;
    if (fstatat(parent, name, &facts, AT_SYMLINK_NOFOLLOW) == 0) {
        if (S_ISDIR(facts.st_mode))
            return 0;
        if (unlinkat(parent, name, 0) < 0)
            return err_errno(err, "replacing '%s'", name);
    }
    return mkdirat(parent, name, 0755) < 0 ? err_errno(err, "'%s'", name) : 0;
}

static int put_hard_link(struct unpacking *unpacking, int parent, const char *name,
                         const char *target, struct err *err)
{
    char path[PATH_BYTES_MAX + 1];
    if (!clean_path(target, path) || !path[0])
        return err_set(err, ERR_INPUT, "the archive links '%s' to outside", name);
    const char *last;
    OWN(fd) int from = open_parent(unpacking->root, path, &last);
    struct stat facts;
    if (from < 0 || fstatat(from, last, &facts, AT_SYMLINK_NOFOLLOW) < 0) {
        err_errno(err, "the archive links '%s' to '%.200s'", name, target);
        if (err)
            err->kind = ERR_INPUT;
        return -1;
    }
    if (!S_ISREG(facts.st_mode) && !S_ISLNK(facts.st_mode))
        return err_set(err, ERR_INPUT, "the archive links '%s' to something that is no file", name);
    struct stat there;
    if (fstatat(parent, name, &there, AT_SYMLINK_NOFOLLOW) == 0 && there.st_ino == facts.st_ino &&
        there.st_dev == facts.st_dev)
        return 0; /* to itself */
    if (remove_at(parent, name, 0) < 0 || linkat(from, last, parent, name, 0) < 0)
        return err_errno(err, "linking '%s'", name);
    return 0;
}

static uint32_t shown_id(la_int64_t id)
{
    return id >= 0 && id < ID_LIMIT ? (uint32_t)id : ID_LIMIT - 2;
}

/* Owner, then mode: a change of owner clears bits. Times are for people; best effort. */
static int dress(struct unpacking *unpacking, int parent, const char *name,
                 struct archive_entry *entry, struct err *err)
{
    bool link = archive_entry_filetype(entry) == AE_IFLNK;
    if (unpacking->owners && fchownat(parent, name, shown_id(archive_entry_uid(entry)),
                                      shown_id(archive_entry_gid(entry)), AT_SYMLINK_NOFOLLOW) < 0)
        return err_errno(err, "the owner of '%s'", name);
    if (!link) {
        mode_t mode = archive_entry_perm(entry) & 01777;
        if (!unpacking->owners)
            mode |= archive_entry_filetype(entry) == AE_IFDIR ? 0700 : 0400;
        if (fchmodat(parent, name, mode, 0) < 0)
            return err_errno(err, "the mode of '%s'", name);
    }
    struct timespec times[2] = {{.tv_nsec = UTIME_OMIT},
                                {.tv_sec = (time_t)archive_entry_mtime(entry)}};
    (void)utimensat(parent, name, times, AT_SYMLINK_NOFOLLOW);
    return 0;
}

static int put_entry(struct unpacking *unpacking, struct archive_entry *entry, char *path,
                     struct err *err)
{
    const char *name;
    OWN(fd) int parent = open_parent(unpacking->root, path, &name);
    if (parent < 0) { /* a link to nowhere, or a file on the way: the archive's mistake */
        bool its_fault = errno == ENOTDIR || errno == ELOOP || errno == ENOENT;
        err_errno(err, "the folder of '%s'", path);
        if (err && its_fault)
            err->kind = ERR_INPUT;
        return -1;
    }
    const char *hard = archive_entry_hardlink(entry);
    if (hard)
        return put_hard_link(unpacking, parent, name, hard, err);
    const char *target = archive_entry_symlink(entry);
    int made = 0;
    switch (archive_entry_filetype(entry)) {
    case AE_IFREG:
        made = put_file(unpacking, parent, name, entry, err);
        break;
    case AE_IFDIR:
        made = put_dir(parent, name, err);
        break;
    case AE_IFLNK:
        if (!target || !*target)
            return err_set(err, ERR_INPUT, "the archive has a link '%s' to nothing", path);
        if (remove_at(parent, name, 0) < 0 || symlinkat(target, parent, name) < 0)
            made = err_errno(err, "linking '%s'", path);
        break;
    default: /* devices, sockets, pipes */
        unpacking->budget->skipped++;
        return 0;
    }
    return made < 0 ? -1 : dress(unpacking, parent, name, entry, err);
}

/* ".wh.NAME" hides NAME, ".wh..wh..opq" everything lower in its folder. */
static int apply_whiteout(int root, char *path, struct err *err)
{
    char *slash = strrchr(path, '/');
    const char *name = slash ? slash + 1 : path;
    if (slash)
        *slash = '\0';
    int parent = slash ? image_open_inside(root, path, O_RDONLY | O_DIRECTORY)
                       : openat(root, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (slash)
        *slash = '/';
    if (parent < 0)
        return errno == ENOENT || errno == ENOTDIR ? 0 : err_errno(err, "'%s'", path);
    if (strcmp(name, ".wh..wh..opq") == 0)
        return remove_in(parent, 0) < 0 ? err_errno(err, "emptying the folder of '%s'", path) : 0;
    const char *hidden = name + 4;
    int result = 0;
    bool marker = strncmp(hidden, ".wh.", 4) == 0; /* others have no meaning here */
    if (!marker && *hidden && strcmp(hidden, ".") != 0 && strcmp(hidden, "..") != 0 &&
        remove_at(parent, hidden, 0) < 0)
        result = err_errno(err, "hiding '%s'", path);
    close(parent);
    return result;
}

/* --- whole archives -------------------------------------------------------------------------- */

enum pass { PASS_PLAIN, PASS_WHITEOUTS, PASS_FILES };

static int read_entry(struct unpacking *unpacking, struct archive_entry *entry, enum pass pass,
                      struct err *err)
{
    if (unpacking->budget->entries_left == 0)
        return err_set(err, ERR_LIMIT, "the archive holds too many files");
    const char *raw = archive_entry_pathname(entry);
    if (!raw)
        raw = archive_entry_pathname_utf8(entry);
    char path[PATH_BYTES_MAX + 1];
    if (!raw || !clean_path(raw, path))
        return err_set(err, ERR_INPUT, "the archive has a name that leads outside: '%.200s'",
                       raw ? raw : "?");
    if (!path[0])
        return 0; /* the top itself */
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    bool whiteout = pass != PASS_PLAIN && strncmp(name, ".wh.", 4) == 0;
    if (pass == PASS_WHITEOUTS)
        return whiteout ? apply_whiteout(unpacking->root, path, err) : 0;
    if (whiteout)
        return 0;
    unpacking->budget->entries_left--;
    unpacking->budget->entries++;
    return put_entry(unpacking, entry, path, err);
}

static int read_archive(int file, int root, enum pass pass, struct image_budget *budget,
                        struct err *err)
{
    if (lseek(file, 0, SEEK_SET) < 0)
        return err_errno(err, "the archive");
    struct unpacking unpacking = {.archive = archive_read_new(),
                                  .root = root,
                                  .budget = budget,
                                  .owners = pass == PASS_FILES && geteuid() == 0};
    if (!unpacking.archive)
        return err_set(err, ERR_CAPACITY, "no memory for reading the archive");
    (void)archive_read_support_filter_all(unpacking.archive);
    (void)archive_read_support_format_tar(unpacking.archive);
    (void)archive_read_support_format_empty(unpacking.archive);
    int result = 0, status = archive_read_open_fd(unpacking.archive, file, 65536);
    struct archive_entry *entry;
    while (result == 0 && status == ARCHIVE_OK) {
        status = archive_read_next_header(unpacking.archive, &entry);
        if (status == ARCHIVE_WARN)
            status = ARCHIVE_OK;
        if (status == ARCHIVE_OK)
            result = read_entry(&unpacking, entry, pass, err);
    }
    if (result == 0 && status != ARCHIVE_EOF)
        result = err_set(err, ERR_INPUT, "not an archive that can be read: %s",
                         archive_error_string(unpacking.archive));
    (void)archive_read_free(unpacking.archive);
    return result;
}

int image_unpack_plain(int archive, int folder, struct image_budget *budget, struct err *err)
{
    return read_archive(archive, folder, PASS_PLAIN, budget, err);
}

static int check_digest(int file, const char *digest, struct err *err)
{
    EVP_MD_CTX *sum = EVP_MD_CTX_new();
    unsigned char bytes[EVP_MAX_MD_SIZE];
    unsigned size = 0;
    OWN(mem) char *block = mem_alloc(1 << 16);
    bool good =
        sum && EVP_DigestInit_ex(sum, EVP_sha256(), NULL) == 1 && lseek(file, 0, SEEK_SET) == 0;
    for (ssize_t got; good && (got = read(file, block, 1 << 16)) != 0;)
        good = got > 0 && EVP_DigestUpdate(sum, block, (size_t)got) == 1;
    good = good && EVP_DigestFinal_ex(sum, bytes, &size) == 1;
    EVP_MD_CTX_free(sum);
    if (!good)
        return err_set(err, ERR_SYSTEM, "a checksum could not be made");
    OWN(buf) struct buf text = {0};
    buf_format(&text, "sha256:");
    text_hex(&text, str_make(bytes, size));
    if (!str_equal(buf_str(&text), str_of(digest)))
        return err_set(err, ERR_INPUT, "its checksum is not the one the image names");
    return 0;
}

int image_unpack_layer(int archive, const char *digest, int root, struct image_budget *budget,
                       struct err *err)
{
    if (digest && check_digest(archive, digest, err) < 0)
        return -1;
    if (read_archive(archive, root, PASS_WHITEOUTS, budget, err) < 0)
        return -1;
    return read_archive(archive, root, PASS_FILES, budget, err);
}
