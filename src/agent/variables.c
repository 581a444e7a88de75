/* variables.c - "{model}" and friends in specs. A brace that does not enclose a lower-case word is
 * just a brace, so that JSON in an argument needs no escaping. */
#include "agent/internal.h"

#include <stdio.h>

#include "base/buf.h"

const char *const agent_variable_names[AGENT_VARS + 1] = {
    [AGENT_VAR_INSTRUCTION] = "instruction",
    [AGENT_VAR_INSTRUCTION_FILE] = "instruction_file",
    [AGENT_VAR_SYSTEM] = "system",
    [AGENT_VAR_SYSTEM_FILE] = "system_file",
    [AGENT_VAR_MODEL] = "model",
    [AGENT_VAR_BASE_URL] = "base_url",
    [AGENT_VAR_INLET] = "inlet",
    [AGENT_VAR_KEY] = "key",
    [AGENT_VAR_WORKDIR] = "workdir",
    [AGENT_VAR_TURNS_MAX] = "turns_max",
};

/* Finds the next "{word}" at or after *at; the word is returned, *at is where its brace opens. */
static struct str next_word(struct str text, size_t *at)
{
    for (size_t i = *at; i < text.size; i++) {
        if (text.data[i] != '{')
            continue;
        size_t end = i + 1;
        while (end < text.size &&
               ((text.data[end] >= 'a' && text.data[end] <= 'z') || text.data[end] == '_'))
            end++;
        if (end == i + 1 || end == text.size || text.data[end] != '}')
            continue;
        *at = i;
        return str_make(text.data + i + 1, end - i - 1);
    }
    return STR_NONE;
}

static int find_variable(struct str word)
{
    for (int i = 0; i < AGENT_VARS; i++)
        if (str_is(word, agent_variable_names[i]))
            return i;
    return -1;
}

struct str agent_variable_unknown(const char *text)
{
    struct str whole = str_of(text);
    size_t at = 0;
    for (struct str word; (word = next_word(whole, &at)).data; at += word.size + 2)
        if (find_variable(word) < 0)
            return word;
    return STR_NONE;
}

bool agent_variable_used(const char *text, enum agent_variable variable)
{
    struct str whole = str_of(text);
    size_t at = 0;
    for (struct str word; (word = next_word(whole, &at)).data; at += word.size + 2)
        if (find_variable(word) == (int)variable)
            return true;
    return false;
}

char *agent_expand(struct arena *arena, const char *text, const struct agent_values *values)
{
    struct buf out = {0};
    struct str whole = str_of(text);
    size_t at = 0, copied = 0;
    for (struct str word; (word = next_word(whole, &at)).data; copied = at) {
        buf_append(&out, whole.data + copied, at - copied);
        int variable = find_variable(word);
        if (variable >= 0 && values->value[variable])
            buf_str_append(&out, str_of(values->value[variable]));
        at += word.size + 2;
    }
    buf_append(&out, whole.data + copied, whole.size - copied);
    char *result = arena_text(arena, buf_str(&out));
    buf_deinit(&out);
    return result;
}
