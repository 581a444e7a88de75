/* cmd_run.c - postern run: rollouts of one agent on one or more tasks, with live progress. */
#include "cli/cli.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "runtime/runtime.h"

struct run_flags {
    const char *agent, *model, *mode, *sampling, *label, *root, *key_env;
    struct flag_list tasks;
    uint32_t each, timeout_ms, turns_max;
    bool skip_permissions, json, offline, exact_prefix;
};

#define AT(field) offsetof(struct run_flags, field)
/* clang-format off */
static const struct flag flags[] = {
    {"agent",     'a', FLAG_TEXT,     AT(agent),      NULL, "NAME|FILE", "agent spec; default: mini"},
    {"task",      't', FLAG_LIST,     AT(tasks),      NULL, "DIR|FILE|JSON|-", "a task; may be given several times"},
    {"model",     'm', FLAG_TEXT,     AT(model),      NULL, "URL#NAME|script:FILE", "what answers the model calls"},
    {"count",     'n', FLAG_COUNT,    AT(each),       NULL, "N", "rollouts per task; default: 1"},
    {"parallel",  'p', FLAG_SETTING,  0, "rollout.parallel-max", "P", "rollouts at once"},
    {"mode",      0,   FLAG_TEXT,     AT(mode),       NULL, "MODE", "black_box (default), proxy or gate"},
    {"sampling",  0,   FLAG_TEXT,     AT(sampling),   NULL, "JSON", "imposed in mode proxy: temperature, top_p, max_tokens, thinking"},
    {"exact-prefix", 0, FLAG_BOOLEAN, AT(exact_prefix), NULL, NULL, "prompts go on from sampled tokens (modes proxy and gate; docs/samples.md)"},
    {"json",      0,   FLAG_BOOLEAN,  AT(json),       NULL, NULL, "one result object per line on standard output"},
    {"timeout",   0,   FLAG_DURATION, AT(timeout_ms), NULL, "TIME", "for the agent; default: as the task says"},
    {"turns",     0,   FLAG_COUNT,    AT(turns_max),  NULL, "N", "turns an agent may take"},
    {"offline",   0,   FLAG_BOOLEAN,  AT(offline),    NULL, NULL, "run tasks that ask for a network without one"},
    {"skip-permissions", 0, FLAG_BOOLEAN, AT(skip_permissions), NULL, NULL, "switch off the agent's own permission checks, where its spec says how"},
    {"carry",     0,   FLAG_SETTING,  0, "rollout.carry",     "PATHS", "system directories in which the agent's changes count; /: all"},
    {"backend",   0,   FLAG_SETTING,  0, "sandbox.backend",   "NAME", "where sandboxes come from"},
    {"root",      0,   FLAG_TEXT,     AT(root),       NULL, "ROOT", "host, dir:/path or image:NAME"},
    {"isolation", 0,   FLAG_SETTING,  0, "sandbox.isolation", "LEVEL", "full (default), no-limits, no-seccomp"},
    {"key-env",   0,   FLAG_TEXT,     AT(key_env),    NULL, "VARIABLE", "environment variable with the model's key"},
    {"key-file",  0,   FLAG_SETTING,  0, "gateway.key-file",  "FILE", "file with the model's key"},
    {"label",     0,   FLAG_TEXT,     AT(label),      NULL, "TEXT", "name of this run, kept with each rollout"},
    {0},
};
/* clang-format on */

static int run(struct cli *cli)
{
    struct run_flags own = {.agent = "mini", .each = 1};
    if (flags_take(cli, flags, &own, false) < 0 || operands_check(cli, 0, 0) < 0)
        return cli_fail(cli);
    OWN(mem) char *no_model = NULL;
    const char *share = runtime_share_dir();
    if (!own.model && share && (strcmp(own.agent, "oracle") == 0 || strcmp(own.agent, "nop") == 0))
        own.model = no_model = mem_format("script:%s/tasks/no-model.toml", share);
    if (!own.tasks.count || !own.model) {
        err_set(&cli->err, ERR_INPUT, "%s is needed (see: postern help run)",
                own.model ? "--task" : "--model");
        return cli_fail(cli);
    }
    struct runtime_batch batch = {
        .agent = own.agent,
        .tasks = own.tasks.items,
        .task_count = own.tasks.count,
        .model = own.model,
        .key_env = own.key_env,
        .mode = own.mode,
        .sampling = own.sampling,
        .exact_prefix = own.exact_prefix,
        .label = own.label,
        .root = own.root,
        .each = own.each,
        .wall_ms_max = own.timeout_ms,
        .turns_max = own.turns_max,
        .skip_permissions = own.skip_permissions,
        .offline = own.offline,
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
        code = cli_flush(cli, progress_code(&sum));
    }
    progress_free(progress);
    return code;
}

const struct command command_run = {
    .name = "run",
    .arguments = "--task TASK... --model MODEL [flags]",
    .summary = "run rollouts and judge them",
    .help = "Runs the agent on each task N times, each in a sandbox of its own, and lets the "
            "task's verifier judge it.\n"
            "Everything that happened is kept in HOME/rollouts/<id>/. Ctrl-C cancels; a second one "
            "hurries.\n\n"
            "Exit code: 0 when every rollout came back with a class that can carry a reward; 1 "
            "when one failed for\n"
            "infrastructure, upstream or setup reasons; 130 when cancelled; 2 and above for errors "
            "(docs/cli.md).",
    .run = run,
    .flags = flags,
};
