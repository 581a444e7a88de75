/* trace.c - the names of things, and the few questions plain data can answer about itself. */
#include "trace/trace.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/mem.h"
#include "json/json.h"

/* clang-format off */
static const char *const roles[TRACE_ROLES] = {
    [TRACE_SYSTEM]    = "system",
    [TRACE_DEVELOPER] = "developer",
    [TRACE_USER]      = "user",
    [TRACE_ASSISTANT] = "assistant",
    [TRACE_TOOL]      = "tool",
};

static const char *const part_kinds[TRACE_PART_KINDS] = {
    [TRACE_PART_TEXT]    = "text",
    [TRACE_PART_REFUSAL] = "refusal",
    [TRACE_PART_IMAGE]   = "image",
    [TRACE_PART_AUDIO]   = "audio",
    [TRACE_PART_FILE]    = "file",
    [TRACE_PART_OTHER]   = "other",
};

static const char *const finishes[TRACE_FINISHES] = {
    [TRACE_FINISH_STOP]           = "stop",
    [TRACE_FINISH_LENGTH]         = "length",
    [TRACE_FINISH_TOOL_CALLS]     = "tool_calls",
    [TRACE_FINISH_CONTENT_FILTER] = "content_filter",
    [TRACE_FINISH_OTHER]          = "other",
};

static const char *const call_states[] = {
    [TRACE_CALL_OPEN]     = "open",
    [TRACE_CALL_ANSWERED] = "answered",
    [TRACE_CALL_REFUSED]  = "refused",
    [TRACE_CALL_BROKEN]   = "broken",
};

static const char *const stages[TRACE_STAGES] = {
    [TRACE_QUEUED]       = "queued",
    [TRACE_PROVISIONING] = "provisioning",
    [TRACE_INSTALLING]   = "installing",
    [TRACE_PREPARING]    = "preparing",
    [TRACE_SETUP]        = "setup",
    [TRACE_RUNNING]      = "running",
    [TRACE_SETTLING]     = "settling",
    [TRACE_VERIFYING]    = "verifying",
    [TRACE_COLLECTING]   = "collecting",
    [TRACE_DONE]         = "done",
    [TRACE_FAILED]       = "failed",
    [TRACE_CANCELLED]    = "cancelled",
};

/* Which fates a trainer may learn from, and which are worth another try. */
static const struct {
    const char *name;
    bool reward, retry;
} fates[TRACE_FATES] = {
    [TRACE_FATE_OK]              = {"ok",              true,  false},
    [TRACE_FATE_AGENT_FAILED]    = {"agent_failed",    true,  false},
    [TRACE_FATE_TIMED_OUT]       = {"timed_out",       true,  false},
    [TRACE_FATE_LIMIT]           = {"limit",           true,  false},
    [TRACE_FATE_STOPPED]         = {"stopped",         true,  false},
    [TRACE_FATE_OUT_OF_MEMORY]   = {"out_of_memory",   true,  false},
    [TRACE_FATE_INFRA_FAILED]    = {"infra_failed",    false, true},
    [TRACE_FATE_UPSTREAM_FAILED] = {"upstream_failed", false, true},
    [TRACE_FATE_SETUP_FAILED]    = {"setup_failed",    false, false},
    [TRACE_FATE_CANCELLED]       = {"cancelled",       false, false},
};
/* clang-format on */

static bool find_name(const char *const *names, size_t count, struct str name, size_t *out)
{
    for (size_t i = 0; i < count; i++) {
        if (names[i] && str_is(name, names[i])) {
            *out = i;
            return true;
        }
    }
    return false;
}

const char *trace_role_name(enum trace_role role)
{
    return roles[role];
}

bool trace_role_find(struct str name, enum trace_role *out)
{
    size_t at = TRACE_TOOL; /* the older name of it */
    if (!str_is(name, "function") && !find_name(roles, TRACE_ROLES, name, &at))
        return false;
    *out = (enum trace_role)at;
    return true;
}

const char *trace_part_kind_name(enum trace_part_kind kind)
{
    return part_kinds[kind];
}

const char *trace_finish_name(enum trace_finish finish)
{
    return finishes[finish];
}

const char *trace_call_state_name(enum trace_call_state state)
{
    return call_states[state];
}

const char *trace_stage_name(enum trace_stage stage)
{
    return stages[stage];
}

bool trace_stage_find(struct str name, enum trace_stage *out)
{
    size_t at;
    if (!find_name(stages, TRACE_STAGES, name, &at))
        return false;
    *out = (enum trace_stage)at;
    return true;
}

bool trace_stage_final(enum trace_stage stage)
{
    return stage == TRACE_DONE || stage == TRACE_FAILED || stage == TRACE_CANCELLED;
}

const char *trace_fate_name(enum trace_fate fate)
{
    return fates[fate].name;
}

bool trace_fate_find(struct str name, enum trace_fate *out)
{
    for (size_t i = 0; i < TRACE_FATES; i++) {
        if (str_is(name, fates[i].name)) {
            *out = (enum trace_fate)i;
            return true;
        }
    }
    return false;
}

bool trace_fate_may_reward(enum trace_fate fate)
{
    return fates[fate].reward;
}

bool trace_fate_may_retry(enum trace_fate fate)
{
    return fates[fate].retry;
}

struct str trace_message_text(const struct trace_message *message, struct arena *arena)
{
    struct str only = STR_NONE;
    size_t texts = 0, size = 0;
    for (size_t i = 0; i < message->part_count; i++) {
        if (message->parts[i].kind != TRACE_PART_TEXT)
            continue;
        only = message->parts[i].text;
        texts++;
        size += only.size;
    }
    if (texts <= 1)
        return only;
    char *all = arena_alloc(arena, size + 1);
    if (!all)
        return STR_NONE;
    size_t at = 0;
    for (size_t i = 0; i < message->part_count; i++) {
        if (message->parts[i].kind != TRACE_PART_TEXT || message->parts[i].text.size == 0)
            continue;
        memcpy(all + at, message->parts[i].text.data, message->parts[i].text.size);
        at += message->parts[i].text.size;
    }
    return str_make(all, size);
}

/* Counts come from outside: what is no sensible count is taken for the fallback. */
static int64_t count_of(struct json value, int64_t fallback)
{
    long long count = json_int_or(value, -1);
    return count >= 0 && count <= INT64_C(1) << 50 ? count : fallback;
}

bool trace_usage_read(struct json value, struct trace_usage *out)
{
    if (json_type(value) != JSON_OBJECT)
        return false;
    *out = (struct trace_usage){
        .known = true,
        .prompt_tokens = count_of(json_get(value, "prompt_tokens"), 0),
        .completion_tokens = count_of(json_get(value, "completion_tokens"), 0),
        .cached_tokens = count_of(json_get(value, "cached_tokens"), -1),
        .reasoning_tokens = count_of(json_get(value, "reasoning_tokens"), -1),
    };
    return true;
}

/* Sums stop at the largest number instead of wrapping. */
static void add_count(int64_t *sum, int64_t more)
{
    if (more > 0 && __builtin_add_overflow(*sum > 0 ? *sum : 0, more, sum))
        *sum = INT64_MAX;
}

static void add_part(int64_t *sum, int64_t more, bool first)
{
    if (first)
        *sum = more;
    else if (more >= 0)
        add_count(sum, more);
}

void trace_usage_add(struct trace_usage *sum, const struct trace_usage *more)
{
    if (!more->known)
        return;
    bool first = !sum->known;
    sum->known = true;
    add_count(&sum->prompt_tokens, more->prompt_tokens);
    add_count(&sum->completion_tokens, more->completion_tokens);
    add_part(&sum->cached_tokens, more->cached_tokens, first);
    add_part(&sum->reasoning_tokens, more->reasoning_tokens, first);
}

double trace_seconds(struct str text)
{
    struct tm parts = {0};
    unsigned ms = 0;
    char copy[32];
    if (!text.size || text.size >= sizeof copy)
        return 0;
    memcpy(copy, text.data, text.size);
    copy[text.size] = 0;
    if (sscanf(copy, "%d-%d-%dT%d:%d:%d.%uZ", &parts.tm_year, &parts.tm_mon, &parts.tm_mday,
               &parts.tm_hour, &parts.tm_min, &parts.tm_sec, &ms) != 7)
        return 0;
    parts.tm_year -= 1900;
    parts.tm_mon -= 1;
    return (double)timegm(&parts) + ms / 1000.0;
}
