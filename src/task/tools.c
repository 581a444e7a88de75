/* tools.c - a task's own tools and its later words.
 *
 *     [[tools]]
 *     name = "look_up"
 *     description = "..."
 *     parameters = { type = "object", properties = { ... } }
 *     command = ["python3", "/tools/look_up.py"]    # the task answers; without it the trainer does
 *     where = "agent"                               # beside the agent; "apart": where it cannot
 * reach
 *
 * The definitions become the JSON that the gateway takes (docs/http-api.md); commands stay here. */
#include "task/task.h"

#include "base/mem.h"
#include "config/toml.h"
#include "json/json.h"
#include "task/internal.h"

#define TOOLS_MAX 128
#define TURNS_MAX 1000
#define TOOL_MS 60000
#define MS_MAX (24ll * 3600 * 1000)

static const char *keep(struct task *task, const char *text)
{
    return text ? arena_text(&task->arena, str_of(text)) : NULL;
}

static const char *const *keep_list(struct task *task, const char *const *list, size_t count)
{
    const char **copy = arena_alloc(&task->arena, (count + 1) * sizeof *copy);
    for (size_t i = 0; i < count; i++)
        copy[i] = keep(task, list[i]);
    return copy;
}

/* Members that go to whoever lists the tools, as they are. */
static int write_definition(struct toml_node *item, bool by_task, struct json_writer *out,
                            struct err *err)
{
    static const struct {
        const char *key;
        enum toml_type type;
    } members[] = {
        {"name", TOML_STRING},        {"description", TOML_STRING}, {"parameters", TOML_TABLE},
        {"input_schema", TOML_TABLE}, {"title", TOML_STRING},       {"annotations", TOML_TABLE},
        {"outputSchema", TOML_TABLE},
    };
    json_begin_object(out);
    for (size_t i = 0; i < COUNT(members); i++) {
        struct toml_node *node = toml_get(item, members[i].key);
        if (!node)
            continue;
        if (node->type != members[i].type)
            return toml_error(node, err, "%s of a tool is %s, not %s", members[i].key,
                              toml_type_name(members[i].type), toml_type_name(node->type));
        toml_use_all(node);
        json_key(out, members[i].key);
        toml_write_json(node, out);
    }
    if (by_task)
        json_set_text(out, "answered_by", "task");
    json_end_object(out);
    return 0;
}

static int read_tool(struct task *task, struct toml_node *item, struct task_tool *tool,
                     struct json_writer *out, struct err *err)
{
    static const char *const places[] = {"agent", "apart", NULL};
    const char *const *command = NULL;
    const char *name = NULL, *user = NULL;
    size_t count = 0;
    long long timeout_ms = TOOL_MS;
    int place = 0;
    if (toml_need_text(item, "name", &name, err) < 0 ||
        toml_texts(item, "command", &command, &count, err) < 0 ||
        toml_text(item, "user", &user, err) < 0 ||
        toml_duration_ms(item, "timeout", 1, MS_MAX, &timeout_ms, err) < 0 ||
        toml_choice(item, "where", places, &place, err) < 0)
        return -1;
    if (command && (!count || !command[0][0]))
        return toml_error(toml_get(item, "command"), err, "the command of tool '%s' is empty",
                          name);
    if (!command && (user || toml_get(item, "where") || toml_get(item, "timeout")))
        return toml_error(item, err,
                          "tool '%s' has no command: the trainer answers it, and 'user', 'where' "
                          "and 'timeout' say nothing",
                          name);
    for (const struct task_tool *other = task->tools; other && other < tool; other++)
        if (strcmp(other->name, name) == 0)
            return toml_error(item, err, "tool '%s' is there twice", name);
    *tool = (struct task_tool){
        .name = keep(task, name),
        .command = command ? keep_list(task, command, count) : NULL,
        .user = keep(task, user),
        .timeout_ms = (uint32_t)timeout_ms,
        .apart = place == 1,
    };
    return write_definition(item, command != NULL, out, err);
}

int task_read_tools(struct task *task, struct toml_node *root, struct err *err)
{
    struct toml_node *list = NULL;
    const char *const *turns = NULL;
    size_t turn_count = 0;
    if (toml_tables(root, "tools", &list, err) < 0 ||
        toml_texts(root, "turns", &turns, &turn_count, err) < 0)
        return -1;
    if (turn_count > TURNS_MAX)
        return toml_error(toml_get(root, "turns"), err, "more than %d turns", TURNS_MAX);
    if (turns)
        task->turns = keep_list(task, turns, turn_count);
    if (!list || !list->count)
        return 0;
    if (list->count > TOOLS_MAX)
        return toml_error(list, err, "more than %d tools", TOOLS_MAX);
    OWN(buf) struct buf definitions = {0};
    struct json_writer out = {.out = &definitions};
    struct task_tool *tools = arena_alloc(&task->arena, (list->count + 1) * sizeof *tools);
    task->tools = tools;
    json_begin_array(&out);
    TOML_EACH(item, list)
    {
        if (read_tool(task, item, &tools[task->tool_count], &out, err) < 0)
            return -1;
        task->tool_count++;
    }
    json_end_array(&out);
    task->tool_definitions = arena_str(&task->arena, buf_str(&definitions));
    return 0;
}

bool task_has_apart(const struct task *task)
{
    for (size_t i = 0; i < task->tool_count; i++)
        if (task->tools[i].apart)
            return true;
    return false;
}
