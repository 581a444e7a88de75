/* cmd_serve.c - postern serve: the control listener, until told to stop. */
#include "cli/cli.h"

#include <stdio.h>

#include "runtime/runtime.h"

static const struct flag flags[] = {
    {"address", 0, FLAG_SETTING, 0, "listen.address", "ADDRESS",
     "where to listen; default: loopback"},
    {"port", 'p', FLAG_SETTING, 0, "listen.port", "PORT", "0: any free one, printed at start"},
    {"unix", 0, FLAG_SETTING, 0, "listen.unix", "PATH", "a unix socket as well"},
    {"parallel", 0, FLAG_SETTING, 0, "rollout.parallel-max", "P", "rollouts at once"},
    {0},
};

static void on_ready(void *context, const char *line)
{
    (void)context;
    puts(line);
    (void)fflush(stdout);
}

static int run(struct cli *cli)
{
    if (flags_take(cli, flags, NULL, false) < 0 || operands_check(cli, 0, 0) < 0 ||
        runtime_serve(&cli->config, on_ready, NULL, &cli->err) < 0)
        return cli_fail(cli);
    return cli_flush(cli, 0);
}

const struct command command_serve = {.name = "serve",
                                      .arguments = "[flags]",
                                      .summary = "serve the control API until SIGTERM",
                                      .run = run,
                                      .flags = flags};
