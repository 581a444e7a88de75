/* source.c - sets of tasks, one at a time: a file of lines, a selection of it, a directory of task
 * directories, or just one.
 *
 *     data.jsonl            every line         data.jsonl#a-name     the task of that id
 *     data.jsonl#3          the fourth line    data.jsonl#10-19      ten of them
 *     dir/                  each directory below that has a task.toml, by name
 *
 * Lines are read with one buffer of the size of the longest: a file of any size takes no more than
 * that, whichever of its lines are asked for. Blank lines do not count. */
#include <dirent.h>
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
#include "json/json.h"
#include "task/internal.h"

#define DIRS_MAX 1000000
#define READ_BYTES 65536

struct task_source {
    char *what;            /* for errors */
    int lines;             /* -1: none */
    struct buf pending;    /* read, not yet used */
    size_t searched, used; /* of it: known to have no line end; the line handed out */
    bool ended;
    size_t number, index; /* of the line in the file; among those that count */
    bool host_env;
    /* a selection */
    char *id;
    size_t first, last; /* both included */
    bool found;
    /* or tasks that are there already, or directories */
    struct task *only;
    char **dirs;
    size_t dir_count, dir_at;
};

void task_source_close(struct task_source *source)
{
    if (!source)
        return;
    fd_close(&source->lines);
    buf_deinit(&source->pending);
    for (size_t i = 0; i < source->dir_count; i++)
        free(source->dirs[i]);
    task_unref(source->only);
    free(source->dirs);
    free(source->id);
    free(source->what);
    free(source);
}

/* ---------------------------------------------------------------- what is asked for */
static int select_lines(struct task_source *source, const char *selection, struct err *err)
{
    long long first, last;
    struct str rest = str_of(selection), low = str_cut(&rest, '-');
    source->last = SIZE_MAX;
    if (!selection[0])
        return err_set(err, ERR_INPUT, "'%s': after '#' comes an id, a number or a range",
                       source->what);
    if (str_to_long(low, &first) && first >= 0 &&
        (!rest.data || (str_to_long(rest, &last) && last >= first))) {
        source->first = (size_t)first;
        source->last = rest.data ? (size_t)last : source->first;
        return 0;
    }
    source->id = mem_dup(selection);
    return 0;
}

static int open_lines(struct task_source *source, const char *path, const char *selection,
                      struct err *err)
{
    source->lines = open(path, O_RDONLY | O_CLOEXEC);
    if (source->lines < 0)
        return err_errno(err, "task '%s'", path);
    source->host_env = true;
    source->last = SIZE_MAX;
    return selection ? select_lines(source, selection, err) : 0;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static int open_dirs(struct task_source *source, const char *dir, struct err *err)
{
    DIR *entries = opendir(dir);
    size_t room = 0;
    if (!entries)
        return err_errno(err, "task '%s'", dir);
    for (struct dirent *entry; (entry = readdir(entries));) {
        char *path = mem_format("%s/%s", dir, entry->d_name);
        if (entry->d_name[0] == '.' || !task_is_dir(path) || source->dir_count == DIRS_MAX) {
            free(path);
            continue;
        }
        if (source->dir_count == room) {
            room = room ? room * 2 : 16;
            source->dirs = mem_grow(source->dirs, room * sizeof *source->dirs);
        }
        source->dirs[source->dir_count++] = path;
    }
    closedir(entries);
    if (!source->dir_count)
        return err_set(err, ERR_INPUT,
                       "'%s' is not a task: it has no task.toml, nor has a directory in it", dir);
    qsort(source->dirs, source->dir_count, sizeof *source->dirs, by_name);
    return 0;
}

static int keep_only(struct task_source *source, struct task *task)
{
    source->only = task;
    return task ? 0 : -1;
}

/* One JSON value over many lines, or one per line: the first line decides. */
static int open_text(struct task_source *source, struct str text, const char *name, bool host_env,
                     struct err *err)
{
    OWN(json_doc) struct json_doc doc = {0};
    struct str rest = str_trim(text), probe = rest;
    struct str first = str_trim(str_cut(&probe, '\n'));
    source->host_env = host_env;
    if (probe.data && first.size && json_read(&doc, first, NULL, NULL) == 0) {
        buf_str_append(&source->pending, text); /* no more to read */
        source->ended = true;
        source->last = SIZE_MAX;
        return 0;
    }
    struct task *task = task_from_json(rest, name, err);
    if (task)
        task->host_env = host_env;
    return keep_only(source, task);
}

static int read_stdin(struct buf *out, struct err *err)
{
    for (;;) {
        ssize_t got = read(STDIN_FILENO, buf_reserve(out, 65536), 65536);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return err_errno(err, "reading the task from standard input");
        if (got == 0)
            return 0;
        buf_added(out, (size_t)got);
        if (out->size > TASK_BYTES_MAX)
            return err_set(err, ERR_LIMIT, "more than %u bytes of tasks on standard input",
                           TASK_BYTES_MAX);
    }
}

static int open_path(struct task_source *source, const char *what, struct err *err)
{
    struct stat info;
    const char *hash = strrchr(what, '#');
    if (stat(what, &info) < 0) {
        OWN(mem) char *path = hash ? str_dup(str_upto(str_of(what), (size_t)(hash - what))) : NULL;
        if (!path || stat(path, &info) < 0 || !S_ISREG(info.st_mode))
            return err_errno(err, "task '%s'", what);
        return open_lines(source, path, hash + 1, err);
    }
    if (S_ISDIR(info.st_mode))
        return task_is_dir(what) ? keep_only(source, task_from_dir(what, err))
                                 : open_dirs(source, what, err);
    if (str_ends(str_of(what), STR(".toml")))
        return keep_only(source, task_from_toml(what, err));
    if (str_ends(str_of(what), STR(".jsonl")))
        return open_lines(source, what, NULL, err);
    OWN(buf) struct buf text = {0};
    if (file_read(what, TASK_BYTES_MAX, &text, err) < 0)
        return -1;
    return open_text(source, buf_str(&text), what, true, err);
}

static int open_source(struct task_source *source, const char *what, struct err *err)
{
    if (strcmp(what, "-") == 0) {
        OWN(buf) struct buf text = {0};
        if (read_stdin(&text, err) < 0)
            return -1;
        return open_text(source, buf_str(&text), "standard input", true, err);
    }
    if (what[0] == '{')
        return open_text(source, str_of(what), "inline task", true, err);
    return open_path(source, what, err);
}

struct task_source *task_source_open(const char *what, struct err *err)
{
    struct task_source *source = mem_zero(sizeof *source);
    source->lines = -1;
    source->what = mem_dup(strcmp(what, "-") == 0 ? "standard input"
                           : what[0] == '{'       ? "inline task"
                                                  : what);
    if (open_source(source, what, err) == 0)
        return source;
    task_source_close(source);
    return NULL;
}

/* ---------------------------------------------------------------- one after the other */
/* Is this the line of that id? Looked at before the whole of it is understood. */
static bool has_id(struct str line, const char *id)
{
    OWN(json_doc) struct json_doc doc = {0};
    OWN(arena) struct arena arena = {.bytes_max = 1 << 20};
    struct json_limits limits = {.depth_max = 32, .nodes_max = 1u << 20};
    if (str_find(line, str_of(id)) < 0 || json_read(&doc, line, &limits, NULL) < 0)
        return false;
    struct json root = json_root(&doc);
    return str_is(json_str(json_get(root, "id"), &arena), id) ||
           str_is(json_str(json_get(root, "name"), &arena), id);
}

/* One line into *line; it is good until the next. 1, or 0: no more. */
static int read_line(struct task_source *source, struct str *line, struct err *err)
{
    struct buf *pending = &source->pending;
    buf_consume(pending, source->used);
    source->used = 0;
    for (source->searched = 0;;) {
        struct str all = buf_str(pending);
        long end = str_find_byte(str_from(all, source->searched), '\n');
        if (end >= 0 || (source->ended && all.size)) {
            size_t size = end >= 0 ? source->searched + (size_t)end : all.size;
            source->used = end >= 0 ? size + 1 : size;
            *line = str_upto(all, size);
            return 1;
        }
        if (source->ended)
            return 0;
        source->searched = all.size;
        if (all.size > TASK_BYTES_MAX)
            return err_set(err, ERR_LIMIT, "%s:%zu: a line of more than %u bytes", source->what,
                           source->number + 1, TASK_BYTES_MAX);
        ssize_t got = read(source->lines, buf_reserve(pending, READ_BYTES), READ_BYTES);
        if (got < 0 && errno != EINTR)
            return err_errno(err, "'%s'", source->what);
        if (got == 0)
            source->ended = true;
        if (got > 0)
            buf_added(pending, (size_t)got);
    }
}

/* Of those that are not blank. */
static int next_line(struct task_source *source, struct str *line, struct err *err)
{
    for (int more; (more = read_line(source, line, err)) != 0;) {
        if (more < 0)
            return -1;
        source->number++;
        *line = str_trim(*line);
        if (line->size)
            return 1;
    }
    return 0;
}

static struct task *task_of_line(struct task_source *source, struct str line, struct err *err)
{
    OWN(mem)
    char *where =
        mem_format("%.*s:%zu", (int)strcspn(source->what, "#"), source->what, source->number);
    struct task *task = task_from_json(line, where, err);
    if (!task)
        return NULL;
    task->host_env = source->host_env;
    if (strcmp(task->name, "inline") == 0)
        task->name = arena_format(&task->arena, "line-%zu", source->number);
    return task;
}

static struct task *next_of_lines(struct task_source *source, struct err *err)
{
    struct str line;
    int more = 0;
    while (!(source->id && source->found) && source->index <= source->last &&
           (more = next_line(source, &line, err)) == 1) {
        size_t index = source->index++;
        if (source->id ? !has_id(line, source->id) : index < source->first)
            continue;
        source->found = true;
        return task_of_line(source, line, err);
    }
    if (more == 0 && !source->found && source->id)
        err_set(err, ERR_NOT_FOUND, "'%s': no task has the id '%s'", source->what, source->id);
    else if (more == 0 && !source->found && source->first)
        err_set(err, ERR_NOT_FOUND, "'%s': there are only %zu tasks", source->what, source->index);
    return NULL;
}

struct task *task_source_next(struct task_source *source, struct err *err)
{
    if (source->only)
        return TAKE(source->only);
    if (source->lines >= 0 || source->ended)
        return next_of_lines(source, err);
    if (source->dir_at < source->dir_count)
        return task_from_dir(source->dirs[source->dir_at++], err);
    return NULL;
}

int task_load(const char *what, struct task ***tasks, size_t *count, struct err *err)
{
    OWN(task_source) struct task_source *source = task_source_open(what, err);
    struct task **list = NULL;
    size_t used = 0, room = 0;
    struct err why = {0};
    if (!source)
        return -1;
    for (struct task *task; (task = task_source_next(source, &why));) {
        if (used == room) {
            room = room ? room * 2 : 8;
            list = mem_grow(list, room * sizeof *list);
        }
        list[used++] = task;
    }
    if (why.kind != ERR_NONE || !used) {
        task_list_free(list, used);
        return why.kind != ERR_NONE ? err_copy(err, &why)
                                    : err_set(err, ERR_INPUT, "'%s' holds no task", what);
    }
    *tasks = list;
    *count = used;
    return 0;
}
