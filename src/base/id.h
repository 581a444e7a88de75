/* id.h - short unguessable names. "r-7k3m..." sorts by creation time: 40 bits of milliseconds, then
 * randomness, in lower-case base 32 without look-alikes. */
#ifndef BASE_ID_H
#define BASE_ID_H

#include <stddef.h>

#define ID_MAX 40

/* Writes "<prefix>-" and 20 characters (100 bits: 40 time, 60 random). */
void id_make(char id[ID_MAX], const char *prefix);
/* The same, but later than `last` (an id with this prefix, or ""), also within a millisecond and
 * when the clock was set back: a list by id is a list in the order of making. */
void id_make_after(char id[ID_MAX], const char *prefix, const char *last);
/* `count` random bytes as lower-case hex, terminated; text has 2 * count + 1 bytes. */
void id_random_hex(char *text, size_t count);
void id_random_bytes(void *bytes, size_t count);

#endif
