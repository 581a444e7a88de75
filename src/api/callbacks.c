/* callbacks.c - ends that are told to somebody's URL (webhooks).
 *
 * A rollout that was submitted with a callback has "pending" in the index from its end until the
 * result was taken (2xx) or given up: so each is delivered at least once, whatever dies in between,
 * and carries an id to tell repetitions by. What waits in memory is bounded; the rest is looked up
 * when there is room again.
 *
 *     final ──► queue ──► POST ──2xx──► delivered
 *                 ▲         └─other, lost─► again later (1 s, 2 s, 4 s ... 5 min) ──► failed
 *
 * Where a callback may go is the operator's to say (callback.allow), not the submitter's: else
 * anybody with the token could make the server post to whatever it can reach. By default that is
 * loopback. The secret is named by the submission, kept in the environment and never written
 * anywhere. */
#include <arpa/inet.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/inner.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/text.h"
#include "http/http.h"
#include "loop/loop.h"
#include "store/store.h"

#define URL_BYTES_MAX 2048
#define NAME_BYTES_MAX 128
#define RESULT_BYTES_MAX (64u << 20)
#define IN_FLIGHT_MAX 32
#define WAITING_MAX 1000
#define FIRST_PAUSE_MS 1000
#define PAUSE_MS_MAX (5u * 60 * 1000)
#define ANSWER_MS_MAX 30000

struct api_callbacks {
    struct api *api;
    struct http_client *client;
    char *allow; /* prefixes, separated by commas or blanks; "": loopback only */
    uint32_t tries_max;
    uint32_t pause_ms;
    struct list waiting, flying; /* deliveries */
    size_t flying_count;
    struct api_callback_counts counts;
    bool more; /* the index may have others that are pending */
    struct map known;
};

struct reading;

struct delivery {
    struct list link;
    struct api_callbacks *callbacks;
    char id[ID_MAX];
    char *url, *secret_env, *dir;
    uint32_t tries;
    struct reading *reading; /* what is to be sent; NULL: not now */
    struct http_call *call;
    struct loop_timer timer;
    int status;
};

/* A result may be large, and disks slow: it is read by a worker. */
struct reading {
    struct api *api;
    struct delivery *delivery; /* NULL: it is gone */
    char *path;
    struct buf body;
    int result;
};

/* ---------------------------------------------------------------- where they may go */
static bool is_loopback(struct str host)
{
    struct in_addr address;
    OWN(mem) char *text = str_dup(host);
    if (str_equal_nocase(host, STR("localhost")) || str_is(host, "::1"))
        return true;
    /* Four numbers, no name that only begins like them. */
    return inet_pton(AF_INET, text, &address) == 1 && ntohl(address.s_addr) >> 24 == 127;
}

/* The same scheme, host and port, and a path at or below the prefix's: never just the same letters.
 */
static bool is_below(const struct http_url *url, const struct http_url *prefix)
{
    if (url->tls != prefix->tls || url->port != prefix->port ||
        !str_equal_nocase(url->host, prefix->host) || !str_starts(url->path, prefix->path))
        return false;
    struct str rest = str_from(url->path, prefix->path.size);
    return str_ends(prefix->path, STR("/")) || !rest.size || rest.data[0] == '/' ||
           rest.data[0] == '?';
}

static bool is_allowed(const struct api_callbacks *callbacks, const struct http_url *url)
{
    bool any = false;
    struct str rest = str_of(callbacks->allow);
    while (rest.data) {
        struct str item = str_trim(str_cut(&rest, ','));
        if (!item.size)
            continue;
        struct http_url prefix;
        OWN(mem) char *text = str_dup(item);
        any = true;
        if (http_url_read(text, &prefix, NULL) == 0 && !prefix.unix_path.data &&
            is_below(url, &prefix))
            return true;
    }
    return !any && is_loopback(url->host);
}

/* Has the path a '..', plain or encoded? Who gets it may well resolve it. */
static bool climbs(struct str url)
{
    long query = str_find_byte(url, '?');
    struct str rest = query >= 0 ? str_upto(url, (size_t)query) : url;
    OWN(buf) struct buf plain = {0};
    if (!http_percent_decode(rest, &plain))
        return true;
    rest = buf_str(&plain);
    while (rest.data)
        if (str_is(str_cut(&rest, '/'), ".."))
            return true;
    return false;
}

static int check_url(const struct api_callbacks *callbacks, const char *text, struct err *err)
{
    struct http_url url;
    if (strncmp(text, "http://", 7) != 0 && strncmp(text, "https://", 8) != 0)
        return err_set(err, ERR_INPUT, "'callback.url' begins with http:// or https://");
    for (const char *at = text; *at; at++)
        if ((unsigned char)*at <= ' ' || *at == 127 || *at == '@' || *at == '\\' || *at == '#')
            return err_set(err, ERR_INPUT,
                           "'callback.url' has no blanks, user names, backslashes or fragments");
    if (climbs(str_of(text)))
        return err_set(err, ERR_INPUT, "'callback.url' has no '..' in its path");
    if (http_url_read(text, &url, err) < 0) {
        err->kind = ERR_INPUT;
        return -1;
    }
    if (!is_allowed(callbacks, &url))
        return err_set(err, ERR_DENIED,
                       "callbacks to '%.*s' are not allowed here: the setting callback.allow says "
                       "where they may go",
                       STR_ARGS(str_upto(url.host, 200)));
    return 0;
}

struct callback_body {
    const char *url, *secret_env;
};
#define AT(member) offsetof(struct callback_body, member)
static const struct api_field fields[] = {
    {"url", API_TEXT, AT(url), 0, URL_BYTES_MAX, true, "Where the result is posted."},
    {"secret_env", API_TEXT, AT(secret_env), 0, NAME_BYTES_MAX, false,
     "Variable of the server's environment with the secret it is signed with."},
};

int api_callback_check(struct api *api, struct json callback, struct arena *arena, struct err *err)
{
    struct callback_body body = {0};
    if (json_type(callback) != JSON_OBJECT) {
        err_set(err, ERR_INPUT, "'callback' is an object with 'url'");
        return err_at(err, "callback");
    }
    if (api_read_object(callback, fields, COUNT(fields), &body, arena, err) < 0)
        return err_below(err, "callback");
    if (check_url(api->callbacks, body.url, err) < 0)
        return err_at(err, "callback.url");
    /* Only names made for this can be named: no other variable can be tried out. */
    if (body.secret_env && strncmp(body.secret_env, API_SECRET_PREFIX, strlen(API_SECRET_PREFIX)))
        err_set(err, ERR_INPUT, "'callback.secret_env' begins with %s", API_SECRET_PREFIX);
    else if (body.secret_env && !(getenv(body.secret_env) && getenv(body.secret_env)[0]))
        err_set(err, ERR_INPUT, "the server's environment has no '%s'", body.secret_env);
    else
        return 0;
    return err_at(err, "callback.secret_env");
}

/* ---------------------------------------------------------------- one delivery */
static void look_for_more(struct api_callbacks *callbacks);
static void fly(struct api_callbacks *callbacks);

static void delivery_free(struct delivery *delivery)
{
    struct api_callbacks *callbacks = delivery->callbacks;
    loop_timer_stop(&delivery->timer);
    if (delivery->call)
        http_call_close(delivery->call);
    if (delivery->reading)
        delivery->reading->delivery = NULL;
    list_remove(&delivery->link);
    (void)map_remove(&callbacks->known, str_of(delivery->id));
    free(delivery->url);
    free(delivery->secret_env);
    free(delivery->dir);
    free(delivery);
}

/* Until its end is kept it is known: who looks for more would find it pending. */
static void on_noted(void *context, const struct err *err)
{
    struct delivery *delivery = context;
    struct api_callbacks *callbacks = delivery->callbacks;
    struct api *api = callbacks->api;
    if (err->kind != ERR_NONE)
        LOG_WARN("api", delivery->id, "how its callback ended is not noted: %s", err->text);
    delivery_free(delivery);
    look_for_more(callbacks);
    api_reply_done(api);
}

static void delivery_over(struct delivery *delivery, const char *state)
{
    struct api_callbacks *callbacks = delivery->callbacks;
    struct api *api = callbacks->api;
    struct err err = {0};
    LOG_INFO("api", delivery->id, "its callback: %s after %u tries", state, delivery->tries);
    *(strcmp(state, "delivered") == 0 ? &callbacks->counts.delivered : &callbacks->counts.failed) +=
        1;
    loop_timer_stop(&delivery->timer);
    api->replies++;
    fly(callbacks);
    if (store_put_note(api->store, api->loop, "callback", "rollout", delivery->id, state, on_noted,
                       delivery, &err) < 0)
        on_noted(delivery, &err);
}

static void on_pause_over(struct loop_timer *timer)
{
    struct delivery *delivery = timer->context;
    struct api_callbacks *callbacks = delivery->callbacks;
    list_remove(&delivery->link); /* from those that fly: it only rested there */
    list_append(&callbacks->waiting, &delivery->link);
    fly(callbacks);
}

static void on_given_up(struct loop_timer *timer)
{
    struct delivery *delivery = timer->context;
    delivery->callbacks->flying_count--;
    delivery_over(delivery, "failed");
}

static void on_head(void *context, const struct http_answer_head *head)
{
    ((struct delivery *)context)->status = head->status;
}

static void on_data(void *context, struct str data)
{
    (void)context;
    (void)data;
}

static void on_done(void *context, const struct err *err, bool sent_nothing)
{
    struct delivery *delivery = context;
    struct api_callbacks *callbacks = delivery->callbacks;
    (void)sent_nothing;
    delivery->call = NULL;
    callbacks->flying_count--;
    if (err->kind == ERR_NONE && delivery->status >= 200 && delivery->status < 300) {
        delivery_over(delivery, "delivered");
        return;
    }
    /* 410: whoever asked does not want it any more. */
    if (delivery->status == 410 || delivery->tries >= callbacks->tries_max) {
        delivery_over(delivery, "failed");
        return;
    }
    uint64_t pause = (uint64_t)callbacks->pause_ms
                     << (delivery->tries - 1 < 20 ? delivery->tries - 1 : 20);
    uint16_t dice;
    id_random_bytes(&dice, sizeof dice);
    pause = pause > PAUSE_MS_MAX ? PAUSE_MS_MAX : pause;
    LOG_DEBUG("api", delivery->id, "its callback failed (%d %s); again in %llu ms",
              delivery->status, err->text, (unsigned long long)pause);
    loop_timer_start(callbacks->api->loop, &delivery->timer, pause + dice % (pause / 4 + 1),
                     on_pause_over, delivery);
    fly(callbacks);
}

/* Who says a little now and then must not keep a place for ever. */
static void on_too_long(struct loop_timer *timer)
{
    struct delivery *delivery = timer->context;
    struct err err = {0};
    http_call_close(TAKE(delivery->call));
    err_set(&err, ERR_TIMEOUT, "no whole answer in time");
    on_done(delivery, &err, false);
}

static void sign(const struct delivery *delivery, const char *time, struct str body,
                 struct buf *out)
{
    const char *secret = delivery->secret_env ? getenv(delivery->secret_env) : NULL;
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned size = 0;
    if (!secret || !secret[0])
        return;
    OWN(buf) struct buf signedtext = {0};
    buf_format(&signedtext, "%s.%s.", delivery->id, time);
    buf_str_append(&signedtext, body);
    if (!HMAC(EVP_sha256(), secret, (int)strlen(secret), (const unsigned char *)signedtext.data,
              signedtext.size, digest, &size))
        return;
    buf_str_append(out, STR("sha256="));
    text_hex(out, str_make(digest, size));
}

static void give_up(struct delivery *delivery, const struct err *err)
{
    LOG_WARN("api", delivery->id, "its callback is given up: %s", err->text);
    loop_timer_start(delivery->callbacks->api->loop, &delivery->timer, 0, on_given_up, delivery);
}

static void post(struct delivery *delivery, struct str body)
{
    static const struct http_call_handlers handlers = {on_head, on_data, on_done};
    struct api_callbacks *callbacks = delivery->callbacks;
    OWN(buf) struct buf signature = {0};
    char time[32], tries[16];
    snprintf(time, sizeof time, "%llu", (unsigned long long)clock_wall_ms() / 1000);
    snprintf(tries, sizeof tries, "%u", delivery->tries);
    sign(delivery, time, body, &signature);
    struct http_header headers[] = {
        {STR("content-type"), STR("application/json")},
        {STR("user-agent"), STR("postern/" POSTERN_VERSION)},
        {STR("postern-delivery"), str_of(delivery->id)},
        {STR("postern-attempt"), str_of(tries)},
        {STR("postern-timestamp"), str_of(time)},
        {STR("postern-signature"), buf_str(&signature)},
    };
    struct http_request request = {
        .method = "POST",
        .url = delivery->url,
        .headers = headers,
        .header_count = COUNT(headers) - (signature.size ? 0 : 1),
        .body = body,
        .first_byte_ms_max = ANSWER_MS_MAX,
        .idle_ms_max = ANSWER_MS_MAX,
    };
    delivery->call = http_call_start(callbacks->client, &request, &handlers, delivery);
    loop_timer_start(callbacks->api->loop, &delivery->timer, ANSWER_MS_MAX, on_too_long, delivery);
}

static void read_result(void *argument)
{
    struct reading *reading = argument;
    reading->result = file_read(reading->path, RESULT_BYTES_MAX, &reading->body, NULL);
}

static void on_result(void *argument)
{
    struct reading *reading = argument;
    struct delivery *delivery = reading->delivery;
    struct api *api = reading->api;
    struct err err = {0};
    if (delivery) {
        delivery->reading = NULL;
        if (reading->result < 0)
            buf_clear(&reading->body);
        if (reading->result < 0 && api_write_rollout(api, delivery->id, &reading->body, &err) < 0)
            give_up(delivery, &err);
        else
            post(delivery, buf_str(&reading->body));
    }
    buf_deinit(&reading->body);
    free(reading->path);
    free(reading);
    api_reply_done(api);
}

static void start(struct delivery *delivery)
{
    struct api_callbacks *callbacks = delivery->callbacks;
    struct err err = {0};
    list_remove(&delivery->link);
    delivery->tries++;
    delivery->status = 0;
    list_append(&callbacks->flying, &delivery->link);
    callbacks->flying_count++;
    /* Settings may have changed since it was submitted. */
    if (check_url(callbacks, delivery->url, &err) < 0) {
        give_up(delivery, &err);
        return;
    }
    struct reading *reading = mem_zero(sizeof *reading);
    *reading = (struct reading){.api = callbacks->api,
                                .delivery = delivery,
                                .path = mem_format("%s/result.json", delivery->dir)};
    delivery->reading = reading;
    callbacks->api->replies++; /* it is there when the worker is done */
    loop_work(callbacks->api->loop, read_result, on_result, reading);
}

/* Once the listener is gone none begins: whoever closes it would wait for all of them. */
static void fly(struct api_callbacks *callbacks)
{
    while (!callbacks->api->gone && callbacks->flying_count < IN_FLIGHT_MAX &&
           !list_empty(&callbacks->waiting))
        start(LIST_OF(callbacks->waiting.next, struct delivery, link));
}

/* ---------------------------------------------------------------- what is to be told */
static void add(struct api_callbacks *callbacks, const char *id, const char *callback,
                const char *dir)
{
    OWN(json_doc) struct json_doc doc = {0};
    OWN(arena) struct arena arena = {0};
    if (map_get(&callbacks->known, str_of(id)))
        return;
    if (callbacks->known.count >= WAITING_MAX) {
        callbacks->more = true;
        return;
    }
    if (json_read(&doc, str_of(callback), NULL, NULL) < 0)
        return;
    struct str url = json_str(json_get(json_root(&doc), "url"), &arena);
    struct str secret = json_str(json_get(json_root(&doc), "secret_env"), &arena);
    struct delivery *delivery = mem_zero(sizeof *delivery);
    delivery->callbacks = callbacks;
    snprintf(delivery->id, sizeof delivery->id, "%s", id);
    delivery->url = str_dup(url);
    delivery->secret_env = secret.size ? str_dup(secret) : NULL;
    delivery->dir = mem_dup(dir ? dir : "");
    map_put(&callbacks->known, str_of(id), delivery);
    list_append(&callbacks->waiting, &delivery->link);
}

static bool add_row(void *context, const struct store_rollout *row)
{
    struct api_callbacks *callbacks = context;
    if (row->callback && row->fate)
        add(callbacks, row->id, row->callback, row->dir);
    bool room = callbacks->known.count < WAITING_MAX;
    callbacks->more = callbacks->more || !room;
    return room;
}

static void look_for_more(struct api_callbacks *callbacks)
{
    struct store_query query = {.callback_pending = true, .oldest_first = true, .limit = 1000};
    struct err err = {0};
    if (!callbacks->more || callbacks->known.count > WAITING_MAX / 2)
        return;
    callbacks->more = false;
    if (store_list_rollouts(callbacks->api->store, &query, add_row, callbacks, &err) < 0)
        LOG_WARN("api", NULL, "looking for callbacks: %s", err.text);
    fly(callbacks);
}

void api_callbacks_event(struct api_callbacks *callbacks, const struct rollout_event *event)
{
    const struct rollout_view *view = event->view;
    if (event->kind != ROLLOUT_EVENT_FINAL || !view->callback)
        return;
    add(callbacks, view->id, view->callback, view->dir);
    fly(callbacks);
}

struct api_callbacks *api_callbacks_new(struct api *api, const char *allow, uint32_t tries_max,
                                        uint32_t pause_ms)
{
    struct api_callbacks *callbacks = mem_zero(sizeof *callbacks);
    callbacks->api = api;
    callbacks->allow = mem_dup(allow ? allow : "");
    callbacks->tries_max = tries_max ? tries_max : 12;
    callbacks->pause_ms = pause_ms ? pause_ms : FIRST_PAUSE_MS;
    callbacks->client =
        http_client_new(api->loop, &(struct http_client_options){.per_host_max = IN_FLIGHT_MAX});
    list_init(&callbacks->waiting);
    list_init(&callbacks->flying);
    callbacks->more = true;
    return callbacks;
}

struct api_callback_counts api_callbacks_counts(const struct api_callbacks *callbacks)
{
    struct api_callback_counts counts = callbacks->counts;
    counts.pending = callbacks->known.count;
    return counts;
}

void api_callbacks_begin(struct api_callbacks *callbacks)
{
    look_for_more(callbacks);
}

static void on_booked(void *context, const struct err *err)
{
    struct api *api = context;
    if (err->kind != ERR_NONE)
        LOG_WARN("api", NULL, "looking for callbacks: %s", err->text);
    api->callbacks->more = true;
    look_for_more(api->callbacks);
    api_reply_done(api);
}

void api_booked(struct api *api)
{
    struct err err = {0};
    api->replies++;
    if (store_put_note(api->store, api->loop, "asked", NULL, NULL, NULL, on_booked, api, &err) < 0)
        on_booked(api, &err);
}

/* What is not delivered stays pending, for the next server. */
void api_callbacks_free(struct api_callbacks *callbacks)
{
    if (!callbacks)
        return;
    LIST_EACH (at, &callbacks->waiting)
        delivery_free(LIST_OF(at, struct delivery, link));
    LIST_EACH (at, &callbacks->flying)
        delivery_free(LIST_OF(at, struct delivery, link));
    http_client_free(callbacks->client);
    map_deinit(&callbacks->known);
    free(callbacks->allow);
    free(callbacks);
}
