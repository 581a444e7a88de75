/* Requests that come before the answers to those before them. */
#include "test_http_world.h"

#define GET(path) "GET " path " HTTP/1.1\r\nHost: x\r\n\r\n"

TEST(many_requests_that_come_together_keep_nobody_else_waiting)
{
    open_world((struct http_server_options){0});
    OWN(buf) struct buf many = {0}, in = {0}, other = {0};
    for (int i = 0; i < 500; i++)
        buf_str_append(&many, STR(GET("/empty")));
    int peer = tcp_peer(), neighbour = tcp_peer();
    WAIT(http_server_connections(server) == 2);
    say(peer, buf_str(&many));
    say(neighbour, STR(GET("/headers")));
    EXPECT(hear_until(neighbour, &other, "200 OK"));
    EXPECT(requests < 100);
    WAIT(requests == 501);
    WAIT(hear(peer, &in) && count_of(buf_str(&in), "204 No Content") == 500);
    close(peer);
    close(neighbour);
    close_world();
}

TEST(pipelined_requests_are_handed_out_one_at_a_time_and_answered_in_order)
{
    open_world((struct http_server_options){0});
    OWN(buf) struct buf in = {0};
    int peer = tcp_peer();
    say(peer, STR(GET("/hold") GET("/chunks") "POST /echo HTTP/1.1\r\nHost: x\r\n"
                                              "Content-Length: 4\r\n\r\nlast" GET("/empty")));
    WAIT(held);
    for (int i = 0; i < 5; i++)
        loop_once(loop, 1);
    EXPECT_INT(requests, 1);
    EXPECT_INT(hear(peer, &in), 0);
    http_respond(held, 200, NULL, 0, STR("first"));
    EXPECT_INT(requests, 1); /* never from inside the call */
    EXPECT(hear_until(peer, &in, "204 No Content"));
    EXPECT_INT(requests, 4);
    long first = str_find(buf_str(&in), STR("first")), second = str_find(buf_str(&in), STR("one ")),
         third = str_find(buf_str(&in), STR("last"));
    EXPECT(0 < first && first < second && second < third);
    close(peer);
    close_world();
}
