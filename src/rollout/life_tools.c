/* life_tools.c - programs of the task that answer the agent's tool calls.
 *
 *     agent -> inlet -> gateway: on_tool -> the tool's command, arguments on stdin -> its output
 *
 * A tool runs beside the agent, where it sees the agent's files and is in its reach; or apart, in a
 * sandbox of the rollout's own that the agent has no way to: same root and limits, no inlet, with
 * the task's tools/ in it. That one lives as long as the agent runs, so that its programs may keep
 * what they know in files there.
 *
 * Exit code 0: the output is the result, as JSON when it is an object of JSON, else as a text.
 * Anything else is a tool that failed, with its last words; the rollout goes on. */
#include <stdio.h>
#include <stdlib.h>

#include "base/log.h"
#include "base/mem.h"
#include "rollout/life.h"

#define OUTPUT_MAX (256u << 10)
#define COMPLAINT_MAX 2000

struct life_tool {
    struct list node; /* in life->tool_jobs */
    struct life *life;
    struct gateway_tool *asked;
    struct sandbox_job *job;
    struct buf out, complaint;
    bool cut;
    struct loop_timer gone; /* there is nowhere to run it: said when this tick is over */
};

/* ---------------------------------------------------------------- the place apart */

static void fail_apart(struct life *life, const struct err *err)
{
    struct err why = *err;
    err_wrap(&why, "the sandbox of the task's tools");
    life_fail_infra(life, &why);
}

static void on_tools_put(void *context, const struct err *err)
{
    struct life *life = context;
    if (is_bad(err)) {
        fail_apart(life, err);
        return;
    }
    life->apart_ready = true;
    life_step(life);
}

static void on_apart_lost(void *context, const struct err *err)
{
    fail_apart(context, err);
}

static void on_apart_open(void *context, struct sandbox *sandbox, const struct err *err)
{
    struct life *life = context;
    if (is_bad(err)) {
        fail_apart(life, err);
        return;
    }
    sandbox_on_lost(sandbox, on_apart_lost, life);
    if (life->plan->task->tools_dir) {
        sandbox_put_tree(sandbox, life->plan->task->tools_dir, TASK_TOOLS,
                         life->as_root ? "root" : NULL, on_tools_put, life);
        return;
    }
    on_tools_put(life, NULL);
}

bool life_tools_ready(struct life *life)
{
    if (life->apart_ready || life->plan->preparation || !task_has_apart(life->plan->task))
        return true;
    if (life->apart)
        return false;
    struct sandbox_spec spec = life_shape(life);
    spec.layers = NULL; /* no agent in there */
    spec.layer_count = 0;
    life->apart = sandbox_open(life->plan->lane.sandboxes, &spec, on_apart_open, life);
    return false;
}

/* ---------------------------------------------------------------- one call */

static void tool_free(struct life_tool *tool)
{
    list_remove(&tool->node);
    loop_timer_stop(&tool->gone);
    if (tool->job)
        sandbox_job_close(tool->job);
    buf_deinit(&tool->out);
    buf_deinit(&tool->complaint);
    free(tool);
}

static void on_output(void *context, int stream, struct str data)
{
    struct life_tool *tool = context;
    struct buf *to = stream == 1 ? &tool->out : &tool->complaint;
    if (stream == 1 && to->size + data.size > OUTPUT_MAX) {
        tool->cut = true;
        data = str_upto(data, OUTPUT_MAX - to->size);
    }
    buf_str_append(to, data);
    if (stream == 2 && to->size > COMPLAINT_MAX)
        buf_consume(to, to->size - COMPLAINT_MAX);
}

static void answer(struct life_tool *tool, struct gateway_tool *asked)
{
    OWN(json_doc) struct json_doc doc = {0};
    OWN(buf) struct buf result = {0};
    struct json_limits limits = {.depth_max = 64, .nodes_max = 1u << 20};
    struct str out = str_trim(buf_str(&tool->out));
    if (!tool->cut && out.size && out.data[0] == '{' && json_read(&doc, out, &limits, NULL) == 0) {
        gateway_tool_answer(asked, out);
        return;
    }
    if (tool->cut)
        buf_str_append(&tool->out, STR("\n[the rest is left out]"));
    json_quote(&result, buf_str(&tool->out));
    gateway_tool_answer(asked, buf_str(&result));
}

static void on_tool_exit(void *context, const struct sandbox_exit *exit)
{
    struct life_tool *tool = context;
    struct gateway_tool *asked = tool->asked;
    if (exit->end == SANDBOX_EXITED && exit->code == 0) {
        answer(tool, asked);
    } else {
        OWN(buf) struct buf text = {0};
        struct str words = str_trim(buf_str(&tool->complaint));
        if (!words.size)
            words = str_trim(buf_str(&tool->out));
        if (words.size > ERR_TEXT_MAX / 2)
            words = str_from(words, words.size - ERR_TEXT_MAX / 2);
        buf_format(&text, "the tool failed: %s%s%.*s",
                   exit->text[0] ? exit->text : sandbox_end_name(exit->end), words.size ? ": " : "",
                   STR_ARGS(words));
        gateway_tool_fail(asked, buf_text(&text));
    }
    tool_free(tool);
}

static void on_nowhere(struct loop_timer *timer)
{
    struct life_tool *tool = timer->context;
    gateway_tool_fail(tool->asked, "the tool failed: this rollout is over");
    tool_free(tool);
}

static const struct task_tool *find(const struct task *task, const char *name)
{
    for (size_t i = 0; i < task->tool_count; i++)
        if (strcmp(task->tools[i].name, name) == 0 && task->tools[i].command)
            return &task->tools[i];
    return NULL;
}

/* Read once; a variable that cannot be had was refused when the agent was to start. */
static const char *const *tool_env(struct life *life)
{
    const struct task *task = life->plan->task;
    if (!life->tool_env &&
        task_env_resolve(task, task->env, &life->arena, &life->tool_env, NULL, NULL) < 0)
        life->tool_env = NULL;
    return life->tool_env;
}

void life_on_tool(void *context, struct gateway_tool *asked, const char *name, struct str arguments)
{
    static const char *const missing[] = {"/nowhere/no-such-tool", NULL};
    struct life *life = context;
    const struct task *task = life->plan->task;
    const struct task_tool *order = find(task, name);
    struct sandbox *where = order && order->apart ? life->apart : life->sandbox;
    struct life_tool *tool = mem_zero(sizeof *tool);
    tool->life = life;
    tool->asked = asked;
    asked->owner = tool;
    list_append(&life->tool_jobs, &tool->node);
    if (!where || life->closing) {
        loop_timer_start(life->loop, &tool->gone, 0, on_nowhere, tool);
        return;
    }
    struct sandbox_command command = {
        .argv = order ? order->command : missing,
        .env = tool_env(life),
        .cwd = !order || !order->apart ? task->workdir
               : task->tools_dir       ? TASK_TOOLS
                                       : "/",
        .user = order && order->user ? order->user
                : task->root         ? "root"
                                     : NULL,
        .stdin_open = true,
        .timeout_ms = order ? order->timeout_ms : 1000,
        .output_bytes_max = 4 * OUTPUT_MAX,
    };
    struct sandbox_job_handlers handlers = {.on_output = on_output, .on_exit = on_tool_exit};
    tool->job = sandbox_run(where, &command, &handlers, tool);
    sandbox_job_write(tool->job, arguments);
    sandbox_job_end_input(tool->job);
}

void life_on_tool_closed(void *context, struct gateway_tool *asked)
{
    struct life_tool *tool = asked->owner;
    (void)context;
    if (tool)
        tool_free(tool);
}

void life_on_tool_note(void *context, const struct gateway_tool_note *note)
{
    struct life *life = context;
    OWN(buf) struct buf text = {0};
    struct json_writer out = {.out = &text};
    json_begin_object(&out);
    json_set_text(&out, "by", note->by);
    json_set_int(&out, "ms", (long long)note->ms);
    json_set_raw(&out, "arguments", note->arguments);
    if (note->failure)
        json_set_text(&out, "failure", note->failure);
    else
        json_set_raw(&out, "answer", note->result);
    json_end_object(&out);
    OWN(buf) struct buf line = {0};
    event_line_typed(&line, "task_tool", str_of(note->name), buf_str(&text));
    life_log_line(life, "task_tool", &line);
    life_tell(life, "task_tool", str_of(note->name));
}

/* ---------------------------------------------------------------- the end */

void life_tools_close(struct life *life)
{
    LIST_EACH (at, &life->tool_jobs) {
        struct life_tool *tool = LIST_OF(at, struct life_tool, node);
        if (tool->job)
            sandbox_job_close(TAKE(tool->job)); /* the session lets go of the rest */
    }
    if (!life->apart)
        return;
    sandbox_on_lost(life->apart, NULL, NULL);
    life->pending++;
    sandbox_close(TAKE(life->apart), life_on_closed, life);
}
