/* retention.c - what may go: finished rollouts that are too old or too many, and segments of the
 * journal that nothing needs any more.
 *
 * A rollout goes in three steps, each of which may be the last one before a crash: its folder is
 * renamed into <home>/trash (it is whole or gone), a note in the journal says that it was deleted
 * (the index follows), the trash is removed. Segments go from the oldest on, up to the first that
 * is locked, not indexed or needed by a call, a rollout or a group: so a note of a deletion never
 * goes before what it deletes, and an index made anew from the journal does not bring anything
 * back.
 *
 * Everything here blocks; it may run on any thread beside the store's own work. */
#include "store/store.h"

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
#include "base/log.h"
#include "base/mem.h"
#include "store/index.h"

/* ---------------------------------------------------------------- one rollout */
/* Only what lies in our own folder of rollouts is ours to remove. */
static bool is_ours(const char *home, const char *dir)
{
    OWN(mem) char *real_home = realpath(home, NULL);
    OWN(mem) char *prefix = mem_format("%s/rollouts/", real_home ? real_home : home);
    size_t size = strlen(prefix);
    return strncmp(dir, prefix, size) == 0 && dir[size] && dir[size] != '.' &&
           !strchr(dir + size, '/');
}

int store_remove_folder(struct store *store, const char *id, const char *dir, struct err *err)
{
    const char *home = store_home(store);
    OWN(mem) char *trash = mem_format("%s/trash", home);
    OWN(mem) char *place = mem_format("%s/%s", trash, id);
    struct err trouble = {0};
    if (!dir || !dir[0] || !is_ours(home, dir))
        return 0;
    if (file_make_dirs(trash, 0755, err) < 0 || file_remove_tree(place, err) < 0)
        return -1;
    if (rename(dir, place) < 0)
        return errno == ENOENT ? 0 : err_errno(err, "removing '%s'", dir);
    if (file_remove_tree(place, &trouble) < 0)
        LOG_WARN("store", id, "its folder is in the trash, which is not gone yet: %s",
                 trouble.text);
    return 0;
}

int store_remove_rollout(struct store *store, struct loop *loop, const char *id,
                         void (*on_committed)(void *context, const struct err *err), void *context,
                         struct err *err)
{
    return store_put_note(store, loop, "deleted", "rollout", id, NULL, on_committed, context, err);
}

void store_empty_trash(struct store *store)
{
    OWN(mem) char *trash = mem_format("%s/trash", store_home(store));
    struct err err = {0};
    if (file_exists(trash) && file_remove_tree(trash, &err) < 0)
        LOG_WARN("store", NULL, "the trash is not gone: %s", err.text);
}

/* ---------------------------------------------------------------- which ones */
#define DONE "fate IS NOT NULL AND ifnull(callback_state, '') <> 'pending'"

struct excess {
    long long bytes, count;
};

static bool take_excess(void *context, sqlite3_stmt *statement)
{
    struct excess *excess = context;
    excess->bytes -= sqlite3_column_int64(statement, 0);
    excess->count++;
    return excess->bytes > 0;
}

/* How many of the oldest have to go so that no more than `count_max` stay, and `bytes_max` bytes.
 */
static int count_excess(struct index *index, const struct store_retention *rules, long long *out,
                        struct err *err)
{
    long long total = 0, bytes = 0;
    *out = 0;
    if (rules->count_max &&
        index_number(index, "SELECT count(*) FROM rollouts WHERE fate IS NOT NULL", NULL, &total,
                     err) < 0)
        return -1;
    if (rules->count_max && total > (long long)rules->count_max)
        *out = total - (long long)rules->count_max;
    if (!rules->bytes_max)
        return 0;
    if (index_number(index, "SELECT ifnull(sum(bytes), 0) FROM rollouts WHERE fate IS NOT NULL",
                     NULL, &bytes, err) < 0)
        return -1;
    struct excess excess = {.bytes = bytes - (long long)rules->bytes_max};
    if (excess.bytes <= 0)
        return 0;
    sqlite3_stmt *statement =
        index_prepare(index,
                      "SELECT ifnull(bytes, 0) FROM rollouts WHERE fate IS NOT NULL"
                      " ORDER BY done_ms, id",
                      err);
    if (!statement || index_each(index, statement, take_excess, &excess, err) < 0)
        return -1;
    long long needed = excess.count;
    if (needed > *out)
        *out = needed;
    return 0;
}

struct expired {
    const struct store_retention *rules;
    uint64_t now;
    long long excess;
    bool (*on_row)(void *context, const char *id, const char *dir, uint64_t bytes);
    void *context;
};

static bool give_expired(void *context, sqlite3_stmt *statement)
{
    struct expired *expired = context;
    uint64_t done_ms = (uint64_t)sqlite3_column_int64(statement, 3);
    bool old = expired->rules->age_ms && done_ms + expired->rules->age_ms < expired->now;
    if (!old && expired->excess <= 0)
        return false;
    expired->excess--;
    return expired->on_row(expired->context, (const char *)sqlite3_column_text(statement, 0),
                           (const char *)sqlite3_column_text(statement, 1),
                           (uint64_t)sqlite3_column_int64(statement, 2));
}

static int list_expired(struct index *index, struct expired *expired, size_t limit, struct err *err)
{
    static const char text[] = "SELECT id, dir, ifnull(bytes, 0), done_ms FROM rollouts WHERE " DONE
                               " ORDER BY done_ms, id LIMIT ?1";
    sqlite3_stmt *statement = index_prepare(index, text, err);
    if (!statement)
        return -1;
    sqlite3_bind_int64(statement, 1, (int64_t)limit);
    return index_each(index, statement, give_expired, expired, err) < 0 ? -1 : 0;
}

int store_list_expired(struct store *store, const struct store_retention *rules, size_t limit,
                       bool (*on_row)(void *context, const char *id, const char *dir,
                                      uint64_t bytes),
                       void *context, struct err *err)
{
    OWN(mem) char *path = mem_format("%s/index.sqlite", store_home(store));
    struct expired expired = {
        .rules = rules, .now = clock_wall_ms(), .on_row = on_row, .context = context};
    if (!file_exists(path))
        return 0;
    if (store_reader(store, true)) /* brought up to date */
        store_reader_done(store);
    /* A connection of its own: a long look keeps nobody waiting. */
    struct index *index = index_open(store_home(store), false, err);
    if (!index)
        return -1;
    int result = count_excess(index, rules, &expired.excess, err);
    if (result == 0)
        result = list_expired(index, &expired, limit, err);
    index_close(index);
    return result;
}

/* ---------------------------------------------------------------- groups without rollouts */
struct keeping {
    struct store *store;
    struct err *err;
    bool failed;
};

static bool drop_group(void *context, sqlite3_stmt *statement)
{
    struct keeping *keeping = context;
    const char *id = (const char *)sqlite3_column_text(statement, 0);
    OWN(mem) char *dir = mem_format("%s/groups/%s", store_home(keeping->store), id);
    if (!strchr(id, '/') && id[0] != '.')
        (void)file_remove_tree(dir, NULL); /* the log of its preparation */
    keeping->failed = store_put_note(keeping->store, NULL, "deleted", "group", id, NULL, NULL, NULL,
                                     keeping->err) < 0;
    return !keeping->failed;
}

static int drop_empty_groups(struct store *store, struct index *index, struct err *err)
{
    static const char text[] = "SELECT id FROM groups WHERE NOT EXISTS"
                               " (SELECT 1 FROM rollouts WHERE grp = groups.id) LIMIT 10000";
    struct keeping keeping = {.store = store, .err = err};
    sqlite3_stmt *statement = index_prepare(index, text, err);
    if (!statement || index_each(index, statement, drop_group, &keeping, err) < 0)
        return -1;
    return keeping.failed ? -1 : 0;
}

/* ---------------------------------------------------------------- segments */
static bool keep_fact(void *context, sqlite3_stmt *statement)
{
    struct keeping *keeping = context;
    const char *name = (const char *)sqlite3_column_text(statement, 0);
    struct str value = str_of((const char *)sqlite3_column_text(statement, 1));
    keeping->failed = store_keep_fact(keeping->store, name, value, keeping->err) < 0;
    return !keeping->failed;
}

/* Facts are few and outlive everything: those that stand in the oldest segment are written once
 * more, and are out of the way the next time. */
static int move_facts(struct store *store, struct index *index, const char *oldest, struct err *err)
{
    struct keeping keeping = {.store = store, .err = err};
    sqlite3_stmt *statement =
        index_prepare(index, "SELECT name, value FROM facts WHERE segment <= ?1", err);
    if (!statement)
        return -1;
    index_bind(statement, 1, str_of(oldest));
    if (index_each(index, statement, keep_fact, &keeping, err) < 0)
        return -1;
    return keeping.failed ? -1 : 0;
}

/* The name of the oldest segment something stands in; "" when nothing does. */
static int oldest_needed(struct index *index, struct buf *out, struct err *err)
{
    static const char text[] = "SELECT min(oldest) FROM (SELECT min(segment) AS oldest FROM calls"
                               " UNION ALL SELECT min(segment) FROM rollouts"
                               " UNION ALL SELECT min(segment) FROM groups"
                               " UNION ALL SELECT min(segment) FROM facts)";
    return index_text(index, text, NULL, out, err) < 0 ? -1 : 0;
}

/* Nobody writes it and the index has all of it: then it is removed. */
static bool drop_segment(struct journal *journal, struct index *index, const char *name,
                         uint64_t *bytes)
{
    OWN(mem) char *path = mem_format("%s/%s", journal->dir, name);
    OWN(fd) int lock = open(path, O_RDWR | O_CLOEXEC);
    struct stat status;
    if (lock < 0 || flock(lock, LOCK_EX | LOCK_NB) < 0 || fstat(lock, &status) < 0)
        return false;
    OWN(segment) struct segment segment = {.fd = -1};
    long long indexed = 0;
    if (index_number(index, "SELECT indexed FROM segments WHERE name = ?1", name, &indexed, NULL) <
            0 ||
        segment_open(&segment, journal, name, NULL) < 0 || (size_t)indexed > segment.bytes.size ||
        segment_used(&segment, (size_t)indexed) > (size_t)indexed)
        return false;
    if (unlink(path) < 0)
        return false;
    *bytes += (uint64_t)status.st_blocks * 512;
    return true;
}

int store_drop_segments(struct store *store, uint64_t *count, uint64_t *bytes, struct err *err)
{
    OWN(buf) struct buf needed = {0};
    struct journal journal = {.fd = -1};
    OWN(mem) char *path = mem_format("%s/index.sqlite", store_home(store));
    *count = *bytes = 0;
    if (!file_exists(path))
        return 0;
    if (store_reader(store, true))
        store_reader_done(store);
    struct index *index = index_open(store_home(store), false, err);
    if (!index)
        return -1;
    char **names = NULL;
    int result = drop_empty_groups(store, index, err);
    if (result == 0)
        result = oldest_needed(index, &needed, err);
    if (result == 0)
        result = journal_open(&journal, store_home(store), false, err);
    if (result == 0 && !(names = journal_names(&journal, err)))
        result = -1;
    for (char **name = names; names && *name; name++) {
        if ((needed.size && strcmp(*name, buf_text(&needed)) >= 0) ||
            !drop_segment(&journal, index, *name, bytes))
            break;
        ++*count;
    }
    /* The newest segment stays anyway. */
    size_t last = 0;
    while (names && names[last])
        last++;
    if (needed.size && last && strcmp(buf_text(&needed), names[last - 1]) < 0)
        result = move_facts(store, index, buf_text(&needed), err);
    journal_names_free(names);
    journal_close(&journal);
    index_close(index);
    return result;
}
