/* index.c - the SQLite view of the journal: one row per rollout, call and reward.
 *
 * Nothing here is the only copy of anything. Each transaction also notes up to which byte of which
 * segment the index has come, so that after a crash exactly the missing records are added again;
 * adding a record twice changes nothing. An index that is damaged or of another version is set
 * aside and made anew from the journal.
 *
 * Every connection is used by one thread at a time (store.c sees to that). */
#include <errno.h>
#include <math.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "json/json.h"
#include "store/inner.h"

#define VERSION 2
#define BUSY_MS_MAX 10000
#define LIMIT_DEFAULT 100
#define LIMIT_MAX 1000

static const char schema[] =
    "CREATE TABLE segments(name TEXT PRIMARY KEY, indexed INTEGER NOT NULL) WITHOUT ROWID;"
    "CREATE TABLE rollouts(id TEXT PRIMARY KEY, run TEXT, grp TEXT, task TEXT, agent TEXT,"
    " model TEXT, mode TEXT, backend TEXT, stage TEXT, fate TEXT, error TEXT, dir TEXT,"
    " number INTEGER, reward REAL, calls INTEGER, turns INTEGER, prompt_tokens INTEGER,"
    " completion_tokens INTEGER, queued_ms INTEGER, started_ms INTEGER, done_ms INTEGER,"
    " updated_ms INTEGER NOT NULL) WITHOUT ROWID;"
    "CREATE INDEX rollouts_run ON rollouts(run, id);"
    "CREATE TABLE rewards(rollout_id TEXT NOT NULL, name TEXT NOT NULL, value REAL,"
    " PRIMARY KEY(rollout_id, name)) WITHOUT ROWID;"
    "CREATE TABLE calls(id TEXT PRIMARY KEY, rollout_id TEXT, number INTEGER, state TEXT,"
    " status INTEGER, prompt_tokens INTEGER, completion_tokens INTEGER, intent_ms INTEGER,"
    " entry_ms INTEGER, segment TEXT, place INTEGER, deliveries INTEGER) WITHOUT ROWID;"
    "CREATE INDEX calls_rollout ON calls(rollout_id, number);"
    "CREATE INDEX calls_open ON calls(state) WHERE state = 'open';"
    "PRAGMA user_version = 2;";

#define ROLLOUT_COLUMNS                                                                            \
    "id, run, grp, task, agent, model, mode, backend, stage, fate, error, dir, number, reward, "   \
    "calls, turns, prompt_tokens, completion_tokens, queued_ms, started_ms, done_ms"

enum statement {
    ADD_INTENT,
    ADD_ENTRY,
    ADD_DELIVERY,
    ADD_ROLLOUT,
    DROP_REWARDS,
    ADD_REWARD,
    SET_SEGMENT,
    GET_SEGMENT,
    STATEMENTS
};

static const char *const texts[STATEMENTS] = {
    /* While there is no entry, the place is the intent's. */
    [ADD_INTENT] = "INSERT INTO calls(id, rollout_id, number, state, intent_ms, segment, place)"
                   " VALUES(?1, ?2, ?3, 'open', ?4, ?5, ?6) ON CONFLICT(id) DO UPDATE SET"
                   " intent_ms = ?4,"
                   " number = CASE state WHEN 'open' THEN ?3 ELSE number END,"
                   " segment = CASE state WHEN 'open' THEN ?5 ELSE segment END,"
                   " place = CASE state WHEN 'open' THEN ?6 ELSE place END",
    [ADD_ENTRY] =
        "INSERT INTO calls(id, rollout_id, number, state, status, prompt_tokens,"
        " completion_tokens, entry_ms, segment, place, deliveries)"
        " VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)"
        " ON CONFLICT(id) DO UPDATE SET number = ?3, state = ?4, status = ?5, prompt_tokens = ?6,"
        " completion_tokens = ?7, entry_ms = ?8, segment = ?9, place = ?10,"
        " deliveries = max(ifnull(deliveries, 0), ?11)",
    [ADD_DELIVERY] =
        "INSERT INTO calls(id, rollout_id, state, deliveries) VALUES(?1, ?2, 'open', ?3)"
        " ON CONFLICT(id) DO UPDATE SET deliveries = max(ifnull(deliveries, 0), ?3)",
    [ADD_ROLLOUT] =
        "INSERT INTO rollouts(" ROLLOUT_COLUMNS ", updated_ms) VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7,"
        " ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22)"
        " ON CONFLICT(id) DO UPDATE SET run = ?2, grp = ?3, task = ?4, agent = ?5, model = ?6,"
        " mode = ?7, backend = ?8, stage = ?9, fate = ?10, error = ?11, dir = ?12, number = ?13,"
        " reward = ?14, calls = ?15, turns = ?16, prompt_tokens = ?17, completion_tokens = ?18,"
        " queued_ms = ?19, started_ms = ?20, done_ms = ?21, updated_ms = ?22"
        " WHERE ?22 >= updated_ms",
    [DROP_REWARDS] = "DELETE FROM rewards WHERE rollout_id = ?1",
    [ADD_REWARD] = "INSERT OR REPLACE INTO rewards(rollout_id, name, value) VALUES(?1, ?2, ?3)",
    [SET_SEGMENT] = "INSERT INTO segments(name, indexed) VALUES(?1, ?2)"
                    " ON CONFLICT(name) DO UPDATE SET indexed = ?2",
    [GET_SEGMENT] = "SELECT indexed FROM segments WHERE name = ?1",
};

struct index {
    sqlite3 *db;
    sqlite3_stmt *statements[STATEMENTS];
    bool in_transaction;
    struct json_doc doc;
};

static int sql_error(struct index *index, struct err *err)
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
        return sql_error(index, err);
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

void index_close(struct index *index)
{
    if (!index)
        return;
    for (size_t i = 0; i < STATEMENTS; i++)
        sqlite3_finalize(index->statements[i]);
    sqlite3_close(index->db);
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
        sql_error(index, err);
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
    if (version == 0 && sql(index, schema, err) < 0)
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
        sql_error(index, err);
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
    for (size_t i = 0; i < STATEMENTS; i++) {
        if (sqlite3_prepare_v3(index->db, texts[i], -1, SQLITE_PREPARE_PERSISTENT,
                               &index->statements[i], NULL) != SQLITE_OK) {
            sql_error(index, err);
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
    if (index->in_transaction)
        (void)sql(index, "ROLLBACK", NULL);
    index->in_transaction = false;
}

static void bind_str(sqlite3_stmt *statement, int at, struct str text)
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
    int result = code == SQLITE_DONE || code == SQLITE_ROW ? 0 : sql_error(index, err);
    sqlite3_reset(statement);
    sqlite3_clear_bindings(statement);
    return result;
}

static int add_call(struct index *index, const struct store_view *view, struct err *err)
{
    if (!view->call_id.size)
        return 0;
    bool entry = view->type == STORE_ENTRY;
    sqlite3_stmt *statement = index->statements[entry ? ADD_ENTRY : ADD_INTENT];
    bind_str(statement, 1, view->call_id);
    bind_str(statement, 2, view->rollout_id);
    sqlite3_bind_int64(statement, 3, view->number);
    if (!entry) {
        sqlite3_bind_int64(statement, 4, (int64_t)view->wall_ms);
        bind_str(statement, 5, view->segment);
        sqlite3_bind_int64(statement, 6, (int64_t)view->offset);
        return run(index, statement, err);
    }
    bind_str(statement, 4, view->state.data ? view->state : STR("done"));
    sqlite3_bind_int64(statement, 5, view->http_status);
    bind_number(statement, 6, view->prompt_tokens);
    bind_number(statement, 7, view->completion_tokens);
    sqlite3_bind_int64(statement, 8, (int64_t)view->wall_ms);
    bind_str(statement, 9, view->segment);
    sqlite3_bind_int64(statement, 10, (int64_t)view->offset);
    sqlite3_bind_int64(statement, 11, view->deliveries);
    return run(index, statement, err);
}

static int add_rewards(struct index *index, struct str id, struct json rewards, struct arena *arena,
                       struct err *err)
{
    bind_str(index->statements[DROP_REWARDS], 1, id);
    if (run(index, index->statements[DROP_REWARDS], err) < 0)
        return -1;
    JSON_EACH (item, rewards) {
        sqlite3_stmt *statement = index->statements[ADD_REWARD];
        bind_str(statement, 1, id);
        bind_str(statement, 2, json_str(item.key, arena));
        sqlite3_bind_double(statement, 3, json_double_or(item.value, NAN));
        if (run(index, statement, err) < 0)
            return -1;
    }
    return 0;
}

static int add_rollout(struct index *index, const struct store_view *view, struct err *err)
{
    static const char *const names[] = {"id",   "run",     "group", "task", "agent", "model",
                                        "mode", "backend", "stage", "fate", "error", "dir"};
    static const char *const numbers[] = {"index",     "reward",        "calls",
                                          "turns",     "prompt_tokens", "completion_tokens",
                                          "queued_ms", "started_ms",    "done_ms"};
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
    for (size_t i = 0; i < COUNT(names); i++)
        bind_str(statement, at++, json_str(json_get(row, names[i]), &arena));
    for (size_t i = 0; i < COUNT(numbers); i++, at++) {
        double number;
        if (json_double(json_get(row, numbers[i]), &number))
            sqlite3_bind_double(statement, at, number);
    }
    sqlite3_bind_int64(statement, at, (int64_t)view->wall_ms);
    if (run(index, statement, err) < 0)
        return -1;
    if (!sqlite3_changes(index->db))
        return 0; /* a newer row is there already */
    return add_rewards(index, id, json_get(row, "rewards"), &arena, err);
}

static int add_delivery(struct index *index, const struct store_view *view, struct err *err)
{
    sqlite3_stmt *statement = index->statements[ADD_DELIVERY];
    bind_str(statement, 1, view->call_id);
    bind_str(statement, 2, view->rollout_id);
    sqlite3_bind_int64(statement, 3, view->deliveries);
    return run(index, statement, err);
}

int index_add(struct index *index, const struct store_view *view, struct err *err)
{
    switch (view->type) {
    case STORE_INTENT:
    case STORE_ENTRY:
        return add_call(index, view, err);
    case STORE_ROLLOUT:
        return add_rollout(index, view, err);
    case STORE_NOTE:
        return view->call_id.size && view->deliveries ? add_delivery(index, view, err) : 0;
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
    if (sql(index, "COMMIT", err) < 0)
        return -1;
    index->in_transaction = false;
    return 0;
}

/* --- reading --- */

static const char *column_text(sqlite3_stmt *statement, int column)
{
    return (const char *)sqlite3_column_text(statement, column);
}

static int64_t column_number(sqlite3_stmt *statement, int column, int64_t fallback)
{
    if (sqlite3_column_type(statement, column) == SQLITE_NULL)
        return fallback;
    return sqlite3_column_int64(statement, column);
}

/* The parts of the reward, into the arena. */
static size_t read_rewards(struct index *index, const char *id, struct arena *arena,
                           const struct store_reward **out)
{
    enum { REWARDS_MAX = 64 };
    sqlite3_stmt *statement = NULL;
    struct store_reward *rewards = arena_alloc(arena, REWARDS_MAX * sizeof *rewards);
    size_t count = 0;
    if (sqlite3_prepare_v2(index->db,
                           "SELECT name, value FROM rewards WHERE rollout_id = ?1 ORDER BY name",
                           -1, &statement, NULL) == SQLITE_OK) {
        sqlite3_bind_text(statement, 1, id, -1, SQLITE_STATIC);
        while (count < REWARDS_MAX && sqlite3_step(statement) == SQLITE_ROW) {
            rewards[count].name = arena_text(arena, str_of(column_text(statement, 0)));
            rewards[count++].value = sqlite3_column_double(statement, 1);
        }
    }
    sqlite3_finalize(statement);
    *out = rewards;
    return count;
}

/* Hands out one row; false: the caller has had enough. */
static bool give_rollout(struct index *index, sqlite3_stmt *statement,
                         bool (*on_row)(void *, const struct store_rollout *), void *context)
{
    OWN(arena) struct arena arena = {0};
    const char *text[12];
    for (int i = 0; i < 12; i++)
        text[i] = column_text(statement, i);
    struct store_rollout row = {
        .id = text[0],
        .run = text[1],
        .group = text[2],
        .task = text[3],
        .agent = text[4],
        .model = text[5],
        .mode = text[6],
        .backend = text[7],
        .stage = text[8],
        .fate = text[9],
        .error = text[10],
        .dir = text[11],
        .index = (uint32_t)column_number(statement, 12, 0),
        .has_reward = sqlite3_column_type(statement, 13) != SQLITE_NULL,
        .reward = sqlite3_column_double(statement, 13),
        .calls = (uint32_t)column_number(statement, 14, 0),
        .turns = (uint32_t)column_number(statement, 15, 0),
        .prompt_tokens = column_number(statement, 16, 0),
        .completion_tokens = column_number(statement, 17, 0),
        .queued_ms = (uint64_t)column_number(statement, 18, 0),
        .started_ms = (uint64_t)column_number(statement, 19, 0),
        .done_ms = (uint64_t)column_number(statement, 20, 0),
    };
    row.reward_count = read_rewards(index, row.id, &arena, &row.rewards);
    return on_row(context, &row);
}

static void bind_text(sqlite3_stmt *statement, int at, const char *text)
{
    bind_str(statement, at, str_of(text));
}

int index_list_rollouts(struct index *index, const struct store_query *query,
                        bool (*on_row)(void *, const struct store_rollout *), void *context,
                        struct err *err)
{
    static const char text[] =
        "SELECT " ROLLOUT_COLUMNS " FROM rollouts WHERE (?1 IS NULL OR run = ?1)"
        " AND (?2 IS NULL OR stage = ?2) AND (?3 IS NULL OR fate = ?3)"
        " AND (?4 IS NULL OR task = ?4) AND (?5 IS NULL OR id < ?5) ORDER BY id DESC LIMIT ?6";
    size_t limit = query->limit ? query->limit : LIMIT_DEFAULT;
    sqlite3_stmt *statement = NULL;
    if (sqlite3_prepare_v2(index->db, text, -1, &statement, NULL) != SQLITE_OK)
        return sql_error(index, err);
    bind_text(statement, 1, query->run);
    bind_text(statement, 2, query->stage);
    bind_text(statement, 3, query->fate);
    bind_text(statement, 4, query->task);
    bind_text(statement, 5, query->before);
    sqlite3_bind_int64(statement, 6, (int64_t)(limit < LIMIT_MAX ? limit : LIMIT_MAX));
    int code;
    while ((code = sqlite3_step(statement)) == SQLITE_ROW)
        if (!give_rollout(index, statement, on_row, context)) {
            code = SQLITE_DONE;
            break;
        }
    int result = code == SQLITE_DONE ? 0 : sql_error(index, err);
    sqlite3_finalize(statement);
    return result;
}

int index_get_rollout(struct index *index, const char *id,
                      bool (*on_row)(void *, const struct store_rollout *), void *context,
                      struct err *err)
{
    /* The id itself or the only one that begins with it: ids hold nothing above 'z'. */
    static const char find[] = "SELECT count(*), max(id) FROM rollouts WHERE id = ?1 OR"
                               " (?1 <> '' AND id > ?1 AND id < ?1 || '~' AND NOT EXISTS"
                               " (SELECT 1 FROM rollouts WHERE id = ?1))";
    static const char get[] = "SELECT " ROLLOUT_COLUMNS " FROM rollouts WHERE id = ?1";
    sqlite3_stmt *statement = NULL;
    if (sqlite3_prepare_v2(index->db, find, -1, &statement, NULL) != SQLITE_OK)
        return sql_error(index, err);
    bind_text(statement, 1, id);
    OWN(mem) char *full = NULL;
    int64_t count = -1;
    if (sqlite3_step(statement) == SQLITE_ROW) {
        count = sqlite3_column_int64(statement, 0);
        full = mem_dup(column_text(statement, 1));
    }
    sqlite3_finalize(statement);
    if (count < 0)
        return sql_error(index, err);
    if (count == 0)
        return err_set(err, ERR_NOT_FOUND, "there is no rollout '%s'", id);
    if (count > 1)
        return err_set(err, ERR_CONFLICT, "'%s' fits %lld rollouts", id, (long long)count);

    if (sqlite3_prepare_v2(index->db, get, -1, &statement, NULL) != SQLITE_OK)
        return sql_error(index, err);
    bind_text(statement, 1, full);
    int code = sqlite3_step(statement);
    int result = 0;
    if (code == SQLITE_ROW)
        (void)give_rollout(index, statement, on_row, context);
    else
        result = sql_error(index, err);
    sqlite3_finalize(statement);
    return result;
}

int index_list_calls(struct index *index, const char *rollout_id,
                     bool (*on_row)(void *, const struct store_call *), void *context,
                     struct err *err)
{
    static const char text[] =
        "SELECT id, rollout_id, state, number, status, prompt_tokens, completion_tokens, intent_ms,"
        " entry_ms, deliveries FROM calls WHERE rollout_id = ?1 ORDER BY number, id";
    sqlite3_stmt *statement = NULL;
    if (sqlite3_prepare_v2(index->db, text, -1, &statement, NULL) != SQLITE_OK)
        return sql_error(index, err);
    bind_text(statement, 1, rollout_id);
    int code;
    while ((code = sqlite3_step(statement)) == SQLITE_ROW) {
        struct store_call row = {
            .id = column_text(statement, 0),
            .rollout_id = column_text(statement, 1),
            .state = column_text(statement, 2),
            .number = (uint32_t)column_number(statement, 3, 0),
            .http_status = (uint32_t)column_number(statement, 4, 0),
            .prompt_tokens = column_number(statement, 5, -1),
            .completion_tokens = column_number(statement, 6, -1),
            .intent_ms = (uint64_t)column_number(statement, 7, 0),
            .entry_ms = (uint64_t)column_number(statement, 8, 0),
            .deliveries = (uint32_t)column_number(statement, 9, 0),
        };
        if (!on_row(context, &row)) {
            code = SQLITE_DONE;
            break;
        }
    }
    int result = code == SQLITE_DONE ? 0 : sql_error(index, err);
    sqlite3_finalize(statement);
    return result;
}

int index_find_call(struct index *index, const char *call_id, struct index_place *out,
                    struct err *err)
{
    sqlite3_stmt *statement = NULL;
    if (sqlite3_prepare_v2(index->db, "SELECT segment, place FROM calls WHERE id = ?1", -1,
                           &statement, NULL) != SQLITE_OK)
        return sql_error(index, err);
    bind_text(statement, 1, call_id);
    int code = sqlite3_step(statement), result = 0;
    if (code == SQLITE_ROW && column_text(statement, 0)) {
        snprintf(out->segment, sizeof out->segment, "%s", column_text(statement, 0));
        out->offset = (uint64_t)sqlite3_column_int64(statement, 1);
    } else if (code == SQLITE_ROW || code == SQLITE_DONE) {
        result = err_set(err, ERR_NOT_FOUND, "there is no entry for call '%s'", call_id);
    } else {
        result = sql_error(index, err);
    }
    sqlite3_finalize(statement);
    return result;
}

uint64_t index_open_calls(struct index *index)
{
    long long count = pragma_number(index, "SELECT count(*) FROM calls WHERE state = 'open'");
    return count > 0 ? (uint64_t)count : 0;
}
