/* samples.c - the rows of a rollout, or of all rollouts of a group that are over: JSON lines, or
 * the binary form of docs/samples.md.
 *
 * Files are read and converted by a worker, piece by piece, and sent as fast as the peer takes
 * them; the control loop only passes pieces on. Lines cost one piece of memory however long the
 * files are. The binary form has its table in front, so it is made whole first, with a maximum.
 *
 *     read (worker) -> send -> wait for the peer -> read ... -> end */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/inner.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/file.h"
#include "base/id.h"
#include "base/mem.h"
#include "http/http.h"
#include "json/json.h"
#include "loop/loop.h"
#include "store/store.h"
#include "trace/sample.h"

#define PIECE_BYTES (256u << 10)
#define QUEUED_BYTES_MAX (1u << 20) /* towards the peer, before it has to take some */
#define LINE_BYTES_MAX ((size_t)512 << 20)
#define BINARY_BYTES_MAX ((size_t)1 << 30)
#define ROLLOUTS_MAX 4096
#define NAME_MAX_BYTES 128

struct sending {
    struct loop *loop;
    struct http_exchange *exchange; /* NULL: the peer went away */
    char **paths;                   /* of samples.jsonl; those that are missing have no rows */
    size_t path_count, path_at;
    int fd; /* of the file that is being read; -1: none */
    bool binary, begun, over, working;
    struct buf piece;
    struct sample_binary made;
    size_t made_sent;
    struct err err;
};

static void sending_free(struct sending *sending)
{
    for (size_t i = 0; i < sending->path_count; i++)
        free(sending->paths[i]);
    free(sending->paths);
    fd_close(&sending->fd);
    buf_deinit(&sending->piece);
    sample_binary_deinit(&sending->made);
    free(sending);
}

/* ---------------------------------------------------------------- on a worker */

/* The next file that is there. 1: open; 0: no more. */
static int open_next(struct sending *sending)
{
    while (sending->path_at < sending->path_count) {
        const char *path = sending->paths[sending->path_at++];
        sending->fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
        if (sending->fd >= 0)
            return 1;
        if (errno != ENOENT)
            return err_errno(&sending->err, "the samples of a rollout");
    }
    return 0;
}

static ssize_t read_some(struct sending *sending)
{
    for (;;) {
        ssize_t got = read(sending->fd, buf_reserve(&sending->piece, PIECE_BYTES), PIECE_BYTES);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return err_errno(&sending->err, "the samples of a rollout");
        buf_added(&sending->piece, (size_t)got);
        return got;
    }
}

static void read_piece(struct sending *sending)
{
    while (!sending->piece.size && !sending->over && sending->err.kind == ERR_NONE) {
        if (sending->fd < 0) {
            sending->over = open_next(sending) == 0;
            continue;
        }
        if (read_some(sending) == 0)
            fd_close(&sending->fd);
    }
}

static int convert_lines(struct sending *sending, bool end)
{
    struct str rest = buf_str(&sending->piece);
    size_t used = 0;
    while (rest.size) {
        const char *stop = memchr(rest.data, '\n', rest.size);
        if (!stop && !end)
            break;
        size_t size = stop ? (size_t)(stop - rest.data) : rest.size;
        struct str line = str_upto(rest, size);
        if (str_trim(line).size && sample_binary_add(&sending->made, line, &sending->err) < 0)
            return -1;
        rest = str_from(rest, size + 1);
        used += size + (stop != NULL);
    }
    buf_consume(&sending->piece, used);
    if (sending->made.records.size + sending->piece.size > BINARY_BYTES_MAX)
        return err_set(&sending->err, ERR_LIMIT,
                       "these samples are larger than %zu bytes in one file: ask for fewer "
                       "rollouts, or for lines",
                       BINARY_BYTES_MAX);
    return 0;
}

static void make_binary(struct sending *sending)
{
    while (open_next(sending) == 1) {
        ssize_t got;
        buf_clear(&sending->piece);
        while ((got = read_some(sending)) > 0)
            if (convert_lines(sending, false) < 0)
                return;
        if (got < 0 || convert_lines(sending, true) < 0)
            return;
        fd_close(&sending->fd);
    }
    buf_clear(&sending->piece);
    sample_binary_head(&sending->made, &sending->piece);
}

static void work(void *argument)
{
    struct sending *sending = argument;
    if (sending->binary)
        make_binary(sending);
    else
        read_piece(sending);
}

/* ---------------------------------------------------------------- on the loop */

static void go_on(struct sending *sending);

static void on_gone(void *context)
{
    struct sending *sending = context;
    sending->exchange = NULL;
    if (!sending->working)
        sending_free(sending);
}

static void on_drain(void *context)
{
    struct sending *sending = context;
    if (!sending->working)
        go_on(sending);
}

static void begin(struct sending *sending)
{
    static const struct http_header lines = {{"content-type", 12}, {"application/x-ndjson", 20}};
    static const struct http_header binary = {{"content-type", 12},
                                              {"application/vnd.postern.samples", 31}};
    if (sending->begun)
        return;
    sending->begun = true;
    http_respond_begin(sending->exchange, 200, sending->binary ? &binary : &lines, 1);
}

/* Bytes that are queued towards the peer. */
static size_t send_binary(struct sending *sending)
{
    struct str records = buf_str(&sending->made.records);
    struct str next = str_upto(str_from(records, sending->made_sent), PIECE_BYTES);
    sending->made_sent += next.size;
    sending->over = sending->made_sent == records.size;
    return http_respond_write(sending->exchange, next);
}

static void on_worked(void *argument)
{
    struct sending *sending = argument;
    sending->working = false;
    if (!sending->exchange) {
        sending_free(sending);
        return;
    }
    if (sending->err.kind != ERR_NONE) {
        struct http_exchange *exchange = sending->exchange;
        if (sending->begun)
            http_exchange_reset(exchange);
        else
            api_answer_error(exchange, &sending->err);
        sending_free(sending);
        return;
    }
    begin(sending);
    if (sending->piece.size)
        (void)http_respond_write(sending->exchange, buf_str(&sending->piece));
    buf_clear(&sending->piece);
    if (sending->binary)
        sending->over = sending->made.records.size == 0;
    go_on(sending);
}

static void go_on(struct sending *sending)
{
    while (sending->begun && !sending->over) {
        if (http_respond_queued(sending->exchange) > QUEUED_BYTES_MAX)
            return; /* on_drain comes */
        if (!sending->binary)
            break;
        (void)send_binary(sending);
    }
    if (sending->over) {
        http_respond_end(sending->exchange);
        sending_free(sending);
        return;
    }
    sending->working = true;
    loop_work(sending->loop, work, on_worked, sending);
}

/* ---------------------------------------------------------------- which rollouts */

struct found {
    const struct api *api;
    struct sending *sending;
    size_t capacity;
    char *unfinished; /* the id of one that is not over */
    bool all;         /* those that are not over are passed over */
};

static bool add_folder(struct found *found, const char *id, const char *dir)
{
    OWN(mem)
    char *own = dir && dir[0] ? mem_dup(dir) : mem_format("%s/rollouts/%s", found->api->home, id);
    OWN(mem) char *result = mem_format("%s/result.json", own);
    struct sending *sending = found->sending;
    if (!file_exists(result)) {
        if (!found->all && !found->unfinished)
            found->unfinished = mem_dup(id);
        return true;
    }
    if (sending->path_count == found->capacity) {
        found->capacity = found->capacity ? found->capacity * 2 : 8;
        sending->paths = mem_grow(sending->paths, found->capacity * sizeof *sending->paths);
    }
    sending->paths[sending->path_count++] = mem_format("%s/samples.jsonl", own);
    return sending->path_count < ROLLOUTS_MAX;
}

static bool add_row(void *context, const struct store_rollout *row)
{
    return add_folder(context, row->id, row->dir);
}

/* A rollout that is too young for the index is known to the manager; the id it says is ours. */
static int find_live(struct found *found, const char *id, struct err *err)
{
    const struct api *api = found->api;
    OWN(buf) struct buf text = {0};
    OWN(json_doc) struct json_doc doc = {0};
    OWN(arena) struct arena arena = {0};
    struct json_writer out = {.out = &text};
    if (!api->write_live || !api->write_live(api->context, id, &out) ||
        json_read(&doc, buf_str(&text), NULL, NULL) < 0)
        return -1;
    const char *own = arena_text(&arena, json_str(json_get(json_root(&doc), "id"), &arena));
    if (!own || !own[0] || strchr(own, '/'))
        return -1;
    err->kind = ERR_NONE;
    (void)add_folder(found, own, NULL);
    return 0;
}

static bool read_format(struct http_exchange *exchange, bool *binary, struct err *err)
{
    OWN(buf) struct buf value = {0};
    *binary = false;
    if (!http_query_get(http_exchange_query(exchange), "format", &value))
        return true;
    *binary = str_is(buf_str(&value), "binary");
    if (*binary || str_is(buf_str(&value), "jsonl"))
        return true;
    err_set(err, ERR_INPUT, "'format' is jsonl or binary");
    (void)err_at(err, "format");
    return false;
}

static bool read_name(struct str name, struct buf *out, struct err *err)
{
    if (http_percent_decode(name, out) && out->size && out->size <= NAME_MAX_BYTES &&
        !memchr(out->data, 0, out->size))
        return true;
    err_set(err, ERR_NOT_FOUND, "there is no such name");
    return false;
}

static struct sending *sending_new(struct api *api, struct http_exchange *exchange, bool binary)
{
    struct sending *sending = mem_zero(sizeof *sending);
    sending->loop = api->loop;
    sending->exchange = exchange;
    sending->binary = binary;
    sending->fd = -1;
    return sending;
}

static void start(struct sending *sending)
{
    http_exchange_notify(sending->exchange, QUEUED_BYTES_MAX / 2, on_drain, on_gone, sending);
    go_on(sending);
}

void api_answer_samples(struct api *api, struct http_exchange *exchange, struct str name)
{
    OWN(buf) struct buf id = {0};
    struct err err = {0};
    bool binary;
    if (!read_format(exchange, &binary, &err) || !read_name(name, &id, &err)) {
        api_answer_error(exchange, &err);
        return;
    }
    struct sending *sending = sending_new(api, exchange, binary);
    struct found found = {.api = api, .sending = sending};
    if (store_get_rollout(api->store, buf_text(&id), add_row, &found, &err) < 0)
        (void)find_live(&found, buf_text(&id), &err);
    if (found.unfinished)
        err_set(&err, ERR_CONFLICT, "rollout %s is not over; its samples come with its result",
                found.unfinished);
    free(found.unfinished);
    if (err.kind != ERR_NONE) {
        api_answer_error(exchange, &err);
        sending_free(sending);
        return;
    }
    start(sending);
}

/* ---------------------------------------------------------------- of a group */

struct page {
    struct found *found;
    char last[ID_MAX * 2];
    size_t count;
    bool full;
};

static bool add_member(void *context, const struct store_rollout *row)
{
    struct page *page = context;
    page->count++;
    snprintf(page->last, sizeof page->last, "%s", row->id);
    page->full = !add_folder(page->found, row->id, row->dir);
    return !page->full;
}

static bool note_group(void *context, const struct store_group *row)
{
    (void)row;
    *(bool *)context = true;
    return false;
}

/* The oldest first, page by page. */
static int find_members(struct api *api, const char *id, struct found *found, struct err *err)
{
    struct page page = {.found = found};
    struct store_query query = {.group = id, .limit = API_PAGE_MAX, .oldest_first = true};
    bool known = false;
    do {
        page.count = 0;
        if (store_list_rollouts(api->store, &query, add_member, &page, err) < 0)
            return -1;
        known |= page.count > 0;
        query.after = page.last;
    } while (page.count == query.limit && !page.full);
    if (page.full)
        return err_set(err, ERR_LIMIT,
                       "group '%s' has more than %d rollouts: ask for them one by one", id,
                       ROLLOUTS_MAX);
    query = (struct store_query){.group = id, .limit = 1};
    if (!known && store_list_groups(api->store, &query, note_group, &known, err) < 0)
        return -1;
    return known ? 0 : err_set(err, ERR_NOT_FOUND, "there is no group '%s'", id);
}

/* Those of its rollouts that are over; the others are passed over. */
void api_answer_group_samples(struct api *api, struct http_exchange *exchange, struct str name)
{
    OWN(buf) struct buf id = {0};
    struct err err = {0};
    bool binary;
    if (!read_format(exchange, &binary, &err) || !read_name(name, &id, &err)) {
        api_answer_error(exchange, &err);
        return;
    }
    struct sending *sending = sending_new(api, exchange, binary);
    struct found found = {.api = api, .sending = sending, .all = true};
    if (find_members(api, buf_text(&id), &found, &err) < 0) {
        api_answer_error(exchange, &err);
        sending_free(sending);
        return;
    }
    start(sending);
}
