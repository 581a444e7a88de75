/* hold_request.c - what a call that waits long at the gate costs: its body, and little more.
 *
 * A request that was read as a whole is as large as its body again: decoded texts, tables of
 * messages. While nobody needs it, it is forgotten; the body says it all, and is read again when
 * the answer comes. Calls that are answered soon never pay for that, nor do those of which little
 * was read because the rest was known (skim.c), as long as there are not too many of them. */
#include "base/log.h"
#include "base/mem.h"
#include "gateway/inner.h"

#define QUIET_MS 1000
#define CROWD 16 /* more calls than this on a lane: memory matters more than reading once more */
#define KEPT_CALL_MAX ((size_t)12 << 10)
#define KEPT_LANE_MAX ((size_t)2 << 20)

static void forget(struct call *call)
{
    bool waits = call->state == CALL_INTENT || call->state == CALL_UPSTREAM;
    if (!waits || call->reader || call->request_away)
        return;
    struct trace_request *request = &call->request;
    request_over(call);
    request->model = arena_str(&call->arena, request->model);
    request->messages = NULL;
    request->message_count = 0;
    request->tools = NULL;
    request->tool_count = 0;
    request->tool_choice = request->settings = STR_NONE;
    request->sampling = (struct trace_sampling){0};
    skim_forget(call, false);
    call->request_away = true;
}

static void on_quiet(struct loop_timer *timer)
{
    forget(timer->context);
}

/* A tape that was the parent's is no more than there was before the call. */
static bool may_keep(struct call *call)
{
    struct gateway *gateway = call->session->gateway;
    size_t bytes = arena_room(&call->request_arena);
    if (!call->tape_moved)
        bytes += call->doc.capacity * JSON_NODE_BYTES;
    if (atomic_load(&gateway->in_flight) > CROWD &&
        (bytes > KEPT_CALL_MAX || gateway->kept_bytes + bytes > KEPT_LANE_MAX))
        return false;
    call->kept_bytes = bytes;
    gateway->kept_bytes += bytes;
    return true;
}

void request_quiet(struct call *call)
{
    if (call->request_away || call->kept_bytes)
        return;
    /* At once, so that the next body takes the place of what is forgotten. */
    if (may_keep(call))
        loop_timer_start(call->session->gateway->loop, &call->quiet, QUIET_MS, on_quiet, call);
    else
        forget(call);
}

void request_over(struct call *call)
{
    loop_timer_stop(&call->quiet);
    call->session->gateway->kept_bytes -= call->kept_bytes;
    call->kept_bytes = 0;
}

void request_recall(struct call *call)
{
    request_over(call);
    if (!call->request_away)
        return;
    call->request_away = false;
    struct dialect_route route = {DIALECT_ROUTE_CALL, call->dialect, call->request.model,
                                  call->request.stream};
    struct err err = {0};
    if (skim_read(call, &route, &err) < 0)
        CALL_LOG(LOG_ERROR, call, "a body that was read cannot be read again: %s", err.text);
}
