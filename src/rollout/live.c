/* live.c - what the next server needs to go on with a rollout when this one dies.
 *
 *     <home>/live/<id>.json   the request as it was made, without secrets: written at submission
 *     <home>/live/<id>.state  how far it is: life_resume.c
 *
 * Both go when the rollout is over, after its result is written. So the folder holds what is under
 * way and nothing else, however long the history is. Files are replaced, never changed. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "json/json.h"
#include "rollout/internal.h"

#define VERSION 1
#define BYTES_MAX ((size_t)64 << 20)

/* Plain members of a request. */
#define NUMBER(name)                                                                               \
    {                                                                                              \
#name, offsetof(struct rollout_request, name), sizeof(((struct rollout_request *)0)->name) \
    }
static const struct {
    const char *name;
    size_t at, size;
} numbers[] = {
    NUMBER(isolation),        NUMBER(index),
    NUMBER(wall_ms_max),      NUMBER(turns_max),
    NUMBER(realign_max),      NUMBER(exact_prefix),
    NUMBER(memory_bytes_max), NUMBER(disk_bytes_max),
    NUMBER(pids_max),         NUMBER(cpu_millis),
    NUMBER(priority),         NUMBER(queue_ms_max),
    NUMBER(policy_version),   NUMBER(skip_permissions),
};
#define TEXT(name)                                                                                 \
    {                                                                                              \
#name, offsetof(struct rollout_request, name)                                              \
    }
static const struct {
    const char *name;
    size_t at;
} texts[] = {TEXT(mode), TEXT(backend), TEXT(root),     TEXT(run),     TEXT(group),
             TEXT(with), TEXT(key),     TEXT(key_hash), TEXT(callback)};
static const struct {
    const char *name;
    size_t at;
} raws[] = {TEXT(sampling), TEXT(tools)};

static long long number_at(const struct rollout_request *request, size_t i)
{
    const char *at = (const char *)request + numbers[i].at;
    uint64_t wide;
    uint32_t narrow;
    if (numbers[i].size == sizeof wide) {
        memcpy(&wide, at, sizeof wide);
        return (long long)wide;
    }
    memcpy(&narrow, at, sizeof narrow);
    return narrow;
}

static void set_number(struct rollout_request *request, size_t i, long long value)
{
    char *at = (char *)request + numbers[i].at;
    uint64_t wide = (uint64_t)value;
    uint32_t narrow = (uint32_t)value;
    memcpy(at, numbers[i].size == sizeof wide ? (void *)&wide : (void *)&narrow, numbers[i].size);
}

/* So that the next server finds it, wherever it is started from. */
static void set_path(struct json_writer *out, const char *key, const char *path)
{
    OWN(mem) char *full = strchr(path, '/') ? realpath(path, NULL) : NULL;
    json_set_text(out, key, full ? full : path);
}

int live_write(struct plan *plan, const struct rollout_request *request, const char *owner,
               bool begun, struct err *err)
{
    const struct rollout_sources *sources = &request->sources;
    if (!sources->agent || !sources->model || (!sources->task && !sources->task_text.size))
        return 0;
    OWN(mem) char *dir = mem_format("%s/live", plan->home);
    if (begun) { /* it is there, and the folder says whose it is now */
        plan->live = arena_format(&plan->arena, "%s/%s", dir, plan->id);
        return 0;
    }
    OWN(buf) struct buf text = {0};
    struct json_writer out = {.out = &text};
    json_begin_object(&out);
    json_set_int(&out, "version", VERSION);
    json_set_text(&out, "id", plan->id);
    if (owner)
        json_set_text(&out, "owner", owner);
    json_set_int(&out, "queued_ms", (long long)plan->queued_wall_ms);
    set_path(&out, "agent", sources->agent);
    json_set_text(&out, "model", sources->model);
    if (sources->task)
        set_path(&out, "task", sources->task);
    else
        json_set_raw(&out, "task_text", sources->task_text);
    json_set_text(&out, "task_name", plan->task->name);
    json_set_bool(&out, "offline", request->offline);
    json_set_bool(&out, "has_policy", request->has_policy);
    json_set_bool(&out, "grouped", request->grouped);
    for (size_t i = 0; i < COUNT(numbers); i++)
        json_set_int(&out, numbers[i].name, number_at(request, i));
    for (size_t i = 0; i < COUNT(texts); i++) {
        const char *value;
        memcpy(&value, (const char *)request + texts[i].at, sizeof value);
        if (value)
            json_set_text(&out, texts[i].name, value);
    }
    for (size_t i = 0; i < COUNT(raws); i++) {
        struct str value;
        memcpy(&value, (const char *)request + raws[i].at, sizeof value);
        if (value.size)
            json_set_raw(&out, raws[i].name, value);
    }
    json_end_object(&out);
    OWN(mem) char *path = mem_format("%s/%s.json", dir, plan->id);
    if (file_make_dirs(dir, 0700, err) < 0 ||
        file_write(path, buf_str(&text), 0600, false, err) < 0)
        return -1;
    plan->live = arena_format(&plan->arena, "%s/%s", dir, plan->id);
    return 0;
}

static void remove_at(const char *live)
{
    OWN(mem) char *state = mem_format("%s.state", live);
    OWN(mem) char *request = mem_format("%s.json", live);
    (void)unlink(state);
    (void)unlink(request); /* last: without it nobody looks for the other */
}

void live_remove(const struct plan *plan)
{
    if (plan->live)
        remove_at(plan->live);
}

void rollout_left_remove(const char *home, const char *id)
{
    OWN(mem) char *live = mem_format("%s/live/%s", home, id);
    remove_at(live);
}

int rollout_left_read(const char *home, const char *id, struct arena *arena,
                      struct rollout_left *left, struct err *err)
{
    OWN(mem) char *path = mem_format("%s/live/%s.json", home, id);
    OWN(mem) char *state_path = mem_format("%s/live/%s.state", home, id);
    OWN(buf) struct buf text = {0}, state = {0};
    OWN(json_doc) struct json_doc doc = {0};
    *left = (struct rollout_left){0};
    if (file_read(path, BYTES_MAX, &text, err) < 0 ||
        json_read(&doc, buf_str(&text), NULL, err) < 0)
        return err_wrap(err, "'%s'", path);
    struct json root = json_root(&doc);
    if (json_int_or(json_get(root, "version"), 0) != VERSION)
        return err_set(err, ERR_UNSUPPORTED, "'%s' was written by another version", path);
    struct rollout_request *request = &left->request;
    snprintf(left->id, sizeof left->id, "%s", id);
    left->queued_ms = (uint64_t)json_int_or(json_get(root, "queued_ms"), 0);
    request->sources.agent = arena_text(arena, json_str(json_get(root, "agent"), arena));
    request->sources.model = arena_text(arena, json_str(json_get(root, "model"), arena));
    struct json task = json_get(root, "task"), task_text = json_get(root, "task_text");
    if (json_exists(task))
        request->sources.task = arena_text(arena, json_str(task, arena));
    else
        request->sources.task_text = arena_str(arena, json_raw(task_text));
    request->has_policy = json_true(json_get(root, "has_policy"));
    request->grouped = json_true(json_get(root, "grouped"));
    left->task = arena_text(arena, json_str(json_get(root, "task_name"), arena));
    request->offline = json_true(json_get(root, "offline"));
    for (size_t i = 0; i < COUNT(numbers); i++)
        set_number(request, i, json_int_or(json_get(root, numbers[i].name), 0));
    for (size_t i = 0; i < COUNT(texts); i++) {
        struct json value = json_get(root, texts[i].name);
        const char *kept = json_exists(value) ? arena_text(arena, json_str(value, arena)) : NULL;
        memcpy((char *)request + texts[i].at, &kept, sizeof kept);
    }
    for (size_t i = 0; i < COUNT(raws); i++) {
        struct json value = json_get(root, raws[i].name);
        struct str kept = json_exists(value) ? arena_str(arena, json_raw(value)) : STR_NONE;
        memcpy((char *)request + raws[i].at, &kept, sizeof kept);
    }
    if (file_read(state_path, BYTES_MAX, &state, NULL) < 0 || !state.size)
        return 0;
    left->state = arena_str(arena, buf_str(&state));
    /* It began: staleness counts from there, whatever is current now. */
    long long version;
    if (json_read(&doc, left->state, NULL, NULL) == 0 &&
        json_int(json_get(json_root(&doc), "policy_version"), &version)) {
        request->has_policy = true;
        request->policy_version = version;
    }
    return 0;
}
