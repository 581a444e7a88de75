/* resolve.c - from a host's name to its addresses, on a worker thread.
 *
 * One look-up per origin at a time, shared by all links that wait for it and kept for a little
 * while: a burst of calls asks once. A worker holds copies only; an origin that goes away leaves it
 * behind. */
#include "client.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

enum { ADDRESSES_MS_MAX = 15000 };

struct lookup {
    struct origin *origin; /* NULL: nobody waits any more */
    char *host;
    uint16_t port;
    struct addresses *found;
    struct err err;
};

static void look_up(void *argument)
{
    struct lookup *lookup = argument;
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    struct addrinfo *list = NULL;
    char port[8];
    snprintf(port, sizeof port, "%u", lookup->port);
    int code = getaddrinfo(lookup->host, port, &hints, &list);
    if (code) {
        bool later = code == EAI_AGAIN || code == EAI_SYSTEM || code == EAI_MEMORY;
        err_set(&lookup->err, later ? ERR_LOST : ERR_NOT_FOUND, "looking up '%s': %s", lookup->host,
                gai_strerror(code));
        return;
    }
    lookup->found = mem_zero(sizeof *lookup->found);
    for (struct addrinfo *at = list; at && lookup->found->count < ADDRESSES_MAX; at = at->ai_next) {
        struct address *address = &lookup->found->at[lookup->found->count++];
        address->size = at->ai_addrlen;
        memcpy(&address->storage, at->ai_addr, at->ai_addrlen);
    }
    freeaddrinfo(list);
}

static void looked_up(void *argument)
{
    struct lookup *lookup = argument;
    struct origin *origin = lookup->origin;
    if (origin) {
        bool found = lookup->found;
        origin->lookup = NULL;
        if (found) { /* else links that are connecting go on with the old ones */
            free(origin->addresses);
            origin->addresses = TAKE(lookup->found);
            origin->addresses_until_ms = loop_now_ms(origin->client->loop) + ADDRESSES_MS_MAX;
        }
        LIST_EACH (at, &origin->resolving) {
            struct link *link = LIST_OF(at, struct link, in_origin);
            list_remove(at);
            if (found)
                http_link_addresses(link);
            else
                http_link_break(link, &lookup->err);
        }
    }
    free(lookup->found);
    free(lookup->host);
    free(lookup);
}

void http_resolve(struct origin *origin)
{
    if (origin->lookup)
        return;
    struct lookup *lookup = mem_zero(sizeof *lookup);
    lookup->origin = origin;
    lookup->host = mem_dup(origin->proxy_host ? origin->proxy_host : origin->host);
    lookup->port = origin->proxy_host ? origin->proxy_port : origin->port;
    origin->lookup = lookup;
    loop_work_waiting(origin->client->loop, look_up, looked_up, lookup);
}

bool http_resolve_numeric(struct origin *origin)
{
    const char *host = origin->proxy_host ? origin->proxy_host : origin->host;
    uint16_t port = origin->proxy_host ? origin->proxy_port : origin->port;
    struct address address = {0};
    struct sockaddr_in *v4 = (struct sockaddr_in *)&address.storage;
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)&address.storage;
    if (inet_pton(AF_INET, host, &v4->sin_addr) == 1) {
        v4->sin_family = AF_INET;
        v4->sin_port = htons(port);
        address.size = sizeof *v4;
    } else if (inet_pton(AF_INET6, host, &v6->sin6_addr) == 1) {
        v6->sin6_family = AF_INET6;
        v6->sin6_port = htons(port);
        address.size = sizeof *v6;
    } else {
        return false;
    }
    free(origin->addresses);
    origin->addresses = mem_zero(sizeof *origin->addresses);
    origin->addresses->at[0] = address;
    origin->addresses->count = 1;
    origin->addresses_until_ms = UINT64_MAX;
    return true;
}

void http_resolve_forget(struct origin *origin)
{
    if (origin->lookup)
        origin->lookup->origin = NULL;
    origin->lookup = NULL;
}
