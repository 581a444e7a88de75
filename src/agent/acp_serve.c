/* acp_serve.c - files and terminals that an ACP agent asks its client for, served inside its own
 * sandbox and as its own user: it gets nothing this way that it could not do itself.
 *
 *     fs/read_text_file, fs/write_text_file
 *     terminal/create, output, wait_for_exit, kill, release
 *
 * Each is a command of the sandbox, so that permissions are the kernel's business. Bounded: files
 * of 8 MiB, 16 at once, 16 terminals, 1 MiB of output each, of which the end is kept. */
#include "agent/acp.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "sandbox/sandbox.h"

#define FILE_BYTES_MAX (8u << 20)
#define OUTPUT_MAX (1u << 20)
#define FILES_MAX 16
#define TERMINALS_MAX 16
#define ARGUMENTS_MAX 256
#define FILE_MS 60000

enum { RPC_METHOD = -32601, RPC_PARAMS = -32602, RPC_FAILED = -32603 };

/* A file being read or written, or a terminal. */
struct served {
    struct list node; /* in acp->serving */
    struct agent_acp *acp;
    struct sandbox_job *job;
    char *id;              /* of the request that waits, as JSON; NULL: none does */
    unsigned number;       /* of a terminal; 0: a file */
    bool writing;          /* a file */
    long long line, limit; /* of a file that is read; 0: all of it */
    struct buf out;
    size_t out_max;
    bool cut, over;
    struct sandbox_exit exit;
};

static void served_free(struct served *served)
{
    list_remove(&served->node);
    served->acp->terminal_count -= served->number != 0;
    served->acp->file_count -= served->number == 0;
    if (served->job)
        sandbox_job_close(served->job);
    buf_deinit(&served->out);
    free(served->id);
    free(served);
}

static struct served *served_new(struct agent_acp *acp, struct str id, size_t out_max)
{
    struct served *served = mem_zero(sizeof *served);
    served->acp = acp;
    served->id = id.size ? str_dup(id) : NULL;
    served->out_max = out_max;
    list_append(&acp->serving, &served->node);
    return served;
}

/* ---------------------------------------------------------------- files */

static void on_file_output(void *context, int stream, struct str data)
{
    struct served *served = context;
    (void)stream;
    if (served->out.size + data.size > served->out_max) {
        served->cut = true;
        data = str_upto(data, served->out_max - served->out.size);
    }
    buf_str_append(&served->out, data);
}

/* Lines from `line` (the first is 1), `limit` of them. */
static struct str pick_lines(struct str text, long long line, long long limit)
{
    struct str rest = text;
    for (long long i = 1; i < line && rest.data; i++)
        (void)str_cut(&rest, '\n');
    if (!rest.data)
        return STR("");
    if (limit <= 0)
        return rest;
    struct str end = rest;
    for (long long i = 0; i < limit && end.data; i++)
        (void)str_cut(&end, '\n');
    return end.data ? str_upto(rest, (size_t)(end.data - rest.data)) : rest;
}

static void on_file_exit(void *context, const struct sandbox_exit *exit)
{
    struct served *served = context;
    struct agent_acp *acp = served->acp;
    struct str id = str_of(served->id);
    OWN(buf) struct buf result = {0};
    struct json_writer out = {.out = &result};
    if (exit->end != SANDBOX_EXITED || exit->code != 0) {
        OWN(buf) struct buf why = {0};
        buf_format(&why, "%.*s", STR_ARGS(str_upto(str_trim(buf_str(&served->out)), 300)));
        acp_refuse(acp, id, RPC_FAILED, why.size ? buf_text(&why) : exit->text);
    } else if (served->writing) {
        acp_answer(acp, id, STR("null"));
    } else if (served->cut) {
        acp_refuse(acp, id, RPC_FAILED, "the file is too large");
    } else {
        json_begin_object(&out);
        json_set_str(&out, "content",
                     pick_lines(buf_str(&served->out), served->line, served->limit));
        json_end_object(&out);
        acp_answer(acp, id, buf_str(&result));
    }
    served_free(served);
}

static void serve_file(struct agent_acp *acp, struct str id, bool writing, struct json params)
{
    OWN(arena) struct arena arena = {0};
    struct str path = json_str(json_get(params, "path"), &arena);
    struct json content = json_get(params, "content");
    if (!path.size || path.data[0] != '/' || memchr(path.data, 0, path.size)) {
        acp_refuse(acp, id, RPC_PARAMS, "'path' is an absolute path");
        return;
    }
    if (writing && json_type(content) != JSON_STRING) {
        acp_refuse(acp, id, RPC_PARAMS, "'content' is a string");
        return;
    }
    if (acp->file_count == FILES_MAX) {
        acp_refuse(acp, id, RPC_FAILED, "too many files at once: wait for some");
        return;
    }
    struct served *served = served_new(acp, id, FILE_BYTES_MAX);
    acp->file_count++;
    served->writing = writing;
    served->line = json_int_or(json_get(params, "line"), 1);
    served->limit = json_int_or(json_get(params, "limit"), 0);
    const char *name = arena_text(&arena, path);
    const char *read[] = {"cat", "--", name, NULL};
    const char *write[] = {"/bin/sh", "-c", "exec cat > \"$1\"", "sh", name, NULL};
    struct sandbox_command command = {
        .argv = writing ? write : read,
        .cwd = acp->cwd,
        .user = acp->user,
        .stdin_open = writing,
        .timeout_ms = FILE_MS,
    };
    struct sandbox_job_handlers handlers = {.on_output = on_file_output, .on_exit = on_file_exit};
    served->job = sandbox_run(acp->sandbox, &command, &handlers, served);
    if (!writing)
        return;
    sandbox_job_write(served->job, json_str(content, &arena));
    sandbox_job_end_input(served->job);
}

/* ---------------------------------------------------------------- terminals */

static void write_status(struct json_writer *out, const struct sandbox_exit *exit)
{
    if (exit->end == SANDBOX_EXITED) {
        json_set_int(out, "exitCode", exit->code);
        json_set_null(out, "signal");
        return;
    }
    char name[24];
    snprintf(name, sizeof name, "%d", exit->signal_number);
    json_set_null(out, "exitCode");
    json_set_text(out, "signal", exit->signal_number ? name : sandbox_end_name(exit->end));
}

static void on_terminal_output(void *context, int stream, struct str data)
{
    struct served *served = context;
    (void)stream;
    buf_str_append(&served->out, data);
    if (served->out.size <= served->out_max)
        return;
    size_t drop = served->out.size - served->out_max;
    while (drop < served->out.size && ((unsigned char)served->out.data[drop] & 0xc0) == 0x80)
        drop++; /* not in the middle of a character */
    buf_consume(&served->out, drop);
    served->cut = true;
}

static void answer_exit(struct served *served)
{
    OWN(buf) struct buf result = {0};
    struct json_writer out = {.out = &result};
    OWN(mem) char *id = TAKE(served->id);
    json_begin_object(&out);
    write_status(&out, &served->exit);
    json_end_object(&out);
    acp_answer(served->acp, str_of(id), buf_str(&result));
}

static void on_terminal_exit(void *context, const struct sandbox_exit *exit)
{
    struct served *served = context;
    served->over = true;
    served->exit = *exit;
    if (served->id)
        answer_exit(served);
}

static size_t read_arguments(struct json list, struct arena *arena, const char **out, size_t room)
{
    size_t count = 0;
    JSON_EACH (item, list)
        if (count < room)
            out[count++] = arena_text(arena, json_str(item.value, arena));
    return count;
}

static void create_terminal(struct agent_acp *acp, struct str id, struct json params)
{
    OWN(arena) struct arena arena = {0};
    OWN(buf) struct buf result = {0};
    struct str program = json_str(json_get(params, "command"), &arena);
    struct str cwd = json_str(json_get(params, "cwd"), &arena);
    long long limit = json_int_or(json_get(params, "outputByteLimit"), OUTPUT_MAX);
    if (!program.size || json_size(json_get(params, "args")) > ARGUMENTS_MAX ||
        json_size(json_get(params, "env")) > ARGUMENTS_MAX || limit < 0) {
        acp_refuse(acp, id, RPC_PARAMS, "a terminal needs a 'command' and few arguments");
        return;
    }
    if (acp->terminal_count == TERMINALS_MAX) {
        acp_refuse(acp, id, RPC_FAILED, "too many terminals: release some");
        return;
    }
    const char *argv[ARGUMENTS_MAX + 2] = {arena_text(&arena, program)};
    const char *env[ARGUMENTS_MAX + 1] = {0};
    size_t env_count = 0;
    (void)read_arguments(json_get(params, "args"), &arena, argv + 1, ARGUMENTS_MAX);
    JSON_EACH (item, json_get(params, "env")) {
        struct str name = json_str(json_get(item.value, "name"), &arena);
        struct str value = json_str(json_get(item.value, "value"), &arena);
        env[env_count++] = arena_format(&arena, "%.*s=%.*s", STR_ARGS(name), STR_ARGS(value));
    }
    struct served *served =
        served_new(acp, STR_NONE, limit < (long long)OUTPUT_MAX ? (size_t)limit : OUTPUT_MAX);
    served->number = ++acp->terminal_number;
    acp->terminal_count++;
    struct sandbox_command command = {
        .argv = argv,
        .env = env,
        .cwd = cwd.size ? arena_text(&arena, cwd) : acp->cwd,
        .user = acp->user,
    };
    struct sandbox_job_handlers handlers = {.on_output = on_terminal_output,
                                            .on_exit = on_terminal_exit};
    served->job = sandbox_run(acp->sandbox, &command, &handlers, served);
    buf_format(&result, "{\"terminalId\":\"t%u\"}", served->number);
    acp_answer(acp, id, buf_str(&result));
}

static struct served *find_terminal(struct agent_acp *acp, struct json params)
{
    char name[24];
    LIST_EACH (at, &acp->serving) {
        struct served *served = LIST_OF(at, struct served, node);
        snprintf(name, sizeof name, "t%u", served->number);
        if (served->number && json_is(json_get(params, "terminalId"), name))
            return served;
    }
    return NULL;
}

static void answer_output(struct agent_acp *acp, struct str id, const struct served *served)
{
    OWN(buf) struct buf result = {0};
    struct json_writer out = {.out = &result};
    json_begin_object(&out);
    json_set_str(&out, "output", buf_str(&served->out));
    json_set_bool(&out, "truncated", served->cut);
    if (served->over) {
        json_key(&out, "exitStatus");
        json_begin_object(&out);
        write_status(&out, &served->exit);
        json_end_object(&out);
    }
    json_end_object(&out);
    acp_answer(acp, id, buf_str(&result));
}

static void serve_terminal(struct agent_acp *acp, struct str id, struct json method,
                           struct json params)
{
    if (json_is(method, "terminal/create")) {
        create_terminal(acp, id, params);
        return;
    }
    struct served *served = find_terminal(acp, params);
    if (!served) {
        acp_refuse(acp, id, RPC_PARAMS, "there is no such terminal");
    } else if (json_is(method, "terminal/output")) {
        answer_output(acp, id, served);
    } else if (json_is(method, "terminal/wait_for_exit")) {
        if (served->id) {
            acp_refuse(acp, id, RPC_FAILED, "somebody waits for it already");
            return;
        }
        served->id = str_dup(id);
        if (served->over)
            answer_exit(served);
    } else if (json_is(method, "terminal/kill")) {
        if (!served->over)
            sandbox_job_kill(served->job);
        acp_answer(acp, id, STR("{}"));
    } else if (json_is(method, "terminal/release")) {
        acp_answer(acp, id, STR("{}"));
        served_free(served);
    } else {
        acp_refuse(acp, id, RPC_METHOD, "this client has no such method");
    }
}

/* ---------------------------------------------------------------- the door */

void acp_serve(struct agent_acp *acp, struct str id, struct json method, struct json params)
{
    OWN(arena) struct arena arena = {0};
    struct str word = json_str(method, &arena);
    bool reading = str_is(word, "fs/read_text_file"), writing = str_is(word, "fs/write_text_file");
    if (acp->way->files && (reading || writing))
        serve_file(acp, id, writing, params);
    else if (acp->way->terminals && str_starts(word, STR("terminal/")))
        serve_terminal(acp, id, method, params);
    else
        acp_refuse(acp, id, RPC_METHOD, "this client has no such method");
}

void acp_serve_deinit(struct agent_acp *acp)
{
    if (!acp->serving.next)
        return;
    LIST_EACH (at, &acp->serving)
        served_free(LIST_OF(at, struct served, node));
}
