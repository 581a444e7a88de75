/* sandbox_life.c - one sandbox from open to gone.
 *
 *     queued -> creating -> greeting -> ready -> [snapshot] -> closing -> gone
 *        \         \__________/  \         \-> lost ______________/
 *         \             |         \-> back-off -> queued          |
 *          \____________|_______________________-> failed ________/
 *
 * - queued: at most `starting_max` sandboxes are between creating and ready at once.
 * - greeting: the backend has handed over the frames. Ready is when the porter has answered and has
 * tried to start a first program: one that exists in no image, so that the answer "not found"
 * proves the whole path from frame to exec and asks nothing of the image.
 * - An attempt that fails is cleared away first. Then it is tried again if its kind of error says
 * that may help, with growing, jittered pauses, until the create deadline, which counts all
 * attempts together.
 * - closing: destroy until it is gone. The owner hears the first outcome; failures are tried again,
 * and the sandbox stays in the books until it is gone or the manager itself closes.
 *
 * The backend has at most one create and one destroy in flight per id. A sandbox object is freed
 * when neither is and the owner has let go. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/check.h"
#include "base/fd.h"
#include "base/id.h"
#include "base/log.h"
#include "base/mem.h"
#include "json/json.h"
#include "sandbox/channel_inner.h"
#include "sandbox/manager.h"

enum {
    QUEUE_MAX = 65536,
    STARTING_DEFAULT = 16,
    CREATE_MS_DEFAULT = 60000,
    QUEUE_WAIT_FACTOR = 20, /* of the create deadline */
    BACKOFF_MS_FIRST = 200,
    BACKOFF_MS_MAX = 5000,
    ATTEMPTS_MAX = 6,
    DESTROY_PAUSE_MS_FIRST = 500,
    DESTROY_PAUSE_MS_MAX = 30000,
    DESTROY_WATCH_MS = 60000, /* a backend that does not answer a destroy */
    PROBE_MS = 20000,
};

static void on_turn_over(struct loop_timer *timer);
static void start_destroy(struct sandbox *sandbox);
static void attempt_failed(struct sandbox *sandbox, const struct err *err);
static void on_destroyed(void *context, const struct err *err);
static void after_attempt(struct sandbox *sandbox);

/* ---------------------------------------------------------------- asking */

static const char *keep(struct sandbox *sandbox, const char *text)
{
    return text ? arena_text(&sandbox->arena, str_of(text)) : NULL;
}

static void copy_spec(struct sandbox *sandbox, const struct sandbox_spec *spec)
{
    sandbox->spec = *spec;
    sandbox->spec.backend = keep(sandbox, spec->backend ? spec->backend : "local");
    sandbox->spec.root = keep(sandbox, spec->root);
    sandbox->spec.layer_mounts_at = keep(sandbox, spec->layer_mounts_at);
    sandbox->spec.hostname = keep(sandbox, spec->hostname);
    sandbox->spec.label = keep(sandbox, spec->label);
    const char **layers =
        arena_alloc(&sandbox->arena, (spec->layer_count + 1) * sizeof *sandbox->spec.layers);
    for (size_t i = 0; i < spec->layer_count; i++)
        layers[i] = keep(sandbox, spec->layers[i]);
    sandbox->spec.layers = layers;
    size_t names = 0;
    while (spec->pristine && spec->pristine[names])
        names++;
    const char **pristine = arena_alloc(&sandbox->arena, (names + 1) * sizeof *pristine);
    for (size_t i = 0; i < names; i++)
        pristine[i] = keep(sandbox, spec->pristine[i]);
    sandbox->spec.pristine = names ? pristine : NULL;
}

static uint32_t create_ms_max(const struct sandboxes *sandboxes)
{
    return sandboxes->options.create_ms_max ? sandboxes->options.create_ms_max : CREATE_MS_DEFAULT;
}

/* ---------------------------------------------------------------- the books */

static void leave_starting(struct sandbox *sandbox)
{
    if (!sandbox->counted_starting)
        return;
    sandbox->counted_starting = false;
    sandbox->sandboxes->starting--;
    sandbox_next_in_queue(sandbox->sandboxes);
}

static void leave_queue(struct sandbox *sandbox)
{
    if (!list_linked(&sandbox->queue_link))
        return;
    list_remove(&sandbox->queue_link);
    sandbox->sandboxes->queue_count--;
}

static void enter_queue(struct sandbox *sandbox)
{
    struct sandboxes *sandboxes = sandbox->sandboxes;
    sandbox->state = SB_QUEUED;
    list_append(&sandboxes->queue, &sandbox->queue_link);
    sandboxes->queue_count++;
    sandbox_next_in_queue(sandboxes);
}

/* Lets go of everything of ours; what the backend has is another matter. */
void sandbox_detach(struct sandbox *sandbox)
{
    loop_timer_stop(&sandbox->timer);
    sandbox_judge_all(sandbox, CHANNEL_SILENCE);
    sandbox_inlet_close(sandbox);
    channel_close(sandbox->channel);
    sandbox->channel = NULL;
}

void sandbox_free(void *argument)
{
    struct sandbox *sandbox = argument;
    dns_tally_deinit(&sandbox->lookups);
    arena_deinit(&sandbox->arena);
    free(sandbox);
}

/* The end. Callable from any callback: the memory stays until this tick is over. */
static void retire(struct sandbox *sandbox)
{
    struct sandboxes *sandboxes = sandbox->sandboxes;
    if (sandbox->state == SB_GONE)
        return;
    sandbox->state = SB_GONE;
    leave_queue(sandbox);
    leave_starting(sandbox);
    sandbox_detach(sandbox);
    loop_timer_stop(&sandbox->life_timer);
    list_remove(&sandbox->link);
    sandboxes->all_count--;
    loop_defer(sandboxes->loop, sandbox_free, sandbox);
    sandboxes_gone(sandboxes);
}

/* ---------------------------------------------------------------- getting ready */

static void deliver_open(struct sandbox *sandbox, const struct err *err)
{
    if (sandbox->silent || sandbox->opened)
        return;
    sandbox->opened = true;
    sandbox->on_open(sandbox->open_context, err ? NULL : sandbox, err);
}

static void fail(struct sandbox *sandbox)
{
    sandbox->state = SB_FAILED;
    sandbox->slot->failed++;
    leave_starting(sandbox);
    err_wrap(&sandbox->err, "%s a sandbox of backend '%s'",
             sandbox->adopting ? "taking over" : "creating", sandbox->slot->name);
    deliver_open(sandbox, &sandbox->err);
}

static void on_life_over(struct loop_timer *timer)
{
    struct sandbox *sandbox = timer->context;
    if (sandbox->state != SB_READY)
        return;
    struct err err = {0};
    err_set(&err, ERR_LIMIT, "it reached the end of its life (%u ms)", sandbox->spec.life_ms_max);
    channel_lose(sandbox->channel, &err); /* its jobs end as lost, then the owner hears of it */
    sandbox->life_over = true;
    start_destroy(sandbox);
}

static void become_ready(struct sandbox *sandbox)
{
    struct slot *slot = sandbox->slot;
    uint64_t now = loop_now_ms(sandbox->sandboxes->loop);
    loop_timer_stop(&sandbox->timer);
    sandbox->state = SB_READY;
    sandbox->ready_ms = now;
    slot->created++;
    slot->live++;
    slot->pool_hits += sandbox->pool_hit;
    slot->pool_misses += !sandbox->pool_hit;
    uint64_t took = now - sandbox->begun_ms;
    slot->create_ms_total += took;
    if (took > slot->create_ms_max)
        slot->create_ms_max = took;
    leave_starting(sandbox);
    if (sandbox->spec.life_ms_max)
        loop_timer_start(sandbox->sandboxes->loop, &sandbox->life_timer, sandbox->spec.life_ms_max,
                         on_life_over, sandbox);
    LOG_DEBUG("sandbox", sandbox->id, "ready after %llu ms", (unsigned long long)took);
    deliver_open(sandbox, NULL);
}

static void on_probed(void *context, const struct sandbox_outcome *outcome)
{
    struct sandbox *sandbox = context;
    if (sandbox->state != SB_GREETING)
        return;
    enum sandbox_end end = outcome->exit.end;
    if (end == SANDBOX_NOT_FOUND || end == SANDBOX_EXITED) {
        sandbox_limits_check(sandbox);
        return;
    }
    if (end == SANDBOX_LOST)
        return; /* on_channel_lost follows and knows why */
    struct err err = {0};
    err_set(&err, end == SANDBOX_TIMED_OUT ? ERR_TIMEOUT : ERR_SYSTEM,
            "a first command did not start: %s", outcome->exit.text);
    attempt_failed(sandbox, &err);
}

void sandbox_limits_known(struct sandbox *sandbox, const struct err *err)
{
    if (err)
        attempt_failed(sandbox, err);
    else
        become_ready(sandbox);
}

static void on_channel_ready(void *context, bool can_inlet)
{
    struct sandbox *sandbox = context;
    if (sandbox->state != SB_GREETING)
        return;
    if (!sandbox->inlet_carried) {
        become_ready(sandbox);
        return;
    }
    if (can_inlet)
        return; /* on_probed decides */
    struct err err = {0};
    err_set(&err, ERR_CONFLICT,
            "127.0.0.1:%d is taken where the sandbox runs, so it has no inlet (another sandbox "
            "without a network namespace of its own?)",
            SANDBOX_INLET_PORT);
    attempt_failed(sandbox, &err);
}

static void on_channel_inlet(void *context, int fd)
{
    sandbox_inlet_arrived(context, fd);
}

static void on_channel_killed(void *context, struct sandbox_job *job)
{
    sandbox_judge(context, job);
}

static void on_channel_lookup(void *context, struct str name)
{
    struct sandbox *sandbox = context;
    char text[DNS_NAME_MAX];
    size_t size = name.size < sizeof text - 1 ? name.size : sizeof text - 1;
    for (size_t i = 0; i < size; i++)
        text[i] =
            (char)(name.data[i] >= 'A' && name.data[i] <= 'Z' ? name.data[i] + 32 : name.data[i]);
    text[size] = '\0';
    dns_tally_add(&sandbox->lookups, text, 1);
}

static void tell_lost(struct sandbox *sandbox)
{
    if (sandbox->silent || sandbox->lost_told || !sandbox->on_lost)
        return;
    sandbox->lost_told = true;
    sandbox->on_lost(sandbox->lost_context, &sandbox->err);
}

static void on_explained(void *context, const struct err *why)
{
    struct sandbox *sandbox = context;
    if (why)
        sandbox->err = *why;
    if (sandbox->state == SB_GREETING) {
        struct err err = sandbox->err;
        attempt_failed(sandbox, &err);
        return;
    }
    if (sandbox->state == SB_LOST) {
        LOG_WARN("sandbox", sandbox->id, "lost: %s", sandbox->err.text);
        tell_lost(sandbox);
    }
}

static void on_channel_lost(void *context, const struct err *err)
{
    struct sandbox *sandbox = context;
    struct backend *backend = sandbox->slot->backend;
    if (sandbox->state != SB_GREETING && sandbox->state != SB_READY)
        return;
    sandbox_judge_all(sandbox, CHANNEL_AS_IT_CAME);
    if (sandbox->state != SB_GREETING && sandbox->state != SB_READY)
        return; /* closed by one of those it told */
    sandbox->err = *err;
    if (sandbox->state == SB_READY) {
        sandbox->state = SB_LOST;
        sandbox->slot->lost++;
        sandbox->slot->live--;
    }
    if (backend->class->explain && !sandbox->life_over)
        backend->class->explain(backend, sandbox->id, on_explained, sandbox);
    else
        on_explained(sandbox, NULL);
}

static const struct channel_handlers channel_handlers = {
    .on_ready = on_channel_ready,
    .on_lost = on_channel_lost,
    .on_inlet = on_channel_inlet,
    .on_lookup = on_channel_lookup,
    .on_killed = on_channel_killed,
};

static void take_link(struct sandbox *sandbox, struct backend_link *link)
{
    bool carried = link->inlet < 0;
    sandbox->state = SB_GREETING;
    sandbox->pool_hit = link->pool_hit;
    sandbox->inlet_carried = carried;
    memcpy(sandbox->facts, link->facts, sizeof sandbox->facts);
    sandbox->facts[sizeof sandbox->facts - 1] = '\0';
    sandbox_inlet_open(sandbox, link->inlet, link->resolver);
    struct channel_options options = {
        .inlet = carried,
        .resolver = link->resolver < 0,
        .resume =
            sandbox->slot->backend->class->capabilities(sandbox->slot->backend) & SANDBOX_CAN_ADOPT,
        .banner = carried,
        .hello_ms_max = create_ms_max(sandbox->sandboxes),
        .id = sandbox->id,
    };
    struct err err = {0};
    sandbox->channel = channel_new(sandbox->sandboxes->loop, link->frames_in, link->frames_out,
                                   &options, &channel_handlers, sandbox, &err);
    if (!sandbox->channel) {
        attempt_failed(sandbox, &err);
        return;
    }
    if (!carried)
        return;
    struct sandbox_command probe = {
        .argv = (const char *const[]){"/.postern-probe", NULL},
        .timeout_ms = PROBE_MS,
    };
    channel_run_whole(sandbox->channel, &probe, STR_NONE, 0, on_probed, sandbox);
}

static void close_link(struct backend_link *link)
{
    if (link->frames_out != link->frames_in)
        fd_close(&link->frames_out);
    fd_close(&link->frames_in);
    fd_close(&link->inlet);
    fd_close(&link->resolver);
}

static void maybe_gone(struct sandbox *sandbox)
{
    if (sandbox->state == SB_CLOSING && !sandbox->exists && !sandbox->create_pending &&
        !sandbox->destroy_pending)
        retire(sandbox);
}

static void on_created(void *context, struct backend_link *link, const struct err *err)
{
    struct sandbox *sandbox = context;
    bool made = link && (!err || err->kind == ERR_NONE);
    sandbox->create_pending = false;
    if (sandbox->state != SB_CREATING) {
        /* Closed or out of time meanwhile: a destroy is under way. */
        if (made)
            close_link(link);
        else
            sandbox->exists = sandbox->destroy_pending && sandbox->exists;
        if (sandbox->state == SB_BACKOFF && !sandbox->exists && !sandbox->destroy_pending)
            after_attempt(sandbox);
        else
            maybe_gone(sandbox);
        return;
    }
    if (!made) {
        sandbox->exists = false;
        attempt_failed(sandbox, err);
        return;
    }
    take_link(sandbox, link);
}

static void on_create_deadline(struct loop_timer *timer)
{
    struct sandbox *sandbox = timer->context;
    struct err err = {0};
    err_set(&err, ERR_TIMEOUT, "not ready after %u ms%s%s", create_ms_max(sandbox->sandboxes),
            sandbox->err.kind ? "; before that: " : "", sandbox->err.kind ? sandbox->err.text : "");
    attempt_failed(sandbox, &err);
}

static uint64_t deadline_left(const struct sandbox *sandbox)
{
    uint64_t spent = loop_now_ms(sandbox->sandboxes->loop) - sandbox->begun_ms;
    uint64_t all = create_ms_max(sandbox->sandboxes);
    if (sandbox->spec.layer_count)
        all += sandbox->slot->backend->class->layer_ms_max;
    return spent < all ? all - spent : 0;
}

static void begin_attempt(struct sandbox *sandbox)
{
    struct sandboxes *sandboxes = sandbox->sandboxes;
    struct backend *backend = sandbox->slot->backend;
    if (sandbox->attempts++ == 0)
        sandbox->begun_ms = loop_now_ms(sandboxes->loop);
    sandbox->state = SB_CREATING;
    sandbox->counted_starting = true;
    sandboxes->starting++;
    sandbox->create_pending = sandbox->exists = true;
    loop_timer_start(sandboxes->loop, &sandbox->timer, deadline_left(sandbox), on_create_deadline,
                     sandbox);
    if (sandbox->adopting)
        backend->class->adopt(backend, sandbox->id, on_created, sandbox);
    else
        backend->class->create(backend, sandbox->id, &sandbox->spec, on_created, sandbox);
}

void sandbox_next_in_queue(struct sandboxes *sandboxes)
{
    size_t starting_max =
        sandboxes->options.starting_max ? sandboxes->options.starting_max : STARTING_DEFAULT;
    while (sandboxes->starting < starting_max && !list_empty(&sandboxes->queue) &&
           !sandboxes->closing) {
        struct sandbox *sandbox = LIST_OF(sandboxes->queue.next, struct sandbox, queue_link);
        leave_queue(sandbox);
        begin_attempt(sandbox);
    }
}

/* ---------------------------------------------------------------- failing and trying again */

static uint64_t jittered(uint64_t ms)
{
    uint32_t dice = 0;
    if (getrandom(&dice, sizeof dice, 0) != sizeof dice)
        dice = 0;
    return ms / 2 + dice % (ms + 1); /* between half and one and a half */
}

static uint64_t growing(uint64_t first, uint64_t max, unsigned failures)
{
    uint64_t pause = first;
    for (unsigned i = 1; i < failures && pause < max; i++)
        pause *= 2;
    return jittered(pause < max ? pause : max);
}

static void on_backoff_over(struct loop_timer *timer)
{
    struct sandbox *sandbox = timer->context;
    loop_timer_start(sandbox->sandboxes->loop, &sandbox->timer, deadline_left(sandbox),
                     on_turn_over, sandbox);
    enter_queue(sandbox);
}

/* The attempt is cleared away: decide what follows. */
static void after_attempt(struct sandbox *sandbox)
{
    uint64_t pause = growing(BACKOFF_MS_FIRST, BACKOFF_MS_MAX, sandbox->attempts);
    bool again = err_meaning(sandbox->err.kind)->retry && sandbox->attempts < ATTEMPTS_MAX &&
                 deadline_left(sandbox) > pause && !sandbox->sandboxes->closing &&
                 !sandbox->adopting;
    if (!again) {
        fail(sandbox);
        return;
    }
    LOG_INFO("sandbox", sandbox->id, "attempt %u failed, again in %llu ms: %s", sandbox->attempts,
             (unsigned long long)pause, sandbox->err.text);
    sandbox->state = SB_BACKOFF;
    sandbox->slot->retried++;
    leave_starting(sandbox);
    loop_timer_start(sandbox->sandboxes->loop, &sandbox->timer, pause, on_backoff_over, sandbox);
}

static void attempt_failed(struct sandbox *sandbox, const struct err *err)
{
    struct err why = *err; /* may be sandbox->err itself */
    sandbox->err = why;
    sandbox_detach(sandbox);
    sandbox->state = SB_BACKOFF;
    if (!sandbox->exists && !sandbox->create_pending) {
        after_attempt(sandbox);
        return;
    }
    start_destroy(sandbox);
}

/* ---------------------------------------------------------------- destroying */

static void on_destroy_late(struct loop_timer *timer)
{
    struct sandbox *sandbox = timer->context;
    LOG_WARN("sandbox", sandbox->id, "backend '%s' has not answered a destroy for %d s",
             sandbox->slot->name, DESTROY_WATCH_MS / 1000);
}

static void on_destroy_again(struct loop_timer *timer)
{
    start_destroy(timer->context);
}

static void start_destroy(struct sandbox *sandbox)
{
    struct backend *backend = sandbox->slot->backend;
    if (sandbox->destroy_pending)
        return;
    sandbox->destroy_pending = true;
    if (sandbox->state != SB_READY)
        loop_timer_start(sandbox->sandboxes->loop, &sandbox->timer, DESTROY_WATCH_MS,
                         on_destroy_late, sandbox);
    backend->class->destroy(backend, sandbox->id, on_destroyed, sandbox);
}

static void deliver_closed(struct sandbox *sandbox, const struct err *err)
{
    void (*on_closed)(void *, const struct err *) = sandbox->on_closed;
    sandbox->on_closed = NULL;
    if (on_closed)
        on_closed(sandbox->close_context, err);
}

static void destroy_worked(struct sandbox *sandbox)
{
    sandbox->exists = false;
    sandbox->slot->destroyed += sandbox->ready_ms != 0;
    if (sandbox->state == SB_CLOSING) {
        deliver_closed(sandbox, NULL);
        maybe_gone(sandbox);
    } else if (sandbox->state == SB_BACKOFF && !sandbox->create_pending) {
        after_attempt(sandbox);
    }
    /* Ready or lost: its life was over; the owner will close it. */
}

static void destroy_failed(struct sandbox *sandbox, const struct err *err)
{
    sandbox->destroy_failures++;
    uint64_t pause =
        growing(DESTROY_PAUSE_MS_FIRST, DESTROY_PAUSE_MS_MAX, sandbox->destroy_failures);
    LOG_WARN("sandbox", sandbox->id, "not destroyed, again in %llu ms: %s",
             (unsigned long long)pause, err->text);
    if (sandbox->state == SB_CLOSING)
        deliver_closed(sandbox, err);
    if (sandbox->state == SB_CLOSING || sandbox->state == SB_BACKOFF)
        loop_timer_start(sandbox->sandboxes->loop, &sandbox->timer, pause, on_destroy_again,
                         sandbox);
}

static void on_destroyed(void *context, const struct err *err)
{
    struct sandbox *sandbox = context;
    sandbox->destroy_pending = false;
    if (sandbox->state == SB_CLOSING || sandbox->state == SB_BACKOFF)
        loop_timer_stop(&sandbox->timer);
    if (err && err->kind != ERR_NONE && err->kind != ERR_NOT_FOUND)
        destroy_failed(sandbox, err);
    else
        destroy_worked(sandbox);
}

static void close_nothing(void *argument)
{
    struct sandbox *sandbox = argument;
    deliver_closed(sandbox, NULL);
    retire(sandbox);
}

void sandbox_begin_closing(struct sandbox *sandbox)
{
    bool was_ready = sandbox->state == SB_READY;
    leave_queue(sandbox);
    leave_starting(sandbox);
    sandbox_detach(sandbox);
    sandbox->state = SB_CLOSING;
    if (was_ready)
        sandbox->slot->live--;
    if (sandbox->exists || sandbox->create_pending || sandbox->destroy_pending)
        start_destroy(sandbox);
    else
        loop_defer(sandbox->sandboxes->loop, close_nothing, sandbox);
}

void sandbox_close(struct sandbox *sandbox, void (*on_closed)(void *, const struct err *),
                   void *context)
{
    if (!sandbox)
        return;
    sandbox->silent = true;
    sandbox->on_connection = NULL;
    if (on_closed) {
        sandbox->on_closed = on_closed;
        sandbox->close_context = context;
    }
    switch (sandbox->state) {
    case SB_CLOSING:
    case SB_GONE:
    case SB_SNAPSHOT: /* ends by itself */
        return;
    case SB_QUEUED:
    case SB_CREATING:
    case SB_GREETING:
    case SB_BACKOFF:
    case SB_READY:
    case SB_LOST:
    case SB_FAILED:
        sandbox_begin_closing(sandbox);
        return;
    }
}

void sandbox_abandon(struct sandbox *sandbox)
{
    LOG_ERROR("sandbox", sandbox->id, "given up while it was being destroyed by backend '%s'",
              sandbox->slot->name);
    sandbox_detach(sandbox);
    loop_timer_stop(&sandbox->life_timer);
    /* The backend may still call back with it, so its memory has to stay. */
    sandbox->state = SB_GONE;
    list_remove(&sandbox->link);
    list_append(&sandbox->sandboxes->abandoned, &sandbox->link);
    sandbox->sandboxes->all_count--;
}

/* ---------------------------------------------------------------- opening */

static void on_turn_over(struct loop_timer *timer)
{
    struct sandbox *sandbox = timer->context;
    leave_queue(sandbox);
    if (!sandbox->err.kind)
        err_set(&sandbox->err, ERR_TIMEOUT, "its turn did not come within %llu s",
                (unsigned long long)(loop_now_ms(sandbox->sandboxes->loop) - sandbox->opened_ms) /
                    1000);
    fail(sandbox);
}

static void refuse(void *argument)
{
    struct sandbox *sandbox = argument;
    deliver_open(sandbox, &sandbox->err);
}

static int admit(struct sandbox *sandbox, struct err *err)
{
    struct sandboxes *sandboxes = sandbox->sandboxes;
    if (sandboxes->closing)
        return err_set(err, ERR_CANCELLED, "the sandboxes are being closed");
    sandbox->slot = sandboxes_slot(sandboxes, sandbox->spec.backend, err);
    if (!sandbox->slot)
        return -1;
    if (sandboxes->queue_count >= QUEUE_MAX)
        return err_set(err, ERR_CAPACITY, "%d sandboxes wait to be created already", QUEUE_MAX);
    if (sandbox->adopting && !sandbox->slot->backend->class->adopt)
        return err_set(err, ERR_UNSUPPORTED, "sandboxes of backend '%s' end with their server",
                       sandbox->slot->name);
    return sandbox_spec_check(sandbox->slot, &sandbox->spec, err);
}

static struct sandbox *begin(struct sandboxes *sandboxes, const char *id,
                             const struct sandbox_spec *spec,
                             void (*on_open)(void *, struct sandbox *, const struct err *),
                             void *context)
{
    struct sandbox *sandbox = mem_zero(sizeof *sandbox);
    sandbox->adopting = id != NULL;
    sandbox->sandboxes = sandboxes;
    sandbox->on_open = on_open;
    sandbox->open_context = context;
    sandbox->inlet_fd = sandbox->resolver_fd = -1;
    list_init(&sandbox->verdicts);
    sandbox->opened_ms = loop_now_ms(sandboxes->loop);
    if (id)
        snprintf(sandbox->id, sizeof sandbox->id, "%s", id);
    else
        id_make(sandbox->id, "sb");
    copy_spec(sandbox, spec);
    list_append(&sandboxes->all, &sandbox->link);
    sandboxes->all_count++;
    if (admit(sandbox, &sandbox->err) < 0) {
        sandbox->state = SB_FAILED;
        loop_defer(sandboxes->loop, refuse, sandbox);
        return sandbox;
    }
    loop_timer_start(sandboxes->loop, &sandbox->timer,
                     (uint64_t)create_ms_max(sandboxes) * QUEUE_WAIT_FACTOR, on_turn_over, sandbox);
    enter_queue(sandbox);
    return sandbox;
}

struct sandbox *sandbox_open(struct sandboxes *sandboxes, const struct sandbox_spec *spec,
                             void (*on_open)(void *, struct sandbox *, const struct err *),
                             void *context)
{
    return begin(sandboxes, NULL, spec, on_open, context);
}

struct sandbox *sandbox_adopt(struct sandboxes *sandboxes, const char *id,
                              const struct sandbox_spec *spec,
                              void (*on_open)(void *, struct sandbox *, const struct err *),
                              void *context)
{
    return begin(sandboxes, id, spec, on_open, context);
}

static void tell_lost_later(void *argument)
{
    struct sandbox *sandbox = argument;
    if (sandbox->state == SB_LOST)
        tell_lost(sandbox);
}

void sandbox_on_lost(struct sandbox *sandbox, void (*on_lost)(void *, const struct err *),
                     void *context)
{
    sandbox->on_lost = on_lost;
    sandbox->lost_context = context;
    if (sandbox->state == SB_LOST && on_lost && !sandbox->lost_told)
        loop_defer(sandbox->sandboxes->loop, tell_lost_later, sandbox);
}

const char *sandbox_id(const struct sandbox *sandbox)
{
    return sandbox->id;
}

const char *sandbox_backend_name(const struct sandbox *sandbox)
{
    return sandbox->spec.backend;
}

void sandbox_facts(const struct sandbox *sandbox, struct json_writer *out)
{
    json_begin_object(out);
    json_set_text(out, "backend", sandbox->spec.backend);
    json_set_text(out, "id", sandbox->id);
    json_set_bool(out, "pool_hit", sandbox->pool_hit);
    json_set_int(out, "attempts", sandbox->attempts);
    if (sandbox->ready_ms) {
        json_set_int(out, "create_ms", (long long)(sandbox->ready_ms - sandbox->begun_ms));
        json_set_int(out, "queue_ms", (long long)(sandbox->begun_ms - sandbox->opened_ms));
    }
    struct json_doc doc = {0};
    if (json_read(&doc, str_of(sandbox->facts), NULL, NULL) == 0)
        json_set_raw(out, "details", str_of(sandbox->facts));
    json_doc_deinit(&doc);
    json_end_object(out);
}
