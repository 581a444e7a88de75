/* options.c - flags and environment. The key comes from the environment only, never from argv, and
 * is taken out of the environment that commands see. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "mini.h"

#define PROGRAM "postern-mini"

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

static int parse_args(struct parse *parse, int argc, char **argv)
{
    struct chat_model *model = &parse->out->model;
    struct numbers *n = &parse->numbers;
    const struct chat_flag flags[] = {
        {"--instruction", CHAT_FLAG_TEXT, &parse->instruction_file},
        {"--system", CHAT_FLAG_TEXT, &parse->system_file},
        {"--base-url", CHAT_FLAG_TEXT, &parse->base_url},
        {"--model", CHAT_FLAG_TEXT, &model->name},
        {"--temperature", CHAT_FLAG_REAL, &model->temperature, 0, 0, &model->has_temperature},
        {"--max-tokens", CHAT_FLAG_NUMBER, &n->tokens, 1, 100000000},
        {"--no-stream", CHAT_FLAG_OFF, &model->stream},
        {"--cwd", CHAT_FLAG_TEXT, &parse->cwd},
        {"--max-turns", CHAT_FLAG_NUMBER, &n->turns, 1, 1000000},
        {"--max-seconds", CHAT_FLAG_NUMBER, &n->seconds, 1, 31536000},
        {"--max-output-bytes", CHAT_FLAG_NUMBER, &n->output, 256, 67108864},
        {"--command-seconds", CHAT_FLAG_NUMBER, &n->command, 1, 4000000},
        {"--max-command-seconds", CHAT_FLAG_NUMBER, &n->command_max, 1, 4000000},
        {"--idle-seconds", CHAT_FLAG_NUMBER, &n->idle, 1, 4000000},
        {"--retries", CHAT_FLAG_NUMBER, &n->retries, 0, 1000},
        {"--json", CHAT_FLAG_ON, &parse->out->json},
        {"--help", CHAT_FLAG_ON, &parse->help},
        {"-h", CHAT_FLAG_ON, &parse->help},
        {"--version", CHAT_FLAG_ON, &parse->version},
    };
    return chat_flags_read(PROGRAM, flags, COUNT(flags), argc, argv, &parse->instruction);
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
    if (chat_read_instruction(PROGRAM, parse.instruction, parse.instruction_file,
                              &out->instruction) < 0 ||
        chat_model_setup(PROGRAM, &out->model, parse.base_url) < 0 ||
        (parse.system_file && chat_read_text(PROGRAM, parse.system_file, &system) < 0))
        return -1;
    out->system = system.data;
    if (parse.cwd && chdir(parse.cwd) < 0) {
        fprintf(stderr, "postern-mini: --cwd %s: %s\n", parse.cwd, strerror(errno));
        return -1;
    }
    take_numbers(&parse.numbers, out);
    return 0;
}
