/* cmd_show.c - postern show: one rollout for a person to read: what came out, what was said, how
 * long it took.
 *
 * The transcript is made from calls.jsonl: for each call the messages that were not in the call
 * before it, then the answer. Side calls are marked. */
#include "cli/cli.h"

#include <stdio.h>

#include "base/arena.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/text.h"
#include "json/json.h"

#define FILE_MAX (512u << 20)

struct show_flags {
    bool json, whole, samples;
};
static const struct flag flags[] = {
    {"json", 0, FLAG_BOOLEAN, offsetof(struct show_flags, json), NULL, NULL,
     "result.json as it is"},
    {"samples", 0, FLAG_BOOLEAN, offsetof(struct show_flags, samples), NULL, NULL,
     "its training rows instead: branches, continuity, tokens"},
    {"whole", 0, FLAG_BOOLEAN, offsetof(struct show_flags, whole), NULL, NULL,
     "long texts in full"},
    {0},
};

struct show {
    bool whole, colour;
    struct arena arena;
};

static void heading(const struct show *show, const char *text)
{
    printf("\n%s%s%s\n", show->colour ? "\033[1m" : "", text, show->colour ? "\033[0m" : "");
}

static struct str expand_tabs(struct show *show, struct str line)
{
    OWN(buf) struct buf out = {0};
    if (str_find_byte(line, '\t') < 0)
        return line;
    for (size_t i = 0; i < line.size; i++)
        if (line.data[i] == '\t')
            buf_format(&out, "    ");
        else
            buf_byte(&out, line.data[i]);
    return arena_str(&show->arena, buf_str(&out));
}

/* Control characters of a sandbox never reach the terminal. */
static void put_text(struct show *show, const char *indent, struct str text)
{
    size_t max = show->whole ? SIZE_MAX : 4000;
    struct str rest = str_trim(str_upto(text, max));
    while (rest.data) {
        struct str line = str_cut(&rest, '\n');
        struct str safe = cli_harmless(expand_tabs(show, line), &show->arena);
        printf("%s%.*s", indent, STR_ARGS(safe));
        putchar('\n');
    }
    if (text.size > max)
        printf("%s... (%zu bytes more; --whole shows them)\n", indent, text.size - max);
}

static void put_field(struct show *show, struct json result, const char *key, const char *label)
{
    struct json value = json_get(result, key);
    if (!json_exists(value) || json_type(value) == JSON_NULL)
        return;
    struct str text =
        json_type(value) == JSON_STRING ? json_str(value, &show->arena) : json_raw(value);
    printf("%-12s", label);
    put_text(show, "", text);
}

static void put_commands(struct show *show, struct json list, const char *title)
{
    if (!json_size(list))
        return;
    heading(show, title);
    JSON_EACH (item, list) {
        struct str command =
            cli_harmless(json_str(json_get(item.value, "command"), &show->arena), &show->arena);
        printf("$ %.*s   -> %lld (%lld ms)\n", STR_ARGS(command),
               json_int_or(json_get(item.value, "code"), -1),
               json_int_or(json_get(item.value, "wall_ms"), 0));
        struct str output = json_str(json_get(item.value, "output"), &show->arena);
        if (output.size)
            put_text(show, "    ", output);
    }
}

static void put_times(struct show *show, struct json result)
{
    heading(show, "Times");
    JSON_EACH (item, json_get(result, "stage_ms")) {
        char time[32];
        struct str stage = json_str(item.key, &show->arena);
        text_duration(time, sizeof time, (uint64_t)json_int_or(item.value, 0));
        printf("  %-14.*s %10s\n", STR_ARGS(stage), time);
    }
}

/* How it was judged, the rewards by name, and each step's. */
static void put_verification(struct show *show, struct json result)
{
    struct json how = json_get(result, "verification");
    struct str where = json_str(json_get(how, "sandbox"), &show->arena);
    struct str user = json_str(json_get(how, "user"), &show->arena);
    if (!where.size)
        return;
    printf("%-12sin %.*s sandbox as %.*s; pristine:", "verified", STR_ARGS(where), STR_ARGS(user));
    JSON_EACH (item, json_get(how, "pristine"))
        printf(" %.*s", STR_ARGS(json_str(item.value, &show->arena)));
    puts(json_size(json_get(how, "pristine")) ? "" : " nothing");
    put_field(show, how, "note", "");
    if (json_size(json_get(result, "rewards")) > 1)
        JSON_EACH (item, json_get(result, "rewards")) {
            struct str name = cli_harmless(json_str(item.key, &show->arena), &show->arena);
            printf("%-12s%.*s = %.*s\n", "", STR_ARGS(name), STR_ARGS(json_raw(item.value)));
        }
    JSON_EACH (item, json_get(result, "steps")) {
        struct str name =
            cli_harmless(json_str(json_get(item.value, "name"), &show->arena), &show->arena);
        printf("%-12s%.*s: %.*s, reward %.*s\n", "step", STR_ARGS(name),
               STR_ARGS(json_str(json_get(item.value, "class"), &show->arena)),
               STR_ARGS(json_raw(json_get(item.value, "reward"))));
    }
}

static void put_result(struct show *show, struct json result)
{
    static const char *const fields[][2] = {
        {"id", "rollout"},        {"run", "run"},       {"task", "task"},
        {"agent", "agent"},       {"model", "model"},   {"mode", "mode"},
        {"backend", "backend"},   {"class", "class"},   {"failed_stage", "failed in"},
        {"cause", "cause"},       {"reward", "reward"}, {"agent_exit", "agent exit"},
        {"turns", "turns"},       {"calls", "calls"},   {"usage", "usage"},
        {"hosts", "hosts tried"}, {"queued", "queued"}, {"done", "done"},
    };
    for (size_t i = 0; i < COUNT(fields); i++)
        put_field(show, result, fields[i][0], fields[i][1]);
    put_verification(show, result);
    put_commands(show, json_get(result, "setup"), "Setup");
    put_times(show, result);
}

/* ---------------------------------------------------------------- the transcript */
static struct str content_text(struct show *show, struct json message)
{
    struct json content = json_get(message, "content");
    if (json_type(content) == JSON_STRING)
        return json_str(content, &show->arena);
    if (json_type(content) != JSON_ARRAY)
        return STR_NONE;
    OWN(buf) struct buf text = {0};
    JSON_EACH (item, content) {
        struct str part = json_str(json_get(item.value, "text"), &show->arena);
        if (part.size)
            buf_str_append(&text, part);
        else
            buf_format(&text, "[%.*s]",
                       STR_ARGS(json_str(json_get(item.value, "type"), &show->arena)));
        buf_byte(&text, '\n');
    }
    return arena_str(&show->arena, buf_str(&text));
}

/* A call whose only argument is a text, such as a command, shows that text as it is. */
static void put_tool_call(struct show *show, struct json call)
{
    OWN(json_doc) struct json_doc doc = {0};
    struct str name = cli_harmless(json_str(json_get(call, "name"), &show->arena), &show->arena);
    struct str arguments = json_str(json_get(call, "arguments"), &show->arena);
    if (json_read(&doc, arguments, NULL, NULL) == 0 && json_size(json_root(&doc)) == 1 &&
        json_type(json_first(json_root(&doc)).value) == JSON_STRING)
        arguments = json_str(json_first(json_root(&doc)).value, &show->arena);
    printf("    -> %.*s\n", STR_ARGS(name));
    put_text(show, "       ", arguments);
}

static void put_message(struct show *show, struct json message)
{
    struct str role = cli_harmless(json_str(json_get(message, "role"), &show->arena), &show->arena);
    const char *colour = !show->colour               ? ""
                         : str_is(role, "assistant") ? "\033[36m"
                         : str_is(role, "tool")      ? "\033[33m"
                                                     : "\033[32m";
    printf("%s%.*s%s%s\n", colour, STR_ARGS(role), show->colour ? "\033[0m" : "",
           json_true(json_get(message, "is_error")) ? " (failed)" : "");
    struct str text = content_text(show, message);
    if (text.size)
        put_text(show, "    ", text);
    JSON_EACH (item, json_get(message, "tool_calls")) {
        put_tool_call(show, item.value);
    }
}

static void put_call(struct show *show, struct json call, size_t *messages_shown)
{
    struct json messages = json_get(json_get(call, "request"), "messages");
    bool side = json_true(json_get(call, "side"));
    struct str state = json_str(json_get(call, "state"), &show->arena);
    if (side || !str_is(state, "answered")) {
        struct str error =
            cli_harmless(json_str(json_get(call, "error"), &show->arena), &show->arena);
        printf("(call %lld: %s%.*s%s%.*s)\n", json_int_or(json_get(call, "number"), 0),
               side ? "side call, " : "", STR_ARGS(state), error.size ? ": " : "", STR_ARGS(error));
        if (side)
            return;
    }
    /* Those that an earlier line has are left out. */
    size_t shared = (size_t)json_int_or(json_get(call, "shared_messages"), 0);
    size_t from = (size_t)json_int_or(json_get(call, "shared_from"), 0);
    size_t at = 0, count = shared + json_size(messages);
    if (count < *messages_shown) {
        printf("(the history was rewritten)\n");
        *messages_shown = 0;
    }
    JSON_EACH (item, messages) {
        if (at == from)
            at += shared;
        if (at++ >= *messages_shown)
            put_message(show, item.value);
    }
    *messages_shown = count;
    struct json answer = json_get(json_get(call, "answer"), "message");
    if (json_exists(answer)) {
        put_message(show, answer);
        (*messages_shown)++; /* it comes back as history in the next call */
    }
}

static void put_transcript(struct show *show, const char *dir)
{
    OWN(mem) char *path = mem_format("%s/calls.jsonl", dir);
    OWN(buf) struct buf text = {0};
    struct err err = {0};
    bool there = file_exists(path);
    if (there && file_read(path, FILE_MAX, &text, &err) < 0) {
        heading(show, "Transcript");
        printf("(it cannot be read: %s)\n", err.text);
    }
    if (!text.size)
        return;
    heading(show, "Transcript");
    size_t shown = 0, number = 1;
    for (struct str rest = buf_str(&text); rest.data; number++) {
        struct str line = str_trim(str_cut(&rest, '\n'));
        OWN(json_doc) struct json_doc doc = {0};
        if (!line.size)
            continue;
        if (json_read(&doc, line, NULL, &err) == 0)
            put_call(show, json_root(&doc), &shown);
        else
            printf("(line %zu of calls.jsonl cannot be read: %s)\n", number, err.text);
    }
}

/* ---------------------------------------------------------------- rows */

static struct str text_at(struct show *show, struct json value, const char *key)
{
    return cli_harmless(json_str(json_get(value, key), &show->arena), &show->arena);
}

static void put_difference(struct show *show, struct json difference)
{
    long long expected = json_int_or(json_get(difference, "expected_id"), -1);
    long long got = json_int_or(json_get(difference, "got_id"), -1);
    printf("     turn %lld: token %lld of what was expected is %lld, the prompt has %lld",
           json_int_or(json_get(difference, "turn"), 0),
           json_int_or(json_get(difference, "position"), 0), expected, got);
    struct str was = text_at(show, difference, "sampled_text");
    struct str now = text_at(show, difference, "sent_back_text");
    if (was.size || now.size)
        printf("\n       sampled:   %.*s\n       sent back: %.*s", STR_ARGS(was), STR_ARGS(now));
    putchar('\n');
}

static void put_row(struct show *show, struct json row)
{
    struct json branch = json_get(row, "branch"), continuity = json_get(row, "continuity");
    printf("%3lld  %-12.*s %-10.*s %4zu turns %8lld tokens %7lld trained%s\n",
           json_int_or(json_get(row, "sample"), 0), STR_ARGS(text_at(show, branch, "kind")),
           STR_ARGS(text_at(show, continuity, "status")), json_size(json_get(row, "turns")),
           json_int_or(json_get(row, "token_count"), 0),
           json_int_or(json_get(row, "trained_count"), 0),
           json_true(json_get(row, "truncated")) ? "  truncated" : "");
    if (json_type(json_get(row, "note")) == JSON_STRING)
        printf("     messages only: %.*s\n", STR_ARGS(text_at(show, row, "note")));
    JSON_EACH (item, json_get(continuity, "differences"))
        put_difference(show, item.value);
}

static int show_samples(struct cli *cli, const char *dir)
{
    OWN(mem) char *path = mem_format("%s/samples.jsonl", dir);
    OWN(buf) struct buf text = {0};
    struct show show = {0};
    if (!file_exists(path)) {
        err_set(&cli->err, ERR_NOT_FOUND, "there are no samples in '%s'", dir);
        return cli_fail(cli);
    }
    if (file_read(path, FILE_MAX, &text, &cli->err) < 0)
        return cli_fail(cli);
    for (struct str rest = buf_str(&text); rest.data;) {
        struct str line = str_trim(str_cut(&rest, '\n'));
        OWN(json_doc) struct json_doc doc = {0};
        if (line.size && json_read(&doc, line, NULL, NULL) == 0)
            put_row(&show, json_root(&doc));
    }
    arena_deinit(&show.arena);
    return cli_flush(cli, 0);
}

/* Without calls there still are the agent's own words. */
static void put_files(const char *dir)
{
    static const char *const names[] = {"result.json",  "calls.jsonl", "samples.jsonl",
                                        "events.jsonl", "agent.log",   "verifier.log",
                                        "artifacts"};
    printf("\nFiles:");
    for (size_t i = 0; i < COUNT(names); i++) {
        OWN(mem) char *path = mem_format("%s/%s", dir, names[i]);
        if (file_exists(path))
            printf(" %s", names[i]);
    }
    printf("\nin %s\n", dir);
}

static int show_one(struct cli *cli, const struct show_flags *own, const char *dir)
{
    OWN(mem) char *path = mem_format("%s/result.json", dir);
    OWN(buf) struct buf text = {0};
    OWN(json_doc) struct json_doc doc = {0};
    struct show show = {.whole = own->whole, .colour = cli_colour()};
    bool over = file_exists(path);
    if (over && (file_read(path, FILE_MAX, &text, &cli->err) < 0 ||
                 json_read(&doc, str_trim(buf_str(&text)), NULL, &cli->err) < 0)) {
        err_wrap(&cli->err, "'%s'", path);
        return cli_fail(cli);
    }
    if (own->json) {
        if (!over) {
            err_set(&cli->err, ERR_CONFLICT, "the rollout is not over yet");
            return cli_fail(cli);
        }
        printf("%.*s\n", STR_ARGS(str_trim(buf_str(&text))));
        return cli_flush(cli, 0);
    }
    if (over)
        put_result(&show, json_root(&doc));
    else
        printf("not over yet\n");
    put_transcript(&show, dir);
    if (over)
        put_commands(&show, json_get(json_root(&doc), "verify"), "Verification");
    put_files(dir);
    arena_deinit(&show.arena);
    return cli_flush(cli, 0);
}

static int run(struct cli *cli)
{
    struct show_flags own = {0};
    if (flags_take(cli, flags, &own, false) < 0 || operands_check(cli, 1, 1) < 0)
        return cli_fail(cli);
    OWN(mem) char *dir = folder_find(cli->config.home, cli->argv[0], &cli->err);
    if (!dir)
        return cli_fail(cli);
    return own.samples ? show_samples(cli, dir) : show_one(cli, &own, dir);
}

const struct command command_show = {.name = "show",
                                     .arguments = "ID [flags]",
                                     .summary = "one rollout: result, transcript, timings",
                                     .help =
                                         "The beginning of an id is enough when it fits only one.",
                                     .run = run,
                                     .flags = flags};
