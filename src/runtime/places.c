/* places.c - where this program's companions and data are, found from the program's own place.
 *
 *     programs   POSTERN_LIBEXEC, the directory of this program, ../libexec/postern
 *     data       POSTERN_SHARE, ../share/postern, the source tree it was built from
 *     agents     also $XDG_CONFIG_HOME/postern/agents or ~/.config/postern/agents, which come first
 *
 * Found once and kept; the answers never change while the process lives. */
#include "runtime/runtime.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "runtime/internal.h"

static struct {
    char *program_dir, *share_dir, *agents_dir, *user_agents_dir, *backends_dir;
    const char *spec_dirs[3], *file_dirs[2], *backend_dirs[2];
    struct agent_dirs agent_dirs;
} places;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static char *own_dir(void)
{
    char path[4096];
    ssize_t size = readlink("/proc/self/exe", path, sizeof path - 1);
    if (size <= 0)
        return mem_dup(".");
    path[size] = '\0';
    char *slash = strrchr(path, '/');
    if (slash)
        *slash = '\0';
    return mem_dup(path[0] ? path : "/");
}

static bool holds(const char *dir, const char *name)
{
    OWN(mem) char *path = mem_format("%s/%s", dir, name);
    return file_exists(path);
}

static char *first_holding(const char *name, char **candidates, size_t count)
{
    char *found = NULL;
    for (size_t i = 0; i < count; i++) {
        if (!found && candidates[i] && holds(candidates[i], name))
            found = candidates[i];
        else
            free(candidates[i]);
    }
    return found;
}

static void find_places(void)
{
    char *own = own_dir();
    char *programs[] = {mem_dup(getenv("POSTERN_LIBEXEC")), mem_dup(own),
                        mem_format("%s/../libexec/postern", own), mem_format("%s/..", own)};
    char *shares[] = {mem_dup(getenv("POSTERN_SHARE")), mem_format("%s/../share/postern", own),
                      mem_dup(POSTERN_SOURCE_DIR)};
    places.program_dir = first_holding("postern-porter", programs, COUNT(programs));
    if (!places.program_dir)
        places.program_dir = mem_dup(own);
    places.share_dir = first_holding("agents", shares, COUNT(shares));
    free(own);
    if (places.share_dir) {
        places.agents_dir = mem_format("%s/agents", places.share_dir);
        places.backends_dir = mem_format("%s/backends", places.share_dir);
    }
    const char *config = getenv("XDG_CONFIG_HOME"), *home = getenv("HOME");
    char *user[] = {config && config[0] == '/' ? mem_format("%s/postern", config) : NULL,
                    home && home[0] == '/' ? mem_format("%s/.config/postern", home) : NULL};
    OWN(mem) char *user_dir = first_holding("agents", user, COUNT(user));
    if (user_dir)
        places.user_agents_dir = mem_format("%s/agents", user_dir);
    size_t used = 0;
    if (places.user_agents_dir)
        places.spec_dirs[used++] = places.user_agents_dir;
    places.spec_dirs[used] = places.agents_dir;
    places.file_dirs[0] = places.program_dir;
    places.backend_dirs[0] = places.backends_dir;
    places.agent_dirs =
        (struct agent_dirs){.spec_dirs = places.spec_dirs, .file_dirs = places.file_dirs};
}

const char *runtime_program_dir(void)
{
    (void)pthread_once(&once, find_places);
    return places.program_dir;
}

const char *runtime_share_dir(void)
{
    (void)pthread_once(&once, find_places);
    return places.share_dir;
}

const struct agent_dirs *machine_agent_dirs(void)
{
    (void)pthread_once(&once, find_places);
    return &places.agent_dirs;
}

const char *const *places_backend_dirs(size_t *count)
{
    (void)pthread_once(&once, find_places);
    *count = places.backends_dir ? 1 : 0;
    return places.backend_dirs;
}
