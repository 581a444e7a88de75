/* upstream.c - one attempt to get an answer: over HTTP, played from a script, or from the trainer.
 *
 * Towards a model server goes: the body, our key in the form its protocol wants, the rollout's id
 * for routers that keep a conversation in one place, and of the agent's headers only those that
 * mean something to a model server and hold no secret. The agent's own credentials, cookies and
 * hop-by-hop headers stay here. Towards the agent nothing of the model server's head goes but its
 * status and how long to wait. Which server, and when, is upstream_pool.c's to say. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/mem.h"
#include "gateway/inner.h"

#define HEADERS_MAX 16
#define ARENA_BYTES_MAX (1u << 20)
#define RETRY_AFTER_MS_MAX (24ll * 3600 * 1000)

struct upstream {
    /* What every piece of an answer touches. */
    struct upstream_handlers handlers;
    void *context;
    struct err trouble; /* found in the head: reported instead of the end */

    struct loop *loop;
    struct gateway *gateway;
    struct model *model;
    struct seat *seat;
    struct arena arena; /* what is kept of the request while it waits for a seat */
    const char *path;
    bool outside;
    const struct dialect *dialect;
    struct http_header headers[HEADERS_MAX];
    size_t header_count;
    struct str body;
    struct json_gap gap;
    struct http_call *call;
    struct play *play;
    struct hold *hold;
    bool closed, done;
    int status;
    int64_t retry_after_ms;
};

static const char *const passed_on[] = {
    "accept",
    "openai-beta",
    "anthropic-version",
    "anthropic-beta",
};

size_t upstream_headers(struct http_exchange *exchange, struct arena *arena,
                        const struct http_header **out)
{
    const struct http_header *all;
    size_t all_count = http_exchange_headers(exchange, &all), count = 0;
    struct http_header *kept = arena_alloc(arena, COUNT(passed_on) * sizeof *kept);
    *out = kept;
    for (size_t j = 0; kept && j < COUNT(passed_on); j++) {
        struct str name = str_of(passed_on[j]);
        for (size_t i = 0; i < all_count; i++) {
            if (!str_equal_nocase(all[i].name, name))
                continue;
            kept[count++] = (struct http_header){name, arena_str(arena, all[i].value)};
            break;
        }
    }
    return count;
}

/* RFC 9110 5.6.7, the form that is to be written: Sun, 06 Nov 1994 08:49:37 GMT. */
static bool read_date(struct str text, int64_t *wall_ms)
{
    char copy[40];
    struct tm parts = {0};
    if (text.size >= sizeof copy)
        return false;
    memcpy(copy, text.data, text.size);
    copy[text.size] = '\0';
    const char *end = strptime(copy, "%a, %d %b %Y %H:%M:%S GMT", &parts);
    if (!end || *end)
        return false;
    *wall_ms = (int64_t)timegm(&parts) * 1000;
    return true;
}

/* Milliseconds in retry-after-ms; seconds or a date in retry-after. */
static int64_t retry_after(const struct http_answer_head *head)
{
    double number;
    if (str_to_double(str_trim(http_answer_header(head, "retry-after-ms")), &number) && number >= 0)
        return number < RETRY_AFTER_MS_MAX ? (int64_t)number : RETRY_AFTER_MS_MAX;
    struct str text = str_trim(http_answer_header(head, "retry-after"));
    if (str_to_double(text, &number) && number >= 0)
        return number * 1000 < RETRY_AFTER_MS_MAX ? (int64_t)(number * 1000) : RETRY_AFTER_MS_MAX;
    int64_t date_ms;
    if (!text.size || !read_date(text, &date_ms))
        return -1;
    int64_t wait = date_ms - (int64_t)clock_wall_ms();
    return wait < 0 ? 0 : wait < RETRY_AFTER_MS_MAX ? wait : RETRY_AFTER_MS_MAX;
}

static void on_head(void *context, const struct http_answer_head *answer)
{
    struct upstream *upstream = context;
    struct str type = str_trim(http_answer_header(answer, "content-type"));
    type = str_trim(str_cut(&type, ';'));
    struct str encoding = str_trim(http_answer_header(answer, "content-encoding"));
    if (encoding.size && !str_equal_nocase(encoding, STR("identity")))
        err_set(&upstream->trouble, ERR_PROTOCOL,
                "the model server sent a compressed answer that was not asked for");
    struct upstream_head head = {
        .status = answer->status,
        .stream = str_equal_nocase(type, STR("text/event-stream")),
        .retry_after_ms = retry_after(answer),
    };
    upstream->status = head.status;
    upstream->retry_after_ms = head.retry_after_ms;
    if (upstream->trouble.kind == ERR_NONE)
        upstream->handlers.on_head(upstream->context, &head);
}

static void on_data(void *context, struct str data)
{
    struct upstream *upstream = context;
    if (upstream->trouble.kind == ERR_NONE)
        upstream->handlers.on_data(upstream->context, data);
}

static enum seat_end seat_end(const struct upstream *upstream, const struct err *err)
{
    if (err->kind == ERR_INPUT || err->kind == ERR_CANCELLED)
        return SEAT_LEFT;
    if (err->kind != ERR_NONE || upstream->status >= 500)
        return SEAT_FAILED;
    return upstream->status == 429 ? SEAT_BUSY : SEAT_FINE;
}

static void on_done(void *context, const struct err *err, bool sent_nothing)
{
    (void)sent_nothing;
    struct upstream *upstream = context;
    upstream->done = true;
    if (upstream->trouble.kind != ERR_NONE)
        err = &upstream->trouble;
    seat_leave(TAKE(upstream->seat), seat_end(upstream, err), upstream->retry_after_ms);
    upstream->handlers.on_done(upstream->context, err, false);
}

/* ---------------------------------------------------------------- over HTTP */

static void add_header(struct upstream *upstream, struct str name, struct str value)
{
    if (upstream->header_count < HEADERS_MAX)
        upstream->headers[upstream->header_count++] =
            (struct http_header){name, arena_str(&upstream->arena, value)};
}

static void add_key(struct upstream *upstream)
{
    const char *key = upstream->model->key;
    if (key && upstream->dialect == &dialect_messages)
        add_header(upstream, STR("x-api-key"), str_of(key));
    else if (key && upstream->dialect == &dialect_google)
        add_header(upstream, STR("x-goog-api-key"), str_of(key));
    else if (key)
        add_header(upstream, STR("authorization"),
                   str_of(arena_format(&upstream->arena, "Bearer %s", key)));
}

static void prepare(struct upstream *upstream, const struct upstream_request *request)
{
    upstream->arena.bytes_max = ARENA_BYTES_MAX;
    upstream->path = arena_text(&upstream->arena, str_of(request->path));
    upstream->outside = request->outside;
    upstream->dialect = request->dialect;
    upstream->body = request->body;
    upstream->gap = request->gap;
    add_header(upstream, STR("content-type"), STR("application/json"));
    add_header(upstream, STR("user-agent"), STR("postern/" POSTERN_VERSION));
    add_header(upstream, STR("x-session-id"), str_of(request->rollout_id));
    add_key(upstream);
    bool version = false;
    for (size_t i = 0; i < request->header_count; i++) {
        const struct http_header *header = &request->headers[i];
        version |= str_is(header->name, "anthropic-version");
        add_header(upstream, header->name, header->value);
    }
    if (request->dialect == &dialect_messages && !version)
        add_header(upstream, STR("anthropic-version"), STR("2023-06-01"));
}

static void start_http(struct upstream *upstream)
{
    static const struct http_call_handlers handlers = {on_head, on_data, on_done};
    const struct endpoint *endpoint = seat_endpoint(upstream->seat);
    struct model *model = upstream->model;
    OWN(mem) char *above = NULL; /* beside /v1 */
    if (upstream->outside) {
        struct str base = str_of(endpoint->base_url);
        if (!endpoint->bare && str_ends(base, STR("/v1")))
            base.size -= strlen("/v1");
        above = str_dup(base);
    }
    const char *version = upstream->outside                      ? ""
                          : !endpoint->bare                      ? ""
                          : upstream->dialect == &dialect_google ? "/v1beta"
                                                                 : "/v1";
    OWN(mem)
    char *url = mem_format("%s%s%s", above ? above : endpoint->base_url, version, upstream->path);
    struct http_request out = {
        .method = "POST",
        .url = url,
        .headers = upstream->headers,
        .header_count = upstream->header_count,
        .body = upstream->body,
        .proxy = endpoint->proxy,
        .proxy_authorization = endpoint->proxy_authorization,
        .first_byte_ms_max = model->options.first_byte_ms_max,
        .idle_ms_max = model->options.idle_ms_max,
        .body_stays = true,
        .middle = upstream->gap.bytes,
        .middle_at = upstream->gap.at,
    };
    upstream->call =
        http_call_start(gateway_client(upstream->gateway, model), &out, &handlers, upstream);
}

static void on_seat(void *context, const struct err *err)
{
    struct upstream *upstream = context;
    if (err->kind == ERR_NONE) {
        start_http(upstream);
        return;
    }
    upstream->done = true;
    seat_leave(TAKE(upstream->seat), SEAT_LEFT, 0);
    upstream->handlers.on_done(upstream->context, err, false);
}

static void ask_for_seat(struct upstream *upstream, const struct upstream_request *request)
{
    struct model *model = upstream->model;
    struct seat_options options = {
        .place = request->place,
        .wait_ms_max = model->options.first_byte_ms_max,
        .retry = request->retry,
    };
    prepare(upstream, request);
    upstream->seat = seat_ask(&model->pool, upstream->loop, &options, on_seat, upstream);
    if (seat_endpoint(upstream->seat))
        start_http(upstream);
}

/* ---------------------------------------------------------------- played, held */

static void play_done(void *context, const struct err *err, bool script_error)
{
    struct upstream *upstream = context;
    upstream->handlers.on_done(upstream->context, err, script_error);
}

static void play_head(void *context, const struct upstream_head *head)
{
    struct upstream *upstream = context;
    upstream->handlers.on_head(upstream->context, head);
}

struct upstream *upstream_start(struct gateway *gateway, struct model *model,
                                const struct upstream_request *request,
                                const struct upstream_handlers *handlers, void *context)
{
    static const struct upstream_handlers played = {play_head, on_data, play_done};
    struct upstream *upstream = mem_zero(sizeof *upstream);
    upstream->loop = gateway->loop;
    upstream->gateway = gateway;
    upstream->model = model_ref(model);
    upstream->retry_after_ms = -1;
    upstream->handlers = *handlers;
    upstream->context = context;
    if (request->hold)
        upstream->hold = hold_start(gateway->loop, request, &played, upstream);
    else if (model->script)
        upstream->play = play_start(gateway->loop, model->script, request, &played, upstream);
    else if (model->replay)
        upstream->play = play_replay(gateway->loop, model->replay, request, &played, upstream);
    else
        ask_for_seat(upstream, request);
    return upstream;
}

void upstream_pause(struct upstream *upstream)
{
    if (upstream->hold)
        hold_pause(upstream->hold);
    else if (upstream->play)
        play_pause(upstream->play);
    else if (!upstream->done && upstream->call)
        http_call_pause(upstream->call);
}

void upstream_resume(struct upstream *upstream)
{
    if (upstream->hold)
        hold_resume(upstream->hold);
    else if (upstream->play)
        play_resume(upstream->play);
    else if (!upstream->done && upstream->call)
        http_call_resume(upstream->call);
}

void upstream_ahead(struct upstream *upstream, struct http_place *places, size_t count)
{
    if (!upstream->call || upstream->done)
        return;
    places[count] = (struct http_place){upstream, offsetof(struct upstream, trouble) + 1};
    http_call_ahead(upstream->call, places, count + 1);
}

static void upstream_free(void *argument)
{
    struct upstream *upstream = argument;
    for (size_t i = 0; i < upstream->header_count; i++) /* the key is in one of them */
        explicit_bzero((char *)upstream->headers[i].value.data, upstream->headers[i].value.size);
    arena_deinit(&upstream->arena);
    model_unref(upstream->model);
    free(upstream);
}

void upstream_close(struct upstream *upstream)
{
    if (!upstream || upstream->closed)
        return;
    upstream->closed = true;
    if (upstream->hold)
        hold_close(upstream->hold);
    else if (upstream->play)
        play_close(upstream->play);
    else if (!upstream->done && upstream->call)
        http_call_close(upstream->call);
    seat_leave(TAKE(upstream->seat), SEAT_LEFT, 0);
    loop_defer(upstream->loop, upstream_free, upstream);
}

const struct trace_answer *upstream_tokens(const struct upstream *upstream)
{
    return upstream->play ? play_tokens(upstream->play) : NULL;
}
