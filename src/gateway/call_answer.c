/* call_answer.c - an answer that was read, as the agent gets it and as it is recorded: its tokens
 * counted, and written anew where the agent wants another form or speaks another dialect. */
#include "base/clock.h"
#include "base/mem.h"
#include "gateway/inner.h"

/* ---------------------------------------------------------------- tokens */

/* What a script knows without the agent having asked for it. */
void call_copy_tokens(struct call *call, const struct trace_answer *from)
{
    struct trace_answer *to = &call->answer;
    if (from && !to->usage.known)
        to->usage = from->usage;
    if (!from || call->session->mode != GATEWAY_PROXY || to->tokens.id_count)
        return;
    struct str prompt = str_make(from->prompt_ids, from->prompt_id_count * 4);
    struct str ids = str_make(from->tokens.ids, from->tokens.id_count * 4);
    struct str logprobs = str_make(from->tokens.logprobs, from->tokens.logprob_count * 4);
    to->prompt_ids = (const int32_t *)(const void *)arena_str(&call->arena, prompt).data;
    to->prompt_id_count = from->prompt_id_count;
    to->tokens.ids = (const int32_t *)(const void *)arena_str(&call->arena, ids).data;
    to->tokens.id_count = from->tokens.id_count;
    to->tokens.logprobs = (const float *)(const void *)arena_str(&call->arena, logprobs).data;
    to->tokens.logprob_count = from->tokens.logprob_count;
}

/* Counts and log-probabilities agree, or the record says why not. */
void call_note_tokens(struct call *call)
{
    struct trace_answer *answer = &call->answer;
    const struct trace_tokens *tokens = &answer->tokens;
    if (call->session->mode == GATEWAY_BLACK_BOX)
        return;
    if (!answer->usage.known && answer->prompt_id_count && tokens->id_count)
        answer->usage = (struct trace_usage){.known = true,
                                             .prompt_tokens = (int64_t)answer->prompt_id_count,
                                             .completion_tokens = (int64_t)tokens->id_count,
                                             .cached_tokens = -1,
                                             .reasoning_tokens = -1};
    if (!tokens->id_count)
        answer->tokens_note = STR("no token ids came with the answer");
    else if (!tokens->logprob_count)
        answer->tokens_note = STR("no log-probabilities came with the answer");
    else if (tokens->id_count != tokens->logprob_count)
        answer->tokens_note = str_of(arena_format(
            &call->arena, "%zu token ids and %zu log-probabilities came with the answer",
            tokens->id_count, tokens->logprob_count));
    else if (!answer->prompt_id_count)
        answer->tokens_note = STR("no token ids of the prompt came with the answer");
}

/* ---------------------------------------------------------------- written anew */

void call_stop_writing(struct call *call)
{
    if (call->writing)
        dialect_writer_deinit(&call->writer);
    call->writing = false;
}

/* A stream in one dialect becomes a stream in the other, piece by piece. */
void call_begin_writing(struct call *call)
{
    call_stop_writing(call);
    dialect_writer_init(&call->writer, call->dialect, &call->request, str_of(call->record.id),
                        call->request.model, (int64_t)(clock_wall_ms() / 1000));
    call->writing = true;
}

/* Made anew, in one piece. */
void call_stream_answer(struct call *call, struct buf *out)
{
    OWN(dialect_writer) struct dialect_writer writer = {0};
    struct str id = call->answer.id.size ? call->answer.id : str_of(call->record.id);
    dialect_writer_init(&writer, call->dialect, &call->request, id, call->answer.model,
                        (int64_t)(clock_wall_ms() / 1000));
    dialect_writer_answer(&writer, &call->answer, 0, out);
    dialect_writer_finish(&writer, call->answer.finish, &call->answer.usage, out);
}

/* About how long it will be. */
static size_t answer_size(const struct trace_answer *answer)
{
    const struct trace_message *message = &answer->message;
    size_t size = 768 + message->reasoning.size;
    for (size_t i = 0; i < message->part_count; i++)
        size += message->parts[i].text.size + 64;
    for (size_t i = 0; i < message->call_count; i++)
        size += message->calls[i].arguments.size + 192;
    return size;
}

/* The upstream gave the answer in the form or the dialect the agent did not ask for. */
void call_convert(struct call *call)
{
    buf_clear(&call->held);
    /* Some engines say "stop" after tool calls; agents of other dialects would not run them. */
    if (call->anew && call->answer.finish == TRACE_FINISH_STOP && call->answer.message.call_count)
        call->answer.finish = TRACE_FINISH_TOOL_CALLS;
    if (!call->answer.id.size)
        call->answer.id = str_of(call->record.id);
    if (!call->answer.created_s)
        call->answer.created_s = (int64_t)(clock_wall_ms() / 1000);
    if (call->writing) {
        call->writer.stop_word = call->answer.stop_word;
        call->writer.finish_text = call->answer.finish_text;
        dialect_writer_finish(&call->writer, call->answer.finish, &call->answer.usage, &call->held);
        return;
    }
    (void)buf_reserve(&call->held, answer_size(&call->answer));
    if (!call->request.stream) {
        dialect_write_answer(call->dialect, &call->request, &call->answer, &call->held);
        return;
    }
    call_stream_answer(call, &call->held);
}
