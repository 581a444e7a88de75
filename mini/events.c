/* events.c - what the agent does, told as it happens: one JSON object per line for programs, plain
 * text for people. A reader that went away does not stop the agent. */
#include <stdio.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/mem.h"
#include "json/json.h"
#include "mini.h"

#define SHOWN_BYTES_MAX 2000 /* of a result, in plain text */

static void put(struct buf *line)
{
    buf_byte(line, '\n');
    (void)fd_write_all(STDOUT_FILENO, line->data, line->size);
    buf_deinit(line);
}

static struct json_writer begin(struct mini_events *events, struct buf *line, const char *type)
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

void mini_event_assistant(struct mini_events *events, const struct chat_answer *answer)
{
    struct buf line = {0};
    if (!events->json) {
        if (str_trim(buf_str(&answer->text)).size == 0)
            return;
        buf_str_append(&line, buf_str(&answer->text));
        put(&line);
        return;
    }
    struct json_writer writer = begin(events, &line, "assistant");
    json_set_str(&writer, "text", buf_str(&answer->text));
    if (answer->reasoning.size)
        json_set_str(&writer, "reasoning", buf_str(&answer->reasoning));
    json_set_int(&writer, "tool_calls", (long long)answer->call_count);
    json_set_str(&writer, "finish_reason", buf_str(&answer->finish));
    if (answer->usage.size)
        json_set_raw(&writer, "usage", buf_str(&answer->usage));
    end(&writer);
}

void mini_event_tool_call(struct mini_events *events, struct str id, struct str name,
                          struct str command)
{
    struct buf line = {0};
    if (!events->json) {
        buf_format(&line, "$ %.*s", STR_ARGS(command));
        put(&line);
        return;
    }
    struct json_writer writer = begin(events, &line, "tool_call");
    json_set_str(&writer, "id", id);
    json_set_str(&writer, "name", name);
    json_set_str(&writer, "command", command);
    end(&writer);
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
    put(&line);
}

void mini_event_tool_result(struct mini_events *events, struct str id,
                            const struct mini_outcome *outcome, struct str error)
{
    if (!events->json) {
        put_plain_result(outcome, error);
        return;
    }
    struct buf line = {0};
    struct json_writer writer = begin(events, &line, "tool_result");
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
    end(&writer);
}

void mini_event_error(struct mini_events *events, const char *message, int status, int64_t retry_ms)
{
    if (!events->json) {
        if (retry_ms >= 0)
            (void)dprintf(STDERR_FILENO, "%s; trying again in %.1f s\n", message,
                          (double)retry_ms / 1000);
        else
            (void)dprintf(STDERR_FILENO, "postern-mini: %s\n", message);
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

void mini_event_done(struct mini_events *events, const char *reason, struct str text, int exit_code)
{
    if (!events->json) {
        if (exit_code == MINI_LIMIT)
            (void)dprintf(STDERR_FILENO, "postern-mini: stopped: %s\n", reason);
        return;
    }
    struct buf line = {0};
    struct json_writer writer = begin(events, &line, "done");
    json_set_text(&writer, "reason", reason);
    json_set_str(&writer, "text", text);
    json_set_int(&writer, "exit_code", exit_code);
    end(&writer);
}
