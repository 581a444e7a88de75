/* machine.c - the rooms, built in order and taken down in the opposite one.
 *
 *     signals -> store -> lanes -> per lane: sandboxes, gateway -> rollouts
 *
 * Signals first, because threads inherit what is blocked. Objects of a lane are made and unmade on
 * its thread. Closing: rollouts get their final events, then each lane's sandboxes go, then the
 * control loop stops; what is left is freed in straight line. */
#include "runtime/internal.h"

#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/file.h"
#include "base/mem.h"
#include "gateway/gate.h"

struct sandbox_options machine_sandbox_options(const struct config *config)
{
    size_t count = 0;
    const char *const *dirs = places_backend_dirs(&count);
    return (struct sandbox_options){
        .home = config->home,
        .program_dir = runtime_program_dir(),
        .backend_dirs = dirs,
        .backend_dir_count = count,
        .starting_max = (uint32_t)config->sandbox_starting_max,
        .create_ms_max = (uint32_t)config->sandbox_create_ms_max,
    };
}

struct model *machine_model(const struct config *config, const char *spec, const char *key_env,
                            struct err *err)
{
    /* The choices of gateway.model-api. */
    static const char *const apis[] = {"same",      "chat",   "messages",
                                       "responses", "google", "completions"};
    static const char *const engines[] = {"auto", "vllm", "vllm-generate", "sglang", "openai"};
    struct model_options options = {
        .key_env = key_env ? key_env : "POSTERN_MODEL_KEY",
        .key_file = config->gateway_key_file[0] ? config->gateway_key_file : NULL,
        .first_byte_ms_max = (uint32_t)config->gateway_first_byte_ms_max,
        .idle_ms_max = (uint32_t)config->gateway_idle_ms_max,
        .connect_ms_max = (uint32_t)config->gateway_connect_ms_max,
        .api = apis[config->gateway_model_api],
        .engine = engines[config->gateway_engine],
        .home = config->home,
        .thinking_off = config->gateway_thinking_off,
        .parallel_max = (uint32_t)config->gateway_server_parallel_max,
        .rate_max = (double)config->gateway_server_rate_max,
        .attempts_max = (uint32_t)config->gateway_retries_max + 1,
    };
    if (!key_env && (options.key_file || !getenv(options.key_env)))
        options.key_env = NULL;
    return model_open(spec, &options, err);
}

/* ---------------------------------------------------------------- building */
static void build_lane(void *argument)
{
    struct machine_lane *room = argument;
    struct sandbox_options sandbox_options = machine_sandbox_options(room->machine->config);
    struct gateway_options gateway_options = {
        .store = room->machine->store, .gate = room->machine->gate, .lines_ms = GATEWAY_LINES_MS};
    room->sandboxes = sandboxes_new(room->loop, &sandbox_options, &room->err);
    if (room->sandboxes)
        room->gateway = gateway_new(room->loop, &gateway_options, &room->err);
}

static size_t lane_count(const struct config *config)
{
    if (config->lanes)
        return (size_t)config->lanes;
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    return cores < 1 ? 1 : cores > 64 ? 64 : (size_t)cores;
}

static int build_lanes(struct machine *machine, struct err *err)
{
    size_t count = lane_count(machine->config);
    machine->lanes = lanes_new(count, err);
    if (!machine->lanes)
        return -1;
    machine->rooms = mem_zero(count * sizeof *machine->rooms);
    machine->room_count = count;
    for (size_t i = 0; i < count; i++) {
        struct machine_lane *room = &machine->rooms[i];
        room->machine = machine;
        room->loop = lanes_at(machine->lanes, i);
        loop_call(room->loop, build_lane, room);
        if (!room->sandboxes || !room->gateway)
            return err_copy(err, &room->err);
    }
    return 0;
}

static int build_rollouts(struct machine *machine, uint32_t parallel_max, struct err *err)
{
    const struct config *config = machine->config;
    struct rollout_lane *lanes = mem_zero(machine->room_count * sizeof *lanes);
    for (size_t i = 0; i < machine->room_count; i++)
        lanes[i] = (struct rollout_lane){.loop = machine->rooms[i].loop,
                                         .sandboxes = machine->rooms[i].sandboxes,
                                         .gateway = machine->rooms[i].gateway};
    struct rollouts_options options = {
        .home = config->home,
        .store = machine->store,
        .lanes = lanes,
        .lane_count = machine->room_count,
        .parallel_max = parallel_max ? parallel_max : (uint32_t)config->rollout_parallel_max,
        .queued_max = (uint32_t)config->rollout_queued_max,
        .provision_tries_max = (uint32_t)config->rollout_retries_max + 1,
        .wall_ms_max = (uint32_t)config->rollout_wall_ms_max,
        .setup_ms_max = (uint32_t)config->rollout_setup_ms_max,
        .verify_ms_max = (uint32_t)config->rollout_verify_ms_max,
        .log_bytes_max = (uint64_t)config->rollout_log_bytes_max,
        .artifact_bytes_max = (uint64_t)config->rollout_artifact_bytes_max,
        .memory_bytes_max = (uint64_t)config->sandbox_memory_bytes_max,
        .disk_bytes_max = (uint64_t)config->sandbox_disk_bytes_max,
        .pids_max = (uint32_t)config->sandbox_pids_max,
        .cpu_millis = (uint32_t)config->sandbox_cpu_millis,
        .pool = (uint32_t)config->sandbox_pool,
        .calls_max = (uint32_t)config->gateway_calls_max,
        .in_flight_max = (uint32_t)config->gateway_in_flight_max,
        .keepalive_ms = (uint32_t)config->gateway_keepalive_ms,
        .retry_grace_ms = (uint32_t)config->gateway_retry_grace_ms,
        .held_ms_max = (uint64_t)config->gateway_held_ms_max,
        .body_bytes_max = (size_t)config->gateway_body_bytes_max,
        .answer_bytes_max = (size_t)config->gateway_answer_bytes_max,
        .record_bytes_max = (uint64_t)config->gateway_record_bytes_max,
        .owner = machine->owner,
        .events = machine->gate != NULL, /* a server: somebody may want to hear of them */
        .starts_per_second_max = (uint32_t)config->rollout_starts_per_second_max,
        .calls_in_flight_max = (uint32_t)config->rollout_calls_in_flight_max,
        .queue_ms_max = (uint32_t)config->rollout_queue_ms_max,
        .carry = config->rollout_carry,
        .builder = config->sandbox_builder,
        .build_flags = config->sandbox_build_flags,
    };
    machine->rollouts = rollouts_new(machine->loop, &options, err);
    free(lanes);
    return machine->rollouts ? 0 : -1;
}

static void on_signal(struct loop_signal *signal_watch, int number)
{
    struct machine *machine = signal_watch->context;
    machine->on_signal(machine->context, number);
}

static int build(struct machine *machine, const struct machine_options *options, struct err *err)
{
    const int numbers[] = {SIGINT, SIGTERM};
    (void)signal(SIGPIPE, SIG_IGN);
    (void)fd_raise_limit();
    machine->loop = loop_new(err);
    if (machine->loop)
        machine->heap = loop_heap_start(machine->loop);
    if (!machine->loop ||
        loop_signal_start(machine->loop, &machine->signal, numbers, COUNT(numbers), on_signal,
                          machine, err) < 0 ||
        file_make_dirs(machine->config->home, 0755, err) < 0 || leftovers_own(machine, err) < 0)
        return -1;
    if (options->gate)
        machine->gate = gate_new(machine->loop, NULL);
    machine->store = store_open(machine->config->home, err);
    if (!machine->store || build_lanes(machine, err) < 0 ||
        build_rollouts(machine, options->parallel_max, err) < 0)
        return -1;
    return 0;
}

void machine_begin(struct machine *machine)
{
    leftovers_mark(machine);
    leftovers_sweep(machine);
}

struct machine *machine_open(const struct config *config, const struct machine_options *options,
                             struct err *err)
{
    struct machine *machine = mem_zero(sizeof *machine);
    machine->config = config;
    machine->owner_fd = -1;
    machine->on_signal = options->on_signal;
    machine->on_note = options->on_note;
    machine->resume = options->resume;
    pthread_mutex_init(&machine->claimed_lock, NULL);
    machine->context = options->context;
    if (build(machine, options, err) == 0)
        return machine;
    if (machine->loop) {
        machine_close(machine);
        loop_run(machine->loop);
    }
    machine_free(machine);
    return NULL;
}

/* ---------------------------------------------------------------- taking down */
static void lane_is_closed(void *argument)
{
    struct machine *machine = argument;
    if (--machine->closing_lanes == 0)
        loop_stop(machine->loop);
}

static void on_sandboxes_closed(void *context)
{
    struct machine_lane *room = context;
    room->sandboxes = NULL;
    gateway_free(room->gateway);
    room->gateway = NULL;
    loop_post(room->machine->loop, lane_is_closed, room->machine);
}

static void close_lane(void *argument)
{
    struct machine_lane *room = argument;
    if (room->sandboxes)
        sandboxes_close(room->sandboxes, on_sandboxes_closed, room);
    else
        on_sandboxes_closed(room);
}

static void close_lanes(void *argument)
{
    struct machine *machine = argument;
    machine->rollouts = NULL;
    machine->closing_lanes = machine->room_count;
    if (!machine->room_count)
        loop_stop(machine->loop);
    for (size_t i = 0; i < machine->room_count; i++) {
        struct machine_lane *room = &machine->rooms[i];
        if (room->loop)
            loop_post(room->loop, close_lane, room);
        else
            lane_is_closed(machine);
    }
}

void machine_close(struct machine *machine)
{
    if (machine->closing)
        return;
    machine->closing = true;
    if (machine->rollouts)
        rollouts_close(machine->rollouts, close_lanes, machine);
    else
        loop_defer(machine->loop, close_lanes, machine);
}

void machine_free(struct machine *machine)
{
    if (!machine)
        return;
    lanes_free(machine->lanes);
    if (machine->gate) {
        loop_once(machine->loop, 0); /* what the lanes still had to say to it */
        gate_free(machine->gate);
    }
    store_close(machine->store);
    if (machine->loop) {
        loop_signal_stop(&machine->signal);
        loop_heap_stop(machine->heap);
        loop_free(machine->loop);
    }
    if (machine->owner_path)
        (void)unlink(machine->owner_path);
    free(machine->owner_path);
    fd_close(&machine->owner_fd);
    map_deinit(&machine->claimed);
    pthread_mutex_destroy(&machine->claimed_lock);
    free(machine->rooms);
    free(machine);
}
