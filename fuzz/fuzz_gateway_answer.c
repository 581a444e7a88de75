/* fuzz_gateway_answer.c - what a trainer sends: whatever the gate accepts, a lane can read, and a
 * stream is the same however it is cut. */
#include <stdint.h>
#include <stdlib.h>

#include "base/arena.h"
#include "base/check.h"
#include "base/err.h"
#include "base/mem.h"
#include "dialect/dialect.h"
#include "gateway/gate.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_answer(struct str body)
{
    OWN(buf) struct buf clean = {0};
    OWN(buf) struct buf again = {0};
    OWN(arena) struct arena arena = {0};
    struct err err = {0};
    if (gate_read_answer(body, &clean, &err) < 0) {
        CHECK(err.kind == ERR_INPUT || err.kind == ERR_LIMIT);
        return;
    }
    CHECK(gate_read_answer(buf_str(&clean), &again, &err) == 0);
    struct dialect_reader_options options = {0};
    struct trace_answer answer;
    struct dialect_reader *reader = dialect_reader_new(&dialect_chat, &options);
    CHECK(dialect_reader_feed(reader, buf_str(&clean), &err) == 0);
    CHECK(dialect_reader_end(reader, &arena, &answer, &err) == 0);
    dialect_reader_free(reader);
}

static int feed(struct str bytes, size_t piece, struct buf *out)
{
    struct gate_lines lines = {0};
    int result = 0;
    for (size_t at = 0; at < bytes.size && result == 0; at += piece) {
        struct str part = str_upto(str_from(bytes, at), piece);
        result = gate_lines_feed(&lines, part, at + piece >= bytes.size, out, NULL);
    }
    gate_lines_deinit(&lines);
    return result;
}

static void check_stream(struct str bytes)
{
    OWN(buf) struct buf whole = {0};
    OWN(buf) struct buf cut = {0};
    OWN(arena) struct arena arena = {0};
    struct err err = {0};
    int result = feed(bytes, bytes.size ? bytes.size : 1, &whole);
    CHECK(feed(bytes, 1, &cut) == result);
    if (result < 0 || !bytes.size)
        return;
    CHECK(str_equal(buf_str(&whole), buf_str(&cut)));
    struct dialect_reader_options options = {.stream = true};
    struct trace_answer answer;
    struct dialect_reader *reader = dialect_reader_new(&dialect_chat, &options);
    CHECK(dialect_reader_feed(reader, buf_str(&whole), &err) == 0);
    CHECK(dialect_reader_end(reader, &arena, &answer, &err) == 0);
    dialect_reader_free(reader);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    check_answer(str_make(data, size));
    check_stream(str_make(data, size));
    return 0;
}
