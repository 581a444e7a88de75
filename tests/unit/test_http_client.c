/* test_http_client.c - the client through its door, against our server and against scripted ones.
 */
#include <dlfcn.h>
#include <netdb.h>

#include "http/client.h"
#include "test_http_world.h"

static struct http_client *client;

struct result {
    int status, heads, dones;
    struct buf body;
    struct err err;
    bool sent_nothing;
    char header[64]; /* X-Good */
    struct http_call *call;
    bool close_at_head, close_at_data, pause_at_head;
};

static void take_head(void *context, const struct http_answer_head *head)
{
    struct result *result = context;
    result->heads++;
    result->status = head->status;
    snprintf(result->header, sizeof result->header, "%.*s",
             STR_ARGS(http_answer_header(head, "x-good")));
    if (result->close_at_head)
        http_call_close(result->call);
    if (result->pause_at_head)
        http_call_pause(result->call);
}

static void take_data(void *context, struct str data)
{
    struct result *result = context;
    buf_append(&result->body, data.data, data.size);
    if (result->close_at_data)
        http_call_close(result->call);
}

static void take_done(void *context, const struct err *err, bool sent_nothing)
{
    struct result *result = context;
    result->dones++;
    result->err = *err;
    result->sent_nothing = sent_nothing;
    result->call = NULL;
}

static const struct http_call_handlers handlers = {take_head, take_data, take_done};

static void start(struct result *result, struct http_request request)
{
    if (!request.method)
        request.method = "GET";
    result->call = http_call_start(client, &request, &handlers, result);
}

static const char *url_of(const char *path)
{
    static char url[300];
    snprintf(url, sizeof url, "http://127.0.0.1:%u%s", port, path);
    return url;
}

static void open_both(struct http_server_options server_options,
                      struct http_client_options client_options)
{
    open_world(server_options);
    client = http_client_new(loop, &client_options);
}

static void close_both(void)
{
    http_client_free(client);
    close_world();
}

#define OPEN() open_both((struct http_server_options){0}, (struct http_client_options){0})

/* --- with our server --- */

TEST(a_call_brings_status_headers_and_body)
{
    OPEN();
    struct result result = {0};
    start(&result, (struct http_request){.url = url_of("/headers")});
    EXPECT_INT(result.dones, 0);
    WAIT(result.dones);
    EXPECT(result.err.kind == ERR_NONE && result.status == 200 && result.heads == 1);
    EXPECT_TEXT(result.header, "yes");
    EXPECT_STR(buf_str(&result.body), STR("ok"));
    buf_deinit(&result.body);
    close_both();
}

TEST(bodies_go_both_ways_and_chunks_are_put_together)
{
    OPEN();
    OWN(buf) struct buf body = {0};
    for (int i = 0; i < 200000; i++)
        buf_format(&body, "%d ", i);
    struct result sent = {0}, chunks = {0}, head = {0}, empty = {0};
    struct http_header headers[] = {{STR("Content-Length"), STR("1")},
                                    {STR("Transfer-Encoding"), STR("chunked")},
                                    {STR("Connection"), STR("close")},
                                    {STR("X-Mine"), STR("yes")}};
    start(&sent, (struct http_request){.method = "POST",
                                       .url = url_of("/echo"),
                                       .body = buf_str(&body),
                                       .headers = headers,
                                       .header_count = COUNT(headers)});
    start(&chunks, (struct http_request){.url = url_of("/chunks")});
    start(&head, (struct http_request){.method = "HEAD", .url = url_of("/")});
    start(&empty, (struct http_request){.url = url_of("/empty")});
    WAIT(sent.dones && chunks.dones && head.dones && empty.dones);
    EXPECT_STR(buf_str(&sent.body), buf_str(&body));
    EXPECT_STR(buf_str(&chunks.body), STR("one two"));
    EXPECT(head.status == 200 && head.body.size == 0 && head.err.kind == ERR_NONE);
    EXPECT(empty.status == 204 && empty.body.size == 0 && empty.err.kind == ERR_NONE);
    buf_deinit(&sent.body);
    buf_deinit(&chunks.body);
    close_both();
}

TEST(a_body_may_have_a_middle_that_lies_elsewhere)
{
    OPEN();
    OWN(buf) struct buf middle = {0}, whole = {0};
    for (int i = 0; i < 200000; i++)
        buf_format(&middle, "%d ", i);
    buf_format(&whole, "begin<%.*s>end", STR_ARGS(buf_str(&middle)));
    struct result sent = {0};
    start(&sent, (struct http_request){.method = "POST",
                                       .url = url_of("/echo"),
                                       .body = STR("begin<>end"),
                                       .body_stays = true,
                                       .middle = buf_str(&middle),
                                       .middle_at = strlen("begin<")});
    WAIT(sent.dones);
    EXPECT_STR(buf_str(&sent.body), buf_str(&whole));
    buf_deinit(&sent.body);
    close_both();
}

TEST(calls_after_each_other_share_one_connection)
{
    OPEN();
    for (int i = 0; i < 20; i++) {
        struct result result = {0};
        start(&result, (struct http_request){.url = url_of(i % 2 ? "/chunks" : "/")});
        WAIT(result.dones);
        EXPECT(result.err.kind == ERR_NONE);
        EXPECT_INT(http_server_connections(server), 1);
        buf_deinit(&result.body);
    }
    EXPECT_INT(requests, 20);
    close_both();
}

TEST(calls_past_the_maximum_wait_for_a_connection)
{
    open_both((struct http_server_options){0}, (struct http_client_options){.per_host_max = 2});
    static struct result results[20];
    for (int i = 0; i < 20; i++)
        start(&results[i], (struct http_request){.url = url_of("/")});
    http_call_close(results[10].call);
    size_t most = 0;
    for (int done = 0; done < 19;) {
        loop_once(loop, 10);
        done = 0;
        for (int i = 0; i < 20; i++)
            done += results[i].dones;
        size_t now = http_server_connections(server);
        most = now > most ? now : most;
    }
    EXPECT(most <= 2);
    EXPECT_INT(requests, 19);
    EXPECT_INT(results[10].dones, 0);
    for (int i = 0; i < 20; i++) {
        EXPECT(i == 10 || results[i].err.kind == ERR_NONE);
        buf_deinit(&results[i].body);
    }
    close_both();
}

TEST(an_idle_connection_is_given_up_after_a_while)
{
    open_both((struct http_server_options){0}, (struct http_client_options){.idle_ms_max = 30});
    struct result result = {0};
    start(&result, (struct http_request){.url = url_of("/")});
    WAIT(result.dones);
    EXPECT_INT(http_server_connections(server), 1);
    WAIT(http_server_connections(server) == 0);
    buf_deinit(&result.body);
    close_both();
}

TEST(a_connection_the_server_closed_while_idle_is_not_used_again)
{
    open_both((struct http_server_options){.keepalive_ms_max = 20},
              (struct http_client_options){0});
    for (int i = 0; i < 3; i++) {
        struct result result = {0};
        start(&result, (struct http_request){.url = url_of("/")});
        WAIT(result.dones);
        EXPECT(result.err.kind == ERR_NONE);
        buf_deinit(&result.body);
        WAIT(http_server_connections(server) == 0);
    }
    close_both();
}

static void ignore(struct loop_timer *timer)
{
    (void)timer;
}

TEST(a_paused_call_stops_the_server_and_a_resumed_one_gets_everything)
{
    OPEN();
    struct result result = {.pause_at_head = true};
    start(&result, (struct http_request){.url = url_of("/hold"), .idle_ms_max = 20});
    WAIT(held);
    http_respond_begin(held, 200, NULL, 0);
    static char piece[65536];
    size_t written = 0;
    while (written < (size_t)20 << 20 && http_respond_queued(held) < 100000) {
        http_respond_write(held, str_make(piece, sizeof piece));
        written += sizeof piece;
        loop_once(loop, 0);
    }
    EXPECT(written < (size_t)20 << 20);
    for (int i = 0; i < 5; i++)
        loop_once(loop, 10); /* longer than idle_ms_max, which does not count now */
    EXPECT(result.heads == 1 && result.body.size == 0 && result.dones == 0);
    struct loop_timer timer = {0};
    loop_timer_start(loop, &timer, 50, ignore, NULL);
    int ticks = 0;
    for (; timer.loop; ticks++)
        loop_once(loop, 100);
    EXPECT(ticks < 20); /* bytes that nobody takes do not keep the loop awake */
    http_respond_end(held);
    http_call_resume(result.call);
    EXPECT_INT(result.body.size, 0);
    WAIT(result.dones);
    EXPECT(result.err.kind == ERR_NONE);
    EXPECT_INT(result.body.size, written);
    buf_deinit(&result.body);
    close_both();
}

TEST(a_closed_call_is_silent_and_the_server_learns_of_it)
{
    OPEN();
    struct result result = {0};
    start(&result, (struct http_request){.url = url_of("/hold")});
    WAIT(held);
    http_call_close(result.call);
    WAIT(gone == 1);
    EXPECT(result.heads == 0 && result.dones == 0);
    struct result at_head = {.close_at_head = true}, at_data = {.close_at_data = true}, early = {0};
    start(&at_head, (struct http_request){.url = url_of("/large")});
    start(&at_data, (struct http_request){.url = url_of("/large")});
    start(&early, (struct http_request){.url = url_of("/large")});
    http_call_close(early.call);
    WAIT(at_head.heads && at_data.body.size);
    WAIT(http_server_connections(server) == 0);
    EXPECT(at_head.dones == 0 && at_data.dones == 0 && early.heads == 0);
    EXPECT_INT(at_head.body.size, 0);
    buf_deinit(&at_data.body);
    close_both();
}

TEST(a_freed_client_cancels_its_calls)
{
    OPEN();
    struct result results[3] = {{0}};
    start(&results[0], (struct http_request){.url = url_of("/hold")});
    WAIT(held);
    start(&results[1], (struct http_request){.url = url_of("/")});
    start(&results[2], (struct http_request){.url = "http://localhost:1/"});
    http_client_free(client);
    EXPECT_INT(results[0].dones + results[1].dones + results[2].dones, 0);
    WAIT(results[0].dones && results[1].dones && results[2].dones);
    for (int i = 0; i < 3; i++)
        EXPECT(results[i].err.kind == ERR_CANCELLED && results[i].dones == 1);
    close_world();
}

TEST(an_answer_that_does_not_come_or_stops_coming_is_a_timeout)
{
    OPEN();
    struct result none = {0}, stops = {0};
    start(&none, (struct http_request){.url = url_of("/hold"), .first_byte_ms_max = 30});
    WAIT(none.dones);
    EXPECT(none.err.kind == ERR_TIMEOUT && none.sent_nothing);
    WAIT(gone == 1);
    start(&stops, (struct http_request){
                      .url = url_of("/hold"), .first_byte_ms_max = 10000, .idle_ms_max = 30});
    WAIT(held);
    http_respond_begin(held, 200, NULL, 0);
    http_respond_write(held, STR("some"));
    WAIT(stops.dones);
    EXPECT(stops.err.kind == ERR_TIMEOUT && !stops.sent_nothing);
    EXPECT_STR(buf_str(&stops.body), STR("some"));
    WAIT(gone == 2);
    buf_deinit(&stops.body);
    close_both();
}

TEST(a_reset_in_the_middle_is_never_taken_for_the_end)
{
    OPEN();
    struct result result = {0};
    start(&result, (struct http_request){.url = url_of("/hold")});
    WAIT(held);
    http_respond_begin(held, 200, NULL, 0);
    http_respond_write(held, STR("some"));
    WAIT(result.body.size);
    http_exchange_reset(held);
    WAIT(result.dones);
    EXPECT(result.err.kind == ERR_LOST && !result.sent_nothing);
    buf_deinit(&result.body);
    close_both();
}

TEST(trouble_at_the_start_comes_through_on_done_later)
{
    OPEN();
    const struct {
        const char *url;
        const char *method;
        enum err_kind kind;
    } rows[] = {{"ftp://x/", "GET", ERR_INPUT},
                {"http://user:secret@x/", "GET", ERR_INPUT},
                {"http://x/a b", "GET", ERR_INPUT},
                {"http://127.0.0.1:1/", "GET", ERR_LOST},
                {"http://[::1]:1/", "GET", ERR_LOST},
                {"unix:/nowhere/at.all:/", "GET", ERR_NOT_FOUND},
                {"http://127.0.0.1:1/", "G ET", ERR_INPUT}};
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct result result = {0};
        start(&result, (struct http_request){.url = rows[i].url, .method = rows[i].method});
        EXPECT_INT(result.dones, 0);
        WAIT(result.dones);
        EXPECT_INT(result.err.kind, rows[i].kind);
        EXPECT(result.sent_nothing && !strstr(result.err.text, "secret"));
    }
    struct http_header evil = {STR("X-A"), STR("b\r\nX-C: d")};
    struct result result = {0};
    start(&result, (struct http_request){.url = url_of("/"), .headers = &evil, .header_count = 1});
    WAIT(result.dones);
    EXPECT(result.err.kind == ERR_INPUT);
    close_both();
}

static void call_ten_times(const char *host)
{
    char url[64];
    snprintf(url, sizeof url, "http://%s:%u/", host, port);
    static struct result results[10];
    for (int i = 0; i < 10; i++)
        start(&results[i], (struct http_request){.url = url});
    for (int i = 0; i < 10; i++) {
        WAIT(results[i].dones);
        EXPECT_TEXT(results[i].err.text, "");
        buf_deinit(&results[i].body);
    }
}

static _Atomic int look_ups;

static bool names_gone;

/* Stands in for the system's: one name here has no address, and one has two, where nobody
 * listens on the first, until it has none. */
int getaddrinfo(const char *name, const char *service, const struct addrinfo *hints,
                struct addrinfo **list)
{
    static int (*real)(const char *, const char *, const struct addrinfo *, struct addrinfo **);
    if (!real)
        real = dlsym(RTLD_NEXT, "getaddrinfo");
    look_ups++;
    if (strcmp(name, "none.test") == 0 || names_gone)
        return EAI_NONAME;
    if (strcmp(name, "two.test") != 0)
        return real(name, service, hints, list);
    struct addrinfo *second;
    if (real("127.0.0.2", service, hints, list) || real("127.0.0.1", service, hints, &second))
        return EAI_FAIL;
    (*list)->ai_next = second;
    return 0;
}

TEST(a_name_is_looked_up_once_for_a_burst_of_calls)
{
    OPEN();
    call_ten_times("localhost");
    EXPECT_INT(look_ups, 1);
    close_both();
}

TEST(every_address_of_a_name_is_tried)
{
    OPEN();
    call_ten_times("two.test");
    close_both();
}

TEST(a_name_without_an_address_is_said_so)
{
    OPEN();
    struct result result = {0};
    start(&result, (struct http_request){.url = "http://none.test/"});
    WAIT(result.dones);
    EXPECT_INT(result.err.kind, ERR_NOT_FOUND);
    EXPECT(strstr(result.err.text, "none.test") && result.sent_nothing);
    close_both();
}

TEST(a_unix_socket_is_an_origin_like_any_other)
{
    OPEN();
    char path[64], url[96];
    snprintf(path, sizeof path, "/tmp/test-http-client-%d.sock", (int)getpid());
    snprintf(url, sizeof url, "unix:%s:/echo?x=1", path);
    EXPECT(http_server_listen_unix(server, path, 0600, NULL) == 0);
    struct result result = {0};
    start(&result, (struct http_request){.method = "POST", .url = url, .body = STR("via unix")});
    WAIT(result.dones);
    EXPECT_STR(buf_str(&result.body), STR("via unix"));
    EXPECT_TEXT(last_target, "/echo?x=1");
    buf_deinit(&result.body);
    close_both();
}

/* --- with a scripted server --- */

static int listener;

static void open_script(struct http_client_options options)
{
    signal(SIGPIPE, SIG_DFL);
    loop = loop_new(NULL);
    client = http_client_new(loop, &options);
    listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof at;
    if (bind(listener, (struct sockaddr *)&at, size) < 0 || listen(listener, 8) < 0 ||
        getsockname(listener, (struct sockaddr *)&at, &size) < 0)
        abort();
    port = ntohs(at.sin_port);
}

static void close_script(void)
{
    http_client_free(client);
    close(listener);
    loop_free(loop);
}

static int next_peer(void)
{
    for (;;) {
        int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd >= 0)
            return fd;
        loop_once(loop, 10);
    }
}

/* Waits for a request, answers with `bytes`, ends the way asked for. */
enum ending { STAYS, CLOSES, RESETS };
static int answer_with(int fd, struct str bytes, enum ending ending)
{
    OWN(buf) struct buf in = {0};
    if (!hear_until(fd, &in, "\r\n\r\n"))
        return -1;
    say(fd, bytes);
    if (ending == RESETS) {
        struct linger none = {.l_onoff = 1};
        setsockopt(fd, SOL_SOCKET, SO_LINGER, &none, sizeof none);
    }
    if (ending != STAYS)
        close(fd);
    return 0;
}

#define OK "HTTP/1.1 200 OK\r\n"
#define TE "Transfer-Encoding: chunked\r\n"
#define CHUNKS OK TE "\r\n"

/* clang-format off */
static const struct {
    const char *name;
    struct str answer;
    enum ending ending;
    enum err_kind kind;
    int status;
    const char *body;
} answers[] = {
    {"by length", STR(OK "Content-Length: 2\r\n\r\nhi"), STAYS, ERR_NONE, 200, "hi"},
    {"by chunks", STR(CHUNKS "1\r\nh\r\n1\r\ni\r\n0\r\nT: x\r\n\r\n"), STAYS, ERR_NONE, 200, "hi"},
    {"until close", STR(OK "\r\nhi"), CLOSES, ERR_NONE, 200, "hi"},
    {"until close, 1.0", STR("HTTP/1.0 200 OK\r\n\r\nhi"), CLOSES, ERR_NONE, 200, "hi"},
    {"no reason", STR("HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n"), STAYS, ERR_NONE, 200, ""},
    {"interim first", STR("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Hints\r\nA: b\r\n\r\n"
        "HTTP/1.1 201 Made\r\nContent-Length: 2\r\n\r\nhi"), STAYS, ERR_NONE, 201, "hi"},
    {"304 has no body", STR("HTTP/1.1 304 Same\r\nContent-Length: 10\r\n\r\n"), STAYS, ERR_NONE, 304, ""},
    {"no answer", STR(""), CLOSES, ERR_LOST, 0, ""},
    {"reset before an answer", STR(""), RESETS, ERR_LOST, 0, ""},
    {"half a head", STR(OK "Content-"), CLOSES, ERR_LOST, 0, ""},
    {"half a body", STR(OK "Content-Length: 5\r\n\r\nhi"), CLOSES, ERR_LOST, 200, "hi"},
    {"chunks without an end", STR(CHUNKS "2\r\nhi\r\n"), CLOSES, ERR_LOST, 200, "hi"},
    {"chunks without the last line", STR(CHUNKS "2\r\nhi\r\n0\r\n"), CLOSES, ERR_LOST, 200, "hi"},
    {"interim only", STR("HTTP/1.1 100 Continue\r\n\r\n"), CLOSES, ERR_LOST, 0, ""},
    {"switching", STR("HTTP/1.1 101 Switching Protocols\r\n\r\n"), STAYS, ERR_PROTOCOL, 0, ""},
    {"not http", STR("SSH-2.0-OpenSSH_9.2\r\n\r\n"), STAYS, ERR_PROTOCOL, 0, ""},
    {"http 2", STR("HTTP/2.0 200 OK\r\n\r\n"), STAYS, ERR_PROTOCOL, 0, ""},
    {"bare LF", STR("HTTP/1.1 200 OK\nContent-Length: 2\n\nhi"), STAYS, ERR_PROTOCOL, 0, ""},
    {"both framings", STR(OK "Content-Length: 2\r\n" TE "\r\n0\r\n\r\n"), STAYS, ERR_PROTOCOL, 0, ""},
    {"two lengths", STR(OK "Content-Length: 2\r\nContent-Length: 3\r\n\r\nhi"), STAYS, ERR_PROTOCOL, 0, ""},
    {"unknown coding", STR(OK "Transfer-Encoding: gzip\r\n\r\nhi"), STAYS, ERR_PROTOCOL, 0, ""},
    {"bad chunk", STR(CHUNKS "zz\r\nhi\r\n"), STAYS, ERR_PROTOCOL, 200, ""},
    {"status of two digits", STR("HTTP/1.1 20 OK\r\n\r\n"), STAYS, ERR_PROTOCOL, 0, ""},
};
/* clang-format on */

TEST(every_answer_ends_in_the_verdict_it_deserves)
{
    open_script((struct http_client_options){0});
    for (size_t i = 0; i < COUNT(answers); i++) {
        struct result result = {0};
        start(&result, (struct http_request){.url = url_of("/")});
        int peer = next_peer();
        answer_with(peer, answers[i].answer, answers[i].ending);
        WAIT(result.dones);
        if (result.err.kind != answers[i].kind || result.status != answers[i].status ||
            !str_is(buf_str(&result.body), answers[i].body) ||
            result.sent_nothing != (answers[i].answer.size == 0))
            test_fail(__FILE__, __LINE__, "%s: kind %d (%s), status %d, body '%.*s'",
                      answers[i].name, result.err.kind, result.err.text, result.status,
                      STR_ARGS(buf_str(&result.body)));
        if (answers[i].ending == STAYS)
            close(peer);
        for (int n = 0; n < 3; n++)
            loop_once(loop, 1); /* the pool notices */
        buf_deinit(&result.body);
    }
    close_script();
}

TEST(an_answer_may_come_byte_by_byte)
{
    open_script((struct http_client_options){0});
    struct str bytes = STR("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nX-Good: yes\r\n"
                           "Transfer-Encoding: chunked\r\n\r\n2;x\r\nhi\r\n0\r\n\r\n");
    struct result result = {0};
    start(&result, (struct http_request){.url = url_of("/")});
    int peer = next_peer();
    for (size_t i = 0; i < bytes.size; i++) {
        say(peer, str_make(bytes.data + i, 1));
        loop_once(loop, 5);
    }
    WAIT(result.dones);
    EXPECT(result.err.kind == ERR_NONE && result.heads == 1);
    EXPECT_STR(buf_str(&result.body), STR("hi"));
    EXPECT_TEXT(result.header, "yes");
    buf_deinit(&result.body);
    close(peer);
    close_script();
}

#define OK_HI STR("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi")

TEST(a_reused_connection_that_turns_out_to_be_closed_is_replaced_once)
{
    open_script((struct http_client_options){0});
    struct result first = {0}, second = {0}, third = {0};
    start(&first, (struct http_request){.url = url_of("/")});
    int peer = next_peer();
    answer_with(peer, OK_HI, STAYS);
    WAIT(first.dones);
    start(&second, (struct http_request){.method = "POST", .url = url_of("/2"), .body = STR("x")});
    answer_with(peer, STR_NONE, CLOSES);
    peer = next_peer();
    answer_with(peer, OK_HI, STAYS);
    WAIT(second.dones);
    EXPECT(second.err.kind == ERR_NONE && second.status == 200);
    /* Twice is not forgiven. */
    start(&third, (struct http_request){.url = url_of("/3")});
    answer_with(peer, STR_NONE, RESETS);
    answer_with(next_peer(), STR_NONE, CLOSES);
    WAIT(third.dones);
    EXPECT(third.err.kind == ERR_LOST && third.sent_nothing);
    buf_deinit(&first.body);
    buf_deinit(&second.body);
    close_script();
}

TEST(a_reused_connection_is_not_replaced_once_a_byte_of_the_answer_came)
{
    open_script((struct http_client_options){0});
    struct result first = {0}, second = {0};
    start(&first, (struct http_request){.url = url_of("/")});
    int peer = next_peer();
    answer_with(peer, OK_HI, STAYS);
    WAIT(first.dones);
    start(&second, (struct http_request){.url = url_of("/2")});
    answer_with(peer, STR("H"), CLOSES);
    WAIT(second.dones);
    EXPECT(second.err.kind == ERR_LOST && !second.sent_nothing);
    buf_deinit(&first.body);
    close_script();
}

TEST(a_connection_with_bytes_after_the_answer_is_not_used_again)
{
    open_script((struct http_client_options){0});
    struct result first = {0}, second = {0};
    start(&first, (struct http_request){.url = url_of("/")});
    int peer = next_peer();
    answer_with(peer, STR("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhiHTTP/1.1 200 OK\r\n\r\n"),
                STAYS);
    WAIT(first.dones);
    EXPECT(first.err.kind == ERR_NONE);
    start(&second, (struct http_request){.url = url_of("/2")});
    int other = next_peer();
    answer_with(other, OK_HI, STAYS);
    WAIT(second.dones);
    EXPECT(second.err.kind == ERR_NONE);
    close(peer);
    close(other);
    buf_deinit(&first.body);
    buf_deinit(&second.body);
    close_script();
}

TEST(an_early_refusal_is_heard_while_the_request_is_still_being_sent)
{
    open_script((struct http_client_options){0});
    static char body[8 << 20];
    struct result result = {0};
    start(&result, (struct http_request){
                       .method = "POST", .url = url_of("/"), .body = str_make(body, sizeof body)});
    int peer = next_peer();
    answer_with(peer, STR("HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno"), STAYS);
    WAIT(result.dones);
    EXPECT(result.err.kind == ERR_NONE && result.status == 413);
    EXPECT_STR(buf_str(&result.body), STR("no"));
    close(peer);
    buf_deinit(&result.body);
    close_script();
}

TEST(heads_of_answers_have_a_maximum)
{
    open_script((struct http_client_options){.head_bytes_max = 500});
    static char many[2000];
    memset(many, 'a', sizeof many);
    struct result result = {0};
    start(&result, (struct http_request){.url = url_of("/")});
    int peer = next_peer();
    answer_with(peer, STR("HTTP/1.1 200 OK\r\nA: "), STAYS);
    say(peer, str_make(many, sizeof many));
    WAIT(result.dones);
    EXPECT(result.err.kind == ERR_PROTOCOL);
    close(peer);
    close_script();
}

/* A full backlog drops further attempts, so that connecting takes for ever. */
static void fill_backlog(int fillers[4])
{
    (void)listen(listener, 0);
    for (int i = 0; i < 4; i++) {
        fillers[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        struct sockaddr_in at = {.sin_family = AF_INET,
                                 .sin_port = htons(port),
                                 .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        (void)connect(fillers[i], (struct sockaddr *)&at, sizeof at);
    }
}

TEST(connecting_has_a_deadline)
{
    open_script((struct http_client_options){.connect_ms_max = 50});
    int fillers[4];
    fill_backlog(fillers);
    struct result result = {0};
    start(&result, (struct http_request){.url = url_of("/")});
    WAIT(result.dones);
    EXPECT(result.err.kind == ERR_TIMEOUT && result.sent_nothing);
    for (int i = 0; i < 4; i++)
        close(fillers[i]);
    close_script();
}

TEST(a_name_that_cannot_be_looked_up_again_takes_no_address_from_who_is_connecting)
{
    open_script((struct http_client_options){0});
    int fillers[4];
    fill_backlog(fillers);
    char url[64];
    snprintf(url, sizeof url, "http://two.test:%u/", port);
    struct result first = {0}, second = {0};
    start(&first, (struct http_request){.url = url});
    size_t at = 0;
    struct origin *origin = map_next(&client->origins, &at, NULL);
    WAIT(origin->addresses);
    names_gone = true;
    origin->addresses_until_ms = 0; /* they have grown old */
    start(&second, (struct http_request){.url = url});
    WAIT(second.dones);
    EXPECT_INT(second.err.kind, ERR_NOT_FOUND);
    close(listener); /* the next attempt to connect is refused */
    listener = -1;
    for (int i = 0; i < 4; i++)
        close(fillers[i]);
    WAIT(first.dones);
    EXPECT_INT(first.err.kind, ERR_LOST);
    close_script();
}

TEST(a_unix_socket_with_a_full_backlog_is_tried_again)
{
    open_script((struct http_client_options){0});
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    snprintf(at.sun_path, sizeof at.sun_path, "/tmp/test-http-full-%d.sock", (int)getpid());
    close(listener);
    listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    EXPECT(bind(listener, (struct sockaddr *)&at, sizeof at) == 0 && listen(listener, 0) == 0);
    char url[160];
    snprintf(url, sizeof url, "unix:%s:/", at.sun_path);
    static struct result results[6];
    for (int i = 0; i < 6; i++)
        start(&results[i], (struct http_request){.url = url});
    for (int i = 0; i < 6; i++)
        answer_with(next_peer(), OK_HI, CLOSES);
    for (int i = 0; i < 6; i++) {
        WAIT(results[i].dones);
        EXPECT(results[i].err.kind == ERR_NONE);
        buf_deinit(&results[i].body);
    }
    unlink(at.sun_path);
    close_script();
}
