/* admission.c - who starts next, and when.
 *
 * Four things decide together: slots (rollouts past `queued` at once), the rate of starts, model
 * calls in flight, and how old what is started now would be when it is used. What may not start
 * waits; nothing is refused here but what waited too long or became too old.
 *
 * The queue is a list of levels by priority. In each, every run has a line of its own and the lines
 * take turns, so that a large submission does not hold up a small one beside it; inside a line the
 * oldest is first, so that groups are finished one after the other. Finding the next is O(1). */
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/mem.h"
#include "rollout/manager.h"

enum { CALLS_AGAIN_MS = 50 };

struct level {
    struct list link; /* highest first */
    struct list lines;
    int32_t priority;
};

struct line {
    struct list link; /* in its level; the first one is next */
    struct list entries;
    struct level *level;
    char *name; /* in `lines` */
};

void admission_init(struct rollouts *rollouts)
{
    struct admission *admission = &rollouts->admission;
    list_init(&admission->levels);
    admission->policy.staleness_max = -1;
    admission->tokens = rollouts->options.starts_per_second_max;
    admission->tokens_ms = clock_mono_ms();
}

static void line_free(struct rollouts *rollouts, struct line *line)
{
    struct level *level = line->level;
    map_remove(&rollouts->admission.lines, str_of(line->name));
    list_remove(&line->link);
    free(line->name);
    free(line);
    if (!list_empty(&level->lines))
        return;
    list_remove(&level->link);
    free(level);
}

void admission_deinit(struct rollouts *rollouts)
{
    struct admission *admission = &rollouts->admission;
    loop_timer_stop(&admission->again);
    size_t at = 0;
    for (struct line *line; (line = map_next(&admission->lines, &at, NULL)); at = 0)
        line_free(rollouts, line);
    map_deinit(&admission->lines);
}

static struct level *find_level(struct admission *admission, int32_t priority)
{
    struct list *before = &admission->levels;
    LIST_EACH (at, &admission->levels) {
        struct level *level = LIST_OF(at, struct level, link);
        if (level->priority == priority)
            return level;
        if (level->priority < priority) {
            before = at;
            break;
        }
    }
    struct level *level = mem_zero(sizeof *level);
    level->priority = priority;
    list_init(&level->lines);
    list_append(before, &level->link); /* just before the first that is lower */
    return level;
}

static void on_queue_deadline(struct loop_timer *timer)
{
    struct entry *entry = timer->context;
    char why[160];
    snprintf(why, sizeof why, "it waited longer than %llu s for its start",
             (unsigned long long)(clock_mono_ms() - entry->plan->queued_mono_ms) / 1000);
    entry_cancel(entry, "queue_timeout", why, false);
}

void admission_add(struct entry *entry)
{
    struct rollouts *rollouts = entry->rollouts;
    struct admission *admission = &rollouts->admission;
    OWN(mem) char *name = mem_format("%d/%s", entry->priority, entry->plan->run);
    struct line *line = map_get(&admission->lines, str_of(name));
    if (!line) {
        line = mem_zero(sizeof *line);
        line->name = mem_dup(name);
        line->level = find_level(admission, entry->priority);
        list_init(&line->entries);
        list_append(&line->level->lines, &line->link);
        map_put(&admission->lines, str_of(name), line);
    }
    /* What prepares a group goes before what waits for such things. */
    if (entry->preparation)
        list_prepend(&line->entries, &entry->line_link);
    else
        list_append(&line->entries, &entry->line_link);
    entry->line = line;
}

void admission_remove(struct entry *entry)
{
    struct line *line = entry->line;
    if (!line)
        return;
    entry->line = NULL;
    list_remove(&entry->line_link);
    if (list_empty(&line->entries))
        line_free(entry->rollouts, line);
}

/* ---------------------------------------------------------------- what decides */
static bool stale(const struct rollouts *rollouts, const struct entry *entry)
{
    const struct rollout_policy *policy = &rollouts->admission.policy;
    return policy->staleness_max >= 0 && entry->plan->has_policy &&
           entry->plan->policy_version < policy->version - policy->staleness_max;
}

static void cancel_stale(struct entry *entry)
{
    const struct rollout_policy *policy = &entry->rollouts->admission.policy;
    char why[160];
    snprintf(why, sizeof why,
             "it began at version %lld of the weights; version %lld is current, and no more than "
             "%lld behind is wanted",
             (long long)entry->plan->policy_version, (long long)policy->version,
             (long long)policy->staleness_max);
    entry_cancel(entry, "stale", why, false);
}

/* More would be too old before a version could be trained on them. */
static bool too_many_ahead(const struct admission *admission)
{
    const struct rollout_policy *policy = &admission->policy;
    if (policy->staleness_max < 0 || !policy->batch)
        return false;
    int64_t versions;
    uint64_t most;
    if (__builtin_sub_overflow(policy->version, admission->policy_base, &versions) ||
        __builtin_add_overflow(versions, policy->staleness_max + 1, &versions))
        return false; /* more than anybody can count */
    if (versions <= 0)
        return true;
    return !__builtin_mul_overflow((uint64_t)versions, policy->batch, &most) &&
           admission->counted >= most;
}

static uint64_t calls_in_flight(const struct rollouts *rollouts)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < rollouts->options.lane_count; i++) {
        struct gateway_counts counts;
        gateway_counts(rollouts->lanes[i].gateway, &counts);
        sum += counts.in_flight;
    }
    return sum;
}

static void on_again(struct loop_timer *timer)
{
    admission_run(timer->context);
}

/* May one more start now? Asks again later when only time can tell. */
static bool may_start(struct rollouts *rollouts)
{
    struct admission *admission = &rollouts->admission;
    const struct rollouts_options *options = &rollouts->options;
    if (rollouts->draining || rollouts->counts.running >= options->parallel_max ||
        too_many_ahead(admission))
        return false;
    if (options->calls_in_flight_max && calls_in_flight(rollouts) >= options->calls_in_flight_max) {
        loop_timer_start(rollouts->loop, &admission->again, CALLS_AGAIN_MS, on_again, rollouts);
        return false;
    }
    double rate = options->starts_per_second_max;
    if (rate <= 0)
        return true;
    uint64_t now = clock_mono_ms();
    admission->tokens += (double)(now - admission->tokens_ms) * rate / 1000;
    admission->tokens_ms = now;
    if (admission->tokens > rate)
        admission->tokens = rate;
    if (admission->tokens >= 1)
        return true;
    loop_timer_start(rollouts->loop, &admission->again,
                     (uint64_t)((1 - admission->tokens) * 1000 / rate) + 1, on_again, rollouts);
    return false;
}

static struct entry *next(struct rollouts *rollouts)
{
    if (list_empty(&rollouts->admission.levels))
        return NULL;
    struct level *level = LIST_OF(rollouts->admission.levels.next, struct level, link);
    struct line *line = LIST_OF(level->lines.next, struct line, link);
    list_remove(&line->link); /* the others first, the next time */
    list_append(&level->lines, &line->link);
    return LIST_OF(line->entries.next, struct entry, line_link);
}

void admission_run(struct rollouts *rollouts)
{
    struct admission *admission = &rollouts->admission;
    while (!list_empty(&admission->levels) && may_start(rollouts)) {
        struct entry *entry = next(rollouts);
        if (stale(rollouts, entry)) {
            cancel_stale(entry);
            continue;
        }
        admission_remove(entry);
        if (!entry->plan->has_policy) {
            entry->plan->has_policy = true;
            entry->plan->policy_version = admission->policy.version;
        }
        entry->view.has_policy = true;
        entry->view.policy_version = entry->plan->policy_version;
        if (!entry->preparation) {
            entry->counted = true;
            admission->counted++;
        }
        if (rollouts->options.starts_per_second_max)
            admission->tokens -= 1;
        rollouts_start(entry);
    }
}

/* What cannot be trained on leaves its place to another. */
void admission_over(struct entry *entry)
{
    if (!entry->counted)
        return;
    entry->counted = false;
    if (!trace_fate_may_reward(entry->view.fate))
        entry->rollouts->admission.counted--;
}

void admission_wait(struct entry *entry)
{
    uint32_t ms = entry->queue_ms_max ? entry->queue_ms_max : entry->rollouts->options.queue_ms_max;
    if (ms)
        loop_timer_start(entry->rollouts->loop, &entry->queue_deadline, ms, on_queue_deadline,
                         entry);
}

/* ---------------------------------------------------------------- the policy */
void rollouts_set_policy(struct rollouts *rollouts, const struct rollout_policy *policy)
{
    struct admission *admission = &rollouts->admission;
    if (policy->batch != admission->policy.batch || policy->version < admission->policy_base) {
        /* Counting begins anew; what is under way already counts. */
        admission->policy_base = policy->version;
        admission->counted = 0;
        LIST_EACH (at, &rollouts->live)
            admission->counted += LIST_OF(at, struct entry, link)->counted;
    }
    admission->policy = *policy;
    LIST_EACH (at, &rollouts->live) {
        struct entry *entry = LIST_OF(at, struct entry, link);
        if (!entry->preparation && stale(rollouts, entry))
            cancel_stale(entry);
    }
    admission_run(rollouts);
}

const struct rollout_policy *rollouts_policy(const struct rollouts *rollouts)
{
    return &rollouts->admission.policy;
}
