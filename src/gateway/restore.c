/* restore.c - a session that goes on where a dead server left it.
 *
 *     journal: entries ──► numbers, limits spent, answers whose delivery is not known
 *              intents without entry ──► open calls, waiting for their agent to ask again
 *
 * The agent's connections died with the server, so it asks again. An answer that was committed is
 * given once more (retry.c); a call that was only begun goes on under its old id and number, with
 * another attempt. Whatever nobody asked for again by the session's end is entered as broken. So
 * the record stays what it is: each call once, and answered exactly when its agent was.
 *
 * What an agent certainly has is not given again: entries and intents name the calls whose answers
 * had arrived by then. Earlier requests as bases for differences (lineage.c) are not restored: the
 * next entry is written whole. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/mem.h"
#include "gateway/inner.h"
#include "store/store.h"

#define READ_BYTES ((size_t)256 << 10)
#define LINE_HEAD_BYTES ((size_t)256)
#define ARENA_BYTES_MAX ((size_t)512 << 20)

/* A call of the record, oldest first. */
struct old {
    char id[ID_MAX];
    uint32_t number, deliveries;
    uint64_t entry_ms, place; /* when, and where in the journal */
    bool open, answered;
    struct buf record; /* JSON */
};

struct olds {
    struct old *at;
    size_t count, capacity;
    struct map taken; /* numbers as bytes */
};

/* An open call. */
struct restored {
    struct retry_key key;
    struct trace_call record;
};

static struct str key_bytes(const struct retry_key *key)
{
    return str_make(key, sizeof *key);
}

void restore_note(const struct call *call, struct json_writer *out)
{
    const struct retries *retries = &call->session->retries;
    char key[32];
    str_hex(key, call->key.high);
    str_hex(key + 16, call->key.low);
    json_set_str(out, "request_key", str_make(key, sizeof key));
    json_set_str(out, "model", call->request.model);
    json_set_bool(out, "stream", call->request.stream);
    if (!retries->taken_count)
        return;
    json_key(out, "taken");
    json_begin_array(out);
    for (size_t i = 0; i < retries->taken_count; i++)
        json_put_int(out, retries->taken[i]);
    json_end_array(out);
}

static bool read_key(struct json record, struct retry_key *key)
{
    OWN(arena) struct arena arena = {0};
    struct str text = json_str(json_get(record, "request_key"), &arena);
    if (text.size != 32)
        return false;
    uint64_t parts[2] = {0};
    for (size_t i = 0; i < 32; i++) {
        char digit = text.data[i];
        uint64_t value = digit >= '0' && digit <= '9'   ? (uint64_t)(digit - '0')
                         : digit >= 'a' && digit <= 'f' ? (uint64_t)(digit - 'a' + 10)
                                                        : 16;
        if (value == 16)
            return false;
        parts[i / 16] = parts[i / 16] << 4 | value;
    }
    *key = (struct retry_key){parts[0], parts[1]};
    return true;
}

/* ---------------------------------------------------------------- the record */

static void own_olds(struct olds *olds)
{
    for (size_t i = 0; i < olds->count; i++)
        buf_deinit(&olds->at[i].record);
    free(olds->at);
    map_deinit(&olds->taken);
}

static bool on_row(void *context, const struct store_call *row)
{
    struct olds *olds = context;
    if (!row->number)
        return true;
    if (olds->count == olds->capacity) {
        olds->capacity = olds->capacity * 2 + 16;
        olds->at = mem_grow(olds->at, olds->capacity * sizeof *olds->at);
    }
    struct old *old = &olds->at[olds->count++];
    *old = (struct old){
        .number = row->number,
        .deliveries = row->deliveries ? row->deliveries : 1,
        .entry_ms = row->entry_ms,
        .place = row->place,
        .open = strcmp(row->state, "open") == 0,
        .answered = strcmp(row->state, "answered") == 0,
    };
    snprintf(old->id, sizeof old->id, "%s", row->id);
    return true;
}

static void note_taken(struct olds *olds, struct json record)
{
    JSON_EACH (item, json_get(record, "taken")) {
        uint32_t number = (uint32_t)json_int_or(item.value, 0);
        (void)map_put(&olds->taken, str_make(&number, sizeof number), olds);
    }
}

/* What a model server's failure is for the rollout while no later call is answered; the status is
 * the one the agent was shown (call_trouble.c, show_failure). */
static bool is_upstreams(const struct gateway_session *session, struct json record)
{
    long long status = json_int_or(json_get(record, "http_status"), 0);
    return !session->model->script && !session->model->replay &&
           (status == 401 || status == 403 || status == 429 || status >= 500);
}

/* Of an entry: what it used up. */
static void count_entry(struct gateway_session *session, const struct old *old, struct json record)
{
    struct gateway_stats *stats = &session->stats;
    OWN(arena) struct arena arena = {0};
    struct trace_usage usage = {0};
    bool side = json_true(json_get(record, "side"));
    long long attempts = json_int_or(json_get(record, "attempts"), 1);
    stats->retries += attempts > 1 ? (uint32_t)attempts - 1 : 0;
    long long recorded = json_int_or(json_get(record, "recorded_bytes"), 0);
    session->recorded_bytes += recorded > 0 ? (uint64_t)recorded : old->record.size;
    session->tools_seen |= side;
    if (!old->answered) {
        stats->broken++;
        struct err why = {0};
        if (json_exists(json_get(record, "error")))
            err_set(&why, ERR_LOST, "%.*s",
                    STR_ARGS(str_upto(json_str(json_get(record, "error"), &arena), 200)));
        if (stats->error.kind == ERR_NONE)
            stats->error = why;
        if (stats->cause == GATEWAY_FINE && is_upstreams(session, record)) {
            stats->cause = GATEWAY_UPSTREAM;
            stats->why = why;
        }
        return;
    }
    if (stats->cause == GATEWAY_UPSTREAM) {
        stats->cause = GATEWAY_FINE;
        stats->why.kind = ERR_NONE;
    }
    stats->answered++;
    stats->turns += !side;
    if (trace_usage_read(json_get(json_get(record, "answer"), "usage"), &usage))
        trace_usage_add(&stats->usage, &usage);
}

static void restore_open(struct gateway_session *session, const struct old *old, struct json record)
{
    OWN(arena) struct arena arena = {0};
    struct restored *restored = mem_zero(sizeof *restored);
    struct str dialect = json_str(json_get(record, "dialect"), &arena);
    OWN(mem) char *name = str_dup(dialect);
    const struct dialect *known = dialect_find(name);
    memcpy(restored->record.id, old->id, sizeof old->id);
    snprintf(restored->record.rollout, sizeof restored->record.rollout, "%s", session->rollout_id);
    restored->record.number = old->number;
    restored->record.dialect = known ? dialect_name(known) : "unknown";
    restored->record.mode = gateway_mode_name(session->mode);
    restored->record.attempt = 1;
    restored->record.deliveries = 1;
    restored->record.request_bytes = (uint64_t)json_int_or(json_get(record, "request_bytes"), 0);
    /* Of two that asked the same at once, the first is the one to join, as in retry.c. */
    if (!read_key(record, &restored->key) || map_get(&session->restored, key_bytes(&restored->key)))
        restored->key = (struct retry_key){(uintptr_t)restored, old->number}; /* nobody's */
    free(map_put(&session->restored, key_bytes(&restored->key), restored));
}

/* ---------------------------------------------------------------- answers and scripts */

/* A call as it was when it was entered. */
static int read_call(struct gateway_session *session, const struct old *old, struct json record,
                     struct call *call, struct json_doc *doc, struct buf *body, struct err *err)
{
    struct store *store = session->gateway->store;
    OWN(mem) char *name = str_dup(json_str(json_get(record, "dialect"), &call->arena));
    call->session = session;
    call->dialect = dialect_find(name);
    if (!call->dialect)
        return err_set(err, ERR_PROTOCOL, "call '%s' is in no known dialect", old->id);
    if (store_read_request(store, old->id, body, err) < 0 ||
        json_read(doc, buf_str(body), NULL, err) < 0)
        return -1;
    struct dialect_route route = {DIALECT_ROUTE_CALL, call->dialect,
                                  json_str(json_get(record, "model"), &call->arena),
                                  json_true(json_get(record, "stream"))};
    if (dialect_read_request(&route, json_root(doc), &call->arena, &call->request, err) < 0)
        return -1;
    memcpy(call->record.id, old->id, sizeof old->id);
    call->record.number = old->number;
    call->record.deliveries = old->deliveries;
    struct json answer = json_get(record, "answer");
    return json_type(answer) == JSON_OBJECT
               ? recorded_answer_read(answer, &call->arena, &call->answer, err)
               : 0;
}

static void remember(struct gateway_session *session, struct call *call,
                     const struct retry_key *key)
{
    OWN(buf) struct buf answer = {0};
    if (call->request.stream) {
        call_stream_answer(call, &answer);
    } else {
        if (!call->answer.id.size)
            call->answer.id = str_of(call->record.id);
        call->answer.created_s = (int64_t)(clock_wall_ms() / 1000);
        dialect_write_answer(call->dialect, &call->request, &call->answer, &answer);
    }
    retry_restore(session, key, &call->record, call->request.stream, buf_str(&answer));
}

/* A script and a record that is replayed count what they were asked. */
static void play_again(struct gateway_session *session, const struct call *call, uint32_t attempts)
{
    struct model *model = session->model;
    struct err err = {0};
    struct upstream_request request = {
        .request = &call->request,
        .rollout_id = session->rollout_id,
        .task = session->task,
        .index = session->index,
        .number = call->record.number,
        .uses = session->script_uses,
        .divergence = &session->divergence,
    };
    for (uint32_t i = 0; i < attempts && i < 16; i++) {
        OWN(arena) struct arena arena = {0};
        struct script_scene scene;
        if (model->replay) {
            (void)replay_find(model->replay, &request, &session->divergence, &err);
        } else {
            script_scene_read(&scene, &request, &arena);
            (void)script_find(model->script, &scene, session->script_uses, &err);
        }
    }
}

/* ---------------------------------------------------------------- calls.jsonl */

/* A line begins with its call's id. */
static void note_line(struct map *ids, struct str head)
{
    struct str mark = STR("{\"call_id\":\"");
    if (!str_starts(head, mark))
        return;
    struct str id = str_from(head, mark.size);
    (void)map_put(ids, str_cut(&id, '"'), ids);
}

/* The ids of the lines that are there; a line that was not finished is cut off. */
static int read_lines(struct gateway_session *session, struct map *ids, struct err *err)
{
    if (session->lines.fd < 0)
        return 0;
    const char *path = session->lines.path;
    OWN(fd) int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    OWN(mem) char *bytes = mem_alloc(READ_BYTES);
    OWN(buf) struct buf head = {0}; /* of the line that is being read */
    off_t end = 0, whole = 0;
    if (fd < 0)
        return err_errno(err, "'%s'", path);
    for (;;) {
        ssize_t got = read(fd, bytes, READ_BYTES);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return err_errno(err, "'%s'", path);
        if (got == 0)
            break;
        for (struct str rest = str_make(bytes, (size_t)got); rest.size;) {
            long size = str_find_byte(rest, '\n');
            struct str piece = size < 0 ? rest : str_upto(rest, (size_t)size);
            if (head.size < LINE_HEAD_BYTES)
                buf_str_append(&head, str_upto(piece, LINE_HEAD_BYTES - head.size));
            end += (off_t)piece.size;
            rest = str_from(rest, piece.size);
            if (size < 0)
                continue;
            note_line(ids, buf_str(&head));
            buf_clear(&head);
            whole = ++end;
            rest = str_from(rest, 1);
        }
    }
    if (end > whole && ftruncate(session->lines.fd, whole) < 0)
        return err_errno(err, "'%s'", path);
    return 0;
}

/* The line of an entry that was committed when the server died before it could write it. */
static void add_line(struct gateway_session *session, const char *call_id)
{
    OWN(buf) struct buf whole = {0};
    struct err err = {0};
    if (gateway_read_call(session->gateway->store, call_id, &whole, &err) < 0) {
        log_write_of(LOG_WARN, "gateway", session->rollout_id, call_id,
                     "its line cannot be made: %s", err.text);
        return;
    }
    struct buf *line = lines_room(session);
    buf_str_append(line, buf_str(&whole));
    buf_byte(line, '\n');
    lines_added(session);
}

static int by_entry(const void *a, const void *b)
{
    const struct old *one = *(const struct old *const *)a, *other = *(const struct old *const *)b;
    if (one->entry_ms != other->entry_ms)
        return one->entry_ms < other->entry_ms ? -1 : 1;
    return one->place < other->place ? -1 : one->place > other->place;
}

/* In the order in which the calls ended, as lines are. */
static void add_lines(struct gateway_session *session, const struct olds *olds,
                      const struct map *there)
{
    OWN(mem) const struct old **missing = mem_alloc((olds->count + 1) * sizeof *missing);
    size_t count = 0;
    for (size_t i = 0; i < olds->count && session->lines.fd >= 0; i++)
        if (!olds->at[i].open && !map_get(there, str_of(olds->at[i].id)))
            missing[count++] = &olds->at[i];
    qsort(missing, count, sizeof *missing, by_entry);
    for (size_t i = 0; i < count; i++)
        add_line(session, missing[i]->id);
}

/* ---------------------------------------------------------------- the door */

static int restore_entry(struct gateway_session *session, struct olds *olds, size_t index,
                         size_t answers_after, struct err *err)
{
    const struct old *old = &olds->at[index];
    OWN(json_doc) struct json_doc doc = {0}, body_doc = {0};
    OWN(buf) struct buf body = {0};
    if (json_read(&doc, buf_str(&old->record), NULL, err) < 0)
        return err_wrap(err, "the record of call '%s'", old->id);
    struct json record = json_root(&doc);
    if (old->open) {
        restore_open(session, old, record);
        return 0;
    }
    count_entry(session, old, record);
    struct retry_key key;
    bool unsure = old->answered && answers_after < session->limits.in_flight_max &&
                  read_key(record, &key) &&
                  !map_get(&olds->taken, str_make(&old->number, sizeof old->number));
    bool played = session->model->script || session->model->replay;
    if (!unsure && !played && (session->tools_seen || answers_after))
        return 0;
    struct call call = {.arena.bytes_max = ARENA_BYTES_MAX};
    struct err trouble = {0};
    if (read_call(session, old, record, &call, &body_doc, &body, &trouble) < 0) {
        /* What was refused or broken may have no request; nobody gets that again anyway. */
        if (old->answered)
            log_write_of(LOG_WARN, "gateway", session->rollout_id, old->id,
                         "its answer cannot be given again: %s", trouble.text);
    } else {
        session->tools_seen |= call.request.tool_count > 0;
        if (unsure)
            remember(session, &call, &key);
        if (played)
            play_again(session, &call, (uint32_t)json_int_or(json_get(record, "attempts"), 1));
    }
    arena_deinit(&call.arena);
    return 0;
}

int session_restore(struct gateway_session *session, struct err *err)
{
    struct store *store = session->gateway->store;
    OWN(olds) struct olds olds = {0};
    struct map lines = {0};
    if (!store)
        return err_set(err, ERR_UNSUPPORTED, "there is no journal to restore a session from");
    int result = store_list_calls(store, session->rollout_id, on_row, &olds, err);
    size_t answers = 0;
    for (size_t i = 0; i < olds.count && result == 0; i++) {
        struct old *old = &olds.at[i];
        OWN(json_doc) struct json_doc doc = {0};
        result = store_read_record(store, old->id, &old->record, err);
        if (result == 0 && json_read(&doc, buf_str(&old->record), NULL, NULL) == 0)
            note_taken(&olds, json_root(&doc));
        if (old->number > session->stats.calls)
            session->stats.calls = old->number;
        answers += old->answered;
    }
    if (result == 0)
        result = read_lines(session, &lines, err);
    for (size_t i = 0; i < olds.count && result == 0; i++) {
        answers -= olds.at[i].answered;
        result = restore_entry(session, &olds, i, answers, err);
    }
    if (result == 0)
        add_lines(session, &olds, &lines);
    map_deinit(&lines);
    if (result < 0)
        return err_wrap(err, "the record of its calls");
    LOG_INFO("gateway", session->rollout_id, "restored: %u calls, %u answered, %zu open",
             session->stats.calls, session->stats.answered, session->restored.count);
    return 0;
}

void restore_call(struct call *call)
{
    if (!call->session->restored.count)
        return;
    const struct restored *restored = map_get(&call->session->restored, key_bytes(&call->key));
    if (!restored)
        return;
    memcpy(call->record.id, restored->record.id, sizeof call->record.id);
    call->record.number = restored->record.number;
    call->record.attempt = restored->record.attempt;
}

void restore_admitted(struct call *call)
{
    if (!call->record.number)
        return;
    CALL_LOG(LOG_INFO, call, "its agent asks again: another attempt");
    atomic_fetch_add(&call->session->gateway->calls, 1); /* of this process, where it will end */
    free(map_remove(&call->session->restored, key_bytes(&call->key)));
}

static void enter_broken(struct gateway_session *session, struct trace_call *record)
{
    OWN(buf) struct buf body = {0};
    struct err err = {0};
    record->state = TRACE_CALL_BROKEN;
    record->done_ms = clock_wall_ms();
    record->error_kind = err_meaning(ERR_LOST)->name;
    record->error = STR("the server died before its answer, and nobody asked again");
    trace_call_write(record, &(struct json_writer){.out = &body});
    struct store_record entry = {
        .type = STORE_ENTRY,
        .rollout_id = session->rollout_id,
        .call_id = record->id,
        .number = record->number,
        .state = trace_call_state_name(record->state),
        .body = buf_str(&body),
        .prompt_tokens = -1,
        .completion_tokens = -1,
    };
    if (store_append(session->gateway->store, NULL, &entry, NULL, NULL, &err) < 0)
        log_write_of(LOG_WARN, "gateway", session->rollout_id, record->id,
                     "is not entered as broken: %s", err.text);
    struct buf *line = lines_room(session);
    if (line) {
        buf_str_append(line, buf_str(&body));
        buf_byte(line, '\n');
        lines_added(session);
    }
    session->stats.broken++;
    session->stats.abandoned++;
}

void restore_give_up(struct gateway_session *session)
{
    size_t at = 0;
    for (struct restored *restored; (restored = map_next(&session->restored, &at, NULL));)
        enter_broken(session, &restored->record);
    restore_free(session);
}

void restore_free(struct gateway_session *session)
{
    size_t at = 0;
    for (struct restored *restored; (restored = map_next(&session->restored, &at, NULL));)
        free(restored);
    map_deinit(&session->restored);
    session->restored = (struct map){0};
}
