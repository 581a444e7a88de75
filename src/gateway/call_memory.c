/* call_memory.c - the memory of calls that are over is that of the calls to come.
 *
 * A call is a few kilobytes, and so is what its arenas hold at the least: more than an allocator
 * gives away cheaply. A lane keeps some calls that are over, with the first blocks of their arenas:
 * at most 3 MB. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "gateway/inner.h"

#define ARENA_KEPT ((size_t)5 << 10)
#define ARENA_BYTES_MAX ((size_t)512 << 20)

#if defined(__SANITIZE_ADDRESS__)
static const size_t spares_max = 0; /* who still holds a call that is over is to be found */
#else
static const size_t spares_max = 256;
#endif

struct call *call_new(struct gateway_session *session)
{
    struct gateway *gateway = session->gateway;
    struct call *call;
    if (list_empty(&gateway->spare_calls)) {
        call = mem_zero(sizeof *call);
    } else {
        call = LIST_OF(gateway->spare_calls.next, struct call, node);
        list_remove(&call->node);
        gateway->spare_call_count--;
        struct arena arena = call->arena, request_arena = call->request_arena;
        memset(call, 0, sizeof *call);
        call->arena = arena;
        call->request_arena = request_arena;
    }
    call->session = session;
    call->gateway = gateway;
    call->arena.bytes_max = call->request_arena.bytes_max = ARENA_BYTES_MAX;
    list_init(&call->node);
    list_init(&call->others);
    return call;
}

void call_keep(struct call *call)
{
    struct gateway *gateway = call->gateway;
    list_remove(&call->node);
    arena_recycle(&call->arena, ARENA_KEPT);
    arena_recycle(&call->request_arena, ARENA_KEPT);
    if (gateway->spare_call_count < spares_max) {
        gateway->spare_call_count++;
        list_prepend(&gateway->spare_calls, &call->node);
        return;
    }
    arena_deinit(&call->arena);
    arena_deinit(&call->request_arena);
    free(call);
}

void call_free_spares(struct gateway *gateway)
{
    LIST_EACH (node, &gateway->spare_calls) {
        struct call *call = LIST_OF(node, struct call, node);
        arena_deinit(&call->arena);
        arena_deinit(&call->request_arena);
        list_remove(node);
        free(call);
    }
}
