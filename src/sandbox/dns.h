/* dns.h - private to the sandbox room: the answer to every name a sandbox asks for, which is "no
 * such name", and a bounded table of the names that were tried. Pure; the packets come from a
 * hostile peer. */
#ifndef SANDBOX_DNS_H
#define SANDBOX_DNS_H

#include <stddef.h>
#include <stdint.h>

#include "base/map.h"

struct json_writer;

#define DNS_PACKET_MAX 4096 /* a longer datagram is cut by the receiver */
#define DNS_ANSWER_MAX 512
#define DNS_NAME_MAX 256 /* with its terminator; longer names (escapes) are not kept */

/* Writes the answer to one query and returns its size; 0 when the packet deserves none (too short,
 * or an answer itself). `name` becomes the name asked for, lower-case, odd bytes as \DDD, without
 * the final dot; empty when there is none to count. */
size_t dns_refuse(const uint8_t *query, size_t size, uint8_t answer[DNS_ANSWER_MAX],
                  char name[DNS_NAME_MAX]);

/* How often each name was asked for. The first DNS_NAMES_MAX names have a row, the rest share one.
 */
#define DNS_NAMES_MAX 256
struct dns_tally {
    struct map rows; /* name -> struct dns_row */
    uint64_t other;
};
void dns_tally_add(struct dns_tally *tally, const char *name, uint64_t count);
void dns_tally_write(const struct dns_tally *tally, struct json_writer *out); /* {"host": n, ...} */
void dns_tally_deinit(struct dns_tally *tally);

#endif
