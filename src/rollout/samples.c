/* samples.c - samples.jsonl: what a rollout's calls are worth to a trainer.
 *
 * The calls are read from the rollout's own calls.jsonl, which leaves out what is repeated, so that
 * the work is linear in what happened and not in what was sent. The journal is the truth behind it:
 * when it has calls that the file lacks, all of them are read from there, in the order in which
 * they ended, so that the rows are those of a file that is whole. All of it happens on a worker,
 * when nothing can be added any more; a rollout whose samples cannot be written says so in its
 * result and keeps its reward, for the record it was made from is still there. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "rollout/internal.h"

#include "base/fd.h"
#include "base/log.h"
#include "base/mem.h"
#include "json/json.h"
#include "trace/sample.h"

#define READ_BYTES (256u << 10)
#define LINE_BYTES_MAX ((size_t)512 << 20)
#define WRITE_BYTES (1u << 20)
#define FILE_BYTES_MAX ((size_t)1 << 30)
#define RESULT_TOKENS_MAX 8192u /* result.json is kept in memory for a while; samples have all */

/* ---------------------------------------------------------------- reading the record */

static void add_line(struct samples *samples, struct str line, const char *rollout)
{
    struct err err = {0};
    if (str_trim(line).size && samples_add(samples, line, &err) < 0)
        LOG_DEBUG("rollout", rollout, "samples: %s", err.text);
}

/* Line by line; a file that is not there has none. */
static int read_lines(struct samples *samples, const char *path, const char *rollout,
                      struct err *err)
{
    OWN(fd) int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    OWN(buf) struct buf text = {0};
    if (fd < 0)
        return errno == ENOENT ? 0 : err_errno(err, "'%s'", path);
    size_t looked = 0; /* bytes without an end of line */
    for (;;) {
        ssize_t got = read(fd, buf_reserve(&text, READ_BYTES), READ_BYTES);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return err_errno(err, "'%s'", path);
        if (got == 0)
            break;
        buf_added(&text, (size_t)got);
        for (;;) {
            const char *end = memchr(text.data + looked, '\n', text.size - looked);
            if (!end)
                break;
            size_t size = (size_t)(end - text.data);
            add_line(samples, str_make(text.data, size), rollout);
            buf_consume(&text, size + 1);
            looked = 0;
        }
        looked = text.size;
        if (looked > LINE_BYTES_MAX)
            return err_set(err, ERR_LIMIT, "a line of '%s' is longer than %zu bytes", path,
                           LINE_BYTES_MAX);
    }
    add_line(samples, buf_str(&text), rollout);
    return 0;
}

/* A call of the journal. */
struct entry {
    char id[ID_MAX];
    uint64_t ms, place;
    bool missing; /* in the file */
};

struct entries {
    const struct samples *samples;
    struct entry *at;
    size_t count, capacity, missing;
};

static bool note_entry(void *context, const struct store_call *row)
{
    struct entries *entries = context;
    if (strcmp(row->state, "open") == 0)
        return true;
    if (entries->count == entries->capacity) {
        entries->capacity = entries->capacity ? entries->capacity * 2 : 8;
        entries->at = mem_grow(entries->at, entries->capacity * sizeof *entries->at);
    }
    struct entry *entry = &entries->at[entries->count++];
    *entry = (struct entry){.ms = row->entry_ms,
                            .place = row->place,
                            .missing = !samples_has(entries->samples, row->id)};
    snprintf(entry->id, sizeof entry->id, "%s", row->id);
    entries->missing += entry->missing;
    return true;
}

/* As they ended, which is the order of the file. */
static int by_end(const void *a, const void *b)
{
    const struct entry *one = a, *other = b;
    if (one->ms != other->ms)
        return one->ms < other->ms ? -1 : 1;
    return one->place < other->place ? -1 : one->place > other->place;
}

/* Returns how many could not be read. */
static size_t add_entries(struct samples *samples, const struct entries *entries, bool missing_only,
                          struct store *store, const char *rollout)
{
    size_t failed = 0;
    for (size_t i = 0; i < entries->count; i++) {
        const struct entry *entry = &entries->at[i];
        OWN(buf) struct buf line = {0};
        struct err why = {0};
        if (missing_only && !entry->missing)
            continue;
        if (gateway_read_call(store, entry->id, &line, &why) == 0) {
            add_line(samples, buf_str(&line), rollout);
            continue;
        }
        failed++;
        LOG_WARN("rollout", rollout, "samples: call %s cannot be read: %s", entry->id, why.text);
    }
    return failed;
}

/* What the journal has and the file has not. All is read from the journal then, unless the file has
 * something that the journal has not: then only what is missing. */
static int read_missing(struct samples **samples, const struct samples_options *options,
                        struct store *store, const char *rollout, struct err *err)
{
    struct entries entries = {.samples = *samples};
    int result = store_list_calls(store, rollout, note_entry, &entries, err);
    if (result == 0 && entries.missing) {
        OWN(samples) struct samples *whole = samples_new(options);
        qsort(entries.at, entries.count, sizeof *entries.at, by_end);
        bool all = samples_calls(*samples) + entries.missing == entries.count;
        if (all && add_entries(whole, &entries, false, store, rollout) == 0) {
            struct samples *parts = *samples;
            *samples = whole;
            whole = parts;
        } else {
            (void)add_entries(*samples, &entries, true, store, rollout);
        }
    }
    free(entries.at);
    return result;
}

int rollout_read_samples(const char *dir, const char *rollout, struct store *store,
                         uint32_t realign_max, struct samples **out, struct err *err)
{
    struct samples_options options = {.realign_max = realign_max};
    OWN(samples) struct samples *samples = samples_new(&options);
    OWN(mem) char *path = mem_format("%s/calls.jsonl", dir);
    if (read_lines(samples, path, rollout, err) < 0 ||
        (store && read_missing(&samples, &options, store, rollout, err) < 0))
        return -1;
    samples_finish(samples);
    *out = TAKE(samples);
    return 0;
}

/* ---------------------------------------------------------------- writing the rows */

static int write_rows(struct samples *samples, const char *path, const struct sample_owner *owner,
                      struct err *err)
{
    OWN(mem) char *fresh = mem_format("%s.new", path);
    OWN(fd) int fd = open(fresh, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644);
    OWN(buf) struct buf text = {0};
    size_t written = 0;
    if (fd < 0)
        return err_errno(err, "'%s'", fresh);
    for (size_t i = 0; i < samples_count(samples); i++) {
        struct json_writer out = {.out = &text};
        sample_write(samples, i, owner, &out);
        buf_byte(&text, '\n');
        if (text.size < WRITE_BYTES && i + 1 < samples_count(samples))
            continue;
        written += text.size;
        bool large = written > FILE_BYTES_MAX;
        if (large || fd_write_all(fd, text.data, text.size) < 0) {
            (void)unlink(fresh);
            return large ? err_set(err, ERR_LIMIT,
                                   "the rows of this rollout are larger than %zu bytes; `postern "
                                   "export` with --realign, or exact prefixes, make fewer",
                                   FILE_BYTES_MAX)
                         : err_errno(err, "'%s'", fresh);
        }
        buf_clear(&text);
    }
    return rename(fresh, path) < 0 ? err_errno(err, "'%s'", path) : 0;
}

void samples_job_run(struct samples_job *job)
{
    const struct plan *plan = job->plan;
    OWN(samples) struct samples *samples = NULL;
    OWN(mem) char *path = mem_format("%s/samples.jsonl", plan->dir);
    OWN(buf) struct buf rewards = {0};
    bool rewarded = job->reward.known && trace_fate_may_reward(job->fate);
    if (rewarded) {
        struct json_writer out = {.out = &rewards};
        result_write_rewards(&job->reward, &out);
    }
    struct sample_owner owner = {
        .rollout = plan->id,
        .group = plan->group,
        .task = plan->task->name,
        .agent = agent_spec_name(plan->agent),
        .model = model_name(plan->model),
        .mode = plan->mode,
        .fate = trace_fate_name(job->fate),
        .index = plan->index,
        .rewarded = rewarded,
        .reward = job->reward.value,
        .rewards = rewards.size ? buf_str(&rewards) : STR_NONE,
    };
    if (rollout_read_samples(plan->dir, plan->id, plan->store, plan->realign_max, &samples,
                             &job->err) < 0 ||
        write_rows(samples, path, &owner, &job->err) < 0)
        return;
    struct json_writer out = {.out = &job->summary};
    samples_write_summary(samples, &out);
    out = (struct json_writer){.out = &job->turns};
    samples_write_turns(samples, RESULT_TOKENS_MAX, &out);
}

/* ---------------------------------------------------------------- the job */

struct samples_job *samples_job_new(struct plan *plan, enum trace_fate fate,
                                    const struct trace_reward *reward)
{
    struct samples_job *job = mem_zero(sizeof *job);
    job->plan = plan_ref(plan);
    job->fate = fate;
    job->reward = *reward;
    if (reward->detail.data) {
        job->detail = str_dup(reward->detail);
        job->reward.detail = str_of(job->detail);
    }
    return job;
}

void samples_job_free(struct samples_job *job)
{
    plan_unref(job->plan);
    free(job->detail);
    buf_deinit(&job->summary);
    buf_deinit(&job->turns);
    free(job);
}

static void work(void *argument)
{
    samples_job_run(argument);
}

static void done(void *argument)
{
    struct samples_job *job = argument;
    job->on_done(job->context, job);
    samples_job_free(job);
}

void samples_job_start(struct samples_job *job, struct loop *loop,
                       void (*on_done)(void *context, struct samples_job *job), void *context)
{
    job->on_done = on_done;
    job->context = context;
    loop_work(loop, work, done, job);
}
