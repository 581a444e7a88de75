/* kept.c - commands that outlive the connection they were started on.
 *
 *     host dies ──► detached: what was not to be kept ends; what was reads on into `unseen`
 *     keeper hands over a new connection ──► HELLO, KEPT ──► ATTACH ──► unseen again, then live
 *
 * A kept command's output stays here until a host has given credit for it, which a host does when
 * it has seen to it: at most one window of it, since no more is read without credit. So nothing is
 * lost, whatever was on its way when the host died; a command that writes more while nobody is
 * there waits. Its end stays here, too: each host that attaches is told. Only when there are as
 * many as may be, the oldest whose end was told to the host that now wants another makes room. */
#include "porter.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"

#define RECORD_HEAD 5u

bool kept_begin(struct stream *stream)
{
    struct porter *porter = stream->porter;
    struct stream *told = NULL;
    size_t count = 0;
    LIST_EACH (at, &porter->streams) {
        struct stream *other = LIST_OF(at, struct stream, node);
        count += other->keep;
        if (!told && other->keep && other->attached && other->exit_sent)
            told = other;
    }
    if ((count >= WIRE_KEPT_MAX && !told) || porter->control.fd < 0)
        return false;
    if (count >= WIRE_KEPT_MAX)
        stream_free(told);
    stream->keep = stream->attached = true;
    stream->number = porter->kept_total++;
    wire_credit_init(&stream->out_credit, WIRE_WINDOW);
    return true;
}

void kept_output(struct stream *stream, uint8_t channel, struct str data)
{
    uint32_t size = (uint32_t)data.size;
    buf_byte(&stream->unseen, (char)channel);
    buf_append(&stream->unseen, &size, sizeof size);
    buf_str_append(&stream->unseen, data);
    stream->unseen_bytes += data.size;
    stream->output_total += data.size;
    if (stream->attached)
        wire_frame_add(&stream->porter->out_queue, stream->id, WIRE_DATA, channel, data);
}

/* The first record: what is left of it. */
static struct str first(const struct stream *stream, uint8_t *channel)
{
    uint32_t size;
    *channel = (uint8_t)stream->unseen.data[0];
    memcpy(&size, stream->unseen.data + 1, sizeof size);
    return str_from(str_make(stream->unseen.data + RECORD_HEAD, size), stream->unseen_skip);
}

static void drop(struct stream *stream, size_t size)
{
    stream->unseen_bytes -= size;
    while (size) {
        uint8_t channel;
        struct str left = first(stream, &channel);
        if (left.size > size) {
            stream->unseen_skip += size;
            return;
        }
        size -= left.size;
        buf_consume(&stream->unseen, RECORD_HEAD + stream->unseen_skip + left.size);
        stream->unseen_skip = 0;
    }
    if (!stream->unseen.size)
        buf_deinit(&stream->unseen);
}

bool kept_credit(struct stream *stream, uint32_t size)
{
    if (!stream->attached || size > stream->unseen_bytes)
        return false;
    drop(stream, size);
    return true;
}

int kept_attach(struct stream *stream, uint64_t position, struct err *err)
{
    struct buf *out = &stream->porter->out_queue;
    uint64_t from = stream->output_total - stream->unseen_bytes;
    if (!stream->keep || stream->attached || position < from || position > stream->output_total)
        return err_set(err, ERR_PROTOCOL, "stream %u cannot be attached to at %llu", stream->id,
                       (unsigned long long)position);
    drop(stream, (size_t)(position - from));
    stream->attached = true;
    wire_credit_init(&stream->out_credit, WIRE_WINDOW);
    wire_credit_sent(&stream->out_credit, (uint32_t)stream->unseen_bytes);
    size_t skip = stream->unseen_skip;
    for (size_t at = 0; at < stream->unseen.size;) {
        const char *record = stream->unseen.data + at;
        uint32_t size;
        memcpy(&size, record + 1, sizeof size);
        wire_frame_add(out, stream->id, WIRE_DATA, (uint8_t)record[0],
                       str_from(str_make(record + RECORD_HEAD, size), skip));
        at += RECORD_HEAD + size;
        skip = 0;
    }
    uint32_t grant = wire_credit_consumed(&stream->in_credit, 0);
    if (grant)
        wire_credit_add(out, stream->id, grant);
    if (stream->over)
        stream_pump(stream);
    stream_update(stream);
    job_check(stream);
    return 0;
}

void kept_list(struct porter *porter)
{
    struct wire_kept kept[WIRE_KEPT_MAX];
    size_t count = 0;
    LIST_EACH (at, &porter->streams) {
        struct stream *stream = LIST_OF(at, struct stream, node);
        if (!stream->keep)
            continue;
        uint32_t room = WIRE_WINDOW - (uint32_t)stream->queue.size;
        stream->in_credit = (struct wire_credit){.window = WIRE_WINDOW, .available = room};
        kept[count++] = (struct wire_kept){
            .stream = stream->id,
            .number = stream->number,
            .flags = (uint8_t)((stream->ended_us ? WIRE_KEPT_OVER : 0) |
                               (stream->sink_ended ? WIRE_KEPT_INPUT_ENDED : 0)),
            .from = stream->output_total - stream->unseen_bytes,
            .to = stream->output_total,
            .input = stream->input_total,
            .input_room = room,
        };
    }
    wire_kept_add(&porter->out_queue, kept, count);
}

void kept_detach(struct porter *porter)
{
    wire_decoder_deinit(&porter->decoder);
    porter->decoder = (struct wire_decoder){.wipe = true};
    porter->said_hello = false;
    porter->kill_all_silent = porter->kill_all_stream != 0;
    LIST_EACH (at, &porter->streams) {
        struct stream *stream = LIST_OF(at, struct stream, node);
        if (stream->kind == STREAM_INLET) {
            inlet_reset(stream, false);
        } else if (!stream->keep) {
            job_abandon(stream);
        } else {
            stream->attached = stream->exit_sent = false;
            stream_update(stream);
        }
    }
    buf_deinit(&porter->out_queue);
}
