/* retry.c - one call stays one call, however often its agent has to ask.
 *
 *     connection dies ──► away ──► rejoined        the attempt goes on meanwhile, for a grace
 *                           │  └──► given up       recorded as broken
 *                           └──► parked            its answer is complete (or its attempt failed
 *                                                  after words were sent): waits for the agent
 *
 * A session remembers its recent calls by a digest of dialect, path and body. A request that is
 * marked as a retry, or whose first connection died, is no new call: it joins the attempt in
 * flight, sets a parked one going again, or gets the recorded answer once more. A request that is
 * neither (same body, not marked, first answer taken) is a new call and takes the old one's place.
 *
 * An answer is committed only when somebody is there to take it, so that the record holds what
 * agents got and nothing else. While nobody is there a call holds no reservation; it has to be
 * admitted again. There are no more such calls than may be in flight, nor may they hold more; the
 * oldest are given up. What is remembered is bounded in number and bytes, and expires. */
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "gateway/inner.h"

#define MEMORIES_MAX 64                       /* and as many as may be in flight */
#define MEMORY_BYTES_MAX ((size_t)4 << 20)    /* all of a session's, but for the newest */
#define MEMORY_BYTES_TIGHT ((size_t)64 << 10) /* while the lane holds more than this in all: */
#define LANE_BYTES_MAX ((size_t)256 << 20)
#define MEMORY_LARGEST_MAX ((size_t)16 << 20) /* a larger answer is not remembered */
#define MEMORY_MS_MAX (10ull * 60 * 1000)
#define REMAKE_BYTES_MIN ((size_t)256 << 10)
#define PARKED_BODIES 2u /* of the largest size: what calls that are parked may hold */

/* A remembered call. Two kinds of owner: the session's list, and connections whose fate is not
 * known yet. */
struct retry {
    struct list node; /* in retries->order, oldest first */
    uint32_t references;
    struct retries *retries; /* NULL: forgotten */
    uint32_t number;
    struct retry_key key;
    struct call *call; /* while it is in flight */
    char call_id[ID_MAX];
    bool stream, taken;
    uint32_t deliveries;
    uint64_t done_ms;
    struct buf body; /* of its answer */
};

/* ---------------------------------------------------------------- what is remembered */

static struct str key_bytes(const struct retry_key *key)
{
    return str_make(key, sizeof *key);
}

static void retry_unref(struct retry *retry)
{
    if (--retry->references)
        return;
    buf_deinit(&retry->body);
    free(retry);
}

static void forget(struct retries *retries, struct retry *retry)
{
    if (map_get(&retries->by_key, key_bytes(&retry->key)) == retry)
        (void)map_remove(&retries->by_key, key_bytes(&retry->key));
    list_remove(&retry->node);
    retries->count--;
    retries->bytes -= retry->body.size;
    retries->gateway->remembered_bytes -= retry->body.size;
    if (retry->call)
        retry->call->memory = NULL;
    retry->call = NULL;
    retry->retries = NULL;
    retry_unref(retry);
}

/* With very many rollouts on a lane each gets less. */
static bool crowded(const struct retries *retries)
{
    const struct gateway_session *session = LIST_OF(retries, struct gateway_session, retries);
    bool tight = retries->gateway->remembered_bytes > LANE_BYTES_MAX;
    return retries->bytes > (tight ? MEMORY_BYTES_TIGHT : MEMORY_BYTES_MAX) ||
           (retries->count > MEMORIES_MAX && retries->count / 2 >= session->limits.in_flight_max);
}

/* Calls in flight are bounded by the session's limit and stay. Answers that were taken go first;
 * the newest stays. */
static void make_room(struct gateway_session *session)
{
    struct retries *retries = &session->retries;
    uint64_t now = loop_now_ms(session->gateway->loop);
    if (!list_empty(&retries->order)) {
        struct retry *newest = LIST_OF(retries->order.prev, struct retry, node);
        if (!newest->call && newest->body.size > MEMORY_LARGEST_MAX)
            forget(retries, newest);
    }
    LIST_EACH (node, &retries->order) {
        struct retry *retry = LIST_OF(node, struct retry, node);
        if (retry->call)
            continue;
        if (now - retry->done_ms <= MEMORY_MS_MAX)
            break; /* those that follow are younger */
        forget(retries, retry);
    }
    if (!crowded(retries))
        return;
    for (int round = 0; round < 2; round++) {
        LIST_EACH (node, &retries->order) {
            struct retry *retry = LIST_OF(node, struct retry, node);
            if (!crowded(retries))
                return;
            if (!retry->call && (retry->taken || round) && node->next != &retries->order)
                forget(retries, retry);
        }
    }
}

void retries_init(struct retries *retries, struct gateway *gateway)
{
    retries->gateway = gateway;
    list_init(&retries->order);
}

void retries_deinit(struct retries *retries)
{
    LIST_EACH (node, &retries->order) {
        forget(retries, LIST_OF(node, struct retry, node));
    }
    map_deinit(&retries->by_key);
}

void retry_remember(struct call *call, const struct retry_key *key)
{
    struct retries *retries = &call->session->retries;
    struct retry *before = map_get(&retries->by_key, key_bytes(key));
    if (before && before->call)
        return; /* a legitimate twin in flight: the first one is the one to join */
    if (before)
        forget(retries, before);
    struct retry *retry = mem_zero(sizeof *retry);
    retry->references = 1;
    retry->retries = retries;
    retry->number = call->record.number;
    retry->key = *key;
    retry->call = call;
    retry->stream = call->request.stream;
    memcpy(retry->call_id, call->record.id, sizeof retry->call_id);
    call->memory = retry;
    list_append(&retries->order, &retry->node);
    (void)map_put(&retries->by_key, key_bytes(key), retry);
    retries->count++;
    make_room(call->session);
}

void retry_restore(struct gateway_session *session, const struct retry_key *key,
                   const struct trace_call *record, bool stream, struct str answer)
{
    struct retries *retries = &session->retries;
    struct retry *before = map_get(&retries->by_key, key_bytes(key));
    if (before)
        forget(retries, before);
    struct retry *retry = mem_zero(sizeof *retry);
    retry->references = 1;
    retry->retries = retries;
    retry->number = record->number;
    retry->key = *key;
    retry->stream = stream;
    retry->deliveries = record->deliveries;
    retry->done_ms = loop_now_ms(session->gateway->loop);
    memcpy(retry->call_id, record->id, sizeof retry->call_id);
    buf_str_append(&retry->body, answer);
    retries->bytes += answer.size;
    retries->gateway->remembered_bytes += answer.size;
    list_append(&retries->order, &retry->node);
    (void)map_put(&retries->by_key, key_bytes(key), retry);
    retries->count++;
    make_room(session);
}

static void on_fate(void *context, bool taken)
{
    struct retry *retry = context;
    struct retries *retries = retry->retries;
    if (taken && !retry->taken && retries && retries->taken_count < TAKEN_MAX)
        retries->taken[retries->taken_count++] = retry->number;
    retry->taken |= taken;
    retry_unref(retry);
}

/* The whole answer goes to this connection; whether it is taken shows later. */
static void follow(struct retry *retry, struct http_exchange *exchange)
{
    retry->references++;
    http_exchange_fate(exchange, on_fate, retry);
}

/* Large streams are kept as the same answer in few events. */
static void keep_stream(struct call *call, struct buf *out)
{
    if (call->sent.size + call->held.size < REMAKE_BYTES_MIN) {
        pile_copy(&call->sent, out);
        buf_str_append(out, buf_str(&call->held));
        return;
    }
    call_stream_answer(call, out);
}

void retry_concluded(struct call *call, bool answered)
{
    struct gateway_session *session = call->session;
    struct retry *retry = call->memory;
    if (!retry)
        return;
    if (!answered) {
        forget(&session->retries, retry);
        return;
    }
    call->memory = NULL;
    retry->call = NULL;
    retry->deliveries = call->record.deliveries;
    retry->done_ms = loop_now_ms(session->gateway->loop);
    if (retry->stream)
        keep_stream(call, &retry->body);
    else
        buf_str_append(&retry->body, buf_str(&call->held));
    session->retries.bytes += retry->body.size;
    session->gateway->remembered_bytes += retry->body.size;
    if (call->exchange)
        follow(retry, call->exchange);
    LIST_EACH (node, &call->others) {
        follow(retry, LIST_OF(node, struct call_other, node)->exchange);
    }
    list_remove(&retry->node); /* the newest by its end */
    list_append(&session->retries.order, &retry->node);
    make_room(session);
}

/* ---------------------------------------------------------------- more than one connection */

void call_others_write(struct call *call, struct str bytes)
{
    LIST_EACH (node, &call->others) {
        struct call_other *other = LIST_OF(node, struct call_other, node);
        if (!other->begun)
            exchange_begin(other->exchange, call->request.stream);
        other->begun = true;
        (void)http_respond_write(other->exchange, bytes);
    }
}

static void other_free(struct call_other *other)
{
    list_remove(&other->node);
    free(other);
}

void call_others_end(struct call *call, struct str held)
{
    if (call->request.stream)
        call_others_write(call, held);
    LIST_EACH (node, &call->others) {
        struct call_other *other = LIST_OF(node, struct call_other, node);
        if (call->request.stream)
            http_respond_end(other->exchange);
        else
            exchange_end_json(other->exchange, other->begun, held);
        other_free(other);
    }
}

void call_others_fail(struct call *call)
{
    LIST_EACH (node, &call->others) {
        struct call_other *other = LIST_OF(node, struct call_other, node);
        call_show_trouble(call, other->exchange, other->begun);
        other_free(other);
    }
}

static void on_other_gone(void *context)
{
    other_free(context);
}

/* The older connection still lives: it gets what the newer one gets. */
static void set_aside(struct call *call)
{
    struct call_other *other = mem_zero(sizeof *other);
    other->exchange = TAKE(call->exchange);
    other->begun = call->begun;
    http_exchange_notify(other->exchange, 1, NULL, on_other_gone, other);
    list_append(&call->others, &other->node);
}

/* ---------------------------------------------------------------- nobody is there */

static void give_up(struct call *call)
{
    static const char text[] = "the agent went away before the answer was complete";
    bool parked = call->state == CALL_PARKED;
    call->given_up = true;
    if (!parked)
        call_break(call, ERR_LOST, text);
    else if (call->trouble.kind == ERR_NONE)
        err_set(&call->trouble, ERR_LOST, "%s", text);
    /* Whoever comes back while that is being recorded is too late for this call, not for the next.
     */
    call->shown_status = 503;
    call->retry_after_s = 1;
    if (parked)
        call_enter(call);
}

static void on_away_too_long(struct loop_timer *timer)
{
    give_up(timer->context);
}

static void wait_for_agent(struct call *call)
{
    struct gateway_session *session = call->session;
    loop_timer_stop(&call->pulse);
    if (call->away.loop)
        return;
    loop_timer_start(session->gateway->loop, &call->away, session->retry_grace_ms, on_away_too_long,
                     call);
}

bool retry_left(struct call *call)
{
    if (!list_empty(&call->others)) {
        struct call_other *other = LIST_OF(call->others.prev, struct call_other, node);
        call->exchange = other->exchange;
        call->begun = other->begun;
        other_free(other);
        call_listen(call);
        return true;
    }
    if (call->state == CALL_ENTRY || call->state == CALL_DONE)
        return true;
    if (!call->memory || call->session->closing || call->closing)
        return false;
    if (call->paused && call->upstream) {
        call->paused = false;
        upstream_resume(call->upstream);
    }
    wait_for_agent(call);
    return true;
}

static size_t parked_bytes(const struct call *call)
{
    return call->body->bytes.size + call->sent.size + call->held.size + arena_room(&call->arena) +
           arena_room(&call->request_arena) + call->doc.capacity * JSON_NODE_BYTES;
}

/* The newest stays, however large it is. */
static void give_up_oldest(struct gateway_session *session)
{
    const struct gateway_limits *limits = &session->limits;
    size_t count = 0, bytes = 0;
    for (struct list *node = session->calls.prev; node != &session->calls; node = node->prev) {
        struct call *call = LIST_OF(node, struct call, node);
        if (call->state != CALL_PARKED)
            continue;
        bytes += parked_bytes(call);
        if (++count == 1 ||
            (count <= limits->in_flight_max && bytes <= limits->body_bytes_max * PARKED_BODIES))
            continue;
        loop_timer_stop(&call->away);
        give_up(call);
    }
}

bool retry_park(struct call *call)
{
    bool failed = call->trouble.kind != ERR_NONE;
    bool nobody = !call->exchange && list_empty(&call->others);
    if (!call->memory || call->given_up || call->closing || call->session->closing ||
        call->script_error || call->session->exhausted_cause == GATEWAY_STORE)
        return false;
    if (!nobody && !(failed && call->begun))
        return false;
    if (!nobody) {
        call->record.http_status = 200;
        call_others_fail(call);
        if (call->exchange)
            call_show_trouble(call, TAKE(call->exchange), true);
    }
    call->begun = false;
    call->parked_answer = !failed;
    call->state = CALL_PARKED;
    session_unreserve(call->session, call);
    wait_for_agent(call);
    give_up_oldest(call->session);
    return true;
}

void retries_give_up(struct gateway_session *session)
{
    LIST_EACH (node, &session->calls) {
        struct call *call = LIST_OF(node, struct call, node);
        if (call->away.loop) {
            loop_timer_stop(&call->away);
            give_up(call);
        }
    }
}

/* ---------------------------------------------------------------- somebody comes again */

static bool is_marked(struct http_exchange *exchange)
{
    long long count;
    struct str text = str_trim(http_exchange_header(exchange, "x-stainless-retry-count"));
    return str_to_long(text, &count) && count > 0;
}

static void digest(struct http_exchange *exchange, const struct dialect *dialect,
                   const struct body *body, struct retry_key *key)
{
    const char *name = dialect_name(dialect);
    struct str target = http_exchange_target(exchange);
    XXH3_state_t state;
    XXH3_128bits_reset(&state);
    XXH3_128bits_update(&state, name, strlen(name) + 1);
    XXH3_128bits_update(&state, target.data, target.size);
    XXH3_128bits_update(&state, "", 1);
    XXH3_128bits_update(&state, &body->digest, sizeof body->digest);
    XXH128_hash_t hash = XXH3_128bits_digest(&state);
    *key = (struct retry_key){hash.high64, hash.low64};
}

static void deliver_again(struct gateway_session *session, struct retry *retry,
                          struct http_exchange *exchange)
{
    retry->deliveries++;
    session->stats.redelivered++;
    atomic_fetch_add(&session->gateway->redelivered, 1);
    log_write_of(LOG_INFO, "gateway", session->rollout_id, retry->call_id,
                 "its answer is given again (%u)", retry->deliveries);
    call_note_delivery(session, retry->call_id, retry->deliveries);
    follow(retry, exchange);
    if (!retry->stream) {
        http_respond_json(exchange, 200, buf_str(&retry->body));
        return;
    }
    exchange_begin_stream(exchange);
    (void)http_respond_write(exchange, buf_str(&retry->body));
    http_respond_end(exchange);
}

static void join(struct call *call, struct http_exchange *exchange)
{
    struct gateway_session *session = call->session;
    struct err err = {0};
    int status = 400;
    uint32_t retry_after_s = 0;
    if (call->state == CALL_PARKED &&
        (session_open_for_calls(session, &status, &retry_after_s, &err) < 0 ||
         session_admit(session, call, &status, &retry_after_s, &err) < 0)) {
        answer_error(exchange, call->dialect, status, NULL, str_of(err.text), retry_after_s);
        return;
    }
    loop_timer_stop(&call->away);
    session->stats.redelivered++;
    atomic_fetch_add(&session->gateway->redelivered, 1);
    CALL_LOG(LOG_INFO, call, "its agent is back");
    if (call->exchange)
        set_aside(call);
    call->exchange = exchange;
    call->begun = false;
    call->record.deliveries++;
    call_listen(call);
    call->parked_answer = false;
    bool failed = call->trouble.kind != ERR_NONE;
    if (call->state != CALL_PARKED || !failed) {
        const struct pile_block *block = NULL;
        for (struct str piece;
             call->request.stream && (piece = pile_next(&call->sent, &block)).data;)
            call_send_newest(call, piece);
        if (call->state == CALL_PARKED)
            call_enter(call);
        return;
    }
    if (call->shown_status >= 400 && call->shown_status < 500 && call->shown_status != 429)
        call_enter(call); /* it would be refused again */
    else
        call_again(call);
}

bool retry_answer(struct gateway_session *session, struct http_exchange *exchange,
                  const struct dialect *dialect, const struct body *body, struct retry_key *key)
{
    digest(exchange, dialect, body, key);
    make_room(session);
    struct retry *retry = map_get(&session->retries.by_key, key_bytes(key));
    if (!retry || session->closing || session->stats.redelivered >= session->limits.calls_max)
        return false;
    if (!http_exchange_here(exchange)) {
        /* It waited in line, and its agent has left since: another one may be right behind it, and
         * that one is the one to be heard. */
        http_exchange_reset(exchange);
        return true;
    }
    bool marked = is_marked(exchange);
    struct call *call = retry->call;
    if (call && (marked || call->away.loop || !call->exchange ||
                 !http_exchange_here(call->exchange))) { /* it left before this one came */
        join(call, exchange);
        return true;
    }
    if (call || (!marked && (retry->taken || retry->references > 1)))
        return false;
    deliver_again(session, retry, exchange);
    return true;
}
