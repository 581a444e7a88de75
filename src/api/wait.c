/* wait.c - requests that wait until a rollout, or every rollout of a group, is over (long-poll).
 *
 * A request that waits is in the list of what it waits for, so that an end finds those it concerns
 * and no others. When its time is up it is answered with how things stand. */
#include <stdlib.h>

#include "api/inner.h"
#include "base/err.h"
#include "base/mem.h"
#include "http/http.h"
#include "loop/loop.h"

struct topic {
    char *id;
    bool group;
    struct list waits;
};

struct wait {
    struct list link;
    struct api *api;
    struct topic *topic;
    struct http_exchange *exchange;
    struct loop_timer timer;
};

static void topic_name(const char *id, bool group, struct buf *out)
{
    buf_format(out, "%s/%s", group ? "group" : "rollout", id);
}

static void wait_free(struct wait *wait)
{
    struct topic *topic = wait->topic;
    loop_timer_stop(&wait->timer);
    list_remove(&wait->link);
    if (list_empty(&topic->waits)) {
        OWN(buf) struct buf name = {0};
        topic_name(topic->id, topic->group, &name);
        map_remove(&wait->api->waiting, buf_str(&name));
        free(topic->id);
        free(topic);
    }
    free(wait);
}

static void answer(struct wait *wait)
{
    struct api *api = wait->api;
    const struct topic *topic = wait->topic;
    OWN(buf) struct buf body = {0};
    struct err err = {0};
    int result = topic->group ? api_write_group(api, topic->id, &body, &err)
                              : api_write_rollout(api, topic->id, &body, &err);
    if (result < 0)
        api_answer_error(wait->exchange, &err);
    else
        http_respond_json(wait->exchange, 200, buf_str(&body));
    wait_free(wait);
}

static void on_time_up(struct loop_timer *timer)
{
    answer(timer->context);
}

static void on_gone(void *context)
{
    wait_free(context);
}

void api_wait(struct api *api, struct http_exchange *exchange, const char *id, bool group,
              uint32_t wait_ms)
{
    OWN(buf) struct buf name = {0};
    topic_name(id, group, &name);
    struct topic *topic = map_get(&api->waiting, buf_str(&name));
    if (!topic) {
        topic = mem_zero(sizeof *topic);
        topic->id = mem_dup(id);
        topic->group = group;
        list_init(&topic->waits);
        map_put(&api->waiting, buf_str(&name), topic);
    }
    struct wait *wait = mem_zero(sizeof *wait);
    wait->api = api;
    wait->topic = topic;
    wait->exchange = exchange;
    list_append(&topic->waits, &wait->link);
    loop_timer_start(api->loop, &wait->timer, wait_ms, on_time_up, wait);
    http_exchange_notify(exchange, 0, NULL, on_gone, wait);
}

static void answer_topic(struct api *api, const char *id, bool group)
{
    OWN(buf) struct buf name = {0};
    topic_name(id, group, &name);
    /* The topic goes with its last request. */
    for (struct topic *topic; (topic = map_get(&api->waiting, buf_str(&name)));)
        answer(LIST_OF(topic->waits.next, struct wait, link));
}

void api_wait_event(struct api *api, const struct rollout_event *event)
{
    const struct rollout_view *view = event->view;
    if (event->kind != ROLLOUT_EVENT_FINAL || !api->waiting.count)
        return;
    answer_topic(api, view->id, false);
    if (view->group[0] && !rollouts_group_live(api->rollouts, view->group))
        answer_topic(api, view->group, true);
}

void api_wait_close(struct api *api)
{
    size_t at = 0;
    for (struct topic *topic; (topic = map_next(&api->waiting, &at, NULL)); at = 0)
        answer(LIST_OF(topic->waits.next, struct wait, link));
    map_deinit(&api->waiting);
}
