/* calls.jsonl: lines wait for each other, none is lost, and none is half there. */
#include "gateway/inner.h"
#include "test_gateway.h"

#include <signal.h>
#include <sys/resource.h>

static void answer_completion(struct world *world, struct http_exchange *exchange)
{
    (void)world;
    http_respond_json(exchange, 200,
                      STR("{\"object\":\"chat.completion\",\"choices\":[{\"index\":0,\"message\":{"
                          "\"role\":\"assistant\",\"content\":\"hi\"},\"finish_reason\":"
                          "\"stop\"}]}"));
}

static void start(struct world *world, uint32_t lines_ms)
{
    *world = (struct world){.upstream_answer = answer_completion, .lines_ms = lines_ms};
    world_start(world);
    world_model(world);
}

static void ask(struct world *world, int number, size_t size)
{
    struct reply reply;
    OWN(buf) struct buf body = {0};
    buf_format(&body, "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"%d%0*d\"}]}",
               number, (int)size, 0);
    buf_byte(&body, 0);
    agent_ask(world, &reply, body.data);
    reply_wait(&reply);
    EXPECT_INT(reply.status, 200);
    buf_deinit(&reply.body);
}

/* -1: they are not whole, or not numbered from 1. */
static int lines_of(struct world *world)
{
    OWN(buf) struct buf text = {0};
    if (file_read(world->calls_path, 64 << 20, &text, NULL) < 0)
        return -1;
    struct str rest = buf_str(&text);
    int count = 0;
    while (rest.size) {
        OWN(json_doc) struct json_doc doc = {0};
        struct str line = str_cut(&rest, '\n');
        if (json_read(&doc, line, NULL, NULL) < 0 ||
            json_int_or(json_get(json_root(&doc), "number"), 0) != ++count)
            return -1;
    }
    return count;
}

TEST(lines_wait_for_others_until_their_session_closes)
{
    struct world world;
    start(&world, 3600000);
    world_open(&world, (struct gateway_session_options){0});
    for (int i = 0; i < 3; i++)
        ask(&world, i, 10);
    EXPECT_INT(lines_of(&world), 0);
    world_close_session(&world, 1000);
    EXPECT_INT(lines_of(&world), 3);
    EXPECT(str_find(buf_str(&world.report), STR("\"calls_file_complete\":true")) > 0);
    world_end(&world);
}

TEST(many_bytes_do_not_wait)
{
    struct world world;
    start(&world, 3600000);
    world_open(&world, (struct gateway_session_options){0});
    ask(&world, 1, 10);
    ask(&world, 2, 100000);
    EXPECT_INT(lines_of(&world), 2);
    world_end(&world);
}

TEST(lines_of_many_sessions_are_written_when_they_are_due)
{
    enum { SESSIONS = 40 }; /* more than one tick writes */
    struct world world, all[SESSIONS];
    start(&world, 500);
    for (int i = 0; i < SESSIONS; i++) {
        all[i] = world;
        OWN(mem) char *id = mem_format("r-%d", i);
        snprintf(all[i].calls_path, sizeof all[i].calls_path, "%s/%d.jsonl", world.home, i);
        world_open(&all[i], (struct gateway_session_options){.rollout_id = id});
        ask(&all[i], i, 10);
    }
    usleep(600000); /* all are due at once, on a machine that is not too slow */
    for (int i = 0; i < SESSIONS; i++) {
        PUMP_UNTIL(&world, lines_of(&all[i]) == 1);
        world_close_session(&all[i], 1000);
        buf_deinit(&all[i].report);
    }
    world_end(&world);
}

/* ---------------------------------------------------------------- a full disk */

/* The file is larger than the journal will be: a limit on size meets the file alone. */
static size_t make_large(struct world *world)
{
    OWN(buf) struct buf text = {0};
    while (text.size < 1 << 20)
        buf_str_append(&text, STR("{}\n"));
    if (file_write(world->calls_path, buf_str(&text), 0600, false, NULL) < 0)
        abort();
    return text.size;
}

static void limit_files(rlim_t size)
{
    struct rlimit limit = {.rlim_cur = size, .rlim_max = RLIM_INFINITY};
    signal(SIGXFSZ, SIG_IGN);
    EXPECT_INT(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

/* The number of the only line behind `before`; -1: there is more, or part of a line. */
static int only_line(struct world *world, size_t before)
{
    OWN(buf) struct buf text = {0};
    OWN(json_doc) struct json_doc doc = {0};
    if (file_read(world->calls_path, 64 << 20, &text, NULL) < 0 || text.size <= before ||
        text.data[text.size - 1] != '\n')
        return -1;
    struct str rest = str_from(buf_str(&text), before), line = str_cut(&rest, '\n');
    if (rest.size || json_read(&doc, line, NULL, NULL) < 0)
        return -1;
    return (int)json_int_or(json_get(json_root(&doc), "number"), -1);
}

TEST(a_line_that_was_not_finished_does_not_spoil_the_next_one)
{
    struct world world;
    start(&world, 0);
    size_t before = make_large(&world);
    world_open(&world, (struct gateway_session_options){0});
    limit_files(before + 100);
    ask(&world, 1, 10);
    limit_files(RLIM_INFINITY);
    ask(&world, 2, 10);
    EXPECT_INT(only_line(&world, before), 2);
    world_end(&world);
}

/* A conversation of so many turns. */
static void ask_on(struct world *world, int turns)
{
    struct reply reply;
    OWN(buf) struct buf body = {0};
    buf_format(&body, "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"go\"}");
    for (int i = 1; i < turns; i++)
        buf_format(&body,
                   ",{\"role\":\"assistant\",\"content\":\"hi\"},"
                   "{\"role\":\"user\",\"content\":\"and %d\"}",
                   i);
    buf_format(&body, "]}");
    agent_ask(world, &reply, buf_text(&body));
    reply_wait(&reply);
    EXPECT_INT(reply.status, 200);
    buf_deinit(&reply.body);
}

/* What is behind `before` can be put together, without what is lost. */
static void expect_whole(struct world *world, size_t before, size_t count)
{
    OWN(buf) struct buf text = {0};
    struct err err = {0};
    (void)file_read(world->calls_path, 64 << 20, &text, NULL);
    struct str rest = str_from(buf_str(&text), before);
    OWN(mem) char *path = mem_format("%s/rest.jsonl", world->home);
    OWN(mem) char *spec = mem_format("replay:%s", path);
    EXPECT_INT(file_write(path, rest, 0600, false, NULL), 0);
    for (; rest.size; count--)
        (void)str_cut(&rest, '\n');
    EXPECT_INT(count, 0);
    struct model *model = model_open(spec, NULL, &err);
    if (!model)
        test_fail(__FILE__, __LINE__, "%s", err.text);
    model_unref(model);
}

TEST(no_line_refers_to_one_that_was_lost)
{
    for (uint32_t lines_ms = 0; lines_ms < 2; lines_ms++) {
        struct world world;
        start(&world, lines_ms);
        size_t before = make_large(&world);
        world_open(&world, (struct gateway_session_options){0});
        ask_on(&world, 1);
        PUMP_UNTIL(&world, only_line(&world, before) == 1);
        limit_files(before + 1);
        ask_on(&world, 2);
        PUMP_UNTIL(&world, world.session->lines.failed);
        limit_files(RLIM_INFINITY);
        for (int turns = 3; turns < 6; turns++)
            ask_on(&world, turns);
        world_close_session(&world, 1000);
        expect_whole(&world, before, 4);
        world_end(&world);
    }
}

TEST(of_lines_that_waited_those_that_fit_are_kept)
{
    struct world world;
    start(&world, 3600000);
    size_t before = make_large(&world);
    world_open(&world, (struct gateway_session_options){0});
    ask(&world, 1, 10);
    ask(&world, 2, 8000);
    limit_files(before + 4000);
    world_close_session(&world, 1000);
    limit_files(RLIM_INFINITY);
    EXPECT_INT(only_line(&world, before), 1);
    EXPECT(str_find(buf_str(&world.report), STR("\"calls_file_complete\":false")) > 0);
    world_end(&world);
}
