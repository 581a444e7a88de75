/* resume.c - rollouts that a dead server left under way and this one goes on with.
 *
 * <home>/live names them. Each is handed to whoever takes submissions, who finds agent, task and
 * model again from where they came from; keys come from the configuration, as ever. A submission
 * the dead server had not finished, so that nobody was told of it, never was. What is over
 * (its result was written, but not the row that says so) is only booked; what cannot be gone on
 * with is infra_failed with the reason. What the sandboxes of the others are called is noted before
 * the sweep, so that it leaves them alone. */
#include "runtime/internal.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "json/json.h"

#define HALF_MS 60000

bool leftovers_is_live(const struct machine *machine, const char *id)
{
    OWN(mem) char *path = mem_format("%s/live/%s.json", machine->config->home, id);
    return !strchr(id, '/') && file_exists(path);
}

void leftovers_claim(struct machine *machine, const char *what)
{
    pthread_mutex_lock(&machine->claimed_lock);
    (void)map_put(&machine->claimed, str_of(what), machine);
    pthread_mutex_unlock(&machine->claimed_lock);
}

static void claim_all(struct machine *machine, const struct rollout_left *left)
{
    OWN(json_doc) struct json_doc doc = {0};
    OWN(arena) struct arena arena = {0};
    if (!left->state.data || json_read(&doc, left->state, NULL, NULL) < 0)
        return;
    static const char *const names[] = {"sandbox", "layer", "apart"};
    for (size_t i = 0; i < COUNT(names); i++) {
        struct json value = json_get(json_root(&doc), names[i]);
        if (json_exists(value))
            leftovers_claim(machine, arena_text(&arena, json_str(value, &arena)));
    }
    if (json_is(json_get(json_root(&doc), "stage"), trace_stage_name(TRACE_VERIFYING)))
        leftovers_claim(machine, left->id); /* its layer may not be known by name */
}

/* ---------------------------------------------------------------- one by one */
struct known {
    struct arena *arena;
    struct rollout_left *left;
    bool row, fill;
};

static const char *keep(struct known *known, const char *text)
{
    return text ? arena_text(known->arena, str_of(text)) : NULL;
}

static bool on_row(void *context, const struct store_rollout *row)
{
    struct known *known = context;
    struct rollout_left *left = known->left;
    known->row = true;
    if (row->reason && !row->fate) {
        left->cancelled = keep(known, row->reason);
        left->why = keep(known, row->error ? row->error : "");
    }
    if (!known->fill)
        return false;
    left->task = keep(known, row->task);
    left->queued_ms = row->queued_ms;
    left->request = (struct rollout_request){
        .sources = {.agent = keep(known, row->agent), .model = keep(known, row->model)},
        .run = keep(known, row->run),
        .group = keep(known, row->group),
        .mode = keep(known, row->mode),
        .backend = keep(known, row->backend),
        .key = keep(known, row->key),
        .key_hash = keep(known, row->key_hash),
        .callback = keep(known, row->callback),
        .index = row->index,
    };
    return false;
}

static bool on_group(void *context, const struct store_group *row)
{
    (void)row;
    *(bool *)context = true;
    return false;
}

/* Whoever submitted it was told so only when the index had it, with all it was submitted with: what
 * the index does not have never was. In doubt it was. */
static bool was_taken(struct machine *machine, struct known *known, const struct map *forgotten)
{
    const struct rollout_request *request = &known->left->request;
    struct err err = {0};
    if (store_get_rollout(machine->store, known->left->id, on_row, known, &err) < 0 &&
        err.kind != ERR_NOT_FOUND) {
        LOG_WARN("runtime", known->left->id, "the index does not answer: %s", err.text);
        return true;
    }
    bool group = false;
    struct store_query query = {.group = request->group, .limit = 1};
    if (known->row && request->grouped &&
        store_list_groups(machine->store, &query, on_group, &group, &err) < 0) {
        LOG_WARN("runtime", known->left->id, "the index does not answer: %s", err.text);
        return true;
    }
    /* The row of the first is the last that is written, and it was looked at before. */
    if (request->with && map_get(forgotten, str_of(request->with)))
        return false;
    return known->row && (group || !request->grouped);
}

static void forget(struct machine *machine, const struct known *known)
{
    const char *id = known->left->id;
    struct err err = {0};
    LOG_INFO("runtime", id, "its submission was never whole nor answered: it never was");
    if (known->row && store_remove_rollout(machine->store, NULL, id, NULL, NULL, &err) < 0)
        LOG_WARN("runtime", id, "its row is still there: %s", err.text);
    rollout_left_remove(machine->config->home, id);
}

enum fate { GONE_ON, OVER, NEVER_WAS, NOT_OURS };

static enum fate go_on(struct machine *machine, const char *id, const struct map *forgotten)
{
    const char *home = machine->config->home;
    OWN(arena) struct arena arena = {0};
    OWN(mem) char *path = mem_format("%s/rollouts/%s/result.json", home, id);
    OWN(mem) char *state = mem_format("%s/live/%s.state", home, id);
    struct rollout_left left;
    struct err err = {0};
    if (!leftovers_is_dead(home, id))
        return NOT_OURS;
    bool readable = rollout_left_read(home, id, &arena, &left, &err) == 0;
    snprintf(left.id, sizeof left.id, "%s", id);
    bool over = file_exists(path), begun = file_exists(state);
    /* What cannot be read is at least booked as what the index knows of it. */
    struct known known = {.arena = &arena, .left = &left, .fill = !readable};
    if (!was_taken(machine, &known, forgotten) && !begun && !over) {
        forget(machine, &known);
        return NEVER_WAS;
    }
    if (readable && !over) {
        claim_all(machine, &left);
        if (machine->resume(machine->context, &left, &err) == 0)
            return GONE_ON;
    }
    if (!over)
        err_wrap(&err, "the server that ran it died, and it cannot be gone on with");
    leftovers_book(machine, &left, err.text);
    rollout_left_remove(home, id);
    return OVER;
}

/* Half a file that a crash left. One that is being written now is younger. */
static void clear_half(const char *dir, const char *name)
{
    OWN(mem) char *path = mem_format("%s/%s", dir, name);
    struct stat stat;
    if (lstat(path, &stat) == 0 && (uint64_t)stat.st_mtim.tv_sec * 1000 + HALF_MS < clock_wall_ms())
        (void)unlink(path);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

size_t leftovers_resume(struct machine *machine, struct map *forgotten)
{
    OWN(mem) char *dir = mem_format("%s/live", machine->config->home);
    DIR *entries = opendir(dir);
    if (!entries)
        return 0;
    char **ids = NULL;
    size_t count = 0, resumed = 0;
    for (struct dirent *entry; (entry = readdir(entries));) {
        struct str name = str_of(entry->d_name);
        if (str_ends(name, STR(".new")))
            clear_half(dir, entry->d_name);
        if (!str_ends(name, STR(".json")) || name.size - 5 >= ID_MAX)
            continue;
        ids = mem_grow(ids, (count + 1) * sizeof *ids);
        ids[count++] = str_dup(str_upto(name, name.size - 5));
    }
    (void)closedir(entries);
    if (count)
        qsort(ids, count, sizeof *ids, by_name); /* ids are in the order they were made */
    for (size_t i = 0; i < count; i++) {
        enum fate fate = go_on(machine, ids[i], forgotten);
        resumed += fate == GONE_ON;
        if (fate == NEVER_WAS)
            (void)map_put(forgotten, str_of(ids[i]), machine);
        free(ids[i]);
    }
    free(ids);
    return resumed;
}
