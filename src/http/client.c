/* client.c - calls, and the origins they go to.
 *
 * A call takes an idle link of its origin, or opens one, or waits for one when the origin has its
 * maximum. It ends exactly once: through http_call_finish(), which tells, or http_call_close(),
 * which does not. Memory goes when the tick is over, so callbacks may close what they belong to. */
#include "client.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "tls.h"

enum { WAITING_MAX = 65536, ORIGINS_KEPT = 256 };

/* --- origins --- */

static void origin_free(struct origin *origin)
{
    http_resolve_forget(origin);
    LIST_EACH (at, &origin->idle)
        http_link_close(LIST_OF(at, struct link, in_origin), false);
    free(origin->addresses);
    free(origin->key);
    free(origin->host);
    free(origin->unix_path);
    free(origin->proxy_host);
    if (origin->proxy_authorization)
        explicit_bzero(origin->proxy_authorization, strlen(origin->proxy_authorization));
    free(origin->proxy_authorization);
    free(origin);
}

static bool origin_is_unused(const struct origin *origin)
{
    return !origin->link_count && !origin->waiting_count && !origin->lookup;
}

/* Origins are cheap and few; only when they are many are the unused ones forgotten. */
static void forget_unused(struct http_client *client)
{
    if (client->origins.count < ORIGINS_KEPT)
        return;
    struct origin *unused[64];
    size_t count = 0, at = 0;
    for (struct origin *origin;
         count < COUNT(unused) && (origin = map_next(&client->origins, &at, NULL));)
        if (origin_is_unused(origin))
            unused[count++] = origin;
    for (size_t i = 0; i < count; i++) {
        (void)map_remove(&client->origins, str_of(unused[i]->key));
        origin_free(unused[i]);
    }
}

static struct origin *origin_of(struct http_client *client, const struct http_url *url,
                                const struct http_url *proxy, const char *authorization,
                                struct err *err)
{
    OWN(mem)
    char *key = url->unix_path.size ? mem_format("unix:%.*s", STR_ARGS(url->unix_path))
                                    : mem_format("%s://%.*s:%u", url->tls ? "https" : "http",
                                                 STR_ARGS(url->host), url->port);
    if (proxy) {
        OWN(mem) char *straight = TAKE(key);
        key = mem_format("%s by way of %.*s:%u", straight, STR_ARGS(proxy->host), proxy->port);
    }
    struct origin *origin = map_get(&client->origins, str_of(key));
    if (origin)
        return origin;
    struct sockaddr_un path = {.sun_family = AF_UNIX};
    if (url->unix_path.size >= sizeof path.sun_path) {
        err_set(err, ERR_INPUT, "the socket path is longer than %zu bytes",
                sizeof path.sun_path - 1);
        return NULL;
    }
    forget_unused(client);
    origin = mem_zero(sizeof *origin);
    origin->client = client;
    origin->key = TAKE(key);
    origin->host = str_dup(url->host);
    origin->port = url->port;
    origin->tls = url->tls;
    if (proxy) {
        origin->proxy_host = str_dup(proxy->host);
        origin->proxy_port = proxy->port;
        origin->proxy_authorization = mem_dup(authorization);
    }
    list_init(&origin->idle);
    list_init(&origin->waiting);
    list_init(&origin->resolving);
    if (url->unix_path.size) {
        origin->unix_path = str_dup(url->unix_path);
        memcpy(path.sun_path, url->unix_path.data, url->unix_path.size);
        origin->addresses = mem_zero(sizeof *origin->addresses);
        origin->addresses->count = 1;
        origin->addresses->at[0].size = sizeof path;
        memcpy(&origin->addresses->at[0].storage, &path, sizeof path);
        origin->addresses_until_ms = UINT64_MAX;
    }
    (void)map_put(&client->origins, str_of(origin->key), origin);
    return origin;
}

void http_origin_serve(struct origin *origin)
{
    while (!list_empty(&origin->waiting) && !origin->client->closing) {
        struct http_call *call = LIST_OF(origin->waiting.next, struct http_call, in_waiting);
        bool idle = !list_empty(&origin->idle);
        if (!idle && origin->link_count >= origin->client->options.per_host_max)
            return;
        list_remove(&call->in_waiting);
        origin->waiting_count--;
        if (idle)
            http_link_assign(LIST_OF(origin->idle.next, struct link, in_origin), call);
        else
            http_link_open(origin, call);
    }
}

/* --- calls: the end --- */

static void call_free(void *argument)
{
    struct http_call *call = argument;
    buf_deinit(&call->request);
    free(call->trouble);
    free(call);
}

/* Takes the call out of everything but its link. */
static void call_leave(struct http_call *call)
{
    call->done = true;
    list_remove(&call->in_client);
    if (call->in_waiting.next) {
        list_remove(&call->in_waiting);
        call->origin->waiting_count--;
    }
    http_deadline_stop(&call->deadline);
    loop_defer(call->loop, call_free, call);
}

void http_call_finish(struct http_call *call, const struct err *err)
{
    if (call->done)
        return;
    call_leave(call);
    if (call->handlers.on_done)
        call->handlers.on_done(call->context, err, !call->any_bytes);
}

static void call_drop_link(struct http_call *call)
{
    struct link *link = call->link;
    if (!link)
        return;
    struct origin *origin = link->origin;
    http_link_close(link, true);
    http_origin_serve(origin);
}

void http_call_close(struct http_call *call)
{
    if (!call || call->done)
        return;
    call_leave(call);
    call_drop_link(call);
}

static void call_fail(struct http_call *call, const struct err *err)
{
    call_drop_link(call);
    http_call_finish(call, err);
}

static void tell_trouble(void *argument)
{
    struct http_call *call = argument;
    if (!call->done)
        http_call_finish(call, call->trouble);
}

/* Found inside http_call_start(): told when this tick is over. */
static void fail_later(struct http_call *call, const struct err *err)
{
    call->trouble = mem_alloc(sizeof *call->trouble);
    *call->trouble = *err;
    loop_defer(call->loop, tell_trouble, call);
}

static void call_passed(struct http_deadline *deadline)
{
    struct http_call *call = LIST_OF(deadline, struct http_call, deadline);
    struct err err = {0};
    err_set(&err, ERR_TIMEOUT, "%s: %s", call->origin->key,
            call->head_seen ? "the answer stopped coming" : "no answer in time");
    call_fail(call, &err);
}

void http_call_retry(struct http_call *call)
{
    struct origin *origin = call->origin;
    call->retried = true;
    if (origin->link_count < origin->client->options.per_host_max) {
        http_link_open(origin, call);
        return;
    }
    list_prepend(&origin->waiting, &call->in_waiting);
    origin->waiting_count++;
}

/* --- calls: the request --- */

static bool has_body_by_nature(const char *method)
{
    return strcmp(method, "POST") == 0 || strcmp(method, "PUT") == 0 ||
           strcmp(method, "PATCH") == 0;
}

static int write_request(struct http_call *call, const struct http_request *request,
                         const struct http_url *url, struct err *err)
{
    struct buf *out = &call->request;
    if (!http_token_is(str_of(request->method)) || strcmp(request->method, "CONNECT") == 0)
        return err_set(err, ERR_INPUT, "'%s' is not a method to call with", request->method);
    struct str copied = request->body_stays ? STR_NONE : request->body;
    size_t size = 128 + strlen(request->method) + url->path.size + url->host.size + copied.size;
    for (size_t i = 0; i < request->header_count; i++)
        size += http_field_size(request->headers[i].name, request->headers[i].value);
    (void)buf_reserve(out, size);
    bool v6 = str_find_byte(url->host, ':') >= 0;
    buf_format(out, "%s ", request->method);
    if (request->proxy && !url->tls) /* RFC 9112 3.2.2 */
        buf_format(out, "http://%s%.*s%s:%u", v6 ? "[" : "", STR_ARGS(url->host), v6 ? "]" : "",
                   url->port);
    buf_format(out, "%.*s HTTP/1.1\r\n", STR_ARGS(url->path));
    if (request->proxy && !url->tls && request->proxy_authorization)
        buf_format(out, "Proxy-Authorization: %s\r\n", request->proxy_authorization);
    if (!http_header_find(request->headers, request->header_count, STR("host")).data) {
        bool usual = !url->port || url->port == (url->tls ? 443 : 80);
        buf_format(out, "Host: %s%.*s%s", v6 ? "[" : "", STR_ARGS(url->host), v6 ? "]" : "");
        if (usual)
            buf_append(out, "\r\n", 2);
        else
            buf_format(out, ":%u\r\n", url->port);
    }
    for (size_t i = 0; i < request->header_count; i++) {
        const struct http_header *header = &request->headers[i];
        if (!http_token_is(header->name) || !http_field_value_is(header->value))
            return err_set(err, ERR_INPUT, "the header '%.*s' is malformed",
                           STR_ARGS(header->name));
        if (http_field_is_ours(header->name) || str_equal_nocase(header->name, STR("expect")))
            continue;
        char *at = buf_reserve(out, http_field_size(header->name, header->value));
        buf_added(out, http_field_write(at, header->name, header->value));
    }
    size_t length = request->body.size + request->middle.size;
    if (length || has_body_by_nature(request->method))
        buf_format(out, "Content-Length: %zu\r\n", length);
    buf_append(out, "\r\n", 2);
    buf_str_append(out, copied);
    if (!request->body_stays)
        return 0;
    call->body[0] = str_upto(request->body, request->middle_at);
    call->body[1] = request->middle;
    call->body[2] = str_from(request->body, call->body[0].size);
    return 0;
}

static int call_begin(struct http_client *client, struct http_call *call,
                      const struct http_request *request, struct err *err)
{
    struct http_url url, proxy;
    if (client->closing)
        return err_set(err, ERR_CANCELLED, "the client is closing");
    if (request->proxy && http_url_read(request->proxy, &proxy, err) < 0)
        return err_wrap(err, "the proxy's address");
    if (request->proxy && (proxy.tls || proxy.unix_path.size))
        return err_set(err, ERR_UNSUPPORTED, "a proxy's address begins with http://");
    if (http_url_read(request->url, &url, err) < 0 || write_request(call, request, &url, err) < 0)
        return -1;
    call->origin =
        origin_of(client, &url, request->proxy ? &proxy : NULL, request->proxy_authorization, err);
    if (!call->origin)
        return -1;
    if (call->origin->waiting_count >= WAITING_MAX)
        return err_set(err, ERR_CAPACITY, "%s: too many calls wait", call->origin->key);
    if (request->first_byte_ms_max)
        call->first_byte_due = loop_now_ms(call->loop) + request->first_byte_ms_max;
    http_deadline_set(call->loop, &call->deadline, call->first_byte_due);
    list_append(&call->origin->waiting, &call->in_waiting);
    call->origin->waiting_count++;
    http_origin_serve(call->origin);
    return 0;
}

struct http_call *http_call_start(struct http_client *client, const struct http_request *request,
                                  const struct http_call_handlers *handlers, void *context)
{
    struct http_call *call = mem_zero(sizeof *call);
    call->loop = client->loop;
    call->handlers = *handlers;
    call->context = context;
    call->idle_ms_max = request->idle_ms_max;
    call->is_head = strcmp(request->method, "HEAD") == 0;
    call->deadline.on_passed = call_passed;
    list_append(&client->calls, &call->in_client);
    struct err err = {0};
    if (call_begin(client, call, request, &err) < 0)
        fail_later(call, &err);
    return call;
}

static void add_place(struct link *link, const void *at, size_t size)
{
    uintptr_t first = (uintptr_t)at / LINE_BYTES, last = ((uintptr_t)at + size - 1) / LINE_BYTES;
    for (uintptr_t line = first; line <= last && link->ahead_count < AHEAD_MAX; line++)
        link->ahead[link->ahead_count++] = (const void *)(line * LINE_BYTES);
}

void http_call_ahead(struct http_call *call, const struct http_place *places, size_t count)
{
    if (!call->link)
        return;
    call->link->ahead_count = 0;
    add_place(call->link, call, offsetof(struct http_call, origin));
    for (size_t i = 0; i < count; i++)
        add_place(call->link, places[i].at, places[i].size);
}

void http_call_pause(struct http_call *call)
{
    if (call->done || call->paused)
        return;
    call->paused = true;
    if (call->link)
        http_link_resume(call->link);
}

void http_call_resume(struct http_call *call)
{
    if (call->done || !call->paused)
        return;
    call->paused = false;
    if (call->link)
        http_link_resume(call->link);
}

struct str http_answer_header(const struct http_answer_head *head, const char *name)
{
    return http_header_find(head->headers, head->header_count, str_of(name));
}

/* --- the client --- */

struct http_client *http_client_new(struct loop *loop, const struct http_client_options *options)
{
    struct http_client *client = mem_zero(sizeof *client);
    client->loop = loop;
    if (options)
        client->options = *options;
    client->options.ca_file = mem_dup(client->options.ca_file);
    if (!client->options.per_host_max)
        client->options.per_host_max = 1024;
    if (!client->options.connect_ms_max)
        client->options.connect_ms_max = 10000;
    if (!client->options.idle_ms_max)
        client->options.idle_ms_max = 60000;
    if (!client->options.head_bytes_max)
        client->options.head_bytes_max = (size_t)64 << 10;
    list_init(&client->calls);
    return client;
}

static void client_finish(void *argument)
{
    struct http_client *client = argument;
    struct err err = {0};
    err_set(&err, ERR_CANCELLED, "the client was closed");
    while (!list_empty(&client->calls))
        call_fail(LIST_OF(client->calls.next, struct http_call, in_client), &err);
    size_t at = 0;
    for (struct origin *origin; (origin = map_next(&client->origins, &at, NULL));)
        origin_free(origin);
    map_deinit(&client->origins);
    http_tls_free(client->tls);
    free((char *)client->options.ca_file);
    free(client);
}

void http_client_free(struct http_client *client)
{
    if (!client || client->closing)
        return;
    client->closing = true;
    loop_defer(client->loop, client_finish, client);
}
