/* call_trouble.c - an attempt that failed: repeated while the agent has seen nothing and another
 * one may help, else told to the agent in words it may see. */
#include <string.h>

#include "base/id.h"
#include "base/log.h"
#include "base/mem.h"
#include "gateway/generate.h"
#include "gateway/inner.h"
#include "gateway/rules.h"

#define MESSAGE_MAX 4000 /* as much as a trainer may say */
#define DEPTH_MAX 64
#define BACKOFF_MS 500
#define BACKOFF_SCRIPT_MS 5
#define SHOWN_RETRY_S_MAX 60

/* A copy in the call's arena without the key, cut to a decent length. */
struct str call_scrubbed(struct call *call, struct str text)
{
    const char *key = call->session->model->key;
    OWN(buf) struct buf clean = {0};
    while (text.size) {
        long at = key ? str_find(text, str_of(key)) : -1;
        buf_str_append(&clean, at < 0 ? text : str_upto(text, (size_t)at));
        if (at < 0)
            break;
        buf_str_append(&clean, STR("[key]"));
        text = str_from(text, (size_t)at + strlen(key));
    }
    return arena_str(&call->arena, str_upto(buf_str(&clean), MESSAGE_MAX));
}

static void set_trouble(struct call *call, const struct err *err)
{
    struct str text = call_scrubbed(call, str_of(err->text));
    err_set(&call->trouble, err->kind, "%.*s", STR_ARGS(text));
}

/* What the agent gets for an attempt that will not be repeated. */
static void show_failure(struct call *call, const struct err *err)
{
    int status = call->head.status;
    set_trouble(call, err);
    if (call->script_error) {
        call->shown_status = 500;
        call->upstream_message = str_of(call->trouble.text);
        session_exhaust(call->session,
                        call->session->model->replay ? GATEWAY_REPLAY : GATEWAY_SCRIPT,
                        &call->trouble);
        return;
    }
    if (status >= 400 && status < 500 && status != 429) {
        call->shown_status = status;
        if (status == 401 || status == 403 || generate_at_fault(call, status))
            session_cause(call->session, GATEWAY_UPSTREAM, &call->trouble);
        return;
    }
    call->shown_status = status == 429 ? 429 : 503;
    if (call->head.show)
        call->shown_status = status;
    else if (status >= 500)
        call->upstream_message = STR_NONE;
    const struct trace_rules *rules = call->session->rules;
    uint32_t longest =
        rules && rules->retry_after_s_max ? rules->retry_after_s_max : SHOWN_RETRY_S_MAX;
    int64_t seconds = (call->retry_after_ms + 999) / 1000;
    call->retry_after_s = call->retry_after_ms < 0 ? 5
                          : seconds < 1            ? 1
                          : seconds > longest      ? longest
                                                   : (uint32_t)seconds;
    if (call->head.show && call->retry_after_ms < 0)
        call->retry_after_s = 0;
    session_cause(call->session, GATEWAY_UPSTREAM, &call->trouble);
}

/* Another server of the model has not been asked yet: no need to wait for this one. */
static bool has_elsewhere(const struct call *call)
{
    return call->session->mode != GATEWAY_GATE && call->tries < call->session->model->pool.count;
}

static bool may_retry(const struct call *call, const struct err *err)
{
    const struct model *model = call->session->model;
    int status = call->head.status;
    if (call->relayed || call->closing || call->script_error || call->head.show ||
        call->key_leaked || call->tries >= model->options.attempts_max ||
        (call->retry_after_ms > (int64_t)model->options.retry_ms_max && !has_elsewhere(call)))
        return false;
    if (status >= 300)
        return status == 408 || status == 425 || status == 429 || status >= 500;
    return err->kind == ERR_LOST || err->kind == ERR_TIMEOUT || err->kind == ERR_CAPACITY ||
           err->kind == ERR_SYSTEM || err->kind == ERR_NOT_FOUND;
}

static void on_retry(struct loop_timer *timer)
{
    call_attempt(timer->context);
}

static uint64_t backoff_ms(const struct call *call)
{
    const struct model *model = call->session->model;
    if (has_elsewhere(call))
        return 0;
    if (call->retry_after_ms >= 0)
        return (uint64_t)call->retry_after_ms;
    uint64_t wait = model->script || model->replay ? BACKOFF_SCRIPT_MS : BACKOFF_MS;
    for (uint32_t i = 1; i < call->tries && wait < model->options.retry_ms_max; i++)
        wait *= 2;
    if (wait > model->options.retry_ms_max)
        wait = model->options.retry_ms_max;
    uint32_t random;
    id_random_bytes(&random, sizeof random);
    return wait / 2 + random % (wait / 2 + 1);
}

void call_attempt_failed(struct call *call, const struct err *err)
{
    upstream_close(TAKE(call->upstream));
    if (!may_retry(call, err)) {
        show_failure(call, err);
        call_enter(call);
        return;
    }
    CALL_LOG(LOG_INFO, call, "attempt %u failed and is repeated: %s", call->record.attempt,
             err->text);
    call->session->stats.retries++;
    atomic_fetch_add(&call->session->gateway->retries, 1);
    call->state = CALL_WAITING;
    loop_timer_start(call->session->gateway->loop, &call->retry, backoff_ms(call), on_retry, call);
}

void call_refused(struct call *call)
{
    struct json_doc doc = {0};
    struct json_limits limits = {.depth_max = DEPTH_MAX, .nodes_max = 10000};
    struct str message = STR_NONE, code = STR_NONE;
    if (json_read(&doc, buf_str(&call->error_body), &limits, NULL) == 0)
        dialect_read_error(json_root(&doc), &call->arena, &message, &code);
    call->upstream_message = call_scrubbed(call, message);
    call->upstream_code = call_scrubbed(call, code);
    json_doc_deinit(&doc);
    struct err err = {0};
    int status = call->head.status;
    enum err_kind kind = status == 429                    ? ERR_CAPACITY
                         : status == 401 || status == 403 ? ERR_DENIED
                         : status >= 500                  ? ERR_LOST
                         : status >= 400                  ? ERR_INPUT
                                                          : ERR_PROTOCOL;
    const char *route = generate_route(call);
    err_set(&err, kind, "%s answered %d%s%s%s%s%.*s",
            call->session->mode == GATEWAY_GATE ? "the trainer" : "the model server", status,
            route ? " at " : "", route ? route : "",
            route && status == 404 && str_find(message, STR("does not exist")) < 0
                ? " (vLLM has it from 0.24 on, later only with --enable-scale-out)"
                : "",
            message.size ? ": " : "", STR_ARGS(str_upto(call->upstream_message, 300)));
    if (call->head.unanswered)
        err_set(&err, kind, "%.*s", STR_ARGS(str_upto(call->upstream_message, 300)));
    call_attempt_failed(call, &err);
}

void call_break(struct call *call, enum err_kind kind, const char *text)
{
    call->closing = true;
    if (call->state == CALL_ENTRY || call->state == CALL_DONE || call->trouble.kind != ERR_NONE)
        return;
    err_set(&call->trouble, kind, "%s", text);
    call->head.status = 0;
    call->shown_status = 400;
    call->retry_after_s = 0;
    if (call->state != CALL_INTENT)
        call_enter(call);
}
