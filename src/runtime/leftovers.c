/* leftovers.c - what a killed predecessor left, found and cleared at start.
 *
 * Several processes may share a home, so "not finished" alone does not mean dead. Each process
 * holds a lock on <home>/owners/<its id> while it lives, and each unfinished rollout's folder
 * (before its start: what is kept of its request) names its owner. A rollout whose owner's lock can
 * be taken has nobody left: `serve` goes on with it where it can (resume.c), else it comes back as
 * infra_failed, once. The sandboxes such a process left at the keeper and that nobody goes on with
 * are destroyed; the keeper knows which have no server. */
#include "runtime/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "json/json.h"

#define TURN_MS_MAX 60000

#define LIVE_BYTES_MAX ((size_t)64 << 20)

static void note(struct machine *machine, const char *text)
{
    LOG_INFO("runtime", NULL, "%s", text);
    if (machine->on_note)
        machine->on_note(machine->context, text);
}

/* `text` has a place for the plural's letter. */
__attribute__((format(printf, 3, 0))) static void note_count(struct machine *machine, size_t count,
                                                             const char *text)
{
    char what[128], line[160];
    if (!count)
        return;
    snprintf(what, sizeof what, text, count == 1 ? "" : "s");
    snprintf(line, sizeof line, "%zu %s", count, what);
    note(machine, line);
}

/* ---------------------------------------------------------------- owners */
/* False when somebody holds the lock. A file that is gone belongs to nobody. */
static bool owner_is_dead(const char *home, const char *dir);

static bool is_dead(const char *home, const char *owner)
{
    if (!owner[0] || strchr(owner, '/'))
        return true;
    OWN(mem) char *path = mem_format("%s/owners/%s", home, owner);
    OWN(fd) int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return errno == ENOENT;
    if (flock(fd, LOCK_EX | LOCK_NB) < 0)
        return false;
    (void)unlink(path);
    return true;
}

int leftovers_own(struct machine *machine, struct err *err)
{
    OWN(mem) char *dir = mem_format("%s/owners", machine->config->home);
    if (file_make_dirs(dir, 0755, err) < 0)
        return -1;
    id_make(machine->owner, "p");
    char *path = mem_format("%s/%s", dir, machine->owner);
    machine->owner_fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (machine->owner_fd < 0) {
        err_errno(err, "'%s'", path);
        free(path);
        return -1;
    }
    machine->owner_path = path;
    if (flock(machine->owner_fd, LOCK_EX | LOCK_NB) < 0)
        return err_errno(err, "locking '%s'", path);
    return 0;
}

/* ---------------------------------------------------------------- rollouts */
struct dead {
    char *id, *run, *group, *task, *agent, *model, *mode, *backend, *stage, *dir;
    char *key, *key_hash, *callback;
    uint32_t index;
    uint64_t queued_ms, started_ms;
};
struct dead_list {
    struct machine *machine;
    const struct map *forgotten;
    struct dead *rows;
    size_t count, room;
    char last[ID_MAX]; /* that was looked at */
    size_t seen;
};

static void dead_free(struct dead *row)
{
    char *texts[] = {row->id,    row->run,      row->group,   row->task,  row->agent,
                     row->model, row->mode,     row->backend, row->stage, row->dir,
                     row->key,   row->key_hash, row->callback};
    for (size_t i = 0; i < COUNT(texts); i++)
        free(texts[i]);
}

bool leftovers_is_dead(const char *home, const char *id)
{
    OWN(mem) char *dir = mem_format("%s/rollouts/%s", home, id);
    OWN(mem) char *owner = mem_format("%s/owner", dir);
    OWN(mem) char *live = mem_format("%s/live/%s.json", home, id);
    OWN(buf) struct buf text = {0};
    OWN(json_doc) struct json_doc doc = {0};
    OWN(arena) struct arena arena = {0};
    /* Before its start it has no folder: then the request says whose it is. */
    if (file_exists(owner) || file_read(live, LIVE_BYTES_MAX, &text, NULL) < 0 ||
        json_read(&doc, buf_str(&text), NULL, NULL) < 0)
        return owner_is_dead(home, dir);
    return is_dead(home, arena_text(&arena, json_str(json_get(json_root(&doc), "owner"), &arena)));
}

static bool owner_is_dead(const char *home, const char *dir)
{
    OWN(mem) char *path = mem_format("%s/owner", dir);
    OWN(buf) struct buf owner = {0};
    if (file_read(path, ID_MAX, &owner, NULL) < 0)
        return true;
    return is_dead(home, buf_text(&owner));
}

static bool on_row(void *context, const struct store_rollout *row)
{
    struct dead_list *list = context;
    list->seen++;
    snprintf(list->last, sizeof list->last, "%s", row->id);
    if (row->fate || !row->dir || map_get(list->forgotten, str_of(row->id)) ||
        leftovers_is_live(list->machine, row->id) ||
        !owner_is_dead(list->machine->config->home, row->dir))
        return true; /* what is live is gone on with, by us or by the next server */
    if (list->count == list->room) {
        list->room = list->room ? list->room * 2 : 16;
        list->rows = mem_grow(list->rows, list->room * sizeof *list->rows);
    }
    list->rows[list->count++] = (struct dead){
        .id = mem_dup(row->id),
        .run = mem_dup(row->run),
        .group = mem_dup(row->group),
        .task = mem_dup(row->task),
        .agent = mem_dup(row->agent),
        .model = mem_dup(row->model),
        .mode = mem_dup(row->mode),
        .backend = mem_dup(row->backend),
        .stage = mem_dup(row->stage),
        .dir = mem_dup(row->dir),
        .key = mem_dup(row->key),
        .key_hash = mem_dup(row->key_hash),
        .callback = mem_dup(row->callback),
        .index = row->index,
        .queued_ms = row->queued_ms,
        .started_ms = row->started_ms,
    };
    return true;
}

#define CAUSE "the server that ran it died"
#define RESULT_BYTES_MAX (64u << 20)

static void write_result(const struct dead *row, const char *cause)
{
    OWN(mem) char *path = mem_format("%s/result.json", row->dir);
    OWN(buf) struct buf text = {0};
    struct json_writer out = {.out = &text};
    json_begin_object(&out);
    json_set_text(&out, "id", row->id);
    json_set_text(&out, "class", trace_fate_name(TRACE_FATE_INFRA_FAILED));
    json_set_text(&out, "cause", cause);
    json_set_text(&out, "rollout_id", row->id);
    json_set_text(&out, "run", row->run);
    json_set_text(&out, "group_id", row->group);
    json_set_int(&out, "index", row->index);
    json_set_text(&out, "task", row->task);
    json_set_text(&out, "agent", row->agent);
    json_set_text(&out, "model", row->model);
    json_set_text(&out, "mode", row->mode);
    json_set_text(&out, "backend", row->backend);
    json_set_text(&out, "fate", trace_fate_name(TRACE_FATE_INFRA_FAILED));
    json_set_text(&out, "stage", trace_stage_name(TRACE_FAILED));
    json_set_text(&out, "failed_stage", row->stage);
    json_set_text(&out, "error_kind", err_meaning(ERR_LOST)->name);
    json_set_text(&out, "error", cause);
    json_set_null(&out, "reward");
    json_end_object(&out);
    buf_byte(&text, '\n');
    struct err err = {0};
    if (file_make_dirs(row->dir, 0755, &err) < 0 ||
        file_write(path, buf_str(&text), 0644, false, &err) < 0)
        LOG_WARN("runtime", row->id, "its result could not be written: %s", err.text);
}

/* It may have been over, and only its last row was not kept: then its result is the one it has. */
static bool read_result(const struct dead *row, struct store_rollout *over, struct arena *arena)
{
    OWN(mem) char *path = mem_format("%s/result.json", row->dir);
    OWN(buf) struct buf text = {0};
    OWN(json_doc) struct json_doc doc = {0};
    enum trace_fate fate;
    if (file_read(path, RESULT_BYTES_MAX, &text, NULL) < 0 ||
        json_read(&doc, buf_str(&text), NULL, NULL) < 0)
        return false;
    struct json root = json_root(&doc);
    if (!trace_fate_find(json_str(json_get(root, "fate"), arena), &fate))
        return false;
    struct str error = json_str(json_get(root, "error"), arena);
    over->fate = trace_fate_name(fate);
    over->stage = arena_text(arena, json_str(json_get(root, "stage"), arena));
    over->error = error.size ? arena_text(arena, error) : NULL;
    struct str reason = json_str(json_get(root, "reason"), arena);
    over->reason = reason.size ? arena_text(arena, reason) : NULL;
    long long version = json_int_or(json_get(root, "policy_version"), -1);
    over->has_policy = version >= 0;
    over->policy_version = version;
    over->has_reward = json_double(json_get(root, "reward"), &over->reward);
    over->calls = (uint32_t)json_int_or(json_get(root, "calls"), 0);
    over->turns = (uint32_t)json_int_or(json_get(root, "turns"), 0);
    struct json usage = json_get(root, "usage");
    over->prompt_tokens = json_int_or(json_get(usage, "prompt_tokens"), -1);
    over->completion_tokens = json_int_or(json_get(usage, "completion_tokens"), -1);
    return true;
}

static void mark(struct machine *machine, const struct dead *row, const char *cause)
{
    struct store_rollout over = {
        .id = row->id,
        .run = row->run,
        .group = row->group,
        .task = row->task,
        .agent = row->agent,
        .model = row->model,
        .mode = row->mode,
        .backend = row->backend,
        .stage = trace_stage_name(TRACE_FAILED),
        .fate = trace_fate_name(TRACE_FATE_INFRA_FAILED),
        .error = cause,
        .dir = row->dir,
        .key = row->key,
        .key_hash = row->key_hash,
        .callback = row->callback,
        .callback_state = row->callback ? "pending" : NULL,
        .index = row->index,
        .prompt_tokens = -1,
        .completion_tokens = -1,
        .queued_ms = row->queued_ms,
        .started_ms = row->started_ms,
        .done_ms = clock_wall_ms(),
    };
    struct err err = {0};
    OWN(arena) struct arena arena = {0};
    machine->callbacks_booked = machine->callbacks_booked || row->callback;
    if (!read_result(row, &over, &arena))
        write_result(row, cause);
    OWN(mem) char *owner = mem_format("%s/owner", row->dir);
    (void)unlink(owner);
    if (store_put_rollout(machine->store, NULL, &over, NULL, NULL, &err) < 0)
        LOG_WARN("runtime", row->id, "could not be marked as failed: %s", err.text);
}

void leftovers_book(struct machine *machine, const struct rollout_left *left, const char *cause)
{
    const struct rollout_request *request = &left->request;
    OWN(mem) char *dir = mem_format("%s/rollouts/%s", machine->config->home, left->id);
    OWN(mem) char *home = realpath(machine->config->home, NULL);
    OWN(mem) char *full = mem_format("%s/rollouts/%s", home ? home : ".", left->id);
    struct dead row = {
        .id = (char *)(uintptr_t)left->id,
        .run = (char *)(uintptr_t)request->run,
        .group = (char *)(uintptr_t)request->group,
        .task = (char *)(uintptr_t)left->task,
        .agent = (char *)(uintptr_t)request->sources.agent,
        .model = (char *)(uintptr_t)request->sources.model,
        .mode = (char *)(uintptr_t)request->mode,
        .backend = (char *)(uintptr_t)request->backend,
        .stage =
            (char *)(uintptr_t)trace_stage_name(left->state.data ? TRACE_RUNNING : TRACE_QUEUED),
        .dir = home ? full : dir,
        .key = (char *)(uintptr_t)request->key,
        .key_hash = (char *)(uintptr_t)request->key_hash,
        .callback = (char *)(uintptr_t)request->callback,
        .index = request->index,
        .queued_ms = left->queued_ms,
    };
    if (cause[0])
        LOG_WARN("runtime", left->id, "%s", cause);
    mark(machine, &row, cause);
}

/* One start at a time decides who goes on with what. */
static int take_turn(const struct machine *machine)
{
    OWN(mem) char *path = mem_format("%s/owners/.turn", machine->config->home);
    OWN(fd) int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    for (uint64_t until = clock_mono_ms() + TURN_MS_MAX; fd >= 0; (void)poll(NULL, 0, 5)) {
        if (flock(fd, LOCK_EX | LOCK_NB) == 0)
            return fd_take(&fd);
        if (clock_mono_ms() > until)
            break;
    }
    LOG_WARN("runtime", NULL, "'%s' cannot be had: dead servers' rollouts are left alone", path);
    return -1;
}

void leftovers_mark(struct machine *machine)
{
    OWN(fd) int turn = take_turn(machine);
    if (turn < 0)
        return;
    struct map forgotten = {0};
    size_t resumed = machine->resume ? leftovers_resume(machine, &forgotten) : 0;
    note_count(machine, resumed, "rollout%s of a server that died: gone on with");
    note_count(machine, forgotten.count,
               "rollout%s of a submission that a server died in: nobody was told, nothing is left");
    struct dead_list list = {.machine = machine, .forgotten = &forgotten};
    for (int stage = TRACE_QUEUED; stage < TRACE_DONE; stage++) {
        char before[ID_MAX] = "";
        do {
            struct err err = {0};
            struct store_query query = {.stage = trace_stage_name((enum trace_stage)stage),
                                        .before = before[0] ? before : NULL,
                                        .limit = 1000};
            list.seen = 0;
            if (store_list_rollouts(machine->store, &query, on_row, &list, &err) < 0) {
                LOG_WARN("runtime", NULL, "looking for rollouts of dead servers: %s", err.text);
                break;
            }
            memcpy(before, list.last, sizeof before); /* newest first */
        } while (list.seen == 1000);
    }
    for (size_t i = 0; i < list.count; i++) {
        mark(machine, &list.rows[i], CAUSE);
        dead_free(&list.rows[i]);
    }
    free(list.rows);
    map_deinit(&forgotten);
    note_count(machine, list.count, "unfinished rollout%s of a server that died: marked as over");
}

/* ---------------------------------------------------------------- sandboxes */
struct swept {
    struct machine *machine;
    size_t count;
};

static void tell_swept(void *argument)
{
    struct swept *swept = argument;
    char text[160];
    snprintf(text, sizeof text, "%zu sandbox%s of a server that died: destroyed", swept->count,
             swept->count == 1 ? "" : "es");
    note(swept->machine, text);
    free(swept);
}

static void on_destroyed(void *context, const struct err *err)
{
    struct machine_lane *room = context;
    if (err && err->kind != ERR_NONE)
        LOG_WARN("runtime", NULL, "a left-over sandbox was not destroyed: %s", err->text);
    room->destroying--;
}

/* Is it somebody's, though its server is gone? */
static bool is_claimed(struct machine *machine, const struct sandbox_found *found)
{
    const char *label = found->label ? found->label : "";
    if (!machine->resume) /* the next server wants it */
        return label[0] && leftovers_is_live(machine, label);
    pthread_mutex_lock(&machine->claimed_lock);
    bool claimed = map_get(&machine->claimed, str_of(found->id)) ||
                   (found->layer && map_get(&machine->claimed, str_of(label)));
    pthread_mutex_unlock(&machine->claimed_lock);
    return claimed;
}

static void on_found(void *context, const struct sandbox_found *found, size_t count,
                     const struct err *err)
{
    struct machine_lane *room = context;
    if (err && err->kind == ERR_CANCELLED)
        return; /* we are closing already */
    if (err && err->kind != ERR_NONE) {
        LOG_WARN("runtime", NULL, "looking for left-over sandboxes: %s", err->text);
        return;
    }
    size_t sandboxes = 0;
    for (size_t i = 0; i < count; i++) {
        if (is_claimed(room->machine, &found[i]))
            continue;
        LOG_INFO("runtime", found[i].id, "left over from %s",
                 found[i].label ? found[i].label : "?");
        if (found[i].layer) {
            sandboxes_drop_layer(room->sandboxes, found[i].id);
            continue;
        }
        sandboxes++;
        room->destroying++;
        sandboxes_destroy_found(room->sandboxes, found[i].id, on_destroyed, room);
    }
    if (!sandboxes)
        return;
    struct swept *swept = mem_zero(sizeof *swept);
    *swept = (struct swept){.machine = room->machine, .count = sandboxes};
    loop_post(room->machine->loop, tell_swept, swept);
}

static void sweep_lane(void *argument)
{
    struct machine_lane *room = argument;
    sandboxes_find(room->sandboxes, on_found, room);
}

void leftovers_sweep(struct machine *machine)
{
    loop_post(machine->rooms[0].loop, sweep_lane, &machine->rooms[0]);
}
