/* options.c - flags of postern-terminus. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "terminus.h"

#define PROGRAM "postern-terminus"
#define HISTORY_BYTES_MAX (4u * 1024 * 1024)

static const char usage_text[] =
    "usage: postern-terminus [options] [INSTRUCTION | -]\n"
    "\n"
    "An agent whose only tool is a terminal. Talks to a chat completions server over http://.\n"
    "\n"
    "  INSTRUCTION, -             what to do; - reads it from standard input\n"
    "  --instruction FILE         read it from a file (- for standard input)\n"
    "  --system FILE              words to put before the own system prompt\n"
    "  --base-url URL             where the server is           [$OPENAI_BASE_URL]\n"
    "  --model NAME               which model to ask for        [$OPENAI_MODEL]\n"
    "  --temperature N            sampling temperature          [the server's]\n"
    "  --max-tokens N             tokens in one answer          [the server's]\n"
    "  --context-tokens N         hand over before this; 0: when the server refuses [0]\n"
    "  --no-stream                ask for whole answers\n"
    "  --no-confirm               believe the first task_complete\n"
    "  --cwd DIR                  where the shell starts        [here]\n"
    "  --columns N, --rows N      size of the terminal          [160, 40]\n"
    "  --max-turns N              model answers                 [200]\n"
    "  --max-seconds N            the whole run                 [3600]\n"
    "  --max-output-bytes N       of one turn, for the model    [10240]\n"
    "  --max-wait-seconds N       for one command               [60]\n"
    "  --idle-seconds N           silence of the server         [900]\n"
    "  --retries N                per answer                    [8]\n"
    "  --json                     one JSON object per line on standard output\n"
    "  --version, --help\n"
    "\n"
    "The key is taken from $OPENAI_API_KEY. Exit codes: 0 finished, 1 the model or its server "
    "failed,\n"
    "2 wrong usage, 3 a limit was reached.\n";

struct parse {
    long long turns, seconds, output, wait, idle, retries, tokens, context, columns, rows;
    const char *base_url, *instruction_file, *instruction, *system_file, *cwd;
    bool help, version;
};

static int parse_args(struct parse *parse, struct terminus_options *out, int argc, char **argv)
{
    struct chat_model *model = &out->model;
    const struct chat_flag flags[] = {
        {"--instruction", CHAT_FLAG_TEXT, &parse->instruction_file},
        {"--system", CHAT_FLAG_TEXT, &parse->system_file},
        {"--base-url", CHAT_FLAG_TEXT, &parse->base_url},
        {"--model", CHAT_FLAG_TEXT, &model->name},
        {"--temperature", CHAT_FLAG_REAL, &model->temperature, 0, 0, &model->has_temperature},
        {"--max-tokens", CHAT_FLAG_NUMBER, &parse->tokens, 1, 100000000},
        {"--context-tokens", CHAT_FLAG_NUMBER, &parse->context, 0, 1000000000},
        {"--no-stream", CHAT_FLAG_OFF, &model->stream},
        {"--no-confirm", CHAT_FLAG_OFF, &out->confirm},
        {"--cwd", CHAT_FLAG_TEXT, &parse->cwd},
        {"--columns", CHAT_FLAG_NUMBER, &parse->columns, 20, 1000},
        {"--rows", CHAT_FLAG_NUMBER, &parse->rows, 5, 500},
        {"--max-turns", CHAT_FLAG_NUMBER, &parse->turns, 1, 1000000},
        {"--max-seconds", CHAT_FLAG_NUMBER, &parse->seconds, 1, 31536000},
        {"--max-output-bytes", CHAT_FLAG_NUMBER, &parse->output, 256, 67108864},
        {"--max-wait-seconds", CHAT_FLAG_NUMBER, &parse->wait, 1, 86400},
        {"--idle-seconds", CHAT_FLAG_NUMBER, &parse->idle, 1, 4000000},
        {"--retries", CHAT_FLAG_NUMBER, &parse->retries, 0, 1000},
        {"--json", CHAT_FLAG_ON, &out->json},
        {"--help", CHAT_FLAG_ON, &parse->help},
        {"-h", CHAT_FLAG_ON, &parse->help},
        {"--version", CHAT_FLAG_ON, &parse->version},
    };
    return chat_flags_read(PROGRAM, flags, COUNT(flags), argc, argv, &parse->instruction);
}

int terminus_options_read(int argc, char **argv, struct terminus_options *out, int *exit_code)
{
    *out = (struct terminus_options){.model = {.stream = true}, .confirm = true};
    struct parse parse = {.turns = 200,
                          .seconds = 3600,
                          .output = 10240,
                          .wait = 60,
                          .idle = 900,
                          .retries = 8,
                          .columns = 160,
                          .rows = 40};
    *exit_code = TERMINUS_USAGE;
    if (parse_args(&parse, out, argc, argv) < 0)
        return -1;
    if (parse.help || parse.version) {
        *exit_code = TERMINUS_FINISHED;
        printf("%s", parse.help ? usage_text : PROGRAM " " POSTERN_VERSION "\n");
        return -1;
    }
    if (chat_read_instruction(PROGRAM, parse.instruction, parse.instruction_file,
                              &out->instruction) < 0 ||
        chat_model_setup(PROGRAM, &out->model, parse.base_url) < 0 ||
        (parse.system_file && chat_read_text(PROGRAM, parse.system_file, &out->system) < 0))
        return -1;
    if (parse.cwd && chdir(parse.cwd) < 0) {
        fprintf(stderr, PROGRAM ": --cwd %s: %s\n", parse.cwd, strerror(errno));
        return -1;
    }
    out->terminal = (struct terminal_options){.columns = (unsigned)parse.columns,
                                              .rows = (unsigned)parse.rows,
                                              .history_bytes_max = HISTORY_BYTES_MAX};
    out->turns_max = (uint32_t)parse.turns;
    out->wait_ms_max = (uint32_t)parse.wait * 1000;
    out->output_bytes_max = (size_t)parse.output;
    out->context_tokens = parse.context;
    out->model.idle_ms_max = (uint32_t)parse.idle * 1000;
    out->model.retries_max = (uint32_t)parse.retries;
    out->model.tokens_max = parse.tokens;
    out->model.deadline_ms = clock_mono_ms() + (uint64_t)parse.seconds * 1000;
    return 0;
}
