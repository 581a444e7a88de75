/* config.h - the door of the config room: every setting, declared once.
 *
 * A setting is one row in settings.c and one field here. Parser, checks, --help, GET /v1/config and
 * docs/settings.md come from the row. Later sources win:
 *
 *     fallback  <  $POSTERN_HOME/postern.toml or --config FILE  <  POSTERN_... in the environment
 * <  --name value
 *
 * "sandbox.memory-max" is [sandbox] memory-max = "2G" in the file, POSTERN_SANDBOX_MEMORY_MAX in
 * the environment and
 * --sandbox.memory-max 2G on the command line. Errors name the source and place, the allowed range
 * and the nearest name. TOML for specs is in config/toml.h. */
#ifndef CONFIG_H
#define CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

struct err;
struct json_writer;

enum setting_type {
    SETTING_TEXT,     /* const char *; "" means unset */
    SETTING_INTEGER,  /* int64_t */
    SETTING_BOOLEAN,  /* bool: true, false, yes, no, on, off, 1, 0 */
    SETTING_DURATION, /* int64_t milliseconds; "30s" */
    SETTING_SIZE,     /* int64_t bytes; "2G" */
    SETTING_CHOICE,   /* int64_t: index into .choices */
};

struct config {
    /* clang-format off */
    const char *home;
    int64_t lanes;

    const char *listen_address;
    int64_t listen_port;
    const char *listen_unix;
    const char *listen_token_file;
    int64_t listen_body_bytes_max;
    int64_t listen_connections_max;
    int64_t listen_event_bytes_max;
    int64_t listen_keepalive_ms;
    int64_t listen_drain_ms;
    bool listen_leave;

    const char *callback_allow;
    int64_t callback_tries_max;
    int64_t callback_pause_ms;

    int64_t log_level; /* enum log_level */
    bool log_json;

    const char *sandbox_backend;
    const char *sandbox_root;
    const char *sandbox_builder;
    const char *sandbox_build_flags;
    int64_t sandbox_isolation; /* enum sandbox_isolation */
    int64_t sandbox_starting_max;
    int64_t sandbox_create_ms_max;
    int64_t sandbox_pool;
    int64_t sandbox_memory_bytes_max;
    int64_t sandbox_pids_max;
    int64_t sandbox_disk_bytes_max;
    int64_t sandbox_cpu_millis;

    int64_t rollout_parallel_max;
    int64_t rollout_wall_ms_max;
    int64_t rollout_setup_ms_max;
    int64_t rollout_verify_ms_max;
    int64_t rollout_retries_max;
    bool rollout_offline;
    const char *rollout_carry;
    int64_t rollout_artifact_bytes_max;
    int64_t rollout_log_bytes_max;
    int64_t rollout_queued_max;
    int64_t rollout_queue_ms_max;
    int64_t rollout_starts_per_second_max;
    int64_t rollout_calls_in_flight_max;

    int64_t gateway_body_bytes_max;
    int64_t gateway_answer_bytes_max;
    int64_t gateway_record_bytes_max;
    int64_t gateway_calls_max;
    int64_t gateway_in_flight_max;
    int64_t gateway_keepalive_ms;
    int64_t gateway_retry_grace_ms;
    int64_t gateway_held_ms_max;
    int64_t gateway_connect_ms_max;
    int64_t gateway_first_byte_ms_max;
    int64_t gateway_idle_ms_max;
    int64_t gateway_retries_max;
    int64_t gateway_model_api; /* index of "same", "chat", "messages", "responses", "google", "completions" */
    int64_t gateway_engine; /* index of "auto", "vllm", "vllm-generate", "sglang", "openai" */
    bool gateway_thinking_off;
    int64_t gateway_server_parallel_max;
    int64_t gateway_server_rate_max;
    const char *gateway_key_file;

    int64_t retention_age_ms;
    int64_t retention_count;
    int64_t retention_bytes;
    int64_t retention_every_ms;

    int64_t store_sync; /* index of "always", "batch", "never" */
    /* clang-format on */

    struct config_state *state; /* memory and sources; private */
};

/* Fallbacks only. Never fails. Ends with config_deinit(). */
void config_init(struct config *config);
void config_deinit(struct config *config);
static inline void own_config(struct config *config)
{
    config_deinit(config);
}

/* Everything in order. `config` was initialised. Settings in argv ("--name value", "--name=value",
 * "--no-name" and a bare "--name" for booleans, "--config FILE") are taken out of it; *argc and
 * argv are compacted; whatever follows "--" and whatever is no setting stays for the caller.
 * `environment` is environ. */
int config_load(struct config *config, int *argc, char **argv, char *const *environment,
                struct err *err);

/* The pieces of it. */
int config_load_file(struct config *config, const char *path, struct err *err);
int config_load_environment(struct config *config, char *const *environment, struct err *err);
/* Logs what of the environment is called POSTERN_... and is read by nobody. */
void config_warn_environment(char *const *environment);
int config_take_args(struct config *config, int *argc, char **argv, struct err *err);
/* `source` appears in errors: "--lanes", "postern.toml:3:9", "POSTERN_LANES". */
int config_set(struct config *config, const char *name, const char *value, const char *source,
               struct err *err);

/* For people: one aligned line per setting. */
void config_help(struct buf *out);
/* docs/settings.md. */
void config_write_docs(struct buf *out);
/* {"lanes": {"value": 2, "source": "environment"}, ...}; files with secrets appear as their path
 * only. */
void config_write_json(const struct config *config, struct json_writer *out);
/* The nearest setting's flag ("--lanes") for a mistyped flag, or NULL. */
const char *config_nearest_flag(const char *flag);

#endif
