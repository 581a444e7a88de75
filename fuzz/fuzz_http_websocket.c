/* fuzz_http_websocket.c - frames of a WebSocket client: any bytes, in any pieces, with the same
 * result. */
#include <stdint.h>
#include <stdlib.h>

#include "base/check.h"
#include "http/websocket.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct seen {
    size_t messages, bytes;
};

static bool note(void *context, enum websocket_opcode opcode, struct str data)
{
    struct seen *seen = context;
    seen->messages++;
    seen->bytes = seen->bytes * 31 + data.size + (size_t)opcode;
    if (opcode == WEBSOCKET_TEXT)
        CHECK(str_is_utf8(data));
    if (opcode == WEBSOCKET_CLOSE)
        (void)websocket_close_code(data);
    return true;
}

static int run(struct str bytes, size_t piece, struct seen *seen)
{
    struct websocket_reader reader = {
        .message_bytes_max = 4096, .on_message = note, .context = seen};
    int code = 0;
    for (size_t at = 0; at < bytes.size && !code; at += piece)
        code = websocket_feed(&reader, str_upto(str_from(bytes, at), piece));
    websocket_reader_deinit(&reader);
    return code;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct seen whole = {0}, cut = {0};
    struct str bytes = str_make(data, size);
    int code = run(bytes, size ? size : 1, &whole);
    CHECK(run(bytes, 1, &cut) == code);
    CHECK(whole.messages == cut.messages && whole.bytes == cut.bytes);
    char accept[29];
    (void)websocket_accept(str_upto(bytes, 24), accept);
    return 0;
}
