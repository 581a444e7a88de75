/* What bodies of several requests may take together. */
#include "test_http_world.h"

/* By what their lengths promise and by what their chunks bring; who is alone may send what one may.
 */
TEST(bodies_that_are_collected_at_once_have_a_maximum_together)
{
    open_world((struct http_server_options){.collect_bytes_max = 100});
    OWN(buf) struct buf in = {0};
    int first = tcp_peer();
    say(first, STR("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 120\r\n\r\nabc"));
    while (requests < 1)
        loop_once(loop, 10);
    int second = tcp_peer();
    say(second, STR("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\n"));
    EXPECT(hear_until(second, &in, "503 Service Unavailable"));
    EXPECT(hear_until(second, &in, "Retry-After: 1\r\n"));
    EXPECT(errors == 1 && last_error == ERR_CAPACITY);
    close(second);
    for (int i = 0; i < 117; i++)
        say(first, STR("x"));
    buf_clear(&in);
    EXPECT(hear_until(first, &in, "abcxxx"));
    /* It is done: there is room again, and chunks are counted as they come. */
    buf_clear(&in);
    say(first, STR("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 60\r\n\r\nabc"));
    while (requests < 3)
        loop_once(loop, 10);
    second = tcp_peer();
    say(second, STR("POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
                    "20\r\n01234567890123456789012345678901\r\n"));
    while (requests < 4)
        loop_once(loop, 10);
    say(second, STR("20\r\n01234567890123456789012345678901\r\n"));
    EXPECT(hear_until(second, &in, "503 Service Unavailable"));
    close(second);
    close(first);
    close_world();
}

/* Whoever has many connections keeps others waiting for one body, not for all of them. */
TEST(large_bodies_are_handed_over_one_in_a_tick)
{
    enum { PEERS = 4, SIZE = 300000 };
    open_world((struct http_server_options){0});
    OWN(buf) struct buf request = {0}, in = {0};
    int peers[PEERS];
    buf_format(&request, "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%*s", SIZE,
               SIZE, "");
    for (int i = 0; i < PEERS; i++) {
        peers[i] = tcp_peer();
        say(peers[i], str_upto(buf_str(&request), request.size - 1));
    }
    for (int i = 0; i < 100; i++)
        loop_once(loop, 1);
    EXPECT_INT(bodies, 0);
    for (int i = 0; i < PEERS; i++)
        say(peers[i], STR("x"));
    for (int before = 0; bodies < PEERS; before = bodies) {
        loop_once(loop, 10);
        EXPECT(bodies <= before + 1);
    }
    EXPECT_INT(errors, 0);
    for (int i = 0; i < PEERS; i++) {
        buf_clear(&in);
        while (in.size < SIZE && hear(peers[i], &in) >= 0)
            loop_once(loop, 1);
        EXPECT(str_starts(buf_str(&in), STR("HTTP/1.1 200 ")));
        close(peers[i]);
    }
    close_world();
}
