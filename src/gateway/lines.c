/* lines.c - calls.jsonl, written in stretches.
 *
 * The file is a copy for people; the journal has every call before its agent has the answer. So a
 * line may wait for the next ones: a write costs the filesystem as much as reading a whole request
 * costs us. A line waits at most lines_ms (at once where nobody set it), and not at all once its
 * session closes; what a dead server had waiting is made again from the journal (restore.c). Lines
 * that could not be written are not referred to by later ones.
 *
 * Sessions with lines that wait stand in a row, the oldest first. When many are due, they are
 * written some per tick, so that no call waits for all of them. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/log.h"
#include "base/mem.h"
#include "gateway/inner.h"

#define WAITING_BYTES_MAX ((size_t)32 << 10)
#define SESSIONS_PER_TICK 16
#define NEXT_TICK_MS 1

int lines_open(struct gateway_session *session, const char *path, struct err *err)
{
    struct lines *lines = &session->lines;
    if (!path)
        return 0;
    lines->path = mem_dup(path);
    lines->fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
    return lines->fd < 0 ? err_errno(err, "'%s'", path) : 0;
}

/* What a write that failed left of its line, so that the next one begins a line of its own. */
static void cut(struct gateway_session *session, size_t size)
{
    struct lines *lines = &session->lines;
    struct stat status;
    if (size == 0)
        return;
    if (fstat(lines->fd, &status) == 0 && status.st_size >= (off_t)size &&
        ftruncate(lines->fd, status.st_size - (off_t)size) == 0)
        return;
    LOG_ERROR("gateway", session->rollout_id, "'%s' ends in an unfinished line and is left so",
              lines->path);
    fd_close(&lines->fd);
}

static void failed(struct gateway_session *session, struct str written)
{
    struct lines *lines = &session->lines;
    if (!lines->failed)
        LOG_ERROR("gateway", session->rollout_id, "'%s' is incomplete: %s", lines->path,
                  strerror(errno));
    lines->failed = true;
    lines->lost = session->lineage.clock + 1; /* the call that is ending becomes the next one */
    const char *end = written.size ? memrchr(written.data, '\n', written.size) : NULL;
    cut(session, end ? (size_t)(written.data + written.size - end - 1) : written.size);
}

void lines_write(struct gateway_session *session)
{
    struct lines *lines = &session->lines;
    struct str text = buf_str(&lines->waiting);
    size_t wrote = 0;
    list_remove(&lines->node);
    while (lines->fd >= 0 && wrote < text.size) {
        ssize_t count = write(lines->fd, text.data + wrote, text.size - wrote);
        if (count > 0)
            wrote += (size_t)count;
        else if (count == 0 || errno != EINTR)
            break;
    }
    if (lines->fd >= 0 && wrote < text.size)
        failed(session, str_upto(text, wrote));
    buf_deinit(&lines->waiting);
}

void lines_close(struct gateway_session *session)
{
    lines_write(session);
    fd_close(&session->lines.fd);
    free(session->lines.path);
}

static void on_due(struct loop_timer *timer)
{
    struct gateway *gateway = timer->context;
    uint64_t now = loop_now_ms(gateway->loop);
    int count = 0;
    LIST_EACH (node, &gateway->unwritten) {
        struct lines *lines = LIST_OF(node, struct lines, node);
        if (lines->due_ms > now || count == SESSIONS_PER_TICK) {
            loop_timer_start(gateway->loop, timer,
                             lines->due_ms > now ? lines->due_ms - now : NEXT_TICK_MS, on_due,
                             gateway);
            return;
        }
        lines_write(LIST_OF(lines, struct gateway_session, lines));
        count++;
    }
}

struct buf *lines_room(struct gateway_session *session)
{
    return session->lines.fd < 0 ? NULL : &session->lines.waiting;
}

void lines_added(struct gateway_session *session)
{
    struct gateway *gateway = session->gateway;
    struct lines *lines = &session->lines;
    if (!gateway->lines_ms || session->closing || lines->waiting.size >= WAITING_BYTES_MAX) {
        lines_write(session);
        return;
    }
    if (list_linked(&lines->node))
        return;
    lines->due_ms = loop_now_ms(gateway->loop) + gateway->lines_ms;
    if (list_empty(&gateway->unwritten))
        loop_timer_start(gateway->loop, &gateway->lines_timer, gateway->lines_ms, on_due, gateway);
    list_append(&gateway->unwritten, &lines->node);
}
