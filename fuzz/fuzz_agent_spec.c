/* Any bytes as an agent spec: read or refused with a reason, never a crash. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include "agent/agent.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct err err = {0};
    struct agent_spec *spec = agent_spec_parse(str_make(data, size), "fuzz.toml", &err);
    if (!spec && !err.text[0])
        abort();
    agent_spec_unref(spec);
    return 0;
}
