/* bench_gateway.c - agents in a closed loop, and a trainer when there is one to be; prints one JSON
 * object.
 *
 *     bench_gateway --url URL --agents N [--ms MS] [--warm-ms MS] [--body BYTES] [--grow BYTES]
 *                   [--turns N] [--calls N] [--stream] [--trainer URL [--token FILE] [--takers N]]
 *     bench_gateway --url URL --agents N --hold
 *
 * Each agent posts a chat completion of about BYTES and, when the answer is complete, the next one.
 * With --grow the conversation continues: the next request is the last one and GROW bytes of new
 * messages, until it begins anew after N turns. Samples ("us") are the whole answers that ended
 * after the warm-up, and with --stream
 * ("event_us") how long each event was under way from bench_upstream. The trainer long-polls
 * /v1/gate/take and answers everything at once with 1 KB. With --hold the calls are sent and kept
 * until standard input ends. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/file.h"
#include "base/mem.h"
#include "http/http.h"
#include "json/json.h"
#include "loop/loop.h"

#define SAMPLES_MAX (4u << 20)
#define TAIL_MS_MAX 3000 /* for what is under way at the end */
#define TAKE_CALLS 64
#define MARK STR("\"call_id\":\"")
#define EDGE_BYTES ((size_t)64) /* a mark and an id fit */

struct samples {
    uint32_t *us;
    size_t count;
};

struct agent {
    struct buf body;
    size_t open; /* bytes before the closing brackets */
    struct sse_parser events;
    uint64_t since_ns;
    int status;
    size_t calls;
};

struct taker {
    struct buf ids;  /* of the calls it was given so far, a blank after each */
    struct buf edge; /* the end of the piece before: an id may begin there */
    int status;
};

static struct {
    const char *url, *trainer;
    size_t agents, body_bytes, grow_bytes, turns, calls_max, takers;
    uint64_t ms, warm_ms;
    bool stream, hold;
} options = {.agents = 1, .body_bytes = 30000, .ms = 1000, .warm_ms = 200, .takers = 2};

static struct loop *loop;
static struct http_client *client, *trainer_client;
static uint64_t begin_ns, end_ns, number;
static size_t shared_open; /* bytes of the common body before the last message */
static size_t under_way, calls_all, calls_inside, failed, events_all, taken;
static struct samples latencies, event_latencies;
static char trouble[300];
static struct http_header trainer_headers[2];
static struct str answer;

static void note(const char *text)
{
    failed++;
    if (!trouble[0])
        snprintf(trouble, sizeof trouble, "%s", text);
}

static void sample(struct samples *samples, uint64_t us)
{
    if (!samples->us)
        samples->us = mem_alloc(SAMPLES_MAX * sizeof *samples->us);
    if (samples->count < SAMPLES_MAX)
        samples->us[samples->count++] = (uint32_t)us;
}

/* ---------------------------------------------------------------- bodies */

/* A tool's output: lines of source with the escapes they have in JSON. */
static void append_text(struct buf *out, size_t size)
{
    static const char line[] = "    if (count > \\\"limit\\\") return parse(input, offset + 1);\\n";
    size_t start = out->size;
    while (out->size - start + sizeof line < size)
        buf_append(out, line, sizeof line - 1);
}

static void append_turn(struct buf *out, size_t size)
{
    static unsigned turn;
    buf_format(out,
               ",{\"role\":\"assistant\",\"content\":\"I look at the file.\",\"tool_calls\":[{"
               "\"id\":\"call_%08u\",\"type\":\"function\",\"function\":{\"name\":\"bash\","
               "\"arguments\":\"{\\\"command\\\":\\\"sed -n 1,80p src/main.c\\\"}\"}}]},"
               "{\"role\":\"tool\",\"tool_call_id\":\"call_%08u\",\"content\":\"",
               turn, turn);
    turn++;
    append_text(out, size > 320 ? size - 320 : 0);
    buf_str_append(out, STR("\"}"));
}

static void append_tools(struct buf *out)
{
    static const char *const names[] = {"bash", "read",  "write", "edit", "glob", "grep",
                                        "task", "fetch", "todo",  "plan", "list", "patch"};
    buf_str_append(out, STR("\"tools\":["));
    for (size_t i = 0; i < COUNT(names); i++) {
        buf_format(out, "%s{\"type\":\"function\",\"function\":{\"name\":\"%s\",\"description\":\"",
                   i ? "," : "", names[i]);
        append_text(out, 300);
        buf_str_append(out, STR("\",\"parameters\":{\"type\":\"object\",\"properties\":{\"path\":{"
                                "\"type\":\"string\",\"description\":\"Where.\"},\"limit\":{"
                                "\"type\":\"integer\"}},\"required\":[\"path\"]}}}"));
    }
    buf_str_append(out, STR("],"));
}

static void build_body(struct buf *out)
{
    buf_str_append(out, STR("{\"model\":\"bench\",\"temperature\":0.7,"));
    if (options.stream)
        buf_str_append(out, STR("\"stream\":true,\"stream_options\":{\"include_usage\":true},"));
    append_tools(out);
    buf_str_append(out, STR("\"messages\":[{\"role\":\"system\",\"content\":\""));
    append_text(out, 4000);
    buf_str_append(out, STR("\"},{\"role\":\"user\",\"content\":\"Fix the bug.\"}"));
    while (out->size + 3000 < options.body_bytes)
        append_turn(out, 3000);
    if (out->size + 400 < options.body_bytes)
        append_turn(out, options.body_bytes - out->size);
}

/* The next request of this agent: more messages when it grows, and a last one of its own. */
static struct str next_body(struct agent *agent, struct buf *shared)
{
    struct buf *body = options.grow_bytes ? &agent->body : shared;
    size_t *open = options.grow_bytes ? &agent->open : &shared_open;
    bool anew = !*open || (options.turns && agent->calls % options.turns == 0);
    if (options.grow_bytes && anew) {
        buf_clear(body);
        buf_str_append(body, str_upto(buf_str(shared), shared_open));
        *open = body->size;
    }
    body->size = *open;
    if (options.grow_bytes && !anew)
        append_turn(body, options.grow_bytes);
    *open = body->size;
    buf_format(body, ",{\"role\":\"user\",\"content\":\"Go on: %llu.\"}]}",
               (unsigned long long)number++);
    return buf_str(body);
}

/* ---------------------------------------------------------------- agents */
static void agent_next(struct agent *agent);

static void agent_head(void *context, const struct http_answer_head *head)
{
    ((struct agent *)context)->status = head->status;
}

static void on_event(void *context, struct str event, struct str data)
{
    (void)context;
    (void)event;
    static const char mark[] = "\"content\":\"";
    char *at = memmem(data.data, data.size, mark, sizeof mark - 1);
    events_all++;
    if (!at || at + sizeof mark + 15 > data.data + data.size)
        return;
    uint64_t then = strtoull(at + sizeof mark - 1, NULL, 10);
    uint64_t now = clock_mono_ns() / 1000;
    if (then && now >= then)
        sample(&event_latencies, now - then);
}

static void agent_data(void *context, struct str data)
{
    struct agent *agent = context;
    struct err err = {0};
    if (options.stream && sse_feed(&agent->events, data, &err) < 0)
        note(err.text);
}

static bool is_over(void)
{
    uint64_t past_ms = (clock_mono_ns() - begin_ns) / 1000000;
    if (options.calls_max)
        return calls_all + under_way >= options.calls_max * options.agents;
    return past_ms >= options.warm_ms + options.ms;
}

static void agent_done(void *context, const struct err *err, bool sent_nothing)
{
    (void)sent_nothing;
    struct agent *agent = context;
    uint64_t now = clock_mono_ns();
    uint64_t past_ms = (now - begin_ns) / 1000000;
    under_way--;
    agent->calls++;
    if (err->kind != ERR_NONE || agent->status != 200) {
        char text[64];
        snprintf(text, sizeof text, "status %d", agent->status);
        note(err->kind != ERR_NONE ? err->text : text);
    } else {
        calls_all++;
        if (options.calls_max || past_ms >= options.warm_ms)
            sample(&latencies, (now - agent->since_ns) / 1000);
        if (options.calls_max ||
            (past_ms >= options.warm_ms && past_ms < options.warm_ms + options.ms))
            calls_inside++;
    }
    if (!is_over() && failed <= 1000) {
        agent_next(agent);
        return;
    }
    end_ns = now;
    if (!under_way)
        loop_stop(loop);
}

static void agent_next(struct agent *agent)
{
    static const struct http_call_handlers handlers = {agent_head, agent_data, agent_done};
    static const struct http_header headers[] = {{{"content-type", 12}, {"application/json", 16}},
                                                 {{"authorization", 13}, {"Bearer bench", 12}}};
    static struct buf shared;
    if (!shared.size) {
        build_body(&shared);
        shared_open = shared.size;
    }
    struct http_request request = {
        .method = "POST",
        .url = options.url,
        .headers = headers,
        .header_count = COUNT(headers),
        .body = next_body(agent, &shared),
        .body_stays = options.grow_bytes > 0, /* it is this agent's own */
    };
    sse_deinit(&agent->events);
    agent->events = (struct sse_parser){.on_event = on_event};
    agent->status = 0;
    agent->since_ns = clock_mono_ns();
    under_way++;
    (void)http_call_start(client, &request, &handlers, agent);
}

/* ---------------------------------------------------------------- the trainer */
static void taker_next(struct taker *taker);

static void answer_head(void *context, const struct http_answer_head *head)
{
    (void)context;
    if (head->status >= 300) {
        char text[64];
        snprintf(text, sizeof text, "the gate took an answer with status %d", head->status);
        note(text);
    }
}

static void answer_data(void *context, struct str data)
{
    (void)context;
    (void)data;
}

static void answer_done(void *context, const struct err *err, bool sent_nothing)
{
    (void)context;
    (void)sent_nothing;
    if (err->kind != ERR_NONE && under_way)
        note(err->text);
}

static void give_answer(struct str call_id)
{
    static const struct http_call_handlers handlers = {answer_head, answer_data, answer_done};
    char url[300];
    snprintf(url, sizeof url, "%s/v1/gate/calls/%.*s/answer", options.trainer, STR_ARGS(call_id));
    struct http_request request = {
        .method = "POST",
        .url = url,
        .headers = trainer_headers,
        .header_count = COUNT(trainer_headers),
        .body = answer,
        .body_stays = true,
    };
    (void)http_call_start(trainer_client, &request, &handlers, NULL);
}

static void taker_head(void *context, const struct http_answer_head *head)
{
    ((struct taker *)context)->status = head->status;
}

/* Ids whose mark begins in the first `size` bytes. The load must cost little: a take has megabytes,
 * and underscores are rare in them. */
static void find_ids(struct taker *taker, struct str text, size_t size)
{
    enum { BEFORE = 5 }; /* of the mark, up to its underscore */
    size_t at = BEFORE;
    const char *found;
    while (at < text.size && (found = memchr(text.data + at, '_', text.size - at))) {
        struct str rest = str_from(text, (size_t)(found - text.data) - BEFORE);
        at = (size_t)(found - text.data) + 1;
        if (text.size - rest.size >= size)
            return;
        if (!str_starts(rest, MARK))
            continue;
        rest = str_from(rest, MARK.size);
        struct str id = str_cut(&rest, '"');
        CHECK(id.size < EDGE_BYTES - MARK.size);
        buf_str_append(&taker->ids, id);
        buf_byte(&taker->ids, ' ');
    }
}

/* Every place of the answer is looked at once, with what follows it. */
static void taker_data(void *context, struct str data)
{
    struct taker *taker = context;
    struct buf *edge = &taker->edge;
    size_t before = edge->size;
    buf_str_append(edge, str_upto(data, data.size < EDGE_BYTES ? data.size : EDGE_BYTES));
    if (data.size < EDGE_BYTES)
        before = edge->size > EDGE_BYTES ? edge->size - EDGE_BYTES : 0;
    find_ids(taker, buf_str(edge), before);
    if (data.size < EDGE_BYTES) {
        buf_consume(edge, before);
        return;
    }
    find_ids(taker, data, data.size - EDGE_BYTES);
    buf_clear(edge);
    buf_str_append(edge, str_from(data, data.size - EDGE_BYTES));
}

static void taker_done(void *context, const struct err *err, bool sent_nothing)
{
    (void)sent_nothing;
    struct taker *taker = context;
    if (err->kind != ERR_NONE || taker->status / 100 != 2) {
        char text[64];
        snprintf(text, sizeof text, "the gate answered a take with %d", taker->status);
        note(err->kind != ERR_NONE ? err->text : text);
        if (failed > 1000)
            loop_stop(loop);
    }
    find_ids(taker, buf_str(&taker->edge), taker->edge.size);
    struct str ids = buf_str(&taker->ids);
    for (; ids.size; taken++)
        give_answer(str_cut(&ids, ' '));
    taker_next(taker);
}

static void taker_next(struct taker *taker)
{
    static const struct http_call_handlers handlers = {taker_head, taker_data, taker_done};
    char url[300], body[100];
    snprintf(url, sizeof url, "%s/v1/gate/take", options.trainer);
    snprintf(body, sizeof body, "{\"max\":%d,\"wait_ms\":30000,\"lease_ms\":60000,\"raw\":false}",
             TAKE_CALLS);
    struct http_request request = {
        .method = "POST",
        .url = url,
        .headers = trainer_headers,
        .header_count = COUNT(trainer_headers),
        .body = str_of(body),
    };
    buf_clear(&taker->ids);
    buf_clear(&taker->edge);
    (void)http_call_start(trainer_client, &request, &handlers, taker);
}

static void start_trainer(const char *token)
{
    static char words[2048];
    char text[701];
    memset(text, 'a', sizeof text - 1);
    text[sizeof text - 1] = 0;
    snprintf(words, sizeof words,
             "{\"id\":\"chatcmpl-1\",\"object\":\"chat.completion\",\"created\":1700000000,"
             "\"model\":\"bench\",\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\","
             "\"content\":\"%s\"},\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":7500,"
             "\"completion_tokens\":175,\"total_tokens\":7675}}",
             text);
    answer = str_of(words);
    trainer_headers[0] = (struct http_header){STR("content-type"), STR("application/json")};
    trainer_headers[1] = (struct http_header){STR("authorization"), str_of(token)};
    for (size_t i = 0; i < options.takers; i++)
        taker_next(mem_zero(sizeof(struct taker)));
}

/* ---------------------------------------------------------------- the report */
static int by_value(const void *a, const void *b)
{
    uint32_t left = *(const uint32_t *)a, right = *(const uint32_t *)b;
    return left < right ? -1 : left > right;
}

static void put_samples(struct json_writer *out, const char *name, struct samples *samples)
{
    if (!samples->count)
        return;
    qsort(samples->us, samples->count, sizeof *samples->us, by_value);
    json_key(out, name);
    json_begin_object(out);
    json_set_int(out, "count", (long long)samples->count);
    json_set_int(out, "p50", samples->us[samples->count / 2]);
    json_set_int(out, "p99", samples->us[samples->count * 99 / 100]);
    json_set_int(out, "max", samples->us[samples->count - 1]);
    json_end_object(out);
}

static void report(void)
{
    OWN(buf) struct buf text = {0};
    struct json_writer out = {.out = &text};
    uint64_t past_ns = (end_ns ? end_ns : clock_mono_ns()) - begin_ns;
    /* Who answers fewer calls in the window than there are agents is judged by the whole run. */
    bool whole = options.calls_max || calls_inside < options.agents;
    double rate = whole ? (double)calls_all / ((double)past_ns / 1e9)
                        : (double)calls_inside / ((double)options.ms / 1e3);
    json_begin_object(&out);
    json_set_int(&out, "calls", (long long)calls_all);
    json_set_double(&out, "per_second", rate);
    json_set_double(&out, "seconds", (double)past_ns / 1e9);
    json_set_int(&out, "events", (long long)events_all);
    json_set_int(&out, "taken", (long long)taken);
    json_set_int(&out, "failed", (long long)failed);
    json_set_int(&out, "unfinished", (long long)under_way);
    if (trouble[0])
        json_set_text(&out, "trouble", trouble);
    put_samples(&out, "us", &latencies);
    put_samples(&out, "event_us", &event_latencies);
    json_end_object(&out);
    buf_byte(&text, '\n');
    fwrite(text.data, 1, text.size, stdout);
    fflush(stdout);
}

static void on_late(struct loop_timer *timer)
{
    (void)timer;
    note("calls were still under way long after the end");
    loop_stop(loop);
}

static void on_input(struct loop_watch *watch, uint32_t events)
{
    (void)events;
    char byte;
    if (read(watch->fd, &byte, 1) <= 0)
        loop_stop(loop);
}

static const char *read_token(const char *path)
{
    OWN(buf) struct buf text = {0};
    struct err err = {0};
    if (!path)
        return "Bearer bench";
    if (file_read(path, 4096, &text, &err) < 0) {
        fprintf(stderr, "bench_gateway: %s\n", err.text);
        exit(1);
    }
    return mem_format("Bearer %.*s", STR_ARGS(str_trim(buf_str(&text))));
}

static const char *read_options(int argc, char **argv)
{
    static const struct option names[] = {
        {"url", 1, NULL, 'u'},     {"agents", 1, NULL, 'n'},  {"ms", 1, NULL, 't'},
        {"body", 1, NULL, 'b'},    {"grow", 1, NULL, 'g'},    {"stream", 0, NULL, 's'},
        {"hold", 0, NULL, 'h'},    {"trainer", 1, NULL, 'T'}, {"token", 1, NULL, 'k'},
        {"calls", 1, NULL, 'c'},   {"turns", 1, NULL, 'r'},   {"takers", 1, NULL, 'w'},
        {"warm-ms", 1, NULL, 'm'}, {NULL, 0, NULL, 0},
    };
    const char *token_file = NULL;
    int option;
    while ((option = getopt_long(argc, argv, "", names, NULL)) >= 0) {
        switch (option) {
        case 'u':
            options.url = optarg;
            break;
        case 'n':
            options.agents = strtoull(optarg, NULL, 10);
            break;
        case 't':
            options.ms = strtoull(optarg, NULL, 10);
            break;
        case 'm':
            options.warm_ms = strtoull(optarg, NULL, 10);
            break;
        case 'b':
            options.body_bytes = strtoull(optarg, NULL, 10);
            break;
        case 'g':
            options.grow_bytes = strtoull(optarg, NULL, 10);
            break;
        case 'r':
            options.turns = strtoull(optarg, NULL, 10);
            break;
        case 'c':
            options.calls_max = strtoull(optarg, NULL, 10);
            break;
        case 'w':
            options.takers = strtoull(optarg, NULL, 10);
            break;
        case 's':
            options.stream = true;
            break;
        case 'h':
            options.hold = true;
            break;
        case 'T':
            options.trainer = optarg;
            break;
        case 'k':
            token_file = optarg;
            break;
        default:
            exit(2);
        }
    }
    if (!options.url) {
        fprintf(stderr, "bench_gateway: --url is missing\n");
        exit(2);
    }
    return read_token(token_file);
}

int main(int argc, char **argv)
{
    struct err err = {0};
    const char *token = read_options(argc, argv);
    loop = loop_new(&err);
    CHECK(loop);
    struct http_client_options pool = {.per_host_max = 20000};
    client = http_client_new(loop, &pool);
    pool.per_host_max = 64 + options.takers;
    trainer_client = http_client_new(loop, &pool);
    if (options.trainer)
        start_trainer(token);
    struct agent *agents = mem_zero(options.agents * sizeof *agents);
    begin_ns = clock_mono_ns();
    for (size_t i = 0; i < options.agents; i++)
        agent_next(&agents[i]);
    struct loop_timer late = {0};
    struct loop_watch input = {0};
    if (options.hold)
        CHECK(loop_watch_start(loop, &input, STDIN_FILENO, LOOP_READ, on_input, NULL, &err) == 0);
    else
        loop_timer_start(loop, &late, options.warm_ms + options.ms + TAIL_MS_MAX, on_late, NULL);
    loop_run(loop);
    report();
    _exit(failed && !calls_all);
}
