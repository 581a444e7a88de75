/* message.c - the structured messages, to bytes and back.
 *
 * Numbers are little-endian and of fixed size; a string is a u32 length and its bytes; a list is a
 * u32 count, a u32 size of what follows, and its strings. A reader that runs out of bytes turns
 * `bad` and stays so, and each message is accepted only if every byte of it was used. Strings go to
 * system calls later, so none may hold a NUL. */
#include "wire/wire.h"

#include <string.h>

#include "base/check.h"
#include "base/err.h"

static const char magic[8] = "POSTERN";

/* ---------------------------------------------------------------- parts */
struct reader {
    struct str rest;
    bool bad;
};

static uint64_t take_number(struct reader *reader, size_t size)
{
    if (reader->rest.size < size) {
        reader->bad = true;
        reader->rest.size = 0;
        return 0;
    }
    uint64_t value = 0;
    for (size_t i = 0; i < size; i++)
        value |= (uint64_t)(unsigned char)reader->rest.data[i] << (8 * i);
    reader->rest = str_from(reader->rest, size);
    return value;
}

static struct str take_bytes(struct reader *reader, size_t size_max)
{
    uint64_t size = take_number(reader, 4);
    if (reader->bad || size > size_max || size > reader->rest.size ||
        (size && memchr(reader->rest.data, 0, size))) {
        reader->bad = true;
        return STR_NONE;
    }
    struct str bytes = str_upto(reader->rest, size);
    reader->rest = str_from(reader->rest, size);
    return bytes;
}

static struct wire_list take_list(struct reader *reader, uint32_t count_max)
{
    struct wire_list list = {.count = (uint32_t)take_number(reader, 4)};
    uint64_t size = take_number(reader, 4);
    if (reader->bad || list.count > count_max || size > reader->rest.size) {
        reader->bad = true;
        return (struct wire_list){0};
    }
    list.bytes = str_upto(reader->rest, size);
    reader->rest = str_from(reader->rest, size);
    struct reader inner = {.rest = list.bytes};
    for (uint32_t i = 0; i < list.count; i++) {
        take_bytes(&inner, WIRE_STRING_MAX);
        if (inner.bad)
            break;
    }
    if (inner.bad || inner.rest.size)
        reader->bad = true;
    return list;
}

bool wire_list_next(struct wire_list *list, struct str *item)
{
    if (!list->count)
        return false;
    struct reader reader = {.rest = list->bytes};
    *item = take_bytes(&reader, WIRE_STRING_MAX);
    CHECK(!reader.bad); /* lists are checked when they are read */
    list->bytes = reader.rest;
    list->count--;
    return true;
}

static int finish(const struct reader *reader, bool valid, const char *name, struct err *err)
{
    if (reader->bad || reader->rest.size || !valid)
        return err_set(err, ERR_PROTOCOL, "malformed %s message", name);
    return 0;
}

static void put_number(struct buf *out, uint64_t value, size_t size)
{
    char *bytes = buf_reserve(out, size);
    for (size_t i = 0; i < size; i++)
        bytes[i] = (char)(value >> (8 * i));
    buf_added(out, size);
}

static void put_bytes(struct buf *out, struct str bytes)
{
    put_number(out, bytes.size, 4);
    buf_str_append(out, bytes);
}

/* ---------------------------------------------------------------- hello */
void wire_hello_add(struct buf *out, const struct wire_hello *hello)
{
    struct buf payload = {0};
    buf_append(&payload, magic, sizeof magic);
    put_number(&payload, hello->version, 2);
    put_number(&payload, hello->inlet_port, 2);
    put_number(&payload, hello->features, 4);
    put_number(&payload, hello->window, 4);
    put_number(&payload, hello->pid, 4);
    wire_frame_add(out, 0, WIRE_HELLO, 0, buf_str(&payload));
    buf_deinit(&payload);
}

int wire_hello_read(struct str payload, struct wire_hello *hello, struct err *err)
{
    if (!str_starts(payload, str_make(magic, sizeof magic)))
        return err_set(err, ERR_PROTOCOL, "the other end does not speak porter frames");
    struct reader reader = {.rest = str_from(payload, sizeof magic)};
    hello->version = (uint16_t)take_number(&reader, 2);
    hello->inlet_port = (uint16_t)take_number(&reader, 2);
    hello->features = (uint32_t)take_number(&reader, 4);
    hello->window = (uint32_t)take_number(&reader, 4);
    hello->pid = (uint32_t)take_number(&reader, 4);
    if (finish(&reader, hello->window > 0 && hello->window <= WIRE_WINDOW_MAX, "hello", err) < 0)
        return -1;
    if (hello->version != WIRE_VERSION)
        return err_set(err, ERR_PROTOCOL, "the other end speaks version %u of the frames, not %u",
                       hello->version, WIRE_VERSION);
    return 0;
}

/* ---------------------------------------------------------------- exec and exit */
static int put_list(struct buf *out, const char *const *items, uint32_t count_max, const char *name,
                    struct err *err)
{
    size_t at = out->size;
    uint32_t count = 0;
    put_number(out, 0, 8);
    for (; items && items[count]; count++) {
        struct str item = str_of(items[count]);
        if (item.size > WIRE_STRING_MAX)
            return err_set(err, ERR_LIMIT, "%s %u is longer than %u bytes", name, count,
                           WIRE_STRING_MAX);
        if (count == count_max)
            return err_set(err, ERR_LIMIT, "more than %u of: %s", count_max, name);
        if (out->size + item.size + 4 > WIRE_MESSAGE_MAX)
            return err_set(err, ERR_LIMIT, "arguments and environment exceed %u bytes together",
                           WIRE_MESSAGE_MAX);
        put_bytes(out, item);
    }
    uint32_t size = (uint32_t)(out->size - at - 8);
    for (int i = 0; i < 4; i++) {
        out->data[at + (size_t)i] = (char)(count >> (8 * i));
        out->data[at + 4 + (size_t)i] = (char)(size >> (8 * i));
    }
    return 0;
}

int wire_exec_add(struct buf *out, uint32_t stream, const struct wire_exec *exec,
                  const char *const *args, const char *const *env, struct err *err)
{
    if (!args || !args[0] || (exec->flags & WIRE_EXEC_SHELL && args[1]))
        return err_set(err, ERR_INPUT, "a command needs arguments, or one string for the shell");
    if (!args[0][0])
        return err_set(err, ERR_INPUT, "the command is empty");
    if (exec->cwd.size > WIRE_PATH_MAX || exec->user.size > WIRE_USER_MAX)
        return err_set(err, ERR_LIMIT, "the working directory or user name is too long");
    for (size_t i = 0; env && env[i]; i++)
        if (!strchr(env[i], '=') || env[i][0] == '=')
            return err_set(err, ERR_INPUT, "environment entry %zu is not NAME=value", i);

    struct buf payload = {0};
    put_number(&payload, exec->flags, 4);
    put_number(&payload, exec->rows, 2);
    put_number(&payload, exec->columns, 2);
    put_number(&payload, exec->timeout_ms, 4);
    put_number(&payload, exec->grace_ms, 4);
    put_number(&payload, exec->output_bytes_max, 8);
    put_bytes(&payload, exec->cwd);
    put_bytes(&payload, exec->user);
    int result = put_list(&payload, args, WIRE_ARGS_MAX, "argument", err);
    if (result == 0)
        result = put_list(&payload, env, WIRE_ENV_MAX, "environment entry", err);
    if (result == 0)
        wire_frame_add(out, stream, WIRE_EXEC, 0, buf_str(&payload));
    if (payload.start)
        explicit_bzero(payload.start, payload.capacity);
    buf_deinit(&payload);
    return result;
}

int wire_exec_read(struct str payload, struct wire_exec *exec, struct err *err)
{
    struct reader reader = {.rest = payload};
    exec->flags = (uint32_t)take_number(&reader, 4);
    exec->rows = (uint16_t)take_number(&reader, 2);
    exec->columns = (uint16_t)take_number(&reader, 2);
    exec->timeout_ms = (uint32_t)take_number(&reader, 4);
    exec->grace_ms = (uint32_t)take_number(&reader, 4);
    exec->output_bytes_max = take_number(&reader, 8);
    exec->cwd = take_bytes(&reader, WIRE_PATH_MAX);
    exec->user = take_bytes(&reader, WIRE_USER_MAX);
    exec->args = take_list(&reader, WIRE_ARGS_MAX);
    exec->env = take_list(&reader, WIRE_ENV_MAX);
    bool valid = exec->args.count > 0 && !(exec->flags & ~(uint32_t)WIRE_EXEC_FLAGS) &&
                 !(exec->flags & WIRE_EXEC_SHELL && exec->args.count != 1);
    return finish(&reader, valid, "exec", err);
}

void wire_exit_add(struct buf *out, uint32_t stream, const struct wire_exit *exit)
{
    struct buf payload = {0};
    put_number(&payload, exit->end, 1);
    put_number(&payload, exit->signal_number, 1);
    put_number(&payload, (uint32_t)exit->code, 4);
    put_number(&payload, exit->wall_us, 8);
    put_number(&payload, exit->user_us, 8);
    put_number(&payload, exit->system_us, 8);
    put_number(&payload, exit->rss_bytes_peak, 8);
    put_number(&payload, exit->output_bytes_dropped, 8);
    put_bytes(&payload, str_upto(exit->text, WIRE_TEXT_MAX));
    wire_frame_add(out, stream, WIRE_EXIT, 0, buf_str(&payload));
    buf_deinit(&payload);
}

int wire_exit_read(struct str payload, struct wire_exit *exit, struct err *err)
{
    struct reader reader = {.rest = payload};
    exit->end = (uint8_t)take_number(&reader, 1);
    exit->signal_number = (uint8_t)take_number(&reader, 1);
    exit->code = (int32_t)take_number(&reader, 4);
    exit->wall_us = take_number(&reader, 8);
    exit->user_us = take_number(&reader, 8);
    exit->system_us = take_number(&reader, 8);
    exit->rss_bytes_peak = take_number(&reader, 8);
    exit->output_bytes_dropped = take_number(&reader, 8);
    exit->text = take_bytes(&reader, WIRE_TEXT_MAX);
    bool valid = exit->end < WIRE_ENDS && exit->signal_number <= 64;
    return finish(&reader, valid, "exit", err);
}

/* ---------------------------------------------------------------- files */
int wire_file_add(struct buf *out, uint32_t stream, uint8_t type, const struct wire_file *file,
                  struct err *err)
{
    if (!file->path.size || file->path.size > WIRE_PATH_MAX)
        return err_set(err, ERR_INPUT, "a path has 1 to %u bytes", WIRE_PATH_MAX);
    if (file->user.size > WIRE_USER_MAX)
        return err_set(err, ERR_INPUT, "the user name is too long");
    struct buf payload = {0};
    put_number(&payload, file->flags, 4);
    put_number(&payload, file->mode & 07777, 4);
    put_bytes(&payload, file->user);
    put_bytes(&payload, file->path);
    wire_frame_add(out, stream, type, 0, buf_str(&payload));
    buf_deinit(&payload);
    return 0;
}

int wire_file_read(struct str payload, struct wire_file *file, struct err *err)
{
    struct reader reader = {.rest = payload};
    file->flags = (uint32_t)take_number(&reader, 4);
    file->mode = (uint32_t)take_number(&reader, 4);
    file->user = take_bytes(&reader, WIRE_USER_MAX);
    file->path = take_bytes(&reader, WIRE_PATH_MAX);
    bool valid =
        !(file->flags & ~(uint32_t)WIRE_FILE_FLAGS) && !(file->mode & ~07777u) && file->path.size;
    return finish(&reader, valid, "file", err);
}

void wire_done_add(struct buf *out, uint32_t stream, const struct wire_done *done)
{
    struct buf payload = {0};
    put_number(&payload, (uint32_t)done->error, 4);
    put_number(&payload, done->count, 8);
    put_bytes(&payload, str_upto(done->text, WIRE_TEXT_MAX));
    wire_frame_add(out, stream, WIRE_DONE, 0, buf_str(&payload));
    buf_deinit(&payload);
}

int wire_done_read(struct str payload, struct wire_done *done, struct err *err)
{
    struct reader reader = {.rest = payload};
    done->error = (int32_t)take_number(&reader, 4);
    done->count = take_number(&reader, 8);
    done->text = take_bytes(&reader, WIRE_TEXT_MAX);
    return finish(&reader, done->error >= 0 && done->error < 4096, "done", err);
}

void wire_stat_add(struct buf *out, uint32_t stream, const struct wire_stat *stat)
{
    struct buf payload = {0};
    put_number(&payload, stat->kind, 1);
    put_number(&payload, stat->mode, 4);
    put_number(&payload, stat->uid, 4);
    put_number(&payload, stat->gid, 4);
    put_number(&payload, stat->size, 8);
    put_number(&payload, (uint64_t)stat->mtime_s, 8);
    wire_frame_add(out, stream, WIRE_STATUS, 0, buf_str(&payload));
    buf_deinit(&payload);
}

int wire_stat_read(struct str payload, struct wire_stat *stat, struct err *err)
{
    struct reader reader = {.rest = payload};
    stat->kind = (uint8_t)take_number(&reader, 1);
    stat->mode = (uint32_t)take_number(&reader, 4);
    stat->uid = (uint32_t)take_number(&reader, 4);
    stat->gid = (uint32_t)take_number(&reader, 4);
    stat->size = take_number(&reader, 8);
    stat->mtime_s = (int64_t)take_number(&reader, 8);
    return finish(&reader, stat->kind < WIRE_KINDS && !(stat->mode & ~07777u), "status", err);
}

/* ---------------------------------------------------------------- small ones */
void wire_credit_add(struct buf *out, uint32_t stream, uint32_t size)
{
    char bytes[4];
    for (int i = 0; i < 4; i++)
        bytes[i] = (char)(size >> (8 * i));
    wire_frame_add(out, stream, WIRE_CREDIT, 0, str_make(bytes, sizeof bytes));
}

int wire_credit_read(struct str payload, uint32_t *size, struct err *err)
{
    struct reader reader = {.rest = payload};
    *size = (uint32_t)take_number(&reader, 4);
    return finish(&reader, *size > 0 && *size <= WIRE_WINDOW_MAX, "credit", err);
}

void wire_signal_add(struct buf *out, uint32_t stream, uint8_t number)
{
    wire_frame_add(out, stream, WIRE_SIGNAL, 0, str_make(&number, 1));
}

int wire_signal_read(struct str payload, uint8_t *number, struct err *err)
{
    struct reader reader = {.rest = payload};
    *number = (uint8_t)take_number(&reader, 1);
    return finish(&reader, *number >= 1 && *number <= 64, "signal", err);
}

void wire_resize_add(struct buf *out, uint32_t stream, uint16_t rows, uint16_t columns)
{
    char bytes[4] = {(char)rows, (char)(rows >> 8), (char)columns, (char)(columns >> 8)};
    wire_frame_add(out, stream, WIRE_RESIZE, 0, str_make(bytes, sizeof bytes));
}

int wire_resize_read(struct str payload, uint16_t *rows, uint16_t *columns, struct err *err)
{
    struct reader reader = {.rest = payload};
    *rows = (uint16_t)take_number(&reader, 2);
    *columns = (uint16_t)take_number(&reader, 2);
    return finish(&reader, true, "resize", err);
}

void wire_attach_add(struct buf *out, uint32_t stream, uint64_t position)
{
    struct buf payload = {0};
    put_number(&payload, position, 8);
    wire_frame_add(out, stream, WIRE_ATTACH, 0, buf_str(&payload));
    buf_deinit(&payload);
}

int wire_attach_read(struct str payload, uint64_t *position, struct err *err)
{
    struct reader reader = {.rest = payload};
    *position = take_number(&reader, 8);
    return finish(&reader, true, "attach", err);
}

/* ---------------------------------------------------------------- kept */
void wire_kept_add(struct buf *out, const struct wire_kept *kept, size_t count)
{
    CHECK(count <= WIRE_KEPT_MAX);
    struct buf payload = {0};
    for (size_t i = 0; i < count; i++) {
        put_number(&payload, kept[i].stream, 4);
        put_number(&payload, kept[i].number, 4);
        put_number(&payload, kept[i].flags, 1);
        put_number(&payload, kept[i].from, 8);
        put_number(&payload, kept[i].to, 8);
        put_number(&payload, kept[i].input, 8);
        put_number(&payload, kept[i].input_room, 4);
    }
    wire_frame_add(out, 0, WIRE_KEPT, 0, buf_str(&payload));
    buf_deinit(&payload);
}

int wire_kept_read(struct str payload, struct wire_kept kept[WIRE_KEPT_MAX], size_t *count,
                   struct err *err)
{
    struct reader reader = {.rest = payload};
    bool valid = true;
    *count = 0;
    while (reader.rest.size && !reader.bad && *count < WIRE_KEPT_MAX) {
        struct wire_kept *one = &kept[(*count)++];
        one->stream = (uint32_t)take_number(&reader, 4);
        one->number = (uint32_t)take_number(&reader, 4);
        one->flags = (uint8_t)take_number(&reader, 1);
        one->from = take_number(&reader, 8);
        one->to = take_number(&reader, 8);
        one->input = take_number(&reader, 8);
        one->input_room = (uint32_t)take_number(&reader, 4);
        valid &= one->stream & 1 && !(one->flags & ~WIRE_KEPT_FLAGS) && one->from <= one->to &&
                 one->to - one->from <= WIRE_WINDOW && one->input_room <= WIRE_WINDOW;
        for (size_t i = 0; i + 1 < *count; i++)
            valid &= kept[i].stream != one->stream && kept[i].number < one->number;
    }
    return finish(&reader, valid, "kept", err);
}

int wire_lookup_read(struct str payload, struct str *name, struct err *err)
{
    *name = payload;
    bool valid = payload.size >= 1 && payload.size <= 253;
    for (size_t i = 0; valid && i < payload.size; i++) {
        char c = payload.data[i];
        valid = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                c == '-' || c == '_' || c == '.';
    }
    struct reader reader = {0};
    return finish(&reader, valid, "lookup", err);
}
