/* test_sandbox_command.c - files of the command backend: what is read, what is refused, and what
 * the steps do, with real programs. What sandboxes of ssh and podman can do is asked in
 * test_sandbox_conformance.c. */
#include "sandbox_stage.h"

#include "base/arena.h"
#include "own_loopback.h"
#include "sandbox/backend_command_spec.h"

/* ---------------------------------------------------------------- reading files */

static int read_spec(struct command_spec *spec, const char *text, struct err *err)
{
    char path[] = "/tmp/postern-spec-XXXXXX";
    int fd = mkstemp(path);
    if (write(fd, text, strlen(text)) < 0)
        abort();
    close(fd);
    int result = command_spec_read(spec, path, "sample", err);
    unlink(path);
    return result;
}

TEST(every_shipped_file_is_sound)
{
    static const char *const names[] = {"ssh", "ssh-plain", "podman"};
    for (size_t i = 0; i < COUNT(names); i++) {
        struct command_spec spec;
        struct err err = {0};
        char path[256];
        snprintf(path, sizeof path, POSTERN_SOURCE_DIR "/backends/%s.toml", names[i]);
        if (command_spec_read(&spec, path, names[i], &err) < 0)
            EXPECT_TEXT(err.text, "");
        EXPECT(spec.summary[0]);
        EXPECT(spec.steps[STEP_ATTACH].argv && spec.steps[STEP_DESTROY].argv &&
               spec.steps[STEP_LIST].argv);
        command_spec_deinit(&spec);
    }
}

TEST(what_is_wrong_with_a_file_is_said_with_its_place)
{
    static const struct {
        const char *text, *says;
    } rows[] = {
        {"summary = \"x\"\n", "no [attach]"},
        {"[attach]\nargv = []\n", ":2:8: "},
        {"[attach]\nargv = [\"x\", 3]\n", ":2:14: "},
        {"[attach]\nargv = [\"x {typo}\"]\n", "unknown variable '{typo}'"},
        {"[attach]\nargv = [\"x {id\"]\n", "'{' without '}'"},
        {"[attach]\nargv = [\"x }\"]\n", "lone '}'"},
        {"[attach]\nargv = [[\"{id}\"]]\n", "cannot be optional"},
        {"[attach]\nargv = [\"x\", \"{id?}\"]\n", "nested array"},
        {"[attach]\nargv = [\"x\"]\ntimout = 3\n", ":3:1: "},
        {"[attach]\nargv = [\"x\"]\n[destory]\nargv = [\"x\"]\n", "destroy"},
        {"capabilities = [\"fly\"]\n[attach]\nargv = [\"x\"]\n", ":1:17: "},
        {"[attach]\nargv = [\"x\"]\n[layer_check]\nargv = [\"x\"]\n", "[layer_check] without"},
        {"[attach]\nargv = [\"x\"]\n[layer_upload]\nargv = [\"x\"]\n", "capability \"layers\""},
        {"retry_exit_codes = [0]\n[attach]\nargv = [\"x\"]\n", "1 to 255"},
        {"[variables.id]\n[attach]\nargv = [\"x\"]\n", "fills in itself"},
        {"argument = \"where\"\n[attach]\nargv = [\"x\"]\n", "not in [variables]"},
        {"[check]\nargv = [\"x\"]\n[attach]\nargv = [\"x\"]\n", "without [upload]"},
        {"image = \"maybe\"\n[attach]\nargv = [\"x\"]\n", ":1:9: "},
        {"[attach]\nargv = [\"x\"\n", ":"},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct command_spec spec;
        struct err err = {0};
        EXPECT(read_spec(&spec, rows[i].text, &err) < 0);
        if (!strstr(err.text, rows[i].says))
            EXPECT_TEXT(err.text, rows[i].says);
        command_spec_deinit(&spec);
    }
}

static const char *joined(const char *const *words)
{
    static char text[4096];
    text[0] = '\0';
    for (size_t i = 0; words && words[i]; i++)
        snprintf(text + strlen(text), sizeof text - strlen(text), "[%s]", words[i]);
    return text;
}

TEST(words_are_filled_in_and_groups_without_values_left_out)
{
    struct command_spec spec;
    struct err err = {0};
    const char *text = "common = [\"prog\", [\"-x\", \"{extra}\"]]\n[variables.extra]\n"
                       "[attach]\nargv = [\"a{id}b\", [\"--memory\", \"{memory}m\"], [\"--none\", "
                       "\"{pids}\"], [\"{root_user?}\", \"-r\"], [\"{disk?}\", \"-d\"], \"{{}}\", "
                       "\"{label:sh}\", \"\"]\n";
    if (read_spec(&spec, text, &err) < 0)
        EXPECT_TEXT(err.text, "");
    OWN(arena) struct arena arena = {0};
    const struct command_value values[] = {
        {"id", "sb-1"}, {"memory", "5"}, {"pids", ""}, {"root_user", "yes"}, {"label", "it's; $x"}};
    EXPECT_TEXT(joined(command_expand(&spec, STEP_ATTACH, values, COUNT(values), &arena, &err)),
                "[prog][asb-1b][--memory][5m][-r][{}]['it'\\''s; $x'][]");
    command_spec_deinit(&spec);
}

TEST(a_quoted_value_means_itself_to_a_shell)
{
    struct command_spec spec;
    struct err err = {0};
    EXPECT_INT(read_spec(&spec, "[attach]\nargv = [\"printf %s {label:sh}\"]\n", &err), 0);
    static const char *const values[] = {"",        "a b", "'",   "''", "$(id)`id`\\",
                                         "\n\t*?[", "-n",  "\xff"};
    for (size_t i = 0; i < COUNT(values); i++) {
        OWN(arena) struct arena arena = {0};
        struct command_value value = {"label", values[i]};
        const char *const *words = command_expand(&spec, STEP_ATTACH, &value, 1, &arena, &err);
        FILE *pipe = popen(words[0], "r");
        char back[64] = "";
        size_t size = fread(back, 1, sizeof back - 1, pipe);
        back[size] = '\0';
        pclose(pipe);
        EXPECT_TEXT(back, values[i]);
    }
    command_spec_deinit(&spec);
}

/* ---------------------------------------------------------------- running */

/* A manager whose only backend directory is the stage's, with one file in it. */
static void begin(struct stage *stage, const char *name, const char *text)
{
    struct err err = {0};
    own_loopback(); /* so that nobody else's 127.0.0.1:13131 is in the way */
    stage_begin(stage, NULL);
    const char *reason = stage_skip_reason(stage);
    if (reason)
        SKIP("%s", reason);
    char path[256];
    snprintf(path, sizeof path, "%s/%s.toml", stage->dir, name);
    host_write(path, 0644, "%s", text);
    setenv("STAGE_DIR", stage->dir, 1);
    const char *dirs[] = {stage->dir, POSTERN_SOURCE_DIR "/backends"};
    struct sandbox_options options = {
        .home = stage->dir,
        .program_dir = stage->programs,
        .backend_dirs = dirs,
        .backend_dir_count = 2,
        .starting_max = 2,
        .create_ms_max = 60000,
    };
    stage->loop = loop_new(&err);
    stage->boxes = sandboxes_new(stage->loop, &options, &err);
    stage->spec.backend = arena_text(&stage_memory, str_of(name));
}

/* The porter as a plain process of this machine, its inlet on a port of its own. */
#define PORTER_WORDS "--stdio --inlet-port $((20000 + $$ % 40000))"
#define DIRECT                                                                                     \
    "environment_pass = [\"STAGE_DIR\"]\nretry_exit_codes = [75]\n"                                \
    "[attach]\nargv = [\"/bin/sh\", \"-c\", 'exec \"$0\" " PORTER_WORDS "', \"{porter}\"]\n"
#define SHELL(script) "argv = [\"/bin/sh\", \"-c\", '''" script "''', \"sh\", \"{id}\"]\n"

static int lines_in(const struct stage *stage, const char *name)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", stage->dir, name);
    OWN(buf) struct buf text = {0};
    int lines = 0;
    if (file_read(path, 1 << 20, &text, NULL) < 0)
        return 0;
    for (size_t i = 0; i < text.size; i++)
        lines += text.data[i] == '\n';
    return lines;
}

TEST(a_failing_attach_is_explained_by_its_last_words)
{
    struct stage stage;
    struct sandbox *box;
    struct err err = {0};
    begin(&stage, "broken",
          "[attach]\n" SHELL("echo banner; echo one >&2; echo the real reason >&2; exit 7"));
    EXPECT(stage_open(&stage, &stage.spec, &box, &err) < 0);
    EXPECT(strstr(err.text, "exit code 7: the real reason") && strstr(err.text, "broken"));
    EXPECT_INT(err.kind, ERR_SYSTEM);
    stage_end(&stage);
}

TEST(a_missing_program_is_named)
{
    struct stage stage;
    struct sandbox *box;
    struct err err = {0};
    begin(&stage, "broken", "[attach]\nargv = [\"no-such-program-here\"]\n");
    EXPECT(stage_open(&stage, &stage.spec, &box, &err) < 0);
    EXPECT(strstr(err.text, "no-such-program-here") != NULL);
    EXPECT_INT(err.kind, ERR_NOT_FOUND);
    stage_end(&stage);
}

TEST(an_unknown_backend_is_not_found)
{
    struct stage stage;
    struct sandbox *box;
    struct err err = {0};
    begin(&stage, "broken", "[attach]\nargv = [\"x\"]\n");
    static const char *const names[] = {"nowhere", "../broken", "", "ssh"};
    static const enum err_kind kinds[] = {ERR_NOT_FOUND, ERR_INPUT, ERR_INPUT, ERR_INPUT};
    for (size_t i = 0; i < COUNT(names); i++) {
        struct sandbox_spec spec = {.backend = names[i]};
        EXPECT(stage_open(&stage, &spec, &box, &err) < 0);
        EXPECT_INT(err.kind, kinds[i]);
    }
    EXPECT(strstr(err.text, "BACKEND_SSH_HOST") != NULL);
    stage_end(&stage);
}

TEST_WITHIN(an_error_worth_retrying_is_retried_and_no_other, 60)
{
    struct stage stage;
    struct sandbox *box = NULL;
    struct err err = {0};
    begin(
        &stage, "flaky",
        DIRECT "[create]\n" SHELL(
            "echo try >> $STAGE_DIR/tries; "
            "test $(wc -l < $STAGE_DIR/tries) -ge 3 || exit 75") "[destroy]\n" SHELL("echo gone >> "
                                                                                     "$STAGE_DIR/"
                                                                                     "gone"));
    if (stage_open(&stage, &stage.spec, &box, &err) < 0)
        EXPECT_TEXT(err.text, "");
    EXPECT_INT(lines_in(&stage, "tries"), 3);
    EXPECT_INT(lines_in(&stage, "gone"), 2); /* each failed attempt was cleared away */
    EXPECT_INT(stage_close(&stage, box, &err), 0);
    EXPECT_INT(lines_in(&stage, "gone"), 3);
    stage_end(&stage);

    begin(&stage, "hopeless",
          DIRECT "[create]\n" SHELL("echo try >> $STAGE_DIR/tries; echo no >&2; exit 1"));
    EXPECT(stage_open(&stage, &stage.spec, &box, &err) < 0);
    EXPECT(strstr(err.text, "no") != NULL);
    EXPECT_INT(lines_in(&stage, "tries"), 1);
    stage_end(&stage);
}

TEST_WITHIN(a_create_that_hangs_ends_at_the_deadline_and_leaves_nothing, 60)
{
    struct stage stage;
    struct sandbox *box = NULL;
    struct err err = {0};
    begin(&stage, "slow",
          DIRECT
          "[create]\n" SHELL("echo $$ > $STAGE_DIR/pid; exec sleep 1000") "[destroy]\n" SHELL(
              "echo gone >> $STAGE_DIR/gone"));
    stage_close_manager(&stage);
    const char *dirs[] = {stage.dir};
    struct sandbox_options options = {.home = stage.dir,
                                      .program_dir = stage.programs,
                                      .backend_dirs = dirs,
                                      .backend_dir_count = 1,
                                      .create_ms_max = 3000};
    stage.loop = loop_new(&err);
    stage.boxes = sandboxes_new(stage.loop, &options, &err);
    EXPECT(stage_open(&stage, &stage.spec, &box, &err) < 0);
    EXPECT_INT(err.kind, ERR_TIMEOUT);
    EXPECT_INT(lines_in(&stage, "gone"), 1);
    OWN(buf) struct buf pid = {0};
    char path[128];
    snprintf(path, sizeof path, "%s/pid", stage.dir);
    EXPECT_INT(file_read(path, 100, &pid, NULL), 0);
    EXPECT_INT(kill(atoi(buf_text(&pid)), 0), -1);
    stage_end(&stage);
}

TEST_WITHIN(only_so_many_start_at_once, 60)
{
    struct stage stage;
    struct err err = {0};
    /* The first ones wait for each other. */
    begin(&stage, "counted",
          DIRECT "[create]\n" SHELL(
              "cd $STAGE_DIR; mkdir -p now/$1; "
              "until test -e met || test $(ls now | wc -l) -ge 2; do sleep 0.02; done; touch met; "
              "ls now | wc -l >> most; sleep 0.1; rmdir now/$1"));
    struct opening openings[7] = {0};
    for (size_t i = 0; i < COUNT(openings); i++)
        (void)sandbox_open(stage.boxes, &stage.spec, stage_on_open, &openings[i]);
    for (size_t i = 0; i < COUNT(openings); i++) {
        stage_until(&stage, &openings[i].done);
        EXPECT_TEXT(openings[i].err.text, "");
    }
    EXPECT_INT(lines_in(&stage, "most"), 7);
    char script[200];
    snprintf(script, sizeof script, "! grep -qv '[12]' %s/most && grep -q 2 %s/most", stage.dir,
             stage.dir);
    EXPECT_INT(HOST("sh", "-c", script), 0);
    OWN(buf) struct buf text = {0};
    struct json_writer writer = {.out = &text};
    sandboxes_report(stage.boxes, &writer);
    EXPECT(strstr(buf_text(&text), "\"counted\":{\"live\":7,\"created\":7") != NULL);
    (void)err;
    stage_end(&stage);
}

TEST_WITHIN(a_destroy_that_fails_is_told_and_tried_again, 60)
{
    struct stage stage;
    struct sandbox *box = NULL;
    struct err err = {0};
    begin(&stage, "sticky",
          DIRECT "[destroy]\n" SHELL("echo try >> $STAGE_DIR/tries; echo stuck >&2; "
                                     "test $(wc -l < $STAGE_DIR/tries) -ge 3"));
    EXPECT_INT(stage_open(&stage, &stage.spec, &box, &err), 0);
    EXPECT(stage_close(&stage, box, &err) < 0);
    EXPECT(strstr(err.text, "stuck") != NULL);
    stage_close_manager(&stage); /* waits for the retries */
    EXPECT_INT(lines_in(&stage, "tries"), 3);
    stage_end(&stage);
}

TEST_WITHIN(the_porter_is_uploaded_once_and_again_when_it_is_gone, 60)
{
    struct stage stage;
    struct sandbox *boxes[3];
    struct err err = {0};
    begin(&stage, "far",
          "environment_pass = [\"STAGE_DIR\"]\n"                                          /**/
          "[check]\n" SHELL("echo check >> $STAGE_DIR/checks; test -x $STAGE_DIR/porter") /**/
          "[upload]\n" SHELL("echo up >> $STAGE_DIR/uploads; cat > $STAGE_DIR/porter; "
                             "chmod +x $STAGE_DIR/porter") /**/
          "[attach]\n" SHELL("exec $STAGE_DIR/porter " PORTER_WORDS));
    for (size_t i = 0; i < COUNT(boxes); i++)
        if (stage_open(&stage, &stage.spec, &boxes[i], &err) < 0)
            EXPECT_TEXT(err.text, "");
    EXPECT_INT(lines_in(&stage, "uploads"), 1);
    EXPECT_INT(lines_in(&stage, "checks"), 1);
    struct result result =
        stage_run(&stage, boxes[1], (struct sandbox_command){ARGV("/bin/echo", "hello")}, STR_NONE);
    EXPECT_TEXT(result.out, "hello\n");
    for (size_t i = 0; i < COUNT(boxes); i++)
        EXPECT_INT(stage_close(&stage, boxes[i], &err), 0);
    char path[128];
    snprintf(path, sizeof path, "%s/porter", stage.dir);
    unlink(path);
    EXPECT_INT(stage_open(&stage, &stage.spec, &boxes[0], &err), 0);
    EXPECT_INT(lines_in(&stage, "uploads"), 2);
    stage_end(&stage);
}

#define FAR_LAYERS                                                                                 \
    "environment_pass = [\"STAGE_DIR\"]\ncapabilities = [\"layers\"]\n"                            \
    "[layer_check]\nargv = [\"/bin/sh\", \"-c\", 'echo x >> $STAGE_DIR/checks; "                   \
    "test -d \"$STAGE_DIR/far/$0\"', \"{layer_name}\"]\n"                                          \
    "[attach]\nargv = [\"/bin/sh\", \"-c\", 'exec \"$0\" " PORTER_WORDS "', \"{porter}\"]\n"

TEST_WITHIN(a_layer_is_brought_there_once, 60)
{
    struct stage stage;
    struct sandbox *boxes[3];
    struct err err = {0};
    begin(&stage, "far",
          FAR_LAYERS "[layer_upload]\nargv = [\"/bin/sh\", \"-c\", 'echo up >> $STAGE_DIR/uploads; "
                     "mkdir -p \"$STAGE_DIR/far/$0\" && tar -C \"$STAGE_DIR/far/$0\" -xf -', "
                     "\"{layer_name}\"]\n");
    char root[128], path[160];
    snprintf(root, sizeof root, "%s/agent-1.0-key/root", stage.dir);
    EXPECT_INT(file_make_dirs(root, 0755, &err), 0);
    snprintf(path, sizeof path, "%s/file", root);
    host_write(path, 0644, "%s", "hello\n");
    const char *layer = root;
    stage.spec.layers = &layer;
    stage.spec.layer_count = 1;
    for (size_t i = 0; i < COUNT(boxes); i++)
        if (stage_open(&stage, &stage.spec, &boxes[i], &err) < 0)
            EXPECT_TEXT(err.text, "");
    EXPECT_INT(lines_in(&stage, "checks"), 1);
    EXPECT_INT(lines_in(&stage, "uploads"), 1);
    EXPECT_INT(lines_in(&stage, "far/agent-1.0-key/file"), 1);
    for (size_t i = 0; i < COUNT(boxes); i++)
        EXPECT_INT(stage_close(&stage, boxes[i], &err), 0);
    const char *two[] = {root, root};
    stage.spec.layers = two;
    stage.spec.layer_count = 2;
    EXPECT_INT(stage_open(&stage, &stage.spec, &boxes[0], &err), -1);
    EXPECT(strstr(err.text, "mounts one layer") != NULL);
    stage_end(&stage);
}

TEST_WITHIN(a_layer_that_cannot_be_brought_there_is_no_sandbox, 60)
{
    struct stage stage;
    struct sandbox *box;
    struct err err = {0};
    begin(&stage, "far",
          FAR_LAYERS "[layer_upload]\nargv = [\"/bin/sh\", \"-c\", 'cat > /dev/null; "
                     "echo the disk is full >&2; exit 3']\n");
    char root[128];
    snprintf(root, sizeof root, "%s/agent-1.0-key/root", stage.dir);
    EXPECT_INT(file_make_dirs(root, 0755, &err), 0);
    const char *layer = root;
    stage.spec.layers = &layer;
    stage.spec.layer_count = 1;
    EXPECT_INT(stage_open(&stage, &stage.spec, &box, &err), -1);
    EXPECT(strstr(err.text, "agent-1.0-key") && strstr(err.text, "the disk is full"));
    /* Packing fails: the layer is gone. Nothing is uploaded. */
    EXPECT_INT(rmdir(root), 0);
    EXPECT_INT(stage_open(&stage, &stage.spec, &box, &err), -1);
    EXPECT(strstr(err.text, "packing") != NULL);
    stage_end(&stage);
}

static bool found_done;
static size_t found_count;
static char found_id[64], found_label[64];

static void on_found(void *context, const struct sandbox_found *found, size_t count,
                     const struct err *err)
{
    (void)context;
    (void)err;
    found_done = true;
    found_count = 0;
    for (size_t i = 0; i < count; i++)
        if (strncmp(found[i].id, "sb-old", 6) == 0) {
            found_count++;
            snprintf(found_id, sizeof found_id, "%s", found[i].id);
            snprintf(found_label, sizeof found_label, "%s:%d", found[i].label,
                     (int)found[i].age_ms);
        }
}

TEST_WITHIN(what_is_left_over_is_found_and_removed, 60)
{
    struct stage stage;
    struct sandbox *box = NULL;
    struct err err = {0};
    begin(&stage, "listed",
          DIRECT "[destroy]\n" SHELL("rm -f $STAGE_DIR/$1") "[list]\n" SHELL(
              "echo noise; cd $STAGE_DIR; for i in sb-old*; do test -f $i && "
              "printf '%s\\tits label\\t7\\n' $i; done; exit 0"));
    char path[128];
    snprintf(path, sizeof path, "%s/sb-old1", stage.dir);
    host_write(path, 0644, "x");
    EXPECT_INT(stage_open(&stage, &stage.spec, &box, &err), 0);
    sandboxes_find(stage.boxes, on_found, NULL);
    stage_until(&stage, &found_done);
    EXPECT_INT(found_count, 1);
    EXPECT_TEXT(found_label, "its label:7000");
    struct waiting waiting = {0};
    sandboxes_destroy_found(stage.boxes, found_id, stage_on_done, &waiting);
    stage_until(&stage, &waiting.done);
    EXPECT_TEXT(waiting.err.text, "");
    EXPECT(!file_exists(path));
    stage_end(&stage);
}

TEST_WITHIN(a_host_that_does_not_answer_is_lost_and_retried, 60)
{
    struct stage stage;
    struct sandbox *box = NULL;
    struct err err = {0};
    if (!host_has("ssh"))
        SKIP("ssh is not installed");
    begin(&stage, "unused", "[attach]\nargv = [\"x\"]\n");
    char port[16], path[128];
    snprintf(port, sizeof port, "%d", free_port());
    setenv("BACKEND_SSH_PORT", port, 1);
    snprintf(path, sizeof path, "%s/ssh_config", stage.dir);
    host_write(path, 0600, "");
    setenv("BACKEND_SSH_CONFIG", path, 1);
    struct sandbox_spec spec = {.backend = "ssh:127.0.0.1"};
    EXPECT(stage_open(&stage, &spec, &box, &err) < 0);
    EXPECT_INT(err.kind, ERR_LOST);
    EXPECT(strstr(err.text, "refused") != NULL);
    OWN(buf) struct buf text = {0};
    struct json_writer writer = {.out = &text};
    sandboxes_report(stage.boxes, &writer);
    EXPECT(strstr(buf_text(&text), "\"retried\":0") == NULL);
    stage_end(&stage);
}

TEST_WITHIN(without_namespaces_there_the_second_sandbox_is_refused_by_name, 120)
{
    struct stage stage;
    struct sandbox *box = NULL, *second = NULL;
    struct err err = {0};
    begin(&stage, "unused", "[attach]\nargv = [\"x\"]\n");
    const char *reason = prepare_ssh_plain(&stage);
    if (reason)
        SKIP("%s", reason);
    struct sandbox_spec spec = {.backend = "ssh-plain:target"};
    if (stage_open(&stage, &spec, &box, &err) < 0)
        EXPECT_TEXT(err.text, "");
    struct result result =
        stage_run(&stage, box, (struct sandbox_command){.shell = "echo hi > f; cat f"}, STR_NONE);
    EXPECT_TEXT(result.out, "hi\n");
    EXPECT(stage_open(&stage, &spec, &second, &err) < 0);
    EXPECT(strstr(err.text, "ssh-plain") && strstr(err.text, "1 sandbox at a time"));
    /* Another server on the same host: its porter finds the port taken. */
    struct stage other = stage;
    other.target = NULL;
    stage_open_manager(&other, 0, 0);
    EXPECT(stage_open(&other, &spec, &second, &err) < 0);
    EXPECT(strstr(err.text, "13131 is taken") != NULL);
    stage_close_manager(&other);
    EXPECT_INT(stage_close(&stage, box, &err), 0);
    const char *left = left_ssh(&stage);
    EXPECT_TEXT(left ? left : "", "");
    EXPECT_INT(stage_open(&stage, &spec, &box, &err), 0);
    stage_end(&stage);
}
