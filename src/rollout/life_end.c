/* life_end.c - the end of a rollout: everything closed, the folder written, one final report; and
 * the reports before it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "rollout/life.h"

#include "base/clock.h"
#include "base/fd.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"

enum {
    CALLS_GRACE_MS = 1000, /* calls in flight when the agent is gone */
    ACTIVITY_EVERY_MS = 100,
    RESULT_LOG_BYTES = 2000,
};

/* ---------------------------------------------------------------- telling */
struct report *life_report(struct life *life, enum report_kind kind)
{
    struct report *report = mem_zero(sizeof *report);
    report->kind = kind;
    report->plan = plan_ref(life->plan);
    report->stage = life->stage;
    report->calls = life->result.calls;
    report->turns = life->result.turns;
    report->tries = life->result.tries;
    memcpy(report->stage_ms, life->result.stage_ms, sizeof report->stage_ms);
    memcpy(report->activity, life->activity, sizeof report->activity);
    return report;
}

void life_report_send(struct life *life, struct report *report)
{
    loop_post(life->plan->control, rollouts_report, report);
}

void life_log_line(struct life *life, const char *kind, struct buf *line)
{
    struct log_file *log = &life->events_log;
    if (log->fd < 0 || log->failed || log->cut)
        return;
    if (log->bytes + line->size > log->bytes_max) {
        log->cut = true;
        return;
    }
    log_file_write(log, buf_str(line));
    if (!life->plan->events)
        return;
    struct report_line *report = mem_zero(sizeof *report);
    report->plan = plan_ref(life->plan);
    report->kind = kind;
    report->line = *line;
    *line = (struct buf){0};
    loop_post(life->plan->control, rollouts_report_line, report);
}

void life_log(struct life *life, const char *kind, struct str text)
{
    OWN(buf) struct buf line = {0};
    event_line(&line, kind, text);
    life_log_line(life, kind, &line);
}

void life_tell(struct life *life, const char *what, struct str text)
{
    char line[sizeof life->activity];
    struct str rest = str_trim(text);
    struct str first = str_cut(&rest, '\n');
    snprintf(line, sizeof line, "%s%s%.*s", what, first.size ? ": " : "", (int)first.size,
             first.data);
    for (char *at = line; *at; at++)
        if ((unsigned char)*at < ' ' || *at == 127)
            *at = ' ';
    memcpy(life->activity, line, sizeof line);
    uint64_t now = loop_now_ms(life->loop);
    if (now < life->activity_ms + ACTIVITY_EVERY_MS)
        return;
    life->activity_ms = now;
    life_report_send(life, life_report(life, REPORT_ACTIVITY));
}

void life_on_closed(void *context, const struct err *err)
{
    struct life *life = context;
    if (is_bad(err))
        LOG_WARN("rollout", life->plan->id, "its sandbox is not gone yet: %s", err->text);
    life->pending--;
    life_step(life);
}

/* ---------------------------------------------------------------- ending */
/* Handles first, then the sandboxes they work in: after this only closings come back. */
void life_close(struct life *life)
{
    if (life->closing)
        return;
    life->closing = true;
    loop_timer_stop(&life->pause);
    if (life->sandbox && !life->result.sandbox.data && life->provisioned)
        life_note_sandbox(life);
    task_image_job_close(TAKE(life->image_job));
    agent_install_close(TAKE(life->install));
    agent_check_close(TAKE(life->check));
    life_user_close(life);
    agent_close(TAKE(life->run));
    task_work_close(TAKE(life->work));
    life_tools_close(life);
    struct sandbox **sandboxes[] = {&life->sandbox, &life->judge};
    for (size_t i = 0; i < COUNT(sandboxes); i++) {
        if (!*sandboxes[i])
            continue;
        life->pending++;
        sandbox_close(TAKE(*sandboxes[i]), life_on_closed, life);
    }
    life_close_session(life, life->hurry ? 0 : CALLS_GRACE_MS);
}

bool life_all_closed(const struct life *life)
{
    return !life->pending && !life->session;
}

static void life_free(void *argument)
{
    struct life *life = argument;
    shared_unref(life->made);
    buf_deinit(&life->artifacts);
    buf_deinit(&life->steps);
    arena_deinit(&life->arena);
    plan_unref(life->plan);
    free(life);
}

static void write_result(struct life *life, struct buf *line)
{
    struct trace_result *result = &life->result;
    buf_clear(line);
    result->stage = life->stage;
    result->done_ms = clock_wall_ms();
    result->error = life->err.text[0] ? str_of(life->err.text) : STR_NONE;
    result->error_kind = life->err.kind ? err_meaning(life->err.kind)->name : NULL;
    life->extra.reason = life->reason;
    result_write(result, &life->extra, line);
}

static void on_samples(void *context, struct samples_job *job)
{
    struct life *life = context;
    if (is_bad(&job->err)) {
        struct json_writer out = {.out = &job->summary};
        LOG_WARN("rollout", life->plan->id, "no samples: %s", job->err.text);
        buf_clear(&job->summary);
        json_begin_object(&out);
        json_set_text(&out, "error", job->err.text);
        json_end_object(&out);
    }
    life->extra.samples = arena_str(&life->arena, buf_str(&job->summary));
    life->extra.turns = arena_str(&life->arena, buf_str(&job->turns));
    life->pending--;
    life_step(life);
}

void life_samples(struct life *life)
{
    if (life->session || life->reported || !life->result.calls)
        return;
    if (life->sampling && life->sampled_fate == life->result.fate)
        return;
    life->sampling = true;
    life->sampled_fate = life->result.fate;
    life->pending++;
    samples_job_start(samples_job_new(life->plan, life->result.fate, &life->result.reward),
                      life->loop, on_samples, life);
}

/* Everything is closed (or has had its time): the folder, the report, the end. */
void life_finish(struct life *life)
{
    if (!life->reported) {
        life->reported = true;
        loop_timer_stop(&life->deadline);
        life_leave_stage(life);
        life->extra.logs_cut =
            life->agent_log.cut || life->events_log.cut || life->agent_log.failed;
        life_log(life, "result", str_of(trace_fate_name(life->result.fate)));
        log_file_close(&life->agent_log);
        log_file_close(&life->events_log);
        fd_close(&life->agent_parts.fd);
        OWN(buf) struct buf hosts = {0};
        result_merge_hosts(life->lookups, life->connects, &hosts);
        life->result.hosts = arena_str(&life->arena, buf_str(&hosts));
        life->extra.artifacts = buf_str(&life->artifacts);
        if (life->steps_over)
            life->extra.steps = buf_str(&life->steps);

        OWN(buf) struct buf tail = {0};
        log_file_tail(life->plan->dir, "agent.log", RESULT_LOG_BYTES, &tail);
        life->extra.log_tail = buf_str(&tail);

        OWN(buf) struct buf line = {0};
        OWN(mem) char *path = mem_format("%s/result.json", life->plan->dir);
        struct err err = {0};
        write_result(life, &line);
        buf_byte(&line, '\n');
        if (file_write(path, buf_str(&line), 0644, false, &err) < 0) {
            /* A result that is not kept is no result. */
            err_wrap(&err, "writing the result");
            LOG_ERROR("rollout", life->plan->id, "%s", err.text);
            if (trace_fate_may_reward(life->result.fate)) {
                life->result.fate = TRACE_FATE_INFRA_FAILED;
                life->result.failed_stage = TRACE_COLLECTING;
                life->result.reward = (struct trace_reward){0};
                life->err = err;
            }
            write_result(life, &line);
            buf_byte(&line, '\n');
        }
        OWN(mem) char *owner = mem_format("%s/owner", life->plan->dir);
        (void)unlink(owner);
        live_remove(life->plan);
        if (life->layer[0]) /* only now: until the result is kept, a successor may need it */
            sandboxes_drop_layer(life->plan->lane.sandboxes, life->layer);
        line.size--;
        struct report *report = life_report(life, REPORT_FINAL);
        report->fate = life->result.fate;
        report->failed_stage = life->result.failed_stage;
        snprintf(report->error, sizeof report->error, "%s", life->err.text);
        report->rewarded = life->result.reward.known;
        report->reward = life->result.reward.value;
        report->prompt_tokens = life->result.usage.known ? life->result.usage.prompt_tokens : -1;
        report->completion_tokens =
            life->result.usage.known ? life->result.usage.completion_tokens : -1;
        memcpy(report->reason, life->reason, sizeof report->reason);
        report->bytes = folder_bytes(life->plan->dir) + life->artifact_bytes;
        report->shared = TAKE(life->made);
        report->result = buf_take(&line);
        life_report_send(life, report);
    }
    if (!life_all_closed(life) || life->over)
        return;
    life->over = true;
    life->plan->life = NULL;
    loop_defer(life->loop, life_free, life);
}