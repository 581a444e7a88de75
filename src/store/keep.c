/* keep.c - what the service keeps about rollouts and groups, through the journal like everything
 * else: rows, keys of submissions, facts, and that something was deleted. */
#include "store/store.h"

#include "base/err.h"
#include "base/mem.h"
#include "json/json.h"
#include "store/inner.h"

static void set_known(struct json_writer *out, const char *key, const char *value)
{
    if (value && value[0])
        json_set_text(out, key, value);
}

void store_rollout_write(const struct store_rollout *row, struct json_writer *out)
{
    json_begin_object(out);
    json_set_text(out, "id", row->id);
    set_known(out, "run", row->run);
    set_known(out, "group", row->group);
    json_set_int(out, "index", row->index);
    set_known(out, "task", row->task);
    set_known(out, "agent", row->agent);
    set_known(out, "model", row->model);
    set_known(out, "mode", row->mode);
    set_known(out, "backend", row->backend);
    set_known(out, "stage", row->stage);
    json_set_text(out, "fate", row->fate && row->fate[0] ? row->fate : NULL);
    set_known(out, "error", row->error);
    set_known(out, "reason", row->reason);
    set_known(out, "key", row->key);
    set_known(out, "key_hash", row->key_hash);
    if (row->callback && row->callback[0])
        json_set_raw(out, "callback", str_of(row->callback));
    set_known(out, "callback_state", row->callback_state);
    if (row->has_reward)
        json_set_double(out, "reward", row->reward);
    else
        json_set_null(out, "reward");
    if (row->reward_count) {
        json_key(out, "rewards");
        json_begin_object(out);
        for (size_t i = 0; i < row->reward_count; i++)
            json_set_double(out, row->rewards[i].name, row->rewards[i].value);
        json_end_object(out);
    }
    json_set_int(out, "calls", row->calls);
    json_set_int(out, "turns", row->turns);
    json_set_int(out, "prompt_tokens", row->prompt_tokens);
    json_set_int(out, "completion_tokens", row->completion_tokens);
    json_set_int(out, "queued_ms", (long long)row->queued_ms);
    json_set_int(out, "started_ms", (long long)row->started_ms);
    json_set_int(out, "done_ms", (long long)row->done_ms);
    if (row->has_policy)
        json_set_int(out, "policy_version", row->policy_version);
    if (row->bytes)
        json_set_int(out, "bytes", (long long)row->bytes);
    set_known(out, "dir", row->dir);
    json_end_object(out);
}

int store_put_rollout(struct store *store, struct loop *loop, const struct store_rollout *row,
                      void (*on_committed)(void *context, const struct err *err), void *context,
                      struct err *err)
{
    OWN(buf) struct buf body = {0};
    struct json_writer out = {.out = &body};
    store_rollout_write(row, &out);
    struct store_record record = {
        .type = STORE_ROLLOUT,
        .rollout_id = row->id,
        .body = buf_str(&body),
        .order = store_order(store),
    };
    return store_append(store, loop, &record, on_committed, context, err);
}

/* ---------------------------------------------------------------- notes */
static int append_note(struct store *store, struct loop *loop, struct str body,
                       void (*on_committed)(void *context, const struct err *err), void *context,
                       struct err *err)
{
    struct store_record record = {.type = STORE_NOTE, .body = body};
    return store_append(store, loop, &record, on_committed, context, err);
}

int store_put_group(struct store *store, struct loop *loop, const struct store_group *row,
                    void (*on_committed)(void *context, const struct err *err), void *context,
                    struct err *err)
{
    OWN(buf) struct buf body = {0};
    struct json_writer out = {.out = &body};
    json_begin_object(&out);
    json_set_text(&out, "note", "group");
    json_set_text(&out, "id", row->id);
    set_known(&out, "run", row->run);
    set_known(&out, "task", row->task);
    set_known(&out, "agent", row->agent);
    set_known(&out, "model", row->model);
    set_known(&out, "mode", row->mode);
    set_known(&out, "shared", row->shared);
    set_known(&out, "key", row->key);
    set_known(&out, "key_hash", row->key_hash);
    json_set_int(&out, "n", row->n);
    json_set_int(&out, "queued_ms", (long long)row->queued_ms);
    json_end_object(&out);
    return append_note(store, loop, buf_str(&body), on_committed, context, err);
}

int store_put_note(struct store *store, struct loop *loop, const char *kind, const char *member,
                   const char *name, const char *state,
                   void (*on_committed)(void *context, const struct err *err), void *context,
                   struct err *err)
{
    OWN(buf) struct buf body = {0};
    struct json_writer out = {.out = &body};
    json_begin_object(&out);
    json_set_text(&out, "note", kind);
    if (member)
        json_set_text(&out, member, name);
    if (state)
        json_set_text(&out, "state", state);
    json_end_object(&out);
    return append_note(store, loop, buf_str(&body), on_committed, context, err);
}

static int put_fact(struct store *store, struct loop *loop, const char *name, struct str value,
                    bool again, void (*on_committed)(void *context, const struct err *err),
                    void *context, struct err *err)
{
    OWN(buf) struct buf body = {0};
    struct json_writer out = {.out = &body};
    json_begin_object(&out);
    json_set_text(&out, "note", "fact");
    json_set_text(&out, "id", name);
    json_set_raw(&out, "value", value);
    if (again)
        json_set_bool(&out, "again", true);
    json_end_object(&out);
    return append_note(store, loop, buf_str(&body), on_committed, context, err);
}

int store_put_fact(struct store *store, struct loop *loop, const char *name, struct str value,
                   void (*on_committed)(void *context, const struct err *err), void *context,
                   struct err *err)
{
    return put_fact(store, loop, name, value, false, on_committed, context, err);
}

int store_keep_fact(struct store *store, const char *name, struct str value, struct err *err)
{
    return put_fact(store, NULL, name, value, true, NULL, NULL, err);
}

/* ---------------------------------------------------------------- looking */
int store_get_fact(struct store *store, const char *name, struct buf *out, struct err *err)
{
    struct index *index = store_reader(store, false);
    if (!index)
        return 0;
    int result = index_text(index, "SELECT value FROM facts WHERE name = ?1", name, out, err);
    store_reader_done(store);
    return result;
}

int store_find_key(struct store *store, const char *key, struct store_key *out, struct err *err)
{
    struct index *index = store_reader(store, false);
    if (!index)
        return 0;
    int result = index_find_key(index, key, out, err);
    store_reader_done(store);
    return result;
}

int store_list_groups(struct store *store, const struct store_query *query,
                      bool (*on_row)(void *context, const struct store_group *row), void *context,
                      struct err *err)
{
    struct index *index = store_reader(store, false);
    if (!index)
        return 0;
    int result = index_list_groups(index, query, on_row, context, err);
    store_reader_done(store);
    return result;
}

int store_sum_group(struct store *store, const char *id,
                    void (*on_fate)(void *context, const struct store_group_sum *sum),
                    void *context, struct err *err)
{
    struct index *index = store_reader(store, false);
    if (!index)
        return 0;
    int result = index_sum_group(index, id, on_fate, context, err);
    store_reader_done(store);
    return result;
}
