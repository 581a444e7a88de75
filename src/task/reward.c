/* reward.c - reading what a verifier left: one finite number, or nothing.
 *
 * The text was written inside a sandbox, so it is taken for what it is: a decimal number with
 * blanks around it at most. "nan", "inf", hexadecimal floats, numbers too large for a double, empty
 * files and words are refused with a reason; a refused reward is no reward, never 0. */
#include "task/task.h"

#include <math.h>

#include "base/mem.h"
#include "json/json.h"
#include "task/internal.h"

/* A decimal number as JSON writes it, but also "+1", ".5" and "5.". */
static bool looks_decimal(struct str text)
{
    size_t at = 0, digits = 0;
    if (at < text.size && (text.data[at] == '-' || text.data[at] == '+'))
        at++;
    for (; at < text.size && text.data[at] >= '0' && text.data[at] <= '9'; at++)
        digits++;
    if (at < text.size && text.data[at] == '.')
        for (at++; at < text.size && text.data[at] >= '0' && text.data[at] <= '9'; at++)
            digits++;
    if (!digits)
        return false;
    if (at < text.size && (text.data[at] == 'e' || text.data[at] == 'E')) {
        at++;
        if (at < text.size && (text.data[at] == '-' || text.data[at] == '+'))
            at++;
        size_t exponent = at;
        while (at < text.size && text.data[at] >= '0' && text.data[at] <= '9')
            at++;
        if (at == exponent)
            return false;
    }
    return at == text.size;
}

bool task_reward_read(struct str text, double *reward, struct err *err)
{
    struct str number = str_trim(text);
    if (!number.size) {
        err_set(err, ERR_PROTOCOL, "the reward file is empty");
        return false;
    }
    char shown[41];
    size_t size = number.size < sizeof shown - 1 ? number.size : sizeof shown - 1;
    for (size_t i = 0; i < size; i++)
        shown[i] = number.data[i] >= ' ' && number.data[i] < 127 ? number.data[i] : '?';
    shown[size] = '\0';
    double value;
    if (number.size > 64 || !looks_decimal(number) || !str_to_double(number, &value)) {
        err_set(err, ERR_PROTOCOL, "the reward '%s' is not a finite number", shown);
        return false;
    }
    if (!isfinite(value)) {
        err_set(err, ERR_PROTOCOL, "the reward '%s' is not a finite number", shown);
        return false;
    }
    *reward = value;
    return true;
}

/* Every member a finite number: one that is not makes all of it worthless. */
static bool read_members(struct json root, double *mean, bool *named, double *reward,
                         struct err *err)
{
    OWN(arena) struct arena arena = {.bytes_max = 1 << 20};
    double sum = 0;
    size_t count = 0;
    JSON_EACH (item, root) {
        double value;
        struct str name = json_str(item.key, &arena);
        if (json_type(item.value) != JSON_NUMBER) {
            err_set(err, ERR_PROTOCOL, "reward.json: \"%.*s\" is not a number",
                    (int)(name.size < 60 ? name.size : 60), name.data ? name.data : "");
            return false;
        }
        if (!task_reward_read(json_raw(item.value), &value, err)) {
            err_wrap(err, "reward.json: \"%.*s\"", (int)(name.size < 60 ? name.size : 60),
                     name.data ? name.data : "");
            return false;
        }
        if (str_is(name, "reward")) {
            *named = true;
            *reward = value;
        }
        sum += value;
        count++;
    }
    if (!count) {
        err_set(err, ERR_PROTOCOL, "reward.json is an empty object");
        return false;
    }
    *mean = sum / (double)count;
    if (!*named && !isfinite(*mean)) {
        err_set(err, ERR_PROTOCOL, "the rewards in reward.json have no finite mean");
        return false;
    }
    return true;
}

bool task_reward_read_json(struct str text, double *reward, struct str *detail, struct err *err)
{
    OWN(json_doc) struct json_doc doc = {0};
    struct json_limits limits = {.depth_max = 16, .nodes_max = 4096};
    if (json_read(&doc, text, &limits, err) < 0) {
        err_wrap(err, "reward.json");
        if (err)
            err->kind = ERR_PROTOCOL;
        return false;
    }
    struct json root = json_root(&doc);
    if (json_type(root) == JSON_NUMBER)
        return task_reward_read(json_raw(root), reward, err);
    if (json_type(root) != JSON_OBJECT) {
        err_set(err, ERR_PROTOCOL, "reward.json is neither a number nor an object of numbers");
        return false;
    }
    double mean = 0, value = 0;
    bool named = false;
    if (!read_members(root, &mean, &named, &value, err))
        return false;
    *reward = named ? value : mean;
    *detail = json_raw(root);
    return true;
}

/* ---------------------------------------------------------------- several steps */
/* A named number of a step: the reward itself, or a member of its detail. NAN: it has none. */
static double member(const struct trace_reward *reward, struct str name)
{
    OWN(json_doc) struct json_doc doc = {0};
    double value = NAN;
    if (!reward->known || !reward->detail.size || json_read(&doc, reward->detail, NULL, NULL) < 0)
        return NAN;
    struct json found = json_get_str(json_root(&doc), name);
    if (json_type(found) == JSON_NUMBER && !task_reward_read(json_raw(found), &value, NULL))
        return NAN;
    return value;
}

bool task_reward_suffices(const struct task *step, const struct trace_reward *reward)
{
    for (size_t i = 0; i < step->reward_min_count; i++) {
        const struct task_reward_min *least = &step->reward_min[i];
        double value = least->name ? member(reward, str_of(least->name)) : reward->value;
        if ((isnan(value) ? 0 : value) < least->value)
            return false;
    }
    return true;
}

static double rolled(const struct task *task, const struct trace_reward *each, size_t count,
                     struct str name)
{
    double sum = 0;
    for (size_t i = 0; i < count; i++) {
        double value = name.data ? member(&each[i], name) : each[i].known ? each[i].value : 0;
        if (task->roll_up == TASK_ROLL_UP_MEAN)
            sum += isnan(value) ? 0 : value;
        else if (each[i].known)
            sum = isnan(value) ? 0 : value;
    }
    return task->roll_up == TASK_ROLL_UP_MEAN ? sum / (double)count : sum;
}

/* Names that earlier steps had are written already. */
static bool seen_before(const struct trace_reward *each, size_t before, struct str name)
{
    for (size_t i = 0; i < before; i++)
        if (!isnan(member(&each[i], name)))
            return true;
    return false;
}

struct trace_reward task_roll_up(const struct task *task, const struct trace_reward *each,
                                 size_t count, struct arena *arena)
{
    OWN(buf) struct buf text = {0};
    struct json_writer out = {.out = &text};
    struct trace_reward all = {.known = true, .source = "steps"};
    all.value = rolled(task, each, count, STR_NONE);
    json_begin_object(&out);
    json_set_double(&out, "reward", all.value);
    for (size_t i = 0; i < count; i++) {
        OWN(json_doc) struct json_doc doc = {0};
        if (!each[i].known || !each[i].detail.size ||
            json_read(&doc, each[i].detail, NULL, NULL) < 0)
            continue;
        JSON_EACH (item, json_root(&doc)) {
            OWN(arena) struct arena scratch = {.bytes_max = 1 << 20};
            struct str name = json_str(item.key, &scratch);
            if (str_is(name, "reward") || seen_before(each, i, name))
                continue;
            json_key_str(&out, name);
            json_put_double(&out, rolled(task, each, count, name));
        }
    }
    json_end_object(&out);
    all.detail = arena_str(arena, buf_str(&text));
    return all;
}
