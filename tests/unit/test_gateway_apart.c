/* Two rollouts on one lane: what one of them does is nothing to the other. */
#include "test_gateway.h"

#include <sys/socket.h>
#include <unistd.h>

#define COMPLETION                                                                                 \
    "{\"id\":\"x\",\"object\":\"chat.completion\",\"created\":1,\"model\":\"m\",\"choices\":[{"    \
    "\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"hi\"},\"finish_reason\":"       \
    "\"stop\"}],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":1,\"total_tokens\":4}}"

static void answer(struct world *world, struct http_exchange *exchange)
{
    (void)world;
    http_respond_json(exchange, 200, STR(COMPLETION));
}

/* The neighbour: a second session of the same gateway, with a listener of its own. */
struct neighbour {
    struct gateway_session *session;
    uint16_t port;
    bool closed;
};

static void on_neighbour_closed(void *context)
{
    ((struct neighbour *)context)->closed = true;
}

static void neighbour_open(struct world *world, struct neighbour *neighbour)
{
    struct gateway_session_options options = {
        .rollout_id = "r-quiet", .model = world->model, .limits.connections_max = 4};
    struct err err = {0};
    neighbour->session = gateway_open(world->gateway, &options, &err);
    EXPECT(neighbour->session);
    EXPECT_INT(gateway_session_listen(neighbour->session, world_listener(&neighbour->port), &err),
               0);
}

static void neighbour_close(struct world *world, struct neighbour *neighbour)
{
    gateway_session_close(neighbour->session, 0, on_neighbour_closed, neighbour);
    while (!neighbour->closed)
        loop_once(world->loop, 100);
}

static int ask_as(struct world *world, uint16_t port, const char *path, const char *body,
                  bool *same)
{
    struct reply reply;
    uint16_t own = world->port;
    world->port = port;
    agent_ask_at(world, &reply, path, str_of(body));
    world->port = own;
    reply_wait(&reply);
    if (same)
        *same = reply_has(&reply, "r-loud") || reply_has(&reply, "r-quiet");
    buf_deinit(&reply.body);
    return reply.status;
}

static int ask(struct world *world, uint16_t port, const char *body)
{
    return ask_as(world, port, "/v1/chat/completions", body, NULL);
}

TEST(the_same_question_of_two_rollouts_is_two_calls_even_as_a_retry)
{
    struct world world = {.upstream_answer = answer};
    struct neighbour quiet = {0};
    world_start(&world);
    world_model(&world);
    world_open(&world, (struct gateway_session_options){.rollout_id = "r-loud"});
    neighbour_open(&world, &quiet);
    EXPECT_INT(ask(&world, world.port, ASK), 200);
    OWN(buf) struct buf got = {0};
    OWN(mem)
    char *request = mem_format("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"
                               "x-stainless-retry-count: 1\r\nContent-Length: %zu\r\n"
                               "Connection: close\r\n\r\n%s",
                               strlen(ASK), ASK);
    uint16_t own = world.port;
    world.port = quiet.port;
    EXPECT_INT(raw_ask(&world, request, &got), 0);
    world.port = own;
    EXPECT(str_find(buf_str(&got), STR("200 OK")) > 0);
    EXPECT_INT(world.upstream_calls, 2);
    EXPECT_INT(gateway_session_stats(quiet.session)->calls, 1);
    EXPECT_INT(gateway_session_stats(quiet.session)->redelivered, 0);
    /* A rollout is found below its own name only, and a name that exists looks like one that does
     * not. */
    static const char *const paths[] = {"/rollout/r-loud/v1/chat/completions",
                                        "/rollout/r-none/v1/chat/completions", "/rollout/",
                                        "/rollout/r-quiet/../r-loud/v1/models"};
    for (size_t i = 0; i < COUNT(paths); i++) {
        bool same = true;
        EXPECT_INT(ask_as(&world, quiet.port, paths[i], ASK, &same), 404);
        EXPECT(!same);
    }
    EXPECT_INT(world.upstream_calls, 2);
    neighbour_close(&world, &quiet);
    world_end(&world);
}

TEST(a_rollout_that_floods_stops_itself_only)
{
    struct world world = {.upstream_answer = answer};
    struct neighbour quiet = {0};
    struct gateway_limits limits = {.calls_max = 2, .in_flight_max = 1, .connections_max = 3};
    int fds[8];
    world_start(&world);
    world_model(&world);
    world_open(&world, (struct gateway_session_options){.rollout_id = "r-loud", .limits = limits});
    neighbour_open(&world, &quiet);
    /* All its connections are taken by heads that never end. */
    struct sockaddr_in at = {.sin_family = AF_INET,
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                             .sin_port = htons(world.port)};
    for (size_t i = 0; i < COUNT(fds); i++) {
        fds[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        EXPECT_INT(connect(fds[i], (struct sockaddr *)&at, sizeof at), 0);
        (void)!send(fds[i], "POST /v1/", 9, MSG_NOSIGNAL);
        loop_once(world.loop, 0);
    }
    EXPECT_INT(ask(&world, quiet.port, ASK), 200);
    for (size_t i = 0; i < COUNT(fds); i++)
        close(fds[i]);
    /* Nonsense without end: at some point it is over for who sends it. */
    for (int i = 0; i < 100 && world.exhausted == GATEWAY_FINE; i++) {
        int status = ask(&world, world.port, "{\"model\":[[[[");
        EXPECT(status == 400 || status == 503);
        EXPECT_INT(ask(&world, quiet.port, ASK), 200);
    }
    EXPECT_INT(world.exhausted, GATEWAY_LIMIT);
    EXPECT_INT(ask(&world, world.port, ASK), 400);
    EXPECT_INT(ask(&world, quiet.port, ASK), 200);
    EXPECT_INT(gateway_session_stats(quiet.session)->refused, 0);
    neighbour_close(&world, &quiet);
    world_end(&world);
}
