/* write.c - the record as JSON. What is unknown is null or left out, never a made-up 0. */
#include <string.h>

#include "base/clock.h"
#include "json/json.h"
#include "trace/trace.h"

static void set_optional(struct json_writer *out, const char *key, struct str value)
{
    if (value.data)
        json_set_str(out, key, value);
}

static void put_blanks(struct str text, char byte)
{
    char *at = (char *)(uintptr_t)text.data, *end = at + text.size;
    while (at < end && (at = memchr(at, byte, (size_t)(end - at))))
        *at++ = ' ';
}

/* Of the agent's own JSON, too: a record is a line, whatever its agent has between its values. In
 * strings there are no line ends, only escapes. */
static void set_raw_optional(struct json_writer *out, const char *key, struct str json)
{
    if (!json.data)
        return;
    json_key(out, key);
    size_t from = out->out->size;
    json_put_raw(out, json);
    if (out->indent)
        return; /* for people: no line anyway */
    struct str put = str_from(buf_str(out->out), from);
    put_blanks(put, '\n');
    put_blanks(put, '\r');
}

static void set_time(struct json_writer *out, const char *key, uint64_t wall_ms)
{
    if (!wall_ms) {
        json_set_null(out, key);
        return;
    }
    char text[32];
    clock_format(wall_ms, text, sizeof text);
    json_set_text(out, key, text);
}

void trace_part_write(const struct trace_part *part, struct json_writer *out)
{
    json_begin_object(out);
    json_set_text(out, "type", trace_part_kind_name(part->kind));
    set_optional(out, "text", part->text);
    set_raw_optional(out, "raw", part->raw);
    json_end_object(out);
}

static void write_tool_call(const struct trace_tool_call *call, struct json_writer *out)
{
    json_begin_object(out);
    json_set_str(out, "id", call->id);
    json_set_str(out, "name", call->name);
    json_set_str(out, "arguments", call->arguments);
    json_end_object(out);
}

/* A message whose content is one text, which most are, shows it as a string. */
static void write_content(const struct trace_message *message, struct json_writer *out)
{
    json_key(out, "content");
    if (message->part_count == 0) {
        json_put_null(out);
        return;
    }
    if (message->part_count == 1 && message->parts[0].kind == TRACE_PART_TEXT) {
        json_put_str(out, message->parts[0].text);
        return;
    }
    json_begin_array(out);
    for (size_t i = 0; i < message->part_count; i++)
        trace_part_write(&message->parts[i], out);
    json_end_array(out);
}

void trace_message_write(const struct trace_message *message, struct json_writer *out)
{
    json_begin_object(out);
    json_set_text(out, "role", trace_role_name(message->role));
    set_optional(out, "name", message->name);
    set_optional(out, "tool_call_id", message->tool_call_id);
    if (message->failed)
        json_set_bool(out, "is_error", true);
    set_optional(out, "reasoning", message->reasoning);
    set_raw_optional(out, "opaque", message->opaque);
    write_content(message, out);
    if (message->call_count) {
        json_key(out, "tool_calls");
        json_begin_array(out);
        for (size_t i = 0; i < message->call_count; i++)
            write_tool_call(&message->calls[i], out);
        json_end_array(out);
    }
    json_end_object(out);
}

void trace_tool_write(const struct trace_tool *tool, struct json_writer *out)
{
    json_begin_object(out);
    json_set_str(out, "name", tool->name);
    set_optional(out, "description", tool->description);
    set_raw_optional(out, "parameters", tool->parameters);
    set_raw_optional(out, "strict", tool->strict);
    json_end_object(out);
}

void trace_usage_write(const struct trace_usage *usage, struct json_writer *out)
{
    if (!usage->known) {
        json_put_null(out);
        return;
    }
    json_begin_object(out);
    json_set_int(out, "prompt_tokens", usage->prompt_tokens);
    json_set_int(out, "completion_tokens", usage->completion_tokens);
    if (usage->cached_tokens >= 0)
        json_set_int(out, "cached_tokens", usage->cached_tokens);
    if (usage->reasoning_tokens >= 0)
        json_set_int(out, "reasoning_tokens", usage->reasoning_tokens);
    json_end_object(out);
}

static void write_ids(const int32_t *ids, size_t count, struct json_writer *out)
{
    json_begin_array(out);
    for (size_t i = 0; i < count; i++)
        json_put_int(out, ids[i]);
    json_end_array(out);
}

static void set_tokens(const struct trace_tokens *tokens, struct json_writer *out)
{
    if (tokens->ids) {
        json_key(out, "token_ids");
        write_ids(tokens->ids, tokens->id_count, out);
    }
    if (tokens->logprobs) {
        json_key(out, "logprobs");
        json_begin_array(out);
        for (size_t i = 0; i < tokens->logprob_count; i++)
            trace_float_write(tokens->logprobs[i], out);
        json_end_array(out);
    }
}

void trace_tokens_write(const struct trace_tokens *tokens, struct json_writer *out)
{
    json_begin_object(out);
    set_tokens(tokens, out);
    json_end_object(out);
}

static void write_sampling(const struct trace_sampling *sampling, struct json_writer *out)
{
    json_begin_object(out);
    if (sampling->has_temperature)
        json_set_double(out, "temperature", sampling->temperature);
    if (sampling->has_top_p)
        json_set_double(out, "top_p", sampling->top_p);
    if (sampling->has_seed)
        json_set_int(out, "seed", sampling->seed);
    if (sampling->tokens_max)
        json_set_int(out, "max_tokens", sampling->tokens_max);
    if (sampling->stop_count) {
        json_key(out, "stop");
        json_begin_array(out);
        for (size_t i = 0; i < sampling->stop_count; i++)
            json_put_str(out, sampling->stop[i]);
        json_end_array(out);
    }
    json_end_object(out);
}

void trace_request_write(const struct trace_request *request, struct json_writer *out)
{
    json_begin_object(out);
    json_set_str(out, "model", request->model);
    json_key(out, "messages");
    json_begin_array(out);
    for (size_t i = 0; i < request->message_count; i++)
        trace_message_write(&request->messages[i], out);
    json_end_array(out);
    if (request->tool_count) {
        json_key(out, "tools");
        json_begin_array(out);
        for (size_t i = 0; i < request->tool_count; i++)
            trace_tool_write(&request->tools[i], out);
        json_end_array(out);
    }
    set_raw_optional(out, "tool_choice", request->tool_choice);
    json_key(out, "sampling");
    write_sampling(&request->sampling, out);
    json_set_bool(out, "stream", request->stream);
    json_end_object(out);
}

void trace_answer_write(const struct trace_answer *answer, struct json_writer *out)
{
    json_begin_object(out);
    set_optional(out, "id", answer->id);
    set_optional(out, "model", answer->model);
    json_key(out, "message");
    trace_message_write(&answer->message, out);
    json_set_text(out, "finish_reason", trace_finish_name(answer->finish));
    if (answer->finish == TRACE_FINISH_OTHER)
        set_optional(out, "finish_text", answer->finish_text);
    set_optional(out, "stop_word", answer->stop_word);
    json_key(out, "usage");
    trace_usage_write(&answer->usage, out);
    if (answer->prompt_ids) {
        json_key(out, "prompt_token_ids");
        write_ids(answer->prompt_ids, answer->prompt_id_count, out);
    }
    set_tokens(&answer->tokens, out);
    if (answer->version_count) {
        json_key(out, "policy_versions");
        json_begin_array(out);
        for (size_t i = 0; i < answer->version_count; i++) {
            json_begin_array(out);
            json_put_int(out, answer->versions[i].from);
            json_put_int(out, answer->versions[i].to);
            json_put_int(out, answer->versions[i].version);
            json_end_array(out);
        }
        json_end_array(out);
    }
    set_optional(out, "tokens_note", answer->tokens_note);
    json_end_object(out);
}

void trace_call_write(const struct trace_call *call, struct json_writer *out)
{
    json_begin_object(out);
    json_set_text(out, "call_id", call->id);
    json_set_text(out, "rollout_id", call->rollout);
    json_set_int(out, "number", call->number);
    json_set_text(out, "dialect", call->dialect);
    json_set_text(out, "mode", call->mode);
    json_set_text(out, "state", trace_call_state_name(call->state));
    json_set_bool(out, "side", call->side);
    if (call->side_name)
        json_set_text(out, "side_name", call->side_name);
    if (call->nonces.size)
        json_set_raw(out, "nonces", call->nonces);
    if (call->nonces_parent) {
        json_set_text(out, "nonces_parent", call->nonces_parent);
        json_set_int(out, "nonces_shared", call->nonces_shared);
    }
    json_set_int(out, "attempts", call->attempt);
    if (call->has_policy)
        json_set_int(out, "policy_version", call->policy_version);
    if (call->deliveries > 1)
        json_set_int(out, "deliveries", call->deliveries);
    set_time(out, "accepted", call->accepted_ms);
    set_time(out, "first_byte", call->first_byte_ms);
    set_time(out, "done", call->done_ms);
    json_set_int(out, "request_bytes", (long long)call->request_bytes);
    json_set_int(out, "answer_bytes", (long long)call->answer_bytes);
    json_set_int(out, "http_status", call->http_status);
    if (call->error_kind) {
        json_set_text(out, "error_kind", call->error_kind);
        json_set_str(out, "error", call->error);
    }
    if (call->parent) {
        json_set_text(out, "parent", call->parent);
        json_set_int(out, "shared_messages", call->shared_messages);
        if (call->shared_from)
            json_set_int(out, "shared_from", call->shared_from);
        json_set_bool(out, "shared_tools", call->shared_tools);
        if (call->shared_prompt_tokens)
            json_set_int(out, "shared_prompt_tokens", call->shared_prompt_tokens);
    }
    json_key(out, "request");
    if (call->request)
        trace_request_write(call->request, out);
    else
        json_put_null(out);
    json_key(out, "answer");
    if (call->answer)
        trace_answer_write(call->answer, out);
    else
        json_put_null(out);
    json_end_object(out);
}

void trace_reward_write(const struct trace_reward *reward, struct json_writer *out)
{
    if (!reward->known) {
        json_put_null(out);
        return;
    }
    json_begin_object(out);
    json_set_double(out, "value", reward->value);
    json_set_text(out, "source", reward->source);
    if (reward->total) {
        json_set_int(out, "passed", reward->passed);
        json_set_int(out, "total", reward->total);
    }
    set_raw_optional(out, "detail", reward->detail);
    json_end_object(out);
}

void trace_command_write(const struct trace_command *command, struct json_writer *out)
{
    json_begin_object(out);
    json_set_str(out, "command", command->command);
    json_set_text(out, "end", command->end);
    json_set_int(out, "code", command->code);
    json_set_int(out, "wall_ms", (long long)command->wall_ms);
    json_set_str(out, "output", command->output);
    if (command->output_cut)
        json_set_bool(out, "output_cut", true);
    json_end_object(out);
}

static void set_commands(struct json_writer *out, const char *key,
                         const struct trace_command *commands, size_t count)
{
    json_key(out, key);
    json_begin_array(out);
    for (size_t i = 0; i < count; i++)
        trace_command_write(&commands[i], out);
    json_end_array(out);
}

static void set_stage_times(const struct trace_result *result, struct json_writer *out)
{
    json_key(out, "stage_ms");
    json_begin_object(out);
    for (size_t i = 0; i < TRACE_STAGES; i++)
        if (result->stage_ms[i])
            json_set_int(out, trace_stage_name((enum trace_stage)i),
                         (long long)result->stage_ms[i]);
    json_end_object(out);
}

static void set_agent(const struct trace_result *result, struct json_writer *out)
{
    json_key(out, "agent_exit");
    if (!result->agent_end) {
        json_put_null(out);
        return;
    }
    json_begin_object(out);
    json_set_text(out, "end", result->agent_end);
    if (result->agent_exited)
        json_set_int(out, "code", result->agent_code);
    json_end_object(out);
}

/* `reward` is the plain number that scripts want; `reward_detail` says where it came from. */
static void set_reward(const struct trace_result *result, struct json_writer *out)
{
    bool known = result->reward.known && trace_fate_may_reward(result->fate);
    if (known)
        json_set_double(out, "reward", result->reward.value);
    else
        json_set_null(out, "reward");
    json_key(out, "reward_detail");
    if (known)
        trace_reward_write(&result->reward, out);
    else
        json_put_null(out);
}

void trace_result_write(const struct trace_result *result, struct json_writer *out)
{
    json_begin_object(out);
    json_set_text(out, "rollout_id", result->rollout);
    json_set_text(out, "group_id", result->group[0] ? result->group : NULL);
    json_set_text(out, "task", result->task);
    json_set_text(out, "agent", result->agent);
    json_set_text(out, "model", result->model);
    json_set_text(out, "mode", result->mode);
    json_set_text(out, "backend", result->backend);
    json_set_text(out, "fate", trace_fate_name(result->fate));
    json_set_text(out, "stage", trace_stage_name(result->stage));
    bool wrong = result->fate != TRACE_FATE_OK;
    if (wrong) {
        json_set_text(out, "failed_stage", trace_stage_name(result->failed_stage));
        json_set_text(out, "error_kind", result->error_kind);
    }
    if (wrong && result->error.data)
        json_set_str(out, "error", result->error);
    else
        json_set_null(out, "error");
    set_reward(result, out);
    set_agent(result, out);
    json_set_int(out, "tries", result->tries);
    json_set_int(out, "calls", result->calls);
    json_set_int(out, "turns", result->turns);
    json_key(out, "usage");
    trace_usage_write(&result->usage, out);
    set_time(out, "queued", result->queued_ms);
    set_time(out, "done", result->done_ms);
    set_stage_times(result, out);
    json_set_bool(out, "fresh_verify", result->fresh_verify);
    set_commands(out, "setup", result->setup, result->setup_count);
    set_commands(out, "verify", result->verify, result->verify_count);
    set_optional(out, "final_text", result->final_text);
    set_raw_optional(out, "sandbox", result->sandbox);
    set_raw_optional(out, "hosts", result->hosts);
    json_end_object(out);
}
