/* stream.c - one number on the wire inside the porter.
 *
 *     host DATA ──► in_credit ──► queue ──► sink      (a command's stdin, a file's content, an
 * inlet socket) sources[0..1] ──► out_credit ──► host DATA      (stdout, stderr, a file's content,
 * an inlet socket)
 *
 * A source is read only while the host has granted credit and the frames queue has room; otherwise
 * its descriptor is not even watched, the pipe fills, and the command blocks. The queue of a sink
 * is never larger than the window the host was given, and credit is given back when bytes left the
 * queue. */
#include "porter.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/err.h"
#include "base/mem.h"

/* ---------------------------------------------------------------- ring */
static void ring_put(struct ring *ring, struct str data)
{
    if (!ring->data) {
        ring->capacity = WIRE_WINDOW;
        ring->data = mem_alloc(ring->capacity);
    }
    size_t at = (ring->start + ring->size) % ring->capacity;
    size_t first = ring->capacity - at < data.size ? ring->capacity - at : data.size;
    memcpy(ring->data + at, data.data, first);
    memcpy(ring->data, data.data + first, data.size - first);
    ring->size += data.size;
}

static int ring_parts(const struct ring *ring, struct iovec parts[2])
{
    size_t first =
        ring->capacity - ring->start < ring->size ? ring->capacity - ring->start : ring->size;
    parts[0] = (struct iovec){.iov_base = ring->data + ring->start, .iov_len = first};
    parts[1] = (struct iovec){.iov_base = ring->data, .iov_len = ring->size - first};
    return parts[1].iov_len ? 2 : 1;
}

static void ring_drop(struct ring *ring, size_t size)
{
    size_t first = ring->capacity - ring->start < size ? ring->capacity - ring->start : size;
    explicit_bzero(ring->data + ring->start, first);
    explicit_bzero(ring->data, size - first);
    ring->start = (ring->start + size) % ring->capacity;
    ring->size -= size;
    if (!ring->size)
        ring->start = 0;
}

void ring_free(struct ring *ring)
{
    if (ring->size)
        ring_drop(ring, ring->size);
    free(ring->data);
    *ring = (struct ring){0};
}

/* ---------------------------------------------------------------- sink */
static void give_back(struct stream *stream, size_t size)
{
    if (stream->keep && !stream->attached) {
        stream->in_credit.consumed += (uint32_t)size; /* granted when a host attaches */
        return;
    }
    uint32_t grant = wire_credit_consumed(&stream->in_credit, (uint32_t)size);
    if (grant)
        wire_credit_add(&stream->porter->out_queue, stream->id, grant);
}

static void sink_close(struct stream *stream)
{
    if (stream->queue.size) {
        size_t size = stream->queue.size;
        ring_drop(&stream->queue, size);
        give_back(stream, size);
    }
    if (stream->kind == STREAM_INLET && stream->sink.fd >= 0) {
        (void)shutdown(stream->sink.fd, SHUT_WR);
        watch_set(&stream->sink, 0);
        close(stream->sink.fd); /* a duplicate: the source keeps the connection */
        stream->sink.fd = -1;
        return;
    }
    if (stream->pty && stream->sink.fd >= 0) {
        /* The terminal stays; its end of input is a character. */
        static const char end_of_file = 4;
        (void)!write(stream->sink.fd, &end_of_file, 1);
    }
    watch_close(&stream->sink);
}

static void sink_write(struct stream *stream)
{
    while (stream->queue.size && stream->sink.fd >= 0) {
        struct iovec parts[2];
        int count = ring_parts(&stream->queue, parts);
        ssize_t size = writev(stream->sink.fd, parts, count);
        if (size < 0 && errno == EINTR)
            continue;
        if (size < 0 && errno == EAGAIN)
            break;
        if (size <
            0) { /* nobody reads any more: the rest is dropped, the host is not kept waiting */
            sink_close(stream);
            return;
        }
        ring_drop(&stream->queue, (size_t)size);
        give_back(stream, (size_t)size);
    }
    if (!stream->queue.size && stream->sink_ended && stream->sink.fd >= 0)
        sink_close(stream);
}

static void sink_ready(struct watch *watch, uint32_t events)
{
    struct stream *stream = LIST_OF(watch, struct stream, sink);
    if (events & EPOLLERR && !(events & EPOLLOUT))
        sink_close(stream);
    else
        sink_write(stream);
    stream_update(stream);
    if (stream->kind == STREAM_INLET)
        inlet_check(stream);
}

int stream_data(struct stream *stream, struct str data, struct err *err)
{
    if (stream->sink_ended)
        return err_set(err, ERR_PROTOCOL, "data after the end of stream %u", stream->id);
    if (!wire_credit_received(&stream->in_credit, (uint32_t)data.size))
        return err_set(err, ERR_PROTOCOL, "data beyond the credit of stream %u", stream->id);
    stream->input_total += data.size;
    if (stream->sink.fd < 0) {
        give_back(stream, data.size);
        return 0;
    }
    if (!stream->queue.size) { /* the common case needs no copy */
        ssize_t size = write(stream->sink.fd, data.data, data.size);
        if (size > 0) {
            give_back(stream, (size_t)size);
            data = str_from(data, (size_t)size);
        }
    }
    if (data.size) {
        ring_put(&stream->queue, data);
        sink_write(stream);
    }
    stream_update(stream);
    return 0;
}

void stream_end(struct stream *stream)
{
    stream->sink_ended = true;
    sink_write(stream);
    stream_update(stream);
    if (stream->kind == STREAM_INLET)
        inlet_check(stream);
}

/* ---------------------------------------------------------------- sources */
static bool dropping(const struct stream *stream)
{
    return stream->output_bytes_max && stream->output_bytes >= stream->output_bytes_max;
}

/* How much may be read now; 0: wait. */
static size_t room(const struct stream *stream)
{
    size_t size = WIRE_PAYLOAD_MAX;
    if (dropping(stream))
        return size;
    bool heard = !stream->keep || stream->attached;
    if (heard && stream->porter->out_queue.size >= OUT_BYTES_MAX) {
        stream->porter->congested = true; /* asked again when frames have been written */
        return 0;
    }
    if (size > stream->out_credit.available)
        size = stream->out_credit.available;
    if (stream->output_bytes_max && size > stream->output_bytes_max - stream->output_bytes)
        size = (size_t)(stream->output_bytes_max - stream->output_bytes);
    return size;
}

static void source_ended(struct stream *stream, struct watch *source)
{
    watch_close(source);
    if (stream->kind != STREAM_INLET)
        return;
    stream->source_ended = true;
    wire_frame_add(&stream->porter->out_queue, stream->id, WIRE_END, 0, STR_NONE);
}

/* One read. Returns false when there is nothing more for now. */
static bool source_read(struct stream *stream, int index)
{
    static char dropped[WIRE_PAYLOAD_MAX]; /* or copied from there */
    struct watch *source = &stream->sources[index];
    struct buf *out = &stream->porter->out_queue;
    size_t size = room(stream);
    if (source->fd < 0 || !size)
        return false;
    bool drop = dropping(stream);
    char *at = drop || stream->keep ? dropped : wire_frame_open(out, size);
    ssize_t got = read(source->fd, at, size);
    if (got < 0 && errno == EINTR)
        return true;
    if (got < 0 && errno == EAGAIN && !stream->over)
        return false;
    if (got < 0 && errno == ECONNRESET && stream->kind == STREAM_INLET) {
        inlet_reset(stream, true);
        return false;
    }
    if (got <= 0) {
        source_ended(stream, source);
        return false;
    }
    if (drop) {
        stream->output_bytes_dropped += (uint64_t)got;
        return true;
    }
    stream->output_bytes += (uint64_t)got;
    wire_credit_sent(&stream->out_credit, (uint32_t)got);
    uint8_t channel = stream->kind == STREAM_JOB ? (uint8_t)(WIRE_CHANNEL_OUT + index) : 0;
    if (stream->keep)
        kept_output(stream, channel, str_make(at, (size_t)got));
    else
        wire_frame_close(out, stream->id, WIRE_DATA, channel, (size_t)got);
    return true;
}

static void source_ready(struct stream *stream, int index)
{
    source_read(stream, index);
    if (stream->freed)
        return;
    stream_update(stream);
    if (stream->kind == STREAM_INLET)
        inlet_check(stream);
    else
        job_check(stream);
}

static void source_ready_0(struct watch *watch, uint32_t events)
{
    (void)events;
    source_ready(LIST_OF(watch, struct stream, sources[0]), 0);
}

static void source_ready_1(struct watch *watch, uint32_t events)
{
    (void)events;
    source_ready(LIST_OF(watch, struct stream, sources[1]), 1);
}

void stream_pump(struct stream *stream)
{
    for (int index = 0; index < 2; index++)
        while (source_read(stream, index) && !stream->freed)
            ;
    if (!stream->freed)
        stream_update(stream);
}

bool stream_drained(const struct stream *stream)
{
    return stream->sources[0].fd < 0 && stream->sources[1].fd < 0;
}

/* ---------------------------------------------------------------- life */
void stream_update(struct stream *stream)
{
    if (stream->freed)
        return;
    bool readable = room(stream) > 0;
    for (int i = 0; i < 2; i++)
        if (stream->sources[i].fd >= 0)
            watch_set(&stream->sources[i], readable ? EPOLLIN : 0);
    if (stream->sink.fd >= 0)
        watch_set(&stream->sink, stream->queue.size ? EPOLLOUT : 0);
}

struct stream *stream_find(struct porter *porter, uint32_t id)
{
    struct stream *stream = porter->buckets[id / 2 % COUNT(porter->buckets)];
    while (stream && stream->id != id)
        stream = stream->hash_next;
    return stream;
}

struct stream *stream_new(struct porter *porter, uint32_t id, enum stream_kind kind)
{
    struct stream *stream = mem_zero(sizeof *stream);
    stream->porter = porter;
    stream->id = id;
    stream->kind = kind;
    stream->sink = (struct watch){.ready = sink_ready, .porter = porter, .fd = -1};
    stream->sources[0] = (struct watch){.ready = source_ready_0, .porter = porter, .fd = -1};
    stream->sources[1] = (struct watch){.ready = source_ready_1, .porter = porter, .fd = -1};
    wire_credit_init(&stream->in_credit, WIRE_WINDOW);
    wire_credit_init(&stream->out_credit, porter->window_out);
    struct stream **bucket = &porter->buckets[id / 2 % COUNT(porter->buckets)];
    stream->hash_next = *bucket;
    *bucket = stream;
    list_append(&porter->streams, &stream->node);
    porter->stream_count++;
    return stream;
}

void stream_free(struct stream *stream)
{
    if (stream->freed)
        return;
    stream->freed = true;
    struct porter *porter = stream->porter;
    struct stream **at = &porter->buckets[stream->id / 2 % COUNT(porter->buckets)];
    while (*at != stream)
        at = &(*at)->hash_next;
    *at = stream->hash_next;
    list_remove(&stream->node);
    list_append(&porter->freed, &stream->node);
    porter->stream_count--;
    watch_close(&stream->sink);
    watch_close(&stream->sources[0]);
    watch_close(&stream->sources[1]);
    ring_free(&stream->queue);
    buf_deinit(&stream->unseen);
    if (stream->child)
        stream->child->stream = NULL;
}

void stream_set_sink(struct stream *stream, int fd)
{
    stream->sink.fd = fd;
}

void stream_set_source(struct stream *stream, int index, int fd)
{
    stream->sources[index].fd = fd;
}
