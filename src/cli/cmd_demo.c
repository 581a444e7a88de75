/* cmd_demo.c - postern demo: the sample tasks with the scripted model, to see all of it move. */
#include "cli/cli.h"

#include <stdio.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/mem.h"
#include "json/json.h"
#include "runtime/runtime.h"

static const char *const samples[] = {"fix-failing-test", "write-a-program", "parse-a-log",
                                      "repair-git", "edit-config"};
#define EACH 3

struct demo_flags {
    bool json;
};
static const struct flag flags[] = {
    {"json", 0, FLAG_BOOLEAN, offsetof(struct demo_flags, json), NULL, NULL,
     "one result object per line on standard output"},
    {0},
};

static void explain(const char *home)
{
    printf("\nWhat this was: the agent 'mini' in %zu local sandboxes without a network, its model "
           "calls answered\n"
           "through the inlet by a script that solves some tasks and fails others, each judged by "
           "its own\n"
           "verifier in a fresh sandbox made from the final files.\n\n"
           "  postern ls                 the rollouts\n"
           "  postern show ID            one of them: result, transcript, timings\n"
           "  %s/rollouts/  everything, readable with jq and a pager\n"
           "  postern shell              a sandbox to look around in\n",
           COUNT(samples) * EACH, home);
}

/* Ordinary users often get no control groups of their own. The demo must run all the same: it then
 * asks for the weaker level by its name, and says so. */
#define LIMITS_CHECK "memory and pids limits"
enum { ISOLATION_FULL = 0, ISOLATION_NO_LIMITS = 1 }; /* as `sandbox.isolation` counts its words */

static void choose_isolation(struct cli *cli)
{
    if (cli->config.sandbox_isolation != ISOLATION_FULL)
        return;
    OWN(buf) struct buf report = {0};
    OWN(json_doc) struct json_doc doc = {0};
    struct json_writer writer = {.out = &report};
    if (runtime_doctor(&cli->config, &writer) == 0 ||
        json_read(&doc, buf_str(&report), NULL, NULL) < 0)
        return;
    JSON_EACH (item, json_get(json_root(&doc), "checks")) {
        if (!json_is(json_get(item.value, "name"), LIMITS_CHECK) ||
            !json_is(json_get(item.value, "state"), "missing"))
            continue;
        fprintf(stderr,
                "postern demo: no control groups for this user here, so memory and pids are "
                "not limited (--isolation no-limits)\n");
        cli->config.sandbox_isolation = ISOLATION_NO_LIMITS;
    }
}

static int run(struct cli *cli)
{
    struct demo_flags own = {0};
    if (flags_take(cli, flags, &own, false) < 0 || operands_check(cli, 0, 0) < 0)
        return cli_fail(cli);
    choose_isolation(cli);
    const char *share = runtime_share_dir();
    if (!share) {
        err_set(&cli->err, ERR_NOT_FOUND, "the sample tasks were not found; set POSTERN_SHARE");
        return cli_fail(cli);
    }
    char *tasks[COUNT(samples)];
    for (size_t i = 0; i < COUNT(samples); i++)
        tasks[i] = mem_format("%s/tasks/%s", share, samples[i]);
    OWN(mem) char *model = mem_format("script:%s/tasks/demo-script.toml", share);
    struct runtime_batch batch = {
        .agent = "mini",
        .tasks = (const char *const *)tasks,
        .task_count = COUNT(samples),
        .model = model,
        .label = "demo",
        .each = EACH,
    };
    enum progress_form form = own.json                ? PROGRESS_JSON
                              : isatty(STDOUT_FILENO) ? PROGRESS_TABLE
                                                      : PROGRESS_LINES;
    struct runtime_show show;
    struct runtime_sum sum = {0};
    struct progress *progress = progress_new(form, &show);
    int code;
    if (runtime_run(&cli->config, &batch, &show, &sum, &cli->err) < 0) {
        code = cli_fail(cli);
    } else {
        progress_finish(progress, &sum, cli->config.home);
        if (!own.json)
            explain(cli->config.home);
        code = cli_flush(cli, progress_code(&sum));
    }
    progress_free(progress);
    for (size_t i = 0; i < COUNT(samples); i++)
        own_mem(&tasks[i]);
    return code;
}

const struct command command_demo = {
    .name = "demo",
    .arguments = "[--json]",
    .summary = "run the sample tasks with a scripted model",
    .help =
        "Five small tasks, three rollouts each, in real sandboxes. No key, no network, no daemon.",
    .run = run,
    .flags = flags,
};
