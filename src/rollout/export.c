/* export.c - a rollout that is over, made from its folder: its rows anew, or one line in the trace
 * shape that Verifiers-style trainers read (an episode with one trace). */
#include <string.h>

#include "rollout/internal.h"

#include "base/file.h"
#include "base/mem.h"
#include "json/json.h"
#include "trace/sample.h"

#define RESULT_BYTES_MAX (64u << 20)

struct over {
    struct buf text;
    struct json_doc doc;
    struct arena arena;
    struct json result;
};

static void own_over(struct over *over)
{
    buf_deinit(&over->text);
    json_doc_deinit(&over->doc);
    arena_deinit(&over->arena);
}

static int over_read(struct over *over, const char *dir, struct err *err)
{
    OWN(mem) char *path = mem_format("%s/result.json", dir);
    if (!file_exists(path))
        return err_set(err, ERR_CONFLICT, "'%s' has no result: the rollout is not over", dir);
    if (file_read(path, RESULT_BYTES_MAX, &over->text, err) < 0 ||
        json_read(&over->doc, buf_str(&over->text), NULL, err) < 0)
        return err_wrap(err, "'%s'", path);
    over->result = json_root(&over->doc);
    return 0;
}

/* A text member; NULL: none. */
static const char *text_of(struct over *over, const char *key)
{
    struct str text = json_str(json_get(over->result, key), &over->arena);
    return text.data ? arena_text(&over->arena, text) : NULL;
}

static bool read_reward(struct over *over, double *reward)
{
    struct json value = json_get(over->result, "reward");
    return json_type(value) == JSON_NUMBER && json_double(value, reward);
}

int rollout_export_samples(const char *dir, struct store *store, uint32_t realign_max,
                           struct buf *out, struct err *err)
{
    OWN(over) struct over over = {0};
    OWN(samples) struct samples *samples = NULL;
    if (over_read(&over, dir, err) < 0)
        return -1;
    struct json rewards = json_get(over.result, "rewards");
    struct sample_owner owner = {
        .rollout = text_of(&over, "rollout_id"),
        .group = text_of(&over, "group_id"),
        .task = text_of(&over, "task"),
        .agent = text_of(&over, "agent"),
        .model = text_of(&over, "model"),
        .mode = text_of(&over, "mode"),
        .fate = text_of(&over, "fate"),
        .index = (uint32_t)json_int_or(json_get(over.result, "index"), 0),
        .rewards = json_size(rewards) ? json_raw(rewards) : STR_NONE,
    };
    owner.rewarded = read_reward(&over, &owner.reward);
    if (rollout_read_samples(dir, owner.rollout ? owner.rollout : "", store, realign_max, &samples,
                             err) < 0)
        return -1;
    for (size_t i = 0; i < samples_count(samples); i++) {
        struct json_writer writer = {.out = out};
        sample_write(samples, i, &owner, &writer);
        buf_byte(out, '\n');
    }
    return 0;
}

/* ---------------------------------------------------------------- the trace shape */

static void set_if(struct json_writer *out, const char *key, const char *text)
{
    if (text && text[0])
        json_set_text(out, key, text);
}

static void set_task(struct over *over, struct json_writer *out)
{
    json_key(out, "task");
    json_begin_object(out);
    json_set_text(out, "type", "PosternTask");
    json_key(out, "data");
    json_begin_object(out);
    json_set_int(out, "idx", json_int_or(json_get(over->result, "index"), 0));
    set_if(out, "name", text_of(over, "task"));
    json_end_object(out);
    set_if(out, "key", text_of(over, "task"));
    json_end_object(out);
}

static void set_errors(struct over *over, struct json_writer *out)
{
    const char *error = text_of(over, "error"), *kind = text_of(over, "error_kind");
    json_key(out, "errors");
    json_begin_array(out);
    if (error) {
        json_begin_object(out);
        json_set_text(out, "type", kind ? kind : text_of(over, "fate"));
        json_set_text(out, "message", error);
        json_end_object(out);
    }
    json_end_array(out);
}

static void set_agent(struct over *over, struct json_writer *out)
{
    json_key(out, "agent");
    json_begin_object(out);
    json_key(out, "config");
    json_begin_object(out);
    json_key(out, "harness");
    json_begin_object(out);
    set_if(out, "id", text_of(over, "agent"));
    json_end_object(out);
    set_if(out, "model", text_of(over, "model"));
    json_end_object(out);
    json_set_text(out, "name", "agent");
    json_set_bool(out, "trainable", true);
    json_end_object(out);
}

/* Rewards with weight 1; what else the verifier counted is a metric. Not scored: null. */
static void set_rewards(struct over *over, struct json_writer *out)
{
    double reward;
    json_key(out, "rewards");
    json_begin_object(out);
    if (read_reward(over, &reward)) {
        json_key(out, "reward");
        json_begin_object(out);
        json_set_double(out, "score", reward);
        json_set_double(out, "weight", 1);
        json_end_object(out);
    } else {
        json_set_null(out, "reward");
    }
    json_end_object(out);
    json_key(out, "metrics");
    json_begin_object(out);
    JSON_EACH (item, json_get(over->result, "rewards")) {
        if (json_is(item.key, "reward"))
            continue;
        json_key_str(out, json_str(item.key, &over->arena));
        json_put_raw(out, json_raw(item.value));
    }
    json_end_object(out);
}

/* Wall clock of a stage: the stages follow each other from the queue on. */
static void set_span(struct over *over, struct json_writer *out, const char *key, double *at,
                     const char *first, const char *second, bool open)
{
    struct json times = json_get(over->result, "stage_ms");
    double start = *at;
    *at += (double)json_int_or(json_get(times, first), 0) / 1000;
    if (second)
        *at += (double)json_int_or(json_get(times, second), 0) / 1000;
    json_key(out, key);
    json_begin_object(out);
    json_set_double(out, "start", start);
    json_set_double(out, "end", *at);
    if (!open)
        json_end_object(out);
}

static void set_timing(struct over *over, struct json_writer *out)
{
    double model = 0;
    JSON_EACH (turn, json_get(over->result, "proxy_turns"))
        model += json_double_or(json_get(turn.value, "latency_s"), 0);
    double at = trace_seconds(json_str(json_get(over->result, "queued"), &over->arena));
    at += (double)json_int_or(json_get(json_get(over->result, "stage_ms"), "queued"), 0) / 1000;
    json_key(out, "timing");
    json_begin_object(out);
    json_set_double(out, "start", at);
    set_span(over, out, "boot", &at, "provisioning", "installing", false);
    set_span(over, out, "setup", &at, "preparing", "setup", false);
    double began = at;
    set_span(over, out, "agent", &at, "running", NULL, true);
    json_key(out, "model");
    json_begin_object(out);
    json_set_double(out, "duration", model);
    json_end_object(out);
    json_key(out, "harness");
    json_begin_object(out);
    json_set_double(out, "duration", at - began > model ? at - began - model : 0);
    json_end_object(out);
    json_end_object(out);
    set_span(over, out, "finalize", &at, "settling", NULL, false);
    set_span(over, out, "scoring", &at, "verifying", NULL, false);
    json_end_object(out);
}

static void set_standing(struct over *over, struct json_writer *out)
{
    const char *fate = text_of(over, "fate");
    bool ok = fate && strcmp(fate, "ok") == 0;
    json_set_bool(out, "is_completed", json_is(json_get(over->result, "stage"), "done"));
    json_set_bool(out, "ok", ok);
    json_set_text(out, "stop_condition", ok ? "agent_completed" : fate);
    json_set_bool(out, "is_timeout", fate && strcmp(fate, "timed_out") == 0);
    set_errors(over, out);
}

static void set_info(struct over *over, struct json_writer *out)
{
    static const char *const names[] = {"rollout_id", "group_id", "fate",    "failed_stage", "mode",
                                        "backend",    "versions", "samples", "metadata"};
    json_key(out, "info");
    json_begin_object(out);
    json_key(out, "postern");
    json_begin_object(out);
    for (size_t i = 0; i < COUNT(names); i++) {
        struct json value = json_get(over->result, names[i]);
        if (json_exists(value) && json_type(value) != JSON_NULL)
            json_set_raw(out, names[i], json_raw(value));
    }
    json_end_object(out);
    json_end_object(out);
}

static void set_trace(struct over *over, struct samples *samples, struct json_writer *out)
{
    json_begin_object(out);
    json_set_int(out, "version", 1);
    json_set_text(out, "id", text_of(over, "rollout_id"));
    json_key(out, "verifiers");
    json_begin_object(out);
    json_set_text(out, "version", "postern-" POSTERN_VERSION);
    json_end_object(out);
    set_task(over, out);
    set_agent(over, out);
    samples_write_nodes(samples, out);
    json_set_raw(out, "request_rewrites", STR("[]"));
    json_set_raw(out, "response_rewrites", STR("[]"));
    set_rewards(over, out);
    set_info(over, out);
    json_set_raw(out, "extra_usage", STR("[]"));
    set_standing(over, out);
    set_timing(over, out);
    json_end_object(out);
}

int rollout_export_trace(const char *dir, struct store *store, struct buf *out, struct err *err)
{
    OWN(over) struct over over = {0};
    OWN(samples) struct samples *samples = NULL;
    struct json_writer writer = {.out = out};
    if (over_read(&over, dir, err) < 0)
        return -1;
    const char *id = text_of(&over, "rollout_id"), *run = text_of(&over, "run");
    if (rollout_read_samples(dir, id ? id : "", store, 0, &samples, err) < 0)
        return -1;
    json_begin_object(&writer);
    json_set_text(&writer, "id", id);
    json_key(&writer, "env");
    json_begin_object(&writer);
    json_set_text(&writer, "id", "postern");
    json_end_object(&writer);
    set_task(&over, &writer);
    json_key(&writer, "run");
    json_begin_object(&writer);
    json_set_text(&writer, "type", "eval");
    json_set_text(&writer, "id", run ? run : id);
    json_end_object(&writer);
    if (text_of(&over, "group_id")) {
        json_key(&writer, "group");
        json_begin_object(&writer);
        json_set_text(&writer, "id", text_of(&over, "group_id"));
        json_end_object(&writer);
    }
    json_set_bool(&writer, "ok", json_is(json_get(over.result, "fate"), "ok"));
    set_errors(&over, &writer);
    json_key(&writer, "traces");
    json_begin_array(&writer);
    set_trace(&over, samples, &writer);
    json_end_array(&writer);
    json_end_object(&writer);
    buf_byte(out, '\n');
    return 0;
}
