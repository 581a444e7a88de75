/* One call stays one call: agents that go away, come again, or ask twice. */
#include "test_gateway.h"

#include "gateway/inner.h"

#define COMPLETION(text)                                                                           \
    "{\"id\":\"chatcmpl-1\",\"object\":\"chat.completion\",\"created\":1,\"model\":\"m\","         \
    "\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"" text "\"},"     \
    "\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":11,\"completion_tokens\":3,"        \
    "\"total_tokens\":14}}"
#define EVENT(text) "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"" text "\"}}]}\n\n"
#define FINISH                                                                                     \
    "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n"              \
    "data: [DONE]\n\n"
#define ASK_B "{\"model\":\"any\",\"messages\":[{\"role\":\"user\",\"content\":\"other\"}]}"

static const struct http_header sse_type[] = {{{"content-type", 12}, {"text/event-stream", 17}}};

static void answer_numbered(struct world *world, struct http_exchange *exchange)
{
    OWN(mem) char *text = mem_format(COMPLETION("answer %d"), world->upstream_calls);
    http_respond_json(exchange, 200, str_of(text));
}

static void answer_numbered_stream(struct world *world, struct http_exchange *exchange)
{
    OWN(mem) char *text = mem_format(EVENT("answer %d") FINISH, world->upstream_calls);
    http_respond_begin(exchange, 200, sse_type, 1);
    (void)http_respond_write(exchange, str_of(text));
    http_respond_end(exchange);
}

static void answer_later(struct world *world, struct http_exchange *exchange)
{
    world->held = exchange;
}

/* With the mark the official SDKs put on a request they repeat. */
static void ask_again(struct world *world, struct reply *reply, const char *body)
{
    static const struct http_call_handlers handlers = {reply_on_head, reply_on_data, reply_on_done};
    static const struct http_header headers[] = {
        {{"content-type", 12}, {"application/json", 16}},
        {{"x-stainless-retry-count", 23}, {"1", 1}},
    };
    OWN(mem) char *url = mem_format("http://127.0.0.1:%u/v1/chat/completions", world->port);
    struct http_request request = {.method = "POST",
                                   .url = url,
                                   .headers = headers,
                                   .header_count = COUNT(headers),
                                   .body = str_of(body)};
    *reply = (struct reply){.world = world};
    reply->call = http_call_start(world->agent, &request, &handlers, reply);
}

static bool note_call(void *context, const struct store_call *call)
{
    buf_format(context, "%u:%s ", call->number, call->state);
    return true;
}

static void expect_record(struct world *world, const char *wanted)
{
    OWN(buf) struct buf text = {0};
    (void)store_list_calls(world->store, "r-test", note_call, &text, NULL);
    EXPECT_TEXT(buf_text(&text), wanted);
}

static void start(struct world *world, struct gateway_session_options options)
{
    world_start(world);
    world_model(world);
    world_open(world, options);
}

/* ---------------------------------------------------------------- recorded answers */

TEST(a_marked_retry_gets_the_recorded_answer_and_is_no_new_call)
{
    struct world world = {.upstream_answer = answer_numbered};
    start(&world, (struct gateway_session_options){0});
    struct reply first, again;
    agent_ask(&world, &first, ASK);
    reply_wait(&first);
    ask_again(&world, &again, ASK);
    reply_wait(&again);
    EXPECT_INT(again.status, 200);
    EXPECT_STR(buf_str(&again.body), buf_str(&first.body));
    EXPECT_INT(world.upstream_calls, 1);
    EXPECT_INT(gateway_session_stats(world.session)->calls, 1);
    EXPECT_INT(gateway_session_stats(world.session)->turns, 1);
    EXPECT_INT(gateway_session_stats(world.session)->redelivered, 1);
    expect_record(&world, "1:answered ");
    buf_deinit(&first.body);
    buf_deinit(&again.body);
    world_end(&world);
}

TEST(a_marked_retry_of_a_streamed_turn_gets_the_same_stream_again)
{
    struct world world = {.upstream_answer = answer_numbered_stream};
    start(&world, (struct gateway_session_options){0});
    struct reply first, again;
    agent_ask(&world, &first, ASK_STREAM);
    reply_wait(&first);
    ask_again(&world, &again, ASK_STREAM);
    reply_wait(&again);
    EXPECT_STR(buf_str(&again.body), STR(EVENT("answer 1") FINISH));
    EXPECT_STR(buf_str(&again.body), buf_str(&first.body));
    EXPECT(str_starts(str_of(again.type), STR("text/event-stream")));
    EXPECT_INT(world.upstream_calls, 1);
    expect_record(&world, "1:answered ");
    buf_deinit(&first.body);
    buf_deinit(&again.body);
    world_end(&world);
}

TEST(a_retry_of_the_first_call_after_the_second_was_answered_is_still_known)
{
    struct world world = {.upstream_answer = answer_numbered};
    start(&world, (struct gateway_session_options){0});
    struct reply reply;
    const char *bodies[] = {ASK, ASK_B};
    for (int i = 0; i < 2; i++) {
        agent_ask(&world, &reply, bodies[i]);
        reply_wait(&reply);
        buf_deinit(&reply.body);
    }
    ask_again(&world, &reply, ASK);
    reply_wait(&reply);
    EXPECT(reply_has(&reply, "answer 1"));
    EXPECT_INT(world.upstream_calls, 2);
    buf_deinit(&reply.body);
    world_end(&world);
}

TEST(the_same_question_asked_again_after_its_answer_was_taken_is_a_new_call)
{
    struct world world = {.upstream_answer = answer_numbered};
    start(&world, (struct gateway_session_options){0});
    struct reply reply;
    for (int i = 1; i <= 3; i++) {
        agent_ask(&world, &reply, ASK);
        reply_wait(&reply);
        EXPECT_INT(world.upstream_calls, i);
        buf_deinit(&reply.body);
    }
    ask_again(&world, &reply, ASK);
    reply_wait(&reply);
    EXPECT(reply_has(&reply, "answer 3")); /* the newest counts */
    EXPECT_INT(gateway_session_stats(world.session)->turns, 3);
    buf_deinit(&reply.body);
    world_end(&world);
}

TEST(the_same_body_in_another_dialect_is_another_call)
{
    struct world world = {.upstream_answer = answer_numbered};
    start(&world, (struct gateway_session_options){0});
    struct reply reply;
    agent_ask(&world, &reply, ASK);
    reply_wait(&reply);
    buf_deinit(&reply.body);
    agent_ask_at(&world, &reply, "/v1/chat/completions?x=1", STR(ASK));
    reply_wait(&reply);
    EXPECT_INT(world.upstream_calls, 2);
    buf_deinit(&reply.body);
    world_end(&world);
}

/* The agent reads nothing and resets its connection after the whole answer was sent. */
static void ask_and_reset(struct world *world, const char *body)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                                  .sin_port = htons(world->port)};
    OWN(mem)
    char *request =
        mem_format("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %zu\r\n\r\n%s",
                   strlen(body), body);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address) < 0 ||
        write(fd, request, strlen(request)) < 0)
        abort();
    int done = world->done;
    PUMP_UNTIL(world, world->done > done);
    for (int i = 0; i < 3; i++)
        loop_once(world->loop, 0);
    close(fd); /* with unread bytes: a reset */
    for (int i = 0; i < 20; i++)
        loop_once(world->loop, 1);
}

TEST(an_answer_whose_connection_was_reset_is_given_again_without_a_mark)
{
    struct world world = {.upstream_answer = answer_numbered};
    start(&world, (struct gateway_session_options){0});
    ask_and_reset(&world, ASK);
    struct reply reply;
    agent_ask(&world, &reply, ASK);
    reply_wait(&reply);
    EXPECT(reply_has(&reply, "answer 1"));
    EXPECT_INT(world.upstream_calls, 1);
    expect_record(&world, "1:answered ");
    buf_deinit(&reply.body);
    world_end(&world);
}

TEST(old_answers_are_forgotten_when_there_are_many)
{
    struct world world = {.upstream_answer = answer_numbered};
    start(&world, (struct gateway_session_options){0});
    struct reply reply;
    for (int i = 0; i < 80; i++) {
        OWN(mem)
        char *body = mem_format(
            "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"q%d\"}]}", i);
        agent_ask(&world, &reply, body);
        reply_wait(&reply);
        buf_deinit(&reply.body);
    }
    ask_again(&world, &reply,
              "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"q79\"}]}");
    reply_wait(&reply);
    EXPECT_INT(world.upstream_calls, 80);
    buf_deinit(&reply.body);
    ask_again(&world, &reply,
              "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"q0\"}]}");
    reply_wait(&reply);
    EXPECT_INT(world.upstream_calls, 81);
    buf_deinit(&reply.body);
    world_end(&world);
}

/* ---------------------------------------------------------------- attempts in flight */

TEST(a_retry_joins_the_attempt_in_flight)
{
    struct world world = {.upstream_answer = answer_later};
    start(&world, (struct gateway_session_options){0});
    struct reply first, again;
    agent_ask(&world, &first, ASK);
    PUMP_UNTIL(&world, world.held);
    http_call_close(first.call);
    for (int i = 0; i < 5; i++)
        loop_once(world.loop, 1);
    agent_ask(&world, &again, ASK); /* not marked: its first connection died */
    PUMP_UNTIL(&world, gateway_session_stats(world.session)->redelivered == 1);
    http_respond_json(world.held, 200, STR(COMPLETION("once")));
    reply_wait(&again);
    EXPECT_INT(again.status, 200);
    EXPECT(reply_has(&again, "once"));
    EXPECT_INT(world.upstream_calls, 1);
    EXPECT(!world.upstream_gone);
    expect_record(&world, "1:answered ");
    OWN(buf) struct buf text = {0};
    (void)file_read(world.calls_path, 1 << 20, &text, NULL);
    EXPECT(str_find(buf_str(&text), STR("\"deliveries\":2")) >= 0);
    buf_deinit(&again.body);
    buf_deinit(&first.body);
    world_end(&world);
}

TEST(a_retry_of_a_stream_in_flight_gets_it_from_its_first_word)
{
    struct world world = {.upstream_answer = answer_later};
    start(&world, (struct gateway_session_options){0});
    struct reply first, again;
    agent_ask(&world, &first, ASK_STREAM);
    PUMP_UNTIL(&world, world.held);
    http_respond_begin(world.held, 200, sse_type, 1);
    (void)http_respond_write(world.held, STR(EVENT("one ")));
    PUMP_UNTIL(&world, reply_has(&first, "one "));
    http_call_close(first.call);
    for (int i = 0; i < 5; i++)
        loop_once(world.loop, 1);
    (void)http_respond_write(world.held, STR(EVENT("two ")));
    ask_again(&world, &again, ASK_STREAM);
    PUMP_UNTIL(&world, reply_has(&again, "two "));
    (void)http_respond_write(world.held, STR(EVENT("three") FINISH));
    http_respond_end(world.held);
    reply_wait(&again);
    EXPECT_INT(again.err.kind, ERR_NONE);
    EXPECT_STR(buf_str(&again.body), STR(EVENT("one ") EVENT("two ") EVENT("three") FINISH));
    EXPECT_INT(world.upstream_calls, 1);
    expect_record(&world, "1:answered ");
    buf_deinit(&first.body);
    buf_deinit(&again.body);
    world_end(&world);
}

TEST(a_marked_retry_beside_a_living_connection_is_answered_together_with_it)
{
    struct world world = {.upstream_answer = answer_later};
    start(&world, (struct gateway_session_options){0});
    struct reply first, again;
    agent_ask(&world, &first, ASK_STREAM);
    PUMP_UNTIL(&world, world.held);
    ask_again(&world, &again, ASK_STREAM);
    PUMP_UNTIL(&world, gateway_session_stats(world.session)->redelivered == 1);
    answer_numbered_stream(&world, world.held);
    reply_wait(&first);
    reply_wait(&again);
    EXPECT_STR(buf_str(&first.body), STR(EVENT("answer 1") FINISH));
    EXPECT_STR(buf_str(&again.body), STR(EVENT("answer 1") FINISH));
    EXPECT_INT(world.upstream_calls, 1);
    expect_record(&world, "1:answered ");
    buf_deinit(&first.body);
    buf_deinit(&again.body);
    world_end(&world);
}

TEST(a_marked_retry_in_the_middle_of_a_stream_repeats_nothing_to_the_older_connection)
{
    struct world world = {.upstream_answer = answer_later};
    start(&world, (struct gateway_session_options){0});
    struct reply first, again;
    agent_ask(&world, &first, ASK_STREAM);
    PUMP_UNTIL(&world, world.held);
    http_respond_begin(world.held, 200, sse_type, 1);
    (void)http_respond_write(world.held, STR(EVENT("one ")));
    PUMP_UNTIL(&world, reply_has(&first, "one "));
    ask_again(&world, &again, ASK_STREAM);
    PUMP_UNTIL(&world, reply_has(&again, "one "));
    (void)http_respond_write(world.held, STR(EVENT("two") FINISH));
    http_respond_end(world.held);
    reply_wait(&first);
    reply_wait(&again);
    EXPECT_STR(buf_str(&first.body), STR(EVENT("one ") EVENT("two") FINISH));
    EXPECT_STR(buf_str(&again.body), STR(EVENT("one ") EVENT("two") FINISH));
    expect_record(&world, "1:answered ");
    buf_deinit(&first.body);
    buf_deinit(&again.body);
    world_end(&world);
}

static struct http_exchange *oldest(const struct call *call)
{
    return LIST_OF(call->others.next, struct call_other, node)->exchange;
}

/* The newest connection reads nothing, so the model server waits; an older one does not wait. */
TEST_WITHIN(a_stream_goes_on_when_the_connection_it_waited_for_leaves, 60)
{
    struct world world = {.upstream_answer = answer_later};
    start(&world, (struct gateway_session_options){0});
    struct reply first, again;
    agent_ask(&world, &first, ASK_STREAM);
    PUMP_UNTIL(&world, world.held);
    ask_again(&world, &again, ASK_STREAM);
    PUMP_UNTIL(&world, gateway_session_stats(world.session)->redelivered == 1);
    http_call_pause(again.call);
    http_respond_begin(world.held, 200, sse_type, 1);
    OWN(mem) char *piece = mem_format(EVENT("%0*d"), 32000, 7);
    const struct call *call = LIST_OF(world.session->calls.next, struct call, node);
    for (int i = 0; i < 2000 && !call->paused; i++) {
        (void)http_respond_write(world.held, str_of(piece));
        loop_once(world.loop, 0);
        loop_once(world.loop, 0);
    }
    EXPECT(call->paused);
    PUMP_UNTIL(&world, !http_respond_queued(oldest(call)));
    http_call_close(again.call);
    (void)http_respond_write(world.held, STR(EVENT("last") FINISH));
    http_respond_end(world.held);
    reply_wait(&first);
    EXPECT_INT(first.err.kind, ERR_NONE);
    EXPECT(str_ends(buf_str(&first.body), STR(EVENT("last") FINISH)));
    buf_deinit(&first.body);
    buf_deinit(&again.body);
    world_end(&world);
}

TEST(two_agents_that_ask_the_same_at_once_are_two_calls)
{
    struct world world = {.upstream_answer = answer_numbered};
    start(&world, (struct gateway_session_options){0});
    struct reply a, b;
    agent_ask(&world, &a, ASK);
    agent_ask(&world, &b, ASK);
    reply_wait(&a);
    reply_wait(&b);
    EXPECT_INT(world.upstream_calls, 2);
    expect_record(&world, "1:answered 2:answered ");
    buf_deinit(&a.body);
    buf_deinit(&b.body);
    world_end(&world);
}

/* ---------------------------------------------------------------- nobody is there */

TEST(an_answer_that_nobody_waits_for_is_kept_and_committed_for_who_comes_back)
{
    struct world world = {.upstream_answer = answer_later};
    start(&world, (struct gateway_session_options){.limits.turns_max = 1});
    struct reply first, again;
    agent_ask(&world, &first, ASK_STREAM);
    PUMP_UNTIL(&world, world.held);
    http_call_close(first.call);
    for (int i = 0; i < 5; i++)
        loop_once(world.loop, 1);
    answer_numbered_stream(&world, world.held);
    PUMP_UNTIL(&world, gateway_session_stats(world.session)->in_flight == 0);
    expect_record(&world, "1:open "); /* nobody has it: it is not in the record */
    agent_ask(&world, &again, ASK_STREAM);
    reply_wait(&again);
    EXPECT_STR(buf_str(&again.body), STR(EVENT("answer 1") FINISH));
    EXPECT_INT(world.upstream_calls, 1);
    EXPECT_INT(gateway_session_stats(world.session)->turns, 1);
    EXPECT_INT(gateway_session_stats(world.session)->calls, 1);
    expect_record(&world, "1:answered ");
    buf_deinit(&first.body);
    buf_deinit(&again.body);
    world_end(&world);
}

TEST(a_call_whose_agent_stays_away_is_given_up_after_the_grace)
{
    struct world world = {.upstream_answer = answer_later};
    start(&world, (struct gateway_session_options){.retry_grace_ms = 20});
    struct reply first, again;
    agent_ask(&world, &first, ASK);
    PUMP_UNTIL(&world, world.held);
    http_call_close(first.call);
    PUMP_UNTIL(&world, world.upstream_gone && world.done == 1);
    expect_record(&world, "1:broken ");
    world.upstream_answer = answer_numbered;
    ask_again(&world, &again, ASK); /* nothing is left to join */
    reply_wait(&again);
    EXPECT(reply_has(&again, "answer 2"));
    expect_record(&world, "1:broken 2:answered ");
    buf_deinit(&first.body);
    buf_deinit(&again.body);
    world_end(&world);
}

static enum call_state only_state(const struct world *world)
{
    const struct list *calls = &((struct gateway_session *)world->session)->calls;
    return list_empty(calls) ? CALL_DONE : LIST_OF(calls->next, struct call, node)->state;
}

/* Its last word goes out when the call is being given up, and not before. */
TEST(an_agent_that_comes_back_while_its_call_is_given_up_is_asked_to_come_again)
{
    struct world world = {.upstream_answer = answer_later};
    start(&world, (struct gateway_session_options){.retry_grace_ms = 50});
    struct reply first;
    agent_ask(&world, &first, ASK);
    PUMP_UNTIL(&world, world.held);
    OWN(mem)
    char *request = mem_format("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"
                               "Connection: close\r\nContent-Length: %zu\r\n\r\n%s",
                               strlen(ASK), ASK);
    size_t size = strlen(request);
    OWN(fd) int fd = raw_connect(&world);
    EXPECT_INT(send(fd, request, size - 1, 0), (long long)size - 1);
    http_call_close(first.call);
    PUMP_UNTIL(&world, !LIST_OF(world.session->calls.next, struct call, node)->exchange);
    http_respond_json(TAKE(world.held), 200, STR(COMPLETION("nobody hears it")));
    PUMP_UNTIL(&world, only_state(&world) == CALL_PARKED);
    PUMP_UNTIL(&world, only_state(&world) == CALL_ENTRY);
    EXPECT_INT(send(fd, request + size - 1, 1, 0), 1);
    OWN(buf) struct buf answer = {0};
    EXPECT_INT(raw_read(&world, fd, &answer), 0);
    EXPECT(str_starts(buf_str(&answer), STR("HTTP/1.1 503 ")));
    EXPECT(str_find(buf_str(&answer), STR("retry-after: 1\r\n")) > 0);
    expect_record(&world, "1:broken ");
    buf_deinit(&first.body);
    world_end(&world);
}

static void ask_and_leave(struct world *world, int number, size_t size)
{
    OWN(buf) struct buf body = {0};
    buf_format(&body,
               "{\"model\":\"any\",\"messages\":[{\"role\":\"user\",\"content\":\"%d %*s\"}]}",
               number, (int)size, "");
    struct reply reply;
    agent_ask(world, &reply, buf_text(&body));
    PUMP_UNTIL(world, world->held);
    http_call_close(reply.call);
    PUMP_UNTIL(world, !LIST_OF(world->session->calls.prev, struct call, node)->exchange);
    http_respond_json(TAKE(world->held), 200, STR(COMPLETION("nobody hears it")));
    PUMP_UNTIL(world, gateway_session_stats(world->session)->in_flight == 0);
}

/* Each may be asked for again, and holds its request until then. */
TEST(calls_without_their_agents_are_no_more_than_may_be_in_flight)
{
    struct world world = {.upstream_answer = answer_later};
    start(&world, (struct gateway_session_options){.limits.in_flight_max = 2});
    for (int i = 0; i < 4; i++)
        ask_and_leave(&world, i, 1);
    PUMP_UNTIL(&world, world.done == 2);
    expect_record(&world, "1:broken 2:broken 3:open 4:open ");
    world_end(&world);
}

TEST(calls_without_their_agents_hold_no_more_than_those_in_flight)
{
    struct world world = {.upstream_answer = answer_later};
    start(&world, (struct gateway_session_options){.limits.body_bytes_max = 200000});
    for (int i = 0; i < 3; i++)
        ask_and_leave(&world, i, 150000);
    PUMP_UNTIL(&world, world.done == 1);
    expect_record(&world, "1:broken 2:open 3:open ");
    world_end(&world);
}

TEST(closing_does_not_wait_for_agents_that_went_away)
{
    struct world world = {.upstream_answer = answer_later};
    start(&world, (struct gateway_session_options){0});
    struct reply first;
    agent_ask(&world, &first, ASK);
    PUMP_UNTIL(&world, world.held);
    http_call_close(first.call);
    for (int i = 0; i < 5; i++)
        loop_once(world.loop, 1);
    gateway_session_close(world.session, 1u << 30, world_on_closed, &world);
    PUMP_UNTIL(&world, world.closed);
    world.session = NULL;
    expect_record(&world, "1:broken ");
    buf_deinit(&first.body);
    world_end(&world);
}

static void answer_cut_then_good(struct world *world, struct http_exchange *exchange)
{
    if (world->upstream_calls > 1) {
        answer_numbered_stream(world, exchange);
        return;
    }
    http_respond_begin(exchange, 200, sse_type, 1);
    (void)http_respond_write(exchange, STR(EVENT("half an answer")));
    http_respond_end(exchange);
}

TEST(the_retry_after_a_stream_that_broke_is_one_call_with_it)
{
    struct world world = {.upstream_answer = answer_cut_then_good};
    start(&world, (struct gateway_session_options){0});
    struct reply first, again;
    agent_ask(&world, &first, ASK_STREAM);
    reply_wait(&first);
    EXPECT(first.err.kind != ERR_NONE);
    EXPECT(reply_has(&first, "half an answer"));
    agent_ask(&world, &again, ASK_STREAM);
    reply_wait(&again);
    EXPECT_STR(buf_str(&again.body), STR(EVENT("answer 2") FINISH));
    expect_record(&world, "1:answered ");
    EXPECT_INT(gateway_session_stats(world.session)->broken, 0);
    EXPECT_INT(gateway_session_stats(world.session)->cause, GATEWAY_FINE);
    OWN(buf) struct buf text = {0};
    (void)file_read(world.calls_path, 1 << 20, &text, NULL);
    EXPECT(str_find(buf_str(&text), STR("\"attempts\":2")) >= 0);
    EXPECT(str_find(buf_str(&text), STR("half an answer")) < 0);
    buf_deinit(&first.body);
    buf_deinit(&again.body);
    world_end(&world);
}

TEST(a_call_without_its_agent_holds_no_turn_against_others)
{
    struct world world = {.upstream_answer = answer_cut_then_good};
    start(&world, (struct gateway_session_options){.limits.turns_max = 1});
    struct reply first, other, again;
    agent_ask(&world, &first, ASK_STREAM);
    reply_wait(&first);
    world.upstream_answer = answer_numbered;
    agent_ask(&world, &other, ASK_B);
    reply_wait(&other);
    EXPECT_INT(other.status, 200);
    agent_ask(&world, &again, ASK_STREAM);
    reply_wait(&again);
    EXPECT_INT(again.status, 400);
    EXPECT_INT(gateway_session_stats(world.session)->turns, 1);
    buf_deinit(&first.body);
    buf_deinit(&other.body);
    buf_deinit(&again.body);
    world_end(&world);
}
