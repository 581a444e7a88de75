/* metrics.c - GET /metrics: numbers in the Prometheus text format, version 0.0.4. */
#include "api/inner.h"
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
    labelled(out, "calls_ended_total", "end", "refused", now.calls_refused);
    number(out, "call_retries_total", "counter", "Attempts upstream beyond the first.",
           now.call_retries);
    number(out, "calls_in_flight", "gauge", "Model calls under way.", now.calls_in_flight);
    family(out, "tokens_total", "counter", "Tokens as model servers report them.");
    labelled(out, "tokens_total", "kind", "prompt", now.prompt_tokens);
    labelled(out, "tokens_total", "kind", "completion", now.completion_tokens);
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
    number(out, "sandboxes", "gauge", "Sandboxes that exist.", now.sandboxes);
    number(out, "sandboxes_created_total", "counter", "Sandboxes made.", now.sandboxes_created);
    number(out, "sandboxes_failed_total", "counter", "Sandboxes that could not be made.",
           now.sandboxes_failed);
    number(out, "journal_records_total", "counter", "Journal records on disk.", store.committed);
    number(out, "journal_commits_total", "counter", "Journal commits.", store.commits);
    number(out, "journal_queued_bytes", "gauge", "Bytes waiting for a commit.", store.queued_bytes);
    number(out, "journal_failed", "gauge", "1 when the last commit failed.", store.failed);
}
