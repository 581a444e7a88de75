/* sampling.c - what a rollout imposes on the calls of its agent in mode proxy:
 *
 *     {"temperature": 0.7, "top_p": 0.9, "max_tokens": 4096, "thinking": false}
 *
 * `max_tokens` is a cap: an agent that asks for less gets less. Whatever is accepted here reaches
 * the model server; a member we do not know is an error, never ignored. */
#include "gateway/gateway.h"

#include "base/mem.h"
#include "json/json.h"

#define TEMPERATURE_MAX 100.0
#define TOKENS_MAX 1000000000ll

static int read_between(struct json value, const char *name, double from, double to, double *out,
                        struct err *err)
{
    if (json_double(value, out) && *out >= from && *out <= to)
        return 0;
    return err_set(err, ERR_INPUT, "'sampling.%s' is a number from %g to %g", name, from, to);
}

static int read_tokens(struct json value, int64_t *out, struct err *err)
{
    long long tokens;
    if (!json_int(value, &tokens) || tokens < 1 || tokens > TOKENS_MAX)
        return err_set(err, ERR_INPUT, "'sampling.max_tokens' is a whole number from 1 to %lld",
                       TOKENS_MAX);
    *out = tokens;
    return 0;
}

static int read_thinking(struct json value, enum gateway_thinking *out, struct err *err)
{
    if (json_type(value) != JSON_TRUE && json_type(value) != JSON_FALSE)
        return err_set(err, ERR_INPUT, "'sampling.thinking' is true or false");
    *out = json_true(value) ? GATEWAY_THINKING_ON : GATEWAY_THINKING_OFF;
    return 0;
}

static int read_member(struct json key, struct json value, struct gateway_sampling *out,
                       struct err *err)
{
    if (json_is(key, "temperature")) {
        out->has_temperature = true;
        return read_between(value, "temperature", 0, TEMPERATURE_MAX, &out->temperature, err);
    }
    if (json_is(key, "top_p")) {
        out->has_top_p = true;
        return read_between(value, "top_p", 0, 1, &out->top_p, err);
    }
    if (json_is(key, "max_tokens"))
        return read_tokens(value, &out->tokens_max, err);
    if (json_is(key, "thinking"))
        return read_thinking(value, &out->thinking, err);
    return err_set(err, ERR_INPUT,
                   "'sampling.%.*s' is not known; there are temperature, top_p, max_tokens and "
                   "thinking",
                   STR_ARGS(json_raw(key)));
}

int gateway_sampling_read(struct str text, enum gateway_mode mode, struct gateway_sampling *out,
                          struct err *err)
{
    OWN(json_doc) struct json_doc doc = {0};
    *out = (struct gateway_sampling){0};
    if (json_read(&doc, text, NULL, err) < 0) {
        err->kind = ERR_INPUT;
        return err_wrap(err, "'sampling'");
    }
    if (json_type(json_root(&doc)) != JSON_OBJECT)
        return err_set(err, ERR_INPUT, "'sampling' is an object");
    JSON_EACH (item, json_root(&doc)) {
        if (read_member(item.key, item.value, out, err) < 0)
            return -1;
    }
    if (mode != GATEWAY_PROXY && json_size(json_root(&doc)))
        return err_set(err, ERR_INPUT, "'sampling' is imposed in mode proxy only: in mode %s %s",
                       gateway_mode_name(mode),
                       mode == GATEWAY_GATE ? "the trainer samples"
                                            : "calls are relayed untouched");
    return 0;
}
