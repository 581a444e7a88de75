/* index.h - private to index.c (writing) and index_read.c (looking): one connection. */
#ifndef STORE_INDEX_H
#define STORE_INDEX_H

#include <sqlite3.h>

#include "base/map.h"
#include "json/json.h"
#include "store/inner.h"

#define ROLLOUT_COLUMNS                                                                            \
    "id, run, grp, task, agent, model, mode, backend, stage, fate, error, dir, reason, key, "      \
    "key_hash, callback, callback_state, number, reward, calls, turns, prompt_tokens, "            \
    "completion_tokens, queued_ms, started_ms, done_ms, policy, bytes"
enum { ROLLOUT_TEXTS = 17 }; /* of them are texts */

enum index_statement {
    ADD_INTENT,
    ADD_ENTRY,
    ADD_DELIVERY,
    ADD_ROLLOUT,
    DROP_REWARDS,
    ADD_REWARD,
    ADD_GROUP,
    ADD_FACT,
    KEEP_FACT,
    SET_CALLBACK,
    DROP_ROLLOUT,
    DROP_CALLS,
    DROP_GROUP,
    SET_SEGMENT,
    GET_SEGMENT,
    INDEX_STATEMENTS
};

struct index {
    sqlite3 *db;
    sqlite3_stmt *statements[INDEX_STATEMENTS];
    sqlite3_stmt *rewards; /* of a row that is read */
    bool in_transaction;
    struct map intents; /* of this transaction, by call: not written yet */
    struct json_doc doc;
};

int index_error(struct index *index, struct err *err);
void index_bind(sqlite3_stmt *statement, int at, struct str text);
/* NULL: it failed. */
sqlite3_stmt *index_prepare(struct index *index, const char *text, struct err *err);
/* Every row, until on_row has had enough; ends the statement. Returns how many there were. */
int index_each(struct index *index, sqlite3_stmt *statement,
               bool (*on_row)(void *context, sqlite3_stmt *statement), void *context,
               struct err *err);

#endif
