/* fuzz_json_on.c - two texts, cut from the input at its first zero byte: the second is read on from
 * what it shares with the first, and must come out as if all of it had been read. */
#include <stdint.h>
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "base/mem.h"
#include "json/json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *middle = memchr(data, 0, size);
    if (!middle)
        return 0;
    struct str first = str_make((const char *)data, (size_t)(middle - data));
    /* An exact copy, so that reading one byte past the end is seen. */
    size_t rest = size - first.size - 1;
    OWN(mem) char *exact = mem_alloc(rest ? rest : 1);
    memcpy(exact, middle + 1, rest);
    struct str second = str_make(exact, rest);
    size_t shared = 0;
    while (shared < first.size && shared < rest && first.data[shared] == exact[shared])
        shared++;
    OWN(json_doc) struct json_doc before = {0}, whole = {0}, on = {0};
    if (json_read(&before, first, NULL, NULL) < 0)
        return 0;
    for (size_t cut = shared; cut + 4 > shared && cut <= shared; cut--) {
        struct err whole_err = {0}, on_err = {0};
        int expected = json_read(&whole, second, NULL, &whole_err);
        CHECK(json_read_on(&on, second, &before, cut, NULL, &on_err) == expected);
        CHECK(strcmp(whole_err.text, on_err.text) == 0);
        CHECK(whole.count == on.count);
        CHECK(!whole.count || memcmp(whole.nodes, on.nodes, whole.count * 16) == 0);
    }
    /* In place, for the last time. */
    struct err last_err = {0};
    int expected = json_read(&whole, second, NULL, NULL);
    CHECK(json_read_on(&before, second, &before, shared, NULL, &last_err) == expected);
    CHECK(whole.count == before.count);
    CHECK(!whole.count || memcmp(whole.nodes, before.nodes, whole.count * 16) == 0);
    return 0;
}
