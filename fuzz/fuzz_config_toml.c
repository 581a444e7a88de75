/* fuzz_config_toml.c - any bytes as TOML; what is accepted must survive being written as JSON and
 * read back. */
#include <stdint.h>
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "base/mem.h"
#include "config/toml.h"
#include "json/json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    OWN(mem) char *exact = mem_alloc(size ? size : 1);
    memcpy(exact, data, size);
    OWN(toml) struct toml toml = {0};
    struct err err = {0};
    if (toml_read(&toml, "f", str_make(exact, size), &err) < 0) {
        CHECK(err.text[0]);
        return 0;
    }
    OWN(buf) struct buf out = {0};
    toml_write_json(toml.root, &(struct json_writer){.out = &out});
    OWN(json_doc) struct json_doc doc = {0};
    CHECK(json_read(&doc, buf_str(&out), NULL, NULL) == 0);
    OWN(toml) struct toml again = {0};
    (void)toml_from_json(&again, "f", json_root(&doc),
                         NULL); /* inf and nan became null, which arrays refuse */

    const char *text;
    const char *const *texts;
    long long number;
    unsigned long long room;
    struct toml_node *node;
    (void)toml_text(toml.root, "a", &text, &err);
    (void)toml_texts(toml.root, "b", &texts, NULL, &err);
    (void)toml_int(toml.root, "c", 0, 9, &number, &err);
    (void)toml_size(toml.root, "d", 0, 9, &room, &err);
    (void)toml_environment(toml.root, "e", &texts, NULL, &err);
    (void)toml_tables(toml.root, "t", &node, &err);
    (void)toml_check_unused(&toml, &err);
    toml_use_all(toml.root);
    CHECK(toml_check_unused(&toml, &err) == 0);
    return 0;
}
