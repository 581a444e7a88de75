/* policy.c - the weights' version, pause and resume, and how old a rollout may be.
 *
 * What was said outlives the process: calls after a restart are stamped with the right version. */
#include "gateway/gate.h"

#include <stdlib.h>

#include "api/inner.h"
#include "base/err.h"
#include "base/log.h"
#include "base/mem.h"
#include "http/http.h"
#include "store/store.h"

struct policy_body {
    long long version, staleness_max, batch;
    bool pause, resume;
};
#define AT(member) offsetof(struct policy_body, member)
#define FACT "policy"
static const struct api_field fields[] = {
    {"version", API_NUMBER, AT(version), 0, INT64_MAX, false,
     "Stamped on calls from now on, when they are dispatched."},
    {"pause", API_BOOL, AT(pause), 0, 0, false, "Calls are held; their agents are kept alive."},
    {"resume", API_BOOL, AT(resume), 0, 0, false, "Calls go on."},
    {"max_staleness", API_NUMBER, AT(staleness_max), -1, INT32_MAX, false,
     "Versions a rollout may be behind; older ones are cancelled, reason stale. -1: any."},
    {"batch", API_NUMBER, AT(batch), 0, INT32_MAX, false,
     "Rollouts one version is trained on: no more are started than can be used before they are "
     "stale. 0: not said."},
};
const struct api_body api_policy_body = {"Policy change", fields, COUNT(fields)};

static void write_members(struct api *api, struct json_writer *out)
{
    static const struct rollout_policy none = {.staleness_max = -1};
    const struct rollout_policy *policy = api->rollouts ? rollouts_policy(api->rollouts) : &none;
    json_set_int(out, "version", gate_policy(api->gate));
    json_set_bool(out, "paused", gate_paused(api->gate));
    json_set_int(out, "max_staleness", policy->staleness_max);
    json_set_int(out, "batch", policy->batch);
}

static void write_policy(struct api *api, struct http_exchange *exchange)
{
    OWN(buf) struct buf body = {0};
    struct json_writer out = {.out = &body};
    json_begin_object(&out);
    write_members(api, &out);
    if (api->rollouts)
        json_set_int(&out, "stale", (long long)rollouts_counts(api->rollouts).stale);
    json_end_object(&out);
    http_respond_json(exchange, 200, buf_str(&body));
}

static void apply(struct api *api, const struct policy_body *change)
{
    gate_set_policy(api->gate, change->version);
    if (!api->rollouts)
        return;
    struct rollout_policy policy = {.version = change->version,
                                    .staleness_max = change->staleness_max,
                                    .batch = (uint32_t)change->batch};
    rollouts_set_policy(api->rollouts, &policy);
}

static void read_now(struct api *api, struct policy_body *now)
{
    *now = (struct policy_body){.version = gate_policy(api->gate), .staleness_max = -1};
    if (!api->rollouts)
        return;
    now->staleness_max = rollouts_policy(api->rollouts)->staleness_max;
    now->batch = rollouts_policy(api->rollouts)->batch;
}

/* A change is answered when the journal has it: a version the trainer was told of comes back after
 * any crash. */
struct change_reply {
    struct api *api;
    struct http_exchange *exchange; /* NULL: who asked is gone */
};

static void on_kept(void *context, const struct err *err)
{
    struct change_reply *reply = context;
    struct api *api = reply->api;
    if (err->kind != ERR_NONE)
        LOG_WARN("api", NULL, "the policy is in force but not kept: %s", err->text);
    if (reply->exchange && err->kind != ERR_NONE)
        api_answer_error(reply->exchange, err);
    else if (reply->exchange)
        write_policy(api, reply->exchange);
    free(reply);
    api_reply_done(api);
}

static void on_gone(void *context)
{
    ((struct change_reply *)context)->exchange = NULL;
}

static void keep(struct api *api, struct http_exchange *exchange)
{
    OWN(buf) struct buf value = {0};
    struct json_writer out = {.out = &value};
    struct err err = {0};
    json_begin_object(&out);
    write_members(api, &out);
    json_end_object(&out);
    struct change_reply *reply = mem_zero(sizeof *reply);
    *reply = (struct change_reply){.api = api, .exchange = exchange};
    api->replies++;
    if (store_put_fact(api->store, api->loop, FACT, buf_str(&value), on_kept, reply, &err) < 0)
        on_kept(reply, &err);
    else
        http_exchange_notify(exchange, 0, NULL, on_gone, reply);
}

void api_policy_load(struct api *api)
{
    OWN(buf) struct buf text = {0};
    OWN(json_doc) struct json_doc doc = {0};
    if (!api->gate || store_get_fact(api->store, FACT, &text, NULL) != 1 ||
        json_read(&doc, buf_str(&text), NULL, NULL) < 0)
        return;
    struct json root = json_root(&doc);
    struct policy_body then = {
        .version = json_int_or(json_get(root, "version"), 0),
        .staleness_max = json_int_or(json_get(root, "max_staleness"), -1),
        .batch = json_int_or(json_get(root, "batch"), 0),
    };
    apply(api, &then);
    gate_pause(api->gate, json_true(json_get(root, "paused")));
}

static void on_body(void *context, struct http_exchange *exchange, struct str body,
                    const struct err *body_err)
{
    struct api *api = context;
    OWN(arena) struct arena arena = {0};
    OWN(json_doc) struct json_doc doc = {0};
    struct policy_body change;
    struct err err = {0};
    if (body_err && body_err->kind != ERR_NONE)
        return;
    read_now(api, &change);
    int result = api_read_body(body, &doc, fields, COUNT(fields), &change, &arena, &err);
    if (result == 0 && change.pause && change.resume) {
        err_set(&err, ERR_INPUT, "'pause' and 'resume' exclude each other");
        result = err_at(&err, "pause");
    }
    if (result < 0) {
        api_answer_error(exchange, &err);
        return;
    }
    if (change.pause)
        gate_pause(api->gate, true);
    apply(api, &change);
    if (change.resume)
        gate_pause(api->gate, false);
    keep(api, exchange);
}

void api_answer_policy(struct api *api, struct http_exchange *exchange, struct str name)
{
    (void)name;
    if (api_has_gate(api, exchange))
        write_policy(api, exchange);
}

void api_answer_policy_change(struct api *api, struct http_exchange *exchange, struct str name)
{
    (void)name;
    if (api_has_gate(api, exchange))
        http_exchange_collect(exchange, api->body_bytes_max, on_body, api);
}
