/* The control listener through its door: who is let in, what the routes say. */
#include "api/api.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "http/http.h"
#include "json/json.h"
#include "loop/loop.h"
#include "store/store.h"
#include "test.h"

struct world {
    int (*submit)(void *context, const struct api_submit *orders, size_t count,
                  struct api_receipt *receipt, struct err *err);
    struct loop *loop;
    char home[64];
    struct store *store;
    struct api *api;
    struct http_client *client;
    char token[128];
    bool closed;
    /* The last answer. */
    bool done;
    int status;
    char type[64];
    struct buf body;
    int pending;
};

static void on_head(void *context, const struct http_answer_head *head)
{
    struct world *world = context;
    world->status = head->status;
    snprintf(world->type, sizeof world->type, "%.*s",
             STR_ARGS(http_answer_header(head, "content-type")));
}

static void on_data(void *context, struct str data)
{
    buf_str_append(&((struct world *)context)->body, data);
}

static void on_done(void *context, const struct err *err, bool sent_nothing)
{
    (void)err;
    (void)sent_nothing;
    ((struct world *)context)->done = true;
}

/* `authorization` NULL: none. Returns the status. */
static int ask_as(struct world *world, const char *authorization, const char *method,
                  const char *path)
{
    static const struct http_call_handlers handlers = {on_head, on_data, on_done};
    struct http_header header = {STR("authorization"), str_of(authorization)};
    OWN(mem) char *url = mem_format("http://127.0.0.1:%u%s", api_port(world->api), path);
    struct http_request request = {
        .method = method, .url = url, .headers = &header, .header_count = authorization ? 1 : 0};
    world->done = false;
    world->status = 0;
    buf_clear(&world->body);
    (void)http_call_start(world->client, &request, &handlers, world);
    while (!world->done)
        loop_once(world->loop, 100);
    return world->status;
}

static int ask(struct world *world, const char *path)
{
    OWN(mem) char *authorization = mem_format("Bearer %s", world->token);
    return ask_as(world, authorization, "GET", path);
}

static bool has(struct world *world, const char *text)
{
    return str_find(buf_str(&world->body), str_of(text)) >= 0;
}

static bool write_live(void *context, const char *id, struct json_writer *out)
{
    (void)context;
    if (strcmp(id, "r-young") != 0 && strcmp(id, "r-2running") != 0)
        return false;
    json_begin_object(out);
    json_set_text(out, "id", id);
    json_set_text(out, "activity", "running bash");
    json_end_object(out);
    return true;
}

static void read_metrics(void *context, struct api_metrics *out)
{
    (void)context;
    static const uint64_t fates[16] = {7, 2};
    out->calls = 41;
    out->calls_refused = 17;
    out->rollouts_running = 3;
    out->rollouts_by_fate = fates;
    out->sandboxes = 5;
}

static void committed(void *context, const struct err *err)
{
    (void)err;
    ((struct world *)context)->pending--;
}

static void put(struct world *world, const struct store_rollout *row)
{
    world->pending++;
    if (store_put_rollout(world->store, world->loop, row, committed, world, NULL) < 0)
        abort();
    while (world->pending)
        loop_once(world->loop, 100);
}

static void world_make(struct world *world)
{
    log_setup(LOG_OFF, false);
    snprintf(world->home, sizeof world->home, "/tmp/test-api-XXXXXX");
    if (!mkdtemp(world->home))
        abort();
    world->loop = loop_new(NULL);
    world->store = store_open(world->home, NULL);
    world->client = http_client_new(world->loop, &(struct http_client_options){0});
}

static int world_open(struct world *world, struct err *err)
{
    struct api_options options = {.home = world->home,
                                  .store = world->store,
                                  .write_live = write_live,
                                  .read_metrics = read_metrics,
                                  .submit = world->submit};
    world->api = api_open(world->loop, &options, err);
    if (!world->api)
        return -1;
    OWN(buf) struct buf token = {0};
    if (file_read(api_token_file(world->api), 1000, &token, err) < 0)
        return -1;
    snprintf(world->token, sizeof world->token, "%.*s", STR_ARGS(str_trim(buf_str(&token))));
    return 0;
}

static void on_closed(void *context)
{
    ((struct world *)context)->closed = true;
}

static void world_end(struct world *world)
{
    http_client_free(world->client);
    if (world->api) {
        api_close(world->api, 0, on_closed, world);
        while (!world->closed)
            loop_once(world->loop, 100);
    }
    store_close(world->store);
    loop_once(world->loop, 0);
    loop_free(world->loop);
    buf_deinit(&world->body);
    (void)file_remove_tree(world->home, NULL);
}

TEST(only_health_answers_without_the_token)
{
    struct world world = {0};
    world_make(&world);
    struct err err = {0};
    EXPECT_INT(world_open(&world, &err), 0);
    EXPECT_INT(ask_as(&world, NULL, "GET", "/health"), 200);
    EXPECT_STR(buf_str(&world.body), STR("{\"status\":\"ok\"}"));
    static const char *const paths[] = {"/v1/version", "/v1/rollouts", "/v1/rollouts/r-1",
                                        "/metrics",    "/nothing",     "/"};
    OWN(mem) char *half = mem_format("Bearer %.20s", world.token);
    OWN(mem) char *twice = mem_format("Bearer %s%s", world.token, world.token);
    OWN(mem) char *basic = mem_format("Basic %s", world.token);
    const char *const wrong[] = {NULL, "Bearer", "Bearer ", "Bearer x",
                                 half, twice,    basic,     world.token};
    for (size_t i = 0; i < COUNT(paths); i++)
        for (size_t j = 0; j < COUNT(wrong); j++)
            EXPECT_INT(ask_as(&world, wrong[j], "GET", paths[i]), 401);
    EXPECT_INT(ask(&world, "/v1/version"), 200);
    EXPECT(has(&world, "\"name\":\"postern\""));
    EXPECT_INT(ask(&world, "/nothing"), 404);
    OWN(mem) char *right = mem_format("Bearer %s", world.token);
    EXPECT_INT(ask_as(&world, right, "DELETE", "/v1/rollouts"), 405);
    world_end(&world);
}

TEST(the_token_is_made_once_for_its_owner_only_and_bad_ones_are_refused)
{
    struct world world = {0};
    world_make(&world);
    struct err err = {0};
    EXPECT_INT(world_open(&world, &err), 0);
    OWN(mem) char *path = mem_format("%s/token", world.home);
    EXPECT_TEXT(api_token_file(world.api), path);
    struct stat status;
    EXPECT_INT(stat(path, &status), 0);
    EXPECT_INT(status.st_mode & 0777, 0600);
    EXPECT_INT(strlen(world.token), 64);
    char first[128];
    memcpy(first, world.token, sizeof first);
    api_close(world.api, 0, on_closed, &world);
    while (!world.closed)
        loop_once(world.loop, 100);
    world.closed = false;
    EXPECT_INT(world_open(&world, &err), 0);
    EXPECT_TEXT(world.token, first);
    api_close(world.api, 0, on_closed, &world);
    while (!world.closed)
        loop_once(world.loop, 100);
    world.closed = false;
    static const char *const bad[] = {"", " \n\t\n", "short", "two words in one token here"};
    for (size_t i = 0; i < COUNT(bad); i++) {
        EXPECT_INT(file_write(path, str_of(bad[i]), 0600, false, NULL), 0);
        EXPECT_INT(world_open(&world, &err), -1);
        EXPECT_INT(err.kind, ERR_INPUT);
        EXPECT(strstr(err.text, path));
    }
    world_end(&world);
}

TEST(rollouts_are_listed_newest_first_page_by_page)
{
    struct world world = {0};
    world_make(&world);
    EXPECT_INT(world_open(&world, NULL), 0);
    for (int i = 0; i < 5; i++) {
        char id[16];
        snprintf(id, sizeof id, "r-%d", i);
        put(&world, &(struct store_rollout){.id = id,
                                            .task = i % 2 ? "odd" : "even",
                                            .stage = "done",
                                            .has_reward = true,
                                            .reward = i});
    }
    EXPECT_INT(ask(&world, "/v1/rollouts?limit=2"), 200);
    EXPECT(has(&world, "\"id\":\"r-4\""));
    EXPECT(has(&world, "\"id\":\"r-3\""));
    EXPECT(!has(&world, "\"id\":\"r-2\""));
    EXPECT(has(&world, "\"next\":\"r-3\""));
    EXPECT_INT(ask(&world, "/v1/rollouts?limit=3&before=r-3"), 200);
    EXPECT(has(&world, "\"id\":\"r-0\""));
    EXPECT(!has(&world, "\"id\":\"r-3\""));
    EXPECT_INT(ask(&world, "/v1/rollouts?task=odd"), 200);
    EXPECT(has(&world, "\"id\":\"r-1\""));
    EXPECT(!has(&world, "\"id\":\"r-2\""));
    EXPECT(has(&world, "\"next\":null"));
    static const char *const bad[] = {"limit=0",    "limit=x",   "limit=100000",  "limit=-1",
                                      "task=a%00b", "fate=okay", "stage=finished"};
    for (size_t i = 0; i < COUNT(bad); i++) {
        OWN(mem) char *path = mem_format("/v1/rollouts?%s", bad[i]);
        EXPECT_INT(ask(&world, path), 400);
    }
    EXPECT(has(&world, "\"field\":\"stage\""));
    EXPECT(has(&world, "queued, provisioning"));
    world_end(&world);
}

TEST(a_rollout_is_its_result_or_how_it_stands_or_its_row)
{
    struct world world = {0};
    world_make(&world);
    EXPECT_INT(world_open(&world, NULL), 0);
    OWN(mem) char *dir = mem_format("%s/rollouts/r-1done", world.home);
    OWN(mem) char *result = mem_format("%s/result.json", dir);
    EXPECT_INT(file_make_dirs(dir, 0700, NULL), 0);
    EXPECT_INT(file_write(result, STR("{\"the\":\"result\"}"), 0600, false, NULL), 0);
    put(&world, &(struct store_rollout){.id = "r-1done", .stage = "done", .fate = "ok"});
    put(&world, &(struct store_rollout){.id = "r-2running", .stage = "running"});
    put(&world, &(struct store_rollout){.id = "r-3lost", .stage = "failed", .error = "gone"});
    EXPECT_INT(ask(&world, "/v1/rollouts/r-1done"), 200);
    EXPECT_STR(buf_str(&world.body), STR("{\"the\":\"result\"}"));
    EXPECT_INT(ask(&world, "/v1/rollouts/r-1"), 200);
    EXPECT_INT(ask(&world, "/v1/rollouts/r-2running"), 200);
    EXPECT(has(&world, "running bash"));
    EXPECT_INT(ask(&world, "/v1/rollouts/r-3lost"), 200);
    EXPECT(has(&world, "\"error\":\"gone\""));
    EXPECT_INT(ask(&world, "/v1/rollouts/r-young"), 200);
    EXPECT(has(&world, "running bash"));
    EXPECT_INT(ask(&world, "/v1/rollouts/r-"), 409);
    static const char *const paths[] = {"/v1/rollouts/r-none", "/v1/rollouts/..%2f..%2fetc",
                                        "/v1/rollouts/%00", "/v1/rollouts/r-1done/x"};
    for (size_t i = 0; i < COUNT(paths); i++)
        EXPECT_INT(ask(&world, paths[i]), 404);
    world_end(&world);
}

TEST(metrics_are_in_the_text_format)
{
    struct world world = {0};
    world_make(&world);
    EXPECT_INT(world_open(&world, NULL), 0);
    EXPECT_INT(ask(&world, "/metrics"), 200);
    EXPECT(str_starts(str_of(world.type), STR("text/plain; version=0.0.4")));
    EXPECT(has(&world, "\npostern_calls_total 41\n"));
    EXPECT(has(&world, "\npostern_inlet_refused_total 17\n"));
    EXPECT(!has(&world, "postern_calls_ended_total{end=\"refused\"}")); /* they were none */
    EXPECT(has(&world, "# TYPE postern_rollouts_total counter\n"));
    EXPECT(has(&world, "postern_rollouts_total{fate=\"ok\"} 7\n"));
    EXPECT(has(&world, "postern_rollouts{state=\"running\"} 3\n"));
    EXPECT(has(&world, "postern_sandboxes 5\n"));
    EXPECT(has(&world, "postern_journal_failed 0\n"));
    world_end(&world);
}

static bool count_row(void *context, const struct store_rollout *row)
{
    (void)row;
    ++*(size_t *)context;
    return true;
}

static size_t callbacks_pending(struct world *world)
{
    struct store_query query = {.callback_pending = true, .limit = 1000};
    size_t count = 0;
    if (store_list_rollouts(world->store, &query, count_row, &count, NULL) < 0)
        abort();
    return count;
}

/* Only so many wait in memory; the rest must be looked up when there is room again. */
TEST(more_callbacks_than_fit_into_memory_are_all_dealt_with)
{
    enum { ALL = 1200 };
    struct world world = {0};
    world_make(&world);
    for (int i = 0; i < ALL; i++) {
        char id[32];
        snprintf(id, sizeof id, "r-%05d", i);
        struct store_rollout row = {.id = id,
                                    .stage = "done",
                                    .fate = "ok",
                                    .callback = "{\"url\":\"http://192.0.2.1/not-allowed\"}",
                                    .callback_state = "pending"};
        world.pending++;
        EXPECT_INT(store_put_rollout(world.store, world.loop, &row, committed, &world, NULL), 0);
    }
    while (world.pending)
        loop_once(world.loop, 100);
    EXPECT_INT(callbacks_pending(&world), 1000); /* a whole page */
    EXPECT_INT(world_open(&world, NULL), 0);
    while (callbacks_pending(&world)) /* the test's own deadline bounds it */
        loop_once(world.loop, 50);
    /* None of them twice: who looks for more does not find those whose end is on its way. */
    EXPECT_INT(ask(&world, "/metrics"), 200);
    EXPECT(has(&world, "postern_callbacks_total{end=\"failed\"} 1200\n"));
    world_end(&world);
}

/* ---------------------------------------------------------------- submissions */
struct post {
    bool done;
    int status;
    struct buf body;
};

static void post_head(void *context, const struct http_answer_head *head)
{
    ((struct post *)context)->status = head->status;
}

static void post_data(void *context, struct str data)
{
    buf_str_append(&((struct post *)context)->body, data);
}

static void post_done(void *context, const struct err *err, bool sent_nothing)
{
    (void)err;
    (void)sent_nothing;
    ((struct post *)context)->done = true;
}

static void post(struct world *world, const char *body, struct post *out)
{
    static const struct http_call_handlers handlers = {post_head, post_data, post_done};
    OWN(mem) char *authorization = mem_format("Bearer %s", world->token);
    OWN(mem) char *url = mem_format("http://127.0.0.1:%u/v1/rollouts", api_port(world->api));
    struct http_header header = {STR("authorization"), str_of(authorization)};
    struct http_request request = {
        .method = "POST", .url = url, .headers = &header, .header_count = 1, .body = str_of(body)};
    (void)http_call_start(world->client, &request, &handlers, out);
}

static struct api_receipt held;
static int submitted;

static int hold(void *context, const struct api_submit *orders, size_t count,
                struct api_receipt *receipt, struct err *err)
{
    (void)context;
    (void)orders;
    (void)err;
    if (count != 1)
        abort();
    snprintf(receipt->ids[0], ID_MAX, "r-%d", ++submitted);
    held = *receipt;
    return 0;
}

TEST(who_repeats_a_submission_has_its_fate)
{
    struct world world = {0};
    struct err err = {0};
    static const char body[] = "{\"agent\":\"a\",\"task\":\"t\",\"model\":\"m\",\"key\":\"k\"}";
    world_make(&world);
    world.submit = hold;
    EXPECT_INT(world_open(&world, &err), 0);
    for (int kept = 0; kept < 2; kept++) {
        struct post first = {0}, again = {0};
        post(&world, body, &first);
        while (submitted == kept)
            loop_once(world.loop, 100);
        struct store_counts before, now;
        store_counts(world.store, &before);
        post(&world, body, &again);
        do { /* until its own note is in the journal */
            loop_once(world.loop, 10);
            store_counts(world.store, &now);
        } while (now.committed == before.committed);
        for (int i = 0; i < 10; i++)
            loop_once(world.loop, 1);
        EXPECT(!first.done && !again.done);
        EXPECT_INT(submitted, kept + 1);
        struct err fate = {0};
        if (kept)
            put(&world, &(struct store_rollout){
                            .id = "r-2", .stage = "queued", .key = "k", .key_hash = "x"});
        else
            err_set(&fate, ERR_DISK_FULL, "no room");
        held.on_stored(held.context, &fate);
        while (!first.done || !again.done)
            loop_once(world.loop, 100);
        EXPECT_INT(first.status, kept ? 201 : 507);
        EXPECT_INT(again.status, kept ? 200 : 503);
        EXPECT(!kept == (str_find(buf_str(&again.body), STR("r-")) < 0));
        buf_deinit(&first.body);
        buf_deinit(&again.body);
    }
    world_end(&world);
}

TEST(a_port_in_use_is_named)
{
    struct world world = {0};
    world_make(&world);
    EXPECT_INT(world_open(&world, NULL), 0);
    struct api_options options = {
        .home = world.home, .store = world.store, .port = api_port(world.api)};
    struct err err = {0};
    EXPECT(!api_open(world.loop, &options, &err));
    EXPECT(strstr(err.text, "the control listener"));
    loop_once(world.loop, 10);
    world_end(&world);
}
