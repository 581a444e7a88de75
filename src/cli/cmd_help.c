/* cmd_help.c - postern help: commands from their table, flags and settings from theirs. */
#include "cli/cli.h"

#include <stdio.h>

#include "base/mem.h"

struct help_flags {
    bool settings, markdown;
};
static const struct flag flags[] = {
    {"settings", 0, FLAG_BOOLEAN, offsetof(struct help_flags, settings), NULL, NULL,
     "every setting"},
    {"settings-markdown", 0, FLAG_BOOLEAN, offsetof(struct help_flags, markdown), NULL, NULL,
     "docs/settings.md, from the same table"},
    {0},
};

static void list_commands(void)
{
    printf("postern COMMAND [flags]\n\n");
    for (size_t i = 0; commands[i]; i++)
        printf("  %-9s %s\n", commands[i]->name, commands[i]->summary);
    printf("\nMore: postern help COMMAND; settings that every command takes: postern help "
           "--settings\n");
}

static void describe(const struct command *command)
{
    printf("postern %s %s\n\n%s.\n", command->name, command->arguments, command->summary);
    if (command->help)
        printf("\n%s\n", command->help);
    if (command->flags)
        printf("\n");
    for (const struct flag *flag = command->flags; flag && flag->name; flag++) {
        char left[80];
        snprintf(left, sizeof left, "%s%c%s--%s %s", flag->letter ? "-" : " ",
                 flag->letter ? flag->letter : ' ', flag->letter ? ", " : "  ", flag->name,
                 flag->value ? flag->value : "");
        printf("  %-36s %s\n", left, flag->help);
    }
}

static int run(struct cli *cli)
{
    struct help_flags own = {0};
    if (flags_take(cli, flags, &own, false) < 0 || operands_check(cli, 0, 1) < 0)
        return cli_fail(cli);
    if (own.settings || own.markdown) {
        OWN(buf) struct buf text = {0};
        if (own.markdown)
            config_write_docs(&text);
        else
            config_help(&text);
        cli_write_buf(buf_str(&text));
        return cli_flush(cli, 0);
    }
    if (!cli->argc) {
        list_commands();
        return cli_flush(cli, 0);
    }
    const struct command *command = command_find(cli->argv[0]);
    if (!command) {
        err_set(&cli->err, ERR_INPUT, "there is no command '%s'", cli->argv[0]);
        return cli_fail(cli);
    }
    describe(command);
    return cli_flush(cli, 0);
}

const struct command command_help = {.name = "help",
                                     .arguments = "[COMMAND]",
                                     .summary = "this list, or what a command takes",
                                     .run = run,
                                     .flags = flags,
                                     .raw = true};
