/* channel_files.c - files and trees between this machine and a sandbox.
 *
 * One struct for all of it: a piece of work has at most one source here (memory, a descriptor, a
 * directory) or one drain here (memory, a descriptor, a fresh directory), a stream, and one end.
 * Local reads and writes happen inline in slices of at most 64 KiB, paced by credit and by the
 * channel's queue.
 *
 * When our side fails (disk full, over budget) the porter is told to stop, what still arrives is
 * dropped, and the end is told with our reason when the porter's final frame is in. */
#include "sandbox/channel.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/file.h"
#include "base/mem.h"
#include "sandbox/channel_inner.h"

#define TREE_BYTES_MAX (64ull << 30)
#define TREE_ENTRIES_MAX 10000000ull

struct file_work {
    struct flow flow;
    uint8_t type; /* enum wire_type */
    /* source */
    struct buf content;
    struct wire_tree_reader *reader;
    bool source_ended, end_sent;
    /* source or drain */
    int fd;
    /* drain */
    uint64_t bytes_max, bytes;
    struct wire_tree_writer *writer;
    struct sandbox_stat stat;
    /* end */
    struct err err; /* kind ERR_NONE: fine */
    bool failed;    /* here: the porter was told to stop */
    sandbox_done on_done;
    void (*on_content)(void *context, struct str content, const struct err *err);
    void (*on_stat)(void *context, const struct sandbox_stat *stat, const struct err *err);
    void *context;
};

/* ---------------------------------------------------------------- end */
static void work_free(struct file_work *work)
{
    wire_tree_reader_free(work->reader);
    wire_tree_writer_free(work->writer);
    fd_close(&work->fd);
    if (work->content.start)
        explicit_bzero(work->content.start, work->content.capacity);
    buf_deinit(&work->content);
    free(work);
}

static void finish(struct file_work *work)
{
    const struct err *err = work->err.kind ? &work->err : NULL;
    if (work->on_content)
        work->on_content(work->context, err ? STR_NONE : buf_str(&work->content), err);
    else if (work->on_stat)
        work->on_stat(work->context, err ? NULL : &work->stat, err);
    else if (work->on_done)
        work->on_done(work->context, err);
    work_free(work);
}

static void finish_early(void *argument)
{
    struct file_work *work = argument;
    flow_told(&work->flow);
    if (work->flow.silenced)
        work_free(work);
    else
        finish(work);
}

/* Our side cannot go on. */
static void fail(struct file_work *work)
{
    work->failed = true;
    work->source_ended = true;
    flow_control(&work->flow, WIRE_RESET);
}

static enum err_kind kind_of(int number)
{
    switch (number) {
    case EINVAL:
        return ERR_INPUT;
    case EFBIG:
        return ERR_LIMIT;
    case EPROTO:
        return ERR_PROTOCOL;
    case ECANCELED:
    case EINTR:
        return ERR_CANCELLED;
    default:
        return err_kind_of_errno(number);
    }
}

static int take_stat(struct file_work *work, const struct wire_frame *frame, struct err *err)
{
    static const enum sandbox_file_kind kinds[WIRE_KINDS] = {
        [WIRE_KIND_NONE] = SANDBOX_FILE_NONE,           [WIRE_KIND_REGULAR] = SANDBOX_FILE_REGULAR,
        [WIRE_KIND_DIRECTORY] = SANDBOX_FILE_DIRECTORY, [WIRE_KIND_LINK] = SANDBOX_FILE_LINK,
        [WIRE_KIND_OTHER] = SANDBOX_FILE_OTHER,
    };
    struct wire_stat stat;
    if (work->type != WIRE_STAT)
        return err_set(err, ERR_PROTOCOL, "unexpected status frame");
    if (wire_stat_read(frame->payload, &stat, err) < 0)
        return -1;
    work->stat = (struct sandbox_stat){.kind = kinds[stat.kind],
                                       .size = stat.size,
                                       .mode = stat.mode,
                                       .uid = stat.uid,
                                       .gid = stat.gid,
                                       .mtime_s = stat.mtime_s};
    return 0;
}

static int take_done(struct file_work *work, const struct wire_frame *frame, struct err *err)
{
    struct wire_done done;
    if (wire_done_read(frame->payload, &done, err) < 0)
        return -1;
    if (work->type == WIRE_STAT && !done.error)
        return err_set(err, ERR_PROTOCOL, "unexpected done frame");
    if (work->failed)
        return 0; /* our own reason came first */
    if (done.error)
        err_set(&work->err, kind_of(done.error), "%.*s", STR_ARGS(done.text));
    else if (work->writer)
        (void)wire_tree_writer_end(work->writer, &work->err);
    return 0;
}

static int on_final(struct flow *flow, const struct wire_frame *frame, struct err *err)
{
    struct file_work *work = LIST_OF(flow, struct file_work, flow);
    int result = frame->type == WIRE_STATUS ? take_stat(work, frame, err)
                 : frame->type == WIRE_DONE ? take_done(work, frame, err)
                                            : err_set(err, ERR_PROTOCOL, "unexpected exit frame");
    if (result < 0)
        return -1;
    flow_leave(flow);
    finish(work);
    return 0;
}

static void on_lost(struct flow *flow, const struct err *err)
{
    struct file_work *work = LIST_OF(flow, struct file_work, flow);
    work->err = *err;
    work->err.kind = ERR_LOST;
    finish(work);
}

static void on_abandoned(struct flow *flow)
{
    work_free(LIST_OF(flow, struct file_work, flow));
}

/* ---------------------------------------------------------------- data from the porter */
static void on_data(struct flow *flow, uint8_t which, struct str data)
{
    (void)which;
    struct file_work *work = LIST_OF(flow, struct file_work, flow);
    int result = 0;
    if (work->failed) {
        ;
    } else if (work->writer) {
        result = wire_tree_write(work->writer, data, &work->err);
    } else if (work->type == WIRE_GET && data.size > work->bytes_max - work->bytes) {
        result = err_set(&work->err, ERR_LIMIT, "the file has more than %llu bytes",
                         (unsigned long long)work->bytes_max);
    } else if (work->type == WIRE_GET) {
        work->bytes += data.size;
        if (work->fd < 0)
            buf_str_append(&work->content, data);
        else if (fd_write_all(work->fd, data.data, data.size) < 0)
            result = err_errno(&work->err, "writing the file");
    }
    if (result < 0)
        fail(work);
    flow_consumed(flow, data.size);
}

/* ---------------------------------------------------------------- data to the porter */
/* Refills `content`, which holds what was read and not yet sent. Returns -1 when reading failed. */
static int refill(struct file_work *work)
{
    if (work->content.size || work->source_ended)
        return 0;
    if (work->reader) {
        int more = wire_tree_read(work->reader, &work->content, WIRE_PAYLOAD_MAX, &work->err);
        work->source_ended = more == 0;
        return more < 0 ? -1 : 0;
    }
    if (work->fd < 0) {
        work->source_ended = true;
        return 0;
    }
    ssize_t size =
        fd_read_all(work->fd, buf_reserve(&work->content, WIRE_PAYLOAD_MAX), WIRE_PAYLOAD_MAX);
    if (size < 0)
        return err_errno(&work->err, "reading the file");
    buf_added(&work->content, (size_t)size);
    work->source_ended = size == 0;
    return 0;
}

static void on_room(struct flow *flow)
{
    struct file_work *work = LIST_OF(flow, struct file_work, flow);
    if (work->end_sent || work->failed || (work->type != WIRE_PUT && work->type != WIRE_PUT_TREE))
        return;
    size_t room;
    while (flow->channel && channel_usable(flow->channel) && (room = flow_room(flow))) {
        if (refill(work) < 0) {
            fail(work);
            return;
        }
        if (!work->content.size)
            break;
        struct str piece = str_upto(buf_str(&work->content), room);
        flow_send(flow, piece);
        buf_consume(&work->content, piece.size);
    }
    if (!work->content.size && work->source_ended && flow->channel) {
        work->end_sent = true;
        flow_control(flow, WIRE_END);
    }
}

static const struct flow_class file_class = {
    .on_data = on_data,
    .on_final = on_final,
    .on_lost = on_lost,
    .on_abandoned = on_abandoned,
    .on_room = on_room,
};

/* ---------------------------------------------------------------- beginning */
static struct file_work *work_new(uint8_t type, void *context)
{
    struct file_work *work = mem_zero(sizeof *work);
    work->type = type;
    work->context = context;
    work->fd = -1;
    return work;
}

/* Sends the opening frame; without a channel, or with an error already set, the end comes later all
 * the same. */
static void work_start(struct file_work *work, struct channel *channel, const char *path,
                       uint32_t mode, const char *user, bool as_owner)
{
    if (!work->err.kind && !channel_usable(channel)) {
        if (channel->lost)
            work->err = channel->lost_err;
        else
            err_set(&work->err, ERR_LOST, "the sandbox is closed");
        work->err.kind = ERR_LOST;
    }
    if (work->err.kind) {
        flow_end_early(&work->flow, channel, finish_early, work);
        return;
    }
    struct wire_file file = {.flags = as_owner ? WIRE_FILE_OWNER : 0,
                             .mode = mode,
                             .user = str_of(user),
                             .path = str_of(path)};
    flow_open(&work->flow, channel, &file_class);
    if (work->type == WIRE_KILL_ALL) {
        flow_control(&work->flow, WIRE_KILL_ALL);
        return;
    }
    if (wire_file_add(&channel->queue, work->flow.id, work->type, &file, &work->err) < 0) {
        flow_leave(&work->flow);
        flow_end_early(&work->flow, channel, finish_early, work);
        return;
    }
    channel_flush(channel);
    on_room(&work->flow);
}

static void take_fd(struct file_work *work, int fd)
{
    work->fd = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    if (work->fd < 0)
        err_errno(&work->err, "descriptor %d", fd);
}

void channel_kill_all(struct channel *channel, sandbox_done on_done, void *context)
{
    struct file_work *work = work_new(WIRE_KILL_ALL, context);
    work->on_done = on_done;
    work_start(work, channel, "", 0, NULL, true);
}

void channel_put(struct channel *channel, const char *path, struct str content, uint32_t mode,
                 const char *user, sandbox_done on_done, void *context)
{
    struct file_work *work = work_new(WIRE_PUT, context);
    work->on_done = on_done;
    buf_str_append(&work->content, content);
    work_start(work, channel, path, mode, user, false);
}

void channel_put_fd(struct channel *channel, const char *path, int fd, uint32_t mode,
                    const char *user, sandbox_done on_done, void *context)
{
    struct file_work *work = work_new(WIRE_PUT, context);
    work->on_done = on_done;
    take_fd(work, fd);
    work_start(work, channel, path, mode, user, false);
}

void channel_put_tree(struct channel *channel, const char *host_dir, const char *path,
                      const char *user, sandbox_done on_done, void *context)
{
    struct file_work *work = work_new(WIRE_PUT_TREE, context);
    work->on_done = on_done;
    OWN(fd) int dir = open(host_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir < 0)
        err_errno(&work->err, "directory '%s'", host_dir);
    else
        work->reader = wire_tree_reader_new(dir, &work->err);
    work_start(work, channel, path, 0, user, false);
}

void channel_get(struct channel *channel, const char *path, size_t bytes_max,
                 void (*on_done)(void *context, struct str content, const struct err *err),
                 void *context)
{
    struct file_work *work = work_new(WIRE_GET, context);
    work->on_content = on_done;
    work->bytes_max = bytes_max;
    work_start(work, channel, path, 0, NULL, true);
}

void channel_get_fd(struct channel *channel, const char *path, int fd, uint64_t bytes_max,
                    sandbox_done on_done, void *context)
{
    struct file_work *work = work_new(WIRE_GET, context);
    work->on_done = on_done;
    work->bytes_max = bytes_max;
    take_fd(work, fd);
    work_start(work, channel, path, 0, NULL, true);
}

void channel_get_tree(struct channel *channel, const char *path, const char *host_dir,
                      const struct sandbox_budget *budget, sandbox_done on_done, void *context)
{
    struct file_work *work = work_new(WIRE_GET_TREE, context);
    struct wire_tree_limits limits = {
        .bytes_max = budget && budget->bytes_max ? budget->bytes_max : TREE_BYTES_MAX,
        .entries_max = budget && budget->entries_max ? budget->entries_max : TREE_ENTRIES_MAX,
    };
    work->on_done = on_done;
    if (file_make_dirs(host_dir, 0755, &work->err) == 0) {
        OWN(fd) int dir = open(host_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (dir < 0)
            err_errno(&work->err, "directory '%s'", host_dir);
        else
            work->writer = wire_tree_writer_new(dir, &limits, &work->err);
    }
    work_start(work, channel, path, 0, NULL, true);
}

void channel_stat(struct channel *channel, const char *path,
                  void (*on_done)(void *context, const struct sandbox_stat *stat,
                                  const struct err *err),
                  void *context)
{
    struct file_work *work = work_new(WIRE_STAT, context);
    work->on_stat = on_done;
    work_start(work, channel, path, 0, NULL, true);
}

void channel_remove(struct channel *channel, const char *path, sandbox_done on_done, void *context)
{
    struct file_work *work = work_new(WIRE_REMOVE, context);
    work->on_done = on_done;
    work_start(work, channel, path, 0, NULL, true);
}
