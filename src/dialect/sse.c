/* sse.c - server-sent events as the HTML standard defines them: lines end in LF, CR or CR LF; a
 * blank line ends an event; lines that start with a colon are comments. A CR at the very end waits
 * for what follows, so that the cutting of the bytes never matters. */
#include "dialect/sse.h"

void dialect_sse_deinit(struct sse *sse)
{
    buf_deinit(&sse->pending);
    buf_deinit(&sse->name);
    buf_deinit(&sse->data);
    *sse = (struct sse){0};
}

void dialect_sse_feed(struct sse *sse, struct str bytes)
{
    buf_str_append(&sse->pending, bytes);
}

/* One line from `rest`, whose first `checked` bytes hold no line end; *used counts its line end.
 * False: it is not whole yet. */
static bool cut_line(struct str rest, size_t checked, bool last, struct str *line, size_t *used)
{
    const char *from = rest.data + checked, *end = rest.data + rest.size;
    const char *lf = memchr(from, '\n', rest.size - checked);
    const char *until = lf ? lf : end;
    const char *cr = memchr(from, '\r', (size_t)(until - from));
    if (cr) {
        if (cr + 1 == end && !last)
            return false;
        until = cr;
        *used = (size_t)(cr - rest.data) + 1 + (cr + 1 < end && cr[1] == '\n');
    } else if (lf) {
        *used = (size_t)(lf - rest.data) + 1;
    } else if (last) {
        *used = rest.size;
    } else {
        return false;
    }
    *line = str_make(rest.data, (size_t)(until - rest.data));
    return true;
}

static void take_field(struct sse *sse, struct str line)
{
    struct str rest = line;
    struct str field = str_cut(&rest, ':');
    struct str value = rest.data ? rest : STR("");
    if (value.size && value.data[0] == ' ')
        value = str_from(value, 1);
    if (str_is(field, "data")) {
        if (sse->has_data)
            buf_byte(&sse->data, '\n');
        sse->has_data = true;
        buf_str_append(&sse->data, value);
    } else if (str_is(field, "event")) {
        buf_clear(&sse->name);
        buf_str_append(&sse->name, value);
    }
}

/* Forgets the event that was handed out before. */
static void drop_finished(struct sse *sse)
{
    if (!sse->begun)
        return;
    sse->begun = false;
    buf_consume(&sse->pending, sse->scanned);
    sse->scanned = 0;
    sse->has_data = false;
    buf_clear(&sse->name);
    buf_clear(&sse->data);
}

static bool hand_out(struct sse *sse, struct sse_event *out)
{
    sse->begun = true;
    out->raw = str_upto(buf_str(&sse->pending), sse->scanned);
    out->name = buf_str(&sse->name);
    out->data = STR_NONE;
    if (sse->has_data)
        out->data = sse->data.size ? buf_str(&sse->data) : STR("");
    return true;
}

bool dialect_sse_next(struct sse *sse, bool last, struct sse_event *out)
{
    drop_finished(sse);
    struct str line;
    size_t used;
    while (sse->scanned < sse->pending.size) {
        struct str rest = str_from(buf_str(&sse->pending), sse->scanned);
        if (!cut_line(rest, sse->checked, last, &line, &used)) {
            sse->checked = rest.size - (rest.data[rest.size - 1] == '\r');
            return false;
        }
        sse->scanned += used;
        sse->checked = 0;
        if (line.size == 0)
            return hand_out(sse, out);
        take_field(sse, line);
    }
    return last && sse->scanned ? hand_out(sse, out) : false;
}
