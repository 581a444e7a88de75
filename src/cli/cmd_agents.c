/* cmd_agents.c - postern agents ls, check, install, rm and gc: specs read, what is wrong with them,
 * and agents built into bundles. */
#include "cli/cli.h"

#include <stdio.h>
#include <string.h>

#include "base/arena.h"
#include "base/mem.h"
#include "base/text.h"
#include "json/json.h"
#include "runtime/runtime.h"

struct json_flag {
    bool json;
};
static const struct flag flags[] = {
    {"json", 0, FLAG_BOOLEAN, offsetof(struct json_flag, json), NULL, NULL, "as JSON"},
    {0},
};

static int unknown_verb(struct cli *cli)
{
    err_set(&cli->err, ERR_INPUT, "'%s' is not one of: postern %s %s", cli->argv[0],
            cli->command->name, cli->command->arguments);
    return cli_fail(cli);
}

static int list_agents(struct cli *cli, bool as_json)
{
    OWN(buf) struct buf text = {0};
    OWN(json_doc) struct json_doc doc = {0};
    OWN(arena) struct arena arena = {0};
    struct json_writer writer = {.out = &text};
    if (runtime_agents(&cli->config, &writer, &cli->err) < 0)
        return cli_fail(cli);
    if (as_json) {
        printf("%.*s\n", STR_ARGS(buf_str(&text)));
        return cli_flush(cli, 0);
    }
    if (json_read(&doc, buf_str(&text), NULL, &cli->err) < 0)
        return cli_fail(cli);
    JSON_EACH (item, json_root(&doc)) {
        struct str name = json_str(json_get(item.value, "name"), &arena);
        struct str summary = json_str(json_get(item.value, "summary"), &arena);
        struct str error = json_str(json_get(item.value, "error"), &arena);
        char size[32] = "";
        long long bytes;
        struct json installed = json_get(item.value, "installed");
        if (json_int(json_get(item.value, "bytes"), &bytes))
            text_size(size, sizeof size, (uint64_t)bytes);
        else if (json_exists(installed))
            snprintf(size, sizeof size, "not installed");
        printf("%-12.*s %-14s %s%.*s\n", STR_ARGS(name), size, error.size ? "cannot be used: " : "",
               STR_ARGS(error.size ? error : summary));
    }
    return cli_flush(cli, 0);
}

static int install_agents(struct cli *cli, bool as_json)
{
    for (int i = 1; i < cli->argc; i++) {
        OWN(buf) struct buf text = {0};
        OWN(json_doc) struct json_doc doc = {0};
        OWN(arena) struct arena arena = {0};
        struct json_writer writer = {.out = &text};
        if (runtime_agent_install(&cli->config, cli->argv[i], &writer, &cli->err) < 0)
            return cli_fail(cli);
        if (as_json) {
            printf("%.*s\n", STR_ARGS(buf_str(&text)));
            continue;
        }
        if (json_read(&doc, buf_str(&text), NULL, &cli->err) < 0)
            return cli_fail(cli);
        char size[32];
        struct json root = json_root(&doc);
        text_size(size, sizeof size, (uint64_t)json_int_or(json_get(root, "bytes"), 0));
        printf("%s %.*s is installed: %s in %.*s\n", cli->argv[i],
               STR_ARGS(json_str(json_get(root, "version"), &arena)), size,
               STR_ARGS(json_str(json_get(root, "bundle"), &arena)));
    }
    return cli_flush(cli, 0);
}

/* `what`: NAME or NAME@VERSION; NULL: whatever no spec wants any more. */
static int remove_agents(struct cli *cli, const char *what, bool as_json)
{
    OWN(buf) struct buf text = {0};
    OWN(json_doc) struct json_doc doc = {0};
    OWN(arena) struct arena arena = {0};
    struct json_writer writer = {.out = &text};
    if (runtime_agents_remove(&cli->config, what, &writer, &cli->err) < 0)
        return cli_fail(cli);
    if (as_json) {
        printf("%.*s\n", STR_ARGS(buf_str(&text)));
        return 0;
    }
    if (json_read(&doc, buf_str(&text), NULL, &cli->err) < 0)
        return cli_fail(cli);
    JSON_EACH (item, json_root(&doc)) {
        char size[32];
        text_size(size, sizeof size, (uint64_t)json_int_or(json_get(item.value, "bytes"), 0));
        printf("%.*s %s (%s)\n", STR_ARGS(json_str(json_get(item.value, "bundle"), &arena)),
               json_true(json_get(item.value, "removed")) ? "is removed" : "is in use and stays",
               size);
    }
    return 0;
}

static int run_agents(struct cli *cli)
{
    struct json_flag own = {0};
    if (flags_take(cli, flags, &own, false) < 0 || operands_check(cli, 1, 64) < 0)
        return cli_fail(cli);
    if (strcmp(cli->argv[0], "install") == 0)
        return operands_check(cli, 2, 64) < 0 ? cli_fail(cli) : install_agents(cli, own.json);
    if (strcmp(cli->argv[0], "ls") == 0)
        return operands_check(cli, 1, 1) < 0 ? cli_fail(cli) : list_agents(cli, own.json);
    if (strcmp(cli->argv[0], "rm") == 0) {
        int result = operands_check(cli, 2, 64) < 0 ? cli_fail(cli) : 0;
        for (int i = 1; i < cli->argc && result == 0; i++)
            result = remove_agents(cli, cli->argv[i], own.json);
        return result ? result : cli_flush(cli, 0);
    }
    if (strcmp(cli->argv[0], "gc") == 0) {
        int result =
            operands_check(cli, 1, 1) < 0 ? cli_fail(cli) : remove_agents(cli, NULL, own.json);
        return result ? result : cli_flush(cli, 0);
    }
    if (strcmp(cli->argv[0], "check") != 0)
        return unknown_verb(cli);
    OWN(buf) struct buf text = {0};
    struct json_writer writer = {.out = &text};
    if (operands_check(cli, 2, 2) < 0 || runtime_agent_check(cli->argv[1], &writer, &cli->err) < 0)
        return cli_fail(cli);
    if (own.json)
        printf("%.*s\n", STR_ARGS(buf_str(&text)));
    else
        printf("%s is fine\n", cli->argv[1]);
    return cli_flush(cli, 0);
}

const struct command command_agents = {.name = "agents",
                                       .arguments = "ls | check NAME|FILE | install NAME|FILE... | "
                                                    "rm NAME[@VERSION]... | gc",
                                       .summary = "agents: list, check, install, remove",
                                       .run = run_agents,
                                       .flags = flags};
