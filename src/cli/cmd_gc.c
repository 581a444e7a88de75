/* cmd_gc.c - postern gc: deletes finished rollouts that are too old or too many, and what of the
 * journal nothing needs any more. */
#include "cli/cli.h"

#include <stdio.h>

#include "base/mem.h"
#include "base/text.h"
#include "json/json.h"
#include "runtime/runtime.h"

struct gc_flags {
    const char *age;
    uint32_t keep;
    uint64_t bytes;
    bool dry, json;
};
#define AT(field) offsetof(struct gc_flags, field)
/* clang-format off */
static const struct flag flags[] = {
    {"older-than", 0, FLAG_TEXT,    AT(age),   NULL, "AGE",   "those that were over before: 90m, 48h, 30d"},
    {"keep",       0, FLAG_COUNT,   AT(keep),  NULL, "N",     "all but the newest N"},
    {"bytes",      0, FLAG_SIZE,    AT(bytes), NULL, "BYTES", "the oldest, until the folders of the rest have no more"},
    {"dry-run",    0, FLAG_BOOLEAN, AT(dry),   NULL, NULL,    "only say what would go"},
    {"json",       0, FLAG_BOOLEAN, AT(json),  NULL, NULL,    "as JSON"},
    {0},
};
/* clang-format on */

static int read_age(struct cli *cli, const char *text, uint64_t *out)
{
    long long ms = 0;
    struct str age = str_of(text);
    long long days;
    if (str_ends(age, STR("d")) && str_to_long(str_upto(age, age.size - 1), &days) && days > 0 &&
        days <= 36500)
        ms = days * 24 * 3600 * 1000;
    else if (!str_to_duration_ms(age, &ms) || ms <= 0)
        return err_set(&cli->err, ERR_INPUT,
                       "--older-than is a duration like 90m, 48h or 30d, not '%s'", text);
    *out = (uint64_t)ms;
    return 0;
}

static int run(struct cli *cli)
{
    struct gc_flags own = {0};
    struct runtime_gc asked = {0};
    struct runtime_gc_report report;
    if (flags_take(cli, flags, &own, false) < 0 || operands_check(cli, 0, 0) < 0 ||
        (own.age && read_age(cli, own.age, &asked.age_ms) < 0))
        return cli_fail(cli);
    asked.count_max = own.keep;
    asked.bytes_max = own.bytes;
    asked.dry = own.dry;
    if (runtime_gc(&cli->config, &asked, &report, &cli->err) < 0)
        return cli_fail(cli);
    if (own.json) {
        printf("{\"rollouts\":%llu,\"bytes\":%llu,\"segments\":%llu,\"segment_bytes\":%llu,\"dry_"
               "run\":%s}\n",
               (unsigned long long)report.rollouts, (unsigned long long)report.bytes,
               (unsigned long long)report.segments, (unsigned long long)report.segment_bytes,
               own.dry ? "true" : "false");
        return cli_flush(cli, 0);
    }
    char folders[32], segments[32];
    text_size(folders, sizeof folders, report.bytes);
    text_size(segments, sizeof segments, report.segment_bytes);
    printf("%s %llu rollout%s (%s) and %llu segment%s of the journal (%s)\n",
           own.dry ? "would delete" : "deleted", (unsigned long long)report.rollouts,
           report.rollouts == 1 ? "" : "s", folders, (unsigned long long)report.segments,
           report.segments == 1 ? "" : "s", segments);
    return cli_flush(cli, 0);
}

const struct command command_gc = {
    .name = "gc",
    .arguments = "[flags]",
    .summary = "delete finished rollouts that are too old or too many",
    .help =
        "Without flags, what the settings retention.* say. Rollouts that are not over, or whose "
        "callback is still to be delivered, are never touched. Works beside a running server.",
    .run = run,
    .flags = flags};
