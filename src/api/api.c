/* api.c - the control listener: its token, its listening sockets, and who may see which route.
 *
 * The token is compared in constant time, and before anything else is looked at: without it nobody
 * learns which routes or rollouts exist. A token that is blank is refused at start, for it would
 * let anybody in. */
#include "api/api.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "api/inner.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/file.h"
#include "base/id.h"
#include "base/log.h"
#include "base/mem.h"
#include "http/http.h"
#include "json/json.h"

#define BODY_BYTES_MAX (1u << 20)
#define BODY_IDLE_MS_MAX (600u * 1000) /* a trainer may think between two pieces of a stream */
#define CONNECTIONS_MAX 1000
#define RETRY_AFTER_S "1"
#define TOKEN_BYTES 32
#define TOKEN_SIZE_MIN 16
#define TOKEN_SIZE_MAX 4096

/* ---------------------------------------------------------------- the token */

/* A new token, complete under its name or not at all. Somebody else being first is fine. */
static int make_token(const char *path, struct err *err)
{
    char token[2 * TOKEN_BYTES + 2];
    id_random_hex(token, TOKEN_BYTES);
    token[2 * TOKEN_BYTES] = '\n';
    char random[17];
    id_random_hex(random, 8);
    OWN(mem) char *fresh = mem_format("%s.%s", path, random);
    OWN(fd) int fd = open(fresh, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return err_errno(err, "token file '%s'", path);
    int result = 0;
    if (fd_write_all(fd, token, 2 * TOKEN_BYTES + 1) < 0 || fsync(fd) < 0)
        result = err_errno(err, "token file '%s'", path);
    else if (link(fresh, path) < 0 && errno != EEXIST)
        result = err_errno(err, "token file '%s'", path);
    (void)unlink(fresh);
    explicit_bzero(token, sizeof token);
    return result;
}

static int read_token(struct api *api, struct err *err)
{
    OWN(buf) struct buf content = {0};
    if (!file_exists(api->token_file) && make_token(api->token_file, err) < 0)
        return -1;
    if (file_read(api->token_file, TOKEN_SIZE_MAX, &content, err) < 0)
        return err_wrap(err, "the control token");
    struct str token = str_trim(buf_str(&content));
    if (!token.size)
        return err_set(err, ERR_INPUT, "the token in '%s' is blank", api->token_file);
    if (token.size < TOKEN_SIZE_MIN)
        return err_set(err, ERR_INPUT, "the token in '%s' has fewer than %d characters",
                       api->token_file, TOKEN_SIZE_MIN);
    for (size_t i = 0; i < token.size; i++)
        if (!isgraph((unsigned char)token.data[i]))
            return err_set(err, ERR_INPUT, "the token in '%s' holds a blank or control byte",
                           api->token_file);
    struct stat status;
    if (stat(api->token_file, &status) == 0 && (status.st_mode & 077))
        LOG_WARN("api", NULL, "other users may read the token file '%s'", api->token_file);
    api->token = str_dup(token);
    explicit_bzero(content.data, content.size);
    return 0;
}

/* Takes as long for a wrong token as for the right one. */
static bool same_secret(struct str given, struct str secret)
{
    unsigned char difference = given.size != secret.size;
    for (size_t i = 0; i < secret.size; i++)
        difference |=
            (unsigned char)((given.size ? given.data[i % given.size] : 0) ^ secret.data[i]);
    return difference == 0;
}

static bool allowed(const struct api *api, const struct http_exchange *exchange)
{
    struct str given = str_trim(http_exchange_header(exchange, "authorization"));
    if (given.size < 7 || !str_equal_nocase(str_upto(given, 7), STR("bearer ")))
        return false;
    return same_secret(str_trim(str_from(given, 7)), str_of(api->token));
}

/* ---------------------------------------------------------------- requests */

void api_answer_error(struct http_exchange *exchange, const struct err *err)
{
    OWN(buf) struct buf body = {0};
    struct json_writer out = {.out = &body};
    json_begin_object(&out);
    json_key(&out, "error");
    json_begin_object(&out);
    json_set_text(&out, "type", err_meaning(err->kind)->name);
    json_set_text(&out, "kind", err_meaning(err->kind)->name);
    json_set_text(&out, "message", err->text);
    if (err->field[0])
        json_set_text(&out, "field", err->field);
    json_end_object(&out);
    json_end_object(&out);
    static const struct http_header headers[] = {
        {{"content-type", 12}, {"application/json", 16}},
        {{"retry-after", 11}, {RETRY_AFTER_S, sizeof RETRY_AFTER_S - 1}},
    };
    int status = err_meaning(err->kind)->http_status;
    http_respond(exchange, status, headers, status == 503 || status == 429 ? 2 : 1, buf_str(&body));
}

static void answer_status(struct http_exchange *exchange, int status, const char *kind,
                          const char *text, const struct http_header *header)
{
    OWN(buf) struct buf body = {0};
    buf_format(&body, "{\"error\":{\"type\":\"%s\",\"kind\":\"%s\",\"message\":\"%s\"}}", kind,
               kind, text);
    struct http_header headers[2] = {{STR("content-type"), STR("application/json")}};
    if (header)
        headers[1] = *header;
    http_respond(exchange, status, headers, header ? 2 : 1, buf_str(&body));
}

/* Nearly all routes differ in the first letter behind "/v1/": the rest is not looked at. */
static bool begins_alike(const struct api_route *route, struct str path)
{
    enum { FIRST = 4 };
    return path.size <= FIRST || route->path[FIRST] == path.data[FIRST];
}

/* Does the path fit the route; *name is what stands for the first {name}. */
static bool fits(const struct api_route *route, struct str path, struct str *name)
{
    struct str pattern = str_of(route->path);
    *name = STR_NONE;
    while (pattern.size) {
        long brace = str_find_byte(pattern, '{');
        struct str plain = brace < 0 ? pattern : str_upto(pattern, (size_t)brace);
        if (!str_starts(path, plain))
            return false;
        path = str_from(path, plain.size);
        pattern = str_from(pattern, plain.size);
        if (!pattern.size)
            break;
        struct str placeholder = str_cut(&pattern, '}');
        bool rest = str_ends(placeholder, STR("..."));
        long slash = rest ? -1 : str_find_byte(path, '/');
        struct str value = slash < 0 ? path : str_upto(path, (size_t)slash);
        if (!value.size && !rest)
            return false;
        if (!name->data)
            *name = value;
        path = str_from(path, value.size);
    }
    return !path.size;
}

struct search {
    struct str method, path, name;
    const struct api_route *found; /* the one to answer */
    char allow[64];                /* methods of routes that fit but for theirs */
};

static void look(struct search *search, const struct api_route *route, bool may)
{
    struct str name;
    if (search->found || !(may || route->open) || !begins_alike(route, search->path) ||
        !fits(route, search->path, &name))
        return;
    bool get = strcmp(route->method, "GET") == 0;
    if (str_is(search->method, route->method) || (str_is(search->method, "HEAD") && get)) {
        search->found = route;
        search->name = name;
        return;
    }
    size_t used = strlen(search->allow);
    snprintf(search->allow + used, sizeof search->allow - used, "%s%s", used ? ", " : "",
             get ? "GET, HEAD" : route->method);
}

static void on_request(void *context, struct http_exchange *exchange)
{
    struct api *api = context;
    struct search search = {.method = http_exchange_method(exchange),
                            .path = http_exchange_path(exchange)};
    bool may = allowed(api, exchange);
    for (size_t i = 0; i < api_route_count; i++)
        look(&search, &api_routes[i], may);
    if (search.found) {
        search.found->answer(api, exchange, search.name);
        return;
    }
    if (!may && !search.allow[0]) {
        struct http_header header = {STR("www-authenticate"), STR("Bearer")};
        answer_status(exchange, 401, "denied", "a bearer token is needed", &header);
    } else if (search.allow[0]) {
        struct http_header header = {STR("allow"), str_of(search.allow)};
        char text[sizeof search.allow + 32];
        snprintf(text, sizeof text, "this path takes %s", search.allow);
        answer_status(exchange, 405, "bad_input", text, &header);
    } else {
        answer_status(exchange, 404, "not_found", "there is nothing at this path", NULL);
    }
}

/* ---------------------------------------------------------------- opening and closing */

static void api_free(struct api *api)
{
    if (api->token)
        explicit_bzero(api->token, strlen(api->token));
    api_keys_free(api);
    api_events_free(api->events);
    api_callbacks_free(api->callbacks);
    free(api->token);
    free(api->token_file);
    free(api->home);
    free(api);
}

static bool is_loopback(const char *address)
{
    return strncmp(address, "127.", 4) == 0 || strcmp(address, "::1") == 0 ||
           strcmp(address, "localhost") == 0;
}

static int api_listen(struct api *api, const struct api_options *options, struct err *err)
{
    const char *address = options->address && options->address[0] ? options->address : "127.0.0.1";
    if (http_server_listen_tcp(api->server, address, options->port, &api->port, err) < 0)
        return err_wrap(err, "the control listener");
    if (!is_loopback(address))
        LOG_WARN("api", NULL, "the control listener is open to the network on %s port %u", address,
                 api->port);
    if (options->unix_path && options->unix_path[0] &&
        http_server_listen_unix(api->server, options->unix_path, 0600, err) < 0)
        return err_wrap(err, "the control listener");
    return 0;
}

static void on_half_built(void *context)
{
    api_free(context);
}

/* The listener is gone and so is everybody who still works for it with the store. */
static void maybe_closed(struct api *api)
{
    if (!api->gone || api->replies)
        return;
    if (api->on_closed)
        api->on_closed(api->closed_context);
    api_free(api);
}

static void on_server_closed(void *context)
{
    struct api *api = context;
    api->gone = true;
    maybe_closed(api);
}

void api_reply_done(struct api *api)
{
    api->replies--;
    maybe_closed(api);
}

static void on_event(void *context, const struct rollout_event *event)
{
    struct api *api = context;
    api_events_event(api->events, event);
    api_callbacks_event(api->callbacks, event);
    api_wait_event(api, event);
}

void api_forget_rollouts(struct api *api)
{
    if (!api->rollouts)
        return;
    api_wait_close(api);
    rollouts_unwatch(&api->watch);
    api->rollouts = NULL;
}

struct api *api_open(struct loop *loop, const struct api_options *options, struct err *err)
{
    struct api *api = mem_zero(sizeof *api);
    api->loop = loop;
    api->store = options->store;
    api->gate = options->gate;
    list_init(&api->waits);
    list_init(&api->sockets);
    api->body_bytes_max = options->body_bytes_max ? options->body_bytes_max : BODY_BYTES_MAX;
    api->submit = options->submit;
    api->cancel = options->cancel;
    api->home = mem_dup(options->home);
    api->token_file = options->token_file && options->token_file[0]
                          ? mem_dup(options->token_file)
                          : mem_format("%s/token", options->home);
    api->events = api_events_new(api, options->event_bytes_max, options->keepalive_ms);
    api->callbacks = api_callbacks_new(api, options->callback_allow, options->callback_tries_max,
                                       options->callback_pause_ms);
    api->write_live = options->write_live;
    api->read_metrics = options->read_metrics;
    api->write_sandboxes = options->write_sandboxes;
    api->write_settings = options->write_settings;
    api->context = options->context;
    if (read_token(api, err) < 0) {
        api_free(api);
        return NULL;
    }
    struct http_server_options server = {
        .body_bytes_max = API_ANSWER_BYTES_MAX, /* routes that want less say so */
        .body_idle_ms_max = BODY_IDLE_MS_MAX,
        .connections_max = options->connections_max ? options->connections_max : CONNECTIONS_MAX,
        .on_request = on_request,
        .context = api,
    };
    api->server = http_server_new(loop, &server);
    if (api_listen(api, options, err) < 0) {
        http_server_close(api->server, 0, on_half_built, api);
        return NULL;
    }
    api->rollouts = options->rollouts;
    if (api->rollouts) {
        api->watch = (struct rollout_watch){.on_event = on_event, .context = api};
        rollouts_watch(api->rollouts, &api->watch);
    }
    api_policy_load(api);
    api_callbacks_begin(api->callbacks);
    return api;
}

void api_close(struct api *api, uint32_t grace_ms, void (*on_closed)(void *context), void *context)
{
    api->on_closed = on_closed;
    api->closed_context = context;
    api_forget_rollouts(api);
    api_events_close(api->events);
    api_gate_close(api);
    http_server_close(api->server, grace_ms, on_server_closed, api);
}

uint16_t api_port(const struct api *api)
{
    return api->port;
}

const char *api_token_file(const struct api *api)
{
    return api->token_file;
}
