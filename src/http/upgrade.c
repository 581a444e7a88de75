/* upgrade.c - a connection that goes on in another protocol: RFC 9110, 7.8.
 *
 * The exchange stays what it was, an answer under way, so that queues, drains, deadlines and the
 * end of a server work as for any other. Its request just has a body now that ends with the
 * connection, and the answer's bytes go out without framing. */
#include "server.h"

#include <stdio.h>

#include "base/check.h"
#include "base/mem.h"

void http_exchange_upgrade(struct http_exchange *exchange, const struct http_header *headers,
                           size_t header_count,
                           void (*on_data)(void *context, struct http_exchange *, struct str data,
                                           bool end, const struct err *err),
                           void *context)
{
    CHECK(exchange->mode == BODY_UNREAD && !exchange->begun && !exchange->ended);
    exchange->upgraded = true;
    exchange->begun = true;
    exchange->keep_alive = false;
    http_body_start(&exchange->body, HTTP_BODY_UNTIL_CLOSE, 0);
    OWN(buf) struct buf head = {0};
    buf_format(&head, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n");
    for (size_t i = 0; i < header_count; i++)
        buf_format(&head, "%.*s: %.*s\r\n", STR_ARGS(headers[i].name), STR_ARGS(headers[i].value));
    buf_str_append(&head, STR("\r\n"));
    struct iovec pieces[2] = {{0}, {head.data, head.size}};
    http_conn_send(exchange->conn, pieces, 2);
    http_exchange_stream(exchange, on_data, context);
}
