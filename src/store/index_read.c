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

/* Hands out one row; false: the caller has had enough. */
static bool give_rollout(struct index *index, sqlite3_stmt *statement,
                         bool (*on_row)(void *, const struct store_rollout *), void *context)
{
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
    row.reward_count = read_rewards(index, row.id, &arena, &row.rewards);
    return on_row(context, &row);
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
    sqlite3_stmt *statement = NULL;
    write_list(query, &text);
    if (sqlite3_prepare_v2(index->db, buf_text(&text), -1, &statement, NULL) != SQLITE_OK)
        return index_error(index, err);
    const char *values[] = {query->run,   query->stage, query->fate,   query->task,
                            query->group, query->agent, query->before, query->after};
    for (size_t i = 0; i < COUNT(values); i++)
        if (values[i])
            bind_text(statement, (int)i + 1, values[i]);
    if (query->done_before_ms)
        sqlite3_bind_int64(statement, 9, (int64_t)query->done_before_ms);
    sqlite3_bind_int64(statement, 10, (int64_t)(limit < LIMIT_MAX ? limit : LIMIT_MAX));
    int code;
    while ((code = sqlite3_step(statement)) == SQLITE_ROW)
        if (!give_rollout(index, statement, on_row, context)) {
            code = SQLITE_DONE;
            break;
        }
    int result = code == SQLITE_DONE ? 0 : index_error(index, err);
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
        return index_error(index, err);
    bind_text(statement, 1, id);
    OWN(mem) char *full = NULL;
    int64_t count = -1;
    if (sqlite3_step(statement) == SQLITE_ROW) {
        count = sqlite3_column_int64(statement, 0);
        full = mem_dup(column_text(statement, 1));
    }
    sqlite3_finalize(statement);
    if (count < 0)
        return index_error(index, err);
    if (count == 0)
        return err_set(err, ERR_NOT_FOUND, "there is no rollout '%s'", id);
    if (count > 1)
        return err_set(err, ERR_CONFLICT, "'%s' fits %lld rollouts", id, (long long)count);

    if (sqlite3_prepare_v2(index->db, get, -1, &statement, NULL) != SQLITE_OK)
        return index_error(index, err);
    bind_text(statement, 1, full);
    int code = sqlite3_step(statement);
    int result = 0;
    if (code == SQLITE_ROW)
        (void)give_rollout(index, statement, on_row, context);
    else
        result = index_error(index, err);
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
        return index_error(index, err);
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
    int result = code == SQLITE_DONE ? 0 : index_error(index, err);
    sqlite3_finalize(statement);
    return result;
}

int index_find_call(struct index *index, const char *call_id, struct index_place *out,
                    struct err *err)
{
    sqlite3_stmt *statement = NULL;
    if (sqlite3_prepare_v2(index->db, "SELECT segment, place FROM calls WHERE id = ?1", -1,
                           &statement, NULL) != SQLITE_OK)
        return index_error(index, err);
    bind_text(statement, 1, call_id);
    int code = sqlite3_step(statement), result = 0;
    if (code == SQLITE_ROW && column_text(statement, 0)) {
        snprintf(out->segment, sizeof out->segment, "%s", column_text(statement, 0));
        out->offset = (uint64_t)sqlite3_column_int64(statement, 1);
    } else if (code == SQLITE_ROW || code == SQLITE_DONE) {
        result = err_set(err, ERR_NOT_FOUND, "there is no entry for call '%s'", call_id);
    } else {
        result = index_error(index, err);
    }
    sqlite3_finalize(statement);
    return result;
}

int index_number(struct index *index, const char *text, const char *name, long long *out,
                 struct err *err)
{
    sqlite3_stmt *statement = NULL;
    if (sqlite3_prepare_v2(index->db, text, -1, &statement, NULL) != SQLITE_OK)
        return index_error(index, err);
    if (name)
        bind_text(statement, 1, name);
    int code = sqlite3_step(statement);
    int result = code == SQLITE_ROW ? 1 : code == SQLITE_DONE ? 0 : index_error(index, err);
    if (result == 1)
        *out = sqlite3_column_int64(statement, 0);
    sqlite3_finalize(statement);
    return result;
}

int index_text(struct index *index, const char *text, const char *name, struct buf *out,
               struct err *err)
{
    sqlite3_stmt *statement = NULL;
    if (sqlite3_prepare_v2(index->db, text, -1, &statement, NULL) != SQLITE_OK)
        return index_error(index, err);
    if (name)
        bind_text(statement, 1, name);
    int code = sqlite3_step(statement);
    int result = code == SQLITE_ROW ? 1 : code == SQLITE_DONE ? 0 : index_error(index, err);
    if (result == 1 && column_text(statement, 0))
        buf_str_append(out, str_of(column_text(statement, 0)));
    sqlite3_finalize(statement);
    return result;
}

int index_find_key(struct index *index, const char *key, struct store_key *out, struct err *err)
{
    static const char text[] =
        "SELECT id, key_hash, 0 FROM rollouts WHERE key = ?1 UNION ALL"
        " SELECT id, key_hash, 1 FROM groups WHERE key = ?1 ORDER BY id DESC LIMIT 1";
    sqlite3_stmt *statement = NULL;
    if (sqlite3_prepare_v2(index->db, text, -1, &statement, NULL) != SQLITE_OK)
        return index_error(index, err);
    bind_text(statement, 1, key);
    int code = sqlite3_step(statement);
    int result = code == SQLITE_ROW ? 1 : code == SQLITE_DONE ? 0 : index_error(index, err);
    if (result == 1) {
        const char *hash = column_text(statement, 1);
        snprintf(out->id, sizeof out->id, "%s", column_text(statement, 0));
        snprintf(out->hash, sizeof out->hash, "%s", hash ? hash : "");
        out->group = sqlite3_column_int(statement, 2) == 1;
    }
    sqlite3_finalize(statement);
    return result;
}

/* ---------------------------------------------------------------- groups */
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
    sqlite3_stmt *statement = NULL;
    if (sqlite3_prepare_v2(index->db, buf_text(&text), -1, &statement, NULL) != SQLITE_OK)
        return index_error(index, err);
    for (size_t i = 0; i < COUNT(filters); i++)
        if (filters[i].value)
            bind_text(statement, (int)i + 1, filters[i].value);
    sqlite3_bind_int64(statement, 5, (int64_t)(limit < LIMIT_MAX ? limit : LIMIT_MAX));
    int code;
    while ((code = sqlite3_step(statement)) == SQLITE_ROW) {
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
        if (!on_row(context, &row)) {
            code = SQLITE_DONE;
            break;
        }
    }
    int result = code == SQLITE_DONE ? 0 : index_error(index, err);
    sqlite3_finalize(statement);
    return result;
}

int index_sum_group(struct index *index, const char *id,
                    void (*on_fate)(void *, const struct store_group_sum *), void *context,
                    struct err *err)
{
    static const char text[] = "SELECT fate, count(*), count(reward), total(reward)"
                               " FROM rollouts WHERE grp = ?1 GROUP BY fate";
    sqlite3_stmt *statement = NULL;
    if (sqlite3_prepare_v2(index->db, text, -1, &statement, NULL) != SQLITE_OK)
        return index_error(index, err);
    bind_text(statement, 1, id);
    int code;
    while ((code = sqlite3_step(statement)) == SQLITE_ROW) {
        struct store_group_sum sum = {
            .fate = column_text(statement, 0),
            .count = (uint64_t)column_number(statement, 1, 0),
            .rewarded = (uint64_t)column_number(statement, 2, 0),
            .reward_sum = sqlite3_column_double(statement, 3),
        };
        on_fate(context, &sum);
    }
    int result = code == SQLITE_DONE ? 0 : index_error(index, err);
    sqlite3_finalize(statement);
    return result;
}

uint64_t index_open_calls(struct index *index)
{
    long long count = 0;
    (void)index_number(index, "SELECT count(*) FROM calls WHERE state = 'open'", NULL, &count,
                       NULL);
    return count > 0 ? (uint64_t)count : 0;
}
