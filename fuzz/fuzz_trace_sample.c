/* Any lines as a rollout's calls: no crash, every row is JSON, both forms agree, and no completion
 * is trained twice. The first byte says how much may be bridged. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include "base/err.h"
#include "base/mem.h"
#include "json/json.h"
#include "trace/sample.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static long long number(struct buf *text, const char *key)
{
    OWN(json_doc) struct json_doc doc = {0};
    if (json_read(&doc, buf_str(text), NULL, NULL) < 0)
        abort();
    return json_int_or(json_get(json_root(&doc), key), -1);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct samples_options options = {.bytes_max = (size_t)64 << 20};
    if (size)
        options.realign_max = data[0] % 9;
    OWN(samples) struct samples *samples = samples_new(&options);
    OWN(sample_binary) struct sample_binary binary = {0};
    struct str rest = size ? str_make(data + 1, size - 1) : STR("");
    while (rest.data) {
        struct err err = {0};
        (void)samples_add(samples, str_cut(&rest, '\n'), &err);
    }
    samples_finish(samples);
    long long trained = 0;
    struct sample_owner owner = {.rollout = "r"};
    for (size_t i = 0; i < samples_count(samples); i++) {
        OWN(buf) struct buf row = {0};
        sample_write(samples, i, &owner, &(struct json_writer){.out = &row});
        trained += number(&row, "trained_count");
        if (sample_binary_add(&binary, buf_str(&row), NULL) < 0)
            abort();
    }
    OWN(buf) struct buf summary = {0}, turns = {0}, nodes = {0};
    samples_write_summary(samples, &(struct json_writer){.out = &summary});
    if (number(&summary, "trained_tokens") != trained)
        abort();
    samples_write_turns(samples, 16, &(struct json_writer){.out = &turns});
    (void)number(&turns, "x");
    struct json_writer out = {.out = &nodes};
    json_begin_object(&out);
    samples_write_nodes(samples, &out);
    json_end_object(&out);
    (void)number(&nodes, "x");
    return 0;
}
