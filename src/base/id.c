#include "base/id.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "base/check.h"
#include "base/clock.h"

static const char letters[] = "0123456789abcdefghjkmnpqrstvwxyz";

void id_random_bytes(void *bytes, size_t count)
{
    char *at = bytes;
    while (count) {
        ssize_t got = getrandom(at, count, 0);
        if (got < 0 && errno == EINTR)
            continue;
        CHECK(got > 0);
        at += got;
        count -= (size_t)got;
    }
}

void id_make(char id[ID_MAX], const char *prefix)
{
    uint64_t time = clock_wall_ms();
    unsigned char random[12];
    id_random_bytes(random, sizeof random);
    int used = snprintf(id, ID_MAX, "%.8s-", prefix);
    for (int i = 7; i >= 0; i--)
        id[used++] = letters[time >> (i * 5) & 31];
    for (int i = 0; i < 12; i++)
        id[used++] = letters[random[i] & 31];
    id[used] = '\0';
}

void id_make_after(char id[ID_MAX], const char *prefix, const char *last)
{
    id_make(id, prefix);
    if (strlen(id) != strlen(last) || strcmp(id, last) > 0)
        return;
    /* A step of up to 2^40, so that ids of one moment cannot be told from each other's either. */
    uint64_t step = 0;
    id_random_bytes(&step, 5);
    step++;
    memcpy(id, last, strlen(last) + 1);
    for (size_t at = strlen(id); at-- > 0 && id[at] != '-' && step; step >>= 5) {
        const char *letter = strchr(letters, id[at]);
        uint64_t sum = (letter ? (uint64_t)(letter - letters) : 0) + (step & 31);
        id[at] = letters[sum & 31];
        step += (sum >> 5) << 5;
    }
}

void id_random_hex(char *text, size_t count)
{
    static const char hex[] = "0123456789abcdef";
    unsigned char *bytes = (unsigned char *)text + count; /* read before they are overwritten */
    id_random_bytes(bytes, count);
    for (size_t i = 0; i < count; i++) {
        unsigned char byte = bytes[i];
        text[2 * i] = hex[byte >> 4];
        text[2 * i + 1] = hex[byte & 15];
    }
    text[2 * count] = '\0';
}
