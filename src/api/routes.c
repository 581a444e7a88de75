/* routes.c - the table of routes: what is answered, by whom, and what it says to people. The same
 * rows dispatch requests (api.c) and make the OpenAPI document (openapi.c). docs/http-api.md has
 * the long form. */
#include <string.h>

#include "api/inner.h"
#include "base/err.h"
#include "base/mem.h"
#include "http/http.h"
#include "store/store.h"

#define PARAMETER_MAX 256

/* ---------------------------------------------------------------- names and parameters */
int api_read_text(struct http_exchange *exchange, const char *name, struct arena *arena,
                  const char **out, struct err *err)
{
    OWN(buf) struct buf value = {0};
    if (!http_query_get(http_exchange_query(exchange), name, &value))
        return 0;
    if (value.size > PARAMETER_MAX || memchr(value.data ? value.data : "", 0, value.size)) {
        err_set(err, ERR_INPUT, "the parameter '%s' is not a name", name);
        return err_at(err, "%s", name);
    }
    *out = arena_text(arena, buf_str(&value));
    return 0;
}

int api_read_number(struct http_exchange *exchange, const char *name, long long min, long long max,
                    long long *out, struct err *err)
{
    OWN(buf) struct buf value = {0};
    long long number;
    if (!http_query_get(http_exchange_query(exchange), name, &value))
        return 0;
    if (!str_to_long(buf_str(&value), &number) || number < min || number > max) {
        err_set(err, ERR_INPUT, "'%s' is a number from %lld to %lld", name, min, max);
        return err_at(err, "%s", name);
    }
    *out = number;
    return 0;
}

const char *api_name(struct http_exchange *exchange, struct str name, struct arena *arena)
{
    OWN(buf) struct buf decoded = {0};
    struct err err = {0};
    if (http_percent_decode(name, &decoded) && decoded.size <= PARAMETER_MAX &&
        !memchr(decoded.data ? decoded.data : "", 0, decoded.size))
        return arena_text(arena, buf_str(&decoded));
    err_set(&err, ERR_NOT_FOUND, "there is nothing with such a name");
    api_answer_error(exchange, &err);
    return NULL;
}

/* ---------------------------------------------------------------- smaller things */
static void answer_health(struct api *api, struct http_exchange *exchange, struct str name)
{
    (void)api;
    (void)name;
    http_respond_json(exchange, 200, STR("{\"status\":\"ok\"}"));
}

static void answer_version(struct api *api, struct http_exchange *exchange, struct str name)
{
    (void)api;
    (void)name;
    http_respond_json(exchange, 200,
                      STR("{\"name\":\"postern\",\"version\":\"" POSTERN_VERSION "\"}"));
}

static void answer_detail(struct api *api, struct http_exchange *exchange, struct str name)
{
    (void)name;
    OWN(buf) struct buf body = {0};
    struct json_writer out = {.out = &body};
    struct rollout_counts counts = {0};
    struct store_counts store;
    store_counts(api->store, &store);
    bool draining = !api->rollouts || rollouts_draining(api->rollouts);
    if (api->rollouts)
        counts = rollouts_counts(api->rollouts);
    json_begin_object(&out);
    json_set_text(&out, "status", store.failed ? "failing" : draining ? "draining" : "ok");
    json_set_int(&out, "queued", (long long)counts.queued);
    json_set_int(&out, "running", (long long)counts.running);
    json_set_int(&out, "finished", (long long)counts.finished);
    json_set_bool(&out, "journal_failed", store.failed);
    json_set_int(&out, "journal_queued_bytes", (long long)store.queued_bytes);
    json_end_object(&out);
    http_respond_json(exchange, store.failed || draining ? 503 : 200, buf_str(&body));
}

static void answer_sandboxes(struct api *api, struct http_exchange *exchange, struct str name)
{
    (void)name;
    OWN(buf) struct buf body = {0};
    struct json_writer out = {.out = &body};
    json_begin_object(&out);
    json_key(&out, "lanes");
    json_begin_array(&out);
    if (api->write_sandboxes)
        api->write_sandboxes(api->context, &out);
    json_end_array(&out);
    json_end_object(&out);
    http_respond_json(exchange, 200, buf_str(&body));
}

static void answer_settings(struct api *api, struct http_exchange *exchange, struct str name)
{
    (void)name;
    OWN(buf) struct buf body = {0};
    struct json_writer out = {.out = &body};
    if (api->write_settings)
        api->write_settings(api->context, &out);
    else
        buf_str_append(&body, STR("{}"));
    http_respond_json(exchange, 200, buf_str(&body));
}

static void answer_metrics(struct api *api, struct http_exchange *exchange, struct str name)
{
    (void)name;
    static const struct http_header headers[] = {
        {{"content-type", 12}, {"text/plain; version=0.0.4; charset=utf-8", 40}}};
    OWN(buf) struct buf body = {0};
    api_write_metrics(api, &body);
    http_respond(exchange, 200, headers, 1, buf_str(&body));
}

/* ---------------------------------------------------------------- the table */
/* clang-format off */
static const struct api_parameter list_parameters[] = {
    {"limit", true, 1, API_PAGE_MAX, "Rows of a page; 100."},
    {"before", false, 0, 0, "Only rollouts older than this id, newest first."},
    {"after", false, 0, 0, "Only rollouts newer than this id, oldest first."},
    {"order", false, 0, 0, "newest or oldest first."},
    {"run", false, 0, 0, "Only of this run."},
    {"group", false, 0, 0, "Only of this group."},
    {"task", false, 0, 0, "Only of the task with this name."},
    {"agent", false, 0, 0, "Only of this agent."},
    {"stage", false, 0, 0, "Only in this stage, as the index has it."},
    {"fate", false, 0, 0, "Only with this fate."},
    {0},
};
static const struct api_parameter group_list_parameters[] = {
    {"limit", true, 1, API_PAGE_MAX, "Rows of a page; 100."},
    {"before", false, 0, 0, "Only groups older than this id, newest first."},
    {"after", false, 0, 0, "Only groups newer than this id, oldest first."},
    {"run", false, 0, 0, "Only of this run."},
    {0},
};
static const struct api_parameter wait_parameters[] = {
    {"wait_ms", true, 0, API_WAIT_MS_MAX, "Answer when it is over, or when this time is."},
    {0},
};
static const struct api_parameter event_parameters[] = {
    {"after", false, 0, 0, "Go on behind this event; likewise the header Last-Event-ID. 0: from the oldest that is kept."},
    {0},
};
static const struct api_parameter sample_parameters[] = {
    {"format", false, 0, 0, "jsonl, or binary for little-endian arrays."},
    {0},
};
static const struct api_parameter lease_parameters[] = {
    {"lease", false, 0, 0, "The lease of the take: makes sure that the call is still yours."},
    {0},
};

const struct api_route api_routes[] = {
    {"GET", "/health", true, answer_health, "A constant, without a token", 200, "Status"},
    {"GET", "/v1/health", false, answer_detail, "How it fares; 503 while it drains or the journal fails", 200, "Health"},
    {"GET", "/v1/openapi.json", false, api_answer_openapi, "This description", 200, "OpenApi"},
    {"GET", "/v1/config", false, answer_settings, "Settings in force, and where each is from", 200, "Settings"},
    {"GET", "/v1/sandboxes", false, answer_sandboxes, "Sandboxes, by lane and backend", 200, "Sandboxes"},
    {"GET", "/metrics", false, answer_metrics, "Numbers in the Prometheus text format", 200, "text/plain"},
    {"GET", "/v1/version", false, answer_version, "Name and version", 200, "Version"},

    {"GET", "/v1/rollouts", false, api_answer_rollouts, "A page of rollouts", 200, "RolloutPage", list_parameters},
    {"POST", "/v1/rollouts", false, api_answer_submit, "Submit a rollout, or a list of them", 201, "Submitted", NULL, &api_submit_body},
    {"GET", "/v1/rollouts/{id}", false, api_answer_rollout, "One rollout; its result when it is over", 200, "Rollout", wait_parameters},
    {"DELETE", "/v1/rollouts/{id}", false, api_answer_delete, "Delete a rollout that is over (200); one that is not is cancelled (202)", 200, "Status"},
    {"POST", "/v1/rollouts/{id}/cancel", false, api_answer_cancel, "Cancel a rollout; its result still comes. 409: it is over", 202, "Status"},
    {"GET", "/v1/rollouts/{id}/calls", false, api_answer_calls, "Its model calls", 200, "Calls"},
    {"GET", "/v1/rollouts/{id}/samples", false, api_answer_samples, "Its training rows, when it is over", 200, "application/x-ndjson", sample_parameters},
    {"GET", "/v1/rollouts/{id}/files", false, api_answer_files, "What its folder holds", 200, "Files"},
    {"GET", "/v1/rollouts/{id}/files/{path...}", false, api_answer_files, "A file of its folder, or a directory's list", 200, "application/octet-stream"},
    {"GET", "/v1/rollouts/{id}/events", false, api_answer_rollout_events, "What happens in it, as it happens", 200, "text/event-stream", event_parameters},
    {"GET", "/v1/calls/{id}", false, api_answer_call, "One model call, with its tokens", 200, "Call"},

    {"GET", "/v1/groups", false, api_answer_groups, "A page of groups", 200, "GroupPage", group_list_parameters},
    {"POST", "/v1/groups", false, api_answer_group_submit, "Submit a group of rollouts", 201, "SubmittedGroup", NULL, &api_group_body},
    {"GET", "/v1/groups/{id}", false, api_answer_group, "A group and how its rollouts stand", 200, "Group", wait_parameters},
    {"DELETE", "/v1/groups/{id}", false, api_answer_group_delete, "Delete a group that is over (200); what is left of one that is not is cancelled (202)", 200, "Status"},
    {"POST", "/v1/groups/{id}/cancel", false, api_answer_group_cancel, "Cancel what is left of a group. 409: it is over", 202, "Status"},
    {"GET", "/v1/groups/{id}/events", false, api_answer_group_events, "What happens in its rollouts, as it happens", 200, "text/event-stream", event_parameters},
    {"GET", "/v1/events", false, api_answer_events, "What happens in all rollouts, as it happens", 200, "text/event-stream", event_parameters},
    {"GET", "/v1/groups/{id}/samples", false, api_answer_group_samples, "The training rows of its rollouts that are over", 200, "application/x-ndjson", sample_parameters},

    {"GET", "/v1/policy", false, api_answer_policy, "The version of the weights", 200, "Policy"},
    {"POST", "/v1/policy", false, api_answer_policy_change, "A new version; pause, resume, staleness", 200, "Policy", NULL, &api_policy_body},

    {"GET", "/v1/gate", false, api_answer_gate, "Counts of the gate", 200, "GateCounts"},
    {"GET", "/v1/gate/ws", false, api_answer_socket, "The gate on one WebSocket", 101, NULL},
    {"POST", "/v1/gate/take", false, api_answer_take, "Held calls, for a while leased to the asker", 200, "Taken", NULL, &api_take_body},
    {"POST", "/v1/gate/calls/{call_id}/answer", false, api_answer_answer, "Answer a call", 200, "CallStatus", lease_parameters, NULL, "application/json"},
    {"POST", "/v1/gate/calls/{call_id}/stream", false, api_answer_stream, "Answer a call in pieces", 200, "CallStatus", lease_parameters, NULL, "application/x-ndjson"},
    {"POST", "/v1/gate/calls/{call_id}/extend", false, api_answer_extend, "A longer lease", 200, "CallStatus", lease_parameters, &api_extend_body},
    {"POST", "/v1/gate/calls/{call_id}/release", false, api_answer_release, "Back to the queue", 200, "CallStatus", lease_parameters, &api_release_body},
    {"POST", "/v1/gate/calls/{call_id}/fail", false, api_answer_fail, "An error for the agent", 200, "CallStatus", lease_parameters, &api_fail_body},
};
/* clang-format on */
const size_t api_route_count = COUNT(api_routes);
