/* cmd_doctor.c - postern doctor: what this machine offers, primitive by primitive, and what
 * follows. */
#include "cli/cli.h"

#include <stdio.h>

#include "base/arena.h"
#include "base/mem.h"
#include "json/json.h"
#include "runtime/runtime.h"

struct doctor_flags {
    bool json;
};
static const struct flag flags[] = {
    {"json", 0, FLAG_BOOLEAN, offsetof(struct doctor_flags, json), NULL, NULL, "as JSON"},
    {0},
};

static void put_rows(struct json rows)
{
    OWN(arena) struct arena arena = {0};
    JSON_EACH (item, rows) {
        struct str name = json_str(json_get(item.value, "name"), &arena);
        struct str state = json_str(json_get(item.value, "state"), &arena);
        struct str detail = json_str(json_get(item.value, "detail"), &arena);
        struct str means = json_str(json_get(item.value, "means"), &arena);
        const char *colour = !cli_colour()           ? ""
                             : str_is(state, "ok")   ? "\033[32m"
                             : str_is(state, "weak") ? "\033[33m"
                                                     : "\033[31m";
        printf("%-24.*s %s%-9.*s%s %.*s%s%.*s\n", STR_ARGS(name), colour, STR_ARGS(state),
               cli_colour() ? "\033[0m" : "", STR_ARGS(detail),
               detail.size && means.size ? "; " : "", STR_ARGS(means));
    }
}

static int run(struct cli *cli)
{
    struct doctor_flags own = {0};
    OWN(buf) struct buf text = {0};
    OWN(json_doc) struct json_doc doc = {0};
    struct json_writer writer = {.out = &text};
    if (flags_take(cli, flags, &own, false) < 0 || operands_check(cli, 0, 0) < 0)
        return cli_fail(cli);
    int missing = runtime_doctor(&cli->config, &writer);
    if (own.json) {
        printf("%.*s\n", STR_ARGS(buf_str(&text)));
        return cli_flush(cli, missing ? 1 : 0);
    }
    if (json_read(&doc, buf_str(&text), NULL, &cli->err) < 0)
        return cli_fail(cli);
    struct json root = json_root(&doc);
    put_rows(json_type(root) == JSON_ARRAY ? root : json_get(root, "checks"));
    if (missing)
        printf("\n%d missing: sandboxes of the full level are refused here; see --isolation in "
               "docs/cli.md\n",
               missing);
    else
        printf("\nAll there: sandboxes of the full level can be made.\n");
    return cli_flush(cli, missing ? 1 : 0);
}

const struct command command_doctor = {
    .name = "doctor",
    .arguments = "[--json]",
    .summary = "what this machine offers, and what follows",
    .help = "Exit code 0 when nothing is missing for the full isolation level, else 1.",
    .run = run,
    .flags = flags};
