/* doctor.c - what this machine offers for local sandboxes, as JSON.
 *
 * The keeper knows how to try each primitive (keeper/doctor.c); here its rows are read and written
 * as
 *
 *     {"missing": N, "checks": [{"name", "state": "ok"|"weak"|"missing", "needed", "detail",
 * "means"}, ...]}
 *
 * A keeper that cannot even be started is a row of its own. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "backend_local_keeper.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/mem.h"
#include "json/json.h"
#include "sandbox/sandbox.h"

#define TRY_MS_MAX 120000
#define ROWS_BYTES_MAX 65536

static void put_row(struct json_writer *out, const char *name, const char *state, bool needed,
                    const char *detail, const char *means)
{
    json_begin_object(out);
    json_set_text(out, "name", name);
    json_set_text(out, "state", state);
    json_set_bool(out, "needed", needed);
    json_set_text(out, "detail", detail);
    json_set_text(out, "means", means);
    json_end_object(out);
}

/* Reads until the end or the deadline. */
static int read_rows(int from, struct buf *rows, struct err *err)
{
    uint64_t until = clock_mono_ms() + TRY_MS_MAX;
    for (;;) {
        uint64_t now = clock_mono_ms();
        struct pollfd ready = {.fd = from, .events = POLLIN};
        if (now >= until || poll(&ready, 1, (int)(until - now)) == 0)
            return err_set(err, ERR_TIMEOUT, "the keeper did not end its examination");
        char *room = buf_reserve(rows, 4096);
        ssize_t got = read(from, room, 4096);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return err_errno(err, "reading from the keeper");
        if (got == 0)
            return 0;
        buf_added(rows, (size_t)got);
        if (rows->size > ROWS_BYTES_MAX)
            return err_set(err, ERR_PROTOCOL, "the keeper says too much");
    }
}

static int run_keeper(const struct local_places *places, struct buf *rows, struct err *err)
{
    extern char **environ;
    int pipes[2];
    if (pipe2(pipes, O_CLOEXEC) < 0)
        return err_errno(err, "pipe");
    OWN(fd) int from = pipes[0];
    OWN(fd) int to = pipes[1];
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, to, 1);
    const char *args[] = {places->keeper, "--doctor", "--home",       places->home, "--state",
                          places->state,  "--porter", places->porter, NULL};
    pid_t pid;
    int failed = posix_spawn(&pid, places->keeper, &actions, NULL, (char *const *)args, environ);
    posix_spawn_file_actions_destroy(&actions);
    if (failed) {
        errno = failed;
        return err_errno(err, "starting '%s'", places->keeper);
    }
    fd_close(&to);
    int result = read_rows(from, rows, err);
    if (result < 0)
        (void)kill(pid, SIGKILL);
    int status = 0;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    if (result == 0 && status != 0)
        return err_set(err, ERR_SYSTEM, "the keeper's examination ended with status %d", status);
    return result;
}

int sandbox_doctor(const struct sandbox_options *options, struct json_writer *out)
{
    struct local_places places;
    struct err err = {0};
    OWN(buf) struct buf rows = {0};
    if (local_find_places(options, &places, &err) == 0)
        (void)run_keeper(&places, &rows, &err);
    int missing = 0;
    OWN(buf) struct buf text = {0};
    struct json_writer checks = {.out = &text};
    json_begin_array(&checks);
    if (err.kind) {
        missing++;
        put_row(&checks, "the keeper", "missing", true, err.text, "no local sandboxes");
    }
    struct str rest = buf_str(&rows);
    while (rest.data && rest.size) {
        struct str line = str_cut(&rest, '\n');
        OWN(mem) char *copy = str_dup(line);
        char *fields[5], *at = copy;
        size_t count = 0;
        for (; at && count < COUNT(fields); count++)
            fields[count] = strsep(&at, "\t");
        if (count < COUNT(fields))
            continue;
        missing += strcmp(fields[1], "missing") == 0;
        put_row(&checks, fields[0], fields[1], fields[2][0] == '1', fields[3], fields[4]);
    }
    json_end_array(&checks);
    json_begin_object(out);
    json_set_int(out, "missing", missing);
    json_set_raw(out, "checks", buf_str(&text));
    json_end_object(out);
    return missing;
}
