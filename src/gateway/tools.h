/* tools.h - private to the gateway room: a rollout's own tools, answered by the trainer or by a
 * program of the task. */
#ifndef GATEWAY_TOOLS_H
#define GATEWAY_TOOLS_H

#include "base/str.h"
#include "json/json.h"

struct err;
struct gateway;
struct gateway_session;
struct http_exchange;
struct tools;

/* ---------------------------------------------------------------- tools.c */
/* `definitions`: a JSON array of tools, in the form of chat completions or flat ({"name",
 * "description", "parameters"}). They are the allowlist: nothing else can be called. ERR_INPUT for
 * names that are reserved, malformed or there twice. */
struct tools *tools_new(struct str definitions, struct err *err);
void tools_free(struct tools *tools); /* NULL is fine */

enum tool_kind {
    TOOL_FUNCTION,
    TOOL_USER,
    TOOL_STOP,
    TOOL_SAY, /* the user, asked by the driver: words only */
};
bool tools_have(const struct tools *tools, struct str name); /* a function; NULL is fine */
bool tools_have_handler(const struct tools *tools, enum tool_kind kind);
bool tools_by_task(const struct tools *tools, struct str name);
bool tools_need_trainer(const struct tools *tools); /* one of the functions */
/* Somebody is there for each of them; ERR_UNSUPPORTED. */
int tools_check_answered(const struct tools *tools, const struct gateway *gateway, struct err *err);

struct tool {
    struct json name, description, schema, whole; /* description and schema may be missing */
};
/* Functions only, in order. NULL is fine. */
void tools_each(const struct tools *tools, void (*each)(void *context, const struct tool *tool),
                void *context);

/* Answers what is a tool route; false: it is none. `path` is without /rollout/{id}. */
bool tools_request(struct gateway_session *session, struct http_exchange *exchange,
                   struct str path);

/* ---------------------------------------------------------------- tools_run.c */
/* A call of a tool, wherever it runs. Exactly one of the two comes, last, never from inside
 * tool_run_start(). */
struct tool_run;
struct tool_run_handlers {
    /* {"result": ...}; for the others what the trainer said: {"messages": [...]}, {"done": ...} */
    void (*on_result)(void *context, struct str body);
    /* `text` is all of what err's begins with. */
    void (*on_fail)(void *context, const struct err *err, const char *text, int http_status);
};
/* `arguments`: an object as JSON. NULL and err: ERR_CAPACITY when too many are in flight,
 * ERR_CANCELLED when the rollout is over. */
struct tool_run *tool_run_start(struct gateway_session *session, enum tool_kind kind,
                                struct str name, struct str arguments,
                                const struct tool_run_handlers *handlers, void *context,
                                struct err *err);
/* Once for each, also after its last callback; before it, the call is withdrawn. Silent
 * afterwards. */
void tool_run_close(struct tool_run *run);
/* How a refusal of tool_run_start() is put in HTTP. */
int tool_refusal_status(const struct err *err);

/* ---------------------------------------------------------------- mcp.c */
/* Answers /mcp; false: it is another path. */
bool mcp_request(struct gateway_session *session, struct http_exchange *exchange, struct str path);
/* Of a session that has no connections any more. */
void mcp_deinit(struct gateway_session *session);
void mcp_report(const struct gateway_session *session, struct json_writer *out);

#endif
