/* channel.h - private to the sandbox room: the host's end of the porter's frames.
 *
 * A channel turns the two descriptors of a backend_link into everything sandbox.h offers for
 * commands and files. It lives on one loop. Rules:
 *   - each activity (job, file work) ends with exactly one final callback, never from inside the
 * call that started it; when the porter is lost jobs end with SANDBOX_LOST and file work with
 * ERR_LOST;
 *   - channel_close() silences everything and closes the descriptors; job handles stay valid (done,
 *     silent) until their sandbox_job_close();
 *   - a job handle lives until sandbox_job_close(), also after on_exit. Closing a running job kills
 * it.
 *
 * This room's files channel*.c implement these functions of sandbox.h themselves, since struct
 * sandbox_job is theirs: every sandbox_job_*(), sandbox_end_name(), sandbox_exit_code(). The rest
 * (sandbox_run, sandbox_run_whole, sandbox_put, ...) are thin calls in sandbox.c onto the functions
 * below. */
#ifndef SANDBOX_CHANNEL_H
#define SANDBOX_CHANNEL_H

#include "sandbox/sandbox.h"

struct channel;
struct wire_kept;

struct channel_options {
    bool inlet;          /* carry the inlet as streams of frames (backend_link.inlet is -1) */
    bool resolver;       /* answer names inside and report them (best effort) */
    bool resume;         /* commands may outlive us, and may have outlived a former host */
    uint16_t inlet_port; /* 0: SANDBOX_INLET_PORT */
    bool banner; /* bytes before the porter's HELLO are skipped (ssh may print some), at most 64 KiB
                  */
    uint32_t hello_ms_max; /* 0: 30 s; then lost with ERR_TIMEOUT */
    const char *id;        /* for the log; may be NULL */
};
struct channel_handlers {
    /* The porter answered. `can_inlet` says whether it listens on the inlet as asked. May be NULL;
     * commands need not wait for it. */
    void (*on_ready)(void *context, bool can_inlet);
    /* At most once, after all jobs and file work have ended. Then only channel_close() remains to
     * be called. */
    void (*on_lost)(void *context, const struct err *err);
    /* A connection to the carried inlet: a connected socket the receiver owns. NULL: they are
     * refused. */
    void (*on_inlet)(void *context, int fd);
    void (*on_lookup)(void *context, struct str name); /* may be NULL */
    /* A command ended by a SIGKILL that nobody here sent. Its exit waits for channel_judge(),
     * exactly one, at any time later or at once. NULL: the exit is told as it came. */
    void (*on_killed)(void *context, struct sandbox_job *job);
};
enum channel_verdict { CHANNEL_AS_IT_CAME, CHANNEL_OUT_OF_MEMORY, CHANNEL_SILENCE };
/* Takes both descriptors (they may be equal), also on failure. */
struct channel *channel_new(struct loop *loop, int fd_in, int fd_out,
                            const struct channel_options *options,
                            const struct channel_handlers *handlers, void *context,
                            struct err *err);
void channel_close(struct channel *channel); /* NULL is fine */
bool channel_is_ready(const struct channel *channel);

/* Ends the wait of a job that on_killed announced; also allowed (and needed) after channel_close().
 */
void channel_judge(struct sandbox_job *job, enum channel_verdict verdict);

struct sandbox_job *channel_run(struct channel *channel, const struct sandbox_command *command,
                                const struct sandbox_job_handlers *handlers, void *context);
/* The commands that outlived a former host; known when the channel is ready. */
size_t channel_kept(const struct channel *channel, const struct wire_kept **kept);
/* One of them as a job, its output from `position` on, which is between its `from` and its `to`.
 * Each can be attached to once. */
struct sandbox_job *channel_attach(struct channel *channel, const struct wire_kept *kept,
                                   uint64_t position, const struct sandbox_job_handlers *handlers,
                                   void *context);
void channel_run_whole(struct channel *channel, const struct sandbox_command *command,
                       struct str input, size_t bytes_max,
                       void (*on_done)(void *context, const struct sandbox_outcome *outcome),
                       void *context);
void channel_kill_all(struct channel *channel, sandbox_done on_done, void *context);

void channel_put(struct channel *channel, const char *path, struct str content, uint32_t mode,
                 const char *user, sandbox_done on_done, void *context);
void channel_put_fd(struct channel *channel, const char *path, int fd, uint32_t mode,
                    const char *user, sandbox_done on_done, void *context);
void channel_put_tree(struct channel *channel, const char *host_dir, const char *path,
                      const char *user, sandbox_done on_done, void *context);
void channel_get(struct channel *channel, const char *path, size_t bytes_max,
                 void (*on_done)(void *context, struct str content, const struct err *err),
                 void *context);
void channel_get_fd(struct channel *channel, const char *path, int fd, uint64_t bytes_max,
                    sandbox_done on_done, void *context);
void channel_get_tree(struct channel *channel, const char *path, const char *host_dir,
                      const struct sandbox_budget *budget, sandbox_done on_done, void *context);
void channel_stat(struct channel *channel, const char *path,
                  void (*on_done)(void *context, const struct sandbox_stat *stat,
                                  const struct err *err),
                  void *context);
void channel_remove(struct channel *channel, const char *path, sandbox_done on_done, void *context);

#endif
