/* main.c - postern-mini: a bash-only agent in one static program. See docs/mini.md. */
#include <signal.h>
#include <unistd.h>

#include "mini.h"

/* The command that runs right now must not outlive us. */
static void on_signal(int number)
{
    mini_shell_kill();
    _exit(128 + number);
}

int main(int argc, char **argv)
{
    struct mini_options options;
    int exit_code;
    if (mini_options_read(argc, argv, &options, &exit_code) < 0)
        return exit_code;
    (void)signal(SIGPIPE, SIG_IGN);
    (void)signal(SIGTERM, on_signal);
    (void)signal(SIGINT, on_signal);
    (void)signal(SIGHUP, on_signal);
    return mini_agent_run(&options);
}
