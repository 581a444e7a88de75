/* gate_call.c - a held call as its lane sees it.
 *
 * A call is two structs: `gate_call`, which its lane holds, and `gate_work`, which lives on the
 * gate's loop. They talk by posted messages only, so there is no lock. The lane's half is freed
 * when both sides let go. */
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/mem.h"
#include "gateway/gate_inner.h"

/* ---------------------------------------------------------------- to the lane */
struct message {
    struct gate_call *call;
    enum gate_word word;
    int http_status;
    struct buf bytes; /* body, chunk, or the error's type */
    struct err *err;  /* NULL: none */
    struct buf text;  /* the error's, whole */
};

void gate_call_unref(struct gate_call *call)
{
    if (atomic_fetch_sub(&call->refs, 1) == 1)
        free(call);
}

static void deliver(void *argument)
{
    struct message *message = argument;
    struct gate_call *call = message->call;
    const struct gate_hold *hold = &call->hold;
    call->over |= message->word != GATE_SAY_CHUNK;
    if (!call->closed) {
        struct str bytes = buf_str(&message->bytes);
        switch (message->word) {
        case GATE_SAY_ANSWER:
            hold->on_answer(hold->context, bytes);
            break;
        case GATE_SAY_CHUNK:
            hold->on_chunk(hold->context, bytes);
            break;
        case GATE_SAY_END:
            hold->on_end(hold->context);
            break;
        case GATE_SAY_FAIL:
            hold->on_fail(hold->context, message->err, message->http_status, bytes,
                          buf_text(&message->text));
            break;
        case GATE_SAY_BROKEN:
            hold->on_broken(hold->context, message->err);
            break;
        }
    }
    buf_deinit(&message->bytes);
    buf_deinit(&message->text);
    free(message->err);
    free(message);
    gate_call_unref(call);
}

static struct message *message_new(struct gate_work *work, enum gate_word word)
{
    struct message *message = mem_alloc(sizeof *message);
    *message = (struct message){.call = work->call, .word = word};
    atomic_fetch_add(&work->call->refs, 1);
    return message;
}

void gate_say(struct gate_work *work, enum gate_word word, struct buf *bytes)
{
    struct message *message = message_new(work, word);
    message->bytes = *bytes;
    *bytes = (struct buf){0};
    loop_post(work->call->lane, deliver, message);
}

void gate_say_error(struct gate_work *work, enum gate_word word, enum err_kind kind,
                    int http_status, struct str type, struct str text)
{
    struct message *message = message_new(work, word);
    message->err = mem_zero(sizeof *message->err);
    err_set(message->err, kind, "%.*s", STR_ARGS(text));
    message->http_status = http_status;
    buf_str_append(&message->bytes, type);
    buf_str_append(&message->text, text);
    loop_post(work->call->lane, deliver, message);
}

/* ---------------------------------------------------------------- from the lane */

static char *put_text(char *at, const char *text, const char **where)
{
    if (!text)
        return at;
    size_t size = strlen(text) + 1;
    *where = memcpy(at, text, size);
    return at + size;
}

/* One piece of memory with its texts: it is made on one thread and freed on another. */
static struct gate_work *work_new(struct gate *gate, const struct gate_hold *hold)
{
    size_t texts = strlen(hold->call_id) + strlen(hold->rollout_id) +
                   (hold->group_id ? strlen(hold->group_id) : 0) + 3;
    struct gate_work *work = mem_alloc(sizeof *work + texts);
    *work = (struct gate_work){.gate = gate,
                               .turn = hold->turn,
                               .deadline = hold->deadline_ms,
                               .payload = hold->payload,
                               .size = hold->size,
                               .write = hold->write,
                               .read = hold->read,
                               .whole = hold->whole,
                               .free_payload = hold->free_payload};
    const char *own;
    char *at = put_text(work->id, hold->call_id, &own);
    at = put_text(at, hold->rollout_id, &work->rollout_id);
    (void)put_text(at, hold->group_id, &work->group_id);
    return work;
}

static void arrive(void *argument)
{
    gate_work_arrive(argument);
}

struct gate_call *gate_hold(struct gate *gate, struct loop *lane, const struct gate_hold *hold,
                            struct err *err)
{
    if (atomic_fetch_add(&gate->held, 1) >= gate->options.held_max) {
        atomic_fetch_sub(&gate->held, 1);
        err_set(err, ERR_CAPACITY, "%zu calls are held already", gate->options.held_max);
        return NULL;
    }
    struct gate_call *call = mem_zero(sizeof *call);
    struct gate_work *work = work_new(gate, hold);
    *call = (struct gate_call){
        .gate = gate, .home = gate->loop, .lane = lane, .hold = *hold, .work = work};
    atomic_init(&call->refs, 2);
    work->call = call;
    loop_post(gate->loop, arrive, work);
    return call;
}

static void withdraw(void *argument)
{
    struct gate_call *call = argument;
    if (call->work) {
        call->gate->counts.withdrawn++;
        gate_work_free(call->work);
    }
    gate_call_unref(call);
}

void gate_call_close(struct gate_call *call)
{
    CHECK(!call->closed);
    call->closed = true;
    if (call->over)
        gate_call_unref(call);
    else
        loop_post(call->home, withdraw, call); /* takes the lane's reference along */
}

bool gate_call_policy(const struct gate_call *call, int64_t *version)
{
    if (!atomic_load(&call->taken))
        return false;
    *version = atomic_load(&call->policy);
    return true;
}

static void drain(void *argument)
{
    struct gate_call *call = argument;
    struct gate_stream *stream = call->work ? call->work->stream : NULL;
    if (stream && stream->on_drain)
        stream->on_drain(stream->context);
    gate_call_unref(call);
}

bool gate_call_has_room_again(struct gate_call *call)
{
    return atomic_load(&call->unconsumed) < GATE_STREAM_HIGH / 2 &&
           atomic_exchange(&call->full, false);
}

void gate_call_consumed(struct gate_call *call, size_t bytes)
{
    atomic_fetch_sub(&call->unconsumed, bytes);
    if (!gate_call_has_room_again(call))
        return;
    atomic_fetch_add(&call->refs, 1);
    loop_post(call->home, drain, call);
}
