/* fuzz_wire.c - frames in arbitrary pieces, every message type, and trees.
 *
 * The first byte chooses: even, a stream of frames fed in pieces of that size, each payload given
 * to the decoder of its type; odd, a stream of tree records. What decodes is encoded again and must
 * come out the same. */
#include <stdint.h>
#include <stdlib.h>

#include "base/buf.h"
#include "base/check.h"
#include "base/err.h"
#include "wire/wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void walk(struct wire_list list)
{
    struct str item;
    size_t bytes = 0;
    uint32_t count = 0, said = list.count;
    while (wire_list_next(&list, &item)) {
        bytes += item.size;
        count++;
        CHECK(item.size <= WIRE_STRING_MAX);
    }
    CHECK(count == said && bytes <= WIRE_MESSAGE_MAX);
}

static void same(const struct wire_frame *frame, struct buf *again)
{
    struct wire_decoder decoder = {0};
    struct wire_frame other;
    wire_decoder_feed(&decoder, buf_str(again));
    CHECK(wire_decoder_next(&decoder, &other, NULL) == 1);
    CHECK(other.type == frame->type && other.stream == frame->stream);
    CHECK(str_equal(other.payload, frame->payload));
    wire_decoder_deinit(&decoder);
    buf_deinit(again);
}

static void decode(const struct wire_frame *frame)
{
    struct buf again = {0};
    struct wire_hello hello;
    struct wire_exec exec;
    struct wire_exit exit_message;
    struct wire_file file;
    struct wire_done done;
    struct wire_stat stat;
    struct str name;
    uint32_t credit;
    uint16_t rows, columns;
    uint8_t number;
    uint64_t position;
    struct wire_kept kept[WIRE_KEPT_MAX];
    size_t count;
    switch (frame->type) {
    case WIRE_HELLO:
        if (wire_hello_read(frame->payload, &hello, NULL) == 0) {
            wire_hello_add(&again, &hello);
            same(frame, &again);
        }
        break;
    case WIRE_EXEC:
        if (wire_exec_read(frame->payload, &exec, NULL) == 0) {
            walk(exec.args);
            walk(exec.env);
        }
        break;
    case WIRE_PUT:
    case WIRE_GET:
    case WIRE_PUT_TREE:
    case WIRE_GET_TREE:
    case WIRE_STAT:
    case WIRE_REMOVE:
        if (wire_file_read(frame->payload, &file, NULL) == 0) {
            CHECK(wire_file_add(&again, frame->stream, frame->type, &file, NULL) == 0);
            same(frame, &again);
        }
        break;
    case WIRE_EXIT:
        if (wire_exit_read(frame->payload, &exit_message, NULL) == 0) {
            wire_exit_add(&again, frame->stream, &exit_message);
            same(frame, &again);
        }
        break;
    case WIRE_DONE:
        if (wire_done_read(frame->payload, &done, NULL) == 0) {
            wire_done_add(&again, frame->stream, &done);
            same(frame, &again);
        }
        break;
    case WIRE_STATUS:
        if (wire_stat_read(frame->payload, &stat, NULL) == 0) {
            wire_stat_add(&again, frame->stream, &stat);
            same(frame, &again);
        }
        break;
    case WIRE_CREDIT:
        if (wire_credit_read(frame->payload, &credit, NULL) == 0) {
            struct wire_credit window;
            wire_credit_init(&window, WIRE_WINDOW);
            if (wire_credit_granted(&window, credit))
                CHECK(window.available <= WIRE_WINDOW_MAX);
        }
        break;
    case WIRE_SIGNAL:
        (void)wire_signal_read(frame->payload, &number, NULL);
        break;
    case WIRE_RESIZE:
        (void)wire_resize_read(frame->payload, &rows, &columns, NULL);
        break;
    case WIRE_ATTACH:
        if (wire_attach_read(frame->payload, &position, NULL) == 0) {
            wire_attach_add(&again, frame->stream, position);
            same(frame, &again);
        }
        break;
    case WIRE_KEPT:
        if (wire_kept_read(frame->payload, kept, &count, NULL) == 0) {
            wire_kept_add(&again, kept, count);
            same(frame, &again);
        }
        break;
    case WIRE_LOOKUP:
        (void)wire_lookup_read(frame->payload, &name, NULL);
        break;
    default:
        break;
    }
}

static void frames(struct str input, size_t piece)
{
    struct wire_decoder decoder = {.wipe = piece & 4};
    struct wire_frame frame;
    struct err err;
    (void)wire_hello_find(input);
    while (input.size) {
        wire_decoder_feed(&decoder, str_upto(input, piece));
        input = str_from(input, piece);
        int result;
        while ((result = wire_decoder_next(&decoder, &frame, &err)) > 0) {
            CHECK(wire_type_name(frame.type) && frame.payload.size <= WIRE_MESSAGE_MAX);
            decode(&frame);
        }
        if (result < 0)
            break;
    }
    wire_decoder_deinit(&decoder);
}

static void tree(struct str input, size_t piece)
{
    struct wire_entry_decoder *decoder = calloc(1, sizeof *decoder);
    CHECK(decoder);
    bool broken = false;
    while (input.size && !broken) {
        struct str part = str_upto(input, piece), data;
        input = str_from(input, piece);
        struct wire_entry entry;
        int event;
        while ((event = wire_entry_next(decoder, &part, &entry, &data, NULL)) > 0) {
            if (event != WIRE_EVENT_ENTRY)
                continue;
            CHECK(!entry.path.size || wire_path_is_inside(entry.path));
            struct buf again = {0};
            wire_entry_add(&again, &entry);
            CHECK(again.size == WIRE_ENTRY_HEADER_SIZE + entry.path.size + entry.link.size);
            CHECK(memcmp(again.data, decoder->head, again.size) == 0);
            buf_deinit(&again);
        }
        broken = event < 0;
    }
    free(decoder);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!size)
        return 0;
    struct str input = str_make(data + 1, size - 1);
    size_t piece = (data[0] >> 1) + 1u;
    if (data[0] & 1)
        tree(input, piece);
    else
        frames(input, piece);
    return 0;
}
