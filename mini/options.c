/* options.c - flags and environment. The key comes from the environment only, never from argv, and
 * is taken out of the environment that commands see. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/text.h"
#include "mini.h"

#define TEXT_BYTES_MAX (8u * 1024 * 1024)

static const char usage_text[] =
    "usage: postern-mini [options] [INSTRUCTION | -]\n"
    "\n"
    "A small agent with one tool, bash. Talks to a chat completions server over http://.\n"
    "\n"
    "  INSTRUCTION, -             what to do; - reads it from standard input\n"
    "  --instruction FILE         read it from a file (- for standard input)\n"
    "  --system FILE              use this system prompt instead of the own one\n"
    "  --base-url URL             where the server is           [$OPENAI_BASE_URL]\n"
    "  --model NAME               which model to ask for        [$OPENAI_MODEL]\n"
    "  --temperature N            sampling temperature          [the server's]\n"
    "  --max-tokens N             tokens in one answer          [the server's]\n"
    "  --no-stream                ask for whole answers\n"
    "  --cwd DIR                  where commands run            [here]\n"
    "  --max-turns N              model answers                 [100]\n"
    "  --max-seconds N            the whole run                 [3600]\n"
    "  --max-output-bytes N       of one command, for the model [16384]\n"
    "  --command-seconds N        one command, by default       [120]\n"
    "  --max-command-seconds N    one command, at most          [600]\n"
    "  --idle-seconds N           silence of the server         [900]\n"
    "  --retries N                per answer                    [8]\n"
    "  --json                     one JSON object per line on standard output\n"
    "  --version, --help\n"
    "\n"
    "The key is taken from $OPENAI_API_KEY. Exit codes: 0 finished, 1 the model or its server "
    "failed,\n"
    "2 wrong usage, 3 a limit was reached.\n";

struct numbers {
    long long turns, seconds, output, command, command_max, idle, retries, tokens;
};

struct parse {
    struct mini_options *out;
    struct numbers numbers;
    const char *base_url, *instruction_file, *instruction, *system_file, *cwd;
    bool help, version;
};

enum kind { FLAG_TEXT, FLAG_NUMBER, FLAG_REAL, FLAG_ON, FLAG_OFF };

struct flag {
    const char *name;
    enum kind kind;
    void *target;
    long long min, max;
};

static int fail(const char *format, const char *detail)
{
    fprintf(stderr, "postern-mini: ");
    fprintf(stderr, format, detail);
    fprintf(stderr, "\n");
    return -1;
}

static int take_value(const struct flag *flag, const char *value, struct parse *parse)
{
    long long number;
    switch (flag->kind) {
    case FLAG_TEXT:
        *(const char **)flag->target = value;
        return 0;
    case FLAG_NUMBER:
        if (!str_to_long(str_of(value), &number) || number < flag->min || number > flag->max) {
            fprintf(stderr, "postern-mini: %s must be between %lld and %lld, not '%s'\n",
                    flag->name, flag->min, flag->max, value);
            return -1;
        }
        *(long long *)flag->target = number;
        return 0;
    case FLAG_REAL:
        if (!str_to_double(str_of(value), flag->target))
            return fail("--temperature must be a number, not '%s'", value);
        parse->out->model.has_temperature = true;
        return 0;
    case FLAG_ON:
    case FLAG_OFF:
        *(bool *)flag->target = flag->kind == FLAG_ON;
        return 0;
    }
    return 0;
}

static int unknown_flag(const char *given, const struct flag *flags, size_t count)
{
    const char *names[32];
    for (size_t i = 0; i < count && i < COUNT(names); i++)
        names[i] = flags[i].name;
    const char *nearest = text_nearest(given, names, count < COUNT(names) ? count : COUNT(names));
    fprintf(stderr, "postern-mini: there is no option %s%s%s%s\n", given,
            nearest ? "; did you mean " : "", nearest ? nearest : "", nearest ? "?" : "");
    return -1;
}

static int parse_flag(struct parse *parse, const struct flag *flags, size_t count, char **argv,
                      int *at)
{
    struct str rest = str_of(argv[*at]);
    struct str name = str_cut(&rest, '=');
    for (size_t i = 0; i < count; i++) {
        if (!str_is(name, flags[i].name))
            continue;
        bool plain = flags[i].kind == FLAG_ON || flags[i].kind == FLAG_OFF;
        if (plain && rest.data)
            return fail("%s takes no value", flags[i].name);
        const char *value = rest.data;
        if (!plain && !value) {
            value = argv[*at + 1];
            if (!value)
                return fail("%s needs a value", flags[i].name);
            ++*at;
        }
        return take_value(&flags[i], value, parse);
    }
    return unknown_flag(argv[*at], flags, count);
}

static int parse_args(struct parse *parse, int argc, char **argv)
{
    struct mini_model *model = &parse->out->model;
    struct numbers *n = &parse->numbers;
    const struct flag flags[] = {
        {"--instruction", FLAG_TEXT, &parse->instruction_file, 0, 0},
        {"--system", FLAG_TEXT, &parse->system_file, 0, 0},
        {"--base-url", FLAG_TEXT, &parse->base_url, 0, 0},
        {"--model", FLAG_TEXT, &model->name, 0, 0},
        {"--temperature", FLAG_REAL, &model->temperature, 0, 0},
        {"--max-tokens", FLAG_NUMBER, &n->tokens, 1, 100000000},
        {"--no-stream", FLAG_OFF, &model->stream, 0, 0},
        {"--cwd", FLAG_TEXT, &parse->cwd, 0, 0},
        {"--max-turns", FLAG_NUMBER, &n->turns, 1, 1000000},
        {"--max-seconds", FLAG_NUMBER, &n->seconds, 1, 31536000},
        {"--max-output-bytes", FLAG_NUMBER, &n->output, 256, 67108864},
        {"--command-seconds", FLAG_NUMBER, &n->command, 1, 4000000},
        {"--max-command-seconds", FLAG_NUMBER, &n->command_max, 1, 4000000},
        {"--idle-seconds", FLAG_NUMBER, &n->idle, 1, 4000000},
        {"--retries", FLAG_NUMBER, &n->retries, 0, 1000},
        {"--json", FLAG_ON, &parse->out->json, 0, 0},
        {"--help", FLAG_ON, &parse->help, 0, 0},
        {"-h", FLAG_ON, &parse->help, 0, 0},
        {"--version", FLAG_ON, &parse->version, 0, 0},
    };
    bool only_words = false;
    for (int i = 1; i < argc; i++) {
        const char *argument = argv[i];
        if (!only_words && strcmp(argument, "--") == 0) {
            only_words = true;
        } else if (!only_words && argument[0] == '-' && argument[1]) {
            if (parse_flag(parse, flags, COUNT(flags), argv, &i) < 0)
                return -1;
        } else if (parse->instruction) {
            return fail("one instruction is enough; what is '%s'? (quote it)", argument);
        } else {
            parse->instruction = argument;
        }
    }
    return 0;
}

/* A file, or standard input for "-". The text lives as long as the program. */
static int read_text(const char *path, struct str *out)
{
    struct buf text = {0};
    OWN(fd)
    int file = strcmp(path, "-") == 0 ? fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 0)
                                      : open(path, O_RDONLY | O_CLOEXEC);
    for (;;) {
        char *room = buf_reserve(&text, 65536);
        ssize_t got = file < 0 ? -1 : read(file, room, 65536);
        if (got < 0 && file >= 0 && errno == EINTR)
            continue;
        if (got < 0) {
            fprintf(stderr, "postern-mini: '%s': %s\n", path, strerror(errno));
            buf_deinit(&text);
            return -1;
        }
        if (got == 0)
            break;
        buf_added(&text, (size_t)got);
        if (text.size > TEXT_BYTES_MAX) {
            buf_deinit(&text);
            return fail("'%s' is larger than 8 MB", path);
        }
    }
    size_t size = text.size;
    *out = str_make(buf_take(&text), size);
    return 0;
}

static int read_instruction(struct parse *parse)
{
    if (parse->instruction && parse->instruction_file)
        return fail("%s", "give the instruction once: as an argument or with --instruction");
    if (!parse->instruction && !parse->instruction_file)
        return fail(
            "%s", "what should be done? Give an instruction, --instruction FILE or - (see --help)");
    const char *file = parse->instruction_file;
    if (!file && strcmp(parse->instruction, "-") == 0)
        file = "-";
    if (file && read_text(file, &parse->out->instruction) < 0)
        return -1;
    if (!file)
        parse->out->instruction = str_of(parse->instruction);
    if (str_trim(parse->out->instruction).size == 0)
        return fail("%s", "the instruction is empty");
    return 0;
}

static const char *variable(const char *name)
{
    const char *value = getenv(name);
    return value && value[0] ? value : NULL;
}

static int read_model(struct parse *parse)
{
    struct mini_model *model = &parse->out->model;
    struct err err = {0};
    if (!model->name)
        model->name = variable("OPENAI_MODEL");
    if (!model->name)
        return fail("%s", "no model: use --model NAME or OPENAI_MODEL");
    if (!parse->base_url)
        parse->base_url = variable("OPENAI_BASE_URL");
    if (!parse->base_url)
        return fail("%s", "no server: use --base-url URL or OPENAI_BASE_URL");
    if (mini_url_parse(parse->base_url, &model->url, &err) < 0)
        return fail("%s", err.text);
    if (variable("OPENAI_API_KEY")) {
        model->key = mem_dup(variable("OPENAI_API_KEY"));
        if (strpbrk(model->key, "\r\n"))
            return fail("%s", "OPENAI_API_KEY holds a line break");
    }
    (void)unsetenv("OPENAI_API_KEY");
    return 0;
}

static void take_numbers(const struct numbers *numbers, struct mini_options *out)
{
    out->turns_max = (uint32_t)numbers->turns;
    out->output_bytes_max = (size_t)numbers->output;
    out->command_ms = (uint32_t)numbers->command * 1000;
    out->command_ms_max = (uint32_t)numbers->command_max * 1000;
    if (out->command_ms_max < out->command_ms)
        out->command_ms_max = out->command_ms;
    out->model.idle_ms_max = (uint32_t)numbers->idle * 1000;
    out->model.retries_max = (uint32_t)numbers->retries;
    out->model.tokens_max = numbers->tokens;
    out->model.deadline_ms = clock_mono_ms() + (uint64_t)numbers->seconds * 1000;
}

int mini_options_read(int argc, char **argv, struct mini_options *out, int *exit_code)
{
    *out = (struct mini_options){.model = {.stream = true}};
    struct parse parse = {.out = out,
                          .numbers = {.turns = 100,
                                      .seconds = 3600,
                                      .output = 16384,
                                      .command = 120,
                                      .command_max = 600,
                                      .idle = 900,
                                      .retries = 8}};
    *exit_code = MINI_USAGE;
    if (parse_args(&parse, argc, argv) < 0)
        return -1;
    if (parse.help || parse.version) {
        *exit_code = MINI_FINISHED;
        printf("%s", parse.help ? usage_text : "postern-mini " POSTERN_VERSION "\n");
        return -1;
    }
    struct str system = STR_NONE;
    if (read_instruction(&parse) < 0 || read_model(&parse) < 0 ||
        (parse.system_file && read_text(parse.system_file, &system) < 0))
        return -1;
    out->system = system.data;
    if (parse.cwd && chdir(parse.cwd) < 0) {
        fprintf(stderr, "postern-mini: --cwd %s: %s\n", parse.cwd, strerror(errno));
        return -1;
    }
    take_numbers(&parse.numbers, out);
    return 0;
}
