/* gate.h - the queue where held calls wait for the trainer: leases, deadlines, redelivery.
 *
 * The gate lives on one loop (the control listener's). Calls are held from any lane; what happens
 * to a call is told on its own lane. Trainers act on the gate's loop.
 *
 *     queued ──take──► leased ──answer──► gone (on_answer)
 *       ▲                │ ├──fail─────► gone (on_fail)
 *       │                │ └──stream──► streaming ──end──► gone (on_end)
 *       └─lease out, release, stream lost before its first byte─┘   └─lost after it─► gone
 * (on_broken)
 *
 * Fair: rollouts take turns, whatever the number of calls each has waiting. Bounded: past
 * `held_max` holding is refused. A lease that ran out makes the call anybody's again; what its old
 * holder then says is a conflict and changes nothing. */
#ifndef GATEWAY_GATE_H
#define GATEWAY_GATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/id.h"
#include "base/str.h"

struct gate;
struct gate_call; /* a held call, seen from its lane */
struct gate_work; /* the same, seen from the trainer's side; valid while the callback or call lasts
                   */
struct json_writer;
struct loop;

struct gate_options {
    size_t held_max;       /* 0: 100000 */
    uint32_t lease_ms;     /* 0: 60 s when a take names none */
    uint32_t lease_ms_max; /* 0: 1 h */
    uint32_t wait_ms_max;  /* 0: 5 min: longest long-poll */
    size_t takers_max;     /* 0: 4096 takes waiting at once */
};
struct gate *gate_new(struct loop *loop, const struct gate_options *options);
/* Fails every held call with ERR_CANCELLED and every waiting take with none. On the gate's loop,
 * when no lane holds new calls any more. */
void gate_free(struct gate *gate);
struct loop *gate_loop(const struct gate *gate);

/* ---------------------------------------------------------------- from a lane */
struct gate_hold {
    const char *call_id, *rollout_id;
    const char *group_id; /* NULL: none */
    uint32_t turn;
    uint64_t deadline_ms; /* from now; 0: none */
    bool whole;           /* no streams: the answer comes in one piece */
    /* Checks an answer and writes the form on_answer wants; ERR_INPUT goes to the trainer and the
     * call stays leased. On the gate's loop. NULL: anything is taken as it is. */
    int (*read)(struct str body, struct buf *out, struct err *err);
    void *payload; /* whatever write() needs; owned by the gate from now on */
    size_t size;   /* about how much write() copies; 0: little */
    /* Writes the members of the call's object (messages, tools, sampling, and raw if wanted), on
     * the gate's loop. */
    void (*write)(void *payload, bool raw, struct json_writer *out);
    void (*free_payload)(void *payload); /* any thread; may be NULL */
    /* On the lane, never from inside gate_hold(). Exactly one of answer, end, fail, broken comes
     * last. */
    void (*on_answer)(void *context, struct str body);
    void (*on_chunk)(void *context, struct str bytes);
    void (*on_end)(void *context);
    /* `text` is all of what err's begins with. */
    void (*on_fail)(void *context, const struct err *err, int http_status, struct str type,
                    const char *text);
    void (*on_broken)(void *context,
                      const struct err *err); /* a stream was lost after its first byte */
    void *context;
};
/* Refuses with ERR_CAPACITY when too many are held. Copies its texts. */
struct gate_call *gate_hold(struct gate *gate, struct loop *lane, const struct gate_hold *hold,
                            struct err *err);
/* The agent is gone, or the call ended: silent afterwards. Must be called once for each held call,
 * also after its last callback. */
void gate_call_close(struct gate_call *call);
/* The policy's version when it was last taken; false: nobody has taken it. */
bool gate_call_policy(const struct gate_call *call, int64_t *version);
/* Bytes of a stream that the lane has passed on: lets the gate hold the trainer back. */
void gate_call_consumed(struct gate_call *call, size_t bytes);

/* ---------------------------------------------------------------- from the trainer, on the gate's
 * loop */
struct gate_take {
    uint32_t max;                      /* 0: 1 */
    uint32_t wait_ms, lease_ms;        /* lease 0: the default */
    const char *group_id, *rollout_id; /* NULL: any */
};
struct gate_taker; /* a waiting take */
/* on_calls comes once, later, with 0 or more calls leased to this taker. */
struct gate_taker *gate_take(struct gate *gate, const struct gate_take *take,
                             void (*on_calls)(void *context, struct gate_work *const *calls,
                                              size_t count),
                             void *context, struct err *err);
void gate_taker_cancel(struct gate_taker *taker); /* the client went away; before on_calls */
/* The call's object as the trainer sees it. */
void gate_work_write(struct gate_work *work, bool raw, struct json_writer *out);
size_t gate_work_size(const struct gate_work *work); /* about, of what it copies */
/* From inside on_calls: nobody gets the call after all, and it waits at its old place as if it had
 * not been taken. */
void gate_put_back(struct gate_work *work);
const char *gate_work_call_id(const struct gate_work *work);
const char *gate_work_lease(const struct gate_work *work); /* "": it was put back */

/* `lease` may be NULL: whoever speaks first. ERR_NOT_FOUND: no such call (never was, answered,
 * withdrawn). ERR_CONFLICT: not leased, leased to somebody else, or already streaming. */
int gate_answer(struct gate *gate, const char *call_id, const char *lease, struct str body,
                struct err *err);
int gate_fail(struct gate *gate, const char *call_id, const char *lease, int http_status,
              struct str type, struct str message, struct err *err);
int gate_extend(struct gate *gate, const char *call_id, const char *lease, uint32_t lease_ms,
                struct err *err);
int gate_release(struct gate *gate, const char *call_id, const char *lease, struct err *err);
bool gate_holds(const struct gate *gate, const char *call_id); /* in any state */

/* A stream is one answer in pieces. gate_stream_write returns bytes not yet consumed by the lane.
 */
struct gate_stream;
struct gate_stream *gate_stream_open(struct gate *gate, const char *call_id, const char *lease,
                                     void (*on_drain)(void *context),
                                     void (*on_gone)(void *context), void *context,
                                     struct err *err);
size_t gate_stream_write(struct gate_stream *stream, struct str bytes);
void gate_stream_end(struct gate_stream *stream);  /* complete */
void gate_stream_lost(struct gate_stream *stream); /* the trainer's connection died */
/* Its agent does not read, and the trainer has other things to say. */
void gate_stream_give_up(struct gate_stream *stream);

/* The trainer sent nonsense. When nothing went to the lane yet the call is leased as before, else
 * it is as lost. */
void gate_stream_refuse(struct gate_stream *stream);

/* What a trainer sends, in any accepted spelling (docs/http-api.md), as one chat completion, which
 * is what held model calls read. ERR_INPUT names the field. Pure; any thread. */
int gate_read_answer(struct str body, struct buf *out, struct err *err);
/* A piece of a streamed answer as one event of a chat completions stream, which is what
 * gate_stream_write() takes. *finished becomes true when it holds the finish reason. */
int gate_read_chunk(struct str chunk, struct buf *out, bool *finished, struct err *err);
/* Pieces as they come over a wire: a JSON object per line, or server-sent events. A zeroed struct
 * is ready. `end`: nothing follows; without a finish reason that is an error. */
#define GATE_LINE_BYTES_MAX (16u << 20)
struct gate_lines {
    struct buf line, data;
    bool finished;
};
int gate_lines_feed(struct gate_lines *lines, struct str bytes, bool end, struct buf *out,
                    struct err *err);
void gate_lines_deinit(struct gate_lines *lines);

/* ---------------------------------------------------------------- policy, pause, people */
void gate_pause(struct gate *gate, bool paused);          /* held calls stay held; takes wait */
bool gate_paused(const struct gate *gate);                /* any thread */
void gate_set_policy(struct gate *gate, int64_t version); /* stamped at take */
int64_t gate_policy(const struct gate *gate);             /* any thread */
struct gate_counts {
    uint64_t takers;                                                /* takes that wait, now */
    uint64_t held, leased, streaming;                               /* now */
    uint64_t taken, answered, failed, redelivered, withdrawn, late; /* ever */
};
void gate_counts(const struct gate *gate, struct gate_counts *out);

#endif
