/* test_sandbox_channel.h - what the channel's tests share: a real porter as an ordinary child,
 * frames over a socketpair, and callbacks that take notes. */
#ifndef TEST_SANDBOX_CHANNEL_H
#define TEST_SANDBOX_CHANNEL_H

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/file.h"
#include "base/mem.h"
#include "loop/loop.h"
#include "sandbox/channel.h"
#include "test.h"

struct place {
    struct loop *loop;
    struct channel *channel;
    pid_t porter;
    bool ready, can_inlet, lost;
    struct err lost_err;
    int inlet_fd;
    void (*many)(void *context, int fd); /* instead of inlet_fd */
    void *many_context;
    char looked_up[256];
    char dir[64];
};

static inline void on_ready(void *context, bool can_inlet)
{
    struct place *place = context;
    place->ready = true;
    place->can_inlet = can_inlet;
}

static inline void on_lost(void *context, const struct err *err)
{
    struct place *place = context;
    place->lost = true;
    place->lost_err = *err;
}

static inline void on_inlet(void *context, int fd)
{
    struct place *place = context;
    if (place->many)
        place->many(place->many_context, fd);
    else
        place->inlet_fd = fd;
}

static inline void on_lookup(void *context, struct str name)
{
    struct place *place = context;
    snprintf(place->looked_up, sizeof place->looked_up, "%.*s", STR_ARGS(name));
}

static inline char *porter_path(void)
{
    char self[PATH_MAX];
    ssize_t size = readlink("/proc/self/exe", self, sizeof self - 1);
    self[size > 0 ? size : 0] = '\0';
    char *slash = strrchr(self, '/');
    if (slash)
        *slash = '\0';
    return mem_format("%s/../postern-porter", self);
}

static inline void start_with(struct place *place, const struct channel_options *options,
                              const char *const *extra)
{
    struct err err = {0};
    *place = (struct place){.inlet_fd = -1};
    /* In memory where possible: what is measured is the porter, not somebody's disk. */
    snprintf(place->dir, sizeof place->dir, "%s/postern-channel-XXXXXX",
             access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    int pair[2];
    OWN(mem) char *path = porter_path();
    if (!mkdtemp(place->dir) || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
        abort();
    place->porter = fork();
    if (place->porter == 0) {
        char number[16];
        const char *argv[32] = {path,
                                "--fd",
                                number,
                                "--default-env",
                                "PATH=/usr/local/bin:/usr/bin:/bin",
                                "--default-env",
                                "HOME=/tmp",
                                "--default-cwd",
                                "/tmp"};
        size_t count = 9;
        for (; extra && *extra; extra++)
            argv[count++] = *extra;
        fd_cloexec(pair[1], false);
        snprintf(number, sizeof number, "%d", pair[1]);
        execv(path, (char **)argv);
        _exit(99);
    }
    close(pair[1]);
    static const struct channel_handlers handlers = {
        .on_ready = on_ready, .on_lost = on_lost, .on_inlet = on_inlet, .on_lookup = on_lookup};
    place->loop = loop_new(&err);
    place->channel = channel_new(place->loop, pair[0], pair[0], options, &handlers, place, &err);
    if (!place->channel)
        abort();
}

static inline void start(struct place *place)
{
    start_with(place, &(struct channel_options){0}, NULL);
}

/* Returns the porter's exit status. */
static inline int stop(struct place *place)
{
    int status = 0;
    channel_close(place->channel);
    loop_once(place->loop, 0);
    loop_free(place->loop);
    waitpid(place->porter, &status, 0);
    file_remove_tree(place->dir, NULL);
    return status;
}

#define UNTIL(place, condition)                                                                    \
    while (!(condition))                                                                           \
    loop_once((place)->loop, 1000)

struct watched {
    struct sandbox_job *job;
    struct buf out, err_out;
    uint64_t bytes;
    int exits, drains;
    struct sandbox_exit exit;
    bool count_only;
    uint64_t pause_at; /* pauses by itself once this many bytes came; 0: never */
};

static inline void on_output(void *context, int stream, struct str data)
{
    struct watched *watched = context;
    watched->bytes += data.size;
    if (!watched->count_only)
        buf_str_append(stream == 1 ? &watched->out : &watched->err_out, data);
    if (watched->pause_at && watched->bytes >= watched->pause_at)
        sandbox_job_pause(watched->job);
}

static inline void on_exit_(void *context, const struct sandbox_exit *exit)
{
    struct watched *watched = context;
    watched->exits++;
    watched->exit = *exit;
}

static inline void on_drain(void *context)
{
    ((struct watched *)context)->drains++;
}

static const struct sandbox_job_handlers handlers = {
    .on_output = on_output, .on_exit = on_exit_, .on_drain = on_drain};

static inline void run(struct place *place, struct watched *watched,
                       const struct sandbox_command *command)
{
    watched->job = channel_run(place->channel, command, &handlers, watched);
}

static inline void run_to_end(struct place *place, struct watched *watched,
                              const struct sandbox_command *command)
{
    run(place, watched, command);
    UNTIL(place, watched->exits);
    sandbox_job_close(watched->job);
}

static inline void forget(struct watched *watched)
{
    buf_deinit(&watched->out);
    buf_deinit(&watched->err_out);
}

struct ended {
    int times;
    struct err err;
    struct sandbox_stat stat;
    struct buf content;
};

static inline void on_done(void *context, const struct err *err)
{
    struct ended *ended = context;
    ended->times++;
    if (err)
        ended->err = *err;
}

static inline void on_content(void *context, struct str content, const struct err *err)
{
    struct ended *ended = context;
    buf_str_append(&ended->content, content);
    on_done(context, err);
}

static inline void on_stat(void *context, const struct sandbox_stat *stat, const struct err *err)
{
    struct ended *ended = context;
    if (stat)
        ended->stat = *stat;
    on_done(context, err);
}

static inline bool alive(pid_t pid)
{
    return kill(pid, 0) == 0;
}

/* Peak resident memory in KiB. */
static inline long peak_kib(pid_t pid)
{
    char path[64], line[256];
    snprintf(path, sizeof path, "/proc/%d/status", pid);
    FILE *file = fopen(path, "r");
    long peak = -1;
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "VmHWM: %ld", &peak) == 1)
            break;
    if (file)
        fclose(file);
    return peak;
}

#define ARGV(...)                                                                                  \
    .argv = (const char *const[])                                                                  \
    {                                                                                              \
        __VA_ARGS__, NULL                                                                          \
    }

/* The numbers a command wrote to the file `pids`. */
static inline int read_pids(const char *dir, pid_t *pids, int count_max)
{
    OWN(mem) char *path = mem_format("%s/pids", dir);
    FILE *file = fopen(path, "r");
    int count = 0;
    while (file && count < count_max && fscanf(file, "%d", &pids[count]) == 1)
        count++;
    if (file)
        fclose(file);
    return count;
}

#endif
