/* harbor.c - task directories in the Harbor layout, taken as they are.
 *
 *     task.toml  instruction.md  environment/  tests/test.sh  solution/solve.sh
 *     steps/NAME/{instruction.md, workdir/, tests/, solution/}      one per [[steps]], in order
 *
 * What the surroundings are made of, first match: [environment] image or docker_image,
 * environment/Dockerfile, environment/rootfs/; else environment/ is files for the working
 * directory. An image's tasks run as root inside, as they do in Harbor, unless the Dockerfile or
 * [agent] names another user.
 *
 * A step is a whole struct task: what it does not say itself is its parent's. The format is open:
 * keys nobody knows are warnings. */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "config/toml.h"
#include "task/internal.h"

#define DOCKERFILE_MAX (1u << 20)

static bool has_entry(const char *dir, const char *name, mode_t kind)
{
    OWN(mem) char *path = mem_format("%s/%s", dir, name);
    struct stat info;
    return stat(path, &info) == 0 && (info.st_mode & S_IFMT) == kind;
}

bool task_is_dir(const char *dir)
{
    return has_entry(dir, "task.toml", S_IFREG);
}

static const char *subdir(struct task *task, const char *dir, const char *name)
{
    return has_entry(dir, name, S_IFDIR) ? arena_format(task_arena(task), "%s/%s", dir, name)
                                         : NULL;
}

static int read_instruction(struct task *task, const char *dir, struct err *err)
{
    OWN(mem) char *path = mem_format("%s/instruction.md", dir);
    OWN(buf) struct buf words = {0};
    if (!file_exists(path))
        return 0;
    if (file_read(path, TASK_INSTRUCTION_MAX, &words, err) < 0)
        return -1;
    if (words.size && memchr(words.data, 0, words.size))
        return err_set(err, ERR_INPUT, "%s: the instruction holds a NUL byte", path);
    task->instruction = arena_text(task_arena(task), buf_str(&words));
    return 1;
}

static bool begins(struct str line, struct str word, struct str *rest)
{
    if (line.size <= word.size || !str_equal_nocase(str_upto(line, word.size), word) ||
        (line.data[word.size] != ' ' && line.data[word.size] != '\t'))
        return false;
    *rest = str_trim(str_from(line, word.size));
    return true;
}

/* Of the last stage: who runs in it (NULL: root) and where (NULL: not said). */
static void read_last_stage(struct task *task, struct str text, const char **user,
                            const char **workdir)
{
    *user = *workdir = NULL;
    while (text.data) {
        struct str line = str_trim(str_cut(&text, '\n')), rest;
        if (begins(line, STR("FROM"), &rest))
            *user = *workdir = NULL;
        if (begins(line, STR("USER"), &rest))
            *user = arena_text(task_arena(task), rest);
        if (begins(line, STR("WORKDIR"), &rest) && rest.size && str_find_byte(rest, '$') < 0) {
            if (rest.data[0] == '/')
                *workdir = arena_text(task_arena(task), rest);
            else if (*workdir)
                *workdir = arena_format(task_arena(task), "%s/%.*s", *workdir, STR_ARGS(rest));
        }
    }
    if (*user && (strcmp(*user, "root") == 0 || (*user)[strspn(*user, "0:")] == '\0'))
        *user = NULL;
}

static int take_dockerfile(struct task *task, const char *place, bool said_workdir, struct err *err)
{
    OWN(mem) char *path = mem_format("%s/Dockerfile", place);
    OWN(buf) struct buf text = {0};
    if (file_read(path, DOCKERFILE_MAX, &text, err) < 0)
        return -1;
    task->image.build_dir = place;
    const char *user, *workdir;
    read_last_stage(task, buf_str(&text), &user, &workdir);
    if (!task->agent_user && !user)
        task->root = true;
    if (!said_workdir && workdir)
        task->workdir = workdir;
    return 0;
}

static int find_surroundings(struct task *task, const char *dir, struct err *err)
{
    bool said_workdir = strcmp(task->workdir, TASK_WORKDIR) != 0;
    const char *place = subdir(task, dir, "environment");
    bool named = task->root_image || task->image.name;
    if (task->image.name && !task->agent_user &&
        !(place && has_entry(place, "Dockerfile", S_IFREG)))
        task->root = true;
    if (!place)
        return 0;
    static const char *const compose[] = {"docker-compose.yaml", "docker-compose.yml",
                                          "compose.yaml", "compose.yml"};
    for (size_t i = 0; i < COUNT(compose); i++)
        if (has_entry(place, compose[i], S_IFREG))
            return err_set(err, ERR_UNSUPPORTED,
                           "%s/%s: tasks with side services are not supported", place, compose[i]);
    if (has_entry(place, "Dockerfile", S_IFREG)) {
        if (take_dockerfile(task, place, said_workdir, err) < 0)
            return -1;
        if (named) /* what it says is in the image already */
            task->image.build_dir = NULL;
        return 0;
    }
    if (!named && has_entry(place, "rootfs", S_IFDIR)) {
        task->root_image = arena_format(task_arena(task), "dir:%s/rootfs", place);
        return 0;
    }
    task->environment_dir = place;
    return 0;
}

static int find_tests(struct task *task, const char *dir, struct err *err)
{
    task->tests_dir = subdir(task, dir, "tests");
    if (!task->tests_dir)
        return 0;
    if (has_entry(task->tests_dir, "test.sh", S_IFREG))
        task->test_script = "test.sh";
    if (task->separate_verify && !task->verify_root_image && !task->verify_image.name &&
        has_entry(task->tests_dir, "Dockerfile", S_IFREG))
        task->verify_image.build_dir = task->tests_dir;
    if (!task->test_script && !task->verify_count && !task->step_count)
        return err_set(err, ERR_INPUT, "%s: tests/ has no test.sh and there are no verify commands",
                       dir);
    return 0;
}

/* ---------------------------------------------------------------- steps */
/* A number, or a table of named ones. */
static int read_reward_min(struct task *step, struct toml_node *table, struct err *err)
{
    struct toml_node *node = toml_get(table, "min_reward");
    if (!node)
        return 0;
    bool named = node->type == TOML_TABLE;
    size_t count = named ? node->count : 1;
    struct task_reward_min *least = arena_alloc(task_arena(step), (count + 1) * sizeof *least);
    for (struct toml_node *item = named ? node->first : node; item;
         item = named ? item->next : NULL) {
        if (item->type != TOML_INTEGER && item->type != TOML_FLOAT)
            return toml_error(item, err, "min_reward is a number or a table of numbers, not %s",
                              toml_type_name(item->type));
        least[step->reward_min_count++] = (struct task_reward_min){
            named && strcmp(item->key, "reward") != 0 ? task_keep(step, item->key) : NULL,
            item->real};
    }
    toml_use_all(node);
    step->reward_min = least;
    return 0;
}

static struct task *step_of(struct task *parent)
{
    struct task *step = arena_alloc(&parent->arena, sizeof *step);
    *step = (struct task){
        .source = parent->source,
        .system = parent->system,
        .workdir = parent->workdir,
        .tests_dir = parent->tests_dir,
        .test_script = parent->test_script,
        .verify = parent->verify,
        .verify_count = parent->verify_count,
        .env = parent->env,
        .agent_env = parent->agent_env,
        .verify_env = parent->verify_env,
        .solution_env = parent->solution_env,
        .host_env = parent->host_env,
        .root_image = parent->root_image,
        .image = parent->image,
        .root = parent->root,
        .agent_user = parent->agent_user,
        .network = parent->network,
        .hosts = parent->hosts,
        .fresh_verify = parent->fresh_verify,
        .separate_verify = parent->separate_verify,
        .verify_root_image = parent->verify_root_image,
        .verify_image = parent->verify_image,
        .verify_network = parent->verify_network,
        .artifacts = parent->artifacts,
        .carry = parent->carry,
        .verify_user = parent->verify_user,
        .collect = parent->collect,
        .collect_count = parent->collect_count,
        .agent_ms_max = parent->agent_ms_max,
        .setup_ms_max = parent->setup_ms_max,
        .verify_ms_max = parent->verify_ms_max,
        .turns_max = parent->turns_max,
        .tools = parent->tools,
        .tool_count = parent->tool_count,
        .tool_definitions = parent->tool_definitions,
        .turns = parent->turns,
        .parent = parent,
    };
    return step;
}

static int find_step_files(struct task *step, const char *place, struct err *err)
{
    if (read_instruction(step, place, err) < 0)
        return -1;
    step->environment_dir = subdir(step, place, "workdir");
    step->solution_dir = subdir(step, place, "solution");
    if (step->environment_dir && has_entry(step->environment_dir, "setup.sh", S_IFREG)) {
        struct task_command *hook = arena_alloc(task_arena(step), 2 * sizeof *hook);
        hook->shell = "sh ./setup.sh && rm -f ./setup.sh";
        step->setup = hook;
        step->setup_count = 1;
    }
    const char *own = subdir(step, place, "tests");
    if (own && step->tests_dir)
        step->tests_more = own;
    else if (own)
        step->tests_dir = own;
    if (own && has_entry(own, "test.sh", S_IFREG))
        step->test_script = "test.sh";
    if (!task_has_verifier(step))
        return err_set(err, ERR_INPUT, "%s: the step has no tests/test.sh, and the task has none",
                       place);
    return task_check(step, place, err);
}

static int read_step(struct task *parent, struct toml_node *table, const char *dir, size_t index,
                     struct err *err)
{
    struct task *step = parent->steps[index] = step_of(parent);
    const char *name = NULL;
    if (toml_need_text(table, "name", &name, err) < 0 || task_read_agent(step, table, err) < 0 ||
        task_read_verifier(step, table, err) < 0 || task_read_artifacts(step, table, err) < 0 ||
        read_reward_min(step, table, err) < 0)
        return -1;
    if (!name[0] || strchr(name, '/') || name[0] == '.')
        return toml_error(toml_get(table, "name"), err, "'%s' cannot be the name of a step", name);
    step->name = task_keep(parent, name);
    OWN(mem) char *place = mem_format("%s/steps/%s", dir, name);
    if (!has_entry(place, "", S_IFDIR))
        return toml_error(toml_get(table, "name"), err, "there is no directory steps/%s", name);
    if (find_step_files(step, place, err) < 0)
        return -1;
    return task_read_healthcheck(step, table, err); /* after its setup hook */
}

static int count_steps(struct task *task, struct toml_node *root, struct err *err)
{
    static const char *const strategies[] = {"mean", "final", NULL};
    struct toml_node *list = NULL;
    int strategy = 0;
    if (toml_tables(root, "steps", &list, err) < 0 ||
        toml_choice(root, "multi_step_reward_strategy", strategies, &strategy, err) < 0)
        return -1;
    (void)toml_get(root, "multi_step_reward_mode"); /* an earlier name; dropped by the format */
    task->roll_up = (enum task_roll_up)strategy;
    if (!list || !list->count)
        return 0;
    if (list->count > TASK_STEPS_MAX)
        return toml_error(list, err, "more than %d steps", TASK_STEPS_MAX);
    task->steps = arena_alloc(task_arena(task), (list->count + 1) * sizeof *task->steps);
    task->step_count = list->count;
    return 1;
}

static int fill_steps(struct task *task, struct toml_node *root, const char *dir, struct err *err)
{
    size_t index = 0;
    TOML_EACH(table, toml_get(root, "steps"))
    {
        if (read_step(task, table, dir, index, err) < 0)
            return -1;
        for (size_t i = 0; i < index; i++)
            if (strcmp(task->steps[i]->name, task->steps[index]->name) == 0)
                return toml_error(table, err, "two steps are called '%s'", task->steps[i]->name);
        index++;
    }
    task->instruction = task->steps[0]->instruction;
    return 0;
}

/* ---------------------------------------------------------------- the directory */
static int fill(struct task *task, const char *dir, struct err *err)
{
    OWN(mem) char *toml_path = mem_format("%s/task.toml", dir);
    OWN(toml) struct toml toml = {0};
    if (!file_exists(toml_path))
        return err_set(err, ERR_INPUT, "'%s' is not a task: it has no task.toml", dir);
    if (toml_read_file(&toml, toml_path, err) < 0 || task_read_keys(task, &toml, err) < 0 ||
        count_steps(task, toml.root, err) < 0 || find_surroundings(task, dir, err) < 0 ||
        find_tests(task, dir, err) < 0)
        return -1;
    if (task->step_count) {
        if (fill_steps(task, toml.root, dir, err) < 0)
            return -1;
    } else if (read_instruction(task, dir, err) < 0) {
        return -1;
    }
    task_warn_unused(task, &toml);
    task->solution_dir = subdir(task, dir, "solution");
    task->tools_dir = subdir(task, dir, "tools");
    if (!task->name) {
        const char *slash = strrchr(dir, '/');
        task->name = task_keep(task, slash ? slash + 1 : dir);
    }
    return task_check(task, toml_path, err);
}

struct task *task_from_dir(const char *dir, struct err *err)
{
    OWN(mem) char *real = realpath(dir, NULL);
    if (!real) {
        err_errno(err, "task '%s'", dir);
        return NULL;
    }
    struct task *task = task_new();
    task->source = task_keep(task, real);
    task->host_env = task->logs_dir = true;
    return task_finish(task, fill(task, real, err));
}
