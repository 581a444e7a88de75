/* cgroups.c - finding the control groups of this machine, and leaves in them.
 *
 * Our own group lies below the group this process is in, so that limits somebody set on us hold for
 * the sandboxes too. In a v2 tree a group with processes cannot give controllers to children; then,
 * in order: what is there is moved into a group of its own beside the leaves (when that is the
 * keeper alone, or the group was delegated: a scope or service with Delegate=yes), or the root of
 * the tree is used (root only).
 *
 * On a hybrid machine the v2 tree is left alone: it could only kill, and killing process 1 of a pid
 * namespace kills everything in it already.
 *
 * A leaf keeps its page cache and counters between tenants: limits are written anew for each, and
 * out-of-memory kills are counted from where they stood. */
#include "cgroups.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"

#define IDLE_MAX 64

static const char *const controller_names[CGROUP_CONTROLLERS] = {"memory", "pids", "cpu"};

static int write_at(const char *dir, const char *leaf, const char *file, const char *text)
{
    char path[512];
    snprintf(path, sizeof path, "%s%s%s/%s", dir, leaf[0] ? "/" : "", leaf, file);
    OWN(fd) int out = open(path, O_WRONLY | O_CLOEXEC);
    if (out < 0)
        return -1;
    size_t size = strlen(text);
    return write(out, text, size) == (ssize_t)size ? 0 : -1;
}

static int read_at(const char *dir, const char *leaf, const char *file, char *text, size_t size)
{
    char path[512];
    snprintf(path, sizeof path, "%s%s%s/%s", dir, leaf[0] ? "/" : "", leaf, file);
    OWN(fd) int in = open(path, O_RDONLY | O_CLOEXEC);
    if (in < 0)
        return -1;
    ssize_t got = fd_read_all(in, text, size - 1);
    if (got < 0)
        return -1;
    text[got] = '\0';
    return 0;
}

static bool has_word(const char *list, const char *word)
{
    size_t size = strlen(word);
    for (const char *at = list; (at = strstr(at, word)); at += size)
        if ((at == list || strchr(" ,\n", at[-1])) && (!at[size] || strchr(" ,\n", at[size])))
            return true;
    return false;
}

/* One line of /proc/self/mountinfo that is a cgroup mount. */
struct found_mount {
    char at[200];
    char root[200]; /* which group of the tree is mounted there */
    bool v2;
    char options[200];
};

static size_t find_mounts(struct found_mount *found, size_t max)
{
    FILE *file = fopen("/proc/self/mountinfo", "re");
    if (!file)
        return 0;
    char line[2048];
    size_t count = 0;
    while (count < max && fgets(line, sizeof line, file)) {
        char *dash = strstr(line, " - cgroup");
        if (!dash)
            continue;
        struct found_mount *mount = &found[count];
        *mount = (struct found_mount){.v2 = strncmp(dash, " - cgroup2 ", 11) == 0};
        if (sscanf(line, "%*s %*s %*s %199s %199s", mount->root, mount->at) != 2)
            continue;
        char *last = strrchr(dash, ' ');
        snprintf(mount->options, sizeof mount->options, "%s", last ? last + 1 : "");
        mount->options[strcspn(mount->options, "\n")] = '\0';
        count++;
    }
    fclose(file);
    return count;
}

/* The group of this process in the tree of `controller` (NULL: v2), as /proc/self/cgroup names it.
 */
static bool own_group(const char *controller, char *group, size_t size)
{
    FILE *file = fopen("/proc/self/cgroup", "re");
    if (!file)
        return false;
    char line[1024];
    bool found = false;
    while (!found && fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = '\0';
        char *names = strchr(line, ':'), *path = names ? strchr(names + 1, ':') : NULL;
        if (!path)
            continue;
        *path++ = '\0';
        names++;
        found = controller ? has_word(names, controller) : *names == '\0';
        if (found)
            snprintf(group, size, "%s", strcmp(path, "/") == 0 ? "" : path);
    }
    fclose(file);
    return found;
}

/* The directory of our process's group: mount point plus what of the path lies below the mounted
 * root. */
static void group_path(const struct found_mount *mount, const char *group, char *path, size_t size)
{
    size_t root = strcmp(mount->root, "/") == 0 ? 0 : strlen(mount->root);
    if (root && strncmp(group, mount->root, root) == 0)
        group += root;
    else if (root)
        group = "";
    snprintf(path, size, "%s%s", mount->at, group);
    struct stat facts;
    if (stat(path, &facts) < 0)
        snprintf(path, size, "%s", mount->at);
}

static int make_group(const char *parent, const char *name, char *path, size_t size)
{
    snprintf(path, size, "%s/%s", parent, name);
    return mkdir(path, 0755) == 0 || errno == EEXIST ? 0 : -1;
}

/* Gives children of `path` those of our controllers it has; returns which ones they now get. */
static unsigned give_controllers(const char *path)
{
    char have[256] = "", word[16];
    (void)read_at(path, "", "cgroup.controllers", have, sizeof have);
    unsigned given = 0;
    for (unsigned i = 0; i < CGROUP_CONTROLLERS; i++) {
        if (!has_word(have, controller_names[i]))
            continue;
        snprintf(word, sizeof word, "+%s", controller_names[i]);
        if (write_at(path, "", "cgroup.subtree_control", word) == 0)
            given |= 1u << i;
    }
    return given;
}

/* Is this process the only one in that group? */
static bool is_alone(const char *path)
{
    char list[256] = "";
    if (read_at(path, "", "cgroup.procs", list, sizeof list) < 0)
        return false;
    char *rest;
    long first = strtol(list, &rest, 10);
    return first == getpid() && strspn(rest, "\n") == strlen(rest);
}

/* Did whoever runs this machine say that we may arrange this group ourselves (systemd:
 * Delegate=yes)? */
static bool is_delegated(const char *path)
{
    char value[8];
    return (getxattr(path, "user.delegate", value, sizeof value) == 1 ||
            getxattr(path, "trusted.delegate", value, sizeof value) == 1) &&
           value[0] == '1';
}

/* A group with processes passes no controllers on: moves them into a group of their own inside. */
static void make_room(const char *path)
{
    char beside[300], list[16384] = "";
    if (make_group(path, "postern-keeper", beside, sizeof beside) < 0 ||
        read_at(path, "", "cgroup.procs", list, sizeof list) < 0)
        return;
    for (char *rest = NULL, *pid = strtok_r(list, "\n", &rest); pid;
         pid = strtok_r(NULL, "\n", &rest))
        (void)write_at(beside, "", "cgroup.procs", pid); /* one that just ended is no harm */
}

static unsigned start_v2(struct cgroups *cgroups, const struct found_mount *mount)
{
    char group[512] = "", own[256];
    (void)own_group(NULL, group, sizeof group);
    group_path(mount, group, own, sizeof own);
    struct cgroup_tree *tree = &cgroups->trees[cgroups->tree_count];
    tree->v2 = true;

    const char *places[2] = {own, mount->at};
    for (unsigned i = 0; i < 2; i++) {
        if (i == 1 && strcmp(own, mount->at) == 0)
            break;
        if (make_group(places[i], cgroups->name, tree->path, sizeof tree->path) < 0)
            continue;
        unsigned given = give_controllers(places[i]);
        if (!given && (is_alone(places[i]) || is_delegated(places[i]))) {
            make_room(places[i]);
            given = give_controllers(places[i]);
        }
        if (given) {
            tree->controllers = give_controllers(tree->path);
            cgroups->tree_count++;
            return tree->controllers;
        }
        (void)rmdir(tree->path);
    }
    tree->path[0] = '\0';
    snprintf(
        cgroups->reason, sizeof cgroups->reason,
        "the control group '%.150s' cannot pass on controllers: it has processes of its own, or "
        "is not delegated to this user",
        own);
    return 0;
}

static unsigned start_v1(struct cgroups *cgroups, const struct found_mount *mounts, size_t count)
{
    unsigned all = 0;
    for (unsigned i = 0; i < CGROUP_CONTROLLERS; i++) {
        for (size_t j = 0; j < count; j++) {
            if (mounts[j].v2 || !has_word(mounts[j].options, controller_names[i]))
                continue;
            char group[512] = "", own[256];
            (void)own_group(controller_names[i], group, sizeof group);
            group_path(&mounts[j], group, own, sizeof own);
            struct cgroup_tree *tree = &cgroups->trees[cgroups->tree_count];
            *tree = (struct cgroup_tree){.controllers = 1u << i};
            if (make_group(own, cgroups->name, tree->path, sizeof tree->path) < 0) {
                if (!cgroups->reason[0])
                    snprintf(cgroups->reason, sizeof cgroups->reason,
                             "no permission to make control groups in '%.150s'", own);
                continue;
            }
            cgroups->tree_count++;
            all |= 1u << i;
            break;
        }
    }
    return all;
}

void cgroups_start(struct cgroups *cgroups, const char *name)
{
    list_init(&cgroups->idle);
    snprintf(cgroups->name, sizeof cgroups->name, "%s", name);
    struct found_mount mounts[24];
    size_t count = find_mounts(mounts, COUNT(mounts));
    const struct found_mount *v2 = NULL;
    bool v1 = false;
    for (size_t i = 0; i < count; i++) {
        if (mounts[i].v2)
            v2 = &mounts[i];
        for (unsigned j = 0; j < CGROUP_CONTROLLERS; j++)
            v1 |= !mounts[i].v2 && has_word(mounts[i].options, controller_names[j]);
    }
    snprintf(cgroups->mode, sizeof cgroups->mode, "%s",
             v1 && v2 ? "hybrid"
             : v2     ? "v2"
             : v1     ? "v1"
                      : "none");
    if (!v1 && !v2)
        snprintf(cgroups->reason, sizeof cgroups->reason, "no control groups are mounted");
    if (v1)
        cgroups->controllers |= start_v1(cgroups, mounts, count);
    if (v2 && !v1)
        cgroups->controllers |= start_v2(cgroups, v2);
    if (!cgroups->reason[0] && !(cgroups->controllers & 1u << CGROUP_MEMORY))
        snprintf(cgroups->reason, sizeof cgroups->reason,
                 "the memory controller is not available to this user");
    if (!cgroups->reason[0] && !(cgroups->controllers & 1u << CGROUP_PIDS))
        snprintf(cgroups->reason, sizeof cgroups->reason,
                 "the pids controller is not available to this user");
}

pid_t cgroups_warm_up(const struct cgroups *cgroups)
{
    if (!cgroups->tree_count || cgroups->trees[0].v2)
        return 0;
    pid_t pid = fork();
    if (pid != 0)
        return pid;
    for (unsigned i = 0; i < cgroups->tree_count; i++)
        (void)write_at(cgroups->trees[i].path, "", "cgroup.procs", "0");
    _exit(0);
}

static void leaf_name(const struct cgroup_leaf *leaf, char name[16])
{
    snprintf(name, 16, "%u", leaf->number);
}

/* A group whose last process just went can be busy for a moment. */
static bool remove_group(const char *path)
{
    for (unsigned i = 0; i < 50; i++) {
        if (rmdir(path) == 0 || errno == ENOENT)
            return true;
        if (errno != EBUSY)
            return false;
        usleep(2000);
    }
    return false;
}

static void leaf_remove(struct cgroups *cgroups, struct cgroup_leaf *leaf)
{
    char name[16], path[300];
    leaf_name(leaf, name);
    fd_close(&leaf->into);
    for (unsigned i = 0; i < cgroups->tree_count; i++) {
        fd_close(&leaf->join[i]);
        snprintf(path, sizeof path, "%s/%s", cgroups->trees[i].path, name);
        if (!remove_group(path))
            LOG_WARN("keeper", NULL, "the control group %s cannot be removed: %s", path,
                     strerror(errno));
    }
    free(leaf);
}

void cgroups_stop(struct cgroups *cgroups)
{
    LIST_EACH (at, &cgroups->idle) {
        struct cgroup_leaf *leaf = LIST_OF(at, struct cgroup_leaf, node);
        list_remove(&leaf->node);
        leaf_remove(cgroups, leaf);
    }
    for (unsigned i = 0; i < cgroups->tree_count; i++)
        (void)remove_group(cgroups->trees[i].path);
    cgroups->tree_count = 0;
}

static int leaf_open(struct cgroups *cgroups, struct cgroup_leaf *leaf, unsigned index,
                     struct err *err)
{
    const struct cgroup_tree *tree = &cgroups->trees[index];
    char name[16], path[300];
    leaf_name(leaf, name);
    snprintf(path, sizeof path, "%s/%s", tree->path, name);
    if (mkdir(path, 0755) < 0 && errno != EEXIST)
        return err_errno(err, "making the control group '%s'", path);
    if (tree->v2) {
        if (tree->controllers & 1u << CGROUP_MEMORY)
            (void)write_at(tree->path, name, "memory.swap.max", "0");
        leaf->into = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
        return leaf->into < 0 ? err_errno(err, "'%s'", path) : 0;
    }
    snprintf(path, sizeof path, "%s/%s/cgroup.procs", tree->path, name);
    leaf->join[index] = open(path, O_WRONLY | O_CLOEXEC);
    return leaf->join[index] < 0 ? err_errno(err, "'%s'", path) : 0;
}

/* A v1 tree for cpu alone is joined only by those who have a cpu limit: each join costs. */
static bool is_for_cpu_alone(const struct cgroup_tree *tree)
{
    return !tree->v2 && tree->controllers == 1u << CGROUP_CPU;
}

static struct cgroup_leaf *leaf_make(struct cgroups *cgroups, struct err *err)
{
    struct cgroup_leaf *leaf = mem_zero(sizeof *leaf);
    leaf->number = ++cgroups->next;
    leaf->memory_max = UINT64_MAX; /* nothing written yet */
    leaf->pids_max = leaf->cpu_millis = UINT32_MAX;
    leaf->into = -1;
    for (unsigned i = 0; i < CGROUP_TREES_MAX; i++)
        leaf->join[i] = -1;
    for (unsigned i = 0; i < cgroups->tree_count; i++) {
        if (is_for_cpu_alone(&cgroups->trees[i]) || leaf_open(cgroups, leaf, i, err) == 0)
            continue;
        leaf_remove(cgroups, leaf);
        return NULL;
    }
    return leaf;
}

static int write_memory(const struct cgroup_tree *tree, const char *name, uint64_t bytes)
{
    char text[32] = "max";
    if (tree->v2) {
        if (bytes)
            snprintf(text, sizeof text, "%llu", (unsigned long long)bytes);
        return write_at(tree->path, name, "memory.max", text);
    }
    snprintf(text, sizeof text, "%lld", bytes ? (long long)bytes : -1LL);
    /* The two limits must stay in order: widen the outer one first. Absent without swap accounting.
     */
    (void)write_at(tree->path, name, "memory.memsw.limit_in_bytes", "-1");
    if (write_at(tree->path, name, "memory.limit_in_bytes", text) < 0)
        return -1;
    (void)write_at(tree->path, name, "memory.memsw.limit_in_bytes", text);
    return 0;
}

static int write_cpu(const struct cgroup_tree *tree, const char *name, uint32_t millis)
{
    char text[48];
    if (tree->v2) {
        if (millis)
            snprintf(text, sizeof text, "%llu 100000", (unsigned long long)millis * 100);
        else
            snprintf(text, sizeof text, "max 100000");
        return write_at(tree->path, name, "cpu.max", text);
    }
    snprintf(text, sizeof text, "%lld", millis ? (long long)millis * 100 : -1LL);
    return write_at(tree->path, name, "cpu.cfs_quota_us", text);
}

int cgroup_leaf_limit(struct cgroups *cgroups, struct cgroup_leaf *leaf,
                      const struct cgroup_limits *limits, struct err *err)
{
    char name[16], text[32];
    leaf_name(leaf, name);
    for (unsigned i = 0; i < cgroups->tree_count; i++) {
        const struct cgroup_tree *tree = &cgroups->trees[i];
        if (tree->controllers & 1u << CGROUP_MEMORY &&
            leaf->memory_max != limits->memory_bytes_max) {
            if (write_memory(tree, name, limits->memory_bytes_max) < 0)
                return err_errno(err, "setting the memory limit");
            leaf->memory_max = limits->memory_bytes_max;
        }
        if (tree->controllers & 1u << CGROUP_PIDS && leaf->pids_max != limits->pids_max) {
            snprintf(text, sizeof text, "%u", limits->pids_max);
            if (write_at(tree->path, name, "pids.max", limits->pids_max ? text : "max") < 0)
                return err_errno(err, "setting the pids limit");
            leaf->pids_max = limits->pids_max;
        }
        if (is_for_cpu_alone(tree) && leaf->join[i] < 0) {
            if (!limits->cpu_millis)
                continue;
            if (leaf_open(cgroups, leaf, i, err) < 0)
                return -1;
        }
        if (tree->controllers & 1u << CGROUP_CPU && leaf->cpu_millis != limits->cpu_millis) {
            if (write_cpu(tree, name, limits->cpu_millis) < 0)
                return err_errno(err, "setting the cpu limit");
            leaf->cpu_millis = limits->cpu_millis;
        }
    }
    return 0;
}

static uint64_t oom_kills_total(struct cgroups *cgroups, struct cgroup_leaf *leaf)
{
    char name[16], text[512];
    leaf_name(leaf, name);
    for (unsigned i = 0; i < cgroups->tree_count; i++) {
        const struct cgroup_tree *tree = &cgroups->trees[i];
        if (!(tree->controllers & 1u << CGROUP_MEMORY))
            continue;
        if (read_at(tree->path, name, tree->v2 ? "memory.events" : "memory.oom_control", text,
                    sizeof text) < 0)
            return 0;
        const char *line = strstr(text, "oom_kill ");
        return line ? strtoull(line + 9, NULL, 10) : 0;
    }
    return 0;
}

struct cgroup_leaf *cgroup_leaf_take(struct cgroups *cgroups, const struct cgroup_limits *limits,
                                     struct err *err)
{
    struct cgroup_leaf *leaf;
    if (list_empty(&cgroups->idle)) {
        leaf = leaf_make(cgroups, err);
        if (!leaf)
            return NULL;
    } else {
        leaf = LIST_OF(cgroups->idle.next, struct cgroup_leaf, node);
        list_remove(&leaf->node);
        cgroups->idle_count--;
    }
    if (limits && cgroup_leaf_limit(cgroups, leaf, limits, err) < 0) {
        leaf_remove(cgroups, leaf);
        return NULL;
    }
    return leaf;
}

void cgroup_leaf_give(struct cgroups *cgroups, struct cgroup_leaf *leaf)
{
    if (cgroups->idle_count >= IDLE_MAX) {
        leaf_remove(cgroups, leaf);
        return;
    }
    leaf->oom_before = leaf->oom_last;
    list_append(&cgroups->idle, &leaf->node);
    cgroups->idle_count++;
}

uint64_t cgroup_leaf_oom_kills(struct cgroups *cgroups, struct cgroup_leaf *leaf)
{
    uint64_t now = leaf->oom_last = oom_kills_total(cgroups, leaf);
    return now > leaf->oom_before ? now - leaf->oom_before : 0;
}

void cgroup_leaf_kill(struct cgroups *cgroups, struct cgroup_leaf *leaf)
{
    char name[16];
    leaf_name(leaf, name);
    for (unsigned i = 0; i < cgroups->tree_count; i++)
        if (cgroups->trees[i].v2)
            (void)write_at(cgroups->trees[i].path, name, "cgroup.kill", "1");
}

bool cgroups_refill(struct cgroups *cgroups, unsigned want)
{
    if (!cgroups->tree_count || cgroups->idle_count >= want)
        return false;
    struct cgroup_leaf *leaf = leaf_make(cgroups, NULL);
    if (!leaf)
        return false;
    list_append(&cgroups->idle, &leaf->node);
    cgroups->idle_count++;
    return true;
}

/* Leaves first, then the group: one level is all we ever make. */
void cgroups_sweep(const char *path)
{
    const char *name = strrchr(path, '/');
    if (!name || strncmp(name, "/postern-", 9) != 0)
        return;
    DIR *entries = opendir(path);
    if (entries) {
        char below[600];
        for (struct dirent *entry; (entry = readdir(entries));) {
            if (entry->d_type != DT_DIR || entry->d_name[0] == '.')
                continue;
            snprintf(below, sizeof below, "%s/%s", path, entry->d_name);
            (void)write_at(below, "", "cgroup.kill", "1");
            (void)remove_group(below);
        }
        closedir(entries);
    }
    if (remove_group(path))
        LOG_INFO("keeper", NULL, "removed the control group %s of a keeper that is gone", path);
    else
        LOG_WARN("keeper", NULL, "the control group %s cannot be removed: %s", path,
                 strerror(errno));
}
