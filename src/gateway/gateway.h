/* gateway.h - the door of the gateway room: the server side of the inlet.
 *
 *     connection -> http -> dialect -> admit -> journal: intent -> relay -> capture -> journal:
 * entry agent <- terminal event, only when the entry is committed
 *
 * A model is what answers calls: a model server behind a URL, or a script. It is immutable and
 * shared by all lanes. A gateway belongs to one lane; a session belongs to one rollout and lives on
 * its gateway's loop. Everything but models is used on that loop's thread only. Callbacks never
 * come from inside the call that caused them. */
#ifndef GATEWAY_H
#define GATEWAY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/str.h"
#include "trace/trace.h"

struct buf;
struct gateway;
struct gateway_session;
struct json_writer;
struct loop;
struct model;
struct store;
struct trace_rules;

/* ---------------------------------------------------------------- models */
struct model_options {
    const char *key_env;  /* name of the environment variable with the key; NULL: none */
    const char *key_file; /* or a file that holds it; NULL: none */
    const char *ca_file;  /* NULL: the system's certificates */
    /* The dialect the model server speaks: "chat", "messages", "responses", "google",
     * "completions". Calls of agents that speak another one are translated; only to "chat" can
     * every dialect be. NULL or "same": whatever the agent speaks. */
    const char *api;
    uint32_t first_byte_ms_max; /* 0: 10 min: until the answer's head, per attempt */
    uint32_t idle_ms_max;       /* 0: 5 min without a byte of the answer */
    uint32_t connect_ms_max;    /* 0: 10 s */
    uint32_t attempts_max; /* 0: 6: upstream tries per call while nothing was sent to the agent */
    uint32_t retry_ms_max; /* 0: 60 s: longest single wait between tries */
    uint32_t parallel_max; /* 0: no limit: calls at once per server */
    double rate_max;       /* 0: no limit: calls per second and server */
    uint32_t queue_max;    /* 0: 4096: calls that wait for one of the two above */
    /* How proxy mode asks for tokens: "vllm", "vllm-generate" (tokens in, tokens out; the api is
     * "chat" or none), "sglang", "openai"; NULL or "auto": vLLM's spellings, which others ignore.
     */
    const char *engine;
    const char *home;  /* where replay:ROLLOUT finds rollouts; NULL: by folder only */
    bool thinking_off; /* proxy mode asks the engine's template not to think */
};

/* "http://host:port/v1#name", several servers as "URL,URL#name" (docs/upstreams.md), "script:FILE"
 * (docs/scripted-model.md) or "gate:NAME": the trainer, under the name the agent is told; only in
 * mode gate. `options` may be NULL. Any thread. A key with blanks inside or an empty one is
 * refused; it is never logged, nor sent anywhere but to the model server. */
struct model *model_open(const char *spec, const struct model_options *options, struct err *err);
struct model *model_ref(struct model *model); /* any thread */
void model_unref(struct model *model);        /* any thread; NULL is fine */
static inline void own_model(struct model **model)
{
    model_unref(*model);
}
const char *model_spec(const struct model *model); /* as given */
/* How model servers fare, for metrics; any thread. One for each pair of model and address, over all
 * models that were ever opened with it (within reason); texts are valid during the callback. */
struct model_upstream {
    const char *url, *model;
    uint64_t requests, failures, retries, ejections;
    uint32_t in_flight, waiting; /* now; waiting: for any of the model's servers */
    bool ejected;
};
void model_each_upstream(void (*each)(void *context, const struct model_upstream *upstream),
                         void *context);
const char *model_name(const struct model *model); /* the part after '#', or the script's name */

/* ---------------------------------------------------------------- modes */
enum gateway_mode {
    GATEWAY_BLACK_BOX, /* bytes relayed untouched */
    GATEWAY_PROXY,     /* model, sampling and token capture imposed */
    GATEWAY_GATE,      /* the trainer answers (gate.h) */
};
/* Also takes transparent_proxy and interception_gate. The error names the three. */
int gateway_mode_read(const char *name, enum gateway_mode *out, struct err *err);
const char *gateway_mode_name(enum gateway_mode mode);
/* Can this model answer in this mode? Any thread. ERR_INPUT: the trainer is in mode gate only. */
int gateway_mode_fits(enum gateway_mode mode, const struct model *model, struct err *err);

/* ---------------------------------------------------------------- sessions */
struct gateway_limits {
    uint32_t calls_max;        /* 0: 1000: requests per rollout, side calls included */
    uint32_t turns_max;        /* 0: no limit */
    int64_t tokens_max;        /* 0: no limit: prompt and completion tokens together, as reported */
    uint32_t in_flight_max;    /* 0: 16 */
    uint32_t connections_max;  /* 0: 64 */
    size_t body_bytes_max;     /* 0: 32 MiB per request */
    size_t answer_bytes_max;   /* 0: 64 MiB per answer */
    uint64_t record_bytes_max; /* 0: 16 GiB: requests, as far as they are new, and answers */
};

/* What is imposed in proxy mode besides the model's name. */
enum gateway_thinking { GATEWAY_THINKING_ANY, GATEWAY_THINKING_ON, GATEWAY_THINKING_OFF };
struct gateway_sampling {
    bool has_temperature, has_top_p;
    double temperature, top_p;
    int64_t tokens_max;             /* 0: as the agent says */
    enum gateway_thinking thinking; /* ANY: as the model was opened */
};
/* From {"temperature", "top_p", "max_tokens", "thinking"}. Any thread. ERR_INPUT names the member;
 * also for a mode in which nothing can be imposed. */
int gateway_sampling_read(struct str text, enum gateway_mode mode, struct gateway_sampling *out,
                          struct err *err);

/* Why calls fail. Trouble with the model server is forgotten as a cause when a later call is
 * answered (the agent got over it); the others stay. */
enum gateway_cause {
    GATEWAY_FINE,
    GATEWAY_LIMIT,    /* a limit of the session was reached */
    GATEWAY_STOPPED,  /* gateway_session_stop() */
    GATEWAY_UPSTREAM, /* the model server failed and retrying did not help */
    GATEWAY_SCRIPT,   /* the script has no answer or is wrong */
    GATEWAY_STORE,    /* the journal failed */
    GATEWAY_REPLAY,   /* a call was not as in the record that is replayed; says which and where */
};
const char *gateway_cause_name(enum gateway_cause cause); /* "limit", "upstream", ...; "none" */

struct gateway_stats {
    uint32_t calls; /* admitted, side calls included */
    uint32_t turns; /* calls that belong to the conversation and were answered */
    uint32_t in_flight;
    uint32_t answered, broken,
        refused;              /* broken: begun and not finished; refused: never admitted */
    uint32_t retries;         /* upstream tries beyond the first */
    uint32_t redelivered;     /* requests that came again and were no new call */
    uint32_t abandoned;       /* open when a server died, and nobody asked again; broken, too */
    struct trace_usage usage; /* sum over answered calls */
    enum gateway_cause cause;
    struct err why;   /* the cause in words; kind ERR_NONE while all is fine */
    struct err error; /* the first real error ever; kind ERR_NONE: there was none */
};

enum gateway_phase { GATEWAY_CALL_BEGUN, GATEWAY_CALL_DONE };

/* A call of a tool that the task answers itself: its definition says "answered_by": "task". The
 * owner ends it with gateway_tool_answer() or gateway_tool_fail(), unless on_tool_closed came; not
 * from inside on_tool. */
struct gateway_tool {
    void *owner; /* the owner's, to find its own side again */
};
/* What came of a call of a tool. Valid during the callback. */
struct gateway_tool_note {
    const char *name, *by;        /* by: "trainer", "task" */
    struct str arguments, result; /* JSON; result: {"result": ...}, STR_NONE when it failed */
    const char *failure;          /* NULL: none */
    uint64_t ms;
};

struct gateway_session_options {
    const char *rollout_id;
    const char *group_id; /* NULL: none */
    const char *task;     /* for scripts; NULL: none */
    uint32_t index;       /* number of the rollout inside its run, from 0; for scripts */
    const char *mode;     /* NULL: black_box */
    struct model *model;  /* a reference is taken */
    struct gateway_limits limits;
    struct gateway_sampling sampling;
    /* Modes proxy and gate: a turn's prompt is the tokens of the turn before and the new messages,
     * where that can be had; docs/samples.md. */
    bool exact_prefix;
    uint32_t keepalive_ms;     /* 0: 15 s between signs of life on a waiting stream */
    uint32_t headers_after_ms; /* 0: 20 s: a stream's 200 is sent after this; until then errors keep
                                  their status */
    uint32_t unary_after_ms;   /* 0: 45 s: the same for an answer that is no stream */
    uint32_t retry_grace_ms;   /* 0: 30 s: a call whose agent went away is kept for its return */
    uint64_t held_ms_max;      /* 0: 1 h: a call nobody answers at the gate fails then */
    struct str tools;          /* the rollout's own: a JSON array of definitions (docs/http-api.md);
                                  STR_NONE */
    /* Those of them that the task answers: run it; nobody waits any more. NULL: there are none. */
    void (*on_tool)(void *context, struct gateway_tool *tool, const char *name,
                    struct str arguments);
    void (*on_tool_closed)(void *context, struct gateway_tool *tool);
    void (*on_tool_note)(void *context, const struct gateway_tool_note *note); /* may be NULL */
    bool restore; /* the rollout has a record already: go on where it stops */
    const struct trace_rules
        *rules;             /* of the agent's calls (trace/rules.h); borrowed; NULL: none */
    const char *calls_path; /* calls.jsonl to append to; NULL: none */
    /* A call begins or is done (its record is committed then). `call` is valid during the callback.
     * May be NULL. */
    void (*on_call)(void *context, const struct trace_call *call, enum gateway_phase phase);
    /* calls, turns or tokens ran out, the script has no answer, or the journal failed: no later
     * call will be answered. At most once. May be NULL. */
    void (*on_exhausted)(void *context, enum gateway_cause cause, const struct err *why);
    void *context;
};

struct gateway_options {
    struct store *store; /* NULL: nothing is journalled (tests) */
    struct gate *gate;   /* for mode gate, and for policy versions; NULL: there is none */
    uint32_t lines_ms;   /* how long a line of calls.jsonl may wait for others; 0: not at all */
};
#define GATEWAY_LINES_MS 1000

struct gateway *gateway_new(struct loop *loop, const struct gateway_options *options,
                            struct err *err);
/* When no session is open any more. NULL is fine. */
void gateway_free(struct gateway *gateway);

/* Copies what it needs. ERR_UNSUPPORTED for mode gate without a gate, ERR_INPUT for an unknown mode
 * and for a model that only a gate could stand in for. */
struct gateway_session *gateway_open(struct gateway *gateway,
                                     const struct gateway_session_options *options,
                                     struct err *err);
/* `result`: any JSON value. */
void gateway_tool_answer(struct gateway_tool *tool, struct str result);
void gateway_tool_fail(struct gateway_tool *tool, const char *text);
/* What the user says next, asked of the trainer as /vf/user asks it (its answer:
 * {"messages": [{"role": "user", "content": "..."}]}, none: nothing). `transcript`: a JSON array of
 * messages. on_words comes once, later; text NULL: nothing, or err says why not. Close it in every
 * case, before the session. */
struct gateway_user;
struct gateway_user *gateway_session_user(struct gateway_session *session, struct str transcript,
                                          void (*on_words)(void *context, const char *text,
                                                           const struct err *err),
                                          void *context, struct err *err);
void gateway_user_close(struct gateway_user *user); /* NULL is fine */
/* Would gateway_open() take these tools? Any thread. ERR_INPUT names what is wrong. */
int gateway_tools_check(struct str definitions, struct err *err);
/* The same for this gateway, with what is among them: ERR_UNSUPPORTED when nobody would answer. */
struct gateway_tools_facts {
    bool functions; /* something to call */
    bool user;      /* the trainer speaks as the user */
};
int gateway_tools_fit(const struct gateway *gateway, struct str definitions,
                      struct gateway_tools_facts *facts, struct err *err);
/* Serves a connection of the agent; owns the descriptor from now on. */
void gateway_session_connection(struct gateway_session *session, int connected_fd);
/* Or all connections of a listening socket, which it owns from now on. */
int gateway_session_listen(struct gateway_session *session, int listening_fd, struct err *err);
/* Later calls get a 400 that no agent retries, with `reason` in its message; calls in flight go on.
 */
void gateway_session_stop(struct gateway_session *session, const char *reason);
/* Takes no new calls, waits up to `grace_ms` for those in flight, breaks the rest and waits until
 * each has its entry; then on_closed (may be NULL), during which stats and report still work, and
 * the session is gone. */
void gateway_session_close(struct gateway_session *session, uint32_t grace_ms,
                           void (*on_closed)(void *context), void *context);
const struct gateway_stats *gateway_session_stats(const struct gateway_session *session);
/* One object: calls, turns, usage, causes, refused requests, hosts tried through CONNECT or
 * absolute URLs. */
void gateway_session_report(const struct gateway_session *session, struct json_writer *out);
/* {"host": count, ...}: just the hosts, to be merged with the name look-ups. */
void gateway_session_hosts(const struct gateway_session *session, struct json_writer *out);

/* A call from the journal, as one line of calls.jsonl that leaves nothing out. Any thread. */
int gateway_read_call(struct store *store, const char *call_id, struct buf *out, struct err *err);

/* Over all sessions of this gateway since it was made; any thread may read. */
struct gateway_counts {
    uint64_t calls, answered, broken, refused, retries, redelivered, connections;
    uint64_t prompt_tokens, completion_tokens;
    uint64_t in_flight, sessions; /* now */
};
void gateway_counts(const struct gateway *gateway, struct gateway_counts *out);

#endif
