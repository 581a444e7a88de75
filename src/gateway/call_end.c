/* call_end.c - the end of a call: its record is made and journalled, and only when that is
 * committed does the agent get the end of its answer.
 *
 * Everything that ends a call goes through call_enter(). What happens when the agent goes away, or
 * comes again with the same request, is in retry.c. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "gateway/generate.h"
#include "gateway/inner.h"
#include "store/store.h"

void call_free(void *argument)
{
    struct call *call = argument;
    struct gateway_session *session = call->session;
    dialect_reader_free(call->reader);
    call_stop_writing(call);
    request_over(call);
    skim_forget(call, true);
    body_unref(call->body);
    buf_deinit(&call->rewritten);
    prefix_deinit(&call->prefix);
    generate_free(call->generate);
    buf_deinit(&call->error_body);
    buf_deinit(&call->held);
    pile_deinit(&call->sent);
    call_keep(call);
    session_call_gone(session);
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
        call->record.error_kind = err_meaning(err->kind)->name;
        call->record.error = str_of(call->trouble.text);
        session_exhaust(session, GATEWAY_STORE, err);
    }
    if (call->trouble.kind != ERR_NONE)
        CALL_LOG(LOG_INFO, call, "call %u ends as %s, the agent gets %d: %s", call->record.number,
                 trace_call_state_name(call->record.state), call->record.http_status,
                 call->trouble.text);
    call->state = CALL_DONE;
    loop_timer_stop(&call->pulse);
    loop_timer_stop(&call->away);
    session_settle(session, call);
    retry_concluded(call, call->trouble.kind == ERR_NONE);
    struct buf *lines = lines_room(session);
    if (lines) {
        lineage_line(call, lines);
        lines_added(session);
    }
    if (call->committed)
        lineage_add(call);
    if (session->on_call)
        session->on_call(session->context, &call->record, GATEWAY_CALL_DONE);
    if (call->trouble.kind == ERR_NONE)
        call_give_answer(call);
    else
        call_give_trouble(call);
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
    record->answer_bytes = call->answer_bytes;
    if (call->trouble.kind == ERR_NONE) {
        record->state = TRACE_CALL_ANSWERED;
        record->answer = &call->answer;
        record->http_status = 200;
        /* A title asked for beside the first real call is known to be one only now. */
        if (!call->side_rule)
            record->side |= call->request.tool_count == 0 && call->session->tools_seen;
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

void call_enter(struct call *call)
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
    struct buf *body = gateway_text(session->gateway);
    struct json_writer out = {.out = body};
    trace_call_write(&record, &out);
    body->size--; /* its closing brace */
    out.comma = true;
    restore_note(call, &out);
    json_set_int(&out, "recorded_bytes", (long long)session_recorded(call));
    buf_byte(body, '}');
    struct store_record entry = {
        .type = STORE_ENTRY,
        .rollout_id = session->rollout_id,
        .call_id = record.id,
        .body = buf_str(body),
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

void call_drop(struct call *call)
{
    request_recall(call); /* in a crowd it is forgotten before its intent is written */
    call->state = CALL_ENTRY;
    make_record(call);
    conclude(call, &(struct err){0});
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
        log_write_of(LOG_WARN, "gateway", session->rollout_id, call_id,
                     "delivery %u is not noted: %s", count, err.text);
}
