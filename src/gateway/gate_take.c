/* gate_take.c - who waits for held calls, and who gets which.
 *
 * Rollouts with waiting calls form a ring, and so do those of each group; who had its turn is last
 * in both, so that a rollout with a hundred parallel calls gets no more turns than one with a
 * single call, and none loses its turn to takes that do not want it. Takers are served in the order
 * they came. */
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/mem.h"
#include "gateway/gate_inner.h"
#include "json/json.h"

#define TAKE_MAX 1024

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

/* ---------------------------------------------------------------- taking */
/* Unguessable, but not worth a system call each. */
static void name_lease(struct gate *gate, char text[17])
{
    static const char hex[] = "0123456789abcdef";
    if (!gate->random_left) {
        id_random_bytes(gate->random, sizeof gate->random);
        gate->random_left = sizeof gate->random;
    }
    gate->random_left -= 8;
    for (size_t i = 0; i < 8; i++) {
        unsigned char byte = gate->random[gate->random_left + i];
        text[2 * i] = hex[byte >> 4];
        text[2 * i + 1] = hex[byte & 15];
    }
    text[16] = '\0';
}

static void lease(struct gate_taker *taker, struct gate_work *work)
{
    struct gate *gate = taker->gate;
    gate_work_leave_state(work);
    work->state = GATE_LEASED;
    work->deliveries++;
    work->policy = gate->policy;
    work->lease_until = loop_now_ms(gate->loop) + taker->lease_ms;
    name_lease(gate, work->lease);
    gate->counts.leased++;
    gate->counts.taken++;
    gate_work_set_timer(work);
    atomic_store(&work->call->policy, work->policy);
    atomic_store(&work->call->taken, true);
}

static bool fits(const struct gate_taker *taker, const struct gate_rollout *rollout)
{
    return !taker->group || (rollout->group && strcmp(taker->group, rollout->group->id) == 0);
}

static struct gate_work *first_call(struct gate_rollout *rollout)
{
    return LIST_OF(rollout->calls.next, struct gate_work, link);
}

/* Whose turn it is; NULL: no call that would fit waits. */
static struct gate_rollout *next_rollout(const struct gate_taker *taker)
{
    struct gate *gate = taker->gate;
    if (!taker->group)
        return list_empty(&gate->waiting) ? NULL
                                          : LIST_OF(gate->waiting.next, struct gate_rollout, ring);
    struct gate_group *group = map_get(&gate->groups, str_of(taker->group));
    return !group || list_empty(&group->waiting)
               ? NULL
               : LIST_OF(group->waiting.next, struct gate_rollout, group_ring);
}

/* One call of each fitting rollout in turn. */
static size_t pick(struct gate_taker *taker, struct gate_work **calls)
{
    struct gate *gate = taker->gate;
    size_t count = 0;
    if (taker->rollout) {
        struct gate_rollout *rollout = map_get(&gate->rollouts, str_of(taker->rollout));
        for (; rollout && count < taker->max && !list_empty(&rollout->calls); count++) {
            calls[count] = first_call(rollout);
            if (fits(taker, rollout))
                lease(taker, calls[count]);
            else
                return 0;
        }
        return count;
    }
    for (struct gate_rollout *rollout; count < taker->max && (rollout = next_rollout(taker));) {
        gate_rollout_leave(rollout);
        gate_rollout_enter(gate, rollout);
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
void gate_serve(struct gate *gate)
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

struct gate_taker *gate_take(struct gate *gate, const struct gate_take *take,
                             void (*on_calls)(void *, struct gate_work *const *, size_t),
                             void *context, struct err *err)
{
    if (gate->taker_count >= gate->options.takers_max) {
        err_set(err, ERR_CAPACITY, "%zu takes are waiting already", gate->options.takers_max);
        return NULL;
    }
    struct gate_taker *taker = mem_zero(sizeof *taker);
    *taker = (struct gate_taker){.gate = gate,
                                 .max = gate_bounded(take->max, 1, TAKE_MAX),
                                 .lease_ms = gate_bounded(take->lease_ms, gate->options.lease_ms,
                                                          gate->options.lease_ms_max),
                                 .group = mem_dup(take->group_id),
                                 .rollout = mem_dup(take->rollout_id),
                                 .on_calls = on_calls,
                                 .context = context};
    list_append(&gate->takers, &taker->link);
    gate->taker_count++;
    loop_timer_start(gate->loop, &taker->timer,
                     gate_bounded(take->wait_ms, 0, gate->options.wait_ms_max), on_taker_due,
                     taker);
    gate_serve(gate);
    return taker;
}

void gate_takers_end(struct gate *gate)
{
    while (!list_empty(&gate->takers))
        taker_finish(LIST_OF(gate->takers.next, struct gate_taker, link), NULL, 0);
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
    json_set_text(out, "group_id", work->rollout->group ? work->rollout->group->id : NULL);
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

size_t gate_work_size(const struct gate_work *work)
{
    return 512 + work->size;
}

const char *gate_work_call_id(const struct gate_work *work)
{
    return work->id;
}

const char *gate_work_lease(const struct gate_work *work)
{
    return work->lease;
}
