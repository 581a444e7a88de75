/* fuzz_json.c - any bytes: accepted text must come out of splice unchanged and of the writer equal.
 */
#include <stdint.h>
#include <string.h>

#include "base/check.h"
#include "base/mem.h"
#include "json/json.h"

static void copy(struct json value, struct json_writer *out, struct arena *arena)
{
    switch (json_type(value)) {
    case JSON_OBJECT:
        json_begin_object(out);
        JSON_EACH (item, value) {
            json_key_str(out, json_str(item.key, arena));
            copy(item.value, out, arena);
        }
        json_end_object(out);
        return;
    case JSON_ARRAY:
        json_begin_array(out);
        JSON_EACH (item, value)
            copy(item.value, out, arena);
        json_end_array(out);
        return;
    case JSON_STRING:
        json_put_str(out, json_str(value, arena));
        return;
    case JSON_NONE:
    case JSON_NULL:
    case JSON_FALSE:
    case JSON_TRUE:
    case JSON_NUMBER: {
        long long integer;
        double real;
        (void)json_int(value, &integer);
        (void)json_double(value, &real);
        json_put_raw(out, json_raw(value));
    }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    /* An exact copy, so that reading one byte past the end is seen. */
    OWN(mem) char *exact = mem_alloc(size ? size : 1);
    memcpy(exact, data, size);
    OWN(json_doc) struct json_doc doc = {0};
    struct json_scan scan = {exact, exact + size};
    bool scanned = json_scan_skip(&scan) && json_scan_end(&scan);
    if (json_read(&doc, str_make(exact, size), NULL, NULL) < 0) {
        CHECK(!scanned);
        return 0;
    }
    struct json root = json_root(&doc);
    OWN(buf) struct buf out = {0};
    json_splice(root, NULL, 0, &out);
    CHECK(str_equal(buf_str(&out), json_raw(root)));

    OWN(arena) struct arena arena = {0};
    OWN(buf) struct buf first = {0}, second = {0};
    copy(root, &(struct json_writer){.out = &first}, &arena);
    OWN(json_doc) struct json_doc again = {0};
    CHECK(json_read(&again, buf_str(&first), NULL, NULL) == 0);
    CHECK(again.count == doc.count);
    copy(json_root(&again), &(struct json_writer){.out = &second}, &arena);
    CHECK(str_equal(buf_str(&first), buf_str(&second)));

    struct json_edit edits[] = {{"a", STR("1")}, {"b", STR_NONE}};
    buf_clear(&out);
    json_splice(root, edits, 2, &out);
    OWN(json_doc) struct json_doc edited = {0};
    CHECK(json_read(&edited, buf_str(&out), NULL, NULL) == 0);
    if (json_type(root) == JSON_OBJECT) {
        CHECK(json_int_or(json_get(json_root(&edited), "a"), 0) == 1);
        CHECK(!json_exists(json_get(json_root(&edited), "b")));
    }
    return 0;
}
