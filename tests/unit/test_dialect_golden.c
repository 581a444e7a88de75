/* Walks tests/golden: each folder holds an agent's request.json, an upstream's stream.sse and the
 * trace.json that both must give. `route`, where there is one, is the path of the request; else it
 * is that of chat completions. Requests of other dialects are also written as chat completions. The
 * stream is fed whole and byte by byte; the answer is written
 * out again in every form and must read back as itself. GOLDEN_WRITE=1 writes trace.json instead of
 * comparing: look at what it wrote. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/file.h"
#include "base/mem.h"
#include "dialect/dialect.h"
#include "test.h"

#define GOLDEN POSTERN_SOURCE_DIR "/tests/golden"

static int read_stream(const struct dialect *dialect, struct str bytes, size_t piece,
                       struct arena *arena, struct trace_answer *out, struct err *err)
{
    struct dialect_reader_options options = {.stream = true};
    OWN(dialect_reader) struct dialect_reader *reader = dialect_reader_new(dialect, &options);
    while (bytes.size) {
        struct str front = str_upto(bytes, piece);
        if (dialect_reader_feed(reader, front, err) < 0)
            return -1;
        bytes = str_from(bytes, front.size);
    }
    return dialect_reader_end(reader, arena, out, err);
}

static void write_outcome(struct json_writer *out, const struct trace_answer *answer,
                          const struct err *err)
{
    if (err->kind == ERR_NONE) {
        json_key(out, "answer");
        trace_answer_write(answer, out);
        return;
    }
    json_key(out, "error");
    json_begin_object(out);
    json_set_text(out, "kind", err_meaning(err->kind)->name);
    json_set_text(out, "text", err->text);
    json_end_object(out);
}

static char *answer_text(const struct trace_answer *answer)
{
    struct buf out = {0};
    trace_answer_write(answer, &(struct json_writer){.out = &out});
    return buf_take(&out);
}

/* Chat completions need ids where another dialect has none. */
static const struct trace_tool_call *named_calls(const struct trace_answer *answer,
                                                 struct arena *arena)
{
    size_t count = answer->message.call_count;
    struct trace_tool_call *calls = arena_alloc(arena, count * sizeof *calls);
    for (size_t i = 0; i < count; i++) {
        calls[i] = answer->message.calls[i];
        if (!calls[i].id.size)
            calls[i].id = str_of(arena_format(arena, "call_%zu", i));
    }
    return calls;
}

/* Our own stream and our own body must mean the same as the upstream's. Tokens do not travel to
 * agents. */
static void check_round_trip(const char *name, const struct trace_request *request,
                             const struct trace_answer *answer)
{
    struct trace_request asked = *request;
    asked.stream_usage = true;
    struct trace_answer plain = *answer;
    plain.prompt_ids = NULL;
    plain.message.opaque = STR_NONE;
    plain.tokens = (struct trace_tokens){0};
    if (plain.finish == TRACE_FINISH_OTHER)
        plain.finish = TRACE_FINISH_STOP;
    if (!plain.model.data)
        plain.model = request->model;
    if (!plain.id.data)
        plain.id = STR("x");
    OWN(arena) struct arena arena = {0};
    plain.message.calls = named_calls(&plain, &arena);
    OWN(mem) char *wanted = answer_text(&plain);

    OWN(buf) struct buf out = {0};
    struct trace_answer again;
    struct err err = {0};
    for (size_t piece = 0; piece < 4; piece++) {
        OWN(dialect_writer) struct dialect_writer writer = {0};
        buf_clear(&out);
        dialect_writer_init(&writer, &dialect_chat, &asked, plain.id, plain.model, 5);
        dialect_writer_answer(&writer, &plain, piece, &out);
        dialect_writer_finish(&writer, plain.finish, &plain.usage, &out);
        if (read_stream(&dialect_chat, buf_str(&out), 7, &arena, &again, &err) < 0)
            test_fail(__FILE__, __LINE__, "%s: our stream: %s", name, err.text);
        OWN(mem) char *got = answer_text(&again);
        if (strcmp(got, wanted) != 0)
            test_fail(__FILE__, __LINE__, "%s: our stream gives\n%s, not\n%s", name, got, wanted);
    }
    buf_clear(&out);
    dialect_write_answer(&dialect_chat, &asked, &plain, &out);
    struct dialect_reader_options options = {0};
    OWN(dialect_reader) struct dialect_reader *reader = dialect_reader_new(&dialect_chat, &options);
    if (dialect_reader_feed(reader, buf_str(&out), &err) < 0 ||
        dialect_reader_end(reader, &arena, &again, &err) < 0)
        test_fail(__FILE__, __LINE__, "%s: our body: %s", name, err.text);
    OWN(mem) char *got = answer_text(&again);
    if (strcmp(got, wanted) != 0)
        test_fail(__FILE__, __LINE__, "%s: our body gives\n%s, not\n%s", name, got, wanted);
}

static void check_answer(const char *name, const char *folder, const struct dialect *dialect,
                         const struct trace_request *request, struct json_writer *out)
{
    OWN(mem) char *path = mem_format("%s/stream.sse", folder);
    OWN(buf) struct buf stream = {0};
    OWN(arena) struct arena arena = {0};
    struct trace_answer answer = {0}, slowly = {0};
    struct err err = {0}, err_slowly = {0};
    if (file_read(path, 1 << 20, &stream, &err) < 0) {
        test_fail(__FILE__, __LINE__, "%s", err.text);
        return;
    }
    (void)read_stream(dialect, buf_str(&stream), stream.size, &arena, &answer, &err);
    (void)read_stream(dialect, buf_str(&stream), 1, &arena, &slowly, &err_slowly);
    OWN(mem) char *fast_text = answer_text(&answer);
    OWN(mem) char *slow_text = answer_text(&slowly);
    if (strcmp(fast_text, slow_text) != 0 || strcmp(err.text, err_slowly.text) != 0)
        test_fail(__FILE__, __LINE__, "%s: byte by byte it is\n%s %s, not\n%s %s", name, slow_text,
                  err_slowly.text, fast_text, err.text);
    write_outcome(out, &answer, &err);
    if (err.kind == ERR_NONE)
        check_round_trip(name, request, &answer);
}

static void check_folder(const char *name)
{
    OWN(mem) char *folder = mem_format("%s/%s", GOLDEN, name);
    OWN(mem) char *request_path = mem_format("%s/request.json", folder);
    OWN(mem) char *trace_path = mem_format("%s/trace.json", folder);
    OWN(mem) char *route_path = mem_format("%s/route", folder);
    OWN(buf) struct buf body = {0}, wanted = {0}, got = {0}, path = {0}, chat = {0};
    OWN(json_doc) struct json_doc doc = {0};
    OWN(arena) struct arena arena = {0};
    struct err err = {0};
    if (file_read(request_path, 1 << 20, &body, &err) < 0 ||
        json_read(&doc, buf_str(&body), NULL, &err) < 0) {
        test_fail(__FILE__, __LINE__, "%s: %s", name, err.text);
        return;
    }
    if (file_read(route_path, 256, &path, NULL) < 0)
        buf_str_append(&path, STR("/v1/chat/completions"));
    struct dialect_route route = dialect_find_route(STR("POST"), str_trim(buf_str(&path)));
    if (route.kind != DIALECT_ROUTE_CALL) {
        test_fail(__FILE__, __LINE__, "%s: '%s' is no route", name, buf_text(&path));
        return;
    }
    struct json_writer out = {.out = &got, .indent = 2};
    struct trace_request request;
    json_begin_object(&out);
    if (dialect_read_request(&route, json_root(&doc), &arena, &request, &err) < 0) {
        json_set_text(&out, "refused", err.text);
    } else {
        json_key(&out, "request");
        trace_request_write(&request, &out);
        if (route.dialect != &dialect_chat) {
            struct dialect_override nothing = {0};
            (void)dialect_write_request(&dialect_chat, &request, &nothing, &chat);
            json_set_raw(&out, "as_chat", buf_str(&chat));
        }
        check_answer(name, folder, route.dialect, &request, &out);
    }
    json_end_object(&out);
    buf_byte(&got, '\n');
    if (getenv("GOLDEN_WRITE")) {
        (void)file_write(trace_path, buf_str(&got), 0644, false, NULL);
        return;
    }
    if (file_read(trace_path, 1 << 20, &wanted, &err) < 0)
        test_fail(__FILE__, __LINE__, "%s: %s", name, err.text);
    else if (!str_equal(buf_str(&got), buf_str(&wanted)))
        test_fail(__FILE__, __LINE__, "%s gives\n%s", trace_path, buf_text(&got));
}

TEST(every_golden_folder_means_what_it_says)
{
    DIR *folder = opendir(GOLDEN);
    EXPECT(folder);
    int count = 0;
    for (struct dirent *entry; (entry = readdir(folder));) {
        /* samples/ is for test_trace_sample_golden.c */
        if (entry->d_name[0] == '.' || strcmp(entry->d_name, "samples") == 0)
            continue;
        check_folder(entry->d_name);
        count++;
    }
    closedir(folder);
    EXPECT(count >= 35);
}
