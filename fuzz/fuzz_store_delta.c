/* Two requests of any bytes: what is found to be the same puts the second together again, byte for
 * byte. The first byte says where the first of them ends. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/mem.h"
#include "store/inner.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!size)
        return 0;
    size_t cut = (size - 1) * data[0] / 256;
    /* Each in memory of its own, so that a byte too many is noticed. */
    size_t rest_size = size - 1 - cut;
    OWN(mem) char *first = mem_alloc(cut);
    OWN(mem) char *second = mem_alloc(rest_size);
    memcpy(first, data + 1, cut);
    memcpy(second, data + 1 + cut, rest_size);
    struct str parent = str_make(first, cut), body = str_make(second, rest_size);
    struct delta delta;
    OWN(buf) struct buf fresh = {0}, back = {0};
    delta_find(parent, body, delta_front(parent, body), &delta);
    if (!delta.pieces.size) {
        CHECK(delta.front + delta.back + delta.fresh == body.size);
        CHECK(delta.front + delta.back <= parent.size);
        return 0;
    }
    struct str rest = body;
    struct delta_piece piece;
    for (size_t at = 0; at < delta.pieces.size; at += sizeof piece) {
        memcpy(&piece, delta.pieces.data + at, sizeof piece);
        rest = str_from(rest, piece.size);
        buf_str_append(&fresh, str_upto(rest, piece.fresh));
        rest = str_from(rest, piece.fresh);
    }
    CHECK(rest.size == 0 && fresh.size == delta.fresh);
    CHECK(delta_valid(buf_str(&delta.pieces), fresh.size));
    CHECK(delta_apply(parent, buf_str(&delta.pieces), buf_str(&fresh), &back));
    CHECK(str_equal(buf_str(&back), body));
    buf_deinit(&delta.pieces);
    return 0;
}
