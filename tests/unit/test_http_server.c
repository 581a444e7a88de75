/* test_http_server.c - the server through its door, spoken to by raw sockets. */
#include <malloc.h>

#include "base/rope.h"
#include "test_http_world.h"

#define GET(path) "GET " path " HTTP/1.1\r\nHost: x\r\n\r\n"

/* --- connections --- */

TEST(connect_and_absolute_targets_reach_the_handler_intact)
{
    open_world((struct http_server_options){0});
    OWN(buf) struct buf in = {0};
    int peer = tcp_peer();
    say(peer, STR("CONNECT example.org:443 HTTP/1.1\r\nHost: example.org:443\r\n"
                  "Content-Length: 5\r\n\r\nGET / HTTP/1.1\r\n\r\n"));
    EXPECT_INT(hear_all(peer, &in), -1);
    EXPECT_TEXT(last_method, "CONNECT");
    EXPECT_TEXT(last_target, "example.org:443");
    EXPECT_INT(requests, 1);
    close(peer);
    peer = tcp_peer();
    buf_clear(&in);
    say(peer, STR("GET http://example.org/a?b HTTP/1.1\r\nHost: example.org\r\n\r\n"));
    EXPECT(hear_until(peer, &in, "hello"));
    EXPECT_TEXT(last_target, "http://example.org/a?b");
    close(peer);
    close_world();
}

TEST(a_connection_serves_one_request_after_another)
{
    open_world((struct http_server_options){0});
    OWN(buf) struct buf in = {0};
    int peer = tcp_peer();
    for (int i = 0; i < 50; i++) {
        buf_clear(&in);
        say(peer, STR("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nabcde"));
        EXPECT(hear_until(peer, &in, "\r\n\r\nabcde"));
    }
    EXPECT_INT(requests, 50);
    EXPECT_INT(http_server_connections(server), 1);
    EXPECT(count_of(buf_str(&in), "Content-Length: 5\r\n") == 1);
    EXPECT(count_of(buf_str(&in), "Date: ") == 1);
    close(peer);
    WAIT(http_server_connections(server) == 0);
    close_world();
}

TEST(connection_close_and_http_1_0_end_the_connection_cleanly)
{
    open_world((struct http_server_options){0});
    OWN(buf) struct buf in = {0};
    int peer = tcp_peer();
    say(peer, STR("GET / HTTP/1.1\r\nHost: x\r\nConnection: Close\r\n\r\n"));
    EXPECT_INT(hear_all(peer, &in), -1);
    EXPECT_INT(count_of(buf_str(&in), "Connection: close\r\n"), 1);
    close(peer);
    peer = tcp_peer();
    say(peer, STR("GET /chunks HTTP/1.0\r\n\r\n"));
    buf_clear(&in);
    EXPECT_INT(hear_all(peer, &in), -1);
    EXPECT(str_ends(buf_str(&in), STR("\r\n\r\none two")));
    close(peer);
    peer = tcp_peer();
    buf_clear(&in);
    for (int i = 0; i < 2; i++)
        say(peer, STR("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"));
    WAIT(hear(peer, &in) && count_of(buf_str(&in), "hello") == 2);
    EXPECT_INT(count_of(buf_str(&in), "Connection: keep-alive"), 2);
    close(peer);
    close_world();
}

TEST(what_begins_like_no_request_is_refused_at_once)
{
    static const char hello[] = "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03";
    open_world((struct http_server_options){.head_ms_max = 3600000});
    OWN(buf) struct buf in = {0};
    int peer = tcp_peer();
    say(peer, str_make(hello, sizeof hello - 1));
    EXPECT(hear_until(peer, &in, "no TLS here"));
    EXPECT(str_starts(buf_str(&in), STR("HTTP/1.1 400 ")));
    close(peer);
    close_world();
}

TEST(a_peer_that_sends_ahead_is_stopped)
{
    open_world((struct http_server_options){0});
    int peer = adopted_peer();
    say(peer, STR(GET("/hold")));
    WAIT(held);
    char junk[4096];
    memset(junk, 'x', sizeof junk);
    size_t all = 0;
    for (int quiet = 0; quiet < 20;) {
        ssize_t sent = send(peer, junk, sizeof junk, MSG_NOSIGNAL);
        quiet = sent > 0 ? 0 : quiet + 1;
        all += sent > 0 ? (size_t)sent : 0;
        loop_once(loop, 0);
        EXPECT(all < (size_t)4 << 20);
    }
    EXPECT_INT(gone, 0);
    close(peer);
    http_exchange_reset(held);
    close_world();
}

/* --- bodies and answers --- */

TEST(large_bodies_make_the_round_trip)
{
    open_world((struct http_server_options){0});
    OWN(buf) struct buf in = {0};
    OWN(buf) struct buf body = {0};
    for (int i = 0; i < 300000; i++)
        buf_format(&body, "%d,", i);
    int peer = tcp_peer();
    OWN(buf) struct buf out = {0};
    buf_format(&out, "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: %zu\r\n\r\n", body.size);
    buf_str_append(&out, buf_str(&body));
    say(peer, buf_str(&out));
    buf_clear(&out);
    EXPECT(hear_until(peer, &in, "299999,"));
    EXPECT(str_ends(buf_str(&in), buf_str(&body)));
    buf_clear(&in);
    buf_format(&out, "POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n");
    for (size_t at = 0; at < body.size; at += 777) {
        struct str piece = str_upto(str_from(buf_str(&body), at), 777);
        buf_format(&out, "%zx\r\n%.*s\r\n", piece.size, STR_ARGS(piece));
    }
    buf_format(&out, "0\r\n\r\n");
    say(peer, buf_str(&out));
    EXPECT(hear_until(peer, &in, "299999,"));
    EXPECT(str_ends(buf_str(&in), buf_str(&body)));
    close(peer);
    close_world();
}

TEST(an_answer_in_chunks_is_framed_and_head_and_204_have_no_body)
{
    open_world((struct http_server_options){0});
    OWN(buf) struct buf in = {0};
    int peer = tcp_peer();
    say(peer, STR(GET("/chunks")));
    EXPECT(hear_until(peer, &in, "\r\n\r\n4\r\none \r\n3\r\ntwo\r\n0\r\n\r\n"));
    EXPECT_INT(count_of(buf_str(&in), "Transfer-Encoding: chunked\r\n"), 1);
    buf_clear(&in);
    say(peer, STR("HEAD /chunks HTTP/1.1\r\nHost: x\r\n\r\nHEAD / HTTP/1.1\r\nHost: x\r\n\r\n" GET(
                  "/empty") GET("/")));
    EXPECT(hear_until(peer, &in, "hello"));
    EXPECT_INT(count_of(buf_str(&in), "hello"), 1);
    EXPECT_INT(count_of(buf_str(&in), "one"), 0);
    EXPECT_INT(count_of(buf_str(&in), "Content-Length: 5\r\n"), 2);
    EXPECT_INT(count_of(buf_str(&in), "Content-Length: 0\r\n"), 0);
    close(peer);
    close_world();
}

TEST(header_fields_of_a_handler_cannot_break_the_head)
{
    open_world((struct http_server_options){0});
    OWN(buf) struct buf in = {0};
    int peer = tcp_peer();
    say(peer, STR(GET("/headers")));
    EXPECT(hear_until(peer, &in, "\r\n\r\nok"));
    EXPECT_INT(count_of(buf_str(&in), "X-Good: yes\r\n"), 1);
    EXPECT_INT(count_of(buf_str(&in), "\r\nX-Injected"), 0);
    EXPECT_INT(count_of(buf_str(&in), "Bad Name"), 0);
    EXPECT_INT(count_of(buf_str(&in), "999"), 0);
    EXPECT_INT(count_of(buf_str(&in), "upgrade"), 0);
    close(peer);
    close_world();
}

TEST(a_client_that_expects_100_continue_gets_it_when_the_body_is_wanted)
{
    open_world((struct http_server_options){.body_bytes_max = 100});
    OWN(buf) struct buf in = {0};
    int peer = tcp_peer();
    say(peer, STR("POST /echo HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 3\r\n"
                  "\r\n"));
    EXPECT(hear_until(peer, &in, "HTTP/1.1 100 Continue\r\n\r\n"));
    say(peer, STR("abc"));
    EXPECT(hear_until(peer, &in, "\r\n\r\nabc"));
    buf_clear(&in);
    /* Not wanted: the answer comes at once, and the connection ends, for the body may never come.
     */
    say(peer, STR("POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 3\r\n"
                  "\r\n"));
    EXPECT_INT(hear_all(peer, &in), -1);
    EXPECT_INT(count_of(buf_str(&in), "100 Continue"), 0);
    EXPECT_INT(count_of(buf_str(&in), "Connection: close"), 1);
    close(peer);
    peer = tcp_peer();
    buf_clear(&in);
    say(peer, STR("POST /echo-small HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n"
                  "Content-Length: 30\r\n\r\n"));
    EXPECT_INT(hear_all(peer, &in), -1);
    EXPECT(str_starts(buf_str(&in), STR("HTTP/1.1 413 ")));
    EXPECT(errors == 1 && last_error == ERR_LIMIT);
    close(peer);
    close_world();
}

TEST(a_body_nobody_asked_for_is_read_over_when_it_is_small)
{
    open_world((struct http_server_options){0});
    OWN(buf) struct buf in = {0};
    int peer = tcp_peer();
    say(peer, STR("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 6\r\n\r\nGET /x" GET("/echo")));
    WAIT(requests == 2);
    EXPECT_TEXT(last_target, "/echo");
    close(peer);
    peer = tcp_peer();
    say(peer, STR("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 60000000\r\n\r\nabc"));
    EXPECT_INT(hear_all(peer, &in), -1);
    EXPECT_INT(count_of(buf_str(&in), "Connection: close"), 1);
    close(peer);
    close_world();
}

TEST(a_body_nobody_asked_for_that_is_cut_off_ends_the_connection_at_once)
{
    open_world((struct http_server_options){0});
    OWN(buf) struct buf in = {0};
    int peer = tcp_peer();
    say(peer, STR("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 6\r\n\r\nGET"));
    EXPECT(hear_until(peer, &in, "hello"));
    shutdown(peer, SHUT_WR);
    EXPECT_INT(hear_all(peer, &in), -1);
    close(peer);
    close_world();
}

TEST(a_streamed_upload_stops_while_paused_and_goes_on_afterwards)
{
    open_world((struct http_server_options){0});
    OWN(buf) struct buf in = {0};
    int peer = adopted_peer();
    say(peer, STR("POST /upload HTTP/1.1\r\nHost: x\r\nContent-Length: 2000000\r\n\r\n"));
    WAIT(held);
    http_exchange_pause(held);
    static char piece[2000000];
    memset(piece, 'u', sizeof piece);
    size_t at = 0;
    for (int quiet = 0; quiet < 20;) {
        ssize_t sent = send(peer, piece + at, sizeof piece - at, MSG_NOSIGNAL);
        quiet = sent > 0 ? 0 : quiet + 1;
        at += sent > 0 ? (size_t)sent : 0;
        loop_once(loop, 0);
    }
    EXPECT(at < sizeof piece);
    EXPECT_INT(streamed.size, 0);
    http_exchange_resume(held);
    EXPECT_INT(streamed.size, 0);
    say(peer, str_make(piece + at, sizeof piece - at));
    EXPECT(hear_until(peer, &in, "stored"));
    EXPECT(streamed_end && streamed.size == sizeof piece);
    close(peer);
    close_world();
}

TEST(a_broken_off_upload_is_reported_once_and_only_there)
{
    open_world((struct http_server_options){0});
    int peer = tcp_peer();
    say(peer, STR("POST /upload HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nabc"));
    WAIT(streamed.size == 3);
    http_exchange_notify(held, 0, NULL, on_gone, NULL);
    close(peer);
    WAIT(errors == 1);
    EXPECT(last_error == ERR_LOST && gone == 0);
    WAIT(http_server_connections(server) == 0);
    close_world();
}

/* --- limits --- */

TEST(heads_have_a_maximum)
{
    open_world((struct http_server_options){.head_bytes_max = 1000});
    static char many[2000];
    memset(many, 'a', sizeof many);
    struct {
        const char *before;
        const char *status;
    } rows[] = {{"GET /", "HTTP/1.1 414 "},
                {"GET / HTTP/1.1\r\nHost: x\r\nA: ", "HTTP/1.1 431 "},
                {"", "HTTP/1.1 414 "}};
    for (size_t i = 0; i < COUNT(rows); i++) {
        OWN(buf) struct buf in = {0};
        int peer = tcp_peer();
        say(peer, str_of(rows[i].before));
        say(peer, str_make(many, sizeof many));
        EXPECT_INT(hear_all(peer, &in), -2 + 1);
        EXPECT(str_starts(buf_str(&in), str_of(rows[i].status)));
        close(peer);
    }
    OWN(buf) struct buf in = {0};
    OWN(buf) struct buf out = {0};
    buf_format(&out, "GET / HTTP/1.1\r\nHost: x\r\n");
    for (int i = 0; i < 128; i++)
        buf_format(&out, "a:\r\n");
    buf_format(&out, "\r\n");
    int peer = tcp_peer();
    say(peer, buf_str(&out));
    EXPECT(hear_until(peer, &in, "HTTP/1.1 431 "));
    close(peer);
    EXPECT_INT(requests, 0);
    close_world();
}

TEST(bodies_have_a_maximum_by_length_and_by_chunks)
{
    open_world((struct http_server_options){.body_bytes_max = 100});
    OWN(buf) struct buf in = {0};
    int peer = tcp_peer();
    say(peer, STR("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 101\r\n\r\n"));
    EXPECT(hear_until(peer, &in, "413 Content Too Large"));
    EXPECT_INT(requests, 0);
    close(peer);
    peer = tcp_peer();
    buf_clear(&in);
    say(peer, STR("POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n40\r\n"));
    for (int i = 0; i < 64; i++)
        say(peer, STR("c"));
    say(peer, STR("\r\n40\r\n"));
    for (int i = 0; i < 64; i++)
        say(peer, STR("c"));
    EXPECT(hear_until(peer, &in, "413 Content Too Large"));
    EXPECT(requests == 1 && errors == 1 && last_error == ERR_LIMIT);
    close(peer);
    peer = tcp_peer();
    buf_clear(&in);
    say(peer, STR("POST /upload HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nfff\r\n"));
    for (int i = 0; i < 128; i++)
        say(peer, STR("c"));
    EXPECT(hear_until(peer, &in, "413 Content Too Large"));
    EXPECT(errors == 2 && last_error == ERR_LIMIT);
    close(peer);
    close_world();
}

TEST(a_client_that_still_sends_reads_the_refusal_all_the_same)
{
    open_world((struct http_server_options){.body_bytes_max = 100});
    OWN(buf) struct buf in = {0};
    int peer = tcp_peer();
    say(peer, STR("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n"));
    static char body[1000000];
    say(peer, str_make(body, sizeof body));
    EXPECT_INT(hear_all(peer, &in), -1);
    EXPECT(str_starts(buf_str(&in), STR("HTTP/1.1 413 ")));
    close(peer);
    close_world();
}

TEST(connections_have_a_maximum)
{
    open_world((struct http_server_options){.connections_max = 2});
    OWN(buf) struct buf in = {0};
    int first = tcp_peer(), second = tcp_peer();
    WAIT(http_server_connections(server) == 2);
    int third = tcp_peer();
    EXPECT(hear_until(third, &in, "503 Service Unavailable"));
    close(third);
    close(first);
    WAIT(http_server_connections(server) == 1);
    third = tcp_peer();
    buf_clear(&in);
    say(third, STR(GET("/")));
    EXPECT(hear_until(third, &in, "hello"));
    close(third);
    close(second);
    close_world();
}

/* --- waiting --- */

TEST(a_head_that_does_not_come_is_answered_408)
{
    open_world((struct http_server_options){.head_ms_max = 30});
    OWN(buf) struct buf in = {0};
    int peer = tcp_peer();
    say(peer, STR("GET / HT"));
    EXPECT_INT(hear_all(peer, &in), -1);
    EXPECT(str_starts(buf_str(&in), STR("HTTP/1.1 408 ")));
    close(peer);
    close_world();
}

TEST(an_idle_connection_is_closed_without_a_word)
{
    open_world((struct http_server_options){.keepalive_ms_max = 30});
    OWN(buf) struct buf in = {0};
    int silent = tcp_peer(), used = tcp_peer();
    EXPECT_INT(hear_all(silent, &in), -1);
    EXPECT_INT(in.size, 0);
    close(silent);
    close(used);
    used = tcp_peer();
    say(used, STR(GET("/")));
    EXPECT_INT(hear_all(used, &in), -1);
    EXPECT_INT(count_of(buf_str(&in), "HTTP/1.1"), 1);
    close(used);
    close_world();
}

TEST(a_body_that_stops_coming_is_answered_408)
{
    open_world((struct http_server_options){.body_idle_ms_max = 30});
    OWN(buf) struct buf in = {0};
    int peer = tcp_peer();
    say(peer, STR("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nabc"));
    EXPECT_INT(hear_all(peer, &in), -1);
    EXPECT(str_starts(buf_str(&in), STR("HTTP/1.1 408 ")));
    EXPECT(errors == 1 && last_error == ERR_TIMEOUT);
    close(peer);
    close_world();
}

TEST(a_held_request_outlives_all_those_deadlines)
{
    open_world((struct http_server_options){.head_ms_max = 20,
                                            .keepalive_ms_max = 20,
                                            .body_idle_ms_max = 20,
                                            .write_idle_ms_max = 20});
    OWN(buf) struct buf in = {0};
    int peer = tcp_peer();
    say(peer, STR(GET("/hold")));
    WAIT(held);
    uint64_t start = loop_now_ms(loop);
    WAIT(loop_now_ms(loop) > start + 100);
    EXPECT(held && gone == 0);
    http_respond(held, 200, NULL, 0, STR("at last"));
    EXPECT(hear_until(peer, &in, "at last"));
    close(peer);
    close_world();
}

TEST(a_reader_without_progress_is_cut_off)
{
    open_world((struct http_server_options){.write_idle_ms_max = 50});
    OWN(buf) struct buf in = {0};
    int peer = adopted_peer();
    say(peer, STR(GET("/hold")));
    WAIT(held);
    http_respond_begin(held, 200, NULL, 0);
    static char piece[100000];
    while (http_respond_write(held, str_make(piece, sizeof piece)) == 0)
        ;
    WAIT(gone == 1);
    WAIT(http_server_connections(server) == 0);
    close(peer);
    close_world();
}

/* --- back-pressure --- */

TEST(a_slow_reader_is_waited_for_and_memory_stays_bounded)
{
    open_world((struct http_server_options){0});
    OWN(buf) struct buf in = {0};
    int peer = tcp_peer();
    say(peer, STR(GET("/hold")));
    WAIT(held);
    http_respond_begin(held, 200, NULL, 0);
    static char piece[65536];
    for (size_t i = 0; i < sizeof piece; i++)
        piece[i] = (char)('a' + i % 26);
    size_t written = 0, total = (size_t)20 << 20, queued = 0, queued_max = 0, got = 0;
    while (written < total) {
        if (queued < 1000) {
            queued = http_respond_write(held, str_make(piece, sizeof piece));
            written += sizeof piece;
            EXPECT_INT(queued, http_respond_queued(held));
        } else {
            int before = drained;
            while (drained == before) {
                hear(peer, &in);
                got += in.size;
                buf_clear(&in);
                loop_once(loop, 1);
            }
            EXPECT(http_respond_queued(held) < 1000);
            queued = 0;
        }
        queued_max = queued > queued_max ? queued : queued_max;
    }
    EXPECT(drained > 0 && queued_max <= sizeof piece + 1000);
    http_respond_end(held);
    while (!str_ends(buf_str(&in), STR("\r\n0\r\n\r\n"))) {
        got += in.size;
        buf_clear(&in);
        EXPECT(hear(peer, &in) >= 0);
        loop_once(loop, 1);
    }
    got += in.size;
    EXPECT(got > total && got < total + total / 50);
    close(peer);
    close_world();
}

TEST(a_head_that_waits_for_the_end_of_the_tick_counts_as_queued_and_drains)
{
    open_world((struct http_server_options){0});
    int peer = tcp_peer();
    say(peer, STR(GET("/hold")));
    WAIT(held);
    http_respond_begin(held, 200, NULL, 0);
    EXPECT(http_respond_queued(held) > 0);
    http_exchange_notify(held, 1, on_drain, on_gone, NULL);
    EXPECT_INT(drained, 0);
    WAIT(drained == 1);
    EXPECT_INT(http_respond_queued(held), 0);
    http_respond_end(held);
    close(peer);
    close_world();
}

TEST(a_writer_that_ignores_back_pressure_is_cut_off)
{
    open_world((struct http_server_options){.queue_bytes_max = 1 << 20});
    int peer = adopted_peer();
    say(peer, STR(GET("/hold")));
    WAIT(held);
    http_respond_begin(held, 200, NULL, 0);
    static char piece[65536];
    for (int i = 0; i < 100; i++) {
        EXPECT(http_respond_write(held, str_make(piece, sizeof piece)) < 2 << 20);
        EXPECT_INT(gone, 0);
    }
    WAIT(gone == 1);
    close(peer);
    close_world();
}

/* --- ends --- */

TEST(a_large_answer_is_sent_whole_to_a_peer_that_reads_late)
{
    open_world((struct http_server_options){0});
    OWN(buf) struct buf in = {0};
    int peer = tcp_peer();
    say(peer, STR("GET /large HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"));
    shutdown(peer, SHUT_WR); /* half-closed, but it still reads */
    WAIT(requests == 1);
    for (int i = 0; i < 10; i++)
        loop_once(loop, 1);
    EXPECT_INT(hear_all(peer, &in), -1);
    long body = str_find(buf_str(&in), STR("\r\n\r\n"));
    EXPECT_INT(in.size - (size_t)body - 4, 8 << 20);
    close(peer);
    close_world();
}

static int pieces_gone;

static void count_gone(void *owner)
{
    (void)owner;
    pieces_gone++;
}

/* `count` stretches of text and as many pieces of `size` bytes each. */
static struct rope make_rope(int count, const char *bytes, size_t size)
{
    struct rope rope = {0};
    for (int i = 0; i < count; i++) {
        buf_format(&rope.text, "<%d>", i);
        rope_hang(&rope, str_make(bytes, size), NULL, count_gone);
    }
    return rope;
}

TEST(an_answer_that_lies_elsewhere_is_sent_from_there_and_let_go)
{
    enum { PIECES = 1000, SIZE = 9000 };
    open_world((struct http_server_options){0});
    OWN(fd) int peer = tcp_peer();
    OWN(buf) struct buf heard = {0}, expected = {0};
    static char bytes[SIZE];
    memset(bytes, 'x', sizeof bytes);
    for (int i = 0; i < PIECES; i++) {
        buf_format(&expected, "<%d>", i);
        buf_append(&expected, bytes, SIZE);
    }
    for (int round = 0; round < 2; round++) {
        say(peer, STR("GET /hold HTTP/1.1\r\nHost: x\r\n\r\n"));
        WAIT(held);
        struct rope rope = make_rope(PIECES, bytes, SIZE);
        struct http_exchange *exchange = TAKE(held);
        pieces_gone = 0;
        http_respond_json_rope(exchange, 200, &rope);
        EXPECT_INT(rope_size(&rope), 0);
        EXPECT(pieces_gone < PIECES); /* the peer has not read yet */
        while (heard.size < (size_t)(round + 1) * expected.size)
            if (!hear(peer, &heard))
                loop_once(loop, 10);
        WAIT(pieces_gone == PIECES);
    }
    while (!str_ends(buf_str(&heard), buf_str(&expected)))
        if (!hear(peer, &heard))
            loop_once(loop, 10);
    EXPECT_INT(count_of(buf_str(&heard), "HTTP/1.1 200 OK"), 2);
    close_world();
}

TEST(pieces_are_let_go_when_the_peer_leaves_and_when_there_is_none)
{
    enum { PIECES = 300, SIZE = 100000 };
    open_world((struct http_server_options){0});
    int peer = tcp_peer();
    static char bytes[SIZE];
    pieces_gone = 0;
    say(peer, STR("GET /hold HTTP/1.1\r\nHost: x\r\n\r\n"));
    WAIT(held);
    struct rope rope = make_rope(PIECES, bytes, SIZE);
    http_respond_json_rope(TAKE(held), 200, &rope);
    EXPECT(pieces_gone < PIECES);
    fd_close(&peer);
    WAIT(pieces_gone == PIECES);
    peer = tcp_peer();
    say(peer, STR("GET /mute HTTP/1.1\r\nHost: x\r\n\r\n"));
    WAIT(held);
    fd_close(&peer);
    for (int i = 0; i < 10; i++)
        loop_once(loop, 10);
    rope = make_rope(PIECES, bytes, SIZE);
    http_respond_json_rope(TAKE(held), 200, &rope);
    EXPECT_INT(pieces_gone, 2 * PIECES);
    close_world();
}

TEST(a_piece_in_a_stream_of_chunks_is_a_chunk)
{
    open_world((struct http_server_options){0});
    OWN(fd) int peer = tcp_peer();
    OWN(buf) struct buf heard = {0};
    say(peer, STR("GET /hold HTTP/1.1\r\nHost: x\r\n\r\n"));
    WAIT(held);
    struct http_exchange *exchange = TAKE(held);
    http_respond_begin(exchange, 200, NULL, 0);
    (void)http_respond_write(exchange, STR("one"));
    struct rope rope = make_rope(2, "elsewhere", 9);
    (void)http_respond_write_rope(exchange, &rope);
    (void)http_respond_write(exchange, STR("three"));
    http_respond_end(exchange);
    EXPECT(hear_until(peer, &heard,
                      "\r\n\r\n3\r\none\r\n18\r\n<0>elsewhere<1>elsewhere\r\n"
                      "5\r\nthree\r\n0\r\n\r\n"));
    close_world();
}

TEST(a_reset_looks_like_a_reset_and_never_like_an_end)
{
    open_world((struct http_server_options){0});
    OWN(buf) struct buf in = {0};
    int peer = tcp_peer();
    say(peer, STR(GET("/hold")));
    WAIT(held);
    http_respond_begin(held, 200, NULL, 0);
    http_respond_write(held, STR("some"));
    EXPECT(hear_until(peer, &in, "some"));
    http_exchange_reset(held);
    EXPECT_INT(hear_all(peer, &in), -2);
    EXPECT_INT(gone, 0);
    close(peer);
    WAIT(http_server_connections(server) == 0);
    close_world();
}

/* What libuv does: it reads what is there, and a hang-up told in the same round is an end for it.
 */
TEST(a_reset_does_not_arrive_together_with_the_last_bytes)
{
    open_world((struct http_server_options){0});
    OWN(buf) struct buf in = {0};
    int peer = tcp_peer();
    say(peer, STR("GET /hold HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"));
    WAIT(held);
    http_respond_begin(held, 200, NULL, 0);
    http_respond_write(held, STR("some"));
    http_exchange_reset(held);
    struct pollfd ready = {.fd = peer, .events = POLLIN};
    WAIT(poll(&ready, 1, 0) > 0);
    EXPECT_INT(ready.revents, POLLIN);
    EXPECT(hear_until(peer, &in, "some"));
    EXPECT_INT(hear_all(peer, &in), -2);
    /* The body is unfinished in every reading: inside a chunk, and nothing says that the end of the
     * connection could be its end. */
    EXPECT(str_ends(buf_str(&in), STR("\r\n4\r\nsome\r\n1\r\n")));
    EXPECT(str_find(buf_str(&in), STR("Connection:")) < 0);
    close(peer);
    WAIT(http_server_connections(server) == 0);
    close_world();
}

TEST(a_peer_that_never_reads_is_reset_all_the_same)
{
    open_world((struct http_server_options){.write_idle_ms_max = 300});
    int peer = tcp_peer();
    say(peer, STR(GET("/hold")));
    WAIT(held);
    http_respond_begin(held, 200, NULL, 0);
    OWN(mem) char *much = mem_zero(4 << 20);
    for (int i = 0; i < 4; i++)
        http_respond_write(held, str_make(much, 4 << 20));
    http_exchange_reset(held);
    WAIT(http_server_connections(server) == 0);
    close(peer);
    close_world();
}

TEST(the_handler_learns_that_its_client_went_away)
{
    open_world((struct http_server_options){0});
    int peer = tcp_peer();
    say(peer, STR(GET("/hold")));
    WAIT(held);
    close(peer);
    WAIT(gone == 1);
    WAIT(http_server_connections(server) == 0);
    /* The same while the answer streams. */
    peer = tcp_peer();
    say(peer, STR(GET("/hold")));
    WAIT(held);
    http_respond_begin(held, 200, NULL, 0);
    http_respond_write(held, STR("some"));
    loop_once(loop, 1);
    close(peer);
    WAIT(gone == 2);
    close_world();
}

TEST(writing_to_a_client_that_is_gone_reports_it_later_not_from_inside)
{
    open_world((struct http_server_options){0});
    int peer = adopted_peer();
    say(peer, STR(GET("/hold")));
    WAIT(held);
    close(peer);
    struct http_exchange *exchange = held;
    http_respond_begin(exchange, 200, NULL, 0);
    for (int i = 0; i < 3; i++)
        http_respond_write(exchange, STR("some"));
    EXPECT_INT(gone, 0);
    WAIT(gone == 1);
    close_world();
}

TEST(after_the_answer_nobody_is_told_of_a_client_that_left)
{
    open_world((struct http_server_options){0});
    int peer = tcp_peer();
    say(peer, STR(GET("/hold")));
    WAIT(held);
    http_respond(held, 200, NULL, 0, STR("done"));
    close(peer);
    WAIT(http_server_connections(server) == 0);
    EXPECT_INT(gone, 0);
    close_world();
}

static int taken, not_taken;

static void on_fate(void *context, bool was_taken)
{
    (void)context;
    taken += was_taken;
    not_taken += !was_taken;
}

TEST(the_fate_of_an_answer_is_told_once_taken_or_not)
{
    open_world((struct http_server_options){0});
    OWN(buf) struct buf in = {0};
    int peer = tcp_peer();
    for (int round = 0; round < 3; round++) {
        held = NULL;
        say(peer, STR(GET("/hold")));
        WAIT(held);
        EXPECT_INT(taken, round); /* asking again is taking */
        http_exchange_fate(held, on_fate, NULL);
        http_respond(held, 200, NULL, 0, STR("answer"));
        EXPECT_INT(taken, round);
        buf_clear(&in);
        EXPECT(hear_until(peer, &in, "answer"));
    }
    close(peer); /* in order */
    WAIT(taken == 3);
    peer = tcp_peer();
    held = NULL;
    say(peer, STR(GET("/hold")));
    WAIT(held);
    http_exchange_fate(held, on_fate, NULL);
    http_respond(held, 200, NULL, 0, STR("answer"));
    close(peer); /* with the answer unread: a reset */
    WAIT(not_taken == 1);
    EXPECT_INT(taken, 3);
    close_world();
}

TEST(a_handler_that_cannot_be_told_may_still_answer_into_the_void)
{
    open_world((struct http_server_options){0});
    for (int how = 0; how < 5; how++) {
        int peer = tcp_peer();
        held = NULL;
        say(peer, STR(GET("/mute")));
        WAIT(held);
        close(peer);
        for (int i = 0; i < 5; i++)
            loop_once(loop, 1);
        EXPECT_STR(http_exchange_path(held), STR("/mute"));
        struct http_exchange *exchange = held;
        if (how == 0) {
            http_respond(exchange, 200, NULL, 0, STR("nobody hears"));
        } else if (how == 1) {
            http_respond_begin(exchange, 200, NULL, 0);
            http_respond_write(exchange, STR("nobody hears"));
            http_respond_end(exchange);
        } else if (how == 2) {
            http_exchange_reset(exchange);
        } else if (how == 3) {
            http_exchange_notify(exchange, 0, NULL, on_gone, NULL);
            EXPECT_INT(gone, 0);
            WAIT(gone == 1);
        } else {
            http_exchange_collect(exchange, 0, echo_body, NULL);
            EXPECT_INT(errors, 0);
            WAIT(errors == 1);
        }
        WAIT(http_server_connections(server) == 0);
    }
    close_world();
}

TEST(a_closing_server_ends_idle_connections_and_lets_busy_ones_finish)
{
    open_world((struct http_server_options){0});
    OWN(buf) struct buf in = {0};
    int idle = tcp_peer(), busy = tcp_peer();
    say(idle, STR(GET("/")));
    EXPECT(hear_until(idle, &in, "hello"));
    say(busy, STR(GET("/hold")));
    WAIT(held);
    http_server_close(server, 10000, on_closed, NULL);
    EXPECT_INT(hear_all(idle, &in), -1);
    EXPECT_INT(closed, 0);
    buf_clear(&in);
    http_respond(held, 200, NULL, 0, STR("last words"));
    EXPECT_INT(hear_all(busy, &in), -1);
    EXPECT(str_ends(buf_str(&in), STR("last words")));
    EXPECT_INT(count_of(buf_str(&in), "Connection: close"), 1);
    WAIT(closed == 1);
    close(idle);
    close(busy);
    loop_free(loop);
}

TEST(when_the_grace_is_over_busy_connections_are_reset)
{
    open_world((struct http_server_options){0});
    OWN(buf) struct buf in = {0};
    int told = tcp_peer(), mute = tcp_peer();
    say(told, STR(GET("/hold")));
    WAIT(held);
    say(mute, STR(GET("/mute")));
    WAIT(requests == 2);
    struct http_exchange *exchange = held;
    http_server_close(server, 30, on_closed, NULL);
    EXPECT_INT(hear_all(told, &in), -2);
    EXPECT_INT(hear_all(mute, &in), -2);
    EXPECT_INT(gone, 1);
    WAIT(closed == 1);
    http_respond(exchange, 200, NULL, 0, STR("too late")); /* outlives the server */
    loop_once(loop, 0);
    close(told);
    close(mute);
    loop_free(loop);
}

TEST(a_loop_may_be_freed_right_after_its_server_was_closed)
{
    open_world((struct http_server_options){0});
    int peer = tcp_peer();
    say(peer, STR(GET("/hold")));
    WAIT(held);
    http_server_close(server, 0, on_closed, NULL);
    EXPECT_INT(closed, 0);
    loop_free(loop);
    EXPECT_INT(closed, 1);
    EXPECT_INT(gone, 1);
    close(peer);
}

/* --- places to listen --- */

TEST(a_unix_socket_has_its_mode_replaces_a_stale_one_and_is_removed)
{
    open_world((struct http_server_options){0});
    char path[64];
    snprintf(path, sizeof path, "/tmp/test-http-%d.sock", (int)getpid());
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    strcpy(at.sun_path, path);
    int stale = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    EXPECT(bind(stale, (struct sockaddr *)&at, sizeof at) == 0);
    close(stale);
    struct err err = {0};
    EXPECT(http_server_listen_unix(server, path, 0600, &err) == 0);
    struct stat info;
    EXPECT(stat(path, &info) == 0 && (info.st_mode & 0777) == 0600);
    EXPECT(http_server_listen_unix(server, path, 0600, &err) < 0); /* it is alive */
    EXPECT(err.kind != ERR_NONE);
    int peer = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    EXPECT(connect(peer, (struct sockaddr *)&at, sizeof at) == 0);
    OWN(buf) struct buf in = {0};
    say(peer, STR(GET("/")));
    EXPECT(hear_until(peer, &in, "hello"));
    close(peer);
    close_world();
    EXPECT(stat(path, &info) < 0);
}

TEST(an_address_that_cannot_be_listened_on_is_an_error)
{
    open_world((struct http_server_options){0});
    struct err err = {0};
    EXPECT(http_server_listen_tcp(server, "nonsense", 0, NULL, &err) < 0 && err.kind == ERR_INPUT);
    EXPECT(http_server_listen_tcp(server, "127.0.0.1", port, NULL, &err) < 0);
    EXPECT(str_find(str_of(err.text), STR("in use")) > 0);
    char path[200];
    memset(path, 'a', sizeof path);
    path[199] = '\0';
    EXPECT(http_server_listen_unix(server, path, 0600, &err) < 0 && err.kind == ERR_INPUT);
    close_world();
}

/* Sanitizers bring an allocator of their own. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define MEASURABLE false
#else
#define MEASURABLE true
#endif

TEST(an_idle_or_held_connection_is_small)
{
    open_world((struct http_server_options){0});
    enum { PEERS = 200 };
    static int peers[PEERS];
    OWN(buf) struct buf in = {0};
    peers[0] = adopted_peer();
    say(peers[0], STR(GET("/")));
    EXPECT(hear_until(peers[0], &in, "hello"));
    size_t before = mallinfo2().uordblks;
    for (int i = 1; i < PEERS; i++) {
        peers[i] = adopted_peer();
        say(peers[i], STR(GET("/")));
        buf_clear(&in);
        EXPECT(hear_until(peers[i], &in, "hello"));
    }
    size_t idle = (mallinfo2().uordblks - before) / PEERS;
    for (int i = 1; i < PEERS; i++)
        say(peers[i],
            STR("POST /hold HTTP/1.1\r\nHost: localhost:13131\r\nUser-Agent: agent/1.0\r\n"
                "Accept: application/json\r\nContent-Type: application/json\r\n"
                "Authorization: Bearer dummy-key\r\nAccept-Encoding: gzip, deflate\r\n\r\n"));
    WAIT(requests == 2 * PEERS - 1);
    size_t busy = (mallinfo2().uordblks - before) / PEERS;
    fprintf(stderr, "  %zu bytes idle, %zu held\n", idle, busy);
    EXPECT(!MEASURABLE || (idle > 100 && idle < 1000));
    EXPECT(!MEASURABLE || (busy > 200 && busy < 1800));
    for (int i = 0; i < PEERS; i++)
        close(peers[i]);
    close_world();
}
