/* mounts.c - fsopen, open_tree, mount_setattr, move_mount with errors that name what was tried. */
#include "mounts.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/err.h"
#include "base/fd.h"
#include "base/mem.h"

/* The kernel explains a refused option in the context's own log. */
static int explain(int context, const char *type, const char *what, struct err *err)
{
    int number = errno;
    char line[200] = "";
    ssize_t got = read(context, line, sizeof line - 1);
    if (got > 2) { /* "e text" */
        line[got] = '\0';
        line[strcspn(line, "\n")] = '\0';
        errno = number;
        return err_errno(err, "mounting %s (%s; the kernel says: %s)", type, what, line + 2);
    }
    errno = number;
    return err_errno(err, "mounting %s (%s)", type, what);
}

int mount_make(const char *type, const struct mount_option *options, unsigned attributes,
               struct err *err)
{
    OWN(fd) int context = fsopen(type, FSOPEN_CLOEXEC);
    if (context < 0)
        return err_errno(err, "this kernel offers no %s filesystem here", type);
    for (; options && options->key; options++) {
        unsigned command = options->value ? FSCONFIG_SET_STRING : FSCONFIG_SET_FLAG;
        if (fsconfig(context, command, options->key, options->value, 0) < 0)
            return explain(context, type, options->key, err);
    }
    if (fsconfig(context, FSCONFIG_CMD_CREATE, NULL, NULL, 0) < 0)
        return explain(context, type, "create", err);
    int mount = fsmount(context, FSMOUNT_CLOEXEC, attributes);
    if (mount < 0)
        return explain(context, type, "mount", err);
    return mount;
}

int mount_clone(int dir, const char *path, bool recursive, struct err *err)
{
    unsigned flags = OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | (recursive ? AT_RECURSIVE : 0) |
                     (*path ? 0 : AT_EMPTY_PATH);
    int mount = open_tree(dir, path, flags);
    if (mount < 0)
        return err_errno(err, "copying the mount at '%s'", path);
    return mount;
}

int mount_shape(int mount, bool recursive, uint64_t attributes, int userns, struct err *err)
{
    struct mount_attr want = {.attr_set = attributes};
    if (userns >= 0) {
        want.attr_set |= MOUNT_ATTR_IDMAP;
        want.userns_fd = (uint64_t)userns;
    }
    if (mount_setattr(mount, "", AT_EMPTY_PATH | (recursive ? AT_RECURSIVE : 0), &want,
                      sizeof want) == 0)
        return 0;
    if (userns >= 0 && (errno == EINVAL || errno == EPERM || errno == ENOSYS))
        return err_set(err, ERR_UNSUPPORTED,
                       "the filesystem cannot shift owners (idmapped mounts): %s", strerror(errno));
    return err_errno(err, "setting mount attributes");
}

int mount_open_inside(int dir, const char *path, uint64_t flags)
{
    struct open_how how = {
        .flags = flags | O_PATH | O_CLOEXEC,
        .resolve = RESOLVE_IN_ROOT | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS,
    };
    return (int)syscall(SYS_openat2, dir, path, &how, sizeof how);
}

int mount_attach(int mount, int dir, const char *path, struct err *err)
{
    OWN(fd) int target = mount_open_inside(dir, path, 0);
    if (target < 0)
        return err_errno(err, "the mount point '%s'", path);
    if (move_mount(mount, "", target, "", MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH) < 0)
        return err_errno(err, "attaching a mount at '%s'", path);
    return 0;
}

static bool is_for_machines(const char *type)
{
    static const char *const types[] = {
        "autofs",  "binfmt_misc", "bpf",        "cgroup",     "cgroup2",   "configfs",
        "debugfs", "devpts",      "efivarfs",   "fusectl",    "hugetlbfs", "mqueue",
        "nsfs",    "pstore",      "rpc_pipefs", "securityfs", "selinuxfs", "tracefs"};
    for (size_t i = 0; i < COUNT(types); i++)
        if (strcmp(type, types[i]) == 0)
            return true;
    return false;
}

void mounts_prune(bool (*keep)(const char *path, void *context), void *context)
{
    FILE *file = fopen("/proc/self/mountinfo", "re");
    if (!file)
        return;
    char line[4096], path[1024], type[64];
    char *paths[256];
    size_t count = 0;
    while (count < COUNT(paths) && fgets(line, sizeof line, file)) {
        char *dash = strstr(line, " - ");
        if (!dash || sscanf(line, "%*s %*s %*s %*s %1023s", path) != 1 ||
            sscanf(dash + 3, "%63s", type) != 1 || strchr(path, '\\'))
            continue;
        bool device = strncmp(path, "/dev/", 5) == 0 && strncmp(path, "/dev/shm", 8) != 0;
        if ((is_for_machines(type) || device) && !keep(path, context))
            paths[count++] = mem_dup(path);
    }
    fclose(file);
    while (count-- > 0) { /* best effort: an ordinary user cannot take mounts apart */
        (void)umount2(paths[count], MNT_DETACH);
        free(paths[count]);
    }
}
