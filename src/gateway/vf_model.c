/* vf_model.c - POST /vf/model: a program of the rollout asks for one message without knowing a
 * model, as Verifiers-style programs do.
 *
 *     {"messages": [...], "tools": [...]}  ->  a chat completion of this rollout  ->  {"message":
 * ...}
 *
 * It is a model call like any other: admitted, recorded, held or relayed, once. Only its body and
 * its answer have another form. */
#include "base/mem.h"
#include "gateway/inner.h"

static void on_body(void *context, struct http_exchange *exchange, struct str body,
                    const struct err *err)
{
    struct gateway_session *session = context;
    if (err && err->kind != ERR_NONE) {
        session_refused(session, REFUSED_BODY);
        return;
    }
    OWN(json_doc) struct json_doc doc = {0};
    OWN(buf) struct buf name = {0}, made = {0};
    struct json_limits limits = {.depth_max = 64, .nodes_max = 4u << 20};
    json_quote(&name, str_of(session->model->name));
    struct json_edit edits[] = {
        {"model", buf_str(&name)}, {"stream", STR_NONE}, {"stream_options", STR_NONE}};
    /* What is no object is refused by whoever reads it. */
    if (json_read(&doc, body, &limits, NULL) == 0 && json_type(json_root(&doc)) == JSON_OBJECT)
        json_splice(json_root(&doc), edits, COUNT(edits), &made);
    call_begin(session, exchange, &dialect_chat, body_new(made.size ? buf_str(&made) : body), true);
}

bool vf_model_request(struct gateway_session *session, struct http_exchange *exchange,
                      struct str path)
{
    if (!str_is(path, "/vf/model"))
        return false;
    if (!str_is(http_exchange_method(exchange), "POST")) {
        session_refused(session, REFUSED_METHOD);
        answer_error(exchange, &dialect_chat, 405, NULL, STR("this path takes POST"), 0);
        return true;
    }
    http_exchange_collect(exchange, session->limits.body_bytes_max, on_body, session);
    return true;
}

void vf_model_wrap(struct call *call)
{
    OWN(json_doc) struct json_doc doc = {0};
    OWN(buf) struct buf made = {0};
    struct json_writer out = {.out = &made};
    (void)json_read(&doc, buf_str(&call->held), NULL, NULL);
    struct json choice = json_at(json_get(json_root(&doc), "choices"), 0);
    struct json message = json_get(choice, "message");
    json_begin_object(&out);
    json_set_raw(&out, "message", json_exists(message) ? json_raw(message) : STR("null"));
    json_end_object(&out);
    buf_deinit(&call->held);
    call->held = made;
    made = (struct buf){0};
}
