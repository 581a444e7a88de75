/* tls.h - TLS over a non-blocking socket, client side. Private to the http room. */
#ifndef HTTP_TLS_H
#define HTTP_TLS_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct err;
struct http_tls;        /* what all connections of a client share: trust */
struct http_tls_stream; /* one connection */

enum { TLS_WANT_READ = -1, TLS_WANT_WRITE = -2, TLS_FAILED = -3, TLS_CLOSED = -4 };

struct http_tls *http_tls_new(const char *ca_file, bool verify_off, struct err *err);
void http_tls_free(struct http_tls *tls);
/* The descriptor stays the caller's. */
struct http_tls_stream *http_tls_open(struct http_tls *tls, int fd, const char *host,
                                      struct err *err);
void http_tls_close(struct http_tls_stream *stream);
/* 0 when done, or one of the above. */
int http_tls_handshake(struct http_tls_stream *stream, struct err *err);
/* Bytes, or one of the above; TLS_CLOSED only when the peer said goodbye properly. *more (may be
 * NULL): there is more to learn, and no event of the socket will announce it. */
ssize_t http_tls_read(struct http_tls_stream *stream, void *data, size_t size, bool *more,
                      struct err *err);
ssize_t http_tls_write(struct http_tls_stream *stream, const void *data, size_t size,
                       struct err *err);

#endif
