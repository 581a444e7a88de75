/* fuzz_http_answer.c - the parser of answers and the decoder of bodies, whole and in pieces. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/check.h"
#include "http/parse.h"

/* Decodes `bytes` in pieces; returns what came out, and how it ended. */
static struct buf decode(struct str bytes, size_t piece, enum http_body_kind kind, uint64_t length,
                         bool *broken, bool *done, size_t *used)
{
    struct buf out = {0};
    struct http_body body;
    http_body_start(&body, kind, length);
    *broken = false;
    *used = 0;
    while (*used < bytes.size && !body.done && !*broken) {
        struct str now = str_upto(str_from(bytes, *used), piece);
        char *copy = malloc(now.size);
        CHECK(copy);
        memcpy(copy, now.data, now.size);
        size_t taken = 0;
        long found = http_body_decode(&body, copy, now.size, &taken);
        if (found < 0) {
            *broken = true;
        } else {
            CHECK((size_t)found <= taken && taken <= now.size);
            CHECK(taken == now.size || body.done);
            buf_append(&out, copy, (size_t)found);
            *used += taken;
        }
        free(copy);
    }
    *done = body.done;
    return out;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1)
        return 0;
    size_t piece = 1 + data[0] % 32;
    struct str bytes = str_make(data + 1, size - 1);
    size_t scanned = 0, scanned_slowly = 0;
    long found = http_head_find(bytes, &scanned), slow = 0;
    for (size_t at = 0; at <= bytes.size && slow == 0; at += piece)
        slow = http_head_find(str_upto(bytes, at), &scanned_slowly);
    if (slow == 0)
        slow = http_head_find(bytes, &scanned_slowly);
    CHECK(slow == found);
    enum http_body_kind kind = HTTP_BODY_CHUNKED;
    uint64_t length = 0;
    if (found > 0) {
        struct http_head head;
        const char *why = NULL;
        struct str text = str_upto(bytes, (size_t)found);
        if (http_head_read_request(text, &head, &why) != 0)
            CHECK(why);
        if (http_head_read_answer(text, &head, &why) < 0) {
            CHECK(why);
            return 0;
        }
        CHECK(head.header_count <= HTTP_HEADERS_MAX && !(head.chunked && head.has_length));
        bytes = str_from(bytes, (size_t)found);
        kind = head.chunked      ? HTTP_BODY_CHUNKED
               : head.has_length ? HTTP_BODY_LENGTH
                                 : HTTP_BODY_UNTIL_CLOSE;
        length = head.length;
    }
    bool broken[2], done[2];
    size_t used[2];
    struct buf whole = decode(bytes, SIZE_MAX, kind, length, &broken[0], &done[0], &used[0]);
    struct buf pieces = decode(bytes, piece, kind, length, &broken[1], &done[1], &used[1]);
    CHECK(broken[0] == broken[1]);
    if (!broken[0])
        CHECK(done[0] == done[1] && used[0] == used[1] &&
              str_equal(buf_str(&whole), buf_str(&pieces)));
    buf_deinit(&whole);
    buf_deinit(&pieces);
    return 0;
}
