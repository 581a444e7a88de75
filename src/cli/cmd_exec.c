/* cmd_exec.c - postern exec and postern shell: a command, or a person, in a fresh sandbox. */
#include "cli/cli.h"

#include <stdio.h>
#include <unistd.h>

#include "runtime/runtime.h"

#define OWN_FAILURE 125 /* as docker and env do: not the command's code */

struct exec_flags {
    const char *user, *cwd;
    struct flag_list env;
    uint64_t memory_bytes_max;
    uint32_t pids_max, cpu_millis, timeout_ms;
    bool as_root, pty;
};

#define AT(field) offsetof(struct exec_flags, field)
/* clang-format off */
#define SHARED_FLAGS \
    {"user",      'u', FLAG_TEXT,     AT(user),             NULL, "USER", "root, a name or uid[:gid]; default: the ordinary user"}, \
    {"as-root",   0,   FLAG_BOOLEAN,  AT(as_root),          NULL, NULL, "root inside, with the documented capabilities"}, \
    {"env",       'e', FLAG_LIST,     AT(env),              NULL, "NAME=VALUE", "environment; may be given several times"}, \
    {"cwd",       'w', FLAG_TEXT,     AT(cwd),              NULL, "DIR", "working directory inside"}, \
    {"memory",    0,   FLAG_SIZE,     AT(memory_bytes_max), NULL, "SIZE", "memory limit"}, \
    {"pids",      0,   FLAG_COUNT,    AT(pids_max),         NULL, "N", "limit on processes"}, \
    {"cpu",       0,   FLAG_COUNT,    AT(cpu_millis),       NULL, "MILLIS", "thousandths of a core"}, \
    {"root",      0,   FLAG_SETTING,  0, "sandbox.root",      "ROOT", "host (default), dir:/path or image:NAME"}, \
    {"backend",   0,   FLAG_SETTING,  0, "sandbox.backend",   "NAME", "where the sandbox comes from"}, \
    {"isolation", 0,   FLAG_SETTING,  0, "sandbox.isolation", "LEVEL", "full (default), no-limits, no-seccomp"}
static const struct flag flags[] = {
    SHARED_FLAGS,
    {"timeout",   0,   FLAG_DURATION, AT(timeout_ms),       NULL, "TIME", "the command and all it started is gone then"},
    {"pty",       't', FLAG_BOOLEAN,  AT(pty),              NULL, NULL, "a terminal of its own"},
    {0},
};
static const struct flag shell_flags[] = {
    SHARED_FLAGS,
    {0},
};
/* clang-format on */

static int check_env(struct cli *cli, const struct flag_list *env)
{
    for (size_t i = 0; i < env->count; i++) {
        const char *equals = strchr(env->items[i], '=');
        if (!equals || equals == env->items[i])
            return err_set(&cli->err, ERR_INPUT, "--env needs NAME=VALUE, not '%s'", env->items[i]);
    }
    return 0;
}

static int execute(struct cli *cli, const struct exec_flags *own, const char *const *argv)
{
    const struct config *config = &cli->config;
    if (own->user && !own->user[0]) {
        err_set(&cli->err, ERR_INPUT, "--user is empty; give root, a name or uid[:gid]");
        return cli_fail(cli);
    }
    bool as_root = own->as_root || (own->user && strcmp(own->user, "root") == 0);
    struct runtime_exec exec = {
        .argv = argv,
        .env = own->env.count ? own->env.items : NULL,
        .cwd = own->cwd,
        .user = own->user      ? own->user
                : own->as_root ? "root"
                               : NULL,
        .backend = config->sandbox_backend,
        .root = config->sandbox_root,
        .isolation = (int)config->sandbox_isolation,
        .memory_bytes_max = own->memory_bytes_max,
        .pids_max = own->pids_max,
        .cpu_millis = own->cpu_millis,
        .timeout_ms = own->timeout_ms,
        .root_user = as_root,
        .pty = own->pty,
    };
    char note[200];
    int code = runtime_exec(config, &exec, note, sizeof note, &cli->err);
    if (code < 0)
        return cli_fail_as(cli, OWN_FAILURE);
    if (note[0])
        fprintf(stderr, "postern %s: %s\n", cli->command->name, note);
    return code;
}

static int run_exec(struct cli *cli)
{
    struct exec_flags own = {0};
    if (flags_take(cli, flags, &own, true) < 0 || check_env(cli, &own.env) < 0)
        return cli_fail(cli);
    if (!cli->argc) {
        err_set(&cli->err, ERR_INPUT, "no command: postern exec [flags] -- CMD...");
        return cli_fail(cli);
    }
    return execute(cli, &own, (const char *const *)cli->argv);
}

static int run_shell(struct cli *cli)
{
    struct exec_flags own = {0};
    static const char *const shell[] = {
        "/bin/sh", "-c",
        "if command -v bash >/dev/null 2>&1; then exec bash -i; else exec sh -i; fi", NULL};
    if (flags_take(cli, shell_flags, &own, false) < 0 || check_env(cli, &own.env) < 0 ||
        operands_check(cli, 0, 0) < 0)
        return cli_fail(cli);
    if (!isatty(STDIN_FILENO)) {
        err_set(&cli->err, ERR_INPUT, "standard input is not a terminal; use postern exec");
        return cli_fail(cli);
    }
    own.pty = true;
    return execute(cli, &own, shell);
}

const struct command command_exec = {
    .name = "exec",
    .arguments = "[flags] -- CMD...",
    .summary = "run a command in a fresh sandbox",
    .help =
        "Standard input, output and error are passed through; the exit code is the command's. "
        "Otherwise: 124 the\n"
        "timeout came, 125 Postern itself failed (one sentence says why), 126 and 127 the command "
        "could not be\n"
        "started or does not exist, 128+N signal N ended it, 137 with a sentence: out of memory.",
    .run = run_exec,
    .flags = flags,
};

const struct command command_shell = {
    .name = "shell",
    .arguments = "[flags]",
    .summary = "a shell in a fresh sandbox, to look around",
    .help = "The sandbox is gone when the shell ends.",
    .run = run_shell,
    .flags = shell_flags,
};
