/* events.c - what only this agent tells; chat/events.c has the rest. */
#include "base/mem.h"
#include "json/json.h"
#include "terminus.h"

#define SHOWN_BYTES_MAX 2000 /* of output, in plain text */

void event_assistant(const struct chat_events *events, const struct chat_answer *answer,
                     const struct reply *reply)
{
    struct buf line = {0};
    struct str text = reply ? reply->analysis : buf_str(&answer->text);
    if (!events->json) {
        buf_str_append(&line, text);
        if (reply && reply->plan.size)
            buf_format(&line, "\n> %.*s", STR_ARGS(reply->plan));
        chat_event_put(&line);
        return;
    }
    if (answer->reasoning.size) {
        struct json_writer writer = chat_event_begin(events, &line, "reasoning");
        json_set_str(&writer, "text", buf_str(&answer->reasoning));
        chat_event_end(&writer);
    }
    struct json_writer writer = chat_event_begin(events, &line, "assistant");
    json_set_str(&writer, "text", text);
    if (reply) {
        json_set_str(&writer, "plan", reply->plan);
        json_set_int(&writer, "commands", (long long)reply->command_count);
        json_set_bool(&writer, "task_complete", reply->complete);
        if (reply->warnings.size)
            json_set_str(&writer, "warnings", buf_str(&reply->warnings));
    }
    json_set_str(&writer, "finish_reason", buf_str(&answer->finish));
    if (answer->usage.size)
        json_set_raw(&writer, "usage", buf_str(&answer->usage));
    chat_event_end(&writer);
}

void event_keys(const struct chat_events *events, uint32_t number,
                const struct reply_command *command)
{
    struct buf line = {0};
    if (!events->json) {
        json_quote(&line, command->keystrokes);
        chat_event_put(&line);
        return;
    }
    struct json_writer writer = chat_event_begin(events, &line, "tool_call");
    json_set_int(&writer, "id", number);
    json_set_text(&writer, "name", "terminal");
    json_set_str(&writer, "keystrokes", command->keystrokes);
    json_set_double(&writer, "duration", command->seconds);
    chat_event_end(&writer);
}

void event_output(const struct chat_events *events, uint32_t number, struct str output,
                  uint64_t wall_ms)
{
    struct buf line = {0};
    if (!events->json) {
        struct chat_clip clip = {.half_max = SHOWN_BYTES_MAX / 2};
        chat_clip_add(&clip, output);
        chat_clip_finish(&clip, &line);
        chat_event_put(&line);
        return;
    }
    struct json_writer writer = chat_event_begin(events, &line, "tool_result");
    json_set_int(&writer, "id", number);
    json_set_str(&writer, "output", output);
    json_set_int(&writer, "wall_ms", (long long)wall_ms);
    chat_event_end(&writer);
}

void event_note(const struct chat_events *events, const char *what, struct str text)
{
    struct buf line = {0};
    if (!events->json) {
        buf_format(&line, "[%s]", what);
        chat_event_put(&line);
        return;
    }
    struct json_writer writer = chat_event_begin(events, &line, "note");
    json_set_text(&writer, "what", what);
    json_set_str(&writer, "text", text);
    chat_event_end(&writer);
}
