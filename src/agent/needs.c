/* needs.c - what an agent needs of its surroundings: said in its spec, checked before it runs.
 *
 * What is known beforehand (tools, the user, memory) refuses a rollout when it is submitted. What
 * only the sandbox can tell (programs, their versions, paths) is looked at there, without a shell,
 * when the agent has been installed. */
#include "agent/agent.h"

#include <stdio.h>
#include <stdlib.h>

#include "agent/internal.h"
#include "base/mem.h"
#include "config/toml.h"
#include "loop/loop.h"

#define VERSION_MS 60000
#define OUTPUT_KEPT 4000

static const char *const folders[] = {"/usr/local/bin",  "/usr/bin",  "/bin",
                                      "/usr/local/sbin", "/usr/sbin", "/sbin"};

/* ---------------------------------------------------------------- reading */

int agent_needs_read(struct agent_spec *spec, struct toml_node *root, struct err *err)
{
    static const char *const users[] = {"any", "root", "ordinary", NULL};
    struct agent_needs *needs = &spec->needs;
    struct toml_node *table = NULL, *versions = NULL;
    unsigned long long memory = 0;
    int user = 0;
    if (toml_table(root, "needs", &table, err) < 0 ||
        toml_choice(table, "user", users, &user, err) < 0 ||
        toml_size(table, "memory", 1, 1ull << 50, &memory, err) < 0 ||
        spec_texts(spec, table, "programs", &needs->programs, err) < 0 ||
        spec_texts(spec, table, "paths", &needs->paths, err) < 0 ||
        toml_table(table, "versions", &versions, err) < 0)
        return -1;
    needs->user = (enum agent_user)user;
    needs->memory_bytes = memory;
    if (spec->root && needs->user == AGENT_USER_ORDINARY)
        return toml_error(toml_get(table, "user"), err,
                          "root = true and needs.user = \"ordinary\" contradict each other");
    for (size_t i = 0; needs->programs && needs->programs[i]; i++)
        if (strchr(needs->programs[i], '/') || strchr(needs->programs[i], '{'))
            return toml_error(toml_get(table, "programs"), err,
                              "'%s' is not the bare name of a program; paths are for needs.paths",
                              needs->programs[i]);
    if (!versions)
        return 0;
    needs->versions = arena_alloc(&spec->arena, (versions->count + 1) * sizeof *needs->versions);
    TOML_EACH(item, versions)
    {
        item->used = true;
        if (item->type != TOML_STRING || !item->text[0] ||
            strspn(item->text, "0123456789.") != item->text_size)
            return toml_error(item, err, "a version is a text like \"20.6\"");
        needs->versions[needs->version_count++] =
            (struct agent_pair){spec_keep(spec, item->key), spec_keep(spec, item->text)};
    }
    return 0;
}

/* ---------------------------------------------------------------- beforehand */

int agent_spec_fit(const struct agent_spec *spec, const struct agent_wants *wants, struct err *err)
{
    const struct agent_needs *needs = &spec->needs;
    if (wants->tools && spec->mcp == AGENT_MCP_NONE)
        return err_set(err, ERR_UNSUPPORTED,
                       "the agent %s has no MCP: it could not call the tools of this task",
                       spec->name);
    if (wants->turns && !agent_spec_takes_turns(spec))
        return err_set(err, ERR_UNSUPPORTED,
                       "the agent %s is told its task once: it cannot be driven through the "
                       "several turns of this one (that needs ACP)",
                       spec->name);
    if (needs->user == AGENT_USER_ORDINARY && wants->root)
        return err_set(err, ERR_UNSUPPORTED,
                       "the agent %s does not run as root, and this task wants root", spec->name);
    if (needs->user == AGENT_USER_ROOT && !wants->root)
        return err_set(err, ERR_UNSUPPORTED,
                       "the agent %s runs as root only, and this task does not say root = true",
                       spec->name);
    if (wants->memory_bytes && wants->memory_bytes < needs->memory_bytes)
        return err_set(err, ERR_UNSUPPORTED,
                       "the agent %s needs %llu MB of memory, and this sandbox would have %llu MB",
                       spec->name, (unsigned long long)(needs->memory_bytes >> 20),
                       (unsigned long long)(wants->memory_bytes >> 20));
    return 0;
}

bool agent_spec_takes_turns(const struct agent_spec *spec)
{
    return spec->input == AGENT_INPUT_ACP || spec->acp.argv;
}

bool agent_spec_resumes(const struct agent_spec *spec)
{
    return !spec->acp.files && !spec->acp.terminals;
}

/* ---------------------------------------------------------------- inside */

struct agent_check {
    struct loop *loop;
    struct agent_spec *spec;
    struct sandbox *sandbox;
    struct arena arena;
    struct agent_values values; /* those that are known before any rollout */
    struct loop_timer timer;    /* the first, deferred step */
    size_t path_at, program_at, folder_at, version_at;
    const char *argv[3];
    struct err err;
    void (*on_done)(void *context, const struct err *err);
    void *context;
};

static void step(struct agent_check *check);

static void finish(struct agent_check *check)
{
    check->on_done(check->context, &check->err);
}

static void missing(struct agent_check *check, const char *what)
{
    err_set(&check->err, ERR_UNSUPPORTED, "the agent %s needs %s, which is not in this sandbox",
            check->spec->name, what);
    finish(check);
}

static bool is_lost(struct agent_check *check, const struct err *err)
{
    if (!err || err->kind != ERR_LOST)
        return false;
    check->err = *err;
    finish(check);
    return true;
}

static void on_path(void *context, const struct sandbox_stat *stat, const struct err *err)
{
    struct agent_check *check = context;
    if (is_lost(check, err))
        return;
    if ((err && err->kind != ERR_NONE) || stat->kind == SANDBOX_FILE_NONE) {
        missing(check, agent_expand(&check->arena, check->spec->needs.paths[check->path_at],
                                    &check->values));
        return;
    }
    check->path_at++;
    step(check);
}

static void on_program(void *context, const struct sandbox_stat *stat, const struct err *err)
{
    struct agent_check *check = context;
    if (is_lost(check, err))
        return;
    bool there = (!err || err->kind == ERR_NONE) && stat->kind != SANDBOX_FILE_NONE &&
                 stat->kind != SANDBOX_FILE_DIRECTORY;
    if (there) {
        check->program_at++;
        check->folder_at = 0;
    } else if (++check->folder_at == COUNT(folders)) {
        missing(check, check->spec->needs.programs[check->program_at]);
        return;
    }
    step(check);
}

/* Parts of numbers, the first that differs decides: 20.6 is more than 20.5.9. */
int agent_version_compare(const char *a, const char *b)
{
    while (*a || *b) {
        char *end;
        unsigned long left = strtoul(a, &end, 10);
        a = *end == '.' ? end + 1 : end + strlen(end);
        unsigned long right = strtoul(b, &end, 10);
        b = *end == '.' ? end + 1 : end + strlen(end);
        if (left != right)
            return left < right ? -1 : 1;
    }
    return 0;
}

/* The first number with a dot in it: "v22.1.0", "git version 2.39.5 (...)". */
struct str agent_version_find(struct str text)
{
    for (size_t at = 0; at < text.size; at++) {
        size_t end = at;
        bool dotted = false;
        while (end < text.size &&
               (text.data[end] == '.' || (text.data[end] >= '0' && text.data[end] <= '9'))) {
            dotted |= text.data[end] == '.' && end > at;
            end++;
        }
        if (dotted && text.data[at] != '.')
            return str_make(text.data + at, end - at);
        at = end > at ? end : at;
    }
    return STR_NONE;
}

static void on_version(void *context, const struct sandbox_outcome *outcome)
{
    struct agent_check *check = context;
    const struct agent_pair *want = &check->spec->needs.versions[check->version_at];
    if (outcome->exit.end == SANDBOX_LOST) {
        err_set(&check->err, ERR_LOST, "the sandbox was lost: %s", outcome->exit.text);
        finish(check);
        return;
    }
    struct str found = agent_version_find(outcome->out.size ? outcome->out : outcome->err_out);
    if (outcome->exit.end != SANDBOX_EXITED || outcome->exit.code != 0 || !found.size) {
        missing(check, arena_format(&check->arena, "%s %s or newer", want->key, want->value));
        return;
    }
    const char *version = arena_text(&check->arena, str_upto(found, 40));
    if (agent_version_compare(version, want->value) < 0) {
        err_set(&check->err, ERR_UNSUPPORTED,
                "the agent %s needs %s %s or newer; in this sandbox it is %s", check->spec->name,
                want->key, want->value, version);
        finish(check);
        return;
    }
    check->version_at++;
    step(check);
}

static void step(struct agent_check *check)
{
    const struct agent_needs *needs = &check->spec->needs;
    if (needs->paths && needs->paths[check->path_at]) {
        const char *path =
            agent_expand(&check->arena, needs->paths[check->path_at], &check->values);
        sandbox_stat(check->sandbox, path, on_path, check);
        return;
    }
    if (needs->programs && needs->programs[check->program_at]) {
        const char *path = arena_format(&check->arena, "%s/%s", folders[check->folder_at],
                                        needs->programs[check->program_at]);
        sandbox_stat(check->sandbox, path, on_program, check);
        return;
    }
    if (check->version_at < needs->version_count) {
        check->argv[0] = needs->versions[check->version_at].key;
        check->argv[1] = "--version";
        struct sandbox_command command = {.argv = check->argv, .timeout_ms = VERSION_MS};
        sandbox_run_whole(check->sandbox, &command, STR_NONE, OUTPUT_KEPT, on_version, check);
        return;
    }
    finish(check);
}

static void on_begin(struct loop_timer *timer)
{
    step(timer->context);
}

bool agent_spec_has_needs(const struct agent_spec *spec)
{
    return spec->needs.paths || spec->needs.programs || spec->needs.version_count;
}

struct agent_check *agent_check(struct loop *loop, struct agent_spec *spec, struct sandbox *sandbox,
                                void (*on_done)(void *context, const struct err *err),
                                void *context)
{
    struct agent_check *check = mem_zero(sizeof *check);
    check->loop = loop;
    check->spec = agent_spec_ref(spec);
    check->sandbox = sandbox;
    check->on_done = on_done;
    check->context = context;
    agent_values_fixed(&check->arena, spec, &check->values);
    loop_timer_start(loop, &check->timer, 0, on_begin, check);
    return check;
}

void agent_check_close(struct agent_check *check)
{
    if (!check)
        return;
    loop_timer_stop(&check->timer);
    agent_spec_unref(check->spec);
    arena_deinit(&check->arena);
    free(check);
}
