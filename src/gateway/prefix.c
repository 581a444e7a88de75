/* prefix.c - exact prefixes: a turn's prompt is made of the tokens of the turn before, as they were
 * prompted and sampled, and of the new messages alone. Nothing that was sampled is tokenised again.
 *
 *     find      the remembered call whose messages and answer the request begins with
 *     gate      the trainer is given its tokens, and renders the messages after them
 *     proxy     the engine renders (POST /tokenize) the messages up to that answer, and all of
 * them; what the second has beyond the first goes after the tokens that are known; the engine is
 * asked with token ids (POST /v1/chat/completions/tokens)
 *
 * With vLLM's generate route the two renderings are part of every call: generate.c.
 *
 * Where that cannot be done (no such call, a template that does not only append, an engine without
 * these routes) the call goes out as it is; the session counts both, and the samples tell. */
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/log.h"
#include "base/mem.h"
#include "gateway/generate.h"
#include "gateway/inner.h"

#define RENDER_BYTES_MAX ((size_t)64 << 20)
#define CLOSING_MAX 16 /* tokens a template may put after the end of an answer */

/* ---------------------------------------------------------------- finding it */

void prefix_deinit(struct prefix *prefix)
{
    buf_deinit(&prefix->ids);
    buf_deinit(&prefix->before);
    buf_deinit(&prefix->answer);
    buf_deinit(&prefix->tokens);
    buf_deinit(&prefix->body);
}

bool prefix_find(struct call *call)
{
    struct prefix *prefix = &call->prefix;
    if (!call->session->exact_prefix || call->record.side)
        return false;
    if (prefix->looked)
        return prefix->messages > 0;
    prefix->looked = true;
    call->session->prefix_calls++;
    request_recall(call); /* in a crowd it is forgotten before it is held */
    size_t messages;
    const struct ancestor *parent = lineage_continued(call, &messages);
    if (!parent)
        return false;
    memcpy(prefix->call_id, parent->call_id, sizeof prefix->call_id);
    buf_str_append(&prefix->ids, buf_str(&parent->ids));
    prefix->messages = messages;
    call->session->prefix_used += call->session->mode == GATEWAY_GATE;
    return true;
}

/* ---------------------------------------------------------------- rendered by the engine */

void prefix_give_up(struct call *call, const char *why)
{
    struct gateway_session *session = call->session;
    call->prefix.given_up = true;
    CALL_LOG(LOG_DEBUG, call, "no exact prefix: %s", why);
    snprintf(session->prefix_trouble, sizeof session->prefix_trouble, "%s", why);
}

/* The request for /tokenize: all messages, or those up to the answer. */
static bool write_render(struct call *call, bool all, struct buf *out)
{
    OWN(json_doc) struct json_doc doc = {0};
    struct json_writer json = {.out = out};
    if (json_read(&doc, buf_str(&call->rewritten), NULL, NULL) < 0)
        return false;
    struct json root = json_root(&doc), messages = json_get(root, "messages");
    struct json tools = json_get(root, "tools"), extra = json_get(root, "chat_template_kwargs");
    if (json_size(messages) != call->request.message_count)
        return false; /* they are not one to one */
    json_begin_object(&json);
    json_set_text(&json, "model", call->session->model->name);
    json_key(&json, "messages");
    json_begin_array(&json);
    size_t at = 0;
    JSON_EACH (item, messages)
        if (all || at++ < call->prefix.messages)
            json_put_raw(&json, json_raw(item.value));
    json_end_array(&json);
    if (json_size(tools))
        json_set_raw(&json, "tools", json_raw(tools));
    if (json_exists(extra))
        json_set_raw(&json, "chat_template_kwargs", json_raw(extra));
    json_set_bool(&json, "add_generation_prompt", all);
    json_end_object(&json);
    return true;
}

bool ids_read(struct json list, struct buf *out)
{
    JSON_EACH (item, list) {
        long long id;
        if (!json_int(item.value, &id) || id < 0 || id > INT32_MAX)
            return false;
        int32_t narrow = (int32_t)id;
        buf_append(out, &narrow, sizeof narrow);
    }
    return out->size > 0;
}

static bool read_tokens(struct str answer, struct buf *out)
{
    OWN(json_doc) struct json_doc doc = {0};
    if (json_read(&doc, answer, NULL, NULL) < 0)
        return false;
    return ids_read(json_get(json_root(&doc), "tokens"), out);
}

static int32_t id_at(struct str ids, size_t at)
{
    int32_t id;
    memcpy(&id, ids.data + at * 4, 4);
    return id;
}

void ids_write(struct str ids, struct buf *out)
{
    struct json_writer json = {.out = out};
    json_begin_array(&json);
    for (size_t i = 0; i < ids.size / 4; i++)
        json_put_int(&json, id_at(ids, i));
    json_end_array(&json);
}

const char *prefix_compose(struct prefix *prefix, const struct buf *all)
{
    struct str known = buf_str(&prefix->ids), rendered = buf_str(&prefix->before);
    size_t before = rendered.size / 4, end = before;
    if (all->size < prefix->before.size ||
        memcmp(all->data, prefix->before.data, prefix->before.size) != 0)
        return "the engine's template changes earlier messages when new ones come";
    int32_t last = id_at(known, known.size / 4 - 1);
    while (end && before - end < CLOSING_MAX && id_at(rendered, end - 1) != last)
        end--;
    if (!end || id_at(rendered, end - 1) != last)
        return "the answer's last token is not where the engine's template ends an answer";
    buf_str_append(&prefix->tokens, known);
    buf_str_append(&prefix->tokens, str_from(buf_str(all), end * 4));
    return NULL;
}

/* The body with the prompt's ids. */
static bool write_body(struct call *call)
{
    struct prefix *prefix = &call->prefix;
    OWN(buf) struct buf list = {0};
    OWN(json_doc) struct json_doc doc = {0};
    ids_write(buf_str(&prefix->tokens), &list);
    if (json_read(&doc, buf_str(&call->rewritten), NULL, NULL) < 0)
        return false;
    struct json_edit edit = {"tokens", buf_str(&list)};
    buf_clear(&prefix->body);
    json_splice(json_root(&doc), &edit, 1, &prefix->body);
    return true;
}

/* One answer of the engine is there. */
static void rendered(struct call *call)
{
    struct prefix *prefix = &call->prefix;
    OWN(buf) struct buf tokens = {0};
    const char *why = NULL;
    if (prefix->status != 200 || !read_tokens(buf_str(&prefix->answer), &tokens)) {
        prefix_give_up(call, prefix->status == 200 ? "the engine's /tokenize gave no token ids"
                                                   : "the engine has no /tokenize for messages");
        return;
    }
    if (!prefix->before.size) {
        buf_str_append(&prefix->before, buf_str(&tokens));
        return;
    }
    why = prefix_compose(prefix, &tokens);
    if (why) {
        prefix_give_up(call, why);
        return;
    }
    prefix->ready = write_body(call);
    call->session->prefix_used += prefix->ready;
}

static void on_head(void *context, const struct upstream_head *head)
{
    struct call *call = context;
    call->prefix.status = head->status;
}

static void on_data(void *context, struct str data)
{
    struct call *call = context;
    if (call->prefix.answer.size + data.size <= RENDER_BYTES_MAX)
        buf_str_append(&call->prefix.answer, data);
}

static void on_done(void *context, const struct err *err, bool script_error)
{
    struct call *call = context;
    (void)script_error;
    upstream_close(TAKE(call->upstream));
    if (err->kind != ERR_NONE)
        prefix_give_up(call, err->text);
    else
        rendered(call);
    call_attempt(call);
}

bool prefix_render(struct call *call)
{
    static const struct upstream_handlers handlers = {on_head, on_data, on_done};
    struct gateway_session *session = call->session;
    struct prefix *prefix = &call->prefix;
    if (session->mode != GATEWAY_PROXY || !session->model->base_url || call->api != &dialect_chat ||
        generate_wanted(session))
        return false;
    if (!prefix_find(call) || prefix->given_up || prefix->ready)
        return false;
    buf_clear(&prefix->answer);
    buf_clear(&prefix->body);
    prefix->status = 0;
    if (!write_render(call, prefix->before.size > 0, &prefix->body)) {
        prefix_give_up(call, "its messages are not those of the request to the engine");
        return false;
    }
    struct upstream_request request = {
        .dialect = call->api,
        .request = &call->request,
        .path = "/tokenize",
        .outside = true,
        .body = buf_str(&prefix->body),
        .place = &session->place,
        .rollout_id = session->rollout_id,
    };
    call->state = CALL_UPSTREAM;
    call->upstream = upstream_start(session->gateway, session->model, &request, &handlers, call);
    return true;
}

void prefix_report(const struct gateway_session *session, struct json_writer *out)
{
    if (!session->exact_prefix)
        return;
    json_key(out, "exact_prefix");
    json_begin_object(out);
    json_set_int(out, "calls", session->prefix_calls);
    json_set_int(out, "used", session->prefix_used);
    json_set_text(out, "trouble", session->prefix_trouble[0] ? session->prefix_trouble : NULL);
    json_end_object(out);
}
