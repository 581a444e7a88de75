/* files.c - GET /v1/rollouts/{id}/files/...: what a rollout's folder holds.
 *
 * The folder is ours, but what lies in its artifacts was written by an agent: the kernel resolves
 * the path below the folder and follows no link (openat2, RESOLVE_BENEATH and RESOLVE_NO_SYMLINKS).
 * A file is sent as fast as it is read; a directory is a list. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "api/inner.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/mem.h"
#include "http/http.h"
#include "loop/loop.h"
#include "store/store.h"

#define PIECE_BYTES ((size_t)64 << 10)
#define HIGH_BYTES ((size_t)512 << 10)
#define LOW_BYTES ((size_t)128 << 10)
#define ENTRIES_MAX 10000

/* ---------------------------------------------------------------- a file */
struct sending {
    struct http_exchange *exchange;
    int fd;
    off_t at, size;
};

static void sending_free(struct sending *sending)
{
    fd_close(&sending->fd);
    free(sending);
}

/* The length was promised: what cannot be read any more is a reset, never a short file. */
static void go_on(void *context)
{
    struct sending *sending = context;
    char piece[PIECE_BYTES];
    while (sending->at < sending->size) {
        size_t want = (size_t)(sending->size - sending->at);
        ssize_t got =
            pread(sending->fd, piece, want < sizeof piece ? want : sizeof piece, sending->at);
        if (got <= 0) {
            http_exchange_reset(sending->exchange);
            sending_free(sending);
            return;
        }
        sending->at += got;
        if (http_respond_write(sending->exchange, str_make(piece, (size_t)got)) > HIGH_BYTES)
            return; /* on_drain goes on */
    }
    http_respond_end(sending->exchange);
    sending_free(sending);
}

static void on_gone(void *context)
{
    sending_free(context);
}

static const char *type_of(const char *path)
{
    static const struct {
        const char *ending, *type;
    } types[] = {{".json", "application/json"},
                 {".jsonl", "application/x-ndjson"},
                 {".log", "text/plain; charset=utf-8"},
                 {".txt", "text/plain; charset=utf-8"}};
    for (size_t i = 0; i < COUNT(types); i++)
        if (str_ends(str_of(path), str_of(types[i].ending)))
            return types[i].type;
    return "application/octet-stream";
}

static void send_file(struct http_exchange *exchange, int fd, off_t size, const char *path)
{
    /* An agent may have written it: whatever it is, it is not to be run by a browser. */
    struct http_header headers[] = {
        {STR("content-type"), str_of(type_of(path))},
        {STR("x-content-type-options"), STR("nosniff")},
        {STR("content-security-policy"), STR("sandbox; default-src 'none'")},
    };
    struct sending *sending = mem_zero(sizeof *sending);
    *sending = (struct sending){.exchange = exchange, .fd = fd, .size = size};
    http_respond_begin(exchange, 200, headers, COUNT(headers));
    http_exchange_notify(exchange, LOW_BYTES, go_on, on_gone, sending);
    go_on(sending);
}

/* ---------------------------------------------------------------- a directory */
static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static const char *type_name(mode_t mode)
{
    return S_ISREG(mode) ? "file" : S_ISDIR(mode) ? "directory" : S_ISLNK(mode) ? "link" : "other";
}

static void list_folder(struct http_exchange *exchange, int fd, const char *path)
{
    OWN(buf) struct buf body = {0};
    struct json_writer out = {.out = &body};
    char **names = NULL;
    size_t count = 0;
    DIR *folder = fdopendir(fd);
    for (struct dirent *entry; folder && count < ENTRIES_MAX && (entry = readdir(folder));) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        names = mem_grow(names, (count + 1) * sizeof *names);
        names[count++] = mem_dup(entry->d_name);
    }
    if (count)
        qsort(names, count, sizeof *names, by_name);
    json_begin_object(&out);
    json_set_text(&out, "path", path);
    json_key(&out, "files");
    json_begin_array(&out);
    for (size_t i = 0; i < count; i++) {
        struct stat status;
        if (fstatat(dirfd(folder), names[i], &status, AT_SYMLINK_NOFOLLOW) == 0) {
            json_begin_object(&out);
            json_set_text(&out, "name", names[i]);
            json_set_text(&out, "type", type_name(status.st_mode));
            json_set_int(&out, "size", (long long)status.st_size);
            json_set_int(&out, "modified_ms",
                         (long long)status.st_mtim.tv_sec * 1000 +
                             status.st_mtim.tv_nsec / 1000000);
            json_end_object(&out);
        }
        free(names[i]);
    }
    free(names);
    json_end_array(&out);
    json_end_object(&out);
    if (folder)
        (void)closedir(folder);
    http_respond_json(exchange, 200, buf_str(&body));
}

/* ---------------------------------------------------------------- finding it */
static bool keep_dir(void *context, const struct store_rollout *row)
{
    *(char **)context = mem_dup(row->dir);
    return false;
}

static char *find_dir(struct api *api, const char *name, struct err *err)
{
    struct rollout_view view;
    char *dir = NULL;
    if (api->rollouts && rollouts_view(api->rollouts, name, &view))
        return mem_dup(view.dir);
    if (store_get_rollout(api->store, name, keep_dir, &dir, err) < 0)
        return NULL;
    if (!dir)
        err_set(err, ERR_NOT_FOUND, "rollout '%s' has no folder", name);
    return dir;
}

static int open_below(const char *dir, const char *path, struct err *err)
{
    struct open_how how = {.flags = O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK,
                           .resolve =
                               RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS};
    OWN(fd) int root = open(dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (root < 0)
        return err_set(err, ERR_NOT_FOUND, "the folder of the rollout is gone");
    int fd = (int)syscall(SYS_openat2, root, path[0] ? path : ".", &how, sizeof how);
    if (fd >= 0)
        return fd;
    return err_set(err, ERR_NOT_FOUND, "there is no file '%.200s' in the rollout's folder", path);
}

void api_answer_files(struct api *api, struct http_exchange *exchange, struct str name)
{
    OWN(arena) struct arena arena = {0};
    OWN(buf) struct buf decoded = {0};
    struct err err = {0};
    struct stat status;
    const char *id = api_name(exchange, name, &arena);
    if (!id)
        return;
    struct str path = str_from(http_exchange_path(exchange),
                               sizeof "/v1/rollouts/" - 1 + name.size + sizeof "/files" - 1);
    if (path.size && path.data[0] == '/')
        path = str_from(path, 1);
    if (!http_percent_decode(path, &decoded) || decoded.size > 4096 ||
        memchr(decoded.data ? decoded.data : "", 0, decoded.size)) {
        err_set(&err, ERR_NOT_FOUND, "there is no such file in the rollout's folder");
        api_answer_error(exchange, &err);
        return;
    }
    OWN(mem) char *dir = find_dir(api, id, &err);
    int fd = dir ? open_below(dir, buf_text(&decoded), &err) : -1;
    if (fd >= 0 &&
        (fstat(fd, &status) < 0 || !(S_ISREG(status.st_mode) || S_ISDIR(status.st_mode)))) {
        fd_close(&fd);
        err_set(&err, ERR_NOT_FOUND, "there is no ordinary file '%.200s' in the rollout's folder",
                buf_text(&decoded));
    }
    if (fd < 0)
        api_answer_error(exchange, &err);
    else if (S_ISDIR(status.st_mode))
        list_folder(exchange, fd, buf_text(&decoded));
    else
        send_file(exchange, fd, status.st_size, buf_text(&decoded));
}
