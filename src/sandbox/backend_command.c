/* backend_command.c - sandboxes behind any program whose standard input and output are the
 * porter's.
 *
 * A file in backends/ says which programs to run: to put the porter there, to create, to attach, to
 * destroy, to list. This file runs them in order. One place is one sandbox-to-be:
 *
 *     porter -> layer -> create -> live (attached)
 *        \_________\________\________\____-> ending -> destroy -> gone
 *
 * - The porter is put there once per backend: the first place runs [check] and [upload], the others
 * wait.
 * - attach holds a socket pair whose other end the manager gets. When the frames end, the program
 * has ended or is about to: its exit code and last words on standard error explain why
 * (command_explain).
 * - Ending closes nothing by force at first: the manager has closed its end, the porter sees the
 * end of its input, kills what runs inside and leaves, and so the program ends. When it does not,
 * it gets TERM and then KILL. Then [destroy] removes what is left; it has to succeed.
 * - A create that fails has run [destroy] before it says so.
 *
 * Nothing here knows ssh or podman. What to write in a file: docs/backends.md. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/check.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/list.h"
#include "base/log.h"
#include "base/mem.h"
#include "json/json.h"
#include "loop/loop.h"
#include "sandbox/backend.h"
#include "sandbox/backend_command_inner.h"
#include "sandbox/backend_command_layers.h"
#include "sandbox/process.h"

enum {
    END_GRACE_MS = 3000,  /* from the end of the frames until TERM */
    TERM_GRACE_MS = 2000, /* from TERM until KILL */
    DESTROY_TRIES = 3,    /* after a failed create */
    DESTROY_PAUSE_MS = 500,
    EXPLAIN_MS = 1000,
    FOUND_MAX = 10000,
};

struct listing {
    struct command *command;
    void (*on_done)(void *context, const struct sandbox_found *found, size_t count,
                    const struct err *err);
    void *context;
};

static void place_end(struct place *place);
static void explain(struct place *place);
static void place_destroy_step(struct place *place);
static void place_advance(struct place *place);
static void start_porter_step(struct command *command, enum command_step step);
static void stop_when_empty(struct command *command);

/* ---------------------------------------------------------------- the porter, once */

static struct place *place_in_state(struct command *command, enum place_state state)
{
    LIST_EACH (at, &command->places) {
        struct place *place = LIST_OF(at, struct place, link);
        if (place->state == state)
            return place;
    }
    return NULL;
}

static void porter_done(struct command *command, const struct err *err)
{
    command->porter_busy = false;
    command->porter_there = !err;
    /* From the start each time: what a place calls may change the list. */
    for (struct place *place; (place = place_in_state(command, PLACE_PORTER)) != NULL;) {
        if (!err) {
            place_advance(place);
            continue;
        }
        place->err = *err;
        place_end(place);
    }
    stop_when_empty(command);
}

static void on_upload_end(void *context, const struct process_end *end)
{
    struct command *command = context;
    command->porter_step = NULL;
    if (command_step_succeeded(end)) {
        porter_done(command, NULL);
        return;
    }
    struct err err = {0};
    command_step_error(command, STEP_UPLOAD, end, &err);
    porter_done(command, &err);
}

static void on_check_end(void *context, const struct process_end *end)
{
    struct command *command = context;
    command->porter_step = NULL;
    if (command_step_succeeded(end) || command->stopping) {
        porter_done(command, NULL);
        return;
    }
    /* Not there, or no way there: the upload will tell, with words. */
    start_porter_step(command, STEP_UPLOAD);
}

static void start_porter_step(struct command *command, enum command_step step)
{
    struct err err = {0};
    command->porter_step =
        command_step_start(command, NULL, step, -1, command->setup.spec.steps[step].timeout_ms,
                           step == STEP_CHECK ? on_check_end : on_upload_end, command, &err);
    if (!command->porter_step)
        porter_done(command, &err);
}

static void need_porter(struct command *command)
{
    if (command->porter_busy)
        return;
    command->porter_busy = true;
    start_porter_step(command,
                      command->setup.spec.steps[STEP_CHECK].argv ? STEP_CHECK : STEP_UPLOAD);
}

/* ---------------------------------------------------------------- the life of a place */

static struct place *place_new(struct command *command, const char *id)
{
    struct place *place = mem_zero(sizeof *place);
    place->command = command;
    snprintf(place->id, sizeof place->id, "%s", id);
    list_append(&command->places, &place->link);
    command->place_count++;
    return place;
}

static void place_free(void *argument)
{
    struct place *place = argument;
    free(place->label);
    free(place->image);
    free(place->hostname);
    free(place->layer);
    free(place->layer_name);
    free(place);
}

static struct place *place_find(struct command *command, const char *id)
{
    LIST_EACH (at, &command->places) {
        struct place *place = LIST_OF(at, struct place, link);
        if (strcmp(place->id, id) == 0)
            return place;
    }
    return NULL;
}

static void command_free(void *argument)
{
    struct command *command = argument;
    command_setup_deinit(&command->setup);
    command_layers_free(command->layers);
    free(command->home);
    free(command);
}

static void stop_when_empty(struct command *command)
{
    if (!command->stopping || command->place_count || command->porter_busy || command->errands ||
        command_layers_busy(command->layers))
        return;
    command->stopping = false;
    loop_defer(command->base.loop, command_free, command);
    command->on_stopped(command->stop_context);
}

/* The end of a place: both callbacks that may still be owed, creation's first. */
static void place_gone(struct place *place, const struct err *err)
{
    struct command *command = place->command;
    place->state = PLACE_GONE;
    loop_timer_stop(&place->timer);
    explain(place);
    list_remove(&place->link);
    command->place_count--;
    if (place->on_created) {
        if (place->on_destroyed && place->err.kind == ERR_NONE)
            err_set(&place->err, ERR_CANCELLED, "closed while it was being created");
        place->on_created(place->create_context, NULL, &place->err);
    }
    if (place->on_destroyed)
        place->on_destroyed(place->destroy_context, err);
    loop_defer(command->base.loop, place_free, place);
    stop_when_empty(command);
}

static void on_destroy_timer(struct loop_timer *timer)
{
    place_destroy_step(timer->context);
}

static void destroy_failed(struct place *place, const struct err *err)
{
    /* Somebody waits for the outcome and will try again; after a failed create that is our duty. */
    if (place->on_destroyed) {
        place_gone(place, err);
        return;
    }
    if (++place->destroy_tries < DESTROY_TRIES) {
        loop_timer_start(place->command->base.loop, &place->timer,
                         DESTROY_PAUSE_MS * place->destroy_tries, on_destroy_timer, place);
        return;
    }
    LOG_ERROR("sandbox", place->id, "left behind after a failed create: %s", err->text);
    place_gone(place, err);
}

static void on_destroy_end(void *context, const struct process_end *end)
{
    struct place *place = context;
    place->step = NULL;
    if (command_step_succeeded(end)) {
        place_gone(place, NULL);
        return;
    }
    struct err err = {0};
    command_step_error(place->command, STEP_DESTROY, end, &err);
    destroy_failed(place, &err);
}

static void place_destroy_step(struct place *place)
{
    struct command *command = place->command;
    place->state = PLACE_DESTROY;
    if (!command->setup.spec.steps[STEP_DESTROY].argv) {
        place_gone(place, NULL);
        return;
    }
    struct err err = {0};
    place->step = command_step_start(command, place, STEP_DESTROY, -1,
                                     command->setup.spec.steps[STEP_DESTROY].timeout_ms,
                                     on_destroy_end, place, &err);
    if (!place->step)
        destroy_failed(place, &err);
}

static void on_end_timer(struct loop_timer *timer)
{
    struct place *place = timer->context;
    if (place->attach)
        process_end_soon(place->attach, TERM_GRACE_MS);
}

/* From any state: stop what runs, then destroy. Whatever runs calls back when it has ended. */
static void place_end(struct place *place)
{
    if (place->state >= PLACE_ENDING)
        return;
    if (place->state == PLACE_LAYER)
        command_layers_forget(place->command->layers, place);
    place->state = PLACE_ENDING;
    if (place->step) {
        process_end_soon(place->step, TERM_GRACE_MS);
        return;
    }
    if (place->attach) {
        loop_timer_start(place->command->base.loop, &place->timer, END_GRACE_MS, on_end_timer,
                         place);
        return;
    }
    if (place->begun)
        place_destroy_step(place);
    else
        place_gone(place, NULL);
}

static void explain(struct place *place)
{
    void (*on_explained)(void *, const struct err *) = place->on_explained;
    loop_timer_stop(&place->explain_timer);
    place->on_explained = NULL;
    if (on_explained)
        on_explained(place->explain_context, place->attach_err.kind ? &place->attach_err : NULL);
}

static void on_attach_end(void *context, const struct process_end *end)
{
    struct place *place = context;
    place->attach = NULL;
    command_step_error(place->command, STEP_ATTACH, end, &place->attach_err);
    if (place->state != PLACE_ENDING && place->trusted) {
        /* Somebody may have removed the porter there: look again, which is worth another try. */
        place->command->porter_there = false;
        if (place->layer)
            command_layers_doubt(place->command->layers, place->layer);
        place->attach_err.kind = ERR_LOST;
    }
    if (place->state == PLACE_ENDING) {
        loop_timer_stop(&place->timer);
        place_destroy_step(place);
        return;
    }
    LOG_DEBUG("sandbox", place->id, "%s", place->attach_err.text);
    explain(place);
}

static void write_facts(const struct place *place, char *text, size_t size)
{
    const struct command_spec *spec = &place->command->setup.spec;
    OWN(buf) struct buf facts = {0};
    struct json_writer writer = {.out = &facts};
    json_begin_object(&writer);
    json_set_text(&writer, "file", spec->name);
    if (place->image[0])
        json_set_text(&writer, "image", place->image);
    json_set_text(&writer, "network",
                  spec->capabilities & SANDBOX_CAN_NETWORK_OFF ? "off" : "not restricted");
    json_end_object(&writer);
    snprintf(text, size, "%s", facts.size < size ? buf_text(&facts) : "{}");
}

/* The sandbox is there: run the program whose standard input and output are its porter's. */
static void place_attach(struct place *place)
{
    struct command *command = place->command;
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0) {
        err_errno(&place->err, "socket pair");
        place_end(place);
        return;
    }
    OWN(fd) int ours = pair[0];
    OWN(fd) int theirs = pair[1];
    if (fd_nonblocking(ours, true) < 0)
        err_errno(&place->err, "socket pair");
    else
        place->attach = command_step_start(command, place, STEP_ATTACH, theirs, 0, on_attach_end,
                                           place, &place->err);
    if (!place->attach) {
        place_end(place);
        return;
    }
    place->state = PLACE_LIVE;
    struct backend_link link = {.frames_in = ours, .frames_out = ours, .inlet = -1, .resolver = -1};
    (void)fd_take(&ours);
    memcpy(link.id, place->id, sizeof link.id);
    write_facts(place, link.facts, sizeof link.facts);
    void (*on_created)(void *, struct backend_link *, const struct err *) = place->on_created;
    place->on_created = NULL;
    on_created(place->create_context, &link, NULL);
}

static void on_create_end(void *context, const struct process_end *end)
{
    struct place *place = context;
    place->step = NULL;
    if (place->state == PLACE_ENDING) {
        place_destroy_step(place);
        return;
    }
    if (!command_step_succeeded(end)) {
        command_step_error(place->command, STEP_CREATE, end, &place->err);
        place_end(place);
        return;
    }
    place_attach(place);
}

/* From "porter and layer are there" on. */
static void place_make(struct place *place)
{
    struct command *command = place->command;
    place->begun = true;
    if (!command->setup.spec.steps[STEP_CREATE].argv) {
        place_attach(place);
        return;
    }
    place->state = PLACE_CREATE;
    place->step = command_step_start(command, place, STEP_CREATE, -1,
                                     command->setup.spec.steps[STEP_CREATE].timeout_ms,
                                     on_create_end, place, &place->err);
    if (!place->step)
        place_end(place);
}

static void on_layer(void *context, const struct err *err)
{
    struct place *place = context;
    if (!err) {
        place_make(place);
        return;
    }
    place->err = *err;
    place_end(place);
}

/* From "the porter is there" on. */
static void place_advance(struct place *place)
{
    struct command *command = place->command;
    if (!place->layer || !command->setup.spec.steps[STEP_LAYER_UPLOAD].argv) {
        place_make(place);
        return;
    }
    place->state = PLACE_LAYER;
    command_layers_need(command->layers, place->layer, on_layer, place);
}

/* ---------------------------------------------------------------- what layers need of us */

static bool layer_has(void *owner, enum command_step step)
{
    return ((struct command *)owner)->setup.spec.steps[step].argv != NULL;
}

static struct process *layer_start(void *owner, enum command_step step, const char *dir, int input,
                                   void (*on_end)(void *, const struct process_end *),
                                   void *context, struct err *err)
{
    struct command *command = owner;
    OWN(mem) char *name = command_layer_name(dir);
    struct place nobody = {.layer = (char *)dir, .layer_name = name};
    return command_step_start(command, &nobody, step, input,
                              command->setup.spec.steps[step].timeout_ms, on_end, context, err);
}

static void layer_describe(void *owner, enum command_step step, const struct process_end *end,
                           struct err *err)
{
    command_step_error(owner, step, end, err);
}

static const char *const *layer_environment(void *owner)
{
    return (const char *const *)((struct command *)owner)->setup.env;
}

static const char *layer_scratch(void *owner)
{
    return ((struct command *)owner)->home;
}

static void layer_idle(void *owner)
{
    stop_when_empty(owner);
}

static const struct command_layer_host layer_host = {
    .has = layer_has,
    .start = layer_start,
    .describe = layer_describe,
    .environment = layer_environment,
    .scratch_dir = layer_scratch,
    .on_idle = layer_idle,
};

/* ---------------------------------------------------------------- beginning */

static void place_begin(void *argument)
{
    struct place *place = argument;
    struct command *command = place->command;
    if (place->on_destroyed || place->err.kind) {
        place_gone(place, NULL); /* closed before it began, or refused: nothing exists */
        return;
    }
    place->trusted = command->porter_there;
    if (!command->setup.spec.steps[STEP_UPLOAD].argv || command->porter_there)
        place_advance(place);
    else
        need_porter(command);
}

/* ---------------------------------------------------------------- the descriptor's verbs */

static unsigned command_capabilities(struct backend *backend)
{
    return ((struct command *)backend)->setup.spec.capabilities;
}

static void command_create(struct backend *backend, const char *id, const struct sandbox_spec *spec,
                           void (*on_created)(void *, struct backend_link *, const struct err *),
                           void *context)
{
    struct command *command = (struct command *)backend;
    struct place *place = place_new(command, id);
    place->on_created = on_created;
    place->create_context = context;
    place->label = mem_dup(spec->label ? spec->label : "");
    place->hostname = mem_dup(spec->hostname ? spec->hostname : "sandbox");
    const char *root = spec->root && strcmp(spec->root, "host") != 0 ? spec->root : "";
    place->image = mem_dup(strncmp(root, "image:", 6) == 0 ? root + 6 : root);
    place->root_user = spec->root_user;
    if (spec->layer_count) {
        place->layer = mem_dup(spec->layers[0]);
        place->layer_name = command_layer_name(spec->layers[0]);
    }
    if (spec->memory_bytes_max)
        snprintf(place->memory, sizeof place->memory, "%llu",
                 (unsigned long long)spec->memory_bytes_max);
    if (spec->pids_max)
        snprintf(place->pids, sizeof place->pids, "%u", spec->pids_max);
    if (spec->cpu_millis)
        snprintf(place->cpus, sizeof place->cpus, "%u.%03u", spec->cpu_millis / 1000,
                 spec->cpu_millis % 1000);
    if (spec->disk_bytes_max)
        snprintf(place->disk, sizeof place->disk, "%llu", (unsigned long long)spec->disk_bytes_max);
    if (place->image[0] && command->setup.spec.image == COMMAND_IMAGE_NONE)
        err_set(&place->err, ERR_UNSUPPORTED,
                "backend '%s' has no images, so '%s' cannot be its root", command->setup.spec.name,
                root);
    else if (spec->layer_count > 1)
        err_set(&place->err, ERR_UNSUPPORTED, "backend '%s' mounts one layer, not %zu",
                command->setup.spec.name, spec->layer_count);
    else if (!place->image[0] && command->setup.spec.image == COMMAND_IMAGE_REQUIRED)
        err_set(&place->err, ERR_INPUT, "backend '%s' needs an image as root (\"image:NAME\")",
                command->setup.spec.name);
    else if (command->setup.spec.parallel_max &&
             command->place_count > command->setup.spec.parallel_max)
        err_set(&place->err, ERR_CAPACITY,
                "backend '%s' allows %u sandbox%s at a time (parallel_max)",
                command->setup.spec.name, command->setup.spec.parallel_max,
                command->setup.spec.parallel_max == 1 ? "" : "es");
    loop_defer(backend->loop, place_begin, place);
}

static void end_later(void *argument)
{
    place_end(argument);
}

static void command_destroy(struct backend *backend, const char *id, sandbox_done on_done,
                            void *context)
{
    struct command *command = (struct command *)backend;
    struct place *place = place_find(command, id);
    if (!place) {
        /* Of a former server, or a second try. */
        place = place_new(command, id);
        place->state = PLACE_LIVE;
        place->begun = true;
    }
    CHECK(!place->on_destroyed);
    place->on_destroyed = on_done;
    place->destroy_context = context;
    loop_defer(backend->loop, end_later, place);
}

/* "id TAB label TAB age in seconds"; lines that are not ours are passed over. */
static size_t read_listing(char *text, struct sandbox_found *found, size_t found_max)
{
    size_t count = 0;
    char *line_rest = NULL;
    for (char *line = strtok_r(text, "\n", &line_rest); line && count < found_max;
         line = strtok_r(NULL, "\n", &line_rest)) {
        if (strncmp(line, "sb-", 3) != 0)
            continue;
        char *label = strchr(line, '\t'), *age = NULL;
        if (label) {
            *label++ = '\0';
            age = strchr(label, '\t');
            if (age)
                *age++ = '\0';
        }
        long long seconds = 0;
        if (age)
            (void)str_to_long(str_trim(str_of(age)), &seconds);
        found[count++] = (struct sandbox_found){
            .id = line,
            .label = label ? label : "",
            .age_ms = seconds > 0 ? (uint64_t)seconds * 1000 : 0,
        };
    }
    return count;
}

static void listing_done(struct listing *listing, const struct sandbox_found *found, size_t count,
                         const struct err *err)
{
    struct command *command = listing->command;
    command->errands--;
    listing->on_done(listing->context, found, count, err);
    free(listing);
    stop_when_empty(command);
}

static void on_list_end(void *context, const struct process_end *end)
{
    struct listing *listing = context;
    if (!command_step_succeeded(end)) {
        struct err err = {0};
        command_step_error(listing->command, STEP_LIST, end, &err);
        listing_done(listing, NULL, 0, &err);
        return;
    }
    OWN(mem) char *text = str_dup(end->out);
    OWN(mem) struct sandbox_found *found = mem_zero(FOUND_MAX * sizeof *found);
    size_t count = read_listing(text, found, FOUND_MAX);
    /* Those this server has itself are not left over. */
    size_t kept = 0;
    for (size_t i = 0; i < count; i++)
        if (!place_find(listing->command, found[i].id))
            found[kept++] = found[i];
    listing_done(listing, found, kept, NULL);
}

static void list_nothing(void *argument)
{
    listing_done(argument, NULL, 0, NULL);
}

static void command_find(struct backend *backend,
                         void (*on_done)(void *, const struct sandbox_found *, size_t,
                                         const struct err *),
                         void *context)
{
    struct command *command = (struct command *)backend;
    struct listing *listing = mem_zero(sizeof *listing);
    *listing = (struct listing){.command = command, .on_done = on_done, .context = context};
    command->errands++;
    struct err err = {0};
    if (command->setup.spec.steps[STEP_LIST].argv &&
        command_step_start(command, NULL, STEP_LIST, -1,
                           command->setup.spec.steps[STEP_LIST].timeout_ms, on_list_end, listing,
                           &err))
        return;
    if (err.kind)
        LOG_WARN("sandbox", NULL, "%s", err.text);
    loop_defer(backend->loop, list_nothing, listing);
}

static void stop_later(void *argument)
{
    struct command *command = argument;
    command->errands++; /* so that the last place to go does not free it under us */
    for (int state = PLACE_PORTER; state < PLACE_ENDING; state++)
        for (struct place *place;
             (place = place_in_state(command, (enum place_state)state)) != NULL;)
            place_end(place);
    command->errands--;
    stop_when_empty(command);
}

static void command_stop(struct backend *backend, void (*on_stopped)(void *), void *context)
{
    struct command *command = (struct command *)backend;
    command->stopping = true;
    command->on_stopped = on_stopped;
    command->stop_context = context;
    if (command->porter_step)
        process_end_soon(command->porter_step, TERM_GRACE_MS);
    command_layers_stop(command->layers);
    loop_defer(backend->loop, stop_later, command);
}

static void on_explain_timer(struct loop_timer *timer)
{
    explain(timer->context);
}

static void command_explain(struct backend *backend, const char *id,
                            void (*on_done)(void *, const struct err *), void *context)
{
    struct place *place = place_find((struct command *)backend, id);
    CHECK(place && !place->on_explained);
    place->on_explained = on_done;
    place->explain_context = context;
    loop_timer_start(backend->loop, &place->explain_timer, place->attach ? EXPLAIN_MS : 0,
                     on_explain_timer, place);
}

static struct backend *command_start(struct loop *loop, const struct sandbox_options *options,
                                     const char *name, struct err *err)
{
    struct command *command = mem_zero(sizeof *command);
    command->base = (struct backend){.class = &backend_command, .loop = loop};
    list_init(&command->places);
    command->layers = command_layers_new(loop, &layer_host, command);
    command->home = mem_dup(options->home ? options->home : "/tmp");
    if (command_setup(&command->setup, options, name, err) < 0) {
        command_free(command);
        return NULL;
    }
    return &command->base;
}

const struct backend_class backend_command = {
    .name = "command",
    .summary = "any program whose standard input and output are the porter's (backends/*.toml)",
    .layer_ms_max = 20 * 60 * 1000,
    .start = command_start,
    .stop = command_stop,
    .capabilities = command_capabilities,
    .create = command_create,
    .destroy = command_destroy,
    .find = command_find,
    .explain = command_explain,
};
