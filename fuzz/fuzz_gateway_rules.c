/* Any body under rules about nonces: what is made the same can be put back, byte for byte. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include "base/mem.h"
#include "gateway/rules.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct trace_nonce nonces[] = {
        {"a", "ID: ", "", "0", TRACE_CHARS_HEX, 1, 6},
        {"b", "ID: 0", "0", "00", TRACE_CHARS_DIGITS, 1, 3},
        {"c", "time: ", " s", "0.0", TRACE_CHARS_NUMBER, 2, 8},
        {"d", "\\\"id\\\"", "\\\"", "", TRACE_CHARS_WORD, 1, 256},
    };
    static const struct trace_rules rules = {.nonces = nonces, .nonce_count = 4};
    OWN(buf) struct buf out = {0};
    OWN(buf) struct buf notes = {0};
    OWN(buf) struct buf back = {0};
    OWN(json_doc) struct json_doc doc = {0};
    struct str body = str_make(data, size);
    if (!rules_canonical(&rules, body, &out, &notes)) {
        if (out.size || notes.size)
            abort();
        return 0;
    }
    if (json_read(&doc, buf_str(&notes), NULL, NULL) < 0 ||
        rules_restore(buf_str(&out), json_root(&doc), &back) < 0 ||
        !str_equal(buf_str(&back), body))
        abort();
    return 0;
}
