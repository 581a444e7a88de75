/* trace.h - the door of the trace room: plain data that everybody passes around, and how it looks
 * as JSON.
 *
 * Nothing here has behaviour or owns anything: strings and arrays live in whatever arena the maker
 * used. A zeroed struct is a valid empty one; unknown numbers are said to be unknown, not 0. Field
 * names in JSON are stable: they are what calls.jsonl, result.json and the gate show. */
#ifndef TRACE_H
#define TRACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/id.h"
#include "base/str.h"

struct json;
struct json_writer;

/* ---------------------------------------------------------------- messages */
enum trace_role {
    TRACE_SYSTEM,
    TRACE_DEVELOPER,
    TRACE_USER,
    TRACE_ASSISTANT,
    TRACE_TOOL,
    TRACE_ROLES
};
const char *trace_role_name(enum trace_role role);
bool trace_role_find(struct str name, enum trace_role *out); /* "function" counts as tool */

enum trace_part_kind {
    TRACE_PART_TEXT,    /* text */
    TRACE_PART_REFUSAL, /* text */
    TRACE_PART_IMAGE,   /* raw */
    TRACE_PART_AUDIO,   /* raw */
    TRACE_PART_FILE,    /* raw */
    TRACE_PART_OTHER,   /* raw: kept, not understood */
    TRACE_PART_KINDS
};
const char *trace_part_kind_name(enum trace_part_kind kind);

struct trace_part {
    enum trace_part_kind kind;
    struct str text; /* decoded; of images: their URL, data: included, when it is known */
    struct str raw;  /* the part's JSON as it came; STR_NONE for texts */
};

struct trace_tool_call {
    struct str id, name;
    struct str arguments; /* exactly what the model wrote: usually, but not always, a JSON object */
};

struct trace_message {
    enum trace_role role;
    struct str name;         /* STR_NONE: none */
    struct str tool_call_id; /* TRACE_TOOL: which call this answers */
    bool failed;             /* TRACE_TOOL: the agent says that the tool failed */
    struct str reasoning;    /* TRACE_ASSISTANT */
    struct str opaque; /* signed or encrypted reasoning items: a raw JSON array, byte for byte */
    const struct trace_part *parts;
    size_t part_count;
    const struct trace_tool_call *calls;
    size_t call_count;
};
/* All text parts in one (borrowed when there is just one). */
struct str trace_message_text(const struct trace_message *message, struct arena *arena);

struct trace_tool {
    struct str name, description;
    struct str parameters; /* raw JSON schema; STR_NONE: the model server's own tool */
    struct str space;      /* its namespace, which `name` starts with; STR_NONE: none */
    bool custom;           /* takes free text: one member `input` */
    struct str strict;     /* whether its schema binds, as raw JSON; STR_NONE: not said */
};

/* ---------------------------------------------------------------- a model call */
struct trace_usage {
    bool known;
    int64_t prompt_tokens, completion_tokens;
    int64_t cached_tokens, reasoning_tokens; /* parts of the two above; -1: not said */
};

/* Which version of the weights sampled tokens [from, to) of a completion. */
struct trace_version_span {
    int64_t from, to, version;
};

/* Ids and log-probabilities as the engine gave them. Either may be missing; complete when the
 * counts agree. */
struct trace_tokens {
    const int32_t *ids;
    size_t id_count;
    const float *logprobs;
    size_t logprob_count;
};

struct trace_sampling {
    bool has_temperature, has_top_p, has_seed;
    double temperature, top_p;
    int64_t seed;
    int64_t tokens_max; /* 0: not said */
    const struct str *stop;
    size_t stop_count;
};

/* What the agent asked for, in one form whatever dialect it spoke. */
struct trace_request {
    struct str model;
    const struct trace_message *messages;
    size_t message_count;
    const struct trace_tool *tools; /* NULL, and yet some: they were counted, but not read */
    size_t tool_count;
    struct str tool_choice; /* raw JSON; STR_NONE: not said */
    /* Further settings as chat completions name them, where the agent's dialect has other names: a
     * raw JSON object; STR_NONE: none. */
    struct str settings;
    struct trace_sampling sampling;
    bool stream;
    bool stream_usage;    /* the client wants usage at the end of the stream */
    bool wants_logprobs;  /* the agent itself asked: do not strip */
    bool wants_token_ids; /* likewise */
};

enum trace_finish {
    TRACE_FINISH_NONE, /* not finished, or not said */
    TRACE_FINISH_STOP,
    TRACE_FINISH_LENGTH,
    TRACE_FINISH_TOOL_CALLS,
    TRACE_FINISH_CONTENT_FILTER,
    TRACE_FINISH_OTHER,
    TRACE_FINISHES
};
const char *trace_finish_name(enum trace_finish finish); /* NULL for NONE */

struct trace_answer {
    struct str id, model;         /* as the engine named them */
    int64_t created_s;            /* 0: not said */
    struct trace_message message; /* role is assistant; a refusal is a TRACE_PART_REFUSAL */
    enum trace_finish finish;
    struct str finish_text; /* the engine's own word */
    struct str stop_word;   /* the text that ended it, and is no part of it; STR_NONE: not said */
    struct trace_usage usage;
    const int32_t *prompt_ids;
    size_t prompt_id_count;
    struct trace_tokens tokens;                /* of the completion */
    const struct trace_version_span *versions; /* when whoever sampled said so */
    size_t version_count;
    struct str tokens_note; /* why they are not complete, where they should be; STR_NONE */
};

/* A piece of an answer while it is being made. */
enum trace_delta_kind {
    TRACE_DELTA_TEXT,
    TRACE_DELTA_REASONING,
    TRACE_DELTA_REFUSAL,
    TRACE_DELTA_CALL,      /* a tool call begins: index, id, name */
    TRACE_DELTA_ARGUMENTS, /* more of its arguments: index, text */
};
struct trace_delta {
    enum trace_delta_kind kind;
    uint32_t index;
    struct str id, name;
    struct str text;
};

enum trace_call_state {
    TRACE_CALL_OPEN,
    TRACE_CALL_ANSWERED,
    TRACE_CALL_REFUSED,
    TRACE_CALL_BROKEN
};
const char *trace_call_state_name(enum trace_call_state state);

/* One model request and its answer: a line of calls.jsonl. Times are wall-clock milliseconds; 0:
 * did not happen. */
struct trace_call {
    char id[ID_MAX];      /* "c-..." */
    char rollout[ID_MAX]; /* "r-..." */
    const char *dialect;
    const char *mode;    /* "black_box", "proxy", "gate", "script" */
    uint32_t number;     /* from 1, within the rollout */
    uint32_t attempt;    /* upstream attempts made */
    uint32_t deliveries; /* connections that asked for it: 1, and one for each retry; 0: not said */
    bool side;           /* not a turn of the conversation: a title, a summary, a probe */
    const char *side_name; /* of the rule that said so; NULL: none did */
    struct str nonces; /* what was made the same in the request: a JSON array; STR_NONE: nothing */
    const char *nonces_parent; /* the call whose first ones come before these; NULL: all are here */
    uint32_t nonces_shared;    /* how many of them */
    bool has_policy;           /* the weights' version when the call was dispatched is known */
    int64_t policy_version;
    enum trace_call_state state;
    uint64_t accepted_ms, first_byte_ms, done_ms;
    uint64_t request_bytes, answer_bytes;
    int http_status; /* what the agent got */
    /* What is left out of `request` and of the answer's prompt because an earlier line has it:
     * messages, all tools, the first tokens. */
    const char *parent; /* that call's id; NULL: nothing is left out */
    uint32_t shared_messages, shared_prompt_tokens;
    uint32_t shared_from; /* where these messages begin, there and here: 0, or behind others */
    bool shared_tools;
    const struct trace_request *request; /* NULL: not understood */
    const struct trace_answer *answer;   /* NULL: none */
    const char *error_kind;              /* err_meaning(kind)->name; NULL: none */
    struct str error; /* one sentence; never internal text of the upstream's secrets */
};

/* ---------------------------------------------------------------- the fate of a rollout */
/* design.md, section 6. */
enum trace_stage {
    TRACE_QUEUED,
    TRACE_PROVISIONING,
    TRACE_INSTALLING,
    TRACE_PREPARING,
    TRACE_SETUP,
    TRACE_RUNNING,
    TRACE_SETTLING,
    TRACE_VERIFYING,
    TRACE_COLLECTING,
    TRACE_DONE,
    TRACE_FAILED,
    TRACE_CANCELLED,
    TRACE_STAGES
};
const char *trace_stage_name(enum trace_stage stage);
bool trace_stage_find(struct str name, enum trace_stage *out);
bool trace_stage_final(enum trace_stage stage); /* done, failed, cancelled */

enum trace_fate {
    TRACE_FATE_OK,
    TRACE_FATE_AGENT_FAILED,
    TRACE_FATE_TIMED_OUT,
    TRACE_FATE_LIMIT,
    TRACE_FATE_STOPPED,
    TRACE_FATE_OUT_OF_MEMORY,
    TRACE_FATE_INFRA_FAILED, /* from here on: reward is null, never 0 */
    TRACE_FATE_UPSTREAM_FAILED,
    TRACE_FATE_SETUP_FAILED,
    TRACE_FATE_CANCELLED,
    TRACE_FATES
};
const char *trace_fate_name(enum trace_fate fate); /* "ok", "agent_failed", ... */
bool trace_fate_find(struct str name, enum trace_fate *out);
bool trace_fate_may_reward(enum trace_fate fate);
bool trace_fate_may_retry(
    enum trace_fate fate); /* infra_failed, upstream_failed: another try may help */

struct trace_reward {
    bool known; /* false: null */
    double value;
    uint32_t passed, total; /* verify commands; 0/0 when the verifier gave a number */
    const char *source;     /* "file", "commands"; NULL: none */
    struct str detail;      /* raw JSON from the verifier; STR_NONE: none */
};

/* One command of setup or verify, as it went. */
struct trace_command {
    struct str command;
    const char *end; /* "exited", "signaled", "timed_out", ... */
    int code;        /* as a shell would say */
    uint64_t wall_ms;
    struct str output; /* tail of stdout and stderr */
    bool output_cut;
};

/* What a rollout comes back with: result.json. */
struct trace_result {
    char rollout[ID_MAX];
    char group[ID_MAX]; /* "": none */
    const char *task, *agent, *model, *mode, *backend;
    enum trace_fate fate;
    enum trace_stage stage;        /* where it ended */
    enum trace_stage failed_stage; /* where it went wrong, when fate is not ok */
    const char *error_kind;        /* NULL: none */
    struct str error;              /* one sentence for people; STR_NONE: none */
    struct trace_reward reward;
    bool agent_exited;
    int agent_code;
    const char *agent_end; /* sandbox_end_name; NULL: never ran */
    uint32_t tries;
    uint32_t calls, turns;
    struct trace_usage usage;        /* sum over calls */
    uint64_t stage_ms[TRACE_STAGES]; /* time spent in each */
    uint64_t queued_ms, done_ms;     /* wall clock */
    bool fresh_verify;               /* verified in a sandbox of its own */
    const struct trace_command *setup;
    size_t setup_count;
    const struct trace_command *verify;
    size_t verify_count;
    struct str final_text; /* the agent's last words; STR_NONE: unknown */
    struct str sandbox;    /* raw JSON object of facts; STR_NONE: none */
    struct str hosts; /* raw JSON object: hosts it tried to reach, with counts; STR_NONE: none */
};

/* ---------------------------------------------------------------- as JSON */
/* Each writes one value. */
void trace_part_write(const struct trace_part *part, struct json_writer *out);
void trace_message_write(const struct trace_message *message, struct json_writer *out);
void trace_tool_write(const struct trace_tool *tool, struct json_writer *out);
void trace_usage_write(const struct trace_usage *usage,
                       struct json_writer *out); /* null when unknown */
void trace_tokens_write(const struct trace_tokens *tokens, struct json_writer *out);
void trace_float_write(float value,
                       struct json_writer *out); /* shortest that reads back the same */
void trace_request_write(const struct trace_request *request, struct json_writer *out);
void trace_answer_write(const struct trace_answer *answer, struct json_writer *out);
void trace_call_write(const struct trace_call *call, struct json_writer *out);
void trace_reward_write(const struct trace_reward *reward, struct json_writer *out);
void trace_command_write(const struct trace_command *command, struct json_writer *out);
void trace_result_write(const struct trace_result *result, struct json_writer *out);

/* Reads back what trace_message_write wrote. Texts are decoded into the arena or borrowed from the
 * source. false: it is not an object with a known role, or the arena is full. */
bool trace_message_read(struct json value, struct arena *arena, struct trace_message *out);
/* Which message it is, however its client writes it: role, text, and calls with their arguments
 * canonical (key order, white space and number spelling do not count; blanks around an assistant's
 * text do not either). Reasoning, ids and names of tools are left out: clients drop the first, some
 * the second, and put a tool's newer name for the older. */
struct trace_key {
    uint64_t high, low;
};
struct trace_key trace_message_key(const struct trace_message *message);
/* The same by the ids of its calls instead of their arguments: clients that fill in defaults keep
 * the ids. {0, 0}: it has no calls, or one without an id. */
struct trace_key trace_message_call_key(const struct trace_message *message);
static inline bool trace_key_equal(struct trace_key a, struct trace_key b)
{
    return a.high == b.high && a.low == b.low;
}
/* May two messages of the same key be one? Ids and the words of reasoning must agree where both
 * have them, names of tools unless the ids are the same. */
bool trace_message_same(const struct trace_message *a, const struct trace_message *b);

/* Seconds since 1970 of a time as calls.jsonl and result.json have it; 0: none. */
double trace_seconds(struct str text);
/* Reads back what trace_usage_write wrote, for sums over calls. */
bool trace_usage_read(struct json value, struct trace_usage *out);
void trace_usage_add(struct trace_usage *sum, const struct trace_usage *more);

#endif
