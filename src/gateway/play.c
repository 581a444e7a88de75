/* play.c - an answer from a script, played as if a model server had sent it.
 *
 * The whole answer is made at once, cut into chunks, and handed out with the delays the script asks
 * for, through the same callbacks as a real attempt: so retries, back-pressure, resets and the
 * withheld end are the same code. Token ids, when asked for, come from a toy tokenizer: four bytes
 * a token, one token for each role and one for each end, so that the prompt of a turn begins with
 * the prompt and the completion of the turn before when the agent repeats its history faithfully.
 * Same input, same tokens, everywhere. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "gateway/inner.h"

#define ARENA_BYTES_MAX ((size_t)512 << 20)
#define TOKEN_BYTES 4
#define TOKEN_FIRST 100
#define TOKEN_COUNT 32000

struct play {
    struct loop *loop;
    struct upstream_handlers handlers;
    void *context;
    struct arena arena;
    struct trace_answer answer;
    struct upstream_head head;
    struct buf bytes;
    size_t *ends; /* of the chunks, in `bytes` */
    size_t chunk_count, chunk_capacity, at;
    uint32_t chunk_delay_ms;
    struct err err;
    bool hang, script_error, has_head, head_given, paused, closed;
    struct loop_timer timer;
};

/* ---------------------------------------------------------------- tokens */

struct tokens {
    int32_t *ids;    /* NULL: only count */
    float *logprobs; /* may be NULL */
    size_t count;
};

static void token(struct tokens *tokens, int32_t id, uint64_t hash)
{
    if (tokens->ids)
        tokens->ids[tokens->count] = id;
    if (tokens->logprobs)
        tokens->logprobs[tokens->count] = (float)((hash >> 20) % 2000) / -1000.0f;
    tokens->count++;
}

static void text_tokens(struct tokens *tokens, struct str text)
{
    for (size_t at = 0; at < text.size; at += TOKEN_BYTES) {
        uint64_t hash = 0xcbf29ce484222325u; /* FNV-1a */
        for (size_t i = at; i < at + TOKEN_BYTES && i < text.size; i++)
            hash = (hash ^ (unsigned char)text.data[i]) * 0x100000001b3u;
        token(tokens, TOKEN_FIRST + (int32_t)((hash >> 7) % TOKEN_COUNT), hash);
    }
}

static void message_tokens(struct tokens *tokens, const struct trace_message *message)
{
    text_tokens(tokens, message->reasoning);
    for (size_t i = 0; i < message->part_count; i++)
        text_tokens(tokens, message->parts[i].text);
    for (size_t i = 0; i < message->call_count; i++) {
        text_tokens(tokens, message->calls[i].name);
        text_tokens(tokens, message->calls[i].arguments);
    }
    token(tokens, 0, 0);
}

static void prompt_tokens(struct tokens *tokens, const struct trace_request *request)
{
    for (size_t i = 0; i < request->message_count; i++) {
        token(tokens, 1 + (int32_t)request->messages[i].role, 0);
        message_tokens(tokens, &request->messages[i]);
    }
    token(tokens, 1 + TRACE_ASSISTANT, 0);
}

static void make_tokens(struct play *play, const struct trace_request *request,
                        const struct script_answer *script)
{
    struct trace_answer *answer = &play->answer;
    struct tokens prompt = {0}, completion = {0};
    prompt_tokens(&prompt, request);
    message_tokens(&completion, &answer->message);
    answer->usage = (struct trace_usage){
        .known = true,
        .prompt_tokens = script->prompt_tokens >= 0 ? script->prompt_tokens : (int64_t)prompt.count,
        .completion_tokens =
            script->completion_tokens >= 0 ? script->completion_tokens : (int64_t)completion.count,
        .cached_tokens = -1,
        .reasoning_tokens = -1,
    };
    if (script->tokens == SCRIPT_TOKENS_GIVEN) {
        answer->prompt_ids = script->prompt_ids;
        answer->prompt_id_count = script->prompt_id_count;
        answer->tokens = (struct trace_tokens){script->token_ids, script->token_id_count,
                                               script->logprobs, script->logprob_count};
    } else if (script->tokens == SCRIPT_TOKENS_GENERATED) {
        size_t prompt_count = prompt.count, count = completion.count;
        prompt = (struct tokens){.ids = arena_alloc(&play->arena, prompt_count * 4)};
        completion = (struct tokens){.ids = arena_alloc(&play->arena, count * 4),
                                     .logprobs = arena_alloc(&play->arena, count * 4)};
        if (!prompt.ids || !completion.ids || !completion.logprobs)
            return;
        prompt_tokens(&prompt, request);
        message_tokens(&completion, &answer->message);
        answer->prompt_ids = prompt.ids;
        answer->prompt_id_count = prompt_count;
        answer->tokens = (struct trace_tokens){completion.ids, count, completion.logprobs, count};
    }
}

/* ---------------------------------------------------------------- making the answer */

/* What is in `bytes` and in no chunk yet becomes one. */
static void chunk_end(struct play *play)
{
    if (play->chunk_count == play->chunk_capacity) {
        play->chunk_capacity = play->chunk_capacity * 2 + 16;
        play->ends = mem_grow(play->ends, play->chunk_capacity * sizeof *play->ends);
    }
    play->ends[play->chunk_count++] = play->bytes.size;
}

static void make_message(struct play *play, const struct upstream_request *request,
                         const struct script_answer *script)
{
    struct trace_message *message = &play->answer.message;
    message->role = TRACE_ASSISTANT;
    message->reasoning = script->reasoning;
    if (script->text.data) {
        struct trace_part *part = arena_alloc(&play->arena, sizeof *part);
        *part = (struct trace_part){.kind = TRACE_PART_TEXT, .text = script->text};
        message->parts = part;
        message->part_count = 1;
    }
    struct trace_tool_call *calls =
        arena_alloc(&play->arena, (script->call_count + 1) * sizeof *calls);
    for (size_t i = 0; i < script->call_count; i++) {
        const struct script_call *call = &script->calls[i];
        calls[i] = (struct trace_tool_call){
            .id = call->id, .name = call->name, .arguments = call->arguments};
        if (!call->id.data)
            calls[i].id = str_of(
                arena_format(&play->arena, "call_%u_%u_%zu", request->index, request->number, i));
    }
    message->calls = calls;
    message->call_count = script->call_count;
    play->answer.finish = script->finish;
    if (script->finish == TRACE_FINISH_NONE)
        play->answer.finish = script->call_count ? TRACE_FINISH_TOOL_CALLS : TRACE_FINISH_STOP;
    const char *word = trace_finish_name(play->answer.finish);
    play->answer.finish_text = str_of(word);
}

static void stream_text(struct play *play, struct dialect_writer *writer, struct trace_delta delta,
                        struct str text, size_t piece)
{
    while (text.size) {
        size_t size = text.size < piece ? text.size : piece;
        while (size < text.size && ((unsigned char)text.data[size] & 0xc0) == 0x80)
            size++; /* never inside a character */
        delta.text = str_upto(text, size);
        dialect_writer_delta(writer, &delta, &play->bytes);
        chunk_end(play);
        text = str_from(text, size);
    }
}

static void make_stream(struct play *play, const struct upstream_request *request,
                        const struct script_answer *script)
{
    const struct trace_answer *answer = &play->answer;
    size_t piece = script->chunk_bytes;
    OWN(dialect_writer) struct dialect_writer writer = {0};
    dialect_writer_init(&writer, request->dialect, request->request, answer->id, answer->model,
                        answer->created_s);
    stream_text(play, &writer, (struct trace_delta){.kind = TRACE_DELTA_REASONING},
                script->reasoning, piece);
    stream_text(play, &writer, (struct trace_delta){.kind = TRACE_DELTA_TEXT}, script->text, piece);
    for (size_t i = 0; i < answer->message.call_count; i++) {
        const struct trace_tool_call *call = &answer->message.calls[i];
        struct trace_delta delta = {
            .kind = TRACE_DELTA_CALL, .index = (uint32_t)i, .id = call->id, .name = call->name};
        dialect_writer_delta(&writer, &delta, &play->bytes);
        chunk_end(play);
        delta = (struct trace_delta){.kind = TRACE_DELTA_ARGUMENTS, .index = (uint32_t)i};
        stream_text(play, &writer, delta, call->arguments, piece);
    }
    dialect_writer_finish(&writer, answer->finish, &answer->usage, &play->bytes);
    chunk_end(play);
}

/* Everything after the reset goes; a body that is not a stream loses its second half. */
static void make_reset(struct play *play, const struct script_answer *script)
{
    size_t keep = (size_t)script->reset_after;
    if (!play->head.stream && play->chunk_count) {
        play->ends[0] /= 2;
        keep = keep ? 1 : 0;
    }
    if (play->chunk_count > keep)
        play->chunk_count = keep;
    err_set(&play->err, ERR_LOST, "the script breaks the answer off after %zu chunks", keep);
}

static void make_answer(struct play *play, const struct upstream_request *request,
                        const struct script_answer *script, const char *model)
{
    play->chunk_delay_ms = script->chunk_delay_ms;
    play->hang = script->hang;
    play->has_head = true;
    play->head = (struct upstream_head){.status = 200, .retry_after_ms = -1};
    if (script->status) {
        play->head.status = script->status;
        play->head.retry_after_ms = script->retry_after_ms;
        play->head.show = script->error_show;
        OWN(mem) char *code = script->error_code.data ? str_dup(script->error_code) : NULL;
        dialect_write_error(request->dialect, script->status, code, script->error_message,
                            &play->bytes);
        chunk_end(play);
        return;
    }
    make_message(play, request, script);
    play->answer.id =
        str_of(arena_format(&play->arena, "script-%u-%u", request->index, request->number));
    play->answer.model = str_of(model);
    play->answer.created_s = (int64_t)(clock_wall_ms() / 1000);
    make_tokens(play, request->request, script);
    play->head.stream = request->request->stream;
    if (play->head.stream) {
        make_stream(play, request, script);
    } else {
        dialect_write_answer(request->dialect, request->request, &play->answer, &play->bytes);
        chunk_end(play);
    }
    if (script->hang) {
        play->chunk_count = 0;
        play->has_head = false;
    } else if (script->reset_after >= 0) {
        make_reset(play, script);
    }
}

/* ---------------------------------------------------------------- playing it */

static void on_due(struct loop_timer *timer)
{
    struct play *play = timer->context;
    if (play->has_head && !play->head_given) {
        play->head_given = true;
        play->handlers.on_head(play->context, &play->head);
    }
    while (!play->closed && !play->paused && play->at < play->chunk_count) {
        size_t start = play->at ? play->ends[play->at - 1] : 0;
        size_t end = play->ends[play->at++];
        play->handlers.on_data(play->context, str_make(play->bytes.data + start, end - start));
        if (!play->closed && play->chunk_delay_ms && play->at < play->chunk_count) {
            loop_timer_start(play->loop, &play->timer, play->chunk_delay_ms, on_due, play);
            return;
        }
    }
    if (play->closed || play->paused || play->hang)
        return;
    play->handlers.on_done(play->context, &play->err, play->script_error);
}

struct play *play_start(struct loop *loop, const struct script *script,
                        const struct upstream_request *request,
                        const struct upstream_handlers *handlers, void *context)
{
    struct play *play = mem_zero(sizeof *play);
    play->loop = loop;
    play->handlers = *handlers;
    play->context = context;
    play->arena.bytes_max = ARENA_BYTES_MAX;
    struct script_scene scene;
    script_scene_read(&scene, request, &play->arena);
    const struct script_answer *answer = script_find(script, &scene, request->uses, &play->err);
    if (answer)
        make_answer(play, request, answer, script_name(script));
    else
        play->script_error = true;
    loop_timer_start(loop, &play->timer, answer ? answer->first_delay_ms : 0, on_due, play);
    return play;
}

struct play *play_replay(struct loop *loop, const struct replay *replay,
                         const struct upstream_request *request,
                         const struct upstream_handlers *handlers, void *context)
{
    struct play *play = mem_zero(sizeof *play);
    play->loop = loop;
    play->handlers = *handlers;
    play->context = context;
    const struct trace_answer *answer =
        replay_find(replay, request, request->divergence, &play->err);
    play->script_error = !answer;
    if (answer) {
        play->answer = *answer;
        play->has_head = true;
        play->head = (struct upstream_head){
            .status = 200, .retry_after_ms = -1, .stream = request->request->stream};
    }
    if (answer && play->head.stream) {
        OWN(dialect_writer) struct dialect_writer writer = {0};
        dialect_writer_init(&writer, request->dialect, request->request, answer->id, answer->model,
                            (int64_t)(clock_wall_ms() / 1000));
        dialect_writer_answer(&writer, answer, 0, &play->bytes);
        dialect_writer_finish(&writer, answer->finish, &answer->usage, &play->bytes);
        chunk_end(play);
    } else if (answer) {
        dialect_write_answer(request->dialect, request->request, answer, &play->bytes);
        chunk_end(play);
    }
    loop_timer_start(loop, &play->timer, 0, on_due, play);
    return play;
}

void play_pause(struct play *play)
{
    play->paused = true;
}

void play_resume(struct play *play)
{
    if (!play->paused)
        return;
    play->paused = false;
    loop_timer_start(play->loop, &play->timer, 0, on_due, play);
}

static void play_free(void *argument)
{
    struct play *play = argument;
    arena_deinit(&play->arena);
    buf_deinit(&play->bytes);
    free(play->ends);
    free(play);
}

void play_close(struct play *play)
{
    if (play->closed)
        return;
    play->closed = true;
    loop_timer_stop(&play->timer);
    loop_defer(play->loop, play_free, play);
}

const struct trace_answer *play_tokens(const struct play *play)
{
    return play->script_error ? NULL : &play->answer;
}
