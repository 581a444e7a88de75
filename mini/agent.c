/* agent.c - the loop: ask, run what was asked for, tell, ask again.
 *
 * The conversation is JSON text that only grows. Whatever a tool call gets wrong is told to the
 * model as the call's result; only the model server's failures and our own limits end the run. */
#include <math.h>
#include <stdio.h>

#include "base/arena.h"
#include "base/clock.h"
#include "base/mem.h"
#include "json/json.h"
#include "mini.h"

static const char own_prompt[] =
    "You solve a task on a Linux machine, on your own. Your only tool is bash; each call starts a "
    "fresh "
    "shell, so directory changes and variables do not carry over to the next call, but files do.\n"
    "\n"
    "Work in small steps:\n"
    "- Look before you act: list the files, read what matters, find out how things are built and "
    "tested.\n"
    "- Change only what the task needs, in the style that is already there.\n"
    "- Check your work by running it. If there are tests, run them; if a check fails, find the "
    "cause "
    "instead of hiding it.\n"
    "- Keep output short: use head, tail, grep and sed -n on large files. Write files with a here "
    "document or a small script. Nothing interactive works: no editors, pagers or prompts.\n"
    "- There is probably no network.\n"
    "\n"
    "Nobody answers questions; decide for yourself. When the task is done and checked, answer with "
    "a "
    "short summary and no tool call: that ends the work.";

static const char tool_text[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"bash\",\"description\":\"Runs a command in a "
    "fresh bash shell (sh where there is no bash) and returns its output, stdout and stderr "
    "together, "
    "and its exit code when that is not 0. Long output loses its middle. Input is empty: nothing "
    "can be "
    "typed into a running program. For something that should go on running, use & and redirect its "
    "output to a file.\",\"parameters\":{\"type\":\"object\",\"properties\":{\"command\":{\"type\":"
    "\"string\",\"description\":\"The command line or script.\"},\"timeout\":{\"type\":\"number\","
    "\"description\":\"Seconds after which it is killed.\"}},\"required\":[\"command\"]}}}]";

struct agent {
    const struct mini_options *options;
    struct chat_events events;
    struct buf messages; /* the inside of the messages array */
    struct buf last_text;
};

/* ---------------------------------------------------------------- the conversation */

static struct json_writer begin_message(struct agent *agent, const char *role)
{
    if (agent->messages.size)
        buf_byte(&agent->messages, ',');
    struct json_writer writer = {.out = &agent->messages};
    json_begin_object(&writer);
    json_set_text(&writer, "role", role);
    return writer;
}

static void add_message(struct agent *agent, const char *role, struct str content)
{
    struct json_writer writer = begin_message(agent, role);
    json_set_str(&writer, "content", content);
    json_end_object(&writer);
}

static void add_answer(struct agent *agent, const struct chat_answer *answer)
{
    struct json_writer writer = begin_message(agent, "assistant");
    json_key(&writer, "content");
    if (answer->text.size || answer->call_count == 0)
        json_put_str(&writer, buf_str(&answer->text));
    else
        json_put_null(&writer);
    if (answer->reasoning.size)
        json_set_str(&writer, answer->reasoning_key, buf_str(&answer->reasoning));
    if (answer->call_count) {
        json_key(&writer, "tool_calls");
        json_begin_array(&writer);
        for (size_t i = 0; i < answer->call_count; i++) {
            const struct chat_call *call = &answer->calls[i];
            json_begin_object(&writer);
            json_set_str(&writer, "id", buf_str(&call->id));
            json_set_text(&writer, "type", "function");
            json_key(&writer, "function");
            json_begin_object(&writer);
            json_set_str(&writer, "name", buf_str(&call->name));
            json_set_str(&writer, "arguments", buf_str(&call->arguments));
            json_end_object(&writer);
            json_end_object(&writer);
        }
        json_end_array(&writer);
    }
    json_end_object(&writer);
}

static void add_result(struct agent *agent, struct str id, struct str content)
{
    struct json_writer writer = begin_message(agent, "tool");
    json_set_str(&writer, "tool_call_id", id);
    json_set_str(&writer, "content", content);
    json_end_object(&writer);
}

/* ---------------------------------------------------------------- tool calls */

/* What the model reads: the output, then what it should know beyond it. */
static void describe(const struct mini_outcome *outcome, uint32_t timeout_ms, struct buf *out)
{
    buf_str_append(out, buf_str(&outcome->output));
    bool line_open = out->size && out->data[out->size - 1] != '\n';
    if (outcome->timed_out)
        buf_format(out, "%s[timed out after %u s; the command was killed]", line_open ? "\n" : "",
                   timeout_ms / 1000);
    else if (outcome->code)
        buf_format(out, "%s[exit code %d]", line_open ? "\n" : "", outcome->code);
    else if (out->size == 0)
        buf_format(out, "(no output)");
}

static uint32_t timeout_of(const struct mini_options *options, struct json arguments)
{
    double seconds;
    if (!json_double(json_get(arguments, "timeout"), &seconds) || seconds <= 0)
        return options->command_ms;
    if (seconds * 1000 >= options->command_ms_max)
        return options->command_ms_max;
    return seconds < 1 ? 1000 : (uint32_t)(seconds * 1000);
}

static void refuse(struct agent *agent, const struct chat_call *call, const char *why)
{
    OWN(buf) struct buf text = {0};
    buf_format(&text, "error: %s", why);
    mini_event_tool_call(&agent->events, buf_str(&call->id), buf_str(&call->name),
                         buf_str(&call->arguments));
    mini_event_tool_result(&agent->events, buf_str(&call->id), NULL, buf_str(&text));
    add_result(agent, buf_str(&call->id), buf_str(&text));
}

static void run_command(struct agent *agent, const struct chat_call *call, const char *text,
                        uint32_t timeout_ms)
{
    const struct mini_options *options = agent->options;
    struct mini_command command = {.text = text,
                                   .timeout_ms = timeout_ms,
                                   .deadline_ms = options->model.deadline_ms,
                                   .output_bytes_max = options->output_bytes_max};
    struct mini_outcome outcome;
    struct err err = {0};
    OWN(buf) struct buf content = {0};
    mini_event_tool_call(&agent->events, buf_str(&call->id), buf_str(&call->name), str_of(text));
    if (mini_shell_run(&command, &outcome, &err) < 0) {
        buf_format(&content, "error: %s", err.text);
        mini_event_tool_result(&agent->events, buf_str(&call->id), NULL, buf_str(&content));
    } else {
        describe(&outcome, timeout_ms, &content);
        mini_event_tool_result(&agent->events, buf_str(&call->id), &outcome, STR_NONE);
        buf_deinit(&outcome.output);
    }
    add_result(agent, buf_str(&call->id), buf_str(&content));
}

static void handle_call(struct agent *agent, const struct chat_call *call)
{
    OWN(json_doc) struct json_doc doc = {0};
    OWN(arena) struct arena arena = {0};
    if (!str_is(buf_str(&call->name), "bash")) {
        refuse(agent, call, "there is no such tool; the only tool is bash");
        return;
    }
    struct err err = {0};
    if (json_read(&doc, buf_str(&call->arguments), NULL, &err) < 0) {
        err_wrap(&err, "the arguments are not valid JSON");
        refuse(agent, call, err.text);
        return;
    }
    struct json arguments = json_root(&doc);
    struct str command = json_str(json_get(arguments, "command"), &arena);
    if (!command.data) {
        refuse(agent, call, "the arguments must be an object with a string 'command'");
        return;
    }
    if (memchr(command.data, 0, command.size)) {
        refuse(agent, call, "the command must not contain a NUL character");
        return;
    }
    run_command(agent, call, arena_text(&arena, command), timeout_of(agent->options, arguments));
}

/* ---------------------------------------------------------------- the loop */

static void on_retry(void *context, const struct err *err, int status, uint64_t wait_ms)
{
    struct agent *agent = context;
    chat_event_error(&agent->events, err->text, status, (int64_t)wait_ms);
}

static bool time_is_over(const struct agent *agent)
{
    return clock_mono_ms() >= agent->options->model.deadline_ms;
}

static int finish(struct agent *agent, const char *reason, int exit_code)
{
    chat_event_done(&agent->events, reason, buf_str(&agent->last_text), exit_code);
    return exit_code;
}

/* One turn; -1: go on. */
static int take_turn(struct agent *agent)
{
    const struct mini_options *options = agent->options;
    if (time_is_over(agent))
        return finish(agent, "the time limit was reached", CHAT_LIMIT);
    if (agent->events.turn >= options->turns_max)
        return finish(agent, "the turn limit was reached", CHAT_LIMIT);
    agent->events.turn++;
    struct chat_model model = options->model;
    model.on_retry = on_retry;
    model.agent = "postern-mini";
    model.tools = STR(tool_text);
    model.context = agent;
    struct chat_answer answer;
    struct err err = {0};
    if (chat_model_ask(&model, buf_str(&agent->messages), &answer, &err) < 0) {
        if (err.kind == ERR_TIMEOUT)
            return finish(agent, "the time limit was reached", CHAT_LIMIT);
        chat_event_error(&agent->events, err.text, 0, -1);
        return finish(agent, "the model failed", CHAT_MODEL_FAILED);
    }
    mini_event_assistant(&agent->events, &answer);
    add_answer(agent, &answer);
    buf_clear(&agent->last_text);
    buf_str_append(&agent->last_text, buf_str(&answer.text));
    size_t calls = answer.call_count;
    for (size_t i = 0; i < calls && !time_is_over(agent); i++)
        handle_call(agent, &answer.calls[i]);
    chat_answer_deinit(&answer);
    return calls ? -1 : finish(agent, "finished", CHAT_FINISHED);
}

int mini_agent_run(const struct mini_options *options)
{
    struct agent agent = {.options = options,
                          .events = {.program = "postern-mini", .json = options->json}};
    add_message(&agent, "system", str_of(options->system ? options->system : own_prompt));
    add_message(&agent, "user", options->instruction);
    int exit_code;
    do
        exit_code = take_turn(&agent);
    while (exit_code < 0);
    buf_deinit(&agent.messages);
    buf_deinit(&agent.last_text);
    return exit_code;
}
