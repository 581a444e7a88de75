/* channel_inlet.c - a connection to the carried inlet, bridged to a socket.
 *
 *     program inside ── porter ══ frames ══ bridge ── socketpair ── on_inlet(fd): the gateway
 *
 * The gateway gets one end of a socketpair and never learns that there are frames. Each direction
 * has its own credit and its own end: when the gateway reads slowly, the bridge's queue (at most
 * one window) fills, no credit is granted, and only this connection waits. The watch is stopped,
 * not silenced, while neither direction can move, so that a hang-up does not spin.
 *
 * A socketpair knows no reset. A byte out of band just before the end says, in either direction,
 * that the connection broke: the one inside must see a reset where the gateway made one. */
#include "sandbox/channel.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/mem.h"
#include "sandbox/channel_inner.h"

struct bridge {
    struct flow flow;
    struct loop *loop;
    struct loop_watch watch;
    int fd;
    struct buf queue;   /* from the porter, for the gateway */
    bool inside_ended;  /* the porter sent END */
    bool gateway_ended; /* the gateway finished writing */
    bool gateway_reset; /* and not in order */
};

static void update(struct bridge *bridge);

static void bridge_free(void *argument)
{
    struct bridge *bridge = argument;
    buf_deinit(&bridge->queue);
    free(bridge);
}

static void bridge_close(struct bridge *bridge)
{
    if (bridge->flow.channel)
        bridge->flow.channel->inlet_count--;
    flow_leave(&bridge->flow);
    loop_watch_stop(&bridge->watch);
    fd_close(&bridge->fd);
    loop_defer(bridge->loop, bridge_free, bridge);
}

static void bridge_reset(struct bridge *bridge)
{
    flow_control(&bridge->flow, WIRE_RESET);
    bridge_close(bridge);
}

static void write_queue(struct bridge *bridge)
{
    while (bridge->queue.size) {
        ssize_t size = send(bridge->fd, bridge->queue.data, bridge->queue.size, MSG_NOSIGNAL);
        if (size < 0 && errno == EINTR)
            continue;
        if (size < 0 && errno == EAGAIN)
            return;
        if (size < 0) { /* the gateway does not want more: what was on its way is dropped */
            size_t rest = bridge->queue.size;
            buf_clear(&bridge->queue);
            flow_consumed(&bridge->flow, rest);
            return;
        }
        buf_consume(&bridge->queue, (size_t)size);
        flow_consumed(&bridge->flow, (size_t)size);
    }
    if (bridge->inside_ended)
        (void)shutdown(bridge->fd, SHUT_WR);
}

static void look_for_reset(struct bridge *bridge)
{
    char mark;
    if (recv(bridge->fd, &mark, 1, MSG_OOB) == 1)
        bridge->gateway_reset = true;
}

/* Returns false when the bridge is gone. An end is only believed after a look for the mark of a
 * reset, which reading past it would lose: the gateway may have closed since `on_ready` was told
 * what is there. So a short read ends the round, and a full one looks again. */
static bool read_gateway(struct bridge *bridge)
{
    size_t room;
    while (!bridge->gateway_ended && (room = flow_room(&bridge->flow))) {
        char bytes[16384];
        size_t asked = room < sizeof bytes ? room : sizeof bytes;
        ssize_t size = recv(bridge->fd, bytes, asked, 0);
        if (size < 0 && errno == EINTR)
            continue;
        if (size < 0 && errno == EAGAIN)
            return true;
        if (size < 0) {
            bridge_reset(bridge);
            return false;
        }
        if (size == 0 && bridge->gateway_reset) {
            bridge_reset(bridge);
            return false;
        }
        if (size == 0) {
            bridge->gateway_ended = true;
            flow_control(&bridge->flow, WIRE_END);
            return true;
        }
        flow_send(&bridge->flow, str_make(bytes, (size_t)size));
        if ((size_t)size < asked)
            return true;
        look_for_reset(bridge);
    }
    return true;
}

static void on_ready(struct loop_watch *watch, uint32_t events)
{
    struct bridge *bridge = watch->context;
    if (events & LOOP_HANGUP)
        look_for_reset(bridge);
    if (events & LOOP_WRITE)
        write_queue(bridge);
    if (events & (LOOP_READ | LOOP_HANGUP) && !read_gateway(bridge))
        return;
    update(bridge);
}

static void update(struct bridge *bridge)
{
    struct channel *channel = bridge->flow.channel;
    if (!channel || !channel_usable(channel))
        return;
    if (bridge->gateway_ended && bridge->inside_ended && !bridge->queue.size) {
        bridge_close(bridge);
        return;
    }
    uint32_t events = 0;
    if (!bridge->gateway_ended && flow_room(&bridge->flow))
        events |= LOOP_READ;
    if (bridge->queue.size)
        events |= LOOP_WRITE;
    if (!events) {
        loop_watch_stop(&bridge->watch);
        return;
    }
    if (bridge->watch.loop) {
        loop_watch_change(&bridge->watch, events);
        return;
    }
    if (loop_watch_start(channel->loop, &bridge->watch, bridge->fd, events, on_ready, bridge,
                         NULL) < 0)
        bridge_reset(bridge);
}

/* ---------------------------------------------------------------- frames */
static void on_data(struct flow *flow, uint8_t which, struct str data)
{
    (void)which;
    struct bridge *bridge = LIST_OF(flow, struct bridge, flow);
    buf_str_append(&bridge->queue, data);
    write_queue(bridge);
    update(bridge);
}

static void on_end(struct flow *flow)
{
    struct bridge *bridge = LIST_OF(flow, struct bridge, flow);
    bridge->inside_ended = true;
    write_queue(bridge);
    update(bridge);
}

static void on_gone(struct flow *flow)
{
    bridge_close(LIST_OF(flow, struct bridge, flow));
}

static void on_reset(struct flow *flow)
{
    struct bridge *bridge = LIST_OF(flow, struct bridge, flow);
    (void)send(bridge->fd, "", 1, MSG_OOB | MSG_NOSIGNAL | MSG_DONTWAIT);
    bridge_close(bridge);
}

static void on_lost(struct flow *flow, const struct err *err)
{
    (void)err;
    on_reset(flow);
}

static void on_room(struct flow *flow)
{
    update(LIST_OF(flow, struct bridge, flow));
}

static const struct flow_class bridge_class = {
    .on_data = on_data,
    .on_end = on_end,
    .on_reset = on_reset,
    .on_lost = on_lost,
    .on_abandoned = on_gone,
    .on_room = on_room,
};

void channel_inlet_open(struct channel *channel, uint32_t id)
{
    int pair[2];
    if (!channel->handlers.on_inlet ||
        socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) < 0) {
        wire_frame_add(&channel->queue, id, WIRE_RESET, 0, STR_NONE);
        channel_flush(channel);
        return;
    }
    struct bridge *bridge = mem_zero(sizeof *bridge);
    bridge->loop = channel->loop;
    bridge->fd = pair[0];
    flow_adopt(&bridge->flow, channel, &bridge_class, id);
    channel->inlet_count++;
    update(bridge);
    channel->handlers.on_inlet(channel->context, pair[1]);
}
