/* clock.h - the two clocks. Deadlines use the monotonic one, records the wall clock. */
#ifndef BASE_CLOCK_H
#define BASE_CLOCK_H

#include <stddef.h>
#include <stdint.h>

uint64_t clock_mono_ns(void);
uint64_t clock_mono_ms(void);
uint64_t clock_wall_ms(void); /* since 1970, UTC */
/* "2026-11-15T05:44:06.123Z"; `text` has at least 32 bytes. */
void clock_format(uint64_t wall_ms, char *text, size_t size);

#endif
