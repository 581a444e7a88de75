/* talk.c - the conversation with the model, and how it is handed over when it grows too long.
 *
 * Messages are kept as JSON and only ever added at the end, so that the server's prefix cache
 * holds. When too little room is left, three questions make a fresh start: the old conversation
 * writes a note for a successor; the successor, knowing only task and note, asks what it still
 * needs; the old one answers. The fresh conversation begins with note and answers. None of these
 * three has anything typed. When even the question for the note does not fit, the oldest exchanges
 * are left out of it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/mem.h"
#include "json/json.h"
#include "terminus.h"

#define ROOM_TOKENS 8000  /* for an answer and the next piece of output */
#define BYTES_PER_TOKEN 3 /* a careful guess, for what the server has not counted */

static const char own_words[] =
    "You work on a Linux machine, alone, through one terminal. Everything you do is typing into "
    "that "
    "terminal; everything you learn is what it shows. Nobody reads along and nobody answers "
    "questions, so decide for yourself and finish the task.\n"
    "\n"
    "Every answer of yours is exactly one JSON object and nothing around it:\n"
    "\n"
    "{\n"
    "  \"analysis\": \"what the terminal shows, what that means, what is still missing\",\n"
    "  \"plan\": \"what you type next and what you expect from it\",\n"
    "  \"commands\": [\n"
    "    {\"keystrokes\": \"ls -la\\n\", \"duration\": 0.5}\n"
    "  ],\n"
    "  \"task_complete\": false\n"
    "}\n"
    "\n"
    "- keystrokes are typed exactly as they are. A command runs only when it ends with \\n, which "
    "is "
    "the Enter key. In JSON a line break is written \\n and a backslash \\\\.\n"
    "- Keystrokes that are nothing but names of keys are those keys: C-c, C-d, Up, Tab, Escape, "
    "PageDown, F1, M-x; several with blanks between them.\n"
    "- duration is how many seconds to wait before the terminal is read, at most %u. A command "
    "that "
    "is done earlier, with the shell's prompt back, is not waited for any longer; so give slow "
    "commands their time. For instant ones 0.1 to 1 is fine. If something is still running, wait "
    "with empty keystrokes, or stop it with C-c.\n"
    "- commands are typed one after the other without looking in between: use several only when "
    "the "
    "later ones do not depend on what the earlier ones show. [] types nothing.\n"
    "- You see what is new since the last time; long output loses its middle, so use head, tail, "
    "grep. In a program that uses the whole screen (editor, pager) you see the screen.\n"
    "- The shell stays the same all the time: directories, variables and running programs remain. "
    "There is probably no network.\n"
    "- Look before you change something, change what the task needs, and check the result by "
    "running "
    "it.\n"
    "- Set task_complete to true only when everything is done and checked; you will be asked once "
    "whether you are sure.";

void talk_init(struct talk *talk, const struct terminus_options *options)
{
    *talk = (struct talk){.options = options};
}

static void clear(struct talk *talk)
{
    for (size_t i = 0; i < talk->count; i++)
        buf_deinit(&talk->messages[i]);
    talk->count = 0;
    talk->bytes = 0;
    talk->tokens = 0;
}

void talk_deinit(struct talk *talk)
{
    clear(talk);
    free(talk->messages);
    *talk = (struct talk){0};
}

static struct buf *new_message(struct talk *talk)
{
    if (talk->count == talk->capacity) {
        talk->capacity = talk->capacity ? talk->capacity * 2 : 32;
        talk->messages = mem_grow(talk->messages, talk->capacity * sizeof *talk->messages);
    }
    struct buf *message = &talk->messages[talk->count++];
    *message = (struct buf){0};
    return message;
}

void talk_add(struct talk *talk, const char *role, struct str content)
{
    struct buf *message = new_message(talk);
    struct json_writer writer = {.out = message};
    json_begin_object(&writer);
    json_set_text(&writer, "role", role);
    json_set_str(&writer, "content", content);
    json_end_object(&writer);
    talk->bytes += message->size;
}

void talk_add_answer(struct talk *talk, const struct chat_answer *answer)
{
    struct buf *message = new_message(talk);
    struct json_writer writer = {.out = message};
    json_begin_object(&writer);
    json_set_text(&writer, "role", "assistant");
    json_set_str(&writer, "content", buf_str(&answer->text));
    if (answer->reasoning.size)
        json_set_str(&writer, answer->reasoning_key, buf_str(&answer->reasoning));
    json_end_object(&writer);
    talk->bytes += message->size;
}

void talk_begin(struct talk *talk, struct str notes, struct str screen)
{
    const struct terminus_options *options = talk->options;
    clear(talk);
    OWN(buf) struct buf text = {0};
    if (options->system.size) {
        buf_str_append(&text, options->system);
        buf_format(&text, "\n\n");
    }
    buf_format(&text, own_words, options->wait_ms_max / 1000);
    talk_add(talk, "system", buf_str(&text));
    buf_clear(&text);
    buf_str_append(&text, options->instruction);
    if (notes.size)
        buf_format(&text,
                   "\n\nYou have already worked on this; the conversation became too long and was "
                   "replaced by these notes:\n\n%.*s",
                   STR_ARGS(notes));
    buf_format(&text, "\n\nThe terminal shows:\n\n%.*s", STR_ARGS(screen));
    talk_add(talk, "user", buf_str(&text));
}

/* ---------------------------------------------------------------- asking */

static int64_t tokens_of(struct str usage)
{
    OWN(json_doc) struct json_doc doc = {0};
    if (!usage.size || json_read(&doc, usage, NULL, NULL) < 0)
        return 0;
    struct json root = json_root(&doc);
    return json_int_or(json_get(root, "prompt_tokens"), 0) +
           json_int_or(json_get(root, "completion_tokens"), 0);
}

/* Messages `from`... are left out, up to but without `to`. */
static void join(const struct talk *talk, size_t from, size_t to, struct buf *out)
{
    for (size_t i = 0; i < talk->count; i++) {
        if (i >= from && i < to)
            continue;
        if (out->size)
            buf_byte(out, ',');
        buf_str_append(out, buf_str(&talk->messages[i]));
    }
}

int talk_ask(struct talk *talk, const struct chat_model *model, struct chat_answer *out,
             struct err *err)
{
    OWN(buf) struct buf messages = {0};
    join(talk, 0, 0, &messages);
    if (chat_model_ask(model, buf_str(&messages), out, err) < 0)
        return -1;
    talk->tokens = tokens_of(buf_str(&out->usage));
    return 0;
}

bool talk_is_full(const struct talk *talk)
{
    int64_t limit = talk->options->context_tokens;
    if (!limit)
        return false;
    int64_t guess = (int64_t)(talk->bytes / BYTES_PER_TOKEN);
    int64_t room = limit / 4 < ROOM_TOKENS ? limit / 4 : ROOM_TOKENS;
    return (talk->tokens ? talk->tokens : guess) + room > limit && talk->count > 2;
}

bool talk_too_long(const struct err *err)
{
    static const char *const signs[] = {
        "context length",  "context_length",     "context window",      "maximum context",
        "too many tokens", "prompt is too long", "maximum model length"};
    for (size_t i = 0; i < COUNT(signs); i++)
        if (strcasestr(err->text, signs[i]))
            return true;
    return false;
}

/* ---------------------------------------------------------------- handing over */

static const char note_question[] =
    "The conversation is about to become too long and will be replaced. Do not type anything now. "
    "Instead of the JSON object, write a note in plain text for the one who takes over and who "
    "will "
    "see only the task and your note: what the task asks for and how it will be known to be done; "
    "what was done, with the names of files and the commands that matter; what was found out, "
    "including what did not work; the state right now; what remains, in order.";

static const char *const ask_back =
    "You are about to take over the work on this task from somebody else, in the terminal they "
    "used.\n"
    "\nThe task:\n\n%.*s\n\nTheir note:\n\n%.*s\n\nThe terminal shows:\n\n%.*s\n\n"
    "Do not begin yet. Ask, in plain text and at most ten short questions, for what you need to "
    "know "
    "and the note does not say.";

static const char answer_question[] =
    "The one who takes over has read your note and asks:\n\n%.*s\n\n"
    "Answer each question briefly, in plain text, from what you know. Do not type anything.";

/* One question at the end of the conversation, answered in plain text; neither stays. With
 * `forgiving` older exchanges are left out until it fits. */
static int ask_aside(struct talk *talk, const struct chat_model *model, struct str question,
                     struct buf *answer, struct err *err)
{
    OWN(buf) struct buf text = {0}, messages = {0};
    struct json_writer writer = {.out = &text};
    json_begin_object(&writer);
    json_set_text(&writer, "role", "user");
    json_set_str(&writer, "content", question);
    json_end_object(&writer);
    for (size_t left_out = 0;;) {
        buf_clear(&messages);
        join(talk, 2, 2 + left_out, &messages);
        if (messages.size)
            buf_byte(&messages, ',');
        buf_str_append(&messages, buf_str(&text));
        struct chat_answer out;
        if (chat_model_ask(model, buf_str(&messages), &out, err) == 0) {
            buf_str_append(answer, str_trim(buf_str(&out.text)));
            chat_answer_deinit(&out);
            return 0;
        }
        size_t rest = talk->count > 2 + left_out ? talk->count - 2 - left_out : 0;
        if (!talk_too_long(err) || rest < 2)
            return -1;
        *err = (struct err){0};
        left_out += (rest / 2 + 1) & ~(size_t)1; /* whole exchanges, the oldest half of them */
    }
}

int talk_hand_over(struct talk *talk, const struct chat_model *model, struct str screen,
                   struct buf *notes, struct err *err)
{
    if (ask_aside(talk, model, STR(note_question), notes, err) < 0)
        return err_wrap(err, "asking for a note to hand over");
    OWN(buf) struct buf question = {0}, asked = {0}, answers = {0};
    struct talk successor;
    talk_init(&successor, talk->options);
    buf_format(&question, ask_back, STR_ARGS(talk->options->instruction), STR_ARGS(buf_str(notes)),
               STR_ARGS(screen));
    int result = ask_aside(&successor, model, buf_str(&question), &asked, err);
    talk_deinit(&successor);
    if (result < 0)
        return err_wrap(err, "letting the successor ask");
    buf_clear(&question);
    buf_format(&question, answer_question, STR_ARGS(buf_str(&asked)));
    if (ask_aside(talk, model, buf_str(&question), &answers, err) < 0)
        return err_wrap(err, "having the successor's questions answered");
    buf_format(notes, "\n\nQuestions about the note:\n\n%.*s\n\nAnswers:\n\n%.*s",
               STR_ARGS(buf_str(&asked)), STR_ARGS(buf_str(&answers)));
    talk_begin(talk, buf_str(notes), screen);
    return 0;
}
