/* Any lines from an agent that is driven through ACP: a conversation that goes on or ends once,
 * never a crash. The first byte chooses what the spec and the task say. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include "agent/acp.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int over, asked;

static void on_send(void *context, struct str line)
{
    (void)context;
    if (!line.size || line.data[line.size - 1] != '\n' || memchr(line.data, '\n', line.size - 1))
        abort(); /* one object per line */
}

static void on_over(void *context)
{
    (void)context;
    over++;
}

static void on_turn(void *context, struct str reply)
{
    (void)context;
    (void)reply;
    asked++;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const turns[] = {"two", NULL}, *const deny[] = {"fetch", NULL};
    static struct agent_spec *spec;
    struct err err = {0};
    if (!spec)
        spec = agent_spec_parse(STR("name = \"x\"\n[run]\nargv = [\"a\"]\ninstruction = \"acp\"\n"
                                    "[output]\nformat = \"acp\"\nline_max = \"4k\"\n"),
                                "x.toml", &err);
    if (!spec || !size)
        return 0;
    struct agent_acp_way way = {.deny_all = data[0] & 1,
                                .deny = data[0] & 2 ? deny : NULL,
                                .auth = data[0] & 4 ? "key" : NULL,
                                .mode = data[0] & 8 ? "m" : NULL};
    struct agent_reader reader = {.spec = spec};
    struct agent_acp acp = {.way = &way,
                            .cwd = "/app",
                            .instruction = "one",
                            .turns = data[0] & 16 ? turns : NULL,
                            .mcp_url = data[0] & 32 ? "http://x/mcp" : NULL,
                            .mcp_name = "task",
                            .reader = &reader,
                            .on_send = on_send,
                            .on_turn = data[0] & 64 ? on_turn : NULL,
                            .on_over = on_over};
    list_init(&acp.serving);
    reader.acp = &acp;
    over = asked = 0;
    agent_acp_begin(&acp);
    size_t half = 1 + (size - 1) / 2;
    agent_reader_feed(&reader, str_make(data + 1, half - 1));
    if (acp.asking)
        agent_acp_say(&acp, data[0] & 128 ? "three" : NULL);
    if (data[0] & 128)
        agent_acp_cancel(&acp);
    agent_reader_feed(&reader, str_make(data + half, size - half));
    agent_reader_end(&reader);
    if (over > 1 || (over == 1) != acp.over)
        abort();
    agent_acp_deinit(&acp);
    agent_reader_deinit(&reader);
    return 0;
}
