/* call.c - one model call, from its body to its last byte.
 *
 *     intent ──► upstream ──► entry ──► done        state: what the call waits for
 *       │          │  ▲         ▲
 *       │          ▼  │         │
 *       │        waiting ───────┤                    retries, while the agent has seen nothing
 *       └───────────────────────┘                    the agent left, the rollout is over
 *
 * Everything that ends a call goes through enter(): the record is made, journalled, and only when
 * that is committed does the agent get the end of its answer. What cannot be ended well any more
 * (something was relayed and the rest is missing) is reset, never closed cleanly. What happens when
 * the agent goes away, or comes again with the same request, is in retry.c. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/id.h"
#include "base/log.h"
#include "base/mem.h"
#include "gateway/gate.h"
#include "gateway/inner.h"
#include "gateway/rules.h"
#include "store/store.h"

#define DEPTH_MAX 64
#define NODES_MAX (4u << 20)
#define ARENA_BYTES_MAX ((size_t)512 << 20)
#define ERROR_BODY_MAX 65536
#define MESSAGE_MAX 2000
#define QUEUE_HIGH (256u << 10)
#define QUEUE_LOW (64u << 10)
#define BACKOFF_MS 500
#define PAUSED_MS 100
#define BACKOFF_SCRIPT_MS 5
#define SHOWN_RETRY_S_MAX 60

static void attempt(struct call *call);
static void enter(struct call *call);

/* ---------------------------------------------------------------- towards the agent */

void answer_error(struct http_exchange *exchange, const struct dialect *dialect, int status,
                  const char *code, struct str message, uint32_t retry_after_s)
{
    OWN(buf) struct buf body = {0};
    dialect_write_error(dialect, status, code, message, &body);
    char seconds[16];
    int size = snprintf(seconds, sizeof seconds, "%u", retry_after_s);
    struct http_header headers[] = {
        {STR("content-type"), STR("application/json")},
        {STR("retry-after"), str_make(seconds, (size_t)size)},
    };
    http_respond(exchange, status, headers, retry_after_s ? 2 : 1, buf_str(&body));
}

void exchange_begin_stream(struct http_exchange *exchange)
{
    static const struct http_header headers[] = {
        {{"content-type", 12}, {"text/event-stream; charset=utf-8", 32}},
        {{"cache-control", 13}, {"no-cache", 8}},
    };
    http_respond_begin(exchange, 200, headers, COUNT(headers));
}

void exchange_begin(struct http_exchange *exchange, bool stream)
{
    static const struct http_header json = {{"content-type", 12}, {"application/json", 16}};
    if (stream)
        exchange_begin_stream(exchange);
    else
        http_respond_begin(exchange, 200, &json, 1);
}

void exchange_end_json(struct http_exchange *exchange, bool begun, struct str body)
{
    if (!begun) {
        http_respond_json(exchange, 200, body);
        return;
    }
    (void)http_respond_write(exchange, body);
    http_respond_end(exchange);
}

void call_send(struct call *call, struct str bytes)
{
    if (bytes.size)
        call_others_write(call, bytes);
    if (!call->exchange || !bytes.size)
        return;
    if (!call->begun)
        exchange_begin(call->exchange, call->request.stream);
    call->begun = true;
    call->written_ms = loop_now_ms(call->session->gateway->loop);
    call->record.answer_bytes += bytes.size;
    size_t queued = http_respond_write(call->exchange, bytes);
    if (queued > QUEUE_HIGH && !call->paused && call->upstream) {
        call->paused = true;
        upstream_pause(call->upstream);
    }
}

static void write_stream(struct call *call, struct str bytes)
{
    buf_str_append(&call->sent, bytes);
    call_send(call, bytes);
}

static void on_drain(void *context)
{
    struct call *call = context;
    if (!call->paused)
        return;
    call->paused = false;
    if (call->upstream && call->state == CALL_UPSTREAM)
        upstream_resume(call->upstream);
}

/* A sign of life on an answer that waits; before that, the moment its head is sent. */
static void on_pulse(struct loop_timer *timer)
{
    struct call *call = timer->context;
    struct gateway_session *session = call->session;
    struct loop *loop = session->gateway->loop;
    if (!call->exchange || call->state == CALL_DONE)
        return;
    uint64_t quiet = loop_now_ms(loop) - call->written_ms;
    if (!call->begun || (quiet >= session->keepalive_ms && !http_respond_queued(call->exchange))) {
        OWN(buf) struct buf sign = {0};
        if (!call->request.stream)
            buf_byte(&sign, '\n'); /* JSON may begin with blanks */
        else
            rules_keepalive(session->rules, call->dialect, &sign);
        if (!sign.size && !call->begun)
            exchange_begin(call->exchange, call->request.stream);
        call->begun |= !sign.size;
        call_send(call, buf_str(&sign));
        quiet = 0;
    }
    uint64_t next =
        quiet < session->keepalive_ms ? session->keepalive_ms - quiet : session->keepalive_ms;
    loop_timer_start(loop, &call->pulse, next, on_pulse, call);
}

/* ---------------------------------------------------------------- the end */

static void call_free(void *argument)
{
    struct call *call = argument;
    struct gateway_session *session = call->session;
    dialect_reader_free(call->reader);
    call_stop_writing(call);
    skim_forget(call);
    loop_timer_stop(&call->quiet);
    arena_deinit(&call->arena);
    body_unref(call->body);
    buf_deinit(&call->rewritten);
    prefix_deinit(&call->prefix);
    buf_deinit(&call->error_body);
    buf_deinit(&call->held);
    buf_deinit(&call->sent);
    list_remove(&call->node);
    free(call);
    session_call_gone(session);
}

void session_append_line(struct gateway_session *session, struct str line)
{
    if (session->calls_fd < 0 || fd_write_all(session->calls_fd, line.data, line.size) == 0)
        return;
    if (!session->calls_failed)
        LOG_ERROR("gateway", session->rollout_id, "'%s' is incomplete: %s", session->calls_path,
                  strerror(errno));
    session->calls_failed = true;
}

static void give_answer(struct call *call)
{
    call_others_end(call, buf_str(&call->held));
    if (!call->exchange)
        return;
    if (call->request.stream) {
        call_send(call, buf_str(&call->held));
        http_respond_end(call->exchange);
        return;
    }
    exchange_end_json(call->exchange, call->begun, buf_str(&call->held));
}

void call_show_trouble(struct call *call, struct http_exchange *exchange, bool begun)
{
    if (begun) {
        http_exchange_reset(exchange);
        return;
    }
    OWN(mem) char *code = call->upstream_code.size ? str_dup(call->upstream_code) : NULL;
    struct str message = call->upstream_message;
    if (!message.size)
        message = call->shown_status >= 500 ? STR("the model is not available at the moment")
                                            : str_of(call->trouble.text);
    answer_error(exchange, call->dialect, call->shown_status, code, message, call->retry_after_s);
}

static void give_trouble(struct call *call)
{
    call_others_fail(call);
    if (call->exchange)
        call_show_trouble(call, call->exchange, call->begun);
}

/* The entry is on disk, or will never be. */
static void conclude(struct call *call, const struct err *err)
{
    struct gateway_session *session = call->session;
    if (err->kind != ERR_NONE) {
        call->trouble = *err;
        call->upstream_message = STR_NONE;
        call->shown_status = 503;
        call->retry_after_s = 0;
        call->record.state = TRACE_CALL_BROKEN;
        call->record.answer = NULL;
        call->record.http_status = call->begun ? 0 : 503;
        session_exhaust(session, GATEWAY_STORE, err);
    }
    call->state = CALL_DONE;
    loop_timer_stop(&call->pulse);
    loop_timer_stop(&call->away);
    session_settle(session, call);
    retry_concluded(call, call->trouble.kind == ERR_NONE);
    if (session->calls_fd >= 0) {
        OWN(buf) struct buf line = {0};
        lineage_line(call, &line);
        session_append_line(session, buf_str(&line));
    }
    if (call->committed)
        lineage_add(call);
    if (session->on_call)
        session->on_call(session->context, &call->record, GATEWAY_CALL_DONE);
    if (call->trouble.kind == ERR_NONE)
        give_answer(call);
    else
        give_trouble(call);
    call->exchange = NULL;
    loop_defer(session->gateway->loop, call_free, call);
}

static void on_entry(void *context, const struct err *err)
{
    struct call *call = context;
    call->committed = err->kind == ERR_NONE;
    conclude(call, err);
}

static void make_record(struct call *call)
{
    struct trace_call *record = &call->record;
    record->done_ms = clock_wall_ms();
    record->request = &call->request;
    if (call->trouble.kind == ERR_NONE) {
        record->state = TRACE_CALL_ANSWERED;
        record->answer = &call->answer;
        record->http_status = 200;
        if (!call->request.stream)
            record->answer_bytes = call->held.size;
        return;
    }
    bool refused = call->head.status >= 400 && call->head.status < 500 && call->head.status != 429;
    record->state = refused ? TRACE_CALL_REFUSED : TRACE_CALL_BROKEN;
    if (call->exchange)
        record->http_status = call->begun ? 200 : call->shown_status;
    record->error_kind = err_meaning(call->trouble.kind)->name;
    record->error = str_of(call->trouble.text);
    if (call->parked_answer) {
        record->answer = &call->answer;
    } else if (call->reader && !call->reader_over && !call->key_leaked) {
        dialect_reader_partial(call->reader, &call->arena, &call->answer);
        record->answer = &call->answer;
    }
}

static void enter(struct call *call)
{
    struct gateway_session *session = call->session;
    struct store *store = session->gateway->store;
    loop_timer_stop(&call->retry);
    request_recall(call);
    if (call->upstream)
        upstream_close(TAKE(call->upstream));
    if (retry_park(call))
        return;
    call->state = CALL_ENTRY;
    make_record(call);
    if (!store) {
        on_entry(call, &(struct err){0});
        return;
    }
    /* The arrays and the request go beside the JSON, not into it. */
    const struct trace_answer *answer = call->record.answer;
    struct trace_call record = call->record;
    struct trace_answer plain;
    record.request = NULL;
    if (answer) {
        plain = *answer;
        plain.prompt_ids = NULL;
        plain.prompt_id_count = 0;
        plain.tokens = (struct trace_tokens){0};
        record.answer = &plain;
    }
    OWN(buf) struct buf body = {0};
    struct json_writer out = {.out = &body};
    trace_call_write(&record, &out);
    body.size--; /* its closing brace */
    out.comma = true;
    restore_note(call, &out);
    buf_byte(&body, '}');
    struct store_record entry = {
        .type = STORE_ENTRY,
        .rollout_id = session->rollout_id,
        .call_id = record.id,
        .body = buf_str(&body),
        .state = trace_call_state_name(record.state),
        .number = record.number,
        .deliveries = record.deliveries,
        .http_status = (uint32_t)record.http_status,
        .prompt_tokens = answer && answer->usage.known ? answer->usage.prompt_tokens : -1,
        .completion_tokens = answer && answer->usage.known ? answer->usage.completion_tokens : -1,
    };
    if (answer) {
        entry.prompt_ids = answer->prompt_ids;
        entry.prompt_id_count = answer->prompt_id_count;
        entry.token_ids = answer->tokens.ids;
        entry.token_id_count = answer->tokens.id_count;
        entry.logprobs = answer->tokens.logprobs;
        entry.logprob_count = answer->tokens.logprob_count;
    }
    lineage_entry(call, &entry);
    struct err err = {0};
    if (store_append(store, session->gateway->loop, &entry, on_entry, call, &err) < 0)
        conclude(call, &err);
    else
        session->retries.taken_count = 0;
}

void call_enter(struct call *call)
{
    enter(call);
}

void call_note_delivery(struct gateway_session *session, const char *call_id, uint32_t count)
{
    if (!session->gateway->store)
        return;
    char body[64];
    int size = snprintf(body, sizeof body, "{\"deliveries\":%u}", count);
    struct store_record note = {
        .type = STORE_NOTE,
        .rollout_id = session->rollout_id,
        .call_id = call_id,
        .deliveries = count,
        .body = str_make(body, (size_t)size),
        .prompt_tokens = -1,
        .completion_tokens = -1,
    };
    struct err err = {0};
    if (store_append(session->gateway->store, NULL, &note, NULL, NULL, &err) < 0)
        LOG_WARN("gateway", call_id, "delivery %u is not noted: %s", count, err.text);
}

/* ---------------------------------------------------------------- trouble */

/* A copy in the call's arena without the key, cut to a decent length. */
static struct str scrubbed(struct call *call, struct str text)
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
    struct str text = scrubbed(call, str_of(err->text));
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
        if (status == 401 || status == 403)
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
    attempt(timer->context);
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

static void attempt_failed(struct call *call, const struct err *err)
{
    upstream_close(TAKE(call->upstream));
    if (!may_retry(call, err)) {
        show_failure(call, err);
        enter(call);
        return;
    }
    LOG_INFO("gateway", call->record.id, "attempt %u failed and is repeated: %s",
             call->record.attempt, err->text);
    call->session->stats.retries++;
    atomic_fetch_add(&call->session->gateway->retries, 1);
    call->state = CALL_WAITING;
    loop_timer_start(call->session->gateway->loop, &call->retry, backoff_ms(call), on_retry, call);
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
        enter(call);
}

static void on_gone(void *context)
{
    struct call *call = context;
    call->exchange = NULL;
    if (!retry_left(call))
        call_break(call, ERR_LOST, "the agent went away before the answer was complete");
}

void call_listen(struct call *call)
{
    struct loop *loop = call->session->gateway->loop;
    http_exchange_notify(call->exchange, QUEUE_LOW, on_drain, on_gone, call);
    call->written_ms = loop_now_ms(loop);
    loop_timer_start(loop, &call->pulse,
                     call->request.stream ? call->session->headers_after_ms
                                          : call->session->unary_after_ms,
                     on_pulse, call);
}

/* ---------------------------------------------------------------- an attempt */

static void on_relay(void *context, struct str bytes, bool terminal)
{
    struct call *call = context;
    const char *key = call->session->model->key;
    if (key && str_find(bytes, str_of(key)) >= 0)
        call->key_leaked = true;
    if (call->key_leaked)
        return;
    if (call->anew || call->request.stream != call->head.stream)
        return; /* made anew from what was read */
    if (!call->record.first_byte_ms)
        call->record.first_byte_ms = clock_wall_ms();
    if (terminal || !call->request.stream) {
        buf_str_append(&call->held, bytes);
        return;
    }
    bool comment = bytes.size && bytes.data[0] == ':';
    if (comment && !call->begun)
        return; /* nothing yet that would forbid another attempt */
    call->relayed |= !comment;
    write_stream(call, bytes);
}

static void on_delta(void *context, const struct trace_delta *delta)
{
    struct call *call = context;
    const char *key = call->session->model->key;
    if (key && str_find(delta->text, str_of(key)) >= 0)
        call->key_leaked = true;
    if (call->key_leaked)
        return;
    if (!call->record.first_byte_ms)
        call->record.first_byte_ms = clock_wall_ms();
    OWN(buf) struct buf bytes = {0};
    dialect_writer_delta(&call->writer, delta, &bytes);
    call->relayed |= bytes.size > 0;
    write_stream(call, buf_str(&bytes));
}

static void on_head(void *context, const struct upstream_head *head)
{
    struct call *call = context;
    request_recall(call);
    call->head = *head;
    call->retry_after_ms = head->retry_after_ms;
    if (head->status / 100 != 2)
        return;
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
    if (live)
        call_begin_writing(call);
}

static bool leaked(struct call *call)
{
    struct err err = {0};
    if (!call->key_leaked)
        return false;
    err_set(&err, ERR_PROTOCOL, "the model server sent its key back; the answer is withheld");
    attempt_failed(call, &err);
    return true;
}

static void on_data(void *context, struct str data)
{
    struct call *call = context;
    struct err err = {0};
    if (!call->reader) {
        if (call->error_body.size < ERROR_BODY_MAX)
            buf_str_append(&call->error_body,
                           str_upto(data, ERROR_BODY_MAX - call->error_body.size));
        return;
    }
    int result = dialect_reader_feed(call->reader, data, &err);
    call->reader_over = result < 0;
    if (!leaked(call) && result < 0)
        attempt_failed(call, &err);
}

/* A status that is not 2xx. */
static void upstream_refused(struct call *call)
{
    struct json_doc doc = {0};
    struct json_limits limits = {.depth_max = DEPTH_MAX, .nodes_max = 10000};
    struct str message = STR_NONE, code = STR_NONE;
    if (json_read(&doc, buf_str(&call->error_body), &limits, NULL) == 0)
        dialect_read_error(json_root(&doc), &call->arena, &message, &code);
    call->upstream_message = scrubbed(call, message);
    call->upstream_code = scrubbed(call, code);
    json_doc_deinit(&doc);
    struct err err = {0};
    int status = call->head.status;
    enum err_kind kind = status == 429                    ? ERR_CAPACITY
                         : status == 401 || status == 403 ? ERR_DENIED
                         : status >= 500                  ? ERR_LOST
                         : status >= 400                  ? ERR_INPUT
                                                          : ERR_PROTOCOL;
    err_set(&err, kind, "%s answered %d%s%.*s",
            call->session->mode == GATEWAY_GATE ? "the trainer" : "the model server", status,
            message.size ? ": " : "", STR_ARGS(str_upto(call->upstream_message, 300)));
    attempt_failed(call, &err);
}

static void on_done(void *context, const struct err *err, bool script_error)
{
    struct call *call = context;
    call->script_error = script_error;
    if (err->kind == ERR_NONE && call->head.status / 100 != 2) {
        upstream_refused(call);
        return;
    }
    if (err->kind != ERR_NONE) {
        attempt_failed(call, err);
        return;
    }
    struct err trouble = {0};
    if (call->head.stream && !dialect_reader_finished(call->reader)) {
        err_set(&trouble, ERR_LOST, "the model server's stream ended before its finish");
        attempt_failed(call, &trouble);
        return;
    }
    call->reader_over = true;
    int result = dialect_reader_end(call->reader, &call->arena, &call->answer, &trouble);
    if (leaked(call))
        return;
    if (result < 0) {
        attempt_failed(call, &trouble);
        return;
    }
    call_copy_tokens(call, upstream_tokens(call->upstream));
    call_note_tokens(call);
    if (call->anew || call->request.stream != call->head.stream)
        call_convert(call);
    if (call->vf)
        vf_model_wrap(call);
    enter(call);
}

static void attempt(struct call *call)
{
    static const struct upstream_handlers handlers = {on_head, on_data, on_done};
    struct gateway_session *session = call->session;
    if (session->mode != GATEWAY_GATE && session->gateway->gate &&
        gate_paused(session->gateway->gate)) {
        /* Weights are being changed. Held calls wait at the gate, the others here. */
        call->state = CALL_WAITING;
        loop_timer_start(session->gateway->loop, &call->retry, PAUSED_MS, on_retry, call);
        return;
    }
    if (prefix_render(call))
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
    if (gate) {
        call->record.has_policy = true;
        call->record.policy_version = gate_policy(gate);
    }
    call->upstream = upstream_start(session->gateway, session->model, &request, &handlers, call);
    if (session->mode == GATEWAY_GATE)
        request_quiet(call);
    if (session->divergence.kind != ERR_NONE)
        session_cause(session, GATEWAY_REPLAY, &session->divergence);
}

void call_attempt(struct call *call)
{
    attempt(call);
}

void call_again(struct call *call)
{
    call->trouble = (struct err){0};
    call->tries = 0;
    call->relayed = false;
    buf_clear(&call->sent);
    attempt(call);
}

/* ---------------------------------------------------------------- the beginning */

static void on_intent(void *context, const struct err *err)
{
    struct call *call = context;
    if (err->kind != ERR_NONE) {
        call->trouble = *err;
        call->shown_status = 503;
        session_exhaust(call->session, GATEWAY_STORE, err);
    }
    if (call->trouble.kind != ERR_NONE)
        enter(call);
    else
        attempt(call);
}

static void write_intent(struct call *call)
{
    struct gateway_session *session = call->session;
    struct err err = {0};
    if (!session->gateway->store) {
        on_intent(call, &err);
        return;
    }
    char hash[17];
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)call->body->digest[1]);
    OWN(buf) struct buf body = {0};
    struct json_writer out = {.out = &body};
    json_begin_object(&out);
    json_set_text(&out, "dialect", call->record.dialect);
    json_set_text(&out, "mode", call->record.mode);
    restore_note(call, &out);
    json_set_int(&out, "request_bytes", (long long)call->body->bytes.size);
    json_set_text(&out, "request_hash", hash);
    json_end_object(&out);
    struct store_record intent = {
        .type = STORE_INTENT,
        .rollout_id = session->rollout_id,
        .call_id = call->record.id,
        .number = call->record.number,
        .body = buf_str(&body),
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
    call->state = CALL_ENTRY;
    make_record(call);
    conclude(call, &(struct err){0});
}

void call_begin(struct gateway_session *session, struct http_exchange *exchange,
                const struct dialect *dialect, struct body *body, bool vf)
{
    struct gateway *gateway = session->gateway;
    struct call *call = mem_zero(sizeof *call);
    struct err err = {0}, api_err = {0};
    struct retry_key key;
    call->session = session;
    call->body = body;
    call->vf = vf;
    call_canonical(call);
    skim_digest(call);
    if (retry_answer(session, exchange, dialect, call->body, &key)) {
        body_unref(call->body);
        arena_deinit(&call->arena);
        free(call);
        return;
    }
    struct dialect_route route =
        vf ? (struct dialect_route){DIALECT_ROUTE_CALL, dialect, STR_NONE, false}
           : dialect_find_route(http_exchange_method(exchange), session_path(session, exchange));
    call->dialect = dialect;
    call->arena.bytes_max = call->request_arena.bytes_max = ARENA_BYTES_MAX;
    list_init(&call->others);
    list_append(&session->calls, &call->node);
    int spoken = call_choose_api(call, &api_err);
    int read = skim_read(call, &route, &err);
    if (read == 0 && spoken < 0) {
        read = -1;
        err = api_err;
    }
    if (read < 0) {
        session_refused(session, REFUSED_INPUT);
        answer_error(exchange, dialect, err.kind == ERR_LIMIT ? 413 : 400, NULL, str_of(err.text),
                     0);
        loop_defer(gateway->loop, call_free, call);
        return;
    }
    int status = 400;
    uint32_t retry_after_s = 0;
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
