/* sandbox_limits.c - are the limits in force that were asked for?
 *
 * A backend of programs promises limits because its file says so, but some programs only warn when
 * they cannot set them (rootless podman with cgroups 1). So before such a sandbox is ready, its
 * control group is read through the porter, and a limit that is missing or too wide is a failed
 * creation. The paths are those of a container: its own group is mounted at /sys/fs/cgroup. */
#include "base/err.h"
#include "base/mem.h"
#include "sandbox/manager.h"

enum { FILE_BYTES_MAX = 4096 };

/* clang-format off */
static const struct {
    const char *name;
    const char *paths[2]; /* cgroups 2, cgroups 1 */
} limits[] = {
    {"memory",    {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}},
    {"processes", {"/sys/fs/cgroup/pids.max",   "/sys/fs/cgroup/pids/pids.max"}},
};
/* clang-format on */

static uint64_t asked_for(const struct sandbox *sandbox, size_t limit)
{
    return limit == 0 ? sandbox->spec.memory_bytes_max : sandbox->spec.pids_max;
}

static void look(struct sandbox *sandbox);

static void on_file(void *context, struct str content, const struct err *err)
{
    struct sandbox *sandbox = context;
    if (sandbox->state != SB_GREETING)
        return;
    size_t limit = sandbox->limit_at / 2;
    if (err && sandbox->limit_at % 2 == 0) {
        sandbox->limit_at++; /* the other version's path */
        look(sandbox);
        return;
    }
    long long value = 0;
    bool holds = !err && str_to_long(str_trim(content), &value) && value >= 0 &&
                 (uint64_t)value <= asked_for(sandbox, limit);
    if (!holds) {
        struct err failure = {0};
        err_set(&failure, ERR_UNSUPPORTED,
                "backend '%s' did not set the limit of %s that was asked for (%llu)",
                sandbox->slot->name, limits[limit].name,
                (unsigned long long)asked_for(sandbox, limit));
        sandbox_limits_known(sandbox, &failure);
        return;
    }
    sandbox->limit_at = (limit + 1) * 2;
    look(sandbox);
}

static void look(struct sandbox *sandbox)
{
    while (sandbox->limit_at / 2 < COUNT(limits) && !asked_for(sandbox, sandbox->limit_at / 2))
        sandbox->limit_at = (sandbox->limit_at / 2 + 1) * 2;
    if (sandbox->limit_at / 2 == COUNT(limits)) {
        sandbox_limits_known(sandbox, NULL);
        return;
    }
    channel_get(sandbox->channel, limits[sandbox->limit_at / 2].paths[sandbox->limit_at % 2],
                FILE_BYTES_MAX, on_file, sandbox);
}

void sandbox_limits_check(struct sandbox *sandbox)
{
    sandbox->limit_at = 0;
    look(sandbox);
}
