/* events.c - what an agent prints, line by line, as events.
 *
 * The spec's rules are asked first, in order, then its words for each kind. A rule about each
 * element of an array makes an event of each element that fits, in their order.
 *
 * A line longer than the spec allows is dropped to its end and counted; a line that is no JSON
 * object is an event of kind "other". Nothing here keeps more than one line and the last words. */
#include "agent/internal.h"

#include "agent/acp.h"

#include <stdio.h>

#include "base/mem.h"
#include "json/json.h"

static const char *const kind_names[] = {
    [AGENT_ASSISTANT] = "assistant",
    [AGENT_TOOL_CALL] = "tool_call",
    [AGENT_TOOL_RESULT] = "tool_result",
    [AGENT_REASONING] = "reasoning",
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

/* "message.content.0": members and elements along a path. */
static struct json follow(struct json value, const char *path)
{
    for (struct str rest = str_of(path); rest.data;) {
        struct str step = str_cut(&rest, '.');
        long long index;
        if (json_type(value) == JSON_ARRAY && str_to_long(step, &index) && index >= 0)
            value = json_at(value, (size_t)index);
        else
            value = json_get_str(value, step);
    }
    return value;
}

static struct json find(struct json root, struct json element, const char *path)
{
    return path[0] == '.' ? follow(element, path + 1) : follow(root, path);
}

static struct str words_of(struct json value, struct arena *arena)
{
    return json_type(value) == JSON_STRING ? json_str(value, arena) : json_raw(value);
}

static struct str find_text(const char *const *paths, struct json root, struct json element,
                            struct arena *arena)
{
    for (size_t i = 0; paths && paths[i]; i++) {
        struct json value = find(root, element, paths[i]);
        if (json_exists(value) && json_type(value) != JSON_NULL)
            return words_of(value, arena);
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

/* What the agent said last decides whether an error is one it got over. */
static void note(struct agent_reader *reader, const struct agent_event *event)
{
    reader->kinds_seen |= 1u << event->kind;
    switch (event->kind) {
    case AGENT_ERROR:
        reader->last_is_error = true;
        snprintf(reader->error, sizeof reader->error, "%.*s",
                 STR_ARGS(str_upto(event->text, sizeof reader->error - 1)));
        return;
    case AGENT_ASSISTANT:
    case AGENT_TOOL_CALL:
    case AGENT_TOOL_RESULT:
        reader->last_is_error = false;
        return;
    case AGENT_REASONING:
    case AGENT_DONE:
    case AGENT_OTHER:
        return;
    }
}

static void tell(struct agent_reader *reader, const struct agent_event *event)
{
    reader->events++;
    note(reader, event);
    keep_final(reader, event);
    if (reader->on_event)
        reader->on_event(reader->context, event);
}

static void flush_pieces(struct agent_reader *reader)
{
    if (!reader->pieces.size)
        return;
    struct agent_event event = {.kind = (enum agent_event_kind)reader->pieces_kind,
                                .text = buf_str(&reader->pieces),
                                .raw = buf_str(&reader->pieces)};
    tell(reader, &event);
    buf_clear(&reader->pieces);
}

void agent_reader_emit(struct agent_reader *reader, const struct agent_event *event)
{
    flush_pieces(reader);
    tell(reader, event);
}

static void add_piece(struct agent_reader *reader, const struct agent_event *event)
{
    if (reader->pieces_kind != (int)event->kind ||
        reader->pieces.size + event->text.size > reader->spec->line_bytes_max)
        flush_pieces(reader);
    reader->pieces_kind = (int)event->kind;
    buf_str_append(&reader->pieces, event->text);
}

/* "*": anything but null; "some words*": begins so. */
static bool agrees(struct json value, const char *wanted, struct arena *arena)
{
    struct str want = str_of(wanted);
    if (!json_exists(value))
        return false;
    if (want.size == 1 && want.data[0] == '*')
        return json_type(value) != JSON_NULL;
    struct str words = words_of(value, arena);
    return str_ends(want, STR("*")) ? str_starts(words, str_upto(want, want.size - 1))
                                    : str_equal(words, want);
}

static bool fits(const struct agent_rule *rule, struct json root, struct json element,
                 struct arena *arena)
{
    for (size_t i = 0; i < rule->when_count; i++)
        if (!agrees(find(root, element, rule->when[i].path), rule->when[i].value, arena))
            return false;
    return true;
}

static void emit_by_rule(struct agent_reader *reader, const struct agent_rule *rule,
                         struct json root, struct json element, struct agent_event event,
                         struct arena *arena)
{
    reader->limit_said = reader->limit_said || rule->limit;
    if (rule->kind == AGENT_IGNORED)
        return;
    event.kind = (enum agent_event_kind)rule->kind;
    event.text = find_text(rule->text ? rule->text : reader->spec->text_keys, root, element, arena);
    if (rule->name)
        event.name = words_of(find(root, element, rule->name), arena);
    if (rule->id)
        event.id = words_of(find(root, element, rule->id), arena);
    if (rule->piece)
        add_piece(reader, &event);
    else
        agent_reader_emit(reader, &event);
}

/* Each element by the first rule about this array that fits it. */
static bool apply_to_each(struct agent_reader *reader, const char *each, struct json root,
                          const struct agent_event *event, struct arena *arena)
{
    const struct agent_spec *spec = reader->spec;
    bool any = false;
    JSON_EACH (item, follow(root, each)) {
        for (size_t i = 0; i < spec->rule_count; i++) {
            const struct agent_rule *rule = &spec->rules[i];
            if (!rule->each || strcmp(rule->each, each) != 0 ||
                !fits(rule, root, item.value, arena))
                continue;
            emit_by_rule(reader, rule, root, item.value, *event, arena);
            any = true;
            if (!rule->also)
                break;
        }
    }
    return any;
}

static bool apply_rules(struct agent_reader *reader, struct json root,
                        const struct agent_event *event, struct arena *arena)
{
    const struct agent_spec *spec = reader->spec;
    bool any = false;
    for (size_t i = 0; i < spec->rule_count; i++) {
        const struct agent_rule *rule = &spec->rules[i];
        if (rule->each) {
            if (json_type(follow(root, rule->each)) == JSON_ARRAY &&
                apply_to_each(reader, rule->each, root, event, arena))
                return true;
            continue;
        }
        if (!fits(rule, root, root, arena))
            continue;
        emit_by_rule(reader, rule, root, root, *event, arena);
        any = true;
        if (!rule->also)
            return true;
    }
    return any;
}

static void read_line(struct agent_reader *reader, struct str line)
{
    const struct agent_spec *spec = reader->spec;
    struct agent_event event = {.kind = AGENT_OTHER, .raw = line};
    if (reader->acp) {
        agent_acp_line(reader->acp, line);
        return;
    }
    if (!line.size)
        return;
    OWN(json_doc) struct json_doc doc = {0};
    OWN(arena) struct arena arena = {.bytes_max = spec->line_bytes_max * 8 + 4096};
    struct json_limits limits = {.depth_max = 64, .nodes_max = 1u << 20};
    if (json_read(&doc, line, &limits, NULL) == 0 && json_type(json_root(&doc)) == JSON_OBJECT) {
        struct json root = json_root(&doc);
        event.type = json_str(follow(root, spec->type_key), &arena);
        if (apply_rules(reader, root, &event, &arena))
            return;
        for (int kind = 0; event.type.size && kind < AGENT_OTHER; kind++)
            if (has_word(spec->events[kind], event.type)) {
                event.kind = (enum agent_event_kind)kind;
                break;
            }
        event.text = find_text(spec->text_keys, root, root, &arena);
    }
    agent_reader_emit(reader, &event);
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
    if (reader->spec->format == AGENT_FORMAT_TEXT && !reader->acp) {
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
    flush_pieces(reader);
}

void agent_reader_deinit(struct agent_reader *reader)
{
    buf_deinit(&reader->line);
    buf_deinit(&reader->final_text);
    buf_deinit(&reader->pieces);
}
