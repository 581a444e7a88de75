/* backend_command_step.c - the program of a step: its words, its standard streams, what its end
 * means.
 */
#include "sandbox/backend_command_inner.h"

#include <fcntl.h>
#include <sys/wait.h>

#include "base/arena.h"
#include "base/check.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/mem.h"
#include "sandbox/process.h"

enum {
    VALUES_MAX = COMMAND_VARIABLES_MAX + 16,
    ARENA_MAX = 4 << 20,
};

/* Values for the words; `place` may be NULL (check, upload, list). */
static size_t collect_values(const struct command *command, const struct place *place,
                             struct command_value *values)
{
    size_t count = 0;
    values[count++] = (struct command_value){"porter", command->setup.porter_path};
    values[count++] = (struct command_value){"porter_name", command->setup.porter_name};
    if (place) {
        values[count++] = (struct command_value){"id", place->id};
        values[count++] = (struct command_value){"label", place->label};
        values[count++] = (struct command_value){"image", place->image};
        values[count++] = (struct command_value){"memory", place->memory};
        values[count++] = (struct command_value){"pids", place->pids};
        values[count++] = (struct command_value){"cpus", place->cpus};
        values[count++] = (struct command_value){"disk", place->disk};
        values[count++] = (struct command_value){"hostname", place->hostname};
        values[count++] = (struct command_value){"root_user", place->root_user ? "yes" : ""};
        values[count++] = (struct command_value){"layer", place->layer};
        values[count++] = (struct command_value){"layer_name", place->layer_name};
    }
    for (size_t i = 0; i < command->setup.spec.variable_count; i++)
        values[count++] = (struct command_value){command->setup.spec.variables[i].name,
                                                 command->setup.variables[i]};
    CHECK(count <= VALUES_MAX);
    return count;
}

struct process *command_step_start(struct command *command, const struct place *place,
                                   enum command_step step, int pipe, uint32_t timeout_ms,
                                   void (*on_end)(void *, const struct process_end *),
                                   void *context, struct err *err)
{
    OWN(arena) struct arena arena = {.bytes_max = ARENA_MAX};
    struct command_value values[VALUES_MAX];
    size_t count = collect_values(command, place, values);
    const char *const *argv =
        command_expand(&command->setup.spec, step, values, count, &arena, err);
    if (!argv)
        return NULL;
    OWN(fd) int porter = -1;
    if (step == STEP_UPLOAD) {
        porter = open(command->setup.porter_path, O_RDONLY | O_CLOEXEC);
        if (porter < 0) {
            err_errno(err, "the porter '%s'", command->setup.porter_path);
            return NULL;
        }
    }
    struct process_options options = {
        .argv = argv,
        .env = (const char *const *)command->setup.env,
        .input = pipe >= 0 ? pipe : porter,
        .output = step == STEP_ATTACH ? pipe : -1,
        .timeout_ms = timeout_ms,
        .on_end = on_end,
        .context = context,
    };
    struct process *process = process_start(command->base.loop, &options, err);
    if (!process)
        err_wrap(err, "[%s] of backend '%s'", command_step_names[step], command->setup.spec.name);
    return process;
}

bool command_step_succeeded(const struct process_end *end)
{
    return !end->timed_out && WIFEXITED(end->wait_status) && WEXITSTATUS(end->wait_status) == 0;
}

void command_step_error(const struct command *command, enum command_step step,
                        const struct process_end *end, struct err *err)
{
    char text[400];
    process_describe(end, text, sizeof text);
    enum err_kind kind = end->timed_out ? ERR_TIMEOUT : ERR_SYSTEM;
    for (size_t i = 0; i < command->setup.spec.retry_code_count; i++)
        if (WIFEXITED(end->wait_status) &&
            WEXITSTATUS(end->wait_status) == command->setup.spec.retry_codes[i])
            kind = ERR_LOST;
    err_set(err, kind, "[%s] of backend '%s': %s", command_step_names[step],
            command->setup.spec.name, text);
}
