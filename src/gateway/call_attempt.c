/* call_attempt.c - one attempt at an answer: the request goes out, what comes back is relayed or
 * read to be written anew, and captured on its way. */
#include "base/clock.h"
#include "base/mem.h"
#include "gateway/gate.h"
#include "gateway/generate.h"
#include "gateway/inner.h"

#define ERROR_BODY_MAX 65536
#define PAUSED_MS 100
#define GATHERED_KEPT (256u << 10)

/* Whether these bytes, and so the answer, must be withheld. */
static bool holds_secret(struct call *call, struct str bytes)
{
    if (call->secret.size && str_find(bytes, call->secret) >= 0)
        call->key_leaked = true;
    return call->key_leaked;
}

static void note_first_byte(struct call *call)
{
    if (!call->relayed && !call->record.first_byte_ms)
        call->record.first_byte_ms = clock_wall_ms();
}

/* What goes on of a piece that was read is gathered and sent at once: send_gathered(). */
static void on_relay(void *context, struct str bytes, bool terminal)
{
    struct call *call = context;
    if (!call->passes || terminal || !call->head.stream) {
        if (holds_secret(call, bytes) || !call->passes)
            return; /* made anew from what was read */
        note_first_byte(call);
        buf_str_append(&call->held, bytes);
        return;
    }
    struct buf *gathered = &call->gateway->gathered;
    bool comment = bytes.size && bytes.data[0] == ':';
    note_first_byte(call);
    if (comment && !call->begun && !gathered->size)
        return; /* nothing yet that would forbid another attempt */
    call->relayed |= !comment;
    buf_str_append(gathered, bytes);
}

static void on_delta(void *context, const struct trace_delta *delta)
{
    struct call *call = context;
    struct buf *gathered = &call->gateway->gathered;
    if (holds_secret(call, delta->text))
        return;
    note_first_byte(call);
    dialect_writer_delta(&call->writer, delta, gathered);
    call->relayed |= gathered->size > 0;
}

static void send_gathered(struct call *call)
{
    struct buf *gathered = &call->gateway->gathered;
    if (!gathered->size)
        return;
    if (!holds_secret(call, buf_str(gathered))) {
        pile_append(&call->sent, buf_str(gathered));
        call_send(call, buf_str(gathered));
    }
    if (gathered->capacity > GATHERED_KEPT)
        buf_deinit(gathered);
    else
        buf_clear(gathered);
}

/* Between two events of a slow stream its memory grows cold. */
static void look_ahead(struct call *call)
{
    struct http_place places[4 + HTTP_EXCHANGE_PLACES];
    size_t count = 0;
    places[count++] = (struct http_place){call, offsetof(struct call, node)};
    places[count++] = (struct http_place){call->reader, dialect_reader_touched()};
    if (call->exchange) {
        http_exchange_places(call->exchange, places + count);
        count += HTTP_EXCHANGE_PLACES;
    }
    upstream_ahead(call->upstream, places, count);
}

static void on_head(void *context, const struct upstream_head *head)
{
    struct call *call = context;
    request_recall(call);
    call->head = *head;
    call->retry_after_ms = head->retry_after_ms;
    if (head->status / 100 != 2)
        return;
    const char *key = call->session->model->key;
    call->secret = key ? str_of(key) : STR_NONE;
    bool proxy = call->session->mode == GATEWAY_PROXY;
    bool live = call->anew && call->request.stream && head->stream;
    struct dialect_reader_options options = {
        .stream = head->stream,
        .strip_token_ids = proxy && !call->request.wants_token_ids,
        .strip_logprobs = proxy && !call->request.wants_logprobs,
        .strip_usage = proxy && call->request.stream && !call->request.stream_usage,
        .bytes_max = call->session->limits.answer_bytes_max,
        .on_delta = live ? on_delta : NULL,
        .on_relay = on_relay,
        .context = call,
        .scratch = &call->session->gateway->scratch,
    };
    call->reader = dialect_reader_new(call->api, &options);
    if (head->stream)
        look_ahead(call);
    call->passes = !call->anew && call->request.stream == head->stream;
    if (live)
        call_begin_writing(call);
}

static bool leaked(struct call *call)
{
    if (!call->key_leaked)
        return false;
    struct err err = {0};
    err_set(&err, ERR_PROTOCOL, "the model server sent its key back; the answer is withheld");
    call_attempt_failed(call, &err);
    return true;
}

static void on_data(void *context, struct str data)
{
    struct call *call = context;
    if (!call->reader) {
        if (call->error_body.size < ERROR_BODY_MAX)
            buf_str_append(&call->error_body,
                           str_upto(data, ERROR_BODY_MAX - call->error_body.size));
        return;
    }
    struct err err; /* set where it is needed: this is the way of every event */
    err.kind = ERR_NONE;
    int result = dialect_reader_feed(call->reader, data, &err);
    send_gathered(call);
    call->reader_over = result < 0;
    if (!leaked(call) && result < 0)
        call_attempt_failed(call, &err);
}

static void on_done(void *context, const struct err *err, bool script_error)
{
    struct call *call = context;
    call->script_error = script_error;
    if (err->kind == ERR_NONE && call->head.status / 100 != 2) {
        call_refused(call);
        return;
    }
    if (err->kind != ERR_NONE) {
        call_attempt_failed(call, err);
        return;
    }
    struct err trouble = {0};
    if (call->head.stream && !dialect_reader_finished(call->reader)) {
        err_set(&trouble, ERR_LOST, "the model server's stream ended before its finish");
        call_attempt_failed(call, &trouble);
        return;
    }
    call->reader_over = true;
    int result = dialect_reader_end(call->reader, &call->arena, &call->answer, &trouble);
    send_gathered(call);
    if (leaked(call))
        return;
    if (result < 0) {
        call_attempt_failed(call, &trouble);
        return;
    }
    dialect_reader_free(TAKE(call->reader)); /* the answer is in the arena */
    call_copy_tokens(call, upstream_tokens(call->upstream));
    if (call->generate)
        generate_finish(call);
    call_note_tokens(call);
    if (call->anew || call->request.stream != call->head.stream)
        call_convert(call);
    if (call->vf)
        vf_model_wrap(call);
    call_enter(call);
}

static void on_pause_over(struct loop_timer *timer)
{
    call_attempt(timer->context);
}

void call_attempt(struct call *call)
{
    static const struct upstream_handlers handlers = {on_head, on_data, on_done};
    struct gateway_session *session = call->session;
    if (session->mode != GATEWAY_GATE && session->gateway->gate &&
        gate_paused(session->gateway->gate)) {
        /* Weights are being changed. Held calls wait at the gate, the others here. */
        call->state = CALL_WAITING;
        loop_timer_start(session->gateway->loop, &call->retry, PAUSED_MS, on_pause_over, call);
        return;
    }
    if (generate_prepare(call) || prefix_render(call))
        return;
    dialect_reader_free(TAKE(call->reader));
    call->reader_over = false;
    call_stop_writing(call);
    buf_clear(&call->held);
    buf_clear(&call->error_body);
    call->head = (struct upstream_head){0};
    call->retry_after_ms = -1;
    call->upstream_message = call->upstream_code = STR_NONE;
    call->paused = false;
    call->state = CALL_UPSTREAM;
    call->record.attempt++;
    call->tries++;
    OWN(buf) struct buf path = {0};
    struct str model =
        session->mode == GATEWAY_PROXY ? str_of(session->model->name) : call->request.model;
    dialect_upstream_path(call->api, model, call->request.stream, &path);
    struct upstream_request request = {
        .dialect = call->api,
        .request = &call->request,
        .path = call->prefix.ready ? "/chat/completions/tokens" : buf_text(&path),
        .body = buf_str(call->prefix.ready     ? &call->prefix.body
                        : call->rewritten.size ? &call->rewritten
                                               : &call->body->bytes),
        .gap = call->prefix.ready ? (struct json_gap){0} : call->rewritten_gap,
        .headers = call->headers,
        .header_count = call->header_count,
        .place = &session->place,
        .retry = call->tries > 1,
        .rollout_id = session->rollout_id,
        .task = session->task,
        .index = session->index,
        .number = call->record.number,
        .uses = session->script_uses,
        .divergence = &session->divergence,
    };
    if (call->generate)
        generate_request(call, &request);
    struct gate *gate = session->gateway->gate;
    struct upstream_hold hold = {
        .gate = gate,
        .call_id = call->record.id,
        .group_id = session->group_id,
        .body = call->body,
        .dialect = call->dialect,
        .view = &call->view,
        .prefix = session->mode == GATEWAY_GATE && prefix_find(call) ? &call->prefix : NULL,
        .turn = session->stats.turns + 1,
        .deadline_ms = session->held_ms_max,
        .policy_version = &call->record.policy_version,
    };
    if (session->mode == GATEWAY_GATE)
        request.hold = &hold;
    if (gate && !call->generate) { /* else it was stamped when it was sampled */
        call->record.has_policy = true;
        call->record.policy_version = gate_policy(gate);
    }
    call->upstream = upstream_start(session->gateway, session->model, &request, &handlers, call);
    if (session->mode == GATEWAY_GATE)
        request_quiet(call);
    if (session->divergence.kind != ERR_NONE)
        session_cause(session, GATEWAY_REPLAY, &session->divergence);
}

void call_again(struct call *call)
{
    call->trouble = (struct err){0};
    call->tries = 0;
    call->relayed = false;
    pile_deinit(&call->sent);
    call_attempt(call);
}
