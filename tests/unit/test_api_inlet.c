/* An inlet and a control listener in one process, without sandboxes: what tests/system/test_sdk.py
 * points the vendors' own clients at. With INLET_DIR in the environment it serves until its
 * standard input ends; the ports are in INLET_DIR/ready. Without, it only opens and closes.
 *
 * INLET_MODEL, INLET_MODE, INLET_API, INLET_TOOLS: as a rollout's. INLET_KEEPALIVE_MS: between
 * signs of life, the first one included. INLET_RETRY_GRACE_MS: how long a call waits for its agent.
 */
#include "api/api.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "gateway/gate.h"
#include "gateway/gateway.h"
#include "loop/loop.h"
#include "store/store.h"
#include "test.h"

struct world {
    struct loop *loop;
    struct store *store;
    struct gate *gate;
    struct api *api;
    struct model *model;
    struct gateway *gateway;
    struct gateway_session *session;
    uint16_t port;
    int closing; /* what is not closed yet */
    bool input_over;
};

static const char *setting(const char *name, const char *fallback)
{
    const char *value = getenv(name);
    return value && value[0] ? value : fallback;
}

static int listener(uint16_t *port)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof at;
    if (fd < 0 || bind(fd, (struct sockaddr *)&at, size) < 0 || listen(fd, 128) < 0 ||
        getsockname(fd, (struct sockaddr *)&at, &size) < 0)
        abort();
    *port = ntohs(at.sin_port);
    return fd;
}

static int world_open(struct world *world, const char *home, struct err *err)
{
    log_setup(LOG_OFF, false);
    uint32_t keepalive_ms = (uint32_t)atoi(setting("INLET_KEEPALIVE_MS", "0"));
    world->loop = loop_new(err);
    world->store = store_open(home, err);
    if (!world->loop || !world->store)
        return -1;
    world->gate = gate_new(world->loop, NULL);
    struct api_options api = {.home = home, .store = world->store, .gate = world->gate};
    struct model_options model = {.api = setting("INLET_API", "same")};
    struct gateway_options gateway = {.store = world->store, .gate = world->gate};
    world->api = api_open(world->loop, &api, err);
    world->model = model_open(setting("INLET_MODEL", "gate:"), &model, err);
    world->gateway = gateway_new(world->loop, &gateway, err);
    if (!world->api || !world->model || !world->gateway)
        return -1;
    OWN(mem) char *calls_path = mem_format("%s/calls.jsonl", home);
    struct gateway_session_options session = {
        .rollout_id = "r-inlet",
        .mode = setting("INLET_MODE", "gate"),
        .model = world->model,
        .calls_path = calls_path,
        .keepalive_ms = keepalive_ms,
        .headers_after_ms = keepalive_ms,
        .retry_grace_ms = (uint32_t)atoi(setting("INLET_RETRY_GRACE_MS", "0")),
        .tools = str_of(setting("INLET_TOOLS", "")),
        .limits = {.calls_max = 1u << 20, .in_flight_max = 20000, .connections_max = 20000},
    };
    world->session = gateway_open(world->gateway, &session, err);
    if (!world->session)
        return -1;
    return gateway_session_listen(world->session, listener(&world->port), err);
}

static void on_closed(void *context)
{
    ((struct world *)context)->closing--;
}

static void world_close(struct world *world)
{
    world->closing = 2;
    gateway_session_close(world->session, 0, on_closed, world);
    api_close(world->api, 100, on_closed, world);
    while (world->closing)
        loop_once(world->loop, 100);
    for (int i = 0; i < 3; i++)
        loop_once(world->loop, 0);
    gate_free(world->gate);
    gateway_free(world->gateway);
    model_unref(world->model);
    store_close(world->store);
    loop_once(world->loop, 0);
    loop_free(world->loop);
}

static void on_input(struct loop_watch *watch, uint32_t events)
{
    struct world *world = watch->context;
    char bytes[64];
    (void)events;
    world->input_over |= read(watch->fd, bytes, sizeof bytes) <= 0;
}

TEST_WITHIN(an_inlet_and_a_control_listener_serve_until_told_to_stop, 600)
{
    struct world world = {0};
    struct err err = {0};
    char own[] = "/tmp/test-inlet-XXXXXX";
    const char *home = getenv("INLET_DIR");
    bool asked = home != NULL;
    if (!asked)
        home = mkdtemp(own);
    if (world_open(&world, home, &err) < 0) {
        test_fail(__FILE__, __LINE__, "%s", err.text);
        return;
    }
    OWN(mem) char *path = mem_format("%s/ready", home);
    OWN(mem)
    char *ready = mem_format("{\"inlet\":%u,\"control\":%u}\n", world.port, api_port(world.api));
    EXPECT_INT(file_write(path, str_of(ready), 0600, true, &err), 0);
    struct loop_watch watch = {0};
    if (asked) {
        EXPECT_INT(loop_watch_start(world.loop, &watch, 0, LOOP_READ, on_input, &world, &err), 0);
        while (!world.input_over)
            loop_once(world.loop, 1000);
        loop_watch_stop(&watch);
    }
    world_close(&world);
    if (!asked)
        (void)file_remove_tree(home, NULL);
}
