/* commands.c - to add a command: write cmd_<name>.c and name it here. */
#include "cli/cli.h"

#include <string.h>

const struct command *const commands[] = {
    &command_run,    &command_demo,    &command_ls,    &command_show,
    &command_export, &command_gc,      &command_exec,  &command_shell,
    &command_serve,  &command_doctor,  &command_image, &command_agents,
    &command_tasks,  &command_version, &command_help,  NULL,
};

const struct command *command_find(const char *name)
{
    for (size_t i = 0; commands[i]; i++)
        if (strcmp(commands[i]->name, name) == 0)
            return commands[i];
    return NULL;
}
