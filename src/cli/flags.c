/* flags.c - flags of a command, from its table: "--name value", "--name=value", "-n value",
 * "-nvalue". A flag nobody knows is one sentence with the nearest one, and exit code 2. */
#include "cli/cli.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/text.h"

static size_t flag_count(const struct flag *flags)
{
    size_t count = 0;
    while (flags && flags[count].name)
        count++;
    return count;
}

static int unknown(struct cli *cli, const struct flag *flags, const char *given)
{
    char word[80];
    snprintf(word, sizeof word, "%.*s", (int)strcspn(given, "="), given);
    const char *bare = word + strspn(word, "-");
    const char *names[64];
    size_t count = 0;
    for (size_t i = 0; i < flag_count(flags) && count < COUNT(names); i++)
        names[count++] = flags[i].name;
    const char *nearest = text_nearest(bare, names, count);
    const char *setting = nearest ? NULL : config_nearest_flag(word);
    if (nearest)
        return err_set(&cli->err, ERR_INPUT, "unknown flag %s; did you mean --%s?", word, nearest);
    if (setting)
        return err_set(&cli->err, ERR_INPUT, "unknown flag %s; did you mean %s?", word, setting);
    return err_set(&cli->err, ERR_INPUT, "unknown flag %s (see: postern help %s)", word,
                   cli->command->name);
}

static int set_value(struct cli *cli, const struct flag *flag, void *target, const char *value)
{
    void *field = (char *)target + flag->at;
    long long number = 0;
    unsigned long long bytes = 0;
    char shown[64];
    snprintf(shown, sizeof shown, "--%s", flag->name);
    switch (flag->type) {
    case FLAG_BOOLEAN:
        *(bool *)field = true;
        return 0;
    case FLAG_TEXT:
        *(const char **)field = value;
        return 0;
    case FLAG_LIST: {
        struct flag_list *list = field;
        if (list->count == FLAG_LIST_MAX)
            return err_set(&cli->err, ERR_LIMIT, "%s: more than %d times", shown, FLAG_LIST_MAX);
        list->items[list->count++] = value;
        return 0;
    }
    case FLAG_COUNT:
        if (!str_to_long(str_of(value), &number) || number < 1 || number > 10000000)
            return err_set(&cli->err, ERR_INPUT, "%s needs a number from 1 to 10000000, not '%s'",
                           shown, value);
        *(uint32_t *)field = (uint32_t)number;
        return 0;
    case FLAG_DURATION:
        if (!str_to_duration_ms(str_of(value), &number) || number < 1 || number > 604800000)
            return err_set(&cli->err, ERR_INPUT, "%s needs a time like 500ms, 30s or 5m, not '%s'",
                           shown, value);
        *(uint32_t *)field = (uint32_t)number;
        return 0;
    case FLAG_SIZE:
        if (!str_to_size(str_of(value), &bytes) || !bytes || bytes > 1ull << 50)
            return err_set(&cli->err, ERR_INPUT, "%s needs a size like 64M or 2G, not '%s'", shown,
                           value);
        *(uint64_t *)field = bytes;
        return 0;
    case FLAG_SETTING:
        return config_set(&cli->config, flag->setting, value, shown, &cli->err);
    }
    return 0;
}

static const struct flag *find_long(const struct flag *flags, const char *name, size_t size)
{
    for (size_t i = 0; i < flag_count(flags); i++)
        if (strlen(flags[i].name) == size && strncmp(flags[i].name, name, size) == 0)
            return &flags[i];
    return NULL;
}

static const struct flag *find_letter(const struct flag *flags, char letter)
{
    for (size_t i = 0; i < flag_count(flags); i++)
        if (flags[i].letter == letter)
            return &flags[i];
    return NULL;
}

/* Handles the flag at *at; *at then is the last argument it used. */
static int take_one(struct cli *cli, const struct flag *flags, void *target, int *at)
{
    const char *argument = cli->argv[*at];
    bool is_long = argument[1] == '-';
    const char *equals = is_long ? strchr(argument, '=') : NULL;
    const char *value = equals ? equals + 1 : NULL;
    const struct flag *flag =
        is_long ? find_long(flags, argument + 2,
                            equals ? (size_t)(equals - argument - 2) : strlen(argument + 2))
                : find_letter(flags, argument[1]);
    if (!flag)
        return unknown(cli, flags, argument);
    if (!is_long && argument[2])
        value = argument + 2;
    if (flag->type == FLAG_BOOLEAN) {
        if (value)
            return err_set(&cli->err, ERR_INPUT, "--%s takes no value", flag->name);
        return set_value(cli, flag, target, NULL);
    }
    if (!value) {
        if (*at + 1 >= cli->argc)
            return err_set(&cli->err, ERR_INPUT, "--%s needs a value (%s)", flag->name,
                           flag->value);
        value = cli->argv[++*at];
    }
    return set_value(cli, flag, target, value);
}

int flags_take(struct cli *cli, const struct flag *flags, void *target, bool stop_at_operand)
{
    int kept = 0, at = 0;
    for (; at < cli->argc; at++) {
        const char *argument = cli->argv[at];
        if (strcmp(argument, "--") == 0) {
            at++;
            break;
        }
        if (argument[0] != '-' || !argument[1]) {
            if (stop_at_operand)
                break;
            cli->argv[kept++] = cli->argv[at];
            continue;
        }
        if (take_one(cli, flags, target, &at) < 0)
            return -1;
    }
    for (; at < cli->argc; at++)
        cli->argv[kept++] = cli->argv[at];
    cli->argc = kept;
    cli->argv[kept] = NULL;
    return 0;
}

int operands_check(struct cli *cli, int min, int max)
{
    if (cli->argc < min)
        return err_set(&cli->err, ERR_INPUT, "something is missing: postern %s %s",
                       cli->command->name, cli->command->arguments);
    if (cli->argc > max)
        return err_set(&cli->err, ERR_INPUT, "'%s' is too much: postern %s %s", cli->argv[max],
                       cli->command->name, cli->command->arguments);
    return 0;
}
