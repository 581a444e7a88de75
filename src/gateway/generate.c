/* generate.c - tokens in, tokens out: vLLM's generate route, in mode proxy (gateway.engine
 * vllm-generate).
 *
 *     chat request ─► render ─► [before ─►] sample ─► derender ─► chat completion
 *                       │                     │
 *                  prompt ids          completion ids, log-probabilities
 *
 *     render    POST /v1/chat/completions/render    the engine's template: messages to token ids
 *     before    the same for the messages up to the last answer, where exact prefixes are wanted
 *     sample    POST /inference/v1/generate         what is trained on goes in and comes out here
 *     derender  POST /v1/chat/completions/derender  the engine's parsers: token ids to a message
 *
 * Derendering is the call's attempt proper (call_attempt.c), whose answer is read and given to the
 * agent as any chat completion. The steps before it are made here, one after the other; a step that
 * was done is not done again when a later one fails, so that what was sampled stays the answer.
 * Every failure is an attempt that failed: there is no other route to fall back to, because an
 * answer from it would have other tokens, or none.
 *
 * Answers come as a whole: docs/upstreams.md says why. */
#include "gateway/generate.h"

#include <stdlib.h>

#include "base/check.h"
#include "base/mem.h"
#include "gateway/gate.h"
#include "gateway/inner.h"

#define ERROR_BODY_MAX 65536
#define SEED_MAX 64 /* ids of the prompt's end that derendering may look at; vLLM looks at 7 */

enum step { STEP_RENDER, STEP_BEFORE, STEP_SAMPLE, STEP_DERENDER };

struct generate {
    enum step step;
    struct buf rendered;              /* the engine's request for the sampling */
    struct buf answer;                /* of the step under way */
    struct buf body;                  /* its request */
    struct buf prompt, ids, logprobs; /* arrays of 4 bytes each */
    struct buf versions;              /* struct trace_version_span each; empty: not said */
    int64_t cached_tokens;            /* -1: not said */
};

static const char *const routes[] = {
    [STEP_RENDER] = "/chat/completions/render",
    [STEP_BEFORE] = "/chat/completions/render",
    [STEP_SAMPLE] = "/inference/v1/generate",
    [STEP_DERENDER] = "/chat/completions/derender",
};

/* ---------------------------------------------------------------- requests */

/* The messages up to the last answer, as the engine's template ends it. */
static bool write_before(const struct call *call, struct buf *out)
{
    OWN(json_doc) struct json_doc doc = {0};
    OWN(buf) struct buf some = {0};
    struct json_writer json = {.out = &some};
    if (json_read(&doc, buf_str(&call->rewritten), NULL, NULL) < 0)
        return false;
    struct json messages = json_get(json_root(&doc), "messages");
    if (json_size(messages) != call->request.message_count)
        return false; /* they are not one to one */
    size_t at = 0;
    json_begin_array(&json);
    JSON_EACH (item, messages)
        if (at++ < call->prefix.messages)
            json_put_raw(&json, json_raw(item.value));
    json_end_array(&json);
    struct json_edit edits[] = {
        {"messages", buf_str(&some)},
        {"add_generation_prompt", STR("false")},
    };
    json_splice(json_root(&doc), edits, COUNT(edits), out);
    return true;
}

/* What the engine rendered, with log-probabilities asked for, under a name of our own, and with
 * the prompt that is made of known tokens where there is one. */
static bool write_sample(struct call *call, struct buf *out)
{
    struct generate *generate = call->generate;
    OWN(json_doc) struct json_doc doc = {0};
    OWN(buf) struct buf ids = {0}, params = {0}, count = {0}, name = {0};
    if (json_read(&doc, buf_str(&generate->rendered), NULL, NULL) < 0)
        return false;
    struct json root = json_root(&doc), sampling = json_get(root, "sampling_params");
    long long logprobs = json_int_or(json_get(sampling, "logprobs"), 1);
    buf_format(&count, "%lld", logprobs > 1 ? logprobs : 1); /* the agent may want more of them */
    struct json_edit edit = {"logprobs", buf_str(&count)};
    json_splice(sampling, &edit, 1, &params);
    buf_format(&name, "\"%s-%u\"", call->record.id, call->record.attempt + 1);
    struct json_edit edits[6] = {
        {"sampling_params", buf_str(&params)},
        {"request_id", buf_str(&name)},
        {"stream", STR("false")},
    };
    size_t edit_count = 3;
    if (call->prefix.ready) {
        ids_write(buf_str(&generate->prompt), &ids);
        edits[edit_count++] = (struct json_edit){"token_ids", buf_str(&ids)};
        /* Said of each token of the prompt that was rendered, not of this one. */
        edits[edit_count++] = (struct json_edit){"token_offsets", STR_NONE};
        edits[edit_count++] = (struct json_edit){"assistant_tokens_mask", STR_NONE};
    }
    json_splice(root, edits, edit_count, out);
    return true;
}

static void write_derender(struct call *call, struct str sampled, struct buf *out)
{
    const struct generate *generate = call->generate;
    OWN(buf) struct buf seed = {0};
    struct str prompt = buf_str(&generate->prompt);
    size_t count = prompt.size / 4;
    ids_write(str_from(prompt, count > SEED_MAX ? (count - SEED_MAX) * 4 : 0), &seed);
    struct json_writer json = {.out = out};
    json_begin_object(&json);
    json_set_text(&json, "model", call->session->model->name);
    json_set_raw(&json, "generate_response", sampled);
    json_set_int(&json, "prompt_tokens", (long long)count);
    json_set_raw(&json, "prompt_token_ids", buf_str(&seed));
    json_set_raw(&json, "chat_request", buf_str(&call->rewritten));
    json_end_object(&json);
}

/* ---------------------------------------------------------------- answers */

/* The text begins with which route it is about. */
static int nonsense(const struct generate *generate, enum err_kind kind, const char *what,
                    struct err *err)
{
    return err_set(err, kind, "the model server's %s %s", routes[generate->step], what);
}

static int read_rendered(struct call *call, struct json root, struct err *err)
{
    struct generate *generate = call->generate;
    buf_clear(&generate->prompt);
    if (!ids_read(json_get(root, "token_ids"), &generate->prompt))
        return nonsense(generate, ERR_PROTOCOL, "gave no token ids of the prompt", err);
    if (json_type(json_get(root, "sampling_params")) != JSON_OBJECT)
        return nonsense(generate, ERR_PROTOCOL, "gave no sampling_params", err);
    buf_deinit(&generate->rendered);
    generate->rendered = generate->answer;
    generate->answer = (struct buf){0};
    generate->step = STEP_SAMPLE;
    if (!prefix_find(call) || call->prefix.given_up)
        return 0;
    /* Images are told of by their places in the prompt. */
    if (json_size(json_get(root, "features")))
        prefix_give_up(call, "the prompt holds more than text");
    else
        generate->step = STEP_BEFORE;
    return 0;
}

static void read_before(struct call *call, struct json root)
{
    struct generate *generate = call->generate;
    struct prefix *prefix = &call->prefix;
    const char *why = "the engine gave no token ids of the messages up to the last answer";
    generate->step = STEP_SAMPLE;
    buf_clear(&prefix->before);
    buf_clear(&prefix->tokens);
    if (ids_read(json_get(root, "token_ids"), &prefix->before))
        why = prefix_compose(prefix, &generate->prompt);
    if (why) {
        prefix_give_up(call, why);
        return;
    }
    buf_clear(&generate->prompt);
    buf_str_append(&generate->prompt, buf_str(&prefix->tokens));
    prefix->ready = true;
    call->session->prefix_used++;
}

/* One per token; where they end too early the record says so. */
static void read_logprobs(struct json list, struct buf *out)
{
    buf_clear(out);
    JSON_EACH (item, list) {
        double value;
        if (!json_double(json_get(item.value, "logprob"), &value))
            return;
        float narrow = (float)value;
        buf_append(out, &narrow, sizeof narrow);
    }
}

/* Which weights sampled what, where their labels are the numbers that the trainer gives to policies
 * and the spans fit the tokens; else nothing. */
static void read_versions(struct json list, size_t id_count, struct buf *out)
{
    int64_t expected = 0;
    buf_clear(out);
    JSON_EACH (item, list) {
        OWN(arena) struct arena arena = {0};
        long long version, from = json_int_or(json_get(item.value, "start"), -1);
        long long to = json_int_or(json_get(item.value, "end"), -1);
        struct str label = json_str(json_get(item.value, "version"), &arena);
        if (from != expected || to <= from || !str_to_long(label, &version))
            break;
        struct trace_version_span span = {from, to, version};
        buf_append(out, &span, sizeof span);
        expected = to;
    }
    if (expected != (int64_t)id_count)
        buf_clear(out);
}

static int read_sampled(struct call *call, struct json root, struct err *err)
{
    struct generate *generate = call->generate;
    struct json choices = json_get(root, "choices"), choice = json_at(choices, 0);
    struct json finish = json_get(choice, "finish_reason");
    if (json_is(finish, "abort") || json_is(finish, "error"))
        return nonsense(generate, ERR_LOST, "broke the answer off", err);
    buf_clear(&generate->ids);
    if (json_size(choices) != 1 || !ids_read(json_get(choice, "token_ids"), &generate->ids))
        return nonsense(generate, ERR_PROTOCOL, "gave no token ids of an answer", err);
    read_logprobs(json_get(json_get(choice, "logprobs"), "content"), &generate->logprobs);
    read_versions(json_get(choice, "weight_versions"), generate->ids.size / 4, &generate->versions);
    struct json details = json_get(json_get(root, "usage"), "prompt_tokens_details");
    generate->cached_tokens = json_int_or(json_get(details, "cached_tokens"), -1);
    buf_clear(&generate->body);
    write_derender(call, buf_str(&generate->answer), &generate->body);
    buf_deinit(&generate->answer);
    buf_deinit(&generate->rendered);
    generate->step = STEP_DERENDER;
    return 0;
}

static int read_answer(struct call *call, struct err *err)
{
    struct generate *generate = call->generate;
    OWN(json_doc) struct json_doc doc = {0};
    if (json_read(&doc, buf_str(&generate->answer), NULL, NULL) < 0)
        return nonsense(generate, ERR_PROTOCOL, "gave an answer that is no JSON", err);
    struct json root = json_root(&doc);
    switch (generate->step) {
    case STEP_RENDER:
        return read_rendered(call, root, err);
    case STEP_BEFORE:
        read_before(call, root);
        break;
    case STEP_SAMPLE:
        return read_sampled(call, root, err);
    case STEP_DERENDER:
        break; /* read as any answer */
    }
    return 0;
}

/* ---------------------------------------------------------------- steps */

/* An attempt that came no further. */
static void failed(struct call *call, const struct err *err)
{
    call->tries++;
    call->record.attempt++;
    if (err)
        call_attempt_failed(call, err);
    else
        call_refused(call);
}

static void on_head(void *context, const struct upstream_head *head)
{
    struct call *call = context;
    call->head = *head;
    call->retry_after_ms = head->retry_after_ms;
}

static void on_data(void *context, struct str data)
{
    struct call *call = context;
    struct generate *generate = call->generate;
    if (call->head.status / 100 != 2) {
        size_t room = ERROR_BODY_MAX - call->error_body.size;
        buf_str_append(&call->error_body, str_upto(data, room));
        return;
    }
    if (generate->answer.size + data.size <= call->session->limits.answer_bytes_max) {
        buf_str_append(&generate->answer, data);
        return;
    }
    struct err err = {0};
    err_set(&err, ERR_LIMIT, "the answer of the model server's %s is larger than %zu bytes",
            routes[generate->step], call->session->limits.answer_bytes_max);
    failed(call, &err);
}

/* What is rendered for the sake of a prefix alone may be refused: the call goes on without one. */
static bool does_without(struct call *call)
{
    int status = call->head.status;
    if (call->generate->step != STEP_BEFORE || status < 400 || status >= 500 || status == 408 ||
        status == 425 || status == 429)
        return false;
    prefix_give_up(call, "the engine does not render the messages up to the last answer");
    call->generate->step = STEP_SAMPLE;
    return true;
}

static void on_done(void *context, const struct err *err, bool script_error)
{
    struct call *call = context;
    struct err trouble = *err;
    (void)script_error;
    if (trouble.kind == ERR_NONE && call->head.status / 100 != 2 && !does_without(call)) {
        failed(call, NULL);
        return;
    }
    if (trouble.kind == ERR_NONE && call->head.status / 100 == 2)
        (void)read_answer(call, &trouble);
    if (trouble.kind != ERR_NONE) {
        failed(call, &trouble);
        return;
    }
    upstream_close(TAKE(call->upstream));
    call_attempt(call);
}

static bool write_step(struct call *call)
{
    struct generate *generate = call->generate;
    buf_clear(&generate->body);
    switch (generate->step) {
    case STEP_RENDER:
        buf_str_append(&generate->body, buf_str(&call->rewritten));
        return true;
    case STEP_BEFORE:
        if (write_before(call, &generate->body))
            return true;
        prefix_give_up(call, "its messages are not those of the request to the engine");
        generate->step = STEP_SAMPLE;
        return write_step(call);
    case STEP_SAMPLE:
        return write_sample(call, &generate->body);
    case STEP_DERENDER:
        break;
    }
    return false;
}

bool generate_prepare(struct call *call)
{
    static const struct upstream_handlers handlers = {on_head, on_data, on_done};
    struct gateway_session *session = call->session;
    if (!generate_wanted(session))
        return false;
    if (!call->generate) {
        call->generate = mem_zero(sizeof *call->generate);
        call->generate->cached_tokens = -1;
    }
    struct generate *generate = call->generate;
    if (generate->step == STEP_DERENDER)
        return false;
    CHECK(write_step(call));
    buf_clear(&generate->answer);
    buf_clear(&call->error_body);
    call->head = (struct upstream_head){0};
    call->retry_after_ms = -1;
    call->upstream_message = call->upstream_code = STR_NONE;
    call->state = CALL_UPSTREAM;
    struct gate *gate = session->gateway->gate;
    if (gate && generate->step == STEP_SAMPLE) {
        call->record.has_policy = true;
        call->record.policy_version = gate_policy(gate);
    }
    struct upstream_request request = {
        .dialect = call->api,
        .request = &call->request,
        .path = routes[generate->step],
        .outside = generate->step == STEP_SAMPLE,
        .body = buf_str(&generate->body),
        .place = &session->place,
        .retry = call->tries > 0,
        .rollout_id = session->rollout_id,
    };
    call->upstream = upstream_start(session->gateway, session->model, &request, &handlers, call);
    return true;
}

/* ---------------------------------------------------------------- the answer */

bool generate_wanted(const struct gateway_session *session)
{
    return session->mode == GATEWAY_PROXY && session->model->base_url &&
           session->model->engine == DIALECT_ENGINE_VLLM_GENERATE;
}

void generate_request(struct call *call, struct upstream_request *request)
{
    request->path = routes[STEP_DERENDER];
    request->body = buf_str(&call->generate->body);
    request->gap = (struct json_gap){0};
    request->header_count = 0; /* the agent may have said that it accepts a stream only */
}

void generate_finish(struct call *call)
{
    const struct generate *generate = call->generate;
    struct trace_answer *answer = &call->answer;
    answer->prompt_ids = (const int32_t *)(const void *)generate->prompt.data;
    answer->prompt_id_count = generate->prompt.size / 4;
    answer->tokens = (struct trace_tokens){
        .ids = (const int32_t *)(const void *)generate->ids.data,
        .id_count = generate->ids.size / 4,
        .logprobs = (const float *)(const void *)generate->logprobs.data,
        .logprob_count = generate->logprobs.size / 4,
    };
    answer->usage = (struct trace_usage){
        .known = true,
        .prompt_tokens = (int64_t)answer->prompt_id_count,
        .completion_tokens = (int64_t)answer->tokens.id_count,
        .cached_tokens = generate->cached_tokens,
        .reasoning_tokens = answer->usage.known ? answer->usage.reasoning_tokens : -1,
    };
    if (generate->versions.size) {
        answer->versions = (const struct trace_version_span *)(const void *)generate->versions.data;
        answer->version_count = generate->versions.size / sizeof *answer->versions;
    }
    /* vLLM hands the finish reason of the sampling on, whatever was found in the tokens. */
    if (answer->finish == TRACE_FINISH_STOP && answer->message.call_count)
        call->anew = true;
}

const char *generate_route(const struct call *call)
{
    return call->generate ? routes[call->generate->step] : NULL;
}

bool generate_at_fault(const struct call *call, int status)
{
    if (!call->generate)
        return false;
    return call->generate->step == STEP_DERENDER || (status != 400 && status != 413);
}

void generate_free(struct generate *generate)
{
    if (!generate)
        return;
    buf_deinit(&generate->rendered);
    buf_deinit(&generate->answer);
    buf_deinit(&generate->body);
    buf_deinit(&generate->prompt);
    buf_deinit(&generate->ids);
    buf_deinit(&generate->logprobs);
    buf_deinit(&generate->versions);
    free(generate);
}
