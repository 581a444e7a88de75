/* tools.h - private to the gateway room: tools of a rollout that the trainer runs. */
#ifndef GATEWAY_TOOLS_H
#define GATEWAY_TOOLS_H

#include "base/str.h"

struct err;
struct gateway_session;
struct http_exchange;
struct tools;

/* `definitions`: a JSON array of tools, in the form of chat completions or flat ({"name",
 * "description", "parameters"}). They are the allowlist: nothing else can be called. ERR_INPUT for
 * names that are reserved, malformed or there twice. */
struct tools *tools_new(struct str definitions, struct err *err);
void tools_free(struct tools *tools); /* NULL is fine */

/* Answers what is a tool route; false: it is none. `path` is without /rollout/{id}. */
bool tools_request(struct gateway_session *session, struct http_exchange *exchange,
                   struct str path);

#endif
