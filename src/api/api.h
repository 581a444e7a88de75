/* api.h - the door of the api room: the control listener, for trainers, operators and pages.
 *
 * Everything lives on one loop, the control loop. What the routes show comes from the store and,
 * for what is under way, from the callbacks in the options: the api knows no other room's insides.
 * Every route but GET /health wants "Authorization: Bearer <token>". docs/http-api.md. */
#ifndef API_H
#define API_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/id.h"
#include "base/str.h"

struct api;
struct err;
struct gate;
struct json_writer;
struct loop;
struct rollouts;
struct store;

/* Numbers for GET /metrics, summed over lanes by whoever fills it in. */
struct api_metrics {
    uint64_t calls, calls_answered, calls_broken, calls_refused, call_retries; /* since start */
    uint64_t calls_in_flight;
    uint64_t prompt_tokens, completion_tokens;
    uint64_t connections; /* of agents, since start */
    uint64_t sessions;    /* rollouts with an open gateway */
    uint64_t rollouts_queued, rollouts_running;
    uint64_t sandboxes, sandboxes_created, sandboxes_failed;
    const uint64_t *rollouts_by_fate; /* since start; trace_fate order; NULL: none */
};

/* A rollout as POST /v1/rollouts asks for it; texts that were not given are NULL, numbers 0. */
struct api_submit {
    const char *agent;
    const char *task;       /* a path or a name ... */
    struct str inline_task; /* ... or the task itself, as JSON */
    const char *model, *mode, *group, *run, *backend;
    long long index, turns_max, wall_ms_max;
    bool skip_permissions;
    long long memory_bytes_max, disk_bytes_max, pids_max, cpu_millis;
    long long priority, queue_ms_max;
    long long policy_version; /* -1: not said */
    struct str tools;         /* that the trainer runs: a JSON array; STR_NONE */
    struct str sampling;      /* imposed in mode proxy: JSON; STR_NONE */
    long long realign_max;
    bool exact_prefix;
    const char *callback; /* JSON; NULL: none */
    const char *key;      /* of the submission; NULL: none */
    const char *key_hash; /* what its body comes to */
    /* Of a group. */
    long long n;     /* 0: no group */
    int share_setup; /* -1: not said */
};

/* What became of a submission: `on_stored` comes once, later, when all of it is kept; with an error
 * nothing of it ever was. */
struct api_receipt {
    char (*ids)[ID_MAX]; /* room for one per rollout */
    size_t wrong;        /* which of the orders, when it failed */
    char group[ID_MAX];
    void (*on_stored)(void *context, const struct err *err);
    void *context;
};

struct api_options {
    const char *home; /* <home>/token unless a file is named; <home>/rollouts/<id>/result.json */
    struct store *store;
    struct gate *gate;      /* on the same loop; NULL: none */
    const char *address;    /* NULL: 127.0.0.1. Anything that is not loopback is logged */
    uint16_t port;          /* 0: any free one */
    const char *unix_path;  /* also listen here, mode 0600; NULL: no */
    const char *token_file; /* NULL: <home>/token. Made with a new token, mode 0600, when missing */
    size_t body_bytes_max;  /* 0: 1 MiB */
    size_t connections_max; /* 0: 1000 */
    size_t event_bytes_max; /* 0: 16 MiB: what is remembered of what happened */
    uint32_t keepalive_ms;  /* 0: 15 s: between signs of life on a stream of events */
    const char *callback_allow;  /* prefixes of URLs, separated by commas; NULL or "": loopback */
    uint32_t callback_tries_max; /* 0: 12 */
    uint32_t callback_pause_ms;  /* 0: 1 s: before the second try; doubled each time */
    /* One object for a rollout that is under way; false: not known. May be NULL. */
    bool (*write_live)(void *context, const char *id, struct json_writer *out);
    /* Fills in what it knows; the rest stays 0. May be NULL. */
    void (*read_metrics)(void *context, struct api_metrics *out);
    /* Takes all of these rollouts, or the one group, or nothing; err->field says what is wrong
     * and receipt->wrong where. NULL: this server takes none. */
    int (*submit)(void *context, const struct api_submit *orders, size_t count,
                  struct api_receipt *receipt, struct err *err);
    int (*cancel)(void *context, const char *id, const char *why, struct err *err); /* likewise */
    /* One element of an array for each lane: its sandboxes. NULL: there are none. */
    void (*write_sandboxes)(void *context, struct json_writer *out);
    /* One object: the settings in force and where each is from. NULL: not said. */
    void (*write_settings)(void *context, struct json_writer *out);
    struct rollouts *rollouts; /* what is under way, on the same loop; NULL: nothing is */
    void *context;
};

/* Listens at once. Refused: a token file that is blank, too short or holds more than a token. */
struct api *api_open(struct loop *loop, const struct api_options *options, struct err *err);
/* Rows of rollouts that are over were put into the store by somebody else: callbacks that wait for
 * them are looked for when they are kept. */
void api_booked(struct api *api);
/* The rollouts are about to go: waiting requests are answered, nothing is asked of them any more.
 */
void api_forget_rollouts(struct api *api);
/* Busy connections get up to `grace_ms`; then on_closed (may be NULL), and the api is gone. */
void api_close(struct api *api, uint32_t grace_ms, void (*on_closed)(void *context), void *context);
uint16_t api_port(const struct api *api);
const char *api_token_file(const struct api *api);

#endif
