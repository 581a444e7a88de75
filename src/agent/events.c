/* events.c - what an agent prints, line by line, as events.
 *
 * A line longer than the spec allows is dropped to its end and counted; a line that is no JSON
 * object is an event of kind "other". Nothing here keeps more than one line and the last words. */
#include "agent/internal.h"

#include "base/mem.h"
#include "json/json.h"

static const char *const kind_names[] = {
    [AGENT_ASSISTANT] = "assistant",
    [AGENT_TOOL_CALL] = "tool_call",
    [AGENT_TOOL_RESULT] = "tool_result",
    [AGENT_ERROR] = "error",
    [AGENT_DONE] = "done",
    [AGENT_OTHER] = "other",
};

const char *agent_event_kind_name(enum agent_event_kind kind)
{
    return kind_names[kind];
}

static bool has_word(const char *const *words, struct str word)
{
    for (size_t i = 0; words && words[i]; i++)
        if (str_is(word, words[i]))
            return true;
    return false;
}

/* "message.content": members along a path. */
static struct json follow(struct json value, const char *path)
{
    for (struct str rest = str_of(path); rest.data;)
        value = json_get_str(value, str_cut(&rest, '.'));
    return value;
}

static struct str find_text(const struct agent_spec *spec, struct json root, struct arena *arena)
{
    for (size_t i = 0; spec->text_keys && spec->text_keys[i]; i++) {
        struct json value = follow(root, spec->text_keys[i]);
        if (json_type(value) == JSON_STRING)
            return json_str(value, arena);
        if (json_exists(value) && json_type(value) != JSON_NULL)
            return json_raw(value);
    }
    return STR_NONE;
}

static void keep_final(struct agent_reader *reader, const struct agent_event *event)
{
    if (!event->text.size)
        return;
    bool done = event->kind == AGENT_DONE;
    if (!done && (event->kind != AGENT_ASSISTANT || reader->final_said))
        return;
    buf_clear(&reader->final_text);
    buf_str_append(&reader->final_text, str_upto(event->text, AGENT_FINAL_TEXT_MAX));
    reader->final_said = done;
}

static void emit(struct agent_reader *reader, const struct agent_event *event)
{
    reader->events++;
    keep_final(reader, event);
    if (reader->on_event)
        reader->on_event(reader->context, event);
}

static void read_line(struct agent_reader *reader, struct str line)
{
    const struct agent_spec *spec = reader->spec;
    struct agent_event event = {.kind = AGENT_OTHER, .raw = line};
    if (!line.size)
        return;
    OWN(json_doc) struct json_doc doc = {0};
    OWN(arena) struct arena arena = {.bytes_max = spec->line_bytes_max * 4 + 4096};
    struct json_limits limits = {.depth_max = 64, .nodes_max = 1u << 20};
    if (json_read(&doc, line, &limits, NULL) == 0 && json_type(json_root(&doc)) == JSON_OBJECT) {
        struct json root = json_root(&doc);
        event.type = json_str(follow(root, spec->type_key), &arena);
        for (int kind = 0; event.type.size && kind < AGENT_OTHER; kind++)
            if (has_word(spec->events[kind], event.type)) {
                event.kind = (enum agent_event_kind)kind;
                break;
            }
        event.text = find_text(spec, root, &arena);
    }
    emit(reader, &event);
}

/* Text output has one kind of event: something was said. Its tail is what counts as last words. */
static void feed_text(struct agent_reader *reader, struct str data)
{
    buf_str_append(&reader->final_text, data);
    if (reader->final_text.size > AGENT_FINAL_TEXT_MAX)
        buf_consume(&reader->final_text, reader->final_text.size - AGENT_FINAL_TEXT_MAX);
}

void agent_reader_feed(struct agent_reader *reader, struct str data)
{
    if (reader->spec->format == AGENT_FORMAT_TEXT) {
        feed_text(reader, data);
        return;
    }
    size_t max = reader->spec->line_bytes_max;
    for (struct str rest = data; rest.size;) {
        long end = str_find_byte(rest, '\n');
        struct str part = end < 0 ? rest : str_upto(rest, (size_t)end);
        rest = end < 0 ? STR_NONE : str_from(rest, (size_t)end + 1);
        if (!reader->skipping && reader->line.size + part.size > max) {
            reader->skipping = true;
            reader->lines_too_long++;
            buf_clear(&reader->line);
        }
        if (!reader->skipping)
            buf_str_append(&reader->line, part);
        if (end < 0)
            return;
        if (!reader->skipping)
            read_line(reader, str_trim(buf_str(&reader->line)));
        reader->skipping = false;
        buf_clear(&reader->line);
    }
}

void agent_reader_end(struct agent_reader *reader)
{
    if (!reader->skipping && reader->line.size)
        read_line(reader, str_trim(buf_str(&reader->line)));
    buf_clear(&reader->line);
}

void agent_reader_deinit(struct agent_reader *reader)
{
    buf_deinit(&reader->line);
    buf_deinit(&reader->final_text);
}
