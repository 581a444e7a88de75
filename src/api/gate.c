/* gate.c - the gate over HTTP: take, answer, stream, extend, release, fail.
 *
 * A take that waits is one `struct wait` in a list, so that a client that goes away cancels it and
 * a server that closes ends it. A stream is one `struct upload`: what comes in the request's body
 * is read as it comes and goes to the gate; a lane that is slow pauses the sender. */
#include "gateway/gate.h"

#include <stdlib.h>
#include <string.h>

#include "api/inner.h"
#include "base/err.h"
#include "base/list.h"
#include "base/mem.h"
#include "base/rope.h"
#include "http/http.h"

#define TAKE_MAX 1024
#define TAKE_BYTES_MAX ((size_t)64 << 20) /* of one answer; calls that do not fit go back */
#define WAIT_MS_MAX (24 * 3600 * 1000)
#define NAME_MAX_BYTES 128
#define MESSAGE_BYTES_MAX 4000
#define UPLOAD_HIGH ((size_t)256 << 10)

/* ---------------------------------------------------------------- what all share */

bool api_has_gate(struct api *api, struct http_exchange *exchange)
{
    struct err err = {0};
    if (api->gate)
        return true;
    err_set(&err, ERR_UNSUPPORTED, "this server has no gate");
    api_answer_error(exchange, &err);
    return false;
}

struct take_body {
    long long max, wait_ms, lease_ms;
    const char *group, *rollout, *op;
    bool raw;
    struct json id;
};
#define AT(member) offsetof(struct take_body, member)
/* The last two are of the WebSocket's form. */
static const struct api_field take_fields[] = {
    {"max", API_NUMBER, AT(max), 1, TAKE_MAX, false, "How many calls at most; 1."},
    {"wait_ms", API_NUMBER, AT(wait_ms), 0, WAIT_MS_MAX, false, "How long to wait for the first."},
    {"lease_ms", API_NUMBER, AT(lease_ms), 1, WAIT_MS_MAX, false,
     "For how long they are the asker's; 60 s."},
    {"group", API_TEXT, AT(group), 0, NAME_MAX_BYTES, false, "Only calls of this group."},
    {"rollout", API_TEXT, AT(rollout), 0, NAME_MAX_BYTES, false, "Only calls of this rollout."},
    {"raw", API_BOOL, AT(raw), 0, 0, false, "With the agent's own body; true."},
    {"op", API_TEXT, AT(op), 0, NAME_MAX_BYTES, false, NULL},
    {"id", API_VALUE, AT(id), 0, 0, false, NULL},
};
#undef AT
const struct api_body api_take_body = {"Take", take_fields, COUNT(take_fields) - 2};

int api_read_take(struct json object, struct arena *arena, struct gate_take *take, bool *raw,
                  struct json *id, struct err *err)
{
    struct take_body body = {.max = 1, .raw = true};
    size_t count = COUNT(take_fields) - (id ? 0 : 2);
    if (api_read_object(object, take_fields, count, &body, arena, err) < 0)
        return -1;
    take->max = (uint32_t)body.max;
    take->wait_ms = (uint32_t)body.wait_ms;
    take->lease_ms = (uint32_t)body.lease_ms;
    take->group_id = body.group;
    take->rollout_id = body.rollout;
    *raw = body.raw;
    if (id)
        *id = body.id;
    return 0;
}

void api_write_calls(struct api *api, struct gate_work *const *calls, size_t count, bool raw,
                     struct json_writer *out)
{
    size_t start = rope_size(out->rope);
    json_key(out, "calls");
    json_begin_array(out);
    size_t size = 256;
    for (size_t i = 0; i < count && size < TAKE_BYTES_MAX; i++)
        size += gate_work_size(calls[i]);
    (void)buf_reserve(out->out, size);
    size_t written = 0;
    for (; written < count && rope_size(out->rope) - start < TAKE_BYTES_MAX; written++)
        gate_work_write(calls[written], raw, out);
    json_end_array(out);
    while (count > written)
        gate_put_back(calls[--count]);
    json_set_bool(out, "paused", gate_paused(api->gate));
}

/* {"call_id", "status"} */
static void answer_status(struct http_exchange *exchange, const char *call_id, const char *status)
{
    OWN(buf) struct buf body = {0};
    struct json_writer out = {.out = &body};
    json_begin_object(&out);
    json_set_text(&out, "call_id", call_id);
    json_set_text(&out, "status", status);
    json_end_object(&out);
    http_respond_json(exchange, 200, buf_str(&body));
}

/* ---------------------------------------------------------------- take */

struct wait {
    struct list link; /* in api->waits */
    struct api *api;
    struct http_exchange *exchange;
    struct gate_taker *taker;
    bool raw;
};

static void on_calls(void *context, struct gate_work *const *calls, size_t count)
{
    struct wait *wait = context;
    struct rope body = {0};
    struct json_writer out = {.out = &body.text, .rope = &body};
    json_begin_object(&out);
    api_write_calls(wait->api, calls, count, wait->raw, &out);
    json_end_object(&out);
    http_respond_json_rope(wait->exchange, 200, &body);
    list_remove(&wait->link);
    free(wait);
}

static void on_taker_gone(void *context)
{
    struct wait *wait = context;
    gate_taker_cancel(wait->taker);
    list_remove(&wait->link);
    free(wait);
}

static void on_take_body(void *context, struct http_exchange *exchange, struct str body,
                         const struct err *body_err)
{
    struct api *api = context;
    OWN(arena) struct arena arena = {0};
    OWN(json_doc) struct json_doc doc = {0};
    struct gate_take take = {0};
    struct err err = {0};
    bool raw = true;
    if (body_err && body_err->kind != ERR_NONE)
        return;
    struct wait *wait = mem_zero(sizeof *wait);
    *wait = (struct wait){.api = api, .exchange = exchange};
    if (json_read(&doc, str_trim(body).size ? body : STR("{}"), NULL, &err) < 0)
        err.kind = ERR_INPUT;
    else if (api_read_take(json_root(&doc), &arena, &take, &raw, NULL, &err) == 0)
        wait->taker = gate_take(api->gate, &take, on_calls, wait, &err);
    if (!wait->taker) {
        free(wait);
        api_answer_error(exchange, &err);
        return;
    }
    wait->raw = raw;
    list_append(&api->waits, &wait->link);
    http_exchange_notify(exchange, 0, NULL, on_taker_gone, wait);
}

void api_answer_take(struct api *api, struct http_exchange *exchange, struct str name)
{
    (void)name;
    if (api_has_gate(api, exchange))
        http_exchange_collect(exchange, api->body_bytes_max, on_take_body, api);
}

void api_gate_close(struct api *api)
{
    LIST_EACH (at, &api->waits) {
        struct wait *wait = LIST_OF(at, struct wait, link);
        gate_taker_cancel(wait->taker);
        on_calls(wait, NULL, 0);
    }
    api_gate_sockets_close(api);
}

/* ---------------------------------------------------------------- answers */

/* What a request about one call needs while its body comes. */
struct errand {
    struct api *api;
    char *call_id, *lease; /* lease NULL: not said */
};

static void errand_free(struct errand *errand)
{
    free(errand->call_id);
    free(errand->lease);
    free(errand);
}

static struct errand *errand_new(struct api *api, struct http_exchange *exchange, struct str name)
{
    struct errand *errand = mem_zero(sizeof *errand);
    OWN(buf) struct buf lease = {0};
    errand->api = api;
    errand->call_id = str_dup(name);
    if (http_query_get(http_exchange_query(exchange), "lease", &lease))
        errand->lease = str_dup(buf_str(&lease));
    return errand;
}

static void on_answer_body(void *context, struct http_exchange *exchange, struct str body,
                           const struct err *body_err)
{
    struct errand *errand = context;
    struct err err = {0};
    if (body_err && body_err->kind != ERR_NONE) {
        errand_free(errand);
        return;
    }
    if (gate_answer(errand->api->gate, errand->call_id, errand->lease, body, &err) < 0)
        api_answer_error(exchange, &err);
    else
        answer_status(exchange, errand->call_id, "answered");
    errand_free(errand);
}

void api_answer_answer(struct api *api, struct http_exchange *exchange, struct str name)
{
    if (api_has_gate(api, exchange))
        http_exchange_collect(exchange, API_ANSWER_BYTES_MAX, on_answer_body,
                              errand_new(api, exchange, name));
}

/* ---------------------------------------------------------------- extend, release, fail */

int api_change_call(struct api *api, const struct api_change *change, struct err *err)
{
    struct gate *gate = api->gate;
    if (strcmp(change->op, "extend") == 0)
        return gate_extend(gate, change->call_id, change->lease, (uint32_t)change->lease_ms, err);
    if (strcmp(change->op, "release") == 0)
        return gate_release(gate, change->call_id, change->lease, err);
    const char *message = change->message ? change->message : "the model failed";
    return gate_fail(gate, change->call_id, change->lease, (int)change->status,
                     str_of(change->type), str_of(message), err);
}

#define AT(member) offsetof(struct api_change, member)
#define LEASE                                                                                      \
    {                                                                                              \
        "lease", API_TEXT, AT(lease), 0, NAME_MAX_BYTES, false, "The one that was taken."          \
    }
static const struct api_field extend_fields[] = {
    LEASE,
    {"lease_ms", API_NUMBER, AT(lease_ms), 1, WAIT_MS_MAX, false, "From now; 60 s."},
};
static const struct api_field release_fields[] = {LEASE};
static const struct api_field fail_fields[] = {
    LEASE,
    {"status", API_NUMBER, AT(status), 400, 599, false, "What the agent gets; 500."},
    {"type", API_TEXT, AT(type), 0, NAME_MAX_BYTES, false, "The error's type in its dialect."},
    {"message", API_TEXT, AT(message), 0, MESSAGE_BYTES_MAX, false, "What it says."},
};
#undef AT
const struct api_body api_extend_body = {"Extend", extend_fields, COUNT(extend_fields)};
const struct api_body api_release_body = {"Release", release_fields, COUNT(release_fields)};
const struct api_body api_fail_body = {"Fail", fail_fields, COUNT(fail_fields)};

const struct api_body *api_change_body(const char *op)
{
    return strcmp(op, "extend") == 0 ? &api_extend_body
           : strcmp(op, "fail") == 0 ? &api_fail_body
                                     : &api_release_body;
}

static void change_call(struct errand *errand, struct http_exchange *exchange, struct str body,
                        const char *op, const char *status)
{
    OWN(arena) struct arena arena = {0};
    OWN(json_doc) struct json_doc doc = {0};
    struct api_change change = {
        .op = op, .call_id = errand->call_id, .lease = errand->lease, .status = 500};
    const struct api_body *members = api_change_body(op);
    struct err err = {0};
    if (api_read_body(body, &doc, members->fields, members->count, &change, &arena, &err) < 0 ||
        api_change_call(errand->api, &change, &err) < 0)
        api_answer_error(exchange, &err);
    else
        answer_status(exchange, errand->call_id, status);
}

#define CHANGE(op, status)                                                                         \
    static void on_##op##_body(void *context, struct http_exchange *exchange, struct str body,     \
                               const struct err *body_err)                                         \
    {                                                                                              \
        if (!body_err || body_err->kind == ERR_NONE)                                               \
            change_call(context, exchange, body, #op, status);                                     \
        errand_free(context);                                                                      \
    }                                                                                              \
    void api_answer_##op(struct api *api, struct http_exchange *exchange, struct str name)         \
    {                                                                                              \
        if (api_has_gate(api, exchange))                                                           \
            http_exchange_collect(exchange, api->body_bytes_max, on_##op##_body,                   \
                                  errand_new(api, exchange, name));                                \
    }

CHANGE(extend, "leased")
CHANGE(release, "released")
CHANGE(fail, "failed")

/* ---------------------------------------------------------------- streams */

struct upload {
    struct errand *errand;
    struct http_exchange *exchange;
    struct gate_stream *stream;
    struct gate_lines lines;
    bool paused;
};

static void upload_free(struct upload *upload)
{
    gate_lines_deinit(&upload->lines);
    errand_free(upload->errand);
    free(upload);
}

static void on_upload_drain(void *context)
{
    struct upload *upload = context;
    if (upload->paused)
        http_exchange_resume(upload->exchange);
    upload->paused = false;
}

/* The agent left or the deadline passed: nobody needs the rest. */
static void on_upload_gone(void *context)
{
    struct upload *upload = context;
    struct err err = {0};
    err_set(&err, ERR_NOT_FOUND, "call '%s' is gone: its agent left, or its deadline passed",
            upload->errand->call_id);
    api_answer_error(upload->exchange, &err);
    gate_stream_end(upload->stream);
    upload_free(upload);
}

static void on_upload_data(void *context, struct http_exchange *exchange, struct str data, bool end,
                           const struct err *body_err)
{
    struct upload *upload = context;
    OWN(buf) struct buf events = {0};
    struct err err = {0};
    if (body_err && body_err->kind != ERR_NONE) {
        gate_stream_lost(upload->stream);
        upload_free(upload);
        return;
    }
    int result = gate_lines_feed(&upload->lines, data, end, &events, &err);
    if (result < 0) {
        gate_stream_refuse(upload->stream);
        api_answer_error(exchange, &err);
        upload_free(upload);
        return;
    }
    if (events.size && gate_stream_write(upload->stream, buf_str(&events)) > UPLOAD_HIGH && !end) {
        upload->paused = true;
        http_exchange_pause(exchange);
    }
    if (!end)
        return;
    gate_stream_end(upload->stream);
    answer_status(exchange, upload->errand->call_id, "answered");
    upload_free(upload);
}

void api_answer_stream(struct api *api, struct http_exchange *exchange, struct str name)
{
    struct err err = {0};
    if (!api_has_gate(api, exchange))
        return;
    struct upload *upload = mem_zero(sizeof *upload);
    upload->errand = errand_new(api, exchange, name);
    upload->exchange = exchange;
    upload->stream = gate_stream_open(api->gate, upload->errand->call_id, upload->errand->lease,
                                      on_upload_drain, on_upload_gone, upload, &err);
    if (!upload->stream) {
        api_answer_error(exchange, &err);
        upload_free(upload);
        return;
    }
    http_exchange_stream(exchange, on_upload_data, upload);
}

/* ---------------------------------------------------------------- counts */

void api_answer_gate(struct api *api, struct http_exchange *exchange, struct str name)
{
    (void)name;
    if (!api_has_gate(api, exchange))
        return;
    OWN(buf) struct buf body = {0};
    struct json_writer out = {.out = &body};
    struct gate_counts counts;
    gate_counts(api->gate, &counts);
    json_begin_object(&out);
    json_set_int(&out, "waiting", (long long)counts.takers);
    json_set_int(&out, "held", (long long)counts.held);
    json_set_int(&out, "leased", (long long)counts.leased);
    json_set_int(&out, "streaming", (long long)counts.streaming);
    json_set_int(&out, "taken", (long long)counts.taken);
    json_set_int(&out, "answered", (long long)counts.answered);
    json_set_int(&out, "failed", (long long)counts.failed);
    json_set_int(&out, "redelivered", (long long)counts.redelivered);
    json_set_int(&out, "withdrawn", (long long)counts.withdrawn);
    json_set_int(&out, "late", (long long)counts.late);
    json_set_bool(&out, "paused", gate_paused(api->gate));
    json_set_int(&out, "policy_version", gate_policy(api->gate));
    json_end_object(&out);
    http_respond_json(exchange, 200, buf_str(&body));
}
