/* journal.c - the segments: files under <home>/journal that only grow.
 *
 * A segment belongs to the process that made it, which holds a lock on it while it lives; so
 * several processes can share a home, and a segment that can be locked has a dead owner. It gets
 * its final name only when its head is on disk and the lock is held. Names begin with the time in
 * hexadecimal and sort by it.
 *
 * A commit is one write and one fdatasync. When either fails the segment is cut back to where it
 * was, so that nothing half-written stays; a segment that cannot be cut back, or whose sync failed
 * (the kernel may have dropped the pages), is left alone and a new one is started.
 *
 * A segment grows ahead of its records, by zeros: a sync that changes neither its size nor its
 * blocks is one write to the disk instead of two, and takes half the time. Zeros are no record;
 * they are cut off when the segment is closed, or found after its owner's death. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/file.h"
#include "base/id.h"
#include "base/log.h"
#include "base/mem.h"
#include "store/inner.h"

#define SEGMENT_BYTES_MAX (64u << 20)
#define SEGMENT_READ_MAX (2ll << 30)
#define SUFFIX ".journal"
#define TIME_MAX (((uint64_t)1 << 52) - 1) /* of 13 digits */
#define GROW_BYTES_MIN ((uint64_t)64 << 10)
#define GROW_BYTES_MAX ((uint64_t)1 << 20)

int journal_open(struct journal *journal, const char *home, bool create, struct err *err)
{
    *journal = (struct journal){.fd = -1, .segment_bytes_max = SEGMENT_BYTES_MAX};
    journal->dir = mem_format("%s/journal", home);
    if (create && file_make_dirs(journal->dir, 0700, err) < 0)
        return -1;
    return 0;
}

/* The zeros that were not needed. What stays is harmless. */
static void segment_end(struct journal *journal)
{
    if (journal->fd >= 0 && journal->allocated > journal->size)
        (void)!ftruncate(journal->fd, (off_t)journal->size);
    fd_close(&journal->fd);
}

void journal_close(struct journal *journal)
{
    segment_end(journal);
    free(journal->dir);
    journal->dir = NULL;
}

static int sync_dir(const char *path, struct err *err)
{
    OWN(fd) int dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir < 0 || fsync(dir) < 0)
        return err_errno(err, "syncing '%s'", path);
    return 0;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

char **journal_names(const struct journal *journal, struct err *err)
{
    char **names = mem_zero(sizeof *names);
    size_t count = 0;
    DIR *dir = opendir(journal->dir);
    if (!dir) {
        if (errno == ENOENT)
            return names;
        err_errno(err, "journal '%s'", journal->dir);
        free(names);
        return NULL;
    }
    struct dirent *entry;
    while ((entry = readdir(dir))) {
        struct str name = str_of(entry->d_name);
        if (name.data[0] == '.' || name.size >= sizeof journal->name ||
            !str_ends(name, STR(SUFFIX)))
            continue;
        names = mem_grow(names, (count + 2) * sizeof *names);
        names[count++] = str_dup(name);
        names[count] = NULL;
    }
    closedir(dir);
    qsort(names, count, sizeof *names, by_name);
    return names;
}

void journal_names_free(char **names)
{
    for (char **name = names; name && *name; name++)
        free(*name);
    free(names);
}

/* Later than every segment that is there, also when the clock was set back: the order of the names
 * is the order in which everything happened. */
static uint64_t segment_time(const struct journal *journal)
{
    uint64_t now = clock_wall_ms();
    char **names = journal_names(journal, NULL);
    for (char **name = names; names && *name; name++) {
        uint64_t time = strtoull(*name, NULL, 16);
        if (time >= now && time < TIME_MAX)
            now = time + 1;
    }
    journal_names_free(names);
    return now;
}

static int segment_create(struct journal *journal, struct err *err)
{
    uint64_t now = segment_time(journal);
    char random[9], head[SEGMENT_HEAD_SIZE];
    id_random_hex(random, 4);
    snprintf(journal->name, sizeof journal->name, "%013llx-%s" SUFFIX, (unsigned long long)now,
             random);
    OWN(mem) char *fresh = mem_format("%s/.new-%s", journal->dir, journal->name);
    OWN(mem) char *path = mem_format("%s/%s", journal->dir, journal->name);
    OWN(fd) int fd = open(fresh, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0)
        return err_errno(err, "creating journal segment '%s'", path);
    segment_head_write(head, now);
    if (flock(fd, LOCK_EX | LOCK_NB) < 0 || fd_write_all(fd, head, sizeof head) < 0 ||
        fdatasync(fd) < 0 || rename(fresh, path) < 0) {
        err_errno(err, "creating journal segment '%s'", path);
        (void)unlink(fresh);
        return -1;
    }
    if (sync_dir(journal->dir, err) < 0)
        return -1;
    segment_end(journal);
    journal->fd = fd_take(&fd);
    journal->size = journal->allocated = SEGMENT_HEAD_SIZE;
    journal->sequence = 0;
    return 0;
}

int journal_prepare(struct journal *journal, struct err *err)
{
    if (journal->fd >= 0 && journal->size < journal->segment_bytes_max)
        return 0;
    return segment_create(journal, err);
}

bool journal_ready(const struct journal *journal, size_t size)
{
    return journal->fd >= 0 && journal->size < journal->segment_bytes_max &&
           journal->size + size <= journal->allocated;
}

static int write_at(int fd, const char *data, size_t size, uint64_t offset)
{
    while (size) {
        ssize_t wrote = pwrite(fd, data, size, (off_t)offset);
        if (wrote < 0 && errno == EINTR)
            continue;
        if (wrote <= 0)
            return -1;
        data += wrote;
        size -= (size_t)wrote;
        offset += (uint64_t)wrote;
    }
    return 0;
}

/* So that the next records find their place on the disk. A failure only means that they do not. */
static void grow(struct journal *journal, size_t needed)
{
    static const char zeros[64 << 10];
    uint64_t ahead = journal->size;
    ahead = ahead < GROW_BYTES_MIN ? GROW_BYTES_MIN : ahead;
    ahead = ahead > GROW_BYTES_MAX ? GROW_BYTES_MAX : ahead;
    if (journal->size + needed + ahead / 8 <= journal->allocated || needed > ahead / 2)
        return;
    uint64_t wanted = journal->size + needed + ahead, at = journal->allocated;
    while (at < wanted && write_at(journal->fd, zeros, sizeof zeros, at) == 0)
        at += sizeof zeros;
    if (at < wanted)
        (void)!ftruncate(journal->fd, (off_t)at); /* whatever was written of the last piece */
    journal->allocated = at;
}

int journal_write(struct journal *journal, struct str bytes, struct err *err)
{
    grow(journal, bytes.size);
    if (write_at(journal->fd, bytes.data, bytes.size, journal->size) == 0) {
        journal->size += bytes.size;
        if (journal->allocated < journal->size)
            journal->allocated = journal->size;
        return 0;
    }
    err_errno(err, "journal segment '%s/%s'", journal->dir, journal->name);
    if (ftruncate(journal->fd, (off_t)journal->size) < 0)
        fd_close(&journal->fd); /* in doubt: the next commit starts a new segment */
    journal->allocated = journal->size;
    return -1;
}

int journal_sync(struct journal *journal, struct err *err)
{
    if (fdatasync(journal->fd) < 0)
        return err_errno(err, "journal segment '%s/%s'", journal->dir, journal->name);
    return 0;
}

void journal_spoil(struct journal *journal, uint64_t size)
{
    (void)!ftruncate(journal->fd, (off_t)size);
    fd_close(&journal->fd);
}

int segment_open(struct segment *segment, const struct journal *journal, const char *name,
                 struct err *err)
{
    *segment = (struct segment){.fd = -1, .name = name};
    OWN(mem) char *path = mem_format("%s/%s", journal->dir, name);
    segment->fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat status;
    if (segment->fd < 0 || fstat(segment->fd, &status) < 0)
        return err_errno(err, "journal segment '%s'", path);
    if (status.st_size > SEGMENT_READ_MAX)
        return err_set(err, ERR_LIMIT, "journal segment '%s' has %lld bytes", path,
                       (long long)status.st_size);
    /* Read, not mapped: its owner may cut it back while we look. */
    char *bytes = mem_alloc((size_t)status.st_size + 1);
    ssize_t got = fd_read_all(segment->fd, bytes, (size_t)status.st_size);
    segment->bytes = str_make(bytes, got > 0 ? (size_t)got : 0);
    if (got < 0)
        return err_errno(err, "reading journal segment '%s'", path);
    return 0;
}

int journal_read(const struct journal *journal, const char *name, uint64_t offset, struct buf *out,
                 struct err *err)
{
    OWN(mem) char *path = mem_format("%s/%s", journal->dir, name);
    OWN(fd) int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || lseek(fd, (off_t)offset, SEEK_SET) < 0)
        return err_errno(err, "journal segment '%s'", path);
    ssize_t got = fd_read_all(fd, buf_reserve(out, RECORD_HEAD_SIZE), RECORD_HEAD_SIZE);
    if (got < 0)
        return err_errno(err, "reading '%s'", path);
    uint32_t size;
    memcpy(&size, out->data, sizeof size);
    if (got < (ssize_t)RECORD_HEAD_SIZE || size > RECORD_BYTES_MAX)
        return err_set(err, ERR_PROTOCOL, "there is no record at %llu of '%s'",
                       (unsigned long long)offset, path);
    buf_added(out, RECORD_HEAD_SIZE);
    got = fd_read_all(fd, buf_reserve(out, size), size);
    if (got < 0)
        return err_errno(err, "reading '%s'", path);
    buf_added(out, (size_t)got);
    return 0;
}

void segment_close(struct segment *segment)
{
    free((void *)(uintptr_t)segment->bytes.data);
    segment->bytes = STR_NONE;
    fd_close(&segment->fd);
}

size_t segment_used(const struct segment *segment, size_t offset)
{
    size_t end = segment->bytes.size;
    const char *data = segment->bytes.data;
    static const char zeros[4096];
    while (end - offset >= sizeof zeros &&
           memcmp(data + end - sizeof zeros, zeros, sizeof zeros) == 0)
        end -= sizeof zeros;
    while (end > offset && data[end - 1] == 0)
        end--;
    return end;
}

size_t segment_walk(const struct segment *segment, size_t offset, uint64_t *damaged,
                    bool (*on_record)(void *context, const struct store_view *view), void *context)
{
    if (!segment_head_valid(segment->bytes))
        return 0;
    if (offset < SEGMENT_HEAD_SIZE)
        offset = SEGMENT_HEAD_SIZE;
    uint64_t sequence = 0;
    struct store_view view;
    for (;;) {
        if (record_read(segment->bytes, offset, &view)) {
            view.segment = str_of(segment->name);
            sequence = view.sequence;
            offset += view.size;
            if (!on_record(context, &view))
                return offset;
            continue;
        }
        size_t end = segment_used(segment, offset);
        size_t next = end > offset ? record_resync(segment->bytes, offset, end, sequence) : end;
        if (next == end)
            return offset;
        LOG_WARN("store", segment->name, "%zu damaged bytes at offset %zu are skipped",
                 next - offset, offset);
        if (damaged)
            ++*damaged;
        offset = next;
    }
}
