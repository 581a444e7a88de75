/* inner.h - what the files of the gateway room share.
 *
 *     gateway.c   lanes' side: modes, counters, one HTTP client per model
 *     session.c   one rollout's side: routes, limits, report
 *     call.c      one call: intent, attempts, relay, entry, end
 *     upstream.c  one attempt: over HTTP or played from a script
 *     model.c     what a model is; script.c reads scripts; play.c makes and plays their answers */
#ifndef GATEWAY_INNER_H
#define GATEWAY_INNER_H

#include <stdatomic.h>

#include "base/arena.h"
#include "base/buf.h"
#include "base/list.h"
#include "base/map.h"
#include "dialect/dialect.h"
#include "gateway/gateway.h"
#include "http/http.h"
#include "json/json.h"
#include "loop/loop.h"

struct call;
struct script;

/* ---------------------------------------------------------------- model.c */
struct model {
    atomic_uint references;
    char *spec, *name;
    char *base_url; /* without a final slash; NULL: a script */
    char *key;      /* NULL: none */
    char *ca_file;
    const struct dialect *api; /* NULL: the agent's own */
    struct script *script;
    struct model_options options; /* numbers only; defaults put in */
};

/* ---------------------------------------------------------------- upstream.c, play.c */
/* What an attempt is made from; borrowed until the attempt is over. */
struct upstream_request {
    const struct dialect *dialect; /* spoken to the model server */
    const struct trace_request *request;
    const char *path;                  /* "/chat/completions" */
    struct str body;                   /* as it goes out */
    const struct http_header *headers; /* the agent's; an allowlist goes out */
    size_t header_count;
    const char *rollout_id; /* for scripts */
    const char *task;
    uint32_t index, number;
    uint32_t *uses; /* how often each rule of the script was used in this session */
};

struct upstream_head {
    int status;
    bool stream;            /* text/event-stream */
    int64_t retry_after_ms; /* -1: not said */
    bool show;              /* the script wants the agent to see this error as it is */
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
/* Any time, also from its own callbacks and after on_done. Silent afterwards. NULL is fine. */
void upstream_close(struct upstream *upstream);
/* What a script says about tokens; valid until upstream_close(). NULL: nothing. */
const struct trace_answer *upstream_tokens(const struct upstream *upstream);

struct play;
struct play *play_start(struct loop *loop, const struct script *script,
                        const struct upstream_request *request,
                        const struct upstream_handlers *handlers, void *context);
void play_pause(struct play *play);
void play_resume(struct play *play);
void play_close(struct play *play);
const struct trace_answer *play_tokens(const struct play *play);

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
    struct list clients;
    atomic_uint_fast64_t calls, answered, broken, refused, retries, connections;
    atomic_uint_fast64_t prompt_tokens, completion_tokens, in_flight, sessions;
};
struct http_client *gateway_client(struct gateway *gateway, struct model *model);

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

struct gateway_session {
    struct gateway *gateway;
    struct http_server *server;
    struct model *model;
    char *rollout_id, *task, *calls_path, *stop_reason;
    uint32_t index;
    enum gateway_mode mode;
    struct gateway_limits limits;
    struct gateway_sampling sampling;
    uint32_t keepalive_ms, headers_after_ms;
    void (*on_call)(void *context, const struct trace_call *call, enum gateway_phase phase);
    void (*on_exhausted)(void *context, enum gateway_cause cause, const struct err *why);
    void *context;

    struct gateway_stats stats;
    uint32_t turns_reserved;
    int64_t tokens_reserved;
    bool tools_seen;
    uint32_t *script_uses;
    uint32_t refusals[REFUSALS];
    struct map hosts; /* name -> count, as a number in the pointer */
    uint32_t hosts_more;
    int calls_fd; /* -1: none */
    bool calls_failed;
    struct list calls;

    bool exhausted, closing, finished;
    enum gateway_cause exhausted_cause;
    struct err exhausted_why;
    struct loop_timer grace;
    void (*on_closed)(void *context);
    void *closed_context;
};

void session_refused(struct gateway_session *session, enum refusal why);
void session_cause(struct gateway_session *session, enum gateway_cause cause,
                   const struct err *why);
/* No later call will be answered; tells the owner once. */
void session_exhaust(struct gateway_session *session, enum gateway_cause cause,
                     const struct err *why);
/* Reserves what the call may use. -1: refused; *status and *retry_after_s say how to put it. */
int session_admit(struct gateway_session *session, struct call *call, int *status,
                  uint32_t *retry_after_s, struct err *err);
/* Gives the reservation back and books what was used. */
void session_settle(struct gateway_session *session, struct call *call);
/* The call is over and freed. */
void session_call_gone(struct gateway_session *session);

/* ---------------------------------------------------------------- call.c */
enum call_state {
    CALL_INTENT,   /* the intent is being committed */
    CALL_UPSTREAM, /* an attempt is under way */
    CALL_WAITING,  /* until the next attempt */
    CALL_ENTRY,    /* the entry is being committed; nothing can change any more */
    CALL_DONE,
};

struct call {
    struct list node; /* in session->calls */
    struct gateway_session *session;
    struct http_exchange *exchange; /* NULL: the agent went away or has its answer */
    const struct dialect *dialect;  /* the agent's */
    const struct dialect *api;      /* the model server's */
    bool anew;                      /* the answer is written from what was read, not relayed */
    enum call_state state;
    struct arena arena;
    struct buf body;
    struct json_doc doc;
    struct trace_request request;
    struct trace_answer answer;
    struct trace_call record;
    char answer_id[ID_MAX];

    struct upstream *upstream;
    struct upstream_head head;
    struct dialect_reader *reader;
    bool reader_over;             /* it has been asked for its end, or failed */
    struct dialect_writer writer; /* of a stream that is written anew, live */
    bool writing;
    struct buf rewritten;  /* the body in proxy mode */
    struct buf error_body; /* of an answer with a status that is not 200 */
    struct buf held;       /* terminal events, or the whole body, until the entry is committed */
    struct err trouble;    /* why the call did not end well */
    bool script_error;
    bool key_leaked;
    int shown_status; /* for a failure: the agent's status, 0: a reset */
    uint32_t retry_after_s;
    int64_t retry_after_ms; /* what the upstream asked for; -1: nothing */
    struct str upstream_message, upstream_code;

    bool begun;   /* a stream's head was sent */
    bool relayed; /* and something of the answer */
    bool paused;
    bool closing; /* a close is asked for: do not start over */
    uint64_t written_ms;
    struct loop_timer retry, pulse;

    bool reserved, reserved_turn;
    int64_t reserved_tokens;
};

/* The route was found and the body is there. Answers in every case. */
void call_begin(struct gateway_session *session, struct http_exchange *exchange,
                const struct dialect *dialect, struct str body);
/* Ends it now, as broken. */
void call_break(struct call *call, enum err_kind kind, const char *text);
/* An error in the agent's dialect. */
void answer_error(struct http_exchange *exchange, const struct dialect *dialect, int status,
                  const char *code, struct str message, uint32_t retry_after_s);

#endif
