/* agent.c - the loop: ask, type what was asked for, show what the terminal says, ask again.
 *
 * Whatever an answer gets wrong is told to the model in the next message; only the model server's
 * failures and our own limits end the run. The end is said twice: after the first "task_complete"
 * the model sees the terminal once more and is asked whether it is sure. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/clock.h"
#include "base/mem.h"
#include "terminus.h"

#define HAND_OVERS_MAX 50

struct agent {
    const struct terminus_options *options;
    struct chat_model model;
    struct chat_events events;
    struct talk talk;
    struct terminal *terminal;
    struct buf last_text;
    bool was_complete; /* the answer before this one said so */
    uint32_t number;   /* of commands */
    uint32_t hand_overs;
};

static bool time_is_over(const struct agent *agent)
{
    return clock_mono_ms() >= agent->options->model.deadline_ms;
}

static int finish(struct agent *agent, const char *reason, int exit_code)
{
    chat_event_done(&agent->events, reason, buf_str(&agent->last_text), exit_code);
    return exit_code;
}

static void on_retry(void *context, const struct err *err, int status, uint64_t wait_ms)
{
    struct agent *agent = context;
    chat_event_error(&agent->events, err->text, status, (int64_t)wait_ms);
}

/* ---------------------------------------------------------------- the terminal's words */

static void clip(const struct agent *agent, struct str text, struct buf *out)
{
    struct chat_clip clipped = {.half_max = agent->options->output_bytes_max / 2};
    chat_clip_add(&clipped, text);
    chat_clip_finish(&clipped, out);
}

static void look(struct agent *agent, enum screen_look how, struct buf *out)
{
    OWN(buf) struct buf text = {0};
    screen_look(terminal_screen(agent->terminal), how, &text);
    clip(agent, buf_str(&text), out);
}

static void type_all(struct agent *agent, const struct reply *reply, struct buf *shown)
{
    const struct terminus_options *options = agent->options;
    OWN(buf) struct buf all = {0};
    for (size_t i = 0; i < reply->command_count && !time_is_over(agent); i++) {
        const struct reply_command *command = &reply->commands[i];
        double seconds = command->seconds;
        uint64_t wait_ms = seconds * 1000 >= options->wait_ms_max ? options->wait_ms_max
                                                                  : (uint64_t)(seconds * 1000);
        uint64_t start = clock_mono_ms();
        OWN(buf) struct buf text = {0}, told = {0};
        event_keys(&agent->events, ++agent->number, command);
        /* Empty keystrokes ask for a wait; a prompt is no reason to cut it short. */
        terminal_type(agent->terminal, command->keystrokes, wait_ms, options->model.deadline_ms,
                      command->keystrokes.size > 0);
        screen_look(terminal_screen(agent->terminal), SCREEN_NEW, &text);
        int code;
        if (terminal_was_restarted(agent->terminal, &code))
            buf_format(&text, "\n[the shell ended with code %d; this is a new one]\n", code);
        clip(agent, buf_str(&text), &told);
        event_output(&agent->events, agent->number, buf_str(&told), clock_mono_ms() - start);
        /* A whole screen replaces what was seen of it before; new lines follow each other. */
        if (screen_is_alternate(terminal_screen(agent->terminal)))
            buf_clear(&all);
        if (all.size && text.size && all.data[all.size - 1] != '\n')
            buf_byte(&all, '\n');
        buf_str_append(&all, buf_str(&text));
    }
    clip(agent, buf_str(&all), shown);
}

static void describe(struct agent *agent, struct str shown, struct buf *out)
{
    if (screen_is_alternate(terminal_screen(agent->terminal)))
        buf_format(out, "The screen shows:\n\n%.*s", STR_ARGS(shown));
    else if (str_trim(shown).size)
        buf_format(out, "New in the terminal:\n\n%.*s", STR_ARGS(shown));
    else
        buf_format(out, "Nothing new in the terminal.");
}

/* ---------------------------------------------------------------- one turn */

static void answer_unusable(struct agent *agent, const struct err *err)
{
    OWN(buf) struct buf text = {0};
    buf_format(&text,
               "Your answer could not be used and nothing was typed: %s.\n"
               "Answer with exactly one JSON object with \"analysis\", \"plan\", \"commands\" and "
               "\"task_complete\".",
               err->text);
    chat_event_error(&agent->events, err->text, 0, -1);
    talk_add(&agent->talk, "user", buf_str(&text));
}

/* -1: go on. */
static int answer_used(struct agent *agent, const struct reply *reply)
{
    OWN(buf) struct buf shown = {0}, text = {0};
    type_all(agent, reply, &shown);
    buf_clear(&agent->last_text);
    buf_str_append(&agent->last_text, reply->analysis);
    if (reply->complete && (agent->was_complete || !agent->options->confirm))
        return finish(agent, "finished", CHAT_FINISHED);
    if (reply->warnings.size)
        buf_format(&text, "About your last answer:\n%.*s\n", STR_ARGS(buf_str(&reply->warnings)));
    describe(agent, buf_str(&shown), &text);
    if (reply->complete)
        buf_format(&text,
                   "\n\nYou said that the task is complete. After this nothing can be changed any "
                   "more. If you are sure that everything is done and was checked, say "
                   "\"task_complete\": true once more; if not, go on.");
    agent->was_complete = reply->complete;
    talk_add(&agent->talk, "user", buf_str(&text));
    return -1;
}

static int hand_over(struct agent *agent, struct err *err)
{
    if (++agent->hand_overs > HAND_OVERS_MAX)
        return err_set(err, ERR_LIMIT, "the conversation was handed over %d times", HAND_OVERS_MAX);
    OWN(buf) struct buf screen = {0}, notes = {0};
    look(agent, SCREEN_WHOLE, &screen);
    if (talk_hand_over(&agent->talk, &agent->model, buf_str(&screen), &notes, err) < 0)
        return -1;
    agent->was_complete = false;
    event_note(&agent->events, "handed over", buf_str(&notes));
    return 0;
}

/* The model's answer; a conversation that became too long is handed over first. */
static int ask(struct agent *agent, struct chat_answer *answer, struct err *err)
{
    if (talk_is_full(&agent->talk) && hand_over(agent, err) < 0)
        return -1;
    if (talk_ask(&agent->talk, &agent->model, answer, err) == 0)
        return 0;
    if (!talk_too_long(err) || agent->talk.count <= 2)
        return -1;
    *err = (struct err){0};
    return hand_over(agent, err) < 0 ? -1 : talk_ask(&agent->talk, &agent->model, answer, err);
}

/* -1: go on. */
static int take_turn(struct agent *agent)
{
    if (time_is_over(agent))
        return finish(agent, "the time limit was reached", CHAT_LIMIT);
    if (agent->events.turn >= agent->options->turns_max)
        return finish(agent, "the turn limit was reached", CHAT_LIMIT);
    agent->events.turn++;
    struct chat_answer answer;
    struct err err = {0};
    if (ask(agent, &answer, &err) < 0) {
        if (err.kind == ERR_TIMEOUT)
            return finish(agent, "the time limit was reached", CHAT_LIMIT);
        chat_event_error(&agent->events, err.text, 0, -1);
        return finish(agent, "the model failed", CHAT_MODEL_FAILED);
    }
    talk_add_answer(&agent->talk, &answer);
    OWN(arena) struct arena arena = {0};
    struct reply reply;
    bool usable = reply_read(buf_str(&answer.text), &arena, &reply, &err) == 0;
    event_assistant(&agent->events, &answer, usable ? &reply : NULL);
    int result = -1;
    if (usable)
        result = answer_used(agent, &reply);
    else
        answer_unusable(agent, &err);
    buf_deinit(&reply.warnings);
    chat_answer_deinit(&answer);
    return result;
}

int terminus_run(const struct terminus_options *options)
{
    struct agent agent = {.options = options,
                          .model = options->model,
                          .events = {.program = "postern-terminus", .json = options->json}};
    agent.model.on_retry = on_retry;
    agent.model.context = &agent;
    agent.model.agent = "postern-terminus";
    struct err err = {0};
    agent.terminal = terminal_open(&options->terminal, &err);
    if (!agent.terminal) {
        chat_event_error(&agent.events, err.text, 0, -1);
        return finish(&agent, "there is no terminal", CHAT_MODEL_FAILED);
    }
    OWN(buf) struct buf screen = {0};
    look(&agent, SCREEN_WHOLE, &screen);
    talk_init(&agent.talk, options);
    talk_begin(&agent.talk, STR_NONE, buf_str(&screen));
    int exit_code;
    do
        exit_code = take_turn(&agent);
    while (exit_code < 0);
    talk_deinit(&agent.talk);
    terminal_close(agent.terminal);
    buf_deinit(&agent.last_text);
    return exit_code;
}
