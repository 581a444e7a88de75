/* sse.c - server-sent events, reading and writing, after the WHATWG description of event streams.
 *
 * A line ends with CR, LF or CRLF. An event ends with an empty line and is reported when it has
 * data. Lines that come whole are read where they are; only cut ones are copied. `id` and `retry`
 * are read over. An unfinished event at the end of the stream is no event. */
#include "http/http.h"

#include <string.h>

#include "base/err.h"

#define EVENT_BYTES_MAX ((size_t)16 << 20)

static void dispatch(struct sse_parser *parser)
{
    if (parser->data.size) {
        struct str data = str_upto(buf_str(&parser->data), parser->data.size - 1);
        parser->on_event(parser->context, buf_str(&parser->event), data);
    }
    buf_clear(&parser->data);
    buf_clear(&parser->event);
}

static void read_line(struct sse_parser *parser, struct str line)
{
    if (!parser->started) {
        parser->started = true;
        if (str_starts(line, STR("\xEF\xBB\xBF")))
            line = str_from(line, 3);
    }
    if (!line.size) {
        dispatch(parser);
        return;
    }
    struct str value = line;
    struct str name = str_cut(&value, ':');
    if (value.size && value.data[0] == ' ')
        value = str_from(value, 1);
    if (str_is(name, "data")) {
        buf_str_append(&parser->data, value);
        buf_byte(&parser->data, '\n');
    } else if (str_is(name, "event")) {
        buf_clear(&parser->event);
        buf_str_append(&parser->event, value);
    }
}

static size_t line_size(struct str s)
{
    size_t size = 0;
    while (size < s.size && s.data[size] != '\n' && s.data[size] != '\r')
        size++;
    return size;
}

/* Like line_size(), by memchr. *newline is the next LF at or after the line's start, kept between
 * lines so that a stream without any is searched once. */
static size_t line_size_fast(struct str s, const char **newline)
{
    if (!*newline || *newline < s.data) {
        *newline = memchr(s.data, '\n', s.size);
        if (!*newline)
            *newline = s.data + s.size;
    }
    size_t size = (size_t)(*newline - s.data);
    const char *cr = memchr(s.data, '\r', size);
    return cr ? (size_t)(cr - s.data) : size;
}

int sse_feed(struct sse_parser *parser, struct str bytes, struct err *err)
{
    size_t max = parser->event_bytes_max ? parser->event_bytes_max : EVENT_BYTES_MAX;
    const char *newline = NULL;
    while (bytes.size) {
        if (parser->seen_cr) {
            parser->seen_cr = false;
            if (bytes.data[0] == '\n') {
                bytes = str_from(bytes, 1);
                continue;
            }
        }
        size_t size = line_size_fast(bytes, &newline);
        if (parser->line.size + parser->data.size + size > max)
            return err_set(err, ERR_LIMIT, "an event is larger than %zu bytes", max);
        if (size == bytes.size) {
            buf_append(&parser->line, bytes.data, size);
            return 0;
        }
        parser->seen_cr = bytes.data[size] == '\r';
        if (parser->line.size) {
            buf_append(&parser->line, bytes.data, size);
            read_line(parser, buf_str(&parser->line));
            buf_clear(&parser->line);
        } else {
            read_line(parser, str_upto(bytes, size));
        }
        bytes = str_from(bytes, size + 1);
    }
    return 0;
}

void sse_deinit(struct sse_parser *parser)
{
    buf_deinit(&parser->line);
    buf_deinit(&parser->data);
    buf_deinit(&parser->event);
}

void sse_write(struct buf *out, struct str event, struct str data)
{
    if (event.size) {
        buf_append(out, "event: ", 7);
        buf_append(out, event.data, line_size(event));
        buf_byte(out, '\n');
    }
    for (;;) {
        size_t size = line_size(data);
        buf_append(out, "data: ", 6);
        buf_append(out, data.data, size);
        buf_byte(out, '\n');
        if (size == data.size)
            break;
        bool pair = data.data[size] == '\r' && size + 1 < data.size && data.data[size + 1] == '\n';
        data = str_from(data, size + (pair ? 2 : 1));
    }
    buf_byte(out, '\n');
}
