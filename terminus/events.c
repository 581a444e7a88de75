/* events.c - what the agent does, told as it happens: one JSON object per line for programs, plain
 * text for people. A reader that went away does not stop the agent. */
#include <stdio.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/mem.h"
#include "json/json.h"
#include "terminus.h"

#define SHOWN_BYTES_MAX 2000 /* of output, in plain text */

static void put(struct buf *line)
{
    buf_byte(line, '\n');
    (void)fd_write_all(STDOUT_FILENO, line->data, line->size);
    buf_deinit(line);
}

static struct json_writer begin(struct events *events, struct buf *line, const char *type)
{
    struct json_writer writer = {.out = line};
    json_begin_object(&writer);
    json_set_text(&writer, "type", type);
    json_set_int(&writer, "turn", events->turn);
    return writer;
}

static void end(struct json_writer *writer)
{
    json_end_object(writer);
    put(writer->out);
}

void event_assistant(struct events *events, const struct chat_answer *answer,
                     const struct reply *reply)
{
    struct buf line = {0};
    struct str text = reply ? reply->analysis : buf_str(&answer->text);
    if (!events->json) {
        buf_str_append(&line, text);
        if (reply && reply->plan.size)
            buf_format(&line, "\n> %.*s", STR_ARGS(reply->plan));
        put(&line);
        return;
    }
    if (answer->reasoning.size) {
        struct json_writer writer = begin(events, &line, "reasoning");
        json_set_str(&writer, "text", buf_str(&answer->reasoning));
        end(&writer);
    }
    struct json_writer writer = begin(events, &line, "assistant");
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
    end(&writer);
}

void event_keys(struct events *events, uint32_t number, const struct reply_command *command)
{
    struct buf line = {0};
    if (!events->json) {
        json_quote(&line, command->keystrokes);
        put(&line);
        return;
    }
    struct json_writer writer = begin(events, &line, "tool_call");
    json_set_int(&writer, "id", number);
    json_set_text(&writer, "name", "terminal");
    json_set_str(&writer, "keystrokes", command->keystrokes);
    json_set_double(&writer, "duration", command->seconds);
    end(&writer);
}

void event_output(struct events *events, uint32_t number, struct str output, uint64_t wall_ms)
{
    struct buf line = {0};
    if (!events->json) {
        struct chat_clip clip = {.half_max = SHOWN_BYTES_MAX / 2};
        chat_clip_add(&clip, output);
        chat_clip_finish(&clip, &line);
        put(&line);
        return;
    }
    struct json_writer writer = begin(events, &line, "tool_result");
    json_set_int(&writer, "id", number);
    json_set_str(&writer, "output", output);
    json_set_int(&writer, "wall_ms", (long long)wall_ms);
    end(&writer);
}

void event_error(struct events *events, const char *message, int status, int64_t retry_ms)
{
    if (!events->json) {
        if (retry_ms >= 0)
            (void)dprintf(STDERR_FILENO, "%s; trying again in %.1f s\n", message,
                          (double)retry_ms / 1000);
        else
            (void)dprintf(STDERR_FILENO, "postern-terminus: %s\n", message);
        return;
    }
    struct buf line = {0};
    struct json_writer writer = begin(events, &line, "error");
    json_set_text(&writer, "message", message);
    if (status)
        json_set_int(&writer, "status", status);
    json_set_bool(&writer, "retry", retry_ms >= 0);
    if (retry_ms >= 0)
        json_set_int(&writer, "retry_in_ms", retry_ms);
    end(&writer);
}

void event_note(struct events *events, const char *what, struct str text)
{
    struct buf line = {0};
    if (!events->json) {
        buf_format(&line, "[%s]", what);
        put(&line);
        return;
    }
    struct json_writer writer = begin(events, &line, "note");
    json_set_text(&writer, "what", what);
    json_set_str(&writer, "text", text);
    end(&writer);
}

void event_done(struct events *events, const char *reason, struct str text, int exit_code)
{
    if (!events->json) {
        if (exit_code == TERMINUS_LIMIT)
            (void)dprintf(STDERR_FILENO, "postern-terminus: stopped: %s\n", reason);
        return;
    }
    struct buf line = {0};
    struct json_writer writer = begin(events, &line, "done");
    json_set_text(&writer, "reason", reason);
    json_set_str(&writer, "text", text);
    json_set_int(&writer, "exit_code", exit_code);
    end(&writer);
}
