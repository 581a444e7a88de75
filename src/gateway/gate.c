/* gate.c - held calls, as one state machine on one loop.
 *
 * A call is two structs: `gate_call`, which its lane holds, and `gate_work`, which lives here. They
 * talk by posted messages only, so there is no lock. The lane's half is freed when both sides let
 * go.
 *
 * Waiting calls hang in a queue per rollout; rollouts with waiting calls form a ring, and each take
 * advances it, so that a rollout with a hundred parallel calls gets no more turns than one with a
 * single call. One timer per call serves both its lease and its deadline: it is set to the nearer.
 */
#include "gateway/gate.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/buf.h"
#include "base/check.h"
#include "base/list.h"
#include "base/map.h"
#include "base/mem.h"
#include "json/json.h"
#include "loop/loop.h"

#define TAKE_MAX 1024
#define STREAM_HIGH (256 * 1024)

enum state { QUEUED, LEASED, STREAMING, GONE };

struct gate_call {
    struct gate *gate;
    struct loop *home; /* the gate's loop */
    struct loop *lane;
    struct gate_hold hold; /* texts are not valid here */
    struct gate_work *work;
    atomic_int refs; /* the lane, the gate, and each message on its way */
    bool closed;     /* lane thread: the lane lost interest */
    bool over;       /* lane thread: the last word was said, there is nothing to withdraw */
    /* What both sides may look at without a message. */
    _Atomic int64_t policy; /* of its last take */
    atomic_bool taken;
    atomic_size_t unconsumed; /* bytes of a stream that the lane has not passed on */
    atomic_bool full;         /* and somebody waits until there are fewer */
};

struct rollout {
    struct list ring; /* in gate->waiting while calls wait */
    struct list calls;
    char *id, *group;
    size_t count; /* works of this rollout, in any state */
};

struct gate_work {
    struct gate *gate;
    struct gate_call *call;
    struct rollout *rollout;
    struct list link; /* in rollout->calls while queued */
    enum state state;
    char *id;
    char lease[17];
    uint32_t turn, deliveries;
    uint64_t lease_until, deadline; /* loop time; 0: none */
    int64_t policy;
    struct loop_timer timer;
    struct gate_stream *stream;
    void *payload;
    size_t size;
    void (*write)(void *, bool, struct json_writer *);
    int (*read)(struct str, struct buf *, struct err *);
    bool whole;
    void (*free_payload)(void *);
};

struct gate_stream {
    struct gate_work *work; /* NULL: the call is gone */
    void (*on_drain)(void *);
    void (*on_gone)(void *);
    void *context;
    bool sent; /* a byte went to the lane */
};

struct gate_taker {
    struct gate *gate;
    struct list link;
    uint32_t max, lease_ms;
    char *group, *rollout;
    struct loop_timer timer;
    void (*on_calls)(void *, struct gate_work *const *, size_t);
    void *context;
    bool done;
};

struct gate {
    struct loop *loop;
    struct gate_options options;
    struct map works, rollouts;
    struct list waiting, takers;
    size_t taker_count;
    atomic_size_t held; /* counted from any lane */
    _Atomic int64_t policy;
    atomic_bool paused;
    bool serving, closed;
    struct gate_counts counts;
};

/* ---------------------------------------------------------------- messages to the lane */
enum word { SAY_ANSWER, SAY_CHUNK, SAY_END, SAY_FAIL, SAY_BROKEN };

struct message {
    struct gate_call *call;
    enum word word;
    int http_status;
    struct buf bytes; /* body, chunk, or the error's type */
    struct err err;
};

static void call_unref(struct gate_call *call)
{
    if (atomic_fetch_sub(&call->refs, 1) == 1)
        free(call);
}

static void deliver(void *argument)
{
    struct message *message = argument;
    struct gate_call *call = message->call;
    const struct gate_hold *hold = &call->hold;
    call->over |= message->word != SAY_CHUNK;
    if (!call->closed) {
        struct str bytes = buf_str(&message->bytes);
        switch (message->word) {
        case SAY_ANSWER:
            hold->on_answer(hold->context, bytes);
            break;
        case SAY_CHUNK:
            hold->on_chunk(hold->context, bytes);
            break;
        case SAY_END:
            hold->on_end(hold->context);
            break;
        case SAY_FAIL:
            hold->on_fail(hold->context, &message->err, message->http_status, bytes);
            break;
        case SAY_BROKEN:
            hold->on_broken(hold->context, &message->err);
            break;
        }
    }
    buf_deinit(&message->bytes);
    free(message);
    call_unref(call);
}

static struct message *message_new(struct gate_work *work, enum word word, struct str bytes)
{
    struct message *message = mem_zero(sizeof *message);
    message->call = work->call;
    message->word = word;
    buf_str_append(&message->bytes, bytes);
    atomic_fetch_add(&work->call->refs, 1);
    return message;
}

static void say(struct message *message)
{
    loop_post(message->call->lane, deliver, message);
}

/* ---------------------------------------------------------------- works */
static void on_work_due(struct loop_timer *timer);
static void serve(struct gate *gate);

static void set_timer(struct gate_work *work)
{
    uint64_t now = loop_now_ms(work->gate->loop);
    uint64_t due = work->deadline;
    if (work->state == LEASED && (!due || work->lease_until < due))
        due = work->lease_until;
    if (due)
        loop_timer_start(work->gate->loop, &work->timer, due > now ? due - now : 0, on_work_due,
                         work);
    else
        loop_timer_stop(&work->timer);
}

static void unqueue(struct gate_work *work)
{
    list_remove(&work->link);
    if (list_empty(&work->rollout->calls))
        list_remove(&work->rollout->ring);
}

static void enqueue(struct gate_work *work)
{
    struct rollout *rollout = work->rollout;
    work->state = QUEUED;
    work->lease[0] = '\0';
    /* A redelivered call goes first within its rollout: it has waited longest. */
    if (work->deliveries)
        list_prepend(&rollout->calls, &work->link);
    else
        list_append(&rollout->calls, &work->link);
    if (!rollout->ring.next)
        list_append(&work->gate->waiting, &rollout->ring);
    work->gate->counts.held++;
    set_timer(work);
}

static void leave_state(struct gate_work *work)
{
    struct gate *gate = work->gate;
    if (work->state == QUEUED) {
        unqueue(work);
        gate->counts.held--;
    }
    if (work->state == LEASED)
        gate->counts.leased--;
    if (work->state == STREAMING)
        gate->counts.streaming--;
}

static void work_free(struct gate_work *work)
{
    struct gate *gate = work->gate;
    leave_state(work);
    work->state = GONE;
    loop_timer_stop(&work->timer);
    if (work->stream) {
        struct gate_stream *stream = work->stream;
        stream->work = NULL;
        if (stream->on_gone)
            stream->on_gone(stream->context);
    }
    (void)map_remove(&gate->works, str_of(work->id));
    if (--work->rollout->count == 0) {
        (void)map_remove(&gate->rollouts, str_of(work->rollout->id));
        free(work->rollout->id);
        free(work->rollout->group);
        free(work->rollout);
    }
    if (work->free_payload)
        work->free_payload(work->payload);
    work->call->work = NULL;
    atomic_fetch_sub(&gate->held, 1);
    call_unref(work->call);
    free(work->id);
    free(work);
}

static void requeue(struct gate_work *work)
{
    leave_state(work);
    work->gate->counts.redelivered++;
    enqueue(work);
    serve(work->gate);
}

static void fail_work(struct gate_work *work, enum err_kind kind, int http_status, struct str type,
                      struct str text)
{
    struct message *message = message_new(
        work, work->state == STREAMING && work->stream->sent ? SAY_BROKEN : SAY_FAIL, type);
    err_set(&message->err, kind, "%.*s", STR_ARGS(text));
    message->http_status = http_status;
    work->gate->counts.failed++;
    say(message);
    work_free(work);
}

static void on_work_due(struct loop_timer *timer)
{
    struct gate_work *work = timer->context;
    uint64_t now = loop_now_ms(work->gate->loop);
    if (work->deadline && now >= work->deadline) {
        fail_work(work, ERR_TIMEOUT, 503, STR("gate_timeout"),
                  STR("the trainer did not answer this call in time"));
        return;
    }
    if (work->state == LEASED && now >= work->lease_until)
        requeue(work);
    else
        set_timer(work);
}

/* ---------------------------------------------------------------- from a lane */
struct arrival {
    struct gate_call *call;
    struct gate_work *work;
    char *rollout_id, *group_id;
    uint64_t deadline_ms;
};

static struct rollout *rollout_of(struct gate *gate, const char *id, const char *group)
{
    struct rollout *rollout = map_get(&gate->rollouts, str_of(id));
    if (rollout)
        return rollout;
    rollout = mem_zero(sizeof *rollout);
    list_init(&rollout->calls);
    rollout->id = mem_dup(id);
    rollout->group = mem_dup(group);
    (void)map_put(&gate->rollouts, str_of(id), rollout);
    return rollout;
}

static void arrive(void *argument)
{
    struct arrival *arrival = argument;
    struct gate_work *work = arrival->work;
    struct gate *gate = work->gate;
    work->rollout = rollout_of(gate, arrival->rollout_id, arrival->group_id);
    work->rollout->count++;
    work->deadline = arrival->deadline_ms ? loop_now_ms(gate->loop) + arrival->deadline_ms : 0;
    CHECK(!map_put(&gate->works, str_of(work->id), work));
    enqueue(work);
    free(arrival->rollout_id);
    free(arrival->group_id);
    free(arrival);
    serve(gate);
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
    struct gate_work *work = mem_zero(sizeof *work);
    struct arrival *arrival = mem_zero(sizeof *arrival);
    *call = (struct gate_call){
        .gate = gate, .home = gate->loop, .lane = lane, .hold = *hold, .work = work};
    atomic_init(&call->refs, 2);
    *work = (struct gate_work){.gate = gate,
                               .call = call,
                               .id = mem_dup(hold->call_id),
                               .turn = hold->turn,
                               .payload = hold->payload,
                               .size = hold->size,
                               .write = hold->write,
                               .read = hold->read,
                               .whole = hold->whole,
                               .free_payload = hold->free_payload};
    *arrival = (struct arrival){.call = call,
                                .work = work,
                                .rollout_id = mem_dup(hold->rollout_id),
                                .group_id = mem_dup(hold->group_id),
                                .deadline_ms = hold->deadline_ms};
    loop_post(gate->loop, arrive, arrival);
    return call;
}

static void withdraw(void *argument)
{
    struct gate_call *call = argument;
    if (call->work) {
        call->gate->counts.withdrawn++;
        work_free(call->work);
    }
    call_unref(call);
}

void gate_call_close(struct gate_call *call)
{
    CHECK(!call->closed);
    call->closed = true;
    if (call->over)
        call_unref(call);
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
    call_unref(call);
}

/* Whoever sees that a full stream has room again says so, once. */
static bool has_room_again(struct gate_call *call)
{
    return atomic_load(&call->unconsumed) < STREAM_HIGH / 2 && atomic_exchange(&call->full, false);
}

void gate_call_consumed(struct gate_call *call, size_t bytes)
{
    atomic_fetch_sub(&call->unconsumed, bytes);
    if (!has_room_again(call))
        return;
    atomic_fetch_add(&call->refs, 1);
    loop_post(call->home, drain, call);
}

/* ---------------------------------------------------------------- taking */
static void lease(struct gate_taker *taker, struct gate_work *work)
{
    struct gate *gate = taker->gate;
    leave_state(work);
    work->state = LEASED;
    work->deliveries++;
    work->policy = gate->policy;
    work->lease_until = loop_now_ms(gate->loop) + taker->lease_ms;
    id_random_hex(work->lease, 8);
    gate->counts.leased++;
    gate->counts.taken++;
    set_timer(work);
    atomic_store(&work->call->policy, work->policy);
    atomic_store(&work->call->taken, true);
}

static bool fits(const struct gate_taker *taker, const struct rollout *rollout)
{
    return !taker->group || (rollout->group && strcmp(taker->group, rollout->group) == 0);
}

static struct gate_work *first_call(struct rollout *rollout)
{
    return LIST_OF(rollout->calls.next, struct gate_work, link);
}

/* One call of each fitting rollout in turn; the ring moves on with every rollout looked at, and a
 * whole round without a hit ends the search. */
static size_t pick(struct gate_taker *taker, struct gate_work **calls)
{
    struct gate *gate = taker->gate;
    size_t count = 0;
    if (taker->rollout) {
        struct rollout *rollout = map_get(&gate->rollouts, str_of(taker->rollout));
        for (; rollout && count < taker->max && !list_empty(&rollout->calls); count++) {
            calls[count] = first_call(rollout);
            if (fits(taker, rollout))
                lease(taker, calls[count]);
            else
                return 0;
        }
        return count;
    }
    const struct rollout *missed = NULL; /* the first of an unbroken row of misses */
    while (count < taker->max && !list_empty(&gate->waiting)) {
        struct rollout *rollout = LIST_OF(gate->waiting.next, struct rollout, ring);
        if (rollout == missed)
            break;
        list_remove(&rollout->ring);
        list_append(&gate->waiting, &rollout->ring);
        if (!fits(taker, rollout)) {
            missed = missed ? missed : rollout;
            continue;
        }
        missed = NULL;
        calls[count] = first_call(rollout);
        lease(taker, calls[count++]);
    }
    return count;
}

static void taker_finish(struct gate_taker *taker, struct gate_work *const *calls, size_t count)
{
    taker->done = true;
    list_remove(&taker->link);
    taker->gate->taker_count--;
    loop_timer_stop(&taker->timer);
    taker->on_calls(taker->context, calls, count);
    free(taker->group);
    free(taker->rollout);
    free(taker);
}

static void hand_out(struct gate *gate)
{
    struct gate_work **calls = mem_alloc(TAKE_MAX * sizeof *calls);
    for (struct list *at = gate->takers.next; at != &gate->takers && !list_empty(&gate->waiting);) {
        struct gate_taker *taker = LIST_OF(at, struct gate_taker, link);
        at = at->next;
        size_t count = pick(taker, calls);
        if (count)
            taker_finish(taker, calls, count);
    }
    free(calls);
}

static void serve_all(void *argument)
{
    struct gate *gate = argument;
    gate->serving = false;
    if (gate->closed)
        free(gate);
    else if (!gate->paused)
        hand_out(gate);
}

/* Deferred, so that a burst of arrivals is handed out in batches and no callback comes from inside.
 */
static void serve(struct gate *gate)
{
    if (gate->serving || gate->paused || list_empty(&gate->takers) || list_empty(&gate->waiting))
        return;
    gate->serving = true;
    loop_defer(gate->loop, serve_all, gate);
}

/* The wait is over: one last look, so that a take that does not wait gets what is there. */
static void on_taker_due(struct loop_timer *timer)
{
    struct gate_taker *taker = timer->context;
    struct gate_work **calls = mem_alloc(taker->max * sizeof *calls);
    taker_finish(taker, calls, taker->gate->paused ? 0 : pick(taker, calls));
    free(calls);
}

static uint32_t bounded(uint32_t wanted, uint32_t fallback, uint32_t max)
{
    uint32_t value = wanted ? wanted : fallback;
    return value < max ? value : max;
}

struct gate_taker *gate_take(struct gate *gate, const struct gate_take *take,
                             void (*on_calls)(void *, struct gate_work *const *, size_t),
                             void *context, struct err *err)
{
    if (gate->taker_count >= gate->options.takers_max) {
        err_set(err, ERR_CAPACITY, "%zu takes are waiting already", gate->options.takers_max);
        return NULL;
    }
    struct gate_taker *taker = mem_zero(sizeof *taker);
    *taker = (struct gate_taker){
        .gate = gate,
        .max = bounded(take->max, 1, TAKE_MAX),
        .lease_ms = bounded(take->lease_ms, gate->options.lease_ms, gate->options.lease_ms_max),
        .group = mem_dup(take->group_id),
        .rollout = mem_dup(take->rollout_id),
        .on_calls = on_calls,
        .context = context};
    list_append(&gate->takers, &taker->link);
    gate->taker_count++;
    loop_timer_start(gate->loop, &taker->timer,
                     bounded(take->wait_ms, 0, gate->options.wait_ms_max), on_taker_due, taker);
    serve(gate);
    return taker;
}

void gate_taker_cancel(struct gate_taker *taker)
{
    CHECK(!taker->done);
    list_remove(&taker->link);
    taker->gate->taker_count--;
    loop_timer_stop(&taker->timer);
    free(taker->group);
    free(taker->rollout);
    free(taker);
}

void gate_work_write(struct gate_work *work, bool raw, struct json_writer *out)
{
    uint64_t now = loop_now_ms(work->gate->loop);
    json_begin_object(out);
    json_set_text(out, "call_id", work->id);
    json_set_text(out, "rollout_id", work->rollout->id);
    json_set_text(out, "group_id", work->rollout->group);
    json_set_text(out, "lease", work->lease);
    json_set_int(out, "lease_ms",
                 (long long)(work->lease_until > now ? work->lease_until - now : 0));
    json_set_int(out, "delivery", work->deliveries);
    json_set_int(out, "turn", work->turn);
    json_set_int(out, "policy_version", work->policy);
    if (work->deadline)
        json_set_int(out, "deadline_ms",
                     (long long)(work->deadline > now ? work->deadline - now : 0));
    else
        json_set_null(out, "deadline_ms");
    work->write(work->payload, raw, out);
    json_end_object(out);
}

size_t gate_work_size(const struct gate_work *work, bool raw)
{
    return 512 + work->size * (raw ? 2 : 1);
}

const char *gate_work_call_id(const struct gate_work *work)
{
    return work->id;
}

const char *gate_work_lease(const struct gate_work *work)
{
    return work->lease;
}

/* ---------------------------------------------------------------- answering */
static struct gate_work *find_leased(struct gate *gate, const char *call_id, const char *lease_id,
                                     struct err *err)
{
    struct gate_work *work = map_get(&gate->works, str_of(call_id));
    if (!work) {
        gate->counts.late++;
        err_set(err, ERR_NOT_FOUND,
                "no call '%.60s' is held: it was answered, its agent left, or it never was",
                call_id);
        return NULL;
    }
    if (work->state == QUEUED) {
        gate->counts.late++;
        err_set(err, ERR_CONFLICT, "call '%s' is not leased: its lease ran out or was released",
                call_id);
        return NULL;
    }
    if (lease_id && strcmp(lease_id, work->lease) != 0) {
        gate->counts.late++;
        err_set(err, ERR_CONFLICT, "call '%s' is leased to somebody else: your lease ran out",
                call_id);
        return NULL;
    }
    if (work->state == STREAMING) {
        err_set(err, ERR_CONFLICT, "call '%s' is being answered by a stream", call_id);
        return NULL;
    }
    return work;
}

int gate_answer(struct gate *gate, const char *call_id, const char *lease_id, struct str body,
                struct err *err)
{
    struct gate_work *work = find_leased(gate, call_id, lease_id, err);
    OWN(buf) struct buf clean = {0};
    if (!work || (work->read && work->read(body, &clean, err) < 0))
        return -1;
    say(message_new(work, SAY_ANSWER, work->read ? buf_str(&clean) : body));
    gate->counts.answered++;
    work_free(work);
    return 0;
}

int gate_fail(struct gate *gate, const char *call_id, const char *lease_id, int http_status,
              struct str type, struct str text, struct err *err)
{
    struct gate_work *work = find_leased(gate, call_id, lease_id, err);
    if (!work)
        return -1;
    fail_work(work, http_status >= 500 ? ERR_LOST : ERR_INPUT, http_status, type, text);
    return 0;
}

int gate_extend(struct gate *gate, const char *call_id, const char *lease_id, uint32_t lease_ms,
                struct err *err)
{
    struct gate_work *work = find_leased(gate, call_id, lease_id, err);
    if (!work)
        return -1;
    work->lease_until = loop_now_ms(gate->loop) +
                        bounded(lease_ms, gate->options.lease_ms, gate->options.lease_ms_max);
    set_timer(work);
    return 0;
}

int gate_release(struct gate *gate, const char *call_id, const char *lease_id, struct err *err)
{
    struct gate_work *work = find_leased(gate, call_id, lease_id, err);
    if (!work)
        return -1;
    requeue(work);
    return 0;
}

/* ---------------------------------------------------------------- streaming */
struct gate_stream *gate_stream_open(struct gate *gate, const char *call_id, const char *lease_id,
                                     void (*on_drain)(void *), void (*on_gone)(void *),
                                     void *context, struct err *err)
{
    struct gate_work *work = find_leased(gate, call_id, lease_id, err);
    if (!work)
        return NULL;
    if (work->whole) {
        err_set(err, ERR_CONFLICT, "call '%s' is answered whole, not as a stream", call_id);
        return NULL;
    }
    leave_state(work);
    work->state = STREAMING; /* the open connection is the lease now */
    gate->counts.streaming++;
    set_timer(work);
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
    if (unconsumed >= STREAM_HIGH)
        atomic_store(&call->full, true);
    say(message_new(stream->work, SAY_CHUNK, bytes));
    /* The lane may have been faster. */
    return has_room_again(call) ? atomic_load(&call->unconsumed) : unconsumed;
}

void gate_stream_end(struct gate_stream *stream)
{
    struct gate_work *work = stream->work;
    if (work) {
        say(message_new(work, SAY_END, STR_NONE));
        work->gate->counts.answered++;
        work->stream = NULL;
        work_free(work);
    }
    free(stream);
}

void gate_stream_lost(struct gate_stream *stream)
{
    struct gate_work *work = stream->work;
    if (work) {
        if (stream->sent) {
            struct message *message = message_new(work, SAY_BROKEN, STR_NONE);
            err_set(&message->err, ERR_LOST, "the trainer's stream broke off");
            work->gate->counts.failed++;
            say(message);
            work->stream = NULL;
            work_free(work);
        } else {
            work->stream = NULL;
            requeue(work);
        }
    }
    free(stream);
}

void gate_stream_refuse(struct gate_stream *stream)
{
    struct gate_work *work = stream->work;
    if (!work || stream->sent) {
        gate_stream_lost(stream);
        return;
    }
    leave_state(work);
    work->state = LEASED;
    work->gate->counts.leased++;
    work->stream = NULL;
    set_timer(work); /* the lease as it was: it may be over by now */
    free(stream);
}

/* ---------------------------------------------------------------- the gate itself */
struct gate *gate_new(struct loop *loop, const struct gate_options *options)
{
    struct gate *gate = mem_zero(sizeof *gate);
    gate->loop = loop;
    gate->options = options ? *options : (struct gate_options){0};
    struct gate_options *o = &gate->options;
    o->held_max = o->held_max ? o->held_max : 100000;
    o->lease_ms_max = o->lease_ms_max ? o->lease_ms_max : 3600000;
    o->lease_ms = bounded(o->lease_ms, 60000, o->lease_ms_max);
    o->wait_ms_max = o->wait_ms_max ? o->wait_ms_max : 300000;
    o->takers_max = o->takers_max ? o->takers_max : 4096;
    list_init(&gate->waiting);
    list_init(&gate->takers);
    return gate;
}

void gate_free(struct gate *gate)
{
    if (!gate)
        return;
    gate->paused = true;
    while (!list_empty(&gate->takers))
        taker_finish(LIST_OF(gate->takers.next, struct gate_taker, link), NULL, 0);
    size_t at = 0;
    for (struct gate_work *work; (work = map_next(&gate->works, &at, NULL)); at = 0)
        fail_work(work, ERR_CANCELLED, 503, STR("gate_closed"), STR("the gate is closing"));
    map_deinit(&gate->works);
    map_deinit(&gate->rollouts);
    gate->closed = true;
    if (!gate->serving)
        free(gate);
}

struct loop *gate_loop(const struct gate *gate)
{
    return gate->loop;
}

void gate_pause(struct gate *gate, bool paused)
{
    gate->paused = paused;
    serve(gate);
}

bool gate_paused(const struct gate *gate)
{
    return gate->paused;
}

void gate_set_policy(struct gate *gate, int64_t version)
{
    gate->policy = version;
}

int64_t gate_policy(const struct gate *gate)
{
    return gate->policy;
}

void gate_counts(const struct gate *gate, struct gate_counts *out)
{
    *out = gate->counts;
    out->takers = gate->taker_count;
}
