/* The built postern-mini against a scripted server: what it asks, what it does, what it prints, how
 * it ends. */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/mem.h"
#include "json/json.h"
#include "mini.h"
#include "test.h"

#define STEPS_MAX 16

/* ---------------------------------------------------------------- the server */

struct step {
    const char *answer; /* raw bytes; NULL: close without a word */
    bool reset;         /* end with a reset */
    bool hold;          /* never answer; until the client goes away */
};

struct server {
    int listening;
    int port;
    const struct step *steps;
    int step_count;
    struct buf bodies[STEPS_MAX];
    struct buf heads[STEPS_MAX];
    int served;
    pthread_t thread;
};

static void read_request(int fd, struct buf *head, struct buf *body)
{
    struct buf all = {0};
    long end = -1;
    size_t length = 0;
    for (;;) {
        if (end < 0 && (end = str_find(buf_str(&all), STR("\r\n\r\n"))) >= 0) {
            const char *field = strstr(buf_text(&all), "Content-Length: ");
            length = field ? strtoul(field + 16, NULL, 10) : 0;
        }
        if (end >= 0 && all.size >= (size_t)end + 4 + length)
            break;
        char *room = buf_reserve(&all, 65536);
        ssize_t got = read(fd, room, 65536);
        if (got <= 0)
            break;
        buf_added(&all, (size_t)got);
    }
    if (end >= 0) {
        buf_append(head, all.data, (size_t)end);
        buf_str_append(body, str_from(buf_str(&all), (size_t)end + 4));
    }
    buf_deinit(&all);
}

static void *serve(void *context)
{
    struct server *server = context;
    for (;;) {
        int fd = accept4(server->listening, NULL, NULL, SOCK_CLOEXEC);
        if (fd < 0)
            return NULL;
        int at = server->served;
        if (at < STEPS_MAX) {
            read_request(fd, &server->heads[at], &server->bodies[at]);
            server->served++;
        }
        const struct step *step = at < server->step_count ? &server->steps[at] : NULL;
        if (step && step->answer)
            (void)fd_write_all(fd, step->answer, strlen(step->answer));
        if (step && step->hold) {
            char byte;
            (void)read(fd, &byte, 1);
        }
        struct linger now = {.l_onoff = 1};
        if (step && step->reset)
            (void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
        close(fd);
    }
}

static void server_start(struct server *server, const struct step *steps, int count)
{
    *server = (struct server){.steps = steps, .step_count = count};
    server->listening = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    if (bind(server->listening, (struct sockaddr *)&address, sizeof address) < 0 ||
        listen(server->listening, 8) < 0 ||
        getsockname(server->listening, (struct sockaddr *)&address, &size) < 0)
        test_skip("no loopback");
    server->port = ntohs(address.sin_port);
    pthread_create(&server->thread, NULL, serve, server);
}

static void server_stop(struct server *server)
{
    (void)shutdown(server->listening, SHUT_RDWR);
    pthread_join(server->thread, NULL);
    close(server->listening);
}

static void server_free(struct server *server)
{
    for (int i = 0; i < STEPS_MAX; i++) {
        buf_deinit(&server->bodies[i]);
        buf_deinit(&server->heads[i]);
    }
}

/* ---------------------------------------------------------------- the program */

struct ran {
    int code;
    struct buf out;
};

static void find_program(char *path, size_t size)
{
    const char *given = getenv("MINI");
    if (given) {
        snprintf(path, size, "%s", given);
        return;
    }
    char self[1024] = "";
    (void)!readlink("/proc/self/exe", self, sizeof self - 1);
    for (int i = 0; i < 2 && strrchr(self, '/'); i++)
        *strrchr(self, '/') = 0;
    snprintf(path, size, "%s/postern-mini", self);
    if (access(path, X_OK) != 0)
        test_skip("%s is not built", path);
}

static pid_t program_start(int port, const char *const *args, int *output)
{
    char program[1100], url[64];
    find_program(program, sizeof program);
    snprintf(url, sizeof url, "http://127.0.0.1:%d/v1", port);
    const char *argv[24] = {program, "--json", "--retries", "3"};
    int count = 4;
    for (; *args && count < 23; args++)
        argv[count++] = *args;
    int fds[2];
    if (pipe2(fds, O_CLOEXEC) < 0)
        return -1;
    pid_t child = fork();
    if (child == 0) {
        dup2(fds[1], 1);
        setenv("OPENAI_BASE_URL", url, 1);
        setenv("OPENAI_API_KEY", "secret-key", 1);
        setenv("OPENAI_MODEL", "test-model", 1);
        execv(program, (char *const *)argv);
        _exit(99);
    }
    close(fds[1]);
    *output = fds[0];
    return child;
}

static struct ran program_run(int port, const char *const *args)
{
    struct ran ran = {.code = -1};
    int output = -1;
    pid_t child = program_start(port, args, &output);
    for (;;) {
        char *room = buf_reserve(&ran.out, 65536);
        ssize_t got = read(output, room, 65536);
        if (got <= 0)
            break;
        buf_added(&ran.out, (size_t)got);
    }
    close(output);
    int status = 0;
    waitpid(child, &status, 0);
    ran.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    (void)buf_text(&ran.out);
    return ran;
}

static struct ran run_with(struct server *server, const struct step *steps, int count,
                           const char *const *args)
{
    server_start(server, steps, count);
    struct ran ran = program_run(server->port, args);
    server_stop(server);
    return ran;
}

static bool body_is(struct server *server, int at, const char *part)
{
    return strstr(buf_text(&server->bodies[at]), part) != NULL;
}

/* ---------------------------------------------------------------- answers */

#define HEAD_STREAM "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
#define HEAD_CHUNKED                                                                               \
    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
#define TEXT(text) "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"" text "\"}}]}\n\n"
#define CALL(index, id, command)                                                                   \
    "data: {\"choices\":[{\"index\":0,\"delta\":{\"tool_calls\":[{\"index\":" index                \
    ",\"id\":\"" id "\",\"type\":\"function\",\"function\":{\"name\":\"bash\",\"arguments\":"      \
    "\"{\\\"command\\\": \\\"" command "\\\"}\"}}]}}]}\n\n"
#define FINISH(reason)                                                                             \
    "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"" reason "\"}]}\n\n"        \
    "data: [DONE]\n\n"
#define SAY_DONE                                                                                   \
    {                                                                                              \
        .answer = HEAD_STREAM TEXT("All done.") FINISH("stop")                                     \
    }

TEST(tool_calls_are_run_and_their_results_fed_back)
{
    static const struct step steps[] = {
        {.answer = HEAD_STREAM TEXT("Looking.") CALL("0", "c1", "echo one")
             CALL("1", "c2", "exit 3") FINISH("tool_calls")},
        SAY_DONE,
    };
    struct server server;
    struct ran ran = run_with(&server, steps, 2, (const char *[]){"fix it", NULL});
    EXPECT_INT(ran.code, 0);
    EXPECT_INT(server.served, 2);
    EXPECT(body_is(&server, 0, "\"model\":\"test-model\""));
    EXPECT(body_is(&server, 0, "{\"role\":\"user\",\"content\":\"fix it\"}"));
    EXPECT(body_is(&server, 0, "\"stream\":true"));
    EXPECT(strstr(buf_text(&server.heads[0]), "POST /v1/chat/completions HTTP/1.1"));
    EXPECT(strstr(buf_text(&server.heads[0]), "Authorization: Bearer secret-key"));
    EXPECT(body_is(&server, 1,
                   "\"id\":\"c1\",\"type\":\"function\",\"function\":{\"name\":\"bash\","
                   "\"arguments\":\"{\\\"command\\\": \\\"echo one\\\"}\"}"));
    EXPECT(
        body_is(&server, 1, "{\"role\":\"tool\",\"tool_call_id\":\"c1\",\"content\":\"one\\n\"}"));
    EXPECT(body_is(&server, 1,
                   "{\"role\":\"tool\",\"tool_call_id\":\"c2\",\"content\":\"[exit code 3]\"}"));
    /* The conversation only grows at its end. */
    struct str first = buf_str(&server.bodies[0]), second = buf_str(&server.bodies[1]);
    long same = str_find(first, STR("],\"tools\""));
    EXPECT(same > 0 && str_equal(str_upto(first, (size_t)same), str_upto(second, (size_t)same)));
    EXPECT(strstr(ran.out.data,
                  "{\"type\":\"tool_call\",\"turn\":1,\"id\":\"c1\",\"name\":\"bash\","
                  "\"command\":\"echo one\"}"));
    EXPECT(strstr(ran.out.data, "\"exit_code\":3"));
    EXPECT(strstr(ran.out.data, "{\"type\":\"done\",\"turn\":2,\"reason\":\"finished\",\"text\":"
                                "\"All done.\",\"exit_code\":0}"));
    server_free(&server);
    buf_deinit(&ran.out);
}

TEST(every_line_of_json_output_is_json)
{
    static const struct step steps[] = {
        {.answer = HEAD_STREAM CALL("0", "c1", "printf 'a\\\\377b\\\\000'") FINISH("tool_calls")},
        SAY_DONE,
    };
    struct server server;
    struct ran ran = run_with(&server, steps, 2, (const char *[]){"x", NULL});
    EXPECT_INT(ran.code, 0);
    OWN(json_doc) struct json_doc doc = {0};
    int lines = 0;
    for (struct str rest = str_trim(buf_str(&ran.out)); rest.data; lines++)
        EXPECT(json_read(&doc, str_cut(&rest, '\n'), NULL, NULL) == 0);
    EXPECT_INT(lines, 5);
    EXPECT(json_read(&doc, buf_str(&server.bodies[1]), NULL, NULL) == 0);
    server_free(&server);
    buf_deinit(&ran.out);
}

TEST(whole_answers_and_chunked_streams_are_read_too)
{
    static const char whole[] =
        "{\"choices\":[{\"message\":{\"content\":null,\"tool_calls\":[{\"id\":\"w\",\"function\":"
        "{\"name\":\"bash\",\"arguments\":\"{\\\"command\\\":\\\"echo w\\\"}\"}}]},"
        "\"finish_reason\":\"tool_calls\"}]}";
    static const char *const pieces[] = {"data: {\"choices", "\":[{\"delta\":{\"content\":\"hi\"},",
                                         "\"finish_reason\":\"stop\"}]}\n", "\n"};
    OWN(buf) struct buf first = {0}, second = {0};
    buf_format(&first,
               "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
               "Content-Length: %zu\r\n\r\n%s",
               strlen(whole), whole);
    buf_format(&second, HEAD_CHUNKED);
    for (size_t i = 0; i < COUNT(pieces); i++)
        buf_format(&second, "%zx;x=y\r\n%s\r\n", strlen(pieces[i]), pieces[i]);
    buf_format(&second, "0\r\nx: y\r\n\r\n");
    const struct step steps[] = {{.answer = buf_text(&first)}, {.answer = buf_text(&second)}};
    struct server server;
    struct ran ran = run_with(&server, steps, 2, (const char *[]){"--no-stream", "x", NULL});
    EXPECT_INT(ran.code, 0);
    EXPECT(body_is(&server, 0, "\"stream\":false"));
    EXPECT(body_is(&server, 1, "\"content\":\"w\\n\""));
    EXPECT(strstr(ran.out.data, "\"text\":\"hi\""));
    server_free(&server);
    buf_deinit(&ran.out);
}

TEST(what_may_pass_is_tried_again_and_the_cut_answer_is_forgotten)
{
    static const struct step steps[] = {
        {.answer = "HTTP/1.1 429 Too Many\r\nRetry-After: 0\r\nContent-Length: 2\r\n\r\n{}"},
        {.answer = HEAD_STREAM TEXT("Half an ans"), .reset = true},
        {.answer = HEAD_CHUNKED "5\r\ndata:"},
        SAY_DONE,
    };
    struct server server;
    struct ran ran = run_with(&server, steps, 4, (const char *[]){"x", NULL});
    EXPECT_INT(ran.code, 0);
    EXPECT_INT(server.served, 4);
    EXPECT(!strstr(ran.out.data, "Half"));
    EXPECT(strstr(ran.out.data, "\"status\":429,\"retry\":true,\"retry_in_ms\":0}"));
    EXPECT(strstr(ran.out.data, "All done."));
    EXPECT_STR(buf_str(&server.bodies[0]), buf_str(&server.bodies[3]));
    server_free(&server);
    buf_deinit(&ran.out);
}

TEST(a_clean_close_without_finish_reason_is_no_answer)
{
    static const struct step steps[] = {
        {.answer = HEAD_STREAM TEXT("Half")},
        {.answer = HEAD_STREAM TEXT("Half") "data: [DONE]\n\n"},
        {.answer = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 20\r\n\r\n"
                   "{\"choices\":[]}      "},
        {.answer = HEAD_STREAM "data: {\"error\":{\"message\":\"engine died\"}}\n\n"},
    };
    struct server server;
    struct ran ran = run_with(&server, steps, 4, (const char *[]){"x", NULL});
    EXPECT_INT(ran.code, 1);
    EXPECT_INT(server.served, 4);
    EXPECT(strstr(ran.out.data,
                  "\"message\":\"the model server reported: engine died\",\"retry\":false"));
    EXPECT(strstr(ran.out.data, "\"reason\":\"the model failed\""));
    server_free(&server);
    buf_deinit(&ran.out);
}

TEST(a_bad_request_is_not_repeated)
{
    static const struct step steps[] = {
        {.answer = "HTTP/1.1 400 Bad\r\nContent-Length: 43\r\n\r\n"
                   "{\"error\":{\"message\":\"the context is full\"}}  "},
        SAY_DONE,
    };
    struct server server;
    struct ran ran = run_with(&server, steps, 2, (const char *[]){"x", NULL});
    EXPECT_INT(ran.code, 1);
    EXPECT_INT(server.served, 1);
    EXPECT(strstr(ran.out.data, "the model server answered 400: the context is full"));
    server_free(&server);
    buf_deinit(&ran.out);
}

TEST(limits_end_the_run_with_their_own_code)
{
    static const struct step again = {.answer =
                                          HEAD_STREAM CALL("0", "c", "true") FINISH("tool_calls")};
    const struct step steps[] = {again, again, again, again};
    struct server server;
    struct ran ran = run_with(&server, steps, 4, (const char *[]){"--max-turns", "2", "x", NULL});
    EXPECT_INT(ran.code, 3);
    EXPECT_INT(server.served, 2);
    EXPECT(strstr(ran.out.data, "\"reason\":\"the turn limit was reached\""));
    server_free(&server);
    buf_deinit(&ran.out);

    static const struct step silent[] = {{.answer = HEAD_STREAM ": wait\n\n", .hold = true}};
    ran = run_with(&server, silent, 1, (const char *[]){"--max-seconds", "1", "x", NULL});
    EXPECT_INT(ran.code, 3);
    EXPECT(strstr(ran.out.data, "\"reason\":\"the time limit was reached\""));
    server_free(&server);
    buf_deinit(&ran.out);

    static const struct step slow[] = {
        {.answer = HEAD_STREAM CALL("0", "c", "sleep 600") FINISH("tool_calls")}, SAY_DONE};
    ran = run_with(&server, slow, 2, (const char *[]){"--max-seconds", "3", "x", NULL});
    EXPECT_INT(ran.code, 3);
    EXPECT_INT(server.served, 1);
    server_free(&server);
    buf_deinit(&ran.out);
}

TEST(wrong_tool_calls_are_told_to_the_model)
{
    static const struct step steps[] = {
        {.answer = HEAD_STREAM
         "data: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":0,\"id\":\"a\",\"function\":"
         "{\"name\":\"python\",\"arguments\":\"{}\"}},{\"index\":1,\"id\":\"b\",\"function\":"
         "{\"name\":\"bash\",\"arguments\":\"{\\\"command\\\": \"}},{\"index\":2,\"id\":\"c\","
         "\"function\":{\"name\":\"bash\",\"arguments\":\"[]\"}}]}}]}\n\n" FINISH("tool_calls")},
        SAY_DONE,
    };
    struct server server;
    struct ran ran = run_with(&server, steps, 2, (const char *[]){"x", NULL});
    EXPECT_INT(ran.code, 0);
    EXPECT(body_is(&server, 1, "error: there is no such tool; the only tool is bash"));
    EXPECT(body_is(&server, 1, "error: the arguments are not valid JSON"));
    EXPECT(body_is(&server, 1, "error: the arguments must be an object with a string 'command'"));
    server_free(&server);
    buf_deinit(&ran.out);
}

TEST(commands_see_neither_the_key_nor_descriptors_of_ours)
{
    static const struct step steps[] = {
        {.answer = HEAD_STREAM CALL("0", "c",
                                    "echo k=$OPENAI_API_KEY; ls /proc/self/fd | wc -l; seq 30000")
             FINISH("tool_calls")},
        SAY_DONE,
    };
    struct server server;
    struct ran ran =
        run_with(&server, steps, 2, (const char *[]){"--max-output-bytes", "300", "x", NULL});
    EXPECT_INT(ran.code, 0);
    EXPECT(body_is(&server, 1,
                   "\"content\":\"k=\\n4\\n1\\n2\\n3")); /* 0, 1, 2 and the directory itself */
    EXPECT(body_is(&server, 1, " bytes left out ...]"));
    EXPECT(server.bodies[1].size < 5000);
    server_free(&server);
    buf_deinit(&ran.out);
}

TEST(a_signal_ends_the_agent_and_the_command_it_runs)
{
    char path[] = "/tmp/postern-mini-XXXXXX";
    int file = mkstemp(path);
    EXPECT(file >= 0);
    struct buf text = {0};
    buf_format(&text,
               HEAD_STREAM CALL("0", "c", "echo $$ > %s; exec sleep 600") FINISH("tool_calls"),
               path);
    struct step held = {.answer = buf_text(&text)};
    struct server server;
    server_start(&server, &held, 1);
    int output = -1;
    pid_t child = program_start(server.port, (const char *[]){"x", NULL}, &output);
    char pid_text[32] = "";
    for (int i = 0; i < 2000 && pread(file, pid_text, sizeof pid_text - 1, 0) < 2; i++)
        usleep(5000);
    pid_t sleeper = (pid_t)atol(pid_text);
    EXPECT(sleeper > 0 && kill(sleeper, 0) == 0);
    kill(child, SIGTERM);
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 143);
    for (int i = 0; i < 2000 && kill(sleeper, 0) == 0; i++) {
        OWN(mem) char *proc = mem_format("/proc/%d/stat", (int)sleeper);
        FILE *stat = fopen(proc, "r");
        char state = 'Z';
        if (stat && fscanf(stat, "%*d (%*[^)]) %c", &state) != 1)
            state = 'Z';
        if (stat)
            fclose(stat);
        if (state == 'Z')
            break;
        EXPECT(i < 1999);
        usleep(5000);
    }
    server_stop(&server);
    server_free(&server);
    close(output);
    close(file);
    unlink(path);
    buf_deinit(&text);
}

TEST(wrong_usage_is_said_in_one_sentence)
{
    static const char *const wrong[][4] = {{NULL},
                                           {"--no-such", "x", NULL},
                                           {"--max-turns", "0", "x", NULL},
                                           {"a", "b", NULL},
                                           {"--instruction", "/does/not/exist", NULL},
                                           {" ", NULL},
                                           {"--model", NULL},
                                           {"--base-url=https://x", "x", NULL},
                                           {"--cwd=/does/not/exist", "x", NULL}};
    for (size_t i = 0; i < COUNT(wrong); i++) {
        struct ran ran = program_run(1, wrong[i]);
        EXPECT_INT(ran.code, 2);
        EXPECT_INT(ran.out.size, 0);
        buf_deinit(&ran.out);
    }
}

TEST(a_server_that_is_not_there_is_a_model_failure_after_some_tries)
{
    /* Bound, so that nobody else can listen there meanwhile. */
    OWN(fd) int nobody = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    EXPECT(bind(nobody, (struct sockaddr *)&address, size) == 0 &&
           getsockname(nobody, (struct sockaddr *)&address, &size) == 0);
    struct ran ran =
        program_run(ntohs(address.sin_port), (const char *[]){"--retries", "1", "x", NULL});
    EXPECT_INT(ran.code, 1);
    EXPECT(strstr(ran.out.data, "\"retry\":true"));
    EXPECT(strstr(ran.out.data, "Connection refused"));
    buf_deinit(&ran.out);
}
