/* keeper_protocol.h - what the server and the keeper say to each other (docs/keeper.md).
 *
 * A unix SEQPACKET socket; one packet is one message, at most KEEPER_PACKET_MAX bytes. A message is
 * a list of fields "key=value", each ended by a NUL byte; keys may repeat (layer=). The first field
 * of a request is op=, of an answer seq=. Descriptors ride along (SCM_RIGHTS). Neither side trusts
 * the other's lengths: a packet that is too long, does not end in NUL, or has a field without '='
 * is refused.
 *
 * This header is all that both programs share; it is pure and needs only the base room. */
#ifndef SANDBOX_KEEPER_PROTOCOL_H
#define SANDBOX_KEEPER_PROTOCOL_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "base/buf.h"
#include "base/str.h"

#define KEEPER_VERSION 2
#define KEEPER_PACKET_MAX 65536
#define KEEPER_FIELDS_MAX 1024
#define KEEPER_LAYERS_MAX 16
#define KEEPER_PRISTINE_MAX 16
#define KEEPER_INLET_PORT 13131

/* Descriptors of a create or adopt answer, in this order. */
enum { KEEPER_FD_FRAMES, KEEPER_FD_INLET, KEEPER_FD_RESOLVER, KEEPER_FDS };

static inline bool keeper_packet_is_sound(struct str packet)
{
    if (packet.size == 0 || packet.size > KEEPER_PACKET_MAX || packet.data[packet.size - 1] != '\0')
        return false;
    size_t fields = 0;
    for (size_t at = 0; at < packet.size; fields++) {
        size_t length = strlen(packet.data + at);
        const char *equals = memchr(packet.data + at, '=', length);
        if (!equals || equals == packet.data + at || fields == KEEPER_FIELDS_MAX)
            return false;
        at += length + 1;
    }
    return true;
}

/* Walks the fields of a sound packet: start with *at = 0; false at the end. */
static inline bool keeper_field_next(struct str packet, size_t *at, struct str *key,
                                     const char **value)
{
    if (*at >= packet.size)
        return false;
    const char *field = packet.data + *at;
    size_t length = strlen(field);
    const char *equals = memchr(field, '=', length);
    *key = str_make(field, (size_t)(equals - field));
    *value = equals + 1;
    *at += length + 1;
    return true;
}

/* The first value of that key, or NULL. */
static inline const char *keeper_field(struct str packet, const char *key)
{
    size_t at = 0;
    struct str name;
    for (const char *value; keeper_field_next(packet, &at, &name, &value);)
        if (str_is(name, key))
            return value;
    return NULL;
}

/* A decimal field; `fallback` when it is missing, malformed or above `max`. */
static inline uint64_t keeper_field_number(struct str packet, const char *key, uint64_t fallback,
                                           uint64_t max)
{
    const char *value = keeper_field(packet, key);
    long long number;
    if (!value || !str_to_long(str_of(value), &number) || number < 0 || (uint64_t)number > max)
        return fallback;
    return (uint64_t)number;
}

static inline void keeper_add(struct buf *packet, const char *key, const char *value)
{
    if (!value)
        return;
    buf_format(packet, "%s=%s", key, value);
    buf_byte(packet, '\0');
}

static inline void keeper_add_number(struct buf *packet, const char *key, uint64_t value)
{
    buf_format(packet, "%s=%llu", key, (unsigned long long)value);
    buf_byte(packet, '\0');
}

#endif
