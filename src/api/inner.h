/* inner.h - what the files of the api room share.
 *
 *     api.c          listens, checks the token, finds the route
 *     routes.c       rollouts and smaller things; metrics.c counts
 *     gate.c         the gate over HTTP; gate_socket.c the same over a WebSocket
 *     submit.c       new rollouts
 *     samples.c      what a trainer trains on
 *     fields.c       bodies of requests, read by a table */
#ifndef API_INNER_H
#define API_INNER_H

#include "api/api.h"
#include "base/arena.h"
#include "base/buf.h"
#include "base/list.h"
#include "base/str.h"
#include "json/json.h"

struct gate_take;
struct gate_work;
struct http_exchange;
struct http_server;

#define API_ANSWER_BYTES_MAX ((size_t)64 << 20) /* of what a trainer sends as one answer */

struct api {
    struct loop *loop;
    struct http_server *server;
    struct store *store;
    struct gate *gate; /* NULL: none */
    char *home, *token_file, *token;
    uint16_t port;
    size_t body_bytes_max;
    struct list waits;   /* takes over HTTP */
    struct list sockets; /* WebSockets of trainers */
    bool (*write_live)(void *context, const char *id, struct json_writer *out);
    void (*read_metrics)(void *context, struct api_metrics *out);
    int (*submit)(void *context, const struct api_submit *order, char id[ID_MAX], struct err *err);
    int (*cancel)(void *context, const char *id, const char *why, struct err *err);
    void *context;
    void (*on_closed)(void *context);
    void *closed_context;
};

struct api_route {
    const char *method, *path; /* a '*' stands for one name */
    bool open;                 /* answered without a token */
    void (*answer)(struct api *api, struct http_exchange *exchange, struct str name);
};
extern const struct api_route api_routes[];
extern const size_t api_route_count;
extern const struct api_route api_gate_routes[];   /* ends with a zeroed row */
extern const struct api_route api_submit_routes[]; /* likewise */

/* {"error": {"kind", "message"}} */
void api_answer_error(struct http_exchange *exchange, const struct err *err);
void api_write_metrics(struct api *api, struct buf *out);

/* ---------------------------------------------------------------- samples.c */
void api_answer_samples(struct api *api, struct http_exchange *exchange, struct str name);

/* ---------------------------------------------------------------- fields.c */
enum api_field_type {
    API_NUMBER, /* long long, from min to max */
    API_TEXT,   /* const char *, up to max bytes; in the arena */
    API_BOOL,
    API_VALUE, /* struct json */
};
struct api_field {
    const char *name;
    enum api_field_type type;
    void *out; /* left alone when the member is missing or null */
    long long min, max;
    bool needed;
};
/* ERR_INPUT names the member that is wrong, unknown or missing. */
int api_read_object(struct json object, const struct api_field *fields, size_t count,
                    struct arena *arena, struct err *err);
/* The same for a request's body; an empty one counts as {}. */
int api_read_body(struct str body, struct json_doc *doc, const struct api_field *fields,
                  size_t count, struct arena *arena, struct err *err);

/* ---------------------------------------------------------------- gate.c, gate_socket.c */
/* `id` NULL: the HTTP form, which has no "op" and "id". */
int api_read_take(struct json object, struct arena *arena, struct gate_take *take, bool *raw,
                  struct json *id, struct err *err);
/* The members "calls" and "paused". Calls that would make it too large go back to the queue. */
void api_write_calls(struct api *api, struct gate_work *const *calls, size_t count, bool raw,
                     struct json_writer *out);
/* extend, release, fail. */
struct api_change {
    const char *op, *call_id, *lease;
    long long lease_ms, status;
    const char *type, *message;
};
size_t api_change_fields(struct api_change *change, struct api_field fields[8]);
int api_change_call(struct api *api, const struct api_change *change, struct err *err);
void api_answer_socket(struct api *api, struct http_exchange *exchange, struct str name);
/* Whoever waits is answered, sockets are closed. */
void api_gate_close(struct api *api);
void api_gate_sockets_close(struct api *api);

#endif
