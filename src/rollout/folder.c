/* folder.c - the bounded logs of a rollout's folder. A full disk or a full budget is noted once and
 * never stops the rollout: logs are for people, the journal and the result are the truth. */
#include "rollout/internal.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/mem.h"
#include "json/json.h"

#define EVENT_TEXT_MAX 8192

int log_file_open(struct log_file *log, const char *dir, const char *name, uint64_t bytes_max,
                  struct err *err)
{
    OWN(mem) char *path = mem_format("%s/%s", dir, name);
    *log = (struct log_file){.bytes_max = bytes_max};
    log->fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (log->fd < 0)
        return err_errno(err, "log '%s'", path);
    off_t size = lseek(log->fd, 0, SEEK_END); /* what a former server wrote */
    log->bytes = size > 0 ? (uint64_t)size : 0;
    log->cut = log->bytes >= bytes_max;
    return 0;
}

static void write_all(struct log_file *log, struct str data)
{
    if (fd_write_all(log->fd, data.data, data.size) == 0)
        return;
    log->failed = true;
    LOG_WARN("rollout", NULL, "a log could not be written: %s", strerror(errno));
}

void log_file_write(struct log_file *log, struct str data)
{
    if (log->fd < 0 || log->failed || log->cut || !data.size)
        return;
    if (log->bytes + data.size > log->bytes_max) {
        write_all(log, str_upto(data, log->bytes_max - log->bytes));
        write_all(log, STR("\n[postern: the log is full; the rest was dropped]\n"));
        log->cut = true;
        return;
    }
    log->bytes += data.size;
    write_all(log, data);
}

void log_file_close(struct log_file *log)
{
    if (log->fd > 0)
        fd_close(&log->fd);
    log->fd = -1;
}

void log_file_tail(const char *dir, const char *name, size_t bytes_max, struct buf *out)
{
    OWN(mem) char *path = mem_format("%s/%s", dir, name);
    OWN(fd) int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    off_t size = fd < 0 ? -1 : lseek(fd, 0, SEEK_END);
    if (size <= 0)
        return;
    off_t from = (size_t)size > bytes_max ? size - (off_t)bytes_max : 0;
    ssize_t got = pread(fd, buf_reserve(out, bytes_max), bytes_max, from);
    if (got <= 0)
        return;
    buf_added(out, (size_t)got);
    while (from && out->size && ((unsigned char)out->data[0] & 0xc0) == 0x80)
        buf_consume(out, 1);
}

uint64_t folder_bytes(const char *dir)
{
    uint64_t sum = 0;
    DIR *folder = opendir(dir);
    for (struct dirent *entry; folder && (entry = readdir(folder));) {
        struct stat status;
        if (fstatat(dirfd(folder), entry->d_name, &status, AT_SYMLINK_NOFOLLOW) == 0 &&
            S_ISREG(status.st_mode))
            sum += (uint64_t)status.st_size;
    }
    if (folder)
        (void)closedir(folder);
    return sum;
}

static void begin(struct json_writer *writer, const char *kind)
{
    json_begin_object(writer);
    json_set_int(writer, "at_ms", (long long)clock_wall_ms());
    json_set_text(writer, "kind", kind);
}

static void end(struct json_writer *writer, struct str text)
{
    if (text.data)
        json_set_str(writer, "text", str_upto(text, EVENT_TEXT_MAX));
    if (text.size > EVENT_TEXT_MAX)
        json_set_bool(writer, "text_cut", true);
    json_end_object(writer);
    buf_byte(writer->out, '\n');
}

void event_line_typed(struct buf *out, const char *kind, struct str type, struct str text)
{
    struct json_writer writer = {.out = out};
    begin(&writer, kind);
    if (type.data)
        json_set_str(&writer, "type", type);
    end(&writer, text);
}

void event_line(struct buf *out, const char *kind, struct str text)
{
    event_line_typed(out, kind, STR_NONE, text);
}

void event_line_agent(struct buf *out, const struct agent_event *event)
{
    struct json_writer writer = {.out = out};
    begin(&writer, agent_event_kind_name(event->kind));
    if (event->type.data)
        json_set_str(&writer, "type", event->type);
    if (event->name.size)
        json_set_str(&writer, "name", event->name);
    if (event->id.size)
        json_set_str(&writer, "id", event->id);
    end(&writer, event->text.data ? event->text : event->raw);
}

void event_line_call(struct buf *out, const struct trace_call *call, bool done)
{
    struct json_writer writer = {.out = out};
    begin(&writer, done ? "call_done" : "call_begun");
    json_set_text(&writer, "id", call->id);
    json_set_int(&writer, "number", call->number);
    if (call->side)
        json_set_bool(&writer, "side", true);
    if (done) {
        json_set_text(&writer, "state", trace_call_state_name(call->state));
        json_set_int(&writer, "status", call->http_status);
        if (call->has_policy)
            json_set_int(&writer, "policy_version", call->policy_version);
        if (call->done_ms >= call->accepted_ms)
            json_set_int(&writer, "ms", (long long)(call->done_ms - call->accepted_ms));
        if (call->answer && call->answer->usage.known) {
            json_set_int(&writer, "prompt_tokens", call->answer->usage.prompt_tokens);
            json_set_int(&writer, "completion_tokens", call->answer->usage.completion_tokens);
        }
        if (call->error_kind)
            json_set_text(&writer, "error", call->error_kind);
    }
    end(&writer, STR_NONE);
}
