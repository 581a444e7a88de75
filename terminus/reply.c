/* reply.c - what the model wants: one JSON object with its thoughts and its keystrokes.
 *
 * Models put words and fences around it, break lines inside strings and forget fields. What can be
 * understood without guessing is taken, with a warning the model gets to read; what cannot is an
 * error, and nothing of it is typed. An object that is not closed was cut off: it is never
 * repaired, half a command is worse than none. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/arena.h"
#include "base/mem.h"
#include "json/json.h"
#include "terminus.h"

#define COMMANDS_MAX 100
#define SECONDS_DEFAULT 1.0

static void warn(struct reply *reply, const char *text)
{
    buf_format(&reply->warnings, "- %s\n", text);
}

/* The object from `text`, control characters inside its strings escaped. False: it never ends. */
static bool copy_object(struct str text, struct buf *out, size_t *used, bool *repaired)
{
    bool quoted = false, escaped = false;
    unsigned depth = 0;
    for (size_t i = 0; i < text.size; i++) {
        char byte = text.data[i];
        if (quoted && !escaped && (unsigned char)byte < 0x20) {
            buf_format(out, "\\u%04x", (unsigned)byte);
            *repaired = true;
            continue;
        }
        buf_byte(out, byte);
        if (escaped) {
            escaped = false;
        } else if (quoted) {
            escaped = byte == '\\';
            quoted = byte != '"';
        } else if (byte == '"') {
            quoted = true;
        } else if (byte == '{' || byte == '[') {
            depth++;
        } else if ((byte == '}' || byte == ']') && --depth == 0) {
            *used = i + 1;
            return true;
        }
    }
    return false;
}

static bool is_only_fence(struct str text)
{
    text = str_trim(text);
    return text.size == 0 || str_is(text, "```json") || str_is(text, "```");
}

static struct str take_text(struct json root, const char *key, struct arena *arena,
                            struct reply *out)
{
    struct json value = json_get(root, key);
    if (json_type(value) == JSON_STRING)
        return json_str(value, arena);
    char text[80];
    snprintf(text, sizeof text, "\"%s\" should be there and be a string", key);
    warn(out, text);
    return STR("");
}

static int take_command(struct json value, size_t number, struct arena *arena, struct reply *out,
                        struct err *err)
{
    char text[160];
    struct json keystrokes = json_get(value, "keystrokes");
    if (json_type(value) != JSON_OBJECT || json_type(keystrokes) != JSON_STRING)
        return err_set(err, ERR_INPUT, "command %zu must be an object with a string \"keystrokes\"",
                       number);
    struct reply_command *command = &out->commands[out->command_count++];
    *command = (struct reply_command){.keystrokes = json_str(keystrokes, arena),
                                      .seconds = SECONDS_DEFAULT};
    struct json duration = json_get(value, "duration");
    double seconds;
    if (json_double(duration, &seconds) && seconds >= 0 && isfinite(seconds)) {
        command->seconds = seconds;
    } else if (json_exists(duration)) {
        snprintf(text, sizeof text,
                 "command %zu: \"duration\" should be a number of seconds; 1.0 was used", number);
        warn(out, text);
    }
    return 0;
}

/* Two commands typed into one line are rarely meant. */
static void check_ends(struct reply *out)
{
    char text[160];
    for (size_t i = 0; i + 1 < out->command_count; i++) {
        struct str keys = out->commands[i].keystrokes;
        if (keys.size < 4 || keys.data[keys.size - 1] == '\n' ||
            str_find_byte(keys, ' ') < 0) /* keys, an answer to a question */
            continue;
        snprintf(text, sizeof text,
                 "command %zu does not end with a newline, so command %zu was typed behind it",
                 i + 1, i + 2);
        warn(out, text);
    }
}

static int take_object(struct json root, struct arena *arena, struct reply *out, struct err *err)
{
    static const char *const known[] = {"analysis", "plan", "commands", "task_complete"};
    out->analysis = take_text(root, "analysis", arena, out);
    out->plan = take_text(root, "plan", arena, out);
    struct json commands = json_get(root, "commands");
    if (json_type(commands) != JSON_ARRAY)
        return err_set(err, ERR_INPUT,
                       "\"commands\" is missing or no array; use [] to type nothing");
    if (json_size(commands) > COMMANDS_MAX)
        return err_set(err, ERR_INPUT, "\"commands\" has more than %d entries", COMMANDS_MAX);
    out->commands = arena_alloc(arena, (json_size(commands) + 1) * sizeof *out->commands);
    size_t number = 0;
    JSON_EACH (item, commands)
        if (take_command(item.value, ++number, arena, out, err) < 0)
            return -1;
    check_ends(out);
    struct json complete = json_get(root, "task_complete");
    out->complete = json_true(complete) || json_is(complete, "true");
    if (json_exists(complete) && !out->complete && json_type(complete) != JSON_FALSE &&
        !json_is(complete, "false"))
        warn(out, "\"task_complete\" should be true or false; false was assumed");
    JSON_EACH (item, root) {
        bool fits = false;
        for (size_t i = 0; i < COUNT(known); i++)
            fits |= json_is(item.key, known[i]);
        if (fits)
            continue;
        char text[160];
        snprintf(text, sizeof text, "the unknown field \"%.*s\" was ignored",
                 STR_ARGS(str_upto(json_str(item.key, arena), 80)));
        warn(out, text);
    }
    return 0;
}

int reply_read(struct str text, struct arena *arena, struct reply *out, struct err *err)
{
    *out = (struct reply){0};
    long start = str_find_byte(text, '{');
    if (start < 0)
        return err_set(err, ERR_INPUT, "there is no JSON object in it");
    OWN(buf) struct buf object = {0};
    size_t used;
    bool repaired = false;
    if (!copy_object(str_from(text, (size_t)start), &object, &used, &repaired))
        return err_set(err, ERR_INPUT,
                       "the JSON object is not closed; was the answer cut off? Answer shorter");
    OWN(json_doc) struct json_doc doc = {0};
    if (json_read(&doc, arena_str(arena, buf_str(&object)), NULL, err) < 0)
        return err_wrap(err, "it is not valid JSON");
    if (!is_only_fence(str_upto(text, (size_t)start)))
        warn(out, "text before the JSON object was ignored");
    if (!is_only_fence(str_from(text, (size_t)start + used)))
        warn(out, "text after the JSON object was ignored");
    if (repaired)
        warn(out, "line breaks and control characters inside strings must be escaped (\\n)");
    return take_object(json_root(&doc), arena, out, err);
}
