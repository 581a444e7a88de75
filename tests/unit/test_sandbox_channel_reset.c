/* A connection that breaks is seen to break on the other side of a carried inlet, in both
 * directions: never as a clean end. */
#include "test_sandbox_channel.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#include "http/http.h"
#include "own_loopback.h"

static int dial_port(uint16_t port)
{
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(fd, (struct sockaddr *)&address, sizeof address) < 0)
        abort();
    fcntl(fd, F_SETFL, O_NONBLOCK);
    return fd;
}

struct seen {
    struct http_exchange *exchange;
    int fates, taken;
    bool closed;
};

static void on_request(void *context, struct http_exchange *exchange)
{
    ((struct seen *)context)->exchange = exchange;
}

static void on_fate(void *context, bool taken)
{
    struct seen *seen = context;
    seen->fates++;
    seen->taken += taken;
}

static void on_closed(void *context)
{
    ((struct seen *)context)->closed = true;
}

#define REQUEST "GET / HTTP/1.1\r\nHost: x\r\n\r\n"

TEST(a_reset_on_either_side_of_a_carried_inlet_is_a_reset_on_the_other)
{
    struct place place;
    struct channel_options options = {.inlet = true, .inlet_port = own_port()};
    start_with(&place, &options, NULL);
    UNTIL(&place, place.ready);
    struct seen seen = {0};
    struct http_server *server = http_server_new(
        place.loop, &(struct http_server_options){.on_request = on_request, .context = &seen});

    /* The gateway breaks an answer off. */
    int agent = dial_port(options.inlet_port);
    EXPECT(write(agent, REQUEST, sizeof REQUEST - 1) > 0);
    UNTIL(&place, place.inlet_fd >= 0);
    http_server_adopt(server, place.inlet_fd);
    place.inlet_fd = -1;
    UNTIL(&place, seen.exchange);
    http_respond_begin(seen.exchange, 200, NULL, 0);
    (void)http_respond_write(seen.exchange, STR("half"));
    char bytes[4096];
    ssize_t size;
    UNTIL(&place, read(agent, bytes, sizeof bytes) > 0);
    http_exchange_reset(seen.exchange);
    seen.exchange = NULL;
    while ((size = read(agent, bytes, sizeof bytes)) > 0 || (size < 0 && errno == EAGAIN))
        loop_once(place.loop, 10);
    EXPECT_INT(size, -1);
    EXPECT_INT(errno, ECONNRESET);
    close(agent);

    /* The agent breaks its connection after the answer was sent, and closes one in order. */
    for (int in_order = 0; in_order < 2; in_order++) {
        agent = dial_port(options.inlet_port);
        EXPECT(write(agent, REQUEST, sizeof REQUEST - 1) > 0);
        UNTIL(&place, place.inlet_fd >= 0);
        http_server_adopt(server, place.inlet_fd);
        place.inlet_fd = -1;
        UNTIL(&place, seen.exchange);
        http_exchange_fate(seen.exchange, on_fate, &seen);
        http_respond_json(seen.exchange, 200, STR("{}"));
        seen.exchange = NULL;
        if (in_order) {
            UNTIL(&place, read(agent, bytes, sizeof bytes) > 0);
        } else {
            struct pollfd ready = {.fd = agent, .events = POLLIN};
            UNTIL(&place, poll(&ready, 1, 0) > 0);
        }
        close(agent); /* with unread bytes: a reset */
        UNTIL(&place, seen.fates == in_order + 1);
        EXPECT_INT(seen.taken, in_order);
    }
    http_server_close(server, 0, on_closed, &seen);
    UNTIL(&place, seen.closed);
    EXPECT_INT(stop(&place), 0);
}
