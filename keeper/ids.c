/* ids.c - user ids for sandboxes: ranges, maps, and the keeper's own user namespace.
 *
 * As root the ranges start at 0x70000000: above what useradd hands out as subordinate ids and above
 * what systemd-nspawn uses, below 2^31. In a container that maps fewer ids the ranges come from the
 * top of what there is; when that is less than one range, all sandboxes share what there is.
 *
 * newuidmap and newgidmap must run outside the namespace they fill, so a helper is forked first and
 * told when the namespace exists. */
#include "ids.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/err.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/mem.h"

#define RANGES_BASE 0x70000000u
#define RANGES_MAX 4095u

static int write_file(const char *path, const char *text)
{
    OWN(fd) int file = open(path, O_WRONLY | O_CLOEXEC);
    if (file < 0)
        return -1;
    size_t size = strlen(text);
    return write(file, text, size) == (ssize_t)size ? 0 : -1;
}

static long read_number(const char *path)
{
    OWN(fd) int file = open(path, O_RDONLY | O_CLOEXEC);
    char text[32] = "";
    if (file < 0 || read(file, text, sizeof text - 1) <= 0)
        return -1;
    return strtol(text, NULL, 10);
}

int ids_explain_refusal(int number, struct err *err)
{
    if (read_number("/proc/sys/user/max_user_namespaces") == 0)
        return err_set(err, ERR_UNSUPPORTED,
                       "user namespaces are switched off on this machine "
                       "(user.max_user_namespaces is 0)");
    if (read_number("/proc/sys/kernel/unprivileged_userns_clone") == 0 && number == EPERM)
        return err_set(err, ERR_DENIED,
                       "user namespaces are kept from ordinary users on this machine "
                       "(kernel.unprivileged_userns_clone is 0)");
    if (read_number("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") == 1 &&
        number != ENOSPC)
        return err_set(err, ERR_DENIED,
                       "user namespaces are kept from ordinary users by AppArmor "
                       "(kernel.apparmor_restrict_unprivileged_userns is 1)");
    if (number == ENOSPC)
        return err_set(err, ERR_CAPACITY,
                       "no more namespaces for this user (a limit in /proc/sys/user is reached)");
    errno = number;
    return err_errno(err, "creating namespaces");
}

/* Of an outer map, how many ids from 0 on are there in one piece? */
static uint64_t ids_in_one_piece(const char *path)
{
    OWN(fd) int file = open(path, O_RDONLY | O_CLOEXEC);
    char text[4096] = "";
    if (file < 0 || fd_read_all(file, text, sizeof text - 1) <= 0)
        return 0;
    uint64_t end = 0;
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        unsigned long long first, outer, count;
        if (sscanf(line, "%llu %llu %llu", &first, &outer, &count) == 3 && first <= end &&
            first + count > end)
            end = first + count;
    }
    return end;
}

static void choose_ranges(struct ids *ids)
{
    uint64_t uids = ids_in_one_piece("/proc/self/uid_map");
    uint64_t gids = ids_in_one_piece("/proc/self/gid_map");
    uint64_t have = uids < gids ? uids : gids;
    if (have > RANGES_BASE + (uint64_t)RANGES_MAX * IDS_RANGE_SIZE) {
        ids->mode = IDS_RANGES;
        ids->base = RANGES_BASE;
        ids->slots = RANGES_MAX;
    } else if (have >= 2 * (uint64_t)IDS_RANGE_SIZE) {
        ids->mode = IDS_RANGES;
        ids->base = IDS_RANGE_SIZE;
        ids->slots = (uint32_t)(have / IDS_RANGE_SIZE - 1);
    } else if (have > IDS_USER + 1) {
        ids->mode = IDS_SHARED;
        ids->base = 1; /* never root itself */
        ids->count = have - 1 < IDS_RANGE_SIZE ? (uint32_t)have - 1 : IDS_RANGE_SIZE;
    } else {
        ids->mode = IDS_SINGLE;
    }
    if (ids->mode == IDS_RANGES)
        ids->taken = mem_zero((ids->slots / 64 + 1) * sizeof *ids->taken);
}

/* From /etc/passwd itself: the keeper is linked without the libraries that know other places. */
static void find_user_name(uid_t uid, char *name, size_t size)
{
    name[0] = '\0';
    FILE *file = fopen("/etc/passwd", "re");
    char line[1024];
    while (file && fgets(line, sizeof line, file)) {
        char *who = strtok(line, ":"), *id = strtok(NULL, ":");
        id = id ? strtok(NULL, ":") : NULL;
        if (id && strtoul(id, NULL, 10) == uid) {
            snprintf(name, size, "%s", who);
            break;
        }
    }
    if (file)
        fclose(file);
}

/* Finds "name:start:count" or "uid:start:count" with at least one range's worth. */
static bool find_subordinate(const char *path, const char *name, uid_t uid, unsigned long *start,
                             unsigned long *count)
{
    FILE *file = fopen(path, "re");
    if (!file)
        return false;
    char number[16], line[256];
    snprintf(number, sizeof number, "%u", uid);
    bool found = false;
    while (!found && fgets(line, sizeof line, file)) {
        char *who = strtok(line, ":"), *first = strtok(NULL, ":"), *many = strtok(NULL, ":\n");
        if (!who || !first || !many || (strcmp(who, name) != 0 && strcmp(who, number) != 0))
            continue;
        *start = strtoul(first, NULL, 10);
        *count = strtoul(many, NULL, 10);
        found = *start > 0 && *count >= IDS_RANGE_SIZE - 1;
    }
    fclose(file);
    return found;
}

static int run_mapper(const char *program, pid_t pid, unsigned own, unsigned long start,
                      unsigned long count)
{
    char target[16], outer[16], first[24], many[24];
    snprintf(target, sizeof target, "%d", (int)pid);
    snprintf(outer, sizeof outer, "%u", own);
    snprintf(first, sizeof first, "%lu", start);
    snprintf(many, sizeof many, "%lu", count);
    pid_t child = fork();
    if (child == 0) {
        execlp(program, program, target, "0", outer, "1", "1", first, many, (char *)NULL);
        _exit(127);
    }
    int status;
    return child > 0 && waitpid(child, &status, 0) == child && status == 0 ? 0 : -1;
}

/* Forked before the namespace exists; fills its maps from outside. Exit status 0: done. */
static pid_t start_mapper(int ready[2], uid_t uid, gid_t gid)
{
    char name[256];
    find_user_name(uid, name, sizeof name);
    unsigned long uid_start, uid_count, gid_start, gid_count;
    if (!find_subordinate("/etc/subuid", name, uid, &uid_start, &uid_count) ||
        !find_subordinate("/etc/subgid", name, uid, &gid_start, &gid_count))
        return 0;
    pid_t keeper = getpid();
    pid_t helper = fork();
    if (helper != 0)
        return helper;
    char byte;
    close(ready[1]);
    if (read(ready[0], &byte, 1) != 1)
        _exit(1);
    if (run_mapper("newgidmap", keeper, gid, gid_start, IDS_RANGE_SIZE - 1) < 0 ||
        run_mapper("newuidmap", keeper, uid, uid_start, IDS_RANGE_SIZE - 1) < 0)
        _exit(1);
    _exit(0);
}

static int map_single(uid_t uid, gid_t gid, struct err *err)
{
    char text[64];
    (void)write_file("/proc/self/setgroups", "deny");
    snprintf(text, sizeof text, "0 %u 1", uid);
    if (write_file("/proc/self/uid_map", text) < 0)
        return err_errno(err, "mapping the user id %u", uid);
    snprintf(text, sizeof text, "0 %u 1", gid);
    if (write_file("/proc/self/gid_map", text) < 0)
        return err_errno(err, "mapping the group id %u", gid);
    return 0;
}

int ids_enter(struct ids *ids, struct err *err)
{
    uid_t uid = geteuid();
    gid_t gid = getegid();
    ids->outer_uid = uid;
    ids->count = IDS_RANGE_SIZE;
    if (uid == 0) {
        choose_ranges(ids);
        return 0;
    }

    int ready[2];
    if (pipe2(ready, O_CLOEXEC) < 0)
        return err_errno(err, "pipe");
    pid_t helper = start_mapper(ready, uid, gid);
    int made = unshare(CLONE_NEWUSER);
    int number = errno;
    bool mapped = false;
    if (helper > 0) {
        int status = 1;
        if (made == 0)
            (void)!write(ready[1], "x", 1);
        close(ready[1]);
        ready[1] = -1;
        (void)waitpid(helper, &status, 0);
        mapped = made == 0 && status == 0;
    }
    close(ready[0]);
    if (ready[1] >= 0)
        close(ready[1]);
    if (made < 0)
        return ids_explain_refusal(number, err);
    ids->mode = mapped ? IDS_SHARED : IDS_SINGLE;
    if (!mapped && map_single(uid, gid, err) < 0)
        return -1;
    if (setresgid(0, 0, 0) < 0 || setresuid(0, 0, 0) < 0)
        return err_errno(err, "becoming root of the keeper's user namespace");
    if (mapped)
        (void)setgroups(0, NULL);
    return 0;
}

void ids_deinit(struct ids *ids)
{
    free(ids->taken);
    ids->taken = NULL;
}

int ids_take(struct ids *ids, struct err *err)
{
    if (ids->mode != IDS_RANGES)
        return 0;
    for (uint32_t word = 0; word <= ids->slots / 64; word++) {
        if (!~ids->taken[word])
            continue;
        uint32_t slot = word * 64 + (uint32_t)__builtin_ctzll(~ids->taken[word]);
        if (slot >= ids->slots)
            break;
        ids->taken[word] |= 1ull << slot % 64;
        ids->taken_count++;
        return (int)slot;
    }
    return err_set(err, ERR_CAPACITY, "all %u ranges of user ids are in use", ids->slots);
}

void ids_give(struct ids *ids, int slot)
{
    if (ids->mode != IDS_RANGES || slot < 0)
        return;
    ids->taken[slot / 64] &= ~(1ull << slot % 64);
    ids->taken_count--;
}

void ids_describe(const struct ids *ids, int slot, bool root_user, char *text, size_t size)
{
    switch (ids->mode) {
    case IDS_RANGES:
        snprintf(text, size, "0 %u %u", ids->base + (uint32_t)slot * IDS_RANGE_SIZE,
                 IDS_RANGE_SIZE);
        return;
    case IDS_SHARED:
        if (ids->base) /* one piece; a user's own id and the subordinate ones are two */
            snprintf(text, size, "0 %u %u", ids->base, ids->count);
        else
            snprintf(text, size, "0 0 1\n1 1 %u", ids->count - 1);
        return;
    case IDS_SINGLE:
        snprintf(text, size, "%u 0 1", root_user ? 0 : IDS_USER);
        return;
    }
}

int ids_write_maps(const struct ids *ids, int slot, bool root_user, pid_t pid, struct err *err)
{
    char path[64], text[64];
    ids_describe(ids, slot, root_user, text, sizeof text);
    if (ids->mode ==
        IDS_SINGLE) { /* already denied in the keeper's own namespace when it is not root */
        snprintf(path, sizeof path, "/proc/%d/setgroups", (int)pid);
        (void)write_file(path, "deny");
    }
    snprintf(path, sizeof path, "/proc/%d/uid_map", (int)pid);
    if (write_file(path, text) < 0)
        return err_errno(err, "mapping user ids '%s' into the sandbox", text);
    snprintf(path, sizeof path, "/proc/%d/gid_map", (int)pid);
    if (write_file(path, text) < 0)
        return err_errno(err, "mapping group ids '%s' into the sandbox", text);
    return 0;
}
