/* roots.c - from the shape of a sandbox to the mounts its root is made of.
 *
 *     host    overlay: [layers] skel              /usr and friends: bind, or overlay: [layers]
 * host's own dir     overlay: [layers] graft directory image   overlay: [layers] graft image
 *
 * Lowers are copies of mounts, read-only, with owners shifted into the sandbox's user namespace
 * when its ids are not the keeper's own. A filesystem that cannot shift (overlayfs, most network
 * filesystems) shows its files as nobody's: good enough for an ordinary user inside, refused when
 * root inside was asked for. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/file.h"
#include "base/mem.h"
#include "mounts.h"
#include "roots.h"

#define LOWER_ATTRIBUTES (MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV)

int roots_add_lower(struct planner *planner, int dir, const char *path, bool recursive,
                    const char *what, struct err *err)
{
    if (planner->lowers->count == CHILD_FDS_MAX - 1)
        return err_set(err, ERR_LIMIT, "a sandbox has at most %d layers", CHILD_FDS_MAX - 1);
    OWN(fd) int mount = mount_clone(dir, path, recursive, err);
    if (mount < 0)
        return err_wrap(err, "%s", what);
    bool shift = planner->keeper->ids.base > 0;
    struct err first = {0};
    if (mount_shape(mount, recursive, LOWER_ATTRIBUTES, shift ? planner->userns : -1, &first) < 0) {
        if (first.kind != ERR_UNSUPPORTED)
            return err_copy(err, &first);
        if (planner->shape->root_user)
            return err_set(err, ERR_UNSUPPORTED, "root inside is not possible with %s: %s", what,
                           first.text);
        if (mount_shape(mount, recursive, LOWER_ATTRIBUTES, -1, err) < 0)
            return err_wrap(err, "%s", what);
    }
    planner->lowers->fds[planner->lowers->count++] = fd_take(&mount);
    return 0;
}

/* --- layers
 * --------------------------------------------------------------------------------------- */

static int stack_add(struct stack *stack, struct layer *layer, const char *dir, struct err *err)
{
    for (size_t i = 0; layer && i < stack->count; i++)
        if (stack->layers[i] == layer)
            return 0;
    if (stack->count == KEEPER_LAYERS_MAX)
        return err_set(err, ERR_LIMIT, "a sandbox stands on at most %d layers", KEEPER_LAYERS_MAX);
    stack->layers[stack->count] = layer;
    stack->dirs[stack->count++] = dir;
    return 0;
}

static int stack_build(struct keeper *keeper, const struct shape *shape, struct stack *stack,
                       struct err *err)
{
    for (size_t i = 0; i < shape->layer_count; i++) {
        const char *name = shape->layers[i];
        if (name[0] == '/') {
            struct stat facts;
            if (stat(name, &facts) < 0 || !S_ISDIR(facts.st_mode))
                return err_set(err, ERR_INPUT, "the layer '%s' is not a directory", name);
            if (stack_add(stack, NULL, name, err) < 0)
                return -1;
            continue;
        }
        struct layer *layer = layer_find(keeper, name);
        if (!layer)
            return err_set(err, ERR_NOT_FOUND, "there is no layer '%s'", name);
        for (size_t j = 0; j < layer->parent_count; j++)
            if (stack_add(stack, layer->parents[j], NULL, err) < 0)
                return -1;
        if (stack_add(stack, layer, NULL, err) < 0)
            return -1;
    }
    return 0;
}

/* Adds what layer `at` has for the tree, if anything. */
static int add_layer(struct planner *planner, const struct stack *stack, size_t at, uint32_t tree,
                     const char *tree_name, struct err *err)
{
    const struct layer *layer = stack->layers[at];
    char path[64], what[128];
    if (layer) {
        if (!(layer->trees & 1u << tree))
            return 0;
        snprintf(path, sizeof path, "r%u", tree);
        snprintf(what, sizeof what, "layer %s", layer->id);
        OWN(fd) int dir = open(layer->dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
        if (dir < 0)
            return err_errno(err, "%s", what);
        return roots_add_lower(planner, dir, path, false, what, err);
    }
    OWN(fd) int dir = open(stack->dirs[at], O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (dir < 0)
        return err_errno(err, "the layer '%s'", stack->dirs[at]);
    if (tree == 0)
        return roots_add_lower(planner, dir, "", false, "a layer directory", err);
    struct stat facts;
    if (fstatat(dir, tree_name, &facts, AT_SYMLINK_NOFOLLOW) < 0 || !S_ISDIR(facts.st_mode))
        return 0;
    return roots_add_lower(planner, dir, tree_name, false, "a layer directory", err);
}

/* How many of the layers a tree shows. */
static size_t layers_of(const struct planner *planner, const struct stack *stack,
                        const char *tree_name)
{
    const struct shape *shape = planner->shape;
    for (size_t i = 0; i < shape->pristine_count; i++)
        if (strcmp(shape->pristine[i], tree_name) == 0)
            return pristine_layers(shape, stack);
    return stack->count;
}

static int add_layers(struct planner *planner, const struct stack *stack, uint32_t tree,
                      const char *tree_name, struct err *err)
{
    for (size_t i = layers_of(planner, stack, tree_name); i-- > 0;)
        if (add_layer(planner, stack, i, tree, tree_name, err) < 0)
            return -1;
    return 0;
}

/* --- roots
 * ---------------------------------------------------------------------------------------- */

static bool is_image_name(const char *name)
{
    size_t size =
        strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._:-");
    return size > 0 && size <= 128 && !name[size] && name[0] != '.' && name[0] != '-';
}

/* Where a dir: or image: root lies. */
static char *root_dir(const struct keeper *keeper, const char *root, struct err *err)
{
    if (strncmp(root, "dir:", 4) == 0) {
        if (root[4] != '/') {
            err_set(err, ERR_INPUT, "the root '%s' is not an absolute path", root + 4);
            return NULL;
        }
        return mem_dup(root + 4);
    }
    if (strncmp(root, "image:", 6) == 0) {
        if (!is_image_name(root + 6)) {
            err_set(err, ERR_INPUT, "'%s' is not the name of an image", root + 6);
            return NULL;
        }
        char *dir = mem_format("%s/images/%s/root", keeper->options.home, root + 6);
        if (file_exists(dir))
            return dir;
        free(dir);
        err_set(err, ERR_NOT_FOUND, "there is no image '%s' (see: postern image ls)", root + 6);
        return NULL;
    }
    err_set(err, ERR_INPUT, "the root '%s' is none of host, dir:/path, image:NAME", root);
    return NULL;
}

static bool is_host(const struct shape *shape)
{
    return strcmp(shape->root, "host") == 0;
}

static bool has_entry(int dir, const char *name)
{
    struct stat facts;
    return fstatat(dir, name, &facts, AT_SYMLINK_NOFOLLOW) == 0;
}

int roots_check(struct keeper *keeper, const struct shape *shape, struct err *err)
{
    struct stack stack = {0};
    if (stack_build(keeper, shape, &stack, err) < 0)
        return -1;
    if (is_host(shape)) {
        if (shape->root_user && keeper->ids.mode == IDS_SINGLE)
            return err_set(err, ERR_UNSUPPORTED,
                           "root inside needs more than one user id with the host's files as root "
                           "(no range for this user in /etc/subuid); use a directory or an image");
        if (shape->root_user && keeper->ids.mode == IDS_SHARED && keeper->ids.base == 0)
            return err_set(err, ERR_UNSUPPORTED,
                           "root inside is not possible with the host's files as root when the "
                           "keeper is an ordinary user; use a directory or an image");
        return 0;
    }
    OWN(mem) char *path = root_dir(keeper, shape->root, err);
    if (!path)
        return -1;
    OWN(fd) int dir = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (dir < 0) {
        err_errno(err, "the root '%s'", path);
        if (err && err->kind != ERR_DENIED)
            err->kind = ERR_INPUT;
        return -1;
    }
    if (!has_entry(dir, "bin") && !has_entry(dir, "usr/bin"))
        return err_set(err, ERR_INPUT, "the root '%s' has neither bin nor usr/bin in it", path);
    return 0;
}

static int plan_host(struct planner *planner, const struct stack *stack, struct err *err)
{
    const struct stage *stage = &planner->keeper->stage;
    struct child_plan *plan = planner->plan;
    if (roots_add_lower(planner, stage->dir, "skel", false, "the host's root", err) < 0)
        return -1;
    plan->trees[0].lower_count = (uint8_t)planner->lowers->count;
    for (size_t i = 0; i < stage->tree_count; i++) {
        uint32_t index = plan->tree_count++;
        struct child_tree *tree = &plan->trees[index];
        snprintf(tree->name, sizeof tree->name, "%s", stage->trees[i].name);
        size_t before = planner->lowers->count;
        if (add_layers(planner, stack, index, tree->name, err) < 0)
            return -1;
        tree->upper = planner->shape->root_user;
        tree->bind = !tree->upper && planner->lowers->count == before;
        char path[32];
        snprintf(path, sizeof path, "/%s", tree->name);
        if (roots_add_lower(planner, AT_FDCWD, path, tree->bind, path, err) < 0)
            return -1;
        tree->lower_count = (uint8_t)(planner->lowers->count - before);
    }
    return 0;
}

int roots_plan(struct keeper *keeper, const struct shape *shape, int userns,
               struct child_plan *plan, struct lowers *lowers,
               struct layer *used[KEEPER_LAYERS_MAX], size_t *used_count, struct err *err)
{
    struct planner planner = {keeper, shape, userns, plan, lowers, NULL};
    struct stack stack = {0};
    OWN(mem) char *path = NULL;
    if (stack_build(keeper, shape, &stack, err) < 0)
        return -1;
    if (!is_host(shape) && !(path = root_dir(keeper, shape->root, err)))
        return -1;
    planner.dir = path;
    for (size_t i = 0; i < stack.count; i++)
        if (stack.layers[i]) {
            layer_hold(stack.layers[i]);
            used[(*used_count)++] = stack.layers[i];
        }
    plan->tree_count = 1;
    plan->trees[0].upper = true;
    if (pristine_cover(&planner, &stack, err) < 0 || add_layers(&planner, &stack, 0, "", err) < 0)
        return -1;
    if (!path)
        return plan_host(&planner, &stack, err) < 0 ? -1 : pristine_trees(&planner, &stack, err);
    if (roots_add_lower(&planner, keeper->stage.dir, "graft", false, "the graft", err) < 0 ||
        roots_add_lower(&planner, AT_FDCWD, path, false, path, err) < 0)
        return -1;
    plan->trees[0].lower_count = (uint8_t)lowers->count;
    return pristine_trees(&planner, &stack, err);
}

/* --- the porter's arguments
 * ----------------------------------------------------------------------- */

static int add_argument(struct child_plan *plan, struct err *err, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static int add_argument(struct child_plan *plan, struct err *err, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    size_t room = sizeof plan->args - plan->args_size;
    int size = vsnprintf(plan->args + plan->args_size, room, format, args);
    va_end(args);
    if (size < 0 || (size_t)size >= room || plan->arg_count >= 480)
        return err_set(err, ERR_LIMIT, "the image's environment is too large");
    plan->args_size += (uint32_t)size + 1;
    plan->arg_count++;
    return 0;
}

static int add_pair(struct child_plan *plan, const char *option, const char *value, struct err *err)
{
    return add_argument(plan, err, "%s", option) < 0 ? -1 : add_argument(plan, err, "%s", value);
}

static int add_limit(struct child_plan *plan, const char *name, int which, uint64_t want,
                     struct err *err)
{
    struct rlimit own;
    if (getrlimit(which, &own) == 0 && own.rlim_max != RLIM_INFINITY && own.rlim_max < want)
        want = own.rlim_max;
    return add_argument(plan, err, "--rlimit") < 0
               ? -1
               : add_argument(plan, err, "%s=%llu:%llu", name, (unsigned long long)want,
                              (unsigned long long)want);
}

#define PATH_DEFAULT "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

int roots_arguments(struct keeper *keeper, const struct shape *shape, struct child_plan *plan,
                    struct err *err)
{
    bool only_root = keeper->ids.mode == IDS_SINGLE && shape->root_user;
    OWN(buf) struct buf defaults = {0};
    if (strncmp(shape->root, "image:", 6) == 0) {
        OWN(mem)
        char *path = mem_format("%s/images/%s/defaults", keeper->options.home, shape->root + 6);
        if (file_exists(path) && file_read(path, KEEPER_PACKET_MAX, &defaults, err) < 0)
            return -1;
        if (defaults.size && !keeper_packet_is_sound(buf_str(&defaults)))
            return err_set(err, ERR_INPUT, "the image's '%s' is damaged", path);
    }
    struct str image = buf_str(&defaults);
    char home[32];
    snprintf(home, sizeof home, "HOME=%s", only_root ? "/root" : "/home/agent");
    const char *common[] = {PATH_DEFAULT, home, only_root ? "USER=root" : "USER=agent",
                            only_root ? "LOGNAME=root" : "LOGNAME=agent", "LANG=C.UTF-8"};
    for (size_t i = 0; i < COUNT(common); i++)
        if (add_pair(plan, "--default-env", common[i], err) < 0)
            return -1;
    size_t at = 0;
    struct str key;
    for (const char *value; keeper_field_next(image, &at, &key, &value);)
        if (str_is(key, "env") && strncmp(value, "HOME=", 5) != 0 &&
            add_pair(plan, "--default-env", value, err) < 0)
            return -1;
    const char *cwd = keeper_field(image, "cwd"), *user = keeper_field(image, "user");
    if (add_pair(plan, "--default-cwd", cwd && cwd[0] == '/' && cwd[1] ? cwd : "/work", err) < 0 ||
        add_pair(plan, "--default-user",
                 only_root                                ? "0:0"
                 : user && keeper->ids.mode != IDS_SINGLE ? user
                                                          : "1000:1000",
                 err) < 0)
        return -1;
    if (shape->root_user &&
        (add_argument(plan, err, "--root-caps") < 0 ||
         add_argument(plan, err, "%llx", (unsigned long long)child_root_capabilities()) < 0))
        return -1;
    if (add_limit(plan, "core", RLIMIT_CORE, 0, err) < 0 ||
        add_limit(plan, "nofile", RLIMIT_NOFILE, 65536, err) < 0 ||
        add_limit(plan, "memlock", RLIMIT_MEMLOCK, 8u << 20, err) < 0 ||
        add_limit(plan, "msgqueue", RLIMIT_MSGQUEUE, 819200, err) < 0)
        return -1;
    if (shape->isolation == ISOLATION_NO_LIMITS &&
        add_limit(plan, "nproc", RLIMIT_NPROC, shape->pids_max, err) < 0)
        return -1;
    return add_argument(plan, err, "--die-with-parent");
}
