/* call.c - one model call, from its body to its intent.
 *
 *     intent ──► upstream ──► entry ──► done        state: what the call waits for
 *       │          │  ▲         ▲
 *       │          ▼  │         │
 *       │        waiting ───────┤                    retries, while the agent has seen nothing
 *       └───────────────────────┘                    the agent left, the rollout is over
 *
 * Attempts are in call_attempt.c, what becomes of those that fail in call_trouble.c, the way to the
 * agent in call_out.c, record and end in call_end.c. */
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/id.h"
#include "base/mem.h"
#include "gateway/inner.h"
#include "store/store.h"

static void on_intent(void *context, const struct err *err)
{
    struct call *call = context;
    if (err->kind != ERR_NONE) {
        call->trouble = *err;
        call->shown_status = 503;
        session_exhaust(call->session, GATEWAY_STORE, err);
    }
    if (call->trouble.kind != ERR_NONE)
        call_enter(call);
    else
        call_attempt(call);
}

static void write_intent(struct call *call)
{
    struct gateway_session *session = call->session;
    struct err err = {0};
    if (!session->gateway->store) {
        on_intent(call, &err);
        return;
    }
    char hash[16];
    str_hex(hash, call->body->digest.low);
    struct buf *body = gateway_text(session->gateway);
    struct json_writer out = {.out = body};
    json_begin_object(&out);
    json_set_text(&out, "dialect", call->record.dialect);
    json_set_text(&out, "mode", call->record.mode);
    restore_note(call, &out);
    json_set_int(&out, "request_bytes", (long long)call->body->bytes.size);
    json_set_str(&out, "request_hash", str_make(hash, sizeof hash));
    json_end_object(&out);
    struct store_record intent = {
        .type = STORE_INTENT,
        .rollout_id = session->rollout_id,
        .call_id = call->record.id,
        .number = call->record.number,
        .body = buf_str(body),
        .prompt_tokens = -1,
        .completion_tokens = -1,
    };
    if (store_append(session->gateway->store, session->gateway->loop, &intent, on_intent, call,
                     &err) == 0)
        return;
    /* No room in the queue: the call was not begun, and the agent may come again. */
    call->trouble = err;
    call->shown_status = 503;
    call->retry_after_s = 1;
    call_drop(call);
}

void call_begin(struct gateway_session *session, struct http_exchange *exchange,
                const struct dialect *dialect, struct body *body, bool vf)
{
    struct gateway *gateway = session->gateway;
    struct call *call = call_new(session);
    struct err err = {0}, api_err = {0};
    struct retry_key key;
    call->body = body;
    call->vf = vf;
    call_canonical(call);
    skim_digest(call);
    if (retry_answer(session, exchange, dialect, call->body, &key)) {
        body_unref(call->body);
        call_keep(call);
        return;
    }
    struct dialect_route route =
        vf ? (struct dialect_route){.kind = DIALECT_ROUTE_CALL, .dialect = dialect}
           : dialect_find_route(http_exchange_method(exchange), session_path(session, exchange));
    call->dialect = dialect;
    list_append(&session->calls, &call->node);
    int status = 400;
    uint32_t retry_after_s = 0;
    if (session_open_for_calls(session, &status, &retry_after_s, &err) < 0) {
        answer_error(exchange, dialect, status, NULL, str_of(err.text), retry_after_s);
        loop_defer(gateway->loop, call_free, call);
        return;
    }
    int spoken = call_choose_api(call, &api_err);
    int read = skim_read(call, &route, &err);
    if (read == 0 && spoken < 0) {
        read = -1;
        err = api_err;
    }
    if (read < 0) {
        session_refused(session, REFUSED_INPUT);
        session_wasted(session, call->body->bytes.size);
        answer_error(exchange, dialect, err.kind == ERR_LIMIT ? 413 : 400, NULL, str_of(err.text),
                     0);
        loop_defer(gateway->loop, call_free, call);
        return;
    }
    call->key = key;
    restore_call(call);
    call_find_side(call, exchange);
    if (session_admit(session, call, &status, &retry_after_s, &err) < 0) {
        answer_error(exchange, dialect, status, NULL, str_of(err.text), retry_after_s);
        loop_defer(gateway->loop, call_free, call);
        return;
    }
    restore_admitted(call);
    call->exchange = exchange;
    call->retry_after_ms = -1;
    call->state = CALL_INTENT;
    if (!call->record.number) {
        id_make(call->record.id, "c");
        call->record.number = session->stats.calls;
    }
    call_share_nonces(call);
    snprintf(call->record.rollout, sizeof call->record.rollout, "%s", session->rollout_id);
    call->record.dialect = dialect_name(dialect);
    call->record.mode = gateway_mode_name(session->mode);
    call->record.state = TRACE_CALL_OPEN;
    call->record.accepted_ms = clock_wall_ms();
    call->record.request_bytes = call->body->bytes.size;
    call->record.request = &call->request;
    call->record.deliveries = 1;
    call->header_count = upstream_headers(exchange, &call->arena, &call->headers);
    call_rewrite(call);
    if (session->mode == GATEWAY_GATE)
        hold_view_read(&call->view, dialect, json_root(&call->doc), lineage_plain(call),
                       &call->arena);
    retry_remember(call, &key);
    call_listen(call);
    if (session->on_call)
        session->on_call(session->context, &call->record, GATEWAY_CALL_BEGUN);
    if (session->mode == GATEWAY_GATE)
        request_quiet(call);
    write_intent(call);
}
