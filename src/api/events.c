/* events.c - what happens, as it happens: server-sent events of a rollout, of a group, of all.
 *
 * Nobody can make the server remember more than it wants to:
 *
 *     one rollout     is read from its events.jsonl, as far as the reader keeps up. The id of an
 * event is where in the file it ends: it is good for ever, also after a restart group and all   are
 * read from the backlog, a ring of what happened lately with a limit in bytes. The id is its number
 * there, with the server's own mark before it
 *
 * A stream has a cursor and is written to while little is queued towards its reader; a reader that
 * is slow is left behind and goes on when it can. What the ring has dropped meanwhile is told with
 * an event "dropped". A rollout's and a group's stream end after "final" and "group_final"; whoever
 * asks to go on after that is told with a 204 that nothing follows, as event sources want it. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/inner.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/mem.h"
#include "http/http.h"
#include "loop/loop.h"
#include "store/store.h"

#define HIGH_BYTES ((size_t)256 << 10) /* queued towards a reader before it has to keep up */
#define LOW_BYTES ((size_t)64 << 10)
#define READ_BYTES ((size_t)64 << 10)
#define STREAMS_MAX 4096
#define LAST_ID "end" /* of "final": nothing follows */

struct event {
    uint64_t number;
    char rollout[ID_MAX], group[ID_MAX];
    const char *kind;
    char *data; /* heap */
    size_t size;
};

struct api_events {
    struct api *api;
    char mark[9];       /* of this server's numbers */
    struct event *ring; /* of `room`; `first` to `next` are in it */
    size_t room;
    uint64_t first, next; /* numbers, from 1 */
    size_t bytes, bytes_max;
    uint32_t keepalive_ms;
    struct list streams;
    size_t stream_count;
};

enum scope { SCOPE_ALL, SCOPE_GROUP, SCOPE_ROLLOUT };

struct stream {
    struct list link;
    struct api_events *events;
    struct http_exchange *exchange;
    enum scope scope;
    char id[ID_MAX * 2];
    char group[ID_MAX]; /* of the rollout */
    char *dir;          /* its folder */
    uint64_t cursor;    /* of the ring: the next number */
    int fd;             /* of the file; -1: not there yet */
    off_t offset;
    struct buf partial; /* a line that is not whole yet */
    bool over;          /* nothing more will come: end after what is there */
    bool blocked;       /* the reader is slow */
    struct loop_timer keepalive;
};

/* ---------------------------------------------------------------- the backlog */
struct api_events *api_events_new(struct api *api, size_t bytes_max, uint32_t keepalive_ms)
{
    struct api_events *events = mem_zero(sizeof *events);
    events->api = api;
    events->bytes_max = bytes_max ? bytes_max : (size_t)16 << 20;
    events->keepalive_ms = keepalive_ms ? keepalive_ms : 15000;
    /* An event takes at least about 128 bytes: the ring is never the narrower limit. */
    events->room = events->bytes_max / 128 + 16;
    events->ring = mem_zero(events->room * sizeof *events->ring);
    events->first = events->next = 1;
    id_random_hex(events->mark, 4);
    list_init(&events->streams);
    return events;
}

static struct event *event_at(struct api_events *events, uint64_t number)
{
    return &events->ring[number % events->room];
}

static void drop_first(struct api_events *events)
{
    struct event *event = event_at(events, events->first++);
    events->bytes -= event->size + sizeof *event;
    free(TAKE(event->data));
}

static void keep(struct api_events *events, const struct rollout_view *view, const char *kind,
                 struct buf *data)
{
    struct event *event;
    size_t size = data->size + sizeof *event;
    while (events->first < events->next && (events->bytes + size > events->bytes_max ||
                                            events->next - events->first >= events->room))
        drop_first(events);
    event = event_at(events, events->next);
    *event = (struct event){.number = events->next++, .kind = kind, .size = data->size};
    snprintf(event->rollout, sizeof event->rollout, "%s", view->id);
    snprintf(event->group, sizeof event->group, "%s", view->group);
    event->data = buf_take(data);
    events->bytes += size;
}

/* {"rollout", "group", ...}; what follows is put in by the caller. */
static void begin_data(struct json_writer *out, const char *rollout, const char *group)
{
    json_begin_object(out);
    json_set_text(out, "rollout", rollout);
    if (group[0])
        json_set_text(out, "group", group);
}

static void write_final(struct json_writer *out, uint64_t done_ms, const char *fate,
                        const char *stage, const char *reason, const char *cause, bool rewarded,
                        double reward)
{
    json_set_int(out, "at_ms", (long long)done_ms);
    json_set_text(out, "kind", "final");
    json_set_text(out, "fate", fate);
    json_set_text(out, "stage", stage);
    if (reason && reason[0])
        json_set_text(out, "reason", reason);
    if (cause && cause[0])
        json_set_text(out, "cause", cause);
    json_key(out, "reward");
    if (rewarded)
        json_put_double(out, reward);
    else
        json_put_null(out);
    json_end_object(out);
}

/* A line of events.jsonl, with whose it is before the rest. */
static void write_line(const char *rollout, const char *group, struct str line, struct buf *data)
{
    struct json_writer out = {.out = data};
    begin_data(&out, rollout, group);
    buf_byte(data, ',');
    buf_str_append(data, str_from(str_trim(line), 1));
}

/* ---------------------------------------------------------------- towards a reader */
static void stream_free(struct stream *stream)
{
    loop_timer_stop(&stream->keepalive);
    list_remove(&stream->link);
    stream->events->stream_count--;
    fd_close(&stream->fd);
    buf_deinit(&stream->partial);
    free(stream->dir);
    free(stream);
}

static void stream_end(struct stream *stream)
{
    http_respond_end(stream->exchange);
    stream_free(stream);
}

static void say(struct stream *stream, const char *id, const char *kind, struct str data)
{
    OWN(buf) struct buf text = {0};
    if (id)
        buf_format(&text, "id: %s\n", id);
    sse_write(&text, str_of(kind), data);
    if (http_respond_write(stream->exchange, buf_str(&text)) > HIGH_BYTES)
        stream->blocked = true;
}

static void say_numbered(struct stream *stream, uint64_t number, const char *kind, struct str data)
{
    char id[40];
    snprintf(id, sizeof id, "%s.%llu", stream->events->mark, (unsigned long long)number);
    say(stream, id, kind, data);
}

static void say_dropped(struct stream *stream, const char *id, uint64_t count, const char *why)
{
    OWN(buf) struct buf data = {0};
    struct json_writer out = {.out = &data};
    json_begin_object(&out);
    json_set_text(&out, "kind", "dropped");
    if (count)
        json_set_int(&out, "count", (long long)count);
    json_set_text(&out, "why", why);
    json_end_object(&out);
    say(stream, id, "dropped", buf_str(&data));
}

static void on_keepalive(struct loop_timer *timer)
{
    struct stream *stream = timer->context;
    if (!stream->blocked)
        (void)http_respond_write(stream->exchange, STR(": still here\n\n"));
    loop_timer_start(stream->events->api->loop, timer, stream->events->keepalive_ms, on_keepalive,
                     stream);
}

/* ---------------------------------------------------------------- from the backlog */
static bool concerns(const struct stream *stream, const struct event *event)
{
    return stream->scope == SCOPE_ALL || strcmp(stream->id, event->group) == 0;
}

/* Events of others may be among what was dropped: then it is not known how many were ours. */
static void skip_dropped(struct stream *stream)
{
    struct api_events *events = stream->events;
    if (stream->cursor >= events->first)
        return;
    char id[40];
    snprintf(id, sizeof id, "%s.%llu", events->mark, (unsigned long long)events->first - 1);
    say_dropped(stream, id, stream->scope == SCOPE_ALL ? events->first - stream->cursor : 0,
                "the backlog is bounded and the reader was too far behind");
    stream->cursor = events->first;
}

static void end_group(struct stream *stream)
{
    OWN(buf) struct buf data = {0};
    struct err err = {0};
    if (api_write_group(stream->events->api, stream->id, &data, &err) == 0)
        say(stream, LAST_ID, "group_final", buf_str(&data));
    stream_end(stream);
}

static void pump_ring(struct stream *stream)
{
    struct api_events *events = stream->events;
    skip_dropped(stream);
    while (!stream->blocked && stream->cursor < events->next) {
        const struct event *event = event_at(events, stream->cursor++);
        if (concerns(stream, event))
            say_numbered(stream, event->number, event->kind, str_make(event->data, event->size));
    }
    if (!stream->blocked && stream->over)
        end_group(stream);
}

/* ---------------------------------------------------------------- from the file */
/* Lines are our own: the kind stands behind the time, before anything an agent wrote. */
static struct str line_kind(struct str line)
{
    long at = str_find(line, STR("\"kind\":\""));
    if (at < 0)
        return STR("other");
    struct str rest = str_from(line, (size_t)at + 8);
    return str_cut(&rest, '"');
}

static void say_line(struct stream *stream, struct str line)
{
    OWN(buf) struct buf data = {0};
    char id[32], kind[64];
    snprintf(kind, sizeof kind, "%.*s", STR_ARGS(str_upto(line_kind(line), sizeof kind - 1)));
    stream->offset += (off_t)line.size;
    if (strcmp(kind, "result") == 0 || str_trim(line).size < 2)
        return; /* "final" says it, when everything is kept */
    snprintf(id, sizeof id, "%lld", (long long)stream->offset);
    write_line(stream->id, stream->group, line, &data);
    say(stream, id, kind, buf_str(&data));
}

struct final_row {
    struct stream *stream;
    struct buf data;
};

static bool write_final_row(void *context, const struct store_rollout *row)
{
    struct final_row *final = context;
    struct json_writer out = {.out = &final->data};
    begin_data(&out, row->id, row->group ? row->group : "");
    write_final(&out, row->done_ms, row->fate, row->stage, row->reason, row->error, row->has_reward,
                row->reward);
    return false;
}

static void end_rollout(struct stream *stream)
{
    struct api *api = stream->events->api;
    struct final_row final = {.stream = stream};
    if (store_get_rollout(api->store, stream->id, write_final_row, &final, NULL) == 0)
        say(stream, LAST_ID, "final", buf_str(&final.data));
    buf_deinit(&final.data);
    stream_end(stream);
}

static void pump_file(struct stream *stream)
{
    if (stream->fd < 0 && stream->dir) {
        OWN(mem) char *path = mem_format("%s/events.jsonl", stream->dir);
        stream->fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    }
    bool more = stream->fd >= 0;
    while (more && !stream->blocked) {
        char *room = buf_reserve(&stream->partial, READ_BYTES);
        off_t at = stream->offset + (off_t)stream->partial.size;
        ssize_t got = pread(stream->fd, room, READ_BYTES, at);
        if (got <= 0)
            break;
        buf_added(&stream->partial, (size_t)got);
        long end;
        while (!stream->blocked && (end = str_find_byte(buf_str(&stream->partial), '\n')) >= 0) {
            say_line(stream, str_upto(buf_str(&stream->partial), (size_t)end + 1));
            buf_consume(&stream->partial, (size_t)end + 1);
        }
    }
    if (stream->blocked)
        buf_deinit(&stream->partial); /* it is read again from where the cursor is */
    else if (stream->over)
        end_rollout(stream);
}

static void pump(struct stream *stream)
{
    if (stream->blocked)
        return;
    if (stream->scope == SCOPE_ROLLOUT)
        pump_file(stream);
    else
        pump_ring(stream);
}

/* ---------------------------------------------------------------- what the manager says */
static void write_event(const struct rollout_event *event, const char **kind, struct buf *data)
{
    const struct rollout_view *view = event->view;
    struct json_writer out = {.out = data};
    switch (event->kind) {
    case ROLLOUT_EVENT_LOG:
        *kind = event->log_kind;
        if (strcmp(*kind, "result") != 0)
            write_line(view->id, view->group, event->line, data);
        return;
    case ROLLOUT_EVENT_QUEUED:
        *kind = "stage";
        begin_data(&out, view->id, view->group);
        json_set_int(&out, "at_ms", (long long)view->queued_ms);
        json_set_text(&out, "kind", "stage");
        json_set_text(&out, "text", "queued");
        json_end_object(&out);
        return;
    case ROLLOUT_EVENT_FINAL:
        *kind = "final";
        begin_data(&out, view->id, view->group);
        write_final(&out, view->done_ms, trace_fate_name(view->fate), trace_stage_name(view->stage),
                    view->reason, view->error, view->rewarded, view->reward);
        return;
    case ROLLOUT_EVENT_STAGE:    /* a line of the log says it */
    case ROLLOUT_EVENT_ACTIVITY: /* likewise */
        return;
    }
}

void api_events_event(struct api_events *events, const struct rollout_event *event)
{
    const struct rollout_view *view = event->view;
    OWN(buf) struct buf data = {0};
    const char *kind = NULL;
    bool final = event->kind == ROLLOUT_EVENT_FINAL;
    write_event(event, &kind, &data);
    if (data.size)
        keep(events, view, kind, &data);
    bool group_over =
        final && view->group[0] && !rollouts_group_live(events->api->rollouts, view->group);
    LIST_EACH (at, &events->streams) {
        struct stream *stream = LIST_OF(at, struct stream, link);
        bool own = stream->scope == SCOPE_ROLLOUT && strcmp(stream->id, view->id) == 0;
        if (own && final)
            stream->over = true;
        if (stream->scope == SCOPE_GROUP && group_over && strcmp(stream->id, view->group) == 0)
            stream->over = true;
        if (own || stream->scope != SCOPE_ROLLOUT)
            pump(stream);
    }
}

/* ---------------------------------------------------------------- opening */
static void on_drain(void *context)
{
    struct stream *stream = context;
    stream->blocked = false;
    pump(stream);
}

static void on_gone(void *context)
{
    stream_free(context);
}

static bool keep_place(void *context, const struct store_rollout *row)
{
    struct stream *stream = context;
    snprintf(stream->id, sizeof stream->id, "%s", row->id);
    snprintf(stream->group, sizeof stream->group, "%s", row->group ? row->group : "");
    stream->dir = mem_dup(row->dir);
    stream->over = row->fate && row->fate[0];
    return false;
}

/* Where the rollout's events are, and whether more can come. */
static int find_rollout(struct stream *stream, const char *name, struct err *err)
{
    struct api *api = stream->events->api;
    struct rollout_view view;
    if (!api->rollouts || !rollouts_view(api->rollouts, name, &view))
        return store_get_rollout(api->store, name, keep_place, stream, err);
    snprintf(stream->id, sizeof stream->id, "%s", view.id);
    snprintf(stream->group, sizeof stream->group, "%s", view.group);
    stream->dir = mem_dup(view.dir);
    stream->over = view.final;
    return 0;
}

static int find_group(struct stream *stream, const char *name, struct err *err)
{
    struct api *api = stream->events->api;
    OWN(buf) struct buf group = {0};
    snprintf(stream->id, sizeof stream->id, "%s", name);
    if (api->rollouts && rollouts_group_live(api->rollouts, name))
        return 0;
    stream->over = true;
    return api_write_group(api, name, &group, err);
}

static int bad_place(struct err *err, const char *why)
{
    err_set(err, ERR_INPUT, "'after' is the id of an event of this stream: %s", why);
    return err_at(err, "after");
}

/* At the end of a line of the file, or from its beginning. */
static int set_offset(struct stream *stream, const char *after, struct err *err)
{
    long long offset = 0;
    char before;
    if (!after || !after[0])
        return 0;
    if (!str_to_long(str_of(after), &offset) || offset < 0)
        return bad_place(err, "it is a number");
    if (offset == 0)
        return 0;
    OWN(mem) char *path = mem_format("%s/events.jsonl", stream->dir ? stream->dir : "");
    OWN(fd) int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd >= 0 && (pread(fd, &before, 1, (off_t)offset - 1) != 1 || before != '\n'))
        return bad_place(err, "no event ends there");
    stream->offset = (off_t)offset;
    return 0;
}

/* Behind the event with that number; what another server numbered cannot be found again. */
static int set_cursor(struct stream *stream, const char *after, bool *unknown, struct err *err)
{
    struct api_events *events = stream->events;
    stream->cursor = stream->scope == SCOPE_ALL && !after ? events->next : events->first;
    if (!after || !after[0] || strcmp(after, "0") == 0)
        return 0;
    struct str rest = str_of(after);
    struct str mark = str_cut(&rest, '.');
    long long number;
    if (!rest.data || !str_to_long(rest, &number) || number < 0)
        return bad_place(err, "it is a mark, a dot and a number");
    if (!str_is(mark, events->mark) || (uint64_t)number >= events->next) {
        *unknown = true;
        return 0;
    }
    stream->cursor = (uint64_t)number + 1;
    return 0;
}

static const char *read_after(struct http_exchange *exchange, struct arena *arena, struct err *err)
{
    const char *after = NULL;
    if (api_read_text(exchange, "after", arena, &after, err) < 0)
        return NULL;
    struct str header = http_exchange_header(exchange, "last-event-id");
    if (!after && header.size && header.size < 64)
        after = arena_text(arena, str_trim(header));
    return after;
}

static void open_stream(struct api *api, struct http_exchange *exchange, enum scope scope,
                        const char *name)
{
    static const struct http_header headers[] = {
        {{"content-type", 12}, {"text/event-stream; charset=utf-8", 32}},
        {{"cache-control", 13}, {"no-store", 8}},
    };
    OWN(arena) struct arena arena = {0};
    struct api_events *events = api->events;
    struct err err = {0};
    bool unknown = false;
    const char *after = read_after(exchange, &arena, &err);
    struct stream *stream = mem_zero(sizeof *stream);
    stream->events = events;
    stream->exchange = exchange;
    stream->scope = scope;
    stream->fd = -1;
    events->stream_count++;
    list_append(&events->streams, &stream->link);
    bool ended = after && strcmp(after, LAST_ID) == 0;
    if (events->stream_count > STREAMS_MAX)
        err_set(&err, ERR_CAPACITY, "%d streams of events are open", STREAMS_MAX);
    else if (err.kind == ERR_NONE && scope == SCOPE_ROLLOUT &&
             find_rollout(stream, name, &err) == 0)
        (void)(ended ? 0 : set_offset(stream, after, &err));
    else if (err.kind == ERR_NONE && scope == SCOPE_GROUP && find_group(stream, name, &err) == 0)
        (void)(ended ? 0 : set_cursor(stream, after, &unknown, &err));
    else if (err.kind == ERR_NONE && scope == SCOPE_ALL)
        (void)set_cursor(stream, after, &unknown, &err);
    if (err.kind != ERR_NONE || ended) {
        stream_free(stream);
        if (err.kind != ERR_NONE)
            api_answer_error(exchange, &err);
        else
            http_respond(exchange, 204, NULL, 0, STR_NONE);
        return;
    }
    if (str_is(http_exchange_method(exchange), "HEAD")) { /* there would be one */
        stream_free(stream);
        http_respond(exchange, 200, headers, COUNT(headers), STR_NONE);
        return;
    }
    http_respond_begin(exchange, 200, headers, COUNT(headers));
    http_exchange_notify(exchange, LOW_BYTES, on_drain, on_gone, stream);
    loop_timer_start(api->loop, &stream->keepalive, events->keepalive_ms, on_keepalive, stream);
    (void)http_respond_write(exchange, STR(": events follow\n\n"));
    if (unknown)
        say_dropped(stream, NULL, 0,
                    "the id is of another server: this is the oldest that is kept");
    pump(stream);
}

void api_answer_events(struct api *api, struct http_exchange *exchange, struct str name)
{
    (void)name;
    open_stream(api, exchange, SCOPE_ALL, "");
}

void api_answer_rollout_events(struct api *api, struct http_exchange *exchange, struct str name)
{
    OWN(arena) struct arena arena = {0};
    const char *id = api_name(exchange, name, &arena);
    if (id)
        open_stream(api, exchange, SCOPE_ROLLOUT, id);
}

void api_answer_group_events(struct api *api, struct http_exchange *exchange, struct str name)
{
    OWN(arena) struct arena arena = {0};
    const char *id = api_name(exchange, name, &arena);
    if (id)
        open_stream(api, exchange, SCOPE_GROUP, id);
}

size_t api_events_streams(const struct api_events *events)
{
    return events->stream_count;
}

/* ---------------------------------------------------------------- closing */
void api_events_close(struct api_events *events)
{
    LIST_EACH (at, &events->streams)
        stream_end(LIST_OF(at, struct stream, link));
}

void api_events_free(struct api_events *events)
{
    if (!events)
        return;
    while (events->first < events->next)
        drop_first(events);
    free(events->ring);
    free(events);
}
