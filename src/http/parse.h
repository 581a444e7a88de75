/* parse.h - HTTP/1.1 as pure functions: heads and body framing. Private to the http room and its
 * fuzzers. */
#ifndef HTTP_PARSE_H
#define HTTP_PARSE_H

#include "http/http.h"

enum { HTTP_HEADERS_MAX = 128 };

/* Borrows from the bytes it was read from. */
struct http_head {
    struct str method, target; /* of a request */
    int status;                /* of an answer */
    int minor;                 /* the version is HTTP/1.minor */
    bool keep_alive;
    bool chunked;
    bool has_length;
    bool expect_continue;
    uint64_t length;
    size_t header_count;
    struct http_header headers[HTTP_HEADERS_MAX];
};

/* Size of the head at the front of `bytes`, blank line included; 0: more is needed; -1: a line ends
 * without CR. `scanned` starts at 0 and remembers what earlier calls with the same front have seen.
 */
long http_head_find(struct str bytes, size_t *scanned);
/* Reads a whole head as http_head_find() measured it. Returns 0, or the status that refuses it with
 * *why. */
int http_head_read_request(struct str bytes, struct http_head *head, const char **why);
/* Returns 0, or -1 with *why. */
int http_head_read_answer(struct str bytes, struct http_head *head, const char **why);
struct str http_header_find(const struct http_header *headers, size_t count, struct str name);

enum http_body_kind { HTTP_BODY_NONE, HTTP_BODY_LENGTH, HTTP_BODY_CHUNKED, HTTP_BODY_UNTIL_CLOSE };

struct http_body {
    uint64_t left;     /* of the body or of this chunk */
    uint32_t overhead; /* bytes of chunk extension or trailers so far */
    uint8_t kind;
    uint8_t state;
    uint8_t digits;
    bool done;
};

void http_body_start(struct http_body *body, enum http_body_kind kind, uint64_t length);
/* Takes framing off in place: body bytes are moved together at the front of `bytes`. Returns how
 * many there are, or -1 when the framing is broken; *taken is what was consumed, all of it unless
 * the body ended. */
long http_body_decode(struct http_body *body, char *bytes, size_t size, size_t *taken);

bool http_token_is(struct str text);       /* a header name or method */
bool http_field_value_is(struct str text); /* no control characters but tab */

#endif
