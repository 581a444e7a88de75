/* rules.h - what is known of an agent's model calls before it makes any: plain data, read from its
 * spec (docs/agents.md) and kept by the gateway. Whoever made them outlives who uses them. */
#ifndef TRACE_RULES_H
#define TRACE_RULES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Something about a request, and what it must be: a text with '*' for anything, a number, "<=N" or
 * ">=N", "true" or "false". */
struct trace_condition {
    const char *what; /* "path", "model", "system", "first", "last", "max_tokens", "messages",
                         "tools", "stream", "header.NAME", "body.a.b" */
    const char *pattern;
};

/* A call all of whose conditions hold is this. */
struct trace_side_rule {
    const char *name;
    bool side; /* not a turn; false: a turn, whatever it looks like */
    struct trace_condition *when;
    size_t when_count;
};

/* A run of such characters between two texts, made the same in every request. */
enum trace_chars {
    TRACE_CHARS_DIGITS,
    TRACE_CHARS_HEX,    /* either case */
    TRACE_CHARS_NUMBER, /* digits and '.' */
    TRACE_CHARS_WORD,   /* letters, digits, '_', '-' */
};
struct trace_nonce {
    const char *name;
    const char *after, *before; /* as they stand inside a JSON string; before: "": anything */
    const char *put;            /* likewise */
    enum trace_chars chars;
    uint32_t size_min, size_max;
};

enum trace_keepalive {
    TRACE_KEEPALIVE_DIALECT, /* what the dialect's clients usually take */
    TRACE_KEEPALIVE_COMMENT,
    TRACE_KEEPALIVE_EVENT, /* a real event that says nothing */
    TRACE_KEEPALIVE_DATA,  /* data: {} */
    TRACE_KEEPALIVE_NONE,
};

struct trace_rules {
    const struct trace_side_rule *sides;
    size_t side_count;
    const struct trace_nonce *nonces;
    size_t nonce_count;
    enum trace_keepalive keepalive;
    uint32_t keepalive_ms, headers_after_ms; /* 0: not said */
    uint32_t retry_after_s_max;              /* the longest it waits; 0: not said */
    uint32_t retry_grace_ms; /* how long a call whose agent went away waits; 0: not said */
};

#endif
