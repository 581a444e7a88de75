/* hold_request.c - what a call that waits long at the gate costs: its body, and little more.
 *
 * A request that was read is as large as its body again: decoded texts, tables of messages. While
 * nobody needs it, it is forgotten; the body says it all, and is read again when the answer comes.
 * Calls that are answered soon never pay for that. */
#include "base/log.h"
#include "base/mem.h"
#include "gateway/inner.h"

#define QUIET_MS 1000
#define CROWD 64 /* more calls than this on a lane: memory matters more than reading once more */

static void forget(struct call *call)
{
    bool waits = call->state == CALL_INTENT || call->state == CALL_UPSTREAM;
    if (!waits || call->reader || call->request_away)
        return;
    struct trace_request *request = &call->request;
    request->model = arena_str(&call->arena, request->model);
    request->messages = NULL;
    request->message_count = 0;
    request->tools = NULL;
    request->tool_count = 0;
    request->tool_choice = request->settings = STR_NONE;
    request->sampling = (struct trace_sampling){0};
    skim_forget(call);
    call->request_away = true;
}

static void on_quiet(struct loop_timer *timer)
{
    forget(timer->context);
}

void request_quiet(struct call *call)
{
    struct gateway *gateway = call->session->gateway;
    /* At once, so that the next body takes the place of what is forgotten. */
    if (atomic_load(&gateway->in_flight) > CROWD)
        forget(call);
    else
        loop_timer_start(gateway->loop, &call->quiet, QUIET_MS, on_quiet, call);
}

void request_recall(struct call *call)
{
    loop_timer_stop(&call->quiet);
    if (!call->request_away)
        return;
    call->request_away = false;
    struct dialect_route route = {DIALECT_ROUTE_CALL, call->dialect, call->request.model,
                                  call->request.stream};
    struct err err = {0};
    if (skim_read(call, &route, &err) < 0)
        LOG_ERROR("gateway", call->record.id, "a body that was read cannot be read again: %s",
                  err.text);
}
