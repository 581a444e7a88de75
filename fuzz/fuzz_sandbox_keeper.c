/* fuzz_sandbox_keeper.c - packets between server and keeper: whatever comes, a packet is refused as
 * a whole or every field of it can be read. */
#include <stdlib.h>

#include "base/check.h"
#include "base/mem.h"
#include "sandbox/keeper_protocol.h"

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size)
{
    OWN(mem) char *copy = mem_alloc(size + 1); /* its end is where the sanitizer looks */
    memcpy(copy, data, size);
    struct str packet = str_make(copy, size);
    if (!keeper_packet_is_sound(packet))
        return 0;
    size_t at = 0, fields = 0;
    struct str key;
    OWN(buf) struct buf again = {0};
    for (const char *value; keeper_field_next(packet, &at, &key, &value); fields++) {
        OWN(mem) char *name = str_dup(key);
        CHECK(key.size > 0 && keeper_field(packet, name));
        (void)keeper_field_number(packet, name, 7, 1000);
        keeper_add(&again, name, value);
    }
    CHECK(fields <= KEEPER_FIELDS_MAX && at == size);
    CHECK(str_equal(buf_str(&again), packet)); /* written again it is the same */
    return 0;
}
