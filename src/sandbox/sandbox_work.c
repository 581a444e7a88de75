/* sandbox_work.c - commands and files: thin calls onto the channel.
 *
 * The one thing added here is the answer to "who killed it?". The kernel's out-of-memory killer
 * looks from inside like any SIGKILL, but the backend counts such kills: a command that ended by a
 * SIGKILL nobody here sent, while that count rose, ended for lack of memory. */
#include "base/check.h"
#include "sandbox/manager.h"

static struct channel *channel_of(struct sandbox *sandbox)
{
    CHECK(sandbox->channel && sandbox->opened); /* the contract: only between on_open and close */
    return sandbox->channel;
}

struct sandbox_job *sandbox_run(struct sandbox *sandbox, const struct sandbox_command *command,
                                const struct sandbox_job_handlers *handlers, void *context)
{
    return channel_run(channel_of(sandbox), command, handlers, context);
}

void sandbox_run_whole(struct sandbox *sandbox, const struct sandbox_command *command,
                       struct str input, size_t bytes_max,
                       void (*on_done)(void *, const struct sandbox_outcome *), void *context)
{
    channel_run_whole(channel_of(sandbox), command, input, bytes_max, on_done, context);
}

void sandbox_kill_all(struct sandbox *sandbox, void (*on_done)(void *, const struct err *),
                      void *context)
{
    channel_kill_all(channel_of(sandbox), on_done, context);
}

void sandbox_put(struct sandbox *sandbox, const char *path, struct str content, uint32_t mode,
                 const char *user, sandbox_done on_done, void *context)
{
    channel_put(channel_of(sandbox), path, content, mode, user, on_done, context);
}

void sandbox_put_fd(struct sandbox *sandbox, const char *path, int fd, uint32_t mode,
                    const char *user, sandbox_done on_done, void *context)
{
    channel_put_fd(channel_of(sandbox), path, fd, mode, user, on_done, context);
}

void sandbox_put_tree(struct sandbox *sandbox, const char *host_dir, const char *path,
                      const char *user, sandbox_done on_done, void *context)
{
    channel_put_tree(channel_of(sandbox), host_dir, path, user, on_done, context);
}

void sandbox_get(struct sandbox *sandbox, const char *path, size_t bytes_max,
                 void (*on_done)(void *, struct str, const struct err *), void *context)
{
    channel_get(channel_of(sandbox), path, bytes_max, on_done, context);
}

void sandbox_get_fd(struct sandbox *sandbox, const char *path, int fd, sandbox_done on_done,
                    void *context)
{
    channel_get_fd(channel_of(sandbox), path, fd, on_done, context);
}

void sandbox_get_tree(struct sandbox *sandbox, const char *path, const char *host_dir,
                      const struct sandbox_budget *budget, sandbox_done on_done, void *context)
{
    channel_get_tree(channel_of(sandbox), path, host_dir, budget, on_done, context);
}

void sandbox_stat(struct sandbox *sandbox, const char *path,
                  void (*on_done)(void *, const struct sandbox_stat *, const struct err *),
                  void *context)
{
    channel_stat(channel_of(sandbox), path, on_done, context);
}

void sandbox_remove(struct sandbox *sandbox, const char *path, sandbox_done on_done, void *context)
{
    channel_remove(channel_of(sandbox), path, on_done, context);
}
