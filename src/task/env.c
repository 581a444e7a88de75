/* env.c - host variables in a task's environments: ${NAME} and ${NAME:-text}.
 *
 * They are looked up when a command starts, not when the task is read, and their values are never
 * part of a task: what is shown, stored or compared has the names only. A task that came over the
 * control listener may not read the host's environment, and nobody may read Postern's own
 * variables: its model key must not reach a sandbox. Values that were put in are known as secrets
 * afterwards and are taken out of what the commands print before it is kept. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "task/internal.h"

#define SECRET_BYTES_MIN 4 /* shorter ones would tear holes into every log */
#define SECRETS_MAX 256

struct secrets {
    const char *pairs[2 * SECRETS_MAX + 1];
    size_t count;
};

static bool is_name(struct str name)
{
    if (!name.size || isdigit((unsigned char)name.data[0]))
        return false;
    for (size_t i = 0; i < name.size; i++)
        if (!isalnum((unsigned char)name.data[i]) && name.data[i] != '_')
            return false;
    return true;
}

static int add_variable(const struct task *task, struct str inner, const char *entry,
                        struct arena *arena, struct buf *out, struct secrets *secrets,
                        struct err *err)
{
    long colon = str_find(inner, STR(":-"));
    struct str name = colon < 0 ? inner : str_upto(inner, (size_t)colon);
    int shown = (int)strcspn(entry, "=");
    if (!is_name(name))
        return err_set(err, ERR_INPUT, "the variable %.*s of the task: '${%.*s}' names no variable",
                       shown, entry, STR_ARGS(inner));
    if (!task->host_env)
        return err_set(err, ERR_DENIED,
                       "the variable %.*s of the task asks for the host's ${%.*s}; only tasks from "
                       "files may",
                       shown, entry, STR_ARGS(name));
    if (str_starts(name, STR("POSTERN_")))
        return err_set(err, ERR_DENIED,
                       "the variable %.*s of the task asks for ${%.*s}, which is Postern's own",
                       shown, entry, STR_ARGS(name));
    const char *key = arena_text(arena, name);
    const char *value = getenv(key);
    if (!value && colon < 0)
        return err_set(err, ERR_INPUT,
                       "the variable %.*s of the task needs ${%s}, which is not set here", shown,
                       entry, key);
    if (!value) {
        buf_str_append(out, str_from(inner, (size_t)colon + 2));
        return 0;
    }
    buf_str_append(out, str_of(value));
    if (strlen(value) >= SECRET_BYTES_MIN && secrets->count < SECRETS_MAX) {
        secrets->pairs[2 * secrets->count] = key;
        secrets->pairs[2 * secrets->count + 1] = arena_text(arena, str_of(value));
        secrets->count++;
    }
    return 0;
}

static int resolve(const struct task *task, const char *entry, struct arena *arena, struct buf *out,
                   struct secrets *secrets, struct err *err)
{
    struct str rest = str_of(entry);
    while (rest.size) {
        long at = str_find(rest, STR("${"));
        struct str tail = at < 0 ? STR_NONE : str_from(rest, (size_t)at + 2);
        long end = at < 0 ? -1 : str_find_byte(tail, '}');
        if (end < 0) {
            buf_str_append(out, rest);
            return 0;
        }
        buf_str_append(out, str_upto(rest, (size_t)at));
        if (add_variable(task, str_upto(tail, (size_t)end), entry, arena, out, secrets, err) < 0)
            return -1;
        rest = str_from(tail, (size_t)end + 1);
    }
    return 0;
}

static int longer_first(const void *a, const void *b)
{
    const char *const *left = a, *const *right = b;
    size_t left_size = strlen(left[1]), right_size = strlen(right[1]);
    return (left_size < right_size) - (left_size > right_size);
}

int task_env_resolve(const struct task *task, const char *const *list, struct arena *arena,
                     const char *const **out, const char *const **secrets, struct err *err)
{
    struct secrets found = {0};
    size_t count = 0, known = 0;
    while (list && list[count])
        count++;
    for (; secrets && *secrets && (*secrets)[2 * known] && known < SECRETS_MAX; known++) {
        found.pairs[2 * known] = (*secrets)[2 * known];
        found.pairs[2 * known + 1] = (*secrets)[2 * known + 1];
    }
    found.count = known;
    const char **entries = arena_alloc(arena, (count + 1) * sizeof *entries);
    for (size_t i = 0; i < count; i++) {
        OWN(buf) struct buf text = {0};
        if (resolve(task, list[i], arena, &text, &found, err) < 0)
            return -1;
        entries[i] = arena_text(arena, buf_str(&text));
    }
    *out = entries;
    if (secrets && found.count > known) {
        /* The longest first: one may be a part of another. */
        qsort(found.pairs, found.count, 2 * sizeof *found.pairs, longer_first);
        const char **pairs = arena_alloc(arena, (2 * found.count + 1) * sizeof *pairs);
        memcpy(pairs, found.pairs, 2 * found.count * sizeof *pairs);
        *secrets = pairs;
    }
    return 0;
}

int task_env_check(const struct task *task, bool oracle, struct err *err)
{
    OWN(arena) struct arena arena = {0};
    const char *const *const lists[] = {task->env, task->agent_env, task->verify_env,
                                        oracle ? task->solution_env : NULL};
    const char *const *out;
    for (size_t i = 0; i < COUNT(lists); i++)
        if (task_env_resolve(task, lists[i], &arena, &out, NULL, err) < 0)
            return -1;
    for (size_t i = 0; i < task->step_count; i++)
        if (task_env_check(task->steps[i], oracle, err) < 0)
            return -1;
    return 0;
}

void task_secrets_hide(const char *const *secrets, struct buf *text)
{
    for (; secrets && *secrets; secrets += 2) {
        struct str value = str_of(secrets[1]);
        if (str_find(buf_str(text), value) < 0)
            continue;
        OWN(buf) struct buf clean = {0};
        struct str rest = buf_str(text);
        for (long at; (at = str_find(rest, value)) >= 0;
             rest = str_from(rest, (size_t)at + value.size)) {
            buf_str_append(&clean, str_upto(rest, (size_t)at));
            buf_format(&clean, "[%s]", secrets[0]);
        }
        buf_str_append(&clean, rest);
        buf_clear(text);
        buf_str_append(text, buf_str(&clean));
    }
}

static bool has_others(const char *const *secrets, struct str value)
{
    for (; *secrets; secrets += 2)
        if (strlen(secrets[1]) < value.size && str_find(value, str_of(secrets[1])) >= 0)
            return true;
    return false;
}

/* How much of `shown` is this part of a secret, as task_secrets_hide() left it. */
static size_t shown_part(const char *const *secrets, struct str part, struct str shown, bool front,
                         bool others)
{
    OWN(buf) struct buf text = {0};
    if (others) {
        buf_str_append(&text, part);
        task_secrets_hide(secrets, &text);
        part = buf_str(&text);
    }
    return (front ? str_starts(shown, part) : str_ends(shown, part)) ? part.size : 0;
}

void task_secrets_trim(const char *const *secrets, struct buf *text, bool front)
{
    struct str shown = buf_str(text);
    size_t most = 0;
    for (const char *const *at = secrets; at && *at; at += 2) {
        struct str value = str_of(at[1]);
        bool others = has_others(secrets, value);
        for (size_t size = value.size - 1; size > 0; size--) {
            struct str part = front ? str_from(value, value.size - size) : str_upto(value, size);
            size_t found = shown_part(secrets, part, shown, front, others);
            most = found > most ? found : most;
        }
    }
    if (front)
        buf_consume(text, most);
    else
        text->size -= most;
}
