/* lineage.c - what a call shares with an earlier one of its rollout.
 *
 * Agents send the whole conversation with every call; nearly all of it was in the call before. A
 * session remembers recent calls (their bodies, a hash per message, their tokens), so that
 * the journal and calls.jsonl get only what is new and a reference to the parent: the remembered
 * call whose body has the most in common with this one from the front. A call that continues its
 * parent takes its place; others (sub-agents, side calls) get one of their own. A few are always
 * remembered; more of them, for sub-agents that work side by side, while they are gone on from and
 * not too large. Only calls whose entry is committed become parents. */
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/mem.h"
#include "gateway/inner.h"
#include "store/store.h"

#define BODY_BYTES_MAX ((size_t)8 << 20)
#define SHARED_IDS_MIN 16
#define REMEMBERED_MIN 4  /* whatever they hold */
#define REMEMBERED_MAX 16 /* while all of them hold no more than */
#define REMEMBERED_BYTES_MAX ((size_t)8 << 20)
#define REMEMBERED_CALLS_MAX 32u /* and this many calls came since */

/* What is empty is not what is missing: the record shows the one and leaves out the other. */
static void hash_str(XXH3_state_t *state, struct str text)
{
    size_t size = text.data ? text.size : SIZE_MAX;
    XXH3_64bits_update(state, &size, sizeof size);
    XXH3_64bits_update(state, text.data, text.size);
}

static uint64_t message_hash(const struct trace_message *message, uint64_t seed)
{
    XXH3_state_t state;
    XXH3_INITSTATE(&state);
    XXH3_64bits_reset_withSeed(&state, seed);
    XXH3_64bits_update(&state, &message->role, sizeof message->role);
    hash_str(&state, message->name);
    hash_str(&state, message->tool_call_id);
    XXH3_64bits_update(&state, &message->failed, sizeof message->failed);
    hash_str(&state, message->reasoning);
    hash_str(&state, message->opaque);
    XXH3_64bits_update(&state, &message->part_count, sizeof message->part_count);
    for (size_t i = 0; i < message->part_count; i++) {
        const struct trace_part *part = &message->parts[i];
        XXH3_64bits_update(&state, &part->kind, sizeof part->kind);
        hash_str(&state, part->text);
        hash_str(&state, part->raw);
    }
    for (size_t i = 0; i < message->call_count; i++) {
        hash_str(&state, message->calls[i].id);
        hash_str(&state, message->calls[i].name);
        hash_str(&state, message->calls[i].arguments);
    }
    return XXH3_64bits_digest(&state);
}

/* 0: there are none. */
static uint64_t tools_hash(const struct trace_request *request, uint64_t seed)
{
    if (!request->tool_count)
        return 0;
    XXH3_state_t state;
    XXH3_INITSTATE(&state);
    XXH3_64bits_reset_withSeed(&state, seed);
    for (size_t i = 0; i < request->tool_count; i++) {
        const struct trace_tool *tool = &request->tools[i];
        hash_str(&state, tool->name);
        hash_str(&state, tool->description);
        hash_str(&state, tool->parameters);
        hash_str(&state, tool->space);
        hash_str(&state, tool->strict);
        XXH3_64bits_update(&state, &tool->custom, sizeof tool->custom);
    }
    return XXH3_64bits_digest(&state);
}

static size_t shared_bytes(struct str a, struct str b)
{
    size_t max = a.size < b.size ? a.size : b.size, at = 0;
    while (max - at >= 4096 && memcmp(a.data + at, b.data + at, 4096) == 0)
        at += 4096;
    while (max - at >= 64 && memcmp(a.data + at, b.data + at, 64) == 0)
        at += 64;
    while (at < max && a.data[at] == b.data[at])
        at++;
    return at;
}

static void forget(struct ancestor *ancestor)
{
    body_unref(ancestor->body);
    free(ancestor->hashes);
    free(ancestor->ends);
    json_doc_deinit(&ancestor->doc);
    buf_deinit(&ancestor->ids);
    *ancestor = (struct ancestor){0};
}

void lineage_deinit(struct lineage *lineage)
{
    for (size_t i = 0; i < lineage->count; i++)
        forget(&lineage->ancestors[i]);
    free(lineage->ancestors);
}

/* ---------------------------------------------------------------- finding the parent */

/* The youngest that is older than `age`. */
static const struct ancestor *next_oldest(const struct lineage *lineage, uint64_t age)
{
    const struct ancestor *found = NULL;
    for (size_t i = 0; i < lineage->count; i++) {
        const struct ancestor *ancestor = &lineage->ancestors[i];
        if (ancestor->body && ancestor->age < age && (!found || ancestor->age > found->age))
            found = ancestor;
    }
    return found;
}

/* Newest first: usually it is the one, and shares all but its tail. */
static const struct ancestor *find(const struct lineage *lineage, struct str body, size_t *shared)
{
    const struct ancestor *best = NULL;
    *shared = 0;
    for (const struct ancestor *at = next_oldest(lineage, UINT64_MAX); at;
         at = next_oldest(lineage, at->age)) {
        size_t same = shared_bytes(buf_str(&at->body->bytes), body);
        if (same > *shared) {
            *shared = same;
            best = at;
        }
        if (same >= at->body->bytes.size / 8 * 7)
            break;
    }
    return best;
}

/* Until a call is committed others may become parents; then the look is repeated. */
static void find_parent(struct call *call)
{
    struct lineage *lineage = &call->session->lineage;
    if (call->parent_known && call->parent_clock == lineage->clock)
        return;
    call->parent_known = true;
    call->parent_clock = lineage->clock;
    const struct ancestor *parent = find(lineage, buf_str(&call->body->bytes), &call->parent_bytes);
    call->parent = parent ? (int)(parent - lineage->ancestors) : -1;
}

const struct ancestor *lineage_parent(struct call *call, size_t *shared)
{
    find_parent(call);
    *shared = call->parent_bytes;
    return call->parent < 0 ? NULL : &call->session->lineage.ancestors[call->parent];
}

size_t lineage_new_bytes(struct call *call)
{
    find_parent(call);
    return call->body->bytes.size - (call->parent < 0 ? 0 : call->parent_bytes);
}

const struct json_doc *lineage_tape(struct call *call, size_t *shared)
{
    LIST_EACH (node, &call->session->calls) {
        const struct call *other = LIST_OF(node, struct call, node);
        if (other == call || other->parent != call->parent || !other->tape_moved ||
            !other->doc.count)
            continue;
        *shared = shared_bytes(buf_str(&other->body->bytes), buf_str(&call->body->bytes));
        return &other->doc;
    }
    return NULL;
}

const struct json_item *lineage_plain(const struct call *call)
{
    /* What is blank was taken from a parent, which shares these bytes with the newest, too. */
    return call->skim.known && call->plain ? &call->skim.rest : NULL;
}

void lineage_hash(struct call *call)
{
    const struct trace_request *request = &call->request;
    uint64_t seed = call->session->gateway->hash_seed;
    for (size_t i = 0; i < request->message_count; i++)
        if (i < call->skim.blank || i >= call->skim.blank_end)
            call->hashes[i] = message_hash(&request->messages[i], seed);
    if (!call->skim.tools_blank)
        call->tools_hash = tools_hash(request, seed);
}

/* When little is shared from the front on (a date in the system prompt), the request is pieces of
 * the call that has the most messages at the same places: *most of them. */
static const struct ancestor *find_alike(struct call *call, const struct ancestor *parent,
                                         size_t *most)
{
    const struct lineage *lineage = &call->session->lineage;
    *most = 0;
    if (call->parent_bytes >= call->body->bytes.size / 2)
        return parent;
    for (const struct ancestor *at = next_oldest(lineage, UINT64_MAX); at;
         at = next_oldest(lineage, at->age)) {
        size_t same = 0;
        for (size_t i = 0; i < at->message_count && i < call->request.message_count; i++)
            same += at->hashes[i] == call->hashes[i];
        if (same > *most) {
            *most = same;
            parent = at;
        }
    }
    return parent;
}

void lineage_entry(struct call *call, struct store_record *entry)
{
    find_parent(call);
    entry->request = buf_str(&call->body->bytes);
    entry->request_depth = &call->request_depth;
    entry->prompt_depth = &call->prompt_depth;
    if (call->parent < 0)
        return;
    const struct ancestor *parent = &call->session->lineage.ancestors[call->parent];
    size_t most;
    const struct ancestor *base = find_alike(call, parent, &most);
    entry->request_base = (struct store_base){
        .call_id = base->call_id,
        .bytes = buf_str(&base->body->bytes),
        .depth = base->request_depth,
        .front = base == parent ? call->parent_bytes : 0,
    };
    if (base->ids.size)
        entry->prompt_base = (struct store_base){
            .call_id = base->call_id,
            .bytes = buf_str(&base->ids),
            .depth = base->prompt_depth,
        };
}

/* ---------------------------------------------------------------- a line of calls.jsonl */

static size_t shared_messages(const struct ancestor *parent, struct call *call)
{
    size_t count = 0, max = call->request.message_count;
    if (parent->message_count < max)
        max = parent->message_count;
    while (count < max && parent->hashes[count] == call->hashes[count])
        count++;
    return count;
}

/* The most messages in a row that are the same at the same place: the first ones, or all but a
 * system prompt that changes. */
static size_t shared_run(const struct ancestor *parent, struct call *call, size_t *from)
{
    size_t max = call->request.message_count, most = 0;
    *from = 0;
    if (parent->message_count < max)
        max = parent->message_count;
    for (size_t at = 0, count = 0; at < max; at++) {
        count = parent->hashes[at] == call->hashes[at] ? count + 1 : 0;
        if (count > most) {
            most = count;
            *from = at + 1 - count;
        }
    }
    return most;
}

/* The one whose line this call's may refer to; NULL: there is none. */
static const struct ancestor *parent_line(struct call *call)
{
    size_t most;
    find_parent(call);
    if (call->parent < 0)
        return NULL;
    const struct ancestor *parent =
        find_alike(call, &call->session->lineage.ancestors[call->parent], &most);
    return parent->age > call->session->lines.lost ? parent : NULL;
}

void lineage_line(struct call *call, struct buf *out)
{
    struct json_writer json = {.out = out};
    struct trace_call record = call->record;
    struct trace_request request = call->request;
    struct trace_answer answer;
    OWN(mem) struct trace_message *own = NULL;
    const struct ancestor *parent = parent_line(call);
    if (!parent)
        request_whole(call);
    if (parent) {
        size_t from;
        size_t shared = shared_run(parent, call, &from);
        record.parent = parent->call_id;
        record.shared_messages = (uint32_t)shared;
        record.shared_from = (uint32_t)from;
        record.shared_tools = request.tool_count && call->tools_hash == parent->tools;
        const struct dialect_skim *skim = &call->skim;
        bool missing = skim->blank < skim->blank_end &&
                       (skim->blank < from || skim->blank_end > from + shared);
        if (missing || (skim->tools_blank && !record.shared_tools)) {
            request_whole(call);
            request = call->request;
        }
        request.message_count -= shared;
        own = mem_alloc((request.message_count + 1) * sizeof *own);
        memcpy(own, request.messages, from * sizeof *own);
        memcpy(own + from, request.messages + from + shared,
               (request.message_count - from) * sizeof *own);
        request.messages = own;
        if (record.shared_tools)
            request.tool_count = 0;
        record.request = &request;
        if (record.answer && record.answer->prompt_ids) {
            answer = *record.answer;
            struct str ids = str_make(answer.prompt_ids, answer.prompt_id_count * 4);
            size_t same = shared_bytes(buf_str(&parent->ids), ids) / 4;
            if (same >= SHARED_IDS_MIN) {
                record.shared_prompt_tokens = (uint32_t)same;
                answer.prompt_ids += same;
                answer.prompt_id_count -= same;
                record.answer = &answer;
            }
        }
        if (!shared && !record.shared_tools && !record.shared_prompt_tokens)
            record.parent = NULL;
    }
    trace_call_write(&record, &json);
    buf_byte(out, '\n');
}

const struct ancestor *lineage_continued(struct call *call, size_t *messages)
{
    const struct lineage *lineage = &call->session->lineage;
    for (const struct ancestor *at = next_oldest(lineage, UINT64_MAX); at;
         at = next_oldest(lineage, at->age)) {
        size_t count = at->message_count;
        if (!at->answered || !at->ids.size || call->request.message_count <= count + 1)
            continue;
        if (shared_messages(at, call) < count || at->tools != call->tools_hash)
            continue;
        if (call->skim.blank < call->skim.blank_end && count < call->skim.blank_end)
            request_whole(call);
        const struct trace_message *said = &call->request.messages[count];
        struct trace_key calls = trace_message_call_key(said);
        bool by_calls = (calls.high || calls.low) && trace_key_equal(calls, at->answer_calls);
        if (!by_calls && !trace_key_equal(trace_message_key(said), at->answer))
            continue;
        *messages = count + 1;
        return at;
    }
    return NULL;
}

/* ---------------------------------------------------------------- becoming a parent */

/* A free one, a new one, or the oldest's. */
static struct ancestor *another_place(struct lineage *lineage)
{
    struct ancestor *oldest = lineage->ancestors;
    for (size_t i = 1; i < lineage->count; i++)
        if (lineage->ancestors[i].age < oldest->age)
            oldest = &lineage->ancestors[i];
    if ((oldest && !oldest->body) || lineage->count == REMEMBERED_MAX)
        return oldest;
    if (lineage->count == lineage->capacity) {
        lineage->capacity = lineage->capacity ? lineage->capacity * 2 : 1;
        lineage->ancestors =
            mem_grow(lineage->ancestors, lineage->capacity * sizeof *lineage->ancestors);
    }
    lineage->ancestors[lineage->count] = (struct ancestor){0};
    return &lineage->ancestors[lineage->count++];
}

/* The oldest ones, as long as they are not worth their memory. */
static void forget_old(struct lineage *lineage)
{
    while (lineage->count > REMEMBERED_MIN) {
        size_t count = 0, bytes = 0;
        struct ancestor *oldest = NULL;
        for (size_t i = 0; i < lineage->count; i++) {
            struct ancestor *at = &lineage->ancestors[i];
            if (!at->body)
                continue;
            count++;
            bytes += at->bytes;
            if (!oldest || at->age < oldest->age)
                oldest = at;
        }
        if (count <= REMEMBERED_MIN ||
            (bytes <= REMEMBERED_BYTES_MAX && lineage->clock - oldest->age <= REMEMBERED_CALLS_MAX))
            return;
        forget(oldest);
    }
}

/* Or only its last message is gone, as reminders are: what goes on from the parent still finds
 * nearly all of it here. Where tokens are gone on from every message counts. */
static bool goes_on(const struct ancestor *parent, struct call *call)
{
    size_t shared = shared_messages(parent, call);
    return shared == parent->message_count ||
           (shared > 2 && shared + 1 == parent->message_count && !call->session->exact_prefix);
}

static struct ancestor *place_for(struct call *call)
{
    struct lineage *lineage = &call->session->lineage;
    find_parent(call);
    if (call->parent >= 0) {
        struct ancestor *parent = &lineage->ancestors[call->parent];
        if (goes_on(parent, call))
            return parent;
        size_t most;
        const struct ancestor *alike = find_alike(call, parent, &most);
        if (most > 1 && most + 1 >= alike->message_count) /* all but its system prompt */
            return &lineage->ancestors[alike - lineage->ancestors];
    }
    return another_place(lineage);
}

/* A tape of many small values may be larger than the body it is of. */
static void keep_skim(struct call *call, struct ancestor *place)
{
    struct dialect_skim *skim = &call->skim;
    place->dialect = call->dialect;
    place->plain = call->view.known;
    struct str last = json_raw(json_last(skim->array_value)); /* while the tape is here */
    if (call->doc.count * JSON_NODE_BYTES <= place->body->bytes.size) {
        json_doc_trim(&call->doc);
        place->doc = call->doc;
        call->doc = (struct json_doc){0};
    }
    place->front = skim->front;
    place->front_value = skim->front_value;
    place->tools_value = skim->tools;
    place->tool_count = call->request.tool_count;
    place->tools_plain = skim->tools_blank || dialect_tools_plain(&call->request);
    if (!skim->array.data || !skim->count)
        return;
    place->ends = mem_alloc(skim->count * sizeof *place->ends);
    memcpy(place->ends, skim->ends, skim->count * sizeof *place->ends);
    place->end_count = skim->count;
    place->array_at = (size_t)(skim->array.data - place->body->bytes.data);
    place->last_end = (size_t)(last.data + last.size - place->body->bytes.data);
}

static void keep_tokens(struct call *call, struct ancestor *place)
{
    const struct trace_answer *answer = call->record.answer;
    if (call->session->exact_prefix) {
        place->answered = true;
        place->answer = trace_message_key(&answer->message);
        place->answer_calls = trace_message_call_key(&answer->message);
    }
    buf_append(&place->ids, answer->prompt_ids, answer->prompt_id_count * 4);
    buf_append(&place->ids, answer->tokens.ids, answer->tokens.id_count * 4);
}

void lineage_add(struct call *call)
{
    const struct trace_request *request = &call->request;
    const struct trace_answer *answer = call->record.answer;
    if (call->body->bytes.size > BODY_BYTES_MAX)
        return;
    struct lineage *lineage = &call->session->lineage;
    struct ancestor *place = place_for(call);
    forget(place);
    place->age = ++lineage->clock;
    place->body = body_ref(call->body);
    memcpy(place->call_id, call->record.id, sizeof place->call_id);
    place->request_depth = call->request_depth;
    place->prompt_depth = call->prompt_depth;
    place->tools = call->tools_hash;
    place->message_count = request->message_count;
    place->hashes = TAKE(call->hashes);
    keep_skim(call, place);
    if (answer && answer->prompt_id_count)
        keep_tokens(call, place);
    place->bytes =
        place->body->bytes.size + place->ids.size + place->doc.capacity * JSON_NODE_BYTES;
    forget_old(lineage);
}
