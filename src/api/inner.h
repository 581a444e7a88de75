/* inner.h - what the files of the api room share: api.c listens and checks, routes.c answers,
 * metrics.c counts. */
#ifndef API_INNER_H
#define API_INNER_H

#include "api/api.h"
#include "base/buf.h"
#include "base/str.h"

struct http_exchange;
struct http_server;

struct api {
    struct loop *loop;
    struct http_server *server;
    struct store *store;
    char *home, *token_file, *token;
    uint16_t port;
    bool (*write_live)(void *context, const char *id, struct json_writer *out);
    void (*read_metrics)(void *context, struct api_metrics *out);
    void *context;
    void (*on_closed)(void *context);
    void *closed_context;
};

struct api_route {
    const char *method, *path; /* a final '*' stands for one name */
    bool open;                 /* answered without a token */
    void (*answer)(struct api *api, struct http_exchange *exchange, struct str name);
};
extern const struct api_route api_routes[];
extern const size_t api_route_count;

/* {"error": {"kind", "message"}} */
void api_answer_error(struct http_exchange *exchange, const struct err *err);
void api_write_metrics(struct api *api, struct buf *out);

#endif
