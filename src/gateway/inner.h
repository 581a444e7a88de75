/* inner.h - what the files of the gateway room share.
 *
 *     gateway.c   lanes' side: modes, counters, one HTTP client per model
 *     session.c   one rollout's side: routes, limits, report
 *     call.c      one call, up to its intent; call_attempt.c asks and relays, call_trouble.c is
 * what becomes of attempts that fail, call_out.c the way to the agent, call_end.c record and end;
 * call_request.c is what goes out, call_answer.c what comes back rules.c     what the agent's spec
 * says about a call lineage.c   what a call shares with an earlier one; skim.c leaves that unread
 *     lines.c     calls.jsonl
 *     replay.c    an earlier rollout's record as a model
 *     retry.c     requests that come again, and agents that went away
 *     restore.c   a session that goes on where a dead server left it
 *     prefix.c    prompts that go on from sampled tokens; generate.c asks vLLM in tokens
 *     upstream.c  one attempt: over HTTP, played from a script, or held at the gate
 *     hold.c      holds; hold_object.c is what the trainer sees of a held call
 *     tools.c     a rollout's own tools; tools_run.c is one call of one; mcp.c offers them as MCP
 *     model.c     what a model is; script.c reads scripts; play.c makes and plays their answers */
#ifndef GATEWAY_INNER_H
#define GATEWAY_INNER_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/arena.h"
#include "base/buf.h"
#include "base/list.h"
#include "base/map.h"
#include "base/pile.h"
#include "dialect/dialect.h"
#include "gateway/gateway.h"
#include "http/http.h"
#include "json/json.h"
#include "loop/loop.h"

struct call;
struct gate;
struct generate;
struct replay;
struct retry;
struct script;

/* ---------------------------------------------------------------- upstream_pool.c */
/* One server of a model. What is below the line is behind the pool's lock. */
struct endpoint {
    char *base_url;                    /* without a final slash */
    bool bare;                         /* it has no path: the version goes in between */
    char *proxy, *proxy_authorization; /* NULL: straight; none */
    /* --- */
    uint32_t in_flight, failures_row, ejections_row;
    bool probing; /* a call finds out whether it is back */
    uint64_t ejected_until_ms, busy_until_ms, allowance_ms;
    double allowance;
    uint64_t requests, failures, retries, ejections;
};

struct pool {
    pthread_mutex_t lock;
    struct endpoint *endpoints;
    size_t count;
    struct list waiting; /* seats, the oldest first */
    uint32_t waiting_count, queue_max;
    uint32_t parallel_max; /* per endpoint; 0: no limit */
    double rate_max;       /* calls per second and endpoint; 0: no limit */
};
void pool_init(struct pool *pool);
void pool_deinit(struct pool *pool);
struct endpoint *pool_add(struct pool *pool, struct str base_url);
void pool_read(struct pool *pool, size_t index, struct model_upstream *out);

/* Where a rollout is at home, and where it was disappointed. Numbers from 1; 0: nowhere. */
struct place {
    uint32_t endpoint, avoid;
};
struct seat_options {
    struct place *place; /* kept up to date */
    uint32_t wait_ms_max;
    bool retry;
};
enum seat_end {
    SEAT_FINE,
    SEAT_BUSY, /* it said that it has too much to do */
    SEAT_FAILED,
    SEAT_LEFT, /* nothing was learnt */
};
struct seat;
/* Either seat_endpoint() is there at once, or on_seat comes once: with the endpoint or an error. */
struct seat *seat_ask(struct pool *pool, struct loop *loop, const struct seat_options *options,
                      void (*on_seat)(void *context, const struct err *err), void *context);
const struct endpoint *seat_endpoint(const struct seat *seat); /* NULL: it waits */
/* Any time; silent afterwards. NULL is fine. */
void seat_leave(struct seat *seat, enum seat_end end, int64_t busy_ms);

/* ---------------------------------------------------------------- upstream_proxy.c */
/* Both are NULL or to be freed. */
int proxy_find(const struct http_url *url, char **proxy, char **authorization, struct err *err);
bool proxy_excluded(const char *list, struct str host, uint16_t port);

/* ---------------------------------------------------------------- model.c */
struct model {
    atomic_uint references;
    struct list node; /* among all models */
    char *spec, *name;
    const char *base_url; /* of the first server; NULL: a script */
    struct pool pool;
    char *key; /* NULL: none */
    char *ca_file;
    const struct dialect *api; /* NULL: the agent's own */
    enum dialect_engine engine;
    bool thinking_off;
    atomic_bool ready; /* all of the above is in place */
    struct script *script;
    struct replay *replay;
    struct model_options options; /* numbers only; defaults put in */
};

/* ---------------------------------------------------------------- upstream.c, play.c */
struct digest {
    uint64_t high, low;
};
/* A request's body; read by the lane and, while it is held, by the gate's loop. Never changes. */
struct body {
    atomic_uint references;
    struct buf bytes;
    /* The lane's: a hash of all bytes, and the hashes of their pieces it is made of: skim.c. */
    struct digest digest;
    struct digest *pieces;
    size_t piece_count;
    char inside[]; /* the bytes, when they came in one piece */
};
struct body *body_new(struct str bytes);
/* The body of the request that was just read, without copying it where that is possible. */
struct body *body_take(struct http_exchange *exchange, struct str bytes);
struct body *body_ref(struct body *body);
void body_unref(struct body *body); /* NULL is fine */

/* Where in a body the members are that the trainer sees; not known: it has to be read again. */
struct hold_view {
    struct str messages, tools, prompt; /* in the body */
    struct str sampling;                /* an object */
    bool known;
};
/* The messages before `rest` are known to be of no other role than a trainer knows; NULL: none is.
 */
void hold_view_read(struct hold_view *view, const struct dialect *dialect, struct json body,
                    const struct json_item *rest, struct arena *arena);

/* How a call is held. */
struct prefix;
struct upstream_hold {
    struct gate *gate;
    const char *call_id, *group_id; /* group: NULL: none */
    struct body *body;              /* as the agent sent it */
    const struct dialect *dialect;  /* the agent's */
    const struct hold_view *view;
    const struct prefix *prefix; /* NULL: none */
    uint32_t turn;
    uint64_t deadline_ms;
    int64_t *policy_version; /* becomes known when the call is taken */
};

/* What an attempt is made from; borrowed until the attempt is over. */
struct upstream_request {
    const struct dialect *dialect; /* spoken to the model server */
    const struct trace_request *request;
    const char *path;                  /* "/chat/completions" */
    bool outside;                      /* the path is beside /v1, not below it */
    struct str body;                   /* as it goes out, */
    struct json_gap gap;               /* with this in the middle */
    const struct http_header *headers; /* the agent's that may go out: upstream_headers() */
    size_t header_count;
    struct place *place;
    bool retry; /* not the first attempt */
    const char *rollout_id;
    const char *task;
    uint32_t index, number;
    uint32_t *uses; /* how often each rule of the script was used in this session; or which call
                       used each answer of the record */
    struct err *divergence; /* the first difference to the record; kind ERR_NONE: none so far */
    const struct upstream_hold *hold; /* NULL: the model answers */
};

struct upstream_head {
    int status;
    bool stream;            /* text/event-stream */
    int64_t retry_after_ms; /* -1: not said */
    bool show;              /* the script wants the agent to see this error as it is */
    bool unanswered;        /* it is the gate's own: no trainer said anything */
};

/* The same contract as struct http_call_handlers. `script_error`: the script itself is at fault. */
struct upstream_handlers {
    void (*on_head)(void *context, const struct upstream_head *head);
    void (*on_data)(void *context, struct str data);
    void (*on_done)(void *context, const struct err *err, bool script_error);
};

struct upstream; /* one attempt */
struct upstream *upstream_start(struct gateway *gateway, struct model *model,
                                const struct upstream_request *request,
                                const struct upstream_handlers *handlers, void *context);
void upstream_pause(struct upstream *upstream);
void upstream_resume(struct upstream *upstream);
/* What the next piece will touch, as http_call_ahead(); there is room for one place more. */
void upstream_ahead(struct upstream *upstream, struct http_place *places, size_t count);
/* Any time, also from its own callbacks and after on_done. Silent afterwards. NULL is fine. */
void upstream_close(struct upstream *upstream);
/* Of an agent's headers those that mean something to a model server, copied. */
size_t upstream_headers(struct http_exchange *exchange, struct arena *arena,
                        const struct http_header **out);
/* What a script says about tokens; valid until upstream_close(). NULL: nothing. */
const struct trace_answer *upstream_tokens(const struct upstream *upstream);

struct play;
struct play *play_start(struct loop *loop, const struct script *script,
                        const struct upstream_request *request,
                        const struct upstream_handlers *handlers, void *context);
struct play *play_replay(struct loop *loop, const struct replay *replay,
                         const struct upstream_request *request,
                         const struct upstream_handlers *handlers, void *context);
void play_pause(struct play *play);
void play_resume(struct play *play);
void play_close(struct play *play);
const struct trace_answer *play_tokens(const struct play *play);

struct hold;
struct hold *hold_start(struct loop *loop, const struct upstream_request *request,
                        const struct upstream_handlers *handlers, void *context);
void hold_pause(struct hold *hold);
void hold_resume(struct hold *hold);
void hold_close(struct hold *hold);

/* hold_request.c: the request of a call that is held is forgotten after a while, and read again
 * before anybody looks at it. */
void request_quiet(struct call *call);
void request_recall(struct call *call); /* does nothing when it is there */
void request_over(struct call *call);

/* ---------------------------------------------------------------- skim.c */
void skim_digest(struct call *call);
/* Reads call->body into call->doc and call->request, as far as it has to be read. */
int skim_read(struct call *call, const struct dialect_route *route, struct err *err);
/* All messages and tools of call->request, also those that were known. */
void request_whole(struct call *call);
/* `all`: also the tape that was its parent's. */
void skim_forget(struct call *call, bool all);

/* What the gate keeps of a call; written and freed on its loop. */
void *hold_object_new(struct body *body, const struct dialect *dialect,
                      const struct trace_request *request, const struct hold_view *view,
                      const struct prefix *prefix);
void hold_object_write(void *payload, bool raw, struct json_writer *out);
void hold_object_free(void *payload);

/* ---------------------------------------------------------------- replay.c */
/* `source` is a rollout's id, below `home` (NULL: it is not), or a rollout's folder. */
struct replay *replay_open(const char *home, const char *source, struct err *err);
void replay_free(struct replay *replay); /* NULL is fine */
const char *replay_name(const struct replay *replay);
size_t replay_calls(const struct replay *replay);
/* An answer as trace_answer_write() wrote it, without its tokens. */
int recorded_answer_read(struct json answer, struct arena *arena, struct trace_answer *out,
                         struct err *err);
/* Notes the use in request->uses. NULL and err: nothing is left. */
const struct trace_answer *replay_find(const struct replay *replay,
                                       const struct upstream_request *request,
                                       struct err *divergence, struct err *err);

/* ---------------------------------------------------------------- script.c */
struct script_call {
    struct str name, arguments, id; /* id: STR_NONE: made up */
};

enum script_tokens { SCRIPT_TOKENS_NONE, SCRIPT_TOKENS_GENERATED, SCRIPT_TOKENS_GIVEN };

struct script_answer {
    struct str text, reasoning; /* data NULL: none */
    const struct script_call *calls;
    size_t call_count;
    enum trace_finish finish;                 /* NONE: stop or tool_calls, as fits */
    int64_t prompt_tokens, completion_tokens; /* -1: counted */
    uint32_t first_delay_ms, chunk_delay_ms, chunk_bytes;
    int status; /* 0: no error */
    struct str error_message, error_code;
    int64_t retry_after_ms; /* -1: none */
    bool error_show;
    bool hang;
    int64_t reset_after; /* chunks; -1: no reset */
    enum script_tokens tokens;
    const int32_t *token_ids, *prompt_ids;
    const float *logprobs;
    size_t token_id_count, prompt_id_count, logprob_count;
};

/* What a rule sees of a request. */
struct script_scene {
    const char *task;
    uint32_t index, turn;
    bool tools, stream;
    struct str last, result, instruction, system;
};
void script_scene_read(struct script_scene *scene, const struct upstream_request *request,
                       struct arena *arena);

struct script *script_open(const char *path, struct err *err);
void script_free(struct script *script);
const char *script_name(const struct script *script);
size_t script_rules(const struct script *script);
/* The answer for this scene; counts the use. NULL and err: no rule fits. */
const struct script_answer *script_find(const struct script *script,
                                        const struct script_scene *scene, uint32_t *uses,
                                        struct err *err);

/* ---------------------------------------------------------------- gateway.c */
struct gateway_client {
    struct list node;
    struct model *model;
    struct http_client *client;
};

struct gateway {
    struct loop *loop;
    struct store *store;
    struct gate *gate; /* NULL: none */
    struct list clients;
    uint64_t hash_seed;      /* so that nobody makes two messages pass for the same */
    size_t remembered_bytes; /* of answers, over all sessions: retry.c */
    struct dialect_scratch scratch;
    struct buf gathered;     /* of a piece that is being read: what goes on to the agent */
    struct buf text;         /* gateway_text() */
    struct list spare_calls; /* call_memory.c */
    size_t spare_call_count;
    size_t kept_bytes;        /* of requests of calls that wait: hold_request.c */
    struct arena spare_arena; /* memory of requests that are forgotten, for the next one */
    struct json_doc spare_doc;
    struct list unwritten; /* sessions with lines that wait, by lines.node: lines.c */
    struct loop_timer lines_timer;
    uint32_t lines_ms;
    atomic_uint_fast64_t calls, answered, broken, refused, retries, redelivered, connections;
    atomic_uint_fast64_t prompt_tokens, completion_tokens, in_flight, sessions;
};
struct http_client *gateway_client(struct gateway *gateway, struct model *model);
/* An empty buffer for what is written and handed on at once; whoever asks next empties it. */
struct buf *gateway_text(struct gateway *gateway);

/* ---------------------------------------------------------------- session.c */
enum refusal {
    REFUSED_CONNECT,
    REFUSED_ABSOLUTE,
    REFUSED_WEBSOCKET,
    REFUSED_PATH,
    REFUSED_METHOD,
    REFUSED_BODY,  /* too large, or broken off */
    REFUSED_INPUT, /* not a model call */
    REFUSED_BUSY,  /* too many at once */
    REFUSED_LIMIT,
    REFUSED_STOPPED,
    REFUSALS
};

/* calls.jsonl: lines.c. */
struct lines {
    int fd; /* -1: none */
    char *path;
    bool failed;   /* something is missing */
    uint64_t lost; /* ancestors up to this age may have no line to refer to */
    struct buf waiting;
    uint64_t due_ms;
    struct list node; /* of gateway.unwritten */
};

/* Recent calls that later ones may have grown out of: lineage.c. */
struct ancestor {
    struct body *body; /* NULL: the place is free */
    char call_id[ID_MAX];
    uint64_t age;
    size_t bytes;     /* that it holds */
    uint64_t *hashes; /* one per message */
    size_t message_count;
    uint64_t tools;
    struct buf ids; /* of its prompt and its completion */
    bool answered;
    struct trace_key answer, answer_calls; /* which message its answer is */
    uint32_t request_depth, prompt_depth;
    /* For whoever grows out of it: skim.c. */
    const struct dialect *dialect;
    struct json_doc doc; /* its tape; empty: it was too large to be kept */
    /* struct dialect_skim, its values in the body. */
    struct dialect_end *ends; /* NULL: not known */
    size_t end_count, front, tool_count, array_at, last_end;
    struct str front_value, tools_value;
    bool tools_plain; /* dialect_tools_plain() */
    bool plain;       /* struct hold_view was known */
};
struct lineage {
    struct ancestor *ancestors;
    size_t count, capacity;
    uint64_t clock;
};

/* What MCP clients of this rollout are doing: mcp.c. */
#define MCP_GONE_MAX 16
struct mcp {
    struct list posts;           /* that wait for an answer */
    uint64_t gone[MCP_GONE_MAX]; /* sessions that were ended; a ring */
    uint32_t gone_count;
    uint32_t sessions, lists, calls, cancelled;
    const char *version; /* as last agreed; NULL: never */
    char client[96];
};

/* What is known of a call's prompt, token by token: prefix.c. */
struct prefix {
    bool looked, given_up, ready;
    char call_id[ID_MAX];
    struct buf ids;  /* of that call's prompt and completion */
    size_t messages; /* of the request that they stand for; 0: none */
    /* In mode proxy. */
    int status;
    struct buf answer, before; /* of the engine; as it renders those messages */
    struct buf tokens, body;   /* the prompt; the request with it */
};
void prefix_deinit(struct prefix *prefix);
/* Only where the session asks for it. */
bool prefix_find(struct call *call);
/* The engine is asked to render something; call_attempt() comes again. False: nothing to be done.
 */
bool prefix_render(struct call *call);
/* The call goes out without one. */
void prefix_give_up(struct call *call, const char *why);
/* prefix->tokens: known tokens, what the template puts after an answer, and the new messages, out
 * of prefix->before and the rendering of all messages. Why not, or NULL: done. */
const char *prefix_compose(struct prefix *prefix, const struct buf *all);
/* JSON lists of token ids, as arrays of 4 bytes. False: something in it is no id, or it is empty.
 */
bool ids_read(struct json list, struct buf *out);
void ids_write(struct str ids, struct buf *out);
void prefix_report(const struct gateway_session *session, struct json_writer *out);

/* The session's recent calls, for requests that come again. */
#define TAKEN_MAX 64
struct retries {
    struct gateway *gateway;
    struct map by_key;
    struct list order;
    size_t count, bytes;
    /* Calls whose answer arrived, by number, since the last entry was written: what a server that
     * takes over need not remember. */
    uint32_t taken[TAKEN_MAX];
    size_t taken_count;
};

struct retry_key {
    uint64_t high, low;
};

struct gateway_session {
    struct gateway *gateway;
    struct retries retries;
    struct map restored; /* open calls of a dead server, by key: restore.c */
    uint32_t retry_grace_ms;
    struct place place; /* among the model's servers */
    struct lineage lineage;
    struct err divergence; /* from the record that is replayed */
    struct http_server *server;
    struct model *model;
    char *rollout_id, *group_id, *task, *stop_reason;
    uint32_t index;
    enum gateway_mode mode;
    struct gateway_limits limits;
    struct gateway_sampling sampling;
    bool exact_prefix;
    uint32_t prefix_calls, prefix_used;
    char prefix_trouble[160];
    uint32_t keepalive_ms, headers_after_ms, unary_after_ms;
    uint64_t held_ms_max;
    struct tools *tools; /* NULL: none */
    uint32_t tools_in_flight, tool_calls;
    void (*on_tool)(void *context, struct gateway_tool *tool, const char *name,
                    struct str arguments);
    void (*on_tool_closed)(void *context, struct gateway_tool *tool);
    void (*on_tool_note)(void *context, const struct gateway_tool_note *note);
    struct mcp mcp;
    const struct trace_rules *rules; /* NULL: none */
    struct buf nonces;               /* all of the last call that had some: a JSON array */
    char nonces_call[ID_MAX];        /* which it was */
    void (*on_call)(void *context, const struct trace_call *call, enum gateway_phase phase);
    void (*on_exhausted)(void *context, enum gateway_cause cause, const struct err *why);
    void *context;

    struct gateway_stats stats;
    uint32_t turns_reserved;
    int64_t tokens_reserved;
    size_t bytes_reserved;   /* bodies of calls under way */
    uint64_t recorded_bytes; /* new ones of calls that are over */
    bool tools_seen;
    uint32_t *script_uses;
    uint32_t refusals[REFUSALS];
    uint64_t wasted, wasted_bytes; /* requests that were read and refused */
    struct map hosts;              /* name -> count, as a number in the pointer */
    uint32_t hosts_more;
    struct lines lines;
    struct list calls;

    bool exhausted, closing, finished;
    uint32_t grace_ms; /* still to be granted */
    enum gateway_cause exhausted_cause;
    struct err exhausted_why;
    struct loop_timer grace;
    void (*on_closed)(void *context);
    void *closed_context;
};

void session_refused(struct gateway_session *session, enum refusal why);
/* The path of a request, without the host of an absolute URL and without /rollout/{own id}. */
struct str session_path(const struct gateway_session *session,
                        const struct http_exchange *exchange);
void session_cause(struct gateway_session *session, enum gateway_cause cause,
                   const struct err *why);
/* No later call will be answered; tells the owner once. */
void session_exhaust(struct gateway_session *session, enum gateway_cause cause,
                     const struct err *why);
/* -1: nothing is answered now, whatever is asked: not worth reading. As session_admit(). */
int session_open_for_calls(struct gateway_session *session, int *status, uint32_t *retry_after_s,
                           struct err *err);
/* A request was read and refused. */
void session_wasted(struct gateway_session *session, size_t bytes);
/* Reserves what the call may use. -1: refused; *status and *retry_after_s say how to put it. */
int session_admit(struct gateway_session *session, struct call *call, int *status,
                  uint32_t *retry_after_s, struct err *err);
/* Gives the reservation back. */
void session_unreserve(struct gateway_session *session, struct call *call);
/* What a call adds to the record. */
uint64_t session_recorded(struct call *call);
/* Gives the reservation back and books what was used. */
void session_settle(struct gateway_session *session, struct call *call);
/* The call is over and freed. */
void session_call_gone(struct gateway_session *session);

/* ---------------------------------------------------------------- call.c */
enum call_state {
    CALL_INTENT,   /* the intent is being committed */
    CALL_UPSTREAM, /* an attempt is under way */
    CALL_WAITING,  /* until the next attempt */
    CALL_PARKED,   /* until its agent is back: retry.c */
    CALL_ENTRY,    /* the entry is being committed; nothing can change any more */
    CALL_DONE,
};

struct call {
    /* What every event of a stream touches, side by side. */
    struct gateway *gateway;
    struct http_exchange *exchange; /* NULL: the agent went away or has its answer */
    struct upstream *upstream;
    struct dialect_reader *reader;
    struct pile sent;   /* of a stream: all that was relayed */
    struct list others; /* older connections of the same agent that still live */
    struct str secret;  /* the model server's key, which must not come back; empty: none */
    uint64_t written_ms, answer_bytes;
    bool passes;      /* what the model server sends goes on as it is, but for what is stripped */
    bool begun;       /* the answer's head was sent */
    bool relayed;     /* and something of the answer */
    bool paused;      /* the model server waits until the agent has read */
    bool key_leaked;  /* the secret came back */
    bool reader_over; /* it has been asked for its end, or failed */
    struct upstream_head head;

    struct list node; /* in session->calls */
    struct gateway_session *session;
    const struct dialect *dialect; /* the agent's */
    const struct dialect *api;     /* the model server's */
    bool anew;                     /* the answer is written from what was read, not relayed */
    enum call_state state;
    struct arena arena;
    struct body *body;
    struct json_doc doc;      /* its tape */
    bool tape_moved;          /* it was the parent's */
    struct dialect_skim skim; /* what of it is blank: request_whole() */
    struct arena request_arena;
    struct hold_view view; /* in mode gate */
    struct loop_timer quiet;
    bool request_away; /* forgotten: hold_request.c */
    size_t kept_bytes; /* of the request, while it waits */
    struct trace_request request;
    struct trace_answer answer;
    struct trace_call record;
    char answer_id[ID_MAX];

    struct dialect_writer writer; /* of a stream that is written anew, live */
    bool writing;
    const struct trace_side_rule *side_rule; /* that fits; NULL: none does */
    struct buf rewritten;                    /* the body in proxy mode */
    struct json_gap rewritten_gap;           /* and what of it was left where it is */
    struct buf error_body;                   /* of an answer with a status that is not 200 */
    struct buf held;    /* terminal events, or the whole body, until the entry is committed */
    struct err trouble; /* why the call did not end well */
    bool script_error;
    int shown_status; /* for a failure: the agent's status, 0: a reset */
    uint32_t retry_after_s;
    int64_t retry_after_ms; /* what the upstream asked for; -1: nothing */
    struct str upstream_message, upstream_code;

    const struct http_header *headers; /* the agent's that go on */
    size_t header_count;
    int parent; /* among the session's ancestors; -1: none */
    bool parent_known, committed;
    uint64_t parent_clock;
    size_t parent_bytes; /* that the bodies share at the front */
    uint64_t *hashes;    /* of the messages; NULL: not read yet */
    uint64_t tools_hash; /* 0: there are none */
    bool plain;          /* struct hold_view of the call it was skimmed from was known */
    uint32_t request_depth, prompt_depth;
    struct retry_key key;
    struct prefix prefix;
    struct generate *generate; /* NULL: not asked in tokens, or not begun: generate.c */
    struct retry *memory;      /* NULL: it is not remembered */
    struct loop_timer away;    /* runs while nobody is there */
    bool given_up;             /* nobody came back */
    bool parked_answer;        /* the answer is complete */
    uint32_t tries;            /* since the agent last asked */

    bool vf;      /* asked for at /vf/model */
    bool closing; /* a close is asked for: do not start over */
    struct loop_timer retry, pulse;

    bool reserved, reserved_turn;
    int64_t reserved_tokens;
    size_t reserved_bytes;
};

#define CALL_LOG(level, call, ...)                                                                 \
    log_write_of(level, "gateway", (call)->session->rollout_id, (call)->record.id, __VA_ARGS__)

struct call_other {
    struct list node; /* in call->others */
    struct http_exchange *exchange;
    bool begun;
};

/* --- call_memory.c */
struct call *call_new(struct gateway_session *session);
void call_keep(struct call *call); /* it is over, and holds nothing but its arenas */
void call_free_spares(struct gateway *gateway);
/* --- call.c */
/* The route was found and the body is there, which is the call's from now on. Answers in every
 * case. `vf`: the answer is wrapped by vf_model_wrap(). */
void call_begin(struct gateway_session *session, struct http_exchange *exchange,
                const struct dialect *dialect, struct body *body, bool vf);
/* --- call_attempt.c */
/* The next attempt, or what has to come before it. */
void call_attempt(struct call *call);
/* Attempts begin anew: nothing of the answer was seen by whoever waits now. */
void call_again(struct call *call);
/* --- call_trouble.c */
/* Ends it now, as broken. */
void call_break(struct call *call, enum err_kind kind, const char *text);
/* Repeated, or recorded and shown. */
void call_attempt_failed(struct call *call, const struct err *err);
/* The same for an answer with a status that is not 2xx, whose body is in call->error_body. */
void call_refused(struct call *call);
/* A copy in the call's arena without the model's key, cut to a decent length. */
struct str call_scrubbed(struct call *call, struct str text);
/* --- call_out.c */
/* Makes call->exchange the one that hears and is heard. */
void call_listen(struct call *call);
/* To the agent, without remembering it. */
void call_send(struct call *call, struct str bytes);
/* The same without its older connections, which have these bytes already. */
void call_send_newest(struct call *call, struct str bytes);
/* The end of the answer, to everybody who waits for it. */
void call_give_answer(struct call *call);
void call_give_trouble(struct call *call);
/* Ends an exchange that the call has no answer for. */
void call_show_trouble(struct call *call, struct http_exchange *exchange, bool begun);
/* --- call_end.c */
/* Records the call and then ends it. */
void call_enter(struct call *call);
/* Ends a call that could not be begun, without a word in the journal. */
void call_drop(struct call *call);
void call_free(void *call); /* when the tick is over */
/* A committed answer went to one more connection. */
void call_note_delivery(struct gateway_session *session, const char *call_id, uint32_t count);
/* --- call_request.c */
/* The body as it is recorded and goes on: in black_box mode as it came, else without the nonces
 * that the rules name. */
void call_canonical(struct call *call);
/* Leaves out of the record what the one before has: a history only grows. */
void call_share_nonces(struct call *call);
/* Whether a rule says what this call is. */
void call_find_side(struct call *call, struct http_exchange *exchange);
/* The dialect the model server is spoken to in. -1: there is no way to say it there. */
int call_choose_api(struct call *call, struct err *err);
/* The body as it goes out, when it is not the agent's own. */
void call_rewrite(struct call *call);
/* --- call_answer.c */
/* What a script knows without having been asked. */
void call_copy_tokens(struct call *call, const struct trace_answer *from);
/* Why tokens are missing, where they should be there. */
void call_note_tokens(struct call *call);
/* A live stream in the agent's dialect. */
void call_begin_writing(struct call *call);
void call_stop_writing(struct call *call);
/* call->held from call->answer: the end of a live stream, or all of it. */
void call_convert(struct call *call);
/* The answer as a stream, made anew. */
void call_stream_answer(struct call *call, struct buf *out);
/* The head of an answer that is not there yet: of a stream, or of JSON, before which blanks may
 * come as signs of life. */
void exchange_begin(struct http_exchange *exchange, bool stream);
void exchange_begin_stream(struct http_exchange *exchange);
/* All of an answer, or what is left of it, that is no stream. */
void exchange_end_json(struct http_exchange *exchange, bool begun, struct str body);
/* --- vf_model.c */
bool vf_model_request(struct gateway_session *session, struct http_exchange *exchange,
                      struct str path);
void vf_model_wrap(struct call *call);
/* An error in the agent's dialect. */
void answer_error(struct http_exchange *exchange, const struct dialect *dialect, int status,
                  const char *code, struct str message, uint32_t retry_after_s);

/* ---------------------------------------------------------------- lineage.c */
struct store_record;
void lineage_deinit(struct lineage *lineage);
/* The remembered call whose body has the most in common with this one from the front; NULL: none
 * has a single byte. */
const struct ancestor *lineage_parent(struct call *call, size_t *shared);
/* Its parent's tape, which another call that is under way took along, and how many bytes this call
 * shares with that one. NULL: nobody has it. */
const struct json_doc *lineage_tape(struct call *call, size_t *shared);
/* Bytes of the body that its parent does not begin with. */
size_t lineage_new_bytes(struct call *call);
/* Hashes what of call->request was read, while it is at hand: once, however often it is compared.
 */
void lineage_hash(struct call *call);
/* Where the messages begin that its parent did not have; those before may be seen by a trainer as
 * they are. NULL: look at all. */
const struct json_item *lineage_plain(const struct call *call);
/* Adds the request, and what it and the prompt may be a difference to. */
void lineage_entry(struct call *call, struct store_record *entry);
/* The call's line of calls.jsonl, without what its parent's line has. */
void lineage_line(struct call *call, struct buf *out);
/* The call that this one goes on from: its messages and its answer are the first `messages` of this
 * one's, the tools are the same, and its tokens are known. NULL: none. */
const struct ancestor *lineage_continued(struct call *call, size_t *messages);
/* The call's entry is committed and its line written: it may be a parent. */
void lineage_add(struct call *call);

/* ---------------------------------------------------------------- lines.c */
int lines_open(struct gateway_session *session, const char *path, struct err *err);
/* Where the next line goes, before lines_added(); NULL: nowhere. */
struct buf *lines_room(struct gateway_session *session);
void lines_added(struct gateway_session *session);
/* All that wait. */
void lines_write(struct gateway_session *session);
void lines_close(struct gateway_session *session);

/* ---------------------------------------------------------------- retry.c */
void retries_init(struct retries *retries, struct gateway *gateway);
void retries_deinit(struct retries *retries);
/* True: the request was no new call and is taken care of. False: `key` is for retry_remember(). */
bool retry_answer(struct gateway_session *session, struct http_exchange *exchange,
                  const struct dialect *dialect, const struct body *body, struct retry_key *key);
/* The call was admitted. */
void retry_remember(struct call *call, const struct retry_key *key);
/* A call that a dead server answered; whether its agent got the answer is not known. */
void retry_restore(struct gateway_session *session, const struct retry_key *key,
                   const struct trace_call *record, bool stream, struct str answer);
/* Its last connection is gone. False: nobody will come back, break it. */
bool retry_left(struct call *call);
/* The call would be entered now. True: it waits for its agent instead. */
bool retry_park(struct call *call);
/* The call is over; before its answer is given. */
void retry_concluded(struct call *call, bool answered);
/* Calls that wait for their agent are entered. */
void retries_give_up(struct gateway_session *session);
/* Older connections get what the newest gets. */
void call_others_write(struct call *call, struct str bytes);
void call_others_end(struct call *call, struct str held);
void call_others_fail(struct call *call);

/* ---------------------------------------------------------------- restore.c */
/* What intents and entries say beyond the record, for whoever takes over: members of the object
 * that is open. */
void restore_note(const struct call *call, struct json_writer *out);
/* Reads the rollout's record: numbers, limits spent, answers that may not have arrived, calls that
 * were open. Brings calls.jsonl up to date. */
int session_restore(struct gateway_session *session, struct err *err);
/* The request is that of a call that was open: then it is that call, once it is admitted. One that
 * is refused may come again. */
void restore_call(struct call *call);
void restore_admitted(struct call *call);
/* Those that nobody asked for again are entered as broken. */
void restore_give_up(struct gateway_session *session);
void restore_free(struct gateway_session *session);

#endif
