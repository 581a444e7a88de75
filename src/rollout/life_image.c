/* life_image.c - what a rollout's sandboxes stand on: the root that was asked for, the task's own,
 * or an image that is built or fetched first (task/image.c). A separate verifier may have another.
 * Part of provisioning. */
#include <string.h>

#include "rollout/life.h"

#include "base/mem.h"

static void next_image(struct life *life);

static bool has_image(const struct task_image *image)
{
    return image->build_dir || image->name;
}

static void on_image(void *context, const char *root, const struct err *err)
{
    struct life *life = context;
    if (is_bad(err)) {
        struct err why = *err;
        task_image_job_close(TAKE(life->image_job));
        life_fail_infra(life, &why);
        return;
    }
    const char *kept = arena_text(&life->arena, str_of(root));
    if (life->image_for_judge)
        life->verify_root = kept;
    else
        life->root = kept;
    task_image_job_close(TAKE(life->image_job));
    next_image(life);
}

static void make_image(struct life *life, const struct task_image *image)
{
    const struct plan *plan = life->plan;
    bool engine =
        strncmp(plan->backend, "podman", 6) == 0 || strncmp(plan->backend, "docker", 6) == 0;
    if (!engine && strcmp(plan->backend, "local") != 0) {
        struct err why = {0};
        err_set(
            &why, ERR_UNSUPPORTED,
            "the task brings an image, which backend '%s' cannot use; name its root with --root",
            plan->backend);
        life_fail_infra(life, &why);
        return;
    }
    struct task_image_options options = {
        .home = plan->home,
        .builder = plan->builder,
        .flags = plan->build_flags,
        .own_store = engine,
    };
    life->image_job = task_image_make(life->loop, image, &options, on_image, life);
}

static void next_image(struct life *life)
{
    const struct task *task = life->plan->task;
    if (!life->root && has_image(&task->image)) {
        make_image(life, &task->image);
        return;
    }
    if (!life->verify_root && task->separate_verify && has_image(&task->verify_image)) {
        life->image_for_judge = true;
        make_image(life, &task->verify_image);
        return;
    }
    if (!life->verify_root)
        life->verify_root =
            task->separate_verify && task->verify_root_image ? task->verify_root_image : life->root;
    life_open_sandbox(life);
}

void life_provision(struct life *life)
{
    life->root = life->plan->root;
    life->verify_root = NULL;
    life->image_for_judge = false;
    /* Also after a crash: whatever stood before, this one is new. */
    life->phase = 0;
    life->frozen = false;
    next_image(life);
}
