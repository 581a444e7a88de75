/* client.h - what the client's files share. Private to the http room.
 *
 *     call -> origin -> link -> (resolve, connect, TLS) -> request, answer -> idle, for the next
 * call */
#ifndef HTTP_CLIENT_H
#define HTTP_CLIENT_H

#include <sys/socket.h>
#include <sys/un.h>

#include "base/err.h"
#include "base/list.h"
#include "base/map.h"
#include "http/internal.h"
#include "http/parse.h"

struct http_tls;
struct http_tls_stream;
struct link;
struct lookup;

enum { ADDRESSES_MAX = 16, AHEAD_MAX = 24, LINE_BYTES = 64 };

struct address {
    socklen_t size;
    union {
        struct sockaddr any;
        struct sockaddr_storage storage;
    };
};

struct addresses {
    size_t count;
    struct address at[ADDRESSES_MAX];
};

struct http_client {
    struct loop *loop;
    struct http_client_options options; /* defaults filled in; ca_file is a copy */
    struct map origins;
    struct list calls; /* that are not done */
    struct http_tls *tls;
    bool closing;
};

/* Where requests can go: scheme, host and port, or a socket's path. */
struct origin {
    struct http_client *client;
    char *key;
    char *host;
    char *unix_path; /* or NULL */
    uint16_t port;
    char *proxy_host, *proxy_authorization; /* NULL: straight; none */
    uint16_t proxy_port;
    bool tls;
    struct list idle;      /* links, the youngest first */
    struct list waiting;   /* calls, the oldest first */
    struct list resolving; /* links */
    size_t link_count, waiting_count;
    struct lookup *lookup;
    struct addresses *addresses; /* good until addresses_until_ms */
    uint64_t addresses_until_ms;
};

struct http_call {
    /* What every piece of an answer touches, side by side. */
    struct loop *loop;
    void *context;
    struct http_call_handlers handlers;
    uint32_t idle_ms_max;
    bool is_head;
    bool head_seen;
    bool any_bytes; /* of the answer */
    bool paused;
    bool retried;
    bool done;
    struct http_deadline deadline;

    struct origin *origin; /* NULL before it is known and after the end */
    struct list in_client;
    struct list in_waiting;
    struct link *link;
    struct buf request; /* head and body; gone once a retry is out of the question */
    struct str body[3]; /* the body, when it is not in there: its beginning, middle and end */
    uint64_t first_byte_due;
    struct err *trouble; /* to be told when this tick is over */
};

enum link_state {
    LINK_RESOLVING,
    LINK_CONNECTING,
    LINK_TUNNEL, /* CONNECT was sent */
    LINK_HANDSHAKE,
    LINK_BUSY,
    LINK_IDLE
};

struct link { /* one connection */
    /* What every piece of an answer touches, side by side. */
    struct loop_watch watch;
    struct loop *loop;
    struct http_call *call;
    struct http_tls_stream *tls;
    struct err *trouble;
    size_t to_send; /* of the call's request, in all */
    size_t sent;    /* of that */
    uint64_t due;   /* what the link itself waits for: an address, room to send, a new call */
    uint8_t state;
    uint8_t interim; /* 1xx answers seen */
    bool reused;
    bool keep_alive;
    bool eof;
    bool mute; /* writing failed: only an answer that is already here counts */
    bool want_write;
    bool processing, scheduled, closed;
    uint8_t ahead_count;
    const void *ahead[AHEAD_MAX]; /* lines of memory that the next piece will touch */
    struct http_body body;
    struct buf in;
    struct http_deadline deadline;

    struct origin *origin;
    struct list in_origin; /* idle or resolving */
    size_t scanned;
    uint64_t connect_due;
    size_t address_next;
};

/* client.c */
void http_call_finish(struct http_call *call, const struct err *err);
/* The link can take another call, or is closed: either way there may be room for one that waits. */
void http_origin_serve(struct origin *origin);
void http_call_retry(struct http_call *call);

/* link.c */
void http_link_open(struct origin *origin, struct http_call *call);
void http_link_assign(struct link *link, struct http_call *call);
void http_link_close(struct link *link, bool reset);
void http_link_resume(struct link *link); /* the call may have been paused or resumed */
void http_link_addresses(struct link *link);
void http_link_break(struct link *link, const struct err *err);

/* resolve.c: fills origin->addresses and tells the links in origin->resolving. */
void http_resolve(struct origin *origin);
bool http_resolve_numeric(struct origin *origin); /* without asking anybody */
void http_resolve_forget(struct origin *origin);

#endif
