/* manager.h - private to the manager's files, all of them on the control loop:
 *
 *     rollouts.c     what is taken, what lanes report, what everybody may see
 *     submissions.c  what is submitted together exists together
 *     admission.c    who starts next, and when
 *     groups.c       rollouts that belong together; shared preparation
 *     plan.c         what both sides of a rollout hold */
#ifndef ROLLOUT_MANAGER_H
#define ROLLOUT_MANAGER_H

#include "base/map.h"
#include "rollout/internal.h"

struct line;
struct store_group;

struct entry {
    struct rollouts *rollouts;
    struct list link;              /* in `live` or `finished`, oldest first */
    struct list line_link;         /* while queued and free to start */
    struct list group_link;        /* while it is not over */
    struct line *line;             /* NULL: not in line */
    struct group *group;           /* NULL: none, or it is over */
    struct submission *submission; /* until its row is kept; NULL afterwards */
    struct plan *plan;
    struct rollout_view view;
    struct loop_timer queue_deadline;
    int32_t priority;
    uint32_t queue_ms_max;
    size_t lane;
    bool dispatched;
    bool stored;      /* a row of it may be in the journal */
    bool ending;      /* its last one is on its way there */
    bool preparation; /* of a group: nobody sees it */
    bool counted;     /* against what the policy allows to be under way */
    char activity[96];
    char error[ERR_TEXT_MAX];
    char reason[24];
    char *result;
    const char *key, *key_hash, *callback; /* in the plan's arena; NULL: none */
    int64_t prompt_tokens, completion_tokens;
    uint64_t bytes;
    void (*on_final)(void *context, const struct rollout_view *view);
    void *context;
};

/* admission.c: levels of priority, highest first; in each the lines (one per run) take turns. */
struct admission {
    struct list levels;
    struct map lines; /* "priority/run" */
    double tokens;    /* starts that may happen at once */
    uint64_t tokens_ms;
    struct loop_timer again;
    struct rollout_policy policy;
    int64_t policy_base; /* version at which counting began */
    uint64_t counted;    /* started since, and of use */
};

struct rollouts {
    struct loop *loop;
    struct arena arena;
    struct rollouts_options options;
    struct rollout_lane *lanes;
    size_t *lane_load;
    struct map by_id, groups;
    struct list live, finished, watches;
    struct admission admission;
    struct rollout_counts counts;
    size_t kept; /* entries in `finished` */
    char last_id[ID_MAX], last_group[ID_MAX];
    bool draining, closing, gone;
    void (*on_closed)(void *context);
    void *close_context;
};

/* --- plan.c */
struct plan *plan_new(struct rollouts *rollouts, const struct rollout_request *request,
                      const char *mode, const char *id);

/* --- rollouts.c */
struct entry *entry_new(struct rollouts *rollouts, struct plan *plan,
                        const struct rollout_request *request, bool preparation);
void entry_free(struct entry *entry);
/* Makes the plan, its folder and its entry; not in line yet. */
struct entry *rollouts_take(struct rollouts *rollouts, const struct rollout_request *request,
                            struct err *err);
int rollouts_put_row(struct entry *entry, void (*on_stored)(void *context, const struct err *err),
                     void *context, struct err *err);
void entry_cancel(struct entry *entry, const char *reason, const char *why, bool hurry);
void rollouts_cancel_entry(struct entry *entry, const char *why); /* somebody asked for it */
/* It is over before it began. */
void entry_refuse(struct entry *entry, enum trace_fate fate, const char *reason, const char *why);
void rollouts_start(struct entry *entry);  /* on the emptiest lane */
void rollouts_queued(struct entry *entry); /* told, and not for ever */
void rollouts_undo(struct entry *entry);   /* before it was in line */
void rollouts_maybe_closed(struct rollouts *rollouts);
int rollouts_make_folder(struct rollouts *rollouts, struct plan *plan, struct err *err);

/* --- admission.c */
void admission_init(struct rollouts *rollouts);
void admission_deinit(struct rollouts *rollouts);
void admission_add(struct entry *entry); /* it may start when its turn comes */
void admission_remove(struct entry *entry);
void admission_wait(struct entry *entry);      /* not for ever */
void admission_run(struct rollouts *rollouts); /* starts what may start */
void admission_over(struct entry *entry);      /* with its fate known */

/* --- submissions.c: new, take as often as there are rollouts, then send; or free instead */
struct submission *submission_new(struct rollouts *rollouts, size_t count,
                                  const struct rollout_request *first);
struct entry *submission_take(struct submission *submission, const struct rollout_request *request,
                              struct err *err);
/* `preparation` (NULL: none) starts before the others; `group` (NULL: none) is kept with them. -1:
 * nothing of it is there, and the submission is gone. */
int submission_send(struct submission *submission, struct entry *preparation,
                    const struct store_group *group, struct err *err);
void submission_free(struct submission *submission); /* nothing of it is left */
/* May another row be put for one whose first is on its way? It goes with the first, should the
 * submission fail; false: that is so already, and who puts one now would bring it back. */
bool submission_row(struct entry *entry);

/* --- groups.c */
void group_join(struct entry *entry);  /* by the plan's group; none when it is "" */
void group_leave(struct entry *entry); /* it is over */
/* The group's preparation may start: it is in line, or its members have come to their end. */
void group_prepare(struct entry *preparation);
void group_unprepare(struct entry *preparation); /* it never was */
void group_prepared(struct entry *preparation, struct report *report);
void groups_deinit(struct rollouts *rollouts);

#endif
