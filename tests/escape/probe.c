/* probe.c - one static program with all escape attempts: `probe NAME [ARGUMENT...]`.
 *
 * It is built without the system's C library, so that one file can be piped into any sandbox and
 * any image: `cat > /tmp/probe && chmod +x /tmp/probe && /tmp/probe NAME`. `probe` alone lists the
 * names. Exit codes are the verdicts of probe.h; 2 is a wrong command line. */
#include "probe.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static int say(int verdict, const char *word, const char *format, va_list arguments)
{
    printf("%s ", word);
    vprintf(format, arguments);
    printf("\n");
    fflush(stdout);
    return verdict;
}

int refused(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    int verdict = say(PROBE_REFUSED, "REFUSED", format, arguments);
    va_end(arguments);
    return verdict;
}

int escaped(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    int verdict = say(PROBE_ESCAPED, "ESCAPED", format, arguments);
    va_end(arguments);
    return verdict;
}

int unclear(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    int verdict = say(PROBE_UNCLEAR, "UNCLEAR", format, arguments);
    va_end(arguments);
    return verdict;
}

int judge(const char *what, long result)
{
    if (result < 0)
        return refused("%s: %s", what, strerror(errno));
    return escaped("%s worked", what);
}

int main(int argc, char **argv)
{
    const struct probe *const tables[] = {probes_kernel, probes_proc, probes_load};

    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
        for (const struct probe *probe = tables[i]; probe->name; probe++) {
            if (argc < 2)
                printf("%-16s %s\n", probe->name, probe->help);
            else if (strcmp(probe->name, argv[1]) == 0)
                return probe->run(argc - 1, argv + 1);
        }
    if (argc < 2)
        return 0;
    fprintf(stderr, "probe: no probe is called '%s'\n", argv[1]);
    return 2;
}
