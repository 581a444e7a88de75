/* Any bytes as a task in JSON, and as a reward in both forms: no crash, no reward that is not
 * finite. */
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include "task/task.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct str text = str_make(data, size);
    struct err err = {0};
    struct str detail = STR_NONE;
    double reward = NAN;
    task_unref(task_from_json(text, "fuzz", &err));
    if (task_reward_read(text, &reward, &err) && !isfinite(reward))
        abort();
    if (task_reward_read_json(text, &reward, &detail, &err) && !isfinite(reward))
        abort();
    return 0;
}
