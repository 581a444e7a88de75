/* inner.h - what the files of the api room share.
 *
 *     api.c          listens, checks the token, finds the route
 *     routes.c       the table of routes, and smaller things; openapi.c describes them
 *     submit.c       new rollouts and groups; keys.c knows what was asked before
 *     rollouts.c     rollouts: list, one, calls, the end of one
 *     groups.c       groups: list, one, the end of one
 *     files.c        the files of a rollout's folder
 *     wait.c         requests that wait for an end (long-poll)
 *     events.c       what happens, as it happens (server-sent events)
 *     callbacks.c    ends that are told to somebody's URL
 *     policy.c       the weights' version, pause, staleness
 *     gate.c         the gate over HTTP; gate_socket.c the same over a WebSocket
 *     samples.c      what a trainer trains on
 *     kept.c         answers that wait for the journal
 *     metrics.c      counts
 *     fields.c       bodies of requests, read by a table */
#ifndef API_INNER_H
#define API_INNER_H

#include "api/api.h"
#include "base/arena.h"
#include "base/buf.h"
#include "base/list.h"
#include "base/map.h"
#include "base/str.h"
#include "json/json.h"
#include "rollout/rollout.h"

struct gate_take;
struct gate_work;
struct http_exchange;
struct http_server;
struct store_rollout;

#define API_ANSWER_BYTES_MAX ((size_t)64 << 20) /* of what a trainer sends as one answer */
#define API_PAGE_MAX 1000
#define API_WAIT_MS_MAX (5 * 60 * 1000)

struct api {
    struct loop *loop;
    struct http_server *server;
    struct store *store;
    struct gate *gate;         /* NULL: none */
    struct rollouts *rollouts; /* NULL: none, or not any more */
    struct rollout_watch watch;
    char *home, *token_file, *token;
    uint16_t port;
    size_t body_bytes_max;
    struct list waits;       /* takes over HTTP */
    struct list sockets;     /* WebSockets of trainers */
    size_t replies;          /* submissions that wait for the journal */
    bool gone;               /* freed with the last of them */
    struct map pending_keys; /* of submissions that are not in the index yet */
    struct api_events *events;
    struct api_callbacks *callbacks;
    struct map waiting; /* ids of rollouts and groups somebody waits for: struct topic */
    bool (*write_live)(void *context, const char *id, struct json_writer *out);
    void (*read_metrics)(void *context, struct api_metrics *out);
    void (*write_sandboxes)(void *context, struct json_writer *out);
    void (*write_settings)(void *context, struct json_writer *out);
    int (*submit)(void *context, const struct api_submit *orders, size_t count,
                  struct api_receipt *receipt, struct err *err);
    int (*cancel)(void *context, const char *id, const char *why, struct err *err);
    void *context;
    void (*on_closed)(void *context);
    void *closed_context;
};

/* {"error": {"type", "message", "field"?}}, with retry-after where trying again may help. */
void api_answer_error(struct http_exchange *exchange, const struct err *err);
void api_write_metrics(struct api *api, struct buf *out);

/* ---------------------------------------------------------------- fields.c */
enum api_field_type {
    API_NUMBER, /* long long, from min to max */
    API_TEXT,   /* const char *, up to max bytes; in the arena */
    API_BOOL,
    API_VALUE,  /* struct json: anything */
    API_OBJECT, /* likewise; what it should be is for people */
    API_ARRAY,
    API_TASK,
};
/* One member of a request's body: what is read, what is checked and what the OpenAPI document says
 * come from the same row. */
struct api_field {
    const char *name;
    enum api_field_type type;
    size_t offset; /* left alone when the member is missing or null */
    long long min, max;
    bool needed;
    const char *help;
};
struct api_body {
    const char *name;
    const struct api_field *fields;
    size_t count;
};
/* ERR_INPUT names the member that is wrong, unknown or missing. */
int api_read_object(struct json object, const struct api_field *fields, size_t count, void *base,
                    struct arena *arena, struct err *err);
/* An empty body counts as {}. */
int api_read_json(struct str body, struct json_doc *doc, struct err *err);
int api_read_body(struct str body, struct json_doc *doc, const struct api_field *fields,
                  size_t count, void *base, struct arena *arena, struct err *err);

/* ---------------------------------------------------------------- routes.c */
typedef void api_answer(struct api *api, struct http_exchange *exchange, struct str name);
/* A parameter of the query. */
struct api_parameter {
    const char *name;
    bool number; /* from min to max; else text */
    long long min, max;
    const char *help;
};
struct api_route {
    const char *method, *path; /* {name} stands for one name, {name...} for a path at the end */
    bool open;                 /* answered without a token */
    api_answer *answer;        /* `name` is what stands for the first {name} */
    /* For people and their tools (openapi.c). */
    const char *summary;
    int status;                             /* when all went well; 0: 200 */
    const char *shape;                      /* of the answer: a name in openapi.c; NULL: none */
    const struct api_parameter *parameters; /* ends with a zeroed row; NULL: none */
    const struct api_body *body;            /* NULL: none */
    const char *body_type;                  /* NULL: application/json */
};
extern const struct api_route api_routes[];
extern const size_t api_route_count;

/* What the query says, checked against the parameters. Texts are in the arena. */
int api_read_text(struct http_exchange *exchange, const char *name, struct arena *arena,
                  const char **out, struct err *err);
int api_read_number(struct http_exchange *exchange, const char *name, long long min, long long max,
                    long long *out, struct err *err);
/* A name in a path, decoded; NULL (and answered) when it cannot be one. */
const char *api_name(struct http_exchange *exchange, struct str name, struct arena *arena);

api_answer api_answer_rollouts, api_answer_rollout, api_answer_submit, api_answer_cancel;
api_answer api_answer_calls, api_answer_call, api_answer_samples, api_answer_group_samples;
api_answer api_answer_files, api_answer_openapi, api_answer_delete, api_answer_group_delete;
api_answer api_answer_groups, api_answer_group, api_answer_group_submit, api_answer_group_cancel;
api_answer api_answer_events, api_answer_rollout_events, api_answer_group_events;
api_answer api_answer_policy, api_answer_policy_change;
api_answer api_answer_take, api_answer_answer, api_answer_stream, api_answer_extend;
api_answer api_answer_release, api_answer_fail, api_answer_gate, api_answer_socket;

/* ---------------------------------------------------------------- submit.c, keys.c */
extern const struct api_body api_submit_body, api_group_body, api_policy_body;
/* What a submission's body comes to, whatever its spelling; without its "key". */
#define API_HASH_MAX 65
void api_hash(struct json body, char hash[API_HASH_MAX]);
/* What was submitted under this key, also a moment ago: 1: found, 0: nothing. */
struct store_key;
int api_find_key(struct api *api, const char *key, struct store_key *out, struct err *err);
void api_keep_key(struct api *api, const char *key, const char *hash, const char *id, bool group);
void api_drop_key(struct api *api, const char *key); /* the index has it now */
void api_keys_free(struct api *api);
void api_reply_done(struct api *api);

/* ---------------------------------------------------------------- rollouts.c, groups.c */
/* The row with what is known since it was written. */
void api_write_row(struct api *api, const struct store_rollout *row, struct json_writer *out);
/* One rollout as GET /v1/rollouts/{id} says it. -1: there is none. */
int api_write_rollout(struct api *api, const char *id, struct buf *out, struct err *err);
int api_write_group(struct api *api, const char *id, struct buf *out, struct err *err);

/* ---------------------------------------------------------------- policy.c */
void api_policy_load(struct api *api); /* as it was said to the last server */

/* ---------------------------------------------------------------- kept.c */
/* Answers when everything that was put into the store until now is in the journal. */
void api_answer_kept(struct api *api, struct http_exchange *exchange, int status, struct str body);

/* ---------------------------------------------------------------- wait.c */
/* Answers when the rollout (or every rollout of the group) is over, or the time is up. */
void api_wait(struct api *api, struct http_exchange *exchange, const char *id, bool group,
              uint32_t wait_ms);
void api_wait_event(struct api *api, const struct rollout_event *event);
void api_wait_close(struct api *api);

/* ---------------------------------------------------------------- events.c */
struct api_events *api_events_new(struct api *api, size_t bytes_max, uint32_t keepalive_ms);
void api_events_event(struct api_events *events, const struct rollout_event *event);
size_t api_events_streams(const struct api_events *events);
void api_events_close(struct api_events *events); /* every stream ends */
void api_events_free(struct api_events *events);

/* ---------------------------------------------------------------- callbacks.c */
#define API_SECRET_PREFIX "CALLBACK_SECRET"
struct api_callbacks *api_callbacks_new(struct api *api, const char *allow, uint32_t tries_max,
                                        uint32_t pause_ms);
void api_callbacks_begin(struct api_callbacks *callbacks); /* with what is pending */
/* May a rollout have this callback? err->field is below "callback". */
int api_callback_check(struct api *api, struct json callback, struct arena *arena, struct err *err);
void api_callbacks_event(struct api_callbacks *callbacks, const struct rollout_event *event);
struct api_callback_counts {
    uint64_t pending;           /* now, in memory */
    uint64_t delivered, failed; /* since start */
};
struct api_callback_counts api_callbacks_counts(const struct api_callbacks *callbacks);
void api_callbacks_free(struct api_callbacks *callbacks);

/* ---------------------------------------------------------------- gate.c, gate_socket.c */
bool api_has_gate(struct api *api, struct http_exchange *exchange); /* false: answered */
extern const struct api_body api_take_body, api_extend_body, api_release_body, api_fail_body;
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
    /* Of the WebSocket's form. */
    const char *said;
    struct json id, value;
};
const struct api_body *api_change_body(const char *op);
int api_change_call(struct api *api, const struct api_change *change, struct err *err);
/* Whoever waits is answered, sockets are closed. */
void api_gate_close(struct api *api);
void api_gate_sockets_close(struct api *api);

#endif
