/* WebSockets: frames as pure functions, and a server's end with a raw peer. */
#include "base/rope.h"
#include "test_http_world.h"

#include "http/websocket.h"

/* A frame as clients send it, masked. */
static void frame(struct buf *out, int first, const char *data, size_t size)
{
    static const unsigned char mask[4] = {0x12, 0x34, 0x56, 0x78};
    buf_byte(out, (char)first);
    if (size < 126) {
        buf_byte(out, (char)(0x80 | size));
    } else if (size < 65536) {
        buf_byte(out, (char)(0x80 | 126));
        buf_byte(out, (char)(size >> 8));
        buf_byte(out, (char)size);
    } else {
        buf_byte(out, (char)(0x80 | 127));
        for (int i = 0; i < 8; i++)
            buf_byte(out, (char)((uint64_t)size >> (56 - 8 * i)));
    }
    buf_append(out, mask, 4);
    for (size_t i = 0; i < size; i++)
        buf_byte(out, (char)((unsigned char)data[i] ^ mask[i & 3]));
}

static bool note(void *context, enum websocket_opcode opcode, struct str data)
{
    buf_format(context, "%d:%.*s ", (int)opcode, STR_ARGS(str_upto(data, 20)));
    return true;
}

static int read_all(struct str bytes, size_t piece, struct buf *seen)
{
    struct websocket_reader reader = {
        .message_bytes_max = 100000, .on_message = note, .context = seen};
    int code = 0;
    for (size_t at = 0; at < bytes.size && !code; at += piece)
        code = websocket_feed(&reader, str_upto(str_from(bytes, at), piece));
    websocket_reader_deinit(&reader);
    return code;
}

TEST(messages_come_whole_however_they_are_cut)
{
    OWN(buf) struct buf bytes = {0};
    OWN(mem) char *large = mem_zero(70001);
    memset(large, 'x', 70000);
    frame(&bytes, 0x81, "hello", 5);
    frame(&bytes, 0x01, "frag", 4);
    frame(&bytes, 0x89, "now", 3); /* a ping between two pieces */
    frame(&bytes, 0x00, "ment", 4);
    frame(&bytes, 0x80, "ed", 2);
    frame(&bytes, 0x82, "", 0);
    frame(&bytes, 0x81, large, 300);
    frame(&bytes, 0x81, large, 70000);
    frame(&bytes, 0x88, "", 0);
    static const size_t pieces[] = {1, 2, 3, 7, 1000, 1000000};
    for (size_t i = 0; i < COUNT(pieces); i++) {
        OWN(buf) struct buf seen = {0};
        EXPECT_INT(read_all(buf_str(&bytes), pieces[i], &seen), 0);
        EXPECT_TEXT(buf_text(&seen), "1:hello 9:now 1:fragmented 2: 1:xxxxxxxxxxxxxxxxxxxx "
                                     "1:xxxxxxxxxxxxxxxxxxxx 8: ");
    }
}

TEST(what_clients_must_not_send_has_its_close_code)
{
    static const struct {
        const char *bytes;
        size_t size;
        int code;
    } wrong[] = {
        {"\x81\x05hello", 7, 1002},                       /* not masked */
        {"\xc1\x80\0\0\0\0", 6, 1002},                    /* a reserved bit */
        {"\x83\x80\0\0\0\0", 6, 1002},                    /* an unknown opcode */
        {"\x80\x80\0\0\0\0", 6, 1002},                    /* continues nothing */
        {"\x01\x80\0\0\0\0\x01\x80\0\0\0\0", 12, 1002},   /* begins inside another */
        {"\x09\x80\0\0\0\0", 6, 1002},                    /* a control frame in pieces */
        {"\x89\xfe\0\x7e\0\0\0\0", 8, 1002},              /* a control frame too long */
        {"\x81\xfe\0\x05\0\0\0\0", 8, 1002},              /* a length written too wide */
        {"\x81\xff\x80\0\0\0\0\0\0\0\0\0\0\0", 14, 1002}, /* a length with its top bit set */
        {"\x81\xff\0\0\0\0\0\x02\0\0\0\0\0\0", 14, 1009}, /* too large */
        {"\x81\x82\0\0\0\0\xff\xfe", 8, 1007},            /* no UTF-8 */
    };
    for (size_t i = 0; i < COUNT(wrong); i++) {
        OWN(buf) struct buf seen = {0};
        EXPECT_INT(read_all(str_make(wrong[i].bytes, wrong[i].size), 1, &seen), wrong[i].code);
    }
    EXPECT_INT(websocket_close_code(STR_NONE), 1005);
    EXPECT_INT(websocket_close_code(STR("\x03\xe8")), 1000);
    EXPECT_INT(websocket_close_code(STR("\x03")), 1002);
    EXPECT_INT(websocket_close_code(STR("\x03\xee")), 1002); /* 1006 is never sent */
    EXPECT_INT(websocket_close_code(STR("\x0f\xa0 bye")), 4000);
}

TEST(the_key_of_the_rfc_is_accepted_as_the_rfc_says)
{
    char accept[29];
    EXPECT(websocket_accept(STR("dGhlIHNhbXBsZSBub25jZQ=="), accept));
    EXPECT_TEXT(accept, "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    EXPECT(!websocket_accept(STR("short"), accept));
    EXPECT(!websocket_accept(STR("dGhlIHNhbXBsZSBub25jZQ??"), accept));
}

/* ---------------------------------------------------------------- the server's end */

static struct http_websocket *wire;
static struct buf heard;
static int closed_code;

/* Half of it written, half of it hanging. */
static void echo_in_a_rope(struct str data)
{
    struct rope rope = {0};
    size_t half = data.size / 2;
    char *rest = str_dup(str_from(data, half));
    buf_str_append(&rope.text, str_upto(data, half));
    rope_hang(&rope, str_make(rest, data.size - half), rest, free);
    (void)http_websocket_send_rope(wire, &rope);
}

static void echo_message(void *context, bool text, struct str data)
{
    (void)context;
    buf_format(&heard, "%s:%.*s ", text ? "text" : "binary", STR_ARGS(str_upto(data, 20)));
    if (str_is(data, "close"))
        http_websocket_close(TAKE(wire), 1001, "asked to");
    else if (text)
        echo_in_a_rope(data);
    else
        (void)http_websocket_send(wire, data);
}

static void websocket_closed(void *context, int code)
{
    (void)context;
    closed_code = code;
    wire = NULL;
}

static void accept_request(void *context, struct http_exchange *exchange)
{
    (void)context;
    struct http_websocket_options options = {
        .message_bytes_max = 1000, .on_message = echo_message, .on_closed = websocket_closed};
    struct err err = {0};
    wire = http_websocket_accept(exchange, &options, &err);
    if (!wire)
        http_respond(exchange, 400, NULL, 0, str_of(err.text));
}

#define HANDSHAKE                                                                                  \
    "GET /ws HTTP/1.1\r\nHost: x\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n"     \
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"

static void open_websocket_world_on(struct loop *on)
{
    signal(SIGPIPE, SIG_DFL);
    loop = on;
    server = http_server_new(
        loop, &(struct http_server_options){.on_request = accept_request, .body_bytes_max = 10});
    if (http_server_listen_tcp(server, "127.0.0.1", 0, &port, NULL) < 0)
        abort();
}

static void open_websocket_world(void)
{
    open_websocket_world_on(loop_new(NULL));
}

/* The limit of bodies does not count for what comes after the upgrade. */
TEST(a_websocket_echoes_pongs_and_closes_in_order)
{
    open_websocket_world();
    OWN(buf) struct buf in = {0};
    OWN(buf) struct buf out = {0};
    int fd = tcp_peer();
    say(fd, STR(HANDSHAKE));
    EXPECT(hear_until(fd, &in, "\r\n\r\n"));
    EXPECT(str_starts(buf_str(&in), STR("HTTP/1.1 101 ")));
    EXPECT(str_find(buf_str(&in), STR("s3pPLMBiTxaQ9kYGzzhZRbK+xOo=")) > 0);
    frame(&out, 0x81, "hello", 5);
    frame(&out, 0x89, "pi", 2);
    frame(&out, 0x82, "a longer message", 16);
    say(fd, buf_str(&out));
    EXPECT(hear_until(fd, &in, "\x81\x05hello"));
    EXPECT(hear_until(fd, &in, "\x8a\x02pi"));
    EXPECT(hear_until(fd, &in, "a longer message"));
    EXPECT_TEXT(buf_text(&heard), "text:hello binary:a longer message ");
    buf_clear(&out);
    frame(&out, 0x88, "\x03\xe8", 2);
    say(fd, buf_str(&out));
    EXPECT(hear_until(fd, &in, "\x88\x02\x03\xe8"));
    EXPECT_INT(hear_all(fd, &in), -1);
    EXPECT_INT(closed_code, 1000);
    close(fd);
    buf_deinit(&heard);
    close_world();
}

/* RFC 6455, 5.5.3: who is asked faster than it can answer answers the last. */
TEST_WITHIN(pings_of_a_peer_that_does_not_read_are_not_all_answered, 60)
{
    enum { PINGS = 200000, PONG = 127 };
    open_websocket_world();
    OWN(buf) struct buf in = {0};
    OWN(buf) struct buf out = {0};
    int fd = tcp_peer();
    say(fd, STR(HANDSHAKE));
    EXPECT(hear_until(fd, &in, "\r\n\r\n"));
    buf_clear(&in);
    for (int i = 0; i < PINGS; i++) {
        char text[126];
        snprintf(text, sizeof text, "%0125d", i);
        frame(&out, 0x89, text, 125);
    }
    frame(&out, 0x89, "last", 4);
    for (struct str rest = buf_str(&out); rest.size;) {
        ssize_t sent = send(fd, rest.data, rest.size, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent > 0)
            rest = str_from(rest, (size_t)sent);
        loop_once(loop, 0);
    }
    for (int i = 0; i < 200; i++)
        loop_once(loop, 0);
    size_t total = 0;
    bool last = false;
    while (!last) {
        static char bytes[1 << 16];
        ssize_t got = recv(fd, bytes, sizeof bytes, MSG_DONTWAIT);
        if (got == 0 || (got < 0 && errno != EAGAIN))
            break;
        if (got > 0) {
            total += (size_t)got;
            buf_append(&in, bytes, (size_t)got);
            last = str_find(buf_str(&in), STR("\x8a\x04last")) >= 0;
            buf_consume(&in, in.size > 5 ? in.size - 5 : 0);
        } else {
            loop_once(loop, 10);
        }
    }
    EXPECT(last);
    EXPECT(total < (size_t)PINGS * PONG * 3 / 4);
    close(fd);
    buf_deinit(&heard);
    close_world();
}

TEST(a_server_that_closes_says_so_and_waits_for_the_answer)
{
    open_websocket_world();
    OWN(buf) struct buf in = {0};
    OWN(buf) struct buf out = {0};
    int fd = tcp_peer();
    say(fd, STR(HANDSHAKE));
    frame(&out, 0x81, "close", 5);
    say(fd, buf_str(&out));
    EXPECT(hear_until(fd, &in, "asked to"));
    buf_clear(&out);
    frame(&out, 0x81, "too late", 8);
    frame(&out, 0x88, "\x03\xe9", 2);
    say(fd, buf_str(&out));
    EXPECT_INT(hear_all(fd, &in), -1);
    EXPECT_TEXT(buf_text(&heard), "text:close ");
    EXPECT_INT(closed_code, 0); /* its owner let go */
    close(fd);
    buf_deinit(&heard);
    close_world();
}

TEST(a_peer_that_goes_away_or_speaks_nonsense_closes_the_websocket)
{
    open_websocket_world();
    OWN(buf) struct buf in = {0};
    int fd = tcp_peer();
    say(fd, STR(HANDSHAKE));
    EXPECT(hear_until(fd, &in, "\r\n\r\n"));
    close(fd);
    WAIT(closed_code);
    EXPECT_INT(closed_code, 1006);
    closed_code = 0;
    buf_clear(&in);
    fd = tcp_peer();
    say(fd, STR(HANDSHAKE "\x81\x05hello"));
    EXPECT(hear_until(fd, &in, "\x88\x02\x03\xea"));
    EXPECT_INT(closed_code, 1002);
    close(fd);
    buf_deinit(&heard);
    close_world();
}

TEST(an_ordinary_request_is_no_websocket)
{
    open_websocket_world();
    static const char *const requests_[] = {
        "GET /ws HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        "GET /ws HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, close\r\nUpgrade: websocket\r\n"
        "Sec-WebSocket-Version: 8\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
        "GET /ws HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, close\r\nUpgrade: websocket\r\n"
        "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: nope\r\n\r\n",
    };
    for (size_t i = 0; i < COUNT(requests_); i++) {
        OWN(buf) struct buf in = {0};
        int fd = tcp_peer();
        say(fd, str_of(requests_[i]));
        EXPECT_INT(hear_all(fd, &in), -1);
        EXPECT(str_starts(buf_str(&in), STR("HTTP/1.1 400 ")));
        close(fd);
    }
    close_world();
}

TEST(silence_is_held_against_a_peer_only_while_we_listen)
{
    open_websocket_world_on(loop_new_virtual(NULL));
    OWN(buf) struct buf in = {0};
    OWN(buf) struct buf out = {0};
    int fd = tcp_peer();
    say(fd, STR(HANDSHAKE));
    EXPECT(hear_until(fd, &in, "\r\n\r\n"));
    http_websocket_pause(wire);
    frame(&out, 0x81, "still here", 10);
    say(fd, buf_str(&out));
    uint64_t begin = loop_now_ms(loop);
    while (loop_now_ms(loop) - begin < 180000)
        loop_once(loop, 1000);
    EXPECT_INT(closed_code, 0);
    http_websocket_resume(wire);
    EXPECT(hear_until(fd, &in, "still here"));
    WAIT(closed_code); /* it answers no ping */
    EXPECT_INT(closed_code, 1006);
    close(fd);
    buf_deinit(&heard);
    close_world();
}
