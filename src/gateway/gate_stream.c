/* gate_stream.c - an answer in pieces, as it is generated.
 *
 * The trainer's open connection is the lease. Until the first piece went to the lane nothing is
 * decided: a stream that is lost or refused before it leaves the call to be answered by somebody.
 * What the lane has not passed on holds the trainer back. */
#include <stdlib.h>

#include "base/mem.h"
#include "gateway/gate_inner.h"

/* ---------------------------------------------------------------- streaming */
struct gate_stream *gate_stream_open(struct gate *gate, const char *call_id, const char *lease_id,
                                     void (*on_drain)(void *), void (*on_gone)(void *),
                                     void *context, struct err *err)
{
    struct gate_work *work = gate_find_leased(gate, call_id, lease_id, err);
    if (!work)
        return NULL;
    if (work->whole) {
        err_set(err, ERR_CONFLICT, "call '%s' is answered whole, not as a stream", call_id);
        return NULL;
    }
    gate_work_leave_state(work);
    work->state = GATE_STREAMING; /* the open connection is the lease now */
    gate->counts.streaming++;
    gate_work_set_timer(work);
    struct gate_stream *stream = mem_zero(sizeof *stream);
    *stream = (struct gate_stream){
        .work = work, .on_drain = on_drain, .on_gone = on_gone, .context = context};
    work->stream = stream;
    return stream;
}

size_t gate_stream_write(struct gate_stream *stream, struct str bytes)
{
    if (!stream->work || !bytes.size)
        return 0;
    struct gate_call *call = stream->work->call;
    stream->sent = true;
    size_t unconsumed = atomic_fetch_add(&call->unconsumed, bytes.size) + bytes.size;
    if (unconsumed >= GATE_STREAM_HIGH)
        atomic_store(&call->full, true);
    struct buf copy = {0};
    buf_str_append(&copy, bytes);
    gate_say(stream->work, GATE_SAY_CHUNK, &copy);
    /* The lane may have been faster. */
    return gate_call_has_room_again(call) ? atomic_load(&call->unconsumed) : unconsumed;
}

void gate_stream_end(struct gate_stream *stream)
{
    struct gate_work *work = stream->work;
    if (work) {
        gate_say(work, GATE_SAY_END, &(struct buf){0});
        work->gate->counts.answered++;
        work->stream = NULL;
        gate_work_free(work);
    }
    free(stream);
}

static void lose(struct gate_stream *stream, enum err_kind kind, struct str why)
{
    struct gate_work *work = stream->work;
    if (work) {
        if (stream->sent) {
            gate_say_error(work, GATE_SAY_BROKEN, kind, 0, STR_NONE, why);
            work->gate->counts.failed++;
            work->stream = NULL;
            gate_work_free(work);
        } else {
            work->stream = NULL;
            gate_work_requeue(work);
        }
    }
    free(stream);
}

void gate_stream_lost(struct gate_stream *stream)
{
    lose(stream, ERR_LOST, STR("the trainer's stream broke off"));
}

void gate_stream_give_up(struct gate_stream *stream)
{
    lose(stream, ERR_TIMEOUT, STR("the agent did not read its answer"));
}

void gate_stream_refuse(struct gate_stream *stream)
{
    struct gate_work *work = stream->work;
    if (!work || stream->sent) {
        gate_stream_lost(stream);
        return;
    }
    gate_work_leave_state(work);
    work->state = GATE_LEASED;
    work->gate->counts.leased++;
    work->stream = NULL;
    gate_work_set_timer(work); /* the lease as it was: it may be over by now */
    free(stream);
}
