/* sample_graph.c - the messages of a rollout as a tree: one node for each message at its place, so
 * that histories which begin alike are kept once. A request is the path to its last message. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "json/json.h"
#include "trace/sample_inner.h"

struct place {
    uint32_t parent, by_calls;
    struct trace_key key;
};

static struct str place_key(const struct place *place)
{
    return str_make(place, sizeof *place);
}

void graph_init(struct samples *samples)
{
    samples->node_capacity = 64;
    samples->nodes = mem_zero(samples->node_capacity * sizeof *samples->nodes);
    samples->nodes[0] = (struct node){.parent = NONE, .turn = NONE, .last = NONE, .before = NONE};
    samples->node_count = 1;
}

uint32_t graph_find(const struct samples *samples, uint32_t parent, struct trace_key key,
                    const struct trace_message *message)
{
    struct place place = {parent, 0, key};
    uintptr_t found = (uintptr_t)map_get(&samples->by_key, place_key(&place));
    uint32_t at = found ? (uint32_t)(found - 1) : NONE;
    while (at != NONE && !trace_message_same(&samples->nodes[at].message, message))
        at = samples->nodes[at].before;
    if (at != NONE || message->role != TRACE_ASSISTANT || !message->call_count)
        return at;
    place = (struct place){parent, 1, trace_message_call_key(message)};
    found = (uintptr_t)map_get(&samples->by_key, place_key(&place));
    return found ? (uint32_t)(found - 1) : NONE;
}

uint32_t graph_known(const struct samples *samples, struct trace_key key)
{
    uintptr_t found = (uintptr_t)map_get(&samples->known, str_make(&key, sizeof key));
    return found ? (uint32_t)(found - 1) : NONE;
}

uint32_t graph_above(const struct samples *samples, uint32_t node, uint32_t depth)
{
    while (samples->nodes[node].depth > depth)
        node = samples->nodes[node].parent;
    return node;
}

/* The message is read again from a copy, so that it may outlive its line. */
static bool keep_message(struct samples *samples, struct json value, struct node *node)
{
    OWN(json_doc) struct json_doc doc = {0};
    node->raw = arena_str(&samples->arena, json_raw(value));
    return node->raw.data && json_read(&doc, node->raw, NULL, NULL) == 0 &&
           trace_message_read(json_root(&doc), &samples->arena, &node->message);
}

/* Below `parent`; the rest of the node is there. */
static uint32_t add_node(struct samples *samples, uint32_t parent, struct node node)
{
    uint32_t turn = node.turn;
    struct trace_key key = node.key;
    node.parent = parent;
    node.depth = samples->nodes[parent].depth + 1;
    node.last = turn != NONE ? turn : samples->nodes[parent].last;
    if (samples->node_count >= NONE - 1 ||
        samples->node_count >= samples->arena.bytes_max / sizeof node)
        return NONE;
    if (samples->node_count == samples->node_capacity) {
        samples->node_capacity *= 2;
        samples->nodes = mem_grow(samples->nodes, samples->node_capacity * sizeof *samples->nodes);
    }
    uint32_t at = (uint32_t)samples->node_count++;
    struct place place = {parent, 0, key};
    uintptr_t old =
        (uintptr_t)map_put(&samples->by_key, place_key(&place), (void *)((uintptr_t)at + 1));
    node.before = old ? (uint32_t)(old - 1) : NONE;
    samples->nodes[at] = node;
    if (turn == NONE)
        return at;
    (void)map_put(&samples->known, str_make(&key, sizeof key), (void *)((uintptr_t)turn + 1));
    place = (struct place){parent, 1, trace_message_call_key(&node.message)};
    if (place.key.high || place.key.low)
        (void)map_put(&samples->by_key, place_key(&place), (void *)((uintptr_t)at + 1));
    return at;
}

uint32_t graph_add(struct samples *samples, uint32_t parent, struct trace_key key, struct json raw,
                   uint32_t turn)
{
    struct node node = {.turn = turn, .key = key};
    return keep_message(samples, raw, &node) ? add_node(samples, parent, node) : NONE;
}

uint32_t graph_copy(struct samples *samples, uint32_t parent, uint32_t of)
{
    struct node node = samples->nodes[of];
    node.turn = NONE;
    node.copy = STR_NONE;
    return add_node(samples, parent, node);
}
