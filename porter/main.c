/* main.c - postern-porter. README.md beside it is the contract for its command line. */
#include <stdio.h>

#include "base/err.h"
#include "porter.h"

extern char **environ;

int main(int argc, char **argv)
{
    struct porter_options options;
    struct err err = {0};
    int result = options_read(&options, argc, argv, environ, &err);
    if (result < 0)
        porter_die("%s", err.text);
    if (result == 1) {
        puts("postern-porter " POSTERN_VERSION);
        return 0;
    }
    return porter_run(&options);
}
