/* Agents that hang up at any moment and ask again, a model server that breaks off, refuses and
 * dawdles: in the end the answers the agents took are the answers in the record, each once. */
#include "test_gateway.h"

enum { AGENTS = 48, TURNS = 4 };

struct chaos;

struct chaotic {
    struct chaos *chaos;
    int index, turn, tries;
    bool marks; /* says so when it asks again */
    bool stream;
    struct reply reply;
    bool asking;
    int patience; /* ticks until it hangs up; -1: none */
    int rest;     /* ticks until it asks */
    char taken[TURNS][32];
};

struct pending {
    struct pending *next;
    struct http_exchange *exchange;
    bool stream, gone;
    int ticks, words_left;
    uint32_t serial;
    int fate; /* 0: good; 1: cut; 2: reset; 3: 503 */
    bool begun;
};

struct chaos {
    struct world world;
    uint64_t seed;
    uint32_t serial;
    struct pending *pending;
    struct chaotic agents[AGENTS];
    int finished;
};

static uint32_t roll(struct chaos *chaos, uint32_t sides)
{
    chaos->seed ^= chaos->seed << 13;
    chaos->seed ^= chaos->seed >> 7;
    chaos->seed ^= chaos->seed << 17;
    return (uint32_t)(chaos->seed >> 33) % sides;
}

/* ---------------------------------------------------------------- the model server */

static void pending_gone(void *context)
{
    ((struct pending *)context)->gone = true;
}

static void answer_chaotically(struct world *world, struct http_exchange *exchange)
{
    struct chaos *chaos = (struct chaos *)(void *)world;
    struct pending *pending = mem_zero(sizeof *pending);
    pending->exchange = exchange;
    pending->stream = str_find(buf_str(&world->upstream_body), STR("\"stream\":true")) >= 0;
    pending->ticks = (int)roll(chaos, 6);
    pending->words_left = 3;
    pending->serial = ++chaos->serial;
    uint32_t luck = roll(chaos, 10);
    pending->fate = luck < 6 ? 0 : (int)luck - 6;
    pending->next = chaos->pending;
    chaos->pending = pending;
    http_exchange_notify(exchange, 1024, NULL, pending_gone, pending);
}

/* True: it is over. */
static bool pending_step(struct pending *pending)
{
    static const struct http_header type = {STR("content-type"), STR("text/event-stream")};
    struct http_exchange *exchange = pending->exchange;
    if (pending->gone)
        return true;
    if (pending->ticks-- > 0)
        return false;
    if (pending->fate == 3 || (pending->fate && !pending->stream)) {
        http_respond_json(exchange, 503, STR("{\"error\":{\"message\":\"later\"}}"));
        return true;
    }
    if (!pending->stream) {
        OWN(mem)
        char *body = mem_format("{\"id\":\"x\",\"object\":\"chat.completion\",\"created\":1,"
                                "\"model\":\"m\",\"choices\":[{\"index\":0,\"message\":{\"role\":"
                                "\"assistant\",\"content\":\"<%08u>\"},\"finish_reason\":\"stop\""
                                "}]}",
                                pending->serial);
        http_respond_json(exchange, 200, str_of(body));
        return true;
    }
    if (!pending->begun)
        http_respond_begin(exchange, 200, &type, 1);
    pending->begun = true;
    OWN(buf) struct buf event = {0};
    if (pending->words_left == 0) {
        if (pending->fate == 0)
            buf_str_append(&event, STR("data: {\"choices\":[{\"index\":0,\"delta\":{},"
                                       "\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n"));
        (void)http_respond_write(exchange, buf_str(&event));
        if (pending->fate == 2)
            http_exchange_reset(exchange);
        else
            http_respond_end(exchange); /* fate 1: cut off, politely */
        return true;
    }
    char word[16];
    snprintf(word, sizeof word, "<%08u>", pending->serial);
    static const struct {
        int start, size;
    } cuts[] = {{7, 3}, {3, 4}, {0, 3}};
    int at = --pending->words_left;
    buf_format(&event, "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"%.*s\"}}]}\n\n",
               cuts[at].size, word + cuts[at].start);
    (void)http_respond_write(exchange, buf_str(&event));
    return false;
}

static void model_step(struct chaos *chaos)
{
    for (struct pending **at = &chaos->pending; *at;) {
        struct pending *pending = *at;
        if (!pending_step(pending)) {
            at = &pending->next;
            continue;
        }
        *at = pending->next;
        free(pending);
    }
}

/* ---------------------------------------------------------------- the agents */

static void agent_go(struct chaotic *agent)
{
    static const struct http_call_handlers handlers = {reply_on_head, reply_on_data, reply_on_done};
    struct world *world = &agent->chaos->world;
    char count[16];
    snprintf(count, sizeof count, "%d", agent->tries);
    struct http_header headers[] = {
        {STR("content-type"), STR("application/json")},
        {STR("x-stainless-retry-count"), str_of(count)},
    };
    OWN(mem) char *url = mem_format("http://127.0.0.1:%u/v1/chat/completions", world->port);
    OWN(mem)
    char *body = mem_format("{\"model\":\"m\",\"stream\":%s,\"messages\":[{\"role\":\"user\","
                            "\"content\":\"agent %d turn %d\"}]}",
                            agent->stream ? "true" : "false", agent->index, agent->turn);
    struct http_request request = {.method = "POST",
                                   .url = url,
                                   .headers = headers,
                                   .header_count = agent->marks ? 2 : 1,
                                   .body = str_of(body)};
    agent->reply = (struct reply){.world = world};
    agent->reply.call = http_call_start(world->agent, &request, &handlers, &agent->reply);
    agent->asking = true;
    agent->tries++;
    agent->patience = roll(agent->chaos, 3) ? -1 : (int)roll(agent->chaos, 25);
}

/* The content of a stream or a body, put together. */
static void content_of(struct str body, char *out, size_t size)
{
    size_t used = 0;
    for (long at; (at = str_find(body, STR("\"content\":\""))) >= 0;) {
        body = str_from(body, (size_t)at + 11);
        struct str text = str_upto(body, (size_t)str_find_byte(body, '"'));
        for (size_t i = 0; i < text.size && used + 1 < size; i++)
            out[used++] = text.data[i];
    }
    out[used] = '\0';
}

static void agent_step(struct chaotic *agent)
{
    struct chaos *chaos = agent->chaos;
    if (agent->turn == TURNS)
        return;
    if (!agent->asking) {
        if (agent->rest-- <= 0)
            agent_go(agent);
        return;
    }
    bool good =
        agent->reply.done && agent->reply.err.kind == ERR_NONE && agent->reply.status == 200;
    if (!agent->reply.done && agent->patience != 0) {
        agent->patience -= agent->patience > 0;
        return;
    }
    if (good) {
        content_of(buf_str(&agent->reply.body), agent->taken[agent->turn], 32);
        agent->turn++;
        agent->tries = 0;
        chaos->finished += agent->turn == TURNS;
    } else if (!agent->reply.done) {
        http_call_close(agent->reply.call);
    }
    buf_deinit(&agent->reply.body);
    agent->asking = false;
    agent->rest = 1 + (int)roll(chaos, 4);
}

/* ---------------------------------------------------------------- the comparison */

struct record {
    char (*ids)[64];
    int answered, open;
};

static bool note_answered(void *context, const struct store_call *call)
{
    struct record *record = context;
    record->open += strcmp(call->state, "open") == 0;
    if (strcmp(call->state, "answered") == 0 && record->answered < 2 * AGENTS * TURNS)
        snprintf(record->ids[record->answered++], 64, "%s", call->id);
    return true;
}

static void expect_same(struct chaos *chaos)
{
    static char ids[2 * AGENTS * TURNS][64];
    struct record record = {.ids = ids};
    EXPECT_INT(store_list_calls(chaos->world.store, "r-test", note_answered, &record, NULL), 0);
    int taken = 0;
    for (int c = 0; c < record.answered; c++) {
        OWN(buf) struct buf text = {0};
        EXPECT_INT(store_read_call(chaos->world.store, ids[c], &text, NULL), 0);
        for (int i = 0; i < AGENTS; i++)
            for (int j = 0; j < TURNS; j++) {
                char question[48];
                snprintf(question, sizeof question, "agent %d turn %d\"", i, j);
                if (str_find(buf_str(&text), str_of(question)) < 0)
                    continue;
                EXPECT_INT(strlen(chaos->agents[i].taken[j]), 10);
                taken += str_find(buf_str(&text), str_of(chaos->agents[i].taken[j])) >= 0;
            }
    }
    EXPECT_INT(record.answered, AGENTS * TURNS);
    EXPECT_INT(taken, AGENTS * TURNS);
    EXPECT_INT(record.open, 0);
}

static void run(uint64_t seed)
{
    static struct chaos chaos;
    chaos = (struct chaos){.seed = seed * 0x9e3779b97f4a7c15u + 1};
    struct world *world = &chaos.world;
    world->upstream_answer = answer_chaotically;
    world_start(world);
    world_model(world);
    world_open(world, (struct gateway_session_options){.limits = {.calls_max = 100000,
                                                                  .in_flight_max = 4096,
                                                                  .connections_max = 4096}});
    for (int i = 0; i < AGENTS; i++)
        chaos.agents[i] = (struct chaotic){.chaos = &chaos,
                                           .index = i,
                                           .marks = i % 2,
                                           .stream = i % 3,
                                           .rest = (int)roll(&chaos, 10)};
    while (chaos.finished < AGENTS) {
        for (int i = 0; i < AGENTS; i++)
            agent_step(&chaos.agents[i]);
        model_step(&chaos);
        loop_once(world->loop, 1);
    }
    EXPECT(gateway_session_stats(world->session)->redelivered > 0);
    world_close_session(world, 0);
    expect_same(&chaos);
    while (chaos.pending) {
        struct pending *next = chaos.pending->next;
        free(chaos.pending);
        chaos.pending = next;
    }
    world_end(world);
}

TEST_WITHIN(what_agents_took_is_what_the_record_holds_each_answer_once, 120)
{
    for (uint64_t seed = 1; seed <= 4; seed++)
        run(seed);
}
