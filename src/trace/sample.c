/* sample.c - a line of calls.jsonl becomes a turn: its place among the messages, its tokens, and
 * how they go on from what was sampled before.
 *
 * Lines leave out what their parent's line has (docs/store.md); tokens are kept that way here too,
 * so that a conversation costs its tail in memory and, when it only grows, in time: a prompt that
 * is stored as a continuation of the very turn it should continue needs no comparison. */
#include "trace/sample.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "json/json.h"
#include "trace/sample_inner.h"

#define BYTES_MAX ((size_t)1 << 30)
#define TURNS_MAX (1u << 20)
#define EXCERPT_BEFORE 24
#define EXCERPT_AFTER 40

struct samples *samples_new(const struct samples_options *options)
{
    struct samples *samples = mem_zero(sizeof *samples);
    samples->options = *options;
    samples->arena.bytes_max = options->bytes_max ? options->bytes_max : BYTES_MAX;
    graph_init(samples);
    return samples;
}

void samples_free(struct samples *samples)
{
    if (!samples)
        return;
    map_deinit(&samples->by_key);
    map_deinit(&samples->known);
    map_deinit(&samples->by_id);
    free(samples->nodes);
    free(samples->turns);
    free(samples->threads);
    free(samples->rows);
    arena_deinit(&samples->arena);
    free(samples);
}

static uint32_t find_turn(const struct samples *samples, struct str id)
{
    uintptr_t found = (uintptr_t)map_get(&samples->by_id, id);
    return found ? (uint32_t)(found - 1) : NONE;
}

bool samples_has(const struct samples *samples, const char *call_id)
{
    return find_turn(samples, str_of(call_id)) != NONE;
}

size_t samples_calls(const struct samples *samples)
{
    return samples->turn_count;
}

/* ---------------------------------------------------------------- tokens as they were seen */

void turn_tokens(const struct samples *samples, uint32_t at, size_t upto, struct buf *out)
{
    char *place = buf_reserve(out, upto * 4 + 4);
    size_t left = upto;
    while (left && at != NONE) {
        const struct turn *turn = &samples->turns[at];
        if (left > turn->prompt_count) {
            size_t count = left - turn->prompt_count;
            memcpy(place + turn->prompt_count * 4, turn->ids, count * 4);
            left = turn->prompt_count;
        }
        if (left > turn->stored_shared) {
            memcpy(place + turn->stored_shared * 4, turn->rest, (left - turn->stored_shared) * 4);
            left = turn->stored_shared;
        }
        at = turn->stored_on;
    }
    buf_added(out, upto * 4);
}

static const int32_t *read_ids(struct samples *samples, struct json list, size_t *count, bool *bad)
{
    size_t at = 0, total = json_size(list);
    int32_t *ids = arena_alloc(&samples->arena, total * sizeof *ids + 4);
    *count = 0;
    if (!ids) {
        *bad = true;
        return NULL;
    }
    JSON_EACH (item, list) {
        long long id;
        if (!json_int(item.value, &id) || id < 0 || id > INT32_MAX)
            *bad = true;
        else
            ids[at] = (int32_t)id;
        at++;
    }
    *count = total;
    return ids;
}

static const float *read_logprobs(struct samples *samples, struct json list, size_t *count,
                                  bool *bad)
{
    size_t at = 0, total = json_size(list);
    float *logprobs = arena_alloc(&samples->arena, total * sizeof *logprobs + 4);
    *count = 0;
    if (!logprobs) {
        *bad = true;
        return NULL;
    }
    JSON_EACH (item, list) {
        double value;
        if (!json_double(item.value, &value) || !isfinite((float)value))
            *bad = true;
        else
            logprobs[at] = (float)value;
        at++;
    }
    *count = total;
    return logprobs;
}

/* Spans outside of the completion are left out. */
static void read_versions(struct samples *samples, struct turn *turn, struct json list)
{
    struct trace_version_span *spans =
        arena_alloc(&samples->arena, json_size(list) * sizeof *spans + 1);
    if (!spans)
        return;
    JSON_EACH (item, list) {
        long long from, to, version;
        if (!json_int(json_at(item.value, 0), &from) || !json_int(json_at(item.value, 1), &to) ||
            !json_int(json_at(item.value, 2), &version) || from < 0 || to <= from ||
            (size_t)to > turn->id_count)
            continue;
        spans[turn->version_count++] = (struct trace_version_span){from, to, version};
    }
    turn->versions = spans;
}

static void refuse_tokens(struct samples *samples, struct turn *turn, const char *text)
{
    turn->tokens = false;
    turn->note = str_of(arena_format(&samples->arena, "call %s: %s", turn->id, text));
}

/* Also for calls that are in no row: later prompts may be stored as a difference to theirs. */
static void read_tokens(struct samples *samples, struct turn *turn, struct json line,
                        uint32_t stored_on)
{
    struct json answer = json_get(line, "answer");
    struct json prompt = json_get(answer, "prompt_token_ids");
    struct json ids = json_get(answer, "token_ids"), logprobs = json_get(answer, "logprobs");
    bool bad_prompt = false, bad_ids = false, bad_logprobs = false;
    long long shared = json_int_or(json_get(line, "shared_prompt_tokens"), 0);
    size_t rest_count, logprob_count;
    turn->stored_on = NONE;
    turn->rest = read_ids(samples, prompt, &rest_count, &bad_prompt);
    turn->ids = read_ids(samples, ids, &turn->id_count, &bad_ids);
    turn->logprobs = read_logprobs(samples, logprobs, &logprob_count, &bad_logprobs);
    turn->prompt_count = rest_count;
    read_versions(samples, turn, json_get(answer, "policy_versions"));
    if (shared > 0) {
        if (stored_on == NONE || (size_t)shared > turn_end(&samples->turns[stored_on])) {
            turn->prompt_count = turn->id_count = 0;
            refuse_tokens(samples, turn, "its prompt refers to tokens that are not in the record");
            return;
        }
        turn->stored_on = stored_on;
        turn->stored_shared = (size_t)shared;
        turn->prompt_count += (size_t)shared;
    }
    if (bad_prompt || bad_ids) { /* nor may a later prompt go on from them */
        turn->prompt_count = turn->id_count = turn->version_count = 0;
        turn->stored_on = NONE;
        turn->stored_shared = 0;
    }
    OWN(arena) struct arena scratch = {0};
    struct str engine_note = json_str(json_get(answer, "tokens_note"), &scratch);
    char text[256];
    if (!turn->answered)
        return;
    if (bad_prompt || bad_ids)
        refuse_tokens(samples, turn, "its token ids are not all ids");
    else if (bad_logprobs)
        refuse_tokens(samples, turn, "its log-probabilities are not all finite numbers");
    else if (!turn->id_count && engine_note.size)
        refuse_tokens(samples, turn, arena_text(&scratch, engine_note));
    else if (!turn->id_count)
        refuse_tokens(samples, turn, "it has no token ids");
    else if (!turn->prompt_count)
        refuse_tokens(samples, turn, "it has token ids of its completion but none of its prompt");
    else if (logprob_count != turn->id_count) {
        snprintf(text, sizeof text, "it has %zu token ids but %zu log-probabilities",
                 turn->id_count, logprob_count);
        refuse_tokens(samples, turn, text);
    } else
        turn->tokens = true;
}

/* ---------------------------------------------------------------- messages */

static struct str excerpt(struct samples *samples, struct str raw, size_t at)
{
    size_t from = at > EXCERPT_BEFORE ? at - EXCERPT_BEFORE : 0;
    return arena_str(&samples->arena, str_upto(str_from(raw, from), at - from + EXCERPT_AFTER));
}

/* Where the client's copy of an answer is not what was sampled, for people who look for the cause
 * of other tokens. */
static void note_copy(struct samples *samples, struct turn *turn, struct str was, struct str now)
{
    size_t at = 0;
    while (at < was.size && at < now.size && was.data[at] == now.data[at])
        at++;
    if (at == was.size && at == now.size)
        return;
    turn->was = excerpt(samples, was, at);
    turn->sent_back = excerpt(samples, now, at);
}

/* A request on its way down the tree. */
struct walk {
    struct turn *turn;
    uint32_t node;       /* of the last message so far */
    uint32_t from_depth; /* how many messages from the first on were there before */
    bool known;          /* all so far */
};

static int walk_full(struct err *err)
{
    return err_set(err, ERR_LIMIT, "the messages of this rollout are too large");
}

/* To the node of the next message: what this copy of it says about where the request comes from. */
static void walk_on(struct samples *samples, struct walk *walk, uint32_t next,
                    const struct trace_message *message, struct trace_key key, struct str raw)
{
    struct turn *turn = walk->turn;
    const struct node *node = &samples->nodes[next];
    if (node->turn != NONE) {
        turn->origin = node->turn;
        turn->was = turn->sent_back = STR_NONE;
        note_copy(samples, turn, node->raw, raw);
    } else if (message->role == TRACE_ASSISTANT) {
        uint32_t origin = graph_known(samples, key);
        if (origin != NONE && !samples->turns[origin].side) {
            turn->origin = origin;
            turn->was = turn->sent_back = STR_NONE;
        }
    }
    walk->from_depth += walk->known;
    walk->node = next;
}

/* The lines that leave the message out mean it as it was sent. */
static void keep_copy(struct samples *samples, struct node *node, struct str raw)
{
    if (str_equal(node->raw, raw))
        node->copy = STR_NONE;
    else if (!str_equal(node->copy, raw))
        node->copy = arena_str(&samples->arena, raw);
}

static int walk_own(struct samples *samples, struct walk *walk, struct json value, struct err *err)
{
    OWN(arena) struct arena scratch = {0};
    struct trace_message message;
    if (!trace_message_read(value, &scratch, &message))
        return err_set(err, ERR_INPUT, "one of its messages is none");
    struct trace_key key = trace_message_key(&message);
    uint32_t next = graph_find(samples, walk->node, key, &message);
    if (next == NONE) {
        walk->known = false;
        next = graph_add(samples, walk->node, key, value, NONE);
    }
    if (next == NONE)
        return walk_full(err);
    keep_copy(samples, &samples->nodes[next], json_raw(value));
    walk_on(samples, walk, next, &message, key, json_raw(value));
    return 0;
}

/* Whose answer is the last one at or above `at`, as walk_on() finds it. */
static void find_origin(struct samples *samples, struct turn *turn, uint32_t at)
{
    turn->origin = NONE;
    turn->was = turn->sent_back = STR_NONE;
    for (; samples->nodes[at].depth; at = samples->nodes[at].parent) {
        const struct node *node = &samples->nodes[at];
        uint32_t origin = node->turn;
        if (origin != NONE && node->copy.data)
            note_copy(samples, turn, node->raw, node->copy);
        if (origin == NONE && node->message.role == TRACE_ASSISTANT) {
            origin = graph_known(samples, node->key);
            if (origin != NONE && samples->turns[origin].side)
                origin = NONE;
        }
        turn->origin = origin;
        if (origin != NONE)
            return;
    }
}

/* The messages down to `end`, a node above which everything is as it was. */
static void walk_down(struct samples *samples, struct walk *walk, uint32_t end)
{
    if (walk->known)
        walk->from_depth = samples->nodes[end].depth;
    find_origin(samples, walk->turn, end);
    walk->node = end;
}

/* The messages between the depth that is reached and `end`, which is on another branch. */
static int walk_across(struct samples *samples, struct walk *walk, uint32_t end, struct err *err)
{
    uint32_t count = samples->nodes[end].depth - samples->nodes[walk->node].depth;
    OWN(mem) uint32_t *path = mem_alloc((count + 1) * sizeof *path);
    for (uint32_t at = count; at > 0; at--) {
        path[at - 1] = end;
        end = samples->nodes[end].parent;
    }
    for (uint32_t at = 0; at < count; at++) {
        struct node node = samples->nodes[path[at]];
        if (node.copy.data) {
            OWN(json_doc) struct json_doc doc = {0};
            if (json_read(&doc, node.copy, NULL, err) < 0 ||
                walk_own(samples, walk, json_root(&doc), err) < 0)
                return -1;
            continue;
        }
        uint32_t next = graph_find(samples, walk->node, node.key, &node.message);
        if (next == NONE) {
            walk->known = false;
            next = graph_copy(samples, walk->node, path[at]);
        }
        if (next == NONE)
            return walk_full(err);
        walk_on(samples, walk, next, &node.message, node.key, node.raw);
    }
    return 0;
}

/* The messages that the line leaves out. */
static int walk_shared(struct samples *samples, struct walk *walk, struct json line,
                       uint32_t stored_on, struct err *err)
{
    long long shared = json_int_or(json_get(line, "shared_messages"), 0);
    if (shared <= 0)
        return 0;
    const struct turn *parent = stored_on == NONE ? NULL : &samples->turns[stored_on];
    uint32_t from = samples->nodes[walk->node].depth;
    if (!parent || parent->request_node == NONE ||
        shared > (long long)samples->nodes[parent->request_node].depth - from)
        return err_set(err, ERR_INPUT, "it shares %lld messages with a call that has fewer",
                       shared);
    uint32_t end = graph_above(samples, parent->request_node, from + (uint32_t)shared);
    if (graph_above(samples, end, from) != walk->node)
        return walk_across(samples, walk, end, err);
    walk_down(samples, walk, end);
    return 0;
}

/* Walks down the request's messages, adding what is new. -1: out of room or not messages. */
static int walk_request(struct samples *samples, struct turn *turn, struct json line,
                        uint32_t stored_on, uint32_t *from_depth, struct err *err)
{
    struct json request = json_get(line, "request"), own = json_get(request, "messages");
    long long before = json_int_or(json_get(line, "shared_from"), 0);
    struct walk walk = {.turn = turn, .known = true};
    if (json_type(request) != JSON_OBJECT)
        return 0;
    if (before < 0 || before > (long long)json_size(own))
        return err_set(err, ERR_INPUT, "it shares messages from %lld on, but has fewer before",
                       before);
    struct json_item item = json_first(own);
    for (; before > 0; before--, item = json_following(item))
        if (walk_own(samples, &walk, item.value, err) < 0)
            return -1;
    if (walk_shared(samples, &walk, line, stored_on, err) < 0)
        return -1;
    for (; json_exists(item.value); item = json_following(item))
        if (walk_own(samples, &walk, item.value, err) < 0)
            return -1;
    *from_depth = walk.from_depth;
    turn->request_node = walk.node;
    turn->parent = samples->nodes[walk.node].last;
    struct json tools = json_get(request, "tools");
    if (json_size(tools))
        turn->tools = arena_str(&samples->arena, json_raw(tools));
    else if (stored_on != NONE && json_true(json_get(line, "shared_tools")))
        turn->tools = samples->turns[stored_on].tools;
    if (turn->tools.size)
        samples->tools = turn->tools;
    return 0;
}

static int add_answer(struct samples *samples, struct turn *turn, uint32_t at, struct json line,
                      struct err *err)
{
    struct json message = json_get(json_get(line, "answer"), "message");
    OWN(arena) struct arena scratch = {0};
    struct trace_message read;
    if (!turn->answered || turn->request_node == NONE)
        return 0;
    if (!trace_message_read(message, &scratch, &read))
        return err_set(err, ERR_INPUT, "its answer has no message");
    turn->answer_node =
        graph_add(samples, turn->request_node, trace_message_key(&read), message, at);
    return turn->answer_node == NONE
               ? err_set(err, ERR_LIMIT, "the messages of this rollout are too large")
               : 0;
}

/* ---------------------------------------------------------------- continuity */

/* Where in `prompt`, after `same`, the end of `expected` comes back: the position after it with the
 * longest common ending. 0: nowhere. The work is bounded, whatever the tokens are. */
static size_t find_again(const int32_t *expected, size_t expected_count, const int32_t *prompt,
                         size_t prompt_count, size_t same)
{
    size_t best = 0, found = 0, work = 4 * (expected_count + prompt_count) + 65536;
    for (size_t end = same + 1; end <= prompt_count && work; end++) {
        size_t run = 0,
               max = expected_count - same < end - same ? expected_count - same : end - same;
        while (run < max && work && prompt[end - 1 - run] == expected[expected_count - 1 - run]) {
            run++;
            work--;
        }
        work -= work > 0;
        if (run > best) {
            best = run;
            found = end;
        }
    }
    return found;
}

static void compare_whole(struct samples *samples, struct turn *turn, uint32_t at)
{
    const struct turn *origin = &samples->turns[turn->origin];
    OWN(buf) struct buf before = {0}, now = {0};
    turn_tokens(samples, turn->origin, turn_end(origin), &before);
    turn_tokens(samples, at, turn->prompt_count, &now);
    const int32_t *expected = (const int32_t *)(const void *)before.data;
    const int32_t *prompt = (const int32_t *)(const void *)now.data;
    size_t expected_count = turn_end(origin), same = 0;
    while (same < expected_count && same < turn->prompt_count && expected[same] == prompt[same])
        same++;
    turn->same = same;
    if (same == expected_count)
        return;
    turn->expected_id = expected[same];
    turn->got_id = same < turn->prompt_count ? prompt[same] : -1;
    turn->again = find_again(expected, expected_count, prompt, turn->prompt_count, same);
}

/* Only what was sampled differs, and not by much. */
static bool may_realign(const struct samples *samples, const struct turn *turn)
{
    const struct turn *origin = &samples->turns[turn->origin];
    size_t max = samples->options.realign_max;
    if (!max || !turn->again || turn->same < origin->prompt_count || turn->origin != turn->parent)
        return false;
    return turn_end(origin) - turn->same <= max && turn->again - turn->same <= max;
}

static void find_base(struct samples *samples, uint32_t at)
{
    struct turn *turn = &samples->turns[at];
    turn->base = NONE;
    turn->expected_id = turn->got_id = -1;
    if (!turn->tokens || turn->origin == NONE || !samples->turns[turn->origin].tokens)
        return;
    const struct turn *origin = &samples->turns[turn->origin];
    turn->expected = true;
    if (turn->stored_on == turn->origin && turn->stored_shared == turn_end(origin))
        turn->same = turn->stored_shared;
    else
        compare_whole(samples, turn, at);
    if (turn->same == turn_end(origin)) {
        turn->base = turn->origin;
        turn->cut = turn->same;
        return;
    }
    if (may_realign(samples, turn)) {
        turn->continuity = SAMPLE_REALIGNED;
        turn->base = turn->origin;
        turn->cut = turn->again;
        return;
    }
    /* The nearest turn before it of whose tokens all are there; above a realigned turn the engine's
     * positions are no longer this prompt's. */
    turn->continuity = SAMPLE_FORKED;
    uint32_t base = turn->origin;
    while (base != NONE && turn_end(&samples->turns[base]) > turn->same) {
        const struct turn *passed = &samples->turns[base];
        base = passed->continuity == SAMPLE_REALIGNED ? NONE : passed->base;
    }
    turn->base = base;
    turn->cut = base == NONE ? 0 : turn_end(&samples->turns[base]);
}

/* ---------------------------------------------------------------- a line */

static struct str keep_text(struct samples *samples, struct json value)
{
    OWN(arena) struct arena scratch = {0};
    struct str text = json_str(value, &scratch);
    return text.data ? arena_str(&samples->arena, text) : STR_NONE;
}

static struct str keep_raw(struct samples *samples, struct json value)
{
    bool there = json_type(value) != JSON_NONE && json_type(value) != JSON_NULL;
    return there ? arena_str(&samples->arena, json_raw(value)) : STR_NONE;
}

static void read_facts(struct samples *samples, struct turn *turn, struct json line)
{
    struct json answer = json_get(line, "answer");
    long long version;
    turn->number = (uint32_t)json_int_or(json_get(line, "number"), 0);
    turn->answered = json_is(json_get(line, "state"), "answered");
    turn->side = json_true(json_get(line, "side"));
    turn->has_policy = json_int(json_get(line, "policy_version"), &version);
    turn->policy_version = turn->has_policy ? version : 0;
    turn->accepted = keep_text(samples, json_get(line, "accepted"));
    turn->done = keep_text(samples, json_get(line, "done"));
    turn->dialect = keep_text(samples, json_get(line, "dialect"));
    turn->error_kind = keep_text(samples, json_get(line, "error_kind"));
    turn->error = keep_text(samples, json_get(line, "error"));
    turn->model = keep_text(samples, json_get(json_get(line, "request"), "model"));
    turn->sampling = keep_raw(samples, json_get(json_get(line, "request"), "sampling"));
    turn->finish = keep_text(samples, json_get(answer, "finish_reason"));
    turn->usage = keep_raw(samples, json_get(answer, "usage"));
    turn->http_status = (int)json_int_or(json_get(line, "http_status"), 0);
    turn->truncated = str_is(turn->finish, "length");
}

static uint32_t new_turn(struct samples *samples, struct str id)
{
    if (samples->turn_count == samples->turn_capacity) {
        samples->turn_capacity = samples->turn_capacity ? samples->turn_capacity * 2 : 16;
        samples->turns = mem_grow(samples->turns, samples->turn_capacity * sizeof *samples->turns);
    }
    uint32_t at = (uint32_t)samples->turn_count;
    struct turn *turn = &samples->turns[at];
    *turn = (struct turn){
        .request_node = NONE,
        .answer_node = NONE,
        .parent = NONE,
        .origin = NONE,
        .thread = NONE,
        .stored_on = NONE,
        .base = NONE,
        .trained_in = NONE,
        .first_child = NONE,
    };
    memcpy(turn->id, id.data, id.size);
    return at;
}

static int add_line(struct samples *samples, struct json line, struct str id, struct err *err)
{
    OWN(arena) struct arena scratch = {0};
    struct str parent_id = json_str(json_get(line, "parent"), &scratch);
    uint32_t at = new_turn(samples, id), stored_on = NONE, from_depth = 0;
    struct turn *turn = &samples->turns[at];
    if (parent_id.size)
        stored_on = find_turn(samples, parent_id);
    if (parent_id.size && stored_on == NONE)
        return err_set(err, ERR_INPUT, "its parent '%.*s' is not in the record",
                       STR_ARGS(str_upto(parent_id, ID_MAX)));
    read_facts(samples, turn, line);
    if (walk_request(samples, turn, line, stored_on, &from_depth, err) < 0)
        return -1;
    read_tokens(samples, turn, line, stored_on);
    if (add_answer(samples, turn, at, line, err) < 0)
        return -1;
    samples->turn_count++;
    (void)map_put(&samples->by_id, id, (void *)((uintptr_t)at + 1));
    if (turn->answered && turn->request_node != NONE) {
        if (turn->parent != NONE && !turn->side)
            samples->turns[turn->parent].side = false; /* it was gone on from: a turn after all */
        find_base(samples, at);
        branch_find(samples, at, from_depth);
    }
    return 0;
}

int samples_add(struct samples *samples, struct str line, struct err *err)
{
    OWN(json_doc) struct json_doc doc = {0};
    OWN(arena) struct arena scratch = {0};
    struct str id = STR_NONE;
    int result = json_read(&doc, line, NULL, err);
    if (result == 0) {
        id = json_str(json_get(json_root(&doc), "call_id"), &scratch);
        if (!id.size || id.size >= ID_MAX)
            result = err_set(err, ERR_INPUT, "it has no call_id");
        else if (find_turn(samples, id) != NONE)
            result = err_set(err, ERR_INPUT, "it is there already");
        else if (samples->turn_count >= TURNS_MAX)
            result = err_set(err, ERR_LIMIT, "there are more than %u calls", TURNS_MAX);
        else
            result = add_line(samples, json_root(&doc), id, err);
    }
    if (result == 0)
        return 0;
    samples->bad_lines++;
    return id.size ? err_wrap(err, "call %.*s", STR_ARGS(str_upto(id, ID_MAX)))
                   : err_wrap(err, "a line of the record");
}
