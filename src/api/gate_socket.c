/* gate_socket.c - the gate over one WebSocket: the same objects, many calls in flight.
 *
 *     {"id": 1, "op": "take", "max": 8, "wait_ms": 30000}  ->  {"id": 1, "calls": [...]}
 *     {"id": 2, "op": "answer", "call_id": "c-...", "lease": "...", "answer": {...}}
 *     {"op": "chunk", "call_id": ..., "chunk": {...}}      silent unless it is wrong
 *     {"id": 3, "op": "end", "call_id": ...}               the stream is complete
 *     {"id": 4, "op": "extend" | "release" | "fail", "call_id": ..., ...}
 *
 * Every operation but a good chunk is answered with its id: {"id", "status"} or {"id", "error"}. A
 * call whose agent left while it was streamed is told once: {"event": "gone", "call_id"}. When the
 * socket closes, its takes are cancelled, its streams are lost, and what it had leased goes back to
 * the queue at once: a trainer that died delays nobody until its leases run out. While it has much
 * to read still, its takes rest: calls are for those who listen. */
#include <stdlib.h>
#include <string.h>

#include "api/inner.h"
#include "base/err.h"
#include "base/list.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/rope.h"
#include "gateway/gate.h"
#include "http/http.h"
#include "loop/loop.h"

#define NAME_BYTES_MAX 128
#define TAKES_MAX 64
#define ID_BYTES_MAX 1024
#define LEASES_MIN 1024 /* so many may be of calls that are gone */
#define QUEUE_HIGH ((size_t)8 << 20)
#define STREAM_HIGH ((size_t)4 << 20) /* of one stream: then the socket is not read for a while */
#define SLOW_MS_MAX 10000             /* and that long: others wait behind it */
#define GOING_AWAY 1001

struct socket {
    struct list link; /* in api->sockets */
    struct api *api;
    struct http_websocket *wire;
    struct list takes;
    size_t take_count;
    struct map leases;      /* call id -> its lease, on the heap */
    size_t leases_max;      /* then those of calls that are gone are forgotten */
    struct map streams;     /* call id -> struct stream */
    size_t full;            /* streams over their mark */
    struct loop_timer slow; /* while there are any */
    bool queue_full;
};

struct take {
    struct list link;
    struct socket *socket;
    struct gate_taker *taker; /* NULL: it rests */
    struct gate_take order;   /* its texts are our own */
    uint64_t until_ms;        /* loop time */
    struct buf id;            /* raw JSON */
    bool raw;
};

struct stream {
    struct socket *socket;
    struct gate_stream *gate;
    char *call_id;
    bool full, finished;
    uint64_t full_since_ms;
};

/* ---------------------------------------------------------------- talking */

static void flow(struct socket *socket)
{
    if (socket->full || socket->queue_full)
        http_websocket_pause(socket->wire);
    else
        http_websocket_resume(socket->wire);
}

static void note_queue(struct socket *socket, size_t bytes)
{
    if (bytes > QUEUE_HIGH && !socket->queue_full) {
        socket->queue_full = true;
        flow(socket);
    }
}

static void say(struct socket *socket, const struct buf *text)
{
    note_queue(socket, http_websocket_send(socket->wire, buf_str(text)));
}

static void begin(struct json_writer *out, struct str id)
{
    json_begin_object(out);
    json_set_raw(out, "id", id.size ? id : STR("null"));
}

static void say_status(struct socket *socket, struct str id, const char *call_id,
                       const char *status)
{
    OWN(buf) struct buf text = {0};
    struct json_writer out = {.out = &text};
    begin(&out, id);
    json_set_text(&out, "call_id", call_id);
    json_set_text(&out, "status", status);
    json_end_object(&out);
    say(socket, &text);
}

static void say_error(struct socket *socket, struct str id, const char *call_id,
                      const struct err *err)
{
    OWN(buf) struct buf text = {0};
    struct json_writer out = {.out = &text};
    begin(&out, id);
    if (call_id)
        json_set_text(&out, "call_id", call_id);
    json_key(&out, "error");
    json_begin_object(&out);
    json_set_text(&out, "kind", err_meaning(err->kind)->name);
    if (err->field[0])
        json_set_text(&out, "field", err->field);
    json_set_int(&out, "status", err_meaning(err->kind)->http_status);
    json_set_text(&out, "message", err->text);
    json_end_object(&out);
    json_end_object(&out);
    say(socket, &text);
}

/* ---------------------------------------------------------------- takes */

static void take_free(struct take *take)
{
    list_remove(&take->link);
    take->socket->take_count--;
    buf_deinit(&take->id);
    free((char *)(uintptr_t)take->order.group_id);
    free((char *)(uintptr_t)take->order.rollout_id);
    free(take);
}

static void forget_lease(struct socket *socket, const char *call_id)
{
    free(map_remove(&socket->leases, str_of(call_id)));
}

/* Agents that left, answers of others: a trainer that says no word of a call need not. */
static void forget_gone(struct socket *socket)
{
    struct map kept = {0};
    struct str call_id;
    size_t at = 0;
    if (socket->leases.count < socket->leases_max)
        return;
    for (char *lease; (lease = map_next(&socket->leases, &at, &call_id));) {
        OWN(mem) char *id = str_dup(call_id);
        if (gate_holds(socket->api->gate, id))
            (void)map_put(&kept, call_id, lease);
        else
            free(lease);
    }
    map_deinit(&socket->leases);
    socket->leases = kept;
    socket->leases_max = 2 * kept.count > LEASES_MIN ? 2 * kept.count : LEASES_MIN;
}

static void on_calls(void *context, struct gate_work *const *calls, size_t count)
{
    struct take *take = context;
    struct socket *socket = take->socket;
    if (count && socket->queue_full) {
        take->taker = NULL;
        while (count)
            gate_put_back(calls[--count]);
        return;
    }
    forget_gone(socket);
    struct rope text = {0};
    struct json_writer out = {.out = &text.text, .rope = &text};
    begin(&out, buf_str(&take->id));
    api_write_calls(socket->api, calls, count, take->raw, &out);
    json_end_object(&out);
    for (size_t i = 0; i < count && gate_work_lease(calls[i])[0]; i++)
        free(map_put(&socket->leases, str_of(gate_work_call_id(calls[i])),
                     mem_dup(gate_work_lease(calls[i]))));
    note_queue(socket, http_websocket_send_rope(socket->wire, &text));
    take_free(take);
}

static int wait_for_calls(struct take *take, struct err *err)
{
    struct gate *gate = take->socket->api->gate;
    uint64_t now = loop_now_ms(gate_loop(gate));
    take->order.wait_ms = take->until_ms > now ? (uint32_t)(take->until_ms - now) : 0;
    take->taker = gate_take(gate, &take->order, on_calls, take, err);
    return take->taker ? 0 : -1;
}

/* There is room again for what they take. */
static void wake_takes(struct socket *socket)
{
    LIST_EACH (at, &socket->takes) {
        struct take *take = LIST_OF(at, struct take, link);
        struct err err = {0};
        if (take->taker || wait_for_calls(take, &err) == 0)
            continue;
        say_error(socket, buf_str(&take->id), NULL, &err);
        take_free(take);
    }
}

static int do_take(struct socket *socket, struct json object, struct arena *arena, struct err *err)
{
    struct gate_take order = {0};
    struct json id = {0};
    bool raw;
    if (socket->take_count >= TAKES_MAX)
        return err_set(err, ERR_CAPACITY, "%d takes are waiting on this socket", TAKES_MAX);
    if (api_read_take(object, arena, &order, &raw, &id, err) < 0)
        return -1;
    struct take *take = mem_zero(sizeof *take);
    take->socket = socket;
    take->raw = raw;
    take->order = order;
    take->order.group_id = mem_dup(order.group_id);
    take->order.rollout_id = mem_dup(order.rollout_id);
    take->until_ms = loop_now_ms(gate_loop(socket->api->gate)) + order.wait_ms;
    if (json_exists(id))
        buf_str_append(&take->id, json_raw(id));
    list_append(&socket->takes, &take->link);
    socket->take_count++;
    if (wait_for_calls(take, err) == 0)
        return 0;
    take_free(take);
    return -1;
}

/* ---------------------------------------------------------------- streams */

static void on_slow(struct loop_timer *timer);

static void watch_slow(struct socket *socket)
{
    if (!socket->full)
        loop_timer_stop(&socket->slow);
    else
        loop_timer_start(gate_loop(socket->api->gate), &socket->slow, SLOW_MS_MAX, on_slow, socket);
}

static void stream_full(struct stream *stream, bool full)
{
    struct socket *socket = stream->socket;
    if (stream->full == full)
        return;
    stream->full = full;
    stream->full_since_ms = loop_now_ms(gate_loop(socket->api->gate));
    socket->full += full ? 1 : (size_t)-1;
    if (!socket->full || (full && socket->full == 1)) /* the first or none: it runs on for others */
        watch_slow(socket);
    flow(socket);
}

static void stream_free(struct stream *stream)
{
    stream_full(stream, false);
    (void)map_remove(&stream->socket->streams, str_of(stream->call_id));
    free(stream->call_id);
    free(stream);
}

static void on_stream_drain(void *context)
{
    stream_full(context, false);
}

static void say_gone(struct stream *stream)
{
    OWN(buf) struct buf text = {0};
    struct json_writer out = {.out = &text};
    json_begin_object(&out);
    json_set_text(&out, "event", "gone");
    json_set_text(&out, "call_id", stream->call_id);
    json_end_object(&out);
    say(stream->socket, &text);
    forget_lease(stream->socket, stream->call_id);
}

static void on_stream_gone(void *context)
{
    struct stream *stream = context;
    say_gone(stream);
    gate_stream_end(stream->gate);
    stream_free(stream);
}

/* Everything else on this socket waits for agents that do not read: no longer. */
static void on_slow(struct loop_timer *timer)
{
    struct socket *socket = timer->context;
    uint64_t now = loop_now_ms(gate_loop(socket->api->gate));
    size_t at = 0;
    for (struct stream *stream; (stream = map_next(&socket->streams, &at, NULL));) {
        if (!stream->full || now - stream->full_since_ms < SLOW_MS_MAX)
            continue;
        say_gone(stream);
        gate_stream_give_up(stream->gate);
        stream_free(stream);
        at = 0; /* the map has changed */
    }
    watch_slow(socket);
}

static struct stream *stream_of(struct socket *socket, const struct api_change *change,
                                struct err *err)
{
    struct stream *stream = map_get(&socket->streams, str_of(change->call_id));
    if (stream)
        return stream;
    stream = mem_zero(sizeof *stream);
    stream->socket = socket;
    stream->call_id = mem_dup(change->call_id);
    stream->gate = gate_stream_open(socket->api->gate, change->call_id, change->lease,
                                    on_stream_drain, on_stream_gone, stream, err);
    if (!stream->gate) {
        free(stream->call_id);
        free(stream);
        return NULL;
    }
    (void)map_put(&socket->streams, str_of(change->call_id), stream);
    return stream;
}

static int do_chunk(struct socket *socket, const struct api_change *change, struct json chunk,
                    struct err *err)
{
    struct stream *stream = stream_of(socket, change, err);
    OWN(buf) struct buf event = {0};
    if (!stream)
        return -1;
    if (gate_read_chunk(json_raw(chunk), &event, &stream->finished, err) < 0) {
        gate_stream_refuse(stream->gate);
        stream_free(stream);
        return -1;
    }
    if (gate_stream_write(stream->gate, buf_str(&event)) > STREAM_HIGH)
        stream_full(stream, true);
    return 0;
}

static int do_end(struct socket *socket, const struct api_change *change, struct err *err)
{
    struct stream *stream = map_get(&socket->streams, str_of(change->call_id));
    if (!stream)
        return err_set(err, ERR_NOT_FOUND, "no stream of call '%.60s' is open on this socket",
                       change->call_id);
    bool finished = stream->finished;
    if (finished)
        gate_stream_end(stream->gate);
    else
        gate_stream_refuse(stream->gate);
    stream_free(stream);
    return finished ? 0 : err_set(err, ERR_INPUT, "the stream ended without a 'finish_reason'");
}

/* ---------------------------------------------------------------- operations */

static const struct {
    const char *op, *status, *value; /* value: the member that is needed */
    bool keeps;                      /* the call stays with this socket */
} operations[] = {
    {"answer", "answered", "answer", false}, {"chunk", NULL, "chunk", true},
    {"end", "answered", NULL, false},        {"extend", "leased", NULL, true},
    {"release", "released", NULL, false},    {"fail", "failed", NULL, false},
};

#define AT(member) offsetof(struct api_change, member)
static int operate(struct socket *socket, size_t at, struct json object, struct api_change *change,
                   struct arena *arena, struct err *err)
{
    struct api_field fields[12];
    const struct api_body *body = api_change_body(change->op);
    size_t count = body->count;
    memcpy(fields, body->fields, count * sizeof *fields);
    fields[count++] = (struct api_field){"id", API_VALUE, AT(id), 0, 0, false, NULL};
    fields[count++] = (struct api_field){"op", API_TEXT, AT(said), 0, NAME_BYTES_MAX, true, NULL};
    fields[count++] =
        (struct api_field){"call_id", API_TEXT, AT(call_id), 0, NAME_BYTES_MAX, true, NULL};
    if (operations[at].value)
        fields[count++] =
            (struct api_field){operations[at].value, API_VALUE, AT(value), 0, 0, true, NULL};
    if (api_read_object(object, fields, count, change, arena, err) < 0)
        return -1;
    struct json value = change->value;
    if (!change->lease) /* what this socket took is its own */
        change->lease = map_get(&socket->leases, str_of(change->call_id));
    if (strcmp(change->op, "answer") == 0)
        return gate_answer(socket->api->gate, change->call_id, change->lease, json_raw(value), err);
    if (strcmp(change->op, "chunk") == 0)
        return do_chunk(socket, change, value, err);
    if (strcmp(change->op, "end") == 0)
        return do_end(socket, change, err);
    return api_change_call(socket->api, change, err);
}

static void take_object(struct socket *socket, struct json object)
{
    OWN(arena) struct arena arena = {0};
    struct err err = {0};
    struct json id = json_get(object, "id"), op = json_get(object, "op");
    struct api_change change = {.status = 500};
    struct str raw_id = json_exists(id) ? json_raw(id) : STR_NONE;
    if (raw_id.size > ID_BYTES_MAX) {
        err_set(&err, ERR_INPUT, "'id' has more than %d bytes", ID_BYTES_MAX);
        say_error(socket, STR_NONE, NULL, &err);
        return;
    }
    if (json_is(op, "take")) {
        if (do_take(socket, object, &arena, &err) < 0)
            say_error(socket, raw_id, NULL, &err);
        return;
    }
    for (size_t i = 0; i < COUNT(operations); i++) {
        if (!json_is(op, operations[i].op))
            continue;
        change.op = operations[i].op;
        if (operate(socket, i, object, &change, &arena, &err) < 0) {
            if (err.kind == ERR_NOT_FOUND && change.call_id)
                forget_lease(socket, change.call_id);
            say_error(socket, raw_id, change.call_id, &err);
            return;
        }
        if (operations[i].status)
            say_status(socket, raw_id, change.call_id, operations[i].status);
        if (!operations[i].keeps)
            forget_lease(socket, change.call_id);
        return;
    }
    err_set(&err, ERR_INPUT, "'op' is none of take, answer, chunk, end, extend, release, fail");
    say_error(socket, raw_id, NULL, &err);
}

static void on_message(void *context, bool text, struct str data)
{
    struct socket *socket = context;
    OWN(json_doc) struct json_doc doc = {0};
    struct json_limits limits = {.depth_max = 64, .nodes_max = 8u << 20};
    struct err err = {0};
    if (!text) {
        err_set(&err, ERR_INPUT, "a binary message: objects are JSON texts");
        say_error(socket, STR_NONE, NULL, &err);
        return;
    }
    if (json_read(&doc, data, &limits, &err) < 0) {
        err.kind = ERR_INPUT;
        say_error(socket, STR_NONE, NULL, &err);
        return;
    }
    take_object(socket, json_root(&doc));
}

static void on_drain(void *context)
{
    struct socket *socket = context;
    socket->queue_full = false;
    flow(socket);
    wake_takes(socket);
}

/* ---------------------------------------------------------------- the end */

static void let_go(struct socket *socket)
{
    LIST_EACH (at, &socket->takes) {
        struct take *take = LIST_OF(at, struct take, link);
        if (take->taker)
            gate_taker_cancel(take->taker);
        take_free(take);
    }
    size_t at = 0;
    loop_timer_stop(&socket->slow);
    for (struct stream *stream; (stream = map_next(&socket->streams, &at, NULL)); at = 0) {
        (void)map_remove(&socket->streams, str_of(stream->call_id));
        gate_stream_lost(stream->gate);
        free(stream->call_id);
        free(stream);
    }
    struct str call_id;
    at = 0;
    for (char *lease; (lease = map_next(&socket->leases, &at, &call_id));) {
        OWN(mem) char *id = str_dup(call_id);
        (void)gate_release(socket->api->gate, id, lease, NULL); /* when it is still ours */
        free(lease);
    }
    map_deinit(&socket->streams);
    map_deinit(&socket->leases);
    list_remove(&socket->link);
    free(socket);
}

static void on_closed(void *context, int code)
{
    (void)code;
    let_go(context);
}

void api_answer_socket(struct api *api, struct http_exchange *exchange, struct str name)
{
    (void)name;
    struct err err = {0};
    struct socket *socket = mem_zero(sizeof *socket);
    struct http_websocket_options options = {
        .message_bytes_max = API_ANSWER_BYTES_MAX,
        .drain_bytes = QUEUE_HIGH / 2,
        .on_message = on_message,
        .on_drain = on_drain,
        .on_closed = on_closed,
        .context = socket,
    };
    socket->api = api;
    socket->leases_max = LEASES_MIN;
    list_init(&socket->takes);
    if (!api->gate)
        err_set(&err, ERR_UNSUPPORTED, "this server has no gate");
    else
        socket->wire = http_websocket_accept(exchange, &options, &err);
    if (!socket->wire) {
        free(socket);
        api_answer_error(exchange, &err);
        return;
    }
    list_append(&api->sockets, &socket->link);
}

void api_gate_sockets_close(struct api *api)
{
    LIST_EACH (at, &api->sockets) {
        struct socket *socket = LIST_OF(at, struct socket, link);
        http_websocket_close(socket->wire, GOING_AWAY, "the server is stopping");
        let_go(socket);
    }
}
