/* sse.c - server-sent events as the HTML standard defines them: lines end in LF, CR or CR LF; a
 * blank line ends an event; lines that start with a colon are comments. A CR at the very end waits
 * for what follows, so that the cutting of the bytes never matters. */
#include "dialect/sse.h"

void dialect_sse_deinit(struct sse *sse)
{
    buf_deinit(&sse->pending);
    buf_deinit(&sse->kept_name);
    buf_deinit(&sse->joined);
    *sse = (struct sse){0};
}

void dialect_sse_feed(struct sse *sse, struct str bytes)
{
    if (sse->pending.size)
        buf_str_append(&sse->pending, bytes);
    else
        sse->fresh = bytes;
}

static struct str source(const struct sse *sse)
{
    return sse->pending.size ? buf_str(&sse->pending) : sse->fresh;
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

/* What is kept for later pieces may move: its fields are copied. */
static void take_field(struct sse *sse, struct str line)
{
    struct str rest = line;
    struct str field = str_cut(&rest, ':');
    struct str value = rest.data ? rest : STR("");
    bool moves = sse->pending.size > 0;
    sse->kept |= moves || sse->has_data;
    if (value.size && value.data[0] == ' ')
        value = str_from(value, 1);
    if (str_is(field, "data")) {
        if (sse->has_data || moves) {
            if (sse->has_data && sse->data.data != sse->joined.data)
                buf_str_append(&sse->joined, sse->data);
            if (sse->has_data)
                buf_byte(&sse->joined, '\n');
            buf_str_append(&sse->joined, value);
            value = buf_str(&sse->joined);
        }
        sse->has_data = true;
        sse->data = value;
    } else if (str_is(field, "event")) {
        if (moves) {
            buf_clear(&sse->kept_name);
            buf_str_append(&sse->kept_name, value);
            value = buf_str(&sse->kept_name);
        }
        sse->name = value;
    }
}

static void forget_fields(struct sse *sse)
{
    sse->has_data = false;
    sse->name = sse->data = STR_NONE;
    if (!sse->kept)
        return;
    sse->kept = false;
    buf_clear(&sse->kept_name);
    buf_clear(&sse->joined);
}

/* Forgets the event that was handed out before. */
static void drop_finished(struct sse *sse)
{
    if (!sse->begun)
        return;
    sse->begun = false;
    if (sse->pending.size)
        buf_consume(&sse->pending, sse->scanned);
    else
        sse->fresh = str_from(sse->fresh, sse->scanned);
    sse->scanned = 0;
    forget_fields(sse);
}

static bool hand_out(struct sse *sse, struct sse_event *out)
{
    sse->begun = true;
    out->raw = str_upto(source(sse), sse->scanned);
    out->name = sse->name;
    out->data = STR_NONE;
    if (sse->has_data)
        out->data = sse->data.size ? sse->data : STR("");
    return true;
}

/* The piece is over in the middle of an event, which is begun again when there is more of it. */
static void keep(struct sse *sse)
{
    if (!sse->fresh.size)
        return;
    if (!sse->pending.size) {
        buf_str_append(&sse->pending, sse->fresh);
        sse->scanned = sse->checked = 0;
        forget_fields(sse);
    }
    sse->fresh = STR_NONE;
}

bool dialect_sse_next(struct sse *sse, bool last, struct sse_event *out)
{
    drop_finished(sse);
    struct str line;
    size_t used;
    while (sse->scanned < source(sse).size) {
        struct str rest = str_from(source(sse), sse->scanned);
        if (!cut_line(rest, sse->checked, last, &line, &used)) {
            sse->checked = rest.size - (rest.data[rest.size - 1] == '\r');
            keep(sse);
            return false;
        }
        sse->scanned += used;
        sse->checked = 0;
        if (line.size == 0)
            return hand_out(sse, out);
        take_field(sse, line);
    }
    if (last && sse->scanned)
        return hand_out(sse, out);
    keep(sse);
    return false;
}
