/* bench_upstream.c - a model server that costs next to nothing: the same answer for everybody.
 *
 *     bench_upstream           prints its port, then serves until it is killed
 *
 *     POST /control?chunks=0                      whole answers of 1 KB (the beginning)
 *     POST /control?chunks=200&pace_ms=0          streams of 200 chunks as fast as they go
 *     POST /control?chunks=200&pace_ms=20         one chunk every 20 ms
 *     ...&prompt_ids=1                            with ids of the prompt: one for 4 bytes of body
 *     ...&plain=1                                 four letters of text a token, and no time
 *
 * A chunk is an event of 320 bytes with one token, its id and its log-probability, as vLLM sends
 * it; its text is the monotonic time in microseconds, by which a reader tells how long it
 * was under way. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"
#include "http/http.h"
#include "loop/loop.h"

#define CHUNK_BYTES 320
#define QUEUED_MAX (64u << 10)

static struct loop *loop;
static long chunks, pace_ms, prompt_ids, plain;
static char whole[2048];

struct stream {
    struct http_exchange *exchange;
    struct loop_timer timer;
    long left;
    size_t body_bytes;
    bool begun, waiting, gone;
};

static void stream_go_on(void *argument);

static void on_timer(struct loop_timer *timer)
{
    stream_go_on(timer->context);
}

static void on_drain(void *context)
{
    struct stream *stream = context;
    if (!stream->waiting)
        return;
    stream->waiting = false;
    loop_defer(loop, stream_go_on, stream);
}

static void on_gone(void *context)
{
    struct stream *stream = context;
    stream->gone = true;
    if (stream->timer.loop || stream->waiting) {
        loop_timer_stop(&stream->timer);
        free(stream);
    }
}

static void write_chunk(struct stream *stream, struct buf *out)
{
    long id = 1000 + stream->left * 7919 % 50000;
    char text[24] = " abc";
    if (!plain)
        snprintf(text, sizeof text, "%016llu", (unsigned long long)clock_mono_ns() / 1000);
    size_t start = out->size;
    buf_format(out,
               "data: {\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":"
               "1700000000,\"model\":\"bench\",\"choices\":[{\"index\":0,\"delta\":{\"content\":"
               "\"%s\"},\"logprobs\":{\"content\":[{\"token\":\"token_id:%ld\",\"logprob\":"
               "-0.%06ld,\"bytes\":null,\"top_logprobs\":[]}]},\"finish_reason\":null,"
               "\"token_ids\":[%ld]}]",
               text, id, 100000 + id * 13 % 800000, id);
    while (out->size - start < CHUNK_BYTES - 3)
        buf_byte(out, ' ');
    buf_str_append(out, STR("}\n\n"));
}

static void write_first(const struct stream *stream, struct buf *out)
{
    buf_str_append(out, STR("data: {\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\","
                            "\"created\":1700000000,\"model\":\"bench\",\"choices\":[{\"index\":0,"
                            "\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]"));
    if (prompt_ids) {
        buf_str_append(out, STR(",\"prompt_token_ids\":[1"));
        for (size_t i = 1; i < stream->body_bytes / 4; i++)
            buf_format(out, ",%zu", i * 7919 % 50000);
        buf_byte(out, ']');
    }
    buf_str_append(out, STR("}\n\n"));
}

static void write_last(struct stream *stream, struct buf *out)
{
    buf_format(out,
               "data: {\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":"
               "1700000000,\"model\":\"bench\",\"choices\":[{\"index\":0,\"delta\":{},"
               "\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":%zu,"
               "\"completion_tokens\":%ld,\"total_tokens\":%zu}}\n\ndata: [DONE]\n\n",
               stream->body_bytes / 4, chunks, stream->body_bytes / 4 + (size_t)chunks);
}

/* One chunk a time, so that all streams come forward together. */
static void stream_go_on(void *argument)
{
    struct stream *stream = argument;
    static struct buf out;
    if (stream->gone) {
        free(stream);
        return;
    }
    buf_clear(&out);
    if (!stream->begun)
        write_first(stream, &out);
    stream->begun = true;
    if (stream->left > 0)
        write_chunk(stream, &out);
    if (stream->left-- <= 0) {
        write_last(stream, &out);
        http_respond_write(stream->exchange, buf_str(&out));
        http_respond_end(stream->exchange);
        free(stream);
        return;
    }
    if (http_respond_write(stream->exchange, buf_str(&out)) > QUEUED_MAX)
        stream->waiting = true;
    else if (pace_ms)
        loop_timer_start(loop, &stream->timer, (uint64_t)pace_ms, on_timer, stream);
    else
        loop_defer(loop, stream_go_on, stream);
}

static void on_body(void *context, struct http_exchange *exchange, struct str body,
                    const struct err *err)
{
    (void)context;
    if (err && err->kind != ERR_NONE)
        return;
    if (!chunks) {
        http_respond_json(exchange, 200, str_of(whole));
        return;
    }
    struct http_header header = {STR("content-type"), STR("text/event-stream")};
    struct stream *stream = mem_zero(sizeof *stream);
    stream->exchange = exchange;
    stream->left = chunks;
    stream->body_bytes = body.size;
    http_exchange_notify(exchange, QUEUED_MAX / 2, on_drain, on_gone, stream);
    http_respond_begin(exchange, 200, &header, 1);
    loop_defer(loop, stream_go_on, stream);
}

static long number(struct str query, const char *name)
{
    OWN(buf) struct buf value = {0};
    return http_query_get(query, name, &value) ? atol(buf_text(&value)) : 0;
}

static void on_request(void *context, struct http_exchange *exchange)
{
    (void)context;
    if (!str_is(http_exchange_path(exchange), "/control")) {
        http_exchange_collect(exchange, 0, on_body, NULL);
        return;
    }
    struct str query = http_exchange_query(exchange);
    chunks = number(query, "chunks");
    pace_ms = number(query, "pace_ms");
    prompt_ids = number(query, "prompt_ids");
    plain = number(query, "plain");
    http_respond_json(exchange, 200, STR("{}"));
}

int main(void)
{
    struct err err = {0};
    uint16_t port = 0;
    char text[701];
    memset(text, 'a', sizeof text - 1);
    text[sizeof text - 1] = 0;
    snprintf(whole, sizeof whole,
             "{\"id\":\"chatcmpl-1\",\"object\":\"chat.completion\",\"created\":1700000000,"
             "\"model\":\"bench\",\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\","
             "\"content\":\"%s\"},\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":7500,"
             "\"completion_tokens\":175,\"total_tokens\":7675}}",
             text);
    struct http_server_options options = {.connections_max = 20000, .on_request = on_request};
    loop = loop_new(&err);
    CHECK(loop);
    struct http_server *server = http_server_new(loop, &options);
    if (http_server_listen_tcp(server, "127.0.0.1", 0, &port, &err) < 0) {
        fprintf(stderr, "bench_upstream: %s\n", err.text);
        return 1;
    }
    printf("%u\n", port);
    fflush(stdout);
    loop_run(loop);
}
