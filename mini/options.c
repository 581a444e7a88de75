/* options.c - flags and environment. The key comes from the environment only, never from argv, and
 * is taken out of the environment that commands see. */
#include "base/mem.h"
#include "mini.h"

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

int mini_options_read(int argc, char **argv, struct mini_options *out, int *exit_code)
{
    long long command = 120, command_max = 600;
    *out = (struct mini_options){0};
    struct chat_common common = {
        .model = &out->model,
        .turns = 100,
        .seconds = 3600,
        .output = 16384,
        .idle = 900,
        .retries = 8,
    };
    const struct chat_flag own[] = {
        {"--command-seconds", CHAT_FLAG_NUMBER, &command, 1, 4000000},
        {"--max-command-seconds", CHAT_FLAG_NUMBER, &command_max, 1, 4000000},
    };
    if (chat_common_read("postern-mini", usage_text, &common, own, COUNT(own), argc, argv,
                         exit_code) < 0)
        return -1;
    out->system = common.system.data;
    out->instruction = common.instruction;
    out->json = common.json;
    out->turns_max = (uint32_t)common.turns;
    out->output_bytes_max = (size_t)common.output;
    out->command_ms = (uint32_t)command * 1000;
    out->command_ms_max = (uint32_t)(command_max < command ? command : command_max) * 1000;
    return 0;
}
