/* script.c - reading scripts: rules in TOML that say what a model answers to what.
 * docs/scripted-model.md.
 *
 * A rule has a `when` (all of it must fit; an empty one always fits) and an answer, or a list of
 * answers, one per turn. The first rule that fits answers. A script is immutable; how often a rule
 * was used is counted by the session, so that every rollout sees the script from its beginning.
 * Everything wrong in a script is found here, with line and column, before any rollout starts. */
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "config/toml.h"
#include "gateway/inner.h"

#define RULES_MAX 10000
#define CHUNK_BYTES 24
#define DELAY_MS_MAX (60ll * 60 * 1000)
#define SEEN_BYTES_MAX 100

struct texts {
    const char *const *items;
    size_t count;
};

struct numbers {
    const uint32_t *items;
    size_t count;
};

struct rule {
    const char *name; /* NULL: none */
    uint32_t line;
    struct texts tasks, last, result, instruction, system;
    struct numbers indexes, turns;
    uint32_t modulo, remainder; /* modulo 0: any */
    uint32_t turn_min, turn_max;
    int tools, stream; /* -1: any */
    uint32_t times;    /* 0: any number */
    bool by_turn;
    struct script_answer *answers;
    size_t answer_count;
};

struct script {
    struct toml toml;
    struct arena arena;
    char *path;
    const char *name;
    struct script_answer defaults;
    struct rule *rules;
    size_t rule_count;
};

/* ---------------------------------------------------------------- reading */

static int read_numbers(struct script *script, struct toml_node *table, const char *key,
                        struct numbers *out, struct err *err)
{
    struct toml_node *node = toml_get(table, key);
    if (!node)
        return 0;
    size_t count = node->type == TOML_ARRAY ? node->count : 1;
    uint32_t *items = arena_alloc(&script->arena, (count + 1) * sizeof *items);
    size_t used = 0;
    for (struct toml_node *item = node->type == TOML_ARRAY ? node->first : node; item;
         item = node->type == TOML_ARRAY ? item->next : NULL) {
        if (item->type != TOML_INTEGER || item->integer < 0 || item->integer > UINT32_MAX)
            return toml_error(item, err, "'%s' is a number from 0, or a list of them", key);
        items[used++] = (uint32_t)item->integer;
    }
    *out = (struct numbers){items, used};
    return 0;
}

static int read_texts(struct toml_node *table, const char *key, struct texts *out, struct err *err)
{
    return toml_texts(table, key, &out->items, &out->count, err) < 0 ? -1 : 0;
}

static int read_flag(struct toml_node *table, const char *key, int *out, struct err *err)
{
    bool truth = false;
    int found = toml_bool(table, key, &truth, err);
    if (found > 0)
        *out = truth;
    return found < 0 ? -1 : 0;
}

static int read_when(struct script *script, struct toml_node *table, struct rule *rule,
                     struct err *err)
{
    struct toml_node *when = NULL;
    if (toml_table(table, "when", &when, err) < 0)
        return -1;
    struct numbers modulo = {0};
    long long turn_min = 0, turn_max = UINT32_MAX;
    rule->tools = rule->stream = -1;
    if (read_texts(when, "task", &rule->tasks, err) < 0 ||
        read_numbers(script, when, "index", &rule->indexes, err) < 0 ||
        read_numbers(script, when, "index_modulo", &modulo, err) < 0 ||
        read_numbers(script, when, "turn", &rule->turns, err) < 0 ||
        toml_int(when, "turn_min", 0, UINT32_MAX, &turn_min, err) < 0 ||
        toml_int(when, "turn_max", 0, UINT32_MAX, &turn_max, err) < 0 ||
        read_texts(when, "last_has", &rule->last, err) < 0 ||
        read_texts(when, "result_has", &rule->result, err) < 0 ||
        read_texts(when, "instruction_has", &rule->instruction, err) < 0 ||
        read_texts(when, "system_has", &rule->system, err) < 0 ||
        read_flag(when, "tools", &rule->tools, err) < 0 ||
        read_flag(when, "stream", &rule->stream, err) < 0)
        return -1;
    rule->turn_min = (uint32_t)turn_min;
    rule->turn_max = (uint32_t)turn_max;
    if (!modulo.items)
        return 0;
    if (modulo.count != 2 || modulo.items[0] == 0 || modulo.items[1] >= modulo.items[0])
        return toml_error(
            toml_get(when, "index_modulo"), err,
            "'index_modulo' is [n, r]: rollouts whose number leaves r when divided by n");
    rule->modulo = modulo.items[0];
    rule->remainder = modulo.items[1];
    return 0;
}

static int read_call(struct script *script, struct toml_node *table, struct script_call *call,
                     struct err *err)
{
    const char *name = NULL, *id = NULL;
    if (toml_need_text(table, "name", &name, err) < 0 || toml_text(table, "id", &id, err) < 0)
        return -1;
    call->name = str_of(name);
    call->id = str_of(id);
    call->arguments = STR("{}");
    struct toml_node *arguments = toml_get(table, "arguments");
    if (!arguments)
        return 0;
    if (arguments->type == TOML_STRING) {
        call->arguments = str_make(arguments->text, arguments->text_size);
        return 0;
    }
    if (arguments->type != TOML_TABLE)
        return toml_error(arguments, err,
                          "'arguments' is a table, or a string that is sent as it is");
    toml_use_all(arguments);
    OWN(buf) struct buf text = {0};
    struct json_writer out = {.out = &text};
    toml_write_json(arguments, &out);
    call->arguments = arena_str(&script->arena, buf_str(&text));
    return 0;
}

static int read_calls(struct script *script, struct toml_node *table, struct script_answer *answer,
                      struct err *err)
{
    struct toml_node *calls = NULL;
    if (toml_tables(table, "call", &calls, err) < 0)
        return -1;
    if (!calls || !calls->count)
        return 0;
    struct script_call *items = arena_alloc(&script->arena, calls->count * sizeof *items);
    TOML_EACH(item, calls)
    {
        if (read_call(script, item, &items[answer->call_count++], err) < 0)
            return -1;
    }
    answer->calls = items;
    return 0;
}

static int read_error(struct toml_node *table, struct script_answer *answer, struct err *err)
{
    struct toml_node *error = NULL;
    if (toml_table(table, "error", &error, err) < 0)
        return -1;
    if (!error)
        return 0;
    long long status = 500, retry_after = -1;
    const char *message = "the script says so", *code = NULL;
    if (toml_int(error, "status", 400, 599, &status, err) < 0 ||
        toml_text(error, "message", &message, err) < 0 ||
        toml_text(error, "code", &code, err) < 0 ||
        toml_duration_ms(error, "retry_after", 0, DELAY_MS_MAX, &retry_after, err) < 0 ||
        toml_bool(error, "show", &answer->error_show, err) < 0)
        return -1;
    answer->status = (int)status;
    answer->error_message = str_of(message);
    answer->error_code = str_of(code);
    answer->retry_after_ms = retry_after;
    return 0;
}

static int read_ids(struct script *script, struct toml_node *table, const char *key,
                    const int32_t **out, size_t *count, struct err *err)
{
    struct toml_node *node = toml_get(table, key);
    if (!node)
        return 0;
    if (node->type != TOML_ARRAY)
        return toml_error(node, err, "'%s' is an array of token ids", key);
    int32_t *items = arena_alloc(&script->arena, (node->count + 1) * sizeof *items);
    *count = 0;
    TOML_EACH(item, node)
    {
        if (item->type != TOML_INTEGER || item->integer < 0 || item->integer > INT32_MAX)
            return toml_error(item, err, "'%s' holds token ids: integers from 0 to %d", key,
                              INT32_MAX);
        items[(*count)++] = (int32_t)item->integer;
    }
    *out = items;
    return 0;
}

static int read_logprobs(struct script *script, struct toml_node *table,
                         struct script_answer *answer, struct err *err)
{
    struct toml_node *node = toml_get(table, "logprobs");
    if (!node)
        return 0;
    if (node->type != TOML_ARRAY)
        return toml_error(node, err, "'logprobs' is an array of numbers");
    float *items = arena_alloc(&script->arena, (node->count + 1) * sizeof *items);
    TOML_EACH(item, node)
    {
        if ((item->type != TOML_INTEGER && item->type != TOML_FLOAT) || !(item->real <= 0))
            return toml_error(item, err, "a log-probability is a number that is not above 0");
        items[answer->logprob_count++] = (float)item->real;
    }
    if (answer->logprob_count != answer->token_id_count)
        return toml_error(node, err, "%zu log-probabilities for %zu token ids",
                          answer->logprob_count, answer->token_id_count);
    answer->logprobs = items;
    return 0;
}

static int read_tokens(struct script *script, struct toml_node *table, struct script_answer *answer,
                       struct err *err)
{
    struct toml_node *node = toml_get(table, "tokens");
    if (!node)
        return 0;
    if (node->type == TOML_STRING && strcmp(node->text, "none") == 0) {
        answer->tokens = SCRIPT_TOKENS_NONE;
    } else if (node->type == TOML_STRING && strcmp(node->text, "generate") == 0) {
        answer->tokens = SCRIPT_TOKENS_GENERATED;
    } else if (node->type == TOML_TABLE) {
        answer->tokens = SCRIPT_TOKENS_GIVEN;
        return read_ids(script, node, "ids", &answer->token_ids, &answer->token_id_count, err) <
                           0 ||
                       read_logprobs(script, node, answer, err) < 0 ||
                       read_ids(script, node, "prompt_ids", &answer->prompt_ids,
                                &answer->prompt_id_count, err) < 0
                   ? -1
                   : 0;
    } else {
        return toml_error(
            node, err,
            "'tokens' is \"none\", \"generate\" or a table with ids, logprobs and prompt_ids");
    }
    return 0;
}

/* Pace and size of what is streamed: in [defaults] and in every answer. */
static int read_pace(struct script *script, struct toml_node *table, struct script_answer *answer,
                     struct err *err)
{
    long long first = answer->first_delay_ms, between = answer->chunk_delay_ms,
              chunk = answer->chunk_bytes;
    if (toml_duration_ms(table, "first_delay", 0, DELAY_MS_MAX, &first, err) < 0 ||
        toml_duration_ms(table, "chunk_delay", 0, DELAY_MS_MAX, &between, err) < 0 ||
        toml_int(table, "chunk", 1, 1 << 20, &chunk, err) < 0 ||
        read_tokens(script, table, answer, err) < 0)
        return -1;
    answer->first_delay_ms = (uint32_t)first;
    answer->chunk_delay_ms = (uint32_t)between;
    answer->chunk_bytes = (uint32_t)chunk;
    return 0;
}

static int read_usage(struct toml_node *table, struct script_answer *answer, struct err *err)
{
    struct toml_node *usage = NULL;
    long long prompt = -1, completion = -1;
    if (toml_table(table, "usage", &usage, err) < 0 ||
        toml_int(usage, "prompt", 0, INT32_MAX, &prompt, err) < 0 ||
        toml_int(usage, "completion", 0, INT32_MAX, &completion, err) < 0)
        return -1;
    answer->prompt_tokens = prompt;
    answer->completion_tokens = completion;
    return 0;
}

static int read_answer(struct script *script, struct toml_node *table, struct script_answer *answer,
                       struct err *err)
{
    static const char *const finishes[] = {"stop", "length", "tool_calls", "content_filter", NULL};
    static const enum trace_finish meant[] = {TRACE_FINISH_STOP, TRACE_FINISH_LENGTH,
                                              TRACE_FINISH_TOOL_CALLS, TRACE_FINISH_CONTENT_FILTER};
    *answer = script->defaults;
    answer->retry_after_ms = -1;
    const char *say = NULL, *reasoning = NULL;
    long long reset_after = -1;
    int finish = -1;
    if (toml_text(table, "say", &say, err) < 0 ||
        toml_text(table, "reasoning", &reasoning, err) < 0 ||
        toml_choice(table, "finish", finishes, &finish, err) < 0 ||
        toml_int(table, "reset_after", 0, INT32_MAX, &reset_after, err) < 0 ||
        toml_bool(table, "hang", &answer->hang, err) < 0 ||
        read_pace(script, table, answer, err) < 0 || read_usage(table, answer, err) < 0 ||
        read_calls(script, table, answer, err) < 0 || read_error(table, answer, err) < 0)
        return -1;
    answer->text = str_of(say);
    answer->reasoning = str_of(reasoning);
    answer->reset_after = reset_after;
    if (finish >= 0)
        answer->finish = meant[finish];
    bool says = say || reasoning || answer->call_count;
    if (answer->status && says)
        return toml_error(table, err, "an answer with 'error' has no 'say', 'reasoning' or 'call'");
    if (!says && !answer->status && !answer->hang && reset_after < 0)
        return toml_error(
            table, err,
            "an answer needs 'say', 'reasoning', 'call', 'error', 'reset_after' or 'hang'");
    return 0;
}

static int read_rule(struct script *script, struct toml_node *table, struct rule *rule,
                     struct err *err)
{
    rule->line = table->line;
    long long times = 0;
    struct toml_node *turns = NULL;
    if (toml_text(table, "name", &rule->name, err) < 0 ||
        toml_int(table, "times", 1, UINT32_MAX, &times, err) < 0 ||
        read_when(script, table, rule, err) < 0 || toml_tables(table, "turns", &turns, err) < 0)
        return -1;
    rule->times = (uint32_t)times;
    rule->by_turn = turns && turns->count;
    rule->answer_count = rule->by_turn ? turns->count : 1;
    rule->answers = arena_alloc(&script->arena, rule->answer_count * sizeof *rule->answers);
    if (!rule->by_turn)
        return read_answer(script, table, rule->answers, err);
    size_t used = 0;
    TOML_EACH(item, turns)
    {
        if (read_answer(script, item, &rule->answers[used++], err) < 0)
            return -1;
    }
    return 0;
}

static int read_script(struct script *script, struct err *err)
{
    struct toml_node *defaults = NULL, *rules = NULL;
    script->name = "script";
    script->defaults = (struct script_answer){
        .chunk_bytes = CHUNK_BYTES,
        .prompt_tokens = -1,
        .completion_tokens = -1,
        .retry_after_ms = -1,
        .reset_after = -1,
    };
    struct toml_node *root = script->toml.root;
    if (toml_text(root, "name", &script->name, err) < 0 ||
        toml_table(root, "defaults", &defaults, err) < 0 ||
        read_pace(script, defaults, &script->defaults, err) < 0 ||
        toml_tables(root, "rule", &rules, err) < 0)
        return -1;
    if (!rules || !rules->count)
        return err_set(err, ERR_INPUT, "%s: a script needs at least one [[rule]]", script->path);
    if (rules->count > RULES_MAX)
        return toml_error(rules, err, "more than %d rules", RULES_MAX);
    script->rules = arena_alloc(&script->arena, rules->count * sizeof *script->rules);
    TOML_EACH(item, rules)
    {
        if (read_rule(script, item, &script->rules[script->rule_count++], err) < 0)
            return -1;
    }
    return toml_check_unused(&script->toml, err);
}

struct script *script_open(const char *path, struct err *err)
{
    struct script *script = mem_zero(sizeof *script);
    script->path = mem_dup(path);
    if (toml_read_file(&script->toml, path, err) == 0 && read_script(script, err) == 0)
        return script;
    script_free(script);
    return NULL;
}

void script_free(struct script *script)
{
    if (!script)
        return;
    toml_deinit(&script->toml);
    arena_deinit(&script->arena);
    free(script->path);
    free(script);
}

const char *script_name(const struct script *script)
{
    return script->name;
}

size_t script_rules(const struct script *script)
{
    return script->rule_count;
}

/* ---------------------------------------------------------------- matching */

static bool has_number(const struct numbers *numbers, uint32_t number)
{
    for (size_t i = 0; i < numbers->count; i++)
        if (numbers->items[i] == number)
            return true;
    return numbers->items == NULL;
}

static bool has_all(const struct texts *parts, struct str text)
{
    for (size_t i = 0; i < parts->count; i++)
        if (str_find(text, str_of(parts->items[i])) < 0)
            return false;
    return true;
}

static bool fits_task(const struct texts *patterns, const char *task)
{
    for (size_t i = 0; i < patterns->count; i++)
        if (fnmatch(patterns->items[i], task ? task : "", 0) == 0)
            return true;
    return patterns->count == 0;
}

static bool fits(const struct rule *rule, const struct script_scene *scene)
{
    return fits_task(&rule->tasks, scene->task) && has_number(&rule->indexes, scene->index) &&
           (!rule->modulo || scene->index % rule->modulo == rule->remainder) &&
           has_number(&rule->turns, scene->turn) && scene->turn >= rule->turn_min &&
           scene->turn <= rule->turn_max && (rule->tools < 0 || rule->tools == scene->tools) &&
           (rule->stream < 0 || rule->stream == scene->stream) &&
           (!rule->by_turn || scene->turn < rule->answer_count) &&
           has_all(&rule->last, scene->last) && has_all(&rule->result, scene->result) &&
           has_all(&rule->instruction, scene->instruction) && has_all(&rule->system, scene->system);
}

static void excerpt(char *out, size_t room, struct str text)
{
    text = str_trim(text);
    size_t used = 0;
    for (size_t i = 0; i < text.size && i < SEEN_BYTES_MAX && used + 4 < room; i++)
        out[used++] = (unsigned char)text.data[i] < ' ' ? ' ' : text.data[i];
    snprintf(out + used, room - used, "%s", text.size > SEEN_BYTES_MAX ? "..." : "");
}

const struct script_answer *script_find(const struct script *script,
                                        const struct script_scene *scene, uint32_t *uses,
                                        struct err *err)
{
    uint32_t worn = 0;
    for (size_t i = 0; i < script->rule_count; i++) {
        const struct rule *rule = &script->rules[i];
        if (!fits(rule, scene))
            continue;
        if (rule->times && uses[i] >= rule->times) {
            worn++;
            continue;
        }
        uses[i]++;
        return &rule->answers[rule->by_turn ? scene->turn : 0];
    }
    char last[SEEN_BYTES_MAX + 8], instruction[SEEN_BYTES_MAX + 8], used_up[64] = "";
    excerpt(last, sizeof last, scene->last);
    excerpt(instruction, sizeof instruction, scene->instruction);
    if (worn)
        snprintf(used_up, sizeof used_up, " (%u fitting rules are used up)", worn);
    err_set(err, ERR_INPUT,
            "no rule of the script '%s' fits%s: task '%s', rollout %u, turn %u, %s tools, "
            "instruction \"%s\", last message \"%s\"",
            script->name, used_up, scene->task ? scene->task : "", scene->index, scene->turn,
            scene->tools ? "with" : "without", instruction, last);
    return NULL;
}

void script_scene_read(struct script_scene *scene, const struct upstream_request *request,
                       struct arena *arena)
{
    const struct trace_request *trace = request->request;
    *scene = (struct script_scene){
        .task = request->task,
        .index = request->index,
        .tools = trace->tool_count > 0,
        .stream = trace->stream,
    };
    OWN(buf) struct buf system = {0};
    for (size_t i = 0; i < trace->message_count; i++) {
        const struct trace_message *message = &trace->messages[i];
        struct str text = trace_message_text(message, arena);
        switch (message->role) {
        case TRACE_SYSTEM:
        case TRACE_DEVELOPER:
            buf_str_append(&system, text);
            buf_byte(&system, '\n');
            break;
        case TRACE_USER:
            if (!scene->instruction.data)
                scene->instruction = text;
            break;
        case TRACE_ASSISTANT: /* what an agent kept of a broken answer stands before the whole one
                               */
            if (i == 0 || trace->messages[i - 1].role != TRACE_ASSISTANT)
                scene->turn++;
            break;
        case TRACE_TOOL:
            scene->result = text;
            break;
        case TRACE_ROLES:
            break;
        }
        scene->last = text;
    }
    scene->system = arena_str(arena, buf_str(&system));
}
