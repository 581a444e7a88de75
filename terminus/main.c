/* main.c - postern-terminus: an agent with a terminal, in one static program. See docs/terminus.md.
 */
#include <signal.h>
#include <unistd.h>

#include "terminus.h"

/* What runs in the terminal must not outlive us. */
static void on_signal(int number)
{
    terminal_kill();
    _exit(128 + number);
}

int main(int argc, char **argv)
{
    struct terminus_options options;
    int exit_code;
    if (terminus_options_read(argc, argv, &options, &exit_code) < 0)
        return exit_code;
    (void)signal(SIGPIPE, SIG_IGN);
    (void)signal(SIGTERM, on_signal);
    (void)signal(SIGINT, on_signal);
    (void)signal(SIGHUP, on_signal);
    return terminus_run(&options);
}
