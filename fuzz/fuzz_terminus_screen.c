/* What a program prints, and what a model answers: any bytes. */
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/mem.h"
#include "terminus.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct str bytes = str_make((const char *)data, size);
    struct screen *screen = screen_new(size % 40 + 2, size % 7 + 1, 200);
    OWN(buf) struct buf text = {0};
    screen_write(screen, str_upto(bytes, size / 2));
    screen_look(screen, SCREEN_NEW, &text);
    screen_write(screen, str_from(bytes, size / 2));
    screen_look(screen, size % 2 ? SCREEN_NEW : SCREEN_WHOLE, &text);
    screen_free(screen);

    OWN(arena) struct arena arena = {0};
    struct reply reply;
    struct err err = {0};
    (void)reply_read(bytes, &arena, &reply, &err);
    buf_deinit(&reply.warnings);
    buf_clear(&text);
    keys_encode(bytes, size % 2, &text);
    return 0;
}
