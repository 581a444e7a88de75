/* Held calls from the agent's side: every dialect, whole and streamed, as a trainer answers them.
 */
#include "test_gateway.h"
#include "test_gateway_spoken.h"

#include "base/rope.h"
#include "gateway/gate.h"
#include "gateway/inner.h"

#define CHUNK(delta) "{\"choices\":[{\"index\":0,\"delta\":{" delta "}}]}\n"

struct trainer {
    struct world *world;
    struct gate *gate;
    bool came;
    size_t count;
    char call_id[64], lease[32];
    struct buf object; /* of the last call taken */
    bool drained, gone;
};

static void gate_world(struct trainer *trainer, struct world *world,
                       struct gateway_session_options options)
{
    struct err err = {0};
    world_start(world);
    gateway_free(world->gateway);
    trainer->world = world;
    trainer->gate = gate_new(world->loop, NULL);
    struct gateway_options gateway = {.store = world->store, .gate = trainer->gate};
    world->gateway = gateway_new(world->loop, &gateway, &err);
    world->model = model_open("gate:", NULL, &err);
    EXPECT(world->model);
    options.mode = "gate";
    options.group_id = "g-1";
    options.retry_grace_ms = options.retry_grace_ms ? options.retry_grace_ms : 1;
    world_open(world, options);
}

static void gate_world_end(struct trainer *trainer)
{
    struct world *world = trainer->world;
    world_close_session(world, 0);
    for (int i = 0; i < 3; i++)
        loop_once(world->loop, 0);
    struct gate_counts counts;
    gate_counts(trainer->gate, &counts);
    EXPECT_INT(counts.held + counts.leased + counts.streaming, 0);
    gate_free(trainer->gate);
    world_end(world);
    buf_deinit(&trainer->object);
}

/* Sent from where its parts lie, a call is the same as copied. */
static void expect_the_same_as_rope(struct gate_work *work, struct str copied)
{
    OWN(rope) struct rope rope = {0};
    struct json_writer out = {.out = &rope.text, .rope = &rope};
    gate_work_write(work, true, &out);
    EXPECT_INT(rope_size(&rope), copied.size);
    struct iovec stretches[16];
    size_t count = rope_front(&rope, stretches, COUNT(stretches));
    EXPECT(copied.size < 3 * ROPE_PIECE_BYTES_MIN || count > 1);
    for (size_t i = 0; i < count; i++) {
        EXPECT(str_starts(copied, str_make(stretches[i].iov_base, stretches[i].iov_len)));
        copied = str_from(copied, stretches[i].iov_len);
    }
    EXPECT_INT(copied.size, 0);
}

static void on_calls(void *context, struct gate_work *const *calls, size_t count)
{
    struct trainer *trainer = context;
    trainer->came = true;
    trainer->count = count;
    for (size_t i = 0; i < count; i++) {
        OWN(json_doc) struct json_doc doc = {0};
        OWN(arena) struct arena arena = {0};
        buf_clear(&trainer->object);
        struct json_writer out = {.out = &trainer->object};
        gate_work_write(calls[i], true, &out);
        expect_the_same_as_rope(calls[i], buf_str(&trainer->object));
        EXPECT_INT(json_read(&doc, buf_str(&trainer->object), NULL, NULL), 0);
        struct str lease = json_str(json_get(json_root(&doc), "lease"), &arena);
        snprintf(trainer->call_id, sizeof trainer->call_id, "%s", gate_work_call_id(calls[i]));
        snprintf(trainer->lease, sizeof trainer->lease, "%.*s", STR_ARGS(lease));
    }
}

static void take(struct trainer *trainer)
{
    trainer->came = false;
    struct gate_take take = {.max = 1, .wait_ms = 60000};
    EXPECT(gate_take(trainer->gate, &take, on_calls, trainer, NULL));
    PUMP_UNTIL(trainer->world, trainer->came);
    EXPECT_INT(trainer->count, 1);
}

static int give(struct trainer *trainer, const char *answer, struct err *err)
{
    return gate_answer(trainer->gate, trainer->call_id, trainer->lease, str_of(answer), err);
}

static void on_drain(void *context)
{
    ((struct trainer *)context)->drained = true;
}

static void on_stream_gone(void *context)
{
    ((struct trainer *)context)->gone = true;
}

static struct gate_stream *open_stream(struct trainer *trainer)
{
    return gate_stream_open(trainer->gate, trainer->call_id, trainer->lease, on_drain,
                            on_stream_gone, trainer, NULL);
}

static size_t feed(struct gate_stream *stream, struct gate_lines *lines, const char *text, bool end)
{
    OWN(buf) struct buf events = {0};
    struct err err = {0};
    if (gate_lines_feed(lines, str_of(text), end, &events, &err) < 0) {
        fprintf(stderr, "%s\n", err.text);
        abort();
    }
    return events.size ? gate_stream_write(stream, buf_str(&events)) : 0;
}

static void last_record(struct world *world, struct json_doc *doc, struct buf *text)
{
    buf_clear(text);
    EXPECT_INT(file_read(world->calls_path, 64 << 20, text, NULL), 0);
    struct str lines = str_trim(buf_str(text));
    long at;
    while ((at = str_find_byte(lines, '\n')) >= 0)
        lines = str_from(lines, (size_t)at + 1);
    EXPECT_INT(json_read(doc, lines, NULL, NULL), 0);
}

/* Whatever the agent spoke, the trainer sees the same question and answers in the same words. */
TEST(the_trainer_sees_one_form_and_the_agent_its_own)
{
    struct world world = {0};
    struct trainer trainer = {0};
    gate_world(&trainer, &world, (struct gateway_session_options){0});
    gate_set_policy(trainer.gate, 7);
    for (size_t i = 0; i < COUNT(spoken); i++) {
        struct reply reply;
        agent_ask_at(&world, &reply, spoken[i].path, str_of(spoken[i].body));
        take(&trainer);
        OWN(json_doc) struct json_doc doc = {0};
        EXPECT_INT(json_read(&doc, buf_str(&trainer.object), NULL, NULL), 0);
        struct json object = json_root(&doc), messages = json_get(object, "messages");
        bool completions = strcmp(spoken[i].dialect, "completions") == 0;
        EXPECT(json_is(json_get(object, "dialect"), spoken[i].dialect));
        EXPECT(json_is(json_get(object, "rollout_id"), "r-test"));
        EXPECT(json_is(json_get(object, "group_id"), "g-1"));
        EXPECT(json_is(json_get(object, "model"), "any"));
        EXPECT_INT(json_int_or(json_get(object, "policy_version"), -1), 7);
        EXPECT_INT(json_size(messages), completions ? 1 : 2);
        EXPECT(completions || json_is(json_get(json_at(messages, 0), "role"), "system"));
        struct json last = json_at(messages, json_size(messages) - 1);
        EXPECT(json_is(json_get(last, "role"), "user"));
        EXPECT(json_is(json_get(last, "content"), "hello"));
        struct json tool = json_get(json_at(json_get(object, "tools"), 0), "function");
        EXPECT(completions || json_is(json_get(tool, "name"), "look"));
        EXPECT_INT(json_type(json_get(object, "raw")), JSON_OBJECT);
        struct err err = {0};
        EXPECT_INT(give(&trainer,
                        "{\"choices\":[{\"message\":{\"content\":\"the answer\"},\"finish_reason\":"
                        "\"stop\",\"token_ids\":[5,6],\"logprobs\":{\"content\":[{\"logprob\":-0.5}"
                        ",{\"logprob\":-0.25}]}}],\"prompt_token_ids\":[1,2,3]}",
                        &err),
                   0);
        reply_wait(&reply);
        EXPECT_INT(reply.status, 200);
        EXPECT(reply_has(&reply, "the answer"));
        EXPECT(!reply_has(&reply, "token_ids"));
        OWN(json_doc) struct json_doc record = {0};
        OWN(buf) struct buf text = {0};
        last_record(&world, &record, &text);
        struct json root = json_root(&record), answer = json_get(root, "answer");
        EXPECT(json_is(json_get(root, "mode"), "gate"));
        EXPECT(json_is(json_get(root, "state"), "answered"));
        EXPECT_INT(json_int_or(json_get(root, "policy_version"), -1), 7);
        EXPECT_INT(json_size(json_get(answer, "prompt_token_ids")), 3);
        EXPECT(!json_exists(json_get(answer, "tokens_note")));
        EXPECT_INT(json_int_or(json_get(json_get(answer, "usage"), "prompt_tokens"), 0), 3);
        buf_deinit(&reply.body);
    }
    gate_world_end(&trainer);
}

TEST(a_stream_of_the_trainer_reaches_every_dialect_as_it_comes)
{
    struct world world = {0};
    struct trainer trainer = {0};
    gate_world(&trainer, &world, (struct gateway_session_options){0});
    for (size_t i = 0; i < COUNT(spoken); i++) {
        struct reply reply;
        struct gate_lines lines = {0};
        agent_ask_at(&world, &reply, spoken[i].stream_path, str_of(spoken[i].stream_body));
        take(&trainer);
        struct gate_stream *stream = open_stream(&trainer);
        (void)feed(stream, &lines, CHUNK("\"content\":\"first\""), false);
        PUMP_UNTIL(&world, reply_has(&reply, "first"));
        (void)feed(stream, &lines, "data: " CHUNK("\"content\":\"second\"") "\n", false);
        PUMP_UNTIL(&world, reply_has(&reply, "second"));
        EXPECT(!reply_has(&reply, spoken[i].finish));
        (void)feed(
            stream, &lines,
            CHUNK("\"tool_calls\":[{\"index\":0,\"id\":\"t1\",\"function\":{\"name\":"
                  "\"look\",\"arguments\":\"{}\"}}]") "{\"finish_reason\":\"tool_calls\",\"token_"
                                                      "ids\":[1,2],\"completion_logprobs\":"
                                                      "[-1,-2]}\n",
            true);
        EXPECT_INT(world.done, i);
        gate_stream_end(stream);
        gate_lines_deinit(&lines);
        reply_wait(&reply);
        EXPECT_INT(reply.err.kind, ERR_NONE);
        EXPECT(reply_has(&reply, spoken[i].finish));
        OWN(json_doc) struct json_doc record = {0};
        OWN(buf) struct buf text = {0};
        last_record(&world, &record, &text);
        struct json answer = json_get(json_root(&record), "answer");
        EXPECT(json_is(json_get(answer, "tokens_note"),
                       "no token ids of the prompt came with the answer"));
        EXPECT(json_is(json_get(answer, "finish_reason"), "tool_calls"));
        buf_deinit(&reply.body);
    }
    gate_world_end(&trainer);
}

TEST(a_stream_lost_after_its_first_piece_resets_the_agent_and_is_recorded_as_broken)
{
    struct world world = {0};
    struct trainer trainer = {0};
    gate_world(&trainer, &world, (struct gateway_session_options){0});
    struct reply reply;
    struct gate_lines lines = {0};
    agent_ask(&world, &reply, ASK_STREAM);
    take(&trainer);
    struct gate_stream *stream = open_stream(&trainer);
    (void)feed(stream, &lines, CHUNK("\"content\":\"half an answ\""), false);
    PUMP_UNTIL(&world, reply_has(&reply, "half"));
    gate_stream_lost(stream);
    gate_lines_deinit(&lines);
    reply_wait(&reply);
    EXPECT_INT(reply.err.kind, ERR_LOST);
    buf_deinit(&reply.body);
    PUMP_UNTIL(&world, world.done == 1);
    OWN(json_doc) struct json_doc record = {0};
    OWN(buf) struct buf text = {0};
    last_record(&world, &record, &text);
    EXPECT(json_is(json_get(json_root(&record), "state"), "broken"));
    EXPECT(str_find(buf_str(&text), STR("half an answ")) > 0);
    gate_world_end(&trainer);
}

TEST(a_stream_lost_before_its_first_piece_is_handed_out_again)
{
    struct world world = {0};
    struct trainer trainer = {0};
    gate_world(&trainer, &world, (struct gateway_session_options){0});
    struct reply reply;
    struct err err = {0};
    agent_ask(&world, &reply, ASK_STREAM);
    take(&trainer);
    gate_stream_lost(open_stream(&trainer));
    take(&trainer);
    EXPECT(str_find(buf_str(&trainer.object), STR("\"delivery\":2")) > 0);
    EXPECT_INT(give(&trainer, "{\"content\":\"second try\"}", &err), 0);
    reply_wait(&reply);
    EXPECT(reply_has(&reply, "second try"));
    buf_deinit(&reply.body);
    gate_world_end(&trainer);
}

TEST(nonsense_is_refused_by_its_field_and_the_lease_stays)
{
    struct world world = {0};
    struct trainer trainer = {0};
    gate_world(&trainer, &world, (struct gateway_session_options){0});
    struct reply reply;
    agent_ask(&world, &reply, ASK);
    take(&trainer);
    static const struct {
        const char *answer, *field;
    } wrong[] = {
        {"[]", "object"},
        {"{\"choices\":[]}", "'choices'"},
        {"{\"choices\":[{\"message\":\"hi\"}]}", "'choices[0].message'"},
        {"{\"choices\":[{\"message\":{}},{\"message\":{}}]}", "one answer"},
        {"{\"content\":17}", "'content'"},
        {"{\"thing\":1}", "'choices'"},
        {"{\"content\":\"x\",\"tool_calls\":[{\"function\":{}}]}", "tool_calls[0].function.name"},
        {"{\"content\":\"x\",\"token_ids\":[1,-2]}", "'token_ids[1]'"},
        {"{\"content\":\"x\",\"prompt_token_ids\":[1,\"2\"]}", "'prompt_token_ids[1]'"},
        {"{\"content\":\"x\",\"completion_logprobs\":[\"a\"]}", "'completion_logprobs[0]'"},
        {"{\"content\":\"x\",\"token_ids\":\"1 2\"}", "'token_ids'"},
        {"{\"content\":\"x\",\"prompt_ids\":{\"0\":1}}", "'prompt_ids'"},
        {"{\"content\":\"x\",\"completion_logprobs\":-1}", "'completion_logprobs'"},
        {"{\"choices\":[{\"message\":{\"content\":\"x\"},\"token_ids\":7}]}", "'token_ids'"},
        {"{\"content\":\"x\",\"token_ids\":[2147483648]}", "'token_ids[0]'"},
        {"{\"content\":\"x\",\"completion_logprobs\":[-1,-1e999]}", "'completion_logprobs[1]'"},
        {"{\"content\":\"x\",\"logprobs\":[1e300]}", "'logprobs[0]'"},
        {"{\"content\":\"x\",\"logprobs\":[NaN]}", ""},
        {"{\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"tool_use\",\"id\":\"t\","
         "\"name\":\"f\",\"input\":{}}]}",
         "'content[1]'"},
        {"{\"content\":[1]}", "'content[0]'"},
        {"{\"content\":\"x\",\"finish_reason\":3}", "'finish_reason'"},
        {"{\"content\":\"x\",\"policy_version\":\"new\"}", "'policy_version'"},
        {"{\"content\":\"x\",\"policy_versions\":[[2,1,7]]}", "'policy_versions'"},
        {"{\"error\":{\"message\":\"x\"}}", "fail"},
        {"{\"content\":\"x\"", ""},
    };
    for (size_t i = 0; i < COUNT(wrong); i++) {
        struct err err = {0};
        EXPECT_INT(give(&trainer, wrong[i].answer, &err), -1);
        EXPECT_INT(err.kind, ERR_INPUT);
        EXPECT(strstr(err.text, wrong[i].field));
    }
    struct gate_stream *stream = open_stream(&trainer);
    gate_stream_refuse(stream);
    struct err err = {0};
    EXPECT_INT(give(&trainer, "{\"content\":\"now\"}", &err), 0);
    reply_wait(&reply);
    EXPECT(reply_has(&reply, "now"));
    buf_deinit(&reply.body);
    gate_world_end(&trainer);
}

/* Each engine's spelling ends up as the same arrays. */
TEST(tokens_are_taken_in_every_spelling)
{
    static const char *const spellings[] = {
        "{\"choices\":[{\"message\":{\"content\":\"x\"},\"finish_reason\":\"stop\",\"token_ids\":"
        "[5,6],\"prompt_token_ids\":[1,2],\"logprobs\":{\"content\":[{\"token\":\"a\",\"logprob\":"
        "-0.5},{\"token\":\"b\",\"logprob\":-0.25}]}}]}",
        "{\"choices\":[{\"message\":{\"content\":\"x\"},\"finish_reason\":\"stop\",\"logprobs\":"
        "{\"content\":[{\"token\":\"token_id:5\",\"logprob\":-0.5},{\"token\":\"token_id:6\","
        "\"logprob\":-0.25}]}}],\"prompt_token_ids\":[1,2]}",
        "{\"text\":\"x\",\"output_ids\":[5,6],\"meta_info\":{\"finish_reason\":{\"type\":\"stop\"},"
        "\"prompt_tokens\":2,\"completion_tokens\":2,\"input_token_logprobs\":[[null,1,null],"
        "[-1,2,null]],\"output_token_logprobs\":[[-0.5,5,null],[-0.25,6,null]]}}",
        "{\"content\":\"x\",\"completion_token_ids\":[5,6],\"completion_logprobs\":[-0.5,-0.25],"
        "\"prompt_token_ids\":[1,2]}",
        "{\"message\":{\"content\":\"x\"},\"token_ids\":[5,6],\"logprobs\":[-0.5,-0.25],"
        "\"prompt_ids\":[1,2]}",
        "{\"choices\":[{\"index\":3,\"message\":{\"content\":\"x\"},\"finish_reason\":\"\","
        "\"token_ids\":[5,6],\"completion_logprobs\":[-0.5,-0.25]}],\"prompt_token_ids\":[1,2]}",
        "{\"choices\":[{\"text\":\"x\",\"finish_reason\":\"stop\",\"token_ids\":[5,6],\"logprobs\":"
        "{\"token_logprobs\":[-0.5,-0.25]}}],\"prompt_token_ids\":[1,2]}",
    };
    struct world world = {0};
    struct trainer trainer = {0};
    gate_world(&trainer, &world, (struct gateway_session_options){0});
    for (size_t i = 0; i < COUNT(spellings); i++) {
        struct reply reply;
        struct err err = {0};
        agent_ask(&world, &reply, ASK);
        take(&trainer);
        EXPECT_INT(give(&trainer, spellings[i], &err), 0);
        reply_wait(&reply);
        EXPECT_INT(reply.status, 200);
        EXPECT(reply_has(&reply, "\"content\":\"x\""));
        OWN(json_doc) struct json_doc record = {0};
        OWN(buf) struct buf text = {0};
        last_record(&world, &record, &text);
        struct json answer = json_get(json_root(&record), "answer");
        EXPECT_STR(json_raw(json_get(answer, "prompt_token_ids")), STR("[1,2]"));
        EXPECT_STR(json_raw(json_get(answer, "token_ids")), STR("[5,6]"));
        EXPECT_STR(json_raw(json_get(answer, "logprobs")), STR("[-0.5,-0.25]"));
        EXPECT(!json_exists(json_get(answer, "tokens_note")));
        buf_deinit(&reply.body);
    }
    gate_world_end(&trainer);
}

/* Weights may change while an answer is made. */
TEST(versions_of_spans_of_tokens_are_kept)
{
    struct world world = {0};
    struct trainer trainer = {0};
    gate_world(&trainer, &world, (struct gateway_session_options){0});
    struct reply reply;
    struct err err = {0};
    agent_ask(&world, &reply, ASK);
    take(&trainer);
    EXPECT_INT(give(&trainer,
                    "{\"content\":\"x\",\"token_ids\":[5,6,7],\"completion_logprobs\":[-1,-1,-1],"
                    "\"prompt_token_ids\":[1],\"policy_versions\":[[0,2,8],[2,3,9]]}",
                    &err),
               0);
    reply_wait(&reply);
    EXPECT(!reply_has(&reply, "policy"));
    OWN(json_doc) struct json_doc record = {0};
    OWN(buf) struct buf text = {0};
    last_record(&world, &record, &text);
    EXPECT_STR(json_raw(json_get(json_get(json_root(&record), "answer"), "policy_versions")),
               STR("[[0,2,8],[2,3,9]]"));
    buf_deinit(&reply.body);

    /* With each piece of a stream. */
    agent_ask(&world, &reply, ASK_STREAM);
    take(&trainer);
    struct gate_stream *stream = open_stream(&trainer);
    struct gate_lines lines = {0};
    (void)feed(
        stream, &lines,
        "{\"content\":\"a\",\"token_ids\":[5,6],\"policy_version\":8,\"prompt_token_ids\":[1]}\n",
        false);
    (void)feed(
        stream, &lines,
        "{\"content\":\"b\",\"token_ids\":[7],\"policy_version\":9,\"finish_reason\":\"stop\"}\n",
        false);
    (void)feed(stream, &lines, "", true);
    gate_stream_end(stream);
    gate_lines_deinit(&lines);
    reply_wait(&reply);
    json_doc_deinit(&record);
    record = (struct json_doc){0};
    last_record(&world, &record, &text);
    EXPECT_STR(json_raw(json_get(json_get(json_root(&record), "answer"), "policy_versions")),
               STR("[[0,2,8],[2,3,9]]"));
    buf_deinit(&reply.body);
    gate_world_end(&trainer);
}

/* Agents that speak otherwise than the trainer: what is new is counted in the trainer's messages.
 */
TEST(a_later_turn_brings_the_tokens_before_it)
{
    static const struct {
        const char *path, *first, *second, *changed;
    } agents[] = {
        {"/v1/chat/completions",
         "{\"model\":\"any\",\"messages\":[{\"role\":\"user\",\"content\":\"hello\"}]}",
         "{\"model\":\"any\",\"messages\":[{\"role\":\"user\",\"content\":\"hello\"},{\"role\":"
         "\"assistant\",\"content\":\"well\"},{\"role\":\"user\",\"content\":\"more\"}]}",
         "{\"model\":\"any\",\"messages\":[{\"role\":\"user\",\"content\":\"hello\"},{\"role\":"
         "\"assistant\",\"content\":\"ill\"},{\"role\":\"user\",\"content\":\"more\"}]}"},
        {"/v1/messages",
         "{\"model\":\"any\",\"max_tokens\":9,\"messages\":[{\"role\":\"user\",\"content\":"
         "\"hello\"}]}",
         "{\"model\":\"any\",\"max_tokens\":9,\"messages\":[{\"role\":\"user\",\"content\":"
         "\"hello\"},{\"role\":\"assistant\",\"content\":[{\"type\":\"text\",\"text\":\"well\"}]},"
         "{\"role\":\"user\",\"content\":\"more\"}]}",
         "{\"model\":\"any\",\"max_tokens\":9,\"messages\":[{\"role\":\"user\",\"content\":"
         "\"hello\"},{\"role\":\"assistant\",\"content\":\"ill\"},{\"role\":\"user\",\"content\":"
         "\"more\"}]}"},
    };
    for (size_t i = 0; i < COUNT(agents); i++) {
        struct world world = {0};
        struct trainer trainer = {0};
        gate_world(&trainer, &world, (struct gateway_session_options){.exact_prefix = true});
        const char *const bodies[] = {agents[i].first, agents[i].second, agents[i].changed};
        for (size_t k = 0; k < COUNT(bodies); k++) {
            struct reply reply;
            struct err err = {0};
            agent_ask_at(&world, &reply, agents[i].path, str_of(bodies[k]));
            take(&trainer);
            OWN(json_doc) struct json_doc doc = {0};
            EXPECT_INT(json_read(&doc, buf_str(&trainer.object), NULL, NULL), 0);
            struct json object = json_root(&doc), ids = json_get(object, "prefix_token_ids");
            EXPECT(json_exists(ids) == (k == 1));
            if (k == 1) {
                EXPECT_STR(json_raw(ids), STR("[1,2,3,5,6]"));
                EXPECT_INT(json_int_or(json_get(object, "new_messages_from"), 0), 2);
            }
            EXPECT_INT(give(&trainer,
                            "{\"content\":\"well\",\"token_ids\":[5,6],\"completion_logprobs\":[-1,"
                            "-1],\"prompt_token_ids\":[1,2,3]}",
                            &err),
                       0);
            reply_wait(&reply);
            EXPECT_INT(reply.status, 200);
            buf_deinit(&reply.body);
        }
        gate_world_end(&trainer);
    }
}

/* With many calls in flight a held request is forgotten before it is held. */
TEST(an_exact_prefix_is_found_in_a_crowd_too)
{
    static const char *const bodies[] = {
        "{\"model\":\"any\",\"messages\":[{\"role\":\"user\",\"content\":\"hello\"}]}",
        "{\"model\":\"any\",\"messages\":[{\"role\":\"user\",\"content\":\"hello\"},{\"role\":"
        "\"assistant\",\"content\":\"well\"},{\"role\":\"user\",\"content\":\"more\"}]}"};
    struct world world = {0};
    struct trainer trainer = {0};
    gate_world(&trainer, &world, (struct gateway_session_options){.exact_prefix = true});
    atomic_fetch_add(&world.gateway->in_flight, 1000);
    for (size_t k = 0; k < COUNT(bodies); k++) {
        struct reply reply;
        struct err err = {0};
        agent_ask(&world, &reply, bodies[k]);
        take(&trainer);
        OWN(json_doc) struct json_doc doc = {0};
        EXPECT_INT(json_read(&doc, buf_str(&trainer.object), NULL, NULL), 0);
        EXPECT(json_exists(json_get(json_root(&doc), "prefix_token_ids")) == (k == 1));
        EXPECT_INT(give(&trainer,
                        "{\"content\":\"well\",\"token_ids\":[5,6],\"completion_logprobs\":[-1,-1],"
                        "\"prompt_token_ids\":[1,2,3]}",
                        &err),
                   0);
        reply_wait(&reply);
        EXPECT_INT(reply.status, 200);
        buf_deinit(&reply.body);
    }
    atomic_fetch_sub(&world.gateway->in_flight, 1000);
    gate_world_end(&trainer);
}

/* As when its intent finds no room in the journal's queue. */
TEST(a_call_that_is_dropped_in_a_crowd_has_its_request_in_its_line)
{
    static const char *const bodies[] = {
        "{\"model\":\"any\",\"messages\":[{\"role\":\"user\",\"content\":\"hello\"}]}",
        "{\"model\":\"any\",\"messages\":[{\"role\":\"user\",\"content\":\"hello\"},{\"role\":"
        "\"assistant\",\"content\":\"well\"},{\"role\":\"user\",\"content\":\"more\"}]}"};
    struct world world = {0};
    struct trainer trainer = {0};
    struct reply reply;
    struct err err = {0};
    gate_world(&trainer, &world, (struct gateway_session_options){0});
    atomic_fetch_add(&world.gateway->in_flight, 1000);
    world.gateway->kept_bytes += (size_t)1 << 30; /* no more is kept */
    agent_ask(&world, &reply, bodies[0]);
    take(&trainer);
    EXPECT_INT(give(&trainer, "{\"content\":\"well\"}", &err), 0);
    reply_wait(&reply);
    buf_deinit(&reply.body);
    agent_ask(&world, &reply, bodies[1]);
    take(&trainer);
    struct call *call = LIST_OF(world.session->calls.next, struct call, node);
    EXPECT(call->request_away);
    upstream_close(TAKE(call->upstream));
    err_set(&call->trouble, ERR_CAPACITY, "no room");
    call->shown_status = 503;
    call_drop(call);
    reply_wait(&reply);
    EXPECT_INT(reply.status, 503);
    buf_deinit(&reply.body);
    OWN(json_doc) struct json_doc doc = {0};
    OWN(buf) struct buf text = {0};
    last_record(&world, &doc, &text);
    EXPECT_INT(json_int_or(json_get(json_root(&doc), "shared_messages"), 0), 1);
    EXPECT(str_find(json_raw(json_root(&doc)), STR("\"more\"")) > 0);
    world.gateway->kept_bytes -= (size_t)1 << 30;
    atomic_fetch_sub(&world.gateway->in_flight, 1000);
    gate_world_end(&trainer);
}

TEST(an_error_of_the_trainer_is_shown_as_it_is)
{
    struct world world = {0};
    struct trainer trainer = {0};
    gate_world(&trainer, &world, (struct gateway_session_options){0});
    for (size_t i = 0; i < COUNT(spoken); i++) {
        struct reply reply;
        agent_ask_at(&world, &reply, spoken[i].stream_path, str_of(spoken[i].stream_body));
        take(&trainer);
        EXPECT_INT(gate_fail(trainer.gate, trainer.call_id, trainer.lease, 413,
                             STR("context_length_exceeded"), STR("the prompt is too long"), NULL),
                   0);
        reply_wait(&reply);
        EXPECT_INT(reply.status, 413);
        EXPECT(reply_has(&reply, "the prompt is too long"));
        EXPECT(reply_has(&reply, "context_length_exceeded") ==
               (strcmp(spoken[i].dialect, "messages") && strcmp(spoken[i].dialect, "google")));
        buf_deinit(&reply.body);
    }
    gate_world_end(&trainer);
}

/* As long as the control listener takes it. */
TEST(a_long_error_of_the_trainer_arrives_whole)
{
    struct world world = {0};
    struct trainer trainer = {0};
    OWN(buf) struct buf text = {0};
    struct reply reply;
    gate_world(&trainer, &world, (struct gateway_session_options){0});
    for (int i = 0; i < 1300; i++)
        buf_str_append(&text, STR("\xe2\x82\xac"));
    buf_str_append(&text, STR(" the end"));
    agent_ask(&world, &reply, ASK);
    take(&trainer);
    EXPECT_INT(gate_fail(trainer.gate, trainer.call_id, trainer.lease, 400, STR_NONE,
                         buf_str(&text), NULL),
               0);
    reply_wait(&reply);
    EXPECT_INT(reply.status, 400);
    EXPECT(reply_has(&reply, buf_text(&text)));
    buf_deinit(&reply.body);
    gate_world_end(&trainer);
}

TEST(an_agent_that_leaves_takes_its_call_along)
{
    struct world world = {0};
    struct trainer trainer = {0};
    gate_world(&trainer, &world, (struct gateway_session_options){0});
    struct reply reply;
    struct err err = {0};
    agent_ask(&world, &reply, ASK_STREAM);
    take(&trainer);
    struct gate_stream *stream = open_stream(&trainer);
    http_call_close(reply.call);
    PUMP_UNTIL(&world, trainer.gone);
    gate_stream_end(stream);
    EXPECT_INT(give(&trainer, "{\"content\":\"too late\"}", &err), -1);
    EXPECT_INT(err.kind, ERR_NOT_FOUND);
    buf_deinit(&reply.body);
    gate_world_end(&trainer);
}

TEST(a_held_stream_gets_signs_of_life_until_it_is_answered)
{
    struct world world = {0};
    struct trainer trainer = {0};
    gate_world(&trainer, &world,
               (struct gateway_session_options){.headers_after_ms = 1, .keepalive_ms = 1});
    gate_pause(trainer.gate, true);
    struct reply reply;
    struct err err = {0};
    agent_ask_at(&world, &reply, "/v1/messages", str_of(spoken[1].stream_body));
    PUMP_UNTIL(&world, reply_has(&reply, ": keepalive"));
    EXPECT_INT(reply.status, 200);
    struct gate_counts counts = {0};
    PUMP_UNTIL(&world, (gate_counts(trainer.gate, &counts), counts.held == 1));
    gate_set_policy(trainer.gate, 9); /* while it waits: what counts is when it is taken */
    gate_pause(trainer.gate, false);
    take(&trainer);
    EXPECT_INT(give(&trainer, "{\"content\":\"at last\"}", &err), 0);
    reply_wait(&reply);
    EXPECT_INT(reply.err.kind, ERR_NONE);
    EXPECT(reply_has(&reply, "at last"));
    EXPECT(reply_has(&reply, "event: message_stop"));
    OWN(json_doc) struct json_doc record = {0};
    OWN(buf) struct buf text = {0};
    last_record(&world, &record, &text);
    EXPECT_INT(json_int_or(json_get(json_root(&record), "policy_version"), -1), 9);
    buf_deinit(&reply.body);
    gate_world_end(&trainer);
}

/* The agent reads nothing: what it does not take is not asked of the trainer either. */
TEST_WITHIN(a_slow_agent_holds_the_trainer_back, 60)
{
    struct world world = {0};
    struct trainer trainer = {0};
    gate_world(&trainer, &world, (struct gateway_session_options){0});
    struct reply reply;
    struct gate_lines lines = {0};
    agent_ask(&world, &reply, ASK_STREAM);
    take(&trainer);
    http_call_pause(reply.call);
    struct gate_stream *stream = open_stream(&trainer);
    OWN(buf) struct buf piece = {0};
    buf_format(&piece, "{\"content\":\"%0*d\"}\n", 32000, 7);
    size_t waiting = 0;
    int pieces = 0;
    for (; pieces < 2000 && waiting < 1 << 20; pieces++) {
        waiting = feed(stream, &lines, buf_text(&piece), false);
        loop_once(world.loop, 0);
        loop_once(world.loop, 0);
        if (waiting > 256 << 10)
            break;
    }
    EXPECT(waiting > 256 << 10);
    EXPECT(!trainer.drained);
    http_call_resume(reply.call);
    PUMP_UNTIL(&world, trainer.drained);
    (void)feed(stream, &lines, "{\"finish_reason\":\"stop\"}\n", true);
    gate_stream_end(stream);
    gate_lines_deinit(&lines);
    reply_wait(&reply);
    EXPECT_INT(reply.err.kind, ERR_NONE);
    EXPECT(reply.body.size > (size_t)pieces * 32000);
    buf_deinit(&reply.body);
    gate_world_end(&trainer);
}

TEST(without_a_gate_the_mode_is_refused_and_a_gate_answers_in_no_other)
{
    struct world world = {0};
    struct err err = {0};
    world_start(&world);
    world.model = model_open("gate:learner", NULL, &err);
    EXPECT_TEXT(model_name(world.model), "learner");
    struct gateway_session_options options = {
        .rollout_id = "r-test", .model = world.model, .mode = "interception_gate"};
    EXPECT(!gateway_open(world.gateway, &options, &err));
    EXPECT_INT(err.kind, ERR_UNSUPPORTED);
    options.mode = "proxy";
    EXPECT(!gateway_open(world.gateway, &options, &err));
    EXPECT_INT(err.kind, ERR_INPUT);
    world_end(&world);
}

/* Many calls wait: what was read of their requests is forgotten meanwhile, and read again for the
 * answer and the record. */
TEST_WITHIN(calls_in_a_crowd_are_answered_and_recorded_in_full, 60)
{
    enum { CROWD = 100 };
    struct world world = {0};
    struct trainer trainer = {0};
    gate_world(&trainer, &world,
               (struct gateway_session_options){
                   .limits = {.in_flight_max = CROWD, .connections_max = CROWD + 1}});
    struct reply replies[CROWD];
    OWN(buf) struct buf body = {0};
    for (int i = 0; i < CROWD; i++) {
        buf_clear(&body);
        buf_format(&body,
                   "{\"model\":\"any\",\"max_tokens\":9,\"messages\":[{\"role\":\"user\","
                   "\"content\":\"question\\n%d\"}],\"tools\":[{\"name\":\"look\",\"input_schema\":"
                   "{\"type\":\"object\"}}]}",
                   i);
        agent_ask_at(&world, &replies[i], "/v1/messages", buf_str(&body));
    }
    struct gate_counts counts = {0};
    PUMP_UNTIL(&world, (gate_counts(trainer.gate, &counts), counts.held == CROWD));
    for (int i = 0; i < 5; i++)
        loop_once(world.loop, 1);
    for (int i = 0; i < CROWD; i++) {
        struct err err = {0};
        take(&trainer);
        EXPECT_INT(give(&trainer, "{\"content\":\"\",\"tool_calls\":[{\"name\":\"look\"}]}", &err),
                   0);
    }
    for (int i = 0; i < CROWD; i++) {
        reply_wait(&replies[i]);
        EXPECT_INT(replies[i].status, 200);
        EXPECT(reply_has(&replies[i], "\"tool_use\""));
        buf_deinit(&replies[i].body);
    }
    OWN(buf) struct buf text = {0};
    EXPECT_INT(file_read(world.calls_path, 64 << 20, &text, NULL), 0);
    for (int i = 0; i < CROWD; i++) {
        char part[32];
        snprintf(part, sizeof part, "\"question\\n%d\"", i);
        EXPECT(str_find(buf_str(&text), str_of(part)) > 0);
    }
    EXPECT_INT(gateway_session_stats(world.session)->turns, CROWD);
    gate_world_end(&trainer);
}

static void answer_now(struct world *world, struct http_exchange *exchange)
{
    (void)world;
    http_respond_json(exchange, 200,
                      STR("{\"choices\":[{\"message\":{\"content\":\"hi\"},\"finish_reason\":"
                          "\"stop\"}]}"));
}

/* Weights are being changed: calls to a model server wait, too, and carry the new version. */
TEST(pausing_holds_calls_in_every_mode)
{
    struct world world = {.upstream_answer = answer_now};
    struct err err = {0};
    world_start(&world);
    gateway_free(world.gateway);
    struct gate *gate = gate_new(world.loop, NULL);
    struct gateway_options options = {.store = world.store, .gate = gate};
    world.gateway = gateway_new(world.loop, &options, &err);
    world_model(&world);
    world_open(&world, (struct gateway_session_options){.mode = "proxy"});
    gate_set_policy(gate, 1);
    gate_pause(gate, true);
    struct reply reply;
    agent_ask(&world, &reply, ASK);
    PUMP_UNTIL(&world, world.begun == 1);
    for (int i = 0; i < 20; i++)
        loop_once(world.loop, 5);
    EXPECT_INT(world.upstream_calls, 0);
    gate_set_policy(gate, 2);
    gate_pause(gate, false);
    reply_wait(&reply);
    EXPECT_INT(reply.status, 200);
    EXPECT_INT(world.upstream_calls, 1);
    OWN(json_doc) struct json_doc record = {0};
    OWN(buf) struct buf text = {0};
    last_record(&world, &record, &text);
    EXPECT_INT(json_int_or(json_get(json_root(&record), "policy_version"), -1), 2);
    EXPECT_INT(json_int_or(json_get(json_root(&record), "attempts"), -1), 1);
    buf_deinit(&reply.body);
    world_close_session(&world, 0);
    gate_free(gate);
    world_end(&world);
}

/* Chat templates know `system`; the word is changed for the trainer and nowhere else. */
TEST(a_developer_is_a_system_to_the_trainer)
{
    static const char *const asked[] = {
        "{\"model\":\"m\",\"messages\":[{\"role\":\"developer\",\"content\":\"rules\",\"extra\":1},"
        "{\"role\":\"user\",\"content\":\"hi\"}],\"temperature\":0.5,\"max_completion_tokens\":7}",
        "{\"model\":\"m\",\"messages\":[{\"role\":\"system\",\"content\":\"rules\",\"extra\":1},"
        "{\"role\":\"user\",\"content\":\"hi\"}],\"temperature\":0.5,\"max_tokens\":7}",
    };
    struct world world = {0};
    struct trainer trainer = {0};
    gate_world(&trainer, &world, (struct gateway_session_options){0});
    for (size_t i = 0; i < COUNT(asked); i++) {
        struct reply reply;
        struct err err = {0};
        OWN(json_doc) struct json_doc doc = {0};
        agent_ask(&world, &reply, asked[i]);
        take(&trainer);
        EXPECT_INT(json_read(&doc, buf_str(&trainer.object), NULL, NULL), 0);
        struct json object = json_root(&doc);
        EXPECT_STR(json_raw(json_at(json_get(object, "messages"), 0)),
                   STR("{\"role\":\"system\",\"content\":\"rules\",\"extra\":1}"));
        EXPECT_STR(json_raw(json_get(object, "sampling")),
                   STR("{\"temperature\":0.5,\"max_tokens\":7}"));
        EXPECT_STR(json_raw(json_get(object, "tools")), STR("[]"));
        EXPECT_STR(json_raw(json_get(object, "raw")), str_of(asked[i]));
        EXPECT_INT(give(&trainer, "{\"content\":\"ok\"}", &err), 0);
        reply_wait(&reply);
        buf_deinit(&reply.body);
    }
    gate_world_end(&trainer);
}

TEST(the_trainer_sees_that_a_tool_failed)
{
    static const char *const asked[][2] = {
        {"/v1/messages",
         "{\"model\":\"m\",\"max_tokens\":5,\"messages\":[{\"role\":\"user\",\"content\":\"hi\"},{"
         "\"role\":\"assistant\",\"content\":[{\"type\":\"tool_use\",\"id\":\"t\",\"name\":\"f\","
         "\"input\":{}},{\"type\":\"tool_use\",\"id\":\"u\",\"name\":\"f\",\"input\":{}}]},{"
         "\"role\":"
         "\"user\",\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":\"t\",\"is_error\":true},"
         "{"
         "\"type\":\"tool_result\",\"tool_use_id\":\"u\",\"is_error\":false,\"content\":\"no\"}]}]"
         "}"},
        {"/v1beta/models/m:generateContent",
         "{\"contents\":[{\"role\":\"user\",\"parts\":[{\"text\":\"hi\"}]},{\"role\":\"model\","
         "\"parts\":[{\"functionCall\":{\"name\":\"f\",\"id\":\"t\"}},{\"functionCall\":{\"name\":"
         "\"f\",\"id\":\"u\"}}]},{\"role\":\"user\",\"parts\":[{\"functionResponse\":{\"name\":"
         "\"f\","
         "\"id\":\"t\",\"response\":{\"error\":\"bad\"}}},{\"functionResponse\":{\"name\":\"f\","
         "\"id\":\"u\",\"response\":{\"output\":\"no\"}}}]}]}"},
    };
    static const char *const words[] = {"error", "{\"error\":\"bad\"}"};
    struct world world = {0};
    struct trainer trainer = {0};
    gate_world(&trainer, &world, (struct gateway_session_options){0});
    for (size_t i = 0; i < COUNT(asked); i++) {
        struct reply reply;
        struct err err = {0};
        OWN(json_doc) struct json_doc doc = {0};
        agent_ask_at(&world, &reply, asked[i][0], str_of(asked[i][1]));
        take(&trainer);
        EXPECT_INT(json_read(&doc, buf_str(&trainer.object), NULL, NULL), 0);
        struct json messages = json_get(json_root(&doc), "messages");
        struct json failed = json_at(messages, 2), went = json_at(messages, 3);
        EXPECT(json_is(json_get(failed, "tool_call_id"), "t"));
        EXPECT(json_true(json_get(failed, "is_error")));
        EXPECT(json_is(json_get(failed, "content"), words[i]));
        EXPECT(json_is(json_get(went, "tool_call_id"), "u"));
        EXPECT(!json_exists(json_get(went, "is_error")));
        EXPECT_INT(give(&trainer, "{\"content\":\"ok\"}", &err), 0);
        reply_wait(&reply);
        buf_deinit(&reply.body);
    }
    OWN(buf) struct buf text = {0};
    (void)file_read(world.calls_path, 1 << 20, &text, NULL);
    EXPECT(str_find(buf_str(&text), STR("\"tool_call_id\":\"t\",\"is_error\":true")) > 0);
    gate_world_end(&trainer);
}

/* null is how some clients say nothing. */
TEST(a_setting_that_is_null_is_none)
{
    struct world world = {0};
    struct trainer trainer = {0};
    gate_world(&trainer, &world, (struct gateway_session_options){0});
    struct reply reply;
    OWN(json_doc) struct json_doc doc = {0};
    agent_ask(
        &world, &reply,
        "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],"
        "\"temperature\":null,\"max_completion_tokens\":null,\"max_tokens\":7,\"stop\":null}");
    take(&trainer);
    EXPECT_INT(json_read(&doc, buf_str(&trainer.object), NULL, NULL), 0);
    EXPECT_STR(json_raw(json_get(json_root(&doc), "sampling")), STR("{\"max_tokens\":7}"));
    EXPECT_INT(give(&trainer, "{\"content\":\"ok\"}", NULL), 0);
    reply_wait(&reply);
    buf_deinit(&reply.body);
    gate_world_end(&trainer);
}

/* Nothing here turns tokens into a text: a trainer gets them as what they are. */
TEST(a_prompt_of_token_ids_reaches_the_trainer_as_such)
{
    struct world world = {0};
    struct trainer trainer = {0};
    gate_world(&trainer, &world, (struct gateway_session_options){0});
    struct reply reply;
    OWN(json_doc) struct json_doc doc = {0};
    agent_ask_at(&world, &reply, "/v1/completions", STR("{\"model\":\"m\",\"prompt\":[[5,6,7]]}"));
    take(&trainer);
    EXPECT_INT(json_read(&doc, buf_str(&trainer.object), NULL, NULL), 0);
    EXPECT_STR(json_raw(json_get(json_root(&doc), "prompt_token_ids")), STR("[5,6,7]"));
    EXPECT_INT(give(&trainer, "{\"text\":\"ok\"}", NULL), 0);
    reply_wait(&reply);
    EXPECT(reply_has(&reply, "\"text\":\"ok\""));
    buf_deinit(&reply.body);
    gate_world_end(&trainer);
}

/* Little as it is, it is an answer. */
TEST(answers_of_few_words_are_answers)
{
    static const char *const rows[][2] = {
        {"{\"message\":{\"role\":\"assistant\",\"refusal\":\"no\"}}", "\"refusal\":\"no\""},
        {"{\"refusal\":\"no\"}", "\"refusal\":\"no\""},
        {"{\"message\":{\"reasoning\":\"hm\"}}", "\"reasoning\":\"hm\""},
        {"{\"choices\":[{\"message\":{\"tool_calls\":[{\"id\":\"c\",\"function\":{\"name\":"
         "\"f\"}}]},\"finish_reason\":\"tool_calls\"}]}",
         "\"name\":\"f\",\"arguments\":\"{}\""},
        {"{\"choices\":[{\"message\":{\"tool_calls\":[{\"id\":\"c\",\"function\":{\"name\":"
         "\"f\",\"arguments\":\"\"}}]},\"finish_reason\":\"tool_calls\"}]}",
         "\"name\":\"f\",\"arguments\":\"{}\""},
        {"{\"content\":\"x\",\"error\":null,\"token_ids\":null}", "\"content\":\"x\""},
        {"{\"content\":[{\"type\":\"text\",\"text\":\"y\"}]}", "\"text\":\"y\""},
        {"{\"choices\":null,\"message\":null,\"content\":\"z\"}", "\"content\":\"z\""},
        {"{\"message\":{\"function_call\":{\"name\":\"f\",\"arguments\":\"{}\"}}}",
         "\"function_call\":{\"name\":\"f\""},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        OWN(buf) struct buf out = {0};
        struct err err = {0};
        EXPECT_INT(gate_read_answer(str_of(rows[i][0]), &out, &err), 0);
        if (str_find(buf_str(&out), str_of(rows[i][1])) < 0)
            test_fail(__FILE__, __LINE__, "%s is not in %s %s", rows[i][1], buf_text(&out),
                      err.text);
    }
    /* Nor is what an engine broke off an answer: the trainer is told, and the call is not spent. */
    static const char *const broken[] = {
        "{\"content\":\"half an\",\"finish_reason\":\"abort\"}",
        "{\"text\":\"half an\",\"meta_info\":{\"finish_reason\":{\"type\":\"abort\"}}}"};
    for (size_t i = 0; i < COUNT(broken); i++) {
        OWN(buf) struct buf out = {0};
        struct err err = {0};
        bool finished = false;
        EXPECT_INT(gate_read_answer(str_of(broken[i]), &out, &err), -1);
        EXPECT_INT(err.kind, ERR_INPUT);
        EXPECT(str_find(str_of(err.text), STR("finish_reason")) >= 0);
        EXPECT_INT(gate_read_chunk(str_of(broken[i]), &out, &finished, &err), -1);
    }
    OWN(buf) struct buf none = {0};
    EXPECT_INT(gate_read_answer(STR("{\"message\":{\"role\":\"assistant\"}}"), &none, NULL), -1);
}

/* The agent's connection dies while its call is held or streamed; it asks again: one call, one
 * answer, nothing generated twice. */
TEST(an_agent_that_comes_back_finds_its_held_call)
{
    struct world world = {0};
    struct trainer trainer = {0};
    gate_world(&trainer, &world, (struct gateway_session_options){.retry_grace_ms = 60000});
    struct reply first, second;
    struct gate_lines lines = {0};
    agent_ask(&world, &first, ASK_STREAM);
    take(&trainer);
    struct gate_stream *stream = open_stream(&trainer);
    (void)feed(stream, &lines, CHUNK("\"content\":\"one \""), false);
    PUMP_UNTIL(&world, reply_has(&first, "one "));
    http_call_close(first.call);
    for (int i = 0; i < 10; i++)
        loop_once(world.loop, 1);
    EXPECT(!trainer.gone);
    agent_ask(&world, &second, ASK_STREAM);
    PUMP_UNTIL(&world, reply_has(&second, "one "));
    (void)feed(stream, &lines, CHUNK("\"content\":\"two\"") "{\"finish_reason\":\"stop\"}\n", true);
    gate_stream_end(stream);
    gate_lines_deinit(&lines);
    reply_wait(&second);
    EXPECT_INT(second.err.kind, ERR_NONE);
    EXPECT(reply_has(&second, "two"));
    EXPECT(reply_has(&second, "[DONE]"));
    struct gate_counts counts;
    gate_counts(trainer.gate, &counts);
    EXPECT_INT(counts.taken, 1);
    EXPECT_INT(gateway_session_stats(world.session)->turns, 1);
    buf_deinit(&first.body);
    buf_deinit(&second.body);
    gate_world_end(&trainer);
}
