/* tools_run.c - one call of a rollout's tool, wherever it runs.
 *
 *     the trainer's  waits at the gate like a model call; whoever takes it answers {"result": ...}
 *     the task's     handed to the session's owner, who runs the task's program (gateway.h,
 * on_tool)
 *
 * Both end the same way: once, by a result or a failure, or silently when the asker lets go. Each
 * is noted with its arguments and what came of it. */
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/id.h"
#include "base/mem.h"
#include "gateway/gate.h"
#include "gateway/inner.h"
#include "gateway/tools.h"

/* What can be asked of the trainer, and what its answer must have. */
static const struct {
    const char *name, *member;
    enum json_type type; /* NONE: any */
} kinds[] = {
    [TOOL_FUNCTION] = {"tool", "result", JSON_NONE},
    [TOOL_USER] = {"user", "messages", JSON_ARRAY},
    [TOOL_STOP] = {"stop", "done", JSON_NONE},
    [TOOL_SAY] = {"user", "messages", JSON_ARRAY},
};

struct tool_run {
    struct gateway_session *session;
    enum tool_kind kind;
    char *name;
    struct buf arguments;
    struct tool_run_handlers handlers;
    void *context;
    struct gate_call *call;   /* at the gate; NULL: at the owner's */
    struct gateway_tool tool; /* at the owner's */
    uint64_t since_ms;
    bool over;
};

/* What the gate keeps of it. */
struct tool_object {
    enum tool_kind kind;
    char *name; /* of a function */
    struct buf arguments;
};

int tool_refusal_status(const struct err *err)
{
    return err->kind == ERR_LIMIT ? 429 : err->kind == ERR_CAPACITY ? 503 : 400;
}

/* ---------------------------------------------------------------- the end */

static void note(struct tool_run *run, struct str result, const char *failure)
{
    struct gateway_session *session = run->session;
    if (!session->on_tool_note || run->kind != TOOL_FUNCTION)
        return;
    struct gateway_tool_note note = {
        .name = run->name,
        .by = run->call ? "trainer" : "task",
        .arguments = buf_str(&run->arguments),
        .result = result,
        .failure = failure,
        .ms = clock_mono_ms() - run->since_ms,
    };
    session->on_tool_note(session->context, &note);
}

static void succeed(struct tool_run *run, struct str body)
{
    run->over = true;
    note(run, body, NULL);
    run->handlers.on_result(run->context, body);
}

static void fail(struct tool_run *run, const struct err *err, const char *text, int http_status)
{
    run->over = true;
    note(run, STR_NONE, text);
    run->handlers.on_fail(run->context, err, text, http_status);
}

void tool_run_close(struct tool_run *run)
{
    struct gateway_session *session = run->session;
    if (run->call)
        gate_call_close(run->call);
    else if (!run->over && session->on_tool_closed)
        session->on_tool_closed(session->context, &run->tool);
    session->tools_in_flight--;
    buf_deinit(&run->arguments);
    free(run->name);
    free(run);
}

/* ---------------------------------------------------------------- at the gate */

static void object_write(void *payload, bool raw, struct json_writer *out)
{
    const struct tool_object *object = payload;
    (void)raw;
    json_set_text(out, "kind", kinds[object->kind].name);
    if (object->name)
        json_set_text(out, "name", object->name);
    json_set_raw(out, "arguments", buf_str(&object->arguments));
}

static void object_free(void *payload)
{
    struct tool_object *object = payload;
    buf_deinit(&object->arguments);
    free(object->name);
    free(object);
}

static int object_read(enum tool_kind kind, struct str body, struct buf *out, struct err *err)
{
    OWN(json_doc) struct json_doc doc = {0};
    if (json_read(&doc, body, NULL, err) < 0) {
        if (err)
            err->kind = ERR_INPUT;
        return -1;
    }
    struct json value = json_get(json_root(&doc), kinds[kind].member);
    if (!json_exists(value) || (kinds[kind].type && json_type(value) != kinds[kind].type))
        return err_set(err, ERR_INPUT, "the answer to a %s call is {\"%s\": ...}", kinds[kind].name,
                       kinds[kind].member);
    buf_str_append(out, body);
    return 0;
}

static int read_result(struct str body, struct buf *out, struct err *err)
{
    return object_read(TOOL_FUNCTION, body, out, err);
}

static int read_messages(struct str body, struct buf *out, struct err *err)
{
    return object_read(TOOL_USER, body, out, err);
}

/* What a user says: user messages of words. */
static int read_words(struct str body, struct buf *out, struct err *err)
{
    OWN(json_doc) struct json_doc doc = {0};
    if (object_read(TOOL_SAY, body, out, err) < 0)
        return -1;
    (void)json_read(&doc, body, NULL, NULL); /* it could be read just now */
    JSON_EACH (item, json_get(json_root(&doc), "messages")) {
        struct json content = json_get(item.value, "content");
        bool words = json_type(content) == JSON_STRING || json_type(content) == JSON_ARRAY;
        JSON_EACH (part, content)
            words = words && json_type(json_get(part.value, "text")) == JSON_STRING;
        if (!json_is(json_get(item.value, "role"), "user") || !words)
            return err_set(err, ERR_INPUT,
                           "messages of a user are {\"role\": \"user\", \"content\": a text}");
    }
    return 0;
}

static int read_done(struct str body, struct buf *out, struct err *err)
{
    return object_read(TOOL_STOP, body, out, err);
}

static void on_answer(void *context, struct str body)
{
    succeed(context, body);
}

static void on_fail(void *context, const struct err *err, int http_status, struct str type,
                    const char *text)
{
    (void)type;
    fail(context, err, text, http_status);
}

/* Streams are not opened for what is answered whole. */
static void on_nothing(void *context)
{
    (void)context;
}
static void on_no_chunk(void *context, struct str bytes)
{
    (void)context;
    (void)bytes;
}
static void on_no_break(void *context, const struct err *err)
{
    on_fail(context, err, 503, STR_NONE, err->text);
}

static int hold(struct tool_run *run, struct err *err)
{
    static int (*const readers[])(struct str, struct buf *,
                                  struct err *) = {[TOOL_FUNCTION] = read_result,
                                                   [TOOL_USER] = read_messages,
                                                   [TOOL_STOP] = read_done,
                                                   [TOOL_SAY] = read_words};
    struct gateway_session *session = run->session;
    struct tool_object *object = mem_zero(sizeof *object);
    char id[ID_MAX];
    id_make(id, "t");
    object->kind = run->kind;
    object->name = mem_dup(run->kind == TOOL_FUNCTION ? run->name : NULL);
    buf_str_append(&object->arguments, buf_str(&run->arguments));
    struct gate_hold order = {
        .call_id = id,
        .rollout_id = session->rollout_id,
        .group_id = session->group_id,
        .turn = session->stats.turns,
        .deadline_ms = session->held_ms_max,
        .whole = true,
        .read = readers[run->kind],
        .payload = object,
        .write = object_write,
        .free_payload = object_free,
        .on_answer = on_answer,
        .on_chunk = on_no_chunk,
        .on_end = on_nothing,
        .on_fail = on_fail,
        .on_broken = on_no_break,
        .context = run,
    };
    run->call = gate_hold(session->gateway->gate, session->gateway->loop, &order, err);
    if (run->call)
        return 0;
    object_free(object);
    return err_set(err, ERR_CAPACITY, "too many calls are waiting");
}

/* ---------------------------------------------------------------- at the owner's */

static struct tool_run *run_of(struct gateway_tool *tool)
{
    return (struct tool_run *)((char *)tool - offsetof(struct tool_run, tool));
}

void gateway_tool_answer(struct gateway_tool *tool, struct str result)
{
    OWN(buf) struct buf body = {0};
    buf_format(&body, "{\"result\":%.*s}", STR_ARGS(result));
    succeed(run_of(tool), buf_str(&body));
}

void gateway_tool_fail(struct gateway_tool *tool, const char *text)
{
    struct err err = {0};
    err_set(&err, ERR_SYSTEM, "%s", text);
    fail(run_of(tool), &err, text, 500);
}

/* ---------------------------------------------------------------- the beginning */

struct tool_run *tool_run_start(struct gateway_session *session, enum tool_kind kind,
                                struct str name, struct str arguments,
                                const struct tool_run_handlers *handlers, void *context,
                                struct err *err)
{
    bool by_task = kind == TOOL_FUNCTION && tools_by_task(session->tools, name);
    if (session->tools_in_flight >= session->limits.in_flight_max) {
        err_set(err, ERR_LIMIT, "too many tool calls of this rollout are in flight");
        return NULL;
    }
    if (session->closing || session->stop_reason) {
        err_set(err, ERR_CANCELLED, "this rollout is over");
        return NULL;
    }
    if (by_task ? !session->on_tool : !session->gateway->gate) {
        err_set(err, ERR_UNSUPPORTED, "nobody answers this tool here");
        return NULL;
    }
    struct tool_run *run = mem_zero(sizeof *run);
    run->session = session;
    run->kind = kind;
    run->name = str_dup(name);
    run->handlers = *handlers;
    run->context = context;
    run->since_ms = clock_mono_ms();
    buf_str_append(&run->arguments, arguments);
    session->tools_in_flight++;
    if (!by_task && hold(run, err) < 0) {
        run->over = true;
        tool_run_close(run);
        return NULL;
    }
    session->tool_calls++;
    if (by_task)
        session->on_tool(session->context, &run->tool, run->name, buf_str(&run->arguments));
    return run;
}

/* ---------------------------------------------------------------- the user, for the driver */

struct gateway_user {
    struct tool_run *run;
    void (*on_words)(void *context, const char *text, const struct err *err);
    void *context;
};

static void on_user_result(void *context, struct str body)
{
    struct gateway_user *user = context;
    OWN(json_doc) struct json_doc doc = {0};
    OWN(arena) struct arena arena = {0};
    OWN(buf) struct buf text = {0};
    (void)json_read(&doc, body, NULL, NULL);
    JSON_EACH (item, json_get(json_root(&doc), "messages")) {
        struct json content = json_get(item.value, "content");
        if (text.size)
            buf_str_append(&text, STR("\n\n"));
        buf_str_append(&text, json_str(content, &arena));
        JSON_EACH (part, content)
            buf_str_append(&text, json_str(json_get(part.value, "text"), &arena));
    }
    user->on_words(user->context, text.size ? buf_text(&text) : NULL, &(struct err){0});
}

static void on_user_fail(void *context, const struct err *err, const char *text, int http_status)
{
    struct gateway_user *user = context;
    (void)text;
    (void)http_status;
    user->on_words(user->context, NULL, err);
}

struct gateway_user *gateway_session_user(struct gateway_session *session, struct str transcript,
                                          void (*on_words)(void *context, const char *text,
                                                           const struct err *err),
                                          void *context, struct err *err)
{
    static const struct tool_run_handlers handlers = {on_user_result, on_user_fail};
    OWN(buf) struct buf arguments = {0};
    struct gateway_user *user = mem_zero(sizeof *user);
    user->on_words = on_words;
    user->context = context;
    buf_format(&arguments, "{\"transcript\":%.*s}", STR_ARGS(transcript));
    user->run =
        tool_run_start(session, TOOL_SAY, STR("user"), buf_str(&arguments), &handlers, user, err);
    if (user->run)
        return user;
    free(user);
    return NULL;
}

void gateway_user_close(struct gateway_user *user)
{
    if (!user)
        return;
    tool_run_close(user->run);
    free(user);
}
