/* users.c - from "name", "uid" or "uid:gid" to numbers, without the image's libc.
 *
 * /etc/passwd and /etc/group belong to the sandbox, so they are read as hostile text: at most 1
 * MiB, a regular file, lines with the right number of fields, numbers of decimal digits only. "+1",
 * "0x0", "00", "-1" and numbers past 32 bits are refused rather than understood. 4294967295 means
 * "no change" to the kernel and is refused too. */
#include "porter.h"

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/err.h"
#include "base/fd.h"
#include "base/mem.h"

#define TABLE_BYTES_MAX (1u << 20)

bool user_number(struct str text, uint32_t *number)
{
    if (!text.size || text.size > 10 || (text.size > 1 && text.data[0] == '0'))
        return false;
    uint64_t value = 0;
    for (size_t i = 0; i < text.size; i++) {
        if (text.data[i] < '0' || text.data[i] > '9')
            return false;
        value = value * 10 + (uint64_t)(text.data[i] - '0');
    }
    if (value >= UINT32_MAX)
        return false;
    *number = (uint32_t)value;
    return true;
}

bool user_is_root(struct str spec, uid_t default_uid)
{
    if (!spec.size)
        return default_uid == 0;
    uint32_t number;
    return str_is(spec, "root") || (user_number(str_cut(&spec, ':'), &number) && number == 0);
}

static void read_table(int root, const char *path, struct buf *out)
{
    struct stat stat;
    OWN(fd) int fd = openat(root, path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &stat) < 0 || !S_ISREG(stat.st_mode) || stat.st_size > TABLE_BYTES_MAX)
        return;
    ssize_t size = fd_read_all(fd, buf_reserve(out, TABLE_BYTES_MAX), TABLE_BYTES_MAX);
    if (size > 0)
        buf_added(out, (size_t)size);
}

static size_t split(struct str line, struct str *fields, size_t count_max)
{
    size_t count = 0;
    while (line.data && count < count_max)
        fields[count++] = str_cut(&line, ':');
    return line.data ? count_max + 1 : count;
}

static void copy(char *to, size_t size, struct str from)
{
    if (from.size >= size)
        from.size = 0;
    memcpy(to, from.data, from.size);
    to[from.size] = '\0';
}

/* By name when `name` has bytes, else by number. */
static bool find_entry(struct str table, struct str name, uid_t uid, struct user *user)
{
    while (table.data) {
        struct str fields[7];
        uint32_t entry_uid, entry_gid;
        if (split(str_cut(&table, '\n'), fields, 7) != 7 || !fields[0].size ||
            !user_number(fields[2], &entry_uid) || !user_number(fields[3], &entry_gid))
            continue;
        if (name.size ? !str_equal(fields[0], name) : entry_uid != uid)
            continue;
        user->uid = entry_uid;
        user->gid = entry_gid;
        copy(user->name, sizeof user->name, fields[0]);
        copy(user->home, sizeof user->home, fields[5]);
        return true;
    }
    return false;
}

static void find_groups(struct str table, struct user *user)
{
    while (table.data && user->group_count < GROUPS_MAX) {
        struct str fields[4];
        uint32_t gid;
        if (split(str_cut(&table, '\n'), fields, 4) != 4 || !user_number(fields[2], &gid))
            continue;
        while (fields[3].data) {
            if (!str_is(str_cut(&fields[3], ','), user->name))
                continue;
            if (gid != user->gid && user->group_count < GROUPS_MAX)
                user->groups[user->group_count++] = gid;
            break;
        }
    }
}

int user_find(int root, struct str spec, uid_t uid, gid_t gid, struct user *user, struct err *err)
{
    *user = (struct user){.uid = uid, .gid = gid};
    if (!spec.size)
        return 0;
    struct str rest = spec;
    struct str first = str_cut(&rest, ':');
    uint32_t uid_number, gid_number;
    bool numeric = user_number(first, &uid_number);
    if (rest.data && (!numeric || !user_number(rest, &gid_number)))
        return err_set(err, ERR_INPUT, "user '%.*s' is not a name or uid[:gid]", STR_ARGS(spec));
    if (!first.size || (!numeric && (first.data[0] == '+' || first.data[0] == '-')))
        return err_set(err, ERR_INPUT, "user '%.*s' is not a name or uid[:gid]", STR_ARGS(spec));
    if (numeric && rest.data) {
        user->uid = uid_number;
        user->gid = gid_number;
        return 0;
    }
    OWN(buf) struct buf table = {0};
    read_table(root, "etc/passwd", &table);
    if (!find_entry(buf_str(&table), numeric ? STR_NONE : first, numeric ? uid_number : 0, user)) {
        if (!numeric && !str_is(first, "root"))
            return err_set(err, ERR_NOT_FOUND, "there is no user '%.*s'", STR_ARGS(first));
        user->uid = user->gid = numeric ? uid_number : 0;
        return 0;
    }
    buf_clear(&table);
    read_table(root, "etc/group", &table);
    find_groups(buf_str(&table), user);
    return 0;
}
