/* hold_object.c - a held call as the trainer sees it: the canonical object of design.md, section 5.
 *
 * Between holding and taking, a call costs its body and little more: the body is shared with the
 * lane, and is read and put into chat completions' form only when somebody takes the call, on the
 * gate's loop. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "gateway/inner.h"

#define DEPTH_MAX 64
#define NODES_MAX (4u << 20)
#define ARENA_BYTES_MAX ((size_t)512 << 20)

struct object {
    struct body *body;
    const struct dialect *dialect;
    char *model; /* the path may name it */
    bool stream;
    struct hold_view view;
    char *sampling; /* of the view, our own */
    /* What the prompt begins with, token by token; no ids: nothing. */
    char prefix_call_id[ID_MAX];
    struct buf prefix_ids;
    size_t prefix_messages;
};

void *hold_object_new(struct body *body, const struct dialect *dialect,
                      const struct trace_request *request, const struct hold_view *view,
                      const struct prefix *prefix)
{
    struct object *object = mem_zero(sizeof *object);
    object->body = body_ref(body);
    object->dialect = dialect;
    object->model = str_dup(request->model);
    object->stream = request->stream;
    object->view = *view;
    if (view->known)
        object->sampling = str_dup(view->sampling);
    if (prefix) {
        memcpy(object->prefix_call_id, prefix->call_id, sizeof object->prefix_call_id);
        buf_str_append(&object->prefix_ids, buf_str(&prefix->ids));
        object->prefix_messages = prefix->messages;
    }
    return object;
}

void hold_object_free(void *payload)
{
    struct object *object = payload;
    body_unref(object->body);
    free(object->model);
    free(object->sampling);
    buf_deinit(&object->prefix_ids);
    free(object);
}

/* ---------------------------------------------------------------- writing */

/* `developer` is a word of one vendor; every chat template knows `system`. */
static void write_messages(struct json messages, struct json_writer *out)
{
    static const struct json_edit system_role = {"role", {"\"system\"", 8}};
    json_key(out, "messages");
    json_begin_array(out);
    JSON_EACH (item, messages) {
        if (!json_is(json_get(item.value, "role"), "developer")) {
            json_put_raw(out, json_raw(item.value));
            continue;
        }
        OWN(buf) struct buf edited = {0};
        json_splice(item.value, &system_role, 1, &edited);
        json_put_raw(out, buf_str(&edited));
    }
    json_end_array(out);
}

/* null is how some clients say nothing. */
static bool is_there(struct json value)
{
    return json_exists(value) && json_type(value) != JSON_NULL;
}

static void write_sampling(struct json chat, struct json_writer *out)
{
    static const char *const names[] = {
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "seed",
        "stop",
        "presence_penalty",
        "logit_bias",
        "frequency_penalty",
        "response_format",
        "tool_choice",
        "repetition_penalty",
        "reasoning_effort",
        "logprobs",
        "parallel_tool_calls",
        "verbosity",
    };
    json_begin_object(out);
    for (size_t i = 0; i < COUNT(names); i++) {
        struct json value = json_get(chat, names[i]);
        if (is_there(value))
            json_set_raw(out, names[i], json_raw(value));
    }
    struct json max = json_get(chat, "max_completion_tokens");
    if (!is_there(max))
        max = json_get(chat, "max_tokens");
    if (is_there(max))
        json_set_raw(out, "max_tokens", json_raw(max));
    json_end_object(out);
}

static void write_chat(struct json chat, struct json_writer *out)
{
    write_messages(json_get(chat, "messages"), out);
    struct json tools = json_get(chat, "tools");
    json_set_raw(out, "tools", json_type(tools) == JSON_ARRAY ? json_raw(tools) : STR("[]"));
    json_key(out, "sampling");
    write_sampling(chat, out);
}

/* What the lane knows anyway, having read the body: where the trainer's members are in it. Only for
 * chat completions, and only when they can be handed on as they are. */
void hold_view_read(struct hold_view *view, const struct dialect *dialect, struct json body,
                    const struct json_item *rest, struct arena *arena)
{
    *view = (struct hold_view){0};
    struct json messages = json_get(body, "messages"), tools = json_get(body, "tools");
    struct json prompt = json_get(body, "prompt_token_ids");
    if (dialect != &dialect_chat || json_type(messages) != JSON_ARRAY)
        return;
    struct json_item item = rest ? *rest : json_first(messages);
    for (; json_exists(item.value); item = json_following(item))
        if (json_is(json_get(item.value, "role"), "developer"))
            return;
    OWN(buf) struct buf sampling = {0};
    struct json_writer out = {.out = &sampling};
    (void)buf_reserve(&sampling, 256);
    write_sampling(body, &out);
    view->sampling = arena_str(arena, buf_str(&sampling));
    view->messages = json_raw(messages);
    view->tools = json_type(tools) == JSON_ARRAY ? json_raw(tools) : STR("[]");
    if (json_type(prompt) == JSON_ARRAY)
        view->prompt = json_raw(prompt);
    view->known = true;
}

/* The tokens the prompt begins with, and from which message on it is for the trainer to render. */
static void write_prefix(const struct object *object, struct json_writer *out)
{
    if (!object->prefix_ids.size)
        return;
    json_set_text(out, "prefix_call_id", object->prefix_call_id);
    json_set_int(out, "new_messages_from", (long long)object->prefix_messages);
    json_key(out, "prefix_token_ids");
    json_begin_array(out);
    for (size_t i = 0; i < object->prefix_ids.size; i += 4) {
        int32_t id;
        memcpy(&id, object->prefix_ids.data + i, 4);
        json_put_int(out, id);
    }
    json_end_array(out);
}

static void keep_body(void *owner)
{
    (void)body_ref(owner);
}

static void release_body(void *owner)
{
    body_unref(owner);
}

/* A part of the body, which is sent from where it lies. */
static void write_part(const struct object *object, const char *key, struct str part,
                       struct json_writer *out)
{
    json_key(out, key);
    json_put_kept(out, part, object->body, keep_body, release_body);
}

static void write_view(const struct object *object, struct json_writer *out)
{
    const struct hold_view *view = &object->view;
    write_part(object, "messages", view->messages, out);
    write_part(object, "tools", view->tools, out);
    json_set_raw(out, "sampling", str_of(object->sampling));
    if (view->prompt.data)
        write_part(object, "prompt_token_ids", view->prompt, out);
    write_prefix(object, out);
}

/* An agent of another dialect: the same request, as chat completions would put it. */
static void write_translated(const struct object *object, struct json body, struct json_writer *out)
{
    OWN(arena) struct arena arena = {.bytes_max = ARENA_BYTES_MAX};
    OWN(buf) struct buf chat = {0};
    OWN(json_doc) struct json_doc doc = {0};
    struct trace_request request;
    struct dialect_route route = {DIALECT_ROUTE_CALL, object->dialect, str_of(object->model),
                                  object->stream};
    struct dialect_override canonical = {.errors = true};
    if (dialect_read_request(&route, body, &arena, &request, NULL) < 0)
        return; /* it was read before it was held */
    (void)dialect_write_request(&dialect_chat, &request, &canonical, &chat);
    if (json_read(&doc, buf_str(&chat), NULL, NULL) < 0)
        return;
    write_chat(json_root(&doc), out);
    /* The number of a message is the same here as in the agent's request, or it means nothing. */
    if (json_size(json_get(json_root(&doc), "messages")) == request.message_count)
        write_prefix(object, out);
}

/* Tokens the agent itself gives: beside its messages, or as the prompt of completions. */
static struct json prompt_ids(const struct dialect *dialect, struct json body)
{
    struct json prompt = json_get(body, "prompt_token_ids");
    if (dialect == &dialect_completions) {
        prompt = json_get(body, "prompt");
        if (json_type(json_at(prompt, 0)) == JSON_ARRAY)
            prompt = json_at(prompt, 0);
        if (json_type(json_at(prompt, 0)) != JSON_NUMBER)
            return (struct json){0};
    }
    return json_type(prompt) == JSON_ARRAY ? prompt : (struct json){0};
}

void hold_object_write(void *payload, bool raw, struct json_writer *out)
{
    const struct object *object = payload;
    OWN(json_doc) struct json_doc doc = {0};
    struct json_limits limits = {.depth_max = DEPTH_MAX, .nodes_max = NODES_MAX};
    json_set_text(out, "kind", "model");
    json_set_text(out, "dialect", dialect_name(object->dialect));
    json_set_text(out, "model", object->model);
    json_set_bool(out, "stream", object->stream);
    struct str bytes = buf_str(&object->body->bytes);
    if (object->view.known) {
        write_view(object, out);
        if (raw)
            write_part(object, "raw", str_trim(bytes), out);
        return;
    }
    if (json_read(&doc, bytes, &limits, NULL) < 0)
        return;
    struct json body = json_root(&doc);
    if (object->dialect == &dialect_chat) {
        write_chat(body, out);
        write_prefix(object, out);
    } else
        write_translated(object, body, out);
    struct json prompt = prompt_ids(object->dialect, body);
    if (json_exists(prompt))
        write_part(object, "prompt_token_ids", json_raw(prompt), out);
    if (raw)
        write_part(object, "raw", json_raw(body), out);
}
