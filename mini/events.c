/* events.c - what only this agent tells; chat/events.c has the rest. */
#include "base/mem.h"
#include "json/json.h"
#include "mini.h"

#define SHOWN_BYTES_MAX 2000 /* of a result, in plain text */

void mini_event_assistant(const struct chat_events *events, const struct chat_answer *answer)
{
    struct buf line = {0};
    if (!events->json) {
        if (str_trim(buf_str(&answer->text)).size == 0)
            return;
        buf_str_append(&line, buf_str(&answer->text));
        chat_event_put(&line);
        return;
    }
    struct json_writer writer = chat_event_begin(events, &line, "assistant");
    json_set_str(&writer, "text", buf_str(&answer->text));
    if (answer->reasoning.size)
        json_set_str(&writer, "reasoning", buf_str(&answer->reasoning));
    json_set_int(&writer, "tool_calls", (long long)answer->call_count);
    json_set_str(&writer, "finish_reason", buf_str(&answer->finish));
    if (answer->usage.size)
        json_set_raw(&writer, "usage", buf_str(&answer->usage));
    chat_event_end(&writer);
}

void mini_event_tool_call(const struct chat_events *events, struct str id, struct str name,
                          struct str command)
{
    struct buf line = {0};
    if (!events->json) {
        buf_format(&line, "$ %.*s", STR_ARGS(command));
        chat_event_put(&line);
        return;
    }
    struct json_writer writer = chat_event_begin(events, &line, "tool_call");
    json_set_str(&writer, "id", id);
    json_set_str(&writer, "name", name);
    json_set_str(&writer, "command", command);
    chat_event_end(&writer);
}

static void put_plain_result(const struct mini_outcome *outcome, struct str error)
{
    struct buf line = {0};
    struct chat_clip clip = {.half_max = SHOWN_BYTES_MAX / 2};
    struct str shown = str_trim(outcome ? buf_str(&outcome->output) : error);
    if (shown.size)
        chat_clip_add(&clip, shown);
    chat_clip_finish(&clip, &line);
    if (outcome && outcome->timed_out)
        buf_format(&line, "%s[timed out]", line.size ? "\n" : "");
    else if (outcome && outcome->code)
        buf_format(&line, "%s[exit code %d]", line.size ? "\n" : "", outcome->code);
    chat_event_put(&line);
}

void mini_event_tool_result(const struct chat_events *events, struct str id,
                            const struct mini_outcome *outcome, struct str error)
{
    if (!events->json) {
        put_plain_result(outcome, error);
        return;
    }
    struct buf line = {0};
    struct json_writer writer = chat_event_begin(events, &line, "tool_result");
    json_set_str(&writer, "id", id);
    if (outcome) {
        json_set_int(&writer, "exit_code", outcome->code);
        json_set_bool(&writer, "timed_out", outcome->timed_out);
        json_set_str(&writer, "output", buf_str(&outcome->output));
        json_set_int(&writer, "output_bytes", (long long)outcome->output_bytes);
        json_set_bool(&writer, "truncated", outcome->truncated);
        json_set_int(&writer, "wall_ms", (long long)outcome->wall_ms);
    } else {
        json_set_str(&writer, "error", error);
    }
    chat_event_end(&writer);
}
