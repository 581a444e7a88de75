/* retention.c - what is kept for how long: for `postern gc`, and now and then in a server.
 *
 * The work is done on a worker, in rounds with a bound; the control loop only starts it and forgets
 * what went. Nothing that is not over is touched, whoever runs it. */
#include "runtime/runtime.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "base/log.h"
#include "base/mem.h"
#include "json/json.h"
#include "runtime/internal.h"

#define ROUND_MAX 10000

struct sweep {
    struct store *store;
    struct store_retention rules;
    bool dry;
    struct runtime_gc_report *report;
    char **gone; /* ids; NULL when nobody wants them */
    size_t gone_count;
    bool keep_ids;
    char **ids, **dirs; /* of this round */
    uint64_t *bytes;
    size_t count;
    atomic_bool stop; /* from the control loop: no more */
    struct err err;
};

static bool take_row(void *context, const char *id, const char *dir, uint64_t bytes)
{
    struct sweep *sweep = context;
    size_t at = sweep->count++;
    sweep->ids = mem_grow(sweep->ids, sweep->count * sizeof *sweep->ids);
    sweep->dirs = mem_grow(sweep->dirs, sweep->count * sizeof *sweep->dirs);
    sweep->bytes = mem_grow(sweep->bytes, sweep->count * sizeof *sweep->bytes);
    sweep->ids[at] = mem_dup(id);
    sweep->dirs[at] = mem_dup(dir);
    sweep->bytes[at] = bytes;
    return true;
}

static void forget_round(struct sweep *sweep)
{
    for (size_t i = 0; i < sweep->count; i++) {
        free(sweep->ids[i]);
        free(sweep->dirs[i]);
    }
    sweep->count = 0;
}

static void remove_round(struct sweep *sweep)
{
    for (size_t i = 0; i < sweep->count && sweep->err.kind == ERR_NONE; i++) {
        if (atomic_load(&sweep->stop))
            return;
        if (!sweep->dry &&
            (store_remove_folder(sweep->store, sweep->ids[i], sweep->dirs[i], &sweep->err) < 0 ||
             store_remove_rollout(sweep->store, NULL, sweep->ids[i], NULL, NULL, &sweep->err) < 0))
            return;
        sweep->report->rollouts++;
        sweep->report->bytes += sweep->bytes[i];
        if (sweep->keep_ids) {
            sweep->gone = mem_grow(sweep->gone, (sweep->gone_count + 1) * sizeof *sweep->gone);
            sweep->gone[sweep->gone_count++] = mem_dup(sweep->ids[i]);
        }
    }
}

static void sweep_all(struct sweep *sweep)
{
    struct runtime_gc_report *report = sweep->report;
    bool any = sweep->rules.age_ms || sweep->rules.count_max || sweep->rules.bytes_max;
    if (!sweep->dry)
        store_empty_trash(sweep->store);
    while (any && sweep->err.kind == ERR_NONE) {
        if (store_list_expired(sweep->store, &sweep->rules, ROUND_MAX, take_row, sweep,
                               &sweep->err) < 0)
            break;
        size_t found = sweep->count;
        remove_round(sweep);
        forget_round(sweep);
        if (found < ROUND_MAX || sweep->dry || atomic_load(&sweep->stop))
            break;
    }
    if (!sweep->dry && sweep->err.kind == ERR_NONE)
        (void)store_drop_segments(sweep->store, &report->segments, &report->segment_bytes,
                                  &sweep->err);
    free(sweep->ids);
    free(sweep->dirs);
    free(sweep->bytes);
}

int runtime_gc(const struct config *config, const struct runtime_gc *asked,
               struct runtime_gc_report *report, struct err *err)
{
    struct sweep sweep = {
        .dry = asked->dry,
        .report = report,
        .rules = {.age_ms = asked->age_ms ? asked->age_ms : (uint64_t)config->retention_age_ms,
                  .count_max =
                      asked->count_max ? asked->count_max : (uint64_t)config->retention_count,
                  .bytes_max =
                      asked->bytes_max ? asked->bytes_max : (uint64_t)config->retention_bytes},
    };
    *report = (struct runtime_gc_report){0};
    OWN(store)
    struct store *store =
        asked->dry ? store_open_read(config->home, err) : store_open(config->home, err);
    if (!store)
        return -1;
    sweep.store = store;
    sweep_all(&sweep);
    return sweep.err.kind == ERR_NONE ? 0 : err_copy(err, &sweep.err);
}

/* ---------------------------------------------------------------- in a server */
struct retention {
    struct machine *machine;
    struct loop_timer timer;
    struct sweep sweep;
    struct runtime_gc_report report;
    bool under_way;
    void (*on_stopped)(void *context);
    void *context;
};

static void on_due(struct loop_timer *timer);

static void plan_next(struct retention *retention, uint64_t after_ms)
{
    loop_timer_start(retention->machine->loop, &retention->timer, after_ms, on_due, retention);
}

static void on_swept(void *argument)
{
    struct retention *retention = argument;
    struct sweep *sweep = &retention->sweep;
    const struct runtime_gc_report *report = &retention->report;
    retention->under_way = false;
    if (sweep->err.kind != ERR_NONE)
        LOG_WARN("runtime", NULL, "looking for what may go: %s", sweep->err.text);
    if (report->rollouts || report->segments)
        LOG_INFO("runtime", NULL,
                 "retention: %llu rollouts and %llu segments of the journal deleted",
                 (unsigned long long)report->rollouts, (unsigned long long)report->segments);
    for (size_t i = 0; i < sweep->gone_count; i++) {
        if (retention->machine->rollouts)
            rollouts_forget(retention->machine->rollouts, sweep->gone[i]);
        free(sweep->gone[i]);
    }
    free(sweep->gone);
    sweep->gone = NULL;
    if (retention->on_stopped) {
        retention->on_stopped(retention->context);
        free(retention);
    } else {
        plan_next(retention, (uint64_t)retention->machine->config->retention_every_ms);
    }
}

static void sweep_in_server(void *argument)
{
    sweep_all(&((struct retention *)argument)->sweep);
}

static void on_due(struct loop_timer *timer)
{
    struct retention *retention = timer->context;
    const struct config *config = retention->machine->config;
    retention->under_way = true;
    retention->report = (struct runtime_gc_report){0};
    retention->sweep = (struct sweep){
        .store = retention->machine->store,
        .report = &retention->report,
        .keep_ids = true,
        .rules = {.age_ms = (uint64_t)config->retention_age_ms,
                  .count_max = (uint64_t)config->retention_count,
                  .bytes_max = (uint64_t)config->retention_bytes},
    };
    loop_work(retention->machine->loop, sweep_in_server, on_swept, retention);
}

struct retention *retention_start(struct machine *machine)
{
    struct retention *retention = mem_zero(sizeof *retention);
    retention->machine = machine;
    plan_next(retention, (uint64_t)machine->config->retention_every_ms);
    return retention;
}

void retention_stop(struct retention *retention, void (*on_stopped)(void *context), void *context)
{
    loop_timer_stop(&retention->timer);
    if (retention->under_way) {
        retention->on_stopped = on_stopped;
        retention->context = context;
        atomic_store(&retention->sweep.stop, true);
        return;
    }
    free(retention);
    on_stopped(context);
}
