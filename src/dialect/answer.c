/* answer.c - collecting an answer piece by piece. See answer.h. */
#include "dialect/answer.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/mem.h"
#include "json/json.h"

void answer_deinit(struct answer_builder *builder)
{
    struct buf *fields[] = {
        &builder->id,          &builder->model,       &builder->text,       &builder->reasoning,
        &builder->refusal,     &builder->finish_text, &builder->prompt_ids, &builder->ids,
        &builder->logprob_ids, &builder->logprobs,    &builder->opaque,     &builder->thought,
        &builder->versions,    &builder->block,       &builder->input,      &builder->stop_word};
    for (size_t i = 0; i < COUNT(fields); i++)
        buf_deinit(fields[i]);
    for (size_t i = 0; i < builder->call_count; i++) {
        buf_deinit(&builder->calls[i].id);
        buf_deinit(&builder->calls[i].name);
        buf_deinit(&builder->calls[i].arguments);
    }
    free(builder->calls);
    *builder = (struct answer_builder){0};
}

void answer_set(struct buf *field, struct str value)
{
    if (field->size == 0)
        buf_str_append(field, value);
}

static void emit(struct answer_builder *builder, const struct trace_delta *delta)
{
    if (builder->on_delta)
        builder->on_delta(builder->context, delta);
}

void answer_add(struct answer_builder *builder, enum trace_delta_kind kind, struct str text)
{
    if (text.size == 0)
        return;
    struct buf *field = kind == TRACE_DELTA_TEXT        ? &builder->text
                        : kind == TRACE_DELTA_REASONING ? &builder->reasoning
                                                        : &builder->refusal;
    buf_str_append(field, text);
    emit(builder, &(struct trace_delta){.kind = kind, .text = text});
}

void answer_keep(struct answer_builder *builder, struct str item)
{
    if (!item.size) /* an event that should have brought one */
        return;
    buf_byte(&builder->opaque, builder->opaque.size ? ',' : '[');
    buf_str_append(&builder->opaque, item);
}

void answer_signature(struct answer_builder *builder, struct str signature)
{
    OWN(buf) struct buf item = {0};
    struct json_writer json = {.out = &item};
    json_begin_object(&json);
    json_set_text(&json, "type", "thinking");
    json_set_str(&json, "thinking", buf_str(&builder->thought));
    json_set_str(&json, "signature", signature);
    json_end_object(&json);
    answer_keep(builder, buf_str(&item));
}

static struct answer_call *find_call(struct answer_builder *builder, int64_t index, struct str id,
                                     struct str name)
{
    for (size_t i = builder->call_count; i-- > 0;) {
        struct answer_call *call = &builder->calls[i];
        bool other = id.size && call->id.size && !str_equal(id, buf_str(&call->id));
        if (index >= 0) {
            if (call->upstream_index == index)
                return other && name.size ? NULL : call;
        } else if (!other) {
            return call; /* pieces without an index continue the last call, or the one they name */
        }
    }
    return NULL;
}

struct answer_call *answer_call(struct answer_builder *builder, int64_t index, struct str id,
                                struct str name)
{
    struct answer_call *call = find_call(builder, index, id, name);
    if (call)
        return call;
    if (builder->call_count >= ANSWER_CALLS_MAX)
        return NULL;
    builder->calls = mem_grow(builder->calls, (builder->call_count + 1) * sizeof *builder->calls);
    call = &builder->calls[builder->call_count++];
    *call = (struct answer_call){.upstream_index = index};
    return call;
}

/* The text of a custom tool's call as its canonical arguments. */
static void wrap_custom(struct answer_call *call)
{
    struct buf wrapped = {0};
    buf_format(&wrapped, "{\"input\":");
    json_quote(&wrapped, buf_str(&call->arguments));
    buf_byte(&wrapped, '}');
    buf_deinit(&call->arguments);
    call->arguments = wrapped;
}

/* Agents match results to calls by id, so a call has one, unless its dialect needs none: what is
 * made up here is not what the agent's next request says. */
static void announce(struct answer_builder *builder, struct answer_call *call)
{
    uint32_t index = (uint32_t)(call - builder->calls);
    if (call->id.size == 0 && !call->unnamed)
        buf_format(&call->id, "call_%.*s_%u", STR_ARGS(buf_str(&builder->id)), index);
    call->announced = true;
    if (call->custom)
        wrap_custom(call);
    emit(builder, &(struct trace_delta){.kind = TRACE_DELTA_CALL,
                                        .index = index,
                                        .id = buf_str(&call->id),
                                        .name = buf_str(&call->name)});
    if (call->arguments.size)
        emit(builder, &(struct trace_delta){.kind = TRACE_DELTA_ARGUMENTS,
                                            .index = index,
                                            .text = buf_str(&call->arguments)});
}

void answer_call_add(struct answer_builder *builder, struct answer_call *call, struct str id,
                     struct str name, struct str arguments)
{
    if (!call->announced) {
        answer_set(&call->id, id);
        answer_set(&call->name, name);
        buf_str_append(&call->arguments, arguments);
        if (call->name.size && !call->custom)
            announce(builder, call);
        return;
    }
    if (arguments.size == 0)
        return;
    buf_str_append(&call->arguments, arguments);
    emit(builder, &(struct trace_delta){.kind = TRACE_DELTA_ARGUMENTS,
                                        .index = (uint32_t)(call - builder->calls),
                                        .text = arguments});
}

void answer_finish(struct answer_builder *builder, enum trace_finish finish, struct str text)
{
    for (size_t i = 0; i < builder->call_count; i++)
        if (!builder->calls[i].announced)
            announce(builder, &builder->calls[i]);
    builder->finish = finish;
    answer_set(&builder->finish_text, text);
}

static struct str keep(const struct buf *field, struct arena *arena)
{
    return field->size ? arena_str(arena, buf_str(field)) : STR_NONE;
}

static const void *keep_array(const struct buf *field, struct arena *arena)
{
    void *copy = arena_alloc(arena, field->size ? field->size : 1);
    if (copy && field->size)
        memcpy(copy, field->data, field->size);
    return copy;
}

static void build_parts(const struct answer_builder *builder, struct arena *arena,
                        struct trace_message *message)
{
    struct trace_part *parts = arena_alloc(arena, 2 * sizeof *parts);
    if (!parts)
        return;
    size_t count = 0;
    bool bare = builder->call_count == 0 && builder->refusal.size == 0;
    if (builder->text.size ||
        bare) /* an answer of nothing is an empty text, however it was spelled */
        parts[count++] = (struct trace_part){.kind = TRACE_PART_TEXT,
                                             .text = arena_str(arena, buf_str(&builder->text))};
    if (builder->refusal.size)
        parts[count++] =
            (struct trace_part){.kind = TRACE_PART_REFUSAL, .text = keep(&builder->refusal, arena)};
    message->parts = parts;
    message->part_count = count;
}

static void build_calls(const struct answer_builder *builder, struct arena *arena,
                        struct trace_message *message)
{
    struct trace_tool_call *calls = arena_alloc(arena, builder->call_count * sizeof *calls);
    if (!calls)
        return;
    for (size_t i = 0; i < builder->call_count; i++)
        calls[i] = (struct trace_tool_call){
            .id = arena_str(arena, buf_str(&builder->calls[i].id)),
            .name = arena_str(arena, buf_str(&builder->calls[i].name)),
            .arguments = arena_str(arena, buf_str(&builder->calls[i].arguments)),
        };
    message->calls = calls;
    message->call_count = builder->call_count;
}

void answer_build(const struct answer_builder *builder, struct arena *arena,
                  struct trace_answer *out)
{
    *out = (struct trace_answer){
        .id = keep(&builder->id, arena),
        .model = keep(&builder->model, arena),
        .created_s = builder->created_s,
        .message = {.role = TRACE_ASSISTANT, .reasoning = keep(&builder->reasoning, arena)},
        .finish = builder->finish,
        .finish_text = keep(&builder->finish_text, arena),
        .stop_word = keep(&builder->stop_word, arena),
        .usage = builder->usage,
    };
    build_parts(builder, arena, &out->message);
    if (builder->opaque.size) {
        char *items = arena_format(arena, "%.*s]", STR_ARGS(buf_str(&builder->opaque)));
        out->message.opaque = str_of(items);
    }
    if (builder->call_count)
        build_calls(builder, arena, &out->message);
    if (builder->has_prompt_ids) {
        out->prompt_ids = keep_array(&builder->prompt_ids, arena);
        out->prompt_id_count = builder->prompt_ids.size / sizeof(int32_t);
    }
    const struct buf *ids = builder->has_ids ? &builder->ids : &builder->logprob_ids;
    if (builder->has_ids || ids->size) {
        out->tokens.ids = keep_array(ids, arena);
        out->tokens.id_count = ids->size / sizeof(int32_t);
    }
    if (builder->has_logprobs) {
        out->tokens.logprobs = keep_array(&builder->logprobs, arena);
        out->tokens.logprob_count = builder->logprobs.size / sizeof(float);
    }
    if (builder->versions.size) {
        out->versions = keep_array(&builder->versions, arena);
        out->version_count = builder->versions.size / sizeof *out->versions;
    }
}
