/* model.c - what answers calls: model servers behind URLs, a script, or the trainer. Immutable
 * after model_open(), so that all lanes share it without locks; only the reference count and the
 * servers' seats (upstream_pool.c) move.
 *
 * A key comes from an environment variable or a file, never from the URL or the command line, and
 * stays in this room. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "gateway/inner.h"

#define KEY_BYTES_MAX 8192
#define FIRST_BYTE_MS (10 * 60 * 1000)
#define IDLE_MS (5 * 60 * 1000)
#define CONNECT_MS (10 * 1000)
#define ATTEMPTS 6
#define RETRY_MS (60 * 1000)
#define QUEUE_MAX 4096
#define SERVERS_MAX 64
#define UPSTREAMS_MAX 1024

/* All models there are, for metrics. */
static pthread_mutex_t models_lock = PTHREAD_MUTEX_INITIALIZER;
static struct list models = {&models, &models};
/* The counts of those that are gone. */
static struct model_upstream past[256];
static size_t past_count;
static void retire(struct model *model);

static uint32_t or_default(uint32_t value, uint32_t fallback)
{
    return value ? value : fallback;
}

/* A header value: visible ASCII, no blanks. The text of the error never holds the key. */
static int set_key(struct model *model, struct str key, const char *source, struct err *err)
{
    key = str_trim(key);
    if (!key.size)
        return err_set(err, ERR_INPUT, "the model's key in %s is empty", source);
    for (size_t i = 0; i < key.size; i++)
        if (!isgraph((unsigned char)key.data[i]))
            return err_set(err, ERR_INPUT, "the model's key in %s holds a blank or control byte",
                           source);
    model->key = str_dup(key);
    return 0;
}

static int read_key(struct model *model, const struct model_options *options, struct err *err)
{
    if (options->key_env && options->key_file)
        return err_set(err, ERR_INPUT, "the model's key has two sources: %s and '%s'",
                       options->key_env, options->key_file);
    if (options->key_env) {
        const char *value = getenv(options->key_env);
        if (!value)
            return err_set(err, ERR_INPUT,
                           "the environment variable %s (the model's key) is not set",
                           options->key_env);
        return set_key(model, str_of(value), options->key_env, err);
    }
    if (options->key_file) {
        OWN(buf) struct buf content = {0};
        if (file_read(options->key_file, KEY_BYTES_MAX, &content, err) < 0)
            return err_wrap(err, "the model's key");
        return set_key(model, buf_str(&content), options->key_file, err);
    }
    return 0;
}

static int add_server(struct model *model, struct str base, struct err *err)
{
    base = str_trim(base);
    while (base.size && base.data[base.size - 1] == '/')
        base.size--;
    if (model->pool.count == SERVERS_MAX)
        return err_set(err, ERR_LIMIT, "a model has at most %d servers", SERVERS_MAX);
    struct endpoint *endpoint = pool_add(&model->pool, base);
    struct http_url url;
    if (http_url_read(endpoint->base_url, &url, err) < 0)
        return err_wrap(err, "model '%s'", model->spec);
    if (str_find_byte(url.host, '@') >= 0)
        return err_set(err, ERR_INPUT, "a model's URL holds no user name or key");
    if (str_find_byte(url.path, '?') >= 0)
        return err_set(err, ERR_INPUT, "model '%s': the base URL has a query", model->spec);
    endpoint->bare = !url.unix_path.size && str_is(url.path, "/");
    return proxy_find(&url, &endpoint->proxy, &endpoint->proxy_authorization, err);
}

/* "URL,URL#name". */
static int read_url(struct model *model, struct err *err)
{
    struct str rest = str_of(model->spec);
    long hash = str_find_byte(rest, '#');
    if (hash < 0 || (size_t)hash + 1 == rest.size)
        return err_set(err, ERR_INPUT, "model '%s' names no model: write URL#name", model->spec);
    model->name = str_dup(str_from(rest, (size_t)hash + 1));
    rest = str_upto(rest, (size_t)hash);
    while (rest.data)
        if (add_server(model, str_cut(&rest, ','), err) < 0)
            return -1;
    model->base_url = model->pool.endpoints[0].base_url;
    return 0;
}

static int read_engine(struct model *model, const char *name, struct err *err)
{
    static const char *const names[] = {
        [DIALECT_ENGINE_AUTO] = "auto",
        [DIALECT_ENGINE_VLLM] = "vllm",
        [DIALECT_ENGINE_VLLM_GENERATE] = "vllm-generate",
        [DIALECT_ENGINE_SGLANG] = "sglang",
        [DIALECT_ENGINE_OPENAI] = "openai",
    };
    for (size_t i = 0; i < COUNT(names); i++) {
        if (name && name[0] && strcmp(name, names[i]) != 0)
            continue;
        model->engine = (enum dialect_engine)i;
        if (model->engine == DIALECT_ENGINE_VLLM_GENERATE && model->api &&
            model->api != &dialect_chat)
            return err_set(err, ERR_INPUT,
                           "the engine '%s' is spoken to in chat completions: the model's api is "
                           "chat or same, not %s",
                           name, dialect_name(model->api));
        return 0;
    }
    return err_set(err, ERR_INPUT,
                   "the engine '%s' is none of auto, vllm, vllm-generate, sglang, openai", name);
}

struct model *model_open(const char *spec, const struct model_options *options, struct err *err)
{
    static const struct model_options none;
    if (!options)
        options = &none;
    /* An '@' before the path would be a user name and perhaps a key: not even repeated in an error.
     */
    struct str rest = str_of(spec);
    for (long scheme; (scheme = str_find(rest, STR("://"))) >= 0;) {
        rest = str_from(rest, (size_t)scheme + 3);
        struct str after = rest;
        if (str_find_byte(str_cut(&after, '/'), '@') >= 0) {
            err_set(err, ERR_INPUT, "a model's URL holds no user name or key");
            return NULL;
        }
    }
    struct model *model = mem_zero(sizeof *model);
    atomic_init(&model->references, 1);
    pool_init(&model->pool);
    model->pool.parallel_max = options->parallel_max;
    model->pool.rate_max = options->rate_max;
    model->pool.queue_max = or_default(options->queue_max, QUEUE_MAX);
    model->thinking_off = options->thinking_off;
    pthread_mutex_lock(&models_lock);
    list_append(&models, &model->node);
    pthread_mutex_unlock(&models_lock);
    model->spec = mem_dup(spec);
    model->ca_file = mem_dup(options->ca_file);
    bool same = !options->api || !options->api[0] || strcmp(options->api, "same") == 0;
    model->api = same ? NULL : dialect_find(options->api);
    if (!same && !model->api) {
        err_set(err, ERR_INPUT,
                "the model's api '%s' is none of same, chat, messages, responses, google, "
                "completions",
                options->api);
        model_unref(model);
        return NULL;
    }
    model->options = (struct model_options){
        .first_byte_ms_max = or_default(options->first_byte_ms_max, FIRST_BYTE_MS),
        .idle_ms_max = or_default(options->idle_ms_max, IDLE_MS),
        .connect_ms_max = or_default(options->connect_ms_max, CONNECT_MS),
        .attempts_max = or_default(options->attempts_max, ATTEMPTS),
        .retry_ms_max = or_default(options->retry_ms_max, RETRY_MS),
    };
    int result;
    if (str_starts(str_of(spec), STR("script:"))) {
        model->script = script_open(spec + 7, err);
        result = model->script ? 0 : -1;
        if (model->script)
            model->name = mem_dup(script_name(model->script));
    } else if (str_starts(str_of(spec), STR("replay:"))) {
        model->replay = replay_open(options->home, spec + 7, err);
        result = model->replay ? 0 : -1;
        if (model->replay)
            model->name = mem_dup(replay_name(model->replay));
    } else if (str_starts(str_of(spec), STR("gate:"))) {
        model->name = mem_dup(spec[5] ? spec + 5 : "policy");
        result = 0;
    } else if (str_starts(str_of(spec), STR("http://")) ||
               str_starts(str_of(spec), STR("https://")) ||
               str_starts(str_of(spec), STR("unix:"))) {
        result = read_url(model, err) < 0 || read_engine(model, options->engine, err) < 0
                     ? -1
                     : read_key(model, options, err);
    } else {
        result = err_set(
            err, ERR_INPUT,
            "model '%s' is none of http://..., https://..., script:FILE, replay:ROLLOUT, gate:NAME",
            spec);
    }
    atomic_store(&model->ready, result == 0);
    if (result == 0)
        return model;
    model_unref(model);
    return NULL;
}

struct model *model_ref(struct model *model)
{
    atomic_fetch_add(&model->references, 1);
    return model;
}

void model_unref(struct model *model)
{
    if (!model || atomic_fetch_sub(&model->references, 1) != 1)
        return;
    retire(model);
    pool_deinit(&model->pool);
    if (model->key)
        explicit_bzero(model->key, strlen(model->key));
    script_free(model->script);
    replay_free(model->replay);
    free(model->key);
    free(model->spec);
    free(model->name);
    free(model->ca_file);
    free(model);
}

const char *model_spec(const struct model *model)
{
    return model->spec;
}

const char *model_name(const struct model *model)
{
    return model->name;
}

/* ---------------------------------------------------------------- metrics */

static void add_up(struct model_upstream *sum, const struct model_upstream *more)
{
    sum->requests += more->requests;
    sum->failures += more->failures;
    sum->retries += more->retries;
    sum->ejections += more->ejections;
    sum->in_flight += more->in_flight;
    sum->waiting += more->waiting;
    sum->ejected |= more->ejected;
}

/* Under the lock. A pair that finds no place is left out of the list, not the models'. */
static void merge(struct model_upstream *list, size_t *count, size_t max,
                  const struct model_upstream *more, bool copy)
{
    for (size_t i = 0; i < *count; i++) {
        if (strcmp(list[i].url, more->url) == 0 && strcmp(list[i].model, more->model) == 0) {
            add_up(&list[i], more);
            return;
        }
    }
    if (*count == max)
        return;
    list[*count] = *more;
    if (copy) {
        list[*count].url = mem_dup(more->url);
        list[*count].model = mem_dup(more->model);
    }
    ++*count;
}

static void merge_model(struct model *model, struct model_upstream *list, size_t *count, size_t max,
                        bool copy)
{
    for (size_t i = 0; i < model->pool.count; i++) {
        struct model_upstream upstream;
        pool_read(&model->pool, i, &upstream);
        upstream.model = model->name;
        merge(list, count, max, &upstream, copy);
    }
}

static void retire(struct model *model)
{
    pthread_mutex_lock(&models_lock);
    list_remove(&model->node);
    if (atomic_load(&model->ready))
        merge_model(model, past, &past_count, COUNT(past), true);
    for (size_t i = 0; i < past_count; i++)
        past[i].ejected = false;
    pthread_mutex_unlock(&models_lock);
}

void model_each_upstream(void (*each)(void *context, const struct model_upstream *upstream),
                         void *context)
{
    OWN(mem) struct model_upstream *list = mem_alloc(UPSTREAMS_MAX * sizeof *list);
    size_t count = 0;
    pthread_mutex_lock(&models_lock);
    for (size_t i = 0; i < past_count; i++)
        merge(list, &count, UPSTREAMS_MAX, &past[i], false);
    LIST_EACH (node, &models) {
        struct model *model = LIST_OF(node, struct model, node);
        if (atomic_load(&model->ready))
            merge_model(model, list, &count, UPSTREAMS_MAX, false);
    }
    for (size_t i = 0; i < count; i++)
        each(context, &list[i]);
    pthread_mutex_unlock(&models_lock);
}
