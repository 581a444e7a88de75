/* gate.c - held calls, as one state machine on one loop.
 *
 * Waiting calls hang in a queue per rollout, in the order in which they came: a call that comes
 * back has its old place. One timer per call serves both its lease and its deadline: it is set to
 * the nearer. Who gets which call is in gate_take.c, what its lane sees of it in gate_call.c. */
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/mem.h"
#include "gateway/gate_inner.h"

/* ---------------------------------------------------------------- works */
static void on_work_due(struct loop_timer *timer);

void gate_work_set_timer(struct gate_work *work)
{
    uint64_t now = loop_now_ms(work->gate->loop);
    uint64_t due = work->deadline;
    if (work->state == GATE_LEASED && (!due || work->lease_until < due))
        due = work->lease_until;
    if (due)
        loop_timer_start(work->gate->loop, &work->timer, due > now ? due - now : 0, on_work_due,
                         work);
    else
        loop_timer_stop(&work->timer);
}

void gate_rollout_enter(struct gate *gate, struct gate_rollout *rollout)
{
    list_append(&gate->waiting, &rollout->ring);
    if (rollout->group)
        list_append(&rollout->group->waiting, &rollout->group_ring);
}

void gate_rollout_leave(struct gate_rollout *rollout)
{
    list_remove(&rollout->ring);
    list_remove(&rollout->group_ring);
}

static void unqueue(struct gate_work *work)
{
    list_remove(&work->link);
    if (list_empty(&work->rollout->calls))
        gate_rollout_leave(work->rollout);
}

static void enqueue(struct gate_work *work)
{
    struct gate_rollout *rollout = work->rollout;
    struct list *calls = &rollout->calls, *later = calls->next;
    work->state = GATE_QUEUED;
    work->lease[0] = '\0';
    if (list_empty(calls) || LIST_OF(calls->prev, struct gate_work, link)->number < work->number)
        later = calls; /* as every new one */
    while (later != calls && LIST_OF(later, struct gate_work, link)->number < work->number)
        later = later->next;
    list_append(later, &work->link); /* before it */
    if (!rollout->ring.next)
        gate_rollout_enter(work->gate, rollout);
    work->gate->counts.held++;
    gate_work_set_timer(work);
}

void gate_work_leave_state(struct gate_work *work)
{
    struct gate *gate = work->gate;
    if (work->state == GATE_QUEUED) {
        unqueue(work);
        gate->counts.held--;
    }
    if (work->state == GATE_LEASED)
        gate->counts.leased--;
    if (work->state == GATE_STREAMING)
        gate->counts.streaming--;
}

static void rollout_free(struct gate *gate, struct gate_rollout *rollout)
{
    struct gate_group *group = rollout->group;
    (void)map_remove(&gate->rollouts, str_of(rollout->id));
    free(rollout);
    if (!group || --group->count)
        return;
    (void)map_remove(&gate->groups, str_of(group->id));
    free(group);
}

void gate_work_free(struct gate_work *work)
{
    struct gate *gate = work->gate;
    gate_work_leave_state(work);
    work->state = GATE_GONE;
    loop_timer_stop(&work->timer);
    if (work->stream) {
        struct gate_stream *stream = work->stream;
        stream->work = NULL;
        if (stream->on_gone)
            stream->on_gone(stream->context);
    }
    (void)map_remove(&gate->works, str_of(work->id));
    if (--work->rollout->count == 0)
        rollout_free(gate, work->rollout);
    if (work->free_payload)
        work->free_payload(work->payload);
    work->call->work = NULL;
    atomic_fetch_sub(&gate->held, 1);
    gate_call_unref(work->call);
    free(work);
}

void gate_work_requeue(struct gate_work *work)
{
    gate_work_leave_state(work);
    work->gate->counts.redelivered++;
    enqueue(work);
    gate_serve(work->gate);
}

void gate_put_back(struct gate_work *work)
{
    CHECK(work->state == GATE_LEASED);
    gate_work_leave_state(work);
    work->deliveries--;
    work->gate->counts.taken--;
    atomic_store(&work->call->taken, work->deliveries > 0);
    enqueue(work);
    gate_serve(work->gate);
}

static void fail_work(struct gate_work *work, enum err_kind kind, int http_status, struct str type,
                      struct str text)
{
    bool broken = work->state == GATE_STREAMING && work->stream->sent;
    gate_say_error(work, broken ? GATE_SAY_BROKEN : GATE_SAY_FAIL, kind, http_status, type, text);
    work->gate->counts.failed++;
    gate_work_free(work);
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
    if (work->state == GATE_LEASED && now >= work->lease_until)
        gate_work_requeue(work);
    else
        gate_work_set_timer(work);
}

/* Of a rollout that is new. */
static struct gate_group *group_of(struct gate *gate, const char *id)
{
    struct gate_group *group = map_get(&gate->groups, str_of(id));
    if (!group) {
        size_t size = strlen(id) + 1;
        group = mem_zero(sizeof *group + size);
        list_init(&group->waiting);
        memcpy(group->id, id, size);
        (void)map_put(&gate->groups, str_of(id), group);
    }
    group->count++;
    return group;
}

static struct gate_rollout *rollout_of(struct gate *gate, const char *id, const char *group)
{
    struct gate_rollout *rollout = map_get(&gate->rollouts, str_of(id));
    if (rollout)
        return rollout;
    size_t size = strlen(id) + 1;
    rollout = mem_zero(sizeof *rollout + size);
    list_init(&rollout->calls);
    memcpy(rollout->id, id, size);
    if (group)
        rollout->group = group_of(gate, group);
    (void)map_put(&gate->rollouts, str_of(id), rollout);
    return rollout;
}

void gate_work_arrive(struct gate_work *work)
{
    struct gate *gate = work->gate;
    work->rollout = rollout_of(gate, work->rollout_id, work->group_id);
    work->rollout->count++;
    if (work->deadline)
        work->deadline += loop_now_ms(gate->loop);
    CHECK(!map_put(&gate->works, str_of(work->id), work));
    work->number = gate->arrivals++;
    enqueue(work);
    gate_serve(gate);
}

uint32_t gate_bounded(uint32_t wanted, uint32_t fallback, uint32_t max)
{
    uint32_t value = wanted ? wanted : fallback;
    return value < max ? value : max;
}

/* ---------------------------------------------------------------- answering */
struct gate_work *gate_find_leased(struct gate *gate, const char *call_id, const char *lease_id,
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
    if (work->state == GATE_QUEUED) {
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
    if (work->state == GATE_STREAMING) {
        err_set(err, ERR_CONFLICT, "call '%s' is being answered by a stream", call_id);
        return NULL;
    }
    return work;
}

int gate_answer(struct gate *gate, const char *call_id, const char *lease_id, struct str body,
                struct err *err)
{
    struct gate_work *work = gate_find_leased(gate, call_id, lease_id, err);
    OWN(buf) struct buf clean = {0};
    if (!work || (work->read && work->read(body, &clean, err) < 0))
        return -1;
    if (!work->read)
        buf_str_append(&clean, body);
    gate_say(work, GATE_SAY_ANSWER, &clean);
    gate->counts.answered++;
    gate_work_free(work);
    return 0;
}

int gate_fail(struct gate *gate, const char *call_id, const char *lease_id, int http_status,
              struct str type, struct str text, struct err *err)
{
    struct gate_work *work = gate_find_leased(gate, call_id, lease_id, err);
    if (!work)
        return -1;
    fail_work(work, http_status >= 500 ? ERR_LOST : ERR_INPUT, http_status, type, text);
    return 0;
}

int gate_extend(struct gate *gate, const char *call_id, const char *lease_id, uint32_t lease_ms,
                struct err *err)
{
    struct gate_work *work = gate_find_leased(gate, call_id, lease_id, err);
    if (!work)
        return -1;
    work->lease_until = loop_now_ms(gate->loop) +
                        gate_bounded(lease_ms, gate->options.lease_ms, gate->options.lease_ms_max);
    gate_work_set_timer(work);
    return 0;
}

int gate_release(struct gate *gate, const char *call_id, const char *lease_id, struct err *err)
{
    struct gate_work *work = gate_find_leased(gate, call_id, lease_id, err);
    if (!work)
        return -1;
    gate_work_requeue(work);
    return 0;
}

bool gate_holds(const struct gate *gate, const char *call_id)
{
    return map_get(&gate->works, str_of(call_id)) != NULL;
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
    o->lease_ms = gate_bounded(o->lease_ms, 60000, o->lease_ms_max);
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
    gate_takers_end(gate);
    size_t at = 0;
    for (struct gate_work *work; (work = map_next(&gate->works, &at, NULL)); at = 0)
        fail_work(work, ERR_CANCELLED, 503, STR("gate_closed"), STR("the gate is closing"));
    map_deinit(&gate->works);
    map_deinit(&gate->rollouts);
    map_deinit(&gate->groups);
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
    gate_serve(gate);
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
