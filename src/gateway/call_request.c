/* call_request.c - what a call's request becomes on its way to the model server: untouched, with
 * what is imposed in proxy mode, or in another dialect. */
#include <string.h>

#include "base/mem.h"
#include "gateway/generate.h"
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

void call_share_nonces(struct call *call)
{
    struct gateway_session *session = call->session;
    struct str all = call->record.nonces, last = buf_str(&session->nonces);
    if (!all.size)
        return;
    size_t shared = 0, count = 0;
    /* Whole elements at the front: "},{" separates them, and nothing inside holds a brace. */
    for (size_t i = 0; i < all.size && i < last.size && all.data[i] == last.data[i]; i++) {
        if (all.data[i] != '}')
            continue;
        shared = i + 1;
        count++;
    }
    if (count) {
        struct str rest = str_from(all, shared);
        if (rest.size && rest.data[0] == ',')
            rest = str_from(rest, 1);
        call->record.nonces = str_of(arena_format(&call->arena, "[%.*s", STR_ARGS(rest)));
        call->record.nonces_parent = arena_text(&call->arena, str_of(session->nonces_call));
        call->record.nonces_shared = (uint32_t)count;
    }
    buf_clear(&session->nonces);
    buf_str_append(&session->nonces, all);
    memcpy(session->nonces_call, call->record.id, sizeof session->nonces_call);
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
    if (generate_wanted(call->session))
        call->api = &dialect_chat;
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
        struct dialect_override nothing = {.engine = session->model->engine,
                                           .usage = call->request.stream};
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
    /* An exact prefix is cut out of the whole body, and an engine asked in tokens gets it twice. */
    if (!session->exact_prefix && !generate_wanted(session))
        override.gap = &call->rewritten_gap;
    if (call->anew)
        (void)dialect_write_request(call->api, &call->request, &override, &call->rewritten);
    else
        dialect_rewrite_request(call->dialect, json_root(&call->doc), &override, &call->rewritten);
}
