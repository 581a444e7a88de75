/* call_out.c - towards the agent: heads, bytes, signs of life, the end of an answer or an error in
 * its dialect.
 *
 * What cannot be ended well any more (something was relayed and the rest is missing) is reset,
 * never closed cleanly. */
#include <stdio.h>

#include "base/mem.h"
#include "gateway/inner.h"
#include "gateway/rules.h"

#define QUEUE_HIGH (256u << 10)
#define QUEUE_LOW (64u << 10)

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

void call_send_newest(struct call *call, struct str bytes)
{
    if (!call->exchange || !bytes.size)
        return;
    if (!call->begun)
        exchange_begin(call->exchange, call->request.stream);
    call->begun = true;
    call->written_ms = loop_now_ms(call->gateway->loop);
    call->answer_bytes += bytes.size;
    size_t queued = http_respond_push(call->exchange, bytes);
    if (queued > QUEUE_HIGH && !call->paused && call->upstream) {
        call->paused = true;
        upstream_pause(call->upstream);
    }
}

void call_send(struct call *call, struct str bytes)
{
    if (bytes.size)
        call_others_write(call, bytes);
    call_send_newest(call, bytes);
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

void call_give_answer(struct call *call)
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

void call_give_trouble(struct call *call)
{
    call_others_fail(call);
    if (call->exchange)
        call_show_trouble(call, call->exchange, call->begun);
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
    if (http_respond_queued(call->exchange) < QUEUE_LOW)
        on_drain(call); /* the one that the model server waited for was another */
    call->written_ms = loop_now_ms(loop);
    loop_timer_start(loop, &call->pulse,
                     call->request.stream ? call->session->headers_after_ms
                                          : call->session->unary_after_ms,
                     on_pulse, call);
}
