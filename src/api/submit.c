/* submit.c - new rollouts and groups over HTTP.
 *
 * A submission is read by the tables below; whether agent, task, model and backend are there and
 * fit together is checked by whoever runs rollouts, before anything is begun. All of a submission
 * is taken or nothing. It is answered when it is in the journal: who has the answer finds it again
 * after any crash, and in every list. */
#include <stdlib.h>
#include <string.h>

#include "api/inner.h"
#include "base/err.h"
#include "base/mem.h"
#include "http/http.h"
#include "loop/loop.h"
#include "store/store.h"

#define NAME_BYTES_MAX 128
#define KEY_BYTES_MAX 256
#define PATH_BYTES_MAX 4096
#define WALL_MS_MAX (7ll * 24 * 3600 * 1000)
#define ORDERS_MAX 10000
#define GROUP_MAX 10000
#define PRIORITY_MAX 100

struct order {
    struct api_submit to;
    struct json task, tools, callback, sampling;
    struct json share_setup;
};

#define AT(member) offsetof(struct order, member)
/* The first rows are the group's alone, the last the single rollout's. */
static const struct api_field fields[] = {
    {"n", API_NUMBER, AT(to.n), 1, GROUP_MAX, true, "How many rollouts."},
    {"share_setup", API_VALUE, AT(share_setup), 0, 0, false,
     "true: install and setup happen once and the rest are forks, or it is refused; false: each "
     "for itself. By default shared where there is something to share and the backend can."},
    {"agent", API_TEXT, AT(to.agent), 0, PATH_BYTES_MAX, true,
     "Name or path of an agent spec on the server's machine."},
    {"task", API_TASK, AT(task), 0, 0, true,
     "The task itself, or a name or path on the server's machine."},
    {"model", API_TEXT, AT(to.model), 0, PATH_BYTES_MAX, false,
     "URL#name of a model server, or script:FILE; needed but in mode gate."},
    {"mode", API_TEXT, AT(to.mode), 0, NAME_BYTES_MAX, false, "black_box, proxy or gate."},
    {"run", API_TEXT, AT(to.run), 0, NAME_BYTES_MAX, false,
     "A label. Runs of the same priority take turns."},
    {"backend", API_TEXT, AT(to.backend), 0, NAME_BYTES_MAX, false,
     "Where the sandbox comes from."},
    {"turns_max", API_NUMBER, AT(to.turns_max), 1, UINT32_MAX, false, "Calls of the conversation."},
    {"skip_permissions", API_BOOL, AT(to.skip_permissions), 0, 0, false,
     "true: the agent's own permission checks are switched off, where its spec says how."},
    {"wall_ms_max", API_NUMBER, AT(to.wall_ms_max), 1, WALL_MS_MAX, false, "Of the agent."},
    {"memory_bytes_max", API_NUMBER, AT(to.memory_bytes_max), 16ll << 20, 64ll << 40, false,
     "Of the sandbox."},
    {"disk_bytes_max", API_NUMBER, AT(to.disk_bytes_max), 1ll << 20, 64ll << 40, false,
     "Of the sandbox."},
    {"pids_max", API_NUMBER, AT(to.pids_max), 8, 4194304, false, "Of the sandbox."},
    {"cpu_millis", API_NUMBER, AT(to.cpu_millis), 1, 1024000, false,
     "Thousandths of a core, of the sandbox."},
    {"tools", API_ARRAY, AT(tools), 0, 0, false, "Tools the trainer runs for this rollout."},
    {"sampling", API_OBJECT, AT(sampling), 0, 0, false, "Imposed on its calls in mode proxy."},
    {"exact_prefix", API_BOOL, AT(to.exact_prefix), 0, 0, false,
     "Prompts go on from the tokens that were sampled; only new messages are rendered."},
    {"realign_max", API_NUMBER, AT(to.realign_max), 0, UINT32_MAX, false,
     "Tokens a row of samples may bridge; 0: every row is exact."},
    {"priority", API_NUMBER, AT(to.priority), -PRIORITY_MAX, PRIORITY_MAX, false,
     "Higher ones start first; 0."},
    {"queue_ms_max", API_NUMBER, AT(to.queue_ms_max), 1, WALL_MS_MAX, false,
     "Who waited longer for a start is cancelled, reason queue_timeout."},
    {"policy_version", API_NUMBER, AT(to.policy_version), 0, INT64_MAX, false,
     "The version it is meant for: staleness counts from here instead of from the start."},
    {"callback", API_OBJECT, AT(callback), 0, 0, false,
     "{url, secret_env?}: the result is posted there when it is over."},
    {"key", API_TEXT, AT(to.key), 0, KEY_BYTES_MAX, false,
     "The same key and the same body again give the same answer, not another rollout."},
    {"group", API_TEXT, AT(to.group), 0, ID_MAX - 1, false,
     "The group it belongs to; for POST /v1/groups its id, when it should not be made up."},
    {"index", API_NUMBER, AT(to.index), 0, UINT32_MAX, false, "Which of its siblings, from 0."},
};
enum { GROUP_ONLY = 2, SINGLE_ONLY = 1 };
const struct api_body api_group_body = {"Group submission", fields, COUNT(fields) - SINGLE_ONLY};
const struct api_body api_submit_body = {"Rollout submission", fields + GROUP_ONLY,
                                         COUNT(fields) - GROUP_ONLY};

/* ---------------------------------------------------------------- reading */
static int read_key(const char *key, struct err *err)
{
    if (key[0])
        return 0;
    err_set(err, ERR_INPUT, "'key' is not empty");
    return err_at(err, "key");
}

static int read_order(struct api *api, struct json root, bool group, struct arena *arena,
                      struct order *order, struct err *err)
{
    const struct api_body *body = group ? &api_group_body : &api_submit_body;
    struct api_submit *to = &order->to;
    to->policy_version = to->share_setup = -1;
    if (api_read_object(root, body->fields, body->count, order, arena, err) < 0 ||
        (to->key && read_key(to->key, err) < 0))
        return -1;
    if (json_type(order->task) == JSON_OBJECT) {
        to->inline_task = json_raw(order->task);
    } else if (json_type(order->task) == JSON_STRING) {
        to->task = arena_text(arena, json_str(order->task, arena));
    } else {
        err_set(err, ERR_INPUT, "'task' is a path, a name or a task as an object");
        return err_at(err, "task");
    }
    if (json_exists(order->share_setup)) {
        enum json_type type = json_type(order->share_setup);
        if (type != JSON_TRUE && type != JSON_FALSE) {
            err_set(err, ERR_INPUT, "'share_setup' is true or false");
            return err_at(err, "share_setup");
        }
        to->share_setup = type == JSON_TRUE;
    }
    if (json_exists(order->tools))
        to->tools = json_raw(order->tools);
    if (json_exists(order->sampling))
        to->sampling = json_raw(order->sampling);
    if (json_exists(order->callback)) {
        if (api_callback_check(api, order->callback, arena, err) < 0)
            return -1;
        to->callback = arena_text(arena, json_raw(order->callback));
    }
    if (to->key) {
        char *hash = arena_alloc(arena, API_HASH_MAX);
        api_hash(root, hash);
        to->key_hash = hash;
    }
    return 0;
}

/* ---------------------------------------------------------------- answering */
struct reply {
    struct api *api;
    struct http_exchange *exchange; /* NULL: whoever asked has left */
    size_t pending;                 /* things that are not in the journal yet */
    struct err err;
    bool many, fresh;
    struct arena arena;
    size_t count;
    const char **ids;
    const char *group; /* NULL: no group */
    const char **keys; /* that were kept as pending */
    size_t key_count;
    const char **joined; /* keys of earlier submissions that were not kept yet */
    size_t joined_count;
};

static bool write_member(void *context, const struct store_rollout *row)
{
    json_put_text(context, row->id);
    return true;
}

static void write_answer(struct reply *reply, struct buf *body)
{
    struct json_writer out = {.out = body};
    json_begin_object(&out);
    if (!reply->many && !reply->group) {
        json_set_text(&out, "id", reply->ids[0]);
    } else if (reply->group) {
        json_set_text(&out, "id", reply->group);
        json_key(&out, "rollouts");
        json_begin_array(&out);
        for (size_t i = 0; i < reply->count; i++)
            json_put_text(&out, reply->ids[i]);
        if (!reply->fresh) {
            struct store_query query = {
                .group = reply->group, .oldest_first = true, .limit = API_PAGE_MAX};
            (void)store_list_rollouts(reply->api->store, &query, write_member, &out, NULL);
        }
        json_end_array(&out);
    } else {
        json_key(&out, "rollouts");
        json_begin_array(&out);
        for (size_t i = 0; i < reply->count; i++) {
            json_begin_object(&out);
            json_set_text(&out, "id", reply->ids[i]);
            json_end_object(&out);
        }
        json_end_array(&out);
    }
    json_end_object(&out);
}

static void finish(struct reply *reply)
{
    struct api *api = reply->api;
    OWN(buf) struct buf body = {0};
    for (size_t i = 0; i < reply->key_count; i++)
        api_drop_key(api, reply->keys[i]);
    if (reply->exchange && reply->err.kind != ERR_NONE) {
        api_answer_error(reply->exchange, &reply->err);
    } else if (reply->exchange) {
        write_answer(reply, &body);
        http_respond_json(reply->exchange, reply->fresh ? 201 : 200, buf_str(&body));
    }
    arena_deinit(&reply->arena);
    free(reply);
    api_reply_done(api);
}

static void on_stored(void *context, const struct err *err);

/* What this answer stands on was asked for earlier. It is kept by now, or it was taken back. */
static int check_joined(struct reply *reply, struct err *err)
{
    struct api *api = reply->api;
    struct store_key known;
    for (size_t i = 0; i < reply->joined_count; i++) {
        const char *key = reply->joined[i];
        if (map_get(&api->pending_keys, str_of(key))) {
            /* Still being taken back. */
            if (store_put_note(api->store, api->loop, "asked", NULL, NULL, NULL, on_stored, reply,
                               err) < 0)
                return -1;
            reply->pending++;
            return 0;
        }
        int found = store_find_key(api->store, key, &known, err);
        if (found < 0)
            return -1;
        if (!found)
            return err_set(err, ERR_CAPACITY, "the submission of the key '%.80s' was not kept",
                           key);
    }
    reply->joined_count = 0;
    return 0;
}

static void on_stored(void *context, const struct err *err)
{
    struct reply *reply = context;
    if (err->kind != ERR_NONE)
        reply->err = *err;
    if (--reply->pending)
        return;
    if (reply->err.kind == ERR_NONE)
        (void)check_joined(reply, &reply->err);
    if (reply->pending == 0)
        finish(reply);
}

static void on_gone(void *context)
{
    ((struct reply *)context)->exchange = NULL;
}

/* ---------------------------------------------------------------- a submission */
struct submission {
    struct api *api;
    bool group, many;
    size_t count;
    struct order *orders;
    struct store_key *known; /* "" for those that are new */
    bool *pending;           /* known, but not to the index yet */
    struct api_submit *fresh;
    size_t *places; /* of the fresh ones */
    size_t fresh_count;
};

static int look_up(struct submission *submission, size_t at, struct err *err)
{
    const struct api_submit *order = &submission->orders[at].to;
    struct store_key *known = &submission->known[at];
    if (!order->key)
        return 0;
    for (size_t i = 0; i < at; i++) {
        if (submission->orders[i].to.key && strcmp(submission->orders[i].to.key, order->key) == 0) {
            err_set(err, ERR_CONFLICT, "the key '%.80s' is there twice", order->key);
            return err_at(err, "key");
        }
    }
    submission->pending[at] = map_get(&submission->api->pending_keys, str_of(order->key)) != NULL;
    int found = api_find_key(submission->api, order->key, known, err);
    if (found <= 0)
        return found;
    if (strcmp(known->hash, order->key_hash) == 0 && known->group == submission->group)
        return 0;
    err_set(err, ERR_CONFLICT, "the key '%.80s' stands for another submission: %s '%s'", order->key,
            known->group ? "group" : "rollout", known->id);
    return err_at(err, "key");
}

static int read_all(struct submission *submission, struct json root, struct arena *arena,
                    struct err *err)
{
    size_t at = 0;
    submission->many = json_type(root) == JSON_ARRAY && !submission->group;
    submission->count = submission->many ? json_size(root) : 1;
    if (submission->count < 1 || submission->count > ORDERS_MAX)
        return err_set(err, ERR_INPUT, "a list has 1 to %d submissions", ORDERS_MAX);
    size_t count = submission->count;
    submission->orders = arena_alloc(arena, count * sizeof *submission->orders);
    memset(submission->orders, 0, count * sizeof *submission->orders);
    submission->known = arena_alloc(arena, count * sizeof *submission->known);
    memset(submission->known, 0, count * sizeof *submission->known);
    submission->pending = arena_alloc(arena, count * sizeof *submission->pending);
    memset(submission->pending, 0, count * sizeof *submission->pending);
    submission->fresh = arena_alloc(arena, count * sizeof *submission->fresh);
    submission->places = arena_alloc(arena, count * sizeof *submission->places);
    struct json_item item = submission->many ? json_first(root) : (struct json_item){.value = root};
    for (; at < count; at++, item = json_following(item)) {
        if (read_order(submission->api, item.value, submission->group, arena,
                       &submission->orders[at], err) < 0 ||
            look_up(submission, at, err) < 0)
            return submission->many ? err_below(err, "%zu", at) : -1;
        if (submission->known[at].id[0])
            continue;
        submission->places[submission->fresh_count] = at;
        submission->fresh[submission->fresh_count++] = submission->orders[at].to;
    }
    return 0;
}

/* Everything fits: hands the new ones on and remembers what to answer. */
static int hand_on(struct submission *submission, struct reply *reply, struct err *err)
{
    struct api *api = submission->api;
    size_t room = submission->group ? (size_t)submission->orders[0].to.n : submission->count;
    struct api_receipt receipt = {.on_stored = on_stored, .context = reply};
    receipt.ids = arena_alloc(&reply->arena, room * sizeof *receipt.ids);
    reply->joined = arena_alloc(&reply->arena, submission->count * sizeof *reply->joined);
    for (size_t i = 0; i < submission->count; i++)
        if (submission->pending[i])
            reply->joined[reply->joined_count++] =
                arena_text(&reply->arena, str_of(submission->orders[i].to.key));
    reply->many = submission->many;
    reply->fresh = submission->fresh_count > 0;
    if (reply->fresh) {
        if (api->submit(api->context, submission->fresh, submission->fresh_count, &receipt, err) <
            0) {
            if (submission->many)
                err_below(err, "%zu", submission->places[receipt.wrong]);
            return -1;
        }
        reply->pending = 1;
    } else if (reply->joined_count) {
        /* Answered when what came just before is kept, too. */
        if (store_put_note(api->store, api->loop, "asked", NULL, NULL, NULL, on_stored, reply,
                           err) < 0)
            return -1;
        reply->pending = 1;
    }
    reply->keys = arena_alloc(&reply->arena, submission->count * sizeof *reply->keys);
    if (submission->group) {
        bool fresh = reply->fresh;
        const char *id = fresh ? receipt.group : submission->known[0].id;
        reply->group = arena_text(&reply->arena, str_of(id));
        reply->count = fresh ? room : 0;
    } else {
        reply->count = submission->count;
    }
    reply->ids = arena_alloc(&reply->arena, (reply->count + 1) * sizeof *reply->ids);
    for (size_t i = 0; i < submission->count && !submission->group; i++)
        reply->ids[i] = arena_text(&reply->arena, str_of(submission->known[i].id));
    for (size_t i = 0; i < (submission->group ? reply->count : submission->fresh_count); i++)
        reply->ids[submission->group ? i : submission->places[i]] = receipt.ids[i];
    for (size_t i = 0; i < submission->fresh_count; i++) {
        const struct api_submit *order = &submission->fresh[i];
        if (!order->key)
            continue;
        reply->keys[reply->key_count++] = arena_text(&reply->arena, str_of(order->key));
        api_keep_key(api, order->key, order->key_hash,
                     submission->group ? reply->group : receipt.ids[i], submission->group);
    }
    return 0;
}

static void take(struct api *api, struct http_exchange *exchange, struct str body, bool group)
{
    OWN(arena) struct arena arena = {0};
    OWN(json_doc) struct json_doc doc = {0};
    struct submission submission = {.api = api, .group = group};
    struct err err = {0};
    if (api_read_json(body, &doc, &err) < 0 ||
        read_all(&submission, json_root(&doc), &arena, &err) < 0) {
        api_answer_error(exchange, &err);
        return;
    }
    struct reply *reply = mem_zero(sizeof *reply);
    reply->api = api;
    reply->exchange = exchange;
    if (hand_on(&submission, reply, &err) < 0) {
        arena_deinit(&reply->arena);
        free(reply);
        api_answer_error(exchange, &err);
        return;
    }
    api->replies++;
    if (reply->pending == 0) {
        finish(reply);
        return;
    }
    http_exchange_notify(exchange, 0, NULL, on_gone, reply);
}

static void on_rollout_body(void *context, struct http_exchange *exchange, struct str body,
                            const struct err *body_err)
{
    if (!body_err || body_err->kind == ERR_NONE)
        take(context, exchange, body, false);
}

static void on_group_body(void *context, struct http_exchange *exchange, struct str body,
                          const struct err *body_err)
{
    if (!body_err || body_err->kind == ERR_NONE)
        take(context, exchange, body, true);
}

static bool can(struct http_exchange *exchange, bool able)
{
    struct err err = {0};
    if (able)
        return true;
    err_set(&err, ERR_UNSUPPORTED, "this server takes no rollouts");
    api_answer_error(exchange, &err);
    return false;
}

void api_answer_submit(struct api *api, struct http_exchange *exchange, struct str name)
{
    (void)name;
    if (can(exchange, api->submit))
        http_exchange_collect(exchange, api->body_bytes_max, on_rollout_body, api);
}

void api_answer_group_submit(struct api *api, struct http_exchange *exchange, struct str name)
{
    (void)name;
    if (can(exchange, api->submit))
        http_exchange_collect(exchange, api->body_bytes_max, on_group_body, api);
}
