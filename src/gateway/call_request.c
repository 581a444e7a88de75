/* call_request.c - what a call's request becomes on its way to the model server: untouched, with
 * what is imposed in proxy mode, or in another dialect. */
#include "base/mem.h"
#include "gateway/inner.h"
#include "gateway/rules.h"

void call_canonical(struct call *call)
{
    const struct gateway_session *session = call->session;
    OWN(buf) struct buf same = {0};
    OWN(buf) struct buf notes = {0};
    if (session->mode == GATEWAY_BLACK_BOX ||
        !rules_canonical(session->rules, buf_str(&call->body->bytes), &same, &notes))
        return;
    call->record.nonces = arena_str(&call->arena, buf_str(&notes));
    body_unref(call->body);
    call->body = body_new(buf_str(&same));
}

static void make_whole(void *context)
{
    request_whole(context);
}

static struct str header_of(void *context, const char *name)
{
    return http_exchange_header(context, name);
}

void call_find_side(struct call *call, struct http_exchange *exchange)
{
    struct rules_scene scene = {
        .path = session_path(call->session, exchange),
        .header = header_of,
        .exchange = exchange,
        .make_whole = make_whole,
        .call = call,
        .body = json_root(&call->doc),
        .request = &call->request,
    };
    call->side_rule = rules_side(call->session->rules, &scene);
}

/* The dialect the model server is spoken to in. A script plays along in any. */
int call_choose_api(struct call *call, struct err *err)
{
    const struct model *model = call->session->model;
    if (call->session->mode == GATEWAY_GATE) {
        call->api = &dialect_chat;
        call->anew = true;
        return 0;
    }
    call->api = model->api && model->base_url ? model->api : call->dialect;
    call->anew = call->api != call->dialect;
    if (!call->anew || dialect_can_write_request(call->api))
        return 0;
    return err_set(err, ERR_UNSUPPORTED,
                   "the model server speaks %s, and calls in %s cannot be translated to that",
                   dialect_name(call->api), dialect_name(call->dialect));
}

void call_rewrite(struct call *call)
{
    const struct gateway_session *session = call->session;
    bool proxy = session->mode == GATEWAY_PROXY;
    if ((!proxy && !call->anew) || !session->model->base_url || session->mode == GATEWAY_GATE)
        return;
    if (!proxy) {
        struct dialect_override nothing = {.usage = call->request.stream};
        (void)dialect_write_request(call->api, &call->request, &nothing, &call->rewritten);
        return;
    }
    struct dialect_override override = {
        .model = str_of(session->model->name),
        .capture = true,
        .usage = call->request.stream,
        .has_temperature = session->sampling.has_temperature,
        .temperature = session->sampling.temperature,
        .has_top_p = session->sampling.has_top_p,
        .top_p = session->sampling.top_p,
        .tokens_max = session->sampling.tokens_max,
        .engine = session->model->engine,
        .thinking_off = session->sampling.thinking == GATEWAY_THINKING_ANY
                            ? session->model->thinking_off
                            : session->sampling.thinking == GATEWAY_THINKING_OFF,
    };
    if (call->anew)
        (void)dialect_write_request(call->api, &call->request, &override, &call->rewritten);
    else
        dialect_rewrite_request(call->dialect, json_root(&call->doc), &override, &call->rewritten);
}
