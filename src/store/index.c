/* index.c - the SQLite view of the journal: one row per rollout, group, call and reward. This file
 * writes; index_read.c looks.
 *
 * Nothing here is the only copy of anything. Each transaction also notes up to which byte of which
 * segment the index has come, so that after a crash exactly the missing records are added again;
 * adding a record twice changes nothing. An index that is damaged or of another version is set
 * aside and made anew from the journal.
 *
 * Every connection is used by one thread at a time (store.c sees to that). */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "store/index.h"

#define VERSION 4
#define BUSY_MS_MAX 10000
#define INTENTS_MAX 4096 /* that wait for the end of a transaction */

/* What lists ask for has an index of its own, so that a question costs the same whatever is kept.
 * Those on what changes during a rollout's life are partial: small, or written once. */
static const char schema[] =
    "CREATE TABLE segments(name TEXT PRIMARY KEY, indexed INTEGER NOT NULL) WITHOUT ROWID;"
    "CREATE TABLE rollouts(id TEXT PRIMARY KEY, run TEXT, grp TEXT, task TEXT, agent TEXT,"
    " model TEXT, mode TEXT, backend TEXT, stage TEXT, fate TEXT, error TEXT, dir TEXT,"
    " reason TEXT, key TEXT, key_hash TEXT, callback TEXT, callback_state TEXT,"
    " number INTEGER, reward REAL, calls INTEGER, turns INTEGER, prompt_tokens INTEGER,"
    " completion_tokens INTEGER, queued_ms INTEGER, started_ms INTEGER, done_ms INTEGER,"
    " policy INTEGER, bytes INTEGER, segment TEXT, updated_ms INTEGER NOT NULL) WITHOUT ROWID;"
    "CREATE INDEX rollouts_run ON rollouts(run, id) WHERE run IS NOT NULL;"
    "CREATE INDEX rollouts_group ON rollouts(grp, id) WHERE grp IS NOT NULL;"
    "CREATE INDEX rollouts_task ON rollouts(task, id);"
    "CREATE INDEX rollouts_agent ON rollouts(agent, id);"
    "CREATE INDEX rollouts_key ON rollouts(key) WHERE key IS NOT NULL;"
    "CREATE INDEX rollouts_open ON rollouts(stage, id) WHERE fate IS NULL;"
    "CREATE INDEX rollouts_fate ON rollouts(fate, id) WHERE fate IS NOT NULL;"
    "CREATE INDEX rollouts_done ON rollouts(done_ms, id, bytes) WHERE fate IS NOT NULL;"
    "CREATE INDEX rollouts_callback ON rollouts(id) WHERE callback_state = 'pending';"
    "CREATE TABLE groups(id TEXT PRIMARY KEY, run TEXT, task TEXT, agent TEXT, model TEXT,"
    " mode TEXT, shared TEXT, key TEXT, key_hash TEXT, n INTEGER, queued_ms INTEGER,"
    " segment TEXT) WITHOUT ROWID;"
    "CREATE INDEX groups_run ON groups(run, id) WHERE run IS NOT NULL;"
    "CREATE INDEX groups_key ON groups(key) WHERE key IS NOT NULL;"
    "CREATE TABLE facts(name TEXT PRIMARY KEY, value TEXT, segment TEXT) WITHOUT ROWID;"
    "CREATE TABLE rewards(rollout_id TEXT NOT NULL, name TEXT NOT NULL, value REAL,"
    " PRIMARY KEY(rollout_id, name)) WITHOUT ROWID;"
    "CREATE TABLE calls(id TEXT PRIMARY KEY, rollout_id TEXT, number INTEGER, state TEXT,"
    " status INTEGER, prompt_tokens INTEGER, completion_tokens INTEGER, intent_ms INTEGER,"
    " entry_ms INTEGER, segment TEXT, place INTEGER, deliveries INTEGER) WITHOUT ROWID;"
    "CREATE INDEX calls_rollout ON calls(rollout_id, number);"
    "CREATE INDEX calls_open ON calls(state) WHERE state = 'open';"
    "PRAGMA user_version = 4;";

/* What came later and needs no other version; `updated_ms` is the order of the row that is kept. */
static const char newer[] = "CREATE INDEX IF NOT EXISTS rollouts_updated ON rollouts(updated_ms);";

static const char *const texts[INDEX_STATEMENTS] = {
    /* While there is no entry, the place is the intent's. */
    [ADD_INTENT] = "INSERT INTO calls(id, rollout_id, number, state, intent_ms, segment, place)"
                   " VALUES(?1, ?2, ?3, 'open', ?4, ?5, ?6) ON CONFLICT(id) DO UPDATE SET"
                   " intent_ms = ?4,"
                   " number = CASE state WHEN 'open' THEN ?3 ELSE number END,"
                   " segment = CASE state WHEN 'open' THEN ?5 ELSE segment END,"
                   " place = CASE state WHEN 'open' THEN ?6 ELSE place END",
    [ADD_ENTRY] =
        "INSERT INTO calls(id, rollout_id, number, state, status, prompt_tokens,"
        " completion_tokens, entry_ms, segment, place, deliveries, intent_ms)"
        " VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)"
        " ON CONFLICT(id) DO UPDATE SET number = ?3, state = ?4, status = ?5, prompt_tokens = ?6,"
        " completion_tokens = ?7, entry_ms = ?8, segment = ?9, place = ?10,"
        " deliveries = max(ifnull(deliveries, 0), ?11), intent_ms = ifnull(?12, intent_ms)",
    [ADD_DELIVERY] =
        "INSERT INTO calls(id, rollout_id, state, deliveries) VALUES(?1, ?2, 'open', ?3)"
        " ON CONFLICT(id) DO UPDATE SET deliveries = max(ifnull(deliveries, 0), ?3)",
    /* What a rollout was asked for never changes: only what became of it is written again. */
    [ADD_ROLLOUT] =
        "INSERT INTO rollouts(" ROLLOUT_COLUMNS ", segment, updated_ms) VALUES(?1, ?2, ?3, ?4, ?5,"
        " ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22, ?23,"
        " ?24, ?25, ?26, ?27, ?28, ?29, ?30)"
        " ON CONFLICT(id) DO UPDATE SET model = ?6, backend = ?8, stage = ?9, fate = ?10,"
        " error = ?11, dir = ?12, reason = ?13, callback_state = ?17, reward = ?19, calls = ?20,"
        " turns = ?21, prompt_tokens = ?22, completion_tokens = ?23, started_ms = ?25,"
        " done_ms = ?26, policy = ?27, bytes = ?28, segment = ?29, updated_ms = ?30"
        " WHERE ?30 >= updated_ms",
    [DROP_REWARDS] = "DELETE FROM rewards WHERE rollout_id = ?1",
    [ADD_REWARD] = "INSERT OR REPLACE INTO rewards(rollout_id, name, value) VALUES(?1, ?2, ?3)",
    [ADD_GROUP] = "INSERT OR REPLACE INTO groups(id, run, task, agent, model, mode, shared, key,"
                  " key_hash, n, queued_ms, segment)"
                  " VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)",
    [ADD_FACT] = "INSERT OR REPLACE INTO facts(name, value, segment) VALUES(?1, ?2, ?3)",
    /* Written again by the retention: it stands in another segment now, unless it was put since. */
    [KEEP_FACT] = "INSERT INTO facts(name, value, segment) VALUES(?1, ?2, ?3)"
                  " ON CONFLICT(name) DO UPDATE SET segment = ?3 WHERE value = ?2",
    [SET_CALLBACK] = "UPDATE rollouts SET callback_state = ?2 WHERE id = ?1",
    [DROP_ROLLOUT] = "DELETE FROM rollouts WHERE id = ?1",
    [DROP_CALLS] = "DELETE FROM calls WHERE rollout_id = ?1",
    [DROP_GROUP] = "DELETE FROM groups WHERE id = ?1",
    [SET_SEGMENT] = "INSERT INTO segments(name, indexed) VALUES(?1, ?2)"
                    " ON CONFLICT(name) DO UPDATE SET indexed = ?2",
    [GET_SEGMENT] = "SELECT indexed FROM segments WHERE name = ?1",
};

int index_error(struct index *index, struct err *err)
{
    int code = index->db ? sqlite3_errcode(index->db) : SQLITE_NOMEM;
    enum err_kind kind = code == SQLITE_FULL                              ? ERR_DISK_FULL
                         : code == SQLITE_BUSY || code == SQLITE_LOCKED   ? ERR_CAPACITY
                         : code == SQLITE_READONLY || code == SQLITE_PERM ? ERR_DENIED
                                                                          : ERR_SYSTEM;
    return err_set(err, kind, "index.sqlite: %s", index->db ? sqlite3_errmsg(index->db) : "memory");
}

static int sql(struct index *index, const char *text, struct err *err)
{
    if (sqlite3_exec(index->db, text, NULL, NULL, NULL) != SQLITE_OK)
        return index_error(index, err);
    return 0;
}

static long long pragma_number(struct index *index, const char *text)
{
    sqlite3_stmt *statement = NULL;
    long long value = -1;
    if (sqlite3_prepare_v2(index->db, text, -1, &statement, NULL) == SQLITE_OK &&
        sqlite3_step(statement) == SQLITE_ROW)
        value = sqlite3_column_int64(statement, 0);
    sqlite3_finalize(statement);
    return value;
}

static void forget_intents(struct index *index)
{
    size_t at = 0;
    struct str key;
    void *view;
    while ((view = map_next(&index->intents, &at, &key)))
        free(view);
    map_deinit(&index->intents);
}

void index_close(struct index *index)
{
    if (!index)
        return;
    for (size_t i = 0; i < INDEX_STATEMENTS; i++)
        sqlite3_finalize(index->statements[i]);
    sqlite3_finalize(index->rewards);
    sqlite3_close(index->db);
    forget_intents(index);
    json_doc_deinit(&index->doc);
    free(index);
}

/* -1: an error. 1: the file is no index of ours and should be set aside. */
static int prepare_schema(struct index *index, struct err *err)
{
    sqlite3_busy_timeout(index->db, BUSY_MS_MAX);
    if (sqlite3_exec(index->db, "PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL;", NULL,
                     NULL, NULL) != SQLITE_OK) {
        int code = sqlite3_errcode(index->db);
        index_error(index, err);
        return code == SQLITE_NOTADB || code == SQLITE_CORRUPT ? 1 : -1;
    }
    if (sql(index, "BEGIN IMMEDIATE", err) < 0)
        return -1;
    long long version = pragma_number(index, "PRAGMA user_version");
    if (version != 0 && version != VERSION) {
        err_set(err, ERR_CONFLICT, "it has version %lld, not %d", version, VERSION);
        (void)sql(index, "ROLLBACK", NULL);
        return 1;
    }
    if ((version == 0 && sql(index, schema, err) < 0) || sql(index, newer, err) < 0)
        return -1;
    return sql(index, "COMMIT", err);
}

static struct index *connect(const char *path, bool write, struct err *err, int *verdict)
{
    struct index *index = mem_zero(sizeof *index);
    int flags = SQLITE_OPEN_NOMUTEX |
                (write ? SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE : SQLITE_OPEN_READONLY);
    *verdict = -1;
    if (sqlite3_open_v2(path, &index->db, flags, NULL) != SQLITE_OK) {
        index_error(index, err);
    } else if (!write) {
        sqlite3_busy_timeout(index->db, BUSY_MS_MAX);
        *verdict = 0;
    } else {
        *verdict = prepare_schema(index, err);
    }
    if (*verdict == 0)
        return index;
    index_close(index);
    return NULL;
}

struct index *index_open(const char *home, bool write, struct err *err)
{
    OWN(mem) char *path = mem_format("%s/index.sqlite", home);
    int verdict;
    struct err trouble = {0};
    struct index *index = connect(path, write, &trouble, &verdict);
    if (!index && verdict == 1) {
        OWN(mem)
        char *aside = mem_format("%s.set-aside-%llu", path, (unsigned long long)clock_wall_ms());
        OWN(mem) char *wal = mem_format("%s-wal", path);
        OWN(mem) char *shared = mem_format("%s-shm", path);
        LOG_WARN("store", NULL, "the index is made anew from the journal (%s); the old one is '%s'",
                 trouble.text, aside);
        if (rename(path, aside) < 0) {
            err_errno(err, "setting '%s' aside", path);
            return NULL;
        }
        (void)remove(wal);
        (void)remove(shared);
        index = connect(path, write, &trouble, &verdict);
    }
    if (!index) {
        err_copy(err, &trouble);
        err_wrap(err, "opening '%s'", path);
        return NULL;
    }
    if (!write)
        return index;
    for (size_t i = 0; i < INDEX_STATEMENTS; i++) {
        if (sqlite3_prepare_v3(index->db, texts[i], -1, SQLITE_PREPARE_PERSISTENT,
                               &index->statements[i], NULL) != SQLITE_OK) {
            index_error(index, err);
            index_close(index);
            return NULL;
        }
    }
    return index;
}

/* --- writing --- */

int index_begin(struct index *index, struct err *err)
{
    if (sql(index, "BEGIN IMMEDIATE", err) < 0)
        return -1;
    index->in_transaction = true;
    return 0;
}

void index_rollback(struct index *index)
{
    forget_intents(index);
    if (index->in_transaction)
        (void)sql(index, "ROLLBACK", NULL);
    index->in_transaction = false;
}

void index_bind(sqlite3_stmt *statement, int at, struct str text)
{
    if (text.data)
        sqlite3_bind_text(statement, at, text.data, (int)text.size, SQLITE_STATIC);
    else
        sqlite3_bind_null(statement, at);
}

static void bind_number(sqlite3_stmt *statement, int at, int64_t value)
{
    if (value < 0)
        sqlite3_bind_null(statement, at);
    else
        sqlite3_bind_int64(statement, at, value);
}

static int run(struct index *index, sqlite3_stmt *statement, struct err *err)
{
    int code = sqlite3_step(statement);
    int result = code == SQLITE_DONE || code == SQLITE_ROW ? 0 : index_error(index, err);
    sqlite3_reset(statement);
    sqlite3_clear_bindings(statement);
    return result;
}

static int write_intent(struct index *index, const struct store_view *view, struct err *err)
{
    sqlite3_stmt *statement = index->statements[ADD_INTENT];
    index_bind(statement, 1, view->call_id);
    index_bind(statement, 2, view->rollout_id);
    sqlite3_bind_int64(statement, 3, view->number);
    sqlite3_bind_int64(statement, 4, (int64_t)view->wall_ms);
    index_bind(statement, 5, view->segment);
    sqlite3_bind_int64(statement, 6, (int64_t)view->offset);
    return run(index, statement, err);
}

/* Those whose entry did not follow. */
static int write_intents(struct index *index, struct err *err)
{
    size_t at = 0;
    struct str key;
    const struct store_view *view;
    int result = 0;
    while (result == 0 && (view = map_next(&index->intents, &at, &key)))
        result = write_intent(index, view, err);
    forget_intents(index);
    return result;
}

/* Most calls end before the index looks at them: an intent waits for the end of the transaction,
 * and one whose entry comes before that is no row of its own. */
static int add_intent(struct index *index, const struct store_view *view, struct err *err)
{
    if (!view->call_id.size)
        return 0;
    struct store_view *copy = mem_alloc(sizeof *copy);
    *copy = *view;
    free(map_put(&index->intents, view->call_id, copy));
    return index->intents.count < INTENTS_MAX ? 0 : write_intents(index, err);
}

static int add_entry(struct index *index, const struct store_view *view, struct err *err)
{
    if (!view->call_id.size)
        return 0;
    sqlite3_stmt *statement = index->statements[ADD_ENTRY];
    OWN(mem) struct store_view *intent = map_remove(&index->intents, view->call_id);
    index_bind(statement, 1, view->call_id);
    index_bind(statement, 2, view->rollout_id);
    sqlite3_bind_int64(statement, 3, view->number);
    index_bind(statement, 4, view->state.data ? view->state : STR("done"));
    sqlite3_bind_int64(statement, 5, view->http_status);
    bind_number(statement, 6, view->prompt_tokens);
    bind_number(statement, 7, view->completion_tokens);
    sqlite3_bind_int64(statement, 8, (int64_t)view->wall_ms);
    index_bind(statement, 9, view->segment);
    sqlite3_bind_int64(statement, 10, (int64_t)view->offset);
    sqlite3_bind_int64(statement, 11, view->deliveries);
    if (intent)
        sqlite3_bind_int64(statement, 12, (int64_t)intent->wall_ms);
    return run(index, statement, err);
}

static int add_rewards(struct index *index, struct str id, struct json rewards, struct arena *arena,
                       struct err *err)
{
    index_bind(index->statements[DROP_REWARDS], 1, id);
    if (run(index, index->statements[DROP_REWARDS], err) < 0)
        return -1;
    JSON_EACH (item, rewards) {
        sqlite3_stmt *statement = index->statements[ADD_REWARD];
        index_bind(statement, 1, id);
        index_bind(statement, 2, json_str(item.key, arena));
        sqlite3_bind_double(statement, 3, json_double_or(item.value, NAN));
        if (run(index, statement, err) < 0)
            return -1;
    }
    return 0;
}

static int add_rollout(struct index *index, const struct store_view *view, struct err *err)
{
    static const char *const names[ROLLOUT_TEXTS] = {
        "id",     "run",     "group",    "task",     "agent",         "model",
        "mode",   "backend", "stage",    "fate",     "error",         "dir",
        "reason", "key",     "key_hash", "callback", "callback_state"};
    static const char *const numbers[] = {"index",          "reward",        "calls",
                                          "turns",          "prompt_tokens", "completion_tokens",
                                          "queued_ms",      "started_ms",    "done_ms",
                                          "policy_version", "bytes"};
    struct err trouble = {0};
    if (json_read(&index->doc, view->body, NULL, &trouble) < 0) {
        LOG_WARN("store", NULL, "a rollout record is not indexed: %s", trouble.text);
        return 0;
    }
    OWN(arena) struct arena arena = {0};
    struct json row = json_root(&index->doc);
    struct str id = json_str(json_get(row, "id"), &arena);
    if (!id.size)
        return 0;
    sqlite3_stmt *statement = index->statements[ADD_ROLLOUT];
    int at = 1;
    for (size_t i = 0; i < COUNT(names); i++) {
        struct json value = json_get(row, names[i]);
        index_bind(statement, at++,
                   json_type(value) == JSON_OBJECT ? json_raw(value) : json_str(value, &arena));
    }
    for (size_t i = 0; i < COUNT(numbers); i++, at++) {
        double number;
        long long whole;
        struct json value = json_get(row, numbers[i]);
        if (json_int(value, &whole)) /* versions may need all of their 63 bits */
            sqlite3_bind_int64(statement, at, whole);
        else if (json_double(value, &number))
            sqlite3_bind_double(statement, at, number);
    }
    index_bind(statement, at++, view->segment);
    sqlite3_bind_int64(statement, at, (int64_t)(view->order ? view->order : view->wall_ms));
    if (run(index, statement, err) < 0)
        return -1;
    if (!sqlite3_changes(index->db))
        return 0; /* a newer row is there already */
    return add_rewards(index, id, json_get(row, "rewards"), &arena, err);
}

static int add_delivery(struct index *index, const struct store_view *view, struct err *err)
{
    sqlite3_stmt *statement = index->statements[ADD_DELIVERY];
    index_bind(statement, 1, view->call_id);
    index_bind(statement, 2, view->rollout_id);
    sqlite3_bind_int64(statement, 3, view->deliveries);
    return run(index, statement, err);
}

/* {"note": "group" | "callback" | "deleted" | "fact", ...}; others mean nothing to the index. */
static int add_group(struct index *index, struct json note, struct str segment, struct arena *arena,
                     struct err *err)
{
    static const char *const names[] = {"id",   "run",    "task", "agent",   "model",
                                        "mode", "shared", "key",  "key_hash"};
    sqlite3_stmt *statement = index->statements[ADD_GROUP];
    int at = 1;
    for (size_t i = 0; i < COUNT(names); i++)
        index_bind(statement, at++, json_str(json_get(note, names[i]), arena));
    sqlite3_bind_int64(statement, at++, json_int_or(json_get(note, "n"), 0));
    sqlite3_bind_int64(statement, at++, json_int_or(json_get(note, "queued_ms"), 0));
    index_bind(statement, at, segment);
    return run(index, statement, err);
}

static int run_with(struct index *index, enum index_statement which, struct str first,
                    struct str second, struct str third, struct err *err)
{
    sqlite3_stmt *statement = index->statements[which];
    struct str values[] = {first, second, third};
    for (int i = 0; i < sqlite3_bind_parameter_count(statement) && i < 3; i++)
        index_bind(statement, i + 1, values[i]);
    return run(index, statement, err);
}

static int drop_rollout(struct index *index, struct str id, struct err *err)
{
    if (run_with(index, DROP_REWARDS, id, STR_NONE, STR_NONE, err) < 0 ||
        run_with(index, DROP_CALLS, id, STR_NONE, STR_NONE, err) < 0)
        return -1;
    return run_with(index, DROP_ROLLOUT, id, STR_NONE, STR_NONE, err);
}

static int add_note(struct index *index, const struct store_view *view, struct err *err)
{
    if (!view->body.size || json_read(&index->doc, view->body, NULL, NULL) < 0)
        return 0;
    OWN(arena) struct arena arena = {0};
    struct json note = json_root(&index->doc), kind = json_get(note, "note");
    struct str id = json_str(json_get(note, "id"), &arena);
    struct str rollout = json_str(json_get(note, "rollout"), &arena);
    struct str group = json_str(json_get(note, "group"), &arena);
    if (json_is(kind, "group") && id.size)
        return add_group(index, note, view->segment, &arena, err);
    if (json_is(kind, "callback") && rollout.size)
        return run_with(index, SET_CALLBACK, rollout, json_str(json_get(note, "state"), &arena),
                        STR_NONE, err);
    if (json_is(kind, "fact") && id.size)
        return run_with(index, json_true(json_get(note, "again")) ? KEEP_FACT : ADD_FACT, id,
                        json_raw(json_get(note, "value")), view->segment, err);
    if (json_is(kind, "deleted") && rollout.size)
        return drop_rollout(index, rollout, err);
    if (json_is(kind, "deleted") && group.size)
        return run_with(index, DROP_GROUP, group, STR_NONE, STR_NONE, err);
    return 0;
}

int index_add(struct index *index, const struct store_view *view, struct err *err)
{
    switch (view->type) {
    case STORE_INTENT:
        return add_intent(index, view, err);
    case STORE_ENTRY:
        return add_entry(index, view, err);
    case STORE_ROLLOUT:
        return add_rollout(index, view, err);
    case STORE_NOTE:
        if (write_intents(index, err) < 0) /* it may delete what they are about */
            return -1;
        return view->call_id.size && view->deliveries ? add_delivery(index, view, err)
                                                      : add_note(index, view, err);
    }
    return 0;
}

uint64_t index_segment(struct index *index, const char *segment)
{
    sqlite3_stmt *statement = index->statements[GET_SEGMENT];
    sqlite3_bind_text(statement, 1, segment, -1, SQLITE_STATIC);
    uint64_t indexed = 0;
    if (sqlite3_step(statement) == SQLITE_ROW)
        indexed = (uint64_t)sqlite3_column_int64(statement, 0);
    sqlite3_reset(statement);
    return indexed;
}

int index_note(struct index *index, const char *segment, uint64_t indexed, struct err *err)
{
    sqlite3_stmt *statement = index->statements[SET_SEGMENT];
    sqlite3_bind_text(statement, 1, segment, -1, SQLITE_STATIC);
    sqlite3_bind_int64(statement, 2, (int64_t)indexed);
    return run(index, statement, err);
}

int index_commit(struct index *index, struct err *err)
{
    if (write_intents(index, err) < 0 || sql(index, "COMMIT", err) < 0)
        return -1;
    index->in_transaction = false;
    return 0;
}
