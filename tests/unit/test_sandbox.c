/* test_sandbox.c - the manager, with a backend of the test's own: what it does when creation fails,
 * hangs or comes too late, when the porter is hostile, when descriptors are out. The clock is
 * virtual where only time matters. */
#include "sandbox_stage.h"

#include <sys/resource.h>

#include "base/fd.h"
#include "base/list.h"
#include "sandbox/backend.h"

/* ---------------------------------------------------------------- a backend to play with */

struct fake {
    struct backend base;
};

static struct {
    unsigned capabilities;
    enum err_kind fail_kind; /* creates fail so ... */
    int fail_count;          /* ... this many times */
    bool create_hangs;       /* until it is destroyed */
    bool create_late;        /* hangs, but then succeeds all the same */
    bool destroy_hangs;
    int destroy_fails;       /* this many times */
    const char *porter_says; /* instead of a porter: these bytes */
    /* what happened */
    int creates, destroys, links;
    uint64_t create_at[16];
    int inlet_port, resolver_port;
} fake;

struct request {
    struct list link;
    struct backend *backend;
    char id[40];
    void (*on_created)(void *, struct backend_link *, const struct err *);
    sandbox_done on_done;
    void *context;
};
static struct list hanging;

static struct stage *fake_stage;
static const struct backend_class fake_class;

static struct backend *fake_start(struct loop *loop, const struct sandbox_options *options,
                                  const char *name, struct err *err)
{
    (void)options;
    (void)name;
    (void)err;
    struct fake *backend = mem_zero(sizeof *backend);
    backend->base = (struct backend){.class = &fake_class, .loop = loop};
    return &backend->base;
}

struct stopping {
    struct backend *backend;
    void (*on_stopped)(void *);
    void *context;
};

static void stop_now(void *argument)
{
    struct stopping *stopping = argument;
    stopping->on_stopped(stopping->context);
    free(stopping->backend);
    free(stopping);
}

static void fake_stop(struct backend *backend, void (*on_stopped)(void *), void *context)
{
    struct stopping *stopping = mem_zero(sizeof *stopping);
    *stopping = (struct stopping){backend, on_stopped, context};
    loop_defer(backend->loop, stop_now, stopping);
}

static unsigned fake_capabilities(struct backend *backend)
{
    (void)backend;
    return fake.capabilities;
}

static int bound(int type, int *port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof address;
    int fd = socket(AF_INET, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (bind(fd, (struct sockaddr *)&address, size) < 0 ||
        (type == SOCK_STREAM && listen(fd, 64) < 0) ||
        getsockname(fd, (struct sockaddr *)&address, &size) < 0)
        abort();
    *port = ntohs(address.sin_port);
    return fd;
}

/* The far end of the frames: a real porter, or a few bytes. */
static void far_end(int fd)
{
    if (fake.porter_says) {
        (void)fd_write_all(fd, fake.porter_says, strlen(fake.porter_says));
        return; /* and stays open: what it said is what counts */
    }
    if (fork() == 0) {
        char path[700], number[16];
        snprintf(path, sizeof path, "%s/postern-porter", fake_stage->programs);
        snprintf(number, sizeof number, "%d", fd);
        fcntl(fd, F_SETFD, 0);
        execl(path, path, "--fd", number, "--inlet-port", "1", NULL);
        _exit(127);
    }
    close(fd);
}

static void make_link(struct request *request)
{
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
        abort();
    far_end(pair[1]);
    struct backend_link link = {
        .frames_in = pair[0], .frames_out = pair[0], .inlet = -1, .resolver = -1};
    link.inlet = bound(SOCK_STREAM, &fake.inlet_port);
    link.resolver = bound(SOCK_DGRAM, &fake.resolver_port);
    strcpy(link.facts, "{\"fake\":true}");
    fake.links++;
    request->on_created(request->context, &link, NULL);
}

static void create_now(void *argument)
{
    struct request *request = argument;
    if (fake.fail_count) {
        fake.fail_count--;
        struct err err = {0};
        err_set(&err, fake.fail_kind, "as the test wants it");
        request->on_created(request->context, NULL, &err);
    } else {
        make_link(request);
    }
    free(request);
}

static void fake_create(struct backend *backend, const char *id, const struct sandbox_spec *spec,
                        void (*on_created)(void *, struct backend_link *, const struct err *),
                        void *context)
{
    (void)spec;
    struct request *request = mem_zero(sizeof *request);
    *request = (struct request){.backend = backend, .on_created = on_created, .context = context};
    snprintf(request->id, sizeof request->id, "%s", id);
    if (fake.creates < (int)COUNT(fake.create_at))
        fake.create_at[fake.creates] = loop_now_ms(backend->loop);
    fake.creates++;
    if (fake.create_hangs || fake.create_late)
        list_append(&hanging, &request->link);
    else
        loop_defer(backend->loop, create_now, request);
}

static void destroy_now(void *argument)
{
    struct request *request = argument;
    struct err err = {0};
    LIST_EACH (at, &hanging) {
        struct request *create = LIST_OF(at, struct request, link);
        if (strcmp(create->id, request->id) != 0)
            continue;
        list_remove(&create->link);
        if (fake.create_late) {
            make_link(create);
        } else {
            err_set(&err, ERR_CANCELLED, "destroyed");
            create->on_created(create->context, NULL, &err);
        }
        free(create);
    }
    err = (struct err){0};
    if (fake.destroy_fails > 0) {
        fake.destroy_fails--;
        err_set(&err, ERR_SYSTEM, "it is stuck");
    }
    request->on_done(request->context, err.kind ? &err : NULL);
    free(request);
}

static void fake_destroy(struct backend *backend, const char *id, sandbox_done on_done,
                         void *context)
{
    fake.destroys++;
    if (fake.destroy_hangs)
        return;
    struct request *request = mem_zero(sizeof *request);
    *request = (struct request){.backend = backend, .on_done = on_done, .context = context};
    snprintf(request->id, sizeof request->id, "%s", id);
    loop_defer(backend->loop, destroy_now, request);
}

static const struct backend_class fake_class = {
    .name = "fake",
    .summary = "for tests",
    .start = fake_start,
    .stop = fake_stop,
    .capabilities = fake_capabilities,
    .create = fake_create,
    .destroy = fake_destroy,
};

static void begin(struct stage *stage, bool is_virtual)
{
    struct err err = {0};
    stage_begin(stage, NULL);
    const char *reason = stage_skip_reason(stage);
    if (reason)
        SKIP("%s", reason);
    fake_stage = stage;
    list_init(&hanging);
    backend_register(&fake_class);
    struct sandbox_options options = {.program_dir = stage->programs};
    stage->loop = is_virtual ? loop_new_virtual(&err) : loop_new(&err);
    stage->boxes = sandboxes_new(stage->loop, &options, &err);
    stage->spec = (struct sandbox_spec){.backend = "fake"};
}

/* ---------------------------------------------------------------- creating */

TEST(a_sandbox_opens_runs_and_closes)
{
    struct stage stage;
    struct err err = {0};
    begin(&stage, false);
    EXPECT_INT(stage_open(&stage, &stage.spec, &stage.box, &err), 0);
    struct result result = stage_run(
        &stage, stage.box, (struct sandbox_command){ARGV("/bin/echo", "hello")}, STR_NONE);
    EXPECT_TEXT(result.out, "hello\n");
    EXPECT_INT(stage_close(&stage, stage.box, &err), 0);
    EXPECT_INT(fake.destroys, 1);
    stage_end(&stage);
}

TEST(pauses_between_attempts_grow_and_end_at_the_deadline)
{
    struct stage stage;
    struct err err = {0};
    begin(&stage, true);
    fake.fail_kind = ERR_CAPACITY;
    fake.fail_count = 100;
    EXPECT(stage_open(&stage, &stage.spec, &stage.box, &err) < 0);
    EXPECT_INT(err.kind, ERR_CAPACITY);
    EXPECT(strstr(err.text, "as the test wants it") != NULL);
    EXPECT_INT(fake.creates, 6);
    for (int i = 1; i < 6; i++) {
        uint64_t pause = fake.create_at[i] - fake.create_at[i - 1], usual = 200u << (i - 1);
        usual = usual < 5000 ? usual : 5000;
        EXPECT(pause >= usual / 2 && pause <= usual * 3 / 2 + 1);
    }
    EXPECT_INT(fake.destroys, 0); /* a failed create left nothing */
    stage_end(&stage);
}

TEST(what_cannot_be_cured_is_not_tried_again)
{
    static const enum err_kind kinds[] = {ERR_INPUT,    ERR_NOT_FOUND, ERR_DENIED, ERR_UNSUPPORTED,
                                          ERR_PROTOCOL, ERR_SYSTEM,    ERR_LIMIT,  ERR_CONFLICT};
    struct stage stage;
    struct err err = {0};
    begin(&stage, true);
    for (size_t i = 0; i < COUNT(kinds); i++) {
        fake.fail_kind = kinds[i];
        fake.fail_count = 1;
        fake.creates = 0;
        EXPECT(stage_open(&stage, &stage.spec, &stage.box, &err) < 0);
        EXPECT_INT(err.kind, kinds[i]);
        EXPECT_INT(fake.creates, 1);
    }
    stage_end(&stage);
}

TEST(a_create_that_hangs_is_destroyed_at_the_deadline)
{
    struct stage stage;
    struct err err = {0};
    begin(&stage, true);
    fake.create_hangs = true;
    EXPECT(stage_open(&stage, &stage.spec, &stage.box, &err) < 0);
    EXPECT_INT(err.kind, ERR_TIMEOUT);
    EXPECT_INT(fake.destroys, 1);
    stage_end(&stage);
}

TEST(a_link_that_comes_after_the_close_is_closed_and_the_owner_hears_nothing)
{
    struct stage stage;
    begin(&stage, false);
    fake.create_late = true;
    struct opening opening = {0};
    struct waiting closing = {0};
    struct sandbox *box = sandbox_open(stage.boxes, &stage.spec, stage_on_open, &opening);
    loop_once(stage.loop, 0);
    sandbox_close(box, stage_on_done, &closing);
    EXPECT(!closing.done);
    stage_until(&stage, &closing.done);
    EXPECT_INT(fake.links, 1);
    EXPECT(!opening.done);
    stage_end(&stage);
}

TEST(a_refused_sandbox_that_is_closed_at_once_is_silent)
{
    struct stage stage;
    begin(&stage, false);
    struct opening opening = {0};
    struct waiting closing = {0};
    struct sandbox_spec spec = {.backend = "fake", .memory_bytes_max = 1 << 20};
    struct sandbox *box = sandbox_open(stage.boxes, &spec, stage_on_open, &opening);
    EXPECT(!opening.done);
    sandbox_close(box, stage_on_done, &closing);
    stage_until(&stage, &closing.done);
    EXPECT(!opening.done);
    EXPECT_INT(fake.creates, 0);
    stage_end(&stage);
}

TEST(a_queued_sandbox_can_be_closed_before_its_turn)
{
    struct stage stage;
    begin(&stage, true);
    fake.create_hangs = true;
    struct opening openings[40] = {0};
    struct sandbox *boxes[40];
    for (size_t i = 0; i < COUNT(boxes); i++)
        boxes[i] = sandbox_open(stage.boxes, &stage.spec, stage_on_open, &openings[i]);
    loop_once(stage.loop, 0);
    EXPECT_INT(fake.creates, 16); /* no more start at once unless asked for */
    struct waiting closing = {0};
    sandbox_close(boxes[39], stage_on_done, &closing);
    stage_until(&stage, &closing.done);
    EXPECT_INT(fake.creates, 16);
    stage_end(&stage);
    EXPECT_INT(fake.creates, 16); /* those in the queue were never begun */
    EXPECT_INT(fake.destroys, 16);
}

TEST(what_is_no_porter_is_refused_and_cleared_away)
{
    struct stage stage;
    struct err err = {0};
    begin(&stage, false);
    fake.porter_says = "HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
    EXPECT(stage_open(&stage, &stage.spec, &stage.box, &err) < 0);
    EXPECT_INT(err.kind, ERR_PROTOCOL);
    EXPECT_INT(fake.creates, 1);
    EXPECT_INT(fake.destroys, 1);
    stage_end(&stage);
}

/* ---------------------------------------------------------------- destroying */

TEST(a_destroy_is_tried_until_it_works)
{
    struct stage stage;
    struct err err = {0};
    begin(&stage, false);
    EXPECT_INT(stage_open(&stage, &stage.spec, &stage.box, &err), 0);
    fake.destroy_fails = 2;
    EXPECT(stage_close(&stage, stage.box, &err) < 0);
    EXPECT_TEXT(err.text, "it is stuck");
    stage_close_manager(&stage);
    EXPECT_INT(fake.destroys, 3);
    stage_end(&stage);
}

TEST(closing_the_manager_does_not_wait_for_ever)
{
    struct stage stage;
    struct opening opening = {0};
    begin(&stage, true);
    fake.create_hangs = fake.destroy_hangs = true;
    (void)sandbox_open(stage.boxes, &stage.spec, stage_on_open, &opening);
    loop_once(stage.loop, 0);
    uint64_t before = loop_now_ms(stage.loop);
    bool closed = false;
    sandboxes_close(stage.boxes, stage_set, &closed);
    stage_until(&stage, &closed);
    EXPECT(loop_now_ms(stage.loop) - before <= 30000);
    EXPECT(!opening.done);
    loop_once(stage.loop, 0);
    loop_free(stage.loop);
    stage.boxes = NULL;
    stage_end(&stage);
}

/* ---------------------------------------------------------------- what comes out */

static int connect_to(int port)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_addr = {htonl(INADDR_LOOPBACK)},
                                  .sin_port = htons((uint16_t)port)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(fd, (struct sockaddr *)&address, sizeof address) < 0)
        abort();
    return fd;
}

static int taken_count;

static void take(void *context, int fd)
{
    (void)context;
    taken_count++;
    close(fd);
}

TEST(an_inlet_out_of_descriptors_waits_and_does_not_spin)
{
    struct stage stage;
    struct err err = {0};
    begin(&stage, false);
    EXPECT_INT(stage_open(&stage, &stage.spec, &stage.box, &err), 0);
    int clients[3];
    for (int i = 0; i < 3; i++)
        clients[i] = connect_to(fake.inlet_port);
    loop_once(stage.loop, 0);
    EXPECT_INT(taken_count, 0); /* nobody takes them yet */
    struct rlimit old, low;
    getrlimit(RLIMIT_NOFILE, &old);
    low = (struct rlimit){.rlim_cur = 3, .rlim_max = old.rlim_max};
    setrlimit(RLIMIT_NOFILE, &low);
    sandbox_on_inlet(stage.box, take, NULL);
    loop_once(stage.loop, 20);
    int quiet = 0;
    for (int i = 0; i < 5; i++) {
        uint64_t before = loop_now_ms(stage.loop);
        loop_once(stage.loop, 30);
        loop_once(stage.loop, 0);
        quiet += loop_now_ms(stage.loop) > before;
    }
    EXPECT_INT(taken_count, 0);
    EXPECT(quiet >= 3); /* ticks waited instead of returning at once */
    setrlimit(RLIMIT_NOFILE, &old);
    while (taken_count < 3)
        loop_once(stage.loop, 1000);
    for (int i = 0; i < 3; i++)
        close(clients[i]);
    stage_end(&stage);
}

TEST(the_inlet_can_be_given_back_and_taken_again)
{
    struct stage stage;
    struct err err = {0};
    begin(&stage, false);
    EXPECT_INT(stage_open(&stage, &stage.spec, &stage.box, &err), 0);
    sandbox_on_inlet(stage.box, take, NULL);
    int first = connect_to(fake.inlet_port);
    while (taken_count < 1)
        loop_once(stage.loop, 1000);
    sandbox_on_inlet(stage.box, NULL, NULL);
    int second = connect_to(fake.inlet_port);
    loop_once(stage.loop, 20);
    EXPECT_INT(taken_count, 1);
    sandbox_on_inlet(stage.box, take, NULL);
    while (taken_count < 2)
        loop_once(stage.loop, 1000);
    close(first);
    close(second);
    stage_end(&stage);
}

TEST(the_resolver_survives_rubbish_and_counts_what_it_understands)
{
    struct stage stage;
    struct err err = {0};
    begin(&stage, false);
    EXPECT_INT(stage_open(&stage, &stage.spec, &stage.box, &err), 0);
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_addr = {htonl(INADDR_LOOPBACK)},
                                  .sin_port = htons((uint16_t)fake.resolver_port)};
    OWN(fd) int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    EXPECT_INT(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
    unsigned seed = 7;
    for (int i = 0; i < 200; i++) {
        unsigned char rubbish[64];
        for (size_t at = 0; at < sizeof rubbish; at++)
            rubbish[at] = (unsigned char)rand_r(&seed);
        (void)send(fd, rubbish, (size_t)i % sizeof rubbish, 0);
    }
    static const unsigned char query[] = {9, 9, 1,   0, 0,   1,   0, 0, 0, 0, 0,
                                          0, 1, 'x', 2, 'y', 'z', 0, 0, 1, 0, 1};
    EXPECT_INT(send(fd, query, sizeof query, 0), sizeof query);
    unsigned char answer[512] = {0};
    while (answer[0] != 9 || answer[1] != 9) {
        loop_once(stage.loop, 10);
        while (recv(fd, answer, sizeof answer, 0) > 0 && (answer[0] != 9 || answer[1] != 9))
            ;
    }
    EXPECT_INT(answer[3] & 15, 3);
    OWN(buf) struct buf text = {0};
    struct json_writer writer = {.out = &text};
    sandbox_lookups(stage.box, &writer);
    EXPECT(strstr(buf_text(&text), "\"x.yz\":1") != NULL);
    stage_end(&stage);
}

TEST(a_sandbox_can_be_closed_from_any_of_its_callbacks)
{
    struct stage stage;
    struct err err = {0};
    begin(&stage, false);
    for (int i = 0; i < 3; i++) {
        EXPECT_INT(stage_open(&stage, &stage.spec, &stage.box, &err), 0);
        struct result result =
            stage_run(&stage, stage.box, (struct sandbox_command){ARGV("/bin/true")}, STR_NONE);
        EXPECT_INT(result.exit.code, 0);
        sandbox_close(stage.box, NULL, NULL);
    }
    stage_end(&stage);
    EXPECT_INT(fake.destroys, 3);
}
