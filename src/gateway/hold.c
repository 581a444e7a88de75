/* hold.c - a call that waits at the gate, as one more kind of upstream.
 *
 *     lane                                     gate's loop
 *     hold_start ──gate_hold──► queued, taken: the call's object is written (hold_object.c)
 *     on_head, on_data, on_done ◄──────────── answered, streamed, failed, broken
 *
 * What the trainer says arrives as a chat completion or as events of one, and goes on through the
 * same callbacks as the bytes of a model server: so translation, capture, the withheld end, resets
 * and the record are the same code for all three modes. A reader that is too slow leaves bytes
 * unconsumed, which is what holds the trainer back. */
#include <stdlib.h>

#include "base/mem.h"
#include "gateway/gate.h"
#include "gateway/inner.h"

#define OWN_RETRY_MS 5000 /* as of a model server that does not say */

struct hold {
    struct loop *loop;
    struct upstream_handlers handlers;
    void *context;
    struct gate_call *call; /* NULL: the gate was full */
    struct err trouble;
    int64_t *policy_version;
    bool streaming, paused, closed;
    size_t owed; /* bytes taken while paused */
};

/* Which weights the answer is from, as far as that is known. */
static void note_policy(struct hold *hold)
{
    if (hold->call)
        (void)gate_call_policy(hold->call, hold->policy_version);
}

static bool give_head(struct hold *hold, const struct upstream_head *head)
{
    note_policy(hold);
    hold->handlers.on_head(hold->context, head);
    return !hold->closed;
}

static void give_end(struct hold *hold, const struct err *err)
{
    hold->handlers.on_done(hold->context, err, false);
}

static void give_body(struct hold *hold, const struct upstream_head *head, struct str body)
{
    if (!give_head(hold, head))
        return;
    hold->handlers.on_data(hold->context, body);
    if (!hold->closed)
        give_end(hold, &(struct err){0});
}

static void on_answer(void *context, struct str body)
{
    give_body(context, &(struct upstream_head){.status = 200, .retry_after_ms = -1}, body);
}

static void on_chunk(void *context, struct str bytes)
{
    struct hold *hold = context;
    struct upstream_head head = {.status = 200, .stream = true, .retry_after_ms = -1};
    if (!hold->streaming && !give_head(hold, &head))
        return;
    hold->streaming = true;
    hold->handlers.on_data(hold->context, bytes);
    if (hold->closed)
        return;
    if (hold->paused)
        hold->owed += bytes.size;
    else
        gate_call_consumed(hold->call, bytes.size);
}

static void on_end(void *context)
{
    struct hold *hold = context;
    struct upstream_head head = {.status = 200, .stream = true, .retry_after_ms = -1};
    if (!hold->streaming && !give_head(hold, &head))
        return;
    give_end(hold, &(struct err){0});
}

/* The trainer's error is shown as it is: it knows best whether the agent should come again. One of
 * the gate's own (nobody answered in time, it closes) says that it may. */
static void on_fail(void *context, const struct err *err, int http_status, struct str type,
                    const char *text)
{
    OWN(buf) struct buf body = {0};
    struct json_writer out = {.out = &body};
    json_begin_object(&out);
    json_key(&out, "error");
    json_begin_object(&out);
    json_set_text(&out, "message", text);
    if (type.size)
        json_set_str(&out, "code", type);
    json_end_object(&out);
    json_end_object(&out);
    bool own = err->kind == ERR_TIMEOUT || err->kind == ERR_CANCELLED;
    struct upstream_head head = {.status = http_status,
                                 .retry_after_ms = own ? OWN_RETRY_MS : -1,
                                 .show = true,
                                 .unanswered = own};
    give_body(context, &head, buf_str(&body));
}

static void on_broken(void *context, const struct err *err)
{
    give_end(context, err);
}

static void tell_full(void *argument)
{
    struct hold *hold = argument;
    if (!hold->closed)
        give_end(hold, &hold->trouble);
}

struct hold *hold_start(struct loop *loop, const struct upstream_request *request,
                        const struct upstream_handlers *handlers, void *context)
{
    const struct upstream_hold *order = request->hold;
    struct hold *hold = mem_zero(sizeof *hold);
    hold->loop = loop;
    hold->handlers = *handlers;
    hold->context = context;
    hold->policy_version = order->policy_version;
    struct gate_hold gate_order = {
        .call_id = order->call_id,
        .rollout_id = request->rollout_id,
        .group_id = order->group_id,
        .turn = order->turn,
        .deadline_ms = order->deadline_ms,
        .read = gate_read_answer,
        .size = order->view->known ? 0 : order->body->bytes.size,
        .payload = hold_object_new(order->body, order->dialect, request->request, order->view,
                                   order->prefix),
        .write = hold_object_write,
        .free_payload = hold_object_free,
        .on_answer = on_answer,
        .on_chunk = on_chunk,
        .on_end = on_end,
        .on_fail = on_fail,
        .on_broken = on_broken,
        .context = hold,
    };
    hold->call = gate_hold(order->gate, loop, &gate_order, &hold->trouble);
    if (!hold->call) {
        hold_object_free(gate_order.payload);
        loop_defer(loop, tell_full, hold);
    }
    return hold;
}

void hold_pause(struct hold *hold)
{
    hold->paused = true;
}

void hold_resume(struct hold *hold)
{
    hold->paused = false;
    if (hold->owed && hold->call)
        gate_call_consumed(hold->call, hold->owed);
    hold->owed = 0;
}

static void hold_free(void *argument)
{
    free(argument);
}

void hold_close(struct hold *hold)
{
    if (hold->closed)
        return;
    hold->closed = true;
    note_policy(hold);
    if (hold->call)
        gate_call_close(hold->call);
    loop_defer(hold->loop, hold_free, hold);
}
