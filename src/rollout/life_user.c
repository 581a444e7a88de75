/* life_user.c - a rollout whose user has more to say than the instruction: the task's later turns,
 * then the trainer, when the rollout's tools name it as the user.
 *
 * What the trainer said is kept in user.jsonl of the rollout's folder: a server that takes over
 * tells the driver the same again. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "base/fd.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "rollout/life.h"

#define WORDS_BYTES_MAX (64u << 20)
#define TURNS_MAX 10000
#define TRANSCRIPT_BYTES_MAX (8u << 20) /* a conversation that grows beyond it is over */

/* Each step of a task is a conversation of its own. */
static char *words_path(const struct life *life)
{
    if (life->task->parent)
        return mem_format("%s/user-%zu.jsonl", life->plan->dir, life->step_at + 1);
    return mem_format("%s/user.jsonl", life->plan->dir);
}

/* One message more in the transcript, a JSON array that is closed only when it is shown. */
static void note(struct life *life, const char *role, struct str text)
{
    struct json_writer out = {.out = &life->transcript, .comma = life->transcript.size > 0};
    if (!life->transcript.size)
        buf_byte(&life->transcript, '[');
    json_begin_object(&out);
    json_set_text(&out, "role", role);
    json_set_str(&out, "content", text);
    json_end_object(&out);
}

static void keep_words(struct life *life, const char *text)
{
    OWN(mem) char *path = words_path(life);
    OWN(buf) struct buf line = {0};
    OWN(fd) int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0644);
    json_quote(&line, str_of(text));
    buf_byte(&line, '\n');
    if (fd < 0 || fd_write_all(fd, line.data, line.size) < 0)
        LOG_WARN("rollout", life->plan->id, "'%s' is incomplete: %s", path, strerror(errno));
}

static void on_words(void *context, const char *text, const struct err *err)
{
    struct life *life = context;
    OWN(mem) char *words = mem_dup(text);
    if (is_bad(err))
        life_log(life, "user_failed", str_of(err->text));
    if (words) {
        note(life, "user", str_of(words));
        keep_words(life, words);
    }
    gateway_user_close(TAKE(life->user));
    if (life->run)
        agent_say(life->run, words);
}

static int ask(struct life *life, struct err *err)
{
    OWN(buf) struct buf shown = {0};
    if (life->transcript.size > TRANSCRIPT_BYTES_MAX)
        return err_set(err, ERR_LIMIT, "user and agent have said more than %u bytes to each other",
                       TRANSCRIPT_BYTES_MAX);
    buf_str_append(&shown, buf_str(&life->transcript));
    buf_byte(&shown, ']');
    if (life->session)
        life->user = gateway_session_user(life->session, buf_str(&shown), on_words, life, err);
    return life->user ? 0 : -1;
}

/* The agent has answered all that the task says. */
static void on_turn(void *context, struct str reply)
{
    struct life *life = context;
    struct err err = {0};
    if (!life->transcript.size)
        note(life, "user", str_of(life->task->instruction));
    note(life, "assistant", reply);
    if (ask(life, &err) == 0)
        return;
    life_log(life, "user_failed", str_of(err.text));
    if (life->run)
        agent_say(life->run, NULL);
    else
        life_fail_infra(life, &err); /* while it was being taken over */
}

/* The task's turns, and what the trainer said to a former server. */
static const char *const *all_turns(struct life *life)
{
    OWN(mem) char *path = words_path(life);
    OWN(buf) struct buf text = {0};
    const char *const *own = life->task->turns;
    size_t count = 0;
    if (!life->plan->tool_facts.user || !file_exists(path) ||
        file_read(path, WORDS_BYTES_MAX, &text, NULL) < 0)
        return own;
    const char **all = arena_alloc(&life->arena, (TURNS_MAX + 1) * sizeof *all);
    for (; own && own[count] && count < TURNS_MAX; count++)
        all[count] = own[count];
    for (struct str rest = buf_str(&text); rest.data && count < TURNS_MAX;) {
        OWN(json_doc) struct json_doc doc = {0};
        struct str line = str_cut(&rest, '\n');
        if (line.size && json_read(&doc, line, NULL, NULL) == 0)
            all[count++] = arena_text(&life->arena, json_str(json_root(&doc), &life->arena));
    }
    return all;
}

void life_user_begin(struct life *life, struct agent_start *start, struct agent_handlers *handlers)
{
    if (!agent_spec_takes_turns(life->plan->agent))
        return;
    start->turns = all_turns(life);
    if (life->plan->tool_facts.user)
        handlers->on_turn = on_turn;
}

void life_user_close(struct life *life)
{
    gateway_user_close(TAKE(life->user));
    buf_deinit(&life->transcript);
}
