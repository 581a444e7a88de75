/* kept.c - answers that wait until what they tell of is in the journal.
 *
 * What was put into the store before is committed before the note that is put here. Whoever has the
 * answer need not ask again after a crash. */
#include <stdlib.h>

#include "api/inner.h"
#include "base/err.h"
#include "base/mem.h"
#include "http/http.h"
#include "store/store.h"

struct kept {
    struct api *api;
    struct http_exchange *exchange; /* NULL: whoever asked has left */
    int status;
    struct buf body;
};

static void on_kept(void *context, const struct err *err)
{
    struct kept *kept = context;
    struct api *api = kept->api;
    if (kept->exchange && err->kind != ERR_NONE)
        api_answer_error(kept->exchange, err);
    else if (kept->exchange)
        http_respond_json(kept->exchange, kept->status, buf_str(&kept->body));
    buf_deinit(&kept->body);
    free(kept);
    api_reply_done(api);
}

static void on_gone(void *context)
{
    ((struct kept *)context)->exchange = NULL;
}

void api_answer_kept(struct api *api, struct http_exchange *exchange, int status, struct str body)
{
    struct kept *kept = mem_zero(sizeof *kept);
    struct err err = {0};
    *kept = (struct kept){.api = api, .exchange = exchange, .status = status};
    buf_str_append(&kept->body, body);
    api->replies++;
    if (store_put_note(api->store, api->loop, "asked", NULL, NULL, NULL, on_kept, kept, &err) < 0)
        on_kept(kept, &err);
    else
        http_exchange_notify(exchange, 0, NULL, on_gone, kept);
}
