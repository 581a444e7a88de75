/* server.h - what server.c, connection.c and exchange.c share. Private to the http room. */
#ifndef HTTP_SERVER_H
#define HTTP_SERVER_H

#include <sys/uio.h>

#include "base/err.h"
#include "base/list.h"
#include "base/rope.h"
#include "http/internal.h"
#include "http/parse.h"

struct http_server {
    struct loop *loop;
    struct http_server_options options; /* defaults filled in */
    struct list listeners;
    struct list connections;
    size_t connection_count;
    size_t collecting;   /* bytes of bodies being collected, promised or there */
    uint64_t large_tick; /* in which a large body was handed over the last time */
    struct loop_timer grace;
    void (*on_closed)(void *context);
    void *closed_context;
    bool closing;
    bool finishing;
};

struct http_conn {
    struct loop_watch watch;
    struct loop *loop;
    struct rope out; /* towards the peer */
    bool processing; /* pump is on the stack: it will see what changed */
    bool scheduled;  /* pump is deferred */
    bool closed;     /* the descriptor is gone */
    bool freeing;
    bool blocked;      /* the kernel took less than we had */
    bool broken;       /* writing failed or the queue is over its maximum */
    bool eof;          /* the peer will send nothing more */
    bool head_started; /* the first byte of a head is here */
    bool lingering;    /* the last answer is made; what still comes is thrown away */
    bool shut;         /* lingering, and our side is shut */
    bool breaking;     /* lingering, and a reset is the end of it */
    bool lost;         /* the peer reset the connection */
    bool more;         /* a head or a large body is here that waits for its turn */
    uint8_t heads;     /* taken by this pump */
    struct http_exchange *exchange;
    uint64_t write_due; /* when a reader without progress is too slow; 0: nothing is queued */

    struct http_server *server; /* NULL: the server is gone, only the handler's exchange is left */
    struct list link;
    struct http_deadline deadline;
    struct buf in;      /* received, not taken yet: part of a head, or read ahead */
    size_t scanned;     /* of `in`, by http_head_find() */
    uint64_t read_due;  /* when the bytes we wait for are late; 0: we do not wait */
    uint64_t break_due; /* breaking: when the reset comes whatever the peer has read */
    void (*on_fate)(void *context, bool taken); /* of the last answer; NULL: nobody asked */
    void *fate_context;
};

enum body_mode { BODY_UNREAD, BODY_COLLECT, BODY_STREAM, BODY_DISCARD };

struct http_exchange {
    /* What every piece of an answer touches, side by side. */
    struct http_conn *conn;
    size_t drain_low;
    void (*on_drain)(void *);
    void (*on_gone)(void *);
    void *notify_context;
    uint8_t mode; /* enum body_mode */
    uint8_t minor;
    bool keep_alive;
    bool expect_continue; /* and no "100 Continue" was sent */
    bool is_head;
    bool paused;
    bool reported; /* the body's end was told */
    bool begun, ended;
    bool chunked;   /* the answer's body is */
    bool bodiless;  /* the answer has none: HEAD, 204, 304 */
    bool drain_due; /* the queue was at or over drain_low */
    bool upgraded;  /* another protocol: no limits and deadlines of ours */

    struct str method, target;
    const struct http_header *headers;
    size_t header_count;
    void *context;

    struct http_body body;
    uint64_t body_bytes; /* received so far */
    size_t collect_max;
    size_t counted; /* in the server's `collecting` */
    struct buf collected;
    void (*on_body)(void *, struct http_exchange *, struct str, const struct err *);
    void (*on_data)(void *, struct http_exchange *, struct str, bool, const struct err *);
    void *body_context;
};

/* connection.c */
void http_conn_start(struct http_server *server, int fd);
/* Closes the descriptor now. The memory goes when this tick is over and nobody holds the exchange.
 */
void http_conn_close(struct http_conn *conn, bool reset);
/* The answer ends unfinished: a reset follows when the peer had time to read what there is. */
void http_conn_break(struct http_conn *conn);
void http_conn_release(struct http_conn *conn);
/* The peer is lost: tells whoever must know, closes. */
void http_conn_gone(struct http_conn *conn, enum err_kind kind, const char *text);
/* Sends pieces[1...count-1]; pieces[0] is for the queue. What the kernel does not take is copied.
 */
void http_conn_send(struct http_conn *conn, struct iovec *pieces, int count);
/* The same, but what is small may wait for more until this tick is over. */
void http_conn_put(struct http_conn *conn, struct iovec *pieces, int count);
/* Sends a head and a rope, which is taken over: what the kernel does not take waits where it is. */
void http_conn_send_rope(struct http_conn *conn, struct str head, struct rope *rope);
void http_conn_wake(struct http_conn *conn);   /* pump when this tick is over */
void http_conn_settle(struct http_conn *conn); /* what to watch for and until when */
void http_conn_tell_fate(struct http_conn *conn, bool taken);
bool http_conn_is_idle(const struct http_conn *conn);

/* exchange.c */
struct http_exchange *http_exchange_make(struct http_conn *conn, const struct http_head *head,
                                         struct str bytes);
void http_exchange_free(struct http_exchange *exchange);
/* Where the next bytes of a large body go that is collected and of known length, and how many;
 * NULL: not so. Its last bytes are always read in the usual way. */
char *http_exchange_room(struct http_exchange *exchange, size_t *max);
void http_exchange_received(struct http_exchange *exchange, size_t size);
bool http_exchange_wants_body(const struct http_exchange *exchange);
/* When the next bytes of the body are late; 0: never. */
uint64_t http_exchange_body_due(const struct http_exchange *exchange);
/* By what came and by what its length promises. */
bool http_exchange_body_too_large(const struct http_exchange *exchange);
/* Counts a body that is being collected; true: there is no room for it beside the others. */
bool http_exchange_body_crowded(struct http_exchange *exchange);
void http_exchange_uncount(struct http_exchange *exchange);
/* Tells the handler that the exchange is over; false when there is no way to tell it. */
bool http_exchange_tell(struct http_exchange *exchange, const struct err *err);
/* Answers with an error of ours. */
void http_exchange_refuse(struct http_exchange *exchange, int status, const char *why);
/* A whole answer that closes the connection, with {"error":{"message":why}} for its body. */
size_t http_error_text(char *out, size_t size, int status, const char *why);

/* server.c */
void http_server_check_done(struct http_server *server);

#endif
