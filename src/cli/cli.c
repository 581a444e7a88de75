/* cli.c - from argv to a command: settings, the log, one way to complain. */
#include "cli/cli.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/text.h"
#include "json/json.h"

extern char **environ;

int cli_fail_as(const struct cli *cli, int code)
{
    (void)fflush(stdout);
    fprintf(stderr, "postern%s%s: %s\n", cli->command ? " " : "",
            cli->command ? cli->command->name : "", cli->err.text);
    return code;
}

int cli_fail(const struct cli *cli)
{
    return cli_fail_as(cli, err_meaning(cli->err.kind)->exit_code);
}

int cli_flush(struct cli *cli, int code)
{
    if (fflush(stdout) == 0 && !ferror(stdout))
        return code;
    if (errno == EPIPE)
        return code ? code : 141;
    err_errno(&cli->err, "writing to standard output");
    return cli_fail(cli);
}

bool cli_colour(void)
{
    const char *term = getenv("TERM");
    return isatty(STDOUT_FILENO) && !getenv("NO_COLOR") && term && strcmp(term, "dumb") != 0;
}

void cli_write_buf(struct str text)
{
    (void)fwrite(text.data, 1, text.size, stdout);
}

struct str cli_harmless(struct str text, struct arena *arena)
{
    char *copy = arena_text(arena, text);
    for (size_t i = 0; i < text.size; i++) {
        unsigned char byte = (unsigned char)copy[i];
        /* U+0080 to U+009F are control characters too: c2 80 to c2 9f. */
        bool c1 = byte == 0xc2 && i + 1 < text.size && (unsigned char)copy[i + 1] < 0xa0;
        if (byte < ' ' || byte == 127 || c1)
            copy[i] = '?';
        if (c1)
            copy[++i] = '?';
    }
    return str_make(copy, text.size);
}

/* Whether anybody said how much to log; else commands for people are quieter than a server. */
static bool log_level_was_said(const struct config *config)
{
    OWN(buf) struct buf text = {0};
    OWN(json_doc) struct json_doc doc = {0};
    struct json_writer writer = {.out = &text};
    config_write_json(config, &writer);
    if (json_read(&doc, buf_str(&text), NULL, NULL) < 0)
        return false;
    struct json source = json_get(json_get(json_root(&doc), "log.level"), "source");
    return json_exists(source) && !json_is(source, "fallback") && !json_is(source, "default");
}

static void set_up_log(const struct cli *cli)
{
    enum log_level level = (enum log_level)cli->config.log_level;
    bool server = cli->command == &command_serve;
    if (!server && !log_level_was_said(&cli->config) && level < LOG_WARN)
        level = LOG_WARN;
    log_setup(level, cli->config.log_json);
}

static int unknown_command(struct cli *cli, const char *name)
{
    const char *names[32];
    size_t count = 0;
    for (size_t i = 0; commands[i] && count < COUNT(names); i++)
        names[count++] = commands[i]->name;
    const char *nearest = text_nearest(name, names, count);
    if (nearest)
        err_set(&cli->err, ERR_INPUT, "there is no command '%s'; did you mean '%s'?", name,
                nearest);
    else
        err_set(&cli->err, ERR_INPUT, "there is no command '%s' (see: postern help)", name);
    return cli_fail(cli);
}

static int run_help(struct cli *cli, const char *topic)
{
    char *argv[] = {(char *)(uintptr_t)topic, NULL};
    cli->command = &command_help;
    cli->argc = topic ? 1 : 0;
    cli->argv = argv;
    return command_help.run(cli);
}

static bool asks_for_help(int argc, char **argv)
{
    for (int i = 0; i < argc && strcmp(argv[i], "--") != 0; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0)
            return true;
    return false;
}

int cli_main(int argc, char **argv)
{
    struct cli cli = {0};
    if (argc < 2) {
        int code = run_help(&cli, NULL);
        return code ? code : 2;
    }
    const char *name = argv[1];
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0)
        return run_help(&cli, NULL);
    if (strcmp(name, "--version") == 0)
        name = "version";
    const struct command *command = command_find(name);
    if (!command)
        return unknown_command(&cli, name);
    cli.argc = argc - 2;
    cli.argv = argv + 2;
    if (asks_for_help(cli.argc, cli.argv))
        return run_help(&cli, command->name);
    cli.command = command;
    config_init(&cli.config);
    int code,
        words = argc - 1; /* the command's name stands where config_load() expects the program's */
    int loaded = command->raw ? 0 : config_load(&cli.config, &words, argv + 1, environ, &cli.err);
    cli.argc = words - 1;
    if (loaded < 0) {
        code = cli_fail(&cli);
    } else {
        set_up_log(&cli);
        if (!command->raw)
            config_warn_environment(environ);
        code = command->run(&cli);
    }
    config_deinit(&cli.config);
    return code;
}
