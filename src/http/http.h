/* http.h - the door of the http room: HTTP/1.1 server and client on one loop.
 *
 * Everything lives on the loop's thread. Callbacks never come from inside the call that started the
 * activity. Every size has a limit and every wait a deadline; both are in the options.
 * Back-pressure goes both ways: a reader that pauses stops the peer, a writer is told how much is
 * queued. */
#ifndef HTTP_H
#define HTTP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/str.h"

struct err;
struct loop;
struct rope;

struct http_header {
    struct str name, value;
};

/* ---------------------------------------------------------------- server */
struct http_server;
struct http_exchange; /* one request and its answer, seen from the server */

struct http_server_options {
    size_t head_bytes_max; /* 0: 64 KiB */
    size_t body_bytes_max; /* 0: 64 MiB; for http_exchange_collect and streamed bodies alike */
    /* 0: no limit: of all bodies being collected at once; who would exceed it, and is not alone,
     * gets a 503. */
    size_t collect_bytes_max;
    size_t connections_max;     /* 0: 10000; more are refused with 503 and closed */
    uint32_t head_ms_max;       /* 0: 30 s from first byte to end of head */
    uint32_t body_idle_ms_max;  /* 0: 60 s without a body byte */
    uint32_t keepalive_ms_max;  /* 0: 75 s between requests */
    uint32_t write_idle_ms_max; /* 0: 300 s without progress towards a slow reader */
    size_t queue_bytes_max;     /* 0: 256 MiB; a writer who ignores back-pressure is cut off */
    /* A request head is complete. The handler answers now or later; it must, exactly once. */
    void (*on_request)(void *context, struct http_exchange *exchange);
    void *context;
};

struct http_server *http_server_new(struct loop *loop, const struct http_server_options *options);
/* Stops listening, ends idle connections now and busy ones when their answer is out or the grace is
 * over, then calls on_closed (may be NULL) and is freed. */
void http_server_close(struct http_server *server, uint32_t grace_ms, void (*on_closed)(void *),
                       void *context);
/* Accepts on a listening socket (TCP or unix) that it owns from now on. */
int http_server_listen_fd(struct http_server *server, int listening_fd, struct err *err);
int http_server_listen_tcp(struct http_server *server, const char *address, uint16_t port,
                           uint16_t *port_bound, struct err *err);
int http_server_listen_unix(struct http_server *server, const char *path, uint32_t mode,
                            struct err *err);
/* Serves one connected socket that it owns from now on. */
void http_server_adopt(struct http_server *server, int connected_fd);
size_t http_server_connections(const struct http_server *server);

/* The request. Valid until the exchange ends. Header look-up ignores case; STR_NONE when absent. */
struct str http_exchange_method(const struct http_exchange *exchange);
struct str http_exchange_target(const struct http_exchange *exchange); /* as sent, query included */
struct str http_exchange_path(const struct http_exchange *exchange);   /* before '?', not decoded */
struct str http_exchange_query(const struct http_exchange *exchange);  /* after '?' */
struct str http_exchange_header(const struct http_exchange *exchange, const char *name);
size_t http_exchange_headers(const struct http_exchange *exchange,
                             const struct http_header **headers);
void http_exchange_set_context(struct http_exchange *exchange, void *context);
void *http_exchange_context(const struct http_exchange *exchange);
struct loop *http_exchange_loop(const struct http_exchange *exchange);

/* Bodies are good until the callback that brings them returns. After an error neither on_drain nor
 * on_gone comes any more. A body that is not asked for is not read; `bytes_max` 0: the server's
 * limit.
 *
 * The body, whole: on_body comes once, with err set when it was too large (the 413 is already sent)
 * or broken off (nothing can be answered); then the exchange is over for the caller. */
void http_exchange_collect(struct http_exchange *exchange, size_t bytes_max,
                           void (*on_body)(void *context, struct http_exchange *, struct str body,
                                           const struct err *err),
                           void *context);
/* Inside on_body: the body's own memory, when it has one. False: it has to be copied. */
bool http_exchange_take_body(struct http_exchange *exchange, struct buf *out);
/* The body, as it comes; `end` true once, last. pause/resume stop the sender. */
void http_exchange_stream(struct http_exchange *exchange,
                          void (*on_data)(void *context, struct http_exchange *, struct str data,
                                          bool end, const struct err *err),
                          void *context);
void http_exchange_pause(struct http_exchange *exchange);
void http_exchange_resume(struct http_exchange *exchange);

/* The answer. `headers` are copied. Content-Length, Date, Connection and Transfer-Encoding are
 * ours. */
void http_respond(struct http_exchange *exchange, int status, const struct http_header *headers,
                  size_t header_count, struct str body);
void http_respond_json(struct http_exchange *exchange, int status, struct str body);
/* The same for a large body, which is taken over: what cannot be sent at once waits where it is. */
void http_respond_json_rope(struct http_exchange *exchange, int status, struct rope *body);
void http_respond_begin(struct http_exchange *exchange, int status,
                        const struct http_header *headers,
                        size_t header_count); /* body follows, chunked */
/* Small pieces are gathered and handed to the kernel when this tick is over. Returns bytes still
 * queued towards the peer. */
size_t http_respond_write(struct http_exchange *exchange, struct str data);
/* The same at once, for whoever has gathered already. */
size_t http_respond_push(struct http_exchange *exchange, struct str data);
/* The same for what is large; it is taken over and handed to the kernel at once. */
size_t http_respond_write_rope(struct http_exchange *exchange, struct rope *data);
size_t http_respond_queued(const struct http_exchange *exchange);
void http_respond_end(struct http_exchange *exchange);
/* Breaks the connection so that the peer sees a reset, never a clean end: a chunk is left
 * unfinished, and the reset follows when what was written has arrived and could be read. */
void http_exchange_reset(struct http_exchange *exchange);
/* Answers 101: the connection goes on in another protocol (RFC 9110, 7.8; `headers` name it). What
 * comes is given to on_data as it is, `end` or an error last; http_respond_write() sends as it is;
 * http_respond_end() closes when all is out. The request has no body of its own. */
void http_exchange_upgrade(struct http_exchange *exchange, const struct http_header *headers,
                           size_t header_count,
                           void (*on_data)(void *context, struct http_exchange *, struct str data,
                                           bool end, const struct err *err),
                           void *context);
/* on_drain: the queue fell below `low` bytes. on_gone: the peer went away before the answer was
 * out; after it the exchange must not be touched any more. After http_respond/_end/_reset neither
 * comes. */
void http_exchange_notify(struct http_exchange *exchange, size_t low,
                          void (*on_drain)(void *context), void (*on_gone)(void *context),
                          void *context);
/* Is the peer still there? An end that has arrived but was not read yet counts. */
bool http_exchange_here(const struct http_exchange *exchange);
/* To be asked for just before the answer's end. on_fate comes exactly once, later: `taken` when the
 * peer asked again on this connection or closed it in order, false when the connection was reset or
 * broke while bytes were on their way. */
void http_exchange_fate(struct http_exchange *exchange, void (*on_fate)(void *context, bool taken),
                        void *context);

/* ---------------------------------------------------------------- client */
struct http_client; /* pooled keep-alive connections of one loop */
struct http_call;   /* one request and its answer, seen from the client */

struct http_client_options {
    size_t per_host_max;     /* 0: 1024 connections to one origin */
    uint32_t connect_ms_max; /* 0: 10 s, DNS and TLS included */
    uint32_t idle_ms_max;    /* 0: 60 s keep-alive */
    size_t head_bytes_max;   /* 0: 64 KiB */
    const char *ca_file;     /* NULL: the system's */
    bool tls_verify_off;     /* for tests only */
};
struct http_client *http_client_new(struct loop *loop, const struct http_client_options *options);
/* Calls that are not done get ERR_CANCELLED, when this tick is over. */
void http_client_free(struct http_client *client);

struct http_request {
    const char *method;
    const char *url; /* http://host[:port]/path, https://..., or unix:/path/to.sock:/path */
    const struct http_header *headers;
    size_t header_count; /* Host is ours unless given; framing fields are always ours */
    struct str body;     /* copied, unless: */
    bool body_stays;     /* it outlives the call */
    /* With body_stays: bytes that belong before byte `middle_at` of it, and stay, too. */
    struct str middle;
    size_t middle_at;
    /* http://host[:port] of a proxy to go through: with CONNECT for https, with the whole address
     * for http. NULL: straight. `proxy_authorization` is for the proxy alone; may be NULL. */
    const char *proxy, *proxy_authorization;
    uint32_t first_byte_ms_max; /* 0: no limit: time to the answer's head */
    uint32_t idle_ms_max;       /* 0: no limit: between body bytes */
};
struct http_answer_head {
    int status;
    const struct http_header *headers;
    size_t header_count;
};
struct str http_answer_header(const struct http_answer_head *head, const char *name);
struct http_call_handlers {
    void (*on_head)(void *context, const struct http_answer_head *head); /* 1xx are swallowed */
    void (*on_data)(void *context, struct str data);
    /* Exactly once. err->kind ERR_NONE: complete, framing intact. ERR_LOST with `sent_nothing`
     * true: no byte of the answer came, a retry is safe. */
    void (*on_done)(void *context, const struct err *err, bool sent_nothing);
};
/* Never fails at once: trouble comes through on_done. */
struct http_call *http_call_start(struct http_client *client, const struct http_request *request,
                                  const struct http_call_handlers *handlers, void *context);
void http_call_pause(struct http_call *call);
void http_call_resume(struct http_call *call);
void http_call_close(struct http_call *call); /* any time before on_done; silent afterwards */
/* Memory that on_data is going to touch. With many slow streams it is far away by the time the next
 * piece comes, so it is asked for before the kernel is asked for the bytes. Only a hint: it is not
 * read, and may be gone by then. Good for this call; what is too much is left out. */
struct http_place {
    const void *at;
    size_t size;
};
void http_call_ahead(struct http_call *call, const struct http_place *places, size_t count);
/* What a piece of an answer touches of an exchange. */
enum { HTTP_EXCHANGE_PLACES = 2 };
void http_exchange_places(const struct http_exchange *exchange, struct http_place *out);

struct http_url {
    bool tls;
    struct str host, path; /* path includes the query; "/" when empty */
    struct str unix_path;  /* set for unix: URLs */
    uint16_t port;
};
int http_url_read(const char *text, struct http_url *url, struct err *err);

/* ---------------------------------------------------------------- WebSockets (RFC 6455) */
struct http_websocket;
struct http_websocket_options {
    size_t message_bytes_max; /* 0: 64 MiB */
    size_t drain_bytes;       /* on_drain comes below this */
    /* `text` false: a binary message. The data is good until it returns. */
    void (*on_message)(void *context, bool text, struct str data);
    void (*on_drain)(void *context); /* may be NULL */
    /* Once, last. The peer's close code; 1005: it named none; 1006: it just went away. */
    void (*on_closed)(void *context, int code);
    void *context;
};
/* Makes the exchange a WebSocket, which owns it from then on. NULL: it is no proper request for
 * one, `err` says why, and the exchange is still the caller's to answer. */
struct http_websocket *http_websocket_accept(struct http_exchange *exchange,
                                             const struct http_websocket_options *options,
                                             struct err *err);
/* Returns the bytes queued towards the peer. */
size_t http_websocket_send(struct http_websocket *socket, struct str text);
size_t http_websocket_send_rope(struct http_websocket *socket, struct rope *text); /* taken over */
void http_websocket_pause(struct http_websocket *socket);
void http_websocket_resume(struct http_websocket *socket);
/* The owner is done; silent afterwards. The close handshake goes on by itself. Not after on_closed.
 */
void http_websocket_close(struct http_websocket *socket, int code, const char *reason);

/* ---------------------------------------------------------------- server-sent events */
struct sse_parser {
    struct buf line, data, event;
    size_t event_bytes_max; /* 0: 16 MiB */
    bool seen_cr, started;
    void (*on_event)(void *context, struct str event,
                     struct str data); /* event "" means "message" */
    void *context;
};
int sse_feed(struct sse_parser *parser, struct str bytes, struct err *err);
void sse_deinit(struct sse_parser *parser);
void sse_write(struct buf *out, struct str event, struct str data); /* event may be STR_NONE */

/* Query strings and percent-encoding. */
bool http_query_get(struct str query, const char *name, struct buf *value);
bool http_percent_decode(struct str text, struct buf *out);
void http_percent_encode(struct str text, struct buf *out);

#endif
