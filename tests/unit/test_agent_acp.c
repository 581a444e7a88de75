/* A conversation over the Agent Client Protocol, line by line, without an agent. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/acp.h"
#include "base/mem.h"
#include "test.h"

struct talk {
    struct agent_acp_way way;
    struct agent_spec *spec;
    struct agent_reader reader;
    struct agent_acp acp;
    struct buf sent, events; /* the last line; all */
    int over, turns;
    char reply[64];
};

static void on_send(void *context, struct str line)
{
    struct talk *talk = context;
    buf_clear(&talk->sent);
    buf_str_append(&talk->sent, line);
}

static void on_over(void *context)
{
    ((struct talk *)context)->over++;
}

static void on_turn(void *context, struct str reply)
{
    struct talk *talk = context;
    talk->turns++;
    snprintf(talk->reply, sizeof talk->reply, "%.*s", STR_ARGS(reply));
}

static void on_event(void *context, const struct agent_event *event)
{
    struct talk *talk = context;
    buf_format(&talk->events, "%s(%.*s:%.*s) ", agent_event_kind_name(event->kind),
               STR_ARGS(event->type), STR_ARGS(event->text));
}

static void talk_begin(struct talk *talk)
{
    struct err err = {0};
    talk->spec = agent_spec_parse(
        STR("name = \"x\"\n[run]\nargv = [\"a\"]\ninstruction = \"acp\"\n[output]\nformat = "
            "\"acp\"\n"),
        "x.toml", &err);
    talk->reader = (struct agent_reader){.spec = talk->spec, .on_event = on_event, .context = talk};
    talk->acp.way = &talk->way;
    talk->acp.cwd = "/app";
    talk->acp.instruction = "do \"it\"";
    talk->acp.reader = &talk->reader;
    talk->acp.on_send = on_send;
    talk->acp.on_over = on_over;
    talk->acp.context = talk;
    list_init(&talk->acp.serving);
    agent_acp_begin(&talk->acp);
}

static void talk_end(struct talk *talk)
{
    agent_acp_deinit(&talk->acp);
    agent_reader_deinit(&talk->reader);
    agent_spec_unref(talk->spec);
    buf_deinit(&talk->sent);
    buf_deinit(&talk->events);
}

static void hears(struct talk *talk, const char *line)
{
    agent_acp_line(&talk->acp, str_of(line));
}

static void expect_sent(struct talk *talk, const char *words, int line)
{
    if (str_find(buf_str(&talk->sent), str_of(words)) < 0)
        test_fail(__FILE__, line, "'%.*s' has no '%s'", STR_ARGS(buf_str(&talk->sent)), words);
}
#define EXPECT_SENT(talk, words) expect_sent(talk, words, __LINE__)

#define ANSWER(id, result) "{\"jsonrpc\":\"2.0\",\"id\":" id ",\"result\":" result "}"
#define SAYS(text)                                                                                 \
    "{\"method\":\"session/update\",\"params\":{\"update\":{\"sessionUpdate\":"                    \
    "\"agent_message_chunk\",\"content\":{\"type\":\"text\",\"text\":\"" text "\"}}}}"

static void open_session(struct talk *talk)
{
    hears(talk, ANSWER("1", "{\"protocolVersion\":1}"));
    hears(talk, ANSWER("3", "{\"sessionId\":\"s1\"}"));
}

TEST(several_turns_of_the_task_and_then_of_the_owner)
{
    static const char *const turns[] = {"two", NULL};
    struct talk talk = {.acp = {.turns = turns, .on_turn = on_turn}};
    talk_begin(&talk);
    EXPECT_SENT(&talk,
                "\"fs\":{\"readTextFile\":false,\"writeTextFile\":false},\"terminal\":false");
    open_session(&talk);
    EXPECT_SENT(&talk, "\"id\":5,\"method\":\"session/prompt\"");
    EXPECT_SENT(&talk, "do \\\"it\\\"");
    hears(&talk, SAYS("on"));
    hears(&talk, SAYS("e"));
    hears(&talk, ANSWER("99", "{\"stopReason\":\"end_turn\"}")); /* of nothing we asked */
    EXPECT_INT(talk.acp.answered, 0);
    hears(&talk, ANSWER("5", "{\"stopReason\":\"end_turn\"}"));
    EXPECT_SENT(&talk, "\"id\":6,\"method\":\"session/prompt\"");
    EXPECT_SENT(&talk, "\"text\":\"two\"");
    hears(&talk, ANSWER("5", "{\"stopReason\":\"end_turn\"}")); /* said twice */
    EXPECT_INT(talk.turns, 0);
    hears(&talk, SAYS("deux"));
    hears(&talk, ANSWER("6", "{\"stopReason\":\"end_turn\"}"));
    EXPECT_INT(talk.turns, 1);
    EXPECT_STR(str_of(talk.reply), STR("deux"));
    agent_acp_say(&talk.acp, "three");
    EXPECT_SENT(&talk, "\"id\":7");
    hears(&talk, ANSWER("7", "{\"stopReason\":\"end_turn\"}"));
    EXPECT_STR(str_of(talk.reply), STR(""));
    EXPECT_INT(talk.over, 0);
    agent_acp_say(&talk.acp, NULL);
    EXPECT_INT(talk.over, 1);
    EXPECT_INT(talk.acp.fate, AGENT_OK);
    EXPECT_STR(buf_str(&talk.events),
               STR("assistant(session/update:one) other(user:two) assistant(session/update:deux) "
                   "other(user:three) done(session/prompt:) "));
    talk_end(&talk);
}

/* Answers to what nobody asked: each would have us prompt, or ask the user, once more. */
TEST(a_step_is_not_done_twice_for_an_agent_that_answers_twice)
{
    struct talk talk = {.acp = {.on_turn = on_turn}};
    talk_begin(&talk);
    hears(&talk, ANSWER("3", "{\"sessionId\":\"s0\"}")); /* before it was asked for one */
    EXPECT_SENT(&talk, "\"method\":\"initialize\"");
    open_session(&talk);
    buf_clear(&talk.sent);
    hears(&talk, ANSWER("1", "{\"protocolVersion\":1}"));
    hears(&talk, ANSWER("3", "{\"sessionId\":\"s2\"}"));
    hears(&talk, ANSWER("4", "{}"));
    hears(&talk, "{\"id\":4,\"error\":{\"message\":\"no\"}}");
    EXPECT_INT(talk.sent.size, 0);
    EXPECT_INT(talk.acp.turn, 1);
    hears(&talk, ANSWER("5", "{\"stopReason\":\"end_turn\"}"));
    EXPECT_INT(talk.turns, 1);
    hears(&talk, ANSWER("4", "{}")); /* while the user thinks */
    hears(&talk, ANSWER("6", "{\"stopReason\":\"end_turn\"}"));
    EXPECT_INT(talk.turns, 1);
    agent_acp_say(&talk.acp, NULL);
    EXPECT_INT(talk.over, 1);
    talk_end(&talk);
}

TEST(a_stop_is_told_and_waited_for)
{
    struct talk talk = {0};
    talk_begin(&talk);
    open_session(&talk);
    agent_acp_cancel(&talk.acp);
    EXPECT_SENT(&talk, "{\"jsonrpc\":\"2.0\",\"method\":\"session/cancel\",\"params\":{"
                       "\"sessionId\":\"s1\"}}");
    hears(&talk, "{\"id\":8,\"method\":\"session/request_permission\",\"params\":{\"options\":[{"
                 "\"optionId\":\"y\",\"kind\":\"allow_once\"}]}}");
    EXPECT_SENT(&talk, "{\"outcome\":{\"outcome\":\"cancelled\"}}");
    hears(&talk, ANSWER("5", "{\"stopReason\":\"cancelled\"}"));
    EXPECT_INT(talk.over, 1);
    EXPECT_INT(talk.acp.fate, AGENT_KILLED);
    talk_end(&talk);
}

TEST(what_goes_wrong_is_the_agents_failure)
{
    static const struct {
        const char *first, *second, *third;
        enum agent_fate fate;
        const char *words;
    } rows[] = {
        {ANSWER("1", "{\"protocolVersion\":2}"), NULL, NULL, AGENT_FAILED, "another version"},
        {ANSWER("1", "{}"), "{\"id\":3,\"error\":{\"code\":-32000,\"message\":\"log in\"}}", NULL,
         AGENT_FAILED, "log in (the spec's acp.auth"},
        {ANSWER("1", "{}"), ANSWER("3", "{}"), NULL, AGENT_FAILED, "usable id"},
        {ANSWER("1", "{}"), ANSWER("3", "{\"sessionId\":\"s\"}"),
         "{\"id\":5,\"error\":{\"code\":1,\"message\":\"m\",\"data\":{\"details\":\"why\"}}}",
         AGENT_FAILED, "error(session/prompt:why)"},
        {ANSWER("1", "{}"), ANSWER("3", "{\"sessionId\":\"s\"}"),
         ANSWER("5", "{\"stopReason\":\"refusal\"}"), AGENT_FAILED, "refusal"},
        {ANSWER("1", "{}"), ANSWER("3", "{\"sessionId\":\"s\"}"),
         ANSWER("5", "{\"stopReason\":\"cancelled\"}"), AGENT_FAILED, "cancelled"},
        {ANSWER("1", "{}"), ANSWER("3", "{\"sessionId\":\"s\"}"),
         ANSWER("5", "{\"stopReason\":\"max_tokens\"}"), AGENT_LIMIT, "max_tokens"},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct talk talk = {0};
        talk_begin(&talk);
        hears(&talk, "a line that is no JSON");
        hears(&talk, rows[i].first);
        if (rows[i].second)
            hears(&talk, rows[i].second);
        if (rows[i].third)
            hears(&talk, rows[i].third);
        EXPECT_INT(talk.over, 1);
        EXPECT_INT(talk.acp.fate, rows[i].fate);
        if (str_find(buf_str(&talk.events), str_of(rows[i].words)) < 0)
            test_fail(__FILE__, __LINE__, "'%.*s' has no '%s'", STR_ARGS(buf_str(&talk.events)),
                      rows[i].words);
        hears(&talk, SAYS("too late"));
        talk_end(&talk);
    }
}

TEST(permissions_follow_the_spec)
{
    static const char *const deny[] = {"fetch", NULL};
    static const struct {
        bool deny_all;
        const char *kind, *outcome;
    } rows[] = {
        {false, "execute", "\"optionId\":\"yes\""},
        {false, "fetch", "\"optionId\":\"no\""},
        {true, "execute", "\"optionId\":\"no\""},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct talk talk = {.way = {.deny_all = rows[i].deny_all, .deny = deny}};
        OWN(mem)
        char *line = mem_format("{\"id\":\"q\",\"method\":\"session/request_permission\","
                                "\"params\":{\"toolCall\":{\"kind\":\"%s\"},\"options\":["
                                "{\"optionId\":\"no\",\"kind\":\"reject_once\"},"
                                "{\"optionId\":\"yes\",\"kind\":\"allow_once\"}]}}",
                                rows[i].kind);
        talk_begin(&talk);
        open_session(&talk);
        hears(&talk, line);
        EXPECT_SENT(&talk, "\"id\":\"q\",\"result\"");
        EXPECT_SENT(&talk, rows[i].outcome);
        hears(&talk, "{\"id\":9,\"method\":\"fs/read_text_file\",\"params\":{\"path\":\"/x\"}}");
        EXPECT_SENT(&talk, "\"id\":9,\"error\":{\"code\":-32601");
        hears(&talk, "{\"id\":9,\"method\":\"terminal/create\",\"params\":{\"command\":\"ls\"}}");
        EXPECT_SENT(&talk, "\"code\":-32601");
        talk_end(&talk);
    }
}

TEST(what_the_spec_says_about_the_session_is_said)
{
    struct talk talk = {
        .way = {.auth = "key", .mode = "yolo"},
        .acp = {.mcp_url = "http://x/mcp", .mcp_name = "task", .meta = "{\"a\":1}"}};
    talk_begin(&talk);
    hears(&talk, ANSWER("1", "{\"agentCapabilities\":{\"mcpCapabilities\":{\"http\":true}}}"));
    EXPECT_SENT(&talk, "\"id\":2,\"method\":\"authenticate\",\"params\":{\"methodId\":\"key\"}");
    hears(&talk, ANSWER("2", "{}"));
    EXPECT_SENT(&talk, "\"mcpServers\":[{\"type\":\"http\",\"name\":\"task\",\"url\":\"http://x/"
                       "mcp\",\"headers\":[]}],\"_meta\":{\"a\":1}");
    hears(&talk, ANSWER("3", "{\"sessionId\":\"s1\"}"));
    EXPECT_SENT(&talk, "\"id\":4,\"method\":\"session/set_mode\"");
    hears(&talk, "{\"id\":4,\"error\":{\"code\":-32601,\"message\":\"none\"}}"); /* it goes on */
    EXPECT_SENT(&talk, "session/prompt");
    talk_end(&talk);

    struct talk deaf = {.acp = {.mcp_url = "http://x/mcp", .mcp_name = "task"}};
    talk_begin(&deaf);
    hears(&deaf, ANSWER("1", "{}"));
    EXPECT_INT(deaf.acp.fate, AGENT_FAILED);
    EXPECT(str_find(buf_str(&deaf.events), STR("no MCP servers over HTTP")) > 0);
    talk_end(&deaf);
}

static void expect_error(const char *more, const char *words)
{
    struct err err = {0};
    OWN(mem)
    char *text =
        mem_format("name = \"x\"\n[run]\nargv = [\"a\", \"{instruction_file}\"]\n%s", more);
    struct agent_spec *spec = agent_spec_parse(str_of(text), "x.toml", &err);
    if (spec || !strstr(err.text, words))
        test_fail(__FILE__, __LINE__, "%s: %s", more, spec ? "taken" : err.text);
    agent_spec_unref(spec);
}

TEST(specs_of_driven_agents_are_read)
{
    struct err err = {0};
    struct agent_spec *spec = agent_spec_parse(
        STR("name = \"x\"\n[run]\nargv = [\"a\", \"{instruction_file}\", \"{system}\"]\n"
            "[acp]\nargv = [\"a\", \"acp\"]\ndeny = [\"fetch\"]\nfiles = true\nterminals = true\n"
            "meta = '{\"s\": \"{system}\"}'\n"),
        "x.toml", &err);
    EXPECT(spec && spec->acp.files && spec->acp.terminals && spec->acp.system_native);
    EXPECT(spec && agent_spec_takes_turns(spec) && !agent_spec_resumes(spec));
    agent_spec_unref(spec);
    expect_error("[acp]\nfiles = true\n", "needs 'argv'");
    expect_error("[acp]\nargv = [\"a\"]\npermission = \"ask\"\n", "permission");
    expect_error("[acp]\nargv = [\"a\"]\npermission = \"deny\"\ndeny = [\"x\"]\n", "already");
    expect_error("[acp]\nargv = [\"a\"]\nmeta = '{\"a\": {system}}'\n", "not json");
    expect_error("[acp]\nargv = []\n", "empty");
}
