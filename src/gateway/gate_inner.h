/* gate_inner.h - what the gate's files share: a call's two halves and the queues of works.
 *
 *     gate_call.c    a call as its lane sees it: held, told what happened, withdrawn
 *     gate.c         a call as the gate sees it: queued, leased, answered, gone; the gate itself
 *     gate_take.c    who waits for calls, and who gets which
 *     gate_stream.c  an answer in pieces
 *
 * Private to the gate. */
#ifndef GATEWAY_GATE_INNER_H
#define GATEWAY_GATE_INNER_H

#include <stdatomic.h>

#include "base/list.h"
#include "base/map.h"
#include "gateway/gate.h"
#include "loop/loop.h"

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

struct gate_group {
    struct list waiting; /* its rollouts with waiting calls */
    size_t count;        /* rollouts with works in any state */
    char id[];
};

struct gate_rollout {
    struct list ring, group_ring; /* in gate->waiting and in its group's while calls wait */
    struct list calls;            /* the one that came first is first */
    size_t count;                 /* works of this rollout, in any state */
    struct gate_group *group;     /* NULL: none */
    char id[];
};

enum gate_state { GATE_QUEUED, GATE_LEASED, GATE_STREAMING, GATE_GONE };

struct gate_work {
    struct gate *gate;
    struct gate_call *call;
    struct gate_rollout *rollout; /* NULL: on its way from the lane */
    struct list link;             /* in rollout->calls while queued */
    enum gate_state state;
    char lease[17];
    uint32_t turn, deliveries;
    uint64_t number;                /* of its arrival */
    uint64_t lease_until, deadline; /* loop time; 0: none. On its way: from then on */
    int64_t policy;
    struct loop_timer timer;
    struct gate_stream *stream;
    void *payload;
    size_t size;
    void (*write)(void *, bool, struct json_writer *);
    int (*read)(struct str, struct buf *, struct err *);
    bool whole;
    void (*free_payload)(void *);
    const char *rollout_id, *group_id; /* behind its own */
    char id[];
};

struct gate_stream {
    struct gate_work *work; /* NULL: the call is gone */
    void (*on_drain)(void *);
    void (*on_gone)(void *);
    void *context;
    bool sent; /* a byte went to the lane */
};

struct gate {
    struct loop *loop;
    struct gate_options options;
    struct map works, rollouts, groups;
    struct list waiting, takers;
    size_t taker_count;
    uint64_t arrivals;
    atomic_size_t held; /* counted from any lane */
    _Atomic int64_t policy;
    atomic_bool paused;
    bool serving, closed;
    struct gate_counts counts;
    unsigned char random[256]; /* for leases, fetched many at a time; the last ones are unused */
    size_t random_left;
};

#define GATE_STREAM_HIGH ((size_t)256 * 1024) /* of one stream, not passed on by its lane */

/* ---------------------------------------------------------------- gate_call.c */
enum gate_word { GATE_SAY_ANSWER, GATE_SAY_CHUNK, GATE_SAY_END, GATE_SAY_FAIL, GATE_SAY_BROKEN };
/* Tells the call's lane. `bytes` is taken over: a body, a chunk, or the error's type. */
void gate_say(struct gate_work *work, enum gate_word word, struct buf *bytes);
void gate_say_error(struct gate_work *work, enum gate_word word, enum err_kind kind,
                    int http_status, struct str type, struct str text);
void gate_call_unref(struct gate_call *call);
/* Whoever sees that a full stream has room again says so, once. */
bool gate_call_has_room_again(struct gate_call *call);

/* ---------------------------------------------------------------- gate.c */
void gate_work_arrive(struct gate_work *work);
void gate_work_leave_state(struct gate_work *work);
void gate_work_set_timer(struct gate_work *work);
void gate_work_requeue(struct gate_work *work);
void gate_work_free(struct gate_work *work);
void gate_rollout_enter(struct gate *gate, struct gate_rollout *rollout); /* last in its rings */
void gate_rollout_leave(struct gate_rollout *rollout);
/* What the trainer speaks of, when it may: leased, and to whoever speaks. */
struct gate_work *gate_find_leased(struct gate *gate, const char *call_id, const char *lease_id,
                                   struct err *err);
uint32_t gate_bounded(uint32_t wanted, uint32_t fallback, uint32_t max);

/* ---------------------------------------------------------------- gate_take.c */
/* Calls or takers are new: they are brought together when this tick is over. */
void gate_serve(struct gate *gate);
void gate_takers_end(struct gate *gate); /* with nothing */

#endif
