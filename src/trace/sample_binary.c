/* sample_binary.c - rows as little-endian arrays that a reader maps and uses where they lie.
 *
 *     head (64 bytes), table (uint64 per row: where its record begins), records
 *     record: 128 bytes of numbers, then arrays, each at a multiple of 8, then the row's JSON
 *
 * A record is made from the row's line of samples.jsonl, so that both forms say the same;
 * docs/samples.md has the offsets. */
#include <endian.h>
#include <math.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "json/json.h"
#include "trace/sample.h"

#define HEAD_BYTES 64u
#define RECORD_HEAD_BYTES 128u
#define VERSION 1u

enum record_field { /* places of the 64-bit numbers of a record's head, in units of 8 bytes */
                    RECORD_BYTES = 0,
                    RECORD_MAGIC_KIND = 1, /* two of 32 bits */
                    RECORD_TOKENS = 2,
                    RECORD_VERSIONS = 3,
                    RECORD_DIFFERS = 4,
                    RECORD_REWARD = 5, /* float64; NaN: none */
                    RECORD_IDS_AT = 6,
                    RECORD_LOGPROBS_AT = 7,
                    RECORD_MASK_AT = 8,
                    RECORD_PROVENANCE_AT = 9,
                    RECORD_VERSIONS_AT = 10,
                    RECORD_DIFFERS_AT = 11,
                    RECORD_META_AT = 12,
                    RECORD_META_BYTES = 13,
                    RECORD_TRAINED = 14,
                    RECORD_FLAGS = 15, /* bit 0: truncated */
};

static void pad(struct buf *out, size_t from)
{
    while ((out->size - from) % 8)
        buf_byte(out, 0);
}

static void put_u32(struct buf *out, uint32_t value)
{
    value = htole32(value);
    buf_append(out, &value, sizeof value);
}

static void put_u64(struct buf *out, uint64_t value)
{
    value = htole64(value);
    buf_append(out, &value, sizeof value);
}

static int wrong(struct err *err, const char *key)
{
    return err_set(err, ERR_INPUT, "the sample's '%s' is not what it should be", key);
}

/* Elements of `wide` bytes; 0: float32. */
static int put_array(struct buf *out, struct json row, const char *key, size_t count, size_t wide,
                     struct err *err)
{
    struct json list = json_get(row, key);
    size_t size = wide ? wide : sizeof(float);
    if (json_size(list) != count)
        return wrong(err, key);
    char *at = buf_reserve(out, count * size + 1);
    JSON_EACH (item, list) {
        long long integer = 0;
        double number = 0;
        bool good = wide ? json_int(item.value, &integer) : json_double(item.value, &number);
        if (!good || integer < 0 || integer > (wide == 1 ? UINT8_MAX : INT32_MAX))
            return wrong(err, key);
        float real = (float)number;
        uint32_t bits = (uint32_t)integer;
        if (!wide)
            memcpy(&bits, &real, sizeof bits);
        bits = wide == 1 ? bits : htole32(bits);
        if (wide == 1)
            *at = (char)bits;
        else
            memcpy(at, &bits, sizeof bits);
        at += size;
    }
    buf_added(out, count * size);
    return 0;
}

static int put_spans(struct buf *out, struct json row, const char *key, size_t width,
                     struct err *err)
{
    JSON_EACH (span, json_get(row, key)) {
        if (json_size(span.value) != width)
            return wrong(err, key);
        JSON_EACH (item, span.value) {
            long long integer;
            if (!json_int(item.value, &integer))
                return wrong(err, key);
            put_u64(out, (uint64_t)integer);
        }
    }
    return 0;
}

/* The row without its arrays. */
static void put_meta(struct buf *out, struct json row)
{
    static const struct json_edit without[] = {
        {"token_ids", {0}}, {"mask", {0}}, {"logprobs", {0}}, {"provenance", {0}}};
    json_splice(row, without, COUNT(without), out);
}

static int write_record(struct json row, struct buf *out, struct err *err)
{
    uint64_t head[RECORD_HEAD_BYTES / 8] = {0};
    size_t from = out->size;
    bool tokens = json_is(json_get(row, "kind"), "tokens");
    size_t count = tokens ? json_size(json_get(row, "token_ids")) : 0;
    double reward = NAN;
    if (!tokens && !json_is(json_get(row, "kind"), "messages"))
        return wrong(err, "kind");
    if (json_type(json_get(row, "reward")) == JSON_NUMBER &&
        !json_double(json_get(row, "reward"), &reward))
        return wrong(err, "reward");
    memset(buf_reserve(out, RECORD_HEAD_BYTES), 0, RECORD_HEAD_BYTES);
    buf_added(out, RECORD_HEAD_BYTES);
    head[RECORD_MAGIC_KIND] = 0x4c504d53u | (uint64_t)!tokens << 32; /* "SMPL" */
    head[RECORD_TOKENS] = count;
    head[RECORD_TRAINED] = (uint64_t)json_int_or(json_get(row, "trained_count"), 0);
    head[RECORD_FLAGS] = json_true(json_get(row, "truncated"));
    memcpy(&head[RECORD_REWARD], &reward, sizeof reward);

    const struct {
        enum record_field at;
        const char *key;
        size_t wide; /* 0: floats */
    } arrays[] = {{RECORD_IDS_AT, "token_ids", 4},
                  {RECORD_LOGPROBS_AT, "logprobs", 0},
                  {RECORD_MASK_AT, "mask", 1},
                  {RECORD_PROVENANCE_AT, "provenance", 1}};
    for (size_t i = 0; i < COUNT(arrays); i++) {
        head[arrays[i].at] = out->size - from;
        if (tokens && put_array(out, row, arrays[i].key, count, arrays[i].wide, err) < 0)
            return -1;
        pad(out, from);
    }
    head[RECORD_VERSIONS] = json_size(json_get(row, "policy_versions"));
    head[RECORD_VERSIONS_AT] = out->size - from;
    if (put_spans(out, row, "policy_versions", 3, err) < 0)
        return -1;
    head[RECORD_DIFFERS] = json_size(json_get(row, "context_differs"));
    head[RECORD_DIFFERS_AT] = out->size - from;
    if (put_spans(out, row, "context_differs", 2, err) < 0)
        return -1;
    head[RECORD_META_AT] = out->size - from;
    put_meta(out, row);
    head[RECORD_META_BYTES] = out->size - from - head[RECORD_META_AT];
    pad(out, from);
    head[RECORD_BYTES] = out->size - from;
    for (size_t i = 0; i < COUNT(head); i++)
        head[i] = htole64(head[i]);
    memcpy(out->data + from, head, sizeof head);
    return 0;
}

int sample_binary_add(struct sample_binary *binary, struct str line, struct err *err)
{
    OWN(json_doc) struct json_doc doc = {0};
    size_t before = binary->records.size;
    if (json_read(&doc, line, NULL, err) < 0 ||
        write_record(json_root(&doc), &binary->records, err) < 0) {
        binary->records.size = before;
        return err_wrap(err, "sample %llu", (unsigned long long)binary->count);
    }
    put_u64(&binary->offsets, before);
    binary->count++;
    return 0;
}

void sample_binary_head(const struct sample_binary *binary, struct buf *out)
{
    uint64_t records_at = HEAD_BYTES + binary->count * 8;
    buf_append(out, "POSTERNS", 8);
    put_u32(out, VERSION);
    put_u32(out, HEAD_BYTES);
    put_u64(out, binary->count);
    put_u64(out, HEAD_BYTES);
    put_u64(out, records_at);
    put_u64(out, records_at + binary->records.size);
    put_u64(out, 0);
    put_u64(out, 0);
    for (uint64_t i = 0; i < binary->count; i++) {
        uint64_t offset;
        memcpy(&offset, binary->offsets.data + i * 8, 8);
        put_u64(out, le64toh(offset) + records_at);
    }
}

void sample_binary_deinit(struct sample_binary *binary)
{
    buf_deinit(&binary->records);
    buf_deinit(&binary->offsets);
}
