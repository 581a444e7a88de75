/* message.c - messages read back from the record, and which message is which.
 *
 * An agent sends its whole history with every call, and never quite as it got it: arguments of
 * calls are serialised anew, reasoning is dropped, ids are left out, tools are called by another of
 * their names, blanks are trimmed. The key of
 * a message is a hash over what does not change on that way, or, of calls whose arguments a client
 * completes with defaults, over their ids; what may be missing on either side is
 * compared apart, where both have it. */
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/mem.h"
#include "json/json.h"
#include "trace/trace.h"

#define ARGUMENT_NODES_MAX (1u << 20)

/* ---------------------------------------------------------------- reading */

static bool read_part(struct json value, struct arena *arena, struct trace_part *out)
{
    struct str kind = json_str(json_get(value, "type"), arena);
    struct json raw = json_get(value, "raw");
    out->text = json_str(json_get(value, "text"), arena);
    out->raw = json_exists(raw) ? json_raw(raw) : STR_NONE;
    for (int i = 0; i < TRACE_PART_KINDS; i++) {
        if (!str_is(kind, trace_part_kind_name((enum trace_part_kind)i)))
            continue;
        out->kind = (enum trace_part_kind)i;
        return true;
    }
    return false;
}

static bool read_content(struct json content, struct arena *arena, struct trace_message *out)
{
    bool list = json_type(content) == JSON_ARRAY;
    struct trace_part *parts =
        arena_alloc(arena, ((list ? json_size(content) : 1) + 1) * sizeof *parts);
    if (!parts)
        return false;
    out->parts = parts;
    if (json_type(content) == JSON_STRING) {
        parts[0].text = json_str(content, arena);
        out->part_count = 1;
        return parts[0].text.data != NULL;
    }
    if (list) {
        JSON_EACH (item, content)
            if (read_part(item.value, arena, &parts[out->part_count]))
                out->part_count++;
    }
    return true;
}

static struct str text_or_none(struct json value, struct arena *arena)
{
    return json_type(value) == JSON_STRING ? json_str(value, arena) : STR_NONE;
}

bool trace_message_read(struct json value, struct arena *arena, struct trace_message *out)
{
    struct json calls = json_get(value, "tool_calls"), opaque = json_get(value, "opaque");
    *out = (struct trace_message){0};
    if (json_type(value) != JSON_OBJECT ||
        !trace_role_find(json_str(json_get(value, "role"), arena), &out->role))
        return false;
    out->name = text_or_none(json_get(value, "name"), arena);
    out->tool_call_id = text_or_none(json_get(value, "tool_call_id"), arena);
    out->failed = json_true(json_get(value, "is_error"));
    out->reasoning = text_or_none(json_get(value, "reasoning"), arena);
    out->opaque = json_exists(opaque) ? json_raw(opaque) : STR_NONE;
    if (json_size(calls)) {
        struct trace_tool_call *list = arena_alloc(arena, json_size(calls) * sizeof *list);
        if (!list)
            return false;
        JSON_EACH (item, calls) {
            list[out->call_count++] = (struct trace_tool_call){
                .id = json_str(json_get(item.value, "id"), arena),
                .name = json_str(json_get(item.value, "name"), arena),
                .arguments = json_str(json_get(item.value, "arguments"), arena),
            };
        }
        out->calls = list;
    }
    return read_content(json_get(value, "content"), arena, out);
}

/* ---------------------------------------------------------------- canonical arguments */

struct hash {
    XXH3_state_t state;
    struct arena *arena;
};

static void hash_bytes(struct hash *hash, char tag, struct str bytes)
{
    XXH3_128bits_update(&hash->state, &tag, 1);
    XXH3_128bits_update(&hash->state, &bytes.size, sizeof bytes.size);
    XXH3_128bits_update(&hash->state, bytes.data, bytes.size);
}

struct member {
    struct str key;
    struct json value;
};

static int compare_members(const void *a, const void *b)
{
    const struct member *left = a, *right = b;
    size_t size = left->key.size < right->key.size ? left->key.size : right->key.size;
    int order = size ? memcmp(left->key.data, right->key.data, size) : 0;
    if (order)
        return order;
    return left->key.size < right->key.size ? -1 : left->key.size > right->key.size;
}

static void hash_value(struct hash *hash, struct json value);

static void hash_object(struct hash *hash, struct json object)
{
    size_t count = json_size(object), at = 0;
    OWN(mem) struct member *members = mem_alloc((count + 1) * sizeof *members);
    JSON_EACH (item, object)
        members[at++] = (struct member){json_str(item.key, hash->arena), item.value};
    qsort(members, at, sizeof *members, compare_members);
    hash_bytes(hash, '{', str_make(&count, sizeof count));
    for (size_t i = 0; i < at; i++) {
        hash_bytes(hash, 'k', members[i].key);
        hash_value(hash, members[i].value);
    }
}

static void hash_value(struct hash *hash, struct json value)
{
    size_t count = json_size(value);
    double number;
    switch (json_type(value)) {
    case JSON_OBJECT:
        hash_object(hash, value);
        return;
    case JSON_ARRAY:
        hash_bytes(hash, '[', str_make(&count, sizeof count));
        JSON_EACH (item, value)
            hash_value(hash, item.value);
        return;
    case JSON_STRING:
        hash_bytes(hash, 's', json_str(value, hash->arena));
        return;
    case JSON_NUMBER:
        if (json_double(value, &number)) {
            number = number == 0 ? 0 : number; /* there is one zero */
            hash_bytes(hash, 'n', str_make(&number, sizeof number));
            return;
        }
        /* fall through */
    case JSON_NONE:
    case JSON_NULL:
    case JSON_FALSE:
    case JSON_TRUE:
        hash_bytes(hash, 'w', json_raw(value));
        return;
    }
}

static void hash_arguments(struct hash *hash, struct str arguments)
{
    OWN(json_doc) struct json_doc doc = {0};
    struct json_limits limits = {.nodes_max = ARGUMENT_NODES_MAX};
    struct str text = str_trim(arguments);
    if (!text.size)
        text = STR("{}"); /* no arguments, however that is put */
    if (json_read(&doc, text, &limits, NULL) == 0)
        hash_value(hash, json_root(&doc));
    else
        hash_bytes(hash, 'r', text);
}

/* ---------------------------------------------------------------- which message it is */

static bool is_words(const struct trace_part *part)
{
    return part->kind == TRACE_PART_TEXT || part->kind == TRACE_PART_REFUSAL;
}

static void hash_content(struct hash *hash, const struct trace_message *message)
{
    OWN(buf) struct buf joined = {0};
    for (size_t i = 0; i < message->part_count; i++)
        if (is_words(&message->parts[i]))
            buf_str_append(&joined, message->parts[i].text);
    struct str words = buf_str(&joined);
    hash_bytes(hash, 't', message->role == TRACE_ASSISTANT ? str_trim(words) : words);
    for (size_t i = 0; i < message->part_count; i++)
        if (!is_words(&message->parts[i]))
            hash_bytes(hash, 'p', message->parts[i].raw);
}

struct trace_key trace_message_key(const struct trace_message *message)
{
    OWN(arena) struct arena arena = {0};
    struct hash hash = {.arena = &arena};
    XXH3_128bits_reset(&hash.state);
    enum trace_role role = message->role == TRACE_DEVELOPER ? TRACE_SYSTEM : message->role;
    hash_bytes(&hash, 'm', str_make(&role, sizeof role));
    hash_content(&hash, message);
    for (size_t i = 0; i < message->call_count; i++)
        hash_arguments(&hash, message->calls[i].arguments);
    XXH128_hash_t digest = XXH3_128bits_digest(&hash.state);
    return (struct trace_key){digest.high64, digest.low64};
}

struct trace_key trace_message_call_key(const struct trace_message *message)
{
    struct hash hash = {0};
    XXH3_128bits_reset(&hash.state);
    hash_content(&hash, message);
    for (size_t i = 0; i < message->call_count; i++) {
        if (!message->calls[i].id.size)
            return (struct trace_key){0};
        hash_bytes(&hash, 'i', message->calls[i].id);
    }
    XXH128_hash_t digest = XXH3_128bits_digest(&hash.state);
    return message->call_count ? (struct trace_key){digest.high64, digest.low64}
                               : (struct trace_key){0};
}

static bool agree(struct str a, struct str b)
{
    return !a.size || !b.size || str_equal(a, b);
}

static size_t skip_blanks(struct str text, size_t at)
{
    while (at < text.size && strchr(" \t\r\n", text.data[at]))
        at++;
    return at;
}

/* Blanks do not count: dialects cut thoughts into blocks, and join them with line ends. */
static bool agree_on_words(struct str a, struct str b)
{
    size_t i = skip_blanks(a, 0), k = skip_blanks(b, 0);
    if (i == a.size || k == b.size)
        return true;
    while (i < a.size && k < b.size && a.data[i] == b.data[k]) {
        i = skip_blanks(a, i + 1);
        k = skip_blanks(b, k + 1);
    }
    return i == a.size && k == b.size;
}

bool trace_message_same(const struct trace_message *a, const struct trace_message *b)
{
    if (!agree(a->tool_call_id, b->tool_call_id) || !agree_on_words(a->reasoning, b->reasoning))
        return false;
    if (a->call_count != b->call_count)
        return false;
    for (size_t i = 0; i < a->call_count; i++) {
        const struct trace_tool_call *left = &a->calls[i], *right = &b->calls[i];
        bool same_id = left->id.size && str_equal(left->id, right->id);
        if (!agree(left->id, right->id) || (!same_id && !str_equal(left->name, right->name)))
            return false;
    }
    return true;
}
