/* cmd_tasks.c - postern tasks ls and check: which tasks there are, and whether they are any good.
 *
 * A check reads each task and says what is wrong with file, line and column. Then it runs two
 * agents that need no model: the oracle, which is the task's own solution and has to earn 1, and
 * one that does nothing and has to earn less. A task that fails either teaches nothing. */
#include "cli/cli.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/mem.h"
#include "json/json.h"
#include "runtime/runtime.h"

#define TASKS_MAX 100000

struct tasks_flags {
    bool json, no_run, offline;
};
#define AT(field) offsetof(struct tasks_flags, field)
/* clang-format off */
static const struct flag flags[] = {
    {"json",      0,   FLAG_BOOLEAN, AT(json),    NULL, NULL, "as JSON, one object per task"},
    {"no-run",    0,   FLAG_BOOLEAN, AT(no_run),  NULL, NULL, "check: only read them"},
    {"offline",   0,   FLAG_BOOLEAN, AT(offline), NULL, NULL, "check: run tasks that ask for a network without one"},
    {"parallel",  'p', FLAG_SETTING, 0, "rollout.parallel-max", "P", "check: rollouts at once"},
    {"carry",     0,   FLAG_SETTING, 0, "rollout.carry",     "PATHS", "check: system directories in which the agent's changes count; /: all"},
    {"backend",   0,   FLAG_SETTING, 0, "sandbox.backend",   "NAME", "check: where sandboxes come from"},
    {"isolation", 0,   FLAG_SETTING, 0, "sandbox.isolation", "LEVEL", "check: full (default), no-limits, no-seccomp"},
    {0},
};
/* clang-format on */

/* What one of the two agents came back with. */
struct trial {
    bool run, rewarded;
    double reward;
    char fate[24], error[300];
};
struct row {
    const char *name, *source;
    struct json facts; /* as runtime_task_check() tells them */
    bool verified, solved;
    struct trial oracle, nop;
    struct trial *at; /* the one under way */
    char verdict[360];
    bool good;
};
struct check {
    struct cli *cli;
    struct arena arena;
    struct row *rows;
    size_t count, room;
    struct row **order; /* of the batch under way */
    struct json_doc **docs;
    struct buf *texts;
    size_t doc_count;
};

/* ---------------------------------------------------------------- reading */
static void add_row(struct check *check, struct json facts)
{
    if (check->count == check->room) {
        check->room = check->room ? check->room * 2 : 16;
        check->rows = mem_grow(check->rows, check->room * sizeof *check->rows);
    }
    struct row *row = &check->rows[check->count++];
    *row = (struct row){.facts = facts, .good = true};
    row->name = arena_text(&check->arena, json_str(json_get(facts, "name"), &check->arena));
    row->source = arena_text(&check->arena, json_str(json_get(facts, "source"), &check->arena));
    row->verified = json_type(json_get(facts, "test_script")) == JSON_STRING ||
                    json_size(json_get(facts, "verify")) > 0 ||
                    json_size(json_get(facts, "steps")) > 0;
    row->solved = json_true(json_get(facts, "solution"));
}

static int read_operand(struct check *check, const char *what)
{
    struct json_doc *doc = mem_zero(sizeof *doc);
    struct buf *text = arena_alloc(&check->arena, sizeof *text);
    struct json_writer writer = {.out = text};
    check->docs = mem_grow(check->docs, (check->doc_count + 1) * sizeof(struct json_doc *));
    check->docs[check->doc_count++] = doc;
    if (runtime_task_check(what, &writer, &check->cli->err) < 0 ||
        json_read(doc, arena_str(&check->arena, buf_str(text)), NULL, &check->cli->err) < 0) {
        buf_deinit(text);
        return -1;
    }
    buf_deinit(text);
    JSON_EACH (item, json_root(doc))
        add_row(check, item.value);
    if (check->count > TASKS_MAX)
        return err_set(&check->cli->err, ERR_LIMIT, "more than %d tasks", TASKS_MAX);
    return 0;
}

/* ---------------------------------------------------------------- running */
static void on_row(void *context, const struct runtime_row *shown)
{
    struct check *check = context;
    if (!shown->final)
        return;
    struct trial *trial = check->order[shown->index]->at;
    trial->run = true;
    trial->rewarded = shown->rewarded;
    trial->reward = shown->reward;
    snprintf(trial->fate, sizeof trial->fate, "%s", shown->fate ? shown->fate : "?");
    snprintf(trial->error, sizeof trial->error, "%s", shown->error ? shown->error : "");
}

static void on_note(void *context, const char *text)
{
    (void)context;
    fprintf(stderr, "postern tasks: %s\n", text);
}

/* The tasks again by where they came from: for those with a solution that is their directory. */
static int run_agent(struct check *check, const char *agent, const char *const *tasks, size_t count,
                     bool offline)
{
    const char *share = runtime_share_dir();
    if (!share)
        return err_set(&check->cli->err, ERR_NOT_FOUND,
                       "the sample tasks were not found; set POSTERN_SHARE");
    OWN(mem) char *model = mem_format("script:%s/tasks/no-model.toml", share);
    struct runtime_batch batch = {.agent = agent,
                                  .tasks = tasks,
                                  .task_count = count,
                                  .model = model,
                                  .label = "tasks check",
                                  .each = 1,
                                  .offline = offline};
    struct runtime_show show = {.on_row = on_row, .on_note = on_note, .context = check};
    struct runtime_sum sum = {0};
    if (runtime_run(&check->cli->config, &batch, &show, &sum, &check->cli->err) < 0)
        return -1;
    if (sum.cancelled)
        return err_set(&check->cli->err, ERR_CANCELLED, "cancelled");
    return 0;
}

static int run_both(struct check *check, bool offline)
{
    const char **tasks = mem_zero((check->count + 1) * sizeof *tasks);
    size_t count = 0;
    int result = 0;
    check->order = mem_zero((check->count + 1) * sizeof(struct row *));
    for (size_t i = 0; i < check->count; i++) {
        struct row *row = &check->rows[i];
        if (!row->verified || !row->solved)
            continue;
        row->at = &row->oracle;
        check->order[count] = row;
        tasks[count++] = row->source;
    }
    if (count)
        result = run_agent(check, "oracle", tasks, count, offline);
    for (size_t i = 0; i < check->count; i++) {
        check->order[i] = &check->rows[i];
        check->rows[i].at = &check->rows[i].nop;
    }
    if (result == 0)
        result = run_agent(check, "nop", (const char *const *)(check->cli->argv + 1),
                           (size_t)check->cli->argc - 1, offline);
    free(tasks);
    return result;
}

/* ---------------------------------------------------------------- judging the judge */
static void say(struct row *row, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void say(struct row *row, const char *format, ...)
{
    va_list args;
    if (!row->good)
        return; /* the first thing counts */
    va_start(args, format);
    vsnprintf(row->verdict, sizeof row->verdict, format, args);
    va_end(args);
    row->good = false;
}

static void judge(struct row *row, bool ran)
{
    snprintf(row->verdict, sizeof row->verdict, "fine");
    if (!ran)
        return;
    const struct trial *oracle = &row->oracle, *nop = &row->nop;
    if (nop->run && strcmp(nop->fate, "ok") != 0)
        say(row, "the empty run ended as %s: %s", nop->fate, nop->error);
    if (!row->verified) {
        if (row->good)
            snprintf(row->verdict, sizeof row->verdict, "no verifier, so no reward");
        return;
    }
    if (oracle->run && strcmp(oracle->fate, "ok") != 0)
        say(row, "the solution ended as %s: %s", oracle->fate, oracle->error);
    if (oracle->run && oracle->rewarded && oracle->reward != 1)
        say(row, "the solution earns %g, not 1", oracle->reward);
    if (nop->rewarded && nop->reward >= 1)
        say(row, "doing nothing earns %g", nop->reward);
    if (!oracle->run && row->good)
        snprintf(row->verdict, sizeof row->verdict, "fine, but it has no solution");
}

/* ---------------------------------------------------------------- telling */
static void write_trial(struct json_writer *out, const char *key, const struct trial *trial)
{
    json_key(out, key);
    if (!trial->run) {
        json_put_null(out);
        return;
    }
    json_begin_object(out);
    json_set_text(out, "class", trial->fate);
    if (trial->rewarded)
        json_set_double(out, "reward", trial->reward);
    else
        json_set_raw(out, "reward", STR("null"));
    if (trial->error[0])
        json_set_text(out, "error", trial->error);
    json_end_object(out);
}

static void tell_json(const struct check *check)
{
    for (size_t i = 0; i < check->count; i++) {
        const struct row *row = &check->rows[i];
        OWN(buf) struct buf line = {0};
        struct json_writer out = {.out = &line};
        json_begin_object(&out);
        json_set_text(&out, "name", row->name);
        json_set_bool(&out, "good", row->good);
        json_set_text(&out, "verdict", row->verdict);
        write_trial(&out, "oracle", &row->oracle);
        write_trial(&out, "nop", &row->nop);
        json_set_raw(&out, "task", json_raw(row->facts));
        json_end_object(&out);
        printf("%.*s\n", STR_ARGS(buf_str(&line)));
    }
}

static const char *reward_text(char text[16], const struct trial *trial)
{
    if (!trial->run)
        return "-";
    if (!trial->rewarded)
        return "none";
    snprintf(text, 16, "%.2f", trial->reward);
    return text;
}

static void tell_table(struct check *check, bool ran)
{
    OWN(arena) struct arena arena = {0};
    if (ran)
        printf("%-28s %8s %8s   %s\n", "task", "solution", "nothing", "");
    for (size_t i = 0; i < check->count; i++) {
        const struct row *row = &check->rows[i];
        char one[16], two[16];
        struct str verdict = cli_harmless(str_of(row->verdict), &arena);
        if (ran)
            printf("%-28s %8s %8s   %.*s\n", row->name, reward_text(one, &row->oracle),
                   reward_text(two, &row->nop), STR_ARGS(verdict));
        else
            printf("%-28s %.*s\n", row->name, STR_ARGS(verdict));
        JSON_EACH (item, json_get(row->facts, "warnings"))
            printf("    warning: %.*s\n", STR_ARGS(json_str(item.value, &arena)));
    }
}

static int run_check(struct cli *cli, const struct tasks_flags *own)
{
    struct check check = {.cli = cli};
    int code = 0;
    for (int i = 1; i < cli->argc && code == 0; i++)
        if (read_operand(&check, cli->argv[i]) < 0)
            code = cli_fail(cli);
    if (code == 0 && !own->no_run && run_both(&check, own->offline) < 0)
        code = cli_fail(cli);
    if (code == 0) {
        for (size_t i = 0; i < check.count; i++) {
            judge(&check.rows[i], !own->no_run);
            code = check.rows[i].good ? code : 1;
        }
        if (own->json)
            tell_json(&check);
        else
            tell_table(&check, !own->no_run);
        code = cli_flush(cli, code);
    }
    for (size_t i = 0; i < check.doc_count; i++) {
        json_doc_deinit(check.docs[i]);
        free(check.docs[i]);
    }
    free(check.docs);
    free(check.rows);
    free(check.order);
    arena_deinit(&check.arena);
    return code;
}

/* ---------------------------------------------------------------- listing */
static int list(struct cli *cli, const struct tasks_flags *own)
{
    struct check check = {.cli = cli};
    OWN(mem) char *samples = NULL;
    const char *share = runtime_share_dir();
    int code = 0;
    if (cli->argc == 1 && share) {
        samples = mem_format("%s/tasks", share);
        if (read_operand(&check, samples) < 0)
            code = cli_fail(cli);
    }
    for (int i = 1; i < cli->argc && code == 0; i++)
        if (read_operand(&check, cli->argv[i]) < 0)
            code = cli_fail(cli);
    for (size_t i = 0; i < check.count && code == 0; i++) {
        const struct row *row = &check.rows[i];
        struct str facts = json_raw(row->facts);
        if (own->json)
            printf("%.*s\n", STR_ARGS(facts));
        else
            printf("%-28s %-12s %s\n", row->name,
                   !row->verified ? "no verifier"
                   : row->solved  ? "solvable"
                                  : "no solution",
                   row->source);
    }
    for (size_t i = 0; i < check.doc_count; i++) {
        json_doc_deinit(check.docs[i]);
        free(check.docs[i]);
    }
    free(check.docs);
    free(check.rows);
    arena_deinit(&check.arena);
    return code ? code : cli_flush(cli, 0);
}

static int run(struct cli *cli)
{
    struct tasks_flags own = {0};
    if (flags_take(cli, flags, &own, false) < 0 || operands_check(cli, 1, 10000) < 0)
        return cli_fail(cli);
    if (strcmp(cli->argv[0], "ls") == 0)
        return list(cli, &own);
    if (strcmp(cli->argv[0], "check") != 0) {
        err_set(&cli->err, ERR_INPUT, "'%s' is not one of: postern tasks %s", cli->argv[0],
                cli->command->arguments);
        return cli_fail(cli);
    }
    if (operands_check(cli, 2, 10000) < 0)
        return cli_fail(cli);
    return run_check(cli, &own);
}

const struct command command_tasks = {
    .name = "tasks",
    .arguments = "check DIR|FILE... | ls [DIR|FILE...]",
    .summary = "check tasks with their solution and with nothing; list them",
    .help =
        "check reads each task and says what is wrong, with file, line and column; then it runs "
        "the task's own\n"
        "solution, which has to earn 1, and an agent that does nothing, which has to earn less. "
        "No model is asked.\n\n"
        "Exit code: 0 when every task is good; 1 when one is not; 2 and above when one cannot "
        "be read (docs/cli.md).",
    .run = run,
    .flags = flags,
};
