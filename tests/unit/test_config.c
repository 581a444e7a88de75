/* Settings: the order of sources, what they refuse and how they say so. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "config/config.h"
#include "json/json.h"
#include "test.h"

struct place {
    char home[64];
    char file[96];
    char variable[96];
};

static struct place place_make(const char *content)
{
    struct place place = {.home = "/tmp/postern-config-XXXXXX"};
    if (!mkdtemp(place.home))
        test_skip("no temporary directory");
    snprintf(place.file, sizeof place.file, "%s/postern.toml", place.home);
    snprintf(place.variable, sizeof place.variable, "POSTERN_HOME=%s", place.home);
    if (content)
        (void)file_write(place.file, str_of(content), 0644, false, NULL);
    return place;
}

TEST(every_fallback_is_within_its_own_limits)
{
    OWN(config) struct config config;
    config_init(&config);
    EXPECT_TEXT(config.home, "./postern-data");
    EXPECT_TEXT(config.listen_address, "127.0.0.1");
    EXPECT_INT(config.log_level, LOG_INFO);
    EXPECT_INT(config.rollout_wall_ms_max, 30 * 60 * 1000);
    EXPECT_INT(config.gateway_body_bytes_max, 64 << 20);
    OWN(buf) struct buf out = {0};
    config_write_json(&config, &(struct json_writer){.out = &out});
    OWN(json_doc) struct json_doc doc = {0};
    EXPECT(json_read(&doc, buf_str(&out), NULL, NULL) == 0);
    JSON_EACH (item, json_root(&doc))
        EXPECT(json_is(json_get(item.value, "source"), "fallback"));
}

TEST(later_sources_win)
{
    struct place place =
        place_make("lanes = 1\n[sandbox]\npids-max = 100\nmemory-max = '1G'\n"
                   "[log]\njson = true\nlevel = 'debug'\n[gateway]\nkeepalive='5s'\n");
    char *environment[] = {place.variable, (char[]){"POSTERN_SANDBOX_PIDS_MAX=200"},
                           (char[]){"POSTERN_LOG_LEVEL=warn"}, (char[]){"OTHER=1"}, NULL};
    char *argv[] = {(char[]){"postern"},
                    (char[]){"run"},
                    (char[]){"--log.level"},
                    (char[]){"error"},
                    (char[]){"--agent"},
                    (char[]){"mini"},
                    (char[]){"--no-log.json"},
                    (char[]){"--sandbox.disk-max=8G"},
                    (char[]){"--"},
                    (char[]){"--lanes"},
                    NULL};
    int argc = 10;
    OWN(config) struct config config;
    config_init(&config);
    struct err err = {0};
    if (config_load(&config, &argc, argv, environment, &err) < 0)
        test_fail(__FILE__, __LINE__, "%s", err.text);
    EXPECT_INT(config.lanes, 1);
    EXPECT_INT(config.sandbox_memory_bytes_max, 1 << 30);
    EXPECT_INT(config.sandbox_pids_max, 200);
    EXPECT_INT(config.log_level, LOG_ERROR);
    EXPECT(!config.log_json);
    EXPECT_INT(config.sandbox_disk_bytes_max, 8ll << 30);
    EXPECT_INT(config.gateway_keepalive_ms, 5000);
    EXPECT_TEXT(config.home, place.home);
    EXPECT_INT(argc, 6); /* what is no setting stays, and all after "--" */
    EXPECT_TEXT(argv[2], "--agent");
    EXPECT_TEXT(argv[4], "--");
    EXPECT_TEXT(argv[5], "--lanes");
    EXPECT(!argv[6]);
    OWN(buf) struct buf out = {0};
    config_write_json(&config, &(struct json_writer){.out = &out});
    EXPECT(strstr(buf_text(&out), "\"sandbox.pids-max\":{\"value\":200,\"source\":"
                                  "\"POSTERN_SANDBOX_PIDS_MAX\"}"));
    (void)file_remove_tree(place.home, NULL);
}

TEST(a_named_file_must_exist_and_the_usual_one_need_not)
{
    struct place place = place_make(NULL);
    struct err err = {0};
    {
        char *argv[] = {(char[]){"p"}, (char[]){"--home"}, place.home, NULL};
        int argc = 3;
        OWN(config) struct config config;
        config_init(&config);
        EXPECT(config_load(&config, &argc, argv, NULL, &err) == 0);
        EXPECT_INT(argc, 1);
    }
    char *argv[] = {(char[]){"p"}, (char[]){"--config"}, place.file, NULL};
    int argc = 3;
    OWN(config) struct config config;
    config_init(&config);
    EXPECT(config_load(&config, &argc, argv, NULL, &err) < 0);
    EXPECT_INT(err.kind, ERR_NOT_FOUND);
    (void)file_remove_tree(place.home, NULL);
}

static struct err file_error(const char *content)
{
    struct place place = place_make(content);
    struct config config;
    struct err err = {0};
    config_init(&config);
    (void)config_load_file(&config, place.file, &err);
    config_deinit(&config);
    (void)file_remove_tree(place.home, NULL);
    /* The directory's name differs each time. */
    char *at = strstr(err.text, "postern.toml");
    if (at)
        memmove(err.text, at, strlen(at) + 1);
    return err;
}

TEST(mistakes_in_the_file_are_named_with_their_place)
{
    EXPECT_TEXT(file_error("lanes = 'x'").text,
                "postern.toml:1:9: lanes must be an integer between 0 and 256, not a string");
    EXPECT_TEXT(
        file_error("\n[sandbox]\npids-max = 1").text,
        "postern.toml:3:12: sandbox.pids-max must be an integer between 8 and 4194304, not '1'");
    EXPECT_TEXT(
        file_error("[sandbox]\nmemory_max = '1G'").text,
        "postern.toml:2:1: unknown key 'memory_max' in [sandbox]; did you mean 'memory-max'?");
    EXPECT_TEXT(file_error("[sandbocks]\nx = 1").text,
                "postern.toml:1:2: unknown key 'sandbocks'; did you mean 'sandbox'?");
    EXPECT_TEXT(
        file_error("[log]\nlevel = 'loud'").text,
        "postern.toml:2:9: log.level must be one of debug, info, warn, error, off, not 'loud'");
    EXPECT_TEXT(file_error("[gateway]\nkeepalive = '1 week'").text,
                "postern.toml:2:13: gateway.keepalive must be a duration between 100ms and 1h, not "
                "'1 week'");
    EXPECT_TEXT(file_error("home = ' '").text,
                "postern.toml:1:8: home must be a text that is not empty, not ' '");
    EXPECT_TEXT(file_error("log = 1").text,
                "postern.toml:1:7: 'log' must be a table, not an integer");
}

/* The model's key is no setting, so that it is in none of the places that show them. */
TEST(variables_nobody_reads_are_warned_of_in_the_form_that_was_asked_for)
{
    char text[2048];
    OWN(config) struct config config;
    struct err err = {0};
    char *environment[] = {(char[]){"POSTERN_MODEL_KEY=sk-1"},
                           (char[]){"POSTERN_LIBEXEC=/x"},
                           (char[]){"POSTERN_SHARE=/x"},
                           (char[]){"POSTERN_KEEPER_IDLE_MS=5"},
                           (char[]){"POSTERN_LANES=2"},
                           (char[]){"POSTERN_QQQQQQQQQQQQ=secret"},
                           NULL};
    int ends[2], before = dup(STDERR_FILENO);
    EXPECT_INT(pipe(ends), 0);
    EXPECT(dup2(ends[1], STDERR_FILENO) >= 0);
    config_init(&config);
    int loaded = config_load_environment(&config, environment, &err);
    log_setup(LOG_INFO, true);
    config_warn_environment(environment);
    log_setup(LOG_INFO, false);
    EXPECT(dup2(before, STDERR_FILENO) >= 0);
    EXPECT_INT(loaded, 0);
    ssize_t size = read(ends[0], text, sizeof text - 1);
    text[size > 0 ? size : 0] = '\0';
    EXPECT(text[0] == '{' && strstr(text, "POSTERN_QQQQQQQQQQQQ in the environment is no setting"));
    EXPECT(strchr(text, '\n') == text + strlen(text) - 1);
    EXPECT(!strstr(text, "secret"));
    close(before);
    close(ends[0]);
    close(ends[1]);
}

TEST(mistakes_elsewhere_are_named_with_their_source)
{
    OWN(config) struct config config;
    struct err err = {0};
    config_init(&config);
    char *environment[] = {(char[]){"POSTERN_LANES=many"}, NULL};
    EXPECT(config_load_environment(&config, environment, &err) < 0);
    EXPECT_TEXT(err.text, "POSTERN_LANES: lanes must be an integer between 0 and 256, not 'many'");
    char *typo[] = {(char[]){"POSTERN_SANDBOX_PIDSMAX=1"}, NULL};
    EXPECT(config_load_environment(&config, typo, &err) < 0);
    EXPECT_TEXT(err.text, "POSTERN_SANDBOX_PIDSMAX: there is no such setting; did you mean "
                          "POSTERN_SANDBOX_PIDS_MAX?");
    char *argv[] = {(char[]){"p"}, (char[]){"--sandbox.memory-max"}, (char[]){"1K"}, NULL};
    int argc = 3;
    EXPECT(config_take_args(&config, &argc, argv, &err) < 0);
    EXPECT_TEXT(err.text, "--sandbox.memory-max: sandbox.memory-max must be a size between 16M and "
                          "65536G, not '1K'");
    char *unknown[] = {(char[]){"p"}, (char[]){"--sandbox.memry-max"}, NULL};
    argc = 2;
    EXPECT(config_take_args(&config, &argc, unknown, &err) < 0);
    EXPECT_TEXT(err.text,
                "--sandbox.memry-max: there is no setting 'sandbox.memry-max'; did you mean "
                "'sandbox.memory-max'?");
    char *bare[] = {(char[]){"p"}, (char[]){"--lanes"}, NULL};
    argc = 2;
    EXPECT(config_take_args(&config, &argc, bare, &err) < 0);
    EXPECT_TEXT(err.text, "--lanes needs a value");
    EXPECT(config_set(&config, "lane", "1", "test", &err) < 0);
    EXPECT_TEXT(err.text, "test: there is no setting 'lane'; did you mean 'lanes'?");
    EXPECT_TEXT(config_nearest_flag("--lane"), "--lanes");
}

TEST(help_and_documentation_name_every_setting)
{
    OWN(buf) struct buf help = {0}, docs = {0}, json = {0};
    OWN(config) struct config config;
    config_init(&config);
    config_help(&help);
    config_write_docs(&docs);
    config_write_json(&config, &(struct json_writer){.out = &json});
    OWN(json_doc) struct json_doc doc = {0};
    EXPECT(json_read(&doc, buf_str(&json), NULL, NULL) == 0);
    EXPECT(json_size(json_root(&doc)) >= 30);
    JSON_EACH (item, json_root(&doc)) {
        struct str key = json_raw(item.key);
        struct str name = str_make(key.data + 1, key.size - 2);
        EXPECT(str_find(buf_str(&help), name) > 0);
        EXPECT(str_find(buf_str(&docs), name) > 0);
    }
}
