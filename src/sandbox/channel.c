/* channel.c - frames between the server and one porter: reading, writing, flows, loss.
 *
 * The porter lives in hostile surroundings, so everything it sends is checked: frames, credit,
 * numbers of streams, the kind of frame that ends each. One mistake and the channel is lost, with
 * the reason. Loss is told in a deferred call, never from inside the call that noticed it: first
 * every flow, then on_lost.
 *
 * Writing is immediate; what the kernel does not take waits in one queue. Control frames are few
 * (their number is bounded by the open flows); DATA is added only while the queue is short, and
 * flows are asked again (on_room) when it has become so. */
#include "sandbox/channel.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "base/fd.h"
#include "base/mem.h"
#include "sandbox/channel_inner.h"

#define READ_SIZE (2 * WIRE_PAYLOAD_MAX)
#define HELLO_MS_MAX 30000
#define BANNER_BYTES_MAX 65536
#define INLETS_MAX 1024

/* ---------------------------------------------------------------- flows */
static struct flow **bucket_of(struct channel *channel, uint32_t id)
{
    return &channel->buckets[id / 2 % CHANNEL_BUCKETS];
}

struct flow *flow_find(struct channel *channel, uint32_t id)
{
    struct flow *flow = *bucket_of(channel, id);
    while (flow && flow->id != id)
        flow = flow->hash_next;
    return flow;
}

void flow_adopt(struct flow *flow, struct channel *channel, const struct flow_class *class,
                uint32_t id)
{
    flow->channel = channel;
    flow->class = class;
    flow->id = id;
    wire_credit_init(&flow->in, WIRE_WINDOW);
    wire_credit_init(&flow->out, channel->window);
    struct flow **bucket = bucket_of(channel, id);
    flow->hash_next = *bucket;
    *bucket = flow;
    list_append(&channel->flows, &flow->node);
}

void flow_open(struct flow *flow, struct channel *channel, const struct flow_class *class)
{
    do
        channel->id_next += 2;
    while (flow_find(channel, channel->id_next));
    flow_adopt(flow, channel, class, channel->id_next);
}

void flow_leave(struct flow *flow)
{
    if (!flow->channel)
        return;
    struct flow **at = bucket_of(flow->channel, flow->id);
    while (*at != flow)
        at = &(*at)->hash_next;
    *at = flow->hash_next;
    list_remove(&flow->node);
    flow->channel = NULL;
}

void flow_end_early(struct flow *flow, struct channel *channel, void (*tell)(void *),
                    void *argument)
{
    list_append(&channel->early, &flow->node);
    loop_defer(channel->loop, tell, argument);
}

void flow_told(struct flow *flow)
{
    list_remove(&flow->node);
}

size_t flow_room(const struct flow *flow)
{
    if (!flow->channel || flow->channel->queue.size >= CHANNEL_OUT_MAX)
        return 0;
    return flow->out.available < WIRE_PAYLOAD_MAX ? flow->out.available : WIRE_PAYLOAD_MAX;
}

void flow_send(struct flow *flow, struct str data)
{
    if (!data.size)
        return;
    wire_credit_sent(&flow->out, (uint32_t)data.size);
    wire_frame_add(&flow->channel->queue, flow->id, WIRE_DATA, 0, data);
    channel_flush(flow->channel);
}

void flow_control(struct flow *flow, uint8_t type)
{
    if (!flow->channel || !channel_usable(flow->channel))
        return;
    wire_frame_add(&flow->channel->queue, flow->id, type, 0, STR_NONE);
    channel_flush(flow->channel);
}

void flow_consumed(struct flow *flow, size_t size)
{
    if (!flow->channel || !channel_usable(flow->channel))
        return;
    uint32_t grant = wire_credit_consumed(&flow->in, (uint32_t)size);
    if (!grant)
        return;
    wire_credit_add(&flow->channel->queue, flow->id, grant);
    channel_flush(flow->channel);
}

/* ---------------------------------------------------------------- loss and end */
static void stop_io(struct channel *channel)
{
    loop_watch_stop(&channel->in);
    loop_watch_stop(&channel->out);
    loop_timer_stop(&channel->hello_timer);
    if (channel->fd_out != channel->fd_in)
        fd_close(&channel->fd_out);
    fd_close(&channel->fd_in);
    channel->fd_out = -1;
    if (channel->queue.start)
        explicit_bzero(channel->queue.start, channel->queue.capacity);
    buf_deinit(&channel->queue);
}

static void channel_free(struct channel *channel)
{
    wire_decoder_deinit(&channel->decoder);
    buf_deinit(&channel->queue);
    buf_deinit(&channel->banner);
    free(channel);
}

static void tell_loss(struct channel *channel)
{
    while (!list_empty(&channel->flows) && !channel->closed) {
        struct flow *flow = LIST_OF(channel->flows.next, struct flow, node);
        flow_leave(flow);
        flow->class->on_lost(flow, &channel->lost_err);
    }
    if (channel->closed || channel->lost_told)
        return;
    channel->lost_told = true;
    if (channel->handlers.on_lost)
        channel->handlers.on_lost(channel->context, &channel->lost_err);
}

static void run_deferred(void *argument)
{
    struct channel *channel = argument;
    if (channel->lost && !channel->closed)
        tell_loss(channel);
    channel->deferred = false;
    if (channel->closed)
        channel_free(channel);
}

static void defer(struct channel *channel)
{
    if (channel->deferred)
        return;
    channel->deferred = true;
    loop_defer(channel->loop, run_deferred, channel);
}

void channel_lose(struct channel *channel, const struct err *err)
{
    if (channel->lost || channel->closed)
        return;
    channel->lost = true;
    channel->lost_err = *err;
    stop_io(channel);
    defer(channel);
}

bool channel_usable(const struct channel *channel)
{
    return !channel->lost && !channel->closed;
}

/* ---------------------------------------------------------------- writing */
/* Flows may add DATA again. None of them calls its user from on_room. */
static void offer_room(struct channel *channel)
{
    LIST_EACH (at, &channel->flows) {
        struct flow *flow = LIST_OF(at, struct flow, node);
        if (!channel_usable(channel) || channel->queue.size >= CHANNEL_OUT_MAX)
            return;
        if (flow->class->on_room)
            flow->class->on_room(flow);
    }
}

void channel_flush(struct channel *channel)
{
    if (!channel_usable(channel) || channel->out.events & LOOP_WRITE)
        return;
    while (channel->queue.size) {
        ssize_t size = write(channel->fd_out, channel->queue.data, channel->queue.size);
        if (size < 0 && errno == EINTR)
            continue;
        if (size < 0 && errno == EAGAIN) {
            loop_watch_change(&channel->out, channel->out.events | LOOP_WRITE);
            return;
        }
        if (size < 0) {
            struct err err = {0};
            err_errno(&err, "writing to the porter");
            err.kind = ERR_LOST;
            channel_lose(channel, &err);
            return;
        }
        buf_consume(&channel->queue, (size_t)size);
    }
}

static void on_out_ready(struct loop_watch *watch, uint32_t events)
{
    struct channel *channel = watch->context;
    if (!(events & (LOOP_WRITE | LOOP_HANGUP)))
        return;
    loop_watch_change(&channel->out, channel->out.events & ~(uint32_t)LOOP_WRITE);
    channel_flush(channel);
    if (channel_usable(channel) && channel->queue.size < CHANNEL_OUT_MAX)
        offer_room(channel);
}

/* ---------------------------------------------------------------- reading */
static void become_ready(struct channel *channel)
{
    channel->ready = true;
    loop_timer_stop(&channel->hello_timer);
    if (channel->handlers.on_ready && channel_usable(channel))
        channel->handlers.on_ready(channel->context, channel->can_inlet);
}

static int take_hello(struct channel *channel, const struct wire_frame *frame, struct err *err)
{
    struct wire_hello hello;
    if (wire_hello_read(frame->payload, &hello, err) < 0)
        return -1;
    if (channel->greeted)
        return err_set(err, ERR_PROTOCOL, "a second hello");
    channel->greeted = true;
    channel->window = hello.window;
    channel->can_inlet = hello.features & WIRE_FEATURE_INLET;
    channel->can_resume = channel->options.resume && hello.features & WIRE_FEATURE_RESUME;
    LIST_EACH (at, &channel->flows) {
        struct flow *flow = LIST_OF(at, struct flow, node);
        wire_credit_init(&flow->out, hello.window);
    }
    offer_room(channel);
    if (!channel->can_resume)
        become_ready(channel);
    return 0;
}

static int take_kept(struct channel *channel, const struct wire_frame *frame, struct err *err)
{
    if (!channel->can_resume || channel->ready)
        return err_set(err, ERR_PROTOCOL, "unexpected kept frame");
    if (wire_kept_read(frame->payload, channel->kept, &channel->kept_count, err) < 0)
        return -1;
    /* Numbers that are in use in there are not given to anybody else. */
    for (size_t i = 0; i < channel->kept_count; i++)
        if (channel->kept[i].stream > channel->id_next || channel->id_next == (uint32_t)-1)
            channel->id_next = channel->kept[i].stream;
    become_ready(channel);
    return 0;
}

static int take_for_flow(struct channel *channel, const struct wire_frame *frame, struct err *err)
{
    struct flow *flow = flow_find(channel, frame->stream);
    uint32_t size;
    if (!flow) {
        /* Only an inlet stream can end on both sides at once. */
        bool late = !(frame->stream & 1) && frame->type >= WIRE_DATA && frame->type <= WIRE_RESET;
        return late ? 0
                    : err_set(err, ERR_PROTOCOL, "%s frame for a stream that is not open",
                              wire_type_name(frame->type));
    }
    switch (frame->type) {
    case WIRE_DATA:
        if (!wire_credit_received(&flow->in, (uint32_t)frame->payload.size))
            return err_set(err, ERR_PROTOCOL, "data beyond the credit");
        flow->class->on_data(flow, frame->flags, frame->payload);
        return 0;
    case WIRE_CREDIT:
        if (wire_credit_read(frame->payload, &size, err) < 0)
            return -1;
        if (!wire_credit_granted(&flow->out, size))
            return err_set(err, ERR_PROTOCOL, "too much credit");
        if (flow->class->on_room)
            flow->class->on_room(flow);
        return 0;
    case WIRE_END:
        if (!flow->class->on_end)
            break;
        flow->class->on_end(flow);
        return 0;
    case WIRE_RESET:
        if (!flow->class->on_reset)
            break;
        flow->class->on_reset(flow);
        return 0;
    case WIRE_EXIT:
    case WIRE_DONE:
    case WIRE_STATUS:
        if (!flow->class->on_final)
            break;
        return flow->class->on_final(flow, frame, err);
    }
    return err_set(err, ERR_PROTOCOL, "unexpected %s frame", wire_type_name(frame->type));
}

static int take_frame(struct channel *channel, const struct wire_frame *frame, struct err *err)
{
    struct str name;
    if (frame->type != WIRE_HELLO && !channel->greeted)
        return err_set(err, ERR_PROTOCOL, "no hello first");
    switch (frame->type) {
    case WIRE_HELLO:
        return take_hello(channel, frame, err);
    case WIRE_KEPT:
        return take_kept(channel, frame, err);
    case WIRE_PONG:
        return 0;
    case WIRE_LOOKUP:
        if (wire_lookup_read(frame->payload, &name, err) < 0)
            return -1;
        if (channel->handlers.on_lookup)
            channel->handlers.on_lookup(channel->context, name);
        return 0;
    case WIRE_INLET:
        if (frame->stream & 1 || flow_find(channel, frame->stream) || !channel->options.inlet)
            return err_set(err, ERR_PROTOCOL, "an inlet stream that cannot be");
        if (channel->inlet_count >= INLETS_MAX)
            return err_set(err, ERR_PROTOCOL, "too many inlet streams");
        channel_inlet_open(channel, frame->stream);
        return 0;
    }
    return take_for_flow(channel, frame, err);
}

/* Skips text that a login printed before the porter began. */
static int skip_banner(struct channel *channel, struct str bytes, struct err *err)
{
    buf_str_append(&channel->banner, bytes);
    long at = wire_hello_find(buf_str(&channel->banner));
    if (at >= 0) {
        wire_decoder_feed(&channel->decoder, str_from(buf_str(&channel->banner), (size_t)at));
        buf_deinit(&channel->banner);
        channel->options.banner = false;
        return 0;
    }
    size_t kept = WIRE_HEADER_SIZE + 8;
    if (channel->banner.size > kept) {
        channel->banner_bytes += channel->banner.size - kept;
        buf_consume(&channel->banner, channel->banner.size - kept);
    }
    if (channel->banner_bytes > BANNER_BYTES_MAX)
        return err_set(err, ERR_PROTOCOL, "the other end does not speak porter frames");
    return 0;
}

static int take_bytes(struct channel *channel, struct err *err)
{
    struct wire_frame frame;
    for (;;) {
        int result = wire_decoder_next(&channel->decoder, &frame, err);
        if (result <= 0)
            return result;
        if (take_frame(channel, &frame, err) < 0)
            return -1;
        if (!channel_usable(channel))
            return 0;
    }
}

static void on_in_ready(struct loop_watch *watch, uint32_t events)
{
    struct channel *channel = watch->context;
    struct err err = {0};
    (void)events;
    char *at = wire_decoder_reserve(&channel->decoder, READ_SIZE);
    ssize_t size = read(channel->fd_in, at, READ_SIZE);
    if (size < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (size <= 0) {
        if (size < 0)
            err_errno(&err, "reading from the porter");
        else
            err_set(&err, ERR_LOST, "the porter went away");
        err.kind = ERR_LOST;
        channel_lose(channel, &err);
        return;
    }
    if (channel->options.banner) {
        OWN(mem) char *bytes = mem_alloc((size_t)size);
        memcpy(bytes, at, (size_t)size);
        if (skip_banner(channel, str_make(bytes, (size_t)size), &err) < 0) {
            channel_lose(channel, &err);
            return;
        }
        if (channel->options.banner)
            return;
    } else {
        wire_decoder_added(&channel->decoder, (size_t)size);
    }
    if (take_bytes(channel, &err) < 0) {
        err_wrap(&err, "the porter's frames");
        channel_lose(channel, &err);
    }
}

static void on_hello_due(struct loop_timer *timer)
{
    struct err err = {0};
    err_set(&err, ERR_TIMEOUT, "the porter did not say hello in time");
    channel_lose(timer->context, &err);
}

/* ---------------------------------------------------------------- life */
static int start(struct channel *channel, struct err *err)
{
    if (fd_nonblocking(channel->fd_in, true) < 0 || fd_nonblocking(channel->fd_out, true) < 0)
        return err_errno(err, "the porter's descriptors");
    /* One descriptor gets one watch per purpose: epoll takes each number only once. */
    if (channel->fd_in == channel->fd_out) {
        channel->fd_out = fcntl(channel->fd_in, F_DUPFD_CLOEXEC, 3);
        if (channel->fd_out < 0)
            return err_errno(err, "the porter's descriptor");
    }
    if (loop_watch_start(channel->loop, &channel->in, channel->fd_in, LOOP_READ, on_in_ready,
                         channel, err) < 0)
        return -1;
    return loop_watch_start(channel->loop, &channel->out, channel->fd_out, 0, on_out_ready, channel,
                            err);
}

struct channel *channel_new(struct loop *loop, int fd_in, int fd_out,
                            const struct channel_options *options,
                            const struct channel_handlers *handlers, void *context, struct err *err)
{
    struct channel *channel = mem_zero(sizeof *channel);
    channel->loop = loop;
    channel->options = *options;
    channel->handlers = *handlers;
    channel->context = context;
    channel->fd_in = fd_in;
    channel->fd_out = fd_out;
    channel->id_next = (uint32_t)-1;
    snprintf(channel->name, sizeof channel->name, "%s", options->id ? options->id : "");
    channel->options.id = channel->name;
    list_init(&channel->flows);
    list_init(&channel->early);
    if (start(channel, err) < 0) {
        stop_io(channel);
        channel_free(channel);
        return NULL;
    }
    loop_timer_start(loop, &channel->hello_timer,
                     options->hello_ms_max ? options->hello_ms_max : HELLO_MS_MAX, on_hello_due,
                     channel);
    struct wire_hello hello = {.version = WIRE_VERSION, .window = WIRE_WINDOW};
    if (options->inlet) {
        hello.features |= WIRE_FEATURE_INLET;
        hello.inlet_port = options->inlet_port ? options->inlet_port : SANDBOX_INLET_PORT;
    }
    if (options->resolver)
        hello.features |= WIRE_FEATURE_RESOLVER;
    if (options->resume)
        hello.features |= WIRE_FEATURE_RESUME;
    wire_hello_add(&channel->queue, &hello);
    channel_flush(channel);
    return channel;
}

void channel_close(struct channel *channel)
{
    if (!channel || channel->closed)
        return;
    channel->closed = true;
    stop_io(channel);
    while (!list_empty(&channel->flows)) {
        struct flow *flow = LIST_OF(channel->flows.next, struct flow, node);
        flow_leave(flow);
        flow->class->on_abandoned(flow);
    }
    LIST_EACH (at, &channel->early) {
        LIST_OF(at, struct flow, node)->silenced = true;
        list_remove(at);
    }
    defer(channel);
}

size_t channel_kept(const struct channel *channel, const struct wire_kept **kept)
{
    *kept = channel->kept;
    return channel->kept_count;
}

bool channel_is_ready(const struct channel *channel)
{
    return channel->ready && channel_usable(channel);
}
