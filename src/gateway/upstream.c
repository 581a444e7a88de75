/* upstream.c - one attempt to get an answer: over HTTP, played from a script, or from the trainer.
 *
 * Towards a model server goes: the body, our key, and of the agent's headers only those that mean
 * something to a model server and hold no secret. The agent's own credentials, cookies and
 * hop-by-hop headers stay here. Towards the agent nothing of the model server's head goes but its
 * status and how long to wait. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "gateway/inner.h"

#define HEADERS_MAX 16
#define RETRY_AFTER_MS_MAX (24ll * 3600 * 1000)

struct upstream {
    struct upstream_handlers handlers;
    void *context;
    struct loop *loop;
    struct http_call *call;
    struct play *play;
    struct hold *hold;
    bool closed, done;
    struct err trouble; /* found in the head: reported instead of the end */
};

static const char *const passed_on[] = {
    "accept",         "openai-beta",        "anthropic-version",
    "anthropic-beta", "x-session-affinity", "x-session-id",
};

/* Seconds, or milliseconds in retry-after-ms. Dates are not understood and count as not said. */
static int64_t retry_after(const struct http_answer_head *head)
{
    double number;
    if (str_to_double(str_trim(http_answer_header(head, "retry-after-ms")), &number) && number >= 0)
        return number < RETRY_AFTER_MS_MAX ? (int64_t)number : RETRY_AFTER_MS_MAX;
    if (str_to_double(str_trim(http_answer_header(head, "retry-after")), &number) && number >= 0)
        return number * 1000 < RETRY_AFTER_MS_MAX ? (int64_t)(number * 1000) : RETRY_AFTER_MS_MAX;
    return -1;
}

static void on_head(void *context, const struct http_answer_head *answer)
{
    struct upstream *upstream = context;
    struct str type = str_trim(http_answer_header(answer, "content-type"));
    type = str_trim(str_cut(&type, ';'));
    struct str encoding = str_trim(http_answer_header(answer, "content-encoding"));
    if (encoding.size && !str_equal_nocase(encoding, STR("identity")))
        err_set(&upstream->trouble, ERR_PROTOCOL,
                "the model server sent a compressed answer that was not asked for");
    struct upstream_head head = {
        .status = answer->status,
        .stream = str_equal_nocase(type, STR("text/event-stream")),
        .retry_after_ms = retry_after(answer),
    };
    if (upstream->trouble.kind == ERR_NONE)
        upstream->handlers.on_head(upstream->context, &head);
}

static void on_data(void *context, struct str data)
{
    struct upstream *upstream = context;
    if (upstream->trouble.kind == ERR_NONE)
        upstream->handlers.on_data(upstream->context, data);
}

static void on_done(void *context, const struct err *err, bool sent_nothing)
{
    (void)sent_nothing;
    struct upstream *upstream = context;
    upstream->done = true;
    upstream->handlers.on_done(
        upstream->context, upstream->trouble.kind == ERR_NONE ? err : &upstream->trouble, false);
}

static void start_http(struct upstream *upstream, struct gateway *gateway, struct model *model,
                       const struct upstream_request *request)
{
    static const struct http_call_handlers handlers = {on_head, on_data, on_done};
    struct http_header headers[HEADERS_MAX];
    size_t count = 0;
    headers[count++] = (struct http_header){STR("content-type"), STR("application/json")};
    headers[count++] = (struct http_header){STR("user-agent"), STR("postern/" POSTERN_VERSION)};
    OWN(mem) char *bearer = model->key ? mem_format("Bearer %s", model->key) : NULL;
    if (bearer)
        headers[count++] = (struct http_header){STR("authorization"), str_of(bearer)};
    for (size_t i = 0; i < request->header_count && count < HEADERS_MAX; i++)
        for (size_t j = 0; j < COUNT(passed_on); j++)
            if (str_equal_nocase(request->headers[i].name, str_of(passed_on[j])) &&
                count < HEADERS_MAX)
                headers[count++] = request->headers[i];
    OWN(mem) char *url = mem_format("%s%s", model->base_url, request->path);
    struct http_request out = {
        .method = "POST",
        .url = url,
        .headers = headers,
        .header_count = count,
        .body = request->body,
        .first_byte_ms_max = model->options.first_byte_ms_max,
        .idle_ms_max = model->options.idle_ms_max,
    };
    upstream->call = http_call_start(gateway_client(gateway, model), &out, &handlers, upstream);
    if (bearer)
        explicit_bzero(bearer, strlen(bearer));
}

static void play_done(void *context, const struct err *err, bool script_error)
{
    struct upstream *upstream = context;
    upstream->handlers.on_done(upstream->context, err, script_error);
}

static void play_head(void *context, const struct upstream_head *head)
{
    struct upstream *upstream = context;
    upstream->handlers.on_head(upstream->context, head);
}

struct upstream *upstream_start(struct gateway *gateway, struct model *model,
                                const struct upstream_request *request,
                                const struct upstream_handlers *handlers, void *context)
{
    static const struct upstream_handlers played = {play_head, on_data, play_done};
    struct upstream *upstream = mem_zero(sizeof *upstream);
    upstream->loop = gateway->loop;
    upstream->handlers = *handlers;
    upstream->context = context;
    if (request->hold)
        upstream->hold = hold_start(gateway->loop, request, &played, upstream);
    else if (model->script)
        upstream->play = play_start(gateway->loop, model->script, request, &played, upstream);
    else
        start_http(upstream, gateway, model, request);
    return upstream;
}

void upstream_pause(struct upstream *upstream)
{
    if (upstream->hold)
        hold_pause(upstream->hold);
    else if (upstream->play)
        play_pause(upstream->play);
    else if (!upstream->done)
        http_call_pause(upstream->call);
}

void upstream_resume(struct upstream *upstream)
{
    if (upstream->hold)
        hold_resume(upstream->hold);
    else if (upstream->play)
        play_resume(upstream->play);
    else if (!upstream->done)
        http_call_resume(upstream->call);
}

static void upstream_free(void *argument)
{
    free(argument);
}

void upstream_close(struct upstream *upstream)
{
    if (!upstream || upstream->closed)
        return;
    upstream->closed = true;
    if (upstream->hold)
        hold_close(upstream->hold);
    else if (upstream->play)
        play_close(upstream->play);
    else if (!upstream->done)
        http_call_close(upstream->call);
    loop_defer(upstream->loop, upstream_free, upstream);
}

const struct trace_answer *upstream_tokens(const struct upstream *upstream)
{
    return upstream->play ? play_tokens(upstream->play) : NULL;
}
