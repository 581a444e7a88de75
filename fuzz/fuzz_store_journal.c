/* Recovery on arbitrary bytes: whatever is in a segment, the walk ends, stays inside, and what it
 * calls good is walked the same way again. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/mem.h"
#include "store/inner.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#define OUT_BYTES_MAX ((uint64_t)16 << 20)

struct walked {
    struct str bytes;
    size_t end, records;
};

static void touch(struct str part, const struct walked *walked)
{
    if (!part.data)
        return;
    CHECK(part.data >= walked->bytes.data);
    CHECK(part.data + part.size <= walked->bytes.data + walked->bytes.size);
}

/* Pieces of whatever is the parent: in bounds, or refused. */
static void apply(struct str pieces, struct str fresh, const struct walked *walked)
{
    OWN(buf) struct buf out = {0};
    uint64_t total = fresh.size;
    for (size_t at = 0; at < pieces.size; at += sizeof(struct delta_piece)) {
        struct delta_piece piece;
        memcpy(&piece, pieces.data + at, sizeof piece);
        total += piece.size;
    }
    if (total > OUT_BYTES_MAX)
        return; /* allowed, and only slow */
    if (delta_apply(walked->bytes, pieces, fresh, &out))
        CHECK(out.size == total);
}

static bool on_record(void *context, const struct store_view *view)
{
    struct walked *walked = context;
    CHECK(view->offset == walked->end || walked->records == 0);
    walked->end = view->offset + view->size;
    CHECK(walked->end <= walked->bytes.size);
    walked->records++;
    touch(view->rollout_id, walked);
    touch(view->call_id, walked);
    touch(view->body, walked);
    touch(view->state, walked);
    touch(view->prompt_ids, walked);
    touch(view->token_ids, walked);
    touch(view->logprobs, walked);
    touch(view->request, walked);
    touch(view->request_parent, walked);
    touch(view->request_pieces, walked);
    touch(view->prompt_parent, walked);
    touch(view->prompt_pieces, walked);
    if (view->request_pieces.size)
        apply(view->request_pieces, view->request, walked);
    if (view->prompt_pieces.size)
        apply(view->prompt_pieces, view->prompt_ids, walked);
    return true;
}

/* Repairs the checksums, so that the fuzzer gets past them. */
static void seal(char *data, size_t size)
{
    if (size < 32)
        return;
    uint64_t sum;
    memcpy(data, "POSTERNJ\1\0\0\0\0\0\0\0", 16);
    sum = XXH3_64bits(data, 24);
    memcpy(data + 24, &sum, 8);
    for (size_t at = 32; at + 32 <= size;) {
        uint32_t length;
        memcpy(&length, data + at, 4);
        if (length > size - at - 32)
            break;
        XXH3_state_t state;
        XXH3_64bits_reset(&state);
        XXH3_64bits_update(&state, data + at, 24);
        XXH3_64bits_update(&state, data + at + 32, length);
        sum = XXH3_64bits_digest(&state);
        memcpy(data + at + 24, &sum, 8);
        at += 32 + (size_t)length;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *bytes = malloc(size + 1);
    CHECK(bytes);
    memcpy(bytes, data, size);
    if (size && data[size - 1] % 2)
        seal(bytes, size);
    struct walked first = {.bytes = {bytes, size}};
    size_t good = store_walk(first.bytes, on_record, &first);
    CHECK(good <= size);
    struct walked second = {.bytes = {bytes, good}};
    CHECK(store_walk(second.bytes, on_record, &second) == good);
    CHECK(first.records == second.records);
    free(bytes);
    return 0;
}
