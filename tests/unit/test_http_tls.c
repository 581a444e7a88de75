/* test_http_tls.c - the client against an OpenSSL server on a thread of its own. */
#include <openssl/ssl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "test_http_world.h"

static char directory[64], certificate[96], key[96];
static int listener;
static pthread_t thread;
static volatile int connections;

/* Answers every request: /echo with its body, /cut without a proper goodbye, anything else with
 * hello. */
static void serve(SSL *ssl)
{
    OWN(buf) struct buf in = {0};
    for (;;) {
        long end;
        while ((end = str_find(buf_str(&in), STR("\r\n\r\n"))) < 0) {
            int got = SSL_read(ssl, buf_reserve(&in, 16384), 16384);
            if (got <= 0)
                return;
            buf_added(&in, (size_t)got);
        }
        struct str head = str_upto(buf_str(&in), (size_t)end);
        size_t length = 0;
        long at = str_find(head, STR("Content-Length: "));
        if (at >= 0)
            length = strtoul(head.data + at + 16, NULL, 10);
        bool echo = str_find(head, STR(" /echo ")) > 0, cut = str_find(head, STR(" /cut ")) > 0;
        while (in.size < (size_t)end + 4 + length) {
            int got = SSL_read(ssl, buf_reserve(&in, 16384), 16384);
            if (got <= 0)
                return;
            buf_added(&in, (size_t)got);
        }
        OWN(buf) struct buf out = {0};
        if (cut) {
            buf_format(&out, "HTTP/1.1 200 OK\r\n\r\nuntil close");
        } else {
            struct str body = echo ? str_make(in.data + end + 4, length) : STR("hello");
            buf_format(&out, "HTTP/1.1 200 OK\r\nContent-Length: %zu\r\n\r\n", body.size);
            buf_str_append(&out, body);
        }
        buf_consume(&in, (size_t)end + 4 + length);
        for (size_t sent = 0; sent < out.size;) {
            int wrote = SSL_write(ssl, out.data + sent, (int)(out.size - sent));
            if (wrote <= 0)
                return;
            sent += (size_t)wrote;
        }
        if (cut)
            return; /* the caller closes without SSL_shutdown */
    }
}

static void *serve_all(void *unused)
{
    (void)unused;
    SSL_CTX *context = SSL_CTX_new(TLS_server_method());
    if (SSL_CTX_use_certificate_file(context, certificate, SSL_FILETYPE_PEM) != 1 ||
        SSL_CTX_use_PrivateKey_file(context, key, SSL_FILETYPE_PEM) != 1)
        abort();
    int fd;
    while ((fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC)) >= 0) {
        __atomic_fetch_add(&connections, 1, __ATOMIC_SEQ_CST);
        SSL *ssl = SSL_new(context);
        SSL_set_fd(ssl, fd);
        if (SSL_accept(ssl) == 1)
            serve(ssl);
        SSL_free(ssl);
        close(fd);
    }
    SSL_CTX_free(context);
    return NULL;
}

static bool open_tls_for(const char *names)
{
    signal(SIGPIPE, SIG_IGN); /* for the server's side here; the client's does not need it */
    snprintf(directory, sizeof directory, "/tmp/test-http-tls-%d", (int)getpid());
    snprintf(certificate, sizeof certificate, "%s/cert.pem", directory);
    snprintf(key, sizeof key, "%s/key.pem", directory);
    char command[512];
    snprintf(command, sizeof command,
             "mkdir -p %s && openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost "
             "-addext subjectAltName=%s -keyout %s -out %s 2>/dev/null",
             directory, names, key, certificate);
    if (system(command) != 0)
        return false;
    loop = loop_new(NULL);
    listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof at;
    if (bind(listener, (struct sockaddr *)&at, size) < 0 || listen(listener, 8) < 0 ||
        getsockname(listener, (struct sockaddr *)&at, &size) < 0)
        return false;
    port = ntohs(at.sin_port);
    return pthread_create(&thread, NULL, serve_all, NULL) == 0;
}

static bool open_tls(void)
{
    return open_tls_for("DNS:localhost,IP:127.0.0.1");
}

static void close_tls(struct http_client *client)
{
    http_client_free(client);
    loop_free(loop);
    shutdown(listener, SHUT_RDWR);
    pthread_join(thread, NULL);
    close(listener);
    unlink(certificate);
    unlink(key);
    rmdir(directory);
}

struct result {
    int dones;
    struct buf body;
    struct err err;
};

static void take_data(void *context, struct str data)
{
    struct result *result = context;
    buf_append(&result->body, data.data, data.size);
}

static void take_done(void *context, const struct err *err, bool sent_nothing)
{
    (void)sent_nothing;
    struct result *result = context;
    result->dones++;
    result->err = *err;
}

static void call(struct http_client *client, struct result *result, const char *host,
                 const char *path, struct str body)
{
    static const struct http_call_handlers handlers = {NULL, take_data, take_done};
    char url[128];
    snprintf(url, sizeof url, "https://%s:%u%s", host, port, path);
    buf_deinit(&result->body);
    *result = (struct result){0};
    struct http_request request = {
        .method = body.size ? "POST" : "GET", .url = url, .body = body, .first_byte_ms_max = 20000};
    http_call_start(client, &request, &handlers, result);
    WAIT(result->dones);
}

TEST(a_trusted_server_is_spoken_to_and_its_connection_kept)
{
    EXPECT(open_tls());
    struct http_client_options options = {.ca_file = certificate};
    struct http_client *client = http_client_new(loop, &options);
    struct result result = {0};
    for (int i = 0; i < 5; i++) {
        call(client, &result, "127.0.0.1", "/", STR_NONE);
        EXPECT_TEXT(result.err.text, "");
        EXPECT_STR(buf_str(&result.body), STR("hello"));
    }
    OWN(buf) struct buf body = {0};
    for (int i = 0; i < 300000; i++)
        buf_format(&body, "%d,", i);
    call(client, &result, "127.0.0.1", "/echo", buf_str(&body));
    EXPECT_TEXT(result.err.text, "");
    EXPECT_STR(buf_str(&result.body), buf_str(&body));
    EXPECT_INT(__atomic_load_n(&connections, __ATOMIC_SEQ_CST), 1);
    buf_deinit(&result.body);
    close_tls(client);
}

TEST(a_host_may_be_named_in_the_certificate_by_name_or_by_address)
{
    EXPECT(open_tls());
    struct http_client_options options = {.ca_file = certificate};
    struct http_client *client = http_client_new(loop, &options);
    struct result result = {0};
    call(client, &result, "localhost", "/", STR_NONE);
    EXPECT_TEXT(result.err.text, "");
    buf_deinit(&result.body);
    close_tls(client);
}

TEST(an_unknown_authority_is_refused_unless_verification_is_off)
{
    EXPECT(open_tls());
    struct http_client *client = http_client_new(loop, NULL);
    struct result result = {0};
    call(client, &result, "127.0.0.1", "/", STR_NONE);
    EXPECT_INT(result.err.kind, ERR_PROTOCOL);
    EXPECT(strstr(result.err.text, "certificate"));
    http_client_free(client);
    struct http_client_options options = {.tls_verify_off = true};
    client = http_client_new(loop, &options);
    call(client, &result, "127.0.0.1", "/", STR_NONE);
    EXPECT_TEXT(result.err.text, "");
    buf_deinit(&result.body);
    close_tls(client);
}

TEST(a_trusted_certificate_for_another_name_is_refused)
{
    EXPECT(open_tls_for("DNS:other.example,IP:127.0.0.9"));
    struct http_client_options options = {.ca_file = certificate};
    struct http_client *client = http_client_new(loop, &options);
    struct result result = {0};
    const char *hosts[] = {"127.0.0.1", "localhost"};
    for (int i = 0; i < 2; i++) {
        call(client, &result, hosts[i], "/", STR_NONE);
        EXPECT_INT(result.err.kind, ERR_PROTOCOL);
        EXPECT(strstr(result.err.text, "mismatch"));
        EXPECT_INT(result.body.size, 0);
    }
    close_tls(client);
}

TEST(an_answer_cut_without_a_goodbye_is_not_complete)
{
    EXPECT(open_tls());
    struct http_client_options options = {.ca_file = certificate};
    struct http_client *client = http_client_new(loop, &options);
    struct result result = {0};
    call(client, &result, "127.0.0.1", "/cut", STR_NONE);
    EXPECT_STR(buf_str(&result.body), STR("until close"));
    EXPECT_INT(result.err.kind, ERR_LOST);
    buf_deinit(&result.body);
    close_tls(client);
}

TEST(a_file_of_certificates_that_is_missing_is_said_so)
{
    EXPECT(open_tls());
    struct http_client_options options = {.ca_file = "/does/not/exist.pem"};
    struct http_client *client = http_client_new(loop, &options);
    struct result result = {0};
    call(client, &result, "127.0.0.1", "/", STR_NONE);
    EXPECT_INT(result.err.kind, ERR_INPUT);
    close_tls(client);
}
