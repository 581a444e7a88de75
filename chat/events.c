/* events.c - what an agent does, told as it happens: one JSON object per line for programs, plain
 * text for people. A reader that went away does not stop the agent. */
#include <stdio.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/mem.h"
#include "chat.h"

void chat_event_put(struct buf *line)
{
    buf_byte(line, '\n');
    (void)fd_write_all(STDOUT_FILENO, line->data, line->size);
    buf_deinit(line);
}

struct json_writer chat_event_begin(const struct chat_events *events, struct buf *line,
                                    const char *type)
{
    struct json_writer writer = {.out = line};
    json_begin_object(&writer);
    json_set_text(&writer, "type", type);
    json_set_int(&writer, "turn", events->turn);
    return writer;
}

void chat_event_end(struct json_writer *writer)
{
    json_end_object(writer);
    chat_event_put(writer->out);
}

void chat_event_error(const struct chat_events *events, const char *message, int status,
                      int64_t retry_ms)
{
    if (!events->json) {
        if (retry_ms >= 0)
            (void)dprintf(STDERR_FILENO, "%s; trying again in %.1f s\n", message,
                          (double)retry_ms / 1000);
        else
            (void)dprintf(STDERR_FILENO, "%s: %s\n", events->program, message);
        return;
    }
    struct buf line = {0};
    struct json_writer writer = chat_event_begin(events, &line, "error");
    json_set_text(&writer, "message", message);
    if (status)
        json_set_int(&writer, "status", status);
    json_set_bool(&writer, "retry", retry_ms >= 0);
    if (retry_ms >= 0)
        json_set_int(&writer, "retry_in_ms", retry_ms);
    chat_event_end(&writer);
}

void chat_event_done(const struct chat_events *events, const char *reason, struct str text,
                     enum chat_exit code)
{
    if (!events->json) {
        if (code == CHAT_LIMIT)
            (void)dprintf(STDERR_FILENO, "%s: stopped: %s\n", events->program, reason);
        return;
    }
    struct buf line = {0};
    struct json_writer writer = chat_event_begin(events, &line, "done");
    json_set_text(&writer, "reason", reason);
    json_set_str(&writer, "text", text);
    json_set_int(&writer, "exit_code", code);
    chat_event_end(&writer);
}
