/* submissions.c - what is submitted together exists together, or not at all.
 *
 *     take (entries, <home>/live) -> rows on their way -> all are in the journal -> in line, told
 *                                          └─ one is not -> taken back, told why
 *
 * Nothing starts, and nobody hears of it, before every row is in the journal: what is answered with
 * an error has never run, and a server that dies before that leaves nothing its successor would go
 * on with (runtime/resume.c asks the index). Rows that were kept although others were not are
 * removed again before the error is told, so that the same key may be used at once. */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "rollout/manager.h"

struct submission {
    struct rollouts *rollouts;
    struct entry **entries;
    size_t count;
    struct entry *preparation; /* of a group that shares one; NULL: none */
    char group[ID_MAX];        /* whose row is kept with them; "": none */
    bool group_stored;
    size_t pending; /* answers of the journal */
    bool sending;   /* from the first row to the last: nothing is settled meanwhile */
    bool failed;    /* it is being taken back */
    struct err err; /* the first thing that went wrong */
    void (*on_stored)(void *context, const struct err *err);
    void *context;
};

struct submission *submission_new(struct rollouts *rollouts, size_t count,
                                  const struct rollout_request *first)
{
    struct submission *submission = mem_zero(sizeof *submission);
    submission->rollouts = rollouts;
    submission->entries = mem_zero((count + 1) * sizeof *submission->entries);
    submission->on_stored = first->on_stored;
    submission->context = first->stored_context;
    return submission;
}

struct entry *submission_take(struct submission *submission, const struct rollout_request *request,
                              struct err *err)
{
    struct rollout_request together = *request;
    together.with = submission->count ? submission->entries[0]->plan->id : NULL;
    struct entry *entry = rollouts_take(submission->rollouts, &together, err);
    if (!entry)
        return NULL;
    entry->submission = submission;
    submission->entries[submission->count++] = entry;
    group_join(entry);
    return entry;
}

void submission_free(struct submission *submission)
{
    if (submission->preparation) {
        group_unprepare(submission->preparation);
        submission->rollouts->counts.queued--;
        entry_free(submission->preparation);
    }
    while (submission->count) {
        struct entry *entry = submission->entries[--submission->count];
        group_leave(entry);
        rollouts_undo(entry);
    }
    free(submission->entries);
    free(submission);
}

/* ---------------------------------------------------------------- one way or the other */
static void release(struct submission *submission)
{
    struct rollouts *rollouts = submission->rollouts;
    struct entry *preparation = TAKE(submission->preparation);
    for (size_t i = 0; i < submission->count; i++) {
        struct entry *entry = submission->entries[i];
        entry->submission = NULL;
        rollouts_queued(entry);
        if (entry->plan->refused.kind != ERR_NONE)
            rollouts_start(entry); /* cancelled meanwhile */
        else if (!preparation)
            admission_add(entry);
    }
    submission->count = 0;
    if (preparation) {
        preparation->submission = NULL;
        group_prepare(preparation);
    }
    if (submission->on_stored)
        submission->on_stored(submission->context, &submission->err);
    submission_free(submission);
    admission_run(rollouts);
}

static void tell_failed(struct submission *submission)
{
    struct rollouts *rollouts = submission->rollouts;
    void (*on_stored)(void *, const struct err *) = submission->on_stored;
    void *context = submission->context;
    struct err err = submission->err;
    LOG_WARN("rollout", submission->count ? submission->entries[0]->plan->id : NULL,
             "its submission was not kept and is taken back: %s", err.text);
    submission_free(submission);
    if (on_stored)
        on_stored(context, &err);
    rollouts_maybe_closed(rollouts);
}

static void on_removed(void *context, const struct err *err)
{
    struct submission *submission = context;
    if (err->kind != ERR_NONE)
        LOG_WARN("rollout", submission->entries[0]->plan->id,
                 "a row of a submission that failed is still there: %s", err->text);
    if (--submission->pending == 0)
        tell_failed(submission);
}

static void take_back(struct submission *submission)
{
    struct rollouts *rollouts = submission->rollouts;
    struct store *store = rollouts->options.store;
    submission->pending = 1;
    submission->failed = true;
    for (size_t i = 0; i < submission->count; i++) {
        struct entry *entry = submission->entries[i];
        if (entry->stored && store &&
            store_remove_rollout(store, rollouts->loop, entry->plan->id, on_removed, submission,
                                 NULL) == 0)
            submission->pending++;
    }
    if (submission->group_stored &&
        store_put_note(store, rollouts->loop, "deleted", "group", submission->group, NULL,
                       on_removed, submission, NULL) == 0)
        submission->pending++;
    if (--submission->pending == 0)
        tell_failed(submission);
}

bool submission_row(struct entry *entry)
{
    if (entry->submission->failed)
        return false;
    entry->stored = true; /* also when its first row is not */
    return true;
}

static void note(struct submission *submission, const struct err *err)
{
    if (err->kind != ERR_NONE && submission->err.kind == ERR_NONE)
        submission->err = *err;
    if (--submission->pending || submission->sending)
        return;
    if (submission->err.kind == ERR_NONE)
        release(submission);
    else
        take_back(submission);
}

static void on_row(void *context, const struct err *err)
{
    struct entry *entry = context;
    entry->stored = entry->stored || err->kind == ERR_NONE;
    note(entry->submission, err);
}

static void on_group(void *context, const struct err *err)
{
    struct submission *submission = context;
    submission->group_stored = err->kind == ERR_NONE;
    note(submission, err);
}

/* ---------------------------------------------------------------- sending */
int submission_send(struct submission *submission, struct entry *preparation,
                    const struct store_group *group, struct err *err)
{
    struct rollouts *rollouts = submission->rollouts;
    struct err why = {0};
    int result = 0;
    submission->preparation = preparation;
    if (preparation)
        preparation->submission = submission;
    submission->sending = true;
    /* The first one's comes last: when the journal has it, it has all. */
    for (size_t i = submission->count; i-- > 0 && result == 0;) {
        result = rollouts_put_row(submission->entries[i], on_row, submission->entries[i], &why);
        submission->pending += result == 0;
    }
    /* After its rollouts': who finds the group finds them. */
    if (result == 0 && group && rollouts->options.store) {
        memcpy(submission->group, group->id, strlen(group->id) + 1);
        result = store_put_group(rollouts->options.store, rollouts->loop, group, on_group,
                                 submission, &why);
        submission->pending += result == 0;
    }
    submission->sending = false;
    if (result == 0)
        return 0;
    if (submission->pending) {
        submission->err = why; /* said when those before it are taken back */
        return 0;
    }
    submission_free(submission);
    return err_copy(err, &why);
}

int rollouts_submit_all(struct rollouts *rollouts, const struct rollout_request *requests,
                        size_t count, char (*ids)[ID_MAX], size_t *wrong, struct err *err)
{
    if (rollouts_room(rollouts, count, err) < 0)
        return -1;
    struct submission *submission = submission_new(rollouts, count, &requests[0]);
    for (size_t i = 0; i < count; i++) {
        struct entry *entry = submission_take(submission, &requests[i], err);
        if (!entry) {
            if (wrong)
                *wrong = i;
            submission_free(submission);
            return -1;
        }
        memcpy(ids[i], entry->plan->id, ID_MAX);
    }
    return submission_send(submission, NULL, NULL, err);
}

int rollouts_submit(struct rollouts *rollouts, const struct rollout_request *request,
                    char id[ID_MAX], struct err *err)
{
    char ids[1][ID_MAX];
    if (rollouts_submit_all(rollouts, request, 1, ids, NULL, err) < 0)
        return -1;
    memcpy(id, ids[0], ID_MAX);
    return 0;
}
