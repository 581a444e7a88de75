/* life_resume.c - a rollout outlives its server.
 *
 * What a successor must know is kept in <home>/live/<id>.state, replaced at the few steps after
 * which things are different: a sandbox is being made, the agent runs, it has ended, it is being
 * judged, its files have become a layer. A successor goes on from there:
 *
 *     before running         from provisioning, in a new sandbox
 *     running                the sandbox is taken over; the agent runs on, or has ended meanwhile
 *     settling               the sandbox is taken over; the agent's end is known
 *     verifying              judged once more from the final files: the layer, or the sandbox
 *     collecting             with the verdict it has; judged once more where artifacts are missing
 *
 * What the agent printed is in agent.log, and in agent.parts the pieces it came in: the porter has
 * whatever is not there yet. Nothing is told twice: events that are in events.jsonl are passed over
 * when the log is read again. What cannot be gone on with ends as infra_failed, with the reason. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "rollout/life.h"

#include "base/clock.h"
#include "base/fd.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"

enum {
    VERSION = 1,
    LIVES_MAX = 200, /* a rollout that kills its server must not do so for ever */
};
#define LOG_SLACK 4096 /* notes of ours at the end of a log */

/* ---------------------------------------------------------------- keeping */
static void write_agent(const struct life *life, struct json_writer *out)
{
    json_key(out, "agent");
    json_begin_object(out);
    json_set_int(out, "fate", life->agent_fate);
    json_set_bool(out, "exited", life->result.agent_exited);
    json_set_int(out, "code", life->result.agent_code);
    json_set_text(out, "end", life->result.agent_end);
    json_set_text(out, "text", life->err.text);
    json_set_str(out, "final_text", life->result.final_text);
    json_end_object(out);
}

static void set_raw(struct json_writer *out, const char *key, struct str value)
{
    if (value.size)
        json_set_raw(out, key, value);
}

/* What is known when the calls are settled. */
static void write_settled(const struct life *life, struct json_writer *out)
{
    const struct trace_result *result = &life->result;
    json_key(out, "settled");
    json_begin_object(out);
    json_set_int(out, "fate", result->fate);
    json_set_int(out, "kind", life->err.kind);
    json_set_text(out, "error", life->err.text);
    json_set_int(out, "calls", result->calls);
    json_set_int(out, "turns", result->turns);
    json_key(out, "usage");
    trace_usage_write(&result->usage, out);
    set_raw(out, "gateway", life->extra.gateway);
    set_raw(out, "connects", life->connects);
    set_raw(out, "lookups", life->lookups);
    set_raw(out, "sandbox", result->sandbox);
    json_end_object(out);
}

/* What is known when it was judged. */
static void write_verdict(const struct life *life, struct json_writer *out)
{
    const struct trace_result *result = &life->result;
    const struct trace_reward *reward = &result->reward;
    json_key(out, "verdict");
    json_begin_object(out);
    json_set_bool(out, "known", reward->known);
    json_set_double(out, "value", reward->value);
    json_set_int(out, "passed", reward->passed);
    json_set_int(out, "total", reward->total);
    json_set_text(out, "source", reward->source);
    set_raw(out, "detail", reward->detail);
    json_set_bool(out, "fresh", result->fresh_verify);
    json_set_text(out, "user", life->extra.verify_user);
    json_set_text(out, "note", life->extra.verify_note);
    set_raw(out, "verification", life->extra.verification);
    json_set_str(out, "all_steps", buf_str(&life->steps));
    json_key(out, "commands");
    json_begin_array(out);
    for (size_t i = 0; i < result->verify_count; i++)
        trace_command_write(&result->verify[i], out);
    json_end_array(out);
    json_end_object(out);
}

/* Of a task with several steps, and of what is beside the sandbox. */
static void write_steps(const struct life *life, struct json_writer *out)
{
    json_set_text(out, "root", life->root); /* an image may have been made for it */
    json_set_text(out, "verify_root", life->verify_root);
    json_set_int(out, "step", (long long)life->step_at);
    json_set_int(out, "phase", life->phase);
    json_set_bool(out, "frozen", life->frozen);
    json_set_int(out, "kept_before", life->kept_before);
    json_set_int(out, "log_base", (long long)life->log_base);
    if (life->apart)
        json_set_text(out, "apart", sandbox_id(life->apart));
    if (!life->plan->task->step_count)
        return;
    json_set_str(out, "steps", buf_str(&life->steps));
    json_key(out, "rewards");
    json_begin_array(out);
    for (size_t i = 0; i < life->step_at; i++) {
        const struct trace_reward *reward = &life->rewards[i];
        json_begin_object(out);
        json_set_bool(out, "known", reward->known);
        json_set_double(out, "value", reward->value);
        set_raw(out, "detail", reward->detail);
        json_end_object(out);
    }
    json_end_array(out);
}

static bool is_kept(enum trace_stage stage)
{
    return stage == TRACE_PROVISIONING || stage == TRACE_RUNNING || stage == TRACE_SETTLING ||
           stage == TRACE_VERIFYING || stage == TRACE_COLLECTING;
}

void life_save(struct life *life)
{
    const struct plan *plan = life->plan;
    const struct trace_result *result = &life->result;
    if (!plan->live || !is_kept(life->stage))
        return;
    OWN(buf) struct buf text = {0};
    struct json_writer out = {.out = &text};
    uint64_t spent = clock_mono_ms() - life->stage_since_ms;
    json_begin_object(&out);
    json_set_int(&out, "version", VERSION);
    json_set_text(&out, "stage", trace_stage_name(life->stage));
    json_set_int(&out, "began_ms", (long long)(clock_wall_ms() - spent));
    json_set_int(&out, "lives", life->lives);
    json_set_int(&out, "tries", result->tries);
    if (plan->has_policy) /* the one it began at: live.c reads it */
        json_set_int(&out, "policy_version", plan->policy_version);
    if (life->sandbox && life->stage != TRACE_PROVISIONING)
        json_set_text(&out, "sandbox", sandbox_id(life->sandbox));
    if (life->layer[0])
        json_set_text(&out, "layer", life->layer);
    json_key(&out, "stage_ms");
    json_begin_array(&out);
    for (int i = 0; i < TRACE_STAGES; i++)
        json_put_int(&out, (long long)result->stage_ms[i]);
    json_end_array(&out);
    json_key(&out, "setup");
    json_begin_array(&out);
    for (size_t i = 0; i < result->setup_count; i++)
        trace_command_write(&result->setup[i], &out);
    json_end_array(&out);
    write_steps(life, &out);
    if (life->agent_over)
        write_agent(life, &out);
    if (life->stage == TRACE_VERIFYING || life->stage == TRACE_COLLECTING)
        write_settled(life, &out);
    if (life->stage == TRACE_COLLECTING)
        write_verdict(life, &out);
    if (life->cancelled) {
        json_key(&out, "cancelled");
        json_begin_object(&out);
        json_set_text(&out, "why", life->err.text);
        json_set_text(&out, "reason", life->reason);
        json_end_object(&out);
    }
    json_end_object(&out);
    OWN(mem) char *path = mem_format("%s.state", plan->live);
    struct err err = {0};
    if (file_write(path, buf_str(&text), 0600, false, &err) < 0)
        LOG_WARN("rollout", plan->id, "it could not be gone on with after a crash: %s", err.text);
}

/* ---------------------------------------------------------------- what the agent prints */
void life_begin_output(struct life *life)
{
    OWN(mem) char *path = mem_format("%s/agent.parts", life->plan->dir);
    life->kept_before = life->kept_count++;
    life->log_base = life->agent_log.bytes;
    life->events_known = 0;
    fd_close(&life->agent_parts.fd);
    life->agent_parts = (struct log_parts){.fd = -1};
    (void)unlink(path);
}

void life_note_output(struct life *life, int stream, struct str data)
{
    struct log_parts *parts = &life->agent_parts;
    struct log_file *log = &life->agent_log;
    log_file_write(log, data);
    if (!life->plan->live || parts->failed)
        return;
    if (parts->fd < 0) {
        OWN(mem) char *path = mem_format("%s/agent.parts", life->plan->dir);
        uint64_t none = 0;
        parts->fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
        if (parts->fd >= 0 && !parts->total)
            (void)!pwrite(parts->fd, &none, sizeof none, 0);
    }
    parts->total += data.size;
    parts->full |= log->cut || log->failed;
    uint32_t record = (uint32_t)data.size | (stream == 2 ? AGENT_PART_ERR : 0);
    off_t at = (off_t)(sizeof parts->total + parts->records * sizeof record);
    ssize_t wrote = parts->full ? pwrite(parts->fd, &parts->total, sizeof parts->total, 0)
                                : pwrite(parts->fd, &record, sizeof record, at);
    parts->records += !parts->full;
    if (wrote > 0)
        return;
    parts->failed = true;
    LOG_WARN("rollout", life->plan->id, "what it prints could not be gone on with: %s",
             strerror(errno));
}

static void read_parts(struct life *life, struct buf *records)
{
    struct log_parts *parts = &life->agent_parts;
    OWN(mem) char *path = mem_format("%s/agent.parts", life->plan->dir);
    OWN(buf) struct buf text = {0};
    uint64_t total = 0;
    *parts = (struct log_parts){.fd = -1};
    if (file_read(path, (size_t)1 << 30, &text, NULL) < 0 || text.size < sizeof total)
        return;
    memcpy(&total, text.data, sizeof total);
    struct str rest = str_from(buf_str(&text), sizeof total);
    parts->records = rest.size / sizeof(uint32_t);
    buf_append(records, rest.data, parts->records * sizeof(uint32_t));
    for (uint64_t i = 0; i < parts->records; i++) {
        uint32_t record;
        memcpy(&record, rest.data + i * sizeof record, sizeof record);
        parts->total += record & ~AGENT_PART_ERR;
    }
    parts->full = total > 0;
    if (total)
        parts->total = total;
}

static struct str member_of(struct str line, struct str mark)
{
    long at = str_find(line, mark);
    if (at < 0)
        return STR_NONE;
    struct str rest = str_from(line, (size_t)at + mark.size);
    return str_cut(&rest, '"');
}

static bool is_agents(struct str kind)
{
    for (int i = 0; i <= AGENT_OTHER; i++)
        if (str_is(kind, agent_event_kind_name((enum agent_event_kind)i)))
            return true;
    return false;
}

/* Counts the events of the last agent that was started, and cuts off a line that was not finished.
 */
void life_mend_events(struct life *life)
{
    OWN(mem) char *path = mem_format("%s/events.jsonl", life->plan->dir);
    OWN(buf) struct buf text = {0};
    if (file_read(path, life->plan->log_bytes_max + LOG_SLACK, &text, NULL) < 0)
        return;
    struct str rest = buf_str(&text);
    for (long end; (end = str_find_byte(rest, '\n')) >= 0;) {
        struct str line = str_upto(rest, (size_t)end);
        struct str kind = member_of(line, STR("\"kind\":\""));
        rest = str_from(rest, (size_t)end + 1);
        if (str_is(kind, "stage") && str_is(member_of(line, STR("\"text\":\"")), "running"))
            life->events_known = 0;
        life->events_known += is_agents(kind);
    }
    if (rest.size && truncate(path, (off_t)(text.size - rest.size)) < 0)
        LOG_WARN("rollout", life->plan->id, "its events end in half a line: %s", strerror(errno));
}

void life_read_output(struct life *life, const struct sandbox_kept *kept, struct buf *log,
                      struct buf *records, struct agent_resume *out)
{
    struct log_parts *parts = &life->agent_parts;
    OWN(mem) char *path = mem_format("%s/agent.log", life->plan->dir);
    read_parts(life, records);
    struct err err = {0};
    struct log_file *file = &life->agent_log;
    uint64_t end = life->log_base + parts->total;
    /* What is in the log beyond its parts comes from the porter once more. */
    if (!parts->full && file->fd >= 0 && file->bytes > end &&
        ftruncate(file->fd, (off_t)end) == 0) {
        file->bytes = end;
        file->cut = end >= file->bytes_max;
    }
    if (parts->records && file_read(path, life->plan->log_bytes_max + LOG_SLACK, log, &err) < 0)
        LOG_WARN("rollout", life->plan->id, "%s", err.text);
    if (parts->total < kept->from) {
        char text[96];
        snprintf(text, sizeof text, "%llu bytes of the agent's output were lost with a server",
                 (unsigned long long)(kept->from - parts->total));
        life_log(life, "lost", str_of(text));
        parts->full = true;
        parts->total = kept->from;
    }
    if (parts->total > kept->to)
        parts->total = kept->to;
    *out = (struct agent_resume){
        .log = str_from(buf_str(log), (size_t)life->log_base),
        .index = life->kept_before,
        .parts = (const uint32_t *)(const void *)records->data,
        .part_count = parts->records,
        .gap = parts->full,
        .position = parts->total,
        .events_known = life->events_known,
    };
}

/* ---------------------------------------------------------------- going on */
static void cannot(struct life *life, const struct err *err)
{
    struct err why = *err;
    err_wrap(&why, "the server that ran it died");
    if (why.kind == ERR_NOT_FOUND)
        why.kind = ERR_LOST;
    life_fail_infra(life, &why);
}

static void go_on(struct life *life);
static void end_with(struct life *life, struct json verdict);

/* The final files are gone: then with the verdict there was, if there was one. */
static void without_files(struct life *life, const struct err *err)
{
    OWN(json_doc) struct json_doc doc = {0};
    struct json verdict = {0};
    if (json_read(&doc, life->plan->state, NULL, NULL) == 0)
        verdict = json_get(json_root(&doc), "verdict");
    if (!json_exists(verdict)) {
        cannot(life, err);
        return;
    }
    life->stage = TRACE_COLLECTING;
    end_with(life, verdict);
}

static void on_layer(void *context, const struct err *err)
{
    struct life *life = context;
    life->pending--;
    if (trace_stage_final(life->stage)) {
        life_step(life); /* cancelled meanwhile */
        return;
    }
    if (is_bad(err)) {
        struct err why = *err;
        life->layer[0] = '\0';
        without_files(life, &why);
        return;
    }
    life->layer_ready = true;
    go_on(life);
}

static void adopt_layer(struct life *life)
{
    life->pending++; /* the life has to be there when the answer comes */
    sandboxes_adopt_layer(life->plan->lane.sandboxes, life->layer, on_layer, life);
}

/* The snapshot was made, but the server died before it heard of that. */
static void on_found(void *context, const struct sandbox_found *found, size_t count,
                     const struct err *err)
{
    struct life *life = context;
    life->pending--;
    if (trace_stage_final(life->stage)) {
        life_step(life);
        return;
    }
    for (size_t i = 0; i < count && !is_bad(err); i++) {
        if (!found[i].layer || strcmp(found[i].label, life->plan->id) != 0)
            continue;
        snprintf(life->layer, sizeof life->layer, "%s", found[i].id);
        adopt_layer(life);
        return;
    }
    without_files(life, &life->provision_err);
}

static bool has_apart(const struct life *life)
{
    return life->apart && !life->apart_ready;
}

/* Everything that was kept is ours: on with it. */
static void go_on(struct life *life)
{
    struct err why = {0};
    bool judging = life->stage == TRACE_VERIFYING;
    if (has_apart(life) || (life->sandbox && !life->provisioned))
        return; /* not yet */
    if ((!judging || life->plan->task->step_count) && life_open_session(life, &why) < 0) {
        cannot(life, &why);
        return;
    }
    if (life->stage == TRACE_RUNNING) {
        life_resume_agent(life);
    } else if (life->stage == TRACE_SETTLING) {
        life_settle(life);
    } else if (life->layer[0]) {
        life->snapshot_over = true;
        life_save(life);
        life_step(life);
    } else {
        life_verify(life);
        if (life->verified)
            life_step(life);
    }
}

static void on_apart_lost(void *context, const struct err *err)
{
    struct err why = *err;
    err_wrap(&why, "the sandbox of the task's tools");
    life_fail_infra(context, &why);
}

static void on_apart_adopted(void *context, struct sandbox *sandbox, const struct err *err)
{
    struct life *life = context;
    if (is_bad(err)) {
        struct err why = *err;
        cannot(life, &why);
        return;
    }
    sandbox_on_lost(sandbox, on_apart_lost, life);
    life->apart_ready = true;
    if (!life->layer[0] || life->layer_ready)
        go_on(life);
}

static void on_adopted(void *context, struct sandbox *sandbox, const struct err *err)
{
    struct life *life = context;
    if (is_bad(err)) {
        life->provision_err = *err;
        sandbox_close(TAKE(life->sandbox), NULL, NULL);
        if (life->stage == TRACE_VERIFYING && err->kind == ERR_NOT_FOUND) {
            life->pending++;
            sandboxes_find(life->plan->lane.sandboxes, on_found, life);
            return;
        }
        without_files(life, &life->provision_err);
        return;
    }
    life->provisioned = true;
    sandbox_on_lost(sandbox, life_on_lost, life);
    go_on(life);
}

static const char *text_of(struct life *life, struct json value)
{
    return arena_text(&life->arena, json_str(value, &life->arena));
}

static struct str raw_of(struct life *life, struct json value)
{
    return json_exists(value) ? arena_str(&life->arena, json_raw(value)) : STR_NONE;
}

static void read_commands(struct life *life, struct json list, const struct trace_command **out,
                          size_t *out_count)
{
    size_t count = json_size(list), at = 0;
    struct trace_command *commands = arena_alloc(&life->arena, (count + 1) * sizeof *commands);
    JSON_EACH (item, list) {
        commands[at++] = (struct trace_command){
            .command = str_of(text_of(life, json_get(item.value, "command"))),
            .end = text_of(life, json_get(item.value, "end")),
            .code = (int)json_int_or(json_get(item.value, "code"), 0),
            .wall_ms = (uint64_t)json_int_or(json_get(item.value, "wall_ms"), 0),
            .output = str_of(text_of(life, json_get(item.value, "output"))),
            .output_cut = json_true(json_get(item.value, "output_cut")),
        };
    }
    *out = commands;
    *out_count = at;
}

static const char *text_or_null(struct life *life, struct json value)
{
    return json_type(value) == JSON_STRING ? text_of(life, value) : NULL;
}

static void read_verdict(struct life *life, struct json verdict)
{
    struct trace_result *result = &life->result;
    result->reward = (struct trace_reward){
        .known = json_true(json_get(verdict, "known")),
        .value = json_double_or(json_get(verdict, "value"), 0),
        .passed = (uint32_t)json_int_or(json_get(verdict, "passed"), 0),
        .total = (uint32_t)json_int_or(json_get(verdict, "total"), 0),
        .source = text_or_null(life, json_get(verdict, "source")),
        .detail = raw_of(life, json_get(verdict, "detail")),
    };
    result->fresh_verify = json_true(json_get(verdict, "fresh"));
    life->extra.verify_user = text_or_null(life, json_get(verdict, "user"));
    life->extra.verify_note = text_or_null(life, json_get(verdict, "note"));
    life->extra.verification = raw_of(life, json_get(verdict, "verification"));
    buf_clear(&life->steps);
    buf_str_append(&life->steps, json_str(json_get(verdict, "all_steps"), &life->arena));
    read_commands(life, json_get(verdict, "commands"), &result->verify, &result->verify_count);
    life->steps_over = life->verified = true;
}

static void read_agent(struct life *life, struct json agent)
{
    struct trace_result *result = &life->result;
    if (!json_exists(agent))
        return;
    life->agent_over = true;
    life->agent_fate = (enum agent_fate)json_int_or(json_get(agent, "fate"), AGENT_LOST);
    result->agent_exited = json_true(json_get(agent, "exited"));
    result->agent_code = (int)json_int_or(json_get(agent, "code"), 0);
    result->agent_end = text_of(life, json_get(agent, "end"));
    result->final_text = str_of(text_of(life, json_get(agent, "final_text")));
    err_set(&life->err, ERR_NONE, "%s", text_of(life, json_get(agent, "text")));
}

static void read_settled(struct life *life, struct json settled)
{
    struct trace_result *result = &life->result;
    if (!json_exists(settled))
        return;
    result->fate = (enum trace_fate)json_int_or(json_get(settled, "fate"), 0);
    result->failed_stage = TRACE_RUNNING;
    err_set(&life->err, (enum err_kind)json_int_or(json_get(settled, "kind"), 0), "%s",
            text_of(life, json_get(settled, "error")));
    result->calls = (uint32_t)json_int_or(json_get(settled, "calls"), 0);
    result->turns = (uint32_t)json_int_or(json_get(settled, "turns"), 0);
    (void)trace_usage_read(json_get(settled, "usage"), &result->usage);
    life->extra.gateway = raw_of(life, json_get(settled, "gateway"));
    life->connects = raw_of(life, json_get(settled, "connects"));
    life->lookups = raw_of(life, json_get(settled, "lookups"));
    result->sandbox = raw_of(life, json_get(settled, "sandbox"));
}

static void read_steps(struct life *life, struct json root)
{
    const struct task *all = life->plan->task;
    size_t at = 0;
    life->phase = (unsigned)json_int_or(json_get(root, "phase"), 0);
    life->frozen = json_true(json_get(root, "frozen"));
    life->root = life->verify_root = life->plan->root;
    if (json_type(json_get(root, "root")) == JSON_STRING)
        life->root = text_of(life, json_get(root, "root"));
    if (json_type(json_get(root, "verify_root")) == JSON_STRING)
        life->verify_root = text_of(life, json_get(root, "verify_root"));
    life->kept_before = (uint32_t)json_int_or(json_get(root, "kept_before"), 0);
    life->kept_count = life->kept_before + 1;
    life->log_base = (uint64_t)json_int_or(json_get(root, "log_base"), 0);
    life->step_at = (size_t)json_int_or(json_get(root, "step"), 0);
    if (!all->step_count)
        return;
    if (life->step_at >= all->step_count)
        life->step_at = all->step_count - 1;
    life->task = all->steps[life->step_at];
    JSON_EACH (item, json_get(root, "rewards")) {
        struct json detail = json_get(item.value, "detail");
        if (at < life->step_at)
            life->rewards[at++] = (struct trace_reward){
                .known = json_true(json_get(item.value, "known")),
                .value = json_double_or(json_get(item.value, "value"), 0),
                .detail = raw_of(life, detail),
            };
    }
    buf_str_append(&life->steps, json_str(json_get(root, "steps"), &life->arena));
    if (life->steps.size)
        life->steps_writer = (struct json_writer){.out = &life->steps, .comma = true};
}

/* Returns the stage to go on from; TRACE_STAGES: it cannot be read. */
static enum trace_stage read_state(struct life *life, struct json root, uint64_t *began_ms)
{
    enum trace_stage stage;
    size_t at = 0;
    if (json_int_or(json_get(root, "version"), 0) != VERSION ||
        !trace_stage_find(json_str(json_get(root, "stage"), &life->arena), &stage) ||
        !is_kept(stage))
        return TRACE_STAGES;
    *began_ms = (uint64_t)json_int_or(json_get(root, "began_ms"), 0);
    life->lives = (uint32_t)json_int_or(json_get(root, "lives"), 0) + 1;
    life->result.tries = (uint32_t)json_int_or(json_get(root, "tries"), 0);
    if (stage == TRACE_PROVISIONING) {
        life->result.tries++; /* the one that was under way */
        return stage;
    }
    snprintf(life->layer, sizeof life->layer, "%s", text_of(life, json_get(root, "layer")));
    JSON_EACH (item, json_get(root, "stage_ms")) {
        if (at < TRACE_STAGES)
            life->result.stage_ms[at++] = (uint64_t)json_int_or(item.value, 0);
    }
    read_steps(life, root);
    read_commands(life, json_get(root, "setup"), &life->result.setup, &life->result.setup_count);
    read_agent(life, json_get(root, "agent"));
    read_settled(life, json_get(root, "settled"));
    return stage;
}

static void on_useless(void *context, struct sandbox *sandbox, const struct err *err)
{
    (void)context; /* it is closed before it can be used */
    (void)sandbox;
    (void)err;
}

static bool has_artifacts(const struct life *life)
{
    const char *const *of_agent = life->plan->agent_artifacts;
    return (life->task->artifacts && life->task->artifacts[0]) || (of_agent && of_agent[0]);
}

/* It was judged, and there is nothing more to do than to say so. */
static void end_with(struct life *life, struct json verdict)
{
    read_verdict(life, verdict);
    life->collected = true;
    life_start_deadline(life, 0);
    life_report_send(life, life_report(life, REPORT_STAGE));
    life_step(life);
}

/* It was cancelled when the server died: what is left of it is closed, whatever its agent did
 * since. */
static void end_cancelled(struct life *life, struct json root)
{
    struct sandboxes *sandboxes = life->plan->lane.sandboxes;
    struct json cancelled = json_get(root, "cancelled"), apart = json_get(root, "apart");
    const char *id = text_of(life, json_get(root, "sandbox"));
    struct sandbox_spec spec = life_shape(life);
    struct err why = {0};
    if (id[0])
        life->sandbox = sandbox_adopt(sandboxes, id, &spec, on_useless, life);
    if (json_exists(apart))
        life->apart = sandbox_adopt(sandboxes, text_of(life, apart), &spec, on_useless, life);
    snprintf(life->reason, sizeof life->reason, "%s", text_of(life, json_get(cancelled, "reason")));
    err_set(&why, ERR_CANCELLED, "%s", text_of(life, json_get(cancelled, "why")));
    life_fail(life, TRACE_FATE_CANCELLED, &why);
}

void life_resume(struct life *life)
{
    const struct plan *plan = life->plan;
    OWN(json_doc) struct json_doc doc = {0};
    struct err err = {0};
    uint64_t began_ms = 0;
    enum trace_stage stage = TRACE_STAGES;
    if (json_read(&doc, plan->state, NULL, &err) == 0)
        stage = read_state(life, json_root(&doc), &began_ms);
    if (stage == TRACE_STAGES) {
        err_set(&err, ERR_PROTOCOL, "what it left behind cannot be read");
        cannot(life, &err);
        return;
    }
    if (life->lives > LIVES_MAX) {
        err_set(&err, ERR_LIMIT, "%d servers have died with it", LIVES_MAX);
        cannot(life, &err);
        return;
    }
    life_log(life, "resumed", str_of(trace_stage_name(stage)));
    LOG_INFO("rollout", plan->id, "goes on from %s (server %u)", trace_stage_name(stage),
             life->lives + 1);
    bool cancelled = json_exists(json_get(json_root(&doc), "cancelled"));
    if (stage == TRACE_PROVISIONING) {
        if (cancelled)
            end_cancelled(life, json_root(&doc));
        else
            life_step(life); /* from the beginning */
        return;
    }
    uint64_t now = clock_wall_ms(), spent = now > began_ms ? now - began_ms : 0;
    struct json verdict = json_get(json_root(&doc), "verdict");
    bool over = stage == TRACE_COLLECTING && !has_artifacts(life);
    if (stage == TRACE_COLLECTING && !over)
        stage = TRACE_VERIFYING; /* what is missing can be had from the final files only */
    life->stage = stage;
    life->stage_since_ms = clock_mono_ms() - spent;
    if (cancelled) {
        end_cancelled(life, json_root(&doc));
        return;
    }
    const char *id = text_of(life, json_get(json_root(&doc), "sandbox"));
    struct sandbox_spec spec = life_shape(life);
    if (over) {
        if (id[0]) /* to be closed with the rest */
            life->sandbox = sandbox_adopt(plan->lane.sandboxes, id, &spec, on_useless, life);
        end_with(life, verdict);
        return;
    }
    life_start_deadline(life, stage == TRACE_RUNNING ? spent : 0);
    struct json apart = json_get(json_root(&doc), "apart");
    if (json_exists(apart))
        life->apart = sandbox_adopt(plan->lane.sandboxes, text_of(life, apart), &spec,
                                    on_apart_adopted, life);
    if (life->layer[0]) {
        adopt_layer(life);
    } else {
        life->sandbox = sandbox_adopt(plan->lane.sandboxes, id, &spec, on_adopted, life);
    }
    if (!json_exists(verdict)) /* else the one there is says more */
        life_save(life);
    life_report_send(life, life_report(life, REPORT_STAGE));
}
