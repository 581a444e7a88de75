/* bench_served.c - the gateway as `postern serve` builds it, without sandboxes.
 *
 *     bench_served --home DIR --mode MODE [--upstream URL] [--sessions N] [--lanes N] [--no-store]
 *                  [--no-lines]
 *
 * One loop for the control listener and the gate, one per lane, the journal's writer. Agents come
 * to a loopback port instead of a sandbox's inlet: each connection belongs to the next session of a
 * ring of N, opened when it is first needed, as each agent belongs to a rollout, with its
 * calls.jsonl and somebody who hears of its calls. Prints the agents' port, the control listener's
 * port and the token file, then serves until it is killed. */
#include <arpa/inet.h>
#include <getopt.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "api/api.h"
#include "base/check.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/mem.h"
#include "gateway/gate.h"
#include "gateway/gateway.h"
#include "loop/loop.h"
#include "store/store.h"
#include "trace/trace.h"

struct lane {
    struct loop *loop;
    struct gateway *gateway;
    struct gateway_session **sessions;
    uint64_t turns; /* what the rollouts hear of */
};

static struct {
    const char *home, *mode, *upstream;
    size_t sessions, lanes;
    bool no_store, no_lines;
} options = {.mode = "black_box", .sessions = 2048, .lanes = 1};

static struct store *store;
static struct gate *gate;
static struct model *model;
static struct lane *lanes;
static size_t next_connection;

struct arrival {
    struct lane *lane;
    size_t index;
    int fd;
};

static void die(const struct err *err)
{
    fprintf(stderr, "bench_served: %s\n", err->text);
    exit(1);
}

static void on_call(void *context, const struct trace_call *call, enum gateway_phase phase)
{
    struct lane *lane = context;
    lane->turns += phase == GATEWAY_CALL_DONE && !call->side;
}

static struct gateway_session *open_session(struct lane *lane, size_t index)
{
    char id[32];
    snprintf(id, sizeof id, "r-bench-%zu", index);
    char calls[PATH_MAX];
    snprintf(calls, sizeof calls, "%s/%s.jsonl", options.home, id);
    struct err err = {0};
    struct gateway_session_options session = {
        .rollout_id = id,
        .group_id = "g-bench",
        .index = (uint32_t)index,
        .mode = options.mode,
        .model = model,
        .calls_path = options.no_lines ? NULL : calls,
        .on_call = on_call,
        .context = lane,
        .limits = {.calls_max = UINT32_MAX, .in_flight_max = 4096, .connections_max = 20000},
    };
    struct gateway_session *opened = gateway_open(lane->gateway, &session, &err);
    if (!opened)
        die(&err);
    return opened;
}

static void arrive(void *argument)
{
    struct arrival *arrival = argument;
    struct lane *lane = arrival->lane;
    struct gateway_session **session = &lane->sessions[arrival->index];
    if (!*session)
        *session = open_session(lane, arrival->index);
    gateway_session_connection(*session, arrival->fd);
    free(arrival);
}

static void on_connection(struct loop_watch *watch, uint32_t events)
{
    (void)events;
    int fd;
    while ((fd = accept4(watch->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0) {
        struct arrival *arrival = mem_zero(sizeof *arrival);
        arrival->index = next_connection++ % options.sessions;
        arrival->lane = &lanes[arrival->index % options.lanes];
        arrival->fd = fd;
        loop_post(arrival->lane->loop, arrive, arrival);
    }
}

static void build_lane(void *argument)
{
    struct lane *lane = argument;
    struct err err = {0};
    struct gateway_options gateway = {.store = store, .gate = gate, .lines_ms = GATEWAY_LINES_MS};
    lane->gateway = gateway_new(lane->loop, &gateway, &err);
    if (!lane->gateway)
        die(&err);
    lane->sessions = mem_zero(options.sessions * sizeof(struct gateway_session *));
}

static int listen_any(uint16_t *port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    CHECK(fd >= 0 && bind(fd, (struct sockaddr *)&address, size) == 0 && listen(fd, 4096) == 0);
    CHECK(getsockname(fd, (struct sockaddr *)&address, &size) == 0);
    *port = ntohs(address.sin_port);
    return fd;
}

static void read_options(int argc, char **argv)
{
    static const struct option names[] = {
        {"home", 1, NULL, 'h'},     {"mode", 1, NULL, 'm'},  {"upstream", 1, NULL, 'u'},
        {"sessions", 1, NULL, 's'}, {"lanes", 1, NULL, 'l'}, {"no-store", 0, NULL, 'n'},
        {"no-lines", 0, NULL, 'c'}, {NULL, 0, NULL, 0},
    };
    int option;
    while ((option = getopt_long(argc, argv, "", names, NULL)) >= 0) {
        switch (option) {
        case 'h':
            options.home = optarg;
            break;
        case 'm':
            options.mode = optarg;
            break;
        case 'u':
            options.upstream = optarg;
            break;
        case 's':
            options.sessions = strtoull(optarg, NULL, 10);
            break;
        case 'l':
            options.lanes = strtoull(optarg, NULL, 10);
            break;
        case 'n':
            options.no_store = true;
            break;
        case 'c':
            options.no_lines = true;
            break;
        default:
            exit(2);
        }
    }
    if (!options.home) {
        fprintf(stderr, "bench_served: --home is missing\n");
        exit(2);
    }
}

int main(int argc, char **argv)
{
    struct err err = {0};
    (void)signal(SIGPIPE, SIG_IGN);
    (void)fd_raise_limit();
    read_options(argc, argv);
    struct loop *loop = loop_new(&err);
    if (loop)
        (void)loop_heap_start(loop);
    store = loop ? store_open(options.home, &err) : NULL;
    if (!store)
        die(&err);
    struct gate_options gate_options = {.held_max = 100000};
    gate = gate_new(loop, &gate_options);
    model = model_open(options.upstream ? options.upstream : "gate:bench", NULL, &err);
    struct lanes *threads = model ? lanes_new(options.lanes, &err) : NULL;
    if (!threads)
        die(&err);
    struct api_options api_options = {.home = options.home,
                                      .store = store,
                                      .gate = gate,
                                      .connections_max = 1000,
                                      .body_bytes_max = 16u << 20};
    struct api *api = api_open(loop, &api_options, &err);
    if (!api)
        die(&err);
    if (options.no_store)
        store = NULL;
    lanes = mem_zero(options.lanes * sizeof *lanes);
    for (size_t i = 0; i < options.lanes; i++) {
        lanes[i].loop = lanes_at(threads, i);
        loop_call(lanes[i].loop, build_lane, &lanes[i]);
    }
    uint16_t port;
    struct loop_watch listener = {0};
    int fd = listen_any(&port);
    if (loop_watch_start(loop, &listener, fd, LOOP_READ, on_connection, NULL, &err) < 0)
        die(&err);
    printf("%u %u %s\n", port, api_port(api), api_token_file(api));
    fflush(stdout);
    loop_run(loop);
}
