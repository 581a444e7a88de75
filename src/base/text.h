/* text.h - small encodings: base64, hex, and a human's view of sizes and durations. */
#ifndef BASE_TEXT_H
#define BASE_TEXT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"

void text_base64(struct buf *out, struct str bytes);
bool text_base64_read(struct buf *out, struct str text); /* false: not base64 */
void text_hex(struct buf *out, struct str bytes);
/* "1.2 GB", "340 ms", "2.1 s", "3 min 20 s". */
void text_size(char *out, size_t size, uint64_t bytes);
void text_duration(char *out, size_t size, uint64_t ms);
/* The nearest of `names` to `word` when it is close enough to be meant, else NULL. */
const char *text_nearest(const char *word, const char *const *names, size_t count);

#endif
