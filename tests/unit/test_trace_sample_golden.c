/* Walks tests/golden/samples: conversations of real agents (record.py beside them says how they
 * were made) with sub-agents, compactions and edited histories, and the rows that they must give.
 */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/file.h"
#include "base/mem.h"
#include "json/json.h"
#include "test.h"
#include "trace/sample.h"

#define GOLDEN POSTERN_SOURCE_DIR "/tests/golden/samples"
#define FILE_MAX (4u << 20)

static void put_calls(struct json turns, bool trained_only, struct json_writer *out)
{
    OWN(arena) struct arena arena = {0};
    json_begin_array(out);
    JSON_EACH (turn, turns)
        if (!trained_only || json_true(json_get(turn.value, "trained")))
            json_put_str(out, json_str(json_get(turn.value, "call_id"), &arena));
    json_end_array(out);
}

static void set_raw(struct json_writer *out, const char *key, struct json value)
{
    json_set_raw(out, key, json_exists(value) ? json_raw(value) : STR("null"));
}

/* A row as record.py puts it. */
static void put_row(struct json row, struct json_writer *out)
{
    struct json branch = json_get(row, "branch"), continuity = json_get(row, "continuity");
    json_begin_object(out);
    set_raw(out, "branch", json_get(branch, "kind"));
    set_raw(out, "from_call", json_get(branch, "from_call"));
    set_raw(out, "summary_call", json_get(branch, "summary_call"));
    set_raw(out, "tool_call_id", json_get(branch, "tool_call_id"));
    json_key(out, "calls");
    put_calls(json_get(row, "turns"), false, out);
    json_key(out, "trained");
    put_calls(json_get(row, "turns"), true, out);
    set_raw(out, "continuity", json_get(continuity, "status"));
    json_key(out, "differs");
    json_begin_array(out);
    JSON_EACH (item, json_get(continuity, "differences")) {
        json_begin_array(out);
        json_put_raw(out, json_raw(json_get(item.value, "call_id")));
        json_put_raw(out, json_raw(json_get(item.value, "inside")));
        json_end_array(out);
    }
    json_end_array(out);
    json_end_object(out);
}

/* The same without blanks, to compare with. */
static void put_plain(struct json value, struct json_writer *out)
{
    if (json_type(value) == JSON_OBJECT) {
        OWN(arena) struct arena arena = {0};
        json_begin_object(out);
        JSON_EACH (item, value) {
            json_key_str(out, json_str(item.key, &arena));
            put_plain(item.value, out);
        }
        json_end_object(out);
    } else if (json_type(value) == JSON_ARRAY) {
        json_begin_array(out);
        JSON_EACH (item, value)
            put_plain(item.value, out);
        json_end_array(out);
    } else {
        json_put_raw(out, json_raw(value));
    }
}

/* What a row claims about its tokens, checked against itself. */
static const char *unsound(struct json row)
{
    size_t count = (size_t)json_int_or(json_get(row, "token_count"), 0), ones = 0;
    if (json_size(json_get(row, "token_ids")) != count ||
        json_size(json_get(row, "mask")) != count ||
        json_size(json_get(row, "logprobs")) != count ||
        json_size(json_get(row, "provenance")) != count)
        return "arrays of different lengths";
    JSON_EACH (item, json_get(row, "mask"))
        ones += json_int_or(item.value, 0) == 1;
    return ones == (size_t)json_int_or(json_get(row, "trained_count"), -1) ? NULL : "a wrong count";
}

static void check_rows(const char *name, struct samples *samples, struct json expected)
{
    long long trained = 0;
    size_t at = 0;
    struct sample_owner owner = {.rollout = "r-kept"};
    if (samples_count(samples) != json_size(expected))
        test_fail(__FILE__, __LINE__, "%s: %zu rows, not %zu", name, samples_count(samples),
                  json_size(expected));
    JSON_EACH (item, expected) {
        OWN(buf) struct buf text = {0}, seen = {0}, want = {0};
        OWN(json_doc) struct json_doc doc = {0};
        if (at >= samples_count(samples))
            return;
        sample_write(samples, at, &owner, &(struct json_writer){.out = &text});
        if (json_read(&doc, buf_str(&text), NULL, NULL) < 0) {
            test_fail(__FILE__, __LINE__, "%s: row %zu is not JSON", name, at);
            return;
        }
        put_row(json_root(&doc), &(struct json_writer){.out = &seen});
        put_plain(item.value, &(struct json_writer){.out = &want});
        if (!str_equal(buf_str(&seen), buf_str(&want)))
            test_fail(__FILE__, __LINE__, "%s: row %zu is\n%s\nnot\n%s", name, at, buf_text(&seen),
                      buf_text(&want));
        const char *fault = unsound(json_root(&doc));
        if (fault)
            test_fail(__FILE__, __LINE__, "%s: row %zu has %s", name, at, fault);
        trained += json_int_or(json_get(json_root(&doc), "trained_count"), 0);
        at++;
    }
    /* Each sampled token in exactly one row. */
    OWN(buf) struct buf summary = {0};
    OWN(json_doc) struct json_doc doc = {0};
    samples_write_summary(samples, &(struct json_writer){.out = &summary});
    if (json_read(&doc, buf_str(&summary), NULL, NULL) < 0 ||
        json_int_or(json_get(json_root(&doc), "trained_tokens"), -1) != trained)
        test_fail(__FILE__, __LINE__, "%s: %lld tokens are trained, the summary says %s", name,
                  trained, buf_text(&summary));
}

static void check_file(const char *name)
{
    OWN(mem) char *path = mem_format("%s/%s", GOLDEN, name);
    OWN(buf) struct buf text = {0};
    OWN(json_doc) struct json_doc doc = {0};
    struct err err = {0};
    if (file_read(path, FILE_MAX, &text, &err) < 0 ||
        json_read(&doc, buf_str(&text), NULL, &err) < 0) {
        test_fail(__FILE__, __LINE__, "%s: %s", name, err.text);
        return;
    }
    OWN(samples) struct samples *samples = samples_new(&(struct samples_options){0});
    JSON_EACH (item, json_get(json_root(&doc), "calls"))
        if (samples_add(samples, json_raw(item.value), &err) < 0)
            test_fail(__FILE__, __LINE__, "%s: %s", name, err.text);
    samples_finish(samples);
    check_rows(name, samples, json_get(json_root(&doc), "expected"));
}

TEST(conversations_of_real_agents_give_the_branches_they_had)
{
    DIR *folder = opendir(GOLDEN);
    EXPECT(folder);
    int count = 0;
    for (struct dirent *entry; (entry = readdir(folder));) {
        if (!str_ends(str_of(entry->d_name), STR(".json")))
            continue;
        check_file(entry->d_name);
        count++;
    }
    closedir(folder);
    EXPECT(count >= 7);
}
