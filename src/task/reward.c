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

bool task_reward_read_json(struct str text, double *reward, struct str *detail, struct err *err)
{
    OWN(json_doc) struct json_doc doc = {0};
    struct json_limits limits = {.depth_max = 16, .nodes_max = 4096};
    if (json_read(&doc, text, &limits, err) < 0) {
        err_wrap(err, "reward.json");
        return false;
    }
    struct json root = json_root(&doc);
    if (json_type(root) == JSON_NUMBER)
        return task_reward_read(json_raw(root), reward, err);
    struct json value = json_get(root, "reward");
    if (json_type(value) != JSON_NUMBER) {
        err_set(err, ERR_PROTOCOL, "reward.json has no number \"reward\"");
        return false;
    }
    if (!task_reward_read(json_raw(value), reward, err))
        return false;
    *detail = json_raw(root);
    return true;
}
