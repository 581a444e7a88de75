/* cmd_export.c - postern export: what is to be trained on, in the form a trainer reads. */
#include "cli/cli.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/mem.h"
#include "runtime/runtime.h"

struct export_flags {
    const char *format, *output;
    uint32_t realign;
};
#define AT(field) offsetof(struct export_flags, field)
/* clang-format off */
static const struct flag flags[] = {
    {"format",  'f', FLAG_TEXT,  AT(format),  NULL, "FORM", "jsonl (default), binary, trace"},
    {"output",  'o', FLAG_TEXT,  AT(output),  NULL, "FILE", "instead of standard output"},
    {"realign", 0,   FLAG_COUNT, AT(realign), NULL, "N", "bridge differences of at most N tokens; default: none"},
    {0},
};
/* clang-format on */

static int read_format(const char *name, enum runtime_export *out, struct err *err)
{
    static const char *const names[] = {"jsonl", "binary", "trace"};
    *out = RUNTIME_EXPORT_LINES;
    for (size_t i = 0; name && i < COUNT(names); i++) {
        if (strcmp(name, names[i]) != 0)
            continue;
        *out = (enum runtime_export)i;
        return 0;
    }
    return name ? err_set(err, ERR_INPUT, "--format is jsonl, binary or trace, not '%s'", name) : 0;
}

static int write_to(struct cli *cli, const struct export_flags *options, char **dirs,
                    enum runtime_export format)
{
    const char *const *list = (const char *const *)dirs;
    size_t count = (size_t)cli->argc;
    if (!options->output) {
        if (format == RUNTIME_EXPORT_BINARY && isatty(STDOUT_FILENO))
            return err_set(&cli->err, ERR_INPUT,
                           "the binary form is not for a terminal: --output FILE");
        return runtime_export(&cli->config, list, count, format, options->realign, STDOUT_FILENO,
                              &cli->err);
    }
    OWN(mem) char *fresh = mem_format("%s.new", options->output);
    OWN(fd) int fd = open(fresh, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0)
        return err_errno(&cli->err, "'%s'", fresh);
    if (runtime_export(&cli->config, list, count, format, options->realign, fd, &cli->err) < 0) {
        (void)unlink(fresh);
        return -1;
    }
    return rename(fresh, options->output) < 0 ? err_errno(&cli->err, "'%s'", options->output) : 0;
}

static int run(struct cli *cli)
{
    struct export_flags options = {0};
    enum runtime_export format;
    if (flags_take(cli, flags, &options, false) < 0 || operands_check(cli, 1, 100000) < 0 ||
        read_format(options.format, &format, &cli->err) < 0)
        return cli_fail(cli);
    char **dirs = mem_zero(((size_t)cli->argc + 1) * sizeof *dirs);
    int result = 0;
    for (int i = 0; i < cli->argc && result == 0; i++) {
        dirs[i] = folder_find(cli->config.home, cli->argv[i], &cli->err);
        result = dirs[i] ? 0 : -1;
    }
    if (result == 0)
        result = write_to(cli, &options, dirs, format);
    for (int i = 0; i < cli->argc; i++)
        free(dirs[i]);
    free(dirs);
    return result < 0 ? cli_fail(cli) : 0;
}

const struct command command_export = {
    .name = "export",
    .arguments = "[flags] ID...",
    .summary = "samples or traces of rollouts that are over",
    .help = "Rows to train on, made from the record of each rollout: JSON lines, or little-endian "
            "arrays that\n"
            "numpy maps (docs/samples.md), or one line per rollout in the trace shape that "
            "Verifiers-style\n"
            "trainers read. An id may be shortened as long as it fits one rollout.",
    .run = run,
    .flags = flags,
};
