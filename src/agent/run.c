/* run.c - the one way every agent is started, watched and stopped.
 *
 *     put instruction, system prompt and the spec's texts -> start argv -> read events live
 *         -> exit -> what it means
 *
 * Ends by exit, timeout, stop or the loss of the sandbox; the exit is noticed when it happens,
 * nothing polls. The only "key" inside is a dummy: calls are known by the socket they come from. */
#include "agent/agent.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#include "agent/acp.h"
#include "agent/internal.h"
#include "base/mem.h"
#include "loop/loop.h"

struct agent_run {
    struct agent_spec *spec;
    struct sandbox *sandbox;
    struct sandbox_job *job;
    struct agent_handlers handlers;
    void *context;
    struct agent_reader reader;
    struct agent_acp acp;
    struct buf complaint; /* the tail of what it wrote to stderr */
    struct loop *loop;
    struct loop_timer pause; /* after an interrupt, and after the last word of an ACP agent */
    struct arena arena;
    struct agent_values values;
    const char *instruction, *system, *user;
    const char **argv, **env;
    const char *cwd;
    uint32_t timeout_ms;
    size_t file_at;
    bool system_put, instruction_put, stopping, over;
    bool driven;      /* through ACP */
    bool deaf;        /* asks and asks, and reads no answer */
    bool replaying;   /* what it printed for a former server is read again */
    struct buf said;  /* and what was said to it then */
    uint64_t skipped; /* events left that were told before */
};

#define GRACE_MS 500
#define UNREAD_BYTES_MAX                                                                           \
    (16u << 20) /* that a driven agent may leave; one message may come on top */
#define COMPLAINT_MAX 4096
#define COMPLAINT_SHOWN 120

#define AGENT_MCP_SERVER "task"
#define INLET_ORIGIN "http://127.0.0.1:13131"
_Static_assert(SANDBOX_INLET_PORT == 13131, "the origin above names the inlet's port");

const char *agent_inlet_url(void)
{
    return INLET_ORIGIN;
}

static void step(struct agent_run *run);

static const char *value_named(const struct agent_run *run, const char *name)
{
    for (int i = 0; i < AGENT_VARS; i++)
        if (strcmp(name, agent_variable_names[i]) == 0)
            return run->values.value[i];
    return NULL;
}

static uint32_t grace_of(const struct agent_run *run)
{
    return run->spec->grace_ms ? run->spec->grace_ms : GRACE_MS;
}

static bool is_code(const int *codes, size_t count, int code)
{
    for (size_t i = 0; i < count; i++)
        if (codes[i] == code)
            return true;
    return false;
}

static enum agent_fate fate_of(const struct agent_run *run, const struct sandbox_exit *exit)
{
    if (run->acp.over && exit->end != SANDBOX_LOST)
        return run->acp.fate;
    if (run->deaf && exit->end != SANDBOX_LOST)
        return AGENT_FAILED;
    if (run->stopping && (exit->end == SANDBOX_EXITED || exit->end == SANDBOX_SIGNALED))
        return AGENT_KILLED;
    switch (exit->end) {
    case SANDBOX_EXITED:
        if (run->driven)
            return AGENT_FAILED; /* before it had answered */
        if (run->reader.limit_said)
            return AGENT_LIMIT;
        if (is_code(run->spec->ok_codes, run->spec->ok_count, exit->code))
            return AGENT_OK;
        if (is_code(run->spec->limit_codes, run->spec->limit_count, exit->code))
            return AGENT_LIMIT;
        return AGENT_FAILED;
    case SANDBOX_SIGNALED:
        return AGENT_FAILED;
    case SANDBOX_NOT_FOUND:
    case SANDBOX_NOT_STARTED:
        return AGENT_NOT_STARTED;
    case SANDBOX_TIMED_OUT:
        return AGENT_TIMED_OUT;
    case SANDBOX_OUT_OF_MEMORY:
        return AGENT_OUT_OF_MEMORY;
    case SANDBOX_KILLED:
        return AGENT_KILLED;
    case SANDBOX_LOST:
        return AGENT_LOST;
    }
    return AGENT_LOST;
}

/* Some agents say in their output what their exit code does not. */
static enum agent_fate fate_by_events(const struct agent_run *run, struct agent_end *end)
{
    const struct agent_reader *reader = &run->reader;
    unsigned missing = run->spec->needed_kinds & ~reader->kinds_seen;
    if (run->spec->error_fails && reader->last_is_error) {
        snprintf(end->text, sizeof end->text, "the agent %s ended with an error: %.140s",
                 run->spec->name, reader->error);
        return AGENT_FAILED;
    }
    for (int kind = 0; kind < AGENT_OTHER; kind++) {
        if (!(missing & 1u << kind))
            continue;
        snprintf(end->text, sizeof end->text, "the agent %s ended without a sign of '%s'",
                 run->spec->name, agent_event_kind_name((enum agent_event_kind)kind));
        return AGENT_FAILED;
    }
    return AGENT_OK;
}

/* How it ended, and its own words about why: its last error, else the end of its complaints. */
static void describe(const struct agent_run *run, const struct sandbox_exit *exit,
                     struct agent_end *end)
{
    struct str why = str_trim(buf_str(&run->complaint));
    const char *means = "";
    for (size_t i = 0; exit->end == SANDBOX_EXITED && i < run->spec->code_word_count; i++)
        if (run->spec->code_words[i].code == exit->code)
            means = run->spec->code_words[i].words;
    if (run->deaf)
        why = STR("it does not read what it is told");
    else if (run->reader.last_is_error)
        why = str_of(run->reader.error);
    else if (why.size > COMPLAINT_SHOWN)
        why = str_from(why, why.size - COMPLAINT_SHOWN);
    snprintf(end->text, sizeof end->text, "the agent %s: %s%s%s%s%s%.*s", run->spec->name,
             exit->text[0] ? exit->text : sandbox_end_name(exit->end), means[0] ? " (" : "", means,
             means[0] ? ")" : "", why.size ? ": " : "", STR_ARGS(why));
}

static void end_run(struct agent_run *run, const struct sandbox_exit *exit)
{
    run->over = true;
    loop_timer_stop(&run->pause);
    agent_reader_end(&run->reader);
    struct agent_end end = {
        .fate = fate_of(run, exit),
        .exit = *exit,
        .final_text = buf_str(&run->reader.final_text),
        .events = run->reader.events,
        .lines_too_long = run->reader.lines_too_long,
    };
    if (end.fate == AGENT_OK)
        end.fate = fate_by_events(run, &end);
    else
        describe(run, exit, &end);
    run->handlers.on_end(run->context, &end);
}

static void take_output(struct agent_run *run, int stream, struct str data)
{
    if (stream == 1) {
        agent_reader_feed(&run->reader, data);
        return;
    }
    buf_str_append(&run->complaint, data);
    if (run->complaint.size > COMPLAINT_MAX)
        buf_consume(&run->complaint, run->complaint.size - COMPLAINT_MAX);
}

static void on_agent_output(void *context, int stream, struct str data)
{
    struct agent_run *run = context;
    if (run->handlers.on_output)
        run->handlers.on_output(run->context, stream, data);
    take_output(run, stream, data);
}

static void on_agent_exit(void *context, const struct sandbox_exit *exit)
{
    end_run(context, exit);
}

static void on_put(void *context, const struct err *err)
{
    struct agent_run *run = context;
    if (err && err->kind != ERR_NONE) {
        struct sandbox_exit exit = {.end =
                                        err->kind == ERR_LOST ? SANDBOX_LOST : SANDBOX_NOT_STARTED};
        snprintf(exit.text, sizeof exit.text, "its files could not be put into the sandbox: %.80s",
                 err->text);
        end_run(run, &exit);
        return;
    }
    if (run->stopping) {
        struct sandbox_exit exit = {.end = SANDBOX_KILLED, .text = "stopped before it started"};
        end_run(run, &exit);
        return;
    }
    step(run);
}

/* The next of the spec's texts, if there is one left. */
static bool put_text(struct agent_run *run)
{
    const struct agent_spec *spec = run->spec;
    while (run->file_at < spec->file_count) {
        const struct agent_file *file = &spec->files[run->file_at++];
        const char *value = file->only_if ? value_named(run, file->only_if) : "yes";
        if (!file->text || !value || !value[0])
            continue;
        char *text = agent_expand_as(&run->arena, file->text, &run->values, file->format);
        char *to = agent_expand(&run->arena, file->to, &run->values);
        sandbox_put(run->sandbox, to, str_of(text), file->mode, run->user, on_put, run);
        return true;
    }
    return false;
}

/* The instruction always lies in the sandbox as a file too: it is what people look for first. */
static void step(struct agent_run *run)
{
    const struct agent_spec *spec = run->spec;
    if (!run->instruction_put) {
        run->instruction_put = true;
        sandbox_put(run->sandbox, spec->instruction_file, str_of(run->instruction), 0644, NULL,
                    on_put, run);
        return;
    }
    if (run->system && !run->system_put) {
        run->system_put = true;
        sandbox_put(run->sandbox, spec->system_file, str_of(run->system), 0644, NULL, on_put, run);
        return;
    }
    if (put_text(run))
        return;
    struct sandbox_command command = {
        .argv = run->argv,
        .env = run->env,
        .cwd = run->cwd,
        .user = run->user,
        .stdin_open = spec->input == AGENT_INPUT_STDIN || run->driven,
        .timeout_ms = run->timeout_ms,
        .grace_ms = spec->grace_ms,
        .keep = true,
    };
    struct sandbox_job_handlers handlers = {.on_output = on_agent_output, .on_exit = on_agent_exit};
    run->job = sandbox_run(run->sandbox, &command, &handlers, run);
    if (run->driven) {
        agent_acp_begin(&run->acp);
    } else if (spec->input == AGENT_INPUT_STDIN) {
        sandbox_job_write(run->job, str_of(run->instruction));
        sandbox_job_end_input(run->job);
    }
}

/* ---------------------------------------------------------------- ACP */
static void on_acp_send(void *context, struct str line)
{
    struct agent_run *run = context;
    if (run->replaying) {
        buf_str_append(&run->said, line);
        return;
    }
    /* One that asks and never reads must not fill our memory with answers. */
    if (!run->deaf && sandbox_job_write(run->job, STR("")) > UNREAD_BYTES_MAX) {
        run->deaf = true;
        sandbox_job_kill(run->job);
    }
    if (!run->deaf)
        (void)sandbox_job_write(run->job, line);
}

static void on_patience_over(struct loop_timer *timer)
{
    struct agent_run *run = timer->context;
    if (!run->over)
        sandbox_job_kill(run->job);
}

/* It may go by itself when its input ends; it need not. */
static void on_acp_over(void *context)
{
    struct agent_run *run = context;
    if (run->replaying)
        return; /* done when it has been read */
    sandbox_job_end_input(run->job);
    loop_timer_start(run->loop, &run->pause, grace_of(run), on_patience_over, run);
}

static void on_acp_turn(void *context, struct str reply)
{
    struct agent_run *run = context;
    run->handlers.on_turn(run->context, reply);
}

static void begin_acp(struct agent_run *run, const struct agent_start *start)
{
    const struct agent_spec *spec = run->spec;
    const char *const *value = run->values.value;
    bool told = spec->mcp == AGENT_MCP_ACP && start->tools;
    size_t count = 0;
    while (start->turns && start->turns[count])
        count++;
    const char **turns = arena_alloc(&run->arena, (count + 1) * sizeof *turns);
    for (size_t i = 0; i < count; i++)
        turns[i] = arena_text(&run->arena, str_of(start->turns[i]));
    run->acp = (struct agent_acp){
        .way = &spec->acp,
        .cwd = run->cwd,
        .instruction = run->instruction,
        .turns = turns,
        .mcp_url = told ? value[AGENT_VAR_MCP_URL] : NULL,
        .mcp_name = told ? value[AGENT_VAR_MCP_NAME] : NULL,
        .meta = spec->acp.meta
                    ? agent_expand_as(&run->arena, spec->acp.meta, &run->values, AGENT_TEXT_JSON)
                    : NULL,
        .sandbox = run->sandbox,
        .user = run->user,
        .reader = &run->reader,
        .on_send = on_acp_send,
        .on_turn = run->handlers.on_turn ? on_acp_turn : NULL,
        .on_over = on_acp_over,
        .context = run,
    };
    list_init(&run->acp.serving);
    run->reader.acp = &run->acp;
}

/* ---------------------------------------------------------------- starting */
static size_t list_size(const char *const *list)
{
    size_t count = 0;
    while (list && list[count])
        count++;
    return count;
}

static void make_argv(struct agent_run *run)
{
    const struct agent_spec *spec = run->spec;
    size_t room = list_size(spec->argv) + 1, used = 0;
    if (run->driven && spec->acp.argv) {
        run->argv = arena_alloc(&run->arena, (list_size(spec->acp.argv) + 1) * sizeof *run->argv);
        for (; spec->acp.argv[used]; used++)
            run->argv[used] = agent_expand(&run->arena, spec->acp.argv[used], &run->values);
        return;
    }
    for (size_t i = 0; i < spec->option_count; i++)
        room += list_size(spec->options[i].argv);
    room += list_size(spec->argv_last) + list_size(spec->argv_each) * list_size(spec->disabled);
    run->argv = arena_alloc(&run->arena, room * sizeof *run->argv);
    for (size_t i = 0; spec->argv[i]; i++)
        run->argv[used++] = agent_expand(&run->arena, spec->argv[i], &run->values);
    for (size_t i = 0; i < spec->option_count; i++) {
        const char *value = value_named(run, spec->options[i].variable);
        if (!value || !value[0])
            continue;
        for (size_t j = 0; spec->options[i].argv[j]; j++)
            run->argv[used++] = agent_expand(&run->arena, spec->options[i].argv[j], &run->values);
    }
    for (size_t i = 0; spec->argv_each && spec->disabled && spec->disabled[i]; i++) {
        run->values.value[AGENT_VAR_ITEM] = spec->disabled[i];
        for (size_t j = 0; spec->argv_each[j]; j++)
            run->argv[used++] = agent_expand(&run->arena, spec->argv_each[j], &run->values);
    }
    run->values.value[AGENT_VAR_ITEM] = NULL;
    for (size_t i = 0; spec->argv_last && spec->argv_last[i]; i++)
        run->argv[used++] = agent_expand(&run->arena, spec->argv_last[i], &run->values);
}

static void make_env(struct agent_run *run, const char *const *more)
{
    const struct agent_spec *spec = run->spec;
    size_t room = list_size(spec->env) + list_size(more) + 1, used = 0;
    run->env = arena_alloc(&run->arena, room * sizeof *run->env);
    for (size_t i = 0; spec->env && spec->env[i]; i++)
        run->env[used++] = agent_expand(&run->arena, spec->env[i], &run->values);
    for (size_t i = 0; more && more[i]; i++)
        run->env[used++] = arena_text(&run->arena, str_of(more[i]));
}

static const char *keep(struct agent_run *run, const char *text)
{
    return text ? arena_text(&run->arena, str_of(text)) : NULL;
}

static struct agent_run *run_new(struct agent_spec *spec, struct sandbox *sandbox,
                                 const struct agent_start *start,
                                 const struct agent_handlers *handlers, void *context)
{
    struct agent_run *run = mem_zero(sizeof *run);
    run->spec = agent_spec_ref(spec);
    run->sandbox = sandbox;
    run->loop = start->loop;
    run->handlers = *handlers;
    run->context = context;
    run->reader = (struct agent_reader){
        .spec = run->spec, .on_event = handlers->on_event, .context = context};
    run->instruction = keep(run, start->instruction);
    run->system = keep(run, start->system && start->system[0] ? start->system : NULL);
    bool more = handlers->on_turn || (start->turns && start->turns[0]);
    run->driven = spec->input == AGENT_INPUT_ACP || (spec->acp.argv && more);
    bool prepended =
        run->driven && spec->acp.argv ? !spec->acp.system_native : spec->system_prepended;
    if (run->system && prepended) {
        run->instruction = arena_format(&run->arena, "%s\n\n%s", run->system, start->instruction);
        run->system = NULL;
    }
    run->user = keep(run, start->user ? start->user : spec->user);
    run->timeout_ms = start->timeout_ms;
    agent_values_fixed(&run->arena, spec, &run->values);
    const char **value = run->values.value;
    value[AGENT_VAR_HOME] = run->user && strcmp(run->user, "root") == 0 ? "/root" : "/home/agent";
    value[AGENT_VAR_INSTRUCTION] = run->instruction;
    value[AGENT_VAR_INSTRUCTION_FILE] = spec->instruction_file;
    value[AGENT_VAR_SYSTEM] = run->system;
    value[AGENT_VAR_SYSTEM_FILE] = run->system ? spec->system_file : NULL;
    value[AGENT_VAR_MODEL] = keep(run, start->model);
    value[AGENT_VAR_BASE_URL] = INLET_ORIGIN "/v1";
    value[AGENT_VAR_INLET] = INLET_ORIGIN;
    value[AGENT_VAR_KEY] = AGENT_DUMMY_KEY;
    if (start->tools) {
        value[AGENT_VAR_MCP_URL] = INLET_ORIGIN "/mcp";
        value[AGENT_VAR_MCP_NAME] = AGENT_MCP_SERVER;
    }
    value[AGENT_VAR_WORKDIR] = keep(run, start->workdir);
    if (start->skip_permissions)
        value[AGENT_VAR_SKIP_PERMISSIONS] = "true";
    if (start->turns_max)
        value[AGENT_VAR_TURNS_MAX] = arena_format(&run->arena, "%u", start->turns_max);
    make_argv(run);
    make_env(run, start->env);
    run->cwd = agent_expand(&run->arena, spec->cwd, &run->values);
    if (run->driven)
        begin_acp(run, start);
    return run;
}

struct agent_run *agent_start(struct agent_spec *spec, struct sandbox *sandbox,
                              const struct agent_start *start,
                              const struct agent_handlers *handlers, void *context)
{
    struct agent_run *run = run_new(spec, sandbox, start, handlers, context);
    step(run);
    return run;
}

/* ---------------------------------------------------------------- resuming */
static void on_read_again(void *context, const struct agent_event *event)
{
    struct agent_run *run = context;
    if (run->skipped)
        run->skipped--;
    else if (run->handlers.on_event)
        run->handlers.on_event(run->context, event);
}

static void read_again(struct agent_run *run, const struct agent_resume *resume)
{
    struct str rest = resume->log;
    run->replaying = true;
    run->skipped = resume->events_known;
    run->reader.on_event = on_read_again;
    run->reader.context = run;
    if (run->driven)
        agent_acp_begin(&run->acp);
    for (size_t i = 0; i < resume->part_count; i++) {
        size_t size = resume->parts[i] & ~AGENT_PART_ERR;
        take_output(run, resume->parts[i] & AGENT_PART_ERR ? 2 : 1, str_upto(rest, size));
        rest = str_from(rest, size);
    }
    if (resume->gap) { /* what follows begins in the middle of a line */
        buf_clear(&run->reader.line);
        run->reader.skipping = true;
    }
    run->reader.on_event = run->handlers.on_event;
    run->reader.context = run->context;
    run->replaying = false;
}

struct agent_run *agent_resume(struct agent_spec *spec, struct sandbox *sandbox,
                               const struct agent_start *start, const struct agent_resume *resume,
                               const struct agent_handlers *handlers, void *context)
{
    struct agent_run *run = run_new(spec, sandbox, start, handlers, context);
    struct sandbox_job_handlers job = {.on_output = on_agent_output, .on_exit = on_agent_exit};
    struct sandbox_kept kept = {0};
    (void)sandbox_kept(sandbox, resume->index, &kept);
    read_again(run, resume);
    run->job = sandbox_reattach(sandbox, resume->index, resume->position, &job, run);
    /* All that was ever said to it; it may not have got the end of that. */
    struct str said = run->driven                        ? buf_str(&run->said)
                      : spec->input == AGENT_INPUT_STDIN ? str_of(run->instruction)
                                                         : STR_NONE;
    if (said.size > kept.input && !kept.input_ended)
        (void)sandbox_job_write(run->job, str_from(said, (size_t)kept.input));
    if (spec->input == AGENT_INPUT_STDIN && !run->driven)
        sandbox_job_end_input(run->job);
    else if (run->acp.over)
        on_acp_over(run);
    buf_deinit(&run->said);
    return run;
}

void agent_say(struct agent_run *run, const char *text)
{
    if (!run->over && run->acp.asking)
        agent_acp_say(&run->acp, text);
}

void agent_stop(struct agent_run *run)
{
    if (run->stopping || run->over) {
        run->stopping = true;
        return;
    }
    run->stopping = true;
    if (run->job && run->driven && !run->acp.over) {
        agent_acp_cancel(&run->acp);
        loop_timer_start(run->loop, &run->pause, grace_of(run), on_patience_over, run);
    } else if (run->job && run->spec->interrupted) {
        sandbox_job_signal(run->job, SIGINT);
        loop_timer_start(run->loop, &run->pause, grace_of(run), on_patience_over, run);
    } else if (run->job) {
        sandbox_job_kill(run->job);
    }
}

void agent_close(struct agent_run *run)
{
    if (!run)
        return;
    loop_timer_stop(&run->pause);
    if (run->job)
        sandbox_job_close(run->job);
    agent_acp_deinit(&run->acp);
    buf_deinit(&run->complaint);
    agent_reader_deinit(&run->reader);
    agent_spec_unref(run->spec);
    arena_deinit(&run->arena);
    free(run);
}
