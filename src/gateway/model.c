/* model.c - what answers calls: a model server behind a URL, or a script. Immutable after
 * model_open(), so that all lanes share it without locks; only the reference count moves.
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

static int read_url(struct model *model, struct err *err)
{
    struct str base = str_of(model->spec);
    long hash = str_find_byte(base, '#');
    if (hash < 0 || (size_t)hash + 1 == base.size)
        return err_set(err, ERR_INPUT, "model '%s' names no model: write URL#name", model->spec);
    model->name = str_dup(str_from(base, (size_t)hash + 1));
    base = str_upto(base, (size_t)hash);
    while (base.size && base.data[base.size - 1] == '/')
        base.size--;
    model->base_url = str_dup(base);
    struct http_url url;
    if (http_url_read(model->base_url, &url, err) < 0)
        return err_wrap(err, "model '%s'", model->spec);
    if (str_find_byte(url.host, '@') >= 0)
        return err_set(err, ERR_INPUT, "a model's URL holds no user name or key");
    if (str_find_byte(url.path, '?') >= 0)
        return err_set(err, ERR_INPUT, "model '%s': the base URL has a query", model->spec);
    return 0;
}

struct model *model_open(const char *spec, const struct model_options *options, struct err *err)
{
    static const struct model_options none;
    if (!options)
        options = &none;
    /* An '@' before the path would be a user name and perhaps a key: not even repeated in an error.
     */
    struct str authority = str_of(spec);
    long scheme = str_find(authority, STR("://"));
    if (scheme >= 0) {
        struct str rest = str_from(authority, (size_t)scheme + 3);
        authority = str_cut(&rest, '/');
        if (str_find_byte(authority, '@') >= 0) {
            err_set(err, ERR_INPUT, "a model's URL holds no user name or key");
            return NULL;
        }
    }
    struct model *model = mem_zero(sizeof *model);
    atomic_init(&model->references, 1);
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
    } else if (str_starts(str_of(spec), STR("gate:"))) {
        model->name = mem_dup(spec[5] ? spec + 5 : "policy");
        result = 0;
    } else if (str_starts(str_of(spec), STR("http://")) ||
               str_starts(str_of(spec), STR("https://")) ||
               str_starts(str_of(spec), STR("unix:"))) {
        result = read_url(model, err) < 0 ? -1 : read_key(model, options, err);
    } else {
        result =
            err_set(err, ERR_INPUT,
                    "model '%s' is none of http://..., https://..., script:FILE, gate:NAME", spec);
    }
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
    if (model->key)
        explicit_bzero(model->key, strlen(model->key));
    script_free(model->script);
    free(model->key);
    free(model->spec);
    free(model->name);
    free(model->base_url);
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
