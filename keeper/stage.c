/* stage.c - building what sandboxes are put together from.
 *
 * What a sandbox sees of the host is named here, and nothing else can be seen: system directories
 * are mounted one by one (no overlay of "/", where a directory made tomorrow would show), /etc is
 * made anew from a short list of files, and of those only what everybody on the host may read.
 * Files that hold a private key are left out wherever they lie. */
#include "stage.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/mem.h"
#include "ids.h"
#include "mounts.h"

#define ETC_FILE_MAX (4u << 20)
#define ETC_FILES_MAX 4000

/* clang-format off */
static const char *const system_dirs[] = {"usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32"};

/* Of /etc, when it is there. Directories with all that is in them. */
static const char *const etc_names[] = {
    "alternatives", "bash.bashrc", "ca-certificates", "ca-certificates.conf", "debian_version",
    "fonts", "gai.conf", "gprofng.rc", "host.conf", "inputrc", "java-11-openjdk",
    "java-17-openjdk", "java-21-openjdk", "ld.so.cache", "ld.so.conf", "ld.so.conf.d",
    "locale.alias", "localtime", "login.defs", "lsb-release", "magic", "magic.mime", "mailcap",
    "mime.types", "os-release", "perl", "pki/tls/certs", "pki/ca-trust/extracted", "profile",
    "protocols", "python3", "python3.9", "python3.10", "python3.11", "python3.12",
    "python3.13", "redhat-release", "rpc", "services", "shells", "skel", "ssl/certs",
    "ssl/openssl.cnf", "terminfo", "timezone", "vim", "xattr.conf",
};

struct made_dir {
    const char *path;
    mode_t mode;
    bool of_user; /* owned by the ordinary user */
};
static const struct made_dir skel_dirs[] = {
    {"etc", 0755, false}, {"home", 0755, false}, {"home/agent", 0755, true}, {"work", 0755, true},
    {"tmp", 01777, false}, {"run", 0755, false}, {"run/lock", 01777, false}, {"root", 0700, false},
    {"var", 0755, false}, {"var/tmp", 01777, false}, {"var/lib", 0755, false},
    {"var/cache", 0755, false}, {"var/log", 0755, false}, {"var/spool", 0755, false},
    {"opt", 0755, false}, {"srv", 0755, false}, {"mnt", 0755, false}, {"media", 0755, false},
    {"boot", 0755, false}, {"proc", 0555, false}, {"dev", 0755, false}, {"sys", 0555, false},
};
static const struct made_dir graft_dirs[] = {
    {"etc", 0755, false}, {"home", 0755, false}, {"home/agent", 0755, true}, {"work", 0755, true},
    {"tmp", 01777, false}, {"run", 0755, false}, {"var", 0755, false}, {"var/tmp", 01777, false},
    {"proc", 0555, false}, {"dev", 0755, false}, {"sys", 0555, false},
};

struct made_file {
    const char *path, *content;
};
#define RESOLVER "nameserver 127.0.0.1\noptions timeout:1 attempts:1\n"
#define HOSTS "127.0.0.1\tlocalhost sandbox\n::1\tlocalhost ip6-localhost ip6-loopback\n"
static const struct made_file skel_files[] = {
    {"etc/resolv.conf", RESOLVER}, {"etc/hosts", HOSTS}, {"etc/hostname", "sandbox\n"},
    {"etc/nsswitch.conf", "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\n"
                          "networks: files\nprotocols: files\nservices: files\n"},
    {"etc/group", "root:x:0:\ndaemon:x:1:\nbin:x:2:\nsys:x:3:\ntty:x:5:\nmail:x:8:\nwww-data:x:33:\n"
                  "staff:x:50:\nusers:x:100:\nagent:x:1000:\nnogroup:x:65534:\n"},
    {"etc/fstab", ""}, {"etc/environment", ""},
};
static const struct made_file graft_files[] = {
    {"etc/resolv.conf", RESOLVER}, {"etc/hosts", HOSTS}, {"etc/hostname", "sandbox\n"},
};
/* clang-format on */

static int make_dirs(int root, const struct made_dir *dirs, size_t count, const struct ids *ids,
                     struct err *err)
{
    for (size_t i = 0; i < count; i++) {
        if ((mkdirat(root, dirs[i].path, dirs[i].mode) < 0 && errno != EEXIST) ||
            fchmodat(root, dirs[i].path, dirs[i].mode, 0) < 0)
            return err_errno(err, "making '%s' for sandboxes", dirs[i].path);
        if (dirs[i].of_user && ids->mode != IDS_SINGLE &&
            fchownat(root, dirs[i].path, IDS_USER, IDS_USER, AT_SYMLINK_NOFOLLOW) < 0)
            return err_errno(err, "giving '%s' to the sandbox's user", dirs[i].path);
    }
    return 0;
}

static int make_file(int root, const char *path, struct str content, struct err *err)
{
    OWN(fd)
    int file = openat(root, path, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0644);
    if (file < 0 || fd_write_all(file, content.data, content.size) < 0)
        return err_errno(err, "writing '%s' for sandboxes", path);
    return 0;
}

static int make_files(int root, const struct made_file *files, size_t count, struct err *err)
{
    for (size_t i = 0; i < count; i++)
        if (make_file(root, files[i].path, str_of(files[i].content), err) < 0)
            return -1;
    return 0;
}

/* --- copies of harmless files --------------------------------------------------------------- */

static void copy_file(int from, int to, const char *name, mode_t mode)
{
    OWN(fd) int in = openat(from, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    if (in < 0)
        return;
    OWN(buf) struct buf content = {0};
    for (;;) {
        char *room = buf_reserve(&content, 65536);
        ssize_t got = read(in, room, 65536);
        if (got < 0 || content.size > ETC_FILE_MAX)
            return;
        if (got == 0)
            break;
        buf_added(&content, (size_t)got);
    }
    if (str_find(buf_str(&content), STR("PRIVATE KEY-----")) >= 0)
        return;
    OWN(fd) int out = openat(to, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
    if (out >= 0)
        (void)fd_write_all(out, content.data, content.size);
}

/* Best effort: what cannot be read by everybody is not for sandboxes. */
static void copy_entry(int from, int to, const char *name, unsigned *left)
{
    struct stat facts;
    if (*left == 0 || str_ends(str_of(name), STR(".gz")) || /* alternatives of manual pages */
        fstatat(from, name, &facts, AT_SYMLINK_NOFOLLOW) < 0)
        return;
    (*left)--;
    if (S_ISLNK(facts.st_mode)) {
        char target[4096];
        ssize_t size = readlinkat(from, name, target, sizeof target - 1);
        if (size > 0) {
            target[size] = '\0';
            (void)symlinkat(target, to, name);
        }
        return;
    }
    if (!(facts.st_mode & S_IROTH))
        return;
    if (S_ISREG(facts.st_mode)) {
        copy_file(from, to, name, facts.st_mode & 0755);
        return;
    }
    if (!S_ISDIR(facts.st_mode) || !(facts.st_mode & S_IXOTH))
        return;
    (void)mkdirat(to, name, 0755);
    OWN(fd) int below = openat(to, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    int dir = openat(from, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *entries = dir >= 0 ? fdopendir(dir) : NULL;
    if (!entries) {
        fd_close(&dir);
        return;
    }
    if (below >= 0)
        for (struct dirent *entry; (entry = readdir(entries));)
            if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
                copy_entry(dirfd(entries), below, entry->d_name, left);
    closedir(entries);
}

static void copy_etc(int skel)
{
    OWN(fd) int host = open("/etc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    OWN(fd) int etc = openat(skel, "etc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (host < 0 || etc < 0)
        return;
    unsigned left = ETC_FILES_MAX;
    for (size_t i = 0; i < COUNT(etc_names); i++) {
        char parent[64];
        snprintf(parent, sizeof parent, "%s", etc_names[i]);
        char *last = strrchr(parent, '/');
        if (!last) {
            copy_entry(host, etc, parent, &left);
            continue;
        }
        *last++ = '\0';
        for (char *slash = parent; (slash = strchr(slash, '/')); slash++) {
            *slash = '\0';
            (void)mkdirat(etc, parent, 0755);
            *slash = '/';
        }
        OWN(fd) int from = openat(host, parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (from < 0)
            continue;
        (void)mkdirat(etc, parent, 0755);
        OWN(fd) int to = openat(etc, parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (to >= 0)
            copy_entry(from, to, last, &left);
    }
}

/* --- the parts ------------------------------------------------------------------------------ */

static int open_part(const struct stage *stage, const char *name, struct err *err)
{
    if (mkdirat(stage->dir, name, 0755) < 0)
        return err_errno(err, "making the stage's '%s'", name);
    int part = openat(stage->dir, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (part < 0)
        return err_errno(err, "the stage's '%s'", name);
    return part;
}

/* The host's system directories: links are made again, directories become trees. */
static int find_trees(struct stage *stage, int skel, struct err *err)
{
    for (size_t i = 0; i < COUNT(system_dirs); i++) {
        char path[32], target[256];
        snprintf(path, sizeof path, "/%s", system_dirs[i]);
        struct stat facts;
        if (lstat(path, &facts) < 0)
            continue;
        ssize_t size = S_ISLNK(facts.st_mode) ? readlink(path, target, sizeof target - 1) : -1;
        if (size > 0) {
            target[size] = '\0';
            if (symlinkat(target, skel, system_dirs[i]) < 0)
                return err_errno(err, "linking '%s' for sandboxes", system_dirs[i]);
        } else if (S_ISDIR(facts.st_mode) && stage->tree_count < STAGE_TREES_MAX) {
            if (mkdirat(skel, system_dirs[i], 0755) < 0)
                return err_errno(err, "making '%s' for sandboxes", system_dirs[i]);
            snprintf(stage->trees[stage->tree_count++].name, sizeof stage->trees[0].name, "%s",
                     system_dirs[i]);
        }
    }
    if (stage->tree_count == 0)
        return err_set(err, ERR_UNSUPPORTED, "this machine has no /usr to show to sandboxes");
    return 0;
}

static int build_skel(struct stage *stage, const struct ids *ids, struct err *err)
{
    OWN(fd) int skel = open_part(stage, "skel", err);
    if (skel < 0 || make_dirs(skel, skel_dirs, COUNT(skel_dirs), ids, err) < 0 ||
        make_files(skel, skel_files, COUNT(skel_files), err) < 0)
        return -1;
    const char *shell = access("/bin/bash", X_OK) == 0 ? "/bin/bash" : "/bin/sh";
    OWN(buf) struct buf passwd = {0};
    buf_format(&passwd,
               "root:x:0:0:root:/root:%s\n"
               "daemon:x:1:1:daemon:/usr/sbin:/usr/sbin/nologin\n"
               "bin:x:2:2:bin:/bin:/usr/sbin/nologin\n"
               "sys:x:3:3:sys:/dev:/usr/sbin/nologin\n"
               "mail:x:8:8:mail:/var/mail:/usr/sbin/nologin\n"
               "www-data:x:33:33:www-data:/var/www:/usr/sbin/nologin\n"
               "_apt:x:42:65534::/nonexistent:/usr/sbin/nologin\n"
               "agent:x:1000:1000:agent:/home/agent:%s\n"
               "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
               shell, shell);
    if (make_file(skel, "etc/passwd", buf_str(&passwd), err) < 0)
        return -1;
    (void)symlinkat("/run", skel, "var/run");
    (void)symlinkat("/run/lock", skel, "var/lock");
    (void)symlinkat("/proc/self/mounts", skel, "etc/mtab");
    copy_etc(skel);
    return find_trees(stage, skel, err);
}

static int build_graft(struct stage *stage, const struct ids *ids, struct err *err)
{
    OWN(fd) int graft = open_part(stage, "graft", err);
    if (graft < 0 || make_dirs(graft, graft_dirs, COUNT(graft_dirs), ids, err) < 0 ||
        make_files(graft, graft_files, COUNT(graft_files), err) < 0)
        return -1;
    return 0;
}

static const struct {
    const char *name;
    unsigned major, minor;
} nodes[] = {{"null", 1, 3},   {"zero", 1, 5},    {"full", 1, 7},
             {"random", 1, 8}, {"urandom", 1, 9}, {"tty", 5, 0}};

/* Own nodes where the kernel lets us, the host's bound otherwise (`host` are copies of those
 * mounts). */
static int build_dev(struct stage *stage, const int *host, struct err *err)
{
    OWN(fd) int dev = open_part(stage, "dev", err);
    if (dev < 0)
        return -1;
    for (size_t i = 0; i < COUNT(nodes); i++) {
        mode_t before = umask(0);
        int made = stage->dev_bound ? -1
                                    : mknodat(dev, nodes[i].name, S_IFCHR | 0666,
                                              makedev(nodes[i].major, nodes[i].minor));
        umask(before);
        if (made == 0 && i == 0) { /* usable, or on a filesystem that refuses devices? */
            OWN(fd) int try = openat(dev, nodes[i].name, O_RDWR | O_CLOEXEC);
            if (try < 0) {
                (void)unlinkat(dev, nodes[i].name, 0);
                made = -1;
            }
        }
        if (made == 0)
            continue;
        stage->dev_bound = true;
        if (make_file(dev, nodes[i].name, STR(""), err) < 0 || host[i] < 0 ||
            mount_attach(host[i], dev, nodes[i].name, err) < 0)
            return err_wrap(err, "the device '%s'", nodes[i].name);
    }
    static const char *const links[][2] = {{"/proc/self/fd", "fd"},
                                           {"/proc/self/fd/0", "stdin"},
                                           {"/proc/self/fd/1", "stdout"},
                                           {"/proc/self/fd/2", "stderr"},
                                           {"pts/ptmx", "ptmx"}};
    for (size_t i = 0; i < COUNT(links); i++)
        if (symlinkat(links[i][0], dev, links[i][1]) < 0)
            return err_errno(err, "linking '%s'", links[i][1]);
    if (mkdirat(dev, "pts", 0755) < 0 || mkdirat(dev, "shm", 0755) < 0)
        return err_errno(err, "making '/dev' for sandboxes");
    return 0;
}

static int build_places(struct stage *stage, struct err *err)
{
    OWN(fd) int lowers = open_part(stage, "l", err);
    if (lowers < 0)
        return -1;
    for (unsigned i = 0; i < STAGE_LOWERS_MAX; i++) {
        char name[8];
        snprintf(name, sizeof name, "%u", i);
        if (mkdirat(lowers, name, 0755) < 0)
            return err_errno(err, "making the stage");
    }
    static const char *const places[] = {"u", "n", "p", "d", "empty"};
    for (size_t i = 0; i < COUNT(places); i++)
        if (mkdirat(stage->dir, places[i], 0555) < 0)
            return err_errno(err, "making the stage");
    return 0;
}

/* Sandboxes get copies of these mounts as they are: read-only, also for whoever owns the files. */
static int freeze_part(struct stage *stage, const char *name, struct err *err)
{
    OWN(fd) int cover = mount_clone(stage->dir, name, true, err);
    if (cover < 0 ||
        mount_shape(cover, true, MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC, -1,
                    err) < 0)
        return -1;
    return mount_attach(cover, stage->dir, name, err);
}

int stage_build(struct stage *stage, const struct ids *ids, struct err *err)
{
    mode_t mask = umask(022);
    stage->null = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (stage->null < 0)
        return err_errno(err, "/dev/null");
    int host[COUNT(nodes)];
    for (size_t i = 0; i < COUNT(nodes); i++) {
        char path[32];
        snprintf(path, sizeof path, "/dev/%s", nodes[i].name);
        host[i] = mount_clone(AT_FDCWD, path, false, NULL);
    }
    OWN(fd) int shm = mount_clone(AT_FDCWD, "/dev/shm", false, NULL);
    static const struct mount_option options[] = {{"mode", "0755"}, {"size", "64m"}, {NULL, NULL}};
    int result = -1;
    OWN(fd) int mounted = mount_make("tmpfs", options, MOUNT_ATTR_NOSUID, err);
    if (mounted >= 0 && move_mount(mounted, "", AT_FDCWD, STAGE, MOVE_MOUNT_F_EMPTY_PATH) < 0)
        err_errno(err, "mounting the keeper's stage");
    else if (mounted >= 0)
        stage->dir = open(STAGE, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (mounted >= 0 && stage->dir >= 0 && build_skel(stage, ids, err) == 0 &&
        build_graft(stage, ids, err) == 0 && build_dev(stage, host, err) == 0 &&
        build_places(stage, err) == 0 && freeze_part(stage, "dev", err) == 0)
        result = freeze_part(stage, "empty", err);
    /* A home or a root may lie there: it stays where it was. */
    if (result == 0 && shm >= 0 && mkdirat(stage->dir, "shm", 0755) == 0)
        (void)mount_attach(shm, stage->dir, "shm", NULL);
    for (size_t i = 0; i < COUNT(nodes); i++)
        fd_close(&host[i]);
    umask(mask);
    return result;
}
