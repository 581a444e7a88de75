/* submit.c - rollouts asked for over the control listener.
 *
 * Everything that can be known to be wrong (agent, task, model, mode) is said at once. Models are
 * kept by what they were asked for as, so that all rollouts of a server share connections and
 * limits. */
#include <stdlib.h>
#include <string.h>

#include "api/api.h"
#include "base/mem.h"
#include "runtime/internal.h"

#define MODELS_MAX 1000

void submitter_deinit(struct submitter *submitter)
{
    size_t at = 0;
    for (struct model *model; (model = map_next(&submitter->models, &at, NULL));)
        model_unref(model);
    map_deinit(&submitter->models);
}

static struct model *find_model(struct submitter *submitter, const char *spec, struct err *err)
{
    struct model *model = map_get(&submitter->models, str_of(spec));
    if (model)
        return model;
    if (submitter->models.count >= MODELS_MAX) {
        err_set(err, ERR_LIMIT, "this server has seen %d different models", MODELS_MAX);
        return NULL;
    }
    model = machine_model(submitter->machine->config, spec, NULL, err);
    if (model)
        (void)map_put(&submitter->models, str_of(spec), model);
    return model;
}

static struct task *find_task(const struct api_submit *order, struct err *err)
{
    if (order->inline_task.data)
        return task_from_json(order->inline_task, "'task'", err);
    struct task **tasks = NULL;
    size_t count = 0;
    if (!order->task[0] || strcmp(order->task, "-") == 0) {
        err_set(err, ERR_INPUT, "'task' is a path or a task as an object");
        return NULL;
    }
    if (task_load(order->task, &tasks, &count, err) < 0)
        return NULL;
    struct task *task = count == 1 ? task_ref(tasks[0]) : NULL;
    if (!task)
        err_set(err, ERR_INPUT, "'task' names %zu tasks: submit them one by one", count);
    task_list_free(tasks, count);
    return task;
}

static int find_all(struct submitter *submitter, const struct api_submit *order,
                    struct rollout_request *request, struct err *err)
{
    enum gateway_mode mode = GATEWAY_BLACK_BOX;
    if (order->tools.size && gateway_tools_check(order->tools, err) < 0)
        return -1;
    if (order->mode && gateway_mode_read(order->mode, &mode, err) < 0)
        return -1;
    const char *model = order->model ? order->model : mode == GATEWAY_GATE ? "gate:" : NULL;
    if (!model)
        return err_set(err, ERR_INPUT, "'model' is needed in mode %s", gateway_mode_name(mode));
    request->model = find_model(submitter, model, err);
    if (!request->model)
        return err_wrap(err, "'model'");
    request->agent = agent_spec_load(order->agent, machine_agent_dirs(), err);
    if (!request->agent)
        return err_wrap(err, "'agent'");
    request->task = find_task(order, err);
    return request->task ? 0 : -1;
}

int submitter_submit(void *context, const struct api_submit *order, char id[ID_MAX],
                     struct err *err)
{
    struct submitter *submitter = context;
    struct machine *machine = submitter->machine;
    const struct config *config = machine->config;
    struct rollout_request request = {
        .mode = order->mode,
        .backend = config->sandbox_backend,
        .isolation = (int)config->sandbox_isolation,
        .run = order->run,
        .group = order->group,
        .index = order->index,
        .wall_ms_max = order->wall_ms_max,
        .turns_max = order->turns_max,
        .offline = config->rollout_offline,
        .tools = order->tools,
    };
    if (machine->closing || !machine->rollouts)
        return err_set(err, ERR_CANCELLED, "the server is stopping");
    int result = find_all(submitter, order, &request, err);
    if (result == 0) {
        request.root = task_has_root(request.task) ? NULL : config->sandbox_root;
        result = rollouts_submit(machine->rollouts, &request, id, err);
    }
    task_unref(request.task);
    agent_spec_unref(request.agent);
    return result;
}

int submitter_cancel(void *context, const char *id, const char *why, struct err *err)
{
    struct submitter *submitter = context;
    if (!submitter->machine->rollouts)
        return err_set(err, ERR_CANCELLED, "the server is stopping");
    return rollouts_cancel(submitter->machine->rollouts, id, why, err);
}
