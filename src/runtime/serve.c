/* serve.c - `postern serve`: the machine and the control listener, until a signal says stop.
 *
 *     serving ── SIGTERM ──► draining ──time is up, SIGINT──► ending ──all are over──► closed
 *        └──────── SIGINT ────────────────────────────────────►┘
 *
 * Draining: no more rollouts are taken (503) or started; those under way go on. Ending: they are
 * cancelled; the listener stays until each has come back, so that whoever waits is answered.
 * Another signal hurries. */
#include "runtime/runtime.h"

#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "api/api.h"
#include "base/buf.h"
#include "base/log.h"
#include "base/mem.h"
#include "json/json.h"
#include "runtime/internal.h"

#define API_GRACE_MS 2000
#define END_MS_MAX 20000 /* for cancelled rollouts, before the listener goes all the same */

struct serve {
    struct machine *machine;
    struct api *api;
    struct submitter submitter;
    struct retention *retention;
    struct rollout_watch watch;
    struct loop_timer timer;
    enum { SERVING, DRAINING, ENDING, CLOSED } state;
};

static bool write_live(void *context, const char *id, struct json_writer *out)
{
    struct serve *serve = context;
    struct rollout_view view;
    if (!serve->machine->rollouts || !rollouts_view(serve->machine->rollouts, id, &view))
        return false;
    rollout_view_write(&view, out);
    return true;
}

static void add_sandboxes(struct machine *machine, struct api_metrics *out)
{
    for (size_t i = 0; i < machine->room_count; i++) {
        OWN(buf) struct buf text = {0};
        OWN(json_doc) struct json_doc doc = {0};
        struct json_writer writer = {.out = &text};
        if (!machine->rooms[i].sandboxes)
            continue;
        sandboxes_report(machine->rooms[i].sandboxes, &writer);
        if (json_read(&doc, buf_str(&text), NULL, NULL) < 0)
            continue;
        JSON_EACH (item, json_get(json_root(&doc), "backends")) {
            out->sandboxes += (uint64_t)json_int_or(json_get(item.value, "live"), 0);
            out->sandboxes_created += (uint64_t)json_int_or(json_get(item.value, "created"), 0);
            out->sandboxes_failed += (uint64_t)json_int_or(json_get(item.value, "failed"), 0);
        }
    }
}

static void write_sandboxes(void *context, struct json_writer *out)
{
    struct serve *serve = context;
    struct machine *machine = serve->machine;
    for (size_t i = 0; i < machine->room_count && !machine->closing; i++)
        if (machine->rooms[i].sandboxes)
            sandboxes_report(machine->rooms[i].sandboxes, out);
}

static void write_settings(void *context, struct json_writer *out)
{
    const struct serve *serve = context;
    config_write_json(serve->machine->config, out);
}

static void read_metrics(void *context, struct api_metrics *out)
{
    static uint64_t by_fate[TRACE_FATES];
    struct serve *serve = context;
    struct machine *machine = serve->machine;
    if (machine->closing)
        return;
    for (size_t i = 0; i < machine->room_count; i++) {
        struct gateway_counts counts;
        gateway_counts(machine->rooms[i].gateway, &counts);
        out->calls += counts.calls;
        out->calls_answered += counts.answered;
        out->calls_broken += counts.broken;
        out->calls_refused += counts.refused;
        out->call_retries += counts.retries;
        out->calls_in_flight += counts.in_flight;
        out->prompt_tokens += counts.prompt_tokens;
        out->completion_tokens += counts.completion_tokens;
        out->connections += counts.connections;
        out->sessions += counts.sessions;
    }
    struct rollout_counts rollouts = rollouts_counts(machine->rollouts);
    out->rollouts_queued = rollouts.queued;
    out->rollouts_running = rollouts.running;
    memcpy(by_fate, rollouts.by_fate, sizeof by_fate);
    out->rollouts_by_fate = by_fate;
    add_sandboxes(machine, out);
}

static int submit(void *context, const struct api_submit *orders, size_t count,
                  struct api_receipt *receipt, struct err *err)
{
    struct serve *serve = context;
    return submitter_submit(&serve->submitter, orders, count, receipt, err);
}

static int resume(void *context, struct rollout_left *left, struct err *err)
{
    struct serve *serve = context;
    return submitter_resume(&serve->submitter, left, err);
}

static int cancel(void *context, const char *id, const char *why, struct err *err)
{
    struct serve *serve = context;
    return submitter_cancel(&serve->submitter, id, why, err);
}

static void on_api_closed(void *context)
{
    struct serve *serve = context;
    serve->api = NULL;
    machine_close(serve->machine);
}

static void on_retention_stopped(void *context)
{
    struct serve *serve = context;
    api_close(serve->api, API_GRACE_MS, on_api_closed, serve);
}

static void close_all(struct serve *serve)
{
    if (serve->state == CLOSED)
        return;
    serve->state = CLOSED;
    loop_timer_stop(&serve->timer);
    rollouts_unwatch(&serve->watch);
    retention_stop(TAKE(serve->retention), on_retention_stopped, serve);
}

static void on_end_due(struct loop_timer *timer)
{
    close_all(timer->context);
}

static void end_all(struct serve *serve, bool hurry)
{
    struct rollouts *rollouts = serve->machine->rollouts;
    serve->state = ENDING;
    rollouts_drain(rollouts);
    loop_timer_start(serve->machine->loop, &serve->timer, END_MS_MAX, on_end_due, serve);
    rollouts_cancel_all(rollouts, "the server is stopping", hurry);
}

/* The next server goes on with what there is, as after a crash; so this is one, on purpose. Nothing
 * that was acknowledged is only in memory. */
static void leave(struct serve *serve)
{
    struct rollout_counts counts = rollouts_counts(serve->machine->rollouts);
    LOG_INFO("runtime", NULL, "%zu rollouts are left to the next server",
             counts.running + counts.queued);
    if (serve->machine->config->listen_unix[0])
        (void)unlink(serve->machine->config->listen_unix);
    _exit(0);
}

static void on_drain_due(struct loop_timer *timer)
{
    struct serve *serve = timer->context;
    if (serve->machine->config->listen_leave)
        leave(serve);
    LOG_INFO("runtime", NULL, "the time to drain is up: cancelling what is left");
    end_all(serve, false);
}

/* Nothing is under way any more (what is queued does not start while draining). */
static void check_over(void *argument)
{
    struct serve *serve = argument;
    if (serve->state != DRAINING && serve->state != ENDING)
        return;
    struct rollout_counts counts = rollouts_counts(serve->machine->rollouts);
    if (counts.running || counts.ending)
        return;
    if (counts.queued && serve->state == DRAINING && serve->machine->config->listen_leave)
        leave(serve);
    else if (counts.queued)
        end_all(serve, false);
    else
        close_all(serve);
}

static void on_event(void *context, const struct rollout_event *event)
{
    struct serve *serve = context;
    if (event->kind == ROLLOUT_EVENT_FINAL && serve->state != SERVING)
        loop_defer(serve->machine->loop, check_over, serve); /* when all have heard of it */
}

static void on_signal(void *context, int number)
{
    struct serve *serve = context;
    int64_t drain_ms = serve->machine->config->listen_drain_ms;
    if (!serve->api || serve->machine->closing) {
        if (serve->machine->rollouts)
            rollouts_cancel_all(serve->machine->rollouts, "the server is stopping", true);
        return;
    }
    bool leaves = serve->machine->config->listen_leave;
    if (serve->state == SERVING && number == SIGTERM && (drain_ms || leaves)) {
        LOG_INFO("runtime", NULL, "signal %d: draining, for up to %lld s", number,
                 (long long)drain_ms / 1000);
        serve->state = DRAINING;
        rollouts_drain(serve->machine->rollouts);
        loop_timer_start(serve->machine->loop, &serve->timer, (uint64_t)drain_ms, on_drain_due,
                         serve);
    } else if (serve->state != CLOSED) {
        LOG_INFO("runtime", NULL, "signal %d: stopping", number);
        end_all(serve, serve->state != SERVING);
    }
    check_over(serve);
}

static int open_api(struct serve *serve, const struct config *config, struct err *err)
{
    struct api_options options = {
        .home = config->home,
        .store = serve->machine->store,
        .gate = serve->machine->gate,
        .address = config->listen_address,
        .port = (uint16_t)config->listen_port,
        .unix_path = config->listen_unix[0] ? config->listen_unix : NULL,
        .token_file = config->listen_token_file[0] ? config->listen_token_file : NULL,
        .body_bytes_max = (size_t)config->listen_body_bytes_max,
        .connections_max = (size_t)config->listen_connections_max,
        .event_bytes_max = (size_t)config->listen_event_bytes_max,
        .keepalive_ms = (uint32_t)config->listen_keepalive_ms,
        .callback_allow = config->callback_allow,
        .callback_tries_max = (uint32_t)config->callback_tries_max,
        .callback_pause_ms = (uint32_t)config->callback_pause_ms,
        .write_live = write_live,
        .read_metrics = read_metrics,
        .write_sandboxes = write_sandboxes,
        .write_settings = write_settings,
        .submit = submit,
        .cancel = cancel,
        .rollouts = serve->machine->rollouts,
        .context = serve,
    };
    serve->api = api_open(serve->machine->loop, &options, err);
    return serve->api ? 0 : -1;
}

static void tell(const struct serve *serve, const struct config *config,
                 void (*on_ready)(void *context, const char *line), void *context)
{
    OWN(mem)
    char *tcp = mem_format("listening on http://%s:%u (token in %s)", config->listen_address,
                           api_port(serve->api), api_token_file(serve->api));
    on_ready(context, tcp);
    if (!config->listen_unix[0])
        return;
    OWN(mem) char *local = mem_format("listening on unix:%s", config->listen_unix);
    on_ready(context, local);
}

int runtime_serve(const struct config *config, void (*on_ready)(void *context, const char *line),
                  void *context, struct err *err)
{
    struct serve serve = {0};
    struct machine_options options = {
        .gate = true, .on_signal = on_signal, .resume = resume, .context = &serve};
    serve.machine = machine_open(config, &options, err);
    if (!serve.machine)
        return -1;
    serve.submitter.machine = serve.machine;
    int result = open_api(&serve, config, err);
    if (result == 0) {
        serve.watch = (struct rollout_watch){.on_event = on_event, .context = &serve};
        rollouts_watch(serve.machine->rollouts, &serve.watch);
        serve.retention = retention_start(serve.machine);
        machine_begin(serve.machine);
        if (serve.machine->callbacks_booked)
            api_booked(serve.api);
        tell(&serve, config, on_ready, context);
    } else {
        machine_close(serve.machine);
    }
    loop_run(serve.machine->loop);
    machine_free(serve.machine);
    submitter_deinit(&serve.submitter);
    return result;
}
