/* tls.c - OpenSSL behind six functions: verification on, name checked, nothing but TLS 1.2 and
 * later.
 *
 * The socket is reached by a BIO of our own, because OpenSSL's writes with write(2), and that means
 * SIGPIPE when the peer is gone. Buffers are released between records, so an idle connection is
 * small. */
#include "tls.h"

#include <arpa/inet.h>
#include <errno.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/socket.h>

#include "base/check.h"
#include "base/err.h"
#include "base/mem.h"

struct http_tls {
    SSL_CTX *context;
};

struct http_tls_stream {
    SSL *ssl;
};

/* --- the socket below --- */

static BIO_METHOD *method;
static pthread_once_t method_once = PTHREAD_ONCE_INIT;

static int bio_write(BIO *bio, const char *data, int size)
{
    BIO_clear_retry_flags(bio);
    int fd = (int)(intptr_t)BIO_get_data(bio);
    ssize_t sent = send(fd, data, (size_t)size, MSG_NOSIGNAL);
    if (sent < 0 && (errno == EAGAIN || errno == EINTR))
        BIO_set_retry_write(bio);
    return (int)sent;
}

static int bio_read(BIO *bio, char *data, int size)
{
    BIO_clear_retry_flags(bio);
    int fd = (int)(intptr_t)BIO_get_data(bio);
    ssize_t got = recv(fd, data, (size_t)size, 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        BIO_set_retry_read(bio);
    return (int)got;
}

static long bio_control(BIO *bio, int command, long number, void *pointer)
{
    (void)bio, (void)number, (void)pointer;
    return command == BIO_CTRL_FLUSH;
}

static void make_method(void)
{
    method = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "postern socket");
    CHECK(method);
    BIO_meth_set_write(method, bio_write);
    BIO_meth_set_read(method, bio_read);
    BIO_meth_set_ctrl(method, bio_control);
}

/* --- trust --- */

static int fail(struct err *err, enum err_kind kind, const char *what)
{
    unsigned long code = ERR_get_error();
    char reason[160] = "unknown reason";
    if (code)
        ERR_error_string_n(code, reason, sizeof reason);
    ERR_clear_error();
    return err_set(err, kind, "%s: %s", what, reason);
}

struct http_tls *http_tls_new(const char *ca_file, bool verify_off, struct err *err)
{
    pthread_once(&method_once, make_method);
    struct http_tls *tls = mem_zero(sizeof *tls);
    tls->context = SSL_CTX_new(TLS_client_method());
    if (!tls->context) {
        fail(err, ERR_SYSTEM, "preparing TLS");
        http_tls_free(tls);
        return NULL;
    }
    SSL_CTX_set_min_proto_version(tls->context, TLS1_2_VERSION);
    SSL_CTX_set_mode(tls->context, SSL_MODE_RELEASE_BUFFERS | SSL_MODE_ENABLE_PARTIAL_WRITE |
                                       SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    SSL_CTX_set_verify(tls->context, verify_off ? SSL_VERIFY_NONE : SSL_VERIFY_PEER, NULL);
    static const unsigned char protocols[] = "\x08http/1.1";
    SSL_CTX_set_alpn_protos(tls->context, protocols, sizeof protocols - 1);
    if (verify_off)
        return tls;
    int loaded = ca_file ? SSL_CTX_load_verify_locations(tls->context, ca_file, NULL)
                         : SSL_CTX_set_default_verify_paths(tls->context);
    if (loaded != 1) {
        fail(err, ERR_INPUT, "reading the certificates to trust");
        http_tls_free(tls);
        return NULL;
    }
    return tls;
}

void http_tls_free(struct http_tls *tls)
{
    if (!tls)
        return;
    SSL_CTX_free(tls->context);
    free(tls);
}

/* --- connections --- */

static bool is_ip(const char *host)
{
    unsigned char address[16];
    return inet_pton(AF_INET, host, address) == 1 || inet_pton(AF_INET6, host, address) == 1;
}

struct http_tls_stream *http_tls_open(struct http_tls *tls, int fd, const char *host,
                                      struct err *err)
{
    struct http_tls_stream *stream = mem_zero(sizeof *stream);
    BIO *bio = BIO_new(method);
    stream->ssl = SSL_new(tls->context);
    if (!bio || !stream->ssl) {
        BIO_free(bio);
        fail(err, ERR_SYSTEM, "starting TLS");
        http_tls_close(stream);
        return NULL;
    }
    BIO_set_data(bio, (void *)(intptr_t)fd);
    BIO_set_init(bio, 1);
    SSL_set_bio(stream->ssl, bio, bio);
    SSL_set_connect_state(stream->ssl);
    X509_VERIFY_PARAM *parameters = SSL_get0_param(stream->ssl);
    int named;
    if (is_ip(host)) {
        named = X509_VERIFY_PARAM_set1_ip_asc(parameters, host);
    } else {
        X509_VERIFY_PARAM_set_hostflags(parameters, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
        named = SSL_set_tlsext_host_name(stream->ssl, host) &&
                X509_VERIFY_PARAM_set1_host(parameters, host, 0);
    }
    if (!named) {
        fail(err, ERR_SYSTEM, "naming the host to verify");
        http_tls_close(stream);
        return NULL;
    }
    return stream;
}

void http_tls_close(struct http_tls_stream *stream)
{
    if (!stream)
        return;
    SSL_free(stream->ssl);
    free(stream);
}

/* What a result that is no success means. */
static int explain(struct http_tls_stream *stream, int result, const char *what, struct err *err)
{
    int number = errno;
    switch (SSL_get_error(stream->ssl, result)) {
    case SSL_ERROR_WANT_READ:
        return TLS_WANT_READ;
    case SSL_ERROR_WANT_WRITE:
        return TLS_WANT_WRITE;
    case SSL_ERROR_ZERO_RETURN:
        return TLS_CLOSED;
    case SSL_ERROR_SYSCALL:
        ERR_clear_error();
        errno = number;
        if (number)
            err_errno(err, "%s", what);
        else
            err_set(err, ERR_LOST, "%s: the connection was cut", what);
        return TLS_FAILED;
    default:
        break;
    }
    long verdict = SSL_get_verify_result(stream->ssl);
    if (verdict != X509_V_OK && !SSL_is_init_finished(stream->ssl)) {
        err_set(err, ERR_PROTOCOL, "%s: the server's certificate: %s", what,
                X509_verify_cert_error_string(verdict));
        ERR_clear_error();
        return TLS_FAILED;
    }
    bool cut = ERR_GET_REASON(ERR_peek_error()) == SSL_R_UNEXPECTED_EOF_WHILE_READING;
    fail(err, cut ? ERR_LOST : ERR_PROTOCOL, what);
    return TLS_FAILED;
}

int http_tls_handshake(struct http_tls_stream *stream, struct err *err)
{
    ERR_clear_error();
    errno = 0;
    int result = SSL_do_handshake(stream->ssl);
    if (result == 1)
        return 0;
    int meaning = explain(stream, result, "TLS handshake", err);
    if (meaning == TLS_CLOSED) {
        err_set(err, ERR_LOST, "TLS handshake: the connection was closed");
        return TLS_FAILED;
    }
    return meaning;
}

/* A record holds at most 16 KiB; several are put together to spare the layers above. */
ssize_t http_tls_read(struct http_tls_stream *stream, void *data, size_t size, bool *more,
                      struct err *err)
{
    size_t all = 0;
    int meaning = 0;
    while (all < size && !meaning) {
        size_t got = 0;
        ERR_clear_error();
        errno = 0;
        int result = SSL_read_ex(stream->ssl, (char *)data + all, size - all, &got);
        if (result != 1)
            meaning = explain(stream, result, "reading", err);
        all += got;
    }
    if (more)
        *more = all && meaning != TLS_WANT_READ && meaning != TLS_WANT_WRITE;
    return all ? (ssize_t)all : meaning;
}

ssize_t http_tls_write(struct http_tls_stream *stream, const void *data, size_t size,
                       struct err *err)
{
    size_t sent = 0;
    ERR_clear_error();
    errno = 0;
    int result = SSL_write_ex(stream->ssl, data, size, &sent);
    return result == 1 ? (ssize_t)sent : explain(stream, result, "writing", err);
}
