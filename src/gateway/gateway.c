/* gateway.c - what one lane shares among its sessions: the modes' names, the counters, and an HTTP
 * client per model, so that connections to a model server are kept alive across rollouts. */
#include <stdlib.h>

#include "base/check.h"
#include "base/id.h"
#include "base/mem.h"
#include "gateway/inner.h"

#define TEXT_KEPT (256u << 10)

/* The name of each mode, and the older name it is also known by. */
static const struct {
    const char *name, *also;
} modes[] = {
    [GATEWAY_BLACK_BOX] = {"black_box", "black_box"},
    [GATEWAY_PROXY] = {"proxy", "transparent_proxy"},
    [GATEWAY_GATE] = {"gate", "interception_gate"},
};

static const char *const causes[] = {
    [GATEWAY_FINE] = "none",         [GATEWAY_LIMIT] = "limit",   [GATEWAY_STOPPED] = "stopped",
    [GATEWAY_UPSTREAM] = "upstream", [GATEWAY_SCRIPT] = "script", [GATEWAY_STORE] = "store",
    [GATEWAY_REPLAY] = "replay",
};

int gateway_mode_read(const char *name, enum gateway_mode *out, struct err *err)
{
    for (size_t i = 0; name && i < COUNT(modes); i++) {
        if (strcmp(name, modes[i].name) == 0 || strcmp(name, modes[i].also) == 0) {
            *out = (enum gateway_mode)i;
            return 0;
        }
    }
    return err_set(err, ERR_INPUT, "unknown mode '%s': it is black_box, proxy or gate",
                   name ? name : "");
}

const char *gateway_mode_name(enum gateway_mode mode)
{
    return modes[mode].name;
}

const char *gateway_cause_name(enum gateway_cause cause)
{
    return causes[cause];
}

struct gateway *gateway_new(struct loop *loop, const struct gateway_options *options,
                            struct err *err)
{
    (void)err;
    struct gateway *gateway = mem_zero(sizeof *gateway);
    gateway->loop = loop;
    gateway->store = options ? options->store : NULL;
    gateway->gate = options ? options->gate : NULL;
    gateway->lines_ms = options ? options->lines_ms : 0;
    list_init(&gateway->unwritten);
    id_random_bytes(&gateway->hash_seed, sizeof gateway->hash_seed);
    list_init(&gateway->clients);
    list_init(&gateway->spare_calls);
    return gateway;
}

void gateway_free(struct gateway *gateway)
{
    if (!gateway)
        return;
    CHECK(atomic_load(&gateway->sessions) == 0);
    loop_timer_stop(&gateway->lines_timer);
    LIST_EACH (node, &gateway->clients) {
        struct gateway_client *client = LIST_OF(node, struct gateway_client, node);
        http_client_free(client->client);
        model_unref(client->model);
        free(client);
    }
    dialect_scratch_deinit(&gateway->scratch);
    buf_deinit(&gateway->gathered);
    buf_deinit(&gateway->text);
    call_free_spares(gateway);
    arena_deinit(&gateway->spare_arena);
    json_doc_deinit(&gateway->spare_doc);
    free(gateway);
}

struct buf *gateway_text(struct gateway *gateway)
{
    if (gateway->text.capacity > TEXT_KEPT)
        buf_deinit(&gateway->text);
    buf_clear(&gateway->text);
    return &gateway->text;
}

struct http_client *gateway_client(struct gateway *gateway, struct model *model)
{
    LIST_EACH (node, &gateway->clients) {
        struct gateway_client *client = LIST_OF(node, struct gateway_client, node);
        if (client->model == model)
            return client->client;
    }
    struct gateway_client *client = mem_zero(sizeof *client);
    struct http_client_options options = {
        .connect_ms_max = model->options.connect_ms_max,
        .ca_file = model->ca_file,
    };
    client->model = model_ref(model);
    client->client = http_client_new(gateway->loop, &options);
    list_append(&gateway->clients, &client->node);
    return client->client;
}

void gateway_counts(const struct gateway *gateway, struct gateway_counts *out)
{
    *out = (struct gateway_counts){
        .calls = atomic_load(&gateway->calls),
        .answered = atomic_load(&gateway->answered),
        .broken = atomic_load(&gateway->broken),
        .refused = atomic_load(&gateway->refused),
        .retries = atomic_load(&gateway->retries),
        .redelivered = atomic_load(&gateway->redelivered),
        .connections = atomic_load(&gateway->connections),
        .prompt_tokens = atomic_load(&gateway->prompt_tokens),
        .completion_tokens = atomic_load(&gateway->completion_tokens),
        .in_flight = atomic_load(&gateway->in_flight),
        .sessions = atomic_load(&gateway->sessions),
    };
}
