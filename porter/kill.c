/* kill.c - finding every living descendant of a process, and ending them all.
 *
 * A process cannot leave its tree: when its parent dies it is adopted by the nearest subreaper
 * above, which is the supervisor of its command. So "everything a command started" is exactly
 * "everything below its supervisor", whatever sessions, groups and names it gave itself, and a walk
 * over the parent numbers in /proc finds it.
 *
 * Processes may fork while we look. A round therefore stops what it sees and looks again until it
 * sees nothing new: what is stopped forks no more and keeps its place in the process table, so even
 * a fork bomb runs out of room and of time. Only then does it kill: by now every parent in the tree
 * is stopped too, so no number can have changed hands. The caller reaps, and repeats until nothing
 * is left to wait for. */
#include "porter.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/mem.h"

#define FREEZE_MS_MAX 500 /* then what is known is killed, and the caller comes again */

struct process {
    pid_t pid, parent;
    bool inside;
};
struct processes {
    struct process *at;
    size_t count, capacity;
};

/* "pid (any bytes, even parentheses) state ppid ...": what matters follows the last ')'. */
static bool read_stat(int proc, const char *name, struct process *process, char *state)
{
    char path[32], text[512];
    memcpy(path, name, strlen(name) + 1);
    strcat(path, "/stat");
    OWN(fd) int fd = openat(proc, path, O_RDONLY | O_CLOEXEC);
    ssize_t size = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (size <= 0)
        return false;
    text[size] = '\0';
    char *end = strrchr(text, ')');
    if (!end || end[1] != ' ' || !end[2] || end[3] != ' ')
        return false;
    *state = end[2];
    process->pid = atoi(name);
    process->parent = atoi(end + 4);
    process->inside = false;
    return true;
}

static struct process *lookup(const struct processes *all, pid_t pid)
{
    size_t low = 0, high = all->count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (all->at[middle].pid < pid)
            low = middle + 1;
        else
            high = middle;
    }
    return low < all->count && all->at[low].pid == pid ? &all->at[low] : NULL;
}

static int by_pid(const void *a, const void *b)
{
    const struct process *left = a, *right = b;
    return (left->pid > right->pid) - (left->pid < right->pid);
}

static bool read_all(int proc, struct processes *all)
{
    int fd = openat(proc, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    if (!dir) {
        fd_close(&fd);
        return false;
    }
    struct dirent *found;
    while ((found = readdir(dir))) {
        char state;
        struct process process;
        if (found->d_name[0] < '1' || found->d_name[0] > '9' || strlen(found->d_name) > 10 ||
            !read_stat(proc, found->d_name, &process, &state))
            continue;
        if (all->count == all->capacity) {
            all->capacity = all->capacity ? all->capacity * 2 : 64;
            all->at = mem_grow(all->at, all->capacity * sizeof *all->at);
        }
        process.inside = state != 'Z' && state != 'X';
        all->at[all->count++] = process;
    }
    (void)closedir(dir);
    qsort(all->at, all->count, sizeof *all->at, by_pid);
    return true;
}

/* Follows the parents of `process` up to `root`. Zombies count as links of the chain. */
static bool descends(const struct processes *all, const struct process *process, pid_t root,
                     const pid_t *spared, size_t spared_count)
{
    for (int steps = 0; process && steps < 1 << 20; steps++) {
        for (size_t i = 0; i < spared_count; i++)
            if (process->pid == spared[i])
                return false;
        if (process->parent == root)
            return true;
        if (process->parent <= 1)
            return false;
        process = lookup(all, process->parent);
    }
    return false;
}

bool kill_find(int proc, pid_t root, const pid_t *spared, size_t spared_count, struct pids *found)
{
    struct processes all = {0};
    found->count = 0;
    if (proc < 0 || !read_all(proc, &all))
        return false;
    for (size_t i = 0; i < all.count; i++) {
        if (!all.at[i].inside || all.at[i].pid == root ||
            !descends(&all, &all.at[i], root, spared, spared_count))
            continue;
        if (found->count == found->capacity) {
            found->capacity = found->capacity ? found->capacity * 2 : 64;
            found->pid = mem_grow(found->pid, found->capacity * sizeof *found->pid);
        }
        found->pid[found->count++] = all.at[i].pid;
    }
    free(all.at);
    return true;
}

static bool has(const struct pids *pids, pid_t pid)
{
    size_t low = 0, high = pids->count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (pids->pid[middle] < pid)
            low = middle + 1;
        else
            high = middle;
    }
    return low < pids->count && pids->pid[low] == pid;
}

size_t kill_round(int proc, pid_t root, const pid_t *spared, size_t spared_count)
{
    struct pids known = {0}, seen = {0};
    uint64_t deadline = clock_mono_ms() + FREEZE_MS_MAX;
    while (clock_mono_ms() < deadline) {
        if (!kill_find(proc, root, spared, spared_count, &seen))
            break;
        bool news = false;
        for (size_t i = 0; i < seen.count; i++) {
            if (has(&known, seen.pid[i]))
                continue;
            news = true;
            (void)kill(seen.pid[i], SIGSTOP);
        }
        /* A number we stopped that is not below us any more was given to somebody else meanwhile.
         */
        for (size_t i = 0; i < known.count; i++)
            if (!has(&seen, known.pid[i]))
                (void)kill(known.pid[i], SIGCONT);
        struct pids swap = known;
        known = seen;
        seen = swap;
        if (!news)
            break;
    }
    for (size_t i = 0; i < known.count; i++)
        (void)kill(known.pid[i], SIGKILL);
    size_t count = known.count;
    free(known.pid);
    free(seen.pid);
    return count;
}
