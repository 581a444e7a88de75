/* fuzz_http_sse.c - event streams whole and in pieces, written and read back; URLs and query
 * strings. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/check.h"
#include "base/err.h"
#include "http/http.h"

static void on_event(void *context, struct str event, struct str data)
{
    struct buf *seen = context;
    buf_format(seen, "%zu:%zu:", event.size, data.size);
    buf_str_append(seen, event);
    buf_str_append(seen, data);
}

static struct buf read_all(struct str bytes, size_t piece)
{
    struct buf seen = {0};
    struct sse_parser parser = {.on_event = on_event, .context = &seen, .event_bytes_max = 1 << 20};
    while (bytes.size) {
        struct str now = str_upto(bytes, piece);
        CHECK(sse_feed(&parser, now, NULL) == 0);
        bytes = str_from(bytes, now.size);
    }
    sse_deinit(&parser);
    return seen;
}

static void on_copy(void *context, struct str event, struct str data)
{
    sse_write(context, event, data);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1)
        return 0;
    struct str bytes = str_make(data + 1, size - 1);
    struct buf whole = read_all(bytes, SIZE_MAX), pieces = read_all(bytes, 1 + data[0] % 16);
    CHECK(str_equal(buf_str(&whole), buf_str(&pieces)));

    struct buf written = {0};
    struct sse_parser parser = {
        .on_event = on_copy, .context = &written, .event_bytes_max = 1 << 20};
    CHECK(sse_feed(&parser, bytes, NULL) == 0);
    sse_deinit(&parser);
    struct buf again = read_all(buf_str(&written), SIZE_MAX);
    CHECK(str_equal(buf_str(&whole), buf_str(&again)));

    struct buf out = {0}, back = {0};
    http_percent_encode(bytes, &out);
    CHECK(http_percent_decode(buf_str(&out), &back) && str_equal(buf_str(&back), bytes));
    buf_clear(&out);
    (void)http_query_get(bytes, "a", &out);
    char *text = str_dup(bytes);
    struct http_url url;
    if (http_url_read(text, &url, NULL) == 0)
        CHECK(url.path.size > 0 && url.path.data[0] == '/');
    free(text);
    buf_deinit(&out);
    buf_deinit(&back);
    buf_deinit(&written);
    buf_deinit(&again);
    buf_deinit(&whole);
    buf_deinit(&pieces);
    return 0;
}
