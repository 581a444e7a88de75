/* folder.c - finding a rollout's folder by its id or the beginning of it. */
#include <dirent.h>
#include <errno.h>
#include <string.h>

#include "base/mem.h"
#include "cli/cli.h"

char *folder_find(const char *home, const char *id, struct err *err)
{
    OWN(mem) char *base = mem_format("%s/rollouts", home);
    if (!id[0] || strchr(id, '/')) {
        err_set(err, ERR_INPUT, "'%s' is not the id of a rollout", id);
        return NULL;
    }
    DIR *dir = opendir(base);
    if (!dir) {
        err_set(err, errno == ENOENT ? ERR_NOT_FOUND : err_kind_of_errno(errno),
                "no rollouts in '%s'", home);
        return NULL;
    }
    char *found = NULL;
    size_t hits = 0;
    for (struct dirent *entry; (entry = readdir(dir));) {
        if (entry->d_name[0] == '.' || strncmp(entry->d_name, id, strlen(id)) != 0)
            continue;
        bool exact = strcmp(entry->d_name, id) == 0;
        if (!hits++ || exact) {
            own_mem(&found);
            found = mem_format("%s/%s", base, entry->d_name);
        }
        if (exact) {
            hits = 1;
            break;
        }
    }
    closedir(dir);
    if (hits == 1)
        return found;
    own_mem(&found);
    if (!hits)
        err_set(err, ERR_NOT_FOUND, "there is no rollout '%s' in '%s'", id, home);
    else
        err_set(err, ERR_CONFLICT, "'%s' fits %zu rollouts; give more of the id", id, hits);
    return NULL;
}
