/* A server that died in the middle of calls, and the next one, in the same home: numbers, limits
 * and answers go on; each call is in the record once. */
#include "test_gateway.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>

#define COMPLETION(text)                                                                           \
    "{\"id\":\"chatcmpl-1\",\"object\":\"chat.completion\",\"created\":1,\"model\":\"m\","         \
    "\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"" text "\"},"     \
    "\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":11,\"completion_tokens\":3,"        \
    "\"total_tokens\":14}}"
#define EVENT(text) "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"" text "\"}}]}\n\n"
#define FINISH                                                                                     \
    "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n"              \
    "data: [DONE]\n\n"

static char *body_of(const char *text, bool stream)
{
    return mem_format("{\"model\":\"any\",\"stream\":%s,\"messages\":[{\"role\":\"user\","
                      "\"content\":\"%s\"}]}",
                      stream ? "true" : "false", text);
}

/* "slow" is never answered by a server that is about to die. */
static bool dying;

static void answer(struct world *world, struct http_exchange *exchange)
{
    static const struct http_header type = {{"content-type", 12}, {"text/event-stream", 17}};
    struct str asked = buf_str(&world->upstream_body);
    bool stream = str_find(asked, STR("\"stream\":true")) >= 0;
    const char *who = dying ? "old" : "new";
    if (dying && str_find(asked, STR("slow")) >= 0)
        return;
    if (!stream) {
        OWN(mem) char *text = mem_format(COMPLETION("%s %d"), who, world->upstream_calls);
        http_respond_json(exchange, 200, str_of(text));
        return;
    }
    OWN(mem) char *text = mem_format(EVENT("%s %d") FINISH, who, world->upstream_calls);
    http_respond_begin(exchange, 200, &type, 1);
    (void)http_respond_write(exchange, str_of(text));
    http_respond_end(exchange);
}

static void start(struct world *world, struct gateway_session_options options)
{
    world->upstream_answer = answer;
    world_start(world);
    world_model(world);
    world_open(world, options);
}

/* A server in a process of its own that dies when `act` has done what it has to do. */
static void die_after(struct world *home_of, struct gateway_session_options options,
                      void (*act)(struct world *world))
{
    int ends[2];
    if (pipe(ends) < 0)
        abort();
    pid_t pid = fork();
    if (pid == 0) {
        struct world world = {0};
        snprintf(world.home, sizeof world.home, "%s", home_of->home);
        dying = true;
        start(&world, options);
        act(&world);
        (void)!write(ends[1], world.home, sizeof world.home);
        kill(getpid(), SIGKILL);
    }
    close(ends[1]);
    if (read(ends[0], home_of->home, sizeof home_of->home) != sizeof home_of->home)
        abort();
    close(ends[0]);
    waitpid(pid, NULL, 0);
}

static void ask(struct world *world, const char *text, bool stream, struct reply *reply)
{
    OWN(mem) char *body = body_of(text, stream);
    agent_ask(world, reply, body);
    reply_wait(reply);
}

static bool note_call(void *context, const struct store_call *call)
{
    buf_format(context, "%u:%s ", call->number, call->state);
    return true;
}

static void expect_record(struct world *world, const char *wanted)
{
    OWN(buf) struct buf text = {0};
    (void)store_list_calls(world->store, "r-test", note_call, &text, NULL);
    EXPECT_TEXT(buf_text(&text), wanted);
}

static size_t lines_in(struct world *world)
{
    OWN(buf) struct buf text = {0};
    (void)file_read(world->calls_path, 1 << 20, &text, NULL);
    size_t count = 0;
    for (size_t i = 0; i < text.size; i++)
        count += text.data[i] == '\n';
    return count;
}

/* ---------------------------------------------------------------- answered */
static struct reply old_reply;

static void act_answered(struct world *world)
{
    ask(world, "one", false, &old_reply);
    ask(world, "two", true, &old_reply);
}

TEST(an_answer_that_was_committed_is_given_to_the_retry_and_numbers_go_on)
{
    struct world world = {0};
    die_after(&world, (struct gateway_session_options){0}, act_answered);
    start(&world, (struct gateway_session_options){.restore = true});
    const struct gateway_stats *stats = gateway_session_stats(world.session);
    EXPECT_INT(stats->calls, 2);
    EXPECT_INT(stats->answered, 2);
    EXPECT_INT(stats->turns, 2);
    EXPECT_INT(stats->usage.prompt_tokens, 11);
    struct reply reply;
    ask(&world, "two", true, &reply);
    EXPECT_INT(reply.status, 200);
    EXPECT(reply_has(&reply, "old 2") && reply_has(&reply, "[DONE]"));
    buf_deinit(&reply.body);
    EXPECT_INT(world.upstream_calls, 0);
    EXPECT_INT(stats->redelivered, 1);
    ask(&world, "three", false, &reply);
    EXPECT(reply_has(&reply, "new 1"));
    buf_deinit(&reply.body);
    EXPECT_INT(stats->calls, 3);
    expect_record(&world, "1:answered 2:answered 3:answered ");
    EXPECT_INT(lines_in(&world), 3);
    world_end(&world);
}

TEST(an_answer_that_certainly_arrived_is_not_given_again)
{
    struct world world = {0};
    /* The second request came on the same connection: the first answer was taken by then. */
    die_after(&world, (struct gateway_session_options){0}, act_answered);
    start(&world, (struct gateway_session_options){.restore = true});
    struct reply reply;
    ask(&world, "one", false, &reply);
    EXPECT(reply_has(&reply, "new 1"));
    buf_deinit(&reply.body);
    expect_record(&world, "1:answered 2:answered 3:answered ");
    world_end(&world);
}

enum { PARALLEL = 80 };

static void act_parallel(struct world *world)
{
    static struct reply replies[PARALLEL];
    for (int i = 0; i < PARALLEL; i++) {
        OWN(mem) char *text = mem_format("question %d", i);
        OWN(mem) char *body = body_of(text, false);
        agent_ask(world, &replies[i], body);
    }
    for (int i = 0; i < PARALLEL; i++)
        reply_wait(&replies[i]);
}

/* As many as may be in flight may not have arrived. */
TEST(answers_to_many_calls_at_once_are_all_given_again)
{
    struct world world = {0};
    struct gateway_limits limits = {.in_flight_max = PARALLEL, .connections_max = PARALLEL + 1};
    die_after(&world, (struct gateway_session_options){.limits = limits}, act_parallel);
    start(&world, (struct gateway_session_options){.restore = true, .limits = limits});
    for (int i = 0; i < PARALLEL; i++) {
        OWN(mem) char *text = mem_format("question %d", i);
        struct reply reply;
        ask(&world, text, false, &reply);
        EXPECT(reply_has(&reply, "old "));
        buf_deinit(&reply.body);
    }
    EXPECT_INT(world.upstream_calls, 0);
    EXPECT_INT(gateway_session_stats(world.session)->calls, PARALLEL);
    world_end(&world);
}

/* ---------------------------------------------------------------- open */
static void act_open(struct world *world)
{
    static struct reply replies[2];
    ask(world, "one", false, &old_reply);
    OWN(mem) char *slow = body_of("slow", true);
    OWN(mem) char *slower = body_of("slower", false);
    agent_ask(world, &replies[0], slow);
    agent_ask(world, &replies[1], slower);
    while (world->upstream_calls < 3)
        loop_once(world->loop, 100);
}

TEST(a_call_without_an_entry_goes_on_under_its_number_and_is_one_call)
{
    struct world world = {0};
    die_after(&world, (struct gateway_session_options){0}, act_open);
    start(&world, (struct gateway_session_options){.restore = true});
    const struct gateway_stats *stats = gateway_session_stats(world.session);
    EXPECT_INT(stats->calls, 3);
    expect_record(&world, "1:answered 2:open 3:open ");
    struct reply reply;
    ask(&world, "slower", false, &reply);
    EXPECT(reply_has(&reply, "new 1"));
    buf_deinit(&reply.body);
    EXPECT_INT(stats->calls, 3);
    struct gateway_counts counts; /* of this process: it admitted one, and that one ended */
    gateway_counts(world.gateway, &counts);
    EXPECT_INT(counts.calls, 1);
    EXPECT_INT(counts.answered, 1);
    OWN(buf) struct buf lines = {0};
    EXPECT_INT(file_read(world.calls_path, 1 << 20, &lines, NULL), 0);
    EXPECT(str_find(buf_str(&lines), STR("\"attempts\":2")) >= 0);
    /* Nobody asks for the other one again. */
    world_close_session(&world, 1000);
    EXPECT(str_find(buf_str(&world.report), STR("\"broken\":1")) >= 0);
    store_close(world.store);
    world.store = store_open(world.home, NULL);
    OWN(buf) struct buf text = {0};
    (void)store_list_calls(world.store, "r-test", note_call, &text, NULL);
    EXPECT(str_find(buf_str(&text), STR("1:answered ")) >= 0);
    EXPECT(str_find(buf_str(&text), STR(":broken ")) >= 0);
    EXPECT(str_find(buf_str(&text), STR(":open ")) < 0);
    EXPECT_INT(lines_in(&world), 3);
    gateway_free(world.gateway);
    world.gateway = gateway_new(world.loop, &(struct gateway_options){world.store}, NULL);
    world_end(&world);
}

/* ---------------------------------------------------------------- twins and refusals */
static void act_twins(struct world *world)
{
    static struct reply replies[2];
    OWN(mem) char *slow = body_of("slow", false);
    agent_ask(world, &replies[0], slow);
    while (world->upstream_calls < 1)
        loop_once(world->loop, 100);
    agent_ask(world, &replies[1], slow);
    while (world->upstream_calls < 2)
        loop_once(world->loop, 100);
}

TEST(an_open_call_is_ended_whoever_asks_and_however_often_it_is_refused)
{
    struct world world = {0};
    die_after(&world, (struct gateway_session_options){0}, act_twins);
    start(&world,
          (struct gateway_session_options){.restore = true, .limits = {.in_flight_max = 1}});
    expect_record(&world, "1:open 2:open ");
    struct reply busy, reply;
    OWN(mem) char *other = body_of("slow one", false);
    dying = true;
    agent_ask(&world, &busy, other);
    while (world.upstream_calls < 1)
        loop_once(world.loop, 100);
    ask(&world, "slow", false, &reply);
    EXPECT_INT(reply.status, 429);
    buf_deinit(&reply.body);
    dying = false;
    world_close_session(&world, 0);
    reply_wait(&busy); /* what it gets comes after the session is gone */
    buf_deinit(&busy.body);
    OWN(buf) struct buf text = {0};
    (void)store_list_calls(world.store, "r-test", note_call, &text, NULL);
    EXPECT(str_find(buf_str(&text), STR("1:broken ")) >= 0);
    EXPECT(str_find(buf_str(&text), STR("2:broken ")) >= 0);
    EXPECT(str_find(buf_str(&text), STR(":open ")) < 0);
    world_end(&world);
}

/* ---------------------------------------------------------------- limits */
TEST(limits_count_what_a_dead_server_spent)
{
    struct world world = {0};
    struct gateway_session_options options = {.limits.calls_max = 3};
    die_after(&world, options, act_answered);
    options.restore = true;
    start(&world, options);
    struct reply reply;
    ask(&world, "three", false, &reply);
    EXPECT_INT(reply.status, 200);
    buf_deinit(&reply.body);
    ask(&world, "four", false, &reply);
    EXPECT_INT(reply.status, 400);
    EXPECT(reply_has(&reply, "limit of 3 calls"));
    buf_deinit(&reply.body);
    world_end(&world);
}

static void act_large(struct world *world)
{
    OWN(mem) char *words = mem_zero(100001);
    memset(words, 'x', 100000);
    for (int i = 0; i < 2; i++) {
        words[0] = (char)('a' + i); /* new from the front on */
        ask(world, words, false, &old_reply);
    }
}

TEST(what_a_dead_server_recorded_counts)
{
    for (int fits = 0; fits < 2; fits++) {
        struct world world = {0};
        struct gateway_session_options options = {.limits.record_bytes_max =
                                                      fits ? 300000 : 150000};
        die_after(&world, options, act_large);
        options.restore = true;
        start(&world, options);
        struct reply reply;
        ask(&world, "three", false, &reply);
        EXPECT_INT(reply.status, fits ? 200 : 400);
        EXPECT(fits || reply_has(&reply, "limit of 150000 recorded bytes"));
        buf_deinit(&reply.body);
        world_end(&world);
    }
}

/* ---------------------------------------------------------------- calls.jsonl */
static void act_torn(struct world *world)
{
    act_answered(world);
    OWN(buf) struct buf text = {0};
    (void)file_read(world->calls_path, 1 << 20, &text, NULL);
    struct str all = buf_str(&text);
    size_t first = (size_t)str_find_byte(all, '\n') + 1;
    if (truncate(world->calls_path, (off_t)first + 20) < 0) /* the second line is half written */
        abort();
}

TEST(a_line_that_was_not_written_is_made_from_the_journal)
{
    struct world world = {0};
    die_after(&world, (struct gateway_session_options){0}, act_torn);
    start(&world, (struct gateway_session_options){.restore = true});
    OWN(buf) struct buf text = {0};
    EXPECT_INT(file_read(world.calls_path, 1 << 20, &text, NULL), 0);
    EXPECT_INT(lines_in(&world), 2);
    for (struct str rest = buf_str(&text); rest.size;) {
        OWN(json_doc) struct json_doc doc = {0};
        struct str line = str_cut(&rest, '\n');
        EXPECT_INT(json_read(&doc, line, NULL, NULL), 0);
        struct json root = json_root(&doc);
        EXPECT(json_size(json_get(json_get(root, "request"), "messages")) == 1);
        EXPECT(json_is(json_get(root, "state"), "answered"));
    }
    world_end(&world);
}

/* What nobody asked for again is entered without a request; its line is lost, too. */
static void act_given_up(struct world *world)
{
    world_close_session(world, 0);
    store_close(world->store);
    if (truncate(world->calls_path, 0) < 0)
        abort();
}

TEST(a_line_of_a_call_without_a_request_is_made_from_the_journal)
{
    struct world world = {0};
    die_after(&world, (struct gateway_session_options){0}, act_open);
    die_after(&world, (struct gateway_session_options){.restore = true}, act_given_up);
    start(&world, (struct gateway_session_options){.restore = true});
    expect_record(&world, "1:answered 2:broken 3:broken ");
    EXPECT_INT(lines_in(&world), 3);
    OWN(buf) struct buf text = {0};
    EXPECT_INT(file_read(world.calls_path, 1 << 20, &text, NULL), 0);
    for (struct str rest = buf_str(&text); rest.size;) {
        OWN(json_doc) struct json_doc doc = {0};
        EXPECT_INT(json_read(&doc, str_cut(&rest, '\n'), NULL, NULL), 0);
        bool broken = json_is(json_get(json_root(&doc), "state"), "broken");
        EXPECT(json_type(json_get(json_root(&doc), "request")) ==
               (broken ? JSON_NULL : JSON_OBJECT));
    }
    world_end(&world);
}

static void act_long(struct world *world)
{
    act_answered(world);
    int fd = open(world->calls_path, O_WRONLY | O_CLOEXEC);
    if (fd < 0 || pwrite(fd, "\n", 1, ((off_t)1 << 30) + 7) != 1)
        abort();
    close(fd);
}

TEST_WITHIN(a_session_with_very_long_lines_is_restored, 60)
{
    struct world world = {0};
    die_after(&world, (struct gateway_session_options){0}, act_long);
    start(&world, (struct gateway_session_options){.restore = true});
    EXPECT_INT(gateway_session_stats(world.session)->calls, 2);
    struct stat status;
    EXPECT_INT(stat(world.calls_path, &status), 0);
    EXPECT(status.st_size == ((off_t)1 << 30) + 8); /* nothing cut, nothing added */
    world_end(&world);
}

TEST(a_session_without_a_record_is_restored_as_an_empty_one)
{
    struct world world = {0};
    start(&world, (struct gateway_session_options){.restore = true});
    EXPECT_INT(gateway_session_stats(world.session)->calls, 0);
    struct reply reply;
    ask(&world, "one", false, &reply);
    EXPECT_INT(reply.status, 200);
    buf_deinit(&reply.body);
    world_end(&world);
}
