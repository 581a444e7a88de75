/* metrics.c - GET /metrics: numbers in the Prometheus text format, version 0.0.4. */
#include "api/inner.h"
#include "base/mem.h"
#include "gateway/gate.h"
#include "gateway/gateway.h"
#include "store/store.h"
#include "trace/trace.h"

static void family(struct buf *out, const char *name, const char *type, const char *help)
{
    buf_format(out, "# HELP postern_%s %s\n# TYPE postern_%s %s\n", name, help, name, type);
}

static void number(struct buf *out, const char *name, const char *type, const char *help,
                   uint64_t value)
{
    family(out, name, type, help);
    buf_format(out, "postern_%s %llu\n", name, (unsigned long long)value);
}

static void labelled(struct buf *out, const char *name, const char *label, const char *value,
                     uint64_t count)
{
    buf_format(out, "postern_%s{%s=\"%s\"} %llu\n", name, label, value, (unsigned long long)count);
}

/* What a label may hold: quotes and backslashes are escaped. */
static void label_text(struct buf *out, const char *text)
{
    for (; *text; text++) {
        if (*text == '"' || *text == '\\')
            buf_byte(out, '\\');
        buf_byte(out, *text == '\n' ? ' ' : *text);
    }
}

struct upstream_column {
    struct buf *out;
    const char *name;
    uint64_t (*value)(const struct model_upstream *upstream);
};

static void upstream_row(void *context, const struct model_upstream *upstream)
{
    const struct upstream_column *column = context;
    buf_format(column->out, "postern_%s{model=\"", column->name);
    label_text(column->out, upstream->model);
    buf_str_append(column->out, STR("\",url=\""));
    label_text(column->out, upstream->url);
    buf_format(column->out, "\"} %llu\n", (unsigned long long)column->value(upstream));
}

#define VALUE(member)                                                                              \
    static uint64_t upstream_##member(const struct model_upstream *upstream)                       \
    {                                                                                              \
        return upstream->member;                                                                   \
    }
VALUE(requests)
VALUE(failures)
VALUE(retries)
VALUE(ejections)
VALUE(in_flight)
VALUE(waiting)
VALUE(ejected)

static void write_upstreams(struct buf *out)
{
    static const struct {
        const char *name, *type, *help;
        uint64_t (*value)(const struct model_upstream *upstream);
    } columns[] = {
        {"upstream_requests_total", "counter", "Attempts made at a model server.",
         upstream_requests},
        {"upstream_failures_total", "counter", "Attempts a model server failed or turned away.",
         upstream_failures},
        {"upstream_retries_total", "counter", "Attempts that were not a call's first.",
         upstream_retries},
        {"upstream_ejections_total", "counter", "Times a model server was left alone for a while.",
         upstream_ejections},
        {"upstream_in_flight", "gauge", "Attempts under way at a model server.",
         upstream_in_flight},
        {"upstream_waiting", "gauge", "Calls in line for a model's servers.", upstream_waiting},
        {"upstream_ejected", "gauge", "1 while a model server is left alone.", upstream_ejected},
    };
    for (size_t i = 0; i < COUNT(columns); i++) {
        struct upstream_column column = {out, columns[i].name, columns[i].value};
        family(out, columns[i].name, columns[i].type, columns[i].help);
        model_each_upstream(upstream_row, &column);
    }
}

void api_write_metrics(struct api *api, struct buf *out)
{
    struct api_metrics now = {0};
    struct store_counts store;
    if (api->read_metrics)
        api->read_metrics(api->context, &now);
    store_counts(api->store, &store);

    number(out, "calls_total", "counter", "Model calls admitted.", now.calls);
    family(out, "calls_ended_total", "counter", "Model calls by how they ended.");
    labelled(out, "calls_ended_total", "end", "answered", now.calls_answered);
    labelled(out, "calls_ended_total", "end", "broken", now.calls_broken);
    number(out, "call_retries_total", "counter", "Attempts upstream beyond the first.",
           now.call_retries);
    number(out, "calls_in_flight", "gauge", "Model calls under way.", now.calls_in_flight);
    family(out, "tokens_total", "counter", "Tokens as model servers report them.");
    labelled(out, "tokens_total", "kind", "prompt", now.prompt_tokens);
    labelled(out, "tokens_total", "kind", "completion", now.completion_tokens);
    number(out, "inlet_refused_total", "counter",
           "Requests of agents that were turned away and are no calls.", now.calls_refused);
    number(out, "inlet_connections_total", "counter", "Connections agents made to their inlet.",
           now.connections);
    number(out, "gateway_sessions", "gauge", "Rollouts with an open gateway.", now.sessions);
    family(out, "rollouts", "gauge", "Rollouts that are not over.");
    labelled(out, "rollouts", "state", "queued", now.rollouts_queued);
    labelled(out, "rollouts", "state", "running", now.rollouts_running);
    if (now.rollouts_by_fate) {
        family(out, "rollouts_total", "counter", "Rollouts that are over, by fate.");
        for (size_t i = 0; i < TRACE_FATES; i++)
            labelled(out, "rollouts_total", "fate", trace_fate_name((enum trace_fate)i),
                     now.rollouts_by_fate[i]);
    }
    if (api->rollouts)
        number(out, "rollouts_stale_total", "counter",
               "Rollouts cancelled because they were too old.",
               rollouts_counts(api->rollouts).stale);
    struct api_callback_counts callbacks = api_callbacks_counts(api->callbacks);
    number(out, "callbacks_pending", "gauge", "Results that are being posted.", callbacks.pending);
    family(out, "callbacks_total", "counter", "Results that were posted, by how it ended.");
    labelled(out, "callbacks_total", "end", "delivered", callbacks.delivered);
    labelled(out, "callbacks_total", "end", "failed", callbacks.failed);
    number(out, "event_streams", "gauge", "Streams of events that are read.",
           api_events_streams(api->events));
    number(out, "sandboxes", "gauge", "Sandboxes that exist.", now.sandboxes);
    number(out, "sandboxes_created_total", "counter", "Sandboxes made.", now.sandboxes_created);
    number(out, "sandboxes_failed_total", "counter", "Sandboxes that could not be made.",
           now.sandboxes_failed);
    write_upstreams(out);
    if (api->gate) {
        struct gate_counts gate;
        gate_counts(api->gate, &gate);
        family(out, "gate_calls", "gauge", "Calls at the gate.");
        labelled(out, "gate_calls", "state", "held", gate.held);
        labelled(out, "gate_calls", "state", "leased", gate.leased);
        labelled(out, "gate_calls", "state", "streaming", gate.streaming);
        family(out, "gate_calls_total", "counter", "What became of calls at the gate.");
        labelled(out, "gate_calls_total", "what", "taken", gate.taken);
        labelled(out, "gate_calls_total", "what", "answered", gate.answered);
        labelled(out, "gate_calls_total", "what", "failed", gate.failed);
        labelled(out, "gate_calls_total", "what", "redelivered", gate.redelivered);
        labelled(out, "gate_calls_total", "what", "withdrawn", gate.withdrawn);
        labelled(out, "gate_calls_total", "what", "late", gate.late);
        number(out, "gate_paused", "gauge", "1 while calls are held back.", gate_paused(api->gate));
        number(out, "policy_version", "gauge", "Version of the weights.",
               (uint64_t)gate_policy(api->gate));
    }
    number(out, "journal_records_total", "counter", "Journal records on disk.", store.committed);
    number(out, "journal_commits_total", "counter", "Journal commits.", store.commits);
    number(out, "journal_queued_bytes", "gauge", "Bytes waiting for a commit.", store.queued_bytes);
    number(out, "journal_failed", "gauge", "1 when the last commit failed.", store.failed);
}
