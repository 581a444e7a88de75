/* skim.c - what a request shares with an earlier one of its rollout is not read again.
 *
 * A request of 600 KB differs from the one before it in its last few hundred bytes. The bytes are
 * compared with those of the calls a session remembers (lineage.c), newest first; what is the same
 * at the front is known: its digest (a hash over hashes of pieces), its place on the
 * tape (json_read_on), its messages (dialect_skim_request) and their hashes; and so are a
 * system prompt and tools that are the same bytes elsewhere in the body. Only the rest is read. The
 * result is the same as if all had been read, but that most messages and the tools are blank: who
 * wants to look at all of them calls request_whole() first. */
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/log.h"
#include "base/mem.h"
#include "gateway/inner.h"

#define DEPTH_MAX 64
#define NODES_MAX (4u << 20)
#define PIECE ((size_t)4 << 10)
#define SPARE_BYTES_MAX ((size_t)256 << 10)
#define SMALL_BYTES_MAX ((size_t)8 << 10)

/* ---------------------------------------------------------------- bodies */

/* Exactly as large as it is: thousands of them may wait. */
struct body *body_new(struct str bytes)
{
    struct body *body = mem_alloc(sizeof *body + bytes.size);
    *body = (struct body){.references = 1};
    body->bytes.data = body->bytes.start = body->inside;
    body->bytes.size = body->bytes.capacity = bytes.size;
    if (bytes.size)
        memcpy(body->inside, bytes.data, bytes.size);
    return body;
}

struct body *body_take(struct http_exchange *exchange, struct str bytes)
{
    struct buf taken = {0};
    if (!http_exchange_take_body(exchange, &taken))
        return body_new(bytes);
    struct body *body = mem_zero(sizeof *body);
    atomic_init(&body->references, 1);
    if (taken.data == taken.start && taken.capacity - taken.size > taken.size / 8) {
        taken.start = taken.data = mem_grow(taken.start, taken.size);
        taken.capacity = taken.size;
    }
    body->bytes = taken;
    return body;
}

struct body *body_ref(struct body *body)
{
    atomic_fetch_add(&body->references, 1);
    return body;
}

void body_unref(struct body *body)
{
    if (!body || atomic_fetch_sub(&body->references, 1) != 1)
        return;
    if (body->bytes.start != body->inside)
        buf_deinit(&body->bytes);
    free(body->pieces);
    free(body);
}

static struct digest hash_of(const void *data, size_t size)
{
    XXH128_hash_t hash = XXH3_128bits(data, size);
    return (struct digest){hash.high64, hash.low64};
}

/* A hash over the hashes of the pieces and what follows them: pieces that an earlier body had at
 * the same place are not hashed again. */
static void digest(struct body *body, const struct body *before, size_t shared)
{
    size_t count = body->bytes.size / PIECE, known = shared / PIECE;
    if (!before || known > before->piece_count)
        known = before ? before->piece_count : 0;
    body->pieces = mem_alloc((count + 2) * sizeof *body->pieces);
    body->piece_count = count;
    if (known)
        memcpy(body->pieces, before->pieces, known * sizeof *body->pieces);
    for (size_t i = known; i < count; i++)
        body->pieces[i] = hash_of(body->bytes.data + i * PIECE, PIECE);
    size_t done = count * PIECE;
    body->pieces[count] = hash_of(body->bytes.data + done, body->bytes.size - done);
    body->pieces[count + 1] = (struct digest){0, body->bytes.size};
    body->digest = hash_of(body->pieces, (count + 2) * sizeof *body->pieces);
}

void skim_digest(struct call *call)
{
    size_t shared;
    const struct ancestor *parent = lineage_parent(call, &shared);
    digest(call->body, parent ? parent->body : NULL, shared);
}

/* ---------------------------------------------------------------- requests */

/* Only where nobody needs more than the end of the conversation: a translation, a script and a
 * replay look at all of it. */
static bool may_leave_blank(const struct call *call)
{
    const struct gateway_session *session = call->session;
    if (session->mode == GATEWAY_GATE)
        return true;
    return session->model->base_url && !call->anew;
}

static size_t end_of(const struct call *call, struct json value)
{
    struct str raw = json_raw(value);
    return (size_t)(raw.data + raw.size - call->doc.source.data);
}

/* How many elements of the conversation are the parent's, byte for byte: those of the same array
 * that end before the first difference. All are objects, which say themselves where they end. */
static void find_known(const struct call *call, const struct ancestor *parent, size_t shared,
                       struct dialect_skim *skim)
{
    size_t count = 0;
    if (!parent->ends || shared <= parent->array_at)
        return;
    if (shared >= parent->last_end) {
        count = parent->end_count;
        skim->known_end = parent->last_end;
    } else {
        struct json array = json_at_byte(&call->doc, parent->array_at);
        struct json_item item = json_marked(array, &count);
        bool begun = count && count <= parent->end_count && end_of(call, item.value) <= shared;
        if (begun) {
            skim->known_end = end_of(call, item.value);
            item = json_following(item);
        } else {
            count = 0;
            item = json_first(array);
        }
        for (; json_exists(item.value) && count < parent->end_count; item = json_following(item)) {
            size_t end = end_of(call, item.value);
            if (end > shared)
                break;
            skim->known_end = end;
            count++;
        }
    }
    skim->known = dialect_skim_known(parent->ends, count);
    if (skim->known != count)
        skim->known_end = 0;
}

static int read_request(struct call *call, const struct dialect_route *route,
                        const struct ancestor *parent, size_t shared, struct err *err)
{
    struct dialect_skim *skim = &call->skim;
    *skim = (struct dialect_skim){0};
    if (parent && may_leave_blank(call) && parent->dialect == call->dialect) {
        find_known(call, parent, shared, skim);
        skim->known_ends = parent->ends;
        skim->known_array = call->doc.source.data + parent->array_at;
        skim->known_front = parent->front_value;
        skim->known_tools = parent->tools_plain ? parent->tools_value : STR_NONE;
        skim->known_tool_count = parent->tool_count;
    }
    return dialect_skim_request(route, json_root(&call->doc), skim, &call->request_arena,
                                &call->request, err);
}

/* For a body that has to be read whole, from the lane's last one: what is forgotten leaves no holes
 * between what stays. */
static void take_memory(struct call *call)
{
    struct gateway *gateway = call->session->gateway;
    if (!call->request_arena.blocks && gateway->spare_arena.spare) {
        arena_deinit(&call->request_arena); /* of little use here */
        call->request_arena.spare = gateway->spare_arena.spare;
        gateway->spare_arena.spare = NULL;
    }
    if (!call->doc.nodes) {
        call->doc = gateway->spare_doc;
        gateway->spare_doc = (struct json_doc){0};
    }
}

/* A call that goes on from its parent takes the tape along: it will take the parent's place. One
 * that only begins the same way, or comes while another one has the tape, gets a copy. */
static int read_tape(struct call *call, size_t shared, struct err *err)
{
    struct json_limits limits = {.depth_max = DEPTH_MAX, .nodes_max = NODES_MAX};
    struct str body = buf_str(&call->body->bytes);
    struct ancestor *parent =
        call->parent < 0 ? NULL : &call->session->lineage.ancestors[call->parent];
    const struct json_doc *before = parent && parent->doc.count ? &parent->doc : NULL;
    call->tape_moved = before && shared >= parent->body->bytes.size / 8 * 7;
    if (call->tape_moved) {
        call->doc = parent->doc;
        parent->doc = (struct json_doc){0};
        before = &call->doc;
    } else {
        if (parent && !before)
            before = lineage_tape(call, &shared);
        take_memory(call);
    }
    return json_read_on(&call->doc, body, before, shared, &limits, err);
}

int skim_read(struct call *call, const struct dialect_route *route, struct err *err)
{
    size_t shared;
    const struct ancestor *parent = lineage_parent(call, &shared);
    if (!call->doc.count && read_tape(call, shared, err) < 0) {
        if (err)
            err->kind = ERR_INPUT; /* too deep is as wrong as malformed */
        return -1;
    }
    if (read_request(call, route, parent, shared, err) < 0)
        return -1;
    const struct dialect_skim *skim = &call->skim;
    if (skim->blank < skim->blank_end)
        call->plain = parent->plain;
    if (call->hashes)
        return 0; /* it was forgotten and is read again */
    call->hashes = mem_alloc(call->request.message_count * sizeof *call->hashes + 1);
    if (skim->tools_blank)
        call->tools_hash = parent->tools;
    /* The same bytes are the same messages. */
    if (skim->blank < skim->blank_end)
        memcpy(call->hashes + skim->blank,
               parent->hashes + parent->front + skim->blank - skim->front,
               (skim->blank_end - skim->blank) * sizeof *call->hashes);
    lineage_hash(call);
    return 0;
}

void request_whole(struct call *call)
{
    struct dialect_skim *skim = &call->skim;
    request_recall(call);
    if (skim->blank == skim->blank_end && !skim->tools_blank)
        return;
    struct dialect_route route = {DIALECT_ROUTE_CALL, call->dialect, call->request.model,
                                  call->request.stream};
    struct err err = {0};
    struct trace_request whole;
    *skim = (struct dialect_skim){0};
    if (dialect_skim_request(&route, json_root(&call->doc), skim, &call->request_arena, &whole,
                             &err) < 0)
        CALL_LOG(LOG_ERROR, call, "a body that was read cannot be read again: %s", err.text);
    else
        call->request = whole;
}

void skim_forget(struct call *call, bool all)
{
    struct gateway *gateway = call->session->gateway;
    if (!all || arena_room(&call->request_arena) > SMALL_BYTES_MAX) { /* else: call_memory.c */
        arena_recycle(&call->request_arena, SPARE_BYTES_MAX);
        if (!gateway->spare_arena.spare) {
            gateway->spare_arena.spare = call->request_arena.spare;
            call->request_arena.spare = NULL;
        }
        arena_deinit(&call->request_arena);
    }
    bool keep_tape = call->tape_moved && !all;
    if (!keep_tape && !gateway->spare_doc.nodes &&
        call->doc.capacity * JSON_NODE_BYTES <= SPARE_BYTES_MAX) {
        gateway->spare_doc = call->doc;
        call->doc = (struct json_doc){0};
    }
    if (!keep_tape)
        json_doc_deinit(&call->doc);
    if (all)
        free(TAKE(call->hashes));
    call->skim = (struct dialect_skim){0};
}
