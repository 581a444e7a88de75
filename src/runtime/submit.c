/* submit.c - rollouts asked for over the control listener.
 *
 * Everything that can be known to be wrong (agent, task, model, mode, what the backend cannot do)
 * is said before anything is begun, with the field that is to blame; of several submissions all are
 * taken or none. Models are kept by what they were asked for as, so that all rollouts of a server
 * share connections and limits; specs and tasks are read again only after a moment, so that a burst
 * of submissions reads each once. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "api/api.h"
#include "base/clock.h"
#include "base/mem.h"
#include "json/json.h"
#include "runtime/internal.h"

#define MODELS_MAX 1000
#define FRESH_MS 200
#define CACHE_MAX 1000

/* ---------------------------------------------------------------- what was read a moment ago */
struct recent {
    struct agent_spec *agent;
    struct task *task;
    uint64_t until_ms;
};

static void recent_free(struct recent *recent)
{
    agent_spec_unref(recent->agent);
    task_unref(recent->task);
    free(recent);
}

static void forget_recent(struct submitter *submitter)
{
    size_t at = 0;
    for (struct recent *recent; (recent = map_next(&submitter->recent, &at, NULL));)
        recent_free(recent);
    map_deinit(&submitter->recent);
}

static struct recent *recent_of(struct submitter *submitter, const char *kind, const char *name)
{
    OWN(mem) char *key = mem_format("%s %s", kind, name);
    struct recent *recent = map_get(&submitter->recent, str_of(key));
    if (recent && clock_mono_ms() < recent->until_ms)
        return recent;
    if (!recent && submitter->recent.count >= CACHE_MAX) {
        forget_recent(submitter);
        submitter->recent = (struct map){0};
    }
    if (recent) {
        (void)map_remove(&submitter->recent, str_of(key));
        recent_free(recent);
    }
    return NULL;
}

static void keep_recent(struct submitter *submitter, const char *kind, const char *name,
                        struct agent_spec *agent, struct task *task)
{
    OWN(mem) char *key = mem_format("%s %s", kind, name);
    struct recent *recent = mem_zero(sizeof *recent);
    recent->agent = agent ? agent_spec_ref(agent) : NULL;
    recent->task = task ? task_ref(task) : NULL;
    recent->until_ms = clock_mono_ms() + FRESH_MS;
    (void)map_put(&submitter->recent, str_of(key), recent);
}

void submitter_deinit(struct submitter *submitter)
{
    size_t at = 0;
    for (struct model *model; (model = map_next(&submitter->models, &at, NULL));)
        model_unref(model);
    map_deinit(&submitter->models);
    at = 0;
    for (void *known; (known = map_next(&submitter->capabilities, &at, NULL));)
        free(known);
    map_deinit(&submitter->capabilities);
    forget_recent(submitter);
}

/* ---------------------------------------------------------------- finding things */
/* What was asked for is wrong, whatever kept us from reading it. */
static int bad(struct err *err, const char *field)
{
    if (err->kind != ERR_UNSUPPORTED && err->kind != ERR_CAPACITY)
        err->kind = ERR_INPUT;
    return err_at(err, "%s", field);
}

static struct model *find_model(struct submitter *submitter, const char *spec, struct err *err)
{
    struct model *model = map_get(&submitter->models, str_of(spec));
    if (model)
        return model;
    if (submitter->models.count >= MODELS_MAX) {
        err_set(err, ERR_CAPACITY, "this server has seen %d different models", MODELS_MAX);
        return NULL;
    }
    model = machine_model(submitter->machine->config, spec, NULL, err);
    if (model)
        (void)map_put(&submitter->models, str_of(spec), model);
    return model;
}

static struct agent_spec *find_agent(struct submitter *submitter, const char *name, struct err *err)
{
    struct recent *recent = recent_of(submitter, "agent", name);
    if (recent)
        return agent_spec_ref(recent->agent);
    struct agent_spec *agent = agent_spec_load(name, machine_agent_dirs(), err);
    if (!agent)
        return NULL;
    if (agent_spec_has_bundle(agent)) {
        OWN(mem) char *layer = agent_bundle_layer(agent, submitter->machine->config->home, err);
        if (!layer) {
            agent_spec_unref(agent);
            return NULL;
        }
    }
    keep_recent(submitter, "agent", name, agent, NULL);
    return agent;
}

static struct task *find_task(struct submitter *submitter, const struct api_submit *order,
                              struct err *err)
{
    if (order->inline_task.data) {
        struct task *task = task_from_json(order->inline_task, "'task'", err);
        if (!task) {
            err->kind = err->kind == ERR_UNSUPPORTED ? ERR_UNSUPPORTED : ERR_INPUT;
            err_below(err, "task");
        }
        return task;
    }
    struct recent *recent = recent_of(submitter, "task", order->task);
    if (recent)
        return task_ref(recent->task);
    /* A task as text would count as a file of the operator's, which may read host variables. */
    if (!order->task[0] || order->task[0] == '{' || strcmp(order->task, "-") == 0) {
        err_set(err, ERR_INPUT, "'task' is a path or a task as an object");
        (void)bad(err, "task");
        return NULL;
    }
    OWN(task_source) struct task_source *source = task_source_open(order->task, err);
    struct err why = {0};
    struct task *task = source ? task_source_next(source, &why) : NULL;
    OWN(task) struct task *second = task ? task_source_next(source, &why) : NULL;
    if (task && !second && why.kind == ERR_NONE) {
        keep_recent(submitter, "task", order->task, NULL, task);
        return task;
    }
    if (why.kind != ERR_NONE)
        err_copy(err, &why);
    else if (second)
        err_set(err, ERR_INPUT, "'task' names several tasks: submit them one by one");
    else if (source)
        err_set(err, ERR_INPUT, "'%s' holds no task", order->task);
    (void)bad(err, "task");
    task_unref(task);
    return NULL;
}

/* ---------------------------------------------------------------- what the backend can do */
struct capability_question {
    struct machine_lane *room;
    const char *backend;
    int capabilities;
    struct err err;
};

static void ask_capabilities(void *argument)
{
    struct capability_question *question = argument;
    question->capabilities =
        sandboxes_capabilities(question->room->sandboxes, question->backend, &question->err);
}

static int find_capabilities(struct submitter *submitter, const char *backend, unsigned *out,
                             struct err *err)
{
    unsigned *known = map_get(&submitter->capabilities, str_of(backend));
    if (!known) {
        struct capability_question question = {.room = &submitter->machine->rooms[0],
                                               .backend = backend};
        loop_call(question.room->loop, ask_capabilities, &question);
        if (question.capabilities < 0) {
            err_copy(err, &question.err);
            return bad(err, "backend");
        }
        known = mem_alloc(sizeof *known);
        *known = (unsigned)question.capabilities;
        (void)map_put(&submitter->capabilities, str_of(backend), known);
    }
    *out = *known;
    return 0;
}

static int cannot(struct err *err, const char *backend, const char *what, const char *field)
{
    err_set(err, ERR_UNSUPPORTED, "backend '%s' cannot do '%s', which '%s' needs", backend, what,
            field);
    return err_at(err, "%s", field);
}

static int check_backend(struct submitter *submitter, const struct api_submit *order,
                         const struct rollout_request *request, unsigned *can, struct err *err)
{
    const char *backend = request->backend;
    if (find_capabilities(submitter, backend, can, err) < 0)
        return -1;
    const struct {
        long long asked;
        const char *field;
    } limits[] = {{order->memory_bytes_max, "memory_bytes_max"},
                  {order->disk_bytes_max, "disk_bytes_max"},
                  {order->pids_max, "pids_max"},
                  {order->cpu_millis, "cpu_millis"}};
    for (size_t i = 0; i < COUNT(limits); i++)
        if (limits[i].asked && !(*can & SANDBOX_CAN_LIMITS))
            return cannot(err, backend, "limits", limits[i].field);
    if (request->task->root && !(*can & SANDBOX_CAN_ROOT))
        return cannot(err, backend, "root", "task.root");
    bool network_off = *can & SANDBOX_CAN_NETWORK_OFF;
    if (!request->offline && task_network_check(request->task, network_off, err) < 0)
        return err_at(err, "task");
    if (task_env_check(request->task, agent_spec_wants_solution(request->agent), err) < 0)
        return err_at(err, "task");
    if (agent_spec_wants_solution(request->agent) && !task_has_solution(request->task)) {
        err_set(err, ERR_INPUT, "the task has no solution for the oracle");
        return err_at(err, "task");
    }
    if (agent_spec_wants_root(request->agent) && !(*can & SANDBOX_CAN_ROOT))
        return cannot(err, backend, "root", "agent");
    unsigned forks = SANDBOX_CAN_SNAPSHOT | SANDBOX_CAN_FORK;
    if (order->share_setup == 1 && (*can & forks) != forks)
        return cannot(err, backend, "fork", "share_setup");
    return 0;
}

/* ---------------------------------------------------------------- one order */
static int find_all(struct submitter *submitter, const struct api_submit *order,
                    struct rollout_request *request, struct err *err)
{
    enum gateway_mode mode = GATEWAY_BLACK_BOX;
    if (order->tools.size && gateway_tools_check(order->tools, err) < 0)
        return bad(err, "tools");
    if (order->mode && gateway_mode_read(order->mode, &mode, err) < 0)
        return bad(err, "mode");
    const char *model = order->model ? order->model : mode == GATEWAY_GATE ? "gate:" : NULL;
    if (!model) {
        err_set(err, ERR_INPUT, "'model' is needed in mode %s", gateway_mode_name(mode));
        return bad(err, "model");
    }
    request->model = find_model(submitter, model, err);
    if (!request->model) {
        err_wrap(err, "'model'");
        return bad(err, "model");
    }
    request->agent = find_agent(submitter, order->agent, err);
    if (!request->agent) {
        err_wrap(err, "'agent'");
        return bad(err, "agent");
    }
    request->task = find_task(submitter, order, err);
    request->sources =
        (struct rollout_sources){.agent = order->agent,
                                 .model = model,
                                 .task = order->inline_task.data ? NULL : order->task,
                                 .task_text = order->inline_task};
    return request->task ? 0 : -1;
}

static bool count_row(void *context, const struct store_rollout *row)
{
    (void)row;
    ++*(size_t *)context;
    return false;
}

/* A name that is used as one of a folder, too. */
static int check_group(struct submitter *submitter, const char *name, struct err *err)
{
    bool good = name[0] && name[0] != '.';
    for (const char *at = name; *at; at++)
        good = good && (isalnum((unsigned char)*at) || strchr("._-", *at));
    if (!good) {
        err_set(err, ERR_INPUT, "'group' has letters, digits, '.', '_' and '-' only");
        return err_at(err, "group");
    }
    size_t count = 0;
    struct store_query query = {.group = name, .limit = 1};
    if (store_list_rollouts(submitter->machine->store, &query, count_row, &count, err) < 0)
        return -1;
    if (!count && !rollouts_group_live(submitter->machine->rollouts, name))
        return 0;
    err_set(err, ERR_CONFLICT, "there is a group '%s' already", name);
    return err_at(err, "group");
}

static int make_request(struct submitter *submitter, const struct api_submit *order,
                        struct rollout_request *request, unsigned *can, struct err *err)
{
    const struct config *config = submitter->machine->config;
    *request = (struct rollout_request){
        .mode = order->mode,
        .backend = order->backend ? order->backend : config->sandbox_backend,
        .isolation = (int)config->sandbox_isolation,
        .run = order->run,
        .group = order->group,
        .index = (uint32_t)order->index,
        .wall_ms_max = (uint32_t)order->wall_ms_max,
        .turns_max = (uint32_t)order->turns_max,
        .skip_permissions = order->skip_permissions,
        .memory_bytes_max = (uint64_t)order->memory_bytes_max,
        .disk_bytes_max = (uint64_t)order->disk_bytes_max,
        .pids_max = (uint32_t)order->pids_max,
        .cpu_millis = (uint32_t)order->cpu_millis,
        .offline = config->rollout_offline,
        .tools = order->tools,
        .sampling = order->sampling,
        .realign_max = (uint32_t)order->realign_max,
        .exact_prefix = order->exact_prefix,
        .priority = (int32_t)order->priority,
        .queue_ms_max = (uint32_t)order->queue_ms_max,
        .has_policy = order->policy_version >= 0,
        .policy_version = order->policy_version,
        .key = order->key,
        .key_hash = order->key_hash,
        .callback = order->callback,
    };
    if (order->n && order->group && check_group(submitter, order->group, err) < 0)
        return -1;
    if (find_all(submitter, order, request, err) < 0 ||
        check_backend(submitter, order, request, can, err) < 0 ||
        rollouts_check(submitter->machine->rollouts, request, err) < 0)
        return -1;
    request->root = task_has_root(request->task) ? NULL : config->sandbox_root;
    return 0;
}

static int submit_group(struct submitter *submitter, const struct api_submit *order,
                        struct rollout_request *request, unsigned can, struct api_receipt *receipt,
                        struct err *err)
{
    unsigned forks = SANDBOX_CAN_SNAPSHOT | SANDBOX_CAN_FORK;
    struct rollout_group_request group = {
        .each = request,
        .count = (uint32_t)order->n,
        .share = order->share_setup == 1                             ? ROLLOUT_SHARE_YES
                 : order->share_setup == 0 || (can & forks) != forks ? ROLLOUT_SHARE_NO
                                                                     : ROLLOUT_SHARE_AUTO,
        .key = order->key,
        .key_hash = order->key_hash,
    };
    request->key = request->key_hash = NULL;
    return rollouts_submit_group(submitter->machine->rollouts, &group, receipt->group, receipt->ids,
                                 err);
}

int submitter_submit(void *context, const struct api_submit *orders, size_t count,
                     struct api_receipt *receipt, struct err *err)
{
    struct submitter *submitter = context;
    struct machine *machine = submitter->machine;
    if (machine->closing || !machine->rollouts)
        return err_set(err, ERR_CAPACITY, "no more rollouts are taken: the server is stopping");
    if (rollouts_room(machine->rollouts, orders[0].n ? (size_t)orders[0].n : count, err) < 0)
        return -1;
    struct rollout_request *requests = mem_zero(count * sizeof *requests);
    unsigned can = 0;
    int result = 0;
    for (size_t i = 0; i < count && result == 0; i++) {
        receipt->wrong = i;
        result = make_request(submitter, &orders[i], &requests[i], &can, err);
        requests[i].on_stored = receipt->on_stored;
        requests[i].stored_context = receipt->context;
    }
    if (result == 0 && orders[0].n)
        result = submit_group(submitter, &orders[0], &requests[0], can, receipt, err);
    else if (result == 0)
        result = rollouts_submit_all(machine->rollouts, requests, count, receipt->ids,
                                     &receipt->wrong, err);
    for (size_t i = 0; i < count; i++) {
        task_unref(requests[i].task);
        agent_spec_unref(requests[i].agent);
    }
    free(requests);
    return result;
}

int submitter_resume(void *context, struct rollout_left *left, struct err *err)
{
    struct submitter *submitter = context;
    struct rollout_request *request = &left->request;
    struct api_submit order = {
        .agent = request->sources.agent,
        .model = request->sources.model,
        .task = request->sources.task,
        .inline_task = request->sources.task_text,
        .mode = request->mode,
        .tools = request->tools,
    };
    int result = find_all(submitter, &order, request, err);
    if (result == 0)
        result = rollouts_resume(submitter->machine->rollouts, left, err);
    task_unref(request->task);
    agent_spec_unref(request->agent);
    return result;
}

int submitter_cancel(void *context, const char *id, const char *why, struct err *err)
{
    struct submitter *submitter = context;
    if (!submitter->machine->rollouts)
        return err_set(err, ERR_CAPACITY, "the server is stopping");
    return rollouts_cancel(submitter->machine->rollouts, id, why, err);
}
