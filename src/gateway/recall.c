/* recall.c - a call read back from the journal as its line in calls.jsonl would be, whole: for when
 * that line is missing (the disk was full, the server died between the two). */
#include "base/err.h"
#include "base/mem.h"
#include "gateway/inner.h"
#include "json/json.h"
#include "store/store.h"

#define ARENA_BYTES_MAX ((size_t)512 << 20)

int gateway_read_call(struct store *store, const char *call_id, struct buf *out, struct err *err)
{
    OWN(buf) struct buf entry = {0}, canonical = {0};
    OWN(json_doc) struct json_doc doc = {0};
    OWN(arena) struct arena arena = {.bytes_max = ARENA_BYTES_MAX};
    struct trace_request request;
    if (store_read_call(store, call_id, &entry, err) < 0 ||
        json_read(&doc, buf_str(&entry), NULL, err) < 0)
        return -1;
    struct json root = json_root(&doc), body = json_get(root, "request");
    const char *name = arena_text(&arena, json_str(json_get(root, "dialect"), &arena));
    struct dialect_route route = {.kind = DIALECT_ROUTE_CALL,
                                  .dialect = dialect_find(name ? name : ""),
                                  .model = json_str(json_get(root, "model"), &arena),
                                  .stream = json_true(json_get(root, "stream"))};
    struct json_writer writer = {.out = &canonical};
    /* A request nobody understood is null, as in calls.jsonl. */
    if (route.dialect && json_type(body) == JSON_OBJECT &&
        dialect_read_request(&route, body, &arena, &request, NULL) == 0)
        trace_request_write(&request, &writer);
    else
        json_put_null(&writer);
    struct json_edit edits[] = {{"request", buf_str(&canonical)}};
    json_splice(root, edits, 1, out);
    return 0;
}
