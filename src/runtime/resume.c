/* resume.c - rollouts that a dead server left under way and this one goes on with.
 *
 * <home>/live names them. Each is handed to whoever takes submissions, who finds agent, task and
 * model again from where they came from; keys come from the configuration, as ever. What is over
 * (its result was written, but not the row that says so) is only booked; what cannot be gone on
 * with is infra_failed with the reason. What the sandboxes of the others are called is noted before
 * the sweep, so that it leaves them alone. */
#include "runtime/internal.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "json/json.h"

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
static bool go_on(struct machine *machine, const char *id)
{
    const char *home = machine->config->home;
    OWN(arena) struct arena arena = {0};
    OWN(mem) char *path = mem_format("%s/rollouts/%s/result.json", home, id);
    struct rollout_left left;
    struct err err = {0};
    if (!leftovers_is_dead(home, id))
        return false;
    int known = rollout_left_read(home, id, &arena, &left, &err);
    if (known < 0)
        snprintf(left.id, sizeof left.id, "%s", id);
    bool over = file_exists(path);
    if (known == 0 && !over) {
        claim_all(machine, &left);
        if (machine->resume(machine->context, &left, &err) == 0)
            return true;
    }
    if (!over)
        err_wrap(&err, "the server that ran it died, and it cannot be gone on with");
    leftovers_book(machine, &left, err.text);
    rollout_left_remove(home, id);
    return false;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

size_t leftovers_resume(struct machine *machine)
{
    OWN(mem) char *dir = mem_format("%s/live", machine->config->home);
    DIR *entries = opendir(dir);
    if (!entries)
        return 0;
    char **ids = NULL;
    size_t count = 0, resumed = 0;
    for (struct dirent *entry; (entry = readdir(entries));) {
        struct str name = str_of(entry->d_name);
        if (!str_ends(name, STR(".json")) || name.size - 5 >= ID_MAX)
            continue;
        ids = mem_grow(ids, (count + 1) * sizeof *ids);
        ids[count++] = str_dup(str_upto(name, name.size - 5));
    }
    (void)closedir(entries);
    if (count)
        qsort(ids, count, sizeof *ids, by_name); /* ids are in the order they were made */
    for (size_t i = 0; i < count; i++) {
        resumed += go_on(machine, ids[i]);
        free(ids[i]);
    }
    free(ids);
    return resumed;
}
