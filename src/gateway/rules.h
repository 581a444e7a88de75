/* rules.h - private to the gateway room: an agent's rules (trace/rules.h), applied. */
#ifndef GATEWAY_RULES_H
#define GATEWAY_RULES_H

#include "base/arena.h"
#include "base/buf.h"
#include "json/json.h"
#include "trace/rules.h"
#include "trace/trace.h"

struct dialect;

/* What a rule may ask about. */
struct rules_scene {
    struct str path;                                        /* without /rollout/{id} */
    struct str (*header)(void *exchange, const char *name); /* STR_NONE: absent */
    void *exchange;
    void (*make_whole)(void *call); /* before messages are looked at; NULL: all are there */
    void *call;
    struct json body;
    const struct trace_request *request;
};
/* The first that fits; NULL: none. `rules` may be NULL. */
const struct trace_side_rule *rules_side(const struct trace_rules *rules,
                                         const struct rules_scene *scene);

/* The body with its nonces made the same, and [{"name", "at", "was"}, ...] of what stood where in
 * the new one, which is all it takes to undo it. False: there are none, nothing was written. */
bool rules_canonical(const struct trace_rules *rules, struct str body, struct buf *out,
                     struct buf *notes);
/* Undoes it. -1: these notes are not of this body. */
int rules_restore(struct str body, struct json notes, struct buf *out);

/* A sign of life in the form the agent takes; nothing where it takes none. */
void rules_keepalive(const struct trace_rules *rules, const struct dialect *dialect,
                     struct buf *out);

#endif
