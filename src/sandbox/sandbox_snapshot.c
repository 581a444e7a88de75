/* sandbox_snapshot.c - the end of a sandbox that leaves its files behind, as a layer.
 *
 *     ready -> everything inside is ended -> the backend keeps the files -> closing
 *
 * Whatever happens, the sandbox is closed afterwards. A layer nobody waits for any more is dropped.
 */
#include "sandbox/manager.h"

static void snapshot_done(struct sandbox *sandbox, const char *layer_id, const struct err *err)
{
    void (*on_done)(void *, const char *, const struct err *) = sandbox->on_snapshot;
    struct backend *backend = sandbox->slot->backend;
    if (!sandbox->silent)
        on_done(sandbox->snapshot_context, layer_id, err);
    else if (layer_id && backend->class->drop_layer)
        backend->class->drop_layer(backend, layer_id); /* nobody will ask for it */
    sandbox->silent = true;
    sandbox_begin_closing(sandbox);
}

static void on_snapshot(void *context, const char *layer_id, const struct err *err)
{
    struct sandbox *sandbox = context;
    bool failed = err && err->kind != ERR_NONE;
    snapshot_done(sandbox, failed ? NULL : layer_id, failed ? err : NULL);
}

static void on_quiet(void *context, const struct err *err)
{
    struct sandbox *sandbox = context;
    if (err && err->kind != ERR_NONE) {
        snapshot_done(sandbox, NULL, err);
        return;
    }
    struct backend *backend = sandbox->slot->backend;
    sandbox_detach(sandbox);
    backend->class->snapshot(backend, sandbox->id, on_snapshot, sandbox);
}

static void refuse_snapshot(void *argument)
{
    struct sandbox *sandbox = argument;
    void (*on_done)(void *, const char *, const struct err *) = sandbox->on_snapshot;
    if (!sandbox->silent)
        on_done(sandbox->snapshot_context, NULL, &sandbox->err);
}

void sandbox_snapshot(struct sandbox *sandbox,
                      void (*on_done)(void *, const char *, const struct err *), void *context)
{
    sandbox->on_snapshot = on_done;
    sandbox->snapshot_context = context;
    if (sandbox->state != SB_READY)
        err_set(&sandbox->err, ERR_CONFLICT, "a snapshot needs a sandbox that runs");
    else if (sandbox_need(sandbox->slot, SANDBOX_CAN_SNAPSHOT, "a snapshot", &sandbox->err) == 0) {
        sandbox->state = SB_SNAPSHOT;
        sandbox->slot->live--;
        loop_timer_stop(&sandbox->life_timer);
        channel_kill_all(sandbox->channel, on_quiet, sandbox);
        return;
    }
    loop_defer(sandbox->sandboxes->loop, refuse_snapshot, sandbox);
}
