/* result.c - result.json: what the trace room knows about a fate, plus where it came from. One
 * line; secrets never get here (the model is named, its key is not known in this room). */
#include "rollout/internal.h"

#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/mem.h"
#include "json/json.h"

#define COMMAND_TAIL_BYTES 2000
#define FILES_MAX 32
#define FILE_BYTES_MAX (64 << 10)
#define FILE_TEXT_BYTES 8000

/* `policy`: the least and the most that sampled something. */
static void write_versions(const struct plan *plan, struct str samples, struct json_writer *out)
{
    OWN(json_doc) struct json_doc doc = {0};
    json_key(out, "versions");
    json_begin_object(out);
    json_set_text(out, "postern", POSTERN_VERSION);
    json_set_text(out, "agent", agent_spec_version(plan->agent));
    if (samples.size && json_read(&doc, samples, NULL, NULL) == 0) {
        struct json range = json_get(json_root(&doc), "policy_versions");
        if (json_exists(range))
            json_set_raw(out, "policy", json_raw(range));
    }
    json_end_object(out);
}

/* The reward by name, and whatever other numbers the verifier gave beside it. */
void result_write_rewards(const struct trace_reward *reward, struct json_writer *out)
{
    OWN(json_doc) struct json_doc doc = {0};
    OWN(arena) struct arena arena = {0};
    json_begin_object(out);
    if (reward->known)
        json_set_double(out, "reward", reward->value);
    if (reward->known && reward->detail.size && json_read(&doc, reward->detail, NULL, NULL) == 0) {
        JSON_EACH (item, json_root(&doc)) {
            if (json_type(item.value) != JSON_NUMBER || json_is(item.key, "reward"))
                continue;
            json_key_str(out, json_str(item.key, &arena));
            json_put_raw(out, json_raw(item.value));
        }
    }
    json_end_object(out);
}

static void write_limits(const struct plan *plan, struct json_writer *out)
{
    json_key(out, "limits");
    json_begin_object(out);
    json_set_int(out, "agent_ms", plan->wall_ms_max);
    json_set_int(out, "setup_ms", plan->setup_ms_max);
    json_set_int(out, "verify_ms", plan->verify_ms_max);
    if (plan->turns_max)
        json_set_int(out, "turns", plan->turns_max);
    json_end_object(out);
}

/* CommandResult of OpenEnv: both streams are one text here. */
static void set_commands(struct json_writer *out, const char *key,
                         const struct trace_command *commands, size_t count)
{
    json_key(out, key);
    json_begin_array(out);
    for (size_t i = 0; i < count; i++) {
        const struct trace_command *command = &commands[i];
        struct str tail = command->output;
        if (tail.size > COMMAND_TAIL_BYTES)
            tail = str_from(tail, tail.size - COMMAND_TAIL_BYTES);
        json_begin_object(out);
        json_set_str(out, "cmd", command->command);
        json_set_int(out, "exit_code", command->code);
        json_set_str(out, "stdout", tail.data ? tail : STR(""));
        json_set_text(out, "stderr", "");
        json_set_double(out, "duration_s", (double)command->wall_ms / 1000);
        json_end_object(out);
    }
    json_end_array(out);
}

static struct str id_of_sandbox(const struct trace_result *result, struct arena *arena)
{
    OWN(json_doc) struct json_doc doc = {0};
    if (!result->sandbox.size || json_read(&doc, result->sandbox, NULL, NULL) < 0)
        return STR("");
    struct str id = json_str(json_get(json_root(&doc), "id"), arena);
    return id.data ? arena_str(arena, id) : STR("");
}

/* The text of a kept artifact, when it is a small file of text. */
static bool read_artifact(const struct plan *plan, struct str file, struct buf *out)
{
    OWN(mem) char *path = mem_format("%s/%.*s", plan->dir, STR_ARGS(file));
    struct stat status;
    if (!file.size || lstat(path, &status) < 0 || !S_ISREG(status.st_mode) ||
        status.st_size > FILE_BYTES_MAX || file_read(path, FILE_BYTES_MAX, out, NULL) < 0)
        return false;
    return str_is_utf8(buf_str(out)) && !memchr(out->data ? out->data : "", 0, out->size);
}

/* `files` are the artifacts that are text; the others are named in `files_extra`. */
static void set_files(const struct result_extra *extra, struct json_writer *out)
{
    OWN(json_doc) struct json_doc doc = {0};
    OWN(arena) struct arena arena = {0};
    OWN(buf) struct buf others = {0};
    struct json_writer rest = {.out = &others};
    size_t count = 0;
    json_key(out, "files");
    json_begin_object(out);
    json_begin_array(&rest);
    if (extra->artifacts.size && json_read(&doc, extra->artifacts, NULL, NULL) == 0) {
        JSON_EACH (item, json_root(&doc)) {
            OWN(buf) struct buf text = {0};
            struct str path = json_str(json_get(item.value, "path"), &arena);
            struct str file = json_str(json_get(item.value, "file"), &arena);
            if (count++ < FILES_MAX && read_artifact(extra->plan, file, &text)) {
                json_key_str(out, path);
                json_put_str(out, str_upto(buf_str(&text), FILE_TEXT_BYTES));
            } else {
                json_put_str(&rest, path);
            }
        }
    }
    json_end_array(&rest);
    json_end_object(out);
    json_set_raw(out, "files_extra", buf_str(&others));
}

/* What OpenEnv's RolloutResult has and we call otherwise: every field of it is always there. */
static void write_openenv(const struct trace_result *result, const struct result_extra *extra,
                          struct json_writer *out)
{
    OWN(arena) struct arena arena = {0};
    uint64_t wall_ms = 0;
    for (size_t i = TRACE_PROVISIONING; i < TRACE_STAGES; i++)
        wall_ms += result->stage_ms[i];
    json_set_text(out, "task_id", result->task);
    json_set_str(out, "sandbox_id", id_of_sandbox(result, &arena));
    if (result->agent_end)
        json_set_int(out, "agent_exit_code", result->agent_code);
    else
        json_set_null(out, "agent_exit_code");
    json_set_double(out, "wall_s", (double)wall_ms / 1000);
    set_commands(out, "setup_results", result->setup, result->setup_count);
    set_commands(out, "verify_results", result->verify, result->verify_count);
    json_set_raw(out, "proxy_turns", extra->turns.size ? extra->turns : STR("[]"));
    set_files(extra, out);
    json_set_str(out, "agent_log_tail", extra->log_tail.data ? extra->log_tail : STR(""));
    json_set_text(out, "proxy_log_tail", "");
}

/* Keys of the task that nobody understood. */
static void write_warnings(const struct task *task, struct json_writer *out)
{
    if (!task->warnings)
        return;
    json_key(out, "task_warnings");
    json_begin_array(out);
    for (const char *const *text = task->warnings; *text; text++)
        json_put_text(out, *text);
    json_end_array(out);
}

void result_write(const struct trace_result *result, const struct result_extra *extra,
                  struct buf *out)
{
    static const struct trace_reward none = {0};
    const struct plan *plan = extra->plan;
    struct json_writer writer = {.out = out};
    json_begin_object(&writer);
    json_set_text(&writer, "id", plan->id);
    json_set_text(&writer, "class", trace_fate_name(result->fate));
    json_set_text(&writer, "cause",
                  result->fate != TRACE_FATE_OK ? result->error.data : extra->divergence);
    json_set_text(&writer, "reason", extra->reason && extra->reason[0] ? extra->reason : NULL);
    json_set_text(&writer, "run", plan->run[0] ? plan->run : NULL);
    json_set_int(&writer, "index", plan->index);

    /* The trace's own members follow as they are: its object without the opening brace. */
    OWN(buf) struct buf body = {0};
    struct json_writer body_writer = {.out = &body};
    trace_result_write(result, &body_writer);
    buf_byte(out, ',');
    buf_append(out, body.data + 1, body.size - 2);

    writer.comma = true;
    json_key(&writer, "rewards");
    result_write_rewards(trace_fate_may_reward(result->fate) ? &result->reward : &none, &writer);
    write_openenv(result, extra, &writer);
    json_set_raw(&writer, "samples", extra->samples.size ? extra->samples : STR("null"));
    json_set_text(&writer, "task_source", plan->task->source);
    write_warnings(plan->task, &writer);
    if (extra->verify_user)
        json_set_text(&writer, "verify_user",
                      extra->verify_user[0] ? extra->verify_user : "agent's");
    if (extra->verify_note)
        json_set_text(&writer, "verify_note", extra->verify_note);
    if (extra->verification.size)
        json_set_raw(&writer, "verification", extra->verification);
    if (extra->steps.size)
        json_set_raw(&writer, "steps", extra->steps);
    if (extra->artifacts.size)
        json_set_raw(&writer, "artifacts", extra->artifacts);
    if (extra->gateway.size)
        json_set_raw(&writer, "gateway", extra->gateway);
    if (plan->task->metadata.size)
        json_set_raw(&writer, "metadata", plan->task->metadata);
    if (plan->has_policy)
        json_set_int(&writer, "policy_version", plan->policy_version);
    if (plan->shared)
        json_set_bool(&writer, "shared_preparation", true);
    if (extra->logs_cut)
        json_set_bool(&writer, "logs_cut", true);
    write_limits(plan, &writer);
    write_versions(plan, extra->samples, &writer);
    json_set_text(&writer, "dir", plan->dir);
    json_end_object(&writer);
}

static void add_hosts(struct json_doc *doc, struct json other, bool skip_known,
                      struct json_writer *out)
{
    JSON_EACH (item, json_root(doc)) {
        OWN(arena) struct arena arena = {0};
        struct str host = json_str(item.key, &arena);
        struct json twin = json_get_str(other, host);
        if (skip_known && json_exists(twin))
            continue;
        json_key_str(out, host);
        json_put_int(out, json_int_or(item.value, 0) + json_int_or(twin, 0));
    }
}

void result_merge_hosts(struct str a, struct str b, struct buf *out)
{
    OWN(json_doc) struct json_doc first = {0};
    OWN(json_doc) struct json_doc second = {0};
    if (json_read(&first, a.size ? a : STR("{}"), NULL, NULL) < 0)
        (void)json_read(&first, STR("{}"), NULL, NULL);
    if (json_read(&second, b.size ? b : STR("{}"), NULL, NULL) < 0)
        (void)json_read(&second, STR("{}"), NULL, NULL);
    struct json_writer writer = {.out = out};
    json_begin_object(&writer);
    add_hosts(&first, json_root(&second), false, &writer);
    add_hosts(&second, json_root(&first), true, &writer);
    json_end_object(&writer);
}
