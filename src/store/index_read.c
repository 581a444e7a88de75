/* index_read.c - looking into the index: lists by cursor, never by offset, each along an index. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "store/index.h"

#define LIMIT_DEFAULT 100
#define LIMIT_MAX 1000

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

static void bind_text(sqlite3_stmt *statement, int at, const char *text)
{
    index_bind(statement, at, str_of(text));
}

sqlite3_stmt *index_prepare(struct index *index, const char *text, struct err *err)
{
    sqlite3_stmt *statement = NULL;
    if (sqlite3_prepare_v2(index->db, text, -1, &statement, NULL) != SQLITE_OK)
        index_error(index, err);
    return statement;
}

int index_each(struct index *index, sqlite3_stmt *statement,
               bool (*on_row)(void *context, sqlite3_stmt *statement), void *context,
               struct err *err)
{
    int code, count = 0;
    bool more = true;
    while (more && (code = sqlite3_step(statement)) == SQLITE_ROW) {
        count++;
        more = on_row(context, statement);
    }
    int result = !more || code == SQLITE_DONE ? count : index_error(index, err);
    sqlite3_finalize(statement);
    return result;
}

/* The parts of the reward, into the arena. */
static size_t read_rewards(struct index *index, const char *id, struct arena *arena,
                           const struct store_reward **out)
{
    enum { REWARDS_MAX = 64 };
    static const char text[] =
        "SELECT name, value FROM rewards WHERE rollout_id = ?1 ORDER BY name";
    struct store_reward *rewards = NULL;
    size_t count = 0;
    *out = NULL;
    if (!index->rewards && sqlite3_prepare_v3(index->db, text, -1, SQLITE_PREPARE_PERSISTENT,
                                              &index->rewards, NULL) != SQLITE_OK)
        return 0;
    sqlite3_bind_text(index->rewards, 1, id, -1, SQLITE_STATIC);
    while (count < REWARDS_MAX && sqlite3_step(index->rewards) == SQLITE_ROW) {
        if (!rewards)
            rewards = arena_alloc(arena, REWARDS_MAX * sizeof *rewards);
        rewards[count].name = arena_text(arena, str_of(column_text(index->rewards, 0)));
        rewards[count++].value = sqlite3_column_double(index->rewards, 1);
    }
    sqlite3_reset(index->rewards);
    *out = rewards;
    return count;
}

struct rollouts {
    struct index *index;
    bool (*on_row)(void *context, const struct store_rollout *row);
    void *context;
};

static bool give_rollout(void *context, sqlite3_stmt *statement)
{
    struct rollouts *wanted = context;
    OWN(arena) struct arena arena = {0};
    const char *text[ROLLOUT_TEXTS];
    for (int i = 0; i < ROLLOUT_TEXTS; i++)
        text[i] = column_text(statement, i);
    int at = ROLLOUT_TEXTS;
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
        .reason = text[12],
        .key = text[13],
        .key_hash = text[14],
        .callback = text[15],
        .callback_state = text[16],
        .index = (uint32_t)column_number(statement, at, 0),
        .has_reward = sqlite3_column_type(statement, at + 1) != SQLITE_NULL,
        .reward = sqlite3_column_double(statement, at + 1),
        .calls = (uint32_t)column_number(statement, at + 2, 0),
        .turns = (uint32_t)column_number(statement, at + 3, 0),
        .prompt_tokens = column_number(statement, at + 4, 0),
        .completion_tokens = column_number(statement, at + 5, 0),
        .queued_ms = (uint64_t)column_number(statement, at + 6, 0),
        .started_ms = (uint64_t)column_number(statement, at + 7, 0),
        .done_ms = (uint64_t)column_number(statement, at + 8, 0),
        .has_policy = sqlite3_column_type(statement, at + 9) != SQLITE_NULL,
        .policy_version = column_number(statement, at + 9, 0),
        .bytes = (uint64_t)column_number(statement, at + 10, 0),
    };
    row.reward_count = read_rewards(wanted->index, row.id, &arena, &row.rewards);
    return wanted->on_row(wanted->context, &row);
}

/* Only what is asked for is in the question, so that each goes along an index. */
static void write_list(const struct store_query *query, struct buf *text)
{
    static const char *const final_stages[] = {"done", "failed", "cancelled"};
    bool oldest_first = query->oldest_first || query->after;
    const char *joint = " WHERE ";
    const struct {
        const char *value, *condition;
    } filters[] = {
        {query->run, "run = ?1"},   {query->stage, "stage = ?2"}, {query->fate, "fate = ?3"},
        {query->task, "task = ?4"}, {query->group, "grp = ?5"},   {query->agent, "agent = ?6"},
        {query->before, "id < ?7"}, {query->after, "id > ?8"},
    };
    bool open = query->unfinished;
    if (query->stage) {
        open = true;
        for (size_t i = 0; i < COUNT(final_stages); i++)
            open = open && strcmp(query->stage, final_stages[i]) != 0;
    }
    buf_str_append(text, STR("SELECT " ROLLOUT_COLUMNS " FROM rollouts"));
    for (size_t i = 0; i < COUNT(filters); i++) {
        if (!filters[i].value)
            continue;
        buf_format(text, "%s%s", joint, filters[i].condition);
        joint = " AND ";
    }
    if (open) {
        buf_format(text, "%sfate IS NULL", joint);
        joint = " AND ";
    }
    if (query->callback_pending) {
        buf_format(text, "%scallback_state = 'pending'", joint);
        joint = " AND ";
    }
    if (query->done_before_ms)
        buf_format(text, "%sfate IS NOT NULL AND done_ms < ?9", joint);
    buf_format(text, " ORDER BY %s %s LIMIT ?10", query->done_before_ms ? "done_ms" : "id",
               oldest_first ? "ASC" : "DESC");
}

int index_list_rollouts(struct index *index, const struct store_query *query,
                        bool (*on_row)(void *, const struct store_rollout *), void *context,
                        struct err *err)
{
    OWN(buf) struct buf text = {0};
    size_t limit = query->limit ? query->limit : LIMIT_DEFAULT;
    write_list(query, &text);
    sqlite3_stmt *statement = index_prepare(index, buf_text(&text), err);
    if (!statement)
        return -1;
    const char *values[] = {query->run,   query->stage, query->fate,   query->task,
                            query->group, query->agent, query->before, query->after};
    for (size_t i = 0; i < COUNT(values); i++)
        if (values[i])
            bind_text(statement, (int)i + 1, values[i]);
    if (query->done_before_ms)
        sqlite3_bind_int64(statement, 9, (int64_t)query->done_before_ms);
    sqlite3_bind_int64(statement, 10, (int64_t)(limit < LIMIT_MAX ? limit : LIMIT_MAX));
    struct rollouts wanted = {index, on_row, context};
    return index_each(index, statement, give_rollout, &wanted, err) < 0 ? -1 : 0;
}

struct found {
    int64_t count;
    char *id;
};

static bool note_found(void *context, sqlite3_stmt *statement)
{
    struct found *found = context;
    found->count = sqlite3_column_int64(statement, 0);
    found->id = mem_dup(column_text(statement, 1));
    return false;
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
    sqlite3_stmt *statement = index_prepare(index, find, err);
    if (!statement)
        return -1;
    bind_text(statement, 1, id);
    struct found found = {0};
    int rows = index_each(index, statement, note_found, &found, err);
    OWN(mem) char *full = found.id;
    if (rows < 0)
        return -1;
    if (found.count == 0)
        return err_set(err, ERR_NOT_FOUND, "there is no rollout '%s'", id);
    if (found.count > 1)
        return err_set(err, ERR_CONFLICT, "'%s' fits %lld rollouts", id, (long long)found.count);
    if (!(statement = index_prepare(index, get, err)))
        return -1;
    bind_text(statement, 1, full);
    struct rollouts wanted = {index, on_row, context};
    rows = index_each(index, statement, give_rollout, &wanted, err);
    if (rows == 0) /* it went in between */
        return err_set(err, ERR_NOT_FOUND, "there is no rollout '%s'", id);
    return rows < 0 ? -1 : 0;
}

struct calls {
    bool (*on_row)(void *context, const struct store_call *row);
    void *context;
};

static bool give_call(void *context, sqlite3_stmt *statement)
{
    struct calls *wanted = context;
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
        .place = (uint64_t)column_number(statement, 10, 0),
    };
    return wanted->on_row(wanted->context, &row);
}

int index_list_calls(struct index *index, const char *rollout_id,
                     bool (*on_row)(void *, const struct store_call *), void *context,
                     struct err *err)
{
    static const char text[] =
        "SELECT id, rollout_id, state, number, status, prompt_tokens, completion_tokens, intent_ms,"
        " entry_ms, deliveries, place FROM calls WHERE rollout_id = ?1 ORDER BY number, "
        "id";
    sqlite3_stmt *statement = index_prepare(index, text, err);
    if (!statement)
        return -1;
    bind_text(statement, 1, rollout_id);
    struct calls wanted = {on_row, context};
    return index_each(index, statement, give_call, &wanted, err) < 0 ? -1 : 0;
}

static bool note_place(void *context, sqlite3_stmt *statement)
{
    struct index_place *place = context;
    const char *segment = column_text(statement, 0);
    snprintf(place->segment, sizeof place->segment, "%s", segment ? segment : "");
    place->offset = (uint64_t)sqlite3_column_int64(statement, 1);
    return false;
}

int index_find_call(struct index *index, const char *call_id, struct index_place *out,
                    struct err *err)
{
    static const char text[] = "SELECT segment, place FROM calls WHERE id = ?1";
    sqlite3_stmt *statement = index_prepare(index, text, err);
    if (!statement)
        return -1;
    *out = (struct index_place){0};
    bind_text(statement, 1, call_id);
    if (index_each(index, statement, note_place, out, err) < 0)
        return -1;
    return out->segment[0]
               ? 0
               : err_set(err, ERR_NOT_FOUND, "there is no entry for call '%s'", call_id);
}

static bool note_number(void *context, sqlite3_stmt *statement)
{
    *(long long *)context = sqlite3_column_int64(statement, 0);
    return false;
}

int index_number(struct index *index, const char *text, const char *name, long long *out,
                 struct err *err)
{
    sqlite3_stmt *statement = index_prepare(index, text, err);
    if (!statement)
        return -1;
    if (name)
        bind_text(statement, 1, name);
    return index_each(index, statement, note_number, out, err);
}

static bool note_text(void *context, sqlite3_stmt *statement)
{
    if (column_text(statement, 0))
        buf_str_append(context, str_of(column_text(statement, 0)));
    return false;
}

int index_text(struct index *index, const char *text, const char *name, struct buf *out,
               struct err *err)
{
    sqlite3_stmt *statement = index_prepare(index, text, err);
    if (!statement)
        return -1;
    if (name)
        bind_text(statement, 1, name);
    return index_each(index, statement, note_text, out, err);
}

static bool note_key(void *context, sqlite3_stmt *statement)
{
    struct store_key *key = context;
    const char *hash = column_text(statement, 1);
    snprintf(key->id, sizeof key->id, "%s", column_text(statement, 0));
    snprintf(key->hash, sizeof key->hash, "%s", hash ? hash : "");
    key->group = sqlite3_column_int(statement, 2) == 1;
    return false;
}

int index_find_key(struct index *index, const char *key, struct store_key *out, struct err *err)
{
    static const char text[] =
        "SELECT id, key_hash, 0 FROM rollouts WHERE key = ?1 UNION ALL"
        " SELECT id, key_hash, 1 FROM groups WHERE key = ?1 ORDER BY id DESC LIMIT 1";
    sqlite3_stmt *statement = index_prepare(index, text, err);
    if (!statement)
        return -1;
    bind_text(statement, 1, key);
    return index_each(index, statement, note_key, out, err);
}

/* ---------------------------------------------------------------- groups */
struct groups {
    bool (*on_row)(void *context, const struct store_group *row);
    void *context;
};

static bool give_group(void *context, sqlite3_stmt *statement)
{
    struct groups *wanted = context;
    struct store_group row = {
        .id = column_text(statement, 0),
        .run = column_text(statement, 1),
        .task = column_text(statement, 2),
        .agent = column_text(statement, 3),
        .model = column_text(statement, 4),
        .mode = column_text(statement, 5),
        .shared = column_text(statement, 6),
        .key = column_text(statement, 7),
        .n = (uint32_t)column_number(statement, 8, 0),
        .queued_ms = (uint64_t)column_number(statement, 9, 0),
    };
    return wanted->on_row(wanted->context, &row);
}

int index_list_groups(struct index *index, const struct store_query *query,
                      bool (*on_row)(void *, const struct store_group *), void *context,
                      struct err *err)
{
    OWN(buf) struct buf text = {0};
    size_t limit = query->limit ? query->limit : LIMIT_DEFAULT;
    bool oldest_first = query->oldest_first || query->after;
    buf_str_append(&text, STR("SELECT id, run, task, agent, model, mode, shared, key, n, queued_ms"
                              " FROM groups WHERE 1"));
    const struct {
        const char *value, *condition;
    } filters[] = {{query->run, " AND run = ?1"},
                   {query->before, " AND id < ?2"},
                   {query->after, " AND id > ?3"},
                   {query->group, " AND id = ?4"}};
    for (size_t i = 0; i < COUNT(filters); i++)
        if (filters[i].value)
            buf_str_append(&text, str_of(filters[i].condition));
    buf_format(&text, " ORDER BY id %s LIMIT ?5", oldest_first ? "ASC" : "DESC");
    sqlite3_stmt *statement = index_prepare(index, buf_text(&text), err);
    if (!statement)
        return -1;
    for (size_t i = 0; i < COUNT(filters); i++)
        if (filters[i].value)
            bind_text(statement, (int)i + 1, filters[i].value);
    sqlite3_bind_int64(statement, 5, (int64_t)(limit < LIMIT_MAX ? limit : LIMIT_MAX));
    struct groups wanted = {on_row, context};
    return index_each(index, statement, give_group, &wanted, err) < 0 ? -1 : 0;
}

struct sums {
    void (*on_fate)(void *context, const struct store_group_sum *sum);
    void *context;
};

static bool give_sum(void *context, sqlite3_stmt *statement)
{
    struct sums *wanted = context;
    struct store_group_sum sum = {
        .fate = column_text(statement, 0),
        .count = (uint64_t)column_number(statement, 1, 0),
        .rewarded = (uint64_t)column_number(statement, 2, 0),
        .reward_sum = sqlite3_column_double(statement, 3),
    };
    wanted->on_fate(wanted->context, &sum);
    return true;
}

int index_sum_group(struct index *index, const char *id,
                    void (*on_fate)(void *, const struct store_group_sum *), void *context,
                    struct err *err)
{
    static const char text[] = "SELECT fate, count(*), count(reward), total(reward)"
                               " FROM rollouts WHERE grp = ?1 GROUP BY fate";
    sqlite3_stmt *statement = index_prepare(index, text, err);
    if (!statement)
        return -1;
    bind_text(statement, 1, id);
    struct sums wanted = {on_fate, context};
    return index_each(index, statement, give_sum, &wanted, err) < 0 ? -1 : 0;
}

uint64_t index_open_calls(struct index *index)
{
    long long count = 0;
    (void)index_number(index, "SELECT count(*) FROM calls WHERE state = 'open'", NULL, &count,
                       NULL);
    return count > 0 ? (uint64_t)count : 0;
}
