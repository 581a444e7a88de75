/* Calls that go through a proxy: the whole address for http, a tunnel for https. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/err.h"
#include "base/mem.h"
#include "http/http.h"
#include "loop/loop.h"
#include "test.h"

struct result {
    bool done;
    int status;
    struct buf body;
    struct err err;
};

static void on_head(void *context, const struct http_answer_head *head)
{
    ((struct result *)context)->status = head->status;
}

static void on_data(void *context, struct str data)
{
    buf_str_append(&((struct result *)context)->body, data);
}

static void on_done(void *context, const struct err *err, bool sent_nothing)
{
    (void)sent_nothing;
    struct result *result = context;
    result->done = true;
    result->err = *err;
}

static void ask(struct loop *loop, struct http_client *client, const char *url, const char *proxy,
                const char *authorization, struct result *result)
{
    static const struct http_call_handlers handlers = {on_head, on_data, on_done};
    struct http_request request = {.method = "POST",
                                   .url = url,
                                   .body = STR("{}"),
                                   .proxy = proxy,
                                   .proxy_authorization = authorization,
                                   .first_byte_ms_max = 20000};
    *result = (struct result){0};
    http_call_start(client, &request, &handlers, result);
    while (!result->done)
        loop_once(loop, 100);
}

static void echo_target(void *context, struct http_exchange *exchange)
{
    buf_format(context, "%.*s %.*s|%.*s|%.*s\n", STR_ARGS(http_exchange_method(exchange)),
               STR_ARGS(http_exchange_target(exchange)),
               STR_ARGS(http_exchange_header(exchange, "host")),
               STR_ARGS(http_exchange_header(exchange, "proxy-authorization")));
    http_respond_json(exchange, str_is(http_exchange_method(exchange), "CONNECT") ? 407 : 200,
                      STR("{\"by\":\"proxy\"}"));
}

static void set_true(void *context)
{
    *(bool *)context = true;
}

TEST(an_http_call_names_its_whole_address_to_the_proxy_and_a_refused_tunnel_is_an_error)
{
    struct loop *loop = loop_new(NULL);
    OWN(buf) struct buf seen = {0};
    struct http_server *server = http_server_new(
        loop, &(struct http_server_options){.on_request = echo_target, .context = &seen});
    uint16_t port;
    EXPECT_INT(http_server_listen_tcp(server, "127.0.0.1", 0, &port, NULL), 0);
    struct http_client *client = http_client_new(loop, NULL);
    OWN(mem) char *proxy = mem_format("http://127.0.0.1:%u", port);
    struct result result;
    ask(loop, client, "http://model.invalid:8000/v1/x?y=1", proxy, "Basic dTpw", &result);
    EXPECT_INT(result.err.kind, ERR_NONE);
    EXPECT_INT(result.status, 200);
    EXPECT_TEXT(buf_text(&seen), "POST http://model.invalid:8000/v1/x?y=1|model.invalid:8000|"
                                 "Basic dTpw\n");
    buf_deinit(&result.body);
    buf_clear(&seen);
    ask(loop, client, "https://model.invalid/v1/x", proxy, NULL, &result);
    EXPECT_INT(result.err.kind, ERR_DENIED);
    EXPECT_TEXT(buf_text(&seen), "CONNECT model.invalid:443|model.invalid:443|\n");
    buf_deinit(&result.body);
    bool closed = false;
    http_client_free(client);
    http_server_close(server, 0, set_true, &closed);
    while (!closed)
        loop_once(loop, 100);
    loop_free(loop);
}

/* --- a proxy that makes tunnels, and a TLS server, each on a thread --- */

static char certificate[96], key[96];
static int tls_listener, proxy_listener;
static uint16_t tls_port, proxy_port;

static int listen_any(uint16_t *port)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof at;
    if (bind(fd, (struct sockaddr *)&at, size) < 0 || listen(fd, 8) < 0 ||
        getsockname(fd, (struct sockaddr *)&at, &size) < 0)
        abort();
    *port = ntohs(at.sin_port);
    return fd;
}

static void *serve_tls(void *unused)
{
    (void)unused;
    SSL_CTX *context = SSL_CTX_new(TLS_server_method());
    if (SSL_CTX_use_certificate_file(context, certificate, SSL_FILETYPE_PEM) != 1 ||
        SSL_CTX_use_PrivateKey_file(context, key, SSL_FILETYPE_PEM) != 1)
        abort();
    int fd = accept4(tls_listener, NULL, NULL, SOCK_CLOEXEC);
    SSL *ssl = SSL_new(context);
    SSL_set_fd(ssl, fd);
    char bytes[4096];
    static const char answer[] = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ndeep";
    if (SSL_accept(ssl) == 1 && SSL_read(ssl, bytes, sizeof bytes) > 0)
        (void)SSL_write(ssl, answer, sizeof answer - 1);
    (void)SSL_shutdown(ssl);
    SSL_free(ssl);
    close(fd);
    SSL_CTX_free(context);
    return NULL;
}

static void *serve_tunnel(void *unused)
{
    (void)unused;
    int fd = accept4(proxy_listener, NULL, NULL, SOCK_CLOEXEC);
    char bytes[4096] = "";
    size_t size = 0;
    while (!strstr(bytes, "\r\n\r\n")) {
        ssize_t got = read(fd, bytes + size, sizeof bytes - 1 - size);
        if (got <= 0)
            return NULL;
        size += (size_t)got;
    }
    int to = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in at = {.sin_family = AF_INET,
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                             .sin_port = htons(tls_port)};
    static const char fine[] = "HTTP/1.1 200 Connection established\r\n\r\n";
    if (strncmp(bytes, "CONNECT localhost:443 ", 22) != 0 ||
        connect(to, (struct sockaddr *)&at, sizeof at) < 0 || write(fd, fine, sizeof fine - 1) < 0)
        return NULL;
    struct pollfd ends[2] = {{.fd = fd, .events = POLLIN}, {.fd = to, .events = POLLIN}};
    while (poll(ends, 2, 20000) > 0) {
        for (int i = 0; i < 2; i++) {
            if (!ends[i].revents)
                continue;
            ssize_t got = read(ends[i].fd, bytes, sizeof bytes);
            if (got <= 0 || write(ends[!i].fd, bytes, (size_t)got) != got) {
                close(fd);
                close(to);
                return NULL;
            }
        }
    }
    return NULL;
}

TEST(an_https_call_goes_through_a_tunnel_and_checks_the_servers_name)
{
    signal(SIGPIPE, SIG_IGN);
    char directory[64], command[512];
    snprintf(directory, sizeof directory, "/tmp/test-http-proxy-%d", (int)getpid());
    snprintf(certificate, sizeof certificate, "%s/cert.pem", directory);
    snprintf(key, sizeof key, "%s/key.pem", directory);
    snprintf(command, sizeof command,
             "mkdir -p %s && openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost "
             "-addext subjectAltName=DNS:localhost -keyout %s -out %s 2>/dev/null",
             directory, key, certificate);
    EXPECT_INT(system(command), 0);
    tls_listener = listen_any(&tls_port);
    proxy_listener = listen_any(&proxy_port);
    pthread_t threads[2];
    pthread_create(&threads[0], NULL, serve_tls, NULL);
    pthread_create(&threads[1], NULL, serve_tunnel, NULL);
    struct loop *loop = loop_new(NULL);
    struct http_client *client =
        http_client_new(loop, &(struct http_client_options){.ca_file = certificate});
    OWN(mem) char *proxy = mem_format("http://127.0.0.1:%u", proxy_port);
    struct result result;
    ask(loop, client, "https://localhost/v1/x", proxy, NULL, &result);
    EXPECT_INT(result.err.kind, ERR_NONE);
    EXPECT_STR(buf_str(&result.body), STR("deep"));
    buf_deinit(&result.body);
    http_client_free(client);
    loop_free(loop);
    shutdown(tls_listener, SHUT_RDWR);
    shutdown(proxy_listener, SHUT_RDWR);
    pthread_join(threads[0], NULL);
    pthread_join(threads[1], NULL);
    close(tls_listener);
    close(proxy_listener);
    unlink(certificate);
    unlink(key);
    rmdir(directory);
}
