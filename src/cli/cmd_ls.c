/* cmd_ls.c - postern ls: rollouts below the home, newest first. Reads the folders: what a person
 * can look at is what is listed, whoever made it. */
#include "cli/cli.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/buf.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/text.h"
#include "json/json.h"

#define RESULT_MAX (64u << 20)

struct ls_flags {
    uint32_t count;
    bool json, all;
    const char *fate, *task;
};
#define AT(field) offsetof(struct ls_flags, field)
/* clang-format off */
static const struct flag flags[] = {
    {"count", 'n', FLAG_COUNT,   AT(count), NULL, "N", "at most this many; default: 30"},
    {"all",   'a', FLAG_BOOLEAN, AT(all),   NULL, NULL, "all of them"},
    {"class", 0,   FLAG_TEXT,    AT(fate),  NULL, "CLASS", "only those that ended so; 'running' for those under way"},
    {"task",  0,   FLAG_TEXT,    AT(task),  NULL, "NAME", "only of this task"},
    {"json",  0,   FLAG_BOOLEAN, AT(json),  NULL, NULL, "one result object per line"},
    {0},
};
/* clang-format on */

static int newest_first(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*b)->d_name, (*a)->d_name);
}

static int is_rollout(const struct dirent *entry)
{
    return strncmp(entry->d_name, "r-", 2) == 0;
}

static long long total_ms(struct json result)
{
    long long sum = 0;
    JSON_EACH (item, json_get(result, "stage_ms"))
        if (!json_is(item.key, "queued"))
            sum += json_int_or(item.value, 0);
    return sum;
}

static void print_row(struct json result, const char *id)
{
    OWN(arena) struct arena arena = {0};
    struct str fate = cli_harmless(json_str(json_get(result, "class"), &arena), &arena);
    struct str task = cli_harmless(json_str(json_get(result, "task"), &arena), &arena);
    struct str agent = cli_harmless(json_str(json_get(result, "agent"), &arena), &arena);
    struct str cause = cli_harmless(json_str(json_get(result, "cause"), &arena), &arena);
    double reward;
    char reward_text[32] = "-", time[32];
    if (json_double(json_get(result, "reward"), &reward))
        snprintf(reward_text, sizeof reward_text, "%.2f", reward);
    text_duration(time, sizeof time, (uint64_t)total_ms(result));
    printf("%-22s  %-20.*s  %-8.*s  %-15.*s %6s  %3lld turns  %9s  %.*s\n", id,
           (int)(task.size < 20 ? task.size : 20), task.data, STR_ARGS(agent), STR_ARGS(fate),
           reward_text, json_int_or(json_get(result, "turns"), 0), time,
           (int)(cause.size < 60 ? cause.size : 60), cause.data);
}

/* Returns whether the rollout was one of those asked for. */
static bool show(const struct ls_flags *own, const char *base, const char *id)
{
    OWN(mem) char *path = mem_format("%s/%s/result.json", base, id);
    OWN(buf) struct buf text = {0};
    OWN(json_doc) struct json_doc doc = {0};
    if (file_read(path, RESULT_MAX, &text, NULL) < 0 ||
        json_read(&doc, str_trim(buf_str(&text)), NULL, NULL) < 0) {
        bool wanted = !own->task && (!own->fate || strcmp(own->fate, "running") == 0);
        if (wanted && own->json)
            printf("{\"id\":\"%s\",\"class\":null,\"stage\":\"running\"}\n", id);
        else if (wanted)
            printf("%-22s  %-20s  %-8s  %-15s\n", id, "", "", "under way");
        return wanted;
    }
    struct json result = json_root(&doc);
    if ((own->fate && !json_is(json_get(result, "class"), own->fate)) ||
        (own->task && !json_is(json_get(result, "task"), own->task)))
        return false;
    if (own->json)
        printf("%.*s\n", STR_ARGS(str_trim(buf_str(&text))));
    else
        print_row(result, id);
    return true;
}

static int run(struct cli *cli)
{
    struct ls_flags own = {.count = 30};
    if (flags_take(cli, flags, &own, false) < 0 || operands_check(cli, 0, 0) < 0)
        return cli_fail(cli);
    OWN(mem) char *base = mem_format("%s/rollouts", cli->config.home);
    struct dirent **entries = NULL;
    int count = scandir(base, &entries, is_rollout, newest_first);
    uint32_t shown = 0;
    int more = 0;
    for (int i = 0; i < count; i++) {
        if (!own.all && shown == own.count)
            more++;
        else
            shown += show(&own, base, entries[i]->d_name);
        free(entries[i]);
    }
    free(entries);
    if (!own.json && !shown)
        printf("no rollouts in %s\n", cli->config.home);
    if (!own.json && more)
        printf("and %d older ones (postern ls --all)\n", more);
    return cli_flush(cli, 0);
}

const struct command command_ls = {.name = "ls",
                                   .arguments = "[flags]",
                                   .summary = "rollouts, newest first",
                                   .run = run,
                                   .flags = flags};
