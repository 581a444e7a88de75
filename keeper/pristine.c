/* pristine.c - directories that do not show what the topmost layers did to them.
 *
 * A verifier judges what an agent left, but with programs the agent had no hand in. The shape names
 * directories below "/" (`pristine=usr`, `pristine=etc`, ...) and how many layers, from the lowest,
 * they may show (`pristine_layers`: what setup did before the agent came). Everything else shows
 * all layers.
 *
 *     tree 0      cover: usr/ etc/ root/   bin -> usr/bin   (no lib32)      over all layers
 *     tree usr    overlay: [lower layers' usr] the root's own usr           mounted on it
 *     tree etc    ...
 *
 * The cover is a small directory on the stage: it puts links back that the layers may have
 * replaced, hides names the pristine root does not have, and has a real directory wherever a tree
 * is mounted, so that no link of the agent's is ever on the way. Covers are the same for all
 * sandboxes of a kind and are kept. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/file.h"
#include "base/mem.h"
#include "mounts.h"
#include "roots.h"

#define PLACES_MAX (KEEPER_LAYERS_MAX + 2)

enum kind { KIND_ABSENT, KIND_LINK, KIND_TREE };

/* What a name is in the pristine root. */
struct found {
    enum kind kind;
    char target[256];       /* of a link */
    int places[PLACES_MAX]; /* directories to merge, topmost first; owned */
    size_t count;
    bool over; /* nothing below shows */
};

static void found_deinit(struct found *found)
{
    for (size_t i = 0; i < found->count; i++)
        fd_close(&found->places[i]);
}

static bool is_opaque(int dir)
{
    char path[64], value[4];
    snprintf(path, sizeof path, "/proc/self/fd/%d", dir);
    return getxattr(path, "user.overlay.opaque", value, sizeof value) > 0;
}

/* What one layer says about `path` in it. */
static int look_at(struct found *found, int layer, const char *path, struct err *err)
{
    struct stat facts;
    if (found->over)
        return 0;
    if (fstatat(layer, path, &facts, AT_SYMLINK_NOFOLLOW) < 0)
        return errno == ENOENT || errno == ENOTDIR ? 0 : err_errno(err, "'%s'", path);
    found->over = !S_ISDIR(facts.st_mode);
    if (S_ISLNK(facts.st_mode) && !found->count) {
        ssize_t size = readlinkat(layer, path, found->target, sizeof found->target - 1);
        if (size <= 0 || size == (ssize_t)sizeof found->target - 1)
            return err_set(err, ERR_INPUT, "the link '%s' of the root is too long", path);
        found->target[size] = '\0';
        found->kind = KIND_LINK;
    }
    if (!S_ISDIR(facts.st_mode))
        return 0;
    OWN(fd) int dir = openat(layer, path, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (dir < 0)
        return err_errno(err, "'%s'", path);
    found->over = is_opaque(dir);
    found->kind = KIND_TREE;
    found->places[found->count++] = fd_take(&dir);
    return 0;
}

size_t pristine_layers(const struct shape *shape, const struct stack *stack)
{
    size_t most = stack->count ? stack->count - 1 : 0;
    return shape->pristine_layers < most ? shape->pristine_layers : most;
}

static int find(const struct planner *planner, const struct stack *stack, const char *name,
                struct found *found, struct err *err)
{
    char path[64];
    for (size_t i = pristine_layers(planner->shape, stack); i-- > 0;) {
        const struct layer *layer = stack->layers[i];
        OWN(fd)
        int dir = open(layer ? layer->dir : stack->dirs[i], O_PATH | O_DIRECTORY | O_CLOEXEC);
        if (dir < 0)
            return err_errno(err, "a layer");
        snprintf(path, sizeof path, "%s%s", layer ? "r0/" : "", name);
        if (look_at(found, dir, path, err) < 0)
            return -1;
    }
    snprintf(path, sizeof path, "%s/%s", planner->dir ? "graft" : "skel", name);
    if (look_at(found, planner->keeper->stage.dir, path, err) < 0)
        return -1;
    if (!planner->dir)
        return 0;
    OWN(fd) int root = open(planner->dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (root < 0)
        return err_errno(err, "the root '%s'", planner->dir);
    return look_at(found, root, name, err);
}

/* A tree of the host's is one anyway; it only has to leave layers out. */
static bool is_host_tree(const struct planner *planner, const char *name)
{
    const struct stage *stage = &planner->keeper->stage;
    for (size_t i = 0; !planner->dir && i < stage->tree_count; i++)
        if (strcmp(stage->trees[i].name, name) == 0)
            return true;
    return false;
}

/* --- the cover ------------------------------------------------------------------------------- */

static int cover_entry(int cover, const char *name, const struct found *found, struct err *err)
{
    int made = -1;
    switch (found->kind) {
    case KIND_TREE:
        made = mkdirat(cover, name, 0755);
        break;
    case KIND_LINK:
        made = symlinkat(found->target, cover, name);
        break;
    case KIND_ABSENT: /* an overlay's way to say: nothing here */
        made = mknodat(cover, name, S_IFCHR, makedev(0, 0));
        break;
    }
    return made < 0 ? err_errno(err, "the cover of '/%s'", name) : 0;
}

static int cover_fill(const struct planner *planner, const struct stack *stack, int cover,
                      struct err *err)
{
    const struct shape *shape = planner->shape;
    for (size_t i = 0; i < shape->pristine_count; i++) {
        struct found found = {0};
        const char *name = shape->pristine[i];
        int result = is_host_tree(planner, name) ? 0 : find(planner, stack, name, &found, err);
        if (is_host_tree(planner, name))
            found.kind = KIND_TREE;
        if (result == 0)
            result = cover_entry(cover, name, &found, err);
        found_deinit(&found);
        if (result < 0)
            return -1;
    }
    return 0;
}

static int signature(const struct planner *planner, const struct stack *stack, struct buf *out,
                     struct err *err)
{
    const struct shape *shape = planner->shape;
    for (size_t i = 0; i < shape->pristine_count; i++) {
        struct found found = {0};
        const char *name = shape->pristine[i];
        int result = is_host_tree(planner, name) ? 0 : find(planner, stack, name, &found, err);
        found_deinit(&found);
        if (result < 0)
            return -1;
        buf_format(out, "%s:%d:%s\n", name,
                   is_host_tree(planner, name) ? (int)KIND_TREE : (int)found.kind, found.target);
    }
    return 0;
}

int pristine_cover(struct planner *planner, const struct stack *stack, struct err *err)
{
    struct keeper *keeper = planner->keeper;
    if (!planner->shape->pristine_count)
        return 0;
    OWN(buf) struct buf text = {0};
    if (signature(planner, stack, &text, err) < 0)
        return -1;
    size_t at = 0;
    while (at < keeper->cover_count && strcmp(keeper->covers[at], buf_text(&text)) != 0)
        at++;
    char name[16];
    snprintf(name, sizeof name, "c%zu", at);
    if (at == keeper->cover_count) {
        if (at == KEEPER_COVERS_MAX)
            return err_set(err, ERR_CAPACITY, "roots of more than %d kinds", KEEPER_COVERS_MAX);
        if (mkdirat(keeper->stage.dir, name, 0755) < 0)
            return err_errno(err, "the cover");
        OWN(fd)
        int cover = openat(keeper->stage.dir, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (cover < 0 || cover_fill(planner, stack, cover, err) < 0) {
            OWN(mem) char *path = mem_format("%s/%s", STAGE, name);
            (void)file_remove_tree(path, NULL);
            return -1;
        }
        keeper->covers[keeper->cover_count++] = mem_dup(buf_text(&text));
    }
    return roots_add_lower(planner, keeper->stage.dir, name, false, "the cover", err);
}

/* --- the trees ------------------------------------------------------------------------------- */

static int add_tree(struct planner *planner, const char *name, const struct found *found,
                    struct err *err)
{
    struct child_plan *plan = planner->plan;
    if (plan->tree_count == CHILD_TREES_MAX)
        return err_set(err, ERR_LIMIT, "a sandbox has at most %d trees", CHILD_TREES_MAX);
    struct child_tree *tree = &plan->trees[plan->tree_count++];
    snprintf(tree->name, sizeof tree->name, "%s", name);
    tree->upper = true;
    for (size_t i = 0; i < found->count; i++)
        if (roots_add_lower(planner, found->places[i], "", false, name, err) < 0)
            return -1;
    tree->lower_count = (uint8_t)found->count;
    return 0;
}

int pristine_trees(struct planner *planner, const struct stack *stack, struct err *err)
{
    const struct shape *shape = planner->shape;
    for (size_t i = 0; i < shape->pristine_count; i++) {
        struct found found = {0};
        const char *name = shape->pristine[i];
        if (is_host_tree(planner, name))
            continue;
        int result = find(planner, stack, name, &found, err);
        if (result == 0 && found.kind == KIND_TREE)
            result = add_tree(planner, name, &found, err);
        found_deinit(&found);
        if (result < 0)
            return -1;
    }
    return 0;
}
