/* replay.c - a model made of an earlier rollout's record: its calls.jsonl.
 *
 * A call is answered with what the recorded call with the same messages was answered, in whatever
 * dialect it is asked now. Where no recorded call has the same messages the one that shares the
 * longest beginning is taken, and the first time that happens is reported: which call, which
 * message, and where the two part. When the record has nothing left, that is the end.
 *
 * Lines of calls.jsonl leave out what their parent's line has; here they are put together again.
 * The record is read once and shared by all lanes; which answers were used is the session's. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/file.h"
#include "base/mem.h"
#include "gateway/inner.h"

#define FILE_BYTES_MAX ((size_t)1 << 30)
#define ARENA_BYTES_MAX ((size_t)1 << 30)
#define EXCERPT_BYTES 40

/* A line of the record. */
struct recorded {
    uint32_t number;
    bool answered;
    const struct str *messages; /* as JSON */
    const uint64_t *hashes;
    size_t message_count;
    uint64_t tools; /* a hash of them as JSON; 0: none */
    struct trace_answer answer;
};

struct replay {
    struct buf file;
    struct arena arena;
    struct recorded *calls;
    size_t count, capacity;
    struct map by_id; /* call id -> index + 1 */
    char *name;
};

/* ---------------------------------------------------------------- reading a line */

static int out_of_room(struct err *err)
{
    return err_set(err, ERR_LIMIT, "the record is too large");
}

static int read_messages(struct replay *replay, struct json line, struct recorded *out,
                         struct err *err)
{
    struct json own = json_get(json_get(line, "request"), "messages");
    size_t shared = (size_t)json_int_or(json_get(line, "shared_messages"), 0);
    size_t from = (size_t)json_int_or(json_get(line, "shared_from"), 0);
    struct str parent_id = json_str(json_get(line, "parent"), &replay->arena);
    const struct recorded *parent = NULL;
    uintptr_t index = (uintptr_t)map_get(&replay->by_id, parent_id);
    if (index)
        parent = &replay->calls[index - 1];
    if (shared && (!parent || parent->message_count < shared ||
                   parent->message_count - shared < from || json_size(own) < from))
        return err_set(err, ERR_INPUT, "call %u has no parent in the record", out->number);
    out->message_count = shared + json_size(own);
    struct str *messages = arena_alloc(&replay->arena, (out->message_count + 1) * sizeof *messages);
    uint64_t *hashes = arena_alloc(&replay->arena, (out->message_count + 1) * sizeof *hashes);
    if (!messages || !hashes)
        return out_of_room(err);
    if (shared) {
        memcpy(messages + from, parent->messages + from, shared * sizeof *messages);
        memcpy(hashes + from, parent->hashes + from, shared * sizeof *hashes);
    }
    size_t at = 0;
    JSON_EACH (item, own) {
        if (at == from)
            at += shared;
        messages[at] = json_raw(item.value);
        hashes[at] = XXH3_64bits(messages[at].data, messages[at].size);
        at++;
    }
    out->messages = messages;
    out->hashes = hashes;
    struct json tools = json_get(json_get(line, "request"), "tools");
    if (json_size(tools))
        out->tools = XXH3_64bits(json_raw(tools).data, json_raw(tools).size);
    else if (parent && json_true(json_get(line, "shared_tools")))
        out->tools = parent->tools;
    return 0;
}

/* Room for `shared` of another one's and the list's; NULL: none are needed, or none is left. */
static void *room_for(struct json list, size_t shared, struct arena *arena, size_t *count)
{
    *count = shared + json_size(list);
    return *count ? arena_alloc(arena, *count * 4) : NULL;
}

static int read_ids(struct json list, struct str before, struct arena *arena, const int32_t **ids,
                    size_t *count, struct err *err)
{
    size_t at = before.size / 4;
    int32_t *out = room_for(list, at, arena, count);
    if (*count && !out)
        return out_of_room(err);
    if (at)
        memcpy(out, before.data, before.size);
    JSON_EACH (item, list) {
        long long id;
        if (!json_int(item.value, &id) || id < 0 || id > INT32_MAX)
            return err_set(err, ERR_INPUT, "its token ids are not all ids");
        out[at++] = (int32_t)id;
    }
    *ids = out;
    return 0;
}

static int read_logprobs(struct json list, struct arena *arena, struct trace_tokens *tokens,
                         struct err *err)
{
    float *out = room_for(list, 0, arena, &tokens->logprob_count);
    size_t at = 0;
    if (tokens->logprob_count && !out)
        return out_of_room(err);
    JSON_EACH (item, list) {
        double value = NAN; /* recorded as null */
        if (json_type(item.value) != JSON_NULL && !json_double(item.value, &value))
            return err_set(err, ERR_INPUT, "its log-probabilities are not all numbers");
        out[at++] = (float)value;
    }
    tokens->logprobs = out;
    return 0;
}

static int read_tokens(struct replay *replay, struct json line, struct trace_answer *out,
                       struct err *err)
{
    struct json answer = json_get(line, "answer");
    struct arena *arena = &replay->arena;
    size_t shared = (size_t)json_int_or(json_get(line, "shared_prompt_tokens"), 0);
    uintptr_t index = (uintptr_t)map_get(&replay->by_id, json_str(json_get(line, "parent"), arena));
    OWN(buf) struct buf before = {0};
    if (shared && index) {
        const struct trace_answer *parent = &replay->calls[index - 1].answer;
        buf_append(&before, parent->prompt_ids, parent->prompt_id_count * 4);
        buf_append(&before, parent->tokens.ids, parent->tokens.id_count * 4);
    }
    if (shared > before.size / 4)
        return err_set(err, ERR_INPUT, "its prompt refers to tokens that are not in the record");
    if (read_ids(json_get(answer, "prompt_token_ids"), str_upto(buf_str(&before), shared * 4),
                 arena, &out->prompt_ids, &out->prompt_id_count, err) < 0 ||
        read_ids(json_get(answer, "token_ids"), STR_NONE, arena, &out->tokens.ids,
                 &out->tokens.id_count, err) < 0)
        return -1;
    return read_logprobs(json_get(answer, "logprobs"), arena, &out->tokens, err);
}

int recorded_answer_read(struct json answer, struct arena *arena, struct trace_answer *out,
                         struct err *err)
{
    out->id = json_str(json_get(answer, "id"), arena);
    out->model = json_str(json_get(answer, "model"), arena);
    out->finish_text = json_str(json_get(answer, "finish_text"), arena);
    out->stop_word = json_str(json_get(answer, "stop_word"), arena);
    struct str finish = json_str(json_get(answer, "finish_reason"), arena);
    for (int i = TRACE_FINISH_NONE + 1; i < TRACE_FINISHES; i++)
        if (str_is(finish, trace_finish_name((enum trace_finish)i)))
            out->finish = (enum trace_finish)i;
    (void)trace_usage_read(json_get(answer, "usage"), &out->usage);
    return trace_message_read(json_get(answer, "message"), arena, &out->message)
               ? 0
               : err_set(err, ERR_INPUT, "an answer of the record has no message that can be read");
}

static int read_answer(struct replay *replay, struct json line, struct trace_answer *out,
                       struct err *err)
{
    if (read_tokens(replay, line, out, err) < 0)
        return -1;
    return recorded_answer_read(json_get(line, "answer"), &replay->arena, out, err);
}

static int read_line(struct replay *replay, struct str text, struct err *err)
{
    OWN(json_doc) struct json_doc doc = {0};
    if (json_read(&doc, text, NULL, err) < 0)
        return -1;
    struct json line = json_root(&doc);
    struct recorded call = {
        .number = (uint32_t)json_int_or(json_get(line, "number"), 0),
        .answered = str_is(json_str(json_get(line, "state"), &replay->arena), "answered"),
    };
    if (read_messages(replay, line, &call, err) < 0 ||
        (json_type(json_get(line, "answer")) == JSON_OBJECT &&
         read_answer(replay, line, &call.answer, err) < 0))
        return -1;
    if (!replay->name)
        replay->name =
            str_dup(json_str(json_get(json_get(line, "request"), "model"), &replay->arena));
    if (replay->count == replay->capacity) {
        replay->capacity = replay->capacity * 2 + 16;
        replay->calls = mem_grow(replay->calls, replay->capacity * sizeof *replay->calls);
    }
    replay->calls[replay->count++] = call;
    (void)map_put(&replay->by_id, json_str(json_get(line, "call_id"), &replay->arena),
                  (void *)(uintptr_t)replay->count);
    return 0;
}

/* ---------------------------------------------------------------- the record */

struct replay *replay_open(const char *home, const char *source, struct err *err)
{
    bool folder = strchr(source, '/') || file_exists(source) || !home;
    bool file = str_ends(str_of(source), STR(".jsonl"));
    OWN(mem)
    char *path = folder ? mem_format("%s%s", source, file ? "" : "/calls.jsonl")
                        : mem_format("%s/rollouts/%s/calls.jsonl", home, source);
    struct replay *replay = mem_zero(sizeof *replay);
    replay->arena.bytes_max = ARENA_BYTES_MAX;
    int result = file_read(path, FILE_BYTES_MAX, &replay->file, err);
    size_t number = 0;
    for (struct str rest = buf_str(&replay->file); result == 0 && rest.data;) {
        struct str line = str_trim(str_cut(&rest, '\n'));
        number++;
        if (line.size && read_line(replay, line, err) < 0)
            result = err_wrap(err, "%s: line %zu", path, number);
    }
    if (result == 0 && !replay->count)
        result = err_set(err, ERR_INPUT, "%s: there is no call in it", path);
    if (result == 0)
        return replay;
    err_wrap(err, "the record to replay");
    replay_free(replay);
    return NULL;
}

void replay_free(struct replay *replay)
{
    if (!replay)
        return;
    map_deinit(&replay->by_id);
    arena_deinit(&replay->arena);
    buf_deinit(&replay->file);
    free(replay->calls);
    free(replay->name);
    free(replay);
}

const char *replay_name(const struct replay *replay)
{
    return replay->name && replay->name[0] ? replay->name : "replay";
}

size_t replay_calls(const struct replay *replay)
{
    return replay->count;
}

/* ---------------------------------------------------------------- finding the answer */

/* The messages as they would be recorded. */
struct asked {
    struct buf text;
    size_t *ends;
    uint64_t *hashes;
    size_t count;
    uint64_t tools;
};

static struct str asked_at(const struct asked *asked, size_t index)
{
    size_t start = index ? asked->ends[index - 1] : 0;
    return str_make(asked->text.data + start, asked->ends[index] - start);
}

static void asked_init(struct asked *asked, const struct trace_request *request)
{
    asked->count = request->message_count;
    asked->ends = mem_alloc((asked->count + 1) * sizeof *asked->ends);
    asked->hashes = mem_alloc((asked->count + 1) * sizeof *asked->hashes);
    for (size_t i = 0; i < asked->count; i++) {
        trace_message_write(&request->messages[i], &(struct json_writer){.out = &asked->text});
        asked->ends[i] = asked->text.size;
    }
    for (size_t i = 0; i < asked->count; i++) {
        struct str text = asked_at(asked, i);
        asked->hashes[i] = XXH3_64bits(text.data, text.size);
    }
    if (!request->tool_count)
        return;
    OWN(buf) struct buf tools = {0};
    struct json_writer out = {.out = &tools};
    json_begin_array(&out);
    for (size_t i = 0; i < request->tool_count; i++)
        trace_tool_write(&request->tools[i], &out);
    json_end_array(&out);
    asked->tools = XXH3_64bits(tools.data, tools.size);
}

static void own_asked(struct asked *asked)
{
    buf_deinit(&asked->text);
    free(asked->ends);
    free(asked->hashes);
}

static size_t shared(const struct recorded *call, const struct asked *asked)
{
    size_t count = 0;
    while (count < call->message_count && count < asked->count &&
           call->hashes[count] == asked->hashes[count])
        count++;
    return count;
}

static void excerpt(struct str text, size_t at, char *out)
{
    size_t start = at > 8 ? at - 8 : 0, size = 0;
    for (size_t i = start; i < text.size && size < EXCERPT_BYTES; i++)
        out[size++] = text.data[i] >= ' ' && text.data[i] < 0x7f ? text.data[i] : '?';
    out[size] = '\0';
}

static void describe(const struct recorded *call, const struct asked *asked, uint32_t number,
                     struct err *out)
{
    size_t at = shared(call, asked);
    if (at == call->message_count || at == asked->count) {
        err_set(out, ERR_CONFLICT,
                "call %u differs from the record's call %u: it has %zu messages instead of %zu",
                number, call->number, asked->count, call->message_count);
        return;
    }
    struct str now = asked_at(asked, at), then = call->messages[at];
    size_t byte = 0;
    while (byte < now.size && byte < then.size && now.data[byte] == then.data[byte])
        byte++;
    char now_text[EXCERPT_BYTES + 1], then_text[EXCERPT_BYTES + 1];
    excerpt(now, byte, now_text);
    excerpt(then, byte, then_text);
    err_set(out, ERR_CONFLICT,
            "call %u differs from the record's call %u in message %zu: '%s' instead of '%s'",
            number, call->number, at + 1, now_text, then_text);
}

/* How well the tools fit where the messages are the same: a title is asked for with the same words
 * but without tools. In another dialect the same ones may look otherwise. */
static int fit(const struct recorded *call, const struct asked *asked)
{
    return call->tools == asked->tools ? 3 : (call->tools != 0) == (asked->tools != 0) ? 2 : 1;
}

const struct trace_answer *replay_find(const struct replay *replay,
                                       const struct upstream_request *request,
                                       struct err *divergence, struct err *err)
{
    OWN(asked) struct asked asked = {0};
    asked_init(&asked, request->request);
    size_t best = replay->count, best_shared = 0;
    int best_fit = 0; /* 0: its messages are others */
    for (size_t i = 0; i < replay->count; i++) {
        const struct recorded *call = &replay->calls[i];
        if (request->uses[i] == request->number)
            return &call->answer; /* another attempt of the same call */
        if (!call->answered || request->uses[i] || best_fit == 3)
            continue;
        size_t count = shared(call, &asked);
        bool same = count == asked.count && count == call->message_count;
        int fits = same ? fit(call, &asked) : 0;
        if (fits < best_fit || (fits == best_fit && best < replay->count && count <= best_shared))
            continue;
        best = i;
        best_shared = count;
        best_fit = fits;
    }
    if (best == replay->count) {
        err_set(err, ERR_NOT_FOUND, "call %u is not in the record, whose %zu calls are all used up",
                request->number, replay->count);
        return NULL;
    }
    request->uses[best] = request->number;
    if (!best_fit && divergence->kind == ERR_NONE)
        describe(&replay->calls[best], &asked, request->number, divergence);
    return &replay->calls[best].answer;
}
