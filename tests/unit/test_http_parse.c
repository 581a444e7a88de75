/* test_http_parse.c - what a request must look like, through the door: a table of requests, each
 * sent whole and byte by byte. */
#include "test_http_world.h"

#define GET(path) "GET " path " HTTP/1.1\r\nHost: x\r\n\r\n"
#define POST "POST /echo HTTP/1.1\r\nHost: x\r\n"
#define TE "Transfer-Encoding: chunked\r\n"
#define CHUNKS POST TE "\r\n"

/* clang-format off */
static const struct {
    const char *name;
    struct str bytes;
    int status;      /* the first answer's; 0: none */
    int handled;     /* requests that reached the handler */
} cases[] = {
    {"plain", STR(GET("/")), 200, 1},
    {"query", STR(GET("/?a=b&c=%20")), 200, 1},
    {"leading empty lines", STR("\r\n\r\n" GET("/")), 200, 1},
    {"any method", STR("PURGE-1 / HTTP/1.1\r\nHost: x\r\n\r\n"), 200, 1},
    {"options star", STR("OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n"), 200, 1},
    {"absolute form", STR("GET http://other/path HTTP/1.1\r\nHost: other\r\n\r\n"), 200, 1},
    {"connect", STR("CONNECT example.org:443 HTTP/1.1\r\nHost: example.org:443\r\n\r\n"), 200, 1},
    {"1.0 without host", STR("GET / HTTP/1.0\r\n\r\n"), 200, 1},
    {"blanks around a value", STR("GET / HTTP/1.1\r\nHost:  \t x \t\r\n\r\n"), 200, 1},
    {"empty value", STR("GET / HTTP/1.1\r\nHost: x\r\nA:\r\n\r\n"), 200, 1},
    {"bytes over 127 in a value", STR("GET / HTTP/1.1\r\nHost: x\r\nA: \xc3\xa9\r\n\r\n"), 200, 1},
    {"same length twice", STR(POST "Content-Length: 2\r\nContent-Length: 2\r\n\r\nhi"), 200, 1},
    {"body by length", STR(POST "Content-Length: 2\r\n\r\nhi"), 200, 1},
    {"empty body by length", STR(POST "Content-Length: 0\r\n\r\n"), 200, 1},
    {"chunks", STR(CHUNKS "2\r\nhi\r\n3;a=b\r\nfoo\r\n0\r\n\r\n"), 200, 1},
    {"chunks, upper case and trailers", STR(POST "Transfer-Encoding: CHUNKED\r\n\r\n"
        "A\r\n0123456789\r\n000\r\nX-T: 1\r\nY:\r\n\r\n"), 200, 1},
    {"two requests", STR(GET("/") GET("/")), 200, 2},

    {"no host", STR("GET / HTTP/1.1\r\n\r\n"), 400, 0},
    {"two hosts", STR("GET / HTTP/1.1\r\nHost: x\r\nHost: x\r\n\r\n"), 400, 0},
    {"bare LF after the request line", STR("GET / HTTP/1.1\nHost: x\r\n\r\n"), 400, 0},
    {"bare LF after a header", STR("GET / HTTP/1.1\r\nHost: x\n\r\n"), 400, 0},
    {"bare LF at the end", STR("GET / HTTP/1.1\r\nHost: x\r\n\n"), 400, 0},
    {"bare CR in a value", STR("GET / HTTP/1.1\r\nHost: x\r\nA: b\rc\r\n\r\n"), 400, 0},
    {"bare CR in the target", STR("GET /\r HTTP/1.1\r\nHost: x\r\n\r\n"), 400, 0},
    {"NUL in a value", STR("GET / HTTP/1.1\r\nHost: x\r\nA: b\0c\r\n\r\n"), 400, 0},
    {"folded line", STR("GET / HTTP/1.1\r\nHost: x\r\nA: b\r\n c\r\n\r\n"), 400, 0},
    {"folded first line", STR("GET / HTTP/1.1\r\n Host: x\r\n\r\n"), 400, 0},
    {"blank before the colon", STR("GET / HTTP/1.1\r\nHost : x\r\n\r\n"), 400, 0},
    {"no colon", STR("GET / HTTP/1.1\r\nHost: x\r\nnonsense\r\n\r\n"), 400, 0},
    {"empty name", STR("GET / HTTP/1.1\r\nHost: x\r\n: y\r\n\r\n"), 400, 0},
    {"odd name", STR("GET / HTTP/1.1\r\nHost: x\r\nA(b): y\r\n\r\n"), 400, 0},
    {"no target", STR("GET HTTP/1.1\r\nHost: x\r\n\r\n"), 400, 0},
    {"two blanks", STR("GET  / HTTP/1.1\r\nHost: x\r\n\r\n"), 400, 0},
    {"blank in the target", STR("GET /a b HTTP/1.1\r\nHost: x\r\n\r\n"), 400, 0},
    {"relative target", STR("GET path HTTP/1.1\r\nHost: x\r\n\r\n"), 400, 0},
    {"star for get", STR("GET * HTTP/1.1\r\nHost: x\r\n\r\n"), 400, 0},
    {"raw byte in the target", STR("GET /\xc3\xa9 HTTP/1.1\r\nHost: x\r\n\r\n"), 400, 0},
    {"no version", STR("GET /\r\n\r\n"), 400, 0},
    {"lower-case version", STR("GET / http/1.1\r\nHost: x\r\n\r\n"), 400, 0},
    {"version 2", STR("GET / HTTP/2.0\r\nHost: x\r\n\r\n"), 505, 0},
    {"version 1.2", STR("GET / HTTP/1.2\r\nHost: x\r\n\r\n"), 505, 0},
    {"TLS hello", STR("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n"), 400, 0},
    {"both framings", STR(POST "Content-Length: 2\r\n" TE "\r\n0\r\n\r\n"), 400, 0},
    {"both framings, other order", STR(POST TE "Content-Length: 2\r\n\r\n0\r\n\r\n"), 400, 0},
    {"different lengths", STR(POST "Content-Length: 2\r\nContent-Length: 3\r\n\r\nhi"), 400, 0},
    {"list of lengths", STR(POST "Content-Length: 2, 2\r\n\r\nhi"), 400, 0},
    {"signed length", STR(POST "Content-Length: +2\r\n\r\nhi"), 400, 0},
    {"negative length", STR(POST "Content-Length: -2\r\n\r\nhi"), 400, 0},
    {"hexadecimal length", STR(POST "Content-Length: 0x2\r\n\r\nhi"), 400, 0},
    {"empty length", STR(POST "Content-Length:\r\n\r\nhi"), 400, 0},
    {"length past all", STR(POST "Content-Length: 99999999999999999999999\r\n\r\nhi"), 400, 0},
    {"length past the limit", STR(POST "Content-Length: 99999999999\r\n\r\nhi"), 413, 0},
    {"unknown coding", STR(POST "Transfer-Encoding: gzip\r\n\r\n"), 501, 0},
    {"coding list", STR(POST "Transfer-Encoding: gzip, chunked\r\n\r\n"), 501, 0},
    {"coding hidden", STR(POST "Transfer-Encoding: xchunked\r\n\r\n"), 501, 0},
    {"coding twice", STR(POST TE "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"), 400, 0},
    {"coding then identity", STR(POST TE "Transfer-Encoding: identity\r\n\r\n0\r\n\r\n"), 501, 0},
    {"chunks in 1.0", STR("POST /echo HTTP/1.0\r\n" TE "\r\n0\r\n\r\n"), 400, 0},
    {"chunk size with a blank", STR(CHUNKS "2 \r\nhi\r\n0\r\n\r\n"), 400, 1},
    {"chunk size with 0x", STR(CHUNKS "0x2\r\nhi\r\n0\r\n\r\n"), 400, 1},
    {"chunk size with a sign", STR(CHUNKS "+2\r\nhi\r\n0\r\n\r\n"), 400, 1},
    {"no chunk size", STR(CHUNKS "\r\nhi\r\n0\r\n\r\n"), 400, 1},
    {"huge chunk size", STR(CHUNKS "ffffffffffffffff2\r\nhi\r\n0\r\n\r\n"), 400, 1},
    {"chunk size ends with LF", STR(CHUNKS "2\nhi\r\n0\r\n\r\n"), 400, 1},
    {"LF in an extension", STR(CHUNKS "2;a\nhi\r\n0\r\n\r\n"), 400, 1},
    {"chunk longer than said", STR(CHUNKS "2\r\nhip\r\n0\r\n\r\n"), 400, 1},
    {"folded trailer", STR(CHUNKS "0\r\nA: b\r\n c\r\n\r\n"), 400, 1},
    {"LF in the trailer", STR(CHUNKS "0\r\nA: b\n\r\n"), 400, 1},
    {"unknown expectation", STR(POST "Expect: wonders\r\n\r\n"), 417, 0},
    {"cut head", STR("GET / HTTP/1.1\r\nHost"), 0, 0},
    {"cut body", STR(POST "Content-Length: 20\r\n\r\nhi"), 0, 1},
    {"nothing", STR(""), 0, 0},
};
/* clang-format on */

static void check_case(size_t i, bool byte_by_byte)
{
    int peer = adopted_peer();
    OWN(buf) struct buf in = {0};
    requests = 0;
    if (byte_by_byte) {
        for (size_t at = 0; at < cases[i].bytes.size; at++) {
            say(peer, str_make(cases[i].bytes.data + at, 1));
            loop_once(loop, 0);
        }
    } else {
        say(peer, cases[i].bytes);
    }
    shutdown(peer, SHUT_WR);
    hear_all(peer, &in);
    close(peer);
    int status = in.size > 12 ? atoi(in.data + 9) : 0;
    if (status != cases[i].status || requests != cases[i].handled)
        test_fail(__FILE__, __LINE__, "%s%s: status %d, not %d; %d handled, not %d", cases[i].name,
                  byte_by_byte ? ", byte by byte" : "", status, cases[i].status, requests,
                  cases[i].handled);
    if (status >= 400 && count_of(buf_str(&in), "{\"type\":\"error\",\"error\":{\"type\":\"") != 1)
        test_fail(__FILE__, __LINE__, "%s: no error body", cases[i].name);
    if (status >= 400 && count_of(buf_str(&in), "\r\nDate: ") != 1)
        test_fail(__FILE__, __LINE__, "%s: more than one answer", cases[i].name);
}

TEST(every_request_gets_the_answer_the_standard_asks_for)
{
    open_world((struct http_server_options){0});
    for (size_t i = 0; i < COUNT(cases); i++)
        check_case(i, false);
    close_world();
}

TEST(it_does_not_matter_how_a_request_is_cut_into_pieces)
{
    open_world((struct http_server_options){0});
    for (size_t i = 0; i < COUNT(cases); i++)
        check_case(i, true);
    close_world();
}
