/* upstream_pool.c - who may ask which model server when.
 *
 * A model may have several servers (endpoints). A call takes a seat at one of them and leaves it
 * when its attempt is over, saying how it went. The choice: the server this rollout used before,
 * because its caches know the conversation; else the one with the fewest calls. Servers that failed
 * several times in a row are left alone for a while (ejected), then one call at a time finds out
 * whether they are back; a lone server is never ejected, there is nobody else to ask. Each server
 * has a limit of calls at once and a rate; what finds no seat waits in line, in order, with a
 * deadline, and the line has an end.
 *
 * The pool is shared by all lanes, under one lock that is held for a few comparisons. A seat
 * belongs to the lane that asked; it is granted there, by a message when it had to wait. */
#include <stdlib.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/mem.h"
#include "gateway/inner.h"

#define FAILURES_MAX 3 /* in a row */
#define EJECTED_MS 1000
#define EJECTED_MS_MAX 30000
#define BUSY_MS 1000
#define BUSY_MS_MAX 60000
#define POLL_MS 250

struct seat {
    struct list node; /* in pool->waiting */
    struct pool *pool;
    struct loop *loop;
    struct place *place;
    struct place wish; /* a copy, for other lanes to read */
    uint64_t due_ms;
    struct endpoint *endpoint; /* behind the lock: other lanes grant it; NULL: waits */
    struct endpoint *here;     /* the same, once this lane knows */
    bool posted, left, retry;
    struct loop_timer timer;
    void (*on_seat)(void *context, const struct err *err);
    void *context;
};

/* ---------------------------------------------------------------- under the lock */

static bool has_allowance(const struct pool *pool, struct endpoint *endpoint, uint64_t now)
{
    if (pool->rate_max <= 0)
        return true;
    double burst = pool->rate_max > 1 ? pool->rate_max : 1;
    if (!endpoint->allowance_ms)
        endpoint->allowance = burst;
    else
        endpoint->allowance += (double)(now - endpoint->allowance_ms) * pool->rate_max / 1000;
    if (endpoint->allowance > burst)
        endpoint->allowance = burst;
    endpoint->allowance_ms = now;
    return endpoint->allowance >= 1;
}

static bool is_ejected(const struct endpoint *endpoint, uint64_t now)
{
    return endpoint->ejected_until_ms && (now < endpoint->ejected_until_ms || endpoint->probing);
}

/* 0 is best. */
static int badness(const struct pool *pool, size_t index, const struct place *wish, uint64_t now)
{
    const struct endpoint *endpoint = &pool->endpoints[index];
    if (is_ejected(endpoint, now))
        return 3;
    if (wish->avoid == index + 1)
        return 2;
    return now < endpoint->busy_until_ms;
}

static struct endpoint *choose(struct pool *pool, const struct place *wish)
{
    uint64_t now = clock_mono_ms();
    struct endpoint *best = NULL;
    int best_badness = 0;
    bool best_known = false, any_well = false;
    for (size_t i = 0; i < pool->count; i++) {
        struct endpoint *endpoint = &pool->endpoints[i];
        int bad = badness(pool, i, wish, now);
        bool known = wish->endpoint == i + 1;
        any_well |= bad < 3;
        if ((pool->parallel_max && endpoint->in_flight >= pool->parallel_max) ||
            !has_allowance(pool, endpoint, now))
            continue;
        bool better = !best || bad < best_badness ||
                      (bad == best_badness &&
                       (known || (!best_known && (endpoint->in_flight < best->in_flight ||
                                                  (endpoint->in_flight == best->in_flight &&
                                                   endpoint->requests < best->requests)))));
        if (!better)
            continue;
        best = endpoint;
        best_badness = bad;
        best_known = known;
    }
    /* Rather wait for one that is well than ask one that is not. */
    return best && best_badness == 3 && any_well ? NULL : best;
}

static void sit(struct seat *seat, struct endpoint *endpoint)
{
    seat->endpoint = endpoint;
    endpoint->in_flight++;
    endpoint->requests++;
    endpoint->retries += seat->retry;
    endpoint->allowance -= seat->pool->rate_max > 0;
    endpoint->probing |= endpoint->ejected_until_ms != 0;
}

static void seat_posted(void *argument);

static void serve_waiting(struct pool *pool)
{
    LIST_EACH (node, &pool->waiting) {
        struct seat *seat = LIST_OF(node, struct seat, node);
        struct endpoint *endpoint = choose(pool, &seat->wish);
        if (!endpoint)
            return;
        list_remove(node);
        pool->waiting_count--;
        sit(seat, endpoint);
        seat->posted = true;
        loop_post(seat->loop, seat_posted, seat);
    }
}

static void failed(struct pool *pool, struct endpoint *endpoint)
{
    endpoint->failures++;
    endpoint->failures_row++;
    if (pool->count < 2 || (endpoint->failures_row < FAILURES_MAX && !endpoint->ejected_until_ms))
        return;
    uint64_t wait = EJECTED_MS;
    for (uint32_t i = 0; i < endpoint->ejections_row && wait < EJECTED_MS_MAX; i++)
        wait *= 2;
    endpoint->ejections_row++;
    endpoint->ejections++;
    endpoint->ejected_until_ms = clock_mono_ms() + (wait < EJECTED_MS_MAX ? wait : EJECTED_MS_MAX);
}

static void stand_up(struct seat *seat, enum seat_end end, int64_t busy_ms)
{
    struct pool *pool = seat->pool;
    struct endpoint *endpoint = seat->endpoint;
    endpoint->in_flight--;
    endpoint->probing = false;
    switch (end) {
    case SEAT_FINE:
        endpoint->failures_row = endpoint->ejections_row = 0;
        endpoint->ejected_until_ms = 0;
        break;
    case SEAT_BUSY:
        endpoint->failures++;
        busy_ms = busy_ms < 0 ? BUSY_MS : busy_ms > BUSY_MS_MAX ? BUSY_MS_MAX : busy_ms;
        endpoint->busy_until_ms = clock_mono_ms() + (uint64_t)busy_ms;
        break;
    case SEAT_FAILED:
        failed(pool, endpoint);
        break;
    case SEAT_LEFT:
        break;
    }
}

/* ---------------------------------------------------------------- on the seat's lane */

/* The message that grants a seat may come after everybody else has let go of the model. */
static void seat_free(struct seat *seat)
{
    struct model *model = LIST_OF(seat->pool, struct model, pool);
    free(seat);
    model_unref(model);
}

static void seated(struct seat *seat, struct endpoint *endpoint)
{
    seat->here = endpoint;
    seat->place->endpoint = (uint32_t)(endpoint - seat->pool->endpoints) + 1;
}

static void seat_posted(void *argument)
{
    struct seat *seat = argument;
    pthread_mutex_lock(&seat->pool->lock);
    seat->posted = false;
    bool left = seat->left;
    struct endpoint *endpoint = seat->endpoint;
    pthread_mutex_unlock(&seat->pool->lock);
    if (left) {
        seat_free(seat);
        return;
    }
    loop_timer_stop(&seat->timer);
    seated(seat, endpoint);
    seat->on_seat(seat->context, &(struct err){0});
}

static void on_due(struct loop_timer *timer);

static void wait_more(struct seat *seat, uint64_t now)
{
    uint64_t wait = POLL_MS;
    if (seat->pool->rate_max * POLL_MS > 1000)
        wait = (uint64_t)(1000 / seat->pool->rate_max) + 1;
    if (now + wait > seat->due_ms)
        wait = seat->due_ms > now ? seat->due_ms - now : 0;
    loop_timer_start(seat->loop, &seat->timer, wait, on_due, seat);
}

/* An allowance grew or an ejection ended: nobody else would tell. */
static void on_due(struct loop_timer *timer)
{
    struct seat *seat = timer->context;
    struct pool *pool = seat->pool;
    uint64_t now = clock_mono_ms();
    pthread_mutex_lock(&pool->lock);
    serve_waiting(pool);
    bool granted = seat->endpoint != NULL;
    bool late = !granted && now >= seat->due_ms;
    if (late) {
        list_remove(&seat->node);
        pool->waiting_count--;
    }
    pthread_mutex_unlock(&pool->lock);
    if (granted)
        return;
    if (!late) {
        wait_more(seat, now);
        return;
    }
    struct err err = {0};
    err_set(&err, ERR_TIMEOUT, "no model server had room for the call in time");
    seat->on_seat(seat->context, &err);
}

static void refuse(void *argument)
{
    struct seat *seat = argument;
    struct err err = {0};
    seat->posted = false;
    if (seat->left) {
        seat_free(seat);
        return;
    }
    err_set(&err, ERR_CAPACITY, "too many calls wait for the model server");
    seat->on_seat(seat->context, &err);
}

struct seat *seat_ask(struct pool *pool, struct loop *loop, const struct seat_options *options,
                      void (*on_seat)(void *context, const struct err *err), void *context)
{
    struct seat *seat = mem_zero(sizeof *seat);
    uint64_t now = clock_mono_ms();
    seat->pool = &model_ref(LIST_OF(pool, struct model, pool))->pool;
    seat->loop = loop;
    seat->place = options->place;
    seat->wish = *options->place;
    seat->retry = options->retry;
    seat->due_ms = now + options->wait_ms_max;
    seat->on_seat = on_seat;
    seat->context = context;
    pthread_mutex_lock(&pool->lock);
    struct endpoint *endpoint =
        list_empty(&pool->waiting) ? choose(pool, &seat->wish) : NULL; /* no overtaking */
    bool full = !endpoint && pool->waiting_count >= pool->queue_max;
    if (endpoint) {
        sit(seat, endpoint);
    } else if (!full) {
        list_append(&pool->waiting, &seat->node);
        pool->waiting_count++;
    }
    pthread_mutex_unlock(&pool->lock);
    if (endpoint) {
        seated(seat, endpoint);
    } else if (full) {
        seat->posted = true; /* told when this tick is over */
        loop_defer(loop, refuse, seat);
    } else {
        wait_more(seat, now);
    }
    return seat;
}

const struct endpoint *seat_endpoint(const struct seat *seat)
{
    return seat->here;
}

void seat_leave(struct seat *seat, enum seat_end end, int64_t busy_ms)
{
    if (!seat)
        return;
    struct pool *pool = seat->pool;
    if (seat->here && end != SEAT_LEFT) {
        bool well = end == SEAT_FINE;
        seat->place->avoid = well ? 0 : (uint32_t)(seat->here - pool->endpoints) + 1;
        if (end == SEAT_FAILED)
            seat->place->endpoint = 0;
    }
    loop_timer_stop(&seat->timer);
    pthread_mutex_lock(&pool->lock);
    if (seat->node.next) {
        list_remove(&seat->node);
        pool->waiting_count--;
    }
    if (seat->endpoint)
        stand_up(seat, end, busy_ms);
    serve_waiting(pool);
    seat->left = true;
    bool posted = seat->posted;
    pthread_mutex_unlock(&pool->lock);
    if (!posted)
        seat_free(seat);
}

/* ---------------------------------------------------------------- the pool */

void pool_init(struct pool *pool)
{
    pthread_mutex_init(&pool->lock, NULL);
    list_init(&pool->waiting);
}

void pool_deinit(struct pool *pool)
{
    CHECK(list_empty(&pool->waiting));
    for (size_t i = 0; i < pool->count; i++) {
        struct endpoint *endpoint = &pool->endpoints[i];
        if (endpoint->proxy_authorization)
            explicit_bzero(endpoint->proxy_authorization, strlen(endpoint->proxy_authorization));
        free(endpoint->proxy_authorization);
        free(endpoint->proxy);
        free(endpoint->base_url);
    }
    free(pool->endpoints);
    pthread_mutex_destroy(&pool->lock);
}

struct endpoint *pool_add(struct pool *pool, struct str base_url)
{
    pool->endpoints = mem_grow(pool->endpoints, (pool->count + 1) * sizeof *pool->endpoints);
    struct endpoint *endpoint = &pool->endpoints[pool->count++];
    *endpoint = (struct endpoint){.base_url = str_dup(base_url)};
    return endpoint;
}

void pool_read(struct pool *pool, size_t index, struct model_upstream *out)
{
    pthread_mutex_lock(&pool->lock);
    const struct endpoint *endpoint = &pool->endpoints[index];
    *out = (struct model_upstream){
        .url = endpoint->base_url,
        .requests = endpoint->requests,
        .failures = endpoint->failures,
        .retries = endpoint->retries,
        .ejections = endpoint->ejections,
        .in_flight = endpoint->in_flight,
        .waiting = pool->waiting_count,
        .ejected = is_ejected(endpoint, clock_mono_ms()),
    };
    pthread_mutex_unlock(&pool->lock);
}
