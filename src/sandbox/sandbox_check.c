/* sandbox_check.c - what is asked of a backend against what it can do, before any work. */
#include "base/err.h"
#include "base/mem.h"
#include "sandbox/manager.h"

/* clang-format off */
static const struct {
    unsigned capability;
    const char *name;
} capability_names[] = {
    {SANDBOX_CAN_NETWORK_OFF, "network-off"},
    {SANDBOX_CAN_SNAPSHOT,    "snapshot"},
    {SANDBOX_CAN_FORK,        "fork"},
    {SANDBOX_CAN_LIMITS,      "limits"},
    {SANDBOX_CAN_ROOT,        "root"},
    {SANDBOX_CAN_LAYERS,      "layers"},
    {SANDBOX_CAN_POOL,        "pool"},
    {SANDBOX_CAN_ADOPT,       "adopt"},
};
/* clang-format on */

int sandbox_need(const struct slot *slot, unsigned capability, const char *what, struct err *err)
{
    if (slot->backend->class->capabilities(slot->backend) & capability)
        return 0;
    const char *name = "?";
    for (size_t i = 0; i < COUNT(capability_names); i++)
        if (capability_names[i].capability == capability)
            name = capability_names[i].name;
    return err_set(err, ERR_UNSUPPORTED, "backend '%s' cannot do '%s', which %s needs", slot->name,
                   name, what);
}

/* The local keeper refuses by name what it cannot enforce, and knows the level that does without.
 */
static int check_limits(const struct slot *slot, const struct sandbox_spec *spec, struct err *err)
{
    const struct {
        bool asked;
        const char *what;
    } limits[] = {{spec->memory_bytes_max, "a memory limit"},
                  {spec->pids_max, "a limit on processes"},
                  {spec->cpu_millis, "a cpu limit"},
                  {spec->disk_bytes_max, "a disk limit"}};
    if (slot->backend->class == &backend_local)
        return 0;
    for (size_t i = 0; i < COUNT(limits); i++)
        if (limits[i].asked && sandbox_need(slot, SANDBOX_CAN_LIMITS, limits[i].what, err) < 0)
            return -1;
    return 0;
}

int sandbox_spec_check(const struct slot *slot, const struct sandbox_spec *spec, struct err *err)
{
    if (check_limits(slot, spec, err) < 0)
        return -1;
    if (spec->root_user && sandbox_need(slot, SANDBOX_CAN_ROOT, "root inside", err) < 0)
        return -1;
    for (size_t i = 0; i < spec->layer_count; i++)
        if (sandbox_need(slot, spec->layers[i][0] == '/' ? SANDBOX_CAN_LAYERS : SANDBOX_CAN_FORK,
                         spec->layers[i][0] == '/' ? "a layer" : "a fork of a snapshot", err) < 0)
            return -1;
    if (spec->pristine && sandbox_need(slot, SANDBOX_CAN_LAYERS, "pristine directories", err) < 0)
        return -1;
    if (spec->isolation != SANDBOX_ISOLATION_FULL && slot->backend->class != &backend_local)
        return err_set(err, ERR_UNSUPPORTED, "backend '%s' has no isolation levels", slot->name);
    return 0;
}
