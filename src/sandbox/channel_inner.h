/* channel_inner.h - shared by channel*.c: what a stream of frames is on the host's side.
 *
 * A flow is one numbered stream. Its owner (a job, a file transfer, a bridged inlet connection)
 * starts with it and gives it a class: what to do with data, with the final frame, with loss. Flows
 * leave the channel's list when their final frame came or the channel ended; their owners free
 * themselves. */
#ifndef SANDBOX_CHANNEL_INNER_H
#define SANDBOX_CHANNEL_INNER_H

#include "base/list.h"
#include "loop/loop.h"
#include "sandbox/channel.h"
#include "wire/wire.h"

#define CHANNEL_OUT_MAX 262144u /* queued frames above which no flow adds DATA */
#define CHANNEL_BUCKETS 64

struct flow;
struct flow_class {
    /* DATA within credit. The owner calls flow_consumed() when it is done with it, now or later. */
    void (*on_data)(struct flow *flow, uint8_t which, struct str data);
    void (*on_end)(struct flow *flow);   /* may be NULL: then END is a protocol error */
    void (*on_reset)(struct flow *flow); /* may be NULL */
    /* The final frame. The flow has left the channel. -1: malformed. */
    int (*on_final)(struct flow *flow, const struct wire_frame *frame, struct err *err);
    void (*on_lost)(struct flow *flow, const struct err *err); /* the flow has left the channel */
    void (*on_abandoned)(struct flow *flow); /* channel_close(): the same, but silently */
    void (*on_room)(struct flow *flow);      /* there may be credit and room to send; may be NULL */
};
struct flow {
    struct list node;
    struct flow *hash_next;
    struct channel *channel; /* NULL: it has left */
    const struct flow_class *class;
    uint32_t id;
    bool silenced; /* the channel was closed before a deferred end could be told */
    struct wire_credit in, out;
};

struct channel {
    struct loop *loop;
    struct channel_options options;
    struct channel_handlers handlers;
    void *context;
    int fd_in, fd_out;
    struct loop_watch in, out;
    struct loop_timer hello_timer;
    struct wire_decoder decoder;
    struct buf queue;
    struct buf banner; /* bytes before HELLO, while we look for it */
    size_t banner_bytes;
    bool greeted; /* the porter said hello */
    bool ready, closed, lost, lost_told;
    bool can_inlet, can_resume;
    struct wire_kept kept[WIRE_KEPT_MAX];
    size_t kept_count;
    bool deferred; /* a deferred call holds on to the channel */
    struct err lost_err;
    struct list flows;
    struct list early; /* flows that never began and whose end is still to be told */
    struct flow *buckets[CHANNEL_BUCKETS];
    uint32_t id_next;
    uint32_t window; /* initial credit of our DATA; 0 until the porter said hello */
    size_t inlet_count;
    char name[48];
};

/* A new odd stream. The caller adds the opening frame to channel->queue, then calls
 * channel_flush(). */
void flow_open(struct flow *flow, struct channel *channel, const struct flow_class *class);
void flow_adopt(struct flow *flow, struct channel *channel, const struct flow_class *class,
                uint32_t id);
void flow_leave(struct flow *flow);
/* It could not begin: runs `tell(argument)` later, unless the channel is closed meanwhile: then
 * flow->silenced is set first. */
void flow_end_early(struct flow *flow, struct channel *channel, void (*tell)(void *),
                    void *argument);
void flow_told(struct flow *flow); /* first thing in `tell` */
struct flow *flow_find(struct channel *channel, uint32_t id);
/* How many bytes of DATA may go out now: credit, queue and frame size. */
size_t flow_room(const struct flow *flow);
void flow_send(struct flow *flow, struct str data); /* within flow_room() */
void flow_control(struct flow *flow, uint8_t type); /* an empty frame; nothing when it has left */
void flow_consumed(struct flow *flow, size_t size);

void channel_flush(struct channel *channel);
/* The porter is gone or spoke nonsense. Everything is told in a deferred call. */
void channel_lose(struct channel *channel, const struct err *err);
bool channel_usable(const struct channel *channel);

/* channel_inlet.c: the porter opened a connection. */
void channel_inlet_open(struct channel *channel, uint32_t id);

#endif
