/* read.c - entries of the journal as they were before they were written: requests and prompts put
 * together again from what they share with earlier entries, token arrays as JSON where JSON is
 * wanted. How deep the references may go is bounded when they are written and again here. */
#include <string.h>

#include "base/mem.h"
#include "json/json.h"
#include "store/inner.h"
#include "trace/trace.h"

static int too_deep(const struct store_view *view, struct err *err)
{
    return err_set(err, ERR_PROTOCOL, "the entry of call '%.*s' refers to what is not there",
                   STR_ARGS(view->call_id));
}

static int read_request(struct store *store, const struct store_view *view, uint32_t depth,
                        struct buf *out, struct err *err)
{
    if (!view->request_parent.size) {
        buf_str_append(out, view->request);
        return 0;
    }
    OWN(buf) struct buf bytes = {0}, parent = {0};
    struct store_view parent_view;
    if (depth == 0)
        return too_deep(view, err);
    if (store_entry(store, view->request_parent, &bytes, &parent_view, err) < 0 ||
        read_request(store, &parent_view, depth - 1, &parent, err) < 0)
        return -1;
    if (view->request_pieces.size)
        return delta_apply(buf_str(&parent), view->request_pieces, view->request, out)
                   ? 0
                   : too_deep(view, err);
    if ((uint64_t)view->request_prefix + view->request_suffix > parent.size)
        return too_deep(view, err);
    buf_str_append(out, str_upto(buf_str(&parent), view->request_prefix));
    buf_str_append(out, view->request);
    buf_str_append(out, str_from(buf_str(&parent), parent.size - view->request_suffix));
    return 0;
}

static int read_prompt(struct store *store, const struct store_view *view, uint32_t depth,
                       struct buf *out, struct err *err)
{
    if (!view->prompt_parent.size) {
        buf_str_append(out, view->prompt_ids);
        return 0;
    }
    OWN(buf) struct buf bytes = {0}, parent = {0};
    struct store_view parent_view;
    if (depth == 0)
        return too_deep(view, err);
    if (store_entry(store, view->prompt_parent, &bytes, &parent_view, err) < 0 ||
        read_prompt(store, &parent_view, depth - 1, &parent, err) < 0)
        return -1;
    buf_str_append(&parent, parent_view.token_ids);
    if (view->prompt_pieces.size)
        return delta_apply(buf_str(&parent), view->prompt_pieces, view->prompt_ids, out)
                   ? 0
                   : too_deep(view, err);
    uint64_t shared = (uint64_t)view->prompt_shared * 4;
    if (shared > parent.size)
        return too_deep(view, err);
    buf_str_append(out, str_upto(buf_str(&parent), shared));
    buf_str_append(out, view->prompt_ids);
    return 0;
}

int store_read_record(struct store *store, const char *call_id, struct buf *out, struct err *err)
{
    OWN(buf) struct buf bytes = {0};
    struct store_view view;
    if (store_last_record(store, str_of(call_id), &bytes, &view, err) < 0)
        return -1;
    buf_str_append(out, view.body);
    return 0;
}

int store_read_request(struct store *store, const char *call_id, struct buf *out, struct err *err)
{
    OWN(buf) struct buf bytes = {0};
    struct store_view view;
    if (store_entry(store, str_of(call_id), &bytes, &view, err) < 0)
        return -1;
    return read_request(store, &view, STORE_DEPTH_MAX, out, err);
}

int store_read_tokens(struct store *store, const char *call_id, struct buf *prompt_ids,
                      struct buf *token_ids, struct buf *logprobs, struct err *err)
{
    OWN(buf) struct buf bytes = {0};
    struct store_view view;
    if (store_entry(store, str_of(call_id), &bytes, &view, err) < 0 ||
        (prompt_ids && read_prompt(store, &view, STORE_DEPTH_MAX, prompt_ids, err) < 0))
        return -1;
    if (token_ids)
        buf_str_append(token_ids, view.token_ids);
    if (logprobs)
        buf_str_append(logprobs, view.logprobs);
    return 0;
}

static struct str ids_text(struct str ids, struct buf *out)
{
    struct json_writer json = {.out = out};
    json_begin_array(&json);
    for (size_t i = 0; i + 4 <= ids.size; i += 4) {
        int32_t id;
        memcpy(&id, ids.data + i, 4);
        json_put_int(&json, id);
    }
    json_end_array(&json);
    return buf_str(out);
}

static struct str logprobs_text(struct str logprobs, struct buf *out)
{
    struct trace_tokens tokens = {.logprob_count = logprobs.size / 4};
    OWN(mem) float *aligned = mem_alloc(logprobs.size + 1);
    memcpy(aligned, logprobs.data, logprobs.size);
    tokens.logprobs = aligned;
    OWN(buf) struct buf object = {0};
    trace_tokens_write(&tokens, &(struct json_writer){.out = &object});
    OWN(json_doc) struct json_doc doc = {0};
    if (json_read(&doc, buf_str(&object), NULL, NULL) == 0)
        buf_str_append(out, json_raw(json_get(json_root(&doc), "logprobs")));
    return buf_str(out);
}

/* The answer with its arrays. */
static void answer_text(struct json answer, const struct store_view *view, struct str prompt,
                        struct buf *out)
{
    OWN(buf) struct buf prompt_text = {0}, ids = {0}, logprobs = {0};
    struct json_edit edits[3];
    size_t count = 0;
    if (prompt.size)
        edits[count++] = (struct json_edit){"prompt_token_ids", ids_text(prompt, &prompt_text)};
    if (view->token_ids.size)
        edits[count++] = (struct json_edit){"token_ids", ids_text(view->token_ids, &ids)};
    if (view->logprobs.size)
        edits[count++] = (struct json_edit){"logprobs", logprobs_text(view->logprobs, &logprobs)};
    json_splice(answer, edits, count, out);
}

int store_read_call(struct store *store, const char *call_id, struct buf *out, struct err *err)
{
    OWN(buf) struct buf bytes = {0}, request = {0}, prompt = {0}, answer = {0};
    struct store_view view;
    if (store_entry(store, str_of(call_id), &bytes, &view, err) < 0 ||
        read_request(store, &view, STORE_DEPTH_MAX, &request, err) < 0 ||
        read_prompt(store, &view, STORE_DEPTH_MAX, &prompt, err) < 0)
        return -1;
    OWN(json_doc) struct json_doc doc = {0};
    bool more = request.size || prompt.size || view.token_ids.size || view.logprobs.size;
    if (!more || json_read(&doc, view.body, NULL, NULL) < 0) {
        buf_str_append(out, view.body);
        return 0;
    }
    struct json root = json_root(&doc), old = json_get(root, "answer");
    struct json_edit edits[2];
    size_t count = 0;
    if (request.size)
        edits[count++] = (struct json_edit){"request", buf_str(&request)};
    if (json_type(old) == JSON_OBJECT) {
        answer_text(old, &view, buf_str(&prompt), &answer);
        edits[count++] = (struct json_edit){"answer", buf_str(&answer)};
    }
    json_splice(root, edits, count, out);
    return 0;
}
