/* generate.h - private to the gateway room: calls that go to vLLM tokens in, tokens out. */
#ifndef GATEWAY_GENERATE_H
#define GATEWAY_GENERATE_H

#include <stdbool.h>

struct call;
struct generate; /* what is known of one call so far */
struct gateway_session;
struct upstream_request;

/* Whether the session's model server is spoken to in tokens. */
bool generate_wanted(const struct gateway_session *session);
/* The next of the steps that come before the answer; call_attempt() comes again when it is done.
 * False: all are done, and the answer may be asked for with generate_request(). */
bool generate_prepare(struct call *call);
void generate_request(struct call *call, struct upstream_request *request);
/* The answer was read: it gets the tokens that were sampled. */
void generate_finish(struct call *call);
/* The route of the step under way; NULL: the call is none of this kind. */
const char *generate_route(const struct call *call);
/* Whether a refusal with this status is the model server's fault, not the agent's. */
bool generate_at_fault(const struct call *call, int status);
void generate_free(struct generate *generate); /* NULL is fine */

#endif
