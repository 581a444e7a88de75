/* fuzz_sandbox_dns.c - the resolver's packets come from inside a sandbox: any bytes may arrive.
 * What is checked besides memory: an answer is never answered, never longer than the question
 * allows, and names are printable. */
#include <stdlib.h>
#include <string.h>

#include "sandbox/dns.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t answer[DNS_ANSWER_MAX];
    char name[DNS_NAME_MAX];
    size_t answer_size = dns_refuse(data, size, answer, name);
    if (answer_size > size || answer_size > sizeof answer)
        abort();
    if (answer_size && (size < 12 || !(answer[2] & 0x80) || memcmp(answer, data, 2) != 0))
        abort();
    for (const char *at = name; *at; at++)
        if (*at <= ' ' || *at > '~' || (*at >= 'A' && *at <= 'Z'))
            abort();
    char again[DNS_NAME_MAX];
    uint8_t reply[DNS_ANSWER_MAX];
    if (answer_size && dns_refuse(answer, answer_size, reply, again) != 0)
        abort();
    return 0;
}
