/* record.c - the bytes of the journal: how a record is written, checked and read. Pure.
 *
 *     segment = head record*
 *     head    = "POSTERNJ" version:u32 0:u32 created_ms:u64 xxh3:u64
 *     record  = size:u32 type:u16 0:u16 sequence:u64 wall_ms:u64 xxh3:u64 section*
 *     section = tag:u16 0:u16 size:u32 bytes
 *
 * Everything is little-endian. `size` counts the sections; the checksum covers the first 24 bytes
 * of the head and all sections. Readers skip tags they do not know, so that new ones may be added.
 * A request or a prompt that grew out of an earlier one is written as what is new and where it
 * goes, with the earlier entry's id: a conversation costs its tail.
 *
 * A record is whole or it is not there: whatever fails a check ends the walk, and store_walk() says
 * how many bytes before it are good. docs/store.md is the same in prose. */
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/mem.h"
#include "store/inner.h"

#define VERSION 1u
#define SUM_OFFSET 24u
#define RESYNC_TRIES_MAX 1000
#define SEQUENCE_JUMP_MAX (1u << 24)
#define USUAL_REST 832u      /* what a request adds to its parent */
#define SHARED_BYTES_MIN 64u /* less is not worth a reference */

static const char magic[8] = {'P', 'O', 'S', 'T', 'E', 'R', 'N', 'J'};

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the journal is little-endian");

static void put(char *at, const void *value, size_t size)
{
    memcpy(at, value, size);
}

static uint16_t get16(const char *at)
{
    uint16_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

static uint32_t get32(const char *at)
{
    uint32_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

static uint64_t get64(const char *at)
{
    uint64_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

void segment_head_write(char head[SEGMENT_HEAD_SIZE], uint64_t created_ms)
{
    uint32_t version = VERSION, zero = 0;
    put(head, magic, sizeof magic);
    put(head + 8, &version, 4);
    put(head + 12, &zero, 4);
    put(head + 16, &created_ms, 8);
    uint64_t sum = XXH3_64bits(head, SUM_OFFSET);
    put(head + SUM_OFFSET, &sum, 8);
}

bool segment_head_valid(struct str bytes)
{
    return bytes.size >= SEGMENT_HEAD_SIZE && memcmp(bytes.data, magic, sizeof magic) == 0 &&
           get32(bytes.data + 8) == VERSION &&
           get64(bytes.data + SUM_OFFSET) == XXH3_64bits(bytes.data, SUM_OFFSET);
}

static void section(struct buf *out, enum store_tag tag, const void *data, size_t size)
{
    uint16_t tag16 = (uint16_t)tag, zero = 0;
    uint32_t size32 = (uint32_t)size;
    buf_append(out, &tag16, 2);
    buf_append(out, &zero, 2);
    buf_append(out, &size32, 4);
    buf_append(out, data, size);
}

static void text_section(struct buf *out, enum store_tag tag, const char *text)
{
    if (text)
        section(out, tag, text, strlen(text));
}

/* --- differences --- */

static bool usable(const struct store_base *base)
{
    return base->call_id && base->bytes.size <= UINT32_MAX && base->depth < STORE_DEPTH_MAX;
}

/* A section's head and its first numbers, then the parent's id; `content_size` bytes follow. */
static void delta_section(struct buf *out, enum store_tag tag, const uint32_t *numbers,
                          size_t number_count, const char *parent, size_t content_size)
{
    uint16_t tag16 = (uint16_t)tag, zero = 0;
    uint32_t id_size = (uint32_t)strlen(parent);
    uint32_t size = (uint32_t)(number_count * 4 + 4 + id_size + content_size);
    buf_append(out, &tag16, 2);
    buf_append(out, &zero, 2);
    buf_append(out, &size, 4);
    buf_append(out, numbers, number_count * 4);
    buf_append(out, &id_size, 4);
    buf_append(out, parent, id_size);
}

static void pieces_section(struct buf *out, enum store_tag tag, const struct delta *delta,
                           const char *parent, struct str body)
{
    uint32_t count = (uint32_t)(delta->pieces.size / sizeof(struct delta_piece));
    const struct delta_piece *pieces = (const void *)delta->pieces.data;
    delta_section(out, tag, &count, 1, parent, delta->pieces.size + delta->fresh);
    buf_str_append(out, buf_str(&delta->pieces));
    for (uint32_t i = 0; i < count; i++) {
        body = str_from(body, pieces[i].size);
        buf_str_append(out, str_upto(body, pieces[i].fresh));
        body = str_from(body, pieces[i].fresh);
    }
}

static uint32_t write_request(struct buf *out, const struct store_record *record)
{
    struct str all = record->request;
    const struct store_base *base = &record->request_base;
    if (!usable(base)) {
        section(out, STORE_TAG_REQUEST, all.data, all.size);
        return 0;
    }
    size_t known = base->front <= all.size && base->front <= base->bytes.size ? base->front : 0;
    struct delta delta;
    delta_find(base->bytes, all, known ? known : delta_front(base->bytes, all), &delta);
    if (delta.pieces.size) {
        pieces_section(out, STORE_TAG_REQUEST_PIECES, &delta, base->call_id, all);
        buf_deinit(&delta.pieces);
        return base->depth + 1;
    }
    if (delta.front + delta.back < SHARED_BYTES_MIN) {
        section(out, STORE_TAG_REQUEST, all.data, all.size);
        return 0;
    }
    uint32_t numbers[] = {(uint32_t)delta.front, (uint32_t)delta.back};
    delta_section(out, STORE_TAG_REQUEST_DELTA, numbers, 2, base->call_id, delta.fresh);
    buf_append(out, all.data + delta.front, delta.fresh);
    return base->depth + 1;
}

static uint32_t write_prompt(struct buf *out, const struct store_record *record)
{
    struct str all = str_make(record->prompt_ids, record->prompt_id_count * 4);
    const struct store_base *base = &record->prompt_base;
    struct delta delta = {.fresh = all.size};
    if (usable(base))
        delta_find(base->bytes, all, delta_front(base->bytes, all) / 4 * 4, &delta);
    uint32_t shared = (uint32_t)(delta.front / 4);
    if (all.size - delta.fresh < SHARED_BYTES_MIN) {
        section(out, STORE_TAG_PROMPT_IDS, all.data, all.size);
        buf_deinit(&delta.pieces);
        return 0;
    }
    if (delta.back >= SHARED_BYTES_MIN)
        delta_ends(&delta, base->bytes.size);
    if (delta.pieces.size) {
        pieces_section(out, STORE_TAG_PROMPT_PIECES, &delta, base->call_id, all);
        buf_deinit(&delta.pieces);
        return base->depth + 1;
    }
    struct str rest = str_from(all, delta.front);
    delta_section(out, STORE_TAG_PROMPT_DELTA, &shared, 1, base->call_id, rest.size);
    buf_str_append(out, rest);
    return base->depth + 1;
}

int record_write(struct buf *out, const struct store_record *record, struct err *err)
{
    size_t tokens = record->prompt_id_count + record->token_id_count + record->logprob_count;
    if (tokens > RECORD_BYTES_MAX / 8 ||
        record->body.size + record->request.size > RECORD_BYTES_MAX / 2)
        return err_set(err, ERR_LIMIT, "a journal record of %zu bytes and %zu tokens is too large",
                       record->body.size, tokens);
    size_t start = out->size;
    (void)buf_reserve(out, RECORD_HEAD_SIZE + record->body.size + 192 +
                               (record->request.data ? USUAL_REST : 0));
    memset(buf_reserve(out, RECORD_HEAD_SIZE), 0, RECORD_HEAD_SIZE);
    buf_added(out, RECORD_HEAD_SIZE);

    text_section(out, STORE_TAG_ROLLOUT_ID, record->rollout_id);
    text_section(out, STORE_TAG_CALL_ID, record->call_id);
    if (record->body.size)
        section(out, STORE_TAG_BODY, record->body.data, record->body.size);
    text_section(out, STORE_TAG_STATE, record->state);
    if (record->type == STORE_INTENT || record->type == STORE_ENTRY) {
        char numbers[24];
        put(numbers, &record->number, 4);
        put(numbers + 4, &record->http_status, 4);
        put(numbers + 8, &record->prompt_tokens, 8);
        put(numbers + 16, &record->completion_tokens, 8);
        section(out, STORE_TAG_NUMBERS, numbers, sizeof numbers);
    }
    if (record->deliveries)
        section(out, STORE_TAG_DELIVERIES, &record->deliveries, 4);
    if (record->order)
        section(out, STORE_TAG_ORDER, &record->order, 8);
    uint32_t request_depth = record->request.data ? write_request(out, record) : 0;
    uint32_t prompt_depth = record->prompt_id_count ? write_prompt(out, record) : 0;
    if (record->request_depth)
        *record->request_depth = request_depth;
    if (record->prompt_depth)
        *record->prompt_depth = prompt_depth;
    if (record->token_id_count)
        section(out, STORE_TAG_TOKEN_IDS, record->token_ids, record->token_id_count * 4);
    if (record->logprob_count)
        section(out, STORE_TAG_LOGPROBS, record->logprobs, record->logprob_count * 4);

    uint32_t size = (uint32_t)(out->size - start - RECORD_HEAD_SIZE);
    uint16_t type = (uint16_t)record->type;
    put(out->data + start, &size, 4);
    put(out->data + start + 4, &type, 2);
    return 0;
}

static uint64_t record_sum(const char *record, size_t size)
{
    XXH3_state_t state;
    XXH3_64bits_reset(&state);
    XXH3_64bits_update(&state, record, SUM_OFFSET);
    XXH3_64bits_update(&state, record + RECORD_HEAD_SIZE, size - RECORD_HEAD_SIZE);
    return XXH3_64bits_digest(&state);
}

void record_seal(char *record, size_t size, uint64_t sequence, uint64_t wall_ms)
{
    put(record + 8, &sequence, 8);
    put(record + 16, &wall_ms, 8);
    uint64_t sum = record_sum(record, size);
    put(record + SUM_OFFSET, &sum, 8);
}

/* The parent's id, which follows `at` bytes of numbers; the rest is the content. */
static bool read_delta(struct str bytes, size_t at, struct str *parent, struct str *content)
{
    if (bytes.size < at + 4 || get32(bytes.data + at) > bytes.size - at - 4)
        return false;
    uint32_t size = get32(bytes.data + at);
    *parent = str_make(bytes.data + at + 4, size);
    *content = str_from(bytes, at + 4 + size);
    return size > 0;
}

static bool read_pieces(struct str bytes, struct str *parent, struct str *pieces, struct str *fresh)
{
    struct str content;
    if (!read_delta(bytes, 4, parent, &content))
        return false;
    uint64_t size = (uint64_t)get32(bytes.data) * sizeof(struct delta_piece);
    if (size == 0 || size > content.size)
        return false;
    *pieces = str_upto(content, size);
    *fresh = str_from(content, size);
    return delta_valid(*pieces, fresh->size);
}

static bool read_section(struct store_view *view, uint16_t tag, struct str bytes)
{
    switch (tag) {
    case STORE_TAG_ROLLOUT_ID:
        view->rollout_id = bytes;
        return true;
    case STORE_TAG_CALL_ID:
        view->call_id = bytes;
        return true;
    case STORE_TAG_BODY:
        view->body = bytes;
        return true;
    case STORE_TAG_STATE:
        view->state = bytes;
        return true;
    case STORE_TAG_PROMPT_IDS:
        view->prompt_ids = bytes;
        return bytes.size % 4 == 0;
    case STORE_TAG_TOKEN_IDS:
        view->token_ids = bytes;
        return bytes.size % 4 == 0;
    case STORE_TAG_LOGPROBS:
        view->logprobs = bytes;
        return bytes.size % 4 == 0;
    case STORE_TAG_NUMBERS:
        if (bytes.size < 24)
            return false;
        view->number = get32(bytes.data);
        view->http_status = get32(bytes.data + 4);
        view->prompt_tokens = (int64_t)get64(bytes.data + 8);
        view->completion_tokens = (int64_t)get64(bytes.data + 16);
        return true;
    case STORE_TAG_DELIVERIES:
        if (bytes.size < 4)
            return false;
        view->deliveries = get32(bytes.data);
        return true;
    case STORE_TAG_ORDER:
        if (bytes.size < 8)
            return false;
        view->order = get64(bytes.data);
        return true;
    case STORE_TAG_REQUEST:
        view->request = bytes;
        return true;
    case STORE_TAG_REQUEST_DELTA:
        if (!read_delta(bytes, 8, &view->request_parent, &view->request))
            return false;
        view->request_prefix = get32(bytes.data);
        view->request_suffix = get32(bytes.data + 4);
        return true;
    case STORE_TAG_PROMPT_DELTA:
        if (!read_delta(bytes, 4, &view->prompt_parent, &view->prompt_ids))
            return false;
        view->prompt_shared = get32(bytes.data);
        return view->prompt_ids.size % 4 == 0;
    case STORE_TAG_REQUEST_PIECES:
        return read_pieces(bytes, &view->request_parent, &view->request_pieces, &view->request);
    case STORE_TAG_PROMPT_PIECES:
        return read_pieces(bytes, &view->prompt_parent, &view->prompt_pieces, &view->prompt_ids);
    }
    return true; /* from a later version */
}

/* The parts of the head that can be judged without reading the whole record. */
static bool head_plausible(struct str segment, size_t offset)
{
    if (offset > segment.size || segment.size - offset < RECORD_HEAD_SIZE)
        return false;
    const char *head = segment.data + offset;
    uint32_t size = get32(head);
    uint16_t type = get16(head + 4);
    return type >= STORE_INTENT && type <= STORE_NOTE && get16(head + 6) == 0 &&
           size <= RECORD_BYTES_MAX && size <= segment.size - offset - RECORD_HEAD_SIZE;
}

bool record_read(struct str segment, size_t offset, struct store_view *view)
{
    if (!head_plausible(segment, offset))
        return false;
    const char *head = segment.data + offset;
    return get64(head + SUM_OFFSET) == record_sum(head, RECORD_HEAD_SIZE + get32(head)) &&
           record_read_own(segment, offset, view);
}

bool record_read_own(struct str segment, size_t offset, struct store_view *view)
{
    if (!head_plausible(segment, offset))
        return false;
    const char *head = segment.data + offset;
    size_t size = RECORD_HEAD_SIZE + get32(head);
    *view = (struct store_view){
        .type = (enum store_type)get16(head + 4),
        .sequence = get64(head + 8),
        .wall_ms = get64(head + 16),
        .offset = offset,
        .size = size,
        .prompt_tokens = -1,
        .completion_tokens = -1,
    };
    struct str rest = str_make(head + RECORD_HEAD_SIZE, size - RECORD_HEAD_SIZE);
    while (rest.size) {
        if (rest.size < 8 || get32(rest.data + 4) > rest.size - 8)
            return false;
        uint32_t section_size = get32(rest.data + 4);
        if (!read_section(view, get16(rest.data), str_make(rest.data + 8, section_size)))
            return false;
        rest = str_from(rest, 8 + (size_t)section_size);
    }
    return true;
}

size_t record_resync(struct str segment, size_t offset, size_t end, uint64_t sequence)
{
    int tries = 0;
    for (size_t at = offset + 1; at < end && at + RECORD_HEAD_SIZE <= segment.size; at++) {
        uint64_t found = get64(segment.data + at + 8);
        if (!head_plausible(segment, at) || found <= sequence ||
            found - sequence > SEQUENCE_JUMP_MAX)
            continue;
        struct store_view view;
        if (record_read(segment, at, &view))
            return at;
        if (++tries == RESYNC_TRIES_MAX)
            break;
    }
    return end;
}

size_t store_walk(struct str bytes, bool (*on_record)(void *context, const struct store_view *view),
                  void *context)
{
    if (!segment_head_valid(bytes))
        return 0;
    size_t offset = SEGMENT_HEAD_SIZE;
    struct store_view view;
    while (record_read(bytes, offset, &view)) {
        offset += view.size;
        if (on_record && !on_record(context, &view))
            break;
    }
    return offset;
}
