/* sandbox_work.c - commands and files: thin calls onto the channel.
 *
 * The one thing added here is the answer to "who killed it?". The kernel's out-of-memory killer
 * looks from inside like any SIGKILL, but the backend counts such kills: a command that ended by a
 * SIGKILL nobody here sent, while that count is higher than the ends it has explained already,
 * ended for lack of memory. The command's exit waits for the backend's answer; when the sandbox is
 * lost or closed first, the question is dropped. */
#include <stdlib.h>

#include "base/check.h"
#include "base/mem.h"
#include "sandbox/manager.h"
#include "wire/wire.h"

enum { EVENTS_BYTES_MAX = 65536 };

struct verdict {
    struct list link;
    struct sandbox *sandbox; /* NULL: dropped */
    struct sandbox_job *job;
    bool inside; /* asked through the channel, which is silent once it is closed */
};

static void on_count(void *context, uint64_t count)
{
    struct verdict *verdict = context;
    struct sandbox *sandbox = verdict->sandbox;
    if (sandbox) {
        bool memory = count > sandbox->oom_kills;
        sandbox->oom_kills += memory;
        list_remove(&verdict->link);
        channel_judge(verdict->job, memory ? CHANNEL_OUT_OF_MEMORY : CHANNEL_AS_IT_CAME);
    }
    free(verdict);
}

/* "... oom_kill N ..." as in memory.events (cgroup 2) and memory.oom_control (cgroup 1). */
static uint64_t read_oom_kills(struct str text)
{
    while (text.data) {
        struct str line = str_cut(&text, '\n'), word = str_cut(&line, ' ');
        long long count = 0;
        if (str_is(word, "oom_kill") && line.data && str_to_long(str_trim(line), &count) &&
            count > 0)
            return (uint64_t)count;
    }
    return 0;
}

static void on_events(void *context, struct str content, const struct err *err)
{
    on_count(context, err ? 0 : read_oom_kills(content));
}

static void on_events_2(void *context, struct str content, const struct err *err)
{
    struct verdict *verdict = context;
    if (err && err->kind == ERR_NOT_FOUND && verdict->sandbox)
        channel_get(verdict->sandbox->channel, "/sys/fs/cgroup/memory/memory.oom_control",
                    EVENTS_BYTES_MAX, on_events, verdict);
    else
        on_events(context, content, err);
}

void sandbox_judge(struct sandbox *sandbox, struct sandbox_job *job)
{
    struct backend *backend = sandbox->slot->backend;
    bool limits = backend->class->capabilities(backend) & SANDBOX_CAN_LIMITS;
    if (!backend->class->oom_kills && !limits) {
        channel_judge(job, CHANNEL_AS_IT_CAME);
        return;
    }
    struct verdict *verdict = mem_zero(sizeof *verdict);
    verdict->sandbox = sandbox;
    verdict->job = job;
    list_append(&sandbox->verdicts, &verdict->link);
    if (backend->class->oom_kills) {
        backend->class->oom_kills(backend, sandbox->id, on_count, verdict);
    } else {
        verdict->inside = true;
        channel_get(sandbox->channel, "/sys/fs/cgroup/memory.events", EVENTS_BYTES_MAX, on_events_2,
                    verdict);
    }
}

void sandbox_judge_all(struct sandbox *sandbox, enum channel_verdict verdict)
{
    while (!list_empty(&sandbox->verdicts)) {
        struct verdict *at = LIST_OF(sandbox->verdicts.next, struct verdict, link);
        list_remove(&at->link);
        at->sandbox = NULL;
        channel_judge(at->job, verdict);
        if (verdict == CHANNEL_SILENCE && at->inside)
            free(at);
    }
}

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

/* Those that are over may have gone from the front of the list. */
static const struct wire_kept *find_kept(const struct channel *channel, size_t index, unsigned *bit)
{
    const struct wire_kept *kept;
    size_t count = channel_kept(channel, &kept);
    for (size_t i = 0; i < count; i++) {
        *bit = 1u << i;
        if (kept[i].number == index)
            return &kept[i];
    }
    return NULL;
}

bool sandbox_kept(const struct sandbox *sandbox, size_t index, struct sandbox_kept *out)
{
    unsigned bit;
    const struct wire_kept *kept =
        sandbox->channel ? find_kept(sandbox->channel, index, &bit) : NULL;
    if (!kept)
        return false;
    *out = (struct sandbox_kept){.from = kept->from,
                                 .to = kept->to,
                                 .input = kept->input,
                                 .over = kept->flags & WIRE_KEPT_OVER,
                                 .input_ended = kept->flags & WIRE_KEPT_INPUT_ENDED};
    return true;
}

struct sandbox_job *sandbox_reattach(struct sandbox *sandbox, size_t index, uint64_t position,
                                     const struct sandbox_job_handlers *handlers, void *context)
{
    struct channel *channel = channel_of(sandbox);
    unsigned bit = 0;
    const struct wire_kept *kept = find_kept(channel, index, &bit);
    CHECK(kept && !(sandbox->attached & bit));
    CHECK(position >= kept->from && position <= kept->to);
    sandbox->attached |= bit;
    return channel_attach(channel, kept, position, handlers, context);
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

void sandbox_get_fd(struct sandbox *sandbox, const char *path, int fd, uint64_t bytes_max,
                    sandbox_done on_done, void *context)
{
    channel_get_fd(channel_of(sandbox), path, fd, bytes_max, on_done, context);
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
