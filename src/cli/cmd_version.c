/* cmd_version.c - postern version. */
#include "cli/cli.h"

#include <stdio.h>

#include "runtime/runtime.h"

static int run(struct cli *cli)
{
    if (flags_take(cli, NULL, NULL, false) < 0 || operands_check(cli, 0, 0) < 0)
        return cli_fail(cli);
    printf("postern %s\n", POSTERN_VERSION);
    printf("programs: %s\n", runtime_program_dir());
    printf("data:     %s\n", runtime_share_dir() ? runtime_share_dir() : "not found");
    return cli_flush(cli, 0);
}

const struct command command_version = {.name = "version",
                                        .arguments = "",
                                        .summary = "this version and where its parts are",
                                        .run = run,
                                        .raw = true};
