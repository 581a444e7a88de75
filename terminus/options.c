/* options.c - flags of postern-terminus. */
#include "base/mem.h"
#include "terminus.h"

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

int terminus_options_read(int argc, char **argv, struct terminus_options *out, int *exit_code)
{
    long long wait = 60, context = 0, columns = 160, rows = 40;
    *out = (struct terminus_options){.confirm = true};
    struct chat_common common = {
        .model = &out->model,
        .turns = 200,
        .seconds = 3600,
        .output = 10240,
        .idle = 900,
        .retries = 8,
    };
    const struct chat_flag own[] = {
        {"--context-tokens", CHAT_FLAG_NUMBER, &context, 0, 1000000000},
        {"--no-confirm", CHAT_FLAG_OFF, &out->confirm},
        {"--columns", CHAT_FLAG_NUMBER, &columns, 20, 1000},
        {"--rows", CHAT_FLAG_NUMBER, &rows, 5, 500},
        {"--max-wait-seconds", CHAT_FLAG_NUMBER, &wait, 1, 86400},
    };
    if (chat_common_read("postern-terminus", usage_text, &common, own, COUNT(own), argc, argv,
                         exit_code) < 0)
        return -1;
    out->system = common.system;
    out->instruction = common.instruction;
    out->json = common.json;
    out->terminal = (struct terminal_options){.columns = (unsigned)columns,
                                              .rows = (unsigned)rows,
                                              .history_bytes_max = HISTORY_BYTES_MAX};
    out->turns_max = (uint32_t)common.turns;
    out->wait_ms_max = (uint32_t)wait * 1000;
    out->output_bytes_max = (size_t)common.output;
    out->context_tokens = context;
    return 0;
}
