/* bundle_store.c - the bundles of a home: locking, holding, removing.
 *
 * Builds and removals exclude each other by a lock on bundles/.lock; what lies there under a name
 * that begins with a dot while we hold it was left by a build that was cut off. Whoever runs
 * rollouts with a bundle holds a shared lock on its folder as long as it lives; a removal needs the
 * exclusive one, so a bundle in use stays. */
#include "agent/agent.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

#include "agent/bundle.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/file.h"
#include "base/id.h"
#include "base/log.h"
#include "base/mem.h"
#include "json/json.h"

#define LOCK_WAIT_MS 50

static void remove_leftovers(const char *bundles)
{
    DIR *folder = opendir(bundles);
    struct dirent *entry;
    while (folder && (entry = readdir(folder)) != NULL) {
        bool ours = str_starts(str_of(entry->d_name), STR(".build-")) ||
                    str_starts(str_of(entry->d_name), STR(".gone-"));
        if (!ours)
            continue;
        OWN(mem) char *path = mem_format("%s/%s", bundles, entry->d_name);
        struct err err = {0};
        if (file_remove_tree(path, &err) < 0)
            LOG_WARN("agent", NULL, "a build that was cut off stays: %s", err.text);
    }
    if (folder)
        closedir(folder);
}

int bundle_store_lock(const char *home, uint64_t deadline_ms, struct err *err)
{
    OWN(mem) char *bundles = mem_format("%s/bundles", home);
    OWN(mem) char *path = mem_format("%s/.lock", bundles);
    if (file_make_dirs(bundles, 0755, err) < 0)
        return -1;
    OWN(fd) int lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (lock < 0)
        return err_errno(err, "'%s'", path);
    while (flock(lock, LOCK_EX | LOCK_NB) < 0) {
        if (errno != EWOULDBLOCK && errno != EINTR)
            return err_errno(err, "'%s'", path);
        if (clock_mono_ms() >= deadline_ms)
            return err_set(err, ERR_TIMEOUT,
                           "somebody else is installing or removing agents in '%s'", bundles);
        struct timespec nap = {.tv_nsec = LOCK_WAIT_MS * 1000000L};
        (void)nanosleep(&nap, NULL);
    }
    remove_leftovers(bundles);
    return fd_take(&lock);
}

/* ---------------------------------------------------------------- holding */
struct held {
    struct held *next;
    char *dir;
    int fd;
};
static pthread_mutex_t held_lock = PTHREAD_MUTEX_INITIALIZER;
static struct held *held_bundles;

static int take_hold(const char *dir, struct err *err)
{
    for (struct held *held = held_bundles; held; held = held->next)
        if (strcmp(held->dir, dir) == 0 && file_exists(dir))
            return 0;
    OWN(fd) int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || flock(fd, LOCK_SH | LOCK_NB) < 0)
        return err_errno(err, "holding '%s'", dir);
    struct held *held = mem_zero(sizeof *held);
    held->dir = mem_dup(dir);
    held->fd = fd_take(&fd);
    held->next = held_bundles;
    held_bundles = held;
    return 0;
}

int bundle_store_hold(const char *dir, struct err *err)
{
    pthread_mutex_lock(&held_lock);
    int result = take_hold(dir, err);
    pthread_mutex_unlock(&held_lock);
    return result;
}

/* ---------------------------------------------------------------- removing */
struct facts {
    struct buf text;
    struct json_doc doc;
    struct arena arena;
    const char *name, *version, *key, *where;
    long long bytes;
};

static void facts_deinit(struct facts *facts)
{
    buf_deinit(&facts->text);
    json_doc_deinit(&facts->doc);
    arena_deinit(&facts->arena);
}

static const char *fact(struct facts *facts, const char *key)
{
    struct str value = json_str(json_get(json_root(&facts->doc), key), &facts->arena);
    return arena_text(&facts->arena, value);
}

static bool facts_read(struct facts *facts, const char *dir)
{
    *facts = (struct facts){0};
    OWN(mem) char *path = mem_format("%s/manifest.json", dir);
    if (file_read(path, 1 << 20, &facts->text, NULL) < 0 ||
        json_read(&facts->doc, buf_str(&facts->text), NULL, NULL) < 0)
        return false;
    facts->name = fact(facts, "name");
    facts->version = fact(facts, "version");
    facts->key = fact(facts, "key");
    facts->where = fact(facts, "spec");
    facts->bytes = json_int_or(json_get(json_root(&facts->doc), "bytes"), 0);
    return true;
}

/* 1: removed; 0: in use. It is out of its place in one step, whatever happens afterwards. */
static int remove_bundle(const char *bundles, const char *dir, struct err *err)
{
    OWN(fd) int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return err_errno(err, "'%s'", dir);
    if (flock(fd, LOCK_EX | LOCK_NB) < 0)
        return errno == EWOULDBLOCK ? 0 : err_errno(err, "'%s'", dir);
    char id[ID_MAX];
    id_make(id, "gone");
    OWN(mem) char *gone = mem_format("%s/.%s", bundles, id);
    if (rename(dir, gone) < 0)
        return err_errno(err, "'%s'", dir);
    return file_remove_tree(gone, err) < 0 ? -1 : 1;
}

/* Whether a spec wants exactly this bundle. */
static bool is_wanted(const struct facts *facts, const char *what, const struct agent_dirs *dirs)
{
    struct agent_spec *spec = what[0] ? agent_spec_load(what, dirs, NULL) : NULL;
    bool wanted = spec && agent_spec_has_bundle(spec) && strcmp(spec->name, facts->name) == 0 &&
                  strcmp(spec->version, facts->version) == 0 &&
                  strcmp(spec->bundle.key, facts->key) == 0;
    agent_spec_unref(spec);
    return wanted;
}

static bool is_meant(const struct facts *facts, const struct agent_bundles_which *which)
{
    if (which->name)
        return strcmp(facts->name, which->name) == 0 &&
               (!which->version || strcmp(facts->version, which->version) == 0);
    return !is_wanted(facts, facts->name, which->dirs) &&
           !is_wanted(facts, facts->where, which->dirs);
}

static int consider(const char *bundles, const char *entry, const struct agent_bundles_which *which,
                    struct json_writer *out, size_t *meant, struct err *err)
{
    OWN(mem) char *dir = mem_format("%s/%s", bundles, entry);
    struct facts facts;
    int result = 0;
    bool whole = facts_read(&facts, dir);
    if (whole ? is_meant(&facts, which) : !which->name) {
        ++*meant;
        result = remove_bundle(bundles, dir, err);
        json_begin_object(out);
        json_set_text(out, "bundle", entry);
        if (whole) {
            json_set_text(out, "name", facts.name);
            json_set_text(out, "version", facts.version);
            json_set_int(out, "bytes", facts.bytes);
        }
        json_set_bool(out, "removed", result == 1);
        json_end_object(out);
        if (result == 0 && which->name)
            result = err_set(err, ERR_CONFLICT, "%s %s is in use by a server or a run that goes on",
                             facts.name, facts.version);
    }
    facts_deinit(&facts);
    return result < 0 ? -1 : 0;
}

int agent_bundles_remove(const char *home, const struct agent_bundles_which *which,
                         struct json_writer *out, struct err *err)
{
    OWN(mem) char *bundles = mem_format("%s/bundles", home);
    OWN(fd) int lock = bundle_store_lock(home, clock_mono_ms() + 60000, err);
    if (lock < 0)
        return -1;
    DIR *folder = opendir(bundles);
    if (!folder)
        return err_errno(err, "'%s'", bundles);
    struct dirent *entry;
    size_t meant = 0;
    int result = 0;
    json_begin_array(out);
    while (result == 0 && (entry = readdir(folder)) != NULL)
        if (entry->d_name[0] != '.')
            result = consider(bundles, entry->d_name, which, out, &meant, err);
    json_end_array(out);
    closedir(folder);
    if (result == 0 && which->name && meant == 0)
        result = err_set(err, ERR_NOT_FOUND, "%s%s%s is not installed", which->name,
                         which->version ? "@" : "", which->version ? which->version : "");
    return result;
}
