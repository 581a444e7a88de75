/* test_sandbox_resume.c - a server is killed with SIGKILL while a command runs, again and again;
 * each time the next one takes the sandbox over. Not a byte of what goes in and comes out may be
 * lost or doubled, whatever was half-way in a socket at the moment of death. */
#include "sandbox_stage.h"

#include <dirent.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "base/fd.h"

static const struct target target_local = {
    .name = "local", .backend = "local", .prepare = prepare_local};

static struct stage the_stage, *stage = &the_stage;

#define BYTES (24u << 20)
#define KILLS 12

/* What survives the servers: memory that is shared with them. */
struct shared {
    char id[64];
    bool begun, over, kept_over;
    int code;
    uint64_t taken; /* bytes of output that were seen to */
    uint64_t kept_from, kept_to, kept_input;
    char error[200];
    char bytes[BYTES + 65536];
};
static struct shared *shared;

static void begin(void)
{
    stage_begin(stage, &target_local);
    const char *reason = stage_skip_reason(stage);
    if (!reason)
        reason = prepare_local(stage);
    if (reason) {
        stage_end(stage);
        SKIP("%s", reason);
    }
    stage->spec.backend = "local";
    if (getuid() != 0)
        stage->spec.isolation = SANDBOX_ISOLATION_NO_LIMITS;
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        abort();
}

static void open_shared(void)
{
    struct err err = {0};
    static char home[128];
    snprintf(home, sizeof home, "%s/home", stage->dir);
    (void)mkdir(home, 0755);
    struct sandbox_options options = {.home = home, .program_dir = stage->programs};
    stage->loop = loop_new(&err);
    stage->boxes = stage->loop ? sandboxes_new(stage->loop, &options, &err) : NULL;
    if (!stage->boxes)
        abort();
}

static char byte_at(uint64_t position)
{
    return (char)('a' + (position * 2654435761u >> 16) % 26);
}

/* ---------------------------------------------------------------- one server's life */
static uint64_t given; /* of the input, by all servers together */
static struct sandbox_job *job;

static void feed(void)
{
    static char piece[40000];
    while (given < BYTES) {
        size_t size = BYTES - given < sizeof piece ? (size_t)(BYTES - given) : sizeof piece;
        for (size_t i = 0; i < size; i++)
            piece[i] = byte_at(given + i);
        given += size;
        if (sandbox_job_write(job, str_make(piece, size)) > 0)
            return;
    }
    sandbox_job_end_input(job);
}

static void on_drain(void *context)
{
    (void)context;
    feed();
}

static void on_output(void *context, int stream, struct str data)
{
    (void)context;
    (void)stream;
    if (shared->taken + data.size > sizeof shared->bytes)
        abort();
    memcpy(shared->bytes + shared->taken, data.data, data.size);
    shared->taken += data.size;
}

static void on_exit_of_job(void *context, const struct sandbox_exit *exit)
{
    (void)context;
    shared->code = sandbox_exit_code(exit);
    snprintf(shared->error, sizeof shared->error, "%s", exit->text);
    shared->over = true;
}

static const struct sandbox_job_handlers handlers = {
    .on_output = on_output, .on_exit = on_exit_of_job, .on_drain = on_drain};

static struct sandbox *adopt(struct err *err)
{
    struct opening opening = {0};
    (void)sandbox_adopt(stage->boxes, shared->id, &stage->spec, stage_on_open, &opening);
    stage_until(stage, &opening.done);
    if (!opening.box)
        err_copy(err, &opening.err);
    return opening.box;
}

static void serve(const char *shell)
{
    struct err err = {0};
    open_shared();
    if (!shared->begun) {
        if (stage_open(stage, &stage->spec, &stage->box, &err) < 0)
            _exit(3);
        snprintf(shared->id, sizeof shared->id, "%s", sandbox_id(stage->box));
        struct sandbox_command command = {.shell = shell, .stdin_open = true, .keep = true};
        job = sandbox_run(stage->box, &command, &handlers, NULL);
        shared->begun = true;
    } else {
        struct sandbox_kept kept;
        stage->box = adopt(&err);
        if (!stage->box || !sandbox_kept(stage->box, 0, &kept)) {
            snprintf(shared->error, sizeof shared->error, "%s", err.text);
            _exit(4);
        }
        shared->kept_from = kept.from;
        shared->kept_to = kept.to;
        shared->kept_input = kept.input;
        shared->kept_over = kept.over;
        if (kept.from > shared->taken || kept.to < shared->taken)
            _exit(5);
        given = kept.input;
        job = sandbox_reattach(stage->box, 0, shared->taken, &handlers, NULL);
    }
    feed();
    while (!shared->over)
        loop_once(stage->loop, 100);
}

/* A server that dies after a while, wherever it is; 0: when the command is over. True: it got to
 * the end. */
static bool run_server(const char *shell, unsigned life_us)
{
    pid_t pid = fork();
    if (pid == 0) {
        serve(shell);
        _exit(0);
    }
    uint64_t until = clock_mono_ms() + 20000;
    while (!shared->begun && clock_mono_ms() < until)
        usleep(1000);
    if (life_us) {
        usleep(life_us);
        kill(pid, SIGKILL);
    }
    int status = 0;
    waitpid(pid, &status, 0);
    if (WIFEXITED(status) && WEXITSTATUS(status))
        test_fail(__FILE__, __LINE__, "a server ended with %d: %s (kept %llu-%llu, taken %llu)",
                  WEXITSTATUS(status), shared->error, (unsigned long long)shared->kept_from,
                  (unsigned long long)shared->kept_to, (unsigned long long)shared->taken);
    return shared->over;
}

static void destroy(void)
{
    struct err err = {0};
    open_shared();
    struct sandbox *box = adopt(&err);
    EXPECT_TEXT(err.text, "");
    EXPECT_INT(stage_close(stage, box, &err), 0);
    stage_end(stage);
}

/* ---------------------------------------------------------------- the tests */
TEST_WITHIN(no_byte_is_lost_or_doubled_however_often_the_server_is_killed, 120)
{
    begin();
    unsigned seed = (unsigned)getpid();
    bool over = false;
    int lives = 0;
    for (; lives < KILLS && !over; lives++)
        over = run_server("cat", 1000 + (unsigned)rand_r(&seed) % 40000);
    for (int i = 0; i < 60 && !over; i++)
        over = run_server("cat", 1000000);
    EXPECT(over && lives > 2);
    EXPECT_INT(shared->code, 0);
    EXPECT_INT(shared->taken, BYTES);
    for (uint64_t i = 0; i < BYTES; i++)
        EXPECT(shared->bytes[i] == byte_at(i));
    destroy();
}

/* The command's own sleep, as the host sees it: its pid, or 0. */
static pid_t find_sleep(const char *mark)
{
    DIR *processes = opendir("/proc");
    pid_t found = 0;
    for (struct dirent *entry; processes && !found && (entry = readdir(processes));) {
        char path[300], text[64] = "";
        snprintf(path, sizeof path, "/proc/%s/cmdline", entry->d_name);
        OWN(fd) int file = open(path, O_RDONLY | O_CLOEXEC);
        if (file >= 0 && read(file, text, sizeof text - 1) > 0 && strcmp(text, "sleep") == 0 &&
            strcmp(text + sizeof "sleep", mark) == 0)
            found = atoi(entry->d_name);
    }
    if (processes)
        closedir(processes);
    return found;
}

TEST_WITHIN(a_command_that_ended_while_nobody_was_there_still_tells_how, 60)
{
    begin();
    char shell[128], mark[32];
    snprintf(mark, sizeof mark, "1000.%d", (int)getpid());
    snprintf(shell, sizeof shell, "echo before; sleep %s; echo after; exit 7", mark);
    (void)run_server(shell, 50000);
    EXPECT(!shared->over);
    pid_t sleeper;
    while (!(sleeper = find_sleep(mark)))
        usleep(1000);
    EXPECT_INT(kill(sleeper, SIGPIPE), 0); /* of which no shell says a word */
    while (find_sleep(mark))
        usleep(1000);
    (void)run_server("", 0);
    EXPECT(shared->over);
    EXPECT_INT(shared->code, 7);
    EXPECT_STR(str_make(shared->bytes, shared->taken), STR("before\nafter\n"));
    /* And again to the next one, who might not have heard. */
    shared->over = false;
    (void)run_server("", 0);
    EXPECT(shared->over && shared->kept_over);
    EXPECT_INT(shared->code, 7);
    EXPECT_INT(shared->taken, 13);
    destroy();
}

TEST_WITHIN(what_was_not_to_be_kept_ends_with_its_server, 60)
{
    begin();
    int ready[2];
    EXPECT(pipe(ready) == 0);
    pid_t pid = fork();
    if (pid == 0) {
        struct err err = {0};
        open_shared();
        if (stage_open(stage, &stage->spec, &stage->box, &err) < 0)
            _exit(3);
        snprintf(shared->id, sizeof shared->id, "%s", sandbox_id(stage->box));
        struct sandbox_command command = {.shell =
                                              "while :; do echo x > /tmp/alive; sleep 0.05; done"};
        job = sandbox_run(stage->box, &command, &handlers, NULL);
        struct waiting put = {0};
        sandbox_put(stage->box, "/tmp/there", STR("x"), 0644, NULL, stage_on_done, &put);
        stage_until(stage, &put.done);
        (void)!write(ready[1], "x", 1);
        for (;;)
            loop_once(stage->loop, 1000);
    }
    char byte;
    EXPECT(read(ready[0], &byte, 1) == 1);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    struct err err = {0};
    struct sandbox_kept kept;
    open_shared();
    stage->box = adopt(&err);
    EXPECT_TEXT(err.text, "");
    EXPECT(!sandbox_kept(stage->box, 0, &kept));
    EXPECT_TEXT(RUN(.shell = "cat /tmp/there").out, "x");
    int alive = 0;
    for (int i = 0; i < 40 && alive == 0; i++) /* until it is seen to be gone */
        alive = RUN(.shell = "rm -f /tmp/alive; sleep 0.2; test -e /tmp/alive").exit.code;
    EXPECT_INT(alive, 1);
    EXPECT_INT(stage_close(stage, stage->box, &err), 0);
    stage_end(stage);
}

TEST_WITHIN(a_sandbox_that_is_not_there_cannot_be_taken_over, 60)
{
    begin();
    struct err err = {0};
    open_shared();
    snprintf(shared->id, sizeof shared->id, "sb-nobody");
    EXPECT(!adopt(&err));
    EXPECT_INT(err.kind, ERR_NOT_FOUND);
    struct waiting waiting = {0};
    sandboxes_adopt_layer(stage->boxes, "ly-nobody", stage_on_done, &waiting);
    stage_until(stage, &waiting.done);
    EXPECT_INT(waiting.err.kind, ERR_NOT_FOUND);
    stage_end(stage);
}

static void on_end(void *context, const struct sandbox_exit *exit)
{
    struct waiting *waiting = context;
    waiting->done = true;
    if (exit->end != SANDBOX_EXITED)
        err_set(&waiting->err, ERR_SYSTEM, "%s", exit->text);
}

static void on_nothing(void *context, int stream, struct str data)
{
    (void)context;
    (void)stream;
    (void)data;
}

/* Runs a command to its end; true: it was started. */
static bool keep(const char *shell)
{
    static const struct sandbox_job_handlers plain = {.on_output = on_nothing, .on_exit = on_end};
    struct waiting waiting = {0};
    struct sandbox_command command = {.shell = shell, .keep = true};
    struct sandbox_job *one = sandbox_run(stage->box, &command, &plain, &waiting);
    stage_until(stage, &waiting.done);
    sandbox_job_close(one);
    return waiting.err.kind == ERR_NONE;
}

TEST_WITHIN(as_many_commands_as_one_likes_are_kept_one_after_the_other_and_only_so_many_at_once, 60)
{
    enum { MANY = 24, AT_ONCE = 16 };
    begin();
    pid_t pid = fork();
    if (pid == 0) {
        struct err err = {0};
        static struct waiting waiting[AT_ONCE + 1];
        open_shared();
        if (stage_open(stage, &stage->spec, &stage->box, &err) < 0)
            _exit(3);
        snprintf(shared->id, sizeof shared->id, "%s", sandbox_id(stage->box));
        for (int i = 0; i < MANY; i++)
            if (!keep("echo here"))
                _exit(4);
        static const struct sandbox_job_handlers plain = {.on_output = on_nothing,
                                                          .on_exit = on_end};
        struct sandbox_command command = {.shell = "sleep 1000", .keep = true};
        for (int i = 0; i <= AT_ONCE; i++)
            (void)sandbox_run(stage->box, &command, &plain, &waiting[i]);
        stage_until(stage, &waiting[AT_ONCE].done);
        _exit(waiting[AT_ONCE].err.kind == ERR_NONE ? 5 : waiting[0].done ? 6 : 0);
    }
    int status = 0;
    waitpid(pid, &status, 0);
    EXPECT(WIFEXITED(status));
    EXPECT_INT(WEXITSTATUS(status), 0);
    struct err err = {0};
    struct sandbox_kept kept;
    open_shared();
    stage->box = adopt(&err);
    EXPECT_TEXT(err.text, "");
    /* Those that are over made room; the others are known by the numbers they had. */
    EXPECT(!sandbox_kept(stage->box, MANY - 1, &kept));
    for (size_t i = MANY; i < MANY + AT_ONCE; i++)
        EXPECT(sandbox_kept(stage->box, i, &kept) && !kept.over);
    EXPECT(!sandbox_kept(stage->box, MANY + AT_ONCE, &kept));
    EXPECT_INT(stage_close(stage, stage->box, &err), 0);
    stage_end(stage);
}
